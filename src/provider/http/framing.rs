//! Splits the bytes of a response into events. Performs no I/O.
//!
//! Server-sent events follow the WHATWG HTML standard, section 9.2 ("Server-sent events"), with two exceptions. If the
//! body ends before the blank line that completes an event, the standard discards this event. [`Framer`] returns it,
//! since some services omit the last blank line. The decoder can detect whether the event is complete. The standard also
//! discards lines without a known field. [`Framer`] reads the field `error`, with which llama.cpp reports failures, as
//! the data of an event named `error`. A line that begins with a brace is data, together with the lines up to the next
//! blank line: Gemini sends errors and GPUStack sends chunks in this form.
//!
//! The crate `eventsource-stream` takes ten times as long per event, panics on a byte-order mark and buffers without a
//! limit. It is the oracle of the tests.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::provider::{
    ProviderError, ProviderErrorKind,
    dialect::{Frame, Framing},
};
use crate::setters::setters;

/// A byte order mark.
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The limits on the size of a response. If a limit is exceeded, reading fails with [`ProviderErrorKind::Decoding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of bytes of one line, without its end.
    pub line: usize,
    /// The maximum number of bytes of one event: its name and its data.
    pub event: usize,
    /// The maximum number of bytes of a complete response.
    pub body: usize,
    /// The maximum number of bytes that are read of an error's body. The rest is not read.
    pub error_body: usize,
}

setters! {
    Limits: with_line(line: usize), with_event(event: usize), with_body(body: usize), with_error_body(error_body: usize)
}

impl Default for Limits {
    /// Returns limits of 16 MiB for a line or an event, 256 MiB for a response, and 1 MiB for an error's body.
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self { line: 16 * MIB, event: 16 * MIB, body: 256 * MIB, error_body: MIB }
    }
}

/// Splits the bytes of a response into events. The bytes may be divided into chunks in any way.
///
/// If an event is completely contained in one chunk, it is borrowed from the chunk. Of other events, only the
/// incomplete part is copied. Each byte is examined once.
///
/// ```
/// use omni_agent::provider::custom::Framing;
/// use omni_agent::provider::http::Limits;
/// use omni_agent::provider::custom::Framer;
///
/// let mut framer = Framer::new(Framing::Sse, &Limits::default());
/// framer.push("event: greeting\nda".into());
/// assert_eq!(framer.next_frame()?, None);
/// framer.push("ta: hello\n\n".into());
/// let frame = framer.next_frame()?.unwrap();
/// assert_eq!((frame.event, frame.data), ("greeting", "hello"));
/// # Ok::<(), omni_agent::provider::ProviderError>(())
/// ```
#[derive(Debug)]
pub struct Framer {
    framing: Framing,
    line_limit: usize,
    event_limit: usize,
    body_limit: usize,
    /// The number of bytes of the body that have been received so far, up to the limit.
    taken: usize,
    body: BodyEndState,

    chunk: Bytes,
    /// The start of the unread part of `chunk`.
    at: usize,
    /// The beginning of a line whose end has not arrived yet.
    line: Vec<u8>,
    before: LineBreakState,

    event: SseFieldValue,
    data: SseFieldValue,
    /// Whether a line of the event began with a brace, so that all of its lines are data.
    bare: bool,
    /// Whether the frame in `event` and `data` has been returned.
    dispatched: bool,
}

/// Whether the body has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEndState {
    Open,
    Ended,
    /// The body continues beyond its limit.
    Overlong,
}

/// The input that directly precedes the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineBreakState {
    /// No line has ended yet, so the first line may begin with a byte order mark.
    Nothing,
    /// The last line ended with a carriage return. If a line feed follows directly, it belongs to the same line end.
    CarriageReturn,
    Line,
}

/// The value of a field of the event that is being read.
#[derive(Debug, Default)]
struct SseFieldValue {
    place: SseFieldSource,
    /// The value, if it was copied. This is empty unless `place` is [`SseFieldSource::Own`].
    own: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum SseFieldSource {
    #[default]
    Absent,
    Chunk(Range<usize>),
    Own,
}

/// The place of a complete line.
enum FramedLinePlace {
    Chunk(Range<usize>),
    /// The line is in [`Framer::line`].
    Own,
}

impl Framer {
    /// Creates a framer for one response.
    pub fn new(framing: Framing, limits: &Limits) -> Self {
        Self {
            framing,
            line_limit: limits.line,
            event_limit: limits.event,
            body_limit: limits.body,
            taken: 0,
            body: BodyEndState::Open,
            chunk: Bytes::new(),
            at: 0,
            line: Vec::new(),
            before: LineBreakState::Nothing,
            event: SseFieldValue::default(),
            data: SseFieldValue::default(),
            bare: false,
            dispatched: false,
        }
    }

    /// Takes the next bytes of the body. Call this method when [`Framer::next_frame`] returns `None`. An earlier call
    /// works too, but it copies bytes.
    pub fn push(&mut self, mut chunk: Bytes) {
        let room = self.body_limit - self.taken;
        if chunk.len() > room {
            chunk.truncate(room);
            self.body = BodyEndState::Overlong;
        }
        self.taken += chunk.len();
        self.forget_dispatched();
        // The parts of the incomplete event that are borrowed from the old chunk are copied before this chunk is
        // dropped.
        self.event.spill(&self.chunk);
        self.data.spill(&self.chunk);
        if self.at < self.chunk.len() {
            let mut joined = BytesMut::from(&self.chunk[self.at..]);
            joined.extend_from_slice(&chunk);
            chunk = joined.freeze();
        }
        self.chunk = chunk;
        self.at = 0;
    }

    /// Marks the end of the body. [`Framer::next_frame`] then also returns an incomplete last event.
    pub fn finish(&mut self) {
        if self.body == BodyEndState::Open {
            self.body = BodyEndState::Ended;
        }
    }

    /// Returns the next event, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Decoding`] if the bytes are not UTF-8 or exceed a limit, and
    /// [`ProviderErrorKind::Truncated`] if the body ended inside a character. The framer can't be used after an error.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, ProviderError> {
        self.forget_dispatched();
        let found = match self.framing {
            Framing::Sse => self.next_event()?,
            Framing::NdJson => self.next_json_line()?,
        };
        if !found {
            return Ok(None);
        }
        self.dispatched = true;
        let event = self.event.bytes(&self.chunk);
        let data = self.data.bytes(&self.chunk);
        Ok(Some(Frame { event: self.text(event)?, data: self.text(data)? }))
    }

    /// Reads lines up to the end of the next event that has data.
    fn next_event(&mut self) -> Result<bool, ProviderError> {
        while let Some(line) = self.next_line()? {
            if self.take_field(line)? {
                if self.data.place != SseFieldSource::Absent {
                    return Ok(true);
                }
                self.event.clear();
            }
        }
        Ok(self.body == BodyEndState::Ended && self.data.place != SseFieldSource::Absent)
    }

    /// Reads lines up to the next line that is not blank.
    fn next_json_line(&mut self) -> Result<bool, ProviderError> {
        while let Some(line) = self.next_line()? {
            match line {
                FramedLinePlace::Chunk(Range { start, end }) => {
                    let line = &self.chunk[start..end];
                    let end = if line.ends_with(b"\r") { end - 1 } else { end };
                    if !line.trim_ascii().is_empty() {
                        self.data.place = SseFieldSource::Chunk(start..end);
                        return Ok(true);
                    }
                }
                FramedLinePlace::Own if self.line.trim_ascii().is_empty() => self.line.clear(),
                FramedLinePlace::Own => {
                    if self.line.ends_with(b"\r") {
                        self.line.pop();
                    }
                    std::mem::swap(&mut self.line, &mut self.data.own);
                    self.data.place = SseFieldSource::Own;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Reads a field of a server-sent event. Returns whether the line is blank, because a blank line ends the event.
    fn take_field(&mut self, line: FramedLinePlace) -> Result<bool, ProviderError> {
        let bytes = match &line {
            FramedLinePlace::Chunk(range) => &self.chunk[range.clone()],
            FramedLinePlace::Own => &self.line[..],
        };
        if bytes.is_empty() {
            self.bare = false;
            return Ok(true);
        }
        let (field, value) = if let Some(value) = value_of(bytes, b"data") {
            (&mut self.data, value)
        } else if let Some(value) = value_of(bytes, b"event") {
            self.event.clear();
            (&mut self.event, value)
        } else if let Some(value) = value_of(bytes, b"error").filter(|value| !value.is_empty()) {
            self.event.clear();
            self.event.append_own(&[], b"error");
            (&mut self.data, value)
        } else if bytes.starts_with(b"{") || self.bare && !bytes.starts_with(b":") {
            self.bare = true;
            (&mut self.data, bytes)
        } else {
            // The line is a comment, `id`, `retry`, or a field that the standard does not define. Only its encoding is
            // checked.
            self.text(bytes)?;
            self.line.clear();
            return Ok(false);
        };
        let value = bytes.len() - value.len()..bytes.len();
        match line {
            FramedLinePlace::Chunk(range) => {
                let value = range.start + value.start..range.end;
                field.append(&self.chunk, value);
            }
            FramedLinePlace::Own => {
                field.append_own(&self.chunk, &self.line[value]);
                self.line.clear();
            }
        }
        if self.event.len() + self.data.len() > self.event_limit {
            return Err(too_long("an event", self.event_limit));
        }
        Ok(false)
    }

    /// Returns the next line whose end has arrived, without its line end.
    fn next_line(&mut self) -> Result<Option<FramedLinePlace>, ProviderError> {
        if self.before == LineBreakState::CarriageReturn && self.at < self.chunk.len() {
            self.before = LineBreakState::Line;
            if self.chunk[self.at] == b'\n' {
                self.at += 1;
            }
        }
        let rest = &self.chunk[self.at..];
        let end = match self.framing {
            Framing::Sse => memchr::memchr2(b'\n', b'\r', rest),
            // In JSON, a carriage return is white space, so only a line feed ends a line.
            Framing::NdJson => memchr::memchr(b'\n', rest),
        };
        if self.line.len() + end.unwrap_or(rest.len()) > self.line_limit {
            return Err(too_long("a line", self.line_limit));
        }
        let Some(end) = end else {
            return self.last_line();
        };
        let mut start = self.at;
        let end = start + end;
        let line = if self.line.is_empty() {
            if self.before == LineBreakState::Nothing && self.chunk[start..end].starts_with(BOM) {
                start += BOM.len();
            }
            FramedLinePlace::Chunk(start..end)
        } else {
            self.line.extend_from_slice(&self.chunk[start..end]);
            self.strip_own_bom();
            FramedLinePlace::Own
        };
        self.before = LineBreakState::Line;
        self.at = end + 1;
        if self.chunk[end] == b'\r' {
            match self.chunk.get(self.at) {
                Some(b'\n') => self.at += 1,
                Some(_) => {}
                None => self.before = LineBreakState::CarriageReturn,
            }
        }
        Ok(Some(line))
    }

    /// Stores the rest of the chunk until the line continues. If the body has ended, returns the rest as a line.
    fn last_line(&mut self) -> Result<Option<FramedLinePlace>, ProviderError> {
        self.line.extend_from_slice(&self.chunk[self.at..]);
        self.at = self.chunk.len();
        if self.body == BodyEndState::Overlong {
            return Err(too_long("the response", self.body_limit));
        }
        if self.body == BodyEndState::Ended && !self.line.is_empty() {
            self.strip_own_bom();
            self.before = LineBreakState::Line;
            // A body that consists only of a byte order mark is empty.
            return Ok((!self.line.is_empty()).then_some(FramedLinePlace::Own));
        }
        Ok(None)
    }

    fn strip_own_bom(&mut self) {
        if self.before == LineBreakState::Nothing && self.line.starts_with(BOM) {
            self.line.drain(..BOM.len());
        }
    }

    fn forget_dispatched(&mut self) {
        if std::mem::take(&mut self.dispatched) {
            self.event.clear();
            self.data.clear();
        }
    }

    fn text<'a>(&self, bytes: &'a [u8]) -> Result<&'a str, ProviderError> {
        std::str::from_utf8(bytes).map_err(|error| {
            if self.body == BodyEndState::Ended && error.error_len().is_none() && self.at == self.chunk.len()
            {
                ProviderError::new(ProviderErrorKind::Truncated, "the response ends inside a character")
            } else {
                ProviderError::new(ProviderErrorKind::Decoding, "the response is not valid UTF-8")
                    .with_source(error)
            }
        })
    }
}

impl SseFieldValue {
    fn len(&self) -> usize {
        match &self.place {
            SseFieldSource::Absent => 0,
            SseFieldSource::Chunk(range) => range.len(),
            SseFieldSource::Own => self.own.len(),
        }
    }

    fn bytes<'a>(&'a self, chunk: &'a [u8]) -> &'a [u8] {
        match &self.place {
            SseFieldSource::Absent => &[],
            SseFieldSource::Chunk(range) => &chunk[range.clone()],
            SseFieldSource::Own => &self.own,
        }
    }

    fn clear(&mut self) {
        self.place = SseFieldSource::Absent;
        self.own.clear();
    }

    fn append(&mut self, chunk: &[u8], value: Range<usize>) {
        if self.place == SseFieldSource::Absent {
            self.place = SseFieldSource::Chunk(value);
        } else {
            self.append_own(chunk, &chunk[value]);
        }
    }

    /// Appends a value after a line feed, because the standard joins the data lines of an event in this way.
    fn append_own(&mut self, chunk: &[u8], value: &[u8]) {
        self.spill(chunk);
        if self.place == SseFieldSource::Own {
            self.own.push(b'\n');
        }
        self.place = SseFieldSource::Own;
        self.own.extend_from_slice(value);
    }

    fn spill(&mut self, chunk: &[u8]) {
        if let SseFieldSource::Chunk(range) = &self.place {
            self.own.extend_from_slice(&chunk[range.clone()]);
            self.place = SseFieldSource::Own;
        }
    }
}

/// Returns the value in a line of the field `name`: the text after the colon, without one leading space.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn too_long(what: &str, limit: usize) -> ProviderError {
    ProviderError::new(
        ProviderErrorKind::Decoding,
        format!("{what} is longer than the limit of {limit} bytes"),
    )
}

//! Framing: the bytes of an answer in, its events out. Pure, without IO.
//!
//! Server-sent events follow the WHATWG HTML standard, section 9.2 ("Server-sent events"), but for one point:
//! the standard discards an event that the end of the body cuts off before its blank line, and [`Framer`]
//! gives it out, since some services leave the last blank line away. Whoever decodes it can tell whether it
//! is whole.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::provider::{
    ErrorKind, ProviderError,
    dialect::{Frame, Framing},
};

/// A byte order mark.
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// How much of an answer is taken in. What goes beyond is an [`ErrorKind::Decoding`] error, not memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one line, its end apart.
    pub line: usize,
    /// Bytes of one event: its name and its data.
    pub event: usize,
    /// Bytes of a whole answer.
    pub body: usize,
    /// Bytes that are read of the body of an error. The rest is left unread.
    pub error_body: usize,
}

impl Default for Limits {
    /// 16 MiB for a line or an event, 256 MiB for an answer, 1 MiB for an error's body.
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self { line: 16 * MIB, event: 16 * MIB, body: 256 * MIB, error_body: MIB }
    }
}

/// Cuts the bytes of an answer into events, however they were split on their way.
///
/// An event that lies whole in one chunk is borrowed from it; of others, only the part that is still open is
/// kept. Each byte is looked at once.
///
/// ```
/// use omni_agent::provider::dialect::Framing;
/// use omni_agent::provider::http::{Framer, Limits};
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
    /// Bytes taken in, up to the limit.
    taken: usize,
    body: Body,

    chunk: Bytes,
    /// Where the unread part of `chunk` begins.
    at: usize,
    /// The beginning of a line whose end is in no chunk yet.
    line: Vec<u8>,
    before: Before,

    event: Field,
    data: Field,
    /// The frame in `event` and `data` has been given out.
    dispatched: bool,
}

/// How much of the body there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Open,
    Ended,
    /// It goes on beyond its limit.
    Overlong,
}

/// What precedes the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// No line has ended yet: the first one may begin with a byte order mark.
    Nothing,
    /// A line that ended in a carriage return: a line feed right after it belongs to it.
    CarriageReturn,
    Line,
}

/// The value of a field of the event that is being read.
#[derive(Debug, Default)]
struct Field {
    place: LineSource,
    /// Empty unless `place` says that the value is here.
    own: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum LineSource {
    #[default]
    Absent,
    Chunk(Range<usize>),
    Own,
}

/// Where a complete line is.
enum Line {
    Chunk(Range<usize>),
    /// In [`Framer::line`].
    Own,
}

impl Framer {
    /// A framer for one answer.
    pub fn new(framing: Framing, limits: &Limits) -> Self {
        Self {
            framing,
            line_limit: limits.line,
            event_limit: limits.event,
            body_limit: limits.body,
            taken: 0,
            body: Body::Open,
            chunk: Bytes::new(),
            at: 0,
            line: Vec::new(),
            before: Before::Nothing,
            event: Field::default(),
            data: Field::default(),
            dispatched: false,
        }
    }

    /// Takes the body's next bytes. Call it when [`Framer::next_frame`] has nothing more to give; earlier
    /// calls work, at the price of a copy.
    pub fn push(&mut self, mut chunk: Bytes) {
        let room = self.body_limit - self.taken;
        if chunk.len() > room {
            chunk.truncate(room);
            self.body = Body::Overlong;
        }
        self.taken += chunk.len();
        self.forget_dispatched();
        // What the open event borrows from the old chunk moves before that goes.
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

    /// Says that the body has ended. [`Framer::next_frame`] then gives what was left open as well.
    pub fn finish(&mut self) {
        if self.body == Body::Open {
            self.body = Body::Ended;
        }
    }

    /// The next event, or `None` if that takes more bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decoding`] if the bytes are no UTF-8 or exceed a limit; [`ErrorKind::Truncated`] if the
    /// body ended inside of a character. The framer is of no use after that.
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

    /// Reads lines up to the end of an event that has data.
    fn next_event(&mut self) -> Result<bool, ProviderError> {
        while let Some(line) = self.next_line()? {
            if self.take_field(line)? {
                if self.data.place != LineSource::Absent {
                    return Ok(true);
                }
                self.event.clear();
            }
        }
        Ok(self.body == Body::Ended && self.data.place != LineSource::Absent)
    }

    /// Reads lines up to one that is not blank.
    fn next_json_line(&mut self) -> Result<bool, ProviderError> {
        while let Some(line) = self.next_line()? {
            match line {
                Line::Chunk(Range { start, end }) => {
                    let line = &self.chunk[start..end];
                    let end = if line.ends_with(b"\r") { end - 1 } else { end };
                    if !line.trim_ascii().is_empty() {
                        self.data.place = LineSource::Chunk(start..end);
                        return Ok(true);
                    }
                }
                Line::Own if self.line.trim_ascii().is_empty() => self.line.clear(),
                Line::Own => {
                    if self.line.ends_with(b"\r") {
                        self.line.pop();
                    }
                    std::mem::swap(&mut self.line, &mut self.data.own);
                    self.data.place = LineSource::Own;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Takes a field of a server-sent event in; whether the line was blank, and so ended the event.
    fn take_field(&mut self, line: Line) -> Result<bool, ProviderError> {
        let bytes = match &line {
            Line::Chunk(range) => &self.chunk[range.clone()],
            Line::Own => &self.line[..],
        };
        if bytes.is_empty() {
            return Ok(true);
        }
        let (field, value) = if let Some(value) = value_of(bytes, b"data") {
            (&mut self.data, value)
        } else if let Some(value) = value_of(bytes, b"event") {
            self.event.clear();
            (&mut self.event, value)
        } else {
            // A comment, `id`, `retry`, or what the standard does not know.
            self.text(bytes)?;
            self.line.clear();
            return Ok(false);
        };
        let value = bytes.len() - value.len()..bytes.len();
        match line {
            Line::Chunk(range) => {
                let value = range.start + value.start..range.end;
                field.append(&self.chunk, value);
            }
            Line::Own => {
                field.append_own(&self.chunk, &self.line[value]);
                self.line.clear();
            }
        }
        if self.event.len() + self.data.len() > self.event_limit {
            return Err(too_long("an event", self.event_limit));
        }
        Ok(false)
    }

    /// The next line whose end has arrived, without that end.
    fn next_line(&mut self) -> Result<Option<Line>, ProviderError> {
        if self.before == Before::CarriageReturn && self.at < self.chunk.len() {
            self.before = Before::Line;
            if self.chunk[self.at] == b'\n' {
                self.at += 1;
            }
        }
        let rest = &self.chunk[self.at..];
        let end = match self.framing {
            Framing::Sse => memchr::memchr2(b'\n', b'\r', rest),
            // A carriage return is white space in JSON; only a line feed ends a line.
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
            if self.before == Before::Nothing && self.chunk[start..end].starts_with(BOM) {
                start += BOM.len();
            }
            Line::Chunk(start..end)
        } else {
            self.line.extend_from_slice(&self.chunk[start..end]);
            self.strip_own_bom();
            Line::Own
        };
        self.before = Before::Line;
        self.at = end + 1;
        if self.chunk[end] == b'\r' {
            match self.chunk.get(self.at) {
                Some(b'\n') => self.at += 1,
                Some(_) => {}
                None => self.before = Before::CarriageReturn,
            }
        }
        Ok(Some(line))
    }

    /// Keeps what is left of the chunk for the line's continuation, or gives it as a line if there is none.
    fn last_line(&mut self) -> Result<Option<Line>, ProviderError> {
        self.line.extend_from_slice(&self.chunk[self.at..]);
        self.at = self.chunk.len();
        if self.body == Body::Overlong {
            return Err(too_long("the answer", self.body_limit));
        }
        if self.body == Body::Ended && !self.line.is_empty() {
            self.strip_own_bom();
            self.before = Before::Line;
            // A mark alone is an empty body.
            return Ok((!self.line.is_empty()).then_some(Line::Own));
        }
        Ok(None)
    }

    fn strip_own_bom(&mut self) {
        if self.before == Before::Nothing && self.line.starts_with(BOM) {
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
            if self.body == Body::Ended && error.error_len().is_none() && self.at == self.chunk.len() {
                ProviderError::new(ErrorKind::Truncated, "the answer ends inside of a character")
            } else {
                ProviderError::new(ErrorKind::Decoding, "the answer is not valid UTF-8").with_source(error)
            }
        })
    }
}

impl Field {
    fn len(&self) -> usize {
        match &self.place {
            LineSource::Absent => 0,
            LineSource::Chunk(range) => range.len(),
            LineSource::Own => self.own.len(),
        }
    }

    fn bytes<'a>(&'a self, chunk: &'a [u8]) -> &'a [u8] {
        match &self.place {
            LineSource::Absent => &[],
            LineSource::Chunk(range) => &chunk[range.clone()],
            LineSource::Own => &self.own,
        }
    }

    fn clear(&mut self) {
        self.place = LineSource::Absent;
        self.own.clear();
    }

    fn append(&mut self, chunk: &[u8], value: Range<usize>) {
        if self.place == LineSource::Absent {
            self.place = LineSource::Chunk(value);
        } else {
            self.append_own(chunk, &chunk[value]);
        }
    }

    /// Appends after a line feed, which is how the standard joins the data lines of an event.
    fn append_own(&mut self, chunk: &[u8], value: &[u8]) {
        self.spill(chunk);
        if self.place == LineSource::Own {
            self.own.push(b'\n');
        }
        self.place = LineSource::Own;
        self.own.extend_from_slice(value);
    }

    fn spill(&mut self, chunk: &[u8]) {
        if let LineSource::Chunk(range) = &self.place {
            self.own.extend_from_slice(&chunk[range.clone()]);
            self.place = LineSource::Own;
        }
    }
}

/// The value in a line of the field `name`, if it is one: what follows the colon, less one space.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn too_long(what: &str, limit: usize) -> ProviderError {
    ProviderError::new(ErrorKind::Decoding, format!("{what} is longer than the limit of {limit} bytes"))
}

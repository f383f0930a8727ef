//! Reads the body of a response as a stream of deltas.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::{Framer, endpoint::DeltaHook, exchange::ExchangeErrorScrubber, framing::BOM, origin};
use crate::provider::{
    Delta, MessageDelta, ProviderError, ProviderErrorKind,
    dialect::{Decoder, Dialect, Frame, Framing, is_error},
    halves::SurrogateHalves,
};

/// The maximum number of bytes of a body that are read after its terminal event, so that the connection can be reused.
const DRAIN_BYTES: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// How long to wait for data that may follow a complete response, such as usage. Some services leave the connection
/// open instead of ending the body.
const REST_TIME: Duration = Duration::from_secs(5);
/// The maximum number of pieces of a body that are read in one poll without producing a delta. This limit lets the
/// reading task yield during a flood of comments.
const PATIENCE: usize = 32;

/// Reads a body frame by frame, as deltas are requested. The part that has not been read stays in the socket.
pub(super) struct ResponseReader<S> {
    /// The body, until it has ended, failed or become unnecessary. Dropping the body closes the connection.
    body: Option<S>,
    reading: BodyReadingMode,
    framer: Framer,
    decoding: DecoderAndBuffers,
    dialect: Arc<dyn Dialect>,
    hooks: Vec<DeltaHook>,
    error_context: ExchangeErrorScrubber,
    /// The service's name, which still has to be added to the response. `None` after it has been added.
    service: Option<String>,
    /// The decoded deltas that have not been returned yet.
    ready: VecDeque<Delta>,
    /// The error to return after the deltas in `ready`.
    failed: Option<ProviderError>,
    /// Whether any content of the response has been returned.
    content: bool,
    whole_limit: usize,
    silence: BodySilenceTimeout,
    /// The timeout for data that may follow a complete response.
    rest: BodySilenceTimeout,
}

/// The maximum number of events without a blank line between them. More are decoded as one event, which is an error.
const MAX_JOINED: usize = 1024;

/// The decoder and its buffers.
struct DecoderAndBuffers {
    decoder: Box<dyn Decoder>,
    halves: SurrogateHalves,
    /// The decoder's output, which is empty between frames.
    decoded: Vec<Delta>,
}

impl DecoderAndBuffers {
    /// Decodes a frame. If its data is not JSON and has several lines that begin with a bracket, the blank lines between
    /// several events are missing, so these events are decoded one by one. A truncated event is an error, unless a later
    /// event reports another error.
    fn decode(&mut self, frame: Frame<'_>) -> Result<(), ProviderError> {
        let is_one =
            events_in(frame.data).nth(1).is_none() || events_in(frame.data).nth(MAX_JOINED).is_some();
        if frame.event == "error" || is_one || is_json(frame.data) {
            return self.decode_one(frame);
        }
        let (mut result, mut deltas) = (Ok(()), Vec::new());
        for data in events_in(frame.data) {
            let decoded = self.decode_one(Frame { data, ..frame });
            // After an event that cannot be decoded, the response has a gap.
            if result.is_ok() {
                deltas.append(&mut self.decoded);
            }
            self.decoded.clear();
            match decoded {
                Err(error) if error.kind != ProviderErrorKind::Decoding => {
                    result = Err(error);
                    break;
                }
                decoded => result = result.and(decoded),
            }
        }
        self.decoded = deltas;
        result
    }

    /// Decodes one event. If decoding fails because of half a character (an unpaired surrogate), the frame is decoded a
    /// second time. This is possible because data with half a character is not JSON, so the failed attempt leaves the
    /// decoder unchanged.
    fn decode_one(&mut self, frame: Frame<'_>) -> Result<(), ProviderError> {
        let decoded = match self.decoder.decode(frame, &mut self.decoded) {
            Err(error) if error.kind == ProviderErrorKind::Decoding && self.decoded.is_empty() => {
                match self.halves.mark(frame.data) {
                    Some(data) => self.decoder.decode(Frame { data: &data, ..frame }, &mut self.decoded),
                    None => Err(error),
                }
            }
            decoded => decoded,
        };
        self.halves.resolve(&mut self.decoded);
        decoded.map_err(|error| self.halves.resolve_error(error))
    }

    /// Decodes the end of the body.
    fn end(&mut self) -> Result<(), ProviderError> {
        let ended = self.decoder.end(&mut self.decoded);
        self.halves.resolve(&mut self.decoded);
        ended.map_err(|error| self.halves.resolve_error(error))
    }
}

/// How the body is being read.
enum BodyReadingMode {
    /// The first bytes have not shown yet how to read the body.
    Undecided(BodyShapeDetector),
    /// The body is read as events.
    Frames,
    /// The body is read as one JSON value, from a service that does not stream.
    Whole(Vec<u8>),
    /// Reading has ended.
    Over,
}

/// The parts of a [`ResponseReader`].
pub(super) struct ReaderParts {
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) decoder: Box<dyn Decoder>,
    pub(super) hooks: Vec<DeltaHook>,
    pub(super) limits: super::Limits,
    pub(super) between_chunks: Duration,
    pub(super) warnings: Vec<String>,
    pub(super) error_context: ExchangeErrorScrubber,
    pub(super) service: String,
}

impl<S: Stream<Item = reqwest::Result<Bytes>> + Send + Unpin + 'static> ResponseReader<S> {
    pub(super) fn new(body: S, parts: ReaderParts) -> Self {
        let ReaderParts { dialect, decoder, hooks, limits, between_chunks, warnings, error_context, service } =
            parts;
        let framing = dialect.framing();
        let warned = (!warnings.is_empty())
            .then(|| Delta::Message(Box::new(MessageDelta { warnings, ..MessageDelta::default() })));
        Self {
            body: Some(body),
            reading: BodyReadingMode::Undecided(BodyShapeDetector::new(framing, limits.line)),
            framer: Framer::new(framing, &limits),
            decoding: DecoderAndBuffers { decoder, halves: SurrogateHalves::default(), decoded: Vec::new() },
            dialect,
            hooks,
            error_context,
            service: Some(service),
            ready: VecDeque::from_iter(warned),
            failed: None,
            content: false,
            whole_limit: limits.event,
            silence: BodySilenceTimeout::new(between_chunks),
            rest: BodySilenceTimeout::new(REST_TIME.min(between_chunks)),
        }
    }

    /// Decodes frames until there is something to return. Returns `false` if more of the body must be read first.
    fn advance(&mut self) -> Result<bool, ProviderError> {
        while matches!(self.reading, BodyReadingMode::Undecided(_) | BodyReadingMode::Frames) {
            let Some(frame) = self.framer.next_frame()? else {
                return Ok(false);
            };
            // Skip empty events, which some services send to keep a connection alive.
            if frame.data.is_empty() && frame.event.is_empty() {
                continue;
            }
            let decoded = self.decoding.decode(frame);
            self.settle(decoded)?;
            if self.decoding.decoder.is_done() {
                self.stop_reading();
            }
            if !self.ready.is_empty() {
                break;
            }
        }
        Ok(!self.ready.is_empty())
    }

    /// Queues the decoded deltas, including the deltas before an error.
    fn settle(&mut self, decoded: Result<(), ProviderError>) -> Result<(), ProviderError> {
        let deltas = &mut self.decoding.decoded;
        if let Err(error) = self.hooks.iter().try_for_each(|hook| hook(deltas)) {
            deltas.clear();
            return Err(error);
        }
        // New deltas show that the response continues, so the timeout for data after a complete response starts again.
        // Comments produce no deltas and therefore do not extend the timeout.
        self.rest.armed &= deltas.is_empty();
        self.service.take_if(|service| origin::mark(deltas, service));
        self.content = self.content || deltas.iter().any(Delta::is_content);
        self.ready.extend(deltas.drain(..));
        decoded
    }

    /// Ends reading after the terminal event. If the body ends soon, the connection is reused. Otherwise, it is closed.
    fn stop_reading(&mut self) {
        self.reading = BodyReadingMode::Over;
        if let Some(mut body) = self.body.take() {
            tokio::spawn(async move {
                let rest = async {
                    let mut left = DRAIN_BYTES;
                    while let Some(Ok(chunk)) = body.next().await {
                        left = left.saturating_sub(chunk.len());
                        if left == 0 {
                            break;
                        }
                    }
                };
                // Whether the drain completes or times out, the body is dropped with this task.
                _ = timeout(DRAIN_TIME, rest).await;
            });
        }
    }

    fn take_chunk(&mut self, mut chunk: Bytes) -> Result<(), ProviderError> {
        if let BodyReadingMode::Undecided(opening) = &mut self.reading {
            let (shape, bytes) = opening.take(chunk);
            chunk = bytes;
            match shape {
                Some(BodyReadMode::Whole) => self.reading = BodyReadingMode::Whole(Vec::new()),
                Some(BodyReadMode::Frames) => self.reading = BodyReadingMode::Frames,
                None => {}
            }
        }
        if let BodyReadingMode::Whole(text) = &mut self.reading {
            if text.len() + chunk.len() > self.whole_limit {
                let message = format!("the response is longer than the limit of {} bytes", self.whole_limit);
                return Err(ProviderError::new(ProviderErrorKind::Decoding, message));
            }
            text.extend_from_slice(&chunk);
        } else {
            self.framer.push(chunk);
        }
        Ok(())
    }

    /// Decodes the remaining data after the body has ended.
    fn end(&mut self) -> Result<(), ProviderError> {
        self.body = None;
        match std::mem::replace(&mut self.reading, BodyReadingMode::Over) {
            BodyReadingMode::Over => return Ok(()),
            BodyReadingMode::Whole(text) => return self.end_whole(&text),
            BodyReadingMode::Undecided(mut opening) => {
                self.framer.push(opening.end());
                self.end_frames()?;
            }
            BodyReadingMode::Frames => self.end_frames()?,
        }
        self.end_decoding()
    }

    fn end_decoding(&mut self) -> Result<(), ProviderError> {
        if self.decoding.decoder.is_done() {
            return Ok(());
        }
        let ended = self.decoding.end();
        self.settle(ended)
    }

    /// Decodes the last frame, which may be incomplete because the body has ended. If decoding fails and the frame is
    /// not JSON, it was cut off.
    fn end_frames(&mut self) -> Result<(), ProviderError> {
        self.framer.finish();
        while let Some(frame) = self.framer.next_frame()? {
            match self.decoding.decode(frame) {
                Err(error) if error.kind == ProviderErrorKind::Decoding && !is_json(frame.data) => {
                    let message = "the response ended in the middle of an event";
                    return Err(ProviderError::new(ProviderErrorKind::Truncated, message).with_source(error));
                }
                decoded => self.settle(decoded)?,
            }
        }
        Ok(())
    }

    /// Decodes a complete JSON value: an error, or a response that was not streamed.
    fn end_whole(&mut self, text: &[u8]) -> Result<(), ProviderError> {
        #[derive(Deserialize)]
        struct ErrorBodyProbe {
            error: Option<Value>,
        }

        let bad = |error: serde_json::Error| {
            let (kind, message) = if error.is_eof() {
                (ProviderErrorKind::Truncated, "the response ended in the middle of a JSON value")
            } else {
                (ProviderErrorKind::Decoding, "the response is neither an event stream nor JSON")
            };
            ProviderError::new(kind, message).with_source(error)
        };
        let text = std::str::from_utf8(text).map_err(|error| {
            ProviderError::new(ProviderErrorKind::Decoding, "the response is not valid UTF-8")
                .with_source(error)
        })?;
        serde_json::from_str::<IgnoredAny>(text).map_err(bad)?;
        // Serde would also accept a list for this struct, as its fields in order. Lists are left to the wire format,
        // which knows what they contain.
        let is_object = text.trim_ascii_start().starts_with('{');
        if let (true, Ok(ErrorBodyProbe { error: Some(error) })) = (is_object, serde_json::from_str(text))
            && is_error(&error)
        {
            return Err(self.dialect.error(200, &self.error_context.scrub(text)));
        }
        let decoded = self.decoding.decode(Frame { event: "", data: text });
        self.settle(decoded)?;
        match self.end_decoding() {
            // The decoder reports a truncated response, but the JSON value is complete. So the value is something other
            // than a response.
            Err(error) if error.kind == ProviderErrorKind::Truncated && !self.content => {
                let text = self.error_context.scrub(text);
                let message = self.dialect.error(200, &text).message;
                let message =
                    format!("the response is not in the endpoint's wire format; it contains: {message}");
                Err(ProviderError::new(ProviderErrorKind::Decoding, message).with_body(&text))
            }
            ended => ended,
        }
    }

    /// Returns the error for a failed connection. If content has arrived, the error says that the response is
    /// truncated. Otherwise, it says that the connection failed before the response began.
    fn broken(&self, error: reqwest::Error) -> ProviderError {
        let (kind, what) = if self.content {
            (ProviderErrorKind::Truncated, "the connection broke in the middle of the response")
        } else {
            (ProviderErrorKind::Transport, "the connection broke before the response began")
        };
        super::exchange::with_cause(kind, what, error)
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ProviderError>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(self.end());
        };
        match body.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(chunk))) => {
                self.silence.armed = false;
                Poll::Ready(self.take_chunk(chunk))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(self.broken(error))),
            Poll::Ready(None) => Poll::Ready(self.end()),
            Poll::Pending if self.decoding.decoder.is_complete() => {
                ready!(self.rest.poll(cx));
                // An incomplete event is dropped, because the response is complete without it.
                self.body = None;
                self.reading = BodyReadingMode::Over;
                Poll::Ready(self.end_decoding())
            }
            Poll::Pending => {
                ready!(self.silence.poll(cx));
                self.body = None;
                self.reading = BodyReadingMode::Over;
                let limit = self.silence.limit;
                // A finish reason may have arrived before the silence.
                Poll::Ready(self.end_decoding().map_err(|error| {
                    if !matches!(error.kind, ProviderErrorKind::Truncated | ProviderErrorKind::Decoding) {
                        return error;
                    }
                    let message =
                        format!("the service sent nothing more for {limit:?}, the between-chunks timeout");
                    ProviderError::new(ProviderErrorKind::Timeout, message)
                }))
            }
        }
    }

    fn fail(&mut self, error: ProviderError) {
        // A half of a character that still waits for the other half belongs to the text that has arrived.
        self.decoding.halves.finish(&mut self.decoding.decoded);
        _ = self.settle(Ok(()));
        self.body = None;
        self.reading = BodyReadingMode::Over;
        self.failed = Some(self.error_context.error_context(error));
    }
}

impl<S: Stream<Item = reqwest::Result<Bytes>> + Send + Unpin + 'static> Stream for ResponseReader<S> {
    type Item = Result<Delta, ProviderError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        for _ in 0..PATIENCE {
            if let Some(delta) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if let Some(error) = this.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if matches!(this.reading, BodyReadingMode::Over) {
                return Poll::Ready(None);
            }
            let step = match this.advance() {
                Ok(true) => Ok(()),
                Ok(false) => ready!(this.poll_body(cx)),
                Err(error) => Err(error),
            };
            if let Err(error) = step {
                this.fail(error);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Returns the parts of some data that may be events: each part begins at the start of the data, or at a line that
/// begins with a bracket.
fn events_in(data: &str) -> impl Iterator<Item = &str> {
    let mut rest = data;
    std::iter::from_fn(move || {
        let lines = memchr::memchr_iter(b'\n', rest.as_bytes());
        let end = lines.map(|end| end + 1).find(|end| rest[*end..].starts_with(['{', '[']));
        let (event, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!event.is_empty()).then_some(event)
    })
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A timeout that runs only while the reader waits for bytes. While bytes are available, it costs nothing.
struct BodySilenceTimeout {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether `sleep` was set for the current silence.
    armed: bool,
}

impl BodySilenceTimeout {
    fn new(limit: Duration) -> Self {
        Self { limit, sleep: None, armed: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| {
            self.armed = true;
            Box::pin(sleep(self.limit))
        });
        if !self.armed {
            self.armed = true;
            // If the deadline is beyond the range of the clock, the wait has no limit.
            match Instant::now().checked_add(self.limit) {
                Some(deadline) => sleep.as_mut().reset(deadline),
                None => return Poll::Pending,
            }
        }
        sleep.as_mut().poll(cx)
    }
}

/// Collects the first bytes of a body until they show how to read the body.
struct BodyShapeDetector {
    framing: Framing,
    /// The maximum number of bytes of the first line that are held.
    limit: usize,
    /// The number of bytes so far that may be the beginning of a byte order mark. `None` after the mark or anything
    /// else has been read.
    mark: Option<usize>,
    /// The part of the first line that has arrived, until the line is complete. Only used for JSON lines.
    line: Vec<u8>,
}

/// How a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyReadMode {
    Frames,
    /// One JSON value, which may span several lines.
    Whole,
}

impl BodyShapeDetector {
    /// Creates the state before the first byte. `line_limit` is the maximum number of bytes of a line.
    fn new(framing: Framing, line_limit: usize) -> Self {
        Self { framing, limit: line_limit, mark: Some(0), line: Vec::new() }
    }

    /// Takes the next bytes. Returns the shape of the body if the bytes show it, and the bytes that can be read now,
    /// without a byte order mark.
    fn take(&mut self, chunk: Bytes) -> (Option<BodyReadMode>, Bytes) {
        let Some(chunk) = self.without_mark(chunk) else {
            return (None, Bytes::new());
        };
        let text = chunk.trim_ascii_start();
        if self.line.is_empty() && text.is_empty() {
            return (None, chunk);
        }
        match self.framing {
            // No field of a server-sent event begins with a brace or a bracket, so such a body is one JSON value.
            Framing::Sse if text.starts_with(b"{") || text.starts_with(b"[") => {
                (Some(BodyReadMode::Whole), chunk)
            }
            Framing::Sse => (Some(BodyReadMode::Frames), chunk),
            Framing::NdJson => self.take_line(chunk),
        }
    }

    /// Ends the body, and returns the bytes that are still held.
    fn end(&mut self) -> Bytes {
        match self.mark.take() {
            Some(seen) => Bytes::from_static(&BOM[..seen]),
            None => std::mem::take(&mut self.line).into(),
        }
    }

    /// Removes a byte order mark. Returns `None` as long as the bytes may be the beginning of the mark.
    fn without_mark(&mut self, chunk: Bytes) -> Option<Bytes> {
        let Some(seen) = self.mark else {
            return Some(chunk);
        };
        let rest = &BOM[seen..];
        if chunk.len() < rest.len() && rest.starts_with(&chunk) {
            self.mark = Some(seen + chunk.len());
            return None;
        }
        self.mark = None;
        Some(match chunk.strip_prefix(rest) {
            Some(text) => chunk.slice_ref(text),
            None if seen == 0 => chunk,
            None => [&BOM[..seen], &chunk].concat().into(),
        })
    }

    /// Reads up to the end of the first line. If this line is only the beginning of a JSON value, the body is one value
    /// that spans several lines.
    fn take_line(&mut self, chunk: Bytes) -> (Option<BodyReadMode>, Bytes) {
        let chunk = if self.line.is_empty() { chunk.slice_ref(chunk.trim_ascii_start()) } else { chunk };
        let end = memchr::memchr(b'\n', &chunk).map(|end| self.line.len() + end);
        let bytes = if self.line.is_empty() && end.is_some() {
            chunk
        } else {
            self.line.extend_from_slice(&chunk);
            if end.is_none() && self.line.len() <= self.limit {
                return (None, Bytes::new());
            }
            std::mem::take(&mut self.line).into()
        };
        let is_open = |line| serde_json::from_slice::<IgnoredAny>(line).is_err_and(|error| error.is_eof());
        let is_whole = end.is_some_and(|end| end <= self.limit && is_open(&bytes[..end]));
        (Some(if is_whole { BodyReadMode::Whole } else { BodyReadMode::Frames }), bytes)
    }
}

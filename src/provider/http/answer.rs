//! The body of an answer as a stream of deltas.

mod opening;

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

use self::opening::{Opening, Shape};
use super::{Framer, endpoint::DeltaHook, exchange::ErrorContext, origin};
use crate::provider::{
    Delta, ErrorKind, MessageDelta, ProviderError,
    dialect::{Decoder, Dialect, Frame, is_error},
    halves::Halves,
};

/// What is read of a body after its terminal event, so that the connection can serve the next request.
const DRAIN_BYTES: usize = 64 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// The wait for what may follow a complete answer, such as usage. Some services leave the connection open instead of ending
/// the body.
const REST_TIME: Duration = Duration::from_secs(5);
/// Pieces of a body that are read at a time without finding anything to give out: in a flood of comments, the
/// reader gets its turn in between.
const PATIENCE: usize = 32;

/// Reads a body, frame by frame as its reader asks for deltas: what nobody asks for stays in the socket.
pub(super) struct ResponseReader<S> {
    /// Gone once it has ended, failed or told enough. Dropping it closes the connection.
    body: Option<S>,
    reading: Reading,
    framer: Framer,
    decoding: Decoding,
    dialect: Arc<dyn Dialect>,
    hooks: Vec<DeltaHook>,
    error_context: ErrorContext,
    /// The service's name, until the answer is marked with it.
    service: Option<String>,
    /// Deltas not given out yet.
    ready: VecDeque<Delta>,
    /// The error that comes after them.
    failed: Option<ProviderError>,
    /// Whether anything of the answer's content was given out.
    content: bool,
    whole_limit: usize,
    silence: Silence,
    /// The wait for what may follow a complete answer.
    rest: Silence,
}

/// The decoder, and what helps it.
struct Decoding {
    decoder: Box<dyn Decoder>,
    halves: Halves,
    /// What the decoder writes into; empty between frames.
    decoded: Vec<Delta>,
}

impl Decoding {
    /// Decodes a frame, a second time if the first failed for halves of characters. Data with a half alone is not JSON to
    /// the decoder, which leaves the decoder as it was.
    fn decode(&mut self, frame: Frame<'_>) -> Result<(), ProviderError> {
        let decoded = match self.decoder.decode(frame, &mut self.decoded) {
            Err(error) if error.kind == ErrorKind::Decoding && self.decoded.is_empty() => {
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

    /// The body has ended.
    fn end(&mut self) -> Result<(), ProviderError> {
        let ended = self.decoder.end(&mut self.decoded);
        self.halves.resolve(&mut self.decoded);
        ended.map_err(|error| self.halves.resolve_error(error))
    }
}

/// What the body turned out to be.
enum Reading {
    /// The first bytes do not show the shape of the body yet.
    Undecided(Opening),
    /// Events.
    Frames,
    /// One JSON value, from a service that does not stream.
    Whole(Vec<u8>),
    /// Nothing more.
    Over,
}

/// What an [`ResponseReader`] is made from.
pub(super) struct Parts {
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) decoder: Box<dyn Decoder>,
    pub(super) hooks: Vec<DeltaHook>,
    pub(super) limits: super::Limits,
    pub(super) between_chunks: Duration,
    pub(super) warnings: Vec<String>,
    pub(super) error_context: ErrorContext,
    pub(super) service: String,
}

impl<S: Stream<Item = reqwest::Result<Bytes>> + Send + Unpin + 'static> ResponseReader<S> {
    pub(super) fn new(body: S, parts: Parts) -> Self {
        let Parts { dialect, decoder, hooks, limits, between_chunks, warnings, error_context, service } =
            parts;
        let framing = dialect.framing();
        let warned = (!warnings.is_empty())
            .then(|| Delta::Message(Box::new(MessageDelta { warnings, ..MessageDelta::default() })));
        Self {
            body: Some(body),
            reading: Reading::Undecided(Opening::new(framing, limits.line)),
            framer: Framer::new(framing, &limits),
            decoding: Decoding { decoder, halves: Halves::default(), decoded: Vec::new() },
            dialect,
            hooks,
            error_context,
            service: Some(service),
            ready: VecDeque::from_iter(warned),
            failed: None,
            content: false,
            whole_limit: limits.event,
            silence: Silence::new(between_chunks),
            rest: Silence::new(REST_TIME.min(between_chunks)),
        }
    }

    /// Decodes frames until there is something to give out. `false`: that takes more of the body.
    fn advance(&mut self) -> Result<bool, ProviderError> {
        while matches!(self.reading, Reading::Undecided(_) | Reading::Frames) {
            let Some(frame) = self.framer.next_frame()? else {
                return Ok(false);
            };
            // Some services keep a connection alive with events that say nothing.
            if frame.data.is_empty() && frame.event.is_empty() {
                continue;
            }
            let decoded = self.decoding.decode(frame);
            self.settle(decoded)?;
            if self.decoding.decoder.is_done() {
                self.let_go();
            }
            if !self.ready.is_empty() {
                break;
            }
        }
        Ok(!self.ready.is_empty())
    }

    /// Makes what was decoded ready, all that came before an error included.
    fn settle(&mut self, decoded: Result<(), ProviderError>) -> Result<(), ProviderError> {
        let deltas = &mut self.decoding.decoded;
        if let Err(error) = self.hooks.iter().try_for_each(|hook| hook(deltas)) {
            deltas.clear();
            return Err(error);
        }
        // An answer that continues is not complete yet. Comments alone do not extend the wait.
        self.rest.armed &= deltas.is_empty();
        self.service.take_if(|service| origin::mark(deltas, service));
        self.content = self.content || deltas.iter().any(Delta::is_content);
        self.ready.extend(deltas.drain(..));
        decoded
    }

    /// The terminal event has been seen: the connection is kept if the body ends at once, and closed if not.
    fn let_go(&mut self) {
        self.reading = Reading::Over;
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
                // Either way the body is dropped with this task.
                _ = timeout(DRAIN_TIME, rest).await;
            });
        }
    }

    fn take_chunk(&mut self, mut chunk: Bytes) -> Result<(), ProviderError> {
        if let Reading::Undecided(opening) = &mut self.reading {
            let (shape, bytes) = opening.take(chunk);
            chunk = bytes;
            match shape {
                Some(Shape::Whole) => self.reading = Reading::Whole(Vec::new()),
                Some(Shape::Frames) => self.reading = Reading::Frames,
                None => {}
            }
        }
        if let Reading::Whole(text) = &mut self.reading {
            if text.len() + chunk.len() > self.whole_limit {
                let message = format!("the answer is longer than the limit of {} bytes", self.whole_limit);
                return Err(ProviderError::new(ErrorKind::Decoding, message));
            }
            text.extend_from_slice(&chunk);
        } else {
            self.framer.push(chunk);
        }
        Ok(())
    }

    /// The body has ended: decodes what is left.
    fn end(&mut self) -> Result<(), ProviderError> {
        self.body = None;
        match std::mem::replace(&mut self.reading, Reading::Over) {
            Reading::Over => return Ok(()),
            Reading::Whole(text) => return self.end_whole(&text),
            Reading::Undecided(mut opening) => {
                self.framer.push(opening.end());
                self.end_frames()?;
            }
            Reading::Frames => self.end_frames()?,
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

    /// Decodes the frame that the end of the body left open. If it is no JSON, it was cut off.
    fn end_frames(&mut self) -> Result<(), ProviderError> {
        self.framer.finish();
        while let Some(frame) = self.framer.next_frame()? {
            match self.decoding.decode(frame) {
                Err(error) if error.kind == ErrorKind::Decoding && !is_json(frame.data) => {
                    self.decoding.decoded.clear();
                    let message = "the answer ended in the middle of an event";
                    return Err(ProviderError::new(ErrorKind::Truncated, message).with_source(error));
                }
                decoded => self.settle(decoded)?,
            }
        }
        Ok(())
    }

    /// Decodes a whole JSON value: an error, or an answer that was not streamed.
    fn end_whole(&mut self, text: &[u8]) -> Result<(), ProviderError> {
        #[derive(Deserialize)]
        struct Probe {
            error: Option<Value>,
        }

        let bad = |error: serde_json::Error| {
            let (kind, message) = if error.is_eof() {
                (ErrorKind::Truncated, "the answer ended in the middle of a JSON value")
            } else {
                (ErrorKind::Decoding, "the answer is neither an event stream nor JSON")
            };
            ProviderError::new(kind, message).with_source(error)
        };
        let text = std::str::from_utf8(text).map_err(|error| {
            ProviderError::new(ErrorKind::Decoding, "the answer is not valid UTF-8").with_source(error)
        })?;
        serde_json::from_str::<IgnoredAny>(text).map_err(bad)?;
        // A list would be read as a struct without names; what it holds, the format knows.
        let is_object = text.trim_ascii_start().starts_with('{');
        if let (true, Ok(Probe { error: Some(error) })) = (is_object, serde_json::from_str(text))
            && is_error(&error)
        {
            return Err(self.dialect.error(200, &self.error_context.scrub(text)));
        }
        let decoded = self.decoding.decode(Frame { event: "", data: text });
        self.settle(decoded)?;
        match self.end_decoding() {
            // Nothing is missing: it is something else.
            Err(error) if error.kind == ErrorKind::Truncated && !self.content => {
                let text = self.error_context.scrub(text);
                let said = self.dialect.error(200, &text).message;
                let message = format!("the answer is none in this format, but says: {said}");
                Err(ProviderError::new(ErrorKind::Decoding, message).with_body(&text))
            }
            ended => ended,
        }
    }

    /// What a failure of the connection means: after content, that the answer is cut off; before it, that
    /// there was none.
    fn broken(&self, error: reqwest::Error) -> ProviderError {
        let (kind, what) = if self.content {
            (ErrorKind::Truncated, "the connection broke in the middle of the answer")
        } else {
            (ErrorKind::Transport, "the connection broke before the answer began")
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
                // An event that is still incomplete is dropped: the answer is complete without it.
                self.body = None;
                self.reading = Reading::Over;
                Poll::Ready(self.end_decoding())
            }
            Poll::Pending => {
                ready!(self.silence.poll(cx));
                let message = format!(
                    "the service sent nothing more for {:?}, the between-chunks timeout",
                    self.silence.limit
                );
                Poll::Ready(Err(ProviderError::new(ErrorKind::Timeout, message)))
            }
        }
    }

    fn fail(&mut self, error: ProviderError) {
        // A half that waits is a part of the text that came.
        self.decoding.halves.finish(&mut self.decoding.decoded);
        _ = self.settle(Ok(()));
        self.body = None;
        self.reading = Reading::Over;
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
            if matches!(this.reading, Reading::Over) {
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

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A timeout that runs while somebody waits, and costs nothing while bytes are there.
struct Silence {
    limit: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether `sleep` belongs to the silence that lasts now.
    armed: bool,
}

impl Silence {
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
            // Beyond what the clock can tell there is no limit.
            match Instant::now().checked_add(self.limit) {
                Some(deadline) => sleep.as_mut().reset(deadline),
                None => return Poll::Pending,
            }
        }
        sleep.as_mut().poll(cx)
    }
}

//! Determines from the first bytes of a body how to read it.

use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::provider::{dialect::Framing, http::framing::BOM};

/// Collects the first bytes of a body until they show how to read the body.
pub(super) struct AnswerStart {
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
pub(super) enum Shape {
    Frames,
    /// One JSON value, which may span several lines.
    Whole,
}

impl AnswerStart {
    /// Creates the state before the first byte. `line_limit` is the maximum number of bytes of a line.
    pub(super) fn new(framing: Framing, line_limit: usize) -> Self {
        Self { framing, limit: line_limit, mark: Some(0), line: Vec::new() }
    }

    /// Takes the next bytes. Returns the shape of the body if the bytes show it, and the bytes that can be read now,
    /// without a byte order mark.
    pub(super) fn take(&mut self, chunk: Bytes) -> (Option<Shape>, Bytes) {
        let Some(chunk) = self.without_mark(chunk) else {
            return (None, Bytes::new());
        };
        let text = chunk.trim_ascii_start();
        if self.line.is_empty() && text.is_empty() {
            return (None, chunk);
        }
        match self.framing {
            // No field of a server-sent event begins with a brace or a bracket, so such a body is one JSON value.
            Framing::Sse if text.starts_with(b"{") || text.starts_with(b"[") => (Some(Shape::Whole), chunk),
            Framing::Sse => (Some(Shape::Frames), chunk),
            Framing::NdJson => self.take_line(chunk),
        }
    }

    /// Ends the body, and returns the bytes that are still held.
    pub(super) fn end(&mut self) -> Bytes {
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
    fn take_line(&mut self, chunk: Bytes) -> (Option<Shape>, Bytes) {
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
        (Some(if is_whole { Shape::Whole } else { Shape::Frames }), bytes)
    }
}

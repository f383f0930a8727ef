//! Reads the lines of a program's output, with a limited length.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::BytesMut;
use tokio::io::{self, AsyncRead, AsyncReadExt};

const CHUNK: usize = 16 * 1024;

/// The maximum length of a line of the standard error that is kept completely.
const LONGEST_WORDS: usize = 8 * 1024;

/// How many lines of the standard error an error can quote.
const KEPT: usize = 8;

/// A line without its end, or the beginning of a line that is too long.
pub(super) enum Line {
    Whole(BytesMut),
    TooLong(BytesMut),
}

/// Splits the output of a reader into lines.
pub(super) struct Lines<R> {
    reader: R,
    buffer: BytesMut,
    /// The length of the part that was already searched for a line end.
    searched: usize,
    longest: usize,
    /// Whether the rest of a line that is too long is being skipped.
    skipping: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R, longest: usize) -> Self {
        Self { reader, buffer: BytesMut::new(), searched: 0, longest, skipping: false }
    }

    /// Returns the next line, or `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                if !std::mem::take(&mut self.skipping) {
                    return Ok(Some(whole(line)));
                }
                continue;
            }
            self.searched = self.buffer.len();
            if self.skipping {
                self.buffer.clear();
                self.searched = 0;
            } else if self.buffer.len() > self.longest {
                self.skipping = true;
                self.searched = 0;
                return Ok(Some(Line::TooLong(self.buffer.split())));
            }
            self.buffer.reserve(CHUNK);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                let rest = self.buffer.split();
                self.searched = 0;
                return Ok((!rest.is_empty() && !self.skipping).then(|| Line::Whole(rest)));
            }
        }
    }
}

fn whole(mut line: BytesMut) -> Line {
    line.truncate(line.len() - 1);
    if line.last() == Some(&b'\r') {
        line.truncate(line.len() - 1);
    }
    Line::Whole(line)
}

/// The last lines of a program's standard error.
#[derive(Clone, Default)]
pub(super) struct LastWords(Arc<Mutex<VecDeque<String>>>);

impl LastWords {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the standard error to its end, and logs it.
    pub(super) async fn follow(&self, stderr: impl AsyncRead + Unpin, name: &str) {
        let mut lines = Lines::new(stderr, LONGEST_WORDS);
        while let Ok(Some(line)) = lines.next().await {
            let (Line::Whole(bytes) | Line::TooLong(bytes)) = line;
            let text = shown(&bytes, LONGEST_WORDS);
            tracing::info!(backend = name, "{text}");
            if text.trim().is_empty() {
                continue;
            }
            let mut kept = self.lock();
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(shown(&bytes, 400));
        }
    }

    /// Returns the lines as the end of an error's text.
    pub(super) fn quoted(&self) -> String {
        let kept = self.lock();
        if kept.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
        format!("; its standard error ended with: {}", lines.join(" | "))
    }
}

/// Returns the bytes as text without control characters, cut to `longest` bytes.
pub(super) fn shown(bytes: &[u8], longest: usize) -> String {
    let cut = &bytes[..bytes.len().min(longest)];
    let text: String = String::from_utf8_lossy(cut)
        .chars()
        .map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c })
        .collect();
    if cut.len() < bytes.len() { format!("{text}…") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], longest: usize) -> Vec<(bool, String)> {
        let mut lines = Lines::new(input, longest);
        let mut out = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            out.push(match line {
                Line::Whole(bytes) => (true, shown(&bytes, 99)),
                Line::TooLong(bytes) => (false, shown(&bytes, 3)),
            });
        }
        out
    }

    #[tokio::test]
    async fn lines_are_split_and_long_lines_are_reported() {
        let whole = |text: &str| (true, text.to_owned());
        assert_eq!(lines(b"a\r\n\nb\nrest", 9).await, [whole("a"), whole(""), whole("b"), whole("rest")]);
        assert_eq!(lines(b"", 9).await, []);
        let long = [b"x".repeat(40_000).as_slice(), b"\nnext\n"].concat();
        assert_eq!(lines(&long, 100).await, [(false, "xxx…".to_owned()), whole("next")]);
        assert_eq!(lines(&long[..40_000], 100).await, [(false, "xxx…".to_owned())]);
    }

    #[test]
    fn shown_text_has_no_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\tc\xff", 99), "a\u{fffd}[2Jb\tc\u{fffd}");
        assert_eq!(shown(b"abcdef", 3), "abc…");
    }
}

//! Reads the lines of a program's output, with a limited length.
//!
//! A line that is not UTF-8 is skipped and quoted like other noise. `LinesCodec` would fail at it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::io::AsyncRead;
use tokio_util::codec::{AnyDelimiterCodec, AnyDelimiterCodecError, FramedRead};

use crate::sync::lock;

/// The maximum length in bytes of a line that is read from the standard error. Longer lines are cut.
const LONGEST_WORDS: usize = 8 * 1024;

/// The maximum number of lines of the standard error that an error quotes.
const KEPT: usize = 8;

/// Splits the output of a reader into lines, which need not be UTF-8. A line of more than `longest` bytes is returned
/// as an error.
pub(crate) fn lines<R: AsyncRead>(reader: R, longest: usize) -> FramedRead<R, AnyDelimiterCodec> {
    FramedRead::new(reader, AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), longest))
}

/// The last lines of a program's standard error.
#[derive(Default)]
pub(crate) struct StderrTail(Mutex<VecDeque<String>>);

impl StderrTail {
    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        lock(&self.0)
    }

    /// Reads the standard error to its end, and logs it.
    #[cfg(any(feature = "acp", test))]
    pub(crate) async fn follow(&self, stderr: impl AsyncRead + Unpin, name: &str) {
        self.follow_cleaned(stderr, name, |text| text).await;
    }

    /// Reads the standard error to its end, and logs it after `clean` has removed secrets.
    pub(crate) async fn follow_cleaned(
        &self,
        stderr: impl AsyncRead + Unpin,
        name: &str,
        clean: impl Fn(String) -> String,
    ) {
        let mut lines = lines(stderr, LONGEST_WORDS);
        loop {
            let line = match lines.next().await {
                Some(Ok(line)) => line,
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    let beginning = Bytes::copy_from_slice(lines.read_buffer());
                    // After an error, the stream returns `None` once, which is discarded here. Then the stream skips
                    // the rest of the line.
                    lines.next().await;
                    beginning
                }
                Some(Err(AnyDelimiterCodecError::Io(_))) | None => return,
            };
            let text = clean(shown(&line, LONGEST_WORDS));
            tracing::info!(program = name, "{text}");
            if text.trim().is_empty() {
                continue;
            }
            let mut kept = self.lock();
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(shown(text.as_bytes(), 400));
        }
    }

    /// Returns the last lines as text that is appended to an error's text.
    pub(crate) fn quoted(&self) -> String {
        let kept = self.lock();
        if kept.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
        format!("; its standard error ended with: {}", lines.join(" | "))
    }
}

/// Returns a line, whose line feed is already removed, as text. Removes a carriage return at the end, cuts the line to
/// `longest` bytes, and replaces control characters other than tabs.
pub(crate) fn shown(line: &[u8], longest: usize) -> String {
    let bytes = line.strip_suffix(b"\r").unwrap_or(line);
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

    async fn quoted(stderr: &[u8]) -> String {
        let words = StderrTail::default();
        words.follow(stderr, "test").await;
        words.quoted()
    }

    #[tokio::test]
    async fn lines_are_split_and_long_lines_are_cut() {
        let ended = |lines: &str| format!("; its standard error ended with: {lines}");
        assert_eq!(quoted(b"a\r\n\nb\xff\nrest").await, ended("a | b\u{fffd} | rest"));
        assert_eq!(quoted(b"").await, "");
        let long = [b"x".repeat(40_000).as_slice(), b"\nnext\n"].concat();
        let cut = "x".repeat(400) + "…";
        assert_eq!(quoted(&long).await, ended(&format!("{cut} | next")));
        assert_eq!(quoted(&long[..40_000]).await, ended(&cut));
        // The line of the first case is one byte longer than the limit, and its end is in the same chunk. The line of
        // the second case has exactly the maximum length.
        assert_eq!(quoted(&long[40_000 - LONGEST_WORDS - 1..]).await, ended(&format!("{cut} | next")));
        assert_eq!(quoted(&long[40_000 - LONGEST_WORDS..]).await, ended(&format!("{cut} | next")));
    }

    #[test]
    fn shown_text_has_no_control_characters() {
        assert_eq!(shown(b"a\x1b[2Jb\tc\xff", 99), "a\u{fffd}[2Jb\tc\u{fffd}");
        assert_eq!(shown(b"abcdef", 3), "abc…");
    }
}

//! The standard streams of the process: a line editor if both are a terminal, or plain lines.
//!
//! The editor reads while the chat waits for a person. While an answer streams, the terminal reads the lines itself, so
//! that the answer can be written as it arrives, and the editor never draws over it.

use std::{
    io::{self, BufRead, PipeReader, PipeWriter, Read, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use futures_util::stream::{self, BoxStream};
use rustyline::{Config, DefaultEditor, error::ReadlineError, history::History as _};
use tokio::sync::mpsc as channel;

use super::Entry;
use crate::sync::lock;

/// The entries of a person or a pipe.
pub(super) type Entries = BoxStream<'static, Entry>;

/// Returns the lines of the standard input.
pub(super) fn lines() -> Entries {
    entries_of(|| {
        let mut line = Vec::new();
        let count = io::stdin().lock().read_until(b'\n', &mut line).ok()?;
        // A line that is not UTF-8 is still a line. It must not end the input.
        (count > 0)
            .then(|| Entry::Line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned()))
    })
}

/// Returns the entries that a thread reads. A read can't be cancelled, so a read on the runtime would keep the runtime from
/// ending. The thread begins to read when the stream is read.
fn entries_of(mut read: impl FnMut() -> Option<Entry> + Send + 'static) -> Entries {
    let (wanted, wants) = mpsc::channel();
    let (sender, entries) = channel::channel(1);
    thread::spawn(move || {
        while let Ok(()) = wants.recv()
            && let Some(entry) = read()
            && sender.blocking_send(entry).is_ok()
        {}
    });
    Box::pin(stream::unfold((wanted, entries), |(wanted, mut entries)| async {
        // After the end of the input, the thread has ended too.
        let _ = wanted.send(());
        let entry = entries.recv().await?;
        Some((entry, (wanted, entries)))
    }))
}

/// Returns a stream of the presses of Ctrl-C that reach the process as a signal. From the first read on, they do not end
/// the process.
pub(super) fn interrupts() -> Entries {
    let next = |()| async { tokio::signal::ctrl_c().await.ok().map(|()| (Entry::Interrupt, ())) };
    Box::pin(stream::unfold((), next))
}

/// The state that the editor shares with the printer.
pub(super) struct LineEditorShared {
    /// The prompt for the next line. `None` while the chat does not wait for one.
    prompt: Mutex<Option<String>>,
    is_reading: AtomicBool,
    is_over: AtomicBool,
    wake: Mutex<PipeWriter>,
    /// The mode of the terminal before the editor has changed it.
    #[cfg(unix)]
    mode: Option<rustix::termios::Termios>,
}

impl LineEditorShared {
    /// Sets the prompt. Returns whether the editor shows an older one.
    pub(super) fn set_prompt(&self, prompt: Option<String>) -> bool {
        let (is_reading, is_wanted) = (self.is_reading(), prompt.is_some());
        let is_new = std::mem::replace(&mut *lock(&self.prompt), prompt).is_none() && is_wanted;
        // A line that is read now is followed by a look at the prompt, so no wake has to wait in the pipe for it.
        if is_new && !self.is_reading() {
            self.wake();
        }
        is_reading && !is_new
    }

    /// Returns whether the line on the screen is that of the editor.
    pub(super) fn is_reading(&self) -> bool {
        self.is_reading.load(Ordering::Relaxed)
    }

    /// Ends the editor. If it still waits for a line, restores the mode of the terminal.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.wake();
        #[cfg(unix)]
        if let Some(mode) = self.mode.as_ref().filter(|_| self.is_reading()) {
            // A terminal that is gone has no mode.
            let _ = rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Drain, mode);
        }
    }

    fn wake(&self) {
        // Without a reader, the thread of the editor has ended.
        let _ = lock(&self.wake).write(&[0]);
    }

    /// Reads the next entry. Returns `None` at the end of the input.
    fn read(&self, editor: &mut DefaultEditor, wakes: &mut PipeReader) -> Option<Entry> {
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            let prompt = lock(&self.prompt).clone();
            let Some(prompt) = prompt else {
                match typed(wakes) {
                    TerminalWaitOutcome::Line(line) => return Some(Entry::Line(line)),
                    TerminalWaitOutcome::End => return None,
                    TerminalWaitOutcome::Nothing => continue,
                }
            };
            self.is_reading.store(true, Ordering::Relaxed);
            let line = editor.readline(&prompt);
            self.is_reading.store(false, Ordering::Relaxed);
            return match line {
                Ok(line) => Some(Entry::Line(line)),
                Err(ReadlineError::Interrupted) => Some(Entry::Interrupt),
                Err(_) => None,
            };
        }
    }
}

/// An input that the terminal has read without the editor.
#[cfg_attr(not(unix), expect(dead_code, reason = "only Unix can wait for a line and a wake"))]
enum TerminalWaitOutcome {
    Line(String),
    End,
    /// Something else has changed.
    Nothing,
}

/// Waits until the terminal has read a line, or until something else has changed.
fn typed(wakes: &mut PipeReader) -> TerminalWaitOutcome {
    #[cfg(unix)]
    {
        use rustix::event::{PollFd, PollFlags, poll};
        let stdin = io::stdin();
        let mut ready = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(wakes, PollFlags::IN)];
        let has_line = poll(&mut ready, None).is_ok() && !ready[0].revents().is_empty();
        if has_line {
            // The terminal returns one line at a time, of at most this length.
            let mut bytes = [0; 4096];
            let count = rustix::io::read(&stdin, &mut bytes).unwrap_or(0);
            let line = String::from_utf8_lossy(&bytes[..count]).trim_end().to_owned();
            return if count > 0 { TerminalWaitOutcome::Line(line) } else { TerminalWaitOutcome::End };
        }
        if ready[1].revents().is_empty() {
            return TerminalWaitOutcome::Nothing;
        }
    }
    // On other systems, the editor reads the lines that were typed in the meantime.
    let _ = wakes.read(&mut [0; 64]);
    TerminalWaitOutcome::Nothing
}

/// Starts a line editor on the terminal, with these lines as its history.
pub(super) fn edited(history: Vec<String>) -> Option<(Entries, Arc<LineEditorShared>)> {
    let mut lines = DefaultEditor::with_config(Config::builder().auto_add_history(true).build()).ok()?;
    for line in history {
        // Without the line, the editor works nevertheless.
        let _ = lines.history_mut().add(&line);
    }
    let (mut wakes, wake) = io::pipe().ok()?;
    let editor = Arc::new(LineEditorShared {
        prompt: Mutex::new(None),
        is_reading: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        wake: Mutex::new(wake),
        #[cfg(unix)]
        mode: rustix::termios::tcgetattr(io::stdin()).ok(),
    });
    let shared = Arc::clone(&editor);
    Some((entries_of(move || shared.read(&mut lines, &mut wakes)), editor))
}

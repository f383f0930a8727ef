//! The standard streams of the process: a line editor if both are a terminal, or plain lines.

use std::{
    io::{self, BufRead, IsTerminal},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use futures_core::Stream;
use futures_util::stream;
use rustyline::{Config, DefaultEditor, ExternalPrinter as _, error::ReadlineError, history::History as _};
use tokio::sync::{mpsc as channel, oneshot};

use super::{
    Entry,
    printer::{EditedScreen, Screen},
};

/// The entries of a person or a pipe.
pub(super) type Entries = Pin<Box<dyn Stream<Item = Entry> + Send>>;

/// Returns the lines of the standard input.
pub(super) fn lines() -> Entries {
    let (sender, lines) = channel::channel(1);
    // A read can't be cancelled, so a read on the runtime would keep the runtime from ending.
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(Entry::Line(line)).is_err() {
                return;
            }
        }
    });
    entries_of(lines)
}

fn entries_of(entries: channel::Receiver<Entry>) -> Entries {
    Box::pin(stream::unfold(entries, |mut entries| async { Some((entries.recv().await?, entries)) }))
}

/// Returns a stream of the presses of Ctrl-C that reach the process as a signal. From the first read on, they do not end
/// the process.
pub(super) fn interrupts() -> Entries {
    let next = |()| async { tokio::signal::ctrl_c().await.ok().map(|()| (Entry::Interrupt, ())) };
    Box::pin(stream::unfold((), next))
}

/// Starts a line editor on the terminal, with these lines as its history. It reads a line when the stream is read, and
/// shows the prompt until then. Returns `None` if a standard stream is not a terminal, or if the terminal can't edit.
pub(super) fn edited(history: impl Iterator<Item = String>) -> Option<(Entries, Screen, Mode)> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return None;
    }
    let mode = Mode::of_terminal();
    let mut editor = DefaultEditor::with_config(Config::builder().auto_add_history(true).build()).ok()?;
    let mut printer = editor.create_external_printer().ok()?;
    for line in history {
        // Without the line, the editor works nevertheless.
        let _ = editor.history_mut().add(&line);
    }
    let columns =
        |editor: &mut DefaultEditor| editor.dimensions().map_or(80, |(columns, _)| usize::from(columns));
    let width = Arc::new(AtomicUsize::new(columns(&mut editor)));
    let shared = Arc::clone(&width);
    let (read, reads) = mpsc::channel();
    let (sender, entries) = channel::channel(1);
    thread::spawn(move || {
        while let Ok(()) = reads.recv() {
            shared.store(columns(&mut editor), Ordering::Relaxed);
            let entry = match editor.readline("> ") {
                Ok(line) => Entry::Line(line),
                Err(ReadlineError::Interrupted) => Entry::Interrupt,
                Err(_) => return,
            };
            if sender.blocking_send(entry).is_err() {
                return;
            }
        }
    });
    let (lines, texts) = mpsc::channel();
    let (ends, ended) = oneshot::channel();
    thread::spawn(move || {
        for text in texts {
            if printer.print(text).is_err() {
                break;
            }
        }
        // The chat may not wait for the end.
        let _ = ends.send(());
    });
    let entries = stream::unfold((read, entries), |(read, mut entries)| async {
        // After the end of the input, the thread has ended too.
        let _ = read.send(());
        let entry = entries.recv().await?;
        Some((entry, (read, entries)))
    });
    let screen = EditedScreen { lines, ended, width, partial: String::new() };
    Some((Box::pin(entries), Screen::Edited(screen), mode))
}

/// The mode of the terminal before the editor has changed it. Dropping it restores the mode, because the editor still
/// waits for a line if the chat ends for another reason.
pub(super) struct Mode(#[cfg(unix)] Option<rustix::termios::Termios>);

impl Mode {
    #[cfg(unix)]
    fn of_terminal() -> Self {
        Self(rustix::termios::tcgetattr(io::stdin()).ok())
    }

    #[cfg(not(unix))]
    fn of_terminal() -> Self {
        Self()
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(mode) = &self.0 {
            use rustix::termios::{OptionalActions, tcsetattr};
            // A terminal that is gone has no mode.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, mode);
        }
    }
}

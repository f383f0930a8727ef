//! The standard streams of the process: a line editor if both are a terminal, or plain lines.

use std::{
    borrow::Cow,
    env,
    io::{self, BufRead, IsTerminal, Write},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_core::Stream;
use futures_util::stream;
use reedline::{
    ExternalPrinter, FileBackedHistory, History, HistoryItem, Prompt, PromptEditMode, PromptHistorySearch,
    Reedline, Signal,
};
use tokio::sync::{mpsc as channel, oneshot};

use super::{
    Entry,
    printer::{EditedScreen, Screen},
};

/// The number of texts that can wait for the editor. A chat shows fewer between two lines, so it never waits for an editor
/// that does not read.
const TEXTS: usize = 4096;

/// The time after which the editor shows a text at the latest.
const POLL: Duration = Duration::from_millis(30);

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
pub(super) fn edited(history: impl Iterator<Item = String>, is_styled: bool) -> Option<(Entries, Screen)> {
    let is_dumb = env::var_os("TERM").is_some_and(|name| name == "dumb");
    if is_dumb || !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return None;
    }
    let mut past = FileBackedHistory::new(1000).ok()?;
    for line in history {
        past.save(HistoryItem::from_command_line(line)).ok()?;
    }
    let (printer, stop) = (ExternalPrinter::new(TEXTS), Arc::new(AtomicBool::new(false)));
    let mut editor = Reedline::create()
        .with_history(Box::new(past))
        .with_ansi_colors(is_styled)
        .with_external_printer(printer.clone())
        .with_poll_interval(POLL)
        .with_break_signal(Arc::clone(&stop))
        .use_bracketed_paste(true);
    let (read, reads) = mpsc::channel();
    let (sender, entries) = channel::channel(1);
    let (ends, ended) = oneshot::channel();
    let (texts, is_over) = (printer.sender(), Arc::clone(&stop));
    thread::spawn(move || {
        let mut is_broken = false;
        while let Ok(()) = reads.recv() {
            let entry = match editor.read_line(&Arrow) {
                Ok(Signal::Success(line)) => Entry::Line(line),
                Ok(Signal::CtrlC) => Entry::Interrupt,
                // The editor has consumed the signal.
                Ok(Signal::ExternalBreak(_)) => {
                    is_broken = true;
                    break;
                }
                _ => break,
            };
            if sender.blocking_send(entry).is_err() {
                break;
            }
        }
        drop(sender);
        // The chat continues until the end of its run.
        let (texts, mut out) = (printer.receiver(), io::stdout());
        while !texts.is_empty() || !(is_broken || is_over.load(Ordering::Relaxed)) {
            if let Ok(text) = texts.recv_timeout(POLL) {
                // A terminal that is gone shows nothing.
                let _ = writeln!(out, "{text}");
            }
        }
        let _ = ends.send(());
    });
    let entries = stream::unfold((read, entries), |(read, mut entries)| async {
        // After the end of the input, the thread reads no more.
        let _ = read.send(());
        let entry = entries.recv().await?;
        Some((entry, (read, entries)))
    });
    // After the end of the thread, nobody can read the text.
    let show = Box::new(move |text| drop(texts.send(text)));
    Some((Box::pin(entries), Screen::Edited(EditedScreen { show, stop, ended, partial: String::new() })))
}

/// The prompt of the editor.
struct Arrow;

impl Prompt for Arrow {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        "> ".into()
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        "  ".into()
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        format!("(search: {}) ", search.term).into()
    }
}

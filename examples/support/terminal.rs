//! Reads lines and Ctrl-C, and shows events and errors.

use std::{
    env,
    error::Error,
    io::{self, BufRead, IsTerminal, Write},
    thread,
    time::Duration,
};

use omni_agent::{
    agent::Event,
    error_chain,
    message::{Message, ResultBlock, Timestamp, ToolResult, ToolUseId, Usage},
    provider::{ProviderError, ProviderErrorKind},
    run::{Failure, Response},
    tool::Decision,
};
use tokio::sync::mpsc;

/// The lines of the standard input.
pub struct Lines {
    lines: mpsc::Receiver<String>,
    /// Whether a person types the lines.
    pub interactive: bool,
}

impl Lines {
    /// Starts to read lines on a separate thread. A read can't be cancelled, so a read on the runtime would keep the
    /// runtime from ending.
    pub fn new() -> Self {
        let (sender, lines) = mpsc::channel(1);
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines, interactive: io::stdin().is_terminal() }
    }

    /// Returns the next line, or `None` at the end of the input.
    pub async fn next(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}

/// A stream of Ctrl-C presses.
pub struct Interrupts(mpsc::Receiver<()>);

impl Interrupts {
    /// Starts to listen for Ctrl-C. From now on, Ctrl-C no longer ends the process.
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).await.is_ok() {}
        });
        Self(receiver)
    }

    /// Waits for the next press of Ctrl-C.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            // Listening for Ctrl-C has failed, so no press can arrive. Wait forever.
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the prompts: the words of the command line, the lines of a piped standard input, or `default`.
pub fn prompts(words: &[String], default: &[&str]) -> Vec<String> {
    let mut prompts = Vec::new();
    if !words.is_empty() {
        prompts.push(words.join(" "));
    } else if !io::stdin().is_terminal() {
        let lines = io::stdin().lock().lines().map_while(Result::ok);
        prompts.extend(lines.filter(|line| !line.trim().is_empty()));
    }
    if prompts.is_empty() {
        prompts.extend(default.iter().map(|&prompt| prompt.to_owned()));
    }
    prompts
}

/// Returns the text in grey if the output is a terminal and `NO_COLOR` is not set.
pub fn dim(text: &str) -> String {
    if io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none() {
        format!("\x1b[2m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// A printer that shows events as they arrive.
#[derive(Default)]
pub struct Printer {
    /// Whether the current line on the screen has text.
    in_line: bool,
    /// The tool uses that were rejected, so that their results are not shown as failures of a tool.
    rejected: Vec<ToolUseId>,
}

impl Printer {
    /// Shows one event. Skips events that are not useful to the user. Also skips errors, because the caller shows them.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. } => self.write(&harmless(delta)),
            Event::ThinkingDelta { delta, .. } => self.write(&dim(&harmless(delta))),
            Event::TextEnd { .. } | Event::ThinkingEnd { .. } => self.end_line(),
            // The input is shown as JSON, which also escapes control characters.
            Event::ToolUseEnd { content, .. } => self.note(&format!("→ {} {}", content.name, content.input)),
            Event::ToolProgress { data, .. } => self.note(&format!("  … {data}")),
            Event::Decided(decided) if matches!(decided.decision, Decision::Reject(_)) => {
                self.rejected.push(decided.tool_use_id.clone());
            }
            Event::ToolResult { result, .. } => {
                let rejected = self.rejected.iter().position(|id| *id == result.tool_use_id);
                let is_rejected = rejected.map(|index| self.rejected.swap_remove(index)).is_some();
                self.note(&result_line(result, is_rejected));
            }
            Event::Retry { failure, delay, model, .. } => {
                let wait = delay.as_secs_f32();
                let whom = model.as_ref().map_or(String::new(), |model| format!(" {model},"));
                self.note(&format!(
                    "! {}\n  Asked again:{whom} in {wait:.1} s; an answer that had begun is void.",
                    explain(failure)
                ));
            }
            Event::Turn { response, .. } => {
                for warning in &response.warnings {
                    self.note(&format!("! {warning}"));
                }
                self.note(&usage_line(response));
            }
            Event::CompactionEnd { message: Some(message), .. } => self.note(&compaction_line(message)),
            Event::CompactionEnd { failure: Some(failure), .. } => {
                self.note(&format!("! The conversation was not compacted: {}", explain(failure)));
            }
            Event::Cancelled { response, .. } => {
                self.note(&format!("[cancelled; {} messages discarded]", response.messages.len()));
            }
            _ => {}
        }
    }

    /// Shows a text on a separate line.
    pub fn line(&mut self, text: &str) {
        self.end_line();
        put(&format!("{text}\n"));
    }

    /// Shows a text on a separate line, like [`line`](Self::line), but in grey.
    pub fn note(&mut self, text: &str) {
        self.line(&dim(text));
    }

    /// Shows the prompt.
    pub fn prompt(&mut self, text: &str) {
        self.end_line();
        self.write(text);
        self.in_line = false;
    }

    fn write(&mut self, text: &str) {
        put(text);
        self.in_line = !text.ends_with('\n');
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.in_line) {
            put("\n");
        }
    }
}

/// Writes a text and flushes the output. Errors of a closed terminal are ignored, so that the conversation is still
/// saved.
fn put(text: &str) {
    let mut out = io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Returns the text with its control characters replaced, because they could take control of the terminal.
fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}

fn result_line(result: &ToolResult, is_rejected: bool) -> String {
    let texts = result.output().iter().filter_map(|block| match block {
        ResultBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    let text = harmless(&texts.collect::<String>());
    let short: String = text.chars().take(400).collect();
    let more = if short.len() < text.len() { " …" } else { "" };
    let failed = match result.is_error {
        _ if is_rejected => " not run",
        true => " failed",
        false => "",
    };
    format!("← {}{failed}: {}{more}", result.name, short.trim_end().replace('\n', "\n    "))
}

/// Returns a line on the tokens and the cost of a whole conversation. `None` if nothing was used.
pub fn total_line(used: &Usage) -> Option<String> {
    let cost = used.cost.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    let (prompt, output) = (used.prompt(), used.output);
    (used.total() > 0).then(|| format!("[this conversation: {prompt} tokens in, {output} out{cost}]"))
}

/// Returns a line on a compaction: the sizes before and after it, its cost, and the first words of the summary.
pub fn compaction_line(message: &Message) -> String {
    let Some(compaction) = message.compaction.as_deref() else { return String::new() };
    let sizes = match compaction.tokens {
        Some((before, after)) => format!("{before} to {after} tokens"),
        None => "size unknown".to_owned(),
    };
    let cost = compaction.nano_usd.map(|nano| Duration::from_nanos(nano).as_secs_f64());
    let cost = cost.map(|dollars| format!(", ${dollars:.4}")).unwrap_or_default();
    match (compaction.is_summary, compaction.cleared) {
        (true, _) => format!("╰─ folded: {sizes}{cost}: {}", first_words(&message.text(), 60)),
        (false, 0) => "╰─ all messages are sent again".to_owned(),
        (false, _) => format!("╰─ old results and files are left out: {sizes}"),
    }
}

fn usage_line(response: &Response) -> String {
    let (usage, model, stop) = (response.usage, &response.model, &response.stop_reason);
    let cached = if usage.cache_read > 0 { format!(" ({} cached)", usage.cache_read) } else { String::new() };
    let cost = usage.cost.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    match usage.total() {
        // Most services report the usage at the end of a response. If a response was interrupted, this report is
        // missing.
        0 => format!("[{model}: {stop}]"),
        _ => format!("[{model}: {} tokens in{cached}, {} out{cost}; {stop}]", usage.prompt(), usage.output),
    }
}

/// Returns an error with its causes and advice.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    let mut text = error_chain(error);
    if let Some(advice) = kind_of(error).and_then(advice) {
        text.push_str("\n  ");
        text.push_str(advice);
    }
    text
}

fn kind_of(error: &(dyn Error + 'static)) -> Option<ProviderErrorKind> {
    let provider = error.downcast_ref::<ProviderError>();
    let provider = provider.or_else(|| error.downcast_ref::<omni_agent::Error>()?.provider_error());
    let provider = provider.or(match error.downcast_ref::<Failure>() {
        Some(Failure::Provider { error }) => Some(error),
        _ => None,
    });
    Some(provider?.kind)
}

fn advice(kind: ProviderErrorKind) -> Option<&'static str> {
    Some(match kind {
        ProviderErrorKind::Auth => "Check the key in the environment, or choose another model with --model.",
        ProviderErrorKind::RateLimit | ProviderErrorKind::Overloaded | ProviderErrorKind::Service => {
            "Wait a little, then send it again."
        }
        ProviderErrorKind::Quota => "Top up the account, or choose another model with --model.",
        ProviderErrorKind::ContextTooLong => "The conversation is too long for this model; start a new one.",
        ProviderErrorKind::Unsupported => {
            "Remove the unsupported part, or choose another model with --model."
        }
        ProviderErrorKind::Timeout | ProviderErrorKind::Transport | ProviderErrorKind::Truncated => {
            "Check that the service and the network are available, then send it again."
        }
        _ => return None,
    })
}

/// Returns the approximate time since `time`, in words such as "3 hours ago".
pub fn ago(time: Timestamp) -> String {
    let seconds = Timestamp::now().0.saturating_sub(time.0) / 1000;
    let (count, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

/// Returns the beginning of a text, on one line.
pub fn first_words(text: &str, limit: usize) -> String {
    let line = harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let short: String = line.chars().take(limit).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}

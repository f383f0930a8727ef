//! Shows texts and the events of an agent.

use std::{io::Write, sync::Arc, time::Duration};

use super::{Style, editor::LineEditorShared, markdown::Markdown};
use crate::{
    agent::Event,
    error_chain,
    message::{DecisionKind, Message, ToolResult, Usage},
    run::Response,
    text::clip,
};

/// A printer that shows events as they arrive. It replaces the control characters of all texts.
pub(super) struct EventPrinter {
    /// `None` after an error.
    out: Option<Box<dyn Write + Send>>,
    editor: Option<Arc<LineEditorShared>>,
    style: Style,
    /// Whether the current line has text.
    in_line: bool,
    markdown: Markdown,
    /// The prompt that waits for a line.
    asked: Option<String>,
}

impl EventPrinter {
    pub(super) fn new(
        out: Box<dyn Write + Send>,
        editor: Option<Arc<LineEditorShared>>,
        style: Style,
    ) -> Self {
        Self { out: Some(out), editor, style, in_line: false, markdown: Markdown::default(), asked: None }
    }

    /// Returns whether nobody reads the output any more.
    pub(super) fn is_closed(&self) -> bool {
        self.out.is_none()
    }

    /// Shows one event. Skips events that are not useful to the user, and the end of a run, which the caller shows.
    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. } => self.text(delta),
            Event::ThinkingDelta { delta, .. } => {
                let text = self.dim(&harmless(delta));
                self.write(&text);
            }
            Event::TextEnd { .. } | Event::ThinkingEnd { .. } | Event::Error { .. } => self.end_text(),
            Event::ToolUseEnd { content, .. } => self.note(&format!("→ {} {}", content.name, content.input)),
            Event::ToolProgress { data, .. } => self.note(&format!("  … {}", clip(&data.to_string(), 400))),
            Event::ToolResult { result, .. } => self.note(&result_line(result)),
            Event::Retry { failure, delay, model, .. } => {
                self.end_text();
                let whom = model.as_ref().map_or(String::new(), |model| format!(" {model},"));
                self.note(&format!("! {}", error_chain(failure)));
                let wait = delay.as_secs_f32();
                self.note(&format!("  Asked again:{whom} in {wait:.1} s; an answer that had begun is void."));
            }
            Event::Turn { response, .. } => {
                self.end_text();
                for warning in &response.warnings {
                    self.note(&format!("! {warning}"));
                }
                self.note(&usage_line(response));
            }
            Event::CompactionEnd { message: Some(message), .. } => self.note(&compaction_line(message)),
            Event::CompactionEnd { failure: Some(failure), .. } => {
                self.note(&format!("! The conversation was not compacted: {}", error_chain(failure)));
            }
            Event::Cancelled { response } => {
                self.end_text();
                self.note(&format!("[cancelled; {} messages discarded]", response.messages.len()));
            }
            _ => {}
        }
    }

    /// Shows a piece of a model's text.
    pub(super) fn text(&mut self, text: &str) {
        let text = harmless(text);
        let shown = match self.style {
            Style::Plain => text,
            Style::Ansi => self.markdown.push(&text),
        };
        self.write(&shown);
    }

    /// Ends a text of the model.
    pub(super) fn end_text(&mut self) {
        let rest = self.markdown.finish();
        self.markdown = Markdown::default();
        self.write(&rest);
        self.end_line();
    }

    /// Shows a text on separate lines.
    pub(super) fn line(&mut self, text: &str) {
        self.show_line(&harmless(text));
    }

    /// Shows a text on separate lines, in grey.
    pub(super) fn note(&mut self, text: &str) {
        let text = self.dim(&harmless(text));
        self.show_line(&text);
    }

    fn show_line(&mut self, text: &str) {
        self.end_line();
        self.put(&format!("{text}\n"));
    }

    /// Shows the prompt for the next line, unless it is shown.
    pub(super) fn ask(&mut self, prompt: &str) {
        let prompt = harmless(prompt);
        if self.asked.as_ref() != Some(&prompt) {
            self.end_line();
            // The editor shows its own prompt, unless it has begun with another one.
            if self.editor.as_ref().is_none_or(|editor| editor.set_prompt(Some(prompt.clone()))) {
                self.put(&prompt);
            }
            self.asked = Some(prompt);
        }
    }

    /// Notes that a line was entered at the prompt.
    pub(super) fn entered(&mut self) {
        self.asked = None;
        self.editor.as_ref().map(|editor| editor.set_prompt(None));
    }

    fn dim(&self, text: &str) -> String {
        match self.style {
            Style::Plain => text.to_owned(),
            Style::Ansi => format!("\x1b[2m{text}\x1b[0m"),
        }
    }

    fn write(&mut self, text: &str) {
        if !text.is_empty() {
            if !self.in_line {
                self.end_line();
            }
            self.put(text);
            self.in_line = !text.ends_with('\n');
        }
    }

    /// Ends the line that has text, or the prompt.
    fn end_line(&mut self) {
        let is_edited = self.editor.as_ref().is_some_and(|editor| editor.is_reading());
        let is_prompt = self.asked.take().is_some() && (is_edited || self.editor.is_none());
        if std::mem::take(&mut self.in_line) {
            self.put("\n");
        } else if is_prompt {
            // The editor redraws its line with the next key.
            self.put(if is_edited { "\r\x1b[J" } else { "\n" });
        }
    }

    fn put(&mut self, text: &str) {
        self.out.take_if(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err());
    }
}

impl Drop for EventPrinter {
    fn drop(&mut self) {
        if let Some(editor) = &self.editor {
            editor.end();
        }
    }
}

/// Returns the text without characters that could take control of the terminal or hide a part of the text.
pub(super) fn harmless(text: &str) -> String {
    let is_bad = |letter: char| {
        (letter.is_control() && letter != '\n' && letter != '\t')
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let letters = text.chars().filter(|letter| *letter != '\r');
    letters.map(|letter| if is_bad(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Returns the beginning of a text, on one line.
pub(super) fn first_words(text: &str, limit: usize) -> String {
    clip(&text.split_whitespace().collect::<Vec<_>>().join(" "), limit).into_owned()
}

fn result_line(result: &ToolResult) -> String {
    let decision = result.decision.as_ref().map(|decision| decision.kind);
    let failed = match decision {
        Some(DecisionKind::Reject) => " not run",
        _ if result.is_error => " failed",
        _ => "",
    };
    let text = result.output_text();
    format!("← {}{failed}: {}", result.name, clip(text.trim_end(), 400).replace('\n', "\n    "))
}

/// Returns a line on the tokens and the cost of a whole conversation. `None` if nothing was used.
pub(super) fn total_line(used: &Usage) -> Option<String> {
    (used.total() > 0).then(|| format!("[this conversation: {}]", tokens(used)))
}

fn tokens(used: &Usage) -> String {
    let (prompt, output, cost) = (used.prompt(), used.output, cost(used.cost));
    let cached = if used.cache_read > 0 { format!(" ({} cached)", used.cache_read) } else { String::new() };
    format!("{prompt} tokens in{cached}, {output} out{cost}")
}

fn cost(dollars: Option<f64>) -> String {
    dollars.map(|dollars| format!(", ${dollars:.4}")).unwrap_or_default()
}

/// Returns a line on a compaction: the sizes before and after it, its cost, and the first words of the summary.
fn compaction_line(message: &Message) -> String {
    let Some(compaction) = message.compaction.as_deref() else { return String::new() };
    let sizes = match compaction.tokens {
        Some((before, after)) => format!("{before} to {after} tokens"),
        None => "size unknown".to_owned(),
    };
    let cost = cost(compaction.nano_usd.map(|nano| Duration::from_nanos(nano).as_secs_f64()));
    match (compaction.is_summary, compaction.cleared) {
        (true, _) => format!("[compacted: {sizes}{cost}: {}]", first_words(&message.text(), 60)),
        (false, 0) => "[all messages are sent again]".to_owned(),
        (false, _) => format!("[old results and files are left out: {sizes}]"),
    }
}

fn usage_line(response: &Response) -> String {
    let Response { usage, model, stop_reason, .. } = response;
    // Most services report the usage at the end of a response. If a response was interrupted, this report is missing.
    let used = if usage.total() == 0 { String::new() } else { format!("{}; ", tokens(usage)) };
    format!("[{model}: {used}{stop_reason}]")
}

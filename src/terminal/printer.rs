//! Shows texts and the events of an agent.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use unicode_width::UnicodeWidthChar;

use super::{Style, markdown::Markdown};
use crate::{
    agent::Event,
    error_chain,
    message::{Message, ResultBlock, ToolResult, ToolUseId, Usage},
    run::Response,
    text::clip,
    tool::Decision,
};

/// The place where a chat writes.
pub(super) enum Screen {
    /// A pipe, or a terminal without line editing. Nothing more is written after an error.
    Writer(Option<Box<dyn Write + Send>>),
    /// A terminal on which a person edits a line.
    Edited(EditedScreen),
}

/// The lines above the line that a person edits. The editor writes them.
pub(super) struct EditedScreen {
    pub(super) show: Box<dyn Fn(String) + Send>,
    /// Ends the editor.
    pub(super) stop: Arc<AtomicBool>,
    /// Reports that the editor has ended.
    pub(super) ended: oneshot::Receiver<()>,
    /// The last line, which is not shown before it is complete.
    pub(super) partial: String,
}

/// A printer that shows events as they arrive. It replaces the control characters of all texts.
pub(super) struct Printer {
    screen: Screen,
    style: Style,
    /// Whether the current line has text.
    in_line: bool,
    markdown: Markdown,
    /// The prompt that waits for a line.
    asked: Option<String>,
    /// The tool uses that were rejected, so that their results are not shown as failures of a tool.
    rejected: Vec<ToolUseId>,
}

impl Printer {
    pub(super) fn new(screen: Screen, style: Style) -> Self {
        let (markdown, rejected) = (Markdown::default(), Vec::new());
        Self { screen, style, in_line: false, markdown, asked: None, rejected }
    }

    /// Returns whether nobody reads the output any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.screen, Screen::Writer(None))
    }

    /// Shows one event. Skips events that are not useful to the user, and the end of a run, which the caller shows.
    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. } => self.text(delta),
            Event::ThinkingDelta { delta, .. } => {
                let text = self.dim(&harmless(delta));
                self.write(&text);
            }
            Event::TextEnd { .. } | Event::ThinkingEnd { .. } => self.end_text(),
            Event::ToolUseEnd { content, .. } => self.note(&format!("→ {} {}", content.name, content.input)),
            Event::ToolProgress { data, .. } => self.note(&format!("  … {}", clip(&data.to_string(), 400))),
            Event::Decided(decided) if matches!(decided.decision, Decision::Reject(_)) => {
                self.rejected.push(decided.tool_use_id.clone());
            }
            Event::ToolResult { result, .. } => {
                let rejected = self.rejected.iter().position(|id| *id == result.tool_use_id);
                let is_rejected = rejected.map(|index| self.rejected.swap_remove(index)).is_some();
                self.note(&result_line(result, is_rejected));
            }
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
            Event::Error { .. } => self.end_text(),
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
        let line = format!("{text}\n");
        match &mut self.screen {
            // The text that is streamed stays together.
            Screen::Edited(screen) => screen.show_lines(&line),
            Screen::Writer(_) => {
                self.end_line();
                self.put(&line);
            }
        }
    }

    /// Shows the prompt for the next line. `question` is a question that the line answers.
    pub(super) fn ask(&mut self, question: Option<&str>) {
        let prompt = question.unwrap_or("> ");
        if self.asked.as_deref() == Some(prompt) {
            return;
        }
        if let Screen::Writer(_) = self.screen {
            self.end_line();
            self.put(&harmless(prompt));
        } else if question.is_some() {
            // The editor shows its own prompt.
            self.line(prompt);
        }
        self.asked = Some(prompt.to_owned());
    }

    /// Notes that a line was entered at the prompt, so that the prompt is shown again.
    pub(super) fn entered(&mut self) {
        self.asked = None;
    }

    /// Waits until everything is shown.
    pub(super) async fn close(&mut self) {
        if let Screen::Edited(screen) = &mut self.screen {
            screen.stop.store(true, Ordering::Relaxed);
            // The terminal may be stopped.
            let _ = tokio::time::timeout(Duration::from_secs(1), &mut screen.ended).await;
        }
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
        let is_prompt = matches!(self.screen, Screen::Writer(_)) && self.asked.take().is_some();
        if std::mem::take(&mut self.in_line) || is_prompt {
            self.put("\n");
        }
    }

    fn put(&mut self, text: &str) {
        match &mut self.screen {
            Screen::Edited(screen) => screen.put(text),
            Screen::Writer(writer) => {
                writer.take_if(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err());
            }
        }
    }
}

impl EditedScreen {
    /// Shows the complete lines.
    fn put(&mut self, text: &str) {
        self.partial.push_str(text);
        if let Some(end) = self.partial.rfind('\n') {
            let lines: String = self.partial.drain(..=end).collect();
            self.show_lines(&lines);
        }
        let (rows, last) = rows_of(&self.partial);
        self.partial = last;
        if !rows.is_empty() {
            (self.show)(rows.join("\n"));
        }
    }

    fn show_lines(&self, lines: &str) {
        let rows = lines.lines().flat_map(|line| {
            let (mut rows, last) = rows_of(line);
            rows.push(last);
            rows
        });
        (self.show)(rows.collect::<Vec<_>>().join("\n"));
    }
}

impl Drop for EditedScreen {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Breaks a line that is wider than the terminal, between words. Returns the complete rows and the last one.
fn rows_of(line: &str) -> (Vec<String>, String) {
    let width = crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns).max(8));
    let (mut rows, mut rest) = (Vec::new(), line.to_owned());
    while let Some((end, style)) = break_of(&rest, width) {
        let reset = if style.is_empty() { "" } else { "\x1b[0m" };
        rows.push(format!("{}{reset}", &rest[..end]));
        rest = format!("{style}{}", rest[end..].trim_start_matches(' '));
    }
    (rows, rest)
}

/// Returns where a line that is wider than `width` is broken, and the styles that are active there.
fn break_of(line: &str, width: usize) -> Option<(usize, String)> {
    let (mut column, mut last, mut style) = (0, None, String::new());
    let mut rest = line.char_indices();
    while let Some((at, letter)) = rest.next() {
        if letter == '\x1b' {
            // Only the styles of this module contain this character.
            let end = at + line[at..].find('m')? + 1;
            match &line[at..end] {
                "\x1b[0m" => style.clear(),
                own => style.push_str(own),
            }
            rest.by_ref().take_while(|(_, letter)| *letter != 'm').for_each(drop);
            continue;
        }
        column += letter.width().unwrap_or(0);
        if column > width {
            return Some(last.unwrap_or((at, style)));
        }
        if letter == ' ' {
            last = Some((at + 1, style.clone()));
        }
    }
    None
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

fn result_line(result: &ToolResult, is_rejected: bool) -> String {
    let texts = result.output().iter().filter_map(|block| match block {
        ResultBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    let text: String = texts.collect();
    let failed = match result.is_error {
        _ if is_rejected => " not run",
        true => " failed",
        false => "",
    };
    format!("← {}{failed}: {}", result.name, clip(text.trim_end(), 400).replace('\n', "\n    "))
}

/// Returns a line on the tokens and the cost of a whole conversation. `None` if nothing was used.
pub(super) fn total_line(used: &Usage) -> Option<String> {
    let (prompt, output, cost) = (used.prompt(), used.output, cost(used.cost));
    (used.total() > 0).then(|| format!("[this conversation: {prompt} tokens in, {output} out{cost}]"))
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
    let (usage, model, stop) = (response.usage, &response.model, &response.stop_reason);
    let cached = if usage.cache_read > 0 { format!(" ({} cached)", usage.cache_read) } else { String::new() };
    match usage.total() {
        // Most services report the usage at the end of a response. If a response was interrupted, this report is
        // missing.
        0 => format!("[{model}: {stop}]"),
        _ => {
            let cost = cost(usage.cost);
            format!("[{model}: {} tokens in{cached}, {} out{cost}; {stop}]", usage.prompt(), usage.output)
        }
    }
}

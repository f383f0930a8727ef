//! Markdown with ANSI styles, rendered as it streams.
//!
//! A piece of text is rendered as soon as no later text can change how it looks. So the output depends on the text alone,
//! not on the pieces in which it arrives. Markers without a partner stay as they are.

use crate::text::start;

const RESET: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const CODE: &str = "\x1b[36m";

/// The greatest distance in bytes between the markers of a code span or of emphasis. It limits the text that is held back.
const WINDOW: usize = 400;

/// A renderer for one text.
#[derive(Default)]
pub(super) struct Markdown {
    /// The end of the text, which is not rendered yet. It has no line break.
    held: String,
    /// The style of the current line. `None` at its beginning.
    line: Option<MarkdownLineStyle>,
    /// The last rendered character of the line.
    before: Option<char>,
    /// The character and the number of characters of the fence around the current block of code.
    fence: Option<(char, usize)>,
}

#[derive(Clone, Copy)]
enum MarkdownLineStyle {
    /// Text with code spans and emphasis, in this style.
    Text(&'static str),
    /// Text without markers, in this style.
    Verbatim(&'static str),
}

/// A marker of a code span or of emphasis.
enum InlineMarkerRole {
    /// The rest of the text decides.
    Unknown,
    /// It has this length and no partner.
    Literal(usize),
    /// It has the first length and a partner after so many bytes.
    Opens(usize, usize),
}

impl Markdown {
    /// Returns the text that can be shown after the text has grown.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            self.held.push_str(line.unwrap_or(piece));
            if line.is_some() {
                out.push_str(&self.finish());
                out.push('\n');
            } else {
                self.render(false, &mut out);
            }
        }
        out
    }

    /// Returns the rest of the line, which has ended.
    pub(super) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.render(true, &mut out);
        self.before = None;
        if let Some(MarkdownLineStyle::Text(style) | MarkdownLineStyle::Verbatim(style)) = self.line.take()
            && !style.is_empty()
        {
            out.push_str(RESET);
        }
        out
    }

    fn render(&mut self, ends: bool, out: &mut String) {
        if self.line.is_none() && !self.begin(ends, out) {
            return;
        }
        match self.line {
            Some(MarkdownLineStyle::Text(style)) => {
                let rendered = inline(&self.held, self.before, style, ends, out);
                self.before = self.held[..rendered].chars().next_back().or(self.before);
                self.held.drain(..rendered);
            }
            _ => out.push_str(&std::mem::take(&mut self.held)),
        }
    }

    /// Renders the marker at the beginning of the line. Returns whether the text decides it.
    fn begin(&mut self, ends: bool, out: &mut String) -> bool {
        let text = self.held.trim_start_matches([' ', '\t']);
        let indent = self.held.len() - text.len();
        let Some(first) = text.chars().next().or(ends.then_some(' ')) else { return false };
        let run = run_of(text, first);
        let (is_open, rest) = (run == text.len() && !ends, &text[run..]);
        let (mut taken, mut shown) = (0, String::new());
        let line = if let Some((mark, count)) = self.fence {
            let closes = first == mark && run >= count && rest.trim().is_empty();
            if first == mark && !ends && (is_open || closes) {
                return false;
            }
            self.fence = self.fence.filter(|_| !closes);
            MarkdownLineStyle::Verbatim(if closes { DIM } else { CODE })
        } else {
            match first {
                '`' | '~' | '#' | '-' | '*' | '+' | '>' if is_open => return false,
                '`' | '~' if run >= 3 => {
                    self.fence = Some((first, run));
                    MarkdownLineStyle::Verbatim(DIM)
                }
                '#' if run <= 6 && rest.starts_with([' ', '\t']) => {
                    taken = indent + run + 1;
                    MarkdownLineStyle::Text(if run == 1 { "\x1b[1;4m" } else { "\x1b[1m" })
                }
                '-' | '*' | '+' if run == 1 && rest.starts_with(' ') => {
                    (taken, shown) = (indent + 1, format!("{}•", &self.held[..indent]));
                    MarkdownLineStyle::Text("")
                }
                '>' => {
                    (taken, shown) = (indent + run, format!("{DIM}{}{RESET}", "│".repeat(run)));
                    MarkdownLineStyle::Text("")
                }
                _ => MarkdownLineStyle::Text(""),
            }
        };
        self.held.drain(..taken);
        let (MarkdownLineStyle::Text(style) | MarkdownLineStyle::Verbatim(style)) = line;
        out.push_str(&shown);
        out.push_str(style);
        self.line = Some(line);
        true
    }
}

/// Renders a part of a line inside a style. Returns the length of the rendered text. `before` is the character before the
/// text, and `ends` states whether the part is complete.
fn inline(text: &str, mut before: Option<char>, style: &str, ends: bool, out: &mut String) -> usize {
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let mut length = first.len_utf8();
        match first {
            '\\' => match rest[1..].chars().next() {
                None if !ends => break,
                Some(escaped) if escaped.is_ascii_punctuation() => {
                    out.push(escaped);
                    length = 2;
                }
                _ => out.push(first),
            },
            '`' | '*' | '_' => match marker(rest, first, before, ends) {
                InlineMarkerRole::Unknown => break,
                InlineMarkerRole::Literal(run) => {
                    out.push_str(&rest[..run]);
                    length = run;
                }
                InlineMarkerRole::Opens(run, inner) => {
                    let own = match (first, run) {
                        ('`', _) => CODE,
                        (_, 1) => "\x1b[3m",
                        (_, 2) => "\x1b[1m",
                        _ => "\x1b[1;3m",
                    };
                    out.push_str(own);
                    let inside = &rest[run..run + inner];
                    if first == '`' {
                        out.push_str(inside);
                    } else {
                        inline(inside, Some(first), &format!("{style}{own}"), true, out);
                    }
                    out.push_str(RESET);
                    out.push_str(style);
                    length = 2 * run + inner;
                }
            },
            _ => out.push(first),
        }
        at += length;
        before = text[..at].chars().next_back();
    }
    at
}

fn marker(text: &str, mark: char, before: Option<char>, ends: bool) -> InlineMarkerRole {
    let run = run_of(text, mark);
    let Some(after) = text[run..].chars().next() else {
        return if ends { InlineMarkerRole::Literal(run) } else { InlineMarkerRole::Unknown };
    };
    // Emphasis begins before a word, and with `_` not inside one.
    let is_inside_word = mark == '_' && before.is_some_and(char::is_alphanumeric);
    if mark != '`' && (run > 3 || after.is_whitespace() || is_inside_word) {
        return InlineMarkerRole::Literal(run);
    }
    let mut at = run;
    while let Some(found) = text[at..].find(mark).filter(|found| at + found <= WINDOW) {
        let place = at + found;
        let end = place + run_of(&text[place..], mark);
        if end == text.len() && !ends {
            return InlineMarkerRole::Unknown;
        }
        let previous = text[..place].chars().next_back();
        let is_inside_word = mark == '_' && text[end..].chars().next().is_some_and(char::is_alphanumeric);
        let ends_word = !previous.is_some_and(char::is_whitespace) && !is_inside_word;
        if end - place == run && (mark == '`' || ends_word) {
            return InlineMarkerRole::Opens(run, place - run);
        }
        at = end;
    }
    if ends || start(text, WINDOW + 1).len() < text.len() {
        InlineMarkerRole::Literal(run)
    } else {
        InlineMarkerRole::Unknown
    }
}

/// Returns the length of the run of `mark` at the beginning of the text.
fn run_of(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

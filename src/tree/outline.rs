//! The outline of a tree, written for human readers.

use std::fmt;

use super::{Node, Tree, links::NodePosition};
use crate::message::{Content, Message};

/// The maximum number of a message's characters on a line.
const WORDS: usize = 60;

/// The maximum number of a text's characters that are examined, including blanks.
const LOOK: usize = 1000;

/// The maximum number of branch levels by which a line is indented. If there are more levels, only the innermost levels
/// are shown.
const LEVELS: usize = 20;

impl fmt::Display for Tree {
    /// Writes an outline with one line per node: id, role and the first words. `*` marks the path and `>` the head.
    /// Only branches are indented, and a line connects siblings. O(n).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut path = self.iter().peekable();
        // For each branch level of the line, states whether the ancestor at that level is the newest sibling.
        let mut levels = Vec::new();
        let mut at = self.roots().next().and_then(|root| self.slot(root.id()));
        let mut line_end = "";
        while let Some(slot) = at {
            let node = self.at(slot);
            if !self.is_alone(slot) {
                levels.push(self.is_newest(slot));
            }
            let mark = match path.next_if(|next| next.id() == node.id()) {
                None => ' ',
                Some(_) if path.peek().is_none() => '>',
                Some(_) => '*',
            };
            write!(f, "{line_end}{mark} ")?;
            indent(f, &levels, !self.is_alone(slot))?;
            line(f, node)?;
            line_end = "\n";
            at = self.after(slot, &mut levels);
        }
        Ok(())
    }
}

impl Tree {
    fn is_alone(&self, slot: NodePosition) -> bool {
        self.links(slot).next == slot
    }

    fn is_newest(&self, slot: NodePosition) -> bool {
        self.newest_beside(slot) == Some(slot)
    }

    /// Returns the next node of the outline: the first child of the node, or, if it has no child, the next sibling of
    /// the node or of its nearest ancestor with a next sibling. Removes the levels that end at this node.
    fn after(&self, slot: NodePosition, levels: &mut Vec<bool>) -> Option<NodePosition> {
        if let Some(newest) = self.links(slot).newest {
            return Some(self.links(newest).next);
        }
        let mut slot = slot;
        loop {
            if !self.is_alone(slot) {
                levels.pop();
            }
            if !self.is_newest(slot) {
                return Some(self.links(slot).next);
            }
            slot = self.links(slot).parent?;
        }
    }
}

fn indent(f: &mut fmt::Formatter<'_>, levels: &[bool], opens: bool) -> fmt::Result {
    let hidden = levels.len().saturating_sub(LEVELS);
    if hidden > 0 {
        f.write_str("… ")?;
    }
    for (index, newest) in levels.iter().enumerate().skip(hidden) {
        f.write_str(match (opens && index + 1 == levels.len(), newest) {
            (true, false) => "├─ ",
            (true, true) => "└─ ",
            (false, false) => "│  ",
            (false, true) => "   ",
        })?;
    }
    Ok(())
}

fn line(f: &mut fmt::Formatter<'_>, node: &Node) -> fmt::Result {
    write!(f, "{} {}", node.id(), node.message().role)?;
    let words = first_words(node.message());
    if words.is_empty() { Ok(()) } else { write!(f, ": {words}") }
}

/// Returns the beginning of a message on one line. Reads only as much of the message as the line needs.
fn first_words(message: &Message) -> String {
    let mut words = OutlineText::default();
    let is_text =
        |block: &Content| matches!(block, Content::Text(text) if !text.text.trim_ascii().is_empty());
    let has_text = message.content.iter().any(is_text);
    if message.compaction.is_some() {
        words.word(if message.compaction.as_ref().is_some_and(|own| own.is_summary) {
            "[summary]"
        } else {
            "[compaction]"
        });
    }
    for block in &message.content {
        match block {
            Content::Text(text) => words.text(&text.text),
            // The text identifies an answer better than the thinking does.
            Content::Thinking(_) if has_text => {}
            Content::Thinking(_) => words.word("[thinking]"),
            Content::Attachment(attachment) => words.label(&attachment.media_type, ""),
            Content::ToolUse(tool_use) => words.label("uses ", &tool_use.name),
            Content::ToolResult(result) if result.is_error => words.word("[error]"),
            Content::ToolResult(_) => words.word("[result]"),
            Content::ProviderItem(item) => words.label(&item.format, " item"),
        }
        if words.is_full {
            break;
        }
    }
    words.line
}

#[derive(Default)]
struct OutlineText {
    line: String,
    chars: usize,
    is_full: bool,
}

impl OutlineText {
    /// Adds the words of a text. Control characters also separate words, because a terminal would obey them.
    fn text(&mut self, text: &str) {
        let end = text.char_indices().nth(LOOK).map_or(text.len(), |(end, _)| end);
        for word in text[..end].split(|c: char| c.is_whitespace() || c.is_control()) {
            self.word(word);
            if self.is_full {
                break;
            }
        }
    }

    /// Adds a label in brackets. The label consists of two parts.
    fn label(&mut self, first: &str, second: &str) {
        let parts = first.chars().chain(second.chars()).filter(|c| !c.is_control());
        let label: String = parts.take(WORDS).collect();
        self.word(&format!("[{label}]"));
    }

    /// Adds one word. If the word does not fit, it is cut if it is the first word of the line, and omitted otherwise.
    fn word(&mut self, word: &str) {
        if word.is_empty() || self.is_full {
            return;
        }
        let room = (WORDS - self.chars).saturating_sub(usize::from(self.chars > 0));
        let chars = word.chars().take(WORDS + 1).count();
        if self.chars > 0 && room > 0 {
            self.line.push(' ');
            self.chars += 1;
        }
        if chars <= room {
            self.line.push_str(word);
            self.chars += chars;
            return;
        }
        if self.chars == 0 {
            self.line.extend(word.chars().take(room));
        }
        self.line.truncate(self.line.trim_end().len());
        self.line.push('…');
        self.is_full = true;
    }
}

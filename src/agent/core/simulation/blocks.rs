//! A streamed response in the simulator's reference model.

use super::{
    Check, ensure,
    model::{Model, TurnStage},
};
use crate::{
    agent::Event,
    message::{Attachment, Content, Message, ProviderItem, Text, Thinking, ToolUse, ToolUseId},
};

/// A block of a response, as described by its events.
pub(super) struct Block {
    kind: Kind,
    /// The text of the block, or the JSON text of a tool use's input.
    text: String,
    ended: Option<Content>,
}

enum Kind {
    Text,
    Thinking,
    ToolUse(ToolUseId, String),
    Attachment(Attachment),
    Item(ProviderItem),
}

impl Block {
    fn new(kind: Kind) -> Self {
        Self { kind, text: String::new(), ended: None }
    }

    pub(super) fn is_tool_use(&self) -> bool {
        matches!(self.kind, Kind::ToolUse(..))
    }

    /// Returns the text of a text block.
    pub(super) fn text(&self) -> Option<&str> {
        matches!(self.kind, Kind::Text).then_some(self.text.as_str())
    }

    /// Returns whether the block's events show that an interrupt must keep the block, even if it is the only block of
    /// the message.
    pub(super) fn is_kept(&self) -> bool {
        match self.kind {
            Kind::Text => !self.text.trim().is_empty(),
            Kind::Attachment(_) => true,
            Kind::Thinking | Kind::ToolUse(..) | Kind::Item(_) => false,
        }
    }

    /// Returns whether `content` can be the final content of the block.
    fn becomes(&self, content: &Content) -> bool {
        let same = match (&self.kind, content) {
            (Kind::Text, Content::Text(Text { text, .. }))
            | (Kind::Thinking, Content::Thinking(Thinking { text, .. })) => *text == self.text,
            (Kind::ToolUse(id, name), Content::ToolUse(tool_use)) => {
                (&tool_use.id, &tool_use.name) == (id, name) && self.is_input(tool_use)
            }
            (Kind::Attachment(own), Content::Attachment(attachment)) => own == attachment,
            (Kind::Item(own), Content::ProviderItem(item)) => own == item,
            _ => false,
        };
        let as_ended = self.ended.as_ref().is_none_or(|ended| ended == content || is_cut(ended, content));
        same && as_ended
    }

    fn is_input(&self, tool_use: &ToolUse) -> bool {
        match &tool_use.malformed {
            Some(raw) => *raw == self.text,
            None => serde_json::from_str(&self.text)
                .map_or(self.text.is_empty(), |sent: serde_json::Value| sent == tool_use.input),
        }
    }
}

/// Returns whether `content` is a tool use without input that counted as complete when its block ended, but as cut off
/// when the response's stop reason arrived.
fn is_cut(ended: &Content, content: &Content) -> bool {
    match (ended, content) {
        (Content::ToolUse(ended), Content::ToolUse(tool_use)) => {
            ended.malformed.is_none() && tool_use.malformed.as_deref() == Some("")
        }
        _ => false,
    }
}

/// Checks that the message consists of all its blocks, or, if it was cut off, of the blocks that an interrupt keeps.
pub(super) fn check_answer(blocks: &[Block], message: &Message, cut: bool) -> Check {
    let mut content = message.content.iter();
    if !cut {
        ensure!(blocks.len() == content.len(), "{} blocks in {message:?}", blocks.len());
        for (block, content) in blocks.iter().zip(content) {
            let ends = matches!(block.kind, Kind::Text | Kind::Thinking | Kind::ToolUse(..));
            ensure!(!ends || block.ended.is_some(), "{content:?} has not ended");
            ensure!(block.becomes(content), "{content:?} differs from its events");
        }
        return Ok(());
    }
    let mut next = content.next();
    for block in blocks {
        // The events do not show whether a provider item has ended, so provider items count as complete.
        let whole = block.ended.is_some() || matches!(block.kind, Kind::Attachment(_) | Kind::Item(_));
        if whole && next.is_some_and(|next| block.becomes(next)) {
            let unsigned = matches!(next, Some(Content::Thinking(thinking)) if !thinking.is_signed());
            ensure!(!unsigned, "unsigned thinking is kept");
            next = content.next();
        } else {
            ensure!(!block.is_kept(), "an interrupt drops {:?}", block.text);
        }
    }
    ensure!(next.is_none(), "no event announced {next:?}");
    Ok(())
}

impl Model {
    pub(super) fn block_event(&mut self, event: &Event) -> Check {
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking, "{event:?} at {:?}", turn.place);
        let blocks = &mut turn.blocks;
        let count = blocks.len();
        let mut start = |index: usize, kind: Kind| {
            ensure!(index == count, "block {index} starts after {count} blocks");
            blocks.push(Block::new(kind));
            Ok(())
        };
        match event {
            Event::TextStart { index } => return start(*index, Kind::Text),
            Event::ThinkingStart { index } => return start(*index, Kind::Thinking),
            Event::ToolUseStart { index, id, name } => {
                return start(*index, Kind::ToolUse(id.clone(), name.clone()));
            }
            Event::Attachment { index, content } => {
                return start(*index, Kind::Attachment((**content).clone()));
            }
            Event::ProviderItem { index, content } if *index == count => {
                return start(*index, Kind::Item((**content).clone()));
            }
            _ => {}
        }
        match event {
            Event::ProviderItem { index, content } => match blocks.get_mut(*index) {
                Some(Block { kind: Kind::Item(item), .. }) => item.clone_from(content),
                _ => return Err(format!("block {index} is not an item")),
            },
            Event::TextDelta { index, delta }
            | Event::ThinkingDelta { index, delta }
            | Event::ToolUseDelta { index, delta } => {
                let block = blocks.get_mut(*index).filter(|block| block.ended.is_none());
                block.ok_or_else(|| format!("block {index} is not open"))?.text.push_str(delta);
            }
            Event::TextEnd { index, content } => end(blocks, *index, content.clone().into())?,
            Event::ThinkingEnd { index, content } => end(blocks, *index, content.clone().into())?,
            Event::ToolUseEnd { index, content } => end(blocks, *index, (**content).clone().into())?,
            other => return Err(format!("{other:?} is not an event of the core")),
        }
        Ok(())
    }
}

fn end(blocks: &mut [Block], index: usize, content: Content) -> Check {
    let block = blocks.get_mut(index).filter(|block| block.ended.is_none());
    let block = block.ok_or_else(|| format!("block {index} is not open"))?;
    ensure!(block.becomes(&content), "block {index} ends as {content:?}");
    block.ended = Some(content);
    Ok(())
}

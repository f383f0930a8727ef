//! One item of an answer, and the blocks that it makes.

use serde_json::{Map, Value};

use super::{
    reasoning::Reasoning,
    received::Received,
    wire::{arguments, call_signature, list, text},
};
use crate::provider::{BlockStart, Delta, Part};

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Call,
    /// What only the service understands.
    Opaque,
}

impl Kind {
    pub(super) fn of(item: &Value) -> Self {
        match text(item, "type") {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::Call,
            _ => Self::Opaque,
        }
    }

    /// What this is, with its article.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Message => "a message",
            Self::Reasoning => "reasoning",
            Self::Call => "a function call",
            Self::Opaque => "an item of the service's own",
        }
    }
}

/// An item of the answer.
#[derive(Debug)]
pub(super) struct Item {
    /// Its place in the output, where it is told.
    pub(super) index: Option<u64>,
    /// Of a function call, the id that its result names.
    pub(super) call_id: String,
    /// Whether its end was seen: what comes after that belongs to another item.
    pub(super) done: bool,
    pub(super) state: State,
}

/// An item as it grows.
#[derive(Debug)]
pub(super) enum State {
    Message(Vec<Section>),
    Reasoning(Reasoning),
    Call(Call),
    Opaque { block: usize },
}

/// A part of a message; each makes a block.
#[derive(Debug)]
pub(super) struct Section {
    /// Its index on the wire.
    index: u64,
    block: usize,
    received: Received,
}

/// A function call, whose block starts with its name.
#[derive(Debug, Default)]
pub(super) struct Call {
    block: Option<usize>,
    received: Received,
    signed: bool,
    /// Arguments that came before the name, or with the item's start: they count unless better ones come.
    held: String,
}

/// How a text that the service repeats as a whole relates to the deltas received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repetition {
    /// Nothing is missing in the received text, or the missing part was appended.
    Fits,
    /// The whole is longer than the received text and does not continue it.
    Differs,
}

/// Where blocks come from.
pub(super) struct Blocks<'a> {
    pub(super) count: &'a mut usize,
    pub(super) deltas: &'a mut Vec<Delta>,
}

impl Blocks<'_> {
    pub(super) fn start(&mut self, block: BlockStart) -> usize {
        let index = *self.count;
        *self.count += 1;
        self.deltas.push(Delta::Start { index, block });
        index
    }

    pub(super) fn extend(&mut self, index: usize, part: Part) {
        self.deltas.push(Delta::Extend { index, part });
    }

    pub(super) fn end(&mut self, index: usize) {
        self.deltas.push(Delta::End { index });
    }

    /// Appends the part of `whole` that was not received yet, if `whole` begins with the received text.
    pub(super) fn append_rest(
        &mut self,
        block: usize,
        received: &mut Received,
        whole: &str,
        part: fn(String) -> Part,
    ) {
        if let Some(rest) = received.rest(whole).filter(|rest| !rest.is_empty()) {
            received.add(rest);
            self.extend(block, part(rest.to_owned()));
        }
    }
}

impl Item {
    pub(super) fn kind(&self) -> Kind {
        match self.state {
            State::Message(_) => Kind::Message,
            State::Reasoning(_) => Kind::Reasoning,
            State::Call(_) => Kind::Call,
            State::Opaque { .. } => Kind::Opaque,
        }
    }

    /// Whether nothing can be added any more. Some services tell a message's content, a reasoning's encrypted
    /// payload, or a call's name only at the end of the answer.
    pub(super) fn is_settled(&self) -> bool {
        self.done
            && match &self.state {
                State::Reasoning(reasoning) => reasoning.has_ended(),
                State::Call(call) => call.is_told(),
                State::Message(sections) => !sections.is_empty(),
                State::Opaque { .. } => true,
            }
    }
}

/// More of a message's part; `index` is the part's, where it is told.
pub(super) fn grow_message(
    sections: &mut Vec<Section>,
    index: Option<u64>,
    more: String,
    blocks: &mut Blocks<'_>,
) {
    let at = match index {
        Some(index) => sections.iter().rposition(|section| section.index == index),
        None => sections.len().checked_sub(1),
    };
    let at = at.unwrap_or_else(|| {
        let block = blocks.start(BlockStart::Text);
        sections.push(Section { index: index.unwrap_or(0), block, received: Received::default() });
        sections.len() - 1
    });
    sections[at].received.add(&more);
    blocks.extend(sections[at].block, Part::Text(more));
}

/// Appends the part of a section's whole that was not received yet.
pub(super) fn complete_section(
    sections: &mut Vec<Section>,
    index: Option<u64>,
    whole: &str,
    blocks: &mut Blocks<'_>,
) -> Repetition {
    match sections.iter_mut().rfind(|section| index.is_none_or(|index| section.index == index)) {
        Some(section) if section.received.differs(whole) => return Repetition::Differs,
        Some(section) => blocks.append_rest(section.block, &mut section.received, whole, Part::Text),
        None if whole.is_empty() => {}
        None => grow_message(sections, index, whole.to_owned(), blocks),
    }
    Repetition::Fits
}

/// Appends the part of a message's whole that was not received yet.
pub(super) fn complete_message(
    sections: &mut Vec<Section>,
    item: &Value,
    blocks: &mut Blocks<'_>,
) -> Repetition {
    let parts = list(item, "content");
    let texts: Vec<&str> = parts
        .iter()
        .map(|part| match text(part, "refusal") {
            "" => text(part, "text"),
            refusal => refusal,
        })
        .collect();
    // A service that counts its parts in another way at the end has sent all of them nevertheless.
    let received: usize = sections.iter().map(|section| section.received.bytes()).sum();
    let mut repetition = Repetition::Fits;
    if received < texts.iter().map(|text| text.len()).sum() {
        let continued = |section: &Section| {
            let whole = usize::try_from(section.index).ok().and_then(|index| texts.get(index));
            whole.is_some_and(|whole| section.received.rest(whole).is_some())
        };
        if sections.iter().all(continued) {
            for (index, whole) in (0..).zip(&texts) {
                complete_section(sections, Some(index), whole, blocks);
            }
        } else {
            repetition = Repetition::Differs;
        }
    }
    for (index, part) in (0..).zip(parts) {
        if let Some(section) = sections.iter().find(|section| section.index == index)
            && let Some(signature) = signature(part, item)
        {
            blocks.extend(section.block, Part::Signature(signature));
        }
    }
    for section in sections {
        blocks.end(section.block);
    }
    repetition
}

/// Whether a message holds a refusal.
pub(super) fn is_refusal(item: &Value) -> bool {
    list(item, "content").iter().any(|part| text(part, "type") == "refusal")
}

/// What a part needs beside its text to go back as it came.
fn signature(part: &Value, item: &Value) -> Option<String> {
    let mut kept = Map::new();
    if text(part, "type") == "refusal" {
        kept.insert("type".to_owned(), "refusal".into());
    }
    let phase = item.get("phase").filter(|phase| phase.is_string());
    kept.extend(phase.map(|phase| ("phase".to_owned(), phase.clone())));
    if !list(part, "annotations").is_empty() {
        kept.insert("annotations".to_owned(), list(part, "annotations").into());
    }
    (!kept.is_empty()).then(|| Value::Object(kept).to_string())
}

impl Call {
    pub(super) fn holding(held: String) -> Self {
        Self { held, ..Self::default() }
    }

    /// Bytes held back.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Starts the block, once the name is known.
    pub(super) fn start(&mut self, item: &Value, blocks: &mut Blocks<'_>) {
        let name = text(item, "name");
        if self.block.is_some() || name.is_empty() {
            return;
        }
        // Without an id of the call, that of the item does: it is as good a name for it.
        let id = match text(item, "call_id") {
            "" => text(item, "id"),
            id => id,
        };
        let block = blocks.start(BlockStart::ToolUse { id: id.into(), name: name.to_owned() });
        self.block = Some(block);
        self.sign(block, item, blocks);
    }

    /// Tells at once what has to go back with the call: without it, an interrupted one would be refused.
    fn sign(&mut self, block: usize, item: &Value, blocks: &mut Blocks<'_>) {
        if let Some(kept) = call_signature(item).filter(|_| !self.signed) {
            self.signed = true;
            blocks.extend(block, Part::Signature(kept));
        }
    }

    pub(super) fn grow(&mut self, more: String, blocks: &mut Blocks<'_>) {
        match self.block {
            Some(block) => {
                self.received.add(&more);
                blocks.extend(block, Part::Input(more));
            }
            None => self.held.push_str(&more),
        }
    }

    /// Appends the part of the whole arguments that was not received yet. Services also repeat them with other
    /// spaces, so arguments that differ are no reason for a warning: the received ones are checked later.
    pub(super) fn complete_arguments(&mut self, whole: &str, blocks: &mut Blocks<'_>) {
        match self.block {
            Some(block) => blocks.append_rest(block, &mut self.received, whole, Part::Input),
            None => whole.clone_into(&mut self.held),
        }
    }

    /// The whole call.
    pub(super) fn complete(&mut self, item: &Value, blocks: &mut Blocks<'_>) {
        self.start(item, blocks);
        let Some(block) = self.block else {
            return;
        };
        self.sign(block, item, blocks);
        let held = std::mem::take(&mut self.held);
        let whole = arguments(item).unwrap_or(held);
        self.complete_arguments(&whole, blocks);
        blocks.end(block);
    }

    /// The answer has ended, perhaps without the whole call: what was held back has to do.
    ///
    /// # Errors
    ///
    /// Nobody can tell what is called.
    pub(super) fn give_up(&mut self, blocks: &mut Blocks<'_>) -> Result<(), &'static str> {
        let block = self.block.ok_or("a function call without a name")?;
        let held = std::mem::take(&mut self.held);
        self.tell_held(block, &held, blocks);
        Ok(())
    }

    fn tell_held(&mut self, block: usize, held: &str, blocks: &mut Blocks<'_>) {
        if self.received.bytes() == 0 {
            blocks.append_rest(block, &mut self.received, held, Part::Input);
        }
    }

    /// Whether it was told to the reader.
    pub(super) fn is_told(&self) -> bool {
        self.block.is_some()
    }
}

//! The items of a response so far. This module finds the item that an event belongs to, and applies the event to that
//! item.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    NAME,
    item::{self, Blocks, Call, Item, ItemKind, ItemState, Repetition},
    open,
    reasoning::{Reasoning, Shown},
    wire::{self, ItemRef, list, text},
};
use crate::{
    message::ProviderItem,
    provider::{BlockStart, Delta, Fold, Part, ProviderError, ProviderErrorKind},
};

type DecodeResult = Result<(), ProviderError>;

/// The items of one response.
#[derive(Debug, Default)]
pub(super) struct ResponseItems {
    items: Vec<Item>,
    /// Maps the id of each item to its position.
    ids: HashMap<String, usize>,
    /// The number of blocks so far.
    blocks: usize,
    /// The number of bytes that are stored until the response ends.
    kept: usize,
    pub(super) refused: bool,
    /// The items that nothing has answered so far: the id to which the answer refers, and the warning about the item.
    open: Vec<(String, String)>,
    /// Whether the warning about a differing text was emitted.
    warned: bool,
}

impl ResponseItems {
    /// Returns whether the response contains a tool call whose block has started.
    pub(super) fn has_calls(&self) -> bool {
        self.items.iter().any(|item| matches!(&item.state, ItemState::Call(call) if call.is_emitted()))
    }

    /// Begins an item. If the item is already known, and is a call whose block has not started, starts the block.
    pub(super) fn add(&mut self, whole: &Value, index: Option<u64>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let place = ItemRef { id: text(whole, "id"), index };
        let known = match place.id {
            // If the service sends no id, the index identifies the item. Some services send no indices either.
            "" => self.items.iter().position(|item| {
                index.is_some() && item.index == index && item.kind() == ItemKind::of(whole) && !item.done
            }),
            _ => self.named(whole),
        };
        let Some(at) = known else {
            return self.push(whole, place, deltas).map(drop);
        };
        // The arguments of a tool call may have arrived before the item of the call, so the block of the call may start
        // now.
        if let ItemState::Call(call) = &mut self.items[at].state {
            call.start(whole, &mut Blocks { count: &mut self.blocks, deltas });
        }
        self.check_blocks()
    }

    fn push(
        &mut self,
        whole: &Value,
        place: ItemRef<'_>,
        deltas: &mut Vec<Delta>,
    ) -> Result<usize, ProviderError> {
        let at = self.items.len();
        if at >= Fold::MAX_BLOCKS {
            return Err(broken(format!("more than {} items in one response", Fold::MAX_BLOCKS)));
        }
        let mut blocks = Blocks { count: &mut self.blocks, deltas };
        let (mut kept, mut call_id) = (place.id.len(), "");
        let state = match ItemKind::of(whole) {
            ItemKind::Message => ItemState::Message(Vec::new()),
            ItemKind::Reasoning => ItemState::Reasoning(Reasoning::default()),
            ItemKind::Call => {
                call_id = text(whole, "call_id");
                let mut call = Call::holding(wire::arguments(whole).unwrap_or_default());
                call.start(whole, &mut blocks);
                kept += call_id.len() + call.held();
                ItemState::Call(call)
            }
            ItemKind::Opaque => {
                let item = ProviderItem::new(NAME, whole.clone());
                ItemState::Opaque { block: blocks.start(BlockStart::ProviderItem(item)) }
            }
        };
        self.keep(kept)?;
        if !place.id.is_empty() {
            self.ids.insert(place.id.to_owned(), at);
        }
        let call_id = call_id.to_owned();
        self.items.push(Item { index: place.index, call_id, done: false, state });
        self.check_blocks()?;
        Ok(at)
    }

    /// Returns the item that content of this kind belongs to. If there is no such item, starts a new one. Returns
    /// `None` if the whole item was already emitted.
    fn open(
        &mut self,
        place: ItemRef<'_>,
        kind: ItemKind,
        deltas: &mut Vec<Delta>,
    ) -> Result<Option<usize>, ProviderError> {
        let at = self.ids.get(place.id).copied().or_else(|| self.unnamed(place, kind));
        match at {
            Some(at) if self.items[at].done => Ok(None),
            Some(at) if self.items[at].kind() == kind => Ok(Some(at)),
            Some(at) => {
                let is = self.items[at].kind().name();
                Err(broken(format!("a delta of {} for an item that is {is}", kind.name())))
            }
            None => {
                let stub = match kind {
                    ItemKind::Message => "message",
                    ItemKind::Reasoning => "reasoning",
                    ItemKind::Call | ItemKind::Opaque => "function_call",
                };
                self.push(&serde_json::json!({"type": stub}), place, deltas).map(Some)
            }
        }
    }

    /// Finds the item for an unknown id. Some services give an item another id in each event but always the same index.
    /// Other services send neither ids nor indices, or give all items the same index.
    fn unnamed(&self, place: ItemRef<'_>, kind: ItemKind) -> Option<usize> {
        let fits = |item: &Item| item.kind() == kind && !item.done;
        let at_index = self.items.iter().rposition(|item| place.index.is_some() && item.index == place.index);
        at_index
            .filter(|at| place.id.is_empty() || fits(&self.items[*at]))
            .or_else(|| self.items.iter().rposition(fits).filter(|_| place.index.is_none()))
    }

    /// Appends text to a message.
    pub(super) fn text(
        &mut self,
        place: ItemRef<'_>,
        part: Option<u64>,
        more: String,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if more.is_empty() {
            return Ok(());
        }
        if let Some(at) = self.open(place, ItemKind::Message, deltas)?
            && let ItemState::Message(sections) = &mut self.items[at].state
        {
            let mut blocks = Blocks { count: &mut self.blocks, deltas };
            item::grow_message(sections, part, more, &mut blocks);
        }
        self.check_blocks()
    }

    /// Completes the text of a part of a message.
    pub(super) fn whole_text(
        &mut self,
        place: ItemRef<'_>,
        part: Option<u64>,
        whole: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ItemKind::Message, deltas)?
            && let ItemState::Message(sections) = &mut self.items[at].state
        {
            let mut blocks = Blocks { count: &mut self.blocks, deltas };
            let repetition = item::complete_section(sections, part, whole, &mut blocks);
            self.warn_if_differs(repetition, deltas);
        }
        self.check_blocks()
    }

    /// Appends text to the readable reasoning.
    pub(super) fn reasoning(
        &mut self,
        place: ItemRef<'_>,
        shown: Shown,
        part: Option<u64>,
        more: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ItemKind::Reasoning, deltas)?
            && let ItemState::Reasoning(reasoning) = &mut self.items[at].state
        {
            reasoning.grow(shown, part, more, &mut Blocks { count: &mut self.blocks, deltas });
        }
        self.check_blocks()
    }

    /// Appends text to a tool call's arguments.
    pub(super) fn arguments(
        &mut self,
        place: ItemRef<'_>,
        more: String,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ItemKind::Call, deltas)?
            && let ItemState::Call(call) = &mut self.items[at].state
        {
            if !call.is_emitted() {
                self.kept = grown(self.kept, more.len())?;
            }
            call.grow(more, &mut Blocks { count: &mut self.blocks, deltas });
        }
        Ok(())
    }

    /// Completes a tool call's arguments.
    pub(super) fn whole_arguments(
        &mut self,
        place: ItemRef<'_>,
        whole: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ItemKind::Call, deltas)?
            && let ItemState::Call(call) = &mut self.items[at].state
        {
            if !call.is_emitted() {
                self.kept = grown(self.kept, whole.len())?;
            }
            call.complete_arguments(whole, &mut Blocks { count: &mut self.blocks, deltas });
        }
        Ok(())
    }

    /// Completes an item, and emits the data that was not emitted yet.
    pub(super) fn complete(
        &mut self,
        whole: &Value,
        index: Option<u64>,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let place = ItemRef { id: text(whole, "id"), index };
        let kind = ItemKind::of(whole);
        let named = self.named(whole).or_else(|| self.unnamed(place, kind));
        let at = named.filter(|at| self.items[*at].kind() == kind);
        let at = match at {
            Some(at) => at,
            None => self.push(whole, place, deltas)?,
        };
        self.fill(at, whole, deltas)
    }

    /// Adds the data of a complete item to the known item at this position.
    fn fill(&mut self, at: usize, whole: &Value, deltas: &mut Vec<Delta>) -> DecodeResult {
        let item = &mut self.items[at];
        if item.is_settled() || item.kind() != ItemKind::of(whole) {
            return Ok(());
        }
        check_count("parts", list(whole, "content"))?;
        item.done = true;
        let mut blocks = Blocks { count: &mut self.blocks, deltas };
        match &mut item.state {
            ItemState::Message(sections) => {
                self.refused |= item::is_refusal(whole);
                let repetition = item::complete_message(sections, whole, &mut blocks);
                self.warn_if_differs(repetition, deltas);
            }
            ItemState::Reasoning(reasoning) => reasoning.complete(whole, &mut blocks),
            ItemState::Call(call) => {
                call.complete(whole, &mut blocks);
                text(whole, "call_id").clone_into(&mut item.call_id);
            }
            ItemState::Opaque { block } => {
                blocks.extend(*block, Part::Item(whole.clone()));
                blocks.end(*block);
                let answered = open::answered(whole);
                self.open.retain(|(id, _)| answered != Some(id));
                self.open.extend(open::asked(whole).map(|id| (id.to_owned(), open::warning(whole))));
            }
        }
        self.check_blocks()
    }

    /// Completes the response. Emits the data that was not emitted yet, and emits no data twice.
    pub(super) fn finish(&mut self, output: &[Value], deltas: &mut Vec<Delta>) -> DecodeResult {
        check_count("items", output)?;
        let streamed = self.items.len();
        let mut claimed = vec![false; streamed];
        let mut nameless = Vec::new();
        for whole in output.iter().filter(|whole| whole.is_object()) {
            match self.same(whole) {
                Some(at) => {
                    claimed[at] = true;
                    self.fill(at, whole, deltas)?;
                }
                None => nameless.push(whole),
            }
        }
        // No final item in `nameless` was streamed under its id. If an unclaimed streamed item has the same kind, it is
        // taken to be the same item under another id. If there is none, the final item was not streamed, and is added.
        for whole in nameless {
            let kind = ItemKind::of(whole);
            let at = (0..streamed).find(|at| !claimed[*at] && self.items[*at].kind() == kind);
            let at = match at {
                Some(at) => at,
                None => self.push(whole, ItemRef { id: text(whole, "id"), index: None }, deltas)?,
            };
            if let Some(claimed) = claimed.get_mut(at) {
                *claimed = true;
            }
            self.fill(at, whole, deltas)?;
        }
        let mut blocks = Blocks { count: &mut self.blocks, deltas };
        for item in &mut self.items {
            if let ItemState::Call(call) = &mut item.state {
                call.give_up(&mut blocks).map_err(broken)?;
            }
        }
        deltas.extend(self.open.drain(..).map(|(_, warning)| Delta::warning(warning)));
        Ok(())
    }

    /// Returns the streamed item with the same id. Two items with the same id but different call ids are different
    /// items.
    fn named(&self, whole: &Value) -> Option<usize> {
        let at = self.ids.get(text(whole, "id")).copied()?;
        let (known, given) = (self.items[at].call_id.as_str(), text(whole, "call_id"));
        (known.is_empty() || given.is_empty() || known == given).then_some(at)
    }

    /// Returns the streamed item with the same item id or the same call id.
    fn same(&self, whole: &Value) -> Option<usize> {
        self.named(whole).or_else(|| {
            let call_id = text(whole, "call_id");
            let same = |item: &Item| !call_id.is_empty() && item.call_id == call_id;
            self.items.iter().position(same)
        })
    }

    fn warn_if_differs(&mut self, repetition: Repetition, deltas: &mut Vec<Delta>) {
        if repetition == Repetition::Differs && !self.warned {
            self.warned = true;
            let warning = "the complete text at the end of the response differs from the streamed text: \
                           the streamed text is kept, and its end may be missing";
            deltas.push(Delta::warning(warning));
        }
    }

    fn keep(&mut self, bytes: usize) -> DecodeResult {
        self.kept = grown(self.kept, bytes)?;
        Ok(())
    }

    /// Checks the limit of blocks in a message early, so that the deltas of an event cannot grow without end.
    fn check_blocks(&self) -> DecodeResult {
        if self.blocks > Fold::MAX_BLOCKS {
            return Err(broken(format!("more than {} blocks in one response", Fold::MAX_BLOCKS)));
        }
        Ok(())
    }
}

/// Rejects a list that exceeds the limit of blocks in a message. The check is made before the list is read.
fn check_count(what: &str, list: &[Value]) -> DecodeResult {
    if list.len() > Fold::MAX_BLOCKS {
        return Err(broken(format!("more than {} {what} in one response", Fold::MAX_BLOCKS)));
    }
    Ok(())
}

fn grown(kept: usize, more: usize) -> Result<usize, ProviderError> {
    let kept = kept.saturating_add(more);
    if kept > Fold::LIMIT {
        return Err(broken(format!("the response is longer than the limit of {} bytes", Fold::LIMIT)));
    }
    Ok(kept)
}

fn broken(message: impl Into<String>) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message)
}

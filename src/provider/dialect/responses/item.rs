//! An item of a response, and the blocks that are created from it.

use serde_json::{Map, Value};

use super::NAME;
use crate::{
    message::{Message, Text},
    provider::{BlockStart, Delta, Part, dialect::decoding::ReceivedTextDigest},
};

/// The text between two parts in a thinking block.
const GAP: &str = "\n\n";

/// Returns the string at `key`, or an empty string if it is absent.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the list at `key`, or an empty list if it is absent.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the id to which the answer of this item refers. Returns `None` if the application need not answer the item.
/// This crate itself runs only functions.
///
/// Source of the kinds: `ResponseInputItem` in the types of OpenAI's official SDKs.
pub(super) fn asked(item: &Value) -> Option<&str> {
    let id = match text(item, "type") {
        "custom_tool_call"
        | "local_shell_call"
        | "shell_call"
        | "apply_patch_call"
        | "computer_call"
        // A search that the service itself runs has no id for its answer.
        | "tool_search_call" => text(item, "call_id"),
        "mcp_approval_request" => text(item, "id"),
        _ => "",
    };
    Some(id).filter(|id| !id.is_empty())
}

/// Returns the id to which an answer refers. Returns `None` if the item is not an answer.
pub(super) fn answered(item: &Value) -> Option<&str> {
    let kind = text(item, "type");
    let keys = ["call_id", "approval_request_id", "id"];
    let id = keys.map(|key| text(item, key)).into_iter().find(|id| !id.is_empty());
    id.filter(|_| kind.ends_with("_output") || kind == "mcp_approval_response")
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponsesItemKind {
    Message,
    Reasoning,
    Call,
    /// An item that only the service understands.
    Opaque,
}

impl ResponsesItemKind {
    pub(super) fn of(item: &Value) -> Self {
        match text(item, "type") {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::Call,
            _ => Self::Opaque,
        }
    }

    /// Returns the name of the kind, with its article.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Message => "a message",
            Self::Reasoning => "reasoning",
            Self::Call => "a function call",
            Self::Opaque => "an opaque item",
        }
    }
}

/// An item of the response.
#[derive(Debug)]
pub(super) struct ResponsesItem {
    /// The position of the item in the output, if the service sends it.
    pub(super) index: Option<u64>,
    /// The hash of the last id that was not the item's own but belonged to an event at the item's index.
    pub(super) alias: Option<u64>,
    /// The id with which a result refers to a function call. Empty for other items.
    pub(super) call_id: String,
    /// Whether the end of the item was received. Later content belongs to another item.
    pub(super) done: bool,
    pub(super) state: ResponsesItemContent,
}

/// The growing content of an item.
#[derive(Debug)]
pub(super) enum ResponsesItemContent {
    Message(Vec<ResponsesMessagePart>),
    Reasoning(ResponsesReasoningItem),
    Call(ResponsesFunctionCall),
    Opaque { block: usize },
}

/// A part of a message. Each part becomes a block.
#[derive(Debug)]
pub(super) struct ResponsesMessagePart {
    /// The index of the part on the wire.
    index: u64,
    /// The index in the latest delta. vLLM raises the index with each delta.
    latest: u64,
    /// Whether the service uses one index for the whole part: it was announced as complete, or two deltas had the same
    /// index. Text with another index then belongs to another part.
    steady: bool,
    /// The block that grows. `None` before the first text, and after the end of the message.
    block: Option<usize>,
    received: ReceivedTextDigest,
}

impl ResponsesMessagePart {
    fn new(index: u64) -> Self {
        Self { index, latest: index, steady: false, block: None, received: ReceivedTextDigest::default() }
    }

    fn has_index(&self, index: u64) -> bool {
        self.index == index || self.latest == index
    }

    /// Returns the block that grows, which is started if there is none.
    fn block(&mut self, blocks: &mut ResponsesBlockEmitter<'_>) -> usize {
        *self.block.get_or_insert_with(|| blocks.start(BlockStart::Text))
    }
}

/// A function call. Its block starts when its name is known.
#[derive(Debug, Default)]
pub(super) struct ResponsesFunctionCall {
    block: Option<usize>,
    received: ReceivedTextDigest,
    signed: bool,
    /// Arguments that arrived before the name or with the start of the item, or that do not begin an object: GitHub
    /// Copilot encrypts the deltas of some calls. They are used unless other arguments arrive.
    held: String,
}

/// The relation between a complete text and the deltas received before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepeatedTextMatch {
    /// The received text is complete, or its missing part was appended.
    Fits,
    /// The complete text is longer than the received text and does not continue it.
    Differs,
}

/// Emits the deltas of blocks.
pub(super) struct ResponsesBlockEmitter<'a> {
    pub(super) count: &'a mut usize,
    pub(super) deltas: &'a mut Vec<Delta>,
}

impl ResponsesBlockEmitter<'_> {
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
    fn append_rest(
        &mut self,
        block: usize,
        received: &mut ReceivedTextDigest,
        whole: &str,
        part: fn(String) -> Part,
    ) {
        if let Some(rest) = received.rest(whole).filter(|rest| !rest.is_empty()) {
            received.add(rest);
            self.extend(block, part(rest.to_owned()));
        }
    }
}

impl ResponsesItem {
    pub(super) fn kind(&self) -> ResponsesItemKind {
        match self.state {
            ResponsesItemContent::Message(_) => ResponsesItemKind::Message,
            ResponsesItemContent::Reasoning(_) => ResponsesItemKind::Reasoning,
            ResponsesItemContent::Call(_) => ResponsesItemKind::Call,
            ResponsesItemContent::Opaque { .. } => ResponsesItemKind::Opaque,
        }
    }

    /// Returns whether nothing more can be added to the item. An item that has ended may still lack data: some services
    /// send a message's content, the encrypted payload of reasoning, or a call's name only at the end of the response.
    pub(super) fn is_settled(&self) -> bool {
        self.done
            && match &self.state {
                ResponsesItemContent::Reasoning(reasoning) => reasoning.has_ended(),
                ResponsesItemContent::Call(call) => call.is_emitted(),
                ResponsesItemContent::Message(sections) => {
                    sections.iter().any(|section| section.received.bytes() > 0)
                }
                ResponsesItemContent::Opaque { .. } => true,
            }
    }
}

/// Adds a part that the service announces.
pub(super) fn announce_part(sections: &mut Vec<ResponsesMessagePart>, index: u64) {
    if sections.iter().all(|section| section.index != index) {
        sections.push(ResponsesMessagePart::new(index));
    }
}

/// Appends text to a part of a message. `index` is the index of the part, if the service sends it. An index that was not
/// announced continues the last part, unless that part keeps its index.
pub(super) fn grow_message(
    sections: &mut Vec<ResponsesMessagePart>,
    index: Option<u64>,
    more: String,
    blocks: &mut ResponsesBlockEmitter<'_>,
) {
    let known = index.and_then(|index| sections.iter().rposition(|section| section.has_index(index)));
    let continues = |section: &ResponsesMessagePart| index.is_none() || !section.steady;
    let at = known.or_else(|| sections.len().checked_sub(1).filter(|at| continues(&sections[*at])));
    let at = at.unwrap_or_else(|| {
        announce_part(sections, index.unwrap_or(0));
        sections.len() - 1
    });
    let section = &mut sections[at];
    section.steady |= known.is_some() && section.received.bytes() > 0;
    section.latest = index.unwrap_or(section.latest);
    section.received.add(&more);
    let block = section.block(blocks);
    blocks.extend(block, Part::Text(more));
}

/// Appends the part of a section's complete text that was not received yet.
pub(super) fn complete_section(
    sections: &mut Vec<ResponsesMessagePart>,
    index: Option<u64>,
    whole: &str,
    blocks: &mut ResponsesBlockEmitter<'_>,
) -> RepeatedTextMatch {
    let known = sections.iter().rposition(|section| index.is_none_or(|index| section.has_index(index)));
    let continued = || sections.last().filter(|last| !last.steady).and_then(|last| last.received.rest(whole));
    let at = known.or_else(|| continued().and(sections.len().checked_sub(1)));
    match at.map(|at| &mut sections[at]) {
        Some(section) if section.received.differs(whole) => return RepeatedTextMatch::Differs,
        Some(section) => {
            section.steady = true;
            if let Some(rest) = section.received.rest(whole).filter(|rest| !rest.is_empty()) {
                section.received.add(rest);
                let block = section.block(blocks);
                blocks.extend(block, Part::Text(rest.to_owned()));
            }
        }
        None if whole.is_empty() => {}
        None => {
            announce_part(sections, index.unwrap_or(0));
            grow_message(sections, index, whole.to_owned(), blocks);
        }
    }
    RepeatedTextMatch::Fits
}

/// Appends the parts of a message's complete text that were not received yet.
pub(super) fn complete_message(
    sections: &mut Vec<ResponsesMessagePart>,
    item: &Value,
    blocks: &mut ResponsesBlockEmitter<'_>,
) -> RepeatedTextMatch {
    let parts = list(item, "content");
    let texts: Vec<&str> = parts
        .iter()
        .map(|part| match text(part, "refusal") {
            "" => text(part, "text"),
            refusal => refusal,
        })
        .collect();
    // vLLM counts the parts of a message together with those of the items before it.
    if sections.len() == parts.len() {
        (0..).zip(&mut *sections).for_each(|(index, section)| section.index = index);
    }
    // At the end, a service may divide the text into other parts than before. Therefore, the total length shows whether
    // the whole text was received.
    let received: usize = sections.iter().map(|section| section.received.bytes()).sum();
    let mut repetition = RepeatedTextMatch::Fits;
    if received < texts.iter().map(|text| text.len()).sum() {
        let continued = |section: &ResponsesMessagePart| {
            let whole = usize::try_from(section.index).ok().and_then(|index| texts.get(index));
            whole.is_some_and(|whole| section.received.rest(whole).is_some())
        };
        if sections.iter().all(continued) {
            for (index, whole) in (0..).zip(&texts) {
                announce_part(sections, index);
                complete_section(sections, Some(index), whole, blocks);
            }
        } else {
            repetition = RepeatedTextMatch::Differs;
        }
    }
    for (index, part) in (0..).zip(parts) {
        if let Some(section) = sections.iter().find(|section| section.index == index)
            && let Some((block, signature)) = section.block.zip(signature(part, item))
        {
            blocks.extend(block, Part::Signature(signature));
        }
    }
    for block in sections.iter_mut().filter_map(|section| section.block.take()) {
        blocks.end(block);
    }
    repetition
}

/// Returns whether a message contains a refusal.
pub(super) fn is_refusal(item: &Value) -> bool {
    list(item, "content").iter().any(|part| text(part, "type") == "refusal")
}

/// Returns the data that has to be stored in addition to a part's text, so that the part can be sent back unchanged.
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

/// Returns whether a text of this message only comments on the work before the final answer. The phase of the text says
/// so.
pub(in crate::provider) fn is_commentary(message: &Message, text: &Text) -> bool {
    let signature = text.signature.as_deref().filter(|_| message.is_native_to(NAME));
    let kept: Option<Map<String, Value>> = signature.and_then(|kept| serde_json::from_str(kept).ok());
    kept.is_some_and(|kept| kept.get("phase").is_some_and(|phase| phase == "commentary"))
}

impl ResponsesFunctionCall {
    pub(super) fn holding(held: String) -> Self {
        Self { held, ..Self::default() }
    }

    /// Returns the number of bytes of arguments that are held until the block starts.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Starts the block, once the name is known.
    pub(super) fn start(&mut self, item: &Value, blocks: &mut ResponsesBlockEmitter<'_>) {
        let name = text(item, "name");
        if self.block.is_some() || name.is_empty() {
            return;
        }
        // If the call has no id, the id of the item is used instead.
        let id = match text(item, "call_id") {
            "" => text(item, "id"),
            id => id,
        };
        let block = blocks.start(BlockStart::ToolUse { id: id.into(), name: name.to_owned() });
        self.block = Some(block);
        self.sign(block, item, blocks);
    }

    /// Immediately emits the data that has to be sent back with the call. If the response were interrupted before this
    /// data is emitted, the service would reject the call.
    fn sign(&mut self, block: usize, item: &Value, blocks: &mut ResponsesBlockEmitter<'_>) {
        if let Some(kept) = call_signature(item).filter(|_| !self.signed) {
            self.signed = true;
            blocks.extend(block, Part::Signature(kept));
        }
    }

    pub(super) fn grow(&mut self, more: String, blocks: &mut ResponsesBlockEmitter<'_>) {
        match self.block {
            Some(block) if self.received.bytes() > 0 || more.trim_start().starts_with('{') => {
                self.received.add(&more);
                blocks.extend(block, Part::Input(more));
            }
            _ => self.held.push_str(&more),
        }
    }

    /// Appends the part of the complete arguments that was not received yet. Some services repeat arguments with
    /// different white space, so a difference causes no warning. The received arguments are validated later.
    pub(super) fn complete_arguments(&mut self, whole: &str, blocks: &mut ResponsesBlockEmitter<'_>) {
        match self.block {
            Some(block) => blocks.append_rest(block, &mut self.received, whole, Part::Input),
            None => whole.clone_into(&mut self.held),
        }
    }

    /// Completes the call with the data of its complete item. Does nothing if the name of the called tool is still
    /// unknown.
    pub(super) fn complete(&mut self, item: &Value, blocks: &mut ResponsesBlockEmitter<'_>) {
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

    /// Ends the call at the end of the response, even if the call is not complete. The arguments that were held back
    /// are used.
    ///
    /// # Errors
    ///
    /// Fails if the name of the called tool is still unknown.
    pub(super) fn give_up(&mut self, blocks: &mut ResponsesBlockEmitter<'_>) -> Result<(), &'static str> {
        let block = self.block.ok_or("a function call has no name")?;
        let held = std::mem::take(&mut self.held);
        self.emit_held(block, &held, blocks);
        Ok(())
    }

    fn emit_held(&mut self, block: usize, held: &str, blocks: &mut ResponsesBlockEmitter<'_>) {
        if self.received.bytes() == 0 {
            blocks.append_rest(block, &mut self.received, held, Part::Input);
        }
    }

    /// Returns whether the block of the call was started.
    pub(super) fn is_emitted(&self) -> bool {
        self.block.is_some()
    }
}

/// A reasoning item. All of its parts form one block, which starts with the first part.
#[derive(Debug, Default)]
pub(super) struct ResponsesReasoningItem {
    block: Option<usize>,
    /// The kind of text that the block contains: the summary or the reasoning itself. If a service sends both, the
    /// block contains the kind that arrives first.
    shown: Option<ResponsesReasoningKind>,
    part: Option<u64>,
    /// The last part of the reasoning itself that the service announced.
    pub(super) announced: Option<u64>,
    received: ReceivedTextDigest,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponsesReasoningKind {
    Summary,
    Content,
}

impl ResponsesReasoningKind {
    const fn key(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Content => "content",
        }
    }
}

impl ResponsesReasoningItem {
    /// Returns whether the item was received completely, with all data that has to be sent back.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Appends text to the summary or to the reasoning itself. `part` is the index of the part, if the service sends
    /// it.
    pub(super) fn grow(
        &mut self,
        shown: ResponsesReasoningKind,
        part: Option<u64>,
        more: &str,
        blocks: &mut ResponsesBlockEmitter<'_>,
    ) {
        if more.is_empty() || *self.shown.get_or_insert(shown) != shown {
            return;
        }
        // vLLM raises the index of the reasoning itself with each delta.
        let announced = shown == ResponsesReasoningKind::Summary || part == self.announced;
        let next = part.is_some() && self.part.is_some() && part != self.part && announced;
        self.part = part.or(self.part);
        let gap = if next && self.received.bytes() > 0 { GAP } else { "" };
        let more = format!("{gap}{more}");
        self.received.add(&more);
        let block = *self.block.get_or_insert_with(|| blocks.start(BlockStart::Thinking));
        blocks.extend(block, Part::Text(more));
    }

    /// Appends the part of the complete text that was not received yet, and the signature, if the item can be sent
    /// back.
    pub(super) fn complete(&mut self, item: &Value, blocks: &mut ResponsesBlockEmitter<'_>) {
        let there = |shown: ResponsesReasoningKind| !list(item, shown.key()).is_empty();
        let shown = self.shown.or_else(|| {
            [ResponsesReasoningKind::Summary, ResponsesReasoningKind::Content]
                .into_iter()
                .find(|it| there(*it))
        });
        let texts: Vec<&str> = match shown {
            Some(shown) => list(item, shown.key()).iter().map(|part| text(part, "text")).collect(),
            None => Vec::new(),
        };
        let whole = texts.join(GAP);
        let is_block = self.received.rest(&whole).is_some();
        let kept = kept_reasoning(item, if is_block && texts.len() == 1 { Some(&whole) } else { None });
        if self.block.is_none() && whole.is_empty() && kept.is_none() {
            return;
        }
        let block = *self.block.get_or_insert_with(|| blocks.start(BlockStart::Thinking));
        self.shown = shown;
        blocks.append_rest(block, &mut self.received, &whole, Part::Text);
        if let Some(kept) = kept {
            blocks.extend(block, Part::Signature(kept));
            blocks.end(block);
            self.ended = true;
        }
    }
}

/// Encodes a reasoning item for the signature of its block, if the item can be sent back. A part whose text equals the
/// block's text is stored without its text.
fn kept_reasoning(item: &Value, of_block: Option<&str>) -> Option<String> {
    let encrypted = item.get("encrypted_content").and_then(Value::as_str).filter(|it| !it.is_empty());
    let readable = list(item, "content");
    if encrypted.is_none() && readable.is_empty() {
        return None;
    }
    let mut kept = Map::from_iter([("type".to_owned(), Value::from("reasoning"))]);
    if !text(item, "id").is_empty() {
        kept.insert("id".to_owned(), text(item, "id").into());
    }
    kept.insert("summary".to_owned(), list(item, "summary").into());
    if !readable.is_empty() {
        kept.insert("content".to_owned(), readable.into());
    }
    kept.extend(encrypted.map(|payload| ("encrypted_content".to_owned(), payload.into())));
    if let Some(whole) = of_block {
        for key in ["summary", "content"] {
            for part in kept.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Value::Object(part) = part
                    && part.get("text").is_some_and(|text| text == whole)
                {
                    part.shift_remove("text");
                }
            }
        }
    }
    Some(Value::Object(kept).to_string())
}

/// Returns the data that is needed, in addition to the name and the arguments, to send a call back unchanged. This data
/// is the namespace of a tool that the service found by search, and the caller if a program of the service made the
/// call.
fn call_signature(item: &Value) -> Option<String> {
    let namespace = Some(text(item, "namespace")).filter(|it| !it.is_empty()).map(Value::from);
    let caller = item.get("caller").filter(|it| !matches!(text(it, "type"), "" | "direct")).cloned();
    let members = [("namespace", namespace), ("caller", caller)];
    let kept: Map<String, Value> =
        members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    (!kept.is_empty()).then(|| Value::Object(kept).to_string())
}

/// Returns the JSON text of a tool call's arguments. Some services send the JSON value itself instead of a string.
pub(super) fn arguments(item: &Value) -> Option<String> {
    match item.get("arguments")? {
        Value::Null => None,
        Value::String(text) => (!text.trim().is_empty()).then(|| text.clone()),
        whole => Some(whole.to_string()),
    }
}

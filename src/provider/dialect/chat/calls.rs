//! Assembly of tool calls from their fragments.
//!
//! According to the specification, a fragment identifies its call by index, and only the first fragment has an id and a
//! name. Many servers deviate. Ollama sends index 0 and a different id for each call. Gemini's compatible endpoint
//! sends no index. Moonshot sends the id in each fragment. SGLang sends a different index in the first fragment of a
//! call than in its other fragments. Gateways to the Responses API repeat a complete call under another index.

use std::borrow::Cow;

use crc32fast::Hasher;
use serde_json::Value;

use crate::{
    message::ToolUseId,
    provider::{
        BlockStart, Delta, Fold, Part, ProviderError, ProviderErrorKind,
        dialect::decoding::{
            DecodeResult, ImplicitResponseBlocks, MAX_CALLS, ReceivedTextDigest, ResponseToolCallIds,
            is_empty_object,
        },
    },
};

/// The maximum length of a name, in bytes. Only a broken server sends more.
const MAX_NAME: usize = 1024;

/// The tool calls of one response.
#[derive(Default)]
pub(super) struct ChatCalls {
    list: Vec<ChatCall>,
    ids: ResponseToolCallIds,
    /// The number of chunks so far.
    chunk: u64,
    /// The number of bytes that all calls together hold until their blocks start.
    held: usize,
}

/// A fragment of a tool call. Absent members are empty.
pub(super) struct ChatToolCallFragment<'a> {
    pub(super) index: Option<u64>,
    /// The position of the fragment in its chunk, if the chunk has several fragments.
    pub(super) place: Option<usize>,
    pub(super) id: Cow<'a, str>,
    pub(super) name: Cow<'a, str>,
    pub(super) arguments: Cow<'a, str>,
    /// Data that is sent back unchanged with the call.
    pub(super) extra: Option<Box<Value>>,
}

#[derive(Default)]
struct ChatCall {
    index: Option<u64>,
    place: Option<usize>,
    /// The id that the service assigned to the call.
    id: String,
    name: String,
    /// The block of the call, once it has started.
    block: Option<usize>,
    /// Arguments that arrived before the name.
    held: String,
    /// Data that is sent back unchanged with the call. The data is held until the block of the call has started.
    extra: Option<String>,
    signed: bool,
    json: JsonNesting,
    /// The arguments so far, without a placeholder.
    received: ReceivedTextDigest,
    /// Whether a fragment repeated the arguments before it.
    repetitive: bool,
    /// The chunk with the latest fragment of the call.
    chunk: u64,
}

impl ChatCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        !id.is_empty() && self.list.iter().any(|call| call.id == id)
    }

    pub(super) fn next_chunk(&mut self) {
        self.chunk += 1;
    }

    pub(super) fn add(
        &mut self,
        fragment: ChatToolCallFragment<'_>,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let at = self.locate(&fragment);
        self.extend(at, fragment, answer, blocks, deltas)
    }

    /// Adds a complete call, which may repeat an earlier call. Such a call has the same id, or its position is less than
    /// `known` and it has the same name. Only the part of its arguments that was not received yet is added.
    pub(super) fn repeat(
        &mut self,
        mut fragment: ChatToolCallFragment<'_>,
        known: usize,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let by_id = || self.list.iter().position(|call| !call.id.is_empty() && *call.id == *fragment.id);
        let by_place = || {
            let is_nameless = |at: usize| self.list.get(at).is_some_and(|call| call.id.is_empty());
            let at = fragment.place.filter(|at| *at < known || is_nameless(*at))?;
            self.list[at].can_be(&fragment.name).then_some(at)
        };
        let at = by_id().or_else(by_place);
        if let Some(call) = at.map(|at| &mut self.list[at]) {
            if call.block.is_none() {
                call.name.clear();
            }
            if call.received.bytes() > 0 {
                let rest = call.received.rest(&fragment.arguments).unwrap_or_default().to_owned();
                fragment.arguments = Cow::Owned(rest);
            }
        }
        self.extend(at, fragment, answer, blocks, deltas)
    }

    /// Adds a fragment to the call at the position `at`, or begins a new call if `at` is `None`.
    fn extend(
        &mut self,
        at: Option<usize>,
        fragment: ChatToolCallFragment<'_>,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let at = if let Some(at) = at {
            at
        } else {
            if self.list.len() >= MAX_CALLS {
                return Err(broken(format!("more than {MAX_CALLS} tool calls in one response")));
            }
            // Earlier calls whose names are known start their blocks first, so that the calls keep their order.
            self.start_named(answer, blocks, deltas);
            let (index, place) = (fragment.index, fragment.place);
            self.list.push(ChatCall { index, place, ..ChatCall::default() });
            self.list.len() - 1
        };
        let chunk = self.chunk;
        let call = &mut self.list[at];
        call.chunk = chunk;
        if call.id.is_empty() {
            call.id = fragment.id.into_owned();
        }
        // A name may arrive in pieces. A fragment may also repeat the name so far, which is then not appended.
        if call.block.is_none() && *fragment.name != *call.name {
            call.name.push_str(&fragment.name);
            if call.name.len() > MAX_NAME {
                return Err(broken(format!("a tool's name is longer than {MAX_NAME} bytes")));
            }
        }
        // The extra data is emitted once, as a whole, because some gateways repeat it.
        if let Some(extra) = fragment.extra.filter(|_| !call.signed) {
            call.signed = true;
            let extra = extra.to_string();
            self.held += extra.len();
            if self.held > Fold::LIMIT {
                return Err(broken(
                    "the extra content of tool calls without a name exceeds the size limit".to_owned(),
                ));
            }
            call.extra = Some(extra);
        }
        let arguments = call.receive(fragment.arguments);
        if call.name.is_empty() {
            self.held += arguments.len();
            if self.held > Fold::LIMIT {
                return Err(broken(
                    "the arguments of tool calls without a name exceed the size limit".to_owned(),
                ));
            }
            call.held.push_str(&arguments);
            return Ok(());
        }
        // The name is complete only when the arguments begin.
        if call.block.is_none() && (call.json.begun() || !arguments.is_empty()) {
            self.start(at, answer, blocks, deltas);
        }
        self.sign(at, deltas);
        if let (Some(index), false) = (self.list[at].block, arguments.is_empty()) {
            deltas.push(Delta::Extend { index, part: Part::Input(arguments.into_owned()) });
        }
        Ok(())
    }

    /// Emits the data that is sent back with a call, once its block has started.
    fn sign(&mut self, at: usize, deltas: &mut Vec<Delta>) {
        let call = &mut self.list[at];
        if let Some((index, extra)) = call.block.zip(call.extra.take_if(|_| call.block.is_some())) {
            self.held -= extra.len();
            deltas.push(Delta::Extend { index, part: Part::Signature(extra) });
        }
    }

    /// Returns the call that a fragment continues, or `None` if it begins a new call.
    fn locate(&self, fragment: &ChatToolCallFragment<'_>) -> Option<usize> {
        let last = self.list.len().checked_sub(1)?;
        let named = !fragment.name.is_empty();
        let by_index =
            fragment.index.and_then(|index| self.list.iter().rposition(|call| call.index == Some(index)));
        if fragment.id.is_empty() {
            let candidate = match (fragment.index, by_index) {
                // At SGLang, the index of the first fragment is that of the tool, which another call may have.
                (Some(_), Some(at)) if !named && self.list[at].is_closed_to(&fragment.arguments) => {
                    if self.list[last].json.is_complete() { at } else { last }
                }
                (Some(_), Some(at)) => at,
                // Only the first fragment of a call has a name, so a fragment without a name continues an incomplete
                // call.
                (None, None) if !named && fragment.place.is_some() => {
                    let placed = self.list.iter().rposition(|call| call.place == fragment.place);
                    return placed.or(Some(last));
                }
                (_, None) if !named => {
                    return (fragment.index.is_none() || !self.list[last].json.is_complete()).then_some(last);
                }
                (None, _) if self.list[last].repeats(&fragment.name) => last,
                _ => return None,
            };
            let begins = named && self.is_another(candidate, &fragment.name);
            return (!begins).then_some(candidate);
        }
        let by_id = || self.list.iter().rposition(|call| *call.id == *fragment.id);
        let at = match by_index {
            Some(at) if *self.list[at].id == *fragment.id => Some(at),
            Some(at) if self.list[at].id.is_empty() => {
                let begins = named && self.is_another(at, &fragment.name);
                (!begins).then_some(at)
            }
            // A fragment with a new id and a name begins a new call, whatever its index.
            Some(_) if named => None,
            // Some servers send a new id in each fragment. If no call has the id, the index identifies the call.
            Some(at) => by_id().or(Some(at)),
            None if fragment.index.is_some() && named => {
                // The fragments of one chunk are different calls.
                let is_repeated = |call: &ChatCall| call.chunk != self.chunk && call.is_repeated_by(fragment);
                by_id().filter(|at| is_repeated(&self.list[*at]))
            }
            None => by_id().or_else(|| {
                let open = !named && fragment.index.is_none() && !self.list[last].json.is_complete();
                open.then_some(last)
            }),
        };
        at.filter(|at| !self.list[*at].is_before(fragment))
    }

    /// Returns whether a fragment with a name begins another call instead of continuing the call at `at`.
    fn is_another(&self, at: usize, name: &str) -> bool {
        let call = &self.list[at];
        let has_name = !call.name.is_empty();
        has_name
            && (call.json.is_complete()
                || call.chunk == self.chunk
                || (call.json.begun() && call.name != name))
    }

    /// Starts the blocks of all calls whose names are known.
    pub(super) fn start_named(
        &mut self,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) {
        for at in 0..self.list.len() {
            if self.list[at].block.is_none() && !self.list[at].name.is_empty() {
                self.start(at, answer, blocks, deltas);
            }
        }
    }

    fn start(
        &mut self,
        at: usize,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) {
        let call = &mut self.list[at];
        let id = self.ids.at(at, &call.id, answer);
        let index = blocks.item();
        call.block = Some(index);
        let block = BlockStart::ToolUse { id: ToolUseId::from(id), name: call.name.clone() };
        deltas.push(Delta::Start { index, block });
        let held = std::mem::take(&mut call.held);
        if !held.is_empty() {
            self.held -= held.len();
            deltas.push(Delta::Extend { index, part: Part::Input(held) });
        }
        self.sign(at, deltas);
    }

    /// Ends the response, and starts the blocks of the remaining calls. `cut` indicates whether the response ended
    /// because of a limit. If not, arguments of a call without a name are an error.
    pub(super) fn finish(
        &mut self,
        cut: bool,
        answer: &str,
        blocks: &mut ImplicitResponseBlocks,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        self.start_named(answer, blocks, deltas);
        for call in &self.list {
            if let (Some(index), true) = (call.block, call.has_placeholder()) {
                deltas.push(Delta::Extend { index, part: Part::Input("{}".to_owned()) });
            }
        }
        let nameless = self.list.iter().any(|call| call.block.is_none() && call.json.begun());
        self.list.retain(|call| call.block.is_some());
        if nameless && !cut {
            return Err(broken("a tool call has no name".to_owned()));
        }
        Ok(())
    }
}

impl ChatCall {
    /// Returns whether `name` only repeats the name of this call and does not begin another call. Called for a fragment
    /// that has neither an index nor an id.
    fn repeats(&self, name: &str) -> bool {
        self.name.is_empty() || (self.name == name && !self.json.is_complete())
    }

    /// Returns whether this may be the call with this complete name.
    fn can_be(&self, name: &str) -> bool {
        self.name == name || self.block.is_none() && name.starts_with(&self.name)
    }

    /// Returns whether a fragment with the id of this call and another index repeats this call with all of its arguments.
    /// Perhaps only the name of this call has arrived so far.
    fn is_repeated_by(&self, fragment: &ChatToolCallFragment<'_>) -> bool {
        let arguments = &*fragment.arguments;
        let mut whole = JsonNesting::default();
        whole.feed(arguments);
        let is_object = arguments.trim_start().starts_with('{') && whole.is_complete();
        *fragment.name == self.name && (self.json.is_same(arguments) || !self.json.begun() && is_object)
    }

    /// Returns whether this call has all of its arguments, and these arguments are not a part or a repetition of them.
    fn is_closed_to(&self, arguments: &str) -> bool {
        self.received.bytes() > 0
            && self.json.is_complete()
            && !arguments.trim().is_empty()
            && self.received.rest(arguments).is_none()
            && !self.json.is_same(arguments)
    }

    /// Returns whether a fragment with the id of this call is a whole other call. Some services give the same id and
    /// index to all calls of a response. The arguments of this call are complete then, and the fragment has another name
    /// or does not repeat them.
    fn is_before(&self, fragment: &ChatToolCallFragment<'_>) -> bool {
        let arguments = fragment.arguments.trim();
        let is_whole = !fragment.name.is_empty() && arguments.starts_with('{');
        let has_ended = self.block.is_some() && self.json.is_complete() && self.json.last == b'}';
        let differs = || {
            self.received.bytes() > 0
                && !is_empty_object(arguments)
                && self.received.rest(&fragment.arguments).is_none()
                && !self.json.is_same(arguments)
        };
        is_whole && has_ended && (*fragment.name != *self.name || differs())
    }

    /// Returns whether the arguments so far are only an empty object, which other arguments may replace.
    fn has_placeholder(&self) -> bool {
        self.received.bytes() == 0 && self.json.begun()
    }

    /// Takes the arguments of a fragment, and returns the part that was not received yet. Some services first send `{}`
    /// as a placeholder, send all arguments so far in each fragment, or repeat the complete arguments at the end.
    fn receive<'f>(&mut self, arguments: Cow<'f, str>) -> Cow<'f, str> {
        let text = arguments.trim();
        if self.received.bytes() == 0 {
            if text == "null" || text.is_empty() && self.json.begun() {
                return Cow::Borrowed("");
            }
            if !text.is_empty() {
                self.json = JsonNesting::default();
            }
            if is_empty_object(text) {
                self.json.feed(text);
                return Cow::Borrowed("");
            }
        } else if arguments.starts_with('{')
            && let Some(rest) = self.received.rest(&arguments)
            && (self.repetitive || !self.json.can_continue_with(&arguments))
        {
            self.repetitive = true;
            let rest = rest.to_owned();
            self.json.feed(&rest);
            self.received.add(&rest);
            return Cow::Owned(rest);
        } else if text.starts_with('{') && self.json.last == b'}' && self.json.is_same(text) {
            return Cow::Borrowed("");
        }
        self.json.feed(&arguments);
        self.received.add(&arguments);
        arguments
    }
}

/// Tracks JSON text just far enough to know when its outermost object is closed, and where an object may follow.
#[derive(Default)]
struct JsonNesting {
    depth: u32,
    /// The last character outside of strings, except for white space.
    last: u8,
    in_string: bool,
    escaped: bool,
    begun: bool,
    /// The digest of the text without white space outside of strings.
    compact: Hasher,
}

impl JsonNesting {
    fn feed(&mut self, text: &str) {
        let mut from = 0;
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                b' ' | b'\t' | b'\r' | b'\n' => {
                    self.compact.update(&text.as_bytes()[from..at]);
                    from = at + 1;
                    continue;
                }
                _ => {}
            }
            if !self.in_string {
                self.last = byte;
            }
            self.begun = true;
        }
        self.compact.update(&text.as_bytes()[from..]);
    }

    /// Returns whether the text is the same JSON, apart from white space.
    fn is_same(&self, text: &str) -> bool {
        let mut other = Self::default();
        other.feed(text);
        self.is_complete() && other.compact.finalize() == self.compact.clone().finalize()
    }

    fn begun(&self) -> bool {
        self.begun
    }

    fn is_complete(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }

    /// Returns whether the JSON text can continue with `object`, the beginning of an object. The object is then a nested
    /// value or a part of a string.
    fn can_continue_with(&self, object: &str) -> bool {
        if self.in_string {
            // The first quotation mark ends the string, so a separator has to follow.
            let rest = object.split_once('"').map_or("", |(_, rest)| rest.trim_start());
            return rest.is_empty() || rest.starts_with([':', ',', '}', ']']);
        }
        matches!(self.last, b':' | b'[') || self.last == b',' && self.depth > 1
    }
}

fn broken(message: String) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message)
}

//! Parts that the decoders of several wire formats share.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    iter::Flatten,
    vec,
};

use crc32fast::Hasher;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::{
    Frame,
    error::{self, is_error},
    lenient::LenientInteger,
    names::hash,
};
use crate::{
    json::halves,
    provider::{BlockStart, Delta, MessageDelta, Part, ProviderError, ProviderErrorKind},
};

/// The number of bytes of a stray event that an error message quotes.
const QUOTE: usize = 200;

/// The maximum number of tool calls in one response. Only a broken server sends more.
pub(super) const MAX_CALLS: usize = 1024;

/// The warning about a complete text at the end of a response that does not begin with the streamed text.
pub(super) const DIFFERS: &str = "the complete text at the end of the response differs from the streamed text: the \
                                  streamed text is kept, and its end may be missing";

/// The greatest depth in an event at which the arguments of a tool call are found.
const MAX_DEPTH: usize = 16;

/// The result of decoding an event, whose deltas are appended to a list.
pub(super) type DecodeResult = Result<(), ProviderError>;

/// Parses an event from its JSON text.
pub(super) fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    if !data.starts_with('{') {
        return Err(de::Error::custom("a JSON object was expected"));
    }
    serde_json::from_str(data)
}

/// Returns the error for an event that violates the wire format.
pub(super) fn bad(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message).with_body(data)
}

/// The id and the model of a response.
#[derive(Debug, Default)]
pub(super) struct ResponseMetadata {
    /// The id. Empty if it is not known yet.
    pub(super) id: String,
    has_model: bool,
    /// The provider data of the message, which is always emitted as a whole. `None` before the first event.
    pub(super) data: Option<Map<String, Value>>,
}

impl ResponseMetadata {
    /// Emits the id and the model as soon as they are known, and the name of the wire format at the first event. `key`
    /// is the member of the provider data with the id.
    pub(super) fn emit(&mut self, format: &str, key: &str, id: &str, model: &str, deltas: &mut Vec<Delta>) {
        let new_id = self.id.is_empty() && !id.is_empty();
        let new_model = !self.has_model && !model.is_empty();
        if self.data.is_some() && !new_id && !new_model {
            return;
        }
        let data = self.data.get_or_insert_default();
        if new_id {
            id.clone_into(&mut self.id);
            data.insert(key.to_owned(), id.into());
        }
        self.has_model |= new_model;
        deltas.push(Delta::Message(Box::new(MessageDelta {
            model: new_model.then(|| model.to_owned()),
            provider_data: Map::from_iter([(format.to_owned(), Value::Object(data.clone()))]),
            ..MessageDelta::default()
        })));
    }
}

/// Returns whether these deltas show that a response continues after its finish reason. Blank text and signatures do
/// not show this.
pub(super) fn continues(deltas: &[Delta]) -> bool {
    deltas.iter().any(|delta| match delta {
        Delta::Start { block, .. } => !matches!(block, BlockStart::Text | BlockStart::Thinking),
        Delta::Extend { part: Part::Text(text), .. } => !text.trim_ascii().is_empty(),
        Delta::Extend { part, .. } => matches!(part, Part::Input(_)),
        _ => false,
    })
}

/// The received text of a block, stored as its length and its digest. They are compared with the whole text that a
/// service repeats, so that the text itself need not be stored twice.
#[derive(Clone, Debug, Default)]
pub(super) struct ReceivedTextDigest {
    bytes: usize,
    digest: Hasher,
}

impl ReceivedTextDigest {
    pub(super) fn add(&mut self, more: &str) {
        self.bytes += more.len();
        self.digest.update(more.as_bytes());
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the part of `whole` after the received text, if `whole` begins with that text.
    pub(super) fn rest<'w>(&self, whole: &'w str) -> Option<&'w str> {
        let (begin, rest) = whole.split_at_checked(self.bytes)?;
        (crc32fast::hash(begin.as_bytes()) == self.digest.clone().finalize()).then_some(rest)
    }

    /// Returns whether `whole` is longer than the received text and does not continue it.
    pub(super) fn differs(&self, whole: &str) -> bool {
        whole.len() > self.bytes && self.rest(whole).is_none()
    }
}

/// The kinds of growing blocks that a wire format does not identify.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextBlockKind {
    Text,
    Thinking,
}

/// The blocks of a response whose wire format does not identify them.
#[derive(Default)]
pub(super) struct ImplicitResponseBlocks {
    pub(super) count: usize,
    /// The kind of the block that is growing.
    open: Option<TextBlockKind>,
    text: Option<usize>,
    thinking: Option<usize>,
}

impl ImplicitResponseBlocks {
    /// After this many blocks, text and thinking are appended to the last block of their kind instead of starting new
    /// blocks. Otherwise, a service that alternates between text and thinking with each token would exceed the limit of
    /// blocks in a message.
    const MANY: usize = 256;

    pub(super) fn of(&mut self, kind: TextBlockKind, deltas: &mut Vec<Delta>) -> usize {
        let last = if kind == TextBlockKind::Text { self.text } else { self.thinking };
        match last {
            Some(index) if self.open == Some(kind) || self.count >= Self::MANY => index,
            _ => {
                let index = self.item();
                self.open = Some(kind);
                let (block, last) = match kind {
                    TextBlockKind::Text => (BlockStart::Text, &mut self.text),
                    TextBlockKind::Thinking => (BlockStart::Thinking, &mut self.thinking),
                };
                *last = Some(index);
                deltas.push(Delta::Start { index, block });
                index
            }
        }
    }

    /// Returns the index for a new block that is already complete. The block that is growing stays open.
    pub(super) fn aside(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    /// Returns the index for a block that arrives complete or that the wire format identifies. Text or thinking after
    /// this block starts a new block.
    pub(super) fn item(&mut self) -> usize {
        self.open = None;
        self.count += 1;
        self.count - 1
    }

    /// Emits a block that arrives complete.
    pub(super) fn whole(&mut self, block: BlockStart, deltas: &mut Vec<Delta>) {
        let index = self.item();
        deltas.push(Delta::Start { index, block });
        deltas.push(Delta::End { index });
    }
}

/// The ids of the tool calls of one response.
#[derive(Debug, Default)]
pub(super) struct ResponseToolCallIds {
    taken: HashSet<String>,
    count: usize,
}

impl ResponseToolCallIds {
    /// Returns whether the response has no tool call yet. Used for wire formats that get the ids from
    /// [`next`](Self::next).
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the [id](Self::at) of the next call. Used for wire formats in which calls arrive complete.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Decoding`] if the response has more than [`MAX_CALLS`] calls.
    pub(super) fn next(&mut self, given: &str, answer: &str) -> Result<String, ProviderError> {
        if self.count >= MAX_CALLS {
            let message = format!("more than {MAX_CALLS} tool calls in one response");
            return Err(ProviderError::new(ProviderErrorKind::Decoding, message));
        }
        let at = self.count;
        self.count += 1;
        Ok(self.at(at, given, answer))
    }

    /// Returns the id of the call at this position. If the service sent an id, `given`, this id is returned. Otherwise,
    /// the id is made from the position and from `answer`, a text that identifies the response. The same response
    /// always gets the same ids, and each id is unique.
    pub(super) fn at(&mut self, at: usize, given: &str, answer: &str) -> String {
        let wanted = match given {
            "" if answer.is_empty() => format!("call_{at}"),
            "" => format!("call_{:016x}_{at}", hash(answer)),
            id => id.to_owned(),
        };
        let mut id = wanted.clone();
        let mut n = at;
        while !self.taken.insert(id.clone()) {
            id = format!("{wanted}_{n}");
            n += 1;
        }
        id
    }
}

/// Picks one of several alternative responses, if a service sends more than the one that was requested.
#[derive(Debug, Default)]
pub(super) struct ResponseAlternatives {
    /// The index of the chosen response, which is the first response that arrived.
    index: Option<u64>,
    warned: bool,
}

impl ResponseAlternatives {
    /// Returns the parts of an event that belong to the chosen response. GitHub Copilot divides one response into
    /// several parts with the same index. The first part of another response causes a warning.
    pub(super) fn pick<T>(
        &mut self,
        mut parts: Vec<Option<T>>,
        index: impl Fn(&T) -> LenientInteger,
        deltas: &mut Vec<Delta>,
    ) -> Flatten<vec::IntoIter<Option<T>>> {
        // One event may contain several alternatives in any order, so the smallest index is chosen.
        if self.index.is_none() {
            self.index = parts.iter().flatten().map(|part| index(part).or_zero()).min();
        }
        parts.retain(|part| {
            let Some(part) = part else { return false };
            let is_chosen = self.index == Some(index(part).or_zero());
            if !is_chosen && !std::mem::replace(&mut self.warned, true) {
                let warning =
                    "the service sent several alternative responses to one request: only the first is used";
                deltas.push(Delta::warning(warning));
            }
            is_chosen
        });
        parts.into_iter().flatten()
    }
}

/// The stray events of one response, which are events that are not part of it. Examples are keep-alives, prices, events of
/// other wire formats, and failure reports. All wire formats treat stray events in the same way. A failure report is an
/// error. All other stray events are skipped.
#[derive(Debug, Default)]
pub(super) struct UnrelatedStreamEvents {
    /// The first stray event that has members but does not name its kind. A gateway may send such an object instead of
    /// a response.
    first: Option<Box<str>>,
    /// The number of stray events. Counting stops at 2.
    count: u8,
}

impl UnrelatedStreamEvents {
    /// Skips an event that is a JSON object without any member of a response.
    ///
    /// # Errors
    ///
    /// Fails if the event reports a failure.
    pub(super) fn skip(&mut self, data: &str) -> DecodeResult {
        self.count = self.count.saturating_add(1).min(2);
        let Ok(Value::Object(event)) = halves::parse(data.as_bytes()) else {
            return Ok(());
        };
        if is_report(&event) {
            return Err(error::from_event(data));
        }
        if name_of(&event).is_none() && !event.is_empty() && self.first.is_none() {
            let end = data.floor_char_boundary(ProviderError::BODY_LIMIT);
            self.first = Some(data[..end].into());
        }
        Ok(())
    }

    /// Returns the error for a stream that ended before the response was complete. `begun` indicates whether any event
    /// was part of a response.
    pub(super) fn truncated(&self, begun: bool, message: &str) -> ProviderError {
        match &self.first {
            // The only event was not part of a response, so nothing was cut off.
            Some(first) if self.count == 1 && !begun => {
                let quote = &first[..first.floor_char_boundary(QUOTE)];
                let message = format!("the service sent something other than a response: {quote}");
                ProviderError::new(ProviderErrorKind::Decoding, message).with_body(first)
            }
            Some(first) => ProviderError::new(ProviderErrorKind::Truncated, message).with_body(first),
            None => ProviderError::new(ProviderErrorKind::Truncated, message),
        }
    }
}

/// Returns whether data that is not an event only keeps the connection open. Some services send comments in data, and
/// others send null.
pub(super) fn is_keep_alive(data: &str) -> bool {
    data == "null" || data.starts_with(':')
}

/// Skips data that cannot be parsed as an event, if it is a keep-alive or its event has a name. This is for wire formats
/// whose own events have no names.
///
/// # Errors
///
/// Fails if the event may be part of the response, or if it reports a failure. If it may be part of the response,
/// `what` is the message of the error.
pub(super) fn skip_unreadable(frame: Frame<'_>, what: &str, cause: serde_json::Error) -> DecodeResult {
    let data = frame.data.trim_ascii();
    if is_keep_alive(data) {
        return Ok(());
    }
    let reports = match halves::parse(data.as_bytes()) {
        Ok(Value::Object(event)) => is_named_report(&event),
        // Google's compatible endpoint sends errors as a list.
        Ok(Value::Array(items)) => items.iter().any(|item| item.get("error").is_some_and(is_error)),
        _ => false,
    };
    if reports {
        return Err(error::from_event(data));
    }
    if frame.name().is_empty() || may_be_own(data) {
        return Err(ProviderError::new(ProviderErrorKind::Decoding, what).with_source(cause).with_body(data));
    }
    Ok(())
}

/// Returns whether unparsable data may still be part of the response, although the wire format does not know the
/// event's name. Such data is JSON of another shape, JSON with half of a surrogate pair, or truncated JSON.
pub(super) fn may_be_own(data: &str) -> bool {
    match serde_json::from_str::<IgnoredAny>(data) {
        Ok(_) => data.starts_with('{'),
        Err(error) => error.is_eof() && data.starts_with(['{', '[']),
    }
}

/// Returns whether an event without any member of a response reports a failure.
fn is_report(event: &Map<String, Value>) -> bool {
    let speaks = || ["message", "msg"].iter().any(|key| !text_at(event, key).is_empty());
    is_named_report(event) || name_of(event).is_none() && speaks()
}

/// Returns whether the members of an event report a failure explicitly.
fn is_named_report(event: &Map<String, Value>) -> bool {
    let has_errors = event.get("errors").and_then(Value::as_array).is_some_and(|errors| !errors.is_empty());
    let has_error = |member: &Value| member.get("error").is_some_and(is_error);
    has_errors
        || event.get("error").is_some_and(is_error)
        // An event of a known kind may quote the failure of something else, such as a tool.
        || name_of(event).is_none() && event.values().any(has_error)
        || name_of(event).is_some_and(|name| name.to_ascii_lowercase().ends_with("error"))
}

/// Returns the name of the event's kind, as stated in the event.
fn name_of(event: &Map<String, Value>) -> Option<&str> {
    ["type", "object", "event"].iter().map(|key| text_at(event, key)).find(|name| !name.is_empty())
}

fn text_at<'v>(event: &'v Map<String, Value>, key: &str) -> &'v str {
    event.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Rewrites an event. Two kinds of members become strings: usage that is unreadable, and arguments that are JSON values
/// other than strings. As a result, arguments keep repeated keys and any depth. If any other key is repeated, its last
/// value is used. Returns `None` if the event is not JSON.
pub(super) fn tamed(json: &str) -> Option<String> {
    let mut tame = String::with_capacity(json.len() + 64);
    write_tame(serde_json::from_str(json).ok()?, 0, &mut tame)?;
    Some(tame)
}

fn write_tame(value: &RawValue, depth: usize, to: &mut String) -> Option<()> {
    let json = value.get();
    match json.as_bytes() {
        [b'{', ..] if depth < MAX_DEPTH => {
            let JsonMembers(members) = serde_json::from_str(json).ok()?;
            let kind = members.iter().find(|(key, _)| key == "type");
            let kind: Option<String> = kind.and_then(|(_, kind)| serde_json::from_str(kind.get()).ok());
            to.push('{');
            for (at, (key, value)) in members.iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                to.push_str(&serde_json::to_string(key).ok()?);
                to.push(':');
                if becomes_text(key, kind.as_deref(), value.get()) {
                    to.push_str(&serde_json::to_string(value.get()).ok()?);
                } else {
                    write_tame(value, depth + 1, to)?;
                }
            }
            to.push('}');
        }
        [b'[', ..] if depth < MAX_DEPTH => {
            let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
            to.push('[');
            for (at, item) in items.into_iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                write_tame(item, depth + 1, to)?;
            }
            to.push(']');
        }
        _ => to.push_str(json),
    }
    Some(())
}

/// Returns the JSON text of an object with other names for its members. `names` has the new names by the old names.
/// Returns `None` if the text is not a JSON object.
pub(super) fn renamed(json: &str, names: &HashMap<String, String>) -> Option<String> {
    let JsonMembers(members) = serde_json::from_str(json).ok()?;
    let members = members.into_iter().map(|(key, value)| {
        let key = Value::from(names.get(&key).cloned().unwrap_or(key));
        format!("{key}:{value}")
    });
    Some(format!("{{{}}}", members.collect::<Vec<_>>().join(",")))
}

/// Returns whether the member `key` in an object of type `kind` becomes a string.
fn becomes_text(key: &str, kind: Option<&str>, json: &str) -> bool {
    match key {
        "arguments" | "args" => matches!(kind, None | Some("function_call")) && is_bare(json),
        // Calls of tools that the service itself runs have inputs too. They are sent back unchanged, so they must not
        // become strings.
        "input" => kind == Some("tool_use") && is_bare(json) && !is_empty_object(json),
        "usage" | "usageMetadata" => serde_json::from_str::<Value>(json).is_err(),
        _ => false,
    }
}

/// Returns whether these arguments are a JSON value other than a string or null.
fn is_bare(json: &str) -> bool {
    !json.starts_with(['"', 'n'])
}

/// Returns whether this JSON is an empty object, which is the usual placeholder for an input that follows.
pub(super) fn is_empty_object(json: &str) -> bool {
    json.strip_prefix('{').is_some_and(|rest| rest.trim_start() == "}")
}

/// The members of an object in their original order. Each key occurs once.
struct JsonMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonMembersVisitor;

        impl<'de> Visitor<'de> for JsonMembersVisitor {
            type Value = JsonMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<JsonMembers<'de>, M::Error> {
                let mut members: Vec<(String, &'de RawValue)> = Vec::new();
                let mut places = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    let place = *places.entry(key.clone()).or_insert(members.len());
                    match members.get_mut(place) {
                        Some((_, known)) => *known = value,
                        None => members.push((key, value)),
                    }
                }
                Ok(JsonMembers(members))
            }
        }

        deserializer.deserialize_map(JsonMembersVisitor)
    }
}

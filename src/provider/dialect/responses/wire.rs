//! The shapes of the events. They borrow from the frame if possible. Compatible servers omit members, set them to null
//! or send values of another type. A value that cannot be read is treated as absent.

use std::borrow::Cow;

use serde::{Deserialize, de};
use serde_json::{Map, Value};

use crate::{
    message::Usage,
    provider::dialect::{
        counts::Counts,
        lenient::{Count, Text},
    },
};

/// An event of any kind, or a whole response that was not streamed. The struct has the members of all kinds.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(super) object: Text<'a>,
    #[serde(borrow, default)]
    pub(super) item_id: Text<'a>,
    #[serde(default)]
    pub(super) output_index: Count,
    #[serde(default)]
    pub(super) content_index: Count,
    #[serde(default)]
    pub(super) summary_index: Count,
    #[serde(borrow, default)]
    pub(super) delta: Text<'a>,
    /// The complete text of a part, after its deltas.
    #[serde(borrow, default)]
    pub(super) text: Text<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Text<'a>,
    #[serde(default)]
    pub(super) item: Option<Box<Value>>,
    #[serde(default)]
    pub(super) response: Option<Box<Value>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

impl Event<'_> {
    /// Returns whether the event contains, or may contain, the arguments of a call as a JSON object. Parsing such
    /// arguments into a map would lose repeated keys.
    pub(super) fn has_whole_arguments(&self) -> bool {
        let has_arguments = |item: &Value| {
            text(item, "type") == "function_call" && item.get("arguments").is_some_and(Value::is_object)
        };
        let output = self.response.as_deref().map_or(&[][..], |response| list(response, "output"));
        self.item.as_deref().is_some_and(has_arguments)
            || output.iter().any(has_arguments)
            || self.object.as_str() == "response"
    }

    /// Returns the id and the index of the item that the event belongs to, as far as the event contains them.
    pub(super) fn place(&self) -> ItemRef<'_> {
        ItemRef { id: self.item_id.as_str(), index: self.output_index.0 }
    }
}

/// Takes the string out of a text, without copying an owned string.
pub(super) fn take(text: &mut Text<'_>) -> String {
    std::mem::take(text).into_text().map(Cow::into_owned).unwrap_or_default()
}

/// A reference to an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct ItemRef<'a> {
    /// The id of the item. Empty if the event has none.
    pub(super) id: &'a str,
    /// The position of the item in the output.
    pub(super) index: Option<u64>,
}

/// Parses an event from its JSON text.
pub(super) fn parse(data: &str) -> Result<Event<'_>, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    if !data.starts_with('{') {
        return Err(de::Error::custom("a JSON object was expected"));
    }
    serde_json::from_str(data)
}

/// Returns whether the wire format does not define an event of this name.
pub(super) fn is_foreign(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("response.")
}

/// Returns the string at `key`, or an empty string if it is absent.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the list at `key`, or an empty list if it is absent.
pub(super) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the data that is needed, in addition to the name and the arguments, to send a call back unchanged. This data
/// is the namespace of a tool that the service found by search, and the caller if a program of the service made the
/// call.
pub(super) fn call_signature(item: &Value) -> Option<String> {
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

/// Returns the usage of a response. The service counts tokens that were read from or written to a cache as part of the
/// prompt, so they are subtracted.
pub(super) fn usage(counts: &mut Counts<'_>) -> Option<Usage> {
    if counts.is_empty() {
        return None;
    }
    let prompt = counts.count(&["input_tokens"]).unwrap_or(0);
    let cache_read = counts.count(&["input_tokens_details", "cached_tokens"]).unwrap_or(0).min(prompt);
    // OpenRouter reports the tokens that were written to the cache under this name.
    let written = counts.count(&["input_tokens_details", "cache_write_tokens"]).unwrap_or(0);
    let cache_write = written.min(prompt - cache_read);
    let reasoning = counts.count(&["output_tokens_details", "reasoning_tokens"]).unwrap_or(0);
    Some(Usage {
        input: prompt - cache_read - cache_write,
        cache_read,
        cache_write,
        output: counts.count(&["output_tokens"]).unwrap_or(0).max(reasoning),
        reasoning,
        // OpenRouter reports the cost of the request, in US dollars.
        cost: counts.amount(&["cost"]),
    })
}

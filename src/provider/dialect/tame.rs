//! Rewrites events in which the arguments of a tool call, or the usage, make a strict parser fail or lose data. These
//! two members must not cause the response to fail.

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// The greatest depth in an event at which the arguments of a tool call are found.
const MAX_DEPTH: usize = 16;

/// Rewrites an event. Two kinds of members become strings: usage that is unreadable, and arguments that are JSON values
/// other than strings. As a result, arguments keep repeated keys and any depth. If any other key is repeated, its last
/// value is used. Returns `None` if the event is not JSON.
pub(super) fn tamed(json: &str) -> Option<String> {
    let mut tame = String::with_capacity(json.len() + 64);
    write(serde_json::from_str(json).ok()?, 0, &mut tame)?;
    Some(tame)
}

fn write(value: &RawValue, depth: usize, to: &mut String) -> Option<()> {
    let json = value.get();
    match json.as_bytes() {
        [b'{', ..] if depth < MAX_DEPTH => {
            let Members(members) = serde_json::from_str(json).ok()?;
            let kind = members.iter().find(|(key, _)| key == "type");
            let kind: Option<String> = kind.and_then(|(_, kind)| serde_json::from_str(kind.get()).ok());
            to.push('{');
            for (at, (key, value)) in members.iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                to.push_str(&serde_json::to_string(key).ok()?);
                to.push(':');
                if is_text(key, kind.as_deref(), value.get()) {
                    to.push_str(&serde_json::to_string(value.get()).ok()?);
                } else {
                    write(value, depth + 1, to)?;
                }
            }
            to.push('}');
        }
        [b'[', ..] if depth < MAX_DEPTH => {
            let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
            to.push('[');
            for (at, item) in items.into_iter().enumerate() {
                to.push_str(if at > 0 { "," } else { "" });
                write(item, depth + 1, to)?;
            }
            to.push(']');
        }
        _ => to.push_str(json),
    }
    Some(())
}

/// Returns whether the member `key` in an object of type `kind` becomes a string.
fn is_text(key: &str, kind: Option<&str>, json: &str) -> bool {
    match key {
        "arguments" | "args" => matches!(kind, None | Some("function_call")) && is_bare(json),
        // Calls of tools that the service itself runs have inputs too. They are sent back unchanged, so they must not
        // become strings.
        "input" => kind == Some("tool_use") && is_bare(json) && !is_empty(json),
        "usage" | "usageMetadata" => serde_json::from_str::<serde_json::Value>(json).is_err(),
        _ => false,
    }
}

/// Returns whether these arguments are a JSON value other than a string or null.
fn is_bare(json: &str) -> bool {
    !json.starts_with(['"', 'n'])
}

/// Returns whether this JSON is an empty object, which is the usual placeholder for an input that follows.
fn is_empty(json: &str) -> bool {
    json.strip_prefix('{').is_some_and(|rest| rest.trim_start() == "}")
}

/// The members of an object in their original order. Each key occurs once.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members<'de>, M::Error> {
                let mut members: Vec<(String, &'de RawValue)> = Vec::new();
                let mut places = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                    let place = *places.entry(key.clone()).or_insert(members.len());
                    match members.get_mut(place) {
                        Some((_, known)) => *known = value,
                        None => members.push((key, value)),
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

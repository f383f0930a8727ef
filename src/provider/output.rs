//! Reads responses to requests with an output schema. If a response does not fit the schema, builds the history for
//! another request. The code performs no I/O. It is used by agents and by plain models.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Map, Value};

use super::{OutputSchema, StopReason, dialect::is_commentary};
use crate::{
    message::{Content, History, Message, Text, Timestamp},
    tool::{
        Schema,
        walk::{includes_type, parts},
    },
};

/// The default maximum number of times that a response is requested again because it does not fit.
const RETRIES: u32 = 3;

/// The maximum number of positions that are tried, since each may cost a scan of the rest of the text.
const MAX_TRIES: usize = 64;

/// The maximum number of references and alternatives that are followed, since a schema may refer to itself.
const MAX_STEPS: usize = 64;

/// The member in which a value that is not an object is wrapped, for services that only generate objects.
pub(super) const WRAPPER: &str = "value";

/// Returns the value in a response's text if it fits the schema. Removes what the rewritten schema has added: nulls of
/// optional properties that do not accept null, and the object around a value that is not an object.
///
/// If `enforced` is set, the service has enforced the schema. Otherwise the value may be surrounded by prose. Commentary
/// before the final answer is ignored, because no schema applies to it.
///
/// # Errors
///
/// If no value fits the schema, returns the problem in words that a model can act on.
pub(crate) fn read(answer: &Message, output: &OutputSchema, enforced: bool) -> Result<Value, String> {
    let texts = final_texts(answer);
    let text = texts.concat();
    let (whole, no_json) = match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(format!("the response is not JSON: {error}"))),
    };
    let among = || if enforced { Vec::new() } else { values_among(&texts, &text) };
    let mut problem = None;
    for value in whole.into_iter().chain(std::iter::once_with(among).flatten()) {
        match fitted(value, &output.schema) {
            Ok(value) => return Ok(value),
            Err(words) => {
                problem.get_or_insert(words);
            }
        }
    }
    Err(problem.or(no_json).unwrap_or_default())
}

/// Returns the texts of a response without its commentary. If the response is only commentary, returns all texts.
fn final_texts(answer: &Message) -> Vec<&str> {
    let texts = answer.content.iter().filter_map(|block| match block {
        Content::Text(text) => Some(text),
        _ => None,
    });
    let (commentary, last): (Vec<&Text>, Vec<&Text>) = texts.partition(|text| is_commentary(answer, text));
    let texts = if last.is_empty() { commentary } else { last };
    texts.into_iter().map(|text| text.text.as_str()).collect()
}

/// Returns the value in the form of the original schema.
fn fitted(value: Value, schema: &Schema) -> Result<Value, String> {
    let Err(problem) = schema.validate(&value) else {
        return Ok(value);
    };
    let stripped = without_nulls(&value, schema.as_value());
    let problem = match schema.validate(&stripped) {
        Ok(()) => return Ok(stripped),
        Err(_) if stripped == value => problem,
        Err(other) => other,
    };
    match value {
        Value::Object(mut map) if map.len() == 1 => match map.shift_remove(WRAPPER) {
            Some(inner) => {
                let stripped = without_nulls(&inner, schema.as_value());
                [inner, stripped].into_iter().find(|inner| schema.validate(inner).is_ok()).ok_or(problem)
            }
            None => Err(problem),
        },
        _ => Err(problem),
    }
}

/// Responses that did not fit and were requested again. They are part of requests but never of the history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutputRetryMessages {
    /// The number of repeated requests so far.
    count: u32,
    /// The responses, each followed by a note about its problem.
    exchange: Vec<Arc<Message>>,
}

impl OutputRetryMessages {
    /// Returns whether a response that ended for this reason may be requested again. A truncated or refused response is
    /// not requested again, because the next response would end in the same way.
    pub(crate) fn allow_another(&self, reason: &StopReason, limit: Option<u32>) -> bool {
        matches!(reason, StopReason::Stop | StopReason::ToolUse) && self.count < limit.unwrap_or(RETRIES)
    }

    /// Adds a response that has to be requested again.
    pub(crate) fn add(&mut self, answer: Message, problem: &str, now: Timestamp) {
        let note = format!(
            "This answer does not have the requested shape:\n{problem}\n\
             Give the whole answer again, corrected, in the requested form and with nothing else."
        );
        self.count = self.count.saturating_add(1);
        self.exchange.push(Arc::new(answer));
        self.exchange.push(Arc::new(Message { timestamp: now, ..Message::user(note) }));
    }

    /// Drops the corrections because the conversation continues without them. The number of repeated requests is kept.
    pub(crate) fn forget(&mut self) {
        self.exchange = Vec::new();
    }

    /// Returns whether no response has been requested again.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the messages that follow the conversation.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.exchange.iter()
    }

    /// Returns the conversation followed by the corrections.
    pub(crate) fn after(&self, history: &History) -> History {
        let mut history = history.clone();
        history.extend(self.exchange.iter().cloned());
        history
    }
}

/// Returns the JSON values in a response: first text blocks that are JSON, then code fences that are JSON, then objects
/// and arrays inside text. In each of these groups, later values come first, because models often reason in text before
/// the final value.
fn values_among(texts: &[&str], text: &str) -> Vec<Value> {
    let parse = |text: &str| serde_json::from_str::<Value>(text.trim()).ok();
    let mut values: Vec<Value> = texts.iter().rev().copied().filter_map(parse).collect();
    let mut fenced: Vec<Value> = fences(text).filter_map(parse).collect();
    values.extend(fenced.drain(..).rev());
    let mut among: Vec<Value> = among_words(text);
    values.extend(among.drain(..).rev());
    values
}

/// Returns the content of code fences of three backticks, without the language.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split("```").enumerate().filter(|(index, _)| index % 2 == 1).map(|(_, piece)| piece);
    pieces.take(MAX_TRIES).map(|piece| match piece.split_once('\n') {
        Some((language, rest)) if language.trim().chars().all(char::is_alphanumeric) => rest,
        _ => piece,
    })
}

/// Returns the outermost JSON objects and arrays in a text.
fn among_words(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut rest = text;
    for _ in 0..MAX_TRIES {
        let Some(at) = rest.find(['{', '[']) else { break };
        rest = &rest[at..];
        let mut stream = Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(value)) = stream.next() {
            rest = &rest[stream.byte_offset()..];
            values.push(value);
        } else {
            // No JSON value begins at this bracket, so skip it. Both kinds of brackets are one byte long.
            rest = &rest[1..];
        }
    }
    values
}

/// Returns the value without nulls that stand for absent properties. If a service requires every property, an optional
/// property is declared as nullable, so members are removed that are null although they are optional and not nullable in
/// the schema. If alternatives disagree, a null stays.
fn without_nulls(value: &Value, schema: &Value) -> Value {
    NullStripper { root: schema }.strip(value, &[schema])
}

struct NullStripper<'a> {
    root: &'a Value,
}

impl<'a> NullStripper<'a> {
    /// Returns the value without nulls that stand for absent properties. `schemas` are the schemas that may apply to
    /// the value.
    fn strip(&self, value: &Value, schemas: &[&'a Value]) -> Value {
        let mut all = Vec::new();
        for schema in schemas {
            self.gather(schema, value, &mut all);
        }
        match value {
            Value::Object(map) => Value::Object(self.object(map, &all)),
            Value::Array(items) => {
                let strip = |(index, item): (usize, &Value)| {
                    let own: Vec<&Value> =
                        all.iter().filter_map(|schema| item_schema(schema, index)).collect();
                    self.strip(item, &own)
                };
                items.iter().enumerate().map(strip).collect()
            }
            other => other.clone(),
        }
    }

    fn object(&self, map: &Map<String, Value>, all: &[&'a Map<String, Value>]) -> Map<String, Value> {
        let mut out = Map::new();
        for (name, member) in map {
            let own: Vec<&Value> = all.iter().filter_map(|schema| property(schema, name)).collect();
            let stands_for_nothing = member.is_null()
                && !own.is_empty()
                && !own.iter().any(|schema| takes_null(schema, self.root))
                && !all.iter().any(|schema| requires(schema, name));
            if !stands_for_nothing {
                out.insert(name.clone(), self.strip(member, &own));
            }
        }
        out
    }

    /// Adds the schema to `all`, and the schemas that it refers to, its parts, and those alternatives that can apply.
    fn gather(&self, schema: &'a Value, value: &Value, all: &mut Vec<&'a Map<String, Value>>) {
        let Value::Object(schema) = schema else { return };
        if all.len() >= MAX_STEPS {
            return;
        }
        all.push(schema);
        if let Some(target) = resolve(schema, self.root) {
            self.gather(target, value, all);
        }
        for part in parts(schema, "allOf") {
            self.gather(part, value, all);
        }
        for alternative in ["anyOf", "oneOf"].into_iter().flat_map(|key| parts(schema, key)) {
            if may_be_meant(alternative, value, self.root) {
                self.gather(alternative, value, all);
            }
        }
    }
}

fn resolve<'a>(schema: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}

fn requires(schema: &Map<String, Value>, name: &str) -> bool {
    parts(schema, "required").iter().any(|required| required == name)
}

fn item_schema(schema: &Map<String, Value>, index: usize) -> Option<&Value> {
    let first = schema.get("prefixItems").and_then(|items| items.get(index));
    first.or_else(|| schema.get("items").filter(|items| !items.is_array()))
}

/// Returns whether the schema accepts null, judged by simple keywords. If that is unclear, returns `true`.
pub(super) fn takes_null(schema: &Value, root: &Value) -> bool {
    null_fits(schema, root, MAX_STEPS)
}

fn null_fits(schema: &Value, root: &Value, steps: usize) -> bool {
    let Value::Object(schema) = schema else {
        return *schema != Value::Bool(false);
    };
    let Some(steps) = steps.checked_sub(1) else {
        return true;
    };
    let fits = |schema: &Value| null_fits(schema, root, steps);
    includes_type(schema, "null") != Some(false)
        && schema.get("const").is_none_or(Value::is_null)
        && schema.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(&Value::Null))
        && resolve(schema, root).is_none_or(fits)
        && parts(schema, "allOf").iter().all(fits)
        && ["anyOf", "oneOf"]
            .into_iter()
            .all(|key| !schema.contains_key(key) || parts(schema, key).iter().any(fits))
}

/// Returns whether an alternative can apply to a value. An alternative can apply if the value has the alternative's
/// type and required members, and contains the constants that distinguish the alternative from others.
fn may_be_meant(alternative: &Value, value: &Value, root: &Value) -> bool {
    let Value::Object(schema) = alternative else {
        return true;
    };
    let kind = match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        // Values of other types have no members to remove, so every alternative can apply.
        _ => return true,
    };
    let target = resolve(schema, root).and_then(Value::as_object);
    [Some(schema), target].into_iter().flatten().all(|schema| {
        let has_kind = includes_type(schema, kind) != Some(false);
        let properties = schema.get("properties").and_then(Value::as_object);
        let has_constants = properties.into_iter().flatten().all(|(name, property)| {
            match (value.get(name), property.get("const"), property.get("enum")) {
                // A null may stand for an absent member, so it does not exclude the alternative.
                (Some(Value::Null), _, _) if !requires(schema, name) => true,
                (Some(member), Some(constant), _) => member == constant,
                (Some(member), None, Some(Value::Array(values))) => values.contains(member),
                _ => true,
            }
        });
        let mut required = parts(schema, "required").iter().filter_map(Value::as_str);
        let is_complete = kind == "array" || required.all(|name| value.get(name).is_some());
        has_kind && has_constants && is_complete
    })
}

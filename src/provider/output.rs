//! Reads responses to requests with an output schema. If a response does not fit the schema, builds the history for
//! another request. The code performs no I/O. It is used by agents and by plain models.

mod nulls;
mod prose;

use std::sync::Arc;

pub(super) use nulls::takes_null;
use nulls::without_nulls;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OutputSchema, StopReason};
use crate::{
    message::{History, Message, Timestamp},
    tool::Schema,
};

/// The default maximum number of times that a response is requested again because it does not fit.
const RETRIES: u32 = 3;

/// The member in which a value that is not an object is wrapped, for services that only generate objects.
pub(super) const WRAPPER: &str = "value";

/// Returns the value in a response's text if it fits the schema. Removes what the rewritten schema has added: nulls of
/// optional properties that do not accept null, and the object around a value that is not an object.
///
/// If `enforced` is set, the service has enforced the schema. Otherwise the value may be surrounded by prose.
///
/// # Errors
///
/// If no value fits the schema, returns the problem in words that a model can act on.
pub(crate) fn read(answer: &Message, output: &OutputSchema, enforced: bool) -> Result<Value, String> {
    let text = answer.text();
    let (whole, no_json) = match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(format!("the response is not JSON: {error}"))),
    };
    let among = || if enforced { Vec::new() } else { prose::values(answer, &text) };
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
pub(crate) struct Corrections {
    /// The number of repeated requests so far.
    count: u32,
    /// The responses, each followed by a note about its problem.
    exchange: Vec<Arc<Message>>,
}

impl Corrections {
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

    /// Returns the conversation followed by the corrections.
    pub(crate) fn after(&self, history: &History) -> History {
        let mut history = history.clone();
        history.extend(self.exchange.iter().cloned());
        history
    }
}

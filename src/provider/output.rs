//! Answers under an output schema: how they are read, and how an answer that does not fit is asked for again.
//! Pure, and the same for an agent and for a model alone.

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

/// How often an answer that does not fit is asked for again, where the options do not say.
const RETRIES: u32 = 3;

/// The member that holds a value which is no object, where only objects can be asked for.
pub(super) const WRAPPER: &str = "value";

/// The value in an answer's text, if it fits. What the rewriting of schemas adds is taken off again: nulls for
/// optional properties that take none, and the object around a value that is none.
///
/// `enforced` says that the service held the answer to the schema. Else the value may stand among prose.
///
/// # Errors
///
/// What is wrong, in words that a model can act on.
pub(crate) fn read(answer: &Message, output: &OutputSchema, enforced: bool) -> Result<Value, String> {
    let text = answer.text();
    let (whole, no_json) = match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(format!("the answer is no JSON: {error}"))),
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

/// The value as the schema wants it.
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

/// Answers that did not fit and were asked for again. They go into requests, and into no history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Corrections {
    /// Answers asked for again so far.
    count: u32,
    /// The answers, each with the note on what is wrong.
    exchange: Vec<Arc<Message>>,
}

impl Corrections {
    /// Whether an answer that ended for this reason may be asked for again. One that was cut or refused would be
    /// again.
    pub(crate) fn allow_another(&self, reason: &StopReason, limit: Option<u32>) -> bool {
        matches!(reason, StopReason::Stop | StopReason::ToolUse) && self.count < limit.unwrap_or(RETRIES)
    }

    /// Puts down an answer that is to be given again.
    pub(crate) fn add(&mut self, answer: Message, problem: &str, now: Timestamp) {
        let note = format!(
            "This answer does not have the requested shape:\n{problem}\n\
             Give the whole answer again, corrected, in the requested form and with nothing else."
        );
        self.count = self.count.saturating_add(1);
        self.exchange.push(Arc::new(answer));
        self.exchange.push(Arc::new(Message { timestamp: now, ..Message::user(note) }));
    }

    /// The conversation goes on another way than by the corrected answer. What was asked for again stays counted.
    pub(crate) fn forget(&mut self) {
        self.exchange = Vec::new();
    }

    /// Whether nothing was asked for again.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The conversation with the corrections behind it.
    pub(crate) fn after(&self, history: &History) -> History {
        let mut history = history.clone();
        history.extend(self.exchange.iter().cloned());
        history
    }
}

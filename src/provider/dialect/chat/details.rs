//! What is gathered beside the blocks of an answer.

use serde_json::{Map, Value};

use crate::{
    message::value_weight,
    provider::{ErrorKind, Fold, ProviderError},
};

/// The entries of `reasoning_details`, whose fragments share type and index. They have to go back in whole.
#[derive(Default)]
pub(super) struct Details {
    pub(super) entries: Vec<Value>,
    weight: usize,
}

impl Details {
    pub(super) fn add(&mut self, fragments: Value) -> Result<(), ProviderError> {
        self.weight += value_weight(&fragments);
        if self.weight > Fold::LIMIT {
            return Err(ProviderError::new(ErrorKind::Decoding, "reasoning details without end"));
        }
        let Value::Array(fragments) = fragments else {
            return Ok(());
        };
        for fragment in fragments {
            let Value::Object(fragment) = fragment else { continue };
            match self.entries.last_mut() {
                Some(Value::Object(last)) if continues(last, &fragment) => join(last, fragment),
                _ => self.entries.push(Value::Object(fragment)),
            }
        }
        Ok(())
    }
}

fn continues(last: &Map<String, Value>, fragment: &Map<String, Value>) -> bool {
    let same = |key: &str| last.get(key).is_some_and(|value| Some(value) == fragment.get(key));
    same("type") && same("index") && !fragment.contains_key("data")
}

fn join(last: &mut Map<String, Value>, fragment: Map<String, Value>) {
    for (key, value) in fragment {
        match (last.get_mut(&key), value) {
            (Some(Value::String(text)), Value::String(more)) if key == "text" || key == "summary" => {
                text.push_str(&more);
            }
            (Some(_), Value::Null) => {}
            (_, value) => {
                last.insert(key, value);
            }
        }
    }
}

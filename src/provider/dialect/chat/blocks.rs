//! The blocks of an answer, and what is gathered beside them.

use serde_json::{Map, Value};

use crate::{
    message::value_weight,
    provider::{BlockStart, Delta, ErrorKind, Fold, ProviderError},
};

/// Kinds of blocks that grow without being named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
}

/// The blocks of the answer so far.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) count: usize,
    /// The block that grows.
    open: Option<Kind>,
    text: Option<usize>,
    thinking: Option<usize>,
}

impl Blocks {
    /// Beyond this number, text and thinking go on in their last blocks instead of making ever new ones: a
    /// service that alternates with each token would run into the limit of a message.
    const MANY: usize = 256;

    pub(super) fn of(&mut self, kind: Kind, deltas: &mut Vec<Delta>) -> usize {
        let last = if kind == Kind::Text { self.text } else { self.thinking };
        match last {
            Some(index) if self.open == Some(kind) || self.count >= Self::MANY => index,
            _ => {
                let index = self.item();
                self.open = Some(kind);
                let (block, last) = match kind {
                    Kind::Text => (BlockStart::Text, &mut self.text),
                    Kind::Thinking => (BlockStart::Thinking, &mut self.thinking),
                };
                *last = Some(index);
                deltas.push(Delta::Start { index, block });
                index
            }
        }
    }

    /// The place of a block that comes whole or by name. What grows behind it makes a block of its own.
    pub(super) fn item(&mut self) -> usize {
        self.open = None;
        self.count += 1;
        self.count - 1
    }
}

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

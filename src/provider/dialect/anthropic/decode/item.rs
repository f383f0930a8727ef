use serde_json::{Map, Value};

/// An opaque item as it grows: its start, and all that its deltas brought.
#[derive(Debug)]
pub(super) struct Item {
    data: Map<String, Value>,
    /// The JSON text of its input so far.
    input: String,
    changed: bool,
}

impl Item {
    pub(super) fn new(data: Map<String, Value>) -> Self {
        Self { data, input: String::new(), changed: false }
    }

    /// Takes a delta in. Input and citations have members of their own names to go to. Everything else goes
    /// to the member of its own name: text and lists grow, other values are replaced.
    pub(super) fn extend(&mut self, delta: Map<String, Value>) {
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("type", _) | (_, Value::Null) => {}
                ("partial_json", Value::String(json)) => self.input.push_str(&json),
                ("citation", citation) => self.grow("citations", Value::Array(vec![citation])),
                (key, value) => self.grow(key, value),
            }
        }
    }

    fn grow(&mut self, key: &str, value: Value) {
        self.changed = true;
        match (self.data.get_mut(key), value) {
            (Some(Value::String(before)), Value::String(more)) => before.push_str(&more),
            (Some(Value::Array(before)), Value::Array(more)) => before.extend(more),
            (_, value) => {
                self.data.insert(key.to_owned(), value);
            }
        }
    }

    /// The whole item, if it is more than its start; what it held goes with it.
    pub(super) fn take(&mut self) -> Option<Value> {
        if let Ok(input) = serde_json::from_str(&self.input) {
            self.changed = true;
            self.data.insert("input".to_owned(), input);
        }
        self.input = String::new();
        let data = std::mem::take(&mut self.data);
        std::mem::take(&mut self.changed).then_some(Value::Object(data))
    }
}

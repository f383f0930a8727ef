use serde_json::{Map, Value};

/// A growing provider item: its start, and everything that its deltas added.
#[derive(Debug)]
pub(super) struct Item {
    data: Map<String, Value>,
    /// The JSON text of the item's input so far.
    input: String,
    changed: bool,
}

impl Item {
    pub(super) fn new(data: Map<String, Value>) -> Self {
        Self { data, input: String::new(), changed: false }
    }

    /// Adds a delta. Input and citations are added to the members `input` and `citations`. Every other value is added
    /// to the member of the same name: texts and lists grow, other values are replaced.
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

    /// Returns the whole item if it changed after its start. Afterwards, this value is empty.
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

use std::{fmt, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A compiled JSON Schema. Cheap to clone; serialised as the schema itself.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    value: Value,
}

/// A value that is no JSON Schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no valid JSON Schema: {0}")]
pub struct SchemaError(pub String);

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// The value is no JSON Schema, or refers to another document.
    pub fn new(value: Value) -> Result<Self, SchemaError> {
        Ok(Self(Arc::new(Inner { value })))
    }

    /// The schema of a Rust type.
    pub fn of<T: JsonSchema>() -> Self {
        todo!()
    }

    /// The schema itself.
    pub fn as_value(&self) -> &Value {
        &self.0.value
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// What is wrong, in words that a model can act on.
    pub fn validate(&self, _value: &Value) -> Result<(), String> {
        todo!()
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.value == other.0.value
    }
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.value, f)
    }
}

impl Serialize for Schema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Schema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

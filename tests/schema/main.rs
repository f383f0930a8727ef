//! The JSON Schemas of updates and commands: the descriptions, and JSON of real runs and wrong samples.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod descriptions;
mod runs;
mod samples;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::LazyLock,
    time::Duration,
};

use boon::{Compiler, SchemaIndex, Schemas};
use omni_agent::schema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A document of schemas, with a compiled schema for each of its types.
pub(crate) struct Document {
    value: Value,
    schemas: Schemas,
    types: BTreeMap<String, SchemaIndex>,
}

pub(crate) static UPDATES: LazyLock<Document> = LazyLock::new(|| Document::new(schema::UPDATES));
pub(crate) static COMMANDS: LazyLock<Document> = LazyLock::new(|| Document::new(schema::COMMANDS));

impl Document {
    fn new(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap();
        let url = "https://example.com/schema.json";
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.add_resource(url, value.clone()).unwrap();
        let mut compile = |place: &str| compiler.compile(&format!("{url}{place}"), &mut schemas).unwrap();
        compile("");
        let names = value["$defs"].as_object().unwrap().keys();
        let types = names.map(|name| (name.clone(), compile(&format!("#/$defs/{name}")))).collect();
        Self { value, schemas, types }
    }

    /// Checks JSON against the type with this name.
    pub(crate) fn check(&self, name: &str, json: &Value) -> Result<(), String> {
        self.schemas.validate(json, self.types[name]).map_err(|error| format!("{error:#}"))
    }

    /// Checks a value's JSON against the type with this name, and that the JSON is read as the same value. Returns the
    /// JSON.
    pub(crate) fn take<T: Serialize + DeserializeOwned>(&self, name: &str, value: &T) -> Value {
        let text = serde_json::to_string(value).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        self.check(name, &json).unwrap_or_else(|error| panic!("{name}: {error}\n{json:#}"));
        let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{json:#}"));
        assert_eq!(serde_json::to_string(&read).unwrap(), text, "the JSON is read as another value");
        json
    }

    /// Returns the tags of the alternatives of a type.
    pub(crate) fn tags(&self, name: &str) -> BTreeSet<String> {
        let kinds = self.value["$defs"][name]["oneOf"].as_array().unwrap();
        let tag = |kind: &Value| kind["properties"]["type"]["const"].as_str().unwrap().to_owned();
        kinds.iter().map(tag).collect()
    }
}

/// Awaits `future`, and fails the test if that takes longer than an hour of paused time.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(1), future).await.expect("nothing came")
}

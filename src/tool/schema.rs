//! JSON Schemas, compiled with the `boon` crate within limits of time and stack.
//!
//! `boon` does not bound its recursion, so this module does. The crate `jsonschema` would add 32 crates to the default
//! build. Documents outside of a schema are never loaded.

mod cost;
mod prepare;
mod problem;
pub(crate) mod walk;

use std::{
    error::Error,
    fmt,
    sync::{Arc, OnceLock},
};

use boon::{CompileError, Compiler, Draft, SchemaIndex, Schemas, UrlLoader};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use self::cost::{SchemaCheckExecution, SchemaCostModel};
use crate::{panics::contained, text::clip};

/// The maximum nesting depth of a schema or a checked value. `serde_json` doesn't parse text that is nested more
/// deeply.
const MAX_DEPTH: usize = 128;

/// The maximum nesting depth of a schema that is compiled on the caller's own stack. Each level needs up to fifty
/// kilobytes in a debug build.
const FEW_LEVELS: usize = 6;

/// The stack size of a thread for deeply nested schemas and values. Only the used part of the stack needs memory.
const LARGE_STACK: usize = 64 * 1024 * 1024;

/// The address by which the compiler identifies the schema. Nothing is loaded from this address.
const LOCATION: &str = "schema:///input";

/// A compiled JSON Schema. It is cheap to clone, and its serialised form is the schema's JSON.
///
/// Drafts 4 to 2020-12 are supported. A schema without `$schema` is read as draft 2020-12. A schema must be
/// self-contained: `$ref` may only point into the schema itself (`#/$defs/city`), and nothing is ever loaded from a
/// file or the network.
///
/// Some keywords are sent to the model but not checked, because they can't be checked exactly: `format`, a `multipleOf`
/// that is not a whole number, and a `pattern` with look-around, back-references or a `[` in a class.
///
/// The time and the stack space for compiling and checking are limited. [`Schema::new`] refuses a schema that would
/// exceed these limits, and [`Schema::validate`] refuses a value that would exceed them.
///
/// ```
/// use omni_agent::tool::Schema;
/// use serde_json::json;
///
/// let schema = Schema::new(json!({
///     "type": "object",
///     "properties": { "days": { "type": "integer", "minimum": 1 } },
///     "required": ["city"],
/// }))?;
/// assert_eq!(schema.validate(&json!({ "city": "Oslo", "days": 3 })), Ok(()));
/// assert_eq!(
///     schema.validate(&json!({ "days": 0 })).unwrap_err(),
///     "- at the top level: missing required property \"city\"\n- at /days: must be at least 1, got 0",
/// );
/// # Ok::<(), omni_agent::tool::SchemaError>(())
/// ```
#[derive(Clone)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "schemars::Schema", description = "A JSON Schema.")
)]
pub struct Schema(Arc<SchemaShared>);

struct SchemaShared {
    value: Value,
    /// The compiled schema. An error is possible only for a schema from [`Schema::of`], which must not fail. Such an
    /// error is reported when the schema is used.
    compiled: Result<CompiledSchema, SchemaError>,
    /// The schema in the form that services get, or `None` if they get the unchanged schema.
    offered: OnceLock<Option<Value>>,
}

struct CompiledSchema {
    schemas: Schemas,
    root: SchemaIndex,
    cost: SchemaCostModel,
}

/// The reason why a value can't be used as a JSON Schema.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unusable JSON Schema: {0}")]
pub struct SchemaError(pub String);

crate::error::debug_as_chain!(SchemaError);

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// Fails for any of these reasons:
    ///
    /// - The value is not a JSON Schema.
    /// - It refers to another document or to a place that does not exist.
    /// - It uses a reference that can't be resolved from the schema's text alone (`$dynamicRef`, `$recursiveRef`,
    ///   anchors, an `$id` below the top level).
    /// - It has a regular expression that the engine does not support.
    /// - It is so large, or its subschemas refer to each other so often, that checking a value could take too long.
    pub fn new(value: Value) -> Result<Self, SchemaError> {
        let Some(size) = SchemaSize::of(&value) else {
            dismantle(value);
            return Err(SchemaError(format!("it nests deeper than {MAX_DEPTH} levels")));
        };
        let compiled = if size.depth <= FEW_LEVELS {
            CompiledSchema::new(&value)
        } else {
            on_large_stack(|| CompiledSchema::new(&value)).unwrap_or_else(|error| Err(SchemaError(error)))
        }?;
        Ok(Self(Arc::new(SchemaShared { value, compiled: Ok(compiled), offered: OnceLock::new() })))
    }

    /// Derives the schema of a Rust type, without `$schema`. Where possible, references are replaced by the schemas to
    /// which they point, because model services differ in the references that they support.
    ///
    /// If the type's own [`JsonSchema`] implementation returns an unusable schema, the result is an empty schema that
    /// fails when it is used: a [`ToolSet`](super::ToolSet) refuses the schema, and [`validate`](Schema::validate)
    /// returns an error.
    ///
    /// # Panics
    ///
    /// Panics if the type's [`JsonSchema`] implementation panics. Derived implementations don't panic.
    pub fn of<T: JsonSchema>() -> Self {
        Self::derived(|value| value, derive::<T>)
    }

    /// Derives the schema of a Rust type for use as a tool's input. If the schema of the type itself has no `type`, the
    /// returned schema requires an object. Several services refuse a tool whose schema has no `type` or no
    /// `properties`.
    pub(crate) fn of_input<T: JsonSchema>() -> Self {
        Self::derived(as_input, derive::<T>)
    }

    fn derived(adapt: fn(Value) -> Value, derive: fn(bool) -> Value) -> Self {
        Self::new(adapt(derive(true)))
            // With all references replaced, the schema may exceed a limit. Then keep the references, which make the
            // schema smaller.
            .or_else(|_| Self::new(adapt(derive(false))))
            .unwrap_or_else(|error| {
                let value = Value::Object(Map::new());
                Self(Arc::new(SchemaShared { value, compiled: Err(error), offered: OnceLock::new() }))
            })
    }

    /// Returns the schema's JSON, as it was given.
    pub fn as_value(&self) -> &Value {
        &self.0.value
    }

    /// Returns the schema as it is offered to services. This is the result of `make`, or the schema itself if `make`
    /// returns `None`. The result is cached, because it is needed for every request and `make` is expensive.
    pub(crate) fn offered(&self, make: impl FnOnce(&Value) -> Option<Value>) -> &Value {
        self.0.offered.get_or_init(|| make(&self.0.value)).as_ref().unwrap_or(&self.0.value)
    }

    /// Returns why the schema can't be used. Only a schema from [`Schema::of`] can be unusable.
    pub fn error(&self) -> Option<&SchemaError> {
        self.0.compiled.as_ref().err()
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// Returns the problems, in words that a model can act on. Each line describes one problem: its place as a JSON
    /// pointer, and what is expected there. The text contains at most ten problems and about two thousand characters.
    pub fn validate(&self, value: &Value) -> Result<(), String> {
        let compiled = self.0.compiled.as_ref().map_err(ToString::to_string)?;
        let size = SchemaSize::of(value)
            .ok_or_else(|| format!("- at the top level: nests deeper than {MAX_DEPTH} levels"))?;
        match compiled.cost.judge(value, size.values) {
            SchemaCheckExecution::Shallow => compiled.check(value),
            SchemaCheckExecution::Deep => on_large_stack(|| compiled.check(value)).unwrap_or_else(Err),
            SchemaCheckExecution::TooMuch => {
                Err("- at the top level: too large or too deeply nested to be checked".to_owned())
            }
        }
    }
}

impl CompiledSchema {
    fn new(value: &Value) -> Result<Self, SchemaError> {
        let prepared = prepare::prepare(value)?;
        let mut compiler = Compiler::new();
        compiler.set_default_draft(Draft::V2020_12);
        compiler.use_loader(Box::new(RefusingSchemaLoader));
        let mut schemas = Schemas::new();
        // In debug builds, the compiler panics on some schemas. In other builds, it returns an error for them.
        let root = contained(|| {
            compiler.add_resource(LOCATION, prepared.document).map_err(|error| describe(&error))?;
            compiler.compile(LOCATION, &mut schemas).map_err(|error| describe(&error))
        })
        .unwrap_or_else(|_| Err(SchemaError("the schema compiler panicked".to_owned())))?;
        Ok(Self { schemas, root, cost: prepared.cost })
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.root).map_err(|error| problem::describe(&error))
    }
}

/// Runs `work` on a thread with a large stack.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("schema".to_owned()).stack_size(LARGE_STACK);
        match thread.spawn_scoped(scope, work).map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(format!("the thread to process it could not be started: {error}")),
        }
    })
}

fn describe(error: &CompileError) -> SchemaError {
    SchemaError(match error {
        CompileError::ValidationError { src, .. } => problem::describe(src),
        CompileError::LoadUrlError { url, src } => format!("{url:?}: {src}"),
        CompileError::Bug(cause) => clip(&cause.to_string(), 500).into_owned(),
        _ => clip(&format!("{error:#}"), 500).into_owned(),
    })
}

struct RefusingSchemaLoader;

impl UrlLoader for RefusingSchemaLoader {
    fn load(&self, _url: &str) -> Result<Value, Box<dyn Error>> {
        Err("a schema can't refer to another document".into())
    }
}

fn derive<T: JsonSchema>(inline: bool) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = inline;
    });
    let mut value = settings.into_generator().into_root_schema_for::<T>().to_value();
    // The title is removed if it is only the name of the Rust type, which does not help a model. `schemars` adds this
    // title if the type has no other title.
    if let Value::Object(schema) = &mut value
        && schema.get("title").and_then(Value::as_str) == Some(&*T::schema_name())
    {
        schema.shift_remove("title");
    }
    value
}

fn as_input(mut value: Value) -> Value {
    if let Value::Object(schema) = &mut value {
        let anything = schema.is_empty();
        let is_object = schema.entry("type").or_insert_with(|| "object".into()) == "object";
        if is_object {
            schema.entry("properties").or_insert_with(|| Map::new().into());
        }
        if anything {
            schema.insert("additionalProperties".into(), true.into());
        }
    }
    value
}

struct SchemaSize {
    /// The total number of JSON values, including the outermost value.
    values: usize,
    /// The depth of nesting.
    depth: usize,
}

impl SchemaSize {
    /// Returns the size of a value, or `None` if the value is nested too deeply.
    fn of(value: &Value) -> Option<Self> {
        let mut size = Self { values: 0, depth: 0 };
        size.add(value, 1)?;
        Some(size)
    }

    fn add(&mut self, value: &Value, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.values += 1;
        self.depth = self.depth.max(depth);
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.add(item, depth + 1)),
            Value::Object(map) => map.values().try_for_each(|value| self.add(value, depth + 1)),
            _ => Some(()),
        }
    }
}

/// Drops a value of any depth without recursion. An ordinary drop needs stack space for each level.
fn dismantle(value: Value) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => open.extend(map.into_iter().map(|(_, value)| value)),
            _ => {}
        }
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

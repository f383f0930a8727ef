//! JSON Schemas, compiled with the `boon` crate behind a guard.

mod cost;
mod pattern;
mod prepare;
mod problem;
mod reference;

use std::{
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};

use boon::{CompileError, Compiler, Draft, SchemaIndex, Schemas, UrlLoader};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use self::cost::{CostModel, Verdict};
pub(crate) use self::reference::resolve;
use super::cap::clip;

/// How deep a schema or a checked value may nest; what `serde_json` reads from text nests no deeper.
const MAX_DEPTH: usize = 128;

/// How deep a schema may nest to be compiled on any thread's stack: each level takes up to fifty kilobytes in a
/// debug build.
const FEW_LEVELS: usize = 6;

/// A stack for what may nest deep. Only what is used of it becomes memory.
const LARGE_STACK: usize = 64 * 1024 * 1024;

/// Where the compiler believes the schema to be. Nothing is ever loaded from there.
const LOCATION: &str = "schema:///input";

/// A compiled JSON Schema. Cheap to clone; serialised as the schema itself.
///
/// Drafts 4 to 2020-12 are understood; a schema that does not say by `$schema` which one it follows is read
/// as 2020-12. A schema is self-contained: `$ref` may point into it (`#/$defs/city`), to nothing else, and
/// nothing is ever loaded from a file or the network. `format`, a `multipleOf` that is no whole number, and a
/// `pattern` with look-around or back-references are shown to the model and not checked, since no check of
/// them is exact.
///
/// Compiling and checking take bounded time and stack, whatever the schema and the value: a schema that would
/// take more is refused by [`Schema::new`], a value by [`Schema::validate`].
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
pub struct Schema(Arc<Inner>);

struct Inner {
    value: Value,
    /// The error is for [`Schema::of`], which must not fail: whoever uses the schema learns of it then.
    compiled: Result<Compiled, SchemaError>,
    /// As it is offered, if that is another than itself.
    offered: OnceLock<Option<Value>>,
}

struct Compiled {
    schemas: Schemas,
    root: SchemaIndex,
    cost: CostModel,
}

/// A value that can't be used as a JSON Schema, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unusable JSON Schema: {0}")]
pub struct SchemaError(pub String);

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// The value is no JSON Schema, refers to another document or to nowhere, uses what can't be resolved by
    /// reading it alone (`$dynamicRef`, `$recursiveRef`, anchors, an `$id` below the top level), holds a regular
    /// expression that the engine does not know, or is so large or so entangled that checking a value could
    /// take for ever.
    pub fn new(value: Value) -> Result<Self, SchemaError> {
        let Some(size) = Size::of(&value) else {
            dismantle(value);
            return Err(SchemaError(format!("it nests deeper than {MAX_DEPTH} levels")));
        };
        let compiled = if size.depth <= FEW_LEVELS {
            Compiled::new(&value)
        } else {
            on_large_stack(|| Compiled::new(&value)).unwrap_or_else(|error| Err(SchemaError(error)))
        }?;
        Ok(Self(Arc::new(Inner { value, compiled: Ok(compiled), offered: OnceLock::new() })))
    }

    /// The schema of a Rust type, without `$schema`, and with what it refers to written in place where
    /// possible: model services differ in the references that they follow.
    ///
    /// A type whose own [`JsonSchema`] implementation gives no usable schema gets an empty one, and is found out
    /// when it is used: a [`ToolSet`](super::ToolSet) refuses it, and [`validate`](Schema::validate) fails.
    ///
    /// # Panics
    ///
    /// If the type's [`JsonSchema`] implementation does; derived ones don't.
    pub fn of<T: JsonSchema>() -> Self {
        Self::derived(|value| value, derive::<T>)
    }

    /// The schema of a Rust type as a tool's input, which is an object even where the type leaves it open.
    /// Several services refuse a tool whose schema lacks `type` or `properties`.
    pub(super) fn of_input<T: JsonSchema>() -> Self {
        Self::derived(as_input, derive::<T>)
    }

    fn derived(adapt: fn(Value) -> Value, derive: fn(bool) -> Value) -> Self {
        Self::new(adapt(derive(true)))
            // Writing everything in place may take it over a limit; references keep it small.
            .or_else(|_| Self::new(adapt(derive(false))))
            .unwrap_or_else(|error| {
                let value = Value::Object(Map::new());
                Self(Arc::new(Inner { value, compiled: Err(error), offered: OnceLock::new() }))
            })
    }

    /// The schema itself, as it was given.
    pub fn as_value(&self) -> &Value {
        &self.0.value
    }

    /// The schema as services are offered it, as `make` has it; `None` is the schema itself. Each request asks, and what
    /// is made takes work: it is made once.
    pub(crate) fn offered(&self, make: impl FnOnce(&Value) -> Option<Value>) -> &Value {
        self.0.offered.get_or_init(|| make(&self.0.value)).as_ref().unwrap_or(&self.0.value)
    }

    /// Why the schema can't be used, if it can't; only one that [`Schema::of`] made can be so.
    pub fn error(&self) -> Option<&SchemaError> {
        self.0.compiled.as_ref().err()
    }

    /// Checks a value.
    ///
    /// # Errors
    ///
    /// What is wrong, in words that a model can act on: one line a problem, with its place as a JSON pointer
    /// and what is expected there. Ten problems and about two thousand characters at most.
    pub fn validate(&self, value: &Value) -> Result<(), String> {
        let compiled = self.0.compiled.as_ref().map_err(ToString::to_string)?;
        let size = Size::of(value)
            .ok_or_else(|| format!("- at the top level: nests deeper than {MAX_DEPTH} levels"))?;
        match compiled.cost.judge(value, size.values) {
            Verdict::Shallow => compiled.check(value),
            Verdict::Deep => on_large_stack(|| compiled.check(value)).unwrap_or_else(Err),
            Verdict::TooMuch => {
                Err("- at the top level: too large or too deeply nested to be checked".to_owned())
            }
        }
    }
}

impl Compiled {
    fn new(value: &Value) -> Result<Self, SchemaError> {
        let prepared = prepare::prepare(value)?;
        let mut compiler = Compiler::new();
        compiler.set_default_draft(Draft::V2020_12);
        compiler.use_loader(Box::new(RefuseToLoad));
        let mut schemas = Schemas::new();
        // In debug builds the compiler asserts where it otherwise returns an error.
        let root = catch_unwind(AssertUnwindSafe(|| {
            compiler.add_resource(LOCATION, prepared.document).map_err(|error| describe(&error))?;
            compiler.compile(LOCATION, &mut schemas).map_err(|error| describe(&error))
        }))
        .unwrap_or_else(|_| Err(SchemaError("the compiler gave up on it".to_owned())))?;
        Ok(Self { schemas, root, cost: prepared.cost })
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.root).map_err(|error| problem::describe(&error))
    }
}

/// Runs `work` where it can't overflow the stack.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("schema".to_owned()).stack_size(LARGE_STACK);
        match thread.spawn_scoped(scope, work).map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(format!("no thread could be started to read it: {error}")),
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

struct RefuseToLoad;

impl UrlLoader for RefuseToLoad {
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
    // Without a title of its own the schema gets the Rust type's name, which tells a model nothing.
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

struct Size {
    /// How many JSON values there are, the outermost included.
    values: usize,
    /// How deep they nest.
    depth: usize,
}

impl Size {
    /// The size of a value; `None` if it nests too deep.
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

/// Drops a value of any depth; dropping it as it is would take stack for each level.
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

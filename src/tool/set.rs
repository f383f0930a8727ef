use std::{fmt, sync::Arc};

use super::{Schema, SchemaError, Tool, ToolDeclaration, contain::contained};

/// The tools of a conversation, in order, with distinct names. Cheap to clone.
#[derive(Clone, Default)]
pub struct ToolSet(Option<Arc<Vec<Arc<dyn Tool>>>>);

/// Tools that can't be together in a set, or not at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolSetError {
    /// Two tools have the same name.
    #[error("two tools are named {0:?}; the model could not tell them apart")]
    Duplicate(String),
    /// A name that services refuse.
    #[error("{0:?} can't be a tool's name; use 1 to 128 letters, digits, `_`, `-` and `.`")]
    BadName(String),
    /// A schema that is none, or describes no object.
    #[error("the input schema of tool {name:?} is refused: {error}")]
    BadSchema {
        /// The tool.
        name: String,
        /// Why.
        error: SchemaError,
    },
}

impl ToolSet {
    /// An empty set.
    pub const fn new() -> Self {
        Self(None)
    }

    /// The same set with this tool at the end.
    ///
    /// # Errors
    ///
    /// The name is taken, or name or schema are of a kind that services refuse.
    pub fn with(mut self, tool: impl Tool) -> Result<Self, ToolSetError> {
        self.insert(Arc::new(tool))?;
        Ok(self)
    }

    /// Adds a tool at the end.
    ///
    /// # Errors
    ///
    /// As [`ToolSet::with`]; the set is as it was before.
    pub fn insert(&mut self, tool: Arc<dyn Tool>) -> Result<(), ToolSetError> {
        let name = tool.name();
        if !is_good_name(name) {
            return Err(ToolSetError::BadName(name.to_owned()));
        }
        if self.get(name).is_some() {
            return Err(ToolSetError::Duplicate(name.to_owned()));
        }
        if let Err(error) = check_input_schema(tool.schema()) {
            return Err(ToolSetError::BadSchema { name: name.to_owned(), error });
        }
        Arc::make_mut(self.0.get_or_insert_default()).push(tool);
        Ok(())
    }

    /// Takes out the tool of this name; whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(position) = self.iter().position(|tool| tool.name() == name) else { return false };
        if let Some(tools) = &mut self.0 {
            Arc::make_mut(tools).remove(position);
        }
        true
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.iter().find(|tool| tool.name() == name)
    }

    /// Whether the tool of this name is there and has no handler. One that panics when it is asked is taken
    /// for one that has: [`run`](ToolSet::run) makes an error result of its panic.
    pub fn is_only_declared(&self, name: &str) -> bool {
        contained(|| self.get(name).is_some_and(|tool| !tool.has_handler())).unwrap_or(false)
    }

    /// The tools in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<dyn Tool>> {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// How many tools there are.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |tools| tools.len())
    }

    /// Whether there is no tool.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tools as a model sees them, each with the description that it has now. A description that panics
    /// is left empty, and a tool that panics when it is asked for the rest is left out.
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        let declare = |tool: &Arc<dyn Tool>| ToolDeclaration {
            name: tool.name().to_owned(),
            description: contained(|| tool.description().into_owned()).unwrap_or_else(|panic| {
                tracing::error!(tool = tool.name(), %panic, "a tool's description panicked");
                String::new()
            }),
            schema: tool.schema().clone(),
            has_handler: tool.has_handler(),
        };
        let declared = self.iter().filter_map(|tool| {
            contained(|| declare(tool))
                .inspect_err(|panic| tracing::error!(%panic, "a tool's declaration panicked"))
                .ok()
        });
        declared.collect()
    }
}

fn is_good_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// Every service wants a tool's input to be an object.
fn check_input_schema(schema: &Schema) -> Result<(), SchemaError> {
    if let Some(error) = schema.error() {
        return Err(error.clone());
    }
    let Some(value) = schema.as_value().as_object() else {
        return Err(SchemaError("a tool's input is an object; the schema must describe one".to_owned()));
    };
    match value.get("type") {
        None => Ok(()),
        Some(kind) if kind == "object" => Ok(()),
        Some(kind) => Err(SchemaError(format!("a tool's input is an object, but `type` is {kind}"))),
    }
}

impl<'a> IntoIterator for &'a ToolSet {
    type Item = &'a Arc<dyn Tool>;
    type IntoIter = std::slice::Iter<'a, Arc<dyn Tool>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|tool| tool.name().to_owned())).finish()
    }
}

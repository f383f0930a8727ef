use std::{fmt, sync::Arc};

use super::{Replay, Schema, SchemaError, Tool, ToolDeclaration};

use crate::panics::contained;

/// The tools of a conversation, in order and with distinct names. A set is cheap to clone.
#[derive(Clone, Default)]
pub struct ToolSet(Option<Arc<Vec<Arc<dyn Tool>>>>);

/// A tool can't be added to a set.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolSetError {
    /// Two tools have the same name.
    #[error("two tools are named {0:?}; give each tool a different name")]
    Duplicate(String),
    /// The tool has a name that services refuse.
    #[error("{0:?} is not a valid tool name; use 1 to 128 letters, digits, `_`, `-` and `.`")]
    BadName(String),
    /// The tool's schema is invalid or does not describe an object.
    #[error("the input schema of tool {name:?} is refused: {error}")]
    BadSchema {
        /// The name of the tool.
        name: String,
        /// The reason why the schema is refused.
        error: SchemaError,
    },
}

crate::error::debug_as_chain!(ToolSetError);

impl ToolSet {
    /// Creates an empty set.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns the same set with this tool at the end.
    ///
    /// # Errors
    ///
    /// Fails if the name is already taken, or if services refuse the name or the schema.
    pub fn with(mut self, tool: impl Tool) -> Result<Self, ToolSetError> {
        self.insert(Arc::new(tool))?;
        Ok(self)
    }

    /// Adds a tool at the end.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ToolSet::with`]. If there is an error, the set stays as it was.
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

    /// Returns the same set with these tools at the end, for example the tools of an MCP server.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ToolSet::with`], for the first tool that can't be added.
    pub fn extended(mut self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Result<Self, ToolSetError> {
        tools.into_iter().try_for_each(|tool| self.insert(tool))?;
        Ok(self)
    }

    /// Removes the tool with this name. Returns whether there was such a tool.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(position) = self.iter().position(|tool| tool.name() == name) else { return false };
        if let Some(tools) = &mut self.0 {
            Arc::make_mut(tools).remove(position);
        }
        true
    }

    /// Returns the tool with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.iter().find(|tool| tool.name() == name)
    }

    /// Returns whether there is a tool with this name that has no handler. If the tool panics in
    /// [`has_handler`](Tool::has_handler), this returns `false`, and [`run`](ToolSet::run) turns the panic into an
    /// error result.
    pub fn is_only_declared(&self, name: &str) -> bool {
        contained(|| self.get(name).is_some_and(|tool| !tool.has_handler())).unwrap_or(false)
    }

    /// Returns whether there is a tool with this name whose uses need an approval. If the tool panics in
    /// [`requires_approval`](Tool::requires_approval), this returns `true`. If no tool is found because
    /// [`name`](Tool::name) of a tool panics, this returns `false`, and [`run`](ToolSet::run) turns the panic into an
    /// error result.
    pub fn requires_approval(&self, name: &str) -> bool {
        let found = contained(|| self.get(name)).ok().flatten();
        found.is_some_and(|tool| contained(|| tool.requires_approval()).unwrap_or(true))
    }

    /// Returns whether a call of the tool with this name may be repeated: see [`Tool::replay`]. Returns
    /// [`Replay::Never`] if there is no such tool, if the tool has no handler, or if one of its methods panics.
    pub fn replay(&self, name: &str) -> Replay {
        let found =
            contained(|| self.get(name).filter(|tool| tool.has_handler()).map(|tool| tool.as_ref().replay()));
        found.ok().flatten().unwrap_or(Replay::Never)
    }

    /// Returns the tools in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<dyn Tool>> {
        self.0.as_deref().map_or(&[][..], Vec::as_slice).iter()
    }

    /// Returns the number of tools.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |tools| tools.len())
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the declarations of the tools for a model, each with the tool's current description. If a tool's
    /// [`description`](Tool::description) panics, the description is empty. If another method of a tool panics, the
    /// tool is omitted.
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        let declare = |tool: &Arc<dyn Tool>| ToolDeclaration {
            name: tool.name().to_owned(),
            description: contained(|| tool.description().into_owned()).unwrap_or_else(|panic| {
                tracing::error!(tool = tool.name(), %panic, "a tool's description panicked");
                String::new()
            }),
            schema: tool.schema().clone(),
            has_handler: tool.has_handler(),
            requires_approval: tool.requires_approval(),
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

/// Returns an error if the schema does not describe an object, because services require that a tool's input is an
/// object.
fn check_input_schema(schema: &Schema) -> Result<(), SchemaError> {
    if let Some(error) = schema.error() {
        return Err(error.clone());
    }
    let Some(value) = schema.as_value().as_object() else {
        return Err(SchemaError("a tool's input is an object; use a schema that describes one".to_owned()));
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

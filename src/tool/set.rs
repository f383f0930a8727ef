use std::{fmt, sync::Arc};

use super::{SchemaError, Tool, ToolDeclaration};

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
    #[error("the input schema of tool {name:?} is unusable")]
    BadSchema {
        /// The tool.
        name: String,
        /// Why.
        source: SchemaError,
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
    pub fn insert(&mut self, _tool: Arc<dyn Tool>) -> Result<(), ToolSetError> {
        todo!()
    }

    /// Takes out the tool of this name; whether there was one.
    pub fn remove(&mut self, _name: &str) -> bool {
        todo!()
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.iter().find(|tool| tool.name() == name)
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

    /// The tools as a model sees them.
    pub fn declarations(&self) -> Vec<ToolDeclaration> {
        todo!()
    }
}

impl fmt::Debug for ToolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|tool| tool.name().to_owned())).finish()
    }
}

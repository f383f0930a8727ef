//! Tools: what a model can call.
//!
//! A [`Tool`] has a name, a description, a JSON Schema of its input and a handler. Write one as a struct that
//! implements [`TypedTool`], as a closure with [`tool_fn`], as a declaration that is never run with
//! [`SchemaTool`], or implement [`Tool`] itself. A [`ToolSet`] holds the tools of a conversation, and runs
//! them so that nothing a model or a tool does can break it: every outcome is a
//! [`ToolResult`](crate::message::ToolResult).

mod cap;
mod contain;
mod context;
mod output;
mod run;
mod schema;
mod set;
mod shared;
mod typed;

use std::borrow::Cow;

use async_trait::async_trait;
pub use context::{Extensions, Progress, ToolContext};
pub use output::{ToolError, ToolOutput};
pub use run::{ToolLimits, ToolTimeout};
pub use schema::{Schema, SchemaError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use set::{ToolSet, ToolSetError};
pub use typed::{FnTool, SchemaTool, Typed, TypedTool, tool_fn};

use crate::message::ToolResult;

/// Something a model can call. Dyn-safe; state lives in the implementing type.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// The name that the model calls it by: letters, digits, `_`, `-` and `.`, at most 128 characters.
    fn name(&self) -> &str;

    /// What the tool does and when to use it, for the model. Asked for at every request, so it may depend on
    /// the tool's own state.
    fn description(&self) -> Cow<'_, str>;

    /// The JSON Schema of the input, an object.
    fn schema(&self) -> &Schema;

    /// Whether [`call`](Tool::call) does anything. A tool without a handler is declared and offered to the
    /// model, and never run: a turn that uses it stops and leaves the answer to the application.
    fn has_handler(&self) -> bool {
        true
    }

    /// Runs the tool. The input has been checked against the schema when it comes through a [`ToolSet`].
    ///
    /// # Errors
    ///
    /// Whatever kept the tool from its work, in words for the model.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the call is cancelled or times out; work that must not be cut in the middle
    /// belongs into a task of its own, which can watch [`ToolContext::cancelled`].
    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError>;
}

/// What becomes of a tool use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// Run the tool as the model asked.
    Execute,
    /// Run the tool with this input instead. The history keeps what the model sent.
    ExecuteWith(Value),
    /// Do not run it; the model gets an error result with this text.
    Reject(String),
    /// Do not run it; the model gets this result.
    Provide(ToolResult),
}

impl Decision {
    /// A rejection, with a reason for the model to read.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject(reason.into())
    }
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDeclaration {
    /// The name that the model calls it by.
    pub name: String,
    /// What the tool does.
    pub description: String,
    /// The JSON Schema of its input.
    pub schema: Schema,
    /// Whether the application can run it.
    pub has_handler: bool,
}

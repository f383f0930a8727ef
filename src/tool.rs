//! Tools: what a model can call.
//!
//! A [`Tool`] has a name, a description, a JSON Schema of its input and a handler. There are three ways to
//! write one, and [`Tool`] itself for anything else:
//!
//! - a struct that implements [`TypedTool`], for a tool with state or a description that changes;
//! - a closure with [`tool_fn`], or with [`FnTool::with_schema`] where the schema is written by hand;
//! - a [`SchemaTool`], which is offered to the model and never run: its use is the application's to answer.
//!
//! A [`ToolSet`] holds the tools of a conversation. It checks them when they are added, and runs them so that
//! nothing a model or a tool does can break it: every outcome is a [`ToolResult`].
//!
//! ```
//! use std::{borrow::Cow, collections::HashMap};
//!
//! use omni_agent::{
//!     message::ToolUse,
//!     tool::{
//!         Schema, SchemaTool, ToolContext, ToolError, ToolLimits, ToolOutput, ToolSet, Typed, TypedTool, tool_fn,
//!     },
//! };
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use serde_json::json;
//!
//! // A tool with state. The model sees the comments on the fields.
//! struct Stock {
//!     pieces: HashMap<String, u32>,
//! }
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct Article {
//!     /// The article's name, in the singular.
//!     name: String,
//! }
//!
//! impl TypedTool for Stock {
//!     type Input = Article;
//!
//!     fn name(&self) -> &str {
//!         "stock"
//!     }
//!
//!     fn description(&self) -> Cow<'_, str> {
//!         format!("Tells how much there is of any of {} articles.", self.pieces.len()).into()
//!     }
//!
//!     async fn call(&self, article: Article, _context: ToolContext) -> Result<ToolOutput, ToolError> {
//!         match self.pieces.get(&article.name) {
//!             Some(pieces) => Ok(format!("{pieces} pieces").into()),
//!             None => Err(ToolError::new("There is no such article.")),
//!         }
//!     }
//! }
//!
//! // A tool made of a closure. `?` takes any error.
//! #[derive(Deserialize, JsonSchema)]
//! struct Sum {
//!     /// Whole numbers, separated by commas.
//!     numbers: String,
//! }
//!
//! let add = tool_fn("add", "Adds numbers.", |sum: Sum, _context: ToolContext| async move {
//!     let mut total: i64 = 0;
//!     for number in sum.numbers.split(',') {
//!         total += number.trim().parse::<i64>()?;
//!     }
//!     Ok(json!({ "total": total }))
//! });
//!
//! // A tool that the application answers itself, with a schema written by hand.
//! let question = Schema::new(json!({
//!     "type": "object",
//!     "properties": { "question": { "type": "string" } },
//!     "required": ["question"],
//! }))?;
//! let ask = SchemaTool::new("ask_user", "Asks the user.", question);
//!
//! let stock = Stock { pieces: HashMap::from([("apple".to_owned(), 3)]) };
//! let tools = ToolSet::new().with(Typed::new(stock))?.with(add)?.with(ask)?;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // An agent runs the tools that its model uses. They can be run without one, too.
//! let run = async |name, input| {
//!     let tool_use = ToolUse::new("call-1", name, input);
//!     tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default()).await
//! };
//! assert_eq!(run("stock", json!({ "name": "apple" })).await.text(), "3 pieces");
//! assert_eq!(run("add", json!({ "numbers": "1, 2" })).await.text(), r#"{"total":3}"#);
//!
//! // What goes wrong is a result as well, for the model to read.
//! let failed = run("add", json!({ "numbers": "one" })).await;
//! assert!(failed.is_error);
//! assert_eq!(failed.text(), "invalid digit found in string");
//! assert!(run("stock", json!({ "nmae": "apple" })).await.text().contains("missing required property \"name\""));
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cap;
mod contain;
mod context;
mod execute;
mod output;
mod run;
mod schema;
mod set;
mod shared;
mod typed;

use std::borrow::Cow;

use async_trait::async_trait;
pub(crate) use contain::panic_message;
pub use context::{Extensions, Progress, ToolContext};
pub use execute::ToolExt;
pub use output::{ToolError, ToolOutput};
pub use run::{ToolLimits, ToolTimeout};
pub(crate) use schema::resolve as resolve_reference;
pub use schema::{Schema, SchemaError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use set::{ToolSet, ToolSetError};
pub use typed::{FnTool, SchemaTool, Typed, TypedTool, tool_fn};

use crate::message::ToolResult;

/// Something a model can call. Dyn-safe; state lives in the implementing type. An `Arc` or a `Box` of a tool is
/// a tool, so that one can be shared between sets.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// The name that the model calls it by: letters, digits, `_`, `-` and `.`, at most 128 characters. Many services
    /// take less, OpenAI no dots and 64 characters: there the model knows it by the nearest name that fits, and its
    /// calls come back by this one.
    fn name(&self) -> &str;

    /// What the tool does and when to use it, for the model. Asked for at every request, so it may depend on
    /// the tool's own state.
    fn description(&self) -> Cow<'_, str>;

    /// The JSON Schema of the input, an object. Alternatives at its top, as of an enum, are shown to the model as
    /// properties that may be absent, since services refuse them there; the input is checked against the schema itself.
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

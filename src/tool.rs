//! Tools that a model can call.
//!
//! A [`Tool`] has a name, a description, a JSON Schema of its input and a handler. There are three ways to write a tool
//! without implementing [`Tool`] itself:
//!
//! - A struct that implements [`TypedTool`] is suitable for a tool that has state or whose description changes.
//! - A closure becomes a tool with [`tool_fn`], or with [`tool_fn_with_schema`] if the schema is written by hand.
//! - A [`declared_tool`] is offered to the model but never run. The application itself supplies the results of its
//!   uses.
//!
//! A [`ToolSet`] holds the tools of a conversation. It checks each tool when the tool is added. [`ToolSet::run`]
//! converts every outcome into a [`ToolResult`], so that no model and no tool can break the conversation, whether by
//! invalid input, a [`ToolError`], a panic, or a call that exceeds its [`ToolLimits`]. A running tool receives a
//! [`ToolContext`] and returns a [`ToolOutput`]. Before a tool runs, the application can intervene with a [`Decision`].
//!
//! ```
//! use std::{borrow::Cow, collections::HashMap};
//!
//! use omni_agent::{
//!     message::ToolUse,
//!     tool::{
//!         Schema, ToolContext, ToolError, ToolLimits, ToolOutput, ToolSet, TypedTool, declared_tool_with_schema, tool_fn,
//!     },
//! };
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//! use serde_json::json;
//!
//! // A tool with state. The model sees the doc comments of the fields.
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
//!         format!("Returns the number of pieces in stock, for any of {} articles.", self.pieces.len()).into()
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
//! // A tool made of a closure. `?` converts any error.
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
//! let ask = declared_tool_with_schema("ask_user", "Asks the user.", question);
//!
//! let stock = Stock { pieces: HashMap::from([("apple".to_owned(), 3)]) };
//! let tools = ToolSet::new().with(stock.into_tool())?.with(add)?.with(ask)?;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! // An agent runs the tools that its model uses. A tool set can also run them without an agent.
//! let run = async |name, input| {
//!     let tool_use = ToolUse::new("call-1", name, input);
//!     tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default()).await
//! };
//! assert_eq!(run("stock", json!({ "name": "apple" })).await.text(), "3 pieces");
//! assert_eq!(run("add", json!({ "numbers": "1, 2" })).await.text(), r#"{"total":3}"#);
//!
//! // A failure is a result too, for the model to read.
//! let failed = run("add", json!({ "numbers": "one" })).await;
//! assert!(failed.is_error);
//! assert_eq!(failed.text(), "invalid digit found in string");
//! assert!(run("stock", json!({ "nmae": "apple" })).await.text().contains("missing required property \"name\""));
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod context;
mod output;
mod run;
mod schema;
mod set;
mod shared;
mod typed;

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;
pub use context::{Answer, Extensions, ToolContext};
pub(crate) use context::{QuestionWaitGuard, ToolCallAgentLink, ToolToAgentMessage};
pub use output::{ToolError, ToolOutput};
#[cfg(feature = "mcp")]
pub(crate) use run::within;
pub use run::{ToolLimits, execute};
pub(crate) use schema::walk::{self, resolve as resolve_reference};
pub use schema::{Schema, SchemaError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use set::{ToolSet, ToolSetError};
pub use typed::{TypedTool, declared_tool, declared_tool_with_schema, tool_fn, tool_fn_with_schema};

use crate::message::{DecisionKind, ToolResult};
use shared::{ToolWithApproval, ToolWithIdleTimeout, ToolWithReplay, ToolWithTimeout};

/// A function that a model can call.
///
/// The trait is dyn-safe. A tool's state is stored in the type that implements the trait. An `Arc` or a `Box` of a tool
/// is also a tool, so that several sets can share a tool. The [module's page](self) shows shorter ways to write a tool.
///
/// # Example
///
/// A tool can forward its calls to a server that also supplies the name, the description and the schema:
///
/// ```
/// use std::{borrow::Cow, time::Duration};
///
/// use async_trait::async_trait;
/// use omni_agent::tool::{Schema, Tool, ToolContext, ToolError, ToolOutput, execute};
/// use serde_json::{Value, json};
///
/// struct RemoteTool {
///     name: String,
///     description: String,
///     schema: Schema,
/// }
///
/// #[async_trait]
/// impl Tool for RemoteTool {
///     fn name(&self) -> &str {
///         &self.name
///     }
///
///     fn description(&self) -> Cow<'_, str> {
///         (&*self.description).into()
///     }
///
///     fn schema(&self) -> &Schema {
///         &self.schema
///     }
///
///     async fn call(&self, input: Value, _context: ToolContext) -> Result<ToolOutput, ToolError> {
///         Ok(format!("The server got {input}.").into())
///     }
/// }
///
/// let tool = RemoteTool {
///     name: "lookup".to_owned(),
///     description: "Looks a word up.".to_owned(),
///     schema: Schema::new(json!({ "type": "object", "required": ["word"] }))?,
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let output = execute(&tool, json!({ "word": "tea" }), ToolContext::detached("call-1")).await?;
/// assert_eq!(output, r#"The server got {"word":"tea"}."#.into());
/// # Ok::<(), ToolError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Returns the name by which the model calls the tool. It consists of letters, digits, `_`, `-` and `.`, with at
    /// most 128 characters.
    ///
    /// Many services have stricter rules for names. For example, OpenAI accepts no dots and at most 64 characters. Such
    /// a service receives the most similar name that it accepts, and the model's calls are mapped back to this name.
    fn name(&self) -> &str;

    /// Returns what the tool does and when to use it, for the model to read. This method is called for every request,
    /// so the description may depend on the tool's state.
    fn description(&self) -> Cow<'_, str>;

    /// Returns the JSON Schema of the input. The input must be an object.
    ///
    /// Services refuse alternatives at the top level of a schema, such as those of an enum. If a schema has
    /// alternatives there, the model is offered a schema in which the properties of all alternatives are optional
    /// properties. The input is still checked against the original schema.
    fn schema(&self) -> &Schema;

    /// Returns whether the tool has a handler, so that [`call`](Tool::call) can run it.
    ///
    /// A tool without a handler is offered to the model but never run. If the model uses it, the turn ends, and the
    /// application has to supply the result.
    fn has_handler(&self) -> bool {
        true
    }

    /// Returns the same tool with another time limit for each call.
    fn with_timeout(self, limit: Duration) -> impl Tool
    where
        Self: Sized,
    {
        ToolWithTimeout(self, limit)
    }

    /// Returns the time limit of a call of this tool. If it is `None`, which is the default, the agent's limit
    /// [`ToolLimits::timeout`] applies. The agent's limit is two minutes unless it is set. `Some(Duration::MAX)` means
    /// no limit.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the same tool with another limit on the time between [progress reports](ToolContext::progress).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use omni_agent::tool::{Tool, ToolContext, tool_fn};
    /// use serde_json::{Value, json};
    ///
    /// let build = tool_fn("build", "Builds the project.", |_: Value, context: ToolContext| async move {
    ///     context.progress(json!({ "compiled": 12 })).await;
    ///     Ok("The project was built.")
    /// });
    /// // The build may take an hour, but it may not be silent for more than a minute.
    /// let build = build.with_timeout(Duration::from_hours(1)).with_idle_timeout(Duration::from_mins(1));
    /// assert_eq!(build.idle_timeout(), Some(Duration::from_mins(1)));
    /// ```
    fn with_idle_timeout(self, limit: Duration) -> impl Tool
    where
        Self: Sized,
    {
        ToolWithIdleTimeout(self, limit)
    }

    /// Returns the longest time that a call of this tool may take without a [progress report](ToolContext::progress),
    /// counted from the call's start or the last report. The time during which a question of the call waits does not
    /// count. If it is `None`, which is the default, the agent's limit [`ToolLimits::idle_timeout`] applies.
    /// `Some(Duration::MAX)` means no limit.
    fn idle_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the same tool, whose every use needs an approval.
    ///
    /// Before an agent runs the tool, it pauses and waits for the decision of [`Agent::resume`](crate::Agent::resume).
    ///
    /// ```
    /// use omni_agent::{Tool, tool};
    ///
    /// let delete = tool!("delete_file", "Deletes a file.", async |path: String| {
    ///     std::fs::remove_file(path)?;
    ///     Ok("Deleted.")
    /// });
    /// assert!(!delete.requires_approval());
    /// assert!(delete.needs_approval().requires_approval());
    /// ```
    fn needs_approval(self) -> impl Tool
    where
        Self: Sized,
    {
        ToolWithApproval(self)
    }

    /// Returns whether every use of this tool needs an approval. [`needs_approval`](Tool::needs_approval) wraps a tool,
    /// so that this method returns `true`.
    fn requires_approval(&self) -> bool {
        false
    }

    /// Returns the same tool with another declaration of whether its calls may be repeated.
    ///
    /// ```
    /// use omni_agent::{Tool, tool, tool::Replay};
    ///
    /// let read = tool!("read_file", "Reads a file.", async |path: String| Ok(std::fs::read_to_string(path)?));
    /// assert_eq!(read.replay(), Replay::Never);
    /// assert_eq!(read.with_replay(Replay::Safe).replay(), Replay::Safe);
    /// ```
    fn with_replay(self, replay: Replay) -> impl Tool
    where
        Self: Sized,
    {
        ToolWithReplay(self, replay)
    }

    /// Returns whether a call may be repeated, if the process ended while the call was running. The default is
    /// [`Replay::Never`]. [`with_replay`](Tool::with_replay) makes a tool with another declaration.
    fn replay(&self) -> Replay {
        Replay::Never
    }

    /// Runs the tool. If the tool is called through a [`ToolSet`], the input has already been checked against the
    /// schema.
    ///
    /// # Errors
    ///
    /// Returns the reason why the tool call failed, as a text for the model.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the call is cancelled or times out. Work that must not be interrupted belongs in a
    /// separate task, which can watch [`ToolContext::cancelled`].
    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError>;
}

/// The decision about a tool use. For a decision that answers a question of a running tool, see [`ToolContext::ask`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// Runs the tool with the model's input.
    Execute,
    /// Runs the tool with this input instead, which has at most 64 levels of arrays and objects. The input that the
    /// model sent stays in the history.
    ExecuteWith(Value),
    /// Does not run the tool. The model receives an error result with this text.
    Reject(String),
    /// Does not run the tool. The model receives this result.
    Provide(ToolResult),
}

impl Decision {
    /// Creates a rejection. The model receives the reason.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject(reason.into())
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Execute => 0,
            Self::ExecuteWith(input) => crate::message::value_weight(input),
            Self::Reject(reason) => reason.len(),
            Self::Provide(result) => result.weight(),
        }
    }
}

impl From<&Decision> for DecisionKind {
    fn from(decision: &Decision) -> Self {
        match decision {
            Decision::Execute => Self::Execute,
            Decision::ExecuteWith(_) => Self::ExecuteWith,
            Decision::Reject(_) => Self::Reject,
            Decision::Provide(_) => Self::Provide,
        }
    }
}

/// The description of a tool that is sent to a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolDeclaration {
    /// The name by which the model calls the tool.
    pub name: String,
    /// The purpose of the tool, for the model to read.
    pub description: String,
    /// The JSON Schema of the tool's input.
    pub schema: Schema,
    /// Whether the application can run the tool.
    pub has_handler: bool,
    /// Whether every use of the tool needs an approval. The model does not see this.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requires_approval: bool,
}

impl ToolDeclaration {
    /// Returns the approximate size in bytes, without the schema.
    pub(crate) fn weight(&self) -> usize {
        64 + self.name.len() + self.description.len()
    }
}

/// Whether a tool call, or a request to a provider, may be repeated after a crash.
///
/// The declaration counts only if a process ends while the call runs and its turn continues later. The default of tools
/// is [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Replay {
    /// Running twice has the same effect as running once. A tool that only reads is an example.
    Safe,
    /// The service recognises a repetition by the call's key:
    /// [`ToolContext::idempotency_key`](ToolContext::idempotency_key).
    Keyed,
    /// The call must not be repeated without a person's decision.
    #[default]
    Never,
}

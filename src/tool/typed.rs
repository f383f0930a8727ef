use std::{borrow::Cow, future::Future, marker::PhantomData};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose input is a Rust type: the schema is derived from it, and the input parsed into it.
///
/// Wrap it with [`Typed::new`] to get a [`Tool`].
pub trait TypedTool: Send + Sync + 'static {
    /// The input.
    type Input: DeserializeOwned + JsonSchema + Send;

    /// The name that the model calls it by.
    fn name(&self) -> &str;

    /// What the tool does and when to use it.
    fn description(&self) -> Cow<'_, str>;

    /// Runs the tool.
    ///
    /// # Errors
    ///
    /// Whatever kept the tool from its work, in words for the model.
    fn call(
        &self,
        input: Self::Input,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;
}

/// Makes a [`Tool`] of a [`TypedTool`].
pub struct Typed<T> {
    tool: T,
    schema: Schema,
}

impl<T: TypedTool> Typed<T> {
    /// Wraps the tool.
    pub fn new(tool: T) -> Self {
        Self { tool, schema: Schema::of::<T::Input>() }
    }
}

/// A tool made of a closure; see [`tool_fn`].
pub struct FnTool<I, F> {
    name: String,
    description: String,
    schema: Schema,
    call: F,
    input: PhantomData<fn(I)>,
}

/// A tool made of a closure. `I` is any `Deserialize + JsonSchema` type, [`Value`] for none in particular.
pub fn tool_fn<I, F, R, O>(
    _name: impl Into<String>,
    _description: impl Into<String>,
    _call: F,
) -> FnTool<I, F>
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(I, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: Into<ToolOutput>,
{
    todo!()
}

/// A tool that is declared and never run; see [`Tool::has_handler`].
#[derive(Clone, Debug)]
pub struct SchemaTool {
    name: String,
    description: String,
    schema: Schema,
}

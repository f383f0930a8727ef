use std::{borrow::Cow, future::Future, marker::PhantomData, time::Duration};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Replay, Schema, Tool, ToolContext, ToolError, ToolOutput};

/// A tool whose input is a Rust type. The schema is derived from this type, and the input is parsed into a value of the
/// type.
///
/// [`into_tool`](Self::into_tool) converts the typed tool into a [`Tool`]. The [module's page](super) has an example.
pub trait TypedTool: Send + Sync + 'static {
    /// The type of the input.
    type Input: DeserializeOwned + JsonSchema + Send;

    /// Returns the name by which the model calls the tool.
    fn name(&self) -> &str;

    /// Returns what the tool does and when to use it, for the model to read.
    fn description(&self) -> Cow<'_, str>;

    /// Returns the time limit of a call, like [`Tool::timeout`].
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns the limit on the time between progress reports, like [`Tool::idle_timeout`].
    fn idle_timeout(&self) -> Option<Duration> {
        None
    }

    /// Returns whether a call may be repeated, like [`Tool::replay`].
    fn replay(&self) -> Replay {
        Replay::Never
    }

    /// Runs the tool.
    ///
    /// # Errors
    ///
    /// Returns the reason why the tool call failed, as a text for the model.
    ///
    /// # Cancel safety
    ///
    /// As for [`Tool::call`].
    fn call(
        &self,
        input: Self::Input,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send;

    /// Derives the schema and converts this into a [`Tool`].
    fn into_tool(self) -> impl Tool
    where
        Self: Sized,
    {
        TypedAdapter { tool: self, schema: Schema::of_input::<Self::Input>() }
    }
}

/// A [`TypedTool`] with its derived schema.
struct TypedAdapter<T> {
    tool: T,
    schema: Schema,
}

#[async_trait]
impl<T: TypedTool> Tool for TypedAdapter<T> {
    fn name(&self) -> &str {
        self.tool.name()
    }

    fn description(&self) -> Cow<'_, str> {
        self.tool.description()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn timeout(&self) -> Option<Duration> {
        self.tool.timeout()
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.tool.idle_timeout()
    }

    fn replay(&self) -> Replay {
        self.tool.replay()
    }

    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input = parse(input)?;
        self.tool.call(input, context).await
    }
}

/// A tool that is made from a closure. See [`tool_fn`].
struct FnTool<I, F> {
    name: String,
    description: String,
    schema: Schema,
    call: F,
    input: PhantomData<fn(I)>,
}

/// Makes a tool from a closure. `I` is any `Deserialize + JsonSchema` type whose schema describes an object, such as a
/// struct. With another type, such as `String`, no agent starts with the tool
/// ([`ToolSetError::BadSchema`](super::ToolSetError::BadSchema)). If `I` is [`Value`], the tool accepts any object.
/// [`tool!`](crate::tool!) makes the object from the parameters of a closure.
///
/// ```
/// use omni_agent::tool::{ToolContext, ToolSet, tool_fn};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Path {
///     /// Where the file is.
///     path: String,
/// }
///
/// let read = tool_fn("read_file", "Reads a text file.", |input: Path, _context: ToolContext| async move {
///     Ok(std::fs::read_to_string(input.path)?)
/// });
/// let tools = ToolSet::new().with(read)?;
/// # Ok::<(), omni_agent::tool::ToolSetError>(())
/// ```
pub fn tool_fn<I, F, R, O>(name: &str, description: &str, call: F) -> impl Tool + use<I, F, R, O>
where
    I: DeserializeOwned + JsonSchema + Send + 'static,
    F: Fn(I, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: Into<ToolOutput>,
{
    tool_fn_with_schema(name, description, Schema::of_input::<I>(), call)
}

/// Makes a [tool](tool_fn) from an asynchronous closure whose parameters are the members of the input. An attribute of a
/// parameter, such as a doc comment, is the attribute of its member.
///
/// The closure returns a `Result` with a [`ToolError`]. It gets no [`ToolContext`] and captures no variables. For a tool
/// that needs them, use [`tool_fn`](crate::tool_fn()).
///
/// ```
/// use omni_agent::{Tool, tool};
///
/// let clock = tool!("clock", "Returns the time.", async || Ok("12:00"));
/// let read = tool!("read_file", "Reads a text file.", async |path: String, limit: Option<usize>| {
///     let text = tokio::fs::read_to_string(path).await?;
///     Ok(text.chars().take(limit.unwrap_or(1000)).collect::<String>())
/// });
/// assert_eq!(read.schema().as_value()["required"][0], "path");
/// # assert_eq!(clock.name(), "clock");
/// ```
#[macro_export]
macro_rules! tool {
    ($name:expr, $description:expr, async || $body:expr) => {
        $crate::tool_fn($name, $description, |_: $crate::serde_json::Value, _: $crate::ToolContext| async move {
            $body
        })
    };
    ($name:expr, $description:expr, async |$($(#[$attribute:meta])* $member:ident: $type:ty),+ $(,)?| $body:expr) => {{
        #[derive($crate::serde::Deserialize, $crate::schemars::JsonSchema)]
        #[serde(crate = "omni_agent::serde")]
        #[schemars(crate = "omni_agent::schemars")]
        struct GeneratedToolInput {
            $($(#[$attribute])* $member: $type,)+
        }
        $crate::tool_fn($name, $description, |input: GeneratedToolInput, _: $crate::ToolContext| async move {
            let GeneratedToolInput { $($member),+ } = input;
            $body
        })
    }};
}

/// Makes a tool from a closure and a schema written by hand. `I` is any `Deserialize` type that accepts every input
/// that the schema allows. [`Value`] always does.
pub fn tool_fn_with_schema<I, F, R, O>(
    name: &str,
    description: &str,
    schema: Schema,
    call: F,
) -> impl Tool + use<I, F, R, O>
where
    I: DeserializeOwned + Send + 'static,
    F: Fn(I, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: Into<ToolOutput>,
{
    FnTool { name: name.into(), description: description.into(), schema, call, input: PhantomData }
}

#[async_trait]
impl<I, F, R, O> Tool for FnTool<I, F>
where
    I: DeserializeOwned + Send + 'static,
    F: Fn(I, ToolContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<O, ToolError>> + Send + 'static,
    O: Into<ToolOutput>,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Cow<'_, str> {
        (&*self.description).into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let input = parse(input)?;
        (self.call)(input, context).await.map(Into::into)
    }
}

/// Parses an input. This may fail even if the input matches the schema, because a schema can't express everything that
/// a type requires.
fn parse<I: DeserializeOwned>(input: Value) -> Result<I, ToolError> {
    serde_json::from_value(input)
        .map_err(|error| ToolError::invalid_input(format!("The input could not be read: {error}")))
}

/// Makes a tool that is offered to the model but never run. See [`Tool::has_handler`]. The schema is derived from `I`.
/// The application can parse the input into a value of type `I`.
pub fn declared_tool<I: JsonSchema>(name: &str, description: &str) -> impl Tool + use<I> {
    declared_tool_with_schema(name, description, Schema::of_input::<I>())
}

/// Makes a tool with a schema written by hand. The tool is offered to the model but never run.
pub fn declared_tool_with_schema(name: &str, description: &str, schema: Schema) -> impl Tool + use<> {
    DeclaredTool { name: name.into(), description: description.into(), schema }
}

/// A tool without a handler.
struct DeclaredTool {
    name: String,
    description: String,
    schema: Schema,
}

#[async_trait]
impl Tool for DeclaredTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Cow<'_, str> {
        (&*self.description).into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn has_handler(&self) -> bool {
        false
    }

    async fn call(&self, _input: Value, _context: ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new("This tool is only declared; it can't be run."))
    }
}

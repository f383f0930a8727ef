use serde_json::Value;

use super::{
    Tool, ToolContext, ToolError, ToolOutput,
    run::{check_input, no_handler},
};

/// Runs a single tool, for example in a unit test. Every [`Tool`] implements this trait.
///
/// ```
/// use omni_agent::tool::{Schema, ToolContext, ToolError, ToolExt, tool_fn};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Division {
///     dividend: i64,
///     divisor: i64,
/// }
///
/// let divide = tool_fn("divide", "Divides.", |input: Division, _: ToolContext| async move {
///     let quotient = input.dividend.checked_div(input.divisor);
///     quotient.map(|quotient| quotient.to_string()).ok_or_else(|| ToolError::new("The divisor is 0."))
/// });
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let output = divide.execute(json!({ "dividend": 6, "divisor": 2 })).await?;
/// assert_eq!(output, "3".into());
///
/// let invalid = divide.execute(json!({ "dividend": "six" })).await.unwrap_err();
/// assert!(invalid.is_invalid_input());
///
/// let failed = divide.execute(json!({ "dividend": 6, "divisor": 0 })).await.unwrap_err();
/// assert!(!failed.is_invalid_input());
/// assert_eq!(failed.text(), "The divisor is 0.");
/// # Ok::<(), ToolError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ToolExt: Tool {
    /// Checks the input as an agent does, and runs the tool. Outside an agent the call has no time limit, the output is
    /// not cut, and a panic is not caught.
    ///
    /// # Errors
    ///
    /// If [`is_invalid_input`](ToolError::is_invalid_input) returns `true`, the input was invalid. Otherwise the tool
    /// failed or has no handler.
    ///
    /// # Cancel safety
    ///
    /// As for [`Tool::call`].
    fn execute(&self, input: Value) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send {
        self.execute_in(input, ToolContext::detached("execute"))
    }

    /// Does the same as [`execute`](Self::execute) with a context: extensions, progress reports, a cancellation.
    ///
    /// # Errors
    ///
    /// As for [`execute`](Self::execute).
    ///
    /// # Cancel safety
    ///
    /// As for [`Tool::call`].
    fn execute_in(
        &self,
        input: Value,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput, ToolError>> + Send {
        async move {
            let name = self.name();
            if !self.has_handler() {
                return Err(ToolError::new(no_handler(name)));
            }
            check_input(self, name, &input).map_err(ToolError::invalid_input)?;
            self.call(input, context).await
        }
    }
}

impl<T: Tool + ?Sized> ToolExt for T {}

use serde_json::Value;

use super::{
    Tool, ToolContext, ToolError, ToolOutput,
    run::{check_input, no_handler},
};

/// Checks the input like an agent and runs the tool, for example in a unit test. The call has no time limit, the output
/// is not cut, and a panic is not caught.
///
/// ```
/// use omni_agent::tool::{ToolContext, ToolError, execute, tool_fn};
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
/// let run = |input| execute(&divide, input, ToolContext::detached("call-1"));
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// assert_eq!(run(json!({ "dividend": 6, "divisor": 2 })).await?, "3".into());
///
/// let invalid = run(json!({ "dividend": "six" })).await.unwrap_err();
/// assert!(invalid.is_invalid_input());
///
/// let failed = run(json!({ "dividend": 6, "divisor": 0 })).await.unwrap_err();
/// assert!(!failed.is_invalid_input());
/// assert_eq!(failed.text(), "The divisor is 0.");
/// # Ok::<(), ToolError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If [`is_invalid_input`](ToolError::is_invalid_input) returns `true`, the input is invalid. Otherwise, the tool
/// failed or has no handler.
///
/// # Cancel safety
///
/// As for [`Tool::call`].
pub async fn execute(
    tool: &(impl Tool + ?Sized),
    input: Value,
    context: ToolContext,
) -> Result<ToolOutput, ToolError> {
    let name = tool.name();
    if !tool.has_handler() {
        return Err(ToolError::new(no_handler(name)));
    }
    check_input(tool, name, &input).map_err(ToolError::invalid_input)?;
    tool.call(input, context).await
}

//! Runs tools within their limits. A panic in the application's code affects only the call in which it happens.

use std::{
    future::{Future, pending},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tracing::{Instrument, Span};

use super::{Tool, ToolContext, ToolError, ToolOutput, ToolSet, context::QuestionWaitClock, output::cap};
use crate::{
    json::{is_shallow, parse_strictly},
    message::{ToolResult, ToolUse},
    panics::contained,
    setters::setters,
    telemetry::{CapturedContent, ToolTrace},
    text::clip,
};

/// The limits of the tool calls of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLimits {
    /// The time limit of the call. If a tool has its own [`Tool::timeout`], that limit applies instead. `Duration::MAX`
    /// means no limit.
    pub timeout: Duration,
    /// The longest time without a [progress report](ToolContext::progress), counted from the call's start or the last
    /// report. This limit applies in addition to `timeout`. If a tool has its own [`Tool::idle_timeout`], that limit
    /// applies instead. `Duration::MAX`, which is the default, means no limit.
    pub idle_timeout: Duration,
    /// The maximum size of the output in bytes, for all blocks together. A text is counted as UTF-8 together with its
    /// signature, and an attachment as its base64 data or URL, its media type and its name. A longer text keeps its
    /// beginning and its end, and an attachment that does not fit is omitted. A notice at the gap reports this. The
    /// notice counts towards the limit if the limit leaves room for it.
    pub max_output: usize,
    /// The number of tools of one step that an agent runs at once. The others start when tools end, in the order of
    /// their tool uses. A tool that waits for a person's answer does not count, and neither does a sub-agent that waits
    /// for a decision. So more tools run for a time when the answers arrive, and when a process continues the tools of
    /// an earlier one. The default is 32. The value 0 counts as 1.
    pub at_once: usize,
}

setters!(ToolLimits: with_timeout(timeout: Duration), with_idle_timeout(idle_timeout: Duration));
setters!(ToolLimits: with_max_output(max_output: usize), with_at_once(at_once: usize));

impl Default for ToolLimits {
    /// Returns limits of two minutes, 256 KiB and 32 tools at once, without a limit on the time between progress reports.
    fn default() -> Self {
        let (timeout, idle_timeout) = (Duration::from_mins(2), Duration::MAX);
        Self { timeout, idle_timeout, max_output: 256 * 1024, at_once: 32 }
    }
}

impl ToolSet {
    /// Runs the tool that is named in `tool_use`, and always returns a result.
    ///
    /// Each failure becomes an error result that the model can read and react to. The failures are malformed or invalid
    /// input, an unknown name, a tool without a handler, an error, a panic, a timeout and a cancelled context.
    ///
    /// A tool that blocks its thread can't be stopped, because timeouts and cancellation take effect only when the tool
    /// yields.
    ///
    /// ```
    /// use omni_agent::{
    ///     message::ToolUse,
    ///     tool::{ToolContext, ToolLimits, ToolSet, tool_fn},
    /// };
    /// use serde_json::{Value, json};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let echo = tool_fn("echo", "Gives back its input.", |input: Value, _| async move { Ok(input) });
    /// let tools = ToolSet::new().with(echo)?;
    ///
    /// let tool_use = ToolUse::new("call-1", "echo", json!({ "a": 1 }));
    /// let context = ToolContext::detached(tool_use.id.clone());
    /// let result = tools.run(&tool_use, context, &ToolLimits::default()).await;
    /// assert!(!result.is_error);
    /// assert_eq!(result.text(), r#"{"a":1}"#);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call is dropped and the tool's context is cancelled.
    ///
    /// # Panics
    ///
    /// If the call has a time limit, panics outside a tokio runtime with time enabled.
    pub async fn run(&self, tool_use: &ToolUse, context: ToolContext, limits: &ToolLimits) -> ToolResult {
        let description = || {
            let describe = || self.get(&tool_use.name).map(|tool| tool.description().into_owned());
            contained(describe).ok().flatten()
        };
        let trace = ToolTrace::begin(&tool_use.name, tool_use.id.as_str(), description);
        let span = trace.as_ref().map_or_else(Span::none, |trace| trace.span().clone());
        if let Some(trace) = &trace {
            trace.capture(CapturedContent::ToolInput, || tool_use.input.to_string());
        }
        let outcome = match contained(|| span.in_scope(|| self.admit(tool_use, *limits))) {
            Ok(Ok((tool, limits))) => call(tool, tool_use, &context, limits).instrument(span).await,
            Ok(Err(reason)) => Err(reason),
            Err(panic) => Err(panicked(&tool_use.name, &panic)),
        };
        let mut result = match outcome {
            Ok(output) => ToolResult {
                tool_use_id: tool_use.id.clone(),
                name: tool_use.name.clone(),
                content: output.blocks,
                is_error: output.is_error,
                decision: None,
            },
            Err(text) => ToolResult::error(tool_use, text),
        };
        result.content = cap(result.content, limits.max_output);
        if let Some(trace) = trace {
            trace.capture(CapturedContent::ToolOutput, || result.text());
            trace.end(result.is_error);
        }
        result
    }

    /// Returns the tool to call and its limits, or the reason why the tool is not called. This runs code of the
    /// application, which may panic.
    fn admit(&self, tool_use: &ToolUse, mut limits: ToolLimits) -> Result<(&dyn Tool, ToolLimits), String> {
        let name = &tool_use.name;
        let tool = self.get(name).ok_or_else(|| self.no_such_tool(name))?;
        if !tool.has_handler() {
            return Err(no_handler(name));
        }
        if let Some(raw) = &tool_use.malformed {
            return Err(malformed(name, raw));
        }
        check_input(&**tool, name, &tool_use.input)?;
        limits.timeout = tool.timeout().unwrap_or(limits.timeout);
        limits.idle_timeout = tool.idle_timeout().unwrap_or(limits.idle_timeout);
        Ok((&**tool, limits))
    }

    /// Returns the error result of a tool use whose input its tool does not accept. Returns `None` if there is no such
    /// tool, if the tool has no handler, or if one of its methods panics.
    pub(crate) fn refused_input(&self, tool_use: &ToolUse) -> Option<ToolResult> {
        let name = &tool_use.name;
        let refused = contained(|| {
            let tool = self.get(name).filter(|tool| tool.has_handler())?;
            match &tool_use.malformed {
                Some(raw) => Some(malformed(name, raw)),
                None => check_input(&**tool, name, &tool_use.input).err(),
            }
        });
        Some(ToolResult::error(tool_use, refused.ok().flatten()?))
    }

    /// Returns the input with objects and arrays in place of the members that a model has sent as JSON within a string.
    /// Returns `None` if the tool accepts the strings, or refuses the decoded input too.
    pub(crate) fn decoded_input(&self, tool_use: &ToolUse) -> Option<Value> {
        let decode = || {
            let tool = self.get(&tool_use.name).filter(|tool| tool.has_handler())?;
            let members = tool_use.input.as_object()?.iter();
            let members: Vec<_> =
                members.filter_map(|(name, value)| Some((name, decoded(value.as_str()?)?))).collect();
            if members.is_empty() {
                return None;
            }
            let problems = tool.schema().validate(&tool_use.input).err()?;
            let mut input = tool_use.input.clone();
            for (name, value) in members {
                // If a string is allowed here, the problems do not name this place.
                if problems.contains(&format!("- at /{name}: ")) {
                    input[name] = value;
                }
            }
            check_input(&**tool, &tool_use.name, &input).ok()?;
            is_shallow(&input).then_some(input)
        };
        contained(decode).ok().flatten()
    }

    fn no_such_tool(&self, name: &str) -> String {
        const SHOWN: usize = 50;
        let name = clip(name, 200);
        if self.is_empty() {
            return format!("There is no tool {name:?}. No tools are available.");
        }
        let names: Vec<_> = self.iter().take(SHOWN).map(|tool| &**tool).map(Tool::name).collect();
        let more = match self.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("There is no tool {name:?}. The tools are: {}{more}.", names.join(", "))
    }
}

fn no_handler(name: &str) -> String {
    format!("The tool {name:?} can't be run: it is only declared here.")
}

/// Returns the object or the array in a text.
fn decoded(text: &str) -> Option<Value> {
    text.trim_start().starts_with(['{', '[']).then(|| parse_strictly::<Value>(text))?
}

/// Checks an input against the tool's schema. The error text is for the model.
fn check_input<T: Tool + ?Sized>(tool: &T, name: &str, input: &Value) -> Result<(), String> {
    if !input.is_object() {
        return Err(format!("The input of {name:?} must be a JSON object. Correct it and call again."));
    }
    tool.schema().validate(input).map_err(|problems| {
        format!("The input of {name:?} does not fit its schema:\n{problems}\nCorrect it and call again.")
    })
}

async fn call(
    tool: &dyn Tool,
    tool_use: &ToolUse,
    context: &ToolContext,
    limits: ToolLimits,
) -> Result<ToolOutput, String> {
    let name = &tool_use.name;
    let ToolLimits { timeout, idle_timeout, .. } = limits;
    let (mut own, cancellation) = context.with_own_cancellation();
    let reports = (idle_timeout < Duration::MAX).then(|| own.watch_progress());
    // If the call is abandoned, this guard cancels the tool's context, so that work that the tool has started elsewhere
    // can stop.
    let abandoned = cancellation.drop_guard();
    let call = PanicCatchingFuture::new(|| tool.call(tool_use.input.clone(), own));
    let outcome = tokio::select! {
        biased;
        () = context.cancelled() => return Err(format!("The call of {name:?} was cancelled.")),
        outcome = within(timeout, call, context) => {
            outcome.ok_or_else(|| format!("The tool {name:?} did not finish within {timeout:?} and was stopped."))?
        }
        () = silence(idle_timeout, reports, context) => {
            return Err(format!("The tool {name:?} reported no progress for {idle_timeout:?} and was stopped."));
        }
    };
    abandoned.disarm();
    match outcome {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) if error.text().trim().is_empty() => {
            Err(format!("The tool {name:?} failed without an error message."))
        }
        Ok(Err(error)) => Err(error.text().to_owned()),
        Err(panic) => Err(panicked(name, &panic)),
    }
}

/// Waits until no progress was reported for `limit`. Waits forever if the reports are not watched.
async fn silence(limit: Duration, reports: Option<Arc<Notify>>, context: &ToolContext) {
    let Some(reports) = reports else { return pending().await };
    while within(limit, reports.notified(), context).await.is_some() {}
}

/// Waits for the call, but not longer than `limit`. Returns `None` if the limit has passed. The time during which a
/// question of the call waits does not count.
pub(crate) async fn within<F: Future>(limit: Duration, call: F, context: &ToolContext) -> Option<F::Output> {
    let (mut call, clock) = (pin!(call), context.clock());
    let Some(deadline) = Instant::now().checked_add(limit).filter(|_| limit < Duration::MAX) else {
        return Some(call.await);
    };
    // The time for which the clock was stopped before this call of `within` does not extend the limit.
    let before = clock.map_or(Duration::ZERO, QuestionWaitClock::stood);
    let mut stood = before;
    loop {
        let deadline = deadline.checked_add(stood.saturating_sub(before)).unwrap_or(deadline);
        if let Ok(output) = timeout_at(deadline, &mut call).await {
            return Some(output);
        }
        let until_it_runs = async {
            match clock {
                Some(clock) => clock.runs().await,
                None => before,
            }
        };
        let stood_now = tokio::select! {
            biased;
            output = &mut call => return Some(output),
            stood = until_it_runs => stood,
        };
        if stood_now == stood {
            return None;
        }
        stood = stood_now;
    }
}

fn panicked(name: &str, panic: &str) -> String {
    tracing::warn!(tool = name, panic, "a tool panicked");
    format!("The tool {name:?} failed unexpectedly: {panic}")
}

/// Returns a text for the model that explains why its input is not a JSON object.
fn malformed(name: &str, raw: &str) -> String {
    let reason = match serde_json::from_str::<Value>(raw) {
        Ok(_) => "it is JSON, but not an object".to_owned(),
        Err(error) => error.to_string(),
    };
    let start = clip(raw, 200);
    format!(
        "The input of {name:?} must be a JSON object: {reason}. It began with: {start}\nSend the complete input again."
    )
}

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

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A future that catches panics and returns the message of a panic as its error. The wrapped future may panic when it
/// is created, polled or dropped.
struct PanicCatchingFuture<'a, T>(Option<Result<BoxFuture<'a, T>, String>>);

impl<'a, T> PanicCatchingFuture<'a, T> {
    fn new(make: impl FnOnce() -> BoxFuture<'a, T>) -> Self {
        Self(Some(contained(make)))
    }

    fn discard(&mut self) {
        let future = self.0.take();
        if let Err(panic) = contained(|| drop(future)) {
            tracing::warn!(panic, "a tool panicked while its call was dropped");
        }
    }
}

impl<T> Future for PanicCatchingFuture<'_, T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            Some(Ok(future)) => match contained(|| future.as_mut().poll(cx)) {
                Ok(Poll::Pending) => return Poll::Pending,
                Ok(Poll::Ready(output)) => Ok(output),
                Err(panic) => Err(panic),
            },
            Some(Err(panic)) => Err(std::mem::take(panic)),
            None => return Poll::Pending,
        };
        self.discard();
        Poll::Ready(outcome)
    }
}

impl<T> Drop for PanicCatchingFuture<'_, T> {
    fn drop(&mut self) {
        self.discard();
    }
}

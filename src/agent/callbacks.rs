use std::{any::Any, error::Error, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, Prompt, Recovery, RecoveryDecision, Response, State, StateEdit};
use crate::{
    message::{Blocks, ToolResult, ToolUse},
    provider::Request,
    subscription::EndReason,
    tool::Decision,
};

/// The application's callbacks in an agent. Every method is optional, because it has a default.
///
/// The agent calls one method at a time, with `&mut self`. The implementing type can therefore hold its own state in
/// its fields.
///
/// A callback reaches its agent through [`State::agent`], and may call any operation of the agent, with one exception.
/// A callback must not use [`ask`](super::Agent::ask) or [`wait_until_idle`](super::Agent::wait_until_idle) to wait for
/// something that can happen only after the callback has returned, because the callback would wait for itself. A
/// callback object that stores an [`Agent`](super::Agent) keeps the agent alive.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let delete = Step::tool_use("1", "delete", serde_json::json!({ "file": "notes.md" }));
/// # let provider = ScriptedProvider::new([delete, Step::text("I may not delete files.")]);
/// # let model = provider.model();
/// # let delete = omni_agent::tool_fn("delete", "Deletes a file.", |_: serde_json::Value, _| async {
/// #     Ok::<_, omni_agent::ToolError>("deleted")
/// # });
/// use omni_agent::agent::{Agent, AgentCallbacks, State, ToolDecision};
/// use omni_agent::{async_trait, message::ToolUse};
///
/// struct ReadOnly;
///
/// #[async_trait]
/// impl AgentCallbacks for ReadOnly {
///     async fn handle_tool_use(&mut self, tool_use: &ToolUse, _state: &mut State) -> ToolDecision {
///         match &*tool_use.name {
///             "read" => ToolDecision::Execute,
///             name => ToolDecision::Reject(format!("`{name}` is not allowed")),
///         }
///     }
/// }
///
/// let agent = Agent::builder().model(model).tool(delete).callbacks(ReadOnly).start().await?;
/// assert_eq!(agent.ask("Delete notes.md.").await?.text(), "I may not delete files.");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// A cancel, an interrupt, a stop or a turn's time limit drops the future of a callback at the future's next await. The
/// callback's edits of the configuration are then discarded, and the fields of the callback object may be only partly
/// updated. Blocking code cannot be cancelled and blocks the whole agent, so run it with
/// [`tokio::task::spawn_blocking`].
///
/// # Panics
///
/// If `init` panics, the agent does not start. If `terminate` panics, the panic is only logged. A panic in any other
/// callback ends the run with an error event. The history is then the same as before the turn, and the agent remains
/// usable.
#[async_trait]
pub trait AgentCallbacks: Send + 'static {
    /// Called when the agent starts. The callback may edit the configuration and the history.
    ///
    /// # Errors
    ///
    /// If the callback returns an error, the agent does not start.
    async fn init(
        &mut self,
        draft: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = (draft, state);
        Ok(())
    }

    /// Called when a stored turn in flight continues after its conversation was opened again, before anything else of
    /// the turn. The callback may change the treatment of the tool uses whose outcome is not known. A turn that was
    /// restarted too often without progress is interrupted instead, without a call of this method.
    ///
    /// By default, the decision is the one that was set with [`Recover`](super::Recover).
    ///
    /// The other callbacks of a stored turn are called at least once: if a process ended before the outcome of a
    /// callback was stored, the callback is called again.
    async fn handle_recovery(&mut self, recovery: &mut Recovery, state: &mut State) -> RecoveryDecision {
        let _ = state;
        recovery.decision
    }

    /// Called before each request is sent. The callback may change the request without changing the history, for
    /// example trim it, compact it or add context.
    ///
    /// If a response did not match the output schema, the next request ends with that response and a note about the
    /// problem. If the callback trims the history so that a tool use loses its result, or a result its tool use, the
    /// trimmed history is [repaired](crate::message::History::repair) before the request is sent. The response is
    /// checked against the output schema that the request has when the callback returns. Edits of the state affect only
    /// later requests.
    async fn prepare_step(&mut self, request: &mut Request, state: &mut State) {
        let _ = (request, state);
    }

    /// Called for each tool use of a step, in order, before any tool runs. Also called for tools that a service runs
    /// itself, if the service asks for a decision.
    ///
    /// Not called if the output limit has cut the response. None of its tools run then, and the model is asked again. If
    /// the next response is cut too, the turn ends with [`StopReason::Length`](crate::provider::StopReason::Length).
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, state: &mut State) -> ToolDecision {
        let _ = (tool_use, state);
        ToolDecision::Execute
    }

    /// Called for the result of each tool use, in order, when all results of the step exist. A result is returned by
    /// the tool, or given by a decision that rejected the tool use or provided the result.
    ///
    /// Returns the result that the model sees. The id and name of the returned result are ignored: they are always set
    /// to those of this tool use. An interrupt keeps existing results without calling this method, and so does
    /// [`ErrorDecision::Retry`] after the turn's time limit.
    async fn handle_tool_result(&mut self, result: ToolResult, state: &mut State) -> ToolResult {
        let _ = state;
        result
    }

    /// Called when the model needs no more tools. Also called when the tools that the model uses are not run, because
    /// the limit of requests is reached, the response was refused or cut, or a tool has no handler. The response covers the
    /// whole turn. The turn is committed when the callback returns.
    ///
    /// A staged prompt takes precedence over a continuation. If the limit of requests is reached, a continuation is
    /// ignored.
    async fn handle_turn(&mut self, response: &Response, state: &mut State) -> TurnDecision {
        let _ = (response, state);
        TurnDecision::Stop
    }

    /// Called when a step failed, the retry policy does not allow another attempt, and no
    /// [backup model](super::AgentBuilder::backup_model) is left for the failure. Also called when the turn reached
    /// its time limit. If this callback itself takes longer than the time limit, the run ends as with
    /// [`ErrorDecision::Stop`]. If it panics, the turn is discarded.
    ///
    /// Also called when a budget refuses the request of a step. The callback can raise the budget with
    /// [`Config::set_budget`](super::Config::set_budget), and retry the step. If the step is refused again although no
    /// limit was raised, the callback is not called again.
    async fn handle_error(&mut self, failure: &Failure, state: &mut State) -> ErrorDecision {
        let _ = (failure, state);
        ErrorDecision::Stop
    }

    /// Called with an application event that was sent with [`notify`](super::Agent::notify). If a turn is active, the
    /// event waits until the turn ends. If a prompt starts a turn while this callback runs, the turn's time limit may
    /// drop the future of the callback, as a cancel or an interrupt may. Then the event is dropped too, and a warning is
    /// logged.
    ///
    /// If the callback returns a prompt, the prompt starts a run or the next turn. If the application has staged a
    /// prompt in the meantime, the staged prompt is used first, and the returned prompt follows it. If the run ends
    /// before both are used, `Prompt` events return the unused prompts, each with its own settings.
    ///
    /// A returned prompt that cannot be accepted ends the run with an error event. Examples are a blank prompt, and a
    /// prompt with tool results during a run. The session of the agent may also refuse all prompts, because too much is
    /// unsaved or because the session is shutting down. In this case, a `Prompt` event returns the prompt before the
    /// error event.
    async fn handle_event(&mut self, event: Box<dyn Any + Send>, state: &mut State) -> Option<Prompt> {
        let _ = (event, state);
        None
    }

    /// Called once when the agent ends, even if the agent ends because its last handle was dropped. Not called if the
    /// agent's task is killed.
    async fn terminate(&mut self, reason: &EndReason, state: &State) {
        let _ = (reason, state);
    }
}

/// Callbacks with the default behaviour.
#[async_trait]
impl AgentCallbacks for () {}

/// The decision of [`handle_tool_use`](AgentCallbacks::handle_tool_use). If its values have more than 64 levels of
/// arrays and objects, the run ends with [`Failure::Callback`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolDecision {
    /// Run the tool. If the tool needs an approval, the tool use waits for an approval instead, as with `Pause`.
    Execute,
    /// Run the tool, even if it needs an approval.
    Approve,
    /// Run the tool with this input instead. The history keeps the input that the model sent. If the tool needs an
    /// approval, the tool use waits for an approval of this input.
    ExecuteWith(Value),
    /// Do not run the tool. The model gets this text as an error result.
    Reject(String),
    /// Do not run the tool. The model gets this result.
    Provide(ToolResult),
    /// Wait for a decision from [`resume`](super::Agent::resume). The value is the reason for the pause. Subscribers
    /// see the reason.
    Pause(Value),
    /// Like `Pause`, with a time limit. [`pause_for`](Self::pause_for) creates a pause that rejects the tool use when
    /// the time is over.
    PauseFor {
        /// The reason, which subscribers see.
        reason: Value,
        /// The time after which `on_expiry` applies. It starts when the pause is emitted. A time of more than a year
        /// means no limit.
        expires_in: Duration,
        /// The decision that applies when the time is over.
        on_expiry: Decision,
    },
}

impl ToolDecision {
    /// Creates a decision to pause for at most `expires_in`. If nobody has decided by then, the tool use is rejected.
    pub fn pause_for(reason: impl Into<Value>, expires_in: Duration) -> Self {
        let on_expiry = Decision::reject(format!("Not run: nobody approved this within {expires_in:?}."));
        Self::PauseFor { reason: reason.into(), expires_in, on_expiry }
    }
}

impl From<Decision> for ToolDecision {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Execute => Self::Execute,
            Decision::ExecuteWith(input) => Self::ExecuteWith(input),
            Decision::Reject(reason) => Self::Reject(reason),
            Decision::Provide(result) => Self::Provide(result),
        }
    }
}

/// The decision of [`handle_turn`](AgentCallbacks::handle_turn).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnDecision {
    /// End the run.
    Stop,
    /// Start another turn with this content as its user message. If the content is blank or does not fit the history,
    /// the run fails.
    Continue(Blocks),
}

impl TurnDecision {
    /// Returns the decision to start another turn with this content as its user message.
    pub fn continue_with(content: impl Into<Blocks>) -> Self {
        Self::Continue(content.into())
    }
}

/// The decision of [`handle_error`](AgentCallbacks::handle_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorDecision {
    /// End the run with an error event, and commit the completed steps and the streamed text of the turn, as an
    /// interrupt does. If only the prompt could be kept, nothing is committed.
    ///
    /// If the service has refused the request ([`InvalidRequest`], [`Unsupported`] or [`ContextTooLong`]), it would
    /// refuse the results of the last step in every later request too. So each attachment in these results, and each
    /// text of more than 512 bytes, is replaced by a note, unless the response had begun. [`InvalidRequest`] with a
    /// status of 300 to 399, 404 or 405 and each error with the status 501 or 505 do not count, because they concern
    /// the model or the address. If another model got the last request, only errors of that model count.
    ///
    /// [`InvalidRequest`]: crate::provider::ProviderErrorKind::InvalidRequest
    /// [`Unsupported`]: crate::provider::ProviderErrorKind::Unsupported
    /// [`ContextTooLong`]: crate::provider::ProviderErrorKind::ContextTooLong
    Stop,
    /// End the run with an error event, and discard the turn.
    Discard,
    /// Repeat the step at once, with the history that the failed step had. The repetition counts as a request. If the
    /// limit of requests is reached, the run ends as with `Stop` instead.
    ///
    /// If the turn's time limit has cut off the tools of a step, and one of them has ended, the step is not repeated, because
    /// the tool would run again. The step keeps the results that exist, as after an interrupt. The other tool uses get error
    /// results, and the next step begins, without an event [`Retry`](super::Event::Retry). If none of the tools has ended,
    /// the step is repeated, although a tool that was cut off may have had an effect.
    Retry,
    /// Continue as with `Retry`, after this delay. The delay counts towards the turn's time limit. It is exact: a delay
    /// that a service requests is extended only by the [`RetryPolicy`](crate::provider::RetryPolicy).
    RetryAfter(Duration),
}

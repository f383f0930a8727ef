use std::{any::Any, error::Error, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, Prompt, Response, State, StateEdit};
use crate::{
    message::{Blocks, ToolResult, ToolUse},
    provider::Request,
    subscription::EndReason,
    tool::Decision,
};

/// An application's own event, on its way to [`AgentCallbacks::handle_event`].
pub type AppEvent = Box<dyn Any + Send>;

/// Where an application takes part in an agent's life. Every method is optional.
///
/// One is called at a time. What a callback object keeps for itself lives in its own fields.
///
/// A callback reaches its own agent through [`State::agent`]. All operations are answered there too, but a
/// callback that waits for what comes after it, with [`ask`](super::Agent::ask) or
/// [`wait_until_idle`](super::Agent::wait_until_idle), waits for itself. One that keeps an
/// [`Agent`](super::Agent) keeps it alive.
///
/// # Cancel safety
///
/// A cancel, an interrupt, a stop or a turn's time limit drops the future of a callback at its next await.
/// Its edits of the configuration are void then; its own fields may be half changed. Blocking code can't be
/// cancelled, and holds up the whole agent: put it on [`tokio::task::spawn_blocking`].
///
/// # Panics
///
/// A panic in a callback ends the run in an error event; the history is as before the turn, and the agent
/// lives on.
#[async_trait]
pub trait AgentCallbacks: Send + 'static {
    /// The agent starts. May edit the configuration and the history.
    ///
    /// # Errors
    ///
    /// An error refuses the start.
    async fn init(
        &mut self,
        draft: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let _ = (draft, state);
        Ok(())
    }

    /// A request is about to be sent. May change it — trim, compact, add context — without changing the
    /// history. An answer that is asked for again, since it did not fit the output schema, is at the request's
    /// end, with a note on what is wrong. A trimmed history that breaks the history law is repaired before it is
    /// sent. The answer is read by the output schema that the request carries then. Edits of the state do not
    /// show in this request, but in those after it.
    async fn prepare_step(&mut self, request: &mut Request, state: &mut State) {
        let _ = (request, state);
    }

    /// The model wants a tool run. Called for each tool use of a step, in order, before any tool runs; and
    /// for tools that a service runs itself, where it asks.
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, state: &mut State) -> ToolDecision {
        let _ = (tool_use, state);
        ToolDecision::Execute
    }

    /// A tool use has its result: executed, rejected or provided. Called for each, in order, when all are
    /// there. Returns what the model sees; whatever id and name it has, it answers this tool use. An interrupt keeps
    /// results that exist without this review.
    async fn handle_tool_result(&mut self, result: ToolResult, state: &mut State) -> ToolResult {
        let _ = state;
        result
    }

    /// The model needs no more tools, or gets none run: at the limit of requests, or where a tool has no
    /// handler. The response covers the whole turn, which is committed when this returns.
    ///
    /// A staged prompt goes before a continuation, and at the limit of requests there is no continuation.
    async fn handle_turn(&mut self, response: &Response, state: &mut State) -> TurnDecision {
        let _ = (response, state);
        TurnDecision::Stop
    }

    /// A step failed and was not, or no longer, repeated unseen; or the turn reached its time limit.
    async fn handle_error(&mut self, failure: &Failure, state: &mut State) -> ErrorDecision {
        let _ = (failure, state);
        ErrorDecision::Stop
    }

    /// The application sent an event with [`notify`](super::Agent::notify). While a turn is active, the event waits
    /// for the turn's end. A cancel, an interrupt or a turn's time limit that drops this future drops its event too
    /// and logs a warning. A prompt that is returned starts a run, or takes over the next turn. If
    /// the application has staged one meanwhile, that one goes first, and this one after it; an event that
    /// carries the staged prompt back then has the contents of both, with the options of the first.
    ///
    /// A prompt that can't be taken, such as a blank one or one with tool results while a run is on, ends the
    /// run in an error event. So does any prompt while the agent's session takes nothing new, because too much is unsaved or
    /// it is being shut down; that error event carries the prompt back as `staged`.
    async fn handle_event(&mut self, event: AppEvent, state: &mut State) -> Option<Prompt> {
        let _ = (event, state);
        None
    }

    /// The agent ends. Called once, also when its last handle was dropped, unless its task is killed.
    async fn terminate(&mut self, reason: &EndReason, state: &State) {
        let _ = (reason, state);
    }
}

/// Callbacks that do nothing of their own.
#[async_trait]
impl AgentCallbacks for () {}

/// What becomes of a tool use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolDecision {
    /// Run the tool.
    Execute,
    /// Run the tool with this input instead. The history keeps what the model sent.
    ExecuteWith(Value),
    /// Do not run it; the model gets an error result with this text.
    Reject(String),
    /// Do not run it; the model gets this result.
    Provide(ToolResult),
    /// Wait for [`resume`](super::Agent::resume), for this reason.
    Pause(Value),
}

impl ToolDecision {
    /// The decision, or the reason to wait for one.
    pub(crate) fn or_pause(self) -> Result<Decision, Value> {
        Ok(match self {
            Self::Execute => Decision::Execute,
            Self::ExecuteWith(input) => Decision::ExecuteWith(input),
            Self::Reject(reason) => Decision::Reject(reason),
            Self::Provide(result) => Decision::Provide(result),
            Self::Pause(reason) => return Err(reason),
        })
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

/// What becomes of a run whose turn is complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnDecision {
    /// The run ends.
    Stop,
    /// Another turn follows, with this as its user message. Content that is blank, or does not fit the history,
    /// fails the run.
    Continue(Blocks),
}

impl TurnDecision {
    /// Another turn, with this as its user message.
    pub fn continue_with(content: impl Into<Blocks>) -> Self {
        Self::Continue(content.into())
    }
}

/// What becomes of a step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorDecision {
    /// The run ends in an error event.
    Stop,
    /// The step is repeated at once, with the history it had. It counts as a request: at the limit of requests
    /// the run ends in an error event instead.
    Retry,
    /// The step is repeated after this long, which counts into the turn's time limit.
    RetryAfter(Duration),
}

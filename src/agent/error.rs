use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{Failure, PromptId, PromptState, Response, Status};
use crate::{
    error::source_after,
    message::{HistoryError, ToolUse, ToolUseId},
    provider::{ProviderError, RegistryError},
    subscription::EndReason,
    tool::{SchemaError, ToolSetError},
};

/// An operation on an agent failed. Unless the variant states otherwise, nothing has changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AgentError {
    /// The agent has ended. The value is the reason.
    Stopped(EndReason),
    /// The operation requires an idle agent. The value is the agent's status.
    Busy(Status),
    /// The agent has emitted events that the caller has not seen.
    Moved,
    /// No run is active, so there is nothing to cancel or interrupt.
    Idle,
    /// `resume` was called, but no tool use waits for a decision. The value is the agent's status.
    NotPaused(Status),
    /// `resume` was called for a tool use that does not wait for a decision.
    StaleResume {
        /// The ids of the tool uses that wait for a decision.
        waiting: Vec<ToolUseId>,
        /// The id that was given to `resume`.
        given: ToolUseId,
    },
    /// The name given to `resume_as` is too long.
    LongName {
        /// The length of the name in bytes.
        length: usize,
        /// The greatest allowed length of the name in bytes.
        limit: usize,
    },
    /// The arrays and objects in a decision about a tool use are nested too deeply.
    DeepDecision {
        /// The greatest allowed number of levels of nested arrays and objects.
        limit: usize,
    },
    /// The prompt has no content.
    EmptyPrompt,
    /// The prompt contains a tool use, or a tool result that answers no open tool use of the history.
    InvalidPrompt(HistoryError),
    /// The prompt contains tool results, but a run is active, so the prompt would have to be staged. A staged prompt
    /// can't contain tool results, because the tool uses that the turn in flight will leave open are not known yet.
    ResultsWhileBusy,
    /// The id of the prompt is empty or too long.
    InvalidPromptId {
        /// The length of the id in bytes.
        length: usize,
        /// The greatest allowed length of the id in bytes.
        limit: usize,
    },
    /// The application's data in the prompt is too large.
    LargeAppData {
        /// The size of the data in bytes of its JSON form.
        size: usize,
        /// The greatest allowed size of the data in bytes of its JSON form.
        limit: usize,
    },
    /// The arrays and objects in the application's data of the prompt are nested too deeply.
    DeepAppData {
        /// The greatest allowed number of levels of nested arrays and objects.
        limit: usize,
    },
    /// A prompt with this id was accepted before. Nothing was started. The value is the state of that prompt.
    KnownPrompt(PromptState),
    /// The queue of staged prompts is full. The value is its length.
    QueueFull(usize),
    /// The prompt is meant for the next step of the turn in flight, but it has settings, which apply to whole turns.
    NotAtStep,
    /// No prompt with this id is staged. Its turn may have started already.
    NotStaged(PromptId),
    /// The limit of requests is zero.
    ZeroSteps,
    /// The time limit of a turn is zero.
    ZeroTimeout,
    /// The builder was given no model.
    NoModel,
    /// The model's name could not be resolved.
    Model(RegistryError),
    /// The history is invalid: see [`History::check`](crate::message::History::check).
    InvalidHistory(HistoryError),
    /// The history belongs to a session, so `init` and `set_state` cannot change it.
    HistoryOwned,
    /// The message is not a user message, so no run can start with it.
    NotAPrompt,
    /// The tools do not form a valid set.
    InvalidTools(ToolSetError),
    /// The output schema is invalid.
    InvalidOutputSchema(SchemaError),
    /// `init` or the closure of `set_state` returned this error.
    Refused(Arc<dyn Error + Send + Sync>),
    /// `init` or the closure of `set_state` panicked. The values are the name of the code that panicked and the message
    /// of the panic.
    Panicked(&'static str, String),
    /// The queue of application events is full. The value is the length of the queue.
    TooManyEvents(usize),
    /// The receiver of the commit channel is too far behind, so the agent accepts no prompt and no change of its
    /// configuration or history. The value is the number of events that wait for the receiver.
    CommitBehind(usize),
    /// The agent's session accepts no prompts now. The value states the reason: too much is unsaved, or the session is
    /// shutting down.
    OnHold(Arc<dyn Error + Send + Sync>),
    /// The run that this call started was cancelled. The response contains the discarded messages.
    Cancelled(Arc<Response>),
    /// The run that this call started failed. The response contains the messages that the run has kept. If the last turn
    /// was discarded, the response contains the discarded messages: see [`response`](Self::response).
    Failed(Failure, Arc<Response>),
    /// The response does not match the output schema or the requested type. The values are the problem and the
    /// response.
    Output(String, Arc<Response>),
    /// The deadline passed before the agent had finished ending. The agent has ended nevertheless.
    Deadline {
        /// The deadline that passed.
        deadline: Duration,
        /// The tool uses whose tools were aborted but are still running. If the list is empty, `terminate`, the
        /// provider's `close` or the commit channel took too long.
        tools: Vec<ToolUse>,
    },
}

impl AgentError {
    /// Converts the error that `init` or the closure of `set_state` returned. An unresolved model name remains a
    /// `Model` error.
    pub(crate) fn refused(error: Box<dyn Error + Send + Sync>) -> Self {
        let error = match error.downcast::<RegistryError>() {
            Ok(error) => return Self::Model(*error),
            Err(error) => error,
        };
        match error.downcast::<Self>() {
            Ok(error) if matches!(*error, Self::Model(_)) => *error,
            Ok(error) => Self::Refused(Arc::new(*error)),
            Err(error) => Self::Refused(error.into()),
        }
    }

    /// Returns whether a run is active, so that the operation has to wait until the agent is idle.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::ResultsWhileBusy)
    }

    /// Returns whether the operation conflicts with the agent's current activity, like HTTP's 409.
    pub fn is_conflict(&self) -> bool {
        self.is_busy()
            || matches!(
                self,
                Self::Idle
                    | Self::Moved
                    | Self::NotPaused(_)
                    | Self::StaleResume { .. }
                    | Self::KnownPrompt(_)
                    | Self::NotStaged(_)
            )
    }

    /// Returns whether the agent has ended or accepts nothing now, like HTTP's 503. Start the agent again, or try again
    /// later.
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Stopped(_)
                | Self::TooManyEvents(_)
                | Self::QueueFull(_)
                | Self::CommitBehind(_)
                | Self::OnHold(_)
        )
    }

    /// Returns the model service's error if it made the run fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Failed(Failure::Provider { error }, _) => Some(error),
            _ => None,
        }
    }

    /// Returns the response of the run, if this error is the end of a run or about its response.
    ///
    /// If the run failed, its work is kept: the response has the messages of all turns of the run, and the history
    /// contains them. So do not send the prompt again, but a prompt such as "Continue". In three cases, the last turn
    /// was discarded instead, and the response has the discarded messages: only the prompt could be kept, a callback
    /// failed, or `handle_error` returned [`ErrorDecision::Discard`](super::ErrorDecision::Discard). Then
    /// [`RunEnd::unanswered`](super::RunEnd::unanswered) in [`Snapshot::last_run`](super::Snapshot::last_run) lists the
    /// prompt. Otherwise this list is empty. If the run was cancelled, the messages were discarded.
    pub fn response(&self) -> Option<&Arc<Response>> {
        match self {
            Self::Cancelled(response) | Self::Failed(_, response) | Self::Output(_, response) => {
                Some(response)
            }
            _ => None,
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => write!(f, "the agent has ended: {reason}"),
            Self::Busy(status) => write!(f, "the agent is {status:?}; wait until it is idle, or cancel"),
            Self::Moved => f.write_str("the agent has emitted newer events; read them, then try again"),
            Self::Idle => f.write_str("no run is active; there is nothing to cancel or interrupt"),
            Self::NotPaused(status) => write!(f, "the agent is {status:?}; no tool use waits for a decision"),
            Self::StaleResume { waiting, given } => {
                let waiting: Vec<_> = waiting.iter().map(ToolUseId::as_str).collect();
                write!(
                    f,
                    "the decision is for tool use {given}, but the agent waits for decisions about {}",
                    waiting.join(", ")
                )
            }
            Self::LongName { length, limit } => write!(
                f,
                "the decider's name has {length} bytes, but at most {limit} are allowed; pass a shorter name"
            ),
            Self::DeepDecision { limit } => write!(
                f,
                "the decision is nested too deeply; at most {limit} levels of arrays and objects are allowed"
            ),
            Self::EmptyPrompt => f.write_str("the prompt is empty; give it text or an attachment"),
            Self::InvalidPrompt(error) => write!(f, "the prompt does not fit the history: {error}"),
            Self::ResultsWhileBusy => f.write_str(
                "a prompt with tool results cannot be staged; send it when the agent is idle, or use resume",
            ),
            Self::InvalidPromptId { length, limit } => {
                write!(f, "the prompt's id has {length} bytes; use an id of 1 to {limit} bytes")
            }
            Self::LargeAppData { size, limit } => write!(
                f,
                "the application's data in the prompt has {size} bytes as JSON, but at most {limit} are allowed; store \
                 the data elsewhere and put a reference into the prompt"
            ),
            Self::DeepAppData { limit } => write!(
                f,
                "the application's data in the prompt is nested too deeply; at most {limit} levels are allowed"
            ),
            Self::KnownPrompt(_) => f.write_str(
                "a prompt with this id was accepted before; use another id for a new prompt",
            ),
            Self::QueueFull(staged) => write!(
                f,
                "{staged} prompts are staged, which is the maximum; wait for the next turn, or unstage one"
            ),
            Self::NotAtStep => f.write_str(
                "a prompt for the next step cannot have a model, options or limits; send them with a prompt for \
                 the next turn",
            ),
            Self::NotStaged(id) => write!(f, "no prompt with the id {id} is staged; it may have been used"),
            Self::ZeroSteps => {
                f.write_str("max_steps is 0, which allows no request; leave it unset for no limit")
            }
            Self::ZeroTimeout => {
                f.write_str("turn_timeout is zero, which allows no turn; leave it unset for no limit")
            }
            Self::NoModel => f.write_str("no model is set; give the builder a Model or a `provider:model`"),
            Self::Model(error) => write!(f, "the model can't be resolved: {error}"),
            Self::InvalidHistory(error) => write!(f, "the history is invalid: {error}"),
            Self::HistoryOwned => {
                f.write_str("the history belongs to the agent's session; change it through the session")
            }
            Self::NotAPrompt => f.write_str("only a user message can start a run again"),
            Self::InvalidTools(error) => write!(f, "the tools are invalid: {error}"),
            Self::InvalidOutputSchema(error) => write!(f, "the output schema is invalid: {error}"),
            Self::Refused(error) => write!(f, "init or the closure of set_state failed: {error}"),
            Self::Panicked(code, message) => write!(f, "{code} panicked: {message}"),
            Self::TooManyEvents(waiting) => write!(
                f,
                "{waiting} application events are queued, which is the maximum; wait until some are handled"
            ),
            Self::CommitBehind(waiting) => write!(
                f,
                "{waiting} events wait for the commit channel; \
                 no run can start until its receiver has read some"
            ),
            Self::OnHold(cause) => write!(f, "the prompt was refused: {cause}"),
            Self::Cancelled(_) => f.write_str("the run was cancelled"),
            Self::Failed(failure, _) => write!(f, "the run failed: {failure}"),
            Self::Output(problem, _) => {
                write!(f, "the response does not have the requested shape: {problem}")
            }
            Self::Deadline { deadline, tools } if tools.is_empty() => {
                write!(f, "the agent did not end within the deadline of {deadline:?} and was cut off")
            }
            Self::Deadline { deadline, tools } => {
                let tools: Vec<_> = tools.iter().map(|tool| format!("{} ({})", tool.name, tool.id)).collect();
                write!(
                    f,
                    "aborted tools still run after the deadline of {deadline:?}: {}; \
                     a tool can only be aborted where it awaits",
                    tools.join(", ")
                )
            }
        }
    }
}

impl Error for AgentError {
    /// Returns the first error in the chain of causes whose text is not already part of the `Display` output.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let cause: &(dyn Error + 'static) = match self {
            Self::InvalidPrompt(error) | Self::InvalidHistory(error) => error,
            Self::Model(error) => error,
            Self::InvalidTools(error) => error,
            Self::InvalidOutputSchema(error) => error,
            Self::Refused(error) | Self::OnHold(error) => &**error,
            Self::Failed(failure, _) => failure,
            _ => return None,
        };
        source_after(&self.to_string(), cause)
    }
}

impl From<RegistryError> for AgentError {
    fn from(error: RegistryError) -> Self {
        Self::Model(error)
    }
}

impl From<HistoryError> for AgentError {
    fn from(error: HistoryError) -> Self {
        Self::InvalidHistory(error)
    }
}

impl From<ToolSetError> for AgentError {
    fn from(error: ToolSetError) -> Self {
        Self::InvalidTools(error)
    }
}

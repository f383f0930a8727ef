use std::{error::Error, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Response, Status};
use crate::{
    error::source_after,
    message::{HistoryError, ToolUseId},
    provider::{ProviderError, RegistryError},
    subscription::EndReason,
    tool::{SchemaError, ToolSetError},
};

/// A tool call that was aborted and still runs, because the tool has not awaited or returned since.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningTool {
    /// The id of the tool use.
    pub id: ToolUseId,
    /// The name of the tool.
    pub name: String,
}

impl fmt::Display for RunningTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.id)
    }
}

/// An operation on an agent failed. Unless the variant states otherwise, nothing has changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AgentError {
    /// The agent has ended.
    Stopped(EndReason),
    /// The operation needs an idle agent.
    Busy(Status),
    /// More has happened than the history's owner knew of.
    Moved,
    /// There is no run to cancel or interrupt.
    Idle,
    /// `resume` without a paused tool use.
    NotPaused(Status),
    /// `resume` for a tool use that is not the paused one.
    StaleResume {
        /// The tool use that waits.
        waiting: ToolUseId,
        /// The tool use that was named.
        given: ToolUseId,
    },
    /// A prompt without content.
    EmptyPrompt,
    /// A prompt whose tool uses or results break the history law.
    InvalidPrompt(HistoryError),
    /// Tool results in a prompt that has to wait for its turn. The tool uses that they answer are not known yet.
    ResultsWhileBusy,
    /// A limit of zero requests.
    ZeroSteps,
    /// A time limit of zero.
    ZeroTimeout,
    /// No model was given.
    NoModel,
    /// The model's name resolves to nothing.
    Model(RegistryError),
    /// A history that breaks the law.
    InvalidHistory(HistoryError),
    /// The history of an agent that was [started with an owner](super::AgentBuilder::start_owned) is not for
    /// `init` and `set_state` to change.
    HistoryOwned,
    /// A message that can't be answered anew.
    NotAPrompt,
    /// Tools that can't form a set.
    InvalidTools(ToolSetError),
    /// An invalid output schema.
    InvalidOutputSchema(SchemaError),
    /// The application refused: `init`, or the closure of `set_state`.
    Refused(Arc<dyn Error + Send + Sync>),
    /// The application's code panicked: `init`, or the closure of `set_state`.
    Panicked(&'static str, String),
    /// Too many application events wait.
    TooManyEvents(usize),
    /// The receiver of the commit channel is too far behind; no run can begin.
    CommitBehind(usize),
    /// The session that the agent belongs to takes nothing new now. The cause says why: too much is unsaved, or the session is
    /// being shut down.
    OnHold(Arc<dyn Error + Send + Sync>),
    /// The run of this call was cancelled.
    Cancelled(Arc<Response>),
    /// The run of this call failed.
    Failed(Failure, Arc<Response>),
    /// The answer does not have the requested shape.
    Output(String, Arc<Response>),
    /// The deadline passed before the agent's end was complete. The agent has ended all the same.
    Deadline {
        /// The deadline.
        deadline: Duration,
        /// The tools that were aborted and still run. If there are none, `terminate`, the provider's `close` or the commit
        /// channel took too long.
        tools: Vec<RunningTool>,
    },
}

impl AgentError {
    /// Converts the error that `init` or the closure of `set_state` returned. An unresolved model name stays `Model`.
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

    /// Returns whether the operation does not fit what the agent is doing now, like HTTP's 409.
    pub fn is_conflict(&self) -> bool {
        self.is_busy()
            || matches!(self, Self::Idle | Self::Moved | Self::NotPaused(_) | Self::StaleResume { .. })
    }

    /// Returns whether the agent has ended or accepts nothing now, like HTTP's 503. Start it again, or try again later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Stopped(_) | Self::TooManyEvents(_) | Self::CommitBehind(_) | Self::OnHold(_))
    }

    /// The model service's error, if it made the run fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Failed(Failure::Provider { error }, _) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => write!(f, "the agent has ended: {reason}"),
            Self::Busy(status) => write!(f, "the agent is {status:?}; wait until it is idle, or cancel"),
            Self::Moved => f.write_str("more has happened in the agent since that event; look at it again"),
            Self::Idle => f.write_str("the agent is idle; there is nothing to stop"),
            Self::NotPaused(status) => write!(f, "the agent is {status:?} and waits for no decision"),
            Self::StaleResume { waiting, given } => {
                write!(f, "the agent waits for a decision on tool use {waiting}, not on {given}")
            }
            Self::EmptyPrompt => f.write_str("the prompt is empty; give it text or an attachment"),
            Self::InvalidPrompt(error) => write!(f, "the prompt does not fit the history: {error}"),
            Self::ResultsWhileBusy => f.write_str(
                "a prompt with tool results can't be staged; send it when the agent is idle, or use resume",
            ),
            Self::ZeroSteps => {
                f.write_str("max_steps is 0, which allows no request; leave it unset for no limit")
            }
            Self::ZeroTimeout => {
                f.write_str("turn_timeout is zero, which allows no turn; leave it unset for no limit")
            }
            Self::NoModel => f.write_str("no model; give the builder one, `provider:model` or a Model"),
            Self::Model(error) => write!(f, "the model can't be resolved: {error}"),
            Self::InvalidHistory(error) => write!(f, "the history is invalid: {error}"),
            Self::HistoryOwned => {
                f.write_str("the history belongs to its owner, such as a session; change it there")
            }
            Self::NotAPrompt => f.write_str("only a user message can be answered anew"),
            Self::InvalidTools(error) => write!(f, "the tools are invalid: {error}"),
            Self::InvalidOutputSchema(error) => write!(f, "the output schema is refused: {error}"),
            Self::Refused(error) => write!(f, "the application refused: {error}"),
            Self::Panicked(code, message) => write!(f, "{code} panicked: {message}"),
            Self::TooManyEvents(waiting) => write!(
                f,
                "{waiting} application events wait already; the agent takes no more until it has handled some"
            ),
            Self::CommitBehind(waiting) => write!(
                f,
                "{waiting} events wait for the commit channel; \
                 nothing new begins until its receiver has taken some"
            ),
            Self::OnHold(cause) => write!(f, "the prompt was not taken: {cause}"),
            Self::Cancelled(_) => f.write_str("the run was cancelled"),
            Self::Failed(failure, _) => write!(f, "the run failed: {failure}"),
            Self::Output(problem, _) => {
                write!(f, "the answer does not have the requested shape: {problem}")
            }
            Self::Deadline { deadline, tools } if tools.is_empty() => {
                write!(f, "the agent's end was cut off at the deadline of {deadline:?}")
            }
            Self::Deadline { deadline, tools } => {
                let tools: Vec<_> = tools.iter().map(RunningTool::to_string).collect();
                write!(
                    f,
                    "at the deadline of {deadline:?}, these aborted tools still run: {}; \
                     a tool can only be aborted where it awaits",
                    tools.join(", ")
                )
            }
        }
    }
}

impl Error for AgentError {
    /// The part of the cause's chain that `Display` does not include.
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

/// The reason why a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// The request failed and is not repeated again.
    #[error(transparent)]
    Provider {
        /// The error of the request.
        error: ProviderError,
    },
    /// The provider's code panicked.
    #[error("the provider panicked: {message}")]
    ProviderPanicked {
        /// The panic's message.
        message: String,
    },
    /// The turn took longer than its limit.
    #[error("the turn took longer than its limit of {limit:?}")]
    TimeLimit {
        /// The limit.
        limit: Duration,
    },
    /// The answer does not have the requested shape and is requested again. Appears in
    /// [`Event::Retry`](super::Event::Retry) alone: at the limit, the last answer ends
    /// the turn as it is.
    #[error("the answer does not have the requested shape: {message}")]
    Output {
        /// The problem with the answer.
        message: String,
    },
    /// `handle_event` returned a prompt while the session takes nothing new. The event carries the prompt back.
    #[error("the prompt of handle_event was not taken: {reason}")]
    OnHold {
        /// Why the session takes nothing new.
        reason: String,
    },
    /// A callback panicked or returned an unusable value.
    #[error("callback {callback} failed: {message}")]
    Callback {
        /// The name of the callback.
        callback: String,
        /// The panic's message, or the problem with the value.
        message: String,
    },
}

impl Failure {
    /// Approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Provider { error } => error.message.len() + error.body.as_ref().map_or(0, String::len),
            Self::ProviderPanicked { message } | Self::Output { message } => message.len(),
            Self::Callback { callback, message } => callback.len() + message.len(),
            Self::OnHold { reason } => reason.len(),
            Self::TimeLimit { .. } => 0,
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self::Provider { error }
    }
}

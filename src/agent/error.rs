use std::{error::Error, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Response, Status};
use crate::{
    message::{HistoryError, ToolUseId},
    provider::{ProviderError, RegistryError},
    subscription::EndReason,
    tool::{SchemaError, ToolSetError},
};

/// An operation on an agent failed. Nothing has changed then, but where the variant says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The agent has ended.
    #[error("the agent has ended: {0}")]
    Stopped(EndReason),
    /// The operation needs an idle agent.
    #[error("the agent is {0:?}; wait until it is idle, or cancel")]
    Busy(Status),
    /// More has happened than the history's owner knew of.
    #[error("more has happened in the agent since that event; look at it again")]
    Moved,
    /// There is no run to cancel or interrupt.
    #[error("the agent is idle; there is nothing to stop")]
    Idle,
    /// `resume` while nothing waits for it.
    #[error("the agent is {0:?} and waits for no decision")]
    NotPaused(Status),
    /// `resume` for another tool use than the one that waits.
    #[error("the agent waits for a decision on tool use {waiting}, not on {given}")]
    StaleResume {
        /// The tool use that waits.
        waiting: ToolUseId,
        /// The tool use that was named.
        given: ToolUseId,
    },
    /// A prompt without content.
    #[error("the prompt is empty; give it text or an attachment")]
    EmptyPrompt,
    /// A prompt whose tool uses or results break the history law.
    #[error("the prompt does not fit the history")]
    InvalidPrompt(#[source] HistoryError),
    /// Tool results in a prompt that has to wait for its turn: what they answer is not known yet.
    #[error("a prompt with tool results can't be staged; send it when the agent is idle, or use resume")]
    ResultsWhileBusy,
    /// A limit of zero requests.
    #[error("max_steps is 0, which allows no request; leave it unset for no limit")]
    ZeroSteps,
    /// A time limit of zero.
    #[error("turn_timeout is zero, which allows no turn; leave it unset for no limit")]
    ZeroTimeout,
    /// No model was given.
    #[error("no model; give the builder one, `provider:model` or a Model")]
    NoModel,
    /// The model's name resolves to nothing.
    #[error("the model can't be resolved")]
    Model(#[from] RegistryError),
    /// A history that breaks the law.
    #[error("the history is invalid")]
    InvalidHistory(#[from] HistoryError),
    /// The history of an agent that was [started with an owner](super::AgentBuilder::start_owned) is not for
    /// `init` and `set_state` to change.
    #[error("the history belongs to its owner, a session say; change it there")]
    HistoryOwned,
    /// A message that can't be answered anew.
    #[error("only a user message without tool results can be answered anew")]
    NotAPrompt,
    /// Tools that can't be together.
    #[error("the tools are invalid")]
    InvalidTools(#[from] ToolSetError),
    /// An output schema that is none.
    #[error("the output schema can't be used")]
    InvalidOutputSchema(#[source] SchemaError),
    /// The application refused: `init`, or the closure of `set_state`.
    #[error("the application refused")]
    Refused(#[source] Arc<dyn Error + Send + Sync>),
    /// The application's code panicked: `init`, or the closure of `set_state`.
    #[error("{0} panicked: {1}")]
    Panicked(&'static str, String),
    /// Too many application events wait.
    #[error("{0} application events wait already; the agent takes no more until it has handled some")]
    TooManyEvents(usize),
    /// The receiver of the commit channel is too far behind for anything new to begin.
    #[error("{0} events wait for the commit channel; nothing new begins until its receiver has taken some")]
    CommitBehind(usize),
    /// The run that was asked for was cancelled.
    #[error("the run was cancelled")]
    Cancelled(Arc<Response>),
    /// The run that was asked for failed.
    #[error("the run failed")]
    Failed(#[source] Failure, Arc<Response>),
    /// The answer does not have the shape that was asked for.
    #[error("the answer does not have the requested shape: {0}")]
    Output(String, Arc<Response>),
    /// The deadline passed before `terminate` was done, which was cut off then.
    #[error("terminate was cut off at the deadline of {0:?}")]
    Deadline(Duration),
}

/// What ended a run, or is about to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// The request failed, and was not or no longer repeated.
    #[error("the request failed")]
    Provider {
        /// How.
        #[source]
        error: ProviderError,
    },
    /// The provider's code panicked.
    #[error("the provider panicked: {message}")]
    ProviderPanicked {
        /// What the panic said.
        message: String,
    },
    /// The turn took longer than its limit.
    #[error("the turn took longer than its limit of {limit:?}")]
    TimeLimit {
        /// The limit.
        limit: Duration,
    },
    /// The answer does not have the shape that was asked for, and is asked for again. Shows in
    /// [`Event::Retry`](super::Event::Retry) alone: an answer that still does not fit when the limit is reached ends
    /// the turn as it is.
    #[error("the answer does not have the requested shape: {message}")]
    Output {
        /// What is wrong with it.
        message: String,
    },
    /// A callback panicked, or gave back what can't be used.
    #[error("callback {callback} failed: {message}")]
    Callback {
        /// Which.
        callback: String,
        /// How.
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
            Self::TimeLimit { .. } => 0,
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self::Provider { error }
    }
}

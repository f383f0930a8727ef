use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, Prompt, Response, StateView};
use crate::{
    message::{
        Attachment, Message, ProviderItem, Text, Thinking, ToolResult, ToolUse, ToolUseId, value_weight,
    },
    provider::StopReason,
};

/// What an agent is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing, or an application's event is handled between runs: a prompt starts a run.
    #[default]
    Idle,
    /// A run is on.
    Busy,
    /// A tool use waits for [`resume`](super::Agent::resume).
    Paused,
}

/// What happens in an agent.
///
/// The order: `Message` (user) → block events → `Message` (assistant) → `Step`; then for tools a `ToolResult`
/// each, in the order of the tool uses, and a `Message` with all of them. A run ends in exactly one of
/// `Turn` (stop), `Cancelled` and `Error`. A `Status` precedes the event that caused it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A text block begins.
    TextStart {
        /// The block's place in the message.
        index: usize,
    },
    /// A text block grows.
    TextDelta {
        /// The block's place in the message.
        index: usize,
        /// By this text.
        delta: String,
    },
    /// A text block is complete.
    TextEnd {
        /// The block's place in the message.
        index: usize,
        /// All of it.
        content: Text,
    },
    /// A thinking block begins.
    ThinkingStart {
        /// The block's place in the message.
        index: usize,
    },
    /// A thinking block grows.
    ThinkingDelta {
        /// The block's place in the message.
        index: usize,
        /// By this text.
        delta: String,
    },
    /// A thinking block is complete.
    ThinkingEnd {
        /// The block's place in the message.
        index: usize,
        /// All of it.
        content: Thinking,
    },
    /// A tool use begins.
    ToolUseStart {
        /// The block's place in the message.
        index: usize,
        /// The tool use's id.
        id: ToolUseId,
        /// The tool's name.
        name: String,
    },
    /// The input of a tool use grows.
    ToolUseDelta {
        /// The block's place in the message.
        index: usize,
        /// By this piece of JSON text.
        delta: String,
    },
    /// A tool use is complete.
    ToolUseEnd {
        /// The block's place in the message.
        index: usize,
        /// All of it.
        content: ToolUse,
    },
    /// The model made a file.
    Attachment {
        /// The block's place in the message.
        index: usize,
        /// The file.
        content: Attachment,
    },
    /// An opaque item of the provider came, or changed.
    ProviderItem {
        /// The block's place in the message.
        index: usize,
        /// The item as it is now.
        content: ProviderItem,
    },
    /// A message joins the turn in flight.
    Message {
        /// The message.
        message: Arc<Message>,
        /// The request that it prompts, answers or closes, counted from the prompt.
        step: u32,
    },
    /// A tool reports how far it has come.
    ToolProgress {
        /// Which call.
        tool_use_id: ToolUseId,
        /// In the tool's own terms.
        data: Value,
    },
    /// A tool use is answered.
    ToolResult {
        /// The answer.
        result: ToolResult,
        /// What the tool was run with, where that is not what the model sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
    },
    /// A request is complete: exactly the user message that prompted it, and the answer, with the usage of
    /// this request.
    Step(Arc<Response>),
    /// A turn is complete and committed.
    Turn(TurnOutcome),
    /// A tool use waits for [`resume`](super::Agent::resume).
    Pause {
        /// Which.
        tool_use: ToolUse,
        /// Why, in the application's own terms.
        reason: Value,
    },
    /// A request is repeated: by the retry policy before its first content, by
    /// [`handle_error`](super::AgentCallbacks::handle_error), or because its answer did not fit the output schema. The
    /// partial answer is void.
    Retry {
        /// The failure of the request that is repeated.
        failure: Failure,
        /// The time until it is repeated.
        delay: Duration,
        /// How many messages of the turn in flight remain.
        pending: usize,
    },
    /// The run failed. What was pending is discarded.
    Error {
        /// What went wrong.
        failure: Failure,
        /// What was discarded, with what it used.
        response: Arc<Response>,
        /// A prompt that was not taken: a staged one, or one that `handle_event` returned while the session takes nothing new.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staged: Option<Arc<Prompt>>,
    },
    /// The run was cancelled. What was pending is discarded.
    Cancelled {
        /// What was discarded, with what it used.
        response: Arc<Response>,
        /// A staged prompt that was not taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staged: Option<Arc<Prompt>>,
    },
    /// The configuration or the history was changed: with [`set_state`](super::Agent::set_state), or by the
    /// history's [owner](super::HistoryOwner). One that follows `Cancelled` or `Error` at once brings the history
    /// of before the run back.
    State(Arc<StateView>),
    /// The status changed.
    Status {
        /// To this.
        status: Status,
    },
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnOutcome {
    /// The agent is idle.
    Stop {
        /// The turn's own messages and usage.
        response: Arc<Response>,
        /// A staged prompt that was not taken, since the turn was interrupted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        staged: Option<Arc<Prompt>>,
    },
    /// The next turn of the same run follows.
    Continue {
        /// The turn's own messages and usage.
        response: Arc<Response>,
    },
}

impl TurnOutcome {
    /// The turn's own messages and usage.
    pub fn response(&self) -> &Arc<Response> {
        match self {
            Self::Stop { response, .. } | Self::Continue { response } => response,
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunOutcome {
    /// In [`TurnOutcome::Stop`]: its last turn is part of the history.
    Stopped {
        /// The stop reason of its last turn.
        stop_reason: StopReason,
    },
    /// In [`Event::Cancelled`].
    Cancelled,
    /// In [`Event::Error`].
    Failed {
        /// The reason.
        failure: Failure,
    },
}

impl RunOutcome {
    /// The outcome that `event` reports, if it ends a run.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Turn(TurnOutcome::Stop { response, .. }) => {
                Some(Self::Stopped { stop_reason: response.stop_reason.clone() })
            }
            Event::Cancelled { .. } => Some(Self::Cancelled),
            Event::Error { failure, .. } => Some(Self::Failed { failure: failure.clone() }),
            _ => None,
        }
    }
}

impl Event {
    /// Approximate size in bytes, for bounding what is buffered.
    pub(crate) fn weight(&self) -> usize {
        let staged = |prompt: &Option<Arc<Prompt>>| prompt.as_ref().map_or(0, |prompt| prompt.weight());
        64 + match self {
            Self::TextDelta { delta, .. }
            | Self::ThinkingDelta { delta, .. }
            | Self::ToolUseDelta { delta, .. } => delta.len(),
            Self::TextEnd { content, .. } => content.weight(),
            Self::ThinkingEnd { content, .. } => content.weight(),
            Self::ToolUseStart { id, name, .. } => id.as_str().len() + name.len(),
            Self::ToolUseEnd { content, .. } => content.weight(),
            Self::Attachment { content, .. } => content.weight(),
            Self::ProviderItem { content, .. } => content.weight(),
            Self::Message { message, .. } => message.weight(),
            Self::ToolProgress { data, .. } => value_weight(data),
            Self::ToolResult { result, input } => result.weight() + input.as_ref().map_or(0, value_weight),
            Self::Step(response) | Self::Turn(TurnOutcome::Continue { response }) => response.weight(),
            Self::Turn(TurnOutcome::Stop { response, staged: prompt })
            | Self::Cancelled { response, staged: prompt } => response.weight() + staged(prompt),
            Self::Pause { tool_use, reason } => tool_use.weight() + value_weight(reason),
            Self::Retry { failure, .. } => failure.weight(),
            Self::Error { failure, response, staged: prompt } => {
                failure.weight() + response.weight() + staged(prompt)
            }
            Self::State(state) => state.weight(),
            Self::TextStart { .. } | Self::ThinkingStart { .. } | Self::Status { .. } => 0,
        }
    }
}

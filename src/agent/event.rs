use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Decided, Failure, PendingUse, Prompt, PromptId, PromptState, Response, RunEnd, RunOutcome, StateView,
};
use crate::{
    budget::BudgetReport,
    message::{
        Attachment, CompactionTrigger, Message, MessageId, ProviderItem, Role, Text, Thinking, ToolResult,
        ToolUse, ToolUseId, TurnId, UsageRow, value_weight,
    },
    provider::StopReason,
};

/// The activity of an agent: idle, busy or paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// No run is active, so a prompt starts a run at once. An application event may be in progress.
    #[default]
    Idle,
    /// A run is active.
    Busy,
    /// A tool use, or a question of a running tool, waits for [`resume`](super::Agent::resume).
    Paused,
}

/// A change in an agent, as subscribers see it.
///
/// The order of events: `Message` (user) → `StepStart` → block events → `Message` (assistant) → `Step`. If the model
/// uses tools, these events follow:
///
/// 1. `Decided` for each tool use that `handle_tool_use` did not simply execute.
/// 2. If tool uses wait for a decision: `Status` (paused) with all of them. When a command decides about one or more of
///    them, one `Status` with those that still wait, and then `Decided` for each decision of the command.
/// 3. `ToolStart` for each tool that is run, then `ToolProgress` and `ToolEnd` in the order in which they happen. If a
///    running tool asks a question, or withdraws it, `Status` with all questions that wait comes in between.
/// 4. `ToolResult` for each tool use, in the order of the tool uses, and then a `Message` with all results.
///
/// If the conversation is compacted, `CompactionStart` and `CompactionEnd` come before `StepStart`.
///
/// `Usage` comes before `Retry`, and before the event that ends a run, if the usage of an incomplete request is known
/// or the request was lost. `Budget` follows a `Step` or a `Usage`. `Prompt` comes whenever the state of a prompt
/// changes: directly before the prompt's `Message` if the prompt starts a turn or joins one, and before the event that
/// ends the prompt's turn or returns the prompt.
///
/// A run ends with exactly one of `Turn` (not `continues`), `Cancelled` and `Error`. A `Status` event comes before the
/// event that reports its cause.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::{Agent, Event, Update, agent::Status};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// agent.ask("Hi").await?;
///
/// let mut steps = 0;
/// while let Some(update) = updates.next().await {
///     match update {
///         Update::Event(numbered) => match &*numbered.event {
///             Event::Step(response) => {
///                 steps += 1;
///                 println!("request {} used {} tokens", response.step, response.usage.total());
///             }
///             Event::Turn { response, .. } => {
///                 assert_eq!(response.text(), "Hello!");
///                 break;
///             }
///             Event::Error { .. } | Event::Cancelled { .. } => break,
///             _ => {}
///         },
///         // This reader was too slow. The turn may have ended among the events that it missed.
///         Update::Resync(snapshot) if snapshot.status == Status::Idle => break,
///         Update::Closed(_) => break,
///         _ => {}
///     }
/// }
/// assert_eq!(steps, 1);
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A text block began.
    TextStart {
        /// The block's index in the message.
        index: usize,
    },
    /// Text was appended to a text block.
    TextDelta {
        /// The block's index in the message.
        index: usize,
        /// The appended text.
        delta: String,
    },
    /// A text block is complete.
    TextEnd {
        /// The block's index in the message.
        index: usize,
        /// The complete block.
        content: Text,
    },
    /// A thinking block began.
    ThinkingStart {
        /// The block's index in the message.
        index: usize,
    },
    /// Text was appended to a thinking block.
    ThinkingDelta {
        /// The block's index in the message.
        index: usize,
        /// The appended text.
        delta: String,
    },
    /// A thinking block is complete.
    ThinkingEnd {
        /// The block's index in the message.
        index: usize,
        /// The complete block.
        content: Thinking,
    },
    /// A tool use began.
    ToolUseStart {
        /// The block's index in the message.
        index: usize,
        /// The id of the tool use.
        id: ToolUseId,
        /// The name of the tool.
        name: String,
    },
    /// A piece of JSON text was appended to the input of a tool use.
    ToolUseDelta {
        /// The block's index in the message.
        index: usize,
        /// The appended piece of JSON text.
        delta: String,
    },
    /// A tool use is complete.
    ToolUseEnd {
        /// The block's index in the message.
        index: usize,
        /// The complete block.
        content: Box<ToolUse>,
    },
    /// The model created a file.
    Attachment {
        /// The block's index in the message.
        index: usize,
        /// The created file.
        content: Box<Attachment>,
    },
    /// An opaque item of the provider was added or changed.
    ProviderItem {
        /// The block's index in the message.
        index: usize,
        /// The current content of the item.
        content: Box<ProviderItem>,
    },
    /// A message was added to the turn in flight.
    Message {
        /// The added message.
        message: Arc<Message>,
        /// The number of the request to which the message belongs, counted from the prompt. A user message belongs to
        /// the request that the message causes. An assistant message belongs to the request that the message completes.
        /// A message with tool results belongs to the request whose response used the tools.
        step: u32,
        /// The id of the turn in flight. All events until the turn's end belong to this turn.
        turn: TurnId,
        /// The number of the run, counted from 1 since the agent's start. An agent that starts with a stored turn in
        /// flight continues the count of that turn.
        run: u32,
    },
    /// A request is about to be sent. If the request is repeated, another event of this kind follows the `Retry`, with
    /// another id.
    StepStart {
        /// The number of the request, counted from the prompt.
        step: u32,
        /// The id that the response's message will have.
        message_id: MessageId,
    },
    /// A decision about a tool use was made: by [`resume`](super::Agent::resume), by the time limit of a pause, or by
    /// `handle_tool_use`. If `handle_tool_use` just executes a tool as it is, there is no such event. A decision on a
    /// pause that a store shows, but that is not reported yet, has this event after the pause is reported. If the turn
    /// ends before that, the decision has no event.
    Decided(Box<Decided>),
    /// A tool is about to run. A tool use without this event gets its result without running the tool, for example from
    /// a decision, or because the limit of requests is reached.
    ToolStart {
        /// The id of the tool use.
        tool_use_id: ToolUseId,
        /// The input that the tool is run with, if it differs from the input that the model sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
    },
    /// A tool has ended. Its result follows in `ToolResult`, when all tools of the step have ended. A tool that is
    /// aborted has no such event.
    ToolEnd {
        /// The id of the tool use.
        tool_use_id: ToolUseId,
        /// Whether the tool returned an error.
        is_error: bool,
    },
    /// A tool reported progress.
    ToolProgress {
        /// The id of the tool use to which the progress belongs.
        tool_use_id: ToolUseId,
        /// The reported progress, in a format that the tool defines.
        data: Value,
    },
    /// The result of a tool use is available.
    ToolResult {
        /// The result of the tool use.
        result: Box<ToolResult>,
        /// The input with which the tool was run, if it differs from the input that the model sent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
    },
    /// The state of a prompt has changed. Each prompt with an id has this event. A prompt without an id that starts a run
    /// has none.
    Prompt {
        /// The id of the prompt. If a prompt without an id is staged, the agent gives it one.
        id: PromptId,
        /// The new state.
        state: PromptState,
        /// The prompt, if it is staged now, or if the run ends without using it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<Arc<Prompt>>,
    },
    /// A request is complete. The response contains the user messages that caused the request, and the assistant
    /// message. The user messages are the prompt, or the results of tools and the prompts that joined the turn after
    /// them. The response's usage is that of this request.
    Step(Arc<Response>),
    /// A request has ended without a `Step`, and its usage is known. Such a request was repeated, interrupted,
    /// cancelled, or has failed. The event comes before the `Retry` or before the run's last event. If the process
    /// ended during the request, the usage is not known and the event contains a usage of zero. The usage of a turn is
    /// the sum of the usage in these events and in the turn's `Step` events.
    Usage(Box<UsageRow>),
    /// 80 % of a limit of a budget are spent. The event follows the `Step` or the `Usage` with which this happens, once
    /// for each budget and prompt.
    Budget(Box<BudgetReport>),
    /// A turn is complete and committed.
    Turn {
        /// The messages and the usage of the turn.
        response: Arc<Response>,
        /// Whether the next turn of the same run follows. If not, the run ended with this turn, and the agent is idle.
        continues: bool,
    },
    /// The turn in flight continues after the end of the process that had run it. The event comes before
    /// [`handle_recovery`](super::AgentCallbacks::handle_recovery). A response that was being streamed is void. The
    /// tools that continue are emitted again, and so is the status with the pauses that continue.
    Resumed {
        /// The id of the turn.
        turn: TurnId,
        /// The number of restarts since the turn last made progress.
        lives: u32,
        /// The ids of the tool uses whose outcome is not known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        uncertain: Vec<ToolUseId>,
    },
    /// A request is repeated, and its response is discarded. The cause is one of six: the retry policy before the first
    /// content arrived, a [backup model](super::AgentBuilder::backup_model),
    /// [`handle_error`](super::AgentCallbacks::handle_error), a response that does not match the output schema, the end
    /// of the process during the request, or a service that itself starts its response again, which does not send the
    /// request again.
    Retry {
        /// The failure of the repeated request.
        failure: Failure,
        /// The delay before the repetition.
        delay: Duration,
        /// The number of pending messages that are kept.
        pending: usize,
        /// Whether the discarded response was complete, so that its message was emitted and is not kept.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        complete: bool,
        /// The number of the request that follows, counted from the prompt. A repetition by the retry policy does not
        /// count as another request.
        step: u32,
        /// The full name of the backup model that repeats the request. `None` if no backup model replaces the model.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Arc<str>>,
    },
    /// The run failed. The completed steps and the streamed text of the turn in flight are committed, as by an interrupt.
    /// The turn is discarded instead if only its prompt could be kept, if a callback has failed, or if
    /// [`handle_error`](super::AgentCallbacks::handle_error) has returned
    /// [`ErrorDecision::Discard`](super::ErrorDecision::Discard).
    Error {
        /// The reason for the failure.
        failure: Failure,
        /// The messages of the turn in flight and the usage of their requests. If `committed` is set, the history
        /// contains these messages, in this form. Otherwise they are discarded.
        response: Arc<Response>,
        /// Whether the messages of `response` are committed.
        #[serde(default)]
        committed: bool,
    },
    /// The run was cancelled, and its pending messages are discarded.
    Cancelled {
        /// The discarded messages and the usage of their requests.
        response: Arc<Response>,
    },
    /// The conversation is being compacted before the next request. `CompactionEnd` follows, unless the turn ends before.
    CompactionStart {
        /// The reason for the compaction.
        trigger: CompactionTrigger,
        /// The estimated size of the next request, in tokens.
        tokens: u64,
        /// The id of the turn in flight.
        turn: TurnId,
        /// The number of the run, as in `Message`. A compaction by request is a run.
        run: u32,
    },
    /// A compaction has ended.
    CompactionEnd {
        /// The message that was inserted into the turn. `None` if the compaction failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<Message>>,
        /// The index of the message among the pending messages. The messages from there on move up by one.
        at: usize,
        /// The failure of the compaction. The step continues nevertheless or, if its request was refused, fails with its
        /// own failure.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
    },
    /// The configuration or the history was changed by [`set_state`](super::Agent::set_state) or by the agent's
    /// session. A `State` event that directly follows `Cancelled` or `Error` restores the history that was in use
    /// before the run.
    State(Arc<StateView>),
    /// The status, or the list of tool uses and questions that wait for a decision, has changed.
    Status {
        /// The current status.
        status: Status,
        /// All tool uses that wait for a decision, in the order of the tool uses, or all questions of running tools, in
        /// the order in which they were asked. Empty unless the status is `paused`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pauses: Vec<Arc<PendingUse>>,
    },
}

impl RunEnd {
    /// Returns the end of the run if `event` ends a run, without the staged prompts, which earlier events return.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        let outcome = RunOutcome::of(event)?;
        let (response, is_answered) = match event {
            Event::Turn { response, .. } => (response, true),
            Event::Error { response, committed, .. } => (response, *committed),
            Event::Cancelled { response } => (response, false),
            _ => return None,
        };
        // The first message of a turn is its prompt, even if it contains results of tools. Prompts that joined the turn
        // later contain no results.
        let is_prompt = |index: usize, message: &Message| {
            message.is_prompt() || (index == 0 && message.role == Role::User && message.compaction.is_none())
        };
        let mut unanswered = Vec::new();
        if !is_answered {
            let messages = response.messages.iter().enumerate();
            unanswered.extend(
                messages.filter(|(index, message)| is_prompt(*index, message)).map(|(_, m)| Arc::clone(m)),
            );
        }
        // A turn that consists of a compaction alone has the answer of the turn before it.
        let answered = response.message.as_ref().and_then(|answer| answer.id.as_ref()?.turn());
        Some(Self { turn: answered.or(response.turn), unanswered, ..Self::new(outcome) })
    }
}

impl RunOutcome {
    /// Returns the run's outcome if `event` ends a run.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. }
                if response.stop_reason == StopReason::Abandoned =>
            {
                Some(Self::Abandoned)
            }
            Event::Turn { response, continues: false, .. } => {
                Some(Self::Stopped { stop_reason: response.stop_reason.clone() })
            }
            Event::Cancelled { .. } => Some(Self::Cancelled),
            Event::Error { failure, .. } => Some(Self::Failed { failure: failure.clone() }),
            _ => None,
        }
    }
}

impl Event {
    /// Returns the response whose messages become part of the history with this event, if the event commits a turn.
    pub(crate) fn committed(&self) -> Option<&Arc<Response>> {
        match self {
            Self::Turn { response, .. } | Self::Error { response, committed: true, .. } => Some(response),
            _ => None,
        }
    }

    /// Returns whether the session of the agent adds nodes for the turn that ends with this event. If it adds none, as for
    /// a compaction that has failed, the store knows of the end only if it is stored.
    pub(crate) fn adds_nodes(&self) -> bool {
        self.committed().is_some_and(|response| !response.messages.is_empty())
    }

    /// Returns the approximate size in bytes. The sum of these sizes bounds the buffers of events.
    pub(crate) fn weight(&self) -> usize {
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
            Self::Step(response) | Self::Turn { response, .. } | Self::Cancelled { response } => {
                response.weight()
            }
            Self::Status { pauses, .. } => pauses.iter().map(|pause| pause.weight()).sum(),
            Self::Decided(decided) => decided.decision.weight(),
            Self::Prompt { prompt, .. } => prompt.as_ref().map_or(0, |prompt| prompt.weight()),
            Self::ToolStart { input, .. } => input.as_ref().map_or(0, value_weight),
            Self::Retry { failure, .. } => failure.weight(),
            Self::CompactionEnd { message, failure, .. } => {
                message.as_ref().map_or(0, |own| own.weight()) + failure.as_ref().map_or(0, Failure::weight)
            }
            Self::Error { failure, response, .. } => failure.weight() + response.weight(),
            Self::State(state) => state.weight(),
            Self::TextStart { .. }
            | Self::ThinkingStart { .. }
            | Self::StepStart { .. }
            | Self::ToolEnd { .. }
            | Self::Usage(_)
            | Self::Budget(_)
            | Self::CompactionStart { .. }
            | Self::Resumed { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn event_is_small_because_it_is_moved_often() {
        assert!(size_of::<super::Event>() <= 96, "{}", size_of::<super::Event>());
    }
}

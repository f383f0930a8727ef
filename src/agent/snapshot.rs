use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Event, KnownPrompt, PendingUse, Prompt, Response, RunEnd, StateView, Status, decision::add_named,
};
use crate::{
    budget::BudgetReport,
    message::{
        CompactionTrigger, Content, Message, MessageId, Role, Text, Thinking, ToolUse, ToolUseId, TurnId,
        UseDecision,
    },
    provider::{PartialBlock, StopReason},
    subscription::{EventId, Numbered},
};

/// The complete state of an agent at one event.
///
/// [`apply`](Snapshot::apply) applies an event to a snapshot. A snapshot and the events after it therefore give the
/// state at any later event.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::agent::{Agent, Snapshot, Status};
/// use omni_agent::Update;
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// let mut view: Snapshot = updates.snapshot().map(|snapshot| (**snapshot).clone()).expect("not resumed");
/// agent.prompt("Hi").await?;
/// loop {
///     match updates.next().await {
///         Some(Update::Event(numbered)) => view.apply(&numbered),
///         Some(Update::Resync(snapshot)) => view = (*snapshot).clone(),
///         _ => break,
///     }
///     if view.status == Status::Idle && view.last_run.is_some() && view.pending.is_empty() {
///         break; // The run has ended.
///     }
/// }
/// assert_eq!(view.messages().last().map(|message| message.text()).as_deref(), Some("Hello!"));
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The complete state of an agent at one event. The events after it lead to the state at any later event."
    )
)]
#[non_exhaustive]
pub struct Snapshot {
    /// The id of the last event that the snapshot includes.
    pub last: EventId,
    /// The configuration and the committed history.
    pub state: StateView,
    /// The status of the agent.
    pub status: Status,
    /// The number of requests made for the last prompt.
    pub step: u32,
    /// Why the conversation is being compacted, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacting: Option<CompactionTrigger>,
    /// The messages of the turn in flight, which are not committed yet.
    pub pending: Vec<Arc<Message>>,
    /// The blocks of the response that is being streamed. Files and opaque items arrive as a whole, so their blocks are
    /// always marked as ended.
    pub partial: Vec<PartialBlock>,
    /// The number of the last run, counted from 1 since the agent's start. 0 if there was none. An agent that starts
    /// with a stored turn in flight continues the count of that turn.
    #[serde(default)]
    pub run: u32,
    /// The first turn of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_turn: Option<TurnId>,
    /// The id of the turn in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The id that the message of the requested response will have. `None` if no response is requested, or if its
    /// message is already in `pending`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<MessageId>,
    /// The tool uses that wait for a decision, in the order of the tool uses, or the questions of running tools, in the
    /// order in which they were asked. The list is empty unless the agent is paused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<Arc<PendingUse>>,
    /// The tools of the current step that were started and whose results were not emitted yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolRun>,
    /// The last decisions about the turn in flight that were made under a name, with the latest one at the end. Each is
    /// about the tool use, or the question of a running tool, with the id before it. The decisions contain no inputs.
    /// The list is empty as soon as the turn has ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<(ToolUseId, UseDecision)>,
    /// The last report of the turn in flight that 80 % of a limit of a budget are spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Box<BudgetReport>>,
    /// The latest prompts with an id, with the latest prompt at the end: all that have not ended, and the last
    /// 32 that have.
    /// The nodes of their runs are not known here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<KnownPrompt>,
    /// The staged prompts, in the order in which they were staged. Each has an id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<Arc<Prompt>>,
    /// The end of the last run, if a run has ended since the agent's start. It is kept while the next run is active.
    /// The agent of a loaded session starts with the end that the store contains, if it contains one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Arc<RunEnd>>,
}

/// A tool of the current step that was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolRun {
    /// The id of the tool use.
    pub tool_use_id: ToolUseId,
    /// The input that the tool was run with, if it differs from the input that the model sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Whether the tool returned an error. `None` until the tool has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
}

impl Snapshot {
    /// Returns all messages, committed and pending. The response that is being streamed is in `partial`.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.state.history.iter().chain(&self.pending)
    }

    /// Returns whether a run is active and is not about to end with a compaction alone. Such a turn has no prompt.
    pub(crate) fn is_answering(&self) -> bool {
        let compacts = self.turn.is_some() && self.pending.iter().all(|message| message.compaction.is_some());
        self.status != Status::Idle && !compacts
    }

    /// Returns whether the conversation is being compacted by request. No answer has come before in this run.
    pub(crate) fn compacts_alone(&self) -> bool {
        let made = self.pending.iter().filter_map(|message| Some(message.compaction.as_ref()?.trigger));
        self.compacting.into_iter().chain(made).any(|trigger| trigger == CompactionTrigger::Request)
    }

    /// Applies the next event, so that the snapshot shows the state after this event.
    ///
    /// Changes that callbacks make to the configuration emit no event. They appear only in the next snapshot.
    pub fn apply(&mut self, event: &Numbered<Event>) {
        self.take_in(&event.event);
        self.last = event.id;
    }

    /// Applies an event without changing the id of the last event.
    pub(crate) fn take_in(&mut self, event: &Event) {
        if let Some(end) = RunEnd::of(event) {
            // The events before this one have returned these prompts.
            let staged = self.staged.drain(..).map(|prompt| prompt.as_serialised()).collect();
            self.last_run = Some(Arc::new(end.with_staged(staged)));
        }
        match event {
            Event::Message { message, step, turn, run } => {
                self.partial.clear();
                self.answer.take_if(|_| message.role == Role::Assistant);
                self.pending.push(Arc::clone(message));
                self.step = *step;
                self.begin(*turn, *run);
            }
            Event::StepStart { step, message_id } => {
                self.step = *step;
                self.answer = Some(message_id.clone());
            }
            Event::Turn { response, .. } => {
                // If the turn leaves tool uses open, the messages in the event contain the results that were already
                // decided.
                self.state.history.extend(response.messages.iter().cloned());
                self.finish(response);
            }
            Event::Budget(report) => self.budget = Some(report.clone()),
            Event::Decided(decided) => add_named(&mut self.decisions, decided),
            Event::ToolStart { tool_use_id, input } => {
                let (tool_use_id, input) = (tool_use_id.clone(), input.clone());
                self.tools.push(ToolRun { tool_use_id, input, is_error: None });
            }
            Event::ToolEnd { tool_use_id, is_error } => {
                let run = self.tools.iter_mut().find(|run| run.tool_use_id == *tool_use_id);
                if let Some(run) = run {
                    run.is_error = Some(*is_error);
                }
            }
            Event::ToolResult { result, .. } => {
                self.tools.retain(|run| run.tool_use_id != result.tool_use_id);
            }
            Event::Retry { pending, step, .. } => {
                self.pending.truncate(*pending);
                self.partial.clear();
                self.answer = None;
                self.tools.clear();
                self.step = *step;
            }
            Event::CompactionStart { trigger, turn, run, .. } => {
                self.compacting = Some(*trigger);
                self.begin(*turn, *run);
            }
            Event::CompactionEnd { message, at, .. } => {
                self.compacting = None;
                if let Some(message) = message {
                    self.pending.insert((*at).min(self.pending.len()), Arc::clone(message));
                }
            }
            Event::Resumed { .. } => {
                self.compacting = None;
                self.partial.clear();
                self.pauses.clear();
                self.tools.clear();
            }
            Event::Prompt { id, state, prompt } => {
                KnownPrompt::enter(&mut self.prompts, id, state.clone());
                // A prompt that the run returns stays in the list until the event that ends the run.
                self.staged.retain(|prompt| prompt.id.as_ref() != Some(id));
                self.staged.extend(prompt.clone());
            }
            Event::Error { response, .. } | Event::Cancelled { response, .. } => {
                if let Some(kept) = event.committed() {
                    self.state.history.extend(kept.messages.iter().cloned());
                }
                self.finish(response);
            }
            Event::State(state) => self.state = StateView::clone(state),
            Event::Status { status, pauses } => {
                self.status = *status;
                self.pauses.clone_from(pauses);
            }
            Event::Step(response) => {
                let uses_tools =
                    response.message.as_ref().is_some_and(|message| message.tool_uses().next().is_some());
                if response.stop_reason == StopReason::Pause && !uses_tools {
                    // The service has paused its response. The next request, which continues the response, counts as
                    // begun.
                    self.step = response.step + 1;
                }
            }
            _ => {
                take_block(&mut self.partial, event);
            }
        }
    }

    fn begin(&mut self, turn: TurnId, run: u32) {
        if run != self.run {
            self.first_turn = Some(turn);
        }
        (self.turn, self.run) = (Some(turn), run);
    }

    fn finish(&mut self, response: &Response) {
        self.compacting = None;
        self.pending.clear();
        self.partial.clear();
        self.answer = None;
        self.tools.clear();
        self.decisions.clear();
        self.budget = None;
        self.turn = None;
        self.step = response.step;
    }
}

/// Applies an event about a block of the response that is being streamed. Returns the index of the block.
pub(super) fn take_block(partial: &mut Vec<PartialBlock>, event: &Event) -> Option<usize> {
    let (content, ended): (Content, bool) = match event {
        Event::TextStart { .. } => (Text::default().into(), false),
        Event::ThinkingStart { .. } => (Thinking::default().into(), false),
        Event::ToolUseStart { id, name, .. } => {
            let input = Value::Object(serde_json::Map::new());
            (ToolUse::new(id.clone(), name.clone(), input).into(), false)
        }
        Event::Attachment { content, .. } => ((**content).clone().into(), true),
        Event::ProviderItem { index, content } if *index >= partial.len() => {
            ((**content).clone().into(), true)
        }
        _ => return extend_block(partial, event),
    };
    partial.push(PartialBlock { content, input: String::new(), ended });
    Some(partial.len() - 1)
}

fn extend_block(partial: &mut [PartialBlock], event: &Event) -> Option<usize> {
    let (Event::TextDelta { index, .. }
    | Event::ThinkingDelta { index, .. }
    | Event::ToolUseDelta { index, .. }
    | Event::ProviderItem { index, .. }
    | Event::TextEnd { index, .. }
    | Event::ThinkingEnd { index, .. }
    | Event::ToolUseEnd { index, .. }) = event
    else {
        return None;
    };
    let block = partial.get_mut(*index)?;
    let whole: Content = match (event, &mut block.content) {
        (Event::TextDelta { delta, .. }, Content::Text(Text { text, .. }))
        | (Event::ThinkingDelta { delta, .. }, Content::Thinking(Thinking { text, .. })) => {
            text.push_str(delta);
            return Some(*index);
        }
        (Event::ToolUseDelta { delta, .. }, _) => {
            block.input.push_str(delta);
            return Some(*index);
        }
        (Event::TextEnd { content, .. }, _) => content.clone().into(),
        (Event::ThinkingEnd { content, .. }, _) => content.clone().into(),
        (Event::ToolUseEnd { content, .. }, _) => (**content).clone().into(),
        (Event::ProviderItem { content, .. }, _) => (**content).clone().into(),
        _ => return None,
    };
    (block.content, block.ended) = (whole, true);
    Some(*index)
}

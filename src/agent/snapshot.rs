use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Event, Prompt, Response, RunOutcome, StateView, Status, TurnOutcome};
use crate::{
    message::{Content, Message, Text, Thinking, ToolUse},
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
/// # Ok::<(), omni_agent::AgentError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The messages of the turn in flight, which are not committed yet.
    pub pending: Vec<Arc<Message>>,
    /// The blocks of the response that is being streamed. Files and opaque items arrive as a whole, so their blocks are
    /// always marked as ended.
    pub partial: Vec<PartialBlock>,
    /// The tool use for which a paused agent waits, and the reason for the pause.
    pub pause: Option<Pause>,
    /// The staged prompt, which waits until the turn in flight ends.
    pub staged: Option<Arc<Prompt>>,
    /// A prompt that `handle_event` returned. This prompt waits behind the staged prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Arc<Prompt>>,
    /// The outcome of the last run, if a run has ended since the agent's start. The outcome is kept while the next run
    /// is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Arc<RunOutcome>>,
}

/// A tool use that waits for a decision, and the reason for the pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pause {
    /// The tool use that waits for a decision.
    pub tool_use: ToolUse,
    /// The reason for the pause, in a format that the application defines.
    pub reason: Value,
}

impl Snapshot {
    /// Returns all messages, committed and pending. The response that is being streamed is in `partial`.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.state.history.iter().chain(&self.pending)
    }

    /// Applies the next event, so that the snapshot shows the state after this event.
    ///
    /// Two changes emit no event and appear only in the next snapshot: a callback's edit of the configuration, and the
    /// staging of a prompt.
    pub fn apply(&mut self, event: &Numbered<Event>) {
        self.take_in(&event.event);
        self.last = event.id;
    }

    /// Applies an event that has no number.
    pub(crate) fn take_in(&mut self, event: &Event) {
        if let Some(outcome) = RunOutcome::of(event) {
            self.last_run = Some(Arc::new(outcome));
        }
        match event {
            Event::TextStart { .. } => self.start(Text::default().into()),
            Event::ThinkingStart { .. } => self.start(Thinking::default().into()),
            Event::ToolUseStart { id, name, .. } => {
                self.start(
                    ToolUse::new(id.clone(), name.clone(), Value::Object(serde_json::Map::new())).into(),
                );
            }
            Event::TextDelta { index, delta } => {
                if let Some(Content::Text(text)) = self.block(*index) {
                    text.text.push_str(delta);
                }
            }
            Event::ThinkingDelta { index, delta } => {
                if let Some(Content::Thinking(thinking)) = self.block(*index) {
                    thinking.text.push_str(delta);
                }
            }
            Event::ToolUseDelta { index, delta } => {
                if let Some(block) = self.partial.get_mut(*index) {
                    block.input.push_str(delta);
                }
            }
            Event::TextEnd { index, content } => self.end(*index, content.clone().into()),
            Event::ThinkingEnd { index, content } => self.end(*index, content.clone().into()),
            Event::ToolUseEnd { index, content } => self.end(*index, content.clone().into()),
            Event::Attachment { content, .. } => {
                self.start_whole(content.clone().into());
            }
            Event::ProviderItem { index, content } => {
                if let Some(block) = self.block(*index) {
                    *block = content.clone().into();
                } else {
                    self.start_whole(content.clone().into());
                }
            }
            Event::Message { message, step } => {
                if self.pending.is_empty() {
                    // A turn begins, so the staged prompt was used.
                    self.staged = self.behind.take();
                }
                self.partial.clear();
                self.pending.push(Arc::clone(message));
                self.step = *step;
            }
            Event::Turn(turn) => {
                // If the turn leaves tool uses open, the messages in the event contain the results that were already
                // decided.
                self.state.history.extend(turn.response().messages.iter().cloned());
                let behind = self.behind.take();
                self.finish(turn.response());
                if matches!(turn, TurnOutcome::Continue { .. }) {
                    self.behind = behind;
                }
            }
            Event::Pause { tool_use, reason } => {
                self.pause = Some(Pause { tool_use: tool_use.clone(), reason: reason.clone() });
            }
            Event::Retry { pending, .. } => {
                self.pending.truncate(*pending);
                self.partial.clear();
                self.step += 1;
            }
            Event::Error { response, .. } | Event::Cancelled { response, .. } => self.finish(response),
            Event::State(state) => self.state = StateView::clone(state),
            Event::Status { status } => {
                self.status = *status;
                if *status != Status::Paused {
                    self.pause = None;
                }
            }
            Event::Step(response) => {
                let uses_tools =
                    response.message.as_ref().is_some_and(|message| message.tool_uses().next().is_some());
                if response.stop_reason == StopReason::Pause && !uses_tools {
                    // The service continues its response in the next request.
                    self.step = response.step + 1;
                }
            }
            Event::ToolProgress { .. } | Event::ToolResult { .. } => {}
        }
    }

    fn start(&mut self, content: Content) {
        self.partial.push(PartialBlock { content, input: String::new(), ended: false });
    }

    fn start_whole(&mut self, content: Content) {
        self.partial.push(PartialBlock { content, input: String::new(), ended: true });
    }

    fn block(&mut self, index: usize) -> Option<&mut Content> {
        self.partial.get_mut(index).map(|block| &mut block.content)
    }

    fn end(&mut self, index: usize, content: Content) {
        if let Some(block) = self.partial.get_mut(index) {
            block.ended = true;
            block.content = content;
        }
    }

    fn finish(&mut self, response: &Response) {
        self.pending.clear();
        self.partial.clear();
        // The prompt was used for the next turn, or this event hands it back.
        (self.staged, self.behind) = (None, None);
        self.step = response.step;
    }
}

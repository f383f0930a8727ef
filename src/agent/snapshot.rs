use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Event, Prompt, Response, RunOutcome, StateView, Status, TurnOutcome};
use crate::{
    message::{Content, Message, Text, Thinking, ToolUse},
    provider::{PartialBlock, StopReason},
    subscription::EventId,
};

/// All there is to know of an agent at one moment.
///
/// A snapshot and the events after it give the truth at any later moment: [`apply`](Snapshot::apply) does it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The last event that is part of it.
    pub last: EventId,
    /// The configuration and the committed history.
    pub state: StateView,
    /// What the agent is doing.
    pub status: Status,
    /// Requests made since the last prompt was taken.
    pub step: u32,
    /// Messages of the turn in flight, not yet committed.
    pub pending: Vec<Arc<Message>>,
    /// The answer that is streaming in, block by block. Files and opaque items come whole: they have ended at
    /// once.
    pub partial: Vec<PartialBlock>,
    /// What the agent waits for, if it is paused.
    pub pause: Option<Pause>,
    /// A prompt that waits for the turn's end.
    pub staged: Option<Arc<Prompt>>,
    /// A prompt of `handle_event` that waits behind the staged one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Arc<Prompt>>,
    /// How the last run ended, if one has since the agent's start. It stays while the next run is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Arc<RunOutcome>>,
}

/// What a paused agent waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pause {
    /// The tool use to decide on.
    pub tool_use: ToolUse,
    /// Why, in the application's own terms.
    pub reason: Value,
}

impl Snapshot {
    /// All messages, committed and pending. The answer that is streaming in is in `partial`.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.state.history.iter().chain(&self.pending)
    }

    /// Takes the next event in, so that the snapshot is the truth after it.
    ///
    /// What callbacks change in the configuration, and a prompt that is staged, fire no event; they show in the
    /// next snapshot.
    pub fn apply(&mut self, event: &Event) {
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
                    // A turn begins: a prompt that was staged before is taken now.
                    self.staged = self.behind.take();
                }
                self.partial.clear();
                self.pending.push(Arc::clone(message));
                self.step = *step;
            }
            Event::Turn(turn) => {
                // A turn that leaves tool uses open keeps the results that were decided with them.
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
                    // The service goes on with its answer in the next request.
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
        // Taken for the next turn, or carried back.
        (self.staged, self.behind) = (None, None);
        self.step = response.step;
    }
}

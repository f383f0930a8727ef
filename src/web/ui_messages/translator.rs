//! Turns a snapshot and the events after it into the frames of one response.

mod beginning;

use std::sync::Arc;

pub(super) use beginning::replay_messages;
use beginning::write_results;
use serde_json::{Value, json};

use super::{
    Frame, Level, Settings,
    exchange::{Exchange, answer_id, exchanges, has_own_content, has_results, ui_id},
    writer::Writer,
};
use crate::{
    agent::{Event, Status},
    message::{Content, Message, MessageId, Role, Usage},
    provider::StopReason,
    run::{PendingUse, PromptState, Response, RunOutcome},
    session::{SessionEvent, SessionSnapshot, StoreReport},
    subscription::{EventId, Numbered},
    tree::NodeId,
};

/// The part of the conversation that a response shows.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) enum Follow {
    /// The run of this prompt, from its start. The prompt may be staged first.
    Prompt(MessageId),
    /// The run of the prompt with this id, which contains only the results of tools. The run continues the last answer.
    Results(MessageId),
    /// The rest of a run that was paused in the snapshot. The client has the answer up to the pause.
    Decisions,
    /// The run that is active in the snapshot, from its start.
    InFlight,
    /// The run of this prompt, which has ended.
    Ended(MessageId, RunOutcome),
}

#[derive(Debug)]
enum Phase {
    /// The message of the prompt has not been added yet.
    Waiting(Option<MessageId>),
    Running,
    /// A turn is complete, and the run continues.
    BetweenTurns(Arc<Response>),
    /// The run is paused. The list of pauses is complete when all events up to `until` have been translated.
    Pausing {
        pauses: Vec<Arc<PendingUse>>,
        until: Option<EventId>,
    },
    /// The run has ended. The `tree` event that contains the run's nodes follows.
    Finishing(Box<Finish>),
    Ended,
}

/// The last frame of a response.
#[derive(Debug)]
struct Finish {
    reason: &'static str,
    metadata: Value,
}

/// Turns a snapshot and the events after it into the frames of one response.
///
/// The frames of a response end with `finish` or `error`. The stream sends [`DONE`](super::DONE) after them.
#[derive(Debug)]
pub(in crate::web) struct Translator {
    writer: Writer,
    phase: Phase,
    /// The id of the assistant's message.
    answer: String,
    /// The id of the last event that was translated.
    last: EventId,
    /// The usage of the complete turns of this response.
    usage: Usage,
    /// The usage of the steps of the turn in flight.
    steps: Usage,
    /// The message with the last results of tools in the turn in flight.
    results: Option<Arc<Message>>,
    /// Whether the response shows the turn in flight from its start. If so, the sum of the steps' usage is the usage of
    /// the turn.
    is_whole: bool,
    /// Whether the run returns the prompt unused, so that the next event, which ends the run, ends the response.
    is_returned: bool,
    nodes: Vec<NodeId>,
}

impl Translator {
    /// Starts a response, and returns the frames that the snapshot causes.
    pub(in crate::web) fn begin(
        settings: Settings,
        snapshot: &SessionSnapshot,
        follow: Follow,
    ) -> (Self, Vec<Frame>) {
        let tools = snapshot.agent.state.tools.iter().map(|tool| tool.name.clone());
        let last = exchanges(snapshot).last().and_then(Exchange::answer_id);
        let in_flight = snapshot.agent.turn.map(answer_id);
        let mut this = Self {
            writer: Writer::new(settings, tools),
            phase: Phase::Running,
            answer: last.or(in_flight).unwrap_or_else(|| answer_id("n-0")),
            last: snapshot.last,
            usage: Usage::default(),
            steps: Usage::default(),
            results: snapshot.agent.pending.iter().rfind(|message| has_results(message)).cloned(),
            is_whole: false,
            is_returned: false,
            nodes: Vec::new(),
        };
        match follow {
            Follow::Prompt(id) => {
                // The turn is known when the prompt's message is added. A prompt that is never used keeps this id.
                this.answer = answer_id(&id);
                this.phase = Phase::Waiting(Some(id));
            }
            Follow::Results(id) => this.phase = Phase::Waiting(Some(id)),
            Follow::Decisions => this.continue_answer(snapshot),
            Follow::InFlight if snapshot.agent.pending.is_empty() => this.phase = Phase::Waiting(None),
            Follow::InFlight => this.replay(snapshot),
            Follow::Ended(prompt, outcome) => this.replay_ended(snapshot, &prompt, &outcome),
        }
        let frames = this.writer.take();
        (this, frames)
    }

    /// Returns whether the response is complete.
    pub(in crate::web) fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Returns whether the run is paused, and the translator needs to know how many events the session has emitted.
    /// Several running tools may ask questions at the same time, and each question changes the list of pauses.
    pub(in crate::web) fn is_pausing(&self) -> bool {
        matches!(self.phase, Phase::Pausing { until: None, .. })
    }

    /// Sets the event at which the list of pauses is complete: the session's last event, read after the pause began.
    /// Returns the last frames if no more events are needed.
    pub(in crate::web) fn pause_until(&mut self, last: EventId) -> Vec<Frame> {
        if let Phase::Pausing { until, .. } = &mut self.phase {
            *until = Some(last);
        }
        self.settle();
        self.writer.take()
    }

    /// Called when the session has ended. Returns the last frames if the run had ended before. Otherwise returns no
    /// frames: the response is incomplete, and its body must fail.
    pub(in crate::web) fn close(&mut self) -> Vec<Frame> {
        self.flush();
        self.writer.take()
    }

    /// Returns the last frames of a response that ends with this error.
    pub(in crate::web) fn fail(&mut self, error: &str) -> Vec<Frame> {
        self.flush();
        if !self.is_ended() {
            if matches!(self.phase, Phase::Waiting(_)) {
                self.start();
            }
            self.writer.close(error);
            self.writer.step_end();
            self.error(error);
        }
        self.writer.take()
    }

    /// Translates an event.
    pub(in crate::web) fn event(&mut self, event: &Numbered<SessionEvent>) -> Vec<Frame> {
        self.last = event.id;
        match &*event.event {
            SessionEvent::Agent(event) => self.agent_event(event),
            SessionEvent::Tree(changes) => {
                if !matches!(self.phase, Phase::Waiting(_)) {
                    self.nodes.extend(changes.nodes.iter().map(crate::tree::Node::id));
                }
                self.flush();
            }
            // The session interrupts its run. Without this error, a client would take the interrupted run as a success.
            SessionEvent::Store(StoreReport::Lost { .. }) => {
                return self.fail(crate::web::LOST);
            }
            SessionEvent::Title { title } if !self.is_ended() => {
                self.writer.data("title", None, &json!({ "title": title }));
            }
            _ => {}
        }
        self.settle();
        self.writer.take()
    }

    // ---- events of the agent ----

    fn agent_event(&mut self, event: &Event) {
        if let Event::Message { message, .. } = event
            && has_results(message)
        {
            self.results = Some(Arc::clone(message));
        }
        match self.phase {
            Phase::Ended => {}
            Phase::Waiting(_) => self.await_prompt(event),
            _ => self.run_event(event),
        }
    }

    /// Processes an event while the translator waits for the message of the prompt.
    fn await_prompt(&mut self, event: &Event) {
        let Phase::Waiting(wanted) = &self.phase else { return };
        let is_wanted = |id: Option<&MessageId>| match wanted {
            Some(wanted) => id == Some(wanted),
            None => true,
        };
        let ends_unused = (wanted.is_none() || self.is_returned) && RunOutcome::of(event).is_some();
        match event {
            _ if is_abandoned(event) && ends_unused => {
                self.start();
                self.error(crate::web::ABANDONED);
            }
            Event::Message { message, turn, .. }
                if message.role == Role::User && is_wanted(message.id.as_ref()) =>
            {
                let is_new = has_own_content(message);
                if is_new {
                    self.answer = answer_id(turn);
                }
                self.start();
                self.is_whole = true;
                // The results in a new message belong to the previous answer. The client rejects results of tools that
                // are not part of this answer.
                if !is_new {
                    self.results(message);
                }
            }
            Event::Prompt { id, state: PromptState::Returned, prompt }
                if wanted.as_ref() == Some(&MessageId::from(id.clone())) =>
            {
                match prompt {
                    Some(_) => self.is_returned = true,
                    None => self.discarded("The prompt was withdrawn."),
                }
            }
            Event::Turn { .. } if ends_unused => {
                self.discarded("The run was interrupted before the prompt was used.");
            }
            Event::Cancelled { .. } if ends_unused => {
                self.discarded("The run was cancelled before the prompt was used.");
            }
            Event::Error { failure, .. } if ends_unused => {
                self.start();
                self.error(&failure.to_string());
            }
            _ => {}
        }
    }

    fn run_event(&mut self, event: &Event) {
        match event {
            _ if is_abandoned(event) => self.abandoned(),
            Event::TextStart { index } => self.writer.text_start(*index),
            Event::ThinkingStart { index } => self.writer.thinking_start(*index),
            Event::TextDelta { index, delta } | Event::ThinkingDelta { index, delta } => {
                self.writer.text_delta(*index, delta);
            }
            Event::TextEnd { index, content } => self.writer.text_end(*index, &content.text),
            Event::ThinkingEnd { index, content } => self.writer.text_end(*index, &content.text),
            Event::ToolUseStart { index, id, name } => self.writer.tool_start(*index, id, name),
            Event::ToolUseDelta { index, delta } => self.writer.tool_delta(*index, delta),
            Event::ToolUseEnd { index, content } => self.writer.tool_input(*index, content),
            Event::Attachment { index, content } => self.writer.file(*index, content),
            Event::ProviderItem { index, content } => self.writer.item(*index, content),
            Event::StepStart { step, message_id } => self.writer.step_start(*step, Some(message_id.clone())),
            Event::Message { message, .. } if message.role == Role::User => self.user_message(message),
            Event::Step(response) => {
                self.writer.step_end();
                self.steps += response.usage;
                if self.is_whole {
                    let usage = self.usage + self.steps;
                    let metadata = json!({ "usage": usage });
                    self.writer.frame(json!({ "type": "message-metadata", "messageMetadata": metadata }));
                }
            }
            Event::Usage(row) => self.steps += row.usage,
            Event::Budget(report) => self.writer.data("budget", None, &json!(report)),
            Event::ToolProgress { tool_use_id, data } => self.writer.progress(tool_use_id, data),
            Event::ToolResult { result, .. } => self.writer.tool_end(result),
            Event::Decided(decided) => self.writer.decided(&decided.tool_use_id, &decided.decision),
            Event::Status { status: Status::Paused, pauses: all } => match &mut self.phase {
                Phase::Pausing { pauses, .. } => pauses.clone_from(all),
                phase => *phase = Phase::Pausing { pauses: all.clone(), until: None },
            },
            Event::Status { status: Status::Busy, .. } if matches!(self.phase, Phase::Pausing { .. }) => {
                self.phase = Phase::Running;
            }
            Event::Retry { failure, delay, model, .. } => {
                let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                self.writer.retry(&json!({ "failure": failure.to_string(), "delay": delay, "model": model }));
            }
            // A staged prompt starts the next turn and thereby another message of the protocol, so this answer is
            // complete.
            Event::Prompt { state: PromptState::InFlight { .. }, .. } => {
                if let Phase::BetweenTurns(response) = &self.phase {
                    let response = Arc::clone(response);
                    self.turn_end(&response);
                    self.flush();
                }
            }
            Event::Turn { response, continues: true, .. } => {
                self.count_turn(response);
                self.phase = Phase::BetweenTurns(Arc::clone(response));
            }
            Event::Turn { response, continues: false, .. } => {
                self.count_turn(response);
                self.turn_end(response);
            }
            Event::Cancelled { .. } => {
                self.writer.close("The run was cancelled.");
                self.writer.seal();
                self.writer.step_end();
                self.discarded("The run was cancelled.");
            }
            Event::Error { failure, response, committed, .. } => {
                self.writer.close("The run failed.");
                if *committed {
                    self.replace_results(response);
                    self.writer.seal();
                }
                self.writer.step_end();
                self.error(&failure.to_string());
            }
            _ => {}
        }
    }

    /// Processes a user message within a run: results of tools, a prompt that joined the turn, or a continuation.
    fn user_message(&mut self, message: &Message) {
        self.results(message);
        if has_own_content(message) {
            self.writer.steering(&ui_id(message, None), message);
        }
        self.phase = Phase::Running;
    }

    /// Writes the results in a user message, unless earlier events contained them.
    fn results(&mut self, message: &Message) {
        write_results(&mut self.writer, message);
        self.writer.step_over();
    }

    /// Writes the results that the end of the run has replaced: if a service refuses a request, the newest results in
    /// it are kept in a shorter form.
    fn replace_results(&mut self, response: &Response) {
        let Some(shown) = self.results.take() else { return };
        let is_same = |message: &&Arc<Message>| message.id.is_some() && message.id == shown.id;
        let Some(kept) = response.messages.iter().find(is_same) else { return };
        for (index, block) in kept.content.iter().enumerate() {
            if let (Content::ToolResult(result), true) = (block, shown.content.get(index) != Some(block)) {
                self.writer.replace(result, kept.id.as_ref().map(|id| (id, index)));
            }
        }
    }

    fn count_turn(&mut self, response: &Response) {
        self.usage += response.usage;
        self.steps = Usage::default();
    }

    // ---- the end ----

    /// Ends the response if the run is paused and all pauses are known.
    fn settle(&mut self) {
        let Phase::Pausing { pauses, until: Some(until) } = &self.phase else { return };
        let is_complete = until.life != self.last.life || self.last.number >= until.number;
        if is_complete {
            let pauses = pauses.clone();
            self.writer.pauses(&pauses);
            self.writer.step_end();
            self.end("tool-calls", json!({ "paused": true }));
        }
    }

    fn turn_end(&mut self, response: &Response) {
        response.decided.iter().for_each(|result| self.writer.result(result, None));
        let reason = self.reason(&response.stop_reason);
        if response.open_tool_uses.is_empty() {
            self.writer.close("The run ended without a result of the tool.");
            self.writer.seal();
        }
        self.writer.step_end();
        let mut metadata = json!({ "usage": self.usage, "stopReason": response.stop_reason.to_string() });
        if let Some(cost) = self.usage.cost {
            metadata["cost"] = cost.into();
        }
        self.phase = Phase::Finishing(Box::new(Finish { reason, metadata }));
    }

    fn reason(&self, reason: &StopReason) -> &'static str {
        match reason {
            StopReason::Stop | StopReason::StopSequence => "stop",
            StopReason::Length | StopReason::ContextLength => "length",
            StopReason::Refusal => "content-filter",
            StopReason::ToolUse => "tool-calls",
            StopReason::Interrupted if self.writer.settings.level == Level::Seven => "interrupted",
            _ => "other",
        }
    }

    /// Sends the last frame of the response, if the run has ended.
    fn flush(&mut self) {
        if let Phase::Finishing(finish) = &mut self.phase {
            let (reason, metadata) = (finish.reason, finish.metadata.take());
            self.end(reason, metadata);
        }
    }

    fn end(&mut self, reason: &str, mut metadata: Value) {
        if !self.nodes.is_empty() {
            metadata["nodes"] = json!(self.nodes);
        }
        self.writer.frame(json!({ "type": "finish", "finishReason": reason, "messageMetadata": metadata }));
        self.phase = Phase::Ended;
    }

    /// Ends a response whose messages are not part of the history.
    fn discarded(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Waiting(_)) {
            self.start();
        }
        self.writer.frame(json!({ "type": "abort", "reason": reason }));
        self.nodes.clear();
        self.end("other", json!({ "discarded": true }));
    }

    /// Ends the response to an abandoned run.
    fn abandoned(&mut self) {
        self.writer.close(crate::web::ABANDONED);
        self.writer.seal();
        self.writer.step_end();
        self.error(crate::web::ABANDONED);
    }

    fn error(&mut self, text: &str) {
        self.writer.frame(json!({ "type": "error", "errorText": text }));
        self.phase = Phase::Ended;
    }
}

/// Returns whether `event` ends an abandoned run.
fn is_abandoned(event: &Event) -> bool {
    RunOutcome::of(event) == Some(RunOutcome::Abandoned)
}

//! The events of a session as the events of one run of the protocol.

mod blocks;
mod ending;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::{
    Level,
    frame::{ChatMessage, Frame, TokenUsage},
    messages::{Messages, block_id, result, result_id},
};
use crate::{
    agent::{Event, Status},
    message::{Content, Message, Role, ToolResult, ToolUseId, Usage, value_weight},
    run::{PromptId, PromptState, RunOutcome},
    session::{SessionEvent, SessionSnapshot, StoreReport},
    subscription::Numbered,
    text::clip,
    web::front::files::Files,
};
use blocks::Blocks;

/// The greatest size of a tool's progress, in bytes of its JSON form. Larger data is omitted.
const MAX_PROGRESS: usize = 1 << 20;

/// The run of a stream, as the client has asked for it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) thread: String,
    pub(crate) id: String,
    pub(crate) level: Level,
    pub(crate) files: Files,
    /// The ids of the messages that the client has.
    pub(crate) known: HashSet<String>,
    /// The state of the client. The stream adds the member `omni` to it.
    pub(crate) state: Map<String, Value>,
}

/// The part of the session's activity that a stream shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Start {
    /// The run that a command has started or continued.
    Command,
    /// The turn of this prompt, which is staged.
    Staged(PromptId),
    /// The run that is active, from its current state on. If no run is active, the end of the last run.
    Join,
    /// The end of an earlier run with this outcome.
    Ended(RunOutcome),
}

/// The current phase of a stream.
#[derive(Debug, PartialEq)]
enum Phase {
    /// The run of another request is active. The run of the stream's own request follows it.
    Behind,
    /// The prompt is staged.
    Staged(PromptId),
    Live,
    /// The run is paused. The stream ends with the complete list of the pauses.
    Paused,
    Ended,
}

/// Translates the events of a session into the events of one run.
///
/// The first event is `RUN_STARTED`, and `STATE_SNAPSHOT` follows it. If an event of the session changes the state, a
/// `STATE_DELTA` precedes the other frames for this event. Everything that is opened is closed before the terminal
/// event, and nothing follows the terminal event.
#[derive(Debug)]
pub(crate) struct RunStream {
    run: Run,
    view: SessionSnapshot,
    phase: Phase,
    /// Whether the stream ends with its own turn, even if another staged prompt starts the next turn.
    is_own: bool,
    is_between_turns: bool,
    step: Option<u32>,
    blocks: Blocks,
    /// The results that were sent and that are not part of a message yet.
    results: HashSet<ToolUseId>,
    /// Whether results are sent only with their message. An earlier result of the step may wait for its message, or may
    /// have been emitted before the stream began, and the client keeps the order in which results arrive.
    holds_results: bool,
    usage: HashMap<String, Usage>,
    /// The member `omni` of the state, as the client has it.
    omni: Value,
    out: Vec<Frame>,
}

impl RunStream {
    /// Starts a stream. `view` is the snapshot from before the command.
    pub(crate) fn begin(mut run: Run, view: SessionSnapshot, start: &Start) -> (Self, Vec<Frame>) {
        let is_paused = view.agent.status == Status::Paused;
        let phase = match start {
            Start::Command if view.agent.status == Status::Busy => Phase::Behind,
            Start::Command | Start::Join | Start::Ended(_) => Phase::Live,
            Start::Staged(id) => Phase::Staged(id.clone()),
        };
        let is_late = matches!(start, Start::Join | Start::Ended(_));
        let omni = omni(&view);
        let mut state = std::mem::take(&mut run.state);
        state.insert("omni".to_owned(), omni.clone());
        let out = vec![Self::run_started(&run), Frame::StateSnapshot { snapshot: state.into() }];
        let mut stream = Self {
            run,
            view,
            phase,
            is_own: !is_late,
            is_between_turns: false,
            step: None,
            blocks: Blocks::default(),
            results: HashSet::new(),
            holds_results: is_late || is_paused,
            usage: HashMap::new(),
            omni,
            out,
        };
        if is_late {
            stream.send_messages();
        }
        if let Start::Ended(outcome) = start {
            stream.finish(outcome);
        }
        if stream.phase == Phase::Live {
            stream.reopen();
            match stream.view.agent.status {
                _ if *start != Start::Join => {}
                Status::Idle => match stream.view.agent.last_run.clone() {
                    Some(end) => stream.finish(&end.outcome),
                    None => stream.finish_success(),
                },
                Status::Paused => stream.finish_paused(),
                Status::Busy => {}
            }
        }
        let frames = std::mem::take(&mut stream.out);
        (stream, frames)
    }

    /// Returns the whole stream of a request that was refused.
    pub(crate) fn refused(run: &Run, code: &str, message: &str) -> Vec<Frame> {
        vec![Self::run_started(run), ending::error(code, message, Vec::new())]
    }

    /// Processes the next event of the session, and returns the frames to send.
    pub(crate) fn event(&mut self, event: &Numbered<SessionEvent>) -> Vec<Frame> {
        if self.phase == Phase::Ended {
            return Vec::new();
        }
        if self.view.apply(event).is_err() {
            return self.fail("internal", "The state of the conversation is not known any more.");
        }
        // Pieces of an answer are frequent, and change no member of the state.
        let agent_event = event.event.agent();
        if !matches!(
            agent_event,
            Some(Event::TextDelta { .. } | Event::ThinkingDelta { .. } | Event::ToolUseDelta { .. })
        ) {
            self.send_state();
        }
        match (&*event.event, &self.phase) {
            (SessionEvent::Agent(event), Phase::Behind | Phase::Staged(_)) => self.wait(event),
            (SessionEvent::Agent(event), _) => self.agent_event(event),
            (SessionEvent::Title { title }, Phase::Live) => {
                let value = title.as_deref().map_or_else(|| json!({}), |title| json!({ "title": title }));
                self.out.push(Frame::Custom { name: "omni.title", value });
            }
            // The session interrupts its run. Without this error, a client would take the interrupted run as a success.
            (SessionEvent::Store(StoreReport::Lost { .. }), _) => {
                self.finish_failed("not-saved", crate::web::LOST);
            }
            _ => {}
        }
        std::mem::take(&mut self.out)
    }

    /// Returns whether the run is paused. The stream then needs the session's snapshot, because it ends with the
    /// complete list of the pauses.
    pub(crate) fn is_paused(&self) -> bool {
        self.phase == Phase::Paused
    }

    /// Processes a snapshot that is at least as new as the last event, and returns the frames to send. If the run is
    /// still paused, these frames end the stream.
    pub(crate) fn pause(&mut self, view: &SessionSnapshot) -> Vec<Frame> {
        if self.phase == Phase::Paused && !view.agent.pauses.is_empty() {
            self.view.clone_from(view);
            self.send_state();
            self.finish_paused();
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the stream with an error, unless it has ended.
    pub(crate) fn fail(&mut self, code: &str, message: &str) -> Vec<Frame> {
        if self.phase != Phase::Ended {
            self.finish_failed(code, message);
        }
        std::mem::take(&mut self.out)
    }

    /// Returns whether the terminal event was returned.
    pub(crate) fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    fn run_started(run: &Run) -> Frame {
        Frame::RunStarted {
            thread_id: run.thread.clone(),
            run_id: run.id.clone(),
            protocol_version: (run.level == Level::V1).then_some("1.0"),
        }
    }

    /// Processes an event that precedes the stream's own run.
    fn wait(&mut self, event: &Event) {
        match (&self.phase, event) {
            (Phase::Behind, _) if RunOutcome::of(event).is_some() => self.go_live(),
            (Phase::Staged(own), Event::Prompt { id, state, prompt }) if id == own => match state {
                PromptState::InFlight { .. } => self.go_live(),
                PromptState::Returned if prompt.is_none() => {
                    self.finish_failed("withdrawn", "The prompt was withdrawn before its turn.");
                }
                PromptState::Returned => {
                    self.finish_failed(
                        "not-started",
                        "The run before this prompt ended early. Send the prompt again.",
                    );
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Starts to send events. First sends the list of messages, because the client has not seen the changes since the
    /// snapshot. The client appends the messages that it does not know. This list does not contain the prompt of the
    /// request, so the client removes the prompt. When the event with the prompt's message follows, the client appends
    /// the prompt at the end.
    fn go_live(&mut self) {
        self.phase = Phase::Live;
        self.send_messages();
        self.run.known.clear();
    }

    fn agent_event(&mut self, event: &Event) {
        match event {
            Event::StepStart { step, .. } => {
                self.close();
                self.is_between_turns = false;
                self.holds_results = false;
                self.open_step(*step);
                self.blocks.begin();
            }
            Event::Step(response) => {
                *self.usage.entry(response.model.clone()).or_default() += response.usage;
                self.close();
            }
            Event::Usage(row) => {
                *self.usage.entry(row.model.clone().unwrap_or_default()).or_default() += row.usage;
            }
            Event::Message { message, .. } => self.message(message),
            Event::ToolProgress { tool_use_id, data } => {
                let mut content = json!({ "toolCallId": tool_use_id });
                if value_weight(data) <= MAX_PROGRESS {
                    content["data"] = data.clone();
                }
                self.out.push(Frame::ActivitySnapshot {
                    message_id: format!("{tool_use_id}-progress"),
                    activity_type: super::PROGRESS,
                    content,
                    replace: true,
                });
            }
            // A result with a large file is sent later, because the file's address contains the id of the message with
            // the result. The results after it wait too, because the client keeps the order in which results arrive.
            Event::ToolResult { result, .. } => {
                self.holds_results |= self.run.files.links_in(result, self.run.level);
                if !self.holds_results {
                    self.send_result(result, None);
                }
            }
            Event::Prompt { id, state, prompt } => match state {
                PromptState::Staged => self.send_staged(id, "staged"),
                PromptState::InFlight { .. } if self.is_own && self.is_between_turns => self.finish_success(),
                // A prompt that starts a run was not staged.
                PromptState::InFlight { .. } if self.is_between_turns || self.view.agent.turn.is_some() => {
                    self.send_staged(id, "taken");
                }
                PromptState::Returned if prompt.is_none() => self.send_staged(id, "withdrawn"),
                _ => {}
            },
            Event::Status { status, .. } => {
                self.phase = if *status == Status::Paused { Phase::Paused } else { Phase::Live };
            }
            Event::Retry { .. } => {
                let has_shown = self.blocks.has_shown();
                self.close();
                if has_shown {
                    self.send_messages();
                }
            }
            Event::Turn { continues: true, .. } => {
                self.close();
                self.is_between_turns = true;
            }
            _ => match RunOutcome::of(event) {
                Some(outcome) => {
                    // The history lacks the messages of a cancelled run, and can have other results than those sent.
                    let is_kept = matches!(event, Event::Error { committed: true, .. });
                    if is_kept || outcome == RunOutcome::Cancelled {
                        self.close();
                        self.send_messages();
                    }
                    self.finish(&outcome);
                }
                None => self.block_event(event),
            },
        }
    }

    fn message(&mut self, message: &Message) {
        self.is_between_turns = false;
        if message.role == Role::Assistant {
            self.blocks.close(&mut self.out);
            let mut complete = Messages::new(self.run.level, &self.run.files);
            complete.push(message);
            // The complete answer may lack blocks that were shown, for example after an interrupt. Then all messages
            // are sent again.
            let complete = complete.into_list();
            if message.id.is_some() && !self.blocks.are_of(&complete) {
                if !self.blocks.include(&complete) {
                    self.remove_answer(&complete);
                }
                self.send_messages();
            }
            return;
        }
        let is_prompt = self.view.agent.pending.len() == 1;
        let has_results = message.tool_results().next().is_some();
        if has_results && !is_prompt {
            let id = message.id.as_ref().map(ToString::to_string);
            for (index, block) in message.content.iter().enumerate() {
                if let Content::ToolResult(result) = block
                    && !self.results.contains(&result.tool_use_id)
                {
                    self.send_result(result, id.as_deref().map(|id| (id, index)));
                }
            }
            self.results.clear();
        }
        let is_known = message.id.as_ref().is_some_and(|id| self.run.known.contains(&id.to_string()));
        // The client has given its own ids to the results that it has sent, so all messages are sent with the stored
        // ids.
        if if is_prompt { has_results || !is_known } else { !has_results && !is_known } {
            self.send_messages();
        }
    }

    fn send_result(&mut self, tool_result: &ToolResult, block: Option<(&str, usize)>) {
        let (content, metadata) = result(tool_result, block, self.run.level, &self.run.files);
        self.results.insert(tool_result.tool_use_id.clone());
        self.out.push(Frame::ToolCallResult {
            message_id: result_id(&tool_result.tool_use_id),
            tool_call_id: tool_result.tool_use_id.to_string(),
            content,
            role: "tool",
            metadata,
        });
    }

    fn send_staged(&mut self, id: &PromptId, state: &str) {
        self.out.push(Frame::Custom { name: "omni.staged", value: json!({ "id": id, "state": state }) });
    }

    /// Makes the client remove the answer. Its blocks have other ids now, and the client leaves a message whose id it
    /// knows in its place.
    fn remove_answer(&mut self, complete: &[ChatMessage]) {
        let answer = self.view.agent.pending.pop();
        let mut messages = Messages::of(&self.view, self.run.level, &self.run.files);
        let is_reasoning = |message: &&ChatMessage| matches!(message, ChatMessage::Reasoning { .. });
        // The client keeps its reasoning if a list contains none. The next list removes this one.
        if let Some(first) = complete.iter().find(is_reasoning) {
            messages
                .push(ChatMessage::Reasoning { id: format!("{}-old", first.id()), content: String::new() });
        }
        self.send_list(messages);
        self.view.agent.pending.extend(answer);
    }

    fn send_messages(&mut self) {
        self.send_list(Messages::of(&self.view, self.run.level, &self.run.files));
    }

    fn send_list(&mut self, messages: Vec<ChatMessage>) {
        // The list contains all current activities, so the client removes the activities of tools that have ended.
        let types = json!({ "authoritativeActivityTypes": [super::PROGRESS, super::FILE] });
        self.out.push(Frame::MessagesSnapshot { messages, metadata: json!({ "@ag-ui/client": types }) });
    }

    /// Sends the member `omni` of the state if it has changed. The client's own members stay.
    fn send_state(&mut self) {
        let omni = omni(&self.view);
        if omni != self.omni {
            // `add` replaces the member, also if the client has removed it (RFC 6902, 4.1).
            let delta = json!([{ "op": "add", "path": "/omni", "value": omni }]);
            self.out.push(Frame::StateDelta { delta });
            self.omni = omni;
        }
    }

    fn open_step(&mut self, step: u32) {
        self.step = Some(step);
        self.out.push(Frame::StepStarted { step_name: format!("step {step}") });
    }

    /// Closes the blocks and the step.
    fn close(&mut self) {
        self.blocks.close(&mut self.out);
        if let Some(step) = self.step.take() {
            self.out.push(Frame::StepFinished { step_name: format!("step {step}") });
        }
    }

    fn usage(&self) -> Vec<TokenUsage> {
        let safe = |count: u64| count.min((1 << 53) - 1);
        let mut usage: Vec<_> = self
            .usage
            .iter()
            .map(|(model, usage)| TokenUsage {
                model: clip(model, 256).into_owned(),
                input_tokens: safe(usage.prompt()),
                output_tokens: safe(usage.output),
                total_tokens: safe(usage.total()),
                reasoning_tokens: safe(usage.reasoning),
                cached_input_tokens: safe(usage.cache_read),
                cache_write_input_tokens: safe(usage.cache_write),
            })
            .collect();
        usage.sort_by(|a, b| a.model.cmp(&b.model));
        usage
    }
}

/// Returns the member `omni` of the client's state.
pub(super) fn omni(view: &SessionSnapshot) -> Value {
    let agent = &view.agent;
    let mut omni = json!({
        "status": agent.status,
        "model": agent.state.model,
        "step": agent.step,
        "tokens": view.used.total(),
    });
    if let Some(title) = &view.title {
        omni["title"] = clip(title, 4096).into();
    }
    if let Some(cost) = view.used.with_finite_cost().cost {
        omni["cost"] = cost.into();
    }
    let last = agent.pending.last().or_else(|| agent.state.history.last());
    if let Some(reason) = last.and_then(|message| message.ended.as_ref()) {
        omni["ended"] = reason.to_string().into();
    }
    omni
}

//! The frames of one run. Translates the progress of the run, and keeps what the client has open.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem,
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    super::{
        AgUiVersion, FILE, PROGRESS,
        frame::{AgUiFrame, AgUiMessage, AgUiOutcome, AgUiUsage},
        interrupts::interrupts,
        messages::{AgUiMessages, MAX_TEXT, arguments, block_id, call_of, newest_call_of, result, result_id},
    },
    AgUiRequestedRun, LOST, is_lost, omni,
};
use crate::{
    agent::{RunProgress, Status, ToolChange},
    message::{Content, Message, MessageId, ToolResult, ToolUseId, TurnId, Usage, value_weight},
    provider::StopReason,
    run::{Failure, PromptId, PromptState, RunEnd, RunOutcome},
    session::SessionSnapshot,
    text::{clip, start},
    web::front::exchange::{compaction, has_own_content},
};

/// The greatest size of a tool's progress, in bytes of its JSON form. Larger data is omitted.
const MAX_PROGRESS: usize = 1 << 20;

/// The maximum size of an error's text, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

/// The state of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum AgUiStage {
    /// The run has not begun, and the client lacks messages of the runs before it.
    Behind,
    #[default]
    Live,
    Ended,
}

/// The user message that comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum AgUiUserMessagePosition {
    #[default]
    OfTurn,
    /// The first message of the stream's first turn.
    First,
    /// The first message of a later turn.
    FirstOfLaterTurn,
}

/// The list of messages that is sent at the end of an update.
#[derive(Debug, Default, PartialEq)]
enum AgUiMessagesSnapshotMode {
    #[default]
    None,
    All,
    /// Before the list, a list of the messages before this one.
    AllAfter(MessageId),
}

/// A block of the answer that the client has seen.
#[derive(Debug)]
struct AgUiBlock {
    kind: AgUiBlockKind,
    /// The id of the message with the block.
    message: String,
    is_open: bool,
}

#[derive(Debug)]
enum AgUiBlockKind {
    Text,
    Reasoning,
    /// `id` is the id of the call, which differs from the id of the tool use if the conversation contains that id twice.
    Call {
        tool_use: ToolUseId,
        id: String,
        name: String,
        has_input: bool,
    },
    File,
}

/// Collects the frames of a run.
#[derive(Debug, Default)]
pub(super) struct AgUiWriter {
    run: AgUiRequestedRun,
    pub(super) out: Vec<AgUiFrame>,
    stage: AgUiStage,
    turn: Option<TurnId>,
    next: AgUiUserMessagePosition,
    /// Whether the stream shows all prompts of the run, not only its own.
    shows_all: bool,
    /// The tool uses about which the client has decided. A sub-agent withdraws its pause after the decision.
    decided: Vec<ToolUseId>,
    /// The step that is open, or that will be opened after the list.
    step: Option<u32>,
    /// The last answer that has begun, and its blocks.
    answer: Option<MessageId>,
    blocks: BTreeMap<usize, AgUiBlock>,
    /// The results that were sent and that are not part of a message yet.
    results: HashSet<ToolUseId>,
    /// Whether results are sent before their message. An earlier result of the step may wait for its message, or may have
    /// been missed, and the client keeps the order in which results arrive.
    sends_results: bool,
    /// The list that replaces all frames until the end of the update.
    list: AgUiMessagesSnapshotMode,
    /// Whether the progress comes from a snapshot in place of missed events.
    is_missed: bool,
    /// The usage of each model. `None` if a part of it is not known, because events were missed.
    usage: Option<HashMap<String, Usage>>,
    /// The member `omni` of the state, the title, and the staged prompts, as the client has them.
    omni: Value,
    title: Option<Arc<str>>,
    staged: Vec<PromptId>,
}

impl AgUiWriter {
    /// Starts a stream for a client that has the messages of `view`.
    pub(super) fn new(mut run: AgUiRequestedRun, view: &SessionSnapshot) -> Self {
        let omni = omni(view);
        let mut state = mem::take(&mut run.state);
        state.insert("omni".to_owned(), omni.clone());
        Self {
            out: vec![run_started(&run), AgUiFrame::StateSnapshot { snapshot: state.into() }],
            run,
            usage: Some(HashMap::new()),
            omni,
            title: view.title.clone(),
            staged: staged(view).cloned().collect(),
            ..Self::default()
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.stage == AgUiStage::Ended
    }

    /// Prepares for a client that joins with any messages.
    pub(super) fn join(&mut self) {
        self.shows_all = true;
        self.list();
    }

    /// Takes note of progress that the client has seen in an earlier stream.
    pub(super) fn shown(&mut self, progress: RunProgress<'_>, view: &SessionSnapshot) {
        let ends = matches!(
            progress,
            RunProgress::Pauses(_)
                | RunProgress::Budget(_)
                | RunProgress::Ended { .. }
                | RunProgress::Returned { .. }
        );
        if !ends {
            // No frame is sent.
            self.list = AgUiMessagesSnapshotMode::All;
            self.progress(progress, view);
        }
    }

    /// Opens what an earlier stream has closed at its end. `waits` is whether another run comes first. `decided` are the
    /// tool uses about which the client has decided.
    pub(super) fn reopen(&mut self, waits: bool, decided: Vec<ToolUseId>) {
        self.decided = decided;
        self.list = AgUiMessagesSnapshotMode::None;
        self.wait(waits);
        self.open();
    }

    /// Takes note that the client lacks messages of other runs, if `is_behind` is set.
    pub(super) fn wait(&mut self, is_behind: bool) {
        if is_behind && !self.is_ended() {
            self.stage = AgUiStage::Behind;
        }
    }

    /// Sends frames, unless the list will replace them.
    fn send(&mut self, frames: impl IntoIterator<Item = AgUiFrame>) {
        if self.list == AgUiMessagesSnapshotMode::None {
            self.out.extend(frames);
        }
    }

    /// Sends the changes of the conversation that are not the progress of a run.
    pub(super) fn news(&mut self, view: &SessionSnapshot) {
        let omni = omni(view);
        if omni != self.omni {
            // `add` replaces the member, also if the client has removed it (RFC 6902, 4.1).
            let delta = json!([{ "op": "add", "path": "/omni", "value": omni }]);
            self.out.push(AgUiFrame::StateDelta { delta });
            self.omni = omni;
        }
        let mut news = Vec::new();
        if view.title != self.title {
            self.title.clone_from(&view.title);
            let value = self.title.as_deref().map_or_else(|| json!({}), |title| json!({ "title": title }));
            news.push(AgUiFrame::Custom { name: "omni.title", value });
        }
        if !staged(view).eq(&self.staged) {
            let old = mem::replace(&mut self.staged, staged(view).cloned().collect());
            let all = old.iter().chain(&self.staged);
            for id in all.filter(|id| old.contains(id) != self.staged.contains(id)) {
                let known = view.agent.prompts.iter().find(|known| known.id == *id);
                let state = match known.map(|known| &known.state) {
                    Some(PromptState::Staged) => "staged",
                    Some(PromptState::InFlight { .. } | PromptState::Ended { .. }) => "taken",
                    Some(PromptState::Returned) if view.agent.status != Status::Idle => "withdrawn",
                    // The end of a run returns its staged prompts.
                    _ => continue,
                };
                let value = json!({ "id": id, "state": state });
                news.push(AgUiFrame::Custom { name: "omni.staged", value });
            }
        }
        if self.stage == AgUiStage::Live {
            self.out.append(&mut news);
        }
    }

    /// Adds the usage of a request, unless the request belongs to another run.
    pub(super) fn used(&mut self, model: &str, usage: Usage) {
        if let (AgUiStage::Live, Some(used)) = (self.stage, &mut self.usage) {
            *used.entry(model.to_owned()).or_default() += usage;
        }
    }

    /// Processes the end of a step.
    pub(super) fn step_ended(&mut self, model: &str, usage: Usage) {
        self.used(model, usage);
        self.close();
    }

    /// Prepares for the progress of a snapshot that replaces missed events.
    pub(super) fn begin_missed(&mut self, is_behind: bool) {
        self.wait(is_behind);
        (self.is_missed, self.usage) = (true, None);
    }

    /// Takes note that the progress of a snapshot was read. The snapshot does not show which results of the step were
    /// emitted before it.
    pub(super) fn end_snapshot(&mut self) {
        (self.is_missed, self.sends_results) = (false, false);
    }

    /// Translates the progress of the run. `view` is the session's snapshot, which may be newer than the progress.
    pub(super) fn progress(&mut self, progress: RunProgress<'_>, view: &SessionSnapshot) {
        match progress {
            _ if self.is_ended() => {}
            RunProgress::Turn(turn) => {
                let is_later = self.turn.replace(turn).is_some();
                self.next = if is_later {
                    AgUiUserMessagePosition::FirstOfLaterTurn
                } else {
                    AgUiUserMessagePosition::First
                };
                self.sends_results = false;
                if self.stage == AgUiStage::Behind {
                    // The list lacks the prompt of the request, so the client removes the prompt. When its message
                    // follows, the client appends it at the end.
                    self.list();
                    self.run.known.clear();
                }
            }
            // The prompt of somebody else has started the next turn. Only the id of a message from the agent contains a
            // turn.
            RunProgress::User(message)
                if self.next == AgUiUserMessagePosition::FirstOfLaterTurn
                    && !self.shows_all
                    && has_own_content(message)
                    && message.id.as_ref().and_then(MessageId::turn).is_none() =>
            {
                self.finish(&super::SUCCESS, None, view);
            }
            RunProgress::User(message) => self.user(message),
            RunProgress::Request { step, answer } => {
                self.close();
                if answer.is_none() {
                    // Only the list has an id for the message.
                    self.list();
                }
                self.sends_results = true;
                self.blocks.clear();
                (self.answer, self.step) = (answer.cloned(), Some(step));
                self.send([AgUiFrame::StepStarted { step_name: step_name(step) }]);
            }
            RunProgress::Block { index, content, new, ended } => self.block(index, content, new, ended, view),
            RunProgress::Answer(message) => {
                self.close_blocks();
                if self.list != AgUiMessagesSnapshotMode::None {
                    self.step = None;
                } else if message.id.is_some() && self.compare(message) != (true, true) {
                    self.correct(Some(message));
                }
            }
            RunProgress::Tool { id, change: ToolChange::Progress(data) } => {
                let call = self.call(id);
                let mut content = json!({ "toolCallId": call });
                if value_weight(data) <= MAX_PROGRESS {
                    content["data"] = data.clone();
                }
                let message_id = format!("{call}-progress");
                self.send([activity(message_id, PROGRESS, content)]);
            }
            // A result with a large file is sent later, because the file's address contains the id of the message with
            // the result. The results after it wait too, because the client keeps the order in which results arrive.
            RunProgress::Tool { change: ToolChange::Result(result), .. } => {
                self.sends_results &= !self.run.files.links_in(result, self.run.level);
                if self.sends_results {
                    self.result(result, None);
                }
            }
            RunProgress::Void { failure, model } => self.void(failure, model, view),
            RunProgress::Budget(report) => {
                self.out.push(AgUiFrame::Custom { name: "omni.budget", value: json!(report) });
            }
            RunProgress::Compaction { message, failure } => {
                let value = compaction(message, failure);
                self.out.push(AgUiFrame::Custom { name: "omni.compaction", value });
            }
            RunProgress::Pauses(pauses)
                if pauses.iter().any(|pause| !self.decided.contains(&pause.tool_use.id)) =>
            {
                self.list();
                let interrupts = interrupts(&view.agent, &self.decided, self.run.level);
                self.finish_with(AgUiOutcome::Interrupt { interrupts }, view);
            }
            RunProgress::Ended { outcome: Some(outcome), message, .. } => self.ended(outcome, message, view),
            RunProgress::Ended { outcome: None, message: Some(message), .. } => {
                self.finish(&super::SUCCESS, Some(message), view);
            }
            RunProgress::Ended { .. } => {
                self.fail("unknown", "The end of the run is not known any more.", view);
            }
            RunProgress::Returned { outcome: None } => {
                self.fail("withdrawn", "The prompt was withdrawn before its turn.", view);
            }
            RunProgress::Returned { .. } => {
                let text = "The run before this prompt ended early. Send the prompt again.";
                self.fail("not-started", text, view);
            }
            _ => {}
        }
    }

    /// The answer in flight is void. `model` answers next, if another model takes its place.
    fn void(&mut self, failure: Option<&Failure>, model: Option<&Arc<str>>, view: &SessionSnapshot) {
        if let (Some(failure), Some(model)) = (failure, model) {
            let value = json!({ "failure": failure.to_string(), "model": model });
            self.out.push(AgUiFrame::Custom { name: "omni.retry", value });
        }
        let has_shown = !self.blocks.is_empty() && self.list == AgUiMessagesSnapshotMode::None;
        self.close();
        if has_shown {
            let is_own = |message: &&Arc<Message>| message.id.is_some() && message.id == self.answer;
            let kept = view.agent.messages().find(is_own);
            self.correct(kept.map(|message| &**message));
        }
        self.blocks.clear();
    }

    fn user(&mut self, message: &Message) {
        self.close();
        let is_first = mem::take(&mut self.next) != AgUiUserMessagePosition::OfTurn;
        let id = message.id.as_ref().map(ToString::to_string);
        let has_results = message.tool_results().next().is_some();
        if has_results && !is_first {
            for (index, block) in message.content.iter().enumerate() {
                if let Content::ToolResult(result) = block
                    && !self.results.contains(&result.tool_use_id)
                {
                    self.result(result, id.as_deref().map(|id| (id, index)));
                }
            }
            self.results.clear();
        }
        if self.stage == AgUiStage::Behind {
            self.stage = AgUiStage::Live;
            // The client has the prompt of the request before the messages that it lacks.
            if let (AgUiMessagesSnapshotMode::All, Some(id)) = (&self.list, &message.id) {
                self.list = AgUiMessagesSnapshotMode::AllAfter(id.clone());
            }
        }
        // The client has given its own ids to the results that it has sent, so all messages are sent with the stored
        // ids.
        if if has_results { is_first } else { id.is_none_or(|id| !self.run.known.contains(&id)) } {
            self.list();
        }
    }

    fn result(&mut self, tool_result: &ToolResult, block: Option<(&str, usize)>) {
        let (content, metadata) = result(tool_result, block, self.run.level, &self.run.files);
        self.results.insert(tool_result.tool_use_id.clone());
        let call = self.call(&tool_result.tool_use_id);
        self.send([AgUiFrame::ToolCallResult {
            message_id: result_id(&call),
            tool_call_id: call,
            content,
            role: "tool",
            metadata,
        }]);
    }

    /// Returns the id of the call for a tool use of the last answer.
    fn call(&self, tool_use: &ToolUseId) -> String {
        let mut calls = self.blocks.values().filter_map(AgUiBlock::call);
        let call = calls.find_map(|(own, call)| (own == tool_use).then(|| call.to_owned()));
        call.unwrap_or_else(|| tool_use.to_string())
    }

    // ---- the list ----

    /// Sends the list at the end of the update, in place of all frames until then.
    pub(super) fn list(&mut self) {
        self.close();
        if self.list == AgUiMessagesSnapshotMode::None {
            self.list = AgUiMessagesSnapshotMode::All;
        }
    }

    /// Returns whether the client has seen all messages of the answer that `message` contains, and whether it has seen
    /// no others.
    fn compare(&self, message: &Message) -> (bool, bool) {
        let mut whole = AgUiMessages::new(self.run.level, &self.run.files);
        whole.push(message);
        let whole = whole.into_list();
        let calls = whole.iter().flat_map(AgUiMessage::tool_calls).map(|call| call.id.as_str());
        let ids: HashSet<_> = whole.iter().map(AgUiMessage::id).chain(calls).collect();
        let shown: HashSet<_> = self.blocks.values().flat_map(AgUiBlock::ids).collect();
        (ids.is_subset(&shown), shown.is_subset(&ids))
    }

    /// Sends the list, because the client has seen other blocks of the answer than its message `kept` contains.
    fn correct(&mut self, kept: Option<&Message>) {
        // Blocks of the message may have other ids now.
        let moved = kept.filter(|message| self.is_missed || !self.compare(message).0);
        self.list_anew(moved.and_then(|message| message.id.clone()));
    }

    /// Sends the list, and before it a list without the answer `from` and all later messages. A client appends the
    /// messages that it does not know, so it would have new messages of this answer behind the later ones.
    fn list_anew(&mut self, from: Option<MessageId>) {
        self.list();
        if let (AgUiMessagesSnapshotMode::All, Some(id)) = (&self.list, from) {
            self.list = AgUiMessagesSnapshotMode::AllAfter(id);
        }
    }

    /// Sends the list if it is due, and then opens what is in progress.
    pub(super) fn flush(&mut self, view: &SessionSnapshot) {
        let before = match mem::take(&mut self.list) {
            AgUiMessagesSnapshotMode::None => return,
            AgUiMessagesSnapshotMode::All => None,
            AgUiMessagesSnapshotMode::AllAfter(id) => Some(id),
        };
        let list = |before| AgUiMessages::of(view, before, self.run.level, &self.run.files);
        let all = list(None);
        if let Some(before) = &before {
            let mut messages = list(Some(before));
            // The client keeps its reasoning if a list contains none. The next list removes this one.
            if all.iter().any(|message| matches!(message, AgUiMessage::Reasoning { .. })) {
                let (id, content) = (format!("{before}-old"), String::new());
                messages.push(AgUiMessage::Reasoning { id, content });
            }
            self.out.push(messages_snapshot(messages));
        }
        self.out.push(messages_snapshot(all));
        self.open();
    }

    /// Opens the step and the blocks that are in progress.
    fn open(&mut self) {
        if let Some(step) = self.step {
            self.out.push(AgUiFrame::StepStarted { step_name: step_name(step) });
        }
        let open = self.blocks.values().filter(|block| block.is_open);
        self.out.extend(open.flat_map(|block| block.frames(true, "", false)));
    }

    // ---- blocks ----

    fn block(&mut self, index: usize, content: &Content, new: &str, ended: bool, view: &SessionSnapshot) {
        let Some(answer) = &self.answer else { return };
        let is_new = !self.blocks.contains_key(&index);
        if is_new {
            let kind = match content {
                // A text or reasoning block is never opened without text.
                Content::Text(_) if !new.is_empty() => AgUiBlockKind::Text,
                Content::Thinking(_) if !new.is_empty() => AgUiBlockKind::Reasoning,
                Content::ToolUse(tool_use) => {
                    let (id, name) = (call_of(&view.agent, answer, &tool_use.id), tool_use.name.clone());
                    AgUiBlockKind::Call { tool_use: tool_use.id.clone(), id, name, has_input: false }
                }
                Content::Attachment(_) => AgUiBlockKind::File,
                _ => return,
            };
            let before = index.checked_sub(1).and_then(|before| self.blocks.get(&before));
            let message = match (&kind, before) {
                // Tool uses that follow each other share a message.
                (
                    AgUiBlockKind::Call { .. },
                    Some(AgUiBlock { kind: AgUiBlockKind::Call { .. }, message, .. }),
                ) => message.clone(),
                _ => block_id(answer, index),
            };
            if let Content::Attachment(file) = content {
                let content = self.run.files.activity(file, &answer.to_string(), index);
                self.send([activity(message.clone(), FILE, content)]);
            }
            self.blocks.insert(index, AgUiBlock { kind, message, is_open: true });
        }
        let Some(block) = self.blocks.get_mut(&index).filter(|block| block.is_open) else { return };
        let mut text = new.to_owned();
        if let (AgUiBlockKind::Call { has_input, .. }, Content::ToolUse(tool_use)) =
            (&mut block.kind, content)
        {
            if ended && text.is_empty() && !*has_input {
                text = arguments(tool_use);
            } else if ended && text.is_empty() && self.is_missed {
                // The rest of the input is not known in the form in which it began. The other blocks stay open.
                let others = self.blocks.iter().filter(|(other, block)| **other != index && block.is_open);
                let open: Vec<usize> = others.map(|(other, _)| *other).collect();
                let step = self.step;
                self.list_anew(self.answer.clone());
                self.step = step;
                for index in open {
                    self.blocks.entry(index).and_modify(|block| block.is_open = true);
                }
                return;
            }
            *has_input |= !text.is_empty();
        }
        block.is_open = !ended;
        let frames = block.frames(is_new, &text, ended);
        self.send(frames);
    }

    fn close_blocks(&mut self) {
        let mut ends = Vec::new();
        for block in self.blocks.values_mut() {
            if mem::take(&mut block.is_open) {
                ends.append(&mut block.frames(false, "", true));
            }
        }
        self.send(ends);
    }

    /// Closes the blocks and the step.
    fn close(&mut self) {
        self.close_blocks();
        if let Some(step) = self.step.take() {
            self.send([AgUiFrame::StepFinished { step_name: step_name(step) }]);
        }
    }

    // ---- the end ----

    /// Ends the stream. `kept` is the last answer of the run that is kept.
    fn ended(&mut self, outcome: &RunOutcome, kept: Option<&Arc<Message>>, view: &SessionSnapshot) {
        let turn_of = |message: &Arc<Message>| message.id.as_ref()?.turn();
        // The prompt of somebody else has started the last turn, and was not answered.
        let is_other = |end: &Arc<RunEnd>| {
            end.turn != self.turn && end.unanswered.first().is_some_and(|prompt| turn_of(prompt).is_none())
        };
        if self.is_missed && !self.shows_all && view.agent.last_run.as_ref().is_some_and(is_other) {
            return self.finish(&super::SUCCESS, None, view);
        }
        let last = kept.and_then(turn_of);
        let is_kept = last.is_some() && last == self.turn;
        match outcome {
            // The history lacks the messages of a cancelled run.
            RunOutcome::Cancelled => self.list(),
            // The history can have other results than those that were sent.
            RunOutcome::Failed { .. } if is_kept => self.list(),
            // The client keeps the messages, so that its user can send the prompt again.
            RunOutcome::Failed { .. } | RunOutcome::Abandoned if !is_kept => {
                self.list = AgUiMessagesSnapshotMode::None;
            }
            _ => {}
        }
        self.finish(outcome, kept.map(|message| &**message), view);
    }

    /// Ends the stream because the run has ended, with this last answer. An abandoned run is an error, because the user
    /// has not asked for its end.
    pub(super) fn finish(&mut self, outcome: &RunOutcome, last: Option<&Message>, view: &SessionSnapshot) {
        let outcome = match outcome {
            _ if is_lost(view) => return self.fail(LOST.0, LOST.1, view),
            RunOutcome::Failed { failure } => return self.fail(code(failure), &failure.to_string(), view),
            RunOutcome::Abandoned => return self.fail("abandoned", crate::web::ABANDONED, view),
            RunOutcome::Cancelled
            | RunOutcome::Discarded
            | RunOutcome::Stopped { stop_reason: StopReason::Interrupted } => AgUiOutcome::Cancelled,
            RunOutcome::Stopped { .. } => {
                let uses = last.into_iter().flat_map(Message::tool_uses);
                let open = uses.filter(|tool_use| tool_use.decided.is_none());
                let pending_tool_call_ids =
                    open.map(|tool_use| newest_call_of(&view.agent, &tool_use.id)).collect();
                AgUiOutcome::Success { pending_tool_call_ids }
            }
        };
        self.finish_with(outcome, view);
    }

    fn finish_with(&mut self, outcome: AgUiOutcome, view: &SessionSnapshot) {
        let is_understood =
            self.run.level == AgUiVersion::V1 || matches!(outcome, AgUiOutcome::Interrupt { .. });
        let (thread_id, run_id) = (self.run.thread.clone(), self.run.id.clone());
        let (outcome, usage) = (is_understood.then_some(outcome), self.usage());
        self.end(AgUiFrame::RunFinished { thread_id, run_id, outcome, usage }, view);
    }

    /// Ends the stream with an error, unless it has ended.
    pub(super) fn fail(&mut self, code: &str, message: &str, view: &SessionSnapshot) {
        self.end(error(code, message, self.usage()), view);
    }

    fn end(&mut self, frame: AgUiFrame, view: &SessionSnapshot) {
        if !self.is_ended() {
            self.close();
            self.flush(view);
            self.out.push(frame);
            self.stage = AgUiStage::Ended;
        }
    }

    fn usage(&self) -> Vec<AgUiUsage> {
        let safe = |count: u64| count.min((1 << 53) - 1);
        let usage = self.usage.iter().flatten().map(|(model, usage)| AgUiUsage {
            model: clip(model, 256).into_owned(),
            input_tokens: safe(usage.prompt()),
            output_tokens: safe(usage.output),
            total_tokens: safe(usage.total()),
            reasoning_tokens: safe(usage.reasoning),
            cached_input_tokens: safe(usage.cache_read),
            cache_write_input_tokens: safe(usage.cache_write),
        });
        let mut usage: Vec<_> = usage.collect();
        usage.sort_by(|a, b| a.model.cmp(&b.model));
        usage
    }
}

impl AgUiBlock {
    /// Returns the ids of the tool use and of its call.
    fn call(&self) -> Option<(&ToolUseId, &str)> {
        match &self.kind {
            AgUiBlockKind::Call { tool_use, id, .. } => Some((tool_use, id.as_str())),
            _ => None,
        }
    }

    /// Returns the ids of the message and of the tool use.
    fn ids(&self) -> impl Iterator<Item = &str> {
        let tool_use = self.call().map(|(tool_use, _)| tool_use.as_str());
        tool_use.into_iter().chain([self.message.as_str()])
    }

    /// Returns the frames that open the block, add this text or input, and close the block. Each frame fits its limit.
    fn frames(&self, opens: bool, mut text: &str, closes: bool) -> Vec<AgUiFrame> {
        let pieces = std::iter::from_fn(|| {
            let piece = start(text, MAX_TEXT);
            text = &text[piece.len()..];
            (!piece.is_empty()).then(|| piece.to_owned())
        });
        let (mut frames, id) = (Vec::new(), || self.message.clone());
        match &self.kind {
            AgUiBlockKind::Text => {
                frames.extend(
                    opens.then(|| AgUiFrame::TextMessageStart { message_id: id(), role: "assistant" }),
                );
                frames.extend(pieces.map(|delta| AgUiFrame::TextMessageContent { message_id: id(), delta }));
                frames.extend(closes.then(|| AgUiFrame::TextMessageEnd { message_id: id() }));
            }
            AgUiBlockKind::Reasoning => {
                let role = "reasoning";
                frames.extend(opens.then(|| AgUiFrame::ReasoningStart { message_id: id() }));
                frames.extend(opens.then(|| AgUiFrame::ReasoningMessageStart { message_id: id(), role }));
                frames.extend(
                    pieces.map(|delta| AgUiFrame::ReasoningMessageContent { message_id: id(), delta }),
                );
                frames.extend(closes.then(|| AgUiFrame::ReasoningMessageEnd { message_id: id() }));
                frames.extend(closes.then(|| AgUiFrame::ReasoningEnd { message_id: id() }));
            }
            AgUiBlockKind::Call { id: call, name, .. } => {
                let (parent_message_id, tool_call_name, call) = (id(), name.clone(), || call.clone());
                frames.extend(opens.then(|| AgUiFrame::ToolCallStart {
                    tool_call_id: call(),
                    tool_call_name,
                    parent_message_id,
                }));
                frames.extend(pieces.map(|delta| AgUiFrame::ToolCallArgs { tool_call_id: call(), delta }));
                frames.extend(closes.then(|| AgUiFrame::ToolCallEnd { tool_call_id: call() }));
            }
            AgUiBlockKind::File => {}
        }
        frames
    }
}

/// Iterates over the ids of the staged prompts.
fn staged(view: &SessionSnapshot) -> impl Iterator<Item = &PromptId> {
    view.agent.staged.iter().filter_map(|prompt| prompt.id.as_ref())
}

fn step_name(step: u32) -> String {
    format!("step {step}")
}

fn activity(message_id: String, activity_type: &'static str, content: Value) -> AgUiFrame {
    AgUiFrame::ActivitySnapshot { message_id, activity_type, content, replace: true }
}

fn messages_snapshot(messages: Vec<AgUiMessage>) -> AgUiFrame {
    // The list contains all current activities, so the client removes the activities of tools that have ended.
    let types = json!({ "authoritativeActivityTypes": [PROGRESS, FILE] });
    AgUiFrame::MessagesSnapshot { messages, metadata: json!({ "@ag-ui/client": types }) }
}

pub(super) fn run_started(run: &AgUiRequestedRun) -> AgUiFrame {
    AgUiFrame::RunStarted {
        thread_id: run.thread.clone(),
        run_id: run.id.clone(),
        protocol_version: (run.level == AgUiVersion::V1).then_some("1.0"),
    }
}

/// Returns the terminal frame of a run that failed.
pub(super) fn error(code: &str, message: &str, usage: Vec<AgUiUsage>) -> AgUiFrame {
    AgUiFrame::RunError { message: clip(message, MAX_MESSAGE).into_owned(), code: code.to_owned(), usage }
}

/// Returns the code of a failure.
fn code(failure: &Failure) -> &'static str {
    match failure {
        Failure::Provider { .. } | Failure::ProviderPanicked { .. } => "provider",
        Failure::TimeLimit { .. } => "time-limit",
        Failure::Budget { .. } => "budget",
        Failure::Output { .. } => "output",
        Failure::Refused => "refused",
        Failure::OnHold { .. } => "store-behind",
        Failure::Interrupted | Failure::Uncertain => "interrupted",
        Failure::Callback { .. } => "internal",
    }
}

//! Turns a snapshot and the updates after it into the frames of one response.
//!
//! [`Follow`] follows the run, and this module turns its progress into frames. A snapshot that replaces missed events
//! gives the same progress, so a slow reader gets the rest of the answer by the same path.
//!
//! # States
//!
//! - `Waiting`: the message of the prompt was not reported. The frame `start` follows, with the id of the answer.
//! - `Running`: the frame `start` was sent.
//! - `Paused`: tool uses wait for decisions. Several decisions, or questions of several tools, change the list one after
//!   the other. So the caller ends the response with [`AiSdkStream::pause`] as soon as no further update is ready.
//! - `Finishing`: the last turn is committed. The `tree` event with its nodes follows.
//! - `Ended`: the frames are complete. The last one is `finish` or `error`. The stream sends [`DONE`](super::DONE) next.
//!
//! # Progress and frames
//!
//! | progress | frames |
//! | --- | --- |
//! | `Waiting`, `Turn` | none. The turn gives the answer its id |
//! | `User` | the first one: `start`. Later ones: the results that were not sent, and a joined prompt as a steering message. If a staged prompt starts a turn, the response ends, because another message of the protocol begins |
//! | `Request` | `start-step` |
//! | `Block` | the start, the new text and the end of a part |
//! | `Answer` | `finish-step`, and the results that the message contains |
//! | `Tool` | the response to an approval, a preliminary output, or the output |
//! | `Void` | none yet. `reset-step` or a mark follows with the repetition. If the run ends instead, the text stays |
//! | `Budget` | `data-omni-budget` |
//! | `Compaction` | `data-omni-compaction` |
//! | `Pauses` | none yet. The requests for approvals follow at the end of the response |
//! | `Ended`, `Returned` | errors of open tool uses, then `finish`, or `abort` and `finish`, or `error` |
//!
//! The usage, the delay of a repetition and the nodes are read from the events, or from the snapshot that replaces them.

use std::{mem, sync::Arc};

use serde_json::{Value, json};

use super::{
    AiSdkFrame, AiSdkTranslationSettings, AiSdkVersion,
    exchange::{PromptExchange, answer_id, compaction, exchanges, has_own_content, has_results},
    writer::AiSdkFrameWriter,
};
use crate::{
    agent::{Event, Follow, FollowFrom, FollowTarget, RunProgress, ToolChange},
    message::{Message, MessageId, ToolUseId, TurnId, Usage},
    provider::StopReason,
    run::{Accepted, PromptId, PromptState, RunOutcome},
    session::{SessionEvent, SessionSnapshot, StoreReport},
    tree::{Node, NodeId},
    web::{ABANDONED, LOST},
};

/// The part of the conversation that a response shows.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) enum AiSdkRunToStream {
    /// The run of this prompt, from its start. The prompt may be staged first.
    Prompt(PromptId),
    /// The run of the prompt with this id, which contains only the results of tools. The run continues the last answer.
    Results(PromptId),
    /// The run that the command starts without a new prompt, from its start.
    Again,
    /// The rest of a run that was paused in the snapshot. The client has the answer up to the pause.
    Decisions,
    /// The run that is active in the snapshot, from its start.
    InFlight,
    /// The run of the prompt with this message, which has ended.
    Ended(MessageId, RunOutcome),
}

/// Turns a snapshot and the updates after it into the frames of one response.
#[derive(Debug)]
pub(in crate::web) struct AiSdkStream {
    follow: Follow,
    reply: AiSdkStreamedResponse,
}

/// The response so far.
#[derive(Debug, Default)]
struct AiSdkStreamedResponse {
    writer: AiSdkFrameWriter,
    state: AiSdkStreamState,
    /// The id of the assistant's message.
    answer: String,
    /// The title of the conversation that the client knows.
    title: Option<Arc<str>>,
    /// The turn whose first message was not reported yet.
    turn: Option<TurnId>,
    /// Whether the step that was shown last is void.
    is_void: bool,
    /// The usage of the complete turns of this response.
    usage: Usage,
    /// The usage of the steps of the turn in flight.
    steps: Usage,
    /// Whether the response shows the turn in flight from its start, and has missed no event. If so, the sum of the
    /// steps' usage is the usage of the turn.
    is_whole: bool,
    /// The message with the last results of tools that were shown.
    results: Option<Arc<Message>>,
    /// The tool uses about which the command has decided.
    decided: Vec<ToolUseId>,
    /// The id of the first message of this response, and the last message.
    first: Option<MessageId>,
    last: Option<Arc<Message>>,
    nodes: Vec<NodeId>,
}

/// The reason for a repetition whose failure was missed.
const REPLACED: &str = "The answer is replaced by another one.";

/// The states of a response, which the head of this module describes.
#[derive(Debug, Default, PartialEq)]
enum AiSdkStreamState {
    #[default]
    Waiting,
    Running,
    Paused,
    Finishing(StopReason),
    Ended,
}

impl AiSdkStream {
    /// Starts a response with the frames that the snapshot causes.
    pub(in crate::web) fn begin(
        settings: AiSdkTranslationSettings,
        snapshot: &SessionSnapshot,
        target: AiSdkRunToStream,
    ) -> Self {
        let (agent, exchanges) = (&snapshot.agent, exchanges(snapshot));
        let has_results = |exchange: &&PromptExchange<'_>, id: &PromptId| {
            let id = Some(MessageId::from(id.clone()));
            exchange.rest.iter().any(|entry| entry.message.id == id)
        };
        let exchange = match &target {
            AiSdkRunToStream::Ended(prompt, _) => exchanges.iter().rfind(|exchange| {
                exchange.prompt.is_some_and(|entry| entry.message.id.as_ref() == Some(prompt))
            }),
            AiSdkRunToStream::Results(id) => {
                exchanges.iter().rfind(|exchange| has_results(exchange, id)).or(exchanges.last())
            }
            _ => exchanges.last(),
        };
        let is_known = matches!(&target, AiSdkRunToStream::Results(id) if exchange.is_some_and(|exchange| has_results(&exchange, id)));
        let last = exchange.and_then(PromptExchange::answer_id).or(agent.turn.map(answer_id));
        let last = last.unwrap_or_else(|| answer_id("n-0"));
        let (followed, answer) = match &target {
            // The turn is known when the prompt's message is added. A prompt that is never used keeps this id.
            AiSdkRunToStream::Prompt(id) => (FollowTarget::Prompt(id.clone()), answer_id(id)),
            AiSdkRunToStream::Results(id) => (FollowTarget::Prompt(id.clone()), last),
            AiSdkRunToStream::Ended(id, _) if exchange.is_none() => (FollowTarget::InFlight, answer_id(id)),
            _ => (FollowTarget::InFlight, last),
        };
        let (writer, title) = (AiSdkFrameWriter::new(settings, snapshot), snapshot.title.clone());
        let reply = AiSdkStreamedResponse { writer, answer, title, ..AiSdkStreamedResponse::default() };
        let mut this = Self { follow: Follow::new(followed, FollowFrom::Start), reply };
        // The response is read only after its prompt was accepted.
        this.follow.accepted(&Accepted::Known { state: PromptState::Staged });
        // A turn that begins with nothing but results continues the last answer.
        let first = agent.pending.iter().find(|message| message.compaction.is_none());
        let continues = first.is_some_and(|first| !has_own_content(first));
        let rest = exchange.iter().flat_map(|exchange| &exchange.rest).filter_map(|entry| entry.node);
        if matches!(target, AiSdkRunToStream::Ended(..)) || target == AiSdkRunToStream::InFlight && continues
        {
            this.reply.start();
            this.reply.writer.replay(rest.clone().map(Node::message));
            this.reply.writer.mark_answered(first.filter(|_| continues));
        }
        match target {
            AiSdkRunToStream::Results(_) if is_known => this.snapshot(snapshot),
            AiSdkRunToStream::Prompt(_) | AiSdkRunToStream::Results(_) | AiSdkRunToStream::Again => {}
            AiSdkRunToStream::InFlight => this.snapshot(snapshot),
            AiSdkRunToStream::Decisions => {
                this.snapshot(snapshot);
                this.reply.writer.continue_from(&agent.pauses);
                this.reply.state = AiSdkStreamState::Waiting;
                this.reply.start();
            }
            AiSdkRunToStream::Ended(_, outcome) => {
                (this.reply.nodes, this.reply.usage) = sums(rest);
                this.reply.finish(&outcome);
                this.reply.flush();
            }
        }
        this
    }

    /// Records the tool uses about which the command decides. A sub-agent withdraws its pause after the decision.
    pub(in crate::web) fn decided(&mut self, tool_uses: Vec<ToolUseId>) {
        self.reply.decided = tool_uses;
    }

    /// Records that the command has returned.
    pub(in crate::web) fn accepted(&mut self, accepted: &Accepted) {
        self.follow.accepted(accepted);
    }

    /// Returns the next frame, if there is one.
    pub(in crate::web) fn next_frame(&mut self) -> Option<AiSdkFrame> {
        self.reply.writer.frames.pop_front()
    }

    /// Returns whether the frames are complete.
    pub(in crate::web) fn is_ended(&self) -> bool {
        self.reply.state == AiSdkStreamState::Ended
    }

    /// Returns whether the response ends if no further update is ready.
    pub(in crate::web) fn is_paused(&self) -> bool {
        self.reply.state == AiSdkStreamState::Paused
    }

    /// Ends the response, because the run is paused.
    pub(in crate::web) fn pause(&mut self) {
        let decided = &self.reply.decided;
        let pauses = self.follow.pauses().iter().filter(|pause| !decided.contains(&pause.tool_use.id));
        self.reply.writer.pauses(&pauses.cloned().collect::<Vec<_>>());
        self.reply.writer.step_end();
        self.reply.end("tool-calls", json!({ "paused": true }));
    }

    /// Ends the response with this error.
    pub(in crate::web) fn fail(&mut self, error: &str) {
        let reply = &mut self.reply;
        reply.flush();
        if reply.state != AiSdkStreamState::Ended {
            reply.start();
            reply.writer.close(error);
            reply.writer.step_end();
            reply.error(error);
        }
    }

    /// Reads the next event.
    pub(in crate::web) fn event(&mut self, event: &SessionEvent) {
        let reply = &mut self.reply;
        match event {
            SessionEvent::Agent(event) => {
                self.follow.event(event, &mut |progress| reply.progress(progress, None));
                reply.note(event);
                if !matches!(**event, Event::Turn { .. }) {
                    reply.flush();
                }
            }
            SessionEvent::Tree(changes) => {
                if reply.state != AiSdkStreamState::Waiting {
                    reply.nodes.extend(changes.nodes.iter().map(Node::id));
                }
                reply.flush();
            }
            // The session interrupts its run. Without this error, a client would take the interrupted run as a success.
            SessionEvent::Store(StoreReport::Lost { .. }) => self.fail(LOST),
            SessionEvent::Title { title } => reply.titled(title.as_ref()),
            _ => {}
        }
    }

    /// Reads a snapshot that replaces missed events.
    pub(in crate::web) fn snapshot(&mut self, snapshot: &SessionSnapshot) {
        if matches!(snapshot.store, Some(StoreReport::Lost { .. })) {
            return self.fail(LOST);
        }
        let reply = &mut self.reply;
        reply.titled(snapshot.title.as_ref());
        reply.is_whole = false;
        self.follow.snapshot(snapshot.tree.history(), &snapshot.agent, &mut |progress| {
            reply.progress(progress, Some(snapshot));
        });
        let path: Vec<_> = snapshot.tree.iter().collect();
        let place = |id: &MessageId| path.iter().rposition(|node| node.message().id.as_ref() == Some(id));
        if let Some(first) = reply.first.as_ref().and_then(place) {
            let last = reply.last.as_ref().and_then(|last| place(last.id.as_ref()?));
            let end = last.filter(|last| *last >= first).map_or(path.len(), |last| last + 1);
            (reply.nodes, reply.usage) = sums(path[first..end].iter().copied());
        }
        reply.flush();
    }
}

impl AiSdkStreamedResponse {
    /// Writes the frames for the progress of the run. `snapshot` is given if the progress comes from a snapshot.
    fn progress(&mut self, progress: RunProgress<'_>, snapshot: Option<&SessionSnapshot>) {
        if matches!(self.state, AiSdkStreamState::Finishing(_) | AiSdkStreamState::Ended) {
            return;
        }
        let is_first = self.state == AiSdkStreamState::Waiting;
        if matches!(progress, RunProgress::User(_) | RunProgress::Request { .. })
            && mem::take(&mut self.is_void)
        {
            self.writer.retry(true, REPLACED, 0, None);
        }
        match progress {
            RunProgress::Turn(turn) => self.turn = Some(turn),
            RunProgress::User(message) => self.user(message, snapshot.is_none()),
            RunProgress::Request { step, answer } => {
                self.start();
                self.writer.step_start(step, answer);
            }
            RunProgress::Block { index, content, new, ended } => {
                self.writer.block(index, content, new, ended);
            }
            RunProgress::Answer(message) => {
                self.last = Some(Arc::clone(message));
                self.writer.answer(message);
            }
            // The message of a prompt can contain results for the answer before it.
            RunProgress::Tool { .. } if is_first => {}
            RunProgress::Tool { id, change: ToolChange::Decided(decided) } => {
                self.writer.decided(id, &decided.decision);
            }
            RunProgress::Tool { id, change: ToolChange::Progress(data) } => self.writer.progress(id, data),
            RunProgress::Tool { change: ToolChange::Result(result), .. } => self.writer.tool_end(result),
            RunProgress::Void { .. } => self.is_void = true,
            RunProgress::Budget(report) => self.writer.data("budget", None, &json!(report)),
            RunProgress::Compaction { message, failure } => {
                let value = compaction(message, failure);
                self.writer.data("compaction", None, &value);
            }
            RunProgress::Pauses(pauses) => {
                let waits = pauses.iter().any(|pause| !self.decided.contains(&pause.tool_use.id));
                self.state = if waits { AiSdkStreamState::Paused } else { AiSdkStreamState::Running };
            }
            // The answer is on another branch.
            RunProgress::Ended {
                outcome: Some(RunOutcome::Stopped { .. }),
                response: None,
                message: None,
            } => {
                self.start();
                self.writer.close("The end of the answer was missed.");
                self.writer.step_end();
                self.error("The end of the answer was missed. Load the messages again.");
            }
            RunProgress::Ended { outcome, response, message } => {
                let is_discarded = matches!(outcome, Some(RunOutcome::Cancelled | RunOutcome::Discarded));
                if mem::take(&mut self.is_void) && snapshot.is_some() && !is_discarded {
                    self.writer.retry(true, REPLACED, 0, None);
                }
                let leaves_open = match (response, message) {
                    (Some(response), _) => !response.open_tool_uses.is_empty(),
                    (None, Some(message)) => snapshot.is_some_and(|snapshot| {
                        let node = snapshot.tree.iter().rfind(|node| node.message().id == message.id);
                        node.is_some_and(Node::left_open)
                    }),
                    (None, None) => false,
                };
                let all: Vec<_> = match response {
                    Some(response) => response.messages.iter().collect(),
                    None => snapshot.into_iter().flat_map(SessionSnapshot::messages).collect(),
                };
                // If the turn was discarded, only the end of the last run names it.
                let end =
                    snapshot.filter(|_| is_first).and_then(|snapshot| snapshot.agent.last_run.as_deref());
                let is_asked =
                    |prompt: &Arc<Message>| prompt.id.as_ref().is_some_and(|id| answer_id(id) == self.answer);
                if let Some(end) = end.filter(|end| end.unanswered.iter().any(is_asked))
                    && let Some(turn) = end.turn
                {
                    self.answer = answer_id(turn);
                }
                self.ended(outcome, message, &all, leaves_open);
            }
            RunProgress::Returned { outcome } => {
                self.start();
                self.discarded(match outcome {
                    None => "The prompt was withdrawn.",
                    Some(RunOutcome::Stopped { .. }) => "The run was interrupted before the prompt was used.",
                    Some(RunOutcome::Cancelled) => "The run was cancelled before the prompt was used.",
                    Some(outcome) => return self.finish(outcome),
                });
            }
            _ => {}
        }
    }

    fn start(&mut self) {
        if self.state == AiSdkStreamState::Waiting {
            self.state = AiSdkStreamState::Running;
            self.writer.frame(json!({ "type": "start", "messageId": self.answer }));
        }
    }

    /// Writes a user message: the prompt, results of tools, a prompt that joined the turn, or a continuation.
    fn user(&mut self, message: &Arc<Message>, is_live: bool) {
        let (is_first, turn) = (self.state == AiSdkStreamState::Waiting, self.turn.take());
        let is_new = has_own_content(message);
        // Only the id of a message from the agent contains a turn.
        let is_prompt = is_new && message.id.as_ref().and_then(MessageId::turn).is_none();
        if !is_first && turn.is_some() && is_prompt {
            let last = self.last.clone();
            return self.ended(None, last.as_ref(), &[], false);
        }
        self.first = self.first.take().or_else(|| message.id.clone());
        self.last = Some(Arc::clone(message));
        if is_first {
            if let Some(turn) = turn.filter(|_| is_new) {
                self.answer = answer_id(turn);
            }
            self.start();
            self.is_whole = is_live;
            // The results in a new message belong to the previous answer. The client rejects results of tools that are
            // not part of this answer.
            if is_new {
                return;
            }
        }
        if has_results(message) {
            self.results = Some(Arc::clone(message));
        }
        self.writer.results(message);
        self.writer.steering(message);
    }

    /// Records the parts of an event that are not part of the progress.
    fn note(&mut self, event: &Event) {
        match event {
            _ if matches!(self.state, AiSdkStreamState::Waiting | AiSdkStreamState::Ended) => {}
            Event::Retry { failure, delay, model, .. } => {
                let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                let model = model.as_deref();
                self.writer.retry(mem::take(&mut self.is_void), &failure.to_string(), delay, model);
            }
            Event::Step(response) => {
                self.steps += response.usage;
                if self.is_whole {
                    let metadata = json!({ "usage": self.usage + self.steps });
                    self.writer.frame(json!({ "type": "message-metadata", "messageMetadata": metadata }));
                }
            }
            Event::Usage(row) if row.conversation.is_none() => self.steps += row.usage,
            Event::Turn { response, .. } => {
                self.usage += response.usage;
                self.steps = Usage::default();
                // The last message states why the turn ended.
                let mut messages = response.messages.iter();
                let last = messages.rfind(|message| message.compaction.is_none());
                self.last = last.or(self.last.as_ref()).cloned();
            }
            _ => {}
        }
    }

    fn titled(&mut self, title: Option<&Arc<str>>) {
        if self.title.as_ref() != title && self.state != AiSdkStreamState::Ended {
            self.title = title.cloned();
            self.writer.data("title", None, &json!({ "title": title }));
        }
    }

    // ---- the end ----

    /// Closes the answer, and ends the response. `kept` is the last message of the run that is kept, and `all` are the
    /// messages that can contain other results than those that were shown: if a service refuses a request, the newest
    /// results in it are kept in a shorter form. `leaves_open` is whether the client has to answer tool uses.
    fn ended(
        &mut self,
        outcome: Option<&RunOutcome>,
        kept: Option<&Arc<Message>>,
        all: &[&Arc<Message>],
        leaves_open: bool,
    ) {
        self.start();
        let outcome = match (outcome, kept) {
            (Some(outcome), _) => outcome.clone(),
            (None, Some(kept)) => RunOutcome::Stopped { stop_reason: stop_reason(kept) },
            (None, None) => RunOutcome::Discarded,
        };
        let reason = match &outcome {
            RunOutcome::Stopped { .. } => "The run ended without a result of the tool.",
            RunOutcome::Failed { .. } => "The run failed.",
            RunOutcome::Abandoned => ABANDONED,
            RunOutcome::Cancelled | RunOutcome::Discarded => "The run was cancelled.",
        };
        if let (RunOutcome::Stopped { .. }, Some(kept)) = (&outcome, kept) {
            self.writer.answer(kept);
        }
        if !leaves_open {
            self.writer.close(reason);
        }
        if let Some(shown) = self.results.take().filter(|shown| shown.id.is_some())
            && let Some(kept) = all.iter().find(|message| message.id == shown.id)
        {
            self.writer.replace(&shown, kept);
        }
        self.finish(&outcome);
    }

    fn finish(&mut self, outcome: &RunOutcome) {
        self.writer.seal();
        self.writer.step_end();
        match outcome {
            RunOutcome::Stopped { stop_reason } => {
                self.state = AiSdkStreamState::Finishing(stop_reason.clone());
            }
            RunOutcome::Cancelled => self.discarded("The run was cancelled."),
            RunOutcome::Discarded => self.discarded("The run was discarded."),
            RunOutcome::Failed { failure } => self.error(&failure.to_string()),
            RunOutcome::Abandoned => self.error(ABANDONED),
        }
    }

    /// Sends the last frame of the response, if the last turn is committed.
    fn flush(&mut self) {
        let AiSdkStreamState::Finishing(stop_reason) = &self.state else { return };
        let reason = match stop_reason {
            StopReason::Stop | StopReason::StopSequence => "stop",
            StopReason::Length | StopReason::ContextLength => "length",
            StopReason::Refusal => "content-filter",
            StopReason::ToolUse => "tool-calls",
            StopReason::Interrupted if self.writer.settings.level == AiSdkVersion::Seven => "interrupted",
            _ => "other",
        };
        let mut metadata = json!({ "usage": self.usage, "stopReason": stop_reason.to_string() });
        if let Some(cost) = self.usage.cost {
            metadata["cost"] = cost.into();
        }
        self.end(reason, metadata);
    }

    fn end(&mut self, reason: &str, mut metadata: Value) {
        if !self.nodes.is_empty() {
            metadata["nodes"] = json!(self.nodes);
        }
        self.writer.frame(json!({ "type": "finish", "finishReason": reason, "messageMetadata": metadata }));
        self.state = AiSdkStreamState::Ended;
    }

    /// Ends a response whose messages are not part of the history.
    fn discarded(&mut self, reason: &str) {
        self.writer.frame(json!({ "type": "abort", "reason": reason }));
        self.nodes.clear();
        self.end("other", json!({ "discarded": true }));
    }

    fn error(&mut self, text: &str) {
        self.writer.frame(json!({ "type": "error", "errorText": text }));
        self.state = AiSdkStreamState::Ended;
    }
}

/// Returns the reason why a turn with this last message has ended. The message states an unusual reason.
fn stop_reason(last: &Message) -> StopReason {
    match &last.ended {
        Some(reason) => (**reason).clone(),
        None if last.tool_uses().any(|tool_use| tool_use.decided.is_none()) => StopReason::ToolUse,
        None => StopReason::Stop,
    }
}

/// Returns the ids of nodes, and their usage.
pub(super) fn sums<'a>(nodes: impl Iterator<Item = &'a Node>) -> (Vec<NodeId>, Usage) {
    let mut sum = Usage::default();
    let ids = nodes.inspect(|node| sum += node.usage().copied().unwrap_or_default()).map(Node::id).collect();
    (ids, sum)
}

//! A reader of one run, which needs no other view of the agent's events and snapshots.
//!
//! # States
//!
//! ```text
//! Unknown ──▶ Waiting ──▶ Running ──▶ Ended
//!    └───────────┴───────────┴──▶ Ended (returned unused, or unknown)
//! ```
//!
//! `Unknown`: neither an event nor a snapshot has shown the target. `Waiting`: the prompt is staged. `Running`: the
//! target is active. `Ended`: the end was reported. [`FollowTarget::InFlight`] has no `Waiting`, and goes from `Ended` to
//! `Running` again when the next run begins.
//!
//! # Invariants
//!
//! - Only the statements of the agent end a target. The end of a prompt is stated by [`Event::Prompt`] and
//!   [`Snapshot::prompts`](super::Snapshot::prompts). A run ends with the event that ends it, or with a snapshot that shows
//!   another run or none.
//! - `Prompt(ended)` is kept until the event that ends the turn, so the end has its response. Between two turns no such
//!   event follows, so the end is reported at once, with the response of the last turn.
//! - `messages` are the reported messages of the turn, and one before them. A snapshot is read from the last of them that
//!   it contains: a repetition, the end of a discarded turn, and a prompt that has joined without an answer remove some.
//! - `answer`, `partial` and `shown` belong to the answer in progress. If a snapshot or the end shows that this answer is
//!   neither in progress nor stored, it is reported as void before anything else.
//! - The text of a block is reported once. A block of a later snapshot or message continues a reported block only if it
//!   begins with the same text.

mod snapshots;

use std::{mem, sync::Arc};

use serde_json::Value;

use super::{Event, Failure, PendingUse, PromptId, PromptState, Response, RunOutcome, snapshot::take_block};
use crate::{
    budget::BudgetReport,
    message::{Content, Message, MessageId, Role, ToolResult, ToolUseId, TurnId},
    provider::PartialBlock,
    run::{Accepted, Decided},
};

/// The run that a [`Follow`] follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowTarget {
    /// The run of the prompt with this id, from the prompt's message until the prompt has ended.
    Prompt(PromptId),
    /// The run whose first turn has this id, until the agent is idle. A run that has no prompt with an id is found by
    /// the turn in [`Accepted::Started`].
    Turn(TurnId),
    /// The run that is active or, if none is active, the next run, until the agent is idle. Then the run that follows, and
    /// so on.
    #[default]
    InFlight,
}

/// The part of a run that the reader already has when it begins to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowFrom {
    /// The reader has nothing. The first snapshot is reported from the start of the run, or from the start of the turn in
    /// flight if the target is [`FollowTarget::InFlight`].
    #[default]
    Start,
    /// The reader has everything that the first snapshot shows.
    Now,
}

/// A change of a tool use.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolChange<'a> {
    /// A decision was made. Not reported if the event was missed.
    Decided(&'a Decided),
    /// The tool has started.
    Started {
        /// The input, if it differs from the input that the model sent.
        input: Option<&'a Value>,
    },
    /// The tool has reported progress. Not reported if the event was missed.
    Progress(&'a Value),
    /// The tool has ended. Not reported if a snapshot already shows the message with the result.
    Ended {
        /// Whether the tool returned an error.
        is_error: bool,
    },
    /// The result is available.
    Result(&'a ToolResult),
}

/// The progress of a run. A [`Follow`] reports the same progress for events and for a snapshot that replaces them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunProgress<'a> {
    /// The prompt is staged.
    Waiting,
    /// The run has begun this turn.
    Turn(TurnId),
    /// A user message was added: the prompt, the results of tools, a prompt that joined the turn, or a continuation.
    User(&'a Arc<Message>),
    /// A request began.
    Request {
        /// The number of the request. If the event was missed, this is the number of the previous request plus one.
        step: u32,
        /// The id of the answer. `None` if the answer is a stored message without an id.
        answer: Option<&'a MessageId>,
    },
    /// A block of the answer began, was extended or has ended.
    Block {
        /// The index of the block in the streamed answer. The message of an answer that was cut short can lack blocks.
        index: usize,
        /// The block so far. The input of a tool use is empty until the block has ended.
        content: &'a Content,
        /// The part of the text, or of the JSON text of a tool's input, that was not reported before. If the answer
        /// was completed while the reader missed events, the rest of an input is only in `content`.
        new: &'a str,
        /// Whether the block has ended.
        ended: bool,
    },
    /// The answer is complete. All of its blocks were reported.
    Answer(&'a Arc<Message>),
    /// A tool use of the last answer has changed.
    Tool {
        /// The id of the tool use.
        id: &'a ToolUseId,
        /// The change.
        change: ToolChange<'a>,
    },
    /// Everything that was reported since the last `Request` is void.
    Void {
        /// The failure after which the request is repeated. `None` if the request is not repeated, for example because a
        /// budget refuses it, or if the event was missed.
        failure: Option<&'a Failure>,
        /// The full name of the backup model that repeats the request, if one does.
        model: Option<&'a Arc<str>>,
    },
    /// 80 % of a limit of a budget are spent.
    Budget(&'a BudgetReport),
    /// A compaction of the conversation has begun, has ended, or has failed. Not reported if the event was missed, or if
    /// the run had ended before.
    Compaction {
        /// The message of the compaction, when it has ended.
        message: Option<&'a Arc<Message>>,
        /// The failure, if the compaction has failed.
        failure: Option<&'a Failure>,
    },
    /// The list of tool uses and questions that wait for a decision has changed.
    Pauses(&'a [Arc<PendingUse>]),
    /// The run has ended.
    Ended {
        /// The outcome. `None` if the agent does not know the outcome any more.
        outcome: Option<&'a RunOutcome>,
        /// The response of the last turn, which may be discarded. `None` if the event was missed.
        response: Option<&'a Arc<Response>>,
        /// The last assistant message of the run that the history contains.
        message: Option<&'a Arc<Message>>,
    },
    /// The prompt was staged, and the agent has returned it unused.
    Returned {
        /// The outcome of the run that did not use the prompt. `None` if the prompt was withdrawn, or if the outcome is not
        /// known any more.
        outcome: Option<&'a RunOutcome>,
    },
}

/// Follows one run through events and snapshots, and reports its progress. Performs no I/O.
///
/// A reader that was too slow gets a snapshot in place of the missed events. The snapshot is reported in the same form,
/// without a gap or a repetition. If the reader has missed the end of a run and the start of a later one, only the turn
/// that it was reading is completed.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::agent::{Agent, Follow, FollowFrom, FollowTarget, RunProgress};
/// use omni_agent::{Prompt, Update};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// let mut follow = Follow::new(FollowTarget::Prompt("order-7".into()), FollowFrom::Start);
/// let mut text = String::new();
/// let mut show = |progress: RunProgress<'_>| if let RunProgress::Block { new, .. } = progress { text.push_str(new) };
///
/// follow.accepted(&agent.prompt(Prompt::new("Hi").with_id("order-7")).await?);
/// while !follow.is_ended() {
///     match updates.next().await {
///         Some(Update::Event(event)) => follow.event(&event.event, &mut show),
///         Some(Update::Resync(snapshot)) => follow.snapshot(&snapshot.state.history, &snapshot, &mut show),
///         _ => break,
///     }
/// }
/// assert_eq!(text, "Hello!");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Follow {
    target: FollowTarget,
    from: FollowFrom,
    state: FollowedRunPhase,
    is_accepted: bool,
    /// The outcome of the prompt, which was stated before the end event.
    ended: Option<RunOutcome>,
    /// Whether the end of the run returns the prompt.
    is_returned: bool,
    /// Whether the last turn is committed and the next one has not begun.
    is_between: bool,
    /// The response of the last committed turn.
    response: Option<Arc<Response>>,
    /// The last answer of the earlier turns.
    kept: Option<Arc<Message>>,
    turn: Option<TurnId>,
    /// The number of the run or, if none was shown, of the last run before it.
    run: Option<u32>,
    step: u32,
    /// The last message before the turn, and the reported messages of the turn.
    messages: Vec<Arc<Message>>,
    /// The number of these messages before the turn.
    origin: usize,
    /// The number of these messages before the newest request.
    base: usize,
    answer: Option<MessageId>,
    partial: Vec<PartialBlock>,
    /// The number of reported bytes of each block, and whether its end was reported.
    shown: Vec<(usize, bool)>,
    /// The tool uses of the last answer. For each, whether its start, its end and its result were reported.
    tools: Vec<(ToolUseId, [bool; 3])>,
    pauses: Vec<Arc<PendingUse>>,
    /// The last reported budget of the turn.
    budget: Option<Box<BudgetReport>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum FollowedRunPhase {
    #[default]
    Unknown,
    Waiting,
    Running,
    Ended,
}

type RunProgressSink<'o> = dyn FnMut(RunProgress<'_>) + 'o;

impl Follow {
    /// Creates a follower. If the subscription has a snapshot, pass it to [`snapshot`](Self::snapshot) first.
    pub fn new(target: FollowTarget, from: FollowFrom) -> Self {
        Self { target, from, ..Self::default() }
    }

    /// Takes note that the command has returned. If a later snapshot does not show the target, the agent does not know
    /// the target any more. A follower of [`FollowTarget::InFlight`] follows the run that the command has started.
    pub fn accepted(&mut self, accepted: &Accepted) {
        self.is_accepted = true;
        if let (FollowTarget::InFlight, Accepted::Started { turn }) = (&self.target, accepted) {
            self.target = FollowTarget::Turn(*turn);
        }
    }

    /// Returns the current turn of the run, or its last turn. `None` if the run has not begun.
    pub fn turn(&self) -> Option<TurnId> {
        self.turn
    }

    /// Returns whether the end was reported. A follower of [`FollowTarget::InFlight`] continues with the next run.
    pub fn is_ended(&self) -> bool {
        self.state == FollowedRunPhase::Ended
    }

    /// Returns the tool uses and questions of the run that wait for a decision.
    pub fn pauses(&self) -> &[Arc<PendingUse>] {
        &self.pauses
    }

    fn is_running(&self) -> bool {
        self.state == FollowedRunPhase::Running
    }

    /// Returns whether the run of the target begins with this turn.
    fn begins(&self, turn: TurnId) -> bool {
        match self.target {
            FollowTarget::Prompt(_) => false,
            FollowTarget::Turn(own) => own == turn,
            FollowTarget::InFlight => true,
        }
    }

    fn is_over(&self) -> bool {
        self.is_ended() && self.target != FollowTarget::InFlight
    }

    /// Enters a turn, which may be the first one.
    fn enter(&mut self, turn: Option<TurnId>, out: &mut RunProgressSink<'_>) {
        if !self.is_running() {
            (self.state, self.turn, self.kept) = (FollowedRunPhase::Running, None, None);
            self.anchor(self.messages.last().cloned());
        }
        (self.is_between, self.response) = (false, None);
        if let Some(new) = turn.filter(|_| turn != self.turn) {
            self.settle();
            (self.turn, self.budget) = (turn, None);
            out(RunProgress::Turn(new));
        }
    }

    /// Takes note that the turn is committed.
    fn settle(&mut self) {
        self.kept = self.last_answer().or(self.kept.as_ref()).cloned();
        self.anchor(self.messages.last().cloned());
    }

    /// Sets the last message before the turn.
    fn anchor(&mut self, last: Option<Arc<Message>>) {
        self.messages = last.into_iter().collect();
        (self.origin, self.base) = (self.messages.len(), self.messages.len());
    }

    /// Returns the last answer of the turn.
    fn last_answer(&self) -> Option<&Arc<Message>> {
        self.messages[self.origin..].iter().rfind(|message| message.role == Role::Assistant)
    }

    /// Reports the end, or that the prompt was returned.
    fn end(&mut self, end: RunProgress<'_>, out: &mut RunProgressSink<'_>) {
        self.void(None, out);
        self.set_pauses(&[], out);
        out(end);
        (self.state, self.is_between, self.ended) = (FollowedRunPhase::Ended, false, None);
    }

    // ---- events ----

    /// Reads the next event.
    pub fn event(&mut self, event: &Event, out: &mut dyn FnMut(RunProgress<'_>)) {
        match event {
            _ if self.is_over() => {}
            // A request that fails before it begins leaves the answer before it as it is.
            Event::Retry { complete: false, .. } if self.answer.is_none() => {}
            Event::Prompt { id, .. } if self.target != FollowTarget::Prompt(id.clone()) => {}
            Event::Prompt { state, prompt, .. } => match state {
                PromptState::Staged => self.wait(out),
                PromptState::InFlight { turn } => self.enter(Some(*turn), out),
                PromptState::Ended { outcome } if self.is_between => {
                    let (response, kept) = (self.response.take(), self.kept.take());
                    let (outcome, response, message) = (Some(outcome), response.as_ref(), kept.as_ref());
                    self.end(RunProgress::Ended { outcome, response, message }, out);
                }
                PromptState::Ended { outcome } => self.ended = Some(outcome.clone()),
                PromptState::Returned if prompt.is_some() => self.is_returned = true,
                PromptState::Returned => self.end(RunProgress::Returned { outcome: None }, out),
            },
            Event::Message { message, step, turn, run } if self.is_running() || self.begins(*turn) => {
                (self.run, self.step) = (Some(*run), *step);
                self.enter(Some(*turn), out);
                self.message(message, out);
            }
            // The run ends with a compaction, which changes nothing that was shown.
            Event::CompactionStart { .. } if self.is_between => {
                let (response, kept) = (self.response.take(), self.kept.take());
                let stopped = |response: &Arc<Response>| RunOutcome::stopped(&response.stop_reason);
                let outcome = response.as_ref().map(stopped);
                let (outcome, response, message) = (outcome.as_ref(), response.as_ref(), kept.as_ref());
                self.end(RunProgress::Ended { outcome, response, message }, out);
                self.messages.truncate(self.origin);
            }
            Event::CompactionStart { turn, run, .. } if !self.is_running() && self.begins(*turn) => {
                self.run = Some(*run);
                self.enter(Some(*turn), out);
                self.run_event(event, out);
            }
            Event::Turn { response, .. } | Event::Error { response, .. } | Event::Cancelled { response } => {
                self.turn_ended(event, response, out);
            }
            Event::State(view) if self.target == FollowTarget::InFlight && !self.is_running() => {
                self.anchor(view.history.iter().rfind(|message| message.compaction.is_none()).cloned());
            }
            // The reader has joined a run without a snapshot.
            Event::StepStart { message_id, .. }
                if self.target == FollowTarget::InFlight && !self.is_running() =>
            {
                self.enter(message_id.turn(), out);
                self.run_event(event, out);
            }
            _ if self.is_running() => self.run_event(event, out),
            _ => {}
        }
    }

    fn turn_ended(&mut self, event: &Event, response: &Arc<Response>, out: &mut RunProgressSink<'_>) {
        let is_committed = event.committed().is_some();
        let outcome = match &self.target {
            _ if self.is_returned => {
                return self.end(RunProgress::Returned { outcome: RunOutcome::of(event).as_ref() }, out);
            }
            FollowTarget::Prompt(_) => self.ended.take(),
            _ => RunOutcome::of(event).filter(|_| self.is_running()),
        };
        if is_committed {
            self.settle();
        }
        if let Some(outcome) = &outcome {
            let kept = response.message.clone().filter(|_| is_committed).or(self.kept.take());
            let (outcome, response, message) = (Some(outcome), Some(response), kept.as_ref());
            self.end(RunProgress::Ended { outcome, response, message }, out);
            self.messages.truncate(self.origin);
        } else if is_committed && self.is_running() {
            (self.is_between, self.response) = (true, Some(Arc::clone(response)));
        }
    }

    fn wait(&mut self, out: &mut RunProgressSink<'_>) {
        if self.state == FollowedRunPhase::Unknown {
            self.state = FollowedRunPhase::Waiting;
            out(RunProgress::Waiting);
        }
    }

    fn run_event(&mut self, event: &Event, out: &mut RunProgressSink<'_>) {
        match event {
            Event::StepStart { step, message_id } => self.request(*step, Some(message_id), out),
            Event::Retry { failure, model, .. } => self.void(Some((failure, model.as_ref())), out),
            Event::Resumed { .. } => {
                self.void(None, out);
                self.set_pauses(&[], out);
            }
            Event::Status { pauses, .. } => self.set_pauses(pauses, out),
            Event::Budget(report) => self.set_budget(Some(&**report), out),
            Event::CompactionStart { .. } => out(RunProgress::Compaction { message: None, failure: None }),
            Event::CompactionEnd { message, failure, .. } => {
                out(RunProgress::Compaction { message: message.as_ref(), failure: failure.as_ref() });
            }
            Event::Decided(decided) => {
                out(RunProgress::Tool { id: &decided.tool_use_id, change: ToolChange::Decided(decided) });
            }
            Event::ToolStart { tool_use_id, input } => {
                self.tool(tool_use_id, 0, ToolChange::Started { input: input.as_ref() }, out);
            }
            Event::ToolProgress { tool_use_id, data } => {
                out(RunProgress::Tool { id: tool_use_id, change: ToolChange::Progress(data) });
            }
            Event::ToolEnd { tool_use_id, is_error } => {
                self.tool(tool_use_id, 1, ToolChange::Ended { is_error: *is_error }, out);
            }
            Event::ToolResult { result, .. } => {
                self.tool(&result.tool_use_id, 2, ToolChange::Result(result), out);
            }
            _ if self.answer.is_some() => {
                if let Some(index) = take_block(&mut self.partial, event) {
                    self.block(index, true, out);
                }
            }
            _ => {}
        }
    }

    // ---- messages and blocks ----

    fn message(&mut self, message: &Arc<Message>, out: &mut RunProgressSink<'_>) {
        if message.role == Role::User {
            for result in message.tool_results() {
                self.tool(&result.tool_use_id, 2, ToolChange::Result(result), out);
            }
            out(RunProgress::User(message));
            self.messages.push(Arc::clone(message));
            return;
        }
        if self.answer.is_none() || self.answer != message.id {
            self.request(self.step + 1, message.id.as_ref(), out);
        }
        // After an interrupt, the message lacks the blocks that could not be kept.
        let mut places = 0..self.partial.len();
        let is_whole = message
            .content
            .iter()
            .all(|content| places.any(|at| self.partial[at].ended && self.partial[at].content == *content));
        if !is_whole {
            let mut pairs = self.partial.iter().zip(&message.content);
            let fits = self.partial.len() <= message.content.len();
            if !fits || !pairs.all(|(own, content)| begins(own, content, None)) {
                self.request(self.step, message.id.as_ref(), out);
            }
            for (index, content) in message.content.iter().enumerate() {
                let block = PartialBlock { content: content.clone(), input: String::new(), ended: true };
                self.replace(index, block, out);
            }
        }
        out(RunProgress::Answer(message));
        self.messages.push(Arc::clone(message));
        self.answer = None;
        self.forget_blocks();
    }

    fn request(&mut self, step: u32, answer: Option<&MessageId>, out: &mut RunProgressSink<'_>) {
        self.void(None, out);
        (self.base, self.answer, self.step) = (self.messages.len(), answer.cloned(), step);
        self.tools.clear();
        out(RunProgress::Request { step, answer });
    }

    /// Reports that the last request is repeated because of a failure, and with which backup model. Without a failure,
    /// reports that the answer in progress is void.
    fn void(&mut self, retry: Option<(&Failure, Option<&Arc<str>>)>, out: &mut RunProgressSink<'_>) {
        let (failure, model) = retry.unzip();
        if failure.is_some() || self.answer.is_some() {
            self.messages.truncate(self.base);
            self.answer = None;
            self.tools.clear();
            self.forget_blocks();
            out(RunProgress::Void { failure, model: model.flatten() });
        }
    }

    fn forget_blocks(&mut self) {
        self.partial.clear();
        self.shown.clear();
    }

    fn replace(&mut self, index: usize, block: PartialBlock, out: &mut RunProgressSink<'_>) {
        let is_changed = self.partial.get(index).is_none_or(|own| own.content != block.content);
        match self.partial.get_mut(index) {
            Some(own) => *own = block,
            None => self.partial.push(block),
        }
        self.block(index, is_changed, out);
    }

    /// Reports the part of a block that was not reported before.
    fn block(&mut self, index: usize, is_changed: bool, out: &mut RunProgressSink<'_>) {
        let PartialBlock { content, input, ended } = &self.partial[index];
        let (text, is_item) = match content {
            Content::Text(text) => (&text.text, false),
            Content::Thinking(thinking) => (&thinking.text, false),
            content => (input, matches!(content, Content::ProviderItem(_))),
        };
        let is_first = self.shown.len() <= index;
        if is_first {
            self.shown.resize(index + 1, (0, false));
        }
        let (bytes, has_ended) = &mut self.shown[index];
        let new = text.get(*bytes..).unwrap_or_default();
        let is_news = is_first || !new.is_empty() || *ended && !*has_ended || is_item && is_changed;
        (*bytes, *has_ended) = (*bytes + new.len(), *ended);
        if is_news {
            out(RunProgress::Block { index, content, new, ended: *ended });
        }
    }

    fn tool(&mut self, id: &ToolUseId, part: usize, change: ToolChange<'_>, out: &mut RunProgressSink<'_>) {
        let found = self.tools.iter().position(|(own, _)| own == id).unwrap_or(self.tools.len());
        if found == self.tools.len() {
            self.tools.push((id.clone(), [false; 3]));
        }
        if !mem::replace(&mut self.tools[found].1[part], true) {
            out(RunProgress::Tool { id, change });
        }
    }

    fn set_pauses(&mut self, pauses: &[Arc<PendingUse>], out: &mut RunProgressSink<'_>) {
        if self.pauses != pauses {
            self.pauses = pauses.to_vec();
            out(RunProgress::Pauses(pauses));
        }
    }

    fn set_budget(&mut self, report: Option<&BudgetReport>, out: &mut RunProgressSink<'_>) {
        if let Some(new) = report.filter(|_| self.budget.as_deref() != report) {
            self.budget = Some(Box::new(new.clone()));
            out(RunProgress::Budget(new));
        }
    }
}

/// Returns whether a block is the beginning of `content`. `input` is the JSON text of the input, if it is known.
fn begins(own: &PartialBlock, content: &Content, input: Option<&str>) -> bool {
    match (&own.content, content) {
        (Content::Text(own), Content::Text(other)) => other.text.starts_with(&own.text),
        (Content::Thinking(own), Content::Thinking(other)) => other.text.starts_with(&own.text),
        (Content::ToolUse(tool_use), Content::ToolUse(other)) => {
            tool_use.id == other.id && input.is_none_or(|input| input.starts_with(&own.input))
        }
        (own, other) => mem::discriminant(own) == mem::discriminant(other),
    }
}

#[cfg(test)]
mod tests;

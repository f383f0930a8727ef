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
//! target's run is active. `Ended`: the end was reported. [`FollowTarget::InFlight`] has no `Waiting`, and goes from
//! `Ended` to `Running` again when the next run begins.
//!
//! # Invariants
//!
//! - Only the statements of the agent change the state of a prompt: [`Event::Prompt`] and [`Snapshot::prompts`]. A run
//!   without such a prompt ends with the event that ends the run, with a prompt that starts the next turn of the run, or
//!   with a snapshot that shows another run or none.
//! - `Prompt(ended)` is kept until the end event of the same input, so the end has its response. If a prompt in flight
//!   follows instead, the prompt has ended between two turns, with the response of the last [`Event::Turn`].
//! - `messages` are the reported messages of the turn, and one before them. A snapshot is read from the last of them that
//!   it contains: a repetition, the end of a discarded turn, and a prompt that has joined without an answer remove some.
//! - `answer`, `partial` and `shown` belong to the answer in progress. If a snapshot or the end of the run shows that
//!   this answer is neither in progress nor stored, it is reported as void before anything else.
//! - The text of a block is reported once. A block of a later snapshot or message continues a reported block only if it
//!   begins with the same text.

use std::{mem, sync::Arc};

use serde_json::Value;

use super::{
    Event, Failure, PendingUse, PromptId, PromptState, Response, RunOutcome, Snapshot, Status,
    snapshot::take_block,
};
use crate::{
    message::{Content, History, Message, MessageId, Role, ToolResult, ToolUseId, TurnId},
    provider::PartialBlock,
    run::{Accepted, Decided},
};

/// The run that a [`Follow`] follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FollowTarget {
    /// The run of the prompt with this id, from the prompt's message until the prompt has ended.
    Prompt(PromptId),
    /// The run whose first turn has this id. A run that has no prompt with an id is found by the turn in
    /// [`Accepted::Started`].
    Turn(TurnId),
    /// The run that is active or, if none is active, the next run. After its end, the run that follows, and so on.
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
        /// The failure after which the request is repeated. `None` if the answer is discarded without a repetition, or if
        /// the event was missed.
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
/// without a gap or a repetition. If the reader has missed the end of the run and the start of a later one, turns that
/// [`handle_turn`](super::AgentCallbacks::handle_turn) has added to the run are not reported.
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
    state: FollowState,
    is_accepted: bool,
    /// The prompt that has started the run, if it has an id.
    prompt: Option<PromptId>,
    /// The outcome that was stated before the end event.
    ended: Option<RunOutcome>,
    /// Whether the end of the run returns the prompt.
    is_returned: bool,
    /// Whether the last turn is committed and the next one has not begun.
    is_between: bool,
    /// The response of the last committed turn.
    response: Option<Arc<Response>>,
    /// The number of messages of the turn in flight.
    pending: usize,
    /// The first message of the run.
    first: Option<Arc<Message>>,
    /// The last answer of the run that is committed.
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
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum FollowState {
    #[default]
    Unknown,
    Waiting,
    Running,
    Ended,
}

/// The state of the target in a snapshot.
enum TargetState {
    Unknown,
    Waiting,
    Running,
    Ended(Option<RunOutcome>),
    Returned(Option<RunOutcome>),
}

type Out<'o> = dyn FnMut(RunProgress<'_>) + 'o;

impl Follow {
    /// Creates a follower. If the subscription has a snapshot, pass it to [`snapshot`](Self::snapshot) first.
    pub fn new(target: FollowTarget, from: FollowFrom) -> Self {
        let prompt = if let FollowTarget::Prompt(id) = &target { Some(id.clone()) } else { None };
        Self { target, from, prompt, ..Self::default() }
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
        self.state == FollowState::Ended
    }

    /// Returns the tool uses and questions of the run that wait for a decision.
    pub fn pauses(&self) -> &[Arc<PendingUse>] {
        &self.pauses
    }

    /// Reads the first snapshot, or a snapshot that replaces missed events. `history` is the committed history of the
    /// agent or, in a session, of the current branch.
    pub fn snapshot(&mut self, history: &History, agent: &Snapshot, out: &mut dyn FnMut(RunProgress<'_>)) {
        let all: Vec<_> = history.iter().chain(&agent.pending).collect();
        let from = mem::replace(&mut self.from, FollowFrom::Start);
        self.read_snapshot(&all, agent, &mut |progress| {
            let is_end = matches!(progress, RunProgress::Ended { .. } | RunProgress::Returned { .. });
            if from == FollowFrom::Start || is_end {
                out(progress);
            }
        });
    }

    fn is_running(&self) -> bool {
        self.state == FollowState::Running
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

    /// Enters a turn of the run, which may be the first one.
    fn enter(&mut self, turn: Option<TurnId>, out: &mut Out<'_>) {
        if !self.is_running() {
            (self.state, self.turn, self.first, self.kept) = (FollowState::Running, None, None, None);
        }
        (self.is_between, self.response) = (false, None);
        if let Some(new) = turn.filter(|_| turn != self.turn) {
            self.turn = turn;
            self.messages.drain(..self.messages.len().saturating_sub(1));
            (self.origin, self.base) = (self.messages.len(), self.messages.len());
            out(RunProgress::Turn(new));
        }
    }

    /// Reports the end, or that the prompt was returned.
    fn end(&mut self, end: RunProgress<'_>, out: &mut Out<'_>) {
        self.void(None, out);
        self.set_pauses(&[], out);
        out(end);
        (self.state, self.is_between, self.ended) = (FollowState::Ended, false, None);
        self.prompt.take_if(|_| self.target == FollowTarget::InFlight);
    }

    // ---- events ----

    /// Reads the next event.
    pub fn event(&mut self, event: &Event, out: &mut dyn FnMut(RunProgress<'_>)) {
        let removes = matches!(event, Event::Retry { pending, .. } if *pending < self.pending);
        self.pending = match event {
            Event::Message { .. } => self.pending + 1,
            Event::Retry { pending, .. } => *pending,
            Event::Turn { .. } | Event::Error { .. } | Event::Cancelled { .. } => 0,
            _ => self.pending,
        };
        match event {
            _ if self.is_over() => {}
            // A request that fails before it begins leaves the answer before it as it is.
            Event::Retry { .. } if self.answer.is_none() && !removes => {}
            Event::Prompt { id, state, prompt } => match state {
                PromptState::InFlight { turn } if self.prompt.as_ref() == Some(id) => {
                    self.enter(Some(*turn), out);
                }
                PromptState::InFlight { turn } => {
                    // A prompt that joins the turn in flight changes nothing.
                    self.end_between(out);
                    if !self.is_running() && !self.is_over() && self.begins(*turn) {
                        self.prompt = Some(id.clone());
                        self.enter(Some(*turn), out);
                    }
                }
                _ if self.prompt.as_ref() != Some(id) => {}
                PromptState::Staged => self.wait(out),
                PromptState::Ended { outcome } => self.ended = Some(outcome.clone()),
                PromptState::Returned if prompt.is_some() => self.is_returned = true,
                PromptState::Returned => self.end(RunProgress::Returned { outcome: None }, out),
            },
            Event::Message { message, step, turn, run } if self.is_running() || self.begins(*turn) => {
                (self.run, self.step) = (Some(*run), *step);
                self.enter(Some(*turn), out);
                self.message(message, out);
            }
            Event::Turn { response, .. } | Event::Error { response, .. } | Event::Cancelled { response } => {
                let is_committed = event.committed().is_some();
                if is_committed && self.is_running() {
                    (self.is_between, self.kept) = (true, response.message.clone());
                    self.response = Some(Arc::clone(response));
                }
                let outcome = match &self.prompt {
                    _ if self.is_returned => {
                        return self
                            .end(RunProgress::Returned { outcome: RunOutcome::of(event).as_ref() }, out);
                    }
                    Some(_) => self.ended.take(),
                    None => RunOutcome::of(event).filter(|_| self.is_running()),
                };
                if let Some(outcome) = &outcome {
                    let kept = self.kept.take();
                    let (outcome, response, message) = (Some(outcome), Some(response), kept.as_ref());
                    self.end(RunProgress::Ended { outcome, response, message }, out);
                    let kept = if is_committed { self.messages.len() } else { self.origin };
                    self.messages.truncate(kept);
                }
            }
            Event::State(view) if self.target == FollowTarget::InFlight && !self.is_running() => {
                self.messages = view.history.last().cloned().into_iter().collect();
                (self.origin, self.base) = (self.messages.len(), self.messages.len());
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

    /// Reports the end of a run that another prompt continues, if the last turn of the run was committed before.
    fn end_between(&mut self, out: &mut Out<'_>) {
        if self.is_between && (self.ended.is_some() || !matches!(self.target, FollowTarget::Prompt(_))) {
            let (response, kept) = (self.response.take(), self.kept.take());
            let stopped =
                |response: &Arc<Response>| RunOutcome::Stopped { stop_reason: response.stop_reason.clone() };
            let outcome = self.ended.take().or_else(|| response.as_ref().map(stopped));
            let (outcome, response, message) = (outcome.as_ref(), response.as_ref(), kept.as_ref());
            self.end(RunProgress::Ended { outcome, response, message }, out);
        }
    }

    fn wait(&mut self, out: &mut Out<'_>) {
        if self.state == FollowState::Unknown {
            self.state = FollowState::Waiting;
            out(RunProgress::Waiting);
        }
    }

    fn run_event(&mut self, event: &Event, out: &mut Out<'_>) {
        match event {
            Event::StepStart { step, message_id } => self.request(*step, Some(message_id), out),
            Event::Retry { failure, .. } => self.void(Some(failure), out),
            Event::Resumed { .. } => {
                self.void(None, out);
                self.set_pauses(&[], out);
            }
            Event::Status { pauses, .. } => self.set_pauses(pauses, out),
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

    fn message(&mut self, message: &Arc<Message>, out: &mut Out<'_>) {
        self.first.get_or_insert_with(|| Arc::clone(message));
        if message.role == Role::User {
            for result in message.tool_results() {
                self.tool(&result.tool_use_id, 2, ToolChange::Result(result), out);
            }
            out(RunProgress::User(message));
            self.messages.push(Arc::clone(message));
            self.base = self.messages.len();
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

    fn request(&mut self, step: u32, answer: Option<&MessageId>, out: &mut Out<'_>) {
        self.void(None, out);
        (self.base, self.answer, self.step) = (self.messages.len(), answer.cloned(), step);
        self.tools.clear();
        out(RunProgress::Request { step, answer });
    }

    /// Reports that the last request is repeated or, without a failure, that the answer in progress is void.
    fn void(&mut self, failure: Option<&Failure>, out: &mut Out<'_>) {
        if failure.is_some() || self.answer.is_some() {
            self.messages.truncate(self.base);
            self.answer = None;
            self.tools.clear();
            self.forget_blocks();
            out(RunProgress::Void { failure });
        }
    }

    fn forget_blocks(&mut self) {
        self.partial.clear();
        self.shown.clear();
    }

    fn replace(&mut self, index: usize, block: PartialBlock, out: &mut Out<'_>) {
        let is_changed = self.partial.get(index).is_none_or(|own| own.content != block.content);
        match self.partial.get_mut(index) {
            Some(own) => *own = block,
            None => self.partial.push(block),
        }
        self.block(index, is_changed, out);
    }

    /// Reports the part of a block that was not reported before.
    fn block(&mut self, index: usize, is_changed: bool, out: &mut Out<'_>) {
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

    fn tool(&mut self, id: &ToolUseId, part: usize, change: ToolChange<'_>, out: &mut Out<'_>) {
        let found = self.tools.iter().position(|(own, _)| own == id).unwrap_or(self.tools.len());
        if found == self.tools.len() {
            self.tools.push((id.clone(), [false; 3]));
        }
        if !mem::replace(&mut self.tools[found].1[part], true) {
            out(RunProgress::Tool { id, change });
        }
    }

    fn set_pauses(&mut self, pauses: &[Arc<PendingUse>], out: &mut Out<'_>) {
        if self.pauses != pauses {
            self.pauses = pauses.to_vec();
            out(RunProgress::Pauses(pauses));
        }
    }

    // ---- snapshots ----

    fn read_snapshot(&mut self, all: &[&Arc<Message>], agent: &Snapshot, out: &mut Out<'_>) {
        self.pending = agent.pending.len();
        // The id of a user message contains no turn, or another turn if its answer is regenerated. So the answer counts.
        let (mut next, mut is_answered) = (agent.turn, agent.turn.is_some());
        let turn = |message: &&Arc<Message>| {
            if message.role == Role::Assistant || !is_answered {
                next = turn_of(message).or(next);
            }
            is_answered = message.role == Role::Assistant;
            next
        };
        let mut turns: Vec<_> = all.iter().rev().map(turn).collect();
        turns.reverse();
        while !self.is_over() {
            let (kept, start) = self.start(all, agent);
            let own = self.own_end(all, &turns, start, agent);
            let outcome = match self.target_state(all, own == all.len(), agent) {
                TargetState::Waiting => return self.wait(out),
                TargetState::Returned(outcome) => {
                    return self.end(RunProgress::Returned { outcome: outcome.as_ref() }, out);
                }
                TargetState::Unknown => {
                    if self.target == FollowTarget::InFlight {
                        self.messages = all.last().copied().cloned().into_iter().collect();
                        self.origin = self.messages.len();
                        self.run = Some(agent.run);
                    }
                    return;
                }
                TargetState::Running => None,
                TargetState::Ended(outcome) => Some(outcome),
            };
            let range = &all[start..if outcome.is_some() { own } else { all.len() }];
            let fits = |(own, other): (&PartialBlock, &PartialBlock)| {
                begins(own, &other.content, Some(&other.input))
            };
            let is_in_progress = outcome.is_none()
                && self.answer == agent.answer
                && self.partial.len() <= agent.partial.len()
                && self.partial.iter().zip(&agent.partial).all(fits);
            if !is_in_progress
                && !range.iter().any(|message| message.id.is_some() && message.id == self.answer)
            {
                self.void(None, out);
            }
            if kept == self.base && kept < self.messages.len() {
                // The answer was complete, and then its request was repeated.
                self.tools.clear();
                out(RunProgress::Void { failure: None });
            }
            self.messages.truncate(kept);
            if self.messages.is_empty() {
                self.messages.extend(all[..start].last().copied().cloned());
                self.origin = self.messages.len();
            }
            for (message, turn) in range.iter().zip(&turns[start..]) {
                self.enter(*turn, out);
                self.message(message, out);
            }
            let run = &all[self.first.as_ref().and_then(|first| find(first, all)).unwrap_or(all.len())..];
            let committed = run.len().saturating_sub(agent.pending.len().max(all.len() - own));
            let is_answer = |message: &&&Arc<Message>| message.role == Role::Assistant;
            self.kept = run[..committed].iter().rev().find(is_answer).copied().cloned();
            let Some(outcome) = outcome else { return self.read_in_flight(agent, out) };
            let (outcome, kept) = (outcome.as_ref(), self.kept.take());
            self.end(RunProgress::Ended { outcome, response: None, message: kept.as_ref() }, out);
            if own == all.len() {
                self.run = Some(agent.run);
            }
        }
    }

    /// Reports the parts of the turn in flight that are not messages.
    fn read_in_flight(&mut self, agent: &Snapshot, out: &mut Out<'_>) {
        self.enter(agent.turn, out);
        (self.run, self.is_between) = (Some(agent.run), agent.turn.is_none());
        if let Some(answer) = &agent.answer {
            if self.answer.as_ref() != Some(answer) {
                self.request(agent.step, Some(answer), out);
            }
            for (index, block) in agent.partial.iter().enumerate() {
                self.replace(index, block.clone(), out);
            }
        }
        self.step = agent.step;
        for run in &agent.tools {
            self.tool(&run.tool_use_id, 0, ToolChange::Started { input: run.input.as_ref() }, out);
            if let Some(is_error) = run.is_error {
                self.tool(&run.tool_use_id, 1, ToolChange::Ended { is_error }, out);
            }
        }
        self.set_pauses(&agent.pauses, out);
    }

    /// Returns the state of the target. `is_active` is whether the snapshot contains no later run of another prompt.
    fn target_state(&self, all: &[&Arc<Message>], is_active: bool, agent: &Snapshot) -> TargetState {
        let last_run = agent.last_run.as_deref();
        let outcome = || last_run.map(|run| run.outcome.clone());
        // A prompt that a callback returns can fail without a run. Its failure has no turn.
        let of_run = || last_run.filter(|run| run.turn.is_some()).map(|run| run.outcome.clone());
        let known = agent.prompts.iter().find(|known| self.prompt.as_ref() == Some(&known.id));
        let is_busy = agent.status != Status::Idle;
        match known.map(|known| &known.state) {
            Some(PromptState::Staged) => return TargetState::Waiting,
            Some(PromptState::InFlight { .. }) => return TargetState::Running,
            Some(PromptState::Ended { outcome }) => return TargetState::Ended(Some(outcome.clone())),
            Some(PromptState::Returned) => {
                let mut staged = last_run.iter().flat_map(|run| &run.staged);
                let is_last = staged.any(|prompt| prompt.id == self.prompt);
                return TargetState::Returned(outcome().filter(|_| is_last));
            }
            None => {}
        }
        let is_running =
            self.is_running() && is_busy && self.run.is_none_or(|run| run == agent.run) && is_active;
        let last = agent.run.wrapping_sub(u32::from(is_busy));
        match &self.target {
            FollowTarget::Prompt(id) => {
                let is_known = self.is_accepted || self.state != FollowState::Unknown;
                match place_of(id, all) {
                    Some(index) if index + agent.pending.len() >= all.len() => TargetState::Running,
                    None if !is_known => TargetState::Unknown,
                    _ => TargetState::Ended(None),
                }
            }
            FollowTarget::Turn(turn) if agent.turn == Some(*turn) => TargetState::Running,
            _ if is_running => TargetState::Running,
            FollowTarget::Turn(turn) if !self.is_running() => match last_run.and_then(|run| run.turn) {
                Some(last) if last == *turn => TargetState::Ended(outcome()),
                _ if self.is_accepted => TargetState::Ended(None),
                _ => TargetState::Unknown,
            },
            _ if self.is_running() => {
                TargetState::Ended(of_run().filter(|_| self.run == Some(last) && (is_busy || is_active)))
            }
            _ if is_busy => TargetState::Running,
            _ if self.run.is_some_and(|run| run != agent.run) => TargetState::Ended(of_run()),
            _ => TargetState::Unknown,
        }
    }

    /// Returns the number of the reported messages that the snapshot contains, and the index of its first message that
    /// was not reported. A repetition removes an answer, and the end of a run a prompt that has joined without an answer.
    fn start(&self, all: &[&Arc<Message>], agent: &Snapshot) -> (usize, usize) {
        let kept = all.len() - agent.pending.len();
        let mut reported = self.messages.iter().enumerate().rev();
        if let Some(found) = reported.find_map(|(at, own)| Some((at + 1, find(own, all)?))) {
            return found;
        }
        let first = || match &self.target {
            FollowTarget::Prompt(id) => place_of(id, all),
            FollowTarget::Turn(turn) if agent.turn != Some(*turn) => {
                let first = all.iter().position(|message| turn_of(message) == Some(*turn))?;
                Some(first.saturating_sub(usize::from(all[first].role == Role::Assistant)))
            }
            // The reader has joined without a snapshot, so it has only the answer in progress.
            FollowTarget::InFlight if self.answer.is_some() => {
                all.iter().position(|message| message.id == self.answer)
            }
            FollowTarget::InFlight if self.run.is_some() && self.origin == 0 => Some(0),
            _ => Some(kept),
        };
        (0, first().unwrap_or(all.len()))
    }

    /// Returns the index of the first message from `start` on that does not belong to the run. The run ends where a
    /// prompt starts another turn. Without such a prompt, turns were added to the run if no later run has begun.
    fn own_end(
        &self,
        all: &[&Arc<Message>],
        turns: &[Option<TurnId>],
        start: usize,
        agent: &Snapshot,
    ) -> usize {
        let is_last =
            self.run == Some(agent.run) || !self.is_running() && self.target == FollowTarget::InFlight;
        let mut turn = self.turn.filter(|_| self.is_running());
        let ends = |index: &usize| {
            let before = mem::replace(&mut turn, turns[*index]);
            // A callback adds a turn with a user message that has an id of this turn.
            let is_added = all[*index].role == Role::User && turn_of(all[*index]).is_some();
            before.is_some() && before != turn && !(is_added && is_last)
        };
        (start..all.len()).find(ends).unwrap_or(all.len())
    }
}

/// Returns the index after a message, if these messages contain it.
fn find(own: &Arc<Message>, all: &[&Arc<Message>]) -> Option<usize> {
    let is_own = |other: &&Arc<Message>| own.id == other.id && (own.id.is_some() || own == *other);
    all.iter().rposition(is_own).map(|index| index + 1)
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

/// Returns the index of the message of a prompt.
fn place_of(prompt: &PromptId, all: &[&Arc<Message>]) -> Option<usize> {
    let id = Some(MessageId::from(prompt.clone()));
    all.iter().rposition(|message| message.id == id)
}

fn turn_of(message: &Message) -> Option<TurnId> {
    message.id.as_ref().and_then(MessageId::turn)
}

#[cfg(test)]
mod tests;

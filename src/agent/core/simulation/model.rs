//! Checks the order of events, the messages of each turn, and the ends of runs, with a model that predicts the events.

mod requests;

use std::{sync::Arc, time::Duration};

use super::{
    Check, backups::Backups, blocks::Block, ensure, ids::Ids, outputs::Outputs, pauses::Pauses, queue::Queue,
};
use crate::{
    agent::{
        Config, Event, Failure, Next, PendingUse, Prompt, PromptId, PromptState, Response, RunOutcome,
        Status,
        core::{AgentCore, streaming::CUT},
    },
    budget::Budget,
    message::{
        Blocks, CompactionTrigger, Content, History, Message, RequestEnd, Role, TurnId, Usage,
        answer_open_tool_uses,
    },
    provider::{self, MessageDelta, ProviderErrorKind, StopReason},
    tool::Replay,
};

/// The model of one agent, which predicts the agent's events.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct Model {
    pub(super) status: Status,
    /// A status that was emitted. The next event must be the cause of this status.
    cause: Option<Status>,
    pub(super) committed: History,
    pub(super) turn: Option<Turn>,
    /// Whether a run is active.
    pub(super) run: bool,
    /// Whether the last turn was started by a staged prompt.
    pub(super) took_staged: bool,
    /// The id of the turn in flight.
    turn_id: Option<TurnId>,
    /// The outcome of the last turn, if the run continues after it. It is the outcome of the prompts in flight if a
    /// staged prompt starts the next turn.
    pub(super) stopped: Option<RunOutcome>,
    /// The number of the last run.
    runs: u32,
    pub(super) pauses: Pauses,
    pub(super) queue: Queue,
    pub(super) ids: Ids,
    pub(super) step: u32,
    /// The number of requests sent for the prompt.
    requests: u32,
    pub(super) limit: Option<u32>,
    /// The limit of requests that the prompt itself sets.
    brought: Option<u32>,
    /// Whether the limit of requests was reached when `handle_turn` was called.
    pub(super) met: bool,
    pub(super) turn_timeout: Option<Duration>,
    /// The model of the prompt, unless a callback has set another model since.
    pub(super) named_for_run: Option<provider::Model>,
    pub(super) backups: Backups,
    /// The failure for which `handle_error` was called.
    pub(super) failure: Option<Failure>,
    /// The last failure of a stream, which a compaction may follow.
    pub(super) overflow: Option<Failure>,
    /// Whether the configuration has a policy for compactions.
    pub(super) can_compact: bool,
    /// Whether a compaction was requested, which must start at once.
    pub(super) requested: bool,
    /// Whether a turn has ended that only a compaction can follow.
    pub(super) owes_compaction: bool,
    /// Whether the next turn starts a run, although the agent is not idle.
    pub(super) after_request: bool,

    // The simulated world sets the following fields before it passes an input to the core.
    pub(super) input: Input,
    /// The limit of requests in the agent's configuration.
    own_limit: Option<u32>,
    own_timeout: Option<Duration>,
    /// An accepted prompt, whose turn must start at once.
    pub(super) starting: Option<Arc<Prompt>>,
    /// A message whose turn must start at once, and the settings of this turn.
    pub(super) answering: Option<(Arc<Message>, Prompt)>,
    /// The history that replaced the previous one. A `state` event must report this history at once.
    pub(super) base: Option<History>,
    /// The history before the run, if the run uses another history and has committed nothing.
    pub(super) before: Option<History>,
    /// The history that was in use before a discarded run. A `state` event must report this history at once.
    pub(super) owed: Option<History>,
    pub(super) continuation: Option<Blocks>,
    /// The usage that a sub-agent has reported, and whether its session stores it.
    pub(super) delegating: Option<(Usage, bool)>,
    /// The sum of all usage that streams reported.
    pub(super) spent_usage: Usage,
    /// The sum of the usage in the events of ended turns and runs.
    pub(super) told_usage: Usage,
}

/// A property of the current input on which the expected events depend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Input {
    #[default]
    Plain,
    Interrupt,
    /// `handle_event` fails, or it returns a prompt that cannot be accepted.
    EventFails,
    /// `handle_turn` returns a continuation that the limit of requests forbids.
    Ignored,
    /// The run fails, and keeps its work: `handle_error` stops it, must not repeat the step, or takes too long.
    GivesUp,
    /// `handle_error` continues a turn whose time limit has cut off its tools, after one of them has ended.
    EndsStep,
    /// `handle_error` discards the turn.
    Discards,
    /// The response that is ending does not match the output schema and may be requested again.
    Misfit,
    /// The provider sends the request again.
    NewAttempt,
    /// The service starts its response again.
    Restart,
}

/// The progress of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TurnStage {
    /// A request waits for its response.
    Asking,
    /// The response was emitted, but its step was not.
    Answered,
    /// The response's tool uses are getting their results, or remain open.
    Deciding,
    /// The turn needs no further step.
    Complete,
    /// The response's tool uses have results, but no further request is made.
    Closed,
}

#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct Turn {
    /// Set if the turn consists of a compaction alone: whether it was requested.
    pub(super) own: Option<bool>,
    /// Whether the turn begins with a new message, and not with one that gets another answer.
    is_new: bool,
    pub(super) pending: Vec<Arc<Message>>,
    pub(super) blocks: Vec<Block>,
    pub(super) place: TurnStage,
    /// The number of messages that were pending when the request was made.
    pub(super) base: usize,
    pub(super) results: Vec<Content>,
    /// The stop reason of the last step.
    pub(super) reason: Option<StopReason>,
    /// Whether the current request answers the tool uses of a response that the output limit has cut. A repetition of
    /// the step does not change this.
    cut: bool,
    /// The usage of the earlier requests of the turn.
    before: Usage,
    /// The usage of the current request.
    pub(super) current: Usage,
    /// How the usage of the current request was reported. `None` if it was not reported yet.
    booked: Option<RequestEnd>,
    /// The end of the request in the last `Usage` event. The event that reports this end must follow at once.
    ending: Option<RequestEnd>,
    /// The sum of the usage in `Step` and `Usage` events.
    told_rows: Usage,
    /// The usage of sub-agents that are sessions.
    delegated: Usage,
    /// Whether the conversation is being compacted, and whether it was compacted for the next answer.
    pub(super) compacting: bool,
    compacted: bool,
    /// Whether the compaction is made because a service has refused the request.
    is_refused: bool,
    /// Whether a summary is being streamed.
    summarising: bool,
    /// The usage of the request for the summary that was not reported yet.
    summary: Usage,
    /// The model of the current request.
    pub(super) requested: Arc<str>,
    /// The model name that the stream of the current request reported.
    told_model: Option<String>,
    /// The stop reason that the current stream reported.
    pub(super) told: Option<StopReason>,
    pub(super) outputs: Outputs,
    /// The prompts that have joined the turn since the last response.
    pub(super) joined: Vec<Arc<Prompt>>,
    /// Whether a service has refused the request of the current step, and no response to it has begun since.
    pub(super) refused: bool,
    /// The budget that has refused the request of the current step.
    pub(super) refused_by: Option<Budget>,
    /// The declaration of the provider of the current request.
    pub(super) replay: Replay,
}

impl Turn {
    fn new(pending: Vec<Arc<Message>>) -> Self {
        Self {
            own: None,
            is_new: true,
            base: pending.len(),
            pending,
            blocks: Vec::new(),
            place: TurnStage::Asking,
            results: Vec::new(),
            reason: None,
            cut: false,
            before: Usage::default(),
            current: Usage::default(),
            booked: None,
            ending: None,
            told_rows: Usage::default(),
            delegated: Usage::default(),
            compacting: false,
            compacted: false,
            is_refused: false,
            summarising: false,
            summary: Usage::default(),
            requested: "".into(),
            told_model: None,
            told: None,
            outputs: Outputs::default(),
            joined: Vec::new(),
            refused: false,
            refused_by: None,
            replay: Replay::Never,
        }
    }

    /// Returns whether none of the last response's tools may run.
    pub(super) fn is_unrun(&self) -> bool {
        use StopReason::{ContextLength, Length, Refusal};
        matches!(self.reason, Some(Length | ContextLength | Refusal))
    }

    /// Returns whether the turn must end although the last response's tools did not run.
    pub(super) fn ends_unrun(&self) -> bool {
        self.is_unrun() && (self.reason != Some(StopReason::Length) || self.cut)
    }

    pub(super) fn uses(&self) -> usize {
        self.pending.last().map_or(0, |message| message.tool_uses().count())
    }
}

impl Model {
    pub(super) fn new(committed: &History, config: &Config) -> Self {
        let (own_limit, own_timeout) = (config.settings.max_steps, config.settings.turn_timeout);
        let can_compact = config.compactor().is_some();
        Self { committed: committed.clone(), own_limit, own_timeout, can_compact, ..Self::default() }
    }

    /// Returns whether the current input ends the run and keeps as much of the turn as possible.
    pub(super) fn is_cut_short(&self) -> bool {
        matches!(self.input, Input::Interrupt | Input::GivesUp)
    }

    pub(super) fn cuts_tools(&self) -> bool {
        self.is_cut_short() || self.input == Input::EndsStep
    }

    pub(super) fn is_running(&self) -> bool {
        self.run
    }

    pub(super) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    pub(super) fn turn(&mut self) -> Check<&mut Turn> {
        self.turn.as_mut().ok_or_else(|| "no turn is active".to_owned())
    }

    pub(super) fn exhausted(&self) -> bool {
        self.limit.is_some_and(|limit| self.step >= limit)
    }

    // ---- inputs from the simulated world ----

    /// Applies a changed limit of the agent. The limit of the run is never lower than the number of requests that were
    /// already sent or announced.
    pub(super) fn limited(&mut self, limit: Option<u32>) {
        self.own_limit = limit;
        if self.run && self.brought.is_none() {
            let made = self.step + u32::from(self.turn.is_none());
            self.limit = limit.map(|limit| limit.max(made));
        }
    }

    pub(super) fn opened(&mut self) -> Check {
        self.ids.opened()?;
        self.requests += 1;
        let (requests, limit) = (self.requests, self.limit);
        ensure!(limit.is_none_or(|limit| requests <= limit), "{requests} requests, {limit:?} allowed");
        ensure!(requests <= self.step, "{requests} requests in {} steps", self.step);
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking && turn.blocks.is_empty(), "a request at {:?}", turn.place);
        turn.next_request();
        (turn.told, turn.told_model) = (None, None);
        turn.outputs.enforced = false;
        Ok(())
    }

    /// Applies the message data that a stream reports.
    pub(super) fn told(&mut self, data: &MessageDelta) -> Check {
        let turn = self.turn()?;
        if turn.summarising {
            turn.summary = data.usage.unwrap_or(turn.summary);
            return Ok(());
        }
        turn.current = data.usage.unwrap_or(turn.current);
        turn.told = data.stop_reason.clone().or(turn.told.take());
        turn.told_model = data.model.clone().or(turn.told_model.take());
        turn.outputs.enforced |= data.output_enforced;
        Ok(())
    }

    pub(super) fn prepares(&mut self, request: &History) -> Check {
        let committed = self.committed.clone();
        let has_results = self.queue.has_results;
        let waits_for_step = self.queue.staged.iter().any(|prompt| prompt.next == Next::Step);
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking, "a step is prepared at {:?}", turn.place);
        ensure!(!has_results || !waits_for_step, "a prompt for the next step does not join the turn");
        ensure!(
            turn.base == turn.pending.len(),
            "the pending messages differ from those at the start of the step"
        );
        ensure!(!turn.compacting, "a step is prepared during a compaction");
        let whole: History = committed.iter().chain(&turn.pending).cloned().collect();
        whole.check_pairs().map_err(|error| error.to_string())?;
        let sent = whole.sent();
        let length = sent.len();
        ensure!(
            request.iter().take(length).eq(sent.iter()),
            "the request is not what is sent of the committed and the pending messages"
        );
        self.carries(request, length)
    }

    pub(super) fn concludes(&mut self, response: &Response) -> Check {
        ensure!(!self.is_cut_short(), "handle_turn is called although the run is cut short");
        self.met = self.limit == Some(self.step);
        let turn = self.turn()?;
        ensure!(
            matches!(turn.place, TurnStage::Complete | TurnStage::Deciding | TurnStage::Closed),
            "handle_turn early"
        );
        ensure!(response.messages == turn.pending, "handle_turn gets other messages than the turn's");
        ensure!(response.usage == turn.usage(), "handle_turn gets the usage {:?}", response.usage);
        Ok(())
    }

    /// Records the failure for which `handle_error` is called.
    pub(super) fn fails(&mut self, failure: &Failure) {
        self.refuses(failure);
        self.failure = Some(failure.clone());
    }

    /// Records whether a service refuses the request of the current step.
    pub(super) fn refuses(&mut self, failure: &Failure) {
        if let Some(turn) = &mut self.turn {
            let refusals = [
                ProviderErrorKind::InvalidRequest,
                ProviderErrorKind::Unsupported,
                ProviderErrorKind::ContextTooLong,
            ];
            let is_refusal = matches!(failure, Failure::Provider { error } if refusals.contains(&error.kind));
            turn.refused = turn.blocks.is_empty() && (turn.refused || is_refusal);
        }
    }

    // ---- events ----

    pub(super) fn event(&mut self, event: &Event) -> Check {
        self.took_staged = false;
        ensure!(
            self.owed.is_none() || matches!(event, Event::State(_)),
            "{event:?} before the previous history is restored"
        );
        if let Event::Message { turn, run, .. } = event {
            self.numbered(*turn, *run)?;
        }
        ensure!(
            self.queue.taken.is_none() || matches!(event, Event::Message { .. }),
            "{event:?} follows a prompt that is taken"
        );
        // The states of prompts come between a status and its cause.
        if let Some(status) = self.cause.take_if(|_| !matches!(event, Event::Prompt { .. })) {
            let fits = match (status, event) {
                (Status::Busy, Event::Message { message, .. }) => message.role == Role::User,
                (Status::Busy, Event::CompactionStart { trigger, .. }) => {
                    *trigger == CompactionTrigger::Request
                }
                (Status::Idle, event) => ends_run(event),
                _ => false,
            };
            ensure!(fits, "status {status:?} precedes {event:?}");
        }
        let ended = RunOutcome::of(event);
        self.take(event)?;
        ended.map_or(Ok(()), |outcome| self.queue.check_ended(&outcome, true))
    }

    fn take(&mut self, event: &Event) -> Check {
        match event {
            Event::Status { status, pauses } => self.status(*status, pauses),
            Event::Message { message, step, .. } if message.role == Role::User => self.user(message, *step),
            Event::Message { message, step, .. } => self.assistant(message, *step),
            Event::StepStart { step, message_id } => self.step_starts(*step, message_id),
            Event::Step(response) => self.stepped(response),
            Event::ToolResult { result, .. } => {
                let cuts_tools = self.cuts_tools();
                let turn = self.turn()?;
                let early = cuts_tools && turn.place == TurnStage::Answered;
                ensure!(turn.place == TurnStage::Deciding || early, "a tool result at {:?}", turn.place);
                turn.results.push((**result).clone().into());
                Ok(())
            }
            Event::Decided(decided) => {
                ensure!(Some(decided.turn) == self.turn_id, "a decision of turn {}", decided.turn);
                self.pauses.decide(decided)
            }
            Event::Prompt { id, state, prompt } => self.prompt(id, state, prompt.as_ref()),
            // These events are checked by `Desk`, which holds the state of the tool uses.
            Event::ToolStart { .. } | Event::ToolEnd { .. } => Ok(()),
            Event::CompactionStart { turn, trigger, run, .. } if self.turn.is_none() => {
                self.compacts_once(*trigger)?;
                self.compaction_begins(*turn, *trigger, *run)
            }
            Event::CompactionStart { turn, trigger, run, .. } => {
                self.compacts_once(*trigger)?;
                ensure!(
                    Some(*turn) == self.turn_id && *run == self.runs,
                    "a compaction of {turn} in run {run}"
                );
                let turn = self.turn()?;
                let is_open = turn.place == TurnStage::Asking && turn.blocks.is_empty();
                ensure!(is_open && !turn.compacting && !turn.compacted, "a compaction at {:?}", turn.place);
                (turn.compacting, turn.compacted) = (true, true);
                turn.is_refused = *trigger == CompactionTrigger::Overflow;
                Ok(())
            }
            Event::CompactionEnd { message, at, failure } => {
                self.compacted(message.as_ref(), *at, failure.as_ref())
            }
            Event::Usage(row) if row.purpose == crate::message::Purpose::Summary => {
                let (id, step) = (self.turn_id, self.step);
                let turn = self.turn()?;
                ensure!(turn.summarising && row.usage == turn.summary, "{row:?}, not {:?}", turn.summary);
                ensure!((row.turn, row.step) == (id, Some(step)), "{row:?} in step {step} of {id:?}");
                turn.before += row.usage;
                turn.told_rows += row.usage;
                turn.summary = Usage::default();
                Ok(())
            }
            Event::Usage(row) => self.usage_told(row),
            Event::Retry { pending, complete, failure, step, model, .. } => {
                self.ids.answer = None;
                if self.input == Input::Restart {
                    self.check_step(*step)?;
                    return self.attempted(*pending, *complete, failure);
                }
                self.turn()?.check_booked(RequestEnd::Void)?;
                self.turn()?.next_request();
                if self.input == Input::NewAttempt {
                    self.check_step(*step)?;
                    return self.attempted(*pending, *complete, failure);
                }
                let is_refused = Some(failure) == self.overflow.as_ref();
                if matches!(failure, Failure::Refused | Failure::Output { .. }) {
                    // The response was complete, so no budget refuses its request any more.
                    self.turn()?.refused_by = None;
                }
                if let Some(name) = model {
                    self.backed_up(failure, name)?;
                } else if matches!(failure, Failure::Output { .. }) {
                    self.asked_again()?;
                } else if matches!(failure, Failure::Provider { error } if error.kind == ProviderErrorKind::ContextTooLong)
                    && (is_refused || self.turn()?.told == Some(StopReason::ContextLength))
                {
                    self.overflow = None;
                } else {
                    ensure!(self.failure.as_ref() == Some(failure), "a retry for {failure:?}");
                }
                self.retried(*pending, *complete, *step)
            }
            Event::Turn { response, continues } => self.turn_ends(response, *continues),
            Event::Cancelled { response } => {
                ensure!(self.run, "cancelled without a run");
                ensure!(response.stop_reason == StopReason::Cancelled, "{:?}", response.stop_reason);
                self.discarded(response)
            }
            Event::Error { response, failure, committed } => {
                ensure!(self.run || self.input == Input::EventFails, "an error without a run");
                ensure!(
                    !matches!(self.input, Input::GivesUp | Input::Discards)
                        || self.failure.as_ref() == Some(failure),
                    "an error for {failure:?}"
                );
                self.failed(response, *committed)
            }
            Event::State(state) => self.history_told(&state.history),
            block => self.block_event(block),
        }
    }

    fn prompt(&mut self, id: &PromptId, state: &PromptState, prompt: Option<&Arc<Prompt>>) -> Check {
        if let PromptState::InFlight { turn } = state {
            let joins = self.turn.is_some();
            ensure!(joins == (self.turn_id == Some(*turn)), "{id} is in {turn}, not {:?}", self.turn_id);
            let starts = self.starting.as_ref().is_some_and(|prompt| prompt.id.as_ref() == Some(id));
            if !starts {
                self.queue.take(id, joins)?;
                let stopped = self.stopped.as_ref().filter(|_| !joins);
                stopped.map_or(Ok(()), |outcome| self.queue.check_ended(outcome, true))?;
            }
        }
        self.queue.change(id, state, prompt)
    }

    /// Checks the turn's id and the run's number in a message's event.
    fn numbered(&mut self, turn: TurnId, run: u32) -> Check {
        let is_first = self.turn.is_none() && std::mem::take(&mut self.after_request);
        self.runs += u32::from(!self.run || is_first);
        ensure!(run == self.runs, "a message of run {run} in run {}", self.runs);
        let known = self.turn_id.replace(turn);
        ensure!((known == Some(turn)) == self.turn.is_some(), "a message of {turn} in turn {known:?}");
        Ok(())
    }

    fn status(&mut self, status: Status, pauses: &[Arc<PendingUse>]) -> Check {
        let is_changed = !self.pauses.waiting.iter().eq(pauses.iter().map(|pause| &pause.tool_use.id));
        ensure!(status != self.status || is_changed, "status {status:?} is emitted twice");
        ensure!((status == Status::Paused) != pauses.is_empty(), "status {status:?} with {pauses:?}");
        ensure!(pauses.iter().all(|pause| Some(pause.turn) == self.turn_id), "pauses of {pauses:?}");
        self.pauses.change(pauses)?;
        if status == Status::Idle || self.status == Status::Idle {
            self.cause = Some(status);
        }
        self.status = status;
        Ok(())
    }

    fn user(&mut self, message: &Arc<Message>, step: u32) -> Check {
        if self.turn.is_none() {
            return self.begins(message, step);
        }
        if let Some(prompt) = self.queue.taken.take() {
            return self.joins_step(prompt, message, step);
        }
        let closes = self.is_cut_short() || self.exhausted() || self.turn()?.ends_unrun();
        let turn = self.turn()?;
        ensure!(
            matches!(turn.place, TurnStage::Deciding | TurnStage::Answered),
            "a user message at {:?}",
            turn.place
        );
        ensure!(turn.results.len() == turn.uses(), "{} results for {} uses", turn.results.len(), turn.uses());
        ensure!(message.content == turn.results, "the message contains other results than were emitted");
        self.ids.user(message, None)?;
        let turn = self.turn()?;
        turn.results.clear();
        turn.pending.push(Arc::clone(message));
        if closes {
            turn.place = TurnStage::Closed;
        } else {
            turn.place = TurnStage::Asking;
            turn.base = turn.pending.len();
            turn.cut = turn.reason == Some(StopReason::Length);
            turn.joined.clear();
            self.step += 1;
            self.queue.has_results = true;
        }
        self.check_step(step)
    }

    /// Checks the message of a staged prompt that joins the turn after the tool results of a step.
    fn joins_step(&mut self, prompt: Arc<Prompt>, message: &Arc<Message>, step: u32) -> Check {
        ensure!(
            self.queue.has_results && !self.is_cut_short(),
            "a prompt joins the turn without tool results"
        );
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking, "a prompt joins the turn at {:?}", turn.place);
        ensure!(message.content == prompt.content.0, "{message:?} joins the turn, not {prompt:?}");
        self.ids.user(message, Some(&prompt))?;
        let turn = self.turn()?;
        turn.pending.push(Arc::clone(message));
        turn.base = turn.pending.len();
        turn.joined.push(prompt);
        // The tool results belong to the previous request. The prompt belongs to the next request, which contains it.
        self.check_step(step)
    }

    fn begins(&mut self, message: &Arc<Message>, step: u32) -> Check {
        ensure!(self.base.is_none(), "a turn begins before its history is emitted");
        if let Some((answering, settings)) = self.answering.take() {
            ensure!(!self.run, "a run on another history begins within a run");
            ensure!(Arc::ptr_eq(message, &answering), "the turn begins with {message:?}, not {answering:?}");
            self.take_prompt(&settings);
            self.began(message, step)?;
            self.turn()?.is_new = false;
            return Ok(());
        }
        let content = if let Some(prompt) = self.starting.take() {
            ensure!(!self.run, "a prompt starts within a run");
            self.ids.user(message, Some(&prompt))?;
            self.take_prompt(&prompt)
        } else if let Some(prompt) = self.queue.taken.take() {
            ensure!(self.run, "a staged prompt begins a run");
            (self.took_staged, self.continuation) = (true, None);
            self.ids.user(message, Some(&prompt))?;
            self.take_prompt(&prompt)
        } else {
            ensure!(self.run, "a turn begins from nothing");
            self.ids.user(message, None)?;
            self.continuation.take().ok_or("a turn begins from nothing")?
        };
        let expected = answer_open_tool_uses(&self.committed, content).map_err(|error| error.to_string())?;
        ensure!(message.content == expected, "a turn begins with {message:?}, not with {expected:?}");
        self.began(message, step)
    }

    fn began(&mut self, message: &Arc<Message>, step: u32) -> Check {
        let mut turn = Turn::new(vec![Arc::clone(message)]);
        // The owner or a prompt may answer the tool uses of a response that was cut in an earlier turn.
        turn.cut = message.tool_results().any(|result| result.is_error && result.text() == CUT);
        (self.run, self.turn) = (true, Some(turn));
        self.step += 1;
        self.check_step(step)
    }

    fn take_prompt(&mut self, prompt: &Prompt) -> Blocks {
        (self.step, self.requests) = (0, 0);
        self.limit = prompt.max_steps.or(self.own_limit);
        self.brought = prompt.max_steps;
        self.named_for_run.clone_from(&prompt.model);
        self.backups.place = 0;
        self.turn_timeout = prompt.turn_timeout.or(self.own_timeout);
        prompt.content.clone()
    }

    pub(super) fn check_step(&self, step: u32) -> Check {
        ensure!(step == self.step, "a message of step {step} in step {}", self.step);
        ensure!(self.limit.is_none_or(|limit| step <= limit), "step {step} of {:?}", self.limit);
        Ok(())
    }

    fn assistant(&mut self, message: &Arc<Message>, step: u32) -> Check {
        let is_cut_short = self.is_cut_short();
        self.ids.assistant(message)?;
        let turn = self.turn()?;
        ensure!(turn.place == TurnStage::Asking, "a response at {:?}", turn.place);
        super::blocks::check_answer(&turn.blocks, message, is_cut_short)?;
        ensure!(!is_cut_short || message.ended.is_none(), "a partial response ends as {:?}", message.ended);
        turn.blocks.clear();
        turn.pending.push(Arc::clone(message));
        turn.place = TurnStage::Answered;
        self.joins()?;
        self.check_step(step)
    }

    fn stepped(&mut self, response: &Response) -> Check {
        self.check_output(response)?;
        let exhausted = self.exhausted();
        let (is_cut_short, step) = (self.is_cut_short(), self.step);
        let is_kept = self.next_backup(&Failure::Refused).is_none();
        let turn = self.turn()?;
        ensure!(is_kept || turn.told != Some(StopReason::Refusal), "a refusal is kept");
        ensure!(turn.place == TurnStage::Answered && !is_cut_short, "a step at {:?}", turn.place);
        let is_user = |message: &&Arc<Message>| message.role == Role::User;
        turn.compacted = false;
        let earlier = turn.pending.iter().rev().skip_while(|message| !is_user(message));
        let earlier = earlier.take_while(is_user).filter(|message| message.compaction.is_none());
        let mut messages: Vec<_> = earlier.cloned().collect();
        messages.reverse();
        messages.extend(turn.pending.last().cloned());
        ensure!(response.messages == messages, "a step of {:?}, not {messages:?}", response.messages);
        ensure!(response.message.as_ref() == turn.pending.last(), "a step without its response");
        ensure!(response.usage == turn.current, "a step used {:?}, not {:?}", response.usage, turn.current);
        let paused_for_good = exhausted && turn.uses() == 0 && turn.told == Some(StopReason::Pause);
        let reason = if paused_for_good { Some(StopReason::MaxSteps) } else { turn.told.clone() };
        ensure!(Some(&response.stop_reason) == reason.as_ref(), "a step ends as {}", response.stop_reason);
        let ended = response.message.as_ref().and_then(|message| message.ended.as_deref());
        let is_usual = matches!(reason, Some(StopReason::Stop | StopReason::ToolUse | StopReason::Pause));
        ensure!(
            ended == reason.as_ref().filter(|_| !is_usual),
            "a response ends as {ended:?}, not {reason:?}"
        );
        ensure!(response.step == step, "step {} is emitted as {}", step, response.step);
        let model = turn.told_model.as_deref().unwrap_or(&turn.requested);
        ensure!(response.model == model, "a step of the model {}, not {model}", response.model);
        ensure!(turn.booked.is_none(), "a step with a row for {:?}", turn.booked);
        turn.booked = Some(RequestEnd::Answered);
        (turn.refused, turn.refused_by) = (false, None);
        turn.told_rows += response.usage;
        turn.reason = Some(response.stop_reason.clone());
        turn.place = match response.stop_reason {
            _ if turn.uses() > 0 => TurnStage::Deciding,
            StopReason::Pause if !exhausted => TurnStage::Asking,
            _ => TurnStage::Complete,
        };
        if turn.place == TurnStage::Asking {
            turn.joined.clear();
            turn.base = turn.pending.len();
            self.step += 1;
        }
        Ok(())
    }

    /// Checks another attempt at a request, which the provider sends again within the same step.
    fn attempted(&mut self, pending: usize, complete: bool, failure: &Failure) -> Check {
        self.input = Input::Plain;
        ensure!(matches!(failure, Failure::Provider { .. }), "an attempt fails with {failure:?}");
        let turn = self.turn()?;
        ensure!(pending == turn.pending.len(), "{pending} messages remain for an attempt");
        ensure!(!complete, "an attempt discards a message");
        turn.blocks.clear();
        Ok(())
    }

    fn retried(&mut self, pending: usize, complete: bool, step: u32) -> Check {
        self.step += 1;
        self.check_step(step)?;
        let turn = self.turn()?;
        ensure!(pending == turn.base, "{pending} messages remain, but the step began with {}", turn.base);
        ensure!(complete == (turn.pending.len() > pending), "a message is discarded, which is not stated");
        turn.pending.truncate(pending);
        turn.blocks.clear();
        turn.results.clear();
        turn.place = TurnStage::Asking;
        Ok(())
    }

    // ---- between inputs ----

    /// Checks that the model agrees with the core, and that no event is missing.
    pub(super) fn check_rest(&mut self, core: &AgentCore) -> Check {
        ensure!(self.input != Input::Misfit, "a response that does not match is not requested again");
        let again = matches!(self.input, Input::NewAttempt | Input::Restart);
        ensure!(!again, "another attempt is not emitted");
        self.input = Input::Plain;
        let ending = self.turn.as_ref().and_then(|turn| turn.ending);
        ensure!(ending.is_none(), "a request with a row for {ending:?} does not end");
        ensure!(self.cause.is_none(), "status {:?} was emitted without its cause", self.status);
        ensure!(!self.requested && !self.owes_compaction, "a compaction does not begin");
        ensure!(self.starting.is_none() && self.answering.is_none(), "an accepted prompt did not begin");
        self.check_histories(core)?;
        ensure!(
            self.status == core.status(),
            "status {:?} was emitted, but it is {:?}",
            self.status,
            core.status()
        );
        ensure!(self.committed == *core.history(), "the history differs from the committed turns");
        self.queue.check_rest(core)?;
        self.ids.check_rest(core)?;
        self.pauses.check_rest(core)?;
        ensure!(self.step == core.step(), "step {} is emitted as {}", core.step(), self.step);
        let idle = core.is_at_rest();
        ensure!(
            self.run != idle,
            "whether a run is active is {}, but the phase is {:?}",
            self.run,
            core.phase()
        );
        let prompt = core.phase().turn().map(|turn| &turn.origin.prompt);
        ensure!(
            prompt.is_none_or(|prompt| prompt.model == self.named_for_run),
            "the prompt has another model"
        );
        self.check_conversation(core)?;
        let own = self.turn.iter().flat_map(|turn| &turn.pending);
        let pending = core.phase().turn().into_iter().flat_map(|turn| turn.working.pending());
        ensure!(own.eq(pending), "the pending messages differ from the emitted ones");
        Ok(())
    }

    /// Checks the messages that the next request contains, and that no staged prompt is part of the conversation.
    fn check_conversation(&self, core: &AgentCore) -> Check {
        let Some(turn) = core.phase().turn() else { return Ok(()) };
        let (all, sent) = (turn.working.all(), turn.working.sent());
        ensure!(*sent == all.sent(), "{sent:?} is sent, not {:?}", all.sent());
        for prompt in &self.queue.staged {
            let mut others = all.iter().filter(|message| message.role == Role::User);
            let used = others.find(|message| message.content == prompt.content.0);
            ensure!(used.is_none(), "{prompt:?} is staged, and is part of the conversation as {used:?}");
        }
        Ok(())
    }

    pub(super) fn check_end(&self) -> Check {
        ensure!(!self.run && self.turn.is_none(), "a run does not end");
        ensure!(self.queue.staged.is_empty(), "a staged prompt is lost");
        let (told, spent) = (self.told_usage, self.spent_usage);
        ensure!(told == spent, "{spent:?} was used, but {told:?} was emitted");
        Ok(())
    }
}

/// Returns whether `event` ends a run.
pub(super) fn ends_run(event: &Event) -> bool {
    matches!(event, Event::Turn { continues: false, .. } | Event::Cancelled { .. } | Event::Error { .. })
}

//! The turn logic: a pure state machine. Each method processes one input, which is a command or the outcome of an
//! effect. The method changes the phase and appends effects. The shell, which is the agent's task, performs the effects
//! in order. This module uses no tokio, no clock, no callback and no provider.
//!
//! | input | method | file |
//! | --- | --- | --- |
//! | a prompt, also of `ask`; the withdrawal of a staged prompt | `prompt`, `unstage` | `queue` |
//! | a compaction by request | `compact_on_request` | `own_turn` |
//! | a decision about a tool use that waits, or the end of its time limit | `resume`, `pause_expired` | `pauses` |
//! | a changed limit, model, budget or history | `set_max_steps`, `set_model`, `set_budget`, `set_history` | `core` |
//! | `prepare_step` has returned, or the request has its permit | `prepared`, `admitted` | `core` |
//! | cancel, interrupt | `cancel`, `interrupt` | `ending` |
//! | the turn's time limit, or the end of a delay | `time_over`, `delay_over` | `ending` |
//! | `handle_turn` or `handle_error` has returned | `turn_decided`, `error_decided` | `ending` |
//! | a callback has panicked | `call_failed` | `ending` |
//! | a delta, the end or the failure of a stream, also of a summary | `delta`, `stream_ended`, `stream_failed` | `streaming` |
//! | the provider's question, or its withdrawal | `asked`, `question_withdrawn` | `streaming` |
//! | `handle_tool_use` or `handle_tool_result` has returned | `tool_decided`, `result_reviewed` | `tools` |
//! | a tool has finished | `tool_done` | `tools` |
//! | a running tool asks a question, or withdraws it | `tool_asked`, `tool_question_withdrawn` | `questions` |
//! | a sub-agent's pauses have changed; a request of one has ended; its stored usage is known | `tool_delegated`, `delegated`, `delegated_before` | `questions` |
//! | a tool runs a sub-agent in memory | `tool_unrepeatable` | `questions` |
//! | an application event; `handle_event` has begun or returned | `notify`, `event_begun`, `event_handled` | `notices` |
//! | a recorded turn is to continue; `handle_recovery` has returned | `take_up`, `recovered` | `recovery` |
//! | a pause is stored, so it can be reported | `paused` | `tools` |
//! | the owner sets the history, or starts a run on another one | `replace_history`, `prompt_on`, `answer` | `owner` |
//!
//! The outcome of an effect carries the number of the effect. If the phase does not wait for this number, the outcome
//! is late, and the input changes nothing ([`AgentPhase::take_awaited`]).

mod bare;
mod check;
mod compacting;
mod context;
mod ending;
mod fresh;
mod known;
mod notices;
mod own_turn;
mod owner;
mod pauses;
mod questions;
mod queue;
mod recovery;
mod response;
#[cfg(test)]
pub(super) mod simulation;
mod spending;
mod streaming;
mod tools;

use std::sync::Arc;

pub(super) use context::{AgentEffect, CallbackCall, CoreInputContext};
use fresh::PastPauseIds;
pub(super) use pauses::SubAgentDecision;
pub(crate) use pauses::{ResumeDecisions, check_decisions};
pub(super) use recovery::UNCERTAIN;

use super::{
    Durable, Event, Failure, KnownPrompt, Prompt, PromptState, RunEnd, RunOutcome, Snapshot, StateView,
    Status,
    phase::{
        AfterEventCallback, AgentPhase, AgentTurnStage, AskTurnResponses, DispatchedToolCall,
        HistoryWithPendingMessages, NextTurnOfRun, OpNumber, OutputRequirement, RequestReplaySafety,
        RunPromptState, Turn, in_stage,
    },
};
use crate::{
    message::{Content, History, Message, MessageId, Role, Timestamp, TurnId, Usage, answer_open_tool_uses},
    provider::{Fold, Model},
    run::Error,
    subscription::EventId,
    tool::Replay,
};

/// The state machine of one agent.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(super) struct AgentCore {
    history: History,
    /// The history before the run, if the run uses another history and has committed nothing.
    fallback: Option<History>,
    phase: AgentPhase,
    /// The staged prompts, in the order in which they were staged. Each has an id.
    staged: Vec<Arc<Prompt>>,
    /// The latest prompts with an id, with the latest prompt at the end.
    known: Vec<KnownPrompt>,
    /// The number of application events whose `handle_event` has not begun.
    notices: u32,
    /// The status that was last emitted.
    emitted_status: Status,
    last_op: OpNumber,
    /// The number of requests made for the last prompt. The number is kept while the agent is idle.
    step: u32,
    /// The number of runs that were started.
    runs: u32,
    /// The id of the model whose service has counted the tokens of the last answer in the history, if it is known.
    counted_by: Option<Arc<str>>,
    /// The first turn of the last run.
    first_turn: Option<TurnId>,
    /// The ids of tool uses that waited for `resume`.
    waited: PastPauseIds,
    /// The outcome of the last run.
    last_run: Option<Arc<RunEnd>>,
    /// The time since which the turn in flight is left to another process, so that nothing starts here any more.
    leaving_since: Option<Timestamp>,
    /// The operation of the last tools that were decided on, unless the turn is left and they have started.
    decided: OpNumber,
    /// The slots of the tools that were about to start when the turn was left.
    withheld: Vec<usize>,
    /// The number of restarts since the turn in flight last made progress, for its record.
    pub(super) lives: u32,
}

impl AgentCore {
    pub(super) fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    pub(super) fn set_last_run(&mut self, end: Option<RunEnd>) {
        if let Some(end) = end.as_ref().filter(|_| self.phase.turn().is_none()) {
            self.known = known::restored(&end.prompts);
        }
        self.last_run = end.map(Arc::new);
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn phase(&self) -> &AgentPhase {
        &self.phase
    }

    pub(super) fn status(&self) -> Status {
        self.emitted_status
    }

    pub(super) fn step(&self) -> u32 {
        self.phase.turn().map_or(self.step, |turn| turn.step)
    }

    /// Returns a snapshot with `state`, which is a view of the configuration and the committed history.
    pub(super) fn snapshot(&self, last: EventId, state: StateView) -> Snapshot {
        Snapshot {
            last,
            state,
            status: self.emitted_status,
            step: self.step(),
            pending: self.phase.turn().into_iter().flat_map(|turn| turn.working.pending().cloned()).collect(),
            compacting: match self.phase.stage() {
                Some(AgentTurnStage::Compacting { plan, .. }) => Some(plan.trigger),
                _ => None,
            },
            partial: self.phase.partial().into_iter().flat_map(Fold::blocks).map(streaming::seen).collect(),
            run: self.runs,
            first_turn: self.first_turn,
            turn: self.phase.turn().map(|turn| turn.id),
            answer: self.phase.turn().and_then(|turn| turn.answer.clone()),
            pauses: self.phase.pauses().cloned().collect(),
            tools: self.phase.tool_runs(),
            decisions: self.phase.turn().map_or_else(Vec::new, |turn| turn.decisions.clone()),
            budget: None,
            prompts: self.known.clone(),
            staged: self.staged.clone(),
            last_run: self.last_run.clone(),
        }
    }

    /// Returns whether nothing is in progress and nothing is queued.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.phase, AgentPhase::Idle) && self.staged.is_empty() && self.notices == 0
    }

    /// Returns whether no run is active.
    pub(super) fn is_at_rest(&self) -> bool {
        self.phase.is_at_rest()
    }

    // ---- commands ----

    /// Applies a changed limit of requests to the run in flight, unless its prompt has a limit.
    pub(super) fn set_max_steps(&mut self, max_steps: Option<u32>) {
        if let Some((origin, step)) = self.phase.origin_mut()
            && origin.prompt.max_steps.is_none()
        {
            // The limit must not be lower than the number of requests that were already sent or announced.
            origin.max_steps = max_steps.map(|max| max.max(step));
        }
    }

    /// Applies a changed model to the run in flight. The changed model applies even if the run's prompt has a model or
    /// a backup model is in use, because the changed model may be the fallback after a failure.
    pub(super) fn set_model(&mut self) {
        if let Some((origin, _)) = self.phase.origin_mut() {
            origin.backup = None;
            if origin.prompt.model.is_some() {
                Arc::make_mut(&mut origin.prompt).model = None;
            }
        }
    }

    /// Applies a changed budget to the run in flight, also if the run's prompt has a budget.
    pub(super) fn set_budget(&mut self) {
        if let Some((origin, _)) = self.phase.origin_mut()
            && origin.prompt.budget.is_some()
        {
            Arc::make_mut(&mut origin.prompt).budget = None;
        }
    }

    /// Sets the model of the recorded turn's prompt.
    pub(super) fn set_prompt_model(&mut self, model: Model) {
        if let Some((origin, _)) = self.phase.origin_mut() {
            Arc::make_mut(&mut origin.prompt).model = Some(model);
        }
    }

    /// Leaves the turn in flight to another process: starts nothing any more, and records the turn and its later
    /// changes. `withheld` is the effect that was waiting for a record. It is never performed, so the records state
    /// that its tools or its request have not started.
    pub(super) fn leave(&mut self, withheld: Option<&AgentEffect>, cx: &mut CoreInputContext<'_>) {
        self.leaving_since = Some(cx.now());
        self.decided = match withheld {
            Some(AgentEffect::RunTools(op, _)) if *op == self.decided => *op,
            _ => 0,
        };
        if let (Some(AgentEffect::Connect(_)), AgentPhase::InTurn { turn, .. }) = (withheld, &mut self.phase)
        {
            turn.request.sent = false;
        }
        if let (Some(AgentEffect::RunTools(_, calls)), Some(turn)) = (withheld, self.phase.turn()) {
            // The call of an earlier process may have taken effect, unless the turn states this of its slot.
            let is_new =
                |call: &&DispatchedToolCall| !call.is_repeated || turn.uncertain.contains(&call.slot);
            self.withheld = calls.iter().filter(is_new).map(|call| call.slot).collect();
        }
        match &mut self.phase {
            AgentPhase::InTurn { turn, .. } => turn.recorded = true,
            AgentPhase::Noticing { then: AfterEventCallback::Continue(between), .. } => {
                between.recorded = true;
            }
            AgentPhase::Idle | AgentPhase::Noticing { .. } => {}
        }
        self.record_now(cx);
    }

    /// Records the current state, if the run in flight is a recorded run.
    pub(super) fn record_now(&mut self, cx: &mut CoreInputContext<'_>) {
        if self.phase.is_recorded() {
            cx.push(AgentEffect::Record);
        }
    }

    pub(super) fn set_history(&mut self, history: History) {
        if !history.same(&self.history) {
            self.counted_by = None;
        }
        self.history = history;
    }

    /// Returns an error if the agent is not idle.
    pub(super) fn ensure_idle(&self) -> Result<(), Error> {
        if self.is_at_rest() { Ok(()) } else { Err(Error::busy("agent", self.emitted_status)) }
    }

    // ---- turns ----

    /// Starts a run. `recorded` states whether an earlier turn of the same run was recorded.
    fn begin_run(
        &mut self,
        prompt: Prompt,
        ask: bool,
        recorded: bool,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<TurnId, Error> {
        let turn = (cx.turn_id)();
        let (message, origin) = open(&self.history, prompt, turn, ask, cx)?;
        self.begin_turn(turn, message, origin, 0, recorded, cx);
        Ok(turn)
    }

    /// Starts a turn with `message` after `step` requests have been made for the same prompt. Before the first request,
    /// the prompt is now in flight. If an earlier turn of the run was recorded, this turn is `recorded` too, because it
    /// replaces the record of the earlier turn.
    fn begin_turn(
        &mut self,
        id: TurnId,
        message: impl Into<Arc<Message>>,
        origin: RunPromptState,
        step: u32,
        recorded: bool,
        cx: &mut CoreInputContext<'_>,
    ) {
        let recorded = recorded || cx.records == Durable::InFlight;
        if recorded {
            cx.push(AgentEffect::Record);
        }
        let limit = origin.prompt.turn_timeout.or(cx.config.settings.turn_timeout);
        if self.emitted_status == Status::Idle || self.first_turn.is_none() {
            (self.runs, self.first_turn) = (self.runs.wrapping_add(1), Some(id));
        }
        let mut turn = Box::new(self.turn(id, origin, step, recorded));
        if step == 0 {
            turn.origin.first_turn = id;
        }
        self.emit_status(Status::Busy, cx);
        cx.push(AgentEffect::Watch(limit));
        if let Some(id) = turn.origin.prompt.id.clone().filter(|_| step == 0) {
            self.set_prompt(&id, PromptState::InFlight { turn: turn.id }, None, cx);
        }
        turn.step += 1;
        add_message(&mut turn, message, cx);
        match self.phase {
            // `handle_event` is still running. No other callback can be called until it returns, so the request is
            // prepared afterwards.
            AgentPhase::Noticing { op, begun, then: AfterEventCallback::Rest } => {
                turn.step_start = turn.working.pending_len();
                self.phase = AgentPhase::InTurn { op, turn, stage: AgentTurnStage::Noticing { begun } };
            }
            _ => self.prepare(turn, cx),
        }
    }

    /// Returns a turn without messages, after `step` requests for the same prompt.
    fn turn(&self, id: TurnId, origin: RunPromptState, step: u32, recorded: bool) -> Turn {
        let turn =
            Turn::new(id, self.runs, origin, HistoryWithPendingMessages::new(&self.history), step, recorded);
        Turn { counted_by: self.counted_by.clone(), ..turn }
    }

    /// Called when `prepare_step` has returned. The shell holds the request, which goes to `model`. The response to
    /// this request must match `wanted`. `replay` is the declaration of the request's provider.
    pub(super) fn prepared(
        &mut self,
        op: OpNumber,
        wanted: OutputRequirement,
        model: Arc<str>,
        replay: Replay,
        cx: &mut CoreInputContext<'_>,
    ) {
        if let Some((mut turn, ())) = self.phase.take_awaited(op, in_stage!(AgentTurnStage::Preparing => ()))
        {
            // Another model may accept the content that the last model has refused. Models of two providers with the
            // same id count as one model.
            turn.refused &= turn.requested.as_ref() == Some(&model);
            (turn.wanted, turn.requested) = (wanted, Some(model));
            turn.request = RequestReplaySafety { replay, ..RequestReplaySafety::default() };
            announce(&mut turn, cx);
            let op = self.enter(turn, AgentTurnStage::Streaming { fold: Box::default(), question: None });
            cx.push(AgentEffect::Open(op));
        }
    }

    /// Called when the request has its permit. If the turn is recorded and the request must not be repeated, the
    /// sending of the request is recorded first, and the request is sent when the record is stored.
    pub(super) fn admitted(&mut self, op: OpNumber, cx: &mut CoreInputContext<'_>) {
        match self.phase.awaited(op) {
            Some(_) if self.leaving_since.is_some() => {}
            Some((turn, AgentTurnStage::Streaming { .. })) => {
                turn.request.sent = true;
                cx.gate(turn.recorded && turn.request.replay == Replay::Never, AgentEffect::Connect(op));
            }
            Some((_, AgentTurnStage::Compacting { .. })) => cx.push(AgentEffect::Connect(op)),
            _ => {}
        }
    }

    /// Continues after a committed turn. If a prompt is staged, it starts the next turn, and the prompts in flight end
    /// with the committed one. Otherwise the queued application events are handled first, and then the continuation
    /// starts the next turn.
    fn continue_run(&mut self, between: Box<NextTurnOfRun>, cx: &mut CoreInputContext<'_>) {
        if !self.staged.is_empty() {
            if let Some(response) = between.origin.asked.as_ref().and_then(AskTurnResponses::response) {
                cx.hold_back(between.recorded, AgentEffect::Resolve(Ok(response)));
            }
            self.end_prompts(&RunOutcome::Stopped { stop_reason: between.stop_reason }, cx);
            let staged = self.staged.remove(0);
            let begun = self.begin_run(Arc::unwrap_or_clone(staged), false, between.recorded, cx);
            debug_assert!(begun.is_ok(), "a staged prompt contains no tool results");
            return;
        }
        if self.notices > 0 {
            return self.notice(AfterEventCallback::Continue(between), cx);
        }
        let NextTurnOfRun { content, origin, step, turn, recorded, .. } = *between;
        // The content was checked when the previous turn was committed, and the history has not changed since. So this
        // never fails, and the default is never used.
        let content = answer_open_tool_uses(&self.history, content).unwrap_or_default();
        let message = user_message(MessageId::made(turn, 0), content, cx);
        self.begin_turn(turn, message, origin, step, recorded, cx);
    }

    // ---- helpers ----

    fn next_op(&mut self) -> OpNumber {
        self.last_op += 1;
        self.last_op
    }

    /// Enters a stage of the turn in flight, and returns the number of the outcome for which the stage waits.
    fn enter(&mut self, turn: Box<Turn>, stage: AgentTurnStage) -> OpNumber {
        let op = self.next_op();
        self.phase = AgentPhase::InTurn { op, turn, stage };
        op
    }

    /// Ends a run with this event, and returns the staged prompts. If the run is `recorded`, its end is recorded too.
    fn end_run(&mut self, event: Event, recorded: bool, cx: &mut CoreInputContext<'_>) {
        let Some(end) = RunEnd::of(&event) else { unreachable!("the event ends a run") };
        self.end_prompts(&end.outcome, cx);
        let staged = self.return_staged(cx);
        let end = end.with_staged(staged.iter().map(Prompt::as_serialised).collect());
        match self.last_run.as_mut().and_then(Arc::get_mut) {
            // Nobody else holds the previous end, so its memory is reused.
            Some(last) => *last = end,
            None => self.last_run = Some(Arc::new(end)),
        }
        if recorded {
            cx.push(AgentEffect::Record);
        }
        cx.emit(event);
    }

    /// Emits the status of an agent in which nothing waits for a decision, if the status has changed.
    fn emit_status(&mut self, status: Status, cx: &mut CoreInputContext<'_>) {
        if self.emitted_status != status {
            self.emitted_status = status;
            cx.emit(Event::Status { status, pauses: Vec::new() });
        }
    }

    /// Emits the status and the pauses after a change of the list of pauses. The turn's time limit is on hold as long as
    /// something waits.
    fn emit_pauses(&mut self, cx: &mut CoreInputContext<'_>) {
        let pauses: Vec<_> = self.phase.pauses().cloned().collect();
        let status = if pauses.is_empty() { Status::Busy } else { Status::Paused };
        if status != self.emitted_status {
            cx.push(AgentEffect::FreezeWatch(status == Status::Paused));
        }
        if status == Status::Paused || self.emitted_status == Status::Paused {
            self.emitted_status = status;
            cx.emit(Event::Status { status, pauses });
        }
    }
}

/// Returns the first message and the origin of a run that `prompt` starts on `history`. `turn` is the id of the run's
/// first turn.
fn open(
    history: &History,
    mut prompt: Prompt,
    turn: TurnId,
    ask: bool,
    cx: &CoreInputContext<'_>,
) -> Result<(Message, RunPromptState), Error> {
    let content =
        answer_open_tool_uses(history, std::mem::take(&mut prompt.content)).map_err(Error::unfit_prompt)?;
    let id = prompt.id.clone().map_or(MessageId::made(turn, 0), MessageId::from);
    let message = Message { app_data: prompt.app_data.take(), ..user_message(id, content, cx) };
    Ok((message, origin(prompt, ask, cx)))
}

/// Returns the origin of a run with the settings of this prompt.
fn origin(prompt: Prompt, ask: bool, cx: &CoreInputContext<'_>) -> RunPromptState {
    let model = prompt.model.as_ref().unwrap_or(&cx.config.model);
    RunPromptState {
        max_steps: prompt.max_steps.or(cx.config.settings.max_steps),
        first_turn: TurnId::default(),
        spent: Usage::default(),
        delegated: 0,
        backup: None,
        secrets_of: prompt.options.has_secrets().then(|| model.provider_name().into()),
        prompt: Arc::new(prompt.without_content()),
        asked: ask.then(AskTurnResponses::default),
    }
}

/// Emits the id that the response to the next request will have.
fn announce(turn: &mut Turn, cx: &mut CoreInputContext<'_>) {
    let message_id = turn.message_id();
    turn.answer = Some(message_id.clone());
    cx.emit(Event::StepStart { step: turn.step, message_id });
}

/// Appends a message to the turn in flight and emits it.
fn add_message(turn: &mut Turn, message: impl Into<Arc<Message>>, cx: &mut CoreInputContext<'_>) {
    let message = message.into();
    turn.working.push(Arc::clone(&message));
    cx.emit(Event::Message { message, step: turn.step, turn: turn.id, run: turn.run });
}

fn user_message(id: MessageId, content: Vec<Content>, cx: &CoreInputContext<'_>) -> Message {
    Message { id: Some(id), ..Message::at(cx.now(), Role::User, content) }
}

fn callback_failure(callback: &str, message: String) -> Failure {
    Failure::Callback { callback: callback.to_owned(), message }
}

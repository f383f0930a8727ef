//! The turn logic: a pure state machine. Each method takes one input — a command, or the outcome of an effect
//! — changes the phase and appends effects for the shell to perform, in order. No tokio, no clock, no
//! callback, no provider in here.

#[cfg(any(test, debug_assertions))]
mod check;
mod ending;
mod fresh;
mod owner;
#[cfg(test)]
mod simulation;
mod streaming;
mod tools;

use std::{sync::Arc, time::Duration};

use fresh::Waited;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    AgentError, Config, Event, Failure, Pause, Prompt, Response, RunOutcome, Snapshot, StateView, Status,
    phase::{AfterEvent, Asked, Between, Op, Origin, OutputRequirement, Phase, ToolCall, Turn, Working},
};
use crate::{
    message::{
        Blocks, Content, History, Message, Role, Timestamp, ToolResult, ToolUse, Usage, answer_open_tool_uses,
    },
    provider::{Corrections, Fold},
    subscription::EventId,
    tool::{Decision, ToolSet},
};

/// What the core may know of the world at one input.
pub(super) struct Env<'a> {
    /// The time, for messages made now. Most inputs make none, deltas above all.
    pub(super) now: &'a dyn Fn() -> Timestamp,
    /// The configuration in force.
    pub(super) config: &'a Config,
    /// The tools that the current request offered.
    pub(super) tools: &'a ToolSet,
    /// Fresh randomness, should a turn begin.
    pub(super) turn_id: &'a dyn Fn() -> u128,
    /// Why no run may begin now, if something forbids it.
    pub(super) hold: &'a dyn Fn() -> Option<String>,
}

/// What the shell is to do.
#[derive(Debug)]
pub(super) enum Effect {
    /// Tell subscribers.
    Emit(Event),
    /// Call a callback; its outcome comes back under this number.
    Call(Op, Call),
    /// Drop whatever goes on: the callback, the exchange, the tools, the delay.
    Abort,
    /// Drop the callback that runs, if one does.
    DropCall,
    /// Send the prepared request; deltas come back under this number.
    Open(Op),
    /// Answer the provider's question.
    Answer(Decision),
    /// Run these tools; results come back under this number.
    RunTools(Op, Vec<ToolCall>),
    /// Come back under this number when this long has passed.
    Delay(Op, Duration),
    /// Tell when the turn has taken this long, from now; `None` for no limit.
    Watch(Option<Duration>),
    /// Stop the turn's clock while a person decides, or let it go on.
    FreezeWatch(bool),
    /// Answer whoever asked.
    Resolve(Result<Arc<Response>, AgentError>),
}

/// A callback to call.
#[derive(Clone, Debug)]
pub(super) enum Call {
    PrepareStep,
    HandleToolUse(ToolUse),
    HandleToolResult(ToolResult),
    HandleTurn(Arc<Response>),
    HandleError(Failure),
    HandleEvent,
}

impl Call {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::PrepareStep => "prepare_step",
            Self::HandleToolUse(_) => "handle_tool_use",
            Self::HandleToolResult(_) => "handle_tool_result",
            Self::HandleTurn(_) => "handle_turn",
            Self::HandleError(_) => "handle_error",
            Self::HandleEvent => "handle_event",
        }
    }
}

/// What became of a prompt.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Accepted {
    /// It began a run.
    Started,
    /// It waits for the end of the turn in flight.
    Staged {
        /// The older staged prompt that it replaced.
        replaced: Option<Arc<Prompt>>,
    },
}

/// Application events that may wait.
const MAX_NOTICES: u32 = 1024;

/// The state machine of one agent. Written down, it is all but the histories, which are stored apart.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(super) struct Core {
    #[serde(skip)]
    history: History,
    /// The history of before the run, while the run is on another one and has committed nothing.
    #[serde(skip)]
    fallback: Option<Box<History>>,
    phase: Phase,
    staged: Option<Arc<Prompt>>,
    /// A prompt that `handle_event` returned while another was staged, behind which it waits.
    behind: Option<Arc<Prompt>>,
    /// Application events whose `handle_event` has not begun.
    notices: u32,
    /// The status last told.
    told: Status,
    last_op: Op,
    /// Requests since the last prompt was taken, kept while idle.
    step: u32,
    /// The tool uses that waited for `resume`.
    waited: Waited,
    /// How the last run ended.
    last_run: Option<Arc<RunOutcome>>,
}

type Effects = Vec<Effect>;

impl Core {
    pub(super) fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(super) fn status(&self) -> Status {
        self.told
    }

    pub(super) fn step(&self) -> u32 {
        self.phase.turn().map_or(self.step, |turn| turn.step)
    }

    /// The snapshot of this moment, beside a view of the configuration and the committed history.
    pub(super) fn snapshot(&self, last: EventId, state: StateView) -> Snapshot {
        let pause = |(tool_use, reason): (&ToolUse, &Value)| Pause {
            tool_use: tool_use.clone(),
            reason: reason.clone(),
        };
        Snapshot {
            last,
            state,
            status: self.told,
            step: self.step(),
            pending: self.phase.turn().into_iter().flat_map(|turn| turn.working.pending().cloned()).collect(),
            partial: self.phase.partial().into_iter().flat_map(Fold::blocks).map(streaming::seen).collect(),
            pause: self.phase.waiting().map(pause),
            staged: self.staged.clone(),
            behind: self.behind.clone(),
            last_run: self.last_run.clone(),
        }
    }

    /// Whether nothing is going on and nothing waits to.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.staged.is_none() && self.notices == 0
    }

    /// Whether no run is on.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Noticing { then: AfterEvent::Rest, .. })
    }

    // ---- commands ----

    /// Takes a prompt: begins a run if idle, else stages it.
    pub(super) fn prompt(
        &mut self,
        prompt: Prompt,
        ask: bool,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<Accepted, AgentError> {
        prompt.check()?;
        if prompt.content.is_blank() {
            return Err(AgentError::EmptyPrompt);
        }
        if matches!(self.phase, Phase::Idle | Phase::Noticing { then: AfterEvent::Rest, .. }) {
            self.begin_run(prompt, ask, env, effects)?;
            return Ok(Accepted::Started);
        }
        if ask {
            return Err(AgentError::Busy(self.told));
        }
        if prompt.content.0.iter().any(|block| matches!(block, Content::ToolUse(_) | Content::ToolResult(_)))
        {
            return Err(AgentError::ResultsWhileBusy);
        }
        let replaced = self.staged.replace(Arc::new(prompt));
        Ok(Accepted::Staged { replaced })
    }

    /// A callback changed the limit of requests, which holds for prompts that brought none of their own.
    pub(super) fn set_max_steps(&mut self, max_steps: Option<u32>) {
        if let Some((origin, step)) = self.phase.origin_mut()
            && origin.prompt.max_steps.is_none()
        {
            // What was sent is sent, and what was announced follows.
            origin.max_steps = max_steps.map(|max| max.max(step));
        }
    }

    /// A callback changed the model, which holds for the run in flight too: it may be the fallback after a failure.
    pub(super) fn set_model(&mut self) {
        if let Some((origin, _)) = self.phase.origin_mut()
            && origin.prompt.model.is_some()
        {
            Arc::make_mut(&mut origin.prompt).model = None;
        }
    }

    /// Replaces the history.
    pub(super) fn set_history(&mut self, history: History) {
        self.history = history;
    }

    /// Refuses what only an idle agent may do.
    pub(super) fn ensure_idle(&self) -> Result<(), AgentError> {
        match self.phase {
            Phase::Idle | Phase::Noticing { then: AfterEvent::Rest, .. } => Ok(()),
            _ => Err(AgentError::Busy(self.told)),
        }
    }

    /// Decides on the tool use that waits.
    pub(super) fn resume(
        &mut self,
        id: &crate::message::ToolUseId,
        decision: Decision,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        match self.phase.waiting() {
            None => return Err(AgentError::NotPaused(self.told)),
            Some((tool_use, _)) if tool_use.id != *id => {
                return Err(AgentError::StaleResume { waiting: tool_use.id.clone(), given: id.clone() });
            }
            Some(_) => {}
        }
        match std::mem::take(&mut self.phase) {
            Phase::Paused { turn, tools, .. } => {
                self.unpause(effects);
                self.record_decision(turn, tools, decision, env, effects);
            }
            Phase::Streaming { op, turn, fold, .. } => {
                self.phase = Phase::Streaming { op, turn, fold, question: None };
                self.unpause(effects);
                effects.push(Effect::Answer(decision));
            }
            other => self.phase = other,
        }
        Ok(())
    }

    /// An application event came in; the shell keeps it until `handle_event` is called.
    pub(super) fn notify(&mut self, effects: &mut Effects) -> Result<(), AgentError> {
        if self.notices >= MAX_NOTICES {
            return Err(AgentError::TooManyEvents(MAX_NOTICES as usize));
        }
        self.notices += 1;
        if matches!(self.phase, Phase::Idle) {
            self.notice(AfterEvent::Rest, effects);
        }
        Ok(())
    }

    // ---- turns ----

    fn begin_run(
        &mut self,
        prompt: Prompt,
        ask: bool,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        let (content, origin) = open(&self.history, prompt, ask, env)?;
        self.begin_turn(user_message(content, env), origin, 0, env, effects);
        Ok(())
    }

    /// Begins a turn with `message`, after `step` requests for the same prompt.
    fn begin_turn(
        &mut self,
        message: impl Into<Arc<Message>>,
        origin: Origin,
        step: u32,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        let limit = origin.prompt.turn_timeout.or(env.config.turn_timeout);
        let mut turn = Box::new(Turn {
            id: (env.turn_id)(),
            origin,
            working: Working::new(&self.history),
            step,
            step_start: 0,
            usage: Usage::default(),
            model: None,
            warnings: Vec::new(),
            corrections: Corrections::default(),
            wanted: OutputRequirement::default(),
            output_enforced: false,
        });
        self.tell(Status::Busy, effects);
        effects.push(Effect::Watch(limit));
        turn.step += 1;
        add_message(&mut turn, message, effects);
        match self.phase {
            // The callbacks are not free before `handle_event` is done.
            Phase::Noticing { op, begun, then: AfterEvent::Rest } => {
                turn.step_start = turn.working.pending_len();
                self.phase = Phase::Noticing { op, begun, then: AfterEvent::Prepare(turn) };
            }
            _ => self.prepare(turn, effects),
        }
    }

    /// Makes the turn's next request, which is counted already.
    fn prepare(&mut self, mut turn: Box<Turn>, effects: &mut Effects) {
        turn.step_start = turn.working.pending_len();
        let op = self.next_op();
        self.phase = Phase::Preparing { op, turn };
        effects.push(Effect::Call(op, Call::PrepareStep));
    }

    /// `prepare_step` is done; the shell holds the request, and its answer is `wanted` like this.
    pub(super) fn prepared(&mut self, op: Op, wanted: OutputRequirement, effects: &mut Effects) {
        match std::mem::take(&mut self.phase) {
            Phase::Preparing { op: waiting, mut turn } if waiting == op => {
                turn.wanted = wanted;
                let op = self.next_op();
                self.phase = Phase::Streaming { op, turn, fold: Box::default(), question: None };
                effects.push(Effect::Open(op));
            }
            other => self.phase = other,
        }
    }

    // ---- application events ----

    /// Calls `handle_event` for the oldest application event that waits.
    fn notice(&mut self, then: AfterEvent, effects: &mut Effects) {
        let op = self.next_op();
        self.phase = Phase::Noticing { op, begun: false, then };
        effects.push(Effect::Call(op, Call::HandleEvent));
    }

    /// `handle_event` is about to be polled for the first time. Its event waits no longer: it is dropped with the call.
    pub(super) fn event_begun(&mut self, op: Op) {
        if let Phase::Noticing { op: waiting, begun, .. } = &mut self.phase
            && *waiting == op
            && !*begun
        {
            *begun = true;
            self.notices -= 1;
        }
    }

    /// `handle_event` is done, and may want a prompt sent.
    pub(super) fn event_handled(
        &mut self,
        op: Op,
        prompt: Option<Prompt>,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        if !matches!(self.phase, Phase::Noticing { op: waiting, begun: true, .. } if waiting == op) {
            return;
        }
        if let Some(prompt) = prompt {
            if let Some(reason) = (env.hold)() {
                return self.hand_back(prompt, reason, env, effects);
            }
            if let Err(error) = self.prompt_from_event(prompt, env, effects) {
                return self.call_failed(op, Call::HandleEvent.name(), error.to_string(), env, effects);
            }
        }
        let Phase::Noticing { then, .. } = std::mem::take(&mut self.phase) else {
            unreachable!("handle_event was waited for, and a prompt leaves that phase alone");
        };
        match then {
            AfterEvent::Rest => self.settle(effects),
            AfterEvent::Continue(between) => self.continue_run(between, env, effects),
            AfterEvent::Prepare(turn) => self.prepare(turn, effects),
        }
    }

    /// A prompt that `handle_event` returned waits for its turn like any other, but never pushes out one that
    /// the application staged meanwhile: nobody could be told. It waits behind that one, alone: the next
    /// application event comes when both are taken.
    fn prompt_from_event(
        &mut self,
        prompt: Prompt,
        env: &Env<'_>,
        effects: &mut Effects,
    ) -> Result<(), AgentError> {
        let ahead = self.staged.take();
        let taken = self.prompt(prompt, false, env, effects);
        if let Some(ahead) = ahead {
            self.behind = self.staged.replace(ahead);
        }
        taken.map(|_| ())
    }

    /// Carries a prompt that `handle_event` returned back with an error, since it can't be taken now.
    fn hand_back(&mut self, prompt: Prompt, reason: String, env: &Env<'_>, effects: &mut Effects) {
        let prompt = Some(Arc::new(prompt));
        // While one waits behind the staged prompt, `handle_event` is not called.
        if self.staged.is_none() {
            self.staged = prompt;
        } else {
            self.behind = prompt;
        }
        self.end_in_error(Failure::OnHold { reason }, env, effects);
    }

    /// Takes out what is staged, to be carried back as one prompt.
    fn unstage(&mut self) -> Option<Arc<Prompt>> {
        let mut staged = self.staged.take()?;
        if let Some(behind) = self.behind.take() {
            Arc::make_mut(&mut staged).content.0.extend(Arc::unwrap_or_clone(behind).content.0);
        }
        Some(staged)
    }

    /// Goes on after a turn that was committed: with the staged prompt, else with the continuation, once the
    /// application events that wait are handled.
    fn continue_run(&mut self, between: Box<Between>, env: &Env<'_>, effects: &mut Effects) {
        if let Some(staged) = self.staged.take() {
            self.staged = self.behind.take();
            if let Some(response) = between.origin.asked.as_deref().and_then(Asked::response) {
                effects.push(Effect::Resolve(Ok(response)));
            }
            let begun = self.begin_run(Arc::unwrap_or_clone(staged), false, env, effects);
            debug_assert!(begun.is_ok(), "a staged prompt holds no tool results that could not fit");
            return;
        }
        if self.notices > 0 {
            return self.notice(AfterEvent::Continue(between), effects);
        }
        let Between { content, origin, step } = *between;
        // Checked when the turn before was committed, and the history is still that one.
        let content = answer_open_tool_uses(&self.history, content).unwrap_or_default();
        self.begin_turn(user_message(content, env), origin, step, env, effects);
    }

    /// No run is on any more: the application events that wait come next.
    fn settle(&mut self, effects: &mut Effects) {
        if self.notices > 0 {
            self.notice(AfterEvent::Rest, effects);
        }
    }

    // ---- small things ----

    fn next_op(&mut self) -> Op {
        self.last_op += 1;
        self.last_op
    }

    /// Emits the event that ends a run.
    fn end_run(&mut self, event: Event, effects: &mut Effects) {
        self.last_run = RunOutcome::of(&event).map(Arc::new);
        effects.push(Effect::Emit(event));
    }

    /// Tells the status if it is news.
    fn tell(&mut self, status: Status, effects: &mut Effects) {
        if self.told != status {
            self.told = status;
            effects.push(Effect::Emit(Event::Status { status }));
        }
    }

    /// The tool use that waited is decided on.
    fn unpause(&mut self, effects: &mut Effects) {
        self.tell(Status::Busy, effects);
        effects.push(Effect::FreezeWatch(false));
    }
}

/// What a run of `prompt` on `history` begins with: the content of its first message, and where it comes from.
fn open(
    history: &History,
    prompt: Prompt,
    ask: bool,
    env: &Env<'_>,
) -> Result<(Vec<Content>, Origin), AgentError> {
    let Prompt { content, .. } = prompt;
    let content = answer_open_tool_uses(history, content).map_err(AgentError::InvalidPrompt)?;
    let model = prompt.model.as_ref().unwrap_or(&env.config.model);
    let origin = Origin {
        max_steps: prompt.max_steps.or(env.config.max_steps),
        secrets_of: prompt.options.has_secrets().then(|| model.provider_name().into()),
        prompt: Arc::new(Prompt { content: Blocks::default(), ..prompt }),
        asked: ask.then(Box::default),
    };
    Ok((content, origin))
}

/// Appends a message to the turn in flight and tells.
fn add_message(turn: &mut Turn, message: impl Into<Arc<Message>>, effects: &mut Effects) {
    let message = message.into();
    turn.working.push(Arc::clone(&message));
    effects.push(Effect::Emit(Event::Message { message, step: turn.step }));
}

fn user_message(content: Vec<Content>, env: &Env<'_>) -> Message {
    Message { role: Role::User, content, timestamp: (env.now)(), provider_data: serde_json::Map::new() }
}

fn callback_failure(callback: &str, message: String) -> Failure {
    Failure::Callback { callback: callback.to_owned(), message }
}

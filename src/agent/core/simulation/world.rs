//! The simulated world around the core: the shell's state, and the loop that plays a schedule.

use std::{sync::Arc, time::Duration};

use super::{
    Check,
    asks::Asks,
    backups::Backups,
    budgets::{Budgets, random_budget},
    compare::Kept,
    desk::Desk,
    ensure,
    follows::Follows,
    model::Model,
    questions::Questions,
    stream::Stream,
};
use crate::actor::random::Rng;
use crate::{
    agent::{
        CompactionPolicy, Config, Durable, Event, ResolvedCompactionPolicy,
        core::{AgentCore, AgentEffect, CallbackCall, CoreInputContext},
        phase::{AgentPhase, AgentTurnStage, DispatchedToolCall, OpNumber, RunningToolQuestion, ToolUseSlot},
    },
    message::{Timestamp, ToolUse, ToolUseId, TurnId},
    provider::{self, DeltaStream, ModelInfo, Options, Provider, ProviderError, Request, RequestContext},
    run::Settings,
    tool::{Decision, Schema, ToolSet, declared_tool_with_schema, tool_fn},
};

#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct World {
    pub(super) rng: Rng,
    /// The reason why no prompt may be accepted now.
    pub(super) hold: Option<&'static str>,
    pub(super) core: AgentCore,
    pub(super) config: Config,
    pub(super) tools: ToolSet,
    clock: u64,
    /// The running callback.
    pub(super) call: Option<(OpNumber, CallbackCall)>,
    /// Whether the requested call of `handle_event` has begun.
    pub(super) begun: bool,
    pub(super) stream: Option<Stream>,
    /// The provider's question that has not been answered yet.
    pub(super) question: Option<ToolUse>,
    /// The decision about the question that has not reached the provider yet.
    pub(super) answer: Option<Decision>,
    /// The tools that are still running.
    pub(super) tasks: Option<(OpNumber, Vec<DispatchedToolCall>)>,
    /// The questions of the running tools.
    pub(super) questions: Questions,
    pub(super) delay: Option<OpNumber>,
    /// The level at which turns are recorded.
    records: Durable,
    /// The number of tools that run at once.
    at_once: usize,
    /// The effect that waits until the last record is stored.
    pub(super) held: Option<AgentEffect>,
    /// The tool uses whose pauses have time limits.
    pub(super) expiries: Vec<ToolUseId>,
    /// The delay that `handle_error` returned.
    pub(super) retry_after: Option<Duration>,
    /// The turn's time limit, and whether the turn's clock is stopped.
    pub(super) watch: Option<(Duration, bool)>,
    /// Whether the core has set the turn's clock while processing the current input.
    watches: bool,
    pub(super) model: Model,
    pub(super) desk: Desk,
    pub(super) asks: Asks,
    pub(super) kept: Kept,
    pub(super) follows: Follows,
    pub(super) budgets: Budgets,
    /// The number of queued application events.
    pub(super) notices: usize,
    pub(super) prompts: u32,
    /// The percentage of inputs that are commands.
    commands: usize,
    /// The percentage of callbacks that panic.
    pub(super) panics: usize,
    /// Whether nobody requests a compaction, and no callback sets another model.
    pub(super) is_uncompacted: bool,
    /// Whether the simulated callbacks, provider and tools cooperate, so that every operation in progress ends.
    pub(super) friendly: bool,
    trace: Option<Vec<String>>,
}

/// A provider that is never called.
struct Nobody;

#[async_trait::async_trait]
impl Provider for Nobody {
    fn name(&self) -> &'static str {
        "nobody"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        unreachable!("the world creates the deltas")
    }
}

/// Returns a model with this id.
pub(super) fn model(id: &str) -> provider::Model {
    let model = provider::Model::new(Arc::new(Nobody), id);
    match room(id) {
        Some(room) => model.with_info(ModelInfo::new(id).with_context_window(room + 1).with_output_limit(1)),
        None => model,
    }
}

/// Returns the context window of the model with this id, if it is known.
pub(super) fn room(id: &str) -> Option<u64> {
    match id {
        "small" => Some(60),
        "other" => Some(200),
        "large" => Some(2000),
        _ => None,
    }
}

pub(super) fn config() -> Config {
    Config {
        model: model("model"),
        settings: Settings::default(),
        tools: ToolSet::new(),
        registry: None,
        extras: None,
    }
}

/// Returns two tools with handlers and two without.
pub(super) fn tools() -> ToolSet {
    let empty = || Schema::new(serde_json::json!({ "type": "object" })).expect("the schema is valid");
    let runs = |name: &str| {
        tool_fn(name, "Runs.", |_: std::collections::BTreeMap<String, u8>, _| async {
            Ok::<_, crate::tool::ToolError>("done")
        })
    };
    let tools = ToolSet::new().with(runs("search")).and_then(|tools| tools.with(runs("write")));
    tools
        .and_then(|tools| tools.with(declared_tool_with_schema("ask_user", "Asks.", empty())))
        .and_then(|tools| tools.with(declared_tool_with_schema("pick", "Picks.", empty())))
        .expect("the names differ")
}

thread_local! {
    /// Schemas are compiled only once, because compiling them takes longer than playing a schedule.
    static TOOLS: ToolSet = tools();
    static CONFIG: Config = config();
    pub(super) static OUTPUT: Options = super::outputs::options();
}

/// Returns the number of tools that run at once. In a third of the schedules, tools often wait for each other.
pub(super) fn random_bound(seed: u64) -> usize {
    match seed % 9 {
        0 | 1 => 1,
        2 => 2,
        _ => 32,
    }
}

/// Returns a policy with which conversations of a few messages are compacted.
fn random_compactor(rng: &mut Rng) -> ResolvedCompactionPolicy {
    let mut policy = CompactionPolicy::default()
        .with_threshold(rng.pick(&[0.1, 0.3, 0.9]))
        .with_kept_turns(rng.pick(&[0, 1, 2]));
    if rng.percent(30) {
        policy = policy.without_clearing();
    }
    if rng.percent(50) {
        policy = policy.with_kept_prompts();
    }
    let own = rng.percent(30).then(|| model(rng.pick(&["small", "new"])));
    ResolvedCompactionPolicy { policy, model: own, acts_at_end: rng.percent(90) }
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut config = CONFIG.with(Config::clone);
        config.settings.max_steps = rng.pick(&[None, None, Some(2), Some(4)]);
        if rng.percent(30) {
            config.require_approval("search");
        }
        config.settings.turn_timeout = rng.pick(&[None, Some(Duration::from_secs(9))]);
        if rng.percent(40) {
            config.settings.options = OUTPUT.with(Options::clone);
            config.settings.options.set_output_retries(rng.pick(&[None, Some(0), Some(1)]));
        }
        let budgets = Budgets::new(&mut rng);
        if budgets.are_on && rng.percent(70) {
            config.set_budget(random_budget(&mut rng));
        }
        if rng.percent(33) {
            config.set_compactor(Some(random_compactor(&mut rng)));
            let window = 200 + rng.below(2000) as u64;
            let info = provider::ModelInfo::new("model").with_context_window(window).with_output_limit(1);
            config.model = config.model.with_info(info);
        }
        let backups = Backups::random(&mut config, &mut rng);
        let core = AgentCore::new(super::commands::random_history(&mut rng));
        let mut world = Self {
            model: Model::new(core.history(), &config).with_backups(backups),
            kept: Kept::new(super::compare::snapshot(&core, &config)),
            follows: Follows::new(seed),
            budgets,
            core,
            config,
            tools: TOOLS.with(ToolSet::clone),
            clock: 0,
            call: None,
            begun: false,
            hold: None,
            stream: None,
            question: None,
            answer: None,
            tasks: None,
            questions: Questions::default(),
            delay: None,
            records: rng.pick(&[Durable::Turns, Durable::Approvals, Durable::InFlight]),
            at_once: random_bound(seed),
            held: None,
            expiries: Vec::new(),
            retry_after: None,
            watch: None,
            watches: false,
            desk: Desk::default(),
            asks: Asks::default(),
            notices: 0,
            prompts: 0,
            commands: rng.pick(&[4, 12, 40]),
            panics: rng.pick(&[0, 0, 2, 15]),
            is_uncompacted: false,
            friendly: false,
            trace: trace.then(Vec::new),
            rng,
        };
        world.follows.begin(&world.snapshot());
        world.note(|| format!("seed {seed}"));
        world
    }

    pub(super) fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Records an input, if inputs are traced.
    pub(super) fn note(&mut self, words: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(words());
        }
    }

    /// Plays the schedule, and then lets all operations in progress end.
    pub(super) fn play(&mut self) -> Check {
        for _ in 0..4 + self.rng.below(60) {
            self.play_one()?;
        }
        self.friendly = true;
        for _ in 0..3000 {
            if self.core.is_settled() {
                return self.check_end();
            }
            self.outcome()?;
        }
        Err(format!("the core does not become idle: {:?}", self.core.phase()))
    }

    fn play_one(&mut self) -> Check {
        if self.rng.percent(2) {
            self.write_down_and_take_up()?;
        }
        if self.rng.percent(5) {
            self.kept = Kept::new(self.snapshot());
        }
        // While tools run or a question waits, outcomes of ended operations are sent more often, because more kinds of
        // them are possible.
        let busy = self.tasks.is_some() || self.question.is_some();
        if self.rng.percent(if busy { 25 } else { 5 }) {
            return self.ghost();
        }
        if self.rng.percent(self.commands) || !self.has_outcome() {
            return self.command();
        }
        self.outcome()
    }

    /// Passes an input to the core. [`World::perform_all`] performs the effects.
    pub(super) fn feed<T>(
        &mut self,
        input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> T,
    ) -> (T, Vec<AgentEffect>) {
        self.clock += 1;
        let turn_id = u128::from(self.rng.next()) << 64 | u128::from(self.rng.next());
        let (now, turn_id) = (Timestamp(self.clock), move || TurnId::new(turn_id));
        let reason = self.hold;
        let hold = move || reason.map(str::to_owned);
        let mut cx = CoreInputContext {
            now: &move || now,
            config: &self.config,
            tools: &self.tools,
            turn_id: &turn_id,
            max_staged: 3,
            at_once: self.at_once,
            records: self.records,
            replay: &|_| crate::tool::Replay::Safe,
            hold: &hold,
            effects: Vec::new(),
        };
        if let Some(turn) = self.core.phase().turn() {
            self.model.backups.note_sizes(turn, &self.config);
        }
        let options = self.core.phase().origin().map(|origin| &origin.prompt.options);
        self.model.backups.reserve = options.and_then(Options::max_tokens).map_or(1, u64::from);
        let output = input(&mut self.core, &mut cx);
        let effects = cx.effects;
        self.keep_backup();
        (output, effects)
    }

    /// Calls [`World::feed`] and [`World::perform_all`].
    pub(super) fn input(&mut self, input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>)) -> Check {
        let ((), effects) = self.feed(input);
        self.perform_all(effects)
    }

    /// Performs effects as the shell does, and then checks everything.
    pub(super) fn perform_all(&mut self, effects: Vec<AgentEffect>) -> Check {
        self.watches = false;
        for effect in effects {
            self.note(|| format!("      {effect:?}"));
            self.perform(effect)?;
        }
        self.core.check()?;
        ensure!(self.answer.is_none(), "the answer {:?} has no question", self.answer);
        self.desk.check_ended()?;
        self.questions.check_rest()?;
        self.check_hands()?;
        self.model.check_rest(&self.core)?;
        self.asks.check_rest(self.model.is_running())?;
        self.release()?;
        self.kept.compare(&self.snapshot())?;
        self.follow(false)
    }

    pub(super) fn perform(&mut self, effect: AgentEffect) -> Check {
        match effect {
            AgentEffect::Emit(event) => self.emitted(&event)?,
            AgentEffect::Call(op, call) => {
                ensure!(self.call.is_none(), "{call:?} overlaps {:?}", self.call);
                self.check_call(&call)?;
                self.call = Some((op, call));
                self.begun = false;
            }
            AgentEffect::Expire(id, after) => {
                ensure!(after == Duration::from_mins(1), "{id} expires after {after:?}");
                // An early decision may end the pause in the same input.
                ensure!(self.model.status == crate::agent::Status::Paused, "{id} expires without a pause");
                self.expiries.push(id);
            }
            AgentEffect::Abort => {
                self.expiries.clear();
                self.model.pauses.early.clear();
                self.questions.clear();
                self.held = None;
                (self.call, self.stream, self.question, self.tasks, self.delay) =
                    (None, None, None, None, None);
            }
            AgentEffect::DropCall => self.call = None,
            AgentEffect::Open(op) => {
                ensure!(self.stream.is_none(), "two streams at once");
                self.model.opened()?;
                let ((), effects) = self.feed(|core, cx| core.admitted(op, cx));
                effects.into_iter().try_for_each(|effect| self.perform(effect))?;
            }
            AgentEffect::Summarise(op) => {
                ensure!(self.stream.is_none(), "two streams at once");
                self.model.summarises()?;
                let ((), effects) = self.feed(|core, cx| core.admitted(op, cx));
                effects.into_iter().try_for_each(|effect| self.perform(effect))?;
            }
            AgentEffect::Connect(op) => self.connect(op)?,
            AgentEffect::Record | AgentEffect::RecordSoon => {
                ensure!(self.records > Durable::Turns, "a record without a wish for it");
            }
            AgentEffect::Held(effect) => {
                let are_tools = matches!(*effect, AgentEffect::RunTools(..));
                ensure!(self.held.is_none() || are_tools, "{effect:?} overlaps {:?}", self.held);
                match *effect {
                    effect if self.held.is_some() => self.held = Some(effect.after(self.held.take())),
                    // These two effects are never held here: the comparison with the core's state can't see them while
                    // they wait.
                    hidden @ (AgentEffect::Resolve(_) | AgentEffect::Answer(_)) => self.perform(hidden)?,
                    effect if self.rng.percent(50) => self.perform(effect)?,
                    effect => self.held = Some(effect),
                }
            }
            AgentEffect::Return(op) => {
                let early = std::mem::take(&mut self.model.pauses.early);
                self.model.pauses.decided.extend(early);
                let ((), effects) = self.feed(|core, cx| core.paused(op, cx));
                effects.into_iter().try_for_each(|effect| self.perform(effect))?;
            }
            AgentEffect::WatchOn { .. } => return Err("a recovery without a restart".to_owned()),
            AgentEffect::Answer(decision) => {
                ensure!(self.question.take().is_some(), "the answer {decision:?} has no question");
                let given = self.answer.take();
                ensure!(given.as_ref() == Some(&decision), "the answer is {decision:?}, not {given:?}");
            }
            AgentEffect::AnswerTool(id, answer) => self.questions.answered(&id, &answer)?,
            AgentEffect::EndTool(slot) => self.tool_ends(slot)?,
            AgentEffect::RunTools(op, calls) => {
                let (own, mut running) = self.tasks.take().unwrap_or((op, Vec::new()));
                ensure!(own == op, "the tools of two steps run at once");
                self.desk.run(&calls, &self.tools)?;
                running.extend(calls);
                self.tasks = Some((op, running));
            }
            AgentEffect::Delay(op, delay) => {
                ensure!(self.delay.is_none(), "a second delay");
                ensure!(
                    self.retry_after == Some(delay),
                    "the delay is {delay:?}, not {:?}",
                    self.retry_after
                );
                self.delay = Some(op);
            }
            AgentEffect::Watch(limit) => {
                self.watch = limit.map(|limit| (limit, false));
                self.watches = true;
            }
            AgentEffect::FreezeWatch(freeze) => {
                if !freeze {
                    self.expiries.clear();
                }
                if let Some((_, frozen)) = &mut self.watch {
                    *frozen = freeze;
                }
            }
            AgentEffect::Resolve(answer) => {
                let over = !self.model.is_running() || !self.model.queue.staged.is_empty();
                self.asks.resolve(answer, over, self.model.input == super::model::Input::Interrupt)?;
            }
        }
        Ok(())
    }

    /// Processes an emitted event in all models and readers.
    fn emitted(&mut self, event: &Event) -> Check {
        let begins = !self.model.has_turn();
        self.model.event(event)?;
        ensure!(!begins || !self.model.has_turn() || self.watches, "a turn begins without its clock");
        self.desk.event(event, self.model.cuts_tools())?;
        self.asks.event(event);
        if self.model.took_staged {
            self.asks.check_none()?;
        }
        self.kept.apply(event);
        self.follows.event(event);
        self.charge(event);
        self.kept.compare_after_event(&self.model).map_err(|error| format!("after {event:?}: {error}"))
    }

    /// Checks that a callback is called at the right moment, with the right arguments.
    fn check_call(&mut self, call: &CallbackCall) -> Check {
        ensure!(self.model.owed.is_none(), "{call:?} before the previous history is restored");
        match call {
            CallbackCall::PrepareStep => {
                let turn = self.core.phase().turn().ok_or("a step without a turn")?;
                let (used, expected) = (turn.model_in(&self.config), self.model.model_in_use());
                ensure!(Some(used) == expected, "a request to {used}, not {expected:?}");
                let history = turn.conversation();
                history.check_sendable().map_err(|error| format!("the request's history: {error}"))?;
                self.model.prepares(&history)
            }
            CallbackCall::HandleToolUse(tool_use) if self.stream.is_some() => {
                let asked = self.question.as_ref().ok_or("a decision without a question")?;
                ensure!(asked.name == tool_use.name, "the question is about {asked:?}, not {tool_use:?}");
                Ok(())
            }
            CallbackCall::HandleToolUse(tool_use) => {
                ensure!(!self.model.turn()?.is_unrun(), "a tool use of a response that was cut is processed");
                self.desk.asks(tool_use)
            }
            CallbackCall::HandleToolResult(result) => self.desk.reviews(result),
            CallbackCall::HandleTurn(response) => {
                self.desk.concludes(response, &self.tools)?;
                self.model.concludes(response)
            }
            CallbackCall::HandleError(failure) => {
                let next = self.model.next_backup(failure);
                ensure!(next.is_none(), "handle_error is called although a backup model is left: {next:?}");
                self.model.fails(failure);
                Ok(())
            }
            CallbackCall::HandleRecovery(_) => Err("a recovery without a restart".to_owned()),
            CallbackCall::HandleEvent => {
                ensure!(self.notices > 0, "handle_event without an event");
                ensure!(!self.model.has_turn(), "handle_event within a turn");
                Ok(())
            }
        }
    }

    /// Checks that the work in progress is exactly the work for which the phase waits.
    fn check_hands(&self) -> Check {
        let phase = self.core.phase();
        let held_call = match &self.held {
            Some(AgentEffect::Call(op, call)) => Some((*op, call)),
            _ => None,
        };
        let call = self.call.as_ref().map(|(op, call)| (*op, call)).or(held_call);
        let calling = |op: OpNumber| call.is_some_and(|(called, _)| called == op);
        let name = call.map(|(_, call)| call.name());
        let holds = |wanted: fn(&AgentEffect) -> Option<OpNumber>, op: OpNumber| {
            self.held.as_ref().and_then(wanted) == Some(op)
        };
        let connect =
            |effect: &AgentEffect| if let AgentEffect::Connect(op) = effect { Some(*op) } else { None };
        let tools =
            |effect: &AgentEffect| if let AgentEffect::RunTools(op, _) = effect { Some(*op) } else { None };
        let report =
            |effect: &AgentEffect| if let AgentEffect::Return(op) = effect { Some(*op) } else { None };
        let runs = |op: OpNumber, callback: &str| calling(op) && name == Some(callback);
        let (matches, streams, executes, waits) = match phase {
            AgentPhase::Idle => (name.is_none(), false, false, false),
            AgentPhase::Noticing { op, begun, .. }
            | AgentPhase::InTurn { op, stage: AgentTurnStage::Noticing { begun }, .. } => {
                (runs(*op, "handle_event") && self.begun == *begun, false, false, false)
            }
            AgentPhase::InTurn { op, stage, .. } => match stage {
                AgentTurnStage::Noticing { .. } => unreachable!("matched above"),
                AgentTurnStage::Paused { .. } => (name.is_none(), false, false, false),
                AgentTurnStage::Preparing => (runs(*op, "prepare_step"), false, false, false),
                AgentTurnStage::Compacting { .. } => {
                    let streams = self.stream.as_ref().is_some_and(|stream| stream.op == *op);
                    (self.call.is_none() && streams, true, false, false)
                }
                AgentTurnStage::Streaming { question, .. } => {
                    let asked = match question {
                        None => self.call.is_none() && self.question.is_none(),
                        Some(question) if question.paused.is_some() => {
                            self.call.is_none() && self.question.is_some()
                        }
                        Some(question) => runs(question.op, "handle_tool_use"),
                    };
                    let connects = holds(connect, *op);
                    let streams = self.stream.as_ref().is_some_and(|stream| stream.op == *op);
                    (asked && streams != connects, !connects, false, false)
                }
                AgentTurnStage::Deciding { tools } if tools.next().is_none() => {
                    (name.is_none() && holds(report, *op), false, false, false)
                }
                AgentTurnStage::Deciding { .. } => (runs(*op, "handle_tool_use"), false, false, false),
                AgentTurnStage::Executing { slots, questions } => {
                    self.check_places(*op, slots, questions)?;
                    let starts = holds(tools, *op);
                    let running = self.tasks.as_ref().is_some_and(|(run, _)| run == op);
                    (self.call.is_none() && (running || starts), false, running, false)
                }
                AgentTurnStage::Reviewing { .. } => (runs(*op, "handle_tool_result"), false, false, false),
                AgentTurnStage::Concluding { .. } => (runs(*op, "handle_turn"), false, false, false),
                AgentTurnStage::Failing { .. } => (runs(*op, "handle_error"), false, false, false),
                AgentTurnStage::Recovering(_) => return Err("a recovery without a restart".to_owned()),
                AgentTurnStage::Delaying { .. } => {
                    (self.call.is_none() && self.delay == Some(*op), false, false, true)
                }
            },
        };
        let hands = (self.stream.is_some(), self.tasks.is_some(), self.delay.is_some());
        ensure!(
            matches && hands == (streams, executes, waits),
            "{phase:?} does not match the work in progress: {:?}, (stream, tools, delay) {hands:?}",
            self.call
        );
        let waiting = self.core.notices as usize;
        ensure!(waiting == self.notices, "{waiting} application events wait, not {}", self.notices);
        let frozen = self.watch.is_some_and(|(_, frozen)| frozen);
        let paused = self.core.status() == crate::agent::Status::Paused;
        ensure!(!frozen || paused, "the clock is stopped although nothing is paused");
        ensure!(!paused || frozen || self.watch.is_none(), "the clock runs during a pause");
        ensure!(phase.turn().is_some() || self.watch.is_none(), "the clock runs without a turn");
        let limit = self.watch.map(|(limit, _)| limit);
        let wanted = self.model.turn_timeout.filter(|_| phase.turn().is_some());
        ensure!(!self.watches || limit == wanted, "the limit of the clock is {limit:?}, not {wanted:?}");
        Ok(())
    }

    /// Checks that the tools that run, or are about to, are those that the core has started, that they are the first of the
    /// step, and that a tool waits only if others have all places.
    fn check_places(&self, op: OpNumber, slots: &[ToolUseSlot], questions: &[RunningToolQuestion]) -> Check {
        let mut started: Vec<_> =
            self.tasks.iter().flat_map(|(_, calls)| calls).map(|call| call.slot).collect();
        if let Some(AgentEffect::RunTools(held, calls)) = &self.held {
            ensure!(*held == op, "the tools of another step are held");
            started.extend(calls.iter().map(|call| call.slot));
        }
        started.sort_unstable();
        let running = (0..).zip(slots).filter(|(_, slot)| slot.is_running()).map(|(place, _)| place);
        ensure!(running.clone().eq(started.iter().copied()), "the slots {started:?} run, not {slots:?}");
        let place_taken = |place: &usize| questions.iter().all(|question| question.slot != *place);
        let taken = running.filter(place_taken).count();
        let is_queued = |slot: &&ToolUseSlot| slot.queued;
        let in_order = slots.iter().filter(|slot| slot.runs).is_sorted_by_key(|slot| slot.queued);
        ensure!(in_order, "a tool has started before an earlier one: {slots:?}");
        let waits = slots.iter().any(|slot| is_queued(&slot));
        ensure!(!waits || taken >= self.at_once, "a tool waits, but only {taken} tools run: {slots:?}");
        Ok(())
    }

    /// Checks that no work is left after all operations have ended.
    fn check_end(&mut self) -> Check {
        ensure!(self.notices == 0, "{} application events were never handled", self.notices);
        self.asks.check_rest(false)?;
        self.follow(true)?;
        self.model.check_end()
    }
}

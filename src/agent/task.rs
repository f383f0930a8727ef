//! The shell around the core: one tokio task that owns an agent. The shell performs effects and passes their outcomes
//! back to the core, which decides how turns and runs continue.
//!
//! Handle and task are two types. The task holds no sender of its command channel, so dropping the last handle closes
//! the channel, and the agent ends as after `stop`. Callbacks and tools get weak handles. If the commit channel fails,
//! its receiver is gone and a later turn could not be committed. So the agent ends at once and does not interrupt its
//! turn, which stays in flight for the next owner.
//!
//! The commit channel is one of futures-channel, because tokio's bounded channels allocate their slots in advance, even
//! in an idle session.

mod calls;
mod commands;
mod durability;
mod ending;
mod opening;
mod poll;
mod presence;
pub(super) mod spending;
mod trace;
mod work;

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use futures_channel::mpsc::Sender;
use tokio::sync::{mpsc, oneshot};

use super::{
    AgentCallbacks, AgentCommitItem, Config, Durable, Event, RequestConcurrencyLimiter, Response, RunEnd,
    Snapshot, State, WeakAgent,
    command::{AgentCommand, AgentReplyTx, StopAgentCommand},
    core::{AgentCore, AgentEffect, CallbackCall, CoreInputContext},
    delegation::SubAgentSessionOpener,
    phase::{OpNumber, Turn},
};
use crate::{
    actor::{ActorTermination, FairYield},
    message::{History, Timestamp, TurnId},
    provider::{Credentials, Model, Provider, RetryPolicy},
    run::Error,
    subscription::{End, EndReason, EventId, Feed, FeedLimits, SubscriptionStart},
    telemetry::CallerSpan,
    tool::{Extensions, ToolLimits},
};
use calls::drop_contained;
pub(super) use durability::AgentRecordingState;
use presence::UnfinishedToolCalls;
pub(super) use spending::SharedBudgets;
use work::AgentWork;

/// The number of events that may wait for the commit channel before a new run is refused.
const MAX_OUTBOX: usize = 1024;

/// The settings that never change during an agent's life.
pub(super) struct FixedAgentSettings {
    /// The agent's name, for telemetry.
    pub(super) name: Option<Arc<str>>,
    pub(super) extensions: Extensions,
    pub(super) tool_limits: ToolLimits,
    /// The retry policy. If it is `None`, the model's policy applies.
    pub(super) retry: Option<RetryPolicy>,
    pub(super) feed_limits: FeedLimits,
    pub(super) terminate_timeout: Duration,
    /// The number of prompts that may be staged.
    pub(super) max_staged: u16,
    /// The credentials, one for each provider.
    pub(super) credentials: Vec<Credentials>,
    /// Whether only the history's owner may change the history.
    pub(super) owned: bool,
    pub(super) admission: Option<Arc<dyn RequestConcurrencyLimiter>>,
    pub(super) hold: Option<Arc<dyn OwningSession>>,
}

/// The session that owns an agent with a conversation. It decides whether the agent may accept a prompt, and is asked
/// before each prompt, whichever handle sends the prompt.
pub(crate) trait OwningSession: Send + Sync {
    /// Returns the id of the conversation, for telemetry.
    fn conversation(&self) -> &str;

    /// Returns the epoch of the lease with which the session owns the conversation, if it has one.
    fn epoch(&self) -> Option<u64>;

    /// Returns the reason why no prompt may be accepted now, if there is one.
    fn reason(&self) -> Option<Error>;

    /// Returns the manager that runs the sub-agents of this agent as sessions, if there is one.
    fn sub_agents(&self) -> Option<Arc<dyn SubAgentSessionOpener>> {
        None
    }
}

/// The state that handles and subscriptions share with the task. This state outlives the task.
#[derive(Debug, Default)]
pub(super) struct AgentShared {
    pub(super) termination: ActorTermination<Snapshot>,
    pub(super) started: AtomicBool,
    /// The error that later calls of `stop` return, if the deadline passed before the agent had ended.
    pub(super) cut_off: OnceLock<Error>,
}

/// The task of an agent.
pub(super) struct AgentTask {
    core: AgentCore,
    config: Arc<Config>,
    /// The model whose provider owns the API key and headers in the configuration, if there are any.
    secrets_of: Option<Model>,
    setup: Arc<FixedAgentSettings>,
    weak: WeakAgent,
    feed: Feed<Event>,
    commit: Option<CommitChannel>,
    /// The application events that wait for `handle_event`.
    notices: VecDeque<Box<dyn std::any::Any + Send>>,
    asker: Option<oneshot::Sender<Result<Arc<Response>, Error>>>,
    idle_waiters: Vec<AgentReplyTx<()>>,
    instance: Option<ConversationProvider>,
    /// The tool calls that have not ended.
    active_calls: Arc<UnfinishedToolCalls>,
    /// The work in progress. `None` while the agent is idle.
    work: Option<Box<AgentWork>>,
    /// `None` if the agent makes no records.
    durability: Option<Box<AgentRecordingState>>,
    /// The callback that the core has requested and that has not been called yet.
    wanted: Option<RequestedAgentCallback>,
    /// Whether the running callback must be dropped.
    drop_call: bool,
    /// The number of inputs since the agent last yielded to other tasks.
    inputs: u32,
    /// The wait during which other tasks run, if the agent is yielding to them.
    own_wake: Option<Arc<FairYield>>,
    last_words: KilledAgentTaskReporter,
}

/// A requested callback.
struct RequestedAgentCallback {
    op: OpNumber,
    call: CallbackCall,
}

/// The provider instance that serves this conversation.
struct ConversationProvider {
    /// The provider that opened the instance. If `own` is `None`, this provider itself serves all conversations.
    of: Arc<dyn Provider>,
    /// The instance, if the provider created one.
    own: Option<Arc<dyn Provider>>,
}

/// The commit channel and the events that wait for it.
struct CommitChannel {
    sender: Sender<AgentCommitItem>,
    outbox: VecDeque<AgentCommitItem>,
    /// If the next event commits a turn and telemetry is on, the span of the turn's run.
    run: CallerSpan,
}

/// When dropped, reports that the task was killed, unless the task has ended cleanly.
struct KilledAgentTaskReporter(Arc<AgentShared>);

impl Drop for KilledAgentTaskReporter {
    fn drop(&mut self) {
        self.0.termination.seal(End { reason: EndReason::Killed, snapshot: None });
    }
}

/// The reason why `drive` returned.
enum AgentLoopExit {
    /// The core requested a callback.
    Call(RequestedAgentCallback),
    /// The running callback has returned.
    Returned,
    /// The running callback must be dropped.
    Dropped,
    /// The agent ends.
    End(EndReason, Option<StopAgentCommand>),
}

impl AgentTask {
    /// Sets the end of the conversation's last run. An earlier agent of the conversation has performed this run.
    pub(super) fn set_last_run(&mut self, end: Option<RunEnd>) {
        self.core.set_last_run(end);
    }

    /// Makes the task record its turns. With a `core`, the task starts with a turn in flight.
    pub(super) fn keep_records(&mut self, durability: AgentRecordingState, core: Option<AgentCore>) {
        self.durability = Some(Box::new(durability));
        if let Some(core) = core {
            self.core = core;
        }
    }

    pub(super) fn new(
        history: History,
        config: Config,
        setup: FixedAgentSettings,
        weak: WeakAgent,
        shared: Arc<AgentShared>,
        commit: Option<Sender<AgentCommitItem>>,
    ) -> Self {
        Self {
            core: AgentCore::new(history),
            secrets_of: calls::secrets_of(&config.settings.options, &config.model),
            config: Arc::new(config),
            setup: Arc::new(setup),
            weak,
            feed: Feed::new(rand::random()),
            commit: commit.map(|sender| CommitChannel {
                sender,
                outbox: VecDeque::new(),
                run: CallerSpan::default(),
            }),
            notices: VecDeque::new(),
            asker: None,
            idle_waiters: Vec::new(),
            instance: None,
            active_calls: Arc::default(),
            work: None,
            durability: None,
            wanted: None,
            drop_call: false,
            inputs: 0,
            own_wake: None,
            last_words: KilledAgentTaskReporter(shared),
        }
    }

    /// Runs until the agent has ended.
    pub(super) async fn run(
        mut self: Box<Self>,
        mut callbacks: Box<dyn AgentCallbacks>,
        mut commands: mpsc::Receiver<Box<AgentCommand>>,
    ) {
        let (reason, stop) = loop {
            let call = match self.drive(&mut commands, None).await {
                AgentLoopExit::Call(call) => call,
                AgentLoopExit::Returned | AgentLoopExit::Dropped => continue,
                AgentLoopExit::End(reason, stop) => break (reason, stop),
            };
            let (op, callback) = (call.op, call.call.name());
            let mut running = self.call(&mut *callbacks, call);
            let exit = self.drive(&mut commands, Some((op, callback, &mut running))).await;
            drop_contained(running);
            if callback == CallbackCall::HandleEvent.name() && !matches!(exit, AgentLoopExit::Returned) {
                tracing::warn!("an application event is dropped because its handle_event was cut off");
            }
            if let AgentLoopExit::End(reason, stop) = exit {
                break (reason, stop);
            }
        };
        Box::pin(self.finish(&mut *callbacks, commands, reason, stop)).await;
        drop_contained(callbacks);
    }

    /// Like [`step`](Self::step), for the command of a caller. The span of a run that starts is a child of the caller's
    /// span.
    fn step_for<T>(
        &mut self,
        caller: CallerSpan,
        input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> T,
    ) -> T {
        if caller.is_known() {
            self.work().caller = caller;
        }
        let output = self.step(input);
        if let Some(work) = &mut self.work {
            work.caller = CallerSpan::default();
        }
        output
    }

    /// Passes an input to the core and performs the resulting effects.
    fn step<T>(&mut self, input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> T) -> T {
        let none = crate::tool::ToolSet::new();
        let mut cx = CoreInputContext {
            // The empty list of the previous step is reused to keep its allocation.
            effects: self.work.as_mut().map(|work| std::mem::take(&mut work.effects)).unwrap_or_default(),
            now: &Timestamp::now,
            config: &self.config,
            tools: self.work.as_ref().map_or(&none, |work| &work.tools),
            turn_id: &|| TurnId::new(rand::random()),
            max_staged: self.setup.max_staged.into(),
            at_once: self.setup.tool_limits.at_once,
            records: self.durability.as_ref().map_or(Durable::Turns, |durability| durability.level),
            replay: &opening::replay_of,
            hold: &|| Some(self.setup.hold.as_ref()?.reason()?.to_string()),
        };
        let output = input(&mut self.core, &mut cx);
        let effects = cx.effects;
        self.perform_all(effects);
        output
    }

    fn perform_all(&mut self, mut effects: Vec<AgentEffect>) {
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        self.end_input();
        if let Some(spending) = self.work.as_mut().and_then(|work| work.spending.as_mut()) {
            spending.release(self.core.phase());
        }
        #[cfg(debug_assertions)]
        if self.core.history().len() < 64
            && let Err(breach) = self.core.check()
        {
            unreachable!("an invariant of the core is broken: {breach}");
        }
        if self.core.is_at_rest() {
            drop_contained(self.work.take());
        } else {
            self.work().effects = effects;
        }
    }

    fn perform(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Emit(event) => {
                self.trace(&event);
                self.report_committed(&event);
                let reports = self.spending().map(|spending| spending.charge(&event)).unwrap_or_default();
                self.report_above(&event);
                self.emit(event);
                for report in reports {
                    self.emit(Event::Budget(Box::new(report)));
                }
            }
            AgentEffect::Call(op, call) => {
                self.wanted = Some(RequestedAgentCallback { op, call });
            }
            AgentEffect::Abort => {
                drop_contained(self.wanted.take());
                self.drop_call = true;
                if let Some(work) = &mut self.work {
                    work.abort();
                }
            }
            AgentEffect::DropCall => {
                drop_contained(self.wanted.take());
                self.drop_call = true;
            }
            AgentEffect::Record => self.record(),
            AgentEffect::RecordSoon => self.record_soon(),
            AgentEffect::Held(effect) => self.hold_back(*effect),
            AgentEffect::Return(op) => self.step(|core, cx| core.paused(op, cx)),
            AgentEffect::Open(op) => self.open(op),
            AgentEffect::Summarise(op) => self.summarise(op),
            AgentEffect::Connect(op) => self.connect(op),
            AgentEffect::Answer(decision) => {
                if let Some(question) = self.work().question.take() {
                    // If the receiver was dropped, the provider has withdrawn its question.
                    let _ = question.send(decision);
                }
            }
            AgentEffect::AnswerTool(id, answer) => {
                if let Some(tasks) = self.work().tasks.as_mut() {
                    tasks.answer(&id, answer);
                }
            }
            AgentEffect::EndTool(slot) => {
                if let Some(tasks) = self.work().tasks.as_mut() {
                    tasks.end(slot);
                }
            }
            AgentEffect::RunTools(op, calls) => {
                if !self.is_cut_off() {
                    self.run_tools(op, calls);
                }
            }
            AgentEffect::Delay(op, delay) => self.work().delay(op, delay),
            AgentEffect::Watch(limit) => {
                if limit.is_some() || self.work.is_some() {
                    self.work().watch(limit);
                }
            }
            AgentEffect::WatchOn { limit, spent } => self.work().watch_on(limit, spent),
            AgentEffect::FreezeWatch(frozen) => {
                let work = self.work();
                work.freeze_watch(frozen);
                if frozen {
                    // While a person decides about the tool of a request in flight, other agents may use the permit.
                    work.give_permit_back();
                }
            }
            AgentEffect::Expire(tool_use, after) => self.work().expire(tool_use, after),
            AgentEffect::Resolve(response) => {
                if let Some(asker) = self.asker.take() {
                    let _ = asker.send(response);
                }
            }
        }
    }

    fn work(&mut self) -> &mut AgentWork {
        self.work.get_or_insert_default()
    }

    fn emit(&mut self, event: Event) {
        if !self.feed.is_listened_to() && self.commit.is_none() {
            return self.feed.skip();
        }
        let weight = if self.feed.is_listened_to() { event.weight() } else { 0 };
        let event = self.feed.publish(Arc::new(event), weight);
        if let Some(commit) = &mut self.commit {
            let turn = self.core.phase().turn().filter(|_| matches!(*event.event, Event::Message { .. }));
            let settings =
                turn.map(|turn| &turn.origin.prompt).filter(|prompt| prompt.has_settings()).cloned();
            let record = self.durability.as_mut().and_then(|durability| durability.take_loose());
            commit.outbox.push_back(AgentCommitItem {
                event: Some(event),
                config: Arc::clone(&self.config),
                run: std::mem::take(&mut commit.run),
                settings,
                record,
            });
        }
    }

    /// Returns the point in the stream of events at which a subscription begins: `after` if all events after it are
    /// still buffered, otherwise the last event.
    fn attach(&mut self, after: Option<EventId>) -> SubscriptionStart<Snapshot, Event> {
        let limits = self.setup.feed_limits;
        if let Some(attachment) = after.and_then(|after| self.feed.replay(limits, after)) {
            return attachment;
        }
        let snapshot = self.snapshot();
        self.feed.join(limits, snapshot)
    }

    /// Returns whether events wait for the commit channel.
    fn is_blocked(&self) -> bool {
        self.commit.as_ref().is_some_and(|commit| !commit.outbox.is_empty())
    }

    fn state(&self) -> State {
        State {
            config: Arc::clone(&self.config),
            history: self.core.history().clone(),
            status: self.core.status(),
            step: self.core.step(),
            usage: self.core.phase().turn().map(Turn::spent).unwrap_or_default(),
            turn: self.core.phase().turn().map(|turn| turn.id),
            extensions: self.setup.extensions.clone(),
            agent: self.weak.clone(),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let view = self.config.view(self.core.history().clone());
        Snapshot { budget: self.budget_report(), ..self.core.snapshot(self.feed.last(), view) }
    }

    /// Wakes the callers of `wait_until_idle` if nothing is in progress or queued.
    fn wake_idle_waiters(&mut self) {
        if !self.idle_waiters.is_empty() && self.is_settled() {
            for waiter in self.idle_waiters.drain(..) {
                let _ = waiter.send(());
            }
        }
    }
}

//! The shell around the core: one tokio task that owns a session. It takes events, commands and outcomes of writes,
//! performs what the core wants done, and decides nothing.

mod commands;
mod ending;
mod idle;
pub(super) mod writing;

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};

use super::{
    Notice, SessionError, SessionEvent, SessionSnapshot, Watcher,
    command::{Command, Stop, Unsaved},
    core::{Core, Effect, Env},
    event,
    tenure::Tenure,
    watcher,
};
use crate::{
    actor::{OwnWake, Signal, Termination, passed},
    agent::{Agent, AgentError, Delivery, HistoryOwner, Hold, Snapshot, Status, WeakAgent},
    store::{ConversationId, Owner, Store, StoreError, WriteId},
    subscription::{End, EndReason, EventId, Feed, FeedLimits},
};

/// Events of the agent that may wait for the session.
pub(super) const DELIVERIES: usize = 32;

/// Commands served in a row before another input gets its turn.
const COMMANDS_IN_A_ROW: u8 = 32;

/// What does not change in a session's life.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setup {
    /// Who opens conversations; each session is an owner of its own if unset.
    pub(super) owner: Option<Arc<Owner>>,
    pub(super) idle_shutdown: Option<Duration>,
    pub(super) unsaved_limit: usize,
    pub(super) write_timeout: Duration,
    pub(super) end_timeout: Duration,
    pub(super) feed_limits: FeedLimits,
}

impl Setup {
    pub(super) fn owner(&self) -> Owner {
        self.owner.as_deref().cloned().unwrap_or_else(Owner::unique)
    }

    /// In whose name this write creates a conversation: the same each time that it is tried.
    pub(super) fn creator(&self, write: WriteId) -> Owner {
        let unique = || Owner::new(format!("{}-{write}", std::process::id()));
        self.owner.as_deref().cloned().unwrap_or_else(unique)
    }
}

/// What handles, guards and subscriptions share with the task, and what is left of it afterwards.
pub(super) struct SessionShared {
    pub(super) id: ConversationId,
    pub(super) setup: Arc<Setup>,
    /// Set when the agent is there: handles go to it directly where the session has no say.
    pub(super) agent: OnceLock<WeakAgent>,
    pub(super) termination: Termination<SessionSnapshot>,
    pub(super) started: AtomicBool,
    pub(super) watcher: Option<Arc<dyn Watcher>>,
    /// Whether nothing new is taken since all is being shut down.
    pub(super) is_draining: AtomicBool,
    /// Whether new prompts are refused since the store is behind.
    pub(super) is_behind: AtomicBool,
    /// Whether the model has answered the last request of the run, and the next one is not prepared yet.
    pub(super) is_between_requests: AtomicBool,
    /// What was not in the store at the end, if anything was not.
    pub(super) left_unsaved: OnceLock<Box<Unsaved>>,
    /// The tools that still ran at the end, if there were any.
    pub(super) left_running: OnceLock<Box<AgentError>>,
    pub(super) controllers: AtomicUsize,
    /// Tells the task that the last controller has left.
    pub(super) left: Signal,
}

impl SessionShared {
    /// Returns why the session takes nothing new now, if it does not.
    pub(super) fn refusal(&self) -> Option<SessionError> {
        if self.termination.end().is_some() {
            None
        } else if self.is_draining.load(Ordering::Acquire) {
            Some(SessionError::Draining)
        } else {
            let is_behind = self.is_behind.load(Ordering::Acquire);
            is_behind.then(|| SessionError::StoreBehind { limit: self.setup.unsaved_limit })
        }
    }
}

impl Hold for SessionShared {
    fn reason(&self) -> Option<Arc<dyn std::error::Error + Send + Sync>> {
        Some(Arc::new(self.refusal()?))
    }
}

/// What the agent tells: every event, in order. It takes no room while nothing waits.
pub(super) type Deliveries = futures_channel::mpsc::Receiver<Delivery>;

/// A session's task.
pub(super) struct Task {
    pub(super) core: Core,
    pub(super) agent: Agent,
    pub(super) owner: HistoryOwner,
    pub(super) deliveries: Deliveries,
    pub(super) store: Arc<dyn Store>,
    /// That the conversation is this session's, where the store knows owners.
    pub(super) tenure: Option<Tenure>,
    pub(super) feed: Feed<SessionEvent>,
    pub(super) shared: Arc<SessionShared>,
    /// The write that is under way.
    pub(super) attempts: Option<Box<writing::Attempts>>,
    /// The moment to repeat a write that failed or does not answer.
    pub(super) retry: Option<Pin<Box<Sleep>>>,
    /// The deadline of the end in progress.
    pub(super) ends_by: Option<Instant>,
    /// When the session ends because nobody wants it.
    pub(super) idle: Option<Pin<Box<Sleep>>>,
    /// Whether the session's idle shutdown was not begun yet.
    pub(super) is_fresh: bool,
    /// The session would have ended, had it not had something to save.
    pub(super) idle_when_saved: bool,
    /// The session was asked to sleep and refused. The watcher is notified when another attempt is worth while.
    pub(super) has_refused_sleep: bool,
    /// The session waits for its idle agent to handle its application events.
    pub(super) settling: Option<idle::Settling>,
    pub(super) flushes: Vec<Flush>,
    /// Commands served since the last input of another kind.
    pub(super) commands_in_a_row: u8,
    /// Room for the effects of the next step, while the agent is busy.
    pub(super) effects: Vec<Effect>,
    /// Dropped with the rest, whatever ends the task.
    pub(super) _last_words: LastWords,
}

/// Leaves word that the task was killed, unless it ended in order.
pub(super) struct LastWords(pub(super) Arc<SessionShared>);

impl Drop for LastWords {
    fn drop(&mut self) {
        self.0.termination.seal(End { reason: EndReason::Killed, snapshot: None });
        if let (Some(watcher), Some(end)) = (&self.0.watcher, self.0.termination.end()) {
            watcher::tell_of(&**watcher, Notice::Ended(&end.reason));
        }
    }
}

/// A caller of `flush` that waits until everything that was unsaved is in the store.
pub(super) struct Flush {
    wanted: u64,
    until: Option<Instant>,
    reply: super::command::Reply<()>,
}

/// Why a session ends, and who stopped it.
type Exit = (EndReason, Option<Stop>);

/// What the task takes next.
enum Input {
    Command(Option<Box<Command>>),
    Written(writing::Written),
    Lost(StoreError),
    Delivery(Option<Delivery>),
    Left,
    Retry,
    IdleTimeOver,
    Settled,
}

impl Task {
    /// Runs until the session ends. Boxed, or an idle session would hold it twice.
    pub(super) async fn run(mut self: Box<Self>, mut commands: mpsc::Receiver<Box<Command>>) {
        self.consider_idle_shutdown();
        let (reason, stop) = loop {
            if let Some(reason) = self.core.loss() {
                break (reason.clone(), None);
            }
            if self.feed.is_flooded() {
                OwnWake::begin().over().await;
            }
            if let Some(exit) = self.turn(&mut commands).await {
                break exit;
            }
        };
        Box::pin(self.finish(commands, reason, stop)).await;
    }

    /// Takes one input.
    async fn turn(&mut self, commands: &mut mpsc::Receiver<Box<Command>>) -> Option<Exit> {
        let input = if self.commands_in_a_row < COMMANDS_IN_A_ROW {
            tokio::select! {
                biased;
                command = commands.recv() => Input::Command(command),
                input = self.other_input() => input,
            }
        } else {
            self.commands_in_a_row = 0;
            tokio::select! {
                biased;
                input = self.other_input() => input,
                command = commands.recv() => Input::Command(command),
            }
        };
        if matches!(input, Input::Command(_)) {
            self.commands_in_a_row += 1;
        } else {
            self.commands_in_a_row = 0;
        }
        match input {
            Input::Command(Some(command)) => return Box::pin(self.serve(*command)).await,
            Input::Command(None) => return Some((EndReason::HandlesDropped, None)),
            Input::Written(outcome) => self.written(outcome),
            Input::Lost(error) => self.step(|core, _, effects| core.lost(&error, effects)),
            Input::Delivery(Some(delivery)) => self.take_all(delivery),
            Input::Delivery(None) => return Some((EndReason::AgentEnded, None)),
            Input::Left => {
                self.consider_idle_shutdown();
                if let Some(watcher) = &self.shared.watcher {
                    watcher::tell_of(&**watcher, Notice::Left);
                }
            }
            Input::Retry => self.retry(),
            Input::IdleTimeOver => {
                if Box::pin(self.is_unwanted()).await {
                    return Some((EndReason::Idle, None));
                }
            }
            Input::Settled => {
                self.settling = None;
                if self.idle.is_none() {
                    self.consider_idle_shutdown();
                }
                self.tell_settled();
            }
        }
        None
    }

    /// The next input that is not a command. The agent's events come last but one, since a fast stream always has one ready.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    async fn other_input(&mut self) -> Input {
        tokio::select! {
            biased;
            outcome = writing::outcome(&mut self.attempts) => Input::Written(outcome),
            () = self.shared.left.given() => Input::Left,
            error = lost(self.tenure.as_mut()) => Input::Lost(error),
            () = passed(&mut self.retry) => Input::Retry,
            delivery = self.deliveries.next() => Input::Delivery(delivery),
            () = passed(&mut self.idle) => Input::IdleTimeOver,
            () = passed(&mut self.settling) => Input::Settled,
        }
    }

    /// Takes the agent's next event.
    pub(super) fn take(&mut self, delivery: Delivery) {
        let Delivery { event, config, settings } = delivery;
        if let Some(is_between_requests) = event::is_between_requests(&event.event) {
            self.shared.is_between_requests.store(is_between_requests, Ordering::Release);
        }
        self.step(|core, env, effects| {
            if let Some(settings) = settings {
                core.prompted(&settings);
            }
            core.event(event.id, &event.event, &config, env, effects);
        });
    }

    /// Takes the agent's next event, and those that are there already, as many as the agent tells at once at most.
    fn take_all(&mut self, first: Delivery) {
        self.take(first);
        for _ in 0..DELIVERIES {
            match self.deliveries.next().now_or_never() {
                Some(Some(delivery)) => self.take(delivery),
                // The end of the channel is come to again.
                Some(None) | None => break,
            }
        }
    }

    /// Takes what the agent has told up to `last`.
    async fn take_until(&mut self, last: EventId) -> Result<(), AgentError> {
        while self.core.seen().number < last.number {
            match self.deliveries.next().await {
                Some(delivery) => self.take(delivery),
                None => return Err(AgentError::Stopped(EndReason::Killed)),
            }
            if self.feed.is_flooded() {
                OwnWake::begin().over().await;
            }
        }
        Ok(())
    }

    /// Comes to where the agent is, and tells what it is doing there.
    async fn catch_up(&mut self) -> Result<Status, AgentError> {
        let moment = self.owner.moment().await?;
        self.take_until(moment.last).await?;
        Ok(moment.status)
    }

    /// The agent and the session at one moment.
    async fn snapshot(&mut self) -> Result<SessionSnapshot, AgentError> {
        let agent = self.agent.snapshot().await?;
        self.take_until(agent.last).await?;
        Ok(self.snapshot_with(agent))
    }

    fn snapshot_with(&self, agent: Snapshot) -> SessionSnapshot {
        SessionSnapshot {
            last: self.feed.last(),
            id: self.shared.id.clone(),
            title: self.core.title().cloned(),
            tree: self.core.tree().clone(),
            agent,
            unsaved: self.core.unsaved(),
            store: self.core.report().cloned(),
        }
    }

    /// Gives the core an input and performs what it wants done.
    pub(super) fn step<T>(&mut self, input: impl FnOnce(&mut Core, &Env<'_>, &mut Vec<Effect>) -> T) -> T {
        let mut effects = std::mem::take(&mut self.effects);
        let env = Env {
            write_id: &WriteId::generate,
            unsaved_limit: self.shared.setup.unsaved_limit,
            left: self.time_left(),
        };
        let output = input(&mut self.core, &env, &mut effects);
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        if self.core.status() != Status::Idle {
            self.effects = effects;
        }
        #[cfg(debug_assertions)]
        if let Err(breach) = self.core.check() {
            unreachable!("an invariant of the core is broken: {breach}");
        }
        output
    }

    fn perform(&mut self, effect: Effect) {
        if let (Effect::Emit(event), Some(watcher)) = (&effect, &self.shared.watcher) {
            watcher::tell(&**watcher, event);
        }
        match effect {
            Effect::Emit(event) if self.feed.is_listened_to() => {
                let weight = event.weight();
                self.feed.publish(Arc::new(event), weight);
            }
            Effect::Emit(_) => self.feed.skip(),
            Effect::Write(job) => self.begin_write(job),
            Effect::RetryIn(wait) => {
                let again = Box::pin(sleep(wait));
                // A later flush must not postpone the attempt that an earlier flush waits for.
                if self.retry.as_ref().is_none_or(|retry| retry.deadline() > again.deadline()) {
                    self.retry = Some(again);
                }
            }
            Effect::Behind(behind) => self.shared.is_behind.store(behind, Ordering::Release),
            Effect::Idle => self.consider_idle_shutdown(),
        }
    }

    /// The time left until the nearest deadline of an end or a flush.
    fn time_left(&self) -> Option<Duration> {
        if self.flushes.is_empty() && self.ends_by.is_none() {
            return None;
        }
        let flushes =
            self.flushes.iter().filter(|flush| !flush.reply.is_closed()).filter_map(|flush| flush.until);
        let now = Instant::now();
        let left = |until: Instant| until.checked_duration_since(now).filter(|left| !left.is_zero());
        flushes.chain(self.ends_by).filter_map(left).min()
    }

    fn is_saved(&self) -> bool {
        self.core.is_safe(self.core.wanted())
    }

    fn is_controlled(&self) -> bool {
        self.shared.controllers.load(Ordering::Acquire) > 0
    }
}

/// Waits until the conversation is lost to another; for ever where it can't be.
async fn lost(tenure: Option<&mut Tenure>) -> StoreError {
    match tenure {
        Some(tenure) => tenure.lost().await,
        None => std::future::pending().await,
    }
}

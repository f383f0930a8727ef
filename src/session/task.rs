//! The task of a session. It receives events, commands and outcomes of writes, passes them to the core, and performs
//! the core's effects. The task makes no decisions itself.
//!
//! A command that reads the conversation first catches up: it asks the agent for its current event and record, and
//! processes everything up to them. So the turn whose response `ask` has returned is part of the next tree, snapshot or
//! flush. The agent answers while it waits for room in the commit channel, so this can't deadlock. Commands that need
//! nothing from the session go to the agent directly. A controller holds a sender of the command channel, and an
//! observer does not.

mod commands;
mod ending;
mod idle;
mod leaving;
mod replies;
pub(super) mod writing;

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep},
};

use super::{
    SessionEvent, SessionNotice, SessionSnapshot,
    command::{SessionTaskCommand, StopSessionCommand},
    core::{SessionCore, SessionCoreEnv, SessionEffect},
    event,
    shared::{SessionShared, SessionTaskKillGuard},
    tenure::ConversationLease,
    watcher,
};
use crate::{
    actor::{FairYield, passed},
    agent::{Agent, AgentCommitItem, Event, HistoryChangeRight, Snapshot, Status},
    run::Error,
    store::{Store, StoreError, WriteId},
    subscription::{EndReason, EventId, Feed},
};

/// The number of events that the agent may emit before the session has to process some of them.
pub(super) const DELIVERIES: usize = 32;

/// The maximum number of commands that are executed in a row before another input has priority.
const COMMANDS_IN_A_ROW: u8 = 32;

/// The receiver of the agent's events, in order. An empty channel of this type holds no buffer.
pub(super) type CommitReceiver = futures_channel::mpsc::Receiver<AgentCommitItem>;

/// A session's task.
pub(super) struct SessionTask {
    pub(super) core: SessionCore,
    pub(super) agent: Agent,
    pub(super) owner: HistoryChangeRight,
    pub(super) deliveries: CommitReceiver,
    pub(super) store: Arc<dyn Store>,
    /// The session's ownership of the conversation, if the store supports owners.
    pub(super) tenure: Option<ConversationLease>,
    pub(super) feed: Feed<SessionEvent>,
    /// The last event of the previous life, if a reader that has seen this event can continue without a snapshot.
    pub(super) mark: Option<EventId>,
    pub(super) shared: Arc<SessionShared>,
    /// The attempts at the write in flight.
    pub(super) attempts: writing::InFlightWriteAttempts,
    /// The timer for repeating a write that has failed or has no result yet.
    pub(super) retry: Option<Pin<Box<Sleep>>>,
    /// The deadline for ending the session, if it is ending.
    pub(super) ends_by: Option<Instant>,
    /// The timer of the idle shutdown.
    pub(super) idle: Option<Pin<Box<Sleep>>>,
    /// Whether the session is new, so that the time of the idle shutdown has not started yet.
    pub(super) is_fresh: bool,
    /// Whether the idle time is over but the session continues because something is unsaved.
    pub(super) idle_when_saved: bool,
    /// Whether the session has refused to sleep. If so, its watcher is notified when another attempt may succeed.
    pub(super) has_refused_sleep: bool,
    /// The future that waits until the idle agent has processed its application events.
    pub(super) settling: Option<idle::IdleSettlingFuture>,
    pub(super) flushes: Vec<replies::CallWaitingForStore>,
    /// The number of commands that were executed since the last input of another kind.
    pub(super) commands_in_a_row: u8,
    /// The buffer for the effects of the next step. Its memory is kept while the agent is busy.
    pub(super) effects: Vec<SessionEffect>,
    /// Reports the end of the session when the task is dropped, whatever the reason.
    pub(super) _last_words: SessionTaskKillGuard,
}

/// The reason why a session ends and, if a call of `stop` caused the end, that call.
type SessionExit = (EndReason, Option<StopSessionCommand>);

/// The next input of the task.
enum SessionTaskInput {
    Command(Option<Box<SessionTaskCommand>>),
    Written(writing::WriteAttemptResult),
    Lost(StoreError),
    Delivery(Option<AgentCommitItem>),
    Left,
    Retry,
    IdleTimeOver,
    Settled,
}

impl SessionTask {
    /// Runs until the session ends. The task is boxed to save memory. Otherwise, the future of an idle session would
    /// contain the task twice.
    pub(super) async fn run(mut self: Box<Self>, mut commands: mpsc::Receiver<Box<SessionTaskCommand>>) {
        self.take_up().await;
        let (reason, stop) = loop {
            if let Some(reason) = self.core.loss() {
                break (reason.clone(), None);
            }
            if self.feed.is_flooded() {
                FairYield::begin().over().await;
            }
            if let Some(exit) = self.turn(&mut commands).await {
                break exit;
            }
        };
        // Boxed, like other rare futures here, because an idle session holds the memory for this future's largest part.
        Box::pin(self.finish(commands, reason, stop)).await;
    }

    /// Starts the idle time, saves the changes that were made at the start, and continues the turn in flight of a
    /// loaded conversation, if there is one.
    async fn take_up(&mut self) {
        self.consider_idle_shutdown();
        if !self.is_saved() {
            self.step(SessionCore::save);
        }
        if self.core.is_recorded() {
            if let Some(watcher) = &self.shared.watcher {
                watcher::notify(&**watcher, SessionNotice::Status(self.core.status()));
            }
            // An error means that the agent has ended, which is noticed later.
            let _ = Box::pin(self.owner.take_up()).await;
        }
    }

    /// Waits for one input and processes it. Returns the reason of the end if the session has to end.
    async fn turn(&mut self, commands: &mut mpsc::Receiver<Box<SessionTaskCommand>>) -> Option<SessionExit> {
        let input = if self.commands_in_a_row < COMMANDS_IN_A_ROW {
            tokio::select! {
                biased;
                command = commands.recv() => SessionTaskInput::Command(command),
                input = self.other_input() => input,
            }
        } else {
            self.commands_in_a_row = 0;
            tokio::select! {
                biased;
                input = self.other_input() => input,
                command = commands.recv() => SessionTaskInput::Command(command),
            }
        };
        if matches!(input, SessionTaskInput::Command(_)) {
            self.commands_in_a_row += 1;
        } else {
            self.commands_in_a_row = 0;
        }
        match input {
            SessionTaskInput::Command(Some(command)) => return Box::pin(self.serve(command)).await,
            SessionTaskInput::Command(None) => return Some((EndReason::HandlesDropped, None)),
            SessionTaskInput::Written(outcome) => self.written(outcome),
            SessionTaskInput::Lost(error) => self.step(|core, _, effects| core.lost(&error, effects)),
            SessionTaskInput::Delivery(Some(delivery)) => self.take_all(delivery),
            SessionTaskInput::Delivery(None) => return Some((EndReason::AgentEnded, None)),
            SessionTaskInput::Left => {
                self.consider_idle_shutdown();
                if let Some(watcher) = &self.shared.watcher {
                    watcher::notify(&**watcher, SessionNotice::Left);
                }
            }
            SessionTaskInput::Retry => self.retry(),
            SessionTaskInput::IdleTimeOver => {
                if Box::pin(self.is_unwanted()).await {
                    return Some((EndReason::Idle, None));
                }
            }
            SessionTaskInput::Settled => {
                self.settling = None;
                if self.idle.is_none() {
                    self.consider_idle_shutdown();
                }
                self.notify_settled();
            }
        }
        None
    }

    /// Returns the next input that is not a command. The agent's events are polled after most other inputs, because a
    /// fast stream always has an event ready.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no input is lost.
    async fn other_input(&mut self) -> SessionTaskInput {
        tokio::select! {
            biased;
            outcome = self.attempts.outcome() => SessionTaskInput::Written(outcome),
            () = self.shared.left.given() => SessionTaskInput::Left,
            error = lost(self.tenure.as_mut()) => SessionTaskInput::Lost(error),
            () = passed(&mut self.retry) => SessionTaskInput::Retry,
            delivery = self.deliveries.next() => SessionTaskInput::Delivery(delivery),
            () = passed(&mut self.idle) => SessionTaskInput::IdleTimeOver,
            () = passed(&mut self.settling) => SessionTaskInput::Settled,
        }
    }

    /// Processes the agent's next event, or a record of the turn in flight that comes without an event.
    pub(super) fn take(&mut self, delivery: AgentCommitItem) {
        let AgentCommitItem { event, config, run, settings, record } = delivery;
        let is_between = event.as_ref().and_then(|event| event::is_between_requests(&event.event));
        if let Some(is_between_requests) = is_between {
            self.shared.is_between_requests.store(is_between_requests, Ordering::Release);
        }
        if let Some(Event::Status { pauses, .. }) = event.as_ref().map(|event| &*event.event) {
            let runs_no_tool = !pauses.is_empty() && !pauses.iter().any(|pause| pause.is_of_running_tool());
            self.shared.runs_no_tool.store(runs_no_tool, Ordering::Release);
            let waits_below = pauses.iter().any(|pause| pause.sub_agent.is_some());
            self.shared.waits_below.store(waits_below, Ordering::Release);
        }
        let has_tool_ended =
            event.as_ref().is_some_and(|event| matches!(*event.event, Event::ToolEnd { .. }));
        let has_span = run.is_known();
        if has_span {
            self.attempts.traces.committed(&run, self.shared.id.as_str());
        }
        // The span of the run is entered, so that the watcher finds it as the current span.
        let in_run = run.enter();
        self.step(|core, env, effects| {
            if let Some(settings) = settings {
                core.prompted(&settings);
            }
            core.delivered(event.as_ref(), record.as_deref(), &config, env, effects);
        });
        drop(in_run);
        if has_tool_ended {
            // All tools that still run may wait for sub-agents, and these for decisions.
            self.notify_settled();
        }
        if has_span && self.is_saved() {
            self.close_traces();
        }
    }

    /// Processes one event of the agent and the following events that are already available. Their number is limited to
    /// what the agent can send at once.
    fn take_all(&mut self, first: AgentCommitItem) {
        self.take(first);
        for _ in 0..DELIVERIES {
            match self.deliveries.next().now_or_never() {
                Some(Some(delivery)) => self.take(delivery),
                // If the channel has ended, the next poll of the channel reports this.
                Some(None) | None => break,
            }
        }
    }

    /// Processes the agent's events up to `last`.
    async fn take_until(&mut self, last: EventId) -> Result<(), Error> {
        self.take_while(|core| core.seen().number < last.number).await
    }

    /// Processes the agent's events and records as long as the condition is met.
    async fn take_while(&mut self, is_behind: impl Fn(&SessionCore) -> bool) -> Result<(), Error> {
        while is_behind(&self.core) {
            match self.deliveries.next().await {
                Some(delivery) => self.take(delivery),
                None => return Err(Error::ended("agent", &EndReason::Killed)),
            }
            if self.feed.is_flooded() {
                FairYield::begin().over().await;
            }
        }
        Ok(())
    }

    /// Processes all events that the agent has emitted so far and all records that it has made so far. Returns the
    /// agent's status after them.
    async fn catch_up(&mut self) -> Result<Status, Error> {
        let moment = self.owner.position().await?;
        self.take_until(moment.last).await?;
        // The last record may come after the last event, in a delivery without an event.
        self.take_while(|core| core.last_number() < moment.record).await?;
        Ok(moment.status)
    }

    /// Returns a snapshot in which the agent's state and the session's state are from the same moment.
    async fn snapshot(&mut self) -> Result<SessionSnapshot, Error> {
        let agent = self.agent.snapshot().await?;
        self.take_until(agent.last).await?;
        Ok(self.snapshot_with(agent))
    }

    fn snapshot_with(&self, agent: Snapshot) -> SessionSnapshot {
        SessionSnapshot {
            last: self.feed.last(),
            id: self.shared.id.clone(),
            title: self.core.title().cloned(),
            labels: self.core.labels().clone(),
            used: self.core.used(),
            tree: self.core.tree().clone(),
            from: None,
            agent,
            unsaved: self.core.unsaved(),
            store: self.core.report().cloned(),
        }
    }

    /// Passes an input to the core and performs its effects.
    pub(super) fn step<T>(
        &mut self,
        input: impl FnOnce(&mut SessionCore, &SessionCoreEnv<'_>, &mut Vec<SessionEffect>) -> T,
    ) -> T {
        let mut effects = std::mem::take(&mut self.effects);
        let env = SessionCoreEnv {
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

    fn perform(&mut self, effect: SessionEffect) {
        if let (SessionEffect::Emit(event), Some(watcher)) = (&effect, &self.shared.watcher) {
            watcher::notify_event(&**watcher, event);
        }
        match effect {
            SessionEffect::Emit(event) if self.feed.is_listened_to() => {
                let weight = event.weight();
                self.feed.publish(Arc::new(event), weight);
            }
            SessionEffect::Emit(_) => self.feed.skip(),
            SessionEffect::Write(job) => self.begin_write(job),
            SessionEffect::RetryIn(wait) => {
                let again = Box::pin(sleep(wait));
                // A later flush may start an attempt earlier than planned, but must not postpone the attempt for which
                // an earlier flush is waiting.
                if self.retry.as_ref().is_none_or(|retry| retry.deadline() > again.deadline()) {
                    self.retry = Some(again);
                }
            }
            SessionEffect::Behind(behind) => self.shared.is_behind.store(behind, Ordering::Release),
            SessionEffect::AtRest => self.consider_idle_shutdown(),
            SessionEffect::Written(number) => self.owner.written(number),
            SessionEffect::PromptsSettled => self.find_outcomes(),
        }
    }

    /// Returns the time left until the nearest deadline of the end or of a flush, if one is in progress.
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

/// Waits until the conversation is lost, for example to another owner. If the session has no tenure, waits forever.
async fn lost(tenure: Option<&mut ConversationLease>) -> StoreError {
    match tenure {
        Some(tenure) => tenure.lost().await,
        None => std::future::pending().await,
    }
}

//! The start of a session: its agent, its channels, and the take-up of a turn in flight.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::mpsc;

use super::{
    Session, SessionBuilder, WeakSession,
    core::SessionCore,
    life,
    shared::{SessionShared, SessionTaskKillGuard},
    task::{
        CommitReceiver, DELIVERIES, SessionTask,
        writing::{InFlightWriteAttempts, contained},
    },
    tenure::ConversationLease,
};
use crate::{
    actor::{ActorTermination, TaskWakeSignal},
    agent::{Agent, Config, HistoryChangeRight, LatestEventAndStatus, OwningSession, Status},
    run::{Error, TurnRecord},
    store::{Change, ConversationId, Store},
    subscription::{EventId, Feed},
};

/// The capacity of a session's command channel. Tokio allocates the slots of a channel in blocks of this size.
const COMMANDS: usize = 32;

/// A session whose task has not been started yet.
pub(super) struct UnstartedSession {
    pub(super) session: Session,
    receiver: mpsc::Receiver<Box<super::command::SessionTaskCommand>>,
    pub(super) agent: Agent,
    pub(super) owner: HistoryChangeRight,
    deliveries: CommitReceiver,
    pub(super) core: SessionCore,
    store: Arc<dyn Store>,
    pub(super) tenure: Option<ConversationLease>,
    /// The number of this life of the session.
    pub(super) life: u64,
    /// The last event of the previous life, if a reader that has seen this event can continue without a snapshot.
    pub(super) mark: Option<EventId>,
    /// The status of the agent.
    pub(super) status: Status,
}

impl UnstartedSession {
    /// Takes over the turn in flight, and stores the number of its restarts if the number has changed. If this write
    /// fails, ends the agent.
    pub(super) async fn take_up(&mut self, record: &TurnRecord, lives: u32) -> Result<(), Error> {
        self.core.take_up(record, self.status);
        let Some((write, commit)) = self.core.restart(lives) else {
            return Ok(());
        };
        let (store, id) = (Arc::clone(&self.store), self.session.shared.id.clone());
        let lease = self.tenure.as_ref().map(|tenure| tenure.held().lease()).transpose();
        let written = contained(tracing::Span::current(), async move {
            let write = lease?.map_or(write, |lease| write.under(&lease));
            store.write(&id, &write, &Change::Commit(commit)).await
        });
        match written.await {
            Ok(version) => self.core.rewritten(version),
            Err(error) => {
                let _ = self.agent.stop(self.session.shared.setup.end_timeout).await;
                return Err(error.into());
            }
        }
        Ok(())
    }

    pub(super) fn run(self) -> Session {
        let Self { session, receiver, agent, owner, deliveries, core, store, tenure, life, mark, .. } = self;
        let shared = Arc::clone(&session.shared);
        if let Some(tenure) = &tenure {
            shared.owns(tenure);
        }
        // Setting the cell always succeeds, because it is set only here.
        let _ = shared.agent.set(agent.downgrade());
        shared.started.store(true, Ordering::Release);
        let task = Box::new(SessionTask {
            core,
            agent,
            owner,
            deliveries,
            store,
            tenure,
            feed: Feed::new(life),
            mark,
            _last_words: SessionTaskKillGuard(Arc::clone(&shared)),
            shared,
            attempts: InFlightWriteAttempts::default(),
            retry: None,
            ends_by: None,
            idle: None,
            is_fresh: true,
            idle_when_saved: false,
            has_refused_sleep: false,
            settling: None,
            flushes: Vec::new(),
            commands_in_a_row: 0,
            effects: Vec::new(),
        });
        tokio::spawn(task.run(receiver));
        session
    }
}

impl SessionBuilder {
    /// Starts the agent and prepares the session's channels and shared state.
    pub(super) async fn start(
        self,
        id: ConversationId,
        core: impl FnOnce(Arc<Config>, EventId) -> SessionCore,
    ) -> Result<UnstartedSession, Error> {
        let Self { store, agent, setup, watcher, hold, .. } = self;
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let (sender, deliveries) = futures_channel::mpsc::channel(DELIVERIES);
        let shared = Arc::new(SessionShared {
            id: id.clone(),
            setup,
            agent: OnceLock::new(),
            epoch: AtomicU64::new(0),
            termination: ActorTermination::default(),
            started: AtomicBool::new(false),
            watcher,
            erases: store.traits().erase,
            is_behind: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_between_requests: AtomicBool::new(false),
            runs_no_tool: AtomicBool::new(false),
            waits_below: AtomicBool::new(false),
            left_unsaved: OnceLock::new(),
            left_running: OnceLock::new(),
            controllers: AtomicUsize::new(0),
            left: TaskWakeSignal::default(),
        });
        // The hold checks prompts that reach the agent without a session handle: prompts returned by `handle_event` and
        // prompts sent through weak handles.
        let agent = agent
            .hold(Arc::clone(&shared) as Arc<dyn OwningSession>)
            .records(shared.setup.durable)
            .record_delay(shared.setup.record_delay);
        let session = Session { commands, shared };
        if let Some(hold) = hold {
            // If the receiver is gone, `send` returns the guard, which is dropped here.
            let _ = hold.send(session.keep()?);
        }
        let weak: WeakSession = session.downgrade();
        let (agent, owner) = agent.extension(id).extension(weak).commit_channel(sender).start_owned().await?;
        let state = agent.state().await?;
        let LatestEventAndStatus { last: seen, status, .. } = owner.position().await?;
        let core = core(Arc::clone(&state.config), seen);
        Ok(UnstartedSession {
            session,
            receiver,
            agent,
            owner,
            deliveries,
            core,
            store,
            tenure: None,
            life: life::FIRST,
            mark: None,
            status,
        })
    }
}

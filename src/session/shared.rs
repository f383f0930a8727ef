//! The settings of a session, and the state that its handles share with its task.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{
    SessionNotice, SessionSnapshot, SessionWatcher,
    command::UnsavedChangesReport,
    tenure::{ConversationLease, LeaseKeeper},
    watcher,
};
use crate::{
    actor::{ActorTermination, TaskWakeSignal},
    agent::{Durable, OwningSession, Recover, SubAgentSessionOpener, WeakAgent},
    run::{Error, ErrorKind},
    store::{ConversationId, Owner, Store, StoreError, WriteId},
    subscription::{End, EndReason, FeedLimits},
};

/// The settings of a session. They never change while the session exists.
#[derive(Debug, Clone)]
pub(crate) struct FixedSessionSettings {
    /// The keeper that renews the leases of all sessions of a manager. If it is unset, the session has its own keeper.
    pub(super) keeper: Option<Arc<LeaseKeeper>>,
    /// The owner of the conversation. If it is unset, each session is a unique owner.
    pub(super) owner: Option<Arc<Owner>>,
    pub(super) idle_shutdown: Option<Duration>,
    pub(super) unsaved_limit: usize,
    pub(super) write_timeout: Duration,
    pub(super) end_timeout: Duration,
    pub(super) feed_limits: FeedLimits,
    /// How much of a turn in flight survives the end of the process.
    pub(super) durable: Durable,
    /// The delay of records for which nothing waits.
    pub(super) record_delay: Duration,
    /// The treatment of a turn in flight when the conversation is opened.
    pub(super) recover: Recover,
}

impl FixedSessionSettings {
    /// Makes the owner of these settings the owner of a conversation, as [`ConversationLease::begin`] does.
    pub(crate) async fn acquire(
        &self,
        store: &Arc<dyn Store>,
        id: &ConversationId,
    ) -> Result<Option<ConversationLease>, StoreError> {
        ConversationLease::begin(store, self.keeper.as_ref(), id, &self.owner()).await
    }

    /// Waits until each lease under these settings is released, and none is being acquired.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing changes.
    pub(crate) async fn all_released(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.all_released().await;
        }
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner.as_deref().cloned().unwrap_or_else(Owner::unique)
    }

    /// Returns the owner for the write that creates the conversation. All attempts at this write have the same owner.
    pub(super) fn creator(&self, write: WriteId) -> Owner {
        let unique = || Owner::new(format!("{}-{write}", std::process::id()));
        self.owner.as_deref().cloned().unwrap_or_else(unique)
    }
}

/// The state that handles, guards and subscriptions share with the task. It outlives the task.
pub(super) struct SessionShared {
    pub(super) id: ConversationId,
    pub(super) setup: Arc<FixedSessionSettings>,
    /// The agent, after it has started. Handles call the agent directly for operations that do not need the session's
    /// task.
    pub(super) agent: OnceLock<WeakAgent>,
    /// The epoch with which the session owns the conversation, or 0 if it has no lease.
    pub(super) epoch: AtomicU64,
    pub(super) termination: ActorTermination<SessionSnapshot>,
    pub(super) started: AtomicBool,
    pub(super) watcher: Option<Arc<dyn SessionWatcher>>,
    /// Whether the store can erase messages.
    pub(super) erases: bool,
    /// Whether new prompts are refused because the session, or the manager with all its sessions, is being shut down.
    pub(super) is_draining: AtomicBool,
    /// Whether new prompts are refused because the store is behind.
    pub(super) is_behind: AtomicBool,
    /// Whether the model has responded to the run's last request and the next request is not prepared yet.
    pub(super) is_between_requests: AtomicBool,
    /// Whether the turn waits for decisions before its tools run.
    pub(super) runs_no_tool: AtomicBool,
    /// Whether a tool of a sub-agent waits for a decision.
    pub(super) waits_below: AtomicBool,
    /// The changes that were not in the store when the session ended, if there were any.
    pub(super) left_unsaved: OnceLock<Box<UnsavedChangesReport>>,
    /// The error that names the tools that were still running when the session ended, if there were any.
    pub(super) left_running: OnceLock<Error>,
    pub(super) controllers: AtomicUsize,
    /// Signals to the task that the last controller was dropped.
    pub(super) left: TaskWakeSignal,
}

impl SessionShared {
    /// Notes that the session has become the owner of the conversation.
    pub(super) fn owns(&self, tenure: &ConversationLease) {
        self.epoch.store(tenure.epoch().0, Ordering::Release);
    }

    /// Returns the error with which the session refuses new prompts, if it refuses them. After the end of the session,
    /// returns `None`, because each operation then reports the end itself.
    pub(super) fn refusal(&self) -> Option<Error> {
        if self.termination.end().is_some() {
            None
        } else if self.is_draining.load(Ordering::Acquire) {
            let text =
                "the session is being shut down and accepts no prompts; open the conversation again later";
            Some(Error::new(ErrorKind::Draining, text))
        } else {
            self.is_behind.load(Ordering::Acquire).then(|| {
                let limit = self.setup.unsaved_limit;
                let text = format!(
                    "the store is behind: more than {limit} bytes are unsaved; prompt again when it has caught up"
                );
                Error::new(ErrorKind::StoreBehind, text).with_member("limit", limit)
            })
        }
    }
}

impl OwningSession for SessionShared {
    fn conversation(&self) -> &str {
        self.id.as_str()
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::Acquire)).filter(|epoch| *epoch > 0)
    }

    fn reason(&self) -> Option<Error> {
        self.refusal()
    }

    fn sub_agents(&self) -> Option<Arc<dyn SubAgentSessionOpener>> {
        Arc::clone(self.watcher.as_ref()?).sub_agents()
    }
}

/// When dropped together with the task, records that the task was killed, unless the session has already ended cleanly.
/// Then notifies the watcher of the end.
pub(super) struct SessionTaskKillGuard(pub(super) Arc<SessionShared>);

impl Drop for SessionTaskKillGuard {
    fn drop(&mut self) {
        self.0.termination.seal(End { reason: EndReason::Killed, snapshot: None });
        if let (Some(watcher), Some(end)) = (&self.0.watcher, self.0.termination.end()) {
            watcher::notify(&**watcher, SessionNotice::Ended(&end.reason));
        }
    }
}

//! Ends an idle session without controllers, either after the time of the idle shutdown or at once to make room for
//! other sessions.

use std::{pin::Pin, sync::atomic::Ordering, time::Duration};

use tokio::time::sleep;

use super::{SessionTask, watcher};
use crate::{
    agent::Status,
    session::{SessionNotice, core::SessionCore},
};

/// The minimum time that a new session stays open, so that the code that started it can subscribe.
const TIME_TO_SUBSCRIBE: Duration = Duration::from_millis(20);

/// The minimum time between two attempts to end a session that is paused.
const SHORTEST_RETRY: Duration = Duration::from_secs(1);

/// The future that waits until an idle agent has processed its queued application events.
pub(in crate::session) type IdleSettlingFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl SessionTask {
    /// Restarts the time of the idle shutdown, if there is no controller, and the agent is idle or waits for decisions
    /// about a recorded turn. Called when the session starts, when its last controller is dropped, when its agent
    /// becomes idle or pauses, and when a delayed shutdown becomes possible.
    pub(super) fn consider_idle_shutdown(&mut self) {
        if let Some(wait) = self.shared.setup.idle_shutdown
            && self.core.is_at_rest()
            && !self.is_controlled()
        {
            let is_fresh = std::mem::take(&mut self.is_fresh);
            let wait = if is_fresh { wait.max(TIME_TO_SUBSCRIBE) } else { wait };
            self.idle = Some(Box::pin(sleep(wait)));
        }
    }

    /// Ends the agent after the idle time, and returns whether the agent has ended. The agent is not ended if there is
    /// a controller again, a run has started, or something is unsaved.
    pub(super) async fn is_unwanted(&mut self) -> bool {
        self.idle = None;
        if self.catch_up().await.is_err() || self.is_controlled() {
            return false;
        }
        if self.idle.is_some() {
            // The agent has been busy in the meantime and has become idle again, so the idle time has started again.
            return false;
        }
        if !self.is_saved() {
            self.idle_when_saved = true;
            self.step(SessionCore::hurry);
            return false;
        }
        let retired = matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true));
        if !retired {
            self.settle();
            if let Some(wait) = self.shared.setup.idle_shutdown
                && self.shared.waits_below.load(Ordering::Acquire)
            {
                // A running tool may end without a change of the status, and the turn then only waits for decisions.
                self.idle = Some(Box::pin(sleep(wait.max(SHORTEST_RETRY))));
            }
        }
        retired
    }

    /// Ends the agent if the session may end now, even before its idle time is over. Returns whether the agent has
    /// ended. If not, nothing has changed.
    pub(super) async fn can_sleep(&mut self) -> bool {
        self.catch_up().await.is_ok()
            && !self.is_controlled()
            && self.is_saved()
            && matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true))
    }

    /// Notes that the session has refused to sleep. Its watcher is notified when another attempt may succeed.
    pub(super) fn refuse_sleep(&mut self) {
        self.has_refused_sleep = true;
        if !self.is_controlled() && self.is_saved() {
            self.settle();
        }
    }

    /// Starts to wait until the idle agent has processed its application events. Until then, the agent can't be ended,
    /// because an event may start a turn.
    fn settle(&mut self) {
        if self.core.status() == Status::Idle && self.settling.is_none() {
            let agent = self.agent.clone();
            self.settling = Some(Box::pin(async move {
                // An error means that the agent has ended, which the session's task notices by the end of the agent's
                // events. So ignore the error.
                let _ = agent.wait_until_idle().await;
            }));
        }
    }

    /// If the session has refused to sleep, notifies the watcher that another attempt may succeed now.
    pub(super) fn notify_settled(&mut self) {
        if std::mem::take(&mut self.has_refused_sleep)
            && let Some(watcher) = &self.shared.watcher
        {
            watcher::notify(&**watcher, SessionNotice::Settled);
        }
    }
}

//! The end of an idle session without controllers: after its time, or at once to make room for others.

use std::{pin::Pin, time::Duration};

use tokio::time::sleep;

use super::{Task, watcher};
use crate::{
    agent::Status,
    session::{Notice, core::Core},
};

/// The minimum time that a new session stays open, so that the code that started it can subscribe.
const TIME_TO_SUBSCRIBE: Duration = Duration::from_millis(20);

/// The wait until an agent has nothing left to do.
pub(in crate::session) type Settling = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Task {
    /// Restarts the time of the idle shutdown if there is no controller and the agent is idle. Called at the start, and
    /// when one of the two conditions becomes true.
    pub(super) fn consider_idle_shutdown(&mut self) {
        if let Some(wait) = self.shared.setup.idle_shutdown
            && self.core.status() == Status::Idle
            && !self.is_controlled()
        {
            let is_fresh = std::mem::take(&mut self.is_fresh);
            let wait = if is_fresh { wait.max(TIME_TO_SUBSCRIBE) } else { wait };
            self.idle = Some(Box::pin(sleep(wait)));
        }
    }

    /// Ends the agent when the idle time is over. Returns whether the agent ended. It does not end if a controller has
    /// come back, a run has started, or something is unsaved.
    pub(super) async fn is_unwanted(&mut self) -> bool {
        self.idle = None;
        if self.catch_up().await.is_err() || self.is_controlled() {
            return false;
        }
        if self.idle.is_some() {
            // The agent has become idle again in the meantime. The idle time starts at that moment.
            return false;
        }
        if !self.is_saved() {
            self.idle_when_saved = true;
            self.step(Core::hurry);
            return false;
        }
        let retired = matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true));
        if !retired {
            self.settle();
        }
        retired
    }

    /// Ends the agent if the session may end now, even if idle time is left. Returns whether the agent ended. If it did
    /// not, nothing has changed.
    pub(super) async fn can_sleep(&mut self) -> bool {
        self.catch_up().await.is_ok()
            && !self.is_controlled()
            && self.is_saved()
            && matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true))
    }

    /// Notes that the session refused to sleep. The watcher is notified when another attempt may succeed.
    pub(super) fn refuse_sleep(&mut self) {
        self.has_refused_sleep = true;
        if !self.is_controlled() && self.is_saved() {
            self.settle();
        }
    }

    /// Waits until the idle agent, which could not be retired, has handled its application events. They may start a
    /// turn.
    fn settle(&mut self) {
        if self.core.status() == Status::Idle && self.settling.is_none() {
            let agent = self.agent.clone();
            self.settling = Some(Box::pin(async move {
                // The end of the agent is noticed elsewhere.
                let _ = agent.wait_until_idle().await;
            }));
        }
    }

    /// Notifies the watcher, if the session has refused to sleep, that everything is saved or handled now.
    pub(super) fn notify_settled(&mut self) {
        if std::mem::take(&mut self.has_refused_sleep)
            && let Some(watcher) = &self.shared.watcher
        {
            watcher::notify(&**watcher, Notice::Settled);
        }
    }
}

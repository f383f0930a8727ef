//! The end of a session that nobody needs: after its time, or at once to make room for others.

use std::{pin::Pin, time::Duration};

use tokio::time::sleep;

use super::{Task, watcher};
use crate::{
    agent::Status,
    session::{Notice, core::Core},
};

/// How long a session stays at least when it has just started: its starter is about to subscribe.
const TIME_TO_SUBSCRIBE: Duration = Duration::from_millis(20);

/// The wait for an agent that has nothing left to do.
pub(in crate::session) type Settling = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Task {
    /// Starts the time of the idle shutdown anew, if no controller is subscribed and the agent is idle. Called at the start,
    /// and when one of the two begins to hold.
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

    /// The time is over: whether nobody has come and nothing has begun meanwhile, and all is saved. The agent has ended
    /// then.
    pub(super) async fn is_unwanted(&mut self) -> bool {
        self.idle = None;
        if self.catch_up().await.is_err() || self.is_controlled() {
            return false;
        }
        if self.idle.is_some() {
            // The agent has become idle anew, as it turns out: the time runs from there.
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

    /// Whether the session may end now, whatever time is left to it. The agent has ended then; else nothing has changed.
    pub(super) async fn can_sleep(&mut self) -> bool {
        self.catch_up().await.is_ok()
            && !self.is_controlled()
            && self.is_saved()
            && matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true))
    }

    /// The session could not be put to sleep: its watcher is notified when another attempt is worth while.
    pub(super) fn refuse_sleep(&mut self) {
        self.has_refused_sleep = true;
        if !self.is_controlled() && self.is_saved() {
            self.settle();
        }
    }

    /// Comes back when the agent, which is idle but could not be retired, has handled its application events. They may
    /// bring a turn or not.
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
    pub(super) fn tell_settled(&mut self) {
        if std::mem::take(&mut self.has_refused_sleep)
            && let Some(watcher) = &self.shared.watcher
        {
            watcher::tell_of(&**watcher, Notice::Settled);
        }
    }
}

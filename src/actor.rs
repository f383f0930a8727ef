//! What all actors of the crate have in common: their end, and letting others run.

mod breath;

use std::sync::OnceLock;

pub(crate) use breath::Breath;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::subscription::{End, EndReason};

/// How an actor ends, for its handles: that it is about to, and what is left of it afterwards.
#[derive(Debug)]
pub(crate) struct Fate<S> {
    closing: OnceLock<EndReason>,
    end: OnceLock<End<S>>,
    ended: Notify,
}

impl<S> Default for Fate<S> {
    fn default() -> Self {
        Self { closing: OnceLock::new(), end: OnceLock::new(), ended: Notify::new() }
    }
}

impl<S> Fate<S> {
    /// How the actor ended, if it has.
    pub(crate) fn end(&self) -> Option<&End<S>> {
        self.end.get()
    }

    /// Why the actor takes nothing more, if that is so.
    pub(crate) fn closing(&self) -> Option<&EndReason> {
        self.closing.get()
    }

    /// Tells that the actor takes nothing more; its end follows. The first word counts.
    pub(crate) fn close(&self, reason: EndReason) {
        if self.closing.set(reason).is_ok() {
            self.ended.notify_waiters();
        }
    }

    /// Tells how the actor ended; the first word counts.
    pub(crate) fn seal(&self, end: End<S>) {
        let _ = self.closing.set(end.reason.clone());
        let _ = self.end.set(end);
        self.ended.notify_waiters();
    }

    /// Waits until the actor takes nothing more. Its channels close a moment before or after that, so whoever finds one
    /// of them closed asks here for the reason.
    pub(crate) async fn closed(&self) -> EndReason {
        self.wait(|| self.closing.get().cloned()).await
    }

    /// Waits for the actor's end.
    pub(crate) async fn ended(&self) -> End<S> {
        self.wait(|| self.end.get().cloned()).await
    }

    async fn wait<T>(&self, look: impl Fn() -> Option<T>) -> T {
        loop {
            // Made before the look, so that a word in between is not missed.
            let told = self.ended.notified();
            if let Some(found) = look() {
                return found;
            }
            told.await;
        }
    }
}

/// Sends a command and awaits its answer; `None` if the actor gives none any more.
pub(crate) async fn call<C, T>(
    commands: &mpsc::Sender<C>,
    command: impl FnOnce(oneshot::Sender<T>) -> C,
) -> Option<T> {
    let (reply, mut answer) = oneshot::channel();
    commands.send(command(reply)).await.ok()?;
    // A command that comes in just as the receiver goes away stays in the channel for as long as there is a handle,
    // and its reply with it: the answer alone may be waited for in vain.
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        () = commands.closed() => answer.try_recv().ok(),
    }
}

//! The parts that all actors of the crate share: their end, calls, yielding to other tasks, optional timers.

mod own_wake;
#[cfg(test)]
pub(crate) mod random;
#[cfg(test)]
pub(crate) mod simulation;

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures_util::task::AtomicWaker;
pub(crate) use own_wake::FairYield;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::subscription::{End, EndReason};

/// The end of an actor, as its handles see it. The reason is available as soon as the actor accepts no more commands,
/// and the complete [`End`] afterwards.
#[derive(Debug)]
pub(crate) struct ActorTermination<S> {
    closing: OnceLock<EndReason>,
    end: OnceLock<End<S>>,
    ended: Notify,
}

impl<S> Default for ActorTermination<S> {
    fn default() -> Self {
        Self { closing: OnceLock::new(), end: OnceLock::new(), ended: Notify::new() }
    }
}

impl<S> ActorTermination<S> {
    /// Returns the end of the actor, if it has ended.
    pub(crate) fn end(&self) -> Option<&End<S>> {
        self.end.get()
    }

    /// Returns the reason why the actor accepts no more commands, or `None` while it accepts commands.
    pub(crate) fn closing(&self) -> Option<&EndReason> {
        self.closing.get()
    }

    /// Records that the actor accepts no more commands and will end. Only the first reason is kept.
    pub(crate) fn close(&self, reason: EndReason) {
        if self.closing.set(reason).is_ok() {
            self.ended.notify_waiters();
        }
    }

    /// Records the actor's end. Only the first call has an effect.
    pub(crate) fn seal(&self, end: End<S>) {
        let _ = self.closing.set(end.reason.clone());
        let _ = self.end.set(end);
        self.ended.notify_waiters();
    }

    /// Waits until the actor accepts no more commands, and returns the reason. The actor's channels close a moment
    /// before or after that, so a caller that finds a channel closed gets the reason here.
    pub(crate) async fn closed(&self) -> EndReason {
        self.wait(|| self.closing.get().cloned()).await
    }

    /// Waits for the actor's end.
    pub(crate) async fn ended(&self) -> End<S> {
        self.wait(|| self.end.get().cloned()).await
    }

    async fn wait<T>(&self, look: impl Fn() -> Option<T>) -> T {
        loop {
            // The future is created before the check, so that a notification between the check and the wait is not
            // missed.
            let notified = self.ended.notified();
            if let Some(found) = look() {
                return found;
            }
            notified.await;
        }
    }
}

/// A signal that wakes one task. If the signal is given before the task waits, it is kept. Two signals count as one.
#[derive(Debug, Default)]
pub(crate) struct TaskWakeSignal {
    is_given: AtomicBool,
    waiter: AtomicWaker,
}

impl TaskWakeSignal {
    pub(crate) fn give(&self) {
        self.is_given.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// Waits until the signal is given, and consumes it. Only one task may wait, because a second one would consume the
    /// signal of the first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not consume the signal.
    pub(crate) async fn given(&self) {
        poll_fn(|cx| {
            self.waiter.register(cx.waker());
            if self.is_given.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Sends a command and waits for its reply, without keeping the actor alive in the meantime. Returns `None` if the
/// actor no longer replies.
pub(crate) async fn call_weakly<C, T, S>(
    commands: Option<mpsc::Sender<C>>,
    termination: &ActorTermination<S>,
    command: impl FnOnce(oneshot::Sender<T>) -> C,
) -> Option<T> {
    let (reply, mut answer) = oneshot::channel();
    let commands = commands?;
    commands.send(command(reply)).await.ok()?;
    drop(commands);
    // The reply never arrives if the command is sent while the receiver is being dropped (see `call`). This function
    // holds no sender, so it learns of the actor's end from `termination`.
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        _ = termination.closed() => answer.try_recv().ok(),
    }
}

/// Sends a command and waits for its reply. Returns `None` if the actor no longer replies.
pub(crate) async fn call<C, T>(
    commands: &mpsc::Sender<C>,
    command: impl FnOnce(oneshot::Sender<T>) -> C,
) -> Option<T> {
    let (reply, mut answer) = oneshot::channel();
    commands.send(command(reply)).await.ok()?;
    // A command that is sent while the receiver is being dropped stays in the channel as long as a handle exists. Its
    // reply sender stays there too, so waiting for the reply alone could take forever.
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        () = commands.closed() => answer.try_recv().ok(),
    }
}

/// Waits for an optional future, such as a timer. If there is no future, waits forever.
pub(crate) async fn passed<F: Future<Output = ()> + ?Sized>(timer: &mut Option<Pin<Box<F>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}

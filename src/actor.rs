//! Parts that the actors of the crate share: their end, letting others run, optional timers.

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
pub(crate) use own_wake::OwnWake;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::subscription::{End, EndReason};

/// How an actor ends, for its handles: that it is about to, and what is left of it afterwards.
#[derive(Debug)]
pub(crate) struct Termination<S> {
    closing: OnceLock<EndReason>,
    end: OnceLock<End<S>>,
    ended: Notify,
}

impl<S> Default for Termination<S> {
    fn default() -> Self {
        Self { closing: OnceLock::new(), end: OnceLock::new(), ended: Notify::new() }
    }
}

impl<S> Termination<S> {
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

/// Wakes one task. Given before it is waited for, it is there still; given twice, it is there once.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    is_given: AtomicBool,
    waiter: AtomicWaker,
}

impl Signal {
    pub(crate) fn give(&self) {
        self.is_given.store(true, Ordering::Release);
        self.waiter.wake();
    }

    /// Waits until the signal is given, and takes it. For one task: a second one would take it from the first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing.
    pub(crate) async fn given(&self) {
        poll_fn(|cx| {
            self.waiter.register(cx.waker());
            if self.is_given.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Sends a command and awaits its answer without keeping the actor alive meanwhile; `None` if it gives none any more.
pub(crate) async fn call_weakly<C, T, S>(
    commands: Option<mpsc::Sender<C>>,
    termination: &Termination<S>,
    command: impl FnOnce(oneshot::Sender<T>) -> C,
) -> Option<T> {
    let (reply, mut answer) = oneshot::channel();
    let commands = commands?;
    commands.send(command(reply)).await.ok()?;
    drop(commands);
    // As in `call`, where the channel tells of the end.
    tokio::select! {
        biased;
        answer = &mut answer => answer.ok(),
        _ = termination.closed() => answer.try_recv().ok(),
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

/// Waits for a timer or the like; for ever if there is none.
pub(crate) async fn passed<F: Future<Output = ()> + ?Sized>(timer: &mut Option<Pin<Box<F>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}

//! Calls a backend with a time limit, and terminates each session exactly once.

use std::{
    cell::Cell,
    future::Future,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{self, Handle},
    sync::watch,
    time::timeout,
};
use tracing::Instrument;

use super::{BackendError, BackendSession, Breach};
use crate::panics::{contained, contained_async};

/// The maximum total time that a thread waits for sessions that it drops when their runtime is gone. A runtime that
/// shuts down may drop many sessions in one thread.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

thread_local! {
    /// Two times of this thread: the deadline for its waits, and the later time until which this deadline is used. The
    /// first session that is dropped after the second time gets a new deadline.
    static GRACE: Cell<Option<(Instant, Instant)>> = const { Cell::new(None) };
}

/// Returns how long this thread may still wait for a session.
fn grace() -> Duration {
    let now = Instant::now();
    let until = GRACE.try_with(|grace| {
        let until = match grace.get() {
            Some((until, holds)) if now < holds => until,
            _ => now + SHUTDOWN_GRACE,
        };
        grace.set(Some((until, now.max(until) + SHUTDOWN_GRACE)));
        until
    });
    until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
}

/// Calls an async method of the backend. If the method panics or takes longer than `limit`, returns an error.
pub(super) async fn call<T>(
    name: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match timeout(limit, contained_async(work)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(message)) => Err(panicked(name, message)),
        Err(_) => Err(BackendError::Timeout { call: name, limit }),
    }
}

/// Calls a method of the backend that is not async. If the method panics, returns an error.
pub(super) fn ask<T>(name: &'static str, work: impl FnOnce() -> T) -> Result<T, BackendError> {
    contained(work).map_err(|message| panicked(name, message))
}

fn panicked(call: &'static str, message: String) -> BackendError {
    BackendError::Contract(Breach::Panicked { call, message })
}

/// Terminates a session in a separate task on `runtime`. The returned channel closes when the session has ended.
pub(super) fn terminate(
    session: Arc<dyn BackendSession>,
    runtime: &Handle,
    limit: Duration,
) -> watch::Receiver<()> {
    let (done, waiter) = watch::channel(());
    let ending = Ending { session: Some(session), limit, _done: done };
    // If the runtime is gone, the future is dropped at once, and dropping it terminates the session.
    runtime.spawn(ending.run().in_current_span());
    waiter
}

/// Waits until a session that is being terminated has ended.
///
/// # Cancel safety
///
/// If the future is dropped, the session is terminated nevertheless.
pub(super) async fn ended(mut session: watch::Receiver<()>) {
    // No value is ever sent on this channel. It closes when the session has ended.
    let _ = session.changed().await;
}

/// A session to terminate. If the runtime drops this before it has run, the session is terminated on a new thread.
struct Ending {
    session: Option<Arc<dyn BackendSession>>,
    limit: Duration,
    _done: watch::Sender<()>,
}

impl Ending {
    async fn run(mut self) {
        if let Some(session) = self.session.take() {
            end(session, self.limit).await;
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        // The process may exit as soon as its runtime is gone. Therefore, the thread that drops the session waits until
        // the session has ended, but at most for the time that `grace` returns.
        let (done, waiter) = mpsc::sync_channel::<()>(1);
        let limit = self.limit;
        let thread = thread::Builder::new().name("backend-terminate".to_owned()).spawn(move || {
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(end(session, limit)),
                Err(error) => tracing::error!(%error, "no runtime to terminate a backend's session on"),
            }
            drop(done);
        });
        match thread {
            Ok(_) => drop(waiter.recv_timeout(grace().min(limit))),
            Err(error) => tracing::error!(%error, "no thread to terminate a backend's session on"),
        }
    }
}

async fn end(session: Arc<dyn BackendSession>, limit: Duration) {
    let terminated = call("terminate", limit, async {
        session.terminate().await;
        Ok(())
    });
    if let Err(error) = terminated.await {
        tracing::error!(%error, "a backend's session did not terminate cleanly");
    }
    if let Err(error) = ask("drop", || drop(session)) {
        tracing::error!(%error, "the drop of a backend's session panicked");
    }
}

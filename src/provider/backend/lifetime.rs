//! Calls to a backend that come to an end, and sessions that are terminated exactly once.

use std::{
    cell::Cell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::{
    runtime::{self, Handle},
    sync::watch,
    time::timeout,
};

use super::{BackendError, BackendSession, Breach};
use crate::tool::panic_message;

/// How long a thread waits, at most and all together, for the sessions that it drops and that no runtime is left to
/// terminate on. A runtime that shuts down drops all that it had.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

thread_local! {
    /// Until when this thread may wait, and for how long that holds: what is dropped later has a time of its own.
    static GRACE: Cell<Option<(Instant, Instant)>> = const { Cell::new(None) };
}

/// How long this thread may wait for a session now.
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

/// Calls the backend. What panics, or takes longer than `limit`, is an error.
pub(super) async fn call<T>(
    name: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match timeout(limit, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(panicked(name, panic_message(panic))),
        Err(_) => Err(BackendError::Timeout { call: name, limit }),
    }
}

/// Calls what of the backend does not wait.
pub(super) fn ask<T>(name: &'static str, work: impl FnOnce() -> T) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panicked(name, panic_message(panic)))
}

fn panicked(call: &'static str, message: String) -> BackendError {
    BackendError::Contract(Breach::Panicked { call, message })
}

/// Terminates a session beside its owner, on `runtime`. What comes out is closed when that is done.
pub(super) fn terminate(
    session: Arc<dyn BackendSession>,
    runtime: &Handle,
    limit: Duration,
) -> watch::Receiver<()> {
    let (done, waiter) = watch::channel(());
    let ending = Ending { session: Some(session), limit, _done: done };
    // On a runtime that is gone the future is dropped at once.
    runtime.spawn(ending.run());
    waiter
}

/// Waits for the end of a session that is being terminated.
///
/// # Cancel safety
///
/// It ends all the same.
pub(super) async fn ended(mut session: watch::Receiver<()>) {
    // Nothing is ever sent: the channel is closed.
    let _ = session.changed().await;
}

/// A session that is to be terminated. If nobody gets to it on the runtime, its drop does it elsewhere.
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
        // The process may end as soon as its runtime is gone, so this waits a little.
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
        tracing::error!(%error, "a backend's session was not terminated in order");
    }
    if let Err(error) = ask("drop", || drop(session)) {
        tracing::error!(%error, "the drop of a backend's session panicked");
    }
}

//! Threads that own connections, and do one job after another.

use std::{
    any::Any,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::store::StoreError;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;
type Done<T> = Result<Result<T, StoreError>, Box<dyn Any + Send>>;

/// They end when this is dropped and the jobs that it was given are done.
///
/// A job is in no runtime's hands: it is begun and done however busy the runtime is on which somebody waits for
/// it. So a renewal from another thread does not wait for a runtime that is blocked, as it would for a
/// permit that a task there was given.
pub(super) struct Workers {
    // Unbounded, for the same reason: whoever waits for room holds up all behind it. There are no more jobs than callers,
    // and a job holds what its caller has in memory anyway.
    jobs: mpsc::Sender<Job>,
}

impl Workers {
    /// A thread for each of the connections. They share the jobs.
    pub(super) fn start(name: &str, connections: Vec<Connection>) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for mut connection in connections {
            let queue = Arc::clone(&queue);
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                while let Some(job) = next(&queue) {
                    job(&mut connection);
                }
            })?;
        }
        Ok(Self { jobs })
    }

    /// Has a job done. Once begun, it is done to its end; if nobody waits for it by then, it is not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel::<Done<T>>();
        let job: Job = Box::new(move |connection| {
            if !answer.is_closed() {
                // A transaction that a panic leaves is rolled back on its way.
                let done = catch_unwind(AssertUnwindSafe(|| job(connection)));
                let _ = answer.send(done);
            }
        });
        self.jobs.send(job).map_err(|_| ()).expect("workers outlive the sender of their jobs");
        match answered.await.expect("every job that somebody waits for is answered") {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// The next job, waited for under the lock by one worker at a time; `None` once there will be none.
fn next(queue: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

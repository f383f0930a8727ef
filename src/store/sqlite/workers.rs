//! Threads that have connections, and do one job after another.

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::store::StoreError;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;
type Done<T> = Result<Result<T, StoreError>, Box<dyn Any + Send>>;

/// Which jobs are done first; of those alike, the one that came first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Leases run out while their renewal waits. Such jobs are few and short: the others get their turn.
    Lease,
    Conversation,
}

/// They end when this is dropped and the jobs that it was given are done.
///
/// A job is in no runtime's hands: it is begun and done however busy the runtime is on which somebody waits for
/// it. So a renewal from another thread does not wait for a runtime that is blocked, as it would for a
/// permit that a task there was given.
pub(super) struct Workers(Arc<Queue>);

/// What is to be done.
// Unbounded, for the same reason: whoever waits for room holds up all behind it. There are no more jobs than callers, since
// one whose caller goes away goes with it; and a job holds what its caller has in memory anyway.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    /// There is a job, or there will be none.
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: BTreeMap<Place, Job>,
    given: u64,
    is_over: bool,
}

/// A job's place in the queue.
type Place = (Urgency, u64);

impl Queue {
    // Nothing that can panic runs under the lock.
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, urgency: Urgency, job: Job) -> Place {
        let mut jobs = self.jobs();
        jobs.given += 1;
        let place = (urgency, jobs.given);
        jobs.waiting.insert(place, job);
        drop(jobs);
        self.changed.notify_one();
        place
    }

    /// The next job, waited for; `None` once there will be none.
    fn next(&self) -> Option<Job> {
        let idle = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.is_over;
        let jobs = self.changed.wait_while(self.jobs(), idle);
        let (_, job) = jobs.unwrap_or_else(PoisonError::into_inner).waiting.pop_first()?;
        Some(job)
    }
}

/// Takes a job out of the queue, if it is not begun, when whoever waited for it no longer does.
struct Waiting<'a> {
    queue: &'a Queue,
    place: Place,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let job = self.queue.jobs().waiting.remove(&self.place);
        // With all that it holds, which may be much: not under the lock.
        drop(job);
    }
}

impl Workers {
    /// A thread for each of the connections. They share the jobs.
    pub(super) fn start(name: &str, connections: Vec<Connection>) -> io::Result<Self> {
        // Dropped on a failure, it ends the threads that were started.
        let workers = Self(Arc::default());
        for mut connection in connections {
            let queue = Arc::clone(&workers.0);
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                while let Some(job) = queue.next() {
                    job(&mut connection);
                }
            })?;
        }
        Ok(workers)
    }

    /// Has a job done. Once begun, it is done to its end; if nobody waits for it any more, it is not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        urgency: Urgency,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel::<Done<T>>();
        let job: Job = Box::new(move |connection| {
            // A transaction that a panic leaves is rolled back on its way.
            let done = catch_unwind(AssertUnwindSafe(|| job(connection)));
            let _ = answer.send(done);
        });
        let _waiting = Waiting { place: self.0.push(urgency, job), queue: &self.0 };
        match answered.await.expect("every job that somebody waits for is answered") {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.jobs().is_over = true;
        self.0.changed.notify_all();
    }
}

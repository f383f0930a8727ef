//! Threads that have connections, and do one job after another.

use std::{
    any::Any,
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::store::StoreError;

/// Says whether others kept the file busy for as long as it may wait.
type Job = Box<dyn FnOnce(&mut Connection) -> bool + Send>;
type Done<T> = Result<Result<T, StoreError>, Box<dyn Any + Send>>;

/// Which jobs are done first; of those alike, the one that came first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Leases run out while their renewal waits. Such jobs are few, since one is for all leases: the others get their turn.
    Renewal,
    Other,
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
    /// With the time since when.
    waiting: BTreeMap<QueueKey, (Instant, Job)>,
    /// Jobs that nobody waits for, by the time from which they may run. The number tells apart those of one moment.
    later: BTreeMap<(Instant, u64), Job>,
    given: u64,
    is_over: bool,
}

/// A job's place in the queue.
type QueueKey = (Urgency, u64);

impl Queue {
    // Nothing that can panic runs under the lock.
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, urgency: Urgency, job: Job) -> QueueKey {
        let mut jobs = self.jobs();
        jobs.given += 1;
        let place = (urgency, jobs.given);
        jobs.waiting.insert(place, (Instant::now(), job));
        drop(jobs);
        self.changed.notify_one();
        place
    }

    /// Waits for the next job. Returns it with the time since when it may run, or `None` once there will be none.
    fn next(&self) -> Option<(Instant, Job)> {
        let mut jobs = self.jobs();
        loop {
            // First, so that a queue that never empties does not put these off for ever. They are few.
            let wait = match jobs.later.first_key_value().map(|(key, _)| *key) {
                Some(first) if !jobs.is_over => match first.0.checked_duration_since(Instant::now()) {
                    Some(wait) if !wait.is_zero() => Some(wait),
                    _ => return jobs.later.remove(&first).map(|job| (first.0, job)),
                },
                _ => None,
            };
            if let Some((_, next)) = jobs.waiting.pop_first() {
                return Some(next);
            }
            if jobs.is_over {
                return None;
            }
            jobs = match wait {
                Some(wait) => {
                    let woken = self.changed.wait_timeout(jobs, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Does all jobs that there will be. None waits for longer than `busy` for others to let go of the file.
    fn work(&self, connection: &mut Connection, busy: Duration) {
        let mut is_held = false;
        while let Some((given, job)) = self.next() {
            // While one waited in vain, those behind it waited too.
            let wait = if is_held { busy.saturating_sub(given.elapsed()) } else { busy };
            if let Err(error) = connection.busy_timeout(wait) {
                tracing::debug!(%error, "SQLite waits for the file as long as before");
            }
            is_held = job(connection);
        }
    }
}

/// Takes a job out of the queue, if it is not begun, when whoever waited for it no longer does.
struct Waiting<'a> {
    queue: &'a Queue,
    place: QueueKey,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let job = self.queue.jobs().waiting.remove(&self.place);
        // With all that it holds, which may be much: not under the lock.
        drop(job);
    }
}

/// Where a job leaves others to be done.
#[derive(Clone)]
pub(super) struct Behind(Weak<Queue>);

impl Behind {
    /// Has a job done that nobody waits for, after all that wait now; not at all once the workers are to end.
    pub(super) fn leave(&self, job: impl FnOnce(&mut Connection) -> bool + Send + 'static) {
        if let Some(queue) = self.open_queue() {
            queue.push(Urgency::Other, contained(job));
        }
    }

    /// Has a job done that nobody waits for, when this time has passed. Never runs it once the workers are to end.
    pub(super) fn leave_for(
        &self,
        pause: Duration,
        job: impl FnOnce(&mut Connection) -> bool + Send + 'static,
    ) {
        if let Some(queue) = self.open_queue() {
            let mut jobs = queue.jobs();
            jobs.given += 1;
            let place = (Instant::now() + pause, jobs.given);
            jobs.later.insert(place, contained(job));
            drop(jobs);
            queue.changed.notify_one();
        }
    }

    fn open_queue(&self) -> Option<Arc<Queue>> {
        self.0.upgrade().filter(|queue| !queue.jobs().is_over)
    }
}

/// A job that panics must not end its worker, and nobody waits for this one who could be handed the panic.
fn contained(job: impl FnOnce(&mut Connection) -> bool + Send + 'static) -> Job {
    Box::new(|connection| catch_unwind(AssertUnwindSafe(|| job(connection))).unwrap_or_default())
}

impl Workers {
    /// A thread for each of the connections. They share the jobs, which wait this long for others to let go of the file.
    pub(super) fn start(name: &str, connections: Vec<Connection>, busy: Duration) -> io::Result<Self> {
        // Dropped on a failure, it ends the threads that were started.
        let workers = Self(Arc::default());
        for mut connection in connections {
            let queue = Arc::clone(&workers.0);
            thread::Builder::new().name(name.to_owned()).spawn(move || queue.work(&mut connection, busy))?;
        }
        Ok(workers)
    }

    /// Where jobs leave others to be done.
    pub(super) fn behind(&self) -> Behind {
        Behind(Arc::downgrade(&self.0))
    }

    /// Has a job done. Once begun, it is done to its end; if nobody waits for it any more, it is not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        urgency: Urgency,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel::<Done<T>>();
        let given = Instant::now();
        let job: Job = Box::new(move |connection| {
            // A transaction that a panic leaves is rolled back on its way.
            let mut done = catch_unwind(AssertUnwindSafe(|| job(connection)));
            let is_busy = if let Ok(Err(StoreError::Busy { waited, .. })) = &mut done {
                *waited = given.elapsed();
                true
            } else {
                false
            };
            let _ = answer.send(done);
            is_busy
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
        let mut jobs = self.0.jobs();
        jobs.is_over = true;
        let later = std::mem::take(&mut jobs.later);
        drop(jobs);
        drop(later);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join4;

    use super::*;

    /// Longer than any test.
    const BUSY: Duration = Duration::from_hours(1);

    fn waits(connection: &Connection) -> Duration {
        let millis = connection.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
        Duration::from_millis(millis.expect("a number").into())
    }

    fn busy<T>() -> Result<T, StoreError> {
        Err(StoreError::Busy { place: "the file".to_owned(), waited: BUSY })
    }

    #[tokio::test]
    async fn jobs_behind_one_that_waited_in_vain_have_waited_too() {
        let connection = Connection::open_in_memory().expect("a database");
        let workers = Workers::start("test", vec![connection], BUSY).expect("a thread");
        let (all_wait, waited) = mpsc::channel();
        let first = workers.run(Urgency::Other, move |connection| {
            waited.recv().expect("the others wait");
            assert_eq!(waits(connection), BUSY);
            busy::<()>()
        });
        let second = workers.run(Urgency::Other, |connection| {
            assert!(waits(connection) < BUSY);
            busy::<()>()
        });
        let third = workers.run(Urgency::Other, |connection| {
            assert!(waits(connection) < BUSY, "nobody has had the file yet");
            Ok(())
        });
        let fourth = workers.run(Urgency::Other, |connection| Ok(waits(connection)));
        let start = async {
            // They are given in this order, and this comes last.
            all_wait.send(()).expect("the first one waits for it");
        };
        let (first, second, third, (fourth, ())) =
            join4(first, second, third, futures_util::future::join(fourth, start)).await;
        for error in [first.expect_err("it is busy"), second.expect_err("it is busy")] {
            match error {
                StoreError::Busy { waited, .. } => assert!(waited < BUSY, "it is told how long it was"),
                other => panic!("{other:?}"),
            }
        }
        third.expect("the file is free again");
        assert_eq!(fourth.expect("it is free"), BUSY);
    }
}

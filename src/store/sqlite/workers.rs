//! Threads that own connections and run one job at a time.
//!
//! Renewals go first. Acquiring and releasing wait in line, because there may be as many of them as writes.

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
use tokio::sync::{oneshot, watch};

use super::{
    database::SqliteOperationError,
    shared::{self, MAX_SHARED, SharedTransactionWrite},
};
use crate::{panics::contained, store::StoreError, sync::lock};

/// A job that shares its transaction with no other job. It returns whether other processes kept the file locked for as
/// long as the job was allowed to wait.
type SoleTransactionJob = Box<dyn FnOnce(&mut Connection) -> bool + Send>;

enum SqliteJob {
    Alone(SoleTransactionJob),
    /// A write that shares a transaction with other writes.
    Together(SharedTransactionWrite),
}

type SqliteJobResult<T> = Result<Result<T, StoreError>, Box<dyn Any + Send>>;

/// The priority of a job. Jobs of the same priority run in the order in which they were queued.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SqliteJobPriority {
    /// The renewal of leases, which may expire while the job waits. One such job renews all leases, so these jobs do
    /// not keep other jobs from running.
    Renewal,
    Other,
}

/// Threads that run jobs. When `SqliteWorkers` is dropped, the threads end after all queued jobs are done.
///
/// Jobs do not depend on any runtime: a job starts and finishes even if the runtime of its caller is blocked. So the
/// renewal of a lease from another thread never waits for a blocked runtime. If jobs needed permits instead, a task on
/// the blocked runtime could hold a permit for which the renewal waits.
pub(super) struct SqliteWorkers {
    queue: Arc<SqliteJobQueue>,
    /// Each thread has a receiver until it has closed its connection.
    threads: watch::Sender<()>,
}

/// The jobs that wait for a worker. The queue is unbounded: if a job had to wait for room in the queue, it would block
/// everything behind it. Apart from a few jobs of the upkeep and the index, there are never more jobs than callers,
/// because a job is removed with its caller. A job holds data that its caller has in memory anyway, or an encoded copy
/// of a few short texts.
#[derive(Default)]
struct SqliteJobQueue {
    jobs: Mutex<SqliteQueuedJobs>,
    /// Notified when a job is added or the queue is closed.
    changed: Condvar,
}

#[derive(Default)]
struct SqliteQueuedJobs {
    /// Jobs that may run now, each with the time at which it was queued.
    waiting: BTreeMap<SqliteJobPosition, (Instant, SqliteJob)>,
    /// Jobs that run after a pause, sorted by the time from which they may run. The number distinguishes jobs with the
    /// same time.
    later: BTreeMap<(Instant, u64), SqliteJob>,
    given: u64,
    is_over: bool,
}

/// The position of a job in the queue.
type SqliteJobPosition = (SqliteJobPriority, u64);

impl SqliteJobQueue {
    // Poisoning can be ignored, because no code that holds the lock can panic.
    fn jobs(&self) -> MutexGuard<'_, SqliteQueuedJobs> {
        lock(&self.jobs)
    }

    /// Adds a job and returns its position. Returns `None` if the queue is closed.
    fn push(&self, urgency: SqliteJobPriority, job: SqliteJob) -> Option<SqliteJobPosition> {
        let mut jobs = self.jobs();
        if jobs.is_over {
            return None;
        }
        jobs.given += 1;
        let place = (urgency, jobs.given);
        jobs.waiting.insert(place, (Instant::now(), job));
        drop(jobs);
        self.changed.notify_one();
        Some(place)
    }

    /// Closes the queue. The jobs that wait are still done, except those that run after a pause.
    fn close(&self) {
        let mut jobs = self.jobs();
        jobs.is_over = true;
        let later = std::mem::take(&mut jobs.later);
        drop(jobs);
        drop(later);
        self.changed.notify_all();
    }

    /// Waits for the next job. Returns the job with the time from which it was allowed to run, or `None` if the queue
    /// is closed and empty.
    fn next(&self) -> Option<(Instant, SqliteJob)> {
        let mut jobs = self.jobs();
        loop {
            // Delayed jobs that are due run first, because otherwise a queue that never empties would delay them
            // forever. There are only a few of them.
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

    /// Runs all jobs until the queue is closed. If other processes have locked the file, a job waits for at most
    /// `busy`.
    fn work(&self, connection: &mut Connection, busy: Duration) {
        let mut is_held = false;
        while let Some((given, job)) = self.next() {
            // If the previous job waited for the file in vain, the time that this job has spent in the queue counts as
            // waiting time.
            let wait = if is_held { busy.saturating_sub(given.elapsed()) } else { busy };
            if let Err(error) = connection.busy_timeout(wait) {
                tracing::debug!(%error, "the lock timeout of SQLite could not be set; the previous one stays in effect");
            }
            is_held = match job {
                SqliteJob::Alone(job) => job(connection),
                SqliteJob::Together(first) => shared::write(connection, self.shared(first)),
            };
        }
    }

    /// Returns this write and the writes that wait directly behind it.
    fn shared(&self, first: SharedTransactionWrite) -> Vec<SharedTransactionWrite> {
        let mut jobs = self.jobs();
        let mut all = vec![first];
        while all.len() < MAX_SHARED
            && let Some(next) = jobs.waiting.first_entry()
            && matches!(next.get().1, SqliteJob::Together(_))
        {
            if let (_, SqliteJob::Together(write)) = next.remove() {
                all.push(write);
            }
        }
        all
    }
}

/// Removes a job from the queue if its caller stops waiting before the job has begun.
struct WaitingJobGuard<'a> {
    queue: &'a SqliteJobQueue,
    place: SqliteJobPosition,
}

impl Drop for WaitingJobGuard<'_> {
    fn drop(&mut self) {
        let job = self.queue.jobs().waiting.remove(&self.place);
        // The job may hold much data, so it is dropped after the lock was released.
        drop(job);
    }
}

/// A handle that a job uses to queue further jobs.
#[derive(Clone)]
pub(super) struct FollowUpJobSender(Weak<SqliteJobQueue>);

impl FollowUpJobSender {
    /// Queues a job without a caller behind all jobs that are waiting now. If the queue is closed, does nothing.
    pub(super) fn leave(&self, job: impl FnOnce(&mut Connection) -> bool + Send + 'static) {
        if let Some(queue) = self.open_queue() {
            queue.push(SqliteJobPriority::Other, SqliteJob::Alone(callerless(job)));
        }
    }

    /// Queues a job without a caller, which runs after this pause. If the queue is closed before then, the job never
    /// runs.
    pub(super) fn leave_for(
        &self,
        pause: Duration,
        job: impl FnOnce(&mut Connection) -> bool + Send + 'static,
    ) {
        if let Some(queue) = self.open_queue() {
            let mut jobs = queue.jobs();
            jobs.given += 1;
            let place = (Instant::now() + pause, jobs.given);
            jobs.later.insert(place, SqliteJob::Alone(callerless(job)));
            drop(jobs);
            queue.changed.notify_one();
        }
    }

    fn open_queue(&self) -> Option<Arc<SqliteJobQueue>> {
        self.0.upgrade().filter(|queue| !queue.jobs().is_over)
    }
}

/// Sends the result of a job to its caller. Returns whether other processes kept the file locked for the whole waiting
/// time.
fn reply<T>(
    answer: oneshot::Sender<SqliteJobResult<T>>,
    given: Instant,
    mut done: SqliteJobResult<T>,
) -> bool {
    let is_busy = if let Ok(Err(StoreError::Busy { waited, .. })) = &mut done {
        *waited = given.elapsed();
        true
    } else {
        false
    };
    let _ = answer.send(done);
    is_busy
}

/// Returns a job without a caller. A panic must not end the worker, and there is no caller to which the panic could be
/// passed.
fn callerless(job: impl FnOnce(&mut Connection) -> bool + Send + 'static) -> SoleTransactionJob {
    Box::new(|connection| {
        let outcome = contained(|| job(connection));
        outcome.inspect_err(|words| tracing::error!(words, "a job of the store panicked")).unwrap_or_default()
    })
}

impl SqliteWorkers {
    /// Starts one thread per connection. All threads take jobs from the same queue. If other processes have locked the
    /// file, a job waits for at most `busy`.
    pub(super) fn start(name: &str, connections: Vec<Connection>, busy: Duration) -> io::Result<Self> {
        // If starting a thread fails, `workers` is dropped, which ends the threads that were already started.
        let workers = Self { queue: Arc::default(), threads: watch::Sender::default() };
        for mut connection in connections {
            let (queue, alive) = (Arc::clone(&workers.queue), workers.threads.subscribe());
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                queue.work(&mut connection, busy);
                drop(connection);
                drop(alive);
            })?;
        }
        Ok(workers)
    }

    /// Ends the threads after all jobs that wait, and waits until their connections are closed. Later jobs fail.
    pub(super) async fn close(&self) {
        self.queue.close();
        self.threads.closed().await;
    }

    /// Returns a handle that jobs use to queue further jobs.
    pub(super) fn behind(&self) -> FollowUpJobSender {
        FollowUpJobSender(Arc::downgrade(&self.queue))
    }

    /// Runs a job. Once the job has begun, it runs to its end. If the caller stops waiting before that, the job never
    /// begins.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let given = Instant::now();
        let job = SqliteJob::Alone(Box::new(move |connection| {
            // If a panic interrupts a transaction, the transaction is rolled back during unwinding.
            reply(answer, given, catch_unwind(AssertUnwindSafe(|| job(connection))))
        }));
        self.answered(SqliteJobPriority::Other, job, answered).await
    }

    /// Runs a write in a transaction that other writes may share. The result of `prepare` is passed to `action`, which
    /// runs in the transaction. If the transaction is rolled back because of one of its writes, `action` runs again.
    /// After the transaction, one of its writes runs `check`, and each write runs `end`. `end` gets the result of
    /// `action`, or the error of the transaction or of the check. The caller can cancel the write like a job of
    /// [`run`](Self::run).
    pub(super) async fn run_together<P: 'static, T: Send + 'static>(
        &self,
        urgency: SqliteJobPriority,
        prepare: impl FnOnce() -> Result<P, SqliteOperationError> + Send + 'static,
        action: impl Fn(&mut Connection, &P) -> Result<T, SqliteOperationError> + Send + 'static,
        check: impl Fn() -> Result<(), StoreError> + Send + 'static,
        end: impl FnOnce(Result<T, SqliteOperationError>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let given = Instant::now();
        let write = shared::member(prepare, action, check, move |written| {
            let done = written.and_then(|written| catch_unwind(AssertUnwindSafe(|| end(written))));
            reply(answer, given, done)
        });
        self.answered(urgency, SqliteJob::Together(write), answered).await
    }

    async fn answered<T>(
        &self,
        urgency: SqliteJobPriority,
        job: SqliteJob,
        answered: oneshot::Receiver<SqliteJobResult<T>>,
    ) -> Result<T, StoreError> {
        let Some(place) = self.queue.push(urgency, job) else {
            let (place, source) = ("the SQLite file".to_owned(), Arc::new(SqliteStoreClosed));
            return Err(StoreError::Unreachable { place, source });
        };
        let _waiting = WaitingJobGuard { place, queue: &self.queue };
        match answered.await.expect("every job that somebody waits for is answered") {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Drop for SqliteWorkers {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// The reason for which a closed store does nothing.
#[derive(Debug, thiserror::Error)]
#[error("the store was closed; open it anew")]
struct SqliteStoreClosed;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::future::join4;

    use super::*;

    /// A time limit that no test reaches.
    const BUSY: Duration = Duration::from_hours(1);

    fn waits(connection: &Connection) -> Duration {
        let millis = connection.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
        Duration::from_millis(millis.expect("a number").into())
    }

    fn busy<T>() -> Result<T, StoreError> {
        Err(StoreError::Busy { place: "the file".to_owned(), waited: BUSY })
    }

    #[tokio::test]
    async fn jobs_behind_a_job_that_waited_in_vain_have_waited_too() {
        let connection = Connection::open_in_memory().expect("a database");
        let workers = SqliteWorkers::start("test", vec![connection], BUSY).expect("a thread");
        let (all_wait, waited) = mpsc::channel();
        let first = workers.run(move |connection| {
            waited.recv().expect("the others wait");
            assert_eq!(waits(connection), BUSY);
            busy::<()>()
        });
        let second = workers.run(|connection| {
            assert!(waits(connection) < BUSY);
            busy::<()>()
        });
        let third = workers.run(|connection| {
            assert!(waits(connection) < BUSY, "the file has been locked the whole time");
            Ok(())
        });
        let fourth = workers.run(|connection| Ok(waits(connection)));
        let start = async {
            // The jobs are queued in the order in which `join!` polls them. This future is polled last, so all jobs are
            // queued now.
            all_wait.send(()).expect("the first one waits for it");
        };
        let (first, second, third, (fourth, ())) =
            join4(first, second, third, futures_util::future::join(fourth, start)).await;
        for error in [first.expect_err("it is busy"), second.expect_err("it is busy")] {
            match error {
                StoreError::Busy { waited, .. } => assert!(waited < BUSY, "the error reports the real time"),
                other => panic!("{other:?}"),
            }
        }
        third.expect("the file is free again");
        assert_eq!(fourth.expect("it is free"), BUSY);
    }
}

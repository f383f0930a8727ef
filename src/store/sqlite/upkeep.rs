//! Background jobs that keep the file and its write-ahead log small. They run after the jobs for which a caller waits.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode};

use super::{database::LOG_LIMIT, read_only::neighbour, workers::Behind};

/// The number of pages that one job returns to the file system. Returning a page costs as much as writing it.
const FREED: u32 = 4096;
/// The minimum number of free pages that stay in the file for later conversations.
const SPARE: i64 = 1024;

/// The size of the log, in bytes, above which the store restarts the log from its beginning. To do this, the store
/// waits for the readers of the log. SQLite by itself restarts the log only at a moment without readers.
const LONG: u64 = 4 * LOG_LIMIT as u64;
/// The maximum time to wait for the readers. Readers that begin during this time are not waited for, and nobody can
/// write during this time.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause after an attempt to empty the log that was blocked by readers. With this pause and [`PATIENCE`], a reader
/// that never ends costs writers a fiftieth of their time.
const PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Upkeep {
    log: PathBuf,
    /// The size of the log at which the next restart of the log is due.
    due: AtomicU64,
    /// Whether a job is returning free pages to the file system.
    is_reclaiming: AtomicBool,
    /// Whether a job is removing deleted content from the log.
    clears: AtomicBool,
    /// The pause between two attempts to empty the log.
    pause: Duration,
    behind: Behind,
}

impl Upkeep {
    /// Returns the upkeep of an existing file. Its jobs run on the thread that writes to the file.
    pub(super) fn new(file: &Path, behind: Behind) -> Arc<Self> {
        Arc::new(Self {
            log: neighbour(file, "-wal"),
            due: AtomicU64::new(LONG),
            is_reclaiming: AtomicBool::new(false),
            clears: AtomicBool::new(false),
            pause: PAUSE,
            behind,
        })
    }

    fn log_len(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// Queues a job that restarts the log if the log has become long. Called after each write.
    pub(super) fn look_at_log(self: &Arc<Self>) {
        if self.log_len() < self.due.load(Ordering::Relaxed) {
            return;
        }
        // Until this job is done, no other write may queue such a job.
        self.due.store(u64::MAX, Ordering::Relaxed);
        let upkeep = Arc::clone(self);
        self.behind.leave(move |connection| {
            let due = match restart_log(connection) {
                Ok(false) => LONG,
                // The current readers take longer than `PATIENCE`. The next attempt is due when the log has grown by
                // `LOG_LIMIT`.
                _ => LONG.max(upkeep.log_len().saturating_add(LOG_LIMIT.into())),
            };
            upkeep.due.store(due, Ordering::Relaxed);
            // This job waited for readers, and readers do not lock the file for other jobs. So its waiting time does
            // not count as time during which the file was locked, and the next jobs keep their full time limits.
            false
        });
    }

    /// Empties the log, which still contains the deleted pages. Called after a delete. If readers block this for longer
    /// than [`PATIENCE`], tries again after each [`PAUSE`].
    pub(super) fn clear(self: &Arc<Self>, connection: &Connection) {
        if self.clears.swap(true, Ordering::Relaxed) {
            // A reader blocked the previous attempt. This attempt does not wait for the reader. Otherwise, each of many
            // deletes would wait for the same reader.
            if let Err(error) = clear_log(connection, Duration::ZERO) {
                tracing::debug!(%error, "the write-ahead log could not be emptied after a delete");
            }
        } else {
            Clearing(Arc::clone(self)).run(connection, PATIENCE);
        }
    }

    /// Returns unneeded free pages to the file system. Called after a delete. Some pages are returned immediately. The
    /// rest are returned by further jobs, which take turns with the jobs of callers.
    pub(super) fn reclaim_pages(self: &Arc<Self>, connection: &Connection) {
        // One chain of jobs serves all deletes. Several chains would return several batches of pages between two
        // writes.
        if !self.is_reclaiming.swap(true, Ordering::Relaxed) {
            Reclaiming(Arc::clone(self)).run(connection);
        }
    }
}

/// A guard that is held by the single job that empties the log. The job passes it on to the next such job.
struct Clearing(Arc<Upkeep>);

impl Clearing {
    /// Empties the log, or queues a later attempt if readers block it.
    fn run(self, connection: &Connection, patience: Duration) {
        let is_held = clear_log(connection, patience).unwrap_or_else(|error| {
            tracing::debug!(%error, "the write-ahead log could not be emptied after a delete");
            is_busy(&error)
        });
        if is_held {
            let (behind, pause) = (self.0.behind.clone(), self.0.pause);
            behind.leave_for(pause, move |connection| {
                self.run(connection, PATIENCE);
                // This job waited for readers, and readers do not lock the file for other jobs. So the file does not
                // count as locked.
                false
            });
        }
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        self.0.clears.store(false, Ordering::Relaxed);
    }
}

/// Moves the content of the log into the file and empties the log. Returns whether readers or another writer prevented
/// this.
pub(super) fn clear_log(connection: &Connection, patience: Duration) -> Result<bool, rusqlite::Error> {
    connection.busy_timeout(patience)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
}

/// A guard that is held by the single job that returns free pages. The job passes it on to the next such job. It is
/// dropped when the chain of jobs ends for any reason.
struct Reclaiming(Arc<Upkeep>);

impl Reclaiming {
    /// Frees some pages. Returns whether the file was locked by another connection or process.
    fn run(self, connection: &Connection) -> bool {
        match free_pages(connection) {
            Ok(true) => {
                let behind = self.0.behind.clone();
                behind.leave(move |connection| self.run(connection));
                false
            }
            Ok(false) => false,
            // The conversation is already deleted, so a failure to return its pages is not an error.
            Err(error) => {
                tracing::debug!(%error, "free pages of the SQLite file could not be returned to the file system");
                is_busy(&error)
            }
        }
    }
}

impl Drop for Reclaiming {
    fn drop(&mut self) {
        self.0.is_reclaiming.store(false, Ordering::Relaxed);
    }
}

/// Restarts the log. Returns whether readers or another writer prevented this.
fn restart_log(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.busy_timeout(PATIENCE)?;
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get(0))
}

/// Frees some pages if there are too many free pages. Returns whether too many remain.
fn free_pages(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let spare =
        || Ok::<_, rusqlite::Error>((pragma("freelist_count")?, SPARE.max(pragma("page_count")? / 4)));
    let (before, enough) = spare()?;
    if before <= enough {
        return Ok(false);
    }
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({FREED})"))?;
    // Each step frees one page.
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}
    let (free, enough) = spare()?;
    // If another program created the file with other settings, no pages are returned. Then further jobs would be
    // useless.
    Ok(free > enough && free < before)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests {
    use std::{env, sync::mpsc};

    use futures_util::future::join3;

    use super::*;
    use crate::store::{ConversationId, sqlite::workers::Workers};

    /// A time limit that no test reaches.
    const BUSY: Duration = Duration::from_hours(1);

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let folder = env::temp_dir().join(format!("upkeep-{}", ConversationId::generate()));
            fs::create_dir(&folder).expect("a folder");
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("file")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn free(connection: &Connection) -> u32 {
        connection.pragma_query_value(None, "freelist_count", |row| row.get(0)).expect("a number")
    }

    #[tokio::test]
    async fn reclaim_after_several_deletes_runs_one_chain_of_steps() {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch(
                "PRAGMA page_size = 512; PRAGMA auto_vacuum = INCREMENTAL;
                 CREATE TABLE ballast (content BLOB); INSERT INTO ballast VALUES (zeroblob(16 << 20));
                 DELETE FROM ballast",
            )
            .expect("many free pages");
        let all = free(&connection);
        assert!(all > 5 * FREED);
        let workers = Workers::start("test", vec![connection], BUSY).expect("a thread");
        let upkeep = Upkeep::new(Path::new("nowhere"), workers.behind());
        let (all_wait, waited) = mpsc::channel();
        let begun = Arc::clone(&upkeep);
        let deletes = workers.run(move |connection| {
            waited.recv().expect("the next one waits");
            for _ in 0..3 {
                begun.reclaim_pages(connection);
            }
            Ok(free(connection))
        });
        // This job is queued after the first job, but before the next step of the chain that the first job starts. So
        // it runs in the middle of that chain.
        let next = Arc::clone(&upkeep);
        let next = workers.run(move |connection| {
            next.reclaim_pages(connection);
            Ok(free(connection))
        });
        let start = async { all_wait.send(()).expect("the first one waits for it") };
        let (after, next, ()) = join3(deletes, next, start).await;
        assert_eq!(after.expect("a number"), all - FREED);
        assert_eq!(next.expect("a number"), all - FREED);
        while workers.run(|connection| Ok(free(connection))).await.expect("a number")
            > SPARE.try_into().expect("a small number")
        {}
        // The chain has ended, and the next delete starts a new one.
        assert!(!upkeep.is_reclaiming.load(Ordering::Relaxed));
    }

    #[test]
    fn reclaim_that_failed_is_started_again_by_the_next_delete() {
        let folder = Folder::new();
        fs::write(folder.file(), "this is not a database").expect("a file");
        let connection = Connection::open(folder.file()).expect("it is not read yet");
        let workers = Workers::start("test", Vec::new(), BUSY).expect("no threads");
        let upkeep = Upkeep::new(&folder.file(), workers.behind());
        free_pages(&connection).expect_err("it is not a database");
        upkeep.reclaim_pages(&connection);
        assert!(!upkeep.is_reclaiming.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn clear_that_a_reader_blocked_succeeds_when_the_reader_has_ended() {
        let folder = Folder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        writer.execute_batch("INSERT INTO a VALUES (1)").expect("a row");
        let workers = Workers::start("test", vec![writer], BUSY).expect("a thread");
        let mut upkeep = Upkeep::new(&folder.file(), workers.behind());
        Arc::get_mut(&mut upkeep).expect("the only reference").pause = Duration::from_millis(1);
        let clearing = Arc::clone(&upkeep);
        let clear = move |connection: &mut Connection| {
            clearing.clear(connection);
            Ok(clearing.clears.load(Ordering::Relaxed))
        };
        assert!(workers.run(clear).await.expect("the job runs"), "a later attempt is queued");
        assert_ne!(upkeep.log_len(), 0, "the reader blocks the attempt");
        reader.execute_batch("COMMIT").expect("it has read");
        // No other job runs in the meantime, so the worker repeats the attempt without being woken by another job.
        while upkeep.log_len() != 0 {
            std::thread::yield_now();
        }
        while upkeep.clears.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn job_behind_a_log_restart_that_readers_blocked_has_its_full_waiting_time() {
        let folder = Folder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        assert!(restart_log(&writer).expect("the restart waits"), "the reader blocks the restart");
        let workers = Workers::start("test", vec![writer], BUSY).expect("a thread");
        let upkeep = Upkeep::new(&folder.file(), workers.behind());
        upkeep.due.store(0, Ordering::Relaxed);
        let restart = Arc::clone(&upkeep);
        let left = workers.run(move |_| {
            restart.look_at_log();
            Ok(restart.due.load(Ordering::Relaxed))
        });
        assert_eq!(left.await.expect("the job runs"), u64::MAX, "a restart is queued");
        let waits = |connection: &mut Connection| {
            Ok(connection
                .pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0))
                .expect("a number"))
        };
        let waits = workers.run(waits).await.expect("the job runs");
        assert_eq!(upkeep.due.load(Ordering::Relaxed), LONG, "the restart has run");
        assert_eq!(Duration::from_millis(waits.into()), BUSY);
    }
}

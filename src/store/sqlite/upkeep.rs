//! Background jobs that keep the file and its write-ahead log small. They run after the jobs for which a caller waits.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, hooks::Wal};

use super::{database::LOG_LIMIT, workers::FollowUpJobSender};

/// The number of pages that one job returns to the file system. Returning a page costs as much as writing it.
const FREED: u32 = 4096;
/// The minimum number of free pages that stay in the file for later conversations.
const SPARE: i64 = 1024;

/// SQLite's default size of a page in bytes.
const PAGE_SIZE: u32 = 4096;
/// When the log has this many pages, the next commit copies them to the database file. SQLite's default is 1000. A page
/// that many writes have changed is copied only once, so many busy conversations write faster with a longer log. A log
/// of this length stays below [`LOG_LIMIT`].
const COPY_PAGES: u32 = 4000;
/// The number of pages in the log above which the store restarts the log from its beginning. To do this, the store
/// waits for the readers of the log. SQLite by itself restarts the log only at a moment without readers.
const RESTART_PAGES: u32 = 4 * LOG_LIMIT / PAGE_SIZE;
/// The maximum time to wait for the readers. Readers that begin during this time are not waited for, and nobody can
/// write during this time.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause after an attempt to empty the log that was blocked by readers. With this pause and [`PATIENCE`], a reader
/// that never ends costs writers a fiftieth of their time.
const PAUSE: Duration = Duration::from_secs(10);

pub(super) struct SqliteUpkeep {
    /// The number of pages in the log at which the next restart of the log is due.
    due: AtomicU32,
    /// Whether a job is returning free pages to the file system.
    is_reclaiming: AtomicBool,
    /// Whether a job is removing deleted content from the log.
    clears: AtomicBool,
    /// The pause between two attempts to empty the log.
    pause: Duration,
    behind: FollowUpJobSender,
}

impl SqliteUpkeep {
    /// Returns the upkeep of a file. Its jobs run on the thread that writes to the file.
    pub(super) fn new(behind: FollowUpJobSender) -> Arc<Self> {
        Self::with_pause(behind, PAUSE)
    }

    fn with_pause(behind: FollowUpJobSender, pause: Duration) -> Arc<Self> {
        let upkeep = Arc::new(Self {
            due: AtomicU32::new(RESTART_PAGES),
            is_reclaiming: AtomicBool::new(false),
            clears: AtomicBool::new(false),
            pause,
            behind,
        });
        let watching = Arc::clone(&upkeep);
        // This job runs before the first write.
        upkeep.behind.leave(move |connection| {
            // SQLite calls this hook after each commit with the number of pages in the log. The hook replaces SQLite's
            // automatic copying of the log. Reading the log's length from the file system would make the next sync
            // slower on some systems, because the sync would have to write the file's time of change too.
            let watch = move |log: &mut Wal, pages: c_int| {
                watching.shorten_log(log, pages.unsigned_abs());
                Ok(())
            };
            if let Err(error) = connection.wal_hook(Some(watch)) {
                tracing::warn!(%error, "the length of SQLite's write-ahead log can't be observed, so SQLite copies it as often as by default");
            }
            false
        });
        upkeep
    }

    /// Copies the log to the database file if the log has become long, and queues a job that restarts the log if the
    /// log has become very long. Called after each commit.
    fn shorten_log(self: &Arc<Self>, log: &mut Wal, pages: u32) {
        if pages >= COPY_PAGES
            && let Err(error) = log.checkpoint()
        {
            tracing::debug!(%error, "the write-ahead log could not be copied to the SQLite file");
        }
        self.restart_if_due(pages);
    }

    fn restart_if_due(self: &Arc<Self>, pages: u32) {
        let due = self.due.load(Ordering::Relaxed);
        if pages < due {
            if pages < COPY_PAGES && due != u32::MAX {
                // SQLite has restarted the log, so an attempt that readers have blocked no longer matters.
                self.due.store(RESTART_PAGES, Ordering::Relaxed);
            }
            return;
        }
        // Until this job is done, no other write may queue such a job.
        self.due.store(u32::MAX, Ordering::Relaxed);
        let upkeep = Arc::clone(self);
        self.behind.leave(move |connection| {
            let due = match restart_log(connection) {
                Ok(None) => RESTART_PAGES,
                // The current readers take longer than `PATIENCE`. The next attempt is due when the log has grown by
                // `LOG_LIMIT`.
                blocked => blocked.ok().flatten().unwrap_or(pages).saturating_add(LOG_LIMIT / PAGE_SIZE),
            };
            upkeep.due.store(due.max(RESTART_PAGES), Ordering::Relaxed);
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
            WalClearingGuard(Arc::clone(self)).run(connection, PATIENCE);
        }
    }

    /// Returns unneeded free pages to the file system. Called after a delete. Some pages are returned immediately. The
    /// rest are returned by further jobs, which take turns with the jobs of callers.
    pub(super) fn reclaim_pages(self: &Arc<Self>, connection: &Connection) {
        // One chain of jobs serves all deletes. Several chains would return several batches of pages between two
        // writes.
        if !self.is_reclaiming.swap(true, Ordering::Relaxed) {
            PageReclaimingGuard(Arc::clone(self)).run(connection);
        }
    }
}

/// A guard that is held by the single job that empties the log. The job passes it on to the next such job.
struct WalClearingGuard(Arc<SqliteUpkeep>);

impl WalClearingGuard {
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

impl Drop for WalClearingGuard {
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
struct PageReclaimingGuard(Arc<SqliteUpkeep>);

impl PageReclaimingGuard {
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

impl Drop for PageReclaimingGuard {
    fn drop(&mut self) {
        self.0.is_reclaiming.store(false, Ordering::Relaxed);
    }
}

/// Restarts the log. If readers or another writer prevent this, returns the number of pages in the log.
fn restart_log(connection: &Connection) -> Result<Option<u32>, rusqlite::Error> {
    connection.busy_timeout(PATIENCE)?;
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| {
        let (is_held, pages): (bool, i64) = (row.get(0)?, row.get(1)?);
        // If another process copies the log, the number is -1.
        Ok(is_held.then(|| pages.try_into().unwrap_or(0)))
    })
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

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::PathBuf, sync::mpsc};

    use futures_util::future::join3;

    use super::*;
    use crate::store::{ConversationId, sqlite::workers::SqliteWorkers};

    /// A time limit that no test reaches.
    const BUSY: Duration = Duration::from_hours(1);

    struct TemporaryTestFolder(PathBuf);

    impl TemporaryTestFolder {
        fn new() -> Self {
            let folder = env::temp_dir().join(format!("upkeep-{}", ConversationId::generate()));
            fs::create_dir(&folder).expect("a folder");
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("file")
        }

        fn log_len(&self) -> u64 {
            fs::metadata(self.0.join("file-wal")).expect("the log").len()
        }
    }

    impl Drop for TemporaryTestFolder {
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
        let workers = SqliteWorkers::start("test", vec![connection], BUSY).expect("a thread");
        let upkeep = SqliteUpkeep::new(workers.behind());
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
        let folder = TemporaryTestFolder::new();
        fs::write(folder.file(), "this is not a database").expect("a file");
        let connection = Connection::open(folder.file()).expect("it is not read yet");
        let workers = SqliteWorkers::start("test", Vec::new(), BUSY).expect("no threads");
        let upkeep = SqliteUpkeep::new(workers.behind());
        free_pages(&connection).expect_err("it is not a database");
        upkeep.reclaim_pages(&connection);
        assert!(!upkeep.is_reclaiming.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn clear_that_a_reader_blocked_succeeds_when_the_reader_has_ended() {
        let folder = TemporaryTestFolder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        writer.execute_batch("INSERT INTO a VALUES (1)").expect("a row");
        let workers = SqliteWorkers::start("test", vec![writer], BUSY).expect("a thread");
        let upkeep = SqliteUpkeep::with_pause(workers.behind(), Duration::from_millis(1));
        let clearing = Arc::clone(&upkeep);
        let clear = move |connection: &mut Connection| {
            clearing.clear(connection);
            Ok(clearing.clears.load(Ordering::Relaxed))
        };
        assert!(workers.run(clear).await.expect("the job runs"), "a later attempt is queued");
        assert_ne!(folder.log_len(), 0, "the reader blocks the attempt");
        reader.execute_batch("COMMIT").expect("it has read");
        // No other job runs in the meantime, so the worker repeats the attempt without being woken by another job.
        while folder.log_len() != 0 {
            std::thread::yield_now();
        }
        while upkeep.clears.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn log_that_has_become_long_is_copied_and_begins_anew() {
        let folder = TemporaryTestFolder::new();
        let writer = Connection::open(folder.file()).expect("a database");
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        let workers = SqliteWorkers::start("test", vec![writer], BUSY).expect("a thread");
        let _upkeep = SqliteUpkeep::new(workers.behind());
        let write = |connection: &mut Connection| {
            // Each commit adds about 256 pages, about twice `COPY_PAGES` in total.
            for _ in 0..2 * COPY_PAGES / 256 {
                connection.execute("INSERT INTO a VALUES (zeroblob(1 << 20))", []).expect("a row");
            }
            Ok(())
        };
        workers.run(write).await.expect("the job runs");
        let most = u64::from(PAGE_SIZE) * u64::from(COPY_PAGES + 512);
        assert!(folder.log_len() < most, "the log has {} bytes", folder.log_len());
        // By itself, SQLite would copy the log at 1000 pages.
        assert!(folder.log_len() > most / 2, "the log has {} bytes", folder.log_len());
    }

    #[tokio::test]
    async fn job_behind_a_log_restart_that_readers_blocked_has_its_full_waiting_time() {
        let folder = TemporaryTestFolder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        let pages = restart_log(&writer).expect("the restart waits");
        assert!(pages.is_some_and(|pages| pages > 0), "the reader blocks the restart");
        let workers = SqliteWorkers::start("test", vec![writer], BUSY).expect("a thread");
        let upkeep = SqliteUpkeep::new(workers.behind());
        upkeep.due.store(1, Ordering::Relaxed);
        let restart = Arc::clone(&upkeep);
        let left = workers.run(move |connection| {
            connection.execute("INSERT INTO a VALUES (1)", []).expect("a row");
            Ok(restart.due.load(Ordering::Relaxed))
        });
        assert_eq!(left.await.expect("the job runs"), u32::MAX, "a restart is queued");
        let waits = |connection: &mut Connection| {
            Ok(connection
                .pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0))
                .expect("a number"))
        };
        let waits = workers.run(waits).await.expect("the job runs");
        assert_eq!(upkeep.due.load(Ordering::Relaxed), RESTART_PAGES, "the restart has run");
        assert_eq!(Duration::from_millis(waits.into()), BUSY);
    }
}

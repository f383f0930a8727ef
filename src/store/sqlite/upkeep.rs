//! Keeping the file and its log small, behind what somebody waits for.

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

/// Pages that are given back to the file system at once: it costs as much as writing them.
const FREED: u32 = 4096;
/// Pages that may stay in the file for the next conversations.
const SPARE: i64 = 1024;

/// Bytes that the log may grow to before its readers are waited for, so that it can begin anew. SQLite does that by itself
/// only when a moment comes in which nobody reads.
const LONG: u64 = 4 * LOG_LIMIT as u64;
/// How long they are waited for: new ones don't count, and nobody can write meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause after a try to clear the log that readers held up. With [`PATIENCE`], a reader that never ends costs writers a
/// fiftieth of their time.
const PAUSE: Duration = Duration::from_secs(10);

pub(super) struct Upkeep {
    log: PathBuf,
    /// How long the log is when its readers are waited for next.
    due: AtomicU64,
    /// There is a job that gives room back.
    gives_back: AtomicBool,
    /// There is a job that clears the log of what was deleted.
    clears: AtomicBool,
    /// The pause between two tries to clear the log.
    pause: Duration,
    behind: Behind,
}

impl Upkeep {
    /// Keeps an existing file small. The jobs run on the thread that writes to it.
    pub(super) fn new(file: &Path, behind: Behind) -> Arc<Self> {
        Arc::new(Self {
            log: neighbour(file, "-wal"),
            due: AtomicU64::new(LONG),
            gives_back: AtomicBool::new(false),
            clears: AtomicBool::new(false),
            pause: PAUSE,
            behind,
        })
    }

    fn log_len(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// After each write: has the log begin anew if it has grown long.
    pub(super) fn look_at_log(self: &Arc<Self>) {
        if self.log_len() < self.due.load(Ordering::Relaxed) {
            return;
        }
        // Nobody else, until this is done.
        self.due.store(u64::MAX, Ordering::Relaxed);
        let upkeep = Arc::clone(self);
        self.behind.leave(move |connection| {
            let due = match restart_log(connection) {
                Ok(false) => LONG,
                // They read for longer than that: once more when that much has come to it.
                _ => LONG.max(upkeep.log_len().saturating_add(LOG_LIMIT.into())),
            };
            upkeep.due.store(due, Ordering::Relaxed);
            // Readers keep nobody from writing, and nobody was waited for as long as those behind this may wait.
            false
        });
    }

    /// After a delete: clears the log, which still has the deleted pages as they were. Waits for readers for a short time.
    /// If they take longer, tries again from time to time.
    pub(super) fn clear(self: &Arc<Self>, connection: &Connection) {
        if self.clears.swap(true, Ordering::Relaxed) {
            // A reader held up the one before. Many deletes must not wait for that reader one after another.
            if let Err(error) = clear_log(connection, Duration::ZERO) {
                tracing::debug!(%error, "the log of a file of conversations could not be cleared");
            }
        } else {
            Clearing(Arc::clone(self)).go_on(connection, PATIENCE);
        }
    }

    /// After a delete: gives room that is not needed back to the file system, some of it now and the rest in turn with what
    /// others wait for.
    pub(super) fn give_back(self: &Arc<Self>, connection: &Connection) {
        // What one delete left to be done is done for all: each in turn would be as many steps between two writes.
        if !self.gives_back.swap(true, Ordering::Relaxed) {
            GivingBack(Arc::clone(self)).go_on(connection);
        }
    }
}

/// Held by the one job that clears the log, and handed to the next one.
struct Clearing(Arc<Upkeep>);

impl Clearing {
    /// Empties the log, or leaves that for later if readers hold it up.
    fn go_on(self, connection: &Connection, patience: Duration) {
        let is_held = clear_log(connection, patience).unwrap_or_else(|error| {
            tracing::debug!(%error, "the log of a file of conversations could not be cleared");
            is_busy(&error)
        });
        if is_held {
            let (behind, pause) = (self.0.behind.clone(), self.0.pause);
            behind.leave_for(pause, move |connection| {
                self.go_on(connection, PATIENCE);
                // As with a long log: readers keep nobody from writing.
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

/// Moves the content of the log into the file and empties the log. Returns whether readers or another writer were in the way.
pub(super) fn clear_log(connection: &Connection, patience: Duration) -> Result<bool, rusqlite::Error> {
    connection.busy_timeout(patience)?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
}

/// Held by the one job that gives room back, and handed to the next; dropped when there is none, whyever.
struct GivingBack(Arc<Upkeep>);

impl GivingBack {
    /// Says whether others kept the file.
    fn go_on(self, connection: &Connection) -> bool {
        match free_pages(connection) {
            Ok(true) => {
                let behind = self.0.behind.clone();
                behind.leave(move |connection| self.go_on(connection));
                false
            }
            Ok(false) => false,
            // The conversation is gone already: that room is not given back is no error.
            Err(error) => {
                tracing::debug!(%error, "the file of conversations could not be made smaller");
                is_busy(&error)
            }
        }
    }
}

impl Drop for GivingBack {
    fn drop(&mut self) {
        self.0.gives_back.store(false, Ordering::Relaxed);
    }
}

/// Whether readers or another writer were in the way.
fn restart_log(connection: &Connection) -> Result<bool, rusqlite::Error> {
    connection.busy_timeout(PATIENCE)?;
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get(0))
}

/// Frees some pages if there are too many; says whether there are still.
fn free_pages(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let spare =
        || Ok::<_, rusqlite::Error>((pragma("freelist_count")?, SPARE.max(pragma("page_count")? / 4)));
    let (before, enough) = spare()?;
    if before <= enough {
        return Ok(false);
    }
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({FREED})"))?;
    // A step a page.
    let mut steps = vacuum.query([])?;
    while steps.next()?.is_some() {}
    let (free, enough) = spare()?;
    // A file that another program has set up otherwise gives nothing back.
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
    use crate::store::{
        ConversationId,
        sqlite::workers::{Urgency, Workers},
    };

    /// Longer than any test.
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
    async fn deletes_one_after_another_give_room_back_in_one_chain_of_steps() {
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
        let deletes = workers.run(Urgency::Other, move |connection| {
            waited.recv().expect("the next one waits");
            for _ in 0..3 {
                begun.give_back(connection);
            }
            Ok(free(connection))
        });
        // In line before what the first one leaves, and that comes before what is left here.
        let next = Arc::clone(&upkeep);
        let next = workers.run(Urgency::Other, move |connection| {
            next.give_back(connection);
            Ok(free(connection))
        });
        let start = async { all_wait.send(()).expect("the first one waits for it") };
        let (after, next, ()) = join3(deletes, next, start).await;
        assert_eq!(after.expect("a number"), all - FREED);
        assert_eq!(next.expect("a number"), all - FREED);
        while workers.run(Urgency::Other, |connection| Ok(free(connection))).await.expect("a number")
            > SPARE.try_into().expect("a small number")
        {}
        // It has come to its end, and the next delete begins anew.
        assert!(!upkeep.gives_back.load(Ordering::Relaxed));
    }

    #[test]
    fn giving_back_that_fails_is_begun_anew_by_the_next_delete() {
        let folder = Folder::new();
        fs::write(folder.file(), "no database, and nothing like it").expect("a file");
        let connection = Connection::open(folder.file()).expect("it is not read yet");
        let workers = Workers::start("test", Vec::new(), BUSY).expect("no threads");
        let upkeep = Upkeep::new(&folder.file(), workers.behind());
        free_pages(&connection).expect_err("it is no database");
        upkeep.give_back(&connection);
        assert!(!upkeep.gives_back.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn log_that_a_reader_held_up_is_cleared_when_the_reader_has_ended() {
        let folder = Folder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        writer.execute_batch("INSERT INTO a VALUES (1)").expect("a row");
        let workers = Workers::start("test", vec![writer], BUSY).expect("a thread");
        let mut upkeep = Upkeep::new(&folder.file(), workers.behind());
        Arc::get_mut(&mut upkeep).expect("nobody else has it").pause = Duration::from_millis(1);
        let clearing = Arc::clone(&upkeep);
        let clear = move |connection: &mut Connection| {
            clearing.clear(connection);
            Ok(clearing.clears.load(Ordering::Relaxed))
        };
        assert!(workers.run(Urgency::Other, clear).await.expect("it is done"), "it is left for later");
        assert_ne!(upkeep.log_len(), 0, "the reader holds it up");
        reader.execute_batch("COMMIT").expect("it has read");
        // Nothing else is to be done meanwhile: the worker comes back to it by itself.
        while upkeep.log_len() != 0 {
            std::thread::yield_now();
        }
        while upkeep.clears.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn job_behind_a_log_that_readers_held_up_waits_for_as_long_as_any() {
        let folder = Folder::new();
        let open = || Connection::open(folder.file()).expect("a database");
        let (writer, reader) = (open(), open());
        writer.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE a (b)").expect("a table");
        reader.execute_batch("BEGIN; SELECT * FROM a").expect("it reads");
        assert!(restart_log(&writer).expect("it is waited for"), "the reader is in the way");
        let workers = Workers::start("test", vec![writer], BUSY).expect("a thread");
        let upkeep = Upkeep::new(&folder.file(), workers.behind());
        upkeep.due.store(0, Ordering::Relaxed);
        let restart = Arc::clone(&upkeep);
        let left = workers.run(Urgency::Other, move |_| {
            restart.look_at_log();
            Ok(restart.due.load(Ordering::Relaxed))
        });
        assert_eq!(left.await.expect("it is done"), u64::MAX, "a restart is left to be done");
        let waits = |connection: &mut Connection| {
            Ok(connection
                .pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0))
                .expect("a number"))
        };
        let waits = workers.run(Urgency::Other, waits).await.expect("it is done");
        assert_eq!(upkeep.due.load(Ordering::Relaxed), LONG, "that is done");
        assert_eq!(Duration::from_millis(waits.into()), BUSY);
    }
}

//! Keeping the file and its log small, behind what somebody waits for.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode};

use super::{database::LOG_LIMIT, workers::Behind};

/// Pages that are given back to the file system at once: it costs as much as writing them.
const FREED: u32 = 4096;
/// Pages that may stay in the file for the next conversations.
const SPARE: i64 = 1024;

/// Bytes that the log may grow to before its readers are waited for, so that it can begin anew. SQLite does that by itself
/// only when a moment comes in which nobody reads.
const LONG: u64 = 4 * LOG_LIMIT as u64;
/// How long they are waited for: new ones don't count, and nobody can write meanwhile.
const PATIENCE: Duration = Duration::from_millis(200);

pub(super) struct Upkeep {
    log: PathBuf,
    /// How long the log is when its readers are waited for next.
    due: AtomicU64,
    behind: Behind,
}

impl Upkeep {
    /// For the file; by the one that writes to it.
    pub(super) fn new(file: &Path, behind: Behind) -> Arc<Self> {
        let mut log = OsString::from(file);
        log.push("-wal");
        Arc::new(Self { log: log.into(), due: AtomicU64::new(LONG), behind })
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
            let restarted = restart_log(connection);
            let is_busy = match &restarted {
                Ok(is_busy) => *is_busy,
                Err(error) => is_busy(error),
            };
            let due = match restarted {
                Ok(false) => LONG,
                // They read for longer than that: once more when that much has come to it.
                _ => LONG.max(upkeep.log_len().saturating_add(LOG_LIMIT.into())),
            };
            upkeep.due.store(due, Ordering::Relaxed);
            is_busy
        });
    }

    /// After a delete: gives room that is not needed back to the file system, some of it now and the rest in turn with what
    /// others wait for.
    pub(super) fn give_back(self: &Arc<Self>, connection: &Connection) -> bool {
        match free_pages(connection) {
            Ok(true) => {
                let upkeep = Arc::clone(self);
                self.behind.leave(move |connection| upkeep.give_back(connection));
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

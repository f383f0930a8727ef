//! Conversations in one SQLite file (feature `sqlite`).
//!
//! # Layout
//!
//! The file's schema has a version (`PRAGMA user_version`, now 1), and `PRAGMA application_id` says that it is of
//! this crate. Opening a file brings its schema up to date; one of a version yet to come is refused with
//! [`StoreError::UnknownFormat`].
//!
//! | table | a row for each |
//! | --- | --- |
//! | `conversations` | conversation: id, version, times, title, head, owner |
//! | `states` | conversation: model, system prompt and options, as JSON |
//! | `nodes` | message, as JSON, exactly as it was written |
//! | `cursors` | cursor |
//! | `writes` | write, to know a repetition by |
//!
//! Any program that knows SQLite reads it:
//!
//! ```sql
//! SELECT nodes.id, message ->> '$.role', message -> '$.content'
//! FROM nodes JOIN conversations ON key = conversation
//! WHERE conversations.id = 'holiday' ORDER BY nodes.version, place;
//! ```
//!
//! Beside the file are its write-ahead log (`-wal`) and that log's index (`-shm`), both part of it as long as a
//! process has it open. To copy it then, use `VACUUM INTO` or SQLite's backup, and in a process that has it open never open it
//! as a file: closing it again would take away the locks that SQLite has on it. The file is for its owner only (mode 0600 on
//! Unix) if the store creates it.
//!
//! # Writes
//!
//! A write is one transaction, synced before it is acknowledged (`synchronous = FULL`). One connection writes, others
//! read beside it and never wait for it. Processes may share the file: one writes at a time, and another waits for
//! it, by default for five seconds; then the error is [`StoreError::Busy`], also for the writes behind that one, which have
//! waited beside it. All of it is done on threads of the
//! store's own, in which no runtime takes part. A write that nobody waits for any more is made if it was begun, else not.
//!
//! A file that is removed or replaced while a store has it open takes no more writes, and gives nothing to read:
//! [`StoreError::Unreachable`] (where another is in its place, on Unix alone) until it is back, or opened anew.
//!
//! # Read-only files
//!
//! If the file can be read and not written to, it is opened for reading: loading, listing, exporting and copying from it
//! work. Every write fails with [`StoreError::Denied`]. Acquiring a lease is a write, so sessions can't be opened there. Once the
//! file can be written to, open the store anew. If SQLite has created an index (`-shm`) next to the file meanwhile, it has the
//! file's mode of then: delete it first, while nobody has the file open.
//!
//! A write-ahead log that belongs to such a file is read too. If the log's index (`-shm`) is missing, SQLite needs permission to
//! create it in the folder; without it, opening fails with [`StoreError::Denied`].
//!
//! If there is neither log nor index, the store creates no file and locks nothing. When another process writes to the file
//! later, reads fail with [`StoreError::Unreachable`] until the store is opened anew.
//!
//! # Deletes
//!
//! A delete overwrites the conversation's pages with zeros (`secure_delete`), and empties the write-ahead log before it is
//! acknowledged, so that the deleted text is neither in the file nor beside it. Two things can keep some of it there:
//!
//! - A reader that began before the delete, in this process or another, needs the log as it was. The delete waits for such
//!   readers for a fifth of a second. If they take longer, the log is emptied by a later delete, by a new try every ten
//!   seconds, when the file is opened next, or when the last process closes it.
//! - SQLite itself can leave a copy of a row of less than about 1,000 bytes in the unused part of a page when it moves rows
//!   between pages. `secure_delete` does not reach such copies. [`SqliteStore::vacuum`] removes them, and what was deleted
//!   with an earlier version of this crate or by another program.
//!
//! Blocks of the disk that the file system has taken back, backups and snapshots are out of the store's reach.
//!
//! Room of deleted conversations is used again, and given back to the file system when it comes to more than a quarter of
//! the file: 4096 pages at a time, between writes. A write-ahead log of more than 64 MiB, to which it grows while some
//! reader is always there, is brought back to 16 MiB by waiting for the readers, for a fifth of a second at a time.
//!
//! # Ownership
//!
//! Leases are kept in the file and measured by the machine's clock. Renewing them goes before the writes that wait. A
//! process that is stopped in the middle of a transaction keeps its lock; see below.
//!
//! # A stopped process
//!
//! If a process is stopped (`SIGSTOP`, a debugger, a paused container) in the middle of a write, it keeps the lock of the
//! file. Until that process continues or ends, no other process can write to any conversation in the file, take over its
//! conversations, or open a session: these get [`StoreError::Busy`]. Reading and listing still work. Leases run out
//! meanwhile. When the lock is free again, their owners can renew them, unless another process acquires the conversation first.
//! Killing the stopped process frees the lock at once, and its unfinished write is rolled back.
//!
//! The time in which this can happen is short: a write is encoded before its transaction begins, and the transaction only
//! writes and syncs. If processes are often stopped, use `PostgresStore` (feature `postgres`).
//!
//! # Where it works
//!
//! On local file systems: the write-ahead log needs memory that processes share, which network file systems do not
//! have. SQLite itself is compiled in. A program that links another one must link 3.51.3 or later; opening a store
//! says so otherwise.

mod database;
mod read;
mod read_only;
mod row;
mod upkeep;
mod workers;
mod write;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::Connection;

use self::{
    database::{Connections, Database, Fault},
    upkeep::Upkeep,
    workers::{Urgency, Workers},
};
use super::{
    Commit, ConversationId, Lease, Owner, Page, StateChange, Store, StoreError, Stored, StoredState, Summary,
    Version, Write, WriteId,
    file_system::{Durability, blocking},
    rows::Change,
};

/// Keeps conversations in one SQLite file, for applications on one machine. Clones share everything.
///
/// Processes may share the file. If one of them is stopped (`SIGSTOP`) in the middle of a write, the others can read but not write
/// until it continues or ends.
///
/// The module's documentation has the layout.
///
/// ```
/// use omni_agent::store::{ConversationId, SqliteStore, Store, StoredState, WriteId};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let file = std::env::temp_dir().join(format!("{}.sqlite", ConversationId::generate()));
///
/// let store = SqliteStore::open(&file).await?;
/// let id = ConversationId::new("first")?;
/// store.create(&id, WriteId::generate(), &StoredState::default()).await?;
/// assert!(store.exists(&id).await?);
/// # std::fs::remove_file(file)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore(Arc<Inner>);

struct Inner {
    database: Arc<Database>,
    readers: Workers,
    /// `None` if the file can only be read.
    writing: Option<Writing>,
}

struct Writing {
    writer: Workers,
    upkeep: Arc<Upkeep>,
}

/// Opens a [`SqliteStore`] with settings of its own.
#[derive(Clone, Debug)]
pub struct SqliteStoreBuilder {
    file: PathBuf,
    durability: Durability,
    busy: Duration,
    lease: Duration,
    readers: usize,
}

impl SqliteStoreBuilder {
    /// What an acknowledged write survives; a crash of the machine if unset. With [`Durability::Process`], what a power
    /// cut takes is the newest writes; the file stays sound.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long to wait for another process that writes; five seconds if unset. To the millisecond, 24 days at most.
    pub fn lock_wait(mut self, limit: Duration) -> Self {
        self.busy = limit.min(Duration::from_millis(i32::MAX.unsigned_abs().into()));
        self
    }

    /// How long a lease lasts that is not renewed; 30 seconds if unset. To the millisecond, ten at least.
    pub fn lease(mut self, lasts: Duration) -> Self {
        self.lease = lasts.max(Duration::from_millis(10));
        self
    }

    /// Threads that read, each with a connection; four if unset, one at least.
    pub fn readers(mut self, threads: usize) -> Self {
        self.readers = threads.max(1);
        self
    }

    /// Opens the store. Creates its file if it is not there, and brings its schema up to date.
    ///
    /// # Errors
    ///
    /// As for [`SqliteStore::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a file without conversations.
    pub async fn open(self) -> Result<SqliteStore, StoreError> {
        let Self { file, durability, busy, lease, readers } = self;
        blocking(move || {
            let mut database = Database::new(database::absolute(&file)?, durability, busy, lease);
            let Connections { writer, readers } = database.open(readers)?;
            let start = |name, connections| {
                Workers::start(name, connections, busy)
                    .map_err(|error| StoreError::failed("starting threads for SQLite", error))
            };
            let writing = |writer: Connection| {
                // A process that ended right after a delete has left the deleted content in the log.
                if let Err(error) = upkeep::clear_log(&writer, Duration::ZERO) {
                    tracing::debug!(%error, "the log of a file of conversations could not be cleared");
                }
                let writer = start("sqlite-writer", vec![writer])?;
                Ok::<_, StoreError>(Writing { upkeep: Upkeep::new(&database.file, writer.behind()), writer })
            };
            Ok(SqliteStore(Arc::new(Inner {
                writing: writer.map(writing).transpose()?,
                readers: start("sqlite-reader", readers)?,
                database: Arc::new(database),
            })))
        })
        .await
    }
}

impl SqliteStore {
    /// Opens the store in this file. Creates the file if it does not exist. Its folder has to exist.
    ///
    /// If the file exists and this process can't write to it, the store is opened for reading alone: every write is
    /// [`StoreError::Denied`].
    ///
    /// Needs a tokio runtime; the store itself then works on any.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] or [`StoreError::Denied`]; [`StoreError::Damaged`] if the file is no
    /// database, or another application's, which is left as it is; [`StoreError::UnknownFormat`]; [`StoreError::Busy`];
    /// [`StoreError::Misconfigured`] if the program is linked with a version of SQLite that can lose writes; or what else SQLite
    /// has against it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a file without conversations.
    pub async fn open(file: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder(file).open().await
    }

    /// Settings for a store in this file.
    pub fn builder(file: impl Into<PathBuf>) -> SqliteStoreBuilder {
        SqliteStoreBuilder {
            file: file.into(),
            durability: Durability::default(),
            busy: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            readers: 4,
        }
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.0.database.file
    }

    /// Writes the file anew (`VACUUM`), without free room and without any trace of what was deleted or replaced before.
    ///
    /// Takes as long as copying the file, and as much room on the disk meanwhile. Nobody can write to the file until this is
    /// done; others can read.
    ///
    /// # Errors
    ///
    /// [`StoreError::Busy`], [`StoreError::Full`], or another failure to write to the file.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the file is as before or written anew, and whole in both cases.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        let upkeep = Arc::clone(&self.writing()?.upkeep);
        self.write_by(Urgency::Other, None, move |connection, _| {
            connection.execute_batch("VACUUM")?;
            upkeep.clear(connection);
            Ok(())
        })
        .await
    }

    fn writing(&self) -> Result<&Writing, StoreError> {
        self.0.writing.as_ref().ok_or_else(|| self.0.database.read_only())
    }

    async fn read<T: Send + 'static>(
        &self,
        id: Option<&ConversationId>,
        action: impl FnOnce(&mut Connection, &Database) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(&self.0.readers, Urgency::Other, id, "reading", action).await
    }

    async fn write<T: Send + 'static>(
        &self,
        id: &ConversationId,
        action: impl FnOnce(&mut Connection, &Database) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write_by(Urgency::Other, Some(id), action).await
    }

    async fn write_by<T: Send + 'static>(
        &self,
        urgency: Urgency,
        id: Option<&ConversationId>,
        action: impl FnOnce(&mut Connection, &Database) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Writing { writer, upkeep } = self.writing()?;
        let upkeep = Arc::clone(upkeep);
        let write = move |connection: &mut Connection, database: &Database| {
            let done = action(connection, database);
            upkeep.look_at_log();
            done
        };
        self.run(writer, urgency, id, "writing to", write).await
    }

    async fn remove(&self, id: &ConversationId, lease: Option<Lease>) -> Result<(), StoreError> {
        let (named, upkeep) = (id.clone(), Arc::clone(&self.writing()?.upkeep));
        self.write(id, move |connection, _| {
            write::delete(connection, &named, lease.as_ref())?;
            upkeep.give_back(connection);
            upkeep.clear(connection);
            Ok(())
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        workers: &Workers,
        urgency: Urgency,
        id: Option<&ConversationId>,
        doing: &'static str,
        action: impl FnOnce(&mut Connection, &Database) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (database, id) = (Arc::clone(&self.0.database), id.cloned());
        let job = move |connection: &mut Connection| {
            let done =
                action(connection, &database).map_err(|fault| database.failed(doing, id.as_ref(), fault));
            // Afterwards, so that nothing is acknowledged that went to a file which nobody finds any more.
            database.still_there()?;
            done
        };
        workers.run(urgency, job).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let (named, state) = (id.clone(), state.clone());
        self.write(id, move |connection, _| write::create(connection, &named, write, state)).await
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        let (named, write, commit) = (id.clone(), *write, commit.clone());
        self.write(id, move |connection, _| {
            let change = Change::of_commit(&named, commit)?;
            write::change(connection, &named, &write, &change)
        })
        .await
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        let (named, write, change) = (id.clone(), *write, change.clone());
        self.write(id, move |connection, _| {
            let change = Change::of_state(&named, change)?;
            write::change(connection, &named, &write, &change)
        })
        .await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let named = id.clone();
        self.read(Some(id), move |connection, database| read::load(connection, database, &named)).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        let named = id.clone();
        self.read(Some(id), move |connection, _| read::summary(connection, &named)).await
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        self.read(None, move |connection, database| read::list(connection, database, page)).await
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        self.remove(id, None).await
    }

    async fn delete_under(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        self.remove(id, Some(lease.clone())).await
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let (named, owner) = (id.clone(), owner.clone());
        self.write(id, move |connection, database| write::acquire(connection, database, &named, &owner)).await
    }

    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let lost = self.renew_all(&[(id.clone(), lease.clone())]).await?;
        if lost.is_empty() { Ok(lease.clone()) } else { Err(StoreError::LeaseLost { id: id.clone() }) }
    }

    async fn renew_all(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let leases = leases.to_vec();
        // Before all writes that wait: their number must cost no lease.
        let renew = move |connection: &mut Connection, database: &Database| {
            write::renew(connection, database, &leases)
        };
        self.write_by(Urgency::Renewal, None, renew).await
    }

    async fn release(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let (named, lease) = (id.clone(), lease.clone());
        self.write(id, move |connection, _| write::release(connection, &named, &lease)).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("file", &self.0.database.file).finish_non_exhaustive()
    }
}

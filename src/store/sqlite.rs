//! Conversations in one SQLite file (feature `sqlite`).
//!
//! [`SqliteStore`] is a [`Store`] for applications on one machine. [`SqliteStore::open`] opens or creates its file, and
//! [`SqliteStoreBuilder`] sets the [`Durability`], the waiting time for locks, the duration of leases and the number of
//! reading threads.
//!
//! ```
//! use std::time::Duration;
//!
//! use omni_agent::store::{
//!     ConversationId, SqliteStore, Store,
//!     custom::{Change, StoredState, Write},
//! };
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! # let file = std::env::temp_dir().join(format!("{}.sqlite", ConversationId::generate()));
//!
//! let store = SqliteStore::builder(&file).lock_wait(Duration::from_secs(10)).readers(2).open().await?;
//! let id = ConversationId::new("holiday")?;
//! let state = StoredState::default().with_title("Holiday");
//! store.write(&id, &Write::first(), &Change::create(state)).await?;
//! assert_eq!(store.summary(&id).await?.title.as_deref(), Some("Holiday"));
//! # drop(store);
//! # let _ = std::fs::remove_file(file);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//!
//! The schema of the file has a version (`PRAGMA user_version`, now 11). `PRAGMA application_id` marks the file as
//! a file of this crate. Opening a file updates its schema. A file with a version before 10 or with a later version than
//! this crate knows is rejected with [`StoreError::UnknownFormat`].
//!
//! | table | one row per |
//! | --- | --- |
//! | `conversations` | conversation: id, version, times, title, head, owner |
//! | `states` | conversation: model, system prompt and options, as JSON |
//! | `nodes` | message, as JSON, exactly as it was written, but with references to files |
//! | `files` | attachment of more than 16 KiB in a conversation: its bytes, once for equal attachments |
//! | `file_uses` | reference from a message, the turn in flight or the end of the last run to a file |
//! | `cursors` | cursor |
//! | `writes` | write, to recognize a repetition |
//! | `labels` | label of a conversation |
//! | `usage` | request: an entry of the usage ledger |
//! | `kept_usage` | label set, hour and model: the usage of deleted conversations |
//! | `runs` | conversation whose last run has a stored end: [`Stored::last_run`](super::Stored::last_run) |
//! | `turns`, `approvals`, `pending` | the recorded turns in flight as JSON, the tool uses that wait for decisions, and the messages so far |
//! | `schedules` | schedule of a conversation, as JSON |
//!
//! Any program with SQLite support can read the file:
//!
//! ```sql
//! SELECT nodes.id, message ->> '$.role', message -> '$.content'
//! FROM nodes JOIN conversations ON key = conversation
//! WHERE conversations.id = 'holiday' ORDER BY nodes.version, place;
//! ```
//!
//! SQLite keeps two files next to the database file: its write-ahead log (`-wal`) and the log's index (`-shm`). Both
//! belong to its content. The threads of a dropped store close the file in the background, so the two can stay after the
//! end of the process, unless [`SqliteStore::close`] was called. Then copy all files together. As long as a process has the file open, use `VACUUM INTO` or
//! SQLite's backup. A process that has the store open must never open the file in another way, because closing it again
//! would release SQLite's locks on it. If the store creates the file, only its owner can access it (mode 0600 on Unix).
//!
//! # Writes
//!
//! A write is atomic, and is synced before it is acknowledged (`synchronous = FULL`). One connection writes. Writes
//! that wait for it at the same time share a transaction and its sync, so many busy conversations write faster than
//! one. Other connections read at the same time and never wait for the writer.
//!
//! Several processes may use the file. Only one of them writes at a time. The others wait, by default for up to five
//! seconds, and then their writes fail with [`StoreError::Busy`]. A write that is queued behind such a write in the
//! same process also fails once it has waited for this time.
//!
//! The store uses the file on its own threads, without a runtime. Only commits of short texts are encoded on the thread
//! of the caller. If the caller of a write stops waiting, the write is dropped unless it has already begun. A write that
//! has begun is completed.
//!
//! If the file is removed or replaced while a store has it open, all operations fail with [`StoreError::Unreachable`]
//! until the original file is back or the store is opened again. A replaced file is detected on Unix only.
//!
//! # Read-only files
//!
//! If the process may read the file but not write to it, the store is opened for reading. Then loading, listing,
//! exporting and copying work, and every write fails with [`StoreError::Denied`]. Acquiring a lease is a write, so
//! sessions can't be opened. Once the file is writable, open the store again. If SQLite has created an index (`-shm`)
//! next to the file in the meantime, the index has the file's old permissions. Delete such an index before you open the
//! store again, while no process has the file open.
//!
//! The store also reads the write-ahead log of a read-only file. If the log's index (`-shm`) is missing, SQLite needs
//! permission to create it in the folder. Without this permission, opening the store fails with [`StoreError::Denied`].
//!
//! If a read-only file has neither a write-ahead log nor an index, the store creates no files and locks nothing. If
//! another process writes to the file later, reads fail with [`StoreError::Unreachable`] until the store is opened
//! again.
//!
//! # Searches
//!
//! [`SqliteStoreBuilder::search`] creates the index for [`Store::search`]. The index consists of the tables `texts`,
//! `words` (FTS5) and `indexing`. Each write of any process updates the index, whether the process searches or not. The
//! index does not contain the texts themselves, but their words, as [`Query`] describes them. Of each message, 256 KiB of
//! text are indexed. If more than 20,000 texts match, the store examines the conversations from the newest on until the
//! page is full. If a later version of this crate makes words by another rule, it builds the index anew when it opens the
//! file, and [`Found::complete`] is `false` until then.
//!
//! Another program must not change nodes and titles of an indexed file, because it does not update the index.
//!
//! # Deletes and erasures
//!
//! Before a delete or an [erasure](Change::Erase) is acknowledged, the store overwrites the deleted data with zeros
//! (`secure_delete`) and empties the write-ahead log. So neither the file nor the log contains the deleted text
//! afterwards. There are two exceptions:
//!
//! - A reader that began before the delete, in this process or another, needs the old log. The delete waits for such
//!   readers for a fifth of a second. If the readers take longer, the log is emptied by the first of these events: a
//!   later delete, another attempt (there is one every ten seconds), the next opening of the file, or the closing of
//!   the file by the last process.
//! - When SQLite moves rows between pages, it can leave a copy of a row of less than about 1,000 bytes in the unused
//!   part of a page. `secure_delete` does not overwrite such copies. [`SqliteStore::vacuum`] removes them. It also
//!   removes content that other programs or earlier versions of this crate have deleted but not overwritten.
//!
//! The store can't erase backups, snapshots, and disk blocks that the file system has reclaimed.
//!
//! The space of deleted conversations is reused. If this space exceeds a quarter of the file, the store returns it to
//! the file system: 4096 pages at a time, between writes. If there is always an active reader, the write-ahead log can
//! grow. If the log exceeds 64 MiB, the store waits for its readers, for a fifth of a second at a time, and then
//! reduces the log to 16 MiB.
//!
//! # Ownership
//!
//! Leases are stored in the file and measured by the machine's clock. Renewals are processed before waiting writes. A
//! process that is stopped in the middle of a transaction keeps the file's lock, as described below.
//!
//! # A stopped process
//!
//! A process that is stopped (`SIGSTOP`, a debugger, a paused container) in the middle of a write keeps the lock of the
//! file. Until the stopped process continues or ends, no other process can write to any conversation in the file, take
//! over a conversation, or open a session. These operations fail with [`StoreError::Busy`]. Reading and listing still
//! work. Leases expire in the meantime. When the lock is free again, the owners of expired leases can write and renew
//! them, unless another process acquires the conversation first. Killing the stopped process frees the lock immediately, and
//! its unfinished write is rolled back.
//!
//! A stopped process keeps the lock only if it was stopped during a transaction. Transactions are short: a write is
//! encoded before its transaction begins, and the transaction only writes and syncs. If processes are often stopped,
//! use `PostgresStore` (feature `postgres`).
//!
//! # Requirements
//!
//! The file must be on a local file system, because the write-ahead log needs memory that processes share. Network file
//! systems do not support such memory. SQLite itself is compiled in. A program that links a different SQLite must link
//! version 3.51.3 or later. Otherwise opening a store fails with an error that explains this.

mod database;
mod filter;
mod ledger;
mod read;
mod read_only;
mod row;
mod schedules;
mod search;
mod shared;
mod turns;
mod upkeep;
mod workers;
mod write;

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::Connection;

use self::{
    database::{OpenedSqliteConnections, SqliteDatabase, SqliteOperationError},
    upkeep::SqliteUpkeep,
    workers::{SqliteJobPriority, SqliteWorkers},
};
use super::{
    Change, ConversationId, Filter, Found, Lease, Listing, Owner, Page, Query, ScheduleList, Schedules,
    Store, StoreError, StoreTraits, Stored, StoredTurn, Summary, TurnSummary, Turns, Version, Write,
    file_system::{Durability, blocking},
    rows::{RowChanges, ScheduleRowChange},
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
};

/// A store that keeps conversations in one SQLite file, for applications on one machine. Clones share one store.
///
/// Several processes may use the same file. If a process is stopped (`SIGSTOP`) in the middle of a write, the other
/// processes can read but not write until the stopped process continues or ends.
///
/// The [module](self) documents the layout of the file.
///
/// ```
/// use omni_agent::store::{
///     ConversationId, SqliteStore, Store,
///     custom::{Change, StoredState, Write},
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let file = std::env::temp_dir().join(format!("{}.sqlite", ConversationId::generate()));
///
/// let store = SqliteStore::open(&file).await?;
/// let id = ConversationId::new("first")?;
/// let version = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
/// assert_eq!(store.summary(&id).await?.version, version);
/// # std::fs::remove_file(file)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore(Arc<SqliteShared>);

struct SqliteShared {
    database: Arc<SqliteDatabase>,
    readers: SqliteWorkers,
    /// The writer and its upkeep, or `None` if the file can only be read.
    writing: Option<SqliteWriterAndUpkeep>,
}

struct SqliteWriterAndUpkeep {
    writer: SqliteWorkers,
    upkeep: Arc<SqliteUpkeep>,
    /// Whether the file had an index of words when it was opened.
    is_indexed: bool,
}

/// Settings for opening a [`SqliteStore`].
#[derive(Clone, Debug)]
pub struct SqliteStoreBuilder {
    file: PathBuf,
    durability: Durability,
    busy: Duration,
    lease: Duration,
    readers: usize,
    search: bool,
}

impl SqliteStoreBuilder {
    crate::setters::setters! {
        /// Sets the kinds of crashes that acknowledged writes survive. By default, writes also survive a crash of the
        /// machine. With [`Durability::Process`], a power failure can lose the latest writes, but the file stays valid.
        pub fn durability(self, durability: Durability) { self.durability = durability }

        /// Sets how long to wait while another process writes. The default is five seconds. The value is rounded to
        /// milliseconds, and limited to 24 days.
        pub fn lock_wait(self, limit: Duration) {
            self.busy = limit.min(Duration::from_millis(i32::MAX.unsigned_abs().into()));
        }

        /// Sets how long a lease lasts without renewal. The default is 30 seconds. The value is rounded to
        /// milliseconds, and is at least ten milliseconds.
        pub fn lease(self, lasts: Duration) { self.lease = lasts.max(Duration::from_millis(10)) }

        /// Sets the number of reading threads, each with its own connection. The default is four, and the minimum is
        /// one.
        pub fn readers(self, threads: usize) { self.readers = threads.max(1) }

        /// Sets whether to create an index for [`Store::search`] if the file has none. The default is `false`.
        ///
        /// Once a file has an index, the index stays, and all processes update it with every write. The index is about
        /// as large as the texts, and writes take longer. The store indexes older conversations in the background, in
        /// short transactions. It repeats a transaction that fails, for example because another process locks the file.
        pub fn search(self, is_on: bool) { self.search = is_on }
    }

    /// Opens the store. Creates the file if it does not exist, and updates the file's schema.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`SqliteStore::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a file without conversations.
    pub async fn open(self) -> Result<SqliteStore, StoreError> {
        let Self { file, durability, busy, lease, readers, search } = self;
        blocking(move || {
            let mut database = SqliteDatabase::new(database::absolute(&file)?, durability, busy, lease);
            let OpenedSqliteConnections { writer, readers } = database.open(readers)?;
            let start = |name, connections| {
                SqliteWorkers::start(name, connections, busy)
                    .map_err(|error| StoreError::failed("starting threads for SQLite", error))
            };
            let writing = |mut writer: Connection| {
                // If the previous process ended right after a delete, the log still contains the deleted content.
                if let Err(error) = upkeep::clear_log(&writer, Duration::ZERO) {
                    tracing::debug!(%error, "the write-ahead log could not be emptied when the SQLite file was opened");
                }
                // Emptying the log has removed the time limit for locks.
                let is_indexed = writer
                    .busy_timeout(busy)
                    .map_err(SqliteOperationError::from)
                    .and_then(|()| search::prepare(&mut writer, search))
                    .and_then(|()| Ok(search::rule(&writer)?.is_some()))
                    .map_err(|fault| database.failed("preparing", None, fault))?;
                let writer = start("sqlite-writer", vec![writer])?;
                let upkeep = SqliteUpkeep::new(writer.behind());
                search::index_older(writer.behind());
                Ok::<_, StoreError>(SqliteWriterAndUpkeep { writer, upkeep, is_indexed })
            };
            Ok(SqliteStore(Arc::new(SqliteShared {
                writing: writer.map(writing).transpose()?,
                readers: start("sqlite-reader", readers)?,
                database: Arc::new(database),
            })))
        })
        .await
    }
}

impl SqliteStore {
    /// Opens the store in this file. If the file does not exist, creates it. The folder of the file must exist.
    ///
    /// If the file exists and this process can't write to it, the store is opened for reading only. Then every write
    /// fails with [`StoreError::Denied`].
    ///
    /// Opening needs a tokio runtime. Afterwards, the store works on any runtime.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unreachable`], [`StoreError::Denied`] or [`StoreError::Busy`]. Fails with
    /// [`StoreError::Damaged`] if the file is not a database or belongs to another application. In this case, the file
    /// is not changed. Fails with [`StoreError::UnknownFormat`] if another version of this crate wrote the file. Fails
    /// with [`StoreError::Misconfigured`] if the program is linked with a version of SQLite that can lose writes. Also
    /// fails with other errors of SQLite.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave a file without conversations.
    pub async fn open(file: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder(file).open().await
    }

    /// Returns settings for a store in this file.
    pub fn builder(file: impl Into<PathBuf>) -> SqliteStoreBuilder {
        SqliteStoreBuilder {
            file: file.into(),
            durability: Durability::default(),
            busy: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            readers: 4,
            search: false,
        }
    }

    /// Closes the file, for all clones of the store, and waits until it is closed. Operations that have begun are completed
    /// before. Later ones fail with [`StoreError::Unreachable`].
    ///
    /// When no other process has the file open, SQLite copies its write-ahead log to the file, and removes the log. If a
    /// store is dropped instead, its threads close the file in the background, so the log can remain after the end of the
    /// process. No acknowledged write is lost in either case. Close the store after the sessions and managers that use it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, reads or all operations may fail from now on, and the file may stay open. Another call
    /// closes it.
    pub async fn close(&self) {
        // The writer is last, because SQLite removes the log with the last connection only.
        self.0.readers.close().await;
        if let Some(writing) = &self.0.writing {
            writing.writer.close().await;
        }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> &Path {
        &self.0.database.file
    }

    /// Rewrites the file without free space and without remains of deleted or replaced content (`VACUUM`).
    ///
    /// This takes as long as copying the file, and temporarily needs as much disk space as a copy. Until the file is
    /// rewritten, it can be read but not written to.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Busy`] or [`StoreError::Full`], or if writing to the file fails for another reason.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the file is either unchanged or completely rewritten. The file is valid in both cases.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        let upkeep = Arc::clone(&self.writing()?.upkeep);
        self.write_alone(None, move |connection, _| {
            connection.execute_batch("VACUUM")?;
            upkeep.clear(connection);
            Ok(())
        })
        .await
    }

    fn writing(&self) -> Result<&SqliteWriterAndUpkeep, StoreError> {
        self.0.writing.as_ref().ok_or_else(|| self.0.database.read_only())
    }

    async fn read<T: Send + 'static>(
        &self,
        id: Option<&ConversationId>,
        action: impl FnOnce(&mut Connection, &SqliteDatabase) -> Result<T, SqliteOperationError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(&self.0.readers, id, "reading", action).await
    }

    /// Performs a write in a transaction that other writes may share. `prepare` encodes the write before this
    /// transaction begins, so that encoding does not keep the file locked.
    async fn write_shared<P: 'static, T: Send + 'static>(
        &self,
        urgency: SqliteJobPriority,
        id: Option<&ConversationId>,
        prepare: impl FnOnce() -> Result<P, SqliteOperationError> + Send + 'static,
        action: impl Fn(&mut Connection, &SqliteDatabase, &P) -> Result<T, SqliteOperationError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (database, id) = (Arc::clone(&self.0.database), id.cloned());
        let action = {
            let database = Arc::clone(&database);
            move |connection: &mut Connection, prepared: &P| action(connection, &database, prepared)
        };
        // The check follows the transaction. Otherwise a write to a file that has been removed or replaced could be
        // acknowledged.
        let check = {
            let database = Arc::clone(&database);
            move || database.still_there()
        };
        let end = move |written: Result<T, SqliteOperationError>| {
            written.map_err(|fault| database.failed("writing to", id.as_ref(), fault))
        };
        self.writing()?.writer.run_together(urgency, prepare, action, check, end).await
    }

    /// Writes in a transaction that no other write shares.
    async fn write_alone<T: Send + 'static>(
        &self,
        id: Option<&ConversationId>,
        action: impl FnOnce(&mut Connection, &SqliteDatabase) -> Result<T, SqliteOperationError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(&self.writing()?.writer, id, "writing to", action).await
    }

    async fn run<T: Send + 'static>(
        &self,
        workers: &SqliteWorkers,
        id: Option<&ConversationId>,
        doing: &'static str,
        action: impl FnOnce(&mut Connection, &SqliteDatabase) -> Result<T, SqliteOperationError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (database, id) = (Arc::clone(&self.0.database), id.cloned());
        let job = move |connection: &mut Connection| {
            let done =
                action(connection, &database).map_err(|fault| database.failed(doing, id.as_ref(), fault));
            // The check follows the action. Otherwise a write to a file that has been removed or replaced could be
            // acknowledged.
            database.still_there()?;
            done
        };
        workers.run(job).await
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn traits(&self) -> StoreTraits {
        let lease = Some(self.0.database.lease);
        StoreTraits {
            usage: true,
            erase: true,
            turns: true,
            schedules: true,
            search: true,
            labels: true,
            lease,
        }
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        // If nothing can be written, this error comes first.
        let SqliteWriterAndUpkeep { upkeep, is_indexed, .. } = self.writing()?;
        let (upkeep, is_indexed) = (Arc::clone(upkeep), *is_indexed);
        let (named, encoded, write, change) = (id.clone(), id.clone(), *write, change.clone());
        if let Change::Schedule(change) = change {
            let prepare = move || Ok(ScheduleRowChange::of(&encoded, *change)?);
            let write = move |connection: &mut Connection, _: &SqliteDatabase, row: &ScheduleRowChange| {
                schedules::write(connection, &named, row)
            };
            return self.write_shared(SqliteJobPriority::Other, Some(id), prepare, write).await;
        }
        if let Change::Erase(_) = change {
            let rows = RowChanges::of(id, change)?;
            let erase = move |connection: &mut Connection, _: &SqliteDatabase| {
                let version = write::write(connection, &named, &write, &rows)?;
                upkeep.clear(connection);
                Ok(version)
            };
            return self.write_alone(Some(id), erase).await;
        }
        let is_light = matches!(&change, Change::Commit(commit) if write::is_light(commit));
        let rows = if is_light { Ok(RowChanges::of(id, change)?) } else { Err(change) };
        let prepare = move || {
            let rows = rows.or_else(|change| RowChanges::of(&encoded, change))?;
            if is_indexed {
                // The words are made here, because other processes wait for the end of the transaction.
                for node in &rows.nodes {
                    node.words();
                }
            }
            Ok(rows)
        };
        let write = move |connection: &mut Connection, _: &SqliteDatabase, rows: &RowChanges| {
            write::write(connection, &named, &write, rows)
        };
        self.write_shared(SqliteJobPriority::Other, Some(id), prepare, write).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        let named = id.clone();
        self.read(Some(id), move |connection, database| read::load(connection, database, &named)).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        let named = id.clone();
        self.read(Some(id), move |connection, database| read::summary(connection, database, &named)).await
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        let named = id.clone();
        self.read(Some(id), move |connection, database| turns::turn(connection, database, &named)).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        let listing = listing.clone();
        self.read(None, move |connection, database| filter::list(connection, database, listing)).await
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let listing = listing.clone();
        self.read(None, move |connection, database| turns::list(connection, database, which, &listing)).await
    }

    async fn schedules(&self, which: &Schedules, listing: &Listing) -> Result<ScheduleList, StoreError> {
        let (which, listing) = (which.clone(), listing.clone());
        self.read(None, move |connection, database| schedules::list(connection, database, &which, &listing))
            .await
    }

    async fn search(&self, query: &Query, listing: &Listing) -> Result<Found, StoreError> {
        let (query, listing) = (query.clone(), listing.clone());
        self.read(None, move |connection, database| search::search(connection, database, &query, &listing))
            .await
    }

    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
        let (named, page) = (id.clone(), page.clone());
        self.read(Some(id), move |connection, database| ledger::rows(connection, database, &named, &page))
            .await
    }

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let filter = filter.clone();
        self.read(None, move |connection, _| ledger::used(connection, &filter, period)).await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        let upkeep = Arc::clone(&self.writing()?.upkeep);
        let (named, lease) = (id.clone(), lease.cloned());
        self.write_alone(Some(id), move |connection, _| {
            write::delete(connection, &named, lease.as_ref())?;
            upkeep.reclaim_pages(connection);
            upkeep.clear(connection);
            Ok(())
        })
        .await
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let (named, owner) = (id.clone(), owner.clone());
        let acquire = move |connection: &mut Connection, database: &SqliteDatabase, (): &()| {
            write::acquire(connection, database, &named, &owner)
        };
        self.write_shared(SqliteJobPriority::Other, Some(id), || Ok(()), acquire).await
    }

    async fn renew(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let leases = leases.to_vec();
        // Renewals run before waiting writes, so that a lease does not expire because of many writes.
        let renew = move |connection: &mut Connection, database: &SqliteDatabase, (): &()| {
            write::renew(connection, database, &leases)
        };
        self.write_shared(SqliteJobPriority::Renewal, None, || Ok(()), renew).await
    }

    async fn release(
        &self,
        id: &ConversationId,
        lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        let (named, lease) = (id.clone(), lease.clone());
        let release = move |connection: &mut Connection, _: &SqliteDatabase, (): &()| {
            write::release(connection, &named, &lease, mark)
        };
        self.write_shared(SqliteJobPriority::Other, Some(id), || Ok(()), release).await
    }
}

crate::debug::impl_debug!(SqliteStore(self) { file: self.0.database.file, .. });

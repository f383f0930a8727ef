//! Conversations in a folder, each in its own log.
//!
//! [`FileSystemStore`] is a [`Store`] for one machine. People can read its files. [`FileSystemStore::open`] opens or
//! creates its folder. [`FileSystemStoreBuilder`] sets the [`Durability`] of writes and the waiting time for locks.
//!
//! ```
//! use omni_agent::store::{
//!     ConversationId, FileSystemStore, Store,
//!     custom::{Change, StoredState, Write},
//!     file_system::Durability,
//! };
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = std::env::temp_dir().join(ConversationId::generate().as_str());
//!
//! let store = FileSystemStore::builder(&folder).durability(Durability::Process).open().await?;
//! let id = ConversationId::new("holiday")?;
//! let state = StoredState::default().with_title("Holiday");
//! store.write(&id, &Write::first(), &Change::create(state)).await?;
//! assert!(folder.join("holiday.jsonl").exists());
//! assert_eq!(store.summary(&id).await?.title.as_deref(), Some("Holiday"));
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//!
//! The store is made for up to 10,000 conversations. Each conversation has one file in the store's folder: the log
//! `ID.jsonl`, which contains the whole conversation.
//!
//! In addition, the folder has the file `@deleted-usage.jsonl` if conversations with usage were deleted (see the
//! section "Usage"). An [exclusive](FileSystemStoreBuilder::exclusive) store locks the file `@lock`. A file whose name
//! ends in `.new` was created to replace a log or `@deleted-usage.jsonl`. The store ignores all other files in the
//! folder. Only the owner of a file can access it (mode 0600 on Unix). If the store creates the folder, only the owner
//! of the folder can access it (mode 0700).
//!
//! # The log
//!
//! Each line is one JSON object and one write, in the order of the writes:
//!
//! ```text
//! {"sum":"5ba0f1c4","len":       244,"record":{"change":{"create":{"model":"anthropic:claude-sonnet-4-6"}},"version":77,"write":"…","time":1763769600000,"entry":{…}}}
//! {"sum":"8d1f0c0e","len":       591,"record":{"change":{"commit":{"head":2,"nodes":[…]}},"version":78,"write":"…","time":1763769601234,"entry":{…}}}
//! {"sum":"0c6b21f7","len":     91300,"record":{"files":["…"],"data":["…"],"change":{…},"version":79,"write":"…","time":1763769602345,"entry":{…}}}
//! ```
//!
//! `len` is the length of the record in bytes, padded with spaces to ten characters. `sum` is the CRC-32 of the record
//! (as in zlib and PNG), in eight hexadecimal digits. Times are milliseconds since 1970. A record contains the version
//! after the write and the write's id. The `entry` contains the facts for a list, as they are after the write: the
//! version of the format, the id, the times of the creation and of the last write that counts in lists, the head, the
//! title, the labels and, if a turn is in flight, the number of its tool uses that wait for a decision. The `change` of
//! a record is one of:
//!
//! | change | content |
//! | --- | --- |
//! | `create` | the state: model, system, options, limits, title, labels |
//! | `commit` | the head and, if present, changed cursors, the state, new nodes (id, parent, message, usage), rows of the usage ledger, and a record of the turn in flight or the end of a run |
//! | `state` | the whole state, only the title, or all labels |
//! | `erase` | the ids of the erased nodes, the head, the id of the next node, the state, and the end of the last run |
//! | `mark` | the last event of a session's feed, which [`Store::release`] has recorded. The line is synced, but it is not a write. It has the version and the id of the line before it |
//!
//! An attachment of more than 16 KiB of base64 is a *file*. Its messages contain the reference
//! `{"type":"file","sha256":"…"}` in place of the source. The first line that refers to the file also contains its name
//! (the SHA-256 of its bytes) in `files`, and the bytes as base64 in `data`. So a log contains each file once.
//!
//! Any tool for JSON Lines can read a log: `jq '.record.change.commit.nodes[]?.message' ID.jsonl`.
//!
//! # Writes
//!
//! A write locks the log (`flock` on Unix), reads its last line, compares versions, appends its line, syncs it
//! (`fdatasync`) and unlocks the log. The duration does not depend on the length of the conversation. Only a write with
//! a file reads the first 4 KiB of each line, to find whether the log has the file. Between writes,
//! the store holds no descriptor, memory or lock. If another writer holds the lock, a write waits, by default for up to
//! five seconds. Then it fails with [`StoreError::Busy`].
//!
//! A crash can leave an incomplete line at the end of the log. The write of such a line was never acknowledged, and the
//! next write removes the line. Every other line that does not match its length and sum is
//! [damage](StoreError::Damaged), and the error names the file and the line. A conversation whose first line is
//! incomplete does not exist. A line has at most 1,000,000,000 bytes, and a longer one is damage, so a damaged log does
//! not fill the memory.
//!
//! The time of a line is never earlier than the time of the line before it, even if the clock was set back.
//!
//! # Lists
//!
//! A list reads the last line of each log, as a write does, and shows its entry. It checks the length and the sum of
//! this line only: a load checks all lines. Lists of turns read the whole logs of the conversations whose entry shows a
//! turn. The store does not support searches.
//!
//! # Turns in flight
//!
//! Sessions record turns in flight only if the store is [exclusive](FileSystemStoreBuilder::exclusive). A record
//! contains the messages that are new since the record before, and the state of the agent as JSON text. The state
//! contains all results of the step so far, so the records of a step with n tools contain up to n(n + 1)/2 results. A
//! large attachment in a result is stored once.
//! Reading the log adds the records up. A record that can't be read, for example because a later version of the crate
//! has written it, does not make the log unreadable: the turn is returned with its damage.
//!
//! If a load finds more than 1 MiB, and more than half of the log, in records of turns that have ended, it rewrites the
//! log without these records, and without the files that no other line needs. All lines stay, with their versions and writes. The new log is written to a new file,
//! synced, and renamed into place, and the folder is synced. The new log is locked from before the renaming until the
//! folder is synced. A log with a turn in flight is not rewritten, and neither is a log that belongs to another user or
//! is reached through a symbolic link.
//!
//! # Erasure
//!
//! [`Change::Erase`] rewrites the log in the same way, also while a turn is in flight. The lines stay without the erased
//! nodes, the files that only these nodes need, the records of turns, the ends of runs, the titles, the labels and the
//! states. They keep their usage. The last
//! line records the erasure. It contains the state, and the end of the last run without messages. After a crash at any
//! moment, the erasure is either complete or has not happened. If the log can't be rewritten, the write fails and nothing
//! changes. If only the last sync of the folder fails, the write also fails, but the erasure is complete unless the
//! machine crashes.
//!
//! A delete removes a new log that a crash has left behind, and then the log.
//!
//! After an erasure or a delete, no file in the folder contains the text. The bytes stay on the disk until the file
//! system reuses their space. Backups, snapshots and other names of the old log (hard links) keep the text.
//!
//! # Usage
//!
//! A conversation's usage ledger consists of the rows in the commits of its log. A commit without rows counts as one row
//! for each new node with usage. [`Store::usage`] reads the log. [`Store::used`] reads all logs in the folder that have
//! the labels, or whose labels can't be read, and fails if one of them is damaged.
//!
//! Before a delete removes a log, it adds a line to `@deleted-usage.jsonl`, and syncs it. The line contains the sums of
//! the conversation's usage by hour and model, the labels, and the conversation's birth: its first version and write.
//! It contains neither the id of the conversation nor messages. It has the frame of a line of a log. If the log can't
//! be read, it is deleted without its sums, and a warning is logged. If the disk is full, a conversation with usage
//! can't be deleted.
//!
//! A conversation counts once, even if a crash interrupts its delete: a line whose birth still has a log does not
//! count, and of several lines with the same birth, the last one counts. If the file is damaged, the next delete
//! renames it to `@deleted-usage.TIME.jsonl`, logs a warning, and begins a new file.
//!
//! When the file is longer than 64 KiB, and twice as long as after it was last merged, a delete merges the lines of
//! conversations without a log into the first line: `merged` has their sums by labels, hour and model. The file is
//! replaced in the same way as a log, so a crash loses no sums. The birth of merged sums has the version 0, and another
//! write for each merge.
//!
//! # Versions of the format
//!
//! The entry of each line names the version of the format, which is 10. If a log or `@deleted-usage.jsonl` has another
//! version, it is rejected with [`StoreError::UnknownFormat`]. A delete removes it, but not the files that earlier
//! versions kept next to the log, such as `ID.summary.json`, which contains the title and the labels.
//!
//! # Requirements
//!
//! The folder must be on a local file system with locks. The store is tested on Linux. On a network file system, the
//! store is as reliable as that system's locks. On a file system that ignores case, two ids that differ only in case
//! can't both exist: creating the second id fails.

mod deleted;
mod list;
mod log;
mod place;
mod record;
mod write;

use std::{
    fs::{DirBuilder, File},
    io,
    ops::Range,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use self::{
    log::{ConversationLog, LogLockOutcome},
    place::{LogPath, sync_folder},
    record::LogChange,
};
use super::{
    Change, ConversationId, Filter, Lease, Listing, Page, Store, StoreError, StoreTraits, Stored, Summary,
    TurnSummary, Turns, Version, Write,
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
};

/// A store that keeps conversations in a folder, for applications on one machine. Clones share one store.
///
/// Several processes may use the same folder. If a process is stopped (`SIGSTOP`) in the middle of a write, the other
/// processes can't write to that conversation until the stopped process continues or ends.
///
/// The store needs a tokio runtime of either kind, with the timer enabled. It accesses files on the runtime's blocking
/// threads, and it uses the timer to wait for locks.
///
/// The [module](self) documents the layout of the folder and the format of the files.
///
/// ```no_run
/// use omni_agent::store::{FileSystemStore, Listing, Store};
///
/// # async fn run() -> Result<(), omni_agent::store::StoreError> {
/// let store = FileSystemStore::open("conversations").await?;
/// for conversation in store.list(&Listing::default()).await? {
///     println!("{} {}", conversation.id, conversation.title.as_deref().unwrap_or("untitled"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileSystemStore(Arc<FilesShared>);

struct FilesShared {
    folder: PathBuf,
    durability: Durability,
    lock_wait: Duration,
    /// The lock on the folder, which excludes other exclusive stores as long as the file is open.
    exclusive: Option<File>,
}

/// The first and the longest pause between attempts to get a lock.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// Waits before the next attempt to lock this file. Fails if the operation, which began at `begun`, has waited too long.
async fn pause(begun: Instant, lock_wait: Duration, file: &Path) -> Result<(), StoreError> {
    let waited = begun.elapsed();
    if waited >= lock_wait {
        return Err(StoreError::Busy { place: file.display().to_string(), waited });
    }
    // Each pause is about as long as all pauses before it.
    sleep(waited.clamp(PAUSES.0, PAUSES.1).min(lock_wait.saturating_sub(waited))).await;
    Ok(())
}

impl FileSystemStore {
    /// Opens the store in this folder. If the folder does not exist, creates it.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Denied`] if a permission is missing, with [`StoreError::Unreachable`] if the path is
    /// not a folder, or with another error of the system.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty folder.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder(folder).open().await
    }

    /// Returns settings for a store in this folder.
    pub fn builder(folder: impl Into<PathBuf>) -> FileSystemStoreBuilder {
        FileSystemStoreBuilder::new(folder.into())
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Locks the log, then runs an action on the log. Returns `None` if the log does not exist.
    ///
    /// Waiting for the lock can be cancelled. Once the action has started, it runs to its end.
    async fn locked<T, F>(
        &self,
        id: &ConversationId,
        create: bool,
        mut action: F,
    ) -> Result<Option<T>, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&ConversationLog<'_>, Durability) -> Result<T, StoreError> + Send + 'static,
    {
        let begun = Instant::now();
        loop {
            let tried = self.at(id, move |place, shared| match ConversationLog::lock(place, create)? {
                LogLockOutcome::Held(log) => action(&log, shared.durability).map(|done| Ok(Some(done))),
                LogLockOutcome::Missing => Ok(Ok(None)),
                LogLockOutcome::Taken => Ok(Err(action)),
            });
            action = match tried.await? {
                Ok(done) => return Ok(done),
                Err(action) => action,
            };
            pause(begun, self.0.lock_wait, &LogPath::new(&self.0.folder, id).log).await?;
        }
    }

    /// Runs an action with the place of the conversation's log, on a thread where blocking is allowed.
    async fn at<T: Send + 'static>(
        &self,
        id: &ConversationId,
        action: impl FnOnce(&LogPath<'_>, &FilesShared) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (shared, id) = (Arc::clone(&self.0), id.clone());
        blocking(move || action(&LogPath::new(&shared.folder, &id), &shared)).await
    }

    /// Reads a log.
    async fn read<T: Send + 'static>(
        &self,
        id: &ConversationId,
        read: impl Fn(&ConversationLog<'_>) -> Result<Option<T>, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.at(id, move |place, _| log::read(place, read)?.ok_or_else(|| place.not_found())).await
    }
}

/// Runs blocking code to its end, even if the caller stops waiting.
pub(super) async fn blocking<T: Send + 'static>(
    action: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match spawn_blocking(action).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(StoreError::failed("reaching the disk from a runtime that shuts down", error)),
        },
    }
}

#[async_trait]
impl Store for FileSystemStore {
    fn traits(&self) -> StoreTraits {
        let turns = self.0.exclusive.is_some();
        StoreTraits { usage: true, erase: true, turns, labels: true, ..StoreTraits::default() }
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let (write, creates) = (*write, matches!(change, Change::Create(_)));
        let change = LogChange::of(change.clone())?;
        let written =
            self.locked(id, creates, move |log, durability| write::write(log, &write, change, durability));
        // If the change creates the conversation, `None` is not expected. If the folder is missing, `locked` has
        // already failed.
        written.await?.ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.read(id, |log| {
            let replay = log.replay(&Rc::default(), |_| {})?;
            Ok(replay.map(|replay| {
                write::tidy(log, &replay);
                replay.stored.read_at(Timestamp::now())
            }))
        })
        .await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.at(id, |place, _| list::summary(place)?.ok_or_else(|| place.not_found())).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        let (shared, listing) = (Arc::clone(&self.0), listing.clone());
        blocking(move || list::list(&shared.folder, listing)).await
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let (shared, listing) = (Arc::clone(&self.0), listing.clone());
        blocking(move || list::turns(&shared.folder, which, &listing)).await
    }

    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
        let rows = self.read(id, deleted::ledger).await?.rows;
        Ok(rows.into_iter().rev().skip(page.offset).take(page.limit).collect())
    }

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let (shared, filter) = (Arc::clone(&self.0), filter.clone());
        blocking(move || deleted::used(&shared.folder, &filter, &period)).await
    }

    async fn delete(&self, id: &ConversationId, _: Option<&Lease>) -> Result<(), StoreError> {
        let (begun, mut create) = (Instant::now(), false);
        loop {
            match self.locked(id, create, write::delete).await? {
                Some(true) => return Ok(()),
                Some(false) => pause(begun, self.0.lock_wait, &deleted::path(&self.0.folder)).await?,
                None => {
                    // The process that removed the log may have died before it synced the folder. If a power failure
                    // has left a new log, it is removed under the lock of an empty log.
                    let left = self.at(id, |place, shared| {
                        sync_folder(place.folder, shared.durability).map(|()| place.has_new_log())
                    });
                    create = left.await?;
                    if !create {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn release(&self, id: &ConversationId, _: &Lease, mark: Option<EventId>) -> Result<(), StoreError> {
        let Some(mark) = mark else { return Ok(()) };
        let marked = self.locked(id, false, move |log, durability| write::mark(log, mark, durability));
        marked.await.map(Option::unwrap_or_default)
    }
}

crate::debug::impl_debug!(FileSystemStore(self) { folder: self.0.folder, .. });

// Settings, and the opening of a store.

/// The kinds of crashes that acknowledged writes survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Writes survive a crash of the machine, because every write is synced.
    #[default]
    Machine,
    /// Writes survive a crash of the process. The operating system decides when to write to disk, so a write takes
    /// microseconds instead of the milliseconds that a disk needs. A power failure can lose the latest writes of each
    /// conversation. On file systems that do not preserve the order of writes, a power failure can leave a log that is
    /// reported as damaged.
    Process,
}

impl Durability {
    fn sync(self, file: &File) -> io::Result<()> {
        match self {
            Self::Machine => file.sync_data(),
            Self::Process => Ok(()),
        }
    }
}

/// Settings for opening a [`FileSystemStore`].
#[derive(Clone, Debug)]
pub struct FileSystemStoreBuilder {
    folder: PathBuf,
    durability: Durability,
    lock_wait: Duration,
    exclusive: bool,
}

/// The name of the file that an exclusive store locks. No conversation's id contains an `@`.
const LOCK: &str = "@lock";

impl FileSystemStoreBuilder {
    fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            durability: Durability::default(),
            lock_wait: Duration::from_secs(5),
            exclusive: false,
        }
    }

    crate::setters::setters! {
        /// Sets the kinds of crashes that acknowledged writes survive. By default, writes also survive a crash of the
        /// machine.
        pub fn durability(self, durability: Durability) { self.durability = durability }

        /// Sets how long to wait for another writer's lock. The default is five seconds.
        pub fn lock_wait(self, limit: Duration) { self.lock_wait = limit }

        /// Locks the folder for as long as the store is open, so that no other store is exclusive at the same time. The
        /// operating system releases the lock when the process ends, even if it is killed.
        ///
        /// Only an exclusive store [keeps records of turns in flight](crate::store::custom::StoreTraits::turns): files
        /// know no owner, so two processes would continue the same turn. Stores that are not exclusive can still open
        /// the folder. A process that shares the folder with an exclusive store must not continue the same
        /// conversations.
        pub fn exclusive(self) { self.exclusive = true }
    }

    /// Opens the store, and creates its folder if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`FileSystemStore::open`]. If the store is [exclusive](Self::exclusive) and another
    /// exclusive store has the folder open for longer than the waiting time for locks, fails with [`StoreError::Busy`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty folder.
    pub async fn open(self) -> Result<FileSystemStore, StoreError> {
        let Self { folder, durability, lock_wait, exclusive } = self;
        let folder = blocking(move || {
            // An absolute path, so that a later change of the working directory has no effect.
            let folder =
                std::path::absolute(&folder).map_err(|error| place::failed("finding", &folder, error))?;
            create_folder(&folder, durability)?;
            Ok(folder)
        })
        .await?;
        let exclusive = if exclusive { Some(lock_folder(&folder, lock_wait).await?) } else { None };
        Ok(FileSystemStore(Arc::new(FilesShared { folder, durability, lock_wait, exclusive })))
    }
}

/// Locks the folder, and returns the file that holds the lock.
async fn lock_folder(folder: &Path, lock_wait: Duration) -> Result<File, StoreError> {
    let path = folder.join(LOCK);
    let begun = Instant::now();
    loop {
        let lock = path.clone();
        let locked = blocking(move || place::lock_file(&lock));
        match locked.await? {
            Some(file) => return Ok(file),
            None => pause(begun, lock_wait, &path).await?,
        }
    }
}

fn create_folder(folder: &Path, durability: Durability) -> Result<(), StoreError> {
    if folder.exists() {
        return place::check_folder(folder);
    }
    let there = folder.ancestors().skip(1).find(|ancestor| ancestor.exists());
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| place::failed("creating", folder, error))?;
    // Each new folder is an entry in its parent folder, so the parent folder must be synced too.
    for above in folder.ancestors().skip(1) {
        place::sync_folder(above, durability)?;
        if Some(above) == there {
            break;
        }
    }
    Ok(())
}

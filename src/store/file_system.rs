//! Conversations in a folder, each in its own log.
//!
//! [`FileSystemStore`] is a [`Store`] for one machine. People can read its files. [`FileSystemStore::open`] opens or
//! creates its folder. [`FileSystemStoreBuilder`] sets the [`Durability`] of writes and the waiting time for locks.
//!
//! ```
//! use omni_agent::store::{
//!     ConversationId, FileSystemStore, Store, StoredState, WriteId, file_system::Durability,
//! };
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let folder = std::env::temp_dir().join(ConversationId::generate().as_str());
//!
//! let store = FileSystemStore::builder(&folder).durability(Durability::Process).open().await?;
//! let id = ConversationId::new("holiday")?;
//! store.create(&id, WriteId::generate(), &StoredState::default().with_title("Holiday")).await?;
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
//! A conversation with the id `ID` has two files in the store's folder:
//!
//! | file | content |
//! | --- | --- |
//! | `ID.jsonl` | the log, which contains the whole conversation |
//! | `ID.summary.json` | the entry in a list, so that lists need not open the log; it is rebuilt if it is missing, or if it names a different length than the log has |
//!
//! In addition, the folder has the file `@deleted-usage.jsonl` if conversations with usage were deleted (see the
//! section "Usage"). An [exclusive](FileSystemStoreBuilder::exclusive) store locks the file `@lock`. A file whose name
//! ends in `.new` was created to replace another file. The store ignores all other files in the folder. Only the owner
//! of a file can access it (mode 0600 on Unix). If the store creates the folder, only the owner of the folder can
//! access it (mode 0700).
//!
//! # The log
//!
//! Each line is one JSON object. The first line describes the log itself. Each further line is one write, in the order
//! of the writes:
//!
//! ```text
//! {"sum":"99c09ea4","len":       139,"record":{"format":"omni-agent conversation","format_version":2,"id":"…","created":1763769600000,"compactions":0}}
//! {"sum":"5ba0f1c4","len":       174,"record":{"version":77,"write":"…","time":1763769600000,"state_version":77,"change":{"create":{"model":"anthropic:claude-sonnet-4-6"}}}}
//! {"sum":"8d1f0c0e","len":       391,"record":{"version":78,"write":"…","time":1763769601234,"state_version":77,"change":{"commit":{"head":2,"nodes":[…]}}}}
//! ```
//!
//! `len` is the length of the record in bytes, padded with spaces to ten characters. `sum` is the CRC-32 of the record
//! (as in zlib and PNG), in eight hexadecimal digits. Times are milliseconds since 1970. A record contains the version
//! after the write, the write's id, and the last version that changed the state. While a turn in flight is recorded,
//! each record also has a `turn`: its id, the times of its first and its last record, the number of tool uses that wait
//! for a decision, and the last version that changed these tool uses. A commit that only records usage, the turn in
//! flight or the end of a run has the same time as the line before it. The `change` of a record is one of:
//!
//! | change | content |
//! | --- | --- |
//! | `create`, `state` | the whole state: model, system, options, limits, title, labels |
//! | `title` | the title, or null |
//! | `labels` | all labels |
//! | `commit` | the head and, if present, changed cursors, the state, new nodes (id, parent, message, usage), rows of the usage ledger, and a record of the turn in flight or the end of a run |
//! | `compacted` | the combined effect of removed lines: state, head, all cursors, the id of the next node, the last run, the last event, and the versions and writes of those lines |
//!
//! Any tool for JSON Lines can read a log: `jq '.record.change.commit.nodes[]?.message' ID.jsonl`.
//!
//! # Writes
//!
//! A write locks the log (`flock` on Unix), reads its first and last line, compares versions, appends its line, syncs
//! it (`fdatasync`) and unlocks the log. The duration does not depend on the length of the conversation. Between
//! writes, the store holds no descriptor, memory or lock. If another writer holds the lock, a write waits, by default
//! for up to five seconds. Then it fails with [`StoreError::Busy`].
//!
//! A crash can leave an incomplete line at the end of the log. The write of such a line was never acknowledged, and the
//! next write removes the line. Every other line that does not match its length and sum is
//! [damage](StoreError::Damaged), and the error names the file and the line.
//!
//! If a log has no summary, the next list reads the log and saves a summary. If the log is damaged, or the summary
//! can't be saved, the store keeps the list entry in memory until the log is written to. Lists by labels read all
//! summaries. The store does not support searches.
//!
//! State, titles and moves in the tree that later lines replaced stay in the log at first. If the store finds during
//! loading that they outweigh the nodes and the usage, it rewrites the log without them, syncs the new log, and renames
//! it into place. The new log is locked from before the renaming until the folder is synced. A log that belongs to
//! another user, or that is reached through a symbolic link, is never rewritten.
//!
//! # Turns in flight
//!
//! Sessions record turns in flight only if the store is [exclusive](FileSystemStoreBuilder::exclusive). A record
//! contains what is new since the record before: messages, results of tools, and the state of the agent as JSON text.
//! Reading the log adds the records up. A record that can't be read, for example because a later version of the crate
//! has written it, does not make the log unreadable: the turn is returned with its damage.
//!
//! The summary contains the tool uses that wait for a decision, and is saved when they change. Lists of turns read the
//! summaries, and the last lines of each log that has a turn in flight. A log is not compacted while a turn is in
//! flight. Compaction removes the records of turns that have ended.
//!
//! [`Store::release_at`] saves the last event of a session's feed in the summary. If the summary is lost, readers of the
//! feed get a snapshot.
//!
//! # Erasure
//!
//! [`Store::erase`] rewrites the log in the same way as compaction. Lines with erased nodes are written again without
//! these nodes, and keep their usage. The last line is a `compacted` line, whose version and write are those of the
//! erasure. After a crash at any moment, the erasure is either complete or has not happened. If the log can't be
//! rewritten, because it belongs to another user or is reached through a symbolic link, `erase` fails and nothing
//! changes.
//!
//! A delete removes both files, and temporary versions of them that a crash has left behind.
//!
//! After an erasure or a delete, no file in the folder contains the text. The bytes stay on the disk until the file
//! system reuses their space. Backups, snapshots and other names of the old log (hard links) keep the text.
//!
//! # Usage
//!
//! A conversation's usage ledger consists of the rows in the commits of its log. A commit without rows counts as one row
//! for each new node with usage. [`Store::usage`] reads the log. [`Store::used`] reads all logs in the folder that have
//! the labels, and fails if one of them is damaged.
//!
//! Before a delete removes a log, it adds the sums of the conversation's usage to `@deleted-usage.jsonl`, by hour and
//! model, with the labels. The lines of this file have the form of the lines of a log. They contain neither ids of
//! conversations nor messages. If the log can't be read, it is deleted without its sums, and a warning is logged.
//!
//! | line | content |
//! | --- | --- |
//! | the first | the format, its version, and the length of the other lines right after the last merge |
//! | `deleted` | the first version and write of the conversation, its labels, and the sums |
//! | `removed` | the first version and write of a conversation whose log was removed |
//! | `merged` | the sums of many conversations with the same labels |
//!
//! A conversation counts once, even if a crash interrupts its delete: while its log exists, its `deleted` line does not
//! count. When the file is longer than 1 MiB and more than twice as long as after the last merge, the store replaces
//! the lines of removed conversations with `merged` lines. A delete locks this file while it works.
//!
//! # Versions of the format
//!
//! The first line names the version of the format. New logs have version 2. This version of the crate and later ones
//! can read logs of both versions. If a log has a later version than the crate knows, it is rejected with
//! [`StoreError::UnknownFormat`].
//!
//! Version 2 added labels, rows of the usage ledger, records of turns, ends of runs, and erasures. The first write that
//! contains one of these additions rewrites a log of version 1 with a first line of version 2, before it appends its
//! own line. All other writes leave the version as it is, so that earlier versions of the crate can continue the log.
//! If a log of version 1 can't be rewritten, because it belongs to another user or is reached through a symbolic link,
//! these writes fail.
//!
//! # Requirements
//!
//! The folder must be on a local file system with locks. The store is tested on Linux. On a network file system, the
//! store is as reliable as that system's locks. On a file system that ignores case, two ids that differ only in case
//! can't both exist: creating the second id fails.

mod builder;
mod compact;
mod erase;
mod format;
mod ledger;
mod line;
mod lines;
mod log;
mod place;
mod read;
mod summary;
mod turns;
mod write;

pub use builder::{Durability, FileSystemStoreBuilder};

use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use self::{format::Change, ledger::KeptFile, log::Lock, place::ConversationFolder, summary::Findings};
use super::{
    Commit, ConversationId, Filter, Lease, Page, StateChange, Store, StoreError, Stored, StoredState,
    Summary, TurnSummary, Turns, Version, Write, WriteId,
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
    tree::Erased,
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
/// use omni_agent::store::{FileSystemStore, Page, Store};
///
/// # async fn run() -> Result<(), omni_agent::store::StoreError> {
/// let store = FileSystemStore::open("conversations").await?;
/// for conversation in store.list(Page::default()).await? {
///     println!("{} {}", conversation.id, conversation.title.as_deref().unwrap_or("untitled"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FileSystemStore(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    durability: Durability,
    lock_wait: Duration,
    findings: Findings,
    /// The lock on the folder, which excludes other exclusive stores as long as the file is open.
    exclusive: Option<File>,
}

/// The first and the longest pause between attempts to get a lock. Each pause is twice as long as the previous one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// The result of an attempt to run an action under a lock.
enum Tried<T, F> {
    Done(T),
    Missing,
    Taken(F),
}

/// The time that an operation has waited for a lock.
struct LockWait {
    begun: Instant,
    pause: Duration,
}

impl LockWait {
    fn new() -> Self {
        Self { begun: Instant::now(), pause: PAUSES.0 }
    }

    /// Waits before the next attempt to lock this file. Fails if the operation has waited too long.
    async fn pause(&mut self, lock_wait: Duration, file: &Path) -> Result<(), StoreError> {
        let waited = self.begun.elapsed();
        if waited >= lock_wait {
            return Err(StoreError::Busy { place: file.display().to_string(), waited });
        }
        sleep(self.pause.min(lock_wait.saturating_sub(waited))).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(())
    }
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
        F: FnOnce(&ConversationFolder<'_>, &File, Durability) -> Result<T, StoreError> + Send + 'static,
    {
        let mut waiting = LockWait::new();
        loop {
            let tried = self.at(id, move |place, inner| match log::lock(place, create)? {
                Lock::Held(file) => action(place, &file, inner.durability).map(Tried::Done),
                Lock::Missing => Ok(Tried::Missing),
                Lock::Taken => Ok(Tried::Taken(action)),
            });
            action = match tried.await? {
                Tried::Done(done) => return Ok(Some(done)),
                Tried::Missing => return Ok(None),
                Tried::Taken(action) => action,
            };
            waiting.pause(self.0.lock_wait, &ConversationFolder::new(&self.0.folder, id).log()).await?;
        }
    }

    /// Runs an action with the conversation's files, on a thread where blocking is allowed.
    async fn at<T: Send + 'static>(
        &self,
        id: &ConversationId,
        action: impl FnOnce(&ConversationFolder<'_>, &Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (inner, id) = (Arc::clone(&self.0), id.clone());
        blocking(move || action(&ConversationFolder::new(&inner.folder, &id), &inner)).await
    }

    async fn change(
        &self,
        id: &ConversationId,
        write: &Write,
        change: Change,
    ) -> Result<Version, StoreError> {
        let write = *write;
        let changed = self.locked(id, false, move |place, file, durability| {
            write::change(place, file, &write, &change, durability)
        });
        changed.await?.ok_or_else(|| StoreError::NotFound { id: id.clone() })
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
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let state = state.clone();
        let created = self.locked(id, true, move |place, file, durability| {
            write::create(place, file, write, state, durability)
        });
        // `None` is not expected here. If the folder is missing, `locked` has already failed.
        created.await?.ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        self.change(id, write, Change::Commit(commit.clone())).await
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        let change = match change {
            StateChange::Whole(state) => Change::State(state.clone()),
            StateChange::Title(title) => Change::Title(title.clone()),
            StateChange::Labels(labels) => Change::Labels(labels.clone()),
        };
        self.change(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.at(id, |place, _| {
            let loaded = log::read_log(place, |log| {
                let replay = read::replay(log)?;
                Ok(replay.map(|mut replay| {
                    compact::tidy(log, &replay);
                    let version = replay.stored.version;
                    replay.stored.mark = turns::mark_at(place, version).or(replay.stored.mark);
                    replay.stored
                }))
            });
            loaded?.ok_or_else(|| StoreError::NotFound { id: place.id().clone() })
        })
        .await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.at(id, |place, inner| {
            summary::summarise(place, &inner.findings, &mut 0)?
                .ok_or_else(|| StoreError::NotFound { id: place.id().clone() })
        })
        .await
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        self.list_where(&Filter::default(), page).await
    }

    async fn list_where(&self, filter: &Filter, page: Page) -> Result<Vec<Summary>, StoreError> {
        let (inner, filter) = (Arc::clone(&self.0), filter.clone());
        blocking(move || summary::list(&inner.folder, &inner.findings, &filter, page)).await
    }

    fn keeps_usage(&self) -> bool {
        true
    }

    async fn usage(&self, id: &ConversationId, page: Page) -> Result<Vec<UsageRow>, StoreError> {
        self.at(id, move |place, _| {
            let ledger = log::read_log(place, read::ledger)?;
            let rows = ledger.ok_or_else(|| StoreError::NotFound { id: place.id().clone() })?.rows;
            Ok(rows.into_iter().rev().skip(page.offset).take(page.limit).collect())
        })
        .await
    }

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let (inner, filter) = (Arc::clone(&self.0), filter.clone());
        blocking(move || ledger::used(&inner.folder, &inner.findings, &filter, &period)).await
    }

    fn erases(&self) -> bool {
        true
    }

    async fn erase(
        &self,
        id: &ConversationId,
        write: &Write,
        erased: &Erased,
    ) -> Result<Version, StoreError> {
        let (write, erased) = (*write, erased.clone());
        let done = self.locked(id, false, move |place, file, durability| {
            erase::erase(place, file, &write, &erased, durability)
        });
        done.await?.ok_or_else(|| StoreError::NotFound { id: id.clone() })
    }

    fn keeps_turns(&self) -> bool {
        self.0.exclusive.is_some()
    }

    async fn turns(&self, which: Turns, filter: &Filter, page: Page) -> Result<Vec<TurnSummary>, StoreError> {
        let (inner, filter) = (Arc::clone(&self.0), filter.clone());
        blocking(move || turns::list(&inner.folder, &inner.findings, which, &filter, &page)).await
    }

    async fn release_at(
        &self,
        id: &ConversationId,
        _lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        let Some(mark) = mark else { return Ok(()) };
        let marked = self.locked(id, false, move |place, file, _| match log::Log::open(place, file)? {
            Some(log) => turns::mark(&log, mark),
            None => Ok(()),
        });
        marked.await.map(Option::unwrap_or_default)
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        let mut waiting = LockWait::new();
        loop {
            match self.locked(id, false, write::delete).await? {
                Some(true) => return Ok(()),
                Some(false) => waiting.pause(self.0.lock_wait, &KeptFile::path(&self.0.folder)).await?,
                // A crash may have removed the log but not the other files, so remove these too.
                None => return self.at(id, |place, _| place.remove_beside()).await,
            }
        }
    }
}

crate::debug::impl_debug!(FileSystemStore(self) { folder: self.0.folder, .. });

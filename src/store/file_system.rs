//! Conversations in a folder.
//!
//! # Layout
//!
//! A conversation with the id `ID` has two files in the store's folder:
//!
//! | file | what it is |
//! | --- | --- |
//! | `ID.jsonl` | the log: all there is to know |
//! | `ID.summary.json` | what a list shows, so that it need not open the log; made again when it is missing, or when the log has another length than it says |
//!
//! A name that ends in `.new` belongs to a file that was about to take the place of another. What else is in the
//! folder is left alone. Files are for their owner only (mode 0600 on Unix), as is the folder if the store
//! creates it (0700).
//!
//! # The log
//!
//! Each line is one JSON object, the first for the log itself and one for each write, in order:
//!
//! ```text
//! {"sum":"99c09ea4","len":       139,"record":{"format":"omni-agent conversation","format_version":1,"id":"…","created":1763769600000,"compactions":0}}
//! {"sum":"5ba0f1c4","len":       174,"record":{"version":77,"write":"…","time":1763769600000,"state_version":77,"change":{"create":{"model":"anthropic:claude-sonnet-4-6"}}}}
//! {"sum":"8d1f0c0e","len":       391,"record":{"version":78,"write":"…","time":1763769601234,"state_version":77,"change":{"commit":{"head":2,"nodes":[…]}}}}
//! ```
//!
//! `len` is the length of the record in bytes, padded with spaces to ten characters, and `sum` its CRC-32 (the one of
//! zlib and PNG) in eight hexadecimal digits. Times are milliseconds since 1970. A record has the version
//! that the write led to, the write's id, and the last version that changed the state. Its `change` is one of:
//!
//! | change | content |
//! | --- | --- |
//! | `create`, `state` | the whole state: model, system, options, title |
//! | `title` | the title, or null |
//! | `commit` | head; where there are any: changed cursors, the state, new nodes (id, parent, message, usage) |
//! | `compacted` | what lines that were left out had come to: state, head, all cursors, and those lines' versions and writes |
//!
//! Programs for lines of JSON read it: `jq '.record.change.commit.nodes[]?.message' ID.jsonl`.
//!
//! # Writes
//!
//! A write locks the log (`flock` on Unix), reads its first and its last line, compares versions, appends its
//! line, syncs it (`fdatasync`) and unlocks. That is as much work on a conversation of a thousand turns as on an
//! empty one, and between writes nothing is held: no descriptor, no memory. Another writer's lock is waited
//! for, by default for five seconds; then the error is [`StoreError::Busy`].
//!
//! A crash can leave a piece of a line at the end of the log. It was never acknowledged, and the next write
//! cuts it off. Every other line that does not match its length and sum is
//! [damage](StoreError::Damaged), and the error names file and line. A list reads a log without a summary once. If the log is damaged, or the summary can't be
//! saved, the store remembers what the list shows until the log is written to.
//!
//! State, titles and moves in the tree that later lines replaced stay in the log until loading finds that they
//! outweigh the nodes; then the log is written anew, synced, and renamed into place. The new one is locked before that,
//! and until the folder is synced. A log that belongs to another user, or that a link leads to, stays as it is.
//!
//! A delete removes both files, and any that a crash left under one of their names. The bytes on the disk are the file system's
//! to use again.
//!
//! # Versions of the format
//!
//! The first line names the version, now 1. Later versions of the crate read it. A log of a version yet to come
//! is refused with [`StoreError::UnknownFormat`].
//!
//! # Where it works
//!
//! On local file systems that have locks. It is tested on Linux. On a network file system it is as sound as that
//! system's locks. On file systems that take upper and lower case for the same, ids that differ in nothing
//! else can't be used side by side: creating the second is an error.

mod compact;
mod format;
mod line;
mod log;
mod place;
mod read;
mod summary;
mod write;

use std::{
    fmt,
    fs::{DirBuilder, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use self::{
    format::Change,
    log::{Lock, Log},
    place::ConversationFolder,
    summary::Findings,
};
use super::{
    Commit, ConversationId, Page, StateChange, Store, StoreError, Stored, StoredState, Summary, Version,
    Write, WriteId,
};

/// Keeps conversations in a folder, for applications on one machine. Clones share everything.
///
/// Processes may share the folder. If one of them is stopped (`SIGSTOP`) in the middle of a write, the others can't write to that
/// conversation until it continues or ends.
///
/// It needs a tokio runtime of either kind, with its timer: files are used on the runtime's blocking threads, and
/// another's lock is waited for.
///
/// The module's documentation has the layout and the format.
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
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A crash of the machine: every write is synced.
    #[default]
    Machine,
    /// A crash of the process: the system writes to disk when it sees fit. A write costs microseconds in place
    /// of a disk's milliseconds; what a power cut takes is the newest writes of each conversation, or, where
    /// the file system does not keep the order of what it writes, leaves a log that is told to be damaged.
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

/// Opens a [`FileSystemStore`] with settings of its own.
#[derive(Clone, Debug)]
pub struct FileSystemStoreBuilder {
    folder: PathBuf,
    durability: Durability,
    lock_wait: Duration,
}

impl FileSystemStoreBuilder {
    /// What an acknowledged write survives; a crash of the machine if unset.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long to wait for another writer's lock; five seconds if unset.
    pub fn lock_wait(mut self, limit: Duration) -> Self {
        self.lock_wait = limit;
        self
    }

    /// Opens the store, and creates its folder if it is not there.
    ///
    /// # Errors
    ///
    /// As for [`FileSystemStore::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty folder.
    pub async fn open(self) -> Result<FileSystemStore, StoreError> {
        let Self { folder, durability, lock_wait } = self;
        let folder = blocking(move || {
            // So that a later change of the working directory moves nothing.
            let folder =
                std::path::absolute(&folder).map_err(|error| place::failed("finding", &folder, error))?;
            create_folder(&folder, durability)?;
            Ok(folder)
        })
        .await?;
        Ok(FileSystemStore(Arc::new(Inner { folder, durability, lock_wait, findings: Findings::default() })))
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
    // Each folder that is new is an entry in the one above it.
    for above in folder.ancestors().skip(1) {
        place::sync_folder(above, durability)?;
        if Some(above) == there {
            break;
        }
    }
    Ok(())
}

/// The first pause before another try to get a lock, and the longest: each is twice as long as the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// What became of an action that needs a lock.
enum Tried<T, F> {
    Done(T),
    Missing,
    Taken(F),
}

impl FileSystemStore {
    /// The store in this folder, which is created if it is not there.
    ///
    /// # Errors
    ///
    /// [`StoreError::Denied`], [`StoreError::Unreachable`] if the path leads to something else, or what else
    /// the system has against it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty folder.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::builder(folder).open().await
    }

    /// Settings for a store in this folder.
    pub fn builder(folder: impl Into<PathBuf>) -> FileSystemStoreBuilder {
        FileSystemStoreBuilder {
            folder: folder.into(),
            durability: Durability::default(),
            lock_wait: Duration::from_secs(5),
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Does something with the locked log, once the lock can be had. `None` if there is no log.
    ///
    /// The waiting is done here and can be cancelled; the action, once begun, runs to its end.
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
        let begun = Instant::now();
        let mut pause = PAUSES.0;
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
            let waited = begun.elapsed();
            if waited >= self.0.lock_wait {
                let place = ConversationFolder::new(&self.0.folder, id).log_name();
                return Err(StoreError::Busy { place, waited });
            }
            sleep(pause.min(self.0.lock_wait.saturating_sub(waited))).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Does something at the conversation's place, where it may block.
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

/// Runs blocking code to its end, whether or not anybody still waits for it.
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
        // Without a folder to create it in, the error has told.
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
        };
        self.change(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.at(id, |place, _| {
            let seen = place.seen();
            let loaded = load(place).or_else(|error| match error {
                // It may have been a torn line that a writer was just replacing.
                StoreError::Damaged { .. } if place.seen() != seen => load(place),
                error => Err(error),
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
        let inner = Arc::clone(&self.0);
        blocking(move || summary::list(&inner.folder, &inner.findings, page)).await
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        let deleted = self.locked(id, false, write::delete);
        if deleted.await?.is_none() {
            // A crash may have removed the log and nothing else.
            self.at(id, |place, _| place.remove_beside()).await?;
        }
        Ok(())
    }
}

fn load(place: &ConversationFolder<'_>) -> Result<Option<Stored>, StoreError> {
    let Some(file) = log::open(place)? else {
        return Ok(None);
    };
    let Some(log) = Log::open(place, &file)? else {
        return Ok(None);
    };
    let Some(replay) = read::replay(&log)? else {
        return Ok(None);
    };
    compact::tidy(&log, &replay);
    Ok(Some(replay.stored))
}

impl fmt::Debug for FileSystemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystemStore").field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

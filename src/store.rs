//! Stores keep conversations while no program has them open.
//!
//! A [`Store`] keeps conversations by [`ConversationId`]. Each conversation has a [`StoredState`] (its model, system
//! prompt, options and title), the nodes of its tree, its head and its cursors. The crate contains these stores:
//!
//! | store | keeps conversations in | use it for |
//! | --- | --- | --- |
//! | [`MemoryStore`] | memory | tests, and conversations that may be lost |
//! | [`FileSystemStore`] | a folder, with one log per conversation | one machine, up to 10,000 conversations, and people who read the files |
//! | `SqliteStore` (feature `sqlite`) | one file | one machine (recommended) |
//! | `PostgresStore` (feature `postgres`) | a database | many machines |
//!
//! An application passes a store to a [session](crate::session) or a [manager](crate::manager), which then calls the
//! store's methods. To write a store, implement [`Store`] and check it with the suite in `conformance` (feature
//! `test-util`).
//!
//! Each change is a [`Write`] on a [`Version`], so that two processes can't overwrite each other's changes. A
//! [`Commit`] adds nodes and moves the head. A [`StateChange`] replaces the state. [`Store::load`] returns a whole
//! conversation as [`Stored`], and [`Store::list`] returns a [`Page`] of [`Summary`] entries. A [`Lease`] shows which
//! process has a conversation open. Methods that fail return a [`StoreError`].
//!
//! [`copy`] copies all conversations to another store. [`export_json`] converts a conversation to a readable document,
//! and [`import_json`] converts such a document back.
//!
//! ```
//! use omni_agent::{
//!     message::Message,
//!     store::{Commit, ConversationId, MemoryStore, Page, Store, StoredState, Write, WriteId},
//!     tree::Tree,
//! };
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//!
//! let store = MemoryStore::new();
//! let id = ConversationId::generate();
//! let state = StoredState::default().with_model("anthropic:claude-sonnet-4-6");
//! let version = store.create(&id, WriteId::generate(), &state).await?;
//!
//! let mut tree = Tree::new();
//! let before = tree.clone();
//! tree.push(Message::user("Hello"));
//! let commit = Commit::from(tree.changes_since(&before).expect("the tree only grew"));
//! let version = store.commit(&id, &Write::on(version), &commit).await?;
//!
//! let stored = store.load(&id).await?;
//! assert_eq!(stored.version, version);
//! assert_eq!(Tree::hydrate(stored.nodes, stored.head, stored.cursors)?, tree);
//! assert_eq!(store.list(Page::default()).await?[0].id, id);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "test-util")]
pub mod conformance;
mod content;
mod digest;
mod document;
mod error;
pub mod file_system;
mod id;
mod json;
mod labels;
mod ledger;
mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
mod search;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod transfer;
mod turn;
mod write;

pub(crate) use content::erase_content;
pub use content::{Commit, Page, Position, StateChange, Stored, StoredState, Summary};
pub use document::{export_json, import_json, import_json_with_settings};
pub use error::StoreError;
pub use file_system::FileSystemStore;
pub use id::{ConversationId, WriteId};
pub use labels::{Filter, Labels, Listing};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use search::{Found, Hit, Query};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use transfer::{Copied, CopyOptions, copy, copy_one};
pub(crate) use turn::Undecidable;
pub use turn::{PendingApproval, StoredTurn, TurnChange, TurnSummary, Turns};
pub use write::{Epoch, Lease, Owner, Version, Write};

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
    tree::Erased,
};

/// A place that keeps conversations.
///
/// The example shows a store that wraps another store and counts its commits:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use async_trait::async_trait;
/// use omni_agent::store::{
///     Commit, ConversationId, MemoryStore, Page, StateChange, Store, StoreError, Stored, StoredState, Summary,
///     Version, Write, WriteId,
/// };
///
/// #[derive(Default)]
/// struct Counting {
///     inner: MemoryStore,
///     commits: AtomicU64,
/// }
///
/// #[async_trait]
/// impl Store for Counting {
///     async fn commit(&self, id: &ConversationId, write: &Write, commit: &Commit) -> Result<Version, StoreError> {
///         self.commits.fetch_add(1, Ordering::Relaxed);
///         self.inner.commit(id, write, commit).await
///     }
///
///     async fn create(&self, id: &ConversationId, write: WriteId, state: &StoredState) -> Result<Version, StoreError> {
///         self.inner.create(id, write, state).await
///     }
///
///     async fn save_state(&self, id: &ConversationId, write: &Write, change: &StateChange) -> Result<Version, StoreError> {
///         self.inner.save_state(id, write, change).await
///     }
///
///     async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
///         self.inner.load(id).await
///     }
///
///     async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
///         self.inner.summary(id).await
///     }
///
///     async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
///         self.inner.list(page).await
///     }
///
///     async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
///         self.inner.delete(id).await
///     }
/// }
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = Counting::default();
/// let id = ConversationId::generate();
/// let version = store.create(&id, WriteId::generate(), &StoredState::default()).await?;
/// store.commit(&id, &Write::on(version), &Commit::default()).await?;
/// assert_eq!(store.commits.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// To wrap a store with ownership, also delegate [`acquire`](Store::acquire) and all methods after it.
///
/// # Requirements for implementations
///
/// **A write is all or nothing**, even after a crash, on a full disk, when its future is dropped, or when a connection
/// breaks. If a write returns `Ok`, the write survives a crash of the process. In a store that is meant to be durable,
/// it also survives a crash of the machine. If a write returns an error, nothing has changed. The cost of a write
/// depends on the written content, not on the size of the conversation.
///
/// **The writes to one conversation form a sequence.** [`create`](Store::create) returns the first [`Version`], and
/// each write that takes effect returns the [`next`](Version::next) version. A [`Write`] contains its base, which is
/// the version on which it builds. In one transaction or under one lock, the store compares this base with the current
/// version and writes:
///
/// 1. If the base is the current version, the write takes effect. Its result is the next version.
/// 2. If the base is an earlier version, and the write that followed it has the same [`WriteId`], then this is a
///    repetition of that write, whose result was lost. Nothing is written, and the result is the original result. A
///    store therefore keeps the ids of all writes as long as the conversation exists.
/// 3. Otherwise, another writer has already written on this base. The write fails with [`StoreError::Conflict`], which
///    names the current version, and nothing changes. A base beyond the current version is a conflict, too.
///
/// Any number of writers may try at the same time, from any number of handles and processes. Writes to different
/// conversations do not affect each other.
///
/// **First versions are random** ([`Version::first`]). So a writer that still holds a version of a deleted conversation
/// can't write to a later conversation with the same id.
///
/// **Content is returned exactly as it was written.** Messages are equal to the written messages and encode to the same
/// bytes. They are stored as the JSON text from `serde_json`, because formats that interpret JSON may reject U+0000,
/// reorder keys or change numbers. Nodes are returned in the order in which they were committed. Cursors are returned
/// with their latest values, and state and head as they were last written. A store does not need to interpret nodes.
/// The writer ensures that parents exist and that ids ascend, and the tree checks this when it is loaded. A store that
/// keeps a list of writes can use [`Stored`] to apply them one by one.
///
/// **Secrets are not stored.** They have no JSON form. A store that keeps no JSON calls
/// [`StoredState::without_secrets`], as [`Stored`] does.
///
/// **Nothing is skipped silently.** Unreadable content is reported as [`StoreError::Damaged`], with the place of the
/// damage. The only exception is a write that was interrupted by a crash, and was therefore never acknowledged. Such a
/// write is dropped as a whole, and the next write succeeds. Damage to one conversation does not affect other
/// conversations. If listing a conversation detects damage, the list reports it in [`Summary::damage`].
///
/// **The store sets the times.** The created and updated times come from the store's clock, and `updated` never
/// decreases.
///
/// # Ownership
///
/// Versions alone prevent writers from mixing their histories. In addition, ownership shows a second process early that
/// another process has the conversation open. It also allows a process to take the conversation over from an owner that
/// no longer exists.
///
/// [`acquire`](Store::acquire) and the methods after it belong together. A store that does not implement them relies on
/// versions alone. A store that implements them gives a [`Lease`] with an [`Epoch`] to one owner at a time, for a
/// limited time, measured by the store's own clock. If a lease has expired or passed to another owner, every write with
/// its epoch is rejected with [`StoreError::LeaseLost`]. The check is part of the transaction that would write. A write
/// without an epoch is not checked.
///
/// Each acquisition raises the epoch by one. A store may forget the last epoch, for example because its database fails
/// over to a replica. In such a store, each acquisition raises the epoch by a random number. Until another owner
/// acquires the conversation, an expired lease keeps its epoch and can be renewed.
///
/// Sessions acquire the conversations that they open. A thread of this crate with its own runtime renews their leases,
/// even while the application's threads are busy. So the methods for leases must make progress on the runtime on which
/// they are called, without help from any other runtime.
///
/// # Cancel safety
///
/// Every future may be dropped at any time. If the future of a write was dropped, the write may have taken effect, may
/// take effect shortly, or may never take effect. It never takes effect in part. To find out which is the case, repeat
/// the write with the same [`WriteId`], which is safe.
///
/// # Checking an implementation
///
/// Implement `conformance::StoreUnderTest` and run `conformance::check` (feature `test-util`). The suite checks all
/// requirements above that can be checked by a test.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates a conversation with this state and no nodes.
    ///
    /// If several writers create the same id at the same time, one succeeds. Repeating the write that created the
    /// conversation returns its first result.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::AlreadyExists`] if a conversation with this id exists. Also fails if the store can't be
    /// written to.
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError>;

    /// Adds the changes of one turn, or of one move in the tree.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], [`StoreError::Conflict`] or [`StoreError::LeaseLost`], or if the store
    /// can't be written to.
    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError>;

    /// Replaces the whole state, only the title, or only the labels.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`commit`](Store::commit).
    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError>;

    /// Returns the whole conversation.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], [`StoreError::Damaged`] or [`StoreError::UnknownFormat`], or if the store
    /// can't be read.
    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError>;

    /// Returns the entry of this conversation in a list, without reading the whole conversation.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], or if the store can't be read. Damage is reported in the summary.
    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError>;

    /// Lists conversations by their last write, newest first, then by id. Does not read whole conversations.
    ///
    /// A page shows the list at the moment of the call. A write to a conversation moves the conversation to the front
    /// of the list, which shifts pages with an offset. So a conversation may appear on two such pages, and if other
    /// conversations are deleted, a conversation may be missed. Pages [`after`](Page::after) a conversation contain
    /// each conversation exactly once if nobody writes to it. This is true even if the conversation after which a page
    /// begins was deleted or moved. To list all conversations as of one moment, request one page of `usize::MAX`.
    ///
    /// If the store has an index, a page after a conversation costs the same anywhere in the list.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be read.
    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError>;

    /// Deletes the conversation and everything that belongs to it. Deleting a conversation that does not exist
    /// succeeds.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be written to.
    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError>;

    /// Returns whether the conversation exists, even if it can't be read.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be read.
    async fn exists(&self, id: &ConversationId) -> Result<bool, StoreError> {
        match self.summary(id).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists the conversations that match a filter, in the same order and in the same pages as [`list`](Store::list).
    ///
    /// The default implementation lists all conversations for an empty filter, and does not support other filters.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store does not support labels, or if the store can't be read.
    async fn list_where(&self, filter: &Filter, page: Page) -> Result<Vec<Summary>, StoreError> {
        if filter.is_empty() {
            self.list(page).await
        } else {
            Err(StoreError::unsupported("lists by labels"))
        }
    }

    /// Finds conversations by the words in their titles and in the texts of their messages.
    ///
    /// A title or a message is found if it contains all words and phrases of the query. Searches look at the text
    /// blocks of messages, and not at thinking, tool uses, results or attachments. Each conversation is found once,
    /// with the last message that contains the words. The conversations are sorted and divided into pages as by
    /// [`list`](Store::list).
    ///
    /// The default implementation does not support searches.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`], or if the store can't be read.
    async fn search(&self, filter: &Filter, query: &Query, page: Page) -> Result<Found, StoreError> {
        let _ = (filter, query, page);
        Err(StoreError::unsupported("searches"))
    }

    /// Returns whether the store keeps a usage ledger, which consists of the rows in [`Commit::usage`]. If it does not,
    /// sessions send no rows.
    fn keeps_usage(&self) -> bool {
        false
    }

    /// Returns rows of the conversation's usage ledger, newest first. Only the limit and the offset of the page count.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store keeps no ledger, with [`StoreError::NotFound`], or if the
    /// store can't be read.
    async fn usage(&self, id: &ConversationId, page: Page) -> Result<Vec<UsageRow>, StoreError> {
        let _ = (id, page);
        Err(StoreError::unsupported("a usage ledger"))
    }

    /// Returns the usage of all matching conversations in a period, as one sum for each model, sorted by the model's
    /// name.
    ///
    /// The sums include deleted conversations: when a conversation is deleted, the store keeps the sums of its usage,
    /// by hour and model, together with its labels. Such a sum counts if its hour begins in the period.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store keeps no ledger, or if the store or a matching conversation
    /// can't be read.
    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let _ = (filter, period);
        Err(StoreError::unsupported("a usage ledger"))
    }

    /// Returns whether the store supports [`erase`](Store::erase).
    fn erases(&self) -> bool {
        false
    }

    /// Removes nodes from the conversation, and moves its head and cursors. This is a write like
    /// [`commit`](Store::commit).
    ///
    /// After the write is acknowledged, the store no longer contains the messages of the removed nodes, as far as it
    /// controls the medium. The store's documentation states what may remain. The usage ledger keeps its rows.
    ///
    /// The write also removes the turn in flight and the messages in the [end of the last run](Stored::last_run), which
    /// may be erased ones. It keeps the outcomes of prompts, as [`Stored::erase`] shows.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store can't erase nodes. Otherwise, fails in the same cases as
    /// [`commit`](Store::commit).
    async fn erase(
        &self,
        id: &ConversationId,
        write: &Write,
        erased: &Erased,
    ) -> Result<Version, StoreError> {
        let _ = (id, write, erased);
        Err(StoreError::unsupported("erasing messages"))
    }

    /// Returns whether the store keeps records of turns in flight ([`Commit::with_turn`]), which it returns as
    /// [`Stored::turn`]. If it does not, sessions write no records.
    ///
    /// A store that keeps records must have [leases](Store::acquire), or be used by one process at a time. Otherwise
    /// two processes would continue the same turn.
    fn keeps_turns(&self) -> bool {
        false
    }

    /// Returns the turn in flight, if one is recorded.
    ///
    /// The default implementation loads the conversation.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`load`](Store::load). A record that can't be read is returned with its
    /// [damage](StoredTurn::damage).
    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        let Stored { turn, version, .. } = self.load(id).await?;
        Ok(turn.map(|turn| StoredTurn { version, ..*turn }))
    }

    /// Lists the turns in flight that `which` selects, of the conversations that match a filter, oldest first, then by
    /// the conversation's id.
    ///
    /// The age of a turn is the time of its first record. In the list of [waiting](Turns::Waiting) turns, it is the
    /// time since which the oldest open approval waits. Pages begin [after](Page::after) the last [`TurnSummary`] of
    /// the page before.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store does not keep records of turns, or if there is a filter and
    /// the store does not support labels. Also fails if the store can't be read.
    async fn turns(&self, which: Turns, filter: &Filter, page: Page) -> Result<Vec<TurnSummary>, StoreError> {
        let _ = (which, filter, page);
        Err(StoreError::unsupported("lists of turns in flight"))
    }

    /// Returns the time by the store's clock, which measures the time limits of open approvals.
    ///
    /// The default implementation returns the machine's time. A store whose times are those of another clock, such as
    /// the clock of a database server, returns the time of that clock.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be reached.
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(Timestamp::now())
    }

    /// Returns how long a lease lasts without renewal. Returns `None` if the store relies on versions alone.
    ///
    /// Managers choose the interval of their [sweep](crate::manager::Sweep) by it. The default implementation returns
    /// `None`.
    fn lease_duration(&self) -> Option<Duration> {
        None
    }

    /// Makes `owner` the owner of the conversation.
    ///
    /// This succeeds if the conversation has no owner, if its owner's lease has expired, or if its owner has the same
    /// name. If the owner has the same name, the new lease gets a new epoch and the old lease ends.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Owned`], which contains the current owner, or with [`StoreError::NotFound`]. Also fails
    /// if the store can't be reached.
    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let _ = (id, owner);
        Ok(Lease::unlimited())
    }

    /// Extends a lease, which then starts anew with its original duration. An expired lease continues with its epoch,
    /// unless another owner has acquired the conversation in the meantime.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if the lease was released or passed to another owner, or if the store can't
    /// be reached.
    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let _ = id;
        Ok(lease.clone())
    }

    /// Renews several leases and returns the conversations whose leases are lost. If the renewal of one lease fails,
    /// the other leases are still renewed.
    ///
    /// A store should implement this method if it can renew many leases together at a lower cost than one by one.
    ///
    /// # Errors
    ///
    /// If the store can't be reached for some or all of the leases, returns the first such error. The other leases are
    /// still renewed. To find out which leases are lost, repeat the call.
    async fn renew_all(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let (mut lost, mut failed) = (Vec::new(), None);
        for (id, lease) in leases {
            match self.renew(id, lease).await {
                Ok(_) => {}
                Err(StoreError::LeaseLost { .. } | StoreError::NotFound { .. }) => lost.push(id.clone()),
                // A lease that can't be renewed must not prevent the renewal of the leases after it.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(lost), Err)
    }

    /// Deletes the conversation in the same way as [`delete`](Store::delete), if this lease is still valid.
    ///
    /// This prevents an owner that was paused for longer than its lease from deleting the later work of another owner,
    /// or a new conversation with the same id.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if the conversation exists and the lease is no longer valid. Also fails if
    /// the store can't be written to.
    async fn delete_under(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let _ = lease;
        self.delete(id).await
    }

    /// Ends a lease before it expires. Releasing a lease that has already ended succeeds.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be reached.
    async fn release(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let _ = (id, lease);
        Ok(())
    }

    /// Ends a lease in the same way as [`release`](Store::release), and records the last event of the session's feed
    /// that changed anything. [`Stored::mark`] returns it until the next write. If `mark` is `None`, or the lease was
    /// already released or passed to another owner, nothing is recorded, and an earlier mark stays.
    ///
    /// The default implementation does not record the event.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be reached.
    async fn release_at(
        &self,
        id: &ConversationId,
        lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        let _ = mark;
        self.release(id, lease).await
    }
}

/// Converts the argument of [`Session::builder`](crate::session::Session::builder) and
/// [`Manager::builder`](crate::manager::Manager::builder) to a shared store. The argument is a store, an `Arc` of a
/// store, or an `Arc<dyn Store>`.
pub trait IntoStore {
    /// Returns the shared store.
    fn into_store(self) -> Arc<dyn Store>;
}

impl<S: Store> IntoStore for S {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore for Arc<S> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

impl IntoStore for Arc<dyn Store> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

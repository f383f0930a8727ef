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
//! Each [`Change`] is a [`Write`] on a [`Version`], so that two processes can't overwrite each other's changes. A
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
//!     store::{Change, Commit, ConversationId, Listing, MemoryStore, Store, StoredState, Write},
//!     tree::Tree,
//! };
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//!
//! let store = MemoryStore::new();
//! let id = ConversationId::generate();
//! let state = StoredState::default().with_model("anthropic:claude-sonnet-4-6");
//! let version = store.write(&id, &Write::first(), &Change::create(state)).await?;
//!
//! let mut tree = Tree::new();
//! let before = tree.clone();
//! tree.push(Message::user("Hello"));
//! let commit = Commit::from(tree.changes_since(&before).expect("the tree only grew"));
//! let version = store.write(&id, &Write::on(version), &Change::Commit(commit)).await?;
//!
//! let stored = store.load(&id).await?;
//! assert_eq!(stored.version, version);
//! assert_eq!(Tree::hydrate(stored.nodes, stored.head, stored.cursors)?, tree);
//! assert_eq!(store.list(&Listing::default()).await?[0].id, id);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attachments;
#[cfg(feature = "test-util")]
pub mod conformance;
mod content;
pub(crate) mod digest;
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
mod words;
mod write;

pub(crate) use content::erase_content;
pub use content::{Change, Commit, Page, Position, StateChange, Stored, StoredState, Summary, TitleBy};
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
pub use turn::{StoredTurn, TurnChange, TurnSummary, Turns};
pub use write::{Epoch, Lease, Owner, Version, Write};

use std::{ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
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
///     Change, Commit, ConversationId, Lease, Listing, MemoryStore, Store, StoreError, Stored, StoredState, Summary,
///     Version, Write,
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
///     async fn write(&self, id: &ConversationId, write: &Write, change: &Change) -> Result<Version, StoreError> {
///         if let Change::Commit(_) = change {
///             self.commits.fetch_add(1, Ordering::Relaxed);
///         }
///         self.inner.write(id, write, change).await
///     }
///
///     async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
///         self.inner.load(id).await
///     }
///
///     async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
///         self.inner.list(listing).await
///     }
///
///     async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
///         self.inner.delete(id, lease).await
///     }
/// }
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = Counting::default();
/// let id = ConversationId::generate();
/// let version = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
/// store.write(&id, &Write::on(version), &Change::Commit(Commit::default())).await?;
/// assert_eq!(store.commits.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A store that wraps another store should delegate all methods, because the default methods support less than most
/// stores.
///
/// # Requirements for implementations
///
/// **A write is all or nothing**, even after a crash, on a full disk, when its future is dropped, or when a connection
/// breaks. If a write returns `Ok`, the write survives a crash of the process. In a store that is meant to be durable,
/// it also survives a crash of the machine. If a write returns an error, nothing has changed. The cost of a write
/// depends on the written content, not on the size of the conversation.
///
/// **The writes to one conversation form a sequence.** [`Change::Create`] returns the first [`Version`], and each other
/// write that takes effect returns the [`next`](Version::next) version. A [`Write`] contains its base, which is the
/// version on which it builds. In one transaction or under one lock, the store compares this base with the current
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
/// decreases. A store that keeps turns also sets [`StoredTurn::now`] and [`TurnSummary::now`] at each read, which are not
/// part of their JSON: [`Stored::read_at`] does this. Otherwise, time limits of approvals would never pass.
///
/// # Ownership
///
/// Versions alone prevent writers from mixing their histories. In addition, ownership shows a second process early that
/// another process has the conversation open. It also allows a process to take the conversation over from an owner that
/// no longer exists.
///
/// [`acquire`](Store::acquire), [`renew`](Store::renew) and [`release`](Store::release) belong together. A store that
/// does not implement them relies on versions alone. A store that implements them gives a [`Lease`] with an [`Epoch`] to one owner at a time, for a
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
    /// Returns the optional parts that the store supports.
    ///
    /// The default implementation returns none of them.
    fn traits(&self) -> StoreTraits {
        StoreTraits::default()
    }

    /// Writes a change, and returns the version of the conversation after it.
    ///
    /// If several writers [create](Change::Create) the same id at the same time, one succeeds. Repeating the write that
    /// created the conversation returns its first result.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], [`StoreError::Conflict`] or [`StoreError::LeaseLost`]. [`Change::Create`]
    /// fails with [`StoreError::AlreadyExists`] instead. A change of a kind that the store does not support fails with
    /// [`StoreError::Unsupported`]. Also fails if the store can't be written to.
    async fn write(&self, id: &ConversationId, write: &Write, change: &Change)
    -> Result<Version, StoreError>;

    /// Returns the whole conversation.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], [`StoreError::Damaged`] or [`StoreError::UnknownFormat`], or if the store
    /// can't be read.
    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError>;

    /// Returns the entry of this conversation in a list.
    ///
    /// The default implementation loads the conversation. A store should implement this method if it can read the entry
    /// without reading the whole conversation.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::NotFound`], or if the store can't be read. Damage is reported in the summary, if the
    /// store can find the conversation's other facts.
    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        Ok(self.load(id).await?.summary(id))
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

    /// Lists the conversations that match a filter, by their last write, newest first, then by id. Does not read whole
    /// conversations.
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
    /// Fails with [`StoreError::Unsupported`] if there is a filter and the store does not support
    /// [labels](StoreTraits::labels). Such a store calls [`Listing::unfiltered`]. Also fails if the store can't be read.
    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError>;

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
    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let _ = (which, listing);
        Err(StoreError::unsupported("lists of turns in flight"))
    }

    /// Finds conversations by the words in their titles and in the texts of their messages.
    ///
    /// A title or a message is found if it contains all words and phrases of the query. Searches look at the text
    /// blocks of messages, and not at thinking, tool uses, results or attachments. Each conversation is found once,
    /// with the last message that contains the words. The conversations are filtered, sorted and divided into pages as
    /// by [`list`](Store::list).
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`], or if the store can't be read.
    async fn search(&self, query: &Query, listing: &Listing) -> Result<Found, StoreError> {
        let _ = (query, listing);
        Err(StoreError::unsupported("searches"))
    }

    /// Returns rows of the conversation's usage ledger, newest first. Only the limit and the offset of the page count.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store keeps no ledger, with [`StoreError::NotFound`], or if the
    /// store can't be read.
    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
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
    /// Fails with [`StoreError::Unsupported`] if the store keeps no ledger, or if there is a filter and the store does
    /// not support labels. Also fails if the store or a matching conversation can't be read.
    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let _ = (filter, period);
        Err(StoreError::unsupported("a usage ledger"))
    }

    /// Deletes the conversation and everything that belongs to it. Deleting a conversation that does not exist
    /// succeeds.
    ///
    /// With a lease, the conversation is deleted only if this lease is still valid. This prevents an owner that was
    /// paused for longer than its lease from deleting the later work of another owner, or a new conversation with the
    /// same id.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if there is a lease, the conversation exists and the lease is no longer
    /// valid. Also fails if the store can't be written to.
    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError>;

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

    /// Extends leases, which then start anew with their original durations, and returns the conversations whose leases
    /// are lost. A lease is lost if it was released, if it has passed to another owner, or if the conversation was
    /// deleted. An expired lease continues with its epoch, unless another owner has acquired the conversation in the
    /// meantime.
    ///
    /// # Errors
    ///
    /// If the store can't be reached for some or all of the leases, returns the first such error. The other leases are
    /// still renewed. To find out which leases are lost, repeat the call.
    async fn renew(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let _ = leases;
        Ok(Vec::new())
    }

    /// Ends a lease before it expires, and records the last event of the session's feed that changed anything.
    /// [`Stored::mark`] returns this event until the next write. If `mark` is `None`, or the lease was already released
    /// or passed to another owner, nothing is recorded, and an earlier mark stays. Releasing a lease that has already
    /// ended succeeds.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be reached.
    async fn release(
        &self,
        id: &ConversationId,
        lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        let _ = (id, lease, mark);
        Ok(())
    }
}

/// The optional parts that a store supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a store may lack")]
#[non_exhaustive]
pub struct StoreTraits {
    /// Whether the store keeps a usage ledger, which consists of the rows in [`Commit::usage`]. If it does not,
    /// sessions send no rows.
    pub usage: bool,
    /// Whether the store supports [`Change::Erase`].
    pub erase: bool,
    /// Whether the store keeps records of turns in flight ([`Commit::with_turn`]), which it returns as
    /// [`Stored::turn`]. If it does not, sessions write no records.
    ///
    /// A store that keeps records must have [leases](Store::acquire), or be used by one process at a time. Otherwise
    /// two processes would continue the same turn.
    pub turns: bool,
    /// Whether the store supports [searches](Store::search), if its indexes were created.
    pub search: bool,
    /// Whether lists can be filtered by labels.
    pub labels: bool,
    /// The duration of a lease without renewal. `None` if the store relies on versions alone. Managers choose the
    /// interval of their [sweep](crate::manager::Sweep) by it.
    pub lease: Option<Duration>,
}

crate::setters::setters!(StoreTraits: with_usage(usage: bool), with_erase(erase: bool), with_turns(turns: bool),
    with_search(search: bool), with_labels(labels: bool), with_lease(lease: some Duration));

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

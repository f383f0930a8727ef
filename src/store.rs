//! Stores keep conversations between runs of a program.
//!
//! A [`Store`] keeps conversations by [`ConversationId`]. Each has a [`StoredState`] (its model, system prompt, options
//! and title), the nodes of its tree, its head and its cursors. The crate contains these stores:
//!
//! | store | keeps conversations in | use it for |
//! | --- | --- | --- |
//! | [`MemoryStore`] | memory | tests, and conversations that may be lost |
//! | [`FileSystemStore`] | a folder, with one log per conversation | one machine, and people who read the files |
//! | `SqliteStore` (feature `sqlite`) | one file | one machine (recommended) |
//! | `PostgresStore` (feature `postgres`) | a database | many machines |
//!
//! An application passes a store to a [session](crate::session) or a [manager](crate::manager), which call its methods.
//! To write a store, implement [`Store`] and check it with the suite in `conformance` (feature `test-util`).
//!
//! Each change is a [`Write`] on a [`Version`], so that two processes can't overwrite each other's changes. A
//! [`Commit`] adds nodes and moves the head, a [`StateChange`] replaces the state. [`Store::load`] returns a whole
//! conversation as [`Stored`], and [`Store::list`] returns a [`Page`] of [`Summary`] entries. A [`Lease`] shows which
//! process has a conversation open. All methods fail with a [`StoreError`].
//!
//! [`copy`] copies all conversations to another store. [`export_json`] and [`import_json`] convert one conversation to
//! a readable document and back.
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
mod document;
mod error;
pub mod file_system;
mod id;
mod json;
mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod rows;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod transfer;
mod write;

pub use content::{Commit, Page, Position, StateChange, Stored, StoredState, Summary};
pub use document::{export_json, import_json, import_json_with_settings};
pub use error::StoreError;
pub use file_system::FileSystemStore;
pub use id::{ConversationId, WriteId};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use transfer::{Copied, copy, copy_one};
pub use write::{Epoch, Lease, Owner, Version, Write};

use std::sync::Arc;

use async_trait::async_trait;

/// A place that keeps conversations.
///
/// The example is a store that wraps another store and counts its commits:
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
/// To wrap a store with ownership, also delegate the methods from [`acquire`](Store::acquire) on.
///
/// # Requirements for implementations
///
/// **A write is all or nothing**, even after a crash, on a full disk, when its future is dropped, or when a connection
/// breaks. If a write returns `Ok`, it survives a crash of the process. In a store that is meant to be durable, it also
/// survives a crash of the machine. If a write returns an error, nothing has changed. Its cost depends on the written
/// content, not on the size of the conversation.
///
/// **The writes to one conversation form a sequence.** [`create`](Store::create) returns the first [`Version`], and
/// each write that takes effect returns the [`next`](Version::next) version. A [`Write`] names the version that it
/// builds on. The store compares this base with the current version and writes in one transaction or under one lock:
///
/// 1. If the base is the current version, the write takes effect. Its result is the version after it.
/// 2. If the base is an earlier version, and the write that followed it has the same [`WriteId`], then this is a
///    repetition of that write, whose result was lost. Nothing is written, and the result is the original result. A
///    store therefore keeps the ids of all writes as long as the conversation exists.
/// 3. Otherwise another writer was faster. The write fails with [`StoreError::Conflict`], which names the current
///    version, and nothing changes. A base beyond the current version is a conflict, too.
///
/// Any number of writers may try at the same time, from any number of handles and processes. Writes to different
/// conversations do not disturb each other.
///
/// **First versions are random** ([`Version::first`]). So a writer that still holds a version of a deleted conversation
/// can't write into a later conversation with the same id.
///
/// **Content is returned exactly as it was written.** Messages are equal to the written messages and encode to the same
/// bytes. They are kept as the JSON text from `serde_json`, because formats that interpret JSON may reject U+0000,
/// reorder keys or change numbers. Nodes are returned in the order in which they were committed, cursors with their
/// latest values, and state and head as last written. A store does not need to interpret nodes: the writer ensures that
/// parents exist and ids ascend, and the tree checks this when it is loaded. [`Stored`] applies writes one by one, for
/// stores that keep the writes themselves.
///
/// **Secrets are not stored.** All stored state has passed through [`StoredState::without_secrets`].
///
/// **Nothing is skipped silently.** Unreadable content is reported as [`StoreError::Damaged`], with its place. The only
/// exception is a write that a crash interrupted, which was therefore never acknowledged. It is dropped as a whole, and
/// the next write is sound. Damage to one conversation does not affect other conversations. A list reports damage in
/// [`Summary::damage`], if listing finds it.
///
/// **The store sets the times.** The created and updated times come from its clock, and `updated` never goes back.
///
/// # Ownership
///
/// Versions alone keep writers from mixing their histories. Ownership shows a second process early that another process
/// has the conversation open. It also lets a process take the conversation over from an owner that is gone.
///
/// The methods from [`acquire`](Store::acquire) on belong together. A store without them relies on versions alone. A
/// store with them gives a [`Lease`] with an [`Epoch`] to one owner at a time, for a limited time, by the store's own
/// clock. If a lease ran out or passed to another owner, every write with its epoch is rejected with
/// [`StoreError::LeaseLost`], in the same transaction that would write it. A write without an epoch is not checked.
///
/// Each acquisition raises the epoch: by one, or by a random number in a store that may forget the last epoch, such as
/// a database that fails over to a replica. A lease that ran out keeps its epoch until another owner acquires the
/// conversation, so it can be renewed until then.
///
/// Sessions acquire the conversations that they open. A thread of this crate renews their leases, even while the
/// application's own threads are busy. So these methods must make progress on the runtime that they are called on,
/// without help from any other runtime.
///
/// # Cancel safety
///
/// Every future may be dropped at any time. A write whose future was dropped has taken effect, will take effect
/// shortly, or never will, but always as a whole. To find out, repeat it with the same [`WriteId`], which is safe.
///
/// # Checking an implementation
///
/// Implement `conformance::StoreUnderTest` and run `conformance::check` (feature `test-util`). The suite checks each of the
/// requirements above that a test can check.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates a conversation with this state and no nodes.
    ///
    /// If several writers create the same id at the same time, one succeeds. Repeating the write that created the
    /// conversation returns its first result.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::AlreadyExists`] if the id is taken, or if the store can't be written to.
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

    /// Replaces the state, or only the title.
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

    /// Lists conversations by their last write, newest first, then by id. It does not read whole conversations.
    ///
    /// A page shows the list at the moment of the call. A write to a conversation moves it to the front, which shifts
    /// pages with an offset: a conversation may then appear twice, and if other conversations are deleted, a
    /// conversation may be missed. Pages [`after`](Page::after) a conversation contain each conversation exactly once
    /// if nobody writes to it. This holds even if the conversation that they continue from was deleted or moved. To
    /// list all conversations as of one moment, request one page of `usize::MAX`.
    ///
    /// If the store has an index, a page after a conversation costs the same at the end of a list as at its beginning.
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

    /// Returns whether the conversation exists, readable or not.
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

    /// Makes `owner` the owner of the conversation.
    ///
    /// This succeeds if the conversation has no owner, if its owner's lease ran out, or if its owner has the same name.
    /// In the last case, the owner gets a new epoch and the old one ends.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Owned`], which names the current owner, with [`StoreError::NotFound`], or if the store
    /// can't be reached.
    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let _ = (id, owner);
        Ok(Lease::unlimited())
    }

    /// Extends a lease: the lease starts anew, with its original duration. A lease that ran out continues with its
    /// epoch, unless another owner has acquired the conversation since.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if the lease was released or passed to another owner, or if the store can't
    /// be reached.
    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let _ = id;
        Ok(lease.clone())
    }

    /// Renews several leases and returns the conversations whose lease is lost. Each lease is tried, whether or not the
    /// others succeed.
    ///
    /// A store implements this method if it can renew many leases more cheaply than one by one.
    ///
    /// # Errors
    ///
    /// If the store can't be reached for all or some of the leases, returns the first such error. The other leases are
    /// renewed nevertheless. Lost leases are reported when the call is repeated.
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

    /// Deletes the conversation as [`delete`](Store::delete) does, if this lease holds it.
    ///
    /// An owner that was paused for longer than its lease must not delete the later work of another owner, nor a new
    /// conversation with the same id.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if the conversation exists and the lease no longer holds it, or if the
    /// store can't be written to.
    async fn delete_under(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let _ = lease;
        self.delete(id).await
    }

    /// Ends a lease before its time. Releasing a lease that has already ended succeeds.
    ///
    /// # Errors
    ///
    /// Fails if the store can't be reached.
    async fn release(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let _ = (id, lease);
        Ok(())
    }
}

/// Converts the argument of [`Session::builder`](crate::session::Session::builder) and
/// [`Manager::builder`](crate::manager::Manager::builder): a store, an `Arc` of one, or an `Arc<dyn Store>`.
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

//! Where conversations live between runs.
//!
//! A [`Store`] keeps conversations, each with a [`StoredState`], the nodes of its tree, its head and its
//! cursors. These are in the crate:
//!
//! | store | keeps them in | for |
//! | --- | --- | --- |
//! | [`MemoryStore`] | memory | tests, and what may be forgotten |
//! | [`FileSystemStore`] | a folder, a log each | one machine, and people who read files |
//! | `SqliteStore` (feature `sqlite`) | one file | one machine: recommended there |
//! | `PostgresStore` (feature `postgres`) | a database | many machines |
//!
//! Others implement [`Store`] and are checked by the suite in `conformance` (feature `test-util`).
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
pub use id::{ConversationId, InvalidId, InvalidWriteId, WriteId};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use transfer::{Copied, copy, copy_one};
pub use write::{Epoch, Lease, Owner, Version, Write};

use std::sync::Arc;

use async_trait::async_trait;

/// Keeps conversations.
///
/// # What an implementation promises
///
/// **A write is all or nothing**, whatever happens meanwhile: a crash, a full disk, a dropped future, a lost
/// connection. When a write returns `Ok`, it survives a crash of the process, and of the machine too if the
/// store is meant to last. When it returns an error, nothing has changed. Its cost depends on what it
/// writes, not on what the conversation already holds.
///
/// **Writes to one conversation form one line.** [`create`](Store::create) gives the first
/// [`Version`], and each write that takes effect the [`next`](Version::next). A [`Write`] names the version
/// that it builds on; whether that is the current one is decided together with the write, in one transaction
/// or under one lock:
///
/// 1. It is current: the write takes effect, and its result is the version after it.
/// 2. It is not, but the write that once followed it has the same [`WriteId`]: this is a repetition of that
///    write, whose answer got lost. Nothing is written, and the result is the one that it had then. A
///    store therefore keeps the ids of all writes, for as long as the conversation lives.
/// 3. Else another writer got there first: [`StoreError::Conflict`] names the current version, and nothing
///    changes. A base beyond the current version is a conflict too.
///
/// Any number of writers may try at the same time, from any number of handles and processes. Different
/// conversations do not get in each other's way.
///
/// **First versions are random** ([`Version::first`]), so that a writer who outlived its conversation does
/// not write into a later one that has the same id.
///
/// **What goes in comes out.** Messages come back equal to what was written, and encode to the same bytes; they
/// are kept as the JSON text that `serde_json` makes of them, since formats that look into JSON may refuse
/// U+0000, reorder keys or change numbers. Nodes come back in the order in which they were committed, cursors
/// with their latest values, state and head as last written. A store need not know what nodes mean: that
/// parents exist and ids ascend is for the writer to see to, and for the tree to check when it is loaded.
/// [`Stored`] does the folding for stores that keep the writes themselves.
///
/// **No secrets.** What is stored has been through [`StoredState::without_secrets`].
///
/// **Nothing is skipped in silence.** What cannot be read is [`StoreError::Damaged`], with the place.
/// Only a write that a crash tore, and that was therefore never acknowledged, is dropped: whole, and the
/// next write is sound. Damage to one conversation concerns no other; in a list, it is told in
/// [`Summary::damage`], where listing comes across it at all.
///
/// **Times are the store's**: created and updated are taken from its clock, and `updated` never goes back.
///
/// # Ownership
///
/// Versions alone keep histories apart. Ownership tells a second process early who has a conversation open,
/// and takes it away from one that is gone. Its methods, from [`acquire`](Store::acquire) on, come as a set, and a store
/// that leaves them out leaves ownership to versions. One that has them gives a [`Lease`] with an [`Epoch`] to one
/// owner at a time, for a limited time, by its own clock. It refuses every write that carries the epoch of a lease
/// that ran out or passed to another, with [`StoreError::LeaseLost`], in the same transaction that would write it.
/// A write without an epoch is not checked. Each acquisition raises the epoch: by one, or by chance where a
/// store may forget the last one, as a database that fails over to a replica. So a lease that ran out still
/// has its epoch as long as nobody else came, and can be renewed.
///
/// Sessions acquire what they open, and have a thread of the crate renew it, however busy the application's own threads
/// are. So these methods must not need any other runtime than the one that they are called on to make progress.
///
/// # Cancel safety
///
/// Every future may be dropped at any time. A write whose future was dropped has taken effect, will shortly,
/// or never will, but always as a whole; repeating it with the same [`WriteId`] is safe and makes sure.
///
/// # Checking an implementation
///
/// Implement `conformance::Subject` and run
/// `conformance::check`, with the feature `test-util`. It checks each of
/// the promises above that a test can check.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates a conversation with this state and no nodes. Of several that try the same id at the same time, one
    /// succeeds. Repeating the write that created the conversation returns its first result.
    ///
    /// # Errors
    ///
    /// [`StoreError::AlreadyExists`], or that the store can't be written to.
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError>;

    /// Adds what one turn, or one move in the tree, changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], [`StoreError::Conflict`], [`StoreError::LeaseLost`], or that the store can't
    /// be written to.
    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError>;

    /// Replaces the state, or the title alone.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Store::commit).
    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError>;

    /// The whole conversation.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], [`StoreError::Damaged`], [`StoreError::UnknownFormat`], or that the store
    /// can't be read.
    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError>;

    /// What a list says about this conversation, without reading it whole.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`], or that the store can't be read. Damage is told in the summary.
    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError>;

    /// Conversations by their last write, newest first, and by id where that is the same. Conversations are
    /// not read whole for it.
    ///
    /// A page is taken from the list as it is at that moment. A conversation that is written to moves to the front. Pages with
    /// an offset shift by that: a conversation may be seen twice, and if others are deleted, one may be missed. Pages
    /// [`after`](Page::after) a conversation have each one that nobody writes to once, also if the conversation that they
    /// come after was deleted or moved. To have all as they are at one moment, ask for one page of `usize::MAX`.
    ///
    /// A page after a conversation costs the same at the end of a list as at its beginning, if the store has an index.
    ///
    /// # Errors
    ///
    /// That the store can't be read.
    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError>;

    /// Removes the conversation with all that belongs to it. That there is none is no error.
    ///
    /// # Errors
    ///
    /// That the store can't be written to.
    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError>;

    /// Whether there is such a conversation, readable or not.
    ///
    /// # Errors
    ///
    /// That the store can't be read.
    async fn exists(&self, id: &ConversationId) -> Result<bool, StoreError> {
        match self.summary(id).await {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes `owner` the owner of the conversation, if it has none, if its owner's lease ran out, or if it is the
    /// owner already (by name; it gets a new epoch, and the old one ends).
    ///
    /// # Errors
    ///
    /// [`StoreError::Owned`] names who has it; [`StoreError::NotFound`], or that the store can't be reached.
    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let _ = (id, owner);
        Ok(Lease::unlimited())
    }

    /// Makes a lease last from now on, for as long as it did at first. One that ran out goes on, with its epoch, if
    /// nobody has acquired the conversation since.
    ///
    /// # Errors
    ///
    /// [`StoreError::LeaseLost`] if it was released or passed to another, or that the store can't be reached.
    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let _ = id;
        Ok(lease.clone())
    }

    /// Renews several leases at once, and gives the conversations whose lease is lost. A store with a cheaper way than one
    /// after another has it here. Each is tried, whatever becomes of the others.
    ///
    /// # Errors
    ///
    /// That the store can't be reached, for all or for some: the first such error. The others are renewed then, and those
    /// that are lost are so still when the call is repeated.
    async fn renew_all(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let (mut lost, mut failed) = (Vec::new(), None);
        for (id, lease) in leases {
            match self.renew(id, lease).await {
                Ok(_) => {}
                Err(StoreError::LeaseLost { .. } | StoreError::NotFound { .. }) => lost.push(id.clone()),
                // One that can't be renewed must not cost those behind it.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(lost), Err)
    }

    /// Removes the conversation, as [`delete`](Store::delete) does, if this lease holds it: an owner that stood still for
    /// longer than its lease must not remove what another has made of the conversation since, nor a new one of its name.
    ///
    /// # Errors
    ///
    /// [`StoreError::LeaseLost`] if there is such a conversation and the lease does not hold it any more, or that the store
    /// can't be written to.
    async fn delete_under(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let _ = lease;
        self.delete(id).await
    }

    /// Ends a lease before its time. That it has ended already is no error.
    ///
    /// # Errors
    ///
    /// That the store can't be reached.
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

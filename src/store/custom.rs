//! The parts for authors of stores.
//!
//! To write a store, implement [`Store`] and check it with the suite in `conformance` (feature `test-util`).
//!
//! - Each [`Change`] is a [`Write`] on a [`Version`], so that two processes can't overwrite each other's changes. The id
//!   of a write is a [`WriteId`].
//! - [`Change::Create`] creates a conversation with a [`StoredState`]: its model, system prompt, options and title. A
//!   [`Commit`] adds nodes and moves the head. A [`StateChange`] replaces a part of the state.
//! - [`Store::load`] returns a whole conversation as [`Stored`].
//! - A [`Lease`] shows which process has a conversation open. The [`Epoch`] of a lease is part of each write under it.
//! - A [`TurnRecord`] is the state of a turn in flight. A store keeps the sum of these records as a [`StoredTurn`], and
//!   [`Turns`] selects the turns of a list.
//! - [`StoreTraits`] states the optional parts that a store supports.
//!
//! A program that makes conversations without a session writes to the store itself:
//!
//! ```
//! use omni_agent::{
//!     message::Message,
//!     store::{
//!         ConversationId, Listing, MemoryStore, Store,
//!         custom::{Change, Commit, StoredState, Write},
//!     },
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
//!
//! # A store that wraps another store
//!
//! The example shows a store that wraps another store and counts its commits:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use async_trait::async_trait;
//! use omni_agent::store::{
//!     ConversationId, Listing, MemoryStore, Store, StoreError, Summary,
//!     custom::{Change, Commit, Lease, Stored, StoredState, Version, Write},
//! };
//!
//! #[derive(Default)]
//! struct Counting {
//!     inner: MemoryStore,
//!     commits: AtomicU64,
//! }
//!
//! #[async_trait]
//! impl Store for Counting {
//!     async fn write(&self, id: &ConversationId, write: &Write, change: &Change) -> Result<Version, StoreError> {
//!         if let Change::Commit(_) = change {
//!             self.commits.fetch_add(1, Ordering::Relaxed);
//!         }
//!         self.inner.write(id, write, change).await
//!     }
//!
//!     async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
//!         self.inner.load(id).await
//!     }
//!
//!     async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
//!         self.inner.list(listing).await
//!     }
//!
//!     async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
//!         self.inner.delete(id, lease).await
//!     }
//! }
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//!
//! let store = Counting::default();
//! let id = ConversationId::generate();
//! let version = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
//! store.write(&id, &Write::on(version), &Change::Commit(Commit::default())).await?;
//! assert_eq!(store.commits.load(Ordering::Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A store that wraps another store should delegate all methods, because the default methods support less than most
//! stores.
//!
//! # Requirements for implementations
//!
//! **A write is all or nothing**, even after a crash, on a full disk, when its future is dropped, or when a connection
//! breaks. If a write returns `Ok`, the write survives a crash of the process. In a store that is meant to be durable,
//! it also survives a crash of the machine. If a write returns an error, nothing has changed. The cost of a write
//! depends on the written content, not on the size of the conversation.
//!
//! **The writes to one conversation form a sequence.** [`Change::Create`] returns the first [`Version`], and each other
//! write that takes effect returns the [`next`](Version::next) version. A [`Write`] contains its base, which is the
//! version on which it builds. In one transaction or under one lock, the store compares this base with the current
//! version and writes:
//!
//! 1. If the base is the current version, the write takes effect. Its result is the next version.
//! 2. If the base is an earlier version, and the write that followed it has the same [`WriteId`], then this is a
//!    repetition of that write, whose result was lost. Nothing is written, and the result is the original result. A
//!    store therefore keeps the ids of all writes as long as the conversation exists.
//! 3. Otherwise, another writer has already written on this base. The write fails with [`StoreError::Conflict`], which
//!    names the current version, and nothing changes. A base beyond the current version is a conflict, too.
//!
//! Any number of writers may try at the same time, from any number of handles and processes. Writes to different
//! conversations do not affect each other.
//!
//! **First versions are random** ([`Version::first`]). So a writer that still holds a version of a deleted conversation
//! can't write to a later conversation with the same id.
//!
//! **Content is returned exactly as it was written.** Messages are equal to the written messages and encode to the same
//! bytes. They are stored as the JSON text from `serde_json`, because formats that interpret JSON may reject U+0000,
//! reorder keys or change numbers. Nodes are returned in the order in which they were committed. Cursors are returned
//! with their latest values, and state and head as they were last written. A store does not need to interpret nodes.
//! The writer ensures that parents exist and that ids ascend, and the tree checks this when it is loaded. A store that
//! keeps a list of writes can use [`Stored`] to apply them one by one.
//!
//! **Secrets are not stored.** They have no JSON form. A store that keeps no JSON calls
//! [`StoredState::without_secrets`], as [`Stored`] does.
//!
//! **Nothing is skipped silently.** Unreadable content is reported as [`StoreError::Damaged`], with the place of the
//! damage. The only exception is a write that was interrupted by a crash, and was therefore never acknowledged. Such a
//! write is dropped as a whole, and the next write succeeds. Damage to one conversation does not affect other
//! conversations. If listing a conversation detects damage, the list reports it in [`Summary::damage`].
//!
//! **The store sets the times.** The created and updated times come from the store's clock, and `updated` never
//! decreases. A store that keeps turns also sets [`StoredTurn::now`] and [`TurnSummary::now`] at each read, which are
//! not part of their JSON: [`Stored::read_at`] does this. Otherwise, time limits of approvals would never pass.
//!
//! # Ownership
//!
//! Versions alone prevent writers from mixing their histories. In addition, ownership shows a second process early that
//! another process has the conversation open. It also allows a process to take the conversation over from an owner that
//! no longer exists.
//!
//! [`acquire`](Store::acquire), [`renew`](Store::renew) and [`release`](Store::release) belong together. A store that
//! does not implement them relies on versions alone. A store that implements them gives a [`Lease`] with an [`Epoch`] to
//! one owner at a time, for a limited time, measured by the store's own clock. The end of this time permits another owner
//! to acquire the conversation, and nothing else: a write under an expired lease succeeds until another owner acquires
//! the conversation. From then on, and after a release, every write with the earlier epoch is rejected with
//! [`StoreError::LeaseLost`]. The check is part of the transaction that would write, and sees each acquisition that
//! another transaction has made before. A write without an epoch is not checked.
//!
//! Each acquisition raises the epoch. A store may forget the last epoch, for example because its database fails over to a
//! replica. In such a store, epochs grow with the clock, and have a random part. Until another owner acquires the
//! conversation, an expired lease keeps its epoch and can be renewed.
//!
//! Sessions acquire the conversations that they open. A thread of this crate with its own runtime renews their leases,
//! even while the application's threads are busy. So the methods for leases must make progress on the runtime on which
//! they are called, without help from any other runtime.
//!
//! # Checking an implementation
//!
//! Implement `conformance::StoreUnderTest` and run `conformance::check` (feature `test-util`). The suite checks all
//! requirements above that can be checked by a test.

#[cfg(feature = "test-util")]
pub mod conformance;

#[cfg(doc)]
use super::{Store, StoreError, Summary, TurnSummary};
pub use super::{
    content::{Change, Commit, StateChange, Stored, StoredState, TitleBy},
    id::WriteId,
    schedule::{ScheduleChange, ScheduleEntry, ScheduleList, Schedules},
    traits::StoreTraits,
    turn::{StoredTurn, TurnChange, Turns},
    write::{Epoch, Lease, Version, Write},
};
pub use crate::run::record::{BranchPoint, TurnRecord};

//! Stores keep conversations while no program has them open.
//!
//! A [`Store`] keeps conversations by [`ConversationId`]. Each conversation has a state (its model, system prompt,
//! options and title), the nodes of its tree, its head and its cursors. The crate contains these stores:
//!
//! | store | keeps conversations in | use it for |
//! | --- | --- | --- |
//! | [`MemoryStore`] | memory | tests, and conversations that may be lost |
//! | [`FileSystemStore`] | a folder, with one log per conversation | one machine, up to 10,000 conversations, and people who read the files |
//! | `SqliteStore` (feature `sqlite`) | one file | one machine (recommended) |
//! | `PostgresStore` (feature `postgres`) | a database | many machines |
//!
//! An application passes a store to a [session](crate::session) or a [manager](crate::manager), which then calls the
//! store's methods. [`Store::list`] returns a [`Page`] of [`Summary`] entries, [`Store::search`] finds conversations by
//! their words, and [`Store::used`] sums their [usage](crate::message::UsageSum). A [`Filter`] selects conversations by
//! their [`Labels`]. Methods that fail return a [`StoreError`].
//!
//! [`copy`] copies all conversations to another store. [`export_json`] converts a conversation to a readable document,
//! and [`import_json`] converts such a document back.
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # use omni_agent::testing::{ScriptedProvider, Step};
//! # let model = ScriptedProvider::new([Step::text("Hello!")]).model();
//! use std::time::Duration;
//! use omni_agent::{Agent, Session, store::{MemoryStore, Page, Store, export_json}};
//!
//! let store = MemoryStore::new();
//! let session = Session::builder(store.clone()).agent(Agent::builder().model(model)).create().await?;
//! session.ask("Hi.").await?;
//! session.stop(Duration::from_secs(5)).await?;
//!
//! let first = store.list(&Page::first(50).into()).await?.remove(0);
//! assert_eq!(first.id, *session.id());
//! assert!(export_json(&store, &first.id).await?.contains("Hello!"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The module [`custom`] has the parts for code that writes to stores itself, and for authors of stores.

mod attachments;
mod content;
pub mod custom;
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
mod schedule;
mod search;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod traits;
mod transfer;
mod turn;
mod words;
mod write;

pub(crate) use content::{Change, Commit, StateChange, Stored, StoredState, TitleBy, erase_content};
pub use content::{Page, Position, Summary};
pub use document::{export_json, import_json, import_json_with_settings};
pub use error::StoreError;
pub use file_system::FileSystemStore;
pub use id::ConversationId;
pub(crate) use id::WriteId;
pub use labels::{Filter, Labels, Listing};
pub use memory::MemoryStore;
#[cfg(feature = "postgres")]
pub use postgres::PostgresStore;
pub use schedule::Scheduled;
pub(crate) use schedule::{MAX_SCHEDULES, ScheduleChange, ScheduleEntry, ScheduleList, Schedules};
pub use search::{Found, Hit, Query};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub(crate) use traits::StoreTraits;
pub(crate) use transfer::put_path;
pub use transfer::{Copied, CopyOptions, copy, copy_one};
pub use turn::TurnSummary;
pub(crate) use turn::{InapplicableDecisionReason, StoredTurn, TurnChange, Turns};
pub use write::Owner;
pub(crate) use write::{Epoch, Lease, Version, Write};

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;

use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
};

/// A place that keeps conversations. Dyn-safe.
///
/// The requirements for implementations, with examples, are in [`custom`].
///
/// # Cancel safety
///
/// Every future may be dropped at any time. If the future of a write was dropped, the write may have taken effect, may
/// take effect shortly, or may never take effect. It never takes effect in part. To find out which is the case, repeat
/// the write with the same [`WriteId`], which is safe.
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

    /// Lists the schedules that `which` selects, of the conversations that match a filter, by their next time, then by the
    /// conversation's id and the name.
    ///
    /// Pages begin [after](Page::after) the last [`Scheduled`] of the page before. A page contains all schedules that a
    /// conversation has for one time, so it may be longer than its limit.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Unsupported`] if the store does not keep schedules, or if there is a filter and the store
    /// does not support labels. Also fails if the store can't be read.
    async fn schedules(&self, which: &Schedules, listing: &Listing) -> Result<ScheduleList, StoreError> {
        let _ = (which, listing);
        Err(StoreError::unsupported("schedules"))
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
    /// by hour and model, together with its labels. Of the labels of a [sub-agent](crate::agent::SubAgent), it leaves
    /// out `omni.parent` and `omni.call`, which differ for each one. Such a sum counts if its hour begins in the period.
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
    /// With a lease, the conversation is deleted only if its epoch is still valid, as for a write. This prevents an owner
    /// that was paused for longer than its lease from deleting the later work of another owner, or a new conversation
    /// with the same id.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::LeaseLost`] if there is a lease, the conversation exists and the epoch is no longer
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

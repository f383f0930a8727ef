//! Conversations in PostgreSQL (feature `postgres`).
//!
//! [`PostgresStore`] is a [`Store`] for applications on several machines. [`PostgresStore::open`] connects to a
//! database and creates the store's schema. [`PostgresStoreBuilder`] sets the schema's name, trusted certificates, the
//! number of connections, timeouts and the duration of leases.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use omni_agent::store::{
//!     ConversationId, PostgresStore, Store,
//!     custom::{Change, StoredState, Write},
//! };
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::builder("postgres://ada:secret@db.example.com/app")
//!     .schema("conversations")
//!     .connections(20)
//!     .lease(Duration::from_secs(60))
//!     .open()
//!     .await?;
//! let id = ConversationId::generate();
//! store.write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! The store owns one schema of the database, by default `omni_agent`. Opening the store creates or updates the schema.
//! Several processes may open the store at the same time. The table `migrations` lists the applied versions, the latest
//! of which is now 11. A schema with a version before 10 or with a later version than this crate knows is rejected with
//! [`StoreError::UnknownFormat`]. The user needs the right to create schemas in the database. If the schema is up to
//! date, the right to use the schema and its tables is enough.
//!
//! An update of the schema waits for users of its tables, such as a dump, for up to five minutes. Then it fails with
//! [`StoreError::Busy`]. While the update waits, it blocks other users from these tables for two seconds at a time.
//!
//! | table | one row per |
//! | --- | --- |
//! | `conversations` | conversation: id, version, times, title (a JSON string), state (JSON text), head, owner |
//! | `nodes` | message: as JSON `text`, exactly as it was written, but with references to files, and as `jsonb` for queries |
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
//! ```sql
//! SELECT id, content -> 'content' FROM omni_agent.nodes
//! WHERE content @> '{"content": [{"type": "tool_use", "name": "search"}]}';
//! ```
//!
//! The database derives the column `nodes.content` from the text. The column is null if `jsonb` rejects the text
//! (U+0000) or if the text is longer than 256 KiB. The store itself reads only the text.
//!
//! # Writes
//!
//! A write is one statement, which locks the conversation's row, compares version and lease, and writes. Only if this
//! statement changes no row, a second statement finds the reason. If `synchronous_commit` is `off`, the store sets it
//! to `on`, so an acknowledged write is on the server's disk.
//!
//! A delete or an [erasure](Change::Erase) removes the rows. The bytes of the rows stay in the server's files until
//! `VACUUM` and later writes have replaced them, and the words stay in the indexes for searches. `VACUUM FULL` of
//! `nodes`, `files`, `conversations`, `runs`, `turns`, `approvals` and `pending` removes both at once, and locks each table
//! meanwhile. The bytes also stay in the server's write-ahead log, replicas and backups as long as these are kept.
//!
//! # Searches
//!
//! [`PostgresStore::create_search_index`] creates the indexes for [`Store::search`]. The store writes the words of each
//! message, as [`Query`] describes them, into the column `nodes.words`, and those of a title into `conversations.words`.
//! Of each message, 256 KiB of text have words. If the database expects that more than 20,000 messages match, the store
//! examines the conversations from the newest on until the page is full. If a later version of this crate makes words by
//! another rule, searches are unsupported until `create_search_index` was called again.
//!
//! # Connections
//!
//! The store has a pool of connections, and two more connections for renewing leases. Each connection has its own
//! prepared statements. The connections and all operations run on two threads of the store. So an operation may be
//! called on any runtime, and continues while that runtime is blocked.
//!
//! If a connection breaks, its operation is repeated on another connection. Nothing is written twice, because writes
//! are recognized by their ids. If the database can't be reached, the operation fails with [`StoreError::Unreachable`],
//! and the next operation tries to connect again. If a lock or a connection is not available in time, the operation
//! fails with [`StoreError::Busy`]. A connection on which no response arrives is abandoned. A renewal abandons its
//! connection after a third of the lease's duration, and is repeated on a new connection.
//!
//! The store relies on database sessions, which hold its prepared statements and timeouts. A connection pooler in front
//! of the database must keep one session per connection.
//!
//! # Ownership
//!
//! Leases are stored in the conversation's row and measured by the database's clock. If the clock is set back so far
//! that a lease would last for more than twice its duration, the lease counts as ended. A write and an acquisition lock
//! the same row, so each of them sees the result of the other. Epochs grow with the database's clock. So if another server
//! takes over without the latest transactions, its epochs are higher than those of these transactions, unless its clock is
//! behind. The last 20 bits of an epoch are random, so even then it does not assign the same epochs again.

mod connect;
mod error;
mod filter;
mod lease;
mod ledger;
mod migrate;
mod read;
mod schedules;
mod search;
mod server;
mod sql;
mod turns;
mod write;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use self::{
    connect::{PgConnection, PostgresHostConnector},
    error::PostgresOperationError,
    server::{PostgresLimits, PostgresPoolPurpose, PostgresPools, PostgresRuntime},
};
use super::{
    Change, ConversationId, Filter, Found, Lease, Listing, Owner, Page, Query, ScheduleList, Schedules,
    Store, StoreError, StoreTraits, Stored, StoredTurn, Summary, TurnSummary, Turns, Version, Write,
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    subscription::EventId,
};

/// A store that keeps conversations in PostgreSQL, for applications on many machines. Clones share one store.
///
/// The [module](self) documents the layout of the schema.
///
/// ```no_run
/// use omni_agent::store::{Listing, PostgresStore, Store};
///
/// # async fn run() -> Result<(), omni_agent::store::StoreError> {
/// let store = PostgresStore::open("postgres://ada@localhost/app").await?;
/// for conversation in store.list(&Listing::default()).await? {
///     println!("{} {}", conversation.id, conversation.title.as_deref().unwrap_or("untitled"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore(Arc<PostgresShared>);

struct PostgresShared {
    server: Arc<PostgresPools>,
    schema: String,
    threads: PostgresRuntime,
}

/// Settings for opening a [`PostgresStore`].
#[derive(Clone)]
pub struct PostgresStoreBuilder {
    url: String,
    schema: String,
    certificates: Option<Vec<u8>>,
    limits: PostgresLimits,
}

impl PostgresStoreBuilder {
    crate::setters::setters! {
        /// Sets the schema that holds the conversations. The default is `omni_agent`. Any name that PostgreSQL accepts
        /// is valid: up to 63 bytes, and not beginning with `pg_`. Names are case-sensitive.
        pub fn schema(self, name: impl Into<String>) { self.schema = name.into() }

        /// Sets the number of connections for conversations. The default is ten, and the minimum is one. The store uses
        /// two more connections for renewing leases.
        pub fn connections(self, number: usize) { self.limits.connections = number.max(1) }

        /// Sets how long to wait for a connection when all connections of the pool are in use. The default is five
        /// seconds.
        pub fn pool_wait(self, limit: Duration) { self.limits.pool_wait = limit }

        /// Sets how long connecting to a host may take. The default is five seconds. `connect_timeout` in the URL takes
        /// precedence.
        pub fn connect_timeout(self, limit: Duration) { self.limits.connect = limit }

        /// Sets how long to wait for a lock of another transaction. The default is five seconds. The value is rounded
        /// to milliseconds.
        pub fn lock_wait(self, limit: Duration) { self.limits.lock_wait = limit }

        /// Sets how long a statement may take, and how long a transaction may be idle. The default is 30 seconds. The
        /// value is rounded to milliseconds. If the server does not end the statement, the connection is abandoned five
        /// seconds later.
        pub fn statement_timeout(self, limit: Duration) { self.limits.statement = limit }

        /// Sets how long a lease lasts without renewal. The default is 30 seconds, and the minimum is ten milliseconds.
        pub fn lease(self, lasts: Duration) { self.limits.lease = lasts.max(Duration::from_millis(10)) }

        /// Sets the certificates (PEM) to trust, such as a provider's root certificate. They replace the certificates
        /// that the platform trusts.
        pub fn root_certificates(self, pem: impl Into<Vec<u8>>) { self.certificates = Some(pem.into()) }
    }

    /// Connects to the database, and creates or updates the schema.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`PostgresStore::open`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may have been created or updated.
    pub async fn open(self) -> Result<PostgresStore, StoreError> {
        let Self { url, schema, certificates, limits } = self;
        sql::check_schema(&schema)?;
        let hosts = PostgresHostConnector::new(&url, certificates.as_deref(), limits)?;
        let server = Arc::new(PostgresPools::new(&hosts, &schema, limits)?);
        let threads = PostgresRuntime::start()?;
        let (migrated, name) = (Arc::clone(&server), schema.clone());
        // The connections belong to the runtime on which they are created. So the store creates them on its own
        // threads. The pools do not belong to a runtime.
        threads.run(async move { migrated.migrate(&name).await }).await?;
        Ok(PostgresStore(Arc::new(PostgresShared { server, schema, threads })))
    }
}

// The URL is omitted because it may contain a password.
crate::debug::impl_debug!(PostgresStoreBuilder(self) { schema: self.schema, limits: self.limits, .. });

impl PostgresStore {
    /// Opens the store in this database, in the schema `omni_agent`.
    ///
    /// The URL has the form that `libpq` uses: `postgres://user:password@host:port/database?sslmode=require`, or pairs
    /// of keys and values. The URL may name several hosts. The store uses the first host that can be reached and
    /// accepts writes. With `target_session_attrs=any`, a single host need not accept writes.
    ///
    /// `sslmode` decides about TLS. The default is `require`. With TLS, the certificate and the host name are always
    /// checked, so `require`, `verify-ca` and `verify-full` are equal. `prefer` connects without TLS if the server offers
    /// none, but fails if the server's certificate is invalid. `disable` connects without TLS.
    ///
    /// Without `sslmode`, connections within the machine are not encrypted. A connection is within the machine if its
    /// host is written as `localhost`, `127.0.0.0/8` or `::1`, and `hostaddr`, if set, is a loopback address. Each host
    /// of a URL has its own default. As in `libpq`, `sslmode` does not concern Unix sockets, which have no TLS.
    ///
    /// # Errors
    ///
    /// Fails with [`StoreError::Misconfigured`] if the URL, the schema name or the certificates are invalid. Otherwise
    /// fails with [`StoreError::Unreachable`], [`StoreError::Denied`], [`StoreError::UnknownFormat`], or another error
    /// of the database. Neither these errors nor later errors contain the password.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may have been created or updated.
    pub async fn open(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder(url).open().await
    }

    /// Returns settings for a store in this database.
    pub fn builder(url: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder {
            url: url.into(),
            schema: "omni_agent".to_owned(),
            certificates: None,
            limits: PostgresLimits {
                connections: 10,
                connect: Duration::from_secs(5),
                pool_wait: Duration::from_secs(5),
                lock_wait: Duration::from_secs(5),
                statement: Duration::from_secs(30),
                lease: Duration::from_secs(30),
            },
        }
    }

    /// Creates the indexes for [`Store::search`], if they do not exist. Without them, searches are unsupported.
    ///
    /// The indexes belong to the database, so one call by any process is enough. Other processes can write meanwhile
    /// (`CREATE INDEX CONCURRENTLY`), but the call waits for all transactions that are active at its beginning. It
    /// takes as long as reading all texts. The indexes are about as large as the texts, and make writes slower. If the
    /// existing indexes were made by another rule for words, they are replaced. Calls at the same time wait for each other.
    ///
    /// # Errors
    ///
    /// Fails with an error of the database, for example if the user does not own the tables.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the indexes are created nevertheless. If the process ends, another call creates them.
    pub async fn create_search_index(&self) -> Result<(), StoreError> {
        let server = Arc::clone(&self.0.server);
        self.0.threads.run(async move { server.create_search_index().await }).await
    }

    /// Returns the schema's name.
    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    /// Runs an operation with its input on the store's threads until it is complete. If the connection breaks, the
    /// operation may be repeated on another connection.
    async fn run<I: Send + Sync + 'static, T: Send + 'static>(
        &self,
        lane: PostgresPoolPurpose,
        id: Option<&ConversationId>,
        input: I,
        operation: impl for<'a> Fn(
            &'a PgConnection,
            &'a PostgresPools,
            &'a I,
        ) -> BoxFuture<'a, Result<T, PostgresOperationError>>
        + Send
        + Sync
        + 'static,
    ) -> Result<T, StoreError> {
        let (server, id) = (Arc::clone(&self.0.server), id.cloned());
        let run = async move { server.run(lane, id.as_ref(), &input, operation).await };
        self.0.threads.run(run).await
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn traits(&self) -> StoreTraits {
        let lease = Some(self.0.server.limits.lease);
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
        let new = (id.clone(), *write, change.clone());
        self.run(
            PostgresPoolPurpose::Conversations,
            Some(id),
            new,
            |connection, server, (id, write, change)| {
                // The change is encoded on the store's threads, so that this does not block a thread of the application.
                Box::pin(write::write(connection, server, id, write, change))
            },
        )
        .await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.run(PostgresPoolPurpose::Conversations, Some(id), id.clone(), |connection, server, id| {
            Box::pin(read::load(connection, server, id))
        })
        .await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.run(PostgresPoolPurpose::Conversations, Some(id), id.clone(), |connection, server, id| {
            Box::pin(read::summary(connection, server, id))
        })
        .await
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        self.run(PostgresPoolPurpose::Conversations, Some(id), id.clone(), |connection, server, id| {
            Box::pin(turns::turn(connection, server, id))
        })
        .await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.run(PostgresPoolPurpose::Conversations, None, listing.clone(), |connection, server, listing| {
            Box::pin(filter::list(connection, server, listing))
        })
        .await
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let wanted = (which, listing.clone());
        self.run(PostgresPoolPurpose::Conversations, None, wanted, |connection, server, (which, listing)| {
            Box::pin(turns::list(connection, server, *which, listing))
        })
        .await
    }

    async fn schedules(&self, which: &Schedules, listing: &Listing) -> Result<ScheduleList, StoreError> {
        let wanted = (which.clone(), listing.clone());
        self.run(PostgresPoolPurpose::Conversations, None, wanted, |connection, server, (which, listing)| {
            Box::pin(schedules::list(connection, server, which, listing))
        })
        .await
    }

    async fn search(&self, query: &Query, listing: &Listing) -> Result<Found, StoreError> {
        let wanted = (query.clone(), listing.clone());
        self.run(PostgresPoolPurpose::Conversations, None, wanted, |connection, server, (query, listing)| {
            Box::pin(search::search(connection, server, query, listing))
        })
        .await
    }

    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
        let wanted = (id.clone(), page.clone());
        self.run(PostgresPoolPurpose::Conversations, Some(id), wanted, |connection, server, (id, page)| {
            Box::pin(ledger::rows(connection, server, id, page))
        })
        .await
    }

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        let wanted = (filter.clone(), period);
        self.run(PostgresPoolPurpose::Conversations, None, wanted, |connection, server, (filter, period)| {
            Box::pin(ledger::used(connection, server, filter, period))
        })
        .await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        let named = (id.clone(), lease.cloned(), OnceLock::new());
        self.run(
            PostgresPoolPurpose::Conversations,
            Some(id),
            named,
            |connection, server, (id, lease, found)| {
                Box::pin(write::delete(connection, server, id, lease.as_ref(), found))
            },
        )
        .await
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let claim = (id.clone(), owner.clone());
        self.run(PostgresPoolPurpose::Conversations, Some(id), claim, |connection, server, (id, owner)| {
            Box::pin(lease::acquire(connection, server, id, owner))
        })
        .await
    }

    async fn renew(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let id = if let [(id, _)] = leases { Some(id) } else { None };
        self.run(PostgresPoolPurpose::Leases, id, leases.to_vec(), |connection, server, leases| {
            Box::pin(lease::renew(connection, server, leases))
        })
        .await
    }

    async fn release(
        &self,
        id: &ConversationId,
        lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        let held = (id.clone(), lease.clone(), mark);
        self.run(
            PostgresPoolPurpose::Conversations,
            Some(id),
            held,
            |connection, server, (id, lease, mark)| {
                Box::pin(lease::release(connection, server, id, lease, *mark))
            },
        )
        .await
    }
}

crate::debug::impl_debug!(PostgresStore(self) { database: self.0.server.place, schema: self.0.schema, .. });

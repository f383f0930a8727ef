//! Conversations in PostgreSQL (feature `postgres`).
//!
//! # Layout
//!
//! The store owns one schema of the database, by default `omni_agent`. It creates it and brings it up to date when it is
//! opened; several processes may be started at once. The table `migrations` has the versions that were applied, now 2.
//! A schema of a version yet to come is refused with [`StoreError::UnknownFormat`]. The user needs the right to create
//! schemas in the database, or, where the schema is up to date, to use it and its tables.
//!
//! Bringing it up to date waits for those who use its tables, such as a dump, for up to five minutes, and then the error is
//! [`StoreError::Busy`]. Meanwhile it keeps others from their tables for two seconds at a time. Processes that opened the schema
//! when it had version 1 go on beside later ones; until the last of them has ended, the leases of all should last equally long.
//!
//! | table | a row for each |
//! | --- | --- |
//! | `conversations` | conversation: id, version, times, title (a JSON string), state (JSON text), head, owner |
//! | `nodes` | message: as JSON `text`, exactly as it was written, and as `jsonb` for queries |
//! | `cursors` | cursor |
//! | `writes` | write, to know a repetition by |
//!
//! ```sql
//! SELECT id, content -> 'content' FROM omni_agent.nodes
//! WHERE content @> '{"content": [{"type": "tool_use", "name": "search"}]}';
//! ```
//!
//! `nodes.content` is derived by the database, and null where `jsonb` refuses the text (U+0000) or where the text is longer
//! than 256 KiB. The store itself reads the text alone.
//!
//! # Writes
//!
//! A write is one statement, which locks the conversation's row, compares version and lease, and writes. Only where
//! that finds nothing to write to does a second one ask why. `synchronous_commit` is raised from `off` to `on`, so that
//! what is acknowledged is on the server's disk.
//!
//! A delete removes the rows. Their bytes stay in the server's files until `VACUUM` and later writes have replaced them, and
//! in its write-ahead log, replicas and backups for as long as the server keeps those.
//!
//! # Connections
//!
//! There is a pool of them, each with its prepared statements, and two more for renewing leases. They are served, and all operations
//! run, on two threads of the store's own. So an operation may be called on any runtime, and goes on when another is
//! blocked. One whose connection breaks is repeated on another: writes are known by their ids, so nothing is written
//! twice. When the database can't be reached, the error is [`StoreError::Unreachable`], and the next operation tries
//! anew; [`StoreError::Busy`] says that a lock or a connection was not to be had in time. A connection over which nothing comes
//! back is given up: for a renewal after a third of the lease, and it is repeated over a new one.
//!
//! They rely on sessions (prepared statements, time limits): a pooler before the database has to keep a session for
//! each connection.
//!
//! # Ownership
//!
//! Leases stand in the conversation's row and are measured by the database's clock. One that would last for more than twice its
//! time, since that clock was set back, has ended. A write and a take-over lock the same row, so none slips past the other.
//! Epochs rise by chance: a server that takes over from another, and lacks its last transactions, gives none of them again.

mod error;
mod hosts;
mod lease;
mod migrate;
mod read;
mod server;
mod sql;
mod tls;
mod url;
mod write;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use deadpool_postgres::Object;
use futures_util::future::BoxFuture;

use self::{
    error::Fault,
    server::{Lane, Limits, Server, Threads},
    url::Settings,
};
use super::{
    Commit, ConversationId, Lease, Owner, Page, StateChange, Store, StoreError, Stored, StoredState, Summary,
    Version, Write, WriteId, rows::Change,
};

/// Keeps conversations in PostgreSQL, for applications on many machines. Clones share everything.
///
/// The module's documentation has the layout.
///
/// ```no_run
/// use omni_agent::store::{Page, PostgresStore, Store};
///
/// # async fn run() -> Result<(), omni_agent::store::StoreError> {
/// let store = PostgresStore::open("postgres://ada@localhost/app").await?;
/// for conversation in store.list(Page::default()).await? {
///     println!("{} {}", conversation.id, conversation.title.as_deref().unwrap_or("untitled"));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore(Arc<Inner>);

struct Inner {
    server: Arc<Server>,
    schema: String,
    threads: Threads,
}

/// Opens a [`PostgresStore`] with settings of its own.
#[derive(Clone)]
pub struct PostgresStoreBuilder {
    url: String,
    schema: String,
    certificates: Option<Vec<u8>>,
    limits: Limits,
}

impl PostgresStoreBuilder {
    /// The schema that holds the conversations; `omni_agent` if unset. Any name that PostgreSQL takes: up to 63 bytes, and not
    /// beginning with `pg_`. Upper and lower case are different.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Connections for conversations; ten if unset, one at least. Renewing leases has two more.
    pub fn connections(mut self, number: usize) -> Self {
        self.limits.connections = number.max(1);
        self
    }

    /// How long to wait for a connection of the pool, when all are in use; five seconds if unset.
    pub fn pool_wait(mut self, limit: Duration) -> Self {
        self.limits.pool_wait = limit;
        self
    }

    /// How long connecting to a host may take; five seconds if unset. `connect_timeout` in the URL goes before it.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.limits.connect = limit;
        self
    }

    /// How long to wait for a lock that another transaction holds; five seconds if unset. To the millisecond.
    pub fn lock_wait(mut self, limit: Duration) -> Self {
        self.limits.lock_wait = limit;
        self
    }

    /// How long a statement may take, and a transaction may stand idle; 30 seconds if unset. To the millisecond. Should the
    /// server not even end it, the connection is given up five seconds later.
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.limits.statement = limit;
        self
    }

    /// How long a lease lasts that is not renewed; 30 seconds if unset, ten milliseconds at least.
    pub fn lease(mut self, lasts: Duration) -> Self {
        self.limits.lease = lasts.max(Duration::from_millis(10));
        self
    }

    /// The certificates (PEM) to trust in place of those that the platform trusts, such as a provider's own root.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates = Some(pem.into());
        self
    }

    /// Opens the store: connects, and creates the schema or brings it up to date.
    ///
    /// # Errors
    ///
    /// As for [`PostgresStore::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the schema, whole.
    pub async fn open(self) -> Result<PostgresStore, StoreError> {
        let Self { url, schema, certificates, limits } = self;
        sql::check_schema(&schema)?;
        let config = Settings::parse(&url)
            .map_err(|error| StoreError::misconfigured("the PostgreSQL URL", InUrl(error)))?;
        let tls = tls::connector(certificates.as_deref())?;
        let server = Arc::new(Server::new(config, &tls, &schema, limits)?);
        let threads = Threads::start()?;
        let (migrated, name) = (Arc::clone(&server), schema.clone());
        // Pools are of no runtime; the connections are of the one on which they are made.
        threads.run(async move { migrated.migrate(&name).await }).await?;
        Ok(PostgresStore(Arc::new(Inner { server, schema, threads })))
    }
}

impl fmt::Debug for PostgresStoreBuilder {
    // The URL may have a password in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStoreBuilder")
            .field("schema", &self.schema)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is no `postgres://user:password@host:port/database` that can be understood")]
struct InUrl(#[source] tokio_postgres::Error);

impl PostgresStore {
    /// The store in this database, in the schema `omni_agent`.
    ///
    /// The URL is as for `libpq`: `postgres://user:password@host:port/database?sslmode=require`, or pairs of keys and values.
    /// Several hosts may be named; the first that can be reached and takes writes is used. With TLS, certificate and
    /// host name are always checked; without `sslmode`, it is used wherever the server has it, but not within the machine:
    /// where the host, and its `hostaddr` if there is one, is a loopback address, `localhost` or a socket.
    ///
    /// # Errors
    ///
    /// [`StoreError::Misconfigured`] if the URL, the schema's name or the certificates are none; [`StoreError::Unreachable`],
    /// [`StoreError::Denied`], [`StoreError::UnknownFormat`], or what else the database has against it. Neither these nor later errors show the password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the schema, whole.
    pub async fn open(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder(url).open().await
    }

    /// Settings for a store in this database.
    pub fn builder(url: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder {
            url: url.into(),
            schema: "omni_agent".to_owned(),
            certificates: None,
            limits: Limits {
                connections: 10,
                connect: Duration::from_secs(5),
                pool_wait: Duration::from_secs(5),
                lock_wait: Duration::from_secs(5),
                statement: Duration::from_secs(30),
                lease: Duration::from_secs(30),
            },
        }
    }

    /// The schema's name.
    pub fn schema(&self) -> &str {
        &self.0.schema
    }

    /// Runs an operation on the store's threads, to its end, with what it needs: over another connection that is the same.
    async fn run<I: Send + Sync + 'static, T: Send + 'static>(
        &self,
        lane: Lane,
        id: Option<&ConversationId>,
        input: I,
        operation: impl for<'a> Fn(&'a Object, &'a Server, &'a I) -> BoxFuture<'a, Result<T, Fault>>
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
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        let new = (id.clone(), write, state.clone());
        self.run(Lane::Conversations, Some(id), new, |connection, server, (id, write, state)| {
            Box::pin(write::create(connection, server, id, *write, state))
        })
        .await
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        let turn = (id.clone(), *write, commit.clone());
        self.run(Lane::Conversations, Some(id), turn, |connection, server, (id, write, commit)| {
            Box::pin(async move {
                // Encoded here, where it holds up no thread of the application.
                let change = Change::of_commit(id, commit.clone())?;
                write::change(connection, server, id, write, &change).await
            })
        })
        .await
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        let new = (id.clone(), *write, change.clone());
        self.run(Lane::Conversations, Some(id), new, |connection, server, (id, write, change)| {
            Box::pin(async move {
                let change = Change::of_state(id, change.clone())?;
                write::change(connection, server, id, write, &change).await
            })
        })
        .await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.run(Lane::Conversations, Some(id), id.clone(), |connection, server, id| {
            Box::pin(read::load(connection, server, id))
        })
        .await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.run(Lane::Conversations, Some(id), id.clone(), |connection, server, id| {
            Box::pin(read::summary(connection, server, id))
        })
        .await
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        self.run(Lane::Conversations, None, page, |connection, server, page| {
            Box::pin(read::list(connection, server, page.clone()))
        })
        .await
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        let named = (id.clone(), OnceLock::new());
        self.run(Lane::Conversations, Some(id), named, |connection, server, (id, found)| {
            Box::pin(write::delete(connection, server, id, found))
        })
        .await
    }

    async fn delete_under(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let held = (id.clone(), lease.clone());
        self.run(Lane::Conversations, Some(id), held, |connection, server, (id, lease)| {
            Box::pin(write::delete_under(connection, server, id, lease))
        })
        .await
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        let claim = (id.clone(), owner.clone());
        self.run(Lane::Conversations, Some(id), claim, |connection, server, (id, owner)| {
            Box::pin(lease::acquire(connection, server, id, owner))
        })
        .await
    }

    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let held = (id.clone(), lease.clone());
        self.run(Lane::Leases, Some(id), held, |connection, server, (id, lease)| {
            Box::pin(lease::renew(connection, server, id, lease))
        })
        .await?;
        Ok(lease.clone())
    }

    async fn renew_all(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        self.run(Lane::Leases, None, leases.to_vec(), |connection, server, leases| {
            Box::pin(lease::renew_all(connection, server, leases))
        })
        .await
    }

    async fn release(&self, id: &ConversationId, lease: &Lease) -> Result<(), StoreError> {
        let held = (id.clone(), lease.clone());
        self.run(Lane::Conversations, Some(id), held, |connection, server, (id, lease)| {
            Box::pin(lease::release(connection, server, id, lease))
        })
        .await
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("database", &self.0.server.place)
            .field("schema", &self.0.schema)
            .finish_non_exhaustive()
    }
}

//! The database: its connections, the threads that serve them, and the operations that use them.

use std::time::Duration;

use deadpool::{Runtime, managed::Pool};
use futures_util::future::BoxFuture;
use tokio::{runtime, time::timeout};
use tracing::Instrument;

use super::{
    connect::{PgConnection, PostgresHostConnector},
    error::{PostgresOperationError, PostgresRetryRemedy, failed, no_connection, remedy, silent},
    migrate::{is_current, migrate},
    search,
    sql::PostgresStatements,
};
use crate::store::{ConversationId, StoreError};

/// The time limits, and the number of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostgresLimits {
    pub(super) connections: usize,
    /// The time limit for connecting to one host.
    pub(super) connect: Duration,
    pub(super) pool_wait: Duration,
    pub(super) lock_wait: Duration,
    pub(super) statement: Duration,
    pub(super) lease: Duration,
}

impl PostgresLimits {
    /// Returns how long to wait for a response. The server ends a statement earlier than that, so a longer silence
    /// means that the server does not respond.
    pub(super) fn answer(&self) -> Duration {
        self.statement.saturating_add(Duration::from_secs(5))
    }
}

/// The connections that an operation uses.
#[derive(Clone, Copy)]
pub(super) enum PostgresPoolPurpose {
    Conversations,
    /// Connections for renewals. They are separate from the other connections, so that work on conversations never
    /// delays the renewal of a lease.
    Leases,
}

impl PostgresPoolPurpose {
    fn connections(self, limits: &PostgresLimits) -> usize {
        match self {
            Self::Conversations => limits.connections,
            // Two connections are needed, so that one can continue while the other waits for a locked row.
            Self::Leases => 2,
        }
    }

    /// Returns how long to wait for a response on a connection. For renewals this time is short, because a renewal must
    /// succeed before its lease expires, even if the first connection does not respond.
    fn patience(self, limits: &PostgresLimits) -> Duration {
        match self {
            Self::Conversations => limits.answer(),
            Self::Leases => limits.answer().min((limits.lease / 3).max(SHORTEST)),
        }
    }
}

/// The minimum time to wait for a response before a connection is abandoned, even if leases are short.
const SHORTEST: Duration = Duration::from_secs(1);

pub(super) struct PostgresPools {
    /// The host, port and database.
    pub(super) place: String,
    pub(super) limits: PostgresLimits,
    pub(super) sql: PostgresStatements,
    conversations: Pool<PostgresHostConnector>,
    leases: Pool<PostgresHostConnector>,
}

/// The number of attempts of an operation. An operation is repeated even if it may have succeeded. This is safe for
/// every operation, because writes are recognized by their ids.
const TRIES: usize = 3;

impl PostgresPools {
    /// Creates the pools, without connecting.
    pub(super) fn new(
        hosts: &PostgresHostConnector,
        schema: &str,
        limits: PostgresLimits,
    ) -> Result<Self, StoreError> {
        let pool = |lane: PostgresPoolPurpose| {
            Pool::builder(hosts.clone())
                .max_size(lane.connections(&limits))
                .runtime(Runtime::Tokio1)
                .wait_timeout(Some(limits.pool_wait))
                .build()
                .map_err(|error| StoreError::failed("making a pool of connections", error))
        };
        let (conversations, leases) =
            (pool(PostgresPoolPurpose::Conversations)?, pool(PostgresPoolPurpose::Leases)?);
        Ok(Self {
            place: hosts.place.clone(),
            limits,
            sql: PostgresStatements::new(schema),
            conversations,
            leases,
        })
    }

    /// Runs an operation on a connection. If the connection breaks, repeats the operation on another connection.
    pub(super) async fn run<I, T>(
        &self,
        lane: PostgresPoolPurpose,
        id: Option<&ConversationId>,
        input: &I,
        operation: impl for<'a> Fn(
            &'a PgConnection,
            &'a Self,
            &'a I,
        ) -> BoxFuture<'a, Result<T, PostgresOperationError>>,
    ) -> Result<T, StoreError> {
        let (mut tries, mut silences) = (0, 0);
        loop {
            tries += 1;
            let connection = self.connection(lane).await?;
            let patience = lane.patience(&self.limits);
            let Ok(done) = timeout(patience, operation(&connection, self, input)).await else {
                discard(connection);
                silences += 1;
                if matches!(lane, PostgresPoolPurpose::Leases) && silences == 1 {
                    // The idle connections may not respond either, so close them before the second attempt.
                    drop(self.pool(lane).retain(|_, _| false));
                    continue;
                }
                return Err(silent(&self.place, patience));
            };
            let error = match done {
                Ok(done) => return Ok(done),
                Err(PostgresOperationError::Store(error)) => return Err(error),
                Err(PostgresOperationError::Database(error)) => error,
            };
            let again = match remedy(&error) {
                PostgresRetryRemedy::Reconnect => {
                    discard(connection);
                    // The idle connections are as old, so the repetition would only fail on the next of them.
                    drop(self.pool(lane).retain(|_, _| false));
                    true
                }
                PostgresRetryRemedy::Again => true,
                PostgresRetryRemedy::None => false,
            };
            if !again || tries == TRIES {
                return Err(failed(&self.place, &self.limits, id, error));
            }
        }
    }

    /// Creates or updates the schema. The time limits of operations do not apply to the migration.
    pub(super) async fn migrate(&self, schema: &str) -> Result<(), StoreError> {
        let connection = self.connection(PostgresPoolPurpose::Conversations).await?;
        // The time limit of an operation applies to this check, but not to the migration itself.
        let looked = timeout(self.limits.answer(), is_current(&connection, schema, &self.place)).await;
        let done = match looked {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => migrate(&connection, schema, &self.place).await,
            Ok(Err(fault)) => Err(fault),
            Err(_) => Err(silent(&self.place, self.limits.answer()).into()),
        };
        done.map_err(|fault| {
            discard(connection);
            match fault {
                PostgresOperationError::Store(error) => error,
                PostgresOperationError::Database(error) => failed(&self.place, &self.limits, None, error),
            }
        })
    }

    /// Creates the indexes for searches, without a time limit.
    pub(super) async fn create_search_index(&self) -> Result<(), StoreError> {
        let connection = self.connection(PostgresPoolPurpose::Conversations).await?;
        let done = search::create_index(&connection, self).await;
        // Close this connection, because creating the index has changed its time limits.
        discard(connection);
        done.map_err(|fault| match fault {
            PostgresOperationError::Store(error) => error,
            PostgresOperationError::Database(error) => failed(&self.place, &self.limits, None, error),
        })
    }

    fn pool(&self, lane: PostgresPoolPurpose) -> &Pool<PostgresHostConnector> {
        match lane {
            PostgresPoolPurpose::Conversations => &self.conversations,
            PostgresPoolPurpose::Leases => &self.leases,
        }
    }

    async fn connection(&self, lane: PostgresPoolPurpose) -> Result<PgConnection, StoreError> {
        let connections = lane.connections(&self.limits);
        self.pool(lane)
            .get()
            .await
            .map_err(|error| no_connection(&self.place, &self.limits, connections, error))
    }
}

/// Closes a connection whose state is unknown.
fn discard(connection: PgConnection) {
    drop(PgConnection::take(connection));
}

/// The threads that serve connections and run operations, separate from the application's runtime. They continue to
/// work while the application's runtime is blocked, and they serve operations from every runtime.
pub(super) struct PostgresRuntime(Option<runtime::Runtime>);

impl PostgresRuntime {
    pub(super) fn start() -> Result<Self, StoreError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("postgres-store")
            .enable_all()
            .build()
            .map_err(|error| StoreError::failed("starting threads for PostgreSQL", error))?;
        Ok(Self(Some(runtime)))
    }

    /// Runs an operation to its end, even if the caller stops waiting.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let runtime = self.0.as_ref().expect("the runtime exists until `self` is dropped");
        match runtime.spawn(operation.in_current_span()).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(StoreError::failed("using a store that is being dropped", error)),
            },
        }
    }
}

impl Drop for PostgresRuntime {
    fn drop(&mut self) {
        // This call does not wait, so the store may be dropped in any context.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

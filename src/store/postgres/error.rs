//! Converts errors of the database.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use deadpool::managed::PoolError;
use tokio_postgres::error::SqlState;

use super::server::PostgresLimits;
use crate::{
    error::error_chain,
    store::{ConversationId, StoreError},
};

/// A failure of an operation.
pub(in crate::store) enum PostgresOperationError {
    Database(tokio_postgres::Error),
    Store(StoreError),
}

impl From<tokio_postgres::Error> for PostgresOperationError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for PostgresOperationError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// How a failed operation can be repeated immediately, if it can.
pub(super) enum PostgresRetryRemedy {
    /// The connection is unusable. Another connection may work.
    Reconnect,
    /// The database cancelled the transaction in favor of another transaction. Repeating the operation on the same
    /// connection may work.
    Again,
    None,
}

pub(super) fn remedy(error: &tokio_postgres::Error) -> PostgresRetryRemedy {
    let Some(code) = error.code() else {
        // An error without a code means that a value was unexpected, or else that the connection ended.
        return if PostgresConversionError::of(error).is_some() {
            PostgresRetryRemedy::None
        } else {
            PostgresRetryRemedy::Reconnect
        };
    };
    match *code {
        SqlState::ADMIN_SHUTDOWN
        | SqlState::CRASH_SHUTDOWN
        | SqlState::CANNOT_CONNECT_NOW
        | SqlState::DATABASE_DROPPED
        | SqlState::IDLE_SESSION_TIMEOUT
        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        // These codes mean that another server took over, or that a query plan was discarded or is older than a
        // migration. In each case, a new connection helps.
        | SqlState::READ_ONLY_SQL_TRANSACTION
        | SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::FEATURE_NOT_SUPPORTED => PostgresRetryRemedy::Reconnect,
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => PostgresRetryRemedy::Again,
        _ if code.code().starts_with("08") => PostgresRetryRemedy::Reconnect,
        _ => PostgresRetryRemedy::None,
    }
}

/// The problem with a value, for errors that do not concern the connection.
enum PostgresConversionError {
    /// The value can't be sent.
    Sent,
    /// The stored value does not have the expected type.
    Found,
}

impl PostgresConversionError {
    fn of(error: &tokio_postgres::Error) -> Option<Self> {
        // The driver reports the kind of an error only in the error's text, so compare the text.
        let kinds = [
            ("error serializing parameter", Self::Sent),
            ("error encoding message", Self::Sent),
            ("error deserializing column", Self::Found),
        ];
        let text = error.to_string();
        kinds.into_iter().find_map(|(kind, value)| text.starts_with(kind).then_some(value))
    }
}

fn io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(<dyn Error>::is::<std::io::Error>)
}

/// Converts an error of an operation on this database. `id` is the conversation that the operation concerns, if any.
pub(super) fn failed(
    place: &str,
    limits: &PostgresLimits,
    id: Option<&ConversationId>,
    error: tokio_postgres::Error,
) -> StoreError {
    let place = place.to_owned();
    let of = |what: &str| match id {
        Some(id) => format!("{what}conversation {id} in {place}"),
        None => format!("{what}{place}"),
    };
    let Some(code) = error.code().cloned() else {
        let problem = || error_chain(&error);
        match (PostgresConversionError::of(&error), id) {
            (Some(PostgresConversionError::Found), _) => return StoreError::damaged(of(""), problem()),
            (Some(PostgresConversionError::Sent), Some(id)) => {
                return StoreError::Unstorable { id: id.clone(), problem: problem() };
            }
            _ => {}
        }
        let lost = error.is_closed() || io(&error) || error.to_string().contains("connecting");
        let source: Arc<dyn Error + Send + Sync> = Arc::new(PostgresErrorWithCauses(error));
        return if lost {
            StoreError::Unreachable { place, source }
        } else {
            StoreError::Failed { action: format!("communicating with {place}"), source }
        };
    };
    let class = code.code().get(..2).unwrap_or_default().to_owned();
    match (code, class.as_str()) {
        (SqlState::LOCK_NOT_AVAILABLE, _) => StoreError::Busy { place: of(""), waited: limits.lock_wait },
        (SqlState::QUERY_CANCELED, _) => StoreError::Busy { place: of(""), waited: limits.statement },
        (SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED, _) => {
            StoreError::Busy { place: of(""), waited: Duration::ZERO }
        }
        (SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY, _) => {
            StoreError::Full { place, source: Arc::new(PostgresErrorWithCauses(error)) }
        }
        (SqlState::INSUFFICIENT_PRIVILEGE | SqlState::READ_ONLY_SQL_TRANSACTION, _) | (_, "28") => {
            StoreError::Denied { place, source: Arc::new(PostgresErrorWithCauses(error)) }
        }
        // These codes stand for connection errors, a missing database, too many clients, a server that starts or stops,
        // and missing tables.
        (
            SqlState::UNDEFINED_TABLE
            | SqlState::INVALID_SCHEMA_NAME
            | SqlState::TOO_MANY_CONNECTIONS
            | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
            _,
        )
        | (_, "08" | "3D" | "57") => {
            StoreError::Unreachable { place, source: Arc::new(PostgresErrorWithCauses(error)) }
        }
        // These codes stand for text outside the database's encoding, U+0000 in an owner's name, and limits of the
        // database.
        (SqlState::CHARACTER_NOT_IN_REPERTOIRE | SqlState::UNTRANSLATABLE_CHARACTER, _) | (_, "54")
            if id.is_some() =>
        {
            let problem =
                error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
            match id {
                Some(id) => StoreError::Unstorable { id: id.clone(), problem },
                None => StoreError::failed(of("using "), PostgresErrorWithCauses(error)),
            }
        }
        _ => StoreError::failed(of("using "), PostgresErrorWithCauses(error)),
    }
}

/// Converts an error of connecting to this host.
pub(super) fn not_connected(
    place: &str,
    limits: &PostgresLimits,
    host: &str,
    error: tokio_postgres::Error,
) -> StoreError {
    if error_chain(&error).contains("server does not support TLS") {
        let remedy = "add `sslmode=disable` if this connection may stay unencrypted";
        return unreachable(place, format!("{host} offers no TLS; {remedy}"));
    }
    match failed(place, limits, None, error) {
        // At this point, any other error also means that connecting failed.
        StoreError::Failed { source, .. } => StoreError::Unreachable { place: place.to_owned(), source },
        error => error,
    }
}

/// Converts an error of a pool with this number of connections.
pub(super) fn no_connection(
    place: &str,
    limits: &PostgresLimits,
    connections: usize,
    error: PoolError<StoreError>,
) -> StoreError {
    match error {
        PoolError::Backend(error) => error,
        // The pool itself limits only the time to wait for a connection.
        PoolError::Timeout(_) => StoreError::Busy {
            place: format!("the pool of {connections} connections to {place}"),
            waited: limits.pool_wait,
        },
        error => StoreError::failed(format!("connecting to {place}"), error),
    }
}

/// An error of the driver, displayed with all its causes. The error's own text is only `db error`, and the causes
/// contain the reason.
#[derive(Debug)]
struct PostgresErrorWithCauses(tokio_postgres::Error);

impl fmt::Display for PostgresErrorWithCauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&error_chain(&self.0))
    }
}

impl Error for PostgresErrorWithCauses {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Returns the error for a connection that was abandoned because the database did not respond.
pub(super) fn silent(place: &str, waited: Duration) -> StoreError {
    unreachable(place, format!("it did not respond within {waited:?}"))
}

/// Returns the error for a database that can't be reached for this reason.
pub(super) fn unreachable(place: &str, reason: String) -> StoreError {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct UnreachableReason(String);

    StoreError::Unreachable { place: place.to_owned(), source: Arc::new(UnreachableReason(reason)) }
}

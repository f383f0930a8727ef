//! Transactions that several writes share. Syncing the file takes most of the time of a write, and one sync is enough
//! for all writes that wait at the same time.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use rusqlite::{Connection, ffi};

use super::database::Fault;

/// The maximum number of writes in one transaction.
pub(super) const MAX_SHARED: usize = 64;

/// A write that can share a transaction. Calling it prepares the write before the transaction begins.
pub(super) type Together = Box<dyn FnOnce() -> Apply + Send>;

/// A prepared write. Within a transaction, it is called with the connection. If the transaction could not begin, it is
/// called with the error.
pub(super) type Apply = Box<dyn FnOnce(Result<&mut Connection, rusqlite::Error>) -> Applied>;

/// A write whose transaction has not ended yet.
pub(super) struct Applied {
    /// The error of the database, if there was one.
    error: Option<rusqlite::Error>,
    settle: Settle,
}

/// Passes the result of the write to its caller. If the transaction has failed, its error replaces the result. Returns
/// whether other connections or processes kept the file locked.
type Settle = Box<dyn FnOnce(Result<(), rusqlite::Error>) -> bool>;

/// The result of a write, or its panic.
pub(super) type Written<T> = Result<Result<T, Fault>, Box<dyn Any + Send>>;

/// Returns a write whose result is passed to `end`.
pub(super) fn member<P: 'static, T: 'static>(
    prepare: impl FnOnce() -> Result<P, Fault> + Send + 'static,
    action: impl FnOnce(&mut Connection, P) -> Result<T, Fault> + Send + 'static,
    end: impl FnOnce(Written<T>) -> bool + Send + 'static,
) -> Together {
    Box::new(move || {
        let prepared = catch_unwind(AssertUnwindSafe(prepare));
        Box::new(move |connection| {
            // If a panic interrupts the write, its part of the transaction is rolled back during unwinding.
            let written = prepared
                .and_then(|prepared| catch_unwind(AssertUnwindSafe(|| action(connection?, prepared?))));
            let error = match &written {
                Ok(Err(Fault::Sqlite(error))) => Some(copy(error)),
                _ => None,
            };
            let settle = move |outcome: Result<(), rusqlite::Error>| {
                end(written.map(|written| outcome.map_err(Fault::Sqlite).and(written)))
            };
            Applied { error, settle: Box::new(settle) }
        })
    })
}

/// Performs these writes in one transaction. A write that fails is undone alone. If the transaction fails, all of its
/// writes fail. Returns whether other connections or processes kept the file locked.
pub(super) fn write(connection: &mut Connection, writes: Vec<Together>) -> bool {
    let mut prepared: Vec<Apply> = writes.into_iter().map(|write| write()).collect();
    if let [_] = *prepared {
        // A single write begins its own transaction.
        return prepared.into_iter().any(|apply| (apply(Ok(connection)).settle)(Ok(())));
    }
    let mut is_held = false;
    while !prepared.is_empty() {
        if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
            let fail = |apply: Apply| (apply(Err(copy(&error))).settle)(Ok(()));
            return prepared.into_iter().map(fail).fold(is_held, |held, is_busy| held | is_busy);
        }
        let mut outcome = Ok(());
        let mut settles = Vec::with_capacity(prepared.len());
        let mut rest = prepared.into_iter();
        while outcome.is_ok()
            && let Some(apply) = rest.next()
        {
            let Applied { error, settle } = apply(Ok(connection));
            settles.push(settle);
            // After some errors, such as a full disk, SQLite itself rolls the whole transaction back. Then all of its
            // writes fail.
            if connection.is_autocommit() {
                outcome =
                    Err(error
                        .unwrap_or_else(|| failure(ffi::SQLITE_ABORT, "the transaction was rolled back")));
            }
        }
        if outcome.is_ok() {
            outcome = connection.execute_batch("COMMIT");
        }
        if !connection.is_autocommit() {
            // The commit has failed, and the transaction is still open. A rollback always ends the transaction, so an
            // error is ignored.
            let _ = connection.execute_batch("ROLLBACK");
        }
        for settle in settles {
            is_held |= settle(outcome.as_ref().copied().map_err(copy));
        }
        // If a write has ended the transaction, the writes after it run in a new transaction.
        prepared = rest.collect();
    }
    is_held
}

fn failure(code: i32, reason: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(reason.to_owned()))
}

/// Returns an error with the same meaning. Errors of SQLite are copied exactly.
fn copy(error: &rusqlite::Error) -> rusqlite::Error {
    match error {
        rusqlite::Error::SqliteFailure(error, reason) => {
            rusqlite::Error::SqliteFailure(*error, reason.clone())
        }
        other => failure(ffi::SQLITE_ERROR, &other.to_string()),
    }
}

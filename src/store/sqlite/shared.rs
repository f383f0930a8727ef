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
pub(super) type Together = Box<dyn FnOnce() -> Box<dyn Prepared> + Send>;

/// The result of a write, or its panic.
pub(super) type Written<T> = Result<Result<T, Fault>, Box<dyn Any + Send>>;

/// A prepared write.
pub(super) trait Prepared {
    /// Performs the write, and keeps its result until [`settle`](Self::settle). If the connection is in a transaction,
    /// the write is a part of it. Returns `false` if the write has failed and may have changed something. Then the
    /// transaction must be rolled back, and the write can be performed again.
    fn perform(&mut self, connection: &mut Connection) -> bool;

    /// Passes the result to the caller. An error of the transaction replaces the result. Returns whether other
    /// connections or processes kept the file locked.
    fn settle(self: Box<Self>, outcome: Result<(), rusqlite::Error>) -> bool;
}

struct Member<P, T, A, E> {
    /// The prepared input, or `None` if the preparation has failed.
    input: Option<P>,
    action: A,
    end: E,
    written: Option<Written<T>>,
}

/// Returns a write whose result is passed to `end`.
pub(super) fn member<P: 'static, T: 'static>(
    prepare: impl FnOnce() -> Result<P, Fault> + Send + 'static,
    action: impl Fn(&mut Connection, &P) -> Result<T, Fault> + Send + 'static,
    end: impl FnOnce(Written<T>) -> bool + Send + 'static,
) -> Together {
    Box::new(move || {
        let (input, written) = match catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(Ok(input)) => (Some(input), None),
            Ok(Err(fault)) => (None, Some(Ok(Err(fault)))),
            Err(panic) => (None, Some(Err(panic))),
        };
        Box::new(Member { input, action, end, written })
    })
}

impl<P, T, A, E> Prepared for Member<P, T, A, E>
where
    A: Fn(&mut Connection, &P) -> Result<T, Fault>,
    E: FnOnce(Written<T>) -> bool,
{
    fn perform(&mut self, connection: &mut Connection) -> bool {
        let Some(input) = &self.input else { return true };
        let before = connection.total_changes();
        // If a panic interrupts a write that has its own transaction, the transaction is rolled back during unwinding.
        let written = catch_unwind(AssertUnwindSafe(|| (self.action)(connection, input)));
        let is_clean = match &written {
            Ok(Ok(_)) => true,
            // SQLite undoes the failed statement in most cases, but not in all.
            Ok(Err(Fault::Sqlite(rusqlite::Error::SqliteFailure(..)))) | Err(_) => false,
            Ok(Err(_)) => connection.total_changes() == before,
        };
        self.written = Some(written);
        is_clean
    }

    fn settle(self: Box<Self>, outcome: Result<(), rusqlite::Error>) -> bool {
        let written = match (self.written, outcome) {
            (Some(Err(panic)), _) => Err(panic),
            // The preparation has failed, so the transaction does not matter.
            (Some(written), _) if self.input.is_none() => written,
            (_, Err(error)) => Ok(Err(error.into())),
            (Some(written), Ok(())) => written,
            (None, Ok(())) => Ok(Err(failure(ffi::SQLITE_ABORT, "the write was not performed").into())),
        };
        (self.end)(written)
    }
}

/// Performs these writes in one transaction. If a write fails and may have changed something, the transaction is rolled
/// back, and each write is performed in its own transaction. If the transaction can't begin or be committed, all of its
/// writes fail. Returns whether other connections or processes kept the file locked.
pub(super) fn write(connection: &mut Connection, writes: Vec<Together>) -> bool {
    let mut writes: Vec<_> = writes.into_iter().map(|write| write()).collect();
    let shared = if writes.len() > 1 { together(connection, &mut writes) } else { None };
    let mut is_held = false;
    for mut write in writes {
        let outcome = match &shared {
            Some(outcome) => outcome.as_ref().copied().map_err(copy),
            // The file was locked for the whole waiting time of the previous write, so this write does not wait again.
            None if is_held => Err(failure(ffi::SQLITE_BUSY, "database is locked")),
            None => {
                write.perform(connection);
                Ok(())
            }
        };
        is_held |= write.settle(outcome);
    }
    is_held
}

/// Performs these writes in one transaction, and returns the outcome of the transaction. Returns `None` if the
/// transaction was rolled back because of one of the writes.
fn together(
    connection: &mut Connection,
    writes: &mut [Box<dyn Prepared>],
) -> Option<Result<(), rusqlite::Error>> {
    if let Err(error) = connection.execute_batch("BEGIN IMMEDIATE") {
        return Some(Err(error));
    }
    // After some errors, such as a full disk, SQLite itself rolls the transaction back.
    let is_complete = writes.iter_mut().all(|write| write.perform(connection) && !connection.is_autocommit());
    let outcome = is_complete.then(|| connection.execute_batch("COMMIT"));
    if !connection.is_autocommit()
        && let Err(error) = connection.execute_batch("ROLLBACK")
        && !connection.is_autocommit()
    {
        // The transaction is still open, so no write can have its own transaction.
        return Some(Err(error));
    }
    outcome
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns a write whose action is called with the number of the attempt, and which sends its result.
    fn attempts(
        results: &mpsc::Sender<Result<u32, rusqlite::Error>>,
        action: impl Fn(u32) -> Result<(), rusqlite::Error> + Send + 'static,
    ) -> Together {
        let (results, attempts) = (results.clone(), std::cell::Cell::new(0));
        let action = move |_: &mut Connection, (): &()| {
            attempts.set(attempts.get() + 1);
            action(attempts.get())?;
            Ok(attempts.get())
        };
        let end = move |written: Written<u32>| {
            let written = written.expect("no action panics").map_err(|fault| match fault {
                Fault::Sqlite(error) => error,
                Fault::Store(error) => panic!("no action returns {error}"),
            });
            let is_held = matches!(&written, Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy));
            results.send(written).expect("the test waits for it");
            is_held
        };
        member(|| Ok(()), action, end)
    }

    #[test]
    fn write_alone_after_a_write_that_waited_in_vain_fails_without_waiting() {
        let mut connection = Connection::open_in_memory().unwrap();
        let (results, result) = mpsc::channel();
        let fails =
            |attempt| Err(failure(if attempt == 1 { ffi::SQLITE_ERROR } else { ffi::SQLITE_BUSY }, "no"));
        let writes = vec![
            attempts(&results, |_| Ok(())),
            attempts(&results, fails),
            attempts(&results, |attempt| panic!("attempt {attempt}")),
        ];
        assert!(write(&mut connection, writes));
        assert_eq!(result.recv().unwrap().unwrap(), 2, "the transaction was rolled back once");
        for _ in 0..2 {
            let error = result.recv().unwrap().unwrap_err();
            assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
        }
        assert!(connection.is_autocommit());
    }
}

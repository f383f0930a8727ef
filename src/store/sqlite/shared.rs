//! Transactions that several writes share. Syncing the file takes most of the time of a write, and one sync is enough
//! for all writes that wait at the same time.
//!
//! A transaction is synced within its commit. If another thread synced it while the writer performs the next writes,
//! readers would see a commit before it is durable, and a repeated write would be acknowledged before the first one is
//! synced. Callers get their results after the transaction.
//!
//! Most refusals, such as a conflict, are found before a write changes anything. Savepoints for the other ones would
//! cost more, because SQLite would copy each page that is changed. A delete, an erasure and a vacuum share no
//! transaction.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use rusqlite::{Connection, ffi};

use super::database::SqliteOperationError;
use crate::store::StoreError;

/// The maximum number of writes in one transaction.
pub(super) const MAX_SHARED: usize = 64;

/// A write that can share a transaction. Calling it prepares the write before the transaction begins.
pub(super) type SharedTransactionWrite = Box<dyn FnOnce() -> Box<dyn PreparedWrite> + Send>;

/// The result of a write, or its panic.
pub(super) type SharedWriteResult<T> = Result<Result<T, SqliteOperationError>, Box<dyn Any + Send>>;

/// A prepared write.
pub(super) trait PreparedWrite {
    /// Performs the write, and keeps its result until [`settle`](Self::settle). If the connection is in a transaction,
    /// the write is a part of it. Returns `false` if the write has failed and may have changed something. Then the
    /// transaction must be rolled back, and the write can be performed again.
    fn perform(&mut self, connection: &mut Connection) -> bool;

    /// Checks that the file is still in its place. Called after the transaction, on one of its writes, because all of
    /// them have the same file.
    fn check(&self) -> Result<(), StoreError>;

    /// Passes the result to the caller. An error of the transaction, or of the check after it, replaces the result.
    /// Returns whether other connections or processes kept the file locked.
    fn settle(self: Box<Self>, outcome: Result<(), SqliteOperationError>) -> bool;
}

struct SharedTransactionMember<P, T, A, C, E> {
    /// The prepared input, or `None` if the preparation has failed.
    input: Option<P>,
    action: A,
    check: C,
    end: E,
    written: Option<SharedWriteResult<T>>,
}

/// Returns a write whose result is passed to `end`. `check` runs after the transaction.
pub(super) fn member<P: 'static, T: 'static>(
    prepare: impl FnOnce() -> Result<P, SqliteOperationError> + Send + 'static,
    action: impl Fn(&mut Connection, &P) -> Result<T, SqliteOperationError> + Send + 'static,
    check: impl Fn() -> Result<(), StoreError> + Send + 'static,
    end: impl FnOnce(SharedWriteResult<T>) -> bool + Send + 'static,
) -> SharedTransactionWrite {
    Box::new(move || {
        let (input, written) = match catch_unwind(AssertUnwindSafe(prepare)) {
            Ok(Ok(input)) => (Some(input), None),
            Ok(Err(fault)) => (None, Some(Ok(Err(fault)))),
            Err(panic) => (None, Some(Err(panic))),
        };
        Box::new(SharedTransactionMember { input, action, check, end, written })
    })
}

impl<P, T, A, C, E> PreparedWrite for SharedTransactionMember<P, T, A, C, E>
where
    A: Fn(&mut Connection, &P) -> Result<T, SqliteOperationError>,
    C: Fn() -> Result<(), StoreError>,
    E: FnOnce(SharedWriteResult<T>) -> bool,
{
    fn perform(&mut self, connection: &mut Connection) -> bool {
        let Some(input) = &self.input else { return true };
        let before = connection.total_changes();
        // If a panic interrupts a write that has its own transaction, the transaction is rolled back during unwinding.
        let written = catch_unwind(AssertUnwindSafe(|| (self.action)(connection, input)));
        let is_clean = match &written {
            Ok(Ok(_)) => true,
            // SQLite undoes the failed statement in most cases, but not in all.
            Ok(Err(SqliteOperationError::Sqlite(rusqlite::Error::SqliteFailure(..)))) | Err(_) => false,
            Ok(Err(_)) => connection.total_changes() == before,
        };
        self.written = Some(written);
        is_clean
    }

    fn check(&self) -> Result<(), StoreError> {
        (self.check)()
    }

    fn settle(self: Box<Self>, outcome: Result<(), SqliteOperationError>) -> bool {
        let written = match (self.written, outcome) {
            (Some(Err(panic)), _) => Err(panic),
            // The preparation has failed, so the transaction and the check do not matter.
            (Some(written), _) if self.input.is_none() => written,
            (_, Err(fault)) => Ok(Err(fault)),
            (Some(written), Ok(())) => written,
            (None, Ok(())) => Ok(Err(failure(ffi::SQLITE_ABORT, "the write was not performed").into())),
        };
        (self.end)(written)
    }
}

/// Performs these writes in one transaction. If a write fails and may have changed something, the transaction is rolled
/// back, and each write is performed in its own transaction. If the transaction can't begin or be committed, all of its
/// writes fail. The file is checked after each transaction. Returns whether other connections or processes kept the file
/// locked.
pub(super) fn write(connection: &mut Connection, writes: Vec<SharedTransactionWrite>) -> bool {
    let mut writes: Vec<_> = writes.into_iter().map(|write| write()).collect();
    let shared = if writes.len() > 1 { together(connection, &mut writes) } else { None };
    // An error of the check comes first, because it explains the errors of the transaction.
    let shared = shared.map(|outcome| {
        writes[0].check().map_err(SqliteOperationError::from).and(outcome.map_err(SqliteOperationError::from))
    });
    let mut is_held = false;
    for mut write in writes {
        let outcome = if let Some(outcome) = &shared {
            outcome.as_ref().copied().map_err(copy)
        } else {
            let performed = if is_held {
                // The file was locked for the whole waiting time of the previous write, so this write does not wait
                // again.
                Err(failure(ffi::SQLITE_BUSY, "database is locked").into())
            } else {
                write.perform(connection);
                Ok(())
            };
            write.check().map_err(SqliteOperationError::from).and(performed)
        };
        is_held |= write.settle(outcome);
    }
    is_held
}

/// Performs these writes in one transaction, and returns the outcome of the transaction. Returns `None` if the
/// transaction was rolled back because of one of the writes.
fn together(
    connection: &mut Connection,
    writes: &mut [Box<dyn PreparedWrite>],
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

/// Returns a fault with the same meaning. Errors of SQLite are copied exactly.
fn copy(fault: &SqliteOperationError) -> SqliteOperationError {
    match fault {
        SqliteOperationError::Store(error) => error.clone().into(),
        SqliteOperationError::Sqlite(rusqlite::Error::SqliteFailure(error, reason)) => {
            rusqlite::Error::SqliteFailure(*error, reason.clone()).into()
        }
        SqliteOperationError::Sqlite(other) => failure(ffi::SQLITE_ERROR, &other.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::mpsc};

    use rusqlite::ErrorCode;

    use super::*;

    /// The results of a test's writes, in order. The error of a failed check has no code.
    struct TestWriteResults {
        sender: mpsc::Sender<Result<u32, Option<ErrorCode>>>,
        receiver: mpsc::Receiver<Result<u32, Option<ErrorCode>>>,
        checks: mpsc::Receiver<()>,
        checked: mpsc::Sender<()>,
        /// Whether the checks fail.
        fails: bool,
    }

    impl TestWriteResults {
        fn new(fails: bool) -> Self {
            let ((sender, receiver), (checked, checks)) = (mpsc::channel(), mpsc::channel());
            Self { sender, receiver, checks, checked, fails }
        }

        /// Returns a write whose action is called with the number of the attempt.
        fn of(
            &self,
            action: impl Fn(u32) -> Result<(), rusqlite::Error> + Send + 'static,
        ) -> SharedTransactionWrite {
            let (results, checked, fails) = (self.sender.clone(), self.checked.clone(), self.fails);
            let attempts = Cell::new(0);
            let action = move |_: &mut Connection, (): &()| {
                attempts.set(attempts.get() + 1);
                action(attempts.get())?;
                Ok(attempts.get())
            };
            let check = move || {
                checked.send(()).expect("the test counts it");
                if fails { Err(StoreError::unsupported("anything")) } else { Ok(()) }
            };
            let end = move |written: SharedWriteResult<u32>| {
                let written = written.expect("no action panics").map_err(|fault| match fault {
                    SqliteOperationError::Sqlite(error) => error.sqlite_error_code(),
                    SqliteOperationError::Store(_) => None,
                });
                results.send(written).expect("the test waits for it");
                written == Err(Some(ErrorCode::DatabaseBusy))
            };
            member(|| Ok(()), action, check, end)
        }

        /// Performs a write that succeeds and two more, of which the first fails in the given attempts. Returns the
        /// results and the number of checks.
        fn write(
            &self,
            connection: &mut Connection,
            fails: fn(u32) -> bool,
        ) -> (Vec<Result<u32, Option<ErrorCode>>>, usize) {
            let fails =
                move |attempt| if fails(attempt) { Err(failure(ffi::SQLITE_FULL, "no")) } else { Ok(()) };
            write(connection, vec![self.of(|_| Ok(())), self.of(fails), self.of(|_| Ok(()))]);
            (self.receiver.try_iter().collect(), self.checks.try_iter().count())
        }
    }

    #[test]
    fn write_alone_after_a_write_that_waited_in_vain_fails_without_waiting() {
        let mut connection = Connection::open_in_memory().unwrap();
        let results = TestWriteResults::new(false);
        let fails =
            |attempt| Err(failure(if attempt == 1 { ffi::SQLITE_ERROR } else { ffi::SQLITE_BUSY }, "no"));
        let writes = vec![
            results.of(|_| Ok(())),
            results.of(fails),
            results.of(|attempt| panic!("attempt {attempt}")),
        ];
        assert!(write(&mut connection, writes));
        assert_eq!(results.receiver.recv().unwrap(), Ok(2), "the transaction was rolled back once");
        for _ in 0..2 {
            assert_eq!(results.receiver.recv().unwrap(), Err(Some(ErrorCode::DatabaseBusy)));
        }
        assert!(connection.is_autocommit());
    }

    #[test]
    fn write_of_a_shared_transaction_checks_the_file_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        let written = TestWriteResults::new(false).write(&mut connection, |_| false);
        assert_eq!(written, (vec![Ok(1); 3], 1));
        let written = TestWriteResults::new(true).write(&mut connection, |_| false);
        assert_eq!(written, (vec![Err(None); 3], 1), "the failed check fails all writes");
    }

    #[test]
    fn write_after_a_rollback_checks_the_file_for_each_write() {
        let mut connection = Connection::open_in_memory().unwrap();
        let written = TestWriteResults::new(false).write(&mut connection, |_| true);
        assert_eq!(written, (vec![Ok(2), Err(Some(ErrorCode::DiskFull)), Ok(1)], 3));
        let written = TestWriteResults::new(true).write(&mut connection, |attempt| attempt == 1);
        assert_eq!(written, (vec![Err(None); 3], 3));
    }

    #[test]
    fn write_in_a_transaction_that_cannot_begin_returns_the_error_of_the_check_first() {
        let mut connection = Connection::open_in_memory().unwrap();
        // A transaction can't begin within another one.
        connection.execute_batch("BEGIN").unwrap();
        let written = TestWriteResults::new(false).write(&mut connection, |_| false);
        assert_eq!(written, (vec![Err(Some(ErrorCode::Unknown)); 3], 1));
        let written = TestWriteResults::new(true).write(&mut connection, |_| false);
        assert_eq!(written, (vec![Err(None); 3], 1));
    }
}

//! The database file: opening it, its schema, and its errors.

use std::{
    error::Error,
    fs, io,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, config::DbConfig, ffi};

use super::read_only::{self, ReadOnlyFileStamp};
use crate::{
    store::{ConversationId, StoreError, file_system::Durability},
    sync::lock,
};

/// The first version of SQLite in which resetting the write-ahead log can't lose writes (see "WAL-reset bug" in
/// SQLite's documentation, "Write-Ahead Logging").
const OLDEST: (i32, &str) = (3_051_003, "3.51.3");
/// The application id in the file's header, which marks the file as a file of this crate.
const APPLICATION: i32 = i32::from_be_bytes(*b"omni");
/// The migrations. The first one creates the schema with the version [`FIRST`]. Each other one updates it to the next
/// version.
const MIGRATIONS: &[&str] = &[include_str!("migrations/1.sql"), include_str!("migrations/2.sql")];
/// The version of the schema after the first migration.
const FIRST: usize = 10;
/// The latest version of the schema.
const LATEST: usize = FIRST + MIGRATIONS.len() - 1;
/// The maximum size of the write-ahead log's file after a checkpoint, in bytes.
pub(super) const LOG_LIMIT: u32 = 16 * 1024 * 1024;
/// The size up to which the writer caches pages. In the benchmark `commit` with 64 conversations at once, SQLite's default
/// of 2,000 KiB made SQLite read three pages per commit. With this size, SQLite reads one page per commit.
const WRITER_CACHE_KIB: i64 = 8_000;

/// The settings of the database, and the state of its file when it was opened.
pub(super) struct SqliteDatabase {
    pub(super) file: PathBuf,
    pub(super) durability: Durability,
    /// The maximum time to wait for another process's transaction.
    pub(super) busy: Duration,
    /// The duration of a lease.
    pub(super) lease: Duration,
    /// The identity of the file that was opened.
    opened: Option<FileId>,
    /// The stamp of the file when it was opened. Only set if the store assumes that the file does not change.
    unchanging: Option<ReadOnlyFileStamp>,
}

/// The connections of a store.
pub(super) struct OpenedSqliteConnections {
    /// The writing connection, or `None` if the file can only be read.
    pub(super) writer: Option<Connection>,
    pub(super) readers: Vec<Connection>,
}

/// A failure of a job.
#[derive(Debug)]
pub(in crate::store) enum SqliteOperationError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for SqliteOperationError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StoreError> for SqliteOperationError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl SqliteDatabase {
    pub(super) fn new(file: PathBuf, durability: Durability, busy: Duration, lease: Duration) -> Self {
        Self { file, durability, busy, lease, opened: None, unchanging: None }
    }

    pub(super) fn place(&self) -> String {
        self.file.display().to_string()
    }

    /// Opens the writing connection and the given number of reading connections. Creates the file and updates the
    /// schema if necessary. If the file can't be written to, opens reading connections only.
    pub(super) fn open(&mut self, readers: usize) -> Result<OpenedSqliteConnections, StoreError> {
        check_linked(rusqlite::version_number(), rusqlite::version())?;
        self.create_file()?;
        self.opened = Some(file_id(&self.found()?));
        let mut writer = match self.prepared() {
            Ok(writer) => writer,
            Err(StoreError::Denied { .. }) => {
                let readers = self.open_for_reading(readers)?;
                return Ok(OpenedSqliteConnections { writer: None, readers });
            }
            Err(error) => return Err(error),
        };
        self.prepare_writer(&mut writer).map_err(|fault| self.failed("preparing", None, fault))?;
        let readers = (0..readers).map(|_| self.prepared()).collect::<Result<_, _>>()?;
        Ok(OpenedSqliteConnections { writer: Some(writer), readers })
    }

    /// Opens connections to a file that can't be written to.
    fn open_for_reading(&mut self, readers: usize) -> Result<Vec<Connection>, StoreError> {
        let is_unchanging = !read_only::has_log(&self.file);
        if is_unchanging {
            // The stamp is taken before the file is read, so that a change during the reading is detected.
            self.unchanging = Some(ReadOnlyFileStamp::of(&self.found()?));
        }
        let connect = || self.connect_for_reading(is_unchanging);
        (0..readers).map(|_| connect()).collect::<Result<_, _>>().map_err(|fault| match fault {
            SqliteOperationError::Sqlite(error)
                if !is_unchanging && error.sqlite_error_code() == Some(ErrorCode::CannotOpen) =>
            {
                let reason = "its write-ahead log can't be read, because its folder can't be written to; allow writing to the folder";
                self.failed("opening", None, refusal(ffi::SQLITE_READONLY, reason).into())
            }
            fault => self.failed("opening", None, fault),
        })
    }

    fn connect_for_reading(&self, is_unchanging: bool) -> Result<Connection, SqliteOperationError> {
        let connection = read_only::connect(&self.file, is_unchanging)?;
        connection.busy_timeout(self.busy)?;
        if self.applied(&connection)? < MIGRATIONS.len() {
            let reason = "its schema is out of date, and the file can't be written to; open it once with write permission";
            return Err(refusal(ffi::SQLITE_READONLY, reason).into());
        }
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }

    /// Returns the error for a write to a file that can only be read.
    pub(super) fn read_only(&self) -> StoreError {
        let reason =
            "the file could only be opened for reading; once it can be written to, open the store anew";
        self.failed("writing to", None, refusal(ffi::SQLITE_READONLY, reason).into())
    }

    /// Creates the file if it does not exist, so that only its owner can access it. SQLite would create the file
    /// according to the umask instead. The write-ahead log gets the file's mode.
    fn create_file(&self) -> Result<(), StoreError> {
        /// When a process closes a file, all locks of the process on this file are released, including those of another
        /// store's connection ("How To Corrupt An SQLite Database File", 2.2). So no store may connect before the code
        /// that creates the file has closed it.
        static CREATING: Mutex<()> = Mutex::new(());

        let _alone = lock(&CREATING);
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&self.file) {
            // The folder is synced so that the file's name is as durable as its content.
            Ok(_) => self.file.parent().map_or(Ok(()), sync_folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|error| self.refused(error))
    }

    /// Returns the metadata of the file that the path names now.
    fn found(&self) -> Result<fs::Metadata, StoreError> {
        fs::metadata(&self.file).map_err(|error| self.refused(error))
    }

    /// Fails if the path no longer leads to the open file, because writes to the open file would be lost with the last
    /// connection. Also fails if somebody wrote to a file that was assumed not to change, because reads may then return
    /// a mix of several states.
    pub(super) fn still_there(&self) -> Result<(), StoreError> {
        #[derive(Debug, thiserror::Error)]
        #[error("another file has taken its place since the store was opened; open it anew")]
        struct DatabaseFileReplaced;

        #[derive(Debug, thiserror::Error)]
        #[error("it was opened for reading alone, and another process has written to it since; open it anew")]
        struct DatabaseFileChanged;

        let unreachable = |source| Err(StoreError::Unreachable { place: self.place(), source });
        let found = self.found()?;
        if self.opened != Some(file_id(&found)) {
            return unreachable(Arc::new(DatabaseFileReplaced));
        }
        match &self.unchanging {
            Some(stamp) if *stamp != ReadOnlyFileStamp::of(&found) || read_only::has_log(&self.file) => {
                unreachable(Arc::new(DatabaseFileChanged))
            }
            _ => Ok(()),
        }
    }

    /// Converts an error of the operating system that concerns the file.
    fn refused(&self, error: io::Error) -> StoreError {
        let (place, kind, source) = (self.place(), error.kind(), Arc::new(error));
        match kind {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StoreError::Denied { place, source }
            }
            io::ErrorKind::StorageFull => StoreError::Full { place, source },
            _ => StoreError::Unreachable { place, source },
        }
    }

    fn prepared(&self) -> Result<Connection, StoreError> {
        let begun = Instant::now();
        loop {
            match self.connect() {
                // If two processes open a new file at the same time, the switch to the write-ahead log fails at once
                // instead of waiting for the other process. So connecting is repeated here.
                Err(SqliteOperationError::Sqlite(error))
                    if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                        && begun.elapsed() < self.busy =>
                {
                    thread::sleep(Duration::from_millis(5));
                }
                connected => return connected.map_err(|fault| self.failed("opening", None, fault)),
            }
        }
    }

    fn connect(&self) -> Result<Connection, SqliteOperationError> {
        let connection = Connection::open_with_flags(
            &self.file,
            // SQLite needs no mutexes, because only one worker uses a connection. Without the URI flag, the path is
            // never interpreted as a URI.
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(self.busy)?;
        // If a file can't be written to, SQLite opens it for reading and fails only at the first write.
        if connection.is_readonly("main")? {
            let reason = "the file can be read, but not written to";
            return Err(refusal(ffi::SQLITE_READONLY, reason).into());
        }
        // The application id is checked before anything is written, so that a file of another application and its log
        // stay unchanged.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        self.applied(&connection)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        // On macOS, a plain sync leaves writes in the disk's cache, where a power failure can lose them. These two
        // settings prevent that. On other systems, they have no effect.
        connection.pragma_update(None, "fullfsync", true)?;
        connection.pragma_update(None, "checkpoint_fullfsync", true)?;
        // With this setting, deleted content is overwritten with zeros, so that it can't be read from the file's free
        // pages.
        connection.pragma_update(None, "secure_delete", true)?;
        // `auto_vacuum` must be set before the file has content. Setting it later would require rewriting the whole
        // file.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        let mode: String =
            connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
        if !mode.eq_ignore_ascii_case("wal") {
            let reason = "its file system has no shared memory for the write-ahead log";
            return Err(refusal(ffi::SQLITE_CANTOPEN, reason).into());
        }
        let synchronous = match self.durability {
            Durability::Machine => "FULL",
            Durability::Process => "NORMAL",
        };
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "journal_size_limit", LOG_LIMIT)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    }

    fn prepare_writer(&self, connection: &mut Connection) -> Result<(), SqliteOperationError> {
        self.migrate(connection)?;
        Ok(connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?)
    }

    fn migrate(&self, connection: &mut Connection) -> Result<(), SqliteOperationError> {
        if self.applied(connection)? == MIGRATIONS.len() {
            return Ok(());
        }
        // If several processes open the file, the first process migrates it. The version is therefore checked again
        // within the transaction.
        let transaction = begin(connection)?;
        let found = self.applied(&transaction)?;
        for migration in &MIGRATIONS[found..] {
            transaction.execute_batch(migration)?;
        }
        transaction.pragma_update(None, "user_version", i64::try_from(LATEST).unwrap_or(i64::MAX))?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        Ok(transaction.commit()?)
    }

    /// Returns the number of migrations that were applied, which is 0 for an empty file.
    fn applied(&self, connection: &Connection) -> Result<usize, SqliteOperationError> {
        // A single statement reads all values, because another process may be creating the schema and the header at
        // this moment.
        let header = "SELECT EXISTS (SELECT * FROM sqlite_schema), application_id, user_version
                      FROM pragma_application_id, pragma_user_version";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (is_filled, application, version): (bool, i64, i64) = connection.query_row(header, [], row)?;
        if !is_filled && (application, version) == (0, 0) {
            return Ok(0);
        }
        if application != i64::from(APPLICATION) {
            let problem = "it is a database, but not one that this crate made";
            return Err(StoreError::damaged(self.place(), problem).into());
        }
        match usize::try_from(version) {
            Ok(version) if (FIRST..=LATEST).contains(&version) => Ok(version - FIRST + 1),
            _ => Err(StoreError::UnknownFormat {
                place: self.place(),
                found: version.cast_unsigned(),
                known: LATEST as u64,
            }
            .into()),
        }
    }

    /// Converts a fault to an error.
    pub(super) fn failed(
        &self,
        action: &str,
        id: Option<&ConversationId>,
        fault: SqliteOperationError,
    ) -> StoreError {
        let error = match fault {
            SqliteOperationError::Sqlite(error) => error,
            SqliteOperationError::Store(error) => return error,
        };
        let place = self.place();
        let source: Arc<dyn Error + Send + Sync> = Arc::new(error);
        let Some(error) = source.downcast_ref::<rusqlite::Error>() else {
            return StoreError::Failed { action: format!("{action} {place}"), source };
        };
        // These errors mean that another program has written to the file.
        if let rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) = error
        {
            let place = id.map_or_else(|| place.clone(), |id| format!("conversation {id} in {place}"));
            return StoreError::damaged(place, error.to_string());
        }
        if let (Some(ErrorCode::TooBig), Some(id)) = (error.sqlite_error_code(), id) {
            return StoreError::Unstorable { id: id.clone(), problem: error.to_string() };
        }
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                StoreError::Busy { place, waited: self.busy }
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::damaged(place, error.to_string())
            }
            Some(ErrorCode::DiskFull) => StoreError::Full { place, source },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::Denied { place, source },
            // To find the reason, the file would have to be opened. This is not done, because closing it again would
            // release the locks that this process has on the file ("How To Corrupt An SQLite Database File", 2.2).
            Some(ErrorCode::CannotOpen) => StoreError::Unreachable { place, source },
            _ => StoreError::Failed { action: format!("{action} {place}"), source },
        }
    }
}

/// Returns an error in the same form as SQLite's errors.
fn refusal(code: i32, reason: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(reason.to_owned()))
}

/// The statements of one write. If it is dropped without a commit, a transaction of its own is rolled back. A shared
/// transaction is rolled back by the code that has begun it.
pub(super) enum SqliteWriteTransaction<'a> {
    /// A transaction for this write alone.
    Transaction(Transaction<'a>),
    /// A part of a transaction that several writes share.
    Part(&'a Connection),
}

impl SqliteWriteTransaction<'_> {
    pub(super) fn commit(self) -> Result<(), rusqlite::Error> {
        match self {
            Self::Transaction(transaction) => transaction.commit(),
            Self::Part(_) => Ok(()),
        }
    }
}

impl Deref for SqliteWriteTransaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Self::Transaction(transaction) => transaction,
            Self::Part(connection) => connection,
        }
    }
}

/// Begins a transaction that immediately excludes other writers, or a part of the transaction in progress.
pub(super) fn begin(connection: &mut Connection) -> Result<SqliteWriteTransaction<'_>, rusqlite::Error> {
    if connection.is_autocommit() {
        connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map(SqliteWriteTransaction::Transaction)
    } else {
        Ok(SqliteWriteTransaction::Part(connection))
    }
}

/// The device and the inode of a file.
#[cfg(unix)]
type FileId = (u64, u64);

#[cfg(unix)]
fn file_id(file: &fs::Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (file.dev(), file.ino())
}

/// On systems other than Unix, an open file keeps its name, so no identity is needed.
#[cfg(not(unix))]
type FileId = ();

#[cfg(not(unix))]
fn file_id(_: &fs::Metadata) -> FileId {}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

fn check_linked(number: i32, version: &str) -> Result<(), StoreError> {
    #[derive(Debug, thiserror::Error)]
    #[error("the program is linked with SQLite {found}, which can lose writes; link {} or later", OLDEST.1)]
    struct SqliteTooOldError {
        found: String,
    }

    if number >= OLDEST.0 {
        return Ok(());
    }
    Err(StoreError::misconfigured(
        "the SQLite of this program",
        SqliteTooOldError { found: version.to_owned() },
    ))
}

/// Returns the file's absolute path, so that later changes of the working directory have no effect.
pub(super) fn absolute(file: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(file).map_err(|error| StoreError::Unreachable {
        place: file.display().to_string(),
        source: Arc::new(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_sets_full_syncs_and_erasing_on_every_connection_and_the_writers_cache() {
        let folder = std::env::temp_dir().join(format!("database-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        for durability in [Durability::Machine, Durability::Process] {
            let file = folder.join(format!("{durability:?}"));
            let mut database = SqliteDatabase::new(file, durability, Duration::ZERO, Duration::ZERO);
            let opened = database.open(2).unwrap();
            for connection in opened.readers.iter().chain(&opened.writer) {
                for pragma in ["fullfsync", "checkpoint_fullfsync", "secure_delete"] {
                    let value: i64 = connection.pragma_query_value(None, pragma, |row| row.get(0)).unwrap();
                    assert_eq!(value, 1, "{pragma}");
                }
            }
            let writer = opened.writer.unwrap();
            let cache: i64 = writer.pragma_query_value(None, "cache_size", |row| row.get(0)).unwrap();
            assert_eq!(cache, -WRITER_CACHE_KIB);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn failed_with_too_large_content_names_the_conversation() {
        let database =
            SqliteDatabase::new("file".into(), Durability::Machine, Duration::ZERO, Duration::ZERO);
        let id = ConversationId::new("a").unwrap();
        let fault = || refusal(ffi::SQLITE_TOOBIG, "string or blob too big").into();
        let error = database.failed("writing to", Some(&id), fault());
        assert!(matches!(&error, StoreError::Unstorable { id: named, .. } if *named == id), "{error:?}");
        assert!(!error.is_transient());
    }

    #[test]
    fn check_linked_refuses_versions_that_can_lose_writes() {
        let refused = check_linked(3_051_002, "3.51.2").unwrap_err();
        let reason = refused.to_string();
        assert!(reason.contains("3.51.2") && reason.contains("3.51.3"), "{reason}");
        assert!(matches!(refused, StoreError::Misconfigured { .. }) && !refused.is_transient());
        check_linked(3_051_003, "3.51.3").unwrap();
        check_linked(rusqlite::version_number(), rusqlite::version()).unwrap();
    }
}

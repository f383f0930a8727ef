//! Access to files that this process can read but not write to.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rusqlite::{Connection, OpenFlags};

/// The length of a file and the time of its last change.
#[derive(PartialEq, Eq)]
pub(super) struct ReadOnlyFileStamp(u64, Option<SystemTime>);

impl ReadOnlyFileStamp {
    pub(super) fn of(file: &fs::Metadata) -> Self {
        Self(file.len(), file.modified().ok())
    }
}

/// Returns the path of a file that SQLite keeps next to the database, given the ending of its name.
pub(super) fn neighbour(file: &Path, ending: &str) -> PathBuf {
    // If the path is a link, SQLite follows the link and uses the folder of the linked file.
    let mut name = fs::canonicalize(file).map_or_else(|_| OsString::from(file), OsString::from);
    name.push(ending);
    name.into()
}

/// Returns whether the write-ahead log has content, or a process has the database open with a write-ahead log.
pub(super) fn has_log(file: &Path) -> bool {
    let is_empty = fs::metadata(neighbour(file, "-wal")).map_or(true, |log| log.len() == 0);
    !is_empty || fs::symlink_metadata(neighbour(file, "-shm")).is_ok()
}

/// Opens a connection that can only read.
///
/// To read a database with a write-ahead log, SQLite uses additional files next to the database, and creates them if
/// necessary. These files would get the permissions of the read-only database, so that nobody could write to them
/// later. If there is no log, the database is therefore opened as a file that nobody changes (`immutable`). Then SQLite
/// creates no files and locks nothing.
pub(super) fn connect(file: &Path, is_unchanging: bool) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if is_unchanging {
        let uri = format!("file://{}?immutable=1", escaped(file));
        Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
    } else {
        Connection::open_with_flags(file, flags)
    }
}

/// Returns the absolute path, escaped for a URI.
fn escaped(file: &Path) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    path_bytes(file).into_iter().map(escape).collect()
}

#[cfg(unix)]
fn path_bytes(file: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(file.as_os_str()).to_vec()
}

/// Returns the path with slashes only, and with a slash before the drive letter.
#[cfg(not(unix))]
fn path_bytes(file: &Path) -> Vec<u8> {
    format!("/{}", file.to_string_lossy().replace('\\', "/")).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ConversationId;

    #[test]
    fn connect_to_a_file_with_any_name_reads_that_file() {
        let folder = std::env::temp_dir().join(format!("read-only-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        for name in [
            "a b",
            "50%20",
            "é#1",
            "a+b&c=d;e",
            #[cfg(unix)]
            "what?mode=rw",
            #[cfg(unix)]
            "a:b\"\\",
        ] {
            let file = folder.join(name);
            Connection::open(&file).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
            let connection = connect(&file, true).unwrap();
            connection.execute_batch("SELECT b FROM a").unwrap();
            assert!(connection.is_readonly("main").unwrap(), "{name}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! The paths of a conversation's files, operations on these files, and errors that concern them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::Durability;
use crate::store::{ConversationId, StoreError};

/// The suffix of a log's name.
pub(super) const LOG: &str = ".jsonl";
const SUMMARY: &str = ".summary.json";
/// The additional suffix of a new file before it replaces another file.
const NEW: &str = ".new";

/// The files of one conversation in the store's folder.
pub(super) struct ConversationFolder<'a> {
    folder: &'a Path,
    id: &'a ConversationId,
}

impl<'a> ConversationFolder<'a> {
    pub(super) fn new(folder: &'a Path, id: &'a ConversationId) -> Self {
        Self { folder, id }
    }

    pub(super) fn id(&self) -> &'a ConversationId {
        self.id
    }

    pub(super) fn folder(&self) -> &'a Path {
        self.folder
    }

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}{suffix}", self.id))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.file(LOG)
    }

    pub(super) fn summary(&self) -> PathBuf {
        self.file(SUMMARY)
    }

    /// Returns the log's path for error messages.
    pub(super) fn log_name(&self) -> String {
        self.log().display().to_string()
    }

    /// Returns the name of a line of the log for error messages. Lines are counted from 1.
    pub(super) fn line(&self, number: usize) -> String {
        format!("{}, line {number}", self.log().display())
    }

    /// Returns the state of the log's file, or `None` if it can't be read.
    pub(super) fn seen(&self) -> Option<Seen> {
        fs::metadata(self.log()).ok().as_ref().and_then(Seen::of)
    }

    /// Converts an error on one of the files.
    pub(super) fn failed(&self, action: &str, error: io::Error) -> StoreError {
        failed(action, &self.log(), error)
    }

    /// Checks that the folder exists, so that a missing folder is not mistaken for a missing conversation.
    pub(super) fn check_folder(&self) -> Result<(), StoreError> {
        check_folder(self.folder)
    }

    /// Returns whether the log's path exists but is not a file. Such a path must not be opened: for example, opening a
    /// pipe would wait forever for a writer.
    pub(super) fn has_other_than_log(&self) -> Result<bool, StoreError> {
        match fs::metadata(self.log()) {
            Ok(found) => Ok(!found.is_file()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("reading", error)),
        }
    }

    /// Syncs the folder, so that its entries are durable.
    pub(super) fn sync_folder(&self, durability: Durability) -> Result<(), StoreError> {
        sync_folder(self.folder, durability)
    }

    /// Returns whether the log's path no longer leads to the open log.
    pub(super) fn is_gone(&self, log: &File) -> Result<bool, StoreError> {
        is_gone(&self.log(), log)
    }

    /// Replaces the summary. A summary that is lost in a crash can be rebuilt.
    pub(super) fn replace_summary(&self, content: &[u8]) -> io::Result<()> {
        replace(&self.summary(), |file| file.write_all(content)).map(drop)
    }

    /// Replaces the log in one step. The new log is locked before other processes can find it, and stays locked until
    /// the file is closed.
    pub(super) fn replace_log(
        &self,
        old: &File,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        replace_locked(&self.log(), old, write)
    }

    /// Removes the summary.
    pub(super) fn remove_summary(&self) -> Result<(), StoreError> {
        remove(&self.summary())
    }

    /// Removes the summary, and new files that a crash left before they replaced the log or the summary.
    pub(super) fn remove_beside(&self) -> Result<(), StoreError> {
        for suffix in [SUMMARY, &format!("{SUMMARY}{NEW}"), &format!("{LOG}{NEW}")] {
            remove(&self.file(suffix))?;
        }
        Ok(())
    }

    pub(super) fn remove_log(&self) -> Result<(), StoreError> {
        remove(&self.log())
    }
}

/// Returns whether a path no longer leads to this open file.
pub(super) fn is_gone(path: &Path, file: &File) -> Result<bool, StoreError> {
    // It is not enough to check that the open file still has a name, because a backup may have given the file a second
    // name.
    let gone = file.metadata().and_then(|open| match fs::metadata(path) {
        Ok(named) => Ok(!is_same(&open, &named)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    });
    gone.map_err(|error| failed("reading", path, error))
}

/// Replaces a locked file in one step. The new file is locked before other processes can find it, and stays locked
/// until it is closed.
pub(super) fn replace_locked(
    path: &Path,
    old: &File,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_symlink() {
        let problem =
            "the file is a symbolic link, which a new file would replace; move the file to this path";
        return Err(io::Error::other(problem));
    }
    let old = old.metadata()?;
    replace(path, |file| {
        keep_owner(&old, file)?;
        file.try_lock()?;
        write(file)?;
        // The new file is synced even if the store's durability does not require it. The old file may have been on the
        // disk for a long time, and a crash right after the replacement must not lose its content.
        file.sync_all()
    })
}

fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
    // Only the holder of the lock reaches this code, so one name for the new file is enough. If an earlier crash left a
    // file with this name, that file is overwritten.
    let mut new = path.as_os_str().to_owned();
    new.push(NEW);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    private(&mut options);
    let replaced = options.open(&new).and_then(|mut file| {
        write(&mut file)?;
        fs::rename(&new, path)?;
        Ok(file)
    });
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

/// The state of a file, used to detect later writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    len: u64,
    modified: SystemTime,
}

impl Seen {
    /// The coarsest resolution of modification times on any file system. Two writes within this time may have the same
    /// modification time.
    const COARSEST: Duration = Duration::from_secs(2);

    pub(super) fn of(file: &fs::Metadata) -> Option<Self> {
        Some(Self { len: file.len(), modified: file.modified().ok()? })
    }

    /// Returns whether every later write is certain to change this state. Right after a write this is not certain,
    /// because another write may have the same modification time.
    pub(super) fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|since| since > Self::COARSEST)
    }
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Without inode numbers, files are distinguished by their creation time.
#[cfg(not(unix))]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    a.created().is_ok_and(|a| b.created().is_ok_and(|b| a == b))
}

/// Gives a new file the permissions of the file that it will replace. Fails if the two files have different owners.
fn keep_owner(old: &fs::Metadata, new: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;

        let made = new.metadata()?;
        if (old.uid(), old.gid()) != (made.uid(), made.gid()) {
            let problem = "the new file would have a different owner than the old one; use the store as the owner of the old file";
            return Err(io::Error::other(problem));
        }
    }
    new.set_permissions(old.permissions())
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, error)),
        _ => Ok(()),
    }
}

pub(super) fn check_folder(folder: &Path) -> Result<(), StoreError> {
    match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            Err(StoreError::Unreachable { place: name(folder), source: Arc::new(error) })
        }
        Err(error) => Err(StoreError::Unreachable { place: name(folder), source: Arc::new(error) }),
    }
}

pub(super) fn sync_folder(folder: &Path, durability: Durability) -> Result<(), StoreError> {
    // Only Unix needs to sync the folder. On other systems, a folder can't be opened as a file, and changes of its
    // entries are written to the disk at once.
    if cfg!(unix) && durability == Durability::Machine {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        return synced.map_err(|error| failed("syncing", folder, error));
    }
    Ok(())
}

/// Makes created files readable and writable only by their owner.
pub(super) fn private(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    #[cfg(not(unix))]
    let _ = options;
}

pub(super) fn failed(action: &str, path: &Path, error: io::Error) -> StoreError {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};

    let place = name(path);
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => StoreError::Full { place, source: Arc::new(error) },
        PermissionDenied | ReadOnlyFilesystem => StoreError::Denied { place, source: Arc::new(error) },
        _ => StoreError::failed(format!("{action} {place}"), error),
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

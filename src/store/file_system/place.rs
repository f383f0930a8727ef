//! The path of a conversation's log, operations on the folder, and errors that concern files.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Durability;
use crate::store::{ConversationId, StoreError};

/// The suffix of a log's name.
pub(super) const LOG: &str = ".jsonl";

/// The place of one conversation's log in the store's folder.
pub(super) struct LogPath<'a> {
    pub(super) folder: &'a Path,
    pub(super) id: &'a ConversationId,
    pub(super) log: PathBuf,
}

impl<'a> LogPath<'a> {
    pub(super) fn new(folder: &'a Path, id: &'a ConversationId) -> Self {
        Self { folder, id, log: folder.join(format!("{id}{LOG}")) }
    }

    pub(super) fn not_found(&self) -> StoreError {
        StoreError::NotFound { id: self.id.clone() }
    }

    /// Converts an error on the log.
    pub(super) fn failed(&self, action: &str, error: io::Error) -> StoreError {
        failed(action, &self.log, error)
    }

    /// Removes the log.
    pub(super) fn remove_log(&self) -> Result<(), StoreError> {
        remove(&self.log)
    }

    /// The path of a new log before it replaces the old log.
    fn new_log(&self) -> PathBuf {
        self.folder.join(format!("{}{LOG}.new", self.id))
    }

    /// Removes a new log that a crash left before it replaced the old log.
    pub(super) fn remove_new_log(&self) -> Result<(), StoreError> {
        remove(&self.new_log())
    }

    /// Returns whether a crash has left a new log.
    pub(super) fn has_new_log(&self) -> bool {
        fs::symlink_metadata(self.new_log()).is_ok()
    }

    /// Replaces the log, as [`replace_file`] does.
    pub(super) fn replace_log(
        &self,
        old: &File,
        action: &str,
        write: impl FnOnce(&File) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        replace_file(self.folder, &self.log, &self.new_log(), old, action, write)
    }
}

/// Replaces the file at `path`, which must be locked, in one step by a file that is first written at `new`. The new file
/// is locked before other processes can find it, and stays locked until the folder is synced. A file that belongs to
/// another user, or that is reached through a symbolic link, is not replaced.
pub(super) fn replace_file(
    folder: &Path,
    path: &Path,
    new: &Path,
    old: &File,
    action: &str,
    write: impl FnOnce(&File) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let failed = |error| failed(action, path, error);
    if fs::symlink_metadata(path).map_err(failed)?.is_symlink() {
        let problem =
            "the file is a symbolic link, which a new file would replace; move the file to this path";
        return Err(failed(io::Error::other(problem)));
    }
    // The folder is opened first, so that nothing but the sync itself can fail after the renaming.
    let folder = open_folder(folder, Durability::Machine)?;
    // Only the holder of the lock reaches this code, so one name for the new file is enough.
    remove(new)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let file = private(&mut options).open(new).map_err(failed)?;
    let replace = || {
        keep_owner(&old.metadata().map_err(failed)?, &file).map_err(failed)?;
        file.try_lock().map_err(|error| failed(error.into()))?;
        write(&file)?;
        // The new file is synced even if the store's durability does not require it. The old file may have been on
        // the disk for a long time, and a crash right after the replacement must not lose its content.
        file.sync_all().and_then(|()| fs::rename(new, path)).map_err(failed)
    };
    if let Err(error) = replace() {
        let _ = fs::remove_file(new);
        return Err(error);
    }
    // The folder is synced before anybody can write to the file. Otherwise a crash could remove the file's name after a
    // write was acknowledged.
    let synced = folder.map_or(Ok(()), |folder| folder.sync_all());
    synced.map_err(|error| self::failed("the log was replaced, but syncing the folder of", path, error))
}

/// Opens and locks a file without waiting, and creates it if it does not exist. Returns `None` if another process or
/// handle holds the lock.
pub(super) fn lock_file(path: &Path) -> Result<Option<File>, StoreError> {
    require_file("reading", path)?;
    let mut options = OpenOptions::new();
    private(options.read(true).write(true).create(true));
    let file = options.open(path).map_err(|error| failed("opening", path, error))?;
    Ok(try_lock(path, &file)?.then_some(file))
}

/// Locks an open file without waiting. Returns `false` if another process or handle holds the lock, or if the path no
/// longer leads to this file.
pub(super) fn try_lock(path: &Path, file: &File) -> Result<bool, StoreError> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(failed("locking", path, error)),
    }
    // It is not enough to check that the open file still has a name, because a backup may have given the file a second
    // name.
    let is_there = file.metadata().and_then(|open| match fs::metadata(path) {
        Ok(named) => Ok(is_same(&open, &named)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    });
    is_there.map_err(|error| failed("reading", path, error))
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

/// Returns whether the path leads to a regular file, or `None` if it does not exist. Another kind of file must
/// not be opened. For example, opening a pipe would wait forever for a writer.
pub(super) fn is_file(path: &Path) -> Result<Option<bool>, StoreError> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found.is_file())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("reading", path, error)),
    }
}

/// Fails if the path leads to anything other than a regular file.
pub(super) fn require_file(action: &str, path: &Path) -> Result<(), StoreError> {
    if is_file(path)? == Some(false) {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "its path is not a file");
        return Err(failed(action, path, error));
    }
    Ok(())
}

/// Checks that the folder exists, so that a missing folder is not mistaken for a missing conversation.
pub(super) fn check_folder(folder: &Path) -> Result<(), StoreError> {
    let error = match fs::metadata(folder) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => io::Error::from(io::ErrorKind::NotADirectory),
        Err(error) => error,
    };
    Err(StoreError::Unreachable { place: folder.display().to_string(), source: Arc::new(error) })
}

/// Syncs the folder, so that its entries are durable.
pub(super) fn sync_folder(folder: &Path, durability: Durability) -> Result<(), StoreError> {
    let synced = open_folder(folder, durability)?.map_or(Ok(()), |open| open.sync_all());
    synced.map_err(|error| failed("syncing", folder, error))
}

/// Opens the folder if it must be synced.
fn open_folder(folder: &Path, durability: Durability) -> Result<Option<File>, StoreError> {
    // Only Unix needs to sync the folder. On other systems, a folder can't be opened as a file, and changes of its
    // entries are written to the disk at once.
    let syncs = cfg!(unix) && durability == Durability::Machine;
    let opened = syncs.then(|| File::open(folder)).transpose();
    opened.map_err(|error| failed("syncing", folder, error))
}

/// Makes created files readable and writable only by their owner.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

pub(super) fn failed(action: &str, path: &Path, error: io::Error) -> StoreError {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};

    let place = path.display().to_string();
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => StoreError::Full { place, source: Arc::new(error) },
        PermissionDenied | ReadOnlyFilesystem => StoreError::Denied { place, source: Arc::new(error) },
        _ => StoreError::failed(format!("{action} {place}"), error),
    }
}

//! Where the files of a conversation are, and what went wrong there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::Durability;
use crate::store::{ConversationId, StoreError};

/// What the name of a log ends in.
pub(super) const LOG: &str = ".jsonl";
const SUMMARY: &str = ".summary.json";
/// What the name of a file ends in that is to take the place of another.
const NEW: &str = ".new";

/// A conversation's place in the store's folder.
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

    fn file(&self, suffix: &str) -> PathBuf {
        self.folder.join(format!("{}{suffix}", self.id))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.file(LOG)
    }

    pub(super) fn summary(&self) -> PathBuf {
        self.file(SUMMARY)
    }

    /// For people: the log.
    pub(super) fn log_name(&self) -> String {
        self.log().display().to_string()
    }

    /// For people: a line of the log, counted from 1.
    pub(super) fn line(&self, number: usize) -> String {
        format!("{}, line {number}", self.log().display())
    }

    /// The state of the log's file; `None` if it can't be had.
    pub(super) fn seen(&self) -> Option<Seen> {
        fs::metadata(self.log()).ok().as_ref().and_then(Seen::of)
    }

    /// What an error on one of the files means.
    pub(super) fn failed(&self, action: &str, error: io::Error) -> StoreError {
        failed(action, &self.log(), error)
    }

    /// Tells a conversation that is not there from a folder that is not there.
    pub(super) fn check_folder(&self) -> Result<(), StoreError> {
        check_folder(self.folder)
    }

    /// Whether the log's name is that of something which is no file. Opening a pipe would wait for whoever writes to it, for
    /// ever.
    pub(super) fn has_other_than_log(&self) -> Result<bool, StoreError> {
        match fs::metadata(self.log()) {
            Ok(found) => Ok(!found.is_file()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("reading", error)),
        }
    }

    /// Makes the folder's entries last.
    pub(super) fn sync_folder(&self, durability: Durability) -> Result<(), StoreError> {
        sync_folder(self.folder, durability)
    }

    /// Whether the open log is no longer the one that its name leads to.
    pub(super) fn is_gone(&self, log: &File) -> Result<bool, StoreError> {
        // Whether it has any name is not enough: a backup may have given it a second one.
        let gone = log.metadata().and_then(|open| match fs::metadata(self.log()) {
            Ok(named) => Ok(!is_same(&open, &named)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        });
        gone.map_err(|error| self.failed("reading", error))
    }

    /// Puts a new summary in the place of the old one. It may be lost in a crash: it can be made again.
    pub(super) fn replace_summary(&self, content: &[u8]) -> io::Result<()> {
        self.replace(SUMMARY, |file| file.write_all(content)).map(drop)
    }

    /// Puts a new log in the place of the old one, in one step. The new one is locked before it can be found, and stays so
    /// until the file is closed.
    pub(super) fn replace_log(
        &self,
        old: &File,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<File> {
        if fs::symlink_metadata(self.log())?.is_symlink() {
            return Err(io::Error::other("a new log would take the place of a link to it"));
        }
        let old = old.metadata()?;
        self.replace(LOG, |file| {
            keep_owner(&old, file)?;
            file.try_lock()?;
            write(file)?;
            // However little the store is to survive: what is replaced may have been on disk for long.
            file.sync_all()
        })
    }

    fn replace(&self, suffix: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<File> {
        // Only who holds the conversation's lock comes here, so one name is enough; what an earlier crash
        // left under it is overwritten.
        let new = self.file(&format!("{suffix}{NEW}"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        private(&mut options);
        let replaced = options.open(&new).and_then(|mut file| {
            write(&mut file)?;
            fs::rename(&new, self.file(suffix))?;
            Ok(file)
        });
        if replaced.is_err() {
            let _ = fs::remove_file(&new);
        }
        replaced
    }

    /// Removes the summary.
    pub(super) fn remove_summary(&self) -> Result<(), StoreError> {
        remove(&self.summary())
    }

    /// Removes the summary, and whatever a crash left beside the log.
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

/// The state of a file, to find out whether it was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    len: u64,
    modified: SystemTime,
}

impl Seen {
    /// A file system gives equal times to writes that come within this of each other, and none gives coarser ones.
    const COARSEST: Duration = Duration::from_secs(2);

    pub(super) fn of(file: &fs::Metadata) -> Option<Self> {
        Some(Self { len: file.len(), modified: file.modified().ok()? })
    }

    /// Whether each later write gives the file another state: not if the last one was only just made.
    pub(super) fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(self.modified).is_ok_and(|since| since > Self::COARSEST)
    }
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Without numbers of files: another has another creation time.
#[cfg(not(unix))]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    a.created().is_ok_and(|a| b.created().is_ok_and(|b| a == b))
}

/// Gives a file that is to replace another the permissions of that one.
fn keep_owner(old: &fs::Metadata, new: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;

        let made = new.metadata()?;
        if (old.uid(), old.gid()) != (made.uid(), made.gid()) {
            return Err(io::Error::other("a new log would have another owner"));
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
    // Elsewhere a folder can't be opened as a file, and its entries are written through.
    if cfg!(unix) && durability == Durability::Machine {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        return synced.map_err(|error| failed("syncing", folder, error));
    }
    Ok(())
}

/// Makes what is created readable and writable for its owner alone.
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

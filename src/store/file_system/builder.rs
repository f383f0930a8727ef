//! Settings, and the opening of a store.

use std::{
    fs::{DirBuilder, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{FileSystemStore, FilesShared, blocking, pause, place};
use crate::store::StoreError;

/// The kinds of crashes that acknowledged writes survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Writes survive a crash of the machine, because every write is synced.
    #[default]
    Machine,
    /// Writes survive a crash of the process. The operating system decides when to write to disk, so a write takes
    /// microseconds instead of the milliseconds that a disk needs. A power failure can lose the latest writes of each
    /// conversation. On file systems that do not preserve the order of writes, a power failure can leave a log that is
    /// reported as damaged.
    Process,
}

impl Durability {
    pub(super) fn sync(self, file: &File) -> io::Result<()> {
        match self {
            Self::Machine => file.sync_data(),
            Self::Process => Ok(()),
        }
    }
}

/// Settings for opening a [`FileSystemStore`].
#[derive(Clone, Debug)]
pub struct FileSystemStoreBuilder {
    folder: PathBuf,
    durability: Durability,
    lock_wait: Duration,
    exclusive: bool,
}

/// The name of the file that an exclusive store locks. No conversation's id contains an `@`.
const LOCK: &str = "@lock";

impl FileSystemStoreBuilder {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            durability: Durability::default(),
            lock_wait: Duration::from_secs(5),
            exclusive: false,
        }
    }

    crate::setters::setters! {
        /// Sets the kinds of crashes that acknowledged writes survive. By default, writes also survive a crash of the
        /// machine.
        pub fn durability(self, durability: Durability) { self.durability = durability }

        /// Sets how long to wait for another writer's lock. The default is five seconds.
        pub fn lock_wait(self, limit: Duration) { self.lock_wait = limit }

        /// Locks the folder for as long as the store is open, so that no other store is exclusive at the same time. The
        /// operating system releases the lock when the process ends, even if it is killed.
        ///
        /// Only an exclusive store [keeps records of turns in flight](crate::store::StoreTraits::turns): files know no
        /// owner, so two processes would continue the same turn. Stores that are not exclusive can still open the
        /// folder. A process that shares the folder with an exclusive store must not continue the same conversations.
        pub fn exclusive(self) { self.exclusive = true }
    }

    /// Opens the store, and creates its folder if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`FileSystemStore::open`]. If the store is [exclusive](Self::exclusive) and another
    /// exclusive store has the folder open for longer than the waiting time for locks, fails with [`StoreError::Busy`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave an empty folder.
    pub async fn open(self) -> Result<FileSystemStore, StoreError> {
        let Self { folder, durability, lock_wait, exclusive } = self;
        let folder = blocking(move || {
            // An absolute path, so that a later change of the working directory has no effect.
            let folder =
                std::path::absolute(&folder).map_err(|error| place::failed("finding", &folder, error))?;
            create_folder(&folder, durability)?;
            Ok(folder)
        })
        .await?;
        let exclusive = if exclusive { Some(lock_folder(&folder, lock_wait).await?) } else { None };
        Ok(FileSystemStore(Arc::new(FilesShared { folder, durability, lock_wait, exclusive })))
    }
}

/// Locks the folder, and returns the file that holds the lock.
async fn lock_folder(folder: &Path, lock_wait: Duration) -> Result<File, StoreError> {
    let path = folder.join(LOCK);
    let begun = Instant::now();
    loop {
        let lock = path.clone();
        let locked = blocking(move || place::lock_file(&lock));
        match locked.await? {
            Some(file) => return Ok(file),
            None => pause(begun, lock_wait, &path).await?,
        }
    }
}

fn create_folder(folder: &Path, durability: Durability) -> Result<(), StoreError> {
    if folder.exists() {
        return place::check_folder(folder);
    }
    let there = folder.ancestors().skip(1).find(|ancestor| ancestor.exists());
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| place::failed("creating", folder, error))?;
    // Each new folder is an entry in its parent folder, so the parent folder must be synced too.
    for above in folder.ancestors().skip(1) {
        place::sync_folder(above, durability)?;
        if Some(above) == there {
            break;
        }
    }
    Ok(())
}

//! Stores that processes open one after another, or at the same time.

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::time::Duration;
use std::{env, fs, path::PathBuf, sync::Arc};

use omni_agent::store::{ConversationId, FileSystemStore, Store, StoreError};

/// The duration of leases where several processes compete. A conversation of a killed process is free after this time.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const LEASE: Duration = Duration::from_secs(1);

/// The address of a store, and the folder with the ledger. The folder is removed when this value is dropped.
pub(crate) struct Place {
    pub(crate) address: String,
    pub(crate) folder: PathBuf,
}

impl Place {
    /// Returns a place with a new folder. `address` gets the path of the store in the folder.
    fn new(address: impl FnOnce(&str) -> String) -> Self {
        let folder = env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        Self { address: address(&folder.join("store").display().to_string()), folder }
    }

    pub(crate) fn files() -> Self {
        Self::new(|path| format!("files {path}"))
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite() -> Self {
        Self::new(|path| format!("sqlite {path}"))
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn postgres(url: &str) -> Self {
        Self::new(|_| format!("postgres {} {url}", ConversationId::generate()))
    }

    pub(crate) fn ledger(&self) -> PathBuf {
        self.folder.join("ledger")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The folder shows what has happened.
            println!("kept {}", self.folder.display());
        } else {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Opens the store at an address.
pub(crate) async fn open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    let (kind, rest) = address.split_once(' ').unwrap();
    Ok(match kind {
        "files" => Arc::new(FileSystemStore::builder(rest).exclusive().open().await?),
        #[cfg(feature = "sqlite")]
        "sqlite" => Arc::new(omni_agent::store::SqliteStore::builder(rest).lease(LEASE).open().await?),
        #[cfg(feature = "postgres")]
        "postgres" => {
            let (schema, url) = rest.split_once(' ').unwrap();
            let builder = omni_agent::store::PostgresStore::builder(url).schema(schema);
            Arc::new(builder.connections(3).lease(LEASE).open().await?)
        }
        _ => panic!("there is no store at {address}"),
    })
}

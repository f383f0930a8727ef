//! Stores that several processes open at the same time.

use std::{env, fs, path::PathBuf, sync::Arc};

use omni_agent::store::{ConversationId, FileSystemStore, Store, file_system::Durability};

/// The duration of leases. A process that is frozen for a longer time loses its conversations.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const LEASE: std::time::Duration = std::time::Duration::from_millis(700);

/// The address of a store. If files were created for the store, they are removed when this value is dropped.
pub(crate) struct Place {
    address: String,
    made: Option<PathBuf>,
}

impl Place {
    /// Returns the place of the store at this address. The store is not removed when the place is dropped.
    pub(crate) fn at(address: &str) -> Self {
        Self { address: address.to_owned(), made: None }
    }

    /// Returns the place of a file-system store in a new folder.
    pub(crate) fn folder() -> Self {
        let folder = temporary();
        Self { address: format!("folder {}", folder.display()), made: Some(folder) }
    }

    /// Returns the place of a store in a new SQLite file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite() -> Self {
        let folder = temporary();
        Self { address: format!("sqlite {}", folder.join("conversations").display()), made: Some(folder) }
    }

    /// Returns the place of a store in a new schema on a PostgreSQL server. If there is no server, prints the reason
    /// and returns `None`.
    #[cfg(feature = "postgres")]
    pub(crate) fn postgres() -> Option<Self> {
        let url = crate::server::url()?;
        Some(Self { address: format!("postgres {} {url}", ConversationId::generate()), made: None })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        let (kind, rest) = self.address.split_once(' ').unwrap();
        match kind {
            "folder" => {
                Arc::new(FileSystemStore::builder(rest).durability(Durability::Process).open().await.unwrap())
            }
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let builder = omni_agent::store::SqliteStore::builder(rest);
                Arc::new(builder.durability(Durability::Process).lease(LEASE).open().await.unwrap())
            }
            #[cfg(feature = "postgres")]
            "postgres" => {
                let (schema, url) = rest.split_once(' ').unwrap();
                let builder = omni_agent::store::PostgresStore::builder(url);
                Arc::new(builder.schema(schema).connections(3).lease(LEASE).open().await.unwrap())
            }
            _ => panic!("no store at {}", self.address),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(folder) = &self.made {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn temporary() -> PathBuf {
    let folder = env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
    fs::create_dir(&folder).unwrap();
    folder
}

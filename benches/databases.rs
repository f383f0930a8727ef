//! The databases that the benchmarks measure, and access to these databases without a store.
//!
//! The SQLite database is a file in the benchmark's folder. `DATABASE_URL` can name a PostgreSQL server. Otherwise, a
//! server is started from the installed binaries. Its data is in the system's folder for temporary files, and it
//! listens on a Unix socket. Both databases sync each commit, as they do with default settings.

#[cfg(feature = "postgres")]
#[allow(clippy::unwrap_used, dead_code, reason = "shared with the tests")]
#[path = "../tests/store/postgres/server.rs"]
pub(crate) mod server;
#[cfg(feature = "postgres")]
#[path = "../tests/support/skip.rs"]
mod skip;

use std::{path::Path, sync::Arc};

use omni_agent::store::{ConversationId, Store};

/// A store on a database, and access to the same database without the store.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) store: Arc<dyn Store>,
    /// A second store on the same database. If the database supports this, it does not wait for the disk.
    pub(crate) quick: Arc<dyn Store>,
    pub(crate) bare: Bare,
}

/// A database that is used directly, without a store.
pub(crate) enum Bare {
    #[cfg(feature = "sqlite")]
    Sqlite { connection: rusqlite::Connection, file: std::path::PathBuf },
    #[cfg(feature = "postgres")]
    Postgres { client: tokio_postgres::Client, schema: String },
}

/// Returns the databases whose feature is enabled and whose server is available. Their stores are empty. The second
/// value keeps a started server running until it is dropped.
pub(crate) async fn subjects(folder: &Path) -> (Vec<Subject>, impl Sized) {
    std::fs::create_dir_all(folder).expect("the folder is created");
    let subjects = Vec::new();
    #[cfg(feature = "sqlite")]
    let subjects = with_sqlite(subjects, folder).await;
    #[cfg(feature = "postgres")]
    let (subjects, server) = with_postgres(subjects).await;
    #[cfg(not(feature = "postgres"))]
    let server = ();
    (subjects, server)
}

#[cfg(feature = "sqlite")]
async fn with_sqlite(mut subjects: Vec<Subject>, folder: &Path) -> Vec<Subject> {
    use omni_agent::store::{SqliteStore, file_system::Durability};

    let file = folder.join("conversations.sqlite");
    let store = SqliteStore::open(&file).await.expect("the file opens");
    let quick =
        SqliteStore::builder(&file).durability(Durability::Process).open().await.expect("the file opens");
    let connection = rusqlite::Connection::open(&file).expect("the file opens");
    connection
        .execute_batch("PRAGMA synchronous = FULL; CREATE TABLE bare (text TEXT)")
        .expect("there is no other writer");
    subjects.push(Subject {
        name: "SQLite",
        store: Arc::new(store),
        quick: Arc::new(quick),
        bare: Bare::Sqlite { connection, file },
    });
    subjects
}

/// Adds PostgreSQL if a server is available. If this function has started the server, it also returns the server, which
/// stops when it is dropped.
#[cfg(feature = "postgres")]
async fn with_postgres(mut subjects: Vec<Subject>) -> (Vec<Subject>, Option<server::Server>) {
    let named = std::env::var("DATABASE_URL").ok();
    let server = if named.is_some() { None } else { server::Server::start("") };
    let Some(url) = named.or_else(|| server.as_ref().map(server::Server::url)) else {
        return (subjects, server);
    };
    let store = server::fresh(&url).connections(10).open().await.expect("the server answers");
    let schema = format!("\"{}\"", store.schema().replace('"', "\"\""));
    let client = server::raw(&url).await;
    let table = format!("CREATE TABLE {schema}.bare (text text)");
    client.batch_execute(&table).await.expect("the schema exists");
    let store = Arc::new(store);
    subjects.push(Subject {
        name: "PostgreSQL",
        quick: Arc::clone(&store) as Arc<dyn Store>,
        store,
        bare: Bare::Postgres { client, schema },
    });
    (subjects, server)
}

impl Bare {
    /// Inserts one row in a separate transaction.
    #[cfg_attr(not(feature = "postgres"), allow(clippy::unused_async, reason = "the PostgreSQL case awaits"))]
    pub(crate) async fn insert(&self, text: &str) {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite { connection, .. } => {
                let insert = connection.prepare_cached("INSERT INTO bare (text) VALUES (?)");
                insert.and_then(|mut insert| insert.execute([text])).expect("there is no other writer");
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { client, schema } => {
                // The text is part of the statement. This saves the round trip that a prepared statement needs.
                let insert =
                    format!("INSERT INTO {schema}.bare (text) VALUES ('{}')", text.replace('\'', "''"));
                client.batch_execute(&insert).await.expect("the table exists");
            }
        }
    }

    /// Returns the texts of a conversation's messages without parsing them.
    #[cfg_attr(not(feature = "postgres"), allow(clippy::unused_async, reason = "the PostgreSQL case awaits"))]
    pub(crate) async fn messages(&self, id: &ConversationId) -> Vec<String> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite { connection, .. } => {
                let mut query = connection
                    .prepare_cached(
                        "SELECT message FROM nodes
                         WHERE conversation = (SELECT key FROM conversations WHERE id = ?) ORDER BY version, place",
                    )
                    .expect("the table exists");
                let rows = query.query_map([id.as_str()], |row| row.get(0)).expect("it can be read");
                rows.collect::<Result<_, _>>().expect("messages are texts")
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { client, schema } => {
                let query = format!(
                    "SELECT message FROM {schema}.nodes
                     WHERE conversation = (SELECT key FROM {schema}.conversations WHERE id = $1)
                     ORDER BY version, place"
                );
                let rows = client.query(&query, &[&id.as_str()]).await.expect("the table exists");
                rows.iter().map(|row| row.get(0)).collect()
            }
        }
    }

    /// Returns the growth of the database's log during `write`, in bytes.
    pub(crate) async fn logged(&self, write: impl Future<Output = ()>) -> u64 {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite { connection, file } => {
                // Empty the log first, so that its length is the number of written bytes. Otherwise, SQLite would start
                // to overwrite the log from its beginning from time to time.
                connection
                    .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
                    .expect("there are no other users");
                write.await;
                let mut log = file.clone().into_os_string();
                log.push("-wal");
                std::fs::metadata(log).expect("the log exists").len()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres { client, .. } => {
                let place = async || {
                    let place = client.query_one("SELECT (pg_current_wal_lsn() - '0/0')::bigint", &[]).await;
                    place.expect("it is a position").get::<_, i64>(0).cast_unsigned()
                };
                let before = place().await;
                write.await;
                place().await - before
            }
        }
    }
}

//! The stores that keep turns, and functions that store turns which no process has open.

use std::sync::Arc;

use omni_agent::{
    message::{Message, ToolUse, TurnId},
    run::PendingUse,
    store::{
        ConversationId, FileSystemStore, Labels, MemoryStore, Store,
        custom::{Change, Commit, StoredState, TurnRecord, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId},
};
use serde_json::json;

/// Waits until a condition is true, for at most a minute. The changes come from other threads, or from a store.
macro_rules! until {
    ($what:literal, $condition:expr) => {{
        let waiting = async {
            while !$condition {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), waiting).await.expect($what);
    }};
}

/// A store of one kind, and its folder, which is removed when this value is dropped.
pub(crate) struct Place {
    pub(crate) store: Arc<dyn Store>,
    folder: Option<std::path::PathBuf>,
    /// The application name of the connections to PostgreSQL. No other store has it.
    #[cfg(feature = "postgres")]
    connections: Option<String>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Processes that are played to die keep their connections.
        #[cfg(feature = "postgres")]
        if let Some(name) = self.connections.take() {
            let _ = std::thread::spawn(move || end_connections(&name)).join();
        }
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Place {
    fn new(store: Arc<dyn Store>, folder: Option<std::path::PathBuf>) -> Self {
        Self {
            store,
            folder,
            #[cfg(feature = "postgres")]
            connections: None,
        }
    }
}

fn temporary() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()))
}

/// Returns a new store of each kind that keeps turns and can be used here.
pub(crate) async fn stores() -> Vec<Place> {
    let all = [
        Some(Place::new(Arc::new(MemoryStore::new()), None)),
        Some(files().await),
        #[cfg(feature = "sqlite")]
        Some(sqlite().await),
        #[cfg(feature = "postgres")]
        postgres().await,
    ];
    all.into_iter().flatten().collect()
}

async fn files() -> Place {
    let folder = temporary();
    let files = FileSystemStore::builder(&folder).durability(Durability::Process).exclusive();
    Place::new(Arc::new(files.open().await.unwrap()), Some(folder))
}

#[cfg(feature = "sqlite")]
async fn sqlite() -> Place {
    sqlite_with_leases(std::time::Duration::from_secs(30)).await
}

/// Returns a new SQLite store whose leases last this long.
#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite_with_leases(lasts: std::time::Duration) -> Place {
    let folder = temporary();
    std::fs::create_dir(&folder).unwrap();
    let store = omni_agent::store::SqliteStore::builder(folder.join("conversations")).lease(lasts);
    let store = Arc::new(store.durability(Durability::Process).open().await.unwrap());
    Place::new(store, Some(folder))
}

#[cfg(feature = "postgres")]
async fn postgres() -> Option<Place> {
    let url = crate::server::url()?;
    let name = ConversationId::generate().to_string();
    let separator = if url.contains('?') { '&' } else { '?' };
    let store =
        crate::server::fresh(&format!("{url}{separator}application_name={name}")).open().await.unwrap();
    let mut place = Place::new(Arc::new(store), None);
    place.connections = Some(name);
    Some(place)
}

/// Ends all connections to PostgreSQL with this application name.
#[cfg(feature = "postgres")]
fn end_connections(name: &str) {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = crate::server::raw(crate::server::url().unwrap()).await;
        client.execute(end, &[&name]).await.unwrap();
    });
}

pub(crate) fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

pub(crate) fn turn_id(number: u8) -> TurnId {
    format!("{number:032x}").parse().unwrap()
}

/// Returns a use of the tool `send` that waits for a decision.
pub(crate) fn waiting(tool_use: &str) -> PendingUse {
    PendingUse::new(TurnId::default(), ToolUse::new(tool_use, "send", json!({ "to": tool_use })))
}

/// Returns a record of a paused turn on the head 2.
pub(crate) fn paused(waiting: Vec<PendingUse>) -> TurnRecord {
    let pending = [Message::user("Send it."), Message::assistant("I will.")];
    TurnRecord::new(1, turn_id(7), r#"{"phase":"paused","step":3}"#)
        .with_lives(1)
        .with_head(NodeId::new(2))
        .with_append(pending.into_iter().map(Arc::new).collect())
        .with_waiting(waiting)
}

/// Stores a conversation of this user, with two messages and this turn in flight.
pub(crate) async fn leave(store: &dyn Store, name: &str, user: &str, record: TurnRecord) {
    let labels = Labels::new([("user", user)]).unwrap();
    let state = StoredState::default().with_labels(labels);
    let version = store.write(&id(name), &Write::first(), &Change::create(state)).await.unwrap();
    let messages = [Message::user("Hello"), Message::assistant("Hi")].into_iter().zip(1..);
    let nodes = messages
        .map(|(message, number)| Node::new(NodeId::new(number).unwrap(), NodeId::new(number - 1), message));
    let commit = Commit::new(NodeId::new(2)).with_nodes(nodes).with_turn(record);
    store.write(&id(name), &Write::on(version), &Change::Commit(commit)).await.unwrap();
}

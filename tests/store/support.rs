//! Helpers for the tests of stores.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use omni_agent::{
    message::Message,
    store::{
        ConversationId, FileSystemStore, Store,
        custom::{Change, Commit, StoredState, Version, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId},
};

/// A temporary folder. The folder is removed when this value is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("omni-agent-{}", ConversationId::generate());
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a conversation's log.
    pub(crate) fn log(&self, id: &ConversationId) -> PathBuf {
        self.0.join(format!("{id}.jsonl"))
    }

    /// Returns the names of the files in the folder, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) async fn store(&self) -> FileSystemStore {
        FileSystemStore::open(&self.0).await.unwrap()
    }

    /// Opens a store that does not sync, for tests that make many writes and don't depend on syncing.
    pub(crate) async fn quick_store(&self) -> FileSystemStore {
        FileSystemStore::builder(&self.0).durability(Durability::Process).open().await.unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Returns a line with this record and its correct checksum and length.
pub(crate) fn line(record: &str) -> String {
    format!(
        "{{\"sum\":\"{:08x}\",\"len\":{:10},\"record\":{record}}}\n",
        crc32fast::hash(record.as_bytes()),
        record.len()
    )
}

/// Returns a commit of one node with this text. The node is a child of the previous node.
pub(crate) fn says(number: u64, text: &str) -> Commit {
    let message = Message::user(text);
    Commit::new(Some(node(number))).with_nodes([Node::new(node(number), NodeId::new(number - 1), message)])
}

pub(crate) async fn create(store: &dyn Store, id: &ConversationId) -> Version {
    store.write(id, &Write::first(), &Change::create(StoredState::default())).await.unwrap()
}

/// Stores a schedule.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) async fn schedule(store: &dyn Store, id: &ConversationId) {
    use omni_agent::{
        message::Timestamp,
        run::Schedule,
        store::custom::{ScheduleChange, ScheduleEntry},
    };

    let entry = ScheduleEntry::new(Timestamp(1), 1, Schedule::at(Timestamp(1), "Go"));
    let change = Change::schedule(ScheduleChange::new("once", Some(entry)));
    store.write(id, &Write::first(), &change).await.unwrap();
}

pub(crate) async fn commit(
    store: &dyn Store,
    id: &ConversationId,
    base: Version,
    number: u64,
    text: &str,
) -> Version {
    store.write(id, &Write::on(base), &Change::Commit(says(number, text))).await.unwrap()
}

/// Returns a command that runs one test of this program in a child process of another test.
pub(crate) fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("OMNI_CHILD", folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Returns the folder in which a child process works. In a normal run, returns `None`, because tests for child
/// processes then do nothing.
pub(crate) fn child_folder() -> Option<PathBuf> {
    env::var_os("OMNI_CHILD").map(PathBuf::from)
}

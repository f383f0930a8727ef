//! Copies of conversations between stores, and conversations as JSON documents.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    message::{Message, ToolResult, ToolUse},
    provider::Options,
    store::{
        ConversationId, FileSystemStore, Listing, MemoryStore, Page, Store, StoreError, Summary, copy,
        copy_one,
        custom::{Change, Commit, StateChange, Stored, StoredState, Version, Write},
        export_json, import_json, import_json_with_settings,
    },
    tree::{Node, NodeId},
};
use serde_json::json;

use crate::support::{Folder, commit, create, id, says};

/// Creates a store with an empty conversation and a conversation that uses every feature.
async fn full(folder: &Folder) -> FileSystemStore {
    let content = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/conversations");
    let store = folder.quick_store().await;
    for name in ["empty", "talk"] {
        let stored = std::fs::read(content.join(format!("{name}.json"))).unwrap();
        let stored: Stored = serde_json::from_slice(&stored).unwrap();
        let version =
            store.write(&id(name), &Write::first(), &Change::create(stored.state.clone())).await.unwrap();
        if !stored.nodes.is_empty() {
            let commit = Commit::new(stored.head).with_nodes(stored.nodes).with_cursors(stored.cursors);
            store.write(&id(name), &Write::on(version), &Change::Commit(commit)).await.unwrap();
        }
    }
    store
}

/// Returns the state, the path, the cursors and the nodes, which a copy preserves. Versions and times are left out,
/// because each store assigns its own.
fn content(stored: &Stored) -> String {
    let nodes = serde_json::to_string(&stored.nodes).unwrap();
    format!("{:?} {:?} {:?} {nodes}", stored.state, stored.head, stored.cursors)
}

async fn copies(from: &dyn Store, to: &dyn Store) {
    let mut progress = Vec::new();
    let copied = copy(from, to, |done, all| progress.push((done, all))).await;
    assert!(copied.is_complete(), "{copied:?}");
    assert_eq!((copied.copied, copied.unchanged), (2, 0));
    assert_eq!(progress, [(1, 2), (2, 2)]);
    for name in ["empty", "talk"] {
        let (before, after) = (from.load(&id(name)).await.unwrap(), to.load(&id(name)).await.unwrap());
        assert_eq!(content(&before), content(&after));
    }
    let again = copy(from, to, |_, _| {}).await;
    assert_eq!((again.copied, again.unchanged, again.is_complete()), (0, 2, true));
}

#[tokio::test]
async fn copy_between_stores_keeps_everything() {
    let folders = [(); 2].map(|()| Folder::new());
    let files = full(&folders[0]).await;
    #[allow(unused_mut, reason = "only databases replace it")]
    let mut last: Box<dyn Store> = Box::new(MemoryStore::new());
    copies(&files, &*last).await;
    #[cfg(feature = "sqlite")]
    {
        let sqlite = crate::sqlite::quick(&folders[1]).await;
        copies(&*last, &sqlite).await;
        last = Box::new(sqlite);
    }
    #[cfg(feature = "postgres")]
    if let Some(url) = crate::postgres::server::url() {
        let postgres = crate::postgres::server::fresh(url).open().await.unwrap();
        copies(&*last, &postgres).await;
        last = Box::new(postgres);
    }
    let back = Folder::new();
    copies(&*last, &back.quick_store().await).await;
}

/// A store that deletes its newest conversation after each listing.
struct Shrinking(MemoryStore);

#[async_trait]
impl Store for Shrinking {
    forward!(self.0: write, load, summary, delete);

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        let listed = self.0.list(listing).await;
        if let Some(newest) = self.0.list(&Page::first(1).into()).await?.first() {
            self.0.delete(&newest.id, None).await?;
        }
        listed
    }
}

#[tokio::test]
async fn copy_during_deletes_misses_no_remaining_conversation() {
    let (from, to) = (Shrinking(MemoryStore::new()), MemoryStore::new());
    for number in 0..2500 {
        create(&from, &id(&format!("n{number}"))).await;
    }
    copy(&from, &to, |_, _| {}).await;
    for Summary { id, .. } in from.0.list(&Page::first(usize::MAX).into()).await.unwrap() {
        assert!(to.summary(&id).await.is_ok(), "{id} was not copied");
    }
}

/// Returns the ids of all conversations in the order of the store's list.
async fn listed(store: &dyn Store) -> Vec<String> {
    let list = store.list(&Page::first(usize::MAX).into()).await.unwrap();
    list.into_iter().map(|summary| summary.id.to_string()).collect()
}

async fn keeps_the_order(from: &dyn Store, to: &dyn Store) {
    assert!(copy(from, to, |_, _| {}).await.is_complete());
    assert_eq!(listed(to).await, listed(from).await);
}

#[tokio::test]
async fn copy_keeps_the_order_of_the_list() {
    let folders = [(); 2].map(|()| Folder::new());
    let from = MemoryStore::new();
    // Several conversations are created in the same millisecond. Their ids determine the order of these conversations.
    for number in 0..60 {
        create(&from, &id(&format!("n{}", number * 37 % 60))).await;
    }
    let files = folders[0].quick_store().await;
    keeps_the_order(&from, &files).await;
    keeps_the_order(&files, &MemoryStore::new()).await;
    #[cfg(feature = "sqlite")]
    keeps_the_order(&from, &crate::sqlite::quick(&folders[1]).await).await;
    #[cfg(feature = "postgres")]
    if let Some(url) = crate::postgres::server::url() {
        keeps_the_order(&from, &crate::postgres::server::fresh(url).open().await.unwrap()).await;
    }
}

/// A store that rejects commits above a certain size, and fails after a certain number of commits.
struct Limited {
    inner: MemoryStore,
    bytes: usize,
    commits: std::sync::Mutex<usize>,
}

impl Limited {
    fn new(commits: usize) -> Self {
        Self { inner: MemoryStore::new(), bytes: 5 << 20, commits: commits.into() }
    }
}

#[async_trait]
impl Store for Limited {
    forward!(self.inner: load, summary, list, delete);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let Change::Commit(commit) = change else { return self.inner.write(id, write, change).await };
        if serde_json::to_string(commit).unwrap().len() > self.bytes {
            return Err(StoreError::Unstorable { id: id.clone(), problem: "it is too large".to_owned() });
        }
        let left = {
            let mut commits = self.commits.lock().unwrap();
            commits.checked_sub(1).map(|left| *commits = left)
        };
        match left {
            Some(()) => self.inner.write(id, write, change).await,
            None => Err(StoreError::failed("writing", std::io::Error::other("it crashed"))),
        }
    }
}

#[tokio::test]
async fn copy_larger_than_a_commit_is_completed_after_crashes() {
    let (from, to) = (MemoryStore::new(), Limited::new(1));
    let mut version = create(&from, &id("long")).await;
    // The conversation has 12 MiB, in commits of different sizes.
    for (number, size) in (1..).zip([1, 2, 2, 4, 1, 1, 1]) {
        version = commit(&from, &id("long"), version, number, &"x".repeat(size << 20)).await;
    }
    for crash in 0..3 {
        assert!(copy_one(&from, &to, &id("long")).await.is_err(), "crash {crash}");
        let stored = to.load(&id("long")).await.unwrap();
        assert_eq!((stored.head, stored.cursors.len()), (None, 0), "a partial copy must not have a path");
        assert!(!stored.nodes.is_empty());
        // Repeated writes also count as commits.
        *to.commits.lock().unwrap() = crash + 2;
    }
    // In the meantime, the original conversation continues.
    commit(&from, &id("long"), version, 8, "more").await;
    *to.commits.lock().unwrap() = 100;
    let copied = copy(&from, &to, |_, _| {}).await;
    assert_eq!((copied.copied, copied.is_complete()), (1, true), "{copied:?}");
    let (before, after) = (from.load(&id("long")).await.unwrap(), to.load(&id("long")).await.unwrap());
    assert!(content(&before) == content(&after));
    let again = copy(&from, &to, |_, _| {}).await;
    assert_eq!((again.unchanged, again.is_complete()), (1, true), "{again:?}");
}

#[tokio::test]
async fn copy_that_was_interrupted_is_completed() {
    let folder = Folder::new();
    let (from, to) = (full(&folder).await, MemoryStore::new());
    copies(&from, &to).await;
    // An interrupted copy leaves an empty conversation in the target. The copy of this new, empty conversation has the
    // same effect.
    let version = create(&from, &id("new")).await;
    copy_one(&from, &to, &id("new")).await.unwrap();
    assert!(!copy_one(&from, &to, &id("new")).await.unwrap(), "the conversation was copied before");
    commit(&from, &id("new"), version, 1, "later").await;
    let late = copy_one(&from, &to, &id("new")).await;
    assert!(
        matches!(late, Err(StoreError::Conflict { .. })),
        "a conversation changed after its copy: {late:?}"
    );
}

#[tokio::test]
async fn copy_over_another_conversation_leaves_it_and_continues() {
    let folder = Folder::new();
    let (from, to) = (full(&folder).await, MemoryStore::new());
    let state = StoredState::default().with_title("another");
    to.write(&id("empty"), &Write::first(), &Change::create(state.clone())).await.unwrap();
    let copied = copy(&from, &to, |_, _| {}).await;
    assert_eq!(copied.copied, 1);
    match &copied.failed[..] {
        [(failed, StoreError::AlreadyExists { .. })] => assert_eq!(*failed, id("empty")),
        other => panic!("{other:?}"),
    }
    assert_eq!(to.load(&id("empty")).await.unwrap().state, state);
}

#[tokio::test]
async fn copy_of_a_damaged_conversation_reports_it_and_continues() {
    let folder = Folder::new();
    let (from, to) = (full(&folder).await, MemoryStore::new());
    let mut log = std::fs::read(folder.log(&id("talk"))).unwrap();
    let middle = log.len() / 2;
    log[middle] ^= 1;
    std::fs::write(folder.log(&id("talk")), log).unwrap();
    let copied = copy(&from, &to, |_, _| {}).await;
    assert_eq!((copied.copied, copied.failed.len()), (1, 1));
    assert!(matches!(copied.failed[0].1, StoreError::Damaged { .. }));
}

/// Creates the same conversations as `full`. The active path of `talk` ends in an answer, as it does after a session.
async fn answered(folder: &Folder) -> FileSystemStore {
    let store = full(folder).await;
    let version = store.load(&id("talk")).await.unwrap().version;
    store
        .write(&id("talk"), &Write::on(version), &Change::Commit(Commit::new(NodeId::new(4))))
        .await
        .unwrap();
    store
}

#[tokio::test]
async fn export_json_is_imported_unchanged() {
    let folder = Folder::new();
    let (from, to) = (answered(&folder).await, MemoryStore::new());
    let text = export_json(&from, &id("talk")).await.unwrap();
    assert!(text.lines().count() > 50, "the document has line breaks for readability");
    assert_eq!(import_json_with_settings(&to, &text, None).await.unwrap(), id("talk"));
    assert_eq!(
        import_json_with_settings(&to, &text, None).await.unwrap(),
        id("talk"),
        "importing again changes nothing"
    );
    import_json_with_settings(&to, &text, Some(id("other"))).await.unwrap();
    let before = content(&from.load(&id("talk")).await.unwrap());
    for name in ["talk", "other"] {
        assert_eq!(content(&to.load(&id(name)).await.unwrap()), before);
    }
    let version = to.load(&id("talk")).await.unwrap().version;
    let title = StateChange::title("mine");
    to.write(&id("talk"), &Write::on(version), &Change::State(title.clone())).await.unwrap();
    let late = import_json_with_settings(&to, &text, None).await;
    assert!(
        matches!(late, Err(StoreError::AlreadyExists { .. })),
        "the conversation has changed since: {late:?}"
    );
    assert_eq!(
        to.load(&id("talk")).await.unwrap().state.title.as_deref(),
        Some("mine"),
        "an import must not overwrite"
    );
}

#[tokio::test]
async fn import_json_of_an_edited_document_with_a_used_id_is_rejected() {
    let folder = Folder::new();
    let (from, to) = (answered(&folder).await, MemoryStore::new());
    let text = export_json(&from, &id("talk")).await.unwrap();
    import_json_with_settings(&to, &text, None).await.unwrap();
    let before = to.load(&id("talk")).await.unwrap();
    let mut edited: serde_json::Value = serde_json::from_str(&text).unwrap();
    edited["conversation"]["nodes"][0]["message"]["content"] =
        serde_json::json!([{"type": "text", "text": "Edited"}]);
    let refused = import_json_with_settings(&to, &edited.to_string(), None).await;
    assert!(matches!(refused, Err(StoreError::AlreadyExists { .. })), "{refused:?}");
    assert_eq!(to.load(&id("talk")).await.unwrap(), before);
    import_json_with_settings(&to, &edited.to_string(), Some(id("edited"))).await.unwrap();
    assert_ne!(content(&to.load(&id("edited")).await.unwrap()), content(&before));
}

#[tokio::test]
async fn copy_over_a_continued_conversation_leaves_it_and_reports_it() {
    let folder = Folder::new();
    let (from, to) = (full(&folder).await, MemoryStore::new());
    copies(&from, &to).await;
    let version = to.load(&id("talk")).await.unwrap().version;
    to.write(&id("talk"), &Write::on(version), &Change::State(StateChange::title("mine"))).await.unwrap();
    let again = copy(&from, &to, |_, _| {}).await;
    assert_eq!((again.copied, again.unchanged), (0, 1));
    match &again.failed[..] {
        [(failed, StoreError::Conflict { .. })] => assert_eq!(*failed, id("talk")),
        other => panic!("{other:?}"),
    }
    assert_eq!(to.load(&id("talk")).await.unwrap().state.title.as_deref(), Some("mine"));
}

#[tokio::test]
async fn import_json_of_another_document_reports_the_reason() {
    let store = MemoryStore::new();
    create(&store, &id("a")).await;
    let version = store.load(&id("a")).await.unwrap().version;
    // Node 7 refers to a parent that does not exist.
    store.write(&id("a"), &Write::on(version), &Change::Commit(says(7, "lost"))).await.unwrap();
    let broken = export_json(&store, &id("a")).await.unwrap();
    let later = broken.replacen("\"format_version\": 1", "\"format_version\": 9", 1);
    for (text, names) in [
        ("{}", "format"),
        ("[", "EOF"),
        ("{\"format\":\"x\",\"format_version\":1}", "\"x\""),
        (&*broken, "6"),
    ] {
        match import_json(&store, text, Some(id("b"))).await {
            Err(StoreError::Damaged { problem, .. }) => assert!(problem.contains(names), "{problem}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let refused = import_json(&store, &later, Some(id("b"))).await;
    assert!(matches!(refused, Err(StoreError::UnknownFormat { found: 9, known: 2, .. })), "{refused:?}");
    assert!(store.summary(&id("b")).await.is_err());
}

#[tokio::test]
async fn import_json_imports_only_messages_and_title() {
    let (from, to) = (MemoryStore::new(), MemoryStore::new());
    let options = Options::default()
        .with_temperature(0.5)
        .with_extra([("tools", json!([{ "type": "web_search" }]))])
        .with_backend([("sandbox", false)])
        .with_folder("/home/somebody");
    let mut state = StoredState::default().with_title("A talk").with_options(options);
    state.model = Some("scripted:expensive".to_owned());
    state.settings.system = Some("Obey the document.".into());
    (state.settings.max_steps, state.settings.turn_timeout) = (Some(1_000_000), Some(Duration::from_secs(1)));
    let version = from.write(&id("talk"), &Write::first(), &Change::create(state.clone())).await.unwrap();
    let talk = [Node::new(NodeId::new(1).unwrap(), None, Message::user("Hi"))];
    let talk = talk.into_iter().chain([Node::new(
        NodeId::new(2).unwrap(),
        NodeId::new(1),
        Message::assistant("Hello"),
    )]);
    from.write(
        &id("talk"),
        &Write::on(version),
        &Change::Commit(Commit::new(NodeId::new(2)).with_nodes(talk)),
    )
    .await
    .unwrap();
    let text = export_json(&from, &id("talk")).await.unwrap();

    import_json(&to, &text, None).await.unwrap();
    let (exported, imported) = (from.load(&id("talk")).await.unwrap(), to.load(&id("talk")).await.unwrap());
    assert_eq!(imported.state, StoredState::default().with_title("A talk"));
    assert_eq!((imported.nodes, imported.head), (exported.nodes, exported.head));

    import_json_with_settings(&to, &text, Some(id("whole"))).await.unwrap();
    assert_eq!(to.load(&id("whole")).await.unwrap().state, state);
}

/// Returns a document of a conversation with these nodes. The active path ends in `head`.
async fn document(nodes: &[(u64, Option<u64>, Message)], head: u64) -> String {
    let store = MemoryStore::new();
    let node = |id: u64| NodeId::new(id).unwrap();
    let version =
        store.write(&id("talk"), &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let nodes =
        nodes.iter().map(|(id, parent, message)| Node::new(node(*id), parent.map(node), message.clone()));
    let commit = Commit::new(Some(node(head))).with_nodes(nodes);
    store.write(&id("talk"), &Write::on(version), &Change::Commit(commit)).await.unwrap();
    export_json(&store, &id("talk")).await.unwrap()
}

#[tokio::test]
async fn import_json_of_an_invalid_path_names_its_node() {
    let tool_use = |id: &str| ToolUse::new(id, "look", json!({}));
    let asks = Message::assistant(tool_use("a"));
    let answers = Message::user(ToolResult::ok(&tool_use("a"), "Seen."));
    let (hi, hello) = (Message::user("Hi"), Message::assistant("Hello"));
    let start = [(1, None, hi.clone()), (2, Some(1), hello.clone())];
    let with = |more: &[(u64, Option<u64>, Message)]| [&start[..], more].concat();
    let cases = [
        // On a side path, the message that follows a tool use does not answer the tool use.
        (with(&[(3, Some(1), asks.clone()), (4, Some(3), hi.clone())]), 2, "node 4", "\"a\" is not answered"),
        (with(&[(3, Some(2), answers.clone())]), 2, "node 3", "answers no open tool use"),
        (with(&[(3, None, answers.clone()), (4, Some(3), hello.clone())]), 2, "node 3", "message 0"),
        (
            with(&[(3, Some(1), Message::assistant([tool_use("a"), tool_use("a")]))]),
            3,
            "node 3",
            "share the id",
        ),
        (with(&[(3, Some(1), Message::user(tool_use("a")))]), 2, "node 3", "is not allowed in"),
        (with(&[(3, Some(2), hi.clone())]), 3, "node 3", "ends in a user prompt"),
    ];
    for (nodes, head, node, problem) in cases {
        let text = document(&nodes, head).await;
        let to = MemoryStore::new();
        for imported in
            [import_json(&to, &text, None).await, import_json_with_settings(&to, &text, None).await]
        {
            match imported {
                Err(StoreError::Damaged { problem: said, .. }) => {
                    assert!(said.contains(node) && said.contains(problem), "{said}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(to.summary(&id("talk")).await.is_err(), "nothing may be written");
    }
    // The next prompt answers the tool uses with which a path of a document ends.
    let text = document(&with(&[(3, Some(1), asks.clone()), (4, Some(1), asks.clone())]), 3).await;
    let to = MemoryStore::new();
    import_json(&to, &text, None).await.unwrap();
    let marked: Vec<_> =
        to.load(&id("talk")).await.unwrap().nodes.iter().map(omni_agent::tree::Node::left_open).collect();
    assert_eq!(marked, [false, false, true, true]);
    // A path may end in an open tool use, or in the results of an interrupted turn.
    let nodes = with(&[(3, Some(1), asks), (4, Some(3), answers), (5, Some(4), hello)]);
    for head in [2, 3, 4, 5] {
        let text = document(&nodes, head).await;
        import_json(&MemoryStore::new(), &text, None).await.unwrap();
    }
}

/// A conversation is unreachable, for example, if its file belongs to another user.
#[cfg(unix)]
#[tokio::test]
async fn copy_of_an_unreachable_conversation_reports_it_and_continues() {
    let folder = Folder::new();
    let (from, to) = (full(&folder).await, MemoryStore::new());
    std::fs::remove_file(folder.log(&id("empty"))).unwrap();
    std::os::unix::fs::symlink(folder.log(&id("empty")), folder.log(&id("empty"))).unwrap();
    let copied = copy(&from, &to, |_, _| {}).await;
    assert_eq!((copied.copied, copied.failed.len()), (1, 1), "{copied:?}");
    assert!(copied.stopped.is_none());
}

//! Forks: the path to a message as a new conversation.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Compact, CompactionPolicy, Config, SubAgent},
    manager::{ForkOptions, Manager, ManagerEvent, OpenOptions, Titles},
    message::{Attachment, Content, Usage},
    store::{
        ConversationId, Filter, Labels, Listing, MemoryStore, Page, Store, StoreError,
        custom::{Change, Lease, Stored, Version, Write},
    },
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{ToolContext, declared_tool, tool_fn},
    tree::{NodeId, Tree},
};
use serde_json::{Value, json};

use crate::support::{Act, CommandedStore, alone, create, held, id, in_time, parrot, scripted, secs};

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

fn labels(user: &str) -> Labels {
    Labels::new([("user", user)]).unwrap()
}

async fn tree(store: &dyn Store, id: &ConversationId) -> Tree {
    let Stored { nodes, head, cursors, .. } = store.load(id).await.unwrap();
    Tree::hydrate(nodes, head, cursors).unwrap()
}

fn texts(tree: &Tree) -> Vec<String> {
    tree.history().iter().map(|message| message.text()).collect()
}

/// Returns an agent like `parrot` whose requests have a usage.
fn counted() -> AgentBuilder {
    let provider = ScriptedProvider::from_fn(|request| {
        let text = request.history.last().map(|said| said.text()).unwrap_or_default();
        let usage = Usage::default().with_input(3).with_output(5);
        Step::new().usage(usage).then_text([format!("re: {text}")]).stop()
    });
    Agent::builder().model(provider.model())
}

/// Creates the conversation `a` with a title, three turns, and another answer to the second question.
async fn original(manager: &Manager) {
    let options = alone(counted()).labels(labels("ann")).title("Plans");
    let session = manager.create_with_id(&id("a"), options).await.unwrap().session;
    let be_brief = |config: &mut Config| {
        config.settings.system = Some("Be brief.".into());
        Ok(())
    };
    session.configure(be_brief).await.unwrap();
    for prompt in ["One", "Two", "Three"] {
        session.ask(prompt).await.unwrap();
    }
    session.run("Other").instead_of(node(3)).response().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fork_to_the_id_of_an_open_conversation_that_is_not_stored_fails() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    original(&manager).await;
    let open = manager.create(alone(parrot())).await.unwrap().session;
    let options = ForkOptions::new(labels("ben")).with_id(open.id().clone());
    let error = manager.fork(&id("a"), node(4), options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    open.ask("One").await.unwrap();
    open.flush(secs(5)).await.unwrap();
    assert_eq!(texts(&tree(&*store, open.id()).await), ["One", "re: One"]);
}

#[tokio::test(start_paused = true)]
async fn fork_of_an_open_and_of_a_closed_conversation_has_the_path_and_the_settings() {
    for is_open in [true, false] {
        let store = Arc::new(MemoryStore::new());
        let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
        original(&manager).await;
        if !is_open {
            manager.close(&id("a")).await.unwrap();
        }
        let before = tree(&*store, &id("a")).await;
        let fork = manager.fork(&id("a"), node(4), labels("ben")).await.unwrap();
        assert_eq!(manager.list_open().len(), usize::from(is_open), "the fork is not opened");
        let copy = tree(&*store, &fork).await;
        assert_eq!(texts(&copy), ["One", "re: One", "Two", "re: Two"], "the path does not follow the head");
        assert_eq!((copy.len(), copy.head(), copy.usage()), (4, Some(node(4)), Usage::default()));
        let ids =
            |tree: &Tree| tree.nodes().take(4).map(|node| node.message().id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&copy), ids(&before));
        let stored = store.load(&fork).await.unwrap();
        assert_eq!((stored.state.title.as_deref(), &stored.state.labels), (Some("Plans"), &labels("ben")));
        assert_eq!(stored.state.settings.system.as_deref(), Some("Be brief."));
        assert!(stored.turn.is_none() && stored.last_run.is_none() && stored.used.requests == 0);
        assert!(store.usage(&fork, &Page::default()).await.unwrap().is_empty());
        assert_eq!(tree(&*store, &id("a")).await, before);
        for (user, count) in [("ann", 1), ("ben", 1), ("cem", 0)] {
            assert_eq!(manager.list(Filter::with(labels(user))).await.unwrap().len(), count, "{user}");
        }

        // Both continue on their own.
        let session = manager.open(&fork, alone(counted())).await.unwrap().session;
        session.ask("Next").await.unwrap();
        manager.close(&fork).await.unwrap();
        assert_eq!(store.usage(&fork, &Page::default()).await.unwrap().len(), 1);
        manager.delete(&id("a")).await.unwrap();
        assert_eq!(texts(&tree(&*store, &fork).await)[3..], ["re: Two", "Next", "re: Next"]);
    }
}

#[tokio::test(start_paused = true)]
async fn fork_during_a_run_has_the_committed_messages() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let gate = Gate::new();
    let session = create(&manager, "a", held(&gate)).await;
    gate.open();
    session.ask("One").await.unwrap();
    session.prompt("Two").await.unwrap();
    gate.reached().await;
    gate.reached().await;
    let fork = manager.fork(&id("a"), node(2), labels("ann")).await.unwrap();
    assert_eq!(
        manager.fork(&id("a"), node(3), labels("ann")).await.unwrap_err().kind(),
        ErrorKind::UnknownNode
    );
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(
        texts(&manager.open(&fork, parrot()).await.unwrap().session.tree().await.unwrap()),
        ["One", "Half"]
    );
}

#[tokio::test(start_paused = true)]
async fn fork_at_a_place_where_no_prompt_can_follow_is_refused() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let work = tool_fn("work", "Works.", |_: Value, _: ToolContext| async { Ok("done") });
    let steps = [
        Step::tool_use("t", "work", json!({})),
        Step::text("Done."),
        Step::tool_use("u", "ask_user", json!({})),
    ];
    let agent = scripted(steps).tool(work).tool(declared_tool::<Value>("ask_user", "Asks."));
    let session = create(&manager, "a", agent).await;
    session.ask("Go").await.unwrap();
    session.ask("And?").await.unwrap();
    let cases = [
        (1, ErrorKind::NotAnAnswer),
        (2, ErrorKind::OpenToolUses),
        (3, ErrorKind::NotAnAnswer),
        (5, ErrorKind::NotAnAnswer),
        (7, ErrorKind::UnknownNode),
    ];
    for (at, kind) in cases {
        let error = manager.fork(&id("a"), node(at), labels("ann")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{at}: {error}");
    }
    // The application answers the tool use that was left open to it, in either conversation.
    let fork = manager.fork(&id("a"), node(6), labels("ann")).await.unwrap();
    let fork = manager.open(&fork, scripted([Step::text("Ok.")])).await.unwrap().session;
    let tree = fork.tree().await.unwrap();
    assert!(tree.node(node(6)).unwrap().left_open());
    fork.ask("Never mind").await.unwrap();
    assert_eq!(manager.list(Page::default()).await.unwrap().len(), 2);
    assert!(manager.fork(&id("b"), node(1), labels("ann")).await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn fork_carries_compactions_and_the_omissions_of_its_path() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).build();
    let file = || Content::from(Attachment::base64("image/png", "QUJD".repeat(1000)));
    let provider = ScriptedProvider::from_fn(|_| Step::text("Yes."));
    let policy = CompactionPolicy::default().with_kept_turns(0);
    let agent = Agent::builder().model(provider.model()).compaction(policy);
    let session = create(&manager, "a", agent).await;
    session.ask([Content::from("Look"), file()]).await.unwrap();
    session.ask("And?").await.unwrap();
    session.compact(Compact::default()).await.unwrap();
    session.ask([file()]).await.unwrap();
    session.omit(node(1), 1).await.unwrap();
    session.omit(node(6), 0).await.unwrap();
    let fork = manager.fork(&id("a"), node(5), labels("ann")).await.unwrap();
    let state = store.load(&fork).await.unwrap().state;
    assert_eq!(state.settings.omitted.len(), 1, "the other message is not on the path");
    let provider = ScriptedProvider::from_fn(|_| Step::text("No."));
    let options = alone(Agent::builder().model(provider.model()));
    let session = manager.open(&fork, options).await.unwrap().session;
    let tree = session.tree().await.unwrap();
    assert!(tree.node(node(5)).unwrap().message().compaction.is_some());
    session.ask("More?").await.unwrap();
    let sent = provider.last_request().unwrap().history;
    assert!(sent.len() < 5, "the summary is sent in place of the first messages: {sent:?}");
    session.compact(Compact::undo()).await.unwrap();
    session.ask("More?").await.unwrap();
    let sent = provider.last_request().unwrap().history;
    assert_eq!(sent.get(0).unwrap().content[1].as_text(), Some("[A file is left out: image/png, 3 KB]"));
}

#[tokio::test(start_paused = true)]
async fn fork_leaves_sub_agents_with_the_original_and_can_fork_one_itself() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let start = |_: &ToolContext| scripted([Step::text("Sub done.")]);
    let agent = scripted([Step::tool_use("t", "sub", json!({ "task": "Go." })), Step::text("Done.")]);
    let agent = agent.tool(SubAgent::new("sub", "Does a task.", start));
    let options = OpenOptions::new(agent).labels(labels("ann")).subscribe(None);
    let session = manager.create_with_id(&id("a"), options).await.unwrap().session;
    session.ask("Go").await.unwrap();
    let fork = manager.fork(&id("a"), node(4), labels("ben")).await.unwrap();
    let listed = manager.list(Filter::with(labels("ben"))).await.unwrap();
    assert_eq!(listed.len(), 1, "no sub-agent is copied");
    let of_ann = manager.list(Filter::with(labels("ann"))).await.unwrap();
    let child = of_ann.iter().map(|listed| &listed.summary).find(|summary| summary.id != id("a")).unwrap();
    // The labels that state the place of a sub-agent are not taken over.
    let copy = manager.fork(&child.id, node(2), child.labels.clone()).await.unwrap();
    assert_eq!(manager.summary(&copy).await.unwrap().summary.labels, labels("ann"));
    manager.delete(&fork).await.unwrap();
    assert!(manager.summary(&child.id).await.is_ok(), "it belongs to the original");
    manager.delete(&id("a")).await.unwrap();
    assert!(manager.summary(&child.id).await.unwrap_err().is_not_found());
    assert!(manager.summary(&copy).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn fork_has_the_title_and_the_id_of_its_options_unless_they_are_invalid() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    original(&manager).await;
    let options = |id: &str| ForkOptions::new(labels("ann")).with_id(self::id(id));
    let fork = manager.fork(&id("a"), node(2), options("b").with_title("Other plans")).await.unwrap();
    assert_eq!(fork, id("b"));
    assert_eq!(store.load(&fork).await.unwrap().state.title.as_deref(), Some("Other plans"));
    let again = manager.fork(&id("a"), node(2), options("b").with_title("Other plans")).await.unwrap();
    assert_eq!(again, fork, "the answer to the first call may have been lost");
    let longer = manager.fork(&id("a"), node(4), options("b").with_title("Other plans")).await;
    assert_eq!(longer.unwrap_err().kind(), ErrorKind::AlreadyExists);
    for (options, kind) in [
        (options("b"), ErrorKind::AlreadyExists),
        (options("a"), ErrorKind::AlreadyExists),
        (options("sub-1"), ErrorKind::SubAgent),
        (options("c").with_title("x".repeat(1025)), ErrorKind::InvalidTitle),
    ] {
        assert_eq!(
            manager.fork(&id("a"), node(2), options.clone()).await.unwrap_err().kind(),
            kind,
            "{options:?}"
        );
    }
    assert_eq!(manager.list(Page::default()).await.unwrap().len(), 2);
    assert_eq!(tree(&*store, &id("a")).await.len(), 8, "the original is not overwritten");
    manager.shutdown(secs(5)).await.unwrap();
    let error = manager.fork(&id("a"), node(2), labels("ann")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn fork_repeated_while_it_is_open_and_continued_succeeds_and_changes_nothing() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    original(&manager).await;
    let options = || ForkOptions::new(labels("ben")).with_id(id("b"));
    manager.fork(&id("a"), node(4), options()).await.unwrap();
    let session = manager.open(&id("b"), alone(counted())).await.unwrap().session;
    session.ask("Next").await.unwrap();
    session.flush(secs(5)).await.unwrap();
    assert_eq!(manager.fork(&id("a"), node(4), options()).await.unwrap(), id("b"));
    assert_eq!(texts(&tree(&*store, &id("b")).await)[3..], ["re: Two", "Next", "re: Next"]);
}

#[tokio::test(start_paused = true)]
async fn fork_is_reported_once_like_a_new_conversation_that_is_closed() {
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    original(&manager).await;
    let mut updates = manager.subscribe();
    let options = || ForkOptions::new(labels("ben")).with_id(id("b"));
    manager.fork(&id("a"), node(4), options()).await.unwrap();
    manager.fork(&id("a"), node(4), options()).await.unwrap();
    manager.rename(&id("b"), Some("Last")).await.unwrap();
    let mut seen = Vec::new();
    loop {
        match in_time(updates.next()).await {
            Some(Update::Event(event)) => match &*event.event {
                ManagerEvent::Opened { session } => {
                    assert_eq!((session.title.as_deref(), &session.labels), (Some("Plans"), &labels("ben")));
                    seen.push(format!("opened {}", session.id));
                }
                ManagerEvent::Closed { id, .. } => seen.push(format!("closed {id}")),
                ManagerEvent::Title { .. } => break,
                _ => {}
            },
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, ["opened b", "closed b"]);
    assert_eq!(manager.list_open().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn fork_after_an_interrupted_tool_can_be_forked_and_continued_at_the_same_place() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let gate = Gate::new();
    let own = gate.clone();
    let work = tool_fn("work", "Works.", move |_: Value, _: ToolContext| {
        let gate = own.clone();
        async move {
            gate.pass().await;
            Ok("done")
        }
    });
    let agent = scripted([Step::tool_use("t", "work", json!({}))]).tool(work);
    let session = create(&manager, "a", agent).await;
    session.prompt("Go").await.unwrap();
    gate.reached().await;
    session.interrupt().await.unwrap();
    session.wait_until_idle().await.unwrap();
    let fork = manager.fork(&id("a"), node(3), labels("ann")).await.unwrap();
    assert!(manager.fork(&fork, node(3), labels("ann")).await.is_ok());
    let session = manager.open(&fork, alone(scripted([Step::text("Ok.")]))).await.unwrap().session;
    assert_eq!(session.run("Go on").below(Some(node(3))).response().await.unwrap().text(), "Ok.");
    assert_eq!(session.tree().await.unwrap().usage(), Usage::default());
}

#[tokio::test(start_paused = true)]
async fn fork_whose_original_is_read_during_a_shutdown_writes_nothing() {
    let store = CommandedStore::default();
    let manager = store.manager().titles(Titles::Off).build();
    original(&manager).await;
    manager.close(&id("a")).await.unwrap();
    let gate = Gate::new();
    store.loads([Act::Wait(gate.clone())]);
    let source = id("a");
    let mut forked = Box::pin(manager.fork(&source, node(2), labels("ann")));
    tokio::select! {
        biased;
        _ = &mut forked => panic!("the original is not read yet"),
        () = gate.reached() => {}
    }
    manager.shutdown(secs(5)).await.unwrap();
    gate.open();
    assert_eq!(forked.await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);
}

// ---- a process that dies between two writes ----

/// A store that fails from a number of writes on, as if its process had died.
struct DyingStore {
    store: Arc<MemoryStore>,
    left: AtomicUsize,
}

#[async_trait]
impl Store for DyingStore {
    forward!(self.store: traits, load, summary, turn, list);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let has_left = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, has_left).is_err() {
            return Err(dead());
        }
        self.store.write(id, write, change).await
    }

    async fn delete(&self, _: &ConversationId, _: Option<&Lease>) -> Result<(), StoreError> {
        Err(dead())
    }
}

fn dead() -> StoreError {
    StoreError::failed("writing", std::io::Error::other("the process is dead"))
}

#[tokio::test(start_paused = true)]
async fn fork_that_broke_off_after_any_write_is_in_no_list_of_a_tenant_and_can_be_completed() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    original(&manager).await;
    manager.close(&id("a")).await.unwrap();
    let mut writes = 0;
    loop {
        let name = id(&format!("fork-{writes}"));
        let options = || ForkOptions::new(labels("ben")).with_id(name.clone());
        let dying = DyingStore { store: Arc::clone(&store), left: AtomicUsize::new(writes) };
        let dying = Manager::builder(dying).build();
        let forked = dying.fork(&id("a"), node(4), options()).await;
        let seen = manager.list(Filter::with(labels("ben"))).await.unwrap();
        let is_seen = seen.iter().any(|listed| listed.summary.id == name);
        assert_eq!(is_seen, forked.is_ok(), "after {writes} writes");
        if forked.is_ok() {
            break;
        }
        assert_eq!(manager.fork(&id("a"), node(4), options()).await.unwrap(), name);
        assert_eq!(texts(&tree(&*store, &name).await).len(), 4);
        assert_eq!(store.load(&name).await.unwrap().state.labels, labels("ben"));
        writes += 1;
    }
    assert!(writes >= 2, "a fork has several writes");
}

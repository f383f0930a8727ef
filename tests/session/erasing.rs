//! Erasing messages.

use omni_agent::{
    ErrorKind,
    message::Role,
    provider::{ProviderError, ProviderErrorKind},
    run::{Accepted, Prompt},
    session::{Mode, Session, SessionEvent},
    store::{
        ConversationId, Listing, MemoryStore, Store, StoreError,
        custom::{Change, TitleBy, Version, Write},
    },
    subscription::Update,
    testing::{Gate, Step},
    tree::Tree,
};

use crate::{
    support::{held, node, scripted},
    watch::{Watched, answered, reached},
};

async fn stored(session: &Session, store: &dyn Store) -> Tree {
    let stored = store.load(session.id()).await.unwrap();
    let tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap();
    stored.next.map_or(Ok(tree.clone()), |next| tree.with_next_id(next)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn erase_removes_the_messages_from_tree_history_and_store() {
    let store = MemoryStore::new();
    let agent = scripted([Step::text("A1"), Step::text("A2"), Step::text("A3")]);
    let mut session = Watched::start(Session::builder(store.clone()).agent(agent)).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    let before = session.session.snapshot().await.unwrap().used;
    answered(session.session.erase(node(3))).await.unwrap();
    session.check().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: A1"]);
    assert_eq!(stored(&session.session, &store).await, session.session.tree().await.unwrap());
    assert_eq!(session.session.state().await.unwrap().history().len(), 2);
    assert_eq!(session.view.used, before, "erasing keeps what was spent");

    session.ask("Q3").await;
    session.check().await;
    let ids: Vec<u64> = session.view.tree.nodes().map(|node| node.id().get()).collect();
    assert_eq!(ids, [1, 2, 5, 6], "erased ids are not used again");
    let opened = Session::builder(store).agent(scripted([])).open(session.session.id().clone());
    drop(session.session.stop(std::time::Duration::from_secs(1)).await);
    assert_eq!(opened.await.unwrap().tree().await.unwrap(), session.view.tree);
}

#[tokio::test(start_paused = true)]
async fn erase_of_an_answer_leaves_a_prompt_that_can_be_regenerated() {
    let store = MemoryStore::new();
    let agent = scripted([Step::text("A1"), Step::text("A2"), Step::text("B2")]);
    let session = Session::builder(store.clone()).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    session.ask("Q2").await.unwrap();
    answered(session.erase(node(4))).await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!((tree.head(), tree.len()), (Some(node(2)), 3), "no path ends with a prompt");
    let refused = session.navigate(Some(node(3))).await;
    let text = "node 3 is a prompt without an answer; regenerate it, or navigate to another node";
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unanswered, text));
    session.again(node(3)).response().await.unwrap();
    let last = session.tree().await.unwrap().history().last().cloned().unwrap();
    assert_eq!((last.role, last.text()), (Role::Assistant, "B2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn erase_while_busy_or_of_an_unknown_node_is_rejected() {
    let gate = Gate::new();
    let agent = scripted([Step::text("A1"), held(&gate, "A2")]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    let unknown = session.erase(node(9)).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::UnknownNode);
    session.prompt("Q2").await.unwrap();
    reached(&gate).await;
    let busy = session.erase(node(1)).await;
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 4);
}

/// A store that does not implement the optional methods of `Store`, such as `erase`.
struct Plain(MemoryStore);

#[async_trait::async_trait]
impl Store for Plain {
    forward!(self.0: load, summary, list, delete);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if let Change::Commit(commit) = change {
            assert_eq!(commit.usage, None, "a store without a ledger gets no rows");
        }
        self.0.write(id, write, change).await
    }
}

#[tokio::test(start_paused = true)]
async fn erase_in_a_store_that_cannot_erase_changes_nothing() {
    let session = Session::builder(Plain(MemoryStore::new()))
        .agent(scripted([Step::text("A1")]))
        .create()
        .await
        .unwrap();
    session.ask("Q1").await.unwrap();
    let refused = session.erase(node(1)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(session.tree().await.unwrap().len(), 2);
    session.flush(std::time::Duration::from_secs(1)).await.unwrap();
    assert_eq!(session.snapshot().await.unwrap().used, session.tree().await.unwrap().usage());
}

#[tokio::test(start_paused = true)]
async fn erase_forgets_the_events_that_are_kept_for_subscribers() {
    let agent = scripted([Step::text("A1"), Step::text("secret"), Step::text("A3")]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let early = session.subscribe(Mode::Observer).await.unwrap();
    let start = early.snapshot().unwrap().last;
    session.ask("Q1").await.unwrap();
    session.ask("Q2").await.unwrap();
    answered(session.erase(node(3))).await.unwrap();
    drop(early);
    // A reader that comes back to an earlier event gets a new snapshot without the erased content.
    let mut late = session.resume_from(start, Mode::Observer).await.unwrap();
    let mut view = match late.next().await {
        Some(Update::Resync(snapshot)) => (*snapshot).clone(),
        other => panic!("{other:?}"),
    };
    assert!(!serde_json::to_string(&view).unwrap().contains("secret"));
    session.ask("Q3").await.unwrap();
    while view.tree.len() < 4 {
        view.take(&late.next().await.unwrap()).unwrap();
    }
    assert_eq!(view.tree, session.tree().await.unwrap());
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn erase_leaves_no_text_in_a_sqlite_file() {
    use omni_agent::store::{SqliteStore, file_system::Durability};

    let folder =
        std::env::temp_dir().join(format!("erase-{}", omni_agent::store::ConversationId::generate()));
    std::fs::create_dir(&folder).unwrap();
    let builder = SqliteStore::builder(folder.join("a.sqlite")).durability(Durability::Process);
    let store = builder.search(true).open().await.unwrap();
    let agent = scripted([Step::text("A1"), Step::text("zzsecret answer"), crate::support::failing()]);
    // The store stays open, because closing it would remove files that this test searches.
    let session = Session::builder(store.clone()).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    session.ask("zzsecret question").await.unwrap();
    assert!(session.again(node(3)).response().await.is_err(), "the end of this run repeats the prompt");
    session.erase(node(3)).await.unwrap();
    session.stop(std::time::Duration::from_secs(5)).await.unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(8).any(|part| part == b"zzsecret"));
    }
    drop(store);
    let _ = std::fs::remove_dir_all(folder);
}

#[tokio::test(start_paused = true)]
async fn erased_event_applies_to_a_snapshot() {
    let agent = scripted([Step::text("A1"), Step::text("A2")]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    session.ask("Q2").await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    let mut view = (**events.snapshot().unwrap()).clone();
    answered(session.erase(node(1))).await.unwrap();
    loop {
        let update = events.next().await.unwrap();
        view.take(&update).unwrap();
        if let Update::Event(event) = &update
            && let SessionEvent::Erased(erased) = &*event.event
        {
            assert_eq!(erased.nodes.len(), 4);
            break;
        }
    }
    assert_eq!(view.tree, session.tree().await.unwrap());
    assert!(view.tree.is_empty());
}

#[tokio::test(start_paused = true)]
async fn erase_removes_the_end_of_a_run_that_was_to_answer_the_message() {
    let gate = Gate::new();
    let agent = scripted([Step::text("A1"), held(&gate, "A2")]);
    let mut session = Watched::start(Session::builder(MemoryStore::new()).agent(agent)).await;
    session.ask("A secret").await;
    session.session.again(node(1)).start().await.unwrap();
    reached(&gate).await;
    session.session.cancel().await.unwrap();
    session.rest().await;
    assert_eq!(session.view.agent.last_run.as_ref().unwrap().unanswered[0].text(), "A secret");
    session.session.erase(node(1)).await.unwrap();
    session.check().await;
    let snapshot = session.session.snapshot().await.unwrap();
    assert_eq!(snapshot.agent.last_run, None);
    assert!(!serde_json::to_string(&snapshot).unwrap().contains("secret"));
}

#[tokio::test(start_paused = true)]
async fn erase_removes_the_texts_of_failures_from_the_states_of_prompts() {
    let failing = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no secret"));
    let agent = scripted([Step::text("A1"), failing]);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    let prompt = || Prompt::new("Q2").with_id("second");
    session.prompt(prompt()).await.unwrap();
    session.wait_until_idle().await.unwrap();
    let state = async || match session.prompt(prompt()).await.unwrap() {
        Accepted::Known { state } => serde_json::to_string(&state).unwrap(),
        other => panic!("{other:?}"),
    };
    assert!(state().await.contains("no secret"));
    answered(session.erase(node(1))).await.unwrap();
    let state = state().await;
    assert!(state.contains("failed") && !state.contains("secret"), "{state}");
}

#[tokio::test(start_paused = true)]
async fn erase_removes_a_derived_title_from_the_session_and_the_store() {
    let store = MemoryStore::new();
    let agent = scripted([Step::text("A1"), Step::text("A2"), Step::text("A3")]);
    let mut session = Watched::start(Session::builder(store.clone()).agent(agent)).await;
    session.ask("Q1").await;
    session.ask("Q2").await;
    assert!(session.session.suggest_title("Quotes Q2", Some(node(4))).await.unwrap());
    answered(session.session.erase(node(3))).await.unwrap();
    session.check().await;
    assert_eq!((session.view.title.clone(), session.session.title().await.unwrap()), (None, None));
    assert_eq!(store.list(&Listing::default()).await.unwrap()[0].title, None);
    assert_eq!(store.load(session.session.id()).await.unwrap().state.title, None);

    let late = session.session.suggest_title("Quotes Q2", Some(node(4))).await.unwrap();
    assert!(!late, "the title was made from an erased message");
    assert!(session.session.suggest_title("Quotes Q1", Some(node(2))).await.unwrap());
    // If a person sets the same title, it is the person's.
    session.session.set_title(Some("Quotes Q1")).await.unwrap();
    answered(session.session.erase(node(1))).await.unwrap();
    session.check().await;
    let state = store.load(session.session.id()).await.unwrap().state;
    assert_eq!((state.title.as_deref(), state.title_by), (Some("Quotes Q1"), TitleBy::Person));
    assert_eq!(session.view.title.as_deref(), Some("Quotes Q1"));
}

#[tokio::test(start_paused = true)]
async fn erase_of_a_loaded_conversation_removes_its_derived_title() {
    let store = MemoryStore::new();
    let session = Session::builder(store.clone()).agent(scripted([Step::text("A1")])).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    session.suggest_title("Quotes Q1", Some(node(2))).await.unwrap();
    session.stop(std::time::Duration::from_secs(1)).await.unwrap();
    let id = session.id().clone();
    let session = Session::builder(store.clone()).agent(scripted([])).open(id.clone()).await.unwrap();
    answered(session.erase(node(1))).await.unwrap();
    assert_eq!(session.title().await.unwrap(), None);
    assert_eq!(store.summary(&id).await.unwrap().title, None);
}

//! How a conversation is created in the store: with its first save, or immediately if the caller provides its id.

use std::sync::Arc;

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentCallbacks, State, StateEdit},
    message::{History, Message},
    session::{Session, SessionBuilder},
    store::{ConversationId, MemoryStore, Store},
    testing::ScriptedProvider,
};

use crate::support::{Act, ScriptedStore, assert_agree, id, parrot, secs};

#[tokio::test(start_paused = true)]
async fn create_generated_id_is_in_the_store_from_the_first_save_on() {
    let store = ScriptedStore::new([]);
    let agent = parrot().system("Be brief.");
    let session = Session::builder(store.as_dyn()).agent(agent).title("Talk").create().await.unwrap();
    assert_eq!(session.id().as_str().len(), 22);
    session.flush(secs(1)).await.unwrap();
    assert!(store.summary(session.id()).await.is_err());

    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["create", "commit"]);
    let state = store.beneath().load(session.id()).await.unwrap().state;
    assert_eq!(state.title.as_deref(), Some("Talk"));
    assert_eq!(state.settings.system.as_deref(), Some("Be brief."));
    assert_eq!(state.model.as_deref(), Some("test:scripted"));
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn create_generated_id_first_change_of_the_state_saves_it() {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["create"]);
    assert_eq!(store.beneath().load(session.id()).await.unwrap().state.title.as_deref(), Some("Talk"));
    session.ask("One").await.unwrap();
    assert_agree(&session, &store).await;
    assert_eq!(store.words(), ["create", "commit"]);
}

#[tokio::test(start_paused = true)]
async fn create_title_changes_while_the_first_save_is_slow_latest_wins() {
    let store = ScriptedStore::new([Act::Slow(secs(1))]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.set_title(Some("First")).await.unwrap();
    store.arrival().await;
    session.set_title(Some("Second")).await.unwrap();
    session.ask("One").await.unwrap();
    session.set_title(None).await.unwrap();
    session.set_title(Some("Third")).await.unwrap();
    assert_agree(&session, &store).await;
    assert_eq!(store.words(), ["create", "commit with state"]);
    assert_eq!(store.beneath().load(session.id()).await.unwrap().state.title.as_deref(), Some("Third"));
}

#[tokio::test(start_paused = true)]
async fn create_with_id_is_in_the_store_before_it_returns() {
    let store = ScriptedStore::new([]);
    let builder = Session::builder(store.as_dyn()).agent(parrot().system("Be brief.")).title("Talk");
    let session = builder.create_with_id(id("talk")).await.unwrap();
    assert_eq!(store.words(), ["create"]);
    let stored = store.beneath().load(&id("talk")).await.unwrap();
    assert_eq!(stored.state.title.as_deref(), Some("Talk"));
    assert_eq!(stored.nodes, []);
    session.flush(secs(1)).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["create"]);
}

/// Callbacks that report each call of `init`.
struct ReportsInit(tokio::sync::mpsc::UnboundedSender<ConversationId>);

#[async_trait::async_trait]
impl AgentCallbacks for ReportsInit {
    async fn init(
        &mut self,
        _: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.send(state.extensions().get::<ConversationId>().unwrap().clone())?;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn create_with_id_taken_is_refused_before_init_and_changes_nothing() {
    let store = ScriptedStore::new([]);
    let first = Session::builder(store.as_dyn()).agent(parrot()).create_with_id(id("talk")).await.unwrap();
    first.ask("One").await.unwrap();
    first.flush(secs(1)).await.unwrap();
    let (sender, mut inits) = tokio::sync::mpsc::unbounded_channel();
    let agent = parrot().callbacks(ReportsInit(sender));
    let taken = Session::builder(store.as_dyn()).agent(agent).create_with_id(id("talk")).await;
    let error = taken.unwrap_err();
    assert_eq!(
        (error.kind(), error.member("conversation")),
        (ErrorKind::AlreadyExists, Some(&"talk".into()))
    );
    assert_eq!(inits.recv().await, None);
    assert_agree(&first, &store).await;
}

#[tokio::test(start_paused = true)]
async fn create_with_id_twice_at_once_one_succeeds() {
    for _ in 0..20 {
        let store = ScriptedStore::new([Act::Slow(secs(1)), Act::Slow(secs(1))]);
        let create = || Session::builder(store.as_dyn()).agent(parrot()).create_with_id(id("talk"));
        let (one, other) = tokio::join!(create(), create());
        assert_eq!(store.tried().len(), 2);
        let (won, lost) = match (one, other) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            both => panic!("{both:?}"),
        };
        assert_eq!(lost.kind(), ErrorKind::AlreadyExists, "{lost:?}");
        won.ask("One").await.unwrap();
        assert_agree(&won, &store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn create_with_id_store_fails_returns_its_error_and_the_agent_ends() {
    let store = ScriptedStore::new([Act::Fail]);
    let (sender, mut inits) = tokio::sync::mpsc::unbounded_channel();
    let failed = Session::builder(store.as_dyn())
        .agent(parrot().callbacks(ReportsInit(sender)))
        .create_with_id(id("talk"));
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::StoreFailed);
    assert_eq!(inits.recv().await, Some(id("talk")));
    // The callbacks were dropped together with the agent.
    assert_eq!(inits.recv().await, None);
    assert!(store.summary(&id("talk")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn create_with_an_initial_history_is_an_error() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut history = History::new();
    history.push(Message::user("Hi"));
    history.push(Message::assistant("Hello"));
    let builder = || Session::builder(Arc::clone(&store)).agent(parrot().history(history.clone()));
    let error = builder().create().await.unwrap_err();
    assert!(error.to_string().starts_with("a session can't start with a given history"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = builder().create_with_id(id("talk")).await.unwrap_err();
    assert!(error.to_string().starts_with("a session can't start with a given history"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(store.summary(&id("talk")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn open_with_a_history_is_an_error() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let kept = Session::builder(Arc::clone(&store)).agent(parrot()).create_with_id(id("talk")).await.unwrap();
    kept.stop(secs(1)).await.unwrap();
    let history = History::from_iter([Message::user("Hi"), Message::assistant("Hello")]);
    let load = Session::builder(Arc::clone(&store)).agent(parrot().history(history)).open(id("talk"));
    let error = load.await.unwrap_err();
    assert!(error.to_string().starts_with("a session can't start with a given history"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    Session::builder(store).agent(parrot()).open(id("talk")).await.unwrap();
}

/// Callbacks whose `init` sets a history.
struct Historian;

#[async_trait::async_trait]
impl AgentCallbacks for Historian {
    async fn init(
        &mut self,
        draft: &mut StateEdit,
        _: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        draft.history.push(Message::user("Hi"));
        draft.history.push(Message::assistant("Hello"));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn create_init_sets_the_history_is_refused() {
    let store = ScriptedStore::new([]);
    let agent = Agent::builder().model(ScriptedProvider::new([]).model()).callbacks(Historian);
    let refused = Session::builder(store.as_dyn()).agent(agent).create_with_id(id("talk")).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("the history belongs to the agent's session"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(store.summary(&id("talk")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn open_or_create_creates_an_unknown_id_and_opens_a_known_one() {
    let store = Arc::new(MemoryStore::new());
    let builder = || Session::builder(Arc::clone(&store)).agent(parrot());
    let created = builder().title("Talk").open_or_create(id("c")).await.unwrap();
    created.ask("One").await.unwrap();
    let tree = created.tree().await.unwrap();
    created.stop(secs(1)).await.unwrap();
    let opened = builder().title("Another").open_or_create(id("c")).await.unwrap();
    assert_eq!(opened.tree().await.unwrap(), tree);
    assert_eq!(opened.title().await.unwrap().as_deref(), Some("Talk"));
}

#[tokio::test(start_paused = true)]
async fn open_or_create_twice_at_once_one_succeeds() {
    // First, both sessions find that the conversation does not exist. Then both try to create it.
    let store = ScriptedStore::new([Act::Slow(secs(1)), Act::Slow(secs(1))]);
    let start = || Session::builder(store.as_dyn()).agent(parrot()).open_or_create(id("c"));
    let (one, other) = tokio::join!(start(), start());
    let errors: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
    let kinds: Vec<_> = errors.iter().map(Error::kind).collect();
    assert_eq!(kinds, [ErrorKind::AlreadyExists]);
    assert!(start().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn builder_accepts_a_store_and_a_shared_store() {
    let shared = Arc::new(MemoryStore::new());
    let any: Arc<dyn Store> = Arc::clone(&shared) as Arc<dyn Store>;
    let start = |builder: SessionBuilder| builder.agent(parrot()).open_or_create(id("c"));
    let last = start(Session::builder(shared)).await.unwrap();
    last.ask("One").await.unwrap();
    last.stop(secs(1)).await.unwrap();
    assert_eq!(start(Session::builder(any)).await.unwrap().tree().await.unwrap().len(), 2);
    assert!(start(Session::builder(MemoryStore::new())).await.unwrap().tree().await.unwrap().is_empty());
}

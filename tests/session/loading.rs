//! Opening a conversation: which parts come from the store, and which parts the caller provides.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentBuilder, Config},
    message::{Content, Message, ToolUse},
    provider::{Model, Options, Registry},
    session::{Session, SessionEvent},
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, Commit, Stored, StoredState, Write},
    },
    testing::{ScriptedProvider, Step},
    tool::tool_fn,
    tree::{Node, TreeError},
};
use serde_json::{Value, json};

use crate::support::{ScriptedStore, assert_agree, configure, created, event, id, node, parrot, secs, watch};

fn model(provider: &str) -> Model {
    ScriptedProvider::new([]).named(provider.to_owned()).model()
}

fn registry() -> Registry {
    Registry::empty().with(ScriptedProvider::new([]).named("known"))
}

/// Returns a store that contains a conversation with this state.
async fn stored(state: StoredState) -> ScriptedStore {
    let store = ScriptedStore::new([]);
    let beneath = store.beneath();
    let version = beneath.write(&id("talk"), &Write::first(), &Change::create(state.clone())).await.unwrap();
    let commit = Commit::new(Some(node(2))).with_nodes([
        Node::new(node(1), None, Message::user("Hi")),
        Node::new(node(2), Some(node(1)), Message::assistant("Hello")),
    ]);
    beneath.write(&id("talk"), &Write::on(version), &Change::Commit(commit)).await.unwrap();
    store
}

async fn load(store: &ScriptedStore, agent: AgentBuilder) -> Result<Session, Error> {
    Session::builder(store.as_dyn()).agent(agent.registry(registry())).open(id("talk")).await
}

async fn config(session: &Session) -> Config {
    session.state().await.unwrap().config().clone()
}

#[tokio::test(start_paused = true)]
async fn open_persisted_model_known_wins() {
    let store = stored(StoredState::default().with_model("known:saved")).await;
    for agent in [Agent::builder(), Agent::builder().model(model("given"))] {
        let session = load(&store, agent).await.unwrap();
        assert_eq!(config(&session).await.model.name(), "known:saved");
    }
}

#[tokio::test(start_paused = true)]
async fn open_persisted_model_unknown_fallback_answers_and_the_saved_name_stays_stored() {
    let store = stored(StoredState::default().with_model("gone:saved")).await;
    let given = ScriptedProvider::new([Step::text("Well.")]).named("given").model();
    let session = load(&store, Agent::builder().model(given)).await.unwrap();
    assert_eq!(config(&session).await.model.name(), "given:scripted");
    session.ask("How are you?").await.unwrap();
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit", "state"]);
    let state = store.beneath().load(&id("talk")).await.unwrap().state;
    assert_eq!(
        (state.model.as_deref(), state.settings.system.as_deref()),
        (Some("gone:saved"), Some("Be brief."))
    );
    session.stop(secs(1)).await.unwrap();

    // If the name of the saved model can be resolved later, the saved model is used again.
    let back = Registry::empty().with(ScriptedProvider::new([]).named("gone"));
    let builder = Session::builder(store.as_dyn()).agent(Agent::builder().registry(back));
    assert_eq!(config(&builder.open(id("talk")).await.unwrap()).await.model.name(), "gone:saved");
}

#[tokio::test(start_paused = true)]
async fn open_persisted_model_unknown_fallback_is_an_event_for_the_first_subscriber_and_in_each_snapshot() {
    let store = stored(StoredState::default().with_model("gone:saved")).await;
    let session = load(&store, Agent::builder().model(model("given"))).await.unwrap();
    let mut first = watch(&session).await;
    let mut second = watch(&session).await;
    session.set_title(Some("Talk")).await.unwrap();
    let fallback_event = event(&mut first).await;
    let SessionEvent::ModelFallback { saved, fallback } = &*fallback_event else {
        panic!("{fallback_event:?}")
    };
    assert_eq!((&**saved, &**fallback), ("gone:saved", "given:scripted"));
    for events in [&mut first, &mut second] {
        let next = event(events).await;
        assert!(matches!(&*next, SessionEvent::Title { .. }), "{next:?}");
        let fallback_for = &events.snapshot().unwrap().agent.state.fallback_for;
        assert_eq!(fallback_for.as_deref(), Some("gone:saved"));
    }
}

#[tokio::test(start_paused = true)]
async fn open_persisted_model_unknown_chosen_model_is_stored_even_if_it_is_the_fallback() {
    let store = stored(StoredState::default().with_model("gone:saved")).await;
    let given = model("given");
    let session = load(&store, Agent::builder().model(given.clone())).await.unwrap();
    configure(&session, |config| config.model = given).await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["state"]);
    let state = store.beneath().load(&id("talk")).await.unwrap().state;
    assert_eq!(state.model.as_deref(), Some("given:scripted"));
    assert_eq!(session.snapshot().await.unwrap().agent.state.fallback_for, None);
}

#[tokio::test(start_paused = true)]
async fn open_without_any_model_is_an_error() {
    let store = stored(StoredState::default().with_model("gone:saved")).await;
    let refused = load(&store, Agent::builder()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::UnknownModel);
    let store = stored(StoredState::default()).await;
    let refused = load(&store, Agent::builder()).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("no model is set"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    load(&store, Agent::builder().model("known:given")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn open_given_system_and_options_replace_the_persisted_values() {
    let options = Options::default().with_temperature(0.1).with_max_tokens(100);
    let state = StoredState::default().with_model("known:saved").with_system("Saved.").with_options(options);
    let store = stored(state.clone()).await;

    let kept = config(&load(&store, Agent::builder()).await.unwrap()).await;
    assert_eq!(
        (kept.settings.system.as_deref(), &kept.settings.options),
        (Some("Saved."), &state.settings.options)
    );

    let given = Options::default().with_temperature(0.9);
    let system = config(&load(&store, Agent::builder().system("Given.")).await.unwrap()).await;
    assert_eq!(
        (system.settings.system.as_deref(), &system.settings.options),
        (Some("Given."), &state.settings.options)
    );
    let replaced = config(&load(&store, Agent::builder().options(given.clone())).await.unwrap()).await;
    assert_eq!((replaced.settings.system.as_deref(), &replaced.settings.options), (Some("Saved."), &given));
}

#[tokio::test(start_paused = true)]
async fn open_options_with_secrets_do_not_change_which_options_win() {
    let saved = Options::default().with_temperature(0.1).with_max_tokens(100);
    let store = stored(StoredState::default().with_model("known:saved").with_options(saved.clone())).await;
    let secret = |options: Options| options.with_api_key("hush").with_header("X-Tenant", "acme");
    for given in [Options::default(), Options::default().with_temperature(0.9)] {
        let wins = if given.is_empty() { &saved } else { &given };
        let plain = load(&store, Agent::builder().options(given.clone())).await.unwrap();
        assert_eq!(config(&plain).await.settings.options, *wins);
        let session = load(&store, Agent::builder().options(secret(given.clone()))).await.unwrap();
        assert_eq!(config(&session).await.settings.options, secret(wins.clone()));
    }
}

#[tokio::test(start_paused = true)]
async fn open_with_a_key_next_commit_keeps_the_saved_options() {
    let saved = Options::default().with_temperature(0.1).with_max_tokens(100);
    let provider = ScriptedProvider::new([Step::text("Well.")]).named("known");
    let state = StoredState::default().with_model(provider.model().name()).with_options(saved.clone());
    let store = stored(state.clone()).await;
    let agent = Agent::builder().model(provider.model()).options(Options::default().with_api_key("hush"));
    let session = load(&store, agent).await.unwrap();
    session.ask("How are you?").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(provider.requests()[0].options, saved.with_api_key("hush"));
    assert_eq!(store.words(), ["commit"]);
    assert_eq!(store.beneath().load(&id("talk")).await.unwrap().state, state);
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn open_saved_limits_apply_unless_given() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot().max_steps(3)).await;
    configure(&session, |config| config.settings.turn_timeout = Some(secs(9))).await;
    session.stop(secs(1)).await.unwrap();
    let loaded = |agent: AgentBuilder| {
        let builder = Session::builder(store.as_dyn()).agent(agent);
        async move { config(&builder.open(id("talk")).await.unwrap()).await }
    };
    let kept = loaded(parrot()).await;
    assert_eq!((kept.settings.max_steps, kept.settings.turn_timeout), (Some(3), Some(secs(9))));
    let given = loaded(parrot().max_steps(5)).await;
    assert_eq!((given.settings.max_steps, given.settings.turn_timeout), (Some(5), Some(secs(9))));
}

#[tokio::test(start_paused = true)]
async fn open_title_and_history_come_only_from_the_store() {
    let store = stored(StoredState::default().with_title("Saved")).await;
    let builder = Session::builder(store.as_dyn()).agent(parrot()).title("Given");
    let session = builder.open(id("talk")).await.unwrap();
    assert_eq!(session.title().await.unwrap().as_deref(), Some("Saved"));
    let texts: Vec<_> = session.state().await.unwrap().history().iter().map(|said| said.text()).collect();
    assert_eq!(texts, ["Hi", "Hello"]);
    assert_agree(&session, &store).await;
    assert_eq!(store.words(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn open_tools_and_keys_come_only_from_the_builder() {
    let store = stored(StoredState::default()).await;
    let echo = tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) });
    let first =
        load(&store, parrot().tool(echo).options(Options::default().with_api_key("hush"))).await.unwrap();
    first.ask("One").await.unwrap();
    first.stop(secs(1)).await.unwrap();
    let again = config(&load(&store, parrot()).await.unwrap()).await;
    assert!(again.tools.is_empty());
    assert_eq!(again.settings.options.api_key(), None);
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn open_continues_at_the_last_head_with_all_branches() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.again(node(1)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.run("Other").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(2)).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    let left = session.end().unwrap().snapshot.unwrap();

    let again = Session::builder(store.as_dyn()).agent(parrot()).open(id("talk")).await.unwrap();
    assert_eq!(again.tree().await.unwrap(), left.tree);
    assert_eq!(left.tree.head(), Some(node(4)));
    assert_eq!(again.snapshot().await.unwrap().agent.state.history, *left.tree.history());
    again.ask("Three").await.unwrap();
    assert_eq!(again.tree().await.unwrap().node(node(8)).unwrap().parent(), Some(node(4)));
    assert_agree(&again, &store).await;
}

#[tokio::test(start_paused = true)]
async fn open_missing_conversation_is_not_found() {
    let store = ScriptedStore::new([]);
    let missing = load(&store, parrot()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.summary(&id("talk")).await.is_err());
}

/// Writes this commit to an empty conversation, and then opens the conversation.
async fn load_of(commit: Commit) -> Result<Session, Error> {
    let store = ScriptedStore::new([]);
    let beneath = store.beneath();
    let version =
        beneath.write(&id("talk"), &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    beneath.write(&id("talk"), &Write::on(version), &Change::Commit(commit.clone())).await.unwrap();
    load(&store, parrot()).await
}

#[tokio::test(start_paused = true)]
async fn open_invalid_tree_is_an_error() {
    let says = |number, parent| Node::new(node(number), Some(node(parent)), Message::user("Hi"));
    let cause = |error: &Error| error.cause().unwrap().downcast_ref::<TreeError>().unwrap().clone();
    let error = load_of(Commit::new(None).with_nodes([says(2, 1)])).await.unwrap_err();
    assert_eq!(cause(&error), TreeError::UnknownParent { id: node(2), parent: node(1) });
    let error = load_of(Commit::new(Some(node(7)))).await.unwrap_err();
    assert_eq!((error.kind(), cause(&error)), (ErrorKind::Damaged, TreeError::UnknownHead { id: node(7) }));
}

#[tokio::test(start_paused = true)]
async fn open_invalid_path_is_an_error() {
    let look = ToolUse::new("t1", "look", json!({}));
    let nodes = [
        Node::new(node(1), None, Message::user("Look")),
        Node::new(node(2), Some(node(1)), Message::assistant([Content::ToolUse(look)])),
        Node::new(node(3), Some(node(2)), Message::assistant("It was never looked up.")),
    ];
    let refused = load_of(Commit::new(Some(node(3))).with_nodes(nodes.clone())).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("the history is invalid"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);

    // If the path does not lead through the invalid branch, only that branch is unusable.
    let session = load_of(Commit::new(None).with_nodes(nodes)).await.unwrap();
    let refused = session.navigate(node(3)).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("the history is invalid"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let refused = session.run("Well?").below(Some(node(3))).start().await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("the history is invalid"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!((snapshot.tree.head(), snapshot.agent.state.history.len()), (None, 0));
    session.again(node(1)).start().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn open_with_open_tool_uses_at_the_head_can_be_answered() {
    let look = ToolUse::new("t1", "look", json!({}));
    let nodes = [
        Node::new(node(1), None, Message::user("Look")),
        Node::new(node(2), Some(node(1)), Message::assistant([Content::ToolUse(look)])),
    ];
    let session = load_of(Commit::new(Some(node(2))).with_nodes(nodes)).await.unwrap();
    session.ask("Never mind").await.unwrap();
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(*snapshot.tree.history(), snapshot.agent.state.history);
    session.flush(secs(1)).await.unwrap();
}

/// A store that reports its only conversation as damaged.
struct Damaged(MemoryStore);

#[async_trait]
impl Store for Damaged {
    forward!(self.0: write, summary, list, delete);

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        Err(StoreError::damaged(format!("conversation {id}, line 3"), "no JSON"))
    }
}

#[tokio::test(start_paused = true)]
async fn open_damaged_conversation_names_the_line_and_its_id_stays_taken() {
    let store: Arc<dyn Store> = Arc::new(Damaged(MemoryStore::new()));
    let builder = || Session::builder(Arc::clone(&store)).agent(parrot());
    builder().create_with_id(id("talk")).await.unwrap();
    let refused = builder().open(id("talk")).await.unwrap_err();
    assert_eq!(refused.to_string(), "conversation talk, line 3 is damaged: no JSON");
    let taken = builder().create_with_id(id("talk")).await;
    assert_eq!(taken.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

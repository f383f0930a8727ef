//! The part of a session's state that is saved. It contains only values that can be stored, and it is saved only if it
//! has changed.

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{AgentCallbacks, State, TurnDecision},
    provider::{Options, Registry, Request},
    run::{Prompt, Response},
    session::{Session, SessionEvent},
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
};
use serde_json::Value;

use crate::support::{
    Act, ScriptedStore, assert_agree, configure, created, event, held, id, node, parrot, scripted, secs,
    watch,
};

#[tokio::test(start_paused = true)]
async fn state_changed_in_parts_that_are_not_saved_nothing_is_written() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    let echo = || tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) });
    session.add_tool(echo()).await.unwrap();
    session.remove_tool("echo").await.unwrap();
    session.remove_tool("none").await.unwrap();
    configure(&session, |config| config.settings.options.set_api_key(Some("hush".into()))).await;
    session.configure(|_| Ok(())).await.unwrap();
    configure(&session, |config| config.settings.system = config.settings.system.clone()).await;
    session.configure(|_| Err("no".into())).await.unwrap_err();
    session.set_title(None).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn state_changed_in_saved_parts_each_change_is_written() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    session.flush(secs(1)).await.unwrap();
    configure(&session, |config| config.settings.options.set_temperature(Some(0.5))).await;
    session.flush(secs(1)).await.unwrap();
    let model = ScriptedProvider::new([]).named("other").model();
    configure(&session, move |config| config.model = model).await;
    session.flush(secs(1)).await.unwrap();
    configure(&session, |config| config.settings.max_steps = Some(3)).await;
    session.flush(secs(1)).await.unwrap();
    configure(&session, |config| config.settings.turn_timeout = Some(secs(9))).await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["state"; 5]);
    let state = store.beneath().load(&id("talk")).await.unwrap().state;
    assert_eq!(state.settings.system.as_deref(), Some("Be brief."));
    assert_eq!(state.settings.options, Options::default().with_temperature(0.5));
    assert_eq!(state.model.as_deref(), Some("other:scripted"));
    assert_eq!((state.settings.max_steps, state.settings.turn_timeout), (Some(3), Some(secs(9))));
}

#[tokio::test(start_paused = true)]
async fn configure_model_by_name_is_resolved_and_stored() {
    let store = ScriptedStore::new([]);
    let registry = Registry::empty().with(ScriptedProvider::new([]).named("other"));
    let session = created(&store, "talk", parrot().registry(registry)).await;
    let unknown = session.configure(|config| Ok(config.set_model("nobody:small")?)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownModel, "{unknown:?}");
    session.configure(|config| Ok(config.set_model("other:small")?)).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["state"]);
    let state = store.beneath().load(&id("talk")).await.unwrap().state;
    assert_eq!(state.model.as_deref(), Some("other:small"));
}

#[tokio::test(start_paused = true)]
async fn title_set_is_written_separately_and_emitted_once() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = watch(&session).await;
    session.set_title(Some("Talk")).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.set_title(None).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["title", "title"]);
    assert_eq!(store.beneath().load(&id("talk")).await.unwrap().state.title, None);
    let mut titles = Vec::new();
    for _ in 0..4 {
        if let SessionEvent::Title { title } = &*event(&mut events).await {
            titles.push(title.as_deref().map(str::to_owned));
        }
    }
    assert_eq!(titles, [Some("Talk".to_owned()), None]);
}

#[tokio::test(start_paused = true)]
async fn state_changed_and_back_while_the_store_is_slow_is_not_written_twice() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    gate.reached().await;
    session.set_title(Some("Talk")).await.unwrap();
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    configure(&session, |config| config.settings.system = None).await;
    session.set_title(None).await.unwrap();
    session.navigate(None).await.unwrap();
    session.navigate(node(1)).await.unwrap();
    gate.open();
    assert_agree(&session, &store).await;
    assert_eq!(store.words(), ["commit"]);
}

#[tokio::test(start_paused = true)]
async fn state_changed_while_its_write_fails_both_are_written_in_order() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.set_title(Some("First")).await.unwrap();
    store.arrival().await;
    session.set_title(Some("Second")).await.unwrap();
    session.set_title(Some("Third")).await.unwrap();
    session.set_title(None).await.unwrap();
    session.flush(secs(1)).await.unwrap_err();
    store.otherwise(|| Act::Work);
    session.flush(secs(1)).await.unwrap();
    let state = store.beneath().load(&id("talk")).await.unwrap().state;
    assert_eq!(state.title, None);
    let tried = store.tried();
    let last = tried.last().unwrap();
    assert!(tried.len() > 3);
    assert!(tried[..tried.len() - 1].iter().all(|tried| tried.what == store.tried()[0].what));
    assert_ne!(last.what.0.id, tried[0].what.0.id);
    assert_agree(&session, &store).await;
}

/// Callbacks that write the number of the current step into the system prompt.
struct Counting(u32);

#[async_trait]
impl AgentCallbacks for Counting {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        self.0 += 1;
        state.config_mut().settings.system = Some(format!("Step {}.", self.0).into());
    }

    async fn handle_turn(&mut self, _: &Response, state: &mut State) -> TurnDecision {
        state.config_mut().settings.options.set_max_tokens(Some(self.0));
        TurnDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn state_edited_by_a_callback_is_saved_with_the_commit() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let steps = [Step::text("Yes."), held(&gate, "No."), held(&gate, "Never."), Step::text("Well.")];
    let session = created(&store, "talk", scripted(steps).callbacks(Counting(0))).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit with state"]);
    let state = store.tried()[0].state().unwrap().clone();
    assert_eq!(
        (state.settings.system.as_deref(), state.settings.options.max_tokens()),
        (Some("Step 1."), Some(1))
    );

    // If the configuration is changed during a cancelled run, the change is saved with the next commit.
    session.prompt("Two").await.unwrap();
    gate.reached().await;
    session.cancel().await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit with state", "commit"]);
    session.prompt("Two").await.unwrap();
    gate.reached().await;
    session.interrupt().await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit with state", "commit", "commit"]);
    session.ask("Three").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit with state", "commit", "commit", "commit with state"]);
    assert_eq!(store.tried()[3].state().unwrap().settings.system.as_deref(), Some("Step 4."));
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn options_of_one_prompt_are_not_saved() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask(Prompt::new("One").with_options(Options::default().with_temperature(1.0))).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.words(), ["commit"]);
    assert_eq!(store.beneath().load(&id("talk")).await.unwrap().state.settings.options, Options::default());
}

#[tokio::test(start_paused = true)]
async fn secrets_never_reach_the_store() {
    let store = ScriptedStore::new([]);
    let secret =
        || Options::default().with_api_key("hush").with_header("x-hush", "hush").with_temperature(0.1);
    let given =
        Session::builder(store.as_dyn()).agent(parrot().options(secret())).create_with_id(id("given"));
    let generated = Session::builder(store.as_dyn()).agent(parrot().options(secret())).create();
    for session in [given.await.unwrap(), generated.await.unwrap()] {
        session.ask("One").await.unwrap();
        session.set_title(Some("Talk")).await.unwrap();
        configure(&session, |config| config.settings.options.set_temperature(Some(0.7))).await;
        session.ask("Two").await.unwrap();
        assert_agree(&session, &store).await;
        assert_eq!(session.state().await.unwrap().config().settings.options.api_key(), Some(&"hush".into()));
        let stored = store.beneath().load(session.id()).await.unwrap();
        assert_eq!(stored.state.settings.options, Options::default().with_temperature(0.7));
    }
    assert!(store.tried().len() >= 5);
    store.assert_sound();
    // A temporary key does not change the stored options.
    let session = Session::builder(store.as_dyn()).agent(parrot()).open(id("given")).await.unwrap();
    let before = store.tried().len();
    configure(&session, |config| config.settings.options.set_api_key(Some("hush".into()))).await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tried().len(), before);
}

//! Restoring a configuration that was saved earlier.

use std::time::Duration;

use crate::{
    agent::{Agent, AgentBuilder, Config, StateEdit},
    message::{History, Message},
    provider::{Model, Options, Registry, RegistryError},
    run::ErrorKind,
    store::StoredState,
    testing::ScriptedProvider,
};

fn registry() -> Registry {
    Registry::empty().with(ScriptedProvider::new([]).named("known"))
}

fn given() -> Model {
    ScriptedProvider::new([]).named("given").model()
}

fn cool() -> Options {
    Options::default().with_temperature(0.2)
}

fn saved(name: Option<&str>) -> StoredState {
    StoredState { model: name.map(str::to_owned), ..StoredState::default() }
}

fn cool_saved() -> StoredState {
    StoredState::default().with_system("saved").with_options(cool())
}

async fn config(builder: AgentBuilder) -> Config {
    builder.registry(registry()).start().await.unwrap().state().await.unwrap().config().clone()
}

#[tokio::test]
async fn restore_saved_model_known_wins() {
    for builder in [Agent::builder(), Agent::builder().model(given()), Agent::builder().model("known:other")]
    {
        let config = config(builder.restore(saved(Some("known:saved")))).await;
        assert_eq!(config.model.name(), "known:saved");
    }
}

#[tokio::test]
async fn restore_before_the_model_is_given_saved_model_wins_too() {
    let builder = Agent::builder().restore(saved(Some("known:saved"))).model(given());
    assert_eq!(config(builder).await.model.name(), "known:saved");
}

#[tokio::test]
async fn restore_saved_model_unknown_or_missing_given_model_stays() {
    for name in [None, Some("gone:saved"), Some("no name")] {
        let builder = Agent::builder().model(given()).restore(saved(name));
        assert_eq!(config(builder).await.model.name(), "given:scripted", "{name:?}");
        let builder = Agent::builder().model("known:given").restore(saved(name));
        assert_eq!(config(builder).await.model.name(), "known:given", "{name:?}");
    }
}

#[tokio::test]
async fn restore_given_model_of_the_saved_name_stays_with_its_provider() {
    let given = ScriptedProvider::new([]).named("known").model();
    let builder = Agent::builder().model(given.clone());
    let config = config(builder.restore(saved(Some(given.name())))).await;
    assert!(std::sync::Arc::ptr_eq(config.model.provider(), given.provider()));
}

#[tokio::test]
async fn restore_no_model_at_all_start_fails() {
    let start = |name: Option<&str>| Agent::builder().registry(registry()).restore(saved(name)).start();
    let unknown = start(Some("gone:saved")).await.unwrap_err();
    let cause = unknown.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(RegistryError::UnknownProvider { .. })), "{unknown:?}");
    assert_eq!(unknown.kind(), ErrorKind::UnknownModel);
    let error = start(None).await.unwrap_err();
    assert!(error.to_string().starts_with("no model is set"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn restore_system_and_options_apply_if_none_are_given() {
    let builder = || Agent::builder().model(given());
    let restored = config(builder().restore(cool_saved())).await;
    assert_eq!((restored.settings.system.as_deref(), restored.settings.options), (Some("saved"), cool()));

    let hot = Options::default().with_temperature(0.9).with_api_key("key");
    let own = config(builder().options(hot.clone()).restore(cool_saved())).await;
    assert_eq!((own.settings.system.as_deref(), own.settings.options), (Some("saved"), hot));

    let key = Options::default().with_api_key("key");
    let both = config(builder().options(key).restore(cool_saved())).await;
    assert_eq!(both.settings.options, cool().with_api_key("key"));

    let own = config(builder().restore(cool_saved()).system("given")).await;
    assert_eq!((own.settings.system.as_deref(), own.settings.options), (Some("given"), cool()));

    let none = config(builder().system("given").restore(StoredState::default())).await;
    assert_eq!((none.settings.system.as_deref(), none.settings.options), (Some("given"), Options::default()));
}

#[tokio::test]
async fn restore_saved_configuration_equals_the_original_without_secrets() {
    let secret = cool().with_api_key("key").with_header("X-Tenant", "acme");
    let builder = Agent::builder().model(given()).system("given").options(secret);
    let first = config(builder.max_steps(3).turn_timeout(Duration::from_secs(9))).await;
    let kept = StoredState::from(&first);
    assert_eq!(kept.settings.options, cool());
    let json = serde_json::to_string(&kept).unwrap();
    assert_eq!(serde_json::from_str::<StoredState>(&json).unwrap(), kept);
    let second = config(Agent::builder().model(first.model.clone()).restore(kept.clone())).await;
    assert_eq!(StoredState::from(&second), kept);
    assert_eq!(
        (second.settings.max_steps, second.settings.turn_timeout),
        (Some(3), Some(Duration::from_secs(9)))
    );
}

#[tokio::test]
async fn restore_saved_model_unknown_its_name_stays_saved_until_another_is_chosen() {
    let first = config(Agent::builder().model("known:given").restore(saved(Some("gone:saved")))).await;
    assert_eq!(first.model.fallback_for(), Some("gone:saved"));
    assert_eq!(StoredState::from(&first).model.as_deref(), Some("gone:saved"));

    let agent = Agent::builder().model("known:given").registry(registry()).restore(StoredState::from(&first));
    let agent = agent.start().await.unwrap();
    let state = agent.snapshot().await.unwrap().state;
    assert_eq!((state.model.as_str(), state.fallback_for.as_deref()), ("known:given", Some("gone:saved")));
    let again = registry().model("known:given").unwrap();
    let choose = move |draft: &mut StateEdit| {
        draft.config.model = again;
        Ok(())
    };
    agent.set_state(choose).await.unwrap();
    let chosen = StoredState::from(agent.state().await.unwrap().config());
    assert_eq!(chosen.model.as_deref(), Some("known:given"));
    assert_eq!(agent.snapshot().await.unwrap().state.fallback_for, None);
}

#[test]
fn given_history_is_the_history_passed_to_the_builder() {
    assert!(Agent::builder().given_history().is_empty());
    let history = History::from_iter([Message::user("Hi"), Message::assistant("Hello")]);
    let builder = Agent::builder().history(history.clone());
    assert!(builder.given_history().same(&history));
}

//! Taking up a configuration that was saved earlier.

use omni_agent::{
    agent::{Agent, AgentBuilder, AgentError, Config},
    message::{History, Message},
    provider::{Model, Options, Registry, RegistryError},
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

async fn config(builder: AgentBuilder) -> Config {
    builder.registry(registry()).start().await.unwrap().state().await.unwrap().config().clone()
}

#[tokio::test]
async fn restore_saved_model_known_wins() {
    for builder in [Agent::builder(), Agent::builder().model(given()), Agent::builder().model("known:other")]
    {
        let config = config(builder.restore(Some("known:saved"), None, Options::default())).await;
        assert_eq!(config.model.name(), "known:saved");
    }
}

#[tokio::test]
async fn restore_before_the_model_is_given_saved_model_wins_too() {
    let builder = Agent::builder().restore(Some("known:saved"), None, Options::default()).model(given());
    assert_eq!(config(builder).await.model.name(), "known:saved");
}

#[tokio::test]
async fn restore_saved_model_unknown_or_none_given_one_stays() {
    for saved in [None, Some("gone:saved"), Some("no name")] {
        let builder = Agent::builder().model(given()).restore(saved, None, Options::default());
        assert_eq!(config(builder).await.model.name(), "given:scripted", "{saved:?}");
        let builder = Agent::builder().model("known:given").restore(saved, None, Options::default());
        assert_eq!(config(builder).await.model.name(), "known:given", "{saved:?}");
    }
}

#[tokio::test]
async fn restore_given_model_of_the_saved_name_stays_with_its_provider() {
    let given = ScriptedProvider::new([]).named("known").model();
    let builder = Agent::builder().model(given.clone());
    let config = config(builder.restore(Some(given.name()), None, Options::default())).await;
    assert!(std::sync::Arc::ptr_eq(config.model.provider(), given.provider()));
}

#[tokio::test]
async fn restore_no_model_at_all_start_fails() {
    let start = |saved: Option<&str>| {
        Agent::builder().registry(registry()).restore(saved, None, Options::default()).start()
    };
    let unknown = start(Some("gone:saved")).await;
    assert!(matches!(unknown, Err(AgentError::Model(RegistryError::UnknownProvider { .. }))), "{unknown:?}");
    assert!(matches!(start(None).await, Err(AgentError::NoModel)));
}

#[tokio::test]
async fn restore_system_and_options_apply_where_none_are_given() {
    let builder = || Agent::builder().model(given());
    let restored = config(builder().restore(None, Some("saved".into()), cool())).await;
    assert_eq!((restored.system.as_deref(), restored.options), (Some("saved"), cool()));

    let own = config(builder().options(Options::default()).restore(None, Some("saved".into()), cool())).await;
    assert_eq!((own.system.as_deref(), own.options), (Some("saved"), Options::default()));

    let own = config(builder().restore(None, Some("saved".into()), cool()).system("given")).await;
    assert_eq!((own.system.as_deref(), own.options), (Some("given"), cool()));

    let none = config(builder().system("given").restore(None, None, Options::default())).await;
    assert_eq!((none.system.as_deref(), none.options), (Some("given"), Options::default()));
}

#[test]
fn given_history_is_what_the_builder_was_given() {
    assert!(Agent::builder().given_history().is_empty());
    let history = History::from_iter([Message::user("Hi"), Message::assistant("Hello")]);
    let builder = Agent::builder().history(history.clone());
    assert!(builder.given_history().same(&history));
}

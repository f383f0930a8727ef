//! Models set by name at run time: in `set_state`, in `init` and in callbacks.

use std::sync::Arc;

use crate::{
    agent::{AgentCallbacks, State, StateEdit, ToolDecision},
    provider::Registry,
    run::{Error, ErrorKind},
    subscription::EndReason,
    testing::{ScriptedProvider, Step},
};
use async_trait::async_trait;
use serde_json::json;

use super::{
    hooks::{Hooks, Log, noting},
    support::scripted,
};

#[tokio::test(start_paused = true)]
async fn set_state_model_by_name_registry_resolves_it() {
    let (_, builder) = scripted([]);
    let other = ScriptedProvider::new([Step::text("Other")]).named("other");
    let builder = builder.registry(Registry::empty().with(other.clone()));
    let agent = builder.start().await.unwrap();
    let choose = |name: &'static str| {
        agent.set_state(move |draft| {
            draft.config.settings.system = Some(name.into());
            Ok(draft.config.set_model(name)?)
        })
    };
    for wrong in ["nobody:small", "small", "test:"] {
        let error = choose(wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownModel, "{wrong}: {error:?}");
    }
    assert_eq!(agent.state().await.unwrap().config().settings.system, None, "the whole edit is dropped");

    choose("other:small").await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Other");
    assert_eq!(&*other.requests()[0].model, "small");
    let used = Arc::clone(agent.state().await.unwrap().config().model.provider());
    choose("other:large").await.unwrap();
    let config = agent.state().await.unwrap().config().clone();
    assert_eq!(config.model.name(), "other:large");
    assert!(Arc::ptr_eq(config.model.provider(), &used));
}

#[tokio::test(start_paused = true)]
async fn set_state_registry_error_of_the_closure_is_a_model_error() {
    let (_, builder) = scripted([]);
    let agent = builder.start().await.unwrap();
    let edit = |draft: &mut StateEdit| {
        draft.config.model = Registry::empty().model("nobody:small")?;
        Ok(())
    };
    let error = agent.set_state(edit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownModel, "{error:?}");
    // An error that the closure returns is not mistaken for an error of this agent.
    let stopped = |_: &mut StateEdit| Err(Error::ended("agent", &EndReason::Stopped).into());
    let error = agent.set_state(stopped).await.unwrap_err();
    assert!(error.to_string().starts_with("init or the closure of set_state failed"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Callback);
}

#[tokio::test(start_paused = true)]
async fn set_state_model_by_name_of_the_provider_in_use_keeps_that_provider() {
    let (provider, builder) = scripted([Step::text("One")]);
    let agent = builder.start().await.unwrap();
    agent.set_state(|draft| Ok(draft.config.set_model("test:small")?)).await.unwrap();
    agent.ask("Hi").await.unwrap();
    assert_eq!(&*provider.requests()[0].model, "small");
}

#[tokio::test(start_paused = true)]
async fn init_model_by_name_wrong_name_is_a_model_error() {
    struct Chooses;

    #[async_trait]
    impl AgentCallbacks for Chooses {
        async fn init(
            &mut self,
            draft: &mut StateEdit,
            _: &State,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Ok(draft.config.set_model("nobody:small")?)
        }
    }

    let (_, builder) = scripted([]);
    let refused = builder.callbacks(Chooses).start().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::UnknownModel);
}

#[tokio::test(start_paused = true)]
async fn callback_model_by_name_serves_the_next_request() {
    let (_, builder) = scripted([Step::tool_use("a", "look", json!({}))]);
    let other = ScriptedProvider::new([Step::text("Seen")]).named("other");
    let hooks = Hooks::new().on_tool_use(|_, state| {
        assert_eq!(state.config_mut().set_model("nobody:small").unwrap_err().kind(), ErrorKind::UnknownModel);
        state.config_mut().set_model("other:small").unwrap();
        ToolDecision::Execute
    });
    let builder = builder.registry(Registry::empty().with(other.clone())).callbacks(hooks);
    let agent = builder.tool(noting("look", &Log::default())).start().await.unwrap();
    assert_eq!(agent.ask("Look").await.unwrap().text(), "Seen");
    assert_eq!(&*other.requests()[0].model, "small");
}

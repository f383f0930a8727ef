//! An API key and headers are sent only to the provider for which they were set.

use crate::{
    agent::{Agent, AgentBuilder, ErrorDecision, Prompt, ToolDecision},
    provider::{Credentials, Options, ProviderError, ProviderErrorKind, Request, Secret},
    testing::{ScriptedProvider, Step},
};
use serde_json::json;

use super::hooks::{Hooks, Log, noting};

fn secret(key: &str) -> Options {
    Options::default().with_api_key(key).with_header("X-Tenant", "acme").with_max_tokens(7)
}

fn down() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "down"))
}

fn provider(name: &str, steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let provider = ScriptedProvider::new(steps).named(name);
    let builder = Agent::builder().model(provider.model());
    (provider, builder)
}

/// The key of a request, and whether it has headers.
fn sent(request: &Request) -> (Option<&str>, bool) {
    (request.options.api_key().map(Secret::reveal), request.options.headers().is_some())
}

#[tokio::test(start_paused = true)]
async fn fallback_to_another_provider_does_not_send_the_key_of_the_first() {
    let (first, builder) = provider("first", [down()]);
    let (second, _) = provider("second", [Step::text("Hello"), Step::text("Again")]);
    let other = second.model();
    let hooks = Hooks::new().on_error(move |_, state| {
        state.config_mut().model = other.clone();
        ErrorDecision::Retry
    });
    let agent = builder.options(secret("of-first")).callbacks(hooks).start().await.unwrap();
    let prompt = Prompt::new("Hi").with_options(Options::default().with_api_key("of-prompt"));
    agent.ask(prompt).await.unwrap();
    agent.ask("And?").await.unwrap();
    assert_eq!(sent(&first.requests()[0]), (Some("of-prompt"), true));
    let requests = second.requests();
    assert_eq!((sent(&requests[0]), sent(&requests[1])), ((None, false), (None, false)));
    assert_eq!(requests[0].options.max_tokens(), Some(7), "options that are not secret stay");
    let options = agent.state().await.unwrap().config().settings.options.clone();
    assert_eq!(options, secret("of-first"), "the configuration is unchanged");
}

/// Both providers belong to OpenAI, but a key for one is not sent to the other.
#[tokio::test(start_paused = true)]
async fn change_from_openai_to_openai_responses_does_not_send_the_key_of_the_first() {
    let (_, builder) = provider("openai", [Step::text("1")]);
    let (second, _) = provider("openai_responses", [Step::text("2"), Step::text("3")]);
    let credentials = Credentials::new("openai").with_api_key("of-openai");
    let agent = builder.credentials(credentials).options(secret("of-chat")).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    for key in [None, Some("of-responses")] {
        let model = second.model();
        let choose = move |draft: &mut crate::agent::StateEdit| {
            draft.config.model = model;
            if let Some(key) = key {
                draft.config.settings.options.set_api_key(Some(Secret::new(key)));
            }
            Ok(())
        };
        agent.set_state(choose).await.unwrap();
        agent.ask("Hi").await.unwrap();
    }
    let requests = second.requests();
    assert_eq!(sent(&requests[0]), (None, false));
    assert_eq!(sent(&requests[1]).0, Some("of-responses"));
}

#[tokio::test(start_paused = true)]
async fn change_of_the_model_withholds_the_key_from_another_provider_until_it_has_one() {
    let (first, builder) = provider("first", [Step::text("1"), Step::text("2"), Step::text("5")]);
    let (second, _) = provider("second", [Step::text("3"), Step::text("4")]);
    let agent = builder.options(secret("of-first")).start().await.unwrap();
    let change = |model: crate::provider::Model, options: Option<Options>| {
        let agent = agent.clone();
        async move {
            let edit = move |draft: &mut crate::agent::StateEdit| {
                draft.config.model = model;
                draft.config.settings.options =
                    options.unwrap_or_else(|| draft.config.settings.options.clone());
                Ok(())
            };
            agent.set_state(edit).await.unwrap();
            agent.ask("Hi").await.unwrap();
        }
    };
    let small = crate::provider::Model::new(first.model().provider().clone(), "small");
    agent.ask("Hi").await.unwrap();
    change(small, None).await;
    change(second.model(), None).await;
    change(second.model(), Some(secret("of-second"))).await;
    change(first.model(), None).await;
    let keys = |provider: &ScriptedProvider| {
        let requests = provider.requests();
        let keys = requests.iter().map(|request| sent(request).0.map(str::to_owned));
        keys.collect::<Vec<_>>()
    };
    assert_eq!(keys(&first), [Some("of-first".into()), Some("of-first".into()), None]);
    assert_eq!(keys(&second), [None, Some("of-second".into())]);
}

#[tokio::test(start_paused = true)]
async fn callback_sets_model_and_key_key_is_used_for_that_model() {
    let (_, builder) = provider("first", [Step::tool_use("a", "look", json!({}))]);
    let (second, _) = provider("second", [Step::text("Seen")]);
    let other = second.model();
    let hooks = Hooks::new().on_tool_use(move |_, state| {
        let config = state.config_mut();
        config.model = other.clone();
        config.settings.options.set_api_key(Some(Secret::new("of-second")));
        config.settings.options.set_headers(None);
        ToolDecision::Execute
    });
    let builder = builder.options(secret("of-first")).tool(noting("look", &Log::default())).callbacks(hooks);
    builder.start().await.unwrap().ask("Look").await.unwrap();
    assert_eq!(sent(&second.requests()[0]), (Some("of-second"), false));
}

#[tokio::test(start_paused = true)]
async fn credentials_are_sent_only_to_their_provider_whenever_its_model_is_in_use() {
    let (first, builder) = provider("first", [Step::text("1"), Step::text("2"), Step::text("4")]);
    let (second, _) = provider("second", [Step::text("3")]);
    let credentials = Credentials::new("first").with_api_key("of-first").with_header("X-Tenant", "acme");
    let options = Options::default().with_header("x-tenant", "own");
    let agent = builder.credentials(credentials).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    agent.ask(Prompt::new("Hi").with_options(options.with_api_key("of-prompt"))).await.unwrap();
    for model in [second.model(), first.model()] {
        let choose = move |draft: &mut crate::agent::StateEdit| {
            draft.config.model = model;
            Ok(())
        };
        agent.set_state(choose).await.unwrap();
        agent.ask("Hi").await.unwrap();
    }
    let requests = first.requests();
    let tenants: Vec<_> =
        requests[1].options.headers().into_iter().flatten().map(|(_, value)| value.reveal()).collect();
    assert_eq!(
        (sent(&requests[0]), sent(&requests[2])),
        ((Some("of-first"), true), (Some("of-first"), true))
    );
    assert_eq!((sent(&requests[1]).0, tenants), (Some("of-prompt"), vec!["own"]));
    assert_eq!(sent(&second.requests()[0]), (None, false));
    assert!(agent.state().await.unwrap().config().settings.options.is_empty());
}

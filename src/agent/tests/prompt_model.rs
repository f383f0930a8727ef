//! Prompts with their own model.

use crate::{
    agent::{Agent, AgentBuilder, ErrorDecision, Prompt, RunOutcome},
    provider::{Options, ProviderError, ProviderErrorKind, Secret, StopReason},
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Watched, reached, stopped},
    rig::echo,
};

fn provider(name: &str, steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let provider = ScriptedProvider::new(steps).named(name.to_owned());
    let builder = Agent::builder().model(provider.model()).tool(echo());
    (provider, builder)
}

fn keys(provider: &ScriptedProvider) -> Vec<Option<String>> {
    let requests = provider.requests();
    requests.iter().map(|request| request.options.api_key().map(Secret::reveal).map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn prompt_with_a_model_uses_it_for_every_step_of_its_run_only() {
    let (first, builder) = provider("first", [Step::text("1"), Step::text("2")]);
    let asks = Step::tool_use("t", "echo", json!({}));
    let (second, _) = provider("second", [asks, Step::text("Other"), Step::text("Third")]);
    let builder = builder.options(Options::default().with_api_key("of-first"));
    let hooks = Hooks::new().continuing(["And?"]);
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let key = Options::default().with_api_key("of-second");
    let events = agent.run(Prompt::new("Hi").with_model(second.model()).with_options(key)).await;
    assert_eq!(stopped(&events).text(), "Third", "a continuation belongs to its prompt");
    assert_eq!(keys(&second), [Some("of-second".into()), Some("of-second".into()), Some("of-second".into())]);
    assert_eq!(agent.agent.state().await.unwrap().config().model.name(), first.model().name());
    agent.run("Again").await;
    assert_eq!(keys(&first), [Some("of-first".into())]);
}

#[tokio::test(start_paused = true)]
async fn prompt_with_a_model_does_not_send_the_key_of_another_provider() {
    let (_, builder) = provider("first", []);
    let (second, _) = provider("second", [Step::text("Hello")]);
    let agent = builder.options(Options::default().with_api_key("of-first")).start().await.unwrap();
    agent.ask(Prompt::new("Hi").with_model(second.model())).await.unwrap();
    assert_eq!(keys(&second), [None]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_with_a_model_uses_it_when_its_turn_starts() {
    let gate = Gate::new();
    let (first, builder) = provider("first", [Step::new().gate(&gate).then_text(["1"]).stop()]);
    let (second, _) = provider("second", [Step::text("Other")]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("And?").with_model(second.model())).await.unwrap();
    gate.open();
    assert_eq!(stopped(&agent.end().await).text(), "Other");
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
    let last = agent.agent.snapshot().await.unwrap().last_run;
    assert_eq!(
        last.as_deref().map(|end| &end.outcome),
        Some(&RunOutcome::Stopped { stop_reason: StopReason::Stop })
    );
}

#[tokio::test(start_paused = true)]
async fn model_set_by_handle_error_replaces_the_model_of_the_prompt() {
    let (_, builder) = provider("first", []);
    let down = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "down"));
    let (second, _) = provider("second", [down]);
    let (third, _) = provider("third", [Step::text("Here")]);
    let fallback = third.model();
    let hooks = Hooks::new().on_error(move |_, state| {
        state.config_mut().model = fallback.clone();
        ErrorDecision::Retry
    });
    let agent = builder.callbacks(hooks).start().await.unwrap();
    let key = Options::default().with_api_key("of-second");
    let prompt = Prompt::new("Hi").with_model(second.model()).with_options(key);
    assert_eq!(agent.ask(prompt).await.unwrap().text(), "Here");
    assert_eq!((keys(&second), keys(&third)), (vec![Some("of-second".into())], vec![None]));
}

//! The cost of runs, for models with a known price.

use crate::{
    agent::{AgentCallbacks, Event, State, TurnOutcome},
    message::Usage,
    provider::{Catalogue, Model, ModelInfo, Price, Registry, Request, Secret},
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    hooks::{Log, noting},
    support::{run_events, scripted},
};

const MILLION: u64 = 1_000_000;

fn input(millions: u64) -> Usage {
    Usage::default().with_input(millions * MILLION)
}

fn priced(provider: &ScriptedProvider) -> Model {
    provider.model().with_info(ModelInfo::new("scripted").with_price(Price::new(2.0, 4.0)))
}

#[tokio::test(start_paused = true)]
async fn turn_reports_the_cost_of_all_its_steps() {
    let looks = Step::new().usage(input(1)).then_tool_use("a", "look", json!({})).stop();
    // For the second response, the service reports the cost itself.
    let reported = input(10).with_cost(0.5);
    let (provider, builder) = scripted([looks, Step::new().usage(reported).then_text(["A cat."]).stop()]);
    let agent = builder.model(priced(&provider)).tool(noting("look", &Log::default())).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let response = agent.ask("Look").await.unwrap();
    let whole = input(11).with_cost(2.5);
    assert_eq!(response.usage, whole);
    let mut steps = Vec::new();
    for event in run_events(&mut events).await {
        match &*event {
            Event::Step(response) => steps.push(response.usage.cost),
            Event::Turn(TurnOutcome::Stop { response, .. }) => assert_eq!(response.usage, whole),
            _ => {}
        }
    }
    assert_eq!(steps, [Some(2.0), Some(0.5)]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_reports_the_cost_of_its_usage() {
    let gate = Gate::new();
    let step = Step::new().usage(input(3)).then_text(["Well"]).gate(&gate).hang();
    let (provider, builder) = scripted([step]);
    let agent = builder.model(priced(&provider)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    loop {
        if matches!(&*super::support::next(&mut events).await, Event::TextDelta { .. }) {
            break;
        }
    }
    agent.cancel().await.unwrap();
    for event in run_events(&mut events).await {
        if let Event::Cancelled { response, .. } = &*event {
            assert_eq!(response.usage, input(3).with_cost(6.0));
            return;
        }
    }
    panic!("the run was not cancelled");
}

/// Sends each request to a different model of the same provider.
struct Reroutes;

#[async_trait::async_trait]
impl AgentCallbacks for Reroutes {
    async fn prepare_step(&mut self, request: &mut Request, _: &mut State) {
        request.model = "large".into();
    }
}

#[tokio::test(start_paused = true)]
async fn request_for_another_model_has_its_price_and_the_key_of_the_registry() {
    let provider = ScriptedProvider::new([Step::new().usage(input(1)).then_text(["Hi"]).stop()]);
    let mut catalogue = Catalogue::empty();
    catalogue.insert("test", ModelInfo::new("small").with_price(Price::new(1.0, 1.0)));
    catalogue.insert("test", ModelInfo::new("large").with_price(Price::new(9.0, 9.0)));
    let registry =
        Registry::empty().with(provider.clone()).with_catalogue(catalogue).with_key("test", "of-registry");
    let model = registry.model("test:small").unwrap();
    let agent = crate::agent::Agent::builder().model(model).callbacks(Reroutes).start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().usage.cost, Some(9.0));
    let request = provider.last_request().unwrap();
    assert_eq!(request.options.api_key(), Some(&Secret::new("of-registry")));
    assert_eq!(request.model_info.unwrap().id, "large");
    assert_eq!(
        agent.state().await.unwrap().config().options.api_key(),
        None,
        "the key is not stored in the configuration"
    );
}

#[tokio::test(start_paused = true)]
async fn key_function_panics_is_an_error_and_the_agent_survives() {
    let provider = ScriptedProvider::new([Step::text("Hi")]);
    let broken = std::sync::atomic::AtomicBool::new(true);
    let registry = Registry::empty().with(provider).with_key_from("test", move || {
        assert!(!broken.swap(false, std::sync::atomic::Ordering::Relaxed), "the vault is shut");
        None
    });
    let model = registry.model("test:m").unwrap();
    let agent = crate::agent::Agent::builder().model(model).start().await.unwrap();
    agent.ask("Hi").await.unwrap_err();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Hi");
}

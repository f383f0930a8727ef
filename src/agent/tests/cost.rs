//! The cost of runs, for models with a known price.

use crate::{
    agent::{AgentCallbacks, ErrorDecision, Event, State},
    message::{RequestEnd, Usage},
    provider::{
        Catalogue, Model, ModelInfo, Price, ProviderError, ProviderErrorKind, Registry, Request, Secret,
    },
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, noting},
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
            Event::Turn { response, continues: false, .. } => assert_eq!(response.usage, whole),
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
    let mut told = Vec::new();
    for event in run_events(&mut events).await {
        if let Event::Usage(row) = &*event {
            told.push((row.end, row.usage.input / MILLION));
        }
        if let Event::Cancelled { response, .. } = &*event {
            assert_eq!(response.usage, input(3).with_cost(6.0));
            assert_eq!(told, [(RequestEnd::Cancelled, 3)]);
            return;
        }
    }
    panic!("the run was not cancelled");
}

/// The rows of `Usage` and `Step` events: the end of each request, its input in millions of tokens, its number and its
/// model.
fn rows(events: &[std::sync::Arc<Event>]) -> Vec<(RequestEnd, u64, u32, String)> {
    let of_event = |event: &std::sync::Arc<Event>| match &**event {
        Event::Usage(row) => {
            let (step, model) = (row.step.unwrap(), row.model.clone().unwrap());
            assert!(row.turn.is_some() && row.message.is_some());
            Some((row.end, row.usage.input / MILLION, step, model))
        }
        Event::Step(step) => {
            Some((RequestEnd::Answered, step.usage.input / MILLION, step.step, step.model.clone()))
        }
        _ => None,
    };
    events.iter().filter_map(of_event).collect()
}

fn down() -> ProviderError {
    ProviderError::new(ProviderErrorKind::InvalidRequest, "down")
}

#[tokio::test(start_paused = true)]
async fn every_request_with_usage_has_one_row_with_its_own_model_and_end() {
    let broken = |millions| Step::new().usage(input(millions)).then_text(["A"]).fail(down());
    let half = Step::new().usage(input(8)).then_text(["Half"]).hang();
    let (provider, builder) = scripted([broken(1), broken(2), Step::text("No usage."), broken(4), half]);
    let other = Model::new(std::sync::Arc::new(provider.clone()), "other");
    let asked = std::sync::atomic::AtomicU32::new(0);
    let hooks = Hooks::new().on_error(move |_, state| {
        // The model is changed in the middle of the turn, after the request whose usage is reported.
        state.config_mut().model = other.clone();
        match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => ErrorDecision::Retry,
            _ => ErrorDecision::Stop,
        }
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let first = provider.model().id().to_string();
    let events = agent.run("One").await;
    let void = |millions, step, model: &str| (RequestEnd::Void, millions, step, model.to_owned());
    let expected =
        [void(1, 1, &first), void(2, 2, "other"), (RequestEnd::Answered, 0, 3, "other".to_owned())];
    assert_eq!(rows(&events), expected);
    assert_eq!(super::hooks::stopped(&events).usage, input(3));
    let order = super::support::names(&events);
    let usage = order.iter().position(|name| name == "usage").unwrap();
    assert_eq!(order[usage + 1], "retry");

    let events = agent.run("Two").await;
    assert_eq!(rows(&events), [(RequestEnd::Failed, 4, 1, "other".to_owned())]);
    let order = super::support::names(&events);
    assert_eq!(
        order[order.len() - 5..],
        ["usage", "text_end", "message(assistant)", "status(idle)", "error"]
    );
    agent.agent.prompt("Three").await.unwrap();
    agent.until("text_delta").await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    assert_eq!(rows(&events), [(RequestEnd::Interrupted, 8, 1, "other".to_owned())]);
    assert_eq!(super::hooks::stopped(&events).usage, input(8));
}

#[tokio::test(start_paused = true)]
async fn response_that_is_asked_for_again_has_a_void_row() {
    let schema = crate::provider::OutputSchema::of::<u32>();
    let wrong = Step::new().usage(input(1)).then_text(["seven"]).stop();
    let right = Step::new().usage(input(2)).then_text(["7"]).stop();
    let (_, builder) = scripted([wrong, right]);
    let mut agent =
        Watched::start(builder.options(crate::provider::Options::default().with_output(schema))).await;
    let events = agent.run("A number?").await;
    let ends: Vec<_> =
        rows(&events).into_iter().map(|(end, millions, step, _)| (end, millions, step)).collect();
    assert_eq!(ends, [(RequestEnd::Void, 1, 1), (RequestEnd::Answered, 2, 2)]);
    assert_eq!(super::hooks::stopped(&events).usage, input(3));
}

/// Callbacks that send each request to a different model of the same provider.
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
        agent.state().await.unwrap().config().settings.options.api_key(),
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

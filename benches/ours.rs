//! The work that the benchmarks measure, done with this crate.

use std::sync::Arc;

use omni_agent::{
    agent::{Agent, Event},
    message::History,
    provider::{Model, StopReason, custom::OllamaChat, http::Endpoint},
    subscription::Update,
    tool::{ToolSet, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::formats::Format;

/// Returns a model that is served by the local server at `url`.
pub(crate) fn model(format: Format, url: &str) -> Model {
    let endpoint = match format {
        Format::Chat => Endpoint::openai_compatible("local", url),
        Format::Messages => Endpoint::anthropic_compatible("local", url),
        Format::Responses => Endpoint::openai_responses_compatible("local", url),
        Format::Gemini => Endpoint::google().with_base_url(url).with_key("a-key"),
        Format::Ollama => Endpoint::custom("local", url, OllamaChat::default()).with_version("/api"),
    };
    Model::new(Arc::new(endpoint), "a-model")
}

/// Sends a prompt, and returns the number of text deltas that a subscriber receives.
pub(crate) async fn read(agent: &Agent) -> usize {
    let mut events = agent.subscribe().await.expect("the agent is running");
    agent.prompt("Go on.").await.expect("the agent is idle");
    let mut deltas = 0;
    loop {
        match events.next().await {
            Some(Update::Event(event)) => match &*event.event {
                Event::TextDelta { .. } => deltas += 1,
                Event::Turn { .. } => break,
                Event::Error { failure, .. } => panic!("{failure}"),
                _ => {}
            },
            other => panic!("a reader that keeps up gets events, not {other:?}"),
        }
    }
    // The history is reset, so that the next call sends the same request.
    let reset = agent.set_state(|draft| {
        draft.history = History::new();
        Ok(())
    });
    reset.await.expect("an empty history is valid");
    deltas
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// The name of a city.
    city: String,
}

/// Returns the tools that an agent run uses.
pub(crate) fn tools() -> ToolSet {
    let weather = tool_fn("weather", "Tells the weather.", |place: Place, _| async move {
        Ok(format!("18 degrees in {}", place.city))
    });
    ToolSet::new().with(weather).expect("the tool is valid")
}

/// Runs a new agent that calls the tool, and returns its final answer.
pub(crate) async fn run(model: &Model, tools: &ToolSet) -> String {
    let builder = Agent::builder().model(model.clone()).tools(tools.clone());
    let agent = builder.start().await.expect("the agent starts");
    let response = agent.ask("How is the weather in Paris?").await.expect("the server answers");
    assert_eq!((response.stop_reason.clone(), response.step), (StopReason::Stop, 2));
    response.text()
}

//! The run of a sub-agent is below the span of its tool call, and each request counts in one run.

use std::sync::Arc;

use omni_agent::{
    Agent, Manager,
    agent::{AgentBuilder, SubAgent},
    manager::{OpenOptions, Titles},
    message::Usage,
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    alone::{alone, paused},
    collector::Collector,
};

const TEST: &str = "sub_agents::run_of_a_sub_agent_is_below_its_call_and_counts_its_own_requests";
const TEST_OF_SESSION: &str =
    "sub_agents::run_of_a_sub_agent_that_is_a_session_is_below_its_call_and_counts_its_own_requests";

fn cost(input: u64) -> Step {
    Step::new().usage(Usage::default().with_input(input))
}

#[test]
fn run_of_a_sub_agent_is_below_its_call_and_counts_its_own_requests() {
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let agent = lead().start().await.unwrap();
            let response = agent.ask("Go").await.unwrap();
            assert_eq!(response.usage.input, 107);
        });
        check(&collector);
    });
}

#[test]
fn run_of_a_sub_agent_that_is_a_session_is_below_its_call_and_counts_its_own_requests() {
    alone(TEST_OF_SESSION, &[], || {
        let collector = Collector::install();
        paused(async {
            let manager = Manager::builder(Arc::new(MemoryStore::new())).titles(Titles::Off).build();
            let session = manager.create(OpenOptions::new(lead())).await.unwrap().session;
            let response = session.ask("Go").await.unwrap();
            assert_eq!((response.usage.input, response.delegated.input), (7, 100));
            manager.shutdown(std::time::Duration::from_secs(10)).await.unwrap();
        });
        check(&collector);
        assert!(collector.open().is_empty(), "{:?}", collector.open());
    });
}

/// Returns an agent that calls a sub-agent once.
fn lead() -> AgentBuilder {
    let low = ScriptedProvider::new([cost(100).then_text(["Found."]).stop()]).model();
    let search =
        SubAgent::new("search", "Searches.", move |_| Agent::builder().model(low.clone()).name("searcher"));
    let call = cost(3).then_tool_use("c", "search", json!({ "task": "Go." })).stop();
    let lead = ScriptedProvider::new([call, cost(4).then_text(["Done."]).stop()]).model();
    Agent::builder().model(lead).name("lead").tool(search)
}

/// Checks the spans of the runs, and that each request counts in one of them.
fn check(collector: &Collector) {
    let spans = collector.spans();
    let named = |name: &str| spans.iter().find(|span| span.name.contains(name)).unwrap();
    let (lead, tool, low) = (named("lead"), named("search"), named("searcher"));
    assert!(tool.name.starts_with("execute_tool"), "{}", tool.name);
    assert_eq!(tool.parent.as_ref(), Some(&lead.id));
    let mut above = low.parent.clone();
    while let Some(span) = above.as_ref().and_then(|id| spans.iter().find(|span| span.id == *id))
        && span.id != tool.id
    {
        above.clone_from(&span.parent);
    }
    assert_eq!(above.as_ref(), Some(&tool.id));
    let tokens = |span: &super::tree::Node| span.attributes["gen_ai.usage.input_tokens"].clone();
    assert_eq!((tokens(lead), tokens(low)), ("7".to_owned(), "100".to_owned()));
    let runs = spans.iter().filter(|span| span.name.starts_with("invoke_agent")).count();
    assert_eq!(runs, 2);
}

//! The run of a sub-agent is below the span of its tool call, and each request counts in one run.

use omni_agent::{
    Agent,
    agent::SubAgent,
    message::Usage,
    testing::{ScriptedProvider, Step},
};
use serde_json::json;

use super::{
    alone::{alone, paused},
    collector::Collector,
};

const TEST: &str = "sub_agents::run_of_a_sub_agent_is_below_its_call_and_counts_its_own_requests";

fn cost(input: u64) -> Step {
    Step::new().usage(Usage::default().with_input(input))
}

#[test]
fn run_of_a_sub_agent_is_below_its_call_and_counts_its_own_requests() {
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let low = ScriptedProvider::new([cost(100).then_text(["Found."]).stop()]).model();
            let search = SubAgent::new("search", "Searches.", move |_| {
                Agent::builder().model(low.clone()).name("searcher")
            });
            let call = cost(3).then_tool_use("c", "search", json!({ "task": "Go." })).stop();
            let lead = ScriptedProvider::new([call, cost(4).then_text(["Done."]).stop()]).model();
            let agent = Agent::builder().model(lead).name("lead").tool(search).start().await.unwrap();
            let response = agent.ask("Go").await.unwrap();
            assert_eq!(response.usage.input, 107);
        });
        let spans = collector.spans();
        let named = |name: &str| spans.iter().find(|span| span.name.contains(name)).unwrap();
        let (lead, tool, low) = (named("lead"), named("search"), named("searcher"));
        assert!(tool.name.starts_with("execute_tool"), "{}", tool.name);
        assert_eq!((tool.parent.as_ref(), low.parent.as_ref()), (Some(&lead.id), Some(&tool.id)));
        let tokens = |span: &super::tree::Node| span.attributes["gen_ai.usage.input_tokens"].clone();
        assert_eq!((tokens(lead), tokens(low)), ("7".to_owned(), "100".to_owned()));
    });
}

//! A test of an agent without a model: `cargo test --test first_unit_test`.

use omni_agent::testing::{ScriptedProvider, Step};
use omni_agent::{Agent, agent::AgentBuilder, serde_json::json, tool};

/// The agent of the application. Its model is set by the caller.
fn agent() -> AgentBuilder {
    Agent::builder().system("Be brief.").tool(tool!("clock", "Returns the time.", async || Ok("12:00")))
}

#[tokio::test]
async fn question_about_the_time_uses_the_clock() {
    let script = [Step::tool_use("call-1", "clock", json!({})), Step::text("It is noon.")];
    let provider = ScriptedProvider::new(script);
    let agent = agent().model(provider.model()).start().await.unwrap();
    assert_eq!(agent.ask("What time is it?").await.unwrap().text(), "It is noon.");

    let second = provider.last_request().unwrap();
    assert_eq!(second.system.as_deref(), Some("Be brief."));
    let results: Vec<_> = second.history.iter().flat_map(|message| message.tool_results()).collect();
    assert_eq!(results[0].text(), "12:00");
}

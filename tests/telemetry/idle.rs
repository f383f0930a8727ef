//! No span is open while nothing runs.

use std::time::Duration;

use omni_agent::{
    Agent, Session,
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use tracing::Instrument;

use super::{
    alone::{alone, paused, threaded},
    collector::Collector,
};

fn tool_loop() -> ScriptedProvider {
    ScriptedProvider::new([
        Step::tool_use("call-1", "time", json!({})),
        Step::text("It is noon."),
        Step::tool_use("call-2", "time", json!({})),
        Step::text("It is noon."),
    ])
}

fn builder(provider: &ScriptedProvider) -> omni_agent::AgentBuilder {
    let time = tool_fn("time", "Returns the time.", |_: Value, _| async { Ok("12:00") });
    Agent::builder().model(provider.model()).tool(time)
}

/// Runs an agent and a session, and checks after each run that no span is open while both are still alive.
async fn run_and_rest(collector: Collector) {
    let agent = builder(&tool_loop()).start().await.unwrap();
    let session = Session::builder(MemoryStore::new()).agent(builder(&tool_loop())).create().await.unwrap();
    for _ in 0..2 {
        let caller = tracing::info_span!(target: "test", "caller");
        agent.ask("When?").instrument(caller.clone()).await.unwrap();
        session.ask("When?").instrument(caller).await.unwrap();
        agent.wait_until_idle().await.unwrap();
        session.wait_until_idle().await.unwrap();
        // A write in flight has a span.
        session.flush(Duration::from_secs(10)).await.unwrap();
        assert_eq!(collector.open(), [""; 0]);
    }
    let spans = collector.spans();
    let of = |name: &str| spans.iter().filter(|span| span.name.starts_with(name)).count();
    assert_eq!((of("invoke_agent"), of("chat"), of("execute_tool"), of("caller")), (4, 8, 4, 2));
    assert!((1..=4).contains(&of("save")), "each write of turns has a span");
    let id = session.id().as_str();
    let in_session =
        spans.iter().filter(|span| span.attributes.get("gen_ai.conversation.id").is_some_and(|of| of == id));
    assert_eq!(
        in_session.filter(|span| span.name != "save").count(),
        2 + 4,
        "the session's runs and requests have its id"
    );
}

#[test]
fn spans_while_agents_and_sessions_are_idle_on_one_thread_are_all_closed() {
    const TEST: &str = "idle::spans_while_agents_and_sessions_are_idle_on_one_thread_are_all_closed";
    alone(TEST, &[], || paused(run_and_rest(Collector::install())));
}

#[test]
fn spans_while_agents_and_sessions_are_idle_on_several_threads_are_all_closed() {
    const TEST: &str = "idle::spans_while_agents_and_sessions_are_idle_on_several_threads_are_all_closed";
    alone(TEST, &[], || threaded(run_and_rest(Collector::install())));
}

#[test]
fn prompt_refused_closes_its_callers_span() {
    const TEST: &str = "idle::prompt_refused_closes_its_callers_span";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let agent = builder(&tool_loop()).start().await.unwrap();
            let caller = tracing::info_span!(target: "test", "caller");
            agent.prompt("").instrument(caller).await.unwrap_err();
            assert_eq!(collector.open(), [""; 0]);
            assert_eq!(collector.spans().len(), 1, "no run was opened");
        });
    });
}

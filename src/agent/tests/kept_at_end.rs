//! The turn in flight when its agent ends. The turn's completed steps are kept, unless the caller uses
//! `stop_discarding`.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{Agent, AgentSubscription, Event, Response, Status, ToolDecision},
    provider::StopReason,
    run::ErrorKind,
    testing::{Gate, Step},
};
use serde_json::json;

use super::{
    hooks::Hooks,
    predicament::{hanging, no_timeout},
    rig::{answered, closed, echo},
    support::{next, returned, run_events, scripted},
};

const DEADLINE: Duration = Duration::from_secs(5);

/// Returns an agent that has run one tool and is paused before the next.
async fn paused_after_a_step() -> (Agent, AgentSubscription) {
    let steps = [Step::tool_use("t1", "echo", json!({ "n": 1 })), Step::tool_use("t2", "write", json!({}))];
    let hooks = Hooks::new().deciding([("write", ToolDecision::Pause(json!("may I?")))]);
    let agent = scripted(steps).1.tool(echo()).callbacks(hooks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    while !matches!(&*next(&mut events).await, Event::Status { status: Status::Paused, .. }) {}
    (agent, events)
}

/// The response in the last event of the run.
async fn last_response(events: &mut AgentSubscription) -> Arc<Response> {
    let run = run_events(events).await;
    match &**run.last().unwrap() {
        Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. } => {
            Arc::clone(response)
        }
        other => panic!("{other:?}"),
    }
}

/// The number of messages in the history of the agent's last snapshot.
async fn left(events: &mut AgentSubscription) -> usize {
    let (_, snapshot) = closed(events).await;
    let snapshot = snapshot.unwrap();
    snapshot.state.history.check().unwrap();
    assert!(snapshot.pending.is_empty());
    snapshot.state.history.len()
}

#[tokio::test(start_paused = true)]
async fn stop_or_last_handle_dropped_while_paused_executed_steps_kept() {
    for stops in [true, false] {
        let (agent, mut events) = paused_after_a_step().await;
        if stops {
            answered(agent.stop(DEADLINE)).await.unwrap();
        }
        drop(agent);
        let response = last_response(&mut events).await;
        assert_eq!((&response.stop_reason, response.messages.len()), (&StopReason::Interrupted, 5));
        let results: Vec<_> = response.messages.iter().flat_map(|message| message.tool_results()).collect();
        assert_eq!((results[0].text().as_str(), results[0].is_error), (r#"{"n":1}"#, false));
        assert!(results[1].is_error && results[1].text().contains("not run"), "{:?}", results[1]);
        assert_eq!(left(&mut events).await, 5, "stopped: {stops}");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_discarding_while_paused_history_is_unchanged() {
    let (agent, mut events) = paused_after_a_step().await;
    answered(agent.stop_discarding(DEADLINE)).await.unwrap();
    let response = last_response(&mut events).await;
    assert_eq!((&response.stop_reason, response.messages.len()), (&StopReason::Cancelled, 4));
    assert_eq!(left(&mut events).await, 0);
}

#[tokio::test(start_paused = true)]
async fn stop_at_the_moment_a_tool_finishes_result_kept() {
    let gate = Gate::new();
    let builder = scripted([Step::tool_use("t1", "slow", json!({}))]).1;
    let agent = builder.tool_limits(no_timeout()).tool(hanging("slow", &gate)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    // The tool finishes before the agent receives the command, but the agent has not polled the tool again, so it does
    // not know this yet.
    let ((), stopped) = tokio::join!(async { gate.open() }, agent.stop(DEADLINE));
    stopped.unwrap();
    let response = last_response(&mut events).await;
    let result = response.messages[2].tool_results().next().unwrap();
    assert_eq!((result.text().as_str(), result.is_error), ("done", false));
}

#[tokio::test(start_paused = true)]
async fn stop_while_asked_resolves_with_the_kept_messages() {
    for discards in [false, true] {
        let gate = Gate::new();
        let agent = scripted([Step::new().then_text(["Half"]).gate(&gate)]).1.start().await.unwrap();
        let (asked, stopped) = tokio::join!(agent.ask("Hi"), async {
            gate.reached().await;
            if discards { agent.stop_discarding(DEADLINE).await } else { agent.stop(DEADLINE).await }
        });
        stopped.unwrap();
        match asked {
            Ok(response) if !discards => assert_eq!(response.text(), "Half"),
            Err(error) if discards && error.kind() == ErrorKind::Cancelled => {
                assert_eq!(error.response().unwrap().text(), "Half");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stop_with_nothing_to_keep_is_a_cancel_and_carries_the_staged_prompt_back() {
    let gate = Gate::new();
    let agent = scripted([Step::new().gate(&gate)]).1.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    agent.prompt("And this").await.unwrap();
    answered(agent.stop(DEADLINE)).await.unwrap();
    let run = run_events(&mut events).await;
    assert!(matches!(&**run.last().unwrap(), Event::Cancelled { .. }), "{run:?}");
    assert_eq!(returned(&run)[0].content, "And this".into());
    assert_eq!(left(&mut events).await, 0);
}

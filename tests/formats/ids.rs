//! Ids of messages, data of the application, and what a message states about decisions and ends are never sent.

use std::time::Duration;

use omni_agent::{
    agent::{Agent, AgentCallbacks, Snapshot, State, ToolDecision},
    async_trait,
    message::{DecisionKind, StopReason, ToolUse},
    run::Prompt,
};
use serde_json::json;

use crate::{
    rig::{Format, Rig, weather, within_a_minute},
    script::{Answer, Stop},
};

/// Callbacks that approve each tool use, so that its result states a decision.
struct Approving;

#[async_trait]
impl AgentCallbacks for Approving {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Approve
    }
}

/// Runs two turns. All messages have ids, and the first prompt also has data of the application. Checks that no request
/// contains an id or this data.
async fn check(agent: &Agent, rig: &Rig) {
    rig.service.will(
        Answer::thinking("Rome.", "sig-1").then_opaque("search").then_text("Let me see.").then_call(
            "call_1",
            "weather",
            &json!({"city": "Rome"}),
        ),
    );
    rig.service.will(Answer::text("It rains.").stopping(Stop::Length));
    rig.service.will(Answer::text("You're welcome."));
    let prompt = Prompt::new("Weather in Rome?").with_id("client-id-17");
    agent.ask(prompt.with_app_data(json!({ "app-member": "app-value" }))).await.unwrap();
    agent.ask(Prompt::new("Thanks.")).await.unwrap();
    let snapshot: Snapshot = agent.snapshot().await.unwrap();
    let history = snapshot.state.history;
    let ids: Vec<String> = history.iter().map(|message| message.id.as_ref().unwrap().to_string()).collect();
    assert_eq!((ids.len(), ids[0].as_str()), (6, "client-id-17"));
    let decided = history.get(2).unwrap().tool_results().next().unwrap().decision.as_deref();
    assert_eq!(decided.map(|decision| decision.kind), Some(DecisionKind::Execute));
    assert_eq!(history.get(3).unwrap().ended.as_deref(), Some(&StopReason::Length));
    let requests = rig.service.texts();
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert!(request.contains("Weather in Rome?"), "{request}");
        assert!(
            !request.contains("app-member") && !request.contains("app-value"),
            "{:?}: {request}",
            rig.format
        );
        assert!(!request.contains("\"decision\"") && !request.contains("\"ended\""), "{request}");
        let sent = ids.iter().find(|id| request.contains(id.as_str()));
        assert_eq!(sent, None, "{:?}: {request}", rig.format);
        // All ids that the agent makes begin with the turn's id.
        let turn = ids[1].split_at(22).0;
        assert!(!request.contains(turn), "{:?}: {request}", rig.format);
    }
    agent.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn request_of_any_format_contains_no_id_and_no_application_data() {
    within_a_minute(async {
        for format in Format::ALL {
            let rig = Rig::new(format).await;
            let agent = rig.builder().tool(weather()).callbacks(Approving).start().await.unwrap();
            check(&agent, &rig).await;
        }
    })
    .await;
}

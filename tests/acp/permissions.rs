//! The agent's permission requests, and the cancellation of turns.

use async_trait::async_trait;
use futures_util::StreamExt;
use omni_agent::{
    agent::{Agent, AgentCallbacks, Event, State, Status, ToolDecision},
    message::{ToolResult, ToolUse},
    provider::{
        StopReason,
        custom::{Backend, BackendEvent, SessionOptions},
    },
    subscription::Update,
    tool::Decision,
};
use serde_json::json;

use crate::support::{Place, asked, on, prompt, read, soon, until};

struct Decides(ToolDecision);

#[async_trait]
impl AgentCallbacks for Decides {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        assert_eq!((tool_use.name.as_str(), &tool_use.input), ("delete", &json!({ "title": "Delete it" })));
        self.0.clone()
    }
}

#[tokio::test]
async fn permission_request_receives_the_decision() {
    let chosen = ToolDecision::Provide(ToolResult::ok(&ToolUse::new("t1", "delete", json!({})), "always"));
    let cases = [
        (ToolDecision::Execute, "Deleted: yes."),
        (chosen, "Deleted: always."),
        (ToolDecision::Reject("not today".into()), "Kept."),
        (ToolDecision::ExecuteWith(json!({})), "Kept."),
    ];
    let place = Place::new();
    for (decision, answer) in cases {
        let agent = on(place.agent("")).callbacks(Decides(decision)).start().await.unwrap();
        assert_eq!(soon(agent.ask("Delete")).await.unwrap().text(), answer);
    }
    place.is_left().await;
}

/// Sends a prompt. Returns the tool use for which the agent requests a permission, and a subscription to the agent.
async fn paused(agent: &Agent) -> (ToolUse, omni_agent::agent::AgentSubscription) {
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Delete").await.unwrap();
    loop {
        let Some(Update::Event(event)) = soon(events.next()).await else {
            panic!("the agent did not request a permission")
        };
        if let Event::Status { status: Status::Paused, pauses } = &*event.event {
            return (pauses[0].tool_use.clone(), events);
        }
    }
}

#[tokio::test]
async fn permission_that_pauses_continues_with_resume() {
    let place = Place::new();
    let pauses = Decides(ToolDecision::Pause(json!("ask")));
    let agent = on(place.agent("")).callbacks(pauses).start().await.unwrap();
    let (tool_use, mut events) = paused(&agent).await;
    agent.resume(tool_use.id, Decision::Execute).await.unwrap();
    loop {
        let Some(Update::Event(event)) = soon(events.next()).await else { panic!("the agent has ended") };
        if let Event::Turn { response, .. } = &*event.event {
            assert_eq!(response.text(), "Deleted: yes.");
            break;
        }
    }
}

#[tokio::test]
async fn permission_of_a_cancelled_turn_is_answered_as_cancelled() {
    let place = Place::new();
    let pauses = Decides(ToolDecision::Pause(json!("ask")));
    let agent = on(place.agent("")).callbacks(pauses).start().await.unwrap();
    let (_, _events) = paused(&agent).await;
    agent.cancel().await.unwrap();
    let answer_file = place.path().join("taken-back");
    until("the agent received the answer", || answer_file.exists()).await;
    assert_eq!(soon(agent.ask("Hello")).await.unwrap().text(), "You said: Hello");
    assert_eq!(place.pids().len(), 1, "the session continues");
}

#[tokio::test]
async fn permissions_with_one_id_at_once_receive_their_own_decisions() {
    struct Pauses;
    #[async_trait]
    impl AgentCallbacks for Pauses {
        async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
            ToolDecision::Pause(json!("ask"))
        }
    }
    let place = Place::new();
    let agent = on(place.agent("")).callbacks(Pauses).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Write both").await.unwrap();
    let response = loop {
        let Some(Update::Event(event)) = soon(events.next()).await else { panic!("the agent has ended") };
        match &*event.event {
            Event::Status { status: Status::Paused, pauses } => {
                let asked = &pauses[0].tool_use;
                let decision = match asked.input["path"].as_str() {
                    Some("a") => Decision::Execute,
                    _ => Decision::Reject("no".to_owned()),
                };
                agent.resume(asked.id.clone(), decision).await.unwrap();
            }
            Event::Turn { response, .. } => break response.text(),
            Event::Error { failure, .. } => panic!("{failure:?}"),
            _ => {}
        }
    };
    assert_eq!(response, "a: yes. b: no. ");
}

#[tokio::test]
async fn cancel_while_the_stream_is_read_ends_it_as_cancelled() {
    let place = Place::new();
    let session = soon(place.agent("").start(&SessionOptions::default())).await.unwrap();
    for said in ["Go on for ever", "Delete"] {
        let mut stream = session.prompt(prompt(said)).await.unwrap();
        let mut questions = Vec::new();
        loop {
            match soon(stream.next()).await.unwrap() {
                BackendEvent::Text(_) => break,
                BackendEvent::Permission(question) => {
                    questions.push(question);
                    break;
                }
                _ => {}
            }
        }
        soon(session.cancel()).await.unwrap();
        assert_eq!(read(stream).await.result.unwrap().stop_reason, StopReason::Cancelled, "{said}");
        assert_eq!(questions.len(), usize::from(said == "Delete"));
    }
    assert_eq!(asked(&*session, "Hello").await.text, "You said: Hello");
}

//! Questions of servers during a call, which pause the agent until a person answers.

use std::{collections::HashSet, time::Duration};

use omni_agent::{
    Agent, Event, Status, Update,
    mcp::McpClient,
    testing::{ScriptedProvider, Step},
    tool::Decision,
};
use serde_json::{Value, json};

use crate::{
    generations::{Fixture, run},
    support::{LIMIT, set, soon},
};

/// Calls a tool in an agent, decides each question, and returns the questions and the text of the result.
pub async fn answered(
    client: &McpClient,
    tool: &str,
    input: Value,
    decide: impl Fn(&Value) -> Decision,
) -> (Vec<Value>, String) {
    let provider = ScriptedProvider::new([Step::tool_use("call-1", tool, input), Step::text("Done.")]);
    let agent = Agent::builder().model(provider.model()).tools(set(client).await);
    let agent = agent.start().await.unwrap();
    let mut updates = agent.subscribe().await.unwrap();
    agent.prompt("Go").await.unwrap();
    let (mut questions, mut text, mut asked) = (Vec::new(), String::new(), HashSet::new());
    loop {
        let Update::Event(numbered) = soon(updates.next()).await.unwrap() else { continue };
        match &*numbered.event {
            Event::Status { status: Status::Paused, pauses } => {
                for pause in pauses.iter().filter(|pause| asked.insert(pause.tool_use.id.clone())) {
                    assert_eq!(pause.asked_by.as_ref().unwrap().as_str(), "call-1");
                    let decision = decide(&pause.reason);
                    questions.push(pause.reason.clone());
                    agent.resume(pause.tool_use.id.clone(), decision).await.unwrap();
                }
            }
            Event::ToolResult { result, .. } => text = result.text(),
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    agent.stop(LIMIT).await.unwrap();
    (questions, text)
}

fn form() -> Value {
    let schema =
        json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    json!({ "mcp": "form", "server": "it", "message": "Who?", "schema": schema })
}

fn url() -> Value {
    json!({ "mcp": "url", "server": "it", "message": "Log in", "url": "https://example.com/login" })
}

/// Asks each kind of question, and gives each kind of answer.
async fn check(script: &str, over_http: bool) {
    let Some(fixture) = Fixture::new(script, over_http).await else { return };
    let client = soon(fixture.client().connect()).await.unwrap();
    let ask = async |kind: &str, decision: Decision| {
        answered(&client, "it__ask", json!({ "kind": kind }), |_| decision.clone()).await
    };
    let ann = || Decision::ExecuteWith(json!({ "name": "Ann" }));
    let (questions, result) = ask("form", ann()).await;
    assert_eq!(questions, [form()]);
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["answers"]["form"], json!({ "action": "accept", "content": { "name": "Ann" } }));
    let (questions, result) = ask("url", Decision::Execute).await;
    assert_eq!(questions, [url()]);
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["answers"]["url"], json!({ "action": "accept" }));
    for (kind, question) in [("form", form()), ("url", url())] {
        let (questions, result) = ask(kind, Decision::Reject("no".to_owned())).await;
        assert_eq!(questions, [question]);
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(result["answers"][kind], json!({ "action": "decline" }));
    }
    let (questions, result) = ask("two", ann()).await;
    assert_eq!(questions, [form(), url()]);
    assert!(
        result.contains(r#""form":{"action":"accept""#) && result.contains(r#""url":{"action""#),
        "{result}"
    );
    if script == "new.mjs" {
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(result["state"], "state of two");
    }
    check_cancel(&client).await;
    // Without an agent, questions are declined.
    let alone = run(&set(&client).await, "ask", json!({ "kind": "form" })).await.text();
    assert!(alone.contains("decline"), "{alone}");
    soon(client.close()).await;
}

/// Cancels an agent while a question waits.
async fn check_cancel(client: &McpClient) {
    for kind in ["form", "url"] {
        let steps = [Step::tool_use("call-1", "it__ask", json!({ "kind": kind }))];
        let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tools(set(client).await);
        let agent = agent.start().await.unwrap();
        let mut updates = agent.subscribe().await.unwrap();
        agent.prompt("Go").await.unwrap();
        loop {
            let Update::Event(numbered) = soon(updates.next()).await.unwrap() else { continue };
            match &*numbered.event {
                Event::Status { status: Status::Paused, .. } => agent.cancel().await.unwrap(),
                Event::Cancelled { .. } => break,
                _ => {}
            }
        }
        soon(agent.stop(LIMIT)).await.unwrap();
        assert_eq!(run(&set(client).await, "echo", json!({ "text": "again" })).await.text(), "again");
    }
}

#[tokio::test]
async fn questions_of_a_new_server_over_standard_io_are_answered() {
    check("new.mjs", false).await;
}

#[tokio::test]
async fn questions_of_a_new_server_over_http_are_answered() {
    check("new.mjs", true).await;
}

#[tokio::test]
async fn questions_of_an_old_server_over_standard_io_are_answered() {
    check("old.mjs", false).await;
}

#[tokio::test]
async fn questions_of_an_old_server_over_http_are_answered() {
    check("old.mjs", true).await;
}

#[tokio::test]
async fn questions_without_end_are_bounded() {
    let Some(new) = Fixture::new("new.mjs", false).await else { return };
    let client = soon(new.client().connect()).await.unwrap();
    let ann = |_: &Value| Decision::ExecuteWith(json!({ "name": "Ann" }));
    let (questions, result) = answered(&client, "it__ask", json!({ "kind": "endless" }), ann).await;
    assert_eq!(questions.len(), 10);
    assert!(result.contains("more than ten times"), "{result}");
    let Some(old) = Fixture::new("old.mjs", false).await else { return };
    let client = soon(old.client().idle_limit(Duration::from_secs(3)).connect()).await.unwrap();
    let (questions, result) = answered(&client, "it__ask", json!({ "kind": "endless" }), ann).await;
    assert_eq!(questions.len(), 100);
    assert!(result.contains("did not answer within 3s"), "{result}");
}

#[tokio::test]
async fn question_waits_longer_than_the_limits_of_the_call() {
    for script in ["new.mjs", "old.mjs"] {
        let Some(fixture) = Fixture::new(script, false).await else { return };
        let limit = Duration::from_millis(400);
        let client = soon(fixture.client().idle_limit(limit).total_limit(limit).connect()).await.unwrap();
        let decide = |_: &Value| {
            std::thread::sleep(limit * 2);
            Decision::ExecuteWith(json!({ "name": "Ann" }))
        };
        let (_, result) = answered(&client, "it__ask", json!({ "kind": "form" }), decide).await;
        assert!(result.contains("Ann"), "{result}");
    }
}

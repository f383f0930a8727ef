//! Calls that a server answers with a task.

use std::time::Duration;

use omni_agent::{ToolContext, tool::Decision};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{
    questions::answered,
    support::{Hostile, call, call_in, failure, set, soon, until},
};

#[tokio::test]
async fn call_task_is_polled_until_its_result_and_reports_its_messages() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.unpinned("tasks").connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.unwrap(), "2026-07-28");
    let tools = set(&client).await;
    let (sender, mut reports) = mpsc::channel(100);
    let context = ToolContext::detached("call-1").with_progress(sender);
    let done = soon(call_in(&tools, "hostile__done", "", context)).await;
    assert_eq!((done.text().as_str(), done.is_error), ("the result", false));
    assert_eq!(hostile.count("tasks/get"), 3);
    assert_eq!(reports.try_recv().unwrap().1["message"], "poll 0");
    assert_eq!(hostile.count("task done-1"), 0, "a task that has ended is not cancelled");
    // The server may only answer with tasks if the client offers to wait for them.
    let offered = hostile.log().into_iter().find(|line| line.starts_with("capabilities ")).unwrap();
    assert!(
        offered.contains("io.modelcontextprotocol/tasks") && offered.contains("elicitation"),
        "{offered}"
    );

    let failed = failure(&call(&tools, "hostile__fails", "").await);
    assert_eq!(failed, r#"the MCP server "hostile" refused the request: broken: [secret]"#);
    let cancelled = failure(&call(&tools, "hostile__cancelled", "").await);
    assert!(cancelled.contains("its task was cancelled"), "{cancelled}");
}

#[tokio::test]
async fn call_task_without_end_stops_at_the_total_limit_and_is_cancelled() {
    let Some(hostile) = Hostile::new() else { return };
    let client = hostile.unpinned("tasks").total_limit(Duration::from_millis(500));
    let client = soon(client.connect()).await.unwrap();
    let tools = set(&client).await;
    let endless = failure(&call(&tools, "hostile__for_ever", "").await);
    assert_eq!(endless, r#"the MCP server "hostile" did not answer within 500ms"#);
    until("the task is cancelled", || hostile.count("task for_ever-1") == 1).await;
}

#[tokio::test]
async fn call_task_dropped_is_cancelled_at_the_server() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.unpinned("tasks").connect()).await.unwrap();
    let tools = set(&client).await;
    let calling = tokio::spawn(async move { call(&tools, "hostile__for_ever", "").await });
    until("the task runs", || hostile.count("tasks/get") == 1).await;
    calling.abort();
    until("the task is cancelled", || hostile.count("task for_ever-1") == 1).await;
}

#[tokio::test]
async fn call_task_that_asks_gets_the_answer_once() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.unpinned("tasks").connect()).await.unwrap();
    let (questions, result) =
        answered(&client, "hostile__asks", json!({}), |_| Decision::ExecuteWith(json!({ "x": 1 }))).await;
    assert_eq!(questions.len(), 1, "{questions:?}");
    assert!(result.contains(r#""action":"accept""#) && result.contains(r#""x":1"#), "{result}");
    assert_eq!(hostile.count("tasks/update"), 1);
}

#[tokio::test]
async fn call_server_that_asks_for_ever_is_refused_and_its_task_cancelled() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.unpinned("tasks").connect()).await.unwrap();
    let (questions, result) =
        answered(&client, "hostile__asks_for_ever", json!({}), |_| Decision::Execute).await;
    assert_eq!(questions.len(), 10);
    assert!(result.contains("it asked questions more than ten times"), "{result}");
    until("the task is cancelled", || hostile.count("task asks_for_ever-1") == 1).await;
    let empty = failure(&call(&set(&client).await, "hostile__asks_without_task", "").await);
    assert!(empty.contains("it asked questions more than ten times"), "{empty}");
    assert_eq!(hostile.count("tools/call"), 1 + 11);
}

//! The routes of AG-UI: the form of the stream, and its end.

use axum::http::{Method, StatusCode};
use omni_agent::testing::{Gate, Step};
use serde_json::{Value, json};

use crate::support::{App, request, run_input};

#[tokio::test]
async fn draining_refuses_new_runs_and_joins_and_lets_running_streams_end() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["One."]).gate(&gate).stop()]);
    let id = app.create("ann").await;
    let body = Some(run_input(&id, "r1", "Hi"));
    let first = app.send(request(Method::POST, "ann", "/ag-ui", body)).await;
    gate.reached().await;
    app.web.drain();
    for refused in [
        app.get("ann", &format!("/ag-ui/{id}?protocolVersion=1.0")).await,
        app.post("ann", "/ag-ui", run_input(&id, "r2", "And?")).await,
    ] {
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
        assert!(refused.header("retry-after").is_some());
    }
    gate.open();
    let body = axum::body::to_bytes(first.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let last = text.trim_end().lines().last().unwrap();
    assert!(last.contains("RUN_FINISHED") && last.contains("success"), "{text}");
}

#[tokio::test]
async fn result_after_one_with_a_large_file_is_sent_after_it() {
    let step =
        Step::new().then_tool_use("d1", "draw", json!({})).then_tool_use("u1", "unknown", json!({})).stop();
    let app = App::new([step, Step::text("There.")]);
    let id = app.create("ann").await;
    let answer = app.post("ann", "/ag-ui", run_input(&id, "r1", "Draw")).await;
    let frames = answer.text.lines().filter_map(|line| line.strip_prefix("data:"));
    let frames = frames.map(|frame| serde_json::from_str::<Value>(frame).unwrap());
    let results = frames.filter(|frame| frame["type"] == "TOOL_CALL_RESULT");
    let order: Vec<_> = results.map(|result| result["toolCallId"].clone()).collect();
    assert_eq!(order, ["d1", "u1"], "{answer:?}");
}

#[tokio::test]
async fn long_message_id_is_known_to_its_client() {
    let mut kinds = Vec::new();
    for id in ["m".to_owned(), "m".repeat(80)] {
        let app = App::new([Step::text("One.")]);
        let thread = app.create("ann").await;
        let mut body = run_input(&thread, "r1", "Hi");
        body["messages"][0]["id"] = id.into();
        let answer = app.post("ann", "/ag-ui", body).await;
        let frames = answer.text.lines().filter_map(|line| line.strip_prefix("data:"));
        let frames = frames.map(|frame| serde_json::from_str::<Value>(frame).unwrap()["type"].clone());
        kinds.push(frames.collect::<Vec<_>>());
    }
    assert_eq!(kinds[0], kinds[1]);
}

#[tokio::test]
async fn two_long_message_ids_with_the_same_beginning_are_two_prompts() {
    let app = App::new([Step::text("One."), Step::text("Two.")]);
    let id = app.create("ann").await;
    let long = |end: &str| format!("{}{end}", "m".repeat(80));
    let user = |id: &str, text: &str| json!({ "id": id, "role": "user", "content": text });
    let (first, second) = (user(&long("1"), "First"), user(&long("2"), "Second"));
    let body = |run: &str, messages: Vec<Value>| {
        let mut body = run_input(&id, run, "");
        body["messages"] = messages.into();
        body
    };
    let answer = app.post("ann", "/ag-ui", body("r1", vec![first])).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let answer = app.post("ann", "/ag-ui", body("r2", vec![second])).await;
    let delta = |text: &str| answer.text.contains(&format!("\"delta\":\"{text}\""));
    assert_eq!(["One.", "Two."].map(delta), [false, true], "{answer:?}");
}

//! If a principal loses access to a conversation, the principal's streams of it end, and show nothing that happens
//! afterwards.

use axum::{
    body::to_bytes,
    http::{Method, StatusCode},
};
use omni_agent::{
    provider::custom::Part,
    store::ConversationId,
    testing::{Gate, Step},
};
use serde_json::json;

use crate::support::{App, prompt, request, run_input, submit};

/// Gives Ann's conversation to Ben.
async fn give_away(app: &App, id: &str) {
    let command = json!({ "type": "labels", "labels": { "user": "ben" } });
    let given = app.post("boss", &format!("/agent/conversations/{id}/commands"), command).await;
    assert_eq!(given.status, StatusCode::OK, "{given:?}");
}

fn secret(gate: &Gate) -> Step {
    Step::new().then_text(["Shown. "]).gate(gate).more(Part::Text("Hidden.".to_owned())).stop()
}

/// Sends this request, takes the conversation away from the principal in the middle of the run, and returns the whole
/// response.
async fn response_of_the_run(
    app: &App,
    gate: &Gate,
    id: &str,
    path: &str,
    body: serde_json::Value,
) -> String {
    let response = app.send(request(Method::POST, "ann", path, Some(body))).await;
    assert_eq!(response.status(), StatusCode::OK);
    gate.reached().await;
    give_away(app, id).await;
    gate.open();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    app.idle(id).await;
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn stream_of_the_ai_sdk_ends_with_an_error_if_the_conversation_is_lost() {
    let gate = Gate::new();
    let app = App::new([secret(&gate)]);
    let id = app.create("ann").await;
    let text = response_of_the_run(&app, &gate, &id, "/api/chat", submit(&id, "u1", "Hi")).await;
    assert!(text.contains("Shown.") && !text.contains("Hidden."), "{text}");
    let frames: Vec<&str> = text.split("\n\n").filter(|frame| !frame.is_empty()).collect();
    let [.., error, done] = &frames[..] else { panic!("{text}") };
    assert_eq!(
        (*error, *done),
        (r#"data: {"type":"error","errorText":"There is no such conversation."}"#, "data: [DONE]",)
    );
    let resumed = app.get("ann", &format!("/api/chat/{id}/stream")).await;
    assert_eq!(resumed.code(), "not-found");
}

#[tokio::test]
async fn run_of_ag_ui_ends_with_an_error_if_the_conversation_is_lost() {
    let gate = Gate::new();
    let app = App::new([secret(&gate)]);
    let id = app.create("ann").await;
    let text = response_of_the_run(&app, &gate, &id, "/ag-ui", run_input(&id, "r1", "Hi")).await;
    assert!(text.contains("Shown.") && !text.contains("Hidden."), "{text}");
    let last = text.trim_end().lines().last().unwrap();
    assert!(last.contains("RUN_ERROR") && last.contains("not-found"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_a_lost_conversation_gets_no_snapshot() {
    let words: Vec<String> = (0..2_000).map(|number| format!("hidden{number} ")).collect();
    let app = App::new([Step::new().then_text(words).stop()]);
    let id = app.create("ann").await;
    let mut stream = app.stream("ann", &format!("/agent/conversations/{id}/events"), None).await;
    stream.next().await.unwrap();
    give_away(&app, &id).await;
    app.post("ben", &format!("/agent/conversations/{id}/commands"), prompt("Hi")).await;
    app.idle(&id).await;
    // The reader is so late that the change of the labels is no longer among the events that it can get.
    let frame = stream.next().await.unwrap();
    assert_eq!(
        (frame.event.as_str(), &frame.data["problem"]["status"]),
        ("refused", &json!(404)),
        "{frame:?}"
    );
    let ending = stream.next().await.unwrap();
    assert_eq!(ending.event, "ending");
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_the_list_hears_nothing_of_a_lost_conversation() {
    let app = App::new([]);
    let (lost, kept) = (app.create("ann").await, app.create("ann").await);
    let [lost_id, kept_id] = [&lost, &kept].map(|id| ConversationId::new(id.as_str()).unwrap());
    let mut stream = app.stream("ann", "/agent/events?list=true", None).await;
    let first = stream.next().await.unwrap();
    assert_eq!(first.data["update"]["snapshot"]["open"].as_array().unwrap().len(), 2, "{first:?}");
    give_away(&app, &lost).await;
    // The reader is so late that the change of the labels is no longer among the events that it can get.
    for number in 0..2_000 {
        app.manager.rename(&kept_id, Some(&format!("Title {number}"))).await.unwrap();
    }
    let mut resynced = stream.next().await.unwrap();
    while resynced.data["update"]["type"] != "resync" {
        resynced = stream.next().await.unwrap();
    }
    assert_eq!(resynced.data["update"]["snapshot"]["open"].as_array().unwrap().len(), 1, "{resynced:?}");
    app.manager.rename(&lost_id, Some("Hidden")).await.unwrap();
    app.manager.rename(&kept_id, Some("The end")).await.unwrap();
    loop {
        let frame = stream.next().await.unwrap();
        assert!(!frame.data.to_string().contains("Hidden"), "{frame:?}");
        if frame.data.to_string().contains("The end") {
            return;
        }
    }
}

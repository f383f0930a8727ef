//! Streams of the AI SDK and of AG-UI that are cut off. Either the stream sends its last frame, or its body fails. A
//! body must not merely end, because a client treats that as a complete answer.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Method, StatusCode},
};
use futures_util::StreamExt;
use omni_agent::{
    Agent,
    access::{Principal, StartRequest},
    manager::{Manager, OpenOptions, Titles},
    store::{ConversationId, MemoryStore, Store},
    testing::{Gate, ScriptedProvider, Step},
    web::{Web, WebLimits},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{App, Users, labels, request};

/// The error of a stream whose conversation is lost.
const NOT_SAVED: &str =
    "This server can no longer save the conversation. Load it again to see its current state.";

/// Reads a body to its end. Returns its text, and whether it has failed.
pub(crate) async fn read(body: Body) -> (String, bool) {
    let mut stream = body.into_data_stream();
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Err(_) => return (text, true),
        }
    }
    (text, false)
}

/// An answer in two parts. The second part has so many pieces that a reader that does not read them loses events.
fn long_answer(gate: &Gate) -> Step {
    Step::new().then_text(["One"]).gate(gate).then_text((0..2000).map(|number| format!(" {number}"))).stop()
}

fn ai_sdk_prompt(id: &str) -> (&'static str, Value) {
    let message = json!({ "id": "u1", "role": "user", "parts": [{ "type": "text", "text": "Go" }] });
    ("/api/chat", json!({ "id": id, "trigger": "submit-message", "messages": [message] }))
}

fn ag_ui_prompt(id: &str) -> (&'static str, Value) {
    let message = json!({ "id": "u1", "role": "user", "content": "Go" });
    let rest = json!({ "state": {}, "tools": [], "context": [], "forwardedProps": {} });
    let mut body = json!({ "threadId": id, "runId": "r1", "messages": [message] });
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    ("/ag-ui", body)
}

/// Sends a prompt and returns the body of the stream.
async fn start(web: &Web, (path, body): (&'static str, Value)) -> Body {
    let router = Router::new().nest("/api", web.ai_sdk()).nest("/ag-ui", web.ag_ui());
    let response = router.oneshot(request(Method::POST, "ann", path, Some(body))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body()
}

#[tokio::test]
async fn reader_of_ag_ui_that_is_too_slow_gets_the_rest_of_the_run() {
    let gate = Gate::new();
    let app = App::new([long_answer(&gate)]);
    let id = app.create("ann").await;
    let body = start(&app.web, ag_ui_prompt(&id)).await;
    gate.reached().await;
    gate.open();
    app.idle(&id).await;
    let (text, has_failed) = read(body).await;
    assert!(!has_failed, "{text}");
    let frames = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let frames: Vec<Value> = frames.map(|frame| serde_json::from_str(frame).unwrap()).collect();
    let of = |kind: &'static str| frames.iter().filter(move |frame| frame["type"] == kind);
    let answer: String = of("TEXT_MESSAGE_CONTENT").map(|frame| frame["delta"].as_str().unwrap()).collect();
    assert_eq!(answer, (0..2000).fold("One".to_owned(), |text, number| format!("{text} {number}")));
    assert!(of("TEXT_MESSAGE_CONTENT").count() < 2000, "no event was missed");
    // The answer has two blocks of text, and each of them is a message.
    assert_eq!((of("TEXT_MESSAGE_START").count(), of("MESSAGES_SNAPSHOT").count()), (2, 0));
    assert_eq!(frames.last().unwrap()["type"], "RUN_FINISHED");
}

#[tokio::test(start_paused = true)]
async fn stream_whose_lifetime_is_over_fails_and_the_client_joins_the_run_again() {
    let ends = [("[DONE]", "stream"), ("RUN_FINISHED", "?protocolVersion=1.0")];
    for (prompt, (last, join)) in [ai_sdk_prompt, ag_ui_prompt].into_iter().zip(ends) {
        let gate = Gate::new();
        let app = App::new([Step::new().then_text(["One"]).gate(&gate).then_text([" two"]).stop()]);
        let id = app.create("ann").await;
        let body = start(&app.web, prompt(&id)).await;
        gate.reached().await;
        let (text, has_failed) = read(body).await;
        assert!(has_failed && text.contains("\"One\""), "{text}");
        for last in ["[DONE]", "\"finish\"", "RUN_FINISHED", "RUN_ERROR"] {
            assert!(!text.contains(last), "{last} in {text}");
        }
        let path =
            if join == "stream" { format!("/api/chat/{id}/{join}") } else { format!("/ag-ui/{id}{join}") };
        let again = app.send(request(Method::GET, "ann", &path, None)).await.into_body();
        gate.open();
        let (text, has_failed) = read(again).await;
        assert!(!has_failed && text.contains("\" two\"") && text.contains(last), "{text}");
    }
}

#[tokio::test]
async fn stream_of_a_session_that_is_closed_in_mid_answer_ends_with_the_cancellation() {
    // If a request names no version of AG-UI, the `RUN_FINISHED` of a cancelled run has no `outcome`.
    let ends = ["\"discarded\":true", "\"type\":\"RUN_FINISHED\",\"threadId\""];
    for (prompt, last) in [ai_sdk_prompt, ag_ui_prompt].into_iter().zip(ends) {
        let gate = Gate::new();
        let app = App::new([long_answer(&gate)]);
        let id = app.create("ann").await;
        let body = start(&app.web, prompt(&id)).await;
        gate.reached().await;
        app.manager.close_discarding(&ConversationId::new(id.as_str()).unwrap()).await.unwrap();
        let (text, has_failed) = read(body).await;
        assert!(!has_failed && text.contains(last), "{text}");
    }
}

#[tokio::test]
async fn stream_of_a_session_that_loses_its_conversation_in_mid_answer_fails() {
    let gate = Gate::new();
    let store = MemoryStore::new();
    let provider = ScriptedProvider::new([long_answer(&gate), Step::new().then_text(["Two"]).hang()]);
    let model = provider.model();
    let agent = move || OpenOptions::new(Agent::builder().model(model.clone()));
    let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
    let id = ConversationId::new("talk").unwrap();
    manager.create_with_id(&id, agent().labels(labels("ann"))).await.unwrap();
    let agents = move |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(agent());
    let web = Web::builder(manager, Users, agents).build();

    let _first = start(&web, ai_sdk_prompt("talk")).await;
    gate.reached().await;
    // The second prompt is staged. Its answer has begun when the first turn cannot be saved.
    let (path, mut body) = ai_sdk_prompt("talk");
    body["messages"][0]["id"] = "u2".into();
    let second = start(&web, (path, body)).await;
    store.delete(&id, None).await.unwrap();
    gate.open();
    let (text, has_failed) = read(second).await;
    assert!(!has_failed && text.contains(NOT_SAVED), "{text}");
    assert!(text.contains("\"Two\"") && text.contains("[DONE]") && !text.contains("\"finish\""), "{text}");
}

#[tokio::test]
async fn stream_whose_conversation_is_deleted_by_another_program_in_mid_answer_fails() {
    for (prompt, last) in [ai_sdk_prompt, ag_ui_prompt].into_iter().zip(["\"error\"", "RUN_ERROR"]) {
        let gate = Gate::new();
        let store = MemoryStore::new();
        let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
        let app = App::over(manager, [long_answer(&gate)], |web| web);
        let id = app.create("ann").await;
        let body = start(&app.web, prompt(&id)).await;
        gate.reached().await;
        let conversation = ConversationId::new(id.as_str()).unwrap();
        store.delete(&conversation, None).await.unwrap();
        // The session notices the loss when it saves the title.
        assert!(app.manager.rename(&conversation, Some("Plans")).await.is_err());
        let (text, has_failed) = read(body).await;
        assert!(!has_failed && text.contains("\"One\"") && text.contains(last), "{text}");
        assert!(
            text.contains(NOT_SAVED) && !text.contains("\"finish\"") && !text.contains("RUN_FINISHED"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn stream_of_a_turn_that_another_server_takes_over_fails_and_the_other_server_answers() {
    for (prompt, last) in [ai_sdk_prompt, ag_ui_prompt].into_iter().zip(["\"error\"", "RUN_ERROR"]) {
        let (gate, store) = (Gate::new(), MemoryStore::new());
        let old = App::durable(&store, [long_answer(&gate)]);
        let id = old.create("ann").await;
        let body = start(&old.web, prompt(&id)).await;
        gate.reached().await;
        let new = App::durable(&store, [Step::text("Whole")]);
        new.get("ann", &format!("/agent/conversations/{id}")).await;
        new.idle(&id).await;
        let conversation = ConversationId::new(id.as_str()).unwrap();
        new.manager.get(&conversation).unwrap().flush(Duration::from_mins(1)).await.unwrap();
        // The old session notices the loss when it saves the title.
        old.manager.rename(&conversation, Some("Plans")).await.unwrap();
        let (text, has_failed) = read(body).await;
        assert!(!has_failed && text.contains(last), "{text}");
        assert!(text.contains(NOT_SAVED) && !text.contains("\"finish\""), "{text}");
        let messages = new.get("ann", &format!("/api/chat/{id}/messages")).await;
        assert!(messages.text.contains("\"Whole\"") && !messages.text.contains("\"One"), "{}", messages.text);
    }
}

#[tokio::test]
async fn session_with_a_stream_in_mid_answer_is_not_evicted_for_another_one() {
    for (prompt, last) in [(ai_sdk_prompt as fn(&str) -> _, "[DONE]"), (ag_ui_prompt, "RUN_FINISHED")] {
        let gate = Gate::new();
        let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).max_open(1).build();
        let limits = WebLimits::default().with_room_timeout(Duration::ZERO);
        let script = [Step::new().then_text(["One"]).gate(&gate).then_text([" two"]).stop()];
        let app = App::over(manager, script, |web| web.limits(limits));
        let id = app.create("ann").await;
        let body = start(&app.web, prompt(&id)).await;
        gate.reached().await;
        let refused = app.post("ann", "/agent/conversations", json!({})).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no-room"));
        gate.open();
        let (text, has_failed) = read(body).await;
        assert!(!has_failed && text.contains(" two") && text.contains(last), "{text}");
    }
}

//! Messages that continue an older version of an answer, and then the newer one again.

use axum::http::{Method, StatusCode};
use omni_agent::{
    session::SessionSnapshot,
    testing::{Gate, Step},
};
use serde_json::{Value, json};

use crate::support::{App, request, run_input, submit};

/// Returns the texts of the path, and the id of its second message.
async fn path(app: &App, id: &str) -> (Vec<String>, String) {
    let snapshot = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
    let snapshot: SessionSnapshot = serde_json::from_value(snapshot).unwrap();
    let history = snapshot.tree.history();
    let second = history.iter().nth(1).and_then(|message| message.id.clone()).unwrap();
    (history.iter().map(|message| message.text()).collect(), second.to_string())
}

/// Returns the id of the last message in the list of the AI SDK.
async fn listed(app: &App, id: &str) -> String {
    let list = app.get("ann", &format!("/api/chat/{id}/messages")).await.json();
    list.as_array().unwrap().last().unwrap()["id"].as_str().unwrap().to_owned()
}

/// Returns the body of a new message of the AI SDK after the first prompt and this answer.
fn after(id: &str, answer: &str, new: &str) -> Value {
    let mut body = submit(id, new, "Next");
    let new = body["messages"][0].take();
    let asked = json!({ "id": "u1", "role": "user", "parts": [{ "type": "text", "text": "First" }] });
    body["messages"] = json!([asked, { "id": answer, "role": "assistant", "parts": [] }, new]);
    body
}

/// Returns the body of a run of AG-UI after the first prompt and this answer.
fn run_after(id: &str, answer: &str, run: &str) -> Value {
    let mut body = run_input(id, run, "Next");
    let new = body["messages"][0].take();
    let asked = json!({ "id": "u1", "role": "user", "content": "First" });
    let answer = json!({ "id": format!("{answer}-0"), "role": "assistant", "content": "One." });
    body["messages"] = json!([asked, answer, new]);
    body
}

#[tokio::test]
async fn older_version_continues_unless_a_run_is_active() {
    let gate = Gate::new();
    let held = Step::new().then_text(["Three."]).gate(&gate).stop();
    let app = App::new(
        ["One.", "Two."].map(Step::text).into_iter().chain([held]).chain(["Four.", "Five."].map(Step::text)),
    );
    let id = app.create("ann").await;
    app.post("ann", "/api/chat", submit(&id, "u1", "First")).await;
    let (older, (_, older_message)) = (listed(&app, &id).await, path(&app, &id).await);
    let mut again = submit(&id, "u1", "First");
    again["trigger"] = "regenerate-message".into();
    app.post("ann", "/api/chat", again).await;
    let (newer, (texts, newer_message)) = (listed(&app, &id).await, path(&app, &id).await);
    assert_eq!(texts, ["First", "Two."]);

    let active = request(Method::POST, "ann", "/api/chat", Some(after(&id, &newer, "u2")));
    let _active = app.send(active).await;
    gate.reached().await;
    let refused = app.post("ann", "/api/chat", after(&id, &older, "u3")).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "busy"));
    let refused = app.post("ann", "/ag-ui", run_after(&id, &older_message, "r1")).await;
    assert!(refused.text.contains(r#""code":"busy""#), "{refused:?}");
    gate.open();
    app.idle(&id).await;
    assert_eq!(path(&app, &id).await.0, ["First", "Two.", "Next", "Three."]);

    app.post("ann", "/api/chat", after(&id, &older, "u3")).await;
    assert_eq!(path(&app, &id).await.0, ["First", "One.", "Next", "Four."]);
    app.post("ann", "/ag-ui", run_after(&id, &newer_message, "r2")).await;
    assert_eq!(path(&app, &id).await.0, ["First", "Two.", "Next", "Five."]);
}

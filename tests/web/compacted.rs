//! Compacted conversations in each kind of route. Front ends show no summary as a message of the user.

use axum::http::StatusCode;
use omni_agent::testing::{Gate, Step};
use serde_json::{Value, json};

use crate::support::{App, run_input, submit};

/// Returns an application and a conversation with three turns.
async fn talked(more: impl IntoIterator<Item = Step>) -> (App, String) {
    let app = App::new(["One.", "Two.", "Three."].map(Step::text).into_iter().chain(more));
    let id = app.create("ann").await;
    for text in ["A", "B", "C"] {
        app.ask("ann", &id, text).await;
    }
    (app, id)
}

fn commands(id: &str) -> String {
    format!("/agent/conversations/{id}/commands")
}

/// Returns the texts of the messages in the last request.
fn sent(app: &App) -> Vec<String> {
    app.provider.last_request().unwrap().history.iter().map(|message| message.text()).collect()
}

#[tokio::test]
async fn front_ends_show_no_compaction_and_their_prompts_continue_after_it() {
    let (app, id) = talked(["SUMMARY", "Four.", "Five."].map(Step::text)).await;
    let answer = app.post("ann", &commands(&id), json!({ "type": "compact", "focus": "letters" })).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["message"]["compaction"]["trigger"], "request");
    assert!(sent(&app).last().unwrap().ends_with("in detail: letters"));
    assert!(app.get("ann", &format!("/agent/conversations/{id}")).await.text.contains("SUMMARY"));

    let list = app.get("ann", &format!("/api/chat/{id}/messages?ui=6")).await;
    assert!(!list.text.contains("SUMMARY"), "{list:?}");
    let mut messages: Vec<Value> = list.json().as_array().unwrap().clone();
    assert_eq!(messages.len(), 6);
    let mut body = submit(&id, "m-4", "D");
    messages.extend(body["messages"].as_array().unwrap().clone());
    body["messages"] = messages.into();
    let answer = app.post("ann", "/api/chat", body).await;
    assert!(answer.text.contains("Four."), "{answer:?}");
    let texts = sent(&app);
    assert!(texts[0].ends_with("SUMMARY"), "{texts:?}");
    assert_eq!(texts[1..], ["B", "Two.", "C", "Three.", "D"]);

    let joined = app.get("ann", &format!("/ag-ui/{id}?protocolVersion=1.0")).await;
    assert!(joined.text.contains("Four.") && !joined.text.contains("SUMMARY"), "{joined:?}");
    let answer = app.post("ann", "/ag-ui", run_input(&id, "r1", "E")).await;
    assert!(answer.text.contains("Five.") && !answer.text.contains("SUMMARY"), "{answer:?}");
    assert_eq!(sent(&app).len(), 8);
}

#[tokio::test]
async fn compact_command_that_cannot_be_performed_is_a_problem() {
    let gate = Gate::new();
    let steps = [Step::text("SUMMARY"), Step::new().then_text(["Four."]).gate(&gate).stop()];
    let (app, id) = talked(steps).await;
    let undo = json!({ "type": "compact", "how": "undo" });
    let refused = app.post("ann", &commands(&id), undo.clone()).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "not-compactable"));
    let reader = app.post("reader", &commands(&id), json!({ "type": "compact" })).await;
    assert_eq!(reader.status, StatusCode::FORBIDDEN, "{reader:?}");

    app.post("ann", &commands(&id), json!({ "type": "compact" })).await;
    let again = app.post("ann", &commands(&id), json!({ "type": "compact" })).await;
    assert_eq!((again.status.as_u16(), again.code().as_str()), (422, "not-compactable"));
    app.post("ann", &commands(&id), crate::support::prompt("D")).await;
    gate.reached().await;
    let busy = app.post("ann", &commands(&id), undo.clone()).await;
    assert_eq!((busy.status.as_u16(), busy.code().as_str()), (409, "busy"));
    gate.open();
    app.idle(&id).await;
    let undone = app.post("ann", &commands(&id), undo).await;
    assert_eq!(undone.json()["message"]["compaction"]["is_summary"], false, "{undone:?}");
}

#[tokio::test]
async fn answer_stays_in_the_lists_while_the_conversation_is_compacted() {
    let gate = Gate::new();
    let (app, id) = talked([Step::new().then_text(["SUMMARY"]).gate(&gate).stop()]).await;
    let compact = json!({ "type": "compact" });
    let path = commands(&id);
    let compacting = app.post("ann", &path, compact);
    let look = async {
        gate.reached().await;
        let list = app.get("ann", &format!("/api/chat/{id}/messages?ui=6")).await;
        assert_eq!(list.json().as_array().unwrap().len(), 6, "{list:?}");
        let resumed = app.get("ann", &format!("/api/chat/{id}/stream?ui=6")).await;
        assert_eq!(resumed.status, StatusCode::NO_CONTENT, "{resumed:?}");
        let joined = app.get("ann", &format!("/ag-ui/{id}?protocolVersion=1.0")).await;
        assert!(joined.text.contains("Three.") && joined.text.contains("RUN_FINISHED"), "{joined:?}");
        gate.open();
    };
    let (answer, ()) = tokio::join!(compacting, look);
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

//! Conversations whose recorded turn in flight this server can't read.

use axum::http::StatusCode;
use omni_agent::{
    manager::{Manager, Titles},
    message::{ToolUse, TurnId},
    run::PendingUse,
    store::{
        ConversationId, MemoryStore, Store,
        custom::{Change, Commit, TurnRecord, Write},
    },
};
use serde_json::{Value, json};

use crate::support::{Answer, App, prompt, run_input, submit};

const TURN: &str = "00112233445566778899aabbccddeeff";

/// Returns an application with a conversation of Ann that is not open, and whose turn in flight has this record.
async fn app_with_turn(format: u32, core: &str) -> (App, String) {
    let store = MemoryStore::new();
    let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
    let app = App::over(manager, [], |web| web);
    let id = app.create("ann").await;
    let conversation = ConversationId::new(&id).unwrap();
    app.manager.close(&conversation).await.unwrap();
    let turn: TurnId = TURN.parse().unwrap();
    let waiting = PendingUse::new(TurnId::default(), ToolUse::new("a", "lookup", json!({})));
    let record = TurnRecord::new(format, turn, core).with_waiting(vec![waiting]);
    let version = store.summary(&conversation).await.unwrap().version;
    let commit = Commit::new(None).with_usage([]).with_turn(record);
    store.write(&conversation, &Write::on(version), &Change::Commit(commit)).await.unwrap();
    (app, id)
}

/// Returns the answers of all routers to requests that open the conversation.
async fn answers(app: &App, id: &str) -> Vec<Answer> {
    let path = format!("/agent/conversations/{id}");
    vec![
        app.get("ann", &path).await,
        app.get("ann", &format!("{path}/events")).await,
        app.post("ann", &format!("{path}/commands"), prompt("Hi")).await,
        app.post("ann", "/api/chat", submit(id, "u1", "Hi")).await,
        app.get("ann", &format!("/api/chat/{id}/messages")).await,
        app.post("ann", "/ag-ui", run_input(id, "r1", "Hi")).await,
    ]
}

/// Returns the event with which a stream refuses the conversation.
async fn refusal(app: &App, id: &str) -> Value {
    let mut stream = app.stream("ann", &format!("/agent/events?watch={id}"), None).await;
    let refused = stream.next().await.unwrap();
    assert_eq!(refused.event, "refused");
    refused.data
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_newer_version_is_unavailable_on_all_routers() {
    let (app, id) = app_with_turn(99, "{}").await;
    for answer in answers(&app, &id).await {
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, "newer-turn"),
            "{answer:?}"
        );
        assert!(answer.header("retry-after").is_some());
    }
    let refusal = refusal(&app, &id).await;
    assert_eq!(refusal["problem"]["type"], "urn:omni-agent:newer-turn");
    assert_eq!(refusal["retry_after"], 30);
}

#[tokio::test(start_paused = true)]
async fn damaged_turn_is_named_on_all_routers_and_for_decisions() {
    let (app, id) = app_with_turn(1, "not a state").await;
    let decision = json!({ "type": "decide", "turn": TURN, "decisions": [["a", "execute"]] });
    let decided = app.post("ann", &format!("/agent/conversations/{id}/commands"), decision).await;
    for answer in answers(&app, &id).await.into_iter().chain([decided]) {
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::INTERNAL_SERVER_ERROR, "damaged-turn"),
            "{answer:?}"
        );
        assert!(answer.json()["detail"].as_str().unwrap().contains("discard"), "{answer:?}");
    }
    let refusal = refusal(&app, &id).await;
    assert_eq!(refusal["problem"]["type"], "urn:omni-agent:damaged-turn");
    assert_eq!(refusal.get("retry_after"), None);
}

//! Conversations whose ids the clients choose.

use axum::http::{Method, StatusCode};
use omni_agent::{store::ConversationId, testing::Step};
use serde_json::json;

use crate::support::{App, request, run_input, submit};

fn app(script: impl IntoIterator<Item = Step>) -> App {
    App::with(script, |web| {
        web.client_ids(|principal, id| {
            let id = id.replace('/', "_");
            ConversationId::new(format!("{}.{id}", principal.name())).ok()
        })
    })
}

#[tokio::test]
async fn chat_of_the_ai_sdk_is_created_by_its_first_message() {
    let app = app([Step::text("One."), Step::text("Two."), Step::text("Three.")]);
    let new = app.get("ann", "/api/chat/my%2Fchat/stream").await;
    assert_eq!(new.status, StatusCode::NO_CONTENT, "a new chat has no stream: {new:?}");
    assert_eq!(app.get("ann", "/api/chat/my%2Fchat/messages").await.json(), json!([]));
    let first = app.post("ann", "/api/chat", submit("my/chat", "u1", "Hi")).await;
    assert!(first.text.contains("One."), "{first:?}");
    let second = app.post("ann", "/api/chat", submit("my/chat", "u2", "And?")).await;
    assert!(second.text.contains("Two."), "{second:?}");
    let list = app.get("ann", "/api/chat/my%2Fchat/messages").await.json();
    assert_eq!(list.as_array().unwrap().len(), 4, "{list}");
    let stop = request(Method::POST, "ann", "/api/chat/my%2Fchat/stop", None);
    assert_eq!(app.answer(stop).await.status, StatusCode::NO_CONTENT);
    let stored = app.get("ann", "/agent/conversations").await.json();
    assert_eq!(stored["items"][0]["summary"]["id"], "ann.my_chat");
    assert_eq!(stored["items"][0]["summary"]["labels"], json!({ "user": "ann" }));

    // If another user chooses the same id, it is the id of a different conversation.
    assert_eq!(app.get("ben", "/api/chat/my%2Fchat/messages").await.json(), json!([]));
    let other = app.post("ben", "/api/chat", submit("my/chat", "u1", "Hi")).await;
    assert!(other.text.contains("Three."), "{other:?}");
    assert_eq!(app.get("ann", "/api/chat/my%2Fchat/messages").await.json(), list);
}

#[tokio::test]
async fn request_without_a_usable_prompt_creates_no_conversation() {
    let app = app([]);
    let file = json!({ "type": "file", "url": "data:image/png,AAAA", "mediaType": "image/png" });
    let unreadable = json!([{ "id": "u1", "role": "user", "parts": [file] }]);
    let answer = json!([{ "id": "a-1", "role": "assistant", "parts": [{ "type": "text", "text": "Hi" }] }]);
    for messages in [json!([]), unreadable, answer] {
        let body = json!({ "id": "new", "trigger": "submit-message", "messages": messages });
        let refused = app.post("ann", "/api/chat", body).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{refused:?}");
    }
    for messages in [json!([]), json!([{ "id": "u1", "role": "user", "content": [{ "type": "other" }] }])] {
        let mut body = run_input("new", "r1", "");
        body["messages"] = messages;
        let refused = app.post("ann", "/ag-ui", body).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{refused:?}");
    }
    let mut forbidden = vec![app.post("brancher", "/api/chat", submit("new", "u1", "Hi")).await];
    forbidden.push(app.post("brancher", "/ag-ui", run_input("new", "r1", "Hi")).await);
    for refused in forbidden {
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    }
    for user in ["ann", "boss"] {
        assert_eq!(app.get(user, "/agent/conversations").await.json()["items"], json!([]));
    }
}

#[tokio::test]
async fn addresses_in_frames_have_the_id_of_the_client() {
    let draw = || Step::tool_use("d1", "draw", json!({}));
    let ask = Step::tool_use("l1", "lookup", json!({ "what": "a fact" }));
    let app = app([draw(), Step::text("There."), ask, draw(), Step::text("There.")]);
    let drawn = app.post("ann", "/api/chat", submit("my/chat", "u1", "Draw")).await;
    let file = drawn.text.split('"').find(|text| text.starts_with("/api/chat/")).unwrap();
    assert!(file.starts_with("/api/chat/my%2Fchat/files/"), "{file}");
    assert_eq!(app.get("ann", file).await.text.len(), 60_000);

    let asked = app.post("ann", "/api/chat", submit("my/chat", "u2", "Look")).await;
    let details = asked.text.lines().find(|line| line.contains("data-omni-approval")).unwrap();
    let details: serde_json::Value = serde_json::from_str(details.trim_start_matches("data: ")).unwrap();
    assert_eq!(details["data"]["commands"], "/api/chat/my%2Fchat/commands");
    let turn = &details["data"]["turn"];
    let decision = json!({ "type": "decide", "turn": turn, "decisions": [["l1", "execute"]] });
    let decided = app.post("ann", "/api/chat/my%2Fchat/commands", decision).await;
    assert_eq!(decided.status, StatusCode::OK, "{decided:?}");
    app.idle("ann.my_chat").await;

    let app = self::app([draw(), Step::text("There.")]);
    let run = app.post("ann", "/ag-ui", run_input("my/thread", "r1", "Draw")).await;
    let file = run.text.split('"').find(|text| text.starts_with("/ag-ui/")).unwrap();
    assert!(file.starts_with("/ag-ui/my%2Fthread/files/"), "{file}");
    assert_eq!(app.get("ann", file).await.text.len(), 60_000);
}

#[tokio::test]
async fn id_that_the_application_does_not_accept_is_invalid() {
    let app = App::with([], |web| web.client_ids(|_, _| None));
    for answer in [
        app.get("ann", "/api/chat/a/messages").await,
        app.post("ann", "/api/chat", submit("a", "u1", "Hi")).await,
        app.post("ann", "/ag-ui", run_input("a", "r1", "Hi")).await,
    ] {
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::BAD_REQUEST, "invalid-id"));
    }
}

#[tokio::test]
async fn principal_that_may_not_create_gets_no_conversation() {
    let app = app([]);
    let refused = app.post("reader", "/api/chat", submit("a", "u1", "Hi")).await;
    assert_eq!(refused.code(), "not-found");
    assert_eq!(app.get("boss", "/agent/conversations").await.json()["items"], json!([]));
}

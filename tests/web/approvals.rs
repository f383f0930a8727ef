//! Approvals that the store keeps: their list, and decisions about conversations that are not open.

use axum::http::{Method, StatusCode};
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

use crate::support::{App, problem, request};

const TURN: &str = "00112233445566778899aabbccddeeff";

fn app(store: &MemoryStore) -> App {
    App::over(Manager::builder(store.clone()).titles(Titles::Off).build(), [], |web| web)
}

/// Stores a conversation of this user which is not open, and whose turn waits for decisions about these tool uses.
async fn paused(app: &App, store: &MemoryStore, user: &str, waiting: &[&str]) -> String {
    let id = app.create(user).await;
    let conversation = ConversationId::new(&id).unwrap();
    app.manager.close(&conversation).await.unwrap();
    let waiting = waiting.iter().map(|id| {
        let mut tool_use = ToolUse::new(*id, "lookup", json!({ "what": user }));
        tool_use.signature = Some("secret-signature".into());
        PendingUse::new(TurnId::default(), tool_use).with_reason("needs approval".into())
    });
    let turn: TurnId = TURN.parse().unwrap();
    let record = TurnRecord::new(1, turn, "{}").with_waiting(waiting.collect());
    let version = store.summary(&conversation).await.unwrap().version;
    let commit = Commit::new(None).with_usage([]).with_turn(record);
    store.write(&conversation, &Write::on(version), &Change::Commit(commit)).await.unwrap();
    id
}

fn decision(tool_use: &str) -> Value {
    json!({ "type": "decide", "turn": TURN, "decisions": [[tool_use, "execute"]] })
}

/// Returns the ids of the conversation and of the tool use in each entry.
fn entries(page: &Value) -> Vec<(&str, &str)> {
    let items = page["items"].as_array().unwrap().iter();
    items
        .map(|item| (item["conversation"].as_str().unwrap(), item["tool_use"]["id"].as_str().unwrap()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn approvals_are_listed_for_their_user_and_decided_without_opening() {
    let store = MemoryStore::new();
    let app = app(&store);
    let id = paused(&app, &store, "ann", &["a", "b"]).await;
    paused(&app, &store, "ben", &["a"]).await;

    let page = app.get("ann", "/agent/approvals").await.json();
    assert_eq!(entries(&page), [(id.as_str(), "a"), (id.as_str(), "b")]);
    assert_eq!(
        (&page["items"][0]["turn"], &page["items"][0]["reason"]),
        (&json!(TURN), &json!("needs approval"))
    );
    assert_eq!(page["items"][0]["tool_use"]["input"], json!({ "what": "ann" }));
    assert!(!page.to_string().contains("secret"), "{page}");
    assert_eq!(app.get("boss", "/agent/approvals").await.json()["items"].as_array().unwrap().len(), 3);
    assert_eq!(entries(&app.get("reader", "/agent/approvals").await.json()).len(), 2);

    let path = format!("/agent/conversations/{id}/commands");
    let refused = app.post("reader", &path, decision("a")).await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
    assert_eq!(app.post("ben", &path, decision("a")).await.code(), "not-found");
    assert_eq!(app.post("ann", &path, decision("a")).await.status, StatusCode::OK);
    let again = app.post("ann", &path, decision("a")).await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "stale-decision"));
    assert_eq!(again.json()["waiting"], json!(["b"]));
    assert_eq!(entries(&app.get("ann", "/agent/approvals").await.json()), [(id.as_str(), "b")]);
    assert!(app.manager.list_open().is_empty(), "no conversation was opened");
    let turn = store.turn(&ConversationId::new(&id).unwrap()).await.unwrap().unwrap();
    let core: Value = serde_json::from_str(&turn.record.core).unwrap();
    assert_eq!(core["decided"][0]["by"], "ann");
}

#[tokio::test(start_paused = true)]
async fn several_decisions_on_a_closed_conversation_apply_all_or_none() {
    let store = MemoryStore::new();
    let app = app(&store);
    let id = paused(&app, &store, "ann", &["a", "b"]).await;
    let path = format!("/agent/conversations/{id}/commands");
    let decide = |decisions: Value| json!({ "type": "decide", "turn": TURN, "decisions": decisions });
    for (decisions, status, code) in [
        (json!([["a", "execute"], ["x", "execute"]]), 409, "stale-decision"),
        (json!([["a", "execute"], ["a", { "reject": "No." }]]), 400, "invalid-body"),
    ] {
        let command = decide(decisions);
        let refused = app.send(request(Method::POST, "ann", &path, Some(command.clone()))).await;
        assert_eq!(problem(refused).await, (status, code.to_owned()), "{command}");
        let page = app.get("ann", "/agent/approvals").await.json();
        assert_eq!(entries(&page), [(id.as_str(), "a"), (id.as_str(), "b")], "{command}");
    }
    let decided = app.post("ann", &path, decide(json!([["b", { "reject": "No." }], ["a", "execute"]]))).await;
    assert_eq!(decided.status, StatusCode::OK, "{decided:?}");
    assert_eq!(entries(&app.get("ann", "/agent/approvals").await.json()), []);
    let turn = store.turn(&ConversationId::new(&id).unwrap()).await.unwrap().unwrap();
    let core: Value = serde_json::from_str(&turn.record.core).unwrap();
    let order: Vec<_> = core["decided"].as_array().unwrap().iter().map(|one| &one["tool_use_id"]).collect();
    assert_eq!(order, ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn approvals_in_pages_contain_each_once() {
    let store = MemoryStore::new();
    let app = app(&store);
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(paused(&app, &store, "ann", &["a", "b"]).await);
    }
    let pages = app.pages("ann", "/agent/approvals", 2).await;
    let entries = pages.iter().flat_map(entries);
    let mut found: Vec<_> = entries.map(|(id, tool_use)| (id.to_owned(), tool_use.to_owned())).collect();
    found.sort();
    let mut expected: Vec<_> =
        made.iter().flat_map(|id| [(id.clone(), "a".to_owned()), (id.clone(), "b".to_owned())]).collect();
    expected.sort();
    assert_eq!((found, pages.len()), (expected, 3));
    for query in ["after=x", "after=1", "limit=-1", "unknown=1"] {
        let bad = app.get("ann", &format!("/agent/approvals?{query}")).await;
        assert_eq!((bad.status, bad.code().as_str()), (StatusCode::BAD_REQUEST, "invalid-query"), "{query}");
    }
}

#[tokio::test(start_paused = true)]
async fn approvals_of_hidden_conversations_leave_no_gap_in_the_pages_and_are_never_named() {
    let store = MemoryStore::new();
    let app = app(&store);
    let (mut shown, mut hidden) = (Vec::new(), Vec::new());
    for number in 0..12 {
        let id = paused(&app, &store, "ann", &["a", "b"]).await;
        if number % 4 == 0 {
            shown.push(id);
        } else {
            app.hide("ann", &id).await;
            hidden.push(id);
        }
    }
    let pages = app.pages("ann", "/agent/approvals", 2).await;
    let sizes: Vec<_> = pages.iter().map(|page| entries(page).len()).collect();
    assert_eq!(sizes, [4, 2]);
    let mut found: Vec<_> = pages.iter().flat_map(entries).map(|(id, _)| id.to_owned()).collect();
    found.dedup();
    found.sort();
    shown.sort();
    assert_eq!(found, shown);
    for page in pages {
        assert!(!hidden.iter().any(|id| page.to_string().contains(id)), "{page}");
    }
}

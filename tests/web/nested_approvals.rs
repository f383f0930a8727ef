//! The approval of a tool that is two agents below the conversation of a user.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::StreamExt;
use omni_agent::{
    agent::Agent,
    manager::{Manager, Sweep, Titles},
    session::Session,
    store::{ConversationId, MemoryStore, Owner},
    testing::{ScriptedProvider, Step},
};
use serde_json::{Value, json};

use crate::{
    ai_sdk_routes::{self, frames},
    broken_bodies::read,
    lives::in_a_life,
    nested::{Nested, REASON, calls},
    support::{App, request, run_input, submit},
};

/// Returns an application over this store. Its owner has the same name in each life, so that no lease has to expire.
fn app(store: &MemoryStore, nested: &Nested) -> App {
    let manager = Manager::builder(store.clone()).owner(Owner::new("server")).sweep(Sweep::off());
    let nested = nested.clone();
    App::running(manager.titles(Titles::Off).build(), move || nested.root())
}

/// A conversation of Ann whose root, `team` and `files` wait for the same decision.
struct Paused {
    root: String,
    /// The conversations from the root down, each with the pause and the turn that decide there.
    levels: Vec<(String, String, Value)>,
}

/// Starts a run of Ann with this task, and waits until it is paused.
async fn paused(app: &App, task: &str) -> Paused {
    let root = app.create("ann").await;
    // The response ends at the pause.
    let (text, has_failed) = post(app, "ann", "/api/chat", submit(&root, "u1", task)).await;
    assert!(!has_failed && text.contains("tool-approval-request"), "{text}");
    let mut levels = Vec::new();
    let mut next = Some(root.clone());
    while let Some(id) = next {
        let snapshot = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
        let [pause] = &snapshot["agent"]["pauses"].as_array().unwrap()[..] else { panic!("{snapshot}") };
        assert_eq!((&pause["tool_use"]["name"], &pause["reason"]), (&json!("delete"), &json!(REASON)));
        assert_eq!(pause["tool_use"]["input"], json!({ "file": task }));
        levels.push((id, pause["tool_use"]["id"].as_str().unwrap().to_owned(), pause["turn"].clone()));
        next = pause["sub_agent"]["conversation"].as_str().map(str::to_owned);
    }
    assert_eq!((levels.len(), &*levels[2].1), (3, "x0"));
    Paused { root, levels }
}

pub(crate) async fn post(app: &App, user: &str, path: &str, body: Value) -> (String, bool) {
    read(app.send(request(Method::POST, user, path, Some(body))).await.into_body()).await
}

fn session(app: &App, id: &str) -> Session {
    app.manager.get(&ConversationId::new(id).unwrap()).unwrap()
}

async fn answer(app: &App, id: &str) -> String {
    app.idle(id).await;
    session(app, id).tree().await.unwrap().history().last().unwrap().text()
}

/// The id under which the front ends show this pause.
fn shown_id(tool_use: &str, turn: &Value) -> String {
    format!("{tool_use}@{}", turn.as_str().unwrap())
}

/// The message with which a client of the AI SDK answers an approval. `answer` is the id of the message.
fn approve(id: &str, answer: &str, approval: &str) -> Value {
    let part = json!({ "type": "tool-team", "toolCallId": "c", "state": "approval-responded",
                       "approval": { "id": approval, "approved": true } });
    let message = json!({ "id": answer, "role": "assistant", "parts": [part] });
    json!({ "id": id, "trigger": "submit-message", "messageId": answer, "messages": [message] })
}

/// The request with which a client of AG-UI answers an interrupt.
pub(crate) fn resume(id: &str, run: &str, interrupt: &str) -> Value {
    let mut body = run_input(id, run, "");
    body["messages"] = json!([]);
    body["resume"] =
        json!([{ "interruptId": interrupt, "status": "resolved", "payload": { "approved": true } }]);
    body
}

#[tokio::test(start_paused = true)]
async fn approval_two_agents_below_is_listed_once_and_decided_once_at_any_level() {
    for first in 0..3 {
        let app = app(&MemoryStore::new(), &Nested::default());
        let Paused { root, levels } = paused(&app, "a.txt").await;
        let listed = app.get("ann", "/agent/approvals").await.json();
        let [item] = &listed["items"].as_array().unwrap()[..] else { panic!("{listed}") };
        assert_eq!((&item["conversation"], &item["tool_use"]["id"]), (&json!(levels[2].0), &json!("x0")));
        assert_eq!((&item["reason"], &item["tool_use"]["input"]["file"]), (&json!(REASON), &json!("a.txt")));

        let decide = async |level: usize| {
            let (id, tool_use, turn) = &levels[level];
            let body = json!({ "type": "decide", "turn": turn, "decisions": [[tool_use, "execute"]] });
            app.post("ann", &format!("/agent/conversations/{id}/commands"), body).await
        };
        let decided = decide(first).await;
        assert_eq!(decided.status, StatusCode::OK, "{decided:?}");
        for level in 0..3 {
            let late = decide(level).await;
            assert_eq!(late.status, StatusCode::CONFLICT);
            assert!(["stale-decision", "not-paused"].contains(&&*late.code()), "{level}: {late:?}");
        }
        assert_eq!(app.get("ann", "/agent/approvals").await.json()["items"], json!([]));
        assert_eq!(answer(&app, &root).await, "team: files: a.txt deleted 1 times");
    }
}

#[tokio::test(start_paused = true)]
async fn approval_two_agents_below_belongs_to_those_who_own_the_root() {
    let app = app(&MemoryStore::new(), &Nested::default());
    let Paused { root, levels } = paused(&app, "a.txt").await;
    assert_eq!(app.get("ben", "/agent/approvals").await.json()["items"], json!([]));
    let (absent, pause, turn) = &levels[0];
    let shown = shown_id(pause, turn);
    let absent = "0".repeat(absent.len());
    for (id, own, turn) in &levels {
        for tool_use in [own, pause] {
            let decide = json!({ "type": "decide", "turn": turn, "decisions": [[tool_use, "execute"]] });
            for (method, path, body) in [
                (Method::POST, format!("/agent/conversations/{id}/commands"), Some(decide)),
                (Method::GET, format!("/agent/conversations/{id}"), None),
                (Method::POST, "/api/chat".to_owned(), Some(approve(id, "a-u1", tool_use))),
                (Method::GET, format!("/api/chat/{id}/messages"), None),
                (Method::GET, format!("/api/chat/{id}/stream"), None),
                (Method::POST, format!("/api/chat/{id}/stop"), None),
                (Method::POST, "/ag-ui".to_owned(), Some(resume(id, "r1", tool_use))),
                (Method::GET, format!("/ag-ui/{id}"), None),
            ] {
                let send = async |id: &str, path: &str, body: Option<Value>| {
                    let answer = app.answer(request(method.clone(), "ben", path, body)).await;
                    (answer.status, answer.text.replace(id, ""))
                };
                let refused = send(id, &path, body.clone()).await;
                let body = body.map(|body| body.to_string().replace(id, &absent).parse().unwrap());
                assert_eq!(refused, send(&absent, &path.replace(id, &absent), body).await, "{path}");
                assert_eq!(refused.0, StatusCode::NOT_FOUND, "{path}");
            }
        }
    }
    let (text, _) = post(&app, "ann", "/api/chat", approve(&root, "a-u1", &shown)).await;
    assert!(text.contains("team: files: a.txt deleted 1 times"), "{text}");
}

/// Runs a server until a run is paused two agents below. Then the server is killed.
fn killed(store: &MemoryStore, nested: &Nested) -> Paused {
    in_a_life(async {
        let app = app(store, nested);
        let paused = paused(&app, "a.txt").await;
        for (id, ..) in &paused.levels {
            session(&app, id).flush(Duration::from_mins(1)).await.unwrap();
        }
        std::mem::forget(app);
        paused
    })
}

/// Waits until the conversation is paused again. The first request opens it.
pub(crate) async fn reopened(app: &App, id: &str) {
    let is_paused = async || {
        let snapshot = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
        snapshot["agent"]["status"] == "paused"
    };
    let waiting = async {
        while !is_paused().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("the conversation is paused again");
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_two_agents_below_is_shown_and_decided_after_the_server_was_killed() {
    for protocol in ["ai-sdk", "ag-ui"] {
        let (store, nested) = (MemoryStore::new(), Nested::default());
        let Paused { root, levels } = killed(&store, &nested);
        let (app, pause) = (app(&store, &nested), &*shown_id(&levels[0].1, &levels[0].2));
        reopened(&app, &root).await;
        let path = match protocol {
            "ai-sdk" => format!("/api/chat/{root}/messages"),
            _ => format!("/ag-ui/{root}?protocolVersion=1.0"),
        };
        let (shown, _) = read(app.send(request(Method::GET, "ann", &path, None)).await.into_body()).await;
        assert!(shown.contains(pause) && shown.contains(REASON), "{shown}");
        let (text, has_failed) = match protocol {
            "ai-sdk" => post(&app, "ann", "/api/chat", approve(&root, "a-u1", pause)).await,
            _ => post(&app, "ann", "/ag-ui", resume(&root, "r2", pause)).await,
        };
        assert!(!has_failed && text.contains("team: files: a.txt deleted 1 times"), "{protocol}: {text}");
        assert_eq!(answer(&app, &root).await, "team: files: a.txt deleted 1 times");
        app.manager.shutdown(Duration::from_mins(1)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_two_agents_below_that_comes_early_after_a_restart_can_be_repeated() {
    for protocol in ["native", "ag-ui", "ai-sdk"] {
        let (store, nested) = (MemoryStore::new(), Nested::default());
        let Paused { root, levels } = killed(&store, &nested);
        let (app, (_, pause, turn)) = (app(&store, &nested), &levels[0]);
        // The client shows the approval since the first life, and nobody has opened the conversation.
        let (own, shown) = (format!("a-{}", turn.as_str().unwrap()), shown_id(pause, turn));
        let commands = format!("/agent/conversations/{root}/commands");
        let decide = || json!({ "type": "decide", "turn": turn, "decisions": [[pause, "execute"]] });
        let (text, has_failed) = match protocol {
            "ai-sdk" => post(&app, "ann", "/api/chat", approve(&root, &own, &shown)).await,
            "ag-ui" => post(&app, "ann", "/ag-ui", resume(&root, "r2", &shown)).await,
            _ => post(&app, "ann", &commands, decide()).await,
        };
        // If the decision comes before the pause, the client learns that it does not apply, or is asked again.
        if !text.contains("team: files: a.txt deleted 1 times") {
            let is_asked = text.contains("tool-approval-request");
            assert!(!has_failed && (is_asked || text.contains("stale-decision")), "{protocol}: {text}");
            reopened(&app, &root).await;
            let decided = app.post("ann", &commands, decide()).await;
            assert_eq!(decided.status, StatusCode::OK, "{protocol}: {decided:?}");
        }
        assert_eq!(answer(&app, &root).await, "team: files: a.txt deleted 1 times", "{protocol}");
        app.manager.shutdown(Duration::from_mins(1)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_shows_progress_is_answered_automatically_while_another_call_waits() {
    let nested = Nested::default();
    let model = ScriptedProvider::new([calls("a.txt and later b.txt"), Step::text("Done.")]).model();
    let (team, manager) = (nested.clone(), Manager::builder(MemoryStore::new()).titles(Titles::Off).build());
    let app = App::running(manager, move || Agent::builder().model(model.clone()).tool(team.team()));
    let id = app.create("ann").await;
    let (text, _) = post(&app, "ann", "/api/chat", submit(&id, "u1", "Go")).await;
    let asked = |text: &str| -> Vec<String> {
        let requests = frames(text).into_iter().filter(|frame| frame["type"] == "tool-approval-request");
        requests.map(|frame| frame["approvalId"].as_str().unwrap().to_owned()).collect()
    };
    let [first, automatic] = &asked(&text)[..] else { panic!("{text}") };
    assert!(automatic.starts_with("n1@"), "{automatic}");

    let approved = request(Method::POST, "ann", "/api/chat", Some(approve(&id, "a-u1", first)));
    let mut body = app.send(approved).await.into_body().into_data_stream();
    let is_progress = |frame: &Value| frame["toolCallId"] == "n0" && frame["preliminary"] == true;
    let mut text = String::new();
    while !text.ends_with("\n\n") || !frames(&text).iter().any(is_progress) {
        text.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    nested.later.open();
    text.push_str(&ai_sdk_routes::read(&mut body, "").await);
    let [second, automatic] = &asked(&text)[..] else { panic!("{text}") };
    assert_eq!((second.split('?').next(), automatic.split('@').next()), (Some("n1"), Some("n0")));
    // A client of version 7 sends no decision while a part shows a preliminary output.
    let frames = frames(&text);
    let answered = |frame: &Value| {
        frame["type"] == "tool-approval-response" && frame["approvalId"].as_str().unwrap().starts_with("n0@")
    };
    assert!(frames.iter().rposition(answered) > frames.iter().rposition(is_progress), "{frames:#?}");
    let (text, _) = post(&app, "ann", "/api/chat", approve(&id, "a-u1", second)).await;
    assert!(text.contains("Done."), "{text}");
}

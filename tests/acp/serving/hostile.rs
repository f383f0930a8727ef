//! Clients that violate the protocol. The resources for each client are bounded, and each client gets a clear error.

use omni_agent::{ErrorKind, manager::Manager, store::MemoryStore};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{
    host::{registry, served},
    window::Window,
};
use crate::support::soon;

fn manager() -> Manager {
    Manager::builder(MemoryStore::new()).registry(registry()).build()
}

#[tokio::test]
async fn garbage_is_answered_and_the_session_continues() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    for (line, code) in [
        ("hello", -32700),
        (r#"{"jsonrpc":"2.0","id":"#, -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":7}"#, -32600),
    ] {
        window.write(line).await;
        let error = window.next(|message| message["id"].is_null() && message.get("error").is_some()).await;
        assert_eq!(error["error"]["code"], code, "{line}");
    }
    let cut = r#"{"jsonrpc":"2.0","id":"cut","method":"session/prompt","params":{"sessionId":"SESSION","prompt":[{"type":"text","text":"cut \ud83d"}]}}"#;
    window.write(&cut.replace("SESSION", &session)).await;
    let answer = window.next(|message| message["id"] == "cut").await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(window.texts("agent_message_chunk"), "You said: cut \u{fffd}");
    window.write("").await;
    let answer_to_nothing = json!({ "jsonrpc": "2.0", "id": 77, "result": {} });
    window.send(answer_to_nothing).await;
    window.send(json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": 7 })).await;
    window.send(json!({ "jsonrpc": "2.0", "method": "unknown/notification" })).await;
    assert_eq!(window.request("unknown/method", json!({})).await.unwrap_err()["code"], -32601);
    assert_eq!(window.request("session/new", json!({ "cwd": 7 })).await.unwrap_err()["code"], -32602);
    assert_eq!(window.request("session/prompt", json!([])).await.unwrap_err()["code"], -32602);
    let nobody = json!({ "sessionId": "no/such id", "prompt": [] });
    assert_eq!(window.request("session/prompt", nobody).await.unwrap_err()["code"], -32002);
    let nothing = json!({ "sessionId": session, "prompt": [] });
    assert_eq!(window.request("session/prompt", nothing).await.unwrap_err()["code"], -32600);
    assert_eq!(window.say(&session, "Hello").await, "You said: Hello");
}

#[tokio::test]
async fn client_with_a_long_name_decides() {
    let mut window = Window::named(served(manager()), &"x".repeat(300)).await;
    let session = window.create().await;
    let prompt = window.prompt(&session, "Delete").await;
    let question = window.question().await;
    window.decide(&question, "allow").await;
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(window.texts("agent_message_chunk"), "Deleted.");
}

#[tokio::test]
async fn client_that_writes_only_garbage_is_disconnected() {
    let mut window = Window::open(&manager()).await;
    let mut answers = 0;
    for _ in 0..100 {
        window.write(&"garbage\n".repeat(9)).await;
        window.write("garbage").await;
        for _ in 0..10 {
            window.next(|message| message["error"]["code"] == -32700).await;
            answers += 1;
        }
    }
    assert_eq!(answers, 1000);
    let error = soon(window.served).await.unwrap().unwrap_err();
    let text = "the client does not speak the Agent Client Protocol; its last line was: garbage";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Connection, text));
}

#[tokio::test]
async fn message_that_is_too_long_ends_the_connection_with_an_error() {
    let Window { mut input, served, .. } = Window::open(&manager()).await;
    let writing = tokio::spawn(async move {
        let piece = vec![b'x'; 1 << 20];
        // The agent stops reading at its limit for the length of a message.
        for _ in 0..64 {
            if input.write_all(&piece).await.is_err() {
                return;
            }
        }
        panic!("the agent read everything");
    });
    let error = soon(served).await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("the client sent a message of more than"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Connection);
    soon(writing).await.unwrap();
}

#[tokio::test]
async fn requests_above_the_limit_are_refused_and_the_others_are_answered() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    let mut prompts = Vec::new();
    for _ in 0..20 {
        prompts.push(window.prompt(&session, "Go on for ever").await);
    }
    // Sixteen prompts of a session can wait. All further prompts are refused.
    for refused in prompts.split_off(16) {
        let error = window.answer(refused).await.unwrap_err();
        assert!(error["data"].as_str().unwrap().contains("16 prompts"), "{error}");
    }
    window.update("agent_message_chunk").await;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = window.create().await;
        for _ in 0..16 {
            prompts.push(window.prompt(&session, "Go on for ever").await);
        }
        sessions.push(session);
    }
    let refused = window.request("session/list", json!({})).await.unwrap_err();
    assert!(refused["data"].as_str().unwrap().contains("64 requests"), "{refused}");
    sessions.push(session);
    for session in &sessions {
        window.cancel(session).await;
    }
    for prompt in prompts {
        assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    }
    window.request("session/list", json!({})).await.unwrap();
}

#[tokio::test]
async fn client_that_does_not_read_makes_the_agent_wait_and_misses_nothing() {
    let mut window = Window::connected(served(manager()), 4096);
    window.request("initialize", json!({ "protocolVersion": 1 })).await.unwrap();
    let session = window.create().await;
    // The agent can write a few messages at most, so the reader of the session lags behind and catches up.
    let prompt = window.prompt(&session, "Count").await;
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    let (shown, chunks) = (window.texts("agent_message_chunk"), window.chunks);
    let numbers: Vec<usize> = shown.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers, (0..2000).collect::<Vec<_>>());
    assert!(chunks < 1500, "snapshots stand for the missed events, but there were {chunks} chunks");
}

#[tokio::test]
async fn flood_of_requests_is_answered_one_by_one() {
    let mut window = Window::open(&manager()).await;
    let mut answered = 0;
    for _ in 0..50 {
        let ids: Vec<u64> = {
            let mut ids = Vec::new();
            for _ in 0..40 {
                ids.push(window.ask("session/list", json!({})).await);
            }
            ids
        };
        for id in ids {
            let answer: Result<Value, Value> = window.answer(id).await;
            answer.unwrap();
            answered += 1;
        }
    }
    assert_eq!(answered, 2000);
}

#[tokio::test]
async fn client_that_cannot_be_asked_gets_no_tool_run() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    for answer in [json!({ "error": { "code": -32601, "message": "no" } }), json!({ "result": 7 })] {
        let prompt = window.prompt(&session, "Delete").await;
        let question = window.question().await;
        let mut reply = json!({ "jsonrpc": "2.0", "id": question["id"] });
        reply.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        window.send(reply).await;
        assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(window.texts("agent_message_chunk"), "Kept.");
    }
    // A client that cancels the turn may answer the question first.
    let prompt = window.prompt(&session, "Delete").await;
    let question = window.question().await;
    let cancelled = json!({ "outcome": { "outcome": "cancelled" } });
    window.send(json!({ "jsonrpc": "2.0", "id": question["id"], "result": cancelled })).await;
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
}

#[tokio::test]
async fn requests_before_the_connection_is_initialized_are_refused() {
    let mut window = Window::connected(served(manager()), 64 * 1024);
    let create = json!({ "cwd": "/work", "mcpServers": [] });
    for (method, params) in
        [("session/new", create), ("session/list", json!({})), ("session/prompt", json!({}))]
    {
        let refused = window.request(method, params).await.unwrap_err();
        assert_eq!(refused["code"], -32600, "{method}: {refused}");
        assert!(refused["data"].as_str().unwrap().contains("`initialize`"), "{refused}");
    }
    window.request("initialize", json!({ "protocolVersion": 1 })).await.unwrap();
    window.create().await;
}

//! Readers of a turn in flight that one server hands over to the next one.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use omni_agent::{
    agent::{Agent, OnUncertain, Recover},
    manager::{Manager, OpenOptions, Sweep, Titles},
    message::ToolResult,
    store::{MemoryStore, Owner},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    broken_bodies::read,
    nested_approvals::{post, reopened, resume},
    support::{App, request, submit},
};

#[tokio::test(start_paused = true)]
async fn readers_of_a_turn_that_is_handed_over_continue_at_the_next_server() {
    let (gate, store) = (Gate::new(), MemoryStore::new());
    let old = App::durable(&store, [Step::new().then_text(["Half"]).gate(&gate).stop()]);
    let id = old.create("ann").await;
    let path = format!("/agent/events?watch={id}");
    let mut reader = old.stream("ann", &path, None).await;
    reader.next().await.unwrap();
    let body = submit(&id, "u1", "Go");
    let chat = old.send(request(Method::POST, "ann", "/api/chat", Some(body))).await.into_body();
    gate.reached().await;
    let join = format!("/ag-ui/{id}?protocolVersion=1.0");
    let run = old.send(request(Method::GET, "ann", &join, None)).await.into_body();
    let seen = reader.until(|frame| frame.data["update"]["event"]["event"]["type"] == "text_delta").await;
    let last = seen.iter().rev().find_map(|frame| frame.id.clone()).unwrap();

    old.web.drain();
    let ending = reader.next().await.unwrap();
    assert_eq!((ending.event.as_str(), ending.data), ("ending", json!({ "retry_after": 5 })));
    assert!(reader.next().await.is_none());
    old.manager.hand_over(Duration::from_secs(10)).await.unwrap();
    let (text, has_failed) = read(chat).await;
    assert!(has_failed && text.contains("Half") && !text.contains("[DONE]"), "{text}");
    let (text, _) = read(run).await;
    assert!(text.contains("Half") && text.contains("RUN_ERROR") && !text.contains("RUN_FINISHED"), "{text}");

    let gate = Gate::new();
    let new = App::durable(&store, [Step::new().then_text(["Whole"]).gate(&gate).stop()]);
    let mut reader = new.stream("ann", &path, Some(&last)).await;
    let chat =
        new.send(request(Method::GET, "ann", &format!("/api/chat/{id}/stream"), None)).await.into_body();
    let run = new.send(request(Method::GET, "ann", &join, None)).await.into_body();
    let first = reader.next().await.unwrap();
    let snapshot = &first.data["update"]["snapshot"];
    assert_eq!(snapshot["agent"]["pending"][0]["content"][0]["text"], "Go", "{first:?}");
    gate.open();
    let rest = reader.run().await;
    let answer = &rest.last().unwrap().data["update"]["event"]["nodes"][1]["message"];
    assert_eq!(answer["content"][0]["text"], "Whole", "{rest:#?}");
    for (body, finish) in [(chat, "[DONE]"), (run, "RUN_FINISHED")] {
        let (text, has_failed) = read(body).await;
        assert!(!has_failed && text.contains("\"Whole\"") && text.contains(finish), "{text}");
    }
}

/// Runs a server until `work` is done. Then the server is killed.
fn life<T>(start: impl FnOnce() -> App, work: impl AsyncFnOnce(&App) -> T) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (app, output) = runtime.block_on(async {
        let app = start();
        let output = work(&app).await;
        (app, output)
    });
    drop(runtime);
    drop(app);
    output
}

#[test]
fn run_that_is_abandoned_is_an_error_in_both_protocols() {
    // A turn without a complete step is discarded, and a complete step is kept.
    for is_kept in [false, true] {
        let (gate, store) = (Gate::new(), MemoryStore::new());
        let draws = is_kept.then(|| Step::tool_use("t1", "draw", json!({})));
        let script = draws.into_iter().chain([Step::new().gate(&gate).stop()]);
        let chat = |id: &str| request(Method::POST, "ann", "/api/chat", Some(submit(id, "u1", "Go")));
        let id = life(
            || App::durable(&store, script),
            async |app| {
                let id = app.create("ann").await;
                let _unread = app.send(chat(&id)).await;
                gate.reached().await;
                id
            },
        );
        for _ in 0..5 {
            life(
                || App::durable(&store, [Step::new().hang()]),
                async |app| {
                    app.get("ann", &format!("/agent/conversations/{id}")).await;
                },
            );
        }
        life(
            || App::durable(&store, []),
            async |app| {
                // The first request opens the conversation.
                for _ in 0..2 {
                    let (text, has_failed) = read(app.send(chat(&id)).await.into_body()).await;
                    let error =
                        r#"{"type":"error","errorText":"The run was ended after too many restarts."}"#;
                    assert!(!has_failed && text.contains(error) && text.contains("[DONE]"), "{text}");
                    assert!(!text.contains("\"finish\"") && !text.contains("\"abort\""), "{text}");
                    assert_eq!(text.contains("Drawn."), is_kept, "{text}");
                    let join = format!("/ag-ui/{id}?protocolVersion=1.0");
                    let (text, _) =
                        read(app.send(request(Method::GET, "ann", &join, None)).await.into_body()).await;
                    assert!(text.contains("RUN_ERROR") && text.contains("\"abandoned\""), "{text}");
                    assert!(!text.contains("RUN_FINISHED"), "{text}");
                }
            },
        );
    }
}

/// Returns an application whose tool `send` passes the gate when it runs for the first time. If a server ends meanwhile,
/// the next one asks whether the tool may run again.
fn sender(store: &MemoryStore, gate: &Gate) -> App {
    let model = ScriptedProvider::from_fn(|request| {
        let results = request.history.last().map(|last| last.tool_results().map(ToolResult::text).collect());
        match results.unwrap_or_else(String::new) {
            text if text.is_empty() => Step::tool_use("t1", "send", json!({})),
            text => Step::text(text),
        }
    });
    let (model, gate) = (model.model(), gate.clone());
    let options = move || {
        let gate = gate.clone();
        let send = tool_fn("send", "Sends.", move |_: Value, context: ToolContext| {
            let gate = gate.clone();
            async move {
                if context.is_repeated() {
                    return Ok("Sent again.");
                }
                gate.pass().await;
                Ok("Sent.")
            }
        });
        let agent = Agent::builder().model(model.clone()).tool(send.with_replay(Replay::Never));
        OpenOptions::new(agent).recover(Recover::default().with_on_uncertain(OnUncertain::Ask))
    };
    // The owner has the same name in each life, so that no lease has to expire.
    let manager = Manager::builder(store.clone()).owner(Owner::new("server")).sweep(Sweep::off());
    App::running(manager.titles(Titles::Off).build(), options)
}

#[test]
fn tool_that_the_end_of_its_server_cut_off_runs_again_if_a_client_allows_it() {
    for protocol in ["native", "ag-ui", "ai-sdk"] {
        let (gate, store) = (Gate::new(), MemoryStore::new());
        let id = life(
            || sender(&store, &gate),
            async |app| {
                let id = app.create("ann").await;
                let chat = request(Method::POST, "ann", "/api/chat", Some(submit(&id, "u1", "Go")));
                let _unread = app.send(chat).await;
                gate.reached().await;
                id
            },
        );
        life(
            || sender(&store, &gate),
            async |app| {
                reopened(app, &id).await;
                let conversation = format!("/agent/conversations/{id}");
                let pauses = app.get("ann", &conversation).await.json()["agent"]["pauses"].take();
                let [pause] = &pauses.as_array().unwrap()[..] else { panic!("{pauses}") };
                assert_eq!(
                    (&pause["tool_use"]["id"], &pause["asked_by"]),
                    (&json!("t1?again1"), &json!("t1"))
                );
                assert!(pause["reason"]["uncertain"].is_object(), "{pause}");
                let shown_id = format!("t1?again1@{}", pause["turn"].as_str().unwrap());
                let path = match protocol {
                    "ag-ui" => format!("/ag-ui/{id}?protocolVersion=1.0"),
                    _ => format!("/api/chat/{id}/messages"),
                };
                let shown = app.send(request(Method::GET, "ann", &path, None)).await;
                let (shown, _) = read(shown.into_body()).await;
                assert!(shown.contains(&format!("{shown_id:?}")), "{protocol}: {shown}");

                // The decision to run the tool for the first time does not run it again.
                let commands = format!("{conversation}/commands");
                let decide = |tool_use: &str| {
                    let decisions = json!([[tool_use, "execute"]]);
                    json!({ "type": "decide", "turn": pause["turn"], "decisions": decisions })
                };
                let late = app.post("ann", &commands, decide("t1")).await;
                assert_eq!((late.status, late.code().as_str()), (StatusCode::CONFLICT, "stale-decision"));
                let approval = json!({ "id": shown_id, "approved": true });
                let part = json!({ "type": "tool-send", "toolCallId": "t1", "state": "approval-responded",
                                   "approval": approval });
                let answer = json!({ "id": "a-u1", "role": "assistant", "parts": [part] });
                let approve = json!({ "id": id, "trigger": "submit-message", "messageId": "a-u1",
                                      "messages": [answer] });
                let (text, _) = match protocol {
                    "ag-ui" => post(app, "ann", "/ag-ui", resume(&id, "r2", &shown_id)).await,
                    "ai-sdk" => post(app, "ann", "/api/chat", approve).await,
                    _ => post(app, "ann", &commands, decide("t1?again1")).await,
                };
                app.idle(&id).await;
                let nodes = app.get("ann", &conversation).await.json()["tree"]["nodes"].take();
                let last = &nodes.as_array().unwrap().last().unwrap()["message"]["content"][0]["text"];
                assert_eq!(last, "Sent again.", "{protocol}: {text}");
                assert_eq!(text.contains("Sent again."), protocol != "native", "{protocol}: {text}");
            },
        );
    }
}

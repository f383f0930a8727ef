//! Readers of a turn in flight that one server hands over to the next one.

use std::time::Duration;

use axum::http::Method;
use omni_agent::{
    store::MemoryStore,
    testing::{Gate, Step},
};
use serde_json::json;

use crate::{
    broken_bodies::read,
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
fn life<T>(
    store: &MemoryStore,
    script: impl IntoIterator<Item = Step>,
    work: impl AsyncFnOnce(&App) -> T,
) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (app, output) = runtime.block_on(async {
        let app = App::durable(store, script);
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
        let id = life(&store, script, async |app| {
            let id = app.create("ann").await;
            let _unread = app.send(chat(&id)).await;
            gate.reached().await;
            id
        });
        for _ in 0..5 {
            life(&store, [Step::new().hang()], async |app| {
                app.get("ann", &format!("/agent/conversations/{id}")).await;
            });
        }
        life(&store, [], async |app| {
            // The first request opens the conversation.
            for _ in 0..2 {
                let (text, has_failed) = read(app.send(chat(&id)).await.into_body()).await;
                let error = r#"{"type":"error","errorText":"The run was ended after too many restarts."}"#;
                assert!(!has_failed && text.contains(error) && text.contains("[DONE]"), "{text}");
                assert!(!text.contains("\"finish\"") && !text.contains("\"abort\""), "{text}");
                assert_eq!(text.contains("Drawn."), is_kept, "{text}");
                let join = format!("/ag-ui/{id}?protocolVersion=1.0");
                let (text, _) =
                    read(app.send(request(Method::GET, "ann", &join, None)).await.into_body()).await;
                assert!(text.contains("RUN_ERROR") && text.contains("\"abandoned\""), "{text}");
                assert!(!text.contains("RUN_FINISHED"), "{text}");
            }
        });
    }
}

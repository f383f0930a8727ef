//! Commands over HTTP, their effects, and the numbers of the usage ledger.

use axum::http::StatusCode;
use omni_agent::{
    message::Usage,
    schema,
    store::ConversationId,
    testing::{Gate, Step},
};
use serde_json::{Value, json};

use crate::support::{App, prompt};

/// Sends a command that succeeds, and returns its answer.
async fn command(app: &App, id: &str, command: Value) -> Value {
    let answer = app.post("ann", &format!("/agent/conversations/{id}/commands"), command.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{command}: {answer:?}");
    answer.json()
}

async fn snapshot(app: &App, id: &str) -> Value {
    app.get("ann", &format!("/agent/conversations/{id}")).await.json()
}

/// Returns the texts of the path.
fn path(snapshot: &Value) -> Vec<String> {
    let tree: omni_agent::session::SessionSnapshot = serde_json::from_value(snapshot.clone()).unwrap();
    tree.tree.history().iter().map(|message| message.text()).collect()
}

fn content(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

#[tokio::test(start_paused = true)]
async fn edit_branch_and_navigate_change_the_path() {
    let app = App::new([Step::text("One."), Step::text("Two."), Step::text("Three.")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "First").await;
    let edited =
        command(&app, &id, json!({ "type": "run", "at": { "instead": 1 }, "prompt": content("Changed") }))
            .await;
    assert_eq!(edited["accepted"], "started", "{edited}");
    app.idle(&id).await;
    assert_eq!(path(&snapshot(&app, &id).await), ["Changed", "Two."]);
    command(&app, &id, json!({ "type": "run", "at": { "below": 2 }, "prompt": content("Next") })).await;
    app.idle(&id).await;
    assert_eq!(path(&snapshot(&app, &id).await), ["First", "One.", "Next", "Three."]);
    assert_eq!(command(&app, &id, json!({ "type": "navigate", "node": 4 })).await, json!({ "type": "done" }));
    assert_eq!(path(&snapshot(&app, &id).await), ["Changed", "Two."]);
    command(&app, &id, json!({ "type": "navigate", "node": null })).await;
    assert_eq!(path(&snapshot(&app, &id).await), Vec::<String>::new());
    command(&app, &id, json!({ "type": "title", "title": "Plans" })).await;
    assert_eq!(snapshot(&app, &id).await["title"], "Plans");
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_is_withdrawn_and_an_interrupt_keeps_the_text() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["Half"]).gate(&gate).then_text([" more"]).stop()]);
    let id = app.create("ann").await;
    command(&app, &id, prompt("Hi")).await;
    gate.reached().await;
    let staged = json!({ "id": "p2", "content": [{ "type": "text", "text": "And?" }] });
    let answer = command(&app, &id, json!({ "type": "run", "prompt": staged })).await;
    assert_eq!(answer["accepted"], "staged", "{answer}");
    assert_eq!(snapshot(&app, &id).await["agent"]["staged"][0]["id"], "p2");
    command(&app, &id, json!({ "type": "unstage", "id": "p2" })).await;
    assert_eq!(snapshot(&app, &id).await["agent"].get("staged").and_then(|staged| staged.get(0)), None);
    assert_eq!(command(&app, &id, json!({ "type": "interrupt" })).await, json!({ "type": "done" }));
    app.idle(&id).await;
    assert_eq!(path(&snapshot(&app, &id).await), ["Hi", "Half"]);
    assert_eq!(app.provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn decision_on_a_conversation_that_is_not_open_is_stale() {
    let app = App::new([]);
    let id = app.create("ann").await;
    app.manager.close(&ConversationId::new(&id).unwrap()).await.unwrap();
    let decision = json!({ "type": "decide", "turn": "0".repeat(32), "decisions": [["a", "execute"]] });
    for path in [format!("/agent/conversations/{id}/commands"), format!("/api/chat/{id}/commands")] {
        let stale = app.post("ann", &path, decision.clone()).await;
        assert_eq!((stale.status.as_u16(), stale.code().as_str()), (409, "stale-decision"), "{path}");
        assert_eq!(stale.json()["waiting"], json!([]));
    }
    assert!(app.manager.list_open().is_empty(), "the conversation is not opened for it");
}

#[tokio::test(start_paused = true)]
async fn usage_is_listed_by_pages_and_summed_by_model() {
    let step = |text: &str, input| {
        Step::new().then_text([text]).usage(Usage::default().with_input(input).with_output(5)).stop()
    };
    let app = App::new([step("One.", 10), step("Two.", 20), step("Three.", 40), step("Other.", 80)]);
    let id = app.create("ann").await;
    for text in ["a", "b", "c"] {
        app.ask("ann", &id, text).await;
    }
    let other = app.create("ben").await;
    app.ask("ben", &other, "d").await;
    for (user, id) in [("ann", &id), ("ben", &other)] {
        app.manager
            .get(&ConversationId::new(id).unwrap())
            .unwrap()
            .flush(std::time::Duration::from_secs(5))
            .await
            .unwrap();
        assert_eq!(app.get(user, &format!("/agent/conversations/{id}")).await.status, StatusCode::OK);
    }
    let mut inputs = Vec::new();
    let mut after = 0;
    loop {
        let page =
            app.get("ann", &format!("/agent/conversations/{id}/usage?limit=2&after={after}")).await.json();
        let rows = page["rows"].as_array().unwrap();
        assert!(rows.len() <= 2);
        inputs.extend(rows.iter().map(|row| row["usage"]["input"].as_u64().unwrap()));
        let Some(next) = page["next"].as_u64() else { break };
        after = next;
    }
    assert_eq!(inputs, [40, 20, 10], "newest first");
    for (user, input, output) in [("ann", 70, 15), ("ben", 80, 5), ("boss", 150, 20)] {
        let sums = app.get(user, "/agent/usage").await.json();
        let sums = sums.as_array().unwrap();
        assert_eq!(sums.len(), 1, "{sums:?}");
        let usage = &sums[0]["usage"];
        assert_eq!(
            (usage["input"].as_u64(), usage["output"].as_u64()),
            (Some(input), Some(output)),
            "{user}"
        );
    }
    assert_eq!(app.get("ann", "/agent/usage?from=0&to=1").await.json(), json!([]));
}

#[tokio::test(start_paused = true)]
async fn search_is_paged() {
    let app = App::new((0..3).map(|number| Step::text(format!("Lake {number}."))));
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = app.create("ann").await;
        app.ask("ann", &id, "Name something blue").await;
        ids.push(id);
    }
    let mut found = Vec::new();
    for offset in 0..4 {
        let page = app.get("ann", &format!("/agent/search?q=lake&limit=1&offset={offset}")).await.json();
        let hits = page["hits"].as_array().unwrap();
        assert_eq!(hits.len(), usize::from(offset < 3), "{page}");
        found.extend(hits.iter().map(|hit| hit["conversation"]["id"].as_str().unwrap().to_owned()));
    }
    found.sort();
    ids.sort();
    assert_eq!(found, ids);
}

#[tokio::test(start_paused = true)]
async fn schemas_are_the_files_of_the_repository() {
    let app = App::new([]);
    for (name, document) in [("updates", schema::UPDATES), ("commands", schema::COMMANDS)] {
        let answer = app.get("ann", &format!("/agent/schema/{name}")).await;
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.text, document);
        assert!(answer.json()["$schema"].is_string());
    }
}

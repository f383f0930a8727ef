//! Commands over HTTP, their effects, and the numbers of the usage ledger.

use std::time::Duration;

use axum::http::StatusCode;
use omni_agent::{
    message::Usage,
    schema,
    store::{ConversationId, Store as _},
    testing::{Gate, Step},
};
use serde_json::{Value, json};

use crate::{
    moved_labels::SlowStore,
    support::{App, prompt},
};

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
fn texts_of(snapshot: &Value) -> Vec<String> {
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
    assert_eq!(texts_of(&snapshot(&app, &id).await), ["Changed", "Two."]);
    command(&app, &id, json!({ "type": "run", "at": { "below": 2 }, "prompt": content("Next") })).await;
    app.idle(&id).await;
    assert_eq!(texts_of(&snapshot(&app, &id).await), ["First", "One.", "Next", "Three."]);
    assert_eq!(command(&app, &id, json!({ "type": "navigate", "node": 4 })).await, json!({ "type": "done" }));
    assert_eq!(texts_of(&snapshot(&app, &id).await), ["Changed", "Two."]);
    command(&app, &id, json!({ "type": "navigate", "node": null })).await;
    assert_eq!(texts_of(&snapshot(&app, &id).await), Vec::<String>::new());
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
    assert_eq!(texts_of(&snapshot(&app, &id).await), ["Hi", "Half"]);
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

/// A conversation when a command arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Open,
    Closed,
    Opening,
}

/// Stores a conversation that is not open, with the prompt `First` and the answer `One.` If it is paused, a turn with the
/// prompt `Look` is in flight, whose tool use `t1` waits for a decision, and the prompt `Then` is staged with the id `p2`.
async fn stored(store: &SlowStore, is_paused: bool) -> String {
    let look = Step::tool_use("t1", "lookup", json!({ "what": "it" }));
    let app = App::durable(store, [Step::text("One."), look]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "First").await;
    if is_paused {
        command(&app, &id, prompt("Look")).await;
        let session = app.manager.get(&ConversationId::new(&id).unwrap()).unwrap();
        session.flush(Duration::from_secs(5)).await.unwrap();
        let then = json!({ "id": "p2", "content": [{ "type": "text", "text": "Then" }] });
        assert_eq!(command(&app, &id, json!({ "type": "run", "prompt": then })).await["accepted"], "staged");
    }
    app.manager.hand_over(Duration::from_secs(10)).await.unwrap();
    id
}

/// Sends a command to a conversation of another server, which finds it in this place.
async fn send(app: &App, store: &SlowStore, place: Place, path: &str, command: &Value) -> (u16, String) {
    let commands = format!("{path}/commands");
    let answer = app.post("boss", &commands, command.clone());
    let answer = match place {
        Place::Closed => answer.await,
        Place::Open => {
            assert_eq!(app.get("boss", path).await.status, StatusCode::OK);
            answer.await
        }
        Place::Opening => {
            let loading = Gate::new();
            *store.loading.lock().unwrap() = Some(loading.clone());
            let opening = app.get("boss", path);
            tokio::pin!(opening, answer);
            tokio::select! {
                biased;
                _ = &mut opening => panic!("the conversation opens slowly"),
                () = loading.reached() => {}
            }
            // The time is paused, so it passes only when the command waits.
            tokio::time::timeout(Duration::from_millis(1), &mut answer).await.expect_err("it waits");
            *store.loading.lock().unwrap() = None;
            loading.open();
            tokio::join!(answer, opening).0
        }
    };
    let is_done = answer.status == StatusCode::OK;
    let name = if is_done { answer.json()["type"].as_str().unwrap().to_owned() } else { answer.code() };
    (answer.status.as_u16(), name)
}

/// Whether the conversation is paused, the command, its answer, the texts of the path, and the number of staged prompts of a
/// conversation that stays paused.
type CommandCase = (bool, Value, (u16, &'static str), &'static [&'static str], Option<usize>);

#[tokio::test(start_paused = true)]
async fn command_has_the_same_effect_on_an_open_a_closed_and_an_opening_conversation() {
    let (next, labels) = (prompt("Next"), json!({ "user": "ann", "plan": "b" }));
    let decide = json!({ "type": "decide", "decisions": [["t1", "execute"]] });
    let one: &[&str] = &["First", "One."];
    let after_next: &[&str] = &["First", "One.", "Next", "Two."];
    let after_look: &[&str] = &["First", "One.", "Look", "Two.", "Then", "Three."];
    // For a conversation at rest, and then for one that is paused: the command and its answer, the texts of the path,
    // and the number of staged prompts of a conversation that stays paused.
    let cases: [CommandCase; 19] = [
        (false, next.clone(), (200, "accepted"), after_next, None),
        (false, json!({ "type": "unstage", "id": "p2" }), (409, "not-staged"), one, None),
        (false, decide.clone(), (409, "stale-decision"), one, None),
        (false, json!({ "type": "cancel" }), (409, "idle"), one, None),
        (false, json!({ "type": "interrupt" }), (409, "idle"), one, None),
        (false, json!({ "type": "navigate", "node": null }), (200, "done"), &[], None),
        (false, json!({ "type": "title", "title": "Plans" }), (200, "done"), one, None),
        (false, json!({ "type": "model", "model": "test:other" }), (200, "done"), one, None),
        (false, json!({ "type": "labels", "labels": labels }), (200, "done"), one, None),
        (false, json!({ "type": "erase", "node": 1 }), (200, "done"), &[], None),
        (true, next, (200, "accepted"), one, Some(2)),
        (true, json!({ "type": "unstage", "id": "p2" }), (200, "prompt"), one, Some(0)),
        (true, decide, (200, "done"), after_look, None),
        (true, json!({ "type": "cancel" }), (200, "done"), one, None),
        (true, json!({ "type": "interrupt" }), (200, "done"), &["First", "One.", "Look"], None),
        (true, json!({ "type": "navigate", "node": null }), (409, "busy"), one, Some(1)),
        (true, json!({ "type": "title", "title": "Plans" }), (200, "done"), one, Some(1)),
        (true, json!({ "type": "labels", "labels": labels }), (200, "done"), one, Some(1)),
        (true, json!({ "type": "erase", "node": 1 }), (409, "busy"), one, Some(1)),
    ];
    for (is_paused, mut command, (status, name), texts, staged) in cases {
        for place in [Place::Open, Place::Closed, Place::Opening] {
            let store = SlowStore::default();
            let id = stored(&store, is_paused).await;
            let app = App::durable(&store, [Step::text("Two."), Step::text("Three.")]);
            let (key, path) = (ConversationId::new(&*id).unwrap(), format!("/agent/conversations/{id}"));
            let kind = command["type"].as_str().unwrap().to_owned();
            if kind == "decide" {
                let turn = store.turn(&key).await.unwrap();
                command["turn"] = turn.map_or(json!("0".repeat(32)), |turn| json!(turn.record.turn));
            }
            let case = format!("{command} for a conversation that is {place:?}, paused: {is_paused}");
            let answer = send(&app, &store, place, &path, &command).await;
            assert_eq!((answer.0, answer.1.as_str()), (status, name), "{case}");
            // Only a decision, a title and labels leave a closed conversation closed.
            let is_open = place != Place::Closed || !["decide", "title", "labels"].contains(&kind.as_str());
            assert_eq!(app.manager.list_open().len(), usize::from(is_open), "{case}");
            app.get("boss", &path).await;
            if staged.is_none() {
                app.idle(&id).await;
            }
            let after = app.get("boss", &path).await.json();
            // Messages that only have tool uses or results have no text.
            let seen: Vec<_> = texts_of(&after).into_iter().filter(|text| !text.is_empty()).collect();
            assert_eq!(seen, texts, "{case}");
            let count = after["agent"]["staged"].as_array().map_or(0, Vec::len);
            let status = if staged.is_some() { "paused" } else { "idle" };
            assert_eq!((&after["agent"]["status"], count), (&json!(status), staged.unwrap_or(0)), "{case}");
            let changed = |by: &str, new: Value, old: Value| if kind == by { new } else { old };
            let model = changed("model", json!("test:other"), json!("test:scripted"));
            assert_eq!(after["agent"]["state"]["model"], model, "{case}");
            assert_eq!(after["title"], changed("title", json!("Plans"), Value::Null), "{case}");
            let of = changed("labels", labels.clone(), json!({ "user": "ann" }));
            assert_eq!(after["labels"], of, "{case}");
        }
    }
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
            .flush(Duration::from_secs(5))
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

//! Tool uses whose ids a service uses again in each turn, and results of tools that a client sends again.

use axum::http::{Method, StatusCode};
use omni_agent::{
    Agent,
    manager::{Manager, Titles},
    message::Role,
    store::{ConversationId, MemoryStore},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Schema, declared_tool_with_schema},
};
use serde_json::{Value, json};

use crate::{
    ai_sdk_routes::{frames, read},
    support::{App, request, run_input, submit},
};

async fn post(app: &App, path: &str, body: Value) -> String {
    let response = app.send(request(Method::POST, "ann", path, Some(body))).await;
    read(&mut response.into_body().into_data_stream(), "").await
}

async fn close(app: &App, id: &str) {
    app.manager.close(&ConversationId::new(id).unwrap()).await.unwrap();
}

/// Returns the texts of the messages on the path.
async fn texts(app: &App, id: &str) -> Vec<String> {
    let session = app.manager.get(&ConversationId::new(id).unwrap()).unwrap();
    session.tree().await.unwrap().history().iter().map(|message| message.text()).collect()
}

fn pause() -> Step {
    Step::tool_use("call_0", "lookup", json!({ "what": "it" }))
}

/// Returns the body with which a client of the AI SDK approves what these frames ask for.
fn approve(id: &str, text: &str) -> Value {
    let frames = frames(text);
    let asked = frames.iter().find(|frame| frame["type"] == "tool-approval-request").expect("a request");
    let part = json!({ "type": "tool-lookup", "toolCallId": "call_0", "state": "approval-responded",
                       "input": { "what": "it" },
                       "approval": { "id": asked["approvalId"], "approved": true } });
    let mut body = submit(id, "u1", "Hi");
    let answer = json!({ "id": frames[0]["messageId"], "role": "assistant", "parts": [part] });
    body["messages"].as_array_mut().unwrap().push(answer);
    body
}

/// Returns the body with which a client of AG-UI resolves the interrupt of these frames.
fn resolve(id: &str, run: &str, text: &str) -> Value {
    let frames = frames(text);
    let interrupt = &frames.last().unwrap()["outcome"]["interrupts"][0]["id"];
    let mut body = run_input(id, run, "");
    body["messages"] = json!([]);
    body["resume"] =
        json!([{ "interruptId": interrupt, "status": "resolved", "payload": { "approved": true } }]);
    body
}

#[tokio::test]
async fn native_decision_by_either_id_of_a_pause_is_taken() {
    for (asked, is_named) in [("approvalId", true), ("toolUse", false)] {
        let app = App::new([pause(), Step::text("One.")]);
        let id = app.create("ann").await;
        let shown = post(&app, "/api/chat", submit(&id, "u1", "Hi")).await;
        let frames = frames(&shown);
        let details = frames.iter().find(|frame| frame["type"] == "data-omni-approval").unwrap();
        let details = &details["data"];
        assert_eq!(details[asked].as_str().unwrap().contains('@'), is_named);
        let decided = json!({ "type": "decide", "turn": details["turn"],
                              "decisions": [[details[asked], "execute"]] });
        let path = format!("/agent/conversations/{id}/commands");
        assert_eq!(app.post("ann", &path, decided).await.status, StatusCode::OK, "{asked}");
        app.idle(&id).await;
        assert_eq!(texts(&app, &id).await.last().unwrap(), "One.");
    }
}

#[tokio::test]
async fn decision_about_a_pause_of_an_earlier_turn_decides_no_later_one_with_the_same_tool_use() {
    for path in ["/api/chat", "/ag-ui"] {
        let app = App::new([pause(), Step::text("One."), pause(), Step::text("Two.")]);
        let id = app.create("ann").await;
        let ask = |run: &str| match path {
            "/ag-ui" => run_input(&id, run, "Hi"),
            _ => submit(&id, run, "Hi"),
        };
        let decide = |run: &str, text: &str| match path {
            "/ag-ui" => resolve(&id, run, text),
            _ => approve(&id, text),
        };
        let first = post(&app, path, ask("r1")).await;
        let answer = post(&app, path, decide("r2", &first)).await;
        assert!(answer.contains("One."), "{answer}");
        // The agent knows the ids of earlier pauses only as long as the conversation is open.
        close(&app, &id).await;
        let second = post(&app, path, ask("r3")).await;
        let late = post(&app, path, decide("r4", &first)).await;
        assert!(late.contains("stale-decision"), "{path}: {late}");
        app.pause(&id, "call_0").await;
        let answer = post(&app, path, decide("r5", &second)).await;
        assert!(answer.contains("Two."), "{path}: {answer}");
    }
}

/// Returns an application whose agent has a tool that the client runs.
fn locating(script: impl IntoIterator<Item = Step>) -> (App, ScriptedProvider) {
    let provider = ScriptedProvider::new(script);
    let model = provider.model();
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let app = App::running(manager, move || {
        let schema = Schema::new(json!({ "type": "object" })).unwrap();
        let locate = declared_tool_with_schema("locate", "Finds the user.", schema);
        Agent::builder().model(model.clone()).tool(locate)
    });
    (app, provider)
}

/// Sends a message whose answer uses the tool of the client, and returns the body with its result.
async fn located(app: &App, id: &str, city: &str) -> Value {
    let asked = frames(&post(app, "/api/chat", submit(id, "u1", "Where am I?")).await);
    let parts = json!([
        { "type": "step-start" },
        { "type": "tool-locate", "toolCallId": "l1", "state": "output-available", "input": {},
          "output": { "city": city } },
    ]);
    let answer = json!({ "id": asked[0]["messageId"], "role": "assistant", "parts": parts });
    let mut body = submit(id, "u1", "Where am I?");
    body["messageId"] = answer["id"].clone();
    body["messages"].as_array_mut().unwrap().push(answer);
    body
}

/// Returns the frames that a client keeps: without data that is only shown while it arrives.
fn kept(text: &str) -> Vec<Value> {
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let frames = frames(text).into_iter();
    frames.filter(|frame| frame["type"] != "message-metadata" && frame["transient"] != true).collect()
}

#[tokio::test]
async fn results_of_client_tools_that_are_sent_again_get_the_same_answer() {
    let (app, provider) = locating([Step::tool_use("l1", "locate", json!({})), Step::text("In Oslo.")]);
    let id = app.create("ann").await;
    let body = located(&app, &id, "Oslo").await;
    let first = kept(&post(&app, "/api/chat", body.clone()).await);
    for is_closed in [false, true] {
        if is_closed {
            close(&app, &id).await;
        }
        let answer = app.post("ann", "/api/chat", body.clone()).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let again = kept(&answer.text);
        let types = |frames: &[Value]| frames.iter().map(|frame| frame["type"].clone()).collect::<Vec<_>>();
        assert_eq!(types(&again), types(&first), "{is_closed}");
        let deltas =
            |frames: &[Value]| frames.iter().filter_map(|frame| frame["delta"].as_str()).collect::<String>();
        assert_eq!((&again[0], deltas(&again)), (&first[0], deltas(&first)));
        let nodes = |frames: &[Value]| frames.last().unwrap()["messageMetadata"]["nodes"].clone();
        assert_eq!(nodes(&again), nodes(&first));
    }
    assert_eq!(provider.requests().len(), 2, "the results are sent to the model once");
    let mut other = body;
    other["messages"][1]["parts"][1]["output"] = json!({ "city": "Bergen" });
    assert_eq!(app.post("ann", "/api/chat", other).await.code(), "stale-decision");
}

#[tokio::test]
async fn results_of_client_tools_that_are_sent_again_during_their_run_join_it() {
    let gate = Gate::new();
    let answer = Step::new().then_text(["In "]).gate(&gate).then_text(["Oslo."]).stop();
    let (app, provider) = locating([Step::tool_use("l1", "locate", json!({})), answer]);
    let id = app.create("ann").await;
    let body = located(&app, &id, "Oslo").await;
    let send = async || app.send(request(Method::POST, "ann", "/api/chat", Some(body.clone()))).await;
    let first = send().await;
    gate.reached().await;
    let again = send().await;
    assert_eq!(again.status(), StatusCode::OK);
    gate.open();
    for response in [first, again] {
        let text = read(&mut response.into_body().into_data_stream(), "").await;
        let deltas: String = kept(&text).iter().filter_map(|frame| frame["delta"].as_str()).collect();
        assert_eq!(deltas, "In Oslo.");
    }
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test]
async fn message_after_the_result_of_a_call_continues_at_that_call() {
    for place in 0..2 {
        let turn = |text: &str| [Step::tool_use("call_0", "draw", json!({})), Step::text(text)];
        let script = ["One.", "Two.", "Three."].into_iter().flat_map(turn).chain([Step::text("Four.")]);
        let app = App::new(script);
        let id = app.create("ann").await;
        for run in ["r1", "r2", "r3"] {
            post(&app, "/ag-ui", run_input(&id, run, run)).await;
        }
        let joined = app.send(request(Method::GET, "ann", &format!("/ag-ui/{id}?protocolVersion=1.0"), None));
        let text = read(&mut joined.await.into_body().into_data_stream(), "").await;
        let frames = frames(&text);
        let list = frames.iter().find(|frame| frame["type"] == "MESSAGES_SNAPSHOT").unwrap();
        let messages = list["messages"].as_array().unwrap();
        let results: Vec<_> =
            (0..messages.len()).filter(|index| messages[*index]["role"] == "tool").collect();
        assert_eq!(results.len(), 3, "{messages:#?}");
        // The newest message before the new one is a result.
        let mut body = run_input(&id, "r4", "r4");
        let new = body["messages"][0].take();
        let before = messages[..=results[place]].iter().cloned();
        body["messages"] = before.chain([new]).collect();
        post(&app, "/ag-ui", body).await;
        let mut expected = vec!["r1", "", "", "One.", "r2", "", "", "Two."];
        expected.truncate(4 * (place + 1));
        expected.extend(["r4", "Four."]);
        assert_eq!(texts(&app, &id).await, expected, "{place}");
    }
}

#[tokio::test]
async fn list_of_an_active_run_has_the_prompts_that_wait_behind_its_answer() {
    let gate = Gate::new();
    let half = Step::new().then_text(["Half"]).gate(&gate).then_text([" done"]).stop();
    let app = App::new([half, Step::text("Two.")]);
    let id = app.create("ann").await;
    let send = async |message: &str| {
        app.send(request(Method::POST, "ann", "/api/chat", Some(submit(&id, message, message)))).await
    };
    let _first = send("u1").await;
    gate.reached().await;
    let _second = send("u2").await;
    let list = async |level: u32| {
        app.get("ann", &format!("/api/chat/{id}/messages?ui={level}&staged=true")).await.json()
    };
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|message| message["id"].as_str().unwrap().to_owned()).collect()
    };
    let shown = list(7).await;
    // A client of level 7 puts the resumed answer in the place of the one with the same id.
    let resumed = app.send(request(Method::GET, "ann", &format!("/api/chat/{id}/stream"), None)).await;
    let mut resumed = resumed.into_body().into_data_stream();
    let start = read(&mut resumed, "\n\n").await;
    let answer = frames(&start)[0]["messageId"].as_str().unwrap().to_owned();
    assert_eq!(ids(&shown), ["u1", &answer, "u2"]);
    let texts: String =
        shown[1]["parts"].as_array().unwrap().iter().filter_map(|part| part["text"].as_str()).collect();
    assert_eq!(texts, "Half");
    assert_eq!(
        (&shown[2]["metadata"]["staged"], &shown[2]["parts"][0]["text"]),
        (&json!(true), &json!("u2"))
    );
    assert_eq!(ids(&list(6).await), ["u1", "u2"], "a client of level 6 appends the answer");
    let bare = app.get("ann", &format!("/api/chat/{id}/messages")).await.json();
    assert_eq!(ids(&bare), ["u1"], "a client decides only about its last message");
    gate.open();
    app.idle(&id).await;
    let all = list(7).await;
    assert_eq!(ids(&all)[..3], ids(&shown));
    let roles: Vec<_> =
        all.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(
        roles,
        [Role::User, Role::Assistant, Role::User, Role::Assistant]
            .map(|role| format!("{role:?}").to_lowercase())
    );
}

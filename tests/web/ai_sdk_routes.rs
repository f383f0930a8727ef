//! The routes of the AI SDK: refusals and the form of the stream.

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    body::BodyDataStream,
    http::{Method, StatusCode, header},
};
use futures_util::StreamExt;
use omni_agent::{
    Agent,
    access::{Principal, StartRequest},
    manager::{Manager, OpenOptions, Titles},
    provider::custom::Part,
    store::{ConversationId, MemoryStore},
    testing::{Gate, ScriptedProvider, Step},
    web::Web,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{self, App, Users, labels, problem, request};

fn submit(id: &str, text: &str) -> Value {
    support::submit(id, "u1", text)
}

#[tokio::test]
async fn stream_ends_with_done_and_has_the_headers_of_the_protocol() {
    let app = App::new([Step::text("Hello.")]);
    let id = app.create("ann").await;
    let answer = app.post("ann", "/api/chat", submit(&id, "Hi")).await;
    assert_eq!(answer.header("x-vercel-ai-ui-message-stream"), Some("v1"));
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let frames: Vec<_> = answer.text.split("\n\n").filter(|frame| !frame.is_empty()).collect();
    assert!(frames[0].starts_with(r#"data: {"type":"start","messageId":"a-"#), "{}", frames[0]);
    assert_eq!(frames.last(), Some(&"data: [DONE]"));
    let list = app.get("ann", &format!("/api/chat/{id}/messages?ui=6")).await.json();
    assert_eq!(list[1]["parts"][1]["text"], "Hello.");
}

#[tokio::test]
async fn unusable_request_is_refused() {
    let app = App::new([]);
    let id = app.create("ann").await;
    let level = app.get("ann", &format!("/api/chat/{id}/messages?ui=5")).await;
    assert_eq!((level.status, level.code()), (StatusCode::BAD_REQUEST, "invalid-query".to_owned()));
    for body in [json!({}), json!({ "id": id, "trigger": "other", "messages": [] }), json!([])] {
        assert_eq!(app.post("ann", "/api/chat", body).await.code(), "invalid-body");
    }
    let mut empty = submit(&id, "Hi");
    empty["messages"] = json!([]);
    assert_eq!(app.post("ann", "/api/chat", empty).await.code(), "invalid-body");
    let blank = app.post("ann", "/api/chat", submit(&id, " ")).await;
    assert_eq!(blank.code(), "empty-prompt");
    let mut form = request(Method::POST, "ann", "/api/chat", Some(submit(&id, "Hi")));
    form.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(app.answer(form).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(app.provider.requests().len(), 0);
}

#[tokio::test]
async fn approval_that_nobody_waits_for_is_stale() {
    let app = App::new([Step::text("Hello.")]);
    let id = app.create("ann").await;
    app.post("ann", "/api/chat", submit(&id, "Hi")).await;
    let part = json!({ "type": "tool-lookup", "toolCallId": "t1", "state": "approval-responded",
                       "approval": { "id": "t1", "approved": true } });
    let message = json!({ "id": "a-u1", "role": "assistant", "parts": [part] });
    let body = json!({ "id": id, "trigger": "submit-message", "messageId": "a-u1", "messages": [message] });
    let answer = app.post("ann", "/api/chat", body).await;
    assert_eq!((answer.status, answer.code()), (StatusCode::CONFLICT, "stale-decision".to_owned()));
}

#[tokio::test]
async fn message_after_an_approval_is_accepted_with_it_or_without_the_permission_for_it() {
    // A client can name the last message that it has, which is not the message to edit.
    for (user, approved, named) in [
        ("ann", true, None),
        ("ann", true, Some("a-u1")),
        ("asker", false, None),
        ("asker", false, Some("a-u1")),
    ] {
        let pause = Step::tool_use("t1", "lookup", json!({ "what": "it" }));
        let app = App::new([pause, Step::text("One."), Step::text("Two.")]);
        let id = app.create("ann").await;
        app.post("ann", "/api/chat", submit(&id, "Hi")).await;
        let part = json!({ "type": "tool-lookup", "toolCallId": "t1", "state": "approval-responded",
                           "approval": { "id": app.pause(&id, "t1").await, "approved": true } });
        let mut body = submit(&id, "Hi");
        body["messages"].as_array_mut().unwrap().extend([
            json!({ "id": "a-u1", "role": "assistant", "parts": [part] }),
            json!({ "id": "u2", "role": "user", "parts": [{ "type": "text", "text": "Next" }] }),
        ]);
        body["messageId"] = named.into();
        let response = app.send(request(Method::POST, user, "/api/chat", Some(body))).await;
        assert_eq!(response.status(), StatusCode::OK, "{user}");
        let session = app.manager.get(&ConversationId::new(&*id).unwrap()).unwrap();
        if approved {
            session.outcome("u2").await.unwrap();
        }
        let agent = session.snapshot().await.unwrap().agent;
        let left = (agent.pauses.is_empty(), agent.staged.is_empty());
        assert_eq!(left, (approved, approved), "{user} {named:?}");
    }
}

#[tokio::test]
async fn approval_of_a_repeated_id_is_that_of_the_last_part() {
    let pause = Step::tool_use("t1", "lookup", json!({ "what": "it" }));
    let app = App::new([pause, Step::text("One.")]);
    let id = app.create("ann").await;
    app.post("ann", "/api/chat", submit(&id, "Hi")).await;
    let pause = app.pause(&id, "t1").await;
    let parts = [true, false].map(|approved| {
        json!({ "type": "tool-lookup", "toolCallId": "t1", "state": "approval-responded",
                "approval": { "id": pause, "approved": approved } })
    });
    let mut body = submit(&id, "Hi");
    let answered = json!({ "id": "a-u1", "role": "assistant", "parts": parts });
    body["messages"].as_array_mut().unwrap().push(answered);
    let answer = app.post("ann", "/api/chat", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    app.idle(&id).await;
    let results = &app.provider.requests()[1].history;
    let denied = results.iter().any(|message| message.tool_results().any(|result| result.is_error));
    assert!(denied, "{results:?}");
}

#[tokio::test]
async fn idle_conversation_has_no_stream_and_nothing_to_stop() {
    let app = App::new([]);
    let id = app.create("ann").await;
    assert_eq!(app.get("ann", &format!("/api/chat/{id}/stream")).await.status, StatusCode::NO_CONTENT);
    let stop = request(Method::POST, "ann", &format!("/api/chat/{id}/stop"), None);
    assert_eq!(app.answer(stop).await.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn draining_refuses_new_runs_and_lets_running_streams_end() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["One."]).gate(&gate).stop()]);
    let id = app.create("ann").await;
    let first = app.send(request(Method::POST, "ann", "/api/chat", Some(submit(&id, "Hi")))).await;
    gate.reached().await;
    app.web.drain();
    let mut second = submit(&id, "And?");
    second["messages"][0]["id"] = "u2".into();
    assert_eq!(app.post("ann", "/api/chat", second).await.code(), "draining");
    gate.open();
    let body = axum::body::to_bytes(first.into_body(), 1 << 20).await.unwrap();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
}

#[tokio::test]
async fn draining_that_begins_while_the_conversation_is_opened_refuses_the_run() {
    let model = ScriptedProvider::new([Step::text("One.")]).model();
    let drained: Arc<OnceLock<Web>> = Arc::default();
    let drains = Arc::clone(&drained);
    let agent = move || OpenOptions::new(Agent::builder().model(model.clone()));
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let id = ConversationId::new("talk").unwrap();
    manager.create_with_id(&id, agent().labels(labels("ann"))).await.unwrap();
    manager.close(&id).await.unwrap();
    // The web layer asks for the agent of a conversation when it opens the conversation.
    let agents = move |_: &Principal, _: &StartRequest| {
        drains.get().unwrap().drain();
        Ok::<_, omni_agent::Error>(agent())
    };
    let web = Web::builder(manager.clone(), Users, agents).build();
    assert!(drained.set(web.clone()).is_ok());
    let router = Router::new().nest("/api", web.ai_sdk());
    let post = request(Method::POST, "ann", "/api/chat", Some(submit("talk", "Hi")));
    assert_eq!(problem(router.oneshot(post).await.unwrap()).await, (503, "draining".to_owned()));
    assert!(manager.get(&id).unwrap().snapshot().await.unwrap().agent.pending.is_empty());
}

#[tokio::test]
async fn dropped_response_leaves_the_run_running() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["One."]).gate(&gate).stop()]);
    let id = app.create("ann").await;
    let response = app.send(request(Method::POST, "ann", "/api/chat", Some(submit(&id, "Hi")))).await;
    gate.reached().await;
    drop(response);
    gate.open();
    app.idle(&id).await;
    let list = app.get("ann", &format!("/api/chat/{id}/messages")).await.json();
    assert_eq!(list[1]["parts"][1]["text"], "One.");
}

#[tokio::test]
async fn large_file_of_a_tool_is_linked_in_the_stream_and_in_the_list() {
    let app = App::new([Step::tool_use("d1", "draw", json!({})), Step::text("There.")]);
    let id = app.create("ann").await;
    let answer = app.post("ann", "/api/chat", submit(&id, "Draw")).await;
    assert!(answer.text.len() < 20_000, "{} bytes", answer.text.len());
    let frames = answer.text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let frames: Vec<Value> =
        frames.map(|frame| serde_json::from_str(&format!("{{{frame}")).unwrap()).collect();
    let outputs: Vec<_> = frames.iter().filter(|frame| frame["type"] == "tool-output-available").collect();
    let [output] = outputs[..] else { panic!("{outputs:?}") };
    let list = app.get("ann", &format!("/api/chat/{id}/messages")).await;
    assert!(list.text.len() < 20_000, "{} bytes", list.text.len());
    let list = list.json();
    let parts = list[1]["parts"].as_array().unwrap();
    let listed = parts.iter().find(|part| part["toolCallId"] == "d1").unwrap();
    assert_eq!(listed["output"], output["output"]);
    assert_eq!(output["output"][0], json!({ "type": "text", "text": "Drawn." }));
    assert_eq!(output["output"][2]["url"], "data:image/png;base64,QUJD");
    let url = output["output"][1]["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("/api/chat/{id}/files/")), "{url}");
    assert_eq!(app.get("ann", url).await.text, "ABC".repeat(20_000));
    assert_eq!(app.get("ben", url).await.code(), "not-found");
}

#[tokio::test]
async fn draining_refuses_to_resume_a_stream() {
    let gate = Gate::new();
    let app = App::new([Step::new().then_text(["One."]).gate(&gate).stop()]);
    let id = app.create("ann").await;
    let _first = app.send(request(Method::POST, "ann", "/api/chat", Some(submit(&id, "Hi")))).await;
    gate.reached().await;
    app.web.drain();
    let resumed = app.get("ann", &format!("/api/chat/{id}/stream")).await;
    assert_eq!((resumed.status, resumed.code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
    gate.open();
}

/// Reads a body until its text contains `last`, or to its end if `last` is empty. Panics if the body fails.
pub(crate) async fn read(body: &mut BodyDataStream, last: &str) -> String {
    let mut text = String::new();
    while last.is_empty() || !text.contains(last) {
        let Some(bytes) = body.next().await else { break };
        text.push_str(std::str::from_utf8(&bytes.expect("the stream is not cut off")).unwrap());
    }
    text
}

/// Returns the frames of a stream, without the last one, which is not JSON.
pub(crate) fn frames(text: &str) -> Vec<Value> {
    let frames = text.lines().filter_map(|line| line.strip_prefix("data: "));
    frames.filter(|frame| *frame != "[DONE]").map(|frame| serde_json::from_str(frame).unwrap()).collect()
}

fn texts(frames: &[Value]) -> String {
    frames.iter().filter_map(|frame| frame["delta"].as_str()).collect()
}

#[tokio::test]
async fn reader_that_was_too_slow_gets_the_rest_of_the_answer() {
    /// More events than the conversation keeps for a slow reader.
    const MANY: usize = 600;
    for level in [6, 7] {
        for is_resumed in [false, true] {
            let (begun, half) = (Gate::new(), Gate::new());
            let many = |step: Step| (0..MANY).fold(step, |step, _| step.more(Part::Text("x".to_owned())));
            let step = many(Step::new().then_text(["One. "]).gate(&begun)).gate(&half);
            let step = many(step).more(Part::Text(" Two.".to_owned())).stop();
            let app = App::new([Step::tool_use("d1", "draw", json!({})), step]);
            let id = app.create("ann").await;
            let chat = format!("/api/chat?ui={level}");
            let posted = app.send(request(Method::POST, "ann", &chat, Some(submit(&id, "Draw")))).await;
            begun.reached().await;
            let mut body = posted.into_body().into_data_stream();
            if is_resumed {
                let path = format!("/api/chat/{id}/stream?ui={level}");
                body =
                    app.send(request(Method::GET, "ann", &path, None)).await.into_body().into_data_stream();
            }
            let mut text = read(&mut body, "One. ").await;
            begun.open();
            // The body is not read while these events are emitted.
            half.reached().await;
            text.push_str(&read(&mut body, "xxx").await);
            half.open();
            app.idle(&id).await;
            text.push_str(&read(&mut body, "").await);
            assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
            let frames = frames(&text);
            assert_eq!(texts(&frames), format!("One. {} Two.", "x".repeat(2 * MANY)));
            assert!(frames.len() < MANY, "{} frames", frames.len());
            let outputs = frames.iter().filter(|frame| frame["type"] == "tool-output-available");
            assert_eq!(outputs.count(), 1, "nothing is repeated");
            let last = frames.last().unwrap();
            assert_eq!((&last["type"], &last["finishReason"]), (&json!("finish"), &json!("stop")));
            assert_eq!(last["messageMetadata"]["nodes"], json!([1, 2, 3, 4]));
        }
    }
}

#[tokio::test]
async fn reader_that_has_read_nothing_of_a_run_gets_the_whole_answer_at_the_end() {
    let app = App::new([Step::new().then_text(vec!["word "; 600]).stop()]);
    let id = app.create("ann").await;
    let response = app.send(request(Method::POST, "ann", "/api/chat", Some(submit(&id, "Hi")))).await;
    app.idle(&id).await;
    let text = read(&mut response.into_body().into_data_stream(), "").await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let frames = frames(&text);
    assert_eq!(texts(&frames), "word ".repeat(600));
    let list = app.get("ann", &format!("/api/chat/{id}/messages")).await.json();
    assert_eq!(frames[0]["messageId"], list[1]["id"]);
    assert_eq!(frames.last().unwrap()["messageMetadata"]["nodes"], json!([1, 2]));
}

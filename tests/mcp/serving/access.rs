//! The permissions of a principal over HTTP, and their changes during a call.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream},
    http::{Method, Response, StatusCode, request::Parts},
};
use futures_util::{StreamExt, stream};
use omni_agent::{
    access::{Action, Agents, Permissions, Principal, StartRequest},
    agent::Status,
    async_trait,
    manager::{Manager, OpenOptions},
    message::ToolResult,
    store::Labels,
    web::{Access, Challenge, WebLimits},
};
use serde_json::{Value, json};

use super::{
    host::{agent, manager, reached},
    web::{App, Users, initialize, last_message, message, new_call, new_headers},
};
use crate::support::soon;

fn labels<const N: usize>(labels: [(&str, &str); N]) -> Labels {
    Labels::new(labels).unwrap()
}

pub fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

/// The messages of a response that arrive one after the other.
pub struct Messages {
    body: BodyDataStream,
    read: String,
}

impl Messages {
    pub fn of(response: Response<Body>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body().into_data_stream(), read: String::new() }
    }

    /// Returns the next message with this method.
    pub async fn next(&mut self, method: &str) -> Value {
        loop {
            while let Some(end) = self.read.find('\n') {
                let line: String = self.read.drain(..=end).collect();
                let message = line.strip_prefix("data:").and_then(|data| serde_json::from_str(data).ok());
                if let Some(message) = message.filter(|message: &Value| message["method"] == method) {
                    return message;
                }
            }
            let piece = self.body.next().await.expect("the stream has not ended").unwrap();
            self.read.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
}

/// Returns the headers of a call in a protocol session of Ann.
pub fn in_session(session: &str) -> [(&str, &str); 2] {
    [("x-user", "ann"), ("mcp-session-id", session)]
}

/// Returns a call of `ask` in a protocol session.
pub fn old_ask(prompt: &str) -> Value {
    // The id is 3, because `App::call` uses the id 2 in the same protocol session.
    let params = json!({ "name": "ask", "arguments": { "prompt": prompt } });
    json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": params })
}

/// Returns a call of `ask` of version 2026-07-28, whose client can ask its user and wants reports.
pub fn asks(prompt: &str) -> Value {
    let mut call = new_call("ask", json!({ "prompt": prompt }));
    call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({ "elicitation": { "form": {} } });
    call["params"]["_meta"]["progressToken"] = json!(1);
    call
}

#[tokio::test]
async fn call_whose_conversation_goes_to_another_user_ends_and_its_run_goes_on() {
    let app = App::new();
    let session = app.session("ann").await;
    let call = old_ask("Go on for ever");
    let calling = app.send(Method::POST, &in_session(&session), &call).await;
    let running = reached(&app.manager, |agent| !agent.partial.is_empty()).await;
    running.set_labels(labels([("user", "ben")])).await.unwrap();
    let refused = message(calling).await["result"].take();
    assert_eq!((text(&refused), &refused["isError"]), ("There is no such conversation.", &json!(true)));
    assert_eq!(running.status().await.unwrap(), Status::Busy);
    running.interrupt().await.unwrap();
}

/// Begins a protocol session of Ann whose client can ask its user, and returns the session's id.
pub async fn session_with_questions(app: &App) -> String {
    let mut first = initialize();
    first["params"]["capabilities"] = json!({ "elicitation": {} });
    let created = app.send(Method::POST, &[("x-user", "ann")], &first).await;
    let session = created.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    app.send(Method::POST, &in_session(&session), &initialized).await;
    session
}

#[tokio::test(start_paused = true)]
async fn question_without_an_answer_is_rejected_before_its_session_ends() {
    // The timer of the comments that keep a stream open does not know the paused time. So there are no comments.
    let app = App::with(|web| web.limits(WebLimits::default().with_keep_alive(Duration::from_hours(24))));
    let session = session_with_questions(&app).await;
    let calling = app.send(Method::POST, &in_session(&session), &old_ask("Delete")).await;
    let answer = last_message(calling).await["result"].take();
    assert!(text(&answer).contains("no answer within an hour"), "{answer}");
}

#[tokio::test]
async fn question_is_withdrawn_while_its_client_may_not_decide() {
    let app = App::new();
    let session = session_with_questions(&app).await;
    let headers = in_session(&session);
    let call = old_ask("Delete");
    // Questions arrive on the stream of the call, and withdrawals on the stream that belongs to no call.
    let mut others = Messages::of(app.send(Method::GET, &headers, &Value::Null).await);
    let mut messages = Messages::of(app.send(Method::POST, &headers, &call).await);
    let question = soon(messages.next("elicitation/create")).await;
    let running = reached(&app.manager, |agent| agent.status == Status::Paused).await;
    running.set_labels(labels([("user", "ann"), ("locked", "yes")])).await.unwrap();
    let withdrawn = soon(others.next("notifications/cancelled")).await;
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    let paused = running.snapshot().await.unwrap().agent;
    assert_eq!((paused.status, paused.pauses.len()), (Status::Paused, 1), "nobody has decided");

    running.set_labels(labels([("user", "ann")])).await.unwrap();
    let again = soon(messages.next("elicitation/create")).await;
    let accepted = json!({ "jsonrpc": "2.0", "id": again["id"], "result": { "action": "accept" } });
    app.send(Method::POST, &headers, &accepted).await;
    soon(running.wait_until_idle()).await.unwrap();
    assert_eq!(running.tree().await.unwrap().history().last().unwrap().text(), "gone");
}

/// Gives each conversation to Ben while it is opened.
struct GivesAway(Manager);

#[async_trait]
impl Agents for GivesAway {
    async fn start(&self, _: &Principal, request: &StartRequest) -> Result<OpenOptions, omni_agent::Error> {
        if let Some(id) = &request.conversation {
            self.0.set_labels(id, labels([("user", "ben")])).await.unwrap();
        }
        Ok(OpenOptions::new(agent()))
    }
}

#[tokio::test]
async fn conversation_that_goes_to_another_user_while_it_is_opened_is_not_shown() {
    for tool in ["read", "ask"] {
        let manager = manager();
        let app = App::of(manager.clone(), GivesAway(manager), |web| web);
        let session = app.session("ann").await;
        let asked = app.call("ann", &session, "ask", json!({ "prompt": "Hello" })).await;
        let mut arguments = json!({ "conversation": asked["structuredContent"]["conversation"] });
        if tool == "ask" {
            arguments["prompt"] = "Hello".into();
        }
        let refused = app.call("ann", &session, tool, arguments).await;
        assert_eq!(text(&refused), "There is no such conversation.", "{tool}");
        let session = reached(&app.manager, |_| true).await;
        assert_eq!(session.tree().await.unwrap().history().len(), 2, "{tool}");
    }
}

#[tokio::test]
async fn principal_that_may_not_prompt_begins_no_conversation() {
    let app = App::new();
    let session = app.session("decider").await;
    let refused = app.call("decider", &session, "ask", json!({ "prompt": "Hello" })).await;
    assert!(text(&refused).contains("this action is not permitted"), "{refused}");
    assert!(app.manager.list_open().is_empty());
}

#[tokio::test(start_paused = true)]
async fn call_with_answers_needs_the_permissions_to_prompt_and_to_decide() {
    let app = App::new();
    let send = async |user: &str, call: &Value| app.send(Method::POST, &new_headers(user, "ask"), call).await;
    let asked = message(send("ann", &asks("Delete")).await).await["result"].take();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let mut again = asks("Delete");
    again["params"]["requestState"] = asked["requestState"].clone();
    again["params"]["inputResponses"] = json!({ "call-1": { "action": "accept" } });

    let refused = message(send("decider", &again).await).await["result"].take();
    assert!(text(&refused).contains("this action is not permitted"), "{refused}");
    // The call of a principal that may not decide waits until somebody else decides.
    let mut messages = Messages::of(send("prompter", &again).await);
    messages.next("notifications/progress").await;
    let session = reached(&app.manager, |agent| agent.pauses.len() == 1).await;
    assert_eq!(session.status().await.unwrap(), Status::Paused);
}

#[tokio::test]
async fn run_is_stopped_although_no_further_call_is_allowed() {
    let app = App::with(|web| web.limits(WebLimits::default().with_streams_per_principal(1)));
    let session = app.session("ann").await;
    let call = old_ask("Go on for ever");
    let calling = app.send(Method::POST, &in_session(&session), &call).await;
    let running = reached(&app.manager, |agent| !agent.partial.is_empty()).await;
    let conversation = json!({ "conversation": running.id() });
    let refused = app.call("ann", &session, "read", conversation.clone()).await;
    assert!(text(&refused).contains("Too many streams are open"), "{refused}");
    let stopped = app.call("ann", &session, "stop", conversation).await;
    assert_eq!(stopped["structuredContent"], json!({ "stopped": true }));
    assert!(text(&message(calling).await["result"]).starts_with("And on"));
}

#[tokio::test(start_paused = true)]
async fn abandoned_call_with_the_prompt_of_another_client_stops_its_run_only_if_that_is_permitted() {
    for (user, expected) in [("asker", Status::Busy), ("prompter", Status::Idle)] {
        let app = App::with(|web| web.limits(WebLimits::default().with_streams_per_principal(1)));
        let session = app.session("ann").await;
        let _calling = app.send(Method::POST, &in_session(&session), &old_ask("Go on for ever")).await;
        let running = reached(&app.manager, |agent| !agent.partial.is_empty()).await;
        let agent = running.snapshot().await.unwrap().agent;
        let (prompt, turn) = (&agent.pending[0].id, agent.turn.unwrap());
        let state = json!({ "conversation": running.id(), "prompt": prompt, "turn": turn });
        let mut rejoining = asks("Hello");
        rejoining["params"]["requestState"] = state.to_string().into();
        let mut messages = Messages::of(app.send(Method::POST, &new_headers(user, "ask"), &rejoining).await);
        messages.next("notifications/progress").await;
        drop(messages);
        // The call has ended when its principal is allowed another call.
        let list = new_call("list", json!({}));
        let is_over = async || {
            let listed = app.send(Method::POST, &new_headers(user, "list"), &list).await;
            message(listed).await["result"]["isError"] != true
        };
        while !is_over().await {
            tokio::task::yield_now().await;
        }
        assert_eq!(running.status().await.unwrap(), expected, "{user}");
    }
}

/// The users of the tests, of whom Ann can lose her access or the permission to decide.
#[derive(Clone, Default)]
struct Losing {
    is_signed_out: Arc<AtomicBool>,
    may_not_decide: Arc<AtomicBool>,
}

impl Permissions for Losing {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        let is_refused = action == Action::Decide && self.may_not_decide.load(Ordering::Relaxed);
        Users.permits(principal, action, labels) && !is_refused
    }
}

#[async_trait]
impl Access for Losing {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        if self.is_signed_out.load(Ordering::Relaxed) {
            Err(Challenge::bearer())
        } else {
            Users.principal(request).await
        }
    }
}

fn losing() -> (App, Losing) {
    let access = Losing::default();
    let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent()));
    (App::guarded(manager(), access.clone(), agents, |web| web), access)
}

#[tokio::test]
async fn principal_that_is_signed_out_while_its_call_arrives_begins_no_conversation() {
    // A body without content can be as slow.
    for call in [new_call("ask", json!({ "prompt": "Hello" })).to_string(), String::new()] {
        let (app, access) = losing();
        let body = stream::once(async move {
            access.is_signed_out.store(true, Ordering::Relaxed);
            Ok::<_, Infallible>(call)
        });
        let refused = app.send_body(Method::POST, &new_headers("ann", "ask"), Body::from_stream(body)).await;
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        assert!(app.manager.list_open().is_empty());
    }
}

#[tokio::test]
async fn answer_of_a_user_that_may_no_longer_decide_is_ignored() {
    let (app, access) = losing();
    let session = session_with_questions(&app).await;
    let headers = in_session(&session);
    let mut messages = Messages::of(app.send(Method::POST, &headers, &old_ask("Delete")).await);
    let question = soon(messages.next("elicitation/create")).await;
    let running = reached(&app.manager, |agent| agent.status == Status::Paused).await;
    access.may_not_decide.store(true, Ordering::Relaxed);
    let accepted = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    app.send(Method::POST, &headers, &accepted).await;
    // The call goes on, so the user can still stop it.
    let stopped = app.call("ann", &session, "stop", json!({ "conversation": running.id() })).await;
    assert_eq!(stopped["structuredContent"], json!({ "stopped": true }));
    soon(running.wait_until_idle()).await.unwrap();
    let text =
        running.tree().await.unwrap().history().last().unwrap().tool_results().next().map(ToolResult::text);
    assert_eq!(text.as_deref(), Some("Interrupted. The tool was not run."));
}

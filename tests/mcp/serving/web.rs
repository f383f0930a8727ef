//! The server over HTTP, behind the access hook of the web layer.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, Response, StatusCode, request::Parts},
};
use futures_util::StreamExt;
use omni_agent::{
    ToolContext,
    access::{Action, Agents, Permissions, Principal, StartRequest},
    agent::Status,
    async_trait,
    manager::{Manager, OpenOptions},
    mcp::McpClient,
    message::ToolUse,
    serve::mcp::{ServerInfo, router},
    store::Labels,
    tool::{Decision, ToolLimits},
    web::{Access, Challenge, Web, WebBuilder, WebLimits},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{
    host::{agent, manager, reached},
    npm::passes,
};
use crate::{
    questions::answered,
    support::{free_port, set, soon},
};

/// Users are known by the header `x-user`. The conversations of `reader`, `prompter`, `decider` and `asker` are Ann's.
/// `reader` may only read them, `prompter` may not decide, `decider` may not send prompts, and `asker` may not stop runs.
/// A conversation with the label `locked` accepts no decisions.
pub struct Users;

impl Permissions for Users {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        let may_act = match principal.name() {
            "reader" => matches!(action, Action::Read | Action::List),
            "prompter" => action != Action::Decide,
            "decider" => action != Action::Prompt,
            "asker" => action != Action::Stop,
            _ => true,
        };
        let is_locked = action == Action::Decide && labels.get("locked").is_some();
        principal.owns(labels) && may_act && !is_locked
    }
}

#[async_trait]
impl Access for Users {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let user = request.headers.get("x-user").and_then(|user| user.to_str().ok());
        let user = user.ok_or_else(Challenge::bearer)?;
        let owner = if matches!(user, "reader" | "prompter" | "decider" | "asker") { "ann" } else { user };
        Ok(Principal::new(user, Labels::new([("user", owner)]).unwrap()).unwrap())
    }
}

pub struct App {
    pub manager: Manager,
    pub web: Web,
    router: Router,
}

impl App {
    pub fn new() -> Self {
        Self::with(|web| web)
    }

    pub fn with(set_up: impl FnOnce(WebBuilder) -> WebBuilder) -> Self {
        let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent()));
        Self::of(manager(), agents, set_up)
    }

    pub fn of(manager: Manager, agents: impl Agents, set_up: impl FnOnce(WebBuilder) -> WebBuilder) -> Self {
        Self::guarded(manager, Users, agents, set_up)
    }

    pub fn guarded(
        manager: Manager,
        access: impl Access,
        agents: impl Agents,
        set_up: impl FnOnce(WebBuilder) -> WebBuilder,
    ) -> Self {
        let web = set_up(Web::builder(manager.clone(), access, agents)).build();
        let router = Router::new().nest_service("/mcp", router(&web, ServerInfo::new("served", "1.0.0")));
        Self { manager, web, router }
    }

    /// Serves the router, and returns its address.
    async fn listen(&self) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
        let router = self.router.clone();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}/mcp")
    }

    pub async fn send(&self, method: Method, headers: &[(&str, &str)], body: &Value) -> Response<Body> {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.send_body(method, headers, body).await
    }

    pub async fn send_body(&self, method: Method, headers: &[(&str, &str)], body: Body) -> Response<Body> {
        let mut request = Request::builder().method(method).uri("/mcp").header("host", "it");
        request = request.header("content-type", "application/json");
        request = request.header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        soon(self.router.clone().oneshot(request.body(body).unwrap())).await.unwrap()
    }

    /// Begins a protocol session of an older version, and returns its id.
    pub async fn session(&self, user: &str) -> String {
        let response = self.send(Method::POST, &[("x-user", user)], &initialize()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let headers = [("x-user", user), ("mcp-session-id", &id)];
        assert_eq!(self.send(Method::POST, &headers, &initialized).await.status(), StatusCode::ACCEPTED);
        id
    }

    /// Calls a tool in a protocol session, and returns its result.
    pub async fn call(&self, user: &str, session: &str, tool: &str, arguments: Value) -> Value {
        let headers = [("x-user", user), ("mcp-session-id", session)];
        let params = json!({ "name": tool, "arguments": arguments });
        let request = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
        message(self.send(Method::POST, &headers, &request).await).await["result"].take()
    }
}

pub fn initialize() -> Value {
    let client = json!({ "name": "raw", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })
}

/// Returns a tool call in version 2026-07-28 of the protocol.
pub fn new_call(tool: &str, arguments: Value) -> Value {
    let client = json!({ "name": "raw", "version": "1" });
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": client,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut params = json!({ "name": tool, "_meta": meta });
    params["arguments"] = arguments;
    json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params })
}

pub fn new_headers<'a>(user: &'a str, tool: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("x-user", user),
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "tools/call"),
        ("mcp-name", tool),
    ]
}

/// Reads the last message of a response that ends soon.
pub async fn message(response: Response<Body>) -> Value {
    soon(last_message(response)).await
}

/// Reads the last message of a response.
pub async fn last_message(response: Response<Body>) -> Value {
    assert_eq!(response.status(), StatusCode::OK);
    let text = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let last =
        text.lines().filter_map(|line| line.strip_prefix("data:")).rfind(|data| !data.trim().is_empty());
    serde_json::from_str(last.unwrap_or(&text)).unwrap()
}

#[tokio::test]
async fn own_client_asks_over_http_in_both_generations() {
    for version in ["2025-11-25", "2026-07-28"] {
        let app = App::new();
        let url = app.listen().await;
        let client = McpClient::http(url).header("x-user", "ann").name("it").version(version);
        let client = soon(client.connect()).await.unwrap();
        assert_eq!(client.protocol_version().await.unwrap(), version);
        let hints = client.tools().await.unwrap().hints;
        assert_eq!(hints.keys().collect::<Vec<_>>(), ["it__list", "it__read", "it__stop"]);
        assert_eq!((hints["it__list"].read_only, hints["it__stop"].destructive), (Some(true), Some(false)));
        let tool_use = ToolUse::new("call-1", "it__ask", json!({ "prompt": "Look" }));
        let tools = set(&client).await;
        let result =
            soon(tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default())).await;
        assert!(result.text().starts_with("Seen."), "{result:?}");
        // The client's agent uses the served agent as a tool. A question of the served agent becomes a question of this
        // tool.
        let (questions, text) =
            answered(&client, "it__ask", json!({ "prompt": "Delete" }), |_| Decision::Execute).await;
        assert!(text.starts_with("gone"), "{text}");
        assert_eq!(questions.len(), 1);
        let expected = r#"Allow the tool delete with this input? {"file":"x"}"#;
        assert_eq!((&questions[0]["mcp"], &questions[0]["message"]), (&json!("form"), &json!(expected)));
        soon(client.close()).await;
    }
}

#[tokio::test]
async fn stranger_sees_nothing() {
    let app = App::new();
    let (ann, ben) = (app.session("ann").await, app.session("ben").await);
    let asked = app.call("ann", &ann, "ask", json!({ "prompt": "Hello" })).await;
    let conversation = &asked["structuredContent"]["conversation"];
    assert!(conversation.is_string(), "{asked}");
    let listed = |result: &Value| result["structuredContent"]["conversations"].as_array().unwrap().len();
    assert_eq!(listed(&app.call("ann", &ann, "list", json!({})).await), 1);
    assert_eq!(listed(&app.call("ben", &ben, "list", json!({})).await), 0);
    for (tool, arguments) in [
        ("ask", json!({ "conversation": conversation, "prompt": "Hello" })),
        ("read", json!({ "conversation": conversation })),
        ("stop", json!({ "conversation": conversation })),
    ] {
        let of_ann = app.call("ben", &ben, tool, arguments.clone()).await;
        let mut other = arguments;
        other["conversation"] = json!("none");
        assert_eq!(of_ann, app.call("ben", &ben, tool, other).await, "{tool}");
        assert_eq!(of_ann["content"][0]["text"], "There is no such conversation.");
    }
    // A forged `requestState` that names Ann's conversation is refused, too.
    let state = json!({ "conversation": conversation, "prompt": "p", "turn": "0" }).to_string();
    let mut forged = new_call("ask", json!({ "prompt": "Hello" }));
    forged["params"]["requestState"] = state.into();
    let refused = message(app.send(Method::POST, &new_headers("ben", "ask"), &forged).await).await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");

    // A principal can't use the protocol session of another principal, and a request without a user is refused.
    let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list" });
    for (method, body) in [(Method::POST, &call), (Method::GET, &Value::Null), (Method::DELETE, &Value::Null)]
    {
        let headers = [("x-user", "ben"), ("mcp-session-id", &*ann)];
        assert_eq!(app.send(method.clone(), &headers, body).await.status(), StatusCode::NOT_FOUND);
        let anonymous = app.send(method, &[("mcp-session-id", &*ann)], body).await;
        assert_eq!(anonymous.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(anonymous.headers()["www-authenticate"], "Bearer");
    }
    assert_eq!(listed(&app.call("ann", &ann, "list", json!({})).await), 1);
}

/// After a restart, some clients begin another session with the id of the lost one.
#[tokio::test]
async fn initialize_with_an_unknown_session_begins_another_session() {
    let app = App::new();
    let ben = app.session("ben").await;
    for unknown in ["gone", &ben] {
        let headers = [("x-user", "ann"), ("mcp-session-id", unknown)];
        let begun = app.send(Method::POST, &headers, &initialize()).await;
        assert_eq!(begun.status(), StatusCode::OK);
        assert_ne!(begun.headers()["mcp-session-id"], unknown);
        for method in ["tools/list", "notifications/initialized"] {
            let other = json!({ "jsonrpc": "2.0", "id": 2, "method": method });
            assert_eq!(app.send(Method::POST, &headers, &other).await.status(), StatusCode::NOT_FOUND);
        }
    }
}

#[tokio::test]
async fn principal_that_may_only_read_reads_and_lists() {
    let app = App::new();
    let (ann, reader) = (app.session("ann").await, app.session("reader").await);
    let asked = app.call("ann", &ann, "ask", json!({ "prompt": "Hello" })).await;
    let conversation = json!({ "conversation": asked["structuredContent"]["conversation"] });
    let read = app.call("reader", &reader, "read", conversation.clone()).await;
    assert_eq!(read["structuredContent"]["messages"][1]["text"], "You said: Hello");
    let stopped = app.call("reader", &reader, "stop", conversation).await;
    let text = stopped["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("this action is not permitted"), "{text}");
    let created = app.call("reader", &reader, "ask", json!({ "prompt": "Hello" })).await;
    assert_eq!(created["isError"], true, "{created}");
}

#[tokio::test]
async fn page_of_another_site_is_refused() {
    let app = App::with(|web| web.allow_origins(["https://chat.example.com"]));
    let from = |origin| [("x-user", "ann"), ("origin", origin)];
    let refused = app.send(Method::POST, &from("https://evil.example.com"), &initialize()).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    let accepted = app.send(Method::POST, &from("https://chat.example.com"), &initialize()).await;
    assert_eq!(accepted.status(), StatusCode::OK);
    let exposed = accepted.headers()["access-control-expose-headers"].to_str().unwrap();
    let exposed: Vec<_> = exposed.split(", ").collect();
    for name in ["mcp-session-id", "www-authenticate", "retry-after", "location"] {
        assert!(exposed.contains(&name), "{exposed:?}");
    }
}

#[tokio::test]
async fn path_with_a_slash_at_its_end_is_served_too() {
    let app = App::new();
    let request = Request::builder().method(Method::POST).uri("/mcp/").header("host", "it");
    let request = request.header("content-type", "application/json").header("x-user", "ann");
    let request = request.header("accept", "application/json, text/event-stream");
    let request = request.body(Body::from(initialize().to_string())).unwrap();
    let response = soon(app.router.clone().oneshot(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn request_with_any_accepted_kinds_is_served() {
    let app = App::new();
    let request = |method: Method, accept: Option<&str>, body: Body| {
        let request = Request::builder().method(method).uri("/mcp").header("host", "it");
        let mut request = request.header("content-type", "application/json").header("x-user", "ann");
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        request.body(body).unwrap()
    };
    for accept in [None, Some("*/*"), Some("application/json"), Some("text/event-stream"), Some("text/html")]
    {
        let request = request(Method::POST, accept, Body::from(initialize().to_string()));
        let response = soon(app.router.clone().oneshot(request)).await.unwrap();
        assert_eq!(message(response).await["result"]["serverInfo"]["name"], "served", "{accept:?}");
    }
    let cases = [
        (None, 200),
        (Some("*/*"), 200),
        (Some("application/json, Text/*;q=0.5"), 200),
        (Some("text/html"), 406),
    ];
    for (accept, status) in cases {
        let session = app.session("ann").await;
        let mut request = request(Method::GET, accept, Body::empty());
        request.headers_mut().insert("mcp-session-id", session.parse().unwrap());
        let response = soon(app.router.clone().oneshot(request)).await.unwrap();
        assert_eq!(response.status(), status, "{accept:?}");
    }
}

#[tokio::test]
async fn body_that_is_too_large_is_refused() {
    let app = App::with(|web| web.limits(WebLimits::default().with_command_body(1000)));
    let mut large = initialize();
    large["params"]["clientInfo"]["name"] = "x".repeat(2000).into();
    let refused = app.send(Method::POST, &[("x-user", "ann")], &large).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn new_session_ends_the_oldest_one_of_the_same_principal() {
    let app = App::with(|web| web.limits(WebLimits::default().with_streams_per_principal(2)));
    let other = app.session("ben").await;
    let sessions = [app.session("ann").await, app.session("ann").await, app.session("ann").await];
    let list = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/list" });
    let mut found = Vec::new();
    for (user, session) in sessions.iter().map(|session| ("ann", session)).chain([("ben", &other)]) {
        let headers = [("x-user", user), ("mcp-session-id", &**session)];
        found.push(app.send(Method::POST, &headers, &list).await.status().as_u16());
    }
    assert_eq!(found, [404, 200, 200, 200]);
}

#[tokio::test]
async fn closed_connection_of_a_new_client_interrupts_its_run() {
    let app = App::new();
    let call = new_call("ask", json!({ "prompt": "Go on for ever" }));
    {
        let headers = new_headers("ann", "ask");
        let sent = app.send(Method::POST, &headers, &call);
        let running = async {
            reached(&app.manager, |agent| !agent.partial.is_empty()).await;
        };
        tokio::select! {
            response = sent => {
                // The headers may arrive before the end of the call.
                running_stream(response, &app).await;
            }
            () = running => {}
        }
    }
    let session = reached(&app.manager, |agent| agent.status == Status::Idle).await;
    assert_eq!(session.tree().await.unwrap().history().iter().last().unwrap().text(), "And on");
}

async fn running_stream(response: Response<Body>, app: &App) {
    let mut body = response.into_body().into_data_stream();
    tokio::select! {
        _ = body.next() => {}
        _ = reached(&app.manager, |agent| !agent.partial.is_empty()) => {}
    }
}

#[tokio::test]
async fn draining_ends_calls_with_an_error_and_their_runs_go_on() {
    let app = App::new();
    let session = app.session("ann").await;
    let headers = [("x-user", "ann"), ("mcp-session-id", &*session)];
    let params = json!({ "name": "ask", "arguments": { "prompt": "Go on for ever" } });
    let request = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
    let calling = app.send(Method::POST, &headers, &request).await;
    let standing = app.send(Method::GET, &headers, &Value::Null).await;
    let running = reached(&app.manager, |agent| !agent.partial.is_empty()).await;
    app.web.drain();
    let result = message(calling).await;
    let text = result["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("the server is about to stop"), "{text}");
    assert!(text.contains(running.id().as_str()), "{text}");
    assert_eq!(running.status().await.unwrap(), Status::Busy);
    soon(to_bytes(standing.into_body(), 1 << 20)).await.unwrap();
    let refused = app.call("ann", &session, "ask", json!({ "prompt": "Hello" })).await;
    assert_eq!(refused["content"][0]["text"], "The server is about to stop.");
    running.interrupt().await.unwrap();
}

#[tokio::test]
async fn official_client_of_npm_uses_the_server_over_http() {
    let url = App::new().listen().await;
    passes(&[url], ("USER_NAME", "ann")).await;
}

//! Credentials of the principal whose request starts a conversation.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
};

use axum::{
    body::Body,
    http::{Request, StatusCode, request::Parts},
};
use omni_agent::{
    Agent,
    access::{Agents, Permissions, Principal, StartRequest},
    async_trait,
    manager::{Manager, OpenOptions, Titles},
    mcp::McpClient,
    store::{ConversationId, Labels, MemoryStore},
    testing::{ScriptedProvider, Step},
    tool::ToolSet,
    web::{Access, Challenge, Web},
};
use serde_json::json;
use tower::ServiceExt as _;
use tracing::{Event, Subscriber, field::Field, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use crate::{
    generations::Fixture,
    support::{LIMIT, free_port, soon},
};

struct Users;

impl Permissions for Users {}

#[async_trait]
impl Access for Users {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let user = request.headers.get("x-user").and_then(|user| user.to_str().ok());
        let user = user.ok_or_else(Challenge::bearer)?;
        Ok(Principal::new(user, Labels::new([("user", user)]).unwrap()).unwrap())
    }
}

/// Starts agents with the tools of the MCP server at this address. Each agent connects with the key of its user.
struct Connected(String);

#[async_trait]
impl Agents for Connected {
    async fn start(&self, principal: &Principal, _: &StartRequest) -> Result<OpenOptions, omni_agent::Error> {
        let client = McpClient::http(&self.0).name("it").header("Authorization", key(principal.name()));
        let client = client.connect().await.unwrap();
        let tools = ToolSet::new().extended(client.tools().await.unwrap().tools).unwrap();
        let steps = [Step::tool_use("call-1", "it__who", json!({})), Step::text("Done.")];
        Ok(OpenOptions::new(Agent::builder().model(ScriptedProvider::new(steps).model()).tools(tools)))
    }
}

fn key(user: &str) -> String {
    format!("Bearer key-of-{user}")
}

/// Collects the text of all spans and events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for Log {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

#[tokio::test]
async fn query_of_the_url_is_never_logged_if_the_server_can_not_be_reached() {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    tracing::callsite::rebuild_interest_cache();
    let url = format!("http://127.0.0.1:{}/mcp?apiKey=hunter2-hunter2", free_port());
    let error = soon(McpClient::http(url).name("it").version("2025-06-18").connect()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error} {error:?}");
    let log = log.0.lock().unwrap();
    assert!(log.contains("worker quit with fatal") && !log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn credentials_of_two_principals_are_never_mixed_or_logged() {
    let Some(fixture) = Fixture::new("old.mjs", true).await else { return };
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let router = Web::builder(manager.clone(), Users, Connected(fixture.url())).build().router();
    let mut sessions = Vec::new();
    for user in ["ann", "benjamin"] {
        let request = Request::post("/conversations").header("x-user", user);
        let request = request.header("content-type", "application/json").body(Body::from("{}")).unwrap();
        let response = soon(router.clone().oneshot(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        let location = response.headers()["location"].to_str().unwrap();
        let id = ConversationId::try_from(location.rsplit('/').next().unwrap()).unwrap();
        sessions.push((user, manager.get(&id).unwrap()));
    }
    // Another test may have reached a span for the first time while the subscriber was being set. Such a span would stay
    // disabled without this call.
    tracing::callsite::rebuild_interest_cache();
    // The server returns the length of the key that it got.
    let (ann, benjamin) = (&sessions[0], &sessions[1]);
    let (first, second) = tokio::join!(soon(ann.1.ask("Who?")), soon(benjamin.1.ask("Who?")));
    for (user, response) in [(ann.0, first.unwrap()), (benjamin.0, second.unwrap())] {
        let messages = format!("{:?}", response.messages);
        assert!(messages.contains(&format!("key of {} bytes", key(user).len())), "{user}: {messages}");
    }
    for (user, session) in &sessions {
        let events = serde_json::to_string(&session.snapshot().await.unwrap()).unwrap();
        assert!(!events.contains(&key(user)), "{events}");
    }
    drop(sessions);
    soon(manager.shutdown(LIMIT)).await.unwrap();
    let log = log.0.lock().unwrap();
    assert!(log.contains("invoke_agent") && !log.contains("key-of-"), "{log}");
}

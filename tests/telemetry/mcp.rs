//! Calls at MCP servers. The server is a served manager in the same process.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::request::Parts,
    middleware::{self, Next},
};
use omni_agent::{
    Agent,
    access::{Permissions, Principal, StartRequest},
    async_trait,
    manager::{Manager, OpenOptions},
    mcp::McpClient,
    serve::mcp::{ServerInfo, router},
    store::{Labels, MemoryStore},
    telemetry::{self, TelemetrySettings},
    testing::{ScriptedProvider, Step},
    tool::ToolSet,
    web::{Access, Challenge, Web},
};
use serde_json::{Value, json};
use tracing::Instrument;

use super::{
    alone::{alone, threaded},
    collector::Collector,
};

struct OneUser;

impl Permissions for OneUser {}

#[async_trait]
impl Access for OneUser {
    async fn principal(&self, _: &Parts) -> Result<Principal, Challenge> {
        Ok(Principal::new("ann", Labels::new([("user", "ann")]).unwrap()).unwrap())
    }
}

type Bodies = Arc<Mutex<Vec<Value>>>;

/// Serves a manager, and returns its address and the bodies of the requests.
fn serve() -> (String, Bodies) {
    let agents =
        |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder()));
    let web = Web::builder(Manager::builder(MemoryStore::new()).build(), OneUser, agents).build();
    let bodies = Bodies::default();
    let seen = Arc::clone(&bodies);
    let record = middleware::from_fn(move |request: Request, next: Next| {
        let seen = Arc::clone(&seen);
        async move {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            seen.lock().unwrap().extend(serde_json::from_slice::<Value>(&body));
            next.run(Request::from_parts(parts, Body::from(body))).await
        }
    });
    let app = Router::new().nest("/mcp", router(&web, ServerInfo::new("served", "1.0.0"))).layer(record);
    let free = (20_000..32_000).find_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok());
    let listener = free.unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let url = format!("http://{}/mcp?key=hunter2-hunter2", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, bodies)
}

#[test]
fn call_at_an_mcp_server_has_its_attributes_and_no_span_is_open_while_idle() {
    const TEST: &str = "mcp::call_at_an_mcp_server_has_its_attributes_and_no_span_is_open_while_idle";
    alone(TEST, &[], || {
        let collector = Collector::install();
        let context = || Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
        telemetry::configure(TelemetrySettings::new().with_traceparent(context)).unwrap();
        threaded(async {
            let (url, bodies) = serve();
            let caller = || tracing::info_span!(target: "test", "caller");
            for (version, has_session) in [("2025-11-25", true), ("2026-07-28", false)] {
                let client = McpClient::http(&url).name("it").version(version);
                let client = client.connect().instrument(caller()).await.unwrap();
                let tools = ToolSet::new().extended(client.tools().await.unwrap().tools).unwrap();
                let steps = [Step::tool_use("call-1", "it__list", json!({})), Step::text("Done.")];
                let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tools(tools);
                let agent = agent.start().await.unwrap();
                agent.ask("List.").instrument(caller()).await.unwrap();
                agent.wait_until_idle().await.unwrap();
                // The connection is open, and the agent is idle.
                assert_eq!(collector.open(), [""; 0]);
                let spans = collector.spans();
                let span = spans.iter().rfind(|span| span.name == "execute_tool it__list").unwrap();
                let attribute = |name: &str| span.attributes.get(name).map(String::as_str);
                assert_eq!(attribute("mcp.method.name"), Some("tools/call"));
                assert_eq!(attribute("mcp.protocol.version"), Some(version));
                assert_eq!(attribute("mcp.session.id").is_some(), has_session);
                assert!(attribute("jsonrpc.request.id").is_some());
                assert_eq!(attribute("network.transport"), Some("tcp"));
                assert_eq!(attribute("server.address"), Some("127.0.0.1"));
                assert!(url.contains(&format!(":{}/", attribute("server.port").unwrap())));
                client.close().await;
            }
            let calls: Vec<_> = bodies
                .lock()
                .unwrap()
                .iter()
                .filter(|body| body["method"] == "tools/call")
                .cloned()
                .collect();
            assert_eq!(calls.len(), 2);
            assert!(calls.iter().all(|call| call["params"]["_meta"]["traceparent"] == context().unwrap()));
            assert!(!collector.recorded().contains("hunter2"));
        });
    });
}

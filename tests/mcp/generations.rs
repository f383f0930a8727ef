//! Servers made with the official libraries for both generations of the protocol (up to version 2025-11-25, and
//! 2026-07-28), over both transports.

use std::{path::PathBuf, time::Duration};

use omni_agent::{
    ToolContext,
    mcp::{McpBuilder, McpClient},
    message::{ResultBlock, ToolResult, ToolUse},
    testing::Step,
    tool::{ToolLimits, ToolSet},
};
use serde_json::{Value, json};
use tokio::{process::Child, sync::mpsc};

use crate::{
    official::installed,
    support::{Hostile, LIMIT, adopts, failure, free_port, session, set, soon, until},
};

const NEW: &str = "2026-07-28";
const OLD: &str = "2025-11-25";

/// A server, and the transport over which it is reached.
pub struct Fixture {
    pub log: Hostile,
    script: PathBuf,
    http: Option<(u16, Child)>,
}

impl Fixture {
    /// Returns `None`, which skips the test, if the libraries can't be installed.
    pub async fn new(script: &str, over_http: bool) -> Option<Self> {
        let (log, script) = (Hostile::new()?, installed().await?.join(script));
        let mut fixture = Self { log, script, http: None };
        if over_http {
            let port = free_port();
            fixture.http = Some((port, fixture.log.serve(&fixture.script, "", port).await));
        }
        Some(fixture)
    }

    /// Returns the URL of a server over HTTP.
    pub fn url(&self) -> String {
        let (port, _) = self.http.as_ref().unwrap();
        format!("http://127.0.0.1:{port}/mcp")
    }

    pub fn client(&self) -> McpBuilder {
        match &self.http {
            Some(_) => McpClient::http(self.url()).name("it"),
            None => self.log.stdio(&self.script).name("it"),
        }
    }

    /// Starts a server over HTTP again after it has ended.
    async fn restart(&mut self) {
        if let Some((port, server)) = &mut self.http {
            soon(server.wait()).await.unwrap();
            *server = self.log.serve(&self.script, "", *port).await;
        }
    }
}

pub async fn run(tools: &ToolSet, name: &str, input: Value) -> ToolResult {
    let tool_use = ToolUse::new("call-1", format!("it__{name}"), input);
    soon(tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default())).await
}

/// Runs all cases against one server.
async fn check(script: &str, version: &str, over_http: bool) {
    let Some(mut fixture) = Fixture::new(script, over_http).await else { return };
    let client = soon(fixture.client().connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.unwrap(), version);
    let pinned = soon(fixture.client().version(version).connect()).await.unwrap();
    assert_eq!(pinned.protocol_version().await.unwrap(), version);
    assert_eq!(run(&set(&pinned).await, "echo", json!({ "text": "pinned" })).await.text(), "pinned");
    soon(pinned.close()).await;

    assert_eq!(soon(client.tools()).await.unwrap().skipped, []);
    let tools = set(&client).await;
    assert_eq!(run(&tools, "echo", json!({ "text": "hi" })).await.text(), "hi");
    assert!(failure(&run(&tools, "fail", json!({})).await).contains("it failed"));
    assert!(failure(&run(&tools, "throw", json!({})).await).contains("it threw"));
    let image = run(&tools, "image", json!({})).await;
    assert!(
        matches!(&image.content[..], [ResultBlock::Attachment(image)] if image.media_type == "image/png")
    );

    let (sender, mut reports) = mpsc::channel(100);
    let context = ToolContext::detached("call-2").with_progress(sender);
    let long = ToolUse::new("call-2", "it__progress", json!({ "steps": 4 }));
    assert_eq!(soon(tools.run(&long, context, &ToolLimits::default())).await.text(), "done");
    let (_, report) = reports.try_recv().unwrap();
    assert_eq!((&report["total"], &report["message"]), (&json!(4.0), &json!("step 1")));

    check_limits(&fixture).await;
    check_changes(&client).await;

    let killed = failure(&run(&tools, "kill", json!({})).await);
    assert!(killed.contains("ended before its answer arrived"), "{killed}");
    fixture.restart().await;
    assert_eq!(run(&tools, "echo", json!({ "text": "again" })).await.text(), "again");
    soon(client.close()).await;
    if let Some((_, server)) = &mut fixture.http {
        soon(server.kill()).await.unwrap();
    }
    fixture.log.is_gone().await;
}

async fn check_limits(fixture: &Fixture) {
    let limit = Duration::from_millis(300);
    let impatient = soon(fixture.client().idle_limit(limit).connect()).await.unwrap();
    let tools = set(&impatient).await;
    let silent = failure(&run(&tools, "silent", json!({})).await);
    assert_eq!(silent, r#"the MCP server "it" did not answer within 300ms"#);
    until("the call is cancelled", || fixture.log.count("aborted") == 1).await;
    // Each progress report restarts the idle limit, so the call succeeds although it takes longer than the limit.
    assert_eq!(run(&tools, "progress", json!({ "steps": 10 })).await.text(), "done");

    let running = tools.clone();
    let calling = tokio::spawn(async move { run(&running, "silent", json!({})).await });
    until("the call has arrived", || fixture.log.count("silent") == 2).await;
    calling.abort();
    until("the call is cancelled", || fixture.log.count("aborted") == 2).await;
    soon(impatient.close()).await;

    let bounded = soon(fixture.client().total_limit(limit).connect()).await.unwrap();
    let endless = failure(&run(&set(&bounded).await, "progress", json!({ "steps": 10_000 })).await);
    assert_eq!(endless, r#"the MCP server "it" did not answer within 300ms"#);
    soon(bounded.close()).await;
}

/// Checks that a list of tools that changes during a run takes effect after the run.
async fn check_changes(client: &McpClient) {
    let steps = [
        Step::tool_use("call-1", "it__change", json!({})),
        Step::tool_use("call-2", "it__added", json!({})),
        Step::text("done"),
    ];
    let session = session(client, steps).await;
    let mut names: Vec<_> =
        session.state().await.unwrap().config().tools.iter().map(|tool| tool.name().to_owned()).collect();
    client.follow(&session);
    let response = soon(session.ask("Change")).await.unwrap();
    assert!(format!("{:?}", response.messages).contains("There is no tool"));
    names.insert(0, "it__added".to_owned());
    adopts(&session, &names.iter().map(|name| &**name).collect::<Vec<_>>()).await;
    soon(session.stop(LIMIT)).await.unwrap();
}

#[tokio::test]
async fn new_server_works_over_standard_io() {
    check("new.mjs", NEW, false).await;
}

#[tokio::test]
async fn new_server_works_over_http() {
    check("new.mjs", NEW, true).await;
}

#[tokio::test]
async fn old_server_works_over_standard_io() {
    check("old.mjs", OLD, false).await;
}

#[tokio::test]
async fn old_server_works_over_http() {
    check("old.mjs", OLD, true).await;
}

#[tokio::test]
async fn connect_server_that_ignores_unknown_requests_is_used_with_an_older_version() {
    let Some(hostile) = Hostile::new() else { return };
    let started = std::time::Instant::now();
    let client = soon(hostile.unpinned("no_discover").connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.unwrap(), OLD);
    assert!(started.elapsed() >= Duration::from_secs(10));
    assert_eq!(hostile.count("server/discover"), 1);
}

#[tokio::test]
async fn connect_new_version_at_an_old_server_fails_with_the_reason() {
    let Some(fixture) = Fixture::new("old.mjs", false).await else { return };
    let error = soon(fixture.client().version(NEW).connect()).await.unwrap_err();
    assert!(error.to_string().contains("can't be reached"), "{error}");
    fixture.log.is_gone().await;
}

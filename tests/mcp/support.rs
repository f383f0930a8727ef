//! Clients of the server that misbehaves, and the state of its processes.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use omni_agent::{
    Agent, Session, ToolContext,
    mcp::{McpBuilder, McpClient},
    message::{ToolResult, ToolUse},
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
    tool::{ToolLimits, ToolSet},
};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use tokio::{process::Child, time::timeout};

use crate::npm::node;

/// The time limit for everything that the tests wait for.
pub const LIMIT: Duration = Duration::from_secs(30);

const HOSTILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/hostile.mjs");

/// The secret that no text may contain.
pub const TOKEN: &str = "hunter2-hunter2";

/// The program of Node, and the path of the file to which the servers of one test write what happens. The file is
/// removed when this value is dropped.
pub struct Hostile {
    node: PathBuf,
    log: PathBuf,
}

impl Hostile {
    /// Returns `None`, which skips the test, if Node can't be installed.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let node = node()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self { node, log: env::temp_dir().join(format!("omni-mcp-{}-{number}", std::process::id())) })
    }

    /// Returns a client of a server that is a script of Node.
    pub fn stdio(&self, script: &Path) -> McpBuilder {
        McpClient::stdio(self.node.to_str().unwrap()).args([script]).env("LOG", self.path())
    }

    /// Returns a client of a server of this kind. The protocol version is fixed, because the server supports only this
    /// version.
    pub fn like(&self, like: &str) -> McpBuilder {
        self.unpinned(like).version("2025-06-18")
    }

    /// Like [`like`](Self::like), without a fixed version.
    pub fn unpinned(&self, like: &str) -> McpBuilder {
        self.stdio(Path::new(HOSTILE)).env("LIKE", like).env("TOKEN", TOKEN).name("hostile")
    }

    /// Starts a server of this kind at an address, and returns it with a client. The server is killed when it is
    /// dropped.
    pub async fn over_http(&self, like: &str) -> (Child, McpBuilder) {
        let port = free_port();
        let server = self.serve(Path::new(HOSTILE), like, port).await;
        let client = McpClient::http(format!("http://127.0.0.1:{port}/mcp"))
            .header("Authorization", format!("Bearer {TOKEN}"))
            .name("hostile")
            .version("2025-06-18");
        (server, client)
    }

    /// Starts a server at this port, and waits until it listens.
    pub async fn serve(&self, script: &Path, like: &str, port: u16) -> Child {
        let mut command = tokio::process::Command::new(&self.node);
        command.arg(script).env("LOG", &self.log).env("LIKE", like).env("TOKEN", TOKEN);
        let started = self.count("listening");
        let command = command.env("PORT", port.to_string()).stdin(Stdio::null()).kill_on_drop(true);
        let server = command.spawn().unwrap();
        until("the server listens", || self.count("listening") > started).await;
        server
    }

    /// Returns the path of the file to which the server writes.
    pub fn path(&self) -> &str {
        self.log.to_str().unwrap()
    }

    pub fn log(&self) -> Vec<String> {
        fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub fn count(&self, line: &str) -> usize {
        self.log().iter().filter(|found| found.starts_with(line)).count()
    }

    pub fn running(&self) -> usize {
        let pids = self.log().into_iter().filter_map(|line| line.strip_prefix("pid ")?.parse().ok());
        pids.filter(|pid| test_kill_process(Pid::from_raw(*pid).unwrap()).is_ok()).count()
    }

    /// Waits until no process of the server runs.
    pub async fn is_gone(&self) {
        until("no process of the server runs", || self.running() == 0).await;
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.log);
    }
}

/// Returns a port on which nothing listens. The port is below the ports that the system gives to outgoing connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() * 16;
    // The tests of other programs use ports outside of this range.
    let ports = (0..7_000).map(|step| 20_000 + u16::try_from((number + step) % 7_000).unwrap());
    ports.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// Waits until another process has made the condition true.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("this did not happen in time: {what}"));
}

/// Waits for the future, at most until the time limit.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("it ends within the time limit")
}

/// Returns the tools of a client as a set.
pub async fn set(client: &McpClient) -> ToolSet {
    ToolSet::new().extended(soon(client.tools()).await.unwrap().tools).unwrap()
}

/// Returns a session that has the tools of the client.
pub async fn session(client: &McpClient, steps: impl IntoIterator<Item = Step>) -> Session {
    let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tools(set(client).await);
    Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap()
}

/// Waits until the session has exactly these tools.
pub async fn adopts(session: &Session, names: &[&str]) {
    adopts_where(session, |tools| tools.iter().map(|tool| tool.name()).eq(names.iter().copied())).await;
}

/// Waits until the tools of the session meet the condition.
pub async fn adopts_where(session: &Session, is_so: impl Fn(&ToolSet) -> bool) {
    let adopted = async {
        loop {
            let state = session.state().await.unwrap();
            if is_so(&state.config().tools) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(adopted).await;
}

/// Calls a tool as an agent does.
pub async fn call(tools: &ToolSet, name: &str, text: &str) -> ToolResult {
    let context = ToolContext::detached("call-1");
    soon(call_in(tools, name, text, context)).await
}

pub async fn call_in(tools: &ToolSet, name: &str, text: &str, context: ToolContext) -> ToolResult {
    let tool_use = ToolUse::new("call-1", name, json!({ "text": text }));
    tools.run(&tool_use, context, &ToolLimits::default()).await
}

/// Returns the text of an error result. Asserts that the text does not contain the secret.
pub fn failure(result: &ToolResult) -> String {
    assert!(result.is_error, "{result:?}");
    let text = result.text();
    assert!(!text.contains(TOKEN), "{text}");
    text
}

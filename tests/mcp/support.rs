//! Clients of the server that misbehaves, and the state of its processes.

use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use omni_agent::{
    ToolContext,
    mcp::{McpBuilder, McpClient},
    message::{ToolResult, ToolUse},
    tool::{ToolLimits, ToolSet},
};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use tokio::time::timeout;

use crate::skip::skip;

/// The time limit for everything that the tests wait for.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The secret that no text may contain.
pub const TOKEN: &str = "hunter2-hunter2";

/// A server and the file to which it writes what happens. The file is removed when this value is dropped.
pub struct Hostile(PathBuf);

impl Hostile {
    /// Returns `None`, which skips the test, if Node is not installed.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if Command::new("node").arg("--version").output().is_err() {
            skip("Node is not installed");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Some(Self(env::temp_dir().join(format!("omni-mcp-{}-{number}", std::process::id()))))
    }

    /// Returns a client of a server of this kind. The version is fixed, because the server knows no other.
    pub fn like(&self, like: &str) -> McpBuilder {
        McpClient::stdio("node")
            .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/hostile.mjs")])
            .env("LOG", self.0.to_str().unwrap())
            .env("LIKE", like)
            .env("TOKEN", TOKEN)
            .name("hostile")
            .version("2025-06-18")
    }

    pub fn log(&self) -> Vec<String> {
        fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
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
        let _ = fs::remove_file(&self.0);
    }
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

/// Calls a tool as an agent does.
pub async fn call(tools: &ToolSet, name: &str, text: &str) -> ToolResult {
    let context = ToolContext::detached("call-1");
    soon(call_in(tools, name, text, context)).await
}

pub async fn call_in(tools: &ToolSet, name: &str, text: &str, context: ToolContext) -> ToolResult {
    let tool_use = ToolUse::new("call-1", name, json!({ "text": text }));
    tools.run(&tool_use, context, &ToolLimits::default()).await
}

/// Returns the text of an error result, in which no secret may be.
pub fn failure(result: &ToolResult) -> String {
    assert!(result.is_error, "{result:?}");
    let text = result.text();
    assert!(!text.contains(TOKEN), "{text}");
    text
}

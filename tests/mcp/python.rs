//! Reference servers of Python's package index, which pip installs into the target folder.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use omni_agent::{
    ToolContext,
    mcp::McpClient,
    message::{ToolResult, ToolUse},
    tool::{ToolLimits, ToolSet},
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    skip::skip,
    support::{failure, set, soon},
};

const SERVERS: [&str; 2] = ["mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"];

/// Returns the folder of the servers' programs, or `None`, which skips the test, if they can't be installed.
async fn servers() -> Option<PathBuf> {
    static FOLDER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    FOLDER.get_or_init(async || tokio::task::spawn_blocking(install).await.unwrap()).await.clone()
}

fn install() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mcp-python");
    let (programs, marker) = (folder.join("bin"), folder.join("installed"));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == SERVERS.join(" ")) {
        return Some(programs);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        skip(&format!("a virtual environment for Python can't be made: {made:?}"));
        return None;
    }
    let mut pip = Command::new(programs.join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(SERVERS);
    let installed = pip.output().unwrap();
    if !installed.status.success() {
        skip(&format!("the servers can't be installed: {}", String::from_utf8_lossy(&installed.stderr)));
        return None;
    }
    fs::write(marker, SERVERS.join(" ")).unwrap();
    Some(programs)
}

async fn run(tools: &ToolSet, name: &str, input: Value) -> ToolResult {
    let tool_use = ToolUse::new("call-1", name, input);
    soon(tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default())).await
}

#[tokio::test]
async fn time_server_of_python_converts_times() {
    let Some(programs) = servers().await else { return };
    for version in [None, Some("2024-11-05")] {
        let client = McpClient::stdio(programs.join("mcp-server-time")).args(["--local-timezone", "UTC"]);
        let mut client = client.name("time");
        if let Some(version) = version {
            client = client.version(version);
        }
        let client = soon(client.connect()).await.unwrap();
        let listed = soon(client.tools()).await.unwrap();
        assert_eq!(listed.skipped, []);
        assert_eq!(listed.hints["time__get_current_time"].read_only, Some(true));
        let tools = ToolSet::new().extended(listed.tools).unwrap();
        let input = json!({ "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo" });
        let converted = run(&tools, "time__convert_time", input).await;
        assert!(!converted.is_error && converted.text().contains("21:00"), "{converted:?}");
        let unknown = run(&tools, "time__get_current_time", json!({ "timezone": "Mars/Base" })).await;
        assert!(failure(&unknown).contains("Mars/Base"), "{unknown:?}");
        soon(client.close()).await;
    }
}

#[tokio::test]
async fn git_server_of_python_reads_a_repository() {
    let Some(programs) = servers().await else { return };
    let folder = env::temp_dir().join(format!("omni-mcp-git-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let made = Command::new("git")
        .args(["init", "--quiet", "--initial-branch", "tea"])
        .current_dir(&folder)
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        return skip("git can't be run");
    }
    fs::write(folder.join("new.txt"), "tea").unwrap();
    let client = McpClient::stdio(programs.join("mcp-server-git")).args(["--repository"]).args([&folder]);
    let client = soon(client.name("git").allow(["git_status"]).connect()).await.unwrap();
    let tools = set(&client).await;
    assert_eq!(tools.len(), 1);
    let status = run(&tools, "git__git_status", json!({ "repo_path": &folder })).await;
    assert!(status.text().contains("new.txt") && status.text().contains("tea"), "{status:?}");
    let outside = run(&tools, "git__git_status", json!({ "repo_path": "/" })).await;
    assert!(outside.is_error, "{outside:?}");
    soon(client.close()).await;
    fs::remove_dir_all(folder).unwrap();
}

//! Official servers, over both transports. npm installs them into the target folder. The filesystem server has no HTTP
//! transport, so it is tested over standard input and output only. The server of the Rust library is tested in
//! `serving`, because a served manager is such a server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use omni_agent::{
    ToolContext,
    mcp::{McpClient, McpError},
    message::{ResultBlock, ToolUse},
    tool::{ToolLimits, ToolSet},
};
use serde_json::{Value, json};
use tokio::{io::AsyncBufReadExt, sync::OnceCell, sync::mpsc};

use crate::{
    npm::{node, packages},
    support::{failure, free_port, set, soon},
};

/// Returns the program of Node and the folder of the official servers, or `None` if they can't be installed.
async fn servers() -> Option<(PathBuf, PathBuf)> {
    Some((node()?, installed().await?.join("node_modules/@modelcontextprotocol")))
}

/// Installs the servers and libraries, and returns the folder of the servers that use them. Returns `None`, which skips
/// the test, if they can't be installed.
pub async fn installed() -> Option<PathBuf> {
    static FOLDER: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    FOLDER.get_or_init(async || tokio::task::spawn_blocking(install).await.unwrap()).await.clone()
}

fn install() -> Option<PathBuf> {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp");
    let folder = packages(lists.to_str().unwrap(), "mcp_sdk")?;
    // Node resolves modules relative to the script, so the scripts are copied next to them.
    for file in fs::read_dir(lists.join("mcp_sdk")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    Some(folder)
}

async fn run(tools: &ToolSet, name: &str, input: Value) -> omni_agent::message::ToolResult {
    let tool_use = ToolUse::new("call-1", name, input);
    soon(tools.run(&tool_use, ToolContext::detached("call-1"), &ToolLimits::default())).await
}

/// Checks the tools of the server that has one tool of each kind.
async fn check_everything(client: &McpClient) {
    let listed = soon(client.tools()).await.unwrap();
    assert_eq!(listed.skipped, []);
    let tools = ToolSet::new().extended(listed.tools).unwrap();
    assert_eq!(run(&tools, "all__echo", json!({ "message": "hi" })).await.text(), "Echo: hi");
    let invalid = failure(&run(&tools, "all__echo", json!({})).await);
    assert!(invalid.contains("missing required property"), "{invalid}");
    let image = run(&tools, "all__get-tiny-image", json!({})).await;
    let kinds: Vec<_> =
        image.content.iter().map(|block| matches!(block, ResultBlock::Attachment(_))).collect();
    assert_eq!(kinds, [false, true, false]);
    let links = run(&tools, "all__get-resource-links", json!({ "count": 2 })).await;
    assert!(links.text().contains("Resource "), "{}", links.text());
    let resource = json!({ "resourceType": "Text", "resourceId": 1 });
    let resource = run(&tools, "all__get-resource-reference", resource).await;
    assert!(resource.text().contains("Resource demo://resource/dynamic/text/1:\n"), "{resource:?}");

    let (sender, mut reports) = mpsc::channel(100);
    let long =
        ToolUse::new("call-2", "all__trigger-long-running-operation", json!({ "duration": 1, "steps": 4 }));
    let context = ToolContext::detached("call-2").with_progress(sender);
    let done = soon(tools.run(&long, context, &ToolLimits::default())).await;
    assert!(done.text().contains("completed"), "{done:?}");
    let (_, report) = reports.try_recv().unwrap();
    assert_eq!(report["total"], 4.0);
}

#[tokio::test]
async fn everything_server_works_over_standard_io() {
    let Some((node, servers)) = servers().await else { return };
    let script = servers.join("server-everything/dist/index.js");
    for version in [None, Some("2025-11-25"), Some("2025-06-18"), Some("2024-11-05")] {
        let mut builder = McpClient::stdio(node.to_str().unwrap()).args([&script]).name("all");
        if let Some(version) = version {
            builder = builder.version(version);
        }
        let client = soon(builder.connect()).await.unwrap();
        assert_eq!(client.protocol_version().await.unwrap(), version.unwrap_or("2025-11-25"));
        check_everything(&client).await;
        soon(client.close()).await;
    }
}

#[tokio::test]
async fn everything_server_works_over_http_and_a_restarted_server_is_found_again() {
    let Some((node, servers)) = servers().await else { return };
    let script = servers.join("server-everything/dist/index.js");
    let port = free_port();
    let start = async || {
        let mut command = tokio::process::Command::new(&node);
        command.arg(&script).arg("streamableHttp").env("PORT", port.to_string()).kill_on_drop(true);
        let mut server = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = tokio::io::BufReader::new(server.stderr.take().unwrap()).lines();
        while !soon(lines.next_line()).await.unwrap().unwrap().contains("listening") {}
        // The rest of the server's output is read, so that the server is never blocked on writing.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        server
    };
    let mut server = start().await;
    let url = format!("http://127.0.0.1:{port}/mcp?key=hunter2-hunter2");
    let client = soon(McpClient::http(&url).name("all").connect()).await.unwrap();
    check_everything(&client).await;
    let tools = set(&client).await;
    soon(server.kill()).await.unwrap();
    failure(&run(&tools, "all__echo", json!({ "message": "hi" })).await);
    let _again = start().await;
    assert_eq!(run(&tools, "all__echo", json!({ "message": "hi" })).await.text(), "Echo: hi");
}

#[tokio::test]
async fn filesystem_server_reads_files_and_its_errors_are_error_results() {
    let Some((node, servers)) = servers().await else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mcp-files-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    fs::write(folder.join("a.txt"), "tea").unwrap();
    let script = servers.join("server-filesystem/dist/index.js");
    let client = McpClient::stdio(node.to_str().unwrap())
        .args([&script, &folder])
        .name("files")
        .allow(["read_text_file"]);
    let client = soon(client.connect()).await.unwrap();
    let tools = set(&client).await;
    assert_eq!(tools.len(), 1);
    let read = run(&tools, "files__read_text_file", json!({ "path": folder.join("a.txt") })).await;
    assert_eq!(read.text(), "tea");
    let outside = failure(&run(&tools, "files__read_text_file", json!({ "path": "/etc/hostname" })).await);
    assert!(outside.contains("Access denied"), "{outside}");
    soon(client.close()).await;
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn connect_http_server_that_does_not_exist_or_refuses_is_named_without_secrets() {
    let url = "http://127.0.0.1:9/mcp?key=hunter2-hunter2";
    let builder = McpClient::http(url).header("Authorization", "Bearer hunter2-hunter3");
    let error = soon(builder.connect_limit(Duration::from_secs(5)).connect()).await.unwrap_err();
    assert!(matches!(error, McpError::Unreachable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

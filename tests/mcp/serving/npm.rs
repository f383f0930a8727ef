//! A client made with the official library for JavaScript, and our own client, over the standard input and output.

use std::process::Stdio;

use omni_agent::{mcp::McpClient, tool::Decision};
use serde_json::json;

use super::host::program;
use crate::{npm::node, official::installed, questions::answered, support::soon};

/// Runs the client, which checks what it gets. The arguments are an address, or a program with its arguments.
pub async fn passes(target: &[String], (name, value): (&str, &str)) {
    let (Some(node), Some(folder)) = (node(), installed().await) else { return };
    let mut client = tokio::process::Command::new(node);
    client.arg(folder.join("client.mjs")).args(target).env(name, value);
    let output = soon(client.stdin(Stdio::null()).kill_on_drop(true).output()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn official_client_of_npm_uses_the_server_over_standard_io() {
    let (program, arguments, variable) = program();
    let target: Vec<_> = [program.to_owned()].into_iter().chain(arguments).collect();
    passes(&target, variable).await;
}

#[tokio::test]
async fn own_client_uses_the_server_over_standard_io() {
    let (program, arguments, (name, value)) = program();
    for version in ["2025-06-18", "2026-07-28"] {
        let client = McpClient::stdio(program).args(&arguments).env(name, value).name("it").version(version);
        let client = soon(client.connect()).await.unwrap();
        let (questions, text) =
            answered(&client, "it__ask", json!({ "prompt": "Delete" }), |_| Decision::Execute).await;
        assert!(text.starts_with("gone"), "{text}");
        assert_eq!(questions.len(), 1);
        soon(client.close()).await;
    }
}

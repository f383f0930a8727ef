//! Calls that the server refuses because they lack the headers of their tool.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::{NEW, OLD};
use crate::{
    raw::{Raw, Reply, list, polite, result},
    support::{call, failure, set, soon},
};

/// The client knows the headers of a tool from the list that it has read on the connection.
#[tokio::test]
async fn call_after_a_reconnection_has_the_headers_of_its_tool() {
    let calls = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("tools/list") => {
            let mut listed = list(&["echo", "other"]);
            let annotated = json!({ "text": { "type": "string", "x-mcp-header": "owner" } });
            listed["tools"][0]["inputSchema"]["properties"] = annotated;
            // rmcp can't read the icons.
            listed["tools"][1]["icons"] = json!([{ "src": "x", "sizes": "48x48" }]);
            result(message, &listed)
        }
        Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) == 0 => Reply::HangUp,
        Some("tools/call") if !message["head"].as_str().unwrap().contains("\nmcp-param-owner: ann") => {
            let error = json!({ "code": -32020, "message": "missing Mcp-Param-owner" });
            Reply::Refusal(400, json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
        }
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(NEW).connect()).await.unwrap();
    let tools = set(&client).await;
    failure(&call(&tools, "raw__echo", "ann").await);
    assert_eq!(call(&tools, "raw__echo", "ann").await.text(), "echoed");
}

/// In earlier versions, the code for missing headers can have another meaning.
#[tokio::test]
async fn call_that_fails_with_the_code_for_missing_headers_is_repeated_once_in_the_version_that_has_it() {
    for (version, calls) in [(OLD, 1), (NEW, 2)] {
        let server = Raw::start(|message| match message["method"].as_str() {
            Some("tools/call") => {
                let error = json!({ "code": -32020, "message": "no receipt" });
                Reply::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
            }
            _ => polite(message),
        })
        .await;
        let client = soon(server.client(version).connect()).await.unwrap();
        let text = failure(&call(&set(&client).await, "raw__echo", "ann").await);
        assert!(text.contains("no receipt"), "{text}");
        assert_eq!(server.count("tools/call"), calls, "{version}");
    }
}

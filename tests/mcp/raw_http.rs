//! Servers over HTTP that misbehave below the protocol: connections that are never answered, break off or flood the
//! client, and errors of HTTP.

mod headers;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use omni_agent::{
    mcp::{McpClient, McpError},
    message::ResultBlock,
    tool::Decision,
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    questions::answered,
    raw::{End, Raw, Reply, list, polite, result, text},
    support::{adopts, call, failure, session, set, soon},
};

const NEW: &str = "2026-07-28";
const OLD: &str = "2025-11-25";

fn nothing() -> Box<dyn Iterator<Item = Value> + Send> {
    Box::new(std::iter::empty())
}

#[tokio::test]
async fn connect_over_http_without_an_answer_leaves_no_connection() {
    let servers: [fn(&Value) -> Reply; 3] = [
        |_| Reply::Silence,
        |_| Reply::Events(nothing(), End::Open),
        |message| match &message["method"] {
            method if method == "notifications/initialized" => Reply::Silence,
            _ => polite(message),
        },
    ];
    for (kind, server) in servers.into_iter().enumerate() {
        let server = Raw::start(server).await;
        let versions: &[&str] = if kind == 2 { &[OLD] } else { &[OLD, NEW] };
        for version in versions {
            let client = server.client(version).connect_limit(Duration::from_millis(200));
            let error = soon(client.connect()).await.unwrap_err();
            assert!(matches!(error, McpError::TimedOut { .. }), "{kind} {version}: {error}");
            server.is_abandoned().await;
        }
        // If the application does not wait for the connection, the connection is closed as well.
        let client = server.client(OLD).connect_limit(Duration::from_secs(100));
        let earlier = server.count("initialize");
        tokio::select! {
            _ = client.connect() => panic!("the server does not answer"),
            () = server.receives("initialize", earlier + 1) => {}
        }
        server.is_abandoned().await;
    }
}

#[tokio::test]
async fn call_over_http_flood_of_requests_ends_the_connection() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/call") => {
            let ping = |count| json!({ "jsonrpc": "2.0", "id": format!("p{count}"), "method": "ping" });
            Reply::Events(Box::new((0_u64..).map(ping)), End::Open)
        }
        None => Reply::Silence,
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).idle_limit(Duration::from_secs(25)).connect()).await.unwrap();
    let flooded = failure(&call(&set(&client).await, "raw__echo", "").await);
    assert!(flooded.contains("more than 1,000 messages wait"), "{flooded}");
    server.is_abandoned().await;
}

#[tokio::test]
async fn close_during_a_reconnection_does_not_wait_for_it() {
    let connects = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("initialize") if connects.fetch_add(1, Ordering::SeqCst) > 0 => Reply::Silence,
        Some("tools/call") => Reply::HangUp,
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect_limit(Duration::from_secs(100)).connect()).await.unwrap();
    let tools = set(&client).await;
    failure(&call(&tools, "raw__echo", "").await);
    let waiting = tokio::spawn(async move { call(&tools, "raw__echo", "").await });
    server.receives("initialize", 2).await;
    assert_eq!(timeout(Duration::from_secs(5), client.protocol_version()).await.unwrap(), None);
    timeout(Duration::from_secs(5), client.close()).await.unwrap();
    let closed = failure(&soon(waiting).await.unwrap());
    assert!(closed.contains("the client was closed"), "{closed}");
    server.is_abandoned().await;
}

#[tokio::test]
async fn tools_over_http_without_an_answer_are_cancelled() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/list") => Reply::Silence,
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect_limit(Duration::from_secs(3)).connect()).await.unwrap();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(matches!(error, McpError::TimedOut { .. }), "{error}");
    server.receives("notifications/cancelled", 1).await;
    server.is_abandoned().await;
}

#[tokio::test]
async fn follow_subscription_that_ends_is_renewed_and_the_list_read_again() {
    let listens = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("subscriptions/listen") => {
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": message["id"] });
            let accepted = json!({
                "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
                "params": { "_meta": meta, "notifications": { "toolsListChanged": true } },
            });
            let end = if listens.fetch_add(1, Ordering::SeqCst) < 2 { End::Complete } else { End::Open };
            Reply::Events(Box::new(std::iter::once(accepted)), end)
        }
        Some("tools/list") if listens.load(Ordering::SeqCst) > 2 => {
            result(message, &list(&["added", "echo"]))
        }
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(NEW).connect()).await.unwrap();
    let session = session(&client, []).await;
    client.follow(&session);
    adopts(&session, &["raw__added", "raw__echo"]).await;
    assert_eq!(server.count("subscriptions/listen"), 3);
    soon(client.close()).await;
    server.is_abandoned().await;
}

#[tokio::test]
async fn stream_over_http_that_breaks_off_is_not_opened_again_at_once() {
    for end in [End::Broken, End::Complete] {
        let is_broken = matches!(end, End::Broken);
        let (sender, mut opened) = mpsc::unbounded_channel();
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("GET") => {
                sender.send(Instant::now()).unwrap();
                Reply::Events(nothing(), if is_broken { End::Broken } else { End::Complete })
            }
            _ => polite(message),
        })
        .await;
        let client = soon(server.client(OLD).connect()).await.unwrap();
        let first = soon(opened.recv()).await.unwrap();
        let mut last = first;
        for _ in 0..4 {
            last = soon(opened.recv()).await.unwrap();
        }
        assert!(last - first > Duration::from_millis(900), "{is_broken}: {:?}", last - first);
        soon(client.close()).await;
    }
}

fn must_open(message: &Value) -> Reply {
    let link = json!({ "mode": "url", "elicitationId": "1", "message": "Log in", "url": "https://example.com/login" });
    Reply::Json(json!({
        "jsonrpc": "2.0", "id": message["id"],
        "error": { "code": -32042, "message": "Log in first", "data": { "elicitations": [link] } },
    }))
}

#[tokio::test]
async fn call_that_requires_a_url_asks_and_is_repeated() {
    let calls = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) == 0 => must_open(message),
        Some("tools/call") => text(message, "logged in"),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let (questions, result) = answered(&client, "raw__echo", json!({}), |_| Decision::Execute).await;
    let question =
        json!({ "mcp": "url", "server": "raw", "message": "Log in", "url": "https://example.com/login" });
    assert_eq!((questions, result.as_str()), (vec![question], "logged in"));
}

#[tokio::test]
async fn call_that_requires_a_url_for_ever_or_is_declined_fails() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/call") => must_open(message),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let reject = |_: &Value| Decision::Reject("no".to_owned());
    let (questions, result) = answered(&client, "raw__echo", json!({}), reject).await;
    assert_eq!(questions.len(), 1);
    assert!(result.contains("Log in first"), "{result}");
    let (questions, result) = answered(&client, "raw__echo", json!({}), |_| Decision::Execute).await;
    assert_eq!(questions.len(), 10);
    assert!(result.contains("more than ten times"), "{result}");
}

#[tokio::test]
async fn call_over_http_refused_by_status_keeps_the_connection() {
    const STATUSES: [(u16, &str); 5] =
        [(400, ""), (403, ""), (429, ""), (500, ""), (302, "location: /login")];
    let calls = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("tools/call") => match STATUSES.get(calls.fetch_add(1, Ordering::SeqCst)) {
            Some((status, line)) => Reply::Status(*status, line),
            None => text(message, "echoed"),
        },
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let tools = set(&client).await;
    for (status, line) in STATUSES {
        let refused = failure(&call(&tools, "raw__echo", "").await);
        let reason = if line.is_empty() {
            format!("HTTP {status}")
        } else {
            "the redirect is not followed".to_owned()
        };
        let expected = format!(r#"the MCP server "raw" refused the request: {reason}"#);
        assert!(refused.starts_with(&expected), "{refused}");
    }
    assert_eq!(call(&tools, "raw__echo", "").await.text(), "echoed");
    assert_eq!(server.count("initialize"), 1);
}

#[tokio::test]
async fn request_redirected_within_the_origin_is_followed_with_its_body() {
    for status in [307, 308] {
        let server = Raw::start(move |message| match message["path"].as_str() {
            Some("/mcp") => Reply::Status(status, "location: /mcp/"),
            _ => polite(message),
        })
        .await;
        for version in [OLD, NEW] {
            let client = soon(server.client(version).connect()).await.unwrap();
            assert_eq!(
                call(&set(&client).await, "raw__echo", "").await.text(),
                "echoed",
                "{status} {version}"
            );
            soon(client.close()).await;
        }
    }
}

#[tokio::test]
async fn connect_redirected_elsewhere_or_for_ever_fails_with_the_target() {
    for (status, location, target) in [
        (307, "location: http://localhost:1/mcp/?key=1", "307 to http://localhost:1/mcp/ is"),
        (308, "location: https://127.0.0.1/mcp", "308 to https://127.0.0.1/mcp is"),
        (302, "location: /login", "/login is"),
        (307, "location: /mcp/", "/mcp/ is"),
    ] {
        let server = Raw::start(move |_| Reply::Status(status, location)).await;
        let error = soon(McpClient::http(&server.url).name("raw").connect()).await.unwrap_err();
        assert!(error.to_string().contains(target), "{error}");
        assert_eq!(server.count("initialize"), 0);
        assert_eq!(server.count("server/discover"), if target == "/mcp/ is" { 6 } else { 1 });
    }
}

#[tokio::test]
async fn connect_to_a_server_that_refuses_the_discovery_initializes() {
    fn unsupported(message: &Value, data: &Value) -> Reply {
        let error = json!({ "code": -32022, "message": "Unsupported protocol version", "data": data });
        Reply::Refusal(400, json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }))
    }
    let refusals: [fn(&Value) -> Reply; 8] = [
        |_| Reply::Status(500, ""),
        |_| Reply::Status(403, ""),
        |_| Reply::Status(403, "www-authenticate: Bearer"),
        |_| Reply::Status(404, ""),
        |_| Reply::Text(200, "<html></html>"),
        |message| unsupported(message, &json!({ "supported": ["2025-06-18", OLD], "requested": NEW })),
        |message| unsupported(message, &Value::Null),
        |message| {
            let discovered = json!({
                "resultType": "complete", "supportedVersions": [OLD], "capabilities": { "tools": {} },
                "ttlMs": 0, "cacheScope": "private",
            });
            result(message, &discovered)
        },
    ];
    for (kind, refused) in refusals.into_iter().enumerate() {
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("server/discover") => refused(message),
            _ => polite(message),
        })
        .await;
        let client = soon(McpClient::http(&server.url).name("raw").connect()).await;
        let client = client.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(client.protocol_version().await.as_deref(), Some(OLD), "{kind}");
        assert_eq!(call(&set(&client).await, "raw__echo", "").await.text(), "echoed", "{kind}");
        let error = soon(server.client(NEW).connect()).await.unwrap_err();
        assert!(matches!(error, McpError::Unreachable { .. }), "{kind}: {error:?}");
        assert_eq!(server.count("initialize"), 1, "{kind}");
    }
}

#[tokio::test]
async fn connect_to_a_server_that_does_not_answer_the_discovery_initializes() {
    let silent: [fn() -> Reply; 8] = [
        || Reply::Status(202, ""),
        || Reply::Status(204, ""),
        || Reply::Events(nothing(), End::Complete),
        || Reply::Stream("data: ping\n\n".to_owned(), End::Complete),
        || Reply::Stream("not found".to_owned(), End::Complete),
        || Reply::Events(nothing(), End::Broken),
        || Reply::Events(nothing(), End::Open),
        || Reply::Silence,
    ];
    let connecting = silent.into_iter().enumerate().map(async |(kind, reply)| {
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("server/discover") => reply(),
            _ => polite(message),
        })
        .await;
        let client = soon(McpClient::http(&server.url).name("raw").connect()).await;
        let client = client.unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(client.protocol_version().await.as_deref(), Some(OLD), "{kind}");
        assert_eq!(call(&set(&client).await, "raw__echo", "").await.text(), "echoed", "{kind}");
        let limit = Duration::from_secs(3);
        soon(server.client(NEW).connect_limit(limit).connect()).await.unwrap_err();
        assert_eq!(server.count("initialize"), 1, "{kind}");
    });
    futures_util::future::join_all(connecting).await;
}

#[tokio::test]
async fn connect_discovery_after_an_event_that_is_not_a_message_is_used() {
    let server = Raw::start(|message| match (message["method"].as_str(), polite(message)) {
        (Some("server/discover"), Reply::Json(answer)) => {
            Reply::Stream(format!("data: ping\n\ndata: {answer}\n\n"), End::Open)
        }
        (_, reply) => reply,
    })
    .await;
    let client = soon(McpClient::http(&server.url).name("raw").connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.as_deref(), Some(NEW));
    assert_eq!(server.count("initialize"), 0);
}

#[tokio::test]
async fn call_over_http_answered_in_an_event_of_another_name_gets_the_answer() {
    for is_open in [false, true] {
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("tools/call") => {
                let error = json!({ "code": -32000, "message": "not today" });
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
                let end = if is_open { End::Open } else { End::Complete };
                Reply::Stream(format!("event: error\ndata: {answer}\n\n"), end)
            }
            _ => polite(message),
        })
        .await;
        let client = soon(server.client(OLD).idle_limit(Duration::from_secs(5)).connect()).await.unwrap();
        let failed = failure(&call(&set(&client).await, "raw__echo", "").await);
        assert!(failed.contains("not today"), "{is_open}: {failed}");
    }
}

#[tokio::test]
async fn connect_to_a_server_that_requires_a_login_does_not_initialize() {
    for (status, line) in [
        (401, "www-authenticate: Bearer"),
        (401, ""),
        (403, r#"www-authenticate: Bearer error="insufficient_scope""#),
    ] {
        let server = Raw::start(move |_| Reply::Status(status, line)).await;
        let error = soon(McpClient::http(&server.url).name("raw").connect()).await.unwrap_err();
        assert!(matches!(error, McpError::Unauthorized { .. }), "{status} {line}: {error:?}");
        assert_eq!(server.count("initialize"), 0);
    }
}

#[tokio::test]
async fn tools_of_a_server_that_declares_none_and_refuses_the_list_are_none() {
    for version in [OLD, NEW] {
        let server = Raw::start(|message| match (message["method"].as_str(), polite(message)) {
            (Some("initialize" | "server/discover"), Reply::Json(mut answer)) => {
                answer["result"]["capabilities"] = json!({ "prompts": {} });
                Reply::Json(answer)
            }
            (Some("tools/list"), _) => {
                let unknown = json!({ "code": -32601, "message": "Method not found" });
                Reply::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "error": unknown }))
            }
            (_, reply) => reply,
        })
        .await;
        let client = soon(server.client(version).connect()).await.unwrap();
        let tools = soon(client.tools()).await.unwrap();
        assert!(tools.tools.is_empty() && tools.skipped.is_empty(), "{version}");
    }
}

#[tokio::test]
async fn tools_over_http_insufficient_scope_names_the_scope() {
    const CHALLENGE: &str = r#"www-authenticate: Bearer error="insufficient_scope", scope="tools:read""#;
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/list") => Reply::Status(403, CHALLENGE),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(error.to_string().contains(r#"the scope "tools:read""#), "{error}");
    assert!(
        matches!(&error, McpError::Unauthorized { scope: Some(scope), .. } if scope == "tools:read"),
        "{error:?}"
    );
    assert_eq!(server.count("initialize"), 1);
}

/// Returns an answer as JSON, or as the only event of a stream.
fn answer(message: &Value, result: &Value, as_event: bool) -> Reply {
    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    if as_event {
        Reply::Events(Box::new(std::iter::once(answer)), End::Complete)
    } else {
        Reply::Json(answer)
    }
}

#[tokio::test]
async fn call_result_with_an_unreadable_part_keeps_the_others() {
    let done = json!({ "type": "text", "text": "done" });
    let mut results = Vec::new();
    for (block, expected) in [
        (
            json!({ "type": "resource_link", "uri": "ui://demo/view/v1", "mimeType": "text/html" }),
            r#"[The server sent a block of an unknown kind: {"type":"resource_link","uri":"ui://demo/view/v1","mimeType":"text/html"}]"#,
        ),
        (json!({ "type": "text", "text": "t", "annotations": { "audience": ["system"] } }), "t"),
        (
            json!({ "type": "video", "data": "aGk=", "mimeType": "video/mp4" }),
            r#"[The server sent a block of an unknown kind: {"type":"video","mimeType":"video/mp4"}]"#,
        ),
        (
            json!({ "type": "resource", "resource": { "uri": 7, "blob": "aGk=" } }),
            r#"[The server sent a block of an unknown kind: {"type":"resource","resource":{"uri":7}}]"#,
        ),
        (
            json!({ "type": "json", "json": { "doi": "10.1/x" } }),
            r#"[The server sent a block of an unknown kind: {"type":"json","json":{"doi":"10.1/x"}}]"#,
        ),
        (json!({ "type": "note", "text": "look" }), "[The server sent a block of an unknown kind: look]"),
    ] {
        let expected = format!("done{expected}");
        results.push((json!({ "content": [done, block] }), expected.clone(), false));
        results.push((json!({ "content": [done, block], "isError": true }), expected, true));
    }
    results.push((json!({ "content": [done], "isError": "true" }), "done".to_owned(), true));
    let error = "[The server sent a block of an unknown kind: Invalid number]".to_owned();
    results.push((json!({ "content": [{ "type": "error", "text": "Invalid number" }] }), error, true));
    let plain = json!({ "success": true, "configs": [] });
    results.push((plain.clone(), plain.to_string(), false));
    // rmcp reads these as other results. In an answer as JSON, it drops the content before this crate sees the answer.
    let others = ["tools", "messages", "contents"];
    let mixed = others.map(|other| json!({ "content": [done], other: [], "isError": true }));
    let as_both = results.len();
    results.extend(mixed.map(|result| (result, "done".to_owned(), true)));
    for (number, (result, expected, is_error)) in results.into_iter().enumerate() {
        for as_event in [true, false].into_iter().filter(|as_event| *as_event || number < as_both) {
            let sent = result.clone();
            let server = Raw::start(move |message| match message["method"].as_str() {
                Some("tools/call") => answer(message, &sent, as_event),
                _ => polite(message),
            })
            .await;
            let client = soon(server.client(OLD).connect()).await.unwrap();
            let found = call(&set(&client).await, "raw__echo", "").await;
            let text: String = found
                .content
                .iter()
                .map(|block| match block {
                    ResultBlock::Text(text) => text.text.as_str(),
                    _ => "attachment",
                })
                .collect();
            assert_eq!((text, found.is_error), (expected.clone(), is_error), "{result} {as_event}");
        }
    }
}

#[tokio::test]
async fn call_over_http_refused_without_its_id_fails_at_once_and_a_dead_session_is_replaced() {
    let python = json!("server-error");
    for (id, message) in [
        (Value::Null, "Bad Request: No valid session ID provided"),
        (Value::Null, "Bad Request: Server not initialized"),
        (python.clone(), "Bad Request: Missing session ID"),
        (python, "Bad Request: Missing header"),
    ] {
        let calls = AtomicUsize::new(0);
        let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "message": message } });
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) == 0 => {
                Reply::Refusal(400, error.clone())
            }
            _ => polite(message),
        })
        .await;
        let client = soon(server.client(OLD).connect()).await.unwrap();
        let tools = set(&client).await;
        let refused = failure(&call(&tools, "raw__echo", "").await);
        assert!(refused.contains(message), "{refused}");
        assert_eq!(call(&tools, "raw__echo", "").await.text(), "echoed");
        let connections = if message.contains("header") { 1 } else { 2 };
        assert_eq!(server.count("initialize"), connections, "{message}");
    }
}

#[tokio::test]
async fn call_over_http_dead_session_refused_with_a_plain_text_is_replaced() {
    for (status, reason) in [
        (400, "Bad Request: No valid session ID provided"),
        (400, "Invalid session ID\n"),
        (400, "Bad Request: Server not initialized"),
        (409, "Session expired"),
        (400, "Bad Request: Missing header"),
    ] {
        let calls = AtomicUsize::new(0);
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) == 0 => Reply::Text(status, reason),
            _ => polite(message),
        })
        .await;
        let client = soon(server.client(OLD).connect()).await.unwrap();
        let tools = set(&client).await;
        let refused = failure(&call(&tools, "raw__echo", "").await);
        assert!(refused.contains(reason.trim()), "{refused}");
        assert_eq!(call(&tools, "raw__echo", "").await.text(), "echoed");
        let connections = if reason.contains("header") { 1 } else { 2 };
        assert_eq!(server.count("initialize"), connections, "{reason}");
    }
}

#[tokio::test]
async fn follow_session_that_is_replaced_during_a_call_reads_the_tools_again() {
    let (calls, sessions) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("initialize") => {
            sessions.fetch_add(1, Ordering::SeqCst);
            polite(message)
        }
        Some("tools/list") => {
            let names = ["echo", "added"];
            result(message, &list(&names[..sessions.load(Ordering::SeqCst).min(2)]))
        }
        Some("tools/call") if calls.fetch_add(1, Ordering::SeqCst) == 0 => Reply::Status(404, ""),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let session = session(&client, []).await;
    client.follow(&session);
    server.receives("tools/list", 2).await;
    let tools = session.state().await.unwrap().config().tools.clone();
    assert_eq!(call(&tools, "raw__echo", "").await.text(), "echoed");
    assert_eq!(server.count("initialize"), 2);
    adopts(&session, &["raw__added", "raw__echo"]).await;
}

/// Each list begins a new session, which would otherwise cause the next list.
#[tokio::test]
async fn follow_server_whose_sessions_die_at_each_list_waits_longer_and_longer() {
    let lists = AtomicUsize::new(0);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("tools/list") if lists.fetch_add(1, Ordering::SeqCst) % 2 == 1 => Reply::Status(404, ""),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let session = session(&client, []).await;
    let begun = Instant::now();
    client.follow(&session);
    server.receives("tools/list", 11).await;
    // The pauses before the lists are 200 ms, 400 ms, 800 ms and so on.
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// Returns a list with a tool whose schema is nested too deeply, and another tool.
fn deep_list() -> Value {
    let mut deep = json!({ "type": "string" });
    for _ in 0..63 {
        deep = json!({ "type": "object", "properties": { "a": deep } });
    }
    let mut listed = list(&["deep", "echo"]);
    listed["tools"][0]["inputSchema"] = deep;
    listed
}

#[tokio::test]
async fn tools_over_http_deep_schema_is_skipped_and_the_others_work() {
    let as_json: fn(&Value) -> Reply = |message| result(message, &deep_list());
    let as_events: fn(&Value) -> Reply = |message| {
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": deep_list() });
        Reply::Events(Box::new(std::iter::once(answer)), End::Complete)
    };
    for lists in [as_json, as_events] {
        let server = Raw::start(move |message| match message["method"].as_str() {
            Some("tools/list") => lists(message),
            _ => polite(message),
        })
        .await;
        for version in [OLD, NEW] {
            let client = soon(server.client(version).connect()).await.unwrap();
            let listed = soon(client.tools()).await.unwrap();
            assert_eq!(listed.skipped[0].reason, "its schema is nested too deeply");
            assert_eq!(call(&set(&client).await, "raw__echo", "").await.text(), "echoed");
        }
    }
}

#[tokio::test]
async fn tools_unreadable_descriptions_are_dropped() {
    let object = json!({ "type": "object" });
    let no_properties =
        json!({ "type": "object", "properties": { "a": { "type": "object", "properties": [] } } });
    let pattern = r"^[a-zA-Z0-9@#%^&*()_+\-=[\]{}|;:,.<>?~`]*$";
    let with_pattern =
        json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": pattern } } });
    let tools = json!([
        { "name": "a", "inputSchema": object, "icons": [{ "src": "x", "sizes": "48x48" }], "title": "A" },
        { "name": "b", "inputSchema": object, "annotations": { "readOnlyHint": "true" } },
        { "name": "c", "inputSchema": no_properties },
        { "name": "d", "inputSchema": [], "description": "d" },
        { "name": "e", "inputSchema": with_pattern },
        { "name": "f", "inputSchema": object, "title": 5, "annotations": { "destructiveHint": true } },
        { "name": "g", "inputSchema": { "type": "object", "properties": null, "required": null } },
        { "name": "h", "inputSchema": null },
    ]);
    let server = Raw::start(move |message| match message["method"].as_str() {
        Some("tools/list") => result(message, &json!({ "tools": tools })),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    let listed = soon(client.tools()).await.unwrap();
    let reasons: Vec<_> = listed.skipped.iter().map(|skipped| &skipped.reason).collect();
    let names: Vec<_> = listed.tools.iter().map(|tool| tool.name()).collect();
    assert_eq!(
        names,
        ["raw__a", "raw__b", "raw__c", "raw__d", "raw__e", "raw__f", "raw__g", "raw__h"],
        "{reasons:?}"
    );
    assert_eq!(listed.hints["raw__a"].title.as_deref(), Some("A"));
    // A person who approves must see this hint.
    assert_eq!(listed.hints["raw__f"].destructive, Some(true));
    let schema = serde_json::to_value(listed.tools[2].schema()).unwrap();
    assert_eq!(schema["properties"]["a"]["properties"], json!({}));
}

#[tokio::test]
async fn tools_that_are_null_are_an_empty_list() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/list") => result(message, &json!({ "tools": null })),
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    assert!(soon(client.tools()).await.unwrap().tools.is_empty());
}

#[tokio::test]
async fn connect_unreadable_descriptions_of_the_server_are_dropped() {
    let info = json!({ "name": "raw", "version": "1" });
    for (capabilities, info) in [
        (json!({ "tools": [] }), info.clone()),
        (json!({ "tools": {}, "experimental": [] }), info.clone()),
        (json!([]), info),
        (json!({ "tools": {} }), json!({ "name": "raw" })),
        (
            json!({ "tools": {} }),
            json!({ "name": "raw", "version": "1", "icons": [{ "src": "x", "sizes": "48x48" }] }),
        ),
    ] {
        for as_event in [true, false] {
            let (capabilities, info) = (capabilities.clone(), info.clone());
            let about = format!("{capabilities} {info} {as_event}");
            let server = Raw::start(move |message| {
                let Some("initialize") = message["method"].as_str() else { return polite(message) };
                let version = &message["params"]["protocolVersion"];
                let connected =
                    json!({ "protocolVersion": version, "capabilities": capabilities, "serverInfo": info });
                answer(message, &connected, as_event)
            })
            .await;
            let client =
                soon(server.client(OLD).connect()).await.unwrap_or_else(|error| panic!("{about}: {error}"));
            let tools = set(&client).await;
            assert_eq!(call(&tools, "raw__echo", "").await.text(), "echoed", "{about}");
        }
    }
}

#[tokio::test]
async fn call_with_a_null_error_beside_its_result_succeeds() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("tools/call") => {
            let done = json!({ "content": [{ "type": "text", "text": "done" }] });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": done, "error": null });
            Reply::Events(Box::new(std::iter::once(answer)), End::Complete)
        }
        _ => polite(message),
    })
    .await;
    let client = soon(server.client(OLD).connect()).await.unwrap();
    assert_eq!(call(&set(&client).await, "raw__echo", "").await.text(), "done");
}

#[tokio::test]
async fn connect_server_with_an_unknown_version_is_refused() {
    let server = Raw::start(|message| {
        let Some("initialize") = message["method"].as_str() else { return polite(message) };
        let mut message = message.clone();
        message["params"]["protocolVersion"] = "2999-01-01".into();
        polite(&message)
    })
    .await;
    let error = soon(server.client(OLD).connect()).await.unwrap_err();
    assert!(matches!(error, McpError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(r#"its protocol version "2999-01-01" is unknown"#), "{error}");
}

#[tokio::test]
async fn connect_old_server_that_answers_unknown_requests_with_nothing_works() {
    let server = Raw::start(|message| match message["method"].as_str() {
        Some("server/discover") => result(message, &json!({})),
        _ => polite(message),
    })
    .await;
    let client = soon(McpClient::http(&server.url).connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.unwrap(), OLD);
}

/// Answers a call with a form, and the next one with the answer to the form.
fn form(message: &Value) -> Reply {
    let Some("tools/call") = message["method"].as_str() else { return polite(message) };
    if let Some(answers) = message["params"].get("inputResponses") {
        return text(message, &answers["q"].to_string());
    }
    let properties = json!({
        "name": { "type": "string", "default": "Ada" }, "age": { "type": "integer", "default": 3 },
        "mail": { "type": "string" },
    });
    let schema = json!({ "type": "object", "properties": properties, "required": ["name"] });
    let form = json!({ "mode": "form", "message": "Who?", "requestedSchema": schema });
    let question = json!({ "q": { "method": "elicitation/create", "params": form } });
    let asked = json!({ "resultType": "input_required", "inputRequests": question, "requestState": "1" });
    result(message, &asked)
}

#[tokio::test]
async fn form_defaults_are_applied_and_an_answer_that_does_not_fit_is_declined() {
    let server = Raw::start(form).await;
    let client = soon(server.client(NEW).connect()).await.unwrap();
    let accepted = |fields: Value| json!({ "action": "accept", "content": fields });
    for (decision, expected) in [
        (Decision::Execute, accepted(json!({ "name": "Ada", "age": 3 }))),
        (Decision::ExecuteWith(json!({ "age": 5 })), accepted(json!({ "name": "Ada", "age": 5 }))),
        (Decision::ExecuteWith(json!({ "age": "five" })), json!({ "action": "decline" })),
        (Decision::ExecuteWith(json!({ "name": null })), json!({ "action": "decline" })),
    ] {
        let (_, answer) = answered(&client, "raw__echo", json!({}), |_| decision.clone()).await;
        assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), expected, "{decision:?}");
    }
}

//! A server that misbehaves over HTTP: huge answers, no answers, endless streams, and its sudden end.

use std::time::Duration;

use omni_agent::{ToolContext, mcp::McpError};
use tokio::sync::mpsc;

use crate::support::{Hostile, call, call_in, failure, set, soon, until};

const SHORT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn call_over_http_results_and_errors_reach_the_model() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.connect()).await.unwrap()).await;
    assert_eq!(call(&tools, "hostile__echo", "hi").await.text(), "hi");
    let refused = failure(&call(&tools, "hostile__refuse", "").await);
    assert_eq!(refused, r#"the MCP server "hostile" refused the request: no: [secret]"#);
    assert!(call(&tools, "hostile__image_error", "").await.is_error);
    let huge = call(&tools, "hostile__huge", "").await;
    assert!(huge.text().len() <= 256 * 1024, "{}", huge.text().len());
    let asked = call(&tools, "hostile__ask", "").await.text();
    assert_eq!(asked, ["decline"; 50].join(","));
    let (sender, mut reports) = mpsc::channel(1000);
    let started = tokio::time::Instant::now();
    let context = ToolContext::detached("c").with_progress(sender);
    assert_eq!(soon(call_in(&tools, "hostile__flood", "", context)).await.text(), "flooded");
    let most = started.elapsed().as_millis() / 100 + 1;
    let count = std::iter::from_fn(|| reports.try_recv().ok()).count() as u128;
    assert!((1..=most).contains(&count), "{count} reports, at most {most}");
}

#[tokio::test]
async fn call_over_http_message_beyond_the_limit_fails_and_the_server_stays_usable() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.idle_limit(Duration::from_secs(10)).connect()).await.unwrap()).await;
    for name in ["too_huge", "too_huge_json", "endless_event", "endless_json"] {
        let huge = failure(&call(&tools, &format!("hostile__{name}"), "").await);
        assert!(huge.contains("exceeded the maximum size of 16777216 bytes"), "{name}: {huge}");
        assert_eq!(call(&tools, "hostile__echo", "again").await.text(), "again");
    }
}

#[tokio::test]
async fn call_over_http_without_an_answer_ends_at_the_idle_limit_and_is_cancelled() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.idle_limit(SHORT).connect()).await.unwrap()).await;
    for (earlier, name) in ["silent", "no_headers", "endless_comments"].into_iter().enumerate() {
        let silent = failure(&call(&tools, &format!("hostile__{name}"), "").await);
        assert_eq!(silent, r#"the MCP server "hostile" did not answer within 400ms"#, "{name}");
        until("the call is cancelled", || hostile.count("cancelled ") == earlier + 1).await;
    }
    // Each progress report restarts the idle limit, so the call succeeds although it takes longer than the limit.
    assert_eq!(call(&tools, "hostile__slow", "").await.text(), "slow");
}

#[tokio::test]
async fn call_over_http_dropped_is_cancelled_at_the_server() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.connect()).await.unwrap()).await;
    let running = tools.clone();
    let calling = tokio::spawn(async move { call(&running, "hostile__silent", "").await });
    until("the call has arrived", || hostile.count("tools/call") == 1).await;
    calling.abort();
    until("the call is cancelled", || hostile.count("cancelled ") == 1).await;
    assert_eq!(call(&tools, "hostile__echo", "still here").await.text(), "still here");
}

#[tokio::test]
async fn call_over_http_cut_or_refused_fails_at_once_with_the_reason() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.idle_limit(Duration::from_secs(20)).connect()).await.unwrap()).await;
    for (status, reason) in [("401", "requires authorization"), ("404", "404"), ("500", "500")] {
        let refused = failure(&call(&tools, "hostile__status", status).await);
        assert!(refused.contains(reason), "{status}: {refused}");
    }
    let cut = failure(&call(&tools, "hostile__cut", "").await);
    assert!(cut.contains("ended before its answer arrived"), "{cut}");
    assert_eq!(call(&tools, "hostile__echo", "again").await.text(), "again");
}

#[tokio::test]
async fn call_over_http_server_that_dies_fails_and_a_new_one_is_found() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("").await;
    let tools = set(&soon(client.idle_limit(Duration::from_secs(20)).connect()).await.unwrap()).await;
    let died = failure(&call(&tools, "hostile__die", "").await);
    assert!(died.contains("ended before its answer arrived"), "{died}");
    let gone = failure(&call(&tools, "hostile__echo", "").await);
    assert!(gone.contains("hostile"), "{gone}");
}

#[tokio::test]
async fn connect_over_http_without_authorization_is_named() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("unauthorized").await;
    let error = soon(client.connect()).await.unwrap_err();
    assert!(matches!(error, McpError::Unauthorized { .. }), "{error:?}");
}

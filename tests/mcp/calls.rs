//! Calls of tools: results, errors, progress, limits and cancellation.

use std::time::Duration;

use omni_agent::{ToolContext, message::ResultBlock};
use tokio::sync::mpsc;

use crate::support::{Hostile, call, call_in, failure, set, soon, until};

#[tokio::test]
async fn call_results_and_errors_reach_the_model() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let echoed = call(&tools, "hostile__echo", "hi").await;
    assert_eq!((echoed.text().as_str(), echoed.is_error), ("hi", false));
    let refused = failure(&call(&tools, "hostile__refuse", "").await);
    assert_eq!(refused, r#"the MCP server "hostile" refused the request: no: [secret]"#);
    let image = call(&tools, "hostile__image_error", "").await;
    assert!(image.is_error);
    assert!(
        matches!(&image.content[..], [ResultBlock::Attachment(image)] if image.media_type == "image/png")
    );
    let huge = call(&tools, "hostile__huge", "").await;
    assert!(huge.text().len() <= 256 * 1024, "{}", huge.text().len());
}

#[tokio::test]
async fn call_answer_that_cannot_be_read_fails_at_once_with_the_reason() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, over_http) = hostile.over_http("").await;
    for builder in [hostile.like(""), over_http] {
        let client = soon(builder.idle_limit(Duration::from_secs(5)).connect()).await.unwrap();
        let tools = set(&client).await;
        let failed = failure(&call(&tools, "hostile__unreadable", "").await);
        assert!(failed.contains("a message that can't be read: expected value"), "{failed}");
        // Lines that are not messages, such as logs, are ignored.
        assert_eq!(call(&tools, "hostile__noise", "").await.text(), "heard");
        assert_eq!(call(&tools, "hostile__cut_text", "").await.text(), "cut \u{fffd}");
    }
}

#[tokio::test]
async fn call_without_an_answer_ends_at_the_idle_limit_and_is_cancelled() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").idle_limit(Duration::from_millis(300)).connect()).await.unwrap();
    let tools = set(&client).await;
    let silent = failure(&call(&tools, "hostile__silent", "").await);
    assert_eq!(silent, r#"the MCP server "hostile" did not answer within 300ms"#);
    until("the call is cancelled", || hostile.count("cancelled ") == 1).await;
    // Each progress report restarts the idle limit, so the call succeeds although it takes longer than the limit.
    assert_eq!(call(&tools, "hostile__slow", "").await.text(), "slow");
}

#[tokio::test]
async fn call_with_endless_progress_ends_at_the_total_limit() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").total_limit(Duration::from_millis(400)).connect()).await.unwrap();
    let tools = set(&client).await;
    let slow = failure(&call(&tools, "hostile__slow", "").await);
    assert_eq!(slow, r#"the MCP server "hostile" did not answer within 400ms"#);
    until("the call is cancelled", || hostile.count("cancelled ") == 1).await;
}

#[tokio::test]
async fn call_dropped_is_cancelled_at_the_server() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let running = tools.clone();
    let calling = tokio::spawn(async move { call(&running, "hostile__silent", "").await });
    until("the call has arrived", || hostile.count("tools/call") == 1).await;
    calling.abort();
    until("the call is cancelled", || hostile.count("cancelled ") == 1).await;
    assert_eq!(call(&tools, "hostile__echo", "still here").await.text(), "still here");
}

#[tokio::test]
async fn call_flood_of_progress_is_reported_at_most_ten_times_per_second() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let (sender, mut reports) = mpsc::channel(1000);
    let started = tokio::time::Instant::now();
    let flooded =
        soon(call_in(&tools, "hostile__flood", "", ToolContext::detached("c").with_progress(sender))).await;
    assert_eq!(flooded.text(), "flooded");
    let mut count = 0;
    while let Ok((id, report)) = reports.try_recv() {
        assert_eq!(id.as_str(), "c");
        assert!(report["message"].as_str().unwrap().starts_with("step "), "{report}");
        count += 1;
    }
    let most = started.elapsed().as_millis() / 100 + 1;
    assert!(count >= 1 && count <= most, "{count} reports, at most {most}");
}

#[tokio::test]
async fn call_questions_outside_an_agent_are_declined() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let asked = call(&tools, "hostile__ask", "").await.text();
    assert_eq!(asked, ["decline"; 50].join(","));
}

//! Servers that end, do not start or do not answer, and what remains of their processes.

use std::time::Duration;

use omni_agent::mcp::{McpClient, McpError};

use crate::support::{Hostile, TOKEN, call, failure, set, soon, until};

#[tokio::test]
async fn connect_missing_program_and_wrong_settings_are_named() {
    let missing = soon(McpClient::stdio("/no/such/program").connect()).await.unwrap_err();
    assert!(matches!(&missing, McpError::Unreachable { server, .. } if server == "program"), "{missing}");
    let version = soon(McpClient::stdio("true").version("1999").connect()).await.unwrap_err();
    assert!(version.to_string().contains("2025-06-18"), "{version}");
    let header = soon(McpClient::stdio("true").header("A", "b").connect()).await.unwrap_err();
    assert!(matches!(header, McpError::Misconfigured { .. }), "{header}");
    let url = soon(McpClient::http("ftp://example.com").connect()).await.unwrap_err();
    assert!(matches!(url, McpError::Misconfigured { .. }), "{url}");
}

#[tokio::test]
async fn connect_program_that_exits_is_reported_without_secrets() {
    let Some(hostile) = Hostile::new() else { return };
    let error = soon(hostile.like("exits").connect()).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("bad token [secret]") && text.contains("exit status: 1"), "{text}");
    assert!(!text.contains(TOKEN));
    let settings = format!("{:?}", hostile.like(""));
    assert!(!settings.contains(TOKEN) && !settings.contains("LOG"), "{settings}");
}

#[tokio::test]
async fn connect_program_that_exits_on_discover_is_started_again() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.unpinned("exit_on_discover").connect()).await.unwrap();
    assert_eq!(client.protocol_version().await.unwrap(), "2025-11-25");
    assert_eq!(call(&set(&client).await, "hostile__echo", "hi").await.text(), "hi");
    assert_eq!((hostile.count("server/discover"), hostile.count("initialize")), (1, 1));
    assert_eq!(hostile.running(), 1);
}

#[tokio::test]
async fn connect_program_that_exits_before_it_reads_is_started_once() {
    let Some(hostile) = Hostile::new() else { return };
    let error = soon(hostile.unpinned("exit_at_start").connect()).await.unwrap_err().to_string();
    assert!(error.contains("exit status: 1") && error.contains("no configuration"), "{error}");
    assert_eq!((hostile.count("pid"), hostile.running()), (1, 0));
}

#[tokio::test]
async fn connect_program_that_exits_at_both_starts_is_reported_with_both_ends() {
    let Some(hostile) = Hostile::new() else { return };
    let error = soon(hostile.unpinned("exit_on_message").connect()).await.unwrap_err().to_string();
    assert!(error.contains("no initialize") && error.contains("no server/discover"), "{error}");
    assert_eq!((hostile.count("pid"), hostile.running()), (2, 0));
}

#[tokio::test]
async fn connect_server_that_never_answers_ends_at_the_limit_without_process() {
    let Some(hostile) = Hostile::new() else { return };
    let limit = Duration::from_millis(500);
    let error = soon(hostile.like("mute").connect_limit(limit).connect()).await.unwrap_err();
    assert_eq!(error, McpError::TimedOut { server: "hostile".to_owned(), limit });
    hostile.is_gone().await;
}

#[tokio::test]
async fn call_server_that_dies_is_started_again_by_the_next_call() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let died = failure(&call(&tools, "hostile__die", "").await);
    assert!(died.contains("ended before its answer arrived") && died.contains("exit status: 3"), "{died}");
    assert_eq!(call(&tools, "hostile__echo", "again").await.text(), "again");
    // The call that failed was not repeated.
    assert_eq!(hostile.count("tools/call"), 2);
    failure(&call(&tools, "hostile__die", "").await);
    failure(&call(&tools, "hostile__die", "").await);
    let down = failure(&call(&tools, "hostile__echo", "").await);
    assert!(down.contains("stays down"), "{down}");
    hostile.is_gone().await;
}

#[tokio::test]
async fn call_secret_on_standard_error_is_removed() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let died = failure(&call(&tools, "hostile__secret", "").await);
    assert!(died.contains("token [secret]"), "{died}");
}

#[tokio::test]
async fn call_message_beyond_the_limit_ends_the_connection() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    let huge = failure(&call(&tools, "hostile__too_huge", "").await);
    assert!(huge.contains("exceeded the maximum size of 16777216 bytes"), "{huge}");
    assert_eq!(call(&tools, "hostile__echo", "again").await.text(), "again");
}

#[tokio::test]
async fn dropped_client_leaves_no_process_of_a_stubborn_server() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("stubborn").connect()).await.unwrap();
    let tools = set(&client).await;
    assert_eq!(call(&tools, "hostile__spawn", "").await.text(), "spawned");
    drop(client);
    // The client has been dropped, but its tools still use the connection.
    assert_eq!(call(&tools, "hostile__echo", "hi").await.text(), "hi");
    assert_eq!(hostile.running(), 2);
    drop(tools);
    hostile.is_gone().await;
}

#[tokio::test]
async fn close_waits_for_the_end_and_later_calls_fail() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let tools = set(&client).await;
    soon(client.close()).await;
    assert_eq!(hostile.running(), 0);
    let closed = failure(&call(&tools, "hostile__echo", "").await);
    assert!(closed.contains("the client was closed"), "{closed}");
}

#[test]
fn runtime_shutdown_leaves_no_process() {
    let Some(hostile) = Hostile::new() else { return };
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let client = first.block_on(soon(hostile.like("stubborn").connect())).unwrap();
    drop(first);
    runtime().block_on(hostile.is_gone());
    drop(client);
}

#[tokio::test]
async fn call_of_a_deaf_server_ends_at_the_limit_and_the_server_can_be_closed() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").idle_limit(Duration::from_millis(300)).connect()).await.unwrap();
    let tools = set(&client).await;
    failure(&call(&tools, "hostile__deaf", "").await);
    let more = "x".repeat(200_000);
    for _ in 0..3 {
        let lost = failure(&call(&tools, "hostile__echo", &more).await);
        assert!(lost.contains("did not answer within 300ms"), "{lost}");
    }
    soon(client.close()).await;
    until("the server has ended", || hostile.running() == 0).await;
}

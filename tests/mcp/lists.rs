//! Lists of tools: names, refused tools, selection and changes.

use omni_agent::{
    mcp::McpError,
    testing::Step,
    tool::{Replay, Tool, ToolSet},
};
use serde_json::json;
use tokio::runtime::Handle;

use crate::support::{Hostile, LIMIT, adopts, adopts_where, call, session, set, soon, until};

#[tokio::test]
async fn tools_unusable_tools_are_skipped_and_the_others_work() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("odd_list").connect()).await.unwrap();
    let listed = soon(client.tools()).await.unwrap();
    let skipped: Vec<_> = listed.skipped.iter().map(|skipped| &*skipped.name).collect();
    let expected = ["bad schema", "deep schema", "long schema", "no schema", "not object"];
    assert_eq!(skipped, expected, "{:?}", listed.skipped);
    assert_eq!(listed.skipped[1].reason, "its schema is nested too deeply");
    let names: Vec<_> = listed.tools.iter().map(|tool| &**tool).map(Tool::name).collect();
    assert!(names.is_sorted() && names.contains(&"hostile__echo"));
    assert!(names.iter().all(|name| name.len() <= 128));
    assert_eq!(names.iter().filter(|name| name.starts_with("hostile__a_b_")).count(), 2);
    let echo = listed.tools.iter().find(|tool| tool.name() == "hostile__echo").unwrap();
    assert!(echo.description().len() < 5000);
}

#[tokio::test]
async fn tools_selection_allows_renames_and_asks_for_approval() {
    let Some(hostile) = Hostile::new() else { return };
    let builder = hostile.like("").allow(["echo", "add"]).rename("echo", "say").approve(["add"]);
    let client = soon(builder.connect()).await.unwrap();
    let tools = set(&client).await;
    let found: Vec<_> = tools.iter().map(|tool| (tool.name(), tool.requires_approval())).collect();
    assert_eq!(found, [("hostile__add", true), ("say", false)]);
}

#[tokio::test]
async fn tools_cursor_that_repeats_ends_the_list() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("same_cursor").connect()).await.unwrap();
    let listed = soon(client.tools()).await.unwrap();
    assert_eq!(listed.tools.len(), 2);
    assert_eq!(hostile.count("tools/list"), 2);
}

#[tokio::test]
async fn tools_page_that_repeats_lists_each_tool_once() {
    for like in ["same_page", "empty_cursor"] {
        let Some(hostile) = Hostile::new() else { return };
        let client = soon(hostile.like(like).connect()).await.unwrap();
        let plain = soon(hostile.like("").connect()).await.unwrap();
        let (listed, expected) = (soon(client.tools()).await.unwrap(), soon(plain.tools()).await.unwrap());
        assert_eq!((listed.tools.len(), listed.skipped), (expected.tools.len(), Vec::new()), "{like}");
    }
}

#[tokio::test]
async fn tools_endless_list_is_refused() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("endless_list").connect()).await.unwrap();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(matches!(&error, McpError::Refused { reason, .. } if reason.contains("100 pages")), "{error}");
}

#[tokio::test]
async fn tools_list_beyond_the_maximum_size_is_refused() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("heavy_list").connect()).await.unwrap();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(
        matches!(&error, McpError::Refused { reason, .. } if reason.contains("16777216 bytes")),
        "{error}"
    );
    assert_eq!(hostile.count("tools/list"), 2);
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn tools_thousand_tools_are_listed_and_each_is_usable() {
    let Some(hostile) = Hostile::new() else { return };
    let (_server, client) = hostile.over_http("many_tools").await;
    for builder in [hostile.like("many_tools"), client] {
        let client = soon(builder.connect()).await.unwrap();
        let listed = soon(client.tools()).await.unwrap();
        assert_eq!((listed.tools.len(), listed.skipped.len()), (1000, 0));
        let names: Vec<_> = listed.tools.iter().map(|tool| tool.name().to_owned()).collect();
        assert!(names.is_sorted() && names.contains(&"hostile__tool_999".to_owned()));
    }
}

#[tokio::test]
async fn follow_change_before_it_is_adopted() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").allow(["echo", "add", "added"]).connect()).await.unwrap();
    let session = session(&client, []).await;
    assert_eq!(call(&set(&client).await, "hostile__add", "").await.text(), "changed");
    client.follow(&session);
    adopts(&session, &["hostile__added", "hostile__echo"]).await;
}

#[tokio::test]
async fn follow_hint_that_the_server_drops_is_no_longer_trusted() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("hints").trust_hints().connect()).await.unwrap();
    let session = session(&client, []).await;
    let has =
        |tools: &ToolSet, replay| tools.get("hostile__read").is_some_and(|tool| tool.replay() == replay);
    assert!(has(&session.state().await.unwrap().config().tools, Replay::Safe));
    client.follow(&session);
    assert_eq!(call(&set(&client).await, "hostile__drop", "").await.text(), "dropped");
    adopts_where(&session, |tools| has(tools, Replay::Never)).await;
}

#[tokio::test]
async fn follow_list_that_expires_is_read_again() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("ttl").allow(["echo", "add", "added"]).connect()).await.unwrap();
    let session = session(&client, []).await;
    client.follow(&session);
    adopts(&session, &["hostile__added", "hostile__echo"]).await;
    let lists = hostile.count("tools/list");
    until("the list is read again", || hostile.count("tools/list") > lists).await;
}

#[tokio::test]
async fn follow_unchanged_list_leaves_the_session_as_it_is() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let session = session(&client, []).await;
    let before = session.snapshot().await.unwrap().agent.last;
    client.follow(&session);
    until("the list is read", || hostile.count("tools/list") == 2).await;
    // This call takes a round trip to the server. Meanwhile, the follower processes the unchanged list, and emits no
    // event.
    assert_eq!(call(&set(&client).await, "hostile__echo", "").await.text(), "");
    assert_eq!(session.snapshot().await.unwrap().agent.last, before);
}

#[tokio::test]
async fn follow_ends_with_the_session() {
    for like in ["", "failing_list"] {
        let Some(hostile) = Hostile::new() else { return };
        let client = soon(hostile.like(like).connect()).await.unwrap();
        // Tasks of the connection may still be about to end.
        let before = tasks();
        let session = session(&client, []).await;
        client.follow(&session);
        until("the list is read", || hostile.count("tools/list") >= 2).await;
        soon(session.stop(LIMIT)).await.unwrap();
        until("its task has ended", || tasks() <= before).await;
    }
}

#[tokio::test]
async fn follow_ends_when_the_client_is_closed() {
    let Some(hostile) = Hostile::new() else { return };
    let before = tasks();
    let client = soon(hostile.like("").connect()).await.unwrap();
    let connected = tasks();
    let session = session(&client, []).await;
    let of_session = tasks() - connected;
    client.follow(&session);
    until("the list is read", || hostile.count("tools/list") == 2).await;
    // The client is closed while its tools still exist.
    soon(client.close()).await;
    until("its task has ended", || tasks() == before + of_session).await;
    soon(session.stop(LIMIT)).await.unwrap();
}

#[tokio::test]
async fn follow_during_a_run_does_not_keep_the_session_open() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").connect()).await.unwrap();
    let steps = [
        Step::tool_use("call-1", "hostile__add", json!({})),
        Step::tool_use("call-2", "hostile__silent", json!({})),
    ];
    let session = session(&client, steps).await;
    client.follow(&session);
    session.prompt("Change").await.unwrap();
    until("the changed list is read", || {
        hostile.count("tools/list") >= 2 && hostile.count("tools/call") == 2
    })
    .await;
    let weak = session.downgrade();
    drop(session);
    until("the session has ended", || weak.upgrade().is_none()).await;
    // A list that was just being read is cancelled too.
    until("the call is cancelled", || hostile.count("cancelled tools/call") == 1).await;
}

#[tokio::test]
async fn follow_changed_list_is_adopted_after_the_run() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").allow(["echo", "add", "added"]).connect()).await.unwrap();
    let steps = [
        Step::tool_use("call-1", "hostile__add", json!({})),
        Step::tool_use("call-2", "hostile__added", json!({})),
        Step::text("done"),
    ];
    let session = session(&client, steps).await;
    client.follow(&session);
    let response = soon(session.ask("Change")).await.unwrap();
    // During the run, the new tool does not exist.
    let results = format!("{:?}", response.messages);
    assert!(results.contains("There is no tool"), "{results}");
    adopts(&session, &["hostile__added", "hostile__echo"]).await;
    soon(session.stop(LIMIT)).await.unwrap();
    drop((session, client));
    until("the server has ended", || hostile.running() == 0).await;
}

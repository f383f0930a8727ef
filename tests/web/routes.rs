//! The effect and the answer of each native route.

use axum::http::{Method, StatusCode};
use omni_agent::{
    message::{Attachment, Message},
    run::Accepted,
    session::{SessionAnswer, SessionSnapshot},
    store::ConversationId,
    testing::Step,
    tree::{Node, NodeId},
    web::{View, WebLimits},
};
use serde_json::{Value, json};

use crate::support::{App, prompt, request};

#[tokio::test(start_paused = true)]
async fn conversation_created_is_listed_read_renamed_and_deleted() {
    let app = App::new([Step::text("Hello!")]);
    let created = app.post("ann", "/agent/conversations", json!({ "title": "Plans" })).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/agent/conversations/{id}");
    assert_eq!(created.header("location"), Some(path.as_str()));

    app.ask("ann", &id, "Hi").await;
    let listed = app.get("ann", "/agent/conversations").await.json();
    assert_eq!(listed["items"][0]["summary"]["title"], "Plans");
    assert_eq!(listed["items"][0]["presence"], json!({ "open": "idle" }));
    assert_eq!(listed["next"], json!(null));

    let read = app.get("ann", &path).await;
    assert_eq!(read.header("cache-control"), Some("no-store"));
    let snapshot: SessionSnapshot = serde_json::from_str(&read.text).unwrap();
    let texts: Vec<String> = snapshot.tree.history().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["Hi", "Hello!"]);
    assert!(!read.text.contains("Secret rules."), "{}", read.text);

    let renamed =
        app.post("ann", &format!("{path}/commands"), json!({ "type": "title", "title": null })).await;
    assert_eq!(renamed.status, StatusCode::OK);
    assert_eq!(app.get("ann", &path).await.json()["title"], json!(null));
    let deleted = app.answer(request(Method::DELETE, "ann", &path, None)).await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    assert_eq!(app.get("ann", &path).await.code(), "not-found");
}

#[tokio::test(start_paused = true)]
async fn list_is_paged_by_position() {
    let app = App::new([]);
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(app.create("ann").await);
        tokio::time::advance(std::time::Duration::from_millis(5)).await;
    }
    let mut found = Vec::new();
    let mut path = "/agent/conversations?limit=2".to_owned();
    loop {
        let page = app.get("ann", &path).await.json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        found.extend(items.iter().map(|item| item["summary"]["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/agent/conversations?limit=2&after={next}");
    }
    found.sort();
    made.sort();
    assert_eq!(found, made);
}

#[tokio::test(start_paused = true)]
async fn command_is_run_in_the_name_of_the_principal() {
    let call = Step::tool_use("call-1", "lookup", json!({ "what": "a fact" }));
    let app = App::new([call, Step::text("Done.")]);
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    let mut stream = app.stream("ann", &format!("{path}/events"), None).await;
    app.post("ann", &format!("{path}/commands"), prompt("Look")).await;
    let frames = stream.until(|frame| frame.data["update"]["event"]["event"]["status"] == "paused").await;
    let pause = &frames.last().unwrap().data["update"]["event"]["event"]["pauses"][0];
    let decision = json!({ "type": "decide", "turn": pause["turn"], "decisions": [["call-1", "execute"]] });
    let decided = app.post("ann", &format!("{path}/commands"), decision.clone()).await;
    assert_eq!(decided.status, StatusCode::OK, "{decided:?}");
    let frames = stream.run().await;
    let names = frames.iter().filter(|frame| frame.data["update"]["event"]["event"]["type"] == "decided");
    let by: Vec<_> = names.map(|frame| frame.data["update"]["event"]["event"]["by"].clone()).collect();
    assert_eq!(by, [json!("ann")]);
    let again = app.post("ann", &format!("{path}/commands"), decision).await;
    assert_eq!((again.status, again.code().as_str()), (StatusCode::CONFLICT, "stale-decision"));
}

#[tokio::test(start_paused = true)]
async fn command_answers_as_soon_as_it_is_accepted() {
    let app = App::new([Step::text("One"), Step::text("Two")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let commands = format!("/agent/conversations/{id}/commands");
    let answer = app.post("ann", &commands, json!({ "type": "run", "at": { "again": 1 } })).await;
    let answer = serde_json::from_str(&answer.text).unwrap();
    assert!(matches!(answer, SessionAnswer::Accepted(Accepted::Started { .. })), "{answer:?}");
    app.idle(&id).await;
    let snapshot = app.get("ann", &format!("/agent/conversations/{id}")).await.json();
    assert_eq!(snapshot["tree"]["nodes"].as_array().unwrap().len(), 3);
    let answer = app.post("ann", &commands, json!({ "type": "erase", "node": 3 })).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let answer = app.post("ann", &commands, json!({ "type": "cancel" })).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::CONFLICT, "idle"));
}

#[tokio::test(start_paused = true)]
async fn model_can_only_be_one_of_the_permitted_models() {
    let app = App::with([], |web| web.models(["nobody:model"]));
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    let command = json!({ "type": "model", "model": "nobody:other" });
    let refused = app.post("ann", &format!("{path}/commands"), command).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (422, "unknown-model"));
    let refused = app.post("ann", "/agent/conversations", json!({ "model": "x" })).await;
    assert_eq!(refused.code(), "unknown-model");
    assert_eq!(app.get("ann", "/agent/conversations").await.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn model_is_set_by_a_command_if_the_agent_knows_it() {
    let app = App::with([], |web| web.models(["test:other", "nobody:model"]));
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    for (model, status, now) in [("nobody:model", 422, "test:scripted"), ("test:other", 200, "test:other")] {
        let command = json!({ "type": "model", "model": model });
        let answer = app.post("ann", &format!("{path}/commands"), command).await;
        assert_eq!(answer.status.as_u16(), status, "{answer:?}");
        assert_eq!(app.get("ann", &path).await.json()["agent"]["state"]["model"], now);
    }
}

#[tokio::test(start_paused = true)]
async fn usage_and_search_contain_only_conversations_of_the_principal() {
    let app = App::new([Step::text("A lake."), Step::text("A lake, too.")]);
    for user in ["ann", "ben"] {
        let id = app.create(user).await;
        app.ask(user, &id, "Name something blue").await;
        let rows = app.get(user, &format!("/agent/conversations/{id}/usage")).await.json();
        assert!(rows["rows"].is_array(), "{rows}");
    }
    let found = app.get("ann", "/agent/search?q=lake").await.json();
    assert_eq!(found["hits"].as_array().unwrap().len(), 1, "{found}");
    let found = app.get("boss", "/agent/search?q=lake").await.json();
    assert_eq!(found["hits"].as_array().unwrap().len(), 2, "{found}");
    assert!(app.get("ann", "/agent/usage?from=0").await.json().is_array());
    assert_eq!(app.get("ann", "/agent/search?q=%22open").await.code(), "invalid-query");
}

#[tokio::test(start_paused = true)]
async fn large_attachment_is_linked_and_served_from_its_url() {
    let app = App::new([Step::text("A picture.")]);
    let id = app.create("ann").await;
    let data = "QUJD".repeat(20_000);
    let content = json!([
        { "type": "text", "text": "What is this?" },
        { "type": "attachment", "media_type": "image/png", "source": { "type": "base64", "data": data } },
        { "type": "attachment", "media_type": "image/png", "source": { "type": "base64", "data": "QUJD" } },
    ]);
    let command = json!({ "type": "run", "prompt": { "id": "p/1", "content": content } });
    app.post("ann", &format!("/agent/conversations/{id}/commands"), command).await;
    app.idle(&id).await;
    let read = app.get("ann", &format!("/agent/conversations/{id}")).await;
    assert!(read.text.len() < 20_000, "{} bytes", read.text.len());
    let snapshot = read.json();
    let content = &snapshot["tree"]["nodes"][0]["message"]["content"];
    let url = content[1]["source"]["url"].as_str().unwrap();
    assert_eq!(url, format!("/agent/conversations/{id}/files/p%2F1/1"));
    assert_eq!(content[2]["source"]["data"], "QUJD");
    let page = app.get("ann", &format!("/agent/conversations/{id}/messages?before=2")).await.json();
    assert_eq!(page["messages"][0]["message"]["content"], *content);
    let file = app.get("ann", url).await;
    assert_eq!(file.text, "ABC".repeat(20_000));
    assert_eq!(file.header("content-type"), Some("image/png"));
    assert!(file.header("content-security-policy").unwrap().starts_with("sandbox"));
    assert_eq!(app.get("ben", url).await.code(), "not-found");
    assert_eq!(app.get("ann", &url.replace("/1", "/9")).await.code(), "not-found");
}

#[tokio::test(start_paused = true)]
async fn pages_of_messages_follow_the_branch_of_a_node_up_to_its_root() {
    let app = App::new(["One.", "Two.", "Three.", "Other."].map(Step::text));
    let id = app.create("ann").await;
    for text in ["1", "2", "3"] {
        app.ask("ann", &id, text).await;
    }
    let path = format!("/agent/conversations/{id}");
    // Node 7 is another answer to node 3, and is not below node 4.
    app.post("ann", &format!("{path}/commands"), json!({ "type": "run", "at": { "again": 3 } })).await;
    app.idle(&id).await;
    for (before, limit, found, next) in [
        (7, 2, vec![2, 3], Some(2)),
        (2, 2, vec![1], None),
        (7, 3, vec![1, 2, 3], None),
        (6, 2, vec![4, 5], Some(4)),
        (1, 2, vec![], None),
    ] {
        let page = app.get("ann", &format!("{path}/messages?before={before}&limit={limit}")).await.json();
        let nodes: Vec<Node> = serde_json::from_value(page["messages"].clone()).unwrap();
        assert_eq!(nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), found, "{page}");
        assert_eq!(page.get("next").and_then(Value::as_u64), next, "{page}");
        let snapshot: SessionSnapshot = serde_json::from_str(&app.get("ann", &path).await.text).unwrap();
        assert!(nodes.iter().all(|node| snapshot.tree.node(node.id()) == Some(node)), "{page}");
    }
    let whole = app.get("ann", &format!("{path}/messages?before=6")).await.json();
    assert_eq!(whole["messages"].as_array().map(Vec::len), Some(5));
}

#[tokio::test(start_paused = true)]
async fn page_of_messages_has_at_most_four_mebibytes_but_at_least_one_message() {
    let app = App::new(["a".repeat(5 << 20), "b".repeat(3 << 20), "c".repeat(1 << 20)].map(Step::text));
    let id = app.create("ann").await;
    for text in ["1", "2", "3"] {
        app.ask("ann", &id, text).await;
    }
    let path = format!("/agent/conversations/{id}/messages?before");
    // The answers are the nodes 2, 4 and 6, with 5, 3 and 1 MiB.
    for (before, found) in [(6, vec![3, 4, 5]), (3, vec![2]), (2, vec![1])] {
        let page = app.get("ann", &format!("{path}={before}")).await;
        let nodes: Vec<Node> = serde_json::from_value(page.json()["messages"].clone()).unwrap();
        assert_eq!(nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), found);
        assert!(page.text.len() <= 4 << 20 || nodes.len() == 1, "{} bytes", page.text.len());
    }
}

#[tokio::test(start_paused = true)]
async fn view_of_an_operator_shows_everything() {
    let app = App::with([Step::text("Hi")], |web| web.view(View::full().inline_files()));
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let text = app.get("ann", &format!("/agent/conversations/{id}")).await.text;
    assert!(text.contains("Secret rules."), "{text}");
    let session = app.manager.get(&ConversationId::new(&id).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<SessionSnapshot>(&text).unwrap(), session.snapshot().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn draining_refuses_new_runs_and_streams() {
    let app = App::with([Step::text("Hi")], |web| web.limits(WebLimits::default().with_page(7)));
    let id = app.create("ann").await;
    app.web.drain();
    let refused = app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("Hi")).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "draining"));
    assert!(refused.header("retry-after").is_some());
    let refused = app.get("ann", &format!("/agent/conversations/{id}/events")).await;
    assert_eq!(refused.code(), "draining");
    assert_eq!(app.get("ann", &format!("/agent/conversations/{id}")).await.status, StatusCode::OK);
    let _ = (NodeId::new(1), Message::user("x"), Attachment::url("a/b", "c"));
}

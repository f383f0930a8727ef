//! Streams with the last messages of a conversation, and the pages with the older ones.

use omni_agent::{
    session::SessionSnapshot,
    testing::Step,
    tree::{Node, NodeId},
    web::View,
};
use serde_json::{Value, json};

use crate::{
    streams::Client,
    support::{App, Frames, prompt},
};

async fn first(stream: &mut Frames) -> (SessionSnapshot, usize) {
    let frame = stream.next().await.unwrap();
    let snapshot = frame.data["update"]["snapshot"].clone();
    let bytes = frame.data.to_string().len();
    (serde_json::from_value(snapshot).unwrap(), bytes)
}

#[tokio::test(start_paused = true)]
async fn tail_of_50_of_5_000_messages_has_at_most_300_kilobytes() {
    // A message of the whole snapshot has about 1,340 bytes, as in a usual conversation.
    let app = App::new((0..2500).map(|_| Step::text("word ".repeat(240))));
    let id = app.create("ann").await;
    let session = app.manager.get(&omni_agent::store::ConversationId::new(&id).unwrap()).unwrap();
    for _ in 0..2500 {
        session.ask("word ".repeat(240)).await.unwrap();
    }
    let path = format!("/agent/conversations/{id}");
    let whole = app.get("ann", &path).await.text;
    let mut stream = app.stream("ann", &format!("{path}/events?messages=50"), None).await;
    let (tail, bytes) = first(&mut stream).await;
    assert!(bytes <= 300_000, "{bytes} of {} bytes", whole.len());
    assert!(whole.len() >= 6_700_000, "{} bytes", whole.len());
    assert_eq!((tail.tree.len(), tail.tree.history().len()), (5000, 50));
    assert_eq!(tail.from.map(NodeId::get), Some(4951));
}

#[tokio::test(start_paused = true)]
async fn tail_and_pages_are_the_path_in_both_views() {
    for view in [View::chat(), View::full()] {
        let app = App::with((0..6).map(|number| Step::text(number.to_string())), |web| web.view(view));
        let id = app.create("ann").await;
        for text in ["a", "b", "c", "d"] {
            app.ask("ann", &id, text).await;
        }
        let path = format!("/agent/conversations/{id}");
        // Answer the second question again, so that the path is a branch: 1, 2, 3, 9.
        app.post("ann", &format!("{path}/commands"), json!({ "type": "run", "at": { "again": 3 } })).await;
        app.idle(&id).await;
        app.ask("ann", &id, "e").await;
        let whole: SessionSnapshot = serde_json::from_str(&app.get("ann", &path).await.text).unwrap();
        let mut stream = app.stream("ann", &format!("/agent/events?watch={id}&messages=2"), None).await;
        let tail = first(&mut stream).await.0;
        let mut nodes: Vec<Node> = tail.tree.iter().cloned().collect();
        let mut next = tail.from.map(NodeId::get);
        assert_eq!((nodes.len(), next), (2, Some(10)));
        while let Some(before) = next {
            let page = app.get("ann", &format!("{path}/messages?before={before}&limit=3")).await.json();
            let mut older: Vec<Node> = serde_json::from_value(page["messages"].clone()).unwrap();
            older.append(&mut nodes);
            nodes = older;
            next = page.get("next").and_then(Value::as_u64);
        }
        assert!(nodes.iter().eq(whole.tree.iter()), "{nodes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_tail_that_is_cut_and_resumed_has_the_path() {
    let app = App::new((0..9).map(|number| Step::text(number.to_string())));
    let id = app.create("ann").await;
    for text in ["a", "b"] {
        app.ask("ann", &id, text).await;
    }
    let path = format!("/agent/conversations/{id}");
    let events = format!("{path}/events?messages=2");
    let mut stream = app.stream("ann", &events, None).await;
    let mut client = Client::default();
    client.take(&stream.next().await.unwrap());
    let mut resyncs = Vec::new();
    let edit = json!({ "type": "run", "at": { "instead": 1 }, "prompt": prompt("Other")["prompt"] });
    for command in [prompt("c"), edit, prompt("d")] {
        app.post("ann", &format!("{path}/commands"), command).await;
        app.idle(&id).await;
        // Each command reaches a connection of its own.
        stream = app.stream("ann", &events, client.position.as_deref()).await;
        let now: SessionSnapshot = serde_json::from_str(&app.get("ann", &path).await.text).unwrap();
        let mut count = 0;
        while client.state().last < now.last {
            let frame = stream.next().await.unwrap();
            count += usize::from(frame.data["update"]["type"] == "resync");
            client.take(&frame);
        }
        let tail = client.state().tree;
        let kept = tail.history().len();
        assert!(
            kept >= 2
                && tail.history().iter().eq(now.tree.history().iter().skip(now.tree.history().len() - kept))
        );
        assert_eq!(tail.nodes().filter(|node| !node.is_outline()).count(), kept);
        resyncs.push(count);
    }
    assert!(resyncs.iter().all(|count| *count == 1), "{resyncs:?}");
}

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id, path, turn};
use crate::{
    message::{
        Attachment, Content, DecisionKind, Message, ProviderItem, Role, StopReason, Text, Thinking,
        Timestamp, ToolResult, ToolUse, Usage, UseDecision,
    },
    store::{Commit, ConversationId, Store},
    tree::Node,
};

pub(super) async fn commits_are_loaded_in_order(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("order");
    let version = created(&*store, &id).await;
    let empty = store.load(&id).await.expect("the conversation exists");
    assert_eq!((empty.head, empty.nodes.len(), empty.cursors.len()), (None, 0, 0));

    let usage = Usage { input: 7, output: u64::MAX, cost: Some(0.1 + 0.2), ..Usage::default() };
    let mut expected: Vec<Node> = path(1, 6).collect();
    expected[5] = expected[5].clone().with_usage(usage);
    // Add a sibling, and a second root after a gap in the ids.
    expected.push(Node::new(node_id(7), Some(node_id(3)), Message::assistant("another answer")));
    let uses = Message::new(Role::Assistant, [ToolUse::new("a", "look", json!({}))]);
    expected.push(Node::new(node_id(8), Some(node_id(7)), uses).with_left_open(true));
    expected.push(Node::new(node_id(90), None, Message::user("another beginning")));

    let mut version =
        committed(&*store, &id, version, &Commit::new(Some(node_id(4))).with_nodes(expected[..4].to_vec()))
            .await;
    version =
        committed(&*store, &id, version, &Commit::new(Some(node_id(6))).with_nodes(expected[4..6].to_vec()))
            .await;
    version =
        committed(&*store, &id, version, &Commit::new(Some(node_id(90))).with_nodes(expected[6..].to_vec()))
            .await;
    for handle in [&store, &subject.another().await] {
        let stored = handle.load(&id).await.expect("the conversation exists");
        assert_eq!((stored.nodes, stored.head), (expected.clone(), Some(node_id(90))));
    }
    committed(&*store, &id, version, &Commit::new(None)).await;
    let stored = store.load(&id).await.expect("the conversation exists");
    assert_eq!((stored.nodes, stored.head), (expected, None), "a commit could not clear the head");
    PassedOrSkipped::Made
}

pub(super) async fn cursors_keep_their_latest_values(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("cursors");
    let mut version = created(&*store, &id).await;
    let pair = |node, child| (node_id(node), node_id(child));
    let commits = [
        turn(1, 4).with_cursors([pair(1, 2), pair(2, 3)]),
        Commit::new(Some(node_id(3))).with_cursors([pair(2, 9)]),
        turn(5, 6).with_cursors([pair(4, 5), pair(2, 3), pair(4, 8)]),
    ];
    for commit in &commits {
        version = committed(&*store, &id, version, commit).await;
    }
    let cursors = subject.another().await.load(&id).await.expect("the conversation exists").cursors;
    assert_eq!(cursors, BTreeMap::from([pair(1, 2), pair(2, 3), pair(4, 8)]));
    PassedOrSkipped::Made
}

/// Checks that the messages that the store returns are equal to the written messages, and encode to the same bytes.
async fn come_back(
    subject: &dyn StoreUnderTest,
    store: &dyn Store,
    id: &ConversationId,
    messages: Vec<Message>,
) {
    let version = created(store, id).await;
    let encoded: Vec<String> = messages.iter().map(encode).collect();
    let nodes =
        messages.iter().zip(1..).map(|(message, number)| Node::new(node_id(number), None, message.clone()));
    let nodes: Vec<Node> = nodes.collect();
    // Half of the messages are written in one commit, the others one by one.
    let (together, single) = nodes.split_at(nodes.len() / 2);
    let mut version = committed(store, id, version, &Commit::new(None).with_nodes(together.to_vec())).await;
    for node in single {
        version =
            committed(store, id, version, &Commit::new(Some(node.id())).with_nodes([node.clone()])).await;
    }
    let stored = subject.another().await.load(id).await.expect("loading succeeds");
    assert_eq!(stored.nodes.len(), messages.len());
    for ((node, message), encoded) in stored.nodes.iter().zip(&messages).zip(&encoded) {
        assert_eq!(**node.message(), *message);
        assert_eq!(encode(node.message()), *encoded, "a message encodes to different JSON than before");
    }
}

fn encode(message: &Message) -> String {
    serde_json::to_string(message).expect("a message has a JSON form")
}

pub(super) async fn text_of_any_kind_is_preserved(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let texts = [
        "",
        " ",
        "\0",
        "a\0b\0",
        "\u{0}\u{1}\u{1f}\u{7f}\u{80}\u{9f}",
        "line\nline\r\nline\rline",
        "\u{2028}\u{2029}\u{85}\u{b}\u{c}",
        "\u{feff}mark",
        "\\",
        "\\\\n",
        "\\u0000",
        "\"quoted\" 'quoted' `quoted`",
        "{\"a\":1}\n{\"b\":2}\n",
        "'; DROP TABLE nodes; --",
        "%s %d \\x00 $1 ?1 :a",
        "e\u{301} \u{e9}",
        "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
        "\u{202e}right to left",
        "\u{d7ff}\u{e000}\u{fffd}\u{ffff}\u{10ffff}",
        "\u{10348}",
    ];
    let messages = texts.map(|text| {
        let mut message = Message::user(vec![Content::from(Text::new(text))]);
        message.provider_data.insert(text.to_owned(), Value::from(text));
        message
    });
    come_back(subject, &*subject.store(), &conversation("text"), messages.to_vec()).await;
    PassedOrSkipped::Made
}

pub(super) async fn json_of_any_kind_is_preserved(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let values = json!({
        "zebra": 1, "apple": 2, "Zebra": 3, "": null, "\u{0}": "\u{0}", "nested": {"b": [], "a": {}},
        "numbers": [0, -1, u64::MAX, i64::MIN, 0.1, 1e300, 5e-324, 1.0, -0.0, 9_007_199_254_740_993_u64],
        "texts": ["1", "true", "null", "1e5"], "same": [[[[]]]], "flags": [true, false, null],
    });
    // The value is nested almost as deeply as JSON parsers accept by default. The remaining levels are for the JSON
    // around this value.
    let deep =
        (0..110).fold(
            json!("deep"),
            |inner, level| if level % 2 == 0 { json!([inner]) } else { json!({"a": inner}) },
        );
    let tool_use = ToolUse::new("toolu_1", "search", values.clone());
    let malformed =
        ToolUse { malformed: Some("{\"a\": \0".into()), ..ToolUse::new("toolu_2", "search", json!({})) };
    let signed = Thinking {
        signature: Some("c2lnbmF0dXJl".into()),
        redacted: Some(String::new()),
        ..Thinking::new("hm")
    };
    let mut attachment = Attachment::base64("image/png", "iVBORw0KGgo=").named("a\0b.png");
    attachment.metadata.insert("width".into(), json!(1.5));
    let mut message = Message::assistant(vec![
        Content::from(signed),
        tool_use.clone().into(),
        malformed.clone().into(),
        ProviderItem::new("openai", values.clone()).into(),
        ToolUse::new("toolu_3", "deep", deep).into(),
        attachment.into(),
    ]);
    message.provider_data.insert("anthropic".into(), values.clone());
    message.ended = Some(Box::new(StopReason::Other("odd\0".to_owned())));
    let decision = UseDecision::new(DecisionKind::ExecuteWith, Timestamp(7));
    let decision = UseDecision { by: Some("ann\0".into()), input: Some(values), ..decision };
    let mut found = ToolResult::ok(&tool_use, "found\0");
    found.decision = Some(Box::new(decision));
    let results = vec![found, ToolResult::error(&malformed, "no JSON")];
    come_back(subject, &*subject.store(), &conversation("json"), vec![message, Message::user(results)]).await;
    PassedOrSkipped::Made
}

pub(super) async fn large_messages_are_preserved(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    const LARGE: usize = 10 * 1024 * 1024;
    let text = "0123456789abcdef".repeat(LARGE / 16);
    // Every character of this text is escaped in JSON.
    let escaped = "\0\n\"".repeat(LARGE / 30);
    let messages = vec![
        Message::user("small"),
        Message::user(Attachment::base64("image/png", text.clone())),
        Message::assistant(text),
        Message::user(escaped),
        Message::assistant("small again"),
    ];
    come_back(subject, &*subject.store(), &conversation("large"), messages).await;
    PassedOrSkipped::Made
}

pub(super) async fn ten_thousand_nodes_are_preserved(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    const NODES: u64 = 10_000;
    const COMMITS: u64 = 50;
    let store = subject.store();
    let id = conversation("long");
    let mut version = created(&*store, &id).await;
    let size = NODES / COMMITS;
    let mut expected = Vec::new();
    for commit in 0..COMMITS {
        let commit = turn(commit * size + 1, (commit + 1) * size);
        expected.extend(commit.nodes.iter().cloned());
        version = committed(&*store, &id, version, &commit).await;
    }
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!((stored.version, stored.head), (version, Some(node_id(NODES))));
    assert!(stored.nodes == expected, "nodes are missing or out of order");
    PassedOrSkipped::Made
}

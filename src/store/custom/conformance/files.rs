use std::sync::Arc;

use serde_json::json;

use super::{
    PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id,
    turns::{keeping, listed, turn_id},
};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, ToolResult, ToolUse},
    run::{PendingUse, Prompt, RunEnd, RunOutcome, TurnRecord},
    store::{Change, Commit, ConversationId, Filter, Page, Store, StoreError, Stored, Turns, Version, Write},
    tree::{Erased, Node},
};

/// Returns a large attachment. Attachments of different letters have different bytes.
fn photo(letter: char) -> Attachment {
    Attachment::base64("image/png", letter.to_string().repeat(64 * 1024)).named("photo.png")
}

/// Returns a user message with a text and an attachment.
fn beside(text: &str, photo: Attachment) -> Message {
    Message::user([Content::from(text), photo.into()])
}

fn encode(messages: impl IntoIterator<Item = Arc<Message>>) -> Vec<String> {
    let encode = |message: Arc<Message>| serde_json::to_string(&*message).expect("a message has a JSON form");
    messages.into_iter().map(encode).collect()
}

fn messages(stored: &Stored) -> Vec<String> {
    encode(stored.nodes.iter().map(|node| Arc::clone(node.message())))
}

fn adding(number: u64, message: Message) -> Commit {
    Commit::new(Some(node_id(number))).with_nodes([Node::new(node_id(number), None, message)])
}

async fn loaded(subject: &dyn StoreUnderTest, id: &ConversationId) -> Stored {
    subject.another().await.load(id).await.expect("loading succeeds")
}

pub(super) async fn large_attachments_are_preserved(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("files");
    let name = "a".repeat(64);
    let imitation = json!({ "source": { "type": "file", "sha256": name }, "type": "file", "sha256": name });
    let tool_use = ToolUse::new("1", "paint", imitation.clone());
    let mut noted = photo('A');
    noted.metadata.insert("copy".to_owned(), imitation.clone());
    let shot = ResultBlock::from(photo('B'));
    let text = ResultBlock::from(imitation.to_string());
    let results = ToolResult::ok(&tool_use, "").with_content(vec![shot, text]);
    let decided = ToolUse::new("2", "paint", json!({})).with_decided(Box::new(results.clone()));
    // Each of these texts differs from the encoding of its own bytes, or is no base64.
    let long = "A".repeat(32 * 1024);
    let odd = [long.clone() + "A", long.clone() + "AB==", long.clone() + "\n", "-".repeat(32 * 1024)];
    let mut expected = vec![
        beside("first", photo('A')),
        beside("second", photo('A')),
        Message::assistant([Content::from(tool_use), decided.into()]),
        Message::user(results),
        beside("noted", noted),
        Message::user([Content::from(photo('A')), photo('A').into(), photo('B').into()]),
        beside("of 16 KiB", Attachment::base64("image/png", "A".repeat(16 * 1024))),
        beside("of more", Attachment::base64("image/png", "A".repeat(16 * 1024 + 4))),
        beside("elsewhere", Attachment::url("image/png", long)),
    ];
    expected.extend(odd.map(|data| beside("odd", Attachment::base64("image/png", data))));
    let nodes =
        expected.iter().zip(1..).map(|(message, number)| Node::new(node_id(number), None, message.clone()));
    let nodes: Vec<_> = nodes.collect();
    let mut version = created(&*store, &id).await;
    // The first commit contains equal attachments, and the others repeat them.
    let (together, single) = nodes.split_at(2);
    version = committed(&*store, &id, version, &Commit::new(None).with_nodes(together.to_vec())).await;
    for node in single {
        let commit = Commit::new(Some(node.id())).with_nodes([node.clone()]);
        version = committed(&*store, &id, version, &commit).await;
    }
    let stored = loaded(subject, &id).await;
    assert!(stored.nodes == nodes, "a message differs from the written one");
    assert!(messages(&stored) == encode(expected.into_iter().map(Arc::new)), "the JSON of a message differs");
    PassedOrSkipped::Made
}

pub(super) async fn attachment_of_a_repeated_commit_is_preserved(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("repeated");
    let version = created(&*store, &id).await;
    let (write, change) = (Write::on(version), Change::Commit(adding(1, beside("first", photo('A')))));
    for _ in 0..3 {
        let written = store.write(&id, &write, &change).await.expect("a repetition succeeds");
        assert_eq!(written, version.next());
    }
    let other = Change::Commit(adding(1, beside("other", photo('B'))));
    let late = store.write(&id, &Write::on(version), &other).await;
    assert!(matches!(late, Err(StoreError::Conflict { .. })), "{late:?}");
    let version = committed(&*store, &id, version.next(), &adding(2, beside("second", photo('B')))).await;
    let stored = loaded(subject, &id).await;
    assert_eq!((stored.version, stored.nodes.len()), (version, 2));
    assert!(stored.nodes[0].message().content == beside("first", photo('A')).content);
    assert!(stored.nodes[1].message().content == beside("second", photo('B')).content);
    PassedOrSkipped::Made
}

/// Erases a node without children. Returns `None` if the store does not support this.
async fn erase(store: &dyn Store, id: &ConversationId, base: Version, number: u64) -> Option<Version> {
    let erased = Erased { nodes: vec![node_id(number)], head: None, next: node_id(100), title: false };
    match store.write(id, &Write::on(base), &Change::Erase(erased)).await {
        Err(StoreError::Unsupported { .. }) => None,
        erased => Some(erased.expect("erasing succeeds")),
    }
}

pub(super) async fn erase_keeps_an_attachment_of_another_message(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("erased");
    let mut version = created(&*store, &id).await;
    for (number, letter) in [(1, 'A'), (2, 'A'), (3, 'B'), (4, 'A')] {
        version = committed(&*store, &id, version, &adding(number, beside("text", photo(letter)))).await;
    }
    // The bytes may be stored with any of the nodes that have them.
    for (number, left) in [(1, vec![2, 3, 4]), (4, vec![2, 3]), (3, vec![2])] {
        let Some(next) = erase(&*store, &id, version, number).await else { return PassedOrSkipped::Skipped };
        version = next;
        let stored = loaded(subject, &id).await;
        assert_eq!(stored.nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), left);
        for node in &stored.nodes {
            let letter = if node.id().get() == 3 { 'B' } else { 'A' };
            assert!(node.message().content == beside("text", photo(letter)).content);
        }
    }
    // An attachment whose bytes were removed can be added again.
    let version = committed(&*store, &id, version, &adding(101, beside("again", photo('B')))).await;
    let stored = loaded(subject, &id).await;
    assert!(stored.nodes[1].message().content == beside("again", photo('B')).content);
    let version = erase(&*store, &id, version, 2).await.expect("the store erases");
    erase(&*store, &id, version, 101).await;
    assert_eq!(loaded(subject, &id).await.nodes, []);
    PassedOrSkipped::Made
}

pub(super) async fn attachments_of_a_turn_in_flight_are_preserved(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("turn");
    let version = created(&*store, &id).await;
    let tool_use = ToolUse::new("1", "paint", json!({}));
    // The state of an agent contains the results of tools.
    let settled = |letter| {
        let content = vec![ResultBlock::from(photo(letter)), ResultBlock::from(photo(letter))];
        let result = ToolResult::ok(&tool_use, "").with_content(content);
        let core = json!({ "result": result }).to_string();
        let waiting = vec![PendingUse::new(turn_id(1), tool_use.clone())];
        TurnRecord::new(1, turn_id(1), core).with_head(node_id(1)).with_keep(2).with_waiting(waiting)
    };
    let pending = |text: &str, letter| Arc::new(beside(text, photo(letter)));
    let uses = Arc::new(Message::assistant(tool_use.clone()));
    let record = || TurnRecord::new(1, turn_id(1), "{}").with_head(node_id(1));
    // The history and the turn have one attachment in common.
    let mut version = committed(&*store, &id, version, &adding(1, beside("first", photo('A')))).await;
    let records = [
        record().with_append(vec![pending("asked", 'A'), Arc::clone(&uses)]),
        settled('B'),
        record().with_keep(2),
        record().with_keep(1).with_append(vec![Arc::clone(&uses), pending("more", 'C')]),
    ];
    let mut sum: Option<TurnRecord> = None;
    for record in records {
        let commit = Commit::new(Some(node_id(1))).with_usage([]).with_turn(record.clone());
        version = committed(&*store, &id, version, &commit).await;
        let whole = match sum.take() {
            Some(earlier) => earlier.then(record),
            None => record,
        };
        sum = Some(TurnRecord { keep: 0, ..whole.clone() });
        let stored = loaded(subject, &id).await;
        let turn = store.turn(&id).await.expect("reading succeeds").expect("a turn is in flight");
        assert!(stored.turn.as_deref() == Some(&turn) && turn.damage.is_none(), "{:?}", turn.damage);
        assert!(turn.record.append == whole.append && turn.record.core == whole.core);
        let entries = listed(&*store, Turns::All, &Filter::default(), Page::default()).await;
        let entry = entries.iter().find(|entry| entry.id == id).expect("the turn is listed");
        assert_eq!((&entry.damage, &entry.approvals), (&None, &turn.approvals()));
    }
    // Another turn replaces this one. Then the run ends without an answer.
    let other = TurnRecord::new(1, turn_id(2), "{}").with_head(node_id(1));
    let other = other.with_append(vec![pending("other", 'C')]);
    let commit = Commit::new(Some(node_id(1))).with_usage([]).with_turn(other.clone());
    let version = committed(&*store, &id, version, &commit).await;
    let turn = store.turn(&id).await.expect("reading succeeds").expect("a turn is in flight");
    assert!(turn.record.append == other.append && turn.damage.is_none());
    let end = RunEnd::new(RunOutcome::Cancelled)
        .with_unanswered(vec![pending("other", 'C')])
        .with_staged(vec![Arc::new(Prompt::new([Content::from("staged"), photo('D').into()]))]);
    let commit = Commit::new(Some(node_id(1))).with_usage([]).with_run_end(end.clone());
    let version = committed(&*store, &id, version, &commit).await;
    let stored = loaded(subject, &id).await;
    assert!(stored.last_run == Some(end) && stored.turn.is_none());
    // A commit has an attachment that only the end of the run had.
    let version = committed(&*store, &id, version, &adding(2, beside("again", photo('D')))).await;
    let stored = loaded(subject, &id).await;
    assert_eq!((stored.version, stored.last_run), (version, None));
    assert!(stored.nodes[0].message().content == beside("first", photo('A')).content);
    assert!(stored.nodes[1].message().content == beside("again", photo('D')).content);
    PassedOrSkipped::Made
}

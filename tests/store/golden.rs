//! Files of every released version of the format. Files in `golden/` never change and must remain readable. For each
//! new version of the format, a folder is added.

use std::{
    fs,
    path::{Path, PathBuf},
};

use omni_agent::{
    message::{
        Attachment, Content, Message, ProviderItem, Purpose, RequestEnd, Text, Thinking, Timestamp,
        ToolResult, ToolUse, Usage, UsageRow, UsageSum,
    },
    provider::{CacheHint, Effort, Options},
    run::RunEnd,
    store::{
        Commit, FileSystemStore, Filter, Labels, Page, StateChange, Store, Stored, StoredState, Write,
        WriteId, file_system::Durability,
    },
    tree::{Node, Tree},
};
use serde_json::json;

use crate::{
    flight::{check_flight, create_flight},
    support::{Folder, commit, id, node},
};

fn golden(version: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/store/golden/v{version}"))
}

/// The conversations of each version. `NAME.expected.json` contains the expected content of a conversation.
const NAMES: [&str; 4] = ["compacted", "empty", "talk", "torn"];
/// The conversations that version 2 has in addition.
const NAMES_2: [&str; 4] = ["erased", "ended", "flight", "known"];

/// Returns a copy of the files of a version.
pub(crate) fn copy(version: u64) -> Folder {
    let folder = Folder::new();
    for entry in fs::read_dir(golden(version)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[tokio::test]
async fn load_of_version_1_returns_what_was_stored() {
    returns_what_was_stored(1, &NAMES).await;
}

#[tokio::test]
async fn load_of_version_2_returns_what_was_stored() {
    returns_what_was_stored(2, &[NAMES.as_slice(), &NAMES_2].concat()).await;
}

async fn returns_what_was_stored(version: u64, names: &[&str]) {
    let folder = copy(version);
    let store = folder.quick_store().await;
    let listed = store.list(Page::default()).await.unwrap();
    assert_eq!(listed.len(), names.len());
    for name in names {
        let expected = fs::read(golden(version).join(format!("{name}.expected.json"))).unwrap();
        let mut expected: Stored = serde_json::from_slice(&expected).unwrap();
        if version == 1 {
            // The expected files were written before the usage ledger existed. The store derives the rows of the ledger
            // from the nodes.
            for usage in expected.nodes.iter().filter_map(Node::usage) {
                expected.used.add(1, *usage);
            }
        }
        let stored = store.load(&id(name)).await.unwrap();
        assert_eq!(stored, expected, "{name}");
        for (stored, expected) in stored.nodes.iter().zip(&expected.nodes) {
            let text = |node: &Node| serde_json::to_string(&**node.message()).unwrap();
            assert_eq!(text(stored), text(expected));
        }
        Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap();
        let summary = listed.iter().find(|summary| summary.id == id(name)).unwrap();
        assert_eq!(
            (summary.version, summary.updated, summary.created),
            (stored.version, stored.updated, stored.created)
        );
        assert_eq!((&summary.title, &summary.damage), (&stored.state.title, &None));
        assert_eq!(summary.labels, stored.state.labels);
        // The conversation can still be continued.
        let version = commit(&store, &id(name), stored.version, 1000, "more").await;
        assert_eq!(store.load(&id(name)).await.unwrap().version, version);
    }
}

#[tokio::test]
async fn used_of_version_2_includes_the_deleted_conversation() {
    let folder = copy(2);
    let store = folder.quick_store().await;
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    let expected = fs::read(golden(2).join("used.json")).unwrap();
    assert_eq!(used, serde_json::from_slice::<Vec<UsageSum>>(&expected).unwrap());
    let gone = store.used(&labels("gone").into(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    assert_eq!(gone, [sum("of the deleted", 1, row(70, "of the deleted").usage)]);
    assert_eq!(store.usage(&id("ended"), Page::default()).await.unwrap(), [row(9, "m"), row(2, "m")]);
}

#[tokio::test]
async fn turns_of_version_2_have_the_expected_content() {
    let folder = copy(2);
    let store = folder.quick_store().await;
    check_flight(&store).await;
    fs::remove_file(folder.summary(&id("flight"))).unwrap();
    check_flight(&store).await;
}

fn labels(tenant: &str) -> Labels {
    Labels::new([("tenant", tenant)]).unwrap()
}

fn row(input: u64, model: &str) -> UsageRow {
    let usage = Usage::default().with_input(input).with_output(1).with_cost(0.5);
    UsageRow::new(RequestEnd::Failed, usage)
        .with_at(Timestamp(1_763_769_600_000))
        .with_step(2)
        .with_model(model.to_owned())
        .with_turn(Some("00112233445566778899aabbccddeeff".parse().unwrap()))
        .with_purpose(Purpose::Summary)
}

fn sum(model: &str, requests: u64, usage: Usage) -> UsageSum {
    let mut sum = UsageSum::new(Some(model.to_owned()));
    sum.add(requests, usage);
    sum
}

#[tokio::test]
async fn talk_of_version_1_has_the_expected_content() {
    // For this version, and only for this version, the expected values come from code instead of a file.
    let stored = fs::read(golden(1).join("talk.expected.json")).unwrap();
    let stored: Stored = serde_json::from_slice(&stored).unwrap();
    assert_eq!(stored.state, state());
    let mut nodes = nodes();
    for node in &mut nodes {
        let mut message = (**node.message()).clone();
        message.timestamp = Timestamp(1_763_769_600_000);
        let new = Node::new(node.id(), node.parent(), message);
        *node = node.usage().map_or(new.clone(), |usage| new.with_usage(*usage));
    }
    assert_eq!(stored.nodes, nodes);
    assert_eq!(stored.head, Some(node(6)));
}

fn state() -> StoredState {
    let options = Options::default()
        .with_max_tokens(2000)
        .with_temperature(0.7)
        .with_thinking(Effort::Low)
        .with_cache(CacheHint::Long)
        .with_extra([("seed", 7)]);
    StoredState::default()
        .with_model("anthropic:claude-sonnet-4-6")
        .with_system("Be brief.\n\u{c4}h\0")
        .with_options(options)
        .with_title("A talk \u{1f600}")
}

fn nodes() -> Vec<Node> {
    let search =
        ToolUse::new("toolu_1", "search", json!({"zebra": 1, "apple": [1.0, 5e-324, u64::MAX, null]}));
    let malformed = ToolUse::new("toolu_2", "search", json!({})).with_malformed("{\"a\":");
    let mut picture = Attachment::base64("image/png", "iVBORw0KGgo=").named("a.png");
    picture.metadata.insert("width".into(), json!(3));
    let mut answer = Message::assistant(vec![
        Content::from(Thinking::new("hm").with_signature("c2ln")),
        Thinking::default().with_redacted("ZW5j").into(),
        Text::new("Wait.\0").with_signature("dGV4").into(),
        search.clone().into(),
        malformed.clone().into(),
        ProviderItem::new("openai", json!({"type": "reasoning", "id": null})).into(),
    ]);
    answer.provider_data.insert("anthropic".into(), json!({"container": "c1"}));
    let results = vec![
        Content::from(ToolResult::ok(&search, picture.clone())),
        ToolResult::error(&malformed, "no JSON").into(),
    ];
    let usage = Usage::default()
        .with_input(7)
        .with_cache_read(1)
        .with_cache_write(2)
        .with_output(9)
        .with_reasoning(3)
        .with_cost(0.001_25);
    let page = Attachment::url("text/html", "https://example.com/");
    let messages = [
        Message::user(vec![
            Content::from(Text::new("Look: \u{1f468}\u{200d}\u{1f469}")),
            picture.into(),
            page.into(),
        ]),
        answer,
        Message::user(results),
        Message::assistant("Done."),
        Message::assistant("Done otherwise."),
        Message::user("A new root"),
    ];
    let parents = [None, Some(1), Some(2), Some(3), Some(3), None];
    let nodes = messages.into_iter().zip(parents).zip(1..).map(|((mut message, parent), number)| {
        message.timestamp = Timestamp(1_763_769_600_000);
        let new = Node::new(node(number), parent.map(node), message);
        if number == 4 { new.with_usage(usage) } else { new }
    });
    nodes.collect()
}

/// Writes the files of the current version. May be run only while this version is not released.
#[tokio::test]
#[ignore = "writes into the sources; for a new version of the format"]
async fn make_golden_files() {
    let folder = golden(2);
    let _ = fs::remove_dir_all(&folder);
    let store = FileSystemStore::builder(&folder).durability(Durability::Process).open().await.unwrap();
    let nodes = nodes();

    for name in ["empty", "talk", "torn"] {
        store.create(&id(name), WriteId::generate(), &StoredState::default()).await.unwrap();
    }
    for name in ["talk", "torn"] {
        let mut version = store.load(&id(name)).await.unwrap().version;
        let commits = [
            Commit::new(Some(node(4))).with_nodes(nodes[..4].to_vec()),
            Commit::new(Some(node(5))).with_nodes(nodes[4..5].to_vec()).with_cursors([(node(3), node(5))]),
            Commit::new(Some(node(4))).with_cursors([(node(3), node(4))]),
            Commit::new(Some(node(6))).with_nodes(nodes[5..].to_vec()).with_state(state()),
        ];
        for commit in commits {
            version = store.commit(&id(name), &Write::on(version), &commit).await.unwrap();
        }
        let titles = [StateChange::Title(None), StateChange::whole(state())];
        for title in titles {
            version = store.save_state(&id(name), &Write::on(version), &title).await.unwrap();
        }
        let last = Commit::new(Some(node(6)));
        store.commit(&id(name), &Write::on(version), &last).await.unwrap();
    }
    let torn = fs::File::options().write(true).open(folder.join("torn.jsonl")).unwrap();
    torn.set_len(torn.metadata().unwrap().len() - 30).unwrap();

    let mut version = store.create(&id("compacted"), WriteId::generate(), &state()).await.unwrap();
    let first = Commit::new(Some(node(4))).with_nodes(nodes[..4].to_vec());
    version = store.commit(&id("compacted"), &Write::on(version), &first).await.unwrap();
    for number in 0..40 {
        let title = StateChange::Title(Some(format!("{number} {}", "long ".repeat(500))));
        version = store.save_state(&id("compacted"), &Write::on(version), &title).await.unwrap();
    }
    let title = StateChange::title("short");
    version = store.save_state(&id("compacted"), &Write::on(version), &title).await.unwrap();
    store.load(&id("compacted")).await.unwrap();
    let more = Commit::new(Some(node(5))).with_nodes(nodes[4..5].to_vec()).with_cursors([(node(3), node(5))]);
    store.commit(&id("compacted"), &Write::on(version), &more).await.unwrap();

    let mut version = store.create(&id("erased"), WriteId::generate(), &state()).await.unwrap();
    let first = Commit::new(Some(node(6))).with_nodes(nodes.clone()).with_cursors([(node(3), node(5))]);
    version = store.commit(&id("erased"), &Write::on(version), &first).await.unwrap();
    let failed = Commit::new(Some(node(6))).with_run_end(cancelled());
    version = store.commit(&id("erased"), &Write::on(version), &failed).await.unwrap();
    let mut tree = Tree::hydrate(nodes, Some(node(6)), [(node(3), node(5))]).unwrap();
    let erased = tree.erase(node(3)).unwrap();
    store.erase(&id("erased"), &Write::on(version), &erased).await.unwrap();

    let labelled = StoredState::default().with_labels(labels("acme"));
    version = store.create(&id("ended"), WriteId::generate(), &labelled).await.unwrap();
    let failed = Commit::new(None).with_usage([row(2, "m"), row(9, "m")]).with_run_end(cancelled());
    version = store.commit(&id("ended"), &Write::on(version), &failed).await.unwrap();
    let change = StateChange::Labels(labels("other"));
    store.save_state(&id("ended"), &Write::on(version), &change).await.unwrap();

    let labelled = StoredState::default().with_labels(labels("gone"));
    version = store.create(&id("deleted"), WriteId::generate(), &labelled).await.unwrap();
    let failed = Commit::new(None).with_usage([row(70, "of the deleted")]);
    store.commit(&id("deleted"), &Write::on(version), &failed).await.unwrap();
    store.delete(&id("deleted")).await.unwrap();

    create_flight(&store).await;

    for name in [NAMES.as_slice(), &NAMES_2].concat() {
        let stored = store.load(&id(name)).await.unwrap();
        let text = serde_json::to_string_pretty(&stored).unwrap();
        fs::write(folder.join(format!("{name}.expected.json")), text).unwrap();
    }
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    fs::write(folder.join("used.json"), serde_json::to_string_pretty(&used).unwrap()).unwrap();
}

fn cancelled() -> RunEnd {
    serde_json::from_value(json!({
        "outcome": "cancelled",
        "unanswered": [Message::user("Anyone?").with_timestamp(Timestamp(1_763_769_600_000))],
    }))
    .unwrap()
}

//! Copies and exported documents contain not only messages, but also the usage ledger, the last run, the id of the next
//! node, and turns in flight.

use omni_agent::{
    message::{Message, RequestEnd, Timestamp, TurnId, Usage, UsageRow},
    provider::Options,
    run::{KnownPrompt, PendingUse, Prompt, PromptState, RunEnd, RunOutcome},
    store::{
        CopyOptions, MemoryStore, Page, Store, StoreError, copy_one,
        custom::{Change, Commit, TurnRecord, Write},
        export_json, import_json, import_json_with_settings,
    },
    subscription::EventId,
    tree::{Erased, Node},
};
use serde_json::json;

use crate::support::{Folder, create, id, node, says};

/// Creates a conversation with rows of cancelled and failed requests, an erased node, and the end of a run. The id of
/// its next node is 7.
async fn create_with_everything(store: &dyn Store) {
    let id = id("a");
    let version = create(store, &id).await;
    let row = |end, at| {
        UsageRow::new(end, Usage::default().with_input(at)).with_at(Timestamp(at)).with_model("m".to_owned())
    };
    let rows = [row(RequestEnd::Answered, 1), row(RequestEnd::Cancelled, 2)];
    let version =
        store.write(&id, &Write::on(version), &Change::Commit(says(1, "Hi").with_usage(rows))).await.unwrap();
    let answer = Node::new(node(2), Some(node(1)), Message::assistant("Hello"));
    let answered = Commit::new(Some(node(2))).with_nodes([answer]).with_usage([]);
    let version = store.write(&id, &Write::on(version), &Change::Commit(answered)).await.unwrap();
    let erased: Erased = serde_json::from_value(json!({ "nodes": [], "head": 2, "next": 7 })).unwrap();
    let version = store.write(&id, &Write::on(version), &Change::Erase(erased)).await.unwrap();
    let staged = Prompt::new("Later").with_options(Options::default().with_temperature(0.5));
    let end = RunEnd::new(RunOutcome::Cancelled)
        .with_unanswered(vec![Message::user("Anyone?").with_timestamp(Timestamp(9)).into()])
        .with_staged(vec![staged.into()]);
    let failed = Commit::new(Some(node(2))).with_usage([row(RequestEnd::Failed, 3)]).with_run_end(end);
    store.write(&id, &Write::on(version), &Change::Commit(failed)).await.unwrap();
}

async fn begin_turn(store: &dyn Store) {
    let version = store.summary(&id("a")).await.unwrap().version;
    let tool_use = omni_agent::message::ToolUse::new("1", "send", json!({}));
    let record = TurnRecord::new(1, "00112233445566778899aabbccddeeff".parse().unwrap(), "{}")
        .with_head(node(2))
        .with_waiting(vec![PendingUse::new(TurnId::default(), tool_use)]);
    let commit = Commit::new(Some(node(2))).with_usage([]).with_turn(record);
    store.write(&id("a"), &Write::on(version), &Change::Commit(commit)).await.unwrap();
}

async fn rows(store: &dyn Store) -> Vec<UsageRow> {
    store.usage(&id("a"), &Page::default()).await.unwrap()
}

async fn equal(from: &dyn Store, to: &dyn Store) {
    let (before, after) = (from.load(&id("a")).await.unwrap(), to.load(&id("a")).await.unwrap());
    assert_eq!(after.last_run, before.last_run);
    assert_eq!((after.next, after.head, after.used), (before.next, before.head, before.used));
    assert_eq!(rows(to).await, rows(from).await);
}

#[tokio::test]
async fn copy_keeps_the_ledger_the_last_run_and_the_next_id() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    let folder = Folder::new();
    let files = folder.quick_store().await;
    assert!(copy_one(&from, &files, &id("a")).await.unwrap());
    equal(&from, &files).await;
    assert!(!copy_one(&from, &files, &id("a")).await.unwrap(), "the same state is copied once");
    #[cfg(feature = "sqlite")]
    {
        let other = Folder::new();
        let sqlite = crate::sqlite::quick(&other).await;
        assert!(omni_agent::store::copy(&files, &sqlite, |_, _| {}).await.is_complete());
        equal(&from, &sqlite).await;
    }
    #[cfg(feature = "postgres")]
    if let Some(url) = crate::postgres::server::url() {
        let postgres = crate::postgres::server::fresh(url).open().await.unwrap();
        assert!(omni_agent::store::copy(&files, &postgres, |_, _| {}).await.is_complete());
        equal(&from, &postgres).await;
    }
}

#[tokio::test]
async fn copy_leaves_a_turn_in_flight_behind_unless_asked() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    begin_turn(&from).await;
    let (without, with) = (MemoryStore::new(), MemoryStore::new());
    copy_one(&from, &without, &id("a")).await.unwrap();
    assert_eq!(without.turn(&id("a")).await.unwrap(), None);
    equal(&from, &without).await;
    let options = CopyOptions::default().with_turns(true);
    assert!(options.copy(&from, &with, |_, _| {}).await.is_complete());
    let (before, after) = (from.turn(&id("a")).await.unwrap().unwrap(), with.turn(&id("a")).await.unwrap());
    assert_eq!(after.unwrap().record, before.record);
    equal(&from, &with).await;
    assert!(!options.copy_one(&from, &with, &id("a")).await.unwrap(), "the same state is copied once");
}

#[tokio::test]
async fn export_and_import_keep_the_ledger_the_last_run_and_the_next_id() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    begin_turn(&from).await;
    let text = export_json(&from, &id("a")).await.unwrap();
    assert!(text.contains("\"format_version\": 2"), "earlier versions can't read the ledger");
    let (whole, with) = (MemoryStore::new(), MemoryStore::new());
    import_json_with_settings(&whole, &text, None).await.unwrap();
    equal(&from, &whole).await;
    assert_eq!(whole.turn(&id("a")).await.unwrap(), None);
    CopyOptions::default().with_turns(true).import_json_with_settings(&with, &text, None).await.unwrap();
    assert!(with.turn(&id("a")).await.unwrap().is_some());

    let untrusted = MemoryStore::new();
    import_json(&untrusted, &text, None).await.unwrap();
    assert_eq!(rows(&untrusted).await, rows(&from).await);
    let end = untrusted.load(&id("a")).await.unwrap().last_run.unwrap();
    assert_eq!(end.unanswered[0].text(), "Anyone?");
    assert!(end.staged[0].options.is_empty(), "the options of an untrusted document are ignored");
    assert_eq!(untrusted.turn(&id("a")).await.unwrap(), None);
}

#[tokio::test]
async fn export_without_own_ledger_rows_has_version_1() {
    let store = MemoryStore::new();
    let version = create(&store, &id("a")).await;
    store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await.unwrap();
    let text = export_json(&store, &id("a")).await.unwrap();
    assert!(text.contains("\"format_version\": 1"), "{text}");
    let later = text.replace("\"format_version\": 1", "\"format_version\": 3");
    let error = import_json(&MemoryStore::new(), &later, None).await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownFormat { found: 3, known: 2, .. }), "{error:?}");
}

#[tokio::test]
async fn import_with_an_unreadable_turn_keeps_the_rest() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    begin_turn(&from).await;
    let text = export_json(&from, &id("a")).await.unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["conversation"]["turn"]["record"]["waiting"] = json!([{ "tool_use": "of a later version" }]);
    let to = MemoryStore::new();
    let options = CopyOptions::default().with_turns(true);
    options.import_json_with_settings(&to, &document.to_string(), None).await.unwrap();
    equal(&from, &to).await;
    assert_eq!(to.turn(&id("a")).await.unwrap(), None);
}

#[tokio::test]
async fn import_with_an_invalid_next_id_is_damaged_and_writes_nothing() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    let text = export_json(&from, &id("a")).await.unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["conversation"]["next"] = json!(u64::MAX);
    let text = document.to_string();
    let to = MemoryStore::new();
    for imported in [import_json(&to, &text, None).await, import_json_with_settings(&to, &text, None).await] {
        assert!(matches!(imported, Err(StoreError::Damaged { .. })), "{imported:?}");
    }
    assert!(to.summary(&id("a")).await.is_err());
}

#[tokio::test]
async fn import_drops_marks_and_keeps_known_prompts() {
    let from = MemoryStore::new();
    create_with_everything(&from).await;
    begin_turn(&from).await;
    let text = export_json(&from, &id("a")).await.unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mark = json!(EventId::new(7, 12));
    let known = KnownPrompt::new("p", PromptState::Ended { outcome: RunOutcome::Cancelled });
    let conversation = &mut document["conversation"];
    conversation["last_run"]["mark"] = mark.clone();
    conversation["last_run"]["prompts"] = json!([known]);
    conversation["turn"]["record"]["mark"] = mark.clone();
    conversation["mark"] = mark;
    let text = document.to_string();
    for options in [None, Some(false), Some(true)] {
        let to = MemoryStore::new();
        match options {
            None => import_json(&to, &text, None).await.unwrap(),
            Some(turns) => {
                let options = CopyOptions::default().with_turns(turns);
                options.import_json_with_settings(&to, &text, None).await.unwrap()
            }
        };
        let stored = to.load(&id("a")).await.unwrap();
        assert_eq!(stored.mark, None, "{options:?}: the mark belongs to the feed of the original");
        assert_eq!(stored.last_run.unwrap().prompts, std::slice::from_ref(&known), "{options:?}");
        assert_eq!(stored.turn.is_some(), options == Some(true));
    }
}

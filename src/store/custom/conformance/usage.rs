use std::sync::Arc;

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id, turn};
use crate::{
    message::{Message, MessageId, Purpose, RequestEnd, Timestamp, TurnId, Usage, UsageRow, UsageSum},
    provider::StopReason,
    run::{Prompt, RunEnd, RunOutcome},
    store::{Change, Commit, Filter, Labels, Page, Store, StoredState, Write},
    tree::Node,
};

const HOUR: u64 = 3_600_000;
/// The beginning of an hour in 2025.
const START: u64 = 1_763_769_600_000;

fn at(hours: u64) -> Timestamp {
    Timestamp(START + hours * HOUR)
}

fn row(input: u64, model: Option<&str>, at: Timestamp) -> UsageRow {
    let usage = Usage::default().with_input(input).with_output(1).with_cost(0.5);
    UsageRow { model: model.map(str::to_owned), ..UsageRow::new(RequestEnd::Answered, usage).with_at(at) }
}

/// Returns the store if it keeps a usage ledger.
fn keeping(subject: &dyn StoreUnderTest) -> Option<Arc<dyn Store>> {
    let store = subject.store();
    store.traits().usage.then_some(store)
}

async fn used(store: &dyn Store, filter: &Filter, from: u64, to: u64) -> Vec<(Option<String>, u64, u64)> {
    let sums = store.used(filter, at(from)..at(to)).await.expect("the ledger can be read");
    sums.into_iter().map(|UsageSum { model, requests, usage }| (model, requests, usage.input)).collect()
}

pub(super) async fn usage_rows_are_returned_newest_first(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let turn_id: TurnId = "00112233445566778899aabbccddeeff".parse().expect("a turn's id");
    let everything = UsageRow {
        usage: Usage {
            input: 1 << 40,
            cache_read: 2,
            cache_write: 3,
            output: 4,
            reasoning: 5,
            cost: Some(0.000_001),
        },
        ..row(0, Some("a model\u{0}\"'ü"), at(1))
    };
    let rows = [
        everything
            .with_turn(turn_id)
            .with_step(3)
            .with_message(MessageId::new("an id\u{0}\"'ü"))
            .with_purpose(Purpose::Summary),
        UsageRow { end: RequestEnd::Lost, usage: Usage::default(), ..row(0, None, at(2)) },
        row(7, Some("b"), at(3)),
    ];
    let commit = turn(1, 2).with_usage(rows[..2].to_vec());
    let version = committed(&*store, &id, version, &commit).await;
    committed(&*store, &id, version, &Commit::new(Some(node_id(2))).with_usage([rows[2].clone()])).await;
    let store = subject.another().await;
    let read = store.usage(&id, &Page::default()).await.expect("the ledger can be read");
    assert_eq!(read, [rows[2].clone(), rows[1].clone(), rows[0].clone()]);
    let part = store.usage(&id, &Page::first(1).from(1)).await.expect("the ledger can be read");
    assert_eq!(part, rows[1..2]);
    let used = store.load(&id).await.expect("loading succeeds").used;
    assert_eq!((used.requests, used.usage.input, used.usage.output), (3, (1 << 40) + 7, 5));
    let missing = store.usage(&conversation("missing"), &Page::default()).await;
    assert!(missing.expect_err("it does not exist").is_not_found());
    PassedOrSkipped::Made
}

pub(super) async fn commit_without_usage_rows_adds_a_row_per_node_with_usage(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let answer = Message::assistant("Yes").with_timestamp(at(5));
    let nodes = [
        Node::new(node_id(1), None, Message::user("No?")),
        Node::new(node_id(2), Some(node_id(1)), answer).with_usage(Usage::default().with_input(9)),
    ];
    committed(&*store, &id, version, &Commit::new(Some(node_id(2))).with_nodes(nodes)).await;
    let rows = store.usage(&id, &Page::default()).await.expect("the ledger can be read");
    let expected = UsageRow::new(RequestEnd::Answered, Usage::default().with_input(9)).with_at(at(5));
    assert_eq!(rows, [expected]);
    assert_eq!(used(&*store, &Filter::default(), 5, 6).await, [(None, 1, 9)]);
    PassedOrSkipped::Made
}

pub(super) async fn used_adds_up_the_matching_rows_by_model(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let labels = |tenant: &str| Labels::new([("tenant", tenant)]).expect("valid labels");
    for (id, tenant, input) in [("a", "x", 1), ("b", "x", 10), ("c", "y", 100)] {
        let state = StoredState::default().with_labels(labels(tenant));
        let id = conversation(id);
        let version =
            store.write(&id, &Write::first(), &Change::create(state)).await.expect("creating succeeds");
        let rows = [row(input, Some("m"), at(0)), row(input * 2, Some("m"), at(1)), row(input, None, at(2))];
        committed(&*store, &id, version, &turn(1, 2).with_usage(rows)).await;
    }
    let (all, x) = (Filter::default(), Filter::with(labels("x")));
    let (m, unknown) = (|n, input| (Some("m".to_owned()), n, input), |n, input| (None, n, input));
    assert_eq!(used(&*store, &all, 0, 3).await, [unknown(3, 111), m(6, 333)]);
    assert_eq!(used(&*store, &x, 0, 3).await, [unknown(2, 11), m(4, 33)]);
    assert_eq!(used(&*store, &x, 0, 1).await, [m(2, 11)], "the end of the period does not belong to it");
    assert_eq!(used(&*store, &x.clone().without("tenant"), 0, 3).await, []);
    for id in ["b", "c"] {
        store.delete(&conversation(id), None).await.expect("deleting succeeds");
        store.delete(&conversation(id), None).await.expect("deleting again succeeds");
    }
    assert_eq!(used(&*store, &all, 0, 3).await, [unknown(3, 111), m(6, 333)], "deleting keeps the sums");
    let other = subject.another().await;
    assert_eq!(used(&*other, &x, 0, 3).await, [unknown(2, 11), m(4, 33)]);
    assert_eq!(used(&*other, &x, 0, 1).await, [m(2, 11)]);
    let sums = other.used(&all, at(0)..at(3)).await.expect("the ledger can be read");
    assert_eq!(sums[1].usage.cost, Some(3.0));
    PassedOrSkipped::Made
}

pub(super) async fn used_by_a_deleted_sub_agent_keeps_the_label_of_its_root(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let by = |name: &str, value: &str| Filter::with(Labels::new([(name, value)]).expect("valid labels"));
    for (id, input) in [("sub-a", 1), ("sub-b", 10)] {
        let labels = [("tenant", "x"), ("omni.root", "r"), ("omni.parent", "p"), ("omni.call", id)];
        let state = StoredState::default().with_labels(Labels::new(labels).expect("valid labels"));
        let id = conversation(id);
        let version =
            store.write(&id, &Write::first(), &Change::create(state)).await.expect("creating succeeds");
        let rows = [row(input, None, at(0))];
        committed(&*store, &id, version, &turn(1, 2).with_usage(rows)).await;
    }
    assert_eq!(used(&*store, &by("omni.parent", "p"), 0, 1).await, [(None, 2, 11)]);
    store.delete(&conversation("sub-a"), None).await.expect("deleting succeeds");
    for (name, value) in [("tenant", "x"), ("omni.root", "r")] {
        assert_eq!(used(&*store, &by(name, value), 0, 1).await, [(None, 2, 11)], "{name}");
    }
    assert_eq!(used(&*store, &by("omni.parent", "p"), 0, 1).await, [(None, 1, 10)]);
    assert_eq!(used(&*store, &by("omni.call", "sub-a"), 0, 1).await, []);
    PassedOrSkipped::Made
}

pub(super) async fn last_run_is_returned_until_the_next_turn(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let end = RunEnd {
        outcome: RunOutcome::Cancelled,
        turn: Some("00112233445566778899aabbccddeeff".parse().expect("a turn's id")),
        unanswered: vec![Arc::new(Message::user("Anyone?\u{0}"))],
        staged: vec![Arc::new(Prompt::new("Later").with_id("p2"))],
        ..RunEnd::new(RunOutcome::Cancelled)
    };
    let failed = Commit::new(None).with_usage([]).with_run_end(end.clone());
    let version = committed(&*store, &id, version, &failed).await;
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!((stored.last_run.as_ref(), stored.head), (Some(&end), None));
    let version = committed(&*store, &id, version, &turn(1, 2).with_usage([])).await;
    assert_eq!(store.load(&id).await.expect("loading succeeds").last_run, None, "a turn was committed");
    let stopped = RunEnd { outcome: RunOutcome::Stopped { stop_reason: StopReason::Stop }, ..end };
    let interrupted = turn(3, 4).with_usage([]).with_run_end(stopped.clone());
    let version = committed(&*store, &id, version, &interrupted).await;
    assert_eq!(store.load(&id).await.expect("loading succeeds").last_run, Some(stopped.clone()));
    committed(&*store, &id, version, &Commit::new(Some(node_id(2))).with_usage([])).await;
    assert_eq!(store.load(&id).await.expect("loading succeeds").last_run, Some(stopped), "moves keep it");
    PassedOrSkipped::Made
}

pub(super) async fn usage_of_any_size_is_added_up_and_deleted(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let rows = (0..2000).map(|number| {
        let cost = if number < 1000 { f64::MAX } else { f64::MIN };
        let usage = Usage {
            input: u64::MAX,
            cache_read: u64::MAX,
            cache_write: u64::MAX,
            output: u64::MAX,
            reasoning: u64::MAX,
            cost: Some(cost),
        };
        UsageRow { usage, ..row(0, Some("a"), at(1)) }
    });
    let commit = turn(1, 2).with_usage(rows.collect::<Vec<_>>());
    committed(&*store, &id, version, &commit).await;
    let store = subject.another().await;
    let used = store.load(&id).await.expect("the conversation can be loaded").used;
    assert_eq!(used.requests, 2000);
    assert!(used.usage.input > 1 << 40 && used.usage.cost.is_none_or(f64::is_finite), "{used:?}");
    let requests = async || used_of(&*store).await.expect("the usage can be added up");
    assert_eq!(requests().await, 2000);
    store.delete(&id, None).await.expect("the conversation can be deleted");
    assert_eq!(requests().await, 2000, "the sums of a deleted conversation are kept");
    PassedOrSkipped::Made
}

/// Returns the number of requests of all conversations.
async fn used_of(store: &dyn Store) -> Result<u64, crate::store::StoreError> {
    let sums = store.used(&Filter::default(), at(0)..at(100)).await?;
    Ok(sums.iter().map(|sum| sum.requests).sum())
}

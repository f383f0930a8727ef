use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id, turn};
use crate::{
    message::{Message, Timestamp, ToolUse, TurnId},
    run::{BranchPoint, KnownPrompt, PendingUse, PromptState, RunEnd, RunOutcome, TurnRecord},
    store::{
        Change, Commit, ConversationId, Filter, Labels, Lease, Owner, Page, StateChange, Store, StoreError,
        StoredState, StoredTurn, TurnSummary, Turns, Version, Write,
    },
    subscription::EventId,
    tool::Decision,
    tree::{Erased, NodeId},
};

/// Returns the store if it keeps records of turns.
pub(super) fn keeping(subject: &dyn StoreUnderTest) -> Option<Arc<dyn Store>> {
    let store = subject.store();
    store.traits().turns.then_some(store)
}

pub(super) fn turn_id(number: u64) -> TurnId {
    format!("{number:032x}").parse().expect("a turn's id")
}

fn record(number: u64) -> TurnRecord {
    TurnRecord::new(1, turn_id(number), r#"{"phase":"preparing"}"#)
}

fn messages(texts: &[&str]) -> Vec<Arc<Message>> {
    texts.iter().map(|text| Arc::new(Message::user(*text).with_timestamp(Timestamp(7)))).collect()
}

fn tool_use(id: &str) -> ToolUse {
    ToolUse::new(id, "send", json!({ "to": "ann" }))
}

/// Returns a commit that contains this record and does not move the head.
fn recorded(record: TurnRecord) -> Commit {
    Commit::new(record.head).with_usage([]).with_turn(record)
}

pub(super) async fn turn_of(store: &dyn Store, id: &ConversationId) -> Option<StoredTurn> {
    let turn = store.turn(id).await.expect("the turn can be read");
    let stored = store.load(id).await.expect("loading succeeds");
    assert_eq!(stored.turn.as_deref(), turn.as_ref(), "both ways to read the turn agree");
    let summary = store.summary(id).await.expect("the summary can be read");
    let waiting = turn.as_ref().map_or(0, |turn| turn.record.waiting.len());
    assert_eq!((summary.in_flight, summary.waiting as usize), (turn.is_some(), waiting), "{summary:?}");
    if let Some(turn) = &turn {
        assert_eq!((turn.version, turn.damage.as_ref()), (stored.version, None));
    }
    turn
}

pub(super) async fn listed(store: &dyn Store, which: Turns, filter: &Filter, page: Page) -> Vec<TurnSummary> {
    let mut turns = store.turns(which, &(filter.clone(), page).into()).await.expect("turns can be listed");
    // Two lists of the same turns are made at different times.
    for turn in &mut turns {
        turn.now = Timestamp(0);
    }
    turns
}

async fn ids(store: &dyn Store, which: Turns) -> Vec<String> {
    let turns = listed(store, which, &Filter::default(), Page::default()).await;
    turns.into_iter().map(|turn| turn.id.to_string()).collect()
}

/// Waits until the clock has advanced, so that the next record has a later time. No timer is used, because a store may
/// run on a runtime without one.
pub(super) async fn tick() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(3) {
        tokio::task::yield_now().await;
    }
}

pub(super) async fn turn_in_flight_is_the_sum_of_its_records(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 2)).await;
    assert_eq!(turn_of(&*store, &id).await, None);
    let head = NodeId::new(2);
    let first = record(1)
        .with_head(head)
        .with_branch(BranchPoint::new(NodeId::new(1)).with_answers(node_id(1)))
        .with_append(messages(&["a\u{0}", "b"]))
        .with_prompts(vec![
            KnownPrompt::new("p1", PromptState::Ended { outcome: RunOutcome::Abandoned })
                .with_through(node_id(2)),
            KnownPrompt::new("p2", PromptState::InFlight { turn: turn_id(1) }),
        ])
        .with_spent(Duration::from_millis(1500));
    let version = committed(&*store, &id, version, &recorded(first.clone())).await;
    let one = turn_of(&*subject.another().await, &id).await.expect("a turn is in flight");
    assert_eq!(one.record.append, first.append);
    let same =
        |record: &TurnRecord| (record.branch, record.prompts.clone(), record.spent, record.core.clone());
    assert_eq!(same(&one.record), same(&first));
    let second = TurnRecord { core: "new".into(), lives: 3, orderly: true, ..record(1) };
    let second = second.with_head(head).with_keep(2);
    let version = committed(&*store, &id, version, &recorded(second)).await;
    let two = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert_eq!(two.record.append, first.append);
    assert_eq!((&*two.record.core, two.record.lives, two.record.orderly), ("new", 3, true));
    assert_eq!((two.record.branch, two.since), (None, one.since));
    let third = record(1).with_head(head).with_keep(1).with_append(messages(&["c", "d"]));
    let version = committed(&*store, &id, version, &recorded(third)).await;
    let three = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert_eq!(three.record.append, messages(&["a\u{0}", "c", "d"]));
    assert_eq!(three.since, one.since);
    // A record of another turn replaces the whole stored turn.
    let other = record(2).with_head(head).with_append(messages(&["e"]));
    committed(&*store, &id, version, &recorded(other)).await;
    let four = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert_eq!((four.record.turn, four.record.append), (turn_id(2), messages(&["e"])));
    assert_eq!(four.record.prompts, []);
    PassedOrSkipped::Made
}

pub(super) async fn record_keeps_the_time_of_the_last_write(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 2)).await;
    let before = store.summary(&id).await.expect("the conversation exists").updated;
    tick().await;
    let head = NodeId::new(2);
    let version = committed(&*store, &id, version, &recorded(record(1).with_head(head))).await;
    tick().await;
    let write = Write::on(version);
    let again = recorded(record(1).with_head(head).with_append(messages(&["a"])));
    let version = store.write(&id, &write, &Change::Commit(again.clone())).await.expect("a record succeeds");
    let repeated = store
        .write(&id, &write, &Change::Commit(again.clone()))
        .await
        .expect("a repetition returns the first result");
    assert_eq!(repeated, version);
    let stale = store.write(&id, &Write::on(write.base), &Change::Commit(again)).await;
    assert!(matches!(stale, Err(StoreError::Conflict { .. })), "{stale:?}");
    let summary = store.summary(&id).await.expect("the conversation exists");
    assert_eq!((summary.updated, summary.version), (before, version));
    assert_eq!(store.load(&id).await.expect("loading succeeds").updated, before);
    let in_flight = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert_eq!(in_flight.record.append, messages(&["a"]), "the repetition was not applied twice");
    assert!(
        in_flight.since > before && in_flight.recorded > in_flight.since,
        "{in_flight:?} after {before:?}"
    );
    let titled = StoredState::default().with_title("A");
    committed(&*store, &id, version, &recorded(record(1).with_head(head)).with_state(titled)).await;
    assert!(store.summary(&id).await.expect("the conversation exists").updated > before, "the state changed");
    PassedOrSkipped::Made
}

/// Records a turn in flight on the head `2`, and returns the next version.
async fn in_flight(store: &dyn Store, id: &ConversationId) -> Version {
    let version = committed(store, id, created(store, id).await, &turn(1, 2)).await;
    let record = record(1).with_head(NodeId::new(2)).with_append(messages(&["a"]));
    let record = record.with_waiting(vec![PendingUse::new(TurnId::default(), tool_use("1"))]);
    let version = committed(store, id, version, &recorded(record)).await;
    assert!(turn_of(store, id).await.is_some());
    version
}

pub(super) async fn turn_ends_with_its_run_with_nodes_or_with_a_move(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let head = NodeId::new(2);
    let end = RunEnd::new(RunOutcome::Discarded)
        .with_turn(turn_id(1))
        .with_through(node_id(2))
        .with_prompts(vec![KnownPrompt::new("p", PromptState::Ended { outcome: RunOutcome::Cancelled })]);
    let other_head = Commit { head: NodeId::new(1), ..recorded(record(1).with_head(head)) };
    let next = record(2).with_head(NodeId::new(4));
    let commits = [
        ("end", Commit::new(head).with_usage([]).with_run_end(end.clone()), false),
        ("nodes", turn(3, 4).with_usage([]), false),
        ("move", Commit::new(NodeId::new(1)), false),
        ("void", other_head, false),
        ("next", turn(3, 4).with_usage([]).with_turn(next), true),
        ("same", Commit::new(head).with_usage([]), true),
    ];
    for (name, commit, stays) in commits {
        let id = conversation(name);
        let version = in_flight(&*store, &id).await;
        committed(&*store, &id, version, &commit).await;
        let turn = turn_of(&*subject.another().await, &id).await;
        assert_eq!(turn.is_some(), stays, "{name}");
        let last_run = store.load(&id).await.expect("loading succeeds").last_run;
        assert_eq!(last_run, (name == "end").then(|| end.clone()), "{name}");
    }
    let mut open = ids(&*store, Turns::All).await;
    open.sort();
    assert_eq!(open, ["next", "same"]);
    assert_eq!(ids(&*store, Turns::Waiting).await, ["same"]);
    PassedOrSkipped::Made
}

pub(super) async fn record_on_another_head_begins_the_turn_again(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let waits = |head: Option<NodeId>| {
        record(1).with_head(head).with_waiting(vec![PendingUse::new(TurnId::default(), tool_use("use"))])
    };
    let version = committed(&*store, &id, created(&*store, &id).await, &recorded(waits(None))).await;
    let before = turn_of(&*store, &id).await.expect("a turn is in flight");
    tick().await;
    let commit = turn(1, 2).with_turn(waits(NodeId::new(2)));
    committed(&*store, &id, version, &commit).await;
    let after = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert!(after.since > before.since && after.since == after.recorded, "{after:?}");
    assert_eq!(after.waiting_since, [after.since]);
    let all = listed(&*store, Turns::All, &Filter::default(), Page::default()).await;
    let approvals: Vec<_> = all[0].approvals.iter().map(|approval| approval.since).collect();
    assert_eq!(
        (all[0].since, all[0].recorded, approvals),
        (after.since, after.recorded, vec![Some(after.since)])
    );
    PassedOrSkipped::Made
}

pub(super) async fn turn_stays_when_the_state_changes(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = in_flight(&*store, &id).await;
    let before = turn_of(&*store, &id).await.expect("a turn is in flight");
    let change = StateChange::title("New");
    let version =
        store.write(&id, &Write::on(version), &Change::State(change)).await.expect("a rename succeeds");
    let after = turn_of(&*store, &id).await.expect("a turn is in flight");
    assert_eq!(after, StoredTurn { version, ..before });
    let all = listed(&*store, Turns::Waiting, &Filter::default(), Page::default()).await;
    assert_eq!((all.len(), all[0].version, all[0].approvals.clone()), (1, version, after.approvals()));
    PassedOrSkipped::Made
}

pub(super) async fn approvals_keep_their_age_and_expire(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let first = PendingUse::new(TurnId::default(), tool_use("1"))
        .with_reason(json!({ "why": "money\u{0}" }))
        .with_limit(Duration::from_hours(1))
        .with_on_expiry(Decision::Execute);
    let second = PendingUse::new(TurnId::default(), tool_use("2"));
    let waits = |waiting: &[&PendingUse]| {
        recorded(record(1).with_waiting(waiting.iter().map(|waiting| (*waiting).clone()).collect()))
    };
    let version = committed(&*store, &id, version, &waits(&[&first])).await;
    let one = turn_of(&*store, &id).await.expect("a turn is in flight").approvals();
    let since = one[0].since.expect("it waits");
    let end = Some(Timestamp(since.0 + 3_600_000));
    let expected = PendingUse { turn: turn_id(1), since: Some(since), expires: end, ..first.clone() };
    assert_eq!(one, [expected]);
    assert_eq!(ids(&*store, Turns::Left).await, [""; 0], "it needs nothing but a decision");
    tick().await;
    let version = committed(&*store, &id, version, &waits(&[&second, &first])).await;
    let both = turn_of(&*subject.another().await, &id).await.expect("a turn is in flight").approvals();
    assert_eq!((&both[0].tool_use, &both[1]), (&second.tool_use, &one[0]), "in the order of the tool uses");
    assert!(both[0].since > one[0].since);
    let all = listed(&*store, Turns::Waiting, &Filter::default(), Page::default()).await;
    assert_eq!((&all[0].approvals, all[0].position.updated), (&both, since));
    // If a record changes the time limit of a pause, the new limit counts from the beginning of the pause.
    let short = first.clone().with_limit(Duration::ZERO);
    let version = committed(&*store, &id, version, &waits(&[&second, &short])).await;
    let expired = turn_of(&*store, &id).await.expect("a turn is in flight").approvals();
    assert_eq!((expired[1].since, expired[1].expires), (Some(since), Some(since)));
    assert_eq!(ids(&*store, Turns::Left).await, ["a"]);
    let version = committed(&*store, &id, version, &waits(&[&second])).await;
    assert_eq!(turn_of(&*store, &id).await.expect("a turn is in flight").approvals(), [both[0].clone()]);
    assert_eq!(ids(&*store, Turns::Left).await, [""; 0]);
    committed(&*store, &id, version, &waits(&[])).await;
    assert_eq!(ids(&*store, Turns::Waiting).await, [""; 0]);
    assert_eq!(ids(&*store, Turns::Left).await, ["a"], "it needs somebody to go on");
    PassedOrSkipped::Made
}

pub(super) async fn clock_is_that_of_the_records(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let version = committed(&*store, &id, version, &recorded(record(1))).await;
    let first = turn_of(&*store, &id).await.expect("a turn is in flight");
    let page = Page::first(1).into();
    let listed = store.turns(Turns::All, &page).await.expect("turns can be listed")[0].now;
    tick().await;
    committed(&*store, &id, version, &recorded(record(1))).await;
    let second = turn_of(&*store, &id).await.expect("a turn is in flight");
    let times = [first.recorded, first.now, listed, second.recorded, second.now];
    assert!(times.is_sorted(), "{times:?}");
    PassedOrSkipped::Made
}

pub(super) async fn turns_are_listed_by_age_and_labels(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let labels = |tenant: &str| Labels::new([("tenant", tenant)]).expect("valid labels");
    let begin = async |name: &str, tenant: &str, waiting: Vec<PendingUse>| {
        let (id, state) = (conversation(name), StoredState::default().with_labels(labels(tenant)));
        let version =
            store.write(&id, &Write::first(), &Change::create(state)).await.expect("creating succeeds");
        let version = committed(&*store, &id, version, &recorded(record(1).with_waiting(waiting))).await;
        tick().await;
        (id, version)
    };
    let waits = |id: &str| vec![PendingUse::new(TurnId::default(), tool_use(id))];
    let (c, c_version) = begin("c", "x", waits("1")).await;
    begin("b", "x", Vec::new()).await;
    begin("a", "y", waits("1")).await;
    begin("d", "x", vec![PendingUse::new(TurnId::default(), tool_use("1")).with_survives(false)]).await;
    created(&*store, &conversation("idle")).await;
    assert_eq!(ids(&*store, Turns::All).await, ["c", "b", "a", "d"], "the oldest is first");
    assert_eq!(ids(&*store, Turns::Waiting).await, ["c", "a"]);
    assert_eq!(ids(&*store, Turns::Left).await, ["b", "d"], "a pause that did not survive needs somebody");
    let x = Filter::with(labels("x"));
    let of_x = listed(&*store, Turns::All, &x, Page::default()).await;
    assert_eq!(of_x.iter().map(|turn| turn.id.as_str()).collect::<Vec<_>>(), ["c", "b", "d"]);
    assert!(of_x.iter().all(|turn| turn.labels == labels("x") && turn.turn == turn_id(1)), "{of_x:?}");
    let waiting = listed(&*store, Turns::Waiting, &x, Page::default()).await;
    let uses: Vec<_> = waiting[0].approvals.iter().map(|pause| &pause.tool_use).collect();
    assert_eq!((waiting.len(), &waiting[0].id, uses), (1, &c, vec![&tool_use("1")]));
    assert_eq!(listed(&*store, Turns::All, &x.clone().without("tenant"), Page::default()).await, []);
    for which in [Turns::All, Turns::Waiting, Turns::Left] {
        let all = listed(&*store, which, &Filter::default(), Page::default()).await;
        let (mut page, mut paged) = (Page::first(1), Vec::new());
        while let [turn] = &*listed(&*store, which, &Filter::default(), page.clone()).await {
            paged.push(turn.clone());
            page = page.after(turn);
        }
        assert_eq!(paged, all, "{which:?}");
        let rest = listed(&*store, which, &Filter::default(), Page::first(5).from(1)).await;
        assert_eq!(rest, all[1..], "{which:?}");
    }
    // Waiting turns are sorted by the age of their oldest open approval, not by the age of the turn.
    let record = record(1).with_waiting(waits("2"));
    committed(&*store, &c, c_version, &recorded(record)).await;
    assert_eq!(ids(&*subject.another().await, Turns::Waiting).await, ["a", "c"]);
    assert_eq!(ids(&*store, Turns::All).await[0], "c");
    PassedOrSkipped::Made
}

pub(super) async fn turns_of_an_owner_are_not_left(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let lease = store.acquire(&id, &Owner::new("ann")).await.expect("it has no owner");
    if lease.lasts.is_none() {
        return PassedOrSkipped::Skipped;
    }
    let waiting = vec![PendingUse::new(TurnId::default(), tool_use("1")).with_survives(false)];
    let commit = recorded(record(1).with_waiting(waiting));
    let version = store
        .write(&id, &Write::on(version).under(&lease), &Change::Commit(commit.clone()))
        .await
        .expect("ann may write");
    assert_eq!(ids(&*store, Turns::Left).await, [""; 0]);
    let open = listed(&*store, Turns::Waiting, &Filter::default(), Page::default()).await;
    assert_eq!((open.len(), open[0].owner.clone()), (1, Some(Owner::new("ann"))));
    let newer = store.acquire(&id, &Owner::new("ann")).await.expect("the same owner may acquire it");
    let late = store.write(&id, &Write::on(version).under(&lease), &Change::Commit(commit)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    let mark = Some(EventId::new(7, 1));
    store.release(&id, &lease, mark).await.expect("releasing an ended lease succeeds");
    assert_eq!(store.load(&id).await.expect("loading succeeds").mark, None, "the lease had ended");
    store.release(&id, &newer, mark).await.expect("releasing succeeds");
    store.release(&id, &newer, Some(EventId::new(9, 9))).await.expect("releasing again succeeds");
    assert_eq!(store.load(&id).await.expect("loading succeeds").mark, mark);
    assert_eq!(store.summary(&id).await.expect("the conversation exists").owner, None);
    assert_eq!(ids(&*store, Turns::Left).await, ["a"]);
    assert_eq!(ids(&*store, Turns::Waiting).await, [""; 0], "the pause has ended with its process");
    PassedOrSkipped::Made
}

pub(super) async fn mark_is_returned_until_the_next_write(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let mark = |number| Some(EventId::new(0xabc, number));
    let found = async || subject.another().await.load(&id).await.expect("loading succeeds").mark;
    let version = committed(&*store, &id, version, &recorded(record(1).with_mark(mark(1)))).await;
    assert_eq!(found().await, mark(1));
    let version = store
        .write(&id, &Write::on(version), &Change::State(StateChange::title("New")))
        .await
        .expect("a rename succeeds");
    assert_eq!(found().await, None, "another write followed");
    let end = RunEnd::new(RunOutcome::Cancelled).with_mark(EventId::new(0xabc, 2));
    let version = committed(&*store, &id, version, &Commit::new(None).with_run_end(end)).await;
    assert_eq!(found().await, mark(2));
    let last_run = store.load(&id).await.expect("loading succeeds").last_run.expect("the run has ended");
    assert_eq!(last_run.mark, None, "the mark of an end is void after the next write");
    let owner = Owner::new("ann");
    let lease = store.acquire(&id, &owner).await.expect("it has no owner");
    store.release(&id, &lease, None).await.expect("releasing succeeds");
    assert_eq!(found().await, mark(2), "a release without a mark keeps the earlier one");
    let lease = store.acquire(&id, &owner).await.expect("it has no owner");
    store.release(&id, &lease, mark(3)).await.expect("releasing succeeds");
    assert_eq!(found().await, mark(3));
    assert_eq!(store.summary(&id).await.expect("the conversation exists").version, version);
    let lease: Lease = store.acquire(&id, &owner).await.expect("it has no owner");
    assert_eq!(found().await, mark(3), "taking a conversation over changes nothing");
    let write = Write::on(version).under(&lease);
    store.write(&id, &write, &Change::Commit(Commit::new(None))).await.expect("the owner may write");
    assert_eq!(found().await, None);
    store.release(&id, &lease, None).await.expect("releasing succeeds");
    PassedOrSkipped::Made
}

pub(super) async fn turn_is_removed_by_erase_and_delete(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = in_flight(&*store, &id).await;
    let erased = Erased { nodes: vec![node_id(2)], head: NodeId::new(1), next: node_id(3), title: true };
    match store.write(&id, &Write::on(version), &Change::Erase(erased)).await {
        Err(StoreError::Unsupported { .. }) => assert!(!store.traits().erase),
        result => {
            result.expect("erasing succeeds");
            assert_eq!(turn_of(&*store, &id).await, None);
        }
    }
    let gone = conversation("b");
    in_flight(&*store, &gone).await;
    store.delete(&gone, None).await.expect("deleting succeeds");
    assert!(store.turn(&gone).await.expect_err("it is deleted").is_not_found());
    created(&*store, &gone).await;
    assert_eq!(turn_of(&*store, &gone).await, None, "a later conversation has no turn");
    PassedOrSkipped::Made
}

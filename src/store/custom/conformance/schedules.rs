use std::{sync::Arc, time::Duration};

use super::{
    PassedOrSkipped, StoreUnderTest, committed, conversation, created,
    turns::{keeping, turn_id},
};
use crate::{
    message::{Timestamp, ToolUse, TurnId},
    run::{Missed, PendingUse, Prompt, Schedule, TurnRecord},
    store::{
        Change, Commit, ConversationId, Filter, Labels, Listing, Page, ScheduleChange, ScheduleEntry,
        Scheduled, Schedules, Store, StoreError, StoredState, Version, Write,
    },
};

fn scheduling(subject: &dyn StoreUnderTest) -> Option<Arc<dyn Store>> {
    let store = subject.store();
    store.traits().schedules.then_some(store)
}

fn entry(due: u64, rev: u32) -> ScheduleEntry {
    let prompt = Prompt::new("Write the report \u{0}.").with_max_steps(7);
    let schedule =
        Schedule::every(Duration::from_hours(1), prompt).missed(Missed::Skip(Duration::from_mins(5)));
    ScheduleEntry::new(Timestamp(due), rev, schedule)
}

async fn change(
    store: &dyn Store,
    id: &ConversationId,
    change: ScheduleChange,
) -> Result<Version, StoreError> {
    store.write(id, &Write::first(), &Change::schedule(change)).await
}

async fn set(store: &dyn Store, id: &ConversationId, name: &str, due: u64, rev: u32) -> Version {
    let set = ScheduleChange::new(name, Some(entry(due, rev)));
    change(store, id, set).await.expect("a schedule can be stored")
}

async fn listed(store: &dyn Store, which: Schedules, listing: impl Into<Listing>) -> Vec<Scheduled> {
    let list = store.schedules(&which, &listing.into()).await.expect("schedules can be listed");
    assert!(list.now > Timestamp(1_000_000_000_000), "an empty list has a time too");
    list.schedules
}

fn names(listed: &[Scheduled]) -> Vec<String> {
    listed.iter().map(|own| format!("{}/{}@{}", own.id, own.name, own.due.0)).collect()
}

pub(super) async fn schedules_are_listed_by_time_and_labels(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = scheduling(subject) else { return PassedOrSkipped::Skipped };
    assert_eq!(listed(&*store, Schedules::All, Page::default()).await, []);
    let labels = Labels::new([("tenant", "x")]).expect("valid labels");
    let (a, b, far) = (conversation("a"), conversation("b"), 253_402_300_000_000);
    let state = StoredState::default().with_labels(labels.clone());
    let version = store.write(&a, &Write::first(), &Change::create(state)).await.expect("creating succeeds");
    created(&*store, &b).await;
    for (id, name, due) in
        [(&b, "one", 7), (&a, "z", 7), (&a, "later", far), (&a, "first", 5), (&a, "B", 7), (&b, "two", 9)]
    {
        set(&*store, id, name, due, u32::MAX).await;
    }
    assert_eq!(store.summary(&a).await.expect("it exists").version, version, "the version stays");
    let another = subject.another().await;
    let all = listed(&*another, Schedules::All, Page::default()).await;
    let order = ["a/first@5", "a/B@7", "a/z@7", "b/one@7", "b/two@9", &format!("a/later@{far}")];
    assert_eq!(names(&all), order);
    let ScheduleEntry { rev, schedule, .. } = entry(5, u32::MAX);
    assert_eq!((all[0].rev, &all[0].schedule, &all[0].damage), (rev, &schedule, &None));
    assert_eq!(names(&listed(&*store, Schedules::Of(b), Page::default()).await), ["b/one@7", "b/two@9"]);
    let due = listed(&*store, Schedules::Within(Duration::from_mins(1)), Page::default()).await;
    assert_eq!(names(&due), order[..5], "a later time is left out");
    let of_x = listed(&*store, Schedules::All, Filter::with(labels.clone())).await;
    assert_eq!(names(&of_x), [order[0], order[1], order[2], order[5]]);
    let without = Filter::with(labels).without("tenant");
    assert_eq!(listed(&*store, Schedules::All, without).await, []);
    // A page contains all schedules of a conversation for one time.
    let (mut page, mut pages) = (Page::first(1), Vec::new());
    loop {
        let next = listed(&*store, Schedules::All, page.clone()).await;
        let Some(last) = next.last() else { break };
        page = page.after(last);
        pages.push(names(&next).join(" "));
    }
    assert_eq!(pages, ["a/first@5", "a/B@7 a/z@7", "b/one@7", "b/two@9", order[5]]);
    PassedOrSkipped::Made
}

pub(super) async fn schedule_moves_only_from_its_stored_time(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = scheduling(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let missing = ScheduleChange::new("r", Some(entry(5, 1)));
    let error = change(&*store, &id, missing.clone()).await.expect_err("there is no conversation");
    assert!(error.is_not_found(), "{error:?}");
    let version = created(&*store, &id).await;
    let moved = |due, rev| ScheduleChange::new("r", Some(entry(due + 10, rev))).with_was(Timestamp(due), rev);
    let conflicts = async |change: ScheduleChange| match self::change(&*store, &id, change).await {
        Err(StoreError::Conflict { current, .. }) => assert_eq!(current, version),
        other => panic!("{other:?}"),
    };
    conflicts(moved(5, 1)).await;
    assert_eq!(set(&*store, &id, "r", 5, 1).await, version);
    conflicts(moved(5, 2)).await;
    conflicts(moved(6, 1)).await;
    conflicts(ScheduleChange::new("r", None).with_was(Timestamp(5), 2)).await;
    assert_eq!(change(&*store, &id, moved(5, 1)).await.expect("it is the stored one"), version);
    conflicts(moved(5, 1)).await;
    set(&*store, &id, "r", 15, 9).await;
    conflicts(moved(15, 1)).await;
    let stored = listed(&*store, Schedules::All, Page::default()).await;
    assert_eq!((names(&stored), stored[0].rev), (vec!["a/r@15".to_owned()], 9));
    let removed = ScheduleChange::new("r", None).with_was(Timestamp(15), 9);
    assert_eq!(change(&*store, &id, removed).await.expect("it is the stored one"), version);
    let again = ScheduleChange::new("r", None);
    assert_eq!(change(&*store, &id, again).await.expect("nothing is to be removed"), version);
    assert_eq!(listed(&*store, Schedules::All, Page::default()).await, []);
    PassedOrSkipped::Made
}

pub(super) async fn schedules_of_a_turn_that_waits_are_not_due(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let (Some(store), Some(_)) = (scheduling(subject), keeping(subject)) else {
        return PassedOrSkipped::Skipped;
    };
    let id = conversation("a");
    let mut version = created(&*store, &id).await;
    set(&*store, &id, "r", 5, 1).await;
    let record = TurnRecord::new(1, turn_id(1), "{}");
    let waits = PendingUse::new(TurnId::default(), ToolUse::new("1", "send", serde_json::Value::Null));
    for (waiting, is_due) in [(vec![waits], false), (Vec::new(), true)] {
        let commit = Commit::new(None).with_usage([]).with_turn(record.clone().with_waiting(waiting));
        version = committed(&*store, &id, version, &commit).await;
        let due = listed(&*store, Schedules::Within(Duration::ZERO), Page::default()).await;
        assert_eq!(!due.is_empty(), is_due);
        assert_eq!(listed(&*store, Schedules::All, Page::default()).await.len(), 1);
    }
    PassedOrSkipped::Made
}

pub(super) async fn schedules_are_deleted_with_their_conversation(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = scheduling(subject) else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    created(&*store, &id).await;
    set(&*store, &id, "r", 5, 1).await;
    store.delete(&id, None).await.expect("deleting succeeds");
    created(&*store, &id).await;
    assert_eq!(listed(&*store, Schedules::All, Page::default()).await, []);
    PassedOrSkipped::Made
}

use std::sync::Arc;

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, turn};
use crate::store::{
    Change, Commit, Filter, Labels, Page, StateChange, Store, StoreError, StoredState, Summary, Version,
    Write,
};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().copied()).expect("the suite's own labels are valid")
}

fn filter(pairs: &[(&str, &str)]) -> Filter {
    Filter::with(labels(pairs))
}

async fn labelled(store: &dyn Store, id: &str, pairs: &[(&str, &str)]) -> Version {
    let state = StoredState::default().with_title(id).with_labels(labels(pairs));
    store.write(&conversation(id), &Write::first(), &Change::create(state)).await.expect("creating succeeds")
}

async fn list(store: &dyn Store, filter: &Filter, page: Page) -> Vec<Summary> {
    store.list(&(filter.clone(), page).into()).await.expect("listing by labels succeeds")
}

/// Returns the store if it supports lists by labels.
async fn labelling(subject: &dyn StoreUnderTest) -> Option<Arc<dyn Store>> {
    let store = subject.store();
    let listed = store.list(&filter(&[("tenant", "a")]).into()).await;
    match listed {
        Err(StoreError::Unsupported { .. }) => {
            assert!(!store.traits().labels, "a store with labels filters by them");
            None
        }
        listed => {
            assert!(store.traits().labels, "a store without labels refuses a filter");
            assert_eq!(listed.expect("listing by labels succeeds"), []);
            Some(store)
        }
    }
}

pub(super) async fn labels_are_kept_by_every_other_write(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = labelling(subject).await else { return PassedOrSkipped::Skipped };
    let (id, expected) = (conversation("a"), labels(&[("tenant", "a"), ("kind", "Ünïcode \"quoted\"")]));
    let mut version = labelled(&*store, "a", &[("tenant", "a"), ("kind", "Ünïcode \"quoted\"")]).await;
    let check = async || {
        let stored = subject.another().await.load(&id).await.expect("loading succeeds");
        assert_eq!(stored.state.labels, expected);
        let summary = store.summary(&id).await.expect("the conversation exists");
        assert_eq!((summary.labels.clone(), summary.title.as_deref()), (expected.clone(), Some("b")));
        assert_eq!(list(&*store, &filter(&[("tenant", "a")]), Page::default()).await, [summary]);
    };
    version = store
        .write(&id, &Write::on(version), &Change::State(StateChange::title("b")))
        .await
        .expect("a title");
    check().await;
    version = committed(&*store, &id, version, &turn(1, 2)).await;
    check().await;
    let state = StoredState::default().with_title("b").with_labels(expected.clone()).with_model("m");
    version = store
        .write(&id, &Write::on(version), &Change::State(StateChange::whole(state.clone())))
        .await
        .expect("a state");
    check().await;
    committed(&*store, &id, version, &turn(3, 4).with_state(state)).await;
    check().await;
    PassedOrSkipped::Made
}

pub(super) async fn label_change_replaces_all_labels(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = labelling(subject).await else { return PassedOrSkipped::Skipped };
    let id = conversation("a");
    let version = labelled(&*store, "a", &[("tenant", "a"), ("user", "ann")]).await;
    let change = StateChange::Labels(labels(&[("user", "ben"), ("kind", "x")]));
    let write = Write::on(version);
    let changed =
        store.write(&id, &write, &Change::State(change.clone())).await.expect("changing labels succeeds");
    assert_eq!(changed, version.next());
    let repeated = store.write(&id, &write, &Change::State(change)).await;
    assert_eq!(repeated.expect("a repetition returns the first result"), changed);
    let stored = store.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.state.labels, labels(&[("user", "ben"), ("kind", "x")]));
    assert_eq!(stored.state.title.as_deref(), Some("a"), "the rest of the state stays");
    assert_eq!(list(&*store, &filter(&[("tenant", "a")]), Page::default()).await, []);
    assert_eq!(list(&*store, &filter(&[("user", "ann")]), Page::default()).await, []);
    let found = list(&*store, &filter(&[("user", "ben")]), Page::default()).await;
    assert_eq!(found, [store.summary(&id).await.expect("the conversation exists")]);
    let none = StateChange::Labels(Labels::default());
    store.write(&id, &Write::on(changed), &Change::State(none)).await.expect("removing labels succeeds");
    assert_eq!(list(&*store, &filter(&[("user", "ben")]), Page::default()).await, []);
    assert_eq!(store.load(&id).await.expect("loading succeeds").state.labels, Labels::default());
    PassedOrSkipped::Made
}

pub(super) async fn list_by_labels_contains_exactly_the_matches(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let Some(store) = labelling(subject).await else { return PassedOrSkipped::Skipped };
    for number in 0..24_u32 {
        let tenant = if number % 3 == 0 { "a" } else { "b" };
        let mut pairs = vec![("tenant", tenant)];
        pairs.extend((number % 4 == 0).then_some(("kind", "x")));
        pairs.extend((number % 6 == 0).then_some(("archived", "yes")));
        labelled(&*store, &format!("n{number}"), &pairs).await;
    }
    created(&*store, &conversation("plain")).await;
    let all = store.list(&Page::first(100).into()).await.expect("listing succeeds");
    let filters = [
        Filter::default(),
        filter(&[("tenant", "a")]),
        filter(&[("tenant", "A")]),
        filter(&[("tenant", "a"), ("kind", "x")]),
        filter(&[("tenant", "b")]).without("archived").without("kind"),
        Filter::default().without("tenant"),
        Filter::default().without("archived"),
        Filter::default().without("arch\0ived").without(""),
        filter(&[("kind", "a")]),
        filter(&[("tenant", "a' OR '1'='1")]),
    ];
    for filter in &filters {
        let expected: Vec<_> =
            all.iter().filter(|summary| filter.matches(&summary.labels)).cloned().collect();
        assert_eq!(list(&*store, filter, Page::first(100)).await, expected, "{filter:?}");
        assert_eq!(list(&*store, filter, Page::first(3).from(2)).await, page(&expected, 2, 3), "{filter:?}");
        for (place, summary) in expected.iter().enumerate() {
            let after = Page::first(4).after(summary);
            assert_eq!(list(&*store, filter, after).await, page(&expected, place + 1, 4), "{filter:?}");
        }
    }
    store.delete(&conversation("n0"), None).await.expect("deleting succeeds");
    assert_eq!(list(&*store, &filters[1], Page::first(100)).await.len(), 7, "a deleted one is not listed");
    PassedOrSkipped::Made
}

fn page(all: &[Summary], from: usize, limit: usize) -> Vec<Summary> {
    all.iter().skip(from).take(limit).cloned().collect()
}

pub(super) async fn commit_without_an_update_keeps_the_time(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    use crate::message::{RequestEnd, Usage, UsageRow};

    let store = subject.store();
    if !store.traits().usage {
        return PassedOrSkipped::Skipped;
    }
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 2)).await;
    let before = store.load(&id).await.expect("loading succeeds");
    super::lists::tick().await;
    let row = UsageRow::new(RequestEnd::Failed, Usage::default().with_input(1));
    let record = Commit::new(before.head).with_usage([row]);
    assert_eq!(committed(&*store, &id, version, &record).await, version.next());
    let after = store.load(&id).await.expect("loading succeeds");
    assert_eq!((after.updated, after.head), (before.updated, before.head));
    assert_eq!(after.version, version.next());
    super::lists::tick().await;
    committed(&*store, &id, after.version, &Commit::new(None).with_usage([])).await;
    assert!(store.load(&id).await.expect("loading succeeds").updated > before.updated, "a move is an update");
    PassedOrSkipped::Made
}

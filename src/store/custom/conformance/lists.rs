use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Semaphore;

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, turn};
use crate::{
    message::Timestamp,
    store::{Change, ConversationId, Page, StateChange, Store, Summary, Write},
};

/// Waits until the clock has advanced, so that the next write is later.
pub(super) async fn tick() {
    let now = Timestamp::now();
    while Timestamp::now() <= Timestamp(now.0 + 1) {
        tokio::task::yield_now().await;
    }
}

async fn list(store: &dyn Store, page: Page) -> Vec<Summary> {
    store.list(&page.into()).await.expect("listing succeeds")
}

fn ids(summaries: &[Summary]) -> Vec<&str> {
    summaries.iter().map(|summary| summary.id.as_str()).collect()
}

pub(super) async fn list_puts_the_last_write_first(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    assert_eq!(list(&*store, Page::default()).await, []);
    let (a, b, c) = (conversation("a"), conversation("b"), conversation("c"));
    let mut versions = Vec::new();
    for id in [&c, &a, &b] {
        versions.push(created(&*store, id).await);
        tick().await;
    }
    assert_eq!(ids(&list(&*store, Page::default()).await), ["b", "a", "c"], "creating counts as a write");
    let title = StateChange::title("A");
    store
        .write(&a, &Write::on(versions[1]), &Change::State(title.clone()))
        .await
        .expect("saving a title succeeds");
    tick().await;
    assert_eq!(
        ids(&list(&*store, Page::default()).await),
        ["a", "b", "c"],
        "saving a title counts as a write"
    );
    committed(&*store, &c, versions[0], &turn(1, 2)).await;
    tick().await;
    let listed = list(&*subject.another().await, Page::default()).await;
    assert_eq!(ids(&listed), ["c", "a", "b"], "a commit counts as a write");
    store.load(&b).await.expect("the conversation exists");
    assert_eq!(list(&*store, Page::default()).await, listed, "loading does not count as a write");
    let stale = store.write(&b, &Write::on(versions[2].next()), &Change::Commit(turn(1, 2))).await;
    assert!(stale.is_err());
    assert_eq!(list(&*store, Page::default()).await, listed, "a rejected write does not count");

    for summary in &listed {
        assert!(summary.created <= summary.updated, "{summary:?}");
        assert_eq!(summary.damage, None);
    }
    assert_eq!((listed[1].title.as_deref(), listed[2].title.as_deref()), (Some("A"), None));
    PassedOrSkipped::Made
}

pub(super) async fn list_in_pages_contains_each_once(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    for number in 0..23 {
        created(&*store, &conversation(&format!("n{number}"))).await;
    }
    let all = list(&*store, Page::first(100)).await;
    assert_eq!(all.len(), 23);
    let ordered = all.is_sorted_by(|a, b| (b.updated, &a.id) < (a.updated, &b.id));
    assert!(ordered, "the list is not ordered by last write, newest first, then by id: {all:?}");
    let mut page = Page::first(5);
    let mut paged = Vec::new();
    loop {
        let part = list(&*store, page.clone()).await;
        assert!(part.len() <= 5);
        if part.is_empty() {
            break;
        }
        paged.extend(part);
        page = page.next();
    }
    assert_eq!(paged, all);
    assert_eq!(list(&*store, Page::first(3).from(21)).await, all[21..]);
    assert_eq!(list(&*store, Page::first(0)).await, []);
    assert_eq!(list(&*store, Page::first(5).from(1_000_000)).await, []);
    assert_eq!(list(&*store, Page::first(usize::MAX).from(20)).await, all[20..]);
    PassedOrSkipped::Made
}

pub(super) async fn list_after_a_conversation_continues_there(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    for number in 0..23 {
        created(&*store, &conversation(&format!("n{number}"))).await;
    }
    let all = list(&*store, Page::first(100)).await;
    for (place, summary) in all.iter().enumerate() {
        let page = Page::first(100).after(summary);
        assert_eq!(list(&*store, page.clone()).await, all[place + 1..], "after {}", summary.id);
        assert_eq!(list(&*store, page.from(21)).await, all[(place + 22).min(23)..], "21 later");
    }
    let mut page = Page::first(5);
    let mut paged = Vec::new();
    loop {
        let part = list(&*store, page.clone()).await;
        assert!(part.len() <= 5);
        let Some(last) = part.last() else { break };
        page = page.after(last);
        paged.extend(part);
    }
    assert_eq!(paged, all);
    assert_eq!(list(&*store, Page::first(0).after(&all[3])).await, []);
    PassedOrSkipped::Made
}

pub(super) async fn list_after_a_conversation_during_writes_contains_each_unchanged_once(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let mut versions = Vec::new();
    for number in 0..12 {
        versions.push(created(&*store, &conversation(&format!("n{number}"))).await);
        tick().await;
    }
    // The order is newest first: n11 to n0.
    let first = list(&*store, Page::first(4)).await;
    assert_eq!(ids(&first), ["n11", "n10", "n9", "n8"]);
    // After the first page is read, its last entry moves to the front. Then one entry on the page and one entry after
    // the page are deleted, and a new conversation is added.
    let other = subject.another().await;
    committed(&*other, &conversation("n8"), versions[8], &turn(1, 2)).await;
    for deleted in ["n10", "n6"] {
        other.delete(&conversation(deleted), None).await.expect("deleting succeeds");
    }
    created(&*other, &conversation("new")).await;
    let second = list(&*store, Page::first(4).after(&first[3])).await;
    assert_eq!(ids(&second), ["n7", "n5", "n4", "n3"]);
    other.delete(&conversation("n3"), None).await.expect("deleting succeeds");
    let third = list(&*store, Page::first(4).after(&second[3])).await;
    assert_eq!(ids(&third), ["n2", "n1", "n0"]);
    PassedOrSkipped::Made
}

pub(super) async fn list_during_writes_contains_each_unchanged(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let quiet: BTreeSet<ConversationId> =
        (0..12).map(|number| conversation(&format!("quiet{number}"))).collect();
    for id in &quiet {
        created(&*store, id).await;
    }
    // The writer creates one new conversation per page that the reader reads. A faster writer would move the unchanged
    // conversations to later pages before the reader reaches them.
    let pages = Arc::new(Semaphore::new(0));
    let permits = Arc::clone(&pages);
    let other = subject.another().await;
    let writer = tokio::spawn(async move {
        let mut number = 0;
        let busy = conversation("busy");
        let mut version = created(&*other, &busy).await;
        while let Ok(permit) = permits.acquire().await {
            permit.forget();
            version = committed(&*other, &busy, version, &turn(number + 1, number + 1)).await;
            number += 1;
            created(&*other, &conversation(&format!("new{number}"))).await;
        }
    });
    for _ in 0..5 {
        let mut seen = BTreeSet::new();
        let mut page = Page::first(3);
        while !quiet.is_subset(&seen) {
            pages.add_permits(1);
            let part = list(&*store, page.clone()).await;
            assert!(!part.is_empty(), "missed: {:?}", quiet.difference(&seen).collect::<Vec<_>>());
            assert!(part.is_sorted_by(|a, b| (b.updated, &a.id) < (a.updated, &b.id)), "{part:?}");
            seen.extend(part.into_iter().map(|summary| summary.id));
            page = page.next();
        }
    }
    pages.close();
    writer.await.expect("writing while listing succeeds");
    PassedOrSkipped::Made
}

pub(super) async fn summary_equals_the_list_entry(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("summary");
    let version = created(&*store, &id).await;
    let version = committed(&*store, &id, version, &turn(1, 2)).await;
    let title = StateChange::title("A talk");
    let version = store
        .write(&id, &Write::on(version), &Change::State(title.clone()))
        .await
        .expect("saving a title succeeds");
    let version = committed(&*store, &id, version, &turn(3, 4)).await;
    let handles: [Arc<dyn Store>; 2] = [store, subject.another().await];
    for handle in handles {
        let summary = handle.summary(&id).await.expect("the conversation exists");
        assert_eq!(list(&*handle, Page::default()).await, std::slice::from_ref(&summary));
        let stored = handle.load(&id).await.expect("the conversation exists");
        assert_eq!((summary.version, stored.version), (version, version));
        assert_eq!((summary.created, summary.updated), (stored.created, stored.updated));
        assert_eq!(summary.title.as_deref(), Some("A talk"));
    }
    PassedOrSkipped::Made
}

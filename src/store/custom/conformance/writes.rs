use std::{collections::BTreeSet, sync::Arc};

use futures_util::{FutureExt, future::join_all};

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id, path, turn};
use crate::{
    store::{
        Change, Commit, ConversationId, Listing, StateChange, StoreError, StoredState, TitleBy, Version,
        Write, WriteId,
    },
    tree::{Node, NodeId},
};

pub(super) async fn create_with_an_existing_id_is_rejected(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("taken");
    let first = StoredState::default().with_title("first");
    let version =
        store.write(&id, &Write::first(), &Change::create(first.clone())).await.expect("the id is free");
    let second = StoredState::default().with_title("second");
    for handle in [&store, &subject.another().await] {
        let again = handle.write(&id, &Write::first(), &Change::create(second.clone())).await;
        assert!(matches!(again, Err(StoreError::AlreadyExists { .. })), "{again:?}");
    }
    let stored = store.load(&id).await.expect("the first conversation exists");
    assert_eq!((stored.version, stored.state), (version, first), "the rejected create changed something");
    PassedOrSkipped::Made
}

pub(super) async fn create_by_many_at_the_same_time_succeeds_once(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let handles = [subject.store(), subject.another().await];
    let id = conversation("race");
    let tries = (0..16).map(|number| {
        let (store, id) = (Arc::clone(&handles[number % 2]), id.clone());
        tokio::spawn(async move {
            let state = StoredState::default().with_title(number.to_string());
            (number, store.write(&id, &Write::first(), &Change::create(state.clone())).await)
        })
    });
    let mut winners = Vec::new();
    for tried in join_all(tries).await {
        match tried.expect("create does not panic") {
            (number, Ok(version)) => winners.push((number, version)),
            (_, Err(StoreError::AlreadyExists { .. })) => {}
            (_, Err(error)) => panic!("expected AlreadyExists, not: {error}"),
        }
    }
    assert_eq!(winners.len(), 1, "exactly one create must succeed: {winners:?}");
    let stored = handles[0].load(&id).await.expect("the conversation exists");
    assert_eq!((stored.version, stored.state.title), (winners[0].1, Some(winners[0].0.to_string())));
    PassedOrSkipped::Made
}

pub(super) async fn create_repeated_returns_the_first_result(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("repeated");
    let (write, state) = (WriteId::generate(), StoredState::default().with_title("once"));
    let first = store
        .write(&id, &Write::first().with_id(write), &Change::create(state.clone()))
        .await
        .expect("the id is free");
    assert_eq!(
        store
            .write(&id, &Write::first().with_id(write), &Change::create(state.clone()))
            .await
            .expect("a repetition succeeds"),
        first
    );
    let last = committed(&*store, &id, first, &turn(1, 2)).await;
    let another = subject.another().await;
    assert_eq!(
        another
            .write(&id, &Write::first().with_id(write), &Change::create(state))
            .await
            .expect("a late repetition succeeds"),
        first
    );
    assert_eq!(
        store.load(&id).await.expect("the conversation exists").version,
        last,
        "the repetition wrote something"
    );
    PassedOrSkipped::Made
}

pub(super) async fn writes_to_a_missing_conversation_are_rejected(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let (id, write) = (conversation("nobody"), Write::on(Version::new(1)));
    let title = StateChange::Title { title: None, by: TitleBy::Derived };
    assert!(matches!(
        store.write(&id, &write, &Change::Commit(turn(1, 2))).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        store.write(&id, &write, &Change::State(title)).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(store.load(&id).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(store.summary(&id).await, Err(StoreError::NotFound { .. })));
    assert!(store.summary(&id).await.is_err_and(|error| error.is_not_found()));
    assert_eq!(store.list(&Listing::default()).await.expect("listing succeeds"), []);
    PassedOrSkipped::Made
}

pub(super) async fn commit_returns_the_next_version(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("versions");
    let first = created(&*store, &id).await;
    assert!(store.summary(&id).await.is_ok());
    let second = committed(&*store, &id, first, &turn(1, 2)).await;
    assert_eq!(second, first.next());
    let title = StateChange::title("saving a title succeeds");
    let third = store
        .write(&id, &Write::on(second), &Change::State(title.clone()))
        .await
        .expect("a title on the current version");
    assert_eq!(third, second.next());
    let whole = StateChange::whole(StoredState::default());
    let fourth = store
        .write(&id, &Write::on(third), &Change::State(whole))
        .await
        .expect("a state on the current version");
    assert_eq!(fourth, third.next());
    assert_eq!(store.load(&id).await.expect("the conversation exists").version, fourth);
    PassedOrSkipped::Made
}

/// Checks that every kind of write on `base` fails with a conflict and changes nothing.
async fn conflicts(subject: &dyn StoreUnderTest, id: &ConversationId, base: Version) {
    let store = subject.store();
    let before = store.load(id).await.expect("the conversation exists");
    for handle in [&store, &subject.another().await] {
        let refused = [
            handle.write(id, &Write::on(base), &Change::Commit(turn(77, 78))).await,
            handle.write(id, &Write::on(base), &Change::State(StateChange::title("lost"))).await,
            handle
                .write(id, &Write::on(base), &Change::State(StateChange::whole(StoredState::default())))
                .await,
        ];
        for refused in refused {
            match refused {
                Err(StoreError::Conflict { current, .. }) => assert_eq!(current, before.version),
                other => panic!("a write on version {base} instead of {} returned {other:?}", before.version),
            }
        }
    }
    assert_eq!(
        store.load(id).await.expect("the conversation exists"),
        before,
        "a rejected write changed something"
    );
}

pub(super) async fn commit_on_an_old_version_conflicts(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("conflict");
    let first = created(&*store, &id).await;
    let second = committed(&*store, &id, first, &turn(1, 2)).await;
    conflicts(subject, &id, first).await;
    committed(&*store, &id, second, &turn(3, 4)).await;
    conflicts(subject, &id, first).await;
    conflicts(subject, &id, second).await;
    conflicts(subject, &id, Version::new(0)).await;
    PassedOrSkipped::Made
}

pub(super) async fn commit_beyond_the_current_version_conflicts(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("beyond");
    let first = created(&*store, &id).await;
    conflicts(subject, &id, first.next()).await;
    conflicts(subject, &id, Version::new(u64::MAX)).await;
    PassedOrSkipped::Made
}

pub(super) async fn commit_repeated_returns_the_first_result(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("again");
    let first = created(&*store, &id).await;
    let write = Write::on(first);
    let second = store.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("the version is current");
    for handle in [&store, &subject.another().await] {
        assert_eq!(
            handle.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("a repetition succeeds"),
            second
        );
    }
    let stored = store.load(&id).await.expect("the conversation exists");
    assert_eq!((stored.version, stored.nodes.len()), (second, 2), "the repetition wrote something");

    let write = Write::on(second);
    let title = StateChange::title("once");
    let third =
        store.write(&id, &write, &Change::State(title.clone())).await.expect("the version is current");
    assert_eq!(store.write(&id, &write, &Change::State(title)).await.expect("a repetition succeeds"), third);
    assert_eq!(store.load(&id).await.expect("the conversation exists").version, third);
    PassedOrSkipped::Made
}

pub(super) async fn write_repeated_after_others_returns_the_first_result(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("late");
    let mut version = created(&*store, &id).await;
    let mut writes = Vec::new();
    for number in 1..=20 {
        let write = Write::on(version);
        version = if number % 4 == 0 {
            let title = StateChange::title(number.to_string());
            store.write(&id, &write, &Change::State(title)).await.expect("the version is current")
        } else {
            store
                .write(&id, &write, &Change::Commit(turn(number, number)))
                .await
                .expect("the version is current")
        };
        writes.push((write, version));
    }
    let before = store.load(&id).await.expect("the conversation exists");
    let another = subject.another().await;
    for (write, version) in &writes {
        let repeated = another.write(&id, write, &Change::Commit(turn(99, 99))).await;
        assert_eq!(repeated.expect("a late repetition succeeds"), *version);
        // A different write on the same version is a conflict.
        if *version != before.version {
            let other = another.write(&id, &Write::on(write.base), &Change::Commit(turn(99, 99))).await;
            assert!(matches!(other, Err(StoreError::Conflict { .. })), "{other:?}");
        }
    }
    assert_eq!(
        store.load(&id).await.expect("the conversation exists"),
        before,
        "a repetition wrote something"
    );
    PassedOrSkipped::Made
}

pub(super) async fn concurrent_writes_form_one_sequence(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    const WRITERS: u64 = 4;
    const COMMITS: u64 = 8;
    let store = subject.store();
    let id = conversation("writers");
    let first = created(&*store, &id).await;
    let handles = [Arc::clone(&store), subject.another().await];
    let writers = (0..WRITERS).map(|writer| {
        let (store, id) =
            (Arc::clone(&handles[usize::try_from(writer).expect("a small number") % 2]), id.clone());
        tokio::spawn(async move {
            let mut base = first;
            let mut versions = Vec::new();
            while versions.len() < usize::try_from(COMMITS).expect("a small number") {
                // The id of the commit's node identifies the version on which the commit was based.
                let node = node_id(base.get() - first.get() + 1);
                let parent = NodeId::new(node.get() - 1);
                let message = crate::message::Message::user(writer.to_string());
                let commit = Commit::new(Some(node)).with_nodes([Node::new(node, parent, message)]);
                match store.write(&id, &Write::on(base), &Change::Commit(commit.clone())).await {
                    Ok(version) => {
                        versions.push(version);
                        base = version;
                    }
                    Err(StoreError::Conflict { current, .. }) => base = current,
                    Err(error) => panic!("a concurrent writer failed: {error}"),
                }
            }
            versions
        })
    });
    let mut versions = BTreeSet::new();
    for written in join_all(writers).await {
        for version in written.expect("a commit does not panic") {
            assert!(versions.insert(version), "version {version} was returned twice");
        }
    }
    let stored = store.load(&id).await.expect("the conversation exists");
    assert_eq!(stored.nodes.len() as u64, WRITERS * COMMITS, "a commit is missing or was written twice");
    assert_eq!(stored.version.get(), first.get() + WRITERS * COMMITS);
    for (node, number) in stored.nodes.iter().zip(1..) {
        assert_eq!(node.id(), node_id(number), "commits are out of order");
    }
    PassedOrSkipped::Made
}

pub(super) async fn write_with_a_dropped_future_is_all_or_nothing(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("dropped");
    let mut version = created(&*store, &id).await;
    for turns in 0..8 {
        let write = Write::on(version);
        let commit = turn(turns * 2 + 1, turns * 2 + 2);
        // The future is polled at most once, then dropped.
        let _ = store.write(&id, &write, &Change::Commit(commit.clone())).now_or_never();
        let seen = store.load(&id).await.expect("the conversation exists").nodes.len() as u64;
        assert!(seen == turns * 2 || seen == turns * 2 + 2, "a write was stored partially: {seen} nodes");
        version = store
            .write(&id, &write, &Change::Commit(commit.clone()))
            .await
            .expect("the write can be repeated");
        assert_eq!(version, write.base.next());
        let nodes = store.load(&id).await.expect("the conversation exists").nodes;
        assert_eq!(nodes, path(1, turns * 2 + 2).map(|node| at(&node, &nodes)).collect::<Vec<_>>());
    }
    PassedOrSkipped::Made
}

/// Returns a copy of the node with the timestamp that the node with the same id has in `nodes`. The two nodes were
/// created at different times, so their own timestamps differ.
fn at(node: &Node, nodes: &[Node]) -> Node {
    let there = nodes.iter().find(|there| there.id() == node.id());
    let mut message = (**node.message()).clone();
    message.timestamp = there.map_or(message.timestamp, |there| there.message().timestamp);
    Node::new(node.id(), node.parent(), message)
}

pub(super) async fn delete_repeated_succeeds(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let (id, other) = (conversation("gone"), conversation("stays"));
    store.delete(&id, None).await.expect("deleting a missing conversation succeeds");
    let version = created(&*store, &id).await;
    created(&*store, &other).await;
    committed(&*store, &id, version, &turn(1, 2)).await;
    store.delete(&id, None).await.expect("deleting succeeds");
    store.delete(&id, None).await.expect("deleting it again succeeds");
    assert!(subject.another().await.summary(&id).await.is_err_and(|error| error.is_not_found()));
    assert!(matches!(store.load(&id).await, Err(StoreError::NotFound { .. })));
    let late = store.write(&id, &Write::on(version.next()), &Change::Commit(turn(3, 4))).await;
    assert!(matches!(late, Err(StoreError::NotFound { .. })), "{late:?}");
    let listed = store.list(&Listing::default()).await.expect("listing succeeds");
    assert_eq!(listed.iter().map(|summary| &summary.id).collect::<Vec<_>>(), [&other]);
    PassedOrSkipped::Made
}

pub(super) async fn create_after_delete_starts_empty(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("anew");
    let old = created(&*store, &id).await;
    let write = Write::on(old);
    let old = store.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("the version is current");
    store.delete(&id, None).await.expect("deleting succeeds");
    let new = created(&*store, &id).await;
    let stored = store.load(&id).await.expect("the conversation was created again");
    assert_eq!(
        (stored.nodes.len(), stored.head, stored.cursors.len()),
        (0, None, 0),
        "content of the deleted conversation came back"
    );
    // With this commit, the new conversation has as many writes as the deleted conversation had.
    let new = committed(&*store, &id, new, &turn(1, 2)).await;
    for write in [Write::on(old), write] {
        let stale = store.write(&id, &write, &Change::Commit(turn(3, 4))).await;
        assert!(
            matches!(stale, Err(StoreError::Conflict { .. })),
            "a writer of the deleted conversation succeeded: {stale:?}"
        );
    }
    assert_eq!(store.load(&id).await.expect("the conversation exists").version, new);
    PassedOrSkipped::Made
}

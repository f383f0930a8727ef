use futures_util::future::join;

use super::{PassedOrSkipped, StoreUnderTest, conversation, created, turn};
use crate::store::{Change, ConversationId, Lease, Owner, StateChange, Store, StoreError, Write};

/// Renews a lease. Returns whether it is still valid.
async fn renewed(store: &dyn Store, id: &ConversationId, lease: &Lease) -> bool {
    let lost = store.renew(&[(id.clone(), lease.clone())]).await.expect("the store responds");
    assert!(lost.is_empty() || lost == [id.clone()], "{lost:?}");
    lost.is_empty()
}

async fn acquired(store: &dyn Store, id: &ConversationId, owner: &str) -> Lease {
    store.acquire(id, &Owner::new(owner)).await.expect("the conversation has no other owner")
}

pub(super) async fn lease_excludes_other_owners(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("owned");
    let version = created(&*store, &id).await;
    let (ann, ben) = (Owner::new("ann").at("host a"), Owner::new("ben"));
    let lease = store.acquire(&id, &ann).await.expect("the conversation has no owner");
    assert!(renewed(&*store, &id, &lease).await, "the lease is valid");
    let write = Write::on(version).under(&lease);
    let version = store.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("the owner may write");
    if let Some(lasts) = store.traits().lease {
        assert_eq!(lease.lasts, Some(lasts), "a lease lasts as long as the store states");
    }
    if lease.lasts.is_none() {
        store.release(&id, &lease, None).await.expect("releasing succeeds");
        return PassedOrSkipped::Skipped;
    }

    match another.acquire(&id, &ben).await {
        Err(StoreError::Owned { owner, .. }) => assert_eq!(owner, ann),
        other => panic!("ann is the owner: {other:?}"),
    }
    assert_eq!(another.summary(&id).await.expect("the conversation exists").owner, Some(ann.clone()));

    let newer = another.acquire(&id, &ann).await.expect("the same owner may acquire it again");
    assert!(newer.epoch > lease.epoch, "{newer:?} after {lease:?}");
    let late = store.write(&id, &Write::on(version).under(&lease), &Change::Commit(turn(3, 4))).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    assert!(!renewed(&*store, &id, &lease).await);
    store.release(&id, &lease, None).await.expect("releasing an ended lease succeeds");
    assert!(
        matches!(another.acquire(&id, &ben).await, Err(StoreError::Owned { .. })),
        "releasing an old lease ended a newer one"
    );

    store.release(&id, &newer, None).await.expect("releasing succeeds");
    assert_eq!(store.summary(&id).await.expect("the conversation exists").owner, None);
    let bens = another.acquire(&id, &ben).await.expect("the conversation has no owner now");
    assert!(bens.epoch > newer.epoch, "{bens:?} after {newer:?}");
    let late = store.write(&id, &Write::on(version).under(&newer), &Change::Commit(turn(3, 4))).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    let write = Write::on(version).under(&bens);
    assert_eq!(
        another.write(&id, &write, &Change::Commit(turn(3, 4))).await.expect("ben may write"),
        version.next()
    );
    PassedOrSkipped::Made
}

pub(super) async fn expired_lease_can_be_acquired_by_another(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("left");
    let version = created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() || !subject.run_out(&id).await {
        return PassedOrSkipped::Skipped;
    }
    assert_eq!(another.summary(&id).await.expect("the conversation exists").owner, None);
    let title = |title: &str| StateChange::title(title.to_owned());
    let mut version = version;
    for is_renewed in [false, true] {
        let under = Write::on(version).under(&lease);
        version = store
            .write(&id, &under, &Change::State(title("Ann's")))
            .await
            .expect("nobody else has acquired it, so the epoch is valid");
        if !is_renewed {
            assert!(renewed(&*store, &id, &lease).await, "no other owner acquired it");
        }
    }
    let under = Write::on(version).under(&lease);
    assert!(subject.run_out(&id).await);

    let bens = acquired(&*another, &id, "ben").await;
    assert!(bens.epoch > lease.epoch, "{bens:?} after {lease:?}");
    let write = Write::on(version).under(&bens);
    let version = another.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("ben may write");
    // A store checks the epoch of a write before its base version, so the error is `LeaseLost`. Repeating a successful
    // write still returns its first result.
    assert!(matches!(
        store.write(&id, &under, &Change::Commit(turn(1, 2))).await,
        Err(StoreError::LeaseLost { .. })
    ));
    let renamed =
        store.write(&id, &Write::on(version).under(&lease), &Change::State(title("Ann's again"))).await;
    assert!(matches!(renamed, Err(StoreError::LeaseLost { .. })), "{renamed:?}");
    assert!(!renewed(&*store, &id, &lease).await);
    let deleted = store.delete(&id, Some(&lease)).await;
    assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "ben is the owner: {deleted:?}");
    assert!(subject.run_out(&id).await);
    assert_eq!(
        another.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("a repetition succeeds"),
        version
    );
    let unchecked = store.write(&id, &Write::on(version), &Change::Commit(turn(3, 4))).await;
    assert_eq!(unchecked.expect("without an epoch, versions decide"), version.next());
    PassedOrSkipped::Made
}

pub(super) async fn renew_returns_the_lost_leases(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let ids = ["kept", "passed", "released", "deleted"].map(conversation);
    let mut leases = Vec::new();
    for id in &ids {
        created(&*store, id).await;
        leases.push((id.clone(), acquired(&*store, id, "ann").await));
    }
    assert_eq!(store.renew(&leases).await.expect("the store responds"), []);
    assert_eq!(store.renew(&[]).await.expect("the store responds"), []);
    if leases[0].1.lasts.is_none() {
        return PassedOrSkipped::Skipped;
    }
    for (id, lease) in &leases[1..3] {
        store.release(id, lease, None).await.expect("releasing succeeds");
    }
    acquired(&*store, &ids[1], "ben").await;
    store.delete(&ids[3], None).await.expect("deleting succeeds");
    let mut lost = subject.another().await.renew(&leases).await.expect("the store responds");
    lost.sort();
    let mut expected = ids[1..].to_vec();
    expected.sort();
    assert_eq!(lost, expected);
    PassedOrSkipped::Made
}

pub(super) async fn lease_of_a_deleted_conversation_is_invalid_for_a_later_one(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("again");
    created(&*store, &id).await;
    let old = acquired(&*store, &id, "ann").await;
    if old.lasts.is_none() {
        return PassedOrSkipped::Skipped;
    }
    store.delete(&id, None).await.expect("the owner may delete it");
    assert!(matches!(store.acquire(&id, &Owner::new("ann")).await, Err(StoreError::NotFound { .. })));
    created(&*store, &id).await;
    acquired(&*store, &id, "ben").await;
    assert!(!renewed(&*store, &id, &old).await);
    let deleted = store.delete(&id, Some(&old)).await;
    assert!(
        matches!(deleted, Err(StoreError::LeaseLost { .. })),
        "another conversation has this id: {deleted:?}"
    );
    store.release(&id, &old, None).await.expect("releasing an ended lease succeeds");
    let refused = store.acquire(&id, &Owner::new("ann")).await;
    assert!(
        matches!(refused, Err(StoreError::Owned { .. })),
        "releasing the old lease ended the new one: {refused:?}"
    );
    PassedOrSkipped::Made
}

pub(super) async fn delete_under_a_lease_requires_a_valid_lease(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("unwanted");
    created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() {
        store.delete(&id, Some(&lease)).await.expect("nothing prevents the delete");
        assert!(another.summary(&id).await.is_err_and(|error| error.is_not_found()));
        return PassedOrSkipped::Skipped;
    }
    let expired = conversation("unwanted-later");
    created(&*store, &expired).await;
    let late = acquired(&*store, &expired, "ann").await;
    if subject.run_out(&expired).await {
        store.delete(&expired, Some(&late)).await.expect("nobody else has acquired it");
        assert!(another.summary(&expired).await.is_err_and(|error| error.is_not_found()));
    }
    let newer = acquired(&*store, &id, "ann").await;
    let deleted = another.delete(&id, Some(&lease)).await;
    assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "a newer lease exists: {deleted:?}");
    another.delete(&id, Some(&newer)).await.expect("the lease is valid");
    assert!(store.summary(&id).await.is_err_and(|error| error.is_not_found()));
    store.delete(&id, Some(&newer)).await.expect("deleting a missing conversation succeeds");
    PassedOrSkipped::Made
}

pub(super) async fn write_after_a_release_is_rejected(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("given-back");
    let version = created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() {
        return PassedOrSkipped::Skipped;
    }
    store.release(&id, &lease, None).await.expect("releasing succeeds");
    let write = Write::on(version).under(&lease);
    let title = StateChange::title("Late".to_owned());
    for late in [
        store.write(&id, &write, &Change::Commit(turn(1, 2))).await.map(drop),
        store.write(&id, &write, &Change::State(title.clone())).await.map(drop),
        store.delete(&id, Some(&lease)).await,
    ] {
        assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "the lease was released: {late:?}");
    }
    assert!(!renewed(&*store, &id, &lease).await);
    assert_eq!(store.load(&id).await.expect("the conversation exists").version, version);
    PassedOrSkipped::Made
}

/// The number of races in a check.
const RACES: usize = 50;

/// Runs both futures at the same time. Even rounds poll `a` first, odd rounds poll `b` first.
async fn race<A, B>(round: usize, a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    if round.is_multiple_of(2) {
        join(a, b).await
    } else {
        let (b, a) = join(b, a).await;
        (a, b)
    }
}

pub(super) async fn write_during_an_acquisition_precedes_it_or_is_rejected(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let (store, another) = (subject.store(), subject.another().await);
    for round in 0..RACES {
        let id = conversation(&format!("taken-{round}"));
        let version = created(&*store, &id).await;
        let lease = acquired(&*store, &id, "ann").await;
        if lease.lasts.is_none() {
            return PassedOrSkipped::Skipped;
        }
        let take_over = async {
            // In half of the rounds, the new owner has the same name as the old owner. Then the newer lease ends the
            // older lease without a release.
            let owner = if round % 4 < 2 { "ann" } else { "ben" };
            if owner == "ben" {
                store.release(&id, &lease, None).await.expect("releasing succeeds");
            }
            let newer = acquired(&*another, &id, owner).await;
            (newer, another.load(&id).await.expect("the conversation exists").version)
        };
        let write = Write::on(version).under(&lease);
        let commit = turn(1, 2);
        let ((newer, found), written) =
            race(round, take_over, store.write(&id, &write, &Change::Commit(commit))).await;
        match written {
            Ok(written) => {
                assert_eq!(found, written, "the new owner does not see the write");
            }
            Err(StoreError::LeaseLost { .. }) => {
                assert_eq!(found, version, "a rejected write took effect");
            }
            Err(error) => panic!("the write neither succeeded nor lost its lease: {error:?}"),
        }
        let next = another.write(&id, &Write::on(found).under(&newer), &Change::Commit(turn(3, 4))).await;
        assert_eq!(next.expect("nothing was written after the acquisition"), found.next());
    }
    PassedOrSkipped::Made
}

pub(super) async fn renewal_during_an_acquisition_leaves_one_owner(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let (store, another) = (subject.store(), subject.another().await);
    let ben = Owner::new("ben");
    for round in 0..RACES {
        let id = conversation(&format!("lapsed-{round}"));
        let version = created(&*store, &id).await;
        let lease = acquired(&*store, &id, "ann").await;
        if lease.lasts.is_none() || !subject.run_out(&id).await {
            return PassedOrSkipped::Skipped;
        }
        let renewal = renewed(&*store, &id, &lease);
        let owner = match race(round, renewal, another.acquire(&id, &ben)).await {
            (true, Err(StoreError::Owned { .. })) => lease,
            (false, Ok(taken)) => taken,
            both => panic!("exactly one owner is expected: {both:?}"),
        };
        let write = Write::on(version).under(&owner);
        store.write(&id, &write, &Change::Commit(turn(1, 2))).await.expect("the owner may write");
    }
    PassedOrSkipped::Made
}

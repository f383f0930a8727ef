use futures_util::future::join;

use super::{CheckOutcome, Subject, conversation, created, turn};
use crate::store::{ConversationId, Lease, Owner, StateChange, Store, StoreError, Write};

async fn acquired(store: &dyn Store, id: &ConversationId, owner: &str) -> Lease {
    store.acquire(id, &Owner::new(owner)).await.expect("nobody else has it")
}

pub(super) async fn lease_keeps_others_out(subject: &dyn Subject) -> CheckOutcome {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("owned");
    let version = created(&*store, &id).await;
    let (ann, ben) = (Owner::new("ann").at("host a"), Owner::new("ben"));
    let lease = store.acquire(&id, &ann).await.expect("nobody has it");
    let lease = store.renew(&id, &lease).await.expect("it is ann's");
    let write = Write::on(version).under(&lease);
    let version = store.commit(&id, &write, &turn(1, 2)).await.expect("the owner may write");
    if lease.lasts.is_none() {
        store.release(&id, &lease).await.expect("it can be released");
        return CheckOutcome::Skipped;
    }

    match another.acquire(&id, &ben).await {
        Err(StoreError::Owned { owner, .. }) => assert_eq!(owner, ann),
        other => panic!("ann has it: {other:?}"),
    }
    assert_eq!(another.summary(&id).await.expect("it is there").owner, Some(ann.clone()));

    let newer = another.acquire(&id, &ann).await.expect("ann may have it again");
    assert!(newer.epoch > lease.epoch, "{newer:?} after {lease:?}");
    let late = store.commit(&id, &Write::on(version).under(&lease), &turn(3, 4)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    assert!(matches!(store.renew(&id, &lease).await, Err(StoreError::LeaseLost { .. })));
    store.release(&id, &lease).await.expect("what has ended can be released");
    assert!(
        matches!(another.acquire(&id, &ben).await, Err(StoreError::Owned { .. })),
        "an old lease released a new one"
    );

    store.release(&id, &newer).await.expect("it can be released");
    assert_eq!(store.summary(&id).await.expect("it is there").owner, None);
    let bens = another.acquire(&id, &ben).await.expect("nobody has it now");
    assert!(bens.epoch > newer.epoch, "{bens:?} after {newer:?}");
    let late = store.commit(&id, &Write::on(version).under(&newer), &turn(3, 4)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    let write = Write::on(version).under(&bens);
    assert_eq!(another.commit(&id, &write, &turn(3, 4)).await.expect("ben may write"), version.next());
    CheckOutcome::Made
}

pub(super) async fn lease_that_ran_out_can_be_taken_over(subject: &dyn Subject) -> CheckOutcome {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("left");
    let version = created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() || !subject.run_out(&id).await {
        return CheckOutcome::Skipped;
    }
    assert_eq!(another.summary(&id).await.expect("it is there").owner, None);
    let under = Write::on(version).under(&lease);
    let late = store.commit(&id, &under, &turn(1, 2)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "it ran out, though nobody took it: {late:?}");
    let revived = store.renew(&id, &lease).await.expect("nobody else came");
    assert_eq!(revived.epoch, lease.epoch);
    let title = |title: &str| StateChange::Title(Some(title.to_owned()));
    let version = store.save_state(&id, &under, &title("Ann's")).await.expect("it goes on");
    let under = Write::on(version).under(&lease);
    assert!(subject.run_out(&id).await);

    let bens = acquired(&*another, &id, "ben").await;
    assert!(bens.epoch > lease.epoch, "{bens:?} after {lease:?}");
    let write = Write::on(version).under(&bens);
    let version = another.commit(&id, &write, &turn(1, 2)).await.expect("ben may write");
    // The fence comes before the version, and a repetition is told what it came to all the same.
    assert!(matches!(store.commit(&id, &under, &turn(1, 2)).await, Err(StoreError::LeaseLost { .. })));
    let renamed = store.save_state(&id, &Write::on(version).under(&lease), &title("Ann's again")).await;
    assert!(matches!(renamed, Err(StoreError::LeaseLost { .. })), "{renamed:?}");
    assert!(matches!(store.renew(&id, &lease).await, Err(StoreError::LeaseLost { .. })));
    let deleted = store.delete_under(&id, &lease).await;
    assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "it is ben's: {deleted:?}");
    assert!(subject.run_out(&id).await);
    assert_eq!(another.commit(&id, &write, &turn(1, 2)).await.expect("a repetition"), version);
    let unchecked = store.commit(&id, &Write::on(version), &turn(3, 4)).await;
    assert_eq!(unchecked.expect("without an epoch, versions decide"), version.next());
    CheckOutcome::Made
}

pub(super) async fn renew_all_names_the_leases_that_are_lost(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let ids = ["kept", "passed", "released", "deleted"].map(conversation);
    let mut leases = Vec::new();
    for id in &ids {
        created(&*store, id).await;
        leases.push((id.clone(), acquired(&*store, id, "ann").await));
    }
    assert_eq!(store.renew_all(&leases).await.expect("an answer"), []);
    assert_eq!(store.renew_all(&[]).await.expect("an answer"), []);
    if leases[0].1.lasts.is_none() {
        return CheckOutcome::Skipped;
    }
    for (id, lease) in &leases[1..3] {
        store.release(id, lease).await.expect("it can be released");
    }
    acquired(&*store, &ids[1], "ben").await;
    store.delete(&ids[3]).await.expect("it can be deleted");
    let mut lost = subject.another().await.renew_all(&leases).await.expect("an answer");
    lost.sort();
    let mut expected = ids[1..].to_vec();
    expected.sort();
    assert_eq!(lost, expected);
    CheckOutcome::Made
}

pub(super) async fn lease_of_a_deleted_conversation_is_none_of_a_later_one(
    subject: &dyn Subject,
) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("again");
    created(&*store, &id).await;
    let old = acquired(&*store, &id, "ann").await;
    if old.lasts.is_none() {
        return CheckOutcome::Skipped;
    }
    store.delete(&id).await.expect("who has it may delete it");
    assert!(matches!(store.acquire(&id, &Owner::new("ann")).await, Err(StoreError::NotFound { .. })));
    created(&*store, &id).await;
    acquired(&*store, &id, "ben").await;
    assert!(store.renew(&id, &old).await.is_err());
    let deleted = store.delete_under(&id, &old).await;
    assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "it is another's: {deleted:?}");
    store.release(&id, &old).await.expect("what has ended can be released");
    let refused = store.acquire(&id, &Owner::new("ann")).await;
    assert!(matches!(refused, Err(StoreError::Owned { .. })), "the old lease ended the new one: {refused:?}");
    CheckOutcome::Made
}

pub(super) async fn delete_under_a_lease_takes_one_that_holds(subject: &dyn Subject) -> CheckOutcome {
    let (store, another) = (subject.store(), subject.another().await);
    let id = conversation("unwanted");
    created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() {
        store.delete_under(&id, &lease).await.expect("there is nothing to hold it up");
        assert!(!another.exists(&id).await.expect("an answer"));
        return CheckOutcome::Skipped;
    }
    if subject.run_out(&id).await {
        let deleted = store.delete_under(&id, &lease).await;
        assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "it ran out: {deleted:?}");
    }
    let newer = acquired(&*store, &id, "ann").await;
    let deleted = another.delete_under(&id, &lease).await;
    assert!(matches!(deleted, Err(StoreError::LeaseLost { .. })), "there is a newer one: {deleted:?}");
    another.delete_under(&id, &newer).await.expect("it holds");
    assert!(!store.exists(&id).await.expect("an answer"));
    store.delete_under(&id, &newer).await.expect("that there is none is no error");
    CheckOutcome::Made
}

pub(super) async fn write_after_a_release_is_refused(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("given-back");
    let version = created(&*store, &id).await;
    let lease = acquired(&*store, &id, "ann").await;
    if lease.lasts.is_none() {
        return CheckOutcome::Skipped;
    }
    store.release(&id, &lease).await.expect("it can be released");
    let write = Write::on(version).under(&lease);
    let title = StateChange::Title(Some("Late".to_owned()));
    for late in [
        store.commit(&id, &write, &turn(1, 2)).await.map(drop),
        store.save_state(&id, &write, &title).await.map(drop),
        store.renew(&id, &lease).await.map(drop),
        store.delete_under(&id, &lease).await,
    ] {
        assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "it was given back: {late:?}");
    }
    assert_eq!(store.load(&id).await.expect("it is there").version, version);
    CheckOutcome::Made
}

/// How often two are set off at the same moment.
const RACES: usize = 50;

/// Sets both off, each of them first every other time.
async fn race<A, B>(round: usize, a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    if round.is_multiple_of(2) {
        join(a, b).await
    } else {
        let (b, a) = join(b, a).await;
        (a, b)
    }
}

pub(super) async fn write_beside_a_take_over_comes_before_it_or_is_refused(
    subject: &dyn Subject,
) -> CheckOutcome {
    let (store, another) = (subject.store(), subject.another().await);
    for round in 0..RACES {
        let id = conversation(&format!("taken-{round}"));
        let version = created(&*store, &id).await;
        let lease = acquired(&*store, &id, "ann").await;
        if lease.lasts.is_none() {
            return CheckOutcome::Skipped;
        }
        let take_over = async {
            // Half of the times by the same owner, whose newer lease ends the older one without a word.
            let owner = if round % 4 < 2 { "ann" } else { "ben" };
            if owner == "ben" {
                store.release(&id, &lease).await.expect("it can be released");
            }
            let newer = acquired(&*another, &id, owner).await;
            (newer, another.load(&id).await.expect("it is there").version)
        };
        let write = Write::on(version).under(&lease);
        let commit = turn(1, 2);
        let ((newer, found), written) = race(round, take_over, store.commit(&id, &write, &commit)).await;
        match written {
            Ok(written) => {
                assert_eq!(found, written, "what the new owner loads has it all");
            }
            Err(StoreError::LeaseLost { .. }) => {
                assert_eq!(found, version, "a write that was refused is there");
            }
            Err(error) => panic!("neither made nor refused: {error:?}"),
        }
        let next = another.commit(&id, &Write::on(found).under(&newer), &turn(3, 4)).await;
        assert_eq!(next.expect("nothing came after the take-over"), found.next());
    }
    CheckOutcome::Made
}

pub(super) async fn renewal_beside_a_take_over_leaves_one_owner(subject: &dyn Subject) -> CheckOutcome {
    let (store, another) = (subject.store(), subject.another().await);
    let ben = Owner::new("ben");
    for round in 0..RACES {
        let id = conversation(&format!("lapsed-{round}"));
        let version = created(&*store, &id).await;
        let lease = acquired(&*store, &id, "ann").await;
        if lease.lasts.is_none() || !subject.run_out(&id).await {
            return CheckOutcome::Skipped;
        }
        let (renewed, taken) = race(round, store.renew(&id, &lease), another.acquire(&id, &ben)).await;
        let owner = match (renewed, taken) {
            (Ok(renewed), Err(StoreError::Owned { .. })) => renewed,
            (Err(StoreError::LeaseLost { .. }), Ok(taken)) => taken,
            both => panic!("it is one owner's: {both:?}"),
        };
        let write = Write::on(version).under(&owner);
        store.commit(&id, &write, &turn(1, 2)).await.expect("the owner may write");
    }
    CheckOutcome::Made
}

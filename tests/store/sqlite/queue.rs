//! Operations that wait for the only writing connection while another program has locked the file.

use std::sync::Arc;

use futures_util::{
    FutureExt,
    future::{join3, join4},
};
use omni_agent::{
    message::Message,
    store::{
        Owner, Store,
        custom::{Change, Commit, Write},
    },
    tree::Node,
};
use rusqlite::{Connection, TransactionBehavior};

use super::{quick, raw};
use crate::support::{Folder, create, id, node, says};

fn hold(other: &mut Connection) -> rusqlite::Transaction<'_> {
    other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

#[tokio::test]
async fn renewal_after_waiting_writes_is_made_before_them() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("b")).await;
    let lease = store.acquire(&id("b"), &Owner::new("ann")).await.unwrap();
    let mut other = raw(&folder);
    // Triggers record the order of the writes in the file.
    other
        .execute_batch(
            "CREATE TABLE seen (what TEXT);
             CREATE TRIGGER writes AFTER INSERT ON nodes BEGIN
                 INSERT INTO seen SELECT id FROM conversations WHERE key = new.conversation;
             END;
             CREATE TRIGGER renewals AFTER UPDATE OF lasts ON conversations BEGIN
                 INSERT INTO seen VALUES ('renewed');
             END",
        )
        .unwrap();
    let transaction = hold(&mut other);
    let (turn, id_a, id_b) = (Change::Commit(says(1, "Hi")), id("a"), id("b"));
    let (write, leases) = (Write::on(version), [(id_b.clone(), lease.clone())]);
    // A delete shares no transaction, so the commit never begins together with it.
    let mut begun = store.delete(&id_a, None);
    let mut waiting = store.write(&id_b, &write, &turn);
    let mut renewal = store.renew(&leases);
    assert!((&mut begun).now_or_never().is_none() && (&mut waiting).now_or_never().is_none());
    assert!((&mut renewal).now_or_never().is_none());
    transaction.rollback().unwrap();

    let (begun, waiting, renewed) = join3(begun, waiting, renewal).await;
    begun.unwrap();
    waiting.unwrap();
    renewed.unwrap();
    let mut seen = other.prepare("SELECT what FROM seen ORDER BY rowid").unwrap();
    let seen: Vec<String> = seen.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let place = |what: &str| seen.iter().position(|seen| seen == what).unwrap();
    assert!(place("renewed") < place("b"), "{seen:?}");
}

#[tokio::test]
async fn write_before_acquire_and_release_is_made_before_them() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let (first, second) = (create(&store, &id("a")).await, create(&store, &id("b")).await);
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    let mut other = raw(&folder);
    other
        .execute_batch(
            "CREATE TABLE seen (what TEXT);
             CREATE TRIGGER writes AFTER INSERT ON nodes BEGIN
                 INSERT INTO seen SELECT id FROM conversations WHERE key = new.conversation;
             END;
             CREATE TRIGGER owners AFTER UPDATE OF owner ON conversations BEGIN
                 INSERT INTO seen VALUES (iif(new.owner IS NULL, 'released', 'acquired'));
             END",
        )
        .unwrap();
    let transaction = hold(&mut other);
    let (turn, id_a, id_b) = (Change::Commit(says(1, "Hi")), id("a"), id("b"));
    let ben = Owner::new("ben");
    let (on_first, on_second) = (Write::on(first), Write::on(second));
    let mut begun = store.write(&id_a, &on_first, &turn);
    let mut waiting = store.write(&id_b, &on_second, &turn);
    let mut acquired = store.acquire(&id_b, &ben);
    let mut released = store.release(&id_a, &lease, None);
    assert!((&mut begun).now_or_never().is_none() && (&mut waiting).now_or_never().is_none());
    assert!((&mut acquired).now_or_never().is_none() && (&mut released).now_or_never().is_none());
    transaction.rollback().unwrap();

    let (begun, waiting, acquired, released) = join4(begun, waiting, acquired, released).await;
    begun.and(waiting).unwrap();
    acquired.unwrap();
    released.unwrap();
    let mut seen = other.prepare("SELECT what FROM seen ORDER BY rowid").unwrap();
    let seen: Vec<String> = seen.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(seen, ["a", "b", "acquired", "released"]);
}

#[tokio::test]
async fn write_dropped_before_it_began_holds_no_memory_and_is_not_made() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("b")).await;
    let mut other = raw(&folder);
    let transaction = hold(&mut other);
    let id_a = id("a");
    // A delete shares no transaction, so the write never begins together with it.
    let mut begun = store.delete(&id_a, None);
    assert!((&mut begun).now_or_never().is_none());

    let message = Arc::new(Message::user("x".repeat(1_000_000)));
    let kept = Arc::downgrade(&message);
    let waiting = {
        let commit = Commit::new(None).with_nodes([Node::new(node(1), None, message)]);
        let store = store.clone();
        Box::pin(
            async move { store.write(&id("b"), &Write::on(version), &Change::Commit(commit.clone())).await },
        )
    };
    let mut waiting = waiting;
    assert!((&mut waiting).now_or_never().is_none());
    assert!(kept.upgrade().is_some());
    drop(waiting);
    assert!(kept.upgrade().is_none(), "the store still holds the dropped write");

    transaction.rollback().unwrap();
    begun.await.unwrap();
    assert_eq!(store.load(&id("b")).await.unwrap().version, version);
}

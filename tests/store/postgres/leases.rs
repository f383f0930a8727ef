//! Leases after a change of the clock, the schema or the server.

use omni_agent::store::{
    Owner, Store, StoreError,
    custom::{Change, Write},
};

use super::{
    schema,
    server::{fresh, raw, url},
};
use crate::support::{create, id, says};

#[tokio::test]
async fn lease_from_before_the_clock_was_set_back_expires_early() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    let other = raw(url).await;
    let set_back = async |by: &str| {
        let later =
            format!("UPDATE {}.conversations SET expires = expires + interval '{by}'", schema(&store));
        assert_eq!(other.execute(&later, &[]).await.unwrap(), 1);
    };
    let (write, turn) = (Write::on(version).under(&lease), says(1, "Hi"));

    // If the clock was set back only a little, the lease is still valid.
    set_back("15 s").await;
    let refused = store.acquire(&id("a"), &Owner::new("ben")).await;
    assert!(matches!(refused, Err(StoreError::Owned { .. })), "{refused:?}");
    // If the clock was set back by an hour, the lease has expired. Its owner can still write and renew it, unless another
    // owner has acquired the conversation.
    for together in [false, true] {
        set_back("1 hour").await;
        assert_eq!(store.summary(&id("a")).await.unwrap().owner, None);
        store.write(&id("a"), &write, &Change::Commit(turn.clone())).await.unwrap();
        let leases = vec![(id("a"), lease.clone()); if together { 2 } else { 1 }];
        assert_eq!(store.renew(&leases).await.unwrap(), []);
        assert_eq!(store.summary(&id("a")).await.unwrap().owner, Some(Owner::new("ann")));
    }
    set_back("1 hour").await;
    store.acquire(&id("a"), &Owner::new("ben")).await.unwrap();
    let late = Write::on(version.next()).under(&lease);
    let refused = store.write(&id("a"), &late, &Change::Commit(says(2, "Hi"))).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost { .. })), "{refused:?}");
    let refused = store.delete(&id("a"), Some(&lease)).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost { .. })), "{refused:?}");
}

#[tokio::test]
async fn lease_beyond_the_range_of_dates_is_granted_and_kept() {
    let Some(url) = url() else { return };
    let store = fresh(url).lease(std::time::Duration::MAX).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    for count in [1, 2] {
        assert_eq!(store.renew(&vec![(id("a"), lease.clone()); count]).await.unwrap(), []);
    }
    store.write(&id("a"), &Write::on(version).under(&lease), &Change::Commit(says(1, "Hi"))).await.unwrap();
    assert_eq!(store.summary(&id("a")).await.unwrap().owner, Some(Owner::new("ann")));
}

/// When a replica becomes the server, it may lack the last transactions of the former server.
#[tokio::test]
async fn lease_lost_in_a_failover_is_rejected_after_another_acquire() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let other = raw(url).await;
    let row = format!("SELECT epoch FROM {}.conversations", schema(&store));
    let before: i64 = other.query_one(&row, &[]).await.unwrap().get(0);
    let forgotten = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    let replica = format!("UPDATE {}.conversations SET epoch = $1, owner = NULL", schema(&store));
    other.execute(&replica, &[&before]).await.unwrap();

    // The replica has taken over at least a millisecond later.
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20";
    while other.query_one(clock, &[]).await.unwrap().get::<_, i64>(0) <= forgotten.epoch.0.cast_signed() {}
    let next = store.acquire(&id("a"), &Owner::new("ben")).await.unwrap();
    assert!(next.epoch > forgotten.epoch, "{next:?} after {forgotten:?}");
    let refused = [
        store.delete(&id("a"), Some(&forgotten)).await,
        store
            .write(&id("a"), &Write::on(version).under(&forgotten), &Change::Commit(says(1, "Hi")))
            .await
            .map(drop),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(StoreError::LeaseLost { .. })), "{refused:?}");
    }
    assert_eq!(store.renew(&[(id("a"), forgotten.clone())]).await.unwrap(), [id("a")]);
    store.release(&id("a"), &forgotten, None).await.unwrap();
    store.write(&id("a"), &Write::on(version).under(&next), &Change::Commit(says(1, "Hi"))).await.unwrap();
}

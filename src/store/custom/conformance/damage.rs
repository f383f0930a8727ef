use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, turn};
use crate::store::{Change, Listing, StoreError, Write};

pub(super) async fn torn_write_is_dropped_completely(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("torn");
    let first = created(&*store, &id).await;
    let second = committed(&*store, &id, first, &turn(1, 2)).await;
    let before = store.load(&id).await.expect("the conversation exists");
    let write = Write::on(second);
    store.write(&id, &write, &Change::Commit(turn(3, 4))).await.expect("the version is current");
    if !subject.tear(&id).await {
        return PassedOrSkipped::Skipped;
    }
    let another = subject.another().await;
    assert_eq!(another.load(&id).await.expect("the complete writes can be read"), before);
    let summary = another.summary(&id).await.expect("the conversation exists");
    assert_eq!((summary.version, summary.damage), (second, None));
    // Repeating the torn write stores it, because nothing of the first attempt was kept.
    let third =
        another.write(&id, &write, &Change::Commit(turn(3, 4))).await.expect("the next write succeeds");
    assert_eq!(third, second.next());
    committed(&*another, &id, third, &turn(5, 6)).await;
    assert_eq!(another.load(&id).await.expect("loading succeeds").nodes.len(), 6);
    PassedOrSkipped::Made
}

pub(super) async fn damage_is_reported_with_its_place(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let (id, other) = (conversation("damaged"), conversation("sound"));
    let mut version = created(&*store, &id).await;
    created(&*store, &other).await;
    for number in 1..=4 {
        version = committed(&*store, &id, version, &turn(number, number)).await;
    }
    if !subject.damage(&id).await {
        return PassedOrSkipped::Skipped;
    }
    let another = subject.another().await;
    match another.load(&id).await {
        Err(StoreError::Damaged { place, problem }) => {
            assert!(!place.is_empty() && !problem.is_empty(), "{place}: {problem}");
        }
        other => panic!("a damaged conversation was loaded: {other:?}"),
    }
    assert!(another.summary(&id).await.is_ok(), "a damaged conversation is reported as missing");
    let listed =
        another.list(&Listing::default()).await.expect("listing succeeds despite a damaged conversation");
    assert_eq!(listed.len(), 2);
    another.load(&other).await.expect("the damage does not affect other conversations");
    another.delete(&id, None).await.expect("deleting a damaged conversation succeeds");
    created(&*another, &id).await;
    PassedOrSkipped::Made
}

use super::{CheckOutcome, Subject, committed, conversation, created, turn};
use crate::store::{Page, StoreError, Write};

pub(super) async fn torn_write_is_dropped_whole(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("torn");
    let first = created(&*store, &id).await;
    let second = committed(&*store, &id, first, &turn(1, 2)).await;
    let before = store.load(&id).await.expect("it is there");
    let write = Write::on(second);
    store.commit(&id, &write, &turn(3, 4)).await.expect("the version is current");
    if !subject.tear(&id).await {
        return CheckOutcome::Skipped;
    }
    let another = subject.another().await;
    assert_eq!(another.load(&id).await.expect("what is whole can be read"), before);
    let summary = another.summary(&id).await.expect("it is there");
    assert_eq!((summary.version, summary.damage), (second, None));
    // Repeating the torn write makes it anew.
    let third = another.commit(&id, &write, &turn(3, 4)).await.expect("the next write is sound");
    assert_eq!(third, second.next());
    committed(&*another, &id, third, &turn(5, 6)).await;
    assert_eq!(another.load(&id).await.expect("it can be read").nodes.len(), 6);
    CheckOutcome::Made
}

pub(super) async fn damage_is_told_with_its_place(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let (id, other) = (conversation("damaged"), conversation("sound"));
    let mut version = created(&*store, &id).await;
    created(&*store, &other).await;
    for number in 1..=4 {
        version = committed(&*store, &id, version, &turn(number, number)).await;
    }
    if !subject.damage(&id).await {
        return CheckOutcome::Skipped;
    }
    let another = subject.another().await;
    match another.load(&id).await {
        Err(StoreError::Damaged { place, problem }) => {
            assert!(!place.is_empty() && !problem.is_empty(), "{place}: {problem}");
        }
        other => panic!("what is damaged was read: {other:?}"),
    }
    assert!(another.exists(&id).await.expect("an answer"), "what can't be read is there all the same");
    let listed = another.list(Page::default()).await.expect("one damaged conversation spoils no list");
    assert_eq!(listed.len(), 2);
    another.load(&other).await.expect("the damage concerns one conversation alone");
    another.delete(&id).await.expect("what is damaged can be deleted");
    created(&*another, &id).await;
    CheckOutcome::Made
}

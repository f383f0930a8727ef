use super::{Outcome, Subject, conversation, created, turn};
use crate::store::{Owner, StoreError, Write};

pub(super) async fn lease_keeps_others_out(subject: &dyn Subject) -> Outcome {
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
        return Outcome::Skipped;
    }

    match another.acquire(&id, &ben).await {
        Err(StoreError::Owned { owner, .. }) => assert_eq!(owner, ann),
        other => panic!("ann has it: {other:?}"),
    }
    assert_eq!(another.summary(&id).await.expect("it is there").owner, Some(ann.clone()));

    let newer = another.acquire(&id, &ann).await.expect("ann may have it again");
    assert!(newer.epoch > lease.epoch);
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
    assert!(bens.epoch > newer.epoch);
    let late = store.commit(&id, &Write::on(version).under(&newer), &turn(3, 4)).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    let write = Write::on(version).under(&bens);
    assert_eq!(another.commit(&id, &write, &turn(3, 4)).await.expect("ben may write"), version.next());
    Outcome::Made
}

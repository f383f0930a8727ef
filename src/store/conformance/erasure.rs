use super::{CheckOutcome, StoreUnderTest, committed, conversation, created, node_id, turn};
use crate::{
    store::{Commit, Page, StoreError, Write},
    tree::{Erased, NodeId},
};

fn erased(nodes: std::ops::RangeInclusive<u64>, head: Option<u64>, next: u64) -> Erased {
    Erased { nodes: nodes.map(node_id).collect(), head: head.and_then(NodeId::new), next: node_id(next) }
}

pub(super) async fn erase_removes_nodes_and_their_cursors(subject: &dyn StoreUnderTest) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let cursors = (1..6).map(|number| (node_id(number), node_id(number + 1)));
    let version = committed(&*store, &id, version, &turn(1, 6).with_cursors(cursors)).await;
    let write = Write::on(version);
    let gone = erased(3..=6, Some(2), 7);
    match store.erase(&id, &write, &gone).await {
        Err(StoreError::Unsupported { .. }) => return CheckOutcome::Skipped,
        result => assert_eq!(result.expect("erasing succeeds"), version.next()),
    }
    let repeated = store.erase(&id, &write, &gone).await;
    assert_eq!(repeated.expect("a repetition returns the first result"), version.next());
    let stale = store.erase(&id, &Write::on(version), &gone).await;
    assert!(matches!(stale, Err(StoreError::Conflict { .. })), "{stale:?}");
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((stored.head, stored.next), (Some(node_id(2)), Some(node_id(7))));
    assert_eq!(stored.cursors.into_iter().collect::<Vec<_>>(), [(node_id(1), node_id(2))]);
    assert_eq!(stored.version, version.next());
    // The ids of erased nodes are not used again.
    let next = Commit::new(Some(node_id(7))).with_nodes([crate::tree::Node::new(
        node_id(7),
        Some(node_id(2)),
        crate::message::Message::user("7"),
    )]);
    committed(&*store, &id, stored.version, &next).await;
    let stored = store.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.nodes.len(), 3);
    assert_eq!(store.list(Page::default()).await.expect("listing succeeds").len(), 1);
    CheckOutcome::Made
}

pub(super) async fn erase_of_everything_leaves_an_empty_conversation(
    subject: &dyn StoreUnderTest,
) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 4)).await;
    match store.erase(&id, &Write::on(version), &erased(1..=4, None, 5)).await {
        Err(StoreError::Unsupported { .. }) => return CheckOutcome::Skipped,
        result => assert_eq!(result.expect("erasing succeeds"), version.next()),
    }
    let stored = store.load(&id).await.expect("loading succeeds");
    assert_eq!((stored.nodes.len(), stored.head, stored.next), (0, None, Some(node_id(5))));
    let missing = store.erase(&conversation("missing"), &Write::on(version), &erased(1..=1, None, 2)).await;
    assert!(missing.expect_err("it does not exist").is_not_found());
    CheckOutcome::Made
}

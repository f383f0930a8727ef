//! The memory store.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{
    message::Message,
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, Commit, StoreTraits, Version, Write, conformance},
    },
    tree::Node,
};

use crate::support::{create, id, node};

#[tokio::test]
async fn suite_on_memory_store_passes() {
    let report = conformance::check(async || Arc::new(MemoryStore::new())).await;
    assert_eq!(
        report.skipped,
        [
            "erase_requires_a_valid_lease",
            "turns_of_an_owner_are_not_left",
            "torn_write_is_dropped_completely",
            "damage_is_reported_with_its_place",
            "lease_excludes_other_owners",
            "expired_lease_can_be_acquired_by_another",
            "renew_returns_the_lost_leases",
            "lease_of_a_deleted_conversation_is_invalid_for_a_later_one",
            "delete_under_a_lease_requires_a_valid_lease",
            "write_after_a_release_is_rejected",
            "write_during_an_acquisition_precedes_it_or_is_rejected",
            "renewal_during_an_acquisition_leaves_one_owner"
        ]
    );
}

#[tokio::test]
async fn load_shares_messages_with_the_writer() {
    let store = MemoryStore::new();
    let id = id("shared");
    let version = create(&store, &id).await;
    let message = Arc::new(Message::user("x".repeat(1_000_000)));
    let first = Node::new(node(1), None, Arc::clone(&message));
    store
        .write(&id, &Write::on(version), &Change::Commit(Commit::new(Some(node(1))).with_nodes([first])))
        .await
        .unwrap();
    let loaded = store.load(&id).await.unwrap();
    assert!(Arc::ptr_eq(loaded.nodes[0].message(), &message));
}

/// A store that does not recognize repeated writes.
struct Forgetful(MemoryStore);

#[async_trait]
impl Store for Forgetful {
    forward!(self.0: load, summary, list, delete);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_labels(true).with_erase(true)
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        self.0.write(id, &Write::on(write.base), change).await
    }
}

#[tokio::test]
#[should_panic(expected = "7 of 81 checks failed: create_repeated_returns_the_first_result, \
                           commit_repeated_returns_the_first_result, write_repeated_after_others_returns_the_first_result, \
                           write_with_a_dropped_future_is_all_or_nothing, \
                           attachment_of_a_repeated_commit_is_preserved, label_change_replaces_all_labels, \
                           erase_removes_nodes_and_their_cursors")]
async fn suite_on_store_that_forgets_write_ids_fails() {
    conformance::check(async || Arc::new(Forgetful(MemoryStore::new()))).await;
}

//! The memory store.

use std::sync::Arc;

use omni_agent::{
    message::Message,
    store::{Commit, MemoryStore, Store, Write, conformance},
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
            "renew_all_returns_the_lost_leases",
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
    store.commit(&id, &Write::on(version), &Commit::new(Some(node(1))).with_nodes([first])).await.unwrap();
    let loaded = store.load(&id).await.unwrap();
    assert!(Arc::ptr_eq(loaded.nodes[0].message(), &message));
}

/// A store that does not recognize repeated writes.
struct Forgetful(MemoryStore);

mod forgetful {
    use async_trait::async_trait;
    use omni_agent::store::{
        Commit, ConversationId, Page, StateChange, Store, StoreError, Stored, StoredState, Summary, Version,
        Write, WriteId,
    };

    use super::Forgetful;

    #[async_trait]
    impl Store for Forgetful {
        async fn create(
            &self,
            id: &ConversationId,
            _: WriteId,
            state: &StoredState,
        ) -> Result<Version, StoreError> {
            self.0.create(id, WriteId::generate(), state).await
        }
        async fn commit(
            &self,
            id: &ConversationId,
            write: &Write,
            commit: &Commit,
        ) -> Result<Version, StoreError> {
            self.0.commit(id, &Write::on(write.base), commit).await
        }
        async fn save_state(
            &self,
            id: &ConversationId,
            write: &Write,
            change: &StateChange,
        ) -> Result<Version, StoreError> {
            self.0.save_state(id, &Write::on(write.base), change).await
        }
        async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
            self.0.load(id).await
        }
        async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
            self.0.summary(id).await
        }
        async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
            self.0.list(page).await
        }
        async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
            self.0.delete(id).await
        }
    }
}

#[tokio::test]
#[should_panic(expected = "4 of 70 checks failed: create_repeated_returns_the_first_result, \
                           commit_repeated_returns_the_first_result, write_repeated_after_others_returns_the_first_result, \
                           write_with_a_dropped_future_is_all_or_nothing")]
async fn suite_on_store_that_forgets_write_ids_fails() {
    conformance::check(async || Arc::new(Forgetful(MemoryStore::new()))).await;
}

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
    let report = conformance::check(async || conformance::Plain::new(MemoryStore::new())).await;
    assert_eq!(
        report.skipped,
        [
            "torn_write_is_dropped_whole",
            "damage_is_told_with_its_place",
            "lease_keeps_others_out",
            "lease_that_ran_out_can_be_taken_over",
            "renew_all_names_the_leases_that_are_lost",
            "lease_of_a_deleted_conversation_is_none_of_a_later_one",
            "delete_under_a_lease_takes_one_that_holds",
            "write_after_a_release_is_refused",
            "write_beside_a_take_over_comes_before_it_or_is_refused",
            "renewal_beside_a_take_over_leaves_one_owner"
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
#[should_panic(expected = "4 of 41 checks failed: create_repeated_gives_the_first_result, \
                           commit_repeated_gives_the_first_result, write_repeated_after_others_gives_the_first_result, \
                           write_whose_future_was_dropped_is_whole")]
async fn suite_on_store_that_forgets_write_ids_fails() {
    conformance::check(async || conformance::Plain::new(Forgetful(MemoryStore::new()))).await;
}

//! The default methods of the `Store` trait.

use std::sync::Mutex;

use async_trait::async_trait;
use omni_agent::store::{
    Commit, ConversationId, Lease, Page, StateChange, Store, StoreError, Stored, StoredState, Summary,
    Version, Write, WriteId,
};

use crate::support::id;

/// A store that implements `renew`, but not `renew_all`.
#[derive(Default)]
struct Renewing {
    renewed: Mutex<Vec<ConversationId>>,
}

#[async_trait]
impl Store for Renewing {
    async fn create(&self, _: &ConversationId, _: WriteId, _: &StoredState) -> Result<Version, StoreError> {
        unreachable!()
    }
    async fn commit(&self, _: &ConversationId, _: &Write, _: &Commit) -> Result<Version, StoreError> {
        unreachable!()
    }
    async fn save_state(
        &self,
        _: &ConversationId,
        _: &Write,
        _: &StateChange,
    ) -> Result<Version, StoreError> {
        unreachable!()
    }
    async fn load(&self, _: &ConversationId) -> Result<Stored, StoreError> {
        unreachable!()
    }
    async fn summary(&self, _: &ConversationId) -> Result<Summary, StoreError> {
        unreachable!()
    }
    async fn list(&self, _: Page) -> Result<Vec<Summary>, StoreError> {
        unreachable!()
    }
    async fn delete(&self, _: &ConversationId) -> Result<(), StoreError> {
        unreachable!()
    }
    async fn renew(&self, id: &ConversationId, lease: &Lease) -> Result<Lease, StoreError> {
        let place = || id.to_string();
        match id.as_str() {
            "locked" => Err(StoreError::Busy { place: place(), waited: std::time::Duration::ZERO }),
            "broken" => Err(StoreError::damaged(place(), "it is nothing that can be read")),
            "lost" => Err(StoreError::LeaseLost { id: id.clone() }),
            _ => {
                self.renewed.lock().unwrap().push(id.clone());
                Ok(lease.clone())
            }
        }
    }
}

#[tokio::test]
async fn renew_all_with_a_locked_conversation_renews_the_others_and_returns_the_error() {
    let store = Renewing::default();
    let leases =
        |names: &[&str]| -> Vec<_> { names.iter().map(|name| (id(name), Lease::unlimited())).collect() };
    let failed = store.renew_all(&leases(&["first", "locked", "lost", "broken", "last"])).await;
    assert!(matches!(&failed, Err(StoreError::Busy { place, .. }) if place == "locked"), "{failed:?}");
    assert_eq!(*store.renewed.lock().unwrap(), [id("first"), id("last")]);
    assert_eq!(store.renew_all(&leases(&["first", "lost"])).await.unwrap(), [id("lost")]);
}

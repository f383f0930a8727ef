//! The labels of sub-agents, which are those of their root.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    ErrorKind, Manager,
    message::Timestamp,
    store::{
        ConversationId, Filter, Labels, MemoryStore, Page, Store, StoreError, Summary,
        custom::{Change, StateChange, StoreTraits, StoredState, Version, Write},
    },
};

use crate::sub_agents::{calling, child, children, create, labels, managed, says, sub, sub_with, uses};
use crate::support::{alone, id, in_time, open_ids, settle};

#[tokio::test(start_paused = true)]
async fn sub_agents_get_new_labels_with_their_root() {
    let (manager, store) = managed();
    let low = || sub("low", [says("Low.")]);
    let high = sub_with("high", [uses(&["low"]), says("High.")], move |agent| agent.tool(low()));
    let session = create(&manager, "root", calling(high)).await;
    in_time(session.ask("Go")).await.unwrap();
    let high = children(&store, "root").await.remove(0).id;
    let low = children(&store, high.as_str()).await.remove(0).id;
    in_time(manager.set_labels(&id("root"), labels(&[("tenant", "other")]))).await.unwrap();
    for child in [&high, &low] {
        let stored = store.summary(child).await.unwrap().labels;
        assert_eq!((stored.get("tenant"), stored.get("omni.root")), (Some("other"), Some("root")));
    }
    assert_eq!(store.summary(&low).await.unwrap().labels.get("omni.parent"), Some(high.as_str()));
    let error = in_time(manager.set_labels(&low, labels(&[("tenant", "mine")]))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SubAgent);
    let opened = in_time(manager.open(&low, alone(calling(sub("other", []))))).await.unwrap();
    let error = in_time(opened.session.set_labels(labels(&[("tenant", "mine")]))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SubAgent);

    // Lists can leave them out.
    let listed = manager.list(Filter::default().without("omni.parent")).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.summary.id.as_str()).collect::<Vec<_>>(), ["root"]);
    assert_eq!(manager.list(Page::default()).await.unwrap().len(), 3);

    in_time(manager.delete(&id("root"))).await.unwrap();
    assert!(manager.list(Page::default()).await.unwrap().is_empty());
    assert!(open_ids(&manager).is_empty());
}

/// Sets the stored labels of a conversation that is not open.
async fn store_labels(store: &MemoryStore, id: &ConversationId, labels: Labels) {
    let version = store.summary(id).await.unwrap().version;
    store.write(id, &Write::on(version), &Change::State(StateChange::Labels(labels))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_a_child_with_old_labels_get_those_of_the_root() {
    let (manager, store) = managed();
    let session = create(&manager, "root", calling(sub("high", [says("High.")]))).await;
    in_time(session.ask("Go")).await.unwrap();
    let high = child(&store, "root").await;
    let own = store.summary(&high).await.unwrap().labels;
    let old = own.iter().map(|(name, value)| (name, if name == "tenant" { "old" } else { value }));
    store_labels(&store, &high, Labels::new(old).unwrap()).await;
    let options = alone(calling(sub("low", [says("Low.")])));
    let opened = in_time(manager.open(&high, options)).await.unwrap();
    in_time(opened.session.ask("Go on")).await.unwrap();
    let low = child(&store, high.as_str()).await;
    let labels = store.summary(&low).await.unwrap().labels;
    assert_eq!((labels.get("tenant"), labels.get("omni.root")), (Some("acme"), Some("root")));
}

#[tokio::test(start_paused = true)]
async fn sub_agents_usage_after_a_delete_keeps_the_label_of_the_root_only() {
    let (manager, store) = managed();
    let session = create(&manager, "root", calling(sub("search", [says("The Nile.")]))).await;
    in_time(session.ask("Go")).await.unwrap();
    let used = async |name: &str| {
        let filter = Filter::with(labels(&[(name, "root"), ("tenant", "acme")]));
        let sums = manager.used(&filter, Timestamp(0)..Timestamp(u64::MAX >> 1)).await.unwrap();
        sums.iter().map(|sum| sum.usage.output).sum::<u64>()
    };
    assert_eq!((used("omni.root").await, used("omni.parent").await), (2, 2));
    in_time(manager.delete(&id("root"))).await.unwrap();
    assert!(children(&store, "root").await.is_empty());
    assert_eq!((used("omni.root").await, used("omni.parent").await), (2, 0));
}

/// Returns the labels of a sub-agent below this parent, with those that the root had first.
fn labels_below(parent: &str) -> Labels {
    labels(&[("tenant", "acme"), ("omni.root", "root"), ("omni.parent", parent), ("omni.call", "c")])
}

/// A store in which `sub-low` becomes a sub-agent of `sub-high` while the labels of `sub-high` are being set.
struct Growing(MemoryStore);

#[async_trait::async_trait]
impl Store for Growing {
    forward!(self.0: load, summary, delete, list);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_labels(true)
    }

    async fn write(
        &self,
        own: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if own.as_str() == "sub-high" && matches!(change, Change::State(StateChange::Labels(_))) {
            store_labels(&self.0, &id("sub-low"), labels_below("sub-high")).await;
        }
        self.0.write(own, write, change).await
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_stored_while_labels_are_set_get_the_new_labels() {
    let store = Arc::new(Growing(MemoryStore::new()));
    let manager = Manager::builder(Arc::clone(&store)).build();
    let acme = labels(&[("tenant", "acme")]);
    let all = [("root", acme.clone()), ("sub-high", labels_below("root")), ("sub-low", acme)];
    for (name, own) in all {
        let options = alone(calling(sub("search", []))).labels(own);
        in_time(manager.create_with_id(&id(name), options)).await.unwrap();
        in_time(manager.close(&id(name))).await.unwrap();
    }
    in_time(manager.set_labels(&id("root"), labels(&[("tenant", "other")]))).await.unwrap();
    for name in ["sub-high", "sub-low"] {
        let own = store.summary(&id(name)).await.unwrap().labels;
        assert_eq!((own.get("tenant"), own.get("omni.root")), (Some("other"), Some("root")), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_get_labels_that_the_session_of_their_root_sets() {
    let (manager, store) = managed();
    let session = create(&manager, "root", calling(sub("search", [says("The Nile.")]))).await;
    in_time(session.ask("Go")).await.unwrap();
    in_time(session.set_labels(labels(&[("tenant", "other")]))).await.unwrap();
    settle().await;
    let own = store.summary(&child(&store, "root").await).await.unwrap().labels;
    assert_eq!((own.get("tenant"), own.get("omni.root")), (Some("other"), Some("root")));
}

/// A store that counts its lists.
#[derive(Clone, Default)]
struct CountingLists(Arc<(MemoryStore, AtomicUsize)>);

#[async_trait::async_trait]
impl Store for CountingLists {
    forward!(self.0.0: load, summary, delete, write);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_labels(true)
    }

    async fn list(&self, listing: &omni_agent::store::Listing) -> Result<Vec<Summary>, StoreError> {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        self.0.0.list(listing).await
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_a_large_tree_are_labelled_and_deleted_with_few_lists() {
    let store = CountingLists::default();
    let manager = Manager::builder(store.clone()).build();
    let create = async |name: &str, labels: Labels| {
        let state = StoredState::default().with_labels(labels);
        store.write(&id(name), &Write::first(), &Change::create(state)).await.unwrap();
    };
    create("root", labels(&[("tenant", "acme")])).await;
    for number in 0..100 {
        let parent = if number < 10 { "root".to_owned() } else { format!("sub-{}", number / 10) };
        create(&format!("sub-{number}"), labels_below(&parent)).await;
    }
    in_time(manager.set_labels(&id("root"), labels(&[("tenant", "other")]))).await.unwrap();
    let deepest = store.summary(&id("sub-99")).await.unwrap().labels;
    assert_eq!((deepest.get("tenant"), deepest.get("omni.parent")), (Some("other"), Some("sub-9")));
    in_time(manager.delete(&id("root"))).await.unwrap();
    assert!(store.list(&Page::first(9).into()).await.unwrap().is_empty());
    let lists = store.0.1.load(Ordering::SeqCst);
    assert!(lists < 10, "{lists} lists");
}

/// A store in which another process sets the labels of `sub-a` after each list.
struct Rival(MemoryStore);

#[async_trait::async_trait]
impl Store for Rival {
    forward!(self.0: load, summary, delete, write);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_labels(true)
    }

    async fn list(&self, listing: &omni_agent::store::Listing) -> Result<Vec<Summary>, StoreError> {
        if self.0.summary(&id("sub-a")).await.is_ok() {
            store_labels(&self.0, &id("sub-a"), labels_below("root")).await;
        }
        self.0.list(listing).await
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_whose_labels_another_process_sets_do_not_keep_set_labels_from_returning() {
    let manager = Manager::builder(Rival(MemoryStore::new())).build();
    for (name, own) in [("root", labels(&[("tenant", "acme")])), ("sub-a", labels_below("root"))] {
        let options = alone(calling(sub("search", []))).labels(own);
        in_time(manager.create_with_id(&id(name), options)).await.unwrap();
        in_time(manager.close(&id(name))).await.unwrap();
    }
    in_time(manager.set_labels(&id("root"), labels(&[("tenant", "other")]))).await.unwrap();
}

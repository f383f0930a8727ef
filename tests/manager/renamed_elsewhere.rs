//! A conversation is open in one manager, and another manager renames it. The store has no leases.

use std::sync::Arc;

use omni_agent::{
    manager::{Manager, Titles},
    store::{MemoryStore, Store},
};

use crate::support::{id, parrot, secs};

#[tokio::test(start_paused = true)]
async fn rename_by_another_manager_the_open_session_keeps_its_turn_and_shows_the_title() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let build = || Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    let (one, two) = (build(), build());
    let talk = one.create_with_id(&id("talk"), parrot()).await.unwrap();
    talk.session.ask("One").await.unwrap();
    talk.session.flush(secs(1)).await.unwrap();
    two.rename(&id("talk"), Some("Theirs")).await.unwrap();
    talk.session.ask("Two").await.unwrap();
    talk.session.flush(secs(1)).await.unwrap();
    let stored = store.load(&id("talk")).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.state.title.as_deref()), (4, Some("Theirs")));
    assert_eq!(one.list_open()[0].title.as_deref(), Some("Theirs"));
}

#[tokio::test(start_paused = true)]
async fn rename_by_another_manager_before_the_first_turn_wins_over_the_generated_title() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let build = || Manager::builder(Arc::clone(&store)).build();
    let (one, two) = (build(), build());
    let talk = one.create_with_id(&id("talk"), parrot()).await.unwrap();
    two.rename(&id("talk"), Some("Theirs")).await.unwrap();
    talk.session.ask("A question").await.unwrap();
    one.close(&id("talk")).await.unwrap();
    let stored = store.load(&id("talk")).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.state.title.as_deref()), (2, Some("Theirs")));
}

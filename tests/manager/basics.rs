//! Opening, closing and listing sessions.

use std::time::Duration;

use omni_agent::{
    agent::{Agent, AgentBuilder},
    manager::{Activity, Manager, OpenOptions, Presence, Shutdown},
    session::Mode,
    store::{Labels, MemoryStore, Page},
    testing::{ScriptedProvider, Step},
};

use crate::support::{id, in_time};

pub(crate) fn agent() -> AgentBuilder {
    let provider = ScriptedProvider::from_fn(|_| Step::text("Hello!"));
    Agent::builder().model(provider.model())
}

#[tokio::test(start_paused = true)]
async fn create_close_and_open_again_gives_the_same_conversation() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let events = manager.subscribe();
    let mut view = events.snapshot().unwrap().as_ref().clone();
    let mut events = events;
    let opened = manager.create(agent()).await.unwrap();
    assert!(opened.started);
    assert_eq!(opened.subscription.as_ref().unwrap().mode(), Mode::Controller);
    let id = opened.session.id().clone();
    opened.session.ask("Where to?").await.unwrap();
    opened.session.flush(Duration::from_secs(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let listed = manager.list(Page::default()).await.unwrap();
    assert_eq!(listed[0].summary.title.as_deref(), Some("Where to?"));
    assert_eq!(listed[0].presence, Presence::Open(Activity::Idle));
    assert!(!manager.open(&id, agent()).await.unwrap().started);
    manager.close(&id).await.unwrap();
    manager.close(&id).await.unwrap();
    assert!(manager.get(&id).is_none());
    let again = manager.open(&id, agent()).await.unwrap();
    assert!(again.started);
    assert_eq!(again.session.tree().await.unwrap().len(), 2);
    manager
        .shutdown(Shutdown::within(Duration::from_secs(1)).with_grace(Duration::from_secs(1)))
        .await
        .unwrap();
    while let Some(update) = events.next().await {
        match update {
            omni_agent::subscription::Update::Event(event) => view.apply(&event),
            omni_agent::subscription::Update::Closed(end) => {
                assert_eq!(*end.snapshot.unwrap(), view);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(view.open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn summary_of_an_open_and_of_a_stored_conversation_is_its_entry_in_the_list() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let labels = Labels::new([("user", "ann")]).unwrap();
    let options = OpenOptions::new(agent()).labels(labels.clone());
    let opened = manager.create_with_id(&id("one"), options).await.unwrap();
    manager.create_with_id(&id("two"), agent()).await.unwrap();
    manager.rename(&id("one"), Some("First")).await.unwrap();
    for presence in [Presence::Open(Activity::Idle), Presence::Stored] {
        let entry = manager.summary(&id("one")).await.unwrap();
        assert_eq!(entry.presence, presence);
        assert_eq!((entry.summary.title.as_deref(), &entry.summary.labels), (Some("First"), &labels));
        let list = manager.list(Page::default()).await.unwrap();
        assert_eq!(list.iter().find(|listed| listed.summary.id == id("one")), Some(&entry));
        in_time(manager.close(opened.session.id())).await.unwrap();
    }
    assert!(manager.list_open().iter().all(|open| open.id == id("two")), "the summary has opened a session");
}

#[tokio::test(start_paused = true)]
async fn summary_of_an_unknown_conversation_and_before_its_first_turn_is_not_found() {
    let manager = Manager::builder(MemoryStore::new()).build();
    assert!(manager.summary(&id("unknown")).await.unwrap_err().is_not_found());
    let opened = manager.create(agent()).await.unwrap();
    assert!(manager.summary(opened.session.id()).await.unwrap_err().is_not_found());
    opened.session.ask("Where to?").await.unwrap();
    opened.session.flush(Duration::from_secs(1)).await.unwrap();
    let entry = manager.summary(opened.session.id()).await.unwrap();
    assert_eq!(entry.summary.id, *opened.session.id());
    manager.delete(opened.session.id()).await.unwrap();
    assert!(manager.summary(opened.session.id()).await.unwrap_err().is_not_found());
}

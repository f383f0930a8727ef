//! Several managers share one store with leases, as if they were in several processes. A conversation is open in at
//! most one manager.
//!
//! These tests run in real time. A thread of the crate renews the leases, and Tokio's paused time does not affect this
//! thread.

use omni_agent::{
    Error, ErrorKind,
    manager::{Manager, ManagerEvent, OpenOptions, OpenedSession, Presence, Titles},
    store::{Owner, Page, Store},
    subscription::{EndReason, Update},
};

use crate::{
    leasing::{LeasingStore, Mood},
    support::{id, parrot, secs},
};

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(secs(60), future).await.expect("nothing came")
}

fn manager(store: &LeasingStore, name: &str) -> Manager {
    let owner = Owner::new(name).at(format!("http://{name}"));
    Manager::builder(store.as_dyn()).owner(owner).titles(Titles::Off).build()
}

async fn created(manager: &Manager, name: &str) -> OpenedSession {
    within(manager.create_with_id(&id(name), parrot())).await.unwrap()
}

fn assert_elsewhere<T>(outcome: Result<T, Error>, owner: &str) {
    let error = outcome.err().expect("the operation fails");
    assert_eq!(
        (error.kind(), error.member("conversation")),
        (ErrorKind::OpenElsewhere, Some(&"talk".into()))
    );
    let found = error.owner().unwrap();
    assert_eq!((found.name.as_str(), found.address), (owner, Some(format!("http://{owner}"))));
}

async fn presence(manager: &Manager, name: &str) -> Presence {
    let list = within(manager.list(Page::default())).await.unwrap();
    list.into_iter().find(|listed| listed.summary.id == id(name)).unwrap().presence
}

#[tokio::test]
async fn open_of_a_conversation_open_elsewhere_names_its_owner_and_address() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    let talk = created(&one, "talk").await;
    assert_elsewhere(within(two.open(&id("talk"), parrot())).await, "one");
    within(talk.session.ask("Still mine?")).await.unwrap();
    assert!(two.list_open().is_empty());
}

#[tokio::test]
async fn open_after_close_elsewhere_succeeds() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    let talk = created(&one, "talk").await;
    within(talk.session.ask("One")).await.unwrap();
    within(one.close(&id("talk"))).await.unwrap();
    let opened = within(two.open(&id("talk"), parrot())).await.unwrap();
    assert_eq!(opened.session.tree().await.unwrap().len(), 2);
    assert_elsewhere(within(one.open(&id("talk"), parrot())).await, "two");
}

#[tokio::test]
async fn open_again_in_the_same_manager_gives_the_same_session() {
    let store = LeasingStore::new();
    let one = manager(&store, "one");
    created(&one, "talk").await;
    within(one.open(&id("talk"), parrot())).await.unwrap();
    assert_eq!(store.epoch(&id("talk")), 1);
    within(one.close(&id("talk"))).await.unwrap();
    within(one.open(&id("talk"), parrot())).await.unwrap();
    assert_eq!(store.epoch(&id("talk")), 2);
}

#[tokio::test]
async fn managers_without_an_owner_have_distinct_owners() {
    let store = LeasingStore::new();
    let build = || Manager::builder(store.as_dyn()).titles(Titles::Off).build();
    let (one, two) = (build(), build());
    created(&one, "talk").await;
    let refused = within(two.open(&id("talk"), parrot())).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::OpenElsewhere);
}

#[tokio::test]
async fn manager_restarted_with_its_owner_name_takes_over_its_conversations_immediately() {
    let store = LeasingStore::new();
    let talk = created(&manager(&store, "one"), "talk").await;
    within(talk.session.ask("One")).await.unwrap();
    within(talk.session.flush(secs(30))).await.unwrap();
    // A new manager with the same owner name, as after a crash of the first manager, whose lease is still valid.
    let again = manager(&store, "one");
    let opened = within(again.open(&id("talk"), parrot())).await.unwrap();
    assert_eq!(opened.session.tree().await.unwrap().len(), 2);
    assert_eq!(within(talk.session.ended()).await.reason, EndReason::LostPlace);
}

#[tokio::test]
async fn list_shows_the_owner_of_an_open_conversation() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    created(&one, "talk").await;
    created(&two, "other").await;
    assert_eq!(presence(&two, "talk").await, Presence::Elsewhere);
    assert_eq!(presence(&one, "other").await, Presence::Elsewhere);
    assert!(matches!(presence(&one, "talk").await, Presence::Open { .. }));
    let list = within(two.list(Page::default())).await.unwrap();
    let talk = list.iter().find(|listed| listed.summary.id == id("talk")).unwrap();
    assert_eq!(talk.summary.owner, Some(Owner::new("one").at("http://one")));
    assert_eq!(within(two.summary(&id("talk"))).await.unwrap(), *talk);
    within(one.close(&id("talk"))).await.unwrap();
    assert_eq!(presence(&two, "talk").await, Presence::Stored);
}

#[tokio::test]
async fn delete_of_a_conversation_open_elsewhere_is_refused_and_keeps_it() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    let talk = created(&one, "talk").await;
    assert_elsewhere(within(two.delete(&id("talk"))).await, "one");
    within(talk.session.ask("One")).await.unwrap();
    within(one.delete(&id("talk"))).await.unwrap();
    assert!(store.summary(&id("talk")).await.is_err());
    within(two.delete(&id("talk"))).await.unwrap();
}

#[tokio::test]
async fn rename_of_a_conversation_open_elsewhere_is_refused_and_its_session_continues() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    let talk = created(&one, "talk").await;
    assert_elsewhere(within(two.rename(&id("talk"), Some("Theirs"))).await, "one");
    within(one.rename(&id("talk"), Some("Mine"))).await.unwrap();
    within(talk.session.ask("One")).await.unwrap();
    within(one.close(&id("talk"))).await.unwrap();
    assert_eq!(store.summary(&id("talk")).await.unwrap().title.as_deref(), Some("Mine"));
}

#[tokio::test]
async fn rename_of_a_stored_conversation_releases_its_lease() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    created(&one, "talk").await;
    within(one.close(&id("talk"))).await.unwrap();
    within(two.rename(&id("talk"), Some("Theirs"))).await.unwrap();
    assert_eq!(store.summary(&id("talk")).await.unwrap().title.as_deref(), Some("Theirs"));
    assert_eq!(store.owner(&id("talk")), None);
    assert!(store.writes().last().unwrap().is_some(), "the title is written under a lease");
}

#[tokio::test]
async fn taken_conversation_is_closed_with_its_reason_and_the_others_continue() {
    let store = LeasingStore::new();
    let one = manager(&store, "one");
    let talk =
        within(one.create_with_id(&id("talk"), OpenOptions::new(parrot()).subscribe(None))).await.unwrap();
    let other = created(&one, "other").await;
    let mut feed = one.subscribe();
    store.take(&id("talk"), &Owner::new("two").at("http://two"));
    assert_eq!(within(talk.session.ended()).await.reason, EndReason::LostPlace);
    let closed = loop {
        let Some(Update::Event(numbered)) = within(feed.next()).await else { panic!() };
        if let ManagerEvent::Closed { id, reason, .. } = &*numbered.event {
            break (id.clone(), reason.clone());
        }
    };
    assert_eq!(closed, (id("talk"), EndReason::LostPlace));
    within(other.session.ask("One")).await.unwrap();
    assert_elsewhere(within(one.open(&id("talk"), parrot())).await, "two");
}

#[tokio::test]
async fn open_while_the_store_cannot_report_the_owner_fails_and_the_next_open_works() {
    let store = LeasingStore::new();
    let one = manager(&store, "one");
    created(&one, "talk").await;
    within(one.close(&id("talk"))).await.unwrap();
    store.ownership(Mood::Fail);
    let failed = within(one.open(&id("talk"), parrot())).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::StoreFailed);
    store.ownership(Mood::Work);
    within(one.open(&id("talk"), parrot())).await.unwrap();
}

#[tokio::test]
async fn shutdown_releases_all_leases() {
    let store = LeasingStore::new();
    let (one, two) = (manager(&store, "one"), manager(&store, "two"));
    for name in ["a", "b", "c"] {
        created(&one, name).await;
    }
    within(one.shutdown(secs(30))).await.unwrap();
    for name in ["a", "b", "c"] {
        within(two.open(&id(name), parrot())).await.unwrap();
    }
}

#[tokio::test]
async fn delete_of_a_conversation_taken_meanwhile_is_refused() {
    let store = LeasingStore::new();
    let one = manager(&store, "one");
    drop(created(&one, "talk").await);
    within(one.close(&id("talk"))).await.unwrap();
    // Simulates a process that is suspended in the middle of a delete: it has acquired the conversation, and its lease
    // expires before it deletes the conversation.
    store.ownership(Mood::Late);
    let deleting = tokio::spawn({
        let one = one.clone();
        async move { one.delete(&id("talk")).await }
    });
    within(store.owned(&id("talk"))).await;
    let two = Owner::new("two");
    store.take(&id("talk"), &two);
    store.ownership(Mood::Work);
    let refused = within(deleting).await.unwrap();
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.member("conversation")), (ErrorKind::LeaseLost, Some(&"talk".into())));
    assert!(store.summary(&id("talk")).await.is_ok());
    assert_eq!(store.owner(&id("talk")), Some(two), "the other owner keeps the conversation");
}

//! Closing, deleting and renaming a conversation in every state.

use std::time::Duration;

use omni_agent::{
    Error, ErrorKind,
    manager::{Manager, OpenedSession, Presence},
    store::{
        ConversationId, Page, Store,
        custom::{Change, Commit, Write},
    },
    subscription::EndReason,
    testing::Gate,
};

use crate::rig::{
    Act, Call, Hooks, Lives, MoodyStore, Watch, held, id, in_time, parrot, poll_times, scripted, secs,
    settle, tasks,
};

async fn title_in(store: &MoodyStore, id: &ConversationId) -> Option<String> {
    store.beneath().summary(id).await.unwrap().title
}

async fn opened(manager: &Manager, name: &str) -> OpenedSession {
    manager.create_with_id(&id(name), parrot()).await.unwrap()
}

fn is_not_found(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

// ---- close ----

#[tokio::test(start_paused = true)]
async fn close_of_a_conversation_that_is_not_open_succeeds() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    manager.close(&kept).await.unwrap();
    manager.close(&id("missing")).await.unwrap();
    watch.catch_up();
    assert!(watch.seen.is_empty());
    assert!(store.beneath().summary(&kept).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn close_of_a_busy_session_with_nothing_to_keep_cancels_its_run() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let agent = scripted([omni_agent::testing::Step::text("Yes"), held(&gate, "Never")]);
    let one = manager.create_with_id(&id("one"), agent).await.unwrap();
    one.session.ask("First").await.unwrap();
    one.session.prompt("Second").await.unwrap();
    in_time(gate.reached()).await;
    manager.close(one.session.id()).await.unwrap();
    assert_eq!(store.beneath().load(one.session.id()).await.unwrap().nodes.len(), 2);
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed, [(one.session.id().clone(), EndReason::Stopped)]);
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn close_by_many_callers_closes_once() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let one = opened(&manager, "one").await;
    let closing = (0..10).map(|_| manager.close(one.session.id()));
    for closed in futures_util::future::join_all(closing).await {
        closed.unwrap();
    }
    watch.assert_agrees(&manager);
    assert_eq!(watch.words(one.session.id()), ["opened", "closed"]);
}

#[tokio::test(start_paused = true)]
async fn close_with_a_hanging_store_reports_unsaved_messages_and_leaves_no_task() {
    let store = MoodyStore::new();
    let manager = store.manager().close_timeout(secs(10)).build();
    let one = opened(&manager, "one").await;
    store.make(Call::Commit, Act::Hang);
    one.session.ask("Hi").await.unwrap();
    let closed = manager.close(one.session.id()).await;
    let error = closed.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(manager.get(one.session.id()).is_none());
    settle().await;
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn close_dropped_by_its_caller_continues() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let hooks = Hooks::default().terminate(Act::Wait(gate.clone()));
    let one = manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.unwrap();
    assert!(poll_times(manager.close(one.session.id()), 3).await.is_none());
    gate.open();
    in_time(one.session.ended()).await;
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed.len(), 1);
    assert!(manager.open(one.session.id(), parrot()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn close_during_open_waits_and_then_closes() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let kept = store.put("kept").await;
    store.make(Call::Load, Act::Wait(gate.clone()));
    let manager = store.manager().build();
    let opening = tokio::spawn({
        let (manager, kept) = (manager.clone(), kept.clone());
        async move { manager.open(&kept, parrot()).await }
    });
    in_time(gate.reached()).await;
    let mut closing = Box::pin(manager.close(&kept));
    assert!(poll_times(&mut closing, 20).await.is_none());
    gate.open();
    let session = opening.await.unwrap().unwrap().session;
    in_time(closing).await.unwrap();
    assert!(session.end().is_some());
}

// ---- delete ----

#[tokio::test(start_paused = true)]
async fn delete_of_an_open_stored_or_missing_conversation_succeeds() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let one = opened(&manager, "one").await;
    for id in [&kept, one.session.id(), &id("missing")] {
        manager.delete(id).await.unwrap();
        manager.delete(id).await.unwrap();
        assert!(store.beneath().summary(id).await.is_err());
    }
    assert!(one.session.end().is_some());
    watch.assert_agrees(&manager);
    assert_eq!(watch.words(one.session.id())[..3], ["opened", "closed", "deleted"]);
    assert!(is_not_found(&manager.open(one.session.id(), parrot()).await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn delete_of_a_busy_session_stops_it_first() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let one = manager.create_with_id(&id("one"), scripted([held(&gate, "Never")])).await.unwrap();
    one.session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    manager.delete(one.session.id()).await.unwrap();
    assert_eq!(one.session.ended().await.reason, EndReason::Stopped);
    assert!(store.beneath().summary(one.session.id()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn delete_during_a_slow_write_is_not_undone_by_it() {
    let store = MoodyStore::new();
    let manager = store.manager().close_timeout(secs(5)).build();
    let one = manager.create(parrot()).await.unwrap();
    // The first save would create the conversation, but it reaches the store only after the deletion.
    store.make(Call::Create, Act::Slow(secs(50)));
    one.session.ask("Hi").await.unwrap();
    manager.delete(one.session.id()).await.unwrap();
    tokio::time::sleep(secs(100)).await;
    assert!(store.beneath().summary(one.session.id()).await.is_err());
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn delete_with_a_failing_or_panicking_store_is_an_error_and_the_session_is_closed() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    for act in [Act::Fail, Act::Panic] {
        let one = match manager.open(&id("one"), parrot()).await {
            Ok(one) => one,
            Err(_) => opened(&manager, "one").await,
        };
        store.script(Call::Delete, [act]);
        assert!(manager.delete(one.session.id()).await.is_err());
        assert!(one.session.end().is_some());
        assert!(manager.list_open().is_empty());
    }
    assert!(manager.open(&id("one"), parrot()).await.unwrap().started);
    manager.delete(&id("one")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn open_during_delete_waits_and_finds_nothing() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let one = opened(&manager, "one").await;
    store.make(Call::Delete, Act::Wait(gate.clone()));
    let deleting = tokio::spawn({
        let (manager, id) = (manager.clone(), one.session.id().clone());
        async move { manager.delete(&id).await }
    });
    in_time(gate.reached()).await;
    let mut opening = Box::pin(manager.open(one.session.id(), parrot()));
    assert!(poll_times(&mut opening, 20).await.is_none());
    gate.open();
    deleting.await.unwrap().unwrap();
    assert!(is_not_found(&in_time(opening).await.unwrap_err()));
}

// ---- rename ----

#[tokio::test(start_paused = true)]
async fn rename_of_an_open_conversation_is_emitted_listed_and_saved() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let one = opened(&manager, "one").await;
    for title in [Some("First"), Some("Second"), None] {
        manager.rename(one.session.id(), title).await.unwrap();
        assert_eq!(one.session.title().await.unwrap().as_deref(), title);
        watch.assert_agrees(&manager);
        assert_eq!(watch.view.open[0].title.as_deref(), title);
        assert_eq!(manager.list(Page::default()).await.unwrap()[0].summary.title.as_deref(), title);
        one.session.flush(secs(5)).await.unwrap();
        assert_eq!(title_in(&store, one.session.id()).await.as_deref(), title);
    }
    assert_eq!(watch.words(one.session.id()), ["opened", "title", "title", "title"]);
}

#[tokio::test(start_paused = true)]
async fn rename_of_an_open_conversation_returns_when_the_title_is_stored() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let one = opened(&manager, "one").await;
    store.make(Call::State, Act::Wait(gate.clone()));
    let mut renaming = Box::pin(manager.rename(one.session.id(), Some("New")));
    assert!(poll_times(&mut renaming, 100).await.is_none());
    assert_eq!(one.session.title().await.unwrap().as_deref(), Some("New"));
    // `open` still returns the session without waiting for the store.
    assert!(!in_time(manager.open(one.session.id(), parrot())).await.unwrap().started);
    gate.open();
    in_time(renaming).await.unwrap();
    assert_eq!(title_in(&store, one.session.id()).await.as_deref(), Some("New"));
}

#[tokio::test(start_paused = true)]
async fn rename_while_the_store_is_down_fails_and_the_title_is_stored_later() {
    let store = MoodyStore::new();
    let manager = store.manager().close_timeout(secs(3)).build();
    let one = opened(&manager, "one").await;
    store.make(Call::State, Act::Fail);
    let begun = tokio::time::Instant::now();
    let error = manager.rename(one.session.id(), Some("New")).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(3));
    assert_eq!(error.kind(), ErrorKind::ChangeUnsaved);
    assert_eq!(error.member("conversation").unwrap(), one.session.id().as_str());
    let cause: &Error = error.cause().unwrap().downcast_ref().unwrap();
    assert_eq!((cause.kind(), cause.member("nodes")), (ErrorKind::Unsaved, Some(&0.into())));
    let words = error.to_string();
    assert!(words.contains("title or labels of conversation one") && words.contains("State"), "{words}");
    assert_eq!(one.session.title().await.unwrap().as_deref(), Some("New"));
    store.mood(|_, _| Act::Work);
    one.session.flush(secs(60)).await.unwrap();
    assert_eq!(title_in(&store, one.session.id()).await.as_deref(), Some("New"));
}

/// The title is stored even if the session ends before the title has reached the store.
#[tokio::test(start_paused = true)]
async fn rename_of_a_session_that_ends_meanwhile_stores_the_title() {
    for loses_place in [false, true] {
        let (store, gate) = (MoodyStore::new(), Gate::new());
        let manager = store.manager().build();
        let one = opened(&manager, "one").await;
        let id = one.session.id().clone();
        store.script(Call::State, [Act::Wait(gate.clone())]);
        let mut renaming = Box::pin(manager.rename(&id, Some("New")));
        assert!(poll_times(&mut renaming, 100).await.is_none());
        in_time(gate.reached()).await;
        if loses_place {
            store.meddle(&id).await;
        }
        let mut stopping = Box::pin(one.session.stop(secs(20)));
        assert!(poll_times(&mut stopping, 20).await.is_none());
        gate.open();
        assert_eq!(in_time(stopping).await.is_ok(), !loses_place);
        in_time(renaming).await.unwrap();
        assert_eq!(title_in(&store, &id).await.as_deref(), Some("New"));
        assert_eq!(store.calls(Call::State, &id), 1 + usize::from(loses_place));
    }
}

#[tokio::test(start_paused = true)]
async fn rename_of_a_stored_conversation_is_emitted_and_saved() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    for title in [Some("First"), None] {
        manager.rename(&kept, title).await.unwrap();
        assert_eq!(title_in(&store, &kept).await.as_deref(), title);
        let listed = manager.list(Page::default()).await.unwrap();
        assert_eq!(listed[0].summary.title.as_deref(), title);
        assert_eq!(listed[0].presence, Presence::Stored);
    }
    watch.assert_agrees(&manager);
    assert_eq!(watch.words(&kept), ["title", "title"]);
    assert!(watch.view.open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn rename_of_a_missing_conversation_is_not_found_and_emits_nothing() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    assert!(is_not_found(&manager.rename(&id("missing"), Some("Title")).await.unwrap_err()));
    watch.catch_up();
    assert!(watch.seen.is_empty());
    assert!(store.beneath().summary(&id("missing")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn rename_during_writes_of_others_is_repeated_until_it_is_stored() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    // Five times in a row, another process commits between the reading of the version and the writing of the title.
    let (beneath, name) = (store.beneath().clone(), kept.clone());
    let mut left = 5;
    store.mood(move |call, _| {
        if call == Call::State && left > 0 {
            left -= 1;
            let (beneath, name) = (beneath.clone(), name.clone());
            let commit = async move {
                let version = beneath.summary(&name).await.unwrap().version;
                beneath.write(&name, &Write::on(version), &Change::Commit(Commit::new(None))).await.unwrap();
            };
            futures_util::FutureExt::now_or_never(commit).expect("a memory store never waits");
        }
        Act::Work
    });
    manager.rename(&kept, Some("There")).await.unwrap();
    assert_eq!(store.calls(Call::State, &kept), 6);
    assert_eq!(title_in(&store, &kept).await.as_deref(), Some("There"));
}

#[tokio::test(start_paused = true)]
async fn rename_during_open_reaches_the_session() {
    for polls in 0..12 {
        let store = MoodyStore::new();
        let kept = store.put("kept").await;
        store.mood(|_, _| Act::Slow(Duration::from_micros(1)));
        let manager = store.manager().build();
        let mut watch = Watch::new(&manager);
        let opening = tokio::spawn({
            let (manager, kept) = (manager.clone(), kept.clone());
            async move { manager.open(&kept, parrot()).await }
        });
        for _ in 0..polls {
            tokio::task::yield_now().await;
        }
        in_time(manager.rename(&kept, Some("New"))).await.unwrap();
        let session = opening.await.unwrap().unwrap().session;
        assert_eq!(session.title().await.unwrap().as_deref(), Some("New"), "after {polls}");
        session.flush(secs(5)).await.unwrap();
        assert_eq!(title_in(&store, &kept).await.as_deref(), Some("New"));
        watch.assert_agrees(&manager);
    }
}

#[tokio::test(start_paused = true)]
async fn rename_of_a_session_that_commits_is_kept_with_the_commit() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let one = opened(&manager, "one").await;
    store.make(Call::Commit, Act::Slow(secs(1)));
    for number in 0..5 {
        one.session.ask("Hi").await.unwrap();
        manager.rename(one.session.id(), Some(&format!("Title {number}"))).await.unwrap();
    }
    manager.close(one.session.id()).await.unwrap();
    assert_eq!(title_in(&store, one.session.id()).await.as_deref(), Some("Title 4"));
    assert_eq!(store.beneath().load(one.session.id()).await.unwrap().nodes.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn rename_while_the_session_ends_waits_and_writes_to_the_store() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let hooks = Hooks::of(&Lives::default()).terminate(Act::Wait(gate.clone()));
    let one = manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.unwrap();
    let stopping = tokio::spawn({
        let session = one.session.clone();
        async move { session.stop(secs(60)).await }
    });
    in_time(gate.reached()).await;
    let mut renaming = Box::pin(manager.rename(one.session.id(), Some("Late")));
    assert!(poll_times(&mut renaming, 20).await.is_none());
    gate.open();
    in_time(renaming).await.unwrap();
    stopping.await.unwrap().unwrap();
    assert_eq!(title_in(&store, one.session.id()).await.as_deref(), Some("Late"));
}

#[tokio::test(start_paused = true)]
async fn get_during_rename_or_open_finds_the_session() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let one = opened(&manager, "one").await;
    let mut renaming = Box::pin(manager.rename(one.session.id(), Some("New")));
    assert!(poll_times(&mut renaming, 1).await.is_none(), "renaming takes a round trip");
    assert!(manager.get(one.session.id()).is_some());
    renaming.await.unwrap();

    let mut watch = Watch::new(&manager);
    let name = id("two");
    let mut creating = Box::pin(manager.create_with_id(&name, parrot()));
    while watch.view.open.len() < 2 {
        let _ = poll_times(&mut creating, 1).await;
        watch.catch_up();
        assert_eq!(watch.view.open.len() == 2, manager.get(&name).is_some());
    }
}

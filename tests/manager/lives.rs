//! How long a session stays open, and what happens when the future of a caller is dropped.

use std::time::Duration;

use omni_agent::{
    manager::{Manager, OpenOptions, Shutdown},
    session::{Mode, SessionSubscription},
    store::Store,
    subscription::EndReason,
    testing::Gate,
};

use crate::rig::{
    Act, Call, Hooks, Lives, MoodyStore, Watch, held, id, in_time, parrot, poll_times, scripted, secs,
    settle, tasks,
};

#[tokio::test(start_paused = true)]
async fn create_and_open_subscribe_as_a_controller_by_default() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let one = manager.create(parrot()).await.unwrap();
    assert_eq!(one.subscription.as_ref().unwrap().mode(), Mode::Controller);
    let joined = manager.open(one.session.id(), parrot()).await.unwrap();
    assert_eq!(joined.subscription.as_ref().unwrap().mode(), Mode::Controller);
    assert_eq!(one.session.controllers(), 2);
    for (mode, controllers) in [(Some(Mode::Controller), 1), (Some(Mode::Observer), 0), (None, 0)] {
        let start = || OpenOptions::new(parrot()).subscribe(mode);
        let started = manager.create(start()).await.unwrap();
        assert_eq!(started.subscription.as_ref().map(SessionSubscription::mode), mode);
        assert_eq!(started.session.controllers(), controllers);
        let joined = manager.open(started.session.id(), start()).await.unwrap();
        assert_eq!(joined.subscription.as_ref().map(SessionSubscription::mode), mode);
        assert_eq!(started.session.controllers(), 2 * controllers);
    }
}

#[tokio::test(start_paused = true)]
async fn session_outlives_its_callers_until_its_idle_shutdown() {
    let store = MoodyStore::new();
    let manager = Manager::builder(std::sync::Arc::new(store.clone())).build();
    let mut watch = Watch::new(&manager);
    let name = id("one");
    drop(manager.create_with_id(&name, parrot()).await.unwrap());
    tokio::time::sleep(secs(5 * 60 - 1)).await;
    let again = manager.open(&name, parrot()).await.unwrap();
    assert!(!again.started, "the default of five minutes is not over yet");
    tokio::time::sleep(secs(1000)).await;
    assert!(again.session.end().is_none(), "a controller keeps the session open");
    drop(again);
    tokio::time::sleep(Duration::from_mins(5) + secs(1)).await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed, [(name.clone(), EndReason::Idle)]);
    assert_eq!(tasks(), 0);
    assert!(manager.open(&name, parrot()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn idle_shutdown_of_the_options_overrides_that_of_the_manager() {
    let store = MoodyStore::new();
    let cases = [
        (Some(secs(10)), None, Some(10)),
        (Some(secs(10)), Some(Some(secs(20))), Some(20)),
        (Some(secs(10)), Some(None), None),
        (Some(secs(10)), Some(Some(secs(0))), Some(0)),
        (None, None, None),
        (None, Some(Some(secs(5))), Some(5)),
    ];
    for (usual, own, expected) in cases {
        let manager = store.manager().idle_shutdown(usual).build();
        let start = OpenOptions::new(parrot());
        let start = match own {
            Some(own) => start.idle_shutdown(own),
            None => start,
        };
        let name = manager.create(start).await.unwrap().session.id().clone();
        if let Some(expected) = expected {
            tokio::time::sleep(secs(expected).saturating_sub(secs(1))).await;
            assert!(expected == 0 || manager.get(&name).is_some());
            tokio::time::sleep(secs(2)).await;
            assert!(manager.get(&name).is_none(), "{usual:?} {own:?}");
        } else {
            tokio::time::sleep(Duration::from_hours(24)).await;
            assert!(manager.get(&name).is_some(), "{usual:?} {own:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_opened_without_a_controller_ends_after_the_time() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().idle_shutdown(Some(secs(10))).build();
    for mode in [None, Some(Mode::Observer)] {
        let opened = manager.open(&kept, OpenOptions::new(parrot()).subscribe(mode)).await.unwrap();
        tokio::time::sleep(secs(9)).await;
        assert!(opened.session.end().is_none());
        tokio::time::sleep(secs(2)).await;
        assert_eq!(opened.session.end().unwrap().reason, EndReason::Idle);
        assert!(manager.list_open().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn idle_shutdown_waits_for_a_turn_in_flight() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().idle_shutdown(Some(secs(0))).build();
    let one = manager.create(scripted([held(&gate, "Done")])).await.unwrap();
    one.session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let name = one.session.id().clone();
    drop(one);
    tokio::time::sleep(secs(100)).await;
    let session = manager.get(&name).expect("a busy session stays open");
    gate.open();
    assert_eq!(in_time(session.ended()).await.reason, EndReason::Idle);
    assert_eq!(manager.open(&name, parrot()).await.unwrap().session.tree().await.unwrap().len(), 2);
}

/// Drops the caller's future after a number of polls. No matter when the future is dropped, the idle shutdown closes
/// the session, and the id can be used again.
#[tokio::test(start_paused = true)]
async fn caller_dropped_at_any_stage_leaves_nothing_behind() {
    for act in [Act::Work, Act::Slow(secs(1))] {
        for polls in 0..25 {
            for create in [true, false] {
                let (store, lives) = (MoodyStore::new(), Lives::default());
                let name = if create { id("kept") } else { store.put("kept").await };
                let slow = act.clone();
                store.mood(move |_, _| slow.clone());
                let manager = store.manager().idle_shutdown(Some(secs(10))).build();
                let mut watch = Watch::new(&manager);
                let agent = parrot().callbacks(Hooks::of(&lives).init(act.clone()));
                let done = if create {
                    poll_times(manager.create_with_id(&name, agent), polls).await.is_some()
                } else {
                    poll_times(manager.open(&name, agent), polls).await.is_some()
                };
                tokio::time::sleep(secs(60)).await;
                watch.assert_agrees(&manager);
                assert!(watch.view.open.is_empty(), "{act:?}, {polls} polls, {done}");
                assert_eq!((tasks(), lives.living()), (0, 0), "{act:?}, {polls} polls, {done}");
                let words = watch.words(&name);
                assert!(words.is_empty() || words == ["opened", "closed"], "{words:?}");
                lives.assert_sound();
                store.mood(|_, _| Act::Work);
                if store.beneath().summary(&name).await.is_ok() {
                    manager.open(&name, parrot()).await.unwrap();
                } else {
                    manager.create_with_id(&name, parrot()).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn caller_dropped_while_waiting_for_room_gives_up_its_place() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().max_open(1).build();
    let mut watch = Watch::new(&manager);
    let one = manager.create(parrot()).await.unwrap();
    assert!(poll_times(manager.open(&kept, parrot()), 10).await.is_none());
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.words(&kept), ["waiting", "given up"]);
    assert_eq!(store.calls(Call::Load, &kept), 0);
    manager.close(one.session.id()).await.unwrap();
    assert!(in_time(manager.open(&kept, parrot())).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn another_caller_of_the_same_id_continues_to_wait_for_room() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().max_open(1).build();
    let one = manager.create(parrot()).await.unwrap();
    let mut other;
    {
        let mut first = Box::pin(manager.open(&kept, parrot()));
        assert!(poll_times(&mut first, 10).await.is_none());
        other = Box::pin(manager.open(&kept, parrot()));
        assert!(poll_times(&mut other, 10).await.is_none());
    }
    settle().await;
    assert!(poll_times(&mut other, 10).await.is_none());
    manager.close(one.session.id()).await.unwrap();
    assert!(in_time(other).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn last_manager_dropped_sessions_stay_with_their_handles() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let kept = manager.create_with_id(&id("kept"), parrot()).await.unwrap();
    let left = manager.create_with_id(&id("left"), parrot()).await.unwrap();
    left.session.ask("Hi").await.unwrap();
    drop((left, manager));
    settle().await;
    while watch.end.is_none() {
        watch.next().await;
    }
    assert_eq!(watch.end, Some(EndReason::HandlesDropped));
    kept.session.ask("Still there?").await.unwrap();
    assert!(store.beneath().summary(&id("left")).await.is_ok());
    kept.session.flush(secs(5)).await.unwrap();
    let session = kept.session.clone();
    drop(kept);
    assert!(session.end().is_none());
    drop(session);
    settle().await;
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn last_manager_dropped_during_open_caller_still_gets_the_session() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let kept = store.put("kept").await;
    store.make(Call::Load, Act::Wait(gate.clone()));
    let manager = store.manager().build();
    let opening = tokio::spawn({
        let (manager, kept) = (manager.clone(), kept.clone());
        async move { manager.open(&kept, parrot()).await }
    });
    in_time(gate.reached()).await;
    drop(manager);
    gate.open();
    let opened = opening.await.unwrap().unwrap();
    opened.session.ask("Hi").await.unwrap();
    drop(opened);
    settle().await;
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn several_managers_on_one_store_are_independent() {
    let store = MoodyStore::new();
    let (one, two) = (store.manager().build(), store.manager().build());
    let mut watch = Watch::new(&two);
    let name = id("shared");
    let first = one.create_with_id(&name, parrot()).await.unwrap();
    assert!(two.get(&name).is_none());
    let second = two.open(&name, parrot()).await.unwrap();
    assert!(second.started);
    one.close(&name).await.unwrap();
    assert!(first.session.end().is_some());
    second.session.ask("Hi").await.unwrap();
    one.shutdown(Shutdown::within(secs(1)).with_grace(secs(1))).await.unwrap();
    assert!(two.get(&name).is_some());
    watch.assert_agrees(&two);
    assert!(watch.closed.is_empty());
}

//! The live feed agrees with the manager, no matter when a subscriber joins and what else happens at that time.

use omni_agent::{
    manager::{Activity, Manager, ManagerEvent, OpenOptions, Shutdown},
    message::ToolUse,
    store::Store,
    subscription::{EndReason, EventId, Update},
    testing::{Gate, ScriptedProvider, Step},
};

use crate::rig::{
    Act, Call, Do, Hooks, Lives, MoodyStore, Watch, held, id, in_time, parrot, scripted, secs, settle, tasks,
};

#[tokio::test(start_paused = true)]
async fn subscribe_gives_the_open_sessions_and_then_events() {
    let (store, gate) = (MoodyStore::new(), Gate::new());
    let manager = store.manager().build();
    let one = manager
        .create_with_id(&id("one"), OpenOptions::new(scripted([held(&gate, "Yes")])).title("One"))
        .await
        .unwrap();
    let mut watch = Watch::new(&manager);
    assert_eq!(watch.view.open[0].id, id("one"));
    assert_eq!(watch.view.open[0].title.as_deref(), Some("One"));
    assert_eq!(watch.view.open[0].activity, Activity::Idle);
    one.session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.view.open[0].activity, Activity::Busy);
    gate.open();
    one.session.wait_until_idle().await.unwrap();
    settle().await;
    manager.create_with_id(&id("two"), parrot()).await.unwrap();
    one.session.set_title(Some("Uno")).await.unwrap();
    manager.close(&id("one")).await.unwrap();
    watch.assert_agrees(&manager);
    assert_eq!(watch.words(&id("one")), ["status", "status", "title", "closed"]);
    assert_eq!(watch.words(&id("two")), ["opened"]);
    assert_eq!(watch.closed, [(id("one"), EndReason::Stopped)]);
}

#[tokio::test(start_paused = true)]
async fn open_sessions_are_listed_in_the_order_in_which_they_became_open() {
    let store = MoodyStore::new();
    let (slow, quick) = (store.put("slow").await, store.put("quick").await);
    let gate = Gate::new();
    let (only, wait) = (slow.clone(), gate.clone());
    store.mood(
        move |call, id| {
            if call == Call::Load && *id == only { Act::Wait(wait.clone()) } else { Act::Work }
        },
    );
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let opening = tokio::spawn({
        let (manager, slow) = (manager.clone(), slow.clone());
        async move { manager.open(&slow, parrot()).await }
    });
    in_time(gate.reached()).await;
    manager.open(&quick, parrot()).await.unwrap();
    gate.open();
    opening.await.unwrap().unwrap();
    watch.assert_agrees(&manager);
    assert_eq!(watch.view.open.iter().map(|open| &open.id).collect::<Vec<_>>(), [&quick, &slow]);
}

#[tokio::test(start_paused = true)]
async fn paused_session_is_reported_as_paused() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let provider = ScriptedProvider::new([Step::new()
        .decide(ToolUse::new("use", "service", serde_json::json!({})))
        .then_text(["Done"])
        .stop()]);
    let agent = omni_agent::agent::Agent::builder().model(provider.model()).callbacks(Pausing);
    let mut watch = Watch::new(&manager);
    let one = manager.create(agent).await.unwrap();
    one.session.prompt("Hi").await.unwrap();
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.view.open[0].activity, Activity::Paused);
    one.session.resume("use", omni_agent::tool::Decision::Execute).await.unwrap();
    in_time(one.session.wait_until_idle()).await.unwrap();
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.view.open[0].activity, Activity::Idle);
}

struct Pausing;

#[async_trait::async_trait]
impl omni_agent::agent::AgentCallbacks for Pausing {
    async fn handle_tool_use(
        &mut self,
        _: &ToolUse,
        _: &mut omni_agent::agent::State,
    ) -> omni_agent::agent::ToolDecision {
        omni_agent::agent::ToolDecision::Pause(serde_json::Value::Null)
    }
}

#[tokio::test(start_paused = true)]
async fn subscriber_joining_at_any_moment_agrees_with_the_manager() {
    let store = MoodyStore::new();
    store.mood(|_, _| Act::Slow(secs(1)));
    let manager = store.manager().max_open(3).idle_shutdown(Some(secs(2))).build();
    let mut watchers = vec![Watch::new(&manager)];
    let busy: Vec<_> = (0..6)
        .map(|number| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let name = id(&format!("c{number}"));
                for round in 0..3 {
                    let opened = match manager.open(&name, parrot()).await {
                        Ok(opened) => opened,
                        Err(_) => manager.create_with_id(&name, parrot()).await.unwrap(),
                    };
                    opened.session.ask("Hi").await.unwrap();
                    manager.rename(&name, Some(&format!("{round}"))).await.unwrap();
                    if number % 2 == 0 {
                        manager.close(&name).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        tokio::time::sleep(std::time::Duration::from_millis(97)).await;
        watchers.push(Watch::new(&manager));
        for watcher in &mut watchers {
            watcher.assert_agrees(&manager);
        }
    }
    for caller in busy {
        in_time(caller).await.unwrap();
    }
    tokio::time::sleep(secs(60)).await;
    for watcher in &mut watchers {
        watcher.assert_agrees(&manager);
        assert_eq!(watcher.view.open, []);
    }
    assert_eq!(tasks(), 0);
}

async fn rename_often(manager: &Manager, times: usize) {
    for number in 0..times {
        manager.rename(&id("one"), Some(&format!("Title {number}"))).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lagging_subscriber_is_resynced_and_continues_from_there() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let _one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
    let mut lagging = manager.subscribe();
    rename_often(&manager, 300).await;
    let Some(Update::Resync(truth)) = in_time(lagging.next()).await else { panic!("it lagged") };
    assert_eq!(*truth, **manager.subscribe().snapshot().unwrap());
    rename_often(&manager, 1).await;
    let Some(Update::Event(event)) = in_time(lagging.next()).await else {
        panic!("an event follows the resync")
    };
    assert_eq!(event.id.number, truth.last.number + 1);
}

#[tokio::test(start_paused = true)]
async fn resume_from_an_event_gives_the_later_events_or_a_resync() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let _one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
    let mut first = manager.subscribe();
    rename_often(&manager, 3).await;
    let Some(Update::Event(seen)) = in_time(first.next()).await else { panic!("an event") };
    drop(first);
    rename_often(&manager, 2).await;
    let mut back = manager.resume_from(seen.id);
    for number in 1..=4 {
        let Some(Update::Event(event)) = in_time(back.next()).await else {
            panic!("the event should still be available")
        };
        assert_eq!(event.id.number, seen.id.number + number);
        assert!(matches!(&*event.event, ManagerEvent::Title { .. }));
    }
    let elsewhere = EventId::new(seen.id.life ^ 1, seen.id.number);
    let beyond = EventId::new(seen.id.life, 1 << 40);
    for strange in [elsewhere, beyond] {
        let mut resumed = manager.resume_from(strange);
        assert_eq!(resumed.last_id(), strange, "the reader has not seen the snapshot yet");
        let Some(Update::Resync(truth)) = in_time(resumed.next()).await else {
            panic!("the id belongs to another manager, so a resync comes first");
        };
        assert_eq!(resumed.last_id().life, seen.id.life);
        assert_eq!(truth.open, manager.list_open());
    }
}

#[tokio::test(start_paused = true)]
async fn subscription_ends_with_the_manager_even_if_created_later() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let _one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
    let mut watch = Watch::new(&manager);
    let last = watch.events.last_id();
    manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1))).await.unwrap();
    while watch.end.is_none() {
        watch.next().await;
    }
    assert_eq!(watch.end, Some(EndReason::Stopped));
    assert_eq!(watch.closed, [(id("one"), EndReason::Stopped)]);
    assert!(in_time(watch.events.next()).await.is_none());

    let mut late = Watch::new(&manager);
    late.next().await;
    assert_eq!(late.end, Some(EndReason::Stopped));
    let mut resumed = manager.resume_from(last);
    assert!(matches!(in_time(resumed.next()).await, Some(Update::Resync(_))));
    assert!(matches!(in_time(resumed.next()).await, Some(Update::Closed(_))));
    let mut resumed = manager.resume_from(watch.events.last_id());
    assert!(matches!(in_time(resumed.next()).await, Some(Update::Closed(_))));
}

// ---- exactly one `closed` for each `opened` ----

#[tokio::test(start_paused = true)]
async fn agent_ends_its_session_is_closed() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let one = manager.create_with_id(&id("one"), parrot().callbacks(Hooks::default())).await.unwrap();
    one.session.notify(Do::End).await.unwrap();
    in_time(one.session.ended()).await;
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed, [(id("one"), EndReason::AgentEnded)]);
    assert!(manager.open(&id("one"), parrot()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn session_that_lost_its_conversation_is_closed_and_can_be_opened_again() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
    store.meddle(&id("one")).await;
    one.session.ask("Hi").await.unwrap();
    in_time(one.session.ended()).await;
    settle().await;
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed, [(id("one"), EndReason::LostPlace)]);
    let again = manager.open(&id("one"), parrot()).await.unwrap();
    assert!(again.started);
    again.session.ask("Hi").await.unwrap();
    again.session.flush(secs(1)).await.unwrap();
}

/// The way in which a session ends while another operation is in progress.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Stop,
    AgentEnds,
    IdleShutdown,
    LosesPlace,
}

#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Open,
    Close,
    Delete,
    Rename,
}

/// Races each way of ending with each operation. From round to round, the operation starts one poll later.
#[tokio::test(start_paused = true)]
async fn any_race_gives_each_opened_event_one_closed_event() {
    use Ending::{AgentEnds, IdleShutdown, LosesPlace, Stop};
    use Meanwhile::{Close, Delete, Open, Rename};
    for ending in [Stop, AgentEnds, IdleShutdown, LosesPlace] {
        for meanwhile in [Open, Close, Delete, Rename] {
            for polls in 0..12 {
                race(ending, meanwhile, polls).await;
            }
        }
    }
}

async fn race(ending: Ending, meanwhile: Meanwhile, polls: usize) {
    let words = format!("{ending:?} while {meanwhile:?} after {polls}");
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let manager = store.manager().idle_shutdown(Some(secs(1))).build();
    let mut watch = Watch::new(&manager);
    let name = id("one");
    let hooked = || parrot().callbacks(Hooks::of(&lives));
    let one = manager.create_with_id(&name, hooked()).await.unwrap();
    let session = one.session.clone();
    match ending {
        Ending::Stop => drop(tokio::spawn(async move { session.stop(secs(1)).await })),
        Ending::AgentEnds => session.notify(Do::End).await.unwrap(),
        Ending::IdleShutdown => {
            drop((one.subscription, one.session, session));
            tokio::time::sleep(std::time::Duration::from_millis(999)).await;
            tokio::time::advance(std::time::Duration::from_millis(1)).await;
        }
        Ending::LosesPlace => {
            store.meddle(&name).await;
            session.set_title(Some("Mine")).await.unwrap();
        }
    }
    for _ in 0..polls {
        tokio::task::yield_now().await;
    }
    match meanwhile {
        Meanwhile::Open => {
            let opened =
                in_time(manager.open(&name, OpenOptions::new(hooked()).idle_shutdown(None))).await.unwrap();
            settle().await;
            // If the session was already open, it may have ended in the meantime. If this call has started the session,
            // the session must not have ended.
            assert!(!opened.started || opened.session.end().is_none(), "{words}");
        }
        Meanwhile::Close => {
            // If the session has lost the conversation, its unsaved data can't be saved. Closing may therefore fail.
            let _ = in_time(manager.close(&name)).await;
            assert!(manager.get(&name).is_none(), "{words}");
        }
        Meanwhile::Delete => {
            in_time(manager.delete(&name)).await.unwrap();
            settle().await;
            assert!(store.beneath().summary(&name).await.is_err(), "{words}");
        }
        Meanwhile::Rename => in_time(manager.rename(&name, Some("New"))).await.unwrap(),
    }
    settle().await;
    watch.assert_agrees(&manager);
    let closed = watch.words(&name).iter().filter(|word| **word == "closed").count();
    let opened = watch.words(&name).iter().filter(|word| **word == "opened").count();
    assert_eq!(opened - closed, watch.view.open.len(), "{words}");
    lives.assert_sound();
    manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1))).await.ok();
    settle().await;
    watch.catch_up();
    assert!(watch.view.open.is_empty(), "{words}");
    assert_eq!((tasks(), lives.living()), (0, 0), "{words}");
}

/// A session whose agent ends while the session is still being opened.
#[tokio::test(start_paused = true)]
async fn session_that_ends_during_open_is_closed_once_or_never_opened() {
    struct Brief;

    #[async_trait::async_trait]
    impl omni_agent::agent::AgentCallbacks for Brief {
        async fn init(
            &mut self,
            _: &mut omni_agent::agent::StateEdit,
            state: &omni_agent::agent::State,
        ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            let agent = state.agent().clone();
            tokio::spawn(async move {
                loop {
                    if let Some(agent) = agent.upgrade()
                        && agent.stop(secs(1)).await.is_ok()
                    {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            });
            Ok(())
        }
    }

    for delay in [None, Some(Act::Slow(secs(0)))] {
        let store = MoodyStore::new();
        if let Some(act) = delay {
            store.mood(move |_, _| act.clone());
        }
        let manager = store.manager().build();
        let mut watch = Watch::new(&manager);
        let outcome = in_time(manager.create_with_id(&id("one"), parrot().callbacks(Brief))).await;
        settle().await;
        watch.assert_agrees(&manager);
        assert!(watch.view.open.is_empty(), "{outcome:?}");
        let words = watch.words(&id("one"));
        let balance = |word| words.iter().filter(|other| **other == word).count();
        assert_eq!(balance("opened"), balance("closed"), "{words:?}");
        drop(outcome);
        manager.delete(&id("one")).await.unwrap();
        manager.create_with_id(&id("one"), parrot()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn events_are_numbered_with_and_without_subscribers() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let first = manager.subscribe().last_id();
    let _one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
    rename_often(&manager, 3).await;
    assert_eq!(manager.subscribe().last_id().number, first.number + 4);
}

//! A failing session does not affect any other session.

use std::time::Duration;

use omni_agent::{
    agent::{AgentBuilder, Event, Status},
    manager::{Manager, Shutdown},
    session::{Mode, SessionEvent, SessionSubscription},
    store::ConversationId,
    subscription::Update,
    testing::{Gate, Step},
    tool::tool_fn,
};
use serde_json::{Value, json};

use crate::rig::{
    Act, Call, Do, Hooks, Lives, MoodyStore, Watch, held, id, in_time, parrot, scripted, secs, settle, tasks,
};

/// Sessions that run at the same time as the failing session. One of them is idle, and the other is in the middle of a
/// turn.
struct Neighbours {
    idle: omni_agent::session::Session,
    busy: omni_agent::session::Session,
    gate: Gate,
}

impl Neighbours {
    async fn new(manager: &Manager) -> Self {
        let gate = Gate::new();
        let idle = manager.create_with_id(&id("idle"), parrot()).await.unwrap().session;
        let busy = manager.create_with_id(&id("busy"), scripted([held(&gate, "Yes")])).await.unwrap().session;
        busy.prompt("Hi").await.unwrap();
        in_time(gate.reached()).await;
        Self { idle, busy, gate }
    }

    async fn assert_well(self, store: &MoodyStore) {
        store.mood(|_, _| Act::Work);
        self.idle.ask("Still there?").await.unwrap();
        assert_eq!(self.busy.status().await.unwrap(), Status::Busy);
        self.gate.open();
        in_time(self.busy.wait_until_idle()).await.unwrap();
        for session in [self.idle, self.busy] {
            session.flush(secs(5)).await.unwrap();
            assert_eq!(session.tree().await.unwrap().len(), 2);
        }
    }
}

async fn failed(events: &mut SessionSubscription) {
    loop {
        let Some(Update::Event(event)) = in_time(events.next()).await else {
            panic!("no error event arrived")
        };
        if let SessionEvent::Agent(event) = &*event.event
            && matches!(**event, Event::Error { .. })
        {
            return;
        }
    }
}

/// Checks that a failed run ends neither its own session nor any other session.
async fn run_fails(agent: AgentBuilder) {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let neighbours = Neighbours::new(&manager).await;
    let one = manager.create_with_id(&id("one"), agent).await.unwrap();
    let mut events = one.subscription.unwrap();
    one.session.prompt("Hi").await.unwrap();
    failed(&mut events).await;
    assert_eq!(one.session.status().await.unwrap(), Status::Idle);
    neighbours.assert_well(&store).await;
    assert_eq!(manager.list_open().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_provider_ends_no_session() {
    run_fails(scripted([Step::new().then_text(["Half"]).panic("the provider broke")])).await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_callback_of_a_turn_ends_no_session() {
    struct Broken;

    #[async_trait::async_trait]
    impl omni_agent::agent::AgentCallbacks for Broken {
        async fn handle_turn(
            &mut self,
            _: &omni_agent::run::Response,
            _: &mut omni_agent::agent::State,
        ) -> omni_agent::agent::TurnDecision {
            panic!("the callback broke")
        }
    }

    run_fails(parrot().callbacks(Broken)).await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_callback_of_an_event_ends_no_session() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let neighbours = Neighbours::new(&manager).await;
    let one = manager.create_with_id(&id("one"), parrot().callbacks(Hooks::default())).await.unwrap();
    let mut events = one.subscription.unwrap();
    one.session.notify(Do::Panic).await.unwrap();
    failed(&mut events).await;
    one.session.ask("Hi").await.unwrap();
    neighbours.assert_well(&store).await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_tool_ends_no_session() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let neighbours = Neighbours::new(&manager).await;
    let steps = [Step::new().then_tool_use("use", "broken", json!({})).stop(), Step::text("Well")];
    let broken = tool_fn("broken", "Breaks.", |input: Value, _| async move {
        assert_ne!(input, json!({}), "the tool broke");
        Ok(input)
    });
    let one = manager.create_with_id(&id("one"), scripted(steps).tool(broken)).await.unwrap();
    one.session.ask("Hi").await.unwrap();
    neighbours.assert_well(&store).await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_terminate_does_not_affect_the_others() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let neighbours = Neighbours::new(&manager).await;
    let hooks = Hooks::default().terminate(Act::Panic);
    manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.unwrap();
    manager.close(&id("one")).await.unwrap();
    watch.assert_agrees(&manager);
    assert_eq!(watch.closed.len(), 1);
    neighbours.assert_well(&store).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_terminate_delays_only_its_close_and_only_for_a_limited_time() {
    let store = MoodyStore::new();
    let manager = store.manager().close_timeout(secs(10)).build();
    let neighbours = Neighbours::new(&manager).await;
    let lives = Lives::default();
    let hooks = Hooks::of(&lives).terminate(Act::Hang);
    manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.unwrap();
    let begun = tokio::time::Instant::now();
    let (name, other) = (id("one"), id("other"));
    let (closed, created) = tokio::join!(manager.close(&name), async {
        manager.create_with_id(&other, parrot()).await.unwrap();
        begun.elapsed()
    });
    assert!(created < secs(1));
    assert!(begun.elapsed() <= secs(11), "{closed:?}");
    assert_eq!(lives.living(), 0, "the agent is dropped with its session");
    assert!(manager.open(&name, parrot()).await.unwrap().started);
    neighbours.assert_well(&store).await;
}

#[tokio::test(start_paused = true)]
async fn store_failing_for_one_session_does_not_affect_the_others() {
    for call in [Call::Commit, Call::State] {
        for act in [Act::Panic, Act::Fail, Act::Hang, Act::Slow(secs(1000))] {
            let store = MoodyStore::new();
            let manager = store.manager().build();
            let mut watch = Watch::new(&manager);
            let neighbours = Neighbours::new(&manager).await;
            let one = manager.create_with_id(&id("one"), parrot()).await.unwrap();
            let (broken, name) = (act.clone(), id("one"));
            store.mood(move |now, id| if now == call && *id == name { broken.clone() } else { Act::Work });
            one.session.ask("Hi").await.unwrap();
            one.session.set_title(Some("Title")).await.unwrap();
            tokio::time::sleep(secs(100)).await;
            watch.assert_agrees(&manager);
            assert!(one.session.end().is_none(), "{call:?} {act:?}");
            neighbours.assert_well(&store).await;
            in_time(one.session.flush(Duration::from_mins(30))).await.unwrap();
            manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1))).await.unwrap();
            drop(one);
            settle().await;
            assert_eq!(tasks(), 0, "{call:?} {act:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn list_that_fails_or_panics_affects_only_its_caller() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let neighbours = Neighbours::new(&manager).await;
    store.make(Call::List, Act::Fail);
    assert!(manager.list(omni_agent::store::Page::default()).await.is_err());
    store.make(Call::List, Act::Panic);
    let listing = tokio::spawn({
        let manager = manager.clone();
        async move { manager.list(omni_agent::store::Page::default()).await }
    });
    assert!(listing.await.is_err());
    neighbours.assert_well(&store).await;
}

#[tokio::test(start_paused = true)]
async fn stalled_subscriber_delays_no_other() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let _stalled = manager.subscribe();
    let neighbours = Neighbours::new(&manager).await;
    let names: Vec<ConversationId> = (0..50).map(|number| id(&format!("n{number}"))).collect();
    for name in &names {
        let one = manager.create_with_id(name, parrot()).await.unwrap();
        let _stalled = one.session.subscribe(Mode::Observer).await.unwrap();
        for _ in 0..10 {
            one.session.ask("Hi").await.unwrap();
        }
    }
    neighbours.assert_well(&store).await;
    let mut watch = Watch::new(&manager);
    watch.assert_agrees(&manager);
}

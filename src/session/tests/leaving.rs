//! Sessions that leave their turn in flight to the next owner.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    support::{Act, ScriptedStore},
    watch::{Hooks, Log, held, in_time, reached, scripted},
};
use crate::{
    agent::{Durable, Event, Status, ToolDecision},
    run::ErrorKind,
    session::{Mode, Session, SessionBuilder, SessionSnapshot, SessionSubscription},
    store::{MemoryStore, Store, StoredTurn},
    subscription::{End, Update},
    testing::{Gate, Step},
};

const SOON: Duration = Duration::from_secs(5);

fn on(store: &Arc<dyn Store>, level: Durable, steps: impl IntoIterator<Item = Step>) -> SessionBuilder {
    Session::builder(Arc::clone(store)).agent(scripted(steps)).durable(level)
}

/// Hands over a session whose model is answering. Returns the session and the stored turn.
async fn handed_over(store: &Arc<dyn Store>, level: Durable) -> (Session, Option<StoredTurn>) {
    let gate = Gate::new();
    let session = on(store, level, [held(&gate)]).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    reached(&gate).await;
    in_time(session.hand_over(Duration::from_millis(10), SOON)).await.unwrap();
    let turn = store.turn(session.id()).await.ok().flatten();
    (session, turn)
}

#[tokio::test(start_paused = true)]
async fn hand_over_in_the_middle_of_an_answer_leaves_the_turn() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (session, turn) = handed_over(&store, level).await;
        let record = turn.expect("the turn is left").record;
        assert_eq!((record.lives, record.orderly), (0, true), "{level:?}");

        let session = on(&store, level, [Step::text("A")]).open(session.id().clone()).await.unwrap();
        in_time(session.wait_until_idle()).await.unwrap();
        in_time(session.flush(SOON)).await.unwrap();
        assert_eq!(session.tree().await.unwrap().to_string(), "* 1 user: Q\n> 2 assistant: A");
        assert_eq!(store.turn(session.id()).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn hand_over_within_the_grace_finishes_the_run() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let step = Step::new().then_text(["A"]).wait(Duration::from_secs(1)).stop();
    let session = on(&store, Durable::InFlight, [step]).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    in_time(session.hand_over(Duration::from_secs(2), SOON)).await.unwrap();
    let stored = store.load(session.id()).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.turn), (2, None));
}

#[tokio::test(start_paused = true)]
async fn hand_over_of_an_unrecorded_turn_interrupts_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (session, turn) = handed_over(&store, Durable::Turns).await;
    assert_eq!(turn, None);
    assert!(session.end().is_some());
}

#[tokio::test(start_paused = true)]
async fn hand_over_ends_the_agent_before_the_session() {
    let (store, gate, log): (Arc<dyn Store>, _, _) =
        (Arc::new(MemoryStore::new()), Gate::new(), Log::default());
    let own = log.clone();
    let hooks = Hooks::new().on_end(move |reason, _| {
        let log = own.clone();
        async move {
            sleep(Duration::from_secs(1)).await;
            log.push(reason.to_string());
        }
    });
    let agent = scripted([held(&gate)]).callbacks(hooks);
    let session = Session::builder(store).agent(agent).durable(Durable::InFlight).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    reached(&gate).await;
    in_time(session.hand_over(Duration::ZERO, SOON)).await.unwrap();
    assert_eq!(log.all(), ["stopped"]);
    assert_in_flight(&session.end().unwrap());
}

#[tokio::test(start_paused = true)]
async fn hand_over_while_writes_fail_leaves_the_older_record_within_the_deadline() {
    let (store, gate) = (ScriptedStore::new([]), Gate::new());
    let session = on(&store.as_dyn(), Durable::InFlight, [held(&gate)]).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    reached(&gate).await;
    store.otherwise(|| Act::Fail);
    let begun = Instant::now();
    let handed_over = in_time(session.hand_over(Duration::ZERO, SOON)).await;
    assert_eq!(handed_over.unwrap_err().kind(), ErrorKind::Unsaved);
    assert!(begun.elapsed() < SOON + Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_in_flight(&session.end().unwrap());
    assert!(store.beneath().turn(session.id()).await.unwrap().is_some());
}

/// Asserts that the last snapshot shows a turn in flight, and no message of the turn in the history.
#[track_caller]
fn assert_in_flight(end: &End<SessionSnapshot>) {
    let agent = &end.snapshot.as_ref().unwrap().agent;
    assert_ne!(agent.status, Status::Idle);
    assert_eq!((agent.state.history.len(), agent.last_run.is_some()), (0, false));
    assert!(!agent.pending.is_empty());
}

/// Returns a session that waits for a decision, and an observer of the session.
async fn paused(store: &ScriptedStore) -> (Session, SessionSubscription) {
    let hooks = Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("may I?")));
    let agent = scripted([Step::tool_use("t", "echo", json!({}))]).callbacks(hooks);
    let builder = Session::builder(store.as_dyn()).agent(agent).durable(Durable::InFlight);
    let session = builder.create().await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt("Q").await.unwrap();
    while session.status().await.unwrap() != Status::Paused {
        events.next().await;
    }
    (session, events)
}

/// Returns the end of the session.
async fn end(mut events: SessionSubscription) -> End<SessionSnapshot> {
    loop {
        if let Update::Closed(end) = in_time(events.next()).await.unwrap() {
            return end;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_while_paused_and_saving_leaves_the_turn() {
    let (store, gate) = (ScriptedStore::new([]), Gate::new());
    let (session, events) = paused(&store).await;
    let (id, held) = (session.id().clone(), gate.clone());
    store.otherwise(move || Act::Wait(held.clone()));
    session.set_title(Some("Letters")).await.unwrap();
    reached(&gate).await;
    drop(session);
    sleep(Duration::from_millis(1)).await;
    gate.open();
    assert_in_flight(&end(events).await);
    let stored = store.beneath().load(&id).await.unwrap();
    assert_eq!((stored.state.title.as_deref(), stored.nodes.len()), (Some("Letters"), 0));
    assert_eq!(stored.turn.unwrap().record.waiting.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_while_paused_and_writes_fail_leaves_the_stored_turn() {
    let store = ScriptedStore::new([]);
    let (session, events) = paused(&store).await;
    let id = session.id().clone();
    store.otherwise(|| Act::Fail);
    session.set_title(Some("Letters")).await.unwrap();
    drop(session);
    assert_in_flight(&end(events).await);
    assert_eq!(store.beneath().turn(&id).await.unwrap().unwrap().record.waiting.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_before_the_session_knows_of_the_pause_leaves_the_turn() {
    let (store, gate) = (ScriptedStore::new([]), Gate::new());
    let hooks = Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("may I?")));
    let step = Step::new().gate(&gate).then_tool_use("t", "echo", json!({})).stop();
    let builder = Session::builder(store.as_dyn()).agent(scripted([step]).callbacks(hooks));
    let session = builder.durable(Durable::InFlight).create().await.unwrap();
    let (id, events) = (session.id().clone(), session.subscribe(Mode::Observer).await.unwrap());
    session.prompt("Q").await.unwrap();
    let agent = session.shared.agent.get().unwrap().upgrade().unwrap();
    let mut of_agent = agent.subscribe().await.unwrap();
    drop(agent);
    // The agent publishes an event before it passes the event to the session. So this task runs before the session's.
    let dropping = tokio::spawn(async move {
        while let Some(update) = of_agent.next().await {
            if let Update::Event(numbered) = update
                && matches!(*numbered.event, Event::Status { status: Status::Paused, .. })
            {
                return drop(session);
            }
        }
    });
    gate.open();
    in_time(dropping).await.unwrap();
    assert_in_flight(&end(events).await);
    assert_eq!(store.beneath().turn(&id).await.unwrap().unwrap().record.waiting.len(), 1);
}

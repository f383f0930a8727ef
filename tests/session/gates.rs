//! A store that fails, or a lease that is lost, while an effect or a reply waits for a record of the turn in flight.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::poll;
use omni_agent::{
    ErrorKind,
    agent::{AgentBuilder, Durable, Status},
    run::{Prompt, RunOutcome},
    session::{Session, SessionEvent, SessionSubscription, StoreReport},
    store::Owner,
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
    tool::Decision,
};
use serde_json::json;

use crate::{
    durable::{World, asking, id, paused, sends, texts},
    leasing::LeasingStore,
    support::{Act, ScriptedStore, event, watch},
    watch::{held, in_time, reached},
};

/// A world whose store fails while `is_down` is set.
fn world() -> (World, Arc<AtomicBool>) {
    let store = ScriptedStore::new([]);
    let is_down = Arc::new(AtomicBool::new(false));
    let down = Arc::clone(&is_down);
    store.otherwise(move || if down.load(Ordering::SeqCst) { Act::Fail } else { Act::Work });
    (World { store: store.as_dyn(), ..World::new(Durable::InFlight) }, is_down)
}

/// Returns an answer that uses the tool `send` after the gate has opened.
fn held_sends(gate: &Gate) -> Step {
    Step::new().gate(gate).then_tool_use("t", "send", json!({ "to": "ann" })).stop()
}

/// Waits for the report that the store has failed.
async fn failed(events: &mut SessionSubscription) {
    while !matches!(&*event(events).await, SessionEvent::Store(StoreReport::Failed { .. })) {}
}

/// Waits until the agent is idle.
async fn idle(session: &Session) {
    while session.status().await.unwrap() != Status::Idle {
        tokio::task::yield_now().await;
    }
}

#[test]
fn tool_waits_while_the_store_is_down_and_begins_once_when_it_works() {
    let (world, is_down) = world();
    let gate = Gate::new();
    let script = [held_sends(&gate), Step::text("Done")];
    world.process(world.agent(script), async |session| {
        let mut events = watch(&session).await;
        session.prompt("Write to Ann").await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        gate.open();
        failed(&mut events).await;
        failed(&mut events).await;
        assert_eq!((session.status().await.unwrap(), world.sent()), (Status::Busy, 0));
        is_down.store(false, Ordering::SeqCst);
        session.wait_until_idle().await.unwrap();
        session.flush(Duration::from_mins(1)).await.unwrap();
    });
    assert_eq!((world.sent(), world.turn()), (1, None));
}

#[test]
fn outcome_of_a_stored_prompt_does_not_wait_for_later_writes() {
    let (world, is_down) = world();
    world.process(world.agent([Step::text("A")]), async |session| {
        let mut events = watch(&session).await;
        session.prompt(Prompt::new("Q").with_id("order")).await.unwrap();
        let ended = session.outcome("order").await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        session.set_title(Some("T")).await.unwrap();
        failed(&mut events).await;
        assert_eq!(in_time(session.outcome("order")).await.unwrap(), ended);
    });
}

#[test]
fn outcome_waits_until_the_end_of_the_run_is_stored() {
    let (world, is_down) = world();
    let gate = Gate::new();
    world.process(world.agent([held(&gate)]), async |session| {
        let mut events = watch(&session).await;
        session.prompt(Prompt::new("Q").with_id("order")).await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        let mut waiting = pin!(session.outcome("order"));
        assert!(poll!(&mut waiting).is_pending());
        gate.open();
        failed(&mut events).await;
        in_time(idle(&session)).await;
        assert!(poll!(&mut waiting).is_pending());
        is_down.store(false, Ordering::SeqCst);
        in_time(waiting).await.unwrap();
    });
}

#[test]
fn cancel_while_the_store_is_down_takes_effect_and_replies_when_it_is_stored() {
    let (world, is_down) = world();
    let gate = Gate::new();
    world.process(world.agent([held_sends(&gate)]), async |session| {
        let mut events = watch(&session).await;
        session.prompt("Write to Ann").await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        gate.open();
        failed(&mut events).await;
        let other = session.clone();
        let cancelled = tokio::spawn(async move { other.cancel().await });
        in_time(idle(&session)).await;
        failed(&mut events).await;
        assert!(!cancelled.is_finished());
        is_down.store(false, Ordering::SeqCst);
        cancelled.await.unwrap().unwrap();
    });
    let stored = world.stored();
    assert_eq!((stored.turn, stored.last_run.unwrap().outcome), (None, RunOutcome::Cancelled));
    assert_eq!(world.sent(), 0);
}

#[test]
fn cancel_that_is_not_stored_before_a_kill_has_no_reply_and_the_turn_continues() {
    let (world, is_down) = world();
    let gate = Gate::new();
    world.process(world.agent([held(&gate)]), async |session| {
        let mut events = watch(&session).await;
        session.prompt("Q").await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        let other = session.clone();
        let cancelled = tokio::spawn(async move { other.cancel().await });
        failed(&mut events).await;
        assert_eq!(session.status().await.unwrap(), Status::Idle);
        assert!(!cancelled.is_finished());
    });
    is_down.store(false, Ordering::SeqCst);
    world.process(world.agent([Step::text("A")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(Duration::from_mins(1)).await.unwrap();
    });
    assert_eq!(texts(&world.stored()), ["Q", "A"]);
}

#[test]
fn cancel_that_was_stored_before_a_kill_has_ended_the_run() {
    let (world, _) = world();
    world.process(world.agent([Step::text("A").hang()]), async |session| {
        session.prompt("Q").await.unwrap();
        session.cancel().await.unwrap();
    });
    world.process(world.agent([]), async |session| {
        assert_eq!(session.status().await.unwrap(), Status::Idle);
        let snapshot = session.snapshot().await.unwrap();
        let last = snapshot.agent.last_run.unwrap();
        assert_eq!((&last.outcome, last.unanswered.len()), (&RunOutcome::Cancelled, 1));
    });
}

#[test]
fn decision_while_the_store_is_down_replies_and_takes_effect_when_it_is_stored() {
    let (world, is_down) = world();
    let agent = world.agent([sends(), Step::text("Done")]).callbacks(asking());
    world.process(agent, async |session| {
        session.prompt("Write to Ann").await.unwrap();
        paused(&session).await;
        is_down.store(true, Ordering::SeqCst);
        let mut events = watch(&session).await;
        let other = session.clone();
        let decided = tokio::spawn(async move { other.resume("t", Decision::Execute).await });
        failed(&mut events).await;
        assert!(!decided.is_finished());
        assert_eq!(world.sent(), 0);
        is_down.store(false, Ordering::SeqCst);
        decided.await.unwrap().unwrap();
        session.wait_until_idle().await.unwrap();
    });
    assert_eq!(world.sent(), 1);
}

#[test]
fn outcome_of_a_prompt_waits_until_it_is_stored() {
    let (world, is_down) = world();
    let gate = Gate::new();
    world.process(world.agent([held(&gate)]), async |session| {
        let mut events = watch(&session).await;
        session.prompt(omni_agent::run::Prompt::new("Q").with_id("p")).await.unwrap();
        is_down.store(true, Ordering::SeqCst);
        let other = session.clone();
        let ended = tokio::spawn(async move { other.outcome("p").await });
        gate.open();
        failed(&mut events).await;
        assert_eq!(session.status().await.unwrap(), Status::Idle);
        assert!(!ended.is_finished());
        is_down.store(false, Ordering::SeqCst);
        let ended = ended.await.unwrap().unwrap();
        let head = session.tree().await.unwrap().head();
        assert_eq!((ended.through, head.is_some()), (head, true));
    });
}

/// Returns a session in a store with leases.
async fn leased(world: &World, agent: AgentBuilder) -> Session {
    let builder = Session::builder(Arc::clone(&world.store)).agent(agent).owner(Owner::new("ann"));
    builder.durable(Durable::InFlight).create_with_id(id()).await.unwrap()
}

fn leasing() -> (World, LeasingStore) {
    let store = LeasingStore::new();
    (World { store: store.as_dyn(), ..World::new(Durable::InFlight) }, store)
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), future).await.expect("nothing came")
}

// These tests run in real time, because a thread of the crate renews the leases.

#[tokio::test]
async fn tool_does_not_begin_if_the_lease_is_lost_at_its_gate() {
    let (world, store) = leasing();
    let gate = Gate::new();
    let provider = ScriptedProvider::new([held_sends(&gate)]);
    let session = leased(&world, world.agent_at(&provider, None)).await;
    within(session.prompt("Write to Ann")).await.unwrap();
    reached(&gate).await;
    store.take(&id(), &Owner::new("ben"));
    gate.open();
    assert_eq!(within(session.ended()).await.reason, EndReason::LostPlace);
    assert_eq!(world.sent(), 0);
    assert!(world.store.turn(&id()).await.unwrap().is_some(), "the turn belongs to the new owner");
}

#[tokio::test]
async fn reply_that_waits_when_the_lease_is_lost_is_the_end_of_the_session() {
    let (world, store) = leasing();
    let session = leased(&world, world.agent([sends()]).callbacks(asking())).await;
    within(session.prompt("Write to Ann")).await.unwrap();
    within(paused(&session)).await;
    store.take(&id(), &Owner::new("ben"));
    let error = within(session.resume("t", Decision::Execute)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.member("reason")),
        (ErrorKind::Ended, Some(&"lost_place".into())),
        "{error:?}"
    );
    assert_eq!(world.sent(), 0);
    let turn = world.store.turn(&id()).await.unwrap().unwrap();
    assert_eq!(turn.record.waiting.len(), 1, "the approval waits for the new owner");
}

//! The end of a session with unsaved data: what `stop` reports, and which data is stored.

use std::time::Duration;

use async_trait::async_trait;
use omni_agent::{
    Error, ErrorKind,
    agent::{AgentCallbacks, Event, State},
    session::{Mode, Session, SessionEvent, StoreReport},
    subscription::{EndReason, Update},
    testing::{Gate, Step},
    tree::Tree,
};
use tokio::time::Instant;

use crate::support::{
    Act, ScriptedStore, created, event, held, id, node, parrot, scripted, secs, tree_in, watch,
};

/// Callbacks whose `terminate` never returns.
struct Endless;

#[async_trait]
impl AgentCallbacks for Endless {
    async fn terminate(&mut self, _: &EndReason, _: &State) {
        std::future::pending::<()>().await;
    }
}

fn unsaved(stopped: Result<(), Error>) -> (usize, Duration, Option<String>) {
    let error = stopped.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsaved);
    let member = |name| error.member(name).cloned().unwrap_or_default();
    let (nodes, waited, why) = (member("nodes"), member("waited"), member("error"));
    let read = "the members have their types";
    (
        serde_json::from_value(nodes).expect(read),
        serde_json::from_value(waited).expect(read),
        serde_json::from_value(why).expect(read),
    )
}

#[tokio::test(start_paused = true)]
async fn stop_saves_unsaved_turns() {
    let store = ScriptedStore::new([Act::Slow(secs(2)), Act::Slow(secs(2)), Act::Slow(secs(2))]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    let tree = session.tree().await.unwrap();
    session.stop(secs(10)).await.unwrap();
    assert_eq!(store.tree(session.id()).await, tree);
    let end = session.end().unwrap();
    assert_eq!(end.reason, EndReason::Stopped);
    assert_eq!(end.snapshot.unwrap().unsaved, []);
    // A second `stop` also succeeds.
    session.stop(secs(1)).await.unwrap();
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn stop_repeats_a_waiting_write_at_once() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    for _ in 0..6 {
        store.arrival().await;
    }
    store.otherwise(|| Act::Work);
    let start = Instant::now();
    session.stop(secs(1)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(store.tree(session.id()).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn stop_deadline_passes_reports_the_number_of_unsaved_messages() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    store.otherwise(|| Act::Hang);
    session.ask("Two").await.unwrap();
    let start = Instant::now();
    assert_eq!(unsaved(session.stop(secs(5)).await), (2, secs(5), None));
    assert_eq!(start.elapsed(), secs(5));
    let last = session.end().unwrap().snapshot.unwrap();
    assert_eq!(last.unsaved, [node(3), node(4)]);
    assert_eq!(last.tree.len(), 4);
    assert_eq!(store.tree(session.id()).await.len(), 2);
    // The session has ended, but a later `stop` still reports the same unsaved data.
    assert_eq!(unsaved(session.stop(secs(1)).await), (2, secs(1), None));
}

#[tokio::test(start_paused = true)]
async fn stop_of_failing_store_names_the_failure() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    let (nodes, _, error) = unsaved(session.stop(secs(5)).await);
    assert_eq!(nodes, 2);
    assert!(error.unwrap().contains("writing failed"));
    let last = session.end().unwrap().snapshot.unwrap();
    assert!(matches!(&last.store, Some(StoreReport::Failed { .. })));
    let tried = store.tried().len();
    assert!((10..30).contains(&tried), "{tried}");
}

#[tokio::test(start_paused = true)]
async fn stop_deadline_zero_reports_whether_everything_is_saved() {
    let store = ScriptedStore::new([Act::Work, Act::Hang]);
    let saved = created(&store, "saved", parrot()).await;
    saved.ask("One").await.unwrap();
    saved.flush(secs(1)).await.unwrap();
    saved.stop(Duration::ZERO).await.unwrap();

    let session = created(&store, "unsaved", parrot()).await;
    session.ask("One").await.unwrap();
    store.arrival().await;
    assert_eq!(unsaved(session.stop(Duration::ZERO).await), (2, Duration::ZERO, None));
}

#[tokio::test(start_paused = true)]
async fn stop_deadline_zero_with_a_branch_in_flight_restores_the_tree() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", scripted([Step::text("Yes."), held(&gate, "No.")])).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let tree = session.tree().await.unwrap();
    session.again(node(1)).start().await.unwrap();
    gate.reached().await;
    // There is no time to store that the run was cancelled.
    assert_eq!(unsaved(session.stop(Duration::ZERO).await), (0, Duration::ZERO, None));
    let last = session.end().unwrap().snapshot.unwrap();
    assert_eq!(last.tree, tree);
    assert_eq!(*last.tree.history(), last.agent.state.history);
    assert_eq!(store.tree(session.id()).await, tree);
}

#[tokio::test(start_paused = true)]
async fn stop_while_terminate_hangs_saves_meanwhile() {
    let store = ScriptedStore::new([Act::Slow(secs(1)), Act::Slow(secs(1))]);
    let agent = parrot().callbacks(Endless);
    let session = Session::builder(store.as_dyn()).agent(agent).create().await.unwrap();
    session.ask("One").await.unwrap();
    let tree = session.tree().await.unwrap();
    let start = Instant::now();
    session.stop(secs(10)).await.unwrap();
    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(store.tree(session.id()).await, tree);
    let last = session.end().unwrap().snapshot.unwrap();
    assert_eq!((&last.tree, &*last.unsaved), (&tree, &[][..]));
}

#[tokio::test(start_paused = true)]
async fn stop_while_terminate_hangs_repeats_failed_writes_meanwhile() {
    let store = ScriptedStore::new([Act::Fail, Act::Fail, Act::Fail]);
    let session = created(&store, "talk", parrot().callbacks(Endless)).await;
    session.ask("One").await.unwrap();
    let tree = session.tree().await.unwrap();
    session.stop(secs(10)).await.unwrap();
    assert_eq!(store.tree(session.id()).await, tree);
}

#[tokio::test(start_paused = true)]
async fn stop_twice_at_once_both_return_the_same() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    let (first, second, ()) = tokio::join!(session.stop(secs(60)), session.stop(secs(60)), async {
        gate.reached().await;
        gate.open();
    });
    first.unwrap();
    second.unwrap();

    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Hang);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    let start = Instant::now();
    // The earlier of the two deadlines applies to both calls.
    let (first, second) = tokio::join!(session.stop(secs(60)), session.stop(secs(3)));
    assert_eq!(unsaved(first).0, 2);
    assert_eq!(unsaved(second).0, 2);
    assert_eq!(start.elapsed(), secs(3));
}

#[tokio::test(start_paused = true)]
async fn stop_with_a_branch_in_flight_emits_its_end_and_keeps_the_tree() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", scripted([Step::text("Yes."), held(&gate, "No.")])).await;
    session.ask("One").await.unwrap();
    let tree = session.tree().await.unwrap();
    session.run("Two").below(Some(node(2))).start().await.unwrap();
    session.again(node(1)).start().await.unwrap_err();
    gate.reached().await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    let mut words = Vec::new();
    let end = loop {
        match events.next().await.unwrap() {
            Update::Event(event) => words.push(crate::basics::word(&event.event)),
            Update::Closed(end) => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(words, ["status", "cancelled", "tree", "state", "store record"]);
    let last = end.snapshot.unwrap();
    assert_eq!(last.tree, tree);
    assert_eq!(*tree.history(), last.agent.state.history);
    assert_eq!(store.tree(session.id()).await, tree);
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn stop_during_a_turn_discards_it_and_saves_the_rest() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let steps = [Step::text("Yes."), held(&gate, "No.")];
    let session = Session::builder(store.as_dyn()).agent(scripted(steps)).create().await.unwrap();
    session.ask("One").await.unwrap();
    session.prompt("Two").await.unwrap();
    gate.reached().await;
    session.stop(secs(1)).await.unwrap();
    let last = session.end().unwrap().snapshot.unwrap();
    assert_eq!(last.tree.len(), 2);
    assert_eq!(store.tree(session.id()).await, last.tree);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_unsaved_turns_are_saved() {
    let store = ScriptedStore::new([Act::Slow(secs(5)), Act::Fail, Act::Slow(secs(5))]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let name = session.id().clone();
    let (mut events, guard) = watch(&session).await.into_parts();
    session.ask("One").await.unwrap();
    drop(guard);
    drop(session);
    let end = loop {
        if let Update::Closed(end) = events.next().await.unwrap() {
            break end;
        }
    };
    assert_eq!(end.reason, EndReason::HandlesDropped);
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, []);
    assert_eq!(store.tree(&name).await, last.tree);
    assert_eq!(last.tree.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_waits_for_a_hanging_store_until_the_limit() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Hang);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).end_timeout(secs(4));
    let session = builder.create().await.unwrap();
    let (mut events, guard) = watch(&session).await.into_parts();
    session.ask("One").await.unwrap();
    drop((guard, session));
    let start = Instant::now();
    let end = loop {
        if let Update::Closed(end) = events.next().await.unwrap() {
            break end;
        }
    };
    assert_eq!(start.elapsed(), secs(4));
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, [node(1), node(2)]);
}

#[tokio::test(start_paused = true)]
async fn idle_shutdown_waits_for_saving() {
    let store = ScriptedStore::new([Act::Work, Act::Slow(secs(30)), Act::Fail]);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).idle_shutdown(secs(1));
    let session = builder.create_with_id(id("talk")).await.unwrap();
    let start = Instant::now();
    session.ask("One").await.unwrap();
    let mut events = watch(&session).await;
    session.set_title(Some("Talk")).await.unwrap();
    loop {
        if let SessionEvent::Store(StoreReport::Saved { .. }) = &*event(&mut events).await {
            break;
        }
    }
    assert!(session.end().is_none());
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Idle);
    // The turn is saved after half a minute, and the title is saved half a second later. Then the idle time starts
    // again.
    assert_eq!(start.elapsed(), Duration::from_millis(31_500));
    assert_eq!(store.tree(&id("talk")).await, end.snapshot.unwrap().tree);
}

#[tokio::test(start_paused = true)]
async fn agent_ends_by_itself_unsaved_turns_are_saved() {
    let store = ScriptedStore::new([Act::Slow(secs(1)), Act::Slow(secs(1))]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.ask("One").await.unwrap();
    let agent = session.state().await.unwrap().agent().upgrade().unwrap();
    agent.stop(secs(1)).await.unwrap();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::AgentEnded);
    assert_eq!(store.tree(session.id()).await, end.snapshot.unwrap().tree);
}

#[tokio::test(start_paused = true)]
async fn stop_right_after_a_commit_saves_it() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = watch(&session).await;
    session.prompt("One").await.unwrap();
    loop {
        if let SessionEvent::Agent(agent_event) = &*event(&mut events).await
            && matches!(**agent_event, Event::Turn { .. })
        {
            break;
        }
    }
    session.stop(secs(1)).await.unwrap();
    let kept: Tree = tree_in(&**store.beneath(), session.id()).await;
    assert_eq!(kept.len(), 2);
}

//! The idle shutdown. The idle time starts when the last controller is dropped. It also starts when the agent becomes
//! idle and there is no controller.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    agent::{Status, ToolDecision},
    run::Prompt,
    session::{Mode, Session, SessionSubscription},
    store::{ConversationId, MemoryStore, Store},
    subscription::EndReason,
    testing::{Gate, Step},
    tool::Decision,
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::watch::{Hooks, answered, held, in_time, on, reached, scripted};

const AFTER: Duration = Duration::from_mins(1);
const ALMOST: Duration = Duration::from_secs(59);
/// The part of the idle time that remains after `ALMOST`.
const REST: Duration = Duration::from_secs(1);

/// Returns a session with a controller. The returned handle does not keep the session open.
async fn open(agent: omni_agent::agent::AgentBuilder, after: Duration) -> (Session, SessionSubscription) {
    let session = on(agent).idle_shutdown(after).create().await.unwrap();
    let controller = answered(session.subscribe(Mode::Controller)).await.unwrap();
    (session, controller)
}

/// Checks that the idle shutdown ends the session after this time.
async fn ends_in(session: &Session, after: Duration) {
    let begun = Instant::now();
    let end = in_time(session.ended()).await;
    assert_eq!(end.reason, EndReason::Idle);
    let took = begun.elapsed();
    assert!(took >= after && took <= after + Duration::from_millis(50), "{took:?}, not {after:?}");
    let error = answered(session.prompt("Q")).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"idle".into())), "{error:?}");
}

/// Checks that the session does not end during this time.
async fn lives(session: &Session, long: Duration) {
    assert!(timeout(long, session.ended()).await.is_err(), "the session ended: {:?}", session.end());
}

#[tokio::test(start_paused = true)]
async fn controller_leaves_while_idle_session_ends_after_the_time() {
    let (session, controller) = open(scripted([]), AFTER).await;
    lives(&session, AFTER * 10).await;
    drop(controller);
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn controller_becomes_observer_session_ends_after_the_time() {
    let (session, mut controller) = open(scripted([]), AFTER).await;
    controller.set_mode(Mode::Observer).await.unwrap();
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn controller_leaves_another_remains_session_stays() {
    let (session, controller) = open(scripted([]), AFTER).await;
    let other = answered(session.subscribe(Mode::Controller)).await.unwrap();
    drop(controller);
    lives(&session, AFTER * 10).await;
    drop(other);
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn observer_from_the_start_session_ends_after_the_time() {
    for leaves in [false, true] {
        let session = on(scripted([])).idle_shutdown(AFTER).create().await.unwrap();
        let observer = answered(session.subscribe(Mode::Observer)).await.unwrap();
        let _observer = if leaves { None } else { Some(observer) };
        ends_in(&session, AFTER).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_subscriber_from_the_start_session_ends_after_the_time() {
    for after in [AFTER, Duration::ZERO] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let builder = || Session::builder(Arc::clone(&store)).agent(scripted([])).idle_shutdown(after);
        let created = builder().create_with_id(ConversationId::new("talk").unwrap()).await.unwrap();
        ends_in(&created, after).await;
        let loaded = builder().open(created.id().clone()).await.unwrap();
        ends_in(&loaded, after).await;
    }
}

#[tokio::test(start_paused = true)]
async fn zero_idle_time_first_subscription_or_prompt_is_in_time() {
    let builder = || on(scripted([Step::text("A1")])).idle_shutdown(Duration::ZERO);
    let session = builder().create().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let controller = answered(session.subscribe(Mode::Controller)).await.unwrap();
    lives(&session, AFTER * 10).await;
    drop(controller);
    ends_in(&session, Duration::ZERO).await;

    let session = builder().create().await.unwrap();
    assert_eq!(session.ask("Q1").await.unwrap().text(), "A1");
    ends_in(&session, Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn other_changes_do_not_restart_the_time() {
    let session = on(scripted([])).idle_shutdown(AFTER).create().await.unwrap();
    lives(&session, ALMOST).await;
    answered(session.set_title(Some("A title"))).await.unwrap();
    answered(session.configure(|_| Ok(()))).await.unwrap();
    ends_in(&session, REST).await;
}

#[tokio::test(start_paused = true)]
async fn agent_becomes_idle_without_a_controller_session_ends() {
    let session = on(scripted([Step::text("A1")])).idle_shutdown(AFTER).create().await.unwrap();
    session.ask("Q1").await.unwrap();
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn run_fails_without_a_controller_session_ends() {
    let session = on(scripted([])).idle_shutdown(AFTER).create().await.unwrap();
    session.ask("Q1").await.unwrap_err();
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn idle_time_unset_session_stays() {
    let session = on(scripted([Step::text("A1")])).create().await.unwrap();
    drop(answered(session.subscribe(Mode::Controller)).await.unwrap());
    session.ask("Q1").await.unwrap();
    lives(&session, AFTER * 1000).await;
}

#[tokio::test(start_paused = true)]
async fn zero_idle_time_session_ends_at_once() {
    let (session, controller) = open(scripted([]), Duration::ZERO).await;
    lives(&session, AFTER).await;
    drop(controller);
    ends_in(&session, Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn zero_idle_time_turn_in_flight_is_finished_and_saved() {
    let gate = Gate::new();
    let (session, controller) = open(scripted([held(&gate)]), Duration::ZERO).await;
    answered(session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    drop(controller);
    lives(&session, AFTER).await;
    gate.open();
    let end = in_time(session.ended()).await;
    assert_eq!(end.reason, EndReason::Idle);
    let last = end.snapshot.unwrap();
    assert_eq!((last.tree.len(), last.unsaved.len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn controller_leaves_while_busy_session_ends_after_the_turn() {
    let gate = Gate::new();
    let (session, controller) = open(scripted([held(&gate)]), AFTER).await;
    answered(session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    drop(controller);
    lives(&session, AFTER * 10).await;
    gate.open();
    in_time(session.wait_until_idle()).await.unwrap();
    ends_in(&session, AFTER).await;
    assert_eq!(session.end().unwrap().snapshot.unwrap().tree.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn controller_leaves_while_paused_session_stays_until_it_is_idle() {
    let hooks = Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("sure?")));
    let steps = [Step::tool_use("t", "echo", json!({})), Step::text("A1")];
    let (session, controller) = open(scripted(steps).callbacks(hooks), AFTER).await;
    answered(session.prompt("Q1")).await.unwrap();
    while answered(session.status()).await.unwrap() != Status::Paused {
        tokio::task::yield_now().await;
    }
    drop(controller);
    lives(&session, AFTER * 10).await;
    answered(session.resume("t", Decision::Execute)).await.unwrap();
    in_time(session.wait_until_idle()).await.unwrap();
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn new_controller_within_the_time_keeps_the_session() {
    let (session, controller) = open(scripted([]), AFTER).await;
    drop(controller);
    lives(&session, ALMOST).await;
    let controller = answered(session.subscribe(Mode::Controller)).await.unwrap();
    lives(&session, AFTER * 10).await;
    drop(controller);
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn new_controller_that_leaves_within_the_time_restarts_it() {
    let (session, controller) = open(scripted([]), AFTER).await;
    drop(controller);
    lives(&session, ALMOST).await;
    drop(answered(session.subscribe(Mode::Controller)).await.unwrap());
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn observer_within_the_time_does_not_keep_the_session() {
    let (session, controller) = open(scripted([]), AFTER).await;
    drop(controller);
    lives(&session, ALMOST).await;
    let _observer = answered(session.subscribe(Mode::Observer)).await.unwrap();
    ends_in(&session, REST).await;
}

#[tokio::test(start_paused = true)]
async fn prompt_within_the_time_restarts_it_after_its_turn() {
    let gate = Gate::new();
    let (session, controller) = open(scripted([Step::text("A1"), held(&gate)]), AFTER).await;
    drop(controller);
    lives(&session, ALMOST).await;
    session.ask("Q1").await.unwrap();
    lives(&session, ALMOST).await;
    // This turn takes longer than the idle time.
    answered(session.prompt("Q2")).await.unwrap();
    reached(&gate).await;
    lives(&session, AFTER * 10).await;
    gate.open();
    in_time(session.wait_until_idle()).await.unwrap();
    ends_in(&session, AFTER).await;
}

#[tokio::test(start_paused = true)]
async fn move_within_the_time_does_not_restart_it() {
    let (session, controller) = open(scripted([Step::text("A1")]), AFTER).await;
    session.ask("Q1").await.unwrap();
    drop(controller);
    lives(&session, ALMOST).await;
    answered(session.navigate(None)).await.unwrap();
    ends_in(&session, REST).await;
}

#[tokio::test(start_paused = true)]
async fn running_event_handler_keeps_the_session() {
    let gate = Gate::new();
    let hooks = Hooks::new().on_event({
        let gate = gate.clone();
        move |_, _| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Some(Prompt::new("Q1"))
            }
        }
    });
    let (session, controller) = open(scripted([Step::text("A1")]).callbacks(hooks), AFTER).await;
    answered(session.notify("an event")).await.unwrap();
    reached(&gate).await;
    drop(controller);
    lives(&session, AFTER * 10).await;
    gate.open();
    in_time(session.wait_until_idle()).await.unwrap();
    ends_in(&session, AFTER).await;
    assert_eq!(session.end().unwrap().snapshot.unwrap().tree.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn event_handler_without_a_prompt_session_ends_soon_after() {
    let gate = Gate::new();
    let hooks = Hooks::new().on_event({
        let gate = gate.clone();
        move |_, _| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                None
            }
        }
    });
    let (session, controller) = open(scripted([]).callbacks(hooks), Duration::ZERO).await;
    answered(session.notify("an event")).await.unwrap();
    reached(&gate).await;
    drop(controller);
    lives(&session, AFTER).await;
    gate.open();
    let begun = Instant::now();
    assert_eq!(in_time(session.ended()).await.reason, EndReason::Idle);
    assert!(begun.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn continuations_and_staged_prompts_are_finished_first() {
    let gate = Gate::new();
    let hooks = Hooks::new().continuing(["Go on"]);
    let steps = [held(&gate), Step::text("A2"), Step::text("A3")];
    let (session, controller) = open(scripted(steps).callbacks(hooks), Duration::ZERO).await;
    answered(session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    answered(session.prompt("Q2")).await.unwrap();
    drop(controller);
    lives(&session, AFTER).await;
    gate.open();
    let end = in_time(session.ended()).await;
    assert_eq!(end.reason, EndReason::Idle);
    let last = end.snapshot.unwrap();
    assert!(last.tree.len() >= 4, "{}", last.tree);
    assert!(last.agent.pending.is_empty());
}

#[tokio::test(start_paused = true)]
async fn branch_cancelled_without_a_controller_ends_the_session() {
    let gate = Gate::new();
    let (session, controller) = open(scripted([Step::text("A1"), held(&gate)]), AFTER).await;
    session.ask("Q1").await.unwrap();
    answered(session.run("Q2").below(None).start()).await.unwrap();
    reached(&gate).await;
    drop(controller);
    lives(&session, AFTER * 2).await;
    answered(session.cancel()).await.unwrap();
    ends_in(&session, AFTER).await;
    assert_eq!(session.end().unwrap().snapshot.unwrap().tree.len(), 2);
}

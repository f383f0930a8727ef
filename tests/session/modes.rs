//! Controllers, observers, and guards that were separated from their subscriptions.

use std::time::Duration;

use omni_agent::{
    ErrorKind,
    session::{Guard, Mode, SessionSubscription, WeakSession},
    subscription::{EndReason, Update},
    testing::{Gate, Step},
};

use crate::watch::{answered, held, in_time, on, reached, scripted};

/// Returns a session that only this subscriber keeps open.
async fn held_by(mode: Mode, steps: impl IntoIterator<Item = Step>) -> (SessionSubscription, WeakSession) {
    let session = on(scripted(steps)).create().await.unwrap();
    let events = answered(session.subscribe(mode)).await.unwrap();
    (events, session.downgrade())
}

async fn closed(events: &mut SessionSubscription) -> EndReason {
    loop {
        if let Update::Closed(end) = in_time(events.next()).await.unwrap() {
            return end.reason;
        }
    }
}

/// Returns whether the session still exists an hour later.
async fn lives(session: &WeakSession) -> bool {
    tokio::time::advance(Duration::from_hours(1)).await;
    let Some(session) = session.upgrade() else { return false };
    answered(session.tree()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn controller_without_handles_keeps_the_session_alive() {
    let (events, session) = held_by(Mode::Controller, [Step::text("A1")]).await;
    assert_eq!(events.mode(), Mode::Controller);
    assert!(lives(&session).await);
    in_time(session.upgrade().unwrap().ask("Q1")).await.unwrap();
    assert!(lives(&session).await);
    drop(events);
    tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await.unwrap_err();
    assert!(session.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn observer_without_handles_sees_the_session_end() {
    let (mut events, session) = held_by(Mode::Observer, []).await;
    assert_eq!(events.mode(), Mode::Observer);
    assert_eq!(closed(&mut events).await, EndReason::HandlesDropped);
    assert!(session.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn controller_becomes_observer_session_ends() {
    let (mut events, session) = held_by(Mode::Controller, []).await;
    events.set_mode(Mode::Controller).await.unwrap();
    assert!(lives(&session).await);
    events.set_mode(Mode::Observer).await.unwrap();
    assert_eq!(events.mode(), Mode::Observer);
    assert_eq!(closed(&mut events).await, EndReason::HandlesDropped);
}

#[tokio::test(start_paused = true)]
async fn observer_becomes_controller_session_stays() {
    let session = on(scripted([])).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
    events.set_mode(Mode::Controller).await.unwrap();
    events.set_mode(Mode::Controller).await.unwrap();
    let weak = session.downgrade();
    drop(session);
    assert!(lives(&weak).await);
    events.set_mode(Mode::Observer).await.unwrap();
    assert_eq!(closed(&mut events).await, EndReason::HandlesDropped);
}

#[tokio::test(start_paused = true)]
async fn guard_separated_from_its_events_keeps_the_session_alive() {
    let (events, session) = held_by(Mode::Controller, []).await;
    let (mut events, guard): (_, Guard) = events.into_parts();
    assert_eq!(guard.mode(), Mode::Controller);
    assert!(lives(&session).await);
    drop(guard);
    let end = in_time(events.next()).await.unwrap();
    assert!(matches!(&end, Update::Closed(end) if end.reason == EndReason::HandlesDropped), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn events_separated_from_their_guard_do_not_keep_the_session_alive() {
    let (events, session) = held_by(Mode::Controller, []).await;
    let (events, guard) = events.into_parts();
    drop(events);
    assert!(lives(&session).await);
    drop(guard);
    tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await.unwrap_err();
    assert!(session.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_controller_is_its_guard() {
    use futures_util::StreamExt;
    let (events, session) = held_by(Mode::Controller, [Step::text("A1")]).await;
    let mut stream = events;
    assert!(lives(&session).await);
    in_time(session.upgrade().unwrap().ask("Q1")).await.unwrap();
    assert!(matches!(in_time(StreamExt::next(&mut stream)).await, Some(Update::Event(_))));
    drop(stream);
    tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await.unwrap_err();
    assert!(session.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn last_controller_leaves_without_handles_run_is_cancelled() {
    let gate = Gate::new();
    let (events, session) = held_by(Mode::Controller, [held(&gate)]).await;
    let mut watching = answered(session.upgrade().unwrap().subscribe(Mode::Observer)).await.unwrap();
    answered(session.upgrade().unwrap().prompt("Q1")).await.unwrap();
    reached(&gate).await;
    assert!(lives(&session).await);
    drop(events);
    assert_eq!(closed(&mut watching).await, EndReason::HandlesDropped);
}

#[tokio::test(start_paused = true)]
async fn mode_of_an_ended_session_cannot_become_controller() {
    let session = on(scripted([])).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
    answered(session.stop(Duration::from_secs(1))).await.unwrap();
    for _ in 0..2 {
        let error = events.set_mode(Mode::Controller).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.member("reason")),
            (ErrorKind::Ended, Some(&"stopped".into())),
            "{error:?}"
        );
        assert_eq!(events.mode(), Mode::Observer);
        events.set_mode(Mode::Observer).await.unwrap();
    }
    drop(session);
    let error = events.set_mode(Mode::Controller).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.member("reason")),
        (ErrorKind::Ended, Some(&"stopped".into())),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn mode_while_the_session_ends_cannot_become_controller() {
    let gate = Gate::new();
    let hooks = crate::watch::Hooks::new().on_end({
        let gate = gate.clone();
        move |_, _| {
            let gate = gate.clone();
            async move { gate.pass().await }
        }
    });
    let session = on(scripted([]).callbacks(hooks)).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
    let stopping = tokio::spawn(async move { session.stop(Duration::from_mins(1)).await });
    reached(&gate).await;
    stopping.abort();
    assert!(in_time(stopping).await.unwrap_err().is_cancelled());
    let error = events.set_mode(Mode::Controller).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.member("reason")),
        (ErrorKind::Ended, Some(&"stopped".into())),
        "{error:?}"
    );
    gate.open();
    assert_eq!(closed(&mut events).await, EndReason::Stopped);
}

/// Runs each currently ready task once. `yield_now` is not used, because it would wait until no task is ready.
async fn next_turn() {
    let mut is_over = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut is_over, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// If `set_mode` succeeds, the idle shutdown does not end the session.
#[tokio::test(start_paused = true)]
async fn set_mode_to_controller_during_the_idle_shutdown_succeeds_only_if_the_session_stays() {
    let mut outcomes = [0, 0];
    for rounds in 0..40 {
        let session = on(scripted([])).idle_shutdown(Duration::from_secs(5)).create().await.unwrap();
        let mut events = session.subscribe(Mode::Observer).await.unwrap();
        // Make the call in a separate task, so that the runtime schedules the call between the session and its agent.
        let asking = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            for _ in 0..rounds {
                next_turn().await;
            }
            (events.set_mode(Mode::Controller).await.is_ok(), events)
        });
        let (stays, _events) = asking.await.unwrap();
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(session.end().is_none(), stays, "after {rounds} rounds");
        outcomes[usize::from(stays)] += 1;
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

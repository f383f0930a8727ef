//! Tests of the parts of a session that only the manager uses: the watcher, sleep, suggested titles and draining.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::Status,
    run::{Error, ErrorKind, Prompt},
    session::{Mode, Session, SessionNotice, SessionWatcher},
    subscription::EndReason,
    testing::{Gate, Step},
    tree::NodeId,
};
use tokio::time::{Instant, timeout};

use super::{
    support::{Act, ScriptedStore, parrot},
    watch::{Hooks, answered, held, in_time, on, reached, scripted},
};

const AFTER: Duration = Duration::from_mins(1);

/// A watcher that records the notices that it receives.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn ends(&self) -> usize {
        self.all().iter().filter(|note| note.starts_with("ended")).count()
    }
}

impl SessionWatcher for Notes {
    fn notice(&self, notice: SessionNotice<'_>) {
        let note = match notice {
            SessionNotice::Status(status) => format!("{status:?}").to_lowercase(),
            SessionNotice::Title(title) => format!("title {:?}", title.map(|title| &**title)),
            SessionNotice::Finished(response) => format!("finished {}", response.text()),
            SessionNotice::Left => "left".into(),
            SessionNotice::Ended(reason) => format!("ended: {reason}"),
            other => format!("{other:?}"),
        };
        self.0.lock().unwrap().push(note);
    }
}

async fn noted(agent: crate::agent::AgentBuilder) -> (Session, Notes) {
    let notes = Notes::default();
    let session = on(agent).watcher(Arc::new(notes.clone())).create().await.unwrap();
    (session, notes)
}

/// Waits until all pending work that does not depend on the clock is done.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

// ---- the watcher ----

#[tokio::test(start_paused = true)]
async fn watcher_receives_all_notices_in_order() {
    let (session, notes) =
        noted(scripted([Step::text("One."), Step::new().then_text(["Half"]).hang()])).await;
    let first = session.subscribe(Mode::Controller).await.unwrap();
    let second = session.subscribe(Mode::Controller).await.unwrap();
    session.ask("Hi").await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.set_title(None).await.unwrap();
    drop(first);
    settle().await;
    assert_eq!(notes.all(), ["busy", "idle", "finished One.", "title Some(\"Talk\")", "title None"]);
    drop(second);
    settle().await;
    session.prompt("More").await.unwrap();
    settle().await;
    session.cancel().await.unwrap();
    session.stop(AFTER).await.unwrap();
    assert_eq!(notes.all()[5..], ["left", "busy", "idle", "ended: stopped"]);
}

#[tokio::test(start_paused = true)]
async fn finished_turns_are_reported_while_the_run_continues() {
    let agent =
        scripted([Step::text("One."), Step::text("Two.")]).callbacks(Hooks::new().continuing(["And?"]));
    let (session, notes) = noted(agent).await;
    session.ask("Hi").await.unwrap();
    settle().await;
    assert_eq!(notes.all(), ["busy", "finished One.", "idle", "finished Two."]);
}

#[tokio::test(start_paused = true)]
async fn end_is_reported_once_for_every_cause() {
    // The session is ended by two concurrent calls of `stop`.
    let (session, notes) = noted(scripted([])).await;
    let (one, two) = tokio::join!(session.stop(AFTER), session.stop(AFTER));
    one.and(two).unwrap();
    assert_eq!(notes.all(), ["ended: stopped"]);

    // The session ends because its last handle is dropped.
    let (session, notes) = noted(scripted([])).await;
    drop(session);
    settle().await;
    assert_eq!(notes.all(), ["ended: its last handle was dropped"]);

    // `sleep` ends the session.
    let (session, notes) = noted(scripted([])).await;
    assert!(session.sleep().await.unwrap());
    session.ended().await;
    settle().await;
    assert_eq!(notes.all(), ["ended: nothing kept it open and nothing was in progress"]);

    // The idle shutdown ends the session.
    let notes = Notes::default();
    let builder = on(scripted([])).watcher(Arc::new(notes.clone())).idle_shutdown(AFTER);
    let session = builder.create().await.unwrap();
    drop(session.subscribe(Mode::Controller).await.unwrap());
    in_time(session.ended()).await;
    settle().await;
    assert_eq!(notes.all(), ["left", "ended: nothing kept it open and nothing was in progress"]);

    // The agent stops itself.
    let stops = Hooks::new().on_event(|_, state| async move {
        let agent = state.agent().upgrade().unwrap();
        tokio::spawn(async move { agent.stop(AFTER).await });
        None
    });
    let (session, notes) = noted(scripted([]).callbacks(stops)).await;
    session.notify(()).await.unwrap();
    in_time(session.ended()).await;
    settle().await;
    assert_eq!(notes.all(), ["ended: its agent ended"]);
}

#[test]
fn end_is_reported_once_when_the_runtime_is_killed() {
    let its = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (session, notes) = its.block_on(async {
        let (session, notes) = noted(scripted([Step::new().then_text(["Half"]).hang()])).await;
        session.prompt("Hi").await.unwrap();
        (session, notes)
    });
    drop(its);
    assert_eq!(session.end().unwrap().reason, EndReason::Killed);
    assert_eq!(notes.ends(), 1, "{:?}", notes.all());
    drop(session);
    assert_eq!(notes.ends(), 1);
}

#[tokio::test(start_paused = true)]
async fn session_that_never_started_reports_no_end() {
    let store = ScriptedStore::new([Act::Fail]);
    let notes = Notes::default();
    let builder = Session::builder(store.as_dyn()).agent(parrot()).watcher(Arc::new(notes.clone()));
    builder.create_with_id("talk".parse().unwrap()).await.unwrap_err();
    settle().await;
    assert_eq!(notes.all(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn watcher_panics_session_continues() {
    struct Clumsy(Arc<AtomicUsize>);
    impl SessionWatcher for Clumsy {
        fn notice(&self, _: SessionNotice<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("the watcher broke");
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let builder = on(scripted([Step::text("One."), Step::text("Two.")]));
    let session = builder.watcher(Arc::new(Clumsy(Arc::clone(&calls)))).create().await.unwrap();
    drop(session.subscribe(Mode::Controller).await.unwrap());
    assert_eq!(session.ask("Hi").await.unwrap().text(), "One.");
    session.set_title(Some("Talk")).await.unwrap();
    assert_eq!(session.ask("Again").await.unwrap().text(), "Two.");
    assert_eq!(session.tree().await.unwrap().len(), 4);
    session.stop(AFTER).await.unwrap();
    // The watcher is called once for `left`, once for the title, three times for each of two runs, and once for the
    // end.
    assert_eq!(calls.load(Ordering::SeqCst), 9);
}

// ---- sleep ----

#[tokio::test(start_paused = true)]
async fn sleep_without_controllers_or_work_ends_the_session() {
    let session = on(scripted([Step::text("One.")])).create().await.unwrap();
    let observer = session.subscribe(Mode::Observer).await.unwrap();
    session.ask("Hi").await.unwrap();
    session.flush(AFTER).await.unwrap();
    assert!(answered(session.sleep()).await.unwrap());
    assert_eq!(in_time(session.ended()).await.reason, EndReason::Idle);
    let error = session.sleep().await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"idle".into())));
    drop(observer);
}

/// Checks that `sleep` is refused, and that the refused call does not end the session later.
async fn refuses(session: &Session) {
    assert!(!answered(session.sleep()).await.unwrap());
    assert!(
        timeout(AFTER * 60, session.ended()).await.is_err(),
        "the session ended later: {:?}",
        session.end()
    );
}

#[tokio::test(start_paused = true)]
async fn sleep_with_a_controller_is_refused() {
    let session = on(scripted([])).create().await.unwrap();
    let mut controller = session.subscribe(Mode::Controller).await.unwrap();
    refuses(&session).await;
    controller.set_mode(Mode::Observer).await.unwrap();
    assert!(session.sleep().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sleep_while_busy_is_refused() {
    let gate = Gate::new();
    let session = on(scripted([held(&gate)])).create().await.unwrap();
    session.prompt("Hi").await.unwrap();
    reached(&gate).await;
    refuses(&session).await;
    gate.open();
    session.wait_until_idle().await.unwrap();
    session.flush(AFTER).await.unwrap();
    assert!(session.sleep().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sleep_while_paused_is_refused() {
    use crate::agent::ToolDecision;
    use serde_json::json;
    let hooks = Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("why")));
    let steps = [Step::tool_use("t1", "echo", json!({}))];
    let session = on(scripted(steps).callbacks(hooks)).create().await.unwrap();
    session.prompt("Hi").await.unwrap();
    settle().await;
    assert_eq!(session.status().await.unwrap(), Status::Paused);
    refuses(&session).await;
    session.cancel().await.unwrap();
    assert!(session.sleep().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sleep_with_something_unsaved_is_refused() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone()), Act::Work]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    reached(&gate).await;
    refuses(&session).await;
    gate.open();
    session.flush(AFTER).await.unwrap();
    // Now everything is saved. The earlier call of `sleep`, which was refused, must not end the session.
    refuses_nothing_later(&session).await;
    assert!(session.sleep().await.unwrap());
}

async fn refuses_nothing_later(session: &Session) {
    assert!(timeout(AFTER * 60, session.ended()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sleep_while_an_event_is_handled_is_refused() {
    let gate = Gate::new();
    let passing = gate.clone();
    let hooks = Hooks::new().on_event(move |_, _| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            Some(Prompt::from("From an event"))
        }
    });
    let session = on(scripted([Step::text("One.")]).callbacks(hooks)).create().await.unwrap();
    session.notify(()).await.unwrap();
    reached(&gate).await;
    refuses(&session).await;
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 2);
    session.flush(AFTER).await.unwrap();
    assert!(session.sleep().await.unwrap());
}

/// Checks that `sleep` is refused during the idle time, and that the refused calls do not end the session.
async fn idle_timer_survives(session: &Session, begun: Instant) {
    tokio::time::sleep(AFTER / 2).await;
    assert!(!session.sleep().await.unwrap());
    assert!(!session.sleep().await.unwrap());
    tokio::time::sleep(AFTER / 4).await;
    assert!(!session.sleep().await.unwrap());
    assert!(session.end().is_none());
    assert!(begun.elapsed() < AFTER);
}

#[tokio::test(start_paused = true)]
async fn refused_sleep_does_not_restart_the_idle_time() {
    // Here `sleep` is refused because the title is unsaved until shortly before the idle time is over.
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).idle_shutdown(AFTER);
    let session = builder.create().await.unwrap();
    drop(session.subscribe(Mode::Controller).await.unwrap());
    settle().await;
    let begun = Instant::now();
    session.set_title(Some("Talk")).await.unwrap();
    reached(&gate).await;
    idle_timer_survives(&session, begun).await;
    gate.open();
    in_time(session.ended()).await;
    let took = begun.elapsed();
    assert!(took <= AFTER, "the idle time was restarted: {took:?}");

    // Here `sleep` is refused because an application event is being processed until shortly before the idle time is
    // over.
    let gate = Gate::new();
    let passing = gate.clone();
    let hooks = Hooks::new().on_event(move |_, _| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            None
        }
    });
    let session = on(scripted([]).callbacks(hooks)).idle_shutdown(AFTER).create().await.unwrap();
    drop(session.subscribe(Mode::Controller).await.unwrap());
    settle().await;
    let begun = Instant::now();
    session.notify(()).await.unwrap();
    reached(&gate).await;
    idle_timer_survives(&session, begun).await;
    gate.open();
    in_time(session.ended()).await;
    let took = begun.elapsed();
    assert!(took <= AFTER, "the idle time was restarted: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn sleep_before_the_end_of_the_run_is_processed_ends_the_session() {
    // When `sleep` is called, the session may not have processed the end of the run yet, so try several times.
    for _ in 0..20 {
        let session =
            on(scripted([Step::new().then_text(["Half"]).hang()])).idle_shutdown(AFTER).create().await;
        let session = session.unwrap();
        session.prompt("Hi").await.unwrap();
        settle().await;
        session.cancel().await.unwrap();
        assert!(answered(session.sleep()).await.unwrap());
    }
}

// ---- titles ----

#[tokio::test(start_paused = true)]
async fn suggested_title_is_used_only_without_a_title() {
    let (session, notes) = noted(scripted([])).await;
    assert!(session.suggest_title("First", None).await.unwrap());
    assert!(!session.suggest_title("Second", None).await.unwrap());
    assert_eq!(session.title().await.unwrap().as_deref(), Some("First"));
    session.set_title(Some("By hand")).await.unwrap();
    assert!(!session.suggest_title("Third", None).await.unwrap());
    session.set_title(None).await.unwrap();
    assert!(session.suggest_title("Fourth", None).await.unwrap());
    assert_eq!(session.title().await.unwrap().as_deref(), Some("Fourth"));
    let expected = ["First", "By hand", "-", "Fourth"].map(|title| match title {
        "-" => "title None".to_owned(),
        title => format!("title Some({title:?})"),
    });
    assert_eq!(notes.all(), expected);
    session.stop(AFTER).await.unwrap();
    assert_eq!(session.suggest_title("Late", None).await.unwrap_err().kind(), ErrorKind::Ended);
}

#[tokio::test(start_paused = true)]
async fn suggested_title_is_saved() {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.ask("Hi").await.unwrap();
    session.suggest_title("Talk", None).await.unwrap();
    session.stop(AFTER).await.unwrap();
    assert_eq!(store.beneath().summary(session.id()).await.unwrap().title.as_deref(), Some("Talk"));
}

// ---- draining ----

#[tokio::test(start_paused = true)]
async fn drained_session_finishes_its_run_and_refuses_new_prompts() {
    let gate = Gate::new();
    let session = on(scripted([Step::text("One."), held(&gate)])).create().await.unwrap();
    session.ask("Hi").await.unwrap();
    session.prompt("More").await.unwrap();
    reached(&gate).await;
    session.drain();
    session.drain();
    let node = NodeId::new(1).unwrap();
    let refused = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Draining, "{error:?}");
    };
    // A run is active, so this prompt would be staged. It is refused too.
    refused(session.prompt("No").await.map(drop));
    refused(session.ask("No").await.map(drop));
    refused(session.ask_as::<String>("No").await.map(drop));
    refused(session.again(node).start().await.map(drop));
    refused(session.run("No").below(None).start().await.map(drop));
    refused(session.run("No").instead_of(node).start().await.map(drop));
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 4);
    session.set_title(Some("Talk")).await.unwrap();
    session.navigate(NodeId::new(2).unwrap()).await.unwrap();
    session.stop(AFTER).await.unwrap();
    // After the session has ended, the error states the reason of the end instead.
    let error = session.prompt("No").await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
}

// ---- controllers ----

#[tokio::test(start_paused = true)]
async fn controllers_are_counted() {
    let session = on(scripted([])).create().await.unwrap();
    assert_eq!(session.controllers(), 0);
    let mut one = session.subscribe(Mode::Controller).await.unwrap();
    let two = session.subscribe(Mode::Controller).await.unwrap();
    let observer = session.subscribe(Mode::Observer).await.unwrap();
    assert_eq!(session.controllers(), 2);
    one.set_mode(Mode::Observer).await.unwrap();
    assert_eq!(session.controllers(), 1);
    let (_, guard) = two.into_parts();
    assert_eq!(session.controllers(), 1);
    drop((guard, observer));
    assert_eq!(session.controllers(), 0);
    one.set_mode(Mode::Controller).await.unwrap();
    assert_eq!(session.controllers(), 1);
}

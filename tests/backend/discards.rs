//! Discarded turns: the backend has seen them, but the conversation does not contain them. A branch must not be
//! mistaken for a discarded turn.

use async_trait::async_trait;
use omni_agent::{
    agent::{AgentCallbacks, Event, State, TurnDecision},
    provider::{
        Options, OutputSchema,
        custom::{BackendError, Capabilities},
    },
    run::Response,
    session::{Mode, Session},
    subscription::Update,
    testing::Gate,
    tool::Schema,
};
use serde_json::json;

use crate::{
    conversations::{SECOND, able, created, node, store},
    scripted::{Act, ScriptedBackend, Step, Turn},
};

/// A fault that occurs in the second turn, after the backend has finished that turn.
#[derive(Clone)]
enum LateFault {
    Panics,
    ContinuesWithEmptyPrompt,
    Waits(Gate),
}

struct FailsSecondTurn(LateFault, u32);

#[async_trait]
impl AgentCallbacks for FailsSecondTurn {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.1 += 1;
        if self.1 == 2 {
            match &self.0 {
                LateFault::Panics => panic!("handle_turn panics"),
                LateFault::ContinuesWithEmptyPrompt => return TurnDecision::Continue("".into()),
                LateFault::Waits(gate) => gate.pass().await,
            }
        }
        TurnDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn turn_discarded_after_it_finished_keeps_the_session() {
    for able in [Capabilities::default(), able()] {
        for fault in [LateFault::Panics, LateFault::ContinuesWithEmptyPrompt, LateFault::Waits(Gate::new())] {
            let backend = ScriptedBackend::able(able, []);
            let agent = backend.agent().callbacks(FailsSecondTurn(fault.clone(), 0)).start().await.unwrap();
            agent.ask("One").await.unwrap();
            if let LateFault::Waits(gate) = fault {
                agent.prompt("Two").await.unwrap();
                gate.reached().await;
                agent.cancel().await.unwrap();
            } else {
                agent.ask("Two").await.unwrap_err();
            }
            assert_eq!(agent.state().await.unwrap().history().last().unwrap().text(), "One");
            assert_eq!(agent.ask("Three").await.unwrap().text(), "One | Two | Three");
            assert_eq!(agent.ask("Four").await.unwrap().text(), "One | Two | Three | Four");
            assert_eq!(backend.count("start"), 1, "{:?}", backend.log());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn first_turn_discarded_after_it_finished_keeps_the_session() {
    let backend = ScriptedBackend::new([]);
    let agent = backend.agent().callbacks(FailsSecondTurn(LateFault::Panics, 1)).start().await.unwrap();
    agent.ask("One").await.unwrap_err();
    assert_eq!(agent.ask("Two").await.unwrap().text(), "One | Two");
    assert_eq!(backend.count("start"), 1);
}

#[tokio::test(start_paused = true)]
async fn answer_cancelled_during_an_output_retry_keeps_the_session() {
    let schema = Schema::new(json!({ "type": "object", "required": ["n"] })).unwrap();
    let schema = OutputSchema::new("answer", schema);
    let script = [Turn::new().step(Step::Recall).stop(), Turn::new().text("No.").stop()];
    let again = Turn::new().text("{").step(Step::Hang);
    let backend = ScriptedBackend::new(script.into_iter().chain([again]));
    let agent = backend.agent().start().await.unwrap();
    agent.ask("One").await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let prompt = omni_agent::run::Prompt::new("Two")
        .with_options(Options::default().with_output(schema).with_output_retries(1));
    agent.prompt(prompt).await.unwrap();
    loop {
        let Some(Update::Event(event)) = events.next().await else { panic!("the agent has ended") };
        if matches!(&*event.event, Event::TextDelta { delta, .. } if &**delta == "{") {
            break;
        }
    }
    agent.cancel().await.unwrap();
    let text = agent.ask("Three").await.unwrap().text();
    assert!(text.starts_with("One | Two | ") && text.ends_with(" | Three"), "{text}");
    assert_eq!(backend.count("start"), 1);
}

/// Starts a branch that must be rejected, and asserts that the backend receives nothing.
async fn is_refused(session: &Session, backend: &ScriptedBackend) {
    let before = backend.log();
    session.run("Other").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(backend.log(), before);
}

#[tokio::test(start_paused = true)]
async fn branch_after_discarded_turns_is_still_rejected_without_fork() {
    let backend = ScriptedBackend::new([Turn::new().step(Step::Recall).stop(), Turn::new().step(Step::Hang)]);
    let session = created(&store(), &backend).await;
    session.ask("One").await.unwrap();
    session.prompt("Lost").await.unwrap();
    backend.until("prompt s1: Lost").await;
    session.cancel().await.unwrap();
    assert_eq!(session.ask("Two").await.unwrap().text(), "One | Lost | Two");
    is_refused(&session, &backend).await;
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Lost | Two | Three");
}

/// Returns a session with a complete answer and an interrupted answer.
async fn interrupted(able: Capabilities) -> (Session, ScriptedBackend) {
    let turns = [Turn::new().step(Step::Recall).stop(), Turn::new().text("So far").step(Step::Hang)];
    let backend = ScriptedBackend::able(able, turns);
    let session = created(&store(), &backend).await;
    session.ask("One").await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt("Two").await.unwrap();
    loop {
        let Some(Update::Event(event)) = events.next().await else { panic!("the session has ended") };
        if matches!(event.event.agent(), Some(Event::TextDelta { .. })) {
            break;
        }
    }
    session.interrupt().await.unwrap();
    session.wait_until_idle().await.unwrap();
    (session, backend)
}

#[tokio::test(start_paused = true)]
async fn branch_before_an_interrupted_answer_uses_another_session() {
    let (session, backend) = interrupted(able()).await;
    session.again(node(3)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.state().await.unwrap().history().last().unwrap().text(), "One | Two");
    assert_eq!(backend.count("fork s1 at 1"), 1);

    let (session, backend) = interrupted(Capabilities::default()).await;
    session.run("Anew").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.state().await.unwrap().history().last().unwrap().text(), "Anew");
    assert_eq!(backend.count("start"), 2);
}

#[tokio::test(start_paused = true)]
async fn fork_after_an_interrupted_answer_warns_that_the_backend_does_not_know_it() {
    let (session, _) = interrupted(able()).await;
    assert_eq!(session.ask("Three").await.unwrap().warnings, Vec::<String>::new());
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.again(node(5)).start().await.unwrap();
    let response = loop {
        let Some(Update::Event(event)) = events.next().await else { panic!("the session has ended") };
        if let Some(Event::Turn { response, .. }) = event.event.agent() {
            break response.clone();
        }
    };
    assert_eq!(response.text(), "One | Three");
    assert!(response.warnings[0].contains("broken off"), "{:?}", response.warnings);
}

#[tokio::test(start_paused = true)]
async fn branch_before_an_interrupted_answer_without_fork_is_rejected() {
    let (session, backend) = interrupted(Capabilities::default()).await;
    is_refused(&session, &backend).await;
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
}

/// The way in which a branch fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Cancelled,
    Refused,
    Ended,
}

/// Starts a branch that fails in the given way. Checks that the head is the same afterwards as before.
async fn branched_in_vain(
    session: &Session,
    backend: &ScriptedBackend,
    from: Option<u64>,
    text: &str,
    failure: Failure,
) {
    let head = session.tree().await.unwrap().head();
    session.run(text).below(from.map(node)).start().await.unwrap();
    if failure == Failure::Cancelled {
        backend.until_prompted(text).await;
        session.cancel().await.unwrap();
    }
    session.wait_until_idle().await.unwrap();
    session.flush(SECOND).await.unwrap();
    assert_eq!(session.tree().await.unwrap().head(), head, "{failure:?}");
}

#[tokio::test(start_paused = true)]
async fn branch_that_fails_returns_to_the_former_session() {
    for failure in [Failure::Cancelled, Failure::Refused, Failure::Ended] {
        for fork in [false, true] {
            let able = if fork { Capabilities::default().with_fork() } else { Capabilities::default() };
            let whole = || Turn::new().step(Step::Recall).stop();
            let hang = (failure == Failure::Cancelled).then(|| Turn::new().step(Step::Hang));
            let backend = ScriptedBackend::able(able, [whole(), whole()].into_iter().chain(hang));
            let session = created(&store(), &backend).await;
            for prompt in ["One", "Two"] {
                session.ask(prompt).await.unwrap();
            }
            match failure {
                Failure::Cancelled => {}
                Failure::Refused => backend.will("prompt", Act::Fail(BackendError::Invalid("no".into()))),
                Failure::Ended => backend.will("prompt", Act::Panic),
            }
            let from = fork.then_some(2);
            branched_in_vain(&session, &backend, from, "Other", failure).await;
            assert_eq!(backend.count("terminate s1"), 0, "{failure:?} {:?}", backend.log());
            assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
            // The session of the failed branch is not used again.
            backend.until("terminate s2").await;
            session.stop(SECOND).await.unwrap();
            assert_eq!((backend.count("terminate s1"), backend.count("terminate s2")), (1, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn branch_that_succeeds_ends_the_former_session() {
    let backend = ScriptedBackend::new([]);
    let session = created(&store(), &backend).await;
    session.ask("One").await.unwrap();
    session.run("Anew").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    backend.until("terminate s1").await;
    assert_eq!(session.ask("More").await.unwrap().text(), "Anew | More");
}

#[tokio::test(start_paused = true)]
async fn branches_that_fail_leave_at_most_one_parked_session() {
    let able = Capabilities::default().with_fork();
    let hang = || Turn::new().step(Step::Hang);
    let whole = || Turn::new().step(Step::Recall).stop();
    let backend = ScriptedBackend::able(able, [whole(), whole(), hang(), hang(), hang()]);
    let session = created(&store(), &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    for (from, text) in [(Some(2), "A"), (None, "B"), (Some(2), "C")] {
        branched_in_vain(&session, &backend, from, text, Failure::Cancelled).await;
    }
    backend.until("terminate s3").await;
    assert_eq!((backend.running(), backend.count("terminate s1")), (2, 0), "{:?}", backend.log());
    session.stop(SECOND).await.unwrap();
    assert_eq!(backend.running(), 0, "{:?}", backend.log());
}

#[tokio::test(start_paused = true)]
async fn agent_dropped_terminates_the_parked_session_too() {
    let backend = ScriptedBackend::new([Turn::new().step(Step::Recall).stop(), Turn::new().step(Step::Hang)]);
    let session = created(&store(), &backend).await;
    session.ask("One").await.unwrap();
    branched_in_vain(&session, &backend, None, "Anew", Failure::Cancelled).await;
    drop(session);
    backend.until("drop s1").await;
    backend.until("drop s2").await;
    assert_eq!((backend.count("terminate s1"), backend.count("terminate s2")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn session_is_resumed_only_after_it_has_ended() {
    let turns = [Turn::new().step(Step::Recall).stop(), Turn::new().text("So").step(Step::Hang)];
    let backend = ScriptedBackend::able(Capabilities::default().with_resume(), turns);
    backend.will("cancel", Act::Fail(BackendError::Failed("no".into())));
    backend.will("terminate", Act::Hang);
    let agent = backend.agent().start().await.unwrap();
    agent.ask("One").await.unwrap();
    agent.prompt("Two").await.unwrap();
    backend.until("prompt s1: Two").await;
    agent.cancel().await.unwrap();
    assert_eq!(agent.ask("Three").await.unwrap().text(), "One | Two | Three");
    let log = backend.log();
    let place = |call: &str| log.iter().position(|noted| noted == call).unwrap();
    assert!(place("drop s1") < place("resume s1"), "{log:?}");
}

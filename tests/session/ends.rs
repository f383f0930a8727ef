//! How sessions end, and what their operations return during and after the end.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use omni_agent::{
    ErrorKind, Prompt,
    agent::{Agent, AgentCallbacks, FollowTarget, State, TurnDecision},
    async_trait,
    run::{KnownPrompt, PromptState, Response},
    session::{Mode, Session},
    store::{MemoryStore, Store},
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
    tool::Decision,
    tree::NodeId,
};

use crate::watch::{Hooks, Log, Watched, answered, echo, held, in_time, on, reached, scripted};

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Checks that every operation immediately returns the reason for the end of the session.
async fn all_ended(session: &Session, reason: &EndReason) {
    let none: Option<&str> = None;
    let errors = [
        ("prompt", answered(session.prompt("Q")).await.err()),
        ("ask", answered(session.ask("Q")).await.err()),
        ("ask_as", answered(session.ask_as::<u32>("Q")).await.err()),
        ("resume", answered(session.resume("t", Decision::Execute)).await.err()),
        ("cancel", answered(session.cancel()).await.err()),
        ("interrupt", answered(session.interrupt()).await.err()),
        ("notify", answered(session.notify("an event")).await.err()),
        ("configure", answered(session.configure(|_| Ok(()))).await.err()),
        ("add_tool", answered(session.add_tool(echo())).await.err()),
        ("remove_tool", answered(session.remove_tool("echo")).await.err()),
        ("state", answered(session.state()).await.err()),
        ("status", answered(session.status()).await.err()),
        ("wait_until_idle", answered(session.wait_until_idle()).await.err()),
        ("regenerate", answered(session.again(node(1)).start()).await.err()),
        ("branch", answered(session.run("Q").below(None).start()).await.err()),
        ("navigate", answered(session.navigate(None)).await.err()),
        ("tree", answered(session.tree()).await.err()),
        ("set_title", answered(session.set_title(none)).await.err()),
        ("title", answered(session.title()).await.err()),
        ("snapshot", answered(session.snapshot()).await.err()),
        ("subscribe", answered(session.subscribe(Mode::Controller)).await.err()),
        ("flush", answered(session.flush(Duration::from_secs(1))).await.err()),
    ];
    for (operation, error) in errors {
        let (error, text) = (error.unwrap(), format!("the session has ended: {reason}"));
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::Ended, text), "{operation}");
    }
}

/// Checks that the session has ended for this reason, that its subscriber has received the end, and that every
/// operation returns this reason.
async fn ended(mut session: Watched, reason: EndReason) {
    assert_eq!(session.closed().await, reason);
    let end = answered(session.session.ended()).await;
    assert_eq!(end.reason, reason);
    let left = end.snapshot.unwrap();
    assert_eq!(*left, session.view);
    assert_eq!(session.session.end().unwrap().reason, reason);
    all_ended(&session.session, &reason).await;
    let stopped = answered(session.session.stop(Duration::ZERO)).await;
    assert_eq!(stopped.is_ok(), left.unsaved.is_empty(), "{stopped:?}");
    let after = session.session.downgrade();
    drop(session);
    assert!(after.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn stop_while_idle_ends_the_session() {
    let mut session = Watched::scripted([Step::text("A1")]).await;
    session.ask("Q1").await;
    answered(session.session.stop(Duration::from_secs(1))).await.unwrap();
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn stop_before_anything_ends_the_session() {
    let session = Watched::scripted([]).await;
    answered(session.session.stop(Duration::from_secs(1))).await.unwrap();
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn stop_while_busy_keeps_the_partial_text_of_a_branch() {
    let gate = Gate::new();
    let mut session = Watched::scripted([Step::text("A1"), held(&gate)]).await;
    session.ask("Q1").await;
    answered(session.session.again(node(1)).start()).await.unwrap();
    reached(&gate).await;
    answered(session.session.stop(Duration::from_secs(1))).await.unwrap();
    session.until("turn(stop)").await;
    assert_eq!(session.until("tree").await, ["tree"]);
    assert_eq!(session.path(), ["user: Q1", "assistant: Half"]);
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn stop_called_twice_answers_both() {
    let gate = Gate::new();
    let session = Watched::scripted([held(&gate)]).await;
    answered(session.session.prompt("Q1")).await.unwrap();
    reached(&gate).await;
    let (one, two) = tokio::join!(
        session.session.stop(Duration::from_secs(1)),
        session.session.stop(Duration::from_secs(2))
    );
    assert!(one.is_ok() && two.is_ok());
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn ask_in_flight_when_the_session_stops_is_answered() {
    let gate = Gate::new();
    let session = Watched::scripted([held(&gate)]).await;
    let asked = tokio::spawn({
        let session = session.session.clone();
        async move { session.ask("Q1").await }
    });
    reached(&gate).await;
    answered(session.session.stop(Duration::from_secs(1))).await.unwrap();
    assert_eq!(answered(asked).await.unwrap().unwrap().text(), "Half");
}

#[tokio::test(start_paused = true)]
async fn operations_while_the_session_stops_are_answered_at_once() {
    let (gate, log) = (Gate::new(), Log::default());
    let hooks = Hooks::new().on_end({
        let (gate, log) = (gate.clone(), log.clone());
        move |reason, _| {
            log.push(reason.to_string());
            let gate = gate.clone();
            async move { gate.pass().await }
        }
    });
    let session = Watched::start(on(scripted([]).callbacks(hooks))).await;
    let stopping = tokio::spawn({
        let session = session.session.clone();
        async move { session.stop(Duration::from_mins(1)).await }
    });
    reached(&gate).await;
    all_ended(&session.session, &EndReason::Stopped).await;
    assert!(session.session.end().is_none(), "the session has not ended yet");
    gate.open();
    in_time(stopping).await.unwrap().unwrap();
    assert_eq!(log.all(), ["stopped"]);
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn stop_with_a_hanging_terminate_returns_by_its_deadline() {
    let hooks = Hooks::new().on_end(|_, _| std::future::pending());
    let mut session = Watched::start(on(scripted([Step::text("A1")]).callbacks(hooks))).await;
    session.ask("Q1").await;
    let begun = tokio::time::Instant::now();
    in_time(session.session.stop(Duration::from_secs(7))).await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(8), "{:?}", begun.elapsed());
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn stop_with_a_hanging_terminate_still_repeats_a_failed_write() {
    let hooks = Hooks::new().on_end(|_, _| std::future::pending());
    let store = crate::joining::Balky::failing_once();
    let session = Session::builder(store).agent(scripted([Step::text("A1")]).callbacks(hooks));
    let mut session = Watched::start(session).await;
    session.ask("Q1").await;
    in_time(session.session.stop(Duration::from_secs(7))).await.unwrap();
    ended(session, EndReason::Stopped).await;
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_ends_the_session_and_saves() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let gate = Gate::new();
    let agent = scripted([Step::text("A1"), held(&gate)]);
    let session = Session::builder(Arc::clone(&store)).agent(agent).create().await.unwrap();
    let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
    session.ask("Q1").await.unwrap();
    session.prompt("Q2").await.unwrap();
    reached(&gate).await;
    let id = session.id().clone();
    drop(session);
    let end = loop {
        if let omni_agent::subscription::Update::Closed(end) = in_time(events.next()).await.unwrap() {
            break end;
        }
    };
    assert_eq!(end.reason, EndReason::HandlesDropped);
    let last = end.snapshot.unwrap();
    assert_eq!((last.tree.len(), last.unsaved.len()), (4, 0));
    assert_eq!(store.load(&id).await.unwrap().nodes.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn agent_stopped_ends_the_session() {
    let hooks = Hooks::new().on_event(|_, state| async move {
        let agent = state.agent().upgrade().unwrap();
        tokio::spawn(async move { agent.stop(Duration::from_secs(1)).await });
        None
    });
    let mut session = Watched::start(on(scripted([Step::text("A1")]).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.notify("end")).await.unwrap();
    in_time(session.session.ended()).await;
    ended(session, EndReason::AgentEnded).await;
}

#[tokio::test(start_paused = true)]
async fn operations_while_the_agent_ends_by_itself_are_answered_at_once() {
    let gate = Gate::new();
    let hooks = Hooks::new()
        .on_event(|_, state| async move {
            let agent = state.agent().upgrade().unwrap();
            tokio::spawn(async move { agent.stop(Duration::from_mins(1)).await });
            None
        })
        .on_end({
            let gate = gate.clone();
            move |_, _| {
                let gate = gate.clone();
                async move { gate.pass().await }
            }
        });
    let session = Watched::start(on(scripted([]).callbacks(hooks))).await;
    answered(session.session.notify("end")).await.unwrap();
    reached(&gate).await;
    all_ended(&session.session, &EndReason::AgentEnded).await;
    gate.open();
    ended(session, EndReason::AgentEnded).await;
}

#[tokio::test(start_paused = true)]
async fn agent_discards_a_branch_and_ends_tree_is_unchanged() {
    let gate = Gate::new();
    let mut turns = 0;
    let hooks = Hooks::new().on_turn({
        let gate = gate.clone();
        move |_, state| {
            turns += 1;
            let (gate, ends) = (gate.clone(), turns == 2);
            async move {
                if ends {
                    let agent = state.agent().upgrade().unwrap();
                    tokio::spawn(async move { agent.stop_discarding(Duration::from_secs(1)).await });
                    gate.pass().await;
                }
                omni_agent::agent::TurnDecision::Stop
            }
        }
    });
    let steps = ["A1", "B1"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    answered(session.session.run("Q2").below(None).start()).await.unwrap();
    let end = in_time(session.session.ended()).await;
    assert_eq!(end.snapshot.unwrap().tree, before);
    ended(session, EndReason::AgentEnded).await;
}

#[tokio::test(start_paused = true)]
async fn another_writer_ends_the_session() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let agent = || Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("A")).model());
    let mut session = Watched::start(Session::builder(Arc::clone(&store)).agent(agent())).await;
    session.ask("Q1").await;
    in_time(session.session.flush(Duration::from_secs(1))).await.unwrap();
    let id = session.session.id().clone();
    let other = Session::builder(Arc::clone(&store)).agent(agent()).open(id.clone()).await.unwrap();
    other.ask("Q2").await.unwrap();
    in_time(other.flush(Duration::from_secs(1))).await.unwrap();
    session.session.ask("Q3").await.unwrap();
    let end = in_time(session.session.ended()).await;
    assert_eq!(end.snapshot.unwrap().unsaved, [node(3), node(4)]);
    ended(session, EndReason::LostPlace).await;
    // The other session continues to work.
    other.ask("Q4").await.unwrap();
    in_time(other.flush(Duration::from_secs(1))).await.unwrap();
    assert_eq!(store.load(&id).await.unwrap().nodes.len(), 6);
}

/// Callbacks of an agent that blocks its thread when its turn ends, until the test ends.
struct Blocking {
    blocked: Gate,
    released: mpsc::Receiver<()>,
}

#[async_trait]
impl AgentCallbacks for Blocking {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.blocked.pass().await;
        // Tasks that this thread has just woken run on another thread.
        let _ = tokio::task::block_in_place(|| self.released.recv());
        TurnDecision::Stop
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn agent_that_cannot_end_leaves_its_run_without_an_end_and_is_reported() {
    let (answer, blocked) = (Gate::new(), Gate::new());
    let (release, released) = mpsc::channel();
    blocked.open();
    let callbacks = Blocking { blocked: blocked.clone(), released };
    let session = on(scripted([held(&answer)]).callbacks(callbacks)).create().await.unwrap();
    session.prompt(Prompt::new("Q1").with_id("p1")).await.unwrap();
    let mut running = session.follow(FollowTarget::Prompt("p1".into())).await.unwrap();
    answer.open();
    in_time(blocked.reached()).await;
    let error = in_time(session.stop(Duration::ZERO)).await.unwrap_err();
    assert!(error.to_string().contains("the last turn may be missing"), "{error}");
    let prompts = &session.end().unwrap().snapshot.unwrap().agent.prompts;
    assert!(matches!(&prompts[..], [KnownPrompt { state: PromptState::InFlight { .. }, .. }]), "{prompts:?}");
    let error = in_time(running.response()).await.unwrap_err();
    assert!(error.to_string().contains(&EndReason::Stopped.to_string()), "{error}");
    assert_eq!(running.response().await.unwrap_err().kind(), ErrorKind::Ended);
    drop(release);
}

#[test]
fn session_killed_with_its_runtime_reports_killed() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let its = runtime();
    let gate = Gate::new();
    let (session, mut events) = its.block_on(async {
        let session = on(scripted([held(&gate)])).create().await.unwrap();
        let events = session.subscribe(Mode::Controller).await.unwrap();
        session.prompt("Q1").await.unwrap();
        gate.reached().await;
        (session, events)
    });
    drop(its);
    runtime().block_on(async {
        assert_eq!(session.ended().await.reason, EndReason::Killed);
        all_ended(&session, &EndReason::Killed).await;
        // The unsaved part of the conversation was lost when the runtime was dropped.
        let stopped = session.stop(Duration::from_secs(1)).await;
        let error = stopped.unwrap_err();
        assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"killed".into())));
        let end = loop {
            if let omni_agent::subscription::Update::Closed(end) = events.next().await.unwrap() {
                break end;
            }
        };
        assert_eq!(end.reason, EndReason::Killed);
        assert!(end.snapshot.is_none());
    });
}

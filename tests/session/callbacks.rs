//! Callbacks that use their own session, and application code that panics.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, State, Status, TurnDecision},
    run::Prompt,
    session::{Mode, Session, WeakSession},
    store::{ConversationId, MemoryStore, Store},
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Extensions, tool_fn},
    tree::NodeId,
};
use serde_json::{Value, json};

use crate::watch::{Hooks, Log, Watched, answered, briefs, held, in_time, on, reached, scripted};

fn session_of(state: &State) -> Option<Session> {
    state.extensions().get::<WeakSession>().unwrap().upgrade()
}

/// Returns the text of the error, or `fine` if there is none.
fn tell<T>(outcome: Result<T, Error>) -> String {
    match outcome {
        Ok(_) => "fine".into(),
        Err(error) => error.to_string(),
    }
}

/// An extension defined by the application.
#[derive(Debug, PartialEq)]
struct Tenant(u32);

/// Returns the conversation's id and the tenant as a callback or a tool sees them.
fn seen(place: &str, extensions: &Extensions) -> String {
    let id = extensions.get::<ConversationId>().map(ConversationId::as_str);
    format!("{place}: {id:?} {:?}", extensions.get::<Tenant>())
}

#[tokio::test(start_paused = true)]
async fn conversation_id_set_by_the_application_is_replaced_by_that_of_the_session() {
    let log = Log::default();
    let (tool_log, turn_log) = (log.clone(), log.clone());
    let tool = tool_fn("look", "Looks.", move |_: Value, context| {
        tool_log.push(seen("tool", context.extensions()));
        async { Ok("seen") }
    });
    let hooks = Hooks::new().on_turn(move |_, state| {
        turn_log.push(seen("callback", state.extensions()));
        async { TurnDecision::Stop }
    });
    let steps = [Step::tool_use("t", "look", json!({})), Step::text("A1")];
    let agent = scripted(steps).tool(tool).callbacks(hooks);
    let mine = ConversationId::new("mine").unwrap();
    let agent = agent.extension(mine).extension(Tenant(7));
    let session = on(agent).create_with_id(ConversationId::new("talk").unwrap()).await.unwrap();
    session.ask("Q1").await.unwrap();
    let ids = r#"Some("talk") Some(Tenant(7))"#;
    assert_eq!(log.all(), [format!("tool: {ids}"), format!("callback: {ids}")]);
}

#[tokio::test(start_paused = true)]
async fn handle_turn_uses_its_session() {
    let log = Log::default();
    let hooks = Hooks::new().on_turn({
        let log = log.clone();
        move |_, state| {
            let log = log.clone();
            async move {
                let session = session_of(&state).unwrap();
                assert_eq!(state.extensions().get::<ConversationId>(), Some(session.id()));
                session.set_title(Some("A title")).await.unwrap();
                log.push(format!("{:?} nodes", session.tree().await.unwrap().len()));
                let snapshot = session.snapshot().await.unwrap();
                log.push(format!("{:?} pending", snapshot.agent.pending.len()));
                log.push(tell(session.again(NodeId::new(1).unwrap()).start().await));
                log.push(tell(session.navigate(None).await));
                log.push(tell(session.flush(Duration::from_secs(1)).await));
                drop(session.subscribe(Mode::Controller).await.unwrap());
                if snapshot.tree.is_empty() {
                    session.prompt("And on").await.unwrap();
                }
                TurnDecision::Stop
            }
        }
    });
    let mut session = Watched::start(on(scripted(["A1", "A2"].map(Step::text)).callbacks(hooks))).await;
    answered(session.session.prompt("Q1")).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: A1", "user: And on", "assistant: A2"]);
    assert_eq!(session.view.title.as_deref(), Some("A title"));
    let busy = "the session is Busy; wait until it is idle, or cancel";
    assert_eq!(
        log.all(),
        ["0 nodes", "2 pending", busy, busy, "fine", "2 nodes", "2 pending", busy, busy, "fine"]
    );
}

#[tokio::test(start_paused = true)]
async fn tool_uses_its_session() {
    let tool = tool_fn("rename", "Names the conversation.", |_: Value, context| async move {
        let session = context.extensions().get::<WeakSession>().unwrap().upgrade().unwrap();
        session.set_title(Some("By the tool")).await.unwrap();
        Ok(format!("{} nodes", session.tree().await.unwrap().len()))
    });
    let steps = [Step::tool_use("t", "rename", json!({})), Step::text("A1")];
    let mut session = Watched::start(on(scripted(steps).tool(tool))).await;
    session.ask("Q1").await;
    assert_eq!(session.view.title.as_deref(), Some("By the tool"));
    let results = session.view.agent.state.history.get(2).unwrap();
    assert_eq!(serde_json::to_value(results).unwrap()["content"][0]["content"][0]["text"], "0 nodes");
}

#[tokio::test(start_paused = true)]
async fn handle_event_moves_its_session() {
    let hooks = Hooks::new().on_event(|event, state| async move {
        let session = session_of(&state).unwrap();
        match *event.downcast::<&str>().unwrap() {
            "clear" => session.navigate(None).await.unwrap(),
            "branch" => drop(session.run("From within").below(None).start().await.unwrap()),
            _ => drop(session.again(NodeId::new(1).unwrap()).start().await.unwrap()),
        }
        None
    });
    let steps = ["A1", "A2", "A3"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.notify("clear")).await.unwrap();
    session.rest().await;
    assert_eq!(session.view.tree.head(), None);
    answered(session.session.notify("branch")).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: From within", "assistant: A2"]);
    answered(session.session.notify("regenerate")).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: A3"]);
}

#[tokio::test(start_paused = true)]
async fn handle_event_that_branches_and_returns_a_prompt_stages_it() {
    let hooks = Hooks::new().on_event(|_, state| async move {
        session_of(&state).unwrap().run("From within").below(None).start().await.unwrap();
        Some(Prompt::new("And on"))
    });
    let steps = ["A1", "A2", "A3"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.notify(())).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: From within", "assistant: A2", "user: And on", "assistant: A3"]);
}

#[tokio::test(start_paused = true)]
async fn handle_turn_stops_its_session() {
    let hooks = Hooks::new().on_turn(|_, state| async move {
        session_of(&state).unwrap().stop(Duration::from_secs(1)).await.unwrap();
        TurnDecision::Stop
    });
    let mut session = Watched::start(on(scripted([Step::text("A1")]).callbacks(hooks))).await;
    answered(session.session.prompt("Q1")).await.unwrap();
    assert_eq!(session.closed().await, EndReason::Stopped);
    assert_eq!(session.path(), ["user: Q1", "assistant: A1"], "the run was interrupted");
}

// ---- terminate ----

/// Callbacks whose `terminate` calls the session and logs the results.
fn trying(log: &Log) -> Hooks {
    let log = log.clone();
    Hooks::new().on_end(move |reason, state| {
        let log = log.clone();
        async move {
            log.push(reason.to_string());
            let Some(session) = session_of(&state) else { return log.push("gone") };
            log.push(tell(session.prompt("Q").await));
            log.push(tell(session.tree().await));
            log.push(tell(session.navigate(None).await));
            log.push(tell(session.set_title(Some("Late")).await));
            log.push(tell(session.flush(Duration::from_secs(1)).await));
            log.push(tell(session.subscribe(Mode::Controller).await));
        }
    })
}

fn six(reason: &str, error: &str) -> Vec<String> {
    std::iter::once(reason.to_owned())
        .chain(std::iter::repeat_n(format!("the session has ended: {error}"), 6))
        .collect()
}

/// Checks that the session ends without any further wait.
async fn ends_soon(session: &Session) -> EndReason {
    tokio::time::timeout(Duration::from_millis(200), session.ended())
        .await
        .expect("the session should have ended by now")
        .reason
}

#[tokio::test(start_paused = true)]
async fn terminate_of_a_stopped_session_uses_it() {
    let log = Log::default();
    let session = on(scripted([]).callbacks(trying(&log))).create().await.unwrap();
    answered(session.stop(Duration::from_secs(10))).await.unwrap();
    assert_eq!(log.all(), six("stopped", "stopped"));
}

#[tokio::test(start_paused = true)]
async fn terminate_of_an_abandoned_session_finds_no_session() {
    let log = Log::default();
    let session = on(scripted([]).callbacks(trying(&log))).create().await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    drop(session);
    in_time(events.next()).await.unwrap();
    assert_eq!(log.all(), ["stopped", "gone"]);
}

#[tokio::test(start_paused = true)]
async fn terminate_of_an_idle_session_uses_it() {
    let log = Log::default();
    let builder = on(scripted([]).callbacks(trying(&log))).idle_shutdown(Duration::ZERO);
    let session = builder.create().await.unwrap();
    drop(session.subscribe(Mode::Controller).await.unwrap());
    assert_eq!(ends_soon(&session).await, EndReason::Idle);
    assert_eq!(
        log.all(),
        six(
            "nothing kept it open and nothing was in progress",
            "nothing kept it open and nothing was in progress"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn terminate_of_an_agent_that_ended_by_itself_uses_its_session() {
    let log = Log::default();
    let hooks = trying(&log).on_event(|_, state| async move {
        let agent = state.agent().upgrade().unwrap();
        tokio::spawn(async move { agent.stop(Duration::from_secs(10)).await });
        None
    });
    let session = on(scripted([]).callbacks(hooks)).create().await.unwrap();
    answered(session.notify(())).await.unwrap();
    assert_eq!(ends_soon(&session).await, EndReason::AgentEnded);
    assert_eq!(log.all(), six("stopped", "its agent ended"));
}

#[tokio::test(start_paused = true)]
async fn terminate_of_a_session_that_lost_its_conversation_uses_it() {
    let log = Log::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let agent = scripted([Step::text("A1")]).callbacks(trying(&log));
    let session = Session::builder(Arc::clone(&store))
        .agent(agent)
        .create_with_id(ConversationId::generate())
        .await
        .unwrap();
    store.delete(session.id(), None).await.unwrap();
    session.ask("Q1").await.unwrap();
    assert_eq!(ends_soon(&session).await, EndReason::LostPlace);
    assert_eq!(log.all(), six("stopped", "another writer took over the conversation in the store"));
}

// ---- application code that panics ----

#[tokio::test(start_paused = true)]
async fn panic_in_handle_turn_rolls_the_branch_back() {
    let mut turns = 0;
    let hooks = Hooks::new().on_turn(move |_, _| {
        turns += 1;
        let broken = turns == 2;
        async move {
            assert!(!broken, "the callback broke");
            TurnDecision::Stop
        }
    });
    let steps = ["A1", "B1", "C1"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    answered(session.session.again(NodeId::new(1).unwrap()).start()).await.unwrap();
    session.until("error").await;
    assert_eq!(session.until("state").await, ["tree", "state"]);
    session.rest().await;
    assert_eq!(session.view.tree, before);
    answered(session.session.again(NodeId::new(1).unwrap()).start()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path(), ["user: Q1", "assistant: C1"]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_handle_event_does_not_change_the_tree() {
    let hooks = Hooks::new().on_event(|_, _| async { panic!("the callback broke") });
    let steps = ["A1", "A2"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.notify(())).await.unwrap();
    assert_eq!(session.until("error").await.last().unwrap(), "error");
    session.rest().await;
    session.ask("Q2").await;
    assert_eq!(session.path().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn panic_in_handle_event_after_branching_rolls_the_branch_back() {
    let hooks = Hooks::new().on_event(|_, state| async move {
        session_of(&state).unwrap().run("From within").below(None).start().await.unwrap();
        panic!("the callback broke")
    });
    let steps = ["A1", "A2"].map(Step::text);
    let mut session = Watched::start(on(scripted(steps).callbacks(hooks))).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    answered(session.session.notify(())).await.unwrap();
    session.until("error").await;
    session.rest().await;
    let tree = &session.view.tree;
    assert_eq!((tree.head(), tree.history()), (before.head(), before.history()));
    assert_eq!(tree.unanswered(None).next().unwrap().message().text(), "From within");
    session.ask("Q2").await;
    assert_eq!(session.path()[2..], ["user: Q2", "assistant: A2"]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_terminate_still_ends_the_session() {
    let hooks = Hooks::new().on_end(|_, _| async { panic!("the callback broke") });
    let mut session = Watched::start(on(scripted([Step::text("A1")]).callbacks(hooks))).await;
    session.ask("Q1").await;
    answered(session.session.stop(Duration::from_secs(10))).await.unwrap();
    assert_eq!(session.closed().await, EndReason::Stopped);
    assert_eq!(session.view.unsaved, []);
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_provider_rolls_the_branch_back_unless_a_text_is_kept() {
    for (half, answer) in [(Step::new(), "A1"), (Step::new().then_text(["Half"]), "Half")] {
        let steps = [Step::text("A1"), half.panic("the provider broke"), Step::text("C1")];
        let mut session = Watched::scripted(steps).await;
        session.ask("Q1").await;
        let before = session.view.tree.clone();
        answered(session.session.again(NodeId::new(1).unwrap()).start()).await.unwrap();
        session.until("error").await;
        session.rest().await;
        assert_eq!(session.view.tree == before, answer == "A1");
        assert_eq!(session.path(), ["user: Q1".to_owned(), format!("assistant: {answer}")]);
        assert_eq!(session.status().await, Status::Idle);
        session.ask("Q2").await;
        assert_eq!(session.path()[2..], ["user: Q2", "assistant: C1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn panic_in_an_edit_of_the_configuration_changes_nothing() {
    let mut session = Watched::scripted([Step::text("A1")]).await;
    let error = answered(session.session.configure(|_| panic!("the closure broke"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback, "{error:?}");
    session.ask("Q1").await;
}

// ---- ask and the tree ----

#[tokio::test(start_paused = true)]
async fn tree_has_the_turn_when_ask_returns() {
    let session = on(Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("A")).model()));
    let session = session.create().await.unwrap();
    for turn in 1..100 {
        let response = session.ask("Q").await.unwrap();
        let tree = session.tree().await.unwrap();
        assert_eq!(tree.len(), 2 * turn);
        assert_eq!(tree.history().last().unwrap(), response.message.as_ref().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn tree_has_the_turn_of_the_ask_while_the_staged_prompt_runs() {
    let (first, second) = (Gate::new(), Gate::new());
    let session = on(scripted([held(&first), held(&second)])).create().await.unwrap();
    let asked = tokio::spawn({
        let session = session.clone();
        async move {
            session.ask("Q1").await.unwrap();
            session.tree().await.unwrap()
        }
    });
    reached(&first).await;
    answered(session.prompt("Q2")).await.unwrap();
    first.open();
    let tree = in_time(asked).await.unwrap();
    assert_eq!(briefs(tree.history()), ["user: Q1", "assistant: Half"]);
    reached(&second).await;
    assert_eq!(answered(session.status()).await.unwrap(), Status::Busy);
    second.open();
    in_time(session.wait_until_idle()).await.unwrap();
    assert_eq!(answered(session.tree()).await.unwrap().len(), 4);
}

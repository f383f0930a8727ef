//! Operations as data, and the JSON form of events and commands.

use std::sync::Arc;

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, Event},
    message::ToolResult,
    run::{Accepted, Prompt, PromptState},
    session::{Mode, Session, SessionAnswer, SessionCommand, SessionEvent, SessionSnapshot},
    store::MemoryStore,
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, tool_fn},
    tree::NodeId,
};
use serde_json::{Value, json};

use crate::watch::{answered, held, in_time, reached};

async fn session(steps: impl IntoIterator<Item = Step>) -> Session {
    let provider = ScriptedProvider::new(steps);
    let tool = tool_fn("delete", "Deletes.", |_: Value, _| async { Ok("deleted") });
    let agent = Agent::builder().model(provider.model()).tool(tool.needs_approval());
    Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap()
}

/// Runs a command that is given as JSON, and returns the answer as JSON.
async fn perform(session: &Session, command: Value) -> Result<Value, Error> {
    let command: SessionCommand = serde_json::from_value(command).unwrap();
    let answer = answered(session.perform(command, Some("ann"))).await?;
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(serde_json::from_value::<SessionAnswer>(json.clone()).unwrap(), answer);
    Ok(json)
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

#[tokio::test(start_paused = true)]
async fn perform_runs_every_command() {
    let gate = Gate::new();
    let session =
        session([held(&gate), Step::text("A2"), Step::text("A3"), Step::text("A4"), Step::new().hang()])
            .await;
    let done = json!({ "type": "done" });
    let prompt = json!({ "type": "run", "prompt": { "content": text("Q1") } });
    let started = async |command: Value| {
        let started = perform(&session, command).await.unwrap();
        let agent = session.snapshot().await.unwrap().agent;
        let turn = agent.turn.or(agent.last_run.and_then(|end| end.turn));
        assert!(turn.is_some());
        assert_eq!(started, json!({ "type": "accepted", "accepted": "started", "turn": turn }));
    };
    started(prompt.clone()).await;
    reached(&gate).await;
    let staged = json!({ "type": "run", "prompt": { "id": "p2", "content": text("Q2"), "next": "step" } });
    let accepted = json!({ "type": "accepted", "accepted": "staged", "id": "p2", "ahead": 0 });
    assert_eq!(perform(&session, staged.clone()).await.unwrap(), accepted);
    let known = json!({ "type": "accepted", "accepted": "known", "state": { "state": "staged" } });
    assert_eq!(perform(&session, staged).await.unwrap(), known);
    let back = perform(&session, json!({ "type": "unstage", "id": "p2" })).await.unwrap();
    assert_eq!((&back["type"], &back["prompt"]["content"]), (&json!("prompt"), &text("Q2")));
    assert_eq!(perform(&session, json!({ "type": "interrupt" })).await.unwrap(), done);
    session.wait_until_idle().await.unwrap();

    started(json!({ "type": "run", "at": { "again": 1 } })).await;
    session.wait_until_idle().await.unwrap();
    let edit = json!({ "type": "run", "at": { "instead": 1 }, "prompt": { "content": text("Q1b") } });
    started(edit).await;
    session.wait_until_idle().await.unwrap();
    let branch =
        json!({ "type": "run", "at": { "below": 2 }, "prompt": { "content": text("Q3") }, "wait": true });
    let response = perform(&session, branch).await.unwrap();
    assert_eq!((&response["type"], &response["messages"][1]["content"]), (&json!("response"), &text("A4")));
    assert_eq!(perform(&session, json!({ "type": "navigate", "node": 3 })).await.unwrap(), done);
    assert_eq!(perform(&session, json!({ "type": "title", "title": "T" })).await.unwrap(), done);
    assert_eq!(session.title().await.unwrap().as_deref(), Some("T"));
    started(prompt).await;
    assert_eq!(perform(&session, json!({ "type": "cancel" })).await.unwrap(), done);
    let tree = session.tree().await.unwrap();
    assert_eq!((tree.len(), tree.head().map(NodeId::get)), (7, Some(3)));

    let labels = json!({ "type": "labels", "labels": { "tenant": "acme" } });
    assert_eq!(perform(&session, labels).await.unwrap(), done);
    assert_eq!(session.labels().await.unwrap().get("tenant"), Some("acme"));
    let invalid = json!({ "type": "labels", "labels": { "Tenant": "acme" } });
    let error = serde_json::from_value::<SessionCommand>(invalid).unwrap_err().to_string();
    assert!(error.contains("\"Tenant\" is not a valid name of a label"), "{error}");
    assert_eq!(perform(&session, json!({ "type": "erase", "node": 3 })).await.unwrap(), done);
    let tree = session.tree().await.unwrap();
    assert!(tree.node(NodeId::new(3).unwrap()).is_none());
}

#[tokio::test(start_paused = true)]
async fn perform_of_a_decision_names_the_caller_and_checks_the_turn() {
    let session = session([Step::tool_use("t", "delete", json!({})), Step::text("Done.")]).await;
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Go").await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    while view.agent.pauses.is_empty() {
        view.take(&in_time(events.next()).await.unwrap()).unwrap();
    }
    let turn = view.agent.pauses[0].turn;
    let decide =
        |turn: &str| json!({ "type": "decide", "turn": turn, "decisions": [["t", { "reject": "No." }]] });
    let stale = perform(&session, decide(&"0".repeat(32))).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleDecision, "{stale:?}");
    perform(&session, decide(&turn.to_string())).await.unwrap();
    loop {
        let update = in_time(events.next()).await.unwrap();
        view.take(&update).unwrap();
        let Update::Event(event) = update else { continue };
        if let SessionEvent::Agent(event) = &*event.event
            && let Event::Decided(decided) = &**event
        {
            assert_eq!((decided.by.as_deref(), &decided.decision), (Some("ann"), &Decision::reject("No.")));
            break;
        }
    }
    assert!(view.agent.pauses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn perform_of_several_decisions_applies_all_or_none() {
    let uses = Step::new().then_tool_use("a", "delete", json!({})).then_tool_use("b", "delete", json!({}));
    let session = session([uses.stop(), Step::text("Done.")]).await;
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Go").await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    while view.agent.pauses.is_empty() {
        view.take(&in_time(events.next()).await.unwrap()).unwrap();
    }
    let turn = view.agent.pauses[0].turn;
    let decide = |decisions: Value| json!({ "type": "decide", "turn": turn, "decisions": decisions });
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    for (decisions, kind) in [
        (json!([]), ErrorKind::InvalidDecision),
        (json!([["a", "execute"], ["c", "execute"]]), ErrorKind::StaleDecision),
        (json!([["a", "execute"], ["a", { "reject": "No." }]]), ErrorKind::InvalidDecision),
        (json!([["a", "execute"], ["b", { "execute_with": deep }]]), ErrorKind::InvalidDecision),
    ] {
        let error = perform(&session, decide(decisions.clone())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{decisions}");
        let waiting = session.snapshot().await.unwrap().agent.pauses;
        assert_eq!(waiting.iter().map(|pause| pause.tool_use.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
    perform(&session, decide(json!([["b", { "reject": "No." }], ["a", "execute"]]))).await.unwrap();
    in_time(session.wait_until_idle()).await.unwrap();
    assert!(session.snapshot().await.unwrap().agent.pauses.is_empty());
}

#[tokio::test(start_paused = true)]
async fn decide_several_pauses_emits_one_status() {
    let uses =
        ["a", "b", "c"].into_iter().fold(Step::new(), |step, id| step.then_tool_use(id, "delete", json!({})));
    let session = session([uses.stop(), Step::text("Done.")]).await;
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Go").await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    while view.agent.pauses.is_empty() {
        view.take(&in_time(events.next()).await.unwrap()).unwrap();
    }
    let turn = view.agent.pauses[0].turn;
    for (decisions, expected) in [
        (json!([["b", { "reject": "No." }], ["a", "execute"]]), vec!["paused c", "decided b", "decided a"]),
        (json!([["c", "execute"]]), vec!["busy", "decided c"]),
    ] {
        perform(&session, json!({ "type": "decide", "turn": turn, "decisions": decisions })).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < expected.len() {
            let Update::Event(event) = in_time(events.next()).await.unwrap() else { panic!("no event") };
            let SessionEvent::Agent(event) = &*event.event else { continue };
            seen.push(match &**event {
                Event::Status { pauses, .. } => match &pauses[..] {
                    [] => "busy".to_owned(),
                    [pause] => format!("paused {}", pause.tool_use.id),
                    pauses => panic!("{pauses:?}"),
                },
                Event::Decided(decided) => format!("decided {}", decided.tool_use_id),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(seen, expected);
    }
    in_time(session.wait_until_idle()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn perform_of_a_result_for_a_call_with_other_answers_is_refused() {
    let ask = tool_fn("ask", "Asks twice.", |_: Value, context: ToolContext| async move {
        let (one, two) = tokio::join!(context.ask(json!("One?")), context.ask(json!("Two?")));
        Ok(format!("{one:?} {two:?}"))
    });
    let provider = ScriptedProvider::new([Step::tool_use("c", "ask", json!({})), Step::text("Done.")]);
    let agent = Agent::builder().model(provider.model()).tool(ask);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Go").await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    while view.agent.pauses.len() < 2 {
        view.take(&in_time(events.next()).await.unwrap()).unwrap();
    }
    let turn = view.agent.pauses[0].turn;
    let decide = |decisions: Value| json!({ "type": "decide", "turn": turn, "decisions": decisions });
    let result = json!({ "provide": { "tool_use_id": "c?1", "name": "ask", "content": [] } });
    let refused = perform(&session, decide(json!([["c?1", result], ["c?2", "execute"]]))).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidDecision);
    assert_eq!(session.snapshot().await.unwrap().agent.pauses, view.agent.pauses);
    perform(&session, decide(json!([["c?2", { "reject": "No." }], ["c?1", "execute"]]))).await.unwrap();
    in_time(session.wait_until_idle()).await.unwrap();
    let tree = session.tree().await.unwrap();
    let results = tree.history().iter().flat_map(|message| message.tool_results());
    assert_eq!(results.map(ToolResult::text).collect::<Vec<_>>(), [r#"Accepted(None) Declined("No.")"#]);
}

#[tokio::test(start_paused = true)]
async fn take_follows_events_resyncs_and_the_end() {
    let session = session([Step::text("A1")]).await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    let mut view = SessionSnapshot::clone(events.snapshot().unwrap());
    session.ask("Q1").await.unwrap();
    session.flush(std::time::Duration::from_secs(5)).await.unwrap();
    let truth = session.snapshot().await.unwrap();
    while view.last != truth.last {
        view.take(&in_time(events.next()).await.unwrap()).unwrap();
    }
    assert_eq!(view, truth);
    let mut other = view.clone();
    other.title = Some("other".into());
    other.take(&Update::Resync(Arc::new(view.clone()))).unwrap();
    assert_eq!(other, view);
    session.stop(std::time::Duration::from_secs(5)).await.unwrap();
    while let Some(update) = in_time(events.next()).await {
        view.take(&update).unwrap();
    }
    assert_eq!(Some(view), session.end().unwrap().snapshot.as_deref().cloned());
}

#[tokio::test(start_paused = true)]
async fn update_as_json_is_read_back() {
    let session = session([Step::text("A1")]).await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    let view = events.snapshot().unwrap().clone();
    session.ask("Q1").await.unwrap();
    session.stop(std::time::Duration::from_secs(5)).await.unwrap();
    let mut updates: Vec<Update<SessionSnapshot, SessionEvent>> = vec![Update::Resync(view)];
    while let Some(update) = in_time(events.next()).await {
        updates.push(update);
    }
    for update in updates {
        let text = serde_json::to_string(&update).unwrap();
        let read: Update<SessionSnapshot, SessionEvent> = serde_json::from_str(&text).unwrap();
        match (&read, &update) {
            (Update::Event(read), Update::Event(event)) => assert_eq!(read, event),
            (Update::Resync(read), Update::Resync(snapshot)) => assert_eq!(read, snapshot),
            (Update::Closed(read), Update::Closed(end)) => {
                assert_eq!((&read.reason, &read.snapshot), (&end.reason, &end.snapshot));
            }
            _ => panic!("{text} is read as {read:?}"),
        }
    }
}

#[test]
fn session_event_as_json_has_its_fields_next_to_the_type() {
    let event = SessionEvent::Agent(Arc::new(Event::TextStart { index: 3 }));
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(json, json!({ "type": "agent", "event": { "type": "text_start", "index": 3 } }));
    assert_eq!(serde_json::from_value::<SessionEvent>(json).unwrap(), event);
    let title = SessionEvent::Title { title: None };
    assert_eq!(serde_json::to_value(&title).unwrap(), json!({ "type": "title", "title": null }));
    let store = serde_json::from_value::<SessionEvent>(json!({
        "type": "store", "outcome": "lost", "error": "gone"
    }));
    assert!(matches!(store.unwrap(), SessionEvent::Store(report) if report.error() == Some("gone")));
}

#[test]
fn command_with_an_unknown_type_is_refused_with_the_known_types() {
    let error = serde_json::from_value::<SessionCommand>(json!({ "type": "erase_all" })).unwrap_err();
    assert!(error.to_string().contains("unknown variant `erase_all`, expected one of `run`"), "{error}");
    let turn = omni_agent::message::TurnId::default();
    let known = Accepted::Known { state: PromptState::InFlight { turn } };
    let json = serde_json::to_value(SessionAnswer::Accepted(known)).unwrap();
    assert_eq!(
        json,
        json!({ "type": "accepted", "accepted": "known", "state": { "state": "in_flight", "turn": turn } })
    );
    assert!(serde_json::from_value::<Prompt>(json!({ "content": [], "next": "never" })).is_err());
}

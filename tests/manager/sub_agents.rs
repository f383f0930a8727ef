//! Sub-agents as sessions of the manager of their parents.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use omni_agent::{
    Agent, ErrorKind, Manager,
    agent::{AgentBuilder, Durable, Event, FollowTarget, RunStep, Status, SubAgent},
    manager::OpenOptions,
    message::{Timestamp, Usage},
    run::{PendingUse, Prompt},
    session::{Mode, Session, SessionEvent},
    store::{
        ConversationId, Filter, Labels, MemoryStore, Page, Store, StoreError, Summary,
        custom::{Change, Lease, StateChange, Stored, Write},
    },
    subscription::{EndReason, Update},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::rig::tasks;
use crate::support::{CommandedStore, alone, held, id, in_time, open_ids, secs, settle};

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    Labels::new(pairs.iter().copied()).unwrap()
}

fn tokens(count: u64) -> Usage {
    let mut usage = Usage::default();
    usage.output = count;
    usage
}

/// A step that uses these tools, with ids from their names.
pub(crate) fn uses(tools: &[&str]) -> Step {
    let step = Step::new().usage(tokens(1));
    tools.iter().fold(step, |step, tool| step.then_tool_use(tool, tool, json!({ "task": "Go." }))).stop()
}

pub(crate) fn says(text: &str) -> Step {
    Step::new().usage(tokens(2)).then_text([text]).stop()
}

/// A sub-agent with this name and script. Each call gets the next steps.
pub(crate) fn sub(name: &'static str, steps: impl IntoIterator<Item = Step>) -> SubAgent {
    sub_with(name, steps, |builder| builder)
}

pub(crate) fn sub_with(
    name: &'static str,
    steps: impl IntoIterator<Item = Step>,
    build: impl Fn(AgentBuilder) -> AgentBuilder + Send + Sync + 'static,
) -> SubAgent {
    let model = ScriptedProvider::new(steps).model();
    SubAgent::new(name, "Does a task.", move |_| build(Agent::builder().model(model.clone())))
}

/// An agent that calls this tool once, and then answers.
pub(crate) fn calling(tool: impl Tool) -> AgentBuilder {
    let model = ScriptedProvider::new([uses(&[tool.name()]), says("Done."), says("Later.")]).model();
    Agent::builder().model(model).tool(tool)
}

pub(crate) async fn create(manager: &Manager, name: &str, agent: AgentBuilder) -> Session {
    let options = alone(agent).labels(labels(&[("tenant", "acme")])).tenant("acme");
    in_time(manager.create_with_id(&id(name), options)).await.unwrap().session
}

/// Returns the stored sub-agents of a conversation.
pub(crate) async fn children(store: &Arc<MemoryStore>, parent: &str) -> Vec<Summary> {
    let all = store.list(&Page::first(100).into()).await.unwrap();
    all.into_iter().filter(|summary| summary.labels.get("omni.parent") == Some(parent)).collect()
}

/// Returns a manager, and its store.
pub(crate) fn managed() -> (Manager, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    (Manager::builder(Arc::clone(&store)).build(), store)
}

/// Returns the result of the only tool use of the conversation.
async fn result(session: &Session) -> (String, bool) {
    let tree = session.tree().await.unwrap();
    let result = tree.history().iter().flat_map(|message| message.tool_results()).next().unwrap().clone();
    (result.text(), result.is_error)
}

/// Waits until the session has pauses.
pub(crate) async fn pauses(session: &Session) -> Vec<Arc<PendingUse>> {
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    let first = events.snapshot().unwrap().agent.pauses.clone();
    if !first.is_empty() {
        return first;
    }
    loop {
        match in_time(events.next()).await {
            Some(Update::Event(numbered)) => {
                if let SessionEvent::Agent(event) = &*numbered.event
                    && let Event::Status { pauses, .. } = &**event
                    && !pauses.is_empty()
                {
                    return pauses.clone();
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A session whose sub-agent waits at the gate in the middle of its answer.
async fn at_gate(manager: &Manager, name: &str, gate: &Gate) -> Session {
    let step = Step::new().then_text(["Half"]).gate(gate).stop();
    let session = create(manager, name, calling(sub("search", [step]))).await;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    session
}

#[tokio::test(start_paused = true)]
async fn sub_agents_in_a_session_are_sessions_with_the_labels_of_their_root() {
    let (manager, store) = managed();
    let low = || sub("low", [says("The Nile.")]);
    let middle =
        sub_with("middle", [uses(&["low"]), says("It is the Nile.")], move |agent| agent.tool(low()));
    let session = create(&manager, "root", calling(middle)).await;
    let response = in_time(session.ask("Go")).await.unwrap();
    assert_eq!(result(&session).await, ("It is the Nile.".to_owned(), false));

    let [middle] = &children(&store, "root").await[..] else { panic!("one child") };
    assert!(middle.id.as_str().starts_with("sub-"), "{}", middle.id);
    assert_eq!(middle.title.as_deref(), Some("middle"));
    let expected =
        [("omni.call", "middle"), ("omni.parent", "root"), ("omni.root", "root"), ("tenant", "acme")];
    assert_eq!(middle.labels, labels(&expected));
    let [low] = &children(&store, middle.id.as_str()).await[..] else { panic!("one grandchild") };
    assert_eq!((low.labels.get("omni.root"), low.labels.get("tenant")), (Some("root"), Some("acme")));
    assert_eq!(open_ids(&manager), ["root"], "the children are closed");

    // Each session stores the rows of its requests. The sessions above only report them.
    assert_eq!((response.usage, response.delegated), (tokens(3), tokens(1 + 2 + 2)));
    let ledger = async |id| store.usage(id, &Page::first(9)).await.unwrap();
    assert_eq!(ledger(&low.id).await.len(), 1);
    assert_eq!(ledger(&middle.id).await.len(), 2);
    let rows = ledger(&id("root")).await;
    assert!(rows.len() == 2 && rows.iter().all(|row| row.conversation.is_none()), "{rows:?}");
    assert_eq!(session.snapshot().await.unwrap().used, tokens(3));
    let of_root = Filter::with(labels(&[("tenant", "acme")]));
    let used = manager.used(&of_root, Timestamp(0)..Timestamp(u64::MAX >> 1)).await.unwrap();
    assert_eq!(used.iter().map(|sum| sum.usage.output).sum::<u64>(), 8);

    // The conversation of a child can be read and continued afterwards.
    let opened = manager.open(&middle.id, alone(calling(sub("other", [])))).await.unwrap();
    let texts: Vec<_> =
        opened.session.tree().await.unwrap().history().iter().map(|message| message.text()).collect();
    assert_eq!((texts[0].as_str(), texts[3].as_str()), ("Go.", "It is the Nile."));
}

#[tokio::test(start_paused = true)]
async fn sub_agents_in_memory_have_no_conversation() {
    let (manager, store) = managed();
    let session = create(&manager, "root", calling(sub("search", [says("The Nile.")]).in_memory())).await;
    let response = in_time(session.ask("Go")).await.unwrap();
    assert_eq!(result(&session).await, ("The Nile.".to_owned(), false));
    assert_eq!((response.usage, response.delegated), (tokens(5), Usage::default()));
    assert!(children(&store, "root").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_agents_progress_and_events_name_the_conversation() {
    let (manager, store) = managed();
    let session = create(&manager, "root", calling(sub("search", [says("The Nile.")]))).await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    in_time(session.ask("Go")).await.unwrap();
    let child = children(&store, "root").await.remove(0).id;
    let (mut reported, mut progress) = (Vec::new(), Vec::new());
    while let Ok(Some(Update::Event(numbered))) = tokio::time::timeout(secs(1), events.next()).await {
        let SessionEvent::Agent(event) = &*numbered.event else { continue };
        match &**event {
            Event::Usage(row) => reported.push(row.conversation.clone()),
            Event::ToolProgress { data, .. } => progress.push(data["sub_agent"]["conversation"].clone()),
            _ => {}
        }
    }
    assert_eq!(reported, [Some(child.as_str().into())]);
    assert!(!progress.is_empty() && progress.iter().all(|id| id == child.as_str()), "{progress:?}");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_end_with_their_call_and_leave_nothing() {
    type End = fn(Manager, Session) -> tokio::task::JoinHandle<()>;
    let ends: [(&str, End, bool); 4] = [
        ("cancel", |_, session| tokio::spawn(async move { session.cancel().await.unwrap() }), false),
        ("interrupt", |_, session| tokio::spawn(async move { session.interrupt().await.unwrap() }), true),
        (
            "close",
            |manager, session| tokio::spawn(async move { manager.close(session.id()).await.unwrap() }),
            true,
        ),
        (
            "delete",
            |manager, session| tokio::spawn(async move { manager.delete(session.id()).await.unwrap() }),
            false,
        ),
    ];
    for (name, end, is_kept) in ends {
        let ((manager, store), gate) = (managed(), Gate::new());
        let session = at_gate(&manager, "root", &gate).await;
        assert_eq!(open_ids(&manager).len(), 2);
        in_time(end(manager.clone(), session)).await.unwrap();
        if name == "close" || name == "delete" {
            assert!(open_ids(&manager).is_empty(), "{name} waits for its calls");
        }
        settle().await;
        let open = open_ids(&manager);
        assert!(open.iter().all(|id| id == "root"), "{name}: {open:?}");
        assert_eq!(children(&store, "root").await.len(), usize::from(is_kept), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_were_never_prompted_end_with_a_call_that_is_dropped_while_it_opens_them() {
    // The store answers the first read of the child after the call is dropped.
    let ((manager, store), gate) = (managed(), Gate::new());
    let held = gate.clone();
    let tool = SubAgent::new("search", "Does a task.", move |_| {
        let (model, held) = (ScriptedProvider::new([says("Never.")]).model(), held.clone());
        Agent::builder().model(model).callbacks(HeldInit(held))
    });
    let session = create(&manager, "root", calling(tool)).await;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    session.cancel().await.unwrap();
    settle().await;
    gate.open();
    settle().await;
    assert_eq!(open_ids(&manager), ["root"]);
    assert!(children(&store, "root").await.is_empty());
}

/// Waits in `init` until the gate is open.
struct HeldInit(Gate);

#[async_trait::async_trait]
impl omni_agent::AgentCallbacks for HeldInit {
    async fn init(
        &mut self,
        _: &mut omni_agent::agent::StateEdit,
        _: &omni_agent::agent::State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.pass().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_take_no_place_and_have_their_own_limit() {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).max_open(1).max_turns(1).max_sub_agents(1).build();
    let low = || sub("low", [says("Never.")]);
    let high = sub_with("high", [uses(&["low"]), says("It is busy.")], move |agent| agent.tool(low()));
    let session = create(&manager, "root", calling(high)).await;
    in_time(session.ask("Go")).await.unwrap();
    assert_eq!(result(&session).await, ("It is busy.".to_owned(), false));
    let high = children(&store, "root").await.remove(0);
    assert!(children(&store, high.id.as_str()).await.is_empty());
    let stored = store.load(&high.id).await.unwrap();
    let refused = stored.nodes.iter().flat_map(|node| node.message().tool_results()).next().unwrap().text();
    assert!(refused.contains("1 sub-agents run already"), "{refused}");
    // The place of the root is still counted.
    settle().await;
    in_time(manager.create_with_id(&id("next"), alone(calling(sub("other", []))))).await.unwrap();
    assert_eq!(open_ids(&manager), ["next"]);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_never_use_a_conversation_of_somebody_else() {
    let (manager, store) = managed();
    let (taker, inner) = (manager.clone(), Arc::new(sub("search", [says("Never.")])));
    let tool = tool_fn("search", "Does a task.", move |input: Value, context: ToolContext| {
        let (manager, inner) = (taker.clone(), Arc::clone(&inner));
        async move {
            let wanted = id(&format!("sub-{}", context.idempotency_key()));
            manager.create_with_id(&wanted, alone(calling(sub("other", [])))).await.unwrap();
            manager.close(&wanted).await.unwrap();
            inner.call(input, context).await
        }
    });
    let session = create(&manager, "root", calling(tool)).await;
    in_time(session.ask("Go")).await.unwrap();
    let (text, is_error) = result(&session).await;
    assert!(is_error && text.contains("exists already"), "{text}");
    assert!(children(&store, "root").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_one_call_are_different_sessions() {
    let (manager, store) = managed();
    let inner = Arc::new(sub("search", [says("One."), says("Two.")]));
    let tool = tool_fn("search", "Does a task.", move |input: Value, context: ToolContext| {
        let inner = Arc::clone(&inner);
        async move {
            inner.call(input.clone(), context.clone()).await?;
            inner.call(input, context).await
        }
    });
    let session = create(&manager, "root", calling(tool)).await;
    in_time(session.ask("Go")).await.unwrap();
    assert_eq!(result(&session).await, ("Two.".to_owned(), false));
    assert_eq!(children(&store, "root").await.len(), 2);
}

fn deleting(name: &'static str) -> SubAgent {
    sub_with(name, [uses(&["delete"]), says("Deleted.")], |agent| {
        let delete = tool_fn("delete", "Deletes.", |_: Value, _| async { Ok("gone") });
        agent.tool(delete.needs_approval())
    })
}

#[tokio::test(start_paused = true)]
async fn sub_agents_pauses_are_decided_at_the_root_or_at_the_child() {
    for at_root in [true, false] {
        let (manager, store) = managed();
        let session = create(&manager, "root", calling(deleting("files"))).await;
        session.prompt("Go").await.unwrap();
        let pause = pauses(&session).await.remove(0);
        let own = pause.sub_agent.clone().unwrap();
        let child = children(&store, "root").await.remove(0).id;
        assert_eq!((own.conversation.as_deref(), &*own.name), (Some(child.as_str()), "files"));
        let of_child = manager.get(&child).unwrap();
        assert_eq!(of_child.status().await.unwrap(), Status::Paused);
        if at_root {
            in_time(session.resume(pause.tool_use.id.clone(), Decision::Execute)).await.unwrap();
        } else {
            in_time(of_child.resume(own.tool_use.clone(), Decision::Execute)).await.unwrap();
        }
        let late = in_time(session.resume(pause.tool_use.id.clone(), Decision::Execute)).await;
        assert!(matches!(late.unwrap_err().kind(), ErrorKind::StaleDecision | ErrorKind::NotPaused));
        in_time(session.wait_until_idle()).await.unwrap();
        assert_eq!(result(&session).await, ("Deleted.".to_owned(), false));
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_at_work_are_watched_and_not_opened_by_others() {
    let ((manager, store), gate) = (managed(), Gate::new());
    let session = at_gate(&manager, "root", &gate).await;
    let child = children(&store, "root").await.remove(0).id;
    // It is open, so others get its session.
    let watched = in_time(manager.open(&child, alone(calling(sub("other", []))))).await.unwrap();
    assert!(!watched.started);
    let mut run = watched.session.follow(FollowTarget::InFlight).await.unwrap();
    assert!(matches!(in_time(run.next()).await, Ok(Some(RunStep::Turn(_) | RunStep::User(_)))));
    drop((watched, run));

    gate.open();
    in_time(session.wait_until_idle()).await.unwrap();
    assert_eq!(open_ids(&manager), ["root"]);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_at_rest_in_the_turn_of_their_call_are_not_opened_by_others() {
    let ((manager, store), gates) = (managed(), [Gate::new(), Gate::new()]);
    let (inner, waits) = (Arc::new(sub("search", [says("One."), says("Two.")])), gates.clone());
    let calls = AtomicUsize::new(0);
    let tool = tool_fn("search", "Does a task.", move |input: Value, context: ToolContext| {
        let (inner, gate) = (Arc::clone(&inner), waits[calls.fetch_add(1, Ordering::SeqCst)].clone());
        async move {
            let output = inner.call(input, context).await?;
            gate.pass().await;
            Ok(output)
        }
    });
    let session = create(&manager, "root", relaying(tool)).await;
    session.prompt("First").await.unwrap();
    in_time(gates[0].reached()).await;
    let first = child(&store, "root").await;
    let open = || manager.open(&first, alone(calling(sub("other", []))));
    let error = in_time(open()).await.unwrap_err();
    assert_eq!((error.kind(), error.status()), (ErrorKind::SubAgent, 409));
    assert_eq!(error.member("parent"), Some(&json!("root")));
    assert_eq!(error.member("root"), Some(&json!("root")));
    gates[0].open();
    in_time(session.wait_until_idle()).await.unwrap();
    // A later turn of the parent does not repeat the call.
    session.prompt("Second").await.unwrap();
    in_time(gates[1].reached()).await;
    assert!(in_time(open()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_erased_tool_uses_are_deleted() {
    let (manager, store) = managed();
    let model =
        ScriptedProvider::new([uses(&["search"]), says("Done."), uses(&["search"]), says("Done.")]).model();
    let tool = sub("search", [says("One."), says("Two.")]);
    let session = create(&manager, "root", Agent::builder().model(model).tool(tool)).await;
    in_time(session.ask("First")).await.unwrap();
    let first = children(&store, "root").await.remove(0).id;
    in_time(session.ask("Second")).await.unwrap();
    assert_eq!(children(&store, "root").await.len(), 2);
    // Both tool uses have the same id, and belong to different turns.
    let tree = session.tree().await.unwrap();
    let second = tree.iter().nth(4).unwrap();
    assert_eq!(second.message().text(), "Second");
    in_time(session.erase(second.id())).await.unwrap();
    let left = children(&store, "root").await;
    assert_eq!(left.iter().map(|summary| &summary.id).collect::<Vec<_>>(), [&first]);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_end_with_their_parents_in_a_shutdown() {
    for grace in [0, 5] {
        let ((manager, store), gate) = (managed(), Gate::new());
        let session = at_gate(&manager, "root", &gate).await;
        let limits = omni_agent::manager::Shutdown::within(secs(10)).with_grace(secs(grace));
        let shutting = tokio::spawn({
            let manager = manager.clone();
            async move { manager.shutdown(limits).await }
        });
        settle().await;
        if grace > 0 {
            // The run gets the time to end.
            gate.open();
        }
        in_time(shutting).await.unwrap().unwrap();
        assert!(open_ids(&manager).is_empty());
        assert!(session.end().is_some());
        let stored = store.load(&id("root")).await.unwrap();
        let texts: Vec<_> = stored.nodes.iter().map(|node| node.message().text()).collect();
        assert_eq!(texts.last().unwrap() == "Done.", grace > 0, "{texts:?}");
        let stored = store.load(&child(&store, "root").await).await.unwrap();
        assert_eq!(stored.nodes.last().unwrap().message().text(), "Half");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_need_labels_and_run_in_memory_without_them() {
    let manager = CommandedStore::default().manager().build();
    let options: OpenOptions = alone(calling(sub("search", [says("The Nile.")])));
    let session = in_time(manager.create(options)).await.unwrap().session;
    let response = in_time(session.ask("Go")).await.unwrap();
    assert_eq!(response.delegated, Usage::default());
    assert_eq!(result(&session).await, ("The Nile.".to_owned(), false));
}

/// An agent that calls this tool in each new conversation, and answers with its result.
fn relaying(tool: impl Tool) -> AgentBuilder {
    let name = tool.name().to_owned();
    let provider = ScriptedProvider::from_fn(move |request| {
        let last = request.history.last();
        match last.and_then(|message| message.tool_results().next().cloned()) {
            Some(result) => Step::text(format!("It says: {}", result.text())),
            None => Step::tool_use("call", &name, json!({ "task": "Go." })),
        }
    });
    Agent::builder().model(provider.model()).tool(tool)
}

/// A sub-agent whose answer waits at the gate.
fn waiting(name: &'static str, gate: &Gate) -> SubAgent {
    let gate = gate.clone();
    SubAgent::new(name, "Does a task.", move |_| held(&gate))
}

/// An agent with a sub-agent, which has a sub-agent that waits at the gate.
fn nested(gate: &Gate) -> AgentBuilder {
    let gate = gate.clone();
    relaying(SubAgent::new("high", "Does a task.", move |_| relaying(waiting("low", &gate))))
}

pub(crate) async fn last_text(session: &Session) -> String {
    in_time(session.wait_until_idle()).await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

/// Returns the only stored sub-agent of a conversation.
pub(crate) async fn child(store: &Arc<MemoryStore>, parent: &str) -> ConversationId {
    let mut children = children(store, parent).await;
    assert_eq!(children.len(), 1);
    children.remove(0).id
}

#[tokio::test(start_paused = true)]
async fn sub_agents_repeated_below_a_sub_agent_at_the_limit_run() {
    let (store, gate) = (Arc::new(MemoryStore::new()), Gate::new());
    let first = Manager::builder(Arc::clone(&store)).build();
    let options = alone(nested(&gate)).durable(Durable::InFlight);
    let session = in_time(first.create_with_id(&id("root"), options)).await.unwrap().session;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    in_time(first.hand_over(secs(10))).await.unwrap();

    let (second, open) = (Manager::builder(Arc::clone(&store)).max_sub_agents(1).build(), Gate::new());
    open.open();
    let options = alone(nested(&open)).durable(Durable::InFlight);
    let session = in_time(second.open(&id("root"), options)).await.unwrap().session;
    assert_eq!(last_text(&session).await, "It says: It says: Half");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_at_work_deleted_alone_are_refused() {
    let ((manager, store), gate) = (managed(), Gate::new());
    let session = at_gate(&manager, "root", &gate).await;
    let child = child(&store, "root").await;
    let error = in_time(manager.delete(&child)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SubAgent);
    assert_eq!(error.member("conversation"), Some(&json!(child)));
    assert_eq!(error.member("parent"), Some(&json!("root")));
    assert!(store.summary(&child).await.is_ok());
    gate.open();
    in_time(session.wait_until_idle()).await.unwrap();
    assert_eq!(result(&session).await, ("Half".to_owned(), false));
    settle().await;
    in_time(manager.delete(&child)).await.unwrap();
    assert!(children(&store, "root").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_a_parent_that_loses_its_place_leave_their_turns() {
    let ((manager, store), gate) = (managed(), Gate::new());
    let options = alone(relaying(waiting("search", &gate))).durable(Durable::InFlight);
    let session = in_time(manager.create_with_id(&id("root"), options)).await.unwrap().session;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    let child = child(&store, "root").await;
    in_time(session.flush(secs(10))).await.unwrap();
    // The following write is made as another process would make it.
    let Stored { version, mut state, .. } = store.load(&id("root")).await.unwrap();
    state.settings.system = Some("Be brief.".into());
    let change = Change::State(StateChange::whole(state));
    store.write(&id("root"), &Write::on(version), &change).await.unwrap();
    session.set_title(Some("Later")).await.unwrap();
    assert_eq!(in_time(session.ended()).await.reason, EndReason::LostPlace);
    tokio::time::sleep(secs(1)).await;
    assert!(open_ids(&manager).is_empty());
    assert!(store.turn(&child).await.unwrap().is_some(), "the next owner of the root continues it");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_opened_after_their_parent_was_deleted_are_deleted() {
    let (store, gate) = (Arc::new(MemoryStore::new()), Gate::new());
    let manager = Manager::builder(Arc::clone(&store)).close_timeout(secs(5)).build();
    let held = gate.clone();
    let tool = SubAgent::new("search", "Does a task.", move |_| {
        let (model, held) = (ScriptedProvider::new([says("Never.")]).model(), held.clone());
        Agent::builder().model(model).callbacks(HeldInit(held))
    });
    let session = create(&manager, "root", calling(tool)).await;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    in_time(manager.delete(&id("root"))).await.unwrap();
    gate.open();
    tokio::time::sleep(secs(60)).await;
    assert!(open_ids(&manager).is_empty());
    assert!(store.list(&Page::first(9).into()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_agents_with_the_id_of_an_open_conversation_leave_it_open() {
    let (manager, _) = managed();
    let (taker, inner) = (manager.clone(), Arc::new(sub("search", [says("Never.")])));
    let tool = tool_fn("search", "Does a task.", move |input: Value, context: ToolContext| {
        let (manager, inner) = (taker.clone(), Arc::clone(&inner));
        async move {
            let wanted = id(&format!("sub-{}", context.idempotency_key()));
            manager.create_with_id(&wanted, alone(calling(sub("other", [])))).await.unwrap();
            inner.call(input, context).await
        }
    });
    let session = create(&manager, "root", calling(tool)).await;
    in_time(session.ask("Go")).await.unwrap();
    let (text, is_error) = result(&session).await;
    assert!(is_error && text.contains("already exists"), "{text}");
    settle().await;
    let open = open_ids(&manager);
    assert!(open.len() == 2 && open.iter().any(|id| id.starts_with("sub-")), "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_in_memory_keep_the_id_of_their_prompt() {
    let (manager, _) = managed();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let ids = Arc::clone(&seen);
    let provider = ScriptedProvider::from_fn(move |request| {
        let own = request.history.last().and_then(|message| message.id.clone());
        ids.lock().unwrap().extend(own.map(|id| id.to_string()));
        says("The Nile.")
    });
    let model = provider.model();
    let tool = SubAgent::new("search", "Does a task.", move |_| Agent::builder().model(model.clone()));
    let tool = tool.with_input(|_: Value| Prompt::new("Go.").with_id("mine")).in_memory();
    let session = create(&manager, "root", calling(tool)).await;
    in_time(session.ask("Go")).await.unwrap();
    assert_eq!(result(&session).await, ("The Nile.".to_owned(), false));
    assert_eq!(*seen.lock().unwrap(), ["mine"]);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_at_work_without_room_are_not_named_as_holders_of_places() {
    let (store, gate) = (Arc::new(MemoryStore::new()), Gate::new());
    let builder = Manager::builder(Arc::clone(&store)).max_open(1);
    let manager = builder.room_timeout(Some(secs(1))).build();
    let waits = gate.clone();
    let child = move || {
        let waits = waits.clone();
        let wait = tool_fn("wait", "Waits.", move |_: Value, _| {
            let waits = waits.clone();
            async move {
                waits.pass().await;
                Ok("waited")
            }
        });
        relaying(wait)
    };
    let tool = SubAgent::new("search", "Does a task.", move |_| child());
    let session = create(&manager, "root", calling(tool)).await;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(open_ids(&manager).len(), 2);
    let next = in_time(manager.create_with_id(&id("next"), alone(calling(sub("other", []))))).await;
    let error = next.unwrap_err();
    assert_eq!((error.kind(), error.member("running")), (ErrorKind::NoRoom, Some(&json!(["root"]))));
}

#[tokio::test(start_paused = true)]
async fn sub_agents_at_work_end_when_the_manager_is_dropped() {
    let ((manager, store), gate) = (managed(), Gate::new());
    drop(at_gate(&manager, "root", &gate).await);
    drop(manager);
    settle().await;
    assert_eq!(tasks(), 0);
    let stored = store.load(&child(&store, "root").await).await.unwrap();
    assert_eq!(stored.nodes.last().unwrap().message().text(), "Half");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_an_earlier_turn_remain_when_a_turn_is_discarded() {
    let ((manager, store), gate) = (managed(), Gate::new());
    let step = Step::new().then_text(["Half"]).gate(&gate).stop();
    let session = create(&manager, "root", relaying(sub("search", [says("One."), step]))).await;
    in_time(session.ask("First")).await.unwrap();
    let first = child(&store, "root").await;
    session.prompt("Second").await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(children(&store, "root").await.len(), 2);
    session.cancel().await.unwrap();
    settle().await;
    assert_eq!(child(&store, "root").await, first);
}

/// A store that fails once to read, or to delete, the conversation of a sub-agent.
#[derive(Default)]
struct FailsOnce {
    store: MemoryStore,
    reads: AtomicBool,
    deletes: AtomicBool,
}

impl FailsOnce {
    fn act(own: &ConversationId, fails: &AtomicBool) -> Result<(), StoreError> {
        let fails = own.as_str().starts_with("sub-") && fails.swap(false, Ordering::SeqCst);
        if fails { Err(StoreError::failed("the test's store", std::fmt::Error)) } else { Ok(()) }
    }
}

#[async_trait::async_trait]
impl Store for FailsOnce {
    forward!(self.store: traits, write, load, list);

    async fn summary(&self, own: &ConversationId) -> Result<Summary, StoreError> {
        Self::act(own, &self.reads)?;
        self.store.summary(own).await
    }

    async fn delete(&self, own: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        Self::act(own, &self.deletes)?;
        self.store.delete(own, lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_repeated_continue_after_a_failure_of_the_store() {
    let (store, gate) = (Arc::new(FailsOnce::default()), Gate::new());
    let first = Manager::builder(Arc::clone(&store)).build();
    let options = alone(relaying(waiting("search", &gate))).durable(Durable::InFlight);
    let session = in_time(first.create_with_id(&id("root"), options)).await.unwrap().session;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    in_time(first.hand_over(secs(10))).await.unwrap();

    // A limit of 0 concerns new calls only.
    let (second, open) = (Manager::builder(Arc::clone(&store)).max_sub_agents(0).build(), Gate::new());
    open.open();
    store.reads.store(true, Ordering::SeqCst);
    let options = alone(relaying(waiting("search", &open))).durable(Durable::InFlight);
    let session = in_time(second.open(&id("root"), options)).await.unwrap().session;
    assert_eq!(last_text(&session).await, "It says: Half");
    assert!(!store.reads.load(Ordering::SeqCst), "a read has failed");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_an_erasure_has_left_are_deleted_when_it_is_repeated() {
    let store = Arc::new(FailsOnce::default());
    let manager = Manager::builder(Arc::clone(&store)).build();
    let session = create(&manager, "root", calling(sub("search", [says("The Nile.")]))).await;
    in_time(session.ask("Go")).await.unwrap();
    let left = async || store.list(&Page::first(9).into()).await.unwrap().len();
    let first = session.tree().await.unwrap().iter().next().unwrap().id();
    store.deletes.store(true, Ordering::SeqCst);
    let error = in_time(session.erase(first)).await.unwrap_err();
    assert_eq!((error.kind(), left().await), (ErrorKind::StoreFailed, 2));
    let error = in_time(session.erase(first)).await.unwrap_err();
    assert_eq!((error.kind(), left().await), (ErrorKind::UnknownNode, 1));
}

#[tokio::test(start_paused = true)]
async fn sub_agents_whose_calls_may_be_repeated_are_refused_before_they_wait_for_a_place() {
    let (store, gate) = (Arc::new(MemoryStore::new()), Gate::new());
    let first = Manager::builder(Arc::clone(&store)).build();
    let options = alone(relaying(waiting("search", &gate))).durable(Durable::InFlight);
    let session = in_time(first.create_with_id(&id("root"), options)).await.unwrap().session;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    let below = child(&store, "root").await;
    in_time(first.hand_over(secs(10))).await.unwrap();

    let (second, busy) = (Manager::builder(Arc::clone(&store)).max_open(1).build(), Gate::new());
    let other = create(&second, "other", held(&busy)).await;
    other.prompt("Go").await.unwrap();
    in_time(busy.reached()).await;
    let error = in_time(second.open(&below, alone(calling(sub("other", []))))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SubAgent);
}

//! Calls of sub-agents that are sessions: limits, questions, and decisions that several sessions carry out.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    Agent, ErrorKind, Manager,
    agent::{AgentBuilder, SubAgent},
    manager::{Activity, Titles},
    message::ToolResult,
    run::{Accepted, PendingUse},
    session::{Mode, Session, SessionCommand},
    store::{MemoryStore, Page, Store, Summary},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Answer, Decision, Tool, ToolContext, ToolError, tool_fn},
};
use serde_json::{Value, json};

use crate::support::{activity, alone, create, held, id, in_time, open_ids, secs, settle};

/// Returns a manager, and its store.
fn managed() -> (Manager, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    (Manager::builder(Arc::clone(&store)).build(), store)
}

/// Returns an agent that uses a tool once for each prompt, with these ids, and answers with the results.
fn using(tool: impl Tool, ids: &'static [&'static str]) -> AgentBuilder {
    let name = tool.name().to_owned();
    let provider = ScriptedProvider::from_fn(move |request| {
        let results: Vec<_> =
            request.history.last().into_iter().flat_map(|last| last.tool_results()).collect();
        if results.is_empty() {
            let step = ids
                .iter()
                .fold(Step::new(), |step, own| step.then_tool_use(own, &name, json!({ "task": "Go." })));
            return step.stop();
        }
        let texts: Vec<_> = results.into_iter().map(ToolResult::text).collect();
        Step::text(texts.join(", "))
    });
    Agent::builder().model(provider.model()).tool(tool)
}

/// Returns a sub-agent that uses a tool once, and answers with its result.
fn below(tool: impl Fn() -> Box<dyn Tool> + Send + Sync + 'static) -> SubAgent {
    SubAgent::new("search", "Does a task.", move |_| using(tool(), &["own"]))
}

/// Returns a sub-agent whose answer waits at the gate.
fn waiting(gate: &Gate) -> SubAgent {
    let gate = gate.clone();
    SubAgent::new("search", "Does a task.", move |_| held(&gate))
}

/// Returns a sub-agent whose tool needs an approval, and the number of times that the tool has run.
fn deleting() -> (SubAgent, Arc<AtomicUsize>) {
    let runs = Arc::<AtomicUsize>::default();
    let counter = Arc::clone(&runs);
    let tool = move || {
        let counter = Arc::clone(&counter);
        let delete = tool_fn("delete", "Deletes.", move |_: Value, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            async { Ok("gone") }
        });
        Box::new(delete.needs_approval()) as Box<dyn Tool>
    };
    (below(tool), runs)
}

/// Waits until the session has this number of pauses.
async fn pauses(session: &Session, count: usize) -> Vec<Arc<PendingUse>> {
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    loop {
        let snapshot = session.snapshot().await.unwrap();
        if snapshot.agent.pauses.len() == count {
            return snapshot.agent.pauses;
        }
        assert!(matches!(in_time(events.next()).await, Some(Update::Event(_))));
    }
}

async fn children(store: &MemoryStore) -> Vec<Summary> {
    let all = store.list(&Page::first(9).into()).await.unwrap();
    all.into_iter().filter(|summary| summary.labels.get("omni.parent").is_some()).collect()
}

async fn last_text(session: &Session) -> String {
    in_time(session.wait_until_idle()).await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

#[tokio::test(start_paused = true)]
async fn call_beyond_its_time_limit_ends_its_session() {
    let ((manager, store), gate) = (managed(), Gate::new());
    let session = create(&manager, "root", using(waiting(&gate).with_timeout(secs(5)), &["c"])).await;
    session.prompt("Go").await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(open_ids(&manager).len(), 2);
    let text = last_text(&session).await;
    assert!(text.contains("5s"), "{text}");
    settle().await;
    assert_eq!(open_ids(&manager), ["root"]);
    let child = children(&store).await.remove(0).id;
    assert!(store.turn(&child).await.unwrap().is_none());
    // The gate is still closed, and the text so far is kept.
    assert_eq!(store.load(&child).await.unwrap().nodes.last().unwrap().message().text(), "Half");
}

#[tokio::test(start_paused = true)]
async fn provided_result_for_a_pause_of_a_child_is_the_result_of_its_tool() {
    let (manager, _) = managed();
    let (tool, runs) = deleting();
    let session = create(&manager, "root", using(tool, &["c"])).await;
    session.prompt("Go").await.unwrap();
    let pause = pauses(&session, 1).await.remove(0);
    assert!(!pause.is_question());
    let result = ToolResult::ok(&pause.tool_use, "already gone");
    in_time(session.resume(pause.tool_use.id.clone(), Decision::Provide(result))).await.unwrap();
    assert_eq!(last_text(&session).await, "already gone");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn question_of_a_tool_of_a_child_is_answered_at_the_root() {
    let (manager, _) = managed();
    let tool = below(|| {
        let ask = tool_fn("ask", "Asks.", |_: Value, context: ToolContext| async move {
            match context.ask(json!({ "text": "Which river?" })).await {
                Answer::Accepted(Some(value)) => Ok(format!("{} it is", value.as_str().unwrap_or_default())),
                other => Ok(format!("{other:?}")),
            }
        });
        Box::new(ask)
    });
    let session = create(&manager, "root", using(tool, &["c"])).await;
    session.prompt("Go").await.unwrap();
    let pause = pauses(&session, 1).await.remove(0);
    assert!(pause.is_question());
    assert_eq!(
        (&pause.reason["text"], pause.asked_by.as_ref().unwrap().as_str()),
        (&json!("Which river?"), "c")
    );
    let answer = Decision::ExecuteWith(json!("Nile"));
    in_time(session.resume(pause.tool_use.id.clone(), answer)).await.unwrap();
    assert_eq!(last_text(&session).await, "Nile it is");
}

#[tokio::test(start_paused = true)]
async fn decisions_for_several_children_are_checked_as_a_whole_first() {
    let (manager, store) = managed();
    let (tool, runs) = deleting();
    let session = create(&manager, "root", using(tool, &["a", "b"])).await;
    session.prompt("Go").await.unwrap();
    let waiting = pauses(&session, 2).await;
    let of = |pause: &PendingUse| pause.sub_agent.as_ref().unwrap().conversation.clone();
    assert_ne!(of(&waiting[0]), of(&waiting[1]));
    assert_eq!(children(&store).await.len(), 2);
    let both = || waiting.iter().map(|pause| (pause.tool_use.id.clone(), Decision::Execute));
    let decide = async |decisions| {
        let command = SessionCommand::Decide { turn: waiting[0].turn, decisions };
        in_time(session.perform(command, Some("ann"))).await.map(drop)
    };
    let error = decide(both().chain([("never".into(), Decision::Execute)]).collect()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleDecision);
    settle().await;
    assert_eq!((pauses(&session, 2).await.len(), runs.load(Ordering::SeqCst)), (2, 0));

    decide(both().collect()).await.unwrap();
    assert_eq!(last_text(&session).await, "gone, gone");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    for child in children(&store).await {
        let stored = store.load(&child.id).await.unwrap();
        let result =
            stored.nodes.iter().flat_map(|node| node.message().tool_results()).next().unwrap().clone();
        assert_eq!(result.decision.unwrap().by.as_deref(), Some("ann"));
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_for_several_children_apply_for_each_child_that_still_waits() {
    let (manager, _) = managed();
    let (tool, runs) = deleting();
    let session = create(&manager, "root", using(tool, &["a", "b"])).await;
    session.prompt("Go").await.unwrap();
    let waiting = pauses(&session, 2).await;
    let decisions = waiting.iter().map(|pause| (pause.tool_use.id.clone(), Decision::Execute)).collect();
    let command = SessionCommand::Decide { turn: waiting[0].turn, decisions };
    // The child of the first pause is decided at the same time, and its command arrives there first.
    let own = waiting[0].sub_agent.clone().unwrap();
    let first = manager.get(&id(own.conversation.as_deref().unwrap())).unwrap();
    let (at_child, at_root) = tokio::join!(
        first.resume(own.tool_use.clone(), Decision::reject("Keep it.")),
        session.perform(command, None)
    );
    at_child.unwrap();
    let error = at_root.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::StaleDecision | ErrorKind::NotPaused), "{error}");
    let text = last_text(&session).await;
    assert!(["Keep it., gone", "gone, Keep it."].contains(&&*text), "{text}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn call_with_a_long_id_has_a_label_by_which_its_child_is_erased() {
    let (manager, store) = managed();
    let long: &'static str = Box::leak("x".repeat(200).into_boxed_str());
    let ids: &'static [&'static str] = Box::leak(Box::new([long]));
    let gate = Gate::new();
    gate.open();
    let session = create(&manager, "root", using(waiting(&gate), ids)).await;
    in_time(session.ask("First")).await.unwrap();
    let first = children(&store).await.remove(0);
    let call = first.labels.get("omni.call").unwrap();
    assert!(call.len() == 32 && call.chars().all(|digit| digit.is_ascii_hexdigit()), "{call}");
    gate.open();
    in_time(session.ask("Second")).await.unwrap();
    let tree = session.tree().await.unwrap();
    let second = tree.iter().find(|node| node.message().text() == "Second").unwrap().id();
    in_time(session.erase(second)).await.unwrap();
    let left = children(&store).await;
    assert_eq!(left.iter().map(|summary| &summary.id).collect::<Vec<_>>(), [&first.id], "the other is kept");
    let root = tree.iter().next().unwrap().id();
    in_time(session.erase(root)).await.unwrap();
    assert!(children(&store).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_child_count_in_the_limit_of_its_tenant() {
    let store = Arc::new(MemoryStore::new());
    let builder = Manager::builder(Arc::clone(&store)).titles(Titles::Off);
    let manager = builder.max_turns_per_tenant(1).build();
    let (of_child, of_same) = (Gate::new(), Gate::new());
    let open = async |name: &str, agent, tenant: &str| {
        let options = alone(agent).tenant(tenant);
        in_time(manager.create_with_id(&id(name), options)).await.unwrap().session
    };
    let root = open("root", using(waiting(&of_child), &["c"]), "acme").await;
    root.prompt("Go").await.unwrap();
    in_time(of_child.reached()).await;
    let same = open("same", held(&of_same), "acme").await;
    let other = open("other", held(&Gate::new()), "zeta").await;
    for session in [&same, &other] {
        session.prompt("Go").await.unwrap();
    }
    settle().await;
    let all = ["same", "other"].map(|name| activity(&manager, name).unwrap());
    assert_eq!(all, [Activity::Queued, Activity::Busy], "the request of the child has the place");
    of_child.open();
    settle().await;
    assert_eq!(activity(&manager, "same"), Some(Activity::Busy));
    // The root now waits for a place of its tenant, too.
    assert_eq!(activity(&manager, "root"), Some(Activity::Queued));
    of_same.open();
    assert_eq!(last_text(&root).await, "Half");
}

#[tokio::test(start_paused = true)]
async fn runs_that_a_tool_has_started_end_with_the_turn_of_the_tool() {
    for end in ["cancel", "interrupt", "close", "delete"] {
        let ((manager, _), gate) = (managed(), Gate::new());
        let expert = create(&manager, "expert", held(&gate)).await;
        let asked = expert.clone();
        let ask = tool_fn("ask", "Asks.", move |_: Value, context: ToolContext| {
            let session = asked.clone();
            async move {
                let Accepted::Started { turn } = session.prompt("Hi").await? else {
                    return Err(ToolError::new("busy"));
                };
                let _guard = context.guard_run(&session, turn);
                session.wait_until_idle().await?;
                Ok("asked")
            }
        });
        let root = create(&manager, "root", using(ask, &["c"])).await;
        root.prompt("Go").await.unwrap();
        in_time(gate.reached()).await;
        assert_eq!(activity(&manager, "expert"), Some(Activity::Busy), "{end}");
        match end {
            "cancel" => in_time(root.cancel()).await.unwrap(),
            "interrupt" => in_time(root.interrupt()).await.unwrap(),
            "close" => in_time(manager.close(&id("root"))).await.unwrap(),
            _ => in_time(manager.delete(&id("root"))).await.unwrap(),
        }
        // The gate is still closed, and the text so far is kept.
        in_time(expert.wait_until_idle()).await.unwrap();
        assert_eq!(last_text(&expert).await, "Half", "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_below_a_call_that_a_tool_drops_start_nothing() {
    for in_memory in [false, true] {
        let placed = move |own: SubAgent| if in_memory { own.in_memory() } else { own };
        let ((manager, _), gate, stop, end) = (managed(), Gate::new(), Gate::new(), Gate::new());
        let worked = Arc::<AtomicUsize>::default();
        let (counter, at) = (Arc::clone(&worked), gate.clone());
        // The model of the lowest agent uses a tool when the gate is open.
        let low = move || {
            let (counter, at) = (Arc::clone(&counter), at.clone());
            let low = SubAgent::new("low", "Does a task.", move |_| {
                let counter = Arc::clone(&counter);
                let work = tool_fn("work", "Works.", move |_: Value, _| {
                    counter.fetch_add(1, Ordering::SeqCst);
                    async { Ok("worked") }
                });
                let first = Step::new().then_text(["Well"]).gate(&at).then_tool_use("w", "work", json!({}));
                let steps = [first.stop(), Step::text("Done.")];
                Agent::builder().model(ScriptedProvider::new(steps).model()).tool(work)
            });
            Box::new(placed(low)) as Box<dyn Tool>
        };
        let high = Arc::new(placed(below(low)));
        let (until, after) = (stop.clone(), end.clone());
        let dropping = tool_fn("search", "Does a task.", move |input: Value, context: ToolContext| {
            let (high, until, after) = (Arc::clone(&high), until.clone(), after.clone());
            async move {
                tokio::select! {
                    biased;
                    () = until.pass() => {}
                    output = high.call(input, context) => return output,
                }
                after.pass().await;
                Ok("dropped".into())
            }
        });
        let root = create(&manager, "root", using(dropping, &["c"])).await;
        root.prompt("Go").await.unwrap();
        in_time(gate.reached()).await;
        stop.open();
        gate.open();
        in_time(end.reached()).await;
        settle().await;
        assert_eq!((worked.load(Ordering::SeqCst), open_ids(&manager)), (0, vec!["root".to_owned()]));
        end.open();
        assert_eq!(last_text(&root).await, "dropped");
    }
}

//! Events and snapshots of real runs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    agent::{
        Agent, AgentBuilder, AgentCallbacks, CompactionPolicy, Durable, Event, Snapshot, State, SubAgent,
        ToolDecision, TurnDecision,
    },
    budget::{Budget, SharedBudget},
    manager::{Manager, ManagerEvent, ManagerSnapshot, OpenOptions, Sweep, Titles},
    message::{Attachment, ProviderItem, Timestamp, ToolResult, ToolUse, TurnId, Usage},
    provider::{
        CacheHint, Effort, ModelInfo, Options, OutputSchema, ProviderError, ProviderErrorKind, ToolChoice,
        custom::{BlockStart, Delta, MessageDelta},
    },
    run::{Next, Prompt, Response, Schedule},
    session::{Mode, Session, SessionEvent, SessionSnapshot, SessionSubscription},
    store::{
        ConversationId, Filter, Labels, MemoryStore, Page, Store,
        custom::{Change, Commit, ScheduleChange, ScheduleEntry, StoredState, TurnRecord, Write},
    },
    subscription::{EventId, Subscription, Update},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, declared_tool, tool_fn},
    tree::NodeId,
};
use serde_json::{Value, json};

use crate::{UPDATES, in_time};

const SECOND: Duration = Duration::from_secs(1);

/// A reader of a session. It checks each update, and each snapshot that it builds from the events.
struct Watch {
    updates: SessionSubscription,
    view: SessionSnapshot,
    seen: BTreeSet<String>,
}

impl Watch {
    async fn of(session: &Session) -> Self {
        let updates = session.subscribe(Mode::Controller).await.unwrap();
        let view = SessionSnapshot::clone(updates.snapshot().unwrap());
        UPDATES.take("SessionSnapshot", &view);
        Self { updates, view, seen: BTreeSet::new() }
    }

    /// Returns the kind of the next event, such as `store` or `agent.turn`. Returns `None` for the end.
    async fn next(&mut self) -> Option<String> {
        let update: Update<SessionSnapshot, SessionEvent> = in_time(self.updates.next()).await?;
        let json = UPDATES.take("SessionUpdate", &update);
        self.view.take(&update).unwrap();
        UPDATES.take("SessionSnapshot", &self.view);
        let tag = |json: &Value| json["type"].as_str().unwrap().to_owned();
        let mut kind = tag(&json);
        if kind == "event" {
            kind = tag(&json["event"]);
            if kind == "agent" {
                UPDATES.check("Event", &json["event"]["event"]).unwrap();
                kind = format!("agent.{}", tag(&json["event"]["event"]));
            }
        }
        self.seen.insert(kind.clone());
        Some(kind)
    }

    /// Reads until an event of this kind.
    async fn until(&mut self, kind: &str) {
        while self.next().await.expect("the session has ended") != kind {}
    }

    /// Reads until the agent has paused.
    async fn until_paused(&mut self) {
        while self.next().await.expect("the session has ended") != "agent.status"
            || self.view.agent.pauses.is_empty()
        {}
    }

    /// Stops the session and returns the kinds of all updates.
    async fn end(mut self, session: Session) -> BTreeSet<String> {
        session.stop(SECOND).await.unwrap();
        while self.next().await.is_some() {}
        self.seen
    }
}

async fn start(agent: AgentBuilder) -> (Session, Watch) {
    let labels = Labels::new([("tenant", "acme")]).unwrap();
    let builder = Session::builder(MemoryStore::new()).agent(agent).labels(labels);
    let session = builder.create().await.unwrap();
    let watch = Watch::of(&session).await;
    (session, watch)
}

fn scripted(steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
    let look = tool_fn("look", "Looks.", |_: Value, context: ToolContext| async move {
        context.progress(json!({ "percent": 50 })).await;
        Ok("Seen.")
    });
    let delete =
        tool_fn("delete", "Deletes.", |input: Value, _: ToolContext| async move { Ok(input.to_string()) });
    Agent::builder().model(ScriptedProvider::new(steps).model()).tool(look).tool(delete.needs_approval())
}

/// Runs one answer with blocks of every kind, options of every kind, and a prompt with an id and data. This function
/// and the following ones return the kinds of the updates that they have checked.
async fn rich_answer() -> BTreeSet<String> {
    let image = Attachment::url("image/png", "https://example.com/a.png").named("a.png");
    let item = ProviderItem::new("scripted", json!({ "kind": "search" }));
    let usage = Usage::default().with_input(3).with_output(5).with_reasoning(1).with_cost(0.1);
    let data = MessageDelta::default()
        .with_model("model-7")
        .with_warnings(vec!["A setting was ignored.".to_owned()])
        .with_provider_data([("scripted".to_owned(), json!({ "id": 1 }))].into_iter().collect());
    let answer = Step::new()
        .then_thinking("Hm.", "signature")
        .then_redacted_thinking("payload")
        .then_text(["Hel", "lo"])
        .delta(Delta::Start { index: 3, block: BlockStart::Attachment(image.clone()) })
        .delta(Delta::Start { index: 4, block: BlockStart::ProviderItem(item) })
        .data(data)
        .usage(usage)
        .stop();
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_thinking(Effort::Low)
        .with_tool_choice(ToolChoice::Tool("look".to_owned()))
        .with_cache(CacheHint::Long)
        .with_stop_sequences(["END"])
        .with_metadata([("user", "ann")])
        .with_extra([("seed", 7)])
        .with_header("x-secret", "never written")
        .with_api_key("never written");
    let agent =
        scripted([answer]).system("Be kind.").options(options.clone()).max_steps(9).turn_timeout(60 * SECOND);
    let (session, mut watch) = start(agent).await;
    let content = [
        omni_agent::message::Content::from("Hi"),
        Attachment::base64("image/png", "AAAA").into(),
        image.into(),
    ];
    let prompt =
        Prompt::new(content).with_id("p1").with_app_data(json!({ "channel": "email" })).with_max_steps(5);
    session.prompt(prompt.with_options(Options::default().with_thinking(Effort::High))).await.unwrap();
    watch.until("agent.turn").await;
    watch.until("store").await;
    let view = serde_json::to_string(&watch.view).unwrap();
    assert!(!view.contains("never written"));
    watch.end(session).await
}

/// Decides about tool uses by the name of the use's id.
struct ById;

#[async_trait]
impl AgentCallbacks for ById {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        match tool_use.id.as_str() {
            "refused" => ToolDecision::Reject("Not allowed.".to_owned()),
            "changed" => ToolDecision::ExecuteWith(json!({ "path": "/other" })),
            "short" => ToolDecision::pause_for("Sure?", SECOND),
            _ => ToolDecision::Execute,
        }
    }

    async fn handle_turn(&mut self, response: &Response, _: &mut State) -> TurnDecision {
        if response.text() == "First." { TurnDecision::continue_with("Go on.") } else { TurnDecision::Stop }
    }
}

/// Tools with progress, and decisions of every kind: by callbacks, by callers, and by a time limit.
async fn tools() -> BTreeSet<String> {
    let input = || json!({ "path": "/tmp" });
    let uses = ["plain", "refused", "changed"]
        .into_iter()
        .fold(Step::new(), |step, id| step.then_tool_use(id, "look", input()));
    let uses = ["short", "a", "b", "c", "d"]
        .into_iter()
        .fold(uses, |step, id| step.then_tool_use(id, "delete", input()));
    let broken = Step::new().then_raw_tool_use("broken", "look", &["{\"path\": "]).stop();
    let steps = [uses.stop(), broken, Step::text("First."), Step::text("Second.")];
    let (session, mut watch) = start(scripted(steps).callbacks(ById)).await;
    session.prompt("Clean up").await.unwrap();
    while watch.view.agent.pauses.len() < 5 {
        watch.next().await.unwrap();
    }
    let result = |id: &str| ToolResult::ok(&ToolUse::new(id, "delete", input()), "Done by hand.");
    let decisions = [
        ("a", Decision::Execute),
        ("b", Decision::reject("No.")),
        ("c", Decision::ExecuteWith(json!({ "path": "/home" }))),
        ("d", Decision::Provide(result("d"))),
    ];
    for (id, decision) in decisions {
        session.resume_as(id, decision, "ann").await.unwrap();
    }
    watch.until("agent.turn").await;
    watch.until("agent.turn").await;
    watch.end(session).await
}

/// Questions of a running tool: one is withdrawn, and one is answered.
async fn questions() -> BTreeSet<String> {
    let steps = [Step::tool_use("t1", "ask", json!({})), Step::text("Done.")];
    let ask = tool_fn("ask", "Asks.", async |_: Value, context: ToolContext| {
        let withdrawn = tokio::time::timeout(SECOND, context.ask(json!({ "question": 1 }))).await;
        assert!(withdrawn.is_err());
        Ok(format!("{:?}", context.ask(json!({ "question": 2 })).await))
    });
    let (session, mut watch) = start(scripted(steps).tool(ask)).await;
    session.prompt("Ask").await.unwrap();
    watch.until_paused().await;
    watch.until("agent.status").await;
    assert!(watch.view.agent.pauses.is_empty(), "the question is withdrawn");
    watch.until_paused().await;
    session.resume_as("t1?2", Decision::ExecuteWith(json!(7)), "ann").await.unwrap();
    watch.until("agent.turn").await;
    watch.end(session).await
}

/// A turn that leaves tool uses to the application.
async fn open_tool_uses() -> BTreeSet<String> {
    let uses =
        Step::new().then_tool_use("mine", "ask", json!({})).then_tool_use("theirs", "look", json!({})).stop();
    let agent = scripted([uses]).tool(declared_tool::<Value>("ask", "Asks the user."));
    let (session, mut watch) = start(agent).await;
    session.prompt("Ask").await.unwrap();
    watch.until("agent.turn").await;
    watch.end(session).await
}

/// Prompts that join the turn, wait, are withdrawn, and are carried back by an interrupt.
async fn steering() -> BTreeSet<String> {
    let gate = Gate::new();
    let steps = [
        Step::new().then_text(["Let me "]).gate(&gate).then_tool_use("a", "look", json!({})).stop(),
        Step::text("Seen."),
        Step::new().then_text(["Half"]).hang(),
    ];
    let (session, mut watch) = start(scripted(steps)).await;
    session.prompt("Look").await.unwrap();
    in_time(gate.reached()).await;
    session.prompt(Prompt::new("Quickly").at(Next::Step)).await.unwrap();
    session.prompt(Prompt::new("Never mind").with_id("p2")).await.unwrap();
    session.prompt(Prompt::new("And then").with_max_steps(3)).await.unwrap();
    session.unstage("p2").await.unwrap();
    gate.open();
    watch.until("agent.turn").await;
    watch.until("agent.text_delta").await;
    session.prompt("Later").await.unwrap();
    session.interrupt().await.unwrap();
    watch.until("agent.turn").await;
    watch.end(session).await
}

/// A cancelled run, failed runs of several kinds, and repeated requests.
async fn failures() -> BTreeSet<String> {
    let refused = ProviderError::new(ProviderErrorKind::Auth, "No key.").with_status(401).with_body("{}");
    let overloaded =
        ProviderError::new(ProviderErrorKind::Overloaded, "Later.").with_retry_after(Some(SECOND));
    let steps = [
        Step::new().usage(Usage::default().with_input(3)).then_text(["Half"]).hang(),
        Step::error(refused.with_request_id(Some("r1".to_owned()))),
        Step::error(overloaded),
        Step::text("Again."),
        Step::new().panic("Oh."),
        Step::new().hang(),
        Step::text("not a number"),
        Step::text("7"),
        Step::text("still not"),
    ];
    let (session, mut watch) = start(scripted(steps)).await;
    session.prompt("One").await.unwrap();
    watch.until("agent.text_delta").await;
    session.prompt("Waits").await.unwrap();
    session.cancel().await.unwrap();
    watch.until("agent.cancelled").await;
    session.prompt("Two").await.unwrap();
    watch.until("agent.error").await;
    session.prompt("Three").await.unwrap();
    watch.until("agent.turn").await;
    session.prompt("Four").await.unwrap();
    watch.until("agent.error").await;
    session.prompt(Prompt::new("Five").with_turn_timeout(SECOND)).await.unwrap();
    watch.until("agent.error").await;
    let number = || Options::default().with_output(OutputSchema::of::<u32>());
    session.prompt(Prompt::new("Six").with_options(number())).await.unwrap();
    watch.until("agent.retry").await;
    watch.until("agent.turn").await;
    session.prompt(Prompt::new("Seven").with_options(number().with_output_retries(0))).await.unwrap();
    watch.until("agent.turn").await;
    watch.end(session).await
}

/// Changes of the tree, the title and the labels.
async fn changes() -> BTreeSet<String> {
    let agent = Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("Yes.")).model());
    let (session, mut watch) = start(agent).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    let node = |number| NodeId::new(number).unwrap();
    session.again(node(3)).response().await.unwrap();
    session.run("Three").instead_of(node(1)).response().await.unwrap();
    session.run("Four").below(Some(node(2))).response().await.unwrap();
    session.navigate(node(2)).await.unwrap();
    session.set_title(Some("A title")).await.unwrap();
    session.set_title(None).await.unwrap();
    session.set_labels(Labels::new([("user", "ann"), ("omni.kind", "chat")]).unwrap()).await.unwrap();
    session.erase(node(3)).await.unwrap();
    watch.until("erased").await;
    assert!(!watch.view.labels.is_empty());
    watch.end(session).await
}

/// A run that spends a budget, and a run that the budget refuses.
async fn budget() -> BTreeSet<String> {
    let team = SharedBudget::new(Budget::requests(1));
    let (session, mut watch) = start(scripted([Step::text("Yes.")]).shared_budget(&team)).await;
    session.ask("One").await.unwrap();
    watch.until("agent.budget").await;
    session.ask("Two").await.unwrap_err();
    watch.until("agent.error").await;
    watch.end(session).await
}

/// A compaction by size within a run, one at the end of a run, and one by request that fails.
async fn compactions() -> BTreeSet<String> {
    let full = |text: &str| Step::new().usage(Usage::default().with_input(900)).then_text([text]).stop();
    let refused = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let steps = [full("A1"), Step::text("S1."), full("A2"), Step::text("S2."), Step::text("A3"), refused];
    let provider = ScriptedProvider::new(steps);
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let policy = CompactionPolicy::default().with_kept_turns(1);
    let agent = Agent::builder().model(provider.model().with_info(info)).compaction(policy);
    let (session, mut watch) = start(agent).await;
    for prompt in ["One", "Two", "Three"] {
        session.ask(prompt).await.unwrap();
    }
    session.compact("names").await.unwrap_err();
    watch.until("agent.compaction_end").await;
    watch.end(session).await
}

/// A pause of a sub-agent.
async fn delegation() -> BTreeSet<String> {
    let low = ScriptedProvider::new([Step::tool_use("d", "delete", json!({})), Step::text("Gone.")]).model();
    let sub = SubAgent::new("sub", "Deletes.", move |_| {
        let delete = tool_fn("delete", "Deletes.", |_: Value, _: ToolContext| async { Ok("ok") });
        Agent::builder().model(low.clone()).tool(delete.needs_approval())
    });
    let steps = [Step::tool_use("s", "sub", json!({ "task": "Go." })), Step::text("Done.")];
    let (session, mut watch) = start(scripted(steps).tool(sub)).await;
    session.prompt("Go").await.unwrap();
    watch.until_paused().await;
    let pause = watch.view.agent.pauses[0].tool_use.id.clone();
    session.resume(pause, Decision::Execute).await.unwrap();
    session.wait_until_idle().await.unwrap();
    watch.end(session).await
}

/// A reader that resumes after an event of an earlier start of the session.
async fn resync() -> BTreeSet<String> {
    let (session, mut watch) = start(scripted([Step::text("Yes.")])).await;
    watch.updates = session.resume_from(EventId::new(7, 1), Mode::Observer).await.unwrap();
    session.prompt("Hi").await.unwrap();
    watch.until("resync").await;
    watch.end(session).await
}

/// A turn that waits for an approval. Its session sleeps and is opened again, and the reader continues.
async fn restart() -> BTreeSet<String> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let on = |step| Session::builder(Arc::clone(&store)).agent(scripted([step])).durable(Durable::Approvals);
    let session = on(Step::tool_use("a", "delete", json!({}))).create().await.unwrap();
    let mut watch = Watch::of(&session).await;
    session.prompt("Delete").await.unwrap();
    watch.until_paused().await;
    watch.updates = session.resume_from(watch.updates.last_id(), Mode::Observer).await.unwrap();
    assert!(session.sleep().await.unwrap());
    watch.until("closed").await;
    let last = watch.updates.last_id();

    let session = on(Step::text("Done.")).open(session.id().clone()).await.unwrap();
    watch.updates = session.resume_from(last, Mode::Controller).await.unwrap();
    watch.until("agent.resumed").await;
    watch.until_paused().await;
    session.resume("a", Decision::Execute).await.unwrap();
    watch.until("agent.turn").await;
    watch.end(session).await
}

#[tokio::test(start_paused = true)]
async fn updates_of_sessions_fit_the_schema() {
    let mut seen = rich_answer().await;
    seen.append(&mut tools().await);
    seen.append(&mut questions().await);
    seen.append(&mut open_tool_uses().await);
    seen.append(&mut steering().await);
    seen.append(&mut failures().await);
    seen.append(&mut changes().await);
    seen.append(&mut budget().await);
    seen.append(&mut compactions().await);
    seen.append(&mut delegation().await);
    seen.append(&mut resync().await);
    seen.append(&mut restart().await);
    seen.append(&mut managed().await);

    let agent = UPDATES.tags("Event").into_iter().map(|tag| format!("agent.{tag}"));
    let session = UPDATES.tags("SessionEvent").into_iter().filter(|tag| tag != "agent");
    let update = UPDATES.tags("SessionUpdate").into_iter().filter(|tag| tag != "event");
    let all: BTreeSet<_> = agent.chain(session).chain(update).collect();
    // No run emits the event of an unavailable model. `samples.rs` checks it.
    let elsewhere = |kind: &&String| *kind == "model_fallback";
    let unseen: Vec<_> = all.difference(&seen).filter(|kind| !elsewhere(kind)).collect();
    assert!(unseen.is_empty(), "no run has emitted {unseen:?}");
    assert!(seen.is_subset(&all), "{seen:?}");
}

/// A reader of a manager.
struct ManagerWatch {
    updates: Subscription<ManagerSnapshot, ManagerEvent>,
    view: ManagerSnapshot,
    seen: BTreeSet<String>,
}

impl ManagerWatch {
    async fn next(&mut self) -> Option<String> {
        let update: Update<ManagerSnapshot, ManagerEvent> = in_time(self.updates.next()).await?;
        let json = UPDATES.take("ManagerUpdate", &update);
        match &update {
            Update::Event(event) => self.view.apply(event),
            Update::Resync(view) => self.view = ManagerSnapshot::clone(view),
            _ => {}
        }
        UPDATES.take("ManagerSnapshot", &self.view);
        let event = if json["type"] == "event" { &json["event"] } else { &json };
        let kind = event["type"].as_str().unwrap().to_owned();
        self.seen.insert(kind.clone());
        Some(kind)
    }

    async fn until(&mut self, kind: &str) {
        while self.next().await.expect("the manager has ended") != kind {}
    }
}

/// Stores a conversation with a turn in flight.
async fn leave_a_turn(store: &MemoryStore, id: &str) {
    let id = ConversationId::new(id).unwrap();
    let version = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let record = TurnRecord::new(1, TurnId::default(), "{}");
    store
        .write(&id, &Write::on(version), &Change::Commit(Commit::new(None).with_turn(record)))
        .await
        .unwrap();
}

/// A manager whose only schedule has an empty prompt.
async fn scheduled() -> BTreeSet<String> {
    let (store, id) = (MemoryStore::new(), ConversationId::new("a").unwrap());
    store.write(&id, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let empty = ScheduleEntry::new(Timestamp(1), 1, Schedule::at(Timestamp(1), Prompt::default()));
    let change = Change::schedule(ScheduleChange::new("r", Some(empty)));
    store.write(&id, &Write::first(), &change).await.unwrap();
    let manager = Manager::builder(store).starter(|_| Some(OpenOptions::new(scripted([])))).build();
    let updates = manager.subscribe();
    let view = ManagerSnapshot::clone(updates.snapshot().unwrap());
    let mut watch = ManagerWatch { updates, view, seen: BTreeSet::new() };
    manager.schedules(&Filter::default(), Page::default()).await.unwrap();
    watch.until("not_fired").await;
    watch.seen
}

/// A manager with room for one session, and generated titles. Returns the kinds of the updates of its session.
async fn managed() -> BTreeSet<String> {
    let usage = Usage::default().with_input(9);
    let titles = ScriptedProvider::from_fn(move |_| Step::new().then_text(["A title"]).usage(usage).stop());
    let store = MemoryStore::new();
    leave_a_turn(&store, "left").await;
    let builder = Manager::builder(store).max_open(1).idle_shutdown(None).sweep(Sweep::off());
    let builder = builder.starter(|_| Some(OpenOptions::new(Agent::builder().model("nobody:nothing"))));
    let manager = builder.titles(Titles::Model(titles.model())).build();
    let updates = manager.subscribe();
    let view = ManagerSnapshot::clone(updates.snapshot().unwrap());
    let mut watch = ManagerWatch { updates, view, seen: BTreeSet::new() };
    let id = |text: &str| ConversationId::new(text).unwrap();
    let pausing =
        || scripted([Step::text("Hello!"), Step::tool_use("a", "delete", json!({})), Step::text("Done.")]);
    let labels = Labels::new([("user", "ann")]).unwrap();
    manager.recover().await.unwrap();
    watch.until("not_recovered").await;

    let opened =
        manager.open_or_create(&id("a"), OpenOptions::new(pausing()).labels(labels.clone())).await.unwrap();
    let session = opened.session;
    let mut inner = Watch::of(&session).await;
    session.ask("Hi").await.unwrap();
    inner.until("usage").await;
    watch.until("title").await;
    session.prompt("Delete").await.unwrap();
    inner.until_paused().await;
    let other = {
        let (manager, id) = (manager.clone(), id("b"));
        tokio::spawn(async move { manager.open_or_create(&id, scripted([])).await.map(|_| ()) })
    };
    watch.until("waiting").await;
    other.abort();
    watch.until("given_up").await;
    session.resume("a", Decision::Execute).await.unwrap();
    inner.until("agent.turn").await;
    manager.set_labels(&id("a"), Labels::default()).await.unwrap();
    manager.set_labels(&id("a"), labels).await.unwrap();
    manager.close(&id("a")).await.unwrap();
    while inner.next().await.is_some() {}
    manager.delete(&id("a")).await.unwrap();
    watch.until("deleted").await;
    watch.updates = manager.resume_from(EventId::new(7, 1));
    watch.until("resync").await;
    manager.shutdown(SECOND).await.unwrap();
    while watch.next().await.is_some() {}
    watch.seen.append(&mut scheduled().await);

    let all: BTreeSet<_> =
        UPDATES.tags("ManagerEvent").into_iter().chain(UPDATES.tags("ManagerUpdate")).collect();
    let unseen: Vec<_> = all.difference(&watch.seen).filter(|kind| *kind != "event").collect();
    assert!(unseen.is_empty(), "the manager has not emitted {unseen:?}");
    inner.seen
}

#[tokio::test(start_paused = true)]
async fn updates_of_agents_fit_the_schema() {
    let agent = scripted([Step::text("Hello!")]).start().await.unwrap();
    let mut updates = agent.resume_from(EventId::new(7, 1)).await.unwrap();
    agent.ask("Hi").await.unwrap();
    agent.stop(SECOND).await.unwrap();
    let mut kinds = BTreeSet::new();
    while let Some(update) = in_time(updates.next()).await {
        let update: Update<Snapshot, Event> = update;
        let json = UPDATES.take("AgentUpdate", &update);
        kinds.insert(json["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, UPDATES.tags("AgentUpdate"));
}

//! Processes whose conversations have sub-agents.
//!
//! Each process first continues the runs of earlier processes by its sweep, and decides about their approvals. Then it
//! begins a run for each [`Stage`], which waits at this stage. A process is killed either when all its runs wait, or
//! while it continues the runs of the process before it.

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder, Durable, SubAgent},
    manager::OpenOptions,
    message::{RequestEnd, Role, Timestamp, Usage},
    run::RunOutcome,
    session::Mode,
    store::{
        ConversationId, Filter, Labels, Listing, Page, Store, StoreError, Summary, TurnSummary,
        custom::{Change, Commit, Lease, Stored, TurnChange, Turns, Version, Write},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, ToolContext, tool_fn},
    tree::Node,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{
    check::{Counts, check_conversation},
    facts::{Fact, Facts, Ledger},
    life::{Life, Order, PATIENCE, tool},
    plan::{Kind, Plan, Stop},
};

/// The label with the id of the root, which the sub-agent gets from the root.
const FAMILY: &str = "family";

/// The time between two looks at something that has no event.
const POLL: Duration = Duration::from_millis(10);

/// The state of a run in which its process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The call has begun, and its sub-agent does not exist.
    Before,
    /// The sub-agent exists, and does not have its prompt.
    Created,
    /// The sub-agent's model answers.
    Streaming,
    /// A tool of the sub-agent has had its effect. The tool may run again.
    Keyed,
    /// A tool of the sub-agent has had its effect. The tool must not run again.
    Never,
    /// The sub-agent waits for an approval.
    Paused,
    /// The sub-agent has answered, and its parent does not have the result.
    Answered,
    /// The run of the parent was interrupted and has ended. The end of the sub-agent's run is not stored.
    Orphaned,
}

impl Stage {
    const ALL: [Self; 8] = [
        Self::Before,
        Self::Created,
        Self::Streaming,
        Self::Keyed,
        Self::Never,
        Self::Paused,
        Self::Answered,
        Self::Orphaned,
    ];
}

/// The runs that a process begins.
struct Team {
    ledger: Arc<Ledger>,
    life: u64,
    requests: AtomicU64,
    /// The gates of the stages, which never open.
    gates: [Gate; Stage::ALL.len()],
}

impl Team {
    fn gate(&self, stage: Stage) -> &Gate {
        &self.gates[stage as usize]
    }

    /// Returns the name of the root whose run waits at this stage.
    fn root(&self, stage: Stage) -> String {
        format!("{stage:?}-{}", self.life).to_lowercase()
    }

    fn id(&self, stage: Stage) -> ConversationId {
        ConversationId::new(self.root(stage)).unwrap()
    }

    /// Returns the work of a sub-agent.
    fn plan(&self, stage: Stage) -> Plan {
        let mut steps = [Kind::Keyed, Kind::Never, Kind::Asked].map(|kind| vec![kind]).to_vec();
        // The sub-agent that has to answer in this process waits for nobody.
        steps.truncate(if stage == Stage::Answered { 2 } else { 3 });
        let stop = (stage == Stage::Orphaned).then_some((Stop::Interrupt, 0));
        Plan { prompt: self.root(stage), steps, with_next: false, stop }
    }

    /// Waits forever if this process has begun the run of this root for this stage.
    async fn reach(&self, stage: Stage, root: &str) {
        if root == self.root(stage) {
            self.gate(stage).pass().await;
        }
    }

    /// Notes a request. Returns its usage, which no other request has.
    fn spend(&self, root: &str) -> Usage {
        let tokens = self.life * 10_000 + self.requests.fetch_add(1, Ordering::Relaxed);
        self.ledger.note(Fact::Requested { root: root.to_owned(), tokens });
        Usage::default().with_output(tokens)
    }
}

/// Returns the options with which all processes open roots.
fn options(team: &Arc<Team>) -> OpenOptions {
    let (of_model, of_member) = (Arc::clone(team), Arc::clone(team));
    let provider = ScriptedProvider::from_fn(move |request| {
        let plan = Plan::of(request).0;
        let response = Step::new().usage(of_model.spend(&plan.prompt));
        let last = request.history.last();
        let response = match last.and_then(|message| message.tool_results().next()) {
            Some(result) => response.then_text([result.text()]),
            None => response.then_tool_use(&plan.prompt, "member", json!({ "task": plan.text() })),
        };
        response.stop()
    });
    let sub_agent = SubAgent::new("member", "Does the work.", move |_| member(&of_member));
    let sub_agent = staged(sub_agent, &[Stage::Answered], Arc::clone(team));
    let agent = Agent::builder().model(provider.model()).tool(sub_agent);
    OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
}

/// Returns the agent of a sub-agent.
fn member(team: &Arc<Team>) -> AgentBuilder {
    let of_model = Arc::clone(team);
    let provider = ScriptedProvider::from_fn(move |request| {
        let (plan, step) = Plan::of(request);
        let mut response = plan.step(step).usage(of_model.spend(&plan.prompt));
        if step == 0 && plan.prompt == of_model.root(Stage::Streaming) {
            response = response.gate(of_model.gate(Stage::Streaming));
        }
        response.stop()
    });
    let with = |kind, stages: &'static [Stage]| {
        staged(tool(kind, Arc::clone(&team.ledger)), stages, Arc::clone(team))
    };
    let agent = Agent::builder().model(provider.model()).needs_approval(Kind::Asked.name());
    let agent = agent.tool(with(Kind::Keyed, &[Stage::Keyed]));
    let agent = agent.tool(with(Kind::Never, &[Stage::Never, Stage::Orphaned]));
    agent.tool(with(Kind::Asked, &[]))
}

/// Returns the tool, whose calls reach these stages before they return.
fn staged(tool: impl Tool, stages: &'static [Stage], team: Arc<Team>) -> impl Tool {
    let (name, replay, tool) = (tool.name().to_owned(), tool.replay(), Arc::new(tool));
    let waits = tool_fn(&name, "Waits at a stage.", move |input: Value, context: ToolContext| {
        let (tool, team) = (Arc::clone(&tool), Arc::clone(&team));
        async move {
            // The ids of all tool uses begin with the name of the root.
            let root = context.tool_use_id().as_str().split('.').next().unwrap_or_default().to_owned();
            let output = tool.call(input, context).await?;
            for stage in stages {
                team.reach(*stage, &root).await;
            }
            Ok(output)
        }
    });
    waits.with_replay(replay)
}

/// A store whose writes for sub-agents reach stages. It has the methods that the work of a process needs.
struct StagedStore {
    store: Arc<dyn Store>,
    team: Arc<Team>,
}

#[async_trait]
impl Store for StagedStore {
    forward!(self.store: traits, load, summary, turn, list, delete, acquire, release);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let labels = match change {
            Change::Create(state) => state.labels.clone(),
            _ => self.store.summary(id).await?.labels,
        };
        let Some(root) = labels.get("omni.root") else { return self.store.write(id, write, change).await };
        let is_new = matches!(change, Change::Create(_));
        if is_new {
            self.team.reach(Stage::Before, root).await;
        } else if matches!(change, Change::Commit(commit) if ends_run(commit)) {
            self.team.reach(Stage::Orphaned, root).await;
        }
        let version = self.store.write(id, write, change).await?;
        if is_new {
            self.team.reach(Stage::Created, root).await;
        }
        Ok(version)
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.store.turns(which, listing).await
    }

    async fn renew(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        self.store.renew(leases).await
    }
}

fn ends_run(commit: &Commit) -> bool {
    match commit.turn.as_deref() {
        Some(TurnChange::Record(_)) => false,
        Some(_) => true,
        None => !commit.nodes.is_empty(),
    }
}

/// The work of a process. It prints `working` when it continues the first run, and `held` when all its runs wait.
pub(crate) async fn live(order: Order, store: Arc<dyn Store>) {
    let ledger = Arc::new(Ledger::open(&order.ledger, order.life));
    let (requests, gates) = Default::default();
    let team = Arc::new(Team { ledger: Arc::clone(&ledger), life: order.life, requests, gates });
    let store = Arc::new(StagedStore { store, team: Arc::clone(&team) });
    let (finishes, of_starter) = (order.finishes, Arc::clone(&team));
    let life = Life::with(order, store, ledger, move || options(&of_starter));
    let ended = timeout(PATIENCE, life.decide_until(until_all_end(&life))).await;
    ended.expect("the runs of earlier processes end");
    for name in life.facts.begun.keys().filter(|name| !life.facts.finished.contains(*name)) {
        life.ledger.note(Fact::Finished { conversation: name.clone() });
    }
    if finishes {
        return life.manager.shutdown(PATIENCE).await.unwrap();
    }
    timeout(PATIENCE, begin(&life, &team)).await.expect("each run reaches its stage");
    println!("\nheld");
    pending::<()>().await;
}

/// Waits until no turn is in flight.
async fn until_all_end(life: &Life) {
    let mut is_working = false;
    loop {
        let turns = life.store.turns(Turns::All, &Page::first(1).into()).await.unwrap();
        if !is_working && (turns.is_empty() || !life.manager.list_open().is_empty()) {
            println!("\nworking");
            is_working = true;
        }
        if turns.is_empty() {
            return;
        }
        sleep(POLL).await;
    }
}

/// Begins a run for each stage, and waits until each run has reached its stage.
async fn begin(life: &Life, team: &Arc<Team>) {
    for stage in Stage::ALL {
        let root = team.root(stage);
        let labels = Labels::new([(FAMILY, root.as_str())]).unwrap();
        // A controller keeps the root open until it has its prompt, however late this task is.
        let options = options(team).labels(labels).subscribe(Some(Mode::Controller));
        let opened = life.manager.create_with_id(&team.id(stage), options).await;
        life.send_prompt(&opened.unwrap().session, &root, &team.plan(stage)).await.unwrap();
    }
    for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Paused) {
        team.gate(stage).reached().await;
    }
    // A root whose sub-agent waits is closed after its idle time.
    while let Some(session) = life.manager.get(&team.id(Stage::Paused))
        && session.snapshot().await.is_ok_and(|snapshot| snapshot.agent.pauses.is_empty())
    {
        sleep(POLL).await;
    }
    // The tool has reached the stage. Now the end of the sub-agent's run reaches it, too.
    let orphaned = team.id(Stage::Orphaned);
    let session = life.manager.get(&orphaned).unwrap();
    life.stop(&session, orphaned.as_str(), Stop::Interrupt).await.unwrap();
    team.gate(Stage::Orphaned).reached().await;
    while life.store.turn(&orphaned).await.unwrap().is_some() {
        sleep(POLL).await;
    }
}

/// Checks the sub-agents and the usage of all roots. All runs have ended.
pub(crate) async fn check(store: &dyn Store, facts: &Facts) {
    let turns = store.turns(Turns::All, &Page::first(9).into()).await.unwrap();
    assert!(turns.is_empty(), "{turns:?}");
    for root in &facts.accepted {
        let filter = Filter::with(Labels::new([(FAMILY, root.as_str())]).unwrap());
        let family = store.list(&(filter.clone(), Page::first(9)).into()).await.unwrap();
        assert_eq!(family.len(), 2, "{root} has one sub-agent: {family:?}");
        let mut counted = Vec::new();
        for summary in &family {
            let stored = store.load(&summary.id).await.unwrap();
            if summary.labels.get("omni.parent").is_some() {
                check_sub_agent(root, summary, &stored, facts);
            }
            let rows = store.usage(&summary.id, &Page::first(999)).await.unwrap();
            for message in stored.nodes.iter().map(Node::message).filter(|own| own.role == Role::Assistant) {
                let own = rows.iter().filter(|row| row.message == message.id);
                let answered = own.filter(|row| row.end == RequestEnd::Answered).count();
                assert_eq!(answered, 1, "{root}: the rows of {message:?} in {rows:?}");
            }
            // A request that was lost with its process has a row without usage.
            counted.extend(rows.iter().map(|row| row.usage.output).filter(|tokens| *tokens > 0));
        }
        let sums = store.used(&filter, Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
        let sum: u64 = sums.iter().map(|sum| sum.usage.output).sum();
        assert_eq!(sum, counted.iter().sum::<u64>(), "{root}: {counted:?}");
        // The store has each request at most once, and at most those that the models have counted. It lacks requests
        // whose process was killed before their end, or within the record delay after it.
        let requested = facts.lines.iter().filter_map(|line| match &line.fact {
            Fact::Requested { root: of, tokens } => (of == root).then_some(*tokens),
            _ => None,
        });
        let mut requested: BTreeSet<u64> = requested.collect();
        for tokens in counted {
            assert!(requested.remove(&tokens), "{root}: {tokens} was counted twice, or not requested");
        }
    }
}

/// Checks that the sub-agent belongs to the call, and that it has got the prompt of the call once.
fn check_sub_agent(root: &str, summary: &Summary, stored: &Stored, facts: &Facts) {
    // The tool use of the call has the name of the root as its id.
    let places = ["omni.root", "omni.parent", "omni.call"].map(|name| summary.labels.get(name));
    assert_eq!(places, [Some(root); 3]);
    let key = summary.id.as_str().strip_prefix("sub-").unwrap();
    let (mut counts, sent) = (Counts::default(), BTreeSet::from([key.to_owned()]));
    check_conversation(summary.id.as_str(), &sent, stored, facts, &mut counts);
    // If the call is never repeated, the turn is discarded with its prompt.
    let end = stored.last_run.as_ref().map(|end| &end.outcome);
    let is_discarded = matches!(end, Some(RunOutcome::Discarded));
    assert_eq!(counts.committed, usize::from(!is_discarded), "{root}: {end:?}");
    assert!(!is_discarded || root.starts_with("orphaned"), "{root}: {end:?}");
}

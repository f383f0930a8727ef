//! A process, with its agents and their tools.

use std::{
    collections::BTreeSet,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder, SubAgent},
    budget::SharedBudget,
    manager::OpenOptions,
    message::{Role, Timestamp, UsageSum},
    provider::Request,
    run::Accepted,
    session::Session,
    store::{Filter, MemoryStore, Store},
    testing::{ScriptedProvider, Step},
    tool::{Answer, Replay, Schema, Tool, ToolContext, ToolError, ToolOutput, tool_fn},
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::world::{Dice, Kind, Requested, World, prompt_of, usage_of};

/// The time after the end of a call within which the run that it guards is interrupted.
const LATEST_GUARDED: Duration = Duration::from_millis(10);

/// A process.
pub(crate) struct Life {
    pub(crate) world: Arc<World>,
    pub(crate) number: usize,
    begun: Instant,
    before: u64,
    /// The number of awaits at which the process could have died, and the one at which it dies.
    points: AtomicU64,
    crash: Option<u64>,
    is_dead: AtomicBool,
    death: Notify,
    /// Whether the process is handing its work over.
    pub(crate) is_leaving: AtomicBool,
    /// The calls that run, by the paths of their sub-agents.
    calls: Mutex<BTreeSet<String>>,
    /// The sessions whose runs are guarded by calls of tools.
    guarded: Mutex<Vec<Session>>,
    pub(crate) shared: Option<SharedBudget>,
    /// The requests of all earlier lives that the shared budget knows.
    pub(crate) known: u64,
    pub(crate) known_tokens: u64,
}

impl Life {
    pub(crate) async fn new(
        world: &Arc<World>,
        store: &MemoryStore,
        number: usize,
        crash: Option<u64>,
    ) -> Self {
        let mut known = UsageSum::default();
        for sum in store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap() {
            known.add(sum.requests, sum.usage);
        }
        let shared = world.shape.shared.map(|most| SharedBudget::new(most).with_spent(&known));
        let before = world.facts().before;
        Self {
            world: Arc::clone(world),
            number,
            begun: Instant::now(),
            before,
            points: AtomicU64::new(0),
            crash,
            is_dead: AtomicBool::new(false),
            death: Notify::new(),
            is_leaving: AtomicBool::new(false),
            calls: Mutex::default(),
            guarded: Mutex::default(),
            shared,
            known: known.requests,
            known_tokens: known.usage.total(),
        }
    }

    /// Returns the time since the first life began, in milliseconds.
    pub(crate) fn passed(&self) -> u64 {
        self.before + u64::try_from(self.begun.elapsed().as_millis()).unwrap()
    }

    /// Ends the process, whether or not it has died before.
    pub(crate) fn end(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.world.facts().before = self.passed();
    }

    /// Dies now.
    pub(crate) fn die(&self, place: &str) {
        if !self.is_dead.swap(true, Ordering::SeqCst) {
            self.world.note(self, format!("dies at {place}"));
            self.world.facts().crashed.insert(self.number);
            self.death.notify_one();
        }
    }

    pub(crate) async fn died(&self) {
        self.death.notified().await;
    }

    /// Returns whether the process is dead. It can die here.
    fn dies(&self, place: &str) -> bool {
        let is_dead = self.is_dead.load(Ordering::SeqCst);
        if !is_dead && self.crash == Some(self.points.fetch_add(1, Ordering::SeqCst) + 1) {
            self.die(place);
            return true;
        }
        is_dead
    }

    pub(crate) async fn point(&self, place: &str) {
        if self.dies(place) {
            pending::<()>().await;
        }
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.calls.lock().unwrap()
    }

    /// Checks that an agent may start something: all calls above it run, and nobody has stopped its prompt.
    fn check_running(&self, path: &str, what: &str) {
        let lacks_call = {
            let calls = self.calls();
            path.match_indices('/').map(|(index, _)| index).skip(1).chain([path.len()]).find_map(|end| {
                let call = &path[..end];
                (call.contains('/') && !calls.contains(call)).then(|| call.to_owned())
            })
        };
        if let Some(call) = lacks_call.filter(|_| !self.is_leaving.load(Ordering::SeqCst)) {
            self.world.breach(format!("{what} of {path} starts after the end of the call {call}"));
        }
        if self.world.facts().over.contains(prompt_of(path)) {
            self.world.breach(format!("{what} of {path} starts after its prompt was stopped"));
        }
    }

    /// Records a request. Returns its number, or `None` if the process is dead.
    fn request(&self, path: &str, step: usize) -> Option<u64> {
        if self.dies("a request") {
            return None;
        }
        self.world.note(self, format!("request {path} #{step}"));
        self.check_running(path, "a request");
        let mut facts = self.world.facts();
        let own = |request: &&Requested| request.life == self.number && request.path == path;
        let is_again = facts.requests.iter().filter(own).any(|request| request.step == step);
        let ends = facts.requests.iter().any(|request| request.path == path && request.step > step);
        facts.requests.push(Requested { path: path.to_owned(), step, life: self.number });
        let number = facts.requests.len() as u64;
        drop(facts);
        if is_again || ends {
            self.world.breach(format!("{path} makes its request {step} again"));
        }
        Some(number)
    }

    /// Records the effect of a tool, which begins.
    async fn effect(&self, kind: Kind, id: &str, input: &Value) {
        self.point("a tool").await;
        self.world.note(self, format!("tool {} {id}", kind.name()));
        let agent = id.rsplit_once('/').map_or("", |(agent, _)| agent);
        self.check_running(agent, "a tool");
        let mut facts = self.world.facts();
        let effects = facts.effects.entry(id.to_owned()).or_default();
        effects.push(self.number);
        let times = effects.len();
        let of_life = effects.iter().filter(|life| **life == self.number).count();
        let asked = facts.asked.get(id).cloned().unwrap_or_default();
        drop(facts);
        let must_not = matches!(kind, Kind::Never | Kind::Asked);
        if of_life > 1 || must_not && times > 1 {
            self.world.breach(format!("the tool {} of {id} runs again", kind.name()));
        }
        if input["id"] != id {
            self.world.breach(format!("the tool of {id} got the input {input}"));
        }
        if kind == Kind::Asked {
            let mark = input["mark"].as_str();
            let fits =
                |said: &super::world::Said| said.runs && mark.map_or(said.is_plain, |mark| mark == said.mark);
            let is_meant = match &asked.acked {
                Some((said, _)) => fits(said),
                None => asked.said.iter().any(fits),
            };
            if !is_meant {
                self.world.breach(format!("the tool of {id} runs with {input}, and people said {asked:?}"));
            }
        }
    }

    /// Prompts another session, whose run must end with the call. The session stays open.
    async fn guard(self: &Arc<Self>, id: &str, context: &ToolContext) -> Result<(), ToolError> {
        let end = Arc::new(Mutex::new(None::<Instant>));
        let (life, name, ended) = (Arc::clone(self), id.to_owned(), Arc::clone(&end));
        let provider = ScriptedProvider::from_fn(move |request| {
            if life.dies("a guarded request") {
                return Step::new().hang();
            }
            if ended.lock().unwrap().is_some_and(|end| end.elapsed() > LATEST_GUARDED) {
                life.world.breach(format!("the run that {name} guards continues after the call"));
            }
            let mut dice = life.dice(&name);
            let step = Step::new().then_text(["Well,"]).wait(dice.time(60));
            let count = request.history.len();
            if count > 8 { step } else { step.then_tool_use(&format!("m{count}"), "more", json!({})) }.stop()
        });
        let more = tool_fn("more", "Works.", async |_: Value, _| Ok::<_, ToolError>("more"));
        let agent = Agent::builder().model(provider.model()).tool(more);
        let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
        self.guarded.lock().unwrap().push(session.clone());
        let Accepted::Started { turn } = session.prompt("Hi").await? else { panic!("a new session is idle") };
        let _end = GuardedEnd(end);
        let _guard = context.guard_run(&session, turn);
        session.wait_until_idle().await?;
        Ok(())
    }

    fn dice(&self, name: &str) -> Dice {
        Dice::new(self.world.shape.seed, &format!("{name}@{}", self.number))
    }
}

/// Notes the time at which a call of a tool ends that guards a run.
struct GuardedEnd(Arc<Mutex<Option<Instant>>>);

impl Drop for GuardedEnd {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }
}

/// The text of the result of a tool.
pub(crate) fn did(id: &str, mark: &str) -> String {
    format!("did {id} {mark}")
}

/// Returns the agent and the step of a request.
fn locate(request: &Request) -> (String, usize) {
    let mut step = 0;
    let messages: Vec<_> = request.history.iter().collect();
    for message in messages.into_iter().rev() {
        match message.role {
            Role::Assistant => step += 1,
            Role::User if message.tool_results().next().is_none() => {
                let text = message.text();
                return (text.split_whitespace().next().unwrap_or_default().to_owned(), step);
            }
            _ => {}
        }
    }
    panic!("a request without a prompt");
}

fn answer(life: &Arc<Life>, request: &Request) -> Step {
    let (path, step) = locate(request);
    let Some(number) = life.request(&path, step) else { return Step::new().hang() };
    let mut dice = life.dice(&format!("{path}#{step}"));
    // The usage of a request is known from its first content on.
    let mut answer = Step::new().then_text(["Well,"]).usage(usage_of(number)).wait(dice.time(60));
    let uses = life.world.shape.uses(&path, step);
    if uses.is_empty() {
        answer = answer.then_text([format!("done {path}")]);
    }
    for (id, kind) in uses {
        let input = if kind == Kind::Sub { json!({ "task": id }) } else { json!({ "id": id }) };
        answer = answer.then_tool_use(&id, kind.name(), input);
    }
    answer.stop()
}

fn tool(life: &Arc<Life>, kind: Kind) -> impl Tool {
    let life = Arc::clone(life);
    let tool = tool_fn(kind.name(), "Works.", move |input: Value, context: ToolContext| {
        let life = Arc::clone(&life);
        async move {
            let id = context.tool_use_id().as_str().to_owned();
            life.effect(kind, &id, &input).await;
            let mut mark = input["mark"].as_str().unwrap_or_default().to_owned();
            if kind == Kind::Question {
                mark = match context.ask(json!({ "about": id })).await {
                    Answer::Accepted(Some(Value::String(said))) => said,
                    other => format!("{other:?}"),
                };
            }
            if kind == Kind::Guard {
                life.guard(&id, &context).await?;
            }
            let mut dice = life.dice(&id);
            let most = if dice.percent(10) { 2_000 } else { 80 };
            sleep(dice.time(most)).await;
            life.point("the end of a tool").await;
            Ok(did(&id, &mark))
        }
    });
    tool.with_replay(if matches!(kind, Kind::Keyed | Kind::Question | Kind::Guard) {
        Replay::Keyed
    } else {
        Replay::Never
    })
}

/// An agent of any level.
fn agent(life: &Arc<Life>, depth: usize) -> AgentBuilder {
    let own = Arc::clone(life);
    let provider = ScriptedProvider::from_fn(move |request| answer(&own, request));
    let mut agent = Agent::builder().model(provider.model()).needs_approval(Kind::Asked.name());
    for kind in Kind::TOOLS {
        agent = agent.tool(tool(life, kind));
    }
    if depth == 3 {
        return agent;
    }
    let own = Arc::clone(life);
    let sub = SubAgent::new(Kind::Sub.name(), "Works.", move |_| self::agent(&own, depth + 1));
    agent.tool(Call { sub, life: Arc::clone(life) })
}

/// A sub-agent whose calls are recorded.
struct Call {
    sub: SubAgent,
    life: Arc<Life>,
}

/// A call that runs.
struct Running<'a>(&'a Life, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.calls().remove(&self.1);
    }
}

#[async_trait]
impl Tool for Call {
    fn name(&self) -> &str {
        self.sub.name()
    }

    fn description(&self) -> std::borrow::Cow<'_, str> {
        self.sub.description()
    }

    fn schema(&self) -> &Schema {
        self.sub.schema()
    }

    fn timeout(&self) -> Option<Duration> {
        self.life.world.shape.call_timeout.or(self.sub.timeout())
    }

    fn idle_timeout(&self) -> Option<Duration> {
        self.sub.idle_timeout()
    }

    fn replay(&self) -> Replay {
        self.sub.replay()
    }

    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let id = context.tool_use_id().as_str().to_owned();
        self.life.calls().insert(id.clone());
        let _running = Running(&self.life, id);
        self.sub.call(input, context).await
    }
}

/// Returns the options with which a process opens the root.
pub(crate) fn options(life: &Arc<Life>) -> OpenOptions {
    let shape = &life.world.shape;
    let mut root = agent(life, 0);
    if let Some(most) = shape.budget {
        root = root.budget(most);
    }
    if let Some(shared) = &life.shared {
        root = root.shared_budget(shared);
    }
    if let Some(limit) = shape.turn_timeout {
        root = root.turn_timeout(limit);
    }
    let labels = World::labels(0);
    let options = OpenOptions::new(root).durable(shape.level).record_delay(shape.record_delay);
    options.labels(labels).subscribe(None)
}

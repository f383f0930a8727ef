//! A process that works on conversations until it is killed.

use std::{
    env,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, Durable},
    manager::{Manager, OpenOptions, Sweep, Titles},
    run::{Accepted, Prompt, RunOutcome},
    session::Session,
    store::{ConversationId, Filter, Owner, Page, Store},
    testing::ScriptedProvider,
    tool::{Tool, ToolContext, tool_fn},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use super::{
    facts::{Fact, Facts, Ledger, gives_back, has_id},
    place::{self, Place},
    plan::{Kind, PROMPTS, Plan, Stop, decision},
};

/// The environment variable with the [`Order`] of a process.
const ORDER: &str = "OMNI_LIFE";

/// The number of conversations that a process works on at the same time.
const WORKERS: usize = 3;

pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// What a process has to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) address: String,
    pub(crate) ledger: PathBuf,
    pub(crate) seed: u64,
    /// The number of the process, counted from 1.
    pub(crate) life: u64,
    /// The first letters of the conversations of this process.
    pub(crate) prefix: String,
    /// Whether the process ends when the conversations that were begun are finished.
    pub(crate) finishes: bool,
    /// Whether other processes work on the same store, or the store may fail. Errors are then retried.
    pub(crate) has_rivals: bool,
    /// Whether the conversations have sub-agents.
    pub(crate) has_teams: bool,
}

impl Order {
    /// Returns the order for a process that works alone until it is killed.
    pub(crate) fn new(place: &Place, seed: u64) -> Self {
        Self {
            address: place.address.clone(),
            ledger: place.ledger(),
            seed,
            life: 0,
            prefix: "talk".to_owned(),
            finishes: false,
            has_rivals: false,
            has_teams: false,
        }
    }
}

/// Starts a process with this order. It prints `open` when the store is open, and `working` when a
/// conversation is open.
pub(crate) fn spawn(order: &Order) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "kill::life::process_lives_until_it_is_killed",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(ORDER, serde_json::to_string(order).unwrap());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// The work of a process. In a normal run of the tests, this does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn process_lives_until_it_is_killed() {
    let Ok(order) = env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    let store = loop {
        match place::open(&order.address).await {
            Ok(store) => break store,
            Err(error) => assert!(order.has_rivals, "{error}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    println!("\nopen");
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    if order.has_teams {
        return super::teams::live(order, store).await;
    }
    let life = Arc::new(Life::new(order, store));
    let workers = (0..WORKERS).map(|worker| {
        let life = Arc::clone(&life);
        tokio::spawn(async move { life.work(worker).await })
    });
    let done = life.decide_until(futures_util::future::join_all(workers)).await;
    for worker in done {
        worker.unwrap();
    }
    let ended = life.manager.shutdown(PATIENCE).await;
    assert!(life.order.has_rivals || ended.is_ok(), "{ended:?}");
}

pub(crate) struct Life {
    order: Order,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) manager: Manager,
    pub(crate) ledger: Arc<Ledger>,
    /// The facts of earlier processes.
    pub(crate) facts: Facts,
    /// The prompts that were accepted or given back since this process began.
    sent: Mutex<Vec<String>>,
}

impl Life {
    pub(crate) fn new(order: Order, store: Arc<dyn Store>) -> Self {
        let ledger = Arc::new(Ledger::open(&order.ledger, order.life));
        let of_starter = Arc::clone(&ledger);
        Self::with(order, store, ledger, move || options(&of_starter))
    }

    /// Returns a process whose sweep opens conversations with these options.
    pub(crate) fn with(
        order: Order,
        store: Arc<dyn Store>,
        ledger: Arc<Ledger>,
        options: impl Fn() -> OpenOptions + Send + Sync + 'static,
    ) -> Self {
        let facts = Facts::read(&order.ledger);
        // A process with rivals waits until the lease of its predecessor has expired, like any other.
        let owner = if order.has_rivals { format!("life-{}", order.life) } else { "worker".to_owned() };
        let manager = Manager::builder(Arc::clone(&store)).owner(Owner::new(owner)).titles(Titles::Off);
        let manager = if order.has_rivals {
            manager
                .sweep(Sweep::every(Duration::from_millis(300)))
                .idle_shutdown(Some(Duration::from_millis(100)))
                .starter(move |_| Some(options()))
        } else {
            manager.sweep(Sweep::off())
        };
        Self { store, manager: manager.build(), ledger, facts, sent: Mutex::default(), order }
    }

    /// Works on one conversation after another.
    async fn work(&self, worker: usize) {
        for number in (worker..).step_by(WORKERS) {
            let name = format!("{}{number}", self.order.prefix);
            if self.facts.finished.contains(&name) {
                continue;
            }
            if self.order.finishes && !self.facts.begun.contains_key(&name) {
                break;
            }
            while let Err(error) = self.converse(&name).await {
                self.tolerate(&error);
                sleep(Duration::from_millis(20)).await;
            }
            self.ledger.note(Fact::Finished { conversation: name });
        }
    }

    /// Sends all prompts of a conversation that were not sent yet, and waits until they have ended.
    async fn converse(&self, name: &str) -> Result<(), Error> {
        let id = ConversationId::new(name).unwrap();
        let session = self.manager.open_or_create(&id, options(&self.ledger)).await?.session;
        println!("working");
        let plans = || (0..PROMPTS).map(|number| Plan::new(self.order.seed, name, number));
        loop {
            session.wait_until_idle().await?;
            session.flush(PATIENCE).await?;
            let stored = self.store.load(&id).await?;
            if let Some(end) = &stored.last_run
                && !matches!(end.outcome, RunOutcome::Stopped { .. })
            {
                // Later turns replace this end, and the prompts must not be sent again.
                self.sent
                    .lock()
                    .unwrap()
                    .extend(plans().map(|plan| plan.prompt).filter(|own| gives_back(end, own)));
                let end = serde_json::to_value(end).unwrap();
                self.ledger.note(Fact::Ended { conversation: name.to_owned(), end });
            }
            let is_known = |plan: &Plan| {
                let mut ends = self.facts.ends.get(name).into_iter().flatten();
                self.facts.accepted.contains(&plan.prompt)
                    || self.sent.lock().unwrap().contains(&plan.prompt)
                    || stored.nodes.iter().any(|node| has_id(node.message(), &plan.prompt))
                    || ends.any(|end| gives_back(end, &plan.prompt))
            };
            let mut unsent = plans().filter(|plan| !is_known(plan));
            let Some(mut plan) = unsent.next() else { return Ok(()) };
            self.send(&session, name, &plan).await?;
            while plan.with_next
                && let Some(next) = unsent.next()
            {
                plan = next;
                self.send(&session, name, &plan).await?;
            }
        }
    }

    async fn send(&self, session: &Session, name: &str, plan: &Plan) -> Result<(), Error> {
        let is_started = self.send_prompt(session, name, plan).await?;
        let Some((stop, after)) = plan.stop.filter(|_| is_started) else { return Ok(()) };
        sleep(Duration::from_micros(after)).await;
        self.stop(session, &plan.prompt, stop).await
    }

    /// Sends a prompt. Returns whether the prompt has started a run.
    pub(crate) async fn send_prompt(
        &self,
        session: &Session,
        name: &str,
        plan: &Plan,
    ) -> Result<bool, Error> {
        let prompt = plan.prompt.clone();
        self.ledger.note(Fact::Sending { conversation: name.to_owned(), prompt: prompt.clone() });
        let accepted = session.prompt(Prompt::new(plan.text()).with_id(prompt.as_str())).await?;
        self.ledger.note(Fact::Accepted { prompt: prompt.clone() });
        self.sent.lock().unwrap().push(prompt);
        Ok(matches!(accepted, Accepted::Started { .. }))
    }

    /// Ends the run of a prompt early.
    pub(crate) async fn stop(&self, session: &Session, prompt: &str, stop: Stop) -> Result<(), Error> {
        let stopped = match stop {
            Stop::Cancel => session.cancel().await,
            Stop::Interrupt => session.interrupt().await,
        };
        match stopped {
            Ok(()) => self.ledger.note(Fact::Stopped { prompt: prompt.to_owned(), stop }),
            // The run has already ended.
            Err(error) if error.kind() == ErrorKind::Idle => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Decides about all tool uses that wait, again and again, until the work is done.
    pub(crate) async fn decide_until<T>(&self, work: impl Future<Output = T>) -> T {
        let deciding = async {
            loop {
                self.decide_all().await;
                sleep(Duration::from_millis(if self.order.has_rivals { 20 } else { 2 })).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = deciding => unreachable!("the decisions never end"),
        }
    }

    /// Decides about all tool uses that wait.
    pub(crate) async fn decide_all(&self) {
        let waiting = match self.manager.pending_approvals(&Filter::default(), Page::default()).await {
            Ok(waiting) => waiting,
            Err(error) => return self.tolerate(&error),
        };
        for approval in waiting {
            let (decision, mark) = decision();
            let is_rejected = matches!(decision, omni_agent::tool::Decision::Reject(_));
            match self.manager.decide(&approval.id, decision, Some("somebody")).await {
                Ok(_) => {
                    let tool_use = approval.id.tool_use.to_string();
                    self.ledger.note(Fact::Decided { tool_use, mark, is_rejected });
                }
                // The turn has ended in the meantime.
                Err(error) if error.kind() == ErrorKind::StaleDecision => {}
                Err(error) => self.tolerate(&error),
            }
        }
    }

    /// Accepts errors that rivals and failures of the store can cause.
    fn tolerate(&self, error: &Error) {
        let is_bug = matches!(
            error.kind(),
            ErrorKind::Damaged
                | ErrorKind::Unsupported
                | ErrorKind::DamagedTurn
                | ErrorKind::NewerTurn
                | ErrorKind::Config
        );
        assert!(self.order.has_rivals && !is_bug, "{error:?}");
    }
}

/// Returns the options with which all processes open conversations.
fn options(ledger: &Arc<Ledger>) -> OpenOptions {
    let model = ScriptedProvider::from_fn(Plan::respond).model();
    let mut agent = Agent::builder().model(model).needs_approval(Kind::Asked.name());
    for kind in Kind::ALL {
        agent = agent.tool(tool(kind, Arc::clone(ledger)));
    }
    OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
}

/// A tool whose effect is a line in the ledger.
pub(crate) fn tool(kind: Kind, ledger: Arc<Ledger>) -> impl Tool {
    let tool = tool_fn(kind.name(), "Writes to the ledger.", move |input: Value, context: ToolContext| {
        let ledger = Arc::clone(&ledger);
        async move {
            let (tool_use, key) = (context.tool_use_id().to_string(), context.idempotency_key().to_owned());
            ledger.note(Fact::Began { tool_use, kind, key, input: input.clone() });
            sleep(Duration::from_micros(rand::random_range(0..10_000))).await;
            Ok(format!("ran with {input}"))
        }
    });
    tool.with_replay(kind.replay())
}

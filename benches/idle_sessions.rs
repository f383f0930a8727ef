//! The memory of 100,000 idle sessions with their agents, before and after a first turn.
//!
//! As in the benchmark `idle_agents`, the model, the system prompt and the tools are shared, and the figures are
//! differences of resident memory. The messages of the first turn are measured separately. The store keeps nothing, so
//! it adds no memory.
//!
//! The second part measures sessions of a manager. It runs in a separate process, so that its heap has no holes that
//! the first part has left. There are no handles and no subscribers. After its turn, each session has a title and waits
//! for its idle shutdown.
//!
//! The last part measures the CPU time that a manager's shutdown needs per idle session. It does this with 1,000 and
//! with 100,000 sessions, each in a separate process. `cargo bench --bench idle_sessions -- --shutdown` runs only this
//! part.
//!
//! A managed session takes about 400 B more, for its entry, its connection to the manager, its title and its timer, and
//! because of the fragmentation of the heap, which depends on sizes down to a few bytes.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{process::Command, sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder},
    manager::{Manager, OpenOptions, Shutdown},
    message::Message,
    session::Session,
    store::{
        ConversationId, Listing, Store, StoreError, Summary,
        custom::{Change, Lease, Stored, Version, Write},
    },
    tool::{ToolSet, tool_fn},
};
use serde_json::Value;
use support::{cpu, head, on_this_thread, resident, row, size};

/// A store that keeps nothing.
struct Nowhere;

#[async_trait]
impl Store for Nowhere {
    async fn write(&self, _: &ConversationId, write: &Write, change: &Change) -> Result<Version, StoreError> {
        Ok(if let Change::Create(_) = change { Version::first() } else { write.base.next() })
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        Err(StoreError::NotFound { id: id.clone() })
    }

    async fn list(&self, _: &Listing) -> Result<Vec<Summary>, StoreError> {
        Ok(Vec::new())
    }

    async fn delete(&self, _: &ConversationId, _: Option<&Lease>) -> Result<(), StoreError> {
        Ok(())
    }
}

/// If this environment variable is set, the program measures sessions of a manager.
const MANAGED: &str = "OMNI_AGENT_BENCH_MANAGED";

/// If this environment variable is set, its value is a number of sessions. The program then measures the shutdown of
/// these sessions, and prints the nanoseconds per session.
const SHUTDOWN: &str = "OMNI_AGENT_BENCH_SHUTDOWN";

fn main() {
    if std::env::var_os(MANAGED).is_some() {
        on_this_thread(managed());
        return;
    }
    if let Some(count) = std::env::var(SHUTDOWN).ok().and_then(|count| count.parse().ok()) {
        on_this_thread(async move { println!("{}", shutdown(count).await) });
        return;
    }
    if !std::env::args().any(|argument| argument == "--shutdown") {
        on_this_thread(alone());
        assert!(this_program().env(MANAGED, "1").status().expect(STARTS).success());
    }
    shutdowns();
}

const STARTS: &str = "the benchmark can start itself";

fn this_program() -> Command {
    let mut program = Command::new(std::env::current_exe().expect("the benchmark has a path"));
    program.args(std::env::args().skip(1));
    program
}

/// Returns a function that creates agents. The agents share the same parts as in an application.
fn agents() -> impl Fn() -> AgentBuilder {
    let model = support::brief();
    let system: Arc<str> = "You are of help.".into();
    let echo = tool_fn("echo", "Gives back its input.", |input: Value, _| async move { Ok(input) });
    let tools = ToolSet::new().with(echo).expect("the tool is valid");
    move || Agent::builder().model(model.clone()).system(Arc::clone(&system)).tools(tools.clone())
}

/// Runs a first turn and waits until it is saved.
async fn turn(session: &Session) {
    session.prompt("Hi").await.expect("the session is idle");
    session.flush(Duration::from_mins(1)).await.expect("the turn is saved");
    session.wait_until_idle().await.expect("the session is open");
}

/// Returns the messages of `count` turns and their memory. They are created first, because later the heap has holes,
/// and messages in these holes would not be measured. The messages are returned so that they stay allocated until the
/// end of the measurement.
fn messages(count: usize) -> (Vec<Arc<Message>>, usize) {
    let mut copies: Vec<Arc<Message>> = Vec::with_capacity(2 * count);
    copies.resize(2 * count, Arc::new(Message::user("Hi")));
    let before = resident();
    for pair in copies.chunks_mut(2) {
        pair[0] = Arc::new(Message::user("Hi"));
        pair[1] = Arc::new(Message::assistant("Hello!"));
    }
    let taken = resident() - before;
    (copies, taken)
}

async fn alone() {
    let count = size(100_000, 100);
    let agent = agents();
    let store: Arc<dyn Store> = Arc::new(Nowhere);
    let start = async || {
        let session = Session::builder(Arc::clone(&store)).agent(agent()).create().await;
        session.expect("the session starts")
    };
    // The first session creates the shared data before the measurement.
    let first = start().await;
    first.ask("Hi").await.expect("the model answers");
    let (_copies, messages) = messages(count);

    // The memory for the handles is allocated before the measurement, because an application stores the handles itself.
    let mut sessions: Vec<Session> = Vec::with_capacity(count);
    sessions.resize(count, first.clone());
    let before = resident();
    for place in &mut sessions {
        *place = start().await;
    }
    let idle = resident() - before;
    for session in &sessions {
        turn(session).await;
    }
    let after_turn = resident() - before;
    report(&format!("resident memory of {count} sessions, each"), count, idle, messages, after_turn);
}

async fn managed() {
    let count = size(100_000, 100);
    let agent = agents();
    let manager = Manager::builder(Arc::new(Nowhere)).build();
    let start = async || {
        let opened = manager.create(OpenOptions::new(agent()).subscribe(None)).await;
        opened.expect("the session starts").session
    };
    turn(&start().await).await;
    let (_copies, messages) = messages(count);

    let before = resident();
    for _ in 0..count {
        start().await;
    }
    let idle = resident() - before;
    let open = manager.list_open();
    assert_eq!(open.len(), count + 1);
    let listed = resident().saturating_sub(before + idle);
    for listed in &open {
        let session = manager.get(&listed.id).expect("the session is open");
        turn(&session).await;
    }
    let after_turn = resident().saturating_sub(before + listed);
    report(&format!("resident memory of {count} managed sessions, each"), count, idle, messages, after_turn);
}

fn report(title: &str, count: usize, idle: usize, messages: usize, after_turn: usize) {
    let each = |bytes: usize| bytes as f64 / count as f64;
    head(title);
    row("idle, started", format!("{:.0} B", each(idle)), "—");
    row("the two messages of a turn", format!("{:.0} B", each(messages)), "—");
    let own = each(after_turn.saturating_sub(messages));
    row("idle, after a first turn, its messages apart", format!("{own:.0} B"), "≤ 8192 B");
}

/// Returns the CPU time of a shutdown in nanoseconds per session. Before the shutdown, there are `count` idle sessions
/// with one turn each.
async fn shutdown(count: usize) -> u128 {
    let agent = agents();
    // Small counts are measured in several rounds, so that about 10,000 sessions are measured in total. A count above
    // 10,000 is measured once.
    let mut rounds: Vec<u128> = Vec::new();
    for _ in 0..(10_000 / count).clamp(1, 10) {
        let manager = Manager::builder(Arc::new(Nowhere)).build();
        for _ in 0..count {
            let opened = manager.create(OpenOptions::new(agent()).subscribe(None)).await;
            turn(&opened.expect("the session starts").session).await;
        }
        let before = cpu();
        let minute = Duration::from_mins(1);
        manager.shutdown(Shutdown::within(minute).with_grace(minute)).await.expect("all turns are saved");
        rounds.push(cpu().saturating_sub(before).as_nanos() / count as u128);
    }
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

fn shutdowns() {
    head("CPU time of a manager's shutdown for each idle session");
    let (few, many) = (1_000, size(100_000, 2_000));
    let mut each = Vec::new();
    for count in [few, many] {
        let output = this_program().env(SHUTDOWN, count.to_string()).output().expect(STARTS);
        let output = String::from_utf8(output.stdout).expect("it prints a number");
        let nanos: f64 = output.trim().parse().expect("it prints a number");
        row(&format!("of {count}"), format!("{:.1} µs", nanos / 1000.0), "—");
        each.push(nanos);
    }
    row(&format!("ratio of {many} to {few}"), format!("{:.2}", each[1] / each[0]), "≤ 1.2");
}

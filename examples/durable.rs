//! A turn that survives its process. One process starts a turn and is killed. Another process decides about the
//! approval for which the turn waits. A third process continues the turn.
//!
//! ```sh
//! durable() { cargo run --quiet --example durable --features sqlite,test-util -- "$@"; }
//! durable start            # asks for money to be sent, and waits; press Ctrl-C, or kill it with `kill -9`
//! durable approvals        # lists what waits, without opening the conversation
//! durable approve ID       # decides, with the id that the list shows; `reject ID` refuses
//! durable work             # continues turns that nobody works on
//! ```
//!
//! While `start` is running, the conversation belongs to it, and `approve` in another terminal is refused. After
//! `kill -9`, the conversation is free as soon as its lease has expired, which takes five seconds here. To see that a
//! killed tool runs again, kill `work` while it sends the money, and start `work` again. The ledger then contains the
//! payment only once, because the tool recognises the repeated call by its idempotency key.
//!
//! The model is scripted, so that the program needs no API key. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

use std::{
    error::Error,
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use omni_agent::{
    agent::{Agent, Durable, Event, Status},
    manager::{self, ApprovalId, Manager, ManagerEvent, Sweep},
    run::PendingUse,
    schemars::JsonSchema,
    session::{Mode, Session, SessionEvent},
    store::{Filter, Page, SqliteStore},
    subscription::Update,
    testing::{ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, tool_fn},
};
use serde::Deserialize;
use serde_json::json;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["start"] => start().await,
        ["approvals"] => approvals().await,
        ["approve", id] => decide(id, Decision::Execute).await,
        ["reject", id] => decide(id, Decision::reject("Not today.")).await,
        ["work"] => work().await,
        _ => Err("usage: durable start | approvals | approve ID | reject ID | work".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder with the database and the ledger of payments.
fn folder() -> PathBuf {
    std::env::var_os("DURABLE_FOLDER")
        .map_or_else(|| std::env::temp_dir().join("omni-agent-durable"), PathBuf::from)
}

async fn store() -> Result<SqliteStore, Box<dyn Error>> {
    fs::create_dir_all(folder())?;
    // A short lease, so that another process need not wait long for a conversation whose process was killed.
    Ok(SqliteStore::builder(folder().join("conversations.sqlite"))
        .lease(Duration::from_secs(5))
        .open()
        .await?)
}

/// Returns the options with which each process opens conversations.
fn options() -> manager::OpenOptions {
    let agent = Agent::builder().model(model()).tool(send_money()).needs_approval("send_money");
    manager::OpenOptions::new(agent).durable(Durable::InFlight)
}

/// A model that uses the tool `send_money` once, and then answers with the tool's result.
fn model() -> omni_agent::provider::Model {
    let provider = ScriptedProvider::from_fn(|request| {
        let result = request.history.last().and_then(|message| message.tool_results().next().cloned());
        match result {
            Some(result) => Step::text(format!("The tool says: {}", result.text())),
            None => Step::tool_use("call-1", "send_money", json!({ "to": "Ann", "euros": 20 })),
        }
    });
    provider.model()
}

#[derive(Deserialize, JsonSchema)]
struct Payment {
    to: String,
    euros: u32,
}

/// A tool that may start again after a crash, because the ledger recognises a payment by its key.
fn send_money() -> impl Tool {
    tool_fn("send_money", "Sends money.", |payment: Payment, context: ToolContext| async move {
        println!("  tool: sending {} euros to {} … (kill me now)", payment.euros, payment.to);
        tokio::time::sleep(Duration::from_secs(4)).await;
        Ok(pay(&payment, context.idempotency_key())?)
    })
    .with_replay(Replay::Keyed)
}

fn pay(payment: &Payment, key: &str) -> Result<String, std::io::Error> {
    let ledger = folder().join("ledger.txt");
    if fs::read_to_string(&ledger).unwrap_or_default().lines().any(|line| line.starts_with(key)) {
        return Ok(format!("{} euros were sent to {} before the crash", payment.euros, payment.to));
    }
    let mut ledger = OpenOptions::new().create(true).append(true).open(ledger)?;
    writeln!(ledger, "{key} {} {}", payment.euros, payment.to)?;
    ledger.sync_all()?;
    Ok(format!("{} euros were sent to {}", payment.euros, payment.to))
}

async fn start() -> Result<(), Box<dyn Error>> {
    let manager = Manager::builder(store().await?).build();
    let opened = manager.create(options().title("Money")).await?;
    opened.session.prompt("Send Ann 20 euros, please.").await?;
    println!("The prompt is stored. I am process {}: kill -9 {0}", std::process::id());
    follow(&opened.session).await
}

/// Prints the events of a session until its run ends.
async fn follow(session: &Session) -> Result<(), Box<dyn Error>> {
    let mut updates = session.subscribe(Mode::Observer).await?;
    let id = session.id();
    let mut waiting: Vec<Arc<PendingUse>> = Vec::new();
    // The snapshot contains everything that happened before this subscription began.
    if let Some(snapshot) = updates.snapshot() {
        for pause in &snapshot.agent.pauses {
            println!("  {id}: {} waits for a decision", pause.tool_use.name);
        }
        waiting.clone_from(&snapshot.agent.pauses);
        if snapshot.agent.status == Status::Idle {
            let last = snapshot.tree.history().last().map(|message| message.text());
            println!("  {id}: the turn has ended: {}", last.unwrap_or_default());
            return Ok(());
        }
    }
    while let Some(update) = updates.next().await {
        match update {
            Update::Event(numbered) => {
                let SessionEvent::Agent(event) = &*numbered.event else { continue };
                match &**event {
                    Event::Resumed { lives, .. } => {
                        println!("  {id}: the turn continues (restarts: {lives})");
                    }
                    Event::Status { pauses, .. } => {
                        for pause in pauses.iter().filter(|pause| !waiting.contains(pause)) {
                            println!("  {id}: {} waits for a decision", pause.tool_use.name);
                        }
                        waiting.clone_from(pauses);
                    }
                    Event::Decided(decided) => println!("  {id}: decided {:?}", decided.decision),
                    Event::Message { message, .. } if !message.text().is_empty() => {
                        println!("  {id}: {:?}: {}", message.role, message.text());
                    }
                    Event::Turn { .. } => return Ok(()),
                    _ => {}
                }
            }
            // The reader was too slow. The snapshot shows whether the run has ended.
            Update::Resync(snapshot) if snapshot.agent.status == Status::Idle => {
                return Ok(());
            }
            Update::Closed(_) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

async fn approvals() -> Result<(), Box<dyn Error>> {
    let manager = Manager::builder(store().await?).build();
    let waiting = manager.pending_approvals(&Filter::default(), Page::default()).await?;
    println!("{} waiting", waiting.len());
    for approval in waiting {
        println!("{}  {} {}", approval.id, approval.pending.tool_use.name, approval.pending.tool_use.input);
    }
    Ok(())
}

async fn decide(id: &str, decision: Decision) -> Result<(), Box<dyn Error>> {
    let manager = Manager::builder(store().await?).build();
    let id: ApprovalId = id.parse()?;
    manager.decide(&id, decision, Some("you")).await?;
    println!("The decision is stored. `work` continues the turn.");
    Ok(())
}

/// Continues turns that nobody works on, until Ctrl-C.
async fn work() -> Result<(), Box<dyn Error>> {
    let store = store().await?;
    let manager = Manager::builder(store.clone())
        .starter(|_| Some(options()))
        .sweep(Sweep::every(Duration::from_secs(1)))
        .build();
    let mut updates = manager.subscribe();
    println!("Waiting for turns to continue. Ctrl-C hands them over.");
    manager.recover().await?;
    loop {
        tokio::select! {
            update = updates.next() => match update {
                Some(Update::Event(numbered)) => match &*numbered.event {
                    ManagerEvent::Opened { session } => {
                        if let Some(session) = manager.get(&session.id) {
                            tokio::spawn(report(session));
                        }
                    }
                    ManagerEvent::NotRecovered { id, reason } => println!("  {id}: not continued: {reason}"),
                    _ => {}
                },
                Some(_) => {}
                None => return Ok(()),
            },
            _ = tokio::signal::ctrl_c() => {
                println!("Handing over.");
                manager.hand_over(Duration::from_secs(2)).await?;
                store.close().await;
                return Ok(());
            }
        }
    }
}

async fn report(session: Session) {
    if let Err(error) = follow(&session).await {
        println!("  {}: {error}", session.id());
    }
}

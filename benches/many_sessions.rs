//! 1,000 sessions of one manager stream at the same time from a local server in another process. The benchmark checks
//! that all answers are complete and in order, and measures the peak memory of the client.
//!
//! The server begins every answer, and continues only when all 1,000 answers have begun. Then it sends each answer in
//! pieces of 2 KiB, which may be cut at any byte, with a pause after each piece. All answers are different. Each
//! session has one subscriber, which checks every delta. The committed text and the content of the file-system store
//! are checked separately.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod formats;
#[allow(dead_code)]
mod server;
#[allow(dead_code)]
mod support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use formats::Format;
use omni_agent::{
    agent::{Agent, AgentBuilder, Event},
    manager::{Manager, OpenedSession, Shutdown},
    provider::{Model, http::Endpoint},
    session::{SessionEvent, SessionSubscription},
    store::{FileSystemStore, Page, Store},
    subscription::Update,
};
use server::{Pace, streamed};
use support::{cpu, head, peak_resident, resident, row, size};

const DELTAS: usize = 200;
const LIMIT: Duration = Duration::from_mins(5);

/// Returns the pieces of the answer to a prompt.
fn pieces(prompt: &str) -> impl Iterator<Item = String> {
    (0..DELTAS).map(move |index| format!("{prompt} {index}, "))
}

fn prompt(number: usize) -> String {
    format!("session-{number}")
}

fn main() {
    let count = size(1000, 20);
    let pace = Pace { pieces: Some((2048, Duration::from_millis(20))), together: count };
    let server = server::start_at(&pace, || {
        Box::new(|_, body| {
            let body = String::from_utf8_lossy(body);
            let from = body.rfind("session-").expect("the prompt names the session");
            let digits =
                body[from + 8..].find(|c: char| !c.is_ascii_digit()).expect("JSON follows the number");
            let pieces: Vec<String> = pieces(&body[from..from + 8 + digits]).collect();
            streamed(Format::Chat, &Format::Chat.text(&pieces), None)
        })
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let url = format!("http://{}", server.address);
    runtime.expect("the runtime starts").block_on(measure(count, &url));
}

async fn measure(count: usize, url: &str) {
    let folder = std::env::temp_dir().join(format!("omni-agent-bench-{}", std::process::id()));
    let store: Arc<dyn Store> =
        Arc::new(FileSystemStore::open(&folder).await.expect("the folder is writable"));
    let manager = Manager::builder(Arc::clone(&store)).build();
    let model = Model::new(Arc::new(Endpoint::openai_compatible("local", url)), "a-model");
    let agent = || Agent::builder().model(model.clone());

    let (before, begun) = (cpu(), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        tasks.spawn(converse(manager.clone(), agent(), number));
    }
    let mut deltas = 0;
    while let Some(seen) = tasks.join_next().await {
        deltas += seen.expect("every answer is complete and in order");
    }
    let took = begun.elapsed();
    assert_eq!(deltas, count * DELTAS);
    manager.shutdown(Shutdown::within(LIMIT).with_grace(LIMIT)).await.expect("all turns are saved");
    let (used, took_all) = (cpu().checked_sub(before).unwrap(), begun.elapsed());
    let (peak, after) = (peak_resident(), resident());

    // Load the stored conversations, and check them.
    let mut stored = 0;
    for conversation in store.list(&Page::first(count).into()).await.expect("the store answers") {
        stored += 1;
        let nodes = store.load(&conversation.id).await.expect("the conversation exists").nodes;
        let [asked, answered] = &nodes[..] else { panic!("a turn has two messages") };
        let expected: String = pieces(&asked.message().text()).collect();
        assert_eq!(answered.message().text(), expected);
    }
    assert_eq!(stored, count);
    std::fs::remove_dir_all(&folder).expect("the folder exists");

    let mib = |bytes: usize| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    head(&format!("{count} sessions of one manager, {DELTAS} deltas each, streaming at once"));
    row("complete, in order, and in the store", format!("{stored} of {count}"), "all");
    row("peak resident memory", mib(peak), "≤ 256 MiB");
    row("resident after the shutdown", mib(after), "—");
    row("wall, until all are complete", format!("{:.1} s", took.as_secs_f64()), "—");
    row("wall, until all are saved and closed", format!("{:.1} s", took_all.as_secs_f64()), "—");
    row("CPU of the client, per delta", format!("{:.1} µs", used.as_secs_f64() * 1e6 / deltas as f64), "—");
}

/// Runs one conversation, and returns the number of deltas that its subscriber received.
async fn converse(manager: Manager, agent: AgentBuilder, number: usize) -> usize {
    let OpenedSession { session, subscription, .. } =
        manager.create(agent).await.expect("the session starts");
    let events = subscription.expect("a subscription comes with it");
    let prompt = prompt(number);
    session.prompt(prompt.as_str()).await.expect("the session is idle");
    let deltas = read(events, &prompt).await;
    let tree = session.tree().await.expect("the session is open");
    assert_eq!(tree.history().last().unwrap().text(), pieces(&prompt).collect::<String>());
    deltas
}

/// Reads updates until the turn is in the tree, and compares each delta with the expected delta. Returns the number of
/// deltas.
async fn read(mut events: SessionSubscription, prompt: &str) -> usize {
    let mut expected = pieces(prompt);
    let mut deltas = 0;
    loop {
        let Some(Update::Event(numbered)) = events.next().await else {
            panic!("active readers get only events")
        };
        match &*numbered.event {
            SessionEvent::Agent(event) => match &**event {
                Event::TextDelta { delta, .. } => {
                    assert_eq!(Some(&**delta), expected.next().as_deref());
                    deltas += 1;
                }
                Event::Error { failure, .. } => panic!("{failure}"),
                _ => {}
            },
            SessionEvent::Tree(_) => return deltas,
            _ => {}
        }
    }
}

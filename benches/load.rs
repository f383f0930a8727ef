//! The time to load a conversation of 10,000 nodes, compared with the time to read and parse its JSON.
//!
//! The conversation has 5,000 turns of a question and an answer, with about 280 bytes per message. It is measured once
//! with text only and once with tools. The first reference reads and parses the stored JSON: it reads the log with
//! `fs::read_to_string` and parses each line with `serde_json::from_str`. The parsed type has the fields of the line
//! and the nodes of the tree. This reference checks and sorts nothing. The second reference reads a file that contains
//! only the messages, one per line, and parses them into shared `Message`s. The figures are CPU time of the whole
//! process, as medians of interleaved rounds. All files are in the page cache.
//!
//! Databases (features `sqlite` and `postgres`) are compared with a reference that reads the same messages from the
//! same database and parses them. The reference uses one query of the database's plain client. These figures are wall
//! time, because PostgreSQL works in other processes.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[allow(dead_code)]
mod databases;
#[allow(dead_code)]
mod support;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::time::Instant;
use std::{fs, hint::black_box, path::Path, sync::Arc};

use omni_agent::{
    message::{Content, Message, ToolResult, ToolUse, Usage},
    store::{
        ConversationId, FileSystemStore, MemoryStore, Store,
        custom::{Change, Commit, StoredState, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId, Tree},
};
use serde::Deserialize;
use serde_json::{Value, json};
use support::{cpu, head, median, on_this_thread, row, size};

fn main() {
    let folder = std::env::temp_dir().join(format!("omni-agent-bench-{}", ConversationId::generate()));
    on_this_thread(async {
        let nodes = size(10_000, 20) as u64;
        load(&folder, "text", nodes, text).await;
        load(&folder, "tools", nodes, tools).await;
        #[cfg(any(feature = "sqlite", feature = "postgres"))]
        load_from_databases(&folder.join("databases"), nodes).await;
    });
    fs::remove_dir_all(&folder).expect("the benchmark's folder can be removed");
}

fn text(number: u64) -> Message {
    match number % 2 {
        1 => Message::user("What is the tallest mountain of each continent? ".repeat(4)),
        _ => Message::assistant("Everest, Aconcagua, Denali, Kilimanjaro, Elbrus. ".repeat(4)),
    }
}

fn tools(number: u64) -> Message {
    let tool_use = ToolUse::new(
        format!("toolu_{number}"),
        "search",
        json!({"query": "tallest mountain", "limit": 10, "filters": {"continent": ["Asia", "Africa"]}}),
    );
    match number % 4 {
        1 => Message::user("What is the tallest mountain of each continent?"),
        2 => Message::assistant(vec![Content::from("Let me look."), tool_use.into()]),
        3 => Message::user(vec![Content::from(ToolResult::ok(&tool_use, "Everest, 8849 m. ".repeat(6)))]),
        _ => Message::assistant("Everest, Aconcagua, Denali, Kilimanjaro, Elbrus. ".repeat(4)),
    }
}

/// The fields of a line of the log that are needed to load the conversation.
#[derive(Deserialize)]
struct Line {
    record: Record,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "it only has to parse")]
struct Record {
    change: Option<LineChange>,
    version: Option<u64>,
    write: Option<String>,
    time: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "it only has to parse")]
enum LineChange {
    Create(Value),
    Commit { head: Option<NodeId>, nodes: Vec<Node> },
}

fn id(number: u64) -> NodeId {
    NodeId::new(number).expect("an id is not zero")
}

/// Creates the conversation, and commits it turn by turn.
async fn fill(store: &dyn Store, name: &ConversationId, nodes: u64, message: fn(u64) -> Message) {
    let created = store.write(name, &Write::first(), &Change::create(StoredState::default())).await;
    let mut version = created.expect("the id is free");
    for number in (1..=nodes).step_by(2) {
        let question = Node::new(id(number), NodeId::new(number - 1), message(number));
        let usage = Usage::default().with_input(1200).with_output(150);
        let answer = Node::new(id(number + 1), Some(id(number)), message(number + 1)).with_usage(usage);
        let commit = Commit::new(Some(id(number + 1))).with_nodes([question, answer]);
        version = store
            .write(name, &Write::on(version), &Change::Commit(commit))
            .await
            .expect("there is no other writer");
    }
}

async fn load(folder: &Path, what: &str, nodes: u64, message: fn(u64) -> Message) {
    let store = FileSystemStore::builder(folder)
        .durability(Durability::Process)
        .open()
        .await
        .expect("the folder opens");
    let memory = MemoryStore::new();
    let name = ConversationId::generate();
    let mut lines = String::new();
    for number in 1..=nodes {
        lines += &serde_json::to_string(&message(number)).expect("a message has a JSON form");
        lines += "\n";
    }
    fill(&store, &name, nodes, message).await;
    fill(&memory, &name, nodes, message).await;
    let plain = folder.join("messages");
    fs::write(&plain, &lines).expect("the disk has space");

    let path = folder.join(format!("{name}.jsonl"));

    let mut figures = [(); 5].map(|()| Vec::new());
    for _ in 0..size(41, 2) {
        let mut measure = |figure: usize, begun| {
            let used: std::time::Duration = cpu().saturating_sub(begun);
            figures[figure].push(used.as_secs_f64() * 1e3);
        };
        let begun = cpu();
        let text = fs::read_to_string(&plain).expect("it can be read");
        let messages: Vec<Arc<Message>> = text
            .lines()
            .map(|line| Arc::new(serde_json::from_str(line).expect("the message is valid")))
            .collect();
        measure(0, begun);
        drop(black_box(messages));

        let begun = cpu();
        let text = fs::read_to_string(&path).expect("it can be read");
        let lines: Vec<Record> =
            text.lines().map(|line| serde_json::from_str::<Line>(line).expect("a line").record).collect();
        measure(4, begun);
        drop(black_box(lines));

        let begun = cpu();
        let stored = store.load(&name).await.expect("the conversation exists");
        measure(1, begun);
        let begun = cpu();
        let tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors).expect("a tree");
        measure(2, begun);
        drop(black_box(tree));

        let begun = cpu();
        let stored = memory.load(&name).await.expect("the conversation exists");
        measure(3, begun);
        drop(black_box(stored));
    }
    let [plain, store, tree, memory, typed] = figures.map(median);
    let megabytes = |bytes: usize| bytes as f64 / 1e6;
    let log = fs::read(&path).expect("it can be read").len();
    head(&format!(
        "loading {nodes} nodes of {what}; {:.2} MB of messages, {:.2} MB of log",
        megabytes(lines.len()),
        megabytes(log)
    ));
    row("reading and parsing the log", format!("{typed:.1} ms"), "");
    row("reading and parsing the messages alone", format!("{plain:.1} ms"), "");
    row("load", format!("{store:.1} ms"), "≤ 16 ms");
    row("ratio to the log", format!("{:.2}", store / typed), "≤ 1.3");
    row("ratio to the messages alone", format!("{:.2}", store / plain), "");
    row("and making the tree of it", format!("{tree:.1} ms"), "");
    row("load from the memory store", format!("{memory:.2} ms"), "");
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn load_from_databases(folder: &Path, nodes: u64) {
    let (subjects, _server) = databases::subjects(folder).await;
    for databases::Subject { name: database, store, quick, bare } in &subjects {
        for (what, message) in [("text", text as fn(u64) -> Message), ("tools", tools)] {
            let name = ConversationId::generate();
            fill(&**quick, &name, nodes, message).await;
            let mut figures = [(); 2].map(|()| Vec::new());
            for _ in 0..size(41, 2) {
                let begun = Instant::now();
                let texts = bare.messages(&name).await;
                let messages =
                    texts.iter().map(|text| serde_json::from_str(text).expect("the message is valid"));
                let messages: Vec<Arc<Message>> = messages.collect();
                figures[0].push(begun.elapsed().as_secs_f64() * 1e3);
                drop(black_box((texts, messages)));

                let begun = Instant::now();
                let stored = store.load(&name).await.expect("the conversation exists");
                figures[1].push(begun.elapsed().as_secs_f64() * 1e3);
                drop(black_box(stored));
            }
            let [plain, load] = figures.map(median);
            head(&format!("loading {nodes} nodes of {what} from {database}"));
            row("reading and parsing the messages with one query", format!("{plain:.1} ms"), "");
            row("load", format!("{load:.1} ms"), "≤ 16 ms");
            row("ratio", format!("{:.2}", load / plain), "≤ 1.3");
        }
    }
}

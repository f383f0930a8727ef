//! What loading a conversation of 10,000 nodes takes, against reading and parsing its JSON.
//!
//! 5,000 turns of a question and an answer, about 280 bytes a message, as text alone and with tools. There are two
//! references. One reads and parses the conversation's JSON as it is stored: the log with `fs::read_to_string`, each line
//! with `serde_json::from_str` into a type with the line's fields and the nodes as they are in the tree, and
//! nothing is checked or kept in order. The other has a file with the messages alone, one a line, parsed into
//! shared `Message`s. CPU time of the whole process, medians of interleaved rounds; files are in the page cache.
//! Listing reads 100,000 conversations with summaries that are up to date, and, once, with ones that commits left
//! behind since the last list: all of them, and one in a hundred. Its time is that on the wall, since it takes more than
//! one thread; the files are in the page cache.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{fs, hint::black_box, path::Path, sync::Arc, time::Instant};

use omni_agent::{
    message::{Content, Message, ToolResult, ToolUse, Usage},
    store::{
        Commit, ConversationId, FileSystemStore, MemoryStore, Page, Store, StoredState, Write, WriteId,
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
        list(&folder.join("many")).await;
    });
    fs::remove_dir_all(&folder).expect("the benchmark's own folder can go");
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

/// A line of the log, as far as reading it takes.
#[derive(Deserialize)]
struct Line {
    record: Record,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "parsed is enough")]
struct Record {
    version: Option<u64>,
    write: Option<String>,
    time: Option<u64>,
    state_version: Option<u64>,
    change: Option<Change>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "parsed is enough")]
enum Change {
    Create(Value),
    Commit { head: Option<NodeId>, nodes: Vec<Node> },
}

fn id(number: u64) -> NodeId {
    NodeId::new(number).expect("not zero")
}

async fn load(folder: &Path, what: &str, nodes: u64, message: fn(u64) -> Message) {
    let store =
        FileSystemStore::builder(folder).durability(Durability::Process).open().await.expect("a folder");
    let memory = MemoryStore::new();
    let name = ConversationId::generate();
    let create = WriteId::generate();
    let mut versions = [
        store.create(&name, create, &StoredState::default()).await.expect("the id is free"),
        memory.create(&name, create, &StoredState::default()).await.expect("the id is free"),
    ];
    let mut lines = String::new();
    for number in (1..=nodes).step_by(2) {
        let (question, answer) = (message(number), message(number + 1));
        for message in [&question, &answer] {
            lines += &serde_json::to_string(message).expect("a message has a JSON form");
            lines += "\n";
        }
        let question = Node::new(id(number), NodeId::new(number - 1), question);
        let usage = Usage { input: 1200, output: 150, ..Usage::default() };
        let answer = Node::new(id(number + 1), Some(id(number)), answer).with_usage(usage);
        let commit = Commit::new(Some(id(number + 1))).with_nodes([question, answer]);
        let stores: [&dyn Store; 2] = [&store, &memory];
        for (store, version) in stores.into_iter().zip(&mut versions) {
            *version = store.commit(&name, &Write::on(*version), &commit).await.expect("nobody else writes");
        }
    }
    let plain = folder.join("messages");
    fs::write(&plain, &lines).expect("there is room");

    let path = folder.join(format!("{name}.jsonl"));

    let mut figures = [(); 5].map(|()| Vec::new());
    for _ in 0..size(41, 2) {
        let mut measure = |figure: usize, begun| {
            let used: std::time::Duration = cpu().saturating_sub(begun);
            figures[figure].push(used.as_secs_f64() * 1e3);
        };
        let begun = cpu();
        let text = fs::read_to_string(&plain).expect("it can be read");
        let messages: Vec<Arc<Message>> =
            text.lines().map(|line| Arc::new(serde_json::from_str(line).expect("a message"))).collect();
        measure(0, begun);
        drop(black_box(messages));

        let begun = cpu();
        let text = fs::read_to_string(&path).expect("it can be read");
        let lines: Vec<Record> =
            text.lines().map(|line| serde_json::from_str::<Line>(line).expect("a line").record).collect();
        measure(4, begun);
        drop(black_box(lines));

        let begun = cpu();
        let stored = store.load(&name).await.expect("it is there");
        measure(1, begun);
        let begun = cpu();
        let tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors).expect("a tree");
        measure(2, begun);
        drop(black_box(tree));

        let begun = cpu();
        let stored = memory.load(&name).await.expect("it is there");
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

async fn list(folder: &Path) {
    let conversations = size(100_000, 5);
    let store =
        FileSystemStore::builder(folder).durability(Durability::Process).open().await.expect("a folder");
    let mut versions = Vec::new();
    for _ in 0..conversations {
        let name = ConversationId::generate();
        let state = StoredState::default().with_title("A talk about mountains");
        let version = store.create(&name, WriteId::generate(), &state).await.expect("the id is free");
        versions.push((name, version));
    }
    head(&format!("listing 50 of {conversations}"));
    let row_of = async |what: &str, rounds: usize| {
        let mut figures = Vec::new();
        for _ in 0..rounds {
            let begun = Instant::now();
            black_box(store.list(Page::default()).await.expect("a list"));
            figures.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        row(what, format!("{:.0} ms", median(figures)), "≤ 1,000 ms");
    };
    row_of("summaries up to date", size(5, 1)).await;
    for (what, every) in
        [("one in a hundred left behind by a commit", 100), ("all left behind by a commit", 1)]
    {
        for (name, version) in versions.iter_mut().step_by(every) {
            let commit = Commit::new(Some(id(1))).with_nodes([Node::new(id(1), None, text(1))]);
            *version = store.commit(name, &Write::on(*version), &commit).await.expect("nobody else writes");
        }
        row_of(what, 1).await;
    }
}

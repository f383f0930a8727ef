//! The cost of committing a turn to the file system and to databases. It is compared with the cost of appending the
//! same bytes to an open file and syncing this file.
//!
//! A turn is a question and an answer with usage, about one kilobyte of JSON. In each round, one conversation of the
//! store receives a batch of turns. After each turn, the reference repeats the write: it appends the line that the
//! store has just written to a file that stays open, and calls `fdatasync`. Therefore the store and the reference see
//! the same state of the disk. The rounds alternate between a new conversation and a conversation of 10,000 turns.
//!
//! The wall time of the store and that of the reference are medians. The CPU time of each is the time that the process
//! used for its part of the batch, including the kernel's work. The bytes are the growth of the log. The last table is
//! measured without syncing. It shows the cost of a commit without the disk.
//!
//! The databases (features `sqlite` and `postgres`) have two references. The first reference appends the JSON of the
//! turn's messages to a file and syncs it. The second reference inserts one row with this JSON into the same database
//! with the database's plain client. A commit does the work of this insert and more: it finds the conversation,
//! compares its version, and adds four rows to three tables. The growth of the database's log is measured separately,
//! with commits that are not timed. Another table compares the commits per second of one busy session with those of 64
//! busy sessions, and those of conversations that are written to without sessions. All of them use one runtime with one
//! thread. The model of the sessions answers at once. In each round, one comes before 64, and all rounds use one file.
//!
//! The files are written to the folder `OMNI_BENCH_FOLDER`, or to the system's folder for temporary files. The folder
//! should be on a real disk.
//!
//! In addition to the disk, a commit to files takes about 30 µs: it hands the work to a thread and back, and opens,
//! locks and closes the log. The faster the disk, the higher is the ratio. SQLite writes whole pages, seven per commit.
//! In PostgreSQL, inserting one row with its own client takes 1.4 times as long as the append, so the goal of 1.3 can't
//! be reached. Without sessions, SQLite's writing thread is the limit, with about 60 µs of CPU time per commit. One
//! session does its own work between two commits, which overlaps with the writes of others if there are 64.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[allow(dead_code)]
mod databases;
#[allow(dead_code)]
mod support;

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use omni_agent::{
    message::{Message, Usage},
    store::{
        ConversationId, FileSystemStore, MemoryStore, Store,
        custom::{Change, Commit, StoredState, Version, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId},
};
use support::{cpu, head, median, on_this_thread, row, size};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use {
    futures_util::future::join_all,
    omni_agent::{agent::Agent, provider::Request, session::Session},
    std::sync::Arc,
    support::{InMemory, model, text},
};

fn main() {
    let base = std::env::var_os("OMNI_BENCH_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = base.join(format!("omni-agent-bench-{}", ConversationId::generate()));
    on_this_thread(synced(&folder));
    on_this_thread(unsynced(&folder));
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    on_this_thread(in_databases(&folder.join("databases")));
    on_this_thread(in_memory());
    fs::remove_dir_all(&folder).expect("the benchmark's folder can be removed");
}

/// A conversation and its current version.
struct Talk<'a> {
    store: &'a dyn Store,
    id: ConversationId,
    version: Version,
    nodes: u64,
}

impl<'a> Talk<'a> {
    async fn start(store: &'a dyn Store, turns: u64) -> Self {
        let id = ConversationId::generate();
        let created = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await;
        let mut talk = Self { store, id, version: created.expect("the id is free"), nodes: 0 };
        for _ in 0..turns {
            talk.turn().await;
        }
        talk
    }

    async fn turn(&mut self) {
        let commit = turn(self.nodes);
        let written = self.store.write(&self.id, &Write::on(self.version), &Change::Commit(commit)).await;
        self.version = written.expect("there is no other writer");
        self.nodes += 2;
    }
}

fn question() -> String {
    "What is the tallest mountain of each continent, and who climbed it first? ".repeat(3)
}

fn answer() -> String {
    "Everest in Asia, Aconcagua in South America, Denali in North America, Kilimanjaro. ".repeat(6)
}

/// Returns a commit of a question and an answer that follow this many nodes. The ids always have the same length, so
/// that all lines of the log also have the same length.
fn turn(nodes: u64) -> Commit {
    let id = |number: u64| NodeId::new(100_000 + number).expect("an id is not zero");
    let usage = Usage::default().with_input(1200).with_cache_read(800).with_output(150).with_cost(0.0125);
    let parent = (nodes > 0).then(|| id(nodes - 1));
    let question = Node::new(id(nodes), parent, Message::user(question()));
    let answer = Node::new(id(nodes + 1), Some(id(nodes)), Message::assistant(answer())).with_usage(usage);
    Commit::new(Some(id(nodes + 1))).with_nodes([question, answer])
}

/// The wall times and the total CPU time of the store or of the reference, in microseconds.
#[derive(Default)]
struct Spent {
    wall: Vec<f64>,
    cpu: f64,
}

impl Spent {
    fn since(&mut self, begun: (Instant, Duration)) {
        self.wall.push(begun.0.elapsed().as_secs_f64() * 1e6);
        self.cpu += cpu().saturating_sub(begun.1).as_secs_f64() * 1e6;
    }

    fn cpu_each(&self) -> f64 {
        self.cpu / self.wall.len() as f64
    }

    fn wall_each(&self) -> f64 {
        median(self.wall.clone())
    }
}

fn now() -> (Instant, Duration) {
    (Instant::now(), cpu())
}

/// Commits turns alternately to the store and to the reference. Returns the times of both, and the number of bytes of
/// the last turn.
async fn side_by_side(
    talk: &mut Talk<'_>,
    folder: &std::path::Path,
    turns: usize,
    sync: bool,
) -> (Spent, Spent, u64) {
    let log = folder.join(format!("{}.jsonl", talk.id));
    let mut reference =
        File::options().append(true).create(true).open(folder.join("reference")).expect("the file opens");
    let (mut store, mut plain) = (Spent::default(), Spent::default());
    let mut bytes = 0;
    for _ in 0..turns {
        let before = fs::metadata(&log).expect("the log exists").len();
        let begun = now();
        talk.turn().await;
        store.since(begun);

        let mut line = Vec::new();
        let mut written = File::open(&log).expect("the log exists");
        written.seek(SeekFrom::Start(before)).expect("the log has grown");
        written.read_to_end(&mut line).expect("it can be read");
        bytes = line.len() as u64;
        let begun = now();
        reference.write_all(&line).expect("the disk has space");
        if sync {
            reference.sync_data().expect("it can be synced");
        }
        plain.since(begun);
    }
    (store, plain, bytes)
}

async fn synced(folder: &std::path::Path) {
    let (rounds, batch, long) = (size(10, 1), size(50, 2), size(10_000, 20) as u64);
    let quick = FileSystemStore::builder(folder)
        .durability(Durability::Process)
        .open()
        .await
        .expect("the folder opens");
    let store = FileSystemStore::open(folder).await.expect("the folder opens");
    let mut old = Talk::start(&quick, long).await;
    old.store = &store;

    let mut figures = [(); 2].map(|()| (Spent::default(), Spent::default(), 0));
    for _ in 0..rounds {
        let mut new = Talk::start(&store, 0).await;
        for (talk, figures) in [&mut new, &mut old].into_iter().zip(&mut figures) {
            let (store, plain, bytes) = side_by_side(talk, folder, batch, true).await;
            figures.0.wall.extend(store.wall);
            figures.0.cpu += store.cpu;
            figures.1.wall.extend(plain.wall);
            figures.1.cpu += plain.cpu;
            figures.2 = bytes;
        }
    }
    head(&format!("a synced commit, {} turns a row", rounds * batch));
    let from = [format!("turns 1 to {batch}"), format!("turns from {long} on")];
    for (from, (store, plain, bytes)) in from.iter().zip(&figures) {
        let wall = (store.wall_each(), plain.wall_each());
        row(
            &format!("{from}: wall, store / append + fdatasync"),
            format!("{:.0} / {:.0} µs", wall.0, wall.1),
            "",
        );
        row(&format!("{from}: ratio of wall time"), format!("{:.2}", wall.0 / wall.1), "≤ 1.3");
        let cpu = (store.cpu_each(), plain.cpu_each());
        row(
            &format!("{from}: CPU, store / append + fdatasync"),
            format!("{:.0} / {:.0} µs", cpu.0, cpu.1),
            "",
        );
        row(&format!("{from}: bytes"), bytes.to_string(), "the same");
    }
    let [new, old] = &figures;
    row("wall time, late to early", format!("{:.2}", old.0.wall_each() / new.0.wall_each()), "1.0");
    row("CPU time, late to early", format!("{:.2}", old.0.cpu_each() / new.0.cpu_each()), "1.0");
}

async fn unsynced(folder: &std::path::Path) {
    let (batch, long) = (size(2_000, 5), size(10_000, 20) as u64);
    let store = FileSystemStore::builder(folder)
        .durability(Durability::Process)
        .open()
        .await
        .expect("the folder opens");
    head(&format!("a commit that is not synced, {batch} turns a row"));
    for turns in [0, long] {
        let mut talk = Talk::start(&store, turns).await;
        let (store, plain, _) = side_by_side(&mut talk, folder, batch, false).await;
        let cpu = format!("{:.1} / {:.1} µs", store.cpu_each(), plain.cpu_each());
        row(&format!("from turn {} on: CPU, store / append", turns + 1), cpu, "");
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn in_databases(folder: &std::path::Path) {
    let (subjects, _server) = databases::subjects(folder).await;
    for subject in &subjects {
        in_database(subject, folder).await;
    }
}

/// Compares the commits per second of one busy session with those of 64 busy sessions, and also those of conversations
/// without sessions.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn many(subject: &databases::Subject) {
    const BUSY: usize = 64;

    let (rounds, turns) = (size(5, 1), size(200, 2));
    let mut rates = [(); 4].map(|()| Vec::new());
    for _ in 0..rounds {
        for (rates, busy) in rates.chunks_exact_mut(2).zip([1, BUSY]) {
            rates[0].push(sessions(subject, busy, turns).await);
            rates[1].push(conversations(subject, busy, turns).await);
        }
    }
    head(&format!("synced commits per second to {}, medians of {rounds} rounds", subject.name));
    let [one_session, one_conversation, sessions, conversations] = rates;
    for (what, one, all, goal) in [
        ("session", one_session, sessions, "≥ 5 (SQLite)"),
        ("conversation without a session", one_conversation, conversations, ""),
    ] {
        let ratios = one.iter().zip(&all).map(|(one, all)| all / one).collect();
        row(&format!("one busy {what}"), format!("{:.0}", median(one)), "");
        row(&format!("{BUSY} at once"), format!("{:.0}", median(all)), "");
        row("ratio", format!("{:.2}", median(ratios)), goal);
    }
}

/// Returns the commits per second of this many sessions. Each session has a model in memory, and waits after each turn
/// until the turn is saved.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn sessions(subject: &databases::Subject, count: usize, turns: usize) -> f64 {
    let limit = Duration::from_mins(1);
    let create = async || {
        let agent = Agent::builder().model(model(InMemory(|_: &Request| text(&answer()))));
        let builder = Session::builder(Arc::clone(&subject.store)).agent(agent);
        builder.create().await.expect("the id is free")
    };
    let sessions = join_all((0..count).map(|_| create())).await;
    let begun = Instant::now();
    join_all(sessions.iter().map(|session| async move {
        for _ in 0..turns {
            session.ask(question()).await.expect("the model answers");
            session.flush(limit).await.expect("the store works");
        }
    }))
    .await;
    let rate = (count * turns) as f64 / begun.elapsed().as_secs_f64();
    for stopped in join_all(sessions.iter().map(|session| session.stop(limit))).await {
        stopped.expect("everything is saved");
    }
    rate
}

/// Returns the commits per second of this many conversations that are written to without sessions.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn conversations(subject: &databases::Subject, count: usize, turns: usize) -> f64 {
    let starts = (0..count).map(|_| Talk::start(&*subject.store, 0));
    let mut busy = join_all(starts).await;
    let begun = Instant::now();
    join_all(busy.iter_mut().map(|talk| async {
        for _ in 0..turns {
            talk.turn().await;
        }
    }))
    .await;
    (count * turns) as f64 / begun.elapsed().as_secs_f64()
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn in_database(subject: &databases::Subject, folder: &std::path::Path) {
    let (rounds, batch, long) = (size(10, 1), size(50, 2), size(10_000, 20) as u64);
    let mut file =
        File::options().append(true).create(true).open(folder.join("reference")).expect("the file opens");
    let mut old = Talk::start(&*subject.quick, long).await;
    old.store = &*subject.store;

    let mut figures = [(); 2].map(|()| [(); 3].map(|()| Spent::default()));
    for _ in 0..rounds {
        let mut new = Talk::start(&*subject.store, 0).await;
        for (talk, [store, row, append]) in [&mut new, &mut old].into_iter().zip(&mut figures) {
            for _ in 0..batch {
                let json = serde_json::to_string(&turn(talk.nodes).nodes).expect("messages have a JSON form");
                let begun = now();
                talk.turn().await;
                store.since(begun);
                let begun = now();
                subject.bare.insert(&json).await;
                row.since(begun);
                let begun = now();
                file.write_all(json.as_bytes()).and_then(|()| file.sync_data()).expect("the disk has space");
                append.since(begun);
            }
        }
    }
    many(subject).await;
    let name = subject.name;
    head(&format!("a synced commit to {name}, {} turns a row", rounds * batch));
    let from = [format!("turns 1 to {batch}"), format!("turns from {long} on")];
    for (from, [store, insert, append]) in from.iter().zip(&figures) {
        let (wall, insert, append) = (store.wall_each(), insert.wall_each(), append.wall_each());
        let figure = format!("{wall:.0} / {insert:.0} / {append:.0} µs");
        row(&format!("{from}: wall, store / bare row / append"), figure, "");
        row(&format!("{from}: ratio to a bare row"), format!("{:.2}", wall / insert), "");
        row(&format!("{from}: ratio to append + fdatasync"), format!("{:.2}", wall / append), "≤ 1.3");
        row(&format!("{from}: CPU of this process"), format!("{:.0} µs", store.cpu_each()), "");
    }
    let [[new, ..], [late, ..]] = &figures;
    row("wall time, late to early", format!("{:.2}", late.wall_each() / new.wall_each()), "1.0");

    let mut logged = [(); 2].map(|()| Vec::new());
    let mut new = Talk::start(&*subject.store, 0).await;
    for _ in 0..batch {
        for (talk, logged) in [&mut new, &mut old].into_iter().zip(&mut logged) {
            logged.push(subject.bare.logged(talk.turn()).await as f64);
        }
    }
    let [early, late] = logged.map(median);
    row("the log grows by, early / late", format!("{early:.0} / {late:.0} B"), "the same");
}

async fn in_memory() {
    let batch = size(100_000, 10) as u64;
    let store = MemoryStore::new();
    let mut talk = Talk::start(&store, 0).await;
    let commits: Vec<Commit> = (0..batch).map(|number| turn(number * 2)).collect();
    let before = cpu();
    for commit in &commits {
        let written = store.write(&talk.id, &Write::on(talk.version), &Change::Commit(commit.clone())).await;
        talk.version = written.expect("there is no other writer");
    }
    let each = cpu().saturating_sub(before).as_secs_f64() * 1e9 / batch as f64;
    head("a commit to the memory store");
    row("CPU", format!("{each:.0} ns"), "");
}

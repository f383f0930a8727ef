//! Lists conversations by label, and searches their messages, among 100,000 conversations of 20 messages each, in SQLite
//! and PostgreSQL.
//!
//! Each message has 15 words of a vocabulary of 2,000 words. One label is on every conversation, and others are on
//! 10 %, 1 % and 0.05 % of them. Some words occur in exactly 10 and 1,000 messages of the conversations with the 10 %
//! label. One word occurs in every message. The figures are the 99th percentiles of operations that run one after
//! another. The databases are in the cache.
//!
//! `cargo bench --features sqlite,postgres --bench search`
//!
//! The figures of BENCHMARKS.md were measured with real-time priority (`chrt --fifo 5`), because other programs used
//! both cores.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
#[cfg(feature = "postgres")]
mod databases;
#[allow(dead_code)]
mod support;

use std::{
    fmt::Write as _,
    fs,
    hint::black_box,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use omni_agent::{
    message::Message,
    store::{
        ConversationId, Filter, Labels, Page, Query, SqliteStore, Store,
        custom::{Change, Commit, StoredState, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId},
};
use support::{head, on_this_thread, percentile, row, size};

/// The number of messages of a conversation.
const MESSAGES: u64 = 20;
/// The number of concurrent writes.
const AT_ONCE: usize = 16;

fn main() {
    let folder = std::env::temp_dir().join(format!("omni-agent-bench-{}", ConversationId::generate()));
    fs::create_dir_all(&folder).expect("the folder is created");
    on_this_thread(async {
        let file = folder.join("conversations.sqlite");
        let builder = SqliteStore::builder(&file).durability(Durability::Process).search(true);
        let store = builder.open().await.expect("the file opens");
        fill(&store).await;
        measure("SQLite", &store).await;
        drop(store);
        #[cfg(feature = "postgres")]
        if let Some(server) = databases::server::Server::start("") {
            let store = databases::server::fresh(&server.url()).connections(10).open().await;
            let store = store.expect("the server answers");
            fill(&store).await;
            let begun = Instant::now();
            store.create_search_index().await.expect("the indexes are created");
            println!("\nsearch indexes of PostgreSQL: {:.0} s", begun.elapsed().as_secs_f64());
            measure("PostgreSQL", &store).await;
        }
    });
    fs::remove_dir_all(&folder).expect("the benchmark's folder can be removed");
}

/// Returns whether the conversation with this number has the label.
type HasLabel = fn(u64) -> bool;

/// The labels, each with the condition that a conversation has it, and with the goal for a page of the list.
const LABELS: [(&str, HasLabel, &str); 5] = [
    ("all", |_| true, "≤ 5 ms"),
    ("tenth", |number| number.is_multiple_of(10), "≤ 5 ms"),
    ("hundredth", |number| number.is_multiple_of(100), "≤ 5 ms"),
    ("few", |number| number.is_multiple_of(2000), "≤ 5 ms"),
    ("oldest", |number| number < size(100_000, 50) as u64 / 10, "≤ 50 ms"),
];

fn labels<'a>(names: impl IntoIterator<Item = &'a str>) -> Labels {
    Labels::new(names.into_iter().map(|name| (name, "yes"))).expect("the labels are valid")
}

/// Returns the text of a message. The words are the same in every run.
fn text(conversation: u64, message: u64) -> String {
    let mut seed =
        conversation.wrapping_mul(MESSAGES).wrapping_add(message).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = "everywhere".to_owned();
    for _ in 0..15 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let _ = write!(text, " word{}", seed % 2000);
    }
    if message == 7 && conversation.is_multiple_of(10) {
        text.push_str(if conversation < 100 { " tenhits" } else { "" });
        text.push_str(if conversation < 10_000 { " thousandhits" } else { "" });
    }
    text
}

async fn fill(store: &dyn Store) {
    let conversations = size(100_000, 50) as u64;
    let begun = Instant::now();
    let fill = |number: u64| async move {
        let id = ConversationId::generate();
        let state = StoredState::default()
            .with_title(format!("Conversation {number}"))
            .with_labels(labels(LABELS.iter().filter(|(_, has, _)| has(number)).map(|(name, ..)| *name)));
        let version =
            store.write(&id, &Write::first(), &Change::create(state.clone())).await.expect("the id is free");
        let node = |number| NodeId::new(number).expect("an id is not zero");
        let nodes = (1..=MESSAGES).map(|place| {
            let text = text(number, place);
            let message = if place % 2 == 1 { Message::user(text) } else { Message::assistant(text) };
            Node::new(node(place), NodeId::new(place - 1), message)
        });
        let commit = Commit::new(Some(node(MESSAGES))).with_nodes(nodes).with_usage([]);
        store
            .write(&id, &Write::on(version), &Change::Commit(commit))
            .await
            .expect("there is no other writer");
    };
    stream::iter(0..conversations).map(fill).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    println!("\nfilled with {conversations} conversations: {:.0} s", begun.elapsed().as_secs_f64());
}

async fn measure(name: &str, store: &dyn Store) {
    head(&format!("{name}: 99th percentiles"));
    let times = size(300, 2);
    for (label, _, goal) in LABELS {
        let filter = Filter::with(labels([label]));
        let first = Page::first(50);
        let mut figures = Vec::new();
        let mut after = None;
        for _ in 0..times {
            let begun = Instant::now();
            let listed = store.list(&(filter.clone(), first.clone()).into()).await.expect("the list is read");
            figures.push(begun.elapsed());
            after = listed.last().cloned().or(after);
        }
        row(&format!("list 50 with the label {label}"), millis(&mut figures), goal);
        if let Some(after) = after {
            let page = first.after(&after);
            for figure in &mut figures {
                let begun = Instant::now();
                black_box(
                    store.list(&(filter.clone(), page.clone()).into()).await.expect("the list is read"),
                );
                *figure = begun.elapsed();
            }
            row(&format!("list the next 50 with the label {label}"), millis(&mut figures), goal);
        }
    }
    let (tenant, oldest) = (Filter::with(labels(["tenth"])), Filter::with(labels(["oldest"])));
    for (what, query) in [
        ("a word with 10 hits", "tenhits"),
        ("a word with 1,000 hits", "thousandhits"),
        ("a word that occurs everywhere", "everywhere"),
        ("a word in 1 % of the messages", "\"word77\""),
        ("two words in 1 % of the messages each", "\"word77\" \"word78\""),
    ] {
        let query: Query = query.parse().expect("a valid query");
        for (where_, filter) in [
            ("one tenant", &tenant),
            ("the oldest conversations", &oldest),
            ("all conversations", &Filter::default()),
        ] {
            let mut figures = Vec::new();
            for _ in 0..=times / 3 {
                let begun = Instant::now();
                let found = store
                    .search(&query, &(filter.clone(), Page::first(50)).into())
                    .await
                    .expect("the search succeeds");
                figures.push(begun.elapsed());
                black_box(found);
            }
            row(&format!("{what}, in {where_}"), millis(&mut figures), "≤ 50 ms");
        }
    }
}

fn millis(figures: &mut [Duration]) -> String {
    let mut figures: Vec<f64> = figures.iter().map(|figure| figure.as_secs_f64() * 1e3).collect();
    format!("{:.1} ms", percentile(&mut figures, 0.99))
}

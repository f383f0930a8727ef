//! 100,000 conversations in one database, or 10,000 in the file system: creating, listing 50 at a time, opening and
//! deleting them.
//!
//! Each conversation has a title and a turn. Creating, committing and deleting handle every conversation, many at once,
//! as in an application with many users. Their figure is the wall time divided by the number of conversations. Listing
//! and opening run one after another. Their figure is the median, and the first list has its own row. Files and
//! databases are in the cache. Creating and committing do not wait for the disk, if the store supports this. Everything
//! else uses the default settings.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[allow(dead_code)]
mod databases;
#[allow(dead_code)]
mod support;

use std::{fs, hint::black_box, time::Instant};

use futures_util::{StreamExt, stream};
use omni_agent::{
    message::Message,
    store::{
        ConversationId, FileSystemStore, Listing, Page, Store,
        custom::{Change, Commit, StoredState, Version, Write},
        file_system::Durability,
    },
    tree::{Node, NodeId},
};
use support::{head, median, on_this_thread, row, size};

/// The number of concurrent operations.
const AT_ONCE: usize = 16;

fn main() {
    let folder = std::env::temp_dir().join(format!("omni-agent-bench-{}", ConversationId::generate()));
    on_this_thread(async {
        let logs = folder.join("logs");
        let quick = FileSystemStore::builder(&logs)
            .durability(Durability::Process)
            .open()
            .await
            .expect("the folder opens");
        let store = FileSystemStore::open(&logs).await.expect("the folder opens");
        measure("the file system", &store, &quick, size(10_000, 20), "≤ 300 ms").await;
        drop(fs::remove_dir_all(&logs));
        #[cfg(any(feature = "sqlite", feature = "postgres"))]
        {
            let folder = folder.join("databases");
            let (subjects, _server) = databases::subjects(&folder).await;
            for databases::Subject { name, store, quick, .. } in &subjects {
                measure(name, &**store, &**quick, size(100_000, 20), "≤ 5 ms").await;
            }
        }
    });
    fs::remove_dir_all(&folder).expect("the benchmark's folder can be removed");
}

async fn measure(name: &str, store: &dyn Store, quick: &dyn Store, conversations: usize, goal: &str) {
    head(&format!("{conversations} conversations in {name}"));
    let state = StoredState::default().with_title("A talk about mountains");
    let (state, names) = (&state, (0..conversations).map(|_| ConversationId::generate()));
    let mut talks = each("create, one of all", names, async |id| {
        let version =
            quick.write(&id, &Write::first(), &Change::create(state.clone())).await.expect("the id is free");
        (id, version)
    })
    .await;

    list("list 50", store, 0, goal).await;
    let late = talks.split_off(talks.len() / 100);
    let mut talks = all("commit a turn, one of a hundredth", quick, talks).await;
    list("list 50, a hundredth written to since", store, 0, goal).await;
    talks.extend(all("commit a turn, one of the others", quick, late).await);
    list("list 50, all written to since", store, 0, goal).await;
    list("list 50 from the middle", store, conversations / 2, "").await;

    let some: Vec<_> = talks.iter().step_by((talks.len() / size(1_000, 5)).max(1)).collect();
    let mut figures = Vec::new();
    for (id, version) in some {
        let begun = Instant::now();
        let stored = store.load(id).await.expect("the conversation exists");
        figures.push(begun.elapsed().as_secs_f64() * 1e6);
        assert_eq!((stored.version, stored.nodes.len()), (*version, 2));
    }
    row("open", format!("{:.0} µs", median(figures)), "");

    each("delete, one of all", talks, async |(id, _)| {
        store.delete(&id, None).await.expect("it has no owner");
    })
    .await;
    assert_eq!(store.list(&Listing::default()).await.expect("the list is read"), []);
}

/// Runs `work` concurrently on all items. Prints the time per item, and returns the results.
async fn each<T, R>(what: &str, items: impl IntoIterator<Item = T>, work: impl AsyncFn(T) -> R) -> Vec<R> {
    let begun = Instant::now();
    let work = &work;
    let done: Vec<R> = stream::iter(items).map(|item| work(item)).buffer_unordered(AT_ONCE).collect().await;
    row(what, format!("{:.0} µs", begun.elapsed().as_secs_f64() * 1e6 / done.len() as f64), "");
    done
}

/// Commits one turn to each conversation.
async fn all(
    what: &str,
    store: &dyn Store,
    talks: Vec<(ConversationId, Version)>,
) -> Vec<(ConversationId, Version)> {
    let id = |number| NodeId::new(number).expect("an id is not zero");
    let question = Node::new(id(1), None, Message::user("What is the tallest mountain of each continent?"));
    let answer =
        Node::new(id(2), Some(id(1)), Message::assistant("Everest, Aconcagua, Denali, Kilimanjaro."));
    let turn = Commit::new(Some(id(2))).with_nodes([question, answer]);
    let turn = &turn;
    each(what, talks, async |(id, version)| {
        let version = store
            .write(&id, &Write::on(version), &Change::Commit(turn.clone()))
            .await
            .expect("there is no other writer");
        (id, version)
    })
    .await
}

async fn list(what: &str, store: &dyn Store, offset: usize, goal: &str) {
    let mut figures = Vec::new();
    // The first list has its own row, because it may have to fill caches.
    for _ in 0..size(10, 2) {
        let begun = Instant::now();
        let listed = store.list(&Page::first(50).from(offset).into()).await.expect("the list is read");
        figures.push(begun.elapsed().as_secs_f64() * 1e3);
        black_box(listed);
    }
    row(&format!("{what}: first"), format!("{:.1} ms", figures[0]), goal);
    row(&format!("{what}: median"), format!("{:.1} ms", median(figures)), goal);
}

//! `kill -9` of a process that commits without a pause.
//!
//! A normal run kills the process 50 times. `OMNI_KILLS=1000 cargo test --release --test store kill::` is a long run.

use std::{
    env,
    io::{BufRead, BufReader, Write as _},
    sync::Arc,
};

use omni_agent::{
    store::{
        ConversationId, FileSystemStore, Store,
        custom::{Change, Write, WriteId},
    },
    tree::NodeId,
};

use crate::support::{Folder, child, child_folder, commit, create, id, says};

/// Returns the text that the child commits as node `number`. Some texts are so long that the operating system writes
/// them in several pieces. A kill may then occur between two pieces.
fn text(number: u64) -> String {
    let length = if number.is_multiple_of(3) { 1_500_000 } else { 200 };
    format!("{number} ").repeat(length / 4)
}

#[tokio::test]
async fn child_commits_until_it_is_killed() {
    if let Some(folder) = child_folder() {
        commit_until_killed(&FileSystemStore::open(folder).await.unwrap()).await;
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn child_commits_to_sqlite_until_it_is_killed() {
    if let Some(folder) = child_folder() {
        let file = folder.join("conversations.sqlite");
        commit_until_killed(&omni_agent::store::SqliteStore::open(file).await.unwrap()).await;
    }
}

/// Child process: continues the conversation, and prints the number of each commit when the commit is acknowledged.
#[allow(clippy::print_stdout, reason = "the parent reads the output")]
async fn commit_until_killed(store: &dyn Store) {
    let id = id("killed");
    let stored = store.load(&id).await.unwrap();
    let (mut version, mut number) = (stored.version, stored.nodes.len() as u64);
    println!("\nready");
    loop {
        number += 1;
        version = commit(store, &id, version, number, &text(number)).await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {number}").unwrap();
        out.flush().unwrap();
    }
}

/// Kills a child `micros` microseconds after acknowledgement number `after`. Returns the last acknowledged number.
fn kill(part: &str, folder: &Folder, after: usize, micros: u64) -> Option<u64> {
    let mut child = child(part, folder.path()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.by_ref().any(|line| line == "ready"), "the child did not start");
    let mut acknowledged = None;
    let mut take = |line: String| {
        acknowledged = line.strip_prefix("ack ").map(|number| number.parse().unwrap()).or(acknowledged);
    };
    lines.by_ref().take(after).for_each(&mut take);
    let begun = std::time::Instant::now();
    while begun.elapsed().as_micros() < u128::from(micros) {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    // Acknowledgements that were printed before the kill also count.
    lines.for_each(&mut take);
    child.wait().unwrap();
    acknowledged
}

#[tokio::test]
async fn kill_during_commits_keeps_acknowledged_commits_and_leaves_no_partial_one() {
    let open = async |folder: &Folder| Arc::new(folder.store().await) as Arc<dyn Store>;
    survive_kills("kill::child_commits_until_it_is_killed", open).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn kill_during_commits_to_sqlite_keeps_acknowledged_commits_and_leaves_no_partial_one() {
    let open = async |folder: &Folder| {
        let file = folder.path().join("conversations.sqlite");
        Arc::new(omni_agent::store::SqliteStore::open(file).await.unwrap()) as Arc<dyn Store>
    };
    survive_kills("kill::child_commits_to_sqlite_until_it_is_killed", open).await;
}

/// Repeatedly kills a child that runs the test `part`, and checks the store each time.
async fn survive_kills(part: &str, open: impl AsyncFn(&Folder) -> Arc<dyn Store>) {
    let kills = env::var("OMNI_KILLS").map_or(50, |kills| kills.parse().unwrap());
    let mut folder = Folder::new();
    let mut id = start(&*open(&folder).await).await;
    let mut seen = 0;
    for round in 0..kills {
        // Start a new conversation from time to time, so that the lengths of the conversations vary up to some tens of
        // megabytes.
        if round % 25 == 24 {
            folder = Folder::new();
            id = start(&*open(&folder).await).await;
            seen = 0;
        }
        // The range of delays covers the whole duration of a commit, and a little more.
        let micros = u64::from(rand_below(12_000));
        let acknowledged = kill(part, &folder, round % 4, micros).unwrap_or(seen);

        let store = open(&folder).await;
        let stored = store.load(&id).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let there = stored.nodes.len() as u64;
        assert!(there >= acknowledged, "round {round}: {there} commits of {acknowledged} acknowledged ones");
        // The last commit may be complete even if it was not acknowledged.
        assert!(there <= acknowledged + 1, "round {round}: {there} commits, {acknowledged} acknowledged");
        for (node, number) in stored.nodes.iter().zip(1..).skip(usize::try_from(seen).unwrap()) {
            assert_eq!(node.id().get(), number);
            assert!(node.message().text() == text(number), "round {round}: a partial commit");
        }
        assert_eq!(stored.head.map_or(0, NodeId::get), there);
        let write = Write::on(stored.version).with_id(WriteId::generate());
        let next =
            store.write(&id, &write, &Change::Commit(says(there + 1, &text(there + 1)))).await.unwrap();
        assert_eq!(next, stored.version.next());
        seen = there + 1;
    }
}

async fn start(store: &dyn Store) -> ConversationId {
    let id = id("killed");
    create(store, &id).await;
    id
}

/// Returns a random number below `limit`, so that each kill happens at another moment.
fn rand_below(limit: u32) -> u32 {
    let bytes = *WriteId::generate().as_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) % limit
}

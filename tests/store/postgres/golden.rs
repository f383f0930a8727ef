//! A dump of every released version of the schema. What is in `golden/` once stays there as it is, and stays readable.

use std::{fs, path::PathBuf, process::Command};

use omni_agent::store::{ConversationId, FileSystemStore, Owner, Page, PostgresStore, Store, Stored, copy};

use super::server::{raw, url};
use crate::support::{Folder, commit, id};

/// The schema's name in the dumps.
const DUMPED: &str = "golden_schema";

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/store/golden").join(name)
}

#[tokio::test]
async fn load_from_schema_version_1_gives_what_was_stored() {
    let Some(url) = url() else { return };
    let schema = format!("golden {}", ConversationId::generate());
    let dump = fs::read_to_string(golden("postgres-1.sql")).unwrap();
    raw(url).await.batch_execute(&dump.replace(DUMPED, &format!("\"{schema}\""))).await.unwrap();

    let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
    let listed = store.list(Page::default()).await.unwrap();
    assert_eq!(listed.len(), 2);
    for name in ["empty", "talk"] {
        let expected = fs::read(golden(&format!("v1/{name}.expected.json"))).unwrap();
        let expected: Stored = serde_json::from_slice(&expected).unwrap();
        let stored = store.load(&id(name)).await.unwrap();
        assert_eq!(stored.state, expected.state, "{name}");
        assert_eq!((&stored.nodes, stored.head), (&expected.nodes, expected.head), "{name}");
        assert_eq!(stored.cursors, expected.cursors, "{name}");
        let summary = store.summary(&id(name)).await.unwrap();
        assert_eq!((summary.version, &summary.title), (stored.version, &expected.state.title), "{name}");
        assert!(listed.contains(&summary), "{name}");
        // And it goes on from there.
        store.acquire(&id(name), &Owner::new("ann")).await.unwrap();
        commit(&store, &id(name), stored.version, 1000, "more").await;
    }
}

/// Makes the dump of the current version. Only for a version that is not released yet.
#[tokio::test]
#[ignore = "writes into the sources; for a new version of the schema"]
async fn make_golden_dump() {
    let url = url().unwrap();
    let logs = Folder::new();
    for name in ["empty", "talk"] {
        fs::copy(golden(&format!("v1/{name}.jsonl")), logs.log(&id(name))).unwrap();
    }
    let from = FileSystemStore::open(logs.path()).await.unwrap();
    let store = PostgresStore::builder(url).schema(DUMPED).open().await.unwrap();
    assert!(copy(&from, &store, |_, _| {}).await.is_complete());
    let mut dump = Command::new("pg_dump");
    dump.args(["--schema", DUMPED, "--inserts", "--no-owner", "--no-privileges", "--dbname", url]);
    let dumped = dump.output().unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    // Without the words to psql, which newer versions put around it.
    let lines = String::from_utf8(dumped.stdout).unwrap();
    let lines =
        lines.lines().filter(|line| !line.starts_with('\\') && !line.starts_with("--") && !line.is_empty());
    fs::write(golden("postgres-1.sql"), lines.collect::<Vec<_>>().join("\n") + "\n").unwrap();
}

//! Erased messages in the files of the server.

use std::{fs, path::Path};

use omni_agent::{
    message::{Message, ToolUse, TurnId},
    run::{PendingUse, RunEnd, RunOutcome},
    store::{
        Listing, Query, Store,
        custom::{Change, Commit, TurnRecord, Write},
    },
    tree::Erased,
};
use serde_json::json;

use super::{
    schema,
    server::{FORGETFUL, Server, fresh, raw},
};
use crate::support::{commit, create, id, node};

/// Returns the files below a folder that contain the text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path)
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn erased_text_is_gone_from_tables_and_indexes_after_vacuum_full() {
    let Some(server) = Server::start(FORGETFUL) else { return };
    let store = fresh(&server.url()).open().await.unwrap();
    store.create_search_index().await.unwrap();
    let word = "xylophonquartz";
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "It stays").await;
    let version = commit(&store, &id("a"), version, 2, &format!("{word} is secret")).await;
    let end = RunEnd::new(RunOutcome::Cancelled).with_unanswered(vec![Message::user(word).into()]);
    let failed = Commit::new(Some(node(2))).with_usage([]).with_run_end(end);
    let version = store.write(&id("a"), &Write::on(version), &Change::Commit(failed)).await.unwrap();
    let tool_use = ToolUse::new("1", "send", json!({ "text": word }));
    let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
    let record = TurnRecord::new(1, turn, json!({ "core": word }).to_string())
        .with_head(node(2))
        .with_append(vec![Message::user(word).into()])
        .with_waiting(vec![PendingUse::new(TurnId::default(), tool_use)]);
    let in_flight = Commit::new(Some(node(2))).with_usage([]).with_turn(record);
    let version = store.write(&id("a"), &Write::on(version), &Change::Commit(in_flight)).await.unwrap();

    let client = raw(&server.url()).await;
    let data: String = client.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
    let tables = Path::new(&data).join("base");
    client.batch_execute("CHECKPOINT").await.unwrap();
    assert!(!files_with(&tables, word).is_empty(), "the files can be searched");

    let erased: Erased = serde_json::from_value(json!({ "nodes": [2], "head": 1, "next": 3 })).unwrap();
    store.write(&id("a"), &Write::on(version), &Change::Erase(erased)).await.unwrap();
    let query: Query = word.parse().unwrap();
    let found = store.search(&query, &Listing::default()).await.unwrap();
    assert!(found.hits.is_empty(), "searches find nothing at once");
    for table in ["nodes", "files", "conversations", "runs", "turns", "approvals", "pending"] {
        let table = format!("{}.{table}", schema(&store));
        client.batch_execute(&format!("VACUUM FULL {table}")).await.unwrap();
    }
    client.batch_execute("CHECKPOINT").await.unwrap();
    assert_eq!(files_with(&tables, word), [""; 0]);
    assert_eq!(store.load(&id("a")).await.unwrap().nodes[0].message().text(), "It stays");
}

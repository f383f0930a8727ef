//! Every failure of the store, on every native route.

use std::collections::BTreeSet;

use omni_agent::store::StoreError;

use crate::{
    faulty::{FaultyStore, Operation},
    openapi,
    problems::{closed, over, store_errors},
    support::problem,
    table::{Entry, routes},
};

const OPERATIONS: [Operation; 11] = [
    Operation::Create,
    Operation::Commit,
    Operation::Save,
    Operation::Load,
    Operation::Summary,
    Operation::Delete,
    Operation::List,
    Operation::Search,
    Operation::Usage,
    Operation::Sums,
    Operation::Turns,
];

/// Returns whether the trait `Store` allows this failure of the operation.
fn is_allowed(operation: Operation, error: &StoreError) -> bool {
    use Operation::{Commit, Create, Delete, List, Load, Save, Search, Summary, Sums, Turns, Usage};
    match error {
        StoreError::AlreadyExists { .. } => operation == Create,
        StoreError::NotFound { .. } => matches!(operation, Commit | Save | Load | Summary | Usage),
        StoreError::Conflict { .. } | StoreError::Owned { .. } | StoreError::LeaseLost { .. } => {
            matches!(operation, Commit | Save | Delete)
        }
        StoreError::Full { .. } | StoreError::Unstorable { .. } => {
            matches!(operation, Create | Commit | Save)
        }
        StoreError::Unsupported { .. } => matches!(operation, List | Search | Usage | Sums | Turns),
        StoreError::InvalidQuery { .. } => operation == Search,
        _ => true,
    }
}

/// Returns the path of a request that the route accepts.
fn path(entry: &Entry, id: &str) -> String {
    let path = entry.path(id);
    match entry.path.as_str() {
        "/agent/events" => format!("{path}?list=true"),
        "/agent/search" => format!("{path}?q=hello"),
        "/agent/conversations/{id}/messages" => format!("{path}?before=1"),
        _ => path,
    }
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_store_is_a_documented_problem_of_every_route() {
    let (mut failed, mut undocumented) = (BTreeSet::new(), BTreeSet::new());
    for operation in OPERATIONS {
        for (error, ..) in store_errors().into_iter().filter(|(error, ..)| is_allowed(operation, error)) {
            let store = FaultyStore::default();
            let app = over(&store, []);
            for entry in routes().into_iter().filter(Entry::is_native) {
                store.mend();
                let id = closed(&app).await;
                store.fail(operation, error.clone());
                let mut request = entry.request("ann", &id);
                *request.uri_mut() = path(&entry, &id).parse().unwrap();
                let response = app.send(request).await;
                if response.status().is_success() {
                    continue;
                }
                let (status, code) = problem(response).await;
                let route = entry.path.strip_prefix("/agent").unwrap();
                if !openapi::has_problem(&entry.method, route, status, &code) {
                    undocumented.insert(format!("{} {route}: {status} {code}, {operation:?}", entry.method));
                }
                if matches!(error, StoreError::Unreachable { .. }) && code == "store-unreachable" {
                    failed.insert(entry.path);
                }
            }
        }
    }
    assert_eq!(undocumented, BTreeSet::new());
    let without_store =
        ["/agent/events", "/agent/openapi.json", "/agent/schema/commands", "/agent/schema/updates"];
    let others = routes().into_iter().filter(Entry::is_native).map(|entry| entry.path);
    assert_eq!(failed, others.filter(|path| !without_store.contains(&path.as_str())).collect());
}

#[tokio::test(start_paused = true)]
async fn title_and_labels_are_acknowledged_only_when_the_store_has_them() {
    let labels = serde_json::json!({ "type": "labels", "labels": { "user": "ben" } });
    for (user, command) in
        [("ann", serde_json::json!({ "type": "title", "title": "Plans" })), ("boss", labels)]
    {
        let store = FaultyStore::default();
        let app = over(&store, []);
        let id = app.create("ann").await;
        store.fail(Operation::Save, StoreError::failed("save", std::io::Error::other("no route")));
        let path = format!("/agent/conversations/{id}/commands");
        let answer = app.post(user, &path, command.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store-behind"), "{answer:?}");
        store.mend();
        let answer = app.post(user, &path, command).await;
        assert_eq!(answer.status.as_u16(), 200, "{answer:?}");
    }
}

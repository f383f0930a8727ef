//! Operations of a manager as JSON (`ManagerCommand`).

use omni_agent::{
    Error,
    manager::{Manager, ManagerCommand},
    session::{Mode, SessionEvent},
    store::{MemoryStore, Page},
    subscription::Update,
    testing::{Gate, Step},
};
use serde_json::{Value, json};

use crate::support::{alone, create, held, id, in_time, open_ids, parrot};

/// Runs a command that is given as JSON.
async fn perform(manager: &Manager, command: Value) -> Result<(), Error> {
    let read: ManagerCommand = serde_json::from_value(command.clone()).unwrap();
    assert_eq!(read.id().as_str(), command["id"]);
    assert_eq!(serde_json::to_value(&read).unwrap(), command);
    in_time(manager.perform(read)).await
}

async fn listed(manager: &Manager) -> Vec<(String, Option<String>, Option<String>)> {
    let listed = manager.list(Page::default()).await.unwrap();
    let user = |labels: &omni_agent::store::Labels| labels.get("user").map(str::to_owned);
    let entry = |summary: omni_agent::store::Summary| {
        let user = user(&summary.labels);
        (summary.id.to_string(), summary.title, user)
    };
    listed.into_iter().map(|listed| entry(listed.summary)).collect()
}

#[tokio::test(start_paused = true)]
async fn perform_runs_every_command() {
    let manager = Manager::builder(MemoryStore::new()).build();
    create(&manager, "a", parrot()).await;
    perform(&manager, json!({ "type": "rename", "id": "a", "title": "Lisbon" })).await.unwrap();
    perform(&manager, json!({ "type": "labels", "id": "a", "labels": { "user": "ann" } })).await.unwrap();
    assert_eq!(listed(&manager).await, [("a".into(), Some("Lisbon".into()), Some("ann".into()))]);

    perform(&manager, json!({ "type": "close", "id": "a" })).await.unwrap();
    assert!(open_ids(&manager).is_empty());
    // The conversation is not open any more.
    perform(&manager, json!({ "type": "rename", "id": "a", "title": null })).await.unwrap();
    perform(&manager, json!({ "type": "labels", "id": "a", "labels": {} })).await.unwrap();
    assert_eq!(listed(&manager).await, [("a".into(), None, None)]);

    perform(&manager, json!({ "type": "delete", "id": "a" })).await.unwrap();
    assert_eq!(listed(&manager).await, []);
}

#[tokio::test(start_paused = true)]
async fn perform_of_close_keeps_what_the_run_has_written() {
    let gate = Gate::new();
    let manager = Manager::builder(MemoryStore::new()).build();
    let session = create(&manager, "a", held(&gate)).await;
    let mut updates = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    perform(&manager, json!({ "type": "close", "id": "a" })).await.unwrap();
    let mut kept = None;
    while let Some(update) = in_time(updates.next()).await {
        let Update::Event(event) = update else { continue };
        if let SessionEvent::Tree(changes) = &*event.event {
            kept = changes.nodes.last().map(|node| node.message().text());
        }
    }
    assert_eq!(kept.as_deref(), Some("Half"));
    let reopened =
        manager.open(&id("a"), alone(crate::support::scripted([Step::text("More.")]))).await.unwrap();
    assert_eq!(reopened.session.tree().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn perform_fails_as_the_operation_does() {
    let manager = Manager::builder(MemoryStore::new()).build();
    for command in [
        json!({ "type": "rename", "id": "missing", "title": "A title" }),
        json!({ "type": "labels", "id": "missing", "labels": { "user": "ann" } }),
    ] {
        assert!(perform(&manager, command).await.unwrap_err().is_not_found());
    }
    // Nothing is open, and nothing is stored.
    perform(&manager, json!({ "type": "close", "id": "missing" })).await.unwrap();
    perform(&manager, json!({ "type": "delete", "id": "missing" })).await.unwrap();
}

#[test]
fn invalid_command_is_refused_with_the_reason() {
    let error = |command: Value| serde_json::from_value::<ManagerCommand>(command).unwrap_err().to_string();
    let unknown = error(json!({ "type": "delete_all" }));
    assert!(unknown.contains("unknown variant `delete_all`, expected one of `rename`"), "{unknown}");
    let invalid = error(json!({ "type": "close", "id": "../secrets" }));
    assert!(invalid.contains("dot"), "{invalid}");
    let missing = error(json!({ "type": "delete" }));
    assert!(missing.contains("missing field `id`"), "{missing}");
}

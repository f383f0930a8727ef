//! What an editor sees of a session.

use serde_json::Value;

use super::*;
use crate::{
    agent::Agent,
    message::StopReason,
    provider::{ProviderError, ProviderErrorKind},
    session::{
        Session,
        tests::decided::{decided, left_open},
    },
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
};

#[tokio::test]
async fn replay_states_the_decisions_about_tool_uses_and_the_unusual_end_of_an_answer() {
    for (reason, ended) in [(StopReason::Length, json!("length")), (StopReason::Stop, Value::Null)] {
        let snapshot = decided(&MemoryStore::new(), reason).await.snapshot().await.unwrap();
        let updates = EditorView::new(String::new()).join(&snapshot, EditorJoinMode::Loaded);
        let updates: Vec<_> = updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect();
        let results: Vec<_> =
            updates.iter().filter(|one| one["sessionUpdate"] == "tool_call_update").collect();
        let decision = |place: usize| &results[place]["_meta"]["omni.decision"];
        assert_eq!(results[0]["rawInput"], json!({ "eur": 20 }));
        assert_eq!(results[0]["content"][0]["content"]["text"], "paid {\"eur\":20}");
        assert_eq!((&decision(0)["kind"], &decision(0)["by"]), (&json!("execute_with"), &json!("ann")));
        assert_eq!((&decision(1)["kind"], &decision(1)["by"]), (&json!("reject"), &json!("ben")));
        assert_eq!(decision(2), &Value::Null);
        assert_eq!(updates.last().unwrap()["_meta"]["omni.ended"], ended);
    }
}

#[tokio::test]
async fn replay_ends_with_the_newest_failed_prompt_and_its_error() {
    let down = || Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"));
    let provider = ScriptedProvider::new([Step::text("One."), down(), down(), Step::text("Two.")]);
    let agent = Agent::builder().model(provider.model());
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let replay = async || {
        let snapshot = session.snapshot().await.unwrap();
        let updates = EditorView::new(String::new()).join(&snapshot, EditorJoinMode::Loaded);
        updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect::<Vec<_>>()
    };
    session.ask("Hi").await.unwrap();
    session.ask("Second").await.unwrap_err();
    session.ask("Third").await.unwrap_err();
    let updates = replay().await;
    let texts: Vec<_> = updates.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Hi", "One.", "Third"]);
    assert!(updates[2]["_meta"]["omni.error"].as_str().unwrap().contains("no key"), "{updates:?}");
    let node = session.snapshot().await.unwrap().unanswered().unwrap().0.id();
    session.again(node).response().await.unwrap();
    let updates = replay().await;
    assert_eq!((updates.len(), &updates[2]["_meta"]), (4, &Value::Null));
}

#[tokio::test]
async fn replay_states_decisions_of_a_turn_that_left_tool_uses_open() {
    let snapshot = left_open(&MemoryStore::new()).await.snapshot().await.unwrap();
    let updates = EditorView::new(String::new()).join(&snapshot, EditorJoinMode::Loaded);
    let updates = serde_json::to_value(updates).unwrap();
    let decided = |update: &&Value| update["_meta"]["omni.decision"]["by"] == "ben";
    let decided: Vec<_> = updates.as_array().unwrap().iter().filter(decided).collect();
    assert_eq!((decided.len(), &decided[0]["status"]), (1, &json!("failed")), "{updates}");
}

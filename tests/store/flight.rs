//! A conversation with a turn in flight that uses every member of a record, for golden files.

use std::time::Duration;

use omni_agent::{
    message::{Message, MessageId, Purpose, RequestEnd, Timestamp, ToolUse, TurnId, Usage, UsageRow},
    run::{KnownPrompt, PendingUse, PromptState, RunEnd, RunOutcome},
    store::{
        Listing, Page, Store,
        custom::{BranchPoint, Change, Commit, Lease, StoredState, TurnRecord, Turns, Write},
    },
    subscription::EventId,
    tool::Decision,
    tree::{Node, NodeId},
};
use serde_json::json;

use crate::support::{id, node};

fn tool_use(id: &str) -> ToolUse {
    ToolUse::new(id, "send", json!({ "to": "ann" }))
}

fn row() -> UsageRow {
    let usage = Usage::default().with_input(7).with_cost(0.25);
    UsageRow::new(RequestEnd::Void, usage)
        .with_at(Timestamp(1_763_769_600_000))
        .with_model("a model".to_owned())
        .with_turn(Some("00112233445566778899aabbccddeeff".parse().unwrap()))
        .with_step(2)
        .with_message(MessageId::new("a message"))
        .with_purpose(Purpose::Answer)
}

pub(crate) fn known(id: &str) -> KnownPrompt {
    KnownPrompt::new(id, PromptState::Ended { outcome: RunOutcome::Abandoned }).with_through(node(2))
}

pub(crate) fn record() -> TurnRecord {
    let pending = Message::user("A pending message").with_timestamp(Timestamp(9));
    let turn: TurnId = "00112233445566778899aabbccddeeff".parse().unwrap();
    let first = PendingUse::new(turn, tool_use("call 1"))
        .with_reason(json!({ "why": "money" }))
        .with_limit(Duration::from_mins(1))
        .with_on_expiry(Decision::Execute);
    TurnRecord::new(1, turn, r#"{"phase":"paused"}"#)
        .with_lives(2)
        .with_orderly(true)
        .with_head(node(2))
        .with_branch(BranchPoint::new(NodeId::new(1)).with_answers(node(1)))
        .with_append(vec![pending.into()])
        .with_waiting(vec![first, PendingUse::new(turn, tool_use("call 3")).with_survives(false)])
        .with_prompts(vec![
            known("p1"),
            KnownPrompt::new("p2", PromptState::InFlight { turn: TurnId::default() }),
        ])
        .with_spent(Duration::from_millis(1500))
}

/// Creates the conversation `flight` with a turn in flight, a mark (the last event of the session's feed), ids of
/// messages and data of the application. Also creates the conversation `known`, which has the end of a run with known
/// prompts.
pub(crate) async fn create_flight(store: &dyn Store) {
    let flight = id("flight");
    let version =
        store.write(&flight, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let question = Message::user("Why?").with_id("a prompt").with_app_data(json!({ "from": "web" }));
    let answer = Message::assistant("Because.").with_id("a message");
    let nodes = [question, answer].into_iter().zip(1..).map(|(message, number)| {
        Node::new(node(number), NodeId::new(number - 1), message.with_timestamp(Timestamp(number)))
    });
    let turn = Commit::new(Some(node(2))).with_nodes(nodes).with_usage([row()]);
    let version = store.write(&flight, &Write::on(version), &Change::Commit(turn)).await.unwrap();
    let commit = Commit::new(Some(node(2))).with_usage([]).with_turn(record().with_mark(EventId::new(7, 11)));
    store.write(&flight, &Write::on(version), &Change::Commit(commit)).await.unwrap();

    let known_id = id("known");
    let version =
        store.write(&known_id, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let end =
        RunEnd::new(RunOutcome::Discarded).with_prompts(vec![known("p3")]).with_mark(EventId::new(7, 12));
    let ended = Commit::new(None).with_usage([]).with_run_end(end);
    store.write(&known_id, &Write::on(version), &Change::Commit(ended)).await.unwrap();
    store.release(&known_id, &Lease::unlimited(), Some(EventId::new(7, 13))).await.unwrap();
}

/// Checks the conversations that [`create_flight`] has created.
pub(crate) async fn check_flight(store: &dyn Store) {
    let stored = store.load(&id("flight")).await.unwrap();
    let turn = stored.turn.unwrap();
    assert_eq!((&turn.record, &turn.damage), (&record(), &None));
    assert_eq!(turn.approvals()[0].expires.unwrap().0, turn.since.0 + 60_000);
    assert_eq!(stored.mark, Some(EventId::new(7, 11)));
    let message = stored.nodes[0].message();
    assert_eq!((message.id.clone(), message.app_data.is_some()), (Some(MessageId::new("a prompt")), true));
    assert_eq!(store.usage(&id("flight"), &Page::default()).await.unwrap(), [row()]);
    let left = store.turns(Turns::Left, &Listing::default()).await.unwrap();
    assert_eq!((left.len(), left[0].lives, left[0].orderly), (1, 2, true));
    assert_eq!(store.summary(&id("flight")).await.unwrap().waiting, 2);
    let known_run = store.load(&id("known")).await.unwrap();
    assert_eq!(known_run.last_run.unwrap().prompts, [known("p3")]);
    assert!(known_run.mark.is_some());
}

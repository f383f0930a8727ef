//! Random runs at both levels of the protocol. A second client joins at any event. Both clients miss events and get
//! snapshots in their place. The frames follow the rules of the protocol, and folding them gives the list of messages.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::rig::{Client, LEVELS, check, finish, fold, lasting, listed, session, submit};
use crate::{
    agent::Status,
    message::Usage,
    testing::Step,
    tool::Decision,
    tree::Node,
    web::ui_messages::{AiSdkRunToStream, AiSdkVersion},
};

/// A block of a scripted response.
#[derive(Clone, Debug)]
enum Block {
    Text(Vec<String>),
    Thinking(String),
    Clock,
    Delete,
    Malformed,
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        4 => prop::collection::vec("[a-zé]{0,4}", 0..4).prop_map(Block::Text),
        2 => "[a-z]{0,3}".prop_map(Block::Thinking),
        2 => Just(Block::Clock),
        1 => Just(Block::Delete),
        1 => Just(Block::Malformed),
    ]
}

fn script(steps: &[Vec<Block>]) -> Vec<Step> {
    let mut uses = 0;
    let mut scripted: Vec<Step> = Vec::new();
    for blocks in steps {
        let mut step = Step::new();
        for block in blocks {
            uses += 1;
            let id = format!("t{uses}");
            step = match block {
                Block::Text(pieces) => step.then_text(pieces.clone()),
                Block::Thinking(text) => step.then_thinking(text, "signed"),
                Block::Clock => step.then_tool_use(&id, "clock", json!({ "zone": "UTC" })),
                Block::Delete => step.then_tool_use(&id, "delete", json!({ "zone": id })),
                Block::Malformed => step.then_raw_tool_use(&id, "clock", &["{", "oops"]),
            };
        }
        scripted.push(step.stop());
    }
    // Each step that uses tools is followed by another step, so the last step uses no tools.
    scripted.push(Step::text("The end."));
    scripted
}

/// Runs the script. After `join` events, a second client resumes. `misses` states at which events the clients miss how
/// many events. Decisions are made by hand while the run is paused.
async fn play(
    steps: Vec<Vec<Block>>,
    level: AiSdkVersion,
    join: usize,
    misses: &BTreeMap<usize, usize>,
    approves: bool,
) {
    let session = session(script(&steps)).await;
    let mut client = Client::post(&session, level, submit(&[], "u1", "Hi")).await.unwrap();
    let mut second = None;
    for event in 0.. {
        if event == join {
            let status = session.snapshot().await.unwrap().agent.status;
            if status == Status::Busy {
                second = Some(Client::start(&session, level, |_| (AiSdkRunToStream::InFlight, None)).await);
            }
        }
        if client.stream.is_ended() {
            break;
        }
        client.step_or_miss(event, misses).await;
    }
    let frames = client.finish().await;
    check(level, &frames);
    if let Some(second) = second {
        let second = second.finish_missing(misses).await;
        check(level, &second);
        assert_eq!(lasting(fold(&frames)), lasting(fold(&second)));
    }
    assert_eq!(lasting(fold(&frames)), listed(&session, level).await);
    let metadata = &finish(&frames)["messageMetadata"];
    if metadata["paused"] != true {
        let tree = session.tree().await.unwrap();
        let nodes: Vec<_> = tree.iter().map(Node::id).collect();
        let usage = tree.iter().filter_map(Node::usage).fold(Usage::default(), |sum, usage| sum + *usage);
        assert_eq!((&metadata["nodes"], &metadata["usage"]), (&json!(nodes), &json!(usage)));
    }

    // If the run was paused, decide, and read the rest of the run.
    let mut parts = fold(&frames);
    while session.snapshot().await.unwrap().agent.status == Status::Paused {
        let client = Client::start(&session, level, |_| (AiSdkRunToStream::Decisions, None)).await;
        for pause in session.snapshot().await.unwrap().agent.pauses {
            let decision = if approves { Decision::Execute } else { Decision::reject("No.") };
            session.resume(pause.tool_use.id.clone(), decision).await.unwrap();
        }
        let frames = client.finish_missing(misses).await;
        parts = super::rig::fold_onto(parts, &frames);
    }
    let snapshot = session.snapshot().await.unwrap();
    let said: String = snapshot.messages().skip(1).map(|message| message.text()).collect();
    let shown: String =
        parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["text"].as_str()).collect();
    assert_eq!(shown, said, "the fold of all frames has the text of the snapshot");
    let is_open = |part: &&serde_json::Value| {
        part.get("toolCallId").is_some()
            && part["state"] != "output-denied"
            && part["state"] != "output-error"
            && part["state"] != "output-available"
    };
    assert_eq!(parts.iter().find(is_open), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_of_any_run_fold_to_the_list(
        steps in prop::collection::vec(prop::collection::vec(block(), 0..4), 0..4),
        join in 0..30_usize,
        misses in prop::collection::btree_map(0..40_usize, 1..12_usize, 0..5),
        approves in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.unwrap();
        for level in LEVELS {
            runtime.block_on(play(steps.clone(), level, join, &misses, approves));
        }
    }
}

//! Any order of decisions, time limits, cancels and interrupts answers each tool use exactly once.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;

use crate::{
    agent::{Agent, AgentError, Event, Status, ToolDecision},
    message::{ToolResult, ToolUse},
    testing::Step,
    tool::{Decision, Tool},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, noting},
    support::{ends_run, scripted},
};

const TOOLS: [&str; 4] = ["a", "b", "c", "d"];

/// The operations that disturb a run.
#[derive(Clone, Debug)]
enum Op {
    Resume(usize, Decision),
    Wait(u64),
    Interrupt,
    Cancel,
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        Just(Decision::Execute),
        Just(Decision::ExecuteWith(json!({ "n": 9 }))),
        Just(Decision::reject("No.")),
        Just(Decision::Provide(ToolResult::ok(&ToolUse::new("x", "x", json!({})), "Provided."))),
    ]
}

fn answer() -> impl Strategy<Value = ToolDecision> {
    prop_oneof![
        3 => Just(ToolDecision::Pause(Value::Null)),
        3 => (1_u64..30, decision()).prop_map(|(seconds, on_expiry)| ToolDecision::PauseFor {
            reason: Value::Null,
            expires_in: Duration::from_secs(seconds),
            on_expiry,
        }),
        1 => Just(ToolDecision::Approve),
        4 => decision().prop_map(ToolDecision::from),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..TOOLS.len(), decision()).prop_map(|(index, decision)| Op::Resume(index, decision)),
        6 => (0_u64..20).prop_map(Op::Wait),
        1 => Just(Op::Interrupt),
        1 => Just(Op::Cancel),
    ]
}

/// Applies an operation. It may come too late, but it must not fail in another way.
async fn apply(agent: &Agent, op: Op) {
    let done = match op {
        Op::Resume(index, decision) => agent.resume(index.to_string(), decision).await,
        Op::Wait(seconds) => {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(())
        }
        Op::Interrupt => agent.interrupt().await,
        Op::Cancel => agent.cancel().await,
    };
    match done {
        Ok(()) | Err(AgentError::Idle | AgentError::NotPaused(_) | AgentError::StaleResume { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

async fn play(answers: Vec<ToolDecision>, approvals: Vec<bool>, ops: Vec<Op>) {
    let uses = (0..TOOLS.len()).fold(Step::new(), |step, index| {
        step.then_tool_use(&index.to_string(), TOOLS[index], json!({ "n": index }))
    });
    let (_, mut builder) = scripted([uses.stop(), Step::text("Done.")]);
    let log = Log::default();
    for (tool, needs_approval) in TOOLS.into_iter().zip(approvals) {
        let tool = noting(tool, &log);
        builder = if needs_approval { builder.tool(tool.needs_approval()) } else { builder.tool(tool) };
    }
    let hooks = Hooks::new().deciding(TOOLS.into_iter().zip(answers));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    for op in ops {
        apply(&agent.agent, op).await;
    }
    while agent.agent.status().await.unwrap() == Status::Paused {
        for pause in agent.agent.snapshot().await.unwrap().pauses {
            let decided = agent.agent.resume(pause.tool_use.id, Decision::reject("Enough.")).await;
            assert!(matches!(decided, Ok(()) | Err(AgentError::StaleResume { .. })), "{decided:?}");
        }
    }

    let (mut results, mut decided) = (HashMap::<String, u32>::new(), HashMap::<String, u32>::new());
    loop {
        let event = agent.next().await;
        match &*event {
            Event::ToolResult { result, .. } => {
                *results.entry(result.tool_use_id.to_string()).or_default() += 1;
            }
            Event::Decided(made) => *decided.entry(made.tool_use_id.to_string()).or_default() += 1,
            _ => {}
        }
        if ends_run(&event) {
            break;
        }
    }
    agent.check().await;
    assert!(results.values().chain(decided.values()).all(|count| *count == 1), "{results:?} {decided:?}");
    let history = agent.agent.state().await.unwrap().history().clone();
    history.check_sendable().unwrap();
    // A cancelled run leaves nothing. Any other run answers each tool use.
    let answered: usize = history.iter().map(|message| message.tool_results().count()).sum();
    assert_eq!(answered, if history.is_empty() { 0 } else { TOOLS.len() });
    let runs: Vec<_> = log.all().iter().map(|line| line[..1].to_owned()).collect();
    assert!(runs.iter().all(|tool| runs.iter().filter(|other| *other == tool).count() == 1), "{runs:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pauses_decisions_and_ends_in_any_order_answer_each_tool_use_once(
        answers in prop::collection::vec(answer(), TOOLS.len()),
        approvals in prop::collection::vec(any::<bool>(), TOOLS.len()),
        ops in prop::collection::vec(op(), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(play(answers, approvals, ops));
    }
}

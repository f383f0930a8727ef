//! Any order of decisions, time limits, cancels and interrupts answers each tool use, and each question of a running
//! tool, at most once.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join;
use proptest::prelude::*;

use crate::{
    agent::{Agent, Event, Status, ToolDecision},
    message::{ToolResult, ToolUse},
    run::ErrorKind,
    testing::Step,
    tool::{Decision, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched},
    support::{ends_run, scripted},
};

const TOOLS: [&str; 4] = ["a", "b", "c", "d"];

/// The operations that disturb a run.
#[derive(Clone, Debug)]
enum Op {
    Resume(usize, Decision),
    /// Answers a question of a tool, by the index of the tool and the number of the question.
    Answer(usize, u32, Decision),
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
        8 => (0..TOOLS.len(), 1_u32..4, decision()).prop_map(|(index, number, decision)| Op::Answer(index, number, decision)),
        6 => (0_u64..20).prop_map(Op::Wait),
        1 => Just(Op::Interrupt),
        1 => Just(Op::Cancel),
    ]
}

/// Applies an operation. The operation may come too late, but it must not fail in another way.
async fn apply(agent: &Agent, op: Op) {
    let done = match op {
        Op::Resume(index, decision) => agent.resume(index.to_string(), decision).await,
        Op::Answer(index, number, decision) => agent.resume(format!("{index}?{number}"), decision).await,
        Op::Wait(seconds) => {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(())
        }
        Op::Interrupt => agent.interrupt().await,
        Op::Cancel => agent.cancel().await,
    };
    let late = [ErrorKind::Idle, ErrorKind::NotPaused, ErrorKind::StaleDecision];
    assert!(done.as_ref().err().is_none_or(|error| late.contains(&error.kind())), "{done:?}");
}

/// Returns a tool that logs its call and asks `questions` questions. It waits at most ten seconds for each answer.
fn asking(name: &'static str, questions: u32, log: &Log<String>) -> impl Tool + use<> {
    let log = log.clone();
    tool_fn(name, "Notes its call, and asks.", move |_: Value, context: ToolContext| {
        log.push(name);
        async move {
            let ask = |number| tokio::time::timeout(Duration::from_secs(10), context.ask(json!(number)));
            match questions {
                0 => {}
                1 => drop(ask(1).await),
                // The tool asks two questions at once, and then a third one.
                _ => {
                    drop(join(ask(1), ask(2)).await);
                    drop(ask(3).await);
                }
            }
            Ok("done")
        }
    })
}

async fn play(answers: Vec<ToolDecision>, approvals: Vec<bool>, questions: Vec<u32>, ops: Vec<Op>) {
    let uses = (0..TOOLS.len()).fold(Step::new(), |step, index| {
        step.then_tool_use(&index.to_string(), TOOLS[index], json!({ "n": index }))
    });
    let (_, mut builder) = scripted([uses.stop(), Step::text("Done.")]);
    let log = Log::default();
    for ((tool, needs_approval), questions) in TOOLS.into_iter().zip(approvals).zip(questions) {
        let tool = asking(tool, questions, &log);
        builder = if needs_approval { builder.tool(tool.needs_approval()) } else { builder.tool(tool) };
    }
    let hooks = Hooks::new().deciding(TOOLS.into_iter().zip(answers));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    for op in ops {
        apply(&agent.agent, op).await;
    }
    let (mut results, mut decided) = (HashMap::<String, u32>::new(), HashMap::<String, u32>::new());
    loop {
        let event = agent.next().await;
        match &*event {
            Event::Status { status: Status::Paused, pauses } => {
                for pause in pauses {
                    let decided =
                        agent.agent.resume(pause.tool_use.id.clone(), Decision::reject("Enough.")).await;
                    let late = matches!(&decided, Err(error) if matches!(error.kind(), ErrorKind::StaleDecision | ErrorKind::NotPaused));
                    assert!(late || decided.is_ok(), "{decided:?}");
                }
            }
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
    // A cancelled run leaves no messages in the history. Any other run answers each tool use.
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
        questions in prop::collection::vec(0_u32..3, TOOLS.len()),
        ops in prop::collection::vec(op(), 0..16),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(play(answers, approvals, questions, ops));
    }
}

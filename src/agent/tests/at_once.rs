//! The bound on the tools of a step that run at once.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    hooks::{Log, Watched, results, stopped},
    support::{names, scripted},
};
use crate::{
    agent::{Agent, AgentBuilder, SubAgent},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, ToolLimits, tool_fn},
};

/// A tool that notes its use, and ends when its gate is opened.
fn gated(log: &Log<String>, gate: &Gate) -> impl Tool + use<> {
    let (log, gate) = (log.clone(), gate.clone());
    tool_fn("work", "Works.", move |_: Value, context: ToolContext| {
        log.push(context.tool_use_id().to_string());
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(context.tool_use_id().to_string())
        }
    })
}

/// A step that uses the tools with these names. The ids are numbers.
fn uses<'a>(names: impl IntoIterator<Item = &'a str>) -> Step {
    let names = names.into_iter().enumerate();
    names
        .fold(Step::new(), |step, (at, name)| {
            step.then_tool_use(&at.to_string(), name, json!({ "task": "Go." }))
        })
        .stop()
}

/// Starts an agent whose first step uses these tools, and prompts it.
async fn running<'a>(
    at_once: Option<usize>,
    names: impl IntoIterator<Item = &'a str>,
    build: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> Watched {
    let (_, builder) = scripted([uses(names), Step::text("Done.")]);
    let limits = ToolLimits::default().with_timeout(Duration::MAX);
    let limits = at_once.map_or(limits, |at_once| limits.with_at_once(at_once));
    let agent = Watched::start(build(builder.tool_limits(limits))).await;
    agent.agent.prompt("Go").await.unwrap();
    agent
}

/// Lets all tasks run until they wait.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn tools_beyond_the_bound_start_in_order_when_others_end() {
    for (at_once, count, first) in [(Some(2), 5, 2), (Some(0), 3, 1), (Some(9), 3, 3), (None, 40, 32)] {
        let (log, gate) = (Log::default(), Gate::new());
        let mut agent =
            running(at_once, vec!["work"; count], |builder| builder.tool(gated(&log, &gate))).await;
        for ended in 0..count {
            settle().await;
            let started: Vec<_> = (0..count.min(first + ended)).map(|at| at.to_string()).collect();
            assert_eq!(log.all(), started, "{at_once:?}, {ended} have ended");
            assert_eq!(agent.agent.snapshot().await.unwrap().tools.len(), started.len());
            gate.open();
        }
        let events = agent.end().await;
        let texts: Vec<_> = results(&events).into_iter().map(|(result, _)| result.text()).collect();
        assert_eq!(texts, (0..count).map(|at| at.to_string()).collect::<Vec<_>>());
        assert_eq!(stopped(&events).text(), "Done.");
    }
}

#[tokio::test(start_paused = true)]
async fn start_of_a_tool_that_waits_is_reported_after_the_end_of_another_one() {
    let (log, gate) = (Log::default(), Gate::new());
    let mut agent = running(Some(1), ["work"; 2], |builder| builder.tool(gated(&log, &gate))).await;
    (0..2).for_each(|_| gate.open());
    let names = names(&agent.end().await);
    let of_tools: Vec<_> = names.iter().filter(|name| name.starts_with("tool_")).collect();
    let expected = ["tool_start(0)", "tool_end(0)", "tool_start(1)", "tool_end(1)"];
    assert_eq!(of_tools[of_tools.len() - 6..of_tools.len() - 2], expected);
}

#[tokio::test(start_paused = true)]
async fn interrupt_reports_tools_that_wait_as_not_run() {
    let (log, gate) = (Log::default(), Gate::new());
    let mut agent = running(Some(1), ["work"; 2], |builder| builder.tool(gated(&log, &gate))).await;
    settle().await;
    agent.agent.interrupt().await.unwrap();
    let texts: Vec<_> = results(&agent.end().await).into_iter().map(|(result, _)| result.text()).collect();
    assert_eq!(
        texts,
        [
            "Interrupted while the tool was running. It may have had an effect.",
            "Interrupted. The tool was not run."
        ]
    );
    assert_eq!(log.all(), ["0"]);
}

#[tokio::test(start_paused = true)]
async fn tool_with_a_question_leaves_its_place_to_another_tool() {
    let (log, gate) = (Log::default(), Gate::new());
    let ask = tool_fn("ask", "Asks.", |_: Value, context: ToolContext| async move {
        Ok(format!("{:?}", context.ask(json!("which?")).await))
    });
    let build = |builder: AgentBuilder| builder.tool(ask).tool(gated(&log, &gate));
    let mut agent = running(Some(1), ["ask", "work", "work"], build).await;
    settle().await;
    assert_eq!(log.all(), ["1"], "the question waits, so the next tool runs");
    agent.agent.resume("0?1", Decision::Execute).await.unwrap();
    (0..2).for_each(|_| gate.open());
    assert_eq!(results(&agent.end().await).len(), 3);
    assert_eq!(log.all(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_beyond_the_bound_run_one_after_the_other() {
    let log = Log::<String>::default();
    let noted = log.clone();
    let start = move |_: &ToolContext| {
        let model = ScriptedProvider::new([uses(["delete"]), Step::text("Deleted.")]).model();
        let noted = noted.clone();
        let delete = tool_fn("delete", "Deletes.", move |_: Value, _| {
            noted.push("deleted".to_owned());
            async { Ok("gone") }
        });
        Agent::builder().model(model).tool(delete.needs_approval())
    };
    let sub_agent = SubAgent::new("files", "Works on files.", start);
    let mut agent = running(Some(1), ["files"; 3], |builder| builder.tool(sub_agent)).await;
    // Each sub-agent waits for a decision, and so leaves its place to the next one.
    settle().await;
    let pauses = agent.agent.snapshot().await.unwrap().pauses;
    assert_eq!(pauses.len(), 3);
    for pause in pauses {
        agent.agent.resume(pause.tool_use.id.clone(), Decision::Execute).await.unwrap();
    }
    let events = agent.end().await;
    assert_eq!(results(&events).iter().filter(|(result, _)| result.text() == "Deleted.").count(), 3);
    assert_eq!(log.all().len(), 3);
}

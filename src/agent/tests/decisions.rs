//! Decisions on tool uses: `handle_tool_use`, pauses and `resume`, `handle_tool_result`.

use crate::{
    agent::{Event, PendingUse, Status, ToolDecision},
    message::{Text, ToolResult, ToolUse},
    run::ErrorKind,
    testing::{Gate, Step},
    tool::Decision,
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, declared, noting, reached, results, sent},
    support::{name, names, scripted},
};

fn use_of(names: &[&str]) -> Step {
    let step = names.iter().enumerate();
    step.fold(Step::new(), |step, (n, name)| step.then_tool_use(&format!("{n}"), name, json!({ "n": n })))
        .stop()
}

/// Returns an agent whose tools log their calls. The agent's model uses all tools in one step and then answers "Done.".
async fn agent_with(
    tools: &[&'static str],
    hooks: Hooks,
) -> (Watched, crate::testing::ScriptedProvider, Log<String>) {
    let (provider, mut builder) = scripted([use_of(tools), Step::text("Done.")]);
    let log = Log::default();
    for tool in tools {
        builder = builder.tool(noting(tool, &log));
    }
    (Watched::start(builder.callbacks(hooks)).await, provider, log)
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_execute_runs_the_tool_with_the_models_input() {
    let (mut agent, _, log) = agent_with(&["look"], Hooks::new()).await;
    let results = results(&agent.run("Go").await);
    assert_eq!(log.all(), [r#"look {"n":0}"#]);
    let (result, input) = &results[0];
    assert_eq!((result.text(), result.is_error, input), ("look done".into(), false, &None));
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_execute_with_keeps_the_models_input_in_the_history() {
    let hooks = Hooks::new().deciding([("look", ToolDecision::ExecuteWith(json!({ "n": 9 })))]);
    let (mut agent, provider, log) = agent_with(&["look"], hooks).await;
    let events = agent.run("Go").await;
    assert_eq!(log.all(), [r#"look {"n":9}"#]);
    assert_eq!(results(&events)[0].1, Some(json!({ "n": 9 })));
    let asked = provider.requests()[1].history.get(1).unwrap().tool_uses().next().unwrap().clone();
    assert_eq!(asked, ToolUse::new("0", "look", json!({ "n": 0 })));
    let committed =
        agent.agent.state().await.unwrap().history().get(1).unwrap().tool_uses().next().unwrap().clone();
    assert_eq!(committed, asked);
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_execute_with_repairs_malformed_input() {
    let (provider, builder) =
        scripted([Step::new().then_raw_tool_use("0", "look", &["{\"n\": "]).stop(), Step::text("Done.")]);
    let log = Log::default();
    let hooks = Hooks::new().on_tool_use(|tool_use, _| {
        assert_eq!((tool_use.malformed.as_deref(), &tool_use.input), (Some("{\"n\": "), &json!({})));
        ToolDecision::ExecuteWith(json!({ "n": 1 }))
    });
    let mut agent = Watched::start(builder.tool(noting("look", &log)).callbacks(hooks)).await;
    agent.run("Go").await;
    assert_eq!(log.all(), [r#"look {"n":1}"#]);
    let asked = provider.requests()[1].history.get(1).unwrap().tool_uses().next().unwrap().clone();
    assert_eq!(asked.malformed.as_deref(), Some("{\"n\": "));
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_reject_gives_the_model_an_error_result() {
    let hooks = Hooks::new().deciding([("look", ToolDecision::Reject("Not today.".into()))]);
    let (mut agent, provider, log) = agent_with(&["look"], hooks).await;
    let events = agent.run("Go").await;
    assert!(log.all().is_empty());
    let (result, input) = results(&events).remove(0);
    assert_eq!((result.text(), result.is_error, input), ("Not today.".into(), true, None));
    let closing = provider.requests()[1].history.last().unwrap().clone();
    assert_eq!(closing.tool_results().collect::<Vec<_>>(), [&result]);
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_provide_gives_the_model_the_provided_result() {
    let stranger = ToolUse::new("other", "other", json!({}));
    let ready = ToolResult::ok(&stranger, Text::new("From the cache"));
    let hooks = Hooks::new().deciding([("look", ToolDecision::Provide(ready))]);
    let (mut agent, provider, log) = agent_with(&["look"], hooks).await;
    agent.run("Go").await;
    assert!(log.all().is_empty());
    let closing = provider.requests()[1].history.last().unwrap().clone();
    let result = closing.tool_results().next().unwrap();
    assert_eq!(
        (result.tool_use_id.as_str(), &*result.name, result.text()),
        ("0", "look", "From the cache".into())
    );
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_pause_holds_the_other_uses_and_reports_the_reason() {
    let asked = Log::<String>::default();
    let noted = asked.clone();
    let hooks = Hooks::new().on_tool_use(move |tool_use, _| {
        noted.push(tool_use.name.as_str());
        if tool_use.name == "b" {
            ToolDecision::Pause(json!({ "ask": "Bob" }))
        } else {
            ToolDecision::Execute
        }
    });
    let (mut agent, _, log) = agent_with(&["a", "b", "c"], hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause(1)").await;
    let order = names(&events);
    assert_eq!(order[order.len() - 2..], ["step", "status(paused 1)"]);
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    let PendingUse { tool_use, reason, .. } = &*pauses[0];
    assert_eq!((tool_use.id.as_str(), reason), ("1", &json!({ "ask": "Bob" })));
    assert_eq!(asked.all(), ["a", "b", "c"], "all uses are asked about before the pause");
    assert!(log.all().is_empty(), "no tool runs before all uses are decided");
    agent.check().await;
    assert_eq!(agent.agent.snapshot().await.unwrap().pauses, *pauses);
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused);

    agent.agent.resume("1", Decision::Execute).await.unwrap();
    let order = names(&agent.end().await);
    assert_eq!(
        order[..12],
        [
            "status(busy)",
            "decided(1)",
            "tool_start(0)",
            "tool_start(1)",
            "tool_start(2)",
            "tool_end(0)",
            "tool_end(1)",
            "tool_end(2)",
            "tool_result(0)",
            "tool_result(1)",
            "tool_result(2)",
            "message(user)"
        ]
    );
    assert_eq!(
        asked.all(),
        ["a", "b", "c"],
        "handle_tool_use is not called again for a use that resume decided"
    );
    assert_eq!(log.all().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_pause_twice_in_a_step_waits_for_both() {
    let hooks = Hooks::new().on_tool_use(|tool_use, _| ToolDecision::Pause(json!(tool_use.name)));
    let (mut agent, _, log) = agent_with(&["a", "b"], hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    let order = names(&agent.until("pause(1)").await);
    assert_eq!(order.last().unwrap(), "status(paused 0 1)");
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    assert_eq!(names(&agent.until("decided(0)").await), ["status(paused 1)", "decided(0)"]);
    let late = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::StaleDecision, "{late:?}");
    agent.agent.resume("1", Decision::reject("No.")).await.unwrap();
    let results = results(&agent.end().await);
    assert_eq!(log.all(), [r#"a {"n":0}"#]);
    assert_eq!(results.iter().map(|(result, _)| result.is_error).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn resume_accepts_every_decision() {
    let stranger = ToolUse::new("other", "other", json!({}));
    let cases: [(Decision, &[&str], &str, Option<Value>); 4] = [
        (Decision::Execute, &[r#"look {"n":0}"#], "look done", None),
        (
            Decision::ExecuteWith(json!({ "n": 5 })),
            &[r#"look {"n":5}"#],
            "look done",
            Some(json!({ "n": 5 })),
        ),
        (Decision::reject("No."), &[], "No.", None),
        (Decision::Provide(ToolResult::ok(&stranger, "Mine.")), &[], "Mine.", None),
    ];
    for (decision, ran, text, input) in cases {
        let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
        let (mut agent, _, log) = agent_with(&["look"], hooks).await;
        agent.agent.prompt("Go").await.unwrap();
        agent.until("pause(0)").await;
        agent.agent.resume("0", decision).await.unwrap();
        let results = results(&agent.end().await);
        assert_eq!(log.all(), ran);
        assert_eq!((results[0].0.output_text().as_str(), &results[0].1), (text, &input));
        assert_eq!(results[0].0.tool_use_id.as_str(), "0");
    }
}

#[tokio::test(start_paused = true)]
async fn resume_of_a_tool_without_a_handler_gives_the_model_the_result() {
    let (provider, builder) = scripted([use_of(&["ask_user"]), Step::text("Done.")]);
    let hooks = Hooks::new().deciding([("ask_user", ToolDecision::Pause(json!("Blue or red?")))]);
    let mut agent = Watched::start(builder.tool(declared("ask_user")).callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause(0)").await;
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    let PendingUse { tool_use, reason, .. } = &*pauses[0];
    assert_eq!((&*tool_use.name, reason), ("ask_user", &json!("Blue or red?")));
    let answer = ToolResult::ok(tool_use, "Red.");
    agent.agent.resume(tool_use.id.clone(), Decision::Provide(answer)).await.unwrap();
    let events = agent.end().await;
    assert_eq!(names(&events).last().unwrap(), "turn(stop)");
    let closing = provider.requests()[1].history.last().unwrap().clone();
    let shown: Vec<_> = closing.tool_results().map(|result| (result.text(), result.is_error)).collect();
    assert_eq!(shown, [("Red.".to_owned(), false)]);
    let history = agent.agent.state().await.unwrap().history().clone();
    assert_eq!((history.len(), history.last().unwrap().text()), (4, "Done.".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn resume_when_not_paused_is_an_error() {
    let gate = Gate::new();
    let asks = Step::new().gate(&gate).then_tool_use("0", "look", json!({})).stop();
    let (_, builder) = scripted([asks, Step::text("Done.")]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let log = Log::default();
    let mut agent = Watched::start(builder.tool(noting("look", &log)).callbacks(hooks)).await;
    let idle = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (idle.kind(), idle.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{idle:?}"
    );
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    let busy = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (busy.kind(), busy.member("activity")),
        (ErrorKind::NotPaused, Some(&"busy".into())),
        "{busy:?}"
    );
    gate.open();
    agent.until("pause(0)").await;
    let stale = agent.agent.resume("7", Decision::Execute).await.unwrap_err();
    assert_eq!((stale.kind(), stale.waiting()), (ErrorKind::StaleDecision, vec!["0".into()]));
    assert_eq!(stale.member("given").unwrap(), "7");
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused, "a stale resume decides nothing");
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    agent.end().await;
    assert_eq!(log.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn resume_repeated_is_stale_although_the_model_uses_the_id_again() {
    let (_, builder) = scripted([use_of(&["look"]), use_of(&["look"]), Step::text("Done.")]);
    let log = Log::default();
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let mut agent = Watched::start(builder.tool(noting("look", &log)).callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(0)").await;
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    let events = agent.until("pause").await;
    let again = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::StaleDecision, "{again:?}");
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    agent.agent.resume(pauses[0].tool_use.id.clone(), Decision::reject("Enough.")).await.unwrap();
    agent.end().await;
    assert_eq!(log.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn handle_tool_result_sees_executed_rejected_and_provided_results_in_order() {
    let seen = Log::<String>::default();
    let noted = seen.clone();
    let ready = ToolResult::ok(&ToolUse::new("1", "b", json!({})), "Provided.");
    let hooks = Hooks::new()
        .deciding([("b", ToolDecision::Provide(ready)), ("c", ToolDecision::Reject("Rejected.".into()))])
        .on_tool_result(move |result, _| {
            noted.push(format!("{} {} {}", result.tool_use_id, result.text(), result.is_error));
            let text = Text::new(format!("[{}]", result.text()));
            ToolResult { content: vec![text.into()], tool_use_id: "lost".into(), ..result }
        });
    let (mut agent, provider, log) = agent_with(&["a", "b", "c"], hooks).await;
    let events = agent.run("Go").await;
    assert_eq!(seen.all(), ["0 a done false", "1 Provided. false", "2 Rejected. true"]);
    assert_eq!(log.all(), [r#"a {"n":0}"#]);
    let shown: Vec<_> = results(&events).into_iter().map(|(result, _)| result).collect();
    let closing = provider.requests()[1].history.last().unwrap().clone();
    let sent: Vec<_> = closing.tool_results().cloned().collect();
    assert_eq!(shown, sent, "the event shows what the model sees");
    let brief = sent.iter().map(|result| format!("{} {}", result.tool_use_id, result.text()));
    assert_eq!(brief.collect::<Vec<_>>(), ["0 [a done]", "1 [Provided.]", "2 [Rejected.]"]);
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_sees_status_step_and_committed_history() {
    let seen = Log::<(Status, u32, usize)>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_tool_use(move |_, state| {
        noted.push((state.status(), state.step(), state.history().len()));
        ToolDecision::Execute
    });
    let (mut agent, provider, _) = agent_with(&["look"], hooks).await;
    agent.run("Go").await;
    assert_eq!(seen.all(), [(Status::Busy, 1, 0)]);
    provider.push(use_of(&["look"]));
    provider.push(Step::text("Done again."));
    let events = agent.run("Again").await;
    assert_eq!(seen.all()[1], (Status::Busy, 1, 4));
    assert_eq!(events.iter().filter(|event| name(event) == "step").count(), 2);
    assert_eq!(sent(&provider.requests()[2]).len(), 5);
}

//! Tool uses that only the application can answer, and prompts that answer them.

use crate::{
    agent::{Prompt, Response, State, ToolDecision, TurnDecision},
    message::{Blocks, Content, HistoryError, ToolResult, ToolUse},
    provider::StopReason,
    run::{Error, ErrorKind},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, tool_fn},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, declared, noting, reached, sent, stopped, turns},
    support::{names, scripted},
};

fn use_of(uses: &[(&str, &str)]) -> Step {
    uses.iter().fold(Step::new(), |step, (id, name)| step.then_tool_use(id, name, json!({}))).stop()
}

fn answer(id: &str, text: &str) -> Content {
    ToolResult::ok(&ToolUse::new(id, "ask_user", json!({})), text).into()
}

fn texts(agent_sent: &crate::provider::Request) -> Vec<String> {
    let closing = agent_sent.history.last().unwrap();
    closing
        .tool_results()
        .map(|result| format!("{} {} {}", result.tool_use_id, result.is_error, result.text()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn declared_tool_stops_the_turn_and_none_of_the_step_runs() {
    let (provider, builder) =
        scripted([use_of(&[("a", "look"), ("b", "ask_user"), ("c", "look"), ("d", "skip")])]);
    let (log, ended) = (Log::default(), Log::<StopReason>::default());
    let noted = ended.clone();
    let hooks = Hooks::new().deciding([("skip", ToolDecision::Reject("Not now.".into()))]).on_turn(
        move |response, _| {
            noted.push(response.stop_reason.clone());
            assert_eq!(response.open_tool_uses.len(), 3);
            TurnDecision::Stop
        },
    );
    let builder = builder.tool(noting("look", &log)).tool(noting("skip", &log)).tool(declared("ask_user"));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let events = agent.run("Go").await;
    let names = names(&events);
    assert_eq!(names[names.len() - 4..], ["step", "decided(d)", "status(idle)", "turn(stop)"]);
    assert!(log.all().is_empty());
    let response = stopped(&events);
    assert_eq!(response.stop_reason, StopReason::ToolUse);
    let open: Vec<_> = response.open_tool_uses.iter().map(|tool_use| tool_use.id.as_str()).collect();
    assert_eq!(open, ["a", "b", "c"]);
    assert_eq!(response.decided.len(), 1);
    assert_eq!(
        (response.decided[0].tool_use_id.as_str(), response.decided[0].text()),
        ("d", "Not now.".into())
    );
    assert_eq!(ended.all(), [StopReason::ToolUse]);
    assert_eq!(agent.history().await, ["user: Go", "assistant: use a, use b, use c, use d"]);
    assert!(
        provider.requests()[0].tools.get("ask_user").is_some(),
        "the declared tool is offered to the model"
    );
}

#[tokio::test(start_paused = true)]
async fn prompt_with_mixed_steps_runs_the_tools_with_a_handler_and_leaves_the_others_open() {
    let asks = use_of(&[("a", "ask_user"), ("b", "look"), ("c", "pay"), ("d", "ask_user"), ("e", "skip")]);
    let (provider, builder) = scripted([asks, Step::text("Done")]);
    let log = Log::default();
    let hooks = Hooks::new().deciding([("skip", ToolDecision::Reject("Not now.".into()))]);
    let tools = builder.tool(noting("look", &log)).tool(noting("pay", &log)).tool(noting("skip", &log));
    let builder = tools.tool(declared("ask_user")).needs_approval("pay").callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt(Prompt::new("Go").with_mixed_steps()).await.unwrap();
    agent.until("pause(c)").await;
    assert!(log.all().is_empty(), "no tool runs before all tool uses are decided");
    agent.agent.resume("c", Decision::ExecuteWith(json!({ "eur": 20 }))).await.unwrap();
    let events = agent.end().await;
    let response = stopped(&events);
    assert_eq!(log.all().len(), 2);
    assert_eq!(response.stop_reason, StopReason::ToolUse);
    let open: Vec<_> = response.open_tool_uses.iter().map(|tool_use| tool_use.id.as_str()).collect();
    assert_eq!(open, ["a", "d"]);
    let decided: Vec<_> = response.decided.iter().map(|result| result.tool_use_id.as_str()).collect();
    assert_eq!(decided, ["b", "c", "e"]);
    assert!(response.decided[1].text().contains("changed the input"), "{:?}", response.decided[1]);
    assert_eq!(
        agent.history().await.len(),
        2,
        "the results belong to the answer until the open uses are answered"
    );
    agent.check().await;

    agent.run(vec![answer("d", "No"), answer("a", "Yes")]).await;
    let sent = texts(&provider.requests()[1]);
    assert_eq!(
        (sent[0].as_str(), sent[3].as_str(), sent[4].as_str()),
        ("a false Yes", "d false No", "e true Not now.")
    );
    assert!(sent[1].starts_with("b false") && sent[2].starts_with("c false"), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn interrupt_of_a_mixed_step_keeps_results_and_answers_open_uses_with_errors() {
    let (_, builder) = scripted([use_of(&[("a", "ask_user"), ("b", "look"), ("c", "wait")])]);
    let (log, gate) = (Log::default(), Gate::new());
    let held = gate.clone();
    let wait = tool_fn("wait", "Waits.", move |_: serde_json::Value, _| {
        let held = held.clone();
        async move {
            held.pass().await;
            Ok("late")
        }
    });
    let tools = builder.tool(declared("ask_user")).tool(noting("look", &log)).tool(wait);
    let mut agent = Watched::start(tools).await;
    agent.agent.prompt(Prompt::new("Go").with_mixed_steps()).await.unwrap();
    reached(&gate).await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    let history = agent.agent.state().await.unwrap().history().clone();
    let results: Vec<_> = history.last().unwrap().tool_results().cloned().collect();
    assert!(results[0].is_error && results[0].text().starts_with("Interrupted"), "{results:?}");
    assert!(!results[1].is_error && results[2].is_error, "{results:?}");
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn open_tool_uses_of_a_response_have_the_inputs_that_were_decided() {
    let (_, builder) = scripted([use_of(&[("a", "pay"), ("b", "show"), ("c", "pay")])]);
    let builder = builder.tool(declared("show")).tool(noting("pay", &Log::default())).needs_approval("pay");
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(c)").await;
    agent.agent.resume_as("a", Decision::ExecuteWith(json!({ "eur": 20 })), "ann").await.unwrap();
    agent.agent.resume("c", Decision::Execute).await.unwrap();
    let response = stopped(&agent.end().await);
    let inputs: Vec<_> = response.open_tool_uses.iter().map(|tool_use| &tool_use.input).collect();
    assert_eq!(inputs, [&json!({ "eur": 20 }), &json!({}), &json!({})]);
}

#[tokio::test(start_paused = true)]
async fn declared_tool_with_a_decision_does_not_stop_the_turn() {
    let ready = ToolResult::ok(&ToolUse::new("", "", json!({})), "Yes.");
    for decision in [ToolDecision::Provide(ready), ToolDecision::Reject("Yes.".into())] {
        let (provider, builder) = scripted([use_of(&[("a", "ask_user")]), Step::text("Done")]);
        let hooks = Hooks::new().deciding([("ask_user", decision)]);
        let mut agent = Watched::start(builder.tool(declared("ask_user")).callbacks(hooks)).await;
        assert_eq!(stopped(&agent.run("Go").await).text(), "Done");
        assert!(texts(&provider.requests()[1])[0].ends_with("Yes."));
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_answers_open_tool_uses_in_their_order() {
    let (provider, builder) = scripted([use_of(&[("a", "ask_user"), ("b", "ask_user")]), Step::text("Done")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.run("Go").await;
    let events = agent.run(vec![Content::from("And hurry"), answer("b", "No"), answer("a", "Yes")]).await;
    assert_eq!(texts(&provider.requests()[1]), ["a false Yes", "b false No"]);
    let history = agent.history().await;
    assert_eq!(history[2..], ["user: result a, result b, And hurry", "assistant: Done"]);
    assert_eq!(stopped(&events).messages.len(), 2, "the turn has its own messages only");
}

#[tokio::test(start_paused = true)]
async fn prompt_without_results_of_open_tool_uses_answers_them_with_errors() {
    let (provider, builder) = scripted([use_of(&[("a", "ask_user"), ("b", "ask_user")]), Step::text("Done")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.run("Go").await;
    agent.run(Blocks(vec![answer("b", "No")])).await;
    let sent = texts(&provider.requests()[1]);
    assert!(sent[0].starts_with("a true No result"), "{sent:?}");
    assert_eq!(sent[1], "b false No");

    let (provider, builder) = scripted([use_of(&[("a", "ask_user")]), Step::text("Fine")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.run("Go").await;
    agent.run("Never mind").await;
    assert!(texts(&provider.requests()[1])[0].starts_with("a true"));
    assert_eq!(agent.history().await[2], "user: result a, Never mind");
}

/// Returns an agent whose turn has stopped because tool `a` has no handler. `b` has a provided result and `c` is
/// rejected.
async fn with_decided_results(after: impl IntoIterator<Item = Step>) -> (ScriptedProvider, Watched) {
    let asks = use_of(&[("a", "ask_user"), ("b", "cached"), ("c", "skip")]);
    let (provider, builder) = scripted([asks].into_iter().chain(after));
    let ready = ToolResult::ok(&ToolUse::new("", "", json!({})), "From the cache.");
    let hooks = Hooks::new()
        .deciding([("cached", ToolDecision::Provide(ready)), ("skip", ToolDecision::Reject("No.".into()))]);
    let log = Log::default();
    let tools = builder.tool(declared("ask_user")).tool(noting("cached", &log)).tool(noting("skip", &log));
    let mut agent = Watched::start(tools.callbacks(hooks)).await;
    agent.run("Go").await;
    (provider, agent)
}

#[tokio::test(start_paused = true)]
async fn prompt_without_decided_results_sends_the_decided_results() {
    let (provider, mut agent) = with_decided_results([Step::text("Done")]).await;
    agent.run(answer("a", "Yes")).await;
    let expected = ["a false Yes", "b false From the cache.", "c true No."];
    assert_eq!(texts(&provider.requests()[1]), expected);

    let (provider, mut agent) = with_decided_results([Step::text("Done")]).await;
    agent.run("Never mind").await;
    let sent = texts(&provider.requests()[1]);
    assert!(sent[0].starts_with("a true No result"), "{sent:?}");
    assert_eq!(sent[1..], expected[1..]);
}

#[tokio::test(start_paused = true)]
async fn prompt_with_a_different_result_keeps_the_decided_result() {
    let (provider, mut agent) = with_decided_results([Step::text("Done")]).await;
    agent.run(vec![answer("a", "Yes"), answer("b", "Fresh.")]).await;
    assert_eq!(texts(&provider.requests()[1]), ["a false Yes", "b false From the cache.", "c true No."]);
}

#[tokio::test(start_paused = true)]
async fn decided_results_survive_in_the_serialized_history() {
    let (_, agent) = with_decided_results([]).await;
    let history = agent.agent.state().await.unwrap().history().clone();
    let decided: Vec<_> = history.open_tool_uses().map(|tool_use| tool_use.decided.is_some()).collect();
    assert_eq!(decided, [false, true, true]);
    let json = serde_json::to_string(&history).unwrap();
    let (provider, builder) = scripted([Step::text("Done")]);
    let again = builder.tool(declared("ask_user")).history(serde_json::from_str(&json).unwrap());
    let mut agent = Watched::start(again).await;
    agent.run(answer("a", "Yes")).await;
    let sent = texts(&provider.requests()[0]);
    assert_eq!(sent, ["a false Yes", "b false From the cache.", "c true No."]);
}

#[tokio::test(start_paused = true)]
async fn handle_turn_answering_the_open_use_sends_decided_results_too() {
    let asks = use_of(&[("a", "ask_user"), ("b", "skip")]);
    let (provider, builder) = scripted([asks, Step::text("Done")]);
    let hooks =
        Hooks::new().deciding([("skip", ToolDecision::Reject("No.".into()))]).on_turn(|response, _| {
            match response.open_tool_uses.first() {
                Some(open) => TurnDecision::continue_with(ToolResult::ok(open, "Yes")),
                None => TurnDecision::Stop,
            }
        });
    let tools = builder.tool(declared("ask_user")).tool(declared("skip"));
    let mut agent = Watched::start(tools.callbacks(hooks)).await;
    agent.run("Go").await;
    assert_eq!(texts(&provider.requests()[1]), ["a false Yes", "b true No."]);
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_handle_turn_runs_keeps_decided_results() {
    let asks = use_of(&[("a", "ask_user"), ("b", "skip")]);
    let (_, builder) = scripted([asks]);
    let gate = Gate::new();
    let callbacks = Rejecting(gate.clone());
    let tools = builder.tool(declared("ask_user")).tool(declared("skip"));
    let mut agent = Watched::start(tools.callbacks(callbacks)).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    let history = agent.agent.state().await.unwrap().history().clone();
    let results: Vec<_> = history.last().unwrap().tool_results().cloned().collect();
    assert!(results[0].is_error && results[0].text().starts_with("Interrupted"), "{results:?}");
    assert_eq!(results[1].text(), "No.");
    agent.check().await;
}

/// Callbacks that reject the tool `skip` and never return from `handle_turn`.
struct Rejecting(Gate);

#[async_trait::async_trait]
impl crate::agent::AgentCallbacks for Rejecting {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        match tool_use.name.as_str() {
            "skip" => ToolDecision::Reject("No.".into()),
            _ => ToolDecision::Execute,
        }
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.0.pass().await;
        TurnDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_with_results_for_no_open_use_is_refused_and_nothing_is_lost() {
    let (provider, builder) = scripted([use_of(&[("a", "ask_user")]), Step::text("Done")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    let orphan = |error: Error, id: &str| {
        let cause = error.cause().and_then(|cause| cause.downcast_ref());
        let is_orphan =
            matches!(cause, Some(HistoryError::OrphanResult { id: named, .. }) if named.as_str() == id);
        assert!(is_orphan, "{error:?}");
    };
    orphan(agent.agent.prompt(answer("a", "Yes")).await.unwrap_err(), "a");
    agent.run("Go").await;
    orphan(agent.agent.prompt(answer("x", "Yes")).await.unwrap_err(), "x");
    orphan(agent.agent.prompt([answer("a", "Yes"), answer("a", "No")]).await.unwrap_err(), "a");
    let misplaced = agent.agent.prompt(ToolUse::new("b", "look", json!({}))).await.unwrap_err();
    let cause = misplaced.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(HistoryError::Misplaced { .. })), "{misplaced:?}");
    agent.check().await;
    agent.run(answer("a", "Yes")).await;
    assert_eq!(texts(&provider.requests()[1]), ["a false Yes"]);
    orphan(agent.agent.ask(answer("a", "Again")).await.unwrap_err(), "a");
}

#[tokio::test(start_paused = true)]
async fn prompt_with_results_while_busy_is_refused() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_tool_use("a", "ask_user", json!({})).stop()]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    let error = agent.agent.prompt(answer("a", "Yes")).await.unwrap_err();
    assert!(error.to_string().starts_with("a prompt with tool results"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    gate.open();
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_after_a_declared_tool_answers_its_use_with_an_error() {
    let gate = Gate::new();
    let asks = Step::new().gate(&gate).then_tool_use("a", "ask_user", json!({})).stop();
    let (provider, builder) = scripted([asks, Step::text("Done")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("Rather this").await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert_eq!(turns(&events)[0].stop_reason, StopReason::ToolUse);
    assert!(texts(&provider.requests()[1])[0].starts_with("a true"));
    assert_eq!(sent(&provider.requests()[1])[2], "user: result a, Rather this");
}

#[tokio::test(start_paused = true)]
async fn handle_turn_answers_open_tool_uses_with_its_continuation() {
    let (provider, builder) = scripted([use_of(&[("a", "ask_user")]), Step::text("Done")]);
    let hooks = Hooks::new().on_turn(|response, _| match response.open_tool_uses.first() {
        Some(open) => TurnDecision::continue_with(ToolResult::ok(open, "Yes")),
        None => TurnDecision::Stop,
    });
    let mut agent = Watched::start(builder.tool(declared("ask_user")).callbacks(hooks)).await;
    let events = agent.run("Go").await;
    assert_eq!(turns(&events).len(), 2);
    assert_eq!(texts(&provider.requests()[1]), ["a false Yes"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_answer_leaves_the_tool_uses_open() {
    let gate = Gate::new();
    let held = Step::new().gate(&gate).hang();
    let (provider, builder) = scripted([use_of(&[("a", "ask_user")]), held, Step::text("Done")]);
    let mut agent = Watched::start(builder.tool(declared("ask_user"))).await;
    agent.run("Go").await;
    agent.agent.prompt(answer("a", "Yes")).await.unwrap();
    reached(&gate).await;
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    agent.run(Prompt::new(answer("a", "No"))).await;
    assert_eq!(texts(&provider.requests()[2]), ["a false No"]);
}

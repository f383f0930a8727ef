//! The decisions about tool uses, and the reasons of ends, that messages state.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Watched},
    support::scripted,
};
use crate::{
    agent::{AgentBuilder, ErrorDecision, ToolDecision},
    message::{DecisionKind, Message, StopReason, Timestamp, ToolResult, UseDecision},
    provider::{ProviderError, ProviderErrorKind},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, ToolError, tool_fn},
};

const PERSON: &str = "A person changed the input of this call. It ran with: ";
const APPLICATION: &str = "The application changed the input of this call. It ran with: ";

/// Returns a tool that returns its input, and that fails with it if `fails` is set.
fn pay() -> impl Tool {
    tool_fn("pay", "Pays.", |input: Value, _: ToolContext| async move {
        if input["fails"] == true { Err(ToolError::new("broken")) } else { Ok(format!("paid {input}")) }
    })
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Amount {
    #[allow(dead_code)]
    eur: u32,
}

#[tokio::test(start_paused = true)]
async fn edit_that_does_not_fit_the_schema_is_refused_and_the_pause_stays() {
    let steps = [Step::tool_use("t", "pay", json!({ "eur": 100 })), Step::text("Done")];
    let (_, builder) = scripted(steps);
    let pay =
        tool_fn(
            "pay",
            "Pays.",
            |input: Amount, _: ToolContext| async move { Ok(format!("paid {}", input.eur)) },
        );
    let mut agent = Watched::start(builder.tool(pay.needs_approval())).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(t)").await;
    let error = agent.agent.resume("t", Decision::ExecuteWith(json!({ "eur": "20" }))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidDecision);
    assert!(error.to_string().contains("does not fit its schema"), "{error}");
    agent.agent.resume("t", Decision::ExecuteWith(json!({ "eur": 20 }))).await.unwrap();
    agent.end().await;
    assert!(only_result(&agent).await.text().ends_with("paid 20"));
}

#[tokio::test(start_paused = true)]
async fn changed_input_that_the_tool_refuses_is_not_said_to_have_run() {
    let steps = [Step::tool_use("t", "pay", json!({ "eur": 100 })), Step::text("Done")];
    let (_, builder) = scripted(steps);
    let pay =
        tool_fn(
            "pay",
            "Pays.",
            |input: Amount, _: ToolContext| async move { Ok(format!("paid {}", input.eur)) },
        );
    let hooks = Hooks::new().deciding([("pay", ToolDecision::ExecuteWith(json!({ "eur": "20" })))]);
    let mut agent = Watched::start(builder.tool(pay).callbacks(hooks)).await;
    agent.run("Go").await;
    let result = only_result(&agent).await;
    assert!(result.is_error && !result.text().contains("It ran with"), "{}", result.text());
}

/// Returns an agent whose first response pays 100 EUR.
fn paying(more: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let steps = [Step::tool_use("t", "pay", json!({ "eur": 100 }))].into_iter().chain(more);
    let (provider, builder) = scripted(steps);
    (provider, builder.tool(pay()))
}

async fn history(agent: &Watched) -> Vec<Arc<Message>> {
    agent.agent.snapshot().await.unwrap().messages().cloned().collect()
}

/// Returns the only result in the history, after a check that it has the same JSON form.
async fn only_result(agent: &Watched) -> ToolResult {
    let history = history(agent).await;
    let mut results: Vec<_> = history.iter().flat_map(|message| message.tool_results().cloned()).collect();
    assert_eq!(results.len(), 1, "{history:?}");
    let json = serde_json::to_string(&results).unwrap();
    assert_eq!(serde_json::from_str::<Vec<ToolResult>>(&json).unwrap(), results);
    results.remove(0)
}

fn output(result: &ToolResult) -> Value {
    json!(result.output())
}

fn text(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// Returns the kind, the name and the input of the decision that a result states.
fn stated(result: &ToolResult) -> (DecisionKind, Option<&str>, Option<&Value>) {
    let decision = result.decision.as_deref().unwrap();
    assert!(decision.at.0 > 0);
    (decision.kind, decision.by.as_deref(), decision.input.as_ref())
}

#[tokio::test(start_paused = true)]
async fn changed_input_is_stated_to_the_model_and_stored_with_its_decider() {
    let (provider, builder) = paying([Step::text("Done.")]);
    let mut agent = Watched::start(builder.needs_approval("pay")).await;
    agent.agent.prompt("Pay 100 EUR.").await.unwrap();
    agent.until("pause(t)").await;
    agent.agent.resume_as("t", Decision::ExecuteWith(json!({ "eur": 20 })), "ann").await.unwrap();
    agent.end().await;
    let result = only_result(&agent).await;
    assert_eq!(stated(&result), (DecisionKind::ExecuteWith, Some("ann"), Some(&json!({ "eur": 20 }))));
    assert_eq!(result.text(), format!("{PERSON}{{\"eur\":20}}paid {{\"eur\":20}}"));
    assert_eq!(output(&result), text(r#"paid {"eur":20}"#));
    let sent = provider.last_request().unwrap().history;
    assert_eq!(sent.last().unwrap().tool_results().next(), Some(&result));
}

#[tokio::test(start_paused = true)]
async fn result_states_who_changed_the_input_and_only_a_change() {
    let change = || ToolDecision::ExecuteWith(json!({ "eur": 20 }));
    // The callback's decision, the person's decision, the beginning of the content, and the stated kind.
    let cases = [
        (change(), None, APPLICATION, DecisionKind::ExecuteWith),
        (ToolDecision::Approve, None, "paid", DecisionKind::Execute),
        (change(), Some(Decision::Execute), APPLICATION, DecisionKind::ExecuteWith),
        (change(), Some(Decision::ExecuteWith(json!({ "eur": 5 }))), PERSON, DecisionKind::ExecuteWith),
        (ToolDecision::Execute, Some(Decision::Execute), "paid", DecisionKind::Execute),
        (
            ToolDecision::Execute,
            Some(Decision::ExecuteWith(json!({ "eur": 100 }))),
            "paid",
            DecisionKind::ExecuteWith,
        ),
        (
            ToolDecision::Execute,
            Some(Decision::ExecuteWith(json!({ "fails": true }))),
            PERSON,
            DecisionKind::ExecuteWith,
        ),
        (ToolDecision::Execute, Some(Decision::reject("No.")), "No.", DecisionKind::Reject),
    ];
    for (callback, person, beginning, kind) in cases {
        let (_, mut builder) = paying([Step::text("Done.")]);
        builder = builder.callbacks(Hooks::new().deciding([("pay", callback.clone())]));
        if person.is_some() {
            builder = builder.needs_approval("pay");
        }
        let mut agent = Watched::start(builder).await;
        agent.agent.prompt("Pay.").await.unwrap();
        if let Some(decision) = person.clone() {
            agent.until("pause(t)").await;
            agent.agent.resume("t", decision).await.unwrap();
        }
        agent.end().await;
        let result = only_result(&agent).await;
        assert!(result.text().starts_with(beginning), "{callback:?} {person:?}: {result:?}");
        assert_eq!(stated(&result).0, kind);
        assert_eq!(stated(&result).2.is_some(), result.output().len() < result.content.len());
    }
}

#[tokio::test(start_paused = true)]
async fn plain_use_states_no_decision_and_nobody_can_forge_one() {
    let forged = || Some(Box::new(UseDecision::new(DecisionKind::Execute, Timestamp(1))));
    let hooks = Hooks::new().on_tool_result(move |result, _| ToolResult { decision: forged(), ..result });
    let (_, builder) = paying([Step::text("Done.")]);
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.end().await;
    assert_eq!(only_result(&agent).await.decision, None);

    // A result of the decider has the decider's decision, not the one in the result.
    let (_, builder) = paying([Step::text("Done.")]);
    let mut agent = Watched::start(builder.needs_approval("pay")).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.until("pause(t)").await;
    let given = serde_json::from_value(json!({
        "tool_use_id": "t", "name": "pay", "content": [], "decision": { "kind": "execute", "by": "eve", "at": 1 },
    }));
    agent.agent.resume_as("t", Decision::Provide(given.unwrap()), "ann").await.unwrap();
    agent.end().await;
    assert_eq!(stated(&only_result(&agent).await), (DecisionKind::Provide, Some("ann"), None));
}

#[tokio::test(start_paused = true)]
async fn decision_in_the_result_of_a_prompt_is_dropped() {
    let show = crate::tool::declared_tool_with_schema(
        "show",
        "Shows.",
        crate::tool::Schema::new(json!({ "type": "object" })).unwrap(),
    );
    let steps = [Step::tool_use("t", "show", json!({})), Step::text("Done.")];
    let mut agent = Watched::start(scripted(steps).1.tool(show)).await;
    agent.agent.prompt("Show it.").await.unwrap();
    agent.end().await;
    let result: ToolResult = serde_json::from_value(json!({
        "tool_use_id": "t", "name": "show", "content": [], "decision": { "kind": "reject", "by": "eve", "at": 1 },
    }))
    .unwrap();
    agent.agent.prompt(result).await.unwrap();
    agent.end().await;
    assert_eq!(only_result(&agent).await.decision, None);
}

#[tokio::test(start_paused = true)]
async fn long_input_is_cut_at_a_character_in_the_text_for_the_model() {
    let (_, builder) = paying([Step::text("Done.")]);
    let mut agent = Watched::start(builder.needs_approval("pay")).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.until("pause(t)").await;
    let input = json!({ "to": "é".repeat(4201) });
    agent.agent.resume("t", Decision::ExecuteWith(input.clone())).await.unwrap();
    agent.end().await;
    let result = only_result(&agent).await;
    let crate::message::ResultBlock::Text(note) = &result.content[0] else { panic!("{result:?}") };
    let shown = note.text.strip_prefix(PERSON).unwrap();
    let (shown, rest) = shown.split_once('…').unwrap();
    assert!(input.to_string().starts_with(shown) && (4094..=4096).contains(&shown.len()), "{}", shown.len());
    assert_eq!(rest, " (8,411 bytes)");
    assert_eq!(stated(&result).2, Some(&input));
}

#[tokio::test(start_paused = true)]
async fn expired_and_interrupted_uses_keep_their_name_and_input() {
    let pause = ToolDecision::PauseFor {
        reason: Value::Null,
        expires_in: Duration::from_mins(1),
        on_expiry: Decision::ExecuteWith(json!({ "eur": 1 })),
    };
    let (_, builder) = paying([Step::text("Done.")]);
    let mut agent = Watched::start(builder.callbacks(Hooks::new().deciding([("pay", pause)]))).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.end().await;
    let result = only_result(&agent).await;
    assert_eq!(stated(&result), (DecisionKind::Expired, None, Some(&json!({ "eur": 1 }))));
    assert!(result.text().starts_with(APPLICATION));

    // The tool is running.
    let gate = Gate::new();
    let hanging = gate.clone();
    let tool = tool_fn("pay", "Pays.", move |_: Value, _: ToolContext| {
        let gate = hanging.clone();
        async move {
            gate.pass().await;
            Ok("never")
        }
    });
    let (_, builder) = scripted([Step::tool_use("t", "pay", json!({ "eur": 100 }))]);
    let mut agent = Watched::start(builder.tool(tool).needs_approval("pay")).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.until("pause(t)").await;
    agent.agent.resume_as("t", Decision::ExecuteWith(json!({ "eur": 20 })), "ann").await.unwrap();
    gate.reached().await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    let result = only_result(&agent).await;
    assert_eq!(stated(&result), (DecisionKind::Interrupted, Some("ann"), Some(&json!({ "eur": 20 }))));
    assert!(result.is_error && result.text().starts_with(PERSON), "{result:?}");
    assert_eq!(history(&agent).await.last().unwrap().ended.as_deref(), Some(&StopReason::Interrupted));

    // Nobody has decided yet.
    let mut agent = Watched::start(paying([]).1.needs_approval("pay")).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.until("pause(t)").await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    assert_eq!(stated(&only_result(&agent).await), (DecisionKind::Interrupted, None, None));
}

#[tokio::test(start_paused = true)]
async fn last_message_states_why_its_turn_ended() {
    let unusual = [
        StopReason::StopSequence,
        StopReason::Length,
        StopReason::ContextLength,
        StopReason::Refusal,
        StopReason::Other("odd".into()),
    ];
    for reason in [StopReason::Stop, StopReason::ToolUse].iter().chain(&unusual) {
        let (_, builder) = scripted([Step::new().then_text(["Hi"]).stop_with(reason.clone())]);
        let mut agent = Watched::start(builder).await;
        agent.agent.prompt("Hi").await.unwrap();
        agent.end().await;
        let last = history(&agent).await.pop().unwrap();
        assert_eq!(last.ended.as_deref(), unusual.iter().find(|unusual| *unusual == reason));
        let json = serde_json::to_value(&*last).unwrap();
        assert_eq!(json.get("ended").is_some(), unusual.contains(reason));
        assert_eq!(serde_json::from_value::<Message>(json).unwrap(), *last);
    }

    // The limit of requests ends the turn after the results.
    let mut agent = Watched::start(paying([]).1.max_steps(1)).await;
    agent.agent.prompt("Pay.").await.unwrap();
    agent.end().await;
    let history = history(&agent).await;
    let ends: Vec<_> = history.iter().map(|message| message.ended.as_deref()).collect();
    assert_eq!(ends, [None, None, Some(&StopReason::MaxSteps)]);
}

#[tokio::test(start_paused = true)]
async fn kept_turn_of_a_failed_run_ends_as_failed() {
    let error = || ProviderError::new(ProviderErrorKind::Overloaded, "down");
    for (decision, ends) in [(ErrorDecision::Stop, 3), (ErrorDecision::Discard, 0)] {
        let (_, builder) = paying([Step::error(error())]);
        let hooks = Hooks::new().on_error(move |_, _| decision);
        let mut agent = Watched::start(builder.callbacks(hooks)).await;
        agent.agent.prompt("Pay.").await.unwrap();
        agent.end().await;
        let history = history(&agent).await;
        assert_eq!(history.len(), ends);
        let last = history.last().and_then(|last| last.ended.as_deref());
        assert_eq!(last, (ends > 0).then_some(&StopReason::Failed));
    }
}

//! The scripted provider.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{Agent, Failure, Status},
    message::{Content, Message, Usage},
    provider::{
        Delta, MessageDelta, Options, ProviderError, ProviderErrorKind, Registry, Request, StopReason,
    },
    testing::{Gate, ScriptedProvider, Step},
};
use futures_util::StreamExt;
use serde_json::json;
use tokio::time::Instant;

use super::support::scripted;

async fn answer(step: Step) -> Result<Message, ProviderError> {
    let provider = ScriptedProvider::new([step]);
    let request = Request::prompt("Hi").with_options(Options::default().with_max_retries(0));
    Ok(provider.model().generate(request).await?.message)
}

#[tokio::test(start_paused = true)]
async fn script_answers_in_order_and_records_the_requests() {
    let provider = ScriptedProvider::new([Step::text("One"), Step::text("Two")]);
    assert!(provider.last_request().is_none());
    let model = provider.model();
    assert_eq!(model.name(), "test:scripted");
    for text in ["One", "Two"] {
        let answer = model.generate(Request::prompt(text).with_system("Be brief.")).await.unwrap();
        assert_eq!((answer.message.text().as_str(), answer.stop_reason), (text, StopReason::Stop));
    }
    let requests = provider.clone().requests();
    let seen: Vec<_> = requests.iter().map(|request| request.history.last().unwrap().text()).collect();
    assert_eq!(seen, ["One", "Two"]);
    assert_eq!(provider.last_request().unwrap().system.as_deref(), Some("Be brief."));
    assert_eq!(&*requests[0].model, "scripted");
}

#[tokio::test(start_paused = true)]
async fn script_exhausted_is_an_error_until_a_step_is_pushed() {
    let provider = ScriptedProvider::new([]);
    let error = provider.model().generate(Request::prompt("Hi")).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::InvalidRequest);
    provider.push(Step::text("Hello"));
    assert_eq!(provider.steps_left(), 1);
    assert_eq!(provider.model().generate(Request::prompt("Hi")).await.unwrap().message.text(), "Hello");
    assert_eq!((provider.steps_left(), provider.requests().len()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn provider_from_fn_answers_without_end_after_the_pushed_steps() {
    let mut count = 0;
    let provider = ScriptedProvider::from_fn(move |request| {
        count += 1;
        Step::text(format!("{count}: {}", request.history.last().unwrap().text()))
    });
    provider.push(Step::text("pushed"));
    let mut texts = Vec::new();
    for _ in 0..3 {
        texts.push(provider.model().generate(Request::prompt("Hi")).await.unwrap().message.text());
    }
    assert_eq!(texts, ["pushed", "1: Hi", "2: Hi"]);
}

#[tokio::test(start_paused = true)]
async fn provider_named_is_registered_together_with_others() {
    let (big, small) =
        (ScriptedProvider::new([Step::text("Big")]), ScriptedProvider::new([Step::text("Small")]));
    let mut registry = Registry::empty();
    registry.register(Arc::new(big.clone().named("big"))).register(Arc::new(small.named("small")));
    let agent = Agent::builder().registry(registry).model("big:any").start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Big");
    assert_eq!(&*big.last_request().unwrap().model, "any");
}

#[tokio::test(start_paused = true)]
async fn step_streams_every_kind_of_block() {
    let step = Step::new()
        .then_thinking("Hm", "sig")
        .then_thinking("Unsigned", "")
        .then_redacted_thinking("sealed")
        .then_text(["He", "llo"])
        .then_tool_use("a", "look", json!({ "x": 1 }))
        .then_raw_tool_use("b", "look", &["{\"x\"", ": 2}"])
        .then_raw_tool_use("c", "look", &["{"])
        .stop();
    let message = answer(step).await.unwrap();
    let [Content::Thinking(signed), Content::Thinking(unsigned), Content::Thinking(redacted), rest @ ..] =
        &message.content[..]
    else {
        panic!("{message:?}");
    };
    assert_eq!((signed.text.as_str(), signed.signature.as_deref()), ("Hm", Some("sig")));
    assert_eq!((unsigned.text.as_str(), unsigned.is_signed()), ("Unsigned", false));
    assert_eq!(redacted.redacted.as_deref(), Some("sealed"));
    assert_eq!(rest[0].as_text(), Some("Hello"));
    let uses: Vec<_> =
        message.tool_uses().map(|tool_use| (&tool_use.input, tool_use.malformed.as_deref())).collect();
    assert_eq!(uses, [(&json!({ "x": 1 }), None), (&json!({ "x": 2 }), None), (&json!({}), Some("{"))]);
}

#[tokio::test(start_paused = true)]
async fn step_ends_with_its_stop_reason() {
    let reason = |step: Step| async move {
        let provider = ScriptedProvider::new([step]);
        provider.model().generate(Request::prompt("Hi")).await.unwrap().stop_reason
    };
    assert_eq!(reason(Step::text("Hi")).await, StopReason::Stop);
    assert_eq!(reason(Step::tool_use("a", "look", json!({}))).await, StopReason::ToolUse);
    assert_eq!(reason(Step::new().then_text(["Hi"]).stop_with(StopReason::Length)).await, StopReason::Length);
}

#[tokio::test(start_paused = true)]
async fn step_reports_usage_and_data() {
    let usage = Usage::default().with_input(3).with_output(4);
    let data = MessageDelta::default().with_model("m-1");
    let provider = ScriptedProvider::new([Step::new().data(data).then_text(["Hi"]).usage(usage).stop()]);
    let answer = provider.model().generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!((answer.usage, answer.model.as_deref()), (usage, Some("m-1")));
}

#[tokio::test(start_paused = true)]
async fn step_without_an_end_is_truncated() {
    assert_eq!(answer(Step::new().then_text(["Hi"])).await.unwrap_err().kind, ProviderErrorKind::Truncated);
    assert_eq!(answer(Step::new()).await.unwrap_err().kind, ProviderErrorKind::Truncated);
}

#[tokio::test(start_paused = true)]
async fn step_cut_after_any_action_is_truncated() {
    let whole = || Step::new().then_text(["One ", "two"]).then_tool_use("a", "look", json!({})).stop();
    for actions in 0..whole().actions() {
        let (_, builder) = scripted([whole().cut_after(actions)]);
        let agent = builder.options(Options::default().with_max_retries(0)).start().await.unwrap();
        let error = agent.ask("Hi").await.unwrap_err();
        assert_eq!(error.provider_error().unwrap().kind, ProviderErrorKind::Truncated, "{actions}");
    }
    assert!(answer(whole().cut_after(whole().actions())).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn step_failing_at_any_action_ends_there() {
    let down = || ProviderError::new(ProviderErrorKind::Service, "down");
    let whole = || Step::new().then_text(["One ", "two"]).stop();
    for actions in 0..=whole().actions() {
        let step = whole().cut_after(actions).fail(down()).then_text(["more"]).stop();
        let provider = ScriptedProvider::new([step]);
        let request = Request::prompt("Hi").with_options(Options::default().with_max_retries(0));
        let items: Vec<_> = provider.model().stream(request).collect().await;
        assert_eq!(items.len(), actions + 1);
        assert_eq!(items.last().unwrap().as_ref().unwrap_err(), &down());
    }
}

#[tokio::test(start_paused = true)]
async fn step_error_refuses_the_request_and_a_transient_error_is_retried() {
    let refused =
        answer(Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"))).await.unwrap_err();
    assert_eq!((refused.kind, refused.message.as_str()), (ProviderErrorKind::Auth, "no key"));
    let busy = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let provider = ScriptedProvider::new([busy(), Step::text("Fine")]);
    assert_eq!(provider.model().generate(Request::prompt("Hi")).await.unwrap().message.text(), "Fine");
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn step_from_fn_sees_the_request() {
    let step = Step::from_fn(|request| {
        let text = request.history.last().unwrap().text();
        Step::from_fn(move |_| Step::text(text.repeat(2)))
    });
    assert_eq!(answer(step).await.unwrap().text(), "HiHi");
}

#[tokio::test(start_paused = true)]
async fn step_waits_and_hangs() {
    let start = Instant::now();
    let wait = Duration::from_secs(7);
    answer(Step::new().then_text(["Hi"]).wait(wait).stop()).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 7);
    let hanging = answer(Step::new().then_text(["Hi"]).hang().stop());
    assert!(tokio::time::timeout(wait * 1000, hanging).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn step_panics_as_a_provider_does() {
    let (_, builder) = scripted([Step::new().then_text(["Hi"]).panic("boom")]);
    let error = builder.start().await.unwrap().ask("Hi").await.unwrap_err();
    let Some(Failure::ProviderPanicked { message }) = error.failure() else { panic!("{error:?}") };
    assert_eq!((message.as_str(), error.response().unwrap().text().as_str()), ("boom", "Hi"));
}

#[tokio::test(start_paused = true)]
async fn streaming_counts_answers_until_they_end_or_are_dropped() {
    let gate = Gate::new();
    let provider =
        ScriptedProvider::new([Step::text("One"), Step::new().then_text(["T"]).gate(&gate).hang()]);
    provider.model().generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(provider.streaming(), 0);
    let agent = Agent::builder().model(provider.model()).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    assert_eq!(provider.streaming(), 1);
    agent.cancel().await.unwrap();
    assert_eq!((provider.streaming(), agent.status().await.unwrap()), (0, Status::Idle));
}

#[tokio::test(start_paused = true)]
async fn gate_passes_one_task_per_opening_and_reports_each_once() {
    let gate = Gate::new();
    gate.open();
    gate.pass().await;
    gate.reached().await;
    let blocked = tokio::time::timeout(Duration::from_secs(1), gate.pass()).await;
    assert!(blocked.is_err(), "one opening lets one task pass");
    gate.reached().await;
    let again = tokio::time::timeout(Duration::from_secs(1), gate.reached()).await;
    assert!(again.is_err(), "each arrival is reported once");
    // The call of `pass` that timed out does not use up the next opening of the gate.
    gate.open();
    gate.pass().await;
}

#[tokio::test(start_paused = true)]
async fn step_delta_streams_the_given_deltas() {
    let provider = ScriptedProvider::new([Step::text("Hi")]);
    let deltas: Vec<Delta> =
        provider.model().stream(Request::prompt("Hi")).map(Result::unwrap).collect().await;
    let same = deltas.iter().cloned().fold(Step::new(), Step::delta);
    assert_eq!(answer(same).await.unwrap().text(), "Hi");
    assert_eq!(deltas.last(), Some(&Delta::stop(StopReason::Stop)));
}

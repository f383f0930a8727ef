//! `ask` and `ask_as`.

use crate::{
    agent::{ErrorDecision, Prompt, Status, ToolDecision},
    message::id::NodeId,
    provider::{Options, ProviderError, ProviderErrorKind, StopReason},
    run::ErrorKind,
    testing::{Gate, Step},
    tool::Decision,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, declared, in_time, noting, reached, tokens},
    support::scripted,
};

#[tokio::test(start_paused = true)]
async fn ask_resolves_with_the_turns_response() {
    let step = Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([step, Step::new().usage(tokens(5)).then_text(["A cat."]).stop()]);
    let agent = builder.tool(noting("look", &Log::default())).start().await.unwrap();
    let response = agent.ask("Look").await.unwrap();
    assert_eq!(
        (response.text().as_str(), response.usage, response.messages.len()),
        ("A cat.", tokens(15), 4)
    );
    assert_eq!(agent.status().await.unwrap(), Status::Idle);
    assert_eq!(agent.state().await.unwrap().history().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn ask_while_busy_or_paused_is_an_error_and_does_not_affect_the_run() {
    let gate = Gate::new();
    let asks = Step::new().gate(&gate).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([asks, Step::text("Done")]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let handle = agent.agent.clone();
    let first = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&gate).await;
    let busy = agent.agent.ask("Me too").await.unwrap_err();
    assert_eq!((busy.kind(), busy.member("activity")), (ErrorKind::Busy, Some(&"busy".into())), "{busy:?}");
    gate.open();
    agent.until("pause").await;
    let paused = agent.agent.ask("Me too").await.unwrap_err();
    assert_eq!(
        (paused.kind(), paused.member("activity")),
        (ErrorKind::Busy, Some(&"paused".into())),
        "{paused:?}"
    );
    agent.agent.resume("a", Decision::Execute).await.unwrap();
    assert_eq!(in_time(first).await.unwrap().unwrap().text(), "Done");
    agent.end().await;
    assert_eq!(agent.history().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn ask_with_continuations_collects_their_messages_and_usage() {
    let step = |n, text: &str| Step::new().usage(tokens(n)).then_text([text]).stop();
    let (_, builder) = scripted([step(10, "One"), step(5, "Two"), step(1, "Three")]);
    let agent = builder.callbacks(Hooks::new().continuing(["More", "And more"])).start().await.unwrap();
    let response = agent.ask("Hi").await.unwrap();
    assert_eq!((response.text().as_str(), response.usage, response.step), ("Three", tokens(16), 3));
    let messages: Vec<_> = response.messages.iter().map(|message| brief(message)).collect();
    assert_eq!(
        messages,
        ["user: Hi", "assistant: One", "user: More", "assistant: Two", "user: And more", "assistant: Three"]
    );
}

#[tokio::test(start_paused = true)]
async fn ask_resolves_before_a_staged_prompt_starts_its_turn() {
    let (first, second) = (Gate::new(), Gate::new());
    let (_, builder) = scripted([
        Step::new().gate(&first).then_text(["Mine"]).stop(),
        Step::new().gate(&second).then_text(["Theirs"]).stop(),
    ]);
    let agent = builder.start().await.unwrap();
    let handle = agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&first).await;
    agent.prompt("And now").await.unwrap();
    first.open();
    let response = in_time(asked).await.unwrap().unwrap();
    assert_eq!((response.text().as_str(), response.messages.len()), ("Mine", 2));
    reached(&second).await;
    assert_eq!(agent.status().await.unwrap(), Status::Busy);
    second.open();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(agent.state().await.unwrap().history().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn ask_cancelled_is_an_error_with_the_discarded_messages() {
    let gate = Gate::new();
    let step = Step::new().usage(tokens(3)).then_text(["Well"]).gate(&gate).hang();
    let (_, builder) = scripted([step]);
    let agent = builder.start().await.unwrap();
    let handle = agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&gate).await;
    agent.cancel().await.unwrap();
    let error = in_time(asked).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    let response = error.response().unwrap();
    assert_eq!((response.text().as_str(), response.usage), ("Well", tokens(3)));
    assert_eq!(response.stop_reason, StopReason::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn ask_interrupted_returns_the_kept_messages() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().then_text(["Well"]).gate(&gate).hang()]);
    let agent = builder.start().await.unwrap();
    let handle = agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&gate).await;
    agent.interrupt().await.unwrap();
    let response = in_time(asked).await.unwrap().unwrap();
    assert_eq!((response.text().as_str(), &response.stop_reason), ("Well", &StopReason::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn ask_interrupted_with_nothing_new_to_keep_returns_the_earlier_turns() {
    let gate = Gate::new();
    let first = Step::new().usage(tokens(10)).then_text(["One"]).stop();
    let (_, builder) = scripted([first, Step::new().gate(&gate).hang()]);
    let agent = builder.callbacks(Hooks::new().continuing(["More"])).start().await.unwrap();
    let handle = agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&gate).await;
    agent.interrupt().await.unwrap();
    let response = in_time(asked).await.unwrap().unwrap();
    assert_eq!((response.text().as_str(), response.usage), ("One", tokens(10)));
    assert_eq!(agent.state().await.unwrap().history().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn ask_failed_is_an_error_with_its_cause() {
    let down = || ProviderError::new(ProviderErrorKind::Service, "down");
    let broken = || Step::new().then_text(["A"]).fail(down());
    let (_, builder) = scripted([broken(), broken()]);
    let mut tries = 0;
    let hooks = Hooks::new().on_error(move |_, _| {
        tries += 1;
        if tries == 1 { ErrorDecision::Retry } else { ErrorDecision::Stop }
    });
    let agent = builder.callbacks(hooks).start().await.unwrap();
    let error = agent.ask("Hi").await.unwrap_err();
    assert_eq!(error.to_string(), format!("the run failed: {}", down()));
    let response = error.response().unwrap();
    assert_eq!(error.provider_error(), Some(&down()));
    assert_eq!((response.text().as_str(), response.step), ("A", 2));
}

#[tokio::test(start_paused = true)]
async fn ask_of_a_bad_prompt_is_refused_at_once() {
    let (provider, builder) = scripted([Step::text("Fine")]);
    let agent = builder.start().await.unwrap();
    for blank in ["", " \n"] {
        assert_eq!(agent.ask(blank).await.unwrap_err().kind(), ErrorKind::EmptyPrompt);
        assert_eq!(agent.prompt(blank).await.unwrap_err().kind(), ErrorKind::EmptyPrompt);
    }
    assert!(provider.requests().is_empty());
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Fine");
}

#[tokio::test(start_paused = true)]
async fn ask_dropped_does_not_cancel_the_run() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["Done"]).stop(), Step::text("Next")]);
    let mut agent = Watched::start(builder).await;
    let handle = agent.agent.clone();
    let asked = tokio::spawn(async move { handle.ask("Hi").await });
    reached(&gate).await;
    asked.abort();
    assert!(in_time(asked).await.unwrap_err().is_cancelled());
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Done"]);
    assert_eq!(agent.agent.ask("Again").await.unwrap().text(), "Next");
}

#[tokio::test(start_paused = true)]
async fn run_on_a_branch_of_an_agent_without_a_session_is_unsupported() {
    let (provider, builder) = scripted([]);
    let agent = builder.start().await.unwrap();
    let refused = |error: crate::Error| assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    refused(agent.run("Hi").below(None).start().await.unwrap_err());
    refused(agent.run("Hi").instead_of(NodeId::new(1).unwrap()).start().await.unwrap_err());
    refused(agent.run("Hi").below(None).response().await.unwrap_err());
    assert!(provider.requests().is_empty());
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
    people: u32,
}

#[tokio::test(start_paused = true)]
async fn ask_as_returns_the_typed_value_and_sends_its_schema_for_that_prompt() {
    let (provider, builder) =
        scripted([Step::text(r#"{"name": "Oslo", "people": 700000}"#), Step::text("Hi")]);
    let agent = builder.start().await.unwrap();
    let prompt = Prompt::new("A city?").with_options(Options::default().with_temperature(0.0));
    let city: City = agent.ask_as(prompt).await.unwrap();
    assert_eq!(city, City { name: "Oslo".into(), people: 700_000 });
    agent.ask("Hi").await.unwrap();
    let requests = provider.requests();
    let schema = requests[0].options.output().cloned().unwrap();
    assert_eq!(schema.name, "City");
    assert!(schema.schema.as_value()["properties"]["people"].is_object());
    assert_eq!(requests[0].options.temperature(), Some(0.0));
    assert!(requests[1].options.output().is_none());
}

#[tokio::test(start_paused = true)]
async fn ask_as_invalid_answer_is_an_error_with_the_response() {
    for (answer, words) in [("Oslo", "not JSON"), (r#"{"name": "Oslo"}"#, "people")] {
        let (_, builder) = scripted([Step::text(answer)]);
        let agent = builder.options(Options::default().with_output_retries(0)).start().await.unwrap();
        let error = agent.ask_as::<City>("A city?").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Output);
        assert!(error.to_string().contains(words), "{error}");
        let response = error.response().unwrap();
        assert_eq!((response.text().as_str(), agent.state().await.unwrap().history().len()), (answer, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn ask_as_value_fits_the_schema_but_not_the_type_is_an_error() {
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(try_from = "u32")]
    struct Even(#[expect(dead_code)] u32);
    impl TryFrom<u32> for Even {
        type Error = String;
        fn try_from(number: u32) -> Result<Self, String> {
            if number.is_multiple_of(2) { Ok(Self(number)) } else { Err(format!("{number} is odd")) }
        }
    }
    let (_, builder) = scripted([Step::text("4"), Step::text("3")]);
    let agent = builder.start().await.unwrap();
    agent.ask_as::<Even>("An even number").await.unwrap();
    let error = agent.ask_as::<Even>("An even number").await.unwrap_err();
    assert!(error.to_string().contains("3 is odd"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Output);
}

#[tokio::test(start_paused = true)]
async fn ask_as_turn_ends_before_an_answer_is_an_error_naming_that_cause() {
    let (_, builder) = scripted([Step::tool_use("a", "ask_user", json!({}))]);
    let agent = builder.tool(declared("ask_user")).start().await.unwrap();
    let error = agent.ask_as::<City>("A city?").await.unwrap_err();
    assert!(error.to_string().contains("tool_use"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Output);
    assert_eq!(error.response().unwrap().open_tool_uses.len(), 1);
}

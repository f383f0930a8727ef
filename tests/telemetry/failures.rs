//! Failed and cancelled operations.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use omni_agent::{
    Agent, AgentCallbacks, Response, ToolError,
    agent::{State, TurnDecision},
    async_trait,
    message::ToolUse,
    provider::{ProviderError, ProviderErrorKind, Request},
    testing::{Gate, ScriptedProvider, Step},
    tool::{ToolContext, ToolLimits, ToolSet},
    tool_fn,
};
use serde_json::{Value, json};
use tracing::Instrument;

use super::{
    alone::{alone, paused},
    collector::Collector,
    exporter::Exporter,
    tree::Node,
};

/// Returns the name of each span with its type and description of an error.
fn errors(spans: &[Node]) -> Vec<(&str, Option<&str>, Option<&str>)> {
    let mut errors = Vec::new();
    for span in spans {
        let kind = span.attributes.get("error.type").map(String::as_str);
        errors.push((span.name.as_str(), kind, span.error.as_deref()));
    }
    errors
}

#[test]
fn run_that_fails_shows_the_kind_of_its_failure_in_all_its_spans() {
    const TEST: &str = "failures::run_that_fails_shows_the_kind_of_its_failure_in_all_its_spans";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let refused = ProviderError::new(ProviderErrorKind::Auth, "wrong key").with_status(401);
            let provider = ScriptedProvider::new([Step::error(refused)]);
            let agent = Agent::builder().model(provider.model()).start().await.unwrap();
            agent.ask("Hello.").await.unwrap_err();
        });
        let words = Some("not authorised");
        let expected = [
            ("invoke_agent", Some("auth"), words),
            ("chat scripted", Some("auth"), words),
            ("attempt", Some("auth"), words),
        ];
        assert_eq!(errors(&collector.spans()), expected);
        assert_eq!(collector.spans()[0].attributes["gen_ai.response.finish_reasons"], r#"["error"]"#);
    });
}

struct Panics;

#[async_trait]
impl AgentCallbacks for Panics {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        panic!("a callback fails")
    }
}

#[test]
fn run_whose_callback_panics_closes_its_span_with_an_error() {
    const TEST: &str = "failures::run_whose_callback_panics_closes_its_span_with_an_error";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let provider = ScriptedProvider::new([Step::text("Hello.")]);
            let agent = Agent::builder().model(provider.model()).callbacks(Panics).start().await.unwrap();
            agent.ask("Hello.").await.unwrap_err();
            agent.wait_until_idle().await.unwrap();
            assert_eq!(collector.open(), [""; 0]);
        });
        let spans = collector.spans();
        assert_eq!(
            errors(&spans)[0],
            ("invoke_agent", Some("callback"), Some("callback handle_turn failed"))
        );
    });
}

#[test]
fn request_whose_provider_panics_shows_it() {
    const TEST: &str = "failures::request_whose_provider_panics_shows_it";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            for step in [Step::new().panic("boom"), Step::new().then_text(["Half"]).panic("boom")] {
                let agent = Agent::builder().model(ScriptedProvider::new([step]).model());
                agent.start().await.unwrap().ask("Hello.").await.unwrap_err();
            }
        });
        let spans = collector.spans();
        let failed: Vec<_> = errors(&spans).into_iter().filter(|(name, ..)| *name != "attempt").collect();
        let (kind, words) = (Some("provider_panicked"), Some("the provider panicked"));
        let expected = [("invoke_agent", kind, words), ("chat scripted", kind, words)];
        assert_eq!(failed, [expected, expected].concat());
        assert_eq!(collector.open(), [""; 0]);
    });
}

#[test]
fn spans_of_a_run_that_is_cancelled_or_interrupted_end_with_it() {
    const TEST: &str = "failures::spans_of_a_run_that_is_cancelled_or_interrupted_end_with_it";
    alone(TEST, &[], || {
        let exporter = Exporter::install();
        paused(async {
            for (is_cancelled, is_in_tool) in [(true, false), (true, true), (false, false), (false, true)] {
                let gate = Gate::new();
                let step = if is_in_tool {
                    Step::tool_use("call-1", "wait", json!({}))
                } else {
                    Step::new().then_text(["Half"]).gate(&gate)
                };
                let waits = gate.clone();
                let wait = tool_fn("wait", "Waits.", move |_: Value, _| {
                    let gate = waits.clone();
                    async move {
                        gate.pass().await;
                        Ok::<_, ToolError>("")
                    }
                });
                let model = ScriptedProvider::new([step]).model();
                let agent = Agent::builder().model(model).tool(wait).start().await.unwrap();
                agent.prompt("Hello.").await.unwrap();
                gate.reached().await;
                let before = SystemTime::now();
                if is_cancelled {
                    agent.cancel().await.unwrap();
                } else {
                    agent.interrupt().await.unwrap();
                }
                agent.wait_until_idle().await.unwrap();
                let ends = exporter.ends();
                let late: Vec<_> =
                    ends.iter().filter(|(_, end)| *end >= before).map(|(name, _)| &**name).collect();
                let expected: &[&str] = if is_in_tool {
                    &["execute_tool wait", "invoke_agent"]
                } else {
                    &["attempt", "chat scripted", "invoke_agent"]
                };
                assert_eq!(late, expected, "cancelled: {is_cancelled}");
            }
        });
    });
}

#[test]
fn response_that_is_truncated_or_dropped_shows_it() {
    const TEST: &str = "failures::response_that_is_truncated_or_dropped_shows_it";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let provider = ScriptedProvider::new([
                Step::new().then_text(["Half"]),
                Step::new().then_text(["Half"]).hang(),
                Step::new().then_text(["Half"]).fail(ProviderError::new(ProviderErrorKind::Transport, "cut")),
            ]);
            let model = provider.model();
            model.generate(Request::prompt("Hello.")).await.unwrap_err();
            let mut stream = model.stream(Request::prompt("Hello."));
            stream.next().await.unwrap().unwrap();
            drop(stream);
            model.generate(Request::prompt("Hello.")).await.unwrap_err();
        });
        let cut = Some("transport failed");
        let expected = [
            ("chat scripted", Some("truncated"), Some("truncated response")),
            ("attempt", None, None),
            ("chat scripted", Some("cancelled"), None),
            ("attempt", None, None),
            ("chat scripted", Some("transport"), cut),
            ("attempt", Some("transport"), cut),
        ];
        assert_eq!(errors(&collector.spans()), expected);
        assert_eq!(collector.open(), [""; 0]);
    });
}

#[test]
fn tool_call_that_fails_times_out_or_is_dropped_shows_it() {
    const TEST: &str = "failures::tool_call_that_fails_times_out_or_is_dropped_shows_it";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let fails =
                tool_fn("fails", "Fails.", |_: Value, _| async { Err::<String, _>(ToolError::new("no")) });
            let hangs =
                tool_fn("hangs", "Hangs.", |_: Value, _| std::future::pending::<Result<String, ToolError>>());
            let tools = ToolSet::new().with(fails).unwrap().with(hangs).unwrap();
            let limits = ToolLimits::default().with_timeout(Duration::from_secs(1));
            let run = async |name: &str| {
                let tool_use = ToolUse::new("call-1", name, json!({}));
                tools.run(&tool_use, ToolContext::detached("call-1"), &limits).await
            };
            assert!(run("fails").await.is_error);
            assert!(run("hangs").await.is_error);
            assert!(run("missing").await.is_error);
            let dropped = tokio::time::timeout(Duration::from_millis(10), run("hangs")).await;
            assert!(dropped.is_err());
        });
        let (error, words) = (Some("tool_error"), Some("the tool call returned an error"));
        let expected = [
            ("execute_tool fails", error, words),
            ("execute_tool hangs", error, words),
            ("execute_tool missing", error, words),
            ("execute_tool hangs", Some("cancelled"), None),
        ];
        assert_eq!(errors(&collector.spans()), expected);
        assert_eq!(collector.open(), [""; 0]);
    });
}

#[test]
fn staged_prompt_that_is_withdrawn_closes_its_callers_span_during_the_run() {
    const TEST: &str = "failures::staged_prompt_that_is_withdrawn_closes_its_callers_span_during_the_run";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let gate = Gate::new();
            let provider = ScriptedProvider::new([Step::new().gate(&gate).then_text(["Hello."]).stop()]);
            let agent = Agent::builder().model(provider.model()).start().await.unwrap();
            agent.prompt("Hello.").await.unwrap();
            gate.reached().await;
            let caller = tracing::info_span!(target: "test", "caller");
            let staged = omni_agent::Prompt::new("Wait.").with_id("staged");
            agent.prompt(staged).instrument(caller).await.unwrap();
            assert_eq!(collector.open(), ["invoke_agent", "chat scripted", "attempt", "caller"]);
            agent.unstage("staged").await.unwrap();
            assert_eq!(collector.open(), ["invoke_agent", "chat scripted", "attempt"]);
            gate.open();
            agent.wait_until_idle().await.unwrap();
            assert_eq!(collector.open(), [""; 0]);
            assert_eq!(collector.spans()[0].links, [""; 0]);
        });
    });
}

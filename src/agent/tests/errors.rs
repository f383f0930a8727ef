//! Failing steps: `handle_error`, retries, and the time limit of a turn.

use std::{future::pending, time::Duration};

use crate::{
    agent::{
        Agent, AgentBuilder, AgentCallbacks, ErrorDecision, Event, Failure, Prompt, Response, State,
        ToolDecision, TurnDecision,
    },
    message::ToolResult,
    provider::{ProviderError, ProviderErrorKind, RetryPolicy},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, ToolLimits, tool_fn},
};
use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    hooks::{Hooks, Log, Watched, failed, noting, reached, sent, stopped, tokens},
    support::{names, returned, scripted},
};

fn down() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Service, "down")
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test(start_paused = true)]
async fn handle_error_discard_ends_the_run_and_carries_the_discarded_messages() {
    let step = Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop();
    let broken = Step::new().usage(tokens(3)).then_text(["A c"]).fail(down());
    let (_, builder) = scripted([step, broken, Step::text("Hello")]);
    let seen = Log::<Failure>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        noted.push(failure.clone());
        ErrorDecision::Discard
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let events = agent.run("Look").await;
    let (failure, response) = failed(&events);
    assert_eq!(seen.all(), std::slice::from_ref(&failure));
    let Failure::Provider { error } = failure else { panic!("{failure:?}") };
    assert_eq!(*error, down());
    assert_eq!((response.messages.len(), response.usage, response.text().as_str()), (4, tokens(13), "A c"));
    let names = names(&events);
    assert_eq!(names[names.len() - 3..], ["usage", "status(idle)", "error"]);
    assert!(agent.history().await.is_empty(), "the history is unchanged");
    assert_eq!(stopped(&agent.run("Hi").await).text(), "Hello");
}

#[tokio::test(start_paused = true)]
async fn handle_error_default_stops() {
    let (_, builder) = scripted([Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key"))]);
    let mut agent = Watched::start(builder).await;
    let (failure, response) = failed(&agent.run("Hi").await);
    let Failure::Provider { error } = failure else { panic!("{failure:?}") };
    assert_eq!(
        (error.kind, response.message.is_none(), response.messages.len()),
        (ProviderErrorKind::Auth, true, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn handle_error_is_not_called_for_retries_of_the_provider() {
    let busy = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let (_, builder) = scripted([busy(), busy(), busy(), Step::text("Finally")]);
    let seen = Log::<Failure>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        noted.push(failure.clone());
        ErrorDecision::Retry
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    assert_eq!((seen.all().len(), stopped(&events).step), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn retry_by_the_policy_does_not_count_as_a_step_of_the_view() {
    let busy = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let (_, builder) = scripted([busy(), busy(), Step::text("Finally")]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    for _ in 0..2 {
        let events = agent.until("retry").await;
        let Event::Retry { step, .. } = &**events.last().unwrap() else { unreachable!() };
        // The view has not applied the event that announces the repeated request yet, so it still shows step 1.
        assert_eq!((*step, agent.view.step), (1, 1));
    }
    assert_eq!(stopped(&agent.end().await).step, 1);
}

#[tokio::test(start_paused = true)]
async fn retry_policy_of_the_agent_replaces_that_of_the_model() {
    let busy = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let policy = |max_retries, base_delay| RetryPolicy { max_retries, base_delay, ..RetryPolicy::default() };
    for (of_agent, requests, at_least) in
        [(None, 2, seconds(3)), (Some(policy(3, seconds(1))), 4, seconds(5))]
    {
        let provider = ScriptedProvider::from_fn(move |_| busy());
        let model = provider.model().with_retry_policy(policy(1, seconds(4)));
        let builder = Agent::builder().model(model);
        let agent = of_agent.into_iter().fold(builder, AgentBuilder::retry_policy).start().await.unwrap();
        let start = Instant::now();
        assert!(agent.ask("Hi").await.unwrap_err().provider_error().is_some());
        assert_eq!(provider.requests().len(), requests);
        assert!((at_least..seconds(8)).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn handle_error_retry_repeats_the_step_and_voids_its_output() {
    let step = Step::new().usage(tokens(10)).then_tool_use("a", "look", json!({})).stop();
    let broken = Step::new().then_text(["A d"]).fail(down());
    let cat = Step::new().usage(tokens(5)).then_text(["A cat"]).stop();
    let (provider, builder) = scripted([step, broken, cat]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.agent.prompt("Look").await.unwrap();
    let before = agent.until("retry").await;
    let Event::Retry { failure, delay, pending, complete: false, step, .. } = &**before.last().unwrap()
    else {
        unreachable!()
    };
    assert!(matches!(failure, Failure::Provider { error } if **error == down()));
    assert_eq!((*delay, *pending, *step, agent.view.step), (Duration::ZERO, 3, 3, 3));
    assert!(agent.view.partial.is_empty(), "the partial output is void");
    let events = agent.end().await;
    assert_eq!(
        names(&events),
        [
            "step_start",
            "text_start",
            "text_delta",
            "text_end",
            "message(assistant)",
            "step",
            "status(idle)",
            "turn(stop)"
        ]
    );
    let requests = provider.requests();
    assert_eq!(requests[1].history, requests[2].history, "the retry has the same history");
    let response = stopped(&events);
    assert_eq!((response.usage, response.step, response.messages.len()), (tokens(15), 3, 4));
    assert_eq!(
        agent.history().await,
        ["user: Look", "assistant: use a", "user: result a", "assistant: A cat"]
    );
}

#[tokio::test(start_paused = true)]
async fn handle_error_retry_counts_the_usage_of_the_void_output_once() {
    let broken = Step::new().usage(tokens(2)).then_text(["A d"]).usage(tokens(3)).fail(down());
    let cat = Step::new().usage(tokens(5)).then_text(["A cat"]).stop();
    let (_, builder) = scripted([broken, cat]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let events = agent.run("Look").await;
    assert_eq!(stopped(&events).usage, tokens(8));
    assert_eq!(super::hooks::steps(&events)[0].usage, tokens(5));
}

#[tokio::test(start_paused = true)]
async fn handle_error_retry_after_waits_for_the_delay() {
    let broken = Step::new().then_text(["A d"]).fail(down());
    let (_, builder) = scripted([broken, Step::text("A cat")]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::RetryAfter(seconds(90)));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let start = Instant::now();
    agent.agent.prompt("Look").await.unwrap();
    let events = agent.until("retry").await;
    assert!(matches!(&**events.last().unwrap(), Event::Retry { delay, .. } if *delay == seconds(90)));
    assert!(start.elapsed() < seconds(1));
    agent.check().await;
    agent.end().await;
    assert!((seconds(90)..seconds(91)).contains(&start.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn handle_error_edits_apply_to_the_retry() {
    let broken = Step::new()
        .then_text(["A d"])
        .fail(ProviderError::new(ProviderErrorKind::ContextTooLong, "too long"));
    let (provider, builder) = scripted([broken, Step::text("A cat")]);
    let hooks = Hooks::new().on_error(|_, state| {
        state.config_mut().settings.system = None;
        ErrorDecision::Retry
    });
    let mut agent = Watched::start(builder.system("A long text").callbacks(hooks)).await;
    agent.run("Look").await;
    let systems: Vec<_> = provider.requests().into_iter().map(|request| request.system).collect();
    assert_eq!(systems, [Some("A long text".into()), None]);
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_without_a_stop_reason_is_truncated() {
    let (_, builder) = scripted([Step::new().then_text(["Half a"]), Step::text("Hello")]);
    let mut agent = Watched::start(builder).await;
    let (failure, response) = failed(&agent.run("Hi").await);
    let Failure::Provider { error } = failure else { panic!("{failure:?}") };
    assert_eq!((error.kind, response.text().as_str()), (ProviderErrorKind::Truncated, "Half a"));
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Half a"]);
}

#[tokio::test(start_paused = true)]
async fn error_event_carries_the_staged_prompt_back() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().then_text(["A"]).gate(&gate).fail(down())]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("Later").with_max_steps(3)).await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert!(matches!(&**events.last().unwrap(), Event::Error { .. }), "{:?}", events.last());
    let staged = returned(&events);
    assert_eq!((&staged[0].content, staged[0].max_steps), (&"Later".into(), Some(3)));
}

#[tokio::test(start_paused = true)]
async fn missing_key_is_an_error_that_names_the_key() {
    #[cfg(feature = "http")]
    {
        use crate::{
            agent::Agent,
            provider::{Registry, http::Endpoint},
        };
        let mut registry = Registry::empty();
        let endpoint = Endpoint::openai_compatible("local", "http://127.0.0.1:9");
        registry.register(std::sync::Arc::new(endpoint.with_key_variable("A_KEY_THAT_NOBODY_SET")));
        let builder = Agent::builder().registry(registry).model("local:any");
        let mut agent = Watched::start(builder).await;
        let (failure, response) = failed(&agent.run("Hi").await);
        let Failure::Provider { error } = failure else { panic!("{failure:?}") };
        assert_eq!(error.kind, ProviderErrorKind::Auth);
        assert!(error.message.contains("A_KEY_THAT_NOBODY_SET"), "{error}");
        assert_eq!(response.messages[0].text(), "Hi", "the staged prompt is carried back");
    }
}

// ---- the time limit ----

#[tokio::test(start_paused = true)]
async fn turn_timeout_ends_the_turn_with_a_time_limit_error() {
    let (_, builder) = scripted([Step::new().usage(tokens(4)).then_text(["Well"]).hang()]);
    let seen = Log::<Failure>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        noted.push(failure.clone());
        ErrorDecision::Stop
    });
    let mut agent = Watched::start(builder.turn_timeout(seconds(10)).callbacks(hooks)).await;
    let start = Instant::now();
    let (failure, response) = failed(&agent.run("Hi").await);
    assert_eq!(failure, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(seen.all(), [failure]);
    assert_eq!((response.text().as_str(), response.usage), ("Well", tokens(4)));
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_retry_restarts_the_time() {
    let slow = Step::new().wait(seconds(8)).then_text(["Done"]).stop();
    let (provider, builder) = scripted([Step::new().then_text(["We"]).hang(), slow]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let mut agent = Watched::start(builder.turn_timeout(seconds(10)).callbacks(hooks)).await;
    let start = Instant::now();
    let events = agent.run("Hi").await;
    assert_eq!((stopped(&events).text().as_str(), start.elapsed().as_secs()), ("Done", 18));
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_while_tools_run_retries_the_step_before_them() {
    let calls = || Step::tool_use("a", "stall", json!({}));
    let (provider, builder) = scripted([calls(), Step::text("Without tools")]);
    let cancelled = Log::<bool>::default();
    let noted = cancelled.clone();
    let stall = tool_fn("stall", "Never ends.", move |_: Value, context| {
        let noted = noted.clone();
        async move {
            let context: crate::tool::ToolContext = context;
            tokio::spawn({
                let context = context.clone();
                async move {
                    context.cancelled().await;
                    noted.push(true);
                }
            });
            pending::<()>().await;
            Ok("")
        }
    });
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let limits = ToolLimits::default().with_timeout(Duration::MAX);
    let builder = builder.turn_timeout(seconds(10)).tool(stall).tool_limits(limits).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Without tools"]);
    let requests = provider.requests();
    assert_eq!(requests[0].history, requests[1].history);
    assert_eq!((stopped(&events).step, cancelled.all()), (2, vec![true]));
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_after_a_tool_has_ended_retries_without_running_it_again() {
    let step = || Step::new().then_tool_use("a", "pay", json!({})).then_tool_use("b", "stall", json!({}));
    for (decision, delay) in [(ErrorDecision::Retry, 0), (ErrorDecision::RetryAfter(seconds(1)), 1)] {
        let done = Step::new().wait(seconds(8)).then_text(["Paid"]).stop();
        let (provider, builder) = scripted([step().stop(), done]);
        let paid = Log::<String>::default();
        let stall = tool_fn("stall", "Never ends.", |_: Value, _| async {
            pending::<()>().await;
            Ok("")
        });
        let hooks = Hooks::new().on_error(move |_, _| decision);
        let builder = builder.turn_timeout(seconds(10)).tool(noting("pay", &paid)).tool(stall);
        let mut agent = Watched::start(builder.callbacks(hooks)).await;
        let start = Instant::now();
        let events = agent.run("Hi").await;
        assert_eq!((stopped(&events).text().as_str(), stopped(&events).step), ("Paid", 2));
        assert_eq!((paid.all().len(), start.elapsed().as_secs()), (1, 10 + delay + 8));
        let sent = provider.last_request().unwrap().history;
        let results: Vec<_> = sent.last().unwrap().tool_results().map(ToolResult::text).collect();
        assert_eq!(
            results,
            ["pay done", "Interrupted while the tool was running. It may have had an effect."]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_is_paused_while_the_run_is_paused() {
    let (_, builder) = scripted([
        Step::tool_use("a", "look", json!({})),
        Step::new().wait(seconds(8)).then_text(["Done"]).stop(),
    ]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let builder = builder.turn_timeout(seconds(10)).tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("pause").await;
    tokio::time::advance(Duration::from_hours(1)).await;
    agent.agent.resume("a", Decision::Execute).await.unwrap();
    assert_eq!(stopped(&agent.end().await).text(), "Done");
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_resumes_after_a_pause_with_the_remaining_time() {
    let asks = Step::new().wait(seconds(6)).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([asks, Step::new().then_text(["We"]).hang()]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let builder = builder.turn_timeout(seconds(10)).tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("pause").await;
    let resumed = Instant::now();
    agent.agent.resume("a", Decision::Execute).await.unwrap();
    let (failure, _) = failed(&agent.end().await);
    assert_eq!((failure, resumed.elapsed().as_secs()), (Failure::TimeLimit { limit: seconds(10) }, 4));
}

/// Callbacks that never return when a turn ends or a step fails.
struct Stuck;

#[async_trait]
impl AgentCallbacks for Stuck {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        pending().await
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_restarts_with_each_turn_and_includes_callbacks() {
    let slow = || Step::new().wait(seconds(8)).then_text(["Done"]).stop();
    let (_, builder) = scripted([slow(), slow()]);
    let builder = builder.turn_timeout(seconds(10)).callbacks(Hooks::new().continuing(["More"]));
    let mut agent = Watched::start(builder).await;
    stopped(&agent.run("Hi").await);

    let (_, builder) = scripted([Step::text("Done")]);
    let mut agent = Watched::start(builder.turn_timeout(seconds(10)).callbacks(Stuck)).await;
    let start = Instant::now();
    let (failure, _) = failed(&agent.run("Hi").await);
    assert_eq!(failure, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(start.elapsed().as_secs(), 20, "handle_error hangs as well, and has the same time");
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_while_handle_error_hangs_ends_the_run() {
    let (_, builder) = scripted([Step::new().then_text(["A"]).fail(down())]);
    let mut agent = Watched::start(builder.turn_timeout(seconds(10)).callbacks(Stuck)).await;
    let (failure, _) = failed(&agent.run("Hi").await);
    assert_eq!(failure, Failure::TimeLimit { limit: seconds(10) });
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_counts_the_delay_before_a_retry() {
    let (provider, builder) = scripted([Step::new().then_text(["A"]).fail(down()), Step::text("Too late")]);
    let hooks = Hooks::new().on_error(|failure, _| match failure {
        Failure::TimeLimit { .. } => ErrorDecision::Stop,
        _ => ErrorDecision::RetryAfter(seconds(20)),
    });
    let mut agent = Watched::start(builder.turn_timeout(seconds(10)).callbacks(hooks)).await;
    let (failure, _) = failed(&agent.run("Hi").await);
    assert_eq!(failure, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_of_a_prompt_replaces_the_one_of_the_agent() {
    let slow = || Step::new().wait(seconds(20)).then_text(["Done"]).stop();
    let (_, builder) = scripted([slow(), slow()]);
    let mut agent = Watched::start(builder.turn_timeout(seconds(10))).await;
    stopped(&agent.run(Prompt::new("Hi").with_turn_timeout(seconds(30))).await);
    let (failure, _) = failed(&agent.run("Hi").await);
    assert_eq!(failure, Failure::TimeLimit { limit: seconds(10) });
    let zero = agent.agent.prompt(Prompt::new("Hi").with_turn_timeout(Duration::ZERO)).await.unwrap_err();
    assert!(zero.to_string().starts_with("turn_timeout is zero"), "{zero:?}");
    assert_eq!(zero.kind(), ErrorKind::InvalidSettings);
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_of_an_idle_agent_does_nothing() {
    let (provider, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let mut agent = Watched::start(builder.turn_timeout(seconds(10))).await;
    agent.run("Hi").await;
    tokio::time::sleep(seconds(60)).await;
    agent.run("Hi").await;
    assert_eq!(sent(&provider.requests()[1]).len(), 3);
}

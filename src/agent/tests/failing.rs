//! Runs that fail after they have done work: which messages are kept, and in which form.

use std::{future::pending, sync::Arc, time::Duration};

use crate::{
    agent::{Agent, ErrorDecision, Event, Failure, Next, Prompt, RunEnd, RunOutcome},
    message::{Attachment, Content, History, RequestEnd, ResultBlock, ToolResult, UsageRow},
    provider::{ProviderError, ProviderErrorKind, Registry, Request, StopReason},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{ToolLimits, ToolOutput, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, failed, noting, reached, sent, stopped, tokens},
    support::{names, returned, scripted},
};

fn down() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Auth, "down")
}

fn look(id: &str) -> Step {
    Step::tool_use(id, "look", json!({}))
}

fn committed(events: &[Arc<Event>]) -> bool {
    match events.last().map(|event| &**event) {
        Some(Event::Error { committed, .. }) => *committed,
        other => panic!("{other:?}"),
    }
}

fn briefs(history: &History) -> Vec<String> {
    history.iter().map(|message| brief(message)).collect()
}

#[tokio::test(start_paused = true)]
async fn failure_after_tool_steps_commits_them() {
    let (provider, builder) = scripted([look("a"), look("b"), Step::error(down()), Step::text("Hello")]);
    let log = Log::default();
    let mut agent = Watched::start(builder.tool(noting("look", &log))).await;
    let events = agent.run("Look").await;
    let work = ["user: Look", "assistant: use a", "user: result a", "assistant: use b", "user: result b"];
    assert_eq!(agent.history().await, work);
    assert!(committed(&events));
    let (failure, response) = failed(&events);
    assert_eq!(failure, down().into());
    assert_eq!(response.messages.len(), 5);
    assert_eq!(response.stop_reason, StopReason::Failed);
    let names = names(&events);
    assert_eq!(names[names.len() - 3..], ["step_start", "status(idle)", "error"]);
    let end = RunEnd::new(RunOutcome::Failed { failure }).with_turn(response.turn.unwrap());
    let last_run = agent.agent.snapshot().await.unwrap().last_run.unwrap();
    assert_eq!(*last_run, end, "no prompt is returned");
    assert_eq!(agent.view.last_run.as_deref(), Some(&end));

    stopped(&agent.run("Hi").await);
    let sent = sent(&provider.last_request().unwrap());
    assert_eq!(sent[..5], work);
    assert_eq!(log.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn failure_within_a_text_commits_the_text() {
    let usage = tokens(3);
    let broken = Step::new().usage(usage).then_thinking("Hm", "s").then_text(["Half", " an"]).fail(down());
    let (_, builder) = scripted([broken]);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    assert_eq!(agent.history().await.last().unwrap().split(", ").last(), Some("Half an"));
    assert!(committed(&events));
    let (_, response) = failed(&events);
    assert_eq!((response.usage, response.text().as_str()), (usage, "Half an"));
    let rows: Vec<UsageRow> = events
        .iter()
        .filter_map(|event| match &**event {
            Event::Usage(row) => Some((**row).clone()),
            _ => None,
        })
        .collect();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].end, rows[0].usage), (RequestEnd::Failed, usage));
    let names = names(&events);
    let end = ["usage", "text_end", "message(assistant)", "status(idle)", "error"];
    assert_eq!(names[names.len() - 5..], end);
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_first_request_commits_nothing() {
    let thinking = Step::new().then_thinking("Hm", "s").fail(down());
    for step in [Step::error(down()), thinking] {
        let (_, builder) = scripted([step]);
        let mut agent = Watched::start(builder).await;
        let events = agent.run("Hi").await;
        assert!(agent.history().await.is_empty());
        assert!(!committed(&events));
        let last_run = agent.agent.snapshot().await.unwrap().last_run.unwrap();
        assert_eq!(last_run.unanswered[0].text(), "Hi");
    }
}

#[tokio::test(start_paused = true)]
async fn failure_that_handle_error_discards_commits_nothing() {
    let broken = Step::new().then_text(["Half"]).fail(down());
    let (_, builder) = scripted([look("a"), broken, Step::text("Hello")]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Discard);
    let builder = builder.tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Look").await;
    assert!(!committed(&events));
    assert_eq!(failed(&events).1.messages.len(), 4, "the event has the discarded messages");
    assert!(agent.history().await.is_empty());
    let last_run = agent.agent.snapshot().await.unwrap().last_run.unwrap();
    assert_eq!(last_run.unanswered[0].text(), "Look");
    stopped(&agent.run("Hi").await);
}

#[tokio::test(start_paused = true)]
async fn failure_in_which_handle_error_panics_commits_nothing() {
    let (_, builder) = scripted([look("a"), Step::error(down())]);
    let hooks = Hooks::new().on_error(|_, _| panic!("boom"));
    let builder = builder.tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Look").await;
    assert!(matches!(failed(&events).0, Failure::Callback { .. }));
    assert!(!committed(&events));
    assert!(agent.history().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn failure_with_retry_at_the_limit_of_requests_commits_the_steps() {
    let (_, builder) = scripted([look("a"), Step::error(down())]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let builder = builder.max_steps(2).tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    assert!(committed(&agent.run("Look").await));
    assert_eq!(agent.history().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn failure_of_the_provider_by_a_panic_commits_the_steps() {
    let (_, builder) = scripted([look("a"), Step::new().panic("boom")]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let events = agent.run("Look").await;
    assert!(matches!(failed(&events).0, Failure::ProviderPanicked { .. }));
    assert!(committed(&events));
    assert_eq!(agent.history().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn failure_by_the_time_limit_gives_running_tools_a_result_that_names_it() {
    let (_, builder) = scripted([Step::new()
        .then_tool_use("a", "look", json!({}))
        .then_tool_use("b", "stall", json!({}))
        .stop()]);
    let stall = tool_fn("stall", "Never ends.", |_: Value, _| async {
        pending::<()>().await;
        Ok("")
    });
    let limits = ToolLimits::default().with_timeout(Duration::MAX);
    let builder = builder.turn_timeout(Duration::from_secs(10)).tool_limits(limits);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).tool(stall)).await;
    let events = agent.run("Look").await;
    assert!(committed(&events));
    let response = failed(&events).1;
    let results: Vec<_> = response.messages[2].tool_results().collect();
    let [finished, running] = results[..] else { panic!("{results:?}") };
    assert_eq!((finished.is_error, finished.text().as_str()), (false, "look done"));
    let text = "The run failed while the tool was running (the turn took longer than its limit of 10s). It may have \
                had an effect.";
    assert_eq!((running.is_error, running.text().as_str()), (true, text));
    agent.agent.state().await.unwrap().history().check_sendable().unwrap();
}

#[tokio::test(start_paused = true)]
async fn failure_within_tool_uses_gives_them_results_that_name_it() {
    let broken = Step::new().then_tool_use("a", "look", json!({})).fail(down());
    let (_, builder) = scripted([broken]);
    let log = Log::default();
    let mut agent = Watched::start(builder.tool(noting("look", &log))).await;
    let events = agent.run("Look").await;
    let response = failed(&events).1;
    let result = response.messages[2].tool_results().next().unwrap();
    assert_eq!(result.text(), "The run failed (not authorised). The tool was not run.");
    assert!(log.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn time_limit_while_handle_error_hangs_commits_the_steps() {
    struct Stuck;
    #[async_trait::async_trait]
    impl crate::agent::AgentCallbacks for Stuck {
        async fn handle_error(&mut self, _: &Failure, _: &mut crate::agent::State) -> ErrorDecision {
            pending().await
        }
    }
    let (_, builder) = scripted([look("a"), Step::error(down())]);
    let builder = builder.turn_timeout(Duration::from_secs(10)).tool(noting("look", &Log::default()));
    let mut agent = Watched::start(builder.callbacks(Stuck)).await;
    let events = agent.run("Look").await;
    assert!(committed(&events));
    assert!(matches!(failed(&events).0, Failure::TimeLimit { .. }));
    assert_eq!(agent.history().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn failure_returns_joined_prompts_without_an_answer() {
    let gate = Gate::new();
    let wait = gate.clone();
    let slow = tool_fn("slow", "Waits.", move |_: Value, _| {
        let wait = wait.clone();
        async move {
            wait.pass().await;
            Ok("done")
        }
    });
    let (_, builder) = scripted([Step::tool_use("a", "slow", json!({})), Step::error(down())]);
    let mut agent = Watched::start(builder.tool(slow)).await;
    agent.agent.prompt("Look").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("And this").at(Next::Step)).await.unwrap();
    agent.agent.prompt("Later").await.unwrap();
    gate.open();
    let events = agent.end().await;
    assert!(matches!(&**events.last().unwrap(), Event::Error { committed: true, .. }), "{:?}", events.last());
    let returned: Vec<_> = returned(&events).iter().map(|prompt| prompt.content.clone()).collect();
    assert_eq!(returned, ["And this".into(), "Later".into()]);
    assert_eq!(agent.history().await, ["user: Look", "assistant: use a", "user: result a"]);
}

#[tokio::test(start_paused = true)]
async fn ask_of_a_failed_run_returns_what_was_kept() {
    let (_, builder) = scripted([Step::text("One"), look("a"), Step::error(down())]);
    let hooks = Hooks::new().continuing(["More"]);
    let agent = builder.tool(noting("look", &Log::default())).callbacks(hooks).start().await.unwrap();
    let error = agent.ask("Look").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed, "{error:?}");
    let kept: History = error.response().unwrap().messages.iter().cloned().collect();
    assert_eq!(briefs(&kept), briefs(agent.state().await.unwrap().history()), "all turns of the run");
    assert_eq!(kept.len(), 5);
    assert!(agent.ask(" ").await.unwrap_err().response().is_none());
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_later_turn_leaves_earlier_turns_committed() {
    let (_, builder) = scripted([Step::text("One"), Step::error(down())]);
    let mut agent = Watched::start(builder.callbacks(Hooks::new().continuing(["More"]))).await;
    let events = agent.run("Look").await;
    assert!(!committed(&events), "the second turn has only its prompt");
    assert_eq!(agent.history().await, ["user: Look", "assistant: One"]);
}

// ---- content that the service refuses ----

/// Answers each request that contains no attachment and at most 2,000 bytes. Refuses all others.
fn strict(kind: ProviderErrorKind) -> ScriptedProvider {
    ScriptedProvider::from_fn(move |request| {
        if request.history.iter().all(|message| message.tool_uses().next().is_none()) {
            return Step::new().then_tool_use("a", "fetch", json!({})).stop();
        }
        if is_big(request) {
            return Step::error(ProviderError::new(kind, "refused"));
        }
        Step::text("Answer")
    })
}

fn is_big(request: &Request) -> bool {
    let results = request.history.iter().flat_map(|message| message.tool_results());
    results.flat_map(|result| &result.content).any(|block| match block {
        ResultBlock::Text(text) => text.text.len() > 2000,
        ResultBlock::Attachment(_) => true,
    })
}

/// The results in the history, as texts.
async fn kept_results(agent: &Agent) -> Vec<String> {
    let history = agent.state().await.unwrap().history().clone();
    history.iter().flat_map(|message| message.tool_results()).map(ToolResult::text).collect()
}

/// Makes a block of a result.
type Block = fn() -> ResultBlock;

#[tokio::test(start_paused = true)]
async fn refused_results_are_cleared_so_the_next_prompt_is_answered() {
    let picture = || ResultBlock::from(Attachment::base64("image/png", "A".repeat(4000)));
    let file = || ResultBlock::from(Attachment::base64("application/x-cad", "A".repeat(40)));
    let note = |removed| format!("Short[Removed after an error of the model service: {removed}]");
    let cases: [(ProviderErrorKind, Block, String); 3] = [
        (ProviderErrorKind::InvalidRequest, picture, note("image/png, 3 KB")),
        (ProviderErrorKind::Unsupported, file, note("application/x-cad, 1 KB")),
        (ProviderErrorKind::ContextTooLong, || "x".repeat(12_345).into(), note("12,345 characters")),
    ];
    for (kind, block, kept) in cases {
        let fetch = tool_fn("fetch", "Fetches.", move |_: Value, _| async move {
            Ok(ToolOutput::from(vec!["Short".into(), block()]))
        });
        let agent = Agent::builder().model(strict(kind).model()).tool(fetch).start().await.unwrap();
        let error = agent.ask("Fetch").await.unwrap_err();
        assert_eq!(error.provider_error().map(|error| error.kind), Some(kind));
        assert_eq!(kept_results(&agent).await, [kept]);
        let told = error.response().unwrap().messages[2].tool_results().next().unwrap().text();
        assert_eq!(told, kept_results(&agent).await[0], "the event has the cleared form");
        let answer = agent.ask("And now?").await;
        assert_eq!(
            answer.map(|answer| answer.text()).map_err(|error| error.to_string()),
            Ok("Answer".into())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refused_results_are_cleared_if_the_time_limit_ends_the_repetitions() {
    let fetch = tool_fn("fetch", "Fetches.", |_: Value, _| async { Ok("x".repeat(5000)) });
    let hooks = Hooks::new().on_error(|failure, _| match failure {
        Failure::TimeLimit { .. } => ErrorDecision::Stop,
        _ => ErrorDecision::RetryAfter(Duration::from_secs(7)),
    });
    let model = strict(ProviderErrorKind::ContextTooLong).model();
    let builder = Agent::builder().model(model).tool(fetch).turn_timeout(Duration::from_secs(20));
    let agent = builder.callbacks(hooks).start().await.unwrap();
    let error = agent.ask("Fetch").await.unwrap_err();
    assert!(matches!(error.failure(), Some(Failure::TimeLimit { .. })), "{error:?}");
    assert_eq!(agent.ask("And now?").await.unwrap().text(), "Answer");
}

#[tokio::test(start_paused = true)]
async fn results_whose_response_has_begun_are_kept_whole() {
    let refusal = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
    let long = "x".repeat(5000);
    let begun = [
        (Step::new().then_text(["Half"]).fail(refusal.clone()), &long),
        // The thinking can't be kept, but the service has read the results.
        (Step::new().then_thinking("Hm", "s").fail(refusal), &long),
        (Step::error(down()), &long),
    ];
    for (step, kept) in begun {
        let (_, builder) = scripted([Step::tool_use("a", "fetch", json!({})), step]);
        let fetch = tool_fn("fetch", "Fetches.", |_: Value, _| async { Ok("x".repeat(5000)) });
        let agent = builder.tool(fetch).start().await.unwrap();
        agent.ask("Fetch").await.unwrap_err();
        assert_eq!(kept_results(&agent).await, [kept.as_str()]);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_results_of_an_earlier_step_are_kept_whole() {
    let refusal = ProviderError::new(ProviderErrorKind::ContextTooLong, "no");
    let use_of = |id| Step::tool_use(id, "fetch", json!({}));
    let (_, builder) = scripted([use_of("a"), use_of("b"), Step::error(refusal)]);
    let fetch = tool_fn("fetch", "Fetches.", |_: Value, _| async { Ok("x".repeat(5000)) });
    let agent = builder.tool(fetch).start().await.unwrap();
    agent.ask("Fetch").await.unwrap_err();
    let results = kept_results(&agent).await;
    assert_eq!(
        (results[0].len(), results[1].as_str()),
        (5000, "[Removed after an error of the model service: 5,000 characters]")
    );
    let history = agent.state().await.unwrap().history().clone();
    assert!(history.iter().all(|message| !matches!(message.content[0], Content::Attachment(_))));
}

#[tokio::test(start_paused = true)]
async fn results_are_kept_whole_if_the_error_concerns_the_model_or_the_address() {
    let refusal = ProviderErrorKind::InvalidRequest;
    let cases = [
        (refusal, Some(307), true),
        (refusal, Some(404), true),
        (refusal, Some(405), true),
        (ProviderErrorKind::Unsupported, Some(501), true),
        (ProviderErrorKind::Unsupported, Some(505), true),
        (refusal, Some(400), false),
        (ProviderErrorKind::ContextTooLong, Some(413), false),
        // A host that reads no images has refused the content.
        (ProviderErrorKind::Unsupported, Some(404), false),
        (refusal, None, false),
    ];
    for (kind, status, is_whole) in cases {
        let error = ProviderError::new(kind, "no");
        let error = status.into_iter().fold(error, ProviderError::with_status);
        let (_, builder) = scripted([Step::tool_use("a", "fetch", json!({})), Step::error(error)]);
        let fetch = tool_fn("fetch", "Fetches.", |_: Value, _| async { Ok("x".repeat(5000)) });
        let agent = builder.tool(fetch).start().await.unwrap();
        agent.ask("Fetch").await.unwrap_err();
        assert_eq!(kept_results(&agent).await[0].len() == 5000, is_whole, "{kind:?} {status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_results_are_kept_whole_if_another_model_then_fails() {
    for (change, is_whole) in [(true, true), (false, false)] {
        let refusal = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
        let steps = [Step::tool_use("a", "fetch", json!({})), Step::error(refusal), Step::error(down())];
        let (_, builder) = scripted(steps);
        let other = ScriptedProvider::new([Step::error(down())]).named("other");
        let builder = builder.registry(Registry::empty().with(other));
        let mut first = true;
        let hooks = Hooks::new().on_error(move |_, state| {
            if !std::mem::take(&mut first) {
                return ErrorDecision::Stop;
            }
            if change {
                state.config_mut().set_model("other:small").unwrap();
            }
            ErrorDecision::Retry
        });
        let fetch = tool_fn("fetch", "Fetches.", |_: Value, _| async { Ok("x".repeat(5000)) });
        let agent = builder.tool(fetch).callbacks(hooks).start().await.unwrap();
        let error = agent.ask("Fetch").await.unwrap_err();
        assert_eq!(error.provider_error(), Some(&down()));
        assert_eq!(kept_results(&agent).await[0].len() == 5000, is_whole, "another model: {change}");
    }
}

//! Backends that violate their contract, fail, or never answer.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    Error,
    agent::{Agent, Event},
    message::{ToolResult, ToolUse},
    provider::{
        BackendLimits, Model, Options, Provider, ProviderError, ProviderErrorKind, Request,
        custom::{BackendError, BackendEvent, Breach, Capabilities, RequestContext, TurnResult},
    },
    run::Failure,
    subscription::Update,
};
use serde_json::json;

use crate::scripted::{Act, ScriptedBackend, Step, Turn};

/// Returns the provider's error with which a run failed.
pub(crate) fn provider_error(error: &Error) -> &ProviderError {
    error.provider_error().unwrap()
}

/// Returns the backend's error with which a run failed.
pub(crate) fn cause(error: &Error) -> BackendError {
    provider_error(error).cause().unwrap().downcast_ref::<BackendError>().unwrap().clone()
}

fn tool(id: &str) -> ToolUse {
    ToolUse::new(id, "shell", json!({}))
}

fn used(id: &str) -> BackendEvent {
    BackendEvent::ToolUse(tool(id))
}

fn result(id: &str) -> BackendEvent {
    BackendEvent::ToolResult(ToolResult::ok(&tool(id), "done"))
}

async fn agent(backend: &ScriptedBackend) -> Agent {
    let options = Options::default().with_max_retries(0);
    backend.agent().options(options).start().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn breach_is_a_contract_error_and_the_agent_still_works() {
    let silence = BackendLimits::default().silence;
    let panicked = Breach::Panicked { call: "the event stream", message: "the turn panics".into() };
    let cases: Vec<(Turn, Breach, bool)> = vec![
        (Turn::new(), Breach::NoTerminalEvent, true),
        (Turn::new().text("So"), Breach::NoTerminalEvent, true),
        (Turn::new().text("So").step(Step::Hang), Breach::Silence(silence), true),
        (Turn::new().text("So").step(Step::Panic), panicked, false),
        (Turn::new().event(result("t1")).stop(), Breach::UnknownToolUse("t1".into()), true),
        (
            Turn::new().event(BackendEvent::ToolUpdate { id: "t1".into(), data: json!(1) }).stop(),
            Breach::UnknownToolUse("t1".into()),
            true,
        ),
        (Turn::new().event(used("t1")).event(used("t1")).stop(), Breach::RepeatedToolUse("t1".into()), true),
        (
            Turn::new().event(used("t1")).event(result("t1")).event(result("t1")).stop(),
            Breach::FinishedToolUse("t1".into()),
            true,
        ),
    ];
    for (turn, breach, kept) in cases {
        let backend = ScriptedBackend::able(Capabilities::default().with_resume(), [turn]);
        let agent = agent(&backend).await;
        let error = agent.ask("Go").await.unwrap_err();
        let failed = provider_error(&error);
        assert_eq!((failed.kind, failed.retryable), (ProviderErrorKind::Contract, false), "{failed:?}");
        assert!(failed.message.contains(&breach.to_string()), "{failed}");
        assert_eq!(cause(&error), BackendError::Contract(breach));
        // If anything was streamed that can be kept, the conversation contains it, and a new session resumes from it.
        let history = agent.state().await.unwrap().history().clone();
        let has_work = !history.is_empty();
        assert!(!has_work || history.iter().eq(&error.response().unwrap().messages));
        // If the session still answers, the agent keeps it, and the session remembers the prompt.
        let next = agent.ask("On").await.unwrap().text();
        assert_eq!(next, if kept || has_work { "Go | On" } else { "On" });
        assert_eq!(backend.count("cancel s1"), usize::from(kept));
        assert_eq!(backend.count("terminate s1"), usize::from(!kept));
    }
}

#[tokio::test(start_paused = true)]
async fn events_after_the_terminal_event_are_ignored() {
    for end in [
        BackendEvent::Result(TurnResult::new(omni_agent::provider::StopReason::Stop)),
        BackendEvent::Error(BackendError::Failed("no".to_owned())),
    ] {
        let failing = matches!(end, BackendEvent::Error(_));
        let turn = Turn::new().text("So.").event(end).step(Step::Panic);
        let backend = ScriptedBackend::new([turn]);
        let agent = agent(&backend).await;
        match agent.ask("Go").await {
            Ok(response) => assert_eq!(response.text(), "So."),
            Err(error) => {
                assert!(failing);
                assert_eq!(provider_error(&error).kind, ProviderErrorKind::Service);
            }
        }
        // The turn is over, so there is nothing to cancel.
        assert_eq!(agent.ask("On").await.unwrap().text(), "Go | On");
        assert_eq!(backend.count("cancel s1"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_panic_or_hang_are_errors_and_the_next_prompt_works() {
    let able = Capabilities::default().with_resume();
    for call in ["start", "prompt", "update"] {
        for act in [Act::Panic, Act::Hang, Act::Fail(BackendError::Invalid("no".into()))] {
            let backend = ScriptedBackend::able(able, []).act(call, act.clone());
            let agent = agent(&backend).await;
            let error = agent.ask("Go").await.unwrap_err();
            let kind = match act {
                Act::Panic => ProviderErrorKind::Contract,
                Act::Hang => ProviderErrorKind::Timeout,
                Act::Fail(_) => ProviderErrorKind::InvalidRequest,
            };
            assert_eq!(provider_error(&error).kind, kind, "{call}: {error:?}");
            agent.ask("On").await.unwrap_or_else(|error| panic!("{call} {act:?}: {error:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_whose_update_hangs_or_panics_is_terminated_and_one_whose_update_fails_is_kept() {
    let failed = Act::Fail(BackendError::Failed("no".into()));
    for (act, kept) in [(Act::Panic, false), (Act::Hang, false), (failed, true)] {
        let able = Capabilities::default().with_resume();
        let backend = ScriptedBackend::able(able, []).act("update", act.clone());
        let agent = agent(&backend).await;
        agent.ask("Go").await.unwrap_err();
        // A new session resumes from the work that the failed run has kept.
        let has_work = !agent.state().await.unwrap().history().is_empty();
        let next = agent.ask("On").await.unwrap().text();
        assert_eq!(next, if kept || has_work { "Go | On" } else { "On" }, "{act:?}");
        assert_eq!(backend.count("terminate s1"), usize::from(!kept), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_that_was_not_accepted_is_retried_if_that_can_help() {
    let backend =
        ScriptedBackend::new([]).act("prompt", Act::Fail(BackendError::Unavailable("a moment".into())));
    let agent = backend.agent().start().await.unwrap();
    assert_eq!(agent.ask("Go").await.unwrap().text(), "Go");
    assert_eq!((backend.count("prompt s1: Go"), backend.count("start")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn turn_that_failed_is_not_retried() {
    let failed = BackendEvent::Error(BackendError::Unavailable("gone".into()));
    let backend = ScriptedBackend::new([Turn::new().event(failed)]);
    let agent = backend.agent().start().await.unwrap();
    let error = agent.ask("Go").await.unwrap_err();
    assert!(!provider_error(&error).retryable);
    assert_eq!(backend.count("prompt s1: Go"), 1, "a retry could repeat its effects");
}

#[tokio::test(start_paused = true)]
async fn prompt_that_timed_out_is_not_retried() {
    let backend = ScriptedBackend::new([]).act("prompt", Act::Hang);
    let agent = backend.agent().start().await.unwrap();
    let error = agent.ask("Go").await.unwrap_err();
    let failed = provider_error(&error);
    assert_eq!((failed.kind, failed.retryable), (ProviderErrorKind::Timeout, false), "{failed:?}");
    agent.ask("On").await.unwrap();
    assert_eq!((backend.count("prompt s1: Go"), backend.count("cancel s1")), (1, 1), "{:?}", backend.log());
}

#[tokio::test(start_paused = true)]
async fn turn_whose_session_id_panics_is_not_retried() {
    let backend = ScriptedBackend::new([]).act("id", Act::Panic);
    let agent = backend.agent().start().await.unwrap();
    let error = agent.ask("Go").await.unwrap_err();
    assert_eq!(
        (provider_error(&error).kind, provider_error(&error).retryable),
        (ProviderErrorKind::Contract, false)
    );
    agent.ask("On").await.unwrap();
    assert_eq!((backend.count("prompt s1: Go"), backend.count("cancel s1")), (1, 1), "{:?}", backend.log());
}

#[tokio::test(start_paused = true)]
async fn session_that_ended_is_resumed_by_the_next_prompt() {
    let ended = || Turn::new().event(BackendEvent::Error(BackendError::Ended("exit 1".into())));
    let able = Capabilities::default().with_resume();
    let backend = ScriptedBackend::able(able, [Turn::new().step(Step::Recall).stop(), ended()]);
    let first = agent(&backend).await;
    first.ask("One").await.unwrap();
    let error = first.ask("Two").await.unwrap_err();
    assert_eq!(provider_error(&error).kind, ProviderErrorKind::Transport);
    assert_eq!(first.ask("Three").await.unwrap().text(), "One | Two | Three");
    assert_eq!((backend.count("terminate s1"), backend.count("resume s1")), (1, 1));

    let backend = ScriptedBackend::new([Turn::new().step(Step::Recall).stop(), ended()]);
    let second = agent(&backend).await;
    second.ask("One").await.unwrap();
    second.ask("Two").await.unwrap_err();
    let error = second.ask("Three").await.unwrap_err();
    assert!(matches!(cause(&error), BackendError::NotResumable(_)), "{error:?}");
    assert_eq!(backend.count("start"), 1, "a conversation must not restart silently");
}

#[tokio::test(start_paused = true)]
async fn failed_answer_emits_nothing_after_its_error() {
    let failed = Act::Fail(BackendError::Failed("no".into()));
    let backend = ScriptedBackend::new([Turn::new().text("So").stop()]).act("update", failed);
    let provider = backend.provider().open().await.unwrap().unwrap();
    let request = Request::prompt("Go");
    let answer = provider.stream(request, RequestContext::detached()).await.unwrap();
    let items: Vec<_> = answer.collect().await;
    let error = items.iter().position(Result::is_err).unwrap();
    assert_eq!(error + 1, items.len(), "{items:?}");
}

#[tokio::test(start_paused = true)]
async fn cancel_reaches_the_backend_and_the_next_prompt_waits_for_it() {
    let backend = ScriptedBackend::new([Turn::new().text("So").step(Step::Hang)]);
    let agent = agent(&backend).await;
    agent.prompt("Go").await.unwrap();
    backend.until("prompt s1: Go").await;
    agent.cancel().await.unwrap();
    assert_eq!(agent.ask("On").await.unwrap().text(), "Go | On");
    let calls = ["start", "prompt s1: Go", "cancel s1", "prompt s1: On", "update s1: stop"];
    assert_eq!(backend.log(), calls);
}

#[tokio::test(start_paused = true)]
async fn cancel_that_the_backend_ignores_terminates_the_session() {
    for act in [Act::Hang, Act::Panic, Act::Fail(BackendError::Failed("no".into()))] {
        let able = Capabilities::default().with_resume();
        let turns = [Turn::new().step(Step::Recall).stop(), Turn::new().text("So").step(Step::Hang)];
        let backend = ScriptedBackend::able(able, turns).act("cancel", act);
        let agent = agent(&backend).await;
        agent.ask("One").await.unwrap();
        agent.prompt("Two").await.unwrap();
        backend.until("prompt s1: Two").await;
        agent.cancel().await.unwrap();
        assert_eq!(agent.ask("Three").await.unwrap().text(), "One | Two | Three");
        backend.until("terminate s1").await;
        assert_eq!((backend.count("resume s1"), backend.count("terminate s1")), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_while_the_session_starts_leaves_no_session() {
    let backend = ScriptedBackend::new([]).act("start", Act::Hang);
    let agent = agent(&backend).await;
    agent.prompt("Go").await.unwrap();
    backend.until("start").await;
    agent.cancel().await.unwrap();
    assert_eq!(agent.ask("On").await.unwrap().text(), "On");
    assert_eq!(backend.count("start"), 2);
}

#[tokio::test(start_paused = true)]
async fn limits_that_were_set_apply() {
    let backend = ScriptedBackend::new([Turn::new().step(Step::Wait(Duration::from_secs(3))).stop()]);
    let mut limits = BackendLimits::default();
    limits.silence = Duration::from_secs(2);
    let provider = backend.provider().with_limits(limits);
    let agent = Agent::builder().model(Model::new(Arc::new(provider), "m")).start().await.unwrap();
    let error = agent.ask("Go").await.unwrap_err();
    assert_eq!(cause(&error), BackendError::Contract(Breach::Silence(Duration::from_secs(2))));
}

#[tokio::test(start_paused = true)]
async fn start_that_cannot_succeed_is_tried_once() {
    let missing = BackendError::Misconfigured("no such program".into());
    for act in [Act::Hang, Act::Fail(missing)] {
        let backend = ScriptedBackend::new([]).act("start", act.clone());
        let agent = backend.agent().start().await.unwrap();
        let error = agent.ask("Go").await.unwrap_err();
        assert!(!provider_error(&error).retryable, "{act:?}: {error:?}");
        assert_eq!(backend.count("start"), 1, "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn start_that_is_retried_emits_a_retry_event() {
    let backend =
        ScriptedBackend::new([]).act("start", Act::Fail(BackendError::Unavailable("a moment".into())));
    let agent = backend.agent().start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Go").await.unwrap();
    let mut failures = Vec::new();
    while let Some(Update::Event(numbered)) = events.next().await {
        match &*numbered.event {
            Event::Retry { failure, .. } => failures.push(failure.clone()),
            Event::Turn { .. } => break,
            Event::Error { failure, .. } => panic!("{failure:?}"),
            _ => {}
        }
    }
    let [Failure::Provider { error }] = &failures[..] else { panic!("{failures:?}") };
    assert!(error.message.contains("a moment"), "{error:?}");
    assert_eq!(backend.count("start"), 2);
}

#[tokio::test(start_paused = true)]
async fn silence_beyond_its_limit_is_an_error_that_names_the_setting() {
    let backend = ScriptedBackend::new([Turn::new().text("So").step(Step::Hang)]);
    let agent = agent(&backend).await;
    let error = agent.ask("Go").await.unwrap_err();
    let message = &provider_error(&error).message;
    assert!(
        message.contains("sent nothing for 1800s") && message.contains("BackendLimits::silence"),
        "{message}"
    );
    assert!(!message.contains("contract"), "{message}");
}

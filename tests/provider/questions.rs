//! Requests that ask for decisions, and how this affects retries and timeouts.

use std::time::Duration;

use futures_util::StreamExt;
use omni_agent::{
    message::ToolUse,
    provider::{
        DecisionRequest, ErrorKind, Options, Provider, ProviderError, Request, RequestContext, RetryPolicy,
    },
    testing::{ScriptedProvider, Step},
    tool::Decision,
};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::mpsc;

fn question() -> ToolUse {
    ToolUse::new("q1", "shell", json!({"command": "ls"}))
}

/// Starts a stream under the default policy, with a channel for decisions.
fn ask(
    script: [Step; 2],
    options: Options,
) -> (ScriptedProvider, omni_agent::provider::DeltaStream, mpsc::Receiver<DecisionRequest>) {
    let provider = ScriptedProvider::new(script);
    let (decisions, questions) = mpsc::channel(1);
    let shared: Arc<dyn Provider> = Arc::new(provider.clone());
    let request = Request::prompt("hi").with_options(options);
    let stream = RetryPolicy::default().stream(shared, request, RequestContext::new(decisions));
    (provider, stream, questions)
}

#[tokio::test(start_paused = true)]
async fn failure_after_a_question_is_not_retried() {
    let overloaded = || ProviderError::new(ErrorKind::Overloaded, "later");
    let first = Step::new().decide(question()).fail(overloaded());
    let (provider, mut stream, mut questions) = ask([first, Step::text("again")], Options::default());
    let answer = tokio::spawn(async move {
        let question = questions.recv().await.unwrap();
        question.answer.send(Decision::Execute).unwrap();
    });
    let error = stream.next().await.unwrap().unwrap_err();
    answer.await.unwrap();
    assert_eq!(error.kind, ErrorKind::Overloaded);
    assert_eq!(provider.requests().len(), 1, "the service may have run the tool already");
}

#[tokio::test(start_paused = true)]
async fn total_timeout_is_paused_during_a_decision() {
    let script = [Step::new().decide(question()).then_text(["done"]).stop(), Step::new()];
    let options = Options::default().with_timeout(Duration::from_secs(10));
    let (provider, mut stream, mut questions) = ask(script, options);
    tokio::spawn(async move {
        let question = questions.recv().await.unwrap();
        tokio::time::sleep(Duration::from_hours(1)).await;
        question.answer.send(Decision::Execute).unwrap();
    });
    while let Some(item) = stream.next().await {
        item.unwrap();
    }
    assert_eq!(provider.decisions(), [Decision::Execute]);
}

#[tokio::test(start_paused = true)]
async fn total_timeout_continues_after_the_decision() {
    let script = [Step::new().decide(question()).hang(), Step::new()];
    let options = Options::default().with_timeout(Duration::from_secs(10));
    let (_, mut stream, mut questions) = ask(script, options);
    tokio::spawn(async move {
        let question = questions.recv().await.unwrap();
        tokio::time::sleep(Duration::from_secs(15)).await;
        question.answer.send(Decision::Execute).unwrap();
    });
    assert_eq!(stream.next().await.unwrap().unwrap_err().kind, ErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn question_outside_an_agent_is_rejected() {
    let decision = RequestContext::detached().decide(question()).await;
    assert!(matches!(decision, Decision::Reject(_)));
}

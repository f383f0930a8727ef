//! Requests during which the provider asks for decisions, and how these questions affect retries and timeouts.

use std::time::Duration;

use futures_util::StreamExt;
use omni_agent::{
    message::ToolUse,
    provider::{
        Options, Provider, ProviderError, ProviderErrorKind, Request, RetryPolicy, custom::RequestContext,
    },
    testing::{ScriptedProvider, Step},
    tool::Decision,
};
use serde_json::json;
use std::sync::Arc;

fn question() -> ToolUse {
    ToolUse::new("q1", "shell", json!({"command": "ls"}))
}

/// Starts a stream under the default retry policy. The provider's questions are answered after this delay.
fn ask(
    script: [Step; 2],
    options: Options,
    delay: Duration,
) -> (ScriptedProvider, omni_agent::provider::DeltaStream) {
    let provider = ScriptedProvider::new(script);
    let shared: Arc<dyn Provider> = Arc::new(provider.clone());
    let request = Request::prompt("hi").with_options(options);
    let context = RequestContext::new(move |_| async move {
        tokio::time::sleep(delay).await;
        Decision::Execute
    });
    (provider, RetryPolicy::default().stream(shared, request, context))
}

#[tokio::test(start_paused = true)]
async fn failure_after_a_question_is_not_retried() {
    let overloaded = || ProviderError::new(ProviderErrorKind::Overloaded, "later");
    let first = Step::new().decide(question()).fail(overloaded());
    let (provider, mut stream) = ask([first, Step::text("again")], Options::default(), Duration::ZERO);
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Overloaded);
    assert_eq!(provider.requests().len(), 1, "the service may have run the tool already");
}

#[tokio::test(start_paused = true)]
async fn total_timeout_is_paused_during_a_decision() {
    let script = [Step::new().decide(question()).then_text(["done"]).stop(), Step::new()];
    let options = Options::default().with_timeout(Duration::from_secs(10));
    let (provider, mut stream) = ask(script, options, Duration::from_hours(1));
    while let Some(item) = stream.next().await {
        item.unwrap();
    }
    assert_eq!(provider.decisions(), [Decision::Execute]);
}

#[tokio::test(start_paused = true)]
async fn total_timeout_continues_after_the_decision() {
    let script = [Step::new().decide(question()).hang(), Step::new()];
    let options = Options::default().with_timeout(Duration::from_secs(10));
    let (_, mut stream) = ask(script, options, Duration::from_secs(15));
    assert_eq!(stream.next().await.unwrap().unwrap_err().kind, ProviderErrorKind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn question_outside_an_agent_is_rejected() {
    let decision = RequestContext::detached().decide(question()).await;
    assert!(matches!(decision, Decision::Reject(_)));
}

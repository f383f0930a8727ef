//! A model that is used without an agent: complete answers, streams, and decisions that a provider asks for during a
//! request.

use std::{
    future::{pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use omni_agent::{
    message::{History, Message, ToolUse, Usage},
    provider::{
        DeltaStream, Model, Provider, ProviderError, ProviderErrorKind, Request, StopReason,
        custom::{BlockStart, Delta, MessageDelta, Part, RequestContext},
    },
    tool::Decision,
};
use serde_json::json;

use crate::deltas::{data, end, extend, signature, start, text};

/// A provider that returns the same answer to every request.
struct Scripted {
    answer: Vec<Result<Delta, ProviderError>>,
    requests: AtomicUsize,
    last: Mutex<Option<Request>>,
}

impl Scripted {
    fn new(answer: impl IntoIterator<Item = Result<Delta, ProviderError>>) -> Arc<Self> {
        let (requests, last) = (AtomicUsize::new(0), Mutex::new(None));
        Arc::new(Self { answer: answer.into_iter().collect(), requests, last })
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn stream(&self, request: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap() = Some(request);
        Ok(Box::pin(stream::iter(self.answer.clone())))
    }
}

fn answer() -> Vec<Result<Delta, ProviderError>> {
    let data_delta = MessageDelta::default()
        .with_model("m-2026")
        .with_usage(Usage::default().with_output(5))
        .with_warnings(vec!["no such thing as top-p".into()]);
    let deltas = [
        start(0, BlockStart::Thinking),
        text(0, "hidden"),
        signature(0, "s"),
        end(0),
        start(1, BlockStart::Text),
        text(1, "Hel"),
        text(1, ""),
        start(2, BlockStart::Text),
        text(2, "!"),
        text(1, "lo"),
        data(data_delta),
        Delta::stop(StopReason::Stop),
    ];
    deltas.into_iter().map(Ok).collect()
}

#[tokio::test]
async fn generate_returns_the_whole_answer() {
    let provider = Scripted::new(answer());
    let model = Model::new(provider.clone(), "m");
    let generated = model.generate(Request::prompt("hi").with_system("be brief")).await.unwrap();
    assert_eq!(generated.message.text(), "Hello!");
    assert_eq!(generated.stop_reason, StopReason::Stop);
    assert_eq!(generated.usage.output, 5);
    assert_eq!(generated.model.as_deref(), Some("m-2026"));
    assert_eq!(generated.warnings, ["no such thing as top-p"]);
    let request = provider.last.lock().unwrap().take().unwrap();
    assert_eq!((&*request.model, request.system.as_deref()), ("m", Some("be brief")));
    assert_eq!(request.history.last().unwrap().text(), "hi");
}

#[tokio::test]
async fn stream_text_returns_only_text_in_order_of_arrival() {
    let model = Model::new(Scripted::new(answer()), "m");
    let pieces: Vec<String> = model.stream_text(Request::prompt("hi")).try_collect().await.unwrap();
    assert_eq!(pieces, ["Hel", "!", "lo"]);
}

#[tokio::test]
async fn stream_text_of_an_answer_cut_off_ends_in_an_error() {
    let mut cut = answer();
    cut.pop();
    let model = Model::new(Scripted::new(cut), "m");
    let mut pieces = model.stream_text(Request::prompt("hi"));
    for expected in ["Hel", "!", "lo"] {
        assert_eq!(pieces.next().await.unwrap().unwrap(), expected);
    }
    assert_eq!(pieces.next().await.unwrap().unwrap_err().kind, ProviderErrorKind::Truncated);
    assert!(pieces.next().await.is_none());
}

#[tokio::test]
async fn stream_text_of_an_answer_out_of_order_ends_in_an_error() {
    let deltas = [start(0, BlockStart::Text), text(0, "a"), extend(0, Part::Input("{".into()))];
    let model = Model::new(Scripted::new(deltas.map(Ok)), "m");
    let pieces: Vec<_> = model.stream_text(Request::prompt("hi")).collect().await;
    assert_eq!(pieces[0].as_deref(), Ok("a"));
    assert_eq!(pieces[1].as_ref().unwrap_err().kind, ProviderErrorKind::Decoding);
    assert_eq!(pieces.len(), 2);
}

#[tokio::test]
async fn generate_with_an_error_in_the_stream_returns_that_error() {
    let error = ProviderError::new(ProviderErrorKind::Overloaded, "later");
    let deltas = [Ok(start(0, BlockStart::Text)), Ok(text(0, "a")), Err(error.clone())];
    let model = Model::new(Scripted::new(deltas), "m");
    assert_eq!(model.generate(Request::prompt("hi")).await, Err(error));
}

#[tokio::test]
async fn generate_with_an_invalid_history_sends_nothing() {
    let provider = Scripted::new(answer());
    let model = Model::new(provider.clone(), "m");
    let open = History::from_iter([Message::assistant(ToolUse::new("a", "add", json!({})))]);
    let error = model.generate(Request::new(open.clone())).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::InvalidRequest);
    let breach = open.check_sendable().unwrap_err().to_string();
    assert!(error.message.ends_with(&breach), "{error}");
    assert_eq!(error.cause().unwrap().to_string(), breach);
    assert_eq!(provider.requests.load(Ordering::Relaxed), 0);
    model.generate(Request::new(open.repair())).await.unwrap();
}

#[test]
fn private_state_is_that_of_the_last_answer_that_has_it() {
    let answer = |n: u8| {
        let mut message = Message::assistant("hi");
        message.provider_data.insert("backend".into(), json!(n));
        message
    };
    let mut by_user = Message::user("hi");
    by_user.provider_data.insert("backend".into(), json!("not mine"));
    let history = History::from_iter([answer(1), answer(2), Message::assistant("without"), by_user]);
    let request = Request::new(history);
    assert_eq!(request.private_state("backend"), Some(&json!(2)));
    assert_eq!(request.private_state("other"), None);
}

#[tokio::test]
async fn decide_outside_an_agent_is_a_rejection() {
    let tool_use = ToolUse::new("a", "add", json!({}));
    let decision = RequestContext::detached().decide(tool_use.clone()).await;
    assert!(matches!(decision, Decision::Reject(_)));
}

#[tokio::test]
async fn decide_returns_the_answer_of_the_application() {
    let tool_use = ToolUse::new("a", "add", json!({}));
    let asked = tool_use.clone();
    let context = RequestContext::new(move |tool_use| {
        assert_eq!(tool_use, asked);
        ready(Decision::Execute)
    });
    assert_eq!(context.decide(tool_use).await, Decision::Execute);
}

#[tokio::test]
async fn decide_dropped_withdraws_the_question_from_the_application() {
    let asked = Arc::new(());
    let held = Arc::clone(&asked);
    let context = RequestContext::new(move |_| {
        let held = Arc::clone(&held);
        async move {
            pending::<()>().await;
            drop(held);
            Decision::Execute
        }
    });
    let mut asking = Box::pin(context.decide(ToolUse::new("a", "add", json!({}))));
    assert!((&mut asking).now_or_never().is_none());
    assert_eq!(Arc::strong_count(&asked), 3);
    drop(asking);
    assert_eq!(Arc::strong_count(&asked), 2);
}

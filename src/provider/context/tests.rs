use std::future::poll_fn;

use futures_util::FutureExt;
use serde_json::json;

use super::{ProviderQuestionReceiver, RequestContext};
use crate::{message::ToolUse, tool::Decision};

fn tool_use() -> ToolUse {
    ToolUse::new("a", "add", json!({}))
}

/// Takes the next question from the queue.
async fn next(questions: &ProviderQuestionReceiver) -> super::ProviderQuestion {
    poll_fn(|cx| questions.poll_next(cx)).await
}

#[tokio::test]
async fn decide_without_an_agent_is_a_rejection() {
    let (context, questions) = RequestContext::with_questions();
    drop(questions);
    assert!(matches!(context.decide(tool_use()).await, Decision::Reject(_)));
}

#[tokio::test]
async fn decide_returns_the_answer_or_a_rejection_if_it_is_dropped() {
    let (context, questions) = RequestContext::with_questions();
    let (decision, ()) = tokio::join!(context.decide(tool_use()), async {
        let question = next(&questions).await;
        assert_eq!(question.tool_use, tool_use());
        question.answer.send(Decision::Execute).unwrap();
    });
    assert_eq!(decision, Decision::Execute);
    let (decision, ()) = tokio::join!(context.decide(tool_use()), async { drop(next(&questions).await) });
    assert!(matches!(decision, Decision::Reject(_)));
}

#[tokio::test]
async fn decide_dropped_withdraws_the_question() {
    let (context, questions) = RequestContext::with_questions();
    let mut asking = Box::pin(context.decide(tool_use()));
    assert!((&mut asking).now_or_never().is_none());
    let Some(question) = next(&questions).now_or_never() else { panic!("no question was asked") };
    assert!(!question.answer.is_closed());
    drop(asking);
    assert!(question.answer.is_closed());
}

//! Questions of servers (elicitation), which a person answers.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::connection::LONGEST;
use crate::{
    text::clip,
    tool::{Answer, ToolContext},
};

/// The maximum number of rounds of questions in one call.
pub(super) const MOST_ROUNDS: usize = 10;

/// The maximum number of questions that a server may ask in one round.
const MOST_QUESTIONS: usize = 32;

/// The maximum length of a form's schema.
const LONGEST_SCHEMA: usize = 64 * 1024;

/// Asks all questions at the same time, and returns the answers. An error is the reason why a question can't be asked.
pub(super) async fn answers(
    server: &str,
    requests: InputRequests,
    context: &ToolContext,
) -> Result<InputResponses, String> {
    if requests.len() > MOST_QUESTIONS {
        return Err(format!("it asks {} questions at once; the limit is {MOST_QUESTIONS}", requests.len()));
    }
    let mut questions = BTreeMap::new();
    for (key, request) in requests {
        match request {
            InputRequest::Elicitation(request) => questions.insert(key, request.params),
            _ => {
                return Err("it asks for a model or for folders, which this client does not offer".to_owned());
            }
        };
    }
    let asked = questions.into_iter().map(async |(key, params)| {
        let answer = answer(server, params, context).await;
        (key, serde_json::to_value(answer).expect("an answer is valid JSON"))
    });
    Ok(join_all(asked).await.into_iter().collect())
}

/// Asks a person to open the URLs that an error of the server requires. Returns whether the person agrees to open all of
/// them.
pub(super) async fn are_opened(server: &str, required: Option<Value>, context: &ToolContext) -> bool {
    let urls = required.as_ref().and_then(|required| required.get("elicitations"));
    let urls = urls.and_then(|urls| Vec::<ElicitRequestParams>::deserialize(urls).ok()).unwrap_or_default();
    if urls.is_empty() || urls.len() > MOST_QUESTIONS {
        return false;
    }
    let asked = urls.into_iter().map(|url| answer(server, url, context));
    join_all(asked).await.iter().all(|answer| answer.action == ElicitationAction::Accept)
}

/// Asks one question.
pub(super) async fn answer(server: &str, params: ElicitRequestParams, context: &ToolContext) -> ElicitResult {
    let declined = || ElicitResult::new(ElicitationAction::Decline);
    let (question, is_form) = match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let Ok(schema) = serde_json::to_value(requested_schema) else { return declined() };
            if schema.to_string().len() > LONGEST_SCHEMA {
                tracing::warn!(server, "a question is declined: its schema has more than 64 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "form", "server": server, "message": message, "schema": schema }), true)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            if url.len() > LONGEST {
                tracing::warn!(server, "a question is declined: its URL has more than 4 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "url", "server": server, "message": message, "url": url }), false)
        }
        _ => return declined(),
    };
    let accepted = ElicitResult::new(ElicitationAction::Accept);
    match context.ask(question).await {
        Answer::Accepted(_) if !is_form => accepted,
        Answer::Accepted(None) => accepted.with_content(json!({})),
        Answer::Accepted(Some(fields @ Value::Object(_))) => accepted.with_content(fields),
        Answer::Accepted(Some(_)) => {
            tracing::warn!(server, "a question is declined: the answer to a form must be a JSON object");
            declined()
        }
        Answer::Declined(_) => declined(),
    }
}

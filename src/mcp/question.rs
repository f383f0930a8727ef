//! Questions of servers (elicitation), which a person answers.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests, InputResponses,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{McpError, connection::LONGEST, settings::Settings};
use crate::{
    text::clip,
    tool::{Answer, Schema, ToolContext},
};

/// The maximum number of rounds of questions in one call.
pub(super) const MOST_ROUNDS: usize = 10;

/// The reason why a call with more rounds fails.
pub(super) const TOO_MANY_ROUNDS: &str = "it asked questions more than ten times";

/// The maximum number of questions that a server may ask in one round.
const MOST_QUESTIONS: usize = 32;

/// The maximum length of a form's schema.
const LONGEST_SCHEMA: usize = 64 * 1024;

/// Asks all questions at the same time, and returns the answers. Fails if a question can't be asked.
pub(super) async fn answers(
    settings: &Settings,
    requests: InputRequests,
    context: &ToolContext,
) -> Result<InputResponses, McpError> {
    let count = requests.len();
    if count > MOST_QUESTIONS {
        let reason = format!("it asks {count} questions at once; the limit is {MOST_QUESTIONS}");
        return Err(settings.refused(&reason));
    }
    let mut questions = BTreeMap::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let reason = "it asks for a model or for folders, which this client does not offer";
            return Err(settings.refused(reason));
        };
        questions.insert(key, request.params);
    }
    let asked = questions.into_iter().map(async |(key, params)| {
        let answer = answer(&settings.name, params, context).await;
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
    let (question, form) = match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let Ok(schema) = serde_json::to_value(requested_schema) else { return declined() };
            if schema.to_string().len() > LONGEST_SCHEMA {
                tracing::warn!(server, "a question is declined: its schema has more than 64 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "form", "server": server, "message": message, "schema": &schema }), Some(schema))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            if url.len() > LONGEST {
                tracing::warn!(server, "a question is declined: its URL has more than 4 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "url", "server": server, "message": message, "url": url }), None)
        }
        _ => return declined(),
    };
    let accepted = ElicitResult::new(ElicitationAction::Accept);
    let answer = context.ask(question).await;
    let Answer::Accepted(fields) = answer else { return declined() };
    let Some(schema) = form else { return accepted };
    match filled(schema, fields) {
        Ok(fields) => accepted.with_content(fields),
        Err(reason) => {
            tracing::warn!(server, reason, "a question is declined: the answer does not fit the form");
            declined()
        }
    }
}

/// Returns the answer to a form with the defaults of fields that the answer omits. Fails with the reason if the answer
/// does not match the form's schema.
fn filled(schema: Value, answer: Option<Value>) -> Result<Value, String> {
    let mut fields = answer.unwrap_or_else(|| json!({}));
    if let (Some(fields), Some(properties)) = (fields.as_object_mut(), schema["properties"].as_object()) {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                fields.entry(name).or_insert_with(|| default.clone());
            }
        }
    }
    let schema = Schema::new(schema).map_err(|error| error.to_string())?;
    schema.validate(&fields)?;
    Ok(fields)
}

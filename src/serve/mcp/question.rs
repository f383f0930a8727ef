//! Tool uses that wait for a decision, as questions of the protocol (elicitation), and the answers as decisions.
//!
//! A client of version 2026-07-28 gets `input_required`, and repeats its call with the answers. The state in between
//! comes from the client and is not trusted: access is checked again, and a decision applies only to the turn that the
//! state names. So the server stores nothing between the calls, and the state needs no signature. An older client is
//! asked during the call. Only pauses of the prompt's own turn are questions.

use rmcp::{
    RoleServer,
    model::{
        BooleanSchema, ClientCapabilities, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationSchema, PrimitiveSchemaDefinition,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use crate::{
    run::PendingUse,
    text::{clip, start},
    tool::Decision,
};

/// The maximum length of an input or a text in a question, in bytes.
const LONGEST: usize = 4096;

/// The field of a question that has no fields of its own. The user can also deny the use with it.
const ALLOW: &str = "allow";

/// The kinds of questions that the client shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct McpClientQuestionKinds {
    pub(super) forms: bool,
    pub(super) urls: bool,
}

impl McpClientQuestionKinds {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        context.client_capabilities().map_or_else(Self::default, |client| Self::from(&client))
    }
}

impl From<&ClientCapabilities> for McpClientQuestionKinds {
    fn from(client: &ClientCapabilities) -> Self {
        let Some(elicitation) = &client.elicitation else { return Self::default() };
        let urls = elicitation.url.is_some();
        // Clients of early protocol versions do not name kinds. They show forms.
        Self { forms: elicitation.form.is_some() || !urls, urls }
    }
}

/// Returns the question about a pause, or the reason why the client can't be asked.
pub(super) fn question(
    pause: &PendingUse,
    asks: McpClientQuestionKinds,
) -> Result<ElicitRequestParams, &'static str> {
    let reason = &pause.reason;
    let message = || match reason["message"].as_str() {
        Some(text) => clip(text, LONGEST).into_owned(),
        None => clip(&reason.to_string(), LONGEST).into_owned(),
    };
    match (pause.is_question(), reason["mcp"].as_str()) {
        (true, Some("url")) if asks.urls => {
            let url = reason["url"].as_str().unwrap_or_default().to_owned();
            let elicitation_id = pause.tool_use.id.as_str().to_owned();
            Ok(ElicitRequestParams::UrlElicitationParams {
                meta: None,
                message: message(),
                url,
                elicitation_id,
            })
        }
        (true, Some("url")) => Err("the client opens no addresses"),
        _ if !asks.forms => Err("the client can't ask its user"),
        (true, Some("form")) => match serde_json::from_value(reason["schema"].clone()) {
            Ok(schema) => Ok(form(message(), schema)),
            Err(_) => Err("the form has a schema that the protocol does not allow"),
        },
        (true, _) => Ok(form(message(), consent())),
        (false, _) => Ok(form(approval(pause), consent())),
    }
}

fn form(message: String, requested_schema: ElicitationSchema) -> ElicitRequestParams {
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// Returns a schema with one field, because some clients can't submit a form without fields.
fn consent() -> ElicitationSchema {
    let allow = BooleanSchema::new().title("Allow").with_default(true);
    let fields = [(ALLOW.to_owned(), PrimitiveSchemaDefinition::Boolean(allow))];
    let mut schema = ElicitationSchema::new(fields.into());
    schema.required = Some(vec![ALLOW.to_owned()]);
    schema
}

fn approval(pause: &PendingUse) -> String {
    let (tool, input) = (&pause.tool_use.name, pause.tool_use.input.to_string());
    let why = match &pause.reason {
        Value::Null => String::new(),
        // The text of the question already states that the tool needs approval.
        Value::String(text) if text == "needs approval" => String::new(),
        Value::String(text) => format!(" Reason: {}", clip(text, LONGEST)),
        other => format!(" Reason: {}", clip(&other.to_string(), LONGEST)),
    };
    let shown = start(&input, LONGEST);
    if shown.len() == input.len() {
        return format!("Allow the tool {tool} with this input? {input}{why}");
    }
    let length = input.len();
    format!(
        "Allow the tool {tool} with an input of {length} bytes, of which only the first {} bytes are shown here? \
         {shown}…{why}",
        shown.len(),
    )
}

/// Returns the decision that the answer to a question means.
pub(super) fn decision(pause: &PendingUse, answer: ElicitResult) -> Decision {
    match answer.action {
        ElicitationAction::Accept if is_form(pause) => {
            Decision::ExecuteWith(answer.content.unwrap_or_else(|| json!({})))
        }
        // A client that ignores the field allows the use by its acceptance.
        ElicitationAction::Accept if answer.content.as_ref().is_none_or(is_allowed) => Decision::Execute,
        ElicitationAction::Cancel => Decision::reject("The user closed the question without an answer."),
        _ => Decision::reject("The user did not allow it."),
    }
}

/// Returns whether the fields of an accepted question allow the use.
fn is_allowed(fields: &Value) -> bool {
    fields.get(ALLOW).is_none_or(|allow| *allow == true)
}

/// Returns whether the question is a form whose fields a running tool needs.
fn is_form(pause: &PendingUse) -> bool {
    pause.is_question() && pause.reason["mcp"] == "form"
}

//! Converts content of this crate to content of the protocol, and back. Reads requests for permission, and writes the
//! responses to them.

use std::fmt::Write as _;

use agent_client_protocol_schema::v1::{
    AudioContent, BlobResourceContents, ContentBlock, EmbeddedResource, EmbeddedResourceResource,
    ImageContent, PermissionOption as Offered, PermissionOptionKind, PromptCapabilities,
    RequestPermissionOutcome, RequestPermissionResponse, ResourceLink, SelectedPermissionOutcome,
    ToolCallContent, ToolCallUpdate,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    message::{Attachment, Content, Message, ResultBlock, Source, Text},
    provider::{
        Options,
        backend::{BackendError, PermissionAnswer, PermissionKind, PermissionOption, TurnPrompt},
    },
};

/// Returns the content of a prompt, if the agent accepts all of it.
pub(super) fn blocks(
    prompt: &TurnPrompt,
    can: &PromptCapabilities,
) -> Result<Vec<ContentBlock>, BackendError> {
    let mut blocks = Vec::new();
    for content in prompt.messages.iter().flat_map(|message: &std::sync::Arc<Message>| &message.content) {
        match content {
            Content::Text(text) => blocks.push(text.text.clone().into()),
            Content::Attachment(attachment) => blocks.push(attached(attachment, can)?),
            // The agent doesn't know the tool use of this result, because another model made the tool use. So the
            // result is sent as text.
            Content::ToolResult(result) => blocks.push(result.text().into()),
            Content::ProviderItem(_) | Content::Thinking(_) => {}
            Content::ToolUse(_) => {
                return Err(BackendError::Unsupported(
                    "a prompt for an agent can't contain tool uses".to_owned(),
                ));
            }
        }
    }
    if blocks.is_empty() {
        return Err(BackendError::Invalid("the prompt is empty".to_owned()));
    }
    Ok(blocks)
}

fn attached(attachment: &Attachment, can: &PromptCapabilities) -> Result<ContentBlock, BackendError> {
    let Attachment { source, media_type, name, .. } = attachment;
    let data = match source {
        // The file is sent as a link, which all agents accept.
        Source::Url { url } => {
            let name = name.clone().unwrap_or_else(|| url.clone());
            return Ok(ContentBlock::ResourceLink(
                ResourceLink::new(name, url.clone()).mime_type(media_type.clone()),
            ));
        }
        Source::Base64 { data } => data.to_string(),
    };
    let media_type = media_type.clone();
    let (what, is_accepted) = match media_type.to_ascii_lowercase().split_once('/') {
        Some(("image", _)) => ("images", can.image),
        Some(("audio", _)) => ("audio", can.audio),
        _ => ("embedded files", can.embedded_context),
    };
    if !is_accepted {
        let why = format!("this agent does not accept {what} ({media_type}) in its prompts");
        return Err(BackendError::Unsupported(why));
    }
    Ok(match what {
        "images" => ContentBlock::Image(ImageContent::new(data, media_type)),
        "audio" => ContentBlock::Audio(AudioContent::new(data, media_type)),
        _ => {
            let uri = format!("attachment:///{}", escaped(name.as_deref().unwrap_or("attachment")));
            let contents = BlobResourceContents::new(data, uri).mime_type(media_type);
            let contents = EmbeddedResourceResource::BlobResourceContents(contents);
            ContentBlock::Resource(EmbeddedResource::new(contents))
        }
    })
}

/// Converts a part of a tool call's content to a part of the tool's result.
pub(super) fn block(content: &ToolCallContent) -> ResultBlock {
    let text = match content {
        ToolCallContent::Content(content) => match &content.content {
            ContentBlock::Image(image) => {
                return Attachment::base64(image.mime_type.clone(), image.data.clone()).into();
            }
            other => words(other.clone()),
        },
        ToolCallContent::Diff(diff) => format!("changed {}", diff.path.display()),
        ToolCallContent::Terminal(terminal) => format!("terminal {}", terminal.terminal_id),
        _ => String::new(),
    };
    Text::new(text).into()
}

/// Returns a content block as text. A block that is not text is represented by its URI or media type.
pub(super) fn words(block: ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text,
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::TextResourceContents(contents) => contents.text,
            EmbeddedResourceResource::BlobResourceContents(contents) => format!("[{}]", contents.uri),
            _ => String::new(),
        },
        ContentBlock::Image(image) => format!("[{}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[{}]", audio.mime_type),
        _ => String::new(),
    }
}

/// Escapes a name for use in a URI.
fn escaped(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Returns the names of the options that the protocol can't express.
pub(super) fn ignored_options(options: &Options) -> Vec<&'static str> {
    let set = [
        ("max_tokens", options.max_tokens().is_some()),
        ("temperature", options.temperature().is_some()),
        ("top_p", options.top_p().is_some()),
        ("stop_sequences", options.stop_sequences().is_some()),
        ("thinking", options.thinking().is_some()),
        ("tool_choice", options.tool_choice().is_some()),
        ("output", options.output().is_some()),
        ("extra", options.extra().is_some()),
    ];
    set.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)).collect()
}

/// A request for permission. Options that can't be parsed can't be chosen.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcpQuestion {
    pub(super) session_id: String,
    pub(super) tool_call: ToolCallUpdate,
    #[serde(default)]
    options: Vec<Value>,
}

impl AcpQuestion {
    pub(super) fn options(&self) -> Vec<PermissionOption> {
        let offered = self.options.iter().filter_map(|option| Offered::deserialize(option).ok());
        offered
            .map(|option| {
                let kind = match option.kind {
                    PermissionOptionKind::AllowOnce => PermissionKind::AllowOnce,
                    PermissionOptionKind::AllowAlways => PermissionKind::AllowAlways,
                    PermissionOptionKind::RejectAlways => PermissionKind::RejectAlways,
                    _ => PermissionKind::RejectOnce,
                };
                PermissionOption::new(option.option_id.0.to_string(), option.name, kind)
            })
            .collect()
    }
}

/// Returns the response that expresses this answer. If the answer is `None`, the turn was cancelled, or the agent
/// withdrew the request.
pub(super) fn outcome(answer: Option<PermissionAnswer>, options: &[PermissionOption]) -> Value {
    use PermissionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};

    let of = |kinds: [PermissionKind; 2]| {
        kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind))
    };
    let chosen = match answer {
        Some(PermissionAnswer::Allow) => of([AllowOnce, AllowAlways]),
        Some(PermissionAnswer::Choose(id)) => options.iter().find(|option| option.id == id),
        // `AllowWith` becomes a rejection, because the protocol can't express that the tool gets a different input.
        Some(PermissionAnswer::Reject(_) | PermissionAnswer::AllowWith(_)) => of([RejectOnce, RejectAlways]),
        None => None,
    };
    let outcome = match chosen {
        Some(option) => RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.id.clone())),
        // `answer` is `None`, or the agent does not offer an option for it.
        None => RequestPermissionOutcome::Cancelled,
    };
    json!(RequestPermissionResponse::new(outcome))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sent(content: Attachment, can: &PromptCapabilities) -> Result<serde_json::Value, String> {
        let prompt = TurnPrompt::new([Message::user(content)]);
        blocks(&prompt, can).map(|blocks| json!(blocks[0])).map_err(|error| error.to_string())
    }

    #[test]
    fn attachments_are_sent_as_the_agent_accepts_them() {
        let all = || PromptCapabilities::new().image(true).audio(true).embedded_context(true);
        let none = PromptCapabilities::new;
        let image = || Attachment::base64("image/png", "aGk=");
        assert_eq!(
            sent(image(), &all()),
            Ok(json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" }))
        );
        assert!(sent(image(), &none()).unwrap_err().contains("images (image/png)"));
        assert_eq!(sent(Attachment::base64("audio/wav", "aGk="), &all()).unwrap()["type"], "audio");
        assert!(sent(Attachment::base64("audio/wav", "aGk="), &none()).unwrap_err().contains("audio"));
        let file = || Attachment::base64("application/pdf", "aGk=").named("a b.pdf");
        assert_eq!(sent(file(), &all()).unwrap()["resource"]["uri"], "attachment:///a%20b.pdf");
        assert!(sent(file(), &none()).unwrap_err().contains("embedded"));
        let link = sent(Attachment::url("text/html", "https://a.example/b"), &none()).unwrap();
        assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &json!("https://a.example/b")));
    }

    #[test]
    fn empty_prompt_is_refused() {
        let empty = TurnPrompt::new(Vec::<Message>::new());
        assert!(matches!(blocks(&empty, &PromptCapabilities::new()), Err(BackendError::Invalid(_))));
    }

    #[test]
    fn answer_is_one_of_the_offered_options() {
        let question: AcpQuestion = serde_json::from_value(json!({
            "sessionId": "s", "toolCall": { "toolCallId": "t" }, "options": [
                { "optionId": "always", "name": "Always", "kind": "allow_always" },
                { "optionId": "odd", "name": "Odd", "kind": "allow_on_sundays" },
                { "optionId": "no", "name": "No", "kind": "reject_once" },
            ] }))
        .unwrap();
        let options = question.options();
        let chosen = |answer| outcome(answer, &options)["outcome"]["optionId"].clone();
        assert_eq!(chosen(Some(PermissionAnswer::Allow)), "always");
        assert_eq!(chosen(Some(PermissionAnswer::Reject("no".into()))), "no");
        assert_eq!(chosen(Some(PermissionAnswer::Choose("no".into()))), "no");
        for cancelled in [None, Some(PermissionAnswer::Choose("odd".into()))] {
            assert_eq!(outcome(cancelled, &options), json!({ "outcome": { "outcome": "cancelled" } }));
        }
        assert_eq!(outcome(Some(PermissionAnswer::Allow), &[])["outcome"]["outcome"], "cancelled");
    }
}

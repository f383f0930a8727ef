//! Converts content of this crate to content of the protocol, and back.

use std::fmt::Write as _;

use agent_client_protocol_schema::v1::{
    AudioContent, BlobResourceContents, ContentBlock, EmbeddedResource, EmbeddedResourceResource,
    ImageContent, PromptCapabilities, ResourceLink, ToolCallContent,
};

use crate::{
    message::{Attachment, Content, Message, ResultBlock, Source, Text},
    provider::{
        Options,
        backend::{BackendError, TurnPrompt},
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
        Source::Base64 { data } => data.clone(),
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
}

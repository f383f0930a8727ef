//! Converts results of servers to outputs of tools.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::connection::LONGEST;
use crate::{
    message::{Attachment, ResultBlock, Text},
    text::clip,
    tool::ToolOutput,
};

/// The media types of files that become attachments.
const ACCEPTED: [&str; 6] =
    ["image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp", "application/pdf"];

/// Converts the result of a call.
pub(super) fn output(result: CallToolResult) -> ToolOutput {
    let mut blocks: Vec<ResultBlock> = result.content.into_iter().map(block).collect();
    if let Some(value) = result.structured_content
        && !blocks.iter().any(|block| repeats(block, &value))
    {
        blocks.push(Text::new(value.to_string()).into());
    }
    let output = ToolOutput::from(blocks);
    if result.is_error == Some(true) { output.failed() } else { output }
}

/// Returns whether a block contains the structured content, as the protocol recommends. Some servers send a text, and the
/// same text as the only member of an object.
fn repeats(block: &ResultBlock, value: &Value) -> bool {
    let ResultBlock::Text(text) = block else { return false };
    let only =
        value.as_object().filter(|members| members.len() == 1).and_then(|members| members.values().next());
    only.is_some_and(|only| only == &text.text)
        || serde_json::from_str(&text.text).is_ok_and(|text: Value| text == *value)
}

fn block(content: ContentBlock) -> ResultBlock {
    match content {
        ContentBlock::Text(text) => Text::new(text.text).into(),
        ContentBlock::Image(image) => file("an image", &image.mime_type, image.data, None),
        ContentBlock::Audio(audio) => file("audio", &audio.mime_type, audio.data, None),
        ContentBlock::Resource(resource) => embedded(resource.resource),
        ContentBlock::ResourceLink(link) => {
            let (name, uri) = (clip(&link.name, LONGEST), clip(&link.uri, LONGEST));
            let about = link.description.as_deref().map(|about| format!(" ({})", clip(about, LONGEST)));
            Text::new(format!("Resource {name}: {uri}{}", about.unwrap_or_default())).into()
        }
        _ => Text::new("[The server sent a block of an unknown kind.]").into(),
    }
}

fn embedded(resource: ResourceContents) -> ResultBlock {
    match resource {
        // A text is not sent as a file, because many services accept no text files.
        ResourceContents::TextResourceContents { uri, text, .. } => {
            Text::new(format!("Resource {}:\n{text}", clip(&uri, LONGEST))).into()
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let uri = clip(&uri, LONGEST).into_owned();
            let media_type = mime_type.as_deref().unwrap_or("application/octet-stream");
            file(&format!("the resource {uri}"), media_type, blob, Some(uri))
        }
        _ => Text::new("[The server sent a resource of an unknown kind.]").into(),
    }
}

/// Returns an attachment, or a text in its place. By default, a request with an attachment that the service does not
/// accept fails, so only the kinds that most services accept become attachments.
fn file(what: &str, media_type: &str, data: String, name: Option<String>) -> ResultBlock {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let reason = if !ACCEPTED.contains(&&*kind) {
        "models do not accept this kind in results of tools"
    } else if BASE64_STANDARD.decode(&data).is_err() {
        "its data is not valid base64"
    } else {
        let mut attachment = Attachment::base64(kind, data);
        attachment.name = name;
        return attachment.into();
    };
    Text::new(format!("[The server sent {what} ({}), left out: {reason}.]", clip(media_type, LONGEST))).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::Source;

    fn converted(result: Value) -> ToolOutput {
        output(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn output_each_kind_of_content_becomes_its_block() {
        let found = converted(json!({ "isError": true, "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "mimeType": "image/png", "data": "aGk=" },
            { "type": "image", "mimeType": "image/svg+xml", "data": "aGk=" },
            { "type": "image", "mimeType": "image/png", "data": "aGk" },
            { "type": "audio", "mimeType": "audio/wav", "data": "aGk=" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "hi" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "aGk=", "mimeType": "IMAGE/GIF; a=b" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "aGk=" } },
            { "type": "resource_link", "name": "c", "uri": "file:///c" },
        ] }));
        let described = |block: &ResultBlock| match block {
            ResultBlock::Text(text) => text.text.clone(),
            ResultBlock::Attachment(attachment) => match &attachment.source {
                Source::Base64 { data } => format!("{} {data} {:?}", attachment.media_type, attachment.name),
                Source::Url { url } => url.clone(),
            },
        };
        assert!(found.is_error);
        assert_eq!(
            found.blocks.iter().map(described).collect::<Vec<_>>(),
            [
                "a",
                "image/png aGk= None",
                "[The server sent an image (image/svg+xml), left out: models do not accept this kind in results of \
                 tools.]",
                "[The server sent an image (image/png), left out: its data is not valid base64.]",
                "[The server sent audio (audio/wav), left out: models do not accept this kind in results of tools.]",
                "Resource file:///a:\nhi",
                r#"image/gif aGk= Some("file:///b")"#,
                "[The server sent the resource file:///b (application/octet-stream), left out: models do not accept \
                 this kind in results of tools.]",
                "Resource c: file:///c",
            ]
        );
    }

    #[test]
    fn output_structured_content_is_kept_unless_a_text_repeats_it() {
        let with = |content: Value, is_error: bool| {
            let value = json!({ "a": 1, "b": 2 });
            converted(json!({ "content": content, "structuredContent": value, "isError": is_error }))
        };
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(with(json!([]), false), r#"{"a":1,"b":2}"#.into());
        assert_eq!(with(json!([text("{ \"b\": 2, \"a\": 1 }")]), false), r#"{ "b": 2, "a": 1 }"#.into());
        let wrapped = json!({ "content": [text("no")], "structuredContent": { "result": "no" } });
        assert_eq!(converted(wrapped), "no".into());
        let both = vec![Text::new("no").into(), Text::new(r#"{"a":1,"b":2}"#).into()];
        assert_eq!(with(json!([text("no")]), false), ToolOutput::from(both.clone()));
        assert_eq!(with(json!([text("no")]), true), ToolOutput::from(both).failed());
    }
}

//! Converts results of servers to outputs of tools.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use crate::{
    message::{Attachment, ResultBlock, Text},
    text::clip,
    tool::ToolOutput,
};

/// The maximum length of a URI or a name in a result.
const LONGEST: usize = 4096;

/// Converts the result of a call.
pub(super) fn output(result: CallToolResult) -> ToolOutput {
    let mut blocks: Vec<ResultBlock> = result.content.into_iter().map(block).collect();
    if let (true, Some(value)) = (blocks.is_empty(), result.structured_content) {
        blocks.push(Text::new(value.to_string()).into());
    }
    let output = ToolOutput::from(blocks);
    if result.is_error == Some(true) { output.failed() } else { output }
}

fn block(content: ContentBlock) -> ResultBlock {
    match content {
        ContentBlock::Text(text) => Text::new(text.text).into(),
        ContentBlock::Image(image) => Attachment::base64(image.mime_type, image.data).into(),
        ContentBlock::Audio(audio) => Attachment::base64(audio.mime_type, audio.data).into(),
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
    let named = |uri: String, media_type: String, data: String| {
        let mut attachment = Attachment::base64(media_type, data);
        attachment.name = Some(clip(&uri, LONGEST).into_owned());
        attachment.into()
    };
    match resource {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            use base64::Engine as _;
            let data = base64::prelude::BASE64_STANDARD.encode(text);
            named(uri, mime_type.unwrap_or_else(|| "text/plain".to_owned()), data)
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            named(uri, mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()), blob)
        }
        _ => Text::new("[The server sent a resource of an unknown kind.]").into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::message::Source;

    fn converted(result: Value) -> ToolOutput {
        output(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn output_each_kind_of_content_becomes_its_block() {
        let found = converted(json!({ "isError": true, "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "mimeType": "image/png", "data": "aa==" },
            { "type": "audio", "mimeType": "audio/wav", "data": "bb==" },
            { "type": "resource", "resource": { "uri": "file:///a", "text": "hi" } },
            { "type": "resource", "resource": { "uri": "file:///b", "blob": "cc==", "mimeType": "image/gif" } },
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
                "image/png aa== None",
                "audio/wav bb== None",
                r#"text/plain aGk= Some("file:///a")"#,
                r#"image/gif cc== Some("file:///b")"#,
                "Resource c: file:///c",
            ]
        );
    }

    #[test]
    fn output_structured_content_is_used_only_without_other_content() {
        assert_eq!(converted(json!({ "content": [], "structuredContent": { "a": 1 } })), r#"{"a":1}"#.into());
        let both = json!({ "content": [{ "type": "text", "text": "a" }], "structuredContent": { "a": 1 } });
        assert_eq!(converted(both), "a".into());
    }
}

//! Converts content of the protocol to content of this crate, and back. Performs no I/O.

use agent_client_protocol_schema::v1::{
    AudioContent, ContentBlock, EmbeddedResourceResource, Error, ImageContent, ResourceLink, ToolCallContent,
};
use serde_json::Value;

use crate::message::{Attachment, Blocks, Content, ResultBlock, Source, Text};

/// Returns the content of a prompt.
pub(super) fn prompt(blocks: Vec<ContentBlock>) -> Result<Blocks, Error> {
    let blocks: Result<Vec<Content>, Error> = blocks.into_iter().map(block).collect();
    Ok(Blocks(blocks?))
}

fn block(block: ContentBlock) -> Result<Content, Error> {
    Ok(match block {
        ContentBlock::Text(text) => text.text.into(),
        ContentBlock::Image(image) => Attachment::base64(image.mime_type, image.data).into(),
        ContentBlock::Audio(audio) => Attachment::base64(audio.mime_type, audio.data).into(),
        // The model decides whether to read the file. To read it, the model uses a tool of the application.
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri).into(),
        ContentBlock::Resource(resource) => match resource.resource {
            EmbeddedResourceResource::TextResourceContents(contents) => {
                format!("<context ref=\"{}\">\n{}\n</context>", contents.uri, contents.text).into()
            }
            EmbeddedResourceResource::BlobResourceContents(contents) => {
                let media_type = contents.mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
                let file = Attachment::base64(media_type, contents.blob);
                match contents.uri.rsplit('/').next().filter(|name| !name.is_empty()) {
                    Some(name) => file.named(name).into(),
                    None => file.into(),
                }
            }
            _ => return Err(unknown("resource")),
        },
        _ => return Err(unknown("content block")),
    })
}

fn unknown(what: &str) -> Error {
    Error::invalid_params().data(format!("the prompt contains an unknown kind of {what}"))
}

/// Returns a file in the form that the protocol defines. A file with a URL becomes a link. Any other file that is
/// neither an image nor audio becomes a note.
pub(super) fn attachment(file: &Attachment) -> ContentBlock {
    let name = || file.name.clone().unwrap_or_else(|| file.media_type.clone());
    let kind = file.media_type.split('/').next().unwrap_or_default().to_ascii_lowercase();
    match &file.source {
        Source::Url { url } => {
            let name = file.name.clone().unwrap_or_else(|| url.clone());
            ContentBlock::ResourceLink(
                ResourceLink::new(name, url.clone()).mime_type(file.media_type.clone()),
            )
        }
        Source::Base64 { data } if kind == "image" => {
            ContentBlock::Image(ImageContent::new(data.to_string(), file.media_type.clone()))
        }
        Source::Base64 { data } if kind == "audio" => {
            ContentBlock::Audio(AudioContent::new(data.to_string(), file.media_type.clone()))
        }
        Source::Base64 { .. } => format!("[{}]", name()).into(),
    }
}

/// Returns the output of a tool.
pub(super) fn output(blocks: &[ResultBlock]) -> Vec<ToolCallContent> {
    let blocks = blocks.iter().map(|block| match block {
        ResultBlock::Text(Text { text, .. }) => text.clone().into(),
        ResultBlock::Attachment(file) => attachment(file),
    });
    blocks.map(|block: ContentBlock| block.into()).collect()
}

/// Returns data of an application as a text for a person: its own text, its member `message`, or its JSON.
pub(super) fn words(data: &Value) -> String {
    let text = data.as_str().or_else(|| data.get("message")?.as_str());
    text.map_or_else(|| data.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prompt_keeps_text_files_links_and_resources() {
        let blocks: Vec<ContentBlock> = serde_json::from_value(json!([
            { "type": "text", "text": "Look" },
            { "type": "image", "data": "aGk=", "mimeType": "image/png" },
            { "type": "resource_link", "name": "a.rs", "uri": "file:///p/a.rs" },
            { "type": "resource", "resource": { "uri": "file:///p/b.rs", "text": "fn b() {}" } },
            { "type": "resource", "resource": { "uri": "file:///p/c.pdf", "blob": "aGk=", "mimeType": "application/pdf" } },
        ]))
        .unwrap();
        let Blocks(content) = prompt(blocks).unwrap();
        let expected: [Content; 5] = [
            "Look".to_owned().into(),
            Attachment::base64("image/png", "aGk=").into(),
            "[a.rs](file:///p/a.rs)".to_owned().into(),
            "<context ref=\"file:///p/b.rs\">\nfn b() {}\n</context>".to_owned().into(),
            Attachment::base64("application/pdf", "aGk=").named("c.pdf").into(),
        ];
        assert_eq!(content, expected);
    }

    #[test]
    fn output_of_a_tool_keeps_text_images_and_links() {
        let shown = output(&[
            Text::new("a").into(),
            Attachment::base64("image/png", "aGk=").into(),
            Attachment::base64("application/pdf", "aGk=").named("b.pdf").into(),
            Attachment::url("text/html", "https://a.example").into(),
        ]);
        let kinds: Vec<Value> = shown.iter().map(|content| json!(content)["content"].clone()).collect();
        assert_eq!(kinds[0]["text"], "a");
        assert_eq!(kinds[1]["type"], "image");
        assert_eq!(kinds[2]["text"], "[b.pdf]");
        assert_eq!(kinds[3]["uri"], "https://a.example");
    }

    #[test]
    fn words_of_progress_are_its_message() {
        assert_eq!(words(&json!("half")), "half");
        assert_eq!(words(&json!({ "progress": 1, "message": "half" })), "half");
        assert_eq!(words(&json!({ "progress": 1 })), r#"{"progress":1}"#);
    }
}

//! Answers of the agent as blocks of the protocol.

use rmcp::model::{ContentBlock, ResourceContents};

use crate::message::{Attachment, Content, Message, Source};

/// Returns the texts and files of a message. Thinking and tool uses are omitted.
pub(super) fn blocks(message: &Message) -> Vec<ContentBlock> {
    message.content.iter().filter_map(block).collect()
}

fn block(content: &Content) -> Option<ContentBlock> {
    match content {
        Content::Text(text) if !text.text.is_empty() => Some(ContentBlock::text(text.text.as_str())),
        Content::Attachment(attachment) => Some(file(attachment)),
        _ => None,
    }
}

fn file(attachment: &Attachment) -> ContentBlock {
    let media_type = attachment.media_type.as_str();
    let name = attachment.name.as_deref().unwrap_or("file");
    match (&attachment.source, media_type.split('/').next()) {
        (Source::Base64 { data }, Some("image")) => ContentBlock::image(&**data, media_type),
        (Source::Base64 { data }, Some("audio")) => ContentBlock::audio(&**data, media_type),
        (Source::Base64 { data }, _) => {
            let resource = ResourceContents::blob(&**data, format!("attachment:{name}"));
            ContentBlock::resource(resource.with_mime_type(media_type))
        }
        (Source::Url { url }, _) => ContentBlock::text(format!("[{name} ({media_type}): {url}]")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn blocks_of_a_message_are_its_texts_and_files() {
        let message = Message::assistant([
            Content::from("Here."),
            Attachment::base64("image/png", "QUJD").into(),
            Attachment::base64("text/csv", "QUJD").named("a.csv").into(),
            Attachment::url("application/pdf", "https://example.com/a").into(),
        ]);
        let shown: Vec<Value> =
            blocks(&message).iter().map(|block| serde_json::to_value(block).unwrap()).collect();
        let resource = json!({ "uri": "attachment:a.csv", "mimeType": "text/csv", "blob": "QUJD" });
        let expected = json!([
            { "type": "text", "text": "Here." },
            { "type": "image", "data": "QUJD", "mimeType": "image/png" },
            { "type": "resource", "resource": resource },
            { "type": "text", "text": "[file (application/pdf): https://example.com/a]" },
        ]);
        assert_eq!(Value::from(shown), expected);
    }
}

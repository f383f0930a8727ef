//! The content of messages and results of tools as JSON.

use serde_json::{Value, json};

use crate::{
    message::{Attachment, Content, Message, MessageId, ResultBlock, Source, ToolResult},
    web::ui_messages::AiSdkTranslationSettings,
};

/// Returns the parts of a user message, without its tool results.
pub(in crate::web::ui_messages) fn user_parts(
    message: &Message,
    settings: &AiSdkTranslationSettings,
) -> Vec<Value> {
    let parts = message.content.iter().enumerate().filter_map(|(index, block)| match block {
        Content::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        Content::Attachment(file) => {
            Some(file_part(&file_url(settings, message.id.as_ref(), &index.to_string(), file), file))
        }
        _ => None,
    });
    parts.collect()
}

fn file_part(url: &str, file: &Attachment) -> Value {
    let mut part = json!({ "type": "file", "url": url, "mediaType": file.media_type });
    if let Some(name) = &file.name {
        part["filename"] = name.as_str().into();
    }
    part
}

/// Returns a result's output: the value if the text is a JSON object or array, otherwise the text. A result with files
/// is a list of parts. `block` is the message and the index of the result in it.
pub(super) fn output(
    result: &ToolResult,
    block: Option<(&MessageId, usize)>,
    settings: &AiSdkTranslationSettings,
) -> Value {
    if result.content.iter().all(|block| matches!(block, ResultBlock::Text(_))) {
        let text = result.output_text();
        let value = text.trim_start().starts_with(['{', '[']).then(|| serde_json::from_str(&text).ok());
        return value.flatten().unwrap_or(Value::String(text));
    }
    let (message, index) = block.unzip();
    let parts = result.output_blocks().map(|(inner, content)| match content {
        ResultBlock::Text(text) => json!({ "type": "text", "text": text.text }),
        ResultBlock::Attachment(file) => {
            let block = format!("{}-{inner}", index.unwrap_or_default());
            file_part(&file_url(settings, message, &block, file), file)
        }
    });
    parts.collect()
}

/// Returns whether a result contains a file that is sent as an address.
pub(super) fn has_linked_files(result: &ToolResult, settings: &AiSdkTranslationSettings) -> bool {
    let is_linked = |block: &ResultBlock| match block {
        ResultBlock::Attachment(file) => settings.files.links(file),
        ResultBlock::Text(_) => false,
    };
    result.content.iter().any(is_linked)
}

fn inline_url(file: &Attachment) -> String {
    match &file.source {
        Source::Base64 { data } => format!("data:{};base64,{data}", file.media_type),
        Source::Url { url } => url.clone(),
    }
}

pub(super) fn file_url(
    settings: &AiSdkTranslationSettings,
    message: Option<&MessageId>,
    block: &str,
    file: &Attachment,
) -> String {
    let address = message.and_then(|message| settings.files.address(file, message, block));
    address.unwrap_or_else(|| inline_url(file))
}

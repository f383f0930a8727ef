//! The content of messages and results of tools as JSON.

use serde_json::{Value, json};

use crate::{
    message::{Attachment, Content, Message, MessageId, ResultBlock, Source, ToolResult},
    web::{
        ui_messages::{LARGE_FILE, Settings},
        view::encoded,
    },
};

/// Returns the parts of a user message. Results of tools are not part of it.
pub(in crate::web::ui_messages) fn user_parts(message: &Message, settings: &Settings) -> Vec<Value> {
    let parts = message.content.iter().enumerate().filter_map(|(index, block)| match block {
        Content::Text(text) => Some(json!({ "type": "text", "text": text.text })),
        Content::Attachment(file) => {
            Some(file_part(&file_url(settings, message.id.as_ref(), index, file), file))
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
/// is a list of parts.
pub(super) fn output(result: &ToolResult) -> Value {
    if result.content.iter().all(|block| matches!(block, ResultBlock::Text(_))) {
        let text = result.text();
        let value = text.trim_start().starts_with(['{', '[']).then(|| serde_json::from_str(&text).ok());
        return value.flatten().unwrap_or(Value::String(text));
    }
    let parts = result.content.iter().map(|block| match block {
        ResultBlock::Text(text) => json!({ "type": "text", "text": text.text }),
        ResultBlock::Attachment(file) => file_part(&inline_url(file), file),
    });
    parts.collect()
}

fn inline_url(file: &Attachment) -> String {
    match &file.source {
        Source::Base64 { data } => format!("data:{};base64,{data}", file.media_type),
        Source::Url { url } => url.clone(),
    }
}

pub(super) fn file_url(
    settings: &Settings,
    message: Option<&MessageId>,
    index: usize,
    file: &Attachment,
) -> String {
    match (&file.source, &settings.conversation, message) {
        (Source::Base64 { data }, Some(conversation), Some(message))
            if data.len() > LARGE_FILE && !settings.inline_files =>
        {
            format!("{conversation}/files/{}/{index}", encoded(&message.to_string()))
        }
        _ => inline_url(file),
    }
}

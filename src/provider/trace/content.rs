//! The JSON of captured content, in the shapes of OpenTelemetry's conventions.

use serde_json::{Value, json};

use crate::{
    message::{Attachment, Content, History, ResultBlock, Role, Source, Timestamp},
    provider::Fold,
    telemetry,
    tool::ToolSet,
};

pub(super) fn system(prompt: Option<&str>) -> String {
    Value::from_iter(prompt.map(|prompt| json!({ "type": "text", "content": prompt }))).to_string()
}

pub(super) fn messages(history: &History) -> String {
    let messages = history.iter().flat_map(|message| {
        // A message of the user may begin with the results of tools, which are a message of the tools here.
        let is_result = |block: &Content| matches!(block, Content::ToolResult(_));
        message.content.chunk_by(move |one, other| is_result(one) == is_result(other)).map(move |blocks| {
            let role = match message.role {
                Role::Assistant => "assistant",
                _ if blocks.first().is_some_and(is_result) => "tool",
                _ => "user",
            };
            json!({ "role": role, "parts": parts(blocks) })
        })
    });
    messages.collect::<Value>().to_string()
}

pub(super) fn response(fold: &Fold) -> String {
    // `finish` fails if the response is incomplete. `cut` returns the part so far.
    let (message, reason) = match fold.clone().finish(Timestamp::now()) {
        Ok(complete) => (complete.message, complete.stop_reason.to_string()),
        Err(_) => (fold.clone().cut(Timestamp::now()), "error".to_owned()),
    };
    let reason = telemetry::finish_reason(&reason);
    json!([{ "role": "assistant", "parts": parts(&message.content), "finish_reason": reason }]).to_string()
}

pub(super) fn tools(tools: &ToolSet) -> String {
    let tools = tools.iter().map(|tool| {
        json!({
            "type": "function",
            "name": tool.name(),
            "description": tool.description(),
            "parameters": tool.schema().as_value(),
        })
    });
    tools.collect::<Value>().to_string()
}

fn parts(content: &[Content]) -> Value {
    content.iter().map(part).collect()
}

fn part(content: &Content) -> Value {
    match content {
        Content::Text(text) => json!({ "type": "text", "content": text.text }),
        Content::Thinking(thinking) => json!({ "type": "reasoning", "content": thinking.text }),
        Content::Attachment(attachment) => self::attachment(attachment),
        Content::ToolUse(tool_use) => {
            // An input that is not a complete JSON object appears as its text.
            let raw = tool_use.malformed.as_ref();
            let arguments = raw.map_or_else(|| tool_use.input.clone(), |raw| raw.as_str().into());
            json!({ "type": "tool_call", "id": tool_use.id, "name": tool_use.name, "arguments": arguments })
        }
        Content::ToolResult(result) => {
            let blocks = result.content.iter().map(|block| match block {
                ResultBlock::Text(text) => json!({ "type": "text", "content": text.text }),
                ResultBlock::Attachment(attachment) => self::attachment(attachment),
            });
            json!({
                "type": "tool_call_response",
                "id": result.tool_use_id,
                "response": blocks.collect::<Value>(),
            })
        }
        Content::ProviderItem(item) => json!({ "type": item.format }),
    }
}

/// Returns an attachment without its data, because readers of traces can't use the data. The convention requires the
/// member for the data, so it is empty.
fn attachment(attachment: &Attachment) -> Value {
    let kind = &*attachment.media_type;
    let modality = match kind.split_once('/') {
        Some((modality @ ("image" | "audio" | "video"), _)) => modality,
        _ => "document",
    };
    match &attachment.source {
        Source::Url { url } => json!({ "type": "uri", "mime_type": kind, "modality": modality, "uri": url }),
        Source::Base64 { data } => json!({
            "type": "blob",
            "mime_type": kind,
            "modality": modality,
            "content": "",
            "omitted_bytes": data.len(),
        }),
    }
}

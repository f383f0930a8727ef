//! The JSON of captured content, in the shapes of OpenTelemetry's conventions.

use serde_json::{Value, json};

use crate::{
    message::{Attachment, Content, History, ResultBlock, Role, Source, Timestamp},
    provider::Fold,
    tool::ToolSet,
};

pub(super) fn system(prompt: Option<&str>) -> String {
    Value::from_iter(prompt.map(|prompt| json!({ "type": "text", "content": prompt }))).to_string()
}

pub(super) fn messages(history: &History) -> String {
    let messages = history.iter().map(|message| {
        let role = match message.role {
            Role::Assistant => "assistant",
            _ => "user",
        };
        json!({ "role": role, "parts": parts(&message.content) })
    });
    messages.collect::<Value>().to_string()
}

pub(super) fn response(fold: &Fold) -> String {
    // `finish` fails if the response is incomplete. `cut` returns the part so far.
    let complete = fold.clone().finish(Timestamp::now());
    let message = complete.map_or_else(|_| fold.clone().cut(Timestamp::now()), |complete| complete.message);
    json!([{ "role": "assistant", "parts": parts(&message.content) }]).to_string()
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

/// Returns an attachment without its data, because readers of traces can't use the data.
fn attachment(attachment: &Attachment) -> Value {
    match &attachment.source {
        Source::Url { url } => json!({ "type": "uri", "mime_type": attachment.media_type, "uri": url }),
        Source::Base64 { data } => {
            json!({ "type": "blob", "mime_type": attachment.media_type, "omitted_bytes": data.len() })
        }
    }
}

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
    // `finish` parses the JSON of the tool inputs. It fails if the response is incomplete. In this case, the inputs are
    // left out.
    let parts = match fold.clone().finish(Timestamp::now()) {
        Ok(complete) => parts(&complete.message.content),
        Err(_) => parts(fold.blocks().iter().map(|block| &block.content)),
    };
    json!([{ "role": "assistant", "parts": parts }]).to_string()
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

fn parts<'a>(content: impl IntoIterator<Item = &'a Content>) -> Value {
    content.into_iter().map(part).collect()
}

fn part(content: &Content) -> Value {
    match content {
        Content::Text(text) => json!({ "type": "text", "content": text.text }),
        Content::Thinking(thinking) => json!({ "type": "reasoning", "content": thinking.text }),
        Content::Attachment(attachment) => self::attachment(attachment),
        Content::ToolUse(tool_use) => json!({
            "type": "tool_call",
            "id": tool_use.id,
            "name": tool_use.name,
            "arguments": tool_use.input,
        }),
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

//! Chat Completions as implemented by OpenAI (<https://platform.openai.com/docs/api-reference/chat/create>). The server
//! also supports OpenRouter's extension for reasoning that is sent back, `reasoning_details`
//! (<https://openrouter.ai/docs/use-cases/reasoning-tokens>).

#![allow(dead_code, reason = "listed members may be present, but are not read")]

use omni_agent::{message::Usage, provider::ToolChoice};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Event, Read, Rendered, Seen, SeenResult, Wire,
    memory::{Calls, Memory, Traits},
    must,
    openai::{self, Effort, JsonSchema, Word, data_of, is_name},
    typed,
};
use crate::{
    http::Received,
    script::{Answer, Block as Said, Fault, Stop, pieces},
};

pub(crate) struct Chat;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    model: String,
    messages: Vec<Value>,
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_completion_tokens: Option<u32>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    stop: Option<Vec<String>>,
    reasoning_effort: Option<Effort>,
    response_format: Option<ResponseFormat>,
    prompt_cache_retention: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Tool {
    Function { function: Function },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Choice {
    Word(Word),
    Tool(Named),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Named {
    Function { function: Name },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    JsonSchema { json_schema: JsonSchema },
}

#[derive(Deserialize)]
#[serde(tag = "role", rename_all = "lowercase", deny_unknown_fields)]
enum Message {
    Developer {
        content: String,
    },
    User {
        content: Content,
    },
    Assistant {
        content: Option<String>,
        tool_calls: Option<Vec<Call>>,
        reasoning_details: Option<Vec<Value>>,
    },
    Tool {
        tool_call_id: String,
        content: String,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Part {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
    File { file: File },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageUrl {
    url: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    filename: String,
    file_data: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Call {
    Function { id: String, function: Called },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    arguments: String,
}

const TRAITS: Traits = Traits {
    anchor: |item| item["content"].as_str().or(item["id"].as_str()).map(ToOwned::to_owned),
    private: |item| item.get("reasoning_details").is_some(),
    thinking: |item| item.get("reasoning_details").is_some(),
};

impl Wire for Chat {
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen> {
        must(request.line == "POST /v1/chat/completions", || format!("unknown path: {}", request.line))?;
        let key = request.header("authorization");
        must(key.is_some_and(|key| key.starts_with("Bearer ")), || "You didn't provide an API key.".into())?;
        let body: Body = typed(&request.json())?;
        must(body.stream && body.stream_options.is_some(), || "a stream with its usage is expected".into())?;
        let mut seen = Seen { max_tokens: body.max_completion_tokens, ..Seen::default() };
        for Tool::Function { function } in body.tools.into_iter().flatten() {
            must(is_name(&function.name), || format!("tools: {} is not a valid name", function.name))?;
            seen.tools.push(function.name);
        }
        must(body.tool_choice.is_none() || !seen.tools.is_empty(), || {
            "'tool_choice' is only allowed when 'tools' are specified".into()
        })?;
        seen.choice = body.tool_choice.map(|choice| match choice {
            Choice::Word(word) => word.into(),
            Choice::Tool(Named::Function { function }) => ToolChoice::Tool(function.name),
        });
        seen.stop = body.stop.unwrap_or_default();
        must(seen.stop.len() <= 4, || "'stop': at most 4 sequences".into())?;
        seen.thinks = body.reasoning_effort.map(|effort| effort != Effort::None);
        seen.cached = body.prompt_cache_retention.is_some();
        if let Some(ResponseFormat::JsonSchema { json_schema }) = body.response_format {
            seen.schema = Some(json_schema.check()?);
        }
        messages(&body.messages, memory, &mut seen)?;
        Ok(seen)
    }

    fn render(&self, answer: &Answer, number: usize) -> Rendered {
        let mut out = Rendered { terminal: 3, ..Rendered::default() };
        let chunk = |choices: Value, usage: Value| {
            Event::unnamed(&json!({"id": format!("chatcmpl-{number}"), "object": "chat.completion.chunk",
                "created": 1_700_000_000, "model": "gpt-5.2-2025-12-11", "choices": choices, "usage": usage}))
        };
        let delta = |delta: Value, reason: Value| {
            chunk(
                json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]),
                Value::Null,
            )
        };
        out.events.push(delta(json!({"role": "assistant", "content": ""}), Value::Null));
        let (mut content, mut calls, mut details) = (String::new(), Vec::new(), Vec::new());
        for said in &answer.blocks {
            match said {
                Said::Thinking { text, signature } => {
                    let index = details.len();
                    let entry = |key: &str, value: &str| json!({"type": "reasoning.text", "format": "anthropic-claude-v1", "index": index, key: value});
                    out.events.extend(pieces(text).map(|text| {
                        let detail = entry("text", text);
                        delta(json!({"reasoning": text, "reasoning_details": [detail]}), Value::Null)
                    }));
                    let signed = entry("signature", signature);
                    out.events.push(delta(json!({"reasoning_details": [signed]}), Value::Null));
                    let mut whole = entry("text", text);
                    whole["signature"] = signature.clone().into();
                    details.push(whole);
                }
                Said::Text(text) => {
                    let key = if matches!(answer.stop, Stop::Refusal) { "refusal" } else { "content" };
                    out.events.extend(pieces(text).map(|text| delta(json!({key: text}), Value::Null)));
                    content.push_str(text);
                }
                Said::Call { id, name, input } => {
                    let index = calls.len();
                    let part = |call: Value| delta(json!({"tool_calls": [call]}), Value::Null);
                    let function = json!({"name": name, "arguments": ""});
                    let start = json!({"index": index, "id": id, "type": "function", "function": function});
                    out.events.push(part(start));
                    out.events.extend(
                        pieces(input)
                            .map(|json| part(json!({"index": index, "function": {"arguments": json}}))),
                    );
                    let parsed: Result<Value, _> = serde_json::from_str(input);
                    let input = if parsed.is_ok() { input } else { "{}" };
                    let function = json!({"name": name, "arguments": input});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                }
                // In this format, services do not report tools that they run themselves, so nothing is sent.
                Said::Opaque(_) => {}
            }
        }
        if !details.is_empty() {
            out.issued.push(json!({"reasoning_details": details}));
        }
        if !content.is_empty() {
            out.issued.push(json!({"content": content}));
        }
        out.issued.append(&mut calls);
        let reason = match &answer.stop {
            Stop::Done if answer.calls() => "tool_calls",
            Stop::Done | Stop::Refusal | Stop::Sequence(_) => "stop",
            Stop::Length => "length",
        };
        out.events.push(delta(json!({}), reason.into()));
        let Usage { cache_read, cache_write, output, reasoning, .. } = answer.usage;
        let prompt = answer.usage.prompt();
        out.events.push(chunk(
            json!([]),
            json!({
            "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cache_read, "cache_write_tokens": cache_write},
            "completion_tokens_details": {"reasoning_tokens": reasoning}}),
        ));
        out.events.push(Event { name: "", data: "[DONE]".into() });
        out
    }

    fn fault(&self, fault: &Fault) -> (u16, Value) {
        openai::fault(fault)
    }

    fn failure(&self) -> Event {
        let error = json!({"message": "The server had an error", "type": "server_error", "code": null});
        Event::unnamed(&json!({"error": error}))
    }

    fn reported_usage(&self, usage: Usage) -> Usage {
        usage
    }
}

fn messages(messages: &[Value], memory: &Memory, seen: &mut Seen) -> Read<()> {
    let mut calls = Calls::default();
    for (at, value) in messages.iter().enumerate() {
        let message: Message = typed(value).map_err(|why| format!("messages[{at}]: {why}"))?;
        if !matches!(message, Message::Tool { .. }) {
            calls.must_be_answered()?;
        }
        match message {
            Message::Developer { content } => {
                must(at == 0, || "instructions must come first".into())?;
                seen.system = Some(content);
            }
            Message::User { content: Content::Text(text) } => {
                must(!text.is_empty(), || "a message must not be empty".into())?;
                seen.said.push(("user", text));
            }
            Message::User { content: Content::Parts(parts) } => {
                for part in &parts {
                    read_part(typed(part)?, seen)?;
                }
            }
            Message::Assistant { content, tool_calls, reasoning_details } => {
                let mut turn = Vec::from_iter(reasoning_details.map(|it| json!({"reasoning_details": it})));
                turn.extend(content.as_ref().map(|text| json!({"content": text})));
                turn.extend(value["tool_calls"].as_array().into_iter().flatten().cloned());
                memory.check(&turn, &TRAITS)?;
                must(content.is_some() || tool_calls.is_some(), || {
                    "content or tool_calls is required".into()
                })?;
                seen.said.extend(content.map(|text| ("assistant", text)));
                for Call::Function { id, function } in tool_calls.into_iter().flatten() {
                    must((1..=40).contains(&id.len()), || format!("{id}: string too long, at most 40"))?;
                    must(is_name(&function.name), || {
                        format!("tool_calls: {:?} does not match '^[a-zA-Z0-9_-]+$'", function.name)
                    })?;
                    let arguments: Result<Map<String, Value>, _> = serde_json::from_str(&function.arguments);
                    must(arguments.is_ok(), || "arguments: a JSON object is expected".into())?;
                    calls.make(&id)?;
                }
            }
            Message::Tool { tool_call_id, content } => {
                calls.answer(&tool_call_id)?;
                let failed = content.starts_with("Error");
                seen.results.push(SeenResult { id: tool_call_id, text: content, failed });
            }
        }
    }
    calls.must_be_answered()
}

fn read_part(part: Part, seen: &mut Seen) -> Read<()> {
    match part {
        Part::Text { text } => seen.said.push(("user", text)),
        Part::ImageUrl { image_url } => seen.images.push(data_of(image_url.url, "image/")?),
        Part::File { file } => {
            must(!file.filename.is_empty(), || "file.filename is required".into())?;
            seen.documents.push(data_of(file.file_data, "application/pdf")?);
        }
    }
    Ok(())
}

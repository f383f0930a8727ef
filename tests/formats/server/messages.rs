//! Anthropic's Messages: <https://platform.claude.com/docs/en/api/messages>, and Anthropic's pages on streaming,
//! errors, extended thinking, tool use, structured outputs and prompt caching.

mod body;

use body::{Block, Body, Choice, OutputFormat, Source, System, Thinking, Turn};
use omni_agent::{message::Usage, provider::ToolChoice};
use serde_json::{Value, json};

use super::{
    Event, Read, Rendered, Seen, SeenResult, Wire, is_base64,
    memory::{Calls, Memory, Traits},
    must, typed,
};
use crate::{
    http::Received,
    script::{Answer, Block as Said, Fault, Stop, pieces},
};

pub(crate) struct Messages;

const TRAITS: Traits = Traits {
    anchor: |block| {
        let key = match block["type"].as_str()? {
            "text" => "text",
            "tool_use" => "id",
            _ => return None,
        };
        block[key].as_str().map(ToOwned::to_owned)
    },
    private: |block| !matches!(block["type"].as_str(), Some("text" | "tool_use")),
    thinking: |block| block["type"] == "thinking",
};

impl Wire for Messages {
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen> {
        must(request.line == "POST /v1/messages", || format!("unknown path: {}", request.line))?;
        must(request.header("x-api-key").is_some(), || "x-api-key: header is required".into())?;
        must(request.header("anthropic-version") == Some("2023-06-01"), || {
            "anthropic-version: header is required".into()
        })?;
        let body: Body = typed(&request.json())?;
        let mut seen = Seen { max_tokens: Some(body.max_tokens), ..Seen::default() };
        let breakpoints = request.json().to_string().matches("\"cache_control\"").count();
        must(breakpoints <= 4, || format!("at most 4 cache breakpoints, not {breakpoints}"))?;
        seen.cached = breakpoints > 0;
        options(&body, &mut seen)?;
        messages(body.messages, memory, &mut seen)?;
        Ok(seen)
    }

    fn render(&self, answer: &Answer, number: usize) -> Rendered {
        let mut out = Rendered { terminal: 2, ..Rendered::default() };
        let event = |data: Value| Event { name: NAMES[place(&data)], data: data.to_string() };
        let Usage { input, cache_read, cache_write, output, reasoning, .. } = answer.usage;
        out.events.push(event(json!({"type": "message_start", "message": {
            "id": format!("msg_{number}"), "type": "message", "role": "assistant", "content": [],
            "model": "claude-sonnet-4-5-20250929", "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": input, "cache_read_input_tokens": cache_read,
                "cache_creation_input_tokens": cache_write, "output_tokens": 1}}})));
        out.events.push(event(json!({"type": "ping"})));
        let mut index = 0;
        let mut block = |start: Value, deltas: Vec<Value>, events: &mut Vec<Event>| {
            events
                .push(event(json!({"type": "content_block_start", "index": index, "content_block": start})));
            let deltas = deltas.into_iter();
            events.extend(
                deltas.map(|delta| {
                    event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
                }),
            );
            events.push(event(json!({"type": "content_block_stop", "index": index})));
            index += 1;
        };
        let input_deltas = |text: &str| -> Vec<Value> {
            pieces(text).map(|json| json!({"type": "input_json_delta", "partial_json": json})).collect()
        };
        for said in &answer.blocks {
            match said {
                Said::Thinking { text, signature } => {
                    let mut deltas: Vec<Value> = pieces(text)
                        .map(|text| json!({"type": "thinking_delta", "thinking": text}))
                        .collect();
                    deltas.push(json!({"type": "signature_delta", "signature": signature}));
                    block(
                        json!({"type": "thinking", "thinking": "", "signature": ""}),
                        deltas,
                        &mut out.events,
                    );
                    out.issued.push(json!({"type": "thinking", "thinking": text, "signature": signature}));
                }
                Said::Text(text) => {
                    let deltas =
                        pieces(text).map(|text| json!({"type": "text_delta", "text": text})).collect();
                    block(json!({"type": "text", "text": ""}), deltas, &mut out.events);
                    out.issued.push(json!({"type": "text", "text": text}));
                }
                Said::Call { id, name, input } => {
                    let start = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    block(start, input_deltas(input), &mut out.events);
                    let input = serde_json::from_str(input).unwrap_or_else(|_| json!({}));
                    out.issued.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
                }
                Said::Opaque(name) => {
                    let id = format!("srvtoolu_{name}");
                    let mut used =
                        json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}});
                    let input = json!({"query": name});
                    block(used.clone(), input_deltas(&input.to_string()), &mut out.events);
                    used["input"] = input;
                    let found = json!({"type": "web_search_tool_result", "tool_use_id": id, "content": [
                        {"type": "web_search_result", "title": name, "url": "https://example.com",
                            "encrypted_content": format!("sealed {name}"), "page_age": null}]});
                    block(found.clone(), Vec::new(), &mut out.events);
                    out.issued.extend([used, found]);
                }
            }
        }
        let (reason, sequence) = match &answer.stop {
            Stop::Done if answer.calls() => ("tool_use", None),
            Stop::Done => ("end_turn", None),
            Stop::Length => ("max_tokens", None),
            Stop::Refusal => ("refusal", None),
            Stop::Sequence(text) => ("stop_sequence", Some(text)),
        };
        out.events.push(event(json!({"type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": {"output_tokens": output, "output_tokens_details": {"thinking_tokens": reasoning}}})));
        out.events.push(event(json!({"type": "message_stop"})));
        out
    }

    fn fault(&self, fault: &Fault) -> (u16, Value) {
        let (status, kind, message) = match fault {
            Fault::Auth => (401, "authentication_error", "invalid x-api-key"),
            Fault::RateLimit(_) => (429, "rate_limit_error", "This request would exceed your rate limit."),
            Fault::Overloaded => (529, "overloaded_error", "Overloaded"),
            Fault::Invalid(why) => (400, "invalid_request_error", &**why),
            Fault::ContextTooLong => {
                (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
            }
            Fault::Server => (500, "api_error", "Internal server error"),
        };
        let error = json!({"type": kind, "message": message});
        (status, json!({"type": "error", "error": error, "request_id": "req_1"}))
    }

    fn failure(&self) -> Event {
        let error = json!({"type": "overloaded_error", "message": "Overloaded"});
        Event { name: "error", data: json!({"type": "error", "error": error}).to_string() }
    }

    fn reported_usage(&self, usage: Usage) -> Usage {
        usage
    }
}

const NAMES: [&str; 7] = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
];

fn place(data: &Value) -> usize {
    NAMES.iter().position(|name| data["type"] == *name).unwrap()
}

fn options(body: &Body, seen: &mut Seen) -> Read<()> {
    let mut thinks = false;
    match body.thinking {
        None | Some(Thinking::Disabled {}) => {}
        Some(Thinking::Enabled { budget_tokens }) => {
            must((1024..body.max_tokens).contains(&budget_tokens), || {
                "thinking.budget_tokens: at least 1024, and less than max_tokens".into()
            })?;
            thinks = true;
        }
        Some(Thinking::Adaptive {}) => return Err("adaptive thinking is not supported on this model".into()),
    }
    seen.thinks = body.thinking.as_ref().map(|_| thinks);
    must(!thinks || body.temperature.is_none_or(|it| it.total_cmp(&1.0).is_eq()), || {
        "temperature may only be 1 when thinking is enabled".into()
    })?;
    must(body.temperature.is_none() || body.top_p.is_none(), || "temperature or top_p, not both".into())?;
    match &body.system {
        None => {}
        Some(System::Text(text)) => seen.system = Some(text.clone()),
        Some(System::Blocks(blocks)) => match &blocks[..] {
            [Block::Text { text, .. }] => seen.system = Some(text.clone()),
            _ => return Err("system: one text is expected".into()),
        },
    }
    for tool in body.tools.iter().flatten() {
        must(is_name(&tool.name), || format!("tools: {} is not a valid name", tool.name))?;
        must(tool.input_schema.get("type") == Some(&"object".into()), || "input_schema.type: object".into())?;
        seen.tools.push(tool.name.clone());
    }
    seen.choice = match &body.tool_choice {
        None => None,
        Some(_) if seen.tools.is_empty() => return Err("tool_choice may only be given with tools".into()),
        Some(Choice::Auto {}) => Some(ToolChoice::Auto),
        Some(Choice::None {}) => Some(ToolChoice::None),
        Some(Choice::Any {}) => Some(ToolChoice::Required),
        Some(Choice::Tool { name }) => Some(ToolChoice::Tool(name.clone())),
    };
    must(!thinks || !matches!(seen.choice, Some(ToolChoice::Required | ToolChoice::Tool(_))), || {
        "thinking may not be enabled when tool_choice forces tool use".into()
    })?;
    seen.stop = body.stop_sequences.clone().unwrap_or_default();
    must(seen.stop.iter().all(|text| !text.trim().is_empty()), || {
        "stop_sequences: must not be blank".into()
    })?;
    if let Some(OutputFormat::JsonSchema { schema }) =
        body.output_config.as_ref().and_then(|it| it.format.as_ref())
    {
        must(schema["additionalProperties"] == false, || {
            "output_config.format.schema: for 'object' type, 'additionalProperties' must be false".into()
        })?;
        seen.schema = Some(schema.clone());
    }
    seen.metadata = body.metadata.as_ref().map(|metadata| json!({"user_id": metadata.user_id}));
    Ok(())
}

fn messages(turns: Vec<Turn>, memory: &Memory, seen: &mut Seen) -> Read<()> {
    let mut calls = Calls::default();
    must(!turns.is_empty(), || "messages: at least one message is required".into())?;
    let last = turns.len() - 1;
    for (at, Turn { role, content }) in turns.into_iter().enumerate() {
        let user = at % 2 == 0;
        let who = if user { "user" } else { "assistant" };
        must(role == who, || format!("messages.{at}: roles must alternate, and begin with user"))?;
        must(!content.is_empty(), || format!("messages.{at}: content must not be empty"))?;
        if !user {
            let plain: Vec<Value> = content.iter().map(without_cache).collect();
            memory.check(&plain, &TRAITS)?;
        }
        let mut past_results = false;
        for block in &content {
            let block: Block = typed(block).map_err(|why| format!("messages.{at}: {why}"))?;
            let is_result = matches!(block, Block::ToolResult { .. });
            must(!(is_result && past_results), || {
                format!("messages.{at}: tool_result blocks must come first")
            })?;
            past_results |= !is_result;
            read_block(who, block, &mut calls, seen)?;
        }
        if user {
            calls.must_be_answered()?;
        }
        let ends = content.last().map(|block| (block["type"].as_str(), block["text"].as_str()));
        must(!matches!(ends, Some((Some("thinking"), _))), || {
            format!("messages.{at}: the final block in an assistant message cannot be `thinking`")
        })?;
        if let (Some((_, Some(text))), true) = (ends, at == last && !user) {
            must(text.trim_end() == text, || {
                "final assistant content cannot end with trailing whitespace".into()
            })?;
        }
    }
    Ok(())
}

fn read_block(who: &'static str, block: Block, calls: &mut Calls, seen: &mut Seen) -> Read<()> {
    let user = who == "user";
    match block {
        Block::Text { text, .. } => {
            must(!text.trim().is_empty(), || "text content blocks must contain non-whitespace text".into())?;
            seen.said.push((who, text));
        }
        Block::Image { source, .. } if user => seen.images.push(file(source, |it| it.starts_with("image/"))?),
        Block::Document { source, .. } if user => {
            seen.documents.push(file(source, |it| it == "application/pdf")?);
        }
        Block::ToolUse { id, name, .. } if !user => {
            must(is_name(&id) && is_name(&name), || format!("tool_use: {id} or {name} is not a valid name"))?;
            calls.make(&id)?;
        }
        Block::ToolResult { tool_use_id, content, is_error, .. } if user => {
            calls.answer(&tool_use_id)?;
            must(!is_error || !content.is_empty(), || {
                "content cannot be empty if `is_error` is true".into()
            })?;
            let mut text = String::new();
            for block in content {
                match block {
                    Block::Text { text: more, .. } => text.push_str(&more),
                    block @ Block::Image { .. } => read_block(who, block, calls, seen)?,
                    _ => return Err("tool_result: texts and images are expected".into()),
                }
            }
            seen.results.push(SeenResult { id: tool_use_id, text, failed: is_error });
        }
        Block::Thinking { .. } | Block::ServerToolUse { .. } | Block::WebSearchToolResult { .. } if !user => {
        }
        _ => return Err(format!("a block that has no place in a message of the {who}")),
    }
    Ok(())
}

fn file(source: Source, takes: impl Fn(&str) -> bool) -> Read<String> {
    match source {
        Source::Base64 { media_type, data } => {
            must(takes(&media_type), || format!("source.media_type: not {media_type}"))?;
            must(is_base64(&data), || "source.data: invalid base64".into())?;
            Ok(data)
        }
        Source::Url { url } => Ok(url),
    }
}

fn without_cache(block: &Value) -> Value {
    let mut block = block.clone();
    if let Some(members) = block.as_object_mut() {
        members.shift_remove("cache_control");
    }
    block
}

fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

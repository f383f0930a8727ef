//! OpenAI's Responses: <https://platform.openai.com/docs/api-reference/responses/create>, OpenAI's reference of
//! streaming events, and <https://platform.openai.com/docs/guides/reasoning>.

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

pub(crate) struct Responses;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    model: String,
    input: Vec<Value>,
    stream: bool,
    store: bool,
    include: Option<Vec<String>>,
    instructions: Option<String>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Choice>,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    reasoning: Option<Reasoning>,
    text: Option<TextConfig>,
    metadata: Option<Map<String, Value>>,
    prompt_cache_key: Option<String>,
    prompt_cache_retention: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Tool {
    Function { name: String, description: Option<String>, parameters: Map<String, Value>, strict: bool },
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
    Function { name: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    effort: Effort,
    summary: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextConfig {
    format: Value,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Item {
    Message { role: String, status: Option<String>, phase: Option<String>, content: Content },
    Reasoning { id: Option<String>, summary: Vec<Part>, encrypted_content: String },
    FunctionCall { call_id: String, name: String, arguments: String },
    FunctionCallOutput { call_id: String, output: Content },
    WebSearchCall { id: String, status: String, action: Value },
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
    InputText { text: String },
    InputImage { image_url: String, detail: Option<String> },
    InputFile { filename: Option<String>, file_data: Option<String>, file_url: Option<String> },
    OutputText { text: String, annotations: Vec<Value> },
    Refusal { refusal: String },
    SummaryText { text: String },
}

const TRAITS: Traits = Traits {
    anchor: |item| match item["type"].as_str()? {
        "message" => Some(item["content"].to_string()),
        "function_call" => item["call_id"].as_str().map(ToOwned::to_owned),
        _ => None,
    },
    private: |item| matches!(item["type"].as_str(), Some("reasoning" | "web_search_call")),
    thinking: |item| item["type"] == "reasoning",
};

impl Wire for Responses {
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen> {
        must(request.line == "POST /v1/responses", || format!("unknown path: {}", request.line))?;
        let key = request.header("authorization");
        must(key.is_some_and(|key| key.starts_with("Bearer ")), || "You didn't provide an API key.".into())?;
        let body: Body = typed(&request.json())?;
        must(body.stream && !body.store, || "stream: true and store: false are expected".into())?;
        must(body.include.is_some_and(|it| it == ["reasoning.encrypted_content"]), || {
            "include: reasoning.encrypted_content is required without storage".into()
        })?;
        must(body.max_output_tokens.is_none_or(|max| max >= 16), || {
            "'max_output_tokens': integer below minimum value, 16".into()
        })?;
        must(body.metadata.iter().flatten().all(|(_, value)| value.is_string()), || {
            "metadata: values must be strings".into()
        })?;
        let mut seen = Seen {
            system: body.instructions,
            max_tokens: body.max_output_tokens,
            thinks: body.reasoning.map(|reasoning| reasoning.effort != Effort::None),
            cached: body.prompt_cache_key.is_some(),
            metadata: body.metadata.map(Value::Object),
            ..Seen::default()
        };
        for Tool::Function { name, .. } in body.tools.into_iter().flatten() {
            must(is_name(&name), || format!("tools: {name} is not a valid name"))?;
            seen.tools.push(name);
        }
        must(body.tool_choice.is_none() || !seen.tools.is_empty(), || {
            "'tool_choice' is only allowed when 'tools' are specified".into()
        })?;
        seen.choice = body.tool_choice.map(|choice| match choice {
            Choice::Word(word) => word.into(),
            Choice::Tool(Named::Function { name }) => ToolChoice::Tool(name),
        });
        if let Some(TextConfig { mut format }) = body.text {
            let kind = format.as_object_mut().and_then(|format| format.shift_remove("type"));
            must(kind == Some("json_schema".into()), || "text.format: a json_schema is expected".into())?;
            seen.schema = Some(typed::<JsonSchema>(&format)?.check()?);
        }
        items(&body.input, memory, &mut seen)?;
        Ok(seen)
    }

    fn render(&self, answer: &Answer, number: usize) -> Rendered {
        let mut out = Output::default();
        let response = |status: &str, output: &[Value]| {
            json!({"id": format!("resp_{number}"), "object": "response", "status": status,
                "model": "gpt-5.2-2025-12-11", "output": output})
        };
        out.event("response.created", json!({"response": response("in_progress", &[])}));
        for (at, said) in answer.blocks.iter().enumerate() {
            let id = format!("{number}_{at}");
            match said {
                Said::Thinking { text, signature } => out.reasoning(&format!("rs_{id}"), text, signature),
                Said::Text(text) => {
                    out.message(&format!("msg_{id}"), text, matches!(answer.stop, Stop::Refusal));
                }
                Said::Call { id: call, name, input } => out.call(&format!("fc_{id}"), call, name, input),
                Said::Opaque(name) => {
                    let item = json!({"type": "web_search_call", "id": format!("ws_{id}"), "status": "completed",
                        "action": {"type": "search", "query": name}});
                    out.item(&item, &item, |_| {});
                    out.rendered.issued.push(item);
                }
            }
        }
        let length = matches!(answer.stop, Stop::Length);
        let status = if length { "incomplete" } else { "completed" };
        let mut last = response(status, &out.items);
        last["incomplete_details"] =
            if length { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        let Usage { cache_read, cache_write, output, reasoning, .. } = answer.usage;
        let prompt = answer.usage.prompt();
        last["usage"] = json!({"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output,
            "input_tokens_details": {"cached_tokens": cache_read, "cache_write_tokens": cache_write},
            "output_tokens_details": {"reasoning_tokens": reasoning}});
        let name = if length { "response.incomplete" } else { "response.completed" };
        out.event(name, json!({"response": last}));
        Rendered { terminal: 1, ..out.rendered }
    }

    fn fault(&self, fault: &Fault) -> (u16, Value) {
        openai::fault(fault)
    }

    fn failure(&self) -> Event {
        let data = json!({"type": "error", "sequence_number": 9, "code": "server_error", "param": null,
            "message": "The server had an error"});
        Event { name: "error", data: data.to_string() }
    }

    fn reported_usage(&self, usage: Usage) -> Usage {
        usage
    }
}

/// The events of an answer so far, and the items of the answer.
#[derive(Default)]
struct Output {
    rendered: Rendered,
    items: Vec<Value>,
}

impl Output {
    fn event(&mut self, name: &'static str, mut data: Value) {
        data["type"] = name.into();
        data["sequence_number"] = self.rendered.events.len().into();
        self.rendered.events.push(Event { name, data: data.to_string() });
    }

    /// Adds the events of an item: its start, then the events that `between` adds, then its end.
    fn item(&mut self, begun: &Value, whole: &Value, between: impl FnOnce(&mut Self)) {
        let index = self.items.len();
        self.event("response.output_item.added", json!({"output_index": index, "item": begun}));
        between(self);
        self.event("response.output_item.done", json!({"output_index": index, "item": whole}));
        self.items.push(whole.clone());
    }

    fn reasoning(&mut self, id: &str, text: &str, signature: &str) {
        let begun = json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "begun"});
        let whole = json!({"type": "reasoning", "id": id, "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": signature});
        let place = json!({"item_id": id, "output_index": self.items.len(), "summary_index": 0});
        self.item(&begun, &whole, |out| {
            let with = |key: &str, value: Value| {
                let mut it = place.clone();
                it[key] = value;
                it
            };
            let part = |text: &str| json!({"type": "summary_text", "text": text});
            out.event("response.reasoning_summary_part.added", with("part", part("")));
            for text in pieces(text) {
                out.event("response.reasoning_summary_text.delta", with("delta", text.into()));
            }
            out.event("response.reasoning_summary_text.done", with("text", text.into()));
            out.event("response.reasoning_summary_part.done", with("part", part(text)));
        });
        self.rendered.issued.push(whole);
    }

    fn message(&mut self, id: &str, text: &str, refused: bool) {
        let part = |text: &str| {
            if refused {
                json!({"type": "refusal", "refusal": text})
            } else {
                json!({"type": "output_text", "text": text, "annotations": []})
            }
        };
        let item = |status: &str, content: &[Value]| json!({"type": "message", "id": id, "role": "assistant", "status": status, "content": content});
        let place = json!({"item_id": id, "output_index": self.items.len(), "content_index": 0});
        let whole = item("completed", &[part(text)]);
        self.item(&item("in_progress", &[]), &whole, |out| {
            let with = |key: &str, value: Value| {
                let mut it = place.clone();
                it[key] = value;
                it
            };
            let (delta, done, key) = if refused {
                ("response.refusal.delta", "response.refusal.done", "refusal")
            } else {
                ("response.output_text.delta", "response.output_text.done", "text")
            };
            out.event("response.content_part.added", with("part", part("")));
            for text in pieces(text) {
                out.event(delta, with("delta", text.into()));
            }
            out.event(done, with(key, text.into()));
            out.event("response.content_part.done", with("part", part(text)));
        });
        let back =
            json!({"type": "message", "role": "assistant", "status": "completed", "content": [part(text)]});
        self.rendered.issued.push(back);
    }

    fn call(&mut self, id: &str, call_id: &str, name: &str, input: &str) {
        let item = |arguments: &str| json!({"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": arguments});
        let place = json!({"item_id": id, "output_index": self.items.len()});
        self.item(&item(""), &item(input), |out| {
            let with = |key: &str, value: Value| {
                let mut it = place.clone();
                it[key] = value;
                it
            };
            for json in pieces(input) {
                out.event("response.function_call_arguments.delta", with("delta", json.into()));
            }
            out.event("response.function_call_arguments.done", with("arguments", input.into()));
        });
        let parsed: Result<Value, _> = serde_json::from_str(input);
        let input = if parsed.is_ok() { input } else { "{}" };
        self.rendered
            .issued
            .push(json!({"type": "function_call", "call_id": call_id, "name": name, "arguments": input}));
    }
}

fn items(items: &[Value], memory: &Memory, seen: &mut Seen) -> Read<()> {
    let mut calls = Calls::default();
    let mut turn: Vec<Value> = Vec::new();
    let mut waits = false;
    for (at, value) in items.iter().enumerate() {
        let item: Item = typed(value).map_err(|why| format!("input[{at}]: {why}"))?;
        let theirs = match &item {
            Item::Message { role, .. } => role == "user",
            Item::FunctionCallOutput { .. } => true,
            _ => false,
        };
        if theirs {
            must(!waits, || "a reasoning item was provided without its required following item".into())?;
            memory.check(&std::mem::take(&mut turn), &TRAITS)?;
        } else {
            turn.push(value.clone());
        }
        waits = matches!(item, Item::Reasoning { .. });
        if !matches!(item, Item::FunctionCallOutput { .. } | Item::FunctionCall { .. }) {
            // Other items of the answer may occur between calls, but not between the last call and its result.
            must(!theirs || calls.must_be_answered().is_ok(), || {
                "no tool output found for a function call".into()
            })?;
        }
        match item {
            Item::Message { role, content, .. } => message(&role, content, seen)?,
            Item::FunctionCall { call_id, name, arguments } => {
                must((1..=64).contains(&call_id.len()), || "call_id: string too long, at most 64".into())?;
                must(is_name(&name), || format!("{name} is not a valid name"))?;
                let arguments: Result<Map<String, Value>, _> = serde_json::from_str(&arguments);
                must(arguments.is_ok(), || "arguments: a JSON object is expected".into())?;
                calls.make(&call_id)?;
            }
            Item::FunctionCallOutput { call_id, output } => {
                calls.answer(&call_id)?;
                let mut inner = Seen::default();
                message("user", output, &mut inner)?;
                let text: String = inner.said.into_iter().map(|(_, text)| text).collect();
                let failed = text.starts_with("Error");
                seen.images.append(&mut inner.images);
                seen.results.push(SeenResult { id: call_id, text, failed });
            }
            Item::Reasoning { .. } | Item::WebSearchCall { .. } => {}
        }
    }
    must(!waits, || "a reasoning item was provided without its required following item".into())?;
    memory.check(&turn, &TRAITS)?;
    calls.must_be_answered()
}

fn message(role: &str, content: Content, seen: &mut Seen) -> Read<()> {
    let who = match role {
        "user" => "user",
        "assistant" => "assistant",
        role => return Err(format!("no such role: {role}")),
    };
    let parts = match content {
        Content::Text(text) => {
            seen.said.push((who, text));
            return Ok(());
        }
        Content::Parts(parts) => parts,
    };
    for part in &parts {
        match (typed(part)?, who) {
            (Part::InputText { text }, "user")
            | (Part::OutputText { text, .. } | Part::Refusal { refusal: text }, "assistant") => {
                seen.said.push((who, text));
            }
            (Part::InputImage { image_url, .. }, "user") => seen.images.push(data_of(image_url, "image/")?),
            (Part::InputFile { filename: Some(_), file_data: Some(data), file_url: None }, "user") => {
                seen.documents.push(data_of(data, "application/pdf")?);
            }
            (Part::InputFile { filename: None, file_data: None, file_url: Some(url) }, "user") => {
                seen.documents.push(url);
            }
            _ => return Err(format!("a part that has no place in a message of the {who}: {part}")),
        }
    }
    Ok(())
}

//! Ollama's chat: <https://docs.ollama.com/api/chat>, with `api/types.go` and the errors from
//! <https://github.com/ollama/ollama>.

#![allow(dead_code, reason = "listed members may be present, but are not read")]

use omni_agent::message::Usage;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Event, Read, Rendered, Seen, SeenResult, Wire, is_base64,
    memory::{Calls, Memory, Traits},
    must, typed,
};
use crate::{
    http::Received,
    script::{Answer, Block as Said, Fault, Stop, pieces},
};

pub(crate) struct Ollama;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    model: String,
    messages: Vec<Value>,
    stream: bool,
    tools: Option<Vec<Tool>>,
    think: Option<bool>,
    format: Option<Value>,
    #[serde(default)]
    options: Options,
    keep_alive: Option<String>,
    #[serde(default = "cuts")]
    truncate: bool,
    #[serde(default = "cuts")]
    shift: bool,
}

/// By default, the server drops the beginning of a conversation that is too long.
const fn cuts() -> bool {
    true
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
    description: String,
    parameters: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    num_predict: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    #[serde(default)]
    stop: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "role", rename_all = "lowercase", deny_unknown_fields)]
enum Message {
    System {
        content: String,
    },
    User {
        content: String,
        #[serde(default)]
        images: Vec<String>,
    },
    Assistant {
        content: String,
        thinking: Option<String>,
        #[serde(default)]
        tool_calls: Vec<Call>,
    },
    Tool {
        content: String,
        tool_name: String,
        tool_call_id: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    function: Called,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    arguments: Map<String, Value>,
}

const TRAITS: Traits = Traits {
    anchor: |item| item["content"].as_str().or(item["id"].as_str()).map(ToOwned::to_owned),
    private: |item| item.get("thinking").is_some(),
    thinking: |item| item.get("thinking").is_some(),
};

impl Wire for Ollama {
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen> {
        must(request.line == "POST /api/chat", || format!("unknown path: {}", request.line))?;
        let body: Body = typed(&request.json())?;
        must(body.stream, || "a stream is expected".into())?;
        must(!body.truncate && !body.shift, || "the conversation would be cut".into())?;
        let mut seen = Seen {
            schema: body.format,
            thinks: body.think,
            max_tokens: body.options.num_predict,
            stop: body.options.stop,
            cached: body.keep_alive.is_some(),
            ..Seen::default()
        };
        for Tool::Function { function } in body.tools.into_iter().flatten() {
            must(function.parameters.get("type") == Some(&"object".into()), || {
                "parameters.type: object".into()
            })?;
            seen.tools.push(function.name);
        }
        messages(&body.messages, memory, &mut seen)?;
        Ok(seen)
    }

    fn render(&self, answer: &Answer, number: usize) -> Rendered {
        let mut out = Rendered { terminal: 1, ..Rendered::default() };
        let began = format!("2026-03-03T13:20:{:02}.787576Z", number % 60);
        let line = |message: Value| {
            Event::unnamed(&json!({"model": "qwen3", "created_at": began, "message": message, "done": false}))
        };
        let said = |key: &str, text: &str| {
            let mut message = json!({"role": "assistant", "content": ""});
            message[key] = text.into();
            line(message)
        };
        let (mut thinking, mut content, mut calls) = (String::new(), String::new(), Vec::new());
        let mut malformed = false;
        for block in &answer.blocks {
            match block {
                Said::Thinking { text, .. } => {
                    out.events.extend(pieces(text).map(|text| said("thinking", text)));
                    thinking.push_str(text);
                }
                Said::Text(text) => {
                    out.events.extend(pieces(text).map(|text| said("content", text)));
                    content.push_str(text);
                }
                Said::Call { id, name, input } => match serde_json::from_str::<Value>(input) {
                    Ok(arguments) => {
                        let call = json!({"id": id, "function": {"name": name, "arguments": arguments}});
                        let mut streamed = call.clone();
                        streamed["function"]["index"] = calls.len().into();
                        let message = json!({"role": "assistant", "content": "", "tool_calls": [streamed]});
                        out.events.push(line(message));
                        calls.push(call);
                    }
                    Err(_) => malformed = true,
                },
                // The server performs no actions itself, so it sends nothing for them.
                Said::Opaque(_) => {}
            }
        }
        if !thinking.is_empty() {
            out.issued.push(json!({"thinking": thinking}));
        }
        if !content.is_empty() {
            out.issued.push(json!({"content": content}));
        }
        out.issued.append(&mut calls);
        if malformed {
            let error = "error parsing tool call: raw='{', err=unexpected end of JSON input";
            out.events.push(Event::unnamed(&json!({"error": error})));
            return out;
        }
        let reason = match &answer.stop {
            Stop::Done | Stop::Sequence(_) => "stop",
            Stop::Length => "length",
            Stop::Refusal => panic!("the format can't express a refusal"),
        };
        out.events.push(Event::unnamed(&json!({"model": "qwen3", "created_at": began,
            "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": reason,
            "total_duration": 1, "prompt_eval_count": answer.usage.prompt(), "eval_count": answer.usage.output})));
        out
    }

    fn fault(&self, fault: &Fault) -> (u16, Value) {
        let (status, message) = match fault {
            Fault::Auth => (401, "unauthorized"),
            Fault::RateLimit(_) => (429, "too many requests"),
            Fault::Overloaded => (503, "server busy, please try again.  maximum pending requests exceeded"),
            Fault::Invalid(why) => (400, &**why),
            Fault::ContextTooLong => (400, "the input length exceeds the context length"),
            Fault::Server => (500, "llama runner process has terminated: exit status 2"),
        };
        (status, json!({"error": message}))
    }

    fn failure(&self) -> Event {
        Event::unnamed(&json!({"error": "an error was encountered while running the model: unexpected EOF"}))
    }

    fn reported_usage(&self, usage: Usage) -> Usage {
        // Ollama reports neither cached tokens nor reasoning tokens, so all prompt tokens count as input.
        Usage::default().with_input(usage.prompt()).with_output(usage.output)
    }

    fn lines(&self) -> bool {
        true
    }
}

fn messages(messages: &[Value], memory: &Memory, seen: &mut Seen) -> Read<()> {
    let mut calls = Calls::default();
    let mut order: Vec<(String, String)> = Vec::new();
    let mut before = "";
    for (at, value) in messages.iter().enumerate() {
        let message: Message = typed(value).map_err(|why| format!("messages[{at}]: {why}"))?;
        if !matches!(message, Message::Tool { .. }) {
            calls.must_be_answered()?;
            order.clear();
        }
        match message {
            Message::System { content } => {
                must(at == 0, || "the system prompt must come first".into())?;
                seen.system = Some(content);
            }
            Message::User { content, images } => {
                must(before != "user", || "two consecutive user messages".into())?;
                must(images.iter().all(|image| is_base64(image)), || "illegal base64 data".into())?;
                must(!content.is_empty() || !images.is_empty(), || "a message must not be empty".into())?;
                seen.said.push(("user", content));
                seen.images.extend(images);
                before = "user";
            }
            Message::Assistant { content, thinking, tool_calls } => {
                must(before != "assistant", || "two consecutive assistant messages".into())?;
                let mut turn = Vec::from_iter(thinking.map(|text| json!({"thinking": text})));
                turn.extend((!content.is_empty()).then(|| json!({"content": content})));
                turn.extend(value["tool_calls"].as_array().into_iter().flatten().cloned());
                memory.check(&turn, &TRAITS)?;
                must(!content.is_empty() || !tool_calls.is_empty(), || "a message must not be empty".into())?;
                seen.said.push(("assistant", content));
                for call in tool_calls {
                    calls.make(&call.id)?;
                    order.push((call.id, call.function.name));
                }
                before = "assistant";
            }
            Message::Tool { content, tool_name, tool_call_id: id } => {
                // Prompt templates match results to calls by their order or by name, so both must be right.
                let (called, name) = if order.is_empty() { Default::default() } else { order.remove(0) };
                must((&called, &name) == (&id, &tool_name), || format!("{id} is not the next call"))?;
                calls.answer(&id)?;
                let failed = content.starts_with("Error");
                seen.results.push(SeenResult { id, text: content, failed });
                before = "tool";
            }
        }
    }
    calls.must_be_answered()
}

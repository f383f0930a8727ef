//! Google's Gemini: <https://ai.google.dev/api/generate-content>, with the pages on function calling, thought
//! signatures and troubleshooting under <https://ai.google.dev/gemini-api/docs>.

#![allow(dead_code, reason = "listed members may be present, but are not read")]

use omni_agent::{message::Usage, provider::ToolChoice};
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

pub(crate) struct Gemini;

/// The placeholder for the signature of a call that was not made by Gemini.
const UNSIGNED: &str = "skip_thought_signature_validator";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Body {
    contents: Vec<Content>,
    system_instruction: Option<SystemInstruction>,
    tools: Option<Vec<Tools>>,
    tool_config: Option<ToolConfig>,
    generation_config: Option<GenerationConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    role: String,
    parts: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SystemInstruction {
    parts: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tools {
    function_declarations: Vec<Declaration>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Declaration {
    name: String,
    description: String,
    parameters_json_schema: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ToolConfig {
    function_calling_config: FunctionCallingConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FunctionCallingConfig {
    mode: String,
    allowed_function_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GenerationConfig {
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    #[serde(default)]
    stop_sequences: Vec<String>,
    thinking_config: Option<ThinkingConfig>,
    response_mime_type: Option<String>,
    response_json_schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ThinkingConfig {
    include_thoughts: bool,
    thinking_level: String,
}

/// A part has one of these members, and may have a signature.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Part {
    text: Option<String>,
    thought: Option<bool>,
    thought_signature: Option<String>,
    inline_data: Option<Blob>,
    file_data: Option<FileData>,
    function_call: Option<FunctionCall>,
    function_response: Option<FunctionResponse>,
    executable_code: Option<Value>,
    code_execution_result: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Blob {
    mime_type: String,
    data: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileData {
    mime_type: String,
    file_uri: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionCall {
    id: String,
    name: String,
    args: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionResponse {
    id: String,
    name: String,
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Response {
    Output(String),
    Error(String),
}

const TRAITS: Traits = Traits {
    anchor: |part| {
        let text = part["text"].as_str().filter(|text| !text.is_empty());
        part["functionCall"]["id"].as_str().or(text).map(ToOwned::to_owned)
    },
    private: |part| {
        let signature = part["thoughtSignature"].as_str();
        let theirs = ["thought", "executableCode", "codeExecutionResult"];
        signature.is_some_and(|it| it != UNSIGNED) || theirs.iter().any(|key| part.get(key).is_some())
    },
    // The signature of thinking before a text is on an empty text. The signature of a call belongs to the call.
    thinking: |part| part["text"] == "",
};

impl Wire for Gemini {
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen> {
        let place = "POST /v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse";
        must(request.line == place, || format!("unknown path: {}", request.line))?;
        must(request.header("x-goog-api-key").is_some(), || "unregistered callers are not allowed".into())?;
        let body: Body = typed(&request.json())?;
        let mut seen = Seen::default();
        if let Some(SystemInstruction { parts }) = body.system_instruction {
            seen.system = Some(parts.into_iter().filter_map(|part| part.text).collect());
        }
        for tool in body.tools.into_iter().flatten().flat_map(|tools| tools.function_declarations) {
            must(is_name(&tool.name), || {
                format!("function_declarations: {} is not a valid name", tool.name)
            })?;
            seen.tools.push(tool.name);
        }
        if let Some(ToolConfig { function_calling_config: config }) = body.tool_config {
            must(!seen.tools.is_empty(), || "function calling config without function_declarations".into())?;
            seen.choice = Some(match (&*config.mode, config.allowed_function_names.as_deref()) {
                ("AUTO", None) => ToolChoice::Auto,
                ("NONE", None) => ToolChoice::None,
                ("ANY", None) => ToolChoice::Required,
                ("ANY", Some([name])) if seen.tools.contains(name) => ToolChoice::Tool(name.clone()),
                (mode, names) => return Err(format!("function_calling_config: {mode} of {names:?}")),
            });
        }
        if let Some(config) = body.generation_config {
            must(config.stop_sequences.len() <= 5, || "stop_sequences: at most 5".into())?;
            if let Some(thinking) = config.thinking_config {
                must(matches!(&*thinking.thinking_level, "low" | "high"), || {
                    format!("thinking level {} is not supported by this model", thinking.thinking_level)
                })?;
                seen.thinks = Some(thinking.include_thoughts);
            }
            let json = config.response_mime_type.as_deref() == Some("application/json");
            must(json == config.response_json_schema.is_some(), || {
                "a schema requires response_mime_type".into()
            })?;
            seen.schema = config.response_json_schema;
            seen.max_tokens = config.max_output_tokens;
            seen.stop = config.stop_sequences;
        }
        contents(body.contents, memory, &mut seen)?;
        Ok(seen)
    }

    fn render(&self, answer: &Answer, number: usize) -> Rendered {
        let mut out = Rendered { terminal: 1, ..Rendered::default() };
        let Usage { cache_read, output, reasoning, .. } = answer.usage;
        let usage = json!({"promptTokenCount": answer.usage.prompt(), "cachedContentTokenCount": cache_read,
            "candidatesTokenCount": output - reasoning, "thoughtsTokenCount": reasoning});
        let chunk = |parts: Value, reason: Option<&str>| {
            let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": 0});
            if let Some(reason) = reason {
                candidate["finishReason"] = reason.into();
            }
            Event::unnamed(&json!({"candidates": [candidate], "usageMetadata": usage,
                "modelVersion": "gemini-3-pro-preview", "responseId": format!("r{number}")}))
        };
        // A thought itself has no signature. The signature is on the first call, on code, or on an empty text at the
        // end. The scripted model always signs the first call.
        let mut signature: Option<String> = None;
        let mut called = false;
        let mut issue = |mut part: Value, signature: Option<String>| {
            if let Some(signature) = signature {
                part["thoughtSignature"] = signature.into();
            }
            out.issued.push(part.clone());
            part
        };
        let mut reason = match &answer.stop {
            Stop::Done | Stop::Sequence(_) => "STOP",
            Stop::Length => "MAX_TOKENS",
            Stop::Refusal => "SAFETY",
        };
        for said in &answer.blocks {
            match said {
                Said::Thinking { text, signature: given } => {
                    let parts = pieces(text).map(|text| json!([{"text": text, "thought": true}]));
                    out.events.extend(parts.map(|parts| chunk(parts, None)));
                    signature = Some(given.clone());
                }
                Said::Text(text) => {
                    out.events.extend(pieces(text).map(|text| chunk(json!([{"text": text}]), None)));
                    issue(json!({"text": text}), None);
                }
                Said::Call { id, name, input } => match serde_json::from_str::<Value>(input) {
                    Ok(args) => {
                        let call = json!({"functionCall": {"id": id, "name": name, "args": args}});
                        let unsigned = std::mem::replace(&mut called, true);
                        let signature = signature.take().or((!unsigned).then(|| format!("signed {id}")));
                        out.events.push(chunk(json!([issue(call, signature)]), None));
                    }
                    Err(_) => reason = "MALFORMED_FUNCTION_CALL",
                },
                Said::Opaque(name) => {
                    let code = json!({"executableCode": {"language": "PYTHON", "code": name}});
                    let output = json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": name}});
                    let parts = [issue(code, signature.take()), issue(output, None)];
                    out.events.push(chunk(json!(parts), None));
                }
            }
        }
        if signature.is_some() {
            let empty = issue(json!({"text": ""}), signature);
            out.events.push(chunk(json!([empty]), None));
        }
        out.events.push(chunk(json!([{"text": ""}]), Some(reason)));
        out
    }

    fn fault(&self, fault: &Fault) -> (u16, Value) {
        let (status, name, message) = match fault {
            Fault::Auth => (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
            Fault::RateLimit(_) => (429, "RESOURCE_EXHAUSTED", "You exceeded your rate limit."),
            Fault::Overloaded => (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
            Fault::Invalid(why) => (400, "INVALID_ARGUMENT", &**why),
            Fault::ContextTooLong => (
                400,
                "INVALID_ARGUMENT",
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            ),
            Fault::Server => (500, "INTERNAL", "An internal error has occurred. Please retry."),
        };
        let details = match fault {
            Fault::Auth => json!([{"@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]),
            _ => json!([]),
        };
        (status, json!({"error": {"code": status, "message": message, "status": name, "details": details}}))
    }

    fn failure(&self) -> Event {
        let (_, body) = self.fault(&Fault::Overloaded);
        Event::unnamed(&body)
    }

    fn reported_usage(&self, usage: Usage) -> Usage {
        // Gemini does not report tokens that were written to the cache separately, so they count as input.
        usage.with_input(usage.input + usage.cache_write).with_cache_write(0)
    }
}

fn contents(contents: Vec<Content>, memory: &Memory, seen: &mut Seen) -> Read<()> {
    let mut calls = Calls::default();
    let mut order: Vec<(String, String)> = Vec::new();
    let mut before = None;
    for (at, Content { role, parts }) in contents.into_iter().enumerate() {
        must(!parts.is_empty(), || format!("contents[{at}].parts: must not be empty"))?;
        let results = parts.iter().any(|part| part.get("functionResponse").is_some());
        // A user's text that follows tool results must be a separate entry of `contents`.
        let turn = match (&*role, results) {
            ("user", true) => "results",
            ("user", false) => "user",
            ("model", false) => "assistant",
            _ => return Err(format!("contents[{at}]: no results for a {role}")),
        };
        let follows = match turn {
            "results" => before == Some("assistant"),
            "assistant" => matches!(before, Some("user" | "results")),
            _ => before != Some("user"),
        };
        must(follows, || format!("contents[{at}]: {turn} after {before:?}"))?;
        if turn == "assistant" {
            memory.check(&parts, &TRAITS)?;
        }
        if turn != "results" {
            calls.must_be_answered()?;
            order.clear();
        }
        for (place, value) in parts.iter().enumerate() {
            let part: Part = typed(value).map_err(|why| format!("contents[{at}].parts[{place}]: {why}"))?;
            if let Some(call) = &part.function_call {
                must(turn == "assistant" && is_name(&call.name), || format!("a call of {}", call.name))?;
                must(!order.is_empty() || part.thought_signature.is_some(), || {
                    format!(
                        "Function call `{}` is missing a thought_signature in functionCall parts.",
                        call.name
                    )
                })?;
                calls.make(&call.id)?;
                order.push((call.id.clone(), call.name.clone()));
            } else if let Some(result) = part.function_response {
                must(order.get(place) == Some(&(result.id.clone(), result.name)), || {
                    "results must have the order and the names of their calls".into()
                })?;
                calls.answer(&result.id)?;
                let (text, failed) = match result.response {
                    Response::Output(text) => (text, false),
                    Response::Error(text) => (text, true),
                };
                seen.results.push(SeenResult { id: result.id, text, failed });
            } else {
                read_part(turn, part, seen)?;
            }
        }
        if turn == "results" {
            calls.must_be_answered()?;
        }
        before = Some(turn);
    }
    must(before.is_some_and(|turn| turn != "assistant"), || "the last content must have the role user".into())
}

fn read_part(turn: &'static str, part: Part, seen: &mut Seen) -> Read<()> {
    match part {
        Part { text: Some(text), thought, thought_signature, .. } => {
            must(!text.is_empty() || thought_signature.is_some(), || "a text must not be empty".into())?;
            if thought != Some(true) && !text.is_empty() {
                seen.said.push((turn, text));
            }
        }
        Part { inline_data: Some(Blob { mime_type, data }), .. } => {
            must(is_base64(&data), || "inline_data: base64 decoding failed".into())?;
            let files = if mime_type == "application/pdf" { &mut seen.documents } else { &mut seen.images };
            files.push(data);
        }
        Part { file_data: Some(file), .. } => seen.images.push(file.file_uri),
        Part { executable_code: Some(_), .. } | Part { code_execution_result: Some(_), .. } => {}
        _ => return Err("a part without data".into()),
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b':' | b'-'))
}

//! Answers in the form in which services send them, for each of the five wire formats.

use serde_json::{Value, json};

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Chat,
    Messages,
    Responses,
    Gemini,
    Ollama,
}

impl Format {
    pub(crate) const ALL: [Self; 5] =
        [Self::Chat, Self::Messages, Self::Responses, Self::Gemini, Self::Ollama];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chat => "Chat Completions",
            Self::Messages => "Messages",
            Self::Responses => "Responses",
            Self::Gemini => "Gemini",
            Self::Ollama => "Ollama chat",
        }
    }

    /// Returns the name of the format for use in a path. The name differs from the last segment of every service's
    /// path, because some clients remove this segment.
    pub(crate) fn slug(self) -> &'static str {
        match self {
            Self::Chat => "format-chat",
            Self::Messages => "format-messages",
            Self::Responses => "format-responses",
            Self::Gemini => "format-gemini",
            Self::Ollama => "format-ollama",
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Ollama => "application/x-ndjson",
            _ => "text/event-stream",
        }
    }

    /// Returns the events of an answer with a text that is sent in these pieces.
    pub(crate) fn text(self, pieces: &[impl AsRef<str>]) -> Vec<String> {
        let pieces: Vec<&str> = pieces.iter().map(AsRef::as_ref).collect();
        match self {
            Self::Chat => chat::text(&pieces),
            Self::Messages => messages::text(&pieces),
            Self::Responses => responses::text(&pieces),
            Self::Gemini => gemini::text(&pieces),
            Self::Ollama => ollama::text(&pieces),
        }
    }

    /// Returns the events of an answer that uses a tool. If the format supports it, the input is sent in these pieces.
    pub(crate) fn tool_use(self, name: &str, input: &[&str]) -> Vec<String> {
        match self {
            Self::Chat => chat::tool_use(name, input),
            Self::Messages => messages::tool_use(name, input),
            Self::Responses => responses::tool_use(name, input),
            Self::Gemini => gemini::tool_use(name, input),
            Self::Ollama => ollama::tool_use(name, input),
        }
    }
}

/// Returns whether a request contains the result of a tool. Works for all formats.
pub(crate) fn brings_result(body: &[u8]) -> bool {
    let marks: [&[u8]; 4] =
        [b"\"role\":\"tool\"", b"\"tool_result\"", b"\"function_call_output\"", b"\"functionResponse\""];
    marks.iter().any(|mark| body.windows(mark.len()).any(|window| window == *mark))
}

/// Returns a server-sent event whose name is its `type`.
fn named(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

fn parsed(input: &[&str]) -> Value {
    serde_json::from_str(&input.concat()).expect("a tool's input is JSON")
}

/// Events of OpenAI's Chat Completions.
mod chat {
    use super::{Value, json};

    fn event(delta: &Value, finish: Option<&str>) -> String {
        let chunk = json!({
            "id": "chatcmpl-BxZ3kVq7mR2nT9wY5pL8sD4fG6hJ",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "gpt-5-mini-2025-08-07",
            "service_tier": "default",
            "system_fingerprint": "fp_7b2c9d41e0",
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
            "obfuscation": "x9Kd2LmQ",
        });
        format!("data: {chunk}\n\n")
    }

    fn whole(deltas: impl IntoIterator<Item = Value>, finish: &str) -> Vec<String> {
        let mut events = vec![event(&json!({ "role": "assistant", "content": "", "refusal": null }), None)];
        events.extend(deltas.into_iter().map(|delta| event(&delta, None)));
        events.push(event(&json!({}), Some(finish)));
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    pub(super) fn text(pieces: &[&str]) -> Vec<String> {
        whole(pieces.iter().map(|piece| json!({ "content": piece })), "stop")
    }

    pub(super) fn tool_use(name: &str, input: &[&str]) -> Vec<String> {
        let start = json!({ "tool_calls": [{
            "index": 0, "id": "call_8Fj2kLm9", "type": "function", "function": { "name": name, "arguments": "" },
        }] });
        let more = input
            .iter()
            .map(|piece| json!({ "tool_calls": [{ "index": 0, "function": { "arguments": piece } }] }));
        whole(std::iter::once(start).chain(more), "tool_calls")
    }
}

/// Events of Anthropic's Messages.
mod messages {
    use super::{Value, json, named};

    fn whole(block: &Value, deltas: impl IntoIterator<Item = Value>, stop: &str) -> Vec<String> {
        let mut events = vec![
            named(&json!({ "type": "message_start", "message": {
                "id": "msg_01XFDUDYJgAACzvnptvVoYEL", "type": "message", "role": "assistant",
                "model": "claude-sonnet-4-6", "content": [], "stop_reason": null, "stop_sequence": null,
                "usage": { "input_tokens": 25, "output_tokens": 1 },
            } })),
            named(&json!({ "type": "content_block_start", "index": 0, "content_block": block })),
            named(&json!({ "type": "ping" })),
        ];
        events.extend(
            deltas
                .into_iter()
                .map(|delta| named(&json!({ "type": "content_block_delta", "index": 0, "delta": delta }))),
        );
        events.extend([
            named(&json!({ "type": "content_block_stop", "index": 0 })),
            named(&json!({ "type": "message_delta",
                "delta": { "stop_reason": stop, "stop_sequence": null }, "usage": { "output_tokens": 15 } })),
            named(&json!({ "type": "message_stop" })),
        ]);
        events
    }

    pub(super) fn text(pieces: &[&str]) -> Vec<String> {
        let deltas = pieces.iter().map(|piece| json!({ "type": "text_delta", "text": piece }));
        whole(&json!({ "type": "text", "text": "" }), deltas, "end_turn")
    }

    pub(super) fn tool_use(name: &str, input: &[&str]) -> Vec<String> {
        let deltas = input.iter().map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        let block =
            json!({ "type": "tool_use", "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "name": name, "input": {} });
        whole(&block, deltas, "tool_use")
    }
}

/// Events of OpenAI's Responses.
mod responses {
    use super::{Value, json, named};

    const MESSAGE: &str = "msg_0a3aaf132d7000ab006999d3c8340881";
    const CALL: &str = "fc_0dafc15bcf230c91006999d3d9b99881";

    fn response(status: &str, output: &Value, usage: &Value) -> Value {
        json!({
            "id": "resp_0a3aaf132d7000ab006999d3c834088195", "object": "response", "created_at": 1_771_688_904,
            "status": status, "background": false, "error": null, "incomplete_details": null,
            "instructions": null, "max_output_tokens": null, "model": "gpt-5-mini-2025-08-07", "output": output,
            "parallel_tool_calls": true, "previous_response_id": null,
            "reasoning": { "effort": "medium", "summary": null }, "service_tier": "default", "store": false,
            "temperature": 1.0, "text": { "format": { "type": "text" }, "verbosity": "medium" },
            "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled",
            "usage": usage, "user": null, "metadata": {},
        })
    }

    /// Returns the events of an answer with one item: the start of the item, the events in between, and the end of the
    /// item.
    fn whole(start: &Value, between: impl IntoIterator<Item = Value>, end: &Value) -> Vec<String> {
        let usage = json!({ "input_tokens": 25, "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": 15, "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 40 });
        let mut events = vec![
            json!({ "type": "response.created", "response": response("in_progress", &json!([]), &Value::Null) }),
            json!({ "type": "response.in_progress", "response": response("in_progress", &json!([]), &Value::Null) }),
            json!({ "type": "response.output_item.added", "output_index": 0, "item": start }),
        ];
        events.extend(between);
        events.extend([
            json!({ "type": "response.output_item.done", "output_index": 0, "item": end }),
            json!({ "type": "response.completed", "response": response("completed", &json!([end]), &usage) }),
        ]);
        let numbered = events.iter_mut().enumerate().map(|(number, event)| {
            event["sequence_number"] = number.into();
            named(event)
        });
        numbered.collect()
    }

    pub(super) fn text(pieces: &[&str]) -> Vec<String> {
        let part =
            |text: &str| json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] });
        let item = |status: &str, content: Value| json!({ "id": MESSAGE, "type": "message", "status": status, "role": "assistant", "content": content });
        let about = |kind: &str, key: &str, value: Value| json!({ "type": kind, "item_id": MESSAGE, "output_index": 0, "content_index": 0, key: value });
        let whole_text = pieces.concat();
        let mut between = vec![about("response.content_part.added", "part", part(""))];
        between.extend(pieces.iter().map(|piece| {
            let mut event = about("response.output_text.delta", "delta", json!(piece));
            event["logprobs"] = json!([]);
            event["obfuscation"] = "x9Kd2LmQ".into();
            event
        }));
        between.extend([
            about("response.output_text.done", "text", json!(whole_text)),
            about("response.content_part.done", "part", part(&whole_text)),
        ]);
        whole(&item("in_progress", json!([])), between, &item("completed", json!([part(&whole_text)])))
    }

    pub(super) fn tool_use(name: &str, input: &[&str]) -> Vec<String> {
        let item = |status: &str, arguments: &str| {
            json!({ "id": CALL, "type": "function_call", "status": status, "arguments": arguments,
                "call_id": "call_8Fj2kLm9", "name": name })
        };
        let about = |kind: &str, key: &str, value: &str| json!({ "type": kind, "item_id": CALL, "output_index": 0, key: value });
        let mut between: Vec<Value> = input
            .iter()
            .map(|piece| {
                let mut event = about("response.function_call_arguments.delta", "delta", piece);
                event["obfuscation"] = "x9Kd2LmQ".into();
                event
            })
            .collect();
        let arguments = input.concat();
        between.push(about("response.function_call_arguments.done", "arguments", &arguments));
        whole(&item("in_progress", ""), between, &item("completed", &arguments))
    }
}

/// Events of Google's Gemini. They have no names, and their lines have Windows line endings.
mod gemini {
    use super::{Value, json, parsed};

    fn event(part: &Value, number: usize, last: bool) -> String {
        let mut candidate = json!({ "content": { "parts": [part], "role": "model" }, "index": 0 });
        if last {
            candidate["finishReason"] = "STOP".into();
        }
        let chunk = json!({
            "candidates": [candidate],
            "usageMetadata": { "promptTokenCount": 25, "candidatesTokenCount": number,
                "totalTokenCount": 25 + number,
                "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": 25 }] },
            "modelVersion": "gemini-2.5-flash",
            "responseId": "kHinaPq5LZ2rvdIPxLmF6Ac",
        });
        format!("data: {chunk}\r\n\r\n")
    }

    pub(super) fn text(pieces: &[&str]) -> Vec<String> {
        let events = pieces.iter().enumerate();
        events
            .map(|(index, piece)| event(&json!({ "text": piece }), index + 1, index + 1 == pieces.len()))
            .collect()
    }

    pub(super) fn tool_use(name: &str, input: &[&str]) -> Vec<String> {
        vec![event(&json!({ "functionCall": { "name": name, "args": parsed(input) } }), 15, true)]
    }
}

/// Lines of Ollama's chat.
mod ollama {
    use super::{Value, json, parsed};

    fn line(message: &Value) -> String {
        let line = json!({ "model": "qwen3:4b", "created_at": "2026-03-03T13:20:42.717247Z", "message": message,
            "done": false });
        format!("{line}\n")
    }

    fn whole(messages: impl IntoIterator<Item = Value>) -> Vec<String> {
        let mut lines: Vec<String> = messages.into_iter().map(|message| line(&message)).collect();
        let last = json!({ "model": "qwen3:4b", "created_at": "2026-03-03T13:20:42.717247Z",
            "message": { "role": "assistant", "content": "" }, "done": true, "done_reason": "stop",
            "total_duration": 1_487_087_708, "load_duration": 137_827_667, "prompt_eval_count": 25,
            "prompt_eval_duration": 603_909_209, "eval_count": 15, "eval_duration": 711_038_335 });
        lines.push(format!("{last}\n"));
        lines
    }

    pub(super) fn text(pieces: &[&str]) -> Vec<String> {
        whole(pieces.iter().map(|piece| json!({ "role": "assistant", "content": piece })))
    }

    pub(super) fn tool_use(name: &str, input: &[&str]) -> Vec<String> {
        whole([json!({ "role": "assistant", "content": "", "tool_calls": [{ "id": "call_8i6jv226",
            "function": { "index": 0, "name": name, "arguments": parsed(input) } }] })])
    }
}

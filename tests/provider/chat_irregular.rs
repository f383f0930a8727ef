//! A Chat Completions stream with many deviations from the format at once.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::Usage,
    provider::{Request, StopReason, http::Endpoint},
};
use serde_json::json;

use crate::{endpoints::exchange, server::Reply};

/// Returns a stream with a byte order mark, Windows line endings, keep-alive comments, null members, an event without
/// data, several complete calls in one chunk, a finish chunk with content, usage without choices, and `[DONE]` twice.
fn stream() -> String {
    let events = [
        json!({"id": null, "model": null, "object": null, "choices": null, "usage": null, "error": null}),
        json!({"id": "c1", "model": "m", "choices": [{"index": null, "delta": null, "finish_reason": null}]}),
        json!({"id": "c1", "model": "m", "system_fingerprint": null, "choices": [{"index": 0, "logprobs": null,
            "delta": {"role": null, "content": null, "tool_calls": null, "function_call": null, "refusal": null,
                "reasoning_content": null}, "finish_reason": ""}]}),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {"content": "Grüß"}}], "usage": null}),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {"content": " dich", "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ]}, "finish_reason": null}]}),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": "tool_calls"}]}),
        json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5,
            "prompt_tokens_details": null, "completion_tokens_details": null}}),
    ];
    let events = events.iter().map(|event| format!("data: {event}\n\n: keep-alive\n\nevent: ping\n\n"));
    let stream = events.collect::<String>() + "data: [DONE]\n\ndata: [DONE]\n\ndata: none of it\n\n";
    format!("\u{feff}: OPENROUTER PROCESSING\n\n{stream}").replace('\n', "\r\n")
}

#[tokio::test]
async fn stream_with_many_deviations_is_read_in_any_pieces() {
    for size in [1, 3, 17, 10_000] {
        let reply = Reply::sse().pieces(stream().as_bytes(), size);
        let endpoint = Endpoint::openai_compatible("odd", "http://localhost");
        let (_, answer) = exchange(&endpoint, "m", Request::prompt("Hallo"), reply).await;
        let answer = answer.unwrap();
        assert_eq!(answer.message.text(), "Grüß dich!");
        let calls: Vec<_> =
            answer.message.tool_uses().map(|call| (call.id.as_str(), call.input.clone())).collect();
        assert_eq!(calls, [("a", json!({"x": 1})), ("b", json!({}))]);
        assert_eq!(answer.stop_reason, StopReason::ToolUse);
        assert_eq!(answer.usage, Usage::default().with_input(3).with_output(5));
    }
}

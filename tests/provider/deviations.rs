//! Deviations from the wire formats that users of other clients have reported. Each test replays the bytes of a report.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use futures_util::StreamExt;
use omni_agent::{
    message::Content,
    provider::{
        Completion, Provider, ProviderErrorKind, Request, StopReason,
        custom::{ChatCompletions, Delta, Dialect, Part, RequestContext},
    },
};
use serde_json::{Value, json};

use crate::{server::Server, wires::Wire};

/// Returns a body with these events, each followed by a blank line.
fn events(events: &[&str]) -> String {
    events.iter().flat_map(|event| ["data: ", event, "\n\n"]).collect()
}

/// Returns the names and the inputs of the tool uses of an answer.
fn uses(answer: &Completion) -> Vec<(&str, &Value)> {
    answer.message.tool_uses().map(|call| (call.name.as_str(), &call.input)).collect()
}

/// Returns the answer to a call whose arguments arrive in these fragments, in order.
async fn called(fragments: &[&str], finish: &str) -> Completion {
    let mut body = String::new();
    for (at, arguments) in fragments.iter().enumerate() {
        let function = if at == 0 {
            json!({"name": "f", "arguments": arguments})
        } else {
            json!({"arguments": arguments})
        };
        let mut call = json!({"index": 0, "function": function});
        if at == 0 {
            call["id"] = json!("a");
        }
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "choices": [
            {"index": 0, "delta": {"tool_calls": [call]}}]});
        body += &events(&[&chunk.to_string()]);
    }
    let end = json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
    Wire::Chat.answer(&(body + &events(&[&end.to_string(), "[DONE]"]))).await.unwrap()
}

#[tokio::test]
async fn chat_arguments_sent_more_than_once_are_read_once() {
    for fragments in [
        &["{}", "{\"city\":\"Oslo\"}"][..],
        &["{ }", "", "{\"city\":", "\"Oslo\"}"],
        &["{}", "null", "{}", "{\"city\":\"Oslo\"}"],
        &["{\"city\":", "\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{\"city\":\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{\"ci", "{\"city\":\"O", "{\"city\":\"O", "{\"city\":\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{", "{\"city\":", "{\"city\":\"Oslo\"}"],
        &["{\"", "{\"city\":\"Oslo\"}"],
    ] {
        let answer = called(fragments, "tool_calls").await;
        assert_eq!(uses(&answer), [("f", &json!({"city": "Oslo"}))], "{fragments:?}");
    }
}

#[tokio::test]
async fn chat_fragment_that_resembles_the_arguments_so_far_is_appended() {
    for fragments in [
        &["{\"not\":", "{\"not\":{}}}"][..],
        &["{\"a\":[", "{\"a\":[1]}", "]}"],
        &["{\"a\":[{\"b\":1},", "{\"a\":[{\"b\":1},2]}]}"],
        &["{\"", "{\":1}"],
        &["{\"a\":\"", "{\\\"a\\\":\\\"\"}"],
    ] {
        let answer = called(fragments, "tool_calls").await;
        let whole: Value = serde_json::from_str(&fragments.concat()).unwrap();
        assert_eq!(uses(&answer), [("f", &whole)], "{fragments:?}");
    }
}

#[tokio::test]
async fn chat_call_with_empty_arguments_is_complete_in_a_truncated_answer() {
    let answer = called(&["{}"], "length").await;
    let call = answer.message.tool_uses().next().unwrap();
    assert_eq!((&call.input, call.malformed.as_deref()), (&json!({}), None));
}

#[tokio::test]
async fn responses_call_under_several_ids_is_one_call() {
    let reasoning = r#"{"id":"msg_R","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]}"#;
    let body = events(&[
        r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"msg_R","type":"reasoning","summary":[]}}"#,
        r#"{"type":"response.reasoning_text.delta","item_id":"msg_R","output_index":0,"content_index":0,"delta":"Hm."}"#,
        &format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{reasoning}}}"#),
        r#"{"type":"response.output_item.added","output_index":1,"item":{"id":"msg_R","type":"function_call","call_id":"call_A","name":"f","arguments":""}}"#,
        r#"{"type":"response.function_call_arguments.delta","item_id":"fc_X","output_index":1,"delta":"{\"a\":1}"}"#,
        r#"{"type":"response.function_call_arguments.done","item_id":"fc_X","output_index":2,"arguments":"{\"a\":1}","name":"f"}"#,
        r#"{"type":"response.output_item.done","output_index":2,"item":{"id":null,"item_id":"fc_X","type":"function_call","call_id":"fc_Y","name":"f","arguments":"{\"a\":1}"}}"#,
        &format!(
            r#"{{"type":"response.completed","response":{{"id":"r","status":"completed","output":[{reasoning},{{"id":"fc_Z","type":"function_call","call_id":"call_Z","name":"f","arguments":"{{\"a\":1}}"}}]}}}}"#
        ),
    ]);
    let answer = Wire::Responses.answer(&body).await.unwrap();
    assert_eq!(uses(&answer), [("f", &json!({"a": 1}))]);
    assert_eq!((answer.message.content.len(), answer.stop_reason), (2, StopReason::ToolUse));
}

#[tokio::test]
async fn responses_text_after_the_end_of_its_item_is_kept() {
    let item = |text: &str| json!({"id": "m", "type": "message", "content": [{"type": "output_text", "text": text}]});
    let delta = |text: &str| {
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0,
            "delta": text})
    };
    let all = [
        json!({"type": "response.output_item.added", "output_index": 0,
            "item": {"id": "m", "type": "message", "content": []}}),
        delta("1"),
        json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0, "content_index": 0, "text": "1"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item("1")}),
        delta("\n2\n3"),
        json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
            "output": [item("1\n2\n3")]}}),
    ];
    let answer = Wire::Responses
        .answer(&events(&all.each_ref().map(Value::to_string).each_ref().map(String::as_str)))
        .await;
    let answer = answer.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.warnings.len()), ("1\n2\n3", 0));
}

#[tokio::test]
async fn responses_text_of_two_messages_that_the_end_joins_is_read_once() {
    let item = |id: &str, text: &str| json!({"id": id, "type": "message", "content": [{"type": "output_text", "text": text}]});
    let mut all = Vec::new();
    for (at, (id, text)) in [("u1", "A."), ("u2", "B.")].into_iter().enumerate() {
        all.extend([
            json!({"type": "response.output_item.added", "output_index": at,
                "item": {"id": id, "type": "message", "content": []}}),
            json!({"type": "response.output_text.delta", "item_id": id, "output_index": at, "content_index": 0,
                "delta": text}),
            json!({"type": "response.output_item.done", "output_index": at, "item": item(id, text)}),
        ]);
    }
    for (id, text) in [("z", "A.B."), ("u1", "A.B."), ("z", "Other.")] {
        let end = json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
            "output": [item(id, text)]}});
        let all: Vec<String> = all.iter().chain([&end]).map(Value::to_string).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let answer = Wire::Responses.answer(&events(&all)).await.unwrap();
        assert_eq!((answer.message.text().as_str(), answer.warnings.len()), ("A.B.", 0), "{id} {text}");
    }
}

#[tokio::test]
async fn event_of_very_many_broken_lines_is_one_error() {
    let body = format!("{}\n", "data: {\n".repeat(5000));
    let error = Wire::Chat.answer(&body).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding, "{error}");
}

#[tokio::test]
async fn responses_index_of_a_part_that_was_not_announced_continues_the_open_part() {
    let part = r#"{"type":"output_text","text":"Hello world","annotations":[]}"#;
    let item = format!(r#"{{"id":"u","type":"message","content":[{part}]}}"#);
    let announced = r#"{"type":"response.content_part.added","item_id":"u","output_index":0,"content_index":0,"part":{"type":"output_text","text":""}}"#;
    for announced in [None, Some(announced)] {
        let mut all = vec![
            r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"u","type":"message","content":[]}}"#.to_owned(),
        ];
        all.extend(announced.map(ToOwned::to_owned));
        all.extend([
            r#"{"type":"response.output_text.delta","item_id":"u","output_index":0,"content_index":1,"delta":"Hello"}"#.to_owned(),
            r#"{"type":"response.output_text.delta","item_id":"u","output_index":0,"content_index":2,"delta":" world"}"#.to_owned(),
            r#"{"type":"response.output_text.done","item_id":"u","output_index":0,"content_index":3,"text":"Hello world"}"#.to_owned(),
            format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#),
            format!(r#"{{"type":"response.completed","response":{{"id":"r","status":"completed","output":[{item}]}}}}"#),
        ]);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let answer = Wire::Responses.answer(&events(&all)).await.unwrap();
        assert_eq!((answer.message.text().as_str(), answer.message.content.len()), ("Hello world", 1));
        assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    }
}

#[tokio::test]
async fn responses_reasoning_with_a_new_index_in_each_delta_has_no_gaps() {
    let delta = |part: u32, text: &str| {
        format!(
            r#"{{"type":"response.reasoning_text.delta","item_id":"u","output_index":0,"content_index":{part},"delta":"{text}"}}"#
        )
    };
    let announced = |part: u32| {
        format!(
            r#"{{"type":"response.content_part.added","item_id":"u","output_index":0,"content_index":{part},"part":{{"type":"reasoning_text"}}}}"#
        )
    };
    for (all, expected) in [
        (vec![delta(1, "We"), delta(2, " wait"), delta(3, ".")], "We wait."),
        (vec![announced(0), delta(0, "One."), announced(1), delta(1, "Two.")], "One.\n\nTwo."),
    ] {
        let mut body = events(&[
            r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"u","type":"reasoning","summary":[]}}"#,
        ]);
        body += &events(&all.iter().map(String::as_str).collect::<Vec<_>>());
        body += &events(&[
            r#"{"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}"#,
        ]);
        let answer = Wire::Responses.answer(&body).await.unwrap();
        let [Content::Thinking(thinking)] = &answer.message.content[..] else { panic!("{answer:?}") };
        assert_eq!(thinking.text, expected);
    }
}

#[tokio::test]
async fn responses_announced_parts_stay_separate() {
    let part = |at: u32, text: &str| {
        [
            format!(
                r#"{{"type":"response.content_part.added","item_id":"u","output_index":0,"content_index":{at},"part":{{"type":"output_text"}}}}"#
            ),
            format!(
                r#"{{"type":"response.output_text.delta","item_id":"u","output_index":0,"content_index":{at},"delta":"{text}"}}"#
            ),
            format!(
                r#"{{"type":"response.output_text.done","item_id":"u","output_index":0,"content_index":{at},"text":"{text}"}}"#
            ),
        ]
    };
    let mut body = events(&[
        r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"u","type":"message","content":[]}}"#,
    ]);
    body +=
        &events(&[part(0, "One."), part(1, "Two.")].concat().iter().map(String::as_str).collect::<Vec<_>>());
    body += &events(&[
        r#"{"type":"response.completed","response":{"id":"r","status":"completed","output":[{"id":"u","type":"message","content":[{"type":"output_text","text":"One."},{"type":"output_text","text":"Two."}]}]}}"#,
    ]);
    let answer = Wire::Responses.answer(&body).await.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.message.content.len()), ("One.Two.", 2));
}

#[tokio::test]
async fn gemini_error_without_the_name_of_a_field_is_reported() {
    let body = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Hel\"}]}}]}\n\n{\n  \"error\": {\n    \
                \"code\": 429,\n    \"message\": \"Resource exhausted. Please try again later.\",\n    \"status\": \
                \"RESOURCE_EXHAUSTED\"\n  }\n}\n";
    for end in ["", "\n"] {
        let error = Wire::Gemini.answer(&format!("{body}{end}")).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::RateLimit, "{error}");
    }
}

#[tokio::test]
async fn chat_error_in_a_field_named_error_is_reported() {
    let report = r#"{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"invalid_request_error"}"#;
    for begun in [vec![], Wire::Chat.text(&["Hel"])] {
        let begun: String = begun.iter().map(|event| Wire::Chat.frame(event)).collect();
        let error =
            Wire::Chat.answer(&format!("{begun}error: {report}\n\ndata: [DONE]\n\n")).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{error}");
    }
}

#[tokio::test]
async fn chat_chunk_without_the_name_of_a_field_is_read() {
    let last = r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
    let text = events(&[r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hello"}}]}"#]);
    for end in ["\n", "\n\n", "\n: keep-alive\n"] {
        let answer = Wire::Chat.answer(&format!("{text}{last}{end}data: [DONE]\n\n")).await.unwrap();
        assert_eq!(
            (answer.message.text(), answer.stop_reason),
            ("Hello".to_owned(), StopReason::Length),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn chat_choices_with_the_same_index_are_merged() {
    let call = r#"[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]"#;
    let whole = format!(
        r#"{{"choices":[{{"message":{{"role":"assistant","content":"I look."}},"finish_reason":"tool_calls"}},{{"message":{{"role":"assistant","tool_calls":{call}}},"finish_reason":"tool_calls"}}]}}"#
    );
    let chunk = format!(
        r#"{{"choices":[{{"index":0,"delta":{{"content":"I look."}}}},{{"index":0,"delta":{{"tool_calls":{call}}},"finish_reason":"tool_calls"}}]}}"#
    );
    for body in [whole, events(&[&chunk, "[DONE]"])] {
        let answer = Wire::Chat.answer(&body).await.unwrap();
        assert_eq!(
            (answer.message.text().as_str(), uses(&answer)),
            ("I look.", vec![("f", &json!({}))]),
            "{body}"
        );
        assert_eq!(
            (answer.stop_reason.clone(), &answer.warnings[..]),
            (StopReason::ToolUse, &[][..]),
            "{body}"
        );
    }
}

#[tokio::test]
async fn chat_empty_answer_whose_native_reason_is_a_failure_is_an_error() {
    let end = r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"stop","native_finish_reason":"network_error"}]}"#;
    let error = Wire::Chat.answer(&events(&[end, "[DONE]"])).await.unwrap_err();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error}");
    let text = Wire::Chat.text(&["Hello"]).remove(0);
    assert_eq!(Wire::Chat.answer(&events(&[&text, end, "[DONE]"])).await.unwrap().message.text(), "Hello");
}

#[tokio::test]
async fn data_that_keeps_the_connection_open_is_skipped() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        for idle in ["null", ": keepalive", ": OPENROUTER PROCESSING"] {
            // An event of the Messages format is always an object, and `null` is not used to keep its streams open.
            if (wire, idle) == (Wire::Messages, "null") {
                continue;
            }
            let idle = format!("data: {idle}\n\n");
            let all = [wire.begin(), wire.text(&["Hel", "lo"]), wire.end()].concat();
            let body: String = all.iter().map(|event| idle.clone() + &wire.frame(event)).collect();
            let answer = wire.answer(&body).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?} {idle}: {error}"));
            assert_eq!(answer.message.text(), "Hello", "{wire:?} {idle}");
        }
    }
}

#[tokio::test]
async fn events_separated_by_one_newline_are_read_one_by_one() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        let all = [wire.begin(), wire.text(&["Hel\\ud83d", "\\ude00lo"]), wire.end()].concat();
        let body: String = all.iter().flat_map(|event| ["data: ", event, "\n"]).collect();
        for end in ["", "\n"] {
            let answer = wire.answer(&format!("{body}{end}")).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?}: {error}"));
            assert_eq!(answer.message.text(), "Hel😀lo", "{wire:?}");
        }
    }
}

#[tokio::test]
async fn error_directly_after_a_truncated_event_is_reported() {
    let report = r#"{"error":{"message":"Too many requests","type":"rate_limit_error","code":429}}"#;
    for wire in [Wire::Chat, Wire::Gemini] {
        let cut = wire.text(&["Hello"]).remove(0);
        let body = format!("data: {}\ndata: {report}\n\n", &cut[..cut.len() - 4]);
        assert_eq!(wire.answer(&body).await.unwrap_err().kind, ProviderErrorKind::RateLimit, "{wire:?}");
        // Without the report, the truncated event is an error.
        let body = format!("data: {}\ndata: {cut}\n\n", &cut[..cut.len() - 4]);
        assert_eq!(wire.answer(&body).await.unwrap_err().kind, ProviderErrorKind::Decoding, "{wire:?}");
    }
}

#[tokio::test]
async fn messages_blank_text_on_a_tool_use_and_a_second_stop_are_skipped() {
    let body = |text: &str| {
        events(&[
            r#"{"type":"message_start","message":{"id":"m","model":"m","content":[]}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"x\":1}"}}"#,
            &format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
            ),
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#,
            r#"{"type":"message_stop"}"#,
        ])
    };
    let answer = Wire::Messages.answer(&body("\\n")).await.unwrap();
    assert_eq!((uses(&answer), answer.message.content.len()), (vec![("f", &json!({"x": 1}))], 1));
    let error = Wire::Messages.answer(&body("lost")).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
}

#[tokio::test]
async fn responses_arguments_with_unreadable_deltas_use_the_complete_arguments() {
    let item = |arguments: &str| {
        json!({"id": "fc", "type": "function_call", "call_id": "a", "name": "f", "arguments": arguments})
            .to_string()
    };
    let whole = r#"{"type":"response.function_call_arguments.done","item_id":"fc","output_index":0,"arguments":"{\"x\":1}"}"#;
    let done =
        format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{}}}"#, item("{\"x\":1}"));
    for end in [vec![whole], vec![done.as_str()], vec![whole, done.as_str()]] {
        let mut all = vec![
            format!(r#"{{"type":"response.output_item.added","output_index":0,"item":{}}}"#, item("")),
            r#"{"type":"response.function_call_arguments.delta","item_id":"fc","output_index":0,"delta":"gAAAABo"}"#.to_owned(),
            r#"{"type":"response.function_call_arguments.delta","item_id":"fc","output_index":0,"delta":"x3QmZ=="}"#.to_owned(),
        ];
        all.extend(end.into_iter().map(ToOwned::to_owned));
        all.push(
            r#"{"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}"#
                .to_owned(),
        );
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let answer = Wire::Responses.answer(&events(&all)).await.unwrap();
        assert_eq!(uses(&answer), [("f", &json!({"x": 1}))]);
    }
}

#[tokio::test]
async fn chat_failure_in_a_base_response_is_an_error() {
    for (code, text, kind) in [
        (1008, "insufficient balance", ProviderErrorKind::Quota),
        (1004, "login fail: Please carry the API secret key", ProviderErrorKind::Auth),
        (1002, "rate limit", ProviderErrorKind::RateLimit),
    ] {
        let failure = format!(
            r#"{{"id":"c","choices":null,"created":1,"model":"m","object":"chat.completion","usage":{{"total_tokens":0}},"base_resp":{{"status_code":{code},"status_msg":"{text}"}}}}"#
        );
        for body in [failure.clone(), events(&[&failure])] {
            let error = Wire::Chat.answer(&body).await.unwrap_err();
            assert_eq!((error.kind, error.message.as_str()), (kind, text), "{body}");
        }
    }
    let success = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}],"base_resp":{"status_code":0,"status_msg":""}}"#;
    assert_eq!(Wire::Chat.answer(&events(&[success, "[DONE]"])).await.unwrap().message.text(), "Hi");
}

#[tokio::test]
async fn chat_answer_cut_by_the_limit_of_the_model_has_the_reason_length() {
    let end = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"model_length"}]}"#;
    assert_eq!(Wire::Chat.answer(&events(&[end, "[DONE]"])).await.unwrap().stop_reason, StopReason::Length);
}

#[test]
fn chat_error_with_status_498_is_overload() {
    let body = r#"{"error":{"message":"Flex tier capacity exceeded","type":"capacity_exceeded","code":"capacity_exceeded"}}"#;
    for body in [body, "capacity_exceeded", ""] {
        let error = ChatCompletions::default().error(498, body);
        let capacity = !body.is_empty();
        assert_eq!(
            (error.kind == ProviderErrorKind::Overloaded, error.retryable),
            (capacity, capacity),
            "{error}"
        );
    }
}

#[tokio::test]
async fn ollama_line_with_a_reason_and_without_done_ends_the_answer() {
    let body = "{\"message\":{\"content\":\"Hello\"},\"done\":false}\n{\"message\":{\"content\":\"\"},\"done_reason\":\"length\"}\n";
    let answer = Wire::Ollama.answer(body).await.unwrap();
    assert_eq!((answer.message.text(), answer.stop_reason), ("Hello".to_owned(), StopReason::Length));
}

#[tokio::test]
async fn chat_reasoning_text_is_thinking() {
    let answer = Wire::Chat
        .answer(&events(&[
            r#"{"id":"c","choices":[{"index":0,"delta":{"reasoning_text":"Hm."}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}"#,
            "[DONE]",
        ]))
        .await
        .unwrap();
    let Content::Thinking(thinking) = &answer.message.content[0] else { panic!("{answer:?}") };
    assert_eq!((thinking.text.as_str(), answer.message.text().as_str()), ("Hm.", "Hi"));
}

/// Returns the chunk with which MiniMax ends a stream: the whole answer, in place of a delta.
fn whole_message(message: &Value, finish: &str) -> String {
    json!({"id": "c", "object": "chat.completion", "choices": [
        {"index": 0, "message": message, "finish_reason": finish}]})
    .to_string()
}

#[tokio::test]
async fn chat_whole_message_after_its_deltas_is_read_once() {
    let streamed = [
        r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm."}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hel"}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"lo"}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"f","arguments":"{}"}}]}}]}"#,
    ];
    for (ids, arguments) in
        [(["a", "b"], "{\"x\":1}"), (["a", "b"], "{ \"x\": 1 }"), (["y", "z"], "{\"x\":1}")]
    {
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
        let message = json!({"role": "assistant", "content": "Hello", "reasoning_content": "Hm.",
            "tool_calls": [call(ids[0], arguments), call(ids[1], "{}")]});
        let whole = whole_message(&message, "tool_calls");
        for end in [&[whole.as_str()][..], &[&whole, "[DONE]"]] {
            let answer = Wire::Chat.answer(&events(&[&streamed, end].concat())).await.unwrap();
            let [Content::Thinking(thinking), ..] = &answer.message.content[..] else { panic!("{answer:?}") };
            assert_eq!((thinking.text.as_str(), answer.message.text().as_str()), ("Hm.", "Hello"));
            assert_eq!(uses(&answer), [("f", &json!({"x": 1})), ("f", &json!({}))], "{message}");
            assert_eq!((&answer.warnings[..], answer.message.content.len()), (&[][..], 4), "{message}");
        }
    }
}

#[tokio::test]
async fn chat_whole_message_after_its_deltas_supplies_what_they_omit() {
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": id, "arguments": arguments}});
    let message = json!({"role": "assistant", "content": "Hello", "reasoning_content": "Hm.",
        "tool_calls": [call("f", "{\"x\":{\"y\":1}}"), call("g", "{\"z\":2}")]});
    let whole = whole_message(&message, "tool_calls");
    for streamed in [
        &[r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant"}}]}"#][..],
        &[
            r#"{"id":"c","choices":[{"index":0,"delta":{"reasoning_content":"H"}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hel"}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"f","function":{"name":"f","arguments":"{\"x\":"}}]}}]}"#,
        ],
    ] {
        let answer = Wire::Chat.answer(&events(&[streamed, &[&whole]].concat())).await.unwrap();
        let thinking = answer.message.content.iter().filter_map(|content| match content {
            Content::Thinking(thinking) => Some(thinking.text.as_str()),
            _ => None,
        });
        assert_eq!((thinking.collect::<String>().as_str(), answer.message.text().as_str()), ("Hm.", "Hello"));
        assert_eq!(uses(&answer), [("f", &json!({"x": {"y": 1}})), ("g", &json!({"z": 2}))]);
        assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    }
}

#[tokio::test]
async fn chat_whole_message_that_differs_from_its_deltas_is_not_appended() {
    for (text, warnings) in [("Another text", 1), ("Hello!", 1), ("Bye", 0)] {
        let whole = whole_message(&json!({"role": "assistant", "content": text}), "stop");
        let streamed = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hullo"}}]}"#;
        let answer = Wire::Chat.answer(&events(&[streamed, &whole])).await.unwrap();
        assert_eq!((answer.message.text().as_str(), answer.warnings.len()), ("Hullo", warnings), "{text}");
    }
}

#[tokio::test]
async fn responses_parts_that_were_not_announced_stay_separate() {
    let delta = |at: u32, text: &str| {
        json!({"type": "response.output_text.delta", "item_id": "u", "output_index": 0, "content_index": at,
            "delta": text})
    };
    let done = |at: u32, text: &str| {
        json!({"type": "response.output_text.done", "item_id": "u", "output_index": 0, "content_index": at,
            "text": text})
    };
    let part = |text: &str, url: &str| json!({"type": "output_text", "text": text, "annotations": [{"type": "url_citation", "url": url}]});
    let item = json!({"id": "u", "type": "message",
        "content": [part("One.", "http://one.test"), part("One. Two.", "http://two.test")]});
    for streamed in [
        // The end of a part is announced.
        vec![delta(0, "One."), done(0, "One."), delta(1, "One. "), delta(1, "Two."), done(1, "One. Two.")],
        // A part arrives complete.
        vec![delta(0, "One."), done(0, "One."), done(1, "One. Two.")],
        // The index changes after it was the same for several deltas.
        vec![delta(0, "On"), delta(0, "e."), delta(1, "One. "), delta(1, "Two.")],
    ] {
        let begin = json!({"type": "response.output_item.added", "output_index": 0,
            "item": {"id": "u", "type": "message", "content": []}});
        let end = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
        let completed = json!({"type": "response.completed",
            "response": {"id": "r", "status": "completed", "output": [item]}});
        let all = [vec![begin], streamed.clone(), vec![end, completed]].concat();
        let all: Vec<String> = all.iter().map(Value::to_string).collect();
        let answer = Wire::Responses
            .answer(&events(&all.iter().map(String::as_str).collect::<Vec<_>>()))
            .await
            .unwrap();
        let [Content::Text(one), Content::Text(two)] = &answer.message.content[..] else {
            panic!("{streamed:?}: {answer:?}")
        };
        assert_eq!((one.text.as_str(), two.text.as_str()), ("One.", "One. Two."), "{streamed:?}");
        for (text, url) in [(one, "one.test"), (two, "two.test")] {
            assert!(text.signature.as_ref().unwrap().contains(url), "{streamed:?}: {text:?}");
        }
        assert!(answer.warnings.is_empty(), "{streamed:?}: {:?}", answer.warnings);
    }
}

#[tokio::test]
async fn responses_annotations_of_a_part_with_another_index_are_kept() {
    let part = r#"{"type":"output_text","text":"Hello","annotations":[{"type":"url_citation","url":"http://one.test"}]}"#;
    let item = format!(r#"{{"id":"u","type":"message","content":[{part}]}}"#);
    // vLLM counts the parts of a reasoning item together with those of the message after it.
    let answer = Wire::Responses.answer(&events(&[
        r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"u","type":"message","content":[]}}"#,
        r#"{"type":"response.content_part.added","item_id":"u","output_index":0,"content_index":1,"part":{"type":"output_text","text":""}}"#,
        r#"{"type":"response.output_text.delta","item_id":"u","output_index":0,"content_index":1,"delta":"Hel"}"#,
        &format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{item}}}"#),
        &format!(r#"{{"type":"response.completed","response":{{"id":"r","status":"completed","output":[{item}]}}}}"#),
    ])).await.unwrap();
    let [Content::Text(text)] = &answer.message.content[..] else { panic!("{answer:?}") };
    assert_eq!((text.text.as_str(), answer.warnings.len()), ("Hello", 0), "{answer:?}");
    assert!(text.signature.as_ref().unwrap().contains("one.test"), "{text:?}");
}

#[tokio::test]
async fn events_before_a_truncated_event_are_kept() {
    for wire in [Wire::Chat, Wire::Gemini] {
        let all = wire.text(&["Hel", "lo", " wor"]);
        // The last event is truncated, and no blank lines separate the events.
        let body: String = all.iter().flat_map(|event| ["data: ", event, "\n"]).collect();
        // Text after a gap is not kept.
        for (body, expected) in [(&body[..body.len() - 5], "Hello"), (&body.replacen("}]", "", 1), "")] {
            let server = Server::start([wire.reply().piece(body.to_owned())]).await;
            let mut request = Request::prompt("Hi");
            request.model = "m".into();
            let endpoint = wire.endpoint(&server.url()).with_key("key");
            let mut stream = endpoint.stream(request, RequestContext::detached()).await.unwrap();
            let (mut text, mut failed) = (String::new(), None);
            while let Some(delta) = stream.next().await {
                match delta {
                    Ok(Delta::Extend { part: Part::Text(more), .. }) => text += &more,
                    Ok(_) => {}
                    Err(error) => failed = Some(error.kind),
                }
            }
            assert_eq!(text, expected, "{wire:?} {body}");
            assert_eq!(failed, Some(ProviderErrorKind::Truncated), "{wire:?} {body}");
        }
    }
}

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message, ProviderItem, Usage},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{ChatCompletions, Delta, Dialect, Frame, Part, ReasoningReturn},
    },
};
use serde_json::{Value, json};

use crate::chat::{answer, delta, deltas_of, encode, finish, fold};

fn usage(usage: Value) -> Usage {
    let chunk = json!({"choices": [], "usage": usage});
    answer(&[delta(json!({"content": "x"})), finish("stop"), chunk, json!("[DONE]")]).unwrap().usage
}

fn stop(reason: &str) -> StopReason {
    answer(&[delta(json!({"content": "x"})), finish(reason), json!("[DONE]")]).unwrap().stop_reason
}

#[test]
fn decode_text_stream_emits_each_delta_and_folds() {
    let events = [
        delta(json!({"role": "assistant", "content": null})).to_string(),
        delta(json!({"content": "Hel"})).to_string(),
        delta(json!({"content": "lo\n\"you\" é"})).to_string(),
        finish("stop").to_string(),
        "[DONE]".to_owned(),
    ];
    let deltas = deltas_of(&ChatCompletions::default(), &events).unwrap();
    let texts: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Extend { index: 0, part: Part::Text(text) } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["Hel", "lo\n\"you\" é"]);
    let folded = fold(deltas);
    assert_eq!(folded.message.text(), "Hello\n\"you\" é");
    assert_eq!(folded.message.content.len(), 1);
    assert_eq!(folded.stop_reason, StopReason::Stop);
    assert_eq!(folded.model.as_deref(), Some("m-1"));
    assert_eq!(
        Value::Object(folded.message.provider_data),
        json!({"chat_completions": {"id": "chatcmpl-1"}})
    );
}

#[test]
fn decode_null_or_absent_members_are_ignored() {
    let folded = answer(&[
        json!({"id": null, "model": null, "choices": null, "usage": null, "error": null}),
        json!({"choices": []}),
        json!({"choices": [null]}),
        json!({"choices": [{}]}),
        json!({"choices": [{"index": null, "delta": null, "finish_reason": null}]}),
        json!({"choices": [{"delta": {"content": null, "tool_calls": null, "refusal": null, "reasoning": null,
            "reasoning_content": null, "function_call": null, "role": null}, "finish_reason": ""}]}),
        json!({"choices": [{"delta": {"tool_calls": [null, {}, {"function": null}]}}]}),
        json!({"choices": [{"delta": {"role": "assistant", "content": "a"}, "logprobs": null, "usage": null}]}),
        json!({"choices": [{"delta": {"role": "assistant", "content": "b", "audio": {"id": "x"}}}]}),
        json!({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": null,
            "prompt_tokens_details": null, "completion_tokens_details": {"reasoning_tokens": null}}}),
        json!("  [DONE] "),
    ])
    .unwrap();
    assert_eq!(folded.message.text(), "ab");
    assert_eq!(folded.message.content.len(), 1);
    assert_eq!(folded.usage, Usage::default());
    assert_eq!(Value::Object(folded.message.provider_data), json!({"chat_completions": {}}));
}

#[test]
fn decode_late_id_and_model_are_kept() {
    let folded = answer(&[
        json!({"id": "", "model": "", "choices": [], "prompt_filter_results": []}),
        json!({"id": "c-1", "choices": [{"delta": {"content": "x"}}]}),
        json!({"id": "c-1", "model": "m", "choices": [{"finish_reason": "stop"}]}),
    ])
    .unwrap();
    assert_eq!(folded.model.as_deref(), Some("m"));
    assert_eq!(folded.message.provider_data["chat_completions"], json!({"id": "c-1"}));
}

#[test]
fn decode_finish_chunk_with_content_keeps_the_content() {
    let last = json!({"choices": [{"index": 0, "delta": {"content": " world"}, "finish_reason": "stop"}]});
    let folded = answer(&[delta(json!({"content": "Hello"})), last]).unwrap();
    assert_eq!(folded.message.text(), "Hello world");
}

#[test]
fn decode_two_finish_chunks_uses_the_last() {
    let folded = answer(&[
        delta(json!({"content": "x"})),
        finish("stop"),
        finish("length"),
        delta(json!({"content": "y"})),
        json!("[DONE]"),
    ])
    .unwrap();
    assert_eq!(folded.stop_reason, StopReason::Length);
    assert_eq!(folded.message.text(), "xy");
}

#[test]
fn decode_events_after_done_are_ignored() {
    let chat = ChatCompletions::default();
    let mut decoder = chat.decoder(&Request::default());
    let mut deltas = Vec::new();
    let mut feed = |data: &str, deltas: &mut Vec<Delta>| {
        decoder.decode(Frame::new("", data), deltas).unwrap();
        decoder.is_done()
    };
    assert!(!feed(&delta(json!({"content": "x"})).to_string(), &mut deltas));
    assert!(!feed(&finish("stop").to_string(), &mut deltas));
    assert!(feed("[DONE]", &mut deltas));
    let len_before = deltas.len();
    assert!(feed(&delta(json!({"content": "y"})).to_string(), &mut deltas));
    assert!(feed("no JSON", &mut deltas));
    decoder.end(&mut deltas).unwrap();
    assert_eq!(deltas.len(), len_before);
}

#[test]
fn decode_reasoning_under_either_name_becomes_thinking_before_text() {
    for thinking in [
        json!({"reasoning_content": "Hmm."}),
        json!({"reasoning": "Hmm."}),
        json!({"reasoning": "Hmm.", "reasoning_content": "Hmm."}),
        json!({"reasoning": "Hmm.", "reasoning_content": "", "content": ""}),
        json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hmm."}]}]}),
    ] {
        let folded =
            answer(&[delta(thinking.clone()), delta(json!({"content": "Yes"})), finish("stop")]).unwrap();
        let [Content::Thinking(thought), Content::Text(text)] = &folded.message.content[..] else {
            panic!("{thinking}: {:?}", folded.message.content);
        };
        assert_eq!((thought.text.as_str(), text.text.as_str()), ("Hmm.", "Yes"), "{thinking}");
    }
}

#[test]
fn decode_reasoning_text_and_call_in_one_delta_keep_this_order() {
    let folded = answer(&[
        delta(json!({"content": "b", "reasoning": "a",
            "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})),
        delta(json!({"content": "d"})),
        finish("tool_calls"),
    ])
    .unwrap();
    let kinds: Vec<_> = folded
        .message
        .content
        .iter()
        .map(|block| match block {
            Content::Thinking(thinking) => format!("thinking {}", thinking.text),
            Content::Text(text) => format!("text {}", text.text),
            Content::ToolUse(call) => format!("call {}", call.name),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["thinking a", "text b", "call f", "text d"]);
}

#[test]
fn decode_alternating_reasoning_and_text_stays_within_the_limit_of_blocks() {
    let mut chunks = vec![delta(json!({"reasoning": "r", "content": "t"})); 5000];
    chunks.push(finish("stop"));
    let folded = answer(&chunks).unwrap();
    assert_eq!(folded.message.text(), "t".repeat(5000));
    assert!(folded.message.content.len() <= 300, "{}", folded.message.content.len());
}

#[test]
fn decode_content_in_parts_becomes_text() {
    let parts =
        json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "ref"}]});
    assert_eq!(answer(&[delta(parts), finish("stop")]).unwrap().message.text(), "ab");
}

#[test]
fn decode_refusal_deltas_become_text_with_stop_reason_refusal() {
    let folded = answer(&[
        delta(json!({"content": null, "refusal": "I can't "})),
        delta(json!({"refusal": "help."})),
        finish("stop"),
    ])
    .unwrap();
    assert_eq!(folded.message.text(), "I can't help.");
    assert_eq!(folded.stop_reason, StopReason::Refusal);
}

#[test]
fn decode_finish_reason_maps_to_stop_reason() {
    for (word, expected) in [
        ("stop", StopReason::Stop),
        ("STOP", StopReason::Stop),
        ("end", StopReason::Stop),
        ("eos_token", StopReason::Stop),
        ("length", StopReason::Length),
        ("content_filter", StopReason::Refusal),
        ("content_filter: RECITATION", StopReason::Refusal),
        ("sensitive", StopReason::Refusal),
        ("model_context_window_exceeded", StopReason::ContextLength),
        ("Moon_Phase", StopReason::Other("Moon_Phase".to_owned())),
        // The answer contains no tool call, so `tool_calls` only means that the answer has ended.
        ("tool_calls", StopReason::Stop),
    ] {
        assert_eq!(stop(word), expected, "{word}");
    }
}

/// Google's compatible endpoint adds its own word to the finish reason.
#[test]
fn decode_composite_finish_reason_without_a_message_has_the_meaning_of_its_first_part() {
    let filtered = json!({"choices": [{"finish_reason": "content_filter: PROHIBITED_CONTENT", "index": 0}],
        "model": "gemini-3.5-flash",
        "usage": {"prompt_tokens": 10, "completion_tokens": 0, "total_tokens": 10}});
    let folded = answer(&[filtered, json!("[DONE]")]).unwrap();
    assert_eq!((folded.stop_reason, folded.usage.input), (StopReason::Refusal, 10));
    assert!(folded.message.content.is_empty());
}

#[test]
fn decode_malformed_call_of_gemini_is_a_retryable_error() {
    for choice in [
        json!({"finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL", "index": 0,
            "delta": {"role": "assistant"}}),
        json!({"finish_reason": "MALFORMED_FUNCTION_CALL", "index": 0, "delta": {}}),
        json!({"finish_reason": "stop", "native_finish_reason": "MALFORMED_FUNCTION_CALL", "index": 0,
            "delta": {"content": ""}}),
        json!({"finish_reason": "stop", "native_finish_reason": "UNEXPECTED_TOOL_CALL", "index": 0,
            "delta": {"content": ""}}),
    ] {
        let error = answer(&[json!({"choices": [choice]}), json!("[DONE]")]).unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{choice}");
    }
}

#[test]
fn decode_finish_reason_that_promises_calls_without_any_content_is_a_retryable_error() {
    let empty = json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": "", "tool_calls": []},
        "finish_reason": "tool_calls"}]});
    for events in [vec![empty.clone(), json!("[DONE]")], vec![empty], vec![finish("function_call")]] {
        let error = answer(&events).unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{events:?}");
    }
    // The only call is one that this crate cannot answer.
    let custom = delta(json!({"tool_calls": [{"index": 0, "id": "a", "type": "custom",
        "custom": {"name": "f", "input": "x"}}]}));
    let folded = answer(&[custom, finish("tool_calls"), json!("[DONE]")]).unwrap();
    assert_eq!((folded.stop_reason, folded.warnings.len()), (StopReason::Stop, 1));
}

#[test]
fn decode_finish_reason_that_only_says_null_is_absent() {
    for word in ["null", "none", "None"] {
        let part = |text: &str| {
            let mut chunk = delta(json!({"content": text}));
            chunk["choices"][0]["finish_reason"] = json!(word);
            chunk
        };
        let folded = answer(&[part("a"), part("b"), finish("length")]).unwrap();
        assert_eq!((folded.message.text(), folded.stop_reason), ("ab".to_owned(), StopReason::Length));
        // Without any other finish reason, the answer is cut off.
        let error = answer(&[part("a"), part("b")]).unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Truncated, "{word}");
    }
}

#[test]
fn decode_usage_with_details_splits_the_prompt() {
    let expected = Usage::default().with_input(60).with_cache_read(40).with_output(30).with_reasoning(20);
    assert_eq!(
        usage(json!({"prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 130,
            "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20}})),
        expected
    );
    // The names that DeepSeek and Moonshot use for cached tokens.
    for cached in ["prompt_cache_hit_tokens", "cached_tokens"] {
        let counted = usage(json!({"prompt_tokens": 100, "completion_tokens": 30, cached: 40}));
        assert_eq!(counted, expected.with_reasoning(0), "{cached}");
    }
    // The names that OpenRouter uses for cached tokens, and its cost.
    assert_eq!(
        usage(json!({"prompt_tokens": 100, "completion_tokens": 30, "cost": 0.25,
            "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 10}})),
        Usage::default()
            .with_input(50)
            .with_cache_read(40)
            .with_cache_write(10)
            .with_output(30)
            .with_reasoning(0)
            .with_cost(0.25)
    );
}

#[test]
fn decode_usage_with_the_users_own_key_counts_the_cost_at_the_service() {
    let cost = |own_key: bool, details: Value| {
        usage(json!({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.002, "is_byok": own_key,
            "cost_details": details}))
        .cost
    };
    let details = json!({"upstream_inference_cost": 0.036});
    assert!((cost(true, details.clone()).unwrap() - 0.038).abs() < 1e-9);
    assert_eq!(cost(false, details), Some(0.002));
    // The fee alone is not the cost, so the price of the model counts.
    assert_eq!(cost(true, json!({"upstream_inference_cost": null})), None);
}

#[test]
fn decode_usage_with_reasoning_outside_the_completion_counts_both() {
    let counted = usage(json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35,
        "completion_tokens_details": {"reasoning_tokens": 20}}));
    assert_eq!((counted.output, counted.reasoning), (25, 20));
    // Some gateways to Gemini count the reasoning only in the total.
    let counted = usage(json!({"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}));
    assert_eq!((counted.input, counted.output), (20, 603));
    for total in [json!(30), json!(0), json!(null)] {
        let counted = usage(json!({"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": total}));
        assert_eq!((counted.input, counted.output), (20, 198), "{total}");
    }
    let counted = usage(json!({"prompt_tokens": 5_000, "completion_tokens": 198, "total_tokens": 5_603,
        "prompt_tokens_details": {"cached_tokens": 4_000}}));
    assert_eq!((counted.input, counted.cache_read, counted.output), (1_000, 4_000, 603));
    // Other gateways count the tokens of the cache only in the total.
    let counted = usage(json!({"prompt_tokens": 4, "completion_tokens": 103, "total_tokens": 1510,
        "prompt_tokens_details": {"cached_tokens": 1403}}));
    assert_eq!((counted.cache_read, counted.output), (4, 103));
}

#[test]
fn decode_usage_with_absurd_numbers_does_not_overflow() {
    let counted = usage(json!({"prompt_tokens": -5, "completion_tokens": u64::MAX, "total_tokens": "7",
        "prompt_tokens_details": {"cached_tokens": 1e99}, "completion_tokens_details": {"reasoning_tokens": u64::MAX}}));
    assert_eq!((counted.input, counted.cache_read, counted.output), (0, 0, u64::MAX));
    let counted = usage(json!({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}}));
    assert_eq!((counted.input, counted.cache_read), (0, 3));
}

#[test]
fn decode_usage_in_any_place_uses_the_last() {
    let tokens = |n: u32| json!({"prompt_tokens": 5, "completion_tokens": n});
    let text = |n: u32| json!({"choices": [{"delta": {"content": "x"}}], "usage": tokens(n)});
    let each = answer(&[text(1), text(2), finish("stop"), json!({"choices": [], "usage": tokens(3)})]);
    assert_eq!(each.unwrap().usage.output, 3);
    let with_finish = json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": tokens(4)});
    assert_eq!(answer(&[text(1), with_finish, json!("[DONE]")]).unwrap().usage.output, 4);
    let in_choice = json!({"choices": [{"delta": {}, "finish_reason": "stop", "usage": tokens(5)}]});
    assert_eq!(answer(&[text(1), in_choice]).unwrap().usage.output, 5);
    let groq = json!({"choices": [{"finish_reason": "stop"}], "x_groq": {"id": "r", "usage": tokens(6)}});
    assert_eq!(answer(&[text(1), groq]).unwrap().usage.output, 6);
    let without_choices = json!({"usage": tokens(7)});
    assert_eq!(answer(&[text(1), finish("stop"), without_choices]).unwrap().usage.output, 7);
}

#[test]
fn decode_several_choices_reads_the_first() {
    let folded = answer(&[
        json!({"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}),
        json!({"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]}),
        finish("stop"),
    ])
    .unwrap();
    assert_eq!((folded.message.text().as_str(), folded.stop_reason), ("yes", StopReason::Stop));
}

#[test]
fn decode_whole_answer_in_one_object_is_complete() {
    let whole = json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "Hi", "refusal": null, "reasoning_content": "Hm", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}});
    let pretty = serde_json::to_string_pretty(&whole).unwrap();
    let folded = fold(deltas_of(&ChatCompletions::default(), &[pretty]).unwrap());
    assert_eq!(folded.message.text(), "Hi");
    assert_eq!(crate::chat::calls(&folded).len(), 2);
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
    assert_eq!(folded.usage.output, 2);

    let silent = json!({"choices": [{"message": {"content": "Hi"}, "finish_reason": null}]});
    assert_eq!(answer(&[silent]).unwrap().stop_reason, StopReason::Stop);
}

#[test]
fn decode_message_next_to_delta_is_not_read_twice() {
    let both = |so_far: &str, new: &str| json!({"choices": [{"delta": {"content": new}, "message": {"content": so_far}}]});
    let folded = answer(&[both("a", "a"), both("ab", "b"), finish("stop")]).unwrap();
    assert_eq!(folded.message.text(), "ab");
}

#[test]
fn end_without_done_needs_a_finish_reason() {
    let text = delta(json!({"content": "x"}));
    let complete = answer(&[text.clone(), finish("stop")]).unwrap();
    assert_eq!(complete.stop_reason, StopReason::Stop);
    for cut in [&[text.clone()][..], &[]] {
        let error = answer(cut).unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true));
    }
    // `[DONE]` completes an answer that has content, but an answer without any content is truncated.
    assert_eq!(answer(&[text, json!("[DONE]")]).unwrap().stop_reason, StopReason::Stop);
    assert_eq!(answer(&[json!("[DONE]")]).unwrap_err().kind, ProviderErrorKind::Truncated);
    let nothing = answer(&[finish("stop"), json!("[DONE]")]).unwrap();
    assert!(nothing.message.content.is_empty());
}

#[test]
fn decode_error_inside_the_stream_is_an_error() {
    let text = delta(json!({"content": "x"}));
    for (chunk, kind) in [
        (
            json!({"error": {"code": 500, "message": "boom", "type": "server_error"}}),
            ProviderErrorKind::Service,
        ),
        (
            json!({"error": {"code": 429, "message": "slow down"}, "choices": []}),
            ProviderErrorKind::RateLimit,
        ),
        (json!({"error": "model is overloaded", "choices": []}), ProviderErrorKind::Overloaded),
        (
            json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error",
                "error": {"code": 502, "message": "upstream died"}}]}),
            ProviderErrorKind::Service,
        ),
        (
            json!({"error": {"code": "server_error", "message": "disconnected"},
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}),
            ProviderErrorKind::Service,
        ),
        (finish("error"), ProviderErrorKind::Service),
        (finish("network_error"), ProviderErrorKind::Service),
        (finish("network-error"), ProviderErrorKind::Service),
        (finish("abort"), ProviderErrorKind::Service),
        (finish("error_finish"), ProviderErrorKind::Service),
        (finish("insufficient_system_resource"), ProviderErrorKind::Service),
        (
            json!({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}),
            ProviderErrorKind::InvalidRequest,
        ),
        (
            json!({"code": "Throttling.RateQuota", "message": "wait", "request_id": "r-1"}),
            ProviderErrorKind::RateLimit,
        ),
        (
            json!([{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]),
            ProviderErrorKind::Overloaded,
        ),
        (json!({"x_groq": {"error": "tool use failed"}, "choices": []}), ProviderErrorKind::Service),
    ] {
        let error = answer(&[text.clone(), chunk.clone()]).unwrap_err();
        assert_eq!(error.kind, kind, "{chunk}: {error}");
        assert_eq!(error.body.as_deref(), Some(chunk.to_string().as_str()));
    }
}

#[test]
fn decode_error_message_without_choices_is_an_error() {
    let words = "This model's maximum context length is 163840 tokens. However, you requested 163841 tokens.";
    let report = json!({"error_type": "BadRequestError", "error_message": words});
    let with = |members: Value| {
        let mut chunk = report.clone();
        chunk.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        chunk
    };
    for chunk in [
        report.clone(),
        with(json!({"choices": null})),
        with(json!({"choices": []})),
        with(
            json!({"choices": null, "id": "c", "object": "chat.completion.chunk", "model": "m", "usage": null}),
        ),
        with(json!({"choices": [], "object": "chat.completion.chunk", "usage": {"prompt_tokens": 0}})),
    ] {
        for begun in [vec![], vec![delta(json!({"content": "x"}))]] {
            let error = answer(&[begun, vec![chunk.clone(), json!("[DONE]")]].concat()).unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{chunk}: {error}");
            assert_eq!(error.message, words);
        }
    }
    // Without words about the context, the type of the error decides.
    let other = json!({"choices": [], "error_type": "RateLimitError", "error_message": "slow down"});
    assert_eq!(answer(&[other]).unwrap_err().kind, ProviderErrorKind::RateLimit);
    for none in [json!(null), json!("")] {
        let chunk = json!({"choices": [], "error_type": none, "error_message": none});
        assert_eq!(
            answer(&[chunk, delta(json!({"content": "x"})), finish("stop")]).unwrap().message.text(),
            "x"
        );
    }
}

#[test]
fn decode_empty_error_member_is_ignored() {
    for none in [json!(null), json!({}), json!(""), json!(false), json!(0)] {
        let chunk = json!({"error": none, "choices": [{"delta": {"content": "x"}, "finish_reason": "stop", "error": none}]});
        assert_eq!(answer(&[chunk]).unwrap().message.text(), "x");
    }
}

#[test]
fn decode_error_event_is_an_error() {
    let mut decoder = ChatCompletions::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    let data = r#"{"error":{"message":"Input is too long","code":"context_length_exceeded"}}"#;
    let error = decoder.decode(Frame::new("error", data), &mut deltas).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ProviderErrorKind::ContextTooLong, "Input is too long")
    );
    let error = decoder.decode(Frame::new("error", "it broke"), &mut deltas).unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ProviderErrorKind::Service, "it broke"));
}

#[test]
fn decode_data_that_is_not_a_chunk_is_a_decoding_error() {
    for data in
        ["<html>", "{\"choices\": [", "[]", "[1]", "\"text\"", "12", "{\"choices\": \"none\"}", "[DONE] "]
    {
        let result = deltas_of(&ChatCompletions::default(), &[data]);
        let error = result.unwrap_err();
        let expected =
            if data == "[DONE] " { ProviderErrorKind::Truncated } else { ProviderErrorKind::Decoding };
        assert_eq!(error.kind, expected, "{data}");
    }
    let long = format!("<{}", "x".repeat(1 << 20));
    let error = deltas_of(&ChatCompletions::default(), &[long]).unwrap_err();
    assert!(error.body.unwrap().len() <= omni_agent::provider::ProviderError::BODY_LIMIT);
    assert!(error.message.len() < 200);
}

#[test]
fn decode_reasoning_details_are_assembled_and_sent_back_if_enabled() {
    let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::Details);
    let part = |details: Value| delta(json!({"reasoning": "t", "reasoning_details": details})).to_string();
    let events = [
        part(json!([{"type": "reasoning.text", "index": 0, "format": "f", "text": "Let "}])),
        part(json!([{"type": "reasoning.text", "index": 0, "text": "me", "signature": null}])),
        part(json!([{"type": "reasoning.text", "index": 0, "signature": "sig"}])),
        part(json!([{"type": "reasoning.encrypted", "index": 1, "data": "xx"}])),
        part(json!("odd")),
        delta(json!({"content": "Hi"})).to_string(),
        finish("stop").to_string(),
    ];
    let gathered = json!([
        {"type": "reasoning.text", "index": 0, "format": "f", "text": "Let me", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xx"},
    ]);
    let folded = fold(deltas_of(&chat, &events).unwrap());
    let request = omni_agent::provider::Request::new([folded.message].into_iter().collect());
    assert_eq!(
        crate::chat::encode(&chat, &request)["messages"],
        json!([{"role": "assistant", "content": "Hi", "reasoning_details": gathered}])
    );
    // By default, `reasoning_details` is omitted, because services that do not know this member reject it.
    assert_eq!(
        crate::chat::encode(&ChatCompletions::default(), &request)["messages"],
        json!([{"role": "assistant", "content": "Hi"}])
    );
}

#[test]
fn decode_reasoning_details_are_identified_by_index_and_id() {
    let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::Details);
    let gathered = |chunks: &[Value]| {
        let part = |details: &Value| delta(json!({"reasoning_details": details})).to_string();
        let mut events: Vec<String> = chunks.iter().map(part).collect();
        events.extend([delta(json!({"content": "Hi"})).to_string(), finish("stop").to_string()]);
        let folded = fold(deltas_of(&chat, &events).unwrap());
        let request = omni_agent::provider::Request::new([folded.message].into_iter().collect());
        crate::chat::encode(&chat, &request)["messages"][0]["reasoning_details"].clone()
    };
    let text = |index: Value, text: &str| json!({"type": "reasoning.text", "index": index, "text": text});
    // Interleaved pieces.
    assert_eq!(
        gathered(&[
            json!([text(json!(0), "a"), text(json!(1), "b")]),
            json!([text(json!(0), "A"), text(json!(1), "B")]),
        ]),
        json!([text(json!(0), "aA"), text(json!(1), "bB")])
    );
    // The entries are identified by their id. Their index may arrive late, change or be missing.
    let summary = |id: &str, more: Value| {
        let mut entry = json!({"type": "reasoning.summary", "id": id});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    assert_eq!(
        gathered(&[
            json!([summary("rs_1", json!({"summary": "a"}))]),
            json!([summary("rs_2", json!({"summary": "b", "index": 0}))]),
            json!([summary("rs_1", json!({"summary": "A", "index": 0}))]),
            json!([summary("rs_1", json!({"summary": "c", "index": 1}))]),
        ]),
        json!([
            summary("rs_1", json!({"summary": "aA", "index": 0})),
            summary("rs_2", json!({"summary": "b", "index": 0})),
            summary("rs_1", json!({"summary": "c", "index": 1})),
        ])
    );
    // Without an index and an id, the pieces are appended to one entry until a piece has another type.
    let bare = |text: &str| json!({"type": "reasoning.text", "text": text});
    let encrypted = |data: &str| json!({"type": "reasoning.encrypted", "id": "rs_1", "data": data});
    assert_eq!(
        gathered(&[
            json!([bare("a")]),
            json!([bare("b")]),
            json!([encrypted("x")]),
            json!([bare("c")]),
            json!([encrypted("x"), encrypted("y")]),
        ]),
        json!([bare("ab"), encrypted("x"), bare("c"), encrypted("y")])
    );
}

#[test]
fn decode_endless_reasoning_details_are_an_error() {
    let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::Details);
    let many: Vec<Value> = (0..600).map(|index| json!({"type": "reasoning.text", "index": index})).collect();
    let event = delta(json!({"reasoning_details": many})).to_string();
    assert_eq!(deltas_of(&chat, &[event]).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_annotations_are_kept_once_and_sent_back_if_enabled() {
    let cited = json!({"type": "url_citation", "url_citation": {"url": "https://example.org", "title": "T",
        "start_index": 0, "end_index": 3}});
    let file = json!({"type": "file", "file": {"hash": "h", "content": [{"type": "text", "text": "x"}]}});
    let message = answer(&[
        delta(json!({"content": "Yes", "annotations": []})),
        delta(json!({"content": ".", "annotations": [cited, null, 5]})),
        delta(json!({"annotations": [cited, file]})),
        finish("stop"),
        json!("[DONE]"),
    ])
    .unwrap()
    .message;
    let item = ProviderItem::new("chat_completions", json!({"annotations": [cited, file]}));
    assert_eq!(message.content[1..], [Content::from(item)]);
    let request = Request::new(History::from_iter([message]));
    let sent = |chat: &ChatCompletions| encode(chat, &request)["messages"][0].clone();
    let plain = json!({"role": "assistant", "content": "Yes."});
    assert_eq!(sent(&ChatCompletions::default()), plain);
    let kept = sent(&ChatCompletions::default().with_reasoning(ReasoningReturn::Details));
    assert_eq!(kept["annotations"], json!([cited, file]));
}

#[test]
fn decode_endless_annotations_are_an_error() {
    let events: Vec<Value> =
        (0..600).map(|n| delta(json!({"annotations": [{"type": "url_citation", "n": n}]}))).collect();
    assert_eq!(answer(&events).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_images_of_an_answer_are_attachments_that_later_requests_only_mention() {
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let pieces = [image("data:image/webp;base64,AQID"), image("https://a.test/b.png"), json!({"odd": 1})];
    let whole = json!({"id": "c", "choices": [{"message": {"role": "assistant", "content": "Here.", "images": pieces},
        "finish_reason": "stop"}]});
    let streamed = [
        delta(json!({"content": "Here."})),
        delta(json!({"content": "", "images": pieces})),
        finish("stop"),
        json!("[DONE]"),
    ];
    let mut parts = vec![json!({"type": "text", "text": "Here."})];
    parts.extend(pieces);
    let in_content = [delta(json!({"content": parts})), finish("stop"), json!("[DONE]")];
    for events in [&streamed[..], &[whole], &in_content] {
        let folded = answer(events).unwrap();
        let attachments: Vec<&Attachment> = folded
            .message
            .content
            .iter()
            .filter_map(|block| match block {
                Content::Attachment(attachment) => Some(attachment),
                _ => None,
            })
            .collect();
        let url = Attachment::url("image/png", "https://a.test/b.png");
        assert_eq!(attachments, [&Attachment::base64("image/webp", "AQID"), &url]);
        let history = History::from_iter([Message::user("Draw."), folded.message, Message::user("Thanks.")]);
        let body = encode(&ChatCompletions::default(), &Request::new(history));
        let said = body["messages"][1]["content"].as_str().unwrap();
        assert!(said.starts_with("Here.") && said.contains("image/webp") && !said.contains("AQID"), "{said}");
    }
}

#[test]
fn decode_reasoning_in_an_object_keeps_its_text() {
    let reasoning = |text: &str| delta(json!({"reasoning_content": {"text": text, "signature": ""}}));
    let events = [reasoning("Hm"), reasoning("."), delta(json!({"content": "Hi"})), finish("stop")];
    let folded = answer(&events).unwrap();
    let Content::Thinking(thinking) = &folded.message.content[0] else { panic!("{folded:?}") };
    assert_eq!((thinking.text.as_str(), folded.message.text().as_str()), ("Hm.", "Hi"));
}

#[test]
fn decode_audio_of_an_answer_keeps_the_transcript_and_warns_once() {
    let folded = answer(&[
        delta(json!({"audio": {"id": "audio_1", "transcript": "Hel"}})),
        delta(json!({"audio": {"data": "AQID"}})),
        delta(json!({"audio": {"transcript": "lo"}})),
        delta(json!({"audio": {"data": "BAUG", "expires_at": 1}})),
        finish("stop"),
        json!("[DONE]"),
    ])
    .unwrap();
    assert_eq!(folded.message.text(), "Hello");
    assert_eq!(folded.warnings.len(), 1, "{:?}", folded.warnings);
    assert!(folded.warnings[0].contains("audio"), "{:?}", folded.warnings);
}

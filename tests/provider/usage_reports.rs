//! Usage that is unreadable or missing. It causes a warning, and the answer is kept.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::message::Usage;

use crate::wires::Wire;

/// Returns the body of the answer "Hello" with this usage.
fn body(wire: Wire, usage: &str) -> String {
    let event = match wire {
        Wire::Chat => format!(r#"{{"id":"c","choices":[],"usage":{usage}}}"#),
        Wire::Gemini => format!(r#"{{"candidates":[{{"finishReason":"STOP"}}],"usageMetadata":{usage}}}"#),
        _ => {
            let members = usage.trim_matches(['{', '}']);
            format!(r#"{{"message":{{"content":""}},"done":true,"done_reason":"stop",{members}}}"#)
        }
    };
    let mut events = [wire.begin(), wire.text(&["Hello"])].concat();
    match wire {
        Wire::Chat => events.extend([wire.end().remove(0), event, "[DONE]".to_owned()]),
        _ => events.push(event),
    }
    events.iter().map(|event| wire.frame(event)).collect()
}

fn warning(member: &str) -> Vec<String> {
    vec![format!(
        "usage is incomplete: the service reports `{member}` in a form that cannot be read as a number"
    )]
}

#[tokio::test]
async fn usage_that_is_not_an_object_gives_a_warning() {
    for (wire, member) in [(Wire::Chat, "usage"), (Wire::Gemini, "usageMetadata")] {
        for usage in [r#""n/a""#, "17", "-1", "2.5", "true", "[]", "[1,{}]"] {
            let answer = wire.answer(&body(wire, usage)).await.unwrap();
            assert_eq!((answer.message.text(), answer.usage), ("Hello".to_owned(), Usage::default()));
            assert_eq!(answer.warnings, warning(member), "{wire:?} {usage}");
        }
    }
}

#[tokio::test]
async fn count_that_is_not_a_number_gives_a_warning_and_keeps_the_others() {
    for (wire, input, output, member) in [
        (Wire::Chat, "prompt_tokens", "completion_tokens", "usage.prompt_tokens"),
        (Wire::Gemini, "promptTokenCount", "candidatesTokenCount", "usageMetadata.promptTokenCount"),
        (Wire::Ollama, "prompt_eval_count", "eval_count", "prompt_eval_count"),
    ] {
        for bad in [r#""n/a""#, "-1", "2.5", "true", "[]", "{}", "1e30"] {
            let usage = format!(r#"{{"{input}":{bad},"{output}":7}}"#);
            let answer = wire.answer(&body(wire, &usage)).await.unwrap();
            assert_eq!(answer.usage, Usage::default().with_output(7), "{wire:?} {bad}");
            assert_eq!(answer.warnings, warning(member), "{wire:?} {bad}");
        }
        for (odd, number) in [("3.0", 3), (r#""3""#, 3), ("null", 0)] {
            let usage = format!(r#"{{"{input}":{odd},"{output}":7}}"#);
            let answer = wire.answer(&body(wire, &usage)).await.unwrap();
            assert_eq!(answer.usage, Usage::default().with_input(number).with_output(7), "{wire:?} {odd}");
            assert_eq!(answer.warnings, [""; 0], "{wire:?} {odd}");
        }
    }
}

#[tokio::test]
async fn unreadable_details_of_usage_keep_the_rest() {
    for (details, member) in [
        (r#""prompt_tokens_details":"n/a""#, "usage.prompt_tokens_details"),
        (r#""completion_tokens_details":[]"#, "usage.completion_tokens_details"),
        (r#""prompt_tokens_details":{"cached_tokens":-1}"#, "usage.prompt_tokens_details.cached_tokens"),
        (r#""cost":"free""#, "usage.cost"),
        (r#""cost":-1.5"#, "usage.cost"),
    ] {
        let usage = format!(r#"{{"prompt_tokens":3,"completion_tokens":7,{details}}}"#);
        let answer = Wire::Chat.answer(&body(Wire::Chat, &usage)).await.unwrap();
        assert_eq!(answer.usage, Usage::default().with_input(3).with_output(7), "{details}");
        assert_eq!(answer.warnings, warning(member), "{details}");
    }
}

#[tokio::test]
async fn cost_in_the_form_of_another_service_is_read() {
    for (cost, expected) in [
        (r#""cost":{"input_tokens_cost":0.001,"request_cost":0.006,"total_cost":0.008}"#, 0.008),
        (r#""cost_in_usd_ticks":2709000"#, 0.000_270_9),
    ] {
        let usage = format!(r#"{{"prompt_tokens":7,"completion_tokens":149,{cost}}}"#);
        let answer = Wire::Chat.answer(&body(Wire::Chat, &usage)).await.unwrap();
        assert_eq!(answer.usage, Usage::default().with_input(7).with_output(149).with_cost(expected));
        assert_eq!(answer.warnings, [""; 0], "{cost}");
    }
}

#[tokio::test]
async fn cache_writes_under_the_names_of_gateways_are_read() {
    for name in ["cache_creation_tokens", "cached_creation_tokens"] {
        let usage =
            format!(r#"{{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{{"{name}":5}}}}"#);
        let answer = Wire::Chat.answer(&body(Wire::Chat, &usage)).await.unwrap();
        assert_eq!(answer.usage, Usage::default().with_input(2).with_cache_write(5).with_output(1), "{name}");
    }
}

const UNKNOWN: &str = "usage is unknown: the stream ended before the service reported it";

#[tokio::test]
async fn chat_stream_cut_before_its_usage_gives_a_warning() {
    let wire = Wire::Chat;
    let [finish, usage, done] = wire.end().try_into().unwrap();
    let text = wire.text(&["Hello"]).remove(0);
    for (end, warnings) in [
        (vec![], vec![UNKNOWN]),
        (vec![&usage], vec![]),
        (vec![&usage, &done], vec![]),
        // If `[DONE]` arrives without usage, the service does not report usage. The stream was not cut off, so there is
        // no warning.
        (vec![&done], vec![]),
    ] {
        let events = [vec![&text, &finish], end].concat();
        let body: String = events.iter().map(|event| wire.frame(event)).collect();
        let answer = wire.answer(&body).await.unwrap();
        assert_eq!(
            (answer.message.text(), answer.warnings),
            ("Hello".to_owned(), warnings.into_iter().map(ToOwned::to_owned).collect())
        );
    }
    // Two further cases: a stream that ends within the usage chunk, and an answer that was not streamed.
    let cut = [wire.frame(&text), wire.frame(&finish), format!("event: x\ndata: {}", &usage[..9])].concat();
    assert_eq!(wire.answer(&cut).await.unwrap_err().kind, omni_agent::provider::ProviderErrorKind::Truncated);
    let whole = r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#;
    assert_eq!(wire.answer(whole).await.unwrap().warnings, [""; 0]);
}

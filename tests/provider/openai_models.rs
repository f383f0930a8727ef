//! Options that depend on the model at OpenAI. Some models require an option that other models reject.

use omni_agent::{
    provider::{
        CacheHint, Effort, Options, ProviderErrorKind, Request, ThinkingMode,
        custom::{ChatCompletions, Dialect, EffortWords, OpenAiResponses, ThinkingField},
    },
    tool::ToolSet,
};
use serde_json::{Value, json};

use crate::anthropic::tools;

fn request(model: &str, options: Options) -> Request {
    let mut request = Request::prompt("Hi").with_options(options);
    request.model = model.into();
    request
}

fn look() -> ToolSet {
    tools(&[("look", "Looks.", json!({"type": "object", "properties": {}}))])
}

/// Returns the body of the request. Also returns, for each warning, the option that the warning names.
fn said(format: &dyn Dialect, request: &Request) -> (Value, Vec<String>) {
    let encoded = format.encode(request).unwrap();
    let about = encoded.warnings.iter().map(|text| text.split('`').nth(1).unwrap_or_default().to_owned());
    let about = about.collect();
    (Value::Object(encoded.body), about)
}

const LEVELS: [(ThinkingMode, &str); 6] = [
    (ThinkingMode::Off, "none"),
    (ThinkingMode::Effort(Effort::Minimal), "minimal"),
    (ThinkingMode::Effort(Effort::Low), "low"),
    (ThinkingMode::Effort(Effort::Medium), "medium"),
    (ThinkingMode::Effort(Effort::High), "high"),
    (ThinkingMode::Effort(Effort::Max), "max"),
];

const CAN_REST: [&str; 6] = ["none", "low", "low", "medium", "high", "max"];
const NEVER_RESTS: [&str; 6] = ["", "low", "low", "medium", "high", "max"];

/// The effort that is sent for each level in the Responses format, for models that support `max`.
const LATER: [(&str, [&str; 6]); 13] = [
    ("gpt-5.6", CAN_REST),
    ("gpt-5.6-sol", CAN_REST),
    ("gpt-5.10", CAN_REST),
    ("gpt-6-sol-2026-09-17", CAN_REST),
    ("openai/gpt-6-luna", CAN_REST),
    ("gpt-6.1-terra", CAN_REST),
    ("gpt-6-astra", NEVER_RESTS),
    ("gpt-6.1-sol", NEVER_RESTS),
    ("gpt-6.2-astra", NEVER_RESTS),
    ("gpt-6.2-sol", NEVER_RESTS),
    // For unknown models, only options that the strictest known model accepts are sent.
    ("gpt-6-nova", NEVER_RESTS),
    ("gpt-7", NEVER_RESTS),
    ("ft:gpt-50.1-mini:acme", NEVER_RESTS),
];

#[test]
fn encode_thinking_for_later_models_maps_to_their_efforts() {
    for (model, words) in LATER {
        for ((mode, wanted), word) in LEVELS.into_iter().zip(words) {
            let request = request(model, Options::default().with_thinking(mode));
            let (body, warnings) = said(&OpenAiResponses::openai(), &request);
            assert_eq!(body["reasoning"]["effort"].as_str().unwrap_or_default(), word, "{model} {mode:?}");
            assert_eq!(warnings.is_empty(), word == wanted, "{model} {mode:?}: {warnings:?}");
            // Chat Completions has no effort `max`, so `xhigh` is expected instead.
            let word = if word == "max" { "xhigh" } else { word };
            let (body, warnings) = said(&ChatCompletions::openai(), &request);
            assert_eq!(body["reasoning_effort"].as_str().unwrap_or_default(), word, "{model} {mode:?}");
            assert_eq!(warnings.is_empty(), word == wanted, "{model} {mode:?}: {warnings:?}");
        }
    }
    let request = request("o5-mini", Options::default().with_thinking(Effort::Max));
    assert_eq!(said(&OpenAiResponses::openai(), &request).0["reasoning"]["effort"], "high");
}

#[test]
fn encode_sampling_for_later_models_is_sent_only_without_reasoning() {
    let low = || Options::default().with_temperature(0.2);
    let formats: [&dyn Dialect; 2] = [&ChatCompletions::openai(), &OpenAiResponses::openai()];
    for (model, options, sent) in [
        ("gpt-5.4", low(), true),
        ("gpt-5.5", low(), false),
        ("gpt-5.5", low().with_thinking(ThinkingMode::Off), true),
        ("gpt-5.6-terra", low(), false),
        ("gpt-6-luna", low(), false),
        ("gpt-6-luna", low().with_thinking(ThinkingMode::Off), true),
        ("gpt-6-luna", low().with_thinking(Effort::Low), false),
        ("gpt-6-astra", low(), false),
        ("gpt-8", low(), false),
        ("gpt-2", low(), true),
        ("gpt-1", low(), true),
    ] {
        for format in formats {
            let (body, warnings) = said(format, &request(model, options.clone()));
            assert_eq!(body.get("temperature").is_some(), sent, "{} {model}", format.name());
            assert_eq!(warnings.is_empty(), sent, "{} {model}: {warnings:?}", format.name());
        }
    }
}

/// Returns the expected body of a request with a tool. The body also contains the members of `more`.
fn body(model: &str, more: &Value) -> Value {
    let function =
        json!({"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}});
    let mut body = json!({
        "model": model,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": function}],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn encode_tools_in_chat_are_sent_to_later_models_without_reasoning() {
    let unasked = Options::default;
    let off = || unasked().with_thinking(ThinkingMode::Off);
    let high = || unasked().with_thinking(Effort::High);
    let none = json!({"reasoning_effort": "none"});
    for (model, options, more, warned) in [
        ("gpt-5.1", high(), json!({"reasoning_effort": "high"}), 0),
        // This model rejects any effort together with tools. If no effort is sent, it does not reason.
        ("gpt-5.4", unasked(), json!({}), 0),
        ("gpt-5.4-mini", off(), json!({}), 0),
        ("gpt-5.4", high(), json!({}), 1),
        ("gpt-5.5", unasked(), none.clone(), 1),
        ("gpt-5.6-sol", high(), none.clone(), 1),
        ("gpt-5.6-sol", off(), none.clone(), 0),
        ("gpt-6-luna", high(), none.clone(), 1),
        (
            "gpt-6-luna",
            off().with_temperature(0.5),
            json!({"reasoning_effort": "none", "temperature": 0.5}),
            0,
        ),
    ] {
        let encoded = ChatCompletions::openai().encode(&request(model, options).with_tools(look())).unwrap();
        assert_eq!(Value::Object(encoded.body), body(model, &more), "{model}");
        assert_eq!(encoded.warnings.len(), warned, "{model}: {:?}", encoded.warnings);
        assert!(encoded.warnings.iter().all(|text| text.contains("`openai_responses`")));
    }
}

#[test]
fn encode_tools_in_chat_for_a_model_that_always_reasons_is_an_error_that_names_the_other_format() {
    let chat = ChatCompletions::openai();
    for model in ["gpt-6-astra", "gpt-6.1-sol", "gpt-6.2-astra", "gpt-5.5-pro", "gpt-7"] {
        let plain = request(model, Options::default());
        assert!(chat.encode(&plain).is_ok(), "{model}");
        let error = chat.encode(&plain.with_tools(look())).unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Unsupported);
        assert!(error.message.contains(model) && error.message.contains("`openai_responses`"), "{error}");
        let responses = request(model, Options::default()).with_tools(look());
        assert!(OpenAiResponses::openai().encode(&responses).unwrap().warnings.is_empty());
    }
}

#[test]
fn encode_tools_for_other_services_are_sent_with_any_effort() {
    let words = ThinkingField::Effort(EffortWords::OPENAI);
    for model in ["gpt-5.4", "openai/gpt-5.6-sol", "gpt-6-astra"] {
        let request = request(model, Options::default().with_thinking(Effort::Low)).with_tools(look());
        let (body, warnings) = said(&ChatCompletions::default().with_thinking(words), &request);
        assert_eq!((&body["reasoning_effort"], warnings.len()), (&json!("low"), 0), "{model}");
        assert!(body["tools"].is_array());
    }
}

#[test]
fn encode_long_cache_is_sent_only_to_models_that_support_it() {
    let long = || Options::default().with_cache(CacheHint::Long);
    let formats: [&dyn Dialect; 2] = [&ChatCompletions::openai(), &OpenAiResponses::openai()];
    for (model, sent) in [
        ("gpt-4.1", true),
        ("gpt-4.1-2025-04-14", true),
        ("openai/gpt-5.1", true),
        ("gpt-5.1-codex-max", true),
        ("gpt-5.5-pro-2026-04-23", true),
        ("new-model", true),
        ("gpt-4o", false),
        ("gpt-4.1-mini", false),
        ("gpt-5-mini", false),
        ("gpt-5-2025-x", false),
        ("o3", false),
        ("gpt-5.6-sol", false),
        ("gpt-6-luna", false),
    ] {
        for format in formats {
            let (body, warnings) = said(format, &request(model, long()));
            assert_eq!(body.get("prompt_cache_retention").is_some(), sent, "{} {model}", format.name());
            assert_eq!(warnings, if sent { vec![] } else { vec!["cache"] }, "{} {model}", format.name());
        }
    }
}

#[test]
fn encode_stop_sequences_are_omitted_if_the_model_rejects_them() {
    let stop = || Options::default().with_stop_sequences(["END"]);
    for (model, sent) in [
        ("gpt-4o", true),
        ("new-model", true),
        ("gpt-5.5", true),
        ("gpt-5.6-sol", true),
        ("o3", false),
        ("o4-mini", false),
        ("gpt-5-nano", false),
        ("gpt-5.4", false),
        ("gpt-6-astra", false),
    ] {
        let (body, warnings) = said(&ChatCompletions::openai(), &request(model, stop()));
        assert_eq!(body.get("stop"), sent.then(|| json!(["END"])).as_ref(), "{model}");
        assert_eq!(warnings, if sent { vec![] } else { vec!["stop_sequences"] }, "{model}");
    }
    let (_, warnings) =
        said(&ChatCompletions::openai(), &request("o3", Options::default().with_stop_sequences([""])));
    assert!(warnings.is_empty(), "{warnings:?}");
}

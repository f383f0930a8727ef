#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message, ProviderItem, Text, Thinking, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, Options, OutputSchema, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        UnsupportedAttachment,
        custom::{Dialect, EffortWords, OpenAiResponses, OutputSupport, ReasoningItems},
    },
    tool::{Schema, ToolSet},
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    responses::{answer, completed, encode, input},
};

fn with(options: Options) -> Request {
    let mut request = Request::prompt("Hi").with_options(options);
    request.model = "gpt-5".into();
    request
}

fn warnings(format: &OpenAiResponses, options: Options) -> Vec<String> {
    format.encode(&with(options)).unwrap().warnings
}

fn plain(messages: impl IntoIterator<Item = Message>) -> Value {
    input(&OpenAiResponses::default(), messages)
}

fn weather() -> ToolSet {
    tools(&[(
        "weather",
        "Tells the weather.",
        json!({"type": "object", "properties": {"city": {"type": "string"}}}),
    )])
}

fn schema() -> OutputSchema {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    OutputSchema::new("my answer!", Schema::new(schema).unwrap())
}

#[test]
fn encode_request_with_everything_sends_every_option() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_thinking(Effort::Medium)
        .with_tool_choice(ToolChoice::Required)
        .with_output(schema())
        .with_cache(CacheHint::Long)
        .with_metadata([("user", json!("u-1")), ("n", json!(7))]);
    let mut request = with(options).with_system("Be brief.").with_tools(weather());
    request.model = "new-model".into();
    let mut encoded = OpenAiResponses::openai().encode(&request).unwrap();
    let key = encoded.body.shift_remove("prompt_cache_key").unwrap();
    assert!(key.as_str().is_some_and(|key| key.starts_with("openai_responses_") && key.len() <= 64), "{key}");
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "model": "new-model",
            "instructions": "Be brief.",
            "input": [{"type": "message", "role": "user", "content": "Hi"}],
            "stream": true,
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", "name": "weather", "description": "Tells the weather.", "strict": false,
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}],
            "tool_choice": "required",
            "max_output_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "my_answer_", "strict": true,
                "schema": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "required": ["x"],
                    "additionalProperties": false}}},
            "metadata": {"user": "u-1", "n": "7"},
            "prompt_cache_retention": "24h",
        })
    );
    assert!(encoded.warnings.is_empty(), "{:?}", encoded.warnings);
}

#[test]
fn encode_request_with_nothing_sends_only_what_is_required() {
    assert_eq!(
        encode(&OpenAiResponses::default(), &with(Options::default()).with_system(" ")),
        json!({"model": "gpt-5", "input": [{"type": "message", "role": "user", "content": "Hi"}], "stream": true,
            "store": false, "include": ["reasoning.encrypted_content"]})
    );
}

#[test]
fn encode_reasoning_options_for_a_model_without_reasoning_are_omitted() {
    for model in [
        "gpt-4o",
        "gpt-4.1-mini",
        "openai/gpt-4o",
        "ft:gpt-4o:acme::1",
        "chatgpt-4o-latest",
        "gpt-5-chat-latest",
    ] {
        let mut request = with(Options::default().with_thinking(Effort::High));
        request.model = model.into();
        let encoded = OpenAiResponses::openai().encode(&request).unwrap();
        assert_eq!((encoded.body.get("include"), encoded.body.get("reasoning")), (None, None), "{model}");
        assert_eq!(encoded.warnings.len(), 1);
        request.options = Options::default().with_thinking(ThinkingMode::Off);
        assert!(OpenAiResponses::openai().encode(&request).unwrap().warnings.is_empty());
    }
}

/// Returns the `reasoning` that is sent to a model, and the number of warnings.
fn effort(format: &OpenAiResponses, model: &str, mode: impl Into<ThinkingMode>) -> (Value, usize) {
    let mut request = with(Options::default().with_thinking(mode));
    request.model = model.into();
    let encoded = format.encode(&request).unwrap();
    (encoded.body.get("reasoning").cloned().unwrap_or_default(), encoded.warnings.len())
}

#[test]
fn encode_thinking_maps_to_the_efforts_of_the_service() {
    let said = |format: &OpenAiResponses, mode: ThinkingMode| effort(format, "new-model", mode);
    let openai = OpenAiResponses::openai();
    let common = OpenAiResponses::default();
    assert_eq!(said(&openai, ThinkingMode::Off), (json!({"effort": "none"}), 0));
    assert_eq!(said(&openai, Effort::Minimal.into()), (json!({"effort": "minimal", "summary": "auto"}), 0));
    assert_eq!(said(&openai, Effort::Max.into()), (json!({"effort": "xhigh", "summary": "auto"}), 0));
    assert_eq!(said(&openai, ThinkingMode::Budget(5000)), (json!({"effort": "low", "summary": "auto"}), 1));
    assert_eq!(said(&common, Effort::Max.into()), (json!({"effort": "high"}), 1));
    assert_eq!(said(&common, ThinkingMode::Budget(0)), (json!({"effort": "none"}), 0));
    assert_eq!(said(&common.clone().with_effort(None), Effort::High.into()), (Value::Null, 1));
    let always = EffortWords::COMMON.with_off(None);
    assert_eq!(said(&common.with_effort(Some(always)), ThinkingMode::Off), (Value::Null, 1));
}

#[test]
fn encode_thinking_maps_to_the_efforts_of_the_model() {
    for (model, words) in OPENAI_WORDS {
        let modes = [
            ThinkingMode::Off,
            Effort::Minimal.into(),
            Effort::Low.into(),
            Effort::Medium.into(),
            Effort::High.into(),
            Effort::Max.into(),
        ];
        let wanted = ["none", "minimal", "low", "medium", "high", "xhigh"];
        for ((mode, word), wanted) in modes.into_iter().zip(words).zip(wanted) {
            let (said, warnings) = effort(&OpenAiResponses::openai(), model, mode);
            assert_eq!(said["effort"].as_str().unwrap_or_default(), word, "{model} {mode:?}");
            assert_eq!(warnings == 0, word == wanted, "{model} {mode:?}");
        }
    }
}

/// The efforts that are sent to OpenAI's models for all levels, from off to the maximum. An empty text means that no
/// effort is sent.
pub(crate) const OPENAI_WORDS: [(&str, [&str; 6]); 15] = [
    ("o3", ["", "low", "low", "medium", "high", "high"]),
    ("openai/o4-mini-2025-04-16", ["", "low", "low", "medium", "high", "high"]),
    ("gpt-5", ["", "minimal", "low", "medium", "high", "high"]),
    ("gpt-5-mini-2025-08-07", ["", "minimal", "low", "medium", "high", "high"]),
    ("gpt-5-codex", ["", "low", "low", "medium", "high", "high"]),
    ("gpt-5-pro-2025-10-06", ["", "high", "high", "high", "high", "high"]),
    ("gpt-5.1", ["none", "low", "low", "medium", "high", "high"]),
    ("gpt-5.1-codex", ["", "low", "low", "medium", "high", "high"]),
    ("gpt-5.1-codex-max", ["", "low", "low", "medium", "high", "xhigh"]),
    ("gpt-5.2-2025-12-11", ["none", "low", "low", "medium", "high", "xhigh"]),
    ("gpt-5.2-pro", ["", "medium", "medium", "medium", "high", "xhigh"]),
    ("gpt-5.3-codex", ["", "low", "low", "medium", "high", "xhigh"]),
    ("gpt-5.5", ["none", "low", "low", "medium", "high", "xhigh"]),
    ("gpt-oss-120b", ["none", "minimal", "low", "medium", "high", "xhigh"]),
    ("other1", ["none", "minimal", "low", "medium", "high", "xhigh"]),
];

#[test]
fn encode_sampling_is_omitted_if_the_model_rejects_it() {
    let low = || Options::default().with_temperature(0.2).with_top_p(0.9);
    for (model, options, sent) in [
        ("o3-mini", low(), false),
        ("gpt-5-nano", low(), false),
        ("gpt-5.1", low(), true),
        ("gpt-5.1", low().with_thinking(ThinkingMode::Off), true),
        ("gpt-5.1", low().with_thinking(Effort::Low), false),
        ("gpt-5.1-codex", low(), false),
        ("gpt-4o", low().with_thinking(ThinkingMode::Off), true),
        ("gpt-5-chat-latest", low(), true),
        ("local-model", low().with_thinking(Effort::Low), true),
        ("o3", Options::default().with_temperature(1.0).with_top_p(1.0), true),
    ] {
        let mut request = with(options);
        request.model = model.into();
        let encoded = OpenAiResponses::openai().encode(&request).unwrap();
        for key in ["temperature", "top_p"] {
            assert_eq!(encoded.body.contains_key(key), sent, "{model}");
        }
        assert_eq!(encoded.warnings.len(), if sent { 0 } else { 2 }, "{model}");
    }
}

#[test]
fn encode_options_without_an_equivalent_are_reported() {
    let openai = OpenAiResponses::openai();
    let report = |options: Options| warnings(&openai, options).join("; ");
    let long = Options::default().with_cache(CacheHint::Long);
    assert!(warnings(&OpenAiResponses::default(), long.clone()).join("; ").starts_with("`cache`"));
    assert_eq!(report(long), "");
    let only_said =
        warnings(&openai.clone().with_output(OutputSupport::None), Options::default().with_output(schema()));
    assert!(only_said.join("; ").starts_with("`output`"), "{only_said:?}");
    assert!(report(Options::default().with_stop_sequences(["END"])).starts_with("`stop_sequences`"));
    assert_eq!(report(Options::default().with_stop_sequences([""])), "");
    assert!(report(Options::default().with_temperature(f64::NAN)).starts_with("`temperature`"));
    assert!(report(Options::default().with_tool_choice(ToolChoice::Required)).starts_with("`tool_choice`"));
    assert_eq!(report(Options::default().with_tool_choice(ToolChoice::None)), "");

    let few = Options::default().with_max_tokens(3);
    assert_eq!(encode(&openai, &with(few.clone()))["max_output_tokens"], 16);
    assert!(report(few.clone()).contains("from 3 to 16"));
    assert_eq!(encode(&OpenAiResponses::default(), &with(few))["max_output_tokens"], 3);
}

#[test]
fn encode_metadata_above_the_limits_is_omitted_and_reported() {
    let options = Options::default().with_metadata((0..20).map(|n| (format!("k{n}"), n)));
    let body = encode(&OpenAiResponses::default(), &with(options.clone()));
    assert_eq!(body["metadata"].as_object().map(serde_json::Map::len), Some(16));
    assert!(warnings(&OpenAiResponses::default(), options.clone())[0].contains("by 4 labels"));
    let without = OpenAiResponses::default().without_metadata();
    assert_eq!(encode(&without, &with(options.clone())).get("metadata"), None);
    assert_eq!(warnings(&without, options).len(), 1);

    let long = Options::default().with_metadata([
        ("a".to_owned(), "é".repeat(512)),
        ("b".to_owned(), "é".repeat(513)),
        ("é".repeat(65), "x".to_owned()),
    ]);
    let body = encode(&OpenAiResponses::default(), &with(long));
    assert_eq!(body["metadata"].as_object().unwrap().keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn encode_instructions_come_first_for_models_that_place_them_behind_the_input() {
    let options = || Options::default().with_cache(CacheHint::Short);
    let sent = |model: &str, prompt: &str| {
        let mut request = Request::prompt(prompt).with_options(options()).with_system("Be brief.");
        request.model = model.into();
        encode(&OpenAiResponses::openai(), &request)
    };
    let first = json!({"type": "message", "role": "developer", "content": "Be brief."});
    for model in
        ["gpt-6.2", "gpt-6.2-luna", "openai/gpt-6.2-sol-2026-11-17", "gpt-6.3-pro", "gpt-7", "gpt-7-luna"]
    {
        let body = sent(model, "Hi");
        assert_eq!((body.get("instructions"), &body["input"][0]), (None, &first), "{model}");
        assert_eq!(body["input"][1]["content"], "Hi");
        assert_ne!(body["prompt_cache_key"], sent(model, "Hello")["prompt_cache_key"], "{model}");
    }
    for model in ["gpt-6.1", "gpt-6-luna", "gpt-5", "new-model"] {
        let body = sent(model, "Hi");
        assert_eq!(
            (&body["instructions"], &body["input"][0]["role"]),
            (&json!("Be brief."), &json!("user")),
            "{model}"
        );
    }
    let mut bare = Request::prompt("Hi");
    bare.model = "gpt-6.2".into();
    assert_eq!(encode(&OpenAiResponses::openai(), &bare)["input"].as_array().unwrap().len(), 1);
}

#[test]
fn encode_cache_key_is_stable_within_a_conversation() {
    let openai = OpenAiResponses::openai();
    let key = |system: &str, messages: Vec<Message>| {
        let request = Request::new(History::from_iter(messages))
            .with_system(system.to_owned())
            .with_options(Options::default().with_cache(CacheHint::Short));
        let body = encode(&openai, &request);
        assert_eq!(body.get("prompt_cache_retention"), None);
        body["prompt_cache_key"].clone()
    };
    let first = key("s", vec![Message::user("a")]);
    assert_eq!(first, key("s", vec![Message::user("a"), Message::assistant("b"), Message::user("c")]));
    assert_ne!(first, key("s", vec![Message::user("b")]));
    assert_ne!(first, key("t", vec![Message::user("a")]));
    assert!(key("", vec![]).is_string());

    let unsaid = with(Options::default().with_cache(CacheHint::Long));
    let body = encode(&OpenAiResponses::default(), &unsaid);
    assert_eq!((body.get("prompt_cache_key"), body.get("prompt_cache_retention")), (None, None));
}

#[test]
fn encode_tool_choice_has_a_form_for_each_variant() {
    for (choice, expected) in [
        (ToolChoice::Auto, json!("auto")),
        (ToolChoice::None, json!("none")),
        (ToolChoice::Required, json!("required")),
        (ToolChoice::Tool("weather".to_owned()), json!({"type": "function", "name": "weather"})),
    ] {
        let request = with(Options::default().with_tool_choice(choice)).with_tools(weather());
        assert_eq!(encode(&OpenAiResponses::default(), &request)["tool_choice"], expected);
    }
}

#[test]
fn encode_output_schema_has_the_form_of_the_service() {
    let format = |format: &OpenAiResponses, output: OutputSchema| {
        let encoded =
            format.encode(&with(Options::default().with_output(output)).with_system("Be brief.")).unwrap();
        (encoded.body["text"]["format"].clone(), encoded.body["instructions"].clone(), encoded.warnings.len())
    };
    let as_is = json!({"type": "json_schema", "name": "my_answer_", "strict": false,
        "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}});
    let schema_only = OpenAiResponses::default().with_output(OutputSupport::Schema);
    assert_eq!(format(&schema_only, schema()), (as_is, json!("Be brief."), 0));

    let beyond = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    let beyond = OutputSchema::new("", Schema::new(beyond).unwrap());
    let (said, _, warned) = format(&OpenAiResponses::default(), beyond.clone());
    assert_eq!(
        said,
        json!({"type": "json_schema", "name": "output", "strict": false, "schema": beyond.schema.as_value()})
    );
    assert_eq!(warned, 1);

    let (said, system, _) = format(&OpenAiResponses::default().with_output(OutputSupport::Object), schema());
    assert_eq!(said, json!({"type": "json_object"}));
    assert!(system.as_str().is_some_and(
        |text| text.starts_with("Be brief.\n\nAnswer with one JSON") && text.contains("integer")
    ));
}

#[test]
fn encode_user_content_with_one_text_is_a_string() {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    assert_eq!(
        plain([
            Message::user([Text::new("a"), Text::new(" ")]),
            Message::user([Text::new("a"), Text::new("b")])
        ]),
        json!([{"type": "message", "role": "user", "content": "a"},
            {"type": "message", "role": "user", "content": [text("a"), text("b")]}])
    );
    let files = plain([Message::user([
        Content::from("Look:"),
        Attachment::base64("image/PNG", "AAAA").into(),
        Attachment::url("image/jpeg", "https://example.com/x.jpg").into(),
        Attachment::base64("application/pdf", "BBBB").named("paper.pdf").into(),
        Attachment::base64("application/pdf", "CCCC").named(" ").into(),
        Attachment::url("application/pdf", "https://example.com/x.pdf").named("x.pdf").into(),
        Attachment::base64("text/markdown; charset=utf-8", "DDDD").into(),
    ])]);
    assert_eq!(
        files[0]["content"],
        json!([
            text("Look:"),
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
            {"type": "input_image", "image_url": "https://example.com/x.jpg", "detail": "auto"},
            {"type": "input_file", "filename": "paper.pdf", "file_data": "data:application/pdf;base64,BBBB"},
            {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,CCCC"},
            {"type": "input_file", "file_url": "https://example.com/x.pdf"},
            {"type": "input_file", "filename": "document.txt", "file_data": "data:text/markdown;base64,DDDD"},
        ])
    );
}

#[test]
fn encode_unsupported_file_is_an_error_or_a_placeholder() {
    for (attachment, by_model) in [
        (Attachment::base64("video/mp4", "AAAA").named("clip"), false),
        (Attachment::url("audio/wav", "https://example.com/x.wav"), false),
        (Attachment::base64("image/png", "AAAA"), true),
    ] {
        let message = if by_model { Message::assistant } else { Message::user };
        let request = Request::new(History::from_iter([message(vec![attachment])]));
        let format = OpenAiResponses::default();
        assert_eq!(format.encode(&request).unwrap_err().kind, ProviderErrorKind::Unsupported);
        let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
        let body = encode(&format, &request.with_options(options));
        assert!(body["input"][0]["content"].to_string().contains("[attachment"), "{body}");
    }
}

#[test]
fn encode_tool_results_come_first_and_contain_their_files() {
    let uses = ["a", "b", "c", "d"].map(|id| ToolUse::new(id, "look", json!({"z": 1, "a": [true]})));
    let mut both = ToolResult::ok(&uses[0], "Here:");
    both.content.push(Attachment::base64("image/png", "AAAA").into());
    let results = [
        Content::from(Text::new("Well?")),
        both.into(),
        ToolResult::error(&uses[1], "Error: gone").into(),
        ToolResult::ok(&uses[2], "").with_content(Vec::new()).into(),
        ToolResult::error(&uses[3], "").with_content(Vec::new()).into(),
    ];
    let encoded = plain([Message::assistant(uses.map(Content::from)), Message::user(results)]);
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{\"z\":1,\"a\":[true]}"});
    let output =
        |id: &str, output: Value| json!({"type": "function_call_output", "call_id": id, "output": output});
    assert_eq!(
        encoded,
        json!([
            call("a"), call("b"), call("c"), call("d"),
            output("a", json!([{"type": "input_text", "text": "Here:"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}])),
            output("b", json!("Error: gone")),
            output("c", json!("(no output)")),
            output("d", json!("Error: the tool failed without saying why.")),
            {"type": "message", "role": "user", "content": "Well?"},
        ])
    );
}

#[test]
fn encode_items_in_a_user_message_follow_the_results_unchanged() {
    let approval = json!({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true});
    let asked = json!({"type": "mcp_approval_request", "id": "mcpr_1", "name": "drop", "arguments": "{}"});
    let asked = ProviderItem::new("openai_responses", asked);
    let call = ToolUse::new("call_1", "f", json!({}));
    let result = ToolResult::ok(&call, "ok");
    let encoded = plain([
        Message::assistant([Content::from(asked), call.into()]),
        Message::user([
            Content::from(Text::new("Go on.")),
            ProviderItem::new("openai_responses", approval.clone()).into(),
            ProviderItem::new("google_gemini", json!({"type": "x"})).into(),
            result.into(),
        ]),
    ]);
    assert_eq!(
        encoded.as_array().unwrap()[2..],
        [
            json!({"type": "function_call_output", "call_id": "call_1", "output": "ok"}),
            approval,
            json!({"type": "message", "role": "user", "content": "Go on."}),
        ]
    );
}

#[test]
fn encode_malformed_tool_use_is_sent_back_as_valid_json() {
    let malformed = ToolUse::new("a", "f", json!({})).with_malformed("{\"x\":".to_owned());
    assert_eq!(plain([Message::assistant(Content::from(malformed))])[0]["arguments"], "{}");
}

#[test]
fn encode_ids_are_short_distinct_and_equal_in_call_and_output() {
    let long = "x".repeat(65);
    let history = ["toolu_1", "", &long, "x", "x", &"é".repeat(33)].map(|id| {
        let call = ToolUse::new(id, "f", json!({}));
        let result = ToolResult::ok(&call, "ok");
        [Message::assistant(Content::from(call)), Message::user(Content::from(result))]
    });
    let encoded = plain(history.clone().into_iter().flatten());
    let ids: Vec<&str> =
        encoded.as_array().unwrap().iter().map(|item| item["call_id"].as_str().unwrap()).collect();
    let mut seen = std::collections::HashSet::new();
    for pair in ids.chunks(2) {
        assert_eq!(pair[0], pair[1]);
        assert!(!pair[0].is_empty() && pair[0].len() <= 64 && seen.insert(pair[0]), "{ids:?}");
    }
    assert_eq!((ids[0], ids[6]), ("toolu_1", "x"));
    let kept = ToolUse::new("x".repeat(64), "f", json!({}));
    assert_eq!(plain([Message::assistant(Content::from(kept))])[0]["call_id"], "x".repeat(64));
    // When the conversation grows, the encoding of its first messages does not change.
    let shorter = plain(history.into_iter().take(4).flatten());
    assert_eq!(shorter.as_array().unwrap()[..], encoded.as_array().unwrap()[..8]);
}

#[test]
fn encode_conversation_of_another_format_omits_private_content() {
    let mut message = Message::assistant([
        Content::from(Thinking::new("Hm.").with_signature("c2ln")),
        Text::new("Yes.").with_signature("{\"phase\":\"x\"}".to_owned()).into(),
        ProviderItem::new("anthropic_messages", json!({"type": "server_tool_use"})).into(),
        ToolUse::new("toolu_1", "f", json!({})).with_signature("s").into(),
    ]);
    message.provider_data.insert("anthropic_messages".to_owned(), json!({}));
    let before = message.clone();
    assert_eq!(
        plain([message.clone()]),
        json!([
            {"type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]},
            {"type": "function_call", "call_id": "toolu_1", "name": "f", "arguments": "{}"},
        ])
    );
    assert_eq!(message, before);
}

#[test]
fn encode_messages_without_content_are_omitted() {
    assert_eq!(
        plain([
            Message::user(""),
            Message::user(" \n"),
            Message::assistant(Vec::<Content>::new()),
            Message::assistant([
                Content::from(Thinking::new("hm")),
                " ".into(),
                ProviderItem::new("other", json!({})).into(),
                ProviderItem::new("openai_responses", json!("odd")).into(),
            ]),
        ]),
        json!([])
    );
}

/// Returns an assistant message with this reasoning item. If the text is not empty, the message also contains the text.
fn reasoned(item: Value, text: &str) -> Message {
    let folded = answer(&[completed(json!([item]))]);
    let mut message = folded.message;
    message.content.extend(Message::assistant(text).content);
    message
}

#[test]
fn encode_reasoning_is_sent_back_in_the_form_of_the_service() {
    let encrypted = json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "ZW5j"});
    let readable = json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]});
    let mut both = encrypted.clone();
    both["content"] = json!([{"type": "reasoning_text", "text": "Long."}]);
    let mut stripped = both.clone();
    stripped.as_object_mut().unwrap().shift_remove("encrypted_content");
    for (item, wanted, expected) in [
        (&encrypted, ReasoningItems::All, Some(&encrypted)),
        (&encrypted, ReasoningItems::Encrypted, Some(&encrypted)),
        (&encrypted, ReasoningItems::Readable, None),
        (&readable, ReasoningItems::All, Some(&readable)),
        (&readable, ReasoningItems::Encrypted, None),
        (&readable, ReasoningItems::Readable, Some(&readable)),
        (&both, ReasoningItems::All, Some(&both)),
        (&both, ReasoningItems::Encrypted, Some(&encrypted)),
        (&both, ReasoningItems::Readable, Some(&stripped)),
        (&both, ReasoningItems::Never, None),
    ] {
        let sent =
            input(&OpenAiResponses::default().with_reasoning(wanted), [reasoned(item.clone(), "Yes.")]);
        let items = sent.as_array().unwrap();
        assert_eq!(items.last().unwrap()["type"], "message");
        assert_eq!((items.len() > 1).then(|| &items[0]), expected, "{item} {wanted:?}");
    }
    let never = OpenAiResponses::default().with_reasoning(ReasoningItems::Never);
    assert_eq!(encode(&never, &with(Options::default())).get("include"), None);
}

#[test]
fn encode_ids_that_the_service_refuses_are_omitted_and_their_items_are_kept() {
    let long = "x".repeat(416);
    let kept = |item: &Value| Content::from(ProviderItem::new("openai_responses", item.clone()));
    for (id, is_kept) in
        [("rs_1-A", true), (&long[..64], true), (&long[..65], false), (&long, false), ("a+/=", false)]
    {
        let reasoning = json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "ZW5j"});
        let search =
            json!({"type": "web_search_call", "id": id, "status": "completed", "action": {"type": "search"}});
        let mut message = reasoned(reasoning.clone(), "Yes.");
        message.content.push(kept(&search));
        let sent = plain([message]);
        for (mut item, sent) in [(reasoning, &sent[0]), (search, &sent[2])] {
            if !is_kept {
                item.as_object_mut().unwrap().shift_remove("id");
            }
            assert_eq!(sent, &item);
        }
    }
    // The answer of the application refers to this id.
    let asked = json!({"type": "mcp_approval_request", "id": long, "name": "n", "server_label": "s", "arguments": "{}"});
    let answer = json!({"type": "mcp_approval_response", "approval_request_id": long, "approve": true});
    let sent = plain([Message::assistant([kept(&asked)]), Message::user([kept(&answer)])]);
    assert_eq!(sent, json!([asked, answer]));
}

#[test]
fn encode_reasoning_is_omitted_for_a_model_that_does_not_reason() {
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"});
    for (model, kinds) in [("gpt-4.1", &["message"][..]), ("gpt-5.2", &["reasoning", "message"])] {
        let mut request = Request::new(History::from_iter([reasoned(item.clone(), "Yes.")]));
        request.model = model.into();
        let body = encode(&OpenAiResponses::openai(), &request);
        let sent = body["input"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap());
        assert_eq!(sent.collect::<Vec<_>>(), kinds, "{model}");
        assert_eq!(body.get("include").is_some(), kinds.len() > 1, "{model}");
    }
}

#[test]
fn encode_reasoning_followed_by_nothing_is_omitted() {
    let item = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"});
    let sent = plain([reasoned(item.clone(), ""), Message::user("Well?")]);
    assert_eq!(sent, json!([{"type": "message", "role": "user", "content": "Well?"}]));
    // Texts with reasoning between them stay separate.
    let mut message = Message::assistant("First.");
    message.content.extend(reasoned(item.clone(), "Second.").content);
    let sent = plain([message]);
    assert_eq!((sent.as_array().map(Vec::len), &sent[1]), (Some(3), &item));
}

#[test]
fn encode_generated_image_is_sent_back_without_members_that_requests_reject() {
    let item = |item: &Value| Content::from(ProviderItem::new("openai_responses", item.clone()));
    let image = json!({"id": "ig_1", "type": "image_generation_call", "status": "completed", "action": "generate",
        "background": "opaque", "output_format": "png", "quality": "high", "result": "aW1n", "size": "1024x1024",
        "revised_prompt": "A cat."});
    let sent =
        json!({"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aW1n"});
    assert_eq!(plain([Message::assistant([item(&image)])]), json!([sent]));
    let reasoning = json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "e"});
    let thinking = Content::from(Thinking::new("").with_signature(reasoning.to_string()));
    for result in [Value::Null, json!("")] {
        let mut image = image.clone();
        image["result"] = result;
        // The reasoning before the call is omitted too, because the service rejects it without the call.
        assert_eq!(plain([Message::assistant([thinking.clone(), item(&image)])]), json!([]));
    }
    // Items of other kinds stay unchanged.
    let search =
        json!({"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search"}});
    assert_eq!(plain([Message::assistant([item(&search)])]), json!([search]));
}

#[test]
fn encode_refusal_is_sent_back_as_a_refusal() {
    let item = json!({"id": "msg_1", "type": "message", "content": [
        {"type": "output_text", "text": "Well."}, {"type": "refusal", "refusal": "I can't."}]});
    let message = answer(&[completed(json!([item]))]).message;
    assert_eq!(
        plain([message])[0]["content"],
        json!([{"type": "output_text", "text": "Well.", "annotations": []}, {"type": "refusal", "refusal": "I can't."}])
    );
}

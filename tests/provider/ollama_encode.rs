//! Ollama's chat format: complete requests.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message, ResultBlock, Text, Thinking, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, Options, OutputSchema, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        UnsupportedAttachment,
        custom::{Dialect, Encoded, Framing, OllamaChat},
    },
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::{Value, json};

use crate::ollama::messages;

fn with(options: Options) -> Request {
    let mut request = Request::prompt("Hi").with_options(options);
    request.model = "m-1".into();
    request
}

fn encode(request: &Request) -> Encoded {
    OllamaChat::default().encode(request).unwrap()
}

fn tools() -> ToolSet {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "any": true,
        "deep": {"type": "object", "properties": {"any": true}}}});
    ToolSet::new()
        .with(declared_tool_with_schema("weather", "Tells the weather.", Schema::new(schema).unwrap()))
        .unwrap()
}

fn answer_schema() -> OutputSchema {
    OutputSchema::new("answer", Schema::new(json!({"type": "object"})).unwrap())
}

#[cfg(feature = "http")]
#[test]
fn encode_members_against_a_cut_of_the_conversation_can_be_replaced() {
    let request = with(Options::default().with_extra([("truncate", json!(true))]));
    let endpoint = omni_agent::provider::http::Endpoint::ollama_at("http://localhost");
    let body = endpoint.preview(&request).unwrap().1.body;
    assert_eq!((&body["truncate"], &body["shift"]), (&json!(true), &json!(false)));
}

#[test]
fn encode_request_with_everything_sends_every_option() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_stop_sequences(["END", ""])
        .with_thinking(ThinkingMode::Off)
        .with_tool_choice(ToolChoice::Auto)
        .with_cache(CacheHint::Long);
    let request = with(options).with_system("Be brief.").with_tools(tools());
    let encoded = encode(&request);
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "model": "m-1",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "stream": true,
            "truncate": false,
            "shift": false,
            "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "any": {},
                    "deep": {"type": "object", "properties": {"any": {}}}}}}}],
            "think": false,
            "options": {"num_predict": 100, "temperature": 0.5, "top_p": 0.9, "stop": ["END"]},
            "keep_alive": "1h",
        })
    );
    assert!(encoded.warnings.is_empty(), "{:?}", encoded.warnings);
    assert_eq!(
        (OllamaChat::default().path(&request), OllamaChat::default().framing()),
        ("/chat".to_owned(), Framing::NdJson)
    );
}

#[test]
fn encode_request_with_nothing_sends_only_what_is_required() {
    let encoded = encode(&with(Options::default()));
    assert_eq!(
        Value::Object(encoded.body),
        json!({"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": true, "truncate": false,
            "shift": false})
    );
}

#[test]
fn encode_output_schema_is_the_format_unless_there_are_tools() {
    let options = Options::default().with_output(answer_schema());
    let native = encode(&with(options.clone()));
    assert_eq!((&native.body["format"], native.warnings.len()), (&json!({"type": "object"}), 0));

    let beside = encode(&with(options.clone()).with_system("Be brief.").with_tools(tools()));
    assert_eq!((beside.body.get("format"), beside.warnings.len()), (None, 0));
    let system = beside.body["messages"][0]["content"].as_str().unwrap();
    assert!(system.starts_with("Be brief.\n\n") && system.contains("`answer`"), "{system}");
    let names: Vec<&Value> =
        beside.body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names.last(), Some(&&json!("answer")));

    let unused = encode(&with(options.with_tool_choice(ToolChoice::None)).with_tools(tools()));
    assert_eq!((unused.body.get("tools"), unused.warnings.len()), (None, 0));
    assert_eq!(unused.body["format"], json!({"type": "object"}));
}

#[test]
fn encode_tool_choice_that_forces_a_tool_is_reported() {
    for choice in [ToolChoice::Required, ToolChoice::Tool("weather".into())] {
        let encoded = encode(&with(Options::default().with_tool_choice(choice)).with_tools(tools()));
        assert_eq!(encoded.body["tools"].as_array().unwrap().len(), 1);
        assert!(encoded.warnings[0].contains("tool_choice"), "{:?}", encoded.warnings);
    }
}

#[test]
fn encode_thinking_is_a_switch_or_a_level_depending_on_the_model() {
    let said = |model: &str, mode: ThinkingMode| {
        let mut request = with(Options::default().with_thinking(mode));
        request.model = model.into();
        let encoded = encode(&request);
        (encoded.body["think"].clone(), encoded.warnings.len())
    };
    let effort = ThinkingMode::Effort;
    assert_eq!(said("qwen3:8b", ThinkingMode::Off), (json!(false), 0));
    assert_eq!(said("qwen3:8b", ThinkingMode::Budget(0)), (json!(false), 0));
    assert_eq!(said("qwen3:8b", effort(Effort::High)), (json!(true), 1));
    assert_eq!(said("qwen3:8b", ThinkingMode::Budget(9)), (json!(true), 1));
    assert_eq!(said("gpt-oss:20b", ThinkingMode::Off), (json!("low"), 1));
    assert_eq!(said("gpt-oss:20b", effort(Effort::Minimal)), (json!("low"), 1));
    assert_eq!(said("gpt-oss:20b", effort(Effort::Low)), (json!("low"), 0));
    assert_eq!(said("gpt-oss:20b", effort(Effort::Medium)), (json!("medium"), 0));
    assert_eq!(said("acme/GPT-OSS", effort(Effort::High)), (json!("high"), 0));
    assert_eq!(said("gpt-oss:20b", effort(Effort::Max)), (json!("high"), 1));
    assert_eq!(said("gpt-oss:20b", ThinkingMode::Budget(16_000)), (json!("medium"), 1));
}

#[cfg(feature = "http")]
#[test]
fn encode_thinking_on_the_cloud_has_levels_for_every_model() {
    use omni_agent::provider::http::Endpoint;
    let said = |endpoint: &Endpoint, model: &str, mode: ThinkingMode| {
        let mut request = with(Options::default().with_thinking(mode));
        request.model = model.into();
        let encoded = endpoint.preview(&request).unwrap().1;
        (encoded.body["think"].clone(), encoded.warnings.len())
    };
    let effort = ThinkingMode::Effort;
    let (cloud, local) = (Endpoint::ollama_cloud(), Endpoint::ollama_at(""));
    // A local server passes requests for models of the cloud on.
    for (endpoint, model) in
        [(&cloud, "deepseek-v4-pro"), (&local, "deepseek-v4-pro:cloud"), (&local, "qwen3.5:397b-cloud")]
    {
        assert_eq!(said(endpoint, model, ThinkingMode::Off), (json!(false), 0), "{model}");
        assert_eq!(said(endpoint, model, effort(Effort::Minimal)), (json!("low"), 1), "{model}");
        assert_eq!(said(endpoint, model, effort(Effort::Low)), (json!("low"), 0), "{model}");
        assert_eq!(said(endpoint, model, effort(Effort::High)), (json!("high"), 0), "{model}");
        assert_eq!(said(endpoint, model, effort(Effort::Max)), (json!("max"), 0), "{model}");
        assert_eq!(said(endpoint, model, ThinkingMode::Budget(16_000)), (json!("medium"), 1), "{model}");
    }
    assert_eq!(said(&local, "gemini-3-flash-preview:cloud", effort(Effort::Low)).0, json!("low"));
    for id in ["my-cloud/qwen3.5", "qwen3.5-cloud", "cloud:8b"] {
        assert_eq!(said(&local, id, effort(Effort::Low)).0, json!(true), "{id}");
    }
    assert_eq!(said(&cloud, "gpt-oss:120b", effort(Effort::Max)), (json!("high"), 1));
    assert_eq!(said(&local, "gpt-oss:120b-cloud", ThinkingMode::Off), (json!("low"), 1));
    assert_eq!(said(&local, "qwen3:8b", effort(Effort::High)), (json!(true), 1));
}

#[test]
fn encode_options_without_an_equivalent_are_reported() {
    let options = Options::default().with_temperature(f64::NAN).with_metadata([("user", "u")]);
    let encoded = encode(&with(options));
    assert_eq!(encoded.body.get("options"), None);
    assert_eq!(encoded.warnings.len(), 2);
}

#[test]
fn encode_images_are_sent_next_to_the_text() {
    assert_eq!(
        messages([Message::user([
            Content::from("Look:"),
            Attachment::base64("image/png", "AAAA").into(),
            Attachment::base64("IMAGE/JPEG", "BBBB").into(),
            Content::from("Well?"),
        ])]),
        json!([{"role": "user", "content": "Look:\n\nWell?", "images": ["AAAA", "BBBB"]}])
    );
    assert_eq!(
        messages([Message::user([Attachment::base64("image/png", "AAAA")])]),
        json!([{"role": "user", "content": "", "images": ["AAAA"]}])
    );
}

#[test]
fn encode_adjacent_user_messages_are_one_message() {
    let image = |data| Content::from(Attachment::base64("image/png", data));
    assert_eq!(
        messages([
            Message::user([Content::from("One."), image("AAAA")]),
            Message::user("Two."),
            Message::user([image("BBBB")]),
            Message::assistant("Three."),
            Message::user("Four."),
        ]),
        json!([
            {"role": "user", "content": "One.\n\nTwo.", "images": ["AAAA", "BBBB"]},
            {"role": "assistant", "content": "Three."},
            {"role": "user", "content": "Four."},
        ])
    );
}

#[test]
fn encode_unsupported_file_is_an_error_or_a_placeholder() {
    for (attachment, by_model) in [
        (Attachment::url("image/png", "https://example.com/x.png"), false),
        (Attachment::base64("application/pdf", "AAAA").named("paper.pdf"), false),
        (Attachment::base64("image/png", "AAAA"), true),
    ] {
        let message = if by_model { Message::assistant } else { Message::user };
        let request = Request::new(History::from_iter([message(vec![attachment])]));
        assert_eq!(OllamaChat::default().encode(&request).unwrap_err().kind, ProviderErrorKind::Unsupported);
        let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
        let body = encode(&request.with_options(options)).body;
        let text = body["messages"][0]["content"].as_str().unwrap();
        assert!(text.starts_with("[attachment"), "{text}");
    }
}

#[test]
fn encode_tool_results_are_separate_messages_before_the_text() {
    let use_ = |id: &str| ToolUse::new(id, "look", json!({}));
    let with_image = ToolResult::ok(&use_("a"), "")
        .with_content(vec![ResultBlock::from("here"), Attachment::base64("image/png", "AAAA").into()]);
    let silent = |is_error| {
        let mut result = ToolResult::ok(&use_("b"), "").with_content(vec![]);
        result.is_error = is_error;
        result
    };
    let encoded = messages([
        Message::assistant([use_("a"), use_("b"), use_("b")]),
        Message::user([Content::from("And?"), with_image.into(), silent(false).into(), silent(true).into()]),
    ]);
    let tool = |id: &str, content: &str| json!({"role": "tool", "tool_name": "look", "tool_call_id": id, "content": content});
    assert_eq!(
        encoded.as_array().unwrap()[1..],
        [
            tool("a", "here\n(The images follow in the next user message.)"),
            tool("b", "(no output)"),
            tool("b", "Error: the tool failed without saying why."),
            json!({"role": "user", "images": ["AAAA"],
                "content": "Images from the result of the tool look (call a).\n\nAnd?"}),
        ]
    );
}

#[test]
fn encode_blank_messages_are_omitted_and_odd_inputs_become_objects() {
    let encoded = messages([
        Message::user([Text::new(" ")]),
        Message::assistant([Content::from(Thinking::new("only thought")), Text::new("").into()]),
        Message::assistant([
            ToolUse::new("a", "f", Value::Null),
            ToolUse::new("b", "f", json!([1])),
            ToolUse::new("c", "f", json!({})).with_malformed("{\"x\""),
        ]),
    ]);
    assert_eq!(
        encoded,
        json!([{"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "function": {"name": "f", "arguments": {}}},
            {"id": "b", "function": {"name": "f", "arguments": {"value": [1]}}},
            {"id": "c", "function": {"name": "f", "arguments": {}}},
        ]}])
    );
}

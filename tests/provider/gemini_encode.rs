//! Google's Gemini format: complete requests.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, Message, ProviderItem, ResultBlock, Text, Thinking, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, Options, OutputSchema, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        UnsupportedAttachment,
        custom::{Dialect, Encoded, Framing, GoogleGemini},
    },
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::{Value, json};

use crate::gemini::{contents, request};

fn with(model: &str, options: Options) -> Request {
    request(model, [Message::user("Hi")]).with_options(options)
}

fn encode(request: &Request) -> Encoded {
    let mut encoded = GoogleGemini::default().encode(request).unwrap();
    crate::without_opening(&mut encoded.body, "contents");
    encoded
}

fn tools() -> ToolSet {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    ToolSet::new()
        .with(declared_tool_with_schema("weather", "Tells the weather.", Schema::new(schema).unwrap()))
        .unwrap()
}

fn output(schema: Value) -> OutputSchema {
    OutputSchema::new("answer", Schema::new(schema).unwrap())
}

#[test]
fn encode_request_with_everything_sends_every_option() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_stop_sequences(["END"])
        .with_thinking(Effort::Low)
        .with_tool_choice(ToolChoice::Required)
        .with_output(output(json!({"type": "object", "properties": {"x": {"type": "integer"}}})))
        .with_cache(CacheHint::Short);
    let request = with("gemini-3-flash-preview", options).with_system("Be brief.").with_tools(tools());
    let encoded = encode(&request);
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
            "tools": [{"functionDeclarations": [{"name": "weather", "description": "Tells the weather.",
                "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}}}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
            "generationConfig": {
                "maxOutputTokens": 100,
                "temperature": 0.5,
                "topP": 0.9,
                "stopSequences": ["END"],
                "thinkingConfig": {"includeThoughts": true, "thinkingLevel": "low"},
                "responseMimeType": "application/json",
                "responseJsonSchema": {"type": "object", "properties": {"x": {"type": "integer"}}},
            },
        })
    );
    assert!(encoded.warnings.is_empty(), "{:?}", encoded.warnings);
    assert_eq!(GoogleGemini::default().framing(), Framing::Sse);
}

#[test]
fn encode_sampling_for_a_model_without_it_is_omitted_with_a_warning() {
    let options = Options::default().with_temperature(0.5).with_top_p(0.9);
    for model in ["gemini-3.6-flash", "gemini-3.5-flash-lite", "gemini-3.8-flash", "gemini-flash-latest"] {
        let encoded = encode(&with(model, options.clone()));
        assert_eq!(
            Value::Object(encoded.body),
            json!({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
            "{model}"
        );
        assert_eq!(
            encoded.warnings,
            [
                "`temperature` is ignored: this model does not support it",
                "`top_p` is ignored: this model does not support it"
            ]
        );
    }
    for model in ["gemini-2.5-flash-lite", "gemini-3.5-flash", "gemini-3.1-flash-lite", "learnlm-2.0"] {
        let encoded = encode(&with(model, options.clone()));
        let expected = json!({"temperature": 0.5, "topP": 0.9});
        assert_eq!((&encoded.body["generationConfig"], encoded.warnings.len()), (&expected, 0), "{model}");
    }
}

#[test]
fn encode_request_with_nothing_sends_only_what_is_required() {
    let encoded = encode(&with("gemini-3-flash-preview", Options::default()));
    assert_eq!(
        Value::Object(encoded.body),
        json!({"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]})
    );
}

#[test]
fn path_contains_only_the_model() {
    for (model, path) in [
        ("gemini-3-flash", "/models/gemini-3-flash"),
        ("models/gemini-3-flash", "/models/gemini-3-flash"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("a?key=b#c%2F é", "/models/a%3Fkey%3Db%23c%252F%20%C3%A9"),
    ] {
        let request = with(model, Options::default().with_api_key("sk-secret"));
        assert_eq!(GoogleGemini::default().path(&request), format!("{path}:streamGenerateContent?alt=sse"));
    }
    for model in ["", "a/../b", "./x", "a//b"] {
        let error = GoogleGemini::default().encode(&with(model, Options::default())).unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::InvalidRequest, "{model}");
    }
}

#[test]
fn encode_tool_choice_has_a_mode_for_each_variant() {
    for (choice, expected) in [
        (ToolChoice::Auto, json!({"mode": "AUTO"})),
        (ToolChoice::None, json!({"mode": "NONE"})),
        (ToolChoice::Required, json!({"mode": "ANY"})),
        (ToolChoice::Tool("weather".into()), json!({"mode": "ANY", "allowedFunctionNames": ["weather"]})),
    ] {
        let request = with("gemini-3-pro", Options::default().with_tool_choice(choice)).with_tools(tools());
        assert_eq!(encode(&request).body["toolConfig"], json!({"functionCallingConfig": expected}));
    }
    let none = encode(&with("gemini-3-pro", Options::default().with_tool_choice(ToolChoice::Required)));
    assert_eq!((none.body.get("toolConfig"), none.warnings.len()), (None, 1));
}

#[test]
fn encode_thinking_is_a_level_or_a_budget_depending_on_the_model() {
    let said = |model: &str, mode: ThinkingMode| {
        let encoded = encode(&with(model, Options::default().with_thinking(mode)));
        let config = &encoded.body.get("generationConfig").cloned().unwrap_or_default()["thinkingConfig"];
        let said = config.get("thinkingLevel").or(config.get("thinkingBudget")).cloned();
        let shown = config.get("includeThoughts").and_then(Value::as_bool).unwrap_or(false);
        (said.unwrap_or_default(), shown, encoded.warnings.len())
    };
    let effort = ThinkingMode::Effort;
    for (model, mode, expected) in [
        ("gemini-3-flash-preview", ThinkingMode::Off, (json!("minimal"), false, 1)),
        ("gemini-3-flash-preview", effort(Effort::Minimal), (json!("minimal"), true, 0)),
        ("gemini-3-flash-preview", effort(Effort::Medium), (json!("medium"), true, 0)),
        ("gemini-3-flash-preview", effort(Effort::Max), (json!("high"), true, 1)),
        ("gemini-flash-latest", ThinkingMode::Budget(5000), (json!("low"), true, 1)),
        ("gemini-3.6-flash", effort(Effort::Minimal), (json!("minimal"), true, 0)),
        ("gemini-3.7-flash", ThinkingMode::Off, (json!("low"), false, 1)),
        ("gemini-3.7-flash", effort(Effort::Minimal), (json!("low"), true, 1)),
        ("gemini-3.8-flash", effort(Effort::Minimal), (json!("low"), true, 1)),
        ("gemini-3.8-flash", effort(Effort::Medium), (json!("medium"), true, 0)),
        ("gemini-3.8-flash-lite", ThinkingMode::Off, (json!("minimal"), false, 1)),
        ("gemini-4-flash", effort(Effort::Minimal), (json!("low"), true, 1)),
        ("gemini-flash-latest", ThinkingMode::Off, (json!("low"), false, 1)),
        ("gemini-flash-lite-latest", effort(Effort::Minimal), (json!("minimal"), true, 0)),
        ("gemini-3.1-pro-preview", ThinkingMode::Off, (json!("low"), false, 1)),
        ("gemini-3.1-pro-preview", effort(Effort::Medium), (json!("medium"), true, 0)),
        ("gemini-3-pro-preview", effort(Effort::Minimal), (json!("low"), true, 1)),
        ("gemini-3-pro-preview", effort(Effort::Medium), (json!("high"), true, 1)),
        ("gemini-2.5-flash", ThinkingMode::Off, (json!(0), false, 0)),
        ("gemini-2.5-flash", ThinkingMode::Budget(0), (json!(0), false, 0)),
        ("gemini-2.5-flash", effort(Effort::Max), (json!(24_576), true, 0)),
        ("gemini-2.5-flash", ThinkingMode::Budget(99_999), (json!(24_576), true, 1)),
        ("gemini-2.5-flash-lite", ThinkingMode::Budget(9), (json!(512), true, 1)),
        ("models/gemini-2.5-pro", ThinkingMode::Off, (json!(128), false, 1)),
        ("gemini-2.5-pro", effort(Effort::Max), (json!(32_768), true, 0)),
        ("gemini-2.5-pro", ThinkingMode::Budget(9000), (json!(9000), true, 0)),
        ("gemini-2.0-flash", effort(Effort::Low), (json!(null), false, 1)),
        ("gemini-2.0-flash", ThinkingMode::Off, (json!(null), false, 0)),
        ("gemini-3-pro-image-preview", effort(Effort::Low), (json!(null), false, 1)),
        ("gemma-3-27b-it", effort(Effort::Low), (json!(null), false, 1)),
    ] {
        assert_eq!(said(model, mode), expected, "{model} {mode:?}");
    }
}

#[test]
fn encode_output_schema_with_tools_becomes_another_tool_for_older_models() {
    let options = Options::default().with_output(output(json!({"type": "object"})));
    let old = encode(&with("gemini-2.5-flash", options.clone()).with_system("Be brief.").with_tools(tools()));
    assert_eq!((old.body.get("generationConfig"), old.warnings.len()), (None, 0));
    let system = old.body["systemInstruction"]["parts"][0]["text"].as_str().unwrap();
    assert!(system.starts_with("Be brief.\n\n") && system.contains("`answer`"), "{system}");
    assert_eq!(old.body["toolConfig"], json!({"functionCallingConfig": {"mode": "ANY"}}));
    let declared = old.body["tools"][0]["functionDeclarations"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&declared["name"], &declared["parametersJsonSchema"]),
        (&json!("answer"), &json!({"type": "object", "properties": {}}))
    );
    let alone = encode(&with("gemini-2.5-flash", options));
    assert_eq!(alone.body["generationConfig"]["responseJsonSchema"], json!({"type": "object"}));
}

#[test]
fn encode_schemas_use_only_the_keywords_that_the_service_supports() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "kind": {"const": "a", "default": "a"},
            "name": {"type": "string", "pattern": "^a", "minLength": 1, "description": "A name."},
            "any": true,
            "all": {"type": "array", "items": true},
            "one": {"oneOf": [{"$ref": "#/definitions/Leaf"}, {"type": "null"}]},
            "noted": {"$ref": "#/definitions/Leaf", "description": "Here."},
            "wrapped": {"description": "There.", "allOf": [{"$ref": "#/definitions/Leaf"}]},
            "many": {"type": "array", "items": {"$ref": "#/definitions/Leaf"}, "uniqueItems": true, "maxItems": 3},
        },
        "required": ["kind"],
        "additionalProperties": false,
        "definitions": {"Leaf": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Leaf"}},
            "title": "Leaf", "additionalProperties": {"type": "string", "format": "date"}}},
    });
    let encoded = encode(&with("gemini-3-pro", Options::default().with_output(output(schema))));
    let leaf = |mut with: Value| {
        let leaf = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/Leaf"}}, "title": "Leaf",
            "additionalProperties": {"type": "string", "format": "date"}});
        with.as_object_mut().unwrap().extend(leaf.as_object().unwrap().clone());
        with
    };
    assert_eq!(
        encoded.body["generationConfig"]["responseJsonSchema"],
        json!({
            "type": "object",
            "properties": {
                "kind": {"enum": ["a"]},
                "name": {"type": "string", "description": "A name. (pattern: \"^a\", minLength: 1)"},
                "any": {},
                "all": {"type": "array", "items": {}},
                "one": {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]},
                "noted": leaf(json!({"description": "Here."})),
                "wrapped": leaf(json!({"description": "There."})),
                "many": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}, "maxItems": 3,
                    "description": "(uniqueItems: true)"},
            },
            "required": ["kind"],
            "additionalProperties": false,
            "$defs": {"Leaf": leaf(json!({}))},
        })
    );
}

#[test]
fn encode_options_without_an_equivalent_are_reported() {
    let options = Options::default()
        .with_temperature(f64::NAN)
        .with_top_p(f64::INFINITY)
        .with_metadata([("user", "u")])
        .with_cache(CacheHint::Long)
        .with_stop_sequences(["a", "", "b", "c", "d", "e", "f"]);
    let encoded = encode(&with("gemini-3-pro", options));
    assert_eq!(encoded.body["generationConfig"], json!({"stopSequences": ["a", "b", "c", "d", "e"]}));
    assert_eq!(encoded.warnings.len(), 5, "{:?}", encoded.warnings);
}

#[test]
fn encode_files_are_sent_inline_or_as_a_url() {
    assert_eq!(
        contents(
            "gemini-3-pro",
            [Message::user([
                Content::from("Look:"),
                Attachment::base64("image/jpg", "AAAA").into(),
                Attachment::base64("application/PDF", "BBBB").named("paper.pdf").into(),
                Attachment::base64("application/json; charset=utf-8", "CCCC").into(),
                Attachment::base64("audio/wav", "DDDD").into(),
                Attachment::url("video/mp4", "https://example.com/x.mp4").into(),
            ])]
        )[0]["parts"],
        json!([
            {"text": "Look:"},
            {"inlineData": {"mimeType": "image/jpeg", "data": "AAAA"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "BBBB"}},
            {"inlineData": {"mimeType": "text/plain", "data": "CCCC"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "DDDD"}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.com/x.mp4"}},
        ])
    );
}

#[test]
fn encode_unsupported_file_is_an_error_or_a_placeholder() {
    for message in [Message::user, Message::assistant] {
        let attachment = Attachment::base64("image/gif", "AAAA").named("x.gif");
        let request = request("gemini-3-pro", [message(vec![attachment])]);
        assert_eq!(
            GoogleGemini::default().encode(&request).unwrap_err().kind,
            ProviderErrorKind::Unsupported
        );
        let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
        let body = encode(&request.with_options(options)).body;
        let text = body["contents"][0]["parts"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("[attachment x.gif"), "{text}");
    }
}

#[test]
fn encode_files_of_tool_results_follow_all_results() {
    let tool_use = |id: &str| ToolUse::new(id, "look", json!({}));
    let with_image = ToolResult::ok(&tool_use("a"), "")
        .with_content(vec![ResultBlock::from("here"), Attachment::base64("image/png", "AAAA").into()]);
    let failed = ToolResult::error(&tool_use("b"), "").with_content(vec![]);
    let encoded = contents(
        "gemini-2.5-pro",
        [
            Message::assistant([tool_use("a"), tool_use("b")]),
            Message::user([Content::from(with_image), failed.into(), "And?".into()]),
        ],
    );
    let response = |id: &str, response: Value| json!({"functionResponse": {"id": id, "name": "look", "response": response}});
    assert_eq!(
        encoded.as_array().unwrap()[1..],
        [
            json!({"role": "user", "parts": [
                response("a", json!({"output": "here\n(The files follow.)"})),
                response("b", json!({"error": "The tool failed without saying why."}))]}),
            json!({"role": "user", "parts": [
                {"text": "Files from the result of the tool look (call a):"},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                {"text": "And?"}]}),
        ]
    );
}

#[test]
fn encode_blank_messages_are_omitted_and_odd_inputs_become_objects() {
    let signed = Thinking::new("t").with_signature("s");
    let encoded = contents(
        "gemini-2.5-pro",
        [
            Message::user([Text::new(" ")]),
            Message::assistant([Content::from(signed), Text::new("").into()]),
            Message::assistant([ToolUse::new("a", "f", Value::Null), ToolUse::new("b", "f", json!([1]))]),
            Message::assistant("more"),
        ],
    );
    assert_eq!(
        encoded,
        json!([{"role": "model", "parts": [
            {"functionCall": {"id": "a", "name": "f", "args": {}}},
            {"functionCall": {"id": "b", "name": "f", "args": {"value": [1]}}},
            {"text": "more"},
        ]}])
    );
}

#[test]
fn encode_own_items_in_a_user_message_are_sent_in_their_place() {
    let video = json!({"fileData": {"fileUri": "https://example.org/v", "mimeType": "video/mp4"},
        "videoMetadata": {"fps": 5}});
    let message = Message::user([
        Content::from(Text::new("Look:")),
        ProviderItem::new("google_gemini", video.clone()).into(),
        ProviderItem::new("openai_responses", json!({"type": "x"})).into(),
        Text::new("Well?").into(),
    ]);
    assert_eq!(
        contents("gemini-2.5-pro", [message]),
        json!([{"role": "user", "parts": [{"text": "Look:"}, video, {"text": "Well?"}]}])
    );
}

/// Returns a schema with this many types. Every type refers to every other type, and each reference has a description.
fn entangled(types: usize) -> Value {
    let fields = |_| {
        let field =
            |to| (format!("f{to}"), json!({"$ref": format!("#/$defs/t{to}"), "description": "Another."}));
        json!({"type": "object", "properties": Value::Object((0..types).map(field).collect())})
    };
    let defs = (0..types).map(|name| (format!("t{name}"), fields(name))).collect();
    json!({"type": "object", "properties": {"first": {"$ref": "#/$defs/t0"}}, "$defs": Value::Object(defs)})
}

#[test]
fn encode_schema_of_mutually_recursive_types_stays_small() {
    let schema = entangled(10);
    let options = Options::default().with_output(output(schema));
    let text = serde_json::to_string(&encode(&with("gemini-2.5-flash", options)).body).unwrap();
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
}

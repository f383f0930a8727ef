#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use std::borrow::Cow;

use async_trait::async_trait;
use omni_agent::{
    message::{Attachment, Content, History, Message, ProviderItem, Text, Thinking, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, Options, OutputSchema, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        UnsupportedAttachment,
        custom::{
            CacheField, ChatCompletions, Dialect, EffortWords, OutputSupport, ReasoningReturn, ThinkingField,
            ToolChoices,
        },
    },
    tool::{Schema, Tool, ToolContext, ToolError, ToolOutput, ToolSet},
};
use serde_json::{Map, Value, json};

use crate::{chat::encode, responses_encode::OPENAI_WORDS};

fn with(options: Options) -> Request {
    let mut request = Request::prompt("Hi").with_options(options);
    request.model = "m-1".into();
    request
}

fn default(options: Options) -> Value {
    encode(&ChatCompletions::default(), &with(options))
}

fn warnings(chat: &ChatCompletions, options: Options) -> Vec<String> {
    chat.encode(&with(options)).unwrap().warnings
}

fn messages(messages: impl IntoIterator<Item = Message>) -> Value {
    let request = Request::new(History::from_iter(messages));
    encode(&ChatCompletions::default(), &request)["messages"].clone()
}

struct Weather(Schema);

#[async_trait]
impl Tool for Weather {
    fn name(&self) -> &'static str {
        "weather"
    }

    fn description(&self) -> Cow<'_, str> {
        "Tells the weather.".into()
    }

    fn schema(&self) -> &Schema {
        &self.0
    }

    async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok("rain".into())
    }
}

fn weather() -> ToolSet {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    ToolSet::new().with(Weather(Schema::new(schema).unwrap())).unwrap()
}

#[test]
fn encode_request_with_everything_sends_every_option() {
    let schema = Schema::new(json!({"type": "object", "properties": {"x": {"type": "integer"}}})).unwrap();
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_stop_sequences(vec!["END".to_owned()])
        .with_thinking(ThinkingMode::Effort(Effort::Medium))
        .with_tool_choice(ToolChoice::Required)
        .with_output(OutputSchema::new("answer", schema))
        .with_cache(CacheHint::Long)
        .with_metadata(Map::from_iter([("user".to_owned(), json!("u-1")), ("n".to_owned(), json!(7))]));
    let request = with(options).with_system("Be brief.").with_tools(weather());
    let encoded = ChatCompletions::default().encode(&request).unwrap();
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "model": "m-1",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}],
            "tool_choice": "required",
            "max_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["END"],
            "reasoning_effort": "medium",
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": true,
                "schema": {"type": "object", "properties": {"x": {"type": ["integer", "null"]}}, "required": ["x"],
                    "additionalProperties": false}}},
            "metadata": {"user": "u-1", "n": "7"},
        })
    );
    assert_eq!(
        encoded.warnings,
        ["`cache` is not extended: this service has no setting for the time that the prompt is kept"]
    );
}

#[test]
fn encode_request_with_nothing_sends_only_what_is_required() {
    assert_eq!(
        default(Options::default()),
        json!({"model": "m-1", "messages": [{"role": "user", "content": "Hi"}], "stream": true,
            "stream_options": {"include_usage": true}})
    );
}

#[test]
fn encode_switches_for_deviations_of_a_service_are_applied() {
    let chat = ChatCompletions::default()
        .with_max_tokens_field("max_completion_tokens")
        .with_system_role("developer")
        .without_stream_usage()
        .with_thinking(ThinkingField::Effort(EffortWords::OPENAI))
        .with_cache(CacheField::Retention)
        .without_metadata();
    let options = Options::default()
        .with_max_tokens(9)
        .with_cache(CacheHint::Long)
        .with_thinking(ThinkingMode::Effort(Effort::Max))
        .with_metadata(Map::from_iter([("a".to_owned(), json!("b"))]));
    let request = with(options.clone()).with_system("Be brief.");
    assert_eq!(
        encode(&chat, &request),
        json!({"model": "m-1", "stream": true, "max_completion_tokens": 9, "reasoning_effort": "xhigh",
            "prompt_cache_retention": "24h",
            "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]})
    );
    assert_eq!(warnings(&chat, options).len(), 1);
    assert_eq!(
        encode(&chat, &with(Options::default().with_cache(CacheHint::Short))).get("prompt_cache_retention"),
        None
    );
}

#[test]
fn encode_thinking_maps_to_the_efforts_of_the_service() {
    let said = |chat: &ChatCompletions, mode| {
        let encoded = chat.encode(&with(Options::default().with_thinking(mode))).unwrap();
        let word = encoded.body.get("reasoning_effort").and_then(Value::as_str).map(ToOwned::to_owned);
        (word, encoded.warnings.len())
    };
    let word = |word: &str, warnings| (Some(word.to_owned()), warnings);
    let common = ChatCompletions::default();
    let openai = ChatCompletions::default().with_thinking(ThinkingField::Effort(EffortWords::OPENAI));
    assert_eq!(said(&common, ThinkingMode::Off), word("none", 0));
    assert_eq!(said(&common, ThinkingMode::Effort(Effort::Minimal)), word("low", 1));
    assert_eq!(said(&openai, ThinkingMode::Effort(Effort::Minimal)), word("minimal", 0));
    assert_eq!(said(&common, ThinkingMode::Effort(Effort::Max)), word("high", 1));
    assert_eq!(said(&common, ThinkingMode::Budget(0)), word("none", 0));
    assert_eq!(said(&openai, ThinkingMode::Budget(1024)), word("minimal", 1));
    assert_eq!(said(&openai, ThinkingMode::Budget(5000)), word("low", 1));
    assert_eq!(said(&openai, ThinkingMode::Budget(16_000)), word("medium", 1));
    assert_eq!(said(&openai, ThinkingMode::Budget(u32::MAX)), word("xhigh", 1));
    let silent = ChatCompletions::default().with_thinking(ThinkingField::None);
    assert_eq!(said(&silent, ThinkingMode::Effort(Effort::High)), (None, 1));
    // The word for no reasoning is not needed if thinking itself is turned off.
    let typed = ChatCompletions::default().with_thinking(ThinkingField::Type(Some(EffortWords::COMMON)));
    assert_eq!(said(&typed, ThinkingMode::Off), (None, 0));
    assert_eq!(said(&typed, ThinkingMode::Effort(Effort::High)), word("high", 0));
    let always = EffortWords::COMMON.with_off(None);
    assert_eq!(
        said(&ChatCompletions::default().with_thinking(ThinkingField::Effort(always)), ThinkingMode::Off),
        (None, 1)
    );
}

#[test]
fn encode_thinking_maps_to_the_efforts_of_the_model() {
    let modes = [
        ThinkingMode::Off,
        Effort::Minimal.into(),
        Effort::Low.into(),
        Effort::Medium.into(),
        Effort::High.into(),
        Effort::Max.into(),
    ];
    for (model, words) in OPENAI_WORDS {
        for (mode, word) in modes.into_iter().zip(words) {
            let mut request = with(Options::default().with_thinking(mode));
            request.model = model.into();
            let body = encode(&ChatCompletions::openai(), &request);
            assert_eq!(body["reasoning_effort"].as_str().unwrap_or_default(), word, "{model} {mode:?}");
        }
    }
    // Models that reason do not accept sampling options, so the temperature causes a warning.
    let mut request = with(Options::default().with_temperature(0.5).with_thinking(Effort::High));
    for (model, effort, warned) in
        [("gpt-5", Some("high"), 1), ("gpt-4o", None, 1), ("new-model", Some("high"), 0)]
    {
        request.model = model.into();
        let encoded = ChatCompletions::openai().encode(&request).unwrap();
        assert_eq!(encoded.body.get("reasoning_effort").and_then(Value::as_str), effort, "{model}");
        assert_eq!(encoded.body.contains_key("temperature"), model != "gpt-5", "{model}");
        assert_eq!(encoded.warnings.len(), warned, "{model}: {:?}", encoded.warnings);
    }
}

#[test]
fn encode_options_switched_off_for_the_service_are_reported() {
    let schema = Schema::new(json!({"type": "object", "properties": {}})).unwrap();
    let options = Options::default()
        .with_output(OutputSchema::new("x", schema))
        .with_cache(CacheHint::Long)
        .with_temperature(0.5)
        .with_top_p(1.0)
        .with_thinking(Effort::High)
        .with_metadata([("a", "b")])
        .with_tool_choice(ToolChoice::Required);
    let chat = ChatCompletions::default()
        .with_output(OutputSupport::None)
        .without_sampling()
        .with_thinking(ThinkingField::Always)
        .with_tool_choices(ToolChoices::Unforced)
        .without_metadata()
        .with_member("seed", 7);
    let encoded = chat.encode(&with(options).with_tools(weather())).unwrap();
    let body = Value::Object(encoded.body);
    let left_out =
        ["response_format", "prompt_cache_retention", "temperature", "reasoning_effort", "metadata"];
    assert!(left_out.iter().all(|name| body.get(name).is_none()), "{body}");
    assert_eq!(
        (&body["top_p"], &body["tool_choice"], &body["seed"]),
        (&json!(1.0), &json!("auto"), &json!(7))
    );
    assert!(body["messages"][0]["content"].as_str().unwrap().contains("JSON Schema"));
    let about = encoded.warnings.iter().map(|text| text.split('`').nth(1).unwrap_or_default());
    assert_eq!(
        about.collect::<Vec<_>>(),
        ["cache", "tool_choice", "thinking", "temperature", "output", "metadata"]
    );
}

#[test]
fn encode_rules_for_a_model_override_those_of_the_service() {
    let chat = ChatCompletions::default().with_max_tokens_field("max_completion_tokens");
    let chat = chat.with_model_rules(|model, chat| match model {
        "m-1" => chat.with_max_tokens_field("max_tokens").with_member("fast", true),
        _ => chat,
    });
    let mut request = with(Options::default().with_max_tokens(9));
    let body = encode(&chat, &request);
    assert_eq!((&body["max_tokens"], &body["fast"]), (&json!(9), &json!(true)));
    request.model = "m-2".into();
    let body = encode(&chat, &request);
    assert_eq!((&body["max_completion_tokens"], body.get("fast")), (&json!(9), None));
}

#[test]
fn encode_options_without_an_equivalent_are_reported() {
    let many = Options::default().with_stop_sequences(["a", "", "b", "c", "d", "e", "f"]);
    assert_eq!(default(many.clone())["stop"], json!(["a", "b", "c", "d"]));
    assert_eq!(warnings(&ChatCompletions::default(), many.clone()).len(), 1);
    assert!(warnings(&ChatCompletions::default().with_max_stop_sequences(16), many).is_empty());

    let no_number = Options::default().with_temperature(f64::NAN).with_top_p(f64::INFINITY);
    let body = default(no_number.clone());
    assert_eq!((body.get("temperature"), body.get("top_p")), (None, None));
    assert_eq!(warnings(&ChatCompletions::default(), no_number).len(), 2);

    let no_tools = Options::default().with_tool_choice(ToolChoice::Required);
    assert_eq!(default(no_tools.clone()).get("tool_choice"), None);
    assert_eq!(warnings(&ChatCompletions::default(), no_tools).len(), 1);
    assert!(
        warnings(&ChatCompletions::default(), Options::default().with_tool_choice(ToolChoice::None))
            .is_empty()
    );
}

#[test]
fn encode_tool_choice_has_a_form_for_each_variant() {
    for (choice, expected) in [
        (ToolChoice::Auto, json!("auto")),
        (ToolChoice::None, json!("none")),
        (ToolChoice::Required, json!("required")),
        (
            ToolChoice::Tool("weather".to_owned()),
            json!({"type": "function", "function": {"name": "weather"}}),
        ),
    ] {
        let request = with(Options::default().with_tool_choice(choice)).with_tools(weather());
        assert_eq!(encode(&ChatCompletions::default(), &request)["tool_choice"], expected);
    }
}

#[test]
fn encode_user_content_without_files_is_a_string() {
    assert_eq!(
        messages([Message::user([Text::new("a"), Text::new("b"), Text::new(" ")])]),
        json!([{"role": "user", "content": "a\n\nb"}])
    );
    let content = messages([Message::user([
        Content::from("Look:"),
        Attachment::base64("image/png", "AAAA").into(),
        Attachment::url("image/jpeg", "https://example.com/x.jpg").into(),
        Attachment::base64("application/pdf", "BBBB").named("paper.pdf").into(),
        Attachment::base64("application/PDF", "CCCC").into(),
        Attachment::base64("audio/wav; codecs=1", "DDDD").into(),
        Attachment::base64("audio/mpeg", "EEEE").into(),
    ])]);
    assert_eq!(
        content[0]["content"],
        json!([
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/x.jpg"}},
            {"type": "file", "file": {"filename": "paper.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
            {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,CCCC"}},
            {"type": "input_audio", "input_audio": {"data": "DDDD", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "EEEE", "format": "mp3"}},
        ])
    );
}

/// A summary and the prompt after it, for example.
#[test]
fn encode_adjacent_user_messages_are_joined_unless_the_service_accepts_them() {
    let said = || [Message::user("a"), Message::user("b"), Message::assistant(""), Message::user("c")];
    assert_eq!(messages(said()), json!([{"role": "user", "content": "a\n\nb\n\nc"}]));

    let image = Attachment::base64("image/png", "AAAA");
    let joined =
        messages([Message::user("a"), Message::user(vec![Content::from(image)]), Message::assistant("d")]);
    assert_eq!(joined[0]["content"][0], json!({"type": "text", "text": "a"}));
    assert_eq!(joined[0]["content"][1]["type"], "image_url");
    assert_eq!(joined[1], json!({"role": "assistant", "content": "d"}));

    let separate = json!([
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "user", "content": "c"},
    ]);
    let openai = encode(&ChatCompletions::openai(), &Request::new(History::from_iter(said())));
    assert_eq!(openai["messages"], separate);
    let breakpoints = ChatCompletions::default().with_cache(CacheField::Breakpoints);
    assert_eq!(encode(&breakpoints, &Request::new(History::from_iter(said())))["messages"], separate);
}

#[test]
fn encode_unsupported_file_is_an_error_or_a_placeholder() {
    for (attachment, by_model) in [
        (Attachment::url("application/pdf", "https://example.com/x.pdf"), false),
        (Attachment::base64("video/mp4", "AAAA").named("clip"), false),
        (Attachment::url("audio/wav", "https://example.com/x.wav"), false),
        (Attachment::base64("image/png", "AAAA"), true),
    ] {
        let message = if by_model { Message::assistant } else { Message::user };
        let request = Request::new(History::from_iter([message(vec![attachment])]));
        let chat = ChatCompletions::default();
        assert_eq!(chat.encode(&request).unwrap_err().kind, ProviderErrorKind::Unsupported);
        let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
        let body = encode(&chat, &request.with_options(options));
        let text = body["messages"][0]["content"].as_str().unwrap();
        assert!(text.starts_with("[attachment"), "{text}");
    }
}

#[test]
fn encode_tool_results_follow_the_calls_and_files_follow_the_results() {
    let [one, two, three] = ["a", "b", "c"].map(|id| ToolUse::new(id, "look", json!({"z": 1, "a": [true]})));
    let results = [
        Content::from(ToolResult::ok(&one, Attachment::base64("image/png", "AAAA"))),
        ToolResult::error(&two, "Error: gone").into(),
        ToolResult::ok(&three, "").with_content(Vec::new()).into(),
        Text::new("Well?").into(),
    ];
    let uses = [one, two, three].map(Content::from);
    let encoded = messages([Message::assistant(uses), Message::user(results)]);
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{\"z\":1,\"a\":[true]}"}});
    assert_eq!(
        encoded,
        json!([
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b"), call("c")]},
            {"role": "tool", "tool_call_id": "a", "content": "(The files follow in the next user message.)"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: gone"},
            {"role": "tool", "tool_call_id": "c", "content": "(no output)"},
            {"role": "user", "content": [
                {"type": "text", "text": "Files from the result of the tool look (call a):"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "text", "text": "Well?"},
            ]},
        ])
    );
}

#[test]
fn encode_malformed_tool_use_is_sent_back_as_valid_json() {
    let malformed = ToolUse::new("a", "f", json!({})).with_malformed("{\"x\":".to_owned());
    let result = ToolResult::error(&malformed, "bad JSON");
    let encoded =
        messages([Message::assistant(Content::from(malformed)), Message::user(Content::from(result))]);
    assert_eq!(encoded[0]["tool_calls"][0]["function"]["arguments"], "{}");
}

#[test]
fn encode_invalid_ids_are_replaced_alike_in_call_and_result() {
    let long = "x".repeat(41);
    for id in ["", long.as_str(), &"é".repeat(30)] {
        let call = ToolUse::new(id, "f", json!({}));
        let result = ToolResult::ok(&call, "ok");
        let encoded =
            messages([Message::assistant(Content::from(call)), Message::user(Content::from(result))]);
        let sent = encoded[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(!sent.is_empty() && sent.len() <= 40 && sent.is_ascii());
        assert_eq!(encoded[1]["tool_call_id"], sent);
    }
    let kept = ToolUse::new("x".repeat(40), "f", json!({}));
    assert_eq!(messages([Message::assistant(Content::from(kept))])[0]["tool_calls"][0]["id"], "x".repeat(40));
    let [one, two] = ["a", "b"].map(|end| ToolUse::new(format!("{long}{end}"), "f", json!({})));
    let encoded = messages([Message::assistant([Content::from(one), two.into()])]);
    assert_ne!(encoded[0]["tool_calls"][0]["id"], encoded[0]["tool_calls"][1]["id"]);
}

#[test]
fn encode_messages_without_content_are_omitted() {
    let foreign = ProviderItem::new("other".to_owned(), json!({"x": 1}));
    let own = ProviderItem::new("chat_completions".to_owned(), json!({"reasoning_details": []}));
    assert_eq!(
        messages([
            Message::user(""),
            Message::user(" \n"),
            Message::assistant(Vec::<Content>::new()),
            Message::assistant([Content::from(Thinking::new("hm")), foreign.into(), own.into()]),
        ]),
        json!([])
    );
    let blank = Request::prompt("Hi").with_system("  ");
    assert_eq!(
        encode(&ChatCompletions::default(), &blank)["messages"],
        json!([{"role": "user", "content": "Hi"}])
    );
}

#[test]
fn encode_reasoning_is_sent_back_only_if_enabled_and_only_to_its_own_format() {
    let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::Content);
    let said = |format: &str, chat: &ChatCompletions| {
        let mut message = Message::assistant([Content::from(Thinking::new("hm")), "Yes".into()]);
        message.provider_data.insert(format.to_owned(), json!({}));
        encode(chat, &Request::new(History::from_iter([message])))["messages"].clone()
    };
    let plain = json!([{"role": "assistant", "content": "Yes"}]);
    assert_eq!(
        said("chat_completions", &chat),
        json!([{"role": "assistant", "content": "Yes", "reasoning_content": "hm"}])
    );
    assert_eq!(said("anthropic_messages", &chat), plain);
    assert_eq!(said("chat_completions", &ChatCompletions::default()), plain);
}

#[test]
fn encode_answers_without_reasoning_get_a_blank_one_if_they_call_or_could_call_tools() {
    let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::ContentWithCalls);
    let call = ToolUse::new("a", "weather", json!({}));
    let result = Content::from(ToolResult::ok(&call, "rain"));
    let history = History::from_iter([
        Message::user("Hi"),
        Message::assistant("Hello."),
        Message::user("Weather?"),
        Message::assistant([Content::from(call)]),
        Message::user([result]),
    ]);
    let reasoning = |request: &Request| {
        let messages = encode(&chat, request)["messages"].clone();
        [1, 3].map(|number: usize| messages[number].get("reasoning_content").cloned())
    };
    let request = Request::new(history);
    let blank = Some(json!(" "));
    assert_eq!(reasoning(&request), [None, blank.clone()]);
    assert_eq!(reasoning(&request.with_tools(weather())), [blank.clone(), blank]);
}

#[test]
fn encode_opaque_item_of_the_own_format_adds_its_members_to_the_message() {
    let item = |data: Value| Content::from(ProviderItem::new("chat_completions".to_owned(), data));
    let message = Message::assistant([
        Content::from("Yes"),
        item(json!({"custom": [1], "role": "user", "content": "No"})),
        item(json!({"custom": [2]})),
        item(json!("odd")),
    ]);
    assert_eq!(messages([message]), json!([{"role": "assistant", "content": "Yes", "custom": [1, 2]}]));
}

fn output(chat: &ChatCompletions, schema: &Value) -> (Value, usize) {
    let output = OutputSchema::new("my answer!", Schema::new(schema.clone()).unwrap());
    let encoded = chat.encode(&with(Options::default().with_output(output))).unwrap();
    (encoded.body["response_format"].clone(), encoded.warnings.len())
}

#[test]
fn encode_output_schema_strict_is_closed_and_complete() {
    let (format, warnings) = output(
        &ChatCompletions::default(),
        &json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Answer",
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "format": "email", "default": "x"},
                "age": {"type": ["integer", "null"], "format": "uint32", "minimum": 0},
                "kind": {"oneOf": [{"const": "a", "description": "first"}, {"enum": ["b", "c"]}]},
                "node": {"allOf": [{"$ref": "#/$defs/Node"}], "description": "the root"},
                "list": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "uniqueItems": true, "minItems": 1},
            },
            "required": ["name"],
            "$defs": {"Node": {"type": "object", "properties": {"next": {
                "anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
        }),
    );
    let node = json!({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["next"], "additionalProperties": false});
    let mut described = node.clone();
    described["description"] = json!("the root");
    let nothing = json!({"type": "null"});
    assert_eq!(warnings, 0);
    assert_eq!(
        format,
        json!({"type": "json_schema", "json_schema": {"name": "my_answer_", "strict": true, "schema": {
            "title": "Answer",
            "type": "object",
            "properties": {
                "name": {"type": "string", "format": "email"},
                "age": {"type": ["integer", "null"], "minimum": 0},
                "kind": {"anyOf": [{"const": "a", "description": "first"}, {"enum": ["b", "c"]}, nothing]},
                "node": {"anyOf": [described, nothing]},
                "list": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Node"}, "minItems": 1}, nothing]},
            },
            "required": ["name", "age", "kind", "node", "list"],
            "additionalProperties": false,
            "$defs": {"Node": node},
        }}})
    );
}

#[test]
fn encode_output_schema_beyond_strict_mode_is_sent_unchanged() {
    for schema in [
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "properties": {"any": {}}}),
        json!({"type": "object", "properties": {"any": true}}),
        json!({"type": "object", "properties": {"x": {"not": {"type": "string"}}}}),
        json!({"type": "object", "properties": {"x": {"allOf": [{"type": "string"}, {"type": "string"}]}}}),
        json!({"type": "object", "properties": {"x": {"type": "array"}}}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"type": "object"}]}),
    ] {
        let (format, warnings) = output(&ChatCompletions::default(), &schema);
        assert_eq!(
            format,
            json!({"type": "json_schema", "json_schema": {"name": "my_answer_", "strict": false, "schema": schema}})
        );
        assert_eq!(warnings, 1, "{schema}");
    }
}

#[test]
fn encode_output_schema_with_a_described_reference_to_itself_terminates() {
    let schema = json!({"type": "object", "properties": {"next": {"$ref": "#", "description": "more"}}});
    let (format, _) = output(&ChatCompletions::default(), &schema);
    assert_eq!(format["json_schema"]["strict"], true);
}

#[test]
fn encode_output_schema_without_strict_follows_the_service() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    let (format, _) = output(&ChatCompletions::default().with_output(OutputSupport::Schema), &schema);
    assert_eq!(format["json_schema"], json!({"name": "my_answer_", "strict": false, "schema": schema}));

    let chat = ChatCompletions::default().with_output(OutputSupport::Object);
    assert_eq!(output(&chat, &schema).0, json!({"type": "json_object"}));
    for (system, start) in
        [(Some("Be brief."), "Be brief.\n\nAnswer with one JSON"), (None, "Answer with one JSON")]
    {
        let output = OutputSchema::new("x", Schema::new(schema.clone()).unwrap());
        let mut request = with(Options::default().with_output(output));
        request.system = system.map(Into::into);
        let body = encode(&chat, &request);
        let said = body["messages"][0]["content"].as_str().unwrap();
        assert!(said.starts_with(start) && said.ends_with(&schema.to_string()), "{said}");
    }
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
    let (format, _) = output(&ChatCompletions::openai(), &schema);
    let text = format.to_string();
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
}

#[test]
fn encode_message_with_more_calls_than_the_service_accepts_is_split() {
    let encoded = |count: usize| {
        let calls: Vec<ToolUse> =
            (0..count).map(|number| ToolUse::new(format!("c{number}"), "weather", json!({}))).collect();
        let results = calls.iter().rev().map(|call| Content::from(ToolResult::ok(call, "ok")));
        let results: Vec<Content> = results.chain(["And?".into()]).collect();
        let asked = [Content::from("Wait.")].into_iter().chain(calls.into_iter().map(Content::from));
        messages([Message::user("Hi"), Message::assistant(asked.collect::<Vec<_>>()), Message::user(results)])
    };
    for (count, parts) in [(128, vec![128]), (129, vec![128, 1]), (300, vec![128, 128, 44])] {
        let sent = encoded(count);
        let sent = sent.as_array().unwrap();
        let mut messages = sent[1..].iter();
        let mut number = 0;
        for (index, part) in parts.into_iter().enumerate() {
            let asked = messages.next().unwrap();
            assert_eq!(asked["content"], if index == 0 { json!("Wait.") } else { Value::Null });
            let calls =
                asked["tool_calls"].as_array().unwrap().iter().map(|call| call["id"].as_str().unwrap());
            let mut ids: Vec<String> = (number..number + part).map(|number| format!("c{number}")).collect();
            assert_eq!(calls.collect::<Vec<_>>(), ids);
            number += part;
            ids.reverse();
            let results = messages.by_ref().take(part).map(|result| result["tool_call_id"].as_str().unwrap());
            assert_eq!(results.collect::<Vec<_>>(), ids);
        }
        assert_eq!(messages.map(|message| &message["content"]).collect::<Vec<_>>(), ["And?"]);
    }
}

#[test]
fn encode_effort_for_a_mistral_model_is_one_that_it_has() {
    let sent = |model: &str, chat: &ChatCompletions, mode: ThinkingMode| {
        let mut request = Request::prompt("Hi").with_options(Options::default().with_thinking(mode));
        request.model = model.into();
        let encoded = chat.encode(&request).unwrap();
        let effort = encoded.body.get("reasoning_effort").and_then(Value::as_str).map(str::to_owned);
        (effort.unwrap_or_default(), encoded.warnings.len())
    };
    let chat = ChatCompletions::default();
    for model in ["mistral-small-latest", "mistralai/mistral-medium-3-5", "magistral-small-2509"] {
        assert_eq!(sent(model, &chat, Effort::Medium.into()), ("high".to_owned(), 1), "{model}");
        assert_eq!(sent(model, &chat, Effort::High.into()), ("high".to_owned(), 0), "{model}");
        assert_eq!(sent(model, &chat, ThinkingMode::Off), ("none".to_owned(), 0), "{model}");
    }
    assert_eq!(sent("magistral-medium-latest", &chat, Effort::Medium.into()), (String::new(), 1));
    for model in ["mistral-large-4-0", "devstral-small-2", "m"] {
        assert_eq!(sent(model, &chat, Effort::Medium.into()), ("medium".to_owned(), 0), "{model}");
    }
    // What the application sets takes precedence.
    let chat = chat.with_thinking(ThinkingField::Effort(EffortWords::OPENAI));
    assert_eq!(sent("mistral-small-latest", &chat, Effort::Medium.into()), ("medium".to_owned(), 0));
}

#[test]
fn encode_for_a_mistral_model_shortens_ids_and_separates_results_from_user_messages() {
    let calls = ["call_1", "abcDEF123"].map(|id| ToolUse::new(id, "weather", json!({})));
    let results = calls.iter().map(|call| Content::from(ToolResult::ok(call, "ok")));
    let results = results.chain(["And in Rome?".into()]).collect::<Vec<_>>();
    let uses = calls.iter().cloned().map(Content::from).collect::<Vec<_>>();
    let mut request = Request::new(History::from_iter([
        Message::user("Hi"),
        Message::assistant(uses),
        Message::user(results),
    ]));
    let roles = |body: &Value| -> Vec<String> {
        let messages = body["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    for model in ["mistral-large-latest", "mistralai/devstral-small", "open-mixtral-8x7b"] {
        request.model = model.into();
        let body = encode(&ChatCompletions::default(), &request);
        assert_eq!(roles(&body), ["user", "assistant", "tool", "tool", "assistant", "user"], "{model}");
        let ids = |path: &str| body.pointer(path).unwrap().as_str().unwrap().to_owned();
        let short = ids("/messages/1/tool_calls/0/id");
        assert!(short.len() == 9 && short.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{short}");
        assert_eq!(ids("/messages/2/tool_call_id"), short);
        assert_eq!(ids("/messages/1/tool_calls/1/id"), "abcDEF123");
        assert_eq!(ids("/messages/3/tool_call_id"), "abcDEF123");
    }
    request.model = "m-1".into();
    let other = encode(&ChatCompletions::default(), &request);
    assert_eq!(roles(&other), ["user", "assistant", "tool", "tool", "user"]);
    assert_eq!(other["messages"][2]["tool_call_id"], "call_1");
    let set = encode(&ChatCompletions::default().with_mistral_calls(), &request);
    assert_eq!(roles(&set).len(), 6);
}

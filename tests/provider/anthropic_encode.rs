//! Anthropic's Messages format: the parts of a request other than the messages.

use omni_agent::{
    message::Message,
    provider::{CacheHint, Effort, Options, OutputSchema, Request, ThinkingMode, ToolChoice},
    tool::Schema,
};
use serde_json::{Map, Value, json};

use crate::anthropic::{encode, tools};

const SONNET: &str = "claude-sonnet-4-5-20250929";

/// Encodes a request and returns its body and its warnings. The model, the stream flag, the messages and the tools
/// never vary, so they are removed from the body.
fn body(model: &str, options: Options) -> (Value, Vec<String>) {
    let tools = tools(&[("add", "Adds.", json!({"type": "object"}))]);
    let encoded = encode(Request::prompt("Hi").with_tools(tools).with_options(options), model);
    let mut body = encoded.body;
    for key in ["model", "stream", "messages", "tools"] {
        assert!(body.shift_remove(key).is_some());
    }
    (Value::Object(body), encoded.warnings)
}

fn thinking(mode: ThinkingMode) -> Options {
    Options::default().with_thinking(mode)
}

#[test]
fn encode_plain_request_gives_the_whole_body() {
    let encoded = encode(Request::prompt("Hi").with_system("Be brief."), SONNET);
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "model": SONNET,
            "max_tokens": 32_000,
            "stream": true,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        })
    );
    assert_eq!(encoded.warnings, Vec::<String>::new());
}

#[test]
fn encode_full_request_gives_the_whole_body() {
    let schema =
        json!({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}});
    let answer =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "additionalProperties": false});
    let options = Options::default()
        .with_max_tokens(300)
        .with_temperature(0.7)
        .with_stop_sequences(["END"])
        .with_tool_choice(ToolChoice::Tool("add".into()))
        .with_cache(CacheHint::Short)
        .with_output(OutputSchema::new("sum", Schema::new(answer.clone()).unwrap()))
        .with_metadata(Map::from_iter([("user_id".into(), "u-1".into())]));
    let request = Request::prompt("1 + 2?")
        .with_system("Add.")
        .with_tools(tools(&[("list", "", json!({})), ("add", "Adds two numbers.", schema.clone())]))
        .with_options(options);
    let encoded = encode(request, SONNET);
    assert_eq!(encoded.warnings, Vec::<String>::new());
    assert_eq!(
        Value::Object(encoded.body),
        json!({
            "model": SONNET,
            "max_tokens": 300,
            "stream": true,
            "system": [{"type": "text", "text": "Add.", "cache_control": {"type": "ephemeral"}}],
            "tools": [
                {"name": "list", "input_schema": {"type": "object", "properties": {}}},
                {"name": "add", "description": "Adds two numbers.", "input_schema": schema,
                    "cache_control": {"type": "ephemeral"}},
            ],
            "tool_choice": {"type": "tool", "name": "add"},
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "1 + 2?", "cache_control": {"type": "ephemeral"}},
            ]}],
            "temperature": 0.7,
            "stop_sequences": ["END"],
            "output_config": {"format": {"type": "json_schema", "schema": answer}},
            "metadata": {"user_id": "u-1"},
        })
    );
}

#[test]
fn encode_same_request_twice_gives_the_same_bytes() {
    let request = || {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        Request::prompt("Hi")
            .with_system("S")
            .with_tools(tools(&[("t", "d", schema)]))
            .with_options(thinking(ThinkingMode::Effort(Effort::Low)).with_cache(CacheHint::Long))
    };
    let bytes = || serde_json::to_string(&encode(request(), SONNET).body).unwrap();
    assert_eq!(bytes(), bytes());
}

#[test]
fn encode_sampling_numbers_keep_their_digits() {
    let options = Options::default().with_temperature(0.1).with_top_p(0.3);
    let encoded = encode(Request::prompt("Hi").with_options(options), "some-model");
    let text = serde_json::to_string(&encoded.body).unwrap();
    assert!(text.ends_with(r#""temperature":0.1,"top_p":0.3}"#), "{text}");
}

#[test]
fn encode_levels_on_older_models_become_budgets_below_max_tokens() {
    let levels = [
        (Effort::Minimal, 1024),
        (Effort::Low, 4096),
        (Effort::Medium, 16_384),
        (Effort::High, 24_576),
        (Effort::Max, 32_768),
    ];
    let models = [SONNET, "claude-opus-4-1-20250805", "claude-sonnet-4-20250514", "claude-3-7-sonnet-latest"];
    for model in models.into_iter().chain(["claude-haiku-4-5", "anthropic/claude-opus-4.5", "kimi-k2"]) {
        for (effort, budget) in levels {
            let expected = json!({
                "max_tokens": (budget + 4096).max(32_000),
                "thinking": {"type": "enabled", "budget_tokens": budget},
            });
            assert_eq!(body(model, thinking(ThinkingMode::Effort(effort))), (expected, vec![]), "{model}");
        }
    }
}

#[test]
fn encode_levels_on_newer_models_become_adaptive_effort() {
    let levels = [
        (Effort::Minimal, "low"),
        (Effort::Low, "low"),
        (Effort::Medium, "medium"),
        (Effort::High, "high"),
        (Effort::Max, "max"),
    ];
    let hidden = ["us.anthropic.claude-opus-4-7-v1:0", "claude-fable-5", "claude-sonnet-5", "claude-opus-5"];
    let hidden = hidden.into_iter().chain(["claude-mythos-preview"]).map(|model| (model, true));
    for (model, hides) in [("claude-opus-4-6", false), ("claude-sonnet-4-6", false)].into_iter().chain(hidden)
    {
        let mut adaptive = json!({"type": "adaptive"});
        if hides {
            adaptive["display"] = "summarized".into();
        }
        for (effort, word) in levels {
            let expected = json!({
                "max_tokens": 32_000,
                "thinking": adaptive,
                "output_config": {"effort": word},
            });
            assert_eq!(body(model, thinking(ThinkingMode::Effort(effort))), (expected, vec![]), "{model}");
        }
    }
}

#[test]
fn encode_effort_with_output_schema_shares_the_output_config() {
    let schema = json!({"type": "object", "properties": {}, "additionalProperties": false});
    let output = OutputSchema::new("x", Schema::new(schema.clone()).unwrap());
    let options = thinking(ThinkingMode::Effort(Effort::High)).with_output(output);
    let (body, _) = body("claude-opus-4-6", options);
    let format = json!({"type": "json_schema", "schema": schema});
    assert_eq!(body["output_config"], json!({"effort": "high", "format": format}));
}

#[test]
fn encode_budget_is_sent_if_the_model_accepts_one() {
    for model in [SONNET, "claude-opus-4-6"] {
        let expected = json!({"max_tokens": 32_000, "thinking": {"type": "enabled", "budget_tokens": 2000}});
        assert_eq!(body(model, thinking(ThinkingMode::Budget(2000))), (expected, vec![]));
    }
    let (newer, warnings) = body("claude-opus-4-7", thinking(ThinkingMode::Budget(20_000)));
    assert_eq!(
        newer,
        json!({"max_tokens": 32_000, "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {"effort": "medium"}})
    );
    assert_eq!(warnings.len(), 1);
    let (small, warnings) = body(SONNET, thinking(ThinkingMode::Budget(10)));
    assert_eq!(small["thinking"]["budget_tokens"], 1024);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn encode_limit_below_the_budget_lowers_the_budget() {
    let limited = |limit| thinking(ThinkingMode::Effort(Effort::High)).with_max_tokens(limit);
    let (body_8000, warnings) = body(SONNET, limited(8000));
    assert_eq!(
        body_8000,
        json!({"max_tokens": 8000, "thinking": {"type": "enabled", "budget_tokens": 6000}})
    );
    assert_eq!(warnings.len(), 1);
    for limit in [1, 1024, 1025, 1200, 24_576] {
        let (body, warnings) = body(SONNET, limited(limit));
        let budget = body["thinking"]["budget_tokens"].as_u64().unwrap();
        assert!((1024..body["max_tokens"].as_u64().unwrap()).contains(&budget), "{limit}: {body}");
        assert_eq!(warnings.len(), 1);
    }
}

#[test]
fn encode_thinking_off_has_the_form_of_each_model() {
    let off = |model| body(model, thinking(ThinkingMode::Off));
    for model in [SONNET, "claude-opus-4-6", "claude-sonnet-5", "claude-opus-5"] {
        assert_eq!(off(model), (json!({"max_tokens": 32_000, "thinking": {"type": "disabled"}}), vec![]));
    }
    let between = json!({"max_tokens": 32_000, "thinking": {"type": "between_tools"}});
    assert_eq!(off("claude-sonnet-5-5"), (between, vec![]));
    assert_eq!(off("claude-3-5-haiku-latest"), (json!({"max_tokens": 4096}), vec![]));
    for (model, bound) in
        [("claude-opus-5-5", true), ("claude-fable-5-1", true), ("claude-mythos-preview", false)]
    {
        let (mut body, warnings) = off(model);
        let thinking = body.as_object_mut().unwrap().shift_remove("thinking");
        assert_eq!(thinking.map(|thinking| thinking["type"] == "adaptive"), bound.then_some(true), "{model}");
        assert_eq!(body, json!({"max_tokens": 32_000, "output_config": {"effort": "low"}}));
        assert_eq!(warnings.len(), 1);
    }
}

#[test]
fn encode_thinking_bound_to_its_prefix_may_be_dropped() {
    let bound = json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let mut shown = bound.clone();
    shown["display"] = "summarized".into();
    let always = ["claude-fable-5-1", "claude-mythos-5-2", "claude-opus-5-5-20260922"];
    let models = always.into_iter().chain(["anthropic/claude-sonnet-5.5", "claude-haiku-5-5"]);
    for model in models {
        let (plain, warnings) = body(model, Options::default());
        assert_eq!(plain, json!({"max_tokens": 32_000, "thinking": shown}), "{model}");
        assert_eq!(warnings, Vec::<String>::new());
        let (effort, _) = body(model, thinking(ThinkingMode::Effort(Effort::High)));
        let expected = json!({"max_tokens": 32_000, "thinking": shown, "output_config": {"effort": "high"}});
        assert_eq!(effort, expected, "{model}");
    }
    for model in always {
        assert_eq!(body(model, thinking(ThinkingMode::Off)).0["thinking"], bound, "{model}");
    }
    // The service accepts the binding only together with adaptive thinking.
    for (model, off) in [("claude-sonnet-5-5", "between_tools"), ("claude-haiku-5-5", "disabled")] {
        let (body, _) = body(model, thinking(ThinkingMode::Off));
        assert_eq!(body, json!({"max_tokens": 32_000, "thinking": {"type": off}}), "{model}");
    }
    for model in ["claude-opus-5", "claude-sonnet-5", "claude-haiku-4-5", "kimi-k5.5"] {
        assert_eq!(body(model, Options::default()).0, json!({"max_tokens": 32_000}), "{model}");
    }
}

#[test]
fn encode_thinking_for_a_model_that_does_not_think_is_omitted() {
    let (body, warnings) = body("claude-3-5-sonnet-20241022", thinking(ThinkingMode::Effort(Effort::Low)));
    assert_eq!(body, json!({"max_tokens": 4096}));
    assert_eq!(warnings.len(), 1);
}

#[test]
fn encode_sampling_that_a_model_refuses_is_omitted() {
    let sampling = |options: Options| options.with_temperature(0.5).with_top_p(0.5);
    for (model, options, kept) in [
        ("claude-sonnet-4-20250514", Options::default(), json!({"temperature": 0.5, "top_p": 0.5})),
        (SONNET, Options::default(), json!({"temperature": 0.5})),
        (SONNET, thinking(ThinkingMode::Effort(Effort::Low)), json!({})),
        ("claude-opus-4-6", thinking(ThinkingMode::Effort(Effort::Low)), json!({})),
        ("claude-opus-4-7", Options::default(), json!({})),
        ("claude-sonnet-5", Options::default(), json!({})),
        ("claude-haiku-5-5", Options::default(), json!({})),
        ("claude-fable-5", Options::default(), json!({})),
    ] {
        let (mut body, warnings) = body(model, sampling(options));
        for key in ["max_tokens", "thinking", "output_config"] {
            body.as_object_mut().unwrap().shift_remove(key);
        }
        assert_eq!(warnings.len(), 2 - kept.as_object().unwrap().len(), "{model}: {warnings:?}");
        assert_eq!(body, kept, "{model}");
    }
    let one = Options::default().with_temperature(1.0);
    assert_eq!(body("claude-opus-4-7", one.clone()), (json!({"max_tokens": 32_000}), vec![]));
    let thinks = one.with_thinking(ThinkingMode::Budget(1024)).with_top_p(0.97);
    assert_eq!(body("claude-sonnet-4-0", thinks.clone()).0["temperature"], 1.0);
    assert_eq!(body("claude-sonnet-4-0", thinks).0["top_p"], 0.97);
}

#[test]
fn encode_temperature_out_of_range_becomes_the_nearest_valid_value() {
    let (warm, warnings) = body(SONNET, Options::default().with_temperature(1.6));
    assert_eq!((warm["temperature"].as_f64(), warnings.len()), (Some(1.0), 1));
    let (other, warnings) = body("other", Options::default().with_temperature(1.6));
    assert_eq!((other["temperature"].as_f64(), warnings.len()), (Some(1.6), 0));
    let (none, warnings) =
        body("other", Options::default().with_temperature(f64::NAN).with_top_p(f64::INFINITY));
    assert_eq!((none, warnings.len()), (json!({"max_tokens": 32_000}), 2));
}

#[test]
fn encode_tool_choice_has_a_form_for_each_variant() {
    for (choice, value) in [
        (ToolChoice::Auto, json!({"type": "auto"})),
        (ToolChoice::None, json!({"type": "none"})),
        (ToolChoice::Required, json!({"type": "any"})),
        (ToolChoice::Tool("add".into()), json!({"type": "tool", "name": "add"})),
    ] {
        let (body, warnings) = body(SONNET, Options::default().with_tool_choice(choice));
        assert_eq!((body["tool_choice"].clone(), warnings), (value, vec![]));
    }
}

#[test]
fn encode_forced_tool_becomes_auto_if_the_model_refuses_it() {
    let demanded = |options: Options| options.with_tool_choice(ToolChoice::Required);
    for (model, options) in [
        (SONNET, thinking(ThinkingMode::Effort(Effort::Low))),
        ("claude-opus-4-6", thinking(ThinkingMode::Effort(Effort::Low))),
        ("claude-opus-5-5", Options::default()),
        ("claude-sonnet-5-5", Options::default()),
        ("claude-fable-5-1", Options::default()),
    ] {
        let (body, warnings) = body(model, demanded(options));
        assert_eq!((&body["tool_choice"], warnings.len()), (&json!({"type": "auto"}), 1), "{model}");
    }
    let none = thinking(ThinkingMode::Effort(Effort::Low)).with_tool_choice(ToolChoice::None);
    let (body, warnings) = body(SONNET, none);
    assert_eq!((&body["tool_choice"], warnings.len()), (&json!({"type": "none"}), 0));
}

#[test]
fn encode_tool_choice_without_tools_is_omitted() {
    let choose = |choice| {
        let options = Options::default().with_tool_choice(choice);
        encode(Request::prompt("Hi").with_options(options), SONNET)
    };
    let auto = choose(ToolChoice::Auto);
    assert_eq!((auto.body.get("tool_choice"), auto.warnings.len()), (None, 0));
    let required = choose(ToolChoice::Required);
    assert_eq!((required.body.get("tool_choice"), required.warnings.len()), (None, 1));
}

#[test]
fn encode_metadata_sends_only_the_user_id() {
    let metadata = json!({"team": "red", "user_id": "u-7"});
    let options = Options::default().with_metadata(metadata.as_object().unwrap().clone());
    let (with_id, warnings) = body(SONNET, options);
    assert_eq!((&with_id["metadata"], warnings.len()), (&json!({"user_id": "u-7"}), 1));
    let options = Options::default().with_metadata(Map::from_iter([("user_id".into(), 7.into())]));
    let (number, warnings) = body(SONNET, options);
    assert_eq!((number.get("metadata"), warnings.len()), (None, 1));
}

#[test]
fn encode_blank_system_and_stop_sequences_are_omitted() {
    let options = Options::default().with_stop_sequences(vec!["\n".into(), String::new()]);
    let encoded = encode(Request::prompt("Hi").with_system(" \n").with_options(options), SONNET);
    assert!(!encoded.body.contains_key("system"));
    assert!(!encoded.body.contains_key("stop_sequences"));
    assert_eq!(encoded.warnings.len(), 1);
}

#[test]
fn encode_long_cache_requests_one_hour() {
    let encoded =
        encode(Request::prompt("Hi").with_options(Options::default().with_cache(CacheHint::Long)), SONNET);
    assert_eq!(
        encoded.body["messages"][0]["content"][0]["cache_control"],
        json!({"type": "ephemeral", "ttl": "1h"})
    );
}

#[test]
fn encode_output_schema_with_unsupported_keywords_moves_them_to_descriptions() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "minimum": {"type": "integer", "format": "uint32", "minimum": 0, "description": "A count."},
            "day": {"type": "string", "format": "date"},
            "names": {"type": "array", "items": {"$ref": "#/$defs/Name"}, "minItems": 1, "maxItems": 3},
            "one": {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
        },
        "required": ["minimum"],
        "$defs": {"Name": {"type": "object", "properties": {"n": {"const": 1}}, "additionalProperties": true}},
    });
    let output = OutputSchema::new("out", Schema::new(schema).unwrap());
    let (body, warnings) = body(SONNET, Options::default().with_output(output));
    assert_eq!(
        body["output_config"]["format"]["schema"],
        json!({
            "type": "object",
            "properties": {
                "minimum": {"type": "integer", "description": "A count. (format: \"uint32\", minimum: 0)"},
                "day": {"type": "string", "format": "date"},
                "names": {"type": "array", "items": {"$ref": "#/$defs/Name"}, "minItems": 1,
                    "description": "(maxItems: 3)"},
                "one": {"anyOf": [{"type": "null"}, {"type": "string", "description": "(maxLength: 5)"}]},
            },
            "required": ["minimum"],
            "$defs": {"Name": {"type": "object", "properties": {"n": {"const": 1}}, "additionalProperties": false}},
            "additionalProperties": false,
        })
    );
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn encode_extra_and_timeout_are_left_to_the_endpoint() {
    let options = Options::default()
        .with_extra(Map::from_iter([("top_k".into(), 5.into())]))
        .with_timeout(std::time::Duration::from_secs(1))
        .with_max_retries(7);
    assert_eq!(body(SONNET, options), (json!({"max_tokens": 32_000}), vec![]));
}

#[test]
fn encode_cache_mark_is_on_the_last_block_that_may_carry_it() {
    let mut assistant = Message::assistant("Hello");
    assistant.content.push(omni_agent::message::Content::ProviderItem(
        omni_agent::message::ProviderItem::new(
            "anthropic_messages",
            json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}),
        ),
    ));
    let request = Request::new([Message::user("Hi"), assistant].into_iter().collect())
        .with_options(Options::default().with_cache(CacheHint::Short));
    assert_eq!(
        encode(request, SONNET).body["messages"][1]["content"],
        json!([
            {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        ])
    );
}

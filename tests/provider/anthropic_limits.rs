//! Anthropic's Messages format: the output limit of a request that sets none, and the text of the thinking.

use omni_agent::{
    message::{Attachment, Content, Message},
    provider::{
        Effort, ModelInfo, Options, Request, ThinkingMode, ToolChoice,
        custom::{AnthropicMessages, Dialect},
        http::Endpoint,
    },
};
use serde_json::{Map, Value, json};

fn sent(mut request: Request, model: &str) -> Map<String, Value> {
    request.model = model.into();
    AnthropicMessages::default().encode(&request).unwrap().body
}

fn thinking(mode: impl Into<ThinkingMode>) -> Options {
    Options::default().with_thinking(mode)
}

/// Returns `max_tokens` of a request to a model with these limits.
fn limit(request: &Request, window: u64, output: u64) -> Value {
    let info = ModelInfo::new("m").with_context_window(window).with_output_limit(output);
    sent(request.clone().with_model_info(info), "claude-haiku-4-5")["max_tokens"].clone()
}

#[test]
fn encode_request_without_a_limit_leaves_room_for_thinking() {
    for (mode, expected) in [
        (None, 32_000),
        (Some(ThinkingMode::Off), 32_000),
        (Some(ThinkingMode::Effort(Effort::Medium)), 32_000),
        (Some(ThinkingMode::Budget(27_904)), 32_000),
        (Some(ThinkingMode::Budget(27_905)), 32_001),
        (Some(ThinkingMode::Effort(Effort::Max)), 36_864),
    ] {
        let mut request = Request::prompt("Hi");
        request.options.set_thinking(mode);
        assert_eq!(limit(&request, 200_000, 64_000), expected, "{mode:?}");
    }
    let adaptive = sent(Request::prompt("Hi").with_options(thinking(Effort::High)), "claude-opus-4-7");
    assert_eq!(adaptive["max_tokens"], 32_000);
}

#[test]
fn encode_request_without_a_limit_stays_within_the_limits_of_the_model() {
    let prompt = Request::prompt("Hi");
    assert_eq!(limit(&prompt, 200_000, 8_000), 8_000);
    // A model whose own limit is smaller than the smallest default would reject the default.
    assert_eq!(limit(&prompt, 200_000, 2_000), 2_000);
    // Claude models that do not think have output limits from 4,096 tokens on.
    assert_eq!(sent(prompt, "claude-3-opus-20240229")["max_tokens"], 4096);
}

#[test]
fn encode_request_without_a_limit_leaves_the_estimated_input_out_of_the_window() {
    let long = |bytes: usize| Request::prompt("a".repeat(bytes));
    let of = |bytes| limit(&long(bytes), 40_000, 64_000).as_u64().unwrap();
    assert_eq!(of(3_000), 32_000);
    assert!((9_900..=10_000).contains(&of(90_000)), "{}", of(90_000));
    assert_eq!(of(300_000), 4_096);
    // The data of a file is not text. The service counts it in another way.
    let picture = Attachment::base64("image/png", "A".repeat(300_000));
    let request = Request::prompt(vec![Content::from(picture), "What is this?".into()]);
    assert_eq!(limit(&request, 40_000, 64_000), 32_000);
}

#[test]
fn encode_request_without_a_limit_changes_nothing_but_the_limit_when_the_conversation_grows() {
    let body = |turns: usize| {
        let turn = |_| [Message::user("a".repeat(9_000)), Message::assistant("b")];
        let history = (0..turns).flat_map(turn).chain([Message::user("c")]).collect();
        let info = ModelInfo::new("m").with_context_window(40_000);
        let mut body = sent(Request::new(history).with_model_info(info), "claude-haiku-4-5");
        (body.shift_remove("max_tokens").unwrap(), body.shift_remove("messages").unwrap(), body)
    };
    let ((short, before, first), (long, after, second)) = (body(1), body(8));
    assert_ne!(short, long);
    assert_eq!(serde_json::to_string(&first).unwrap(), serde_json::to_string(&second).unwrap());
    assert_eq!(before.as_array().unwrap()[..2], after.as_array().unwrap()[..2]);
}

#[test]
fn encode_budget_near_a_full_window_falls_in_coarse_steps_without_a_warning() {
    let sent = |bytes: usize, options: Options| {
        let info = ModelInfo::new("m").with_context_window(40_000).with_output_limit(64_000);
        let mut request = Request::prompt("a".repeat(bytes)).with_model_info(info).with_options(options);
        request.model = "claude-haiku-4-5".into();
        let encoded = AnthropicMessages::default().encode(&request).unwrap();
        (encoded.body["thinking"]["budget_tokens"].as_u64().unwrap(), encoded.warnings.len())
    };
    let high = || thinking(Effort::High);
    let mut budgets: Vec<u64> = (0..110_000).step_by(1000).map(|bytes| sent(bytes, high()).0).collect();
    budgets.dedup();
    assert_eq!(budgets, [24_576, 16_384, 4_096, 1_024]);
    assert_eq!(sent(80_000, high()), (4_096, 0));
    // The user's own limit stays the same, so its budget does too.
    assert_eq!(sent(80_000, high().with_max_tokens(10_000)), (7_500, 1));
    assert_eq!(sent(80_000, thinking(ThinkingMode::Budget(24_000))), (4_096, 1));
}

#[test]
fn encode_thinking_that_is_on_requests_its_text() {
    let shown = json!({"type": "adaptive", "display": "summarized"});
    let of = |model: &str, options| {
        sent(Request::prompt("Hi").with_options(options), model).get("thinking").cloned()
    };
    for model in ["claude-opus-4-7", "claude-sonnet-5", "claude-haiku-5-5", "claude-mythos-preview"] {
        assert_eq!(of(model, thinking(Effort::Low)), Some(shown.clone()), "{model}");
    }
    // These models think unless the request turns thinking off, or always.
    for model in ["claude-fable-5", "claude-opus-5-5", "claude-haiku-5-5"] {
        assert_eq!(of(model, Options::default()), Some(shown.clone()), "{model}");
        let forced = Options::default().with_tool_choice(ToolChoice::Required);
        assert_eq!(of(model, forced), None, "{model}");
    }
    assert_eq!(of("claude-fable-5", thinking(ThinkingMode::Off)), None);
    assert_eq!(of("claude-opus-4-7", Options::default()), None);
    // Earlier models show their thinking without the member.
    let plain = json!({"type": "adaptive"});
    assert_eq!(of("claude-opus-4-6", thinking(Effort::Low)), Some(plain));
    let budget = json!({"type": "enabled", "budget_tokens": 4096});
    assert_eq!(of("claude-haiku-4-5", thinking(Effort::Low)), Some(budget));
}

#[test]
fn encode_thinking_of_the_user_decides_about_its_text() {
    let of = |options: Options, own: Value| {
        let extra = Map::from_iter([("thinking".to_owned(), own)]);
        let mut request = Request::prompt("Hi").with_options(options.with_extra(extra));
        request.model = "claude-opus-4-7".into();
        Endpoint::anthropic().preview(&request).unwrap().1.body["thinking"].clone()
    };
    let hidden = of(thinking(Effort::Low), json!({"display": "omitted"}));
    assert_eq!(hidden, json!({"type": "adaptive", "display": "omitted"}));
    let on = of(Options::default(), json!({"type": "adaptive"}));
    assert_eq!(on, json!({"type": "adaptive", "display": "summarized"}));
    for own in [json!({"type": "disabled"}), Value::Null] {
        assert_eq!(of(Options::default(), own.clone()), own);
    }
}

//! In Anthropic's Messages format, a request can bind thinking blocks to their prefix. These tests check which services
//! receive such requests, and how the binding combines with the user's own `thinking` setting.

use omni_agent::provider::{
    Effort, Request, ThinkingMode,
    custom::{AnthropicMessages, Dialect},
    http::Endpoint,
};
use serde_json::{Map, Value, json};

#[test]
fn encode_for_a_service_not_known_to_support_the_binding_omits_it() {
    let mut request = Request::prompt("Hi");
    request.model = "anthropic/claude-opus-5-5".into();
    let plain = AnthropicMessages::default().encode(&request).unwrap();
    let compatible =
        Endpoint::anthropic_compatible("gateway", "http://localhost").preview(&request).unwrap().1;
    let shown = json!({"type": "adaptive", "display": "summarized"});
    for body in [plain.body, compatible.body] {
        assert_eq!(body["thinking"], shown);
    }
    request.options.set_thinking(Some(ThinkingMode::Effort(Effort::Low)));
    let body = AnthropicMessages::default().encode(&request).unwrap().body;
    assert_eq!(body["thinking"], shown);
}

#[test]
fn encode_users_own_thinking_setting_replaces_or_joins_the_binding() {
    let sent = |model: &str, mode: Option<ThinkingMode>, extra: &Value| {
        let mut request = Request::prompt("Hi");
        request.model = model.into();
        request.options.set_thinking(mode);
        request.options.set_extra(Some(Map::from_iter([("thinking".into(), extra.clone())])));
        Endpoint::anthropic().preview(&request).unwrap().1.body["thinking"].clone()
    };
    let binding = json!({"prefix_mismatch_behavior": "drop_block"});
    for mode in [None, Some(ThinkingMode::Effort(Effort::High))] {
        for (model, own) in [("claude-haiku-5-5", "disabled"), ("claude-sonnet-5-5", "between_tools")] {
            assert_eq!(sent(model, mode, &json!({"type": own})), json!({"type": own}), "{model} {mode:?}");
        }
        assert_eq!(sent("claude-haiku-5-5", mode, &Value::Null), Value::Null);
        for own in [json!({"type": "adaptive", "display": "summarized"}), json!({"display": "summarized"})] {
            let expected = json!({"type": "adaptive", "block_binding": binding, "display": "summarized"});
            assert_eq!(sent("claude-opus-5-5", mode, &own), expected, "{mode:?}");
        }
    }
    let own = json!({"display": "summarized"});
    let expected = json!({"type": "between_tools", "display": "summarized"});
    assert_eq!(sent("claude-sonnet-5-5", Some(ThinkingMode::Off), &own), expected);
    let own = json!({"type": "adaptive"});
    let expected = json!({"type": "adaptive", "block_binding": binding, "display": "summarized"});
    assert_eq!(sent("claude-sonnet-5-5", Some(ThinkingMode::Off), &own), expected);
}

//! Members of `Options::extra` that meet members that the request has already.

use omni_agent::{
    provider::{
        CacheHint, Options, Request,
        http::{Endpoint, OpenRouter},
    },
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::{Value, json};

use crate::wires::Wire;

fn tools() -> ToolSet {
    let tool = |name: &str| {
        let schema = Schema::new(json!({"type": "object", "properties": {}})).unwrap();
        declared_tool_with_schema(name, "Looks.", schema)
    };
    ToolSet::new().with(tool("look")).unwrap().with(tool("read")).unwrap()
}

/// Returns the body and the warnings of a request with tools.
fn sent(endpoint: &Endpoint, options: Options) -> (Value, Vec<String>) {
    let mut request = Request::prompt("Hi").with_tools(tools()).with_options(options);
    request.model = "m".into();
    let encoded = endpoint.preview(&request).unwrap().1;
    (Value::Object(encoded.body), encoded.warnings)
}

fn extra(members: Value) -> Options {
    let Value::Object(members) = members else { panic!("{members} is not an object") };
    Options::default().with_extra(members)
}

#[test]
fn tools_of_extra_follow_the_tools_of_the_agent_in_every_format() {
    for wire in Wire::ALL {
        let endpoint = wire.endpoint("http://localhost");
        let plain = sent(&endpoint, Options::default()).0;
        let more = [json!({"type": "web_search"}), json!({"googleSearch": {}})];
        let (mut body, warnings) = sent(&endpoint, extra(json!({"tools": more})));
        let tools = body["tools"].as_array_mut().unwrap();
        let added = tools.split_off(tools.len() - 2);
        assert_eq!((added.as_slice(), &body), (more.as_slice(), &plain), "{wire:?}");
        assert!(warnings.is_empty(), "{wire:?} {warnings:?}");
    }
}

#[test]
fn tools_of_extra_alone_are_sent() {
    for wire in Wire::ALL {
        let more = json!([{"type": "web_search"}]);
        let mut request = Request::prompt("Hi").with_options(extra(json!({"tools": more})));
        request.model = "m".into();
        let encoded = wire.endpoint("http://localhost").preview(&request).unwrap().1;
        assert_eq!((&encoded.body["tools"], encoded.warnings), (&more, vec![]), "{wire:?}");
    }
}

#[test]
fn tool_of_extra_with_the_name_of_an_agents_tool_replaces_it_with_a_warning() {
    for (wire, tool) in [
        (Wire::Messages, json!({"name": "look", "input_schema": {}, "strict": true})),
        (Wire::Responses, json!({"type": "function", "name": "look", "strict": true})),
        (Wire::Chat, json!({"type": "function", "function": {"name": "look", "strict": true}})),
        (Wire::Ollama, json!({"type": "function", "function": {"name": "look", "strict": true}})),
    ] {
        let endpoint = wire.endpoint("http://localhost");
        let plain = sent(&endpoint, Options::default()).0;
        let (body, warnings) = sent(&endpoint, extra(json!({"tools": [tool]})));
        assert_eq!(body["tools"], json!([tool, plain["tools"][1]]), "{wire:?}");
        let name = omni_agent::provider::Provider::name(&endpoint);
        let warning = format!("`extra` replaces `tools.look`: {name} gets only the value of `extra`");
        assert_eq!(warnings, [warning], "{wire:?}");
    }
}

#[test]
fn cache_breakpoint_with_tools_of_extra_stays_on_the_last_tool_of_the_agent() {
    let endpoint = Wire::Messages.endpoint("http://localhost");
    let hint = json!({"type": "ephemeral"});
    let cached = |more: Value| {
        let options = extra(json!({"tools": [more]})).with_cache(CacheHint::Short);
        sent(&endpoint, options).0["tools"].take()
    };
    let tools = cached(json!({"type": "web_search_20250305", "name": "web_search"}));
    assert_eq!((&tools[1]["cache_control"], &tools[2]["cache_control"]), (&hint, &Value::Null));
    let tools = cached(json!({"type": "web_search_20250305", "name": "web_search", "cache_control": hint}));
    assert_eq!((&tools[1]["cache_control"], &tools[2]["cache_control"]), (&hint, &hint));
}

#[test]
fn tool_of_extra_that_replaces_the_last_tool_keeps_its_cache_breakpoint() {
    let endpoint = Wire::Messages.endpoint("http://localhost");
    let replaced = |members: Value| {
        let mut tool = json!({"name": "read", "input_schema": {}});
        tool.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let options = extra(json!({"tools": [tool]})).with_cache(CacheHint::Short);
        sent(&endpoint, options).0["tools"][1]["cache_control"].take()
    };
    assert_eq!(replaced(json!({"strict": true})), json!({"type": "ephemeral"}));
    let long = json!({"type": "ephemeral", "ttl": "1h"});
    assert_eq!(replaced(json!({"cache_control": long})), long);
    // Anthropic rejects the mark for such a tool.
    assert_eq!(replaced(json!({"defer_loading": true})), Value::Null);
}

#[test]
fn function_of_extra_in_gemini_replaces_the_agents_function_of_its_name() {
    let endpoint = Wire::Gemini.endpoint("http://localhost");
    let plain = sent(&endpoint, Options::default()).0["tools"][0]["functionDeclarations"].take();
    let name = omni_agent::provider::Provider::name(&endpoint).to_owned();
    let warning = |tool| format!("`extra` replaces `tools.{tool}`: {name} gets only the value of `extra`");
    let look = json!({"functionDeclarations": [{"name": "look", "description": "Mine."}]});
    let (body, warnings) = sent(&endpoint, extra(json!({"tools": [look]})));
    assert_eq!(body["tools"], json!([{"functionDeclarations": [plain[1]]}, look]));
    assert_eq!(warnings, [warning("look")]);
    let both = json!({"functionDeclarations": [{"name": "look"}, {"name": "read"}], "googleSearch": {}});
    let (body, warnings) = sent(&endpoint, extra(json!({"tools": [both]})));
    assert_eq!((&body["tools"], warnings), (&json!([both]), vec![warning("look"), warning("read")]));
}

#[test]
fn member_of_extra_that_replaces_another_value_is_a_warning_in_every_format() {
    for (wire, members, paths) in [
        (Wire::Chat, json!({"max_tokens": 7, "stream": true}), &["max_tokens"][..]),
        (
            Wire::Chat,
            json!({"stream_options": {"include_usage": false, "more": 1}}),
            &["stream_options.include_usage"],
        ),
        (
            Wire::Responses,
            json!({"max_output_tokens": null, "include": []}),
            &["max_output_tokens", "include"],
        ),
        (Wire::Messages, json!({"max_tokens": 7, "top_k": 5}), &["max_tokens"]),
        (
            Wire::Gemini,
            json!({"generationConfig": {"maxOutputTokens": 7, "seed": 1}}),
            &["generationConfig.maxOutputTokens"],
        ),
        (Wire::Ollama, json!({"options": {"num_predict": 7, "num_ctx": 9}}), &["options.num_predict"]),
        (Wire::Ollama, json!({"options": 5}), &["options"]),
        (Wire::Chat, json!({"tools": {"a": 1}}), &["tools"]),
    ] {
        let endpoint = wire.endpoint("http://localhost");
        let (body, warnings) = sent(&endpoint, extra(members.clone()).with_max_tokens(100));
        let name = omni_agent::provider::Provider::name(&endpoint);
        let expected: Vec<String> = paths
            .iter()
            .map(|path| format!("`extra` replaces `{path}`: {name} gets only the value of `extra`"))
            .collect();
        assert_eq!(warnings, expected, "{wire:?} {members}");
        for path in paths {
            let pointer = format!("/{}", path.replace('.', "/"));
            assert_eq!(body.pointer(&pointer), members.pointer(&pointer), "{wire:?} {members}");
        }
    }
}

#[test]
fn member_of_extra_that_replaces_a_member_of_the_service_is_a_warning() {
    let settings = OpenRouter::default().with_only(["groq"]);
    let endpoint = Endpoint::openrouter_with(settings);
    let (body, warnings) = sent(&endpoint, extra(json!({"provider": {"only": ["azure"], "sort": "price"}})));
    assert_eq!(body["provider"], json!({"only": ["azure"], "sort": "price"}));
    assert_eq!(warnings, ["`extra` replaces `provider.only`: openrouter gets only the value of `extra`"]);
}

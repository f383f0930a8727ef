//! Properties of tool inputs whose names Anthropic rejects: <https://github.com/anthropics/claude-code/issues/79418>.

use std::collections::HashSet;

use omni_agent::{
    message::{History, Message, Timestamp, ToolResult, ToolUse},
    provider::{
        Completion, Options, OutputSchema, Request, StopReason,
        custom::{AnthropicMessages, ChatCompletions, Dialect, Frame},
    },
    testing::internals::Fold,
    tool::Schema,
};
use serde_json::{Map, Value, json};

use crate::anthropic::{block, delta, end, start, stop, tools};

/// A name that is too long.
const LONG: &str = "settings__approved__or__denied__countries__or__regions__approved__list";

fn schema() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["$top", "page"], "properties": {
        "$top": {"type": "integer"}, "_top": {"type": "string"}, "filter[id]": {"type": "string"},
        "filter(id)": {"$ref": "#/properties/filter%5Bid%5D"}, LONG: {"type": "object", "properties": {"$in": {}}},
        "page": {"type": "integer"}, "größe/~": {"type": "string"}, "a.b-C_1": {"$ref": "#/properties/gr%C3%B6%C3%9Fe~1~0"},
    }})
}

/// Returns a request with the tool `list`.
fn offering(history: impl IntoIterator<Item = Message>) -> Request {
    let mut request = Request::new(history.into_iter().collect::<History>())
        .with_tools(tools(&[("list", "", schema()), ("plain", "", json!({"type": "object"}))]));
    request.model = "claude-sonnet-4-5".into();
    request
}

fn encode(request: &Request) -> Value {
    Value::Object(AnthropicMessages::default().encode(request).unwrap().body)
}

/// Returns the names of the properties on the wire, in the order of the schema.
fn names(offered: &Value) -> Vec<String> {
    offered["properties"].as_object().unwrap().keys().cloned().collect()
}

fn input() -> Value {
    json!({"$top": 5, "_top": "no", "filter[id]": "\u{1F600} \"x\"", "filter(id)": "y", LONG: {"$in": [1.50, {"$top": 1}]},
        "page": 2, "größe/~": "z", "a.b-C_1": "w", "$other": null})
}

/// Returns the input with the names on the wire.
fn wire(offered: &Value) -> Value {
    let input = input();
    let mut names: Vec<String> = names(offered);
    names.push("$other".to_owned());
    let members = names.into_iter().zip(input.as_object().unwrap().values().cloned());
    Value::Object(members.collect::<Map<_, _>>())
}

fn decode(request: &Request, events: Vec<Value>, reason: &str) -> Completion {
    let mut decoder = AnthropicMessages::default().decoder(request);
    let (mut deltas, mut fold) = (Vec::new(), Fold::default());
    for event in [vec![start()], events, end(reason).to_vec()].concat() {
        let name = event["type"].as_str().unwrap();
        decoder.decode(Frame::new(name, &event.to_string()), &mut deltas).unwrap();
    }
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold.finish(Timestamp(1)).unwrap()
}

/// Returns the events of a use of this tool, whose input arrives in these pieces.
fn using(index: u64, tool: &str, pieces: &[&str]) -> Vec<Value> {
    let tool_use = json!({"type": "tool_use", "id": format!("t{index}"), "name": tool, "input": {}});
    let piece = |json: &&str| delta(index, json!({"type": "input_json_delta", "partial_json": json}));
    let pieces = pieces.iter().map(piece);
    [block(index, tool_use)].into_iter().chain(pieces).chain([stop(index)]).collect()
}

#[test]
fn encode_properties_have_names_that_anthropic_accepts() {
    let body = encode(&offering([Message::user("Hi")]));
    let offered = &body["tools"][0]["input_schema"];
    let names = names(offered);
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    assert!(names.iter().all(|name| name.len() <= 64 && name.chars().all(fits)), "{names:?}");
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 8, "{names:?}");
    assert_eq!((names[1].as_str(), names[2].as_str(), names[5].as_str()), ("_top", "filter_id_", "page"));
    assert_eq!(offered["required"], json!([names[0], "page"]));
    // References lead to the same properties as before.
    assert_eq!(offered["properties"][&names[3]], json!({"$ref": format!("#/properties/{}", names[2])}));
    assert_eq!(offered["properties"][&names[7]], json!({"$ref": format!("#/properties/{}", names[6])}));
    Schema::new(offered.clone()).unwrap();
    // Only the names at the top level are restricted.
    assert_eq!(offered["properties"][&names[4]], schema()["properties"][LONG]);
    assert_eq!(body, encode(&offering([Message::user("Hi")])));
}

#[test]
fn encode_properties_for_other_formats_keep_their_names() {
    let mut body = ChatCompletions::openai().encode(&offering([Message::user("Hi")])).unwrap().body;
    assert_eq!(body["tools"][0]["function"]["parameters"].take(), schema());
}

#[test]
fn decode_input_has_the_declared_names() {
    let request = offering([Message::user("Hi")]);
    let text = wire(&encode(&request)["tools"][0]["input_schema"]).to_string();
    for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
        let (first, second) = text.split_at(at);
        let events =
            [using(0, "plain", &["{\"filter_id_\":1}"]), using(1, "list", &[first, second])].concat();
        let answer = decode(&request, events, "tool_use");
        let uses: Vec<(&str, &Value)> =
            answer.message.tool_uses().map(|call| (call.name.as_str(), &call.input)).collect();
        assert_eq!(uses, [("plain", &json!({"filter_id_": 1})), ("list", &input())], "{at}");
        assert_eq!(answer.stop_reason, StopReason::ToolUse);
    }
    // Names that the model does not convert are accepted too.
    let answer = decode(&request, using(0, "list", &["{\"$top\": 1}"]), "tool_use");
    assert_eq!(answer.message.tool_uses().next().unwrap().input, json!({"$top": 1}));
}

#[test]
fn decode_input_that_was_cut_or_is_missing_is_kept_as_it_is() {
    let request = offering([Message::user("Hi")]);
    for open in [true, false] {
        let mut events = using(0, "list", &["{\"_top\":", " \"x"]);
        if open {
            events.pop();
        }
        let answer = decode(&request, events, "max_tokens");
        let call = answer.message.tool_uses().next().unwrap().clone();
        assert_eq!(call.malformed.as_deref(), Some("{\"_top\": \"x"));
    }
    let answer = decode(&request, using(0, "list", &[]), "tool_use");
    assert_eq!(answer.message.tool_uses().next().unwrap().input, json!({}));
}

#[test]
fn encode_uses_in_the_history_have_the_names_on_the_wire() {
    let uses = [ToolUse::new("a", "list", input()), ToolUse::new("b", "plain", input())];
    let results: Vec<ToolResult> = uses.iter().map(|call| ToolResult::error(call, "no")).collect();
    let body =
        encode(&offering([Message::user("Hi"), Message::assistant(uses.to_vec()), Message::user(results)]));
    let content = &body["messages"][1]["content"];
    assert_eq!(content[0]["input"], wire(&body["tools"][0]["input_schema"]));
    assert_eq!(content[1]["input"], input());
}

#[test]
fn output_whose_properties_have_other_names_is_decoded_with_the_declared_names() {
    let output = OutputSchema::new("place", Schema::new(schema()).unwrap());
    let mut request = Request::prompt("Hi").with_options(Options::default().with_output(output));
    request.model = "claude-3-haiku-20240307".into();
    let body = encode(&request);
    let text = wire(&body["tools"][0]["input_schema"]).to_string();
    let (first, second) = text.split_at(7);
    let answer = decode(&request, using(0, "place", &[first, second]), "tool_use");
    assert_eq!(serde_json::from_str::<Value>(&answer.message.text()).unwrap(), input());
    assert_eq!(answer.stop_reason, StopReason::Stop);
}

/// An object below the top level that has the same schema, such as a group of filters in a group, keeps its names.
#[test]
fn recursive_input_has_the_declared_names_at_each_level() {
    let list = json!({"type": "object", "required": ["filter[id]"], "properties": {
        "filter[id]": {"type": "string"}, "child": {"$ref": "#"}, "same": {"$ref": "#/properties/filter%5Bid%5D"},
    }});
    let mut request = Request::prompt("Hi").with_tools(tools(&[("list", "", list.clone())]));
    request.model = "claude-sonnet-4-5".into();
    let offered = encode(&request)["tools"][0]["input_schema"].take();
    let below = json!({"filter[id]": "x", "child": {"filter[id]": "y", "same": "z"}});
    let sent = json!({"filter_id_": "w", "child": below});
    let (offered, declared) = (Schema::new(offered).unwrap(), Schema::new(list).unwrap());
    offered.validate(&sent).unwrap();
    let answer = decode(&request, using(0, "list", &[&sent.to_string()]), "tool_use");
    let input = &answer.message.tool_uses().next().unwrap().input;
    assert_eq!(*input, json!({"filter[id]": "w", "child": below}));
    declared.validate(input).unwrap();
    assert!(offered.validate(&json!({"filter_id_": "w", "child": {"filter_id_": "x"}})).is_err());
}

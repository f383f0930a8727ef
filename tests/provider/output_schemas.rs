//! Output schemas that a service does not support. The schema may be sent in another form, but the original values must
//! remain valid in every form.

use std::collections::{BTreeMap, HashMap};

use omni_agent::{
    provider::{
        Options, OutputSchema, Request,
        custom::{AnthropicMessages, ChatCompletions, Dialect, Encoded, OpenAiResponses, OutputSupport},
    },
    tool::Schema,
};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

fn asking(schema: Value) -> Request {
    let output = OutputSchema::new("out", Schema::new(schema).unwrap());
    let mut request = Request::prompt("Hi").with_options(Options::default().with_output(output));
    request.model = "claude-sonnet-4-5".into();
    request
}

fn of<T: JsonSchema>() -> Value {
    Schema::of::<T>().as_value().clone()
}

fn formats() -> [Box<dyn Dialect>; 3] {
    [
        Box::new(ChatCompletions::openai()),
        Box::new(OpenAiResponses::openai()),
        Box::new(AnthropicMessages::default()),
    ]
}

/// Returns the schema that is sent. The second value is `true` if it is sent as the service's output schema, and
/// `false` if it is sent as the schema of a tool.
fn held_to(Encoded { body, .. }: &Encoded) -> (&Value, bool) {
    let body = |place: &str| {
        let (first, rest) = place.split_once('/')?;
        body.get(first)?.pointer(&format!("/{rest}"))
    };
    let own = ["response_format/json_schema/schema", "text/format/schema", "output_config/format/schema"];
    let tool = || body("tools/0/input_schema").map(|schema| (schema, false));
    own.iter().find_map(|place| body(place)).map(|schema| (schema, true)).or_else(tool).unwrap()
}

/// Returns whether the schema allows the value, either directly or wrapped in an object. The root of the schema must be
/// an object.
fn takes(schema: &Value, value: &Value) -> bool {
    assert_eq!(schema["type"], "object", "services accept no other root: {schema}");
    let schema = Schema::new(schema.clone()).unwrap();
    [value.clone(), json!({"value": value})].iter().any(|value| schema.validate(value).is_ok())
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Drawing {
    name: String,
    #[serde(flatten)]
    shape: Shape,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Shape {
    Circle { radius: u32 },
    Square { side: u32 },
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Stock {
    by_name: HashMap<String, u32>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Tree {
    name: String,
    children: Vec<Tree>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct First {
    second: Option<Box<Second>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Second {
    first: First,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Loose {
    data: Value,
    more: Map<String, Value>,
}

/// Returns unusual schemas, each with a value that uses all of its properties.
fn awkward() -> Vec<(Value, Value)> {
    let part =
        |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]});
    let with = |mut schema: Value, key: &str, value: Value| {
        schema[key] = value;
        schema
    };
    let leaf = json!({"name": "leaf", "children": []});
    vec![
        (of::<Drawing>(), json!({"name": "a", "kind": "circle", "radius": 1})),
        (of::<Vec<Drawing>>(), json!([{"name": "a", "kind": "square", "side": 1}])),
        (with(part("a"), "anyOf", json!([part("b"), part("c")])), json!({"a": 1, "c": 2})),
        (with(part("a"), "allOf", json!([part("b")])), json!({"a": 1, "b": 2})),
        (with(part("a"), "allOf", json!([part("b"), part("c")])), json!({"a": 1, "b": 2, "c": 3})),
        (
            with(with(part("a"), "$ref", json!("#/$defs/b")), "$defs", json!({"b": part("b")})),
            json!({"a": 1, "b": 2}),
        ),
        (of::<HashMap<String, u32>>(), json!({"x": 1, "y": 2})),
        (of::<Stock>(), json!({"by_name": {"x": 1}})),
        (of::<Vec<BTreeMap<String, String>>>(), json!([{"x": "1"}])),
        (json!({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}), json!({"xy": 1})),
        (of::<Tree>(), json!({"name": "root", "children": [leaf]})),
        (of::<Vec<Tree>>(), json!([leaf])),
        // Here, a property has the name of a keyword, and its value is a schema.
        (
            json!({"type": "array", "items": {"type": "object", "properties":
                {"default": {"anyOf": [{"$ref": "#/items"}, {"type": "null"}]}}}}),
            json!([{"default": {"default": null}}]),
        ),
        (of::<First>(), json!({"second": {"first": {"second": null}}})),
        (of::<Loose>(), json!({"data": [1], "more": {"x": true}})),
        (of::<Value>(), json!("anything")),
    ]
}

#[test]
fn schema_that_a_service_can_not_express_accepts_the_original_values() {
    for (schema, value) in awkward() {
        let request = asking(schema.clone());
        request.options.output().unwrap().schema.validate(&value).unwrap();
        for format in formats() {
            let encoded = format.encode(&request).unwrap();
            let (sent, _) = held_to(&encoded);
            assert!(takes(sent, &value), "{}: {schema} became {sent}", format.name());
        }
    }
}

/// Source: the limits on the structured-outputs page of Anthropic's documentation.
#[test]
fn schema_beyond_structured_outputs_becomes_that_of_a_tool() {
    for (schema, _) in awkward() {
        let request = asking(schema.clone());
        let encoded = AnthropicMessages::default().encode(&request).unwrap();
        assert!(!held_to(&encoded).1, "{schema}");
    }
    let plain = json!({"type": "object", "properties": {"at": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"},
        "default": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/p"}]}}, "$defs": {"p": {"type": "string"}}});
    assert!(
        held_to(&AnthropicMessages::default().encode(&asking(plain)).unwrap()).1,
        "a definition used twice is not recursive"
    );
}

#[test]
fn array_beyond_strict_mode_is_wrapped_in_an_object() {
    let request = asking(of::<Vec<HashMap<String, u32>>>());
    let encoded = ChatCompletions::openai().encode(&request).unwrap();
    let format = &encoded.body["response_format"]["json_schema"];
    assert_eq!((&format["strict"], &format["schema"]["required"]), (&json!(false), &json!(["value"])));
    let chat = ChatCompletions::default().with_output(OutputSupport::Schema);
    let bare = chat.encode(&request).unwrap();
    assert_eq!(
        bare.body["response_format"]["json_schema"]["schema"]["type"], "array",
        "the array is sent without an object around it"
    );
}

/// Object schemas that have their own properties and also alternatives with further properties. Each schema has a valid
/// value.
fn flattened() -> impl Strategy<Value = (Value, Value)> {
    let names = |letters: &'static str| prop::collection::btree_set(letters, 0..3);
    let alternatives = prop::collection::vec(names("[d-g]"), 1..4);
    let object = |names: &std::collections::BTreeSet<String>, tag: Option<usize>| {
        let mut properties: Map<String, Value> =
            names.iter().map(|name| (name.clone(), json!({"type": "integer"}))).collect();
        properties.extend(tag.map(|tag| ("kind".to_owned(), json!({"const": tag}))));
        let required: Vec<&String> = properties.keys().collect();
        json!({"type": "object", "required": required, "properties": properties})
    };
    let keyword = prop_oneof![Just("anyOf"), Just("oneOf"), Just("allOf")];
    (names("[a-c]"), alternatives, keyword).prop_map(move |(own, alternatives, keyword)| {
        let several = keyword != "allOf";
        let parts: Vec<Value> = alternatives
            .iter()
            .enumerate()
            .map(|(tag, names)| object(names, several.then_some(tag)))
            .collect();
        let mut schema = object(&own, None);
        schema[keyword] = parts.into();
        let chosen: Vec<_> = if several { vec![&alternatives[0]] } else { alternatives.iter().collect() };
        let names = chosen.into_iter().flatten().chain(&own);
        let mut value: Map<String, Value> = names.map(|name| (name.clone(), json!(1))).collect();
        if several {
            value.insert("kind".to_owned(), json!(0));
        }
        (schema, value.into())
    })
}

proptest! {
    #[test]
    fn schema_with_alternatives_next_to_properties_accepts_the_original_values((schema, value) in flattened()) {
        let request = asking(schema.clone());
        prop_assert!(request.options.output().unwrap().schema.validate(&value).is_ok());
        for format in formats() {
            let encoded = format.encode(&request).unwrap();
            let (sent, _) = held_to(&encoded);
            prop_assert!(takes(sent, &value), "{}: {} became {}", format.name(), schema, sent);
        }
    }
}

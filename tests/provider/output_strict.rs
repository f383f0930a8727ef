//! Strict output schemas. The schema is translated for the service, and the service's answer is translated back.

use omni_agent::{
    provider::{
        Options, OutputSchema, Request,
        custom::{ChatCompletions, Dialect, Frame},
    },
    testing::{ScriptedProvider, Step},
    tool::Schema,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Schemas of objects and other values. Strict mode can express all of these schemas.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string", "minLength": 1})),
        Just(json!({"type": "integer", "description": "A number."})),
        Just(json!({"type": ["boolean", "null"]})),
        Just(json!({"enum": ["a", "b"]})),
        Just(json!({"type": "string", "enum": ["c"]})),
        Just(json!({"const": 7})),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let property = (inner.clone(), any::<bool>());
        prop_oneof![
            1 => inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
            1 => inner.prop_map(|part| json!({"anyOf": [part, {"type": "number", "maximum": -1}]})),
            3 => prop::collection::btree_map("[a-d]", property, 1..4).prop_map(|properties| {
                let required: Vec<&String> =
                    properties.iter().filter(|(_, (_, required))| *required).map(|(name, _)| name).collect();
                let required = json!(required);
                let schemas: Map<String, Value> =
                    properties.iter().map(|(name, (schema, _))| (name.clone(), schema.clone())).collect();
                json!({"type": "object", "properties": schemas, "required": required})
            }),
        ]
    })
}

fn bit(bits: &mut dyn Iterator<Item = bool>) -> bool {
    bits.next().unwrap_or_default()
}

fn takes_null(schema: &Value) -> bool {
    let parts = schema.get("anyOf").and_then(Value::as_array);
    schema["type"] == json!(["boolean", "null"]) || parts.is_some_and(|parts| parts.iter().any(takes_null))
}

/// Returns a value that fits the schema, and the value's strict form. In the strict form, no property is missing.
fn value(schema: &Value, bits: &mut dyn Iterator<Item = bool>) -> (Value, Value) {
    let both = |value: Value| (value.clone(), value);
    if let Some(parts) = schema.get("anyOf") {
        return if bit(bits) { both(json!(-3.5)) } else { value(&parts[0], bits) };
    }
    if let Some(values) = schema.get("enum") {
        return both(values[0].clone());
    }
    if let Some(constant) = schema.get("const") {
        return both(constant.clone());
    }
    match schema["type"].as_str() {
        Some("string") => both(json!("text")),
        Some("integer") => both(json!(3)),
        Some("array") => {
            let count = 1 + usize::from(bit(bits));
            let items = (0..count).map(|_| value(&schema["items"], bits));
            let (plain, strict): (Vec<Value>, Vec<Value>) = items.unzip();
            (plain.into(), strict.into())
        }
        Some("object") => {
            let (mut plain, mut strict) = (Map::new(), Map::new());
            for (name, property) in schema["properties"].as_object().unwrap() {
                let required = schema["required"].as_array().unwrap().iter().any(|other| other == name);
                if required || bit(bits) {
                    let (own, said) = value(property, bits);
                    plain.insert(name.clone(), own);
                    strict.insert(name.clone(), said);
                } else {
                    if takes_null(property) {
                        plain.insert(name.clone(), Value::Null);
                    }
                    strict.insert(name.clone(), Value::Null);
                }
            }
            (plain.into(), strict.into())
        }
        _ => both(if bit(bits) { Value::Null } else { json!(true) }),
    }
}

/// Returns a step with the deltas that the format decodes from this answer.
fn answered(request: &Request, said: &Value) -> Step {
    let chunk =
        json!({"choices": [{"index": 0, "delta": {"content": said.to_string()}, "finish_reason": "stop"}]});
    let (mut decoder, mut deltas) = (ChatCompletions::openai().decoder(request), Vec::new());
    decoder.decode(Frame::new("", &chunk.to_string()), &mut deltas).unwrap();
    decoder.end(&mut deltas).unwrap();
    deltas.into_iter().fold(Step::new(), Step::delta)
}

/// Asserts that a schema meets the requirements of strict mode at every level.
fn assert_strict(schema: &Value) {
    match schema {
        Value::Object(map) => {
            if map.get("type").is_some_and(|kind| kind == "object") {
                let names: Vec<&String> = map["properties"].as_object().unwrap().keys().collect();
                assert_eq!((&map["required"], &map["additionalProperties"]), (&json!(names), &json!(false)));
            }
            assert!(!map.contains_key("minLength"));
            map.values().for_each(assert_strict);
        }
        Value::Array(items) => items.iter().for_each(assert_strict),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn strict_form_of_any_value_is_valid_and_is_translated_back(
        schema in any_schema(), bits in prop::collection::vec(any::<bool>(), 0..24),
    ) {
        let (plain, mut said) = value(&schema, &mut bits.into_iter());
        let output = OutputSchema::new("out", Schema::new(schema.clone()).unwrap());
        prop_assert_eq!(output.schema.validate(&plain), Ok(()));

        let request = Request::prompt("Hi").with_options(Options::default().with_output(output));
        let encoded = ChatCompletions::openai().encode(&request).unwrap();
        let format = &encoded.body["response_format"]["json_schema"];
        prop_assert_eq!((&format["strict"], &format["schema"]["type"]), (&json!(true), &json!("object")));
        assert_strict(&format["schema"]);
        if schema.get("type").is_none_or(|kind| kind != "object") {
            said = json!({"value": said});
        }
        let strict = Schema::new(format["schema"].clone()).unwrap();
        prop_assert_eq!(strict.validate(&said), Ok(()), "{}", schema);

        let model = ScriptedProvider::new([answered(&request, &said)]).model();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (value, _) = runtime.block_on(model.generate_as::<Value>(request)).unwrap();
        prop_assert_eq!(value, plain);
    }
}

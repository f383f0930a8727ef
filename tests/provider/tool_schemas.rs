//! Schemas of tool inputs. Services accept an object with its properties at the top level. If a request offers a tool
//! with another kind of schema, they reject the request.

use omni_agent::{
    provider::{
        Request,
        custom::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
    },
    tool::Schema,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::anthropic::tools;

/// Returns the schema that is sent for a tool with this schema. All formats except Gemini send the same schema.
/// Gemini's format sends an equivalent schema with fewer keywords.
#[track_caller]
fn offered(schema: &Value) -> Value {
    let formats: [(&dyn Dialect, &str); 4] = [
        (&ChatCompletions::openai(), "/tools/0/function/parameters"),
        (&OpenAiResponses::openai(), "/tools/0/parameters"),
        (&AnthropicMessages::default(), "/tools/0/input_schema"),
        (&OllamaChat::default(), "/tools/0/function/parameters"),
    ];
    let mut request = Request::prompt("Hi").with_tools(tools(&[("draw", "", schema.clone())]));
    request.model = "m".into();
    let offered = formats.map(|(format, place)| {
        let body = Value::Object(format.encode(&request).unwrap().body);
        let again = Value::Object(format.encode(&request).unwrap().body);
        assert_eq!(body.to_string(), again.to_string());
        body.pointer(place).unwrap().clone()
    });
    for other in &offered[1..] {
        assert_eq!(other, &offered[0]);
    }
    let body = Value::Object(GoogleGemini::default().encode(&request).unwrap().body);
    let gemini = &body["tools"][0]["functionDeclarations"][0]["parametersJsonSchema"];
    let names =
        |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(gemini), names(&offered[0]));
    assert_eq!(gemini.get("required"), offered[0].get("required"));
    // All references must resolve.
    for schema in [&offered[0], gemini] {
        Schema::new(schema.clone()).unwrap();
    }
    offered[0].clone()
}

#[test]
fn tool_without_a_description_is_never_sent_with_a_blank_one() {
    let formats: [(&dyn Dialect, &str); 5] = [
        (&ChatCompletions::openai(), "/tools/0/function/description"),
        (&OpenAiResponses::openai(), "/tools/0/description"),
        (&AnthropicMessages::default(), "/tools/0/description"),
        (&OllamaChat::default(), "/tools/0/function/description"),
        (&GoogleGemini::default(), "/tools/0/functionDeclarations/0/description"),
    ];
    for (description, sent) in [("", "draw"), (" \n", "draw"), (" Draws.", " Draws.")] {
        let tools = tools(&[("draw", description, json!({"type": "object"}))]);
        let mut request = Request::prompt("Hi").with_tools(tools);
        request.model = "m".into();
        for (format, place) in formats {
            let body = Value::Object(format.encode(&request).unwrap().body);
            // Anthropic's format allows a tool without a description.
            let expected = Some(sent).filter(|_| format.name() != "anthropic_messages" || sent != "draw");
            assert_eq!(body.pointer(place).and_then(Value::as_str), expected, "{}", format.name());
        }
    }
}

#[test]
fn object_with_properties_is_sent_unchanged() {
    let schema = json!({"properties": {"x": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/y"}]}}, "type": "object",
        "$defs": {"y": {"oneOf": [{"type": "integer"}]}}, "required": ["x"], "additionalProperties": false});
    assert_eq!(offered(&schema).to_string(), schema.to_string());
}

#[test]
fn object_without_details_gets_a_type_and_properties() {
    let empty = json!({"type": "object", "properties": {}});
    for schema in
        [json!({}), json!({"type": "object"}), json!({"properties": {}}), json!({"not": {"type": "null"}})]
    {
        assert_eq!(offered(&schema), empty, "{schema}");
    }
}

/// What to draw.
#[derive(Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Shape {
    /// A circle.
    Circle { radius: f64, label: Option<String> },
    /// Four equal sides.
    Square { side: f64, label: Option<String> },
}

#[test]
fn tagged_alternatives_become_optional_properties() {
    let label = json!({"type": ["string", "null"]});
    let number = json!({"type": "number", "format": "double"});
    assert_eq!(
        offered(Schema::of::<Shape>().as_value()),
        json!({
            "description": "What to draw.\n\nExactly one of these:\n- {kind: \"circle\", radius, label?}: A circle.\n\
                - {kind: \"square\", side, label?}: Four equal sides.",
            "type": "object",
            "properties": {
                "kind": {"type": "string", "enum": ["circle", "square"]},
                "radius": number,
                "label": label,
                "side": number,
            },
            "required": ["kind"],
        })
    );
}

#[test]
fn alternatives_that_disagree_on_a_property_allow_both() {
    let part = |x: Value| json!({"type": "object", "properties": {"x": x}, "required": ["x"]});
    let schema = json!({"anyOf": [
        part(json!({"type": "string", "description": "A name."})), part(json!({"type": "integer"})),
        part(json!({"type": "string", "description": "An id."})), {"type": "null"}, part(json!({"const": 1})),
        part(json!({"const": "a"})), part(json!({"enum": ["b", "a"]})),
    ]});
    let offered = offered(&schema);
    assert_eq!(
        offered["properties"]["x"],
        json!({"anyOf": [{"type": "string", "description": "A name.\nAn id."}, {"type": "integer"},
            {"enum": [1, "a", "b"]}]})
    );
    assert_eq!((&offered["required"], offered.get("anyOf")), (&json!(["x"]), None));
}

#[test]
fn alternatives_next_to_properties_and_parts_are_merged() {
    let schema = json!({
        "$ref": "#/$defs/base", "description": "Both.",
        "$defs": {
            "base": {
                "title": "Base", "type": "object", "properties": {"id": {"type": "integer"}, "kind": {"type": "string",
                    "description": "Which."}},
                "required": ["id"], "additionalProperties": false,
                "allOf": [{"properties": {"at": {"type": "string"}}, "required": ["at"]}],
                "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}],
            },
            "a": {"properties": {"kind": {"const": "a"}, "next": {"$ref": "#/$defs/base"}}, "required": ["kind"]},
            "b": {"title": "The other", "required": ["kind", "id"], "properties": {"kind": {"const": "b"}}},
        },
    });
    let offered = offered(&schema);
    assert_eq!(
        offered,
        json!({
            "title": "Base", "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "kind": {"type": "string", "description": "Which.", "enum": ["a", "b"]},
                "at": {"type": "string"},
                "next": {"$ref": "#/$defs/base"},
            },
            "required": ["id", "at", "kind"],
            "additionalProperties": false,
            "description": "Both.\n\nExactly one of these:\n- {kind: \"a\", next?}\n- {kind: \"b\", id}: The other",
            "$defs": schema["$defs"],
        })
    );
}

#[test]
fn reference_into_a_removed_part_points_to_a_copy() {
    let schema = json!({
        "$defs": {"original": {"type": "integer"}},
        "oneOf": [
            {"properties": {"a": {"type": "object", "properties": {"deep": {"$ref": "#/oneOf/0"}}}}, "required": ["a"]},
            {"properties": {"b": {"$ref": "#/oneOf/0/properties/a"}, "n": {"$ref": "#/$defs/original"}}},
        ],
    });
    let offered = offered(&schema);
    assert_eq!(offered["properties"]["b"], json!({"$ref": "#/$defs/original_/oneOf/0/properties/a"}));
    assert_eq!(offered["properties"]["n"], json!({"$ref": "#/$defs/original"}));
    let a = "/$defs/original_/oneOf/0/properties/a/properties/deep";
    assert_eq!(offered.pointer(a), Some(&json!({"$ref": "#/$defs/original_/oneOf/0"})));
}

#[test]
fn reference_in_any_spelling_is_followed() {
    let city = json!({"properties": {"city": {"type": "string"}}, "required": ["city"]});
    let day = json!({"properties": {"day": {"type": "integer"}}, "required": ["day"]});
    let defs = json!({"a city": city, "day": day, "~/é": {"type": "object"}});
    let schema = json!({"$id": "trip", "$ref": "#/$defs/a%20city", "$defs": defs, "allOf": [{"$ref": "trip#/$defs/day"}],
        "properties": {"more": {"$ref": "#/%24defs/~0~1%C3%A9", "description": "More."}}});
    let offered = offered(&schema);
    let more = json!({"$ref": "#/%24defs/~0~1%C3%A9", "description": "More."});
    assert_eq!(
        offered["properties"],
        json!({"more": more, "city": {"type": "string"}, "day": {"type": "integer"}})
    );
    assert_eq!((&offered["required"], offered.get("$ref")), (&json!(["city", "day"]), None));
}

#[test]
fn reference_by_schema_id_into_a_removed_part_points_to_a_copy() {
    let schema = json!({
        "$id": "tree",
        "oneOf": [
            {"properties": {"a-node": {"type": "object", "properties": {"deep": {"$ref": "tree#/oneOf/0"}}}}},
            {"properties": {"b": {"$ref": "tree#/oneOf/0/properties/a%2Dnode"}, "whole": {"$ref": "tree"}}},
        ],
    });
    let offered = offered(&schema);
    let b = json!({"$ref": "#/$defs/original/oneOf/0/properties/a%2Dnode"});
    assert_eq!((&offered["properties"]["b"], &offered["properties"]["whole"]["$ref"]), (&b, &json!("tree")));
    let deep = "/$defs/original/oneOf/0/properties/a-node/properties/deep/$ref";
    assert_eq!(offered.pointer(deep), Some(&json!("#/$defs/original/oneOf/0")));
}

#[test]
fn nested_alternatives_and_negations_are_described_in_text() {
    let either = json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    let kind = |kind: &str| json!({"properties": {"kind": {"const": kind}}, "required": ["kind"]});
    let schema = json!({
        "allOf": [either, {"$ref": "#/$defs/kinds"}, {"allOf": [{"not": {"required": ["a", "c"]}}]}],
        "not": {"required": ["a", "b"]},
        "$defs": {"kinds": {"oneOf": [kind("x"), kind("y")]}},
    });
    assert_eq!(
        offered(&schema)["description"],
        "Nothing that fits this JSON Schema:\n- {\"required\":[\"a\",\"b\"]}\n\
        At least one of these:\n- {a}\n- {b}\n\
        Exactly one of these:\n- {kind: \"x\"}\n- {kind: \"y\"}\n\
        Nothing that fits this JSON Schema:\n- {\"required\":[\"a\",\"c\"]}"
    );
}

#[test]
fn schema_with_very_many_values_and_names_is_sent_completely() {
    const MANY: usize = 30_000;
    let part = |side: &str| {
        let values: Vec<String> = (0..MANY).map(|number| format!("{side} {number}")).collect();
        json!({"properties": {"x": {"enum": values}}})
    };
    let required: Vec<String> = (0..MANY).map(|number| format!("name {number}")).collect();
    let demand = |more: &str| json!({"required": required.iter().map(|name| format!("{more}{name}")).collect::<Vec<_>>()});
    let schema =
        json!({"oneOf": [part("left"), part("right")], "allOf": [demand("a "), demand("b "), demand("a ")]});
    let offered = offered(&schema);
    assert_eq!(offered["properties"]["x"]["enum"].as_array().map(Vec::len), Some(2 * MANY));
    assert_eq!(offered["required"].as_array().map(Vec::len), Some(2 * MANY));
}

#[test]
fn alternatives_of_required_properties_are_described_in_text() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(
        offered(&schema),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "description": "At least one of these:\n- {a}\n- {b}"})
    );
}

#[test]
fn input_valid_under_the_schema_is_valid_under_the_sent_one() {
    let shape = Schema::of::<Shape>();
    let loose = Schema::new(offered(shape.as_value())).unwrap();
    for input in [
        json!({"kind": "circle", "radius": 1.5, "label": null}),
        json!({"kind": "square", "side": 2.0, "label": "x"}),
    ] {
        assert_eq!((shape.validate(&input), loose.validate(&input)), (Ok(()), Ok(())));
    }
    assert!(
        shape.validate(&json!({"kind": "square", "radius": 1.0})).is_err(),
        "the original schema rejects a mixture"
    );
}

#[test]
fn schema_with_hundreds_of_alternatives_is_sent_completely_in_bounded_size() {
    let long = "x".repeat(100);
    let part = |number: usize| {
        let properties = json!({"kind": {"const": format!("kind {number}")}, "at": {"$ref": "#/$defs/at"}});
        json!({"properties": properties, "required": ["kind"], "description": long})
    };
    let parts: Vec<Value> = (0..300).map(part).collect();
    let schema = json!({"oneOf": parts, "$defs": {"at": {"type": "string"}}});
    let offered = offered(&schema);
    assert_eq!(offered["properties"]["kind"]["enum"].as_array().map(Vec::len), Some(300));
    assert_eq!(offered["properties"]["at"], json!({"$ref": "#/$defs/at"}));
    let words = offered["description"].as_str().unwrap();
    assert!(words.len() < 5000 && words.ends_with("\n- …") && words.contains(&long), "{words}");
}

/// OpenAI and Gemini reject lists without `items`. OpenAI and Anthropic reject items that are a list.
#[test]
fn list_without_items_is_sent_with_items() {
    let part = json!({"type": "string"});
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {
        "bare": {"type": "array", "description": "Any."},
        "nested": {"type": ["array", "null"], "items": {"type": "array"}},
        "any": {"type": "array", "items": true},
        "pair": {"type": "array", "items": [part, {"type": "array"}], "additionalItems": {"type": "integer"}},
        "open": {"type": "array", "items": [part]},
        "whole": {"type": "array", "items": part},
        "text": part,
    }, "definitions": {"a": {"anyOf": [{"type": "array"}, part]}}});
    let offered = offered(&schema);
    let list = json!({"type": "array", "items": {}});
    assert_eq!(
        offered["properties"],
        json!({
            "bare": {"type": "array", "description": "Any.", "items": {}},
            "nested": {"type": ["array", "null"], "items": list},
            "any": list,
            "pair": {"type": "array", "items": {"type": "integer"}, "prefixItems": [part, list]},
            "open": {"type": "array", "items": {}, "prefixItems": [part]},
            "whole": {"type": "array", "items": part},
            "text": part,
        })
    );
    assert_eq!(offered["definitions"]["a"], json!({"anyOf": [list, part]}));
}

#[test]
fn keywords_of_earlier_drafts_are_sent_in_their_present_form() {
    let sent = offered(&json!({
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/tool",
        "type": "object",
        "properties": {
            "above": {"type": "integer", "minimum": 1, "exclusiveMinimum": true},
            "to": {"type": "integer", "maximum": 9, "exclusiveMaximum": false},
            "same": {"$ref": "http://example.com/tool#/properties/above"},
        },
    }));
    assert_eq!(
        sent,
        json!({
            "type": "object",
            "properties": {
                "above": {"type": "integer", "exclusiveMinimum": 1},
                "to": {"type": "integer", "maximum": 9},
                "same": {"$ref": "http://example.com/tool#/properties/above"},
            },
            "$id": "http://example.com/tool",
        })
    );
    let seven = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "http://example.com/tool",
        "type": "object",
        "properties": {
            "a": {"$id": "#/properties/a", "type": "boolean"},
            "list": {"type": "array", "items": [{"$id": "#/properties/list/items/0", "type": "string"}]},
        },
    });
    let sent = offered(&seven);
    assert_eq!(sent["properties"]["a"], json!({"type": "boolean"}));
    assert_eq!(sent["properties"]["list"]["prefixItems"], json!([{"type": "string"}]));
    assert_eq!(sent["$id"], seven["$id"]);
}

/// Draft 7 has tuples as lists of `items`, and TypeScript's generators refer to an earlier part of a tuple.
#[test]
fn reference_into_a_tuple_leads_to_the_same_schema() {
    let point = json!({"type": "object", "properties": {"x": {"type": "number"}}});
    let inner = json!({"type": "array", "items": [point, {"$ref": "#/properties/pair/items/1/items/0"}]});
    let draft = "http://json-schema.org/draft-07/schema#";
    let schema = json!({"$schema": draft, "type": "object", "properties": {
        "pair": {"type": "array", "items": [point, inner], "additionalItems": {"type": "integer"}},
        "same": {"$ref": "#/properties/pair/items/0"},
        "more": {"$ref": "#/properties/pair/additionalItems"},
    }});
    let offered = offered(&schema);
    let target = |pointer: &str| {
        let reference = offered.pointer(pointer).unwrap()["$ref"].as_str().unwrap();
        offered.pointer(reference.strip_prefix('#').unwrap()).unwrap_or_else(|| panic!("{reference} is lost"))
    };
    assert_eq!(target("/properties/same"), &point);
    assert_eq!(target("/properties/more"), &json!({"type": "integer"}));
    assert_eq!(target("/properties/pair/prefixItems/1/prefixItems/1"), &point);
}

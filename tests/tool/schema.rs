use std::collections::BTreeMap;

use omni_agent::tool::{Schema, SchemaError, ToolSet, ToolSetError, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

fn refused(schema: Value) -> String {
    let SchemaError(reason) = Schema::new(schema).unwrap_err();
    reason
}

fn problems(schema: Value, value: &Value) -> String {
    Schema::new(schema).unwrap().validate(value).unwrap_err()
}

#[test]
fn new_wrong_keyword_types_are_refused_with_their_path() {
    let reason = refused(json!({ "type": "object", "properties": { "a": { "type": "strnig" } } }));
    assert!(reason.starts_with("- at /properties/a/type: ") && reason.contains("\"string\""), "{reason}");
    assert_eq!(refused(json!({ "required": "a" })), "- at /required: expected array, got string");
    assert_eq!(refused(json!({ "properties": [] })), "- at /properties: expected object, got array");
    assert!(refused(json!({ "minLength": -1 })).contains("/minLength"));
    assert!(refused(json!({ "pattern": "(" })).contains("/pattern"));
}

#[test]
fn new_value_that_is_neither_object_nor_bool_is_refused() {
    for value in [json!(null), json!(1), json!("object"), json!([])] {
        assert!(refused(value.clone()).contains("expected boolean or object"), "{value}");
    }
    assert!(Schema::new(json!(true)).is_ok());
}

#[test]
fn new_reference_to_another_document_is_refused() {
    for reference in [
        "file:///etc/passwd",
        "file:///etc/passwd#/a",
        "http://localhost:1/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "other.json",
        "/etc/passwd",
        "//localhost/schema",
    ] {
        let schema = json!({ "type": "object", "properties": { "a": { "$ref": reference } } });
        assert!(refused(schema).contains("another document"), "{reference}");
    }
}

#[test]
fn new_reference_to_an_existing_file_is_not_loaded() {
    let file = std::env::temp_dir().join(format!("omni-agent-schema-{}.json", std::process::id()));
    std::fs::write(&file, "{}").unwrap();
    let url = format!("file://{}", file.display());
    let by_reference = Schema::new(json!({ "$ref": url.clone() }));
    let by_dialect = Schema::new(json!({ "$schema": url.clone() }));
    let by_id = Schema::new(json!({ "$id": url, "properties": { "a": { "$ref": "other.json" } } }));
    std::fs::remove_file(&file).unwrap();
    assert!(by_reference.is_err() && by_dialect.is_err() && by_id.is_err());
}

#[test]
fn new_reference_to_a_running_server_is_not_fetched() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let url = format!("http://{}/schema.json", server.local_addr().unwrap());
    assert!(Schema::new(json!({ "$ref": url.clone() })).is_err());
    assert!(refused(json!({ "$schema": url.clone() })).contains("another document"));
    assert!(Schema::new(json!({ "$id": url, "$ref": "other" })).is_err());
    assert_eq!(server.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn new_unresolvable_reference_or_nested_id_is_refused() {
    assert!(refused(json!({ "$ref": "#/$defs/a" })).contains("which does not exist"));
    assert!(refused(json!({ "$ref": "#a", "$defs": { "a": { "$anchor": "a" } } })).contains("anchor"));
    assert!(refused(json!({ "$dynamicRef": "#a" })).contains("$dynamicRef"));
    assert!(refused(json!({ "items": { "$recursiveRef": "#" } })).contains("$recursiveRef"));
    assert!(refused(json!({ "items": { "$id": "b" } })).contains("$id"));
}

#[test]
fn new_reference_within_the_document_is_followed() {
    let schema = json!({
        "$id": "https://example.com/tool",
        "properties": {
            "plain": { "$ref": "#/$defs/a~1b" },
            "encoded": { "$ref": "#/%24defs/a~1b" },
            "by_name": { "$ref": "https://example.com/tool#/$defs/a~1b" },
            "odd_place": { "$ref": "#/components/c" },
        },
        "$defs": { "a/b": { "type": "integer" } },
        "components": { "c": { "type": "integer" } },
    });
    let schema = Schema::new(schema).unwrap();
    for name in ["plain", "encoded", "by_name", "odd_place"] {
        assert!(schema.validate(&json!({ name: 1 })).is_ok(), "{name}");
        assert_eq!(
            schema.validate(&json!({ name: "1" })).unwrap_err(),
            format!("- at /{name}: expected integer, got string")
        );
    }
}

#[test]
fn new_each_draft_is_understood() {
    let of = |draft: &str, mut schema: Value| {
        schema["$schema"] = draft.into();
        Schema::new(schema).unwrap()
    };
    let old =
        of("http://json-schema.org/draft-04/schema#", json!({ "minimum": 1, "exclusiveMinimum": true }));
    assert!(old.validate(&json!(1)).is_err());
    let seven = of("http://json-schema.org/draft-07/schema#", json!({ "items": [{ "type": "string" }] }));
    assert!(seven.validate(&json!([1])).is_err());
    let nineteen =
        of("https://json-schema.org/draft/2019-09/schema", json!({ "dependentRequired": { "a": ["b"] } }));
    assert!(nineteen.validate(&json!({ "a": 1 })).is_err());
    let twenty = Schema::new(json!({ "prefixItems": [{ "type": "string" }] })).unwrap();
    assert!(twenty.validate(&json!([1])).is_err());
}

#[test]
fn new_schema_with_an_id_in_every_subschema_is_accepted() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema",
        "$id": "http://example.com/example.json",
        "type": "object",
        "properties": { "a": { "$id": "#/properties/a", "type": "boolean" } },
    });
    assert!(Schema::new(schema).unwrap().validate(&json!({ "a": 1 })).is_err());
}

#[test]
fn as_value_returns_the_original_schema() {
    let given = json!({
        "$id": "https://example.com/tool",
        "properties": { "z": { "format": "date" }, "a": { "multipleOf": 0.01, "pattern": "^(?!x)" } },
    });
    let schema = Schema::new(given.clone()).unwrap();
    assert_eq!(schema.as_value().to_string(), given.to_string());
    assert_eq!(serde_json::to_string(&schema).unwrap(), given.to_string());
    assert_eq!(serde_json::from_value::<Schema>(given).unwrap(), schema);
}

#[test]
fn deserialize_invalid_schema_fails() {
    let error = serde_json::from_value::<Schema>(json!({ "type": 1 })).unwrap_err();
    assert!(error.to_string().contains("unusable JSON Schema"), "{error}");
}

#[test]
fn validate_keywords_without_an_exact_check_pass() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {
            "price": { "multipleOf": 0.01 },
            "mail": { "format": "email" },
            "expression": { "format": "regex" },
            "ahead": { "type": "string", "pattern": "^(?=.*[a-z])" },
        },
    });
    let schema = Schema::new(schema).unwrap();
    let value = json!({ "price": 19.99, "mail": "none", "expression": "(", "ahead": "" });
    assert_eq!(schema.validate(&value), Ok(()));
    assert!(schema.validate(&json!({ "ahead": 1 })).is_err());
}

#[test]
fn validate_properties_named_like_keywords_are_properties() {
    let schema = json!({
        "type": "object",
        "properties": {
            "$ref": { "type": "string" }, "$id": { "type": "string" }, "pattern": { "type": "string" },
            "format": { "type": "string" }, "multipleOf": { "type": "number" }, "enum": { "type": "array" },
        },
        "default": { "$ref": "file:///etc/passwd", "format": "x" },
        "const": { "$ref": "a", "$id": "b", "pattern": "(", "format": "c", "multipleOf": 0.1, "enum": [] },
    });
    let schema = Schema::new(schema).unwrap();
    let value =
        json!({ "$ref": "a", "$id": "b", "pattern": "(", "format": "c", "multipleOf": 0.1, "enum": [] });
    assert_eq!(schema.validate(&value), Ok(()));
}

#[test]
fn validate_several_problems_each_has_its_path() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a/b": { "type": "string" },
            "list": { "items": { "properties": { "n": { "maximum": 9 } } } },
            "unit": { "enum": ["C", "F"] },
            "code": { "pattern": "^[A-Z]+$", "minLength": 2 },
        },
        "required": ["city", "day"],
        "additionalProperties": false,
    });
    let value = json!({ "a/b": 1, "list": [{}, { "n": 10 }], "unit": "K", "code": "x", "more": 0 });
    assert_eq!(
        problems(schema, &value).lines().collect::<Vec<_>>(),
        [
            "- at the top level: missing required properties \"city\", \"day\"",
            "- at /a~1b: expected string, got number",
            "- at /list/1/n: must be at most 9, got 10",
            "- at /unit: must be one of \"C\", \"F\"",
            "- at /code: must have at least 2 characters, has 1",
            "- at /code: \"x\" does not match the pattern ^[A-Z]+$",
            "- at the top level: must not have \"more\"",
        ],
    );
}

#[test]
fn validate_alternatives_reports_the_problem_of_the_closest_one() {
    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "kind", rename_all = "snake_case")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Shape {
        Circle { radius: f64 },
        Square { side: f64 },
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Input {
        shape: Option<Shape>,
    }

    let schema = Schema::of::<Input>();
    assert_eq!(
        schema.validate(&json!({ "shape": { "kind": "square", "radius": 1 } })).unwrap_err(),
        "- at /shape: missing required property \"side\"",
    );
    assert_eq!(
        schema.validate(&json!({ "shape": { "kind": "round" } })).unwrap_err(),
        "- at /shape: has none of the allowed forms: either missing required property \"radius\", at \
         /shape/kind: must be \"circle\"; or missing required property \"side\", at /shape/kind: must be \"square\"",
    );
    assert_eq!(schema.validate(&json!({ "shape": null })), Ok(()));
}

#[test]
fn validate_many_problems_are_capped() {
    let schema = json!({ "additionalProperties": { "type": "string", "description": "x" } });
    let value: BTreeMap<_, _> = (0..500).map(|n| (format!("{n:03}{}", "x".repeat(1_000)), n)).collect();
    let text = problems(schema, &json!(value));
    assert!(text.len() < 4_000, "{}", text.len());
    assert!(text.ends_with(" more"), "{text}");
}

#[test]
fn validate_one_long_problem_is_capped() {
    let words: Vec<_> = (0..10_000).map(|n| format!("é{n}")).collect();
    let text = problems(json!({ "enum": words }), &json!("y".repeat(100_000)));
    assert!(text.len() < 1_000 && text.contains("and 9980 more"), "{text}");
    let text = problems(json!({ "pattern": "^a+$" }), &json!("é".repeat(100_000)));
    assert!(text.len() < 1_000, "{text}");
}

#[test]
fn validate_every_kind_of_problem_has_a_message() {
    let cases = [
        (json!({ "const": 1 }), json!(2), "must be 1"),
        (json!({ "minProperties": 1 }), json!({}), "at least 1 properties"),
        (json!({ "maxProperties": 0 }), json!({ "a": 1 }), "at most 0 properties"),
        (json!({ "minItems": 1 }), json!([]), "at least 1 items"),
        (json!({ "maxItems": 0 }), json!([1]), "at most 0 items"),
        (json!({ "uniqueItems": true }), json!([1, 1]), "0 and 1 are equal"),
        (json!({ "contains": { "type": "null" } }), json!([1]), "no item"),
        (json!({ "contains": true, "maxContains": 0 }), json!([1]), "at most 0 items"),
        (json!({ "contains": { "const": 1 }, "minContains": 2 }), json!([1]), "at least 2 items"),
        (json!({ "maxLength": 1 }), json!("ab"), "at most 1 characters"),
        (json!({ "exclusiveMinimum": 1 }), json!(1), "more than 1"),
        (json!({ "exclusiveMaximum": 1 }), json!(1), "less than 1"),
        (json!({ "multipleOf": 5 }), json!(6), "multiple of 5"),
        (json!({ "not": {} }), json!(1), "must not have"),
        (json!({ "oneOf": [{}, {}] }), json!(1), "two of the forms"),
        (json!({ "properties": { "a": false } }), json!({ "a": 1 }), "must be absent"),
        (json!({ "propertyNames": { "maxLength": 1 } }), json!({ "ab": 1 }), "named \"ab\""),
        (json!({ "dependentRequired": { "a": ["b"] } }), json!({ "a": 1 }), "must also have \"b\""),
        (json!({ "prefixItems": [{}], "items": false }), json!([1, 2]), "must be absent"),
        (json!({ "unevaluatedProperties": false }), json!({ "a": 1 }), "/a: must be absent"),
        (json!({ "if": {}, "then": { "type": "null" } }), json!(1), "expected null"),
        (json!({ "allOf": [{ "type": "null" }, { "const": 2 }] }), json!(1), "expected null"),
        (json!({ "anyOf": [{ "type": "null" }, { "type": "string" }] }), json!(1), "either expected null"),
        (json!(false), json!(1), "must be absent"),
    ];
    for (schema, value, words) in cases {
        let text = problems(schema.clone(), &value);
        assert!(text.contains(words), "{schema}: {text}");
    }
}

#[test]
fn of_type_is_inlined_in_order_without_noise() {
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Place {
        /// Name of the city.
        city: String,
    }

    /// Asks for the weather.
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Weather {
        place: Place,
        days: Option<u8>,
        and: Vec<Place>,
    }

    let place = json!({
        "type": "object",
        "properties": { "city": { "description": "Name of the city.", "type": "string" } },
        "required": ["city"],
    });
    let expected = json!({
        "description": "Asks for the weather.",
        "type": "object",
        "properties": {
            "place": place,
            "days": { "type": ["integer", "null"], "format": "uint8", "minimum": 0, "maximum": 255 },
            "and": { "type": "array", "items": place },
        },
        "required": ["place", "and"],
    });
    let schema = Schema::of::<Weather>();
    assert_eq!(*schema.as_value(), expected);
    let properties: Vec<_> = schema.as_value()["properties"].as_object().unwrap().keys().collect();
    assert_eq!(properties, ["place", "days", "and"]);
}

#[test]
fn of_recursive_type_is_checked_at_every_level() {
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Tree {
        name: String,
        children: Vec<Tree>,
    }

    let schema = Schema::of::<Tree>();
    let tree = |leaf: Value| json!({ "name": "a", "children": [{ "name": "b", "children": [leaf] }] });
    assert_eq!(schema.validate(&tree(json!({ "name": "c", "children": [] }))), Ok(()));
    assert_eq!(
        schema.validate(&tree(json!({ "name": 1, "children": [] }))).unwrap_err(),
        "- at /children/0/children/0/name: expected string, got number",
    );
}

#[test]
fn of_type_too_large_to_be_inlined_uses_references() {
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Two<T> {
        a: T,
        b: T,
    }
    type Sixteen<T> = Two<Two<Two<Two<T>>>>;

    let small = Schema::of::<Sixteen<u8>>();
    assert!(small.as_value().get("$defs").is_none());
    let large = Schema::of::<Sixteen<Sixteen<Sixteen<Two<u8>>>>>();
    assert!(large.as_value().get("$defs").is_some());
    assert!(large.validate(&json!({ "a": {} })).unwrap_err().contains("missing required property"));
}

#[test]
fn of_type_with_an_invalid_schema_fails_when_used() {
    #[derive(Deserialize)]
    struct Broken;

    impl JsonSchema for Broken {
        fn schema_name() -> std::borrow::Cow<'static, str> {
            "Broken".into()
        }

        fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
            schemars::json_schema!({ "type": 7 })
        }
    }

    let error = Schema::of::<Broken>().validate(&json!({})).unwrap_err();
    assert!(error.contains("unusable JSON Schema"), "{error}");
    let tool = tool_fn("broken", "Broken.", |_: Broken, _| async { Ok("") });
    assert!(matches!(ToolSet::new().with(tool), Err(ToolSetError::BadSchema { .. })));
}

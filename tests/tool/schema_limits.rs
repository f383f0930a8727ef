//! No schema and no value may cause a hang or a stack overflow while a schema is compiled or a value is checked.

use omni_agent::tool::Schema;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// This stack is smaller than that of any thread of a runtime.
const SMALL_STACK: usize = 512 * 1024;

fn on_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(SMALL_STACK).spawn(work).unwrap().join().unwrap()
}

fn nested(levels: usize, innermost: Value, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(innermost, |inner, _| wrap(inner))
}

fn array_of(levels: usize) -> Value {
    nested(levels, json!(1), |inner| Value::Array(vec![inner]))
}

/// Leaks a deep value, because dropping it would need stack space for each level.
fn forget<T>(value: T) {
    std::mem::forget(value);
}

#[test]
fn new_deep_schema_is_compiled_or_refused_on_a_small_stack() {
    on_small_stack(|| {
        for (key, levels) in
            [("properties", 60), ("items", 120), ("prefixItems", 60), ("additionalProperties", 120)]
        {
            let schema = nested(levels, json!({ "type": "string" }), |inner| match key {
                "properties" => json!({ key: { "a": inner } }),
                "prefixItems" | "allOf" => json!({ key: [inner] }),
                _ => json!({ key: inner }),
            });
            assert!(Schema::new(schema).is_ok(), "{key}");
        }
        for key in ["not", "if"] {
            let schema = nested(120, json!({ "type": "string" }), |inner| json!({ key: inner }));
            assert!(Schema::new(schema).unwrap_err().0.contains("too many subschemas"), "{key}");
        }
    });
}

#[test]
fn new_absurdly_deep_schema_is_refused() {
    on_small_stack(|| {
        let error = Schema::new(nested(200_000, json!({}), |inner| {
            let mut schema = Map::new();
            schema.insert("not".to_owned(), inner);
            Value::Object(schema)
        }))
        .unwrap_err();
        assert!(error.0.contains("nests deeper than 128 levels"), "{error}");
        assert!(Schema::new(json!({ "default": array_of(200) })).is_err());
    });
}

#[test]
fn new_unreferenced_and_nested_definitions_count() {
    let deep = nested(100, json!({}), |inner| json!({ "$defs": { "a": inner } }));
    assert!(Schema::new(deep).is_err());
}

#[test]
fn validate_value_as_deep_as_the_schema_works_on_a_small_stack() {
    on_small_stack(|| {
        let schema = nested(120, json!({ "type": "string" }), |inner| json!({ "items": inner }));
        let schema = Schema::new(schema).unwrap();
        assert!(schema.validate(&array_of(120)).unwrap_err().ends_with("expected string, got number"));

        // This is the deepest nesting for which the check still runs on the caller's stack.
        let schema = nested(15, json!({ "type": "string" }), |inner| json!({ "items": inner }));
        let schema = Schema::new(schema).unwrap();
        assert!(schema.validate(&array_of(15)).unwrap_err().ends_with("expected string, got number"));
    });
}

#[test]
fn validate_recursive_schema_deep_value_works_on_a_small_stack() {
    on_small_stack(|| {
        let schema = Schema::new(json!({
            "$ref": "#/$defs/node",
            "$defs": { "node": { "anyOf": [
                { "type": "integer" },
                { "type": "array", "items": { "allOf": [{ "$ref": "#/$defs/node" }] } },
            ] } },
        }))
        .unwrap();
        assert_eq!(schema.validate(&array_of(100)), Ok(()));
        let wrong = nested(100, json!("x"), |inner| Value::Array(vec![inner]));
        assert!(schema.validate(&wrong).is_err());
    });
}

#[test]
fn validate_absurdly_deep_value_is_refused() {
    on_small_stack(|| {
        let value = array_of(200_000);
        for schema in [json!({}), json!({ "uniqueItems": true }), json!({ "items": { "$ref": "#" } })] {
            let problem = Schema::new(schema).unwrap().validate(&value).unwrap_err();
            assert!(problem.contains("nests deeper than 128 levels"), "{problem}");
        }
        forget(value);
    });
}

#[test]
fn new_reference_cycle_without_a_step_down_is_refused() {
    for schema in [
        json!({ "$ref": "#" }),
        json!({ "anyOf": [{ "type": "null" }, { "$ref": "#" }] }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "if": { "$ref": "#" } }),
        json!({ "dependentSchemas": { "a": { "$ref": "#" } } }),
    ] {
        assert!(Schema::new(schema.clone()).unwrap_err().0.contains("leads back"), "{schema}");
    }
}

#[test]
fn new_doubling_references_are_refused() {
    let mut definitions = Map::new();
    for n in 0..60 {
        let next = json!({ "$ref": format!("#/$defs/d{}", n + 1) });
        definitions.insert(format!("d{n}"), json!({ "allOf": [next, next] }));
    }
    definitions.insert("d60".to_owned(), json!({ "type": "string" }));
    let schema = json!({ "$ref": "#/$defs/d0", "$defs": definitions });
    assert!(Schema::new(schema).unwrap_err().0.contains("too many subschemas"));
}

#[test]
fn new_long_chain_of_references_is_refused() {
    let mut definitions = Map::new();
    for n in 0..3_000 {
        definitions.insert(format!("d{n}"), json!({ "$ref": format!("#/$defs/d{}", n + 1) }));
    }
    definitions.insert("d3000".to_owned(), json!({ "type": "string" }));
    let schema = json!({ "$ref": "#/$defs/d0", "$defs": definitions });
    assert!(on_small_stack(|| Schema::new(schema)).unwrap_err().0.contains("too many subschemas"));
}

#[test]
fn new_more_subschemas_than_the_limit_is_refused() {
    let properties: Map<_, _> = (0..5_000).map(|n| (format!("p{n}"), json!({}))).collect();
    let error = Schema::new(json!({ "properties": properties })).unwrap_err();
    assert!(error.0.contains("more than 4096 subschemas"), "{error}");
}

#[test]
fn validate_work_doubling_with_each_level_ends() {
    let alternative = |tag: &str| json!({ "properties": { "tag": { "const": tag }, "next": { "$ref": "#" } }, "required": ["x"] });
    let schema = Schema::new(json!({
        "anyOf": [{ "type": "null" }, alternative("a"), alternative("b"), alternative("c")],
    }))
    .unwrap();
    let value = |levels| nested(levels, Value::Null, |inner| json!({ "tag": "c", "next": inner }));
    assert!(schema.validate(&value(3)).unwrap_err().contains("missing required property"));
    assert!(schema.validate(&value(60)).unwrap_err().contains("too large or too deeply nested"));
}

#[test]
fn validate_large_value_under_many_subschemas_ends() {
    let tests: Vec<_> = (0..900).map(|n| json!({ "type": "string", "minLength": n })).collect();
    let schema = Schema::new(json!({ "items": { "allOf": tests } })).unwrap();
    let value = Value::Array(vec![json!(1); 50_000]);
    assert!(schema.validate(&value).unwrap_err().contains("too large or too deeply nested"));
}

#[test]
fn new_huge_patterns_are_refused() {
    let long = "a".repeat(5_000);
    let classes = r"\d".repeat(101);
    let doubled = (0..20).fold("a".to_owned(), |inner, _| format!("(?:{inner}){{1,100}}"));
    let wide = r"\p{L}{1,1000}".to_owned();
    let open = format!("{}a{}", "(".repeat(1_000), ")".repeat(1_000));
    for pattern in [long, classes, doubled, wide, open, "a{1000}{1000}{1000}".to_owned()] {
        for schema in [
            json!({ "pattern": pattern.clone() }),
            json!({ "patternProperties": { pattern.clone(): {} } }),
            json!({ "$defs": { "unused": { "pattern": pattern.clone() } } }),
        ] {
            assert!(Schema::new(schema).is_err(), "{}", &pattern[..20.min(pattern.len())]);
        }
    }
    for pattern in ["^.{1,1000}$".to_owned(), r"\d".repeat(50)] {
        let properties: Map<_, _> =
            (0..100).map(|n| (format!("p{n}"), json!({ "pattern": pattern.clone() }))).collect();
        assert!(Schema::new(json!({ "properties": properties })).unwrap_err().0.contains("too large"));
    }
}

#[test]
fn new_usual_patterns_are_accepted_and_checked() {
    let cases = [
        (r"^\d{4}-\d{2}-\d{2}$", "2024-01-31", "31.1.2024"),
        (r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "00000000-0000-0000-0000-000000000000", "0"),
        (r"^[^\s@]+@[^\s@]+\.[^\s@]+$", "a@b.c", "a b"),
        (r"^\p{L}{1,40}$", "Zoë", "1"),
        (r"^.{1,1000}$", "x", ""),
        (r"^[\w.-]{1,255}\/[\w.-]+$", "a/b", "a"),
        (r"^(?:a|b)(?<rest>c*)$", "acc", "c"),
        (r"^\{[^}]*\}$", "{a}", "a"),
    ];
    for (pattern, good, bad) in cases {
        let Ok(schema) = Schema::new(json!({ "pattern": pattern })) else { panic!("{pattern}") };
        assert!(schema.validate(&json!(bad)).is_err(), "{pattern}");
        assert_eq!(schema.validate(&json!(good)), Ok(()), "{pattern}");
    }
}

#[test]
fn new_pattern_with_a_bracket_in_a_class_is_not_checked() {
    let pattern = r"^[a-zA-Z0-9@#%^&*()_+\-=[\]{}|;:,.<>?~`]*$";
    let schema = Schema::new(json!({ "pattern": pattern })).unwrap();
    assert_eq!(schema.validate(&json!("a [b]")), Ok(()));
}

#[test]
fn new_pattern_property_with_a_bracket_in_a_class_is_accepted_and_checked() {
    for pattern in ["^[[a]+$", r"^[\[a]+$", r"^[a[]+$", r"^[a\]?[]+$"] {
        let properties = json!({ pattern: { "type": "integer" } });
        let schema = json!({ "patternProperties": properties, "additionalProperties": false });
        let schema: Schema =
            serde_json::from_value(schema.clone()).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        assert_eq!(schema.validate(&json!({ "a[": 1 })), Ok(()), "{pattern}");
        assert!(schema.validate(&json!({ "a[": "1" })).is_err(), "{pattern}");
        assert!(schema.validate(&json!({ "b": 1 })).is_err(), "{pattern}");
        assert_eq!(schema.as_value()["patternProperties"], properties);
    }
    let schema = json!({ "patternProperties": { "[[]": { "minimum": 1 }, r"[\[]": { "maximum": 2 } } });
    let schema = Schema::new(schema).unwrap();
    for (value, is_valid) in [(0, false), (1, true), (3, false)] {
        assert_eq!(schema.validate(&json!({ "[": value })).is_ok(), is_valid, "{value}");
    }
}

#[test]
fn new_unmatchable_pattern_property_is_refused() {
    let schema = json!({ "patternProperties": { "^(?!x)": {} }, "additionalProperties": false });
    assert!(Schema::new(schema).unwrap_err().0.contains("look-around"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[abc$/~]{0,2}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

/// Schemas that are mostly valid, with some invalid keywords.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => Just(json!({ "type": "string" })),
        2 => Just(json!({ "type": ["integer", "null"] })),
        2 => Just(json!({ "$ref": "#" })),
        2 => Just(json!({ "$ref": "#/properties/a" })),
        1 => Just(json!({ "pattern": "^[a-c]+$", "format": "regex" })),
        1 => Just(json!({ "minimum": 3, "multipleOf": 0.5 })),
        1 => Just(json!(true)),
        1 => any_json().prop_map(|value| json!({ "enum": [value] })),
        1 => any_json().prop_map(|value| json!({ "type": value })),
    ];
    leaf.prop_recursive(4, 32, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        let map = prop::collection::btree_map("[abc]", inner.clone(), 0..3);
        prop_oneof![
            map.clone().prop_map(|map| json!({ "type": "object", "properties": map, "required": ["a"] })),
            map.clone().prop_map(|map| json!({ "patternProperties": map, "additionalProperties": false })),
            map.prop_map(|map| json!({ "$defs": map, "$ref": "#/$defs/a" })),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "items": a, "contains": b })),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| json!({ "prefixItems": [a], "unevaluatedItems": b })),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| json!({ "if": a, "then": b, "propertyNames": {} })),
            (inner.clone(), inner).prop_map(|(a, b)| json!({ "not": a, "unevaluatedProperties": b })),
            (list.clone(), "anyOf|allOf|oneOf").prop_map(|(list, key)| json!({ key: list })),
            list.prop_map(
                |list| json!({ "$schema": "http://json-schema.org/draft-07/schema#", "items": list })
            ),
        ]
    })
}

proptest! {
    #[test]
    fn new_any_json_never_panics(value in any_json()) {
        let _ = Schema::new(value);
    }

    #[test]
    fn validate_any_value_never_panics_and_its_message_is_bounded(schema in any_schema(), value in any_json()) {
        if let Ok(schema) = Schema::new(schema)
            && let Err(problems) = schema.validate(&value)
        {
            prop_assert!(!problems.is_empty() && problems.len() < 4_000);
        }
    }
}

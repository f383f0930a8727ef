//! Schemas of tool inputs in the form that Moonshot accepts.

use omni_agent::{
    provider::{
        Request,
        custom::{ChatCompletions, Dialect},
    },
    tool::Schema,
};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::anthropic::tools;

/// Returns the schema that is sent to `model` for a tool with this schema.
fn offered_to(model: &str, chat: &ChatCompletions, schema: &Value) -> Value {
    let mut request = Request::prompt("Hi").with_tools(tools(&[("draw", "", schema.clone())]));
    request.model = model.into();
    chat.encode(&request).unwrap().body["tools"][0]["function"]["parameters"].clone()
}

/// Returns the schema that is sent to Moonshot, after a check that the service accepts it.
#[track_caller]
fn offered(schema: &Value) -> Value {
    let sent = offered_to("m", &ChatCompletions::default().with_moonshot_schemas(), schema);
    if let Err(problem) = check(&sent, &sent, "$defs") {
        panic!("{problem} in {sent}");
    }
    Schema::new(sent.clone()).unwrap();
    sent
}

/// Returns the schema that is sent for a property with this schema.
#[track_caller]
fn property(schema: Value) -> Value {
    let properties: Map<_, _> = [("x".to_owned(), schema)].into_iter().collect();
    offered(&json!({"type": "object", "properties": properties}))["properties"]["x"].clone()
}

fn has(map: &Map<String, Value>, keys: &[&str]) -> bool {
    keys.iter().any(|key| map.contains_key(*key))
}

/// Checks a schema by the rules of the service's validator. `place` is the keyword that contains the schema.
fn check(root: &Value, schema: &Value, place: &str) -> Result<(), String> {
    let refuse = |reason: &str| Err(format!("{reason}: {schema}"));
    let Some(map) = schema.as_object() else { return refuse("the schema is not an object") };
    let is_documented = |key: &str| ["description", "title"].contains(&key);
    if let Some(reference) = map.get("$ref") {
        let reference = reference.as_str().unwrap();
        let name = reference.strip_prefix("#/$defs/");
        if reference != "#" && name.is_none_or(|name| name.contains('/') || root["$defs"].get(name).is_none())
        {
            return refuse("references must start with #/$defs/");
        }
        if map.len() > 1 {
            return refuse("conflicting keywords after the expansion of $ref");
        }
        if !["properties", "items", "additionalProperties", "anyOf", "$defs"].contains(&place) {
            return refuse("$ref is not allowed in this schema");
        }
        return Ok(());
    }
    if has(map, &["anyOf"]) == has(map, &["type"]) {
        return refuse("the type is not defined, or defined beside anyOf");
    }
    if map.get("type").is_some_and(Value::is_array)
        && map.keys().any(|key| key != "type" && !is_documented(key))
    {
        return refuse("a keyword is not allowed in combination with multiple types");
    }
    if let Some(values) = map.get("enum") {
        let values = values.as_array().unwrap();
        let is_of = |value: &Value| match map["type"].as_str().unwrap() {
            "string" => value.is_string(),
            "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            _ => true,
        };
        if values.is_empty() || values.len() > 500 || !values.iter().all(is_of) {
            return refuse("enum");
        }
    }
    if map.get("type").is_some_and(|kind| kind == "object") {
        let Some(required) = map.get("required").and_then(Value::as_array) else {
            return refuse("required must be an array");
        };
        if required.iter().any(|name| map["properties"].get(name.as_str().unwrap()).is_none()) {
            return refuse("a required property is not defined in properties");
        }
    } else if has(map, &["required"]) {
        return refuse("a required property is not defined in properties");
    }
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs", value) => {
                let Some(parts) = value.as_object() else { return refuse("properties must be an object") };
                if key == "properties"
                    && has(parts, &["$defs", "$ref", "anyOf", "required", "additionalProperties"])
                {
                    return refuse("a property has a reserved name");
                }
                parts.values().try_for_each(|part| check(root, part, key))?;
            }
            ("anyOf" | "prefixItems", Value::Array(parts)) => {
                if parts.is_empty() || parts.len() > 100 {
                    return refuse("anyOf must have 1 to 100 items");
                }
                for part in parts {
                    let keys = part.as_object().into_iter().flat_map(Map::keys);
                    if key == "anyOf"
                        && keys.into_iter().any(|key| map.contains_key(key) && !is_documented(key))
                    {
                        return refuse("conflicting keywords found in anyOf with parent");
                    }
                    check(root, part, key)?;
                }
            }
            ("items", part) => check(root, part, key)?,
            ("additionalProperties", part) if !part.is_boolean() => check(root, part, key)?,
            ("oneOf" | "allOf" | "not" | "if" | "then" | "else", _) => return refuse(key),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn models_of_moonshot_get_rewritten_schemas() {
    let schema = json!({"type": "object", "properties": {"payload": true}});
    let chat = ChatCompletions::default();
    for (model, rewritten) in [("kimi-for-coding", true), ("kimi-k3", true), ("glm-5", false)] {
        let sent = offered_to(model, &chat, &schema);
        assert_eq!(sent["properties"]["payload"].is_object(), rewritten, "{model}");
        assert_eq!(sent.get("required").is_some(), rewritten, "{model}");
    }
}

#[cfg(feature = "http")]
#[tokio::test]
async fn endpoints_with_models_of_moonshot_send_rewritten_schemas() {
    use omni_agent::provider::http::Endpoint;
    let schema = json!({"type": "object", "properties": {"payload": true}});
    for (endpoint, model) in [
        (Endpoint::moonshot(), "kimi-k2.6"),
        (Endpoint::moonshot(), "moonshot-v1-8k"),
        (Endpoint::openrouter(), "moonshotai/kimi-k3"),
        (Endpoint::opencode(), "kimi-k2.5"),
    ] {
        let request = Request::prompt("Hi").with_tools(tools(&[("draw", "", schema.clone())]));
        let (body, _) = crate::endpoints::body(&endpoint, model, request).await;
        let sent = &body["tools"][0]["function"]["parameters"];
        assert!(sent["properties"]["payload"].is_object(), "{model}: {sent}");
    }
}

#[test]
fn plain_object_only_gets_the_list_of_required_properties() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string", "minLength": 1, "format": "uri"},
        "y": {"type": "array", "items": {"type": "integer", "minimum": 0}}}, "additionalProperties": false});
    let mut expected = schema.clone();
    expected["required"] = json!([]);
    assert_eq!(offered(&schema), expected);
    expected["required"] = json!(["x"]);
    assert_eq!(offered(&expected), expected);
}

#[test]
fn schema_without_a_type_gets_one() {
    let any = json!({"type": ["object", "array", "string", "number", "boolean", "null"]});
    assert_eq!(property(json!(true)), any);
    assert_eq!(property(json!({})), any);
    let documented = property(json!({"description": "d", "default": null}));
    assert_eq!((&documented["description"], documented["anyOf"].as_array().unwrap().len()), (&json!("d"), 6));
    assert_eq!(property(json!({"enum": ["a", "b"]})), json!({"enum": ["a", "b"], "type": "string"}));
    assert_eq!(property(json!({"const": 1})), json!({"enum": [1], "type": "integer"}));
    assert_eq!(
        property(json!({"enum": ["a", 1, null], "description": "d"})),
        json!({"description": "d", "anyOf": [
            {"enum": ["a"], "type": "string"}, {"enum": [1], "type": "integer"}, {"type": "null"},
        ]})
    );
    assert_eq!(property(json!({"minLength": 1}))["type"], "string");
    assert_eq!(property(json!({"items": {}}))["type"], "array");
}

#[test]
fn several_types_with_other_keywords_become_alternatives() {
    assert_eq!(property(json!({"type": ["string", "null"]})), json!({"type": ["string", "null"]}));
    assert_eq!(
        property(json!({"type": ["integer", "null"], "format": "uint32", "minimum": 0, "description": "d"})),
        json!({"description": "d", "anyOf": [
            {"format": "uint32", "minimum": 0, "type": "integer"}, {"type": "null"},
        ]})
    );
    assert_eq!(
        property(json!({"type": ["string", "null"], "enum": ["a", null]})),
        json!({"anyOf": [{"enum": ["a"], "type": "string"}, {"type": "null"}]})
    );
    assert_eq!(
        property(json!({"type": ["string", "null"], "enum": ["a"]})),
        json!({"enum": ["a"], "type": "string"})
    );
}

#[test]
fn type_beside_alternatives_moves_to_them() {
    assert_eq!(
        property(json!({"type": "string", "default": "a", "anyOf": [{"minLength": 1}, {"enum": ["", 1]}]})),
        json!({"default": "a", "anyOf": [
            {"minLength": 1, "type": "string"}, {"enum": [""], "type": "string"}, {"enum": [1], "type": "integer"},
        ]})
    );
    let object = property(json!({
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
    }));
    assert_eq!(object["properties"], json!({"a": {"type": "string"}, "b": {"type": "integer"}}));
    assert_eq!(object["required"], json!([]));
    assert!(object["description"].as_str().unwrap().contains("At least one of these:"));
    let part = property(json!({"allOf": [{"type": "string"}], "description": "d"}));
    assert_eq!(part, json!({"description": "d", "anyOf": [{"type": "string"}]}));
    let union =
        property(json!({"oneOf": [{"type": "string"}, {"properties": {"a": {}}, "required": ["a", "b"]}]}));
    assert_eq!(union["anyOf"][1]["required"], json!(["a"]));
    property(json!({"type": ["object", "null"], "properties": {"a": {}}, "oneOf": [{"required": ["a"]}]}));
}

#[test]
fn references_lead_to_definitions_and_stand_alone() {
    let sent = offered(&json!({
        "type": "object",
        "properties": {
            "a": {"$ref": "#/definitions/Place"},
            "b": {"$ref": "#/definitions/Place", "description": "d", "type": "object"},
            "c": {"type": "array", "items": {"$ref": "#/properties/a"}},
            "d": {"allOf": [{"$ref": "#/$defs/Place"}], "default": null},
            "e": {"patternProperties": {"^x": {"$ref": "#/$defs/a~1b"}}},
        },
        "definitions": {"Place": {"type": "object", "properties": {"next": {"$ref": "#/definitions/Place"}}}},
        "$defs": {"Place": {"enum": ["x"]}, "a/b": true, "unused": {}},
    }));
    let properties = &sent["properties"];
    assert_eq!(properties["b"], json!({"description": "d", "anyOf": [properties["a"]]}));
    assert!(sent.get("definitions").is_none());
    assert_eq!(sent["$defs"].as_object().unwrap().len(), 4, "{sent}");
    let recursive = offered(&json!({"type": "object", "properties": {"sub": {"$ref": "#"}}}));
    assert_eq!(recursive["properties"]["sub"], json!({"$ref": "#"}));
}

#[test]
fn conditions_and_properties_with_reserved_names_are_removed() {
    let sent = property(json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "required": {"type": "boolean"}},
        "required": ["name", "required", "other"],
        "if": {"required": ["name"]},
        "then": {"not": {"required": ["other"]}},
    }));
    assert_eq!(
        sent,
        json!({"type": "object", "properties": {"name": {"type": "string"}},
            "description": "Property `required`: {\"type\":\"boolean\"}", "required": ["name"]})
    );
}

#[test]
fn schemas_of_rust_types_are_accepted() {
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Order {
        /// The place.
        place: Place,
        payload: Value,
        count: Option<u32>,
        tags: Option<Vec<String>>,
        kind: Option<Kind>,
        kinds: Vec<Kind>,
        extra: Map<String, Value>,
    }
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Place {
        /// The part.
        part: Option<Box<Place>>,
    }
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    #[schemars(rename_all = "snake_case")]
    enum Kind {
        /// Small.
        Small,
        /// Large.
        Large {
            size: u8,
            place: Place,
        },
        Other(Option<i64>),
    }
    let sent = offered(Schema::of::<Order>().as_value());
    assert_eq!(sent["properties"]["place"]["description"], "The place.");
    offered(Schema::of::<Kind>().as_value());
}

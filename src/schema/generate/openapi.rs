//! The OpenAPI document of the native routes of a web server.

mod operations;
mod problems;

use std::collections::{BTreeMap, BTreeSet};

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::SchemaDocument;
use crate::{
    manager::{ManagerEvent, ManagerSnapshot},
    session::{SessionEvent, SessionSnapshot},
    store::ConversationId,
    subscription::Update,
    web::Web,
};
use operations::{OPERATIONS, Operation, SuccessResponse};
use problems::{EVERY, ProblemBody, ProblemKind};

/// The prefix of a reference to a type of the document.
const TYPES: &str = "#/components/schemas/";

const DESCRIPTION: &str = "\
The routes of the crate omni-agent for conversations with agents.

The application authenticates and authorises every request, and chooses the scheme. This document therefore describes \
neither the scheme nor limits on the rate of requests. The principal is the user or program that sends a request. For a \
conversation that the principal may not read, the answers are the same as for a conversation that does not exist.

Errors are problem details (RFC 9457). Their `type` is `urn:omni-agent:CODE`, and the extension `x-codes` of a response \
lists the codes. A path that is not listed is answered with 404 `not-found`, and a method that is not listed with 405 \
`method`. An application can add further problems.

The body of a stream consists of server-sent events. The extension `x-itemSchema` describes one event with its fields \
`event` and `id`, and with the parsed JSON of its `data`. Within a minor version, types only grow: a client ignores members \
and events that it does not know.";

/// Returns the OpenAPI document.
pub(super) fn openapi() -> Value {
    let document = |settings: SchemaSettings| {
        SchemaDocument::new(
            settings.with(|settings| settings.definitions_path = "/components/schemas".into()),
        )
    };
    let mut written = document(SchemaSettings::draft2020_12().for_serialize());
    let mut read = document(SchemaSettings::draft2020_12().for_deserialize());
    written.include::<ProblemBody>();
    written.add::<Update<SessionSnapshot, SessionEvent>>("SessionUpdate", "An update of a session.");
    written.add::<Update<ManagerSnapshot, ManagerEvent>>("ManagerUpdate", "An update of a manager.");
    read.include::<ConversationId>();
    let mut paths = Map::new();
    let mut queries = BTreeSet::new();
    for (method, path) in Web::routes() {
        let route = format!("{method} {path}");
        let Some(operation) = OPERATIONS.iter().find(|operation| operation.route == route) else { continue };
        let item = paths.entry(path).or_insert_with(|| path_item(path));
        let query = operation.query.map(|query| query(&mut read));
        let query = query.and_then(|query| Some(query.get("$ref")?.as_str()?[TYPES.len()..].to_owned()));
        item[method.as_str().to_ascii_lowercase()] =
            describe(operation, query.as_ref(), &mut read, &mut written);
        queries.extend(query);
    }
    let mut inputs = read.types();
    let mut types = written.types();
    types.extend(stream_events());
    let renamed = renamed(&inputs, &types);
    for schema in inputs.values_mut() {
        rename(schema, &renamed);
        without_null_defaults(schema);
    }
    for item in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        add_parameters(item, &inputs);
        if let Some(body) = item.get_mut("requestBody") {
            rename(body, &renamed);
        }
    }
    for (name, schema) in inputs.into_iter().filter(|(name, _)| !queries.contains(name)) {
        let name = renamed.get(&name).cloned().unwrap_or(name);
        types.entry(name).or_insert(schema);
    }
    types.sort_keys();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "omni-agent",
            "description": DESCRIPTION,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{
            "url": "{base}",
            "variables": {
                "base": { "default": "/agent", "description": "The path under which the application nests the router." },
            },
        }],
        "paths": paths,
        "components": { "schemas": types },
    })
}

/// Returns the parameters of a path.
fn path_item(path: &str) -> Value {
    let names = path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let (description, schema) = match name {
            "id" => ("The id of the conversation.", json!({ "$ref": format!("{TYPES}ConversationId") })),
            "message" => ("The id of the message.", json!({ "type": "string" })),
            _ => (
                "The index of the block in the message. `BLOCK-INNER` is a block in a tool result.",
                json!({ "type": "string", "pattern": "^[0-9]+(-[0-9]+)?$" }),
            ),
        };
        json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
    };
    let parameters: Vec<Value> = names.map(parameter).collect();
    if parameters.is_empty() { json!({}) } else { json!({ "parameters": parameters }) }
}

fn describe(
    operation: &Operation,
    query: Option<&String>,
    read: &mut SchemaDocument,
    written: &mut SchemaDocument,
) -> Value {
    let mut value = json!({ "operationId": operation.id, "summary": operation.summary });
    if !operation.description.is_empty() {
        value["description"] = operation.description.into();
    }
    if let Some(query) = query {
        // `add_parameters` later replaces this reference with the members of the type.
        value["parameters"] = json!([{ "$ref": format!("{TYPES}{query}") }]);
    }
    if let SuccessResponse::Stream = operation.answer {
        let position = "The `id` of the last event that the client has received, to continue after it.";
        let header = json!({ "name": "last-event-id", "in": "header", "description": position, "schema": { "type": "string" } });
        match value["parameters"].as_array_mut() {
            Some(parameters) => parameters.push(header),
            None => value["parameters"] = json!([header]),
        }
    }
    if let Some(body) = operation.body {
        let content = json!({ "application/json": { "schema": body(read) } });
        value["requestBody"] = json!({ "required": true, "content": content });
    }
    let json = |schema| json!({ "application/json": { "schema": schema } });
    let mut responses = Map::new();
    let (status, answer) = match operation.answer {
        SuccessResponse::Nothing => ("204", json!({ "description": "The request has succeeded." })),
        SuccessResponse::Json(answer) => {
            ("200", json!({ "description": "The answer.", "content": json(answer(written)) }))
        }
        SuccessResponse::Created(answer) => {
            let location = json!({
                "description": "The address of the conversation.",
                "schema": { "type": "string", "format": "uri-reference" },
            });
            let content = json(answer(written));
            let description = "The conversation was created.";
            (
                "201",
                json!({ "description": description, "headers": { "location": location }, "content": content }),
            )
        }
        SuccessResponse::File => {
            ("200", json!({ "description": "The bytes, with their media type.", "content": { "*/*": {} } }))
        }
        SuccessResponse::Stream => {
            let events = json!({
                "schema": { "type": "string" },
                "x-itemSchema": { "$ref": format!("{TYPES}StreamEvent") },
            });
            let description = "The events. The stream ends after some minutes, and a client connects again.";
            ("200", json!({ "description": description, "content": { "text/event-stream": events } }))
        }
    };
    responses.insert(status.to_owned(), answer);
    responses.extend(problems(operation));
    value["responses"] = responses.into();
    value
}

/// Returns the responses with problems, by their status.
fn problems(operation: &Operation) -> impl Iterator<Item = (String, Value)> + use<> {
    let content =
        || json!({ "application/problem+json": { "schema": { "$ref": format!("{TYPES}Problem") } } });
    let mut kinds: BTreeMap<u16, BTreeMap<&str, &str>> = BTreeMap::new();
    for ProblemKind(status, code, cause) in [EVERY].iter().chain(operation.problems).copied().flatten() {
        kinds.entry(*status).or_default().insert(code, cause);
    }
    let response = move |(status, kinds): (u16, BTreeMap<&str, &str>)| {
        let causes: Vec<String> = kinds.iter().map(|(code, cause)| format!("- `{code}`: {cause}")).collect();
        let codes: Vec<&str> = kinds.into_keys().collect();
        let mut response =
            json!({ "description": causes.join("\n"), "content": content(), "x-codes": codes });
        let header = |name: &str, description: &str, kind: &str| {
            let header = json!({ "description": description, "schema": { "type": kind } });
            json!({ (name): header })
        };
        match status {
            401 => response["headers"] = header("www-authenticate", "The way to authenticate.", "string"),
            429 | 503 => {
                let description = "The time in seconds after which a new attempt makes sense.";
                response["headers"] = header("retry-after", description, "integer");
            }
            _ => {}
        }
        (status.to_string(), response)
    };
    let other =
        json!({ "description": "Another problem, such as one of the application.", "content": content() });
    kinds.into_iter().map(response).chain([("default".to_owned(), other)])
}

/// Replaces the type of a query with its members as parameters.
fn add_parameters(operation: &mut Value, types: &Map<String, Value>) {
    let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else { return };
    let Some(query) = parameters.first().and_then(|first| first["$ref"].as_str()) else { return };
    let query = &types[&query[TYPES.len()..]];
    let is_required =
        |name: &str| query["required"].as_array().into_iter().flatten().any(|required| required == name);
    let members = query["properties"].as_object().into_iter().flatten();
    let members: Vec<Value> = members
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let keywords = schema.as_object_mut().expect("a member has a schema with keywords");
            let description = keywords.shift_remove("description");
            super::without_null(keywords);
            json!({
                "name": name,
                "in": "query",
                "required": is_required(name),
                "description": description,
                "schema": schema,
            })
        })
        .collect();
    parameters.splice(..1, members);
}

/// Returns the types of the events of a stream.
fn stream_events() -> Map<String, Value> {
    let event = |name: &str, description: &str, data: Value, required: &[&str]| {
        json!({
            "type": "object",
            "description": description,
            "properties": {
                "event": { "const": name },
                "id": {
                    "type": "string",
                    "description": "The position of the stream after this event. Absent for an event that may be sent again.",
                },
                "data": {
                    "type": "object",
                    "description": "The parsed JSON of the event's data.",
                    "properties": data,
                    "required": required,
                },
            },
            "required": ["event", "data"],
        })
    };
    let reference = |name: &str| json!({ "$ref": format!("{TYPES}{name}") });
    let member =
        |name: &str, description: &str| json!({ "description": description, "allOf": [reference(name)] });
    let conversation = || member("ConversationId", "The id of the conversation.");
    let events = [
        (
            "ConversationEvent",
            event(
                "conversation",
                "An update of a conversation.",
                json!({ "conversation": conversation(), "update": member("SessionUpdate", "The update.") }),
                &["conversation", "update"],
            ),
        ),
        (
            "ListEvent",
            event(
                "list",
                "An update of the list.",
                json!({ "update": member("ManagerUpdate", "The update.") }),
                &["update"],
            ),
        ),
        (
            "RefusedEvent",
            event(
                "refused",
                "A conversation cannot be opened, or may no longer be read. The stream no longer contains its updates.",
                json!({
                    "conversation": conversation(),
                    "problem": member("Problem", "The reason."),
                    "retry_after": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "The time in seconds after which the client watches the conversation again. \
                                        Absent if a later attempt does not help.",
                    },
                }),
                &["conversation", "problem"],
            ),
        ),
        (
            "EndingEvent",
            event(
                "ending",
                "The server ends the stream.",
                json!({ "retry_after": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "The time in seconds after which the client connects again.",
                } }),
                &["retry_after"],
            ),
        ),
    ];
    let alternatives: Vec<Value> = events.iter().map(|(name, _)| reference(name)).collect();
    let all = json!({ "description": "An event of a stream.", "oneOf": alternatives });
    let events = events.into_iter().chain([("StreamEvent", all)]);
    events.map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// Returns new names for the types whose form in requests differs from the form in answers, because a server accepts
/// more than it writes.
fn renamed(inputs: &Map<String, Value>, outputs: &Map<String, Value>) -> BTreeMap<String, String> {
    let both = || inputs.iter().filter_map(|(name, input)| Some((name, input, outputs.get(name)?)));
    let mut renamed: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let before = renamed.len();
        for (name, input, output) in both() {
            let mut new = input.clone();
            rename(&mut new, &renamed);
            if new != *output {
                renamed.insert(name.clone(), format!("{name}Input"));
            }
        }
        if renamed.len() == before {
            return renamed;
        }
    }
}

/// Replaces the names of types in all references.
fn rename(schema: &mut Value, names: &BTreeMap<String, String>) {
    match schema {
        Value::Object(members) => {
            for (key, member) in members {
                if let Some(new) = member
                    .as_str()
                    .filter(|_| key == "$ref")
                    .and_then(|target| names.get(target.strip_prefix(TYPES)?))
                {
                    *member = format!("{TYPES}{new}").into();
                } else {
                    rename(member, names);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        _ => {}
    }
}

/// Removes defaults that are `null`, because they only repeat that the member may be absent.
fn without_null_defaults(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|key, member| key != "default" || !member.is_null());
            members.values_mut().for_each(without_null_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(without_null_defaults),
        _ => {}
    }
}

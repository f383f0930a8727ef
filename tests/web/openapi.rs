//! The OpenAPI document: its own schema, its routes, and the requests, answers and events of the router. All tests of
//! the native routes check their requests and answers against the document.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::LazyLock,
};

use axum::http::{Method, StatusCode};
use boon::{Compiler, SchemaIndex, Schemas};
use omni_agent::{
    schema,
    testing::Step,
    web::{Web, WebLimits},
};
use serde_json::{Value, json};

use crate::{
    js::{SCRIPTS, node, packages},
    support::{Answer, App, prompt, request},
};

/// The official JSON Schema of OpenAPI 3.1, dated 2022-10-07.
const OFFICIAL: &str = include_str!("openapi-3.1.json");

static DOCUMENT: LazyLock<Document> = LazyLock::new(Document::new);

/// The document, with the compiled schemas. A place is the JSON pointer to a schema in the document.
struct Document {
    value: Value,
    operations: Vec<Operation>,
    schemas: Schemas,
    places: BTreeMap<String, SchemaIndex>,
}

struct Operation {
    method: String,
    path: String,
    id: String,
    value: Value,
}

/// The JSON pointer to the schema for events of a stream.
const EVENT: &str = "/components/schemas/StreamEvent";

impl Document {
    fn new() -> Self {
        let value: Value = serde_json::from_str(schema::OPENAPI).unwrap();
        let mut operations = Vec::new();
        let mut places = vec![EVENT.to_owned()];
        for (path, item) in value["paths"].as_object().unwrap() {
            for (method, operation) in
                item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters")
            {
                operations.push(Operation {
                    method: method.to_uppercase(),
                    path: path.clone(),
                    id: operation["operationId"].as_str().unwrap().to_owned(),
                    value: operation.clone(),
                });
                let place = format!("/paths/{}/{method}", path.replace('/', "~1"));
                if operation.get("requestBody").is_some() {
                    places.push(format!("{place}/requestBody/content/application~1json/schema"));
                }
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let contents = response["content"].as_object().into_iter().flatten();
                    for (media_type, _) in contents.filter(|(_, content)| content.get("schema").is_some()) {
                        let media_type = media_type.replace('/', "~1");
                        places.push(format!("{place}/responses/{status}/content/{media_type}/schema"));
                    }
                }
            }
        }
        let url = "https://example.com/openapi.json";
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.add_resource(url, value.clone()).unwrap();
        let mut compile = |place: String| {
            let escaped = place.replace('{', "%7B").replace('}', "%7D");
            (place, compiler.compile(&format!("{url}#{escaped}"), &mut schemas).unwrap())
        };
        let places = places.into_iter().map(&mut compile).collect();
        Self { value, operations, schemas, places }
    }

    fn fits(&self, place: &str, json: &Value) -> Result<(), String> {
        let schema = self.places.get(place).unwrap_or_else(|| panic!("no schema at {place}"));
        self.schemas.validate(json, *schema).map_err(|error| format!("{error:#}"))
    }

    /// Returns the operation with this method and path. The path is relative to the place where the router is nested.
    fn operation(&self, method: &Method, path: &str) -> Option<&Operation> {
        let path = path.split('?').next().unwrap_or_default();
        let is_same = |template: &str| {
            template.split('/').count() == path.split('/').count()
                && template
                    .split('/')
                    .zip(path.split('/'))
                    .all(|(name, segment)| name.starts_with('{') || name == segment)
        };
        let fitting = self.operations.iter().filter(|operation| is_same(&operation.path));
        fitting.into_iter().find(|operation| operation.method == method.as_str())
    }
}

/// Checks a request to the native routes and its answer against the document. Returns the id of the operation. Returns
/// `None` for a path or method without an operation.
pub(crate) fn check(
    method: &Method,
    path: &str,
    body: Option<&[u8]>,
    answer: &Answer,
) -> Option<&'static str> {
    let operation = DOCUMENT.operation(method, path.strip_prefix("/agent")?)?;
    let what = format!("{method} {path}: {}", answer.status);
    let place = format!("/paths/{}/{}", operation.path.replace('/', "~1"), method.as_str().to_lowercase());
    let status = answer.status.as_str();
    let response = &operation.value["responses"][status];
    assert!(!response.is_null(), "{what} is not documented, {}", answer.text);
    let media_type = answer.header("content-type").unwrap_or_default();
    if media_type == "application/problem+json" {
        let (code, codes) = (answer.code(), response["x-codes"].as_array().unwrap());
        assert!(codes.contains(&json!(code)), "{what}: the problem {code} is not documented");
    }
    let contents = &response["content"];
    if contents.is_null() {
        assert!(answer.text.is_empty(), "{what} has a body: {}", answer.text);
    } else if contents.get("*/*").is_none() {
        let at = format!("{place}/responses/{status}/content/{}/schema", media_type.replace('/', "~1"));
        DOCUMENT.fits(&at, &answer.json()).unwrap_or_else(|error| panic!("{what}: {error}\n{}", answer.text));
    }
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        let value = answer.header(name).unwrap_or_else(|| panic!("{what} has no header {name}"));
        let is_number = header["schema"]["type"] == "integer";
        assert!(!is_number || value.parse::<u64>().is_ok(), "{what}: {name}: {value}");
    }
    if answer.status.is_success() {
        let query = path.split_once('?').map_or("", |(_, query)| query);
        let known: Vec<&Value> = operation.value["parameters"].as_array().into_iter().flatten().collect();
        for name in query.split('&').filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty())
        {
            assert!(
                known.iter().any(|parameter| parameter["name"] == name),
                "{what}: {name} is not documented"
            );
        }
    }
    if operation.value.get("requestBody").is_some() {
        let fits = body.and_then(|body| serde_json::from_slice(body).ok()).map(|body: Value| {
            DOCUMENT.fits(&format!("{place}/requestBody/content/application~1json/schema"), &body)
        });
        if answer.status.is_success() {
            fits.unwrap_or_else(|| panic!("{what}: the body is not JSON"))
                .unwrap_or_else(|error| panic!("{what}: the body does not fit, {error}"));
        } else if answer.status == StatusCode::BAD_REQUEST && answer.code() == "invalid-body" {
            // A schema cannot state which addresses of files belong to the conversation, and how many.
            let of_files = ["the file address", "addresses of stored files"];
            let is_address = of_files.iter().any(|text| answer.text.contains(text));
            assert!(
                is_address || !matches!(fits, Some(Ok(()))),
                "{what}: the body fits its schema: {}",
                answer.text
            );
        }
    }
    Some(&operation.id)
}

/// Returns whether the document lists this problem of a route. The path is that of the document.
pub(crate) fn has_problem(method: &Method, path: &str, status: u16, code: &str) -> bool {
    let operation = DOCUMENT.operation(method, path).unwrap();
    let codes = operation.value["responses"][status.to_string()]["x-codes"].as_array();
    codes.is_some_and(|codes| codes.contains(&json!(code)))
}

/// Checks an event of a native stream against the document.
pub(crate) fn check_event(event: &str, id: Option<&str>, data: &Value) {
    let mut frame = json!({ "event": event, "data": data });
    if let Some(id) = id {
        frame["id"] = id.into();
    }
    DOCUMENT.fits(EVENT, &frame).unwrap_or_else(|error| panic!("{error}\n{frame:#}"));
}

#[test]
fn document_fits_the_official_schema_of_openapi() {
    let schema: Value = serde_json::from_str(OFFICIAL).unwrap();
    let url = schema["$id"].as_str().unwrap().to_owned();
    let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
    compiler.add_resource(&url, schema).unwrap();
    let index = compiler.compile(&url, &mut schemas).unwrap();
    let check = |document: &Value| schemas.validate(document, index).map_err(|error| format!("{error:#}"));
    check(&DOCUMENT.value).unwrap_or_else(|error| panic!("{error}"));
    // Check that the schema also rejects a document with an error.
    let mut wrong = DOCUMENT.value.clone();
    wrong["paths"]["/conversations"]["get"]["respones"] = json!({});
    assert!(check(&wrong).is_err());
}

#[test]
fn document_has_the_routes_of_the_router_and_their_parameters() {
    let documented: BTreeSet<(String, String)> = DOCUMENT
        .operations
        .iter()
        .map(|operation| (operation.method.clone(), operation.path.clone()))
        .collect();
    let routes: BTreeSet<_> =
        Web::routes().map(|(method, path)| (method.to_string(), path.to_owned())).collect();
    assert_eq!(documented, routes);
    let ids: BTreeSet<&str> = DOCUMENT.operations.iter().map(|operation| operation.id.as_str()).collect();
    assert_eq!(ids.len(), routes.len(), "the ids of operations are unique");
    for (path, item) in DOCUMENT.value["paths"].as_object().unwrap() {
        let in_path: Vec<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = item["parameters"].as_array().into_iter().flatten();
        let declared: Vec<&str> = parameters.map(|parameter| parameter["name"].as_str().unwrap()).collect();
        assert_eq!(declared, in_path, "{path}");
    }
}

#[test]
fn document_describes_every_type_and_refers_only_to_types_that_it_has() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let types = DOCUMENT.value["components"]["schemas"].as_object().unwrap();
    let mut used = BTreeSet::new();
    references(&DOCUMENT.value, &mut used);
    used.insert(format!("#{EVENT}"));
    let known: BTreeSet<String> = types.keys().map(|name| format!("#/components/schemas/{name}")).collect();
    assert_eq!(used, known);
    let undescribed = types.iter().filter(|(_, schema)| schema["description"].is_null());
    assert_eq!(undescribed.map(|(name, _)| name).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test(start_paused = true)]
async fn requests_and_answers_of_every_operation_fit_the_document() {
    let large = "QUJD".repeat(20_000);
    let use_tool = Step::new().then_tool_use("call-1", "lookup", json!({ "what": "a fact" })).stop();
    let script = [Step::text("Hello!"), use_tool, Step::text("Done.")];
    let app = App::with(script, |web| web.models(["scripted"]).limits(WebLimits::default().with_page(7)));
    let path = "/agent/conversations";
    let created = app.post("ann", path, json!({ "title": "Plans", "model": "scripted" })).await;
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let one = format!("{path}/{id}");
    let attachment = json!({ "type": "attachment", "media_type": "image/png", "source": { "type": "base64", "data": large } });
    let with_file = json!({ "type": "run", "prompt": { "id": "p1", "content": [attachment] } });
    let mut stream = app.stream("ann", &format!("/agent/events?list=true&watch={id}"), None).await;
    stream.until(|frame| frame.event == "conversation").await;
    let mut seen = BTreeSet::from([created.operation.unwrap()]);
    for (method, path, body, status) in [
        (Method::POST, format!("{one}/commands"), Some(with_file), 200),
        (Method::GET, path.to_owned(), None, 200),
        (Method::GET, format!("{path}?limit=1"), None, 200),
        (Method::GET, "/agent/approvals?limit=1".to_owned(), None, 200),
        (Method::GET, format!("{one}/messages?before=2&limit=1"), None, 200),
        (Method::GET, format!("{one}/usage?limit=1&after=0"), None, 200),
        (Method::GET, format!("{one}/files/p1/0"), None, 200),
        (Method::GET, "/agent/usage?from=0&to=9000000000000".to_owned(), None, 200),
        (Method::GET, "/agent/search?q=hello&limit=5&offset=0".to_owned(), None, 200),
        (Method::GET, "/agent/schema/updates".to_owned(), None, 200),
        (Method::GET, "/agent/schema/commands".to_owned(), None, 200),
        (Method::GET, "/agent/openapi.json".to_owned(), None, 200),
        (Method::POST, format!("{one}/commands"), Some(prompt("Look")), 200),
        (Method::GET, one.clone(), None, 200),
    ] {
        let answer = app.answer(request(method.clone(), "ann", &path, body)).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text);
        seen.insert(answer.operation.unwrap());
        if method == Method::POST {
            let is_rest = |event: &Value| event["type"] == "turn" || event["status"] == "paused";
            stream.until(|frame| is_rest(&frame.data["update"]["event"]["event"])).await;
        }
    }
    let snapshot = app.get("ann", &one).await.json();
    let turn = &snapshot["agent"]["pauses"][0]["turn"];
    let decision = json!({ "type": "decide", "turn": turn, "decisions": [["call-1", "execute"]] });
    let decided = app.post("ann", &format!("{one}/commands"), decision).await;
    assert_eq!(decided.status, StatusCode::OK, "{}", decided.text);
    seen.insert(decided.operation.unwrap());
    app.idle(&id).await;
    // The events of both streams are checked when they are read.
    app.stream("ann", &format!("{one}/events"), None).await.next().await.unwrap();
    seen.extend(["watch", "watchConversation"]);
    let forked = app.post("ann", &format!("{one}/forks"), json!({ "node": 2 })).await;
    assert_eq!(forked.status, StatusCode::CREATED, "{}", forked.text);
    seen.insert(forked.operation.unwrap());
    let deleted = app.answer(request(Method::DELETE, "ann", &one, None)).await;
    seen.insert(deleted.operation.unwrap());
    let all: BTreeSet<&str> = DOCUMENT.operations.iter().map(|operation| operation.id.as_str()).collect();
    assert_eq!(seen, all);
}

#[tokio::test(start_paused = true)]
async fn served_document_names_the_place_where_the_router_is_nested() {
    let app = App::new([]);
    let served = app.get("ann", "/agent/openapi.json").await;
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert_eq!(served.json(), DOCUMENT.value);
    let router = axum::Router::new().nest("/v1/chat", app.web.router());
    let request = request(Method::GET, "ann", "/v1/chat/openapi.json", None);
    let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), 1 << 22).await.unwrap();
    let document: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["servers"][0]["variables"]["base"]["default"], "/v1/chat");
}

#[test]
fn types_of_the_javascript_client_are_strict_and_equal_those_of_the_document() {
    let (Some(node), Some(packages)) = (node(), packages("types")) else { return };
    let mut command = Command::new(node);
    command.arg("--test").arg(Path::new(SCRIPTS).join("types.mjs")).env("OMNI_NODE_MODULES", packages);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

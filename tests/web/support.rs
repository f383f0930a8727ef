//! An application with a router, and requests to it.

use axum::{
    Router,
    body::{Body, BodyDataStream, HttpBody, to_bytes},
    http::{Method, Request, Response, StatusCode, request::Parts},
};
use futures_util::StreamExt;
use omni_agent::{
    access::{Action, Permissions, Principal, StartRequest},
    agent::{Agent, Durable},
    async_trait,
    manager::{Manager, OpenOptions, Titles},
    message::{Attachment, ResultBlock},
    store::{ConversationId, Labels, MemoryStore, Store},
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolContext, ToolOutput, tool_fn, tool_fn_with_schema},
    web::{Access, Challenge, Web, WebBuilder},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::openapi;

/// The access hook of the tests. The header `x-user` names the user. `boss` is an operator, and `reader` may only read
/// Ann's conversations. In these, `writer` may not branch, `brancher` may not prompt, and `asker` may not decide. Only
/// operators may see conversations with the label `hidden`.
pub(crate) struct Users;

impl Permissions for Users {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        let may_act = match principal.name() {
            "reader" => matches!(action, Action::Read | Action::List),
            "lister" => action == Action::List,
            "writer" => action != Action::Branch,
            "brancher" => action != Action::Prompt,
            "asker" => action != Action::Decide,
            _ => true,
        };
        let is_hidden = labels.get("hidden").is_some() && !principal.is_operator();
        principal.owns(labels) && may_act && !is_hidden
    }
}

#[async_trait]
impl Access for Users {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let user = request.headers.get("x-user").and_then(|value| value.to_str().ok());
        match user.ok_or_else(Challenge::bearer)? {
            "boss" => Ok(Principal::operator("boss")),
            user @ ("reader" | "writer" | "brancher" | "asker") => {
                Ok(Principal::new(user, labels("ann")).unwrap())
            }
            user => Ok(Principal::new(user, labels(user)).unwrap()),
        }
    }
}

pub(crate) fn labels(user: &str) -> Labels {
    Labels::new([("user", user)]).unwrap()
}

/// An application under test.
pub(crate) struct App {
    pub(crate) manager: Manager,
    pub(crate) web: Web,
    pub(crate) provider: ScriptedProvider,
    router: Router,
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) parts: axum::http::response::Parts,
    pub(crate) text: String,
    /// The id of the operation in the OpenAPI document. `None` if the document has no operation for the path or the
    /// method.
    pub(crate) operation: Option<&'static str>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16(), "{json}");
        json["type"].as_str().unwrap().strip_prefix("urn:omni-agent:").unwrap().to_owned()
    }
}

impl App {
    pub(crate) fn new(script: impl IntoIterator<Item = Step>) -> Self {
        Self::with(script, |web| web)
    }

    pub(crate) fn with(
        script: impl IntoIterator<Item = Step>,
        set_up: impl FnOnce(WebBuilder) -> WebBuilder,
    ) -> Self {
        let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
        Self::over(manager, script, set_up)
    }

    /// Returns an application over this manager.
    pub(crate) fn over(
        manager: Manager,
        script: impl IntoIterator<Item = Step>,
        set_up: impl FnOnce(WebBuilder) -> WebBuilder,
    ) -> Self {
        Self::of(manager, Users, script, set_up, Durable::Turns)
    }

    /// Returns an application with this access hook.
    pub(crate) fn guarded(
        manager: Manager,
        access: impl Access,
        script: impl IntoIterator<Item = Step>,
        set_up: impl FnOnce(WebBuilder) -> WebBuilder,
    ) -> Self {
        Self::of(manager, access, script, set_up, Durable::Turns)
    }

    /// Returns an application whose turns in flight another application over the same store can continue.
    pub(crate) fn durable(store: &(impl Store + Clone), script: impl IntoIterator<Item = Step>) -> Self {
        let manager = Manager::builder(store.clone()).titles(Titles::Off).build();
        Self::of(manager, Users, script, |web| web.models(["test:other"]), Durable::InFlight)
    }

    fn of(
        manager: Manager,
        access: impl Access,
        script: impl IntoIterator<Item = Step>,
        set_up: impl FnOnce(WebBuilder) -> WebBuilder,
        durable: Durable,
    ) -> Self {
        let provider = ScriptedProvider::new(script);
        let model = provider.model();
        let agents = move |_: &Principal, _: &StartRequest| {
            let schema = json!({ "type": "object", "description": "hidden-schema" });
            let schema = Schema::new(schema).unwrap();
            let lookup = tool_fn_with_schema(
                "lookup",
                "Looks something up.",
                schema,
                |input: Value, _: ToolContext| async move { Ok(format!("found {}", input["what"])) },
            );
            let draw = tool_fn("draw", "Draws.", |_: Value, _: ToolContext| async move {
                let large = Attachment::base64("image/png", "QUJD".repeat(20_000)).named("large.png");
                let small = Attachment::base64("image/png", "QUJD");
                Ok(ToolOutput::blocks([ResultBlock::from("Drawn."), large.into(), small.into()]))
            });
            let agent = Agent::builder().model(model.clone()).system("Secret rules.");
            let agent = agent.tool(lookup).needs_approval("lookup").tool(draw);
            Ok::<_, omni_agent::Error>(OpenOptions::new(agent).durable(durable))
        };
        Self::behind(set_up(Web::builder(manager.clone(), access, agents)).build(), manager, provider)
    }

    /// Returns an application all of whose conversations have this agent, with durable turns.
    pub(crate) fn running<O: Into<OpenOptions>>(
        manager: Manager,
        agent: impl Fn() -> O + Send + Sync + 'static,
    ) -> Self {
        let agents = move |_: &Principal, _: &StartRequest| {
            Ok::<_, omni_agent::Error>(agent().into().durable(Durable::InFlight))
        };
        let web = Web::builder(manager.clone(), Users, agents).build();
        Self::behind(web, manager, ScriptedProvider::new([]))
    }

    fn behind(web: Web, manager: Manager, provider: ScriptedProvider) -> Self {
        let router = Router::new().nest("/agent", web.router()).nest("/api", web.ai_sdk());
        let router = router.nest_service("/ag-ui", web.ag_ui());
        Self { manager, web, provider, router }
    }

    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends a request and reads the response. Both are checked against the OpenAPI document.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().to_string());
        let (parts, mut body) = request.into_parts();
        let mut sent = None;
        if body.size_hint().exact().is_some() {
            let bytes = to_bytes(body, 1 << 26).await.unwrap();
            body = Body::from(bytes.clone());
            sent = Some(bytes);
        }
        let (parts, body) = self.send(Request::from_parts(parts, body)).await.into_parts();
        let text = String::from_utf8_lossy(&to_bytes(body, 1 << 26).await.unwrap()).into_owned();
        let mut answer = Answer { status: parts.status, parts, text, operation: None };
        answer.operation = openapi::check(&method, &path, sent.as_deref(), &answer);
        answer
    }

    pub(crate) async fn get(&self, user: &str, path: &str) -> Answer {
        self.answer(request(Method::GET, user, path, None)).await
    }

    pub(crate) async fn post(&self, user: &str, path: &str, body: Value) -> Answer {
        self.answer(request(Method::POST, user, path, Some(body))).await
    }

    /// Creates a conversation of this user and returns its id.
    pub(crate) async fn create(&self, user: &str) -> String {
        let created = self.post(user, "/agent/conversations", json!({})).await;
        assert_eq!(created.status, StatusCode::CREATED, "{created:?}");
        created.json()["id"].as_str().unwrap().to_owned()
    }

    /// Hides a conversation from its user.
    pub(crate) async fn hide(&self, user: &str, id: &str) {
        let labels = Labels::new([("user", user), ("hidden", "yes")]).unwrap();
        self.manager.set_labels(&ConversationId::new(id).unwrap(), labels).await.unwrap();
    }

    /// Reads a list page by page, and returns the pages.
    pub(crate) async fn pages(&self, user: &str, list: &str, limit: usize) -> Vec<Value> {
        let first = format!("{list}?limit={limit}");
        let mut pages = vec![self.get(user, &first).await.json()];
        while let Some(next) = pages.last().and_then(|page| page["next"].as_str()) {
            let path = format!("{first}&after={next}");
            pages.push(self.get(user, &path).await.json());
        }
        pages
    }

    /// Sends a prompt and waits until the session is idle.
    pub(crate) async fn ask(&self, user: &str, id: &str, text: &str) {
        let answer = self.post(user, &format!("/agent/conversations/{id}/commands"), prompt(text)).await;
        let answer = answer.json();
        assert_eq!(
            (&answer["type"], &answer["accepted"]),
            (&json!("accepted"), &json!("started")),
            "{answer}"
        );
        self.idle(id).await;
    }

    /// Returns the id under which the front ends show the pause of this tool use.
    pub(crate) async fn pause(&self, id: &str, tool_use: &str) -> String {
        let session = self.manager.get(&ConversationId::new(id).unwrap()).unwrap();
        let agent = session.snapshot().await.unwrap().agent;
        let waits = agent.pauses.iter().find(|pause| pause.tool_use.id.as_str() == tool_use);
        format!("{tool_use}@{}", waits.expect("the tool use waits").turn)
    }

    pub(crate) async fn idle(&self, id: &str) {
        let session = self.manager.get(&ConversationId::new(id).unwrap()).unwrap();
        session.wait_until_idle().await.unwrap();
    }

    /// Opens a stream.
    pub(crate) async fn stream(&self, user: &str, path: &str, after: Option<&str>) -> Frames {
        let mut request = request(Method::GET, user, path, None);
        if let Some(after) = after {
            request.headers_mut().insert("last-event-id", after.parse().unwrap());
        }
        let response = self.send(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let is_native = path.starts_with("/agent/");
        Frames { body: response.into_body().into_data_stream(), buffer: String::new(), is_native }
    }
}

pub(crate) fn prompt(text: &str) -> Value {
    json!({ "type": "run", "prompt": { "content": [{ "type": "text", "text": text }] } })
}

/// The body of a new message of the AI SDK.
pub(crate) fn submit(id: &str, message: &str, text: &str) -> Value {
    let message = json!({ "id": message, "role": "user", "parts": [{ "type": "text", "text": text }] });
    json!({ "id": id, "trigger": "submit-message", "messages": [message] })
}

/// Returns the status and the code of an answer with a problem.
pub(crate) async fn problem(response: Response<Body>) -> (u16, String) {
    let (parts, body) = response.into_parts();
    let text = String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap();
    let answer = Answer { status: parts.status, parts, text, operation: None };
    (answer.status.as_u16(), answer.code())
}

/// The body of a run of AG-UI 1.0 with a new message.
pub(crate) fn run_input(thread: &str, run: &str, text: &str) -> Value {
    let message = json!({ "id": format!("u-{run}"), "role": "user", "content": text });
    json!({ "threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": [message],
            "tools": [], "context": [], "state": {} })
}

pub(crate) fn request(method: Method, user: &str, path: &str, body: Option<Value>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "chat.example.com");
    if !user.is_empty() {
        builder = builder.header("x-user", user);
    }
    match body {
        Some(body) => builder.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => builder.body(Body::empty()),
    }
    .unwrap()
}

/// A frame of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) event: String,
    pub(crate) id: Option<String>,
    pub(crate) data: Value,
}

/// The frames of a stream.
pub(crate) struct Frames {
    body: BodyDataStream,
    buffer: String,
    /// Whether the events are those of a native stream, which are checked against the OpenAPI document.
    is_native: bool,
}

impl Frames {
    /// Returns the next frame, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((frame, rest)) = self.buffer.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.buffer = rest;
                if let Some(frame) = read(&frame) {
                    if self.is_native {
                        openapi::check_event(&frame.event, frame.id.as_deref(), &frame.data);
                    }
                    return Some(frame);
                }
                continue;
            }
            let bytes = self.body.next().await?.unwrap();
            self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// Returns the frames up to the first one that `is_last` accepts.
    pub(crate) async fn until(&mut self, is_last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let frame = self.next().await.unwrap_or_else(|| panic!("the stream has ended after {frames:#?}"));
            let is_last = is_last(&frame);
            frames.push(frame);
            if is_last {
                return frames;
            }
        }
    }

    /// Returns the frames up to the end of the run.
    pub(crate) async fn run(&mut self) -> Vec<Frame> {
        self.until(|frame| frame.data["update"]["event"]["type"] == "tree").await
    }
}

/// Reads the text of a frame. Returns `None` for a comment.
pub(crate) fn read(text: &str) -> Option<Frame> {
    let field = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let values: Vec<&str> = lines.map(|value| value.strip_prefix(' ').unwrap_or(value)).collect();
        (!values.is_empty()).then(|| values.join("\n"))
    };
    let data = serde_json::from_str(&field("data:")?).unwrap();
    Some(Frame { event: field("event:").unwrap_or_default(), id: field("id:"), data })
}

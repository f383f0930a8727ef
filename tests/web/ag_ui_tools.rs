//! The tools that AG-UI clients declare.

use axum::{Router, body::Body, http::Method};
use omni_agent::{
    Agent, Tool,
    access::{Principal, StartRequest},
    agent::Durable,
    manager::{Manager, OpenOptions, Titles},
    message::ToolResult,
    provider::Request,
    session::Mode,
    store::{ConversationId, MemoryStore},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Schema, ToolContext, declared_tool_with_schema, tool_fn_with_schema},
    web::Web,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::{
    nested_approvals::resume,
    support::{Users, labels, request, run_input},
};

fn schema(property: &str) -> Value {
    json!({ "type": "object", "properties": { property: { "type": "string" } } })
}

/// A server whose agent runs the tool `look`, and only declares the tool `confirm`.
struct Server {
    manager: Manager,
    router: Router,
    provider: ScriptedProvider,
    runs: u32,
}

impl Server {
    async fn new() -> Self {
        Self::with(ScriptedProvider::from_fn(|_| Step::text("Done."))).await
    }

    async fn with(provider: ScriptedProvider) -> Self {
        Self::durable(provider, Durable::Turns).await
    }

    /// A server whose tool `look` needs an approval if more than whole turns are durable.
    async fn durable(provider: ScriptedProvider, level: Durable) -> Self {
        let model = provider.model();
        let options = move || {
            let of = |property: &str| Schema::new(schema(property)).unwrap();
            let look = async |_: Value, _: ToolContext| Ok::<_, omni_agent::ToolError>("a b");
            let look = tool_fn_with_schema("look", "Looks.", of("place"), look);
            let look: Box<dyn Tool> =
                if level > Durable::Turns { Box::new(look.needs_approval()) } else { Box::new(look) };
            let confirm = declared_tool_with_schema("confirm", "Asks the user.", of("question"));
            OpenOptions::new(Agent::builder().model(model.clone()).tool(look).tool(confirm)).durable(level)
        };
        let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
        let id = ConversationId::new("talk").unwrap();
        manager.create_with_id(&id, options().labels(labels("ann"))).await.unwrap();
        let agents = move |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(options());
        let web = Web::builder(manager.clone(), Users, agents).client_tools().build();
        let router = Router::new().nest("/agent", web.router()).nest("/ag-ui", web.ag_ui());
        Self { manager, router, provider, runs: 0 }
    }

    async fn send(&self, path: &str, body: Value) -> Body {
        let sent = request(Method::POST, "ann", path, Some(body));
        self.router.clone().oneshot(sent).await.unwrap().into_body()
    }

    /// Starts a run with these tools of the client. The new message has an id for each run.
    async fn start(&mut self, tools: Value) -> Body {
        self.runs += 1;
        let mut body = run_input("talk", &format!("r{}", self.runs), "Go");
        body["tools"] = tools;
        self.send("/ag-ui", body).await
    }

    /// Runs the agent with one tool of the client, and returns the text of the stream.
    async fn run(&mut self, name: &str, description: &str, schema: Value) -> String {
        read(self.start(json!([{ "name": name, "description": description, "parameters": schema }])).await)
            .await
    }

    /// Runs the agent with tools of these names, and returns the names of the tools in its last request.
    async fn run_with(&mut self, names: &[&str]) -> Vec<String> {
        let text = read(self.start(tools(names)).await).await;
        assert!(text.contains("RUN_FINISHED"), "{text}");
        self.names().pop().unwrap()
    }

    /// Returns the description and the schema of each tool of the last request to the model.
    fn offered(&self) -> Vec<(String, String, Value)> {
        let tools = self.provider.last_request().unwrap().tools;
        let declarations = tools.declarations().into_iter();
        declarations.map(|tool| (tool.name, tool.description, tool.schema.as_value().clone())).collect()
    }

    /// Returns the names of the tools of each request to the model.
    fn names(&self) -> Vec<Vec<String>> {
        let names = |request: &Request| request.tools.iter().map(|tool| tool.name().to_owned()).collect();
        self.provider.requests().iter().map(names).collect()
    }
}

async fn read(body: Body) -> String {
    let bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns tools of a client as a request declares them.
fn tools(names: &[&str]) -> Value {
    names
        .iter()
        .map(|name| json!({ "name": name, "description": "Mine.", "parameters": schema("x") }))
        .collect()
}

/// Returns the names of the agent's tools and of these tools of the client.
fn with(names: &[&str]) -> Vec<String> {
    ["look", "confirm"].iter().chain(names).map(|name| (*name).to_owned()).collect()
}

fn own() -> [(String, String, Value); 2] {
    [
        ("look".into(), "Looks.".into(), schema("place")),
        ("confirm".into(), "Asks the user.".into(), schema("question")),
    ]
}

#[tokio::test(start_paused = true)]
async fn tool_of_a_client_is_offered_after_those_of_the_agent_and_replaced_by_its_next_declaration() {
    let mut server = Server::new().await;
    for property in ["page", "chapter"] {
        let text = server.run("show", property, schema(property)).await;
        assert!(text.contains("RUN_FINISHED"), "{text}");
        let show = ("show".to_owned(), property.to_owned(), schema(property));
        assert_eq!(server.offered(), own().into_iter().chain([show]).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn tool_of_a_client_never_replaces_one_of_the_agent() {
    let mut server = Server::new().await;
    // The agent runs the first tool itself. The client can run the second one, because its schema is the same.
    for (name, property) in [("look", "anything"), ("confirm", "question")] {
        let text = server.run(name, "Mine.", schema(property)).await;
        assert!(text.contains("RUN_FINISHED"), "{text}");
        assert_eq!(server.offered(), own());
    }
    let requests = server.provider.requests().len();
    let text = server.run("confirm", "Mine.", schema("answer")).await;
    assert!(text.contains("RUN_ERROR") && text.contains("invalid-tool"), "{text}");
    assert!(text.contains("The agent declares the tool \\\"confirm\\\" with another schema"), "{text}");
    assert_eq!(server.provider.requests().len(), requests, "nothing was started");
}

#[tokio::test(start_paused = true)]
async fn run_begins_with_exactly_the_tools_that_its_request_declares() {
    let mut server = Server::new().await;
    for names in [&["first", "second"][..], &["second"], &["third"], &[]] {
        assert_eq!(server.run_with(names).await, with(names));
    }
}

#[tokio::test(start_paused = true)]
async fn tools_of_many_runs_with_new_names_do_not_add_up() {
    let mut server = Server::new().await;
    for run in 0..1000 {
        let name = format!("tool-{run}");
        assert_eq!(server.run_with(&[&name]).await, with(&[&name]));
    }
}

#[tokio::test(start_paused = true)]
async fn runs_of_other_requests_have_no_tools_of_a_client() {
    let mut server = Server::new().await;
    server.run_with(&["show"]).await;
    let prompt =
        |text: &str| json!({ "type": "run", "prompt": { "content": [{ "type": "text", "text": text }] } });
    read(server.send("/agent/conversations/talk/commands", prompt("And?")).await).await;
    let session = server.manager.get(&ConversationId::new("talk").unwrap()).unwrap();
    session.wait_until_idle().await.unwrap();
    // The same message with the same settings gets another answer.
    let shown = session.tree().await.unwrap().iter().next().unwrap().id();
    session.again(shown).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(server.names(), [with(&["show"]), with(&[]), with(&[])]);
}

#[tokio::test(start_paused = true)]
async fn paused_turn_that_is_opened_again_has_the_tools_of_its_client() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let look = Step::tool_use("t1", "look", json!({ "place": "here" }));
        let steps = [look, Step::tool_use("t2", "show", json!({ "x": "page" })), Step::text("Shown.")];
        let mut server = Server::durable(ScriptedProvider::new(steps), level).await;
        let text = read(server.start(tools(&["show", "draw"])).await).await;
        let id = ConversationId::new("talk").unwrap();
        let session = server.manager.get(&id).unwrap();
        let pause = session.snapshot().await.unwrap().agent.pauses[0].clone();
        let interrupt = format!("{}@{}", pause.tool_use.id, pause.turn);
        assert!(text.contains(&interrupt), "{text}");
        // The session ends after its idle time, because nobody follows the paused turn.
        let mut events = session.subscribe(Mode::Observer).await.unwrap();
        drop(session);
        while !matches!(events.next().await, Some(Update::Closed(_)) | None) {}
        // The user returns and is shown the interrupt.
        let join = request(Method::GET, "ann", "/ag-ui/talk?protocolVersion=1.0", None);
        let shown = read(server.router.clone().oneshot(join).await.unwrap().into_body()).await;
        assert!(shown.contains(&interrupt), "{shown}");
        // The decision starts no run, so its own tools do not count.
        let mut decision = resume("talk", "r2", &interrupt);
        decision["tools"] = tools(&["other"]);
        let text = read(server.send("/ag-ui", decision).await).await;
        assert!(text.contains("RUN_FINISHED") && text.contains("show"), "{text}");
        assert_eq!(server.names(), [with(&["draw", "show"]), with(&["draw", "show"])]);
        // The use of the tool has stayed open, so the client gives its result.
        let frames = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut frames = frames.filter_map(|frame| serde_json::from_str::<Value>(frame).ok());
        let call = frames.find(|frame| frame["toolCallName"] == "show").unwrap()["toolCallId"].take();
        let mut result = run_input("talk", "r3", "");
        result["messages"] =
            json!([{ "id": "m3", "role": "tool", "toolCallId": call, "content": "The page is open." }]);
        let text = read(server.send("/ag-ui", result).await).await;
        assert!(text.contains("Shown."), "{text}");
        let sent = server.provider.last_request().unwrap().history;
        let results: Vec<_> = sent.last().unwrap().tool_results().map(ToolResult::text).collect();
        assert_eq!(results, ["The page is open."]);
    }
}

#[tokio::test(start_paused = true)]
async fn other_answer_to_a_message_is_made_with_the_tools_of_its_request() {
    let mut server = Server::new().await;
    server.run_with(&["show"]).await;
    let mut again = run_input("talk", "r2", "Go");
    again["messages"][0]["id"] = "u-r1".into();
    again["tools"] = tools(&["draw"]);
    let text = read(server.send("/ag-ui", again).await).await;
    assert!(text.contains("RUN_FINISHED"), "{text}");
    assert_eq!(server.names(), [with(&["show"]), with(&["draw"])]);
}

#[tokio::test(start_paused = true)]
async fn runs_at_the_same_time_have_their_own_tools() {
    let gate = Gate::new();
    let look = Step::new().then_tool_use("t1", "look", json!({})).gate(&gate).stop();
    let steps = [look, Step::text("One."), Step::text("Two."), Step::text("Three.")];
    let mut server = Server::with(ScriptedProvider::new(steps)).await;
    let first = server.start(tools(&["first"])).await;
    gate.reached().await;
    // The second and the third run wait for the end of the first one, which makes another request.
    let second = server.start(tools(&["second"])).await;
    let third = server.start(tools(&[])).await;
    gate.open();
    for (body, answer) in [(first, "One."), (second, "Two."), (third, "Three.")] {
        let text = read(body).await;
        assert!(text.contains(answer) && text.contains("RUN_FINISHED"), "{text}");
    }
    assert_eq!(server.names(), [with(&["first"]), with(&["first"]), with(&["second"]), with(&[])]);
}

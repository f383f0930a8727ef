//! The tools that AG-UI clients declare.

use axum::{Router, http::Method};
use omni_agent::{
    Agent,
    manager::{Manager, OpenOptions, Titles},
    store::{ConversationId, MemoryStore},
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolContext, declared_tool_with_schema, tool_fn_with_schema},
    web::{Principal, Problem, StartRequest, Web},
};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Users, labels, request, run_input};

fn schema(property: &str) -> Value {
    json!({ "type": "object", "properties": { property: { "type": "string" } } })
}

/// A server whose agent runs the tool `look`, and only declares the tool `confirm`.
struct Server {
    router: Router,
    provider: ScriptedProvider,
    runs: u32,
}

impl Server {
    async fn new() -> Self {
        let provider = ScriptedProvider::from_fn(|_| Step::text("Done."));
        let model = provider.model();
        let options = move || {
            let of = |property: &str| Schema::new(schema(property)).unwrap();
            let look = async |_: Value, _: ToolContext| Ok::<_, omni_agent::ToolError>("a b");
            let look = tool_fn_with_schema("look", "Looks.", of("place"), look);
            let confirm = declared_tool_with_schema("confirm", "Asks the user.", of("question"));
            OpenOptions::new(Agent::builder().model(model.clone()).tool(look).tool(confirm))
        };
        let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
        let id = ConversationId::new("talk").unwrap();
        manager.create_with_id(&id, options().labels(labels("ann"))).await.unwrap();
        let agents = move |_: &Principal, _: &StartRequest| Ok::<_, Problem>(options());
        let web = Web::builder(manager, Users, agents).client_tools().build();
        Self { router: Router::new().nest("/ag-ui", web.ag_ui()), provider, runs: 0 }
    }

    /// Runs the agent with one tool of the client, and returns the text of the stream.
    async fn run(&mut self, name: &str, description: &str, schema: Value) -> String {
        self.runs += 1;
        let mut body = run_input("talk", &format!("r{}", self.runs), "Go");
        body["tools"] = json!([{ "name": name, "description": description, "parameters": schema }]);
        let sent = request(Method::POST, "ann", "/ag-ui", Some(body));
        let response = self.router.clone().oneshot(sent).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// Returns the description and the schema of each tool of the last request to the model.
    fn offered(&self) -> Vec<(String, String, Value)> {
        let tools = self.provider.last_request().unwrap().tools;
        let declarations = tools.declarations().into_iter();
        declarations.map(|tool| (tool.name, tool.description, tool.schema.as_value().clone())).collect()
    }
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
    assert!(text.contains("the agent declares the tool \\\"confirm\\\" with another schema"), "{text}");
    assert_eq!(server.provider.requests().len(), requests, "nothing was started");
}

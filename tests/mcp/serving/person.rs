//! Clients made with the official library, in the same process as the server.

use std::sync::{Arc, Mutex};

use omni_agent::{manager::Manager, serve::mcp::McpServer};
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        CallToolRequestParams, CallToolResult, CancelledNotificationParam, ClientCapabilities, ClientConfig,
        ElicitRequestParams, ElicitResult, ElicitationAction, Implementation, ProgressNotificationParam,
        ProtocolVersion,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt, NotificationContext, RequestContext, RunningService,
        ServiceError,
    },
};
use serde_json::{Value, json};
use tokio::{io::DuplexStream, sync::Notify, task::JoinHandle};

use super::host::served;
use crate::support::soon;

pub const OLD: ProtocolVersion = ProtocolVersion::V_2025_11_25;
pub const NEW: ProtocolVersion = ProtocolVersion::V_2026_07_28;

/// The reaction of the person at the client to a question.
#[derive(Clone, Debug)]
pub enum Answers {
    Accept(Option<Value>),
    Decline,
    /// The person leaves the question open.
    Never,
    /// The client has no way to ask.
    Nobody,
}

/// The questions, the progress reports and the withdrawals that the client has received.
#[derive(Default)]
pub struct Seen {
    pub questions: Mutex<Vec<String>>,
    /// The fields of the questions.
    pub schemas: Mutex<Vec<Value>>,
    pub reports: Mutex<Vec<String>>,
    pub withdrawn: Mutex<u32>,
    pub changed: Notify,
}

#[derive(Clone)]
pub struct Person {
    answers: Answers,
    version: ProtocolVersion,
    /// The name of the client's program.
    name: String,
    pub seen: Arc<Seen>,
}

impl Person {
    pub fn new(version: ProtocolVersion, answers: Answers) -> Self {
        Self { answers, version, name: "person".to_owned(), seen: Arc::default() }
    }

    pub fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    pub fn lifecycle(&self) -> ClientLifecycleMode {
        if self.version == NEW {
            ClientLifecycleMode::Discover { preferred_versions: vec![NEW] }
        } else {
            ClientLifecycleMode::Initialize
        }
    }
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let capabilities = match self.answers {
            Answers::Nobody => ClientCapabilities::default(),
            _ => ClientCapabilities::builder().enable_elicitation().build(),
        };
        ClientConfig::new(capabilities, Implementation::new(&*self.name, "1.0.0"))
            .with_protocol_version(self.version.clone())
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } = request else {
            return Ok(ElicitResult::new(ElicitationAction::Cancel));
        };
        self.seen.schemas.lock().unwrap().push(json!(requested_schema));
        self.seen.questions.lock().unwrap().push(message);
        self.seen.changed.notify_one();
        match &self.answers {
            Answers::Accept(Some(content)) => {
                Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content.clone()))
            }
            Answers::Accept(None) => Ok(ElicitResult::new(ElicitationAction::Accept)),
            Answers::Decline => Ok(ElicitResult::new(ElicitationAction::Decline)),
            Answers::Never | Answers::Nobody => std::future::pending().await,
        }
    }

    async fn on_cancelled(&self, _: CancelledNotificationParam, _: NotificationContext<RoleClient>) {
        *self.seen.withdrawn.lock().unwrap() += 1;
        self.seen.changed.notify_one();
    }

    async fn on_progress(&self, report: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.seen.reports.lock().unwrap().push(report.message.unwrap_or_default());
    }
}

pub type Client = RunningService<RoleClient, Person>;

/// Serves the manager to a client in this process. Returns the client and the result of the server.
pub async fn connect(
    manager: &Manager,
    person: Person,
) -> (Client, JoinHandle<Result<(), omni_agent::Error>>) {
    connect_to(served(manager), person).await
}

pub async fn connect_to(
    server: McpServer,
    person: Person,
) -> (Client, JoinHandle<Result<(), omni_agent::Error>>) {
    let (ours, serving) = serve(server);
    let lifecycle = person.lifecycle();
    let client = soon(person.serve_with_lifecycle(ours, lifecycle)).await.unwrap();
    (client, serving)
}

/// Starts the server at one end of a pipe, and returns the other end.
pub fn serve(server: McpServer) -> (DuplexStream, JoinHandle<Result<(), omni_agent::Error>>) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (input, output) = tokio::io::split(theirs);
    (ours, tokio::spawn(server.serve(input, output)))
}

pub fn params(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else { panic!("the arguments are an object") };
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

/// Calls a tool, and returns its result. Meanwhile, the client's `Person` answers the questions of the tool.
pub async fn call(client: &Client, tool: &'static str, arguments: Value) -> CallToolResult {
    soon(client.call_tool(params(tool, arguments))).await.unwrap()
}

/// Asks the agent, and returns the structured result.
pub async fn ask(client: &Client, prompt: &str) -> Value {
    done(&call(client, "ask", json!({ "prompt": prompt })).await)
}

/// Asks the agent in a conversation.
pub async fn ask_in(client: &Client, conversation: &Value, prompt: &str) -> Value {
    done(&call(client, "ask", json!({ "conversation": conversation, "prompt": prompt })).await)
}

pub fn done(result: &CallToolResult) -> Value {
    assert_eq!(result.is_error, Some(false), "{result:?}");
    result.structured_content.clone().unwrap()
}

/// Returns the text of an error result.
pub fn failure(result: &CallToolResult) -> String {
    assert_eq!(result.is_error, Some(true), "{result:?}");
    result.content[0].as_text().unwrap().text.clone()
}

/// Waits until the condition holds for the messages that the client has received.
pub async fn until(person: &Person, is_so: impl Fn(&Seen) -> bool) {
    let seen = async {
        while !is_so(&person.seen) {
            person.seen.changed.notified().await;
        }
    };
    soon(seen).await;
}

pub fn is_protocol_error(error: &ServiceError, code: i32) -> bool {
    matches!(error, ServiceError::McpError(error) if error.code.0 == code)
}

//! One call of a tool, with its limits, its progress and its cancellation.

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification,
        CancelledNotificationParam, ClientRequest, RequestId, ServerResult,
    },
    service::{PeerRequestOptions, RequestHandle, ServiceError},
};
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{McpError, connection::Connection, content::output, server::Server};
use crate::tool::{ToolContext, ToolOutput};

/// The time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long sending a cancellation may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Calls a tool of the server, by the server's own name for it.
pub(super) async fn call(
    server: &Server,
    tool: &str,
    input: Value,
    context: &ToolContext,
) -> Result<ToolOutput, McpError> {
    let arguments = match input {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let limit = server.settings().total_limit;
    let called = timeout(limit, answered(server, tool, arguments, context)).await;
    called.unwrap_or_else(|_| Err(McpError::TimedOut { server: server.settings().name.clone(), limit }))
}

async fn answered(
    server: &Server,
    tool: &str,
    arguments: Map<String, Value>,
    context: &ToolContext,
) -> Result<ToolOutput, McpError> {
    let connection = server.connection().await?;
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = connection.peer().send_request_with_option(request, PeerRequestOptions::no_options()).await;
    let handle = match sent {
        Ok(handle) => handle,
        Err(error) => return Err(server.failed(&connection, error).await),
    };
    let guard = CancelOnDrop { connection: Arc::clone(&connection), id: Some(handle.id.clone()) };
    match wait(server, &connection, handle, context).await {
        Ok(answer) => {
            guard.disarm();
            server.worked().await;
            outcome(server, answer)
        }
        Err(Unanswered::Idle(limit)) => {
            Err(McpError::TimedOut { server: server.settings().name.clone(), limit })
        }
        Err(Unanswered::Failed(error)) => {
            guard.disarm();
            Err(server.failed(&connection, error).await)
        }
    }
}

enum Unanswered {
    Idle(Duration),
    Failed(ServiceError),
}

/// Waits for the answer, and forwards the progress meanwhile.
async fn wait(
    server: &Server,
    connection: &Connection,
    mut handle: RequestHandle<RoleClient>,
    context: &ToolContext,
) -> Result<ServerResult, Unanswered> {
    let (reports, mut latest) = watch::channel(None);
    let forwarded = forward(latest.clone(), context);
    let _route = connection.route(handle.progress_token.clone(), reports);
    let idle = server.settings().idle_limit;
    let answer = async {
        loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => {
                    let answer = answer.unwrap_or(Err(ServiceError::TransportClosed));
                    return answer.map_err(Unanswered::Failed);
                }
                // Each report starts the idle limit again.
                Ok(()) = latest.changed() => {}
                () = sleep(idle) => return Err(Unanswered::Idle(idle)),
            }
        }
    };
    tokio::select! {
        biased;
        answer = answer => answer,
        never = forwarded => match never {},
    }
}

/// Forwards the latest progress, at most ten times per second.
async fn forward(
    mut latest: watch::Receiver<Option<Value>>,
    context: &ToolContext,
) -> std::convert::Infallible {
    while latest.changed().await.is_ok() {
        let report = latest.borrow_and_update().clone();
        if let Some(report) = report {
            context.progress(report).await;
            sleep(REPORT_EVERY).await;
        }
    }
    std::future::pending().await
}

fn outcome(server: &Server, answer: ServerResult) -> Result<ToolOutput, McpError> {
    let refused = |reason: &str| {
        Err(McpError::Refused { server: server.settings().name.clone(), reason: reason.to_owned() })
    };
    match answer {
        ServerResult::CallToolResult(result) => Ok(output(result)),
        ServerResult::EmptyResult(_) => Ok(output(CallToolResult::default())),
        ServerResult::InputRequiredResult(_) => {
            refused("it asks a question, and this client does not answer questions of servers")
        }
        ServerResult::CreateTaskResult(_) => {
            refused("it answers with a task, and this client does not wait for tasks")
        }
        _ => refused("its answer is not the result of a tool"),
    }
}

/// Sends `notifications/cancelled` if the call is dropped before its answer arrived.
struct CancelOnDrop {
    connection: Arc<Connection>,
    id: Option<RequestId>,
}

impl CancelOnDrop {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params = CancelledNotificationParam::new(Some(id), Some("the call was cancelled".to_owned()));
        let cancelled = CancelledNotification::new(params);
        let connection = Arc::clone(&self.connection);
        self.connection.runtime().spawn(async move {
            let _ = timeout(CANCEL_LIMIT, connection.peer().send_notification(cancelled.into())).await;
        });
    }
}

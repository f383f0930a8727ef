//! One call of a tool, with its limits, its progress and its cancellation.

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, CancelledNotification,
        CancelledNotificationParam, ClientRequest, ErrorCode, ErrorData, RequestId, RequestMetaObject,
        ServerResult,
    },
    service::{PeerRequestOptions, RequestHandle, ServiceError},
};
use serde_json::{Map, Value};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::Instrument;

use super::{
    McpError,
    connection::{Connection, RunningCall},
    content::output,
    question::{self, MOST_ROUNDS},
    server::Server,
    task,
};
use crate::{
    telemetry,
    tool::{ToolContext, ToolOutput, within},
};

/// The shortest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The error of a server that performs a call only after a person has opened URLs.
const URLS_REQUIRED: ErrorCode = ErrorCode(-32042);

/// How long sending a cancellation may take.
pub(super) const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// Calls a tool of the server, by the server's own name for it.
pub(super) async fn call(
    server: &Server,
    tool: &str,
    input: Value,
    context: Arc<ToolContext>,
) -> Result<ToolOutput, McpError> {
    let arguments = match input {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let limit = server.settings().total_limit;
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    // The future is boxed because the rounds of questions and the wait for a task make it large.
    let called = within(limit, Box::pin(answered(server, params, &context)), &context).await;
    called.unwrap_or_else(|| Err(McpError::TimedOut { server: server.settings().name.clone(), limit }))
}

/// Repeats the request with the answers to the server's questions until the server has the answers that it needs.
async fn answered(
    server: &Server,
    mut params: CallToolRequestParams,
    context: &Arc<ToolContext>,
) -> Result<ToolOutput, McpError> {
    let connection = server.connection().await?;
    for round in 0..=MOST_ROUNDS {
        let asked = match once(server, &connection, params.clone(), context).await? {
            Ok(ServerResult::CallToolResult(result)) => return Ok(output(result)),
            Ok(ServerResult::EmptyResult(_)) => return Ok(output(CallToolResult::default())),
            Ok(ServerResult::CreateTaskResult(created)) => {
                return task::result(server, &connection, created.task, context).await;
            }
            Ok(ServerResult::InputRequiredResult(asked)) => Ok(asked),
            Ok(_) => return Err(server.refused("its answer is not the result of a tool")),
            Err(urls_required) => Err(urls_required),
        };
        if round == MOST_ROUNDS {
            break;
        }
        let name = &server.settings().name;
        match asked {
            Ok(asked) => {
                let answers =
                    question::answers(name, asked.input_requests.unwrap_or_default(), context).await;
                params.input_responses = Some(answers.map_err(|reason| server.refused(&reason))?);
                params.request_state = asked.request_state;
            }
            Err(error) => {
                if !question::are_opened(name, error.data, context).await {
                    return Err(server.refused(&error.message));
                }
            }
        }
    }
    Err(server.refused("it asked questions more than ten times"))
}

/// Sends the request once, and waits for its answer. The inner error asks a person to open URLs before the request is
/// repeated.
async fn once(
    server: &Server,
    connection: &Arc<Connection>,
    params: CallToolRequestParams,
    context: &Arc<ToolContext>,
) -> Result<Result<ServerResult, ErrorData>, McpError> {
    let is_first = params.input_responses.is_none() && params.request_state.is_none();
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = connection.peer().send_request_with_option(request, options()).await;
    let handle = match sent {
        Ok(handle) => handle,
        Err(error) => return Err(server.failed(connection, error).await),
    };
    if is_first && telemetry::is_traced() {
        connection.record(&handle.id, server.settings());
    }
    let guard = CancelOnDrop::new(connection, &handle);
    match wait(server, connection, handle, context).await {
        Ok(answer) => {
            guard.disarm();
            server.worked();
            Ok(Ok(answer))
        }
        Err(Unanswered::Failed(ServiceError::McpError(error))) if error.code == URLS_REQUIRED => {
            guard.disarm();
            Ok(Err(error))
        }
        Err(Unanswered::Idle(limit)) => {
            Err(McpError::TimedOut { server: server.settings().name.clone(), limit })
        }
        Err(Unanswered::Failed(error)) => {
            guard.disarm();
            Err(server.failed(connection, error).await)
        }
    }
}

/// Returns the options of a request, with the context of the current span.
fn options() -> PeerRequestOptions {
    let options = PeerRequestOptions::no_options();
    match telemetry::traceparent() {
        None => options,
        Some(context) => {
            let mut meta = RequestMetaObject::new();
            meta.set_traceparent(context);
            options.with_meta(meta)
        }
    }
}

enum Unanswered {
    Idle(Duration),
    Failed(ServiceError),
}

/// Waits for the answer, and forwards the reports of progress that arrive before it.
async fn wait(
    server: &Server,
    connection: &Connection,
    mut handle: RequestHandle<RoleClient>,
    context: &Arc<ToolContext>,
) -> Result<ServerResult, Unanswered> {
    let (reports, mut latest) = watch::channel(None);
    let forwarded = forward(latest.clone(), context);
    let (id, token) = (handle.id.clone(), handle.progress_token.clone());
    let _route = connection.route(RunningCall::new(id, token, reports, Arc::clone(context)));
    let idle = server.settings().idle_limit;
    let answer = async {
        loop {
            let next = async {
                tokio::select! {
                    biased;
                    answer = &mut handle.rx => Some(answer.unwrap_or(Err(ServiceError::TransportClosed))),
                    Ok(()) = latest.changed() => None,
                }
            };
            match within(idle, next, context).await {
                Some(Some(answer)) => return answer.map_err(Unanswered::Failed),
                // Each report starts the idle limit again.
                Some(None) => {}
                None => return Err(Unanswered::Idle(idle)),
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

/// A guard that sends `notifications/cancelled` if a request is dropped or exceeds its limit before its answer has
/// arrived.
pub(super) struct CancelOnDrop {
    connection: Arc<Connection>,
    id: Option<RequestId>,
}

impl CancelOnDrop {
    pub(super) fn new(connection: &Arc<Connection>, request: &RequestHandle<RoleClient>) -> Self {
        Self { connection: Arc::clone(connection), id: Some(request.id.clone()) }
    }

    pub(super) fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let params = CancelledNotificationParam::new(Some(id), Some("the request was cancelled".to_owned()));
        let cancelled = CancelledNotification::new(params);
        let connection = Arc::clone(&self.connection);
        let cancelling = async move {
            let _ = timeout(CANCEL_LIMIT, connection.peer().send_notification(cancelled.into())).await;
        };
        self.connection.runtime().spawn(cancelling.in_current_span());
    }
}

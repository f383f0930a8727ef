//! One call of a tool, with its limits, its progress, its task and its cancellation.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, CancelTaskParams, CancelledNotificationParam,
        ClientRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ErrorCode, ErrorData,
        GetTaskParams, InputRequest, InputRequests, InputResponses, RequestId, RequestMetaObject,
        ServerResult, Task, TaskPayload, UpdateTaskParams,
    },
    service::{PeerRequestOptions, RequestHandle, ServiceError},
};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::Instrument;

use super::{
    McpError,
    builder::McpSettings,
    connection::{LONGEST, McpConnection, McpOpenCall},
    server::ServerConnection,
    tool::{output, partial_output},
};
use crate::{
    telemetry,
    text::clip,
    tool::{Answer, Schema, ToolContext, ToolOutput, within},
};

/// The shortest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The error of a server that performs a call only after a person has opened URLs.
const URLS_REQUIRED: ErrorCode = ErrorCode(-32042);

/// The error of a server that refuses a call because headers are missing which the list of tools requires.
const HEADERS_REQUIRED: ErrorCode = ErrorCode::HEADER_MISMATCH;

/// The reason why an answer is refused.
const NO_RESULT: &str = "its answer is not the result of a tool";

/// How long sending a cancellation may take.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// The time between two requests for a task's state, if the server does not specify one.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Calls a tool of the server, by the server's own name for it.
pub(super) async fn call(
    server: &ServerConnection,
    tool: &str,
    input: Value,
    context: Arc<ToolContext>,
) -> Result<ToolOutput, McpError> {
    let arguments = match input {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let limit = server.settings.total_limit;
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    // The future is boxed because the rounds of questions and the wait for a task make it large.
    let called = within(limit, Box::pin(answered(server, params, &context)), &context).await;
    called.unwrap_or_else(|| Err(server.settings.timed_out(limit)))
}

/// Repeats the request with the answers to the server's questions until the server has the answers that it needs.
async fn answered(
    server: &ServerConnection,
    mut params: CallToolRequestParams,
    context: &Arc<ToolContext>,
) -> Result<ToolOutput, McpError> {
    let (settings, connection) = (&server.settings, server.connection().await?);
    let mut has_listed = false;
    for round in 0..=MOST_ROUNDS {
        match once(server, &connection, params.clone(), context).await? {
            Ok(ServerResult::CallToolResult(result)) => return Ok(output(result)),
            Ok(ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_)) => {
                return Ok(output(CallToolResult::default()));
            }
            // If rmcp can't read a part of the result, it returns the whole result as a custom result.
            Ok(ServerResult::CustomResult(result)) => {
                return partial_output(result.0).ok_or_else(|| settings.refused(NO_RESULT));
            }
            Ok(ServerResult::CreateTaskResult(created)) => {
                return task_result(server, &connection, created.task, context).await;
            }
            Ok(ServerResult::InputRequiredResult(_)) | Err(_) if round == MOST_ROUNDS => break,
            Ok(ServerResult::InputRequiredResult(asked)) => {
                let questions = asked.input_requests.unwrap_or_default();
                params.input_responses = Some(answers(settings, questions, context).await?);
                params.request_state = asked.request_state;
            }
            Ok(_) => return Err(settings.refused(NO_RESULT)),
            // rmcp knows the headers from the list that was read on this connection.
            Err(refusal) if refusal.code == HEADERS_REQUIRED && !has_listed => {
                server.list().await?;
                has_listed = true;
            }
            Err(refusal) if refusal.code == HEADERS_REQUIRED => {
                return Err(settings.refused(&refusal.message));
            }
            Err(urls_required) => {
                if !are_opened(&settings.name, urls_required.data, context).await {
                    return Err(settings.refused(&urls_required.message));
                }
            }
        }
    }
    Err(settings.refused(TOO_MANY_ROUNDS))
}

/// Sends the request once, and waits for its answer. After the inner error, the request is repeated: the server has not
/// performed it, and asks a person to open URLs or the client for the headers of the tool.
async fn once(
    server: &ServerConnection,
    connection: &Arc<McpConnection>,
    params: CallToolRequestParams,
    context: &Arc<ToolContext>,
) -> Result<Result<ServerResult, ErrorData>, McpError> {
    let is_first = params.input_responses.is_none() && params.request_state.is_none();
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sent = connection.peer().send_request_with_option(request, options()).await;
    let handle = server.answered(connection, sent).await?;
    if is_first && telemetry::is_traced() {
        connection.record(&handle.id, &server.settings);
    }
    let guard = CancelOnDrop::new(connection, McpCancelTarget::Request(handle.id.clone()));
    let idle = server.settings.idle_limit;
    let answer = wait(idle, connection, handle, context).await;
    let answer = answer.ok_or_else(|| server.settings.timed_out(idle))?;
    guard.disarm();
    // In earlier versions of the protocol, the second code has any meaning that the server gives to it.
    let has_headers =
        connection.peer().peer_info().is_some_and(|info| !info.protocol_version.has_initialize());
    match answer {
        Err(ServiceError::McpError(error))
            if error.code == URLS_REQUIRED || has_headers && error.code == HEADERS_REQUIRED =>
        {
            Ok(Err(error))
        }
        answer => {
            let answer = server.answered(connection, answer).await?;
            server.worked();
            Ok(Ok(answer))
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

/// Waits for the answer, and forwards the reports of progress that arrive before it. Returns `None` if the idle limit has
/// passed.
async fn wait(
    idle: Duration,
    connection: &McpConnection,
    mut handle: RequestHandle<RoleClient>,
    context: &Arc<ToolContext>,
) -> Option<Result<ServerResult, ServiceError>> {
    let (reports, mut latest) = watch::channel(None);
    let forwarded = forward(latest.clone(), context);
    let (id, token) = (handle.id.clone(), handle.progress_token.clone());
    let _route = connection.route(McpOpenCall { id, token, reports, context: Arc::clone(context), asked: 0 });
    let answer = async {
        loop {
            let next = async {
                tokio::select! {
                    biased;
                    answer = &mut handle.rx => Some(answer.unwrap_or(Err(ServiceError::TransportClosed))),
                    Ok(()) = latest.changed() => None,
                }
            };
            // Each report starts the idle limit again.
            if let Some(answer) = within(idle, next, context).await? {
                return Some(answer);
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

/// Waits for the result of a task. If the future is dropped, the task is cancelled at the server.
async fn task_result(
    server: &ServerConnection,
    connection: &Arc<McpConnection>,
    mut task: Task,
    context: &ToolContext,
) -> Result<ToolOutput, McpError> {
    let (settings, peer) = (&server.settings, connection.peer());
    let guard = CancelOnDrop::new(connection, McpCancelTarget::Task(task.task_id.clone()));
    let idle = settings.idle_limit;
    let timed_out = || settings.timed_out(idle);
    let (mut answered, mut rounds, mut polls) = (BTreeSet::new(), 0, 0_u64);
    let ended = loop {
        if !task.status.is_terminal() {
            let interval = task.poll_interval_ms.map_or(INTERVAL, Duration::from_millis);
            sleep(interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)).await;
        }
        let state = within(idle, peer.get_task(GetTaskParams::new(task.task_id.clone())), context).await;
        let state = server.answered(connection, state.ok_or_else(timed_out)?).await?.task;
        polls += 1;
        if state.task.status_message != task.status_message {
            let message = state.task.status_message.as_deref().map(|message| clip(message, LONGEST));
            context.progress(json!({ "progress": polls, "total": null, "message": message })).await;
        }
        // Keep the original id, in case the server sends another one. The task is cancelled by its id.
        let id = std::mem::replace(&mut task, state.task).task_id;
        task.task_id = id;
        match state.payload {
            TaskPayload::Completed { result } => {
                break partial_output(Value::Object(result)).ok_or_else(|| NO_RESULT.to_owned());
            }
            TaskPayload::Failed { error } => {
                let message = error.get("message").and_then(Value::as_str);
                break Err(message.unwrap_or("its task failed").to_owned());
            }
            TaskPayload::Cancelled => break Err("its task was cancelled".to_owned()),
            TaskPayload::InputRequired { mut input_requests } => {
                // A question stays in the list until the server has processed its answer.
                input_requests.retain(|key, _| !answered.contains(key));
                if input_requests.is_empty() {
                    continue;
                }
                rounds += 1;
                if rounds > MOST_ROUNDS {
                    return Err(settings.refused(TOO_MANY_ROUNDS));
                }
                answered.extend(input_requests.keys().cloned());
                let answers = answers(settings, input_requests, context).await?;
                let params = UpdateTaskParams::new(task.task_id.clone(), answers);
                let updated = within(idle, peer.update_task(params), context).await;
                server.answered(connection, updated.ok_or_else(timed_out)?).await?;
            }
            _ => {}
        }
    };
    guard.disarm();
    ended.map_err(|reason| settings.refused(&reason))
}

/// A request or a task that the server performs for the client.
pub(super) enum McpCancelTarget {
    Request(RequestId),
    Task(String),
}

/// A guard that sends `notifications/cancelled` or `tasks/cancel` if a call is dropped, fails or exceeds its limit before
/// its answer has arrived.
pub(super) struct CancelOnDrop {
    connection: Arc<McpConnection>,
    target: Option<McpCancelTarget>,
}

impl CancelOnDrop {
    pub(super) fn new(connection: &Arc<McpConnection>, target: McpCancelTarget) -> Self {
        Self { connection: Arc::clone(connection), target: Some(target) }
    }

    pub(super) fn disarm(mut self) {
        self.target = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(target) = self.target.take() else { return };
        let connection = Arc::clone(&self.connection);
        let cancelling = async move {
            let peer = connection.peer();
            match target {
                McpCancelTarget::Request(id) => {
                    let reason = "the request was cancelled".to_owned();
                    let params = CancelledNotificationParam::new(Some(id), Some(reason));
                    peer.notify_cancelled(params).await
                }
                McpCancelTarget::Task(id) => peer.cancel_task(CancelTaskParams::new(id)).await.map(drop),
            }
        };
        let cancelling = async { timeout(CANCEL_LIMIT, cancelling).await };
        self.connection.runtime().spawn(cancelling.in_current_span());
    }
}

// Questions of servers (elicitation), which a person answers.

/// The maximum number of rounds of questions in one call.
const MOST_ROUNDS: usize = 10;

/// The reason why a call with more rounds fails.
const TOO_MANY_ROUNDS: &str = "it asked questions more than ten times";

/// The maximum number of questions that a server may ask in one round.
const MOST_QUESTIONS: usize = 32;

/// The maximum length of a form's schema.
const LONGEST_SCHEMA: usize = 64 * 1024;

/// Asks all questions at the same time, and returns the answers. Fails if a question can't be asked.
pub(super) async fn answers(
    settings: &McpSettings,
    requests: InputRequests,
    context: &ToolContext,
) -> Result<InputResponses, McpError> {
    let count = requests.len();
    if count > MOST_QUESTIONS {
        let reason = format!("it asks {count} questions at once; the limit is {MOST_QUESTIONS}");
        return Err(settings.refused(&reason));
    }
    let mut questions = BTreeMap::new();
    for (key, request) in requests {
        let InputRequest::Elicitation(request) = request else {
            let reason = "it asks for a model or for folders, which this client does not offer";
            return Err(settings.refused(reason));
        };
        questions.insert(key, request.params);
    }
    let asked = questions.into_iter().map(async |(key, params)| {
        let answer = answer(&settings.name, params, context).await;
        (key, serde_json::to_value(answer).expect("an answer is valid JSON"))
    });
    Ok(join_all(asked).await.into_iter().collect())
}

/// Asks a person to open the URLs that an error of the server requires. Returns whether the person agrees to open all of
/// them.
async fn are_opened(server: &str, required: Option<Value>, context: &ToolContext) -> bool {
    let urls = required.as_ref().and_then(|required| required.get("elicitations"));
    let urls = urls.and_then(|urls| Vec::<ElicitRequestParams>::deserialize(urls).ok()).unwrap_or_default();
    if urls.is_empty() || urls.len() > MOST_QUESTIONS {
        return false;
    }
    let asked = urls.into_iter().map(|url| answer(server, url, context));
    join_all(asked).await.iter().all(|answer| answer.action == ElicitationAction::Accept)
}

/// Asks one question.
pub(super) async fn answer(server: &str, params: ElicitRequestParams, context: &ToolContext) -> ElicitResult {
    let declined = || ElicitResult::new(ElicitationAction::Decline);
    let (question, form) = match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let Ok(schema) = serde_json::to_value(requested_schema) else { return declined() };
            if schema.to_string().len() > LONGEST_SCHEMA {
                tracing::warn!(server, "a question is declined: its schema has more than 64 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "form", "server": server, "message": message, "schema": &schema }), Some(schema))
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            if url.len() > LONGEST {
                tracing::warn!(server, "a question is declined: its URL has more than 4 KiB");
                return declined();
            }
            let message = clip(&message, LONGEST);
            (json!({ "mcp": "url", "server": server, "message": message, "url": url }), None)
        }
        _ => return declined(),
    };
    let accepted = ElicitResult::new(ElicitationAction::Accept);
    let answer = context.ask(question).await;
    let Answer::Accepted(fields) = answer else { return declined() };
    let Some(schema) = form else { return accepted };
    match filled(schema, fields) {
        Ok(fields) => accepted.with_content(fields),
        Err(reason) => {
            tracing::warn!(server, reason, "a question is declined: the answer does not fit the form");
            declined()
        }
    }
}

/// Returns the answer to a form with the defaults of fields that the answer omits. Fails with the reason if the answer
/// does not match the form's schema.
fn filled(schema: Value, answer: Option<Value>) -> Result<Value, String> {
    let mut fields = answer.unwrap_or_else(|| json!({}));
    if let (Some(fields), Some(properties)) = (fields.as_object_mut(), schema["properties"].as_object()) {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                fields.entry(name).or_insert_with(|| default.clone());
            }
        }
    }
    let schema = Schema::new(schema).map_err(|error| error.to_string())?;
    schema.validate(&fields)?;
    Ok(fields)
}

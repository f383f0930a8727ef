//! Tasks: calls whose result the client fetches later.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rmcp::model::{CallToolResult, CancelTaskParams, GetTaskParams, Task, TaskPayload, UpdateTaskParams};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::{
    McpError,
    call::CANCEL_LIMIT,
    connection::{Connection, LONGEST},
    content::output,
    question::{self, MOST_ROUNDS},
    server::Server,
};
use crate::{
    text::clip,
    tool::{ToolContext, ToolOutput, within},
};

/// The time between two requests for a task's state, if the server does not specify one.
const INTERVAL: Duration = Duration::from_secs(1);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Waits for the result of a task. If the future is dropped, the task is cancelled at the server.
pub(super) async fn result(
    server: &Server,
    connection: &Arc<Connection>,
    mut task: Task,
    context: &ToolContext,
) -> Result<ToolOutput, McpError> {
    let guard = CancelOnDrop { connection: Arc::clone(connection), id: Some(task.task_id.clone()) };
    let idle = server.settings().idle_limit;
    let timed_out = || McpError::TimedOut { server: server.settings().name.clone(), limit: idle };
    let (mut answered, mut rounds, mut polls) = (BTreeSet::new(), 0, 0_u64);
    loop {
        if !task.status.is_terminal() {
            let interval = task.poll_interval_ms.map_or(INTERVAL, Duration::from_millis);
            sleep(interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL)).await;
        }
        let asked = connection.peer().get_task(GetTaskParams::new(task.task_id.clone()));
        let state = match within(idle, asked, context).await.ok_or_else(timed_out)? {
            Ok(state) => state.task,
            Err(error) => return Err(server.failed(connection, error).await),
        };
        polls += 1;
        if state.task.status_message != task.status_message {
            let message = state.task.status_message.as_deref().map(|message| clip(message, LONGEST));
            context.progress(json!({ "progress": polls, "total": null, "message": message })).await;
        }
        match state.payload {
            TaskPayload::Completed { result } => {
                guard.disarm();
                let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                return match result {
                    Ok(result) => Ok(output(result)),
                    Err(_) => Err(server.refused("its task's result is not the result of a tool")),
                };
            }
            TaskPayload::Failed { error } => {
                guard.disarm();
                let message = error.get("message").and_then(Value::as_str).unwrap_or("its task failed");
                return Err(server.refused(message));
            }
            TaskPayload::Cancelled => {
                guard.disarm();
                return Err(server.refused("its task was cancelled"));
            }
            TaskPayload::InputRequired { mut input_requests } => {
                // A question stays in the list until the server has processed its answer.
                input_requests.retain(|key, _| !answered.contains(key));
                if !input_requests.is_empty() {
                    rounds += 1;
                    if rounds > MOST_ROUNDS {
                        return Err(server.refused("it asked questions more than ten times"));
                    }
                    answered.extend(input_requests.keys().cloned());
                    let answers = question::answers(&server.settings().name, input_requests, context).await;
                    let answers = answers.map_err(|reason| server.refused(&reason))?;
                    let params = UpdateTaskParams::new(task.task_id.clone(), answers);
                    let updated = within(idle, connection.peer().update_task(params), context).await;
                    if let Err(error) = updated.ok_or_else(timed_out)? {
                        return Err(server.failed(connection, error).await);
                    }
                }
            }
            _ => {}
        }
        // Keep the original id, in case the server sends another one. The task is cancelled by its id.
        let id = task.task_id;
        task = state.task;
        task.task_id = id;
    }
}

/// A guard that sends `tasks/cancel` if the call is dropped or fails before the task has ended.
struct CancelOnDrop {
    connection: Arc<Connection>,
    id: Option<String>,
}

impl CancelOnDrop {
    fn disarm(mut self) {
        self.id = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let connection = Arc::clone(&self.connection);
        let cancelling = async move {
            let cancelled = connection.peer().cancel_task(CancelTaskParams::new(id));
            let _ = timeout(CANCEL_LIMIT, cancelled).await;
        };
        self.connection.runtime().spawn(cancelling.in_current_span());
    }
}

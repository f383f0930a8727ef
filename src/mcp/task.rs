//! Tasks: calls whose result the client fetches later.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rmcp::model::{CallToolResult, GetTaskParams, Task, TaskPayload, UpdateTaskParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    McpError,
    call::{CancelOnDrop, Cancelled},
    connection::{Connection, LONGEST},
    content::output,
    question::{self, MOST_ROUNDS, TOO_MANY_ROUNDS},
    server::ServerConnection,
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
    server: &ServerConnection,
    connection: &Arc<Connection>,
    mut task: Task,
    context: &ToolContext,
) -> Result<ToolOutput, McpError> {
    let (settings, peer) = (&server.settings, connection.peer());
    let guard = CancelOnDrop::new(connection, Cancelled::Task(task.task_id.clone()));
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
                let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                break result
                    .map(output)
                    .map_err(|_| "its task's result is not the result of a tool".to_owned());
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
                let answers = question::answers(settings, input_requests, context).await?;
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

//! The list of messages that a page loads.

use serde_json::{Value, json};

use super::{
    Settings,
    exchange::{Exchange, exchanges, has_own_content, ui_id},
    fold::Fold,
    translator::replay_messages,
    writer::{Writer, user_parts},
};
use crate::{
    agent::Status,
    message::Usage,
    session::SessionSnapshot,
    tree::{Node, NodeId},
};

/// Returns the messages of the path and of the turn in flight, and the newest unanswered prompt. The answer of a run that
/// is active is left out, because the resumed stream sends it from its start.
pub(in crate::web) fn messages(settings: &Settings, snapshot: &SessionSnapshot) -> Vec<Value> {
    let all = exchanges(snapshot);
    let mut messages = Vec::with_capacity(2 * all.len());
    for (index, exchange) in all.iter().enumerate() {
        let is_last = index + 1 == all.len();
        if let Some(prompt) = &exchange.prompt {
            let parts = user_parts(prompt.message, settings);
            messages.push(json!({ "id": exchange.id, "role": "user", "parts": parts }));
        }
        let is_active = is_last && snapshot.agent.status == Status::Busy;
        if !exchange.rest.is_empty() && !is_active {
            messages.push(answer(settings, snapshot, exchange, is_last));
        }
    }
    if let Some((node, failure)) = snapshot.unanswered()
        && has_own_content(node.message())
    {
        let (id, parts) = (ui_id(node.message(), Some(node.id())), user_parts(node.message(), settings));
        let mut metadata = json!({ "nodes": [node.id()] });
        if let Some(failure) = failure {
            metadata["error"] = failure.to_string().into();
        }
        messages.push(json!({ "id": id, "role": "user", "metadata": metadata, "parts": parts }));
    }
    messages
}

fn answer(settings: &Settings, snapshot: &SessionSnapshot, exchange: &Exchange<'_>, is_last: bool) -> Value {
    let tools = snapshot.agent.state.tools.iter().map(|tool| tool.name.clone());
    let mut writer = Writer::new(settings.clone(), tools);
    replay_messages(&mut writer, exchange.rest.iter().map(|entry| &**entry.message));
    if is_last && snapshot.agent.status == Status::Paused {
        let agent = &snapshot.agent;
        if let Some(answer) = &agent.answer {
            writer.step_start(agent.step, Some(answer.clone()));
            agent.partial.iter().enumerate().for_each(|(index, block)| writer.partial(index, block));
        }
        writer.pauses(&agent.pauses);
        writer.step_end();
    } else {
        writer.seal();
    }
    let mut fold = Fold::default();
    writer.take().iter().for_each(|frame| fold.add(frame));

    let nodes = || exchange.rest.iter().filter_map(|entry| entry.node);
    let usage = nodes().filter_map(Node::usage).fold(Usage::default(), |sum, usage| sum + *usage);
    let ids: Vec<NodeId> = nodes().map(Node::id).collect();
    let mut metadata = json!({ "usage": usage, "nodes": ids });
    if let Some(reason) = exchange.rest.last().and_then(|entry| entry.message.ended.as_ref()) {
        metadata["stopReason"] = reason.to_string().into();
    }
    json!({ "id": exchange.answer_id(), "role": "assistant", "metadata": metadata, "parts": fold.parts })
}

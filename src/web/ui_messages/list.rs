//! The list of messages that a page loads.

use std::iter;

use serde_json::{Value, json};

use super::{
    AiSdkTranslationSettings, AiSdkVersion,
    exchange::{PromptExchange, answer_id, base_id, exchanges, has_own_content, ui_id},
    fold::AiSdkFrameFold,
    stream::{AiSdkRunToStream, AiSdkStream, sums},
    writer::{AiSdkFrameWriter, user_parts},
};
use crate::{agent::Status, message::Message, session::SessionSnapshot};

/// Returns the messages of the path and of the turn in flight, the newest unanswered prompt, and the staged prompts if
/// `with_staged` is set. The answer of a run that is active is omitted, because the resumed stream sends it from its start.
/// But if prompts follow it, the list contains it so far: a client of level 7 replaces it by the resumed one, which it would
/// otherwise append.
pub(in crate::web) fn messages(
    settings: &AiSdkTranslationSettings,
    snapshot: &SessionSnapshot,
    with_staged: bool,
) -> Vec<Value> {
    let staged = if with_staged { &snapshot.agent.staged[..] } else { &[] };
    let all = exchanges(snapshot);
    let mut messages = Vec::with_capacity(2 * all.len());
    for (index, exchange) in all.iter().enumerate() {
        let is_last = index + 1 == all.len();
        if let Some(prompt) = &exchange.prompt {
            let parts = user_parts(prompt.message, settings);
            messages.push(json!({ "id": exchange.id, "role": "user", "parts": parts }));
        }
        let is_active = is_last && snapshot.agent.status == Status::Busy && snapshot.agent.is_answering();
        let keeps_place = !staged.is_empty() && settings.level == AiSdkVersion::Seven;
        let is_shown = if is_active { keeps_place } else { !exchange.rest.is_empty() };
        if is_shown {
            let answer = answer(settings, snapshot, exchange, is_last);
            // The resumed stream begins an answer that has no part yet.
            messages.extend(Some(answer).filter(|answer| !is_active || answer["parts"] != json!([])));
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
    for prompt in staged {
        let id = prompt.id.as_ref().map(|id| base_id(id.as_str()));
        let parts = user_parts(&Message::user(prompt.content.clone()), settings);
        messages.push(json!({ "id": id, "role": "user", "metadata": { "staged": true }, "parts": parts }));
    }
    messages
}

fn answer(
    settings: &AiSdkTranslationSettings,
    snapshot: &SessionSnapshot,
    exchange: &PromptExchange<'_>,
    is_last: bool,
) -> Value {
    let mut fold = AiSdkFrameFold::default();
    if is_last && snapshot.agent.status != Status::Idle && snapshot.agent.is_answering() {
        let mut stream = AiSdkStream::begin(settings.clone(), snapshot, AiSdkRunToStream::InFlight);
        if stream.is_paused() {
            stream.pause();
        }
        iter::from_fn(|| stream.next_frame()).for_each(|frame| fold.add(&frame));
    } else {
        let mut writer = AiSdkFrameWriter::new(settings.clone(), snapshot);
        writer.replay(exchange.rest.iter().map(|entry| entry.message));
        writer.seal();
        writer.frames.iter().for_each(|frame| fold.add(frame));
    }
    let (nodes, usage) = sums(exchange.rest.iter().filter_map(|entry| entry.node));
    let mut metadata = json!({ "usage": usage, "nodes": nodes });
    let last = exchange.rest.iter().rfind(|entry| entry.message.compaction.is_none());
    if let Some(reason) = last.and_then(|entry| entry.message.ended.as_ref()) {
        metadata["stopReason"] = reason.to_string().into();
    }
    let id = exchange.answer_id().or(snapshot.agent.turn.map(answer_id));
    json!({ "id": id, "role": "assistant", "metadata": metadata, "parts": fold.parts })
}

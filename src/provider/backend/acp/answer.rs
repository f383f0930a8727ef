//! Reads the parts of an agent's messages that the protocol's types lack or reject. Performs no I/O.

use serde_json::Value;

use crate::{message::Usage, provider::StopReason};

/// Returns the text that an update appends to the response, or `None` if the update appends no text.
pub(super) fn text(update: &Value) -> Option<&str> {
    let is_answer = update.get("sessionUpdate")? == "agent_message_chunk";
    update.get("content")?.get("text")?.as_str().filter(|_| is_answer)
}

/// Returns the reason why the turn ended, or `None` if the response to the prompt is not valid.
pub(super) fn stop_reason(answer: &Value) -> Option<StopReason> {
    Some(match answer.get("stopReason")?.as_str()? {
        "end_turn" => StopReason::Stop,
        "max_tokens" => StopReason::Length,
        "max_turn_requests" => StopReason::MaxSteps,
        "refusal" => StopReason::Refusal,
        "cancelled" => StopReason::Cancelled,
        other => StopReason::Other(other.to_owned()),
    })
}

/// Returns the usage of the turn, which some agents report although the protocol does not define it yet.
pub(super) fn usage(answer: &Value) -> Option<Usage> {
    let usage = answer.get("usage")?.as_object()?;
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let (input, output) = (count("inputTokens")?, count("outputTokens")?);
    Some(Usage {
        input,
        output,
        reasoning: count("thoughtTokens").unwrap_or(0).min(output),
        cache_read: count("cachedReadTokens").unwrap_or(0),
        cache_write: count("cachedWriteTokens").unwrap_or(0),
        cost: None,
    })
}

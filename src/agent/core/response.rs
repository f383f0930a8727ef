//! The response that covers a turn or a step, and its output.

use std::sync::Arc;

use serde_json::Value;

use super::CoreInputContext;
use crate::{
    agent::{
        Config, Response,
        phase::{ProposedTurnEnd, Turn},
    },
    message::{Message, Role},
    provider::{Fold, StopReason, read_output},
};

/// The value that was read from a response with the output schema, or the problem with the response.
pub(super) type StructuredOutputResult = Result<Value, String>;

/// Returns a response that covers the turn so far.
pub(super) fn respond(turn: &Turn, stop_reason: StopReason, config: &Config) -> Response {
    respond_with(turn, turn.working.pending().cloned().collect(), stop_reason, config)
}

/// Returns a response with the given messages of the turn.
pub(super) fn respond_with(
    turn: &Turn,
    messages: Vec<Arc<Message>>,
    stop_reason: StopReason,
    config: &Config,
) -> Response {
    let answer = messages.iter().rev().find(|message| message.role == Role::Assistant);
    Response {
        model: turn.model.clone().unwrap_or_else(|| {
            turn.requested.as_ref().unwrap_or_else(|| turn.model_in(config).id()).to_string()
        }),
        message: answer.cloned(),
        messages,
        stop_reason,
        usage: turn.usage,
        delegated: turn.delegated(),
        step: turn.step,
        turn: Some(turn.id),
        run: turn.run,
        output: None,
        output_error: None,
        open_tool_uses: Vec::new(),
        decided: Vec::new(),
        warnings: turn.warnings.clone(),
    }
}

/// Returns the response of a turn that ends in this way.
pub(super) fn conclusion(turn: &Turn, end: &ProposedTurnEnd, config: &Config) -> Response {
    let ProposedTurnEnd { stop_reason, output, open, decided } = end.clone();
    let mut response = respond(turn, stop_reason, config);
    response.set_output(output);
    (response.open_tool_uses, response.decided) = (open, decided);
    response
}

/// Reads the output of a response, if an output schema was set and the model needs no more tools.
pub(super) fn parse_output(response: &mut Response, turn: &Turn) {
    let read = response.message.as_ref().and_then(|message| read_answer(message, turn));
    response.set_output(read);
}

/// Reads the output from a message, if its request has an output schema and the message uses no tools.
pub(super) fn read_answer(answer: &Message, turn: &Turn) -> Option<StructuredOutputResult> {
    let schema = turn.wanted.output.as_ref()?;
    let done = answer.tool_uses().next().is_none();
    done.then(|| read_output(answer, schema, turn.output_enforced))
}

/// Returns the response that contains everything that is discarded: the turn and the partial response.
pub(super) fn discarded(
    turn: &Turn,
    partial: Option<Box<Fold>>,
    reason: StopReason,
    cx: &CoreInputContext<'_>,
) -> Response {
    let mut response = respond(turn, reason, cx.config);
    if let Some(fold) = partial {
        response.usage += fold.usage();
        if !fold.blocks().is_empty() {
            let partial = Arc::new(Message { id: turn.answer.clone(), ..fold.cut(cx.now()) });
            response.messages.push(Arc::clone(&partial));
            response.message = Some(partial);
        }
    }
    response
}

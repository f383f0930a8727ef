//! The usage of requests that end without a `Step` event.

use super::CoreInputContext;
use crate::{
    agent::{Event, phase::Turn},
    message::{RequestEnd, Usage, UsageRow},
    provider::Fold,
};

/// Emits the usage of the last request, which ended without a `Step`, unless the usage is zero. `model` is the model
/// that the service has reported, if any.
pub(super) fn emit_usage(
    turn: &Turn,
    usage: Usage,
    model: Option<String>,
    end: RequestEnd,
    cx: &mut CoreInputContext<'_>,
) {
    if usage.is_zero() {
        return;
    }
    let model = model.or_else(|| turn.requested.as_deref().map(str::to_owned));
    let row = UsageRow::new(end, usage)
        .with_turn(turn.id)
        .with_step(turn.step)
        .with_message(turn.answer.clone())
        .with_at(cx.now())
        .with_model(model);
    cx.emit(Event::Usage(Box::new(row)));
}

/// Like [`emit_usage`], for a response that is not complete.
pub(super) fn emit_partial_usage(
    turn: &Turn,
    partial: &Fold,
    end: RequestEnd,
    cx: &mut CoreInputContext<'_>,
) {
    emit_usage(turn, partial.usage(), partial.message().model.clone(), end, cx);
}

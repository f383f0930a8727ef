//! Processes a step from its request to its complete response.
//!
//! A response that does not fit the output schema never joins the turn. It goes into the next request together with its
//! errors, and each attempt is a step. At the limit of requests, the last one is kept and the response names its
//! errors, so that a turn is not lost because of its form. `handle_error` is not called, because no failure has
//! occurred that it could handle.

use std::{sync::Arc, time::Duration};

use super::{
    AgentCore, AgentEffect, CallbackCall, CoreInputContext, add_message, announce,
    compacting::spend,
    response::{StructuredOutputResult, read_answer, respond_with},
    spending::{emit_partial_usage, emit_usage},
    user_message,
};
use crate::{
    agent::{
        Event, Failure, Response,
        phase::{
            AgentPhase, AgentTurnStage, CompactionAttemptState, OpNumber, StreamQuestion, Turn,
            UnfinishedStep, in_stage,
        },
    },
    message::{Content, Message, RequestEnd, ToolResult, ToolUse, Usage},
    provider::{
        BlockStart, Completion, Delta, Fold, Part, PartialBlock, ProviderError, ProviderErrorKind, StopReason,
    },
};

impl AgentCore {
    /// Processes a delta of the response.
    pub(in crate::agent) fn delta(&mut self, op: OpNumber, delta: Delta, cx: &mut CoreInputContext<'_>) {
        let Some((turn, AgentTurnStage::Streaming { fold, question })) = self.phase.awaited(op) else {
            return self.summary_delta(op, &delta, cx);
        };
        let delta = match delta {
            Delta::Retry { error, delay } => {
                let failure = (*error).into();
                if turn.avoids_wait(&failure, cx.config) {
                    return self.stream_failed(op, failure, cx);
                }
                let pending = turn.working.pending_len();
                // The retry policy repeats only requests without content. If there is content, the service itself has
                // started its answer again, and the usage is still that of one request.
                if fold.blocks().is_empty() {
                    emit_partial_usage(turn, fold, RequestEnd::Void, cx);
                    turn.usage += fold.take_usage();
                }
                fold.restart();
                cx.emit(Event::Retry {
                    failure,
                    delay,
                    pending,
                    complete: false,
                    step: turn.step,
                    model: None,
                });
                return announce(turn, cx);
            }
            Delta::Start { block: BlockStart::ToolUse { .. }, .. } => {
                self.waited.freshen(delta, op, fold, question.as_deref())
            }
            other => other,
        };
        match fold.apply(&delta) {
            Ok(()) => {
                if let Delta::End { index } = delta {
                    decode_input(fold, index, cx);
                }
                cx.effects.extend(event_of(delta, fold).map(AgentEffect::Emit));
            }
            Err(error) => self.stream_failed(op, error.into(), cx),
        }
    }

    /// Processes the provider's question, which asks for a decision about a tool that the service runs. One question is
    /// processed at a time.
    pub(in crate::agent) fn asked(
        &mut self,
        op: OpNumber,
        mut tool_use: ToolUse,
        cx: &mut CoreInputContext<'_>,
    ) {
        if let Some((_, AgentTurnStage::Streaming { fold, question })) = self.phase.awaited(op)
            && question.is_none()
        {
            self.last_op += 1;
            let op = self.last_op;
            tool_use.id = self.waited.of_question(tool_use.id, op, fold);
            *question = Some(Box::new(StreamQuestion { op, tool_use: tool_use.clone(), paused: None }));
            cx.push(AgentEffect::Call(op, CallbackCall::HandleToolUse(Box::new(tool_use))));
        }
    }

    /// Returns whether a question of the provider can be processed now.
    pub(in crate::agent) fn can_be_asked(&self) -> bool {
        matches!(self.phase.stage(), Some(AgentTurnStage::Streaming { question: None, .. }))
    }

    /// Drops the provider's question, because the provider no longer waits for the answer.
    pub(in crate::agent) fn question_withdrawn(&mut self, cx: &mut CoreInputContext<'_>) {
        if let AgentPhase::InTurn { stage: AgentTurnStage::Streaming { question, .. }, .. } = &mut self.phase
            && question.take().is_some()
        {
            cx.push(AgentEffect::DropCall);
            self.emit_pauses(cx);
        }
    }

    /// Processes the end of a stream that did not fail.
    pub(in crate::agent) fn stream_ended(&mut self, op: OpNumber, cx: &mut CoreInputContext<'_>) {
        let streaming = in_stage!(AgentTurnStage::Streaming { fold, question } => (fold, question));
        let Some((mut turn, (mut fold, question))) = self.phase.take_awaited(op, streaming) else {
            return self.summary_ended(op, cx);
        };
        if question.is_some() {
            cx.push(AgentEffect::DropCall);
            self.emit_pauses(cx);
        }
        if fold.message().stop_reason.is_none() {
            return self.recover(turn, truncated().into(), UnfinishedStep::of(fold), cx);
        }
        let open: Vec<usize> =
            (0..fold.blocks().len()).filter(|index| !fold.blocks()[*index].ended).collect();
        for index in &open {
            decode_input(&mut fold, *index, cx);
        }
        let folded = match fold.finish(cx.now()) {
            Ok(folded) => folded,
            Err(error) => return self.recover(turn, error.into(), UnfinishedStep::default(), cx),
        };
        let Completion { mut message, mut stop_reason, usage, model, warnings, output_enforced, .. } = folded;
        turn.usage += usage;
        turn.model = model;
        turn.output_enforced = output_enforced;
        (turn.refused, turn.refused_by) = (false, None);
        if stop_reason == StopReason::Refusal
            && let Some(model) = turn.take_backup(&Failure::Refused, cx.config)
        {
            cx.record_soon(turn.recorded);
            emit_usage(&turn, usage, turn.model.clone(), RequestEnd::Void, cx);
            return self.repeat(turn, Failure::Refused, None, Duration::ZERO, Some(model), cx);
        }
        if stop_reason == StopReason::ContextLength && message.tool_uses().next().is_none() {
            let text = "the response has reached the end of the model's context window";
            let failure = ProviderError::new(ProviderErrorKind::ContextTooLong, text).into();
            let void = |turn: &mut Turn, cx: &mut CoreInputContext<'_>| {
                emit_usage(turn, usage, turn.model.clone(), RequestEnd::Void, cx);
            };
            match self.compact_overflow(turn, &failure, void, cx) {
                Some(own) => turn = own,
                None => return,
            }
        }
        // If the limit of requests is reached, no further request continues the response. The step must then not report
        // the stop reason `Pause`, because subscribers expect another request after a step with this reason.
        if stop_reason == StopReason::Pause && turn.is_exhausted() && message.tool_uses().next().is_none() {
            stop_reason = StopReason::MaxSteps;
        }
        // A paused response is not finished, so its output is not checked yet.
        let finished = stop_reason != StopReason::Pause;
        let read = if finished { read_answer(&message, &turn) } else { None };
        if let Some(Err(problem)) = &read
            && !turn.is_exhausted()
            && turn.corrections.allow_another(&stop_reason, turn.wanted.retries)
        {
            return self.ask_again(turn, message, usage, problem, cx);
        }
        // The next requests build on this response, so the earlier responses that did not match the output schema are
        // no longer sent.
        turn.corrections.forget();
        turn.compacted = match turn.compacted {
            CompactionAttemptState::No | CompactionAttemptState::Once => CompactionAttemptState::No,
            CompactionAttemptState::Failed | CompactionAttemptState::NotBySize => {
                CompactionAttemptState::NotBySize
            }
        };
        for index in open {
            cx.effects.extend(
                message.content.get(index).and_then(|block| end_event(index, block)).map(AgentEffect::Emit),
            );
        }
        turn.warnings.extend(warnings.iter().cloned());
        // The last message may be a response that the service paused, so look for the user message.
        let mut messages = turn.prompts_of_step();
        message.id = turn.answer.take();
        message.context_tokens = message.context_tokens.or(usage.context_tokens());
        if message.context_tokens.is_some() {
            turn.counted_by.clone_from(&turn.requested);
        }
        let is_usual = matches!(stop_reason, StopReason::Stop | StopReason::ToolUse | StopReason::Pause);
        message.ended = (!is_usual).then(|| Box::new(stop_reason.clone()));
        add_message(&mut turn, message, cx);
        let answer = turn.working.all().last().cloned();
        let uses: Vec<ToolUse> = answer.iter().flat_map(|message| message.tool_uses().cloned()).collect();
        messages.extend(answer);
        let mut step =
            Response { usage, warnings, ..respond_with(&turn, messages, stop_reason.clone(), cx.config) };
        step.set_output(read.clone());
        cx.emit(Event::Step(Arc::new(step)));
        self.answered(turn, stop_reason, uses, read, cx);
    }

    /// Discards a response that does not match the output schema, and requests it again.
    fn ask_again(
        &mut self,
        mut turn: Box<Turn>,
        answer: Message,
        usage: Usage,
        problem: &str,
        cx: &mut CoreInputContext<'_>,
    ) {
        emit_usage(&turn, usage, turn.model.clone(), RequestEnd::Void, cx);
        turn.corrections.add(answer, problem, cx.now());
        let failure = Failure::Output { message: problem.to_owned() };
        self.repeat(turn, failure, None, Duration::ZERO, None, cx);
    }

    /// Decides how to continue after a complete response.
    fn answered(
        &mut self,
        mut turn: Box<Turn>,
        stop_reason: StopReason,
        uses: Vec<ToolUse>,
        read: Option<StructuredOutputResult>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let exhausted = turn.is_exhausted();
        if uses.is_empty() {
            return match stop_reason {
                // The service paused the response. The next request contains the response so far, and the service
                // continues it.
                StopReason::Pause => {
                    turn.joined.clear();
                    turn.step += 1;
                    self.prepare(turn, cx);
                }
                // The response uses no tools. The turn must not end with the stop reason `ToolUse`, because this reason
                // would mean that tool uses are left to the application.
                StopReason::ToolUse => self.conclude(turn, StopReason::Stop, read, cx),
                reason => self.conclude(turn, reason, read, cx),
            };
        }
        // The text of the results if no tool is run, and the reason with which the turn then ends. Without a reason, the
        // model is asked again.
        let (text, reason) = match stop_reason {
            StopReason::Refusal => (REFUSED.to_owned(), Some(stop_reason)),
            StopReason::ContextLength => (NO_ROOM.to_owned(), Some(stop_reason)),
            StopReason::Length if follows_cut(&turn) => (CUT.to_owned(), Some(stop_reason)),
            StopReason::Length => (CUT.to_owned(), exhausted.then_some(StopReason::MaxSteps)),
            _ if exhausted => {
                let steps = if turn.step == 1 { "step" } else { "steps" };
                let text = format!("Not run: the limit of {} {steps} is reached.", turn.step);
                (text, Some(StopReason::MaxSteps))
            }
            _ => {
                cx.record_soon(turn.recorded);
                return self.decide(turn, uses, cx);
            }
        };
        let results = uses.iter().map(|tool_use| ToolResult::error(tool_use, text.as_str())).collect();
        if let Some(reason) = reason {
            close_tool_uses(&mut turn, results, 0, cx);
            return self.conclude(turn, reason, None, cx);
        }
        cx.record_soon(turn.recorded);
        self.next_step(turn, results, 0, cx);
    }

    /// Called when the request could not be prepared or sent, was refused by a budget, or when its stream failed.
    pub(in crate::agent) fn stream_failed(
        &mut self,
        op: OpNumber,
        failure: Failure,
        cx: &mut CoreInputContext<'_>,
    ) {
        let opening = in_stage!(stage @ (AgentTurnStage::Preparing | AgentTurnStage::Compacting { .. } | AgentTurnStage::Streaming { .. }) => stage);
        let Some((mut turn, stage)) = self.phase.take_awaited(op, opening) else {
            return;
        };
        if let AgentTurnStage::Streaming { question, .. } = &stage {
            cx.push(AgentEffect::Abort);
            if question.is_some() {
                self.emit_pauses(cx);
            }
        }
        if let AgentTurnStage::Compacting { mut fold, plan } = stage {
            cx.push(AgentEffect::Abort);
            let model = fold.message().model.clone();
            spend(&mut turn, fold.take_usage(), model, RequestEnd::Failed, cx);
            return self.compaction_failed(turn, plan, failure, cx);
        }
        let remains = stage.into_remains(&turn);
        if let Failure::Budget { report } = &failure {
            let earlier = turn.refused_by.replace(report.budget);
            // `handle_error` has seen this refusal already. Another call could make it repeat the step for ever.
            if earlier.is_some_and(|earlier| !report.budget.is_raised_from(&earlier)) {
                return self.fail(turn, failure, remains, cx);
            }
        }
        let void = |turn: &mut Turn, cx: &mut CoreInputContext<'_>| {
            if let Some(partial) = &remains.partial {
                turn.usage += partial.usage();
                emit_partial_usage(turn, partial, RequestEnd::Void, cx);
            }
        };
        if let Some(turn) = self.compact_overflow(turn, &failure, void, cx) {
            self.recover(turn, failure, remains, cx);
        }
    }

    /// Repeats a failed step with the next backup model, or calls `handle_error` if there is none.
    pub(super) fn recover(
        &mut self,
        mut turn: Box<Turn>,
        failure: Failure,
        remains: UnfinishedStep,
        cx: &mut CoreInputContext<'_>,
    ) {
        turn.refused = !remains.has_begun() && (turn.refused || failure.is_refusal());
        cx.record_soon(turn.recorded);
        if let Some(model) = turn.take_backup(&failure, cx.config) {
            return self.repeat(turn, failure, remains.partial, Duration::ZERO, Some(model), cx);
        }
        let op = self
            .enter(turn, AgentTurnStage::Failing { failure: failure.clone(), remains: Box::new(remains) });
        cx.push(AgentEffect::Call(op, CallbackCall::HandleError(Box::new(failure))));
    }
}

/// The result of each tool use of a response that the output limit has cut. Even the input of a tool use that looks whole
/// may be part of a larger plan.
pub(super) const CUT: &str = "Not run: the output limit cut the response with this tool use. Use the tool again with a shorter \
                   input, or divide the work between several responses.";

const REFUSED: &str = "Not run: the response with this tool use was refused.";

const NO_ROOM: &str =
    "Not run: the response with this tool use was cut, because the model's context window is full.";

/// Returns whether the last response follows the results of a response that was cut. The results are pending messages, so
/// this is still known after a restart.
fn follows_cut(turn: &Turn) -> bool {
    let is_cut = |result: &ToolResult| result.is_error && result.text() == CUT;
    turn.prompts_of_step().iter().any(|message| message.tool_results().any(is_cut))
}

/// Adds `results` as the results of the last message's tool uses. The first `emitted` results were already emitted.
pub(super) fn close_tool_uses(
    turn: &mut Turn,
    results: Vec<ToolResult>,
    emitted: usize,
    cx: &mut CoreInputContext<'_>,
) {
    for result in &results[emitted..] {
        cx.emit(Event::ToolResult { result: Box::new(result.clone()), input: None });
    }
    let content = results.into_iter().map(Content::from).collect();
    let message = user_message(turn.message_id(), content, cx);
    add_message(turn, message, cx);
    turn.uncertain = Vec::new();
}

/// Decodes the input of a tool use if the model has sent JSON within a string. This happens before anybody sees the input,
/// so that callbacks and persons decide about the input with which the tool runs, and the message contains this input.
fn decode_input(fold: &mut Fold, index: usize, cx: &CoreInputContext<'_>) {
    if let Some(block @ PartialBlock { content: Content::ToolUse(_), .. }) = fold.blocks().get(index)
        && let Content::ToolUse(tool_use) = finished(block)
        && let Some(input) = cx.tools.decoded_input(&tool_use)
    {
        fold.set_input(index, input);
    }
}

/// Returns the event for a delta that `fold` has already processed.
fn event_of(delta: Delta, fold: &Fold) -> Option<Event> {
    Some(match delta {
        Delta::Start { index, block } => match block {
            BlockStart::Text => Event::TextStart { index },
            BlockStart::Thinking => Event::ThinkingStart { index },
            // Take the id from the fold, which may have replaced the id in the delta.
            BlockStart::ToolUse { name, .. } => match &fold.blocks().get(index)?.content {
                Content::ToolUse(tool_use) => Event::ToolUseStart { index, id: tool_use.id.clone(), name },
                _ => return None,
            },
            BlockStart::Attachment(content) => Event::Attachment { index, content: Box::new(content) },
            BlockStart::ProviderItem(content) => Event::ProviderItem { index, content: Box::new(content) },
        },
        Delta::Extend { index, part } => match (part, &fold.blocks().get(index)?.content) {
            (Part::Text(delta), Content::Text(_)) => Event::TextDelta { index, delta },
            (Part::Text(delta), _) => Event::ThinkingDelta { index, delta },
            (Part::Input(delta), _) => Event::ToolUseDelta { index, delta },
            (Part::Item(_), Content::ProviderItem(item)) => {
                Event::ProviderItem { index, content: Box::new(item.clone()) }
            }
            // A signature causes no event, because it is part of the block's end event.
            _ => return None,
        },
        Delta::End { index } => return end_event(index, &finished(fold.blocks().get(index)?)),
        Delta::Message(_) | Delta::Retry { .. } => return None,
    })
}

/// Returns a block of the streamed response for a snapshot, in the state that the events so far describe.
pub(super) fn seen(block: &PartialBlock) -> PartialBlock {
    let mut seen = block.clone();
    match &mut seen.content {
        // Blocks of these kinds arrive as a whole and have no end event, so they count as ended.
        Content::Attachment(_) | Content::ProviderItem(_) => seen.ended = true,
        _ if block.ended => seen.content = finished(block),
        // The block has not ended. Remove its signature, which is part of the block's end event.
        Content::Text(text) => text.signature = None,
        Content::Thinking(thinking) => (thinking.signature, thinking.redacted) = (None, None),
        Content::ToolUse(tool_use) => tool_use.signature = None,
        Content::ToolResult(_) => {}
    }
    seen
}

/// Returns the block as it will be in the message.
fn finished(block: &PartialBlock) -> Content {
    block.clone().finished()
}

/// Returns the event that reports the end of a block. Some kinds of blocks have no such event.
pub(super) fn end_event(index: usize, block: &Content) -> Option<Event> {
    Some(match block.clone() {
        Content::Text(content) => Event::TextEnd { index, content },
        Content::Thinking(content) => Event::ThinkingEnd { index, content },
        Content::ToolUse(content) => Event::ToolUseEnd { index, content: Box::new(content) },
        _ => return None,
    })
}

pub(super) fn truncated() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Truncated, "the stream ended without a stop reason")
}

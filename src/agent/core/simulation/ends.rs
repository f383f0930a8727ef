//! How turns and runs end in the simulator's reference model.

use std::sync::Arc;

use super::{
    Check, ensure,
    model::{Input, Model, Turn, TurnStage},
};
use crate::{
    agent::{Failure, Response, RunOutcome, Status},
    message::{Content, Message, RequestEnd, Role, Usage, cleared},
    provider::StopReason,
};

impl Model {
    pub(super) fn turn_ends(&mut self, response: &Response, continues: bool) -> Check {
        let turn = self.commits(response, RequestEnd::Interrupted)?;
        if let Some(is_requested) = turn.own {
            return self.compaction_ends(&turn, is_requested, response, continues);
        }
        if self.is_cut_short() {
            // A turn whose later request a budget has refused is complete.
            let by_budget =
                matches!((self.input, &self.failure), (Input::GivesUp, Some(Failure::Budget { .. })));
            let expected = if by_budget { StopReason::Budget } else { StopReason::Interrupted };
            ensure!(self.input == Input::Interrupt || by_budget, "a failed run ends without an error");
            ensure!(!continues && response.stop_reason == expected, "{:?}", response.stop_reason);
        } else {
            self.check_reason(&turn, response)?;
        }
        if !continues {
            ensure!(
                self.is_cut_short() || self.queue.staged.is_empty(),
                "the run ends before a staged prompt"
            );
            ensure!(self.continuation.is_none(), "the run ends before its continuation");
            return self.run_ends();
        }
        let outcome = RunOutcome::stopped(&response.stop_reason);
        self.owes_compaction = self.queue.staged.is_empty() && self.continuation.is_none();
        ensure!(
            !self.owes_compaction || (self.can_compact && response.open_tool_uses.is_empty()),
            "a run continues without a prompt or a continuation"
        );
        self.queue.check_ended(&outcome, !self.queue.staged.is_empty() || self.owes_compaction)?;
        self.stopped = Some(outcome);
        ensure!(self.status == Status::Busy, "the run continues, but the status is {:?}", self.status);
        Ok(())
    }

    /// Checks the end of a turn that consists of a compaction alone.
    fn compaction_ends(
        &mut self,
        turn: &Turn,
        is_requested: bool,
        response: &Response,
        continues: bool,
    ) -> Check {
        let outcome = RunOutcome::stopped(&response.stop_reason);
        ensure!(self.stopped.as_ref() == Some(&outcome), "a compaction ends as {outcome:?}");
        ensure!(turn.pending.len() <= 1, "a compaction of {} messages", turn.pending.len());
        if continues {
            ensure!(!turn.compacting && !self.queue.staged.is_empty(), "a run continues after a compaction");
            self.after_request = is_requested;
            return self.queue.check_ended(&outcome, true);
        }
        ensure!(turn.compacting || self.queue.staged.is_empty(), "the run ends before a staged prompt");
        self.run_ends()
    }

    /// Checks the messages and the usage of a turn that is committed. If its last request has no complete response, the
    /// request has this end.
    fn commits(&mut self, response: &Response, end: RequestEnd) -> Check<Turn> {
        let mut turn = self.turn.take().ok_or("a turn ends, but none is active")?;
        let answer = self.ids.answer.take();
        ensure!(answer.is_none() || self.is_cut_short(), "a turn ends before its answer {answer:?}");
        turn.keep_decided(response);
        let is_unanswered = turn.pending.len() == turn.base;
        if self.is_cut_short() && !turn.joined.is_empty() && is_unanswered {
            while turn.pending.last().is_some_and(|last| last.compaction.is_some()) {
                turn.pending.pop();
            }
            // The prompts that joined the turn got no answer, so they are staged again.
            turn.pending.truncate(turn.pending.len() - turn.joined.len());
            self.queue.staged.splice(0..0, turn.joined.drain(..));
        }
        ensure!(
            turn.own.is_some() || self.is_cut_short() || !turn.compacting,
            "a turn ends before its compaction"
        );
        if self.is_cut_short() {
            turn.clear_refused();
            ensure!(turn.uses() == 0, "a turn that is cut short leaves tool uses open");
        }
        turn.keep_end(response);
        ensure!(response.messages == turn.pending, "a turn's event contains other messages than its own");
        ensure!(response.usage == turn.usage(), "a turn used {:?}, not {:?}", response.usage, turn.usage());
        ensure!(response.step == self.step, "a turn of step {} ends in {}", response.step, self.step);
        turn.check_booked(end)?;
        turn.check_rows(response)?;
        self.told_usage += response.usage;
        self.spent_usage += turn.usage();
        self.committed.extend(turn.pending.iter().cloned());
        self.before = None;
        self.committed.check().map_err(|error| format!("committed: {error}"))?;
        let mut own = self.committed.iter().rev().filter(|message| message.compaction.is_none());
        let last = own.next();
        let is_answered =
            |last: &Arc<Message>| last.role == Role::Assistant || last.tool_results().next().is_some();
        ensure!(last.is_none_or(is_answered), "the committed history ends with the prompt {last:?}");
        Ok(turn)
    }

    /// Checks the end of a run that fails. Its turn is committed if `handle_error` has not discarded it, no callback
    /// has failed, and more than the prompt can be kept.
    pub(super) fn failed(&mut self, response: &Response, committed: bool) -> Check {
        let keeps = self.input == Input::GivesUp && !self.nothing_to_keep();
        ensure!(committed == keeps, "whether the turn is committed is {committed}, not {keeps}");
        ensure!(response.stop_reason == StopReason::Failed, "a failed run ends as {}", response.stop_reason);
        if !committed {
            return self.discarded(response);
        }
        self.commits(response, RequestEnd::Failed)?;
        ensure!(response.output.is_none() && response.output_error.is_none(), "a failed run has an output");
        ensure!(self.continuation.is_none(), "a failed run has a continuation");
        self.run_ends()
    }

    fn check_reason(&self, turn: &Turn, response: &Response) -> Check {
        let reason = &response.stop_reason;
        let step = turn.reason.as_ref().ok_or("a turn ends without a step")?;
        let own = match (turn.place, step) {
            // The turn left tool uses open. `Desk` checks which ones.
            (TurnStage::Deciding, _) => StopReason::ToolUse,
            (TurnStage::Closed, step) if turn.ends_unrun() => step.clone(),
            (TurnStage::Closed, _) | (TurnStage::Complete, StopReason::Pause) => StopReason::MaxSteps,
            // All tools have run, so the turn does not end with the service's stop reason `ToolUse`.
            (TurnStage::Complete, StopReason::ToolUse) => StopReason::Stop,
            (TurnStage::Complete, other) => other.clone(),
            (TurnStage::Asking | TurnStage::Answered, _) => {
                return Err(format!("a turn ends at {:?}", turn.place));
            }
        };
        let limited = self.input == Input::Ignored && self.queue.staged.is_empty();
        let expected = if limited { StopReason::MaxSteps } else { own };
        // A callback may have raised the limit of requests after the turn had reached it, so it also counts if the
        // limit was reached earlier.
        let met = self.met || self.limit == Some(self.step);
        let fits = *reason == expected && (expected != StopReason::MaxSteps || met);
        ensure!(fits, "a turn at {:?} ends as {reason} after a step that ended as {step}", turn.place);
        Ok(())
    }

    pub(super) fn discarded(&mut self, response: &Response) -> Check {
        ensure!(
            !self.is_cut_short() || self.nothing_to_keep(),
            "an interrupt or a failure discards messages that it could keep"
        );
        let mut turn = self.turn.take();
        if let Some(turn) = &mut turn {
            let is_cancelled = response.stop_reason == StopReason::Cancelled;
            turn.check_booked(if is_cancelled { RequestEnd::Cancelled } else { RequestEnd::Failed })?;
            turn.check_rows(response)?;
        }
        let usage = turn.as_ref().map(Turn::usage).unwrap_or_default();
        ensure!(response.usage == usage, "discarded with {:?}, not {usage:?}", response.usage);
        let pending = turn.as_ref().map(|turn| turn.pending.as_slice()).unwrap_or_default();
        let (own, partial) = response
            .messages
            .split_at_checked(pending.len())
            .ok_or("the event contains fewer messages than were discarded")?;
        ensure!(own == pending, "the event contains other messages than were discarded");
        let blocks = turn.as_ref().map_or(0, |turn| turn.blocks.len());
        let content: Vec<_> = partial.iter().map(|message| message.content.len()).collect();
        let expected = if blocks > 0 { vec![blocks] } else { vec![] };
        let answer = self.ids.answer.take();
        ensure!(partial.iter().all(|message| message.id == answer), "{partial:?} is not {answer:?}");
        ensure!(content == expected, "{blocks} blocks were discarded, but the event contains {content:?}");
        self.told_usage += response.usage;
        self.spent_usage += usage;
        self.continuation = None;
        self.owed = self.before.take();
        self.run_ends()
    }

    fn nothing_to_keep(&self) -> bool {
        self.turn.as_ref().is_none_or(|turn| {
            turn.pending.iter().filter(|message| message.compaction.is_none()).count() == 1
                && !turn.blocks.iter().any(super::blocks::Block::is_kept)
        })
    }

    fn run_ends(&mut self) -> Check {
        ensure!(self.status == Status::Idle, "the run ends, but the status is {:?}", self.status);
        self.queue.check_returned()?;
        self.run = false;
        Ok(())
    }
}

impl Turn {
    /// Clears the results of the last step if a service has refused the request with them.
    fn clear_refused(&mut self) {
        let is_unanswered = self.place == TurnStage::Asking && self.blocks.is_empty();
        let is_refused = self.refused;
        if let Some(last) = self.last()
            && is_refused
            && is_unanswered
            && last.role == Role::User
        {
            *last = Arc::new(cleared(last, crate::message::ClearingReason::Refusal));
        }
    }

    /// Returns the last message that is not a compaction.
    fn last(&mut self) -> Option<&mut Arc<Message>> {
        self.pending.iter_mut().rfind(|message| message.compaction.is_none())
    }

    /// States in the last message why the turn ended.
    fn keep_end(&mut self, response: &Response) {
        let reason = &response.stop_reason;
        if let Some(last) = self.last()
            && !matches!(reason, StopReason::Stop | StopReason::ToolUse)
        {
            Arc::make_mut(last).ended = Some(Box::new(reason.clone()));
        }
    }

    /// Stores the decided results in the last message of a turn whose remaining tool uses are left to the application.
    fn keep_decided(&mut self, response: &Response) {
        let Some(answer) = self.pending.last_mut().filter(|_| !response.decided.is_empty()) else {
            return;
        };
        for block in &mut Arc::make_mut(answer).content {
            let Content::ToolUse(tool_use) = block else { continue };
            let decided = response.decided.iter().find(|result| result.tool_use_id == tool_use.id);
            tool_use.decided = decided.map(|result| Box::new(result.clone()));
        }
    }
}

/// Returns a usage that is different for each number.
pub(super) fn some_usage(number: usize) -> Usage {
    let number = number as u64;
    Usage {
        input: number,
        cache_read: number % 3,
        cache_write: number % 2,
        output: number * 2,
        reasoning: number % 5,
        // Multiples of 0.25 can be added without rounding errors.
        cost: (!number.is_multiple_of(4)).then_some(0.25),
    }
}

//! Requests and summaries: the rows of their usage, and the compactions that summaries become.

use std::sync::Arc;

use super::{Model, Turn};
use crate::{
    agent::{
        Failure, Response, RunOutcome,
        core::simulation::{Check, ensure},
    },
    message::{CompactionTrigger, Message, Purpose, RequestEnd, Role, TurnId, Usage, UsageRow},
    provider::StopReason,
};

impl Turn {
    pub(in crate::agent::core::simulation) fn usage(&self) -> Usage {
        self.before + self.current
    }

    /// Adds the usage of the current request to the usage of the earlier requests, because another request follows.
    pub(super) fn next_request(&mut self) {
        self.before = self.usage();
        (self.current, self.booked) = (Usage::default(), None);
    }

    /// Checks that the usage of the current request was reported, either as the usage of a complete response or with
    /// the end `end`.
    pub(in crate::agent::core::simulation) fn check_booked(&mut self, end: RequestEnd) -> Check {
        let ending = self.ending.take();
        ensure!(
            ending.is_none_or(|ending| ending == end),
            "a request with a row for {ending:?} ends as {end:?}"
        );
        let is_told = self.current.is_zero()
            || matches!(self.booked, Some(told) if told == end || told == RequestEnd::Answered);
        ensure!(
            is_told,
            "{:?} was used for a request that ends as {end:?}, told: {:?}",
            self.current,
            self.booked
        );
        Ok(())
    }

    /// Checks the sum of the reported usage at the end of a turn.
    pub(in crate::agent::core::simulation) fn check_rows(&self, response: &Response) -> Check {
        ensure!(
            self.told_rows == response.usage,
            "the rows add up to {:?}, not {:?}",
            self.told_rows,
            response.usage
        );
        let (delegated, given) = (self.delegated, response.delegated);
        ensure!(delegated == given, "{given:?} was delegated, not {delegated:?}");
        Ok(())
    }
}

/// Checks that a compaction has a text, and that the messages which are sent unchanged begin with a prompt or an answer.
/// They contain the last answer, unless messages after it are cleared because nothing else makes room.
fn keeps_whole_steps(before: &[Arc<Message>], message: &Message) -> Check {
    ensure!(!message.text().trim().is_empty(), "a compaction without a text");
    let own = message.compaction.as_deref().ok_or("a compaction without its facts")?;
    let from = before.len().checked_sub(own.kept as usize).ok_or("more messages are kept than exist")?;
    let is_own = |message: &&Arc<Message>| message.compaction.is_none();
    let first = before[from..].iter().find(is_own);
    let is_start = |first: &Arc<Message>| first.role == Role::Assistant || first.is_prompt();
    ensure!(first.is_none_or(is_start), "the kept messages begin with {first:?}");
    let answer = before.iter().rposition(|message| message.role == Role::Assistant);
    let is_cleared = own.trigger == CompactionTrigger::Overflow && own.cleared > 0;
    ensure!(answer.is_none_or(|answer| answer >= from || is_cleared), "the last answer is not kept: {own:?}");
    Ok(())
}

impl Model {
    /// Checks the end of a compaction.
    pub(super) fn compacted(
        &mut self,
        message: Option<&Arc<Message>>,
        at: usize,
        failure: Option<&Failure>,
    ) -> Check {
        if let Some(message) = message {
            self.ids.user(message, None)?;
        }
        let committed = self.committed.clone();
        let turn = self.turn()?;
        ensure!(turn.compacting && message.is_none() == failure.is_some(), "{message:?}, but {failure:?}");
        ensure!(turn.summary.is_zero(), "{:?} was used for a summary and not told", turn.summary);
        (turn.compacting, turn.summarising) = (false, false);
        let Some(message) = message else {
            // The repetition that was announced before the compaction is not made.
            if std::mem::take(&mut turn.is_refused) {
                self.limit = self.limit.map(|limit| limit + 1);
            }
            return Ok(());
        };
        let is_new = turn.is_new && turn.pending.len() == 1 && turn.pending[0].is_prompt();
        let expected = if is_new { 0 } else { turn.pending.len() };
        ensure!(at == expected, "a compaction at {at}, not {expected}");
        let before: Vec<_> = committed.iter().chain(&turn.pending[..at]).cloned().collect();
        turn.pending.insert(at, Arc::clone(message));
        turn.base = turn.pending.len();
        keeps_whole_steps(&before, message)
    }

    /// Checks that the agent compacts by size or after an overflow at most once until the next answer. If the service
    /// refuses the compacted conversation of an earlier turn, it is compacted again.
    pub(super) fn compacts_once(&self, trigger: CompactionTrigger) -> Check {
        let pending = self.turn.iter().flat_map(|turn| &turn.pending);
        let committed = self.committed.iter().filter(|_| trigger == CompactionTrigger::Size);
        let all: Vec<_> = committed.chain(pending).collect();
        let unanswered = all.iter().rev().take_while(|message| message.role == Role::User);
        let mut made = unanswered.filter_map(|message| message.compaction.as_deref());
        let again = made.find(|own| own.trigger != CompactionTrigger::Request);
        let is_free = trigger == CompactionTrigger::Request || again.is_none();
        ensure!(is_free, "a compaction by {trigger:?} follows {again:?} before an answer");
        Ok(())
    }

    /// Checks the start of a turn that consists of a compaction alone.
    pub(super) fn compaction_begins(&mut self, turn: TurnId, trigger: CompactionTrigger, run: u32) -> Check {
        let (requested, owed) =
            (std::mem::take(&mut self.requested), std::mem::take(&mut self.owes_compaction));
        ensure!(requested != owed && requested != self.run, "a compaction begins from nothing");
        ensure!(requested == (trigger == CompactionTrigger::Request), "a compaction by {trigger:?}");
        ensure!(self.turn_id.replace(turn) != Some(turn), "{turn} begins twice");
        self.runs += u32::from(requested);
        ensure!(run == self.runs, "a compaction in run {run}, not {}", self.runs);
        if requested {
            (self.limit, self.brought, self.turn_timeout) = (self.own_limit, None, self.own_timeout);
            (self.named_for_run, self.backups.place) = (None, 0);
            self.stopped = Some(RunOutcome::stopped(&StopReason::Stop));
        }
        self.turn = Some(Turn { own: Some(requested), compacting: true, ..Turn::new(Vec::new()) });
        self.run = true;
        Ok(())
    }

    /// Notes that a summary is requested.
    pub(in crate::agent::core::simulation) fn summarises(&mut self) -> Check {
        let turn = self.turn()?;
        ensure!(turn.compacting, "a summary without a compaction");
        turn.summarising = true;
        Ok(())
    }

    pub(in crate::agent::core::simulation) fn is_summarising(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.summarising)
    }

    /// Checks the usage of a request that ends without a step.
    pub(super) fn usage_told(&mut self, row: &UsageRow) -> Check {
        if row.purpose == Purpose::SubAgent {
            let (given, expected) = ((row.usage, row.conversation.is_some()), self.delegating.take());
            ensure!(Some(given) == expected, "a sub-agent has used {given:?}, not {expected:?}");
            ensure!(row.turn == self.turn_id && row.message.is_none(), "{row:?} in {:?}", self.turn_id);
            let turn = self.turn()?;
            if given.1 {
                turn.delegated += row.usage;
            } else {
                (turn.before, turn.told_rows) = (turn.before + row.usage, turn.told_rows + row.usage);
            }
            return Ok(());
        }
        let (answer, step, id) = (self.ids.answer.clone(), self.step, self.turn_id);
        let turn = self.turn()?;
        ensure!(turn.booked.is_none(), "{row:?} is the second row of its request");
        ensure!(
            row.usage == turn.current && !row.usage.is_zero(),
            "{row:?}, but {:?} was used",
            turn.current
        );
        ensure!((row.turn, row.step) == (id, Some(step)), "{row:?} in step {step} of {id:?}");
        ensure!(row.message == answer && answer.is_some(), "{row:?}, but {answer:?} was announced");
        let model = turn.told_model.as_deref().unwrap_or(&turn.requested);
        ensure!(row.model.as_deref() == Some(model), "{row:?} of the model {model}");
        (turn.booked, turn.ending) = (Some(row.end), Some(row.end));
        turn.told_rows += row.usage;
        Ok(())
    }
}

//! Reads snapshots: finds the run of the target among the messages, and reports the part of it that is new.

use std::{mem, sync::Arc};

use super::{
    Follow, FollowFrom, FollowTarget, FollowedRunPhase, RunProgress, RunProgressSink, ToolChange, begins,
};
use crate::{
    agent::{Prompt, PromptId, PromptState, RunOutcome, Snapshot, Status},
    message::{History, Message, MessageId, Role, TurnId},
    provider::{PartialBlock, StopReason},
};

/// The state of the target in a snapshot.
enum RunStateInSnapshot {
    Unknown,
    Waiting,
    Running,
    Ended(Option<RunOutcome>),
    Returned(Option<RunOutcome>),
}

impl Follow {
    /// Reads the first snapshot, or a snapshot that replaces missed events. `history` is the committed history of the
    /// agent or, in a session, of the current branch.
    pub fn snapshot(&mut self, history: &History, agent: &Snapshot, out: &mut dyn FnMut(RunProgress<'_>)) {
        let all: Vec<_> =
            history.iter().chain(&agent.pending).filter(|message| is_reported(message)).collect();
        let from = mem::replace(&mut self.from, FollowFrom::Start);
        self.read_snapshot(&all, agent, &mut |progress| {
            let is_end = matches!(progress, RunProgress::Ended { .. } | RunProgress::Returned { .. });
            if from == FollowFrom::Start || is_end {
                out(progress);
            }
        });
    }

    fn read_snapshot(&mut self, all: &[&Arc<Message>], agent: &Snapshot, out: &mut RunProgressSink<'_>) {
        while !self.is_over() {
            let is_own = self.is_own(agent);
            let outcome = match self.target_state(all, is_own, agent) {
                RunStateInSnapshot::Waiting => return self.wait(out),
                RunStateInSnapshot::Returned(outcome) => {
                    return self.end(RunProgress::Returned { outcome: outcome.as_ref() }, out);
                }
                RunStateInSnapshot::Unknown => {
                    if self.target == FollowTarget::InFlight {
                        self.anchor(all.last().copied().cloned());
                        self.run = Some(agent.run);
                    }
                    return;
                }
                RunStateInSnapshot::Running => None,
                RunStateInSnapshot::Ended(outcome) => Some(outcome),
            };
            let is_old = self.is_running() && !is_own;
            let (kept, start) = self.start(all, agent);
            let is_last =
                if self.is_running() { is_own } else { start >= first_of(all, agent.first_turn, agent) };
            let (mut next, turns) = (&all[start..], turns(&all[start..], agent));
            if outcome.is_some() {
                next = &next[..self.own(all, start, &turns, is_last)];
            }
            self.correct(kept, next, outcome.is_none().then_some(agent), out);
            for (message, turn) in next.iter().zip(turns) {
                self.enter(turn, out);
                self.message(message, out);
            }
            let Some(outcome) = outcome else { return self.read_in_flight(agent, out) };
            let committed = &all[..first_pending(all, agent)];
            let last = self.last_answer().and_then(|last| find(last, committed));
            let kept = last.map(|after| committed[after - 1]).or(self.kept.as_ref()).cloned();
            let (outcome, message) = (outcome.as_ref(), kept.as_ref());
            self.end(RunProgress::Ended { outcome, response: None, message }, out);
            if !is_old {
                self.run = Some(agent.run);
            }
        }
    }

    /// Reports that the answer in progress, or the last answer, is void, unless the snapshot contains it. `kept` is the
    /// number of the reported messages that the snapshot contains. `next` are the messages that follow them. `running` is
    /// the snapshot if the target is active.
    fn correct(
        &mut self,
        kept: usize,
        next: &[&Arc<Message>],
        running: Option<&Snapshot>,
        out: &mut RunProgressSink<'_>,
    ) {
        let fits =
            |(own, other): (&PartialBlock, &PartialBlock)| begins(own, &other.content, Some(&other.input));
        let continues = |agent: &Snapshot| {
            self.answer == agent.answer
                && self.partial.len() <= agent.partial.len()
                && self.partial.iter().zip(&agent.partial).all(fits)
        };
        let is_complete = next.iter().any(|message| message.id.is_some() && message.id == self.answer);
        if !is_complete && !running.is_some_and(continues) {
            self.void(None, out);
        }
        let is_answered = self.messages.get(self.base).is_some_and(|next| next.role == Role::Assistant);
        if self.is_running() && kept == self.base && is_answered {
            // The answer was complete, and then its request was repeated.
            self.tools.clear();
            out(RunProgress::Void { failure: None, model: None });
        }
        self.messages.truncate(kept);
        (self.origin, self.base) = (self.origin.min(kept), self.base.min(kept));
    }

    /// Reports the parts of the turn in flight that are not messages.
    fn read_in_flight(&mut self, agent: &Snapshot, out: &mut RunProgressSink<'_>) {
        self.enter(agent.turn, out);
        (self.run, self.is_between) = (Some(agent.run), agent.turn.is_none());
        if self.is_between {
            self.settle();
        }
        if let Some(answer) = &agent.answer {
            if self.answer.as_ref() != Some(answer) {
                self.request(agent.step, Some(answer), out);
            }
            for (index, block) in agent.partial.iter().enumerate() {
                self.replace(index, block.clone(), out);
            }
        }
        self.step = agent.step;
        for run in &agent.tools {
            self.tool(&run.tool_use_id, 0, ToolChange::Started { input: run.input.as_ref() }, out);
            if let Some(is_error) = run.is_error {
                self.tool(&run.tool_use_id, 1, ToolChange::Ended { is_error }, out);
            }
        }
        self.set_pauses(&agent.pauses, out);
        self.set_budget(agent.budget.as_deref(), out);
    }

    /// Returns whether the target belongs to the last run of the snapshot, as far as the follower knows.
    fn is_own(&self, agent: &Snapshot) -> bool {
        match &self.target {
            FollowTarget::Turn(turn) => agent.first_turn == Some(*turn),
            _ => self.is_running() && self.run.is_none_or(|run| run == agent.run),
        }
    }

    fn target_state(&self, all: &[&Arc<Message>], is_own: bool, agent: &Snapshot) -> RunStateInSnapshot {
        // A compaction that ends a run has no messages to show.
        let (last_run, is_active) = (agent.last_run.as_deref(), agent.status != Status::Idle);
        let is_busy = agent.is_answering() || agent.compacts_alone();
        if let FollowTarget::Prompt(id) = &self.target {
            let is_target = |prompt: &Arc<Prompt>| prompt.id.as_ref() == Some(id);
            let unused =
                last_run.filter(|run| run.staged.iter().any(is_target)).map(|run| run.outcome.clone());
            let known = agent.prompts.iter().find(|known| known.id == *id).map(|known| &known.state);
            return match (known, unused) {
                (Some(PromptState::Staged), _) => RunStateInSnapshot::Waiting,
                (Some(PromptState::InFlight { .. }), _) => RunStateInSnapshot::Running,
                (Some(PromptState::Ended { outcome }), _) => RunStateInSnapshot::Ended(Some(outcome.clone())),
                // During the next run, the id may have been used again, and withdrawn.
                (Some(PromptState::Returned), unused) => {
                    RunStateInSnapshot::Returned(unused.filter(|_| !is_busy))
                }
                (None, Some(unused)) if self.is_expected() => RunStateInSnapshot::Returned(Some(unused)),
                (None, _) if self.is_expected() || place_of(id, all).is_some() => {
                    RunStateInSnapshot::Ended(None)
                }
                (None, _) => RunStateInSnapshot::Unknown,
            };
        }
        // A prompt that a callback returns can fail without a run. Its failure has no turn.
        let last_run = last_run.filter(|run| run.turn.is_some());
        let last_turn = last_run.and_then(|run| run.turn).map(FollowTarget::Turn);
        let stated = || last_run.map(|run| run.outcome.clone());
        // The end of a run that is being compacted is not stated yet.
        let compacted = all.last().filter(|_| is_active && !is_busy);
        let outcome = || match compacted {
            Some(last) => Some(RunOutcome::stopped(last.ended.as_deref().unwrap_or(&StopReason::Stop))),
            None => stated(),
        };
        let is_all = self.target == FollowTarget::InFlight;
        match self.is_running() {
            _ if is_own && is_busy => RunStateInSnapshot::Running,
            _ if is_own => RunStateInSnapshot::Ended(outcome()),
            true => {
                let is_before = self.run.is_some_and(|run| run.wrapping_add(1) == agent.run);
                RunStateInSnapshot::Ended(stated().filter(|_| is_active && is_before))
            }
            false if is_all && is_busy => RunStateInSnapshot::Running,
            false if is_all && self.run.is_some_and(|run| run != agent.run) => {
                RunStateInSnapshot::Ended(outcome())
            }
            // The agent was started after the run.
            false if last_turn.as_ref() == Some(&self.target) => RunStateInSnapshot::Ended(stated()),
            false if !is_all && self.is_accepted => RunStateInSnapshot::Ended(None),
            false => RunStateInSnapshot::Unknown,
        }
    }

    /// Returns whether the agent has known the target of this follower.
    fn is_expected(&self) -> bool {
        self.is_accepted || self.state != FollowedRunPhase::Unknown
    }

    /// Returns the number of the reported messages that the snapshot contains, and the index of its first message that
    /// was not reported.
    fn start(&self, all: &[&Arc<Message>], agent: &Snapshot) -> (usize, usize) {
        let mut reported = self.messages.iter().enumerate().rev();
        let found = reported.find_map(|(at, own)| Some((at + 1, find(own, all)?)));
        let first = first_of(all, agent.first_turn, agent);
        match (&self.target, found) {
            (_, Some(found)) if self.is_running() => found,
            // A prompt whose turn has begun, but whose message was not reported, is read from its message on.
            (FollowTarget::Prompt(id), _) => (0, place_of(id, all).unwrap_or(all.len())),
            // The reader has joined without a snapshot, so it has only the answer in progress.
            _ if self.is_running() => {
                let answer = |message: &&Arc<Message>| message.id.is_some() && message.id == self.answer;
                (0, all.iter().position(answer).unwrap_or(all.len()))
            }
            (FollowTarget::Turn(turn), _) => (0, first_of(all, Some(*turn), agent)),
            (FollowTarget::InFlight, Some((kept, start))) if start <= first => (kept, start),
            (FollowTarget::InFlight, _) if self.run.is_none() => (0, first_pending(all, agent)),
            _ => (0, first),
        }
    }

    /// Returns the number of messages from `start` on that belong to the run of a target that has ended. `turns` are the
    /// turns of these messages. `is_last` is whether the run is the last one. In a run, each staged prompt has an id, so a
    /// later turn of the run whose first message has an id from the agent was added by a callback.
    fn own(&self, all: &[&Arc<Message>], start: usize, turns: &[Option<TurnId>], is_last: bool) -> usize {
        let mut turn = match self.is_running() {
            true => self.turn,
            false if self.target == FollowTarget::InFlight => return turns.len(),
            false => turns.first().copied().flatten(),
        };
        // A discarded turn is not contained.
        if turn.is_none() || !all.iter().any(|message| turn_of(message) == turn) {
            return 0;
        }
        let is_prompt = matches!(self.target, FollowTarget::Prompt(_));
        let is_own = |(message, own): &(&&Arc<Message>, &Option<TurnId>)| {
            let is_added = message.role == Role::User && turn_of(message).is_some();
            mem::replace(&mut turn, **own) == **own || is_last && (!is_prompt || is_added)
        };
        all[start..].iter().zip(turns).take_while(is_own).count()
    }
}

/// Returns whether a message is reported. A compaction is not, because it changes nothing that was shown.
fn is_reported(message: &Message) -> bool {
    message.compaction.is_none()
}

/// Returns the index of the first message that is not committed.
fn first_pending(all: &[&Arc<Message>], agent: &Snapshot) -> usize {
    all.len() - agent.pending.iter().filter(|message| is_reported(message)).count()
}

/// Returns the index of the first message of a turn, which is the one before the turn's first answer.
fn first_of(all: &[&Arc<Message>], turn: Option<TurnId>, agent: &Snapshot) -> usize {
    let is_first = |message: &&Arc<Message>| {
        message.role == Role::Assistant && turn.is_some() && turn_of(message) == turn
    };
    match all.iter().position(is_first) {
        Some(answer) => answer.saturating_sub(1),
        None if agent.turn == turn => first_pending(all, agent),
        None => all.len(),
    }
}

/// Returns the turns of messages, of which the last ones are pending. The id of a prompt contains no turn, or another turn
/// if its answer is regenerated, so the answer after it counts.
fn turns(messages: &[&Arc<Message>], agent: &Snapshot) -> Vec<Option<TurnId>> {
    let mut turns = vec![None; messages.len()];
    for (index, message) in messages.iter().enumerate().rev() {
        let (own, next) = (turn_of(message), turns.get(index + 1).copied().flatten());
        turns[index] = match messages.get(index + 1) {
            _ if message.role == Role::Assistant => own,
            None => agent.turn.filter(|_| !agent.pending.is_empty()).or(own),
            Some(after) if after.role == Role::Assistant => next.or(own),
            Some(_) => own.or(next),
        };
    }
    turns
}

/// Returns the index after a message, if these messages contain it.
fn find(own: &Arc<Message>, all: &[&Arc<Message>]) -> Option<usize> {
    let is_own = |other: &&Arc<Message>| own.id == other.id && (own.id.is_some() || own == *other);
    all.iter().rposition(is_own).map(|index| index + 1)
}

/// Returns the index of the message of a prompt.
fn place_of(prompt: &PromptId, all: &[&Arc<Message>]) -> Option<usize> {
    let id = Some(MessageId::from(prompt.clone()));
    all.iter().rposition(|message| message.id == id)
}

fn turn_of(message: &Message) -> Option<TurnId> {
    message.id.as_ref().and_then(MessageId::turn)
}

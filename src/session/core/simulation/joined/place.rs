//! The store: a conversation that one process owns at a time, and the promises that hold over all its writes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde_json::Value;

use super::super::vault::{self, Vault};
use crate::{
    actor::simulation::{Check, ensure},
    agent::process::Fault,
    message::{Message, TurnId},
    run::{Prompt, RunEnd, RunOutcome, TurnRecord},
    session::core::WriteJob,
    store::{Change, Commit, StoreError, Stored, StoredTurn, TurnChange, Version},
    tree::{NodeId, Tree},
};

/// A prompt that the end of a run has returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Returned {
    /// The prompt has started a turn or has joined one, and got no answer.
    Unanswered(String),
    /// The prompt was staged and not used.
    Staged(String),
}

impl Returned {
    /// Returns the prompts that the end of a run returns.
    pub(super) fn of(end: &RunEnd) -> Vec<Self> {
        let unanswered = end.unanswered.iter().map(|message| Self::Unanswered(message.text()));
        let text = |prompt: &Arc<Prompt>| Message::user(prompt.content.clone()).text();
        unanswered.chain(end.staged.iter().map(|prompt| Self::Staged(text(prompt)))).collect()
    }
}

#[derive(Clone, Default)]
pub(super) struct Place {
    pub(super) vault: Vault,
    epoch: u64,
    pub(super) fault: Option<Fault>,
    /// The turns whose messages are stored.
    committed: HashSet<TurnId>,
    /// The turns in which a compaction has begun. Such a turn may end without messages.
    compacting: HashSet<TurnId>,
    /// The turns whose runs have a stored end.
    ended: HashSet<TurnId>,
    /// The prompts that stored ends of runs have returned.
    returned: HashSet<Returned>,
    /// The number of restarts of each turn since its last progress.
    restarts: HashMap<TurnId, u32>,
}

impl Place {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self { fault, ..Self::default() }
    }

    pub(super) fn stored(&self) -> Option<&Stored> {
        self.vault.stored.as_ref()
    }

    pub(super) fn turn(&self) -> Option<&StoredTurn> {
        self.stored()?.turn.as_deref()
    }

    /// Acquires the conversation, and returns the epoch. Earlier owners lose it.
    pub(super) fn acquire(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    pub(super) fn is_owned(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Returns whether the store contains this text: in a message, or in the turn in flight.
    pub(super) fn contains(&self, text: &str) -> bool {
        let is_stored = |stored: &Stored| stored.nodes.iter().any(|node| node.message().text() == text);
        let quoted = format!("\"{text}\"");
        let is_in_flight = |turn: &StoredTurn| {
            turn.pending().iter().any(|message| message.text() == text) || turn.record.core.contains(&quoted)
        };
        self.stored().is_some_and(is_stored) || self.turn().is_some_and(is_in_flight)
    }

    /// Takes note of a compaction in this turn.
    pub(super) fn compacts(&mut self, turn: TurnId) {
        self.compacting.insert(turn);
    }

    /// Takes note of prompts that the stored ends of runs have returned.
    pub(super) fn returns(&mut self, prompts: impl IntoIterator<Item = Returned>) {
        self.returned.extend(prompts);
    }

    pub(super) fn has_returned(&self, prompt: &str) -> bool {
        self.has_returned_unused(prompt) || self.returned.contains(&Returned::Unanswered(prompt.to_owned()))
    }

    /// Returns whether a stored end of a run has returned this prompt from the queue.
    pub(super) fn has_returned_unused(&self, prompt: &str) -> bool {
        self.returned.contains(&Returned::Staged(prompt.to_owned()))
    }

    /// Performs a write of the owner with this epoch. The outer result is the check of the promises.
    pub(super) fn write(&mut self, job: &WriteJob, epoch: u64) -> Check<Result<Version, StoreError>> {
        if !self.is_owned(epoch) {
            return Ok(Err(StoreError::LeaseLost { id: vault::id() }));
        }
        let known = self.vault.has_written(job);
        let before = self.turn().cloned();
        let outcome = match job {
            (write, Change::Commit(commit)) if self.fault.is_some() => {
                self.vault.write(&(*write, Change::Commit(self.damaged(commit.clone()))))
            }
            _ => self.vault.write(job),
        };
        if known || outcome.is_err() {
            return Ok(outcome);
        }
        if let (_, Change::Commit(commit)) = job {
            if let Some(TurnChange::Record(record)) = commit.turn.as_deref()
                && has_progressed(record, before.as_ref())
            {
                self.restarts.remove(&record.turn);
            }
            if let Some(TurnChange::Record(record)) = commit.turn.as_deref()
                && core(record)["turn"].get("compaction").is_some()
            {
                self.compacting.insert(record.turn);
            }
            self.keep_older(before, commit);
            self.one_end_for_each_run(commit)?;
            self.committed_turns_stay()?;
            self.no_prompt_ends_at_a_compaction(commit)?;
            recorded_turn_is_on_its_head(commit)?;
        }
        self.stored_history_keeps_the_law()?;
        Ok(outcome)
    }

    /// Returns the commit as a faulty store reads it.
    fn damaged(&self, mut commit: Commit) -> Commit {
        match (self.fault, commit.turn.as_deref_mut()) {
            (Some(Fault::KeepIgnored), Some(TurnChange::Record(record))) => record.keep = 0,
            (Some(Fault::ResultMissing), Some(TurnChange::Record(record))) => {
                let mut core = core(record);
                for slots in ["/stage/slots", "/stage/remains/slots"] {
                    if let Some(Value::Array(slots)) = core.pointer_mut(slots) {
                        slots
                            .iter_mut()
                            .filter_map(Value::as_object_mut)
                            .for_each(|slot| drop(slot.remove("result")));
                    }
                }
                record.core = core.to_string().into();
            }
            (Some(Fault::OutcomesLost), Some(TurnChange::End(end))) => end.prompts.clear(),
            _ => {}
        }
        commit
    }

    /// Keeps an earlier turn, as a faulty store does.
    fn keep_older(&mut self, before: Option<StoredTurn>, commit: &Commit) {
        let Some(stored) = &mut self.vault.stored else { return };
        let (fault, head) = (self.fault, stored.head);
        let is_kept = match commit.turn.as_deref() {
            Some(TurnChange::Record(record)) => {
                let is_other = before.as_ref().is_some_and(|before| before.record.turn != record.turn);
                fault == Some(Fault::OlderTurnKept) && is_other
            }
            Some(TurnChange::End(_)) | None => fault == Some(Fault::RecordKept),
        };
        if is_kept && let Some(mut before) = before {
            before.record.head = head;
            stored.turn = Some(Box::new(before));
        }
    }

    /// A run has one end over all lives: its messages are stored once, or its end is, and no record of it follows.
    fn one_end_for_each_run(&mut self, commit: &Commit) -> Check {
        let unanswered = match commit.turn.as_deref() {
            Some(TurnChange::End(end)) => &end.unanswered[..],
            _ => &[],
        };
        let kept = commit.nodes.iter().filter(|node| !unanswered.contains(node.message()));
        let turns = kept.filter_map(|node| node.message().id.as_ref()?.turn());
        let turns: HashSet<_> = turns.collect();
        for turn in turns.iter().copied() {
            ensure!(self.committed.insert(turn), "turn {turn} is committed a second time");
            ensure!(!self.ended.contains(&turn), "turn {turn} is committed after its end");
        }
        match commit.turn.as_deref() {
            Some(TurnChange::End(end)) => {
                let Some(turn) = end.turn else { return Ok(()) };
                ensure!(self.ended.insert(turn), "the run of turn {turn} ends a second time: {end:?}");
                let is_committed = self.committed.contains(&turn);
                let keeps = match end.outcome {
                    RunOutcome::Stopped { .. } | RunOutcome::Abandoned => true,
                    // The messages that a failed run keeps are stored with its end, and then no prompt is returned.
                    RunOutcome::Failed { .. } => turns.contains(&turn) && end.unanswered.is_empty(),
                    _ => false,
                };
                ensure!(keeps || !is_committed, "turn {turn} was committed: {end:?}");
                let is_alone = self.compacting.contains(&turn) && keeps;
                let returns = is_committed || is_alone || !end.unanswered.is_empty();
                ensure!(returns, "turn {turn} was neither committed nor returned: {end:?}");
                let is_leaf = |prompt: &Arc<Message>| {
                    self.stored()
                        .is_some_and(|stored| stored.nodes.iter().any(|node| node.message() == prompt))
                };
                let stays = matches!(end.outcome, RunOutcome::Failed { .. });
                ensure!(
                    !stays || end.unanswered.first().is_none_or(is_leaf),
                    "a failed prompt is not in the tree: {end:?}"
                );
            }
            Some(TurnChange::Record(record)) => {
                let turn = record.turn;
                let is_over = self.committed.contains(&turn) || self.ended.contains(&turn);
                ensure!(!is_over, "turn {turn} is recorded after its end");
            }
            None => {}
        }
        Ok(())
    }

    /// No write removes a committed turn, such as the answered turn before a compaction.
    fn committed_turns_stay(&self) -> Check {
        let nodes = self.stored().map_or(&[][..], |stored| &stored.nodes);
        let turns: HashSet<_> = nodes.iter().filter_map(|node| node.message().id.as_ref()?.turn()).collect();
        let gone = self.committed.iter().find(|turn| !turns.contains(turn));
        ensure!(gone.is_none(), "the turn {gone:?} was committed, and is removed");
        Ok(())
    }

    /// The last node of a turn, as the outcomes of runs and prompts name it, is no compaction.
    fn no_prompt_ends_at_a_compaction(&self, commit: &Commit) -> Check {
        let (through, prompts) = match commit.turn.as_deref() {
            Some(TurnChange::End(end)) => (end.through, &end.prompts[..]),
            Some(TurnChange::Record(record)) => (None, &record.prompts[..]),
            None => return Ok(()),
        };
        let is_compaction = |id: &NodeId| {
            let nodes = self.stored().map_or(&[][..], |stored| &stored.nodes);
            nodes.iter().any(|node| node.id() == *id && node.message().compaction.is_some())
        };
        let mut named = prompts.iter().filter_map(|known| known.through).chain(through);
        let found = named.find(is_compaction);
        ensure!(found.is_none(), "an outcome names the compaction {found:?}: {commit:?}");
        Ok(())
    }

    fn stored_history_keeps_the_law(&self) -> Check {
        let Some(stored) = self.stored() else { return Ok(()) };
        let tree = Tree::restored(stored.nodes.clone(), stored.head, stored.cursors.clone(), stored.next);
        let tree = tree.map_err(|error| format!("the stored nodes form no tree: {error}"))?;
        tree.history().check().map_err(|error| error.to_string())
    }

    /// A turn is not restarted without end: each restart without progress counts. Called for a restart with this number.
    pub(super) fn restarts_are_counted(&mut self, turn: TurnId, lives: u32) -> Check {
        let count = self.restarts.entry(turn).or_default();
        *count += 1;
        ensure!(*count <= lives, "turn {turn} is restarted {count} times, not {lives}");
        Ok(())
    }
}

/// A record is never void: it names the head that the same commit stores.
fn recorded_turn_is_on_its_head(commit: &Commit) -> Check {
    if let Some(TurnChange::Record(record)) = commit.turn.as_deref() {
        ensure!(record.head == commit.head, "the record is void: {record:?} on {:?}", commit.head);
    }
    Ok(())
}

/// Returns whether a record has new messages, results or decisions, drops messages of the stored turn, or belongs to a
/// later step. The answer to the earlier step may have come and been dropped again between two records. A decision is
/// progress because a turn that needs a person does not restart without end by itself.
fn has_progressed(record: &TurnRecord, before: Option<&StoredTurn>) -> bool {
    let stored = before.map_or(0, |before| before.pending().len());
    let is_later = before.is_some_and(|before| step(record) > step(&before.record));
    let own = before.map(|before| &before.record).filter(|before| before.turn == record.turn);
    let has_results = results(record) > own.map_or(0, results);
    // A stored decision moves from one list to the other when it is applied.
    let has_decisions = own.is_some_and(|own| {
        ["/decided", "/turn/decisions"].into_iter().any(|list| decisions(record, list) > decisions(own, list))
    });
    is_later || !record.append.is_empty() || has_results || has_decisions || (record.keep as usize) < stored
}

/// Returns the number of the decisions in a list of a record.
fn decisions(record: &TurnRecord, list: &str) -> usize {
    core(record).pointer(list).and_then(Value::as_array).map_or(0, Vec::len)
}

/// Returns the number of results in a record. A reviewed result counts twice.
fn results(record: &TurnRecord) -> usize {
    let stage = core(record)["stage"].take();
    let list = |path: &str| stage.pointer(path).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let slots = list("/slots").iter().chain(list("/remains/slots"));
    let settled = slots.filter(|slot| slot.get("result").is_some()).count();
    settled + 2 * (list("/reviewed").len() + list("/remains/reviewed").len()) + list("/end/decided").len()
}

/// Returns the number of the request in a record. Returns 0 between two turns.
fn step(record: &TurnRecord) -> u32 {
    let step = core(record)["turn"]["step"].as_u64();
    step.and_then(|step| step.try_into().ok()).unwrap_or_default()
}

fn core(record: &TurnRecord) -> Value {
    serde_json::from_str(&record.core).expect("a record contains JSON")
}

//! The turn in flight. Its records are stored with the next write, and the agent waits until they are stored.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Effects, SessionCore, SessionEffect,
    branching::UncommittedBranch,
    saving::{StoredTurnFingerprint, UnsavedRunRecords},
};
use crate::{
    agent::{self, Config, Status},
    run::{BranchPoint, RunEnd, TurnRecord},
    store::{Commit, Version, Write},
};

/// The recorded turn in flight, and the records for which the agent waits.
#[derive(Debug, Default)]
pub(super) struct TurnRecordTracker {
    /// The last record of the turn in flight, without its messages. Its `keep` counts all of them.
    last: Option<TurnRecord>,
    /// The records that are not stored yet, as pairs: the number of the last change that must be stored before the
    /// record counts as stored, and the number of the record.
    due: VecDeque<(u64, u64)>,
    /// The number of the last record that the agent has made.
    number: u64,
    /// Whether the turn is left to the next owner of the conversation.
    is_left: bool,
}

impl SessionCore {
    /// Notes the agent's record after an event. `config` is the configuration in force.
    pub(super) fn recorded(&mut self, record: &agent::RecordToStore, config: &Arc<Config>) {
        let turn = record.turn.as_ref().map(|turn| self.completed(turn.clone()));
        let last = turn.as_ref().map(kept);
        if let Some(turn) = turn {
            // A turn must not continue with older settings than those that its callbacks have chosen.
            self.adopt(config);
            let rows = std::mem::take(&mut self.rows);
            self.record(UnsavedRunRecords::of_turn(rows, turn));
        }
        let wanted = self.wanted();
        let flight = self.flight.get_or_insert_default();
        flight.last = last;
        flight.number = record.number;
        flight.due.push_back((wanted, record.number));
    }

    /// Fills in the parts of a record that the agent does not know.
    fn completed(&self, mut record: TurnRecord) -> TurnRecord {
        record.head = self.stable().head();
        record.branch = self
            .branch
            .as_ref()
            .map(|branch| BranchPoint { base: self.tree.head(), answers: branch.answers });
        self.complete_prompts(&mut record);
        record
    }

    /// Returns the last record of the turn in flight.
    pub(super) fn last_record(&self) -> Option<&TurnRecord> {
        self.flight.as_ref().and_then(|flight| flight.last.as_ref())
    }

    /// Returns the number of the last record that the agent has made, or 0 if it has made none.
    pub(in crate::session) fn last_number(&self) -> u64 {
        self.flight.as_ref().map_or(0, |flight| flight.number)
    }

    /// Releases the agent's effects and replies that wait for records, if these records are stored.
    pub(super) fn report_written(&mut self, effects: &mut Effects) {
        // If the conversation is lost, its new owner continues the turn, so this agent must not perform the effects
        // that wait.
        if self.flight.is_none() || self.is_lost() {
            return;
        }
        let due = self.flight.iter().flat_map(|flight| &flight.due);
        let stored = due.take_while(|(wanted, _)| self.is_safe(*wanted)).count();
        let last = self.flight.as_mut().and_then(|flight| flight.due.drain(..stored).next_back());
        effects.extend(last.map(|(_, number)| SessionEffect::Written(number)));
    }

    /// Returns whether a turn in flight is recorded.
    pub(in crate::session) fn is_recorded(&self) -> bool {
        self.last_record().is_some()
    }

    /// Returns whether the session may end without an effect on its conversation: the agent is idle, or it waits for
    /// decisions about a recorded turn.
    pub(in crate::session) fn is_at_rest(&self) -> bool {
        match self.status {
            Status::Idle => true,
            Status::Paused => self.is_recorded(),
            Status::Busy => false,
        }
    }

    /// Notes that the turn in flight is left to the next owner of the conversation.
    pub(in crate::session) fn leave_turn(&mut self) {
        self.flight.get_or_insert_default().is_left = true;
    }

    /// Returns whether the turn in flight is left to the next owner of the conversation.
    pub(in crate::session) fn leaves_turn(&self) -> bool {
        self.flight.as_ref().is_some_and(|flight| flight.is_left)
    }

    /// Takes over the recorded turn in flight of a loaded conversation.
    pub(in crate::session) fn take_up(&mut self, record: &TurnRecord, status: Status) {
        let mut last = kept(record);
        // The stream of such a pause has ended with its process, so the store must not list the pause any more.
        last.waiting.retain(|waiting| waiting.survives);
        if let Some(BranchPoint { base, answers }) = record.branch {
            let before = self.tree.clone();
            self.go(base);
            self.branch = Some(UncommittedBranch { before, answers });
        }
        self.status = status;
        self.flight = Some(Box::new(TurnRecordTracker { last: Some(last), ..TurnRecordTracker::default() }));
    }

    /// Notes the end of the loaded turn in flight, which is discarded, so that this end is stored.
    pub(in crate::session) fn discarded(&mut self, end: RunEnd) {
        self.store_end(end);
    }

    /// Notes the version after a write of [`restart`](Self::restart) or [`handed_over`](Self::handed_over).
    pub(in crate::session) fn rewritten(&mut self, version: Version) {
        let turn = self.last_record().map(StoredTurnFingerprint::of);
        self.saver.rewritten(version, turn);
    }

    /// Sets the number of restarts of the loaded turn in flight, and removes the mark of a handover. Returns the write,
    /// if the stored record differs.
    pub(in crate::session) fn restart(&mut self, lives: u32) -> Option<(Write, Commit)> {
        self.rewrite(|last| (last.lives, last.orderly) = (lives, false))
    }

    /// Marks the stored turn in flight as handed over, and returns the write.
    pub(in crate::session) fn handed_over(&mut self) -> Option<(Write, Commit)> {
        self.rewrite(|last| last.orderly = true)
    }

    /// Changes the last record. Returns its write, if a turn is recorded and something has changed.
    fn rewrite(&mut self, change: impl FnOnce(&mut TurnRecord)) -> Option<(Write, Commit)> {
        let version = self.version()?;
        let last = self.flight.as_mut()?.last.as_mut()?;
        let before = (last.lives, last.orderly);
        change(last);
        let record = Some(last.clone()).filter(|last| (last.lives, last.orderly) != before)?;
        let mut commit = Commit::new(record.head).with_turn(record);
        commit.usage = self.keeps_usage.then(Vec::new);
        Some((Write::on(version), commit))
    }
}

/// Returns a record that changes nothing after `record`: it keeps all messages, and adds none.
fn kept(record: &TurnRecord) -> TurnRecord {
    let added = u32::try_from(record.append.len()).unwrap_or(u32::MAX);
    let mut kept = record.clone();
    kept.keep = kept.keep.saturating_add(added);
    (kept.append, kept.mark) = (Vec::new(), None);
    kept
}

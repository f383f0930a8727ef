//! The usage of requests, the end of the last run and the turn in flight, until they are stored with the next write.
//!
//! If nothing else has to be written, this data is written in a commit that repeats the stored head. Such a commit does
//! not change the time of the last write, so that lists keep their order. The end of a run is written before the record
//! of the next turn.

use std::sync::Arc;

use super::{SaveTracker, WriteJob};
use crate::{
    agent::Event,
    message::{TurnId, Usage, UsageRow, shared},
    run::{Response, RunEnd, TurnRecord},
    session::{
        SessionEvent,
        core::{Effects, SessionCore, SessionCoreEnv, SessionEffect},
    },
    store::{Change, Commit, StoredTurn, TurnChange},
    tree::NodeId,
};

/// Data that is due to be stored in addition to the tree and the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::session) struct UnsavedRunRecords {
    rows: Vec<UsageRow>,
    end: StoredRunEndChange,
    /// The turn in flight. It began after the end of the last run.
    turn: Option<Box<TurnRecord>>,
}

/// How the next write changes the stored end of the last run ([`RunEnd`]).
#[derive(Clone, Debug, Default, PartialEq)]
enum StoredRunEndChange {
    #[default]
    Keep,
    /// A later turn is complete. The commit of its nodes removes the stored end.
    Complete,
    Ended(Box<RunEnd>),
}

impl StoredRunEndChange {
    fn ended(&self) -> Option<&RunEnd> {
        match self {
            Self::Ended(end) => Some(end),
            Self::Keep | Self::Complete => None,
        }
    }
}

impl UnsavedRunRecords {
    /// Returns whether nothing has to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.has_end() && self.turn.is_none()
    }

    /// Returns a record that contains only the turn in flight and the rows of its requests.
    pub(in crate::session::core) fn of_turn(rows: Vec<UsageRow>, turn: TurnRecord) -> Self {
        Self { rows, end: StoredRunEndChange::Keep, turn: Some(Box::new(turn)) }
    }

    /// Returns a record that contains only the end of a run.
    pub(in crate::session::core) fn of_end(end: RunEnd) -> Self {
        Self { end: StoredRunEndChange::Ended(Box::new(end)), ..Self::default() }
    }

    /// Adds this data to a commit. A commit either ends a run or records a turn. If this commit ends a run, returns the
    /// turn, which belongs in the next commit.
    pub(super) fn join(self, commit: &mut Commit) -> Self {
        let Self { rows, end, turn } = self;
        match &mut commit.usage {
            Some(before) if !before.is_empty() => before.extend(rows),
            usage if !rows.is_empty() => *usage = Some(rows),
            _ => {}
        }
        if let StoredRunEndChange::Ended(end) = end {
            commit.turn = Some(Box::new(TurnChange::End(*end)));
            return Self { turn, ..Self::default() };
        }
        commit.turn = turn.map(|turn| Box::new(TurnChange::Record(*turn)));
        Self::default()
    }

    /// Returns the data that a commit contains, so that it can be written later if the commit was not written.
    pub(super) fn of(commit: &Commit) -> Self {
        let (end, turn) = match commit.turn.as_deref() {
            Some(TurnChange::End(end)) => (StoredRunEndChange::Ended(Box::new(end.clone())), None),
            Some(TurnChange::Record(turn)) => (StoredRunEndChange::Keep, Some(Box::new(turn.clone()))),
            None => (StoredRunEndChange::Keep, None),
        };
        Self { rows: commit.usage.clone().unwrap_or_default(), end, turn }
    }

    /// Returns this data combined with `later`, which was added after it.
    pub(super) fn then(mut self, later: Self) -> Self {
        self.rows.extend(later.rows);
        if later.end != StoredRunEndChange::Keep {
            (self.end, self.turn) = (later.end, None);
        }
        self.turn = match (self.turn.take(), later.turn) {
            (Some(earlier), Some(later)) => Some(Box::new(earlier.then(*later))),
            (earlier, later) => later.or(earlier),
        };
        self
    }

    /// Returns the approximate size in bytes.
    pub(super) fn weight(&self) -> usize {
        weight(self.rows.len(), self.end.ended(), self.turn.as_deref())
    }

    pub(super) fn has_end(&self) -> bool {
        matches!(self.end, StoredRunEndChange::Ended(_))
    }

    /// Returns the same data with less of the end of a run, which the store has rejected: without the messages of
    /// prompts, or without the end if it contains none.
    pub(super) fn with_less_end(mut self) -> Self {
        if let StoredRunEndChange::Ended(end) = &self.end {
            self.end = end
                .without_messages()
                .map_or(StoredRunEndChange::Keep, |end| StoredRunEndChange::Ended(Box::new(end)));
        }
        self
    }
}

/// The turn in flight in the store: the parts of its record that differ between any two records of a conversation.
#[derive(Debug, PartialEq)]
pub(in crate::session) struct StoredTurnFingerprint {
    turn: TurnId,
    lives: u32,
    orderly: bool,
    core: Arc<str>,
}

impl StoredTurnFingerprint {
    /// Returns the turn in flight after this record was stored.
    pub(in crate::session) fn of(record: &TurnRecord) -> Self {
        let TurnRecord { turn, lives, orderly, core, .. } = record;
        Self { turn: *turn, lives: *lives, orderly: *orderly, core: Arc::clone(core) }
    }

    /// Returns the turn in flight of a loaded conversation with this head. A turn on another head is outdated, and not
    /// in flight any more.
    pub(in crate::session) fn of_stored(turn: Option<&StoredTurn>, head: Option<NodeId>) -> Option<Self> {
        turn.filter(|turn| turn.is_on(head)).map(|turn| Self::of(&turn.record))
    }
}

impl SaveTracker {
    /// Notes the turn in flight after a write has succeeded. `head` is the stored head before the write.
    pub(super) fn flight_written(&mut self, job: &WriteJob, head: Option<NodeId>) {
        match job {
            (_, Change::Commit(commit)) => {
                if commit.ends_turn(head) {
                    self.flight = None;
                }
                if let Some(TurnChange::Record(record)) = commit.turn.as_deref()
                    && record.head == commit.head
                {
                    self.flight = Some(Box::new(StoredTurnFingerprint::of(record)));
                }
            }
            (_, Change::Create(_) | Change::Erase(_)) => self.flight = None,
            (_, Change::State(_) | Change::Schedule(_)) => {}
        }
    }
}

impl SessionCore {
    /// Notes the usage of a completed request.
    pub(in crate::session::core) fn spent_by_step(&mut self, response: &Response) {
        self.spent_by_request(&response.usage_row());
    }

    /// Notes the usage of a request of the turn in flight. A request without usage gets no row, unless its usage is
    /// unknown because its process ended. The session of a sub-agent stores the rows of its own requests.
    pub(in crate::session::core) fn spent_by_request(&mut self, row: &UsageRow) {
        if row.is_empty() || row.conversation.is_some() {
            return;
        }
        self.used += row.usage;
        if self.keeps_usage {
            self.rows.push(row.clone());
        }
    }

    /// Records the usage of a turn that has ended with this event, and how its run has ended. `through` is the turn's
    /// last node, if the turn was committed. `continues` states whether a record of the next turn follows.
    pub(in crate::session::core) fn turn_ended(
        &mut self,
        event: &Event,
        through: Option<NodeId>,
        continues: bool,
        effects: &mut Effects,
    ) {
        let rows = std::mem::take(&mut self.rows);
        self.settle_prompts(through, effects);
        let end = self.stored_end(event, through, continues);
        let end = match end {
            Some(end) => StoredRunEndChange::Ended(Box::new(end)),
            None if event.adds_nodes() => StoredRunEndChange::Complete,
            None => StoredRunEndChange::Keep,
        };
        self.record(UnsavedRunRecords { rows, end, turn: None });
        self.outcomes_recorded();
    }

    /// Adds a row for a request that belongs to no turn.
    pub(in crate::session) fn spent(
        &mut self,
        row: UsageRow,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        self.used += row.usage;
        effects.push(SessionEffect::Emit(SessionEvent::Usage(Arc::new(row.clone()))));
        if self.keeps_usage {
            self.record(UnsavedRunRecords { rows: vec![row], ..UnsavedRunRecords::default() });
            self.save(env, effects);
        }
    }

    /// Returns the size in bytes of the usage, of the end of a run and of the turn in flight that are not in the store
    /// yet.
    pub(in crate::session::core) fn record_weight(&self) -> usize {
        let (mut in_flight_turn, mut in_flight_end) = (None, None);
        let in_flight = match self.saver.attempt.as_ref().map(|attempt| &*attempt.job) {
            Some((_, Change::Commit(commit))) => {
                let (end, turn) = match commit.turn.as_deref() {
                    Some(TurnChange::End(end)) => (Some(end), None),
                    Some(TurnChange::Record(turn)) => (None, Some(turn)),
                    None => (None, None),
                };
                (in_flight_turn, in_flight_end) = (turn, end);
                weight(commit.usage.as_ref().map_or(0, Vec::len), end, turn)
            }
            _ => 0,
        };
        let turns = in_flight_turn.into_iter().chain(self.saver.record.turn.as_deref());
        let pending = turns.flat_map(|turn| &turn.append);
        // The prompts of a run that has failed are in the tree, too.
        let ends = in_flight_end.into_iter().chain(self.saver.record.end.ended());
        let pending = pending.chain(ends.flat_map(|end| &end.unanswered)).map(|message| &message.content[..]);
        in_flight + self.saver.record.weight() - shared(pending, &Self::contents(&self.tree))
    }

    pub(in crate::session::core) fn record(&mut self, record: UnsavedRunRecords) {
        if !record.is_empty() {
            self.saver.wanted += 1;
        }
        self.saver.record = std::mem::take(&mut self.saver.record).then(record);
    }

    /// Returns the usage of all requests for this conversation, including those for discarded turns and for titles.
    pub(in crate::session) fn used(&self) -> Usage {
        self.used
    }
}

/// Returns the approximate size of this number of rows, of the end of a run and of the turn in flight, in bytes.
fn weight(rows: usize, end: Option<&RunEnd>, turn: Option<&TurnRecord>) -> usize {
    let of_turn = |turn: &TurnRecord| {
        turn.append.iter().map(|message| message.weight()).sum::<usize>() + turn.core.len()
    };
    rows.saturating_mul(size_of::<UsageRow>()) + end.map_or(0, RunEnd::weight) + turn.map_or(0, of_turn)
}

//! The stored form of a turn in flight.

mod decide;
mod stored;
mod summary;

pub(crate) use decide::Undecidable;
pub use stored::StoredTurn;
pub use summary::{TurnSummary, Turns};

use serde::{Deserialize, Serialize};

use super::Commit;
use crate::{
    run::{PendingUse, RunEnd, TurnRecord},
    tree::NodeId,
};

/// A change to the turn in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnChange {
    /// The turn is in flight, in this state.
    #[serde(deserialize_with = "TurnRecord::deserialize_any")]
    Record(TurnRecord),
    /// The run has ended. No turn is in flight any more.
    End(RunEnd),
}

impl Commit {
    crate::setters::setters! {
        /// Returns the same commit, which now also contains this record of the turn in flight.
        pub fn with_turn(self, record: TurnRecord) { self.turn = Some(Box::new(TurnChange::Record(record))) }

        /// Returns the same commit, which now also records this end of a run.
        pub fn with_run_end(self, end: RunEnd) { self.turn = Some(Box::new(TurnChange::End(end))) }
    }

    /// Returns whether the commit ends a turn in flight that an earlier commit has recorded on this head.
    pub(crate) fn ends_turn(&self, head: Option<NodeId>) -> bool {
        match self.turn.as_deref() {
            Some(TurnChange::Record(record)) => record.head != self.head,
            Some(TurnChange::End(_)) => true,
            None => !self.nodes.is_empty() || self.head != head,
        }
    }
}

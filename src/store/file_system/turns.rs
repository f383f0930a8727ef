//! Turns in flight.

use std::path::Path;

use super::{
    format::{Change, Stamp, StampedTurn, SummaryFile},
    log::{self, Log, Tail},
    place::ConversationFolder,
    read,
    summary::{self, Findings, in_parallel},
};
use crate::{
    message::Timestamp,
    run::TurnRecord,
    store::{
        Filter, Page, PendingApproval, StoreError, StoredTurn, Summary, TurnChange, TurnSummary, Turns,
        Version,
    },
    subscription::EventId,
};

/// The turn in flight after a write, as the write's line and the summary describe it.
pub(super) struct After {
    pub(super) stamped: Option<StampedTurn>,
    /// The open approvals, if they are known without reading the log.
    pub(super) approvals: Option<Vec<PendingApproval>>,
    /// Whether the write changes the open approvals.
    pub(super) asks: bool,
}

/// Returns the turn in flight after `change`, a write that results in `version`.
pub(super) fn after(
    log: &Log<'_>,
    tail: &Tail,
    change: &Change,
    version: Version,
) -> Result<After, StoreError> {
    let before = tail.stamp.turn;
    let open = |stamp: &Stamp| match stamp.turn {
        Some(StampedTurn { waiting: 1.., .. }) => {
            summary::read(log.place)?.approvals_of(stamp).map(<[_]>::to_vec)
        }
        _ => Some(Vec::new()),
    };
    let over = || After {
        stamped: None,
        approvals: Some(Vec::new()),
        asks: before.is_some_and(|turn| turn.waiting > 0),
    };
    let Change::Commit(commit) = change else {
        return Ok(After { stamped: before, approvals: open(&tail.stamp), asks: false });
    };
    match commit.turn.as_deref() {
        Some(TurnChange::Record(record)) if record.head == commit.head => {
            let before = before.filter(|before| before.id == record.turn);
            // A turn on another head is void, so its record begins the turn again.
            let before = if before.is_some() && log.head(tail)? == commit.head { before } else { None };
            Ok(recorded(before, open(&tail.stamp), record, version))
        }
        None if before.is_some() && commit.nodes.is_empty() && log.head(tail)? == commit.head => {
            Ok(After { stamped: before, approvals: open(&tail.stamp), asks: false })
        }
        _ => Ok(over()),
    }
}

/// Returns the turn after `record`. `before` is the same turn before this record. `open` contains its open approvals, if
/// they are known.
fn recorded(
    before: Option<StampedTurn>,
    open: Option<Vec<PendingApproval>>,
    record: &TurnRecord,
    version: Version,
) -> After {
    let recorded = Timestamp::now();
    let mut record = record.clone();
    record.normalise();
    let waiting = record.waiting_count();
    // Approvals that were already open keep their age. A turn without an earlier record has no open approvals.
    let open = if before.is_some() { open } else { Some(Vec::new()) };
    let approvals = if waiting == 0 {
        Some(Vec::new())
    } else {
        open.as_ref().map(|open| {
            let approvals = record.waiting.into_iter().map(|waiting| {
                let earlier = open.iter().find(|open| open.waiting.tool_use.id == waiting.tool_use.id);
                PendingApproval::new(waiting, earlier.map_or(recorded, |earlier| earlier.since))
            });
            approvals.collect()
        })
    };
    let had = before.map_or(0, |before| before.waiting);
    let asks = (had > 0 || waiting > 0) && (approvals.is_none() || approvals != open);
    let stamped = StampedTurn {
        id: record.turn,
        since: before.map_or(recorded, |before| before.since),
        recorded,
        waiting,
        asked: before.filter(|_| !asks).map_or(version, |before| before.asked),
    };
    After { stamped: Some(stamped), approvals, asks }
}

/// Returns the open approvals at the end of the log. Reads the whole log if the summary does not contain them.
pub(super) fn approvals(
    log: &Log<'_>,
    tail: &Tail,
    saved: Option<&SummaryFile>,
) -> Result<Vec<PendingApproval>, StoreError> {
    if tail.stamp.turn.is_none_or(|turn| turn.waiting == 0) {
        return Ok(Vec::new());
    }
    if let Some(approvals) = saved.and_then(|saved| saved.approvals_of(&tail.stamp)) {
        return Ok(approvals.to_vec());
    }
    let turn = read::replay(log)?.and_then(|replay| replay.stored.turn);
    Ok(turn.map(|turn| turn.approvals()).unwrap_or_default())
}

/// Returns the list entry of the conversation's turn in flight, if there is one.
fn entry(log: &Log<'_>, summary: &Summary) -> Result<Option<TurnSummary>, StoreError> {
    let Some(tail) = log.tail()? else { return Ok(None) };
    let Some(turn) = tail.stamp.turn else { return Ok(None) };
    let Some(record) = log.last_record(&tail)? else { return Ok(None) };
    let approvals = approvals(log, &tail, summary::read(log.place).as_ref())?;
    let stored = StoredTurn::fold(None, record, turn.recorded, tail.stamp.version);
    Ok(Some(TurnSummary {
        labels: summary.labels.clone(),
        since: turn.since,
        approvals,
        ..TurnSummary::new(log.place.id().clone(), &stored)
    }))
}

/// The number of conversations for each thread that makes a list.
const SHARE: usize = 500;

/// Lists turns in flight.
pub(super) fn list(
    folder: &Path,
    findings: &Findings,
    which: Turns,
    filter: &Filter,
    page: &Page,
) -> Result<Vec<TurnSummary>, StoreError> {
    let now = Timestamp::now();
    let all = in_parallel(&summary::ids(folder)?, SHARE, |share| {
        let summaries = summary::summarise_all(folder, findings, share)?;
        let summaries =
            summaries.iter().filter(|summary| summary.in_flight && filter.matches(&summary.labels));
        let entries = summaries.map(|summary| {
            let place = ConversationFolder::new(folder, &summary.id);
            match log::read_log(&place, |log| entry(log, summary)) {
                // The log can't be read or was deleted meanwhile, so leave the conversation out. A call that loads the
                // conversation reports the problem.
                Err(
                    StoreError::Damaged { .. }
                    | StoreError::UnknownFormat { .. }
                    | StoreError::NotFound { .. },
                ) => Ok(None),
                Err(error) if summary::problem(&place, &error).is_some() => Ok(None),
                entry => entry,
            }
        });
        let entries = entries.filter_map(Result::transpose);
        entries.collect()
    })?;
    let listed = all.into_iter().filter_map(|entry| entry.listed(which, now));
    Ok(TurnSummary::page(listed.collect(), page))
}

/// Records the last event of a session's feed in the summary. The log must be locked.
pub(super) fn mark(log: &Log<'_>, mark: EventId) -> Result<(), StoreError> {
    let Some(tail) = log.tail()? else { return Ok(()) };
    let saved = summary::read(log.place);
    let (mut summary, _) = summary::current(log, &tail, saved.as_ref())?;
    summary.mark = Some(mark);
    summary::save(log.place, &summary);
    Ok(())
}

/// Returns the mark in the summary, if the summary describes this version of the conversation.
pub(super) fn mark_at(place: &ConversationFolder<'_>, version: Version) -> Option<EventId> {
    summary::read(place).filter(|saved| saved.version == version)?.mark
}

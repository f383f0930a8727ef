//! The erasure of messages.

use std::fs::File;

use super::{
    Durability,
    compact::{self, Piece},
    format::{Change, Compacted, Record, Stamp, SummaryFile, Tags, is_kept},
    lines::Lines,
    log::Log,
    place::ConversationFolder,
    read, summary,
    write::{Ready, now_after, prepare},
};
use crate::{
    store::{Commit, StoreError, Version, Write, WriteId},
    tree::{Erased, Node},
};

/// Rewrites the log without these nodes. The last line of the new log records the erasure.
pub(super) fn erase(
    place: &ConversationFolder<'_>,
    file: &File,
    write: &Write,
    erased: &Erased,
    durability: Durability,
) -> Result<Version, StoreError> {
    let (log, tail, version) = match prepare(place, file, write, durability)? {
        Ready::Next { log, tail, version } => (log, tail, version),
        Ready::Repeated(version) => return Ok(version),
    };
    let replay = read::replay(&log)?.ok_or_else(|| StoreError::NotFound { id: place.id().clone() })?;
    let mut stored = replay.stored;
    stored.erase(erased);
    let stamp = Stamp {
        version,
        write: write.id,
        time: now_after(&tail),
        state_version: tail.stamp.state_version,
        turn: None,
    };
    let Rest { kept, emptied } = without(&log, erased)?;
    // The last line contains the combined effect of the writes whose lines were removed, and of the erasure itself.
    let writes = replay.spare.into_iter().chain(emptied).chain([(version, write.id)]);
    let last = Change::Compacted(Box::new(Compacted::new(&stored, writes.collect())));
    let last = Record::new(stamp, &last).encode(place.id())?;
    let header = log.header.compacted().upgraded();
    let pieces = [Piece::New(header.encode())].into_iter().chain(kept).chain([Piece::New(last)]);
    let (_locked, len) = compact::replace(&log, "erasing messages from", pieces)?;
    summary::save(place, &SummaryFile::new(&header, &stamp, Tags::of(&stored.state), Vec::new(), len));
    Ok(version)
}

/// The kept lines after an erasure.
#[derive(Default)]
struct Rest {
    kept: Vec<Piece>,
    /// The writes whose lines are removed.
    emptied: Vec<(Version, WriteId)>,
}

/// Returns the kept lines without the erased nodes.
fn without(log: &Log<'_>, erased: &Erased) -> Result<Rest, StoreError> {
    let mut lines = Lines::of(log)?;
    let mut rest = Rest::default();
    loop {
        let record = match lines.next()? {
            Some(record) => Record::parse(record),
            None => return Ok(rest),
        };
        let record = record.map_err(|problem| lines.damaged(problem))?;
        let stamp = record.stamp();
        let Change::Commit(mut commit) = record.change else { continue };
        if !is_kept(&commit) {
            continue;
        }
        if !remove(&mut commit, erased) {
            rest.kept.push(Piece::Old(lines.span.clone()));
        } else if is_kept(&commit) {
            let line = Record::new(stamp, &Change::Commit(commit)).encode(log.place.id())?;
            rest.kept.push(Piece::New(line));
        } else {
            rest.emptied.push((stamp.version, stamp.write));
        }
    }
}

/// Removes three parts from a commit: the erased nodes, the record of a turn, and the end of a run. A record or an end
/// may repeat an erased message, and the last line of the log replaces both. Keeps the usage of the nodes. Returns
/// whether the commit has changed.
fn remove(commit: &mut Commit, erased: &Erased) -> bool {
    let is_erased = |node: &Node| erased.nodes.binary_search(&node.id()).is_ok();
    if commit.turn.is_none() && !commit.nodes.iter().any(is_erased) {
        return false;
    }
    commit.usage = Some(commit.usage_rows());
    commit.turn = None;
    commit.nodes.retain(|node| !is_erased(node));
    true
}

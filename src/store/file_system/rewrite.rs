//! Rewrites a log without erased content, or without the records of turns that have ended.
//!
//! Each line stays, with its version and write, so that repeated writes are still found. The new log is written next to
//! the old one, synced, and renamed into place, and the folder is synced. So after a crash between any two steps, the
//! log is the old one or the new one. Both logs are locked meanwhile.

use std::{
    collections::HashSet,
    io::{BufWriter, Write as _},
    rc::Rc,
};

use super::{
    log::{Log, Replay},
    place::try_lock,
    record::{LogChange, Parts, RecordEnd, encode_change, encode_line, file_names},
};
use crate::{
    store::{StateChange, StoreError, StoredState, TitleBy, TurnChange, attachments::Files},
    tree::Erased,
};

/// The number of bytes in records of ended turns above which a load rewrites the log.
const MANY: u64 = 1024 * 1024;

/// Rewrites the log if more than half of it consists of records of ended turns. Called after the log was read. If
/// another writer holds the lock or the medium is read-only, nothing changes, and a later load tries again.
pub(super) fn tidy(log: &Log<'_>, replay: &Replay) {
    // While a turn is in flight, its records stay as they are, because a later version of the crate may have written
    // them.
    if replay.stored.turn.is_some() || replay.void <= MANY || replay.void <= replay.end / 2 {
        return;
    }
    let tidied = (|| {
        if try_lock(&log.place.log, &log.file)? && log.current_len()? == replay.end {
            rewrite(log, &replay.files, None, &[])?;
        }
        Ok::<(), StoreError>(())
    })();
    if let Err(error) = tidied {
        let error: &dyn std::error::Error = &error;
        tracing::debug!(error, "a log could not be compacted");
    }
}

/// Replaces the log, which must be locked and whose turns have ended. `files` are those of the log, and `last` is a line
/// to add.
pub(super) fn rewrite(
    log: &Log<'_>,
    files: &Rc<Files>,
    erased: Option<&Erased>,
    last: &[u8],
) -> Result<(), StoreError> {
    let action = if erased.is_some() { "erasing messages from" } else { "compacting" };
    let failed = |error| log.place.failed(action, error);
    log.place.replace_log(&log.file, action, |new| {
        let mut new = BufWriter::new(new);
        // A line can contain a file to which only later lines refer. So each file moves to the first line that refers to
        // it now.
        let mut written = HashSet::new();
        let mut lines = log.lines()?;
        while let Some(record) = lines.next()? {
            let parsed =
                Parts::of(record).and_then(|parts| Ok((parts.change(files)?, RecordEnd::parse(record)?)));
            let before = file_names(record);
            let (mut change, mut end) = parsed.map_err(|problem| lines.damaged(problem))?;
            if erased.is_some() {
                end.entry.clear();
            }
            let is_changed = strip(&mut change, erased) || erased.is_some();
            let (change, mut used) = encode_change(&change, files);
            used.retain(|sha256, _| written.insert(sha256.clone()));
            if is_changed || used.keys().ne(&before) {
                new.write_all(&encode_line(&change, &used, &end)?).map_err(failed)?;
            } else {
                new.write_all(&lines.line).map_err(failed)?;
            }
        }
        new.write_all(last).and_then(|()| new.flush()).map_err(failed)
    })
}

/// Removes the record of a turn from a change. In an erasure, also removes the erased nodes, and the parts that the
/// line of the erasure contains: states and ends of runs. Returns whether the change had a record.
fn strip(change: &mut LogChange, erased: Option<&Erased>) -> bool {
    let mut had_record = false;
    if let LogChange::Commit(commit) = change {
        had_record = commit.turn.take_if(|turn| matches!(**turn, TurnChange::Record(_))).is_some();
    }
    let Some(erased) = erased else { return had_record };
    match change {
        LogChange::Create(state) => **state = StoredState::default(),
        LogChange::State(change) => *change = StateChange::Title { title: None, by: TitleBy::Derived },
        LogChange::Erase(erasure) => (erasure.state, erasure.last_run) = (StoredState::default(), None),
        LogChange::Commit(commit) => {
            // The usage of the erased nodes stays.
            commit.usage = Some(commit.usage_rows());
            commit.nodes.retain(|node| erased.nodes.binary_search(&node.id()).is_err());
            (commit.state, commit.turn) = (None, None);
        }
        LogChange::Mark(_) => {}
    }
    had_record
}

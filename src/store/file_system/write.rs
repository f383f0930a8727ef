//! Writes to a locked log.

use std::{
    collections::HashSet,
    io::{BufWriter, Write as _},
    rc::Rc,
};

use super::{
    Durability, deleted,
    log::{ConversationLog, ReplayedLog, append},
    place::{sync_folder, try_lock},
    record::{
        LogChange, LogRecordFields, LogRecordParts, LogRecordTrailer, encode_change, encode_line,
        encode_record, file_names,
    },
};
use crate::{
    store::{
        StateChange, StoreError, StoredState, TitleBy, TurnChange, Version, Write, WriteId,
        attachments::AttachmentCodec,
    },
    subscription::EventId,
    tree::Erased,
};

/// Performs a write.
pub(super) fn write(
    log: &ConversationLog<'_>,
    write: &Write,
    change: LogChange,
    durability: Durability,
) -> Result<Version, StoreError> {
    match change {
        LogChange::Create(_) => create(log, write.id, &change, durability),
        change => self::change(log, write, change, durability),
    }
}

/// Creates a conversation in a new log, or in a log whose creation was interrupted. If this fails, the log is removed.
/// If the log already contains a conversation, only a repetition of the write that created it succeeds.
fn create(
    log: &ConversationLog<'_>,
    write: WriteId,
    change: &LogChange,
    durability: Durability,
) -> Result<Version, StoreError> {
    let place = log.place;
    let exists = || StoreError::AlreadyExists { id: place.id.clone() };
    let tail = log.tail().map_err(|error| match error {
        // The file belongs to another id that the file system considers equal, so the new id counts as taken.
        StoreError::NotFound { .. } => exists(),
        error => error,
    })?;
    if tail.is_some() {
        return match log.find(|_| true)? {
            Some(first) if first.write == write => settle(log, durability).map(|()| first.version),
            _ => Err(exists()),
        };
    }
    let end = LogRecordTrailer::first(place.id.clone(), write, change);
    let fill = || {
        place.remove_new_log()?;
        append(&place.log, &log.file, 0, true, &encode_record(change, &end)?, durability)?;
        sync_folder(place.folder, durability)
    };
    fill().inspect_err(|_| {
        // Remove the log, because its creation was not acknowledged, and nobody else can use the log while it is
        // locked.
        let _ = place.remove_log();
    })?;
    Ok(end.stamp.version)
}

/// Appends a change, or rewrites the log for an erasure.
fn change(
    log: &ConversationLog<'_>,
    write: &Write,
    mut change: LogChange,
    durability: Durability,
) -> Result<Version, StoreError> {
    let place = log.place;
    let tail = log.tail()?.ok_or_else(|| place.not_found())?;
    let last = tail.last.stamp;
    let current = last.version;
    if write.base != current {
        let next = write.base.next();
        let is_it = |stamp: &LogRecordFields| stamp.version == next && stamp.write == write.id;
        return if is_it(&last) || next < current && log.find(is_it)?.is_some() {
            settle(log, durability).map(|()| next)
        } else {
            Err(StoreError::Conflict { id: place.id.clone(), current })
        };
    }
    let mut kept = None;
    if let LogChange::Erase(erasure) = &mut change {
        // The line of the erasure contains these parts, so that the lines before it need not.
        let mut replay = log.replay(&Rc::default(), |_| {})?.ok_or_else(|| place.not_found())?;
        replay.stored.erase(&erasure.erased);
        (erasure.state, erasure.last_run) = (replay.stored.state, replay.stored.last_run);
        kept = Some(replay.files);
    }
    let end = tail.last.next(write.id, &change);
    if end.stamp.version == current {
        let problem = "its version is the highest possible version".to_owned();
        return Err(StoreError::Unstorable { id: place.id.clone(), problem });
    }
    if let (LogChange::Erase(erasure), Some(files)) = (&change, kept) {
        rewrite(log, &files, Some(&erasure.erased), &encode_record(&change, &end)?)?;
        return Ok(end.stamp.version);
    }
    let (change, mut files) = encode_change(&change, &AttachmentCodec::dividing());
    if !files.is_empty() {
        let names = log.file_names(tail.end)?;
        files.retain(|sha256, _| !names.contains(sha256));
    }
    let line = encode_line(&change, &files, &end)?;
    append(&place.log, &log.file, tail.end, tail.torn, &line, durability)?;
    Ok(end.stamp.version)
}

/// Syncs a write that is already in the log. The process that wrote it may have died before the write was durable.
fn settle(log: &ConversationLog<'_>, durability: Durability) -> Result<(), StoreError> {
    durability.sync(&log.file).map_err(|error| log.place.failed("syncing", error))?;
    sync_folder(log.place.folder, durability)
}

/// Appends the last event of a session's feed. The line is synced like a write. Otherwise a power failure during the
/// next write could leave an incomplete line in the middle of the log.
pub(super) fn mark(
    log: &ConversationLog<'_>,
    mark: EventId,
    durability: Durability,
) -> Result<(), StoreError> {
    let Some(tail) = log.tail()? else { return Ok(()) };
    let line = encode_record(&LogChange::Mark(mark), &tail.last)?;
    append(&log.place.log, &log.file, tail.end, tail.torn, &line, durability)
}

/// Deletes a conversation, even if it can't be read. Keeps the sums of its usage. Returns `false` if the file for these
/// sums is locked, and nothing was deleted.
pub(super) fn delete(log: &ConversationLog<'_>, durability: Durability) -> Result<bool, StoreError> {
    let place = log.place;
    match deleted::ledger(log) {
        // The log belongs to another id that the file system considers equal, so there is nothing to delete.
        Err(StoreError::NotFound { .. }) => return Ok(true),
        Err(error) => tracing::warn!(
            conversation = %place.id,
            error = &error as &dyn std::error::Error,
            "the usage of a deleted conversation is lost, because its log can't be read"
        ),
        Ok(Some(ledger)) if !ledger.rows.is_empty() => {
            if !deleted::keep(place.folder, &ledger, durability)? {
                return Ok(false);
            }
        }
        Ok(_) => {}
    }
    // The log is removed last, so that a repetition of an interrupted delete finds the log.
    place.remove_new_log()?;
    place.remove_log()?;
    sync_folder(place.folder, durability)?;
    Ok(true)
}

// Rewrites a log without erased content, or without the records of turns that have ended.
//
// Each line stays, with its version and write, so that repeated writes are still found. The new log is written next to
// the old one, synced, and renamed into place, and the folder is synced. So after a crash between any two steps, the
// log is the old one or the new one. Both logs are locked meanwhile.

/// The number of bytes in records of ended turns above which a load rewrites the log.
const MANY: u64 = 1024 * 1024;

/// Rewrites the log if more than half of it consists of records of ended turns. Called after the log was read. If
/// another writer holds the lock or the medium is read-only, nothing changes, and a later load tries again.
pub(super) fn tidy(log: &ConversationLog<'_>, replay: &ReplayedLog) {
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
fn rewrite(
    log: &ConversationLog<'_>,
    files: &Rc<AttachmentCodec>,
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
            let parsed = LogRecordParts::of(record)
                .and_then(|parts| Ok((parts.change(files)?, LogRecordTrailer::parse(record)?)));
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

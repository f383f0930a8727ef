//! Writes to a locked log.

use std::fs::File;

use super::{
    Durability, compact,
    format::{Change, Header, Record, Stamp, SummaryFile, Tags},
    ledger::KeptFile,
    log::{Log, Tail, append},
    place::ConversationFolder,
    read, summary, turns,
};
use crate::{
    message::Timestamp,
    store::{StoreError, StoredState, Version, Write, WriteId},
};

/// Creates a conversation in a new log, or in a log whose creation was interrupted. If this fails, the log is removed.
/// If the log already contains a conversation, only a repetition of the write that created it succeeds.
pub(super) fn create(
    place: &ConversationFolder<'_>,
    file: &File,
    write: WriteId,
    state: StoredState,
    durability: Durability,
) -> Result<Version, StoreError> {
    let exists = || StoreError::AlreadyExists { id: place.id().clone() };
    let log = Log::open(place, file).map_err(|error| match error {
        // The file belongs to another id that the file system considers equal, so the new id counts as taken.
        StoreError::NotFound { .. } => exists(),
        error => error,
    })?;
    if let Some(log) = log
        && log.tail()?.is_some()
    {
        return match read::first_write(&log)? {
            Some((version, id)) if id == write => {
                settle(place, file, durability)?;
                Ok(version)
            }
            _ => Err(exists()),
        };
    }
    fill(place, file, write, state, durability).inspect_err(|_| {
        // Remove the log, because its creation was not acknowledged, and nobody else can use the log while it is
        // locked.
        let _ = place.remove_log();
    })
}

fn fill(
    place: &ConversationFolder<'_>,
    file: &File,
    write: WriteId,
    state: StoredState,
    durability: Durability,
) -> Result<Version, StoreError> {
    // Files that remain from an earlier conversation with this id must not be mistaken for files of the new
    // conversation.
    place.remove_beside()?;
    let header = Header::new(place.id().clone(), Timestamp::now());
    let version = Version::first();
    let stamp = Stamp { version, write, time: header.created, state_version: version, turn: None };
    let first = header.encode();
    let tags = Tags::of(&state);
    let record = Record::new(stamp, &Change::Create(Box::new(state))).encode(place.id())?;
    let lines = [first, record].concat();
    append(&place.log(), file, 0, true, &lines, durability)?;
    place.sync_folder(durability)?;
    let summary = SummaryFile::new(&header, &stamp, tags, Vec::new(), lines.len() as u64);
    summary::save(place, &summary);
    Ok(version)
}

/// A locked log before a write to it.
pub(super) enum Ready<'a> {
    /// The write is based on the last write in the log, and can be appended.
    Next { log: Log<'a>, tail: Tail, version: Version },
    /// The log already contains this write, which resulted in this version.
    Repeated(Version),
}

/// Compares the base of a write with the log.
pub(super) fn prepare<'a>(
    place: &'a ConversationFolder<'a>,
    file: &'a File,
    write: &Write,
    durability: Durability,
) -> Result<Ready<'a>, StoreError> {
    let not_found = || StoreError::NotFound { id: place.id().clone() };
    let log = Log::open(place, file)?.ok_or_else(not_found)?;
    let tail = log.tail()?.ok_or_else(not_found)?;
    let current = tail.stamp.version;
    if write.base != current {
        let next = write.base.next();
        let repeated = if next == current {
            tail.stamp.write == write.id
        } else {
            next < current && read::write_of(&log, next)? == Some(write.id)
        };
        if repeated {
            settle(place, file, durability)?;
            return Ok(Ready::Repeated(next));
        }
        return Err(StoreError::Conflict { id: place.id().clone(), current });
    }
    let version = current.next();
    if version == current {
        let problem = "its version is the highest possible version".to_owned();
        return Err(StoreError::Unstorable { id: place.id().clone(), problem });
    }
    Ok(Ready::Next { log, tail, version })
}

/// Appends a change. If the log has an older format that does not have this change, converts the log first.
pub(super) fn change(
    place: &ConversationFolder<'_>,
    file: &File,
    write: &Write,
    change: &Change,
    durability: Durability,
) -> Result<Version, StoreError> {
    let (log, mut tail, version) = match prepare(place, file, write, durability)? {
        Ready::Next { log, tail, version } => (log, tail, version),
        Ready::Repeated(version) => return Ok(version),
    };
    let tags = change.tags();
    let turn = turns::after(&log, &tail, change, version)?;
    let stamp = Stamp {
        version,
        write: write.id,
        time: if is_update(&log, &tail, change)? { now_after(&tail) } else { tail.stamp.time },
        state_version: if tags.is_some() { version } else { tail.stamp.state_version },
        turn: turn.stamped,
    };
    let line = Record::new(stamp, change).encode(place.id())?;
    // The saved summary, if its title and labels are those at the end of the log. Parts that the write does not change
    // are copied from this summary.
    let saved = || summary::read(place).filter(|saved| saved.has_tags_of(&tail.stamp));
    let tags = match tags {
        Some(tags) => tags.after(|| Some(saved()?.tags())),
        None if turn.asks => saved().map(|saved| saved.tags()),
        None => None,
    };
    let upgraded;
    let (file, header) = if log.header.allows(change) {
        (file, log.header)
    } else {
        let (new, len) = compact::upgrade(&log, &tail)?;
        (tail.end, tail.torn) = (len, false);
        upgraded = new;
        (&upgraded, log.header.upgraded())
    };
    append(&place.log(), file, tail.end, tail.torn, &line, durability)?;
    // If the title, the labels or the approvals are not known, no summary is saved, and the next list reads the log.
    if let Some((tags, approvals)) = tags.zip(turn.approvals) {
        let end = tail.end + line.len() as u64;
        summary::save(place, &SummaryFile::new(&header, &stamp, tags, approvals, end));
    }
    Ok(version)
}

/// Returns the time for a write that follows the end of the log. The clock may have been set back since the last write,
/// so the time is never earlier than that of the last write.
pub(super) fn now_after(tail: &Tail) -> Timestamp {
    Timestamp::now().max(tail.stamp.time)
}

/// Returns whether the change counts as a write in lists. A commit that only records usage, the turn in flight or the
/// end of a run does not count.
fn is_update(log: &Log<'_>, tail: &Tail, change: &Change) -> Result<bool, StoreError> {
    match change {
        // The first check ignores the head. The stored head is read from the log only if nothing else in the commit is
        // an update.
        Change::Commit(commit) => Ok(commit.is_update(commit.head) || commit.is_update(log.head(tail)?)),
        _ => Ok(true),
    }
}

/// Syncs a write that is already in the log. The process that wrote it may have died before the write was durable.
fn settle(place: &ConversationFolder<'_>, file: &File, durability: Durability) -> Result<(), StoreError> {
    durability.sync(file).map_err(|error| place.failed("syncing", error))?;
    place.sync_folder(durability)
}

/// Deletes a conversation, even if it can't be read. Keeps the sums of its usage. Returns `false` if the file for these
/// sums is locked, and nothing was deleted.
pub(super) fn delete(
    place: &ConversationFolder<'_>,
    file: &File,
    durability: Durability,
) -> Result<bool, StoreError> {
    let log = match Log::open(place, file) {
        // The log belongs to another id that the file system considers equal, so there is nothing to delete.
        Err(StoreError::NotFound { .. }) => return Ok(true),
        log => log,
    };
    let used = log.and_then(|log| log.map_or(Ok(None), |log| read::ledger(&log)));
    let used = used.unwrap_or_else(|error| {
        tracing::warn!(
            conversation = %place.id(),
            error = &error as &dyn std::error::Error,
            "the usage of a deleted conversation is lost, because its log can't be read"
        );
        None
    });
    let kept = match used.filter(|used| !used.rows.is_empty()) {
        Some(used) => match KeptFile::lock(place.folder())? {
            Some(kept) => Some((kept, used)),
            None => return Ok(false),
        },
        None => None,
    };
    if let Some((kept, used)) = &kept {
        kept.keep(used, durability)?;
    }
    // The log is removed first, because the other files are meaningless without it.
    place.remove_log()?;
    place.remove_beside()?;
    place.sync_folder(durability)?;
    if let Some((kept, used)) = kept {
        kept.removed(used.first);
    }
    Ok(true)
}

//! Writes to a locked log.

use std::fs::File;

use super::{
    Durability,
    format::{Change, Header, Record, Stamp, SummaryFile},
    log::{Log, append},
    place::ConversationFolder,
    read, summary,
};
use crate::{
    message::Timestamp,
    store::{StoreError, StoredState, Version, Write, WriteId},
};

/// Fills a new log, or a log whose creation was interrupted. If this fails, the log is removed.
pub(super) fn create(
    place: &ConversationFolder<'_>,
    file: &File,
    write: WriteId,
    state: StoredState,
    durability: Durability,
) -> Result<Version, StoreError> {
    let exists = || StoreError::AlreadyExists { id: place.id().clone() };
    let log = Log::open(place, file).map_err(|error| match error {
        // The file exists under an id that the file system considers equal.
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
        // The creation of the log was not acknowledged, and nobody else can use the log while it is locked.
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
    let stamp = Stamp { version, write, time: header.created, state_version: version };
    let first = header.encode();
    let title = state.title.clone();
    let record = Record::new(stamp, &Change::Create(Box::new(state))).encode(place.id())?;
    let lines = [first, record].concat();
    append(place, file, 0, true, &lines, durability)?;
    place.sync_folder(durability)?;
    let summary = SummaryFile::new(&header, &stamp, title, lines.len() as u64);
    summary::save(place, &summary);
    Ok(version)
}

/// Appends a change.
pub(super) fn change(
    place: &ConversationFolder<'_>,
    file: &File,
    write: &Write,
    change: &Change,
    durability: Durability,
) -> Result<Version, StoreError> {
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
            return Ok(next);
        }
        return Err(StoreError::Conflict { id: place.id().clone(), current });
    }
    let version = current.next();
    if version == current {
        let problem = "its version is the highest possible version".to_owned();
        return Err(StoreError::Unstorable { id: place.id().clone(), problem });
    }
    let title = change.title();
    let stamp = Stamp {
        version,
        write: write.id,
        // The clock may have been set back since the previous write.
        time: Timestamp::now().max(tail.stamp.time),
        state_version: if title.is_some() { version } else { tail.stamp.state_version },
    };
    let line = Record::new(stamp, change).encode(place.id())?;
    append(place, file, tail.end, tail.torn, &line, durability)?;
    if let Some(title) = title {
        let end = tail.end + line.len() as u64;
        summary::save(place, &SummaryFile::new(&log.header, &stamp, title.clone(), end));
    }
    Ok(version)
}

/// Syncs a write that is already in the log. The process that wrote it may have died before the write was durable.
fn settle(place: &ConversationFolder<'_>, file: &File, durability: Durability) -> Result<(), StoreError> {
    durability.sync(file).map_err(|error| place.failed("syncing", error))?;
    place.sync_folder(durability)
}

/// Deletes a conversation, even if it can't be read.
pub(super) fn delete(
    place: &ConversationFolder<'_>,
    file: &File,
    durability: Durability,
) -> Result<(), StoreError> {
    if let Err(StoreError::NotFound { .. }) = Log::open(place, file) {
        // The log belongs to a different id that the file system considers equal.
        return Ok(());
    }
    // The log is removed first, because the other files are meaningless without it.
    place.remove_log()?;
    place.remove_beside()?;
    place.sync_folder(durability)
}

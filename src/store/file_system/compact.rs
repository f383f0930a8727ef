//! Rewrites a log: without the content that later lines replaced, or in the current format.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write as _},
    ops::Range,
};

use super::{
    Durability,
    format::{Change, Compacted, Header, Record, Stamp, SummaryFile, Tags, strip},
    line,
    log::{Log, Tail, try_lock},
    read::Replay,
    summary,
};
use crate::store::StoreError;

/// The number of replaceable bytes above which a compaction is worthwhile.
const WORTHWHILE: u64 = 64 * 1024;

/// Rewrites the log if the lines that are not [kept](Replay::kept) outweigh the kept lines, and updates the summary.
/// Called after the log was read. If another writer holds the lock or the medium is read-only, nothing changes, and a
/// later load tries again.
pub(super) fn tidy(log: &Log<'_>, replay: &Replay) {
    let header = log.header.compacted();
    // While a turn is in flight, its records stay as they are, because a later version of the crate may have written
    // them.
    let is_due = replay.stored.turn.is_none() && outgrown(replay);
    let lines = is_due.then(|| compacted(log, &header, replay)).flatten();
    let tags = Tags::of(&replay.stored.state);
    let approvals = replay.stored.turn.as_ref().map(|turn| turn.approvals()).unwrap_or_default();
    let saved = summary::read(log.place);
    let current = SummaryFile::new(&log.header, &replay.last, tags.clone(), approvals, replay.end);
    let current = current.with_mark_of(saved.as_ref());
    if lines.is_none() && saved.as_ref() == Some(&current) {
        return;
    }
    let tidied = (|| {
        if !try_lock(&log.place.log(), log.file)? || log.place.is_gone(log.file)? || !is_current(log, replay)?
        {
            return Ok(());
        }
        if let Some((first, last)) = lines {
            let kept = replay.kept.iter().map(|span| {
                if replay.records.contains(span) {
                    without_record(log, span).map(Piece::New)
                } else {
                    Ok(Piece::Old(span.clone()))
                }
            });
            let kept = kept.collect::<Result<Vec<_>, _>>()?;
            let pieces = [Piece::New(first)].into_iter().chain(kept).chain([Piece::New(last)]);
            let (_locked, len) = replace(log, "compacting", pieces)?;
            let summary = SummaryFile::new(&header, &replay.last, tags, Vec::new(), len);
            summary::save(log.place, &summary.with_mark_of(saved.as_ref()));
        } else {
            summary::save(log.place, &current);
        }
        log.file.unlock().map_err(|error| log.place.failed("unlocking", error))
    })();
    if let Err(error) = tidied {
        let error: &dyn std::error::Error = &error;
        tracing::debug!(error, "a log could not be compacted; it stays as it is");
    }
}

/// Returns whether the log still ends at the offset up to which it was read, and with the same write.
fn is_current(log: &Log<'_>, replay: &Replay) -> Result<bool, StoreError> {
    let tail = log.tail()?;
    Ok(log.len()? == replay.end && tail.is_some_and(|tail| tail.stamp == replay.last))
}

/// Returns the line at these offsets without its record of a turn that has ended.
fn without_record(log: &Log<'_>, span: &Range<u64>) -> Result<Vec<u8>, StoreError> {
    let damaged = |problem: String| StoreError::damaged(log.place.log_name(), problem);
    let line = log.read(span.clone())?;
    let record = line::record(&line, span.start).map_err(|fault| damaged(fault.problem.to_owned()))?;
    let mut record = Record::parse(record).map_err(damaged)?;
    if let Change::Commit(commit) = &mut record.change {
        strip(commit);
    }
    let stamp = Stamp { turn: None, ..record.stamp() };
    Record::new(stamp, &record.change).encode(log.place.id())
}

fn outgrown(replay: &Replay) -> bool {
    let kept: u64 = replay.kept.iter().map(|span| span.end - span.start).sum();
    replay.spare_bytes > WORTHWHILE.max(kept)
}

/// Returns the first and the last line of the new log, if the compaction saves enough.
fn compacted(log: &Log<'_>, header: &Header, replay: &Replay) -> Option<(Vec<u8>, Vec<u8>)> {
    let change = Change::Compacted(Box::new(Compacted::new(&replay.stored, replay.spare.clone())));
    let last = Record::new(replay.last, &change).encode(log.place.id()).ok()?;
    (last.len() as u64 <= replay.spare_bytes / 2).then(|| (header.encode(), last))
}

/// A part of a new log.
pub(super) enum Piece {
    /// Lines of the old log, from one offset to another.
    Old(Range<u64>),
    /// A new line.
    New(Vec<u8>),
}

/// Replaces the old log and removes its summary. Returns the new log, which is locked, and its length. The log must be
/// locked.
pub(super) fn replace(
    log: &Log<'_>,
    action: &str,
    pieces: impl IntoIterator<Item = Piece>,
) -> Result<(File, u64), StoreError> {
    // A summary is valid if it states the length of its log. The new log may later reach the length of the old one, so
    // the old summary is removed.
    rewrite(log, action, || log.place.remove_summary().map_err(io::Error::other), pieces)
}

/// Rewrites the log with the same lines in the current format, without an incomplete last line. Returns the new log,
/// which is locked, and its length. The log must be locked. Its summary stays valid.
pub(super) fn upgrade(log: &Log<'_>, tail: &Tail) -> Result<(File, u64), StoreError> {
    let pieces = [Piece::New(log.header.upgraded().encode()), Piece::Old(log.start..tail.end)];
    rewrite(log, "converting to format version 2", || Ok(()), pieces)
}

/// Writes a new log and replaces the old log with it. `begin` is called before the new log is written, unless the old
/// log can't be replaced.
fn rewrite(
    log: &Log<'_>,
    action: &str,
    begin: impl FnOnce() -> io::Result<()>,
    pieces: impl IntoIterator<Item = Piece>,
) -> Result<(File, u64), StoreError> {
    let mut len = 0;
    let replaced = log.place.replace_log(log.file, |new| {
        begin()?;
        for piece in pieces {
            match piece {
                Piece::New(line) => new.write_all(&line)?,
                Piece::Old(span) => copy(log.file, span, new)?,
            }
        }
        len = new.stream_position()?;
        Ok(())
    });
    let new = replaced.map_err(|error| log.place.failed(action, error))?;
    // The folder is synced before anybody can write to the log. Otherwise a crash could remove the log's name after a
    // write was acknowledged.
    log.place.sync_folder(Durability::Machine)?;
    Ok((new, len))
}

fn copy(mut old: &File, span: Range<u64>, new: &mut File) -> io::Result<()> {
    let len = span.end - span.start;
    old.seek(SeekFrom::Start(span.start))?;
    match io::copy(&mut old.take(len), new)? {
        copied if copied == len => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

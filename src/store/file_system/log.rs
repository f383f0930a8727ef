//! A log on disk: how it is opened, locked, searched for its end, and appended to.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read, Seek, SeekFrom, Write as _},
    ops::Range,
    path::Path,
};

use super::{
    Durability,
    format::{Change, Header, Record, Stamp},
    line::{self, Fault},
    place::{ConversationFolder, failed, private},
};
use crate::{
    run::TurnRecord,
    store::{Commit, StoreError, TurnChange},
    tree::NodeId,
};

/// An open log whose first line is valid.
pub(super) struct Log<'a> {
    pub(super) place: &'a ConversationFolder<'a>,
    pub(super) file: &'a File,
    pub(super) header: Header,
    /// The offset at which the first line ends.
    pub(super) start: u64,
}

/// The end of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The offset at which the last complete line ends.
    pub(super) end: u64,
    /// Whether the last complete line is followed by an incomplete line of an interrupted write.
    pub(super) torn: bool,
    pub(super) stamp: Stamp,
}

/// The result of an attempt to lock a log.
pub(super) enum Lock {
    /// The log, which is locked until the file is closed.
    Held(File),
    /// Another process or handle holds the lock.
    Taken,
    /// The log does not exist.
    Missing,
}

/// The number of bytes to read first from the beginning or the end of a log. Most lines are shorter.
const FIRST_READ: u64 = 4096;
/// The number of times that a log may be replaced between opening and locking. After that, the log counts as locked.
/// The limit prevents an endless loop on a file system that reports a different file each time.
const MOVES: usize = 16;

/// Opens and locks the log without waiting. If the log does not exist and `create` is set, creates an empty log.
pub(super) fn lock(place: &ConversationFolder<'_>, create: bool) -> Result<Lock, StoreError> {
    for _ in 0..MOVES {
        if place.has_other_than_log()? {
            if create {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "its path is not a file");
                return Err(place.failed("creating", error));
            }
            return Ok(Lock::Missing);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create);
        private(&mut options);
        let file = match options.open(place.log()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                place.check_folder()?;
                return Ok(Lock::Missing);
            }
            Err(error) => return Err(place.failed("opening", error)),
        };
        if !try_lock(&place.log(), &file)? {
            return Ok(Lock::Taken);
        }
        // Between opening and locking, another process may have deleted the log or replaced it with a compacted log.
        if !place.is_gone(&file)? {
            return Ok(Lock::Held(file));
        }
    }
    Ok(Lock::Taken)
}

/// Opens the log for reading, if it exists.
pub(super) fn open(place: &ConversationFolder<'_>) -> Result<Option<File>, StoreError> {
    if place.has_other_than_log()? {
        return Ok(None);
    }
    match File::open(place.log()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            place.check_folder()?;
            Ok(None)
        }
        Err(error) => Err(place.failed("opening", error)),
    }
}

/// Reads the log without a lock. Returns `None` if the conversation does not exist.
pub(super) fn read_log<T>(
    place: &ConversationFolder<'_>,
    read: impl Fn(&Log<'_>) -> Result<Option<T>, StoreError>,
) -> Result<Option<T>, StoreError> {
    let read = || {
        let Some(file) = open(place)? else { return Ok(None) };
        let Some(log) = Log::open(place, &file)? else { return Ok(None) };
        read(&log)
    };
    let seen = place.seen();
    match read() {
        // The log changed while it was read, so read it again. The reader may have seen an incomplete line that a
        // writer was replacing.
        Err(StoreError::Damaged { .. }) if place.seen() != seen => read(),
        result => result,
    }
}

/// Locks an open file without waiting.
pub(super) fn try_lock(path: &Path, file: &File) -> Result<bool, StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(failed("locking", path, error)),
    }
}

impl<'a> Log<'a> {
    /// Reads the first line. Returns `None` if the line is incomplete.
    pub(super) fn open(
        place: &'a ConversationFolder<'a>,
        file: &'a File,
    ) -> Result<Option<Self>, StoreError> {
        let first = first_line(file).map_err(|error| place.failed("reading", error))?;
        let name = place.line(1);
        let header = match line::record(&first, 0) {
            Ok(record) => Header::parse(record, &name)?,
            // The first line is incomplete, so the creation of the log was interrupted or is still in progress. A line
            // without its end was the whole file when it was read, even if the file has grown since then.
            Err(Fault { torn: true, .. })
                if !first.ends_with(b"\n") || len(place, file)? == first.len() as u64 =>
            {
                return Ok(None);
            }
            Err(Fault { problem, .. }) => return Err(StoreError::damaged(name, problem)),
        };
        let (id, other) = (place.id(), &header.id);
        if other != id {
            // If the ids differ only in case, the file system ignores case and has found the log of the other
            // conversation.
            if other.as_str().eq_ignore_ascii_case(id.as_str()) {
                return Err(StoreError::NotFound { id: id.clone() });
            }
            return Err(StoreError::damaged(name, format!("it belongs to conversation {other}")));
        }
        Ok(Some(Self { place, file, header, start: first.len() as u64 }))
    }

    pub(super) fn len(&self) -> Result<u64, StoreError> {
        len(self.place, self.file)
    }

    /// Returns the end of the log, or `None` if nothing follows the first line because a `create` was interrupted.
    ///
    /// Reads only the last line. If the line is damaged, reads the lines before it to find its number.
    pub(super) fn tail(&self) -> Result<Option<Tail>, StoreError> {
        let mut end = self.len()?;
        let mut torn = false;
        while end > self.start {
            let (from, last) = self.last_line(end)?;
            match line::record(&last, from) {
                Ok(record) => {
                    let (stamp, _) =
                        Stamp::parse(record).map_err(|problem| self.damaged_at(from, problem))?;
                    return Ok(Some(Tail { end: from + last.len() as u64, torn, stamp }));
                }
                Err(fault) if fault.torn && !torn => {
                    torn = true;
                    end = from;
                }
                Err(fault) => return Err(self.damaged_at(from, fault.problem)),
            }
        }
        Ok(None)
    }

    /// Returns the bytes at these offsets.
    pub(super) fn read(&self, span: Range<u64>) -> Result<Vec<u8>, StoreError> {
        read(self.file, span.start, span.end - span.start)
            .map_err(|error| self.place.failed("reading", error))
    }

    fn last_line(&self, end: u64) -> Result<(u64, Vec<u8>), StoreError> {
        last_line(self.file, self.start, end).map_err(|error| self.place.failed("reading", error))
    }

    /// Returns the head at the end of the log. Reads only the last lines, up to the one that contains the head.
    pub(super) fn head(&self, tail: &Tail) -> Result<Option<NodeId>, StoreError> {
        let head = self.find_last(tail, |change| match change {
            Change::Commit(commit) => Some(commit.head),
            Change::Compacted(compacted) => Some(compacted.head),
            Change::Create(_) => Some(None),
            Change::State(_) | Change::Title(_) | Change::Labels(_) => None,
        })?;
        Ok(head.flatten())
    }

    /// Returns the last record of the turn in flight. Reads only the last lines, up to the one that contains the record.
    pub(super) fn last_record(&self, tail: &Tail) -> Result<Option<TurnRecord>, StoreError> {
        let record = self.find_last(tail, |change| match change {
            Change::Commit(Commit { turn: Some(turn), .. }) => match *turn {
                TurnChange::Record(record) => Some(Some(record)),
                TurnChange::End(_) => Some(None),
            },
            Change::Create(_) | Change::Compacted(_) => Some(None),
            _ => None,
        })?;
        Ok(record.flatten())
    }

    /// Reads the lines from the last to the first, until `find` returns something.
    fn find_last<T>(&self, tail: &Tail, find: impl Fn(Change) -> Option<T>) -> Result<Option<T>, StoreError> {
        let mut end = tail.end;
        while end > self.start {
            let (from, line) = self.last_line(end)?;
            let record = line::record(&line, from).map_err(|fault| fault.problem.to_owned());
            let record = record.and_then(Record::parse).map_err(|problem| self.damaged_at(from, problem))?;
            if let Some(found) = find(record.change) {
                return Ok(Some(found));
            }
            end = from;
        }
        Ok(None)
    }

    /// Returns an error with the number of the line that begins at offset `at`.
    fn damaged_at(&self, at: u64, problem: impl Into<String>) -> StoreError {
        match lines_before(self.place, self.file, at) {
            Ok(lines) => StoreError::damaged(self.place.line(lines + 1), problem),
            Err(error) => error,
        }
    }
}

/// Counts the lines that end before this offset. Uses a fixed amount of memory.
fn lines_before(place: &ConversationFolder<'_>, mut file: &File, at: u64) -> Result<usize, StoreError> {
    const PIECE: usize = 64 * 1024;

    let mut count = || {
        file.seek(SeekFrom::Start(0))?;
        let mut before = BufReader::with_capacity(PIECE, file.take(at));
        let mut lines = 0;
        loop {
            let piece = before.fill_buf()?;
            if piece.is_empty() {
                return Ok(lines);
            }
            lines += piece.split(|byte| *byte == b'\n').count() - 1;
            let len = piece.len();
            before.consume(len);
        }
    };
    count().map_err(|error| place.failed("reading", error))
}

fn len(place: &ConversationFolder<'_>, file: &File) -> Result<u64, StoreError> {
    Ok(file.metadata().map_err(|error| place.failed("reading", error))?.len())
}

/// Returns the complete or incomplete line at the beginning of a file.
pub(super) fn first_line(file: &File) -> io::Result<Vec<u8>> {
    let mut wanted = FIRST_READ;
    loop {
        let mut bytes = read(file, 0, wanted)?;
        if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            bytes.truncate(end + 1);
            return Ok(bytes);
        }
        if (bytes.len() as u64) < wanted {
            return Ok(bytes);
        }
        wanted *= 8;
    }
}

/// Returns the complete or incomplete line that ends at `end`, together with the offset at which the line begins. Lines
/// begin at `start`.
pub(super) fn last_line(file: &File, start: u64, end: u64) -> io::Result<(u64, Vec<u8>)> {
    let mut wanted = FIRST_READ;
    loop {
        let from = end.saturating_sub(wanted).max(start);
        let mut bytes = read(file, from, end - from)?;
        let inner = bytes.len().saturating_sub(1);
        if let Some(before) = bytes[..inner].iter().rposition(|byte| *byte == b'\n') {
            let last = bytes.split_off(before + 1);
            return Ok((from + before as u64 + 1, last));
        }
        if from == start {
            return Ok((from, bytes));
        }
        wanted *= 8;
    }
}

/// Reads up to `len` bytes, beginning at offset `at`. At the end of the file, returns fewer bytes.
fn read(mut file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    file.seek(SeekFrom::Start(at))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes `lines` at `end`, where the valid content of the file ends. If `torn` is set, an incomplete line begins
/// there, which is removed first. If the write fails, the valid content is unchanged.
pub(super) fn append(
    path: &Path,
    mut file: &File,
    end: u64,
    torn: bool,
    lines: &[u8],
    durability: Durability,
) -> Result<(), StoreError> {
    let mut write = || {
        if torn {
            file.set_len(end)?;
        }
        file.seek(SeekFrom::Start(end))?;
        file.write_all(lines)?;
        durability.sync(file)
    };
    write().map_err(|error| {
        // If this call fails as well, an incomplete line remains. The next write removes that line.
        let _ = file.set_len(end);
        failed("writing", path, error)
    })
}

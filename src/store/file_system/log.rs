//! A log on disk: opening, locking, its end, appending.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufRead as _, BufReader, Read, Seek, SeekFrom, Write as _},
};

use super::{
    Durability,
    format::{Header, Stamp},
    line::{self, Fault},
    place::{ConversationFolder, private},
};
use crate::store::StoreError;

/// An open log whose first line is sound.
pub(super) struct Log<'a> {
    pub(super) place: &'a ConversationFolder<'a>,
    pub(super) file: &'a File,
    pub(super) header: Header,
    /// Where the first line ends.
    pub(super) start: u64,
}

/// The end of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// Where the last whole line ends.
    pub(super) end: u64,
    /// Whether something follows it: what a write left that broke off.
    pub(super) torn: bool,
    pub(super) stamp: Stamp,
}

/// A try to lock a log.
pub(super) enum Lock {
    /// Here it is, locked until the file is closed.
    Held(File),
    /// Another has it.
    Taken,
    /// There is no log.
    Missing,
}

/// Bytes that are read from either end of a log at first: most lines fit.
const FIRST_READ: u64 = 4096;
/// How often a log may move away between opening and locking it before that counts as locked: a file system that
/// tells another file each time must keep nobody here for ever.
const MOVES: usize = 16;

/// Opens and locks the log, without waiting; with `create`, an empty one if there is none.
pub(super) fn lock(place: &ConversationFolder<'_>, create: bool) -> Result<Lock, StoreError> {
    for _ in 0..MOVES {
        if place.has_other_than_log()? {
            if create {
                let error = io::Error::new(io::ErrorKind::InvalidInput, "something else has its name");
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
        if !try_lock(place, &file)? {
            return Ok(Lock::Taken);
        }
        // Between the two, another may have deleted the log, or put a compacted one in its place.
        if !place.is_gone(&file)? {
            return Ok(Lock::Held(file));
        }
    }
    Ok(Lock::Taken)
}

/// Opens the log to read it, if there is one.
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

/// Locks an open log, without waiting.
pub(super) fn try_lock(place: &ConversationFolder<'_>, file: &File) -> Result<bool, StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(place.failed("locking", error)),
    }
}

impl<'a> Log<'a> {
    /// Reads the first line; `None` if there is no whole one.
    pub(super) fn open(
        place: &'a ConversationFolder<'a>,
        file: &'a File,
    ) -> Result<Option<Self>, StoreError> {
        let first = first_line(place, file)?;
        let name = place.line(1);
        let header = match line::record(&first, 0) {
            Ok(record) => Header::parse(record, &name)?,
            // All that there was, however much has come since.
            Err(Fault { torn: true, .. })
                if !first.ends_with(b"\n") || len(place, file)? == first.len() as u64 =>
            {
                return Ok(None);
            }
            Err(Fault { problem, .. }) => return Err(StoreError::damaged(name, problem)),
        };
        let (id, other) = (place.id(), &header.id);
        if other != id {
            // Two ids that are one to the file system.
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

    /// The end of the log; `None` if nothing follows the first line: a `create` broke off.
    ///
    /// Reads the last line and nothing more, but for damage: then all before it, to say where it is.
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

    /// The line, or the piece of one, that ends at `end`, and where it begins.
    fn last_line(&self, end: u64) -> Result<(u64, Vec<u8>), StoreError> {
        let mut wanted = FIRST_READ;
        loop {
            let from = end.saturating_sub(wanted).max(self.start);
            let mut bytes = read(self.place, self.file, from, end - from)?;
            let inner = bytes.len().saturating_sub(1);
            if let Some(before) = bytes[..inner].iter().rposition(|byte| *byte == b'\n') {
                let last = bytes.split_off(before + 1);
                return Ok((from + before as u64 + 1, last));
            }
            if from == self.start {
                return Ok((from, bytes));
            }
            wanted *= 8;
        }
    }

    /// Names the line that begins at `at` by its number.
    fn damaged_at(&self, at: u64, problem: impl Into<String>) -> StoreError {
        match lines_before(self.place, self.file, at) {
            Ok(lines) => StoreError::damaged(self.place.line(lines + 1), problem),
            Err(error) => error,
        }
    }
}

/// Counts the lines that end before this byte. Holds no more than a piece of them in memory.
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

fn first_line(place: &ConversationFolder<'_>, file: &File) -> Result<Vec<u8>, StoreError> {
    let mut wanted = FIRST_READ;
    loop {
        let mut bytes = read(place, file, 0, wanted)?;
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

/// Up to `len` bytes from `at` on; fewer at the end of the file.
fn read(place: &ConversationFolder<'_>, mut file: &File, at: u64, len: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    file.seek(SeekFrom::Start(at))
        .and_then(|_| file.take(len).read_to_end(&mut bytes))
        .map_err(|error| place.failed("reading", error))?;
    Ok(bytes)
}

/// Writes `lines` at `end`, the end of what is sound in the log. If that fails, the log is as it was.
pub(super) fn append(
    place: &ConversationFolder<'_>,
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
        // Should this fail as well, a torn line stays behind, and the next write drops it.
        let _ = file.set_len(end);
        place.failed("writing", error)
    })
}

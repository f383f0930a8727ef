//! A log on disk: how it is opened, locked, read and appended to.
//!
//! A lock belongs to the inode, and another file may have been renamed over the log meanwhile. So a writer that has the
//! lock checks that the name still leads to that inode. Readers take no lock. They read up to the length that the log
//! had when they began, and a log that seems damaged is read again, because a writer may have been replacing an
//! incomplete line.

use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom, Take, Write as _},
    ops::Range,
    path::Path,
    rc::Rc,
};

use super::{
    Durability,
    place::{LogPath, check_folder, failed, is_file, private, require_file, try_lock},
    record::{
        ConversationListEntry, FORMAT, LogChange, LogRecordFields, LogRecordParts, LogRecordTrailer,
        file_names, has_all_names, other_format,
    },
};
use crate::store::{StoreError, Stored, TurnChange, Version, WriteId, attachments::AttachmentCodec};

/// The write that created a conversation, and the version after this write. Identifies the conversation.
pub(super) type ConversationBirth = (Version, WriteId);

/// An open log.
pub(super) struct ConversationLog<'a> {
    pub(super) place: &'a LogPath<'a>,
    pub(super) file: File,
    /// The length when the log was opened. Bytes that are appended later are ignored, so that a line that is incomplete
    /// stays incomplete.
    len: u64,
}

/// The result of an attempt to lock a log.
pub(super) enum LogLockOutcome<'a> {
    /// The log, which is locked until the value is dropped.
    Held(ConversationLog<'a>),
    /// Another process or handle holds the lock, or has just replaced the log.
    Taken,
    /// The log does not exist.
    Missing,
}

/// The end of a log.
pub(super) struct LogTail {
    /// The offset at which the last complete line ends.
    pub(super) end: u64,
    /// Whether the last complete line is followed by an incomplete line of an interrupted write.
    pub(super) torn: bool,
    pub(super) last: LogRecordTrailer,
}

/// The number of bytes to read first from the beginning or the end of a log. Most lines are shorter.
const FIRST_READ: u64 = 4096;

/// Reads a log without a lock. Returns `None` if the conversation does not exist.
pub(super) fn read<T>(
    place: &LogPath<'_>,
    read: impl Fn(&ConversationLog<'_>) -> Result<Option<T>, StoreError>,
) -> Result<Option<T>, StoreError> {
    let read =
        || ConversationLog::open(place, OpenOptions::new().read(true))?.map_or(Ok(None), |log| read(&log));
    match read() {
        // The reader may have seen an incomplete line that a writer was replacing, so it reads the log again.
        Err(StoreError::Damaged { .. }) => read(),
        result => result,
    }
}

impl<'a> ConversationLog<'a> {
    fn open(place: &'a LogPath<'a>, options: &OpenOptions) -> Result<Option<Self>, StoreError> {
        // If the path leads to anything other than a file, it is not a conversation.
        if is_file(&place.log)? == Some(false) {
            return Ok(None);
        }
        let opened = options.open(&place.log).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((len, file)) => Ok(Some(Self { place, file, len })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_folder(place.folder)?;
                Ok(None)
            }
            Err(error) => Err(place.failed("opening", error)),
        }
    }

    /// Opens and locks the log without waiting. If the log does not exist and `create` is set, creates an empty log.
    pub(super) fn lock(place: &'a LogPath<'a>, create: bool) -> Result<LogLockOutcome<'a>, StoreError> {
        if create {
            require_file("creating", &place.log)?;
        }
        let mut options = OpenOptions::new();
        private(options.read(true).write(true).create(create));
        let Some(mut log) = Self::open(place, &options)? else { return Ok(LogLockOutcome::Missing) };
        if !try_lock(&place.log, &log.file)? {
            return Ok(LogLockOutcome::Taken);
        }
        // Another process may have written to the log before it was locked.
        log.len = log.current_len()?;
        Ok(LogLockOutcome::Held(log))
    }

    pub(super) fn current_len(&self) -> Result<u64, StoreError> {
        self.file.metadata().map(|file| file.len()).map_err(|error| self.place.failed("reading", error))
    }

    /// Returns the problem if the log belongs to another conversation.
    fn check(&self, entry: &ConversationListEntry) -> Result<Option<String>, StoreError> {
        let (id, other) = (self.place.id, &entry.id);
        if other == id {
            return Ok(None);
        }
        // If the ids differ only in case, the file system ignores case and has found the log of the other conversation.
        if other.as_str().eq_ignore_ascii_case(id.as_str()) {
            return Err(self.place.not_found());
        }
        Ok(Some(format!("it belongs to conversation {other}")))
    }

    /// Returns the end of the log, or `None` if its creation was interrupted.
    ///
    /// Reads only the last line. If the line is damaged, reads the whole log to find the number of the damaged line.
    pub(super) fn tail(&self) -> Result<Option<LogTail>, StoreError> {
        let mut end = self.len;
        let mut torn = false;
        while end > 0 {
            let read = last_line(&self.place.log, &self.file, end);
            let (from, last, fault) = read.map_err(|error| self.place.failed("reading", error))?;
            let problem = match fault {
                Ok(()) => match LogRecordTrailer::parse(&last[PREFIX..last.len() - END.len()]) {
                    Ok(found) => match self.check(&found.entry)? {
                        None => {
                            return Ok(Some(LogTail { end: from + last.len() as u64, torn, last: found }));
                        }
                        Some(problem) => problem,
                    },
                    Err(problem) => problem,
                },
                Err(fault) if fault.torn && !torn => {
                    torn = true;
                    end = from;
                    continue;
                }
                Err(fault) => fault.problem.to_owned(),
            };
            let mut lines = self.lines()?;
            while lines.next()?.is_some() {}
            lines.line = last;
            return Err(lines.damaged(problem));
        }
        Ok(None)
    }

    /// Returns the first stamp that is wanted.
    pub(super) fn find(
        &self,
        is_wanted: impl Fn(&LogRecordFields) -> bool,
    ) -> Result<Option<LogRecordFields>, StoreError> {
        let mut lines = self.lines()?;
        while let Some(record) = lines.next()? {
            let stamp = LogRecordParts::of(record).and_then(|parts| parts.stamp());
            let stamp = stamp.map_err(|problem| lines.damaged(problem))?;
            if is_wanted(&stamp) {
                return Ok(Some(stamp));
            }
        }
        Ok(None)
    }

    /// Returns the names of the files in the lines up to the offset `end`. Reads each line only up to the end of its
    /// names. If a name is not found, its file is written again, which changes nothing else.
    pub(super) fn file_names(&self, end: u64) -> Result<HashSet<String>, StoreError> {
        let (mut names, mut at, mut wanted) = (HashSet::new(), 0, FIRST_READ);
        while at < end {
            let read = read_at(&self.file, at, wanted.min(end - at));
            let beginning = read.map_err(|error| self.place.failed("reading", error))?;
            let Some((record, len)) = beginning_of(&beginning) else { break };
            if wanted < len && !has_all_names(record) {
                wanted *= 8;
                continue;
            }
            names.extend(file_names(record));
            (at, wanted) = (at + len, FIRST_READ);
        }
        Ok(names)
    }

    pub(super) fn lines(&self) -> Result<LogLineReader<'_>, StoreError> {
        LogLineReader::of(&self.place.log, &self.file, self.len)
    }

    /// Reads the whole log, and adds its files to `files`. Returns `None` if its creation was interrupted. Calls `visit`
    /// with each change.
    pub(super) fn replay(
        &self,
        files: &Rc<AttachmentCodec>,
        mut visit: impl FnMut(&LogChange),
    ) -> Result<Option<ReplayedLog>, StoreError> {
        let mut lines = self.lines()?;
        let mut replay: Option<ReplayedLog> = None;
        // Only the entries of the first and the last line are parsed.
        let mut last = Vec::new();
        while let Some(record) = lines.next()? {
            let len = record.len() as u64;
            let parsed = LogRecordParts::of(record).and_then(|parts| {
                last.clear();
                last.extend_from_slice(parts.entry);
                let first =
                    replay.is_none().then(|| ConversationListEntry::parse(parts.entry)).transpose()?;
                Ok((first, parts.change(files), parts.stamp()))
            });
            let (first, change, stamp) = parsed.map_err(|problem| lines.damaged(problem))?;
            if let Some(problem) = first.as_ref().map_or(Ok(None), |first| self.check(first))? {
                return Err(lines.damaged(problem));
            }
            let change = change.map_err(|problem| lines.damaged(problem))?;
            let stamp = stamp.map_err(|problem| lines.damaged(problem))?;
            visit(&change);
            let taken = match (&mut replay, first, change) {
                (Some(replay), _, change) => replay.take(change, stamp, len),
                (replay, Some(first), LogChange::Create(state)) => {
                    let stored = Stored::new(stamp.version, first.created, *state);
                    let birth = (stamp.version, stamp.write);
                    let (files, last) = (Rc::clone(files), stamp.write);
                    *replay = Some(ReplayedLog { stored, birth, last, end: 0, void: 0, files });
                    Ok(())
                }
                _ => Err("it does not create the conversation, as the first write must".to_owned()),
            };
            taken.map_err(|problem| lines.damaged(problem))?;
        }
        let Some(mut replay) = replay else { return Ok(None) };
        let last = ConversationListEntry::parse(&last).map_err(|problem| lines.damaged(problem))?;
        if let Some(problem) = self.check(&last)? {
            return Err(lines.damaged(problem));
        }
        (replay.stored.updated, replay.end) = (last.updated, lines.end);
        Ok(Some(replay))
    }
}

/// The conversation in a log, and data about the log.
pub(super) struct ReplayedLog {
    pub(super) stored: Stored,
    pub(super) birth: ConversationBirth,
    /// The last write.
    last: WriteId,
    /// The offset at which the last complete line ends.
    pub(super) end: u64,
    /// The number of bytes of records of turns.
    pub(super) void: u64,
    /// The files in the log.
    pub(super) files: Rc<AttachmentCodec>,
}

impl ReplayedLog {
    fn take(&mut self, change: LogChange, stamp: LogRecordFields, len: u64) -> Result<(), String> {
        let (before, version) = (self.stored.version, stamp.version);
        let follows = match change {
            LogChange::Mark(_) => version == before && stamp.write == self.last,
            _ => version > before && version == before.next(),
        };
        if !follows {
            return Err(format!("it has version {version}, but the line before it has version {before}"));
        }
        match change {
            LogChange::Create(_) => return Err("it creates the conversation a second time".to_owned()),
            LogChange::Commit(commit) => {
                let is_record = matches!(commit.turn.as_deref(), Some(TurnChange::Record(_)));
                if is_record && commit.nodes.is_empty() {
                    self.void += len;
                }
                self.stored.commit_at(commit, stamp.time);
            }
            LogChange::State(change) => self.stored.change_state(change),
            LogChange::Erase(erasure) => {
                self.stored.erase(&erasure.erased);
                (self.stored.state, self.stored.last_run) = (erasure.state, erasure.last_run);
            }
            LogChange::Mark(mark) => self.stored.mark = Some(mark),
        }
        self.stored.advance(version, self.stored.updated);
        self.last = stamp.write;
        Ok(())
    }
}

/// The number of bytes that are read from a log at a time.
const CHUNK: usize = 128 * 1024;
const ZEROS: &[u8] = &[0; CHUNK];

/// The complete lines of a file.
pub(super) struct LogLineReader<'a> {
    path: &'a Path,
    file: &'a File,
    reader: BufReader<Take<&'a File>>,
    len: u64,
    /// The line that was returned last.
    pub(super) line: Vec<u8>,
    /// The offset at which this line ends.
    pub(super) end: u64,
    /// The number of this line, counted from 1.
    number: usize,
}

impl<'a> LogLineReader<'a> {
    /// Returns the lines of a file up to this length.
    pub(super) fn of(path: &'a Path, file: &'a File, len: u64) -> Result<Self, StoreError> {
        Self::from(path, file, 0, len).map_err(|error| failed("reading", path, error))
    }

    /// Returns the lines of a file between these offsets.
    fn from(path: &'a Path, mut file: &'a File, begin: u64, len: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(begin))?;
        let reader = BufReader::with_capacity(CHUNK, file.take(len - begin));
        Ok(Self { path, file, reader, len, line: Vec::new(), end: begin, number: 0 })
    }

    /// Reads the next line, and returns its length. A line that is longer than its frame states may consume all memory, so
    /// only the beginning of such a line is kept. Of a line that nobody can have written, the rest is not read.
    fn read_line(&mut self) -> io::Result<(u64, Result<(), LineFault>)> {
        let is_ended = |line: &[u8]| line.ends_with(b"\n");
        self.line.clear();
        (&mut self.reader).take(PREFIX as u64).read_until(b'\n', &mut self.line)?;
        let stated = beginning_of(&self.line).map(|(_, stated)| stated);
        let whole = stated.filter(|stated| *stated <= (LONGEST as u64).min(self.len - self.end));
        let limit = whole.unwrap_or_default().max(CHUNK as u64);
        if !is_ended(&self.line) {
            (&mut self.reader).take(limit - PREFIX as u64).read_until(b'\n', &mut self.line)?;
        }
        let mut len = self.line.len() as u64;
        if is_ended(&self.line) || len < limit {
            return Ok((len, record(&self.line, self.end).map(drop)));
        }
        let mut zeros = ZeroBytes::default();
        zeros.take(&self.line, self.end);
        let mut ended = false;
        while !ended {
            let bytes = self.reader.fill_buf()?;
            if bytes.is_empty() {
                break;
            }
            if len > LONGEST as u64 {
                return Ok((len, Err(LineFault { torn: false, problem: LONG })));
            }
            let mut count = bytes.len();
            if bytes.contains(&b'\n') {
                ended = true;
                count = bytes.iter().position(|byte| *byte == b'\n').map_or(count, |at| at + 1);
            }
            zeros.take(&bytes[..count], self.end + len);
            len += count as u64;
            self.reader.consume(count);
        }
        let is_short = stated.is_some_and(|stated| stated > len) && self::whole(&self.line) == Err(SHORT);
        let torn = is_short && !ended || zeros.never_filled();
        Ok((len, Err(LineFault { torn, problem: if is_short { SHORT } else { FRAME } })))
    }

    /// Returns the record of the next line, or `None` at the end or at an incomplete line.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, StoreError> {
        let failed = |error| failed("reading", self.path, error);
        if self.reader.fill_buf().map_err(failed)?.is_empty() {
            return Ok(None);
        }
        let (len, read) = self.read_line().map_err(failed)?;
        match read {
            Ok(()) => {
                (self.end, self.number) = (self.end + len, self.number + 1);
                Ok(Some(&self.line[PREFIX..self.line.len() - END.len()]))
            }
            Err(fault) if fault.torn && self.end + len == self.len => Ok(None),
            Err(fault) => Err(damaged(self.path, self.file, self.number + 1, &self.line, fault.problem)),
        }
    }

    /// Returns an error for damage in the line that was returned last.
    pub(super) fn damaged(&self, problem: impl Into<String>) -> StoreError {
        damaged(self.path, self.file, self.number, &self.line, problem)
    }
}

/// Returns an error for damage in the line with this number, counted from 1. If the file or the line has another format,
/// returns an error that names it.
fn damaged(path: &Path, file: &File, number: usize, line: &[u8], problem: impl Into<String>) -> StoreError {
    let place = format!("{}, line {number}", path.display());
    let of_file = first_line(path, file).ok().and_then(|line| other_format(&line));
    match of_file.or_else(|| other_format(line)) {
        Some(found) => StoreError::UnknownFormat { place, found, known: FORMAT },
        None => StoreError::damaged(place, problem),
    }
}

/// Returns the line at the beginning of a file, or the beginning of an invalid line.
fn first_line(path: &Path, file: &File) -> io::Result<Vec<u8>> {
    let mut lines = LogLineReader::from(path, file, 0, file.metadata()?.len())?;
    let _ = lines.read_line()?;
    Ok(lines.line)
}

/// Returns the line that ends at `end`, together with the offset at which the line begins, and its fault. Of an invalid
/// line, the content may only be its beginning.
fn last_line(path: &Path, file: &File, end: u64) -> io::Result<(u64, Vec<u8>, Result<(), LineFault>)> {
    let mut wanted = FIRST_READ;
    let mut from = end.saturating_sub(wanted);
    loop {
        let mut bytes = read_at(file, from, end - from)?;
        let inner = bytes.len().saturating_sub(1);
        let before = bytes[..inner].iter().rposition(|byte| *byte == b'\n');
        if before.is_some() || from == 0 {
            let begin = before.map_or(0, |before| before + 1);
            let (last, from) = (bytes.split_off(begin), from + begin as u64);
            let fault = record(&last, from).map(drop);
            return Ok((from, last, fault));
        }
        if wanted > CHUNK as u64 {
            break;
        }
        wanted *= 8;
        from = end.saturating_sub(wanted);
    }
    // The beginning of a long line is found first, so that its frame shows how much of it to keep.
    while from > 0 {
        if end - from > LONGEST as u64 {
            return Ok((from, Vec::new(), Err(LineFault { torn: false, problem: LONG })));
        }
        let to = from;
        from = to.saturating_sub(CHUNK as u64);
        let bytes = read_at(file, from, to - from)?;
        if bytes.contains(&b'\n')
            && let Some(before) = bytes.iter().rposition(|byte| *byte == b'\n')
        {
            from += before as u64 + 1;
            break;
        }
    }
    let mut lines = LogLineReader::from(path, file, from, end)?;
    let (_, fault) = lines.read_line()?;
    Ok((from, lines.line, fault))
}

/// Reads up to `len` bytes, beginning at offset `at`. At the end of the file, returns fewer bytes.
fn read_at(mut file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    file.seek(SeekFrom::Start(at))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes `line` at `end`, where the valid content of the file ends. If `torn` is set, an incomplete line begins there,
/// which is removed first. If the write fails, the valid content is unchanged.
pub(super) fn append(
    path: &Path,
    mut file: &File,
    end: u64,
    torn: bool,
    line: &[u8],
    durability: Durability,
) -> Result<(), StoreError> {
    let mut write = || {
        if torn {
            file.set_len(end)?;
        }
        file.seek(SeekFrom::Start(end))?;
        file.write_all(line)?;
        durability.sync(file)
    };
    write().map_err(|error| {
        // If this call fails as well, an incomplete line remains. The next write removes that line.
        let _ = file.set_len(end);
        failed("writing", path, error)
    })
}

// The frame of a line, which consists of a checksum and a length around a record. The frame reveals incomplete lines.
// This module does no input or output.

/// The length of `{"sum":"xxxxxxxx","len":dddddddddd,"record":`. `}` and a line feed follow the record.
const PREFIX: usize = 44;
const SUM: Range<usize> = 8..16;
const LEN: Range<usize> = 24..34;
const LITERALS: [(usize, &[u8]); 3] = [(0, b"{\"sum\":\""), (16, b"\",\"len\":"), (34, b",\"record\":")];
/// The end of a line.
const END: &[u8] = b"}\n";

/// The maximum length of a line. A longer line is damage, for example space that was allocated and never written. SQLite
/// has the same limit for a value.
pub(super) const LONGEST: usize = 1_000_000_000;

/// The reason why a line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineFault {
    /// Whether the line may be the result of an interrupted write at the end of a file.
    pub(super) torn: bool,
    pub(super) problem: &'static str,
}

const SHORT: &str = "it is shorter than its stated length";
const FRAME: &str = "it does not have the frame of a line";
const LONG: &str = "it is longer than any line that can be written";

/// Returns an empty line, ready for a record to be appended.
pub(super) fn begin() -> Vec<u8> {
    vec![b' '; PREFIX]
}

/// Completes a line whose record has been appended.
pub(super) fn finish(mut line: Vec<u8>) -> Vec<u8> {
    let (prefix, record) = line.split_at_mut(PREFIX);
    for (at, literal) in LITERALS {
        prefix[at..at + literal.len()].copy_from_slice(literal);
    }
    prefix[SUM].copy_from_slice(format!("{:08x}", crc32fast::hash(record)).as_bytes());
    // Callers ensure that the length has at most ten digits.
    let len = format!("{:10}", record.len());
    prefix[LEN].copy_from_slice(&len.as_bytes()[..10]);
    line.extend_from_slice(END);
    line
}

/// Returns the record in a line. The line begins at offset `at` in its file. It includes its line feed, if it has one.
pub(super) fn record(line: &[u8], at: u64) -> Result<&[u8], LineFault> {
    let (content, ended) = match line.strip_suffix(b"\n") {
        Some(content) => (content, true),
        None => (line, false),
    };
    let (torn, problem) = match whole(content) {
        Ok(record) if ended => return Ok(record),
        // The record is complete. Only the line feed is missing.
        Ok(_) => (true, "it does not end in a line feed"),
        Err(SHORT) if !ended => (true, "it is incomplete"),
        Err(_) if never_filled(line, at) => (true, "it has bytes that were never written"),
        Err(problem) => (false, problem),
    };
    Err(LineFault { torn, problem })
}

/// Returns the beginning of the record in a line, of which only the beginning is given, and the length of the line.
/// Returns `None` if the line has no valid frame.
pub(super) fn beginning_of(line: &[u8]) -> Option<(&[u8], u64)> {
    let (prefix, record) = line.split_at_checked(PREFIX)?;
    Some((record, (PREFIX + len(&prefix[LEN])? + END.len()) as u64))
}

/// The smallest number of bytes that a disk writes at once.
const SECTOR: u64 = 512;

/// Returns whether the zero bytes in a line may result from a power failure. JSON contains no zero bytes. Space that
/// was allocated to the file but never filled contains only zero bytes. It consists of whole sectors, or of the part of
/// a sector that belongs to the line. Any other zero byte is damage.
fn never_filled(line: &[u8], at: u64) -> bool {
    let mut zeros = ZeroBytes::default();
    zeros.take(line, at);
    zeros.never_filled()
}

/// The zero bytes in a line, which is read in parts.
#[derive(Default)]
struct ZeroBytes {
    /// Whether the line has any.
    found: bool,
    /// Whether some of them are damage.
    are_damage: bool,
    /// Whether the last byte so far is one, or `None` at the beginning of the line.
    last: Option<bool>,
}

impl ZeroBytes {
    /// Takes the next part of the line, which begins at offset `at` in the file.
    fn take(&mut self, part: &[u8], at: u64) {
        let is_same = match self.last {
            Some(true) => ZEROS.starts_with(part),
            Some(false) => !part.contains(&0),
            None => false,
        };
        if is_same || self.are_damage {
            return;
        }
        for (place, byte) in (at..).zip(part) {
            let is_zero = *byte == 0;
            if self.last.is_some_and(|last| last != is_zero) && !place.is_multiple_of(SECTOR) {
                self.are_damage = true;
                return;
            }
            self.found |= is_zero;
            self.last = Some(is_zero);
        }
    }

    fn never_filled(&self) -> bool {
        self.found && !self.are_damage
    }
}

fn whole(content: &[u8]) -> Result<&[u8], &'static str> {
    for (at, literal) in LITERALS {
        let there = content.get(at..).unwrap_or_default();
        if !literal.starts_with(&there[..there.len().min(literal.len())]) {
            return Err(FRAME);
        }
    }
    let (prefix, rest) = content.split_at_checked(PREFIX).ok_or(SHORT)?;
    let (Some(sum), Some(len)) = (sum(&prefix[SUM]), len(&prefix[LEN])) else { return Err(FRAME) };
    match rest.len() {
        there if there <= len => return Err(SHORT),
        there if there > len + 1 => return Err("it is longer than its stated length"),
        _ => {}
    }
    let (record, close) = rest.split_at(len);
    if close != b"}" {
        return Err(FRAME);
    }
    if crc32fast::hash(record) != sum {
        return Err("its checksum does not match");
    }
    Ok(record)
}

/// Parses a checksum. Accepts only the form in which checksums are written, so that every changed byte is detected.
fn sum(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |sum, digit| match digit {
        b'0'..=b'9' => Some(sum << 4 | u32::from(digit - b'0')),
        b'a'..=b'f' => Some(sum << 4 | u32::from(digit - b'a' + 10)),
        _ => None,
    })
}

/// Parses a length. Accepts only the form in which lengths are written.
fn len(padded: &[u8]) -> Option<usize> {
    let digits = padded.trim_ascii_start();
    let padding = padded.len() - digits.len();
    if digits.starts_with(b"0") || padded[..padding].iter().any(|byte| *byte != b' ') {
        return None;
    }
    std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::{
        ConversationId, StateChange,
        file_system::record::{LogRecordTrailer, encode_record},
    };

    /// A line that is completed while the log is read counts as incomplete, because reading stops at the length that
    /// the log had at first.
    #[test]
    fn log_that_grows_while_it_is_read_ends_where_it_ended_at_first() {
        let id = ConversationId::generate();
        let folder = std::env::temp_dir().join(format!("omni-agent-{id}"));
        fs::create_dir(&folder).expect("a folder");
        let place = LogPath::new(&folder, &id);
        let (create, title) =
            (LogChange::Create(Box::default()), LogChange::State(StateChange::title("A talk")));
        let end = LogRecordTrailer::first(id.clone(), WriteId::generate(), &create);
        let first = encode_record(&create, &end).expect("a line");
        let later = encode_record(&title, &end.next(WriteId::generate(), &title)).expect("a line");
        let (begun, rest) = later.split_at(later.len() / 2);
        fs::write(&place.log, [&first, begun].concat()).expect("a log");

        let open =
            || ConversationLog::open(&place, OpenOptions::new().read(true)).expect("a file").expect("a log");
        let log = open();
        let mut writer = OpenOptions::new().append(true).open(&place.log).expect("the log");
        writer.write_all(rest).expect("space on the disk");
        let titles = |log: &ConversationLog<'_>| {
            let replay = log.replay(&Rc::default(), |_| {}).expect("a valid log").expect("a conversation");
            let listed = log.tail().expect("a valid log").expect("a conversation").last.into_summary();
            (replay.stored.state.title, listed.title)
        };
        assert_eq!(titles(&log), (None, None));
        assert_eq!(titles(&open()), (Some("A talk".to_owned()), Some("A talk".to_owned())));
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }
}

//! Reads a whole log, line by line, into a conversation.

use std::{
    io::{Read, Seek, SeekFrom},
    ops::Range,
};

use super::{
    format::{Change, Compacted, Record, Stamp},
    line,
    log::Log,
};
use crate::store::{StoreError, Stored, StoredState, Version, WriteId};

/// The number of bytes that are read from the file at a time.
const CHUNK: usize = 128 * 1024;

/// The complete lines of a log, without the first line.
struct Lines<'a> {
    log: &'a Log<'a>,
    /// Bytes that were read from the file. The lines that begin at index `at` or later have not been returned yet.
    buffer: Vec<u8>,
    at: usize,
    /// The number of bytes of the log that remain to be read. The length of the log is determined once, and bytes that
    /// are appended later are ignored. So a line that is incomplete stays incomplete.
    left: u64,
    /// The number of the line that was returned last, counted from 1.
    number: usize,
    /// The range of offsets in the file of the line that was returned last.
    span: Range<u64>,
}

impl<'a> Lines<'a> {
    fn of(log: &'a Log<'a>) -> Result<Self, StoreError> {
        let mut file = log.file;
        file.seek(SeekFrom::Start(log.start)).map_err(|error| log.place.failed("reading", error))?;
        let left = log.len()?.saturating_sub(log.start);
        Ok(Self { log, buffer: Vec::new(), at: 0, left, number: 1, span: log.start..log.start })
    }

    /// Returns the record of the next line, or `None` at the end or at an incomplete line.
    fn next(&mut self) -> Result<Option<&[u8]>, StoreError> {
        let len = self.len_of_next()?;
        if len == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.span = self.span.end..self.span.end + len as u64;
        let line = self.at..self.at + len;
        self.at += len;
        let found = line::record(&self.buffer[line.clone()], self.span.start).map(<[u8]>::len);
        match found {
            Ok(len) => Ok(Some(&self.buffer[line][line::PREFIX..][..len])),
            Err(fault) if fault.torn && self.at == self.buffer.len() && !self.fill()? => Ok(None),
            Err(fault) => Err(self.damaged(fault.problem)),
        }
    }

    /// Returns the length of the next line, up to its line feed or the end of the log. Afterwards, the whole line is in
    /// the buffer.
    fn len_of_next(&mut self) -> Result<usize, StoreError> {
        let mut seen = 0;
        loop {
            let there = &self.buffer[self.at..];
            // A valid line states its length. In any other line, the end is found by searching for the line feed.
            let stated = line::stated_len(there).filter(|len| there.get(len - 1) == Some(&b'\n'));
            let found = stated.or_else(|| {
                let end = there[seen..].iter().position(|byte| *byte == b'\n');
                end.map(|end| seen + end + 1)
            });
            if let Some(len) = found {
                return Ok(len);
            }
            seen = there.len();
            if !self.fill()? {
                return Ok(seen);
            }
        }
    }

    /// Drops the lines that were returned, and reads more bytes. Returns `false` at the end of the log.
    fn fill(&mut self) -> Result<bool, StoreError> {
        self.buffer.drain(..self.at);
        self.at = 0;
        let before = self.buffer.len();
        // The buffer doubles each time that a line does not fit.
        let wanted = CHUNK.max(before);
        self.buffer.reserve(wanted);
        let wanted = self.left.min(wanted as u64);
        let read = self.log.file.take(wanted).read_to_end(&mut self.buffer);
        let read = read.map_err(|error| self.log.place.failed("reading", error))?;
        self.left -= read as u64;
        Ok(self.buffer.len() > before)
    }

    fn damaged(&self, problem: impl Into<String>) -> StoreError {
        StoreError::damaged(self.log.place.line(self.number), problem)
    }
}

/// The conversation in a log, and data about the lines of the log.
pub(super) struct Replay {
    pub(super) stored: Stored,
    /// The stamp of the last line.
    pub(super) last: Stamp,
    /// The offset at which the last complete line ends.
    pub(super) end: u64,
    /// The offsets of the lines with nodes. Adjacent lines share one range.
    pub(super) kept: Vec<Range<u64>>,
    /// The writes of all lines without nodes, including the lines that earlier compactions removed.
    pub(super) spare: Vec<(Version, WriteId)>,
    /// The number of bytes in the lines without nodes.
    pub(super) spare_bytes: u64,
    /// `lines` is the number of lines with nodes. `whole` is whether the lines removed by an earlier compaction are
    /// known.
    lines: u64,
    whole: bool,
}

/// Reads the whole log. Returns `None` if nothing follows its first line.
pub(super) fn replay(log: &Log<'_>) -> Result<Option<Replay>, StoreError> {
    let mut lines = Lines::of(log)?;
    let mut replay: Option<Replay> = None;
    loop {
        let record = match lines.next()? {
            Some(record) => Record::parse(record),
            None => break,
        };
        let taken = record.and_then(|record| match &mut replay {
            Some(replay) => replay.take(record, lines.span.clone()),
            None => Replay::begin(log, record, lines.span.clone()).map(|begun| replay = Some(begun)),
        });
        taken.map_err(|problem| lines.damaged(problem))?;
    }
    match replay {
        Some(replay) if !replay.whole => Err(StoreError::damaged(
            log.place.log_name(),
            "the line that lists the lines removed by compaction is missing",
        )),
        replay => Ok(replay),
    }
}

impl Replay {
    fn begin(log: &Log<'_>, record: Record, span: Range<u64>) -> Result<Self, String> {
        let last = record.stamp();
        let whole = log.header.compactions == 0;
        let mut replay = Self {
            stored: Stored::new(last.version, log.header.created, StoredState::default()),
            last,
            end: log.start,
            kept: Vec::new(),
            spare: Vec::new(),
            spare_bytes: 0,
            lines: 0,
            whole,
        };
        match (record.change, whole) {
            (Change::Create(state), true) => {
                replay.stored.state = *state;
                replay.leave_out(last, &span);
                replay.advance(last, span);
                Ok(())
            }
            (_, true) => Err("it does not create the conversation, as the first write must".to_owned()),
            (change, false) => replay.apply(last, change, span),
        }
        .map(|()| replay)
    }

    fn take(&mut self, record: Record, span: Range<u64>) -> Result<(), String> {
        let stamp = record.stamp();
        let (before, version) = (self.last.version, stamp.version);
        let restates = matches!(record.change, Change::Compacted(_)) && version == before;
        // Until the line of an earlier compaction is read, versions may be missing.
        let follows = if self.whole {
            version == before.next() && version > before
        } else {
            version > before || restates
        };
        if !follows {
            return Err(format!("it has version {version}, but the line before it has version {before}"));
        }
        self.apply(stamp, record.change, span)
    }

    fn apply(&mut self, stamp: Stamp, change: Change, span: Range<u64>) -> Result<(), String> {
        match change {
            Change::Create(_) => return Err("it creates the conversation a second time".to_owned()),
            Change::Compacted(_) if self.whole => {
                return Err("it lists lines that are not missing".to_owned());
            }
            Change::Compacted(compacted) => {
                self.check_compacted(stamp, &compacted)?;
                let Compacted { state, head, cursors, writes } = *compacted;
                self.stored.state = state;
                self.stored.head = head;
                self.stored.cursors.extend(cursors);
                self.spare = writes;
                self.spare_bytes += span.end - span.start;
                self.whole = true;
            }
            Change::Commit(commit) => {
                if commit.nodes.is_empty() {
                    self.leave_out(stamp, &span);
                } else {
                    self.keep(&span);
                }
                self.stored.commit(commit);
            }
            Change::State(state) => {
                self.stored.state = *state;
                self.leave_out(stamp, &span);
            }
            Change::Title(title) => {
                self.stored.state.title = title;
                self.leave_out(stamp, &span);
            }
            Change::Labels(labels) => {
                self.stored.state.labels = labels;
                self.leave_out(stamp, &span);
            }
        }
        self.advance(stamp, span);
        Ok(())
    }

    /// Checks that the lines read so far and the removed lines together include every version.
    fn check_compacted(&self, stamp: Stamp, compacted: &Compacted) -> Result<(), String> {
        let writes = &compacted.writes;
        let first = writes.iter().map(|(version, _)| *version).min();
        let there = self.lines + writes.len() as u64;
        match first {
            Some(first) if stamp.version.get().checked_sub(first.get()) == Some(there - 1) => Ok(()),
            _ => Err("lines before it are missing".to_owned()),
        }
    }

    fn keep(&mut self, span: &Range<u64>) {
        self.lines += 1;
        match self.kept.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => self.kept.push(span.clone()),
        }
    }

    fn leave_out(&mut self, stamp: Stamp, span: &Range<u64>) {
        self.spare.push((stamp.version, stamp.write));
        self.spare_bytes += span.end - span.start;
    }

    fn advance(&mut self, stamp: Stamp, span: Range<u64>) {
        self.stored.version = stamp.version;
        self.stored.updated = stamp.time;
        self.last = stamp;
        self.end = span.end;
    }
}

/// Returns the write that created the conversation, and the version after this write.
pub(super) fn first_write(log: &Log<'_>) -> Result<Option<(Version, WriteId)>, StoreError> {
    let mut first: Option<(Version, WriteId)> = None;
    writes(log, |version, write| {
        if first.is_none_or(|(first, _)| version < first) {
            first = Some((version, write));
        }
        // If the log was never compacted, the first line is this write, and the search ends.
        log.header.compactions > 0
    })?;
    Ok(first)
}

/// Returns the id of the write that resulted in this version.
pub(super) fn write_of(log: &Log<'_>, wanted: Version) -> Result<Option<WriteId>, StoreError> {
    let mut found = None;
    writes(log, |version, write| {
        if version == wanted {
            found = Some(write);
        }
        found.is_none()
    })?;
    Ok(found)
}

/// Visits the writes in a log until `visit` returns `false`. Parses only the stamps of the lines, unless a line lists
/// the lines removed by a compaction.
fn writes(log: &Log<'_>, mut visit: impl FnMut(Version, WriteId) -> bool) -> Result<(), StoreError> {
    let mut lines = Lines::of(log)?;
    loop {
        let writes = match lines.next()? {
            None => return Ok(()),
            Some(record) => Stamp::parse(record).and_then(|(stamp, compacted)| {
                if compacted {
                    return Record::parse(record).map(|record| match record.change {
                        Change::Compacted(compacted) => compacted.writes,
                        _ => Vec::new(),
                    });
                }
                Ok(vec![(stamp.version, stamp.write)])
            }),
        };
        for (version, write) in writes.map_err(|problem| lines.damaged(problem))? {
            if !visit(version, write) {
                return Ok(());
            }
        }
    }
}

/// Returns the title, without parsing nodes.
pub(super) fn title(log: &Log<'_>) -> Result<Option<String>, StoreError> {
    let mut lines = Lines::of(log)?;
    let mut title = None;
    loop {
        let record = match lines.next()? {
            None => return Ok(title),
            Some(record) => Stamp::parse(record).and_then(|(stamp, compacted)| {
                if stamp.version == stamp.state_version || compacted {
                    Record::parse(record).map(Some)
                } else {
                    Ok(None)
                }
            }),
        };
        match record.map_err(|problem| lines.damaged(problem))?.map(|record| record.change) {
            Some(Change::Create(state) | Change::State(state)) => title = state.title,
            Some(Change::Title(new)) => title = new,
            Some(Change::Compacted(compacted)) => title = compacted.state.title,
            Some(Change::Commit(commit)) => title = commit.state.map_or(title, |state| state.title),
            Some(Change::Labels(_)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File, OpenOptions},
        io::Write as _,
    };

    use super::*;
    use crate::{
        message::Timestamp,
        store::{
            ConversationId,
            file_system::{format::Header, place::ConversationFolder},
        },
    };

    /// A line that is completed while the log is read counts as incomplete, because reading stops at the length that
    /// the log had at first.
    #[test]
    fn log_that_grows_while_it_is_read_ends_where_it_ended_at_first() {
        let id = ConversationId::generate();
        let folder = std::env::temp_dir().join(format!("omni-agent-{id}"));
        fs::create_dir(&folder).expect("a folder");
        let place = ConversationFolder::new(&folder, &id);
        let header = Header::new(id.clone(), Timestamp(7));
        let line = |version, change: &Change| {
            let version = Version::new(version);
            let stamp =
                Stamp { version, write: WriteId::generate(), time: header.created, state_version: version };
            Record::new(stamp, change).encode(&id).expect("a line")
        };
        let later = line(2, &Change::Title(None));
        let (begun, rest) = later.split_at(later.len() / 2);
        let text = [header.encode().as_slice(), &line(1, &Change::Create(Box::default())), begun].concat();
        fs::write(place.log(), text).expect("a log");

        let file = File::open(place.log()).expect("the log");
        let mut writer = OpenOptions::new().append(true).open(place.log()).expect("the log");
        let log = Log::open(&place, &file).expect("a valid line").expect("a first line");
        let mut lines = Lines::of(&log).expect("the rest");
        assert!(lines.next().expect("a valid line").is_some());
        writer.write_all(rest).expect("space on the disk");
        assert!(lines.next().expect("an incomplete line is not an error").is_none());
        let replay = replay(&log).expect("a valid log").expect("a conversation");
        assert_eq!(replay.last.version, Version::new(2), "the log is read again");
        fs::remove_dir_all(&folder).expect("the folder is removed");
    }
}

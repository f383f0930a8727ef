//! Reads the lines of a log one by one.

use std::{
    io::{Read, Seek, SeekFrom},
    ops::Range,
};

use super::{line, log::Log};
use crate::store::StoreError;

/// The number of bytes that are read from the file at a time.
const CHUNK: usize = 128 * 1024;

/// The complete lines of a log, without the first line.
pub(super) struct Lines<'a> {
    log: &'a Log<'a>,
    /// Bytes that were read from the file. The lines that begin at index `at` or later have not been returned yet.
    buffer: Vec<u8>,
    at: usize,
    /// The number of bytes of the log that remain to be read. The length of the log is determined once, and bytes that
    /// are appended later are ignored. So a line that is incomplete stays incomplete.
    left: u64,
    /// The number of the line that was returned last, counted from 1.
    number: usize,
    /// The range of the line that was returned last, as offsets in the file.
    pub(super) span: Range<u64>,
}

impl<'a> Lines<'a> {
    pub(super) fn of(log: &'a Log<'a>) -> Result<Self, StoreError> {
        let mut file = log.file;
        file.seek(SeekFrom::Start(log.start)).map_err(|error| log.place.failed("reading", error))?;
        let left = log.len()?.saturating_sub(log.start);
        Ok(Self { log, buffer: Vec::new(), at: 0, left, number: 1, span: log.start..log.start })
    }

    /// Returns the record of the next line, or `None` at the end or at an incomplete line.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, StoreError> {
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

    pub(super) fn damaged(&self, problem: impl Into<String>) -> StoreError {
        StoreError::damaged(self.log.place.line(self.number), problem)
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
            ConversationId, Version, WriteId,
            file_system::{
                format::{Change, Header, Record, Stamp},
                place::ConversationFolder,
                read::replay,
            },
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
            let stamp = Stamp {
                version,
                write: WriteId::generate(),
                time: header.created,
                state_version: version,
                turn: None,
            };
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

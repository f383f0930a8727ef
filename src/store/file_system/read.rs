//! Reads a whole log, line by line, into a conversation.

use std::ops::Range;

use super::{
    format::{Change, Compacted, Record, Stamp, Tags, is_kept, usage_rows},
    lines::Lines,
    log::Log,
};
use crate::{
    message::UsageRow,
    store::{Commit, Labels, StateChange, StoreError, Stored, StoredState, TurnChange, Version, WriteId},
};

/// The conversation in a log, and data about the lines of the log.
pub(super) struct Replay {
    pub(super) stored: Stored,
    /// The stamp of the last line.
    pub(super) last: Stamp,
    /// The offset at which the last complete line ends.
    pub(super) end: u64,
    /// The offsets of the lines with nodes or rows of the usage ledger. Adjacent lines share one range.
    pub(super) kept: Vec<Range<u64>>,
    /// The offsets of the lines in `kept` that also record a turn in flight. Their ranges contain no other lines.
    pub(super) records: Vec<Range<u64>>,
    /// The versions and ids of the writes whose lines are not in `kept`, including the lines that earlier compactions
    /// removed.
    pub(super) spare: Vec<(Version, WriteId)>,
    /// The number of bytes that a compaction could remove: the lines that are not in `kept`, and the records in
    /// `records`.
    pub(super) spare_bytes: u64,
    /// The number of lines in `kept`.
    lines: u64,
    /// Whether the writes that earlier compactions removed are known.
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
            records: Vec::new(),
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
        // In the lines before a `compacted` line, versions may be missing, because the compaction removed lines.
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
                let Compacted { state, head, cursors, next, last_run, mark, writes } = *compacted;
                self.stored.state = state;
                self.stored.head = head;
                // Replace all cursors, because lines from before an erasure may contain cursors that the erasure
                // removed.
                self.stored.cursors = cursors.into_iter().collect();
                (self.stored.next, self.stored.last_run) = (next, last_run);
                (self.stored.turn, self.stored.mark) = (None, mark);
                self.spare = writes;
                self.spare_bytes += span.end - span.start;
                self.whole = true;
            }
            Change::Commit(commit) => {
                if is_kept(&commit) {
                    self.keep(&span, &commit);
                } else {
                    self.leave_out(stamp, &span);
                }
                // A line that records a turn in flight has the same time as the line before it. The time of the record
                // is in its `turn`.
                self.stored.commit_at(commit, stamp.turn.map_or(stamp.time, |turn| turn.recorded));
            }
            Change::State(state) => self.change_state(StateChange::Whole(state), stamp, &span),
            Change::Title(title) => self.change_state(StateChange::Title(title), stamp, &span),
            Change::Labels(labels) => self.change_state(StateChange::Labels(labels), stamp, &span),
        }
        self.advance(stamp, span);
        Ok(())
    }

    fn change_state(&mut self, change: StateChange, stamp: Stamp, span: &Range<u64>) {
        self.stored.change_state(change);
        self.leave_out(stamp, span);
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

    fn keep(&mut self, span: &Range<u64>, commit: &Commit) {
        self.lines += 1;
        if let Some(TurnChange::Record(record)) = commit.turn.as_deref() {
            self.spare_bytes += serde_json::to_vec(record).map_or(0, |text| text.len() as u64);
            self.kept.push(span.clone());
            self.records.push(span.clone());
            return;
        }
        let follows_record = self.records.last().is_some_and(|record| record.end == span.start);
        match self.kept.last_mut() {
            Some(last) if last.end == span.start && !follows_record => last.end = span.end,
            _ => self.kept.push(span.clone()),
        }
    }

    fn leave_out(&mut self, stamp: Stamp, span: &Range<u64>) {
        self.spare.push((stamp.version, stamp.write));
        self.spare_bytes += span.end - span.start;
    }

    fn advance(&mut self, stamp: Stamp, span: Range<u64>) {
        self.stored.advance(stamp.version, stamp.time);
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
        // If the log was never compacted, the first write in it is the one that created the conversation, and the
        // search ends.
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

/// Returns the title and the labels, without parsing nodes.
pub(super) fn tags(log: &Log<'_>) -> Result<Tags, StoreError> {
    let mut lines = Lines::of(log)?;
    let mut tags = Tags::default();
    loop {
        let found = match lines.next()? {
            None => return Ok(tags),
            Some(record) => next_tags(record, &tags),
        };
        if let Some(found) = found.map_err(|problem| lines.damaged(problem))? {
            tags = found;
        }
    }
}

/// Returns the title and the labels after a write, if the write changes any of them.
fn next_tags(record: &[u8], before: &Tags) -> Result<Option<Tags>, String> {
    let (stamp, compacted) = Stamp::parse(record)?;
    if stamp.version != stamp.state_version && !compacted {
        return Ok(None);
    }
    let record = Record::parse(record)?;
    Ok(record.change.tags().and_then(|tags| tags.after(|| Some(before.clone()))))
}

/// The usage ledger of a conversation.
pub(super) struct Ledger {
    /// The write that created the conversation, and the version after this write.
    pub(super) first: (Version, WriteId),
    pub(super) labels: Labels,
    /// The rows, oldest first.
    pub(super) rows: Vec<UsageRow>,
}

/// Reads the usage ledger. Returns `None` if nothing follows the first line of the log.
pub(super) fn ledger(log: &Log<'_>) -> Result<Option<Ledger>, StoreError> {
    let mut lines = Lines::of(log)?;
    let mut tags = Tags::default();
    let mut rows = Vec::new();
    loop {
        let found = match lines.next()? {
            None => break,
            Some(record) => next_tags(record, &tags).and_then(|tags| Ok((tags, usage_rows(record)?))),
        };
        let (new_tags, new_rows) = found.map_err(|problem| lines.damaged(problem))?;
        tags = new_tags.unwrap_or(tags);
        rows.extend(new_rows);
    }
    let first = first_write(log)?;
    Ok(first.map(|first| Ledger { first, labels: tags.labels, rows }))
}

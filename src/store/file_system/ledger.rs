//! The usage ledger of a folder. The usage of each existing conversation is in the conversation's log. The sums of the
//! usage of deleted conversations are in one additional file.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    Durability,
    format::{encode, parse},
    line,
    log::{append, first_line, last_line, read_log, try_lock},
    place::{self, ConversationFolder, Seen, failed, private, replace_locked},
    read::{self, Ledger},
    summary::{self, Findings, in_parallel},
};
use crate::{
    message::{Timestamp, UsageSum},
    store::{
        Filter, Labels, StoreError, Version, WriteId,
        ledger::{KeptUsage, Sums, by_hour},
    },
};

/// The name of the file with the usage of deleted conversations. No conversation's id contains an `@`.
const NAME: &str = "@deleted-usage.jsonl";
const FORMAT: &str = "omni-agent usage of deleted conversations";
const FORMAT_VERSION: u64 = 1;
/// A length in bytes. The lines of the file are merged when the file is longer than `SHORT`, and more than twice as
/// long as right after the previous merge.
const SHORT: u64 = 1024 * 1024;

/// The write that created a conversation, and the version after this write. Identifies the conversation.
type First = (Version, WriteId);

/// The record of the first line.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    format_version: u64,
    /// The total length, in bytes, of all lines except the first, right after they were merged.
    merged: u64,
}

/// The record of any line except the first.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Entry {
    /// A conversation is about to be deleted.
    Deleted { first: First, labels: Labels, used: Vec<Hour> },
    /// The log of this conversation was removed.
    Removed(First),
    /// The usage of many conversations with the same labels.
    Merged { labels: Labels, used: Vec<Hour> },
}

/// The usage of one model within an hour.
#[derive(Clone, Serialize, Deserialize)]
struct Hour {
    hour: Timestamp,
    #[serde(flatten)]
    sum: UsageSum,
}

/// The parsed content of the file.
#[derive(Default)]
struct Kept {
    deleted: HashMap<First, Deleted>,
    merged: KeptUsage,
}

struct Deleted {
    labels: Labels,
    used: Vec<Hour>,
    /// Whether the log is known to be removed. If not, a process may have died before it removed the log.
    removed: bool,
}

impl Kept {
    /// Parses the file. Ignores an incomplete last line. If it is a `deleted` line, the log of its conversation was not
    /// removed yet and still counts. If it is a `removed` line, an earlier `deleted` line contains the usage.
    fn parse(path: &Path, text: &[u8]) -> Result<Self, StoreError> {
        let mut kept = Self::default();
        let mut at = 0;
        for (line, number) in text.split_inclusive(|byte| *byte == b'\n').zip(1..) {
            let damaged = |problem: &str| damaged(path, number, problem);
            let begin = at;
            at += line.len() as u64;
            let record = match line::record(line, begin) {
                Ok(record) => record,
                Err(fault) if fault.torn && at == text.len() as u64 => break,
                Err(fault) => return Err(damaged(fault.problem)),
            };
            if number == 1 {
                Header::parse(path, record)?;
            } else {
                kept.take(parse(record).map_err(|problem| damaged(&problem))?);
            }
        }
        Ok(kept)
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            // This entry may replace an earlier one for the same conversation: if a process dies before it removes the
            // log, the deletion is repeated.
            Entry::Deleted { first, labels, used } => {
                self.deleted.insert(first, Deleted { labels, used, removed: false });
            }
            Entry::Removed(first) => {
                if let Some(deleted) = self.deleted.get_mut(&first) {
                    deleted.removed = true;
                }
            }
            Entry::Merged { labels, used } => self.merge(&labels, used),
        }
    }

    fn merge(&mut self, labels: &Labels, used: Vec<Hour>) {
        for Hour { hour, sum } in used {
            self.merged.add(labels, hour, &sum);
        }
    }

    /// Returns the lines of a file with this content, without the first line. Merges the usage of conversations whose
    /// logs are known to be removed.
    fn into_lines(mut self) -> Vec<u8> {
        let (removed, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.deleted).into_iter().partition(|(_, deleted)| deleted.removed);
        for (_, Deleted { labels, used, .. }) in removed {
            self.merge(&labels, used);
        }
        let mut merged: HashMap<&Labels, Vec<Hour>> = HashMap::new();
        for (labels, hour, sum) in self.merged.iter() {
            merged.entry(labels).or_default().push(Hour { hour, sum: sum.clone() });
        }
        let merged = merged.into_iter().map(|(labels, mut used)| {
            used.sort_by(|a, b| (a.hour, &a.sum.model).cmp(&(b.hour, &b.sum.model)));
            Entry::Merged { labels: labels.clone(), used }
        });
        let rest = rest.into_iter().map(|(first, Deleted { labels, used, .. })| Entry::Deleted {
            first,
            labels,
            used,
        });
        merged.chain(rest).flat_map(|entry| encode(&entry)).collect()
    }
}

impl Header {
    fn encode(merged: u64) -> Vec<u8> {
        encode(&Self { format: FORMAT.to_owned(), format_version: FORMAT_VERSION, merged })
    }

    fn parse(path: &Path, record: &[u8]) -> Result<Self, StoreError> {
        let header: Self = parse(record).map_err(|problem| damaged(path, 1, &problem))?;
        if header.format != FORMAT {
            return Err(damaged(path, 1, "it is not the first line of such a file"));
        }
        if header.format_version > FORMAT_VERSION {
            let place = path.display().to_string();
            let (found, known) = (header.format_version, FORMAT_VERSION);
            return Err(StoreError::UnknownFormat { place, found, known });
        }
        Ok(header)
    }
}

fn damaged(path: &Path, line: usize, problem: &str) -> StoreError {
    StoreError::damaged(format!("{}, line {line}", path.display()), problem)
}

/// The file with the usage of deleted conversations. It is locked until this value is dropped.
pub(super) struct KeptFile {
    path: PathBuf,
    file: File,
}

impl KeptFile {
    /// Opens and locks the file, and creates it if it does not exist. Returns `None` if another process or handle holds
    /// the lock.
    pub(super) fn lock(folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        private(&mut options);
        let file = options.open(&path).map_err(|error| failed("opening", &path, error))?;
        check_kind(&path, file.metadata())?;
        // Between opening and locking, another process may have replaced the file. The caller then tries again.
        let is_locked = try_lock(&path, &file)? && !place::is_gone(&path, &file)?;
        Ok(is_locked.then_some(Self { path, file }))
    }

    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    /// Adds the usage of a conversation that is about to be deleted.
    pub(super) fn keep(&self, ledger: &Ledger, durability: Durability) -> Result<(), StoreError> {
        let hours = by_hour(&ledger.rows).into_iter();
        let mut used: Vec<_> = hours.map(|((hour, _), sum)| Hour { hour, sum }).collect();
        used.sort_by(|a, b| (a.hour, &a.sum.model).cmp(&(b.hour, &b.sum.model)));
        let entry = encode(&Entry::Deleted { first: ledger.first, labels: ledger.labels.clone(), used });
        if let Some((end, torn)) = self.end()? {
            return append(&self.path, &self.file, end, torn, &entry, durability);
        }
        let lines = [Header::encode(0), entry].concat();
        append(&self.path, &self.file, 0, true, &lines, durability)?;
        // The name of the file must be durable before the log is removed.
        self.sync_folder(durability)
    }

    /// Records that the log of a conversation was removed, and shortens the file if it has grown. If this fails, the
    /// only effect is that the file stays longer than necessary.
    pub(super) fn removed(self, first: First) {
        let recorded = (|| {
            let entry = encode(&Entry::Removed(first));
            let len = self.len().map_err(|error| self.failed(error))?;
            append(&self.path, &self.file, len, false, &entry, Durability::Process)?;
            self.tidy()
        })();
        if let Err(error) = recorded {
            let error: &dyn std::error::Error = &error;
            tracing::debug!(error, "the file with the usage of deleted conversations could not be shortened");
        }
    }

    fn tidy(&self) -> Result<(), StoreError> {
        let len = self.len().map_err(|error| self.failed(error))?;
        if len <= SHORT || self.header()?.is_none_or(|(header, _)| len / 2 <= header.merged) {
            return Ok(());
        }
        let text = fs::read(&self.path).map_err(|error| self.failed(error))?;
        let lines = Kept::parse(&self.path, &text)?.into_lines();
        let header = Header::encode(lines.len() as u64);
        let replaced = replace_locked(&self.path, &self.file, |new| {
            new.write_all(&header)?;
            new.write_all(&lines)
        });
        replaced.map_err(|error| failed("merging", &self.path, error))?;
        self.sync_folder(Durability::Machine)
    }

    fn sync_folder(&self, durability: Durability) -> Result<(), StoreError> {
        self.path.parent().map_or(Ok(()), |folder| place::sync_folder(folder, durability))
    }

    /// Returns the header and its length. Returns `None` if the first line is incomplete.
    fn header(&self) -> Result<Option<(Header, u64)>, StoreError> {
        let first = first_line(&self.file).map_err(|error| self.failed(error))?;
        match line::record(&first, 0) {
            Ok(record) => Ok(Some((Header::parse(&self.path, record)?, first.len() as u64))),
            Err(fault) if fault.torn && self.len().is_ok_and(|len| len == first.len() as u64) => Ok(None),
            Err(fault) => Err(damaged(&self.path, 1, fault.problem)),
        }
    }

    /// Returns the offset at which the last line ends, and whether an incomplete line follows. Returns `None` if the
    /// file has no complete line.
    fn end(&self) -> Result<Option<(u64, bool)>, StoreError> {
        let Some((_, start)) = self.header()? else { return Ok(None) };
        let len = self.len().map_err(|error| self.failed(error))?;
        if len == start {
            return Ok(Some((len, false)));
        }
        let (from, last) = last_line(&self.file, start, len).map_err(|error| self.failed(error))?;
        // Only an incomplete line is replaced. A complete but damaged line stays: reads report it, and a new line can
        // follow it.
        let torn = line::record(&last, from).is_err_and(|fault| fault.torn) || !last.ends_with(b"\n");
        Ok(Some((if torn { from } else { len }, torn)))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn failed(&self, error: io::Error) -> StoreError {
        failed("reading", &self.path, error)
    }
}

/// Fails if the path leads to anything other than a regular file. For example, reading a pipe would wait forever for a
/// writer.
fn check_kind(path: &Path, found: io::Result<fs::Metadata>) -> Result<(), StoreError> {
    match found {
        Ok(found) if !found.is_file() => Err(failed(
            "reading",
            path,
            io::Error::new(io::ErrorKind::InvalidInput, "its path is not a file"),
        )),
        _ => Ok(()),
    }
}

/// Reads the usage of deleted conversations.
fn kept(folder: &Path) -> Result<Kept, StoreError> {
    let path = KeptFile::path(folder);
    check_kind(&path, fs::metadata(&path))?;
    let read = || match fs::read(&path) {
        Ok(text) => Kept::parse(&path, &text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(failed("reading", &path, error)),
    };
    let seen = || fs::metadata(&path).ok().as_ref().and_then(Seen::of);
    let before = seen();
    match read() {
        // The reader may have seen an incomplete line that a writer was replacing.
        Err(StoreError::Damaged { .. }) if seen() != before => read(),
        kept => kept,
    }
}

/// The usage in one log.
struct Counted {
    first: First,
    sums: Vec<UsageSum>,
}

/// The number of conversations for each thread that adds up usage.
const SHARE: usize = 16;

/// Returns the usage in this folder, including the usage of deleted conversations.
pub(super) fn used(
    folder: &Path,
    findings: &Findings,
    filter: &Filter,
    period: &Range<Timestamp>,
) -> Result<Vec<UsageSum>, StoreError> {
    let count = |place: &ConversationFolder<'_>| -> Result<Option<Counted>, StoreError> {
        if !filter.is_empty() {
            let summary = summary::summarise(place, findings, &mut 1)?;
            if !summary.is_some_and(|summary| filter.matches(&summary.labels)) {
                return Ok(None);
            }
        }
        let ledger = match read_log(place, read::ledger) {
            Err(StoreError::NotFound { .. }) => None,
            ledger => ledger?,
        };
        Ok(ledger.map(|Ledger { first, rows, .. }| {
            let mut sums = Sums::default();
            for row in rows.iter().filter(|row| period.contains(&row.at)) {
                sums.add(row.model.as_deref(), 1, row.usage);
            }
            Counted { first, sums: sums.into_vec() }
        }))
    };
    let counted = in_parallel(&summary::ids(folder)?, SHARE, |share| {
        let counted = share.iter().map(|id| count(&ConversationFolder::new(folder, id)));
        counted.filter_map(Result::transpose).collect()
    })?;
    // The logs are read first, so that a conversation that is deleted in the meantime is counted once.
    let kept = kept(folder)?;
    let there: HashSet<_> = counted.iter().map(|counted| counted.first).collect();
    let gone = kept.deleted.iter().filter(|(first, _)| !there.contains(first));
    let gone = gone.flat_map(|(_, Deleted { labels, used, .. })| {
        used.iter().map(move |Hour { hour, sum }| (labels, *hour, sum))
    });
    let mut sums = Sums::default();
    for (labels, hour, sum) in gone.chain(kept.merged.iter()) {
        if filter.matches(labels) && period.contains(&hour) {
            sums.add(sum.model.as_deref(), sum.requests, sum.usage);
        }
    }
    for sum in counted.into_iter().flat_map(|counted| counted.sums) {
        sums.add(sum.model.as_deref(), sum.requests, sum.usage);
    }
    Ok(sums.into_vec())
}

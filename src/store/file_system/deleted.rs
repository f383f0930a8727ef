//! The usage ledger of a folder. The usage of each existing conversation is in the conversation's log. The sums of the
//! usage of deleted conversations are in one additional file.
//!
//! The sums are synced before the log is removed, and each line names the first version and write of its conversation.
//! While a log with them exists, the line does not count, so a conversation counts once after a crash between the two
//! steps.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    Durability, list,
    log::{self, ConversationBirth, ConversationLog, LogLineReader, append},
    place::{failed, lock_file, require_file, sync_folder},
    record::{FORMAT, LogChange, encode, parse},
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        Filter, Labels, StoreError, Summary,
        attachments::AttachmentFiles,
        ledger::{UsageSumsByModel, by_hour, kept_labels},
    },
};

/// The name of the file with the usage of deleted conversations, without its suffix. No conversation's id contains an
/// `@`.
const NAME: &str = "@deleted-usage";

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(format!("{NAME}.jsonl"))
}

/// The usage ledger of a conversation.
pub(super) struct UsageLedgerFile {
    birth: ConversationBirth,
    labels: Labels,
    /// The rows, oldest first.
    pub(super) rows: Vec<UsageRow>,
}

/// Reads the usage ledger. Returns `None` if the creation of the log was interrupted.
pub(super) fn ledger(log: &ConversationLog<'_>) -> Result<Option<UsageLedgerFile>, StoreError> {
    let mut rows = Vec::new();
    let replay = log.replay(&AttachmentFiles::ignored(), |change| {
        if let LogChange::Commit(commit) = change {
            rows.extend(commit.usage_rows());
        }
    })?;
    Ok(replay.map(|replay| UsageLedgerFile { birth: replay.birth, labels: replay.stored.state.labels, rows }))
}

/// A line of the file: a conversation that was deleted, or is about to be deleted.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeletedConversationLine {
    format_version: u64,
    birth: ConversationBirth,
    labels: Labels,
    used: Vec<HourlyUsage>,
}

impl DeletedConversationLine {
    fn parse(record: &[u8]) -> Result<Self, String> {
        let deleted: Self = parse(record)?;
        let is_known = deleted.format_version == FORMAT;
        is_known.then_some(deleted).ok_or_else(|| "it has another format version".to_owned())
    }
}

/// The usage of one model within an hour.
#[derive(Serialize, Deserialize)]
struct HourlyUsage {
    hour: Timestamp,
    #[serde(flatten)]
    sum: UsageSum,
}

/// Calls `take` with the record of each line of the file. Ignores an incomplete last line, because the log of its
/// conversation was not removed. Returns the offset at which the last complete line ends, and whether an incomplete line
/// follows it.
fn scan(
    path: &Path,
    file: &File,
    mut take: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(u64, bool), StoreError> {
    let len = file.metadata().map_err(|error| failed("reading", path, error))?.len();
    let mut lines = LogLineReader::of(path, file, len)?;
    while let Some(record) = lines.next()? {
        take(record).map_err(|problem| lines.damaged(problem))?;
    }
    Ok((lines.end, lines.end < len))
}

/// Adds the usage of a conversation that is about to be deleted to the file. A damaged file is renamed and begun again.
/// Returns `false` if another process or handle has locked the file.
pub(super) fn keep(
    folder: &Path,
    ledger: &UsageLedgerFile,
    durability: Durability,
) -> Result<bool, StoreError> {
    let path = path(folder);
    let Some(file) = lock_file(&path)? else { return Ok(false) };
    let mut is_first = true;
    let scanned = scan(&path, &file, |record| {
        if std::mem::take(&mut is_first) { DeletedConversationLine::parse(record).map(drop) } else { Ok(()) }
    });
    let (end, torn) = match scanned {
        Err(error @ StoreError::Damaged { .. }) => {
            set_aside(folder, &path, &error)?;
            return keep(folder, ledger, durability);
        }
        scanned => scanned?,
    };
    let hours = by_hour(&ledger.rows).into_iter();
    let mut used: Vec<_> = hours.map(|((hour, _), sum)| HourlyUsage { hour, sum }).collect();
    used.sort_by(|a, b| (a.hour, &a.sum.model).cmp(&(b.hour, &b.sum.model)));
    let labels = kept_labels(&ledger.labels);
    let line = encode(&DeletedConversationLine { format_version: FORMAT, birth: ledger.birth, labels, used });
    append(&path, &file, end, torn, &line, durability)?;
    if end == 0 {
        // The name of the file must be durable before the log is removed.
        sync_folder(folder, durability)?;
    }
    Ok(true)
}

/// Renames the damaged file, which must be locked, so that a new file can be begun.
fn set_aside(folder: &Path, path: &Path, error: &StoreError) -> Result<(), StoreError> {
    let mut time = Timestamp::now().0;
    let mut aside = folder.join(format!("{NAME}.{time}.jsonl"));
    while fs::symlink_metadata(&aside).is_ok() {
        time += 1;
        aside = folder.join(format!("{NAME}.{time}.jsonl"));
    }
    tracing::warn!(
        error = error as &dyn std::error::Error,
        file = %aside.display(),
        "the file with the usage of deleted conversations is damaged and was renamed; its sums no longer count"
    );
    fs::rename(path, aside).map_err(|error| failed("renaming", path, error))
}

/// Returns the usage in this folder, including the usage of deleted conversations.
pub(super) fn used(
    folder: &Path,
    filter: &Filter,
    period: &Range<Timestamp>,
) -> Result<Vec<UsageSum>, StoreError> {
    let counted = list::for_each(folder, |place| {
        // If the labels can't be read, the log may have wanted labels. Reading it then fails.
        let matches = |summary: Summary| summary.damage.is_some() || filter.matches(&summary.labels);
        let is_wanted = filter.is_empty() || list::summary(place)?.is_some_and(matches);
        if !is_wanted {
            // If the first line is damaged, a line about the conversation counts as that of a deleted one.
            let first = log::read(place, |log| log.find(|_| true)).ok().flatten();
            return Ok(first.map(|first| ((first.version, first.write), Vec::new())));
        }
        let ledger = match log::read(place, ledger) {
            Err(StoreError::NotFound { .. }) => None,
            ledger => ledger?,
        };
        Ok(ledger.map(|ledger| {
            let mut sums = UsageSumsByModel::default();
            let is_wanted = filter.matches(&ledger.labels);
            for row in ledger.rows.iter().filter(|row| is_wanted && period.contains(&row.at)) {
                sums.add(row.model.as_deref(), 1, row.usage);
            }
            (ledger.birth, sums.into_vec())
        }))
    })?;
    // The logs are read first, so that a conversation that is deleted in the meantime is counted once.
    let path = path(folder);
    let deleted = match deleted(&path) {
        // The reader may have seen an incomplete line that a writer was replacing.
        Err(StoreError::Damaged { .. }) => deleted(&path),
        deleted => deleted,
    }?;
    let there: HashSet<_> = counted.iter().map(|(birth, _)| *birth).collect();
    let mut sums = UsageSumsByModel::default();
    for deleted in deleted.into_values().filter(|deleted| !there.contains(&deleted.birth)) {
        if filter.matches(&deleted.labels) {
            for HourlyUsage { sum, .. } in deleted.used.iter().filter(|used| period.contains(&used.hour)) {
                sums.add(sum.model.as_deref(), sum.requests, sum.usage);
            }
        }
    }
    for sum in counted.into_iter().flat_map(|(_, sums)| sums) {
        sums.add(sum.model.as_deref(), sum.requests, sum.usage);
    }
    Ok(sums.into_vec())
}

/// Reads the file.
fn deleted(path: &Path) -> Result<HashMap<ConversationBirth, DeletedConversationLine>, StoreError> {
    require_file("reading", path)?;
    let mut found = HashMap::new();
    match File::open(path) {
        Ok(file) => scan(path, &file, |record| {
            let deleted = DeletedConversationLine::parse(record)?;
            // If a process has died before it removed the log, the deletion is repeated. The last line counts, because
            // the conversation may have grown since then.
            found.insert(deleted.birth, deleted);
            Ok(())
        })
        .map(|_| found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(found),
        Err(error) => Err(failed("reading", path, error)),
    }
}

//! The usage ledger of a folder. The usage of each existing conversation is in the conversation's log. The sums of the
//! usage of deleted conversations are in one additional file.
//!
//! The sums are synced before the log is removed, and each line names the first version and write of its conversation.
//! While a log with them exists, the line does not count, so a conversation counts once after a crash between the two
//! steps.
//!
//! When the file has become long, the lines of conversations without a log are merged into its first line, which has sums
//! by labels, hour and model. The merged file is written next to the old one, synced, and renamed into place. Each merge
//! has another number. So a reader that has counted the log of a conversation before the merge and the merged sums after
//! it notices the merge, and reads again.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    Durability, list,
    log::{self, ConversationBirth, ConversationLog, LogLineReader, append},
    place::{failed, lock_file, replace_file, require_file, sync_folder},
    record::{FORMAT, LogChange, encode, parse},
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        Filter, Labels, StoreError, Summary, Version, WriteId,
        attachments::AttachmentCodec,
        ledger::{DeletedConversationsUsage, UsageSumsByModel, by_hour, kept_labels},
    },
};

/// The name of the file with the usage of deleted conversations, without its suffix. No conversation's id contains an
/// `@`.
const NAME: &str = "@deleted-usage";

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(format!("{NAME}.jsonl"))
}

/// The usage ledger of a conversation.
pub(super) struct ConversationUsageLedger {
    birth: ConversationBirth,
    labels: Labels,
    /// The rows, oldest first.
    pub(super) rows: Vec<UsageRow>,
}

/// Reads the usage ledger. Returns `None` if the creation of the log was interrupted.
pub(super) fn ledger(log: &ConversationLog<'_>) -> Result<Option<ConversationUsageLedger>, StoreError> {
    let mut rows = Vec::new();
    let replay = log.replay(&AttachmentCodec::ignored(), |change| {
        if let LogChange::Commit(commit) = change {
            rows.extend(commit.usage_rows());
        }
    })?;
    Ok(replay.map(|replay| ConversationUsageLedger {
        birth: replay.birth,
        labels: replay.stored.state.labels,
        rows,
    }))
}

/// The length in bytes above which a file is merged. A file with longer merged sums is merged when it has twice their
/// length.
const LONG: u64 = 64 * 1024;

/// A line of the file: a conversation that was deleted, or is about to be deleted. Or the merged sums of conversations.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeletedConversationLine {
    format_version: u64,
    /// The first version and write of the conversation. Merged sums have the version 0, which no conversation has, and
    /// the number of the merge.
    birth: ConversationBirth,
    labels: Labels,
    used: Vec<HourlyModelUsage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    merged: Vec<LabelledHourlyModelUsage>,
}

impl DeletedConversationLine {
    fn parse(record: &[u8]) -> Result<Self, String> {
        let deleted: Self = parse(record)?;
        let is_known = deleted.format_version == FORMAT;
        is_known.then_some(deleted).ok_or_else(|| "it has another format version".to_owned())
    }

    /// Returns the sums with their labels.
    fn into_sums(self) -> impl Iterator<Item = (Labels, HourlyModelUsage)> {
        let own = self.used.into_iter().map(move |used| (self.labels.clone(), used));
        own.chain(self.merged.into_iter().map(|merged| (merged.labels, merged.used)))
    }
}

/// The usage of one model within an hour.
#[derive(Serialize, Deserialize)]
struct HourlyModelUsage {
    hour: Timestamp,
    #[serde(flatten)]
    sum: UsageSum,
}

/// The usage of one model within an hour, by conversations with these labels.
#[derive(Serialize, Deserialize)]
struct LabelledHourlyModelUsage {
    labels: Labels,
    #[serde(flatten)]
    used: HourlyModelUsage,
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
    ledger: &ConversationUsageLedger,
    durability: Durability,
) -> Result<bool, StoreError> {
    let path = path(folder);
    let Some(file) = lock_file(&path)? else { return Ok(false) };
    let mut merged_len = None;
    let scanned = scan(&path, &file, |record| {
        if merged_len.is_none() {
            let is_merged = !DeletedConversationLine::parse(record)?.merged.is_empty();
            merged_len = Some(if is_merged { record.len() } else { 0 });
        }
        Ok(())
    });
    let (end, torn) = match scanned {
        Err(error @ StoreError::Damaged { .. }) => {
            set_aside(folder, &path, &error)?;
            return keep(folder, ledger, durability);
        }
        scanned => scanned?,
    };
    if is_long(end, merged_len.unwrap_or_default()) {
        match merge(folder, &path, &file) {
            Ok(()) => return keep(folder, ledger, durability),
            // The file is still valid, and the next delete tries again.
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::debug!(error, "the usage of deleted conversations could not be merged");
            }
        }
    }
    let hours = by_hour(&ledger.rows).into_iter();
    let mut used: Vec<_> = hours.map(|((hour, _), sum)| HourlyModelUsage { hour, sum }).collect();
    used.sort_by(|a, b| (a.hour, &a.sum.model).cmp(&(b.hour, &b.sum.model)));
    let labels = kept_labels(&ledger.labels);
    let (format_version, birth, merged) = (FORMAT, ledger.birth, Vec::new());
    let line = encode(&DeletedConversationLine { format_version, birth, labels, used, merged });
    append(&path, &file, end, torn, &line, durability)?;
    if end == 0 {
        // The name of the file must be durable before the log is removed.
        sync_folder(folder, durability)?;
    }
    Ok(true)
}

fn is_long(len: u64, merged_len: usize) -> bool {
    len > LONG.max(2 * merged_len as u64)
}

/// Merges the lines of the file, which must be locked. Fails if the file would still be long, because the logs of many
/// conversations in it exist. The folder is read only if the file can be replaced.
fn merge(folder: &Path, path: &Path, file: &File) -> Result<(), StoreError> {
    let (new, action) = (folder.join(format!("{NAME}.jsonl.new")), "merging the lines of");
    replace_file(folder, path, &new, file, action, |mut new| {
        let (first, rest) = merged(folder, path, file)?;
        if is_long((first.len() + rest.len()) as u64, log::record(&first, 0).map_or(0, <[u8]>::len)) {
            let reason = io::Error::other("the logs of many of its conversations exist");
            return Err(failed(action, path, reason));
        }
        // The removal of each log without which a line was merged must be durable first.
        sync_folder(folder, Durability::Machine)?;
        let written = new.write_all(&first).and_then(|()| new.write_all(&rest));
        written.map_err(|error| failed(action, path, error))
    })
}

/// Returns the line with the sums of all conversations without a log, and the lines of the others.
fn merged(folder: &Path, path: &Path, file: &File) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
    let there = list::for_each(folder, |place| match log::read(place, |log| log.find(|_| true)) {
        // As in `used`, the conversation counts as deleted.
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => Ok(None),
        first => Ok(first?.map(|first| (first.version, first.write))),
    })?;
    let there: HashSet<_> = there.into_iter().collect();
    let (mut sums, mut rest) = (DeletedConversationsUsage::default(), Vec::new());
    for line in deleted_in(path, file)?.into_values() {
        if there.contains(&line.birth) {
            rest.extend(encode(&line));
        } else {
            line.into_sums()
                .for_each(|(labels, HourlyModelUsage { hour, sum })| sums.add(&labels, hour, sum));
        }
    }
    let merged = sums.iter().map(|(labels, hour, sum)| {
        let used = HourlyModelUsage { hour, sum: sum.clone() };
        LabelledHourlyModelUsage { labels: labels.clone(), used }
    });
    let (birth, merged) = ((Version::new(0), WriteId::generate()), merged.collect());
    let (labels, used) = (Labels::default(), Vec::new());
    let first = encode(&DeletedConversationLine { format_version: FORMAT, birth, labels, used, merged });
    Ok((first, rest))
}

/// Returns the number of the last merge.
fn last_merge(path: &Path) -> Option<ConversationBirth> {
    let file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    let mut lines = LogLineReader::of(path, &file, len).ok()?;
    let first = DeletedConversationLine::parse(lines.next().ok()??).ok()?;
    (!first.merged.is_empty()).then_some(first.birth)
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
    loop {
        let merge = last_merge(&path(folder));
        let sums = used_at_once(folder, filter, period);
        if last_merge(&path(folder)) == merge {
            return sums;
        }
    }
}

/// Returns the usage. If lines are merged meanwhile, conversations may be counted twice.
fn used_at_once(
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
    let deleted = deleted.into_values().filter(|deleted| !there.contains(&deleted.birth));
    for (labels, HourlyModelUsage { hour, sum }) in deleted.flat_map(DeletedConversationLine::into_sums) {
        if filter.matches(&labels) && period.contains(&hour) {
            sums.add(sum.model.as_deref(), sum.requests, sum.usage);
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
    match File::open(path) {
        Ok(file) => deleted_in(path, &file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashMap::new()),
        Err(error) => Err(failed("reading", path, error)),
    }
}

fn deleted_in(
    path: &Path,
    file: &File,
) -> Result<HashMap<ConversationBirth, DeletedConversationLine>, StoreError> {
    let mut found = HashMap::new();
    scan(path, file, |record| {
        let deleted = DeletedConversationLine::parse(record)?;
        // If a process has died before it removed the log, the deletion is repeated. The last line counts, because the
        // conversation may have grown since then.
        found.insert(deleted.birth, deleted);
        Ok(())
    })?;
    Ok(found)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::{error::error_chain, store::ConversationId};

    #[test]
    fn merge_of_a_file_that_cannot_be_replaced_does_not_read_the_folder() {
        let folder = std::env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        let file = File::create(folder.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(folder.join("elsewhere"), path(&folder)).unwrap();
        // Reading a folder that does not exist would fail with another error.
        let error = merge(&folder.join("missing"), &path(&folder), &file).unwrap_err();
        assert!(error_chain(&error).contains("symbolic link"), "{error:?}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

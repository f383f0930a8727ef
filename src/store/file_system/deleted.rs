//! The usage ledger of a folder. The usage of each existing conversation is in the conversation's log. The sums of the
//! usage of deleted conversations are in one additional file.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    Durability, line, list,
    log::{self, Birth, Log, append},
    place::{failed, lock_file, require_file, sync_folder},
    record::{Change, FORMAT, encode, other_format, parse},
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        Filter, Labels, StoreError,
        ledger::{Sums, by_hour},
    },
};

/// The name of the file with the usage of deleted conversations, without its suffix. No conversation's id contains an
/// `@`.
const NAME: &str = "@deleted-usage";

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(format!("{NAME}.jsonl"))
}

/// The usage ledger of a conversation.
pub(super) struct Ledger {
    birth: Birth,
    labels: Labels,
    /// The rows, oldest first.
    pub(super) rows: Vec<UsageRow>,
}

/// Reads the usage ledger. Returns `None` if the creation of the log was interrupted.
pub(super) fn ledger(log: &Log<'_>) -> Result<Option<Ledger>, StoreError> {
    let mut rows = Vec::new();
    let replay = log.replay(|change| {
        if let Change::Commit(commit) = change {
            rows.extend(commit.usage_rows());
        }
    })?;
    Ok(replay.map(|replay| Ledger { birth: replay.birth, labels: replay.stored.state.labels, rows }))
}

/// A line of the file: a conversation that was deleted, or is about to be deleted.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Deleted {
    format_version: u64,
    birth: Birth,
    labels: Labels,
    used: Vec<Hour>,
}

impl Deleted {
    fn parse(record: &[u8]) -> Result<Self, String> {
        let deleted: Self = parse(record)?;
        let is_known = deleted.format_version == FORMAT;
        is_known.then_some(deleted).ok_or_else(|| "it has another format version".to_owned())
    }
}

/// The usage of one model within an hour.
#[derive(Serialize, Deserialize)]
struct Hour {
    hour: Timestamp,
    #[serde(flatten)]
    sum: UsageSum,
}

/// The parsed content of the file.
#[derive(Default)]
struct Kept {
    deleted: HashMap<Birth, Deleted>,
    /// The offset at which the last complete line ends.
    end: u64,
    /// Whether the last complete line is followed by an incomplete line.
    torn: bool,
}

impl Kept {
    fn read(path: &Path) -> Result<Self, StoreError> {
        require_file("reading", path)?;
        match fs::read(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed("reading", path, error)),
        }
    }

    /// Parses the file. Ignores an incomplete last line, because the log of its conversation was not removed.
    fn parse(path: &Path, text: &[u8]) -> Result<Self, StoreError> {
        let mut kept = Self::default();
        for (line, number) in text.split_inclusive(|byte| *byte == b'\n').zip(1..) {
            let (begin, end) = (kept.end, kept.end + line.len() as u64);
            let deleted = match line::record(line, begin) {
                Ok(record) => Deleted::parse(record),
                Err(fault) if fault.torn && end == text.len() as u64 => {
                    kept.torn = true;
                    break;
                }
                Err(fault) => Err(fault.problem.to_owned()),
            };
            let deleted = deleted.map_err(|problem| {
                let place = format!("{}, line {number}", path.display());
                match other_format(line) {
                    Some(found) => StoreError::UnknownFormat { place, found, known: FORMAT },
                    None => StoreError::damaged(place, problem),
                }
            })?;
            // If a process has died before it removed the log, the deletion is repeated. The last line counts, because
            // the conversation may have grown since then.
            kept.deleted.insert(deleted.birth, deleted);
            kept.end = end;
        }
        Ok(kept)
    }
}

/// Adds the usage of a conversation that is about to be deleted to the file. A damaged file is renamed and begun again.
/// Returns `false` if another process or handle has locked the file.
pub(super) fn keep(folder: &Path, ledger: &Ledger, durability: Durability) -> Result<bool, StoreError> {
    let path = path(folder);
    let Some(file) = lock_file(&path)? else { return Ok(false) };
    let kept = match Kept::read(&path) {
        Err(error @ StoreError::Damaged { .. }) => {
            set_aside(folder, &path, &error)?;
            return keep(folder, ledger, durability);
        }
        kept => kept?,
    };
    let hours = by_hour(&ledger.rows).into_iter();
    let mut used: Vec<_> = hours.map(|((hour, _), sum)| Hour { hour, sum }).collect();
    used.sort_by(|a, b| (a.hour, &a.sum.model).cmp(&(b.hour, &b.sum.model)));
    let labels = ledger.labels.clone();
    let line = encode(&Deleted { format_version: FORMAT, birth: ledger.birth, labels, used });
    append(&path, &file, kept.end, kept.torn, &line, durability)?;
    if kept.end == 0 {
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

/// The number of conversations for each thread that adds up usage.
const SHARE: usize = 16;

/// Returns the usage in this folder, including the usage of deleted conversations.
pub(super) fn used(
    folder: &Path,
    filter: &Filter,
    period: &Range<Timestamp>,
) -> Result<Vec<UsageSum>, StoreError> {
    let counted = list::in_parallel(folder, SHARE, |place| {
        let is_wanted =
            filter.is_empty() || list::summary(place)?.is_some_and(|summary| filter.matches(&summary.labels));
        if !is_wanted {
            // If the first line is damaged, a line about the conversation counts as that of a deleted one.
            let birth = log::read(place, |log| log.birth()).ok().flatten();
            return Ok(birth.map(|birth| (birth, Vec::new())));
        }
        let ledger = match log::read(place, ledger) {
            Err(StoreError::NotFound { .. }) => None,
            ledger => ledger?,
        };
        Ok(ledger.map(|ledger| {
            let mut sums = Sums::default();
            for row in ledger.rows.iter().filter(|row| period.contains(&row.at)) {
                sums.add(row.model.as_deref(), 1, row.usage);
            }
            (ledger.birth, sums.into_vec())
        }))
    })?;
    // The logs are read first, so that a conversation that is deleted in the meantime is counted once.
    let path = path(folder);
    let kept = match Kept::read(&path) {
        // The reader may have seen an incomplete line that a writer was replacing.
        Err(StoreError::Damaged { .. }) => Kept::read(&path),
        kept => kept,
    }?;
    let there: HashSet<_> = counted.iter().map(|(birth, _)| *birth).collect();
    let mut sums = Sums::default();
    for deleted in kept.deleted.into_values().filter(|deleted| !there.contains(&deleted.birth)) {
        if filter.matches(&deleted.labels) {
            for Hour { sum, .. } in deleted.used.iter().filter(|used| period.contains(&used.hour)) {
                sums.add(sum.model.as_deref(), sum.requests, sum.usage);
            }
        }
    }
    for sum in counted.into_iter().flat_map(|(_, sums)| sums) {
        sums.add(sum.model.as_deref(), sum.requests, sum.usage);
    }
    Ok(sums.into_vec())
}

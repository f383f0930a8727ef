//! What a list says of each conversation.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read},
    num::NonZeroUsize,
    panic::resume_unwind,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use super::{
    format::SummaryFile,
    log::{self, Log, try_lock},
    place::{self, ConversationFolder, LOG, Seen},
    read,
};
use crate::{
    message::Timestamp,
    store::{ConversationId, Page, StoreError, Summary, Version},
};

/// The summary as it was last saved, up to date or not.
pub(super) fn read(place: &ConversationFolder<'_>) -> Option<SummaryFile> {
    // Opening a pipe would wait for whoever writes to it.
    if !fs::metadata(place.summary()).ok()?.is_file() {
        return None;
    }
    // `fs::read` would ask for the length, and for more at the end: lists read many of these.
    let mut file = File::open(place.summary()).ok()?;
    let mut text = vec![0; 1024];
    let mut len = 0;
    loop {
        match file.read(&mut text[len..]).ok()? {
            read if len + read < text.len() => return SummaryFile::parse(&text[..len + read], place.id()),
            read => len += read,
        }
        text.resize(len * 4, 0);
    }
}

/// Saves a summary and returns whether that succeeded. The write before it succeeds in any case: without a summary, one is
/// made again from the log. The log is locked.
pub(super) fn save(place: &ConversationFolder<'_>, summary: &SummaryFile) -> bool {
    let saved = place.replace_summary(&summary.encode());
    if let Err(error) = &saved {
        let error: &dyn std::error::Error = error;
        tracing::debug!(error, "a summary was not saved");
    }
    saved.is_ok()
}

/// Summaries that took reading a log and could not be saved beside it: of damaged logs, and in a folder that can't be written
/// to. Each is good for as long as its log is not written to. They spare later lists to read the log again.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<HashMap<ConversationId, (Seen, Summary)>>);

impl Findings {
    // Nothing that can panic runs under the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationId, (Seen, Summary)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &ConversationId, seen: Option<Seen>) -> Option<Summary> {
        let mut findings = self.lock();
        let (of, summary) = findings.get(id)?;
        if Some(*of) == seen {
            return Some(summary.clone());
        }
        findings.remove(id);
        None
    }

    fn keep(&self, seen: Option<Seen>, summary: &Summary) {
        if let Some(seen) = seen.filter(Seen::is_settled) {
            self.lock().insert(summary.id.clone(), (seen, summary.clone()));
        }
    }

    /// Drops those of conversations that are not among these.
    fn retain(&self, ids: &[ConversationId]) {
        let mut findings = self.lock();
        if !findings.is_empty() {
            let ids: HashSet<_> = ids.iter().collect();
            findings.retain(|id, _| ids.contains(id));
        }
    }
}

/// What a list says of the conversation, if there is one. Summaries that commits left behind are brought up to date as
/// long as `refresh` is not used up.
pub(super) fn summarise(
    place: &ConversationFolder<'_>,
    findings: &Findings,
    refresh: &mut usize,
) -> Result<Option<Summary>, StoreError> {
    let (len, mut seen) = match fs::metadata(place.log()) {
        Ok(log) if log.is_file() => (log.len(), Seen::of(&log)),
        // No conversation of this store's.
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            place.check_folder()?;
            return Ok(None);
        }
        Err(error) => return Err(place.failed("reading", error)),
    };
    let saved = read(place);
    if let Some(saved) = saved.as_ref().filter(|saved| saved.log == len) {
        return Ok(Some(saved.clone().into_summary()));
    }
    if let Some(found) = findings.get(place.id(), seen) {
        return Ok(Some(found));
    }
    let mut summary = from_log(place, saved.as_ref(), refresh);
    if let Err(StoreError::Damaged { .. }) = summary {
        let before = std::mem::replace(&mut seen, place.seen());
        if seen != before {
            // It may have been a torn line that a writer was just replacing.
            summary = from_log(place, saved.as_ref(), refresh);
        }
    }
    match summary {
        Err(error @ (StoreError::Damaged { .. } | StoreError::UnknownFormat { .. })) => {
            let known = saved.map_or_else(|| unknown(place), SummaryFile::into_summary);
            let summary = Summary { damage: Some(error.to_string()), ..known };
            findings.keep(seen, &summary);
            Ok(Some(summary))
        }
        Ok(None) | Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
        Ok(Some(Found { summary, is_costly })) => {
            if is_costly {
                findings.keep(seen, &summary);
            }
            Ok(Some(summary))
        }
    }
}

/// For a log that nothing can be said about.
fn unknown(place: &ConversationFolder<'_>) -> Summary {
    let touched = fs::metadata(place.log()).and_then(|log| log.modified()).ok();
    let touched = touched.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let touched = touched.and_then(|since| u64::try_from(since.as_millis()).ok());
    Summary::new(place.id().clone(), Version::new(0), Timestamp(touched.unwrap_or_default()))
}

/// A summary that was made from the log.
struct Found {
    summary: Summary,
    /// Whether it took reading the whole log, and the next list would have to read it again.
    is_costly: bool,
}

fn from_log(
    place: &ConversationFolder<'_>,
    saved: Option<&SummaryFile>,
    refresh: &mut usize,
) -> Result<Option<Found>, StoreError> {
    let Some(file) = log::open(place)? else {
        return Ok(None);
    };
    let Some(log) = Log::open(place, &file)? else {
        return Ok(None);
    };
    let Some(tail) = log.tail()? else {
        return Ok(None);
    };
    // A commit leaves the summary behind, but with the right title.
    let known =
        saved.filter(|saved| (tail.stamp.state_version..=tail.stamp.version).contains(&saved.version));
    let title = match known {
        Some(saved) => saved.title.clone(),
        None => read::title(&log)?,
    };
    let summary = SummaryFile::new(&log.header, &tail.stamp, title, tail.end);
    // Without the right title it takes reading the log, which is dear enough to spare the next one.
    let wanted = known.is_none() || *refresh > 0;
    *refresh = refresh.saturating_sub(1);
    // Whatever keeps it from being saved keeps nobody from seeing it: not every file system locks what is open for reading.
    let is_current = || {
        matches!(try_lock(place, &file), Ok(true))
            && matches!(place.is_gone(&file), Ok(false))
            && matches!(log.len(), Ok(len) if len == tail.end)
    };
    let is_saved = wanted && is_current() && save(place, &summary);
    let is_costly = known.is_none() && !is_saved;
    Ok(Some(Found { summary: summary.into_summary(), is_costly }))
}

/// How many conversations are worth a thread more to list them, and how many threads at most.
const SHARE: usize = 500;
const MAX_THREADS: usize = 4;
/// How many summaries each of them brings up to date: a list is made of what was written since the last, so that is
/// few as a rule, and no one list pays for all that were never listed.
const REFRESHED: usize = 500;

/// The conversations in the folder that are on this page.
pub(super) fn list(folder: &Path, findings: &Findings, page: Page) -> Result<Vec<Summary>, StoreError> {
    let ids = ids(folder)?;
    findings.retain(&ids);
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = ids.len().div_ceil(SHARE).clamp(1, cores.min(MAX_THREADS));
    let summaries = if threads == 1 {
        summarise_all(folder, findings, &ids)?
    } else {
        thread::scope(|scope| {
            let shares = ids.chunks(ids.len().div_ceil(threads));
            let spawn = |share| {
                let spawned = thread::Builder::new()
                    .spawn_scoped(scope, move || summarise_all(folder, findings, share));
                (share, spawned)
            };
            let threads: Vec<_> = shares.map(spawn).collect();
            let shares = threads.into_iter().map(|(share, spawned)| match spawned {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // No more threads for this process.
                Err(_) => summarise_all(folder, findings, share),
            });
            shares.collect::<Result<Vec<_>, _>>()
        })?
        .concat()
    };
    let all = summaries.iter().map(|summary| (summary.updated, &summary.id, summary));
    Ok(page.cut(all.collect()).into_iter().cloned().collect())
}

fn summarise_all(
    folder: &Path,
    findings: &Findings,
    ids: &[ConversationId],
) -> Result<Vec<Summary>, StoreError> {
    let mut refresh = REFRESHED;
    let summaries = ids.iter().map(|id| {
        let place = ConversationFolder::new(folder, id);
        summarise(&place, findings, &mut refresh).or_else(|error| match problem(&place, &error) {
            Some(problem) => Ok(Some(Summary { damage: Some(problem), ..unknown(&place) })),
            None => Err(error),
        })
    });
    summaries.filter_map(Result::transpose).collect()
}

/// What is wrong with this one conversation, if that is all that is wrong: not for want of descriptors or memory, or of the
/// folder, which has an error of its own.
fn problem(place: &ConversationFolder<'_>, error: &StoreError) -> Option<String> {
    // What has no stable kind yet: too many open files, in this process or in all.
    const OF_ALL: [i32; 2] = if cfg!(unix) { [24, 23] } else { [4, 4] };

    let (StoreError::Failed { source, .. } | StoreError::Denied { source, .. }) = error else {
        return None;
    };
    let system = source.downcast_ref::<io::Error>()?;
    let of_all = system.kind() == io::ErrorKind::OutOfMemory
        || system.raw_os_error().is_some_and(|code| OF_ALL.contains(&code));
    (!of_all && place.check_folder().is_ok()).then(|| format!("{error}: {system}"))
}

/// The conversations in the folder, in no order. Files with other names are not the store's.
fn ids(folder: &Path) -> Result<Vec<ConversationId>, StoreError> {
    let failed = |error| place::failed("listing", folder, error);
    let entries = fs::read_dir(folder).map_err(|error| match place::check_folder(folder) {
        Ok(()) => failed(error),
        Err(unreachable) => unreachable,
    })?;
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(LOG));
        ids.extend(id.and_then(|id| ConversationId::new(id).ok()));
    }
    Ok(ids)
}

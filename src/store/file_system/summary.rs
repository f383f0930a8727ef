//! The entries of lists.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read},
    num::NonZeroUsize,
    panic::resume_unwind,
    path::Path,
    sync::{Mutex, MutexGuard},
    thread,
};

use super::{
    format::SummaryFile,
    log::{self, Log, Tail, try_lock},
    place::{self, ConversationFolder, LOG, Seen},
    read, turns,
};
use crate::{
    message::Timestamp,
    store::{ConversationId, Filter, Page, StoreError, Summary, Version},
    sync::lock,
};

/// Reads the summary file, which may be out of date.
pub(super) fn read(place: &ConversationFolder<'_>) -> Option<SummaryFile> {
    // If the path is a pipe, opening it would wait for a writer.
    if !fs::metadata(place.summary()).ok()?.is_file() {
        return None;
    }
    // `fs::read` would query the length first and read once more at the end. These extra calls matter because a list
    // reads many summaries.
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

/// Saves a summary and returns whether this succeeded. A failure does not affect the preceding write, because the
/// summary can be rebuilt from the log. The log must be locked.
pub(super) fn save(place: &ConversationFolder<'_>, summary: &SummaryFile) -> bool {
    let saved = place.replace_summary(&summary.encode());
    if let Err(error) = &saved {
        let error: &dyn std::error::Error = error;
        tracing::debug!(error, "a summary could not be saved; the next list rebuilds it from the log");
    }
    saved.is_ok()
}

/// Summaries that required reading a log and could not be saved: those of damaged logs, and those in a read-only
/// folder. Each summary is valid until its log is written to. With these summaries, later lists do not have to read the
/// logs again.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<HashMap<ConversationId, (Seen, Summary)>>);

impl Findings {
    // Poisoning can be ignored, because no code that holds the lock can panic.
    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationId, (Seen, Summary)>> {
        lock(&self.0)
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

    /// Removes the entries of all conversations except these.
    fn retain(&self, ids: &[ConversationId]) {
        let mut findings = self.lock();
        if !findings.is_empty() {
            let ids: HashSet<_> = ids.iter().collect();
            findings.retain(|id, _| ids.contains(id));
        }
    }
}

/// Returns the list entry of the conversation, if the conversation exists. An outdated summary is updated if `refresh`,
/// the number of updates that remain, is not zero.
pub(super) fn summarise(
    place: &ConversationFolder<'_>,
    findings: &Findings,
    refresh: &mut usize,
) -> Result<Option<Summary>, StoreError> {
    let (len, mut seen) = match fs::metadata(place.log()) {
        Ok(log) if log.is_file() => (log.len(), Seen::of(&log)),
        // The path exists but is not a file, so it is not a conversation.
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
            // The log changed while it was read, so read it again. The reader may have seen an incomplete line that a
            // writer was replacing.
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

/// Returns a summary for a log that can't be read.
fn unknown(place: &ConversationFolder<'_>) -> Summary {
    let touched = fs::metadata(place.log()).and_then(|log| log.modified()).ok();
    let touched = touched.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let touched = touched.and_then(|since| u64::try_from(since.as_millis()).ok());
    Summary::new(place.id().clone(), Version::new(0), Timestamp(touched.unwrap_or_default()))
}

/// A summary that was built from the log.
struct Found {
    summary: Summary,
    /// Whether the whole log had to be read, and the next list would have to read it again.
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
    let (summary, was_known) = current(&log, &tail, saved)?;
    // If the saved summary did not contain the title, the labels and the approvals, the whole log had to be read. This
    // is so slow that the result is saved even if no updates remain.
    let wanted = !was_known || *refresh > 0;
    *refresh = refresh.saturating_sub(1);
    // If the summary can't be saved, it is still returned. For example, some file systems can't lock files that are
    // open for reading.
    let is_current = || {
        matches!(try_lock(&place.log(), &file), Ok(true))
            && matches!(place.is_gone(&file), Ok(false))
            && matches!(log.len(), Ok(len) if len == tail.end)
    };
    let is_saved = wanted && is_current() && save(place, &summary);
    let is_costly = !was_known && !is_saved;
    Ok(Some(Found { summary: summary.into_summary(), is_costly }))
}

/// Returns the summary at the end of the log, and whether the saved summary contained its title, labels and approvals.
pub(super) fn current(
    log: &Log<'_>,
    tail: &Tail,
    saved: Option<&SummaryFile>,
) -> Result<(SummaryFile, bool), StoreError> {
    let known = saved.filter(|saved| saved.has_tags_of(&tail.stamp));
    let tags = match known {
        Some(saved) => saved.tags(),
        None => read::tags(log)?,
    };
    let waits = tail.stamp.turn.is_some_and(|turn| turn.waiting > 0);
    let knows_approvals = !waits || saved.is_some_and(|saved| saved.approvals_of(&tail.stamp).is_some());
    let approvals = turns::approvals(log, tail, saved)?;
    let summary = SummaryFile::new(&log.header, &tail.stamp, tags, approvals, tail.end).with_mark_of(saved);
    Ok((summary, known.is_some() && knows_approvals))
}

/// The number of conversations for each thread that makes a list.
const SHARE: usize = 500;
/// The maximum number of summaries that each thread updates. Usually few conversations were written to since the last
/// list. The limit prevents a single list from updating the summaries of all conversations that were never listed.
const REFRESHED: usize = 500;

/// Returns the conversations in the folder that match the filter and are on this page.
pub(super) fn list(
    folder: &Path,
    findings: &Findings,
    filter: &Filter,
    page: Page,
) -> Result<Vec<Summary>, StoreError> {
    let ids = ids(folder)?;
    findings.retain(&ids);
    let summaries = in_parallel(&ids, SHARE, |share| {
        let mut summaries = summarise_all(folder, findings, share)?;
        summaries.retain(|summary| filter.matches(&summary.labels));
        Ok(summaries)
    })?;
    let all = summaries.iter().map(|summary| (summary.updated, &summary.id, summary));
    Ok(page.cut(all.collect()).into_iter().cloned().collect())
}

/// Divides conversations among threads, each of which gets about `share` of them, and returns the results.
pub(super) fn in_parallel<T: Send>(
    ids: &[ConversationId],
    share: usize,
    work: impl Fn(&[ConversationId]) -> Result<Vec<T>, StoreError> + Sync,
) -> Result<Vec<T>, StoreError> {
    const MAX_THREADS: usize = 4;

    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = ids.len().div_ceil(share).clamp(1, cores.min(MAX_THREADS));
    if threads == 1 {
        return work(ids);
    }
    let work = &work;
    let shares = thread::scope(|scope| {
        let shares = ids.chunks(ids.len().div_ceil(threads));
        let spawn = |share| (share, thread::Builder::new().spawn_scoped(scope, move || work(share)));
        let threads: Vec<_> = shares.map(spawn).collect();
        let shares = threads.into_iter().map(|(share, spawned)| match spawned {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The process can't start more threads, so this thread does the work.
            Err(_) => work(share),
        });
        shares.collect::<Result<Vec<_>, _>>()
    })?;
    Ok(shares.into_iter().flatten().collect())
}

pub(super) fn summarise_all(
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

/// Returns the description of the problem if the problem concerns only this conversation. Returns `None` for a lack of
/// descriptors or memory. Also returns `None` for a problem with the folder, because such a problem is reported as a
/// separate error.
pub(super) fn problem(place: &ConversationFolder<'_>, error: &StoreError) -> Option<String> {
    // These errors have no stable kind in the standard library: too many open files, either in this process or in the
    // system.
    const OF_ALL: [i32; 2] = if cfg!(unix) { [24, 23] } else { [4, 4] };

    let (StoreError::Failed { source, .. } | StoreError::Denied { source, .. }) = error else {
        return None;
    };
    let system = source.downcast_ref::<io::Error>()?;
    let of_all = system.kind() == io::ErrorKind::OutOfMemory
        || system.raw_os_error().is_some_and(|code| OF_ALL.contains(&code));
    (!of_all && place.check_folder().is_ok()).then(|| format!("{error}: {system}"))
}

/// Returns the conversations in the folder, in no particular order. Files with other names are ignored.
pub(super) fn ids(folder: &Path) -> Result<Vec<ConversationId>, StoreError> {
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

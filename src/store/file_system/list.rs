//! Lists of conversations and of turns in flight.

use std::{fs, io, path::Path};

use super::{
    log,
    place::{LOG, LogPath, check_folder, failed},
};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Listing, StoreError, Summary, TurnSummary, Turns, Version,
        attachments::AttachmentCodec,
    },
};

/// Returns the list entry of the conversation, if the conversation exists.
pub(super) fn summary(place: &LogPath<'_>) -> Result<Option<Summary>, StoreError> {
    match log::read(place, |log| Ok(log.tail()?.map(|tail| tail.last.into_summary()))) {
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error @ (StoreError::Damaged { .. } | StoreError::UnknownFormat { .. })) => {
            Ok(Some(damaged(place, error.to_string())))
        }
        read => read,
    }
}

/// Returns the same as [`summary`]. If a problem concerns only this conversation, the list entry contains it.
fn listed(place: &LogPath<'_>) -> Result<Option<Summary>, StoreError> {
    summary(place).or_else(|error| match problem(place, &error) {
        Some(problem) => Ok(Some(damaged(place, problem))),
        None => Err(error),
    })
}

/// Returns the list entry for a log that can't be read.
fn damaged(place: &LogPath<'_>, problem: String) -> Summary {
    let touched = fs::metadata(&place.log).and_then(|log| log.modified()).ok();
    let touched = touched.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let touched = touched.and_then(|since| u64::try_from(since.as_millis()).ok());
    let touched = Timestamp(touched.unwrap_or_default());
    Summary { damage: Some(problem), ..Summary::new(place.id.clone(), Version::new(0), touched) }
}

/// Returns the description of the problem if the problem concerns only this conversation. Returns `None` for a lack of
/// descriptors or memory. Also returns `None` for a problem with the folder, because such a problem is reported as a
/// separate error.
fn problem(place: &LogPath<'_>, error: &StoreError) -> Option<String> {
    // These errors have no stable kind in the standard library: too many open files, either in this process or in the
    // system.
    const OF_ALL: [i32; 2] = if cfg!(unix) { [24, 23] } else { [4, 4] };

    let (StoreError::Failed { source, .. } | StoreError::Denied { source, .. }) = error else {
        return None;
    };
    let system = source.downcast_ref::<io::Error>()?;
    let of_all = system.kind() == io::ErrorKind::OutOfMemory
        || system.raw_os_error().is_some_and(|code| OF_ALL.contains(&code));
    (!of_all && check_folder(place.folder).is_ok()).then(|| format!("{error}: {system}"))
}

/// Returns the conversations in the folder that match the filter and are on this page.
pub(super) fn list(folder: &Path, Listing { filter, page }: Listing) -> Result<Vec<Summary>, StoreError> {
    let summaries =
        for_each(folder, |place| Ok(listed(place)?.filter(|summary| filter.matches(&summary.labels))))?;
    let all = summaries.iter().map(|summary| (summary.updated, &summary.id, summary));
    Ok(page.cut(all.collect()).into_iter().cloned().collect())
}

/// Lists turns in flight. Reads the whole log of each conversation whose entry shows a turn.
pub(super) fn turns(
    folder: &Path,
    which: Turns,
    Listing { filter, page }: &Listing,
) -> Result<Vec<TurnSummary>, StoreError> {
    let now = Timestamp::now();
    let all = for_each(folder, |place| {
        let summary = listed(place)?;
        if !summary.is_some_and(|summary| summary.in_flight && filter.matches(&summary.labels)) {
            return Ok(None);
        }
        let stored = match log::read(place, |log| log.replay(&AttachmentCodec::ignored(), |_| {})) {
            Ok(Some(replay)) => replay.stored,
            // The log can't be read or was deleted meanwhile, so leave the conversation out. A call that loads the
            // conversation reports the problem.
            Ok(None)
            | Err(
                StoreError::Damaged { .. } | StoreError::UnknownFormat { .. } | StoreError::NotFound { .. },
            ) => return Ok(None),
            Err(error) if problem(place, &error).is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(stored.turn.and_then(|turn| {
            let entry = TurnSummary::new(place.id.clone(), &turn);
            TurnSummary { labels: stored.state.labels, ..entry }.listed(which, now)
        }))
    })?;
    Ok(TurnSummary::page(all, page))
}

/// Returns the results of `work` for the conversations in the folder, in no particular order. Files with other names are
/// ignored.
pub(super) fn for_each<T>(
    folder: &Path,
    work: impl Fn(&LogPath<'_>) -> Result<Option<T>, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let done = ids(folder)?.into_iter().map(|id| work(&LogPath::new(folder, &id)));
    done.filter_map(Result::transpose).collect()
}

fn ids(folder: &Path) -> Result<Vec<ConversationId>, StoreError> {
    let failed = |error| failed("listing", folder, error);
    let entries = fs::read_dir(folder).map_err(|error| match check_folder(folder) {
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

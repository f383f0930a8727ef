//! The file of a recording.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Recording,
    canonical::{Rules, clean_pieces, json},
    difference::Difference,
    failure,
    recorder::Recorder,
};
use crate::{
    provider::{Delta, ProviderError, Request, Secret},
    sync::lock,
};

/// A line of the file: a request and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) request: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) deltas: Vec<TimedDelta>,
    /// The error with which the exchange ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<ProviderError>,
    /// The time between the last delta and the end, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) ended_after: u64,
    /// Whether the answer was dropped before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) dropped: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TimedDelta {
    /// The time since the previous delta, in milliseconds. For the first delta, the time since the request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) after: u64,
    #[serde(flatten)]
    pub(super) delta: Delta,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The result of the search for the recorded answer to a request.
pub(super) enum Found {
    Line(Line),
    /// No answer is recorded, so the exchange has to be recorded.
    Nothing(Recorder),
}

/// A recording, with its file.
pub(super) struct Cassette {
    path: PathBuf,
    recording: Recording,
    /// The lines of the file, and then the new exchanges in the order of their requests. `None` before the file is
    /// read.
    entries: Mutex<Option<Vec<Entry>>>,
}

struct Entry {
    request: Value,
    /// The JSON of the line, and the line itself. `None` while the exchange is in progress.
    line: Option<(String, Line)>,
    is_used: bool,
}

impl Cassette {
    pub(super) fn new(path: PathBuf, recording: Recording) -> Self {
        Self { path, recording, entries: Mutex::new(None) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn recording(&self) -> Recording {
        self.recording
    }

    /// Returns the next recorded answer to an equal request, or the recorder of a new exchange.
    pub(super) fn find(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        request: &Request,
        secrets: Vec<Secret>,
    ) -> Result<Found, ProviderError> {
        let canonical = rules.canonical(request, &secrets)?;
        self.with_entries(rules, |entries| {
            let may_replay = self.recording != Recording::Record;
            let unused = entries.iter_mut().filter(|entry| may_replay && !entry.is_used);
            for entry in unused.filter(|entry| entry.request == canonical) {
                if let Some((_, line)) = &entry.line {
                    entry.is_used = true;
                    return Ok(Found::Line(line.clone()));
                }
            }
            if self.recording == Recording::Replay {
                return Err(self.no_answer(entries, &canonical));
            }
            let number = entries.len();
            entries.push(Entry { request: canonical, line: None, is_used: true });
            Ok(Found::Nothing(Recorder::new(Arc::clone(self), Arc::clone(rules), number, secrets)))
        })
    }

    pub(super) fn unused(&self, rules: &Rules) -> Result<usize, ProviderError> {
        self.with_entries(rules, |entries| Ok(entries.iter().filter(|entry| !entry.is_used).count()))
    }

    /// Adds the answer to the request with this number, and writes the file.
    pub(super) fn add(
        &self,
        rules: &Rules,
        number: usize,
        secrets: &[Secret],
        make: impl FnOnce(Value) -> Line,
    ) -> Result<(), ProviderError> {
        self.with_entries(rules, |entries| {
            let entry = &mut entries[number];
            let mut line = make(entry.request.clone());
            clean_pieces(line.deltas.iter_mut().map(|timed| &mut timed.delta), secrets);
            let mut value = json(&line)?;
            if let Some(members) = value.as_object_mut() {
                // Secrets were already removed from the request, so they are removed from the other members only.
                let answer = members.iter_mut().filter(|(name, _)| *name != "request");
                answer.for_each(|(_, member)| rules.clean(member, secrets));
            }
            entry.line = Some((value.to_string(), line));
            self.write(entries).map_err(|error| {
                failure(format!("the recording {} can't be written", self.path.display())).with_source(error)
            })
        })
    }

    /// Returns the error for a replay that needs more of a response than was recorded. When the response was recorded,
    /// its reader dropped it at this point.
    pub(super) fn dropped(&self) -> ProviderError {
        failure(format!(
            "the recording {} has no more of this answer, because it was dropped here; record the test again with \
             OMNI_RECORD=record",
            self.path.display()
        ))
    }

    fn with_entries<T>(
        &self,
        rules: &Rules,
        work: impl FnOnce(&mut Vec<Entry>) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let mut entries = lock(&self.entries);
        match &mut *entries {
            Some(entries) => work(entries),
            none => work(none.insert(self.read(rules)?)),
        }
    }

    fn read(&self, rules: &Rules) -> Result<Vec<Entry>, ProviderError> {
        if self.recording == Recording::Record {
            return Ok(Vec::new());
        }
        let path = self.path.display();
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.recording == Recording::Missing {
                    return Ok(Vec::new());
                }
                let words = format!("the recording {path} does not exist; record it with OMNI_RECORD=record");
                return Err(failure(words));
            }
            Err(error) => {
                return Err(failure(format!("the recording {path} can't be read")).with_source(error));
            }
        };
        let lines = text.lines().enumerate().map(|(index, json)| {
            let mut line: Line = serde_json::from_str(json).map_err(|error| {
                let words = format!("line {} of the recording {path} is invalid", index + 1);
                failure(words).with_source(error)
            })?;
            rules.ignore(&mut line.request);
            line.request.sort_all_objects();
            Ok(Entry { request: line.request.clone(), line: Some((json.to_owned(), line)), is_used: false })
        });
        lines.collect()
    }

    /// Writes the lines, sorted by request. Equal requests keep their order.
    fn write(&self, entries: &[Entry]) -> io::Result<()> {
        let mut lines: Vec<(String, &str)> = entries
            .iter()
            .filter_map(|entry| Some((entry.request.to_string(), &*entry.line.as_ref()?.0)))
            .collect();
        lines.sort_by(|one, other| one.0.cmp(&other.0));
        let text: String = lines.iter().flat_map(|(_, line)| [line, "\n"]).collect();
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut draft = self.path.clone().into_os_string();
        draft.push(format!(".{}.tmp", std::process::id()));
        fs::write(&draft, text)?;
        fs::rename(&draft, &self.path)
    }

    fn no_answer(&self, entries: &[Entry], sent: &Value) -> ProviderError {
        const ADVICE: &str =
            "record the test again with OMNI_RECORD=record, or add the request with OMNI_RECORD=missing";
        let path = self.path.display();
        let equal = entries.iter().filter(|entry| entry.request == *sent).count();
        if equal > 0 {
            return failure(format!(
                "the recording {path} has no answer left for this request: the request was sent more than {equal} \
                 times; {ADVICE}"
            ));
        }
        let differences = entries.iter().map(|entry| Difference::between(&entry.request, sent));
        let nearest = match differences.min_by_key(|difference| difference.count) {
            Some(nearest) => format!("the nearest request of the file differs at {}", nearest.first),
            None => "the file is empty".to_owned(),
        };
        failure(format!("the recording {path} has no answer to this request: {nearest}; {ADVICE}"))
    }
}

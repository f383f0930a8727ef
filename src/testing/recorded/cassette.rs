//! The file of a recording, the form in which requests are written and compared, and the description of a difference
//! between two requests.

use std::{
    collections::HashMap,
    fs, io,
    mem::{Discriminant, discriminant, take},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CassetteRecorder, Recording, failure};
use crate::{
    provider::{Delta, Part, Provider, ProviderError, Request, Secret},
    sync::lock,
    text::{clip, start},
};

/// A line of the file: a request and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CassetteLine {
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
pub(super) enum CassetteMatch {
    Line(CassetteLine),
    /// No answer is recorded, so the exchange has to be recorded.
    Nothing(CassetteRecorder),
}

/// A recording, with its file.
pub(super) struct Cassette {
    path: PathBuf,
    recording: Recording,
    /// The lines of the file, and then the new exchanges in the order of their requests. `None` before the file is
    /// read.
    entries: Mutex<Option<Vec<CassetteEntry>>>,
}

struct CassetteEntry {
    request: Value,
    /// The JSON of the line, and the line itself. `None` while the exchange is in progress.
    line: Option<(String, CassetteLine)>,
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
        rules: &Arc<CassetteRules>,
        request: &Request,
        secrets: Vec<Secret>,
    ) -> Result<CassetteMatch, ProviderError> {
        let canonical = rules.canonical(request, &secrets)?;
        self.with_entries(rules, |entries| {
            let may_replay = self.recording != Recording::Record;
            let unused = entries.iter_mut().filter(|entry| may_replay && !entry.is_used);
            for entry in unused.filter(|entry| entry.request == canonical) {
                if let Some((_, line)) = &entry.line {
                    entry.is_used = true;
                    return Ok(CassetteMatch::Line(line.clone()));
                }
            }
            if self.recording == Recording::Replay {
                return Err(self.no_answer(entries, &canonical));
            }
            let number = entries.len();
            entries.push(CassetteEntry { request: canonical, line: None, is_used: true });
            Ok(CassetteMatch::Nothing(CassetteRecorder::new(
                Arc::clone(self),
                Arc::clone(rules),
                number,
                secrets,
            )))
        })
    }

    pub(super) fn unused(&self, rules: &CassetteRules) -> Result<usize, ProviderError> {
        self.with_entries(rules, |entries| Ok(entries.iter().filter(|entry| !entry.is_used).count()))
    }

    /// Adds the answer to the request with this number, and writes the file.
    pub(super) fn add(
        &self,
        rules: &CassetteRules,
        number: usize,
        secrets: &[Secret],
        make: impl FnOnce(Value) -> CassetteLine,
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
        rules: &CassetteRules,
        work: impl FnOnce(&mut Vec<CassetteEntry>) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let mut entries = lock(&self.entries);
        match &mut *entries {
            Some(entries) => work(entries),
            none => work(none.insert(self.read(rules)?)),
        }
    }

    fn read(&self, rules: &CassetteRules) -> Result<Vec<CassetteEntry>, ProviderError> {
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
            let mut line: CassetteLine = serde_json::from_str(json).map_err(|error| {
                let words = format!("line {} of the recording {path} is invalid", index + 1);
                failure(words).with_source(error)
            })?;
            rules.ignore(&mut line.request);
            line.request.sort_all_objects();
            Ok(CassetteEntry {
                request: line.request.clone(),
                line: Some((json.to_owned(), line)),
                is_used: false,
            })
        });
        lines.collect()
    }

    /// Writes the lines, sorted by request. Equal requests keep their order.
    fn write(&self, entries: &[CassetteEntry]) -> io::Result<()> {
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

    fn no_answer(&self, entries: &[CassetteEntry], sent: &Value) -> ProviderError {
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
        let differences = entries.iter().map(|entry| JsonDifferences::between(&entry.request, sent));
        let nearest = match differences.min_by_key(|difference| difference.count) {
            Some(nearest) => format!("the nearest request of the file differs at {}", nearest.first),
            None => "the file is empty".to_owned(),
        };
        failure(format!("the recording {path} has no answer to this request: {nearest}; {ADVICE}"))
    }
}

type ScrubFn = dyn Fn(&str) -> String + Send + Sync;

/// The rules for writing and comparing requests.
#[derive(Clone, Default)]
pub(super) struct CassetteRules {
    /// The JSON pointers of ignored parts of requests.
    pub(super) ignored: Vec<String>,
    pub(super) scrub: Option<Arc<ScrubFn>>,
    pub(super) is_in_real_time: bool,
}

/// The members of a message that are not compared. Of these, services receive only the provider data.
const NOT_COMPARED: [&str; 6] = ["timestamp", "provider_data", "id", "app_data", "ended", "context_tokens"];

impl CassetteRules {
    /// Returns the canonical form of a request.
    pub(super) fn canonical(&self, request: &Request, secrets: &[Secret]) -> Result<Value, ProviderError> {
        let mut members = Map::new();
        members.insert("model".to_owned(), Value::from(&*request.model));
        if let Some(system) = &request.system {
            members.insert("system".to_owned(), Value::from(&**system));
        }
        let messages: Result<Vec<Value>, _> =
            request.history.iter().map(|message| json(&**message)).collect();
        let messages = messages?.into_iter().map(without_private_parts).collect();
        members.insert("messages".to_owned(), messages);
        let mut tools = json(&request.tools.declarations())?;
        for tool in tools.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            // The model does not see who runs a tool, so this member is not compared.
            tool.shift_remove("has_handler");
        }
        members.insert("tools".to_owned(), tools);
        members.insert("options".to_owned(), json(&request.options)?);
        members.retain(|_, member| !matches!(member, Value::Array(items) if items.is_empty()));
        members.retain(|_, member| !matches!(member, Value::Object(members) if members.is_empty()));
        let mut canonical = Value::Object(members);
        self.ignore(&mut canonical);
        self.clean(&mut canonical, secrets);
        canonical.sort_all_objects();
        Ok(canonical)
    }

    /// Removes the ignored parts of a request. Items of a list become `null`, so that other items keep their positions.
    pub(super) fn ignore(&self, request: &mut Value) {
        for pointer in &self.ignored {
            let Some((parent, name)) = pointer.rsplit_once('/') else { continue };
            match request.pointer_mut(parent) {
                Some(Value::Object(members)) => {
                    members.shift_remove(&name.replace("~1", "/").replace("~0", "~"));
                }
                Some(Value::Array(items)) => {
                    let item = name.parse().ok().and_then(|index: usize| items.get_mut(index));
                    if let Some(item) = item {
                        *item = Value::Null;
                    }
                }
                _ => {}
            }
        }
    }

    /// Removes the secrets from all texts, and applies the application's `scrub` function to them.
    pub(super) fn clean(&self, value: &mut Value, secrets: &[Secret]) {
        match value {
            Value::String(text) => {
                *text = without(secrets, text);
                if let Some(scrub) = &self.scrub {
                    *text = scrub(text);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.clean(item, secrets)),
            Value::Object(members) => members.values_mut().for_each(|member| self.clean(member, secrets)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Returns the key and the values of the headers of a request, and the secrets that the provider adds.
pub(super) fn secrets(provider: &dyn Provider, request: &Request) -> Vec<Secret> {
    let options = &request.options;
    let headers = options.headers().into_iter().flat_map(|headers| headers.values());
    let own = options.api_key().into_iter().chain(headers).cloned();
    own.chain(provider.secrets(request)).collect()
}

/// Removes the secrets from the texts that arrive in pieces. If a secret extends over several pieces, the first piece
/// gets the whole text without the secret, and the other pieces become empty.
pub(super) fn clean_pieces<'d>(deltas: impl IntoIterator<Item = &'d mut Delta>, secrets: &[Secret]) {
    let mut texts: HashMap<(usize, Discriminant<Part>), Vec<&mut String>> = HashMap::new();
    for delta in deltas {
        let Delta::Extend { index, part } = delta else { continue };
        let kind = discriminant(&*part);
        match part {
            Part::Text(piece) | Part::Input(piece) | Part::Signature(piece) | Part::Redacted(piece) => {
                texts.entry((*index, kind)).or_default().push(piece);
            }
            Part::Item(_) => {}
        }
    }
    for pieces in texts.into_values() {
        let whole: String = pieces.iter().map(|piece| piece.as_str()).collect();
        let mut whole = without(secrets, &whole);
        let separately: String = pieces.iter().map(|piece| without(secrets, piece)).collect();
        if whole != separately {
            for piece in pieces {
                *piece = take(&mut whole);
            }
        }
    }
}

fn without(secrets: &[Secret], text: &str) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
}

/// Returns the value as JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Value, ProviderError> {
    serde_json::to_value(value)
        .map_err(|error| failure("the exchange can't be recorded as JSON").with_source(error))
}

fn without_private_parts(mut message: Value) -> Value {
    if let Some(members) = message.as_object_mut() {
        for name in NOT_COMPARED {
            members.shift_remove(name);
        }
    }
    without_unsent_parts(&mut message);
    message
}

/// Removes the parts of blocks that no service receives: the application's metadata from attachments, including the
/// attachments of tool results, and the decisions from tool results.
fn without_unsent_parts(holder: &mut Value) {
    let Some(blocks) = holder.get_mut("content").and_then(Value::as_array_mut) else { return };
    for block in blocks {
        let unsent = match block.get("type").and_then(Value::as_str) {
            Some("attachment") => "metadata",
            Some("tool_result") => "decision",
            _ => continue,
        };
        if let Some(members) = block.as_object_mut() {
            members.shift_remove(unsent);
        }
        without_unsent_parts(block);
    }
}

/// The maximum number of bytes that are shown of a value.
const SHOWN: usize = 120;
/// The number of bytes that are shown before the first difference of two texts.
const BEFORE: usize = 40;

/// The differences between two values.
#[derive(Debug, Default)]
pub(super) struct JsonDifferences {
    /// The number of members and items that differ.
    pub(super) count: usize,
    /// The description of the first difference.
    pub(super) first: String,
}

impl JsonDifferences {
    /// Compares a recorded request with the request that was sent.
    pub(super) fn between(recorded: &Value, sent: &Value) -> Self {
        let mut difference = Self::default();
        difference.compare(Some(recorded), Some(sent), "");
        difference
    }

    fn compare(&mut self, recorded: Option<&Value>, sent: Option<&Value>, at: &str) {
        match (recorded, sent) {
            (Some(Value::Object(recorded)), Some(Value::Object(sent))) => {
                let added = sent.keys().filter(|name| !recorded.contains_key(*name));
                for name in recorded.keys().chain(added) {
                    let escaped = name.replace('~', "~0").replace('/', "~1");
                    self.compare(recorded.get(name), sent.get(name), &format!("{at}/{escaped}"));
                }
            }
            (Some(Value::Array(recorded)), Some(Value::Array(sent))) => {
                for index in 0..recorded.len().max(sent.len()) {
                    self.compare(recorded.get(index), sent.get(index), &format!("{at}/{index}"));
                }
            }
            (recorded, sent) if recorded == sent => {}
            (recorded, sent) => {
                if self.count == 0 {
                    let (recorded, sent) = shown(recorded, sent);
                    self.first = format!("{at}: {recorded} was recorded, {sent} was sent");
                }
                self.count += recorded.map_or(0, leaves).max(sent.map_or(0, leaves));
            }
        }
    }
}

/// Returns the number of values in `value`, including `value` itself.
fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(leaves).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(leaves).sum::<usize>(),
        _ => 1,
    }
}

/// Returns short forms of two different values. Long texts are shown from shortly before their first difference.
fn shown(recorded: Option<&Value>, sent: Option<&Value>) -> (String, String) {
    if let (Some(Value::String(recorded)), Some(Value::String(sent))) = (recorded, sent) {
        let pairs = recorded.char_indices().zip(sent.chars());
        let equal = pairs.take_while(|((_, one), other)| one == other).last();
        let equal = equal.map_or(0, |((at, one), _)| at + one.len_utf8());
        let from = start(recorded, equal.saturating_sub(BEFORE)).len();
        return (text_from(recorded, from), text_from(sent, from));
    }
    let show = |value: Option<&Value>| {
        value.map_or_else(|| "nothing".to_owned(), |value| clip(&value.to_string(), SHOWN).into_owned())
    };
    (show(recorded), show(sent))
}

fn text_from(text: &str, from: usize) -> String {
    let omitted = if from > 0 { "…" } else { "" };
    format!("{:?}", format!("{omitted}{}", clip(&text[from..], SHOWN)))
}

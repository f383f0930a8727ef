//! The record in a line of a log: one write. This module does no input or output.
//!
//! ```text
//! {"files":["…"],"data":["…"],"change":{…},"version":78,"write":"…","time":1763769601234,"entry":{…}}
//! └─ the files, if any                    └─ the stamp                                  └─ the entry
//! ```
//!
//! The names of files are hexadecimal digits, and their data is base64, so the second `]` ends them. The names come
//! first, so that a write can look for a file without reading the data of others.
//!
//! Lists and writes parse only the stamp and the entry, which begin at the last `,"version":` of the record. No content
//! can imitate this text. The change, which contains messages and inputs of tools, stands before it. Everything behind
//! it is a number, a string or a member whose name is fixed in [`LogRecordFields`] and [`ConversationListEntry`], and none of these members but
//! the first is named `version`. In a string, JSON escapes each quote, so a title can't contain `,"`. The names of
//! labels, which applications choose, are strings in an array and not names of members, so no colon follows them.

use std::{collections::HashSet, rc::Rc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned, de::Error as _};
use serde_json::Value;

use super::log;
use crate::{
    message::Timestamp,
    run::RunEnd,
    store::{
        Change, Commit, ConversationId, Labels, StateChange, StoreError, StoredState, Summary, TurnChange,
        Version, WriteId,
        attachments::{AttachmentCodec, UsedFiles},
        json,
    },
    subscription::EventId,
    tree::{Erased, Node, NodeId},
};

/// The version of the format.
pub(super) const FORMAT: u64 = 10;
/// The beginning of the change. An opening brace or a comma precedes it.
const CHANGE: &[u8] = b"\"change\":";
/// The beginning of a record with files.
const FILES: &[u8] = b"{\"files\":[";
/// The beginning of a stamp.
const STAMP: &[u8] = b",\"version\":";
/// The beginning of an entry.
const ENTRY: &[u8] = b",\"entry\":";

/// The change that a write made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogChange {
    // Most lines are commits, so larger variants are boxed.
    Create(Box<StoredState>),
    Commit(Commit),
    State(StateChange),
    Erase(Box<LoggedErasure>),
    /// The last event of a session's feed. Not a write: the line has the version and the id of the line before it.
    Mark(EventId),
}

impl LogChange {
    /// Returns the change as it is logged. A log has no place for schedules.
    pub(super) fn of(change: Change) -> Result<Self, StoreError> {
        Ok(match change {
            Change::Create(state) => Self::Create(state),
            Change::Commit(commit) => Self::Commit(commit),
            Change::State(change) => Self::State(change),
            Change::Erase(erased) => {
                let erasure = LoggedErasure { erased, state: StoredState::default(), last_run: None };
                Self::Erase(Box::new(erasure))
            }
            Change::Schedule(_) => return Err(StoreError::unsupported("schedules")),
        })
    }
}

/// The removal of nodes. The lines before it no longer contain these nodes, nor any state, turn in flight or end of a
/// run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LoggedErasure {
    #[serde(flatten)]
    pub(super) erased: Erased,
    /// The state after the erasure.
    pub(super) state: StoredState,
    /// The end of the last run after the erasure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_run: Option<RunEnd>,
}

/// The members of a record between the change and the entry.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogRecordFields {
    /// The version of the conversation after the write.
    pub(super) version: Version,
    pub(super) write: WriteId,
    pub(super) time: Timestamp,
}

/// The facts for a list, after the write.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConversationListEntry {
    format: u64,
    pub(super) id: ConversationId,
    pub(super) created: Timestamp,
    /// The time of the last write that counts in lists.
    pub(super) updated: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    head: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Labels::is_empty",
        serialize_with = "as_pairs",
        deserialize_with = "from_pairs"
    )]
    labels: Labels,
    /// If a turn is in flight, the number of its tool uses that wait for a decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<usize>,
}

fn as_pairs<S: Serializer>(labels: &Labels, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(labels.iter())
}

fn from_pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
    Labels::new(Vec::<(String, String)>::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl ConversationListEntry {
    pub(super) fn parse(entry: &[u8]) -> Result<Self, String> {
        let entry: Self = parse(entry)?;
        let is_known = entry.format == FORMAT;
        is_known.then_some(entry).ok_or_else(|| "it has another format version".to_owned())
    }

    fn apply(&mut self, change: &LogChange, time: Timestamp) {
        match change {
            LogChange::Create(state) | LogChange::State(StateChange::Whole(state)) => self.describe(state),
            LogChange::State(StateChange::Title { title, .. }) => self.title.clone_from(title),
            LogChange::State(StateChange::Labels(labels)) => self.labels = labels.clone(),
            LogChange::Erase(erasure) => {
                (self.head, self.turn) = (erasure.erased.head, None);
                self.describe(&erasure.state);
            }
            LogChange::Mark(_) => return,
            LogChange::Commit(commit) => {
                let is_update = commit.is_update(self.head);
                self.turn = match commit.turn.as_deref() {
                    _ if commit.ends_turn(self.head) => None,
                    Some(TurnChange::Record(record)) => {
                        let waiting = record.waiting.iter().map(|waiting| &waiting.tool_use.id);
                        Some(waiting.collect::<HashSet<_>>().len())
                    }
                    _ => self.turn,
                };
                self.head = commit.head;
                if let Some(state) = &commit.state {
                    self.describe(state);
                }
                // A commit that only records usage, the turn in flight or the end of a run does not count.
                if !is_update {
                    return;
                }
            }
        }
        // The clock may have been set back since the last write, but the place in lists never moves back.
        self.updated = self.updated.max(time);
    }

    fn describe(&mut self, state: &StoredState) {
        (self.title, self.labels) = (state.title.clone(), state.labels.clone());
    }

    /// Removes the parts that an erasure makes void.
    pub(super) fn clear(&mut self) {
        (self.title, self.labels, self.turn) = (None, Labels::NONE, None);
    }
}

/// The part of a record after its change.
#[derive(Clone)]
pub(super) struct LogRecordTrailer {
    pub(super) stamp: LogRecordFields,
    pub(super) entry: ConversationListEntry,
}

impl LogRecordTrailer {
    /// Returns the end of the record of the write that creates a conversation.
    pub(super) fn first(id: ConversationId, write: WriteId, change: &LogChange) -> Self {
        let (time, labels) = (Timestamp::now(), Labels::NONE);
        let mut entry = ConversationListEntry {
            format: FORMAT,
            id,
            created: time,
            updated: time,
            head: None,
            title: None,
            labels,
            turn: None,
        };
        entry.apply(change, time);
        Self { stamp: LogRecordFields { version: Version::first(), write, time }, entry }
    }

    /// Returns the end of the record of the next write.
    pub(super) fn next(mut self, write: WriteId, change: &LogChange) -> Self {
        let time = Timestamp::now();
        self.entry.apply(change, time);
        Self { stamp: LogRecordFields { version: self.stamp.version.next(), write, time }, ..self }
    }

    /// Parses the end of a record.
    pub(super) fn parse(record: &[u8]) -> Result<Self, String> {
        let parts = LogRecordParts::of(record)?;
        Ok(Self { stamp: parts.stamp()?, entry: ConversationListEntry::parse(parts.entry)? })
    }

    pub(super) fn into_summary(self) -> Summary {
        let ConversationListEntry { id, created, updated, title, labels, turn, .. } = self.entry;
        Summary {
            title,
            labels,
            updated,
            in_flight: turn.is_some(),
            waiting: turn.map_or(0, |waiting| u32::try_from(waiting).unwrap_or(u32::MAX)),
            ..Summary::new(id, self.stamp.version, created)
        }
    }
}

/// The names of the files in a record, and their bytes in base64.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogRecordFiles<T> {
    files: Vec<T>,
    data: Vec<T>,
}

/// Returns the names of the files in a record, of which only the beginning is given. Names that are incomplete or do not
/// belong to a record are left out.
pub(super) fn file_names(beginning: &[u8]) -> Vec<String> {
    let names = beginning.strip_prefix(FILES).and_then(|rest| rest.split(|byte| *byte == b']').next());
    let names = String::from_utf8_lossy(names.unwrap_or_default()).replace('"', "");
    names.split(',').filter(|name| name.len() == 64).map(str::to_owned).collect()
}

/// Returns whether the beginning of a record contains the names of all its files.
pub(super) fn has_all_names(beginning: &[u8]) -> bool {
    !beginning.starts_with(FILES) || beginning.contains(&b']')
}

/// The texts of the parts of a record.
pub(super) struct LogRecordParts<'a> {
    /// The files without the closing brace. Empty if there are none.
    files: &'a [u8],
    change: &'a [u8],
    stamp: &'a [u8],
    pub(super) entry: &'a [u8],
}

impl<'a> LogRecordParts<'a> {
    pub(super) fn of(record: &'a [u8]) -> Result<Self, String> {
        let after =
            |from: usize| record[from..].iter().position(|byte| *byte == b']').map(|at| from + at + 1);
        let split = || {
            let from = if record.starts_with(FILES) { after(after(0)?)? } else { 0 };
            let (files, record) = record.split_at(from);
            let at = record.windows(STAMP.len()).rposition(|bytes| bytes == STAMP)?;
            let (change, rest) = record.split_at(at);
            let at = rest.windows(ENTRY.len()).position(|bytes| bytes == ENTRY)?;
            let (stamp, entry) = (&rest[1..at], rest[at + ENTRY.len()..].strip_suffix(b"}")?);
            let change = change.strip_prefix(if from == 0 { b"{" } else { b"," })?.strip_prefix(CHANGE)?;
            Some(Self { files, change, stamp, entry })
        };
        split().ok_or_else(|| "it does not contain a write".to_owned())
    }

    /// Returns the change. Adds those files of the record to `files` that it lacks. It must contain all files of the
    /// change then.
    pub(super) fn change(&self, files: &Rc<AttachmentCodec>) -> Result<LogChange, String> {
        if file_names(self.files).iter().any(|name| files.lacks(name)) {
            let text = [self.files, b"}"].concat();
            let LogRecordFiles::<&str> { files: names, data } =
                serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            for (name, data) in names.into_iter().zip(data).filter(|(name, _)| files.lacks(name)) {
                files.add(name.to_owned(), &BASE64_STANDARD.decode(data).unwrap_or_default());
            }
        }
        let change = files.apply(|| parse(self.change));
        change.map_err(|problem| self.node_without_file(files).unwrap_or(problem))
    }

    /// Returns the problem with the first node of a commit whose file is missing.
    fn node_without_file(&self, files: &Rc<AttachmentCodec>) -> Option<String> {
        let change: Value = parse(self.change).ok().filter(|_| files.has_missed.get())?;
        change.pointer("/commit/nodes")?.as_array()?.iter().find_map(|node| {
            let problem = files.apply(|| Node::deserialize(node)).err()?;
            Some(format!("node {}: {problem}", node["id"]))
        })
    }

    pub(super) fn stamp(&self) -> Result<LogRecordFields, String> {
        parse(&[b"{", self.stamp, b"}"].concat())
    }
}

/// Returns the JSON of a change, and the files to which it refers.
pub(super) fn encode_change(change: &LogChange, files: &Rc<AttachmentCodec>) -> (Vec<u8>, UsedFiles) {
    let mut text = Vec::new();
    files.apply(|| push(&mut text, change));
    (text, files.used.take())
}

/// Returns the line of a write without files.
pub(super) fn encode_record(change: &LogChange, end: &LogRecordTrailer) -> Result<Vec<u8>, StoreError> {
    encode_line(&encode_change(change, &Rc::default()).0, &UsedFiles::new(), end)
}

/// Returns the line of a write with this change, which contains these files.
pub(super) fn encode_line(
    change: &[u8],
    files: &UsedFiles,
    end: &LogRecordTrailer,
) -> Result<Vec<u8>, StoreError> {
    let mut text = log::begin();
    if files.is_empty() {
        text.push(b'{');
    } else {
        let (files, data) = files.iter().map(|(sha256, data)| (&**sha256, &**data)).unzip();
        push(&mut text, &LogRecordFiles::<&str> { files, data });
        // The change follows as another member.
        text.pop();
        text.push(b',');
    }
    text.extend_from_slice(CHANGE);
    text.extend_from_slice(change);
    let at = text.len();
    push(&mut text, &end.stamp);
    // The stamp continues the record, so it has no braces.
    text[at] = b',';
    text.pop();
    text.extend_from_slice(ENTRY);
    push(&mut text, &end.entry);
    text.push(b'}');
    let line = log::finish(text);
    let id = &end.entry.id;
    if line.len() > log::LONGEST {
        let problem = format!("its JSON is longer than {} bytes", log::LONGEST);
        return Err(StoreError::Unstorable { id: id.clone(), problem });
    }
    json::check_depth(id, &line)?;
    Ok(line)
}

/// Returns a line with this record.
pub(super) fn encode(record: &impl Serialize) -> Vec<u8> {
    let mut text = log::begin();
    push(&mut text, record);
    log::finish(text)
}

fn push(text: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(text, value).expect("messages and state have a JSON form");
}

pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    json::parse(std::str::from_utf8(text).map_err(|error| error.to_string())?)
}

/// Returns the version of the format that a line names, if it is not [`FORMAT`]. Finds the version in the first line of
/// files of all versions.
pub(super) fn other_format(line: &[u8]) -> Option<u64> {
    let record: Value = parse(log::record(line, 0).ok()?).ok()?;
    let format = record.get("format_version").or_else(|| record.pointer("/entry/format"));
    format.and_then(Value::as_u64).filter(|format| *format != FORMAT)
}

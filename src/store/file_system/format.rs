//! The records in a log, and the content of a summary. This module does no input or output.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::line;
use crate::{
    message::Timestamp,
    store::{Commit, ConversationId, Labels, StoreError, StoredState, Summary, Version, WriteId, json},
    tree::NodeId,
};

/// The version of the format that this crate writes.
pub(super) const FORMAT_VERSION: u64 = 1;
/// The name of the format, which the first line contains.
const FORMAT: &str = "omni-agent conversation";
/// The record of the first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    format: String,
    format_version: u64,
    pub(super) id: ConversationId,
    pub(super) created: Timestamp,
    /// The number of times that the log was compacted. If the number is not zero, lines may be missing, and the line of
    /// the last compaction lists them.
    pub(super) compactions: u64,
}

/// The members that identify the format version in the first line of any version.
#[derive(Deserialize)]
struct AnyHeader {
    format: String,
    format_version: u64,
}

impl Header {
    pub(super) fn new(id: ConversationId, created: Timestamp) -> Self {
        Self { format: FORMAT.to_owned(), format_version: FORMAT_VERSION, id, created, compactions: 0 }
    }

    pub(super) fn parse(record: &[u8], place: &str) -> Result<Self, StoreError> {
        let damaged = |problem| StoreError::damaged(place, problem);
        let any: AnyHeader = parse(record).map_err(damaged)?;
        if any.format != FORMAT {
            return Err(StoreError::damaged(place, "it is not the first line of a conversation"));
        }
        if any.format_version > FORMAT_VERSION {
            return Err(StoreError::UnknownFormat {
                place: place.to_owned(),
                found: any.format_version,
                known: FORMAT_VERSION,
            });
        }
        parse(record).map_err(damaged)
    }

    /// Returns the first line of the compacted log.
    pub(super) fn compacted(&self) -> Self {
        Self { compactions: self.compactions.saturating_add(1), ..self.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The record of any line except the first. Each record is one write.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record<C = Change> {
    /// The version of the conversation after the write.
    version: Version,
    write: WriteId,
    time: Timestamp,
    /// The last version that changed the state. A summary of an earlier version has an old title.
    state_version: Version,
    pub(super) change: C,
}

/// The members at the beginning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stamp {
    pub(super) version: Version,
    pub(super) write: WriteId,
    pub(super) time: Timestamp,
    pub(super) state_version: Version,
}

impl<C> Record<C> {
    pub(super) fn new(stamp: Stamp, change: C) -> Self {
        let Stamp { version, write, time, state_version } = stamp;
        Self { version, write, time, state_version, change }
    }

    pub(super) fn stamp(&self) -> Stamp {
        let Self { version, write, time, state_version, .. } = *self;
        Stamp { version, write, time, state_version }
    }
}

/// The change that a write made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    // Most lines are commits, so larger variants are boxed.
    Create(Box<StoredState>),
    Commit(Commit),
    State(Box<StoredState>),
    Title(Option<String>),
    Labels(Labels),
    Compacted(Box<Compacted>),
}

impl Change {
    /// Returns the new title, if this change replaces the title or the whole state.
    pub(super) fn title(&self) -> Option<&Option<String>> {
        match self {
            Self::Commit(commit) => commit.state.as_ref().map(|state| &state.title),
            Self::Create(state) | Self::State(state) => Some(&state.title),
            Self::Title(title) => Some(title),
            Self::Labels(_) => None,
            Self::Compacted(compacted) => Some(&compacted.state.title),
        }
    }
}

/// The combined effect of the lines without nodes that a compaction removed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compacted {
    pub(super) state: StoredState,
    pub(super) head: Option<NodeId>,
    pub(super) cursors: Vec<(NodeId, NodeId)>,
    /// The versions and ids of the removed writes, to recognize repetitions.
    pub(super) writes: Vec<(Version, WriteId)>,
}

impl Record<&Change> {
    pub(super) fn encode(&self, id: &ConversationId) -> Result<Vec<u8>, StoreError> {
        let line = encode(self);
        if line.len() > line::LONGEST {
            let problem = format!("its JSON is longer than {} bytes", line::LONGEST);
            return Err(StoreError::Unstorable { id: id.clone(), problem });
        }
        json::check_depth(id, &line)?;
        Ok(line)
    }
}

impl Record {
    pub(super) fn parse(record: &[u8]) -> Result<Self, String> {
        parse(record)
    }
}

impl Stamp {
    /// Returns the stamp of a record, and whether the record is a [`Compacted`]. Reads only the beginning of the
    /// record.
    pub(super) fn parse(record: &[u8]) -> Result<(Self, bool), String> {
        const LONGEST: usize = 256;
        const NEXT: &[u8] = b",\"change\":{\"";
        let beginning = &record[..record.len().min(LONGEST)];
        let end = beginning.windows(NEXT.len()).position(|window| window == NEXT);
        let end = end.ok_or_else(|| "it does not contain a write".to_owned())?;
        let stamp = parse(&[&record[..end], b"}"].concat())?;
        Ok((stamp, record[end + NEXT.len()..].starts_with(b"compacted\"")))
    }
}

fn encode(record: &impl Serialize) -> Vec<u8> {
    let mut text = line::begin();
    serde_json::to_writer(&mut text, record).expect("messages and state have a JSON form");
    line::finish(text)
}

fn parse<T: DeserializeOwned>(record: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(record).map_err(|error| error.to_string())?;
    json::parse(text)
}

/// A summary file, next to its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SummaryFile {
    format_version: u64,
    pub(super) id: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title: Option<String>,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    pub(super) version: Version,
    /// The length of the log at the summary's version, in bytes.
    pub(super) log: u64,
}

impl SummaryFile {
    pub(super) fn new(header: &Header, stamp: &Stamp, title: Option<String>, log: u64) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            id: header.id.clone(),
            title,
            created: header.created,
            updated: stamp.time,
            version: stamp.version,
            log,
        }
    }

    /// Parses a summary. Returns `None` if the text is not a summary of this conversation in this format. The summary
    /// is then rebuilt from the log.
    pub(super) fn parse(text: &[u8], id: &ConversationId) -> Option<Self> {
        let summary: Self = serde_json::from_slice(text).ok()?;
        (summary.format_version == FORMAT_VERSION && summary.id == *id).then_some(summary)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("a summary has a JSON form");
        text.push(b'\n');
        text
    }

    pub(super) fn into_summary(self) -> Summary {
        Summary {
            title: self.title,
            updated: self.updated,
            ..Summary::new(self.id, self.version, self.created)
        }
    }
}

//! The records in a log, and the content of a summary. This module does no input or output.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::line;
use crate::{
    message::{Timestamp, TurnId, UsageRow},
    run::RunEnd,
    store::{
        Commit, ConversationId, Labels, PendingApproval, StoreError, Stored, StoredState, Summary,
        TurnChange, Version, WriteId, json,
    },
    subscription::EventId,
    tree::NodeId,
};

/// The version of the format of new logs. Logs of version 1 keep their version until a write needs version 2.
pub(super) const FORMAT_VERSION: u64 = 2;
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
    /// The number of times that the log was compacted or nodes were erased. If the number is not zero, lines may be
    /// missing, and the last `compacted` line lists them.
    pub(super) compactions: u64,
}

/// The members of the first line that name the format and its version. The first lines of all versions have them.
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

    /// Returns the first line of the same log in the current format.
    pub(super) fn upgraded(&self) -> Self {
        Self { format_version: FORMAT_VERSION, ..self.clone() }
    }

    /// Returns whether a log with this first line can contain the change.
    pub(super) fn allows(&self, change: &Change) -> bool {
        self.format_version >= change.format_version()
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
    /// The last version that changed the state. A summary of an earlier version has an old title or old labels.
    state_version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<StampedTurn>,
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
    #[serde(default)]
    pub(super) turn: Option<StampedTurn>,
}

/// The turn in flight after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StampedTurn {
    pub(super) id: TurnId,
    /// The time of the first record of the turn.
    pub(super) since: Timestamp,
    /// The time of the last record.
    pub(super) recorded: Timestamp,
    /// The number of open approvals.
    pub(super) waiting: u32,
    /// The last version that changed the open approvals. A summary of an earlier version has other approvals.
    pub(super) asked: Version,
}

impl<C> Record<C> {
    pub(super) fn new(stamp: Stamp, change: C) -> Self {
        let Stamp { version, write, time, state_version, turn } = stamp;
        Self { version, write, time, state_version, turn, change }
    }

    pub(super) fn stamp(&self) -> Stamp {
        let Self { version, write, time, state_version, turn, .. } = *self;
        Stamp { version, write, time, state_version, turn }
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
    /// Returns the parts of the state that a summary contains, if this change replaces any of them.
    pub(super) fn tags(&self) -> Option<NewTags<'_>> {
        let whole = |state| Some(NewTags::whole(state));
        match self {
            Self::Commit(commit) => commit.state.as_deref().and_then(whole),
            Self::Create(state) | Self::State(state) => whole(state),
            Self::Title(title) => Some(NewTags { title: Some(title), labels: None }),
            Self::Labels(labels) => Some(NewTags { title: None, labels: Some(labels) }),
            Self::Compacted(compacted) => whole(&compacted.state),
        }
    }

    /// Returns the first version of the format that has this change.
    fn format_version(&self) -> u64 {
        let of_state = |state: &StoredState| if state.labels.is_empty() { 1 } else { 2 };
        match self {
            Self::Create(state) | Self::State(state) => of_state(state),
            Self::Commit(Commit { usage: None, turn: None, state, .. }) => {
                state.as_deref().map_or(1, of_state)
            }
            Self::Commit(_) | Self::Labels(_) => 2,
            Self::Title(_) => 1,
            Self::Compacted(compacted) => of_state(&compacted.state),
        }
    }
}

/// The parts of the state that a summary contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) title: Option<String>,
    pub(super) labels: Labels,
}

impl Tags {
    pub(super) fn of(state: &StoredState) -> Self {
        Self { title: state.title.clone(), labels: state.labels.clone() }
    }
}

/// The [`Tags`] that a change replaces. `None` for a part that stays as it is.
#[derive(Clone, Copy)]
pub(super) struct NewTags<'a> {
    title: Option<&'a Option<String>>,
    labels: Option<&'a Labels>,
}

impl<'a> NewTags<'a> {
    fn whole(state: &'a StoredState) -> Self {
        Self { title: Some(&state.title), labels: Some(&state.labels) }
    }

    /// Returns the tags after the change. `before` returns the tags before the change, or `None` if they are not known.
    /// It is called only if the change keeps some of these tags. If it returns `None`, so does this method.
    pub(super) fn after(self, before: impl FnOnce() -> Option<Tags>) -> Option<Tags> {
        match self {
            Self { title: Some(title), labels: Some(labels) } => {
                Some(Tags { title: title.clone(), labels: labels.clone() })
            }
            Self { title, labels } => before().map(|before| Tags {
                title: title.cloned().unwrap_or(before.title),
                labels: labels.cloned().unwrap_or(before.labels),
            }),
        }
    }
}

/// The combined effect of the lines that a compaction or an erasure removed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Compacted {
    pub(super) state: StoredState,
    pub(super) head: Option<NodeId>,
    pub(super) cursors: Vec<(NodeId, NodeId)>,
    /// The id of the next node, if nodes with higher ids than the last remaining node were erased. Otherwise `None`,
    /// because the next id is one more than the last node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_run: Option<RunEnd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<EventId>,
    /// The versions and ids of the removed writes, to recognize repetitions.
    pub(super) writes: Vec<(Version, WriteId)>,
}

impl Compacted {
    /// Returns the combined effect of these writes, whose result is `stored`.
    pub(super) fn new(stored: &Stored, writes: Vec<(Version, WriteId)>) -> Self {
        Self {
            state: stored.state.clone(),
            head: stored.head,
            cursors: stored.cursors.iter().map(|(node, child)| (*node, *child)).collect(),
            next: stored.next,
            last_run: stored.last_run.clone(),
            mark: stored.mark,
            writes,
        }
    }
}

/// Returns whether the line of a commit stays in the log when the log is rewritten, because nothing else contains its
/// nodes and its rows of the usage ledger.
pub(super) fn is_kept(commit: &Commit) -> bool {
    !commit.nodes.is_empty() || commit.usage.as_ref().is_some_and(|rows| !rows.is_empty())
}

/// Removes the record of the turn in flight from a commit, and keeps the commit's rows of the usage ledger. Returns
/// whether the commit had a record.
pub(super) fn strip(commit: &mut Commit) -> bool {
    if !matches!(commit.turn.as_deref(), Some(TurnChange::Record(_))) {
        return false;
    }
    commit.usage = Some(commit.usage_rows());
    commit.turn = None;
    true
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
        const LONGEST: usize = 512;
        const NEXT: &[u8] = b",\"change\":{\"";
        let beginning = &record[..record.len().min(LONGEST)];
        let end = beginning.windows(NEXT.len()).position(|window| window == NEXT);
        let end = end.ok_or_else(|| "it does not contain a write".to_owned())?;
        let stamp = parse(&[&record[..end], b"}"].concat())?;
        Ok((stamp, record[end + NEXT.len()..].starts_with(b"compacted\"")))
    }
}

/// Returns the rows of the usage ledger in the record of a commit. Most of the record is skipped, not parsed, unless
/// the commit was made by a writer that keeps no ledger.
pub(super) fn usage_rows(record: &[u8]) -> Result<Vec<UsageRow>, String> {
    #[derive(Deserialize)]
    struct Skimmed {
        change: SkimmedChange,
    }
    #[derive(Deserialize)]
    struct SkimmedChange {
        commit: Option<SkimmedCommit>,
    }
    #[derive(Deserialize)]
    struct SkimmedCommit {
        #[serde(default)]
        usage: Option<Vec<UsageRow>>,
    }

    match parse::<Skimmed>(record)?.change.commit {
        Some(SkimmedCommit { usage: Some(rows) }) => Ok(rows),
        Some(_) => match Record::parse(record)?.change {
            Change::Commit(commit) => Ok(commit.usage_rows()),
            _ => Ok(Vec::new()),
        },
        None => Ok(Vec::new()),
    }
}

pub(super) fn encode(record: &impl Serialize) -> Vec<u8> {
    let mut text = line::begin();
    serde_json::to_writer(&mut text, record).expect("messages and state have a JSON form");
    line::finish(text)
}

pub(super) fn parse<T: DeserializeOwned>(record: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(record).map_err(|error| error.to_string())?;
    json::parse(text)
}

/// A summary file, next to its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SummaryFile {
    /// The version of the log's format.
    format_version: u64,
    pub(super) id: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    pub(super) version: Version,
    /// The length of the log at the summary's version, in bytes.
    pub(super) log: u64,
    /// Whether a turn is in flight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    in_flight: bool,
    /// The open approvals of the turn in flight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) approvals: Vec<PendingApproval>,
    /// The last event of the session's feed, if the conversation was released at the summary's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<EventId>,
}

impl SummaryFile {
    pub(super) fn new(
        header: &Header,
        stamp: &Stamp,
        tags: Tags,
        approvals: Vec<PendingApproval>,
        log: u64,
    ) -> Self {
        let Tags { title, labels } = tags;
        Self {
            format_version: header.format_version,
            id: header.id.clone(),
            title,
            labels,
            created: header.created,
            updated: stamp.time,
            version: stamp.version,
            log,
            in_flight: stamp.turn.is_some(),
            approvals,
            mark: None,
        }
    }

    /// Parses a summary. Returns `None` if the text is not a summary of this conversation in a known format. The
    /// summary is then rebuilt from the log.
    pub(super) fn parse(text: &[u8], id: &ConversationId) -> Option<Self> {
        let summary: Self = parse(text).ok()?;
        (summary.format_version <= FORMAT_VERSION && summary.id == *id).then_some(summary)
    }

    /// Returns whether the summary's title and labels are those at the end of the log. `last` is the stamp of the log's
    /// last line. A commit without a state makes a summary outdated, but not its title and its labels.
    pub(super) fn has_tags_of(&self, last: &Stamp) -> bool {
        (last.state_version..=last.version).contains(&self.version)
    }

    /// Returns the open approvals, if they are still those at the end of the log. `last` is the stamp of the log's last
    /// line.
    pub(super) fn approvals_of(&self, last: &Stamp) -> Option<&[PendingApproval]> {
        let turn = last.turn?;
        let is_current = (turn.asked..=last.version).contains(&self.version);
        (is_current && self.approvals.len() == turn.waiting as usize).then_some(&*self.approvals)
    }

    /// Returns the same summary with the mark of an earlier summary of the same version.
    pub(super) fn with_mark_of(mut self, saved: Option<&Self>) -> Self {
        self.mark = saved.filter(|saved| saved.version == self.version).and_then(|saved| saved.mark);
        self
    }

    pub(super) fn tags(&self) -> Tags {
        Tags { title: self.title.clone(), labels: self.labels.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("a summary has a JSON form");
        text.push(b'\n');
        text
    }

    pub(super) fn into_summary(self) -> Summary {
        Summary {
            title: self.title,
            labels: self.labels,
            updated: self.updated,
            in_flight: self.in_flight,
            waiting: u32::try_from(self.approvals.len()).unwrap_or(u32::MAX),
            ..Summary::new(self.id, self.version, self.created)
        }
    }
}

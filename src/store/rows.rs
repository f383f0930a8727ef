//! Code that the database stores share. It converts writes to rows, and rows back to content.
//!
//! There is one client per database, rusqlite and tokio-postgres, and not sqlx for both. With its own client, SQLite
//! needs no runtime and has a version whose log reset can't lose writes, and PostgreSQL reads a conversation in one
//! pipelined round trip.

mod candidates;
mod schedules;
mod turns;

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::de::DeserializeOwned;

use super::{
    Change, Commit, ConversationId, Labels, StateChange, StoreError, StoredState, TitleBy, TurnChange,
    Version, attachments::AttachmentCodec, content::without_messages, json, search::searched_text,
    words::spaced,
};
use crate::{
    message::{Message, MessageId, Purpose, RequestEnd, Timestamp, Usage, UsageRow},
    run::RunEnd,
    store::{Owner, Stored, Summary},
    subscription::EventId,
    tree::{Erased, Node, NodeId},
};

pub(super) use candidates::{
    FilteredPagePlan, FilteredPageStep, PageCandidates, RarestLabelFinder, SORTED, WALKED,
};
pub(super) use schedules::{ScheduleRowChange, millis, scheduled};
pub(super) use turns::{RecordRow, StoredTurnRows, TurnRowChange};

/// The changes of a write.
#[derive(Default)]
pub(super) struct RowChanges {
    pub(super) head: ColumnChange<Option<NodeId>>,
    pub(super) title: ColumnChange<Option<String>>,
    /// Whether a person set the title. It counts only if the write changes the title.
    pub(super) title_by_person: bool,
    /// The state as JSON, without the title and the labels.
    pub(super) state: ColumnChange<String>,
    pub(super) labels: ColumnChange<Labels>,
    pub(super) nodes: Vec<NodeRow>,
    pub(super) cursors: Vec<(NodeId, NodeId)>,
    /// The new rows of the usage ledger.
    pub(super) usage: Vec<UsageRow>,
    pub(super) run: Option<RunEndRow>,
    pub(super) turn: TurnRowChange,
    pub(super) files: FileRows,
    /// Whether the write creates the conversation.
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only SQLite reads it"))]
    pub(super) creates: bool,
    #[cfg_attr(not(feature = "sqlite"), expect(dead_code, reason = "only SQLite reads it"))]
    pub(super) erased: Option<Erased>,
    /// Whether the write only records usage, the turn in flight or the end of a run. Such a write does not change the
    /// time of the last write, unless it moves the head.
    pub(super) is_record: bool,
}

/// The files of a write, and the references to them. A reference is the place of a new node in the write, [`OF_TURN`] or
/// [`OF_RUN`].
#[derive(Default)]
pub(super) struct FileRows {
    pub(super) digests: Vec<String>,
    /// The names in `digests`.
    added: HashSet<String>,
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) places: Vec<i32>,
    /// The name of the file for each place.
    pub(super) uses: Vec<String>,
}

/// The place of references in the record and the messages of the turn in flight.
pub(super) const OF_TURN: i32 = -1;
/// The place of references in the end of the last run.
pub(super) const OF_RUN: i32 = -2;

impl FileRows {
    /// Encodes messages, and adds their files.
    fn encode<T>(&mut self, place: i32, encode: impl FnOnce() -> T) -> T {
        let files = AttachmentCodec::dividing();
        let encoded = files.apply(encode);
        for (sha256, data) in files.used.take() {
            if self.added.insert(sha256.clone()) {
                self.digests.push(sha256.clone());
                self.bytes.push(BASE64_STANDARD.decode(&*data).unwrap_or_default());
            }
            self.places.push(place);
            self.uses.push(sha256);
        }
        encoded
    }
}

/// The end of a run.
pub(super) struct RunEndRow {
    /// The id of the turn, in its text form.
    pub(super) turn: Option<String>,
    /// The [`RunEnd`] as JSON, without its prompts and its mark.
    pub(super) ending: String,
    /// The prompts in the [`RunEnd`], as JSON.
    pub(super) prompts: Option<String>,
}

/// The new value of a column in a write, if the write changes the column.
#[derive(Default)]
pub(super) enum ColumnChange<T> {
    #[default]
    Keep,
    Set(T),
}

/// A row for a new node.
pub(super) struct NodeRow {
    pub(super) id: NodeId,
    pub(super) parent: Option<NodeId>,
    pub(super) message: String,
    pub(super) usage: Option<String>,
    pub(super) left_open: bool,
    /// The message before it was encoded, for searches.
    source: Arc<Message>,
    words: OnceLock<String>,
}

impl RowChanges {
    pub(super) fn of(id: &ConversationId, change: Change) -> Result<Self, StoreError> {
        match change {
            Change::Create(state) => Self { creates: true, ..Self::default() }.with_state(id, *state),
            Change::Commit(commit) => Self::of_commit(id, commit),
            Change::State(StateChange::Whole(state)) => Self::default().with_state(id, *state),
            Change::State(StateChange::Title { title, by }) => {
                let title_by_person = by == TitleBy::Person;
                Ok(Self { title: ColumnChange::Set(title), title_by_person, ..Self::default() })
            }
            Change::State(StateChange::Labels(labels)) => {
                Ok(Self { labels: ColumnChange::Set(labels), ..Self::default() })
            }
            // A schedule does not belong to the content, so a store does not write it with these rows.
            Change::Schedule(_) => Err(StoreError::unsupported("schedules in a write of content")),
            Change::Erase(erased) => {
                Ok(Self { head: ColumnChange::Set(erased.head), erased: Some(erased), ..Self::default() })
            }
        }
    }

    fn of_commit(id: &ConversationId, commit: Commit) -> Result<Self, StoreError> {
        let (usage, is_record) = (commit.usage_rows(), !commit.is_update(commit.head));
        let mut files = FileRows::default();
        let turn_row = TurnRowChange::of(id, &commit, &mut files)?;
        let Commit { head, cursors, state, nodes, usage: _, turn } = commit;
        let row = |(node, place)| files.encode(place, || NodeRow::of(id, node));
        let nodes = nodes.iter().zip(0..).map(row).collect::<Result<_, _>>()?;
        let run = match turn.map(|turn| *turn) {
            Some(TurnChange::End(end)) => Some(files.encode(OF_RUN, || RunEndRow::of(id, end))?),
            _ => None,
        };
        let change = Self {
            head: ColumnChange::Set(head),
            nodes,
            cursors,
            usage,
            run,
            turn: turn_row,
            files,
            is_record,
            ..Self::default()
        };
        match state {
            Some(state) => change.with_state(id, *state),
            None => Ok(change),
        }
    }

    fn with_state(mut self, id: &ConversationId, mut state: StoredState) -> Result<Self, StoreError> {
        // The title has its own column, because it is shown in lists and changes more often than the rest of the state.
        // Labels have their own rows, because lists are filtered by them.
        self.title = ColumnChange::Set(state.title.take());
        self.title_by_person = std::mem::take(&mut state.title_by) == TitleBy::Person;
        self.labels = ColumnChange::Set(std::mem::take(&mut state.labels));
        self.state = ColumnChange::Set(json::encode(id, &state)?);
        Ok(self)
    }
}

impl RunEndRow {
    pub(super) fn of(id: &ConversationId, mut end: RunEnd) -> Result<Self, StoreError> {
        let prompts = std::mem::take(&mut end.prompts);
        end.mark = None;
        Ok(Self {
            turn: end.turn.map(|turn| turn.to_string()),
            ending: json::encode(id, &end)?,
            prompts: (!prompts.is_empty()).then(|| json::encode(id, &prompts)).transpose()?,
        })
    }
}

impl NodeRow {
    fn of(id: &ConversationId, node: &Node) -> Result<Self, StoreError> {
        Ok(Self {
            id: node.id(),
            parent: node.parent(),
            message: json::encode(id, &**node.message())?,
            usage: node.usage().map(|usage| json::encode(id, usage)).transpose()?,
            left_open: node.left_open(),
            source: Arc::clone(node.message()),
            words: OnceLock::new(),
        })
    }

    /// Returns the words of the message, each between two spaces. Only the first call makes them.
    pub(super) fn words(&self) -> &str {
        self.words.get_or_init(|| spaced(&searched_text(&self.source)))
    }
}

/// The conversation and the database from which rows were read, for error messages.
pub(super) struct RowErrorContext<'a> {
    pub(super) id: &'a ConversationId,
    /// The name of the database.
    pub(super) place: &'a str,
}

impl RowErrorContext<'_> {
    pub(super) fn damaged(&self, what: &str, problem: impl Into<String>) -> StoreError {
        StoreError::damaged(format!("{what} of conversation {} in {}", self.id, self.place), problem)
    }

    pub(super) fn node(
        &self,
        number: i64,
        parent: Option<i64>,
        message: &str,
        usage: Option<&str>,
        left_open: bool,
    ) -> Result<Node, StoreError> {
        let what = || format!("node {}", number.cast_unsigned());
        let id = node_id(number).ok_or_else(|| self.damaged(&what(), "its id is invalid"))?;
        let message: Arc<Message> = self.parse(message, what)?;
        let node = Node::new(id, self.reference(parent, what)?, message).with_left_open(left_open);
        Ok(match usage {
            Some(usage) => node.with_usage(self.parse(usage, what)?),
            None => node,
        })
    }

    /// Returns the last node of the path.
    pub(super) fn head(&self, number: Option<i64>) -> Result<Option<NodeId>, StoreError> {
        self.reference(number, || "the head".to_owned())
    }

    /// Returns the id of the next node.
    pub(super) fn next(&self, number: Option<i64>) -> Result<Option<NodeId>, StoreError> {
        self.reference(number, || "the next id".to_owned())
    }

    /// Returns a reference to a node. An invalid reference is an error, because it must not be mistaken for a missing
    /// reference.
    fn reference(
        &self,
        number: Option<i64>,
        what: impl FnOnce() -> String,
    ) -> Result<Option<NodeId>, StoreError> {
        let Some(number) = number else { return Ok(None) };
        let id = node_id(number).ok_or_else(|| self.damaged(&what(), "it refers to an invalid node id"))?;
        Ok(Some(id))
    }

    pub(super) fn cursor(&self, node: i64, child: i64) -> Result<(NodeId, NodeId), StoreError> {
        let pair = node_id(node).zip(node_id(child));
        pair.ok_or_else(|| self.damaged("a cursor", "it refers to an invalid node id"))
    }

    pub(super) fn state(
        &self,
        text: &str,
        title: Option<String>,
        title_by: TitleBy,
        labels: Labels,
    ) -> Result<StoredState, StoreError> {
        let state: StoredState = self.parse(text, || "the state".to_owned())?;
        Ok(StoredState { title, title_by, labels, ..state })
    }

    /// Parses the end of the last run and its prompts. The queries return no end if a turn was committed after the run.
    pub(super) fn last_run(
        &self,
        ending: Option<&str>,
        prompts: Option<&str>,
    ) -> Result<Option<RunEnd>, StoreError> {
        let what = || "the end of the last run".to_owned();
        let Some(ending) = ending else { return Ok(None) };
        let mut end: RunEnd = self.parse(ending, what)?;
        if let Some(prompts) = prompts {
            end.prompts = self.parse(prompts, what)?;
        }
        Ok(Some(end))
    }

    /// Returns the end of the last run as it is stored after an erasure. An end that can't be read is removed.
    pub(super) fn run_after_erasure(
        &self,
        ending: Option<&str>,
        prompts: Option<&str>,
        erased: &Erased,
    ) -> Result<Option<RunEndRow>, StoreError> {
        let end = AttachmentCodec::ignored().apply(|| self.last_run(ending, prompts)).unwrap_or_default();
        let kept = end.and_then(|end| without_messages(end, erased));
        kept.map(|end| RunEndRow::of(self.id, end)).transpose()
    }

    /// Returns the mark (the last event of the session's feed), if it was written at the current version. An unreadable
    /// mark counts as missing, because a reader without a mark gets a snapshot.
    pub(super) fn mark(mark: Option<&str>, written: Option<i64>, version: Version) -> Option<EventId> {
        let is_current = written == Some(version.get().cast_signed());
        mark.filter(|_| is_current).and_then(|mark| mark.parse().ok())
    }

    /// Reports that the records of a turn are void, because a process that does not know such records has moved the
    /// head.
    pub(super) fn warn_of_void_turn(&self) {
        tracing::warn!(
            conversation = %self.id,
            "the turn in flight is dropped, because the conversation has another head than its record"
        );
    }

    pub(super) fn parse<T: DeserializeOwned>(
        &self,
        text: &str,
        what: impl FnOnce() -> String,
    ) -> Result<T, StoreError> {
        json::parse(text).map_err(|problem| self.damaged(&what(), problem))
    }
}

/// Returns an id in the form in which databases store it. The id becomes a signed number with the same bits, because
/// the databases have no unsigned numbers.
pub(super) fn number(id: NodeId) -> i64 {
    id.get().cast_signed()
}

fn node_id(number: i64) -> Option<NodeId> {
    NodeId::new(number.cast_unsigned())
}

/// Returns a number of tokens in the form in which databases store it. Larger numbers are reduced to a limit that no
/// real number of tokens exceeds, so that sums stay far below the limit of the databases.
pub(super) fn tokens(count: u64) -> i64 {
    const MOST: i64 = 1 << 40;
    i64::try_from(count).unwrap_or(MOST).min(MOST)
}

/// Returns a cost in the form in which databases store it. Higher costs are reduced to a limit that no real cost
/// exceeds, so that sums stay finite.
pub(super) fn cost(cost: Option<f64>) -> Option<f64> {
    const MOST: f64 = 1e12;
    cost.filter(|cost| !cost.is_nan()).map(|cost| cost.clamp(-MOST, MOST))
}

/// Converts a limit or an offset to the number type of databases.
pub(super) fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

// The columns that both databases select in one order, and their decoding.

/// A row of a database.
pub(super) trait DatabaseRow {
    /// The error of a column that can't be read.
    type Misread: From<StoreError>;

    fn int(&self, column: usize) -> Result<Option<i64>, Self::Misread>;
    fn real(&self, column: usize) -> Result<Option<f64>, Self::Misread>;
    fn flag(&self, column: usize) -> Result<bool, Self::Misread>;
    fn time(&self, column: usize) -> Result<Timestamp, Self::Misread>;
    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, Self::Misread>;

    /// Returns a text that may contain U+0000, or a description of the problem if another program has written an invalid
    /// text.
    fn any_text(&self, column: usize) -> Result<Result<Option<String>, String>, Self::Misread>;

    /// Returns a text, with U+FFFD in place of invalid bytes, which another program may have written.
    fn lossy(&self, column: usize) -> Result<Option<String>, Self::Misread> {
        Ok(self.text(column)?.map(Cow::into_owned))
    }

    /// Returns a number that the database stores with the same bits.
    fn bits(&self, column: usize) -> Result<u64, Self::Misread> {
        Ok(self.int(column)?.unwrap_or_default().cast_unsigned())
    }

    /// Returns a number, limited to the range of numbers that this crate writes.
    fn small(&self, column: usize) -> Result<u32, Self::Misread> {
        Ok(u32::try_from(self.int(column)?.unwrap_or_default().max(0)).unwrap_or(u32::MAX))
    }
}

pub(super) fn conversation_id<C: DatabaseRow>(
    row: &C,
    column: usize,
    place: &str,
) -> Result<ConversationId, C::Misread> {
    let id = ConversationId::new(row.lossy(column)?.unwrap_or_default());
    let damaged =
        |problem: String| StoreError::damaged(format!("the id of a conversation in {place}"), problem);
    Ok(id.map_err(|error| damaged(error.to_string()))?)
}

/// Returns the current owner. This column contains the owner's name, and the next column contains its address.
pub(super) fn owner<C: DatabaseRow>(row: &C, column: usize) -> Result<Option<Owner>, C::Misread> {
    let (name, address) = (row.lossy(column)?, row.lossy(column + 1)?);
    Ok(name.map(|name| Owner { address, ..Owner::new(name) }))
}

/// Returns the labels, or a description of the problem if another program has written invalid labels.
pub(super) fn labels<C: DatabaseRow>(row: &C, column: usize) -> Result<Result<Labels, String>, C::Misread> {
    Ok(row.lossy(column)?.map_or(Ok(Labels::default()), |labels| json::parse(&labels)))
}

/// Decodes an entry of a list from these columns: id, version, created, updated, title, owner, owner's address, labels,
/// number of open approvals (null if no turn is in flight).
pub(super) fn summary<C: DatabaseRow>(row: &C, place: &str) -> Result<Summary, C::Misread> {
    let id = conversation_id(row, 0, place)?;
    let (title, labels, waiting) = (row.any_text(4)?, labels(row, 7)?, row.int(8)?);
    let damage = title.as_ref().err().map(|problem| format!("its title: {problem}"));
    Ok(Summary {
        updated: row.time(3)?,
        damage: damage.or_else(|| labels.as_ref().err().map(|problem| format!("its labels: {problem}"))),
        labels: labels.unwrap_or_default(),
        title: title.unwrap_or_default(),
        owner: owner(row, 5)?,
        in_flight: waiting.is_some(),
        waiting: row.small(8)?,
        ..Summary::new(id, Version::new(row.bits(1)?), row.time(2)?)
    })
}

/// Decodes a conversation without nodes, cursors and turn from these columns: version, created, updated, title, state,
/// head, id of the next node, labels, end of the last run and its prompts, mark and its version, whether a person set the
/// title, sum of the ledger.
pub(super) fn stored<C: DatabaseRow>(row: &C, origin: &RowErrorContext<'_>) -> Result<Stored, C::Misread> {
    let labels = labels(row, 7)?.map_err(|problem| origin.damaged("the labels", problem))?;
    let title = row.any_text(3)?.map_err(|problem| origin.damaged("the title", problem))?;
    let state = row.text(4)?.ok_or_else(|| origin.damaged("the state", "it is missing"))?;
    let version = Version::new(row.bits(0)?);
    let title_by = if row.flag(12)? { TitleBy::Person } else { TitleBy::Derived };
    let mut stored = Stored::new(version, row.time(1)?, origin.state(&state, title, title_by, labels)?);
    stored.updated = row.time(2)?;
    (stored.head, stored.next) = (origin.head(row.int(5)?)?, origin.next(row.int(6)?)?);
    stored.last_run = origin.last_run(row.text(8)?.as_deref(), row.text(9)?.as_deref())?;
    stored.mark = RowErrorContext::mark(row.lossy(10)?.as_deref(), row.int(11)?, version);
    let (requests, usage) = sum(row, 13)?;
    stored.used.add(requests, usage);
    Ok(stored)
}

/// Decodes a row of the usage ledger from these columns: the usage, purpose, turn, step, time, model, end, message.
pub(super) fn usage_row<C: DatabaseRow>(
    row: &C,
    origin: &RowErrorContext<'_>,
) -> Result<UsageRow, C::Misread> {
    let damaged = |what: &str| origin.damaged("a row of the usage ledger", format!("its {what} is invalid"));
    let turn = row.text(7)?.map(|turn| turn.parse().map_err(|_| damaged("turn")));
    let end = RequestEnd::named(&row.text(11)?.unwrap_or_default()).ok_or_else(|| damaged("end"))?;
    let message = row.any_text(12)?.map_err(|_| damaged("message"))?;
    Ok(UsageRow {
        purpose: Purpose::named(&row.text(6)?.unwrap_or_default()).ok_or_else(|| damaged("purpose"))?,
        turn: turn.transpose()?,
        step: row.int(8)?.and_then(|step| u32::try_from(step).ok()),
        message: message.map(MessageId::from),
        model: row.any_text(10)?.map_err(|_| damaged("model"))?,
        ..UsageRow::new(end, usage(row, 0)?).with_at(Timestamp(row.bits(9)?))
    })
}

/// Decodes the usage in this column and the columns after it: tokens and cost.
fn usage<C: DatabaseRow>(row: &C, column: usize) -> Result<Usage, C::Misread> {
    let mut usage = Usage::default()
        .with_input(row.bits(column)?)
        .with_cache_read(row.bits(column + 1)?)
        .with_cache_write(row.bits(column + 2)?)
        .with_output(row.bits(column + 3)?)
        .with_reasoning(row.bits(column + 4)?);
    usage.cost = row.real(column + 5)?;
    Ok(usage)
}

/// Decodes the sum in this column and the columns after it: the number of requests and their usage.
pub(super) fn sum<C: DatabaseRow>(row: &C, column: usize) -> Result<(u64, Usage), C::Misread> {
    Ok((row.bits(column)?, usage(row, column + 1)?))
}

/// Decodes a turn in flight without messages and approvals, which was read at this time. Its columns begin at `at`: turn,
/// record, head, since, recorded.
pub(super) fn turn<C: DatabaseRow>(row: &C, at: usize, now: Timestamp) -> Result<StoredTurnRows, C::Misread> {
    Ok(StoredTurnRows {
        turn: row.lossy(at)?.unwrap_or_default(),
        record: row.lossy(at + 1)?.unwrap_or_default(),
        head: row.int(at + 2)?,
        since: row.time(at + 3)?,
        recorded: row.time(at + 4)?,
        now,
        ..StoredTurnRows::default()
    })
}

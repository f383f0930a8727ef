//! Code that the database stores share. It converts writes to rows, and rows back to content.
//!
//! There is one client per database, rusqlite and tokio-postgres, and not sqlx for both. With its own client, SQLite
//! needs no runtime and has a version whose log reset can't lose writes, and PostgreSQL reads a conversation in one
//! pipelined round trip.

mod candidates;
mod cells;
mod turns;

pub(super) use candidates::{Candidates, Next, Plan, Rarest, SORTED, WALKED};
pub(super) use cells::{Cells, owner, stored, sum, summary, turn, usage_row};
#[cfg(feature = "postgres")]
pub(super) use cells::{conversation_id, labels};
pub(super) use turns::{ReadTurn, RecordRow, TurnRow};

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::de::DeserializeOwned;

use super::{
    Change, Commit, ConversationId, Labels, StateChange, StoreError, StoredState, TitleBy, TurnChange,
    Version, attachments::Files, content::without_messages, json, search::searched_text, words::spaced,
};
use crate::{
    message::{Message, UsageRow},
    run::RunEnd,
    subscription::EventId,
    tree::{Erased, Node, NodeId},
};

/// The changes of a write.
#[derive(Default)]
pub(super) struct RowChanges {
    pub(super) head: Column<Option<NodeId>>,
    pub(super) title: Column<Option<String>>,
    /// Whether a person set the title. It counts only if the write changes the title.
    pub(super) title_by_person: bool,
    /// The state as JSON, without the title and the labels.
    pub(super) state: Column<String>,
    pub(super) labels: Column<Labels>,
    pub(super) nodes: Vec<NodeRow>,
    pub(super) cursors: Vec<(NodeId, NodeId)>,
    /// The new rows of the usage ledger.
    pub(super) usage: Vec<UsageRow>,
    pub(super) run: Option<RunRow>,
    pub(super) turn: TurnRow,
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
        let files = Files::dividing();
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
pub(super) struct RunRow {
    /// The id of the turn, in its text form.
    pub(super) turn: Option<String>,
    /// The [`RunEnd`] as JSON, without its prompts and its mark.
    pub(super) ending: String,
    /// The prompts in the [`RunEnd`], as JSON.
    pub(super) prompts: Option<String>,
}

/// The new value of a column in a write, if the write changes the column.
#[derive(Default)]
pub(super) enum Column<T> {
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
                Ok(Self { title: Column::Set(title), title_by_person, ..Self::default() })
            }
            Change::State(StateChange::Labels(labels)) => {
                Ok(Self { labels: Column::Set(labels), ..Self::default() })
            }
            Change::Erase(erased) => {
                Ok(Self { head: Column::Set(erased.head), erased: Some(erased), ..Self::default() })
            }
        }
    }

    fn of_commit(id: &ConversationId, commit: Commit) -> Result<Self, StoreError> {
        let (usage, is_record) = (commit.usage_rows(), !commit.is_update(commit.head));
        let mut files = FileRows::default();
        let turn_row = TurnRow::of(id, &commit, &mut files)?;
        let Commit { head, cursors, state, nodes, usage: _, turn } = commit;
        let row = |(node, place)| files.encode(place, || NodeRow::of(id, node));
        let nodes = nodes.iter().zip(0..).map(row).collect::<Result<_, _>>()?;
        let run = match turn.map(|turn| *turn) {
            Some(TurnChange::End(end)) => Some(files.encode(OF_RUN, || RunRow::of(id, end))?),
            _ => None,
        };
        let change = Self {
            head: Column::Set(head),
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
        self.title = Column::Set(state.title.take());
        self.title_by_person = std::mem::take(&mut state.title_by) == TitleBy::Person;
        self.labels = Column::Set(std::mem::take(&mut state.labels));
        self.state = Column::Set(json::encode(id, &state)?);
        Ok(self)
    }
}

impl RunRow {
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
pub(super) struct Origin<'a> {
    pub(super) id: &'a ConversationId,
    /// The name of the database.
    pub(super) place: &'a str,
}

impl Origin<'_> {
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
    ) -> Result<Option<RunRow>, StoreError> {
        let end = Files::ignored().apply(|| self.last_run(ending, prompts)).unwrap_or_default();
        let kept = end.and_then(|end| without_messages(end, erased));
        kept.map(|end| RunRow::of(self.id, end)).transpose()
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

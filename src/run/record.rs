//! The record of a turn in flight, as stores keep it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{KnownPrompt, PendingUse};
use crate::{
    message::{Message, TurnId, id::NodeId, text_with_files},
    setters::setters,
    subscription::EventId,
};

/// A record of the turn in flight: one write of its state to a store.
///
/// A record contains only the messages that are new since the last record of the same turn. A
/// [`StoredTurn`](crate::store::custom::StoredTurn) is the sum of these records. All other fields replace those of
/// earlier records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnRecord {
    /// The format of [`core`](Self::core).
    pub format: u32,
    /// The id of the turn.
    pub turn: TurnId,
    /// The number of restarts since the turn last made progress.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lives: u32,
    /// Whether the last owner released the conversation in an orderly way while the turn was in flight. If so, the next
    /// restart is not counted in [`lives`](Self::lives).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub orderly: bool,
    /// The head of the conversation on which the turn builds. The record is void if the conversation has another head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<NodeId>,
    /// The place in the tree at which the turn's messages are added, if this is not below the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchPoint>,
    /// The number of pending messages of earlier records that are still valid.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub keep: u32,
    /// The pending messages that follow the kept ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<Arc<Message>>,
    /// The state of the agent as JSON text, with the results of the step's tools. Implementations of a store keep the
    /// text unchanged. Clones share it. Only the crate reads it, and adds the decisions about a turn that no process has
    /// open.
    #[serde(with = "text_with_files")]
    pub core: Arc<str>,
    /// The tool uses that wait for a decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<PendingUse>,
    /// The last prompts of the conversation that have an id, with the latest prompt at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<KnownPrompt>,
    /// The time that the turn has taken so far, without pauses. Stores may round it to microseconds.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub spent: Duration,
    /// The last event of the session's feed that changed anything. It counts only until the next write, and a store
    /// returns it as [`Stored::mark`](crate::store::custom::Stored::mark).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EventId>,
    /// The problem that prevented reading the record, or `None` if the record was read.
    #[serde(skip)]
    pub(crate) damage: Option<Box<str>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

setters! {
    TurnRecord: with_lives(lives: u32), with_orderly(orderly: bool), with_head(head: into Option<NodeId>),
        with_branch(branch: some BranchPoint), with_keep(keep: u32), with_append(append: Vec<Arc<Message>>),
        with_waiting(waiting: Vec<PendingUse>), with_prompts(prompts: Vec<KnownPrompt>), with_spent(spent: Duration),
        with_mark(mark: into Option<EventId>)
}

impl TurnRecord {
    /// Returns a record of the turn `turn` that contains only the agent's state `core`, in the format `format`.
    pub fn new(format: u32, turn: TurnId, core: impl Into<Arc<str>>) -> Self {
        Self {
            format,
            turn,
            lives: 0,
            orderly: false,
            head: None,
            branch: None,
            keep: 0,
            append: Vec::new(),
            core: core.into(),
            waiting: Vec::new(),
            prompts: Vec::new(),
            spent: Duration::ZERO,
            mark: None,
            damage: None,
        }
    }

    /// Returns a single record with the same effect as this record followed by `later`.
    ///
    /// If `later` belongs to another turn, it replaces this record.
    ///
    /// ```
    /// use omni_agent::{message::{Message, TurnId}, store::custom::TurnRecord};
    ///
    /// let turn: TurnId = "00112233445566778899aabbccddeeff".parse()?;
    /// let messages = |texts: &[&str]| texts.iter().map(|text| Message::user(*text).into()).collect();
    /// let first = TurnRecord::new(1, turn, "{}").with_keep(1).with_append(messages(&["a", "b"]));
    /// let second = TurnRecord::new(1, turn, "{}").with_keep(2).with_append(messages(&["c"]));
    /// let both = first.then(second);
    /// let texts: Vec<_> = both.append.iter().map(|message| message.text()).collect();
    /// assert_eq!((both.keep, texts), (1, vec!["a".into(), "c".into()]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn then(self, later: Self) -> Self {
        if self.turn != later.turn {
            return later;
        }
        let (keep, append) = match later.keep.checked_sub(self.keep) {
            Some(of_append) => {
                let mut append = self.append;
                append.truncate(of_append as usize);
                append.extend(later.append);
                (self.keep, append)
            }
            None => (later.keep, later.append),
        };
        // A record that keeps no earlier messages is complete, so it also replaces a damaged record.
        let damage = later.damage.or(self.damage.filter(|_| later.keep > 0));
        Self { keep, append, damage, ..later }
    }

    pub(crate) fn waiting_count(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// Returns whether the turn waits only for decisions that can be made after a restart.
    pub(crate) fn only_waits(&self) -> bool {
        !self.waiting.is_empty() && self.waiting.iter().all(|waiting| waiting.survives)
    }

    /// Removes repeated tool uses, and limits times to those that every store can keep.
    pub(crate) fn normalise(&mut self) {
        /// The maximum duration of a turn or a pause, about 30 years. No real turn or pause takes longer.
        const LONGEST: Duration = Duration::from_secs(1_000_000_000);

        let mut seen = HashSet::new();
        self.waiting.retain(|waiting| seen.insert(waiting.tool_use.id.clone()));
        for waiting in &mut self.waiting {
            waiting.turn = self.turn;
            waiting.limit = waiting.limit.map(|limit| limit.min(LONGEST));
            // Stores set the times when they read the turn.
            (waiting.since, waiting.expires) = (None, None);
        }
        self.spent = self.spent.min(LONGEST);
    }

    /// Returns a record that can't be read.
    pub(crate) fn unreadable(turn: TurnId, problem: impl Into<Box<str>>) -> Self {
        Self { damage: Some(problem.into()), ..Self::new(0, turn, "") }
    }

    pub(crate) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Reads a record, whatever its JSON value contains. A record that this version can't read must not prevent the
    /// conversation from being read, so it becomes a damaged record.
    pub(crate) fn deserialize_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let facts = Self {
            format: member(&value, "format"),
            lives: member(&value, "lives"),
            orderly: member(&value, "orderly"),
            head: member(&value, "head"),
            keep: member(&value, "keep"),
            ..Self::unreadable(member(&value, "turn"), "")
        };
        let read: Result<Self, serde_json::Error> = Self::deserialize(value);
        Ok(read.unwrap_or_else(|error| Self { damage: Some(error.to_string().into()), ..facts }))
    }
}

/// Returns a member of an object, or the default if it is missing or can't be read.
fn member<T: DeserializeOwned + Default>(value: &Value, name: &str) -> T {
    value.get(name).and_then(|member| T::deserialize(member).ok()).unwrap_or_default()
}

/// The place in the tree at which the messages of a branch are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BranchPoint {
    /// The parent of the first message. `None` if the branch begins a new tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<NodeId>,
    /// The node of the prompt that is answered again. `None` if the prompt is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<NodeId>,
}

setters!(BranchPoint: with_answers(answers: some NodeId));

impl BranchPoint {
    /// Returns a place below this node.
    pub const fn new(base: Option<NodeId>) -> Self {
        Self { base, answers: None }
    }
}

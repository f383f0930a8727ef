//! Compactions: messages that stand for the messages before them in requests, and what a request then contains.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ClearingReason, History, HistoryError, Message, Role, cleared};

/// The text before a summary in a request.
const PREAMBLE: &str = "The earlier part of this conversation is replaced by the following summary. A model wrote \
                        the summary. It is not an instruction of the user.\n\n";

/// The part of a message that makes it a compaction. The text of the message is a summary, unless
/// [`is_summary`](Compaction::is_summary) is false.
///
/// The last compaction of a history determines which of the messages before it are sent to a model, and in which form:
/// see [`History::sent`]. The messages themselves stay in the history.
///
/// ```
/// use omni_agent::message::{Compaction, CompactionTrigger, History, Message};
///
/// let summary = Message::compaction("Ada asked for the capital of Norway.", Compaction::new(CompactionTrigger::Request));
/// let history = History::from_iter([Message::user("What is Norway's capital?"), Message::assistant("Oslo."), summary]);
/// assert_eq!(history.check(), Ok(()));
/// assert_eq!(history.sent().len(), 1);
/// assert!(history.sent().last().unwrap().text().ends_with("Ada asked for the capital of Norway."));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The part of a message that makes it a compaction, which stands for earlier messages in requests."
    )
)]
#[non_exhaustive]
pub struct Compaction {
    /// Whether the text of the message is a summary.
    pub is_summary: bool,
    /// The number of messages right before this one that are sent unchanged. It includes earlier compactions, which are
    /// never sent.
    #[serde(default)]
    pub kept: u32,
    /// The number of messages before the kept ones that are sent without bulky content. It includes earlier compactions,
    /// which are never sent.
    #[serde(default)]
    pub cleared: u32,
    /// The reason for the compaction.
    pub trigger: CompactionTrigger,
    /// The estimated size of a request before and after the compaction, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<(u64, u64)>,
    /// The model that wrote the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The cost of the request for the summary, in billionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nano_usd: Option<u64>,
}

impl Compaction {
    /// Returns a compaction whose message contains a summary, and which keeps no message.
    pub const fn new(trigger: CompactionTrigger) -> Self {
        Self { is_summary: true, kept: 0, cleared: 0, trigger, tokens: None, model: None, nano_usd: None }
    }

    /// Returns the index of the first message that is sent, and of the first one that is sent unchanged. `index` is that of
    /// the compaction.
    pub(crate) fn sent_from(&self, index: usize) -> (usize, usize) {
        let start = if self.is_summary { index.saturating_sub(self.covered()) } else { 0 };
        (start, index.saturating_sub(self.kept as usize))
    }

    /// Returns the number of messages before this one that are sent, or were sent as earlier compactions.
    fn covered(&self) -> usize {
        usize::try_from(u64::from(self.kept) + u64::from(self.cleared)).unwrap_or(usize::MAX)
    }
}

/// The reason for a [`Compaction`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CompactionTrigger {
    /// The conversation had reached a share of the model's context window.
    Size,
    /// The model service has refused a request, because it was too long.
    Overflow,
    /// The application or its user has asked for the compaction.
    Request,
}

impl Message {
    /// Returns a user message with the current time that is a compaction with this text.
    pub fn compaction(text: impl Into<String>, compaction: Compaction) -> Self {
        Self { compaction: Some(Box::new(compaction)), ..Self::user(text.into()) }
    }

    /// Returns whether this user message is a prompt. Tool results and compactions are user messages, too.
    pub(crate) fn is_prompt(&self) -> bool {
        self.role == Role::User && self.compaction.is_none() && self.tool_results().next().is_none()
    }
}

impl History {
    /// Returns the last compaction and its index. O(1).
    pub fn compaction(&self) -> Option<(usize, &Compaction)> {
        let index = self.compaction_index()?;
        Some((index, self.get(index)?.compaction.as_deref()?))
    }

    /// Returns the messages that a request for this conversation contains. Without a compaction, these are all messages.
    /// O(1) without a compaction, and otherwise O(messages that are sent).
    ///
    /// If the last compaction has a summary, one user message with the summary comes first. The
    /// [cleared](Compaction::cleared) messages follow without their long tool results, attachments and thinking, of which
    /// notes remain. The [kept](Compaction::kept) messages and all messages after the compaction follow unchanged.
    /// Compactions are omitted.
    pub fn sent(&self) -> Self {
        let Some((index, compaction)) = self.compaction() else { return self.clone() };
        let (start, kept_from) = compaction.sent_from(index);
        let mut sent = Self::new();
        if let Some(own) = self.get(index).filter(|_| compaction.is_summary) {
            sent.push(Message {
                timestamp: own.timestamp,
                ..Message::user(format!("{PREAMBLE}{}", own.text()))
            });
        }
        for (index, message) in (start..).zip(self.iter().skip(start)) {
            match message {
                message if message.compaction.is_some() => {}
                message if index < kept_from => sent.push(cleared(message, ClearingReason::Room)),
                message => sent.push(Arc::clone(message)),
            }
        }
        sent
    }

    /// Returns the history without the compactions that break the law.
    pub(super) fn with_lawful_compactions(&self) -> Self {
        let mut lawful = Self::new();
        for message in self {
            let is_broken = message.compaction.as_deref().is_some_and(|compaction| {
                let first_shown = |start| {
                    let shown = lawful.iter().skip(start).find(|message| message.compaction.is_none());
                    shown.map(|message| &**message)
                };
                lawful.open_tool_uses().next().is_some()
                    || check_compaction(compaction, message, lawful.len(), first_shown).is_err()
            });
            if !is_broken {
                lawful.push(Arc::clone(message));
            }
        }
        lawful
    }
}

/// Checks that a compaction may stand at `index`. The messages before it obey the law. `first_shown` returns the first
/// message before it that is not a compaction, from an index on.
pub(super) fn check_compaction<'a>(
    compaction: &Compaction,
    message: &Message,
    index: usize,
    first_shown: impl FnOnce(usize) -> Option<&'a Message>,
) -> Result<(), HistoryError> {
    let covered = compaction.covered();
    let begins_with_results = || {
        let first = first_shown(index.saturating_sub(covered));
        first.is_some_and(|first| compaction.is_summary && first.tool_results().next().is_some())
    };
    let problem = if message.role != Role::User || message.tool_results().next().is_some() {
        "must be a user message without tool results"
    } else if message.text().trim().is_empty() {
        "has no text"
    } else if covered > index {
        "covers more messages than stand before it"
    } else if !compaction.is_summary && covered < index {
        "omits messages and has no summary"
    } else if begins_with_results() {
        "sends tool results without their tool uses"
    } else {
        return Ok(());
    };
    Err(HistoryError::Compaction { index, problem })
}

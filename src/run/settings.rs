use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    message::{History, Message, MessageId, without_file_copies, without_files},
    provider::Options,
};

/// The settings of an agent that are stored with its conversation: the system prompt, the options and the limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Settings {
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Arc<str>>,
    /// The options of requests. If the options contain an API key and headers, these belong to the provider of the
    /// model that is in force when the options are set. After a change to another provider's model, the key and headers
    /// are not sent unless they are set again.
    #[serde(skip_serializing_if = "Options::is_empty")]
    #[cfg_attr(feature = "schema", schemars(!skip_serializing_if, description = "The options of requests."))]
    pub options: Options,
    /// The maximum number of requests that one prompt may cause, including continuations and retries. A change also
    /// applies to the run in flight, unless the run's prompt has its own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The maximum duration of one turn. A change applies to the next turn, and to a step that is repeated after the
    /// time limit was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
    /// The attachments that requests leave out: the indices of their blocks, by the ids of their messages. A note is sent
    /// in place of each of them. [`Session::omit`](crate::session::Session::omit) adds one. Ids of unknown messages and
    /// indices of other blocks have no effect.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            description = "The attachments that requests leave out: the indices of their blocks, by the ids of their messages."
        )
    )]
    pub omitted: BTreeMap<MessageId, BTreeSet<usize>>,
}

impl Settings {
    /// Returns the messages as requests contain them. O(1) if no attachment is left out, otherwise O(n).
    pub(crate) fn sent(&self, history: &History) -> History {
        if self.omitted.is_empty() {
            return history.clone();
        }
        history.iter().map(|message| self.sent_message(message)).collect()
    }

    /// Returns a message as requests contain it.
    pub(crate) fn sent_message(&self, message: &Arc<Message>) -> Arc<Message> {
        if self.omitted.is_empty() {
            return Arc::clone(message);
        }
        let blocks = message.id.as_ref().and_then(|id| self.omitted.get(id));
        blocks.map_or_else(|| without_file_copies(message), |blocks| without_files(message, blocks))
    }
}

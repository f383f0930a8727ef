//! The operations of a manager as data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Manager;
use crate::{
    run::Error,
    store::{ConversationId, Labels},
};

/// An operation of a manager as data, for example from a client's request.
///
/// As JSON, a command is an object with a `type` and the command's fields next to it.
///
/// A command can name any conversation of the manager's store. An application that performs a command from a user must
/// first check that the conversation belongs to this user.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::ScriptedProvider;
/// # let agent = omni_agent::agent::Agent::builder().model(ScriptedProvider::new([]).model());
/// use omni_agent::{ConversationId, manager::{Manager, ManagerCommand}, store::MemoryStore};
///
/// let manager = Manager::builder(MemoryStore::new()).build();
/// let opened = manager.open_or_create(&ConversationId::new("holiday")?, agent).await?;
/// let request = r#"{ "type": "rename", "id": "holiday", "title": "Lisbon" }"#;
/// let command: ManagerCommand = serde_json::from_str(request)?;
/// assert_eq!(command.id(), opened.session.id());
/// manager.perform(command).await?;
/// assert_eq!(opened.session.title().await?.as_deref(), Some("Lisbon"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ManagerCommand {
    /// Sets the title of a conversation, whether or not it is open: [`Manager::rename`].
    Rename {
        /// The conversation's id.
        id: ConversationId,
        /// The title, or `None` for no title.
        title: Option<Arc<str>>,
    },
    /// Replaces the labels of a conversation, whether or not it is open: [`Manager::set_labels`].
    Labels {
        /// The conversation's id.
        id: ConversationId,
        /// The labels.
        labels: Labels,
    },
    /// Ends the session of a conversation and keeps a run in flight as far as possible: [`Manager::close`].
    Close {
        /// The conversation's id.
        id: ConversationId,
    },
    /// Ends the session of a conversation and deletes the conversation from the store: [`Manager::delete`].
    Delete {
        /// The conversation's id.
        id: ConversationId,
    },
}

impl ManagerCommand {
    /// Returns the id of the conversation to which the command applies.
    pub const fn id(&self) -> &ConversationId {
        match self {
            Self::Rename { id, .. } | Self::Labels { id, .. } | Self::Close { id } | Self::Delete { id } => {
                id
            }
        }
    }
}

impl Manager {
    /// Runs an operation that is given as data.
    ///
    /// # Errors
    ///
    /// Returns the errors of the operation.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the operation may still take effect, as the documentation of the operation's method
    /// states.
    pub async fn perform(&self, command: ManagerCommand) -> Result<(), Error> {
        match command {
            ManagerCommand::Rename { id, title } => self.rename(&id, title.as_deref()).await,
            ManagerCommand::Labels { id, labels } => self.set_labels(&id, labels).await,
            ManagerCommand::Close { id } => self.close(&id).await,
            ManagerCommand::Delete { id } => self.delete(&id).await,
        }
    }
}

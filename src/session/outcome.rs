//! The outcomes of prompts with ids.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Session, command::SessionTaskCommand};
use crate::{
    message::Message,
    run::{Error, PromptId, RunOutcome},
    tree::NodeId,
};

/// The outcome of a prompt with an id: [`Session::outcome`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PromptOutcome {
    /// The outcome of the prompt's run, or of its turn if another prompt has started the next turn of the run.
    #[serde(flatten)]
    pub outcome: RunOutcome,
    /// The last node that the prompt's run has added to the tree. `None` if the run has added no node, or if the node
    /// was erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
    /// The message at `through`, if it is an answer of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Arc<Message>>,
}

impl Session {
    /// Waits for the end of the run of the prompt with this id, and returns its outcome.
    ///
    /// The prompt may have been sent in an earlier life of the session, by a process that has ended since. To learn the
    /// outcome of such a prompt, send the prompt again with the same id, and then call this method. If the prompt was
    /// accepted before, it is not accepted again.
    ///
    /// The session knows the prompts with an id that have not ended, and the last 32 that have. With [`Durable::Turns`](crate::agent::Durable::Turns), it
    /// knows only the prompts of this life. With [`Durable::Approvals`](crate::agent::Durable::Approvals), it knows a
    /// prompt of an earlier life if a turn of the prompt was committed, or was recorded at a pause. With
    /// [`Durable::InFlight`](crate::agent::Durable::InFlight), it knows every prompt that was accepted. Above `Turns`,
    /// this method returns when the outcome is stored.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let provider = ScriptedProvider::new([Step::text("Ten euros.")]);
    /// # let model = provider.model();
    /// use omni_agent::{agent::Agent, run::Prompt, session::Session, store::MemoryStore};
    ///
    /// let session = Session::builder(MemoryStore::new()).agent(Agent::builder().model(model)).create().await?;
    /// session.prompt(Prompt::new("What does it cost?").with_id("order-7")).await?;
    ///
    /// let ended = session.outcome("order-7").await?;
    /// assert_eq!(ended.answer.unwrap().text(), "Ten euros.");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::UnknownPrompt`](crate::ErrorKind::UnknownPrompt) if no prompt with this id is known, or if
    /// the prompt was staged and is returned unused while the call waits. Returns
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session ends first. The outcome can then be found after the
    /// conversation is opened again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, only the wait ends.
    pub async fn outcome(&self, id: impl Into<PromptId>) -> Result<PromptOutcome, Error> {
        let id = id.into();
        self.call(|reply| SessionTaskCommand::Outcome(id, reply)).await?
    }
}

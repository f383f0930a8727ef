//! Operations that a session forwards to its agent. The handle calls the agent directly, without the session's task.

use std::{any::Any, collections::HashSet, error::Error as StdError, sync::Arc};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{
    Session,
    error::{not_an_attachment, unknown_node},
};
use crate::{
    agent::{Compact, Config, ResumeDecisions, RunCommands, State, Status},
    message::{Content, Message, ToolUseId, TurnId},
    run::{Accepted, Error, Prompt, PromptId, Response},
    store::StoreError,
    tool::{Decision, Tool},
    tree::NodeId,
};

impl Session {
    /// Sends a prompt.
    ///
    /// If the session is idle, the prompt starts a run at the end of the path. If the session is busy or paused, the
    /// prompt is staged. See [`Agent::prompt`](crate::agent::Agent::prompt).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::prompt`](crate::agent::Agent::prompt), and
    /// [`ErrorKind::StoreBehind`](crate::ErrorKind::StoreBehind) if too many changes are unsaved.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, Error> {
        self.run(prompt).start().await
    }

    /// Sends a prompt and waits for its response: see [`Agent::ask`](crate::agent::Agent::ask).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::ask`](crate::agent::Agent::ask), and
    /// [`ErrorKind::StoreBehind`](crate::ErrorKind::StoreBehind) if too many changes are unsaved.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Arc<Response>, Error> {
        self.run(prompt).response().await
    }

    /// Sends a prompt and returns the response as a value of a Rust type: see
    /// [`Agent::ask_as`](crate::agent::Agent::ask_as).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::ask_as`](crate::agent::Agent::ask_as), and
    /// [`ErrorKind::StoreBehind`](crate::ErrorKind::StoreBehind) if too many changes are unsaved.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, Error> {
        self.run(prompt).value().await
    }

    /// Withdraws a staged prompt, and returns it: see [`Agent::unstage`](crate::agent::Agent::unstage).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::unstage`](crate::agent::Agent::unstage).
    pub async fn unstage(&self, id: impl Into<PromptId>) -> Result<Arc<Prompt>, Error> {
        self.on_agent(async |agent| agent.unstage(id).await).await
    }

    /// Decides on a tool use that a paused session waits for: see [`Agent::resume`](crate::agent::Agent::resume).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::resume`](crate::agent::Agent::resume).
    pub async fn resume(&self, tool_use: impl Into<ToolUseId>, decision: Decision) -> Result<(), Error> {
        self.on_agent(async |agent| agent.resume(tool_use, decision).await).await
    }

    /// Decides on a tool use and records who decided: see [`Agent::resume_as`](crate::agent::Agent::resume_as).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::resume_as`](crate::agent::Agent::resume_as).
    pub async fn resume_as(
        &self,
        tool_use: impl Into<ToolUseId>,
        decision: Decision,
        by: impl Into<Arc<str>>,
    ) -> Result<(), Error> {
        self.on_agent(async |agent| agent.resume_as(tool_use, decision, by).await).await
    }

    /// Compacts the conversation now, and returns the message of the compaction, which becomes a node of the tree: see
    /// [`Agent::compact`](crate::agent::Agent::compact).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::compact`](crate::agent::Agent::compact).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the compaction.
    pub async fn compact(&self, compact: impl Into<Compact>) -> Result<Arc<Message>, Error> {
        let compact = compact.into();
        self.on_agent(async |agent| agent.compact(compact).await).await
    }

    /// Ends the run at once and discards its pending messages: see [`Agent::cancel`](crate::agent::Agent::cancel).
    ///
    /// If the run started a branch and none of the branch's turns is complete, the tree is again as it was before the
    /// run.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::cancel`](crate::agent::Agent::cancel).
    pub async fn cancel(&self) -> Result<(), Error> {
        self.on_agent(async |agent| agent.cancel().await).await
    }

    /// Ends the run at once and keeps as much of it as possible. Results that the service has just refused are kept in
    /// cleared form: see [`Agent::interrupt`](crate::agent::Agent::interrupt).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::interrupt`](crate::agent::Agent::interrupt).
    pub async fn interrupt(&self) -> Result<(), Error> {
        self.on_agent(async |agent| agent.interrupt().await).await
    }

    /// Ends the run if this turn is in flight. Otherwise, returns `false` and changes nothing.
    pub(crate) async fn interrupt_turn(&self, turn: TurnId) -> Result<bool, Error> {
        self.on_agent(async |agent| agent.interrupt_turn(turn).await).await
    }

    /// Cancels the run if this turn is in flight. Otherwise, returns `false` and changes nothing.
    #[cfg(feature = "web")]
    pub(crate) async fn cancel_turn(&self, turn: TurnId) -> Result<bool, Error> {
        self.on_agent(async |agent| agent.cancel_turn(turn).await).await
    }

    /// Sends an application event to the agent's callbacks: see [`Agent::notify`](crate::agent::Agent::notify).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::notify`](crate::agent::Agent::notify).
    pub async fn notify<E: Any + Send>(&self, event: E) -> Result<(), Error> {
        self.on_agent(async |agent| agent.notify(event).await).await
    }

    /// Changes the agent's configuration, either completely or not at all: see
    /// [`Agent::set_state`](crate::agent::Agent::set_state).
    ///
    /// If the model, the system prompt, the options or the limits change, the change is saved. To switch the model,
    /// call [`Config::set_model`] in `edit`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::set_state`](crate::agent::Agent::set_state).
    #[doc(alias = "switch model")]
    pub async fn configure<F>(&self, edit: F) -> Result<(), Error>
    where
        F: FnOnce(&mut Config) -> Result<(), Box<dyn StdError + Send + Sync>> + Send + 'static,
    {
        self.on_agent(async |agent| agent.set_state(|draft| edit(&mut draft.config)).await).await
    }

    /// Adds a tool. The session must be idle. Tools are not saved.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a run is active, or the agent's error if the tool
    /// conflicts with another tool.
    pub async fn add_tool(&self, tool: impl Tool) -> Result<(), Error> {
        let tool: Arc<dyn Tool> = Arc::new(tool);
        self.configure(move |config| Ok(config.tools.insert(tool)?)).await
    }

    /// Removes the tool with this name. The session must be idle. Removing a tool that does not exist succeeds.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a run is active. Returns
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session has ended.
    pub async fn remove_tool(&self, name: impl Into<String>) -> Result<(), Error> {
        let name = name.into();
        self.configure(move |config| {
            config.tools.remove(&name);
            Ok(())
        })
        .await
    }

    /// Leaves an attachment out of all requests from the next one on, for example because the service refuses it. A note
    /// with its media type and its size is sent in its place. `block` is the index of the block in the message. If the
    /// block is a tool result, all attachments in it are left out.
    ///
    /// Nothing else changes: the tree, snapshots and exports keep the attachment. The omission is stored with the
    /// settings of the conversation, and applies to all branches. [`restore`](Self::restore) ends it. The session must be
    /// idle. If the prompt with the attachment has failed, send it again with [`again`](Self::again).
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let provider = ScriptedProvider::new([Step::text("A cat."), Step::text("I see no picture.")]);
    /// # let agent = omni_agent::Agent::builder().model(provider.model());
    /// use omni_agent::{message::{Attachment, Content}, session::Session, store::MemoryStore};
    ///
    /// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
    /// let picture = Attachment::base64("image/png", "iVBORw0KGgo=");
    /// session.ask([Content::from("What is this?"), picture.into()]).await?;
    ///
    /// let question = session.tree().await?.roots().next().unwrap().id();
    /// session.omit(question, 1).await?;
    /// session.ask("And now?").await?;
    /// let sent = provider.last_request().unwrap().history;
    /// assert_eq!(sent.get(0).unwrap().content[1].as_text(), Some("[A file is left out: image/png, 1 KB]"));
    ///
    /// session.restore(question, 1).await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::UnknownNode`](crate::ErrorKind::UnknownNode), or [`ErrorKind::NotAnAttachment`](crate::ErrorKind::NotAnAttachment) if the block has no attachment.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the message has no id, because it was imported without one.
    /// - [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a run is active, or [`ErrorKind::Ended`](crate::ErrorKind::Ended).
    pub async fn omit(&self, node: NodeId, block: usize) -> Result<(), Error> {
        self.set_omitted(node, block, true).await
    }

    /// Sends an attachment again that [`omit`](Self::omit) has left out. If it was not left out, nothing changes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`omit`](Self::omit).
    pub async fn restore(&self, node: NodeId, block: usize) -> Result<(), Error> {
        self.set_omitted(node, block, false).await
    }

    async fn set_omitted(&self, node: NodeId, block: usize, is_omitted: bool) -> Result<(), Error> {
        // Messages may have been erased since they were named. The names are read before the tree, because another call
        // may name a message that is newer than this tree.
        let named = self.state().await?.config().settings.omitted.clone();
        let tree = self.tree().await?;
        let message = tree.node(node).ok_or_else(|| unknown_node(node))?.message();
        if !message.content.get(block).is_some_and(Content::has_file) {
            return Err(not_an_attachment(node, block));
        }
        let Some(id) = message.id.clone() else {
            return Err(
                StoreError::unsupported("leaving out an attachment of a message without an id").into()
            );
        };
        let known: HashSet<_> = tree.nodes().filter_map(|node| node.message().id.as_ref()).collect();
        let erased: HashSet<_> = named.into_keys().filter(|id| !known.contains(id)).collect();
        self.configure(move |config| {
            let omitted = &mut config.settings.omitted;
            let blocks = omitted.entry(id).or_default();
            if is_omitted {
                blocks.insert(block)
            } else {
                blocks.remove(&block)
            };
            omitted.retain(|id, blocks| !blocks.is_empty() && !erased.contains(id));
            Ok(())
        })
        .await
    }

    /// Returns the agent's state, as its callbacks see it.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session has ended.
    pub async fn state(&self) -> Result<State, Error> {
        self.on_agent(async |agent| agent.state().await).await
    }

    /// Returns whether the agent is idle, busy or paused.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session has ended.
    pub async fn status(&self) -> Result<Status, Error> {
        self.on_agent(async |agent| agent.status().await).await
    }

    /// Waits until no run is active and nothing is queued that could start a run.
    ///
    /// [`Snapshot::last_run`](crate::agent::Snapshot::last_run) shows how the last run ended. The turns of this run may
    /// not be saved yet. To wait until they are saved, call [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session ends first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, only the wait ends.
    pub async fn wait_until_idle(&self) -> Result<(), Error> {
        self.on_agent(async |agent| agent.wait_until_idle().await).await
    }
}

#[async_trait]
impl RunCommands for Session {
    async fn decide(&self, resume: ResumeDecisions) -> Result<(), Error> {
        self.on_agent(async |agent| agent.decide(resume).await).await
    }

    async fn interrupt(&self, turn: TurnId) -> Result<bool, Error> {
        self.interrupt_turn(turn).await
    }
}

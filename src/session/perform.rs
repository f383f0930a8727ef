//! The operations of a session as data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Session;
use crate::{
    agent::{Compact, ResumeDecisions, RunStarter},
    message::{Message, ToolUseId, TurnId},
    run::{Accepted, Error, Prompt, PromptId, Response, RunSpec},
    store::Labels,
    tool::Decision,
    tree::NodeId,
};

/// An operation of a session as data, for example from a client's request.
///
/// As JSON, a command is an object with a `type` and the command's fields next to it.
///
/// A command can contain everything that the operation accepts, such as options and limits of a prompt. An application
/// that performs commands from its users must first check what the commands contain. Keys, headers and models of
/// prompts have no JSON form, so they cannot come from a client.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Hello!")]);
/// # let agent = omni_agent::agent::Agent::builder().model(provider.model());
/// use omni_agent::session::{Session, SessionAnswer, SessionCommand};
/// use omni_agent::store::MemoryStore;
///
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// let request = r#"{ "type": "run", "prompt": { "id": "p1", "content": [{ "type": "text", "text": "Hi" }] } }"#;
/// let command: SessionCommand = serde_json::from_str(request)?;
/// let answer = session.perform(command, Some("ann")).await?;
/// assert!(serde_json::to_string(&answer)?.starts_with(r#"{"type":"accepted","accepted":"started","turn":"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionCommand {
    /// Starts a run, or stages a prompt: [`Session::run`] and [`Session::again`].
    Run(RunSpec),
    /// Takes a staged prompt back: [`Session::unstage`].
    Unstage {
        /// The id of the prompt.
        id: PromptId,
    },
    /// Decides about tool uses that wait. If one of the decisions is invalid or does not apply, none applies.
    Decide {
        /// The turn that is paused. If another turn is in flight, the decisions are stale.
        turn: TurnId,
        /// The decisions, each with the id of its tool use.
        #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
        decisions: Vec<(ToolUseId, Decision)>,
    },
    /// Compacts the conversation: [`Session::compact`].
    Compact(Compact),
    /// Ends the run and discards its pending messages: [`Session::cancel`].
    Cancel,
    /// Ends the run and keeps as much of it as possible: [`Session::interrupt`].
    Interrupt,
    /// Moves the path to a message: [`Session::navigate`].
    Navigate {
        /// The message, or `None` for the place before the first message.
        node: Option<NodeId>,
    },
    /// Sets the title: [`Session::set_title`].
    Title {
        /// The title, or `None` for no title.
        title: Option<Arc<str>>,
    },
    /// Sets the model: [`Session::configure`](super::Session::configure) with
    /// [`Config::set_model`](crate::agent::Config::set_model).
    Model {
        /// The name of the model.
        model: String,
    },
    /// Replaces the labels: [`Session::set_labels`].
    Labels {
        /// The labels.
        labels: Labels,
    },
    /// Leaves an attachment out of requests: [`Session::omit`].
    Omit {
        /// The message.
        node: NodeId,
        /// The index of the block.
        block: usize,
    },
    /// Sends an attachment again that was left out: [`Session::restore`].
    Restore {
        /// The message.
        node: NodeId,
        /// The index of the block.
        block: usize,
    },
    /// Erases a message and all messages below it: [`Session::erase`].
    Erase {
        /// The message.
        node: NodeId,
    },
}

/// The result of a [`SessionCommand`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionAnswer {
    /// The run was started, or the prompt was accepted in another way.
    Accepted(Accepted),
    /// The response of a run, if the command has waited for it.
    Response(Arc<Response>),
    /// The prompt was taken back.
    Prompt {
        /// The prompt that was staged.
        prompt: Arc<Prompt>,
    },
    /// The message that the operation has added.
    Message {
        /// The message.
        message: Arc<Message>,
    },
    /// The operation succeeded and has no result.
    Done,
}

impl Session {
    /// Runs an operation that is given as data. `by` is the name of the person or system that runs the operation. The
    /// name is not part of the command, so that a client cannot use the name of somebody else. Decisions about tool
    /// uses record the name, as in [`resume_as`](Self::resume_as).
    ///
    /// # Errors
    ///
    /// Returns the errors of the operation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not withdraw the operation, which may still take effect.
    pub async fn perform(&self, command: SessionCommand, by: Option<&str>) -> Result<SessionAnswer, Error> {
        match command {
            SessionCommand::Run(spec) if spec.wait => {
                return self.response(spec).await.map(SessionAnswer::Response);
            }
            SessionCommand::Run(spec) => return self.start(spec).await.map(SessionAnswer::Accepted),
            SessionCommand::Unstage { id } => {
                return self.unstage(id).await.map(|prompt| SessionAnswer::Prompt { prompt });
            }
            SessionCommand::Decide { turn, decisions } => {
                let resume = ResumeDecisions { decisions, turn: Some(turn), by: by.map(Into::into) };
                self.on_agent(async |agent| agent.decide(resume).await).await?;
            }
            SessionCommand::Compact(compact) => {
                return self.compact(compact).await.map(|message| SessionAnswer::Message { message });
            }
            SessionCommand::Cancel => self.cancel().await?,
            SessionCommand::Interrupt => self.interrupt().await?,
            SessionCommand::Navigate { node } => self.navigate(node).await?,
            SessionCommand::Title { title } => self.set_title(title.as_deref()).await?,
            SessionCommand::Labels { labels } => self.set_labels(labels).await?,
            SessionCommand::Model { model } => {
                self.configure(move |config| Ok(config.set_model(model)?)).await?;
            }
            SessionCommand::Omit { node, block } => self.omit(node, block).await?,
            SessionCommand::Restore { node, block } => self.restore(node, block).await?,
            SessionCommand::Erase { node } => self.erase(node).await?,
        }
        Ok(SessionAnswer::Done)
    }
}

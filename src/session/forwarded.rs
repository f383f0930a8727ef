//! What a session does as its agent does it. The agent is asked directly: the session has no say in these.

use std::{any::Any, error::Error, sync::Arc};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{Session, SessionError};
use crate::{
    agent::{Accepted, Config, Prompt, Response, State, Status},
    message::ToolUseId,
    tool::{Decision, Tool},
};

impl Session {
    /// Sends a prompt. If the session is idle, it begins a run, at the end of the path; while it is busy or paused, it is
    /// staged: see [`Agent::prompt`](crate::agent::Agent::prompt).
    ///
    /// # Errors
    ///
    /// [`SessionError::StoreBehind`] if too much is unsaved, and [`SessionError::Draining`] if the session is being shut down.
    /// [`SessionError::Ended`] if it has ended. [`SessionError::Agent`] with the other errors of
    /// [`Agent::prompt`](crate::agent::Agent::prompt).
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, SessionError> {
        self.ensure_room()?;
        self.on_agent(async |agent| agent.prompt(prompt).await).await
    }

    /// Sends a prompt and awaits what comes of it: see [`Agent::ask`](crate::agent::Agent::ask).
    ///
    /// # Errors
    ///
    /// [`SessionError::StoreBehind`] if too much is unsaved, and [`SessionError::Draining`] if the session is being shut down.
    /// [`SessionError::Ended`] if it has ended. [`SessionError::Busy`] if a run is active. [`SessionError::Agent`] with the other errors of
    /// [`Agent::ask`](crate::agent::Agent::ask).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Arc<Response>, SessionError> {
        self.ensure_room()?;
        self.on_agent(async |agent| agent.ask(prompt).await).await
    }

    /// Asks for a value of a Rust type: see [`Agent::ask_as`](crate::agent::Agent::ask_as).
    ///
    /// # Errors
    ///
    /// [`SessionError::StoreBehind`] if too much is unsaved, and [`SessionError::Draining`] if the session is being shut down.
    /// [`SessionError::Ended`] if it has ended. [`SessionError::Busy`] if a run is active. [`SessionError::Agent`] with the other errors of
    /// [`Agent::ask_as`](crate::agent::Agent::ask_as).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, SessionError> {
        self.ensure_room()?;
        self.on_agent(async |agent| agent.ask_as(prompt).await).await
    }

    /// Decides on the tool use that a paused session waits for: see [`Agent::resume`](crate::agent::Agent::resume).
    ///
    /// # Errors
    ///
    /// [`SessionError::Agent`] with [`AgentError::NotPaused`](crate::agent::AgentError::NotPaused) or [`AgentError::StaleResume`](crate::agent::AgentError::StaleResume). [`SessionError::Ended`] if the
    /// session has ended.
    pub async fn resume(
        &self,
        tool_use: impl Into<ToolUseId>,
        decision: Decision,
    ) -> Result<(), SessionError> {
        self.on_agent(async |agent| agent.resume(tool_use, decision).await).await
    }

    /// Ends the run at once and discards what is pending. If the run began a branch and none of its turns is complete,
    /// the branch is as if it never was. See [`Agent::cancel`](crate::agent::Agent::cancel).
    ///
    /// # Errors
    ///
    /// [`SessionError::Agent`] with [`AgentError::Idle`](crate::agent::AgentError::Idle) if no run is active. [`SessionError::Ended`] if the session has ended.
    pub async fn cancel(&self) -> Result<(), SessionError> {
        self.on_agent(async |agent| agent.cancel().await).await
    }

    /// Ends the run at once and keeps what can be kept: see [`Agent::interrupt`](crate::agent::Agent::interrupt).
    ///
    /// # Errors
    ///
    /// [`SessionError::Agent`] with [`AgentError::Idle`](crate::agent::AgentError::Idle) if no run is active. [`SessionError::Ended`] if the session has ended.
    pub async fn interrupt(&self) -> Result<(), SessionError> {
        self.on_agent(async |agent| agent.interrupt().await).await
    }

    /// Sends an event of the application's own to the agent's callbacks: see [`Agent::notify`](crate::agent::Agent::notify).
    ///
    /// # Errors
    ///
    /// [`SessionError::Agent`] with [`AgentError::TooManyEvents`](crate::agent::AgentError::TooManyEvents) if the queue is full. [`SessionError::Ended`] if the session
    /// has ended.
    pub async fn notify<E: Any + Send>(&self, event: E) -> Result<(), SessionError> {
        self.on_agent(async |agent| agent.notify(event).await).await
    }

    /// Changes the agent's configuration, as a whole or not at all: see [`Agent::set_state`](crate::agent::Agent::set_state). The model,
    /// the system prompt, the options and the limits are saved if they changed. To switch the model, call
    /// [`Config::set_model`] in `edit`.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`] if a run is active. [`SessionError::Ended`] if the session has ended. [`SessionError::Agent`] with
    /// the other errors of [`Agent::set_state`](crate::agent::Agent::set_state).
    #[doc(alias = "switch model")]
    pub async fn configure<F>(&self, edit: F) -> Result<(), SessionError>
    where
        F: FnOnce(&mut Config) -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    {
        self.on_agent(async |agent| agent.set_state(|draft| edit(&mut draft.config)).await).await
    }

    /// Offers one more tool to the model. Idle only; tools are not saved.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`] if a run is active. [`SessionError::Agent`] with [`AgentError::Refused`](crate::agent::AgentError::Refused) if the tool conflicts
    /// with the others. [`SessionError::Ended`] if the session has ended.
    pub async fn add_tool(&self, tool: impl Tool) -> Result<(), SessionError> {
        let tool: Arc<dyn Tool> = Arc::new(tool);
        self.configure(move |config| Ok(config.tools.insert(tool)?)).await
    }

    /// Offers a tool no longer. Idle only. That there is none of this name is no error.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`] if a run is active. [`SessionError::Ended`] if the session has ended.
    pub async fn remove_tool(&self, name: impl Into<String>) -> Result<(), SessionError> {
        let name = name.into();
        self.configure(move |config| {
            config.tools.remove(&name);
            Ok(())
        })
        .await
    }

    /// The agent's state, as callbacks see it.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn state(&self) -> Result<State, SessionError> {
        self.on_agent(async |agent| agent.state().await).await
    }

    /// What the agent is doing.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn status(&self) -> Result<Status, SessionError> {
        self.on_agent(async |agent| agent.status().await).await
    }

    /// Waits until no run is active and nothing waits to begin one. How the last run ended is in
    /// [`Snapshot::last_run`](crate::agent::Snapshot::last_run). Its turns may not be saved yet: see
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`] if the session ends first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn wait_until_idle(&self) -> Result<(), SessionError> {
        self.on_agent(async |agent| agent.wait_until_idle().await).await
    }
}

//! Prompts and their cancellation.

use std::sync::Arc;

use agent_client_protocol_schema::v1::{Error, PromptRequest, PromptResponse};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    StartRequest, content,
    entry::Entry,
    prompts::{Answer, MOST},
    server::{Server, written},
    view::Joining,
};
use crate::{
    acp::read,
    error_chain,
    run::{ErrorKind, Prompt, PromptId},
    session::Session,
};

/// A prompt that is registered and not sent yet.
pub(super) struct NewPrompt {
    entry: Arc<Entry>,
    id: PromptId,
    prompt: Prompt,
    answer: oneshot::Receiver<Answer>,
}

impl Server {
    /// Registers a prompt.
    pub(super) fn new_prompt(&self, params: Value) -> Result<NewPrompt, Error> {
        let request: PromptRequest = read(params)?;
        let entry = self.entry(&request.session_id.0)?;
        let content = content::prompt(request.prompt)?;
        let Some((id, answer)) = entry.add_prompt() else {
            let why = format!("{MOST} prompts of the session wait already; wait for the end of a turn");
            return Err(Error::invalid_request().data(why));
        };
        let prompt = Prompt::new(content).with_id(id.clone());
        Ok(NewPrompt { entry, id, prompt, answer })
    }

    /// Sends a prompt, and waits for its answer.
    pub(super) async fn prompt(
        self: &Arc<Self>,
        new: NewPrompt,
        withdrawn: &CancellationToken,
    ) -> Result<Value, Error> {
        let NewPrompt { entry, id, prompt, mut answer } = new;
        let session = match self.send(&entry, prompt).await {
            Ok(session) => session,
            Err(error) => {
                entry.prompts(|prompts| prompts.remove(&id));
                return Err(error);
            }
        };
        entry.accepted(&id);
        if entry.prompts(|prompts| prompts.is_cancelled(&id)) {
            interrupt(&session).await;
        }
        let answer = tokio::select! {
            biased;
            answer = &mut answer => answer,
            () = withdrawn.cancelled() => {
                self.cancel(entry.id.as_str()).await;
                answer.await
            }
        };
        let gone = |_| Err(Error::internal_error().data("the session was closed"));
        written(&PromptResponse::new(answer.unwrap_or_else(gone)?))
    }

    /// Gives the session a prompt. A session that was closed while it was idle is opened again.
    async fn send(self: &Arc<Self>, entry: &Arc<Entry>, prompt: Prompt) -> Result<Session, Error> {
        let mut retries = 1;
        loop {
            let session = self.open(entry).await?;
            let mut prompt = prompt.clone();
            let invalid =
                |error: &(dyn std::error::Error + 'static)| Error::invalid_request().data(error_chain(error));
            // The prompt is staged if a run is active. Its own turn then uses the model that was chosen before it.
            if let Some(model) = entry.apply_choice(&session).await.map_err(|error| invalid(&error))? {
                let model = self.settings.manager.registry_of_models().model(&model);
                prompt.model = Some(model.map_err(|error| invalid(&error))?);
            }
            match session.prompt(prompt).await {
                Ok(_) => return Ok(session),
                Err(error) if error.kind() == ErrorKind::Ended && retries > 0 => {
                    retries -= 1;
                    entry.forget();
                }
                Err(error) => return Err(invalid(&error)),
            }
        }
    }

    /// Returns the session of an entry. Opens the session if necessary.
    pub(super) async fn open(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Session, Error> {
        let _opening = entry.opening.lock().await;
        if let Some(session) = entry.session() {
            return Ok(session);
        }
        let manager = &self.settings.manager;
        let stored = StartRequest { conversation: Some(entry.id.clone()), ..entry.request.clone() };
        let opened = match manager.open(&entry.id, self.options(&stored).await?).await {
            Err(error) if error.is_not_found() && entry.request.conversation.is_none() => {
                // A new conversation that was closed before its first turn is not in the store, so it is created again.
                manager.create_with_id(&entry.id, self.options(&entry.request).await?).await
            }
            opened => opened,
        };
        let opened = opened.map_err(|error| super::sessions::refused(&entry.id, &error))?;
        let session = opened.session.clone();
        self.attach(entry, opened, Joining::Resumed).await?;
        Ok(session)
    }

    /// Cancels the turn in flight and all prompts that wait.
    pub(super) async fn cancel(&self, id: &str) {
        let Ok(entry) = self.entry(id) else { return };
        entry.prompts(super::prompts::Prompts::cancel);
        if let Some(session) = entry.session() {
            interrupt(&session).await;
        }
    }
}

async fn interrupt(session: &Session) {
    if let Err(error) = session.interrupt().await {
        tracing::debug!(%error, "there is nothing to cancel");
    }
}

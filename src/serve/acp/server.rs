//! One connection: reads the client's messages and performs its requests.
//!
//! A prompt is registered when its line is read, before its task starts. So a cancellation in the next line applies to
//! it, even if the session does not know the prompt yet.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use agent_client_protocol_schema::v1::{CancelNotification, Error, PromptRequest, PromptResponse};
use futures_util::StreamExt;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use tokio_util::{codec::AnyDelimiterCodecError, sync::CancellationToken};
use tracing::Instrument;

use super::{
    EditorServerSettings, content,
    entry::EditorSession,
    prompts::{EditorPromptResult, MOST, UnansweredEditorPrompts},
    relay::EditorClientInfo,
    sessions::{NamedEditorServers, refused},
    view::EditorJoinMode,
};
use crate::{
    access::StartRequest,
    acp::{self, AcpClosed, AcpMessage, AcpPeer, LONGEST, MOST_NOISE, read},
    error_chain,
    panics::{contained, contained_async},
    process::lines::{lines, shown},
    run::{ErrorKind, Prompt, PromptId},
    serve::stdio,
    session::Session,
    store::ConversationId,
    sync::lock,
};

/// The maximum number of requests that wait for their answers.
const MOST_REQUESTS: usize = 64;

/// How long to wait at the end until the client has read everything.
const SOON: Duration = Duration::from_secs(1);

pub(super) struct EditorServer {
    pub(super) settings: EditorServerSettings,
    pub(super) peer: Arc<AcpPeer>,
    /// The client, after `initialize`.
    pub(super) client: Mutex<Option<EditorClientInfo>>,
    pub(super) entries: Mutex<HashMap<ConversationId, Arc<EditorSession>>>,
    /// The prefix of the prompt ids that this connection creates.
    pub(super) own: Arc<str>,
}

impl Drop for EditorServer {
    /// Ends the tasks that follow sessions.
    fn drop(&mut self) {
        for entry in lock(&self.entries).values() {
            entry.forget();
        }
    }
}

/// Serves a client until it closes its end of the connection.
pub(super) async fn run(
    settings: EditorServerSettings,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Result<(), crate::Error> {
    let (peer, lines) = AcpPeer::new();
    let server = Arc::new(EditorServer {
        settings,
        peer,
        client: Mutex::default(),
        entries: Mutex::default(),
        own: format!("acp-{:016x}-", rand::random::<u64>()).into(),
    });
    let mut requests = JoinSet::new();
    let mut writing = pin!(acp::write(output, lines));
    let (outcome, writes) = tokio::select! {
        biased;
        written = &mut writing => (written.map_err(stdio::unwritable), false),
        read = server.read(input, &mut requests) => (read, true),
    };
    // A prompt that is on its way to its session must arrive there before the session is interrupted.
    requests.shutdown().await;
    server.leave().await;
    drop(server);
    if writes {
        // The time limit is needed because the client may have stopped reading.
        let _ = timeout(SOON, writing).await;
    }
    outcome
}

impl EditorServer {
    async fn read(
        self: &Arc<Self>,
        input: impl AsyncRead + Unpin,
        requests: &mut JoinSet<()>,
    ) -> Result<(), crate::Error> {
        let mut lines = lines(input, LONGEST);
        let mut invalid = 0;
        loop {
            let line = match lines.next().await {
                Some(Ok(line)) => line,
                Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                    let why = format!("the message is longer than {LONGEST} bytes");
                    // The connection ends now, so an error of this last answer is ignored.
                    let _ = self.peer.answer(&Value::Null, Err(Error::invalid_request().data(why))).await;
                    let text = format!(
                        "the client sent a message of more than {LONGEST} bytes; send files as links"
                    );
                    return Err(crate::Error::new(ErrorKind::Connection, text).with_member("limit", LONGEST));
                }
                Some(Err(AnyDelimiterCodecError::Io(error))) => return Err(stdio::unreadable(error)),
                None => return Ok(()),
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            while requests.try_join_next().is_some() {}
            let incoming = AcpMessage::parse(&line);
            invalid = if matches!(incoming, AcpMessage::Invalid { .. }) { invalid + 1 } else { 0 };
            let handled = match incoming {
                AcpMessage::Request { id, method, params } => {
                    self.request(id, method, params, requests).await
                }
                AcpMessage::Notification { method, params } => {
                    self.notified(&method, params).await;
                    Ok(())
                }
                AcpMessage::Response { id, answer } => {
                    self.peer.answered(&id, answer);
                    Ok(())
                }
                AcpMessage::Invalid { id, error } => self.peer.answer(&id, Err(error)).await,
            };
            if handled.is_err() {
                // The client can't be reached. The future that writes messages returns the error.
                return Ok(());
            }
            if invalid == MOST_NOISE {
                let line = shown(&line, 200);
                let text =
                    format!("the client does not speak the Agent Client Protocol; its last line was: {line}");
                return Err(crate::Error::new(ErrorKind::Connection, text));
            }
        }
    }

    async fn request(
        self: &Arc<Self>,
        id: Value,
        method: String,
        params: Value,
        requests: &mut JoinSet<()>,
    ) -> Result<(), AcpClosed> {
        // These are notifications, but some clients send them as requests.
        if matches!(&*method, "session/cancel" | "$/cancel_request") {
            self.notified(&method, params).await;
            return self.peer.answer(&id, Ok(Value::Null)).await;
        }
        if requests.len() >= MOST_REQUESTS {
            let why =
                format!("{MOST_REQUESTS} requests already wait for their answers; wait for some of them");
            return self.peer.answer(&id, Err(Error::invalid_request().data(why))).await;
        }
        // The connection is initialized in the order of the messages.
        if method == "initialize" {
            let initialized = contained(|| self.initialize(read(params)?));
            return self.peer.answer(&id, initialized.unwrap_or_else(|panic| Err(panicked(&panic)))).await;
        }
        if lock(&self.client).is_none() {
            let why = "the connection is not initialized; send `initialize` first";
            return self.peer.answer(&id, Err(Error::invalid_request().data(why))).await;
        }
        // Prompts are registered in the order of the messages, so that a cancellation after a prompt applies to it.
        let (prompt, params) = match &*method {
            "session/prompt" => match self.new_prompt(params) {
                Ok(prompt) => (Some(prompt), Value::Null),
                Err(error) => return self.peer.answer(&id, Err(error)).await,
            },
            _ => (None, params),
        };
        let (server, withdrawn) = (Arc::clone(self), self.peer.begin(&id));
        let performed = async move {
            let performed = contained_async(server.perform(&method, params, prompt, &withdrawn)).await;
            let answer = performed.unwrap_or_else(|panic| Err(panicked(&panic)));
            // If the client is gone, nobody needs the answer.
            let _ = server.peer.answer(&id, answer).await;
        };
        requests.spawn(performed.in_current_span());
        Ok(())
    }

    async fn perform(
        self: &Arc<Self>,
        method: &str,
        mut params: Value,
        prompt: Option<UnsentEditorPrompt>,
        withdrawn: &CancellationToken,
    ) -> Result<Value, Error> {
        if let Some(prompt) = prompt {
            return self.prompt(prompt, withdrawn).await;
        }
        let performed = withdrawn.run_until_cancelled(async {
            match method {
                "session/new" => {
                    let servers = NamedEditorServers::take(&mut params)?;
                    self.create(read(params)?, servers).await
                }
                "session/load" => {
                    let servers = NamedEditorServers::take(&mut params)?;
                    self.load(read(params)?, servers).await
                }
                "session/resume" => {
                    let servers = NamedEditorServers::take(&mut params)?;
                    self.resume(read(params)?, servers).await
                }
                "session/list" => self.list(read(params)?).await,
                "session/close" => self.close(read(params)?).await,
                "session/delete" => self.delete(read(params)?).await,
                "session/set_config_option" => self.set_option(read(params)?).await,
                _ => Err(Error::method_not_found().data(method.to_owned())),
            }
        });
        performed.await.unwrap_or_else(|| Err(Error::request_cancelled()))
    }

    async fn notified(&self, method: &str, params: Value) {
        match method {
            "session/cancel" => match read::<CancelNotification>(params) {
                Ok(cancel) => self.cancel(&cancel.session_id.0).await,
                Err(error) => tracing::warn!(?error, "a cancellation of the client can't be read"),
            },
            "$/cancel_request" => self.peer.withdraw(&params),
            _ => tracing::debug!(method, "a notification of the client is ignored"),
        }
    }

    /// Returns the session with this id that the client uses.
    pub(super) fn entry(&self, id: &str) -> Result<Arc<EditorSession>, Error> {
        let found = ConversationId::new(id).ok().and_then(|id| lock(&self.entries).get(&id).cloned());
        found.ok_or_else(|| Error::session_not_found(id.to_owned()))
    }

    async fn leave(&self) {
        let entries: Vec<_> = lock(&self.entries).drain().map(|(_, entry)| entry).collect();
        futures_util::future::join_all(entries.iter().map(|entry| entry.leave())).await;
    }
}

fn panicked(panic: &str) -> Error {
    Error::internal_error().data(format!("the agent's code panicked: {panic}"))
}

/// Returns a response as JSON.
pub(super) fn written(response: &impl serde::Serialize) -> Result<Value, Error> {
    serde_json::to_value(response).map_err(|error| Error::internal_error().data(error.to_string()))
}

/// A prompt that is registered and not sent yet.
pub(super) struct UnsentEditorPrompt {
    entry: Arc<EditorSession>,
    id: PromptId,
    prompt: Prompt,
    answer: oneshot::Receiver<EditorPromptResult>,
}

impl EditorServer {
    /// Registers a prompt.
    pub(super) fn new_prompt(&self, params: Value) -> Result<UnsentEditorPrompt, Error> {
        let request: PromptRequest = read(params)?;
        let entry = self.entry(&request.session_id.0)?;
        let content = content::prompt(request.prompt)?;
        let Some((id, answer)) = entry.add_prompt() else {
            let why = format!("{MOST} prompts of the session wait already; wait for the end of a turn");
            return Err(Error::invalid_request().data(why));
        };
        let prompt = Prompt::new(content).with_id(id.clone());
        Ok(UnsentEditorPrompt { entry, id, prompt, answer })
    }

    /// Sends a prompt, and waits for its answer.
    pub(super) async fn prompt(
        self: &Arc<Self>,
        new: UnsentEditorPrompt,
        withdrawn: &CancellationToken,
    ) -> Result<Value, Error> {
        let UnsentEditorPrompt { entry, id, prompt, mut answer } = new;
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
    async fn send(self: &Arc<Self>, entry: &Arc<EditorSession>, prompt: Prompt) -> Result<Session, Error> {
        let mut retries = 1;
        loop {
            let session = self.open(entry).await?;
            let mut prompt = prompt.clone();
            let invalid =
                |error: &(dyn std::error::Error + 'static)| Error::invalid_request().data(error_chain(error));
            // The prompt is staged if a run is active. Its own turn then uses the model that was chosen before it.
            if let Some(model) = entry.apply_choice(&session).await.map_err(|error| invalid(&error))? {
                let model = self.settings.client.manager.registry_of_models().model(&model);
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
    pub(super) async fn open(self: &Arc<Self>, entry: &Arc<EditorSession>) -> Result<Session, Error> {
        let _opening = entry.opening.lock().await;
        if let Some(session) = entry.session() {
            return Ok(session);
        }
        let manager = &self.settings.client.manager;
        let stored = StartRequest { conversation: Some(entry.id.clone()), ..entry.request.clone() };
        let opened = match manager.open(&entry.id, self.options(&stored).await?).await {
            Err(error) if error.is_not_found() && entry.request.conversation.is_none() => {
                // A new conversation that was closed before its first turn is not in the store, so it is created again.
                manager.create_with_id(&entry.id, self.options(&entry.request).await?).await
            }
            opened => opened,
        };
        let opened = opened.map_err(|error| refused(&entry.id, &error))?;
        let session = opened.session.clone();
        self.attach(entry, opened, EditorJoinMode::Resumed).await?;
        Ok(session)
    }

    /// Cancels the turn in flight and all prompts that wait.
    pub(super) async fn cancel(&self, id: &str) {
        let Ok(entry) = self.entry(id) else { return };
        entry.prompts(UnansweredEditorPrompts::cancel);
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

//! A session that a client uses. The manager may close the session while it is idle; the next prompt opens it again.
//!
//! The relay is an observer, so an idle session does not keep its place in the manager.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinHandle,
    time::timeout,
};

use super::prompts::{AbandonedEditorPrompts, EditorPromptResult, UnansweredEditorPrompts};
use crate::{
    access::StartRequest,
    run::{Error, ErrorKind, PromptId},
    session::Session,
    store::ConversationId,
    sync::lock,
};

/// How long to wait for a session that ends.
const SOON: Duration = Duration::from_secs(5);

pub(super) struct EditorSession {
    pub(super) id: ConversationId,
    /// The request with which the session is opened again.
    pub(super) request: StartRequest,
    /// The prefix of the prompt ids that this connection creates.
    own: Arc<str>,
    sent: AtomicU64,
    /// Whether the client was told about the servers that can't be used.
    is_warned: AtomicBool,
    /// Held while the session is opened.
    pub(super) opening: AsyncMutex<()>,
    state: Mutex<EditorSessionState>,
}

#[derive(Default)]
struct EditorSessionState {
    live: Option<OpenEditorSession>,
    prompts: UnansweredEditorPrompts,
    relays: u64,
    /// The model that the client has chosen while a run was active.
    chosen: Option<String>,
}

/// An open session, and the task that follows it. Dropping this ends the task.
struct OpenEditorSession {
    session: Session,
    number: u64,
    relay: Option<JoinHandle<()>>,
}

impl Drop for OpenEditorSession {
    fn drop(&mut self) {
        if let Some(relay) = &self.relay {
            relay.abort();
        }
    }
}

impl EditorSession {
    pub(super) fn new(id: ConversationId, request: StartRequest, own: Arc<str>) -> Arc<Self> {
        let (sent, is_warned, opening) = Default::default();
        Arc::new(Self { id, request, own, sent, is_warned, opening, state: Mutex::default() })
    }

    /// Returns the warnings about servers that can't be used. A repeated call returns none.
    pub(super) fn take_warnings(&self) -> &[String] {
        let is_warned = self.is_warned.swap(true, Ordering::Relaxed);
        self.request.editor().filter(|_| !is_warned).map_or(&[], |(_, servers)| &servers.warnings)
    }

    pub(super) fn own_prefix(&self) -> &str {
        &self.own
    }

    /// Calls `change` with the prompts that wait, and returns its result.
    pub(super) fn prompts<T>(&self, change: impl FnOnce(&mut UnansweredEditorPrompts) -> T) -> T {
        change(&mut lock(&self.state).prompts)
    }

    /// Adds a prompt that waits for its answer. Returns `None` if too many prompts wait.
    pub(super) fn add_prompt(&self) -> Option<(PromptId, oneshot::Receiver<EditorPromptResult>)> {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let id = PromptId::new(format!("{}{number}", self.own));
        let answer = self.prompts(|prompts| prompts.add(id.clone()))?;
        Some((id, answer))
    }

    /// Records that the session has accepted a prompt. If the session has ended meanwhile, the prompts that were
    /// accepted before have already been answered, and this call answers the new one.
    pub(super) fn accepted(&self, id: &PromptId) {
        let mut state = lock(&self.state);
        state.prompts.accepted(id);
        if state.live.is_none() {
            state.prompts.closed("it was closed");
        }
    }

    /// Records the client's choice of a model until it is applied.
    pub(super) fn choose(&self, model: String) {
        lock(&self.state).chosen = Some(model);
    }

    /// Applies the chosen model if no run is active. Returns the model if it must still be applied.
    pub(super) async fn apply_choice(&self, session: &Session) -> Result<Option<String>, Error> {
        let Some(chosen) = lock(&self.state).chosen.clone() else { return Ok(None) };
        let name = chosen.clone();
        let configured = session.configure(move |config| Ok(config.set_model(name)?)).await;
        if configured.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
            return Ok(Some(chosen));
        }
        let mut state = lock(&self.state);
        state.chosen = state.chosen.take().filter(|other| *other != chosen);
        configured.map(|()| None)
    }

    /// Returns the session, unless it is known to be closed.
    pub(super) fn session(&self) -> Option<Session> {
        lock(&self.state).live.as_ref().map(|live| live.session.clone())
    }

    /// Forgets the session, because it has ended.
    pub(super) fn forget(&self) {
        let live = lock(&self.state).live.take();
        drop(live);
    }

    /// Sets the open session, and starts the task that follows it. `start` gets the number of the task.
    pub(super) fn follow(&self, session: Session, start: impl FnOnce(u64) -> JoinHandle<()>) {
        let old = {
            let mut state = lock(&self.state);
            state.relays += 1;
            let number = state.relays;
            state.live.replace(OpenEditorSession { session, number, relay: Some(start(number)) })
        };
        drop(old);
    }

    /// Answers the prompts that still wait when the relay, which is the task that follows the session, ends. `number`
    /// is the number of the relay. Does nothing if another relay follows the session by now.
    pub(super) fn closed(&self, number: u64, why: &str) {
        let mut state = lock(&self.state);
        if state.live.as_ref().is_some_and(|live| live.number != number) {
            return;
        }
        let live = state.live.take();
        state.prompts.closed(why);
        drop(state);
        drop(live);
    }

    /// Waits until the task that follows the session has passed all events to the client. The session must have ended.
    pub(super) async fn finished(&self) {
        let relay = lock(&self.state).live.as_mut().and_then(|live| live.relay.take());
        if let Some(mut relay) = relay
            && timeout(SOON, &mut relay).await.is_err()
        {
            relay.abort();
        }
    }

    /// Stops following the session, because the client is gone. A run of the client's prompts is interrupted, so that
    /// its completed steps are kept, and the client's staged prompts are withdrawn. The runs of other clients continue.
    pub(super) async fn leave(&self) {
        let (live, abandoned) = {
            let mut state = lock(&self.state);
            (state.live.take(), state.prompts.abandoned())
        };
        if let Some(live) = live {
            // An error is ignored, because the session may have ended. The time limit keeps a session that does not
            // answer from delaying the other sessions.
            let withdrawn = timeout(SOON, withdraw(&live.session, abandoned)).await;
            tracing::debug!(?withdrawn, "a client is gone");
        }
    }
}

async fn withdraw(session: &Session, abandoned: AbandonedEditorPrompts) -> Result<(), Error> {
    let AbandonedEditorPrompts { turn, staged } = abandoned;
    if let Some(turn) = turn {
        session.interrupt_turn(turn).await?;
    }
    let mut begun = Vec::new();
    for id in staged {
        // This fails if the prompt is used already, which the events of the session did not show yet.
        if session.unstage(id.clone()).await.is_err() {
            begun.push(id);
        }
    }
    if begun.is_empty() {
        return Ok(());
    }
    let agent = session.snapshot().await?.agent;
    let mut pending = agent.pending.iter().filter_map(|message| message.id.as_ref());
    let is_own = pending.any(|id| begun.iter().any(|own| own.as_str() == id.to_string()));
    if let Some(turn) = agent.turn.filter(|_| is_own) {
        session.interrupt_turn(turn).await?;
    }
    Ok(())
}

//! Passes the events of one session to the client: updates, questions, and the ends of prompts.
//!
//! Updates and the answer of a prompt go through this one task and one queue, so the client has the whole turn before
//! its answer. A slow client slows only its relay: the subscription lags, and the next snapshot shows what was missed.
//! A question is withdrawn when the session reports a decision, whichever client has made it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::{
    ConfigOptionUpdate, ContentChunk, Cost, Notice, NoticeSeverity, PermissionOption, PermissionOptionKind,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SessionInfoUpdate,
    SessionNotification, SessionUpdate, UsageUpdate,
};
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    EditorServerSettings,
    entry::EditorSession,
    sessions::model_options,
    view::{EditorJoinMode, EditorView},
};
use crate::{
    acp::{AcpClosed, AcpPeer},
    agent::Event,
    error_chain,
    message::{ToolUseId, Usage},
    run::PendingUse,
    session::{Session, SessionCommand, SessionEvent, SessionSnapshot, SessionSubscription, StoreReport},
    subscription::Update,
    tool::Decision,
};

/// The longest time for which an update waits for the sum of the ledger.
const LONGEST_SUM: Duration = Duration::from_secs(1);

/// The facts about the client that its relays need.
#[derive(Clone, Default)]
pub(super) struct EditorClientInfo {
    /// The client's name, which is recorded with its decisions.
    pub(super) name: Option<Arc<str>>,
    /// Whether the client shows notices.
    pub(super) notices: bool,
}

pub(super) struct EditorRelay {
    pub(super) peer: Arc<AcpPeer>,
    pub(super) client: EditorClientInfo,
    pub(super) entry: Arc<EditorSession>,
    /// The number of this relay. Each time an entry's session is opened, a relay with another number follows the
    /// session.
    pub(super) number: u64,
    pub(super) session: Session,
    pub(super) settings: EditorServerSettings,
}

/// The parts of the relay that change.
struct EditorRelayState {
    view: EditorView,
    /// The model in use, by its full name.
    model: String,
    /// The size of the model's context window, if it is known.
    window: Option<u64>,
    /// The usage of the session, counted as in its snapshot.
    used: Usage,
    /// The usage of the session's sub-agents. Their sessions store it, so no snapshot of this session contains it.
    delegated: Usage,
    /// Whether `delegated` differs from the last sum of the ledger.
    is_stale: bool,
    /// The questions that wait. Cancelling a token withdraws the question.
    asked: HashMap<ToolUseId, CancellationToken>,
    questions: JoinSet<()>,
}

/// A guard that answers the waiting prompts when the relay ends for any reason.
struct UnansweredPromptsGuard<'a>(&'a EditorRelay, String);

impl Drop for UnansweredPromptsGuard<'_> {
    fn drop(&mut self) {
        self.0.entry.closed(self.0.number, &self.1);
    }
}

impl EditorRelay {
    /// Runs until the session or the connection ends. Sends to `joined` when all updates so far were passed to the
    /// client.
    pub(super) async fn run(
        self,
        mut events: SessionSubscription,
        joining: EditorJoinMode,
        joined: oneshot::Sender<()>,
    ) {
        let mut last = UnansweredPromptsGuard(&self, "it is not followed any more".to_owned());
        // An error means that the client is gone. Then nothing more can be sent.
        if let Ok(why) = self.follow(&mut events, joining, joined).await {
            last.1 = why;
        }
    }

    async fn follow(
        &self,
        events: &mut SessionSubscription,
        joining: EditorJoinMode,
        joined: oneshot::Sender<()>,
    ) -> Result<String, AcpClosed> {
        let Some(snapshot) = events.snapshot().cloned() else {
            return Ok("its subscription has no snapshot".to_owned());
        };
        let mut state = EditorRelayState {
            view: EditorView::new(self.entry.own_prefix().to_owned()),
            model: snapshot.agent.state.model.clone(),
            window: None,
            used: snapshot.used,
            delegated: Usage::default(),
            // A new conversation has no sub-agents.
            is_stale: snapshot.messages().next().is_some(),
            asked: HashMap::new(),
            questions: JoinSet::new(),
        };
        self.look_up_window(&mut state).await;
        for update in state.view.join(&snapshot, joining) {
            self.send(update).await?;
        }
        if let Some(title) = &snapshot.title {
            self.titled(Some(title)).await?;
        }
        // Sending fails if the caller no longer waits.
        let _ = joined.send(());
        self.ask(&mut state, &snapshot.agent.pauses);
        drop(snapshot);
        loop {
            while state.questions.try_join_next().is_some() {}
            match events.next().await {
                Some(Update::Event(event)) => self.event(&mut state, &event.event).await?,
                Some(Update::Resync(snapshot)) => self.missed(&mut state, &snapshot).await?,
                Some(Update::Closed(end)) => {
                    if let Some(snapshot) = &end.snapshot {
                        self.missed(&mut state, snapshot).await?;
                    }
                    return Ok(end.reason.to_string());
                }
                None => return Ok("its events ended".to_owned()),
            }
        }
    }

    async fn send(&self, update: SessionUpdate) -> Result<(), AcpClosed> {
        let id = self.entry.id.as_str().to_owned();
        self.peer.notify("session/update", SessionNotification::new(id, update)).await
    }

    async fn titled(&self, title: Option<&str>) -> Result<(), AcpClosed> {
        let title = title.map(str::to_owned);
        self.send(SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(title))).await
    }

    async fn notice(&self, title: &str, description: String) -> Result<(), AcpClosed> {
        if !self.client.notices {
            return Ok(());
        }
        let notice = Notice::new(NoticeSeverity::Warning, title).description(description);
        self.send(SessionUpdate::Notice(notice)).await
    }

    /// Looks up the context window of the model in use. If the session has ended, the window is unknown.
    async fn look_up_window(&self, state: &mut EditorRelayState) {
        let session = self.session.state().await.ok();
        let info = session.as_ref().and_then(|session| session.config().model.info());
        state.window = info.and_then(|info| info.context_window);
    }

    async fn missed(
        &self,
        state: &mut EditorRelayState,
        snapshot: &SessionSnapshot,
    ) -> Result<(), AcpClosed> {
        for update in state.view.catch_up(snapshot) {
            self.send(update).await?;
        }
        (state.used, state.is_stale) = (snapshot.used, true);
        self.remodelled(state, &snapshot.agent.state.model).await?;
        self.titled(snapshot.title.as_deref()).await?;
        self.ask(state, &snapshot.agent.pauses);
        self.entry.prompts(|prompts| prompts.missed(snapshot));
        Ok(())
    }

    async fn event(&self, state: &mut EditorRelayState, event: &SessionEvent) -> Result<(), AcpClosed> {
        match event {
            SessionEvent::Agent(event) => self.agent_event(state, event).await,
            SessionEvent::Title { title } => self.titled(title.as_deref()).await,
            SessionEvent::Usage(row) => {
                state.used += row.usage;
                Ok(())
            }
            SessionEvent::Store(StoreReport::Failed { error, retry_in, .. }) => {
                let why = format!("{error}; it is tried again in {retry_in:?}");
                self.notice("The conversation is not saved", why).await
            }
            SessionEvent::Store(StoreReport::Lost { error }) => {
                self.notice("The conversation can't be saved any more", error.clone()).await
            }
            SessionEvent::ModelFallback { saved, fallback } => {
                let why = format!("{saved} is not available, so {fallback} is used");
                self.notice("Another model is used", why).await
            }
            _ => Ok(()),
        }
    }

    /// Tells the client which of its servers can't be used. A client without notices gets a part of the agent's message.
    async fn warn_of_servers(&self) -> Result<(), AcpClosed> {
        for warning in self.entry.take_warnings() {
            if self.client.notices {
                self.notice("An MCP server is unavailable", warning.clone()).await?;
            } else {
                let chunk = ContentChunk::new(format!("[{warning}]\n\n").into());
                self.send(SessionUpdate::AgentMessageChunk(chunk)).await?;
            }
        }
        Ok(())
    }

    async fn agent_event(&self, state: &mut EditorRelayState, event: &Event) -> Result<(), AcpClosed> {
        if matches!(event, Event::StepStart { .. }) {
            // Before the answer to the first prompt, the client may not know the session.
            self.warn_of_servers().await?;
        }
        for update in state.view.event(event) {
            self.send(update).await?;
        }
        match event {
            Event::Step(response) => {
                state.used += response.usage;
                self.used(state, response.usage.total()).await?;
                for warning in &response.warnings {
                    self.notice("A setting was not applied", warning.clone()).await?;
                }
            }
            Event::Retry { failure, model, .. } => {
                let with = model.as_ref().map_or(String::new(), |model| format!(" with the model {model}"));
                self.notice(&format!("The request is repeated{with}"), error_chain(failure)).await?;
            }
            Event::CompactionStart { tokens, .. } => {
                let why = format!("its next request would have some {tokens} tokens");
                self.notice("The conversation is compacted", why).await?;
            }
            Event::CompactionEnd { failure: Some(failure), .. } => {
                self.notice("The conversation was not compacted", error_chain(failure)).await?;
            }
            Event::Status { pauses, .. } => self.ask(state, pauses),
            Event::State(view) => self.remodelled(state, &view.model).await?,
            Event::Usage(row) if row.conversation.is_some() => {
                state.delegated += row.usage;
                state.is_stale = true;
            }
            Event::Usage(row) => state.used += row.usage,
            _ => {}
        }
        self.entry.prompts(|prompts| prompts.event(event));
        Ok(())
    }

    async fn used(&self, state: &mut EditorRelayState, context: u64) -> Result<(), AcpClosed> {
        // The protocol's usage update requires the size of the context window, so if the size is unknown, no update is
        // sent.
        let Some(size) = state.window else { return Ok(()) };
        // The ledger can contain a request before its event arrives, so a sum and later events would count it twice. After
        // a step, the ledger contains all requests of the step's calls. Without a ledger, the events since the relay count.
        if state.is_stale {
            let sum = timeout(LONGEST_SUM, self.settings.client.delegated(&self.entry.id)).await;
            if let Ok(Ok(delegated)) = sum {
                (state.delegated, state.is_stale) = (delegated, false);
            }
        }
        let cost = (state.used + state.delegated).cost.map(|amount| Cost::new(amount, "USD"));
        self.send(SessionUpdate::UsageUpdate(UsageUpdate::new(context, size).cost(cost))).await
    }

    /// Reports a model that this or another client has chosen.
    async fn remodelled(&self, state: &mut EditorRelayState, model: &str) -> Result<(), AcpClosed> {
        if state.model == model {
            return Ok(());
        }
        model.clone_into(&mut state.model);
        self.look_up_window(state).await;
        match model_options(&self.settings.models, model) {
            Some(options) => {
                self.send(SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options))).await
            }
            None => Ok(()),
        }
    }

    /// Asks the client about all these pauses at once, and withdraws the questions about all others.
    fn ask(&self, state: &mut EditorRelayState, pauses: &[Arc<PendingUse>]) {
        state.asked.retain(|id, token| {
            let waits = pauses.iter().any(|pause| pause.tool_use.id == *id);
            if !waits {
                token.cancel();
            }
            waits
        });
        for pause in pauses {
            let id = pause.tool_use.id.clone();
            if state.asked.contains_key(&id) {
                continue;
            }
            let mut options =
                vec![PermissionOption::new("reject", "Reject", PermissionOptionKind::RejectOnce)];
            if !needs_fields(pause) {
                options.insert(0, PermissionOption::new("allow", "Allow", PermissionOptionKind::AllowOnce));
            }
            let session = self.entry.id.as_str().to_owned();
            let request = RequestPermissionRequest::new(session, state.view.asked(pause), options);
            let withdrawn = CancellationToken::new();
            state.asked.insert(id.clone(), withdrawn.clone());
            let (peer, session) = (Arc::clone(&self.peer), self.session.clone());
            let (by, turn) = (self.client.name.clone(), pause.turn);
            state.questions.spawn(async move {
                let answer = peer.ask("session/request_permission", request, &withdrawn).await;
                let Ok(Some(answer)) = answer else { return };
                let decided = match decision(answer.map_err(|error| error.message)) {
                    // The answer belongs to this turn. A later turn may use the id again.
                    Some(decision) => {
                        let command = SessionCommand::Decide { turn, decisions: vec![(id, decision)] };
                        session.perform(command, by.as_deref()).await.map(drop)
                    }
                    // The client reports that the turn is cancelled.
                    None => session.interrupt_turn(turn).await.map(drop),
                };
                if let Err(error) = decided {
                    // Another client has decided first, or the run has ended.
                    tracing::debug!(%error, "a decision of the client came too late");
                }
            });
        }
    }
}

/// Returns whether a running tool asks for a form with required fields. Editors can only allow or reject, so the user
/// can't fill in the form.
fn needs_fields(pause: &PendingUse) -> bool {
    let required = pause.reason["schema"]["required"].as_array();
    pause.is_question() && required.is_some_and(|fields| !fields.is_empty())
}

/// Returns the client's decision, or `None` if the client has cancelled the turn.
fn decision(answer: Result<Value, String>) -> Option<Decision> {
    let answer = match answer {
        Ok(answer) => serde_json::from_value::<RequestPermissionResponse>(answer),
        Err(error) => return Some(Decision::reject(format!("The user can't be asked: {error}"))),
    };
    match answer.map(|answer| answer.outcome) {
        Ok(RequestPermissionOutcome::Selected(chosen)) if &*chosen.option_id.0 == "allow" => {
            Some(Decision::Execute)
        }
        Ok(RequestPermissionOutcome::Cancelled) => None,
        Ok(_) => Some(Decision::reject("The user did not allow it.")),
        Err(error) => Some(Decision::reject(format!("The user's answer can't be read: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn decision_is_the_chosen_option() {
        let chosen = |id| Ok(json!({ "outcome": { "outcome": "selected", "optionId": id } }));
        assert_eq!(decision(chosen("allow")), Some(Decision::Execute));
        let rejected = |answer| matches!(decision(answer), Some(Decision::Reject(_)));
        assert!(rejected(chosen("reject")) && rejected(chosen("always")) && rejected(Ok(json!(7))));
        assert!(rejected(Err("no".to_owned())));
        assert_eq!(decision(Ok(json!({ "outcome": { "outcome": "cancelled" } }))), None);
    }
}

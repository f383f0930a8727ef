//! State shared by a session's handle and its connection: the turn in flight, and what the agent reports.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use agent_client_protocol_schema::v1::{AuthMethod, Error};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::refused,
    content::{AcpQuestion, outcome},
    translate::{AcpTranslator, late_text, status, stop_reason, usage},
};
use crate::{
    acp::{AcpBudgetPermit, AcpMessage, AcpPeer, AcpRequestResult},
    process::lines::shown,
    provider::{
        StopReason,
        backend::{BackendError, BackendEvent, PermissionRequest, TurnResult},
    },
    sync::lock,
};

/// The maximum number of statuses that are kept for the next turn if they arrive between two turns.
const MOST_STANDING: usize = 16;

/// The maximum number of characters that are kept if the agent continues a response after its turn has ended. The next
/// turn reports these characters in a warning.
const LONGEST_LATE: usize = 2000;

pub(super) struct AcpSessionShared {
    state: Mutex<AcpSessionState>,
    /// The reason why the session has ended. It is set only once, and only while `state` is locked.
    ended: watch::Sender<Option<BackendError>>,
    idle: watch::Sender<bool>,
    /// Counts the updates that belong to a turn but arrived while no turn was in flight.
    unclaimed_updates: watch::Sender<u64>,
    /// The first line that was not a message, until a message follows.
    noise: watch::Sender<Option<String>>,
}

#[derive(Default)]
struct AcpSessionState {
    session: Option<String>,
    sign_in: Vec<AuthMethod>,
    turn: Option<AcpTurn>,
    /// The translator of the next turn.
    translator: AcpTranslator,
    /// The number of turns so far.
    turns: u64,
    /// The statuses that arrived while no turn was in flight, by name.
    standing: BTreeMap<String, Value>,
    /// The text that arrived after the end of the last turn.
    late: String,
}

/// An event, and the room of its message. The room is released when the event has been
/// read.
pub(super) type AcpEvent = (BackendEvent, Option<AcpBudgetPermit>);

struct AcpTurn {
    number: u64,
    events: mpsc::UnboundedSender<AcpEvent>,
    translator: AcpTranslator,
    warnings: Vec<String>,
    cancelled: bool,
    /// Cancelled when the turn is over, which withdraws the turn's requests for permission.
    over: CancellationToken,
}

impl AcpTurn {
    /// Emits an event. If the receiver is dropped, the event is discarded.
    fn emit(&self, event: BackendEvent, room: Option<&AcpBudgetPermit>) {
        let _ = self.events.send((event, room.cloned()));
    }

    /// Ends the turn with this event. Returns the translator of the next turn.
    fn end(mut self, event: BackendEvent) -> AcpTranslator {
        self.over.cancel();
        if let Some(rest) = self.translator.finish() {
            self.emit(rest, None);
        }
        self.emit(event, None);
        self.translator.next()
    }
}

impl AcpSessionShared {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            ended: watch::Sender::new(None),
            idle: watch::Sender::new(true),
            unclaimed_updates: watch::Sender::new(0),
            noise: watch::Sender::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, AcpSessionState> {
        lock(&self.state)
    }

    /// Sets the id of the session.
    pub(super) fn is_session(&self, id: &str) {
        self.lock().session = Some(id.to_owned());
    }

    pub(super) fn signs_in(&self, ways: Vec<AuthMethod>) {
        self.lock().sign_in = ways;
    }

    /// Begins a turn.
    pub(super) fn begin(
        &self,
        mut warnings: Vec<String>,
    ) -> Result<mpsc::UnboundedReceiver<AcpEvent>, BackendError> {
        let mut state = self.lock();
        if let Some(error) = &*self.ended.borrow() {
            return Err(error.clone());
        }
        if state.turn.is_some() {
            return Err(BackendError::Invalid("a turn is already in flight".to_owned()));
        }
        let late = std::mem::take(&mut state.late);
        if !late.is_empty() {
            let warning = format!("after its last response had ended, the agent continued: {late}");
            tracing::warn!("{warning}");
            warnings.push(warning);
        }
        // The channel of events needs no limit, because the memory budget of the peer limits the messages that cause
        // the events.
        let (events, receiver) = mpsc::unbounded_channel();
        state.turns += 1;
        let turn = AcpTurn {
            number: state.turns,
            events,
            translator: std::mem::take(&mut state.translator),
            warnings,
            cancelled: false,
            over: CancellationToken::new(),
        };
        for (name, data) in std::mem::take(&mut state.standing) {
            turn.emit(BackendEvent::Status { name, data }, None);
        }
        state.turn = Some(turn);
        self.idle.send_replace(false);
        Ok(receiver)
    }

    /// Cancels the turn in flight, if there is one, and returns its number. The turn has not ended yet.
    pub(super) fn cancel(&self) -> Option<u64> {
        let mut state = self.lock();
        let turn = state.turn.as_mut()?;
        turn.cancelled = true;
        turn.over.cancel();
        Some(turn.number)
    }

    pub(super) fn is_in_flight(&self, turn: u64) -> bool {
        self.lock().turn.as_ref().is_some_and(|in_flight| in_flight.number == turn)
    }

    /// Waits until no turn is in flight.
    pub(super) async fn idle(&self) {
        // The channel can't close, because `self` owns its sender.
        let _ = self.idle.subscribe().wait_for(|idle| *idle).await;
    }

    /// Waits until no further update of a turn has arrived for the time `silence`. Used while no turn is in flight.
    pub(super) async fn quiet(&self, silence: Duration) {
        let mut updates = self.unclaimed_updates.subscribe();
        while timeout(silence, updates.changed()).await.is_ok_and(|changed| changed.is_ok()) {}
    }

    /// Ends the turn and the session. If this is called again, the first reason is kept.
    pub(super) fn end(&self, error: BackendError) {
        let mut state = self.lock();
        let is_first = self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert_with(|| error.clone());
            is_first
        });
        if is_first && let Some(turn) = state.turn.take() {
            state.translator = turn.end(BackendEvent::Error(error));
        }
        self.idle.send_replace(true);
    }

    pub(super) fn has_ended(&self) -> Option<BackendError> {
        self.ended.borrow().clone()
    }

    /// Waits for the end of the session, and returns the reason for it.
    pub(super) async fn ended(&self) -> BackendError {
        let mut ended = self.ended.subscribe();
        let error = ended.wait_for(Option::is_some).await.ok().and_then(|error| error.clone());
        error.unwrap_or_else(|| BackendError::Ended("it was closed".to_owned()))
    }

    /// Records that a line was not a message. Returns the first such line since the last message.
    pub(super) fn skip(&self, line: &[u8]) -> String {
        let line = shown(line, 200);
        tracing::warn!(%line, "an agent's program wrote a line that is not a message");
        self.noise.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(line);
            is_first
        });
        self.noise.borrow().clone().unwrap_or_default()
    }

    /// Records that a message was read.
    pub(super) fn heard(&self) {
        self.noise.send_if_modified(|noise| noise.take().is_some());
    }

    /// Waits until a line was not a message and no message has followed it within `grace`. Returns the first such line.
    pub(super) async fn lasting_noise(&self, grace: Duration) -> String {
        let mut noise = self.noise.subscribe();
        loop {
            // The channel can't close, because `self` owns its sender.
            let first = noise.wait_for(Option::is_some).await.ok().and_then(|first| first.clone());
            let followed = timeout(grace, noise.wait_for(Option::is_none)).await.is_ok();
            if let Some(first) = first.filter(|_| !followed) {
                return first;
            }
        }
    }

    /// Processes a message of the agent without waiting. The messages must be passed in their order.
    pub(super) fn take(&self, message: AcpMessage, peer: &Arc<AcpPeer>, room: AcpBudgetPermit) {
        match message {
            AcpMessage::Response { id, answer } => peer.answered(&id, answer),
            AcpMessage::Notification { method, params } => match &*method {
                "session/update" => self.update(params, &room),
                "$/cancel_request" => peer.withdraw(&params),
                _ => tracing::debug!(method, "an agent's notification is ignored"),
            },
            AcpMessage::Request { id, method, params } => {
                let (withdrawn, peer) = (peer.begin(&id), Arc::clone(peer));
                // Sending fails only if the connection has ended.
                let reply = move |answer| drop(peer.answer_in(room, &id, answer));
                let asked = if method == "session/request_permission" {
                    self.asked(params, withdrawn)
                } else {
                    tracing::debug!(method, "an agent's request is not supported");
                    Err(Error::method_not_found().data(method))
                };
                match asked {
                    Err(error) => reply(Err(error)),
                    Ok(None) => reply(Ok(outcome(None, &[]))),
                    // This task ends with the turn at the latest.
                    Ok(Some(decided)) => drop(tokio::spawn(async move { reply(Ok(decided.await)) })),
                }
            }
            AcpMessage::Invalid { .. } => {}
        }
    }

    fn update(&self, mut params: Value, room: &AcpBudgetPermit) {
        let mut state = self.lock();
        let session = params.get("sessionId").and_then(Value::as_str);
        if state.session.is_some() && session != state.session.as_deref() {
            tracing::debug!("an agent's update is about another session");
            return;
        }
        let Some(update) = params.get_mut("update").map(Value::take) else {
            return;
        };
        if let Some(turn) = &mut state.turn {
            for event in turn.translator.update(update) {
                turn.emit(event, Some(room));
            }
            return;
        }
        // No turn is in flight. Before the first turn, text is discarded, because the agent repeats the conversation of
        // a loaded session. After a turn, text is too late for that turn, and is kept for a warning.
        let Some((name, data)) = status(&update) else {
            if state.turns > 0
                && let Some(text) = late_text(&update)
            {
                let room = LONGEST_LATE.saturating_sub(state.late.chars().count());
                state.late.extend(text.chars().take(room));
            }
            self.unclaimed_updates.send_modify(|count| *count = count.wrapping_add(1));
            return;
        };
        if state.standing.len() < MOST_STANDING || state.standing.contains_key(&name) {
            state.standing.insert(name, data);
        }
    }

    /// Processes the agent's request for permission. Returns a future of the response, or `None` if no turn needs the
    /// permission.
    fn asked(
        &self,
        params: Value,
        withdrawn: CancellationToken,
    ) -> Result<Option<impl Future<Output = Value> + use<>>, Error> {
        let question: AcpQuestion = serde_json::from_value(params)?;
        let mut state = self.lock();
        if state.session.as_ref() != Some(&question.session_id) {
            return Err(Error::invalid_params().data("there is no such session".to_owned()));
        }
        let Some(turn) = state.turn.as_mut().filter(|turn| !turn.cancelled) else { return Ok(None) };
        let options = question.options();
        let (tool_use, open) = turn.translator.asked(question.tool_call);
        let (request, decided) = PermissionRequest::new(tool_use, options.clone());
        turn.emit(BackendEvent::Permission(request), None);
        let over = turn.over.clone();
        Ok(Some(async move {
            let answer = tokio::select! {
                biased;
                () = over.cancelled() => None,
                () = withdrawn.cancelled() => None,
                answer = decided => answer.ok(),
            };
            drop(open);
            outcome(answer, &options)
        }))
    }

    /// Processes the response to a prompt, which ends the turn.
    pub(super) fn answered(&self, answer: &AcpRequestResult) {
        let mut state = self.lock();
        let Some(mut turn) = state.turn.take() else {
            return;
        };
        let last = match answer {
            Ok(answer) => match stop_reason(answer) {
                Some(stop_reason) => {
                    if let Some(usage) = usage(answer) {
                        turn.emit(BackendEvent::Usage(usage), None);
                    }
                    let result = TurnResult::new(stop_reason);
                    let warnings = std::mem::take(&mut turn.warnings);
                    BackendEvent::Result(warnings.into_iter().fold(result, TurnResult::with_warning))
                }
                None => BackendEvent::Error(BackendError::Failed(
                    "`session/prompt` was answered without a stop reason".to_owned(),
                )),
            },
            // Some agents respond to a cancelled prompt with an error, but the turn counts as cancelled.
            Err(_) if turn.cancelled => BackendEvent::Result(TurnResult::new(StopReason::Cancelled)),
            Err(error) => BackendEvent::Error(refused("session/prompt", error, &state.sign_in)),
        };
        state.translator = turn.end(last);
        self.idle.send_replace(true);
    }
}

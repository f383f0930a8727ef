//! Converts one turn at a backend to a stream of deltas.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use serde_json::{Map, json};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit, task::yield_now, time::sleep};
use tracing::Instrument;

use super::{
    BackendError, BackendEvent, BackendSession, Breach, EventStream, PermissionAnswer, PermissionRequest,
    TurnResult,
    adapter::{BackendSessionsOwner, ask, call},
    recorder::BackendEventConverter,
    sessions::BackendPosition,
};
use crate::{
    message::ToolUseId,
    panics::contained_async,
    provider::{Delta, DeltaStream, MessageDelta, RequestContext, StopReason},
};

/// The maximum number of requests for permission that may be open at once.
const MAX_QUESTIONS: usize = 64;

/// The maximum number of consecutive events without a delta before the reading task yields.
const MAX_SILENT: u64 = 32;

/// A turn in flight. If this is dropped before the turn is over, the turn is cancelled at the backend.
pub(super) struct BackendTurn {
    owner: Arc<BackendSessionsOwner>,
    session: Arc<dyn BackendSession>,
    permit: Option<OwnedSemaphorePermit>,
    runtime: Handle,
    over: bool,
}

impl BackendTurn {
    pub(super) fn new(
        owner: Arc<BackendSessionsOwner>,
        session: Arc<dyn BackendSession>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { owner, session, permit: Some(permit), runtime: Handle::current(), over: false }
    }

    /// Marks the turn as over, so that it is not cancelled. If `lost` is true, the session has become unusable.
    pub(super) fn over(&mut self, lost: bool) {
        self.over = true;
        if lost {
            self.owner.lose(&self.session);
        }
        self.permit = None;
    }
}

impl Drop for BackendTurn {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (owner, session, permit) =
            (Arc::clone(&self.owner), Arc::clone(&self.session), self.permit.take());
        // If the runtime is gone, it drops this future, and with it `owner`, whose destructor terminates the session.
        let cancelling = async move {
            let limit = owner.limits.cancel;
            if let Err(error) = call("cancel", limit, async { session.cancel().await }).await {
                tracing::warn!(%error, "a backend did not cancel its turn; the session is terminated");
                owner.lose(&session);
            }
            drop(permit);
        };
        self.runtime.spawn(cancelling.in_current_span());
    }
}

/// Returns the turn's deltas.
pub(super) fn stream(
    turn: BackendTurn,
    events: EventStream,
    format: String,
    warnings: Vec<String>,
    context: RequestContext,
) -> Result<DeltaStream, BackendError> {
    let recorder = BackendEventConverter::new(&format);
    let edits = ask("capabilities", || turn.owner.can().edits)?;
    let mut exchange = BackendTurnStream {
        turn,
        events: Some(events),
        recorder,
        format,
        context,
        edits,
        asking: FuturesUnordered::new(),
        asked: HashSet::new(),
        ready: VecDeque::new(),
    };
    // The position is emitted at the start, so that it is also stored in a response that is broken off.
    let beginning = exchange.where_it_is(true)?;
    exchange.push_message(MessageDelta { warnings, ..beginning });
    Ok(Box::pin(stream::unfold(exchange, |mut exchange| async move {
        let item = exchange.next().await?;
        Some((item.map_err(BackendError::in_turn), exchange))
    })))
}

struct BackendTurnStream {
    // This field is declared before `turn`, so that the stream is dropped first. Dropping `turn` cancels the turn, and
    // a session may delay the cancellation until the stream is dropped.
    events: Option<EventStream>,
    /// The requests for permission that wait for their answers.
    asking: FuturesUnordered<BoxFuture<'static, (ToolUseId, Option<PermissionAnswer>)>>,
    /// The ids of the tool uses for which a request in `asking` waits.
    asked: HashSet<ToolUseId>,
    turn: BackendTurn,
    recorder: BackendEventConverter,
    format: String,
    context: RequestContext,
    edits: bool,
    ready: VecDeque<Delta>,
}

impl BackendTurnStream {
    /// Returns the next delta, or `None` after the turn has ended, with a result or with an error.
    async fn next(&mut self) -> Option<Result<Delta, BackendError>> {
        for event in 1_u64.. {
            if let Some(delta) = self.ready.pop_front() {
                return Some(Ok(delta));
            }
            self.events.as_ref()?;
            if let Err(error) = self.advance().await {
                self.stop_reading();
                return Some(Err(error));
            }
            if event % MAX_SILENT == 0 {
                yield_now().await;
            }
        }
        None
    }

    /// Stops reading, and discards the deltas that have not been emitted.
    fn stop_reading(&mut self) {
        self.asking.clear();
        self.ready.clear();
        if let Err(error) = ask("the event stream's drop", || drop(self.events.take())) {
            tracing::error!(%error, "a backend's stream panicked when it was dropped");
        }
    }

    async fn advance(&mut self) -> Result<(), BackendError> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        let silence = self.turn.owner.limits.silence;
        let event = tokio::select! {
            biased;
            Some((id, answer)) = self.asking.next(), if !self.asking.is_empty() => {
                self.asked.remove(&id);
                self.recorder.answered(&id, answer.as_ref());
                self.ready.extend(self.recorder.take());
                return Ok(());
            }
            event = contained_async(events.next()) => event,
            () = sleep(silence), if self.asking.is_empty() => return Err(Breach::Silence(silence).into()),
        };
        let event = match event {
            Ok(Some(event)) => event,
            Ok(None) => return Err(Breach::NoTerminalEvent.into()),
            Err(message) => {
                self.turn.over(true);
                return Err(Breach::Panicked { call: "the event stream", message }.into());
            }
        };
        self.take(event).await?;
        self.ready.extend(self.recorder.take());
        Ok(())
    }

    async fn take(&mut self, event: BackendEvent) -> Result<(), BackendError> {
        match event {
            BackendEvent::Text(text) => self.recorder.text(text),
            BackendEvent::Thinking(text) => self.recorder.thinking(text),
            BackendEvent::ToolUse(tool_use) => self.recorder.tool_use(&tool_use)?,
            BackendEvent::ToolInput { id, input } => self.recorder.tool_input(&id, input)?,
            BackendEvent::ToolUpdate { id, data } => self.recorder.tool_update(&id, data)?,
            BackendEvent::ToolResult(result) => self.recorder.tool_result(&result)?,
            BackendEvent::Plan(plan) => self.recorder.plan(&plan),
            BackendEvent::Status { name, data } => self.recorder.status(&name, &data),
            BackendEvent::Permission(request) => {
                let id = &request.tool_use.id;
                if self.asked.contains(id) {
                    return Err(Breach::RepeatedPermission(id.clone()).into());
                }
                if self.asked.len() == MAX_QUESTIONS {
                    return Err(Breach::TooManyPermissions(MAX_QUESTIONS).into());
                }
                self.asked.insert(id.clone());
                self.recorder.asked(&request.tool_use, &request.options)?;
                self.asking.push(put(request, self.context.clone(), self.edits).boxed());
            }
            BackendEvent::Usage(usage) => {
                self.push_message(MessageDelta { usage: Some(usage), ..MessageDelta::default() });
            }
            BackendEvent::Result(result) => self.end(result).await?,
            BackendEvent::Error(error) => {
                self.turn.over(error.is_final());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the turn with a result.
    async fn end(&mut self, result: TurnResult) -> Result<(), BackendError> {
        self.stop_reading();
        let session = Arc::clone(&self.turn.session);
        let limit = self.turn.owner.limits.prompt;
        let updated = call("update", limit, async { session.update(&result).await }).await;
        let position = updated.and_then(|()| self.where_it_is(false));
        // If a call panicked or took too long, or the session has ended, the session can't be used further. After any
        // other error, the backend can continue the session.
        let is_unusable =
            |error: &BackendError| error.is_final() || matches!(error, BackendError::Timeout { .. });
        self.turn.over(position.as_ref().is_err_and(is_unusable));
        let TurnResult { stop_reason, model, warnings, .. } = result;
        let stop_reason = match stop_reason {
            // The agent has no tools to run for this response and can't continue it, so these stop reasons become
            // `Stop`.
            StopReason::ToolUse | StopReason::Pause => StopReason::Stop,
            other => other,
        };
        self.recorder.finish();
        self.ready.extend(self.recorder.take());
        self.push_message(MessageDelta { model, warnings, stop_reason: Some(stop_reason), ..position? });
        Ok(())
    }

    fn push_message(&mut self, data: MessageDelta) {
        self.ready.push_back(Delta::Message(Box::new(data)));
    }

    /// Returns the session's position in the form in which a response stores it.
    fn where_it_is(&self, unfinished: bool) -> Result<MessageDelta, BackendError> {
        let position = BackendPosition { unfinished, ..self.turn.owner.position(&self.turn.session)? };
        let provider_data = Map::from_iter([(self.format.clone(), json!(position))]);
        Ok(MessageDelta { provider_data, ..MessageDelta::default() })
    }
}

/// Passes the backend's request for permission to the agent, and passes the agent's answer to the backend. Returns the
/// answer, or `None` if the backend withdrew the request.
async fn put(
    mut request: PermissionRequest,
    context: RequestContext,
    edits: bool,
) -> (ToolUseId, Option<PermissionAnswer>) {
    let tool_use = request.tool_use.clone();
    let id = tool_use.id.clone();
    let decision = tokio::select! {
        biased;
        () = request.withdrawn() => return (id, None),
        decision = context.decide(tool_use) => decision,
    };
    let answer = request.read(decision, edits);
    request.answer(answer.clone());
    (id, Some(answer))
}

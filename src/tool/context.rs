//! The context of a tool call: its data, the questions that a running tool asks the user, and the clock of the call, which
//! is stopped while a question waits.

use std::{
    any::{Any, TypeId},
    future::poll_fn,
    sync::{Arc, Mutex, atomic::AtomicU32},
    task::{Poll, Waker},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{message::ToolUseId, sync::lock};

/// The context of a tool call. It contains the call's id and key, its cancellation, a channel for progress reports and
/// questions, and the application's values.
///
/// An agent passes a context to each tool call. A context is cheap to clone.
///
/// # Example
///
/// ```
/// use omni_agent::tool::{Extensions, ToolContext, ToolError, execute, tool_fn};
/// use serde_json::{Value, json};
///
/// struct Tenant(u32);
///
/// let invoice = tool_fn("invoice", "Writes an invoice.", |_: Value, context: ToolContext| async move {
///     let tenant = context.extensions().get::<Tenant>().ok_or_else(|| ToolError::new("Nobody is signed in."))?;
///     context.progress(json!({ "written": "half" })).await;
///     Ok(format!("invoice of tenant {}, key {}", tenant.0, context.idempotency_key()))
/// });
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// // An agent creates the context of its calls; a unit test creates one itself.
/// let context = ToolContext::detached("call-1").with_extensions(Extensions::default().with(Tenant(7)));
/// let output = execute(&invoice, json!({}), context).await?;
/// assert_eq!(output, "invoice of tenant 7, key call-1".into());
/// # Ok::<(), ToolError>(())
/// # }).map_err(|error| error.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ToolContext {
    tool_use_id: ToolUseId,
    idempotency_key: Arc<str>,
    cancellation: CancellationToken,
    /// The channel for progress reports, if they do not go to the agent.
    progress: Option<mpsc::Sender<(ToolUseId, Value)>>,
    agent: Option<Arc<ToolCallAgentLink>>,
    extensions: Extensions,
    epoch: Option<u64>,
    is_repeated: bool,
    /// Notified at each progress report, if the call has a limit on the time between reports.
    watched: Option<Arc<Notify>>,
}

impl ToolContext {
    /// Creates a context for a call outside an agent. It is never cancelled, and its idempotency key is the id of the
    /// tool use.
    pub fn detached(tool_use_id: impl Into<ToolUseId>) -> Self {
        let tool_use_id = tool_use_id.into();
        Self {
            idempotency_key: tool_use_id.as_str().into(),
            tool_use_id,
            cancellation: CancellationToken::new(),
            progress: None,
            agent: None,
            extensions: Extensions::default(),
            epoch: None,
            is_repeated: false,
            watched: None,
        }
    }

    crate::setters::setters! {
        /// Returns the same context with another idempotency key.
        pub fn with_idempotency_key(self, key: impl Into<Arc<str>>) { self.idempotency_key = key.into() }

        /// Returns the same context with the epoch of an owner of the conversation, or without one.
        pub fn with_epoch(self, epoch: impl Into<Option<u64>>) { self.epoch = epoch.into() }

        /// Returns the same context with another cancellation token. The call is cancelled when `token` is cancelled.
        pub fn with_cancellation(self, token: CancellationToken) { self.cancellation = token }

        /// Returns the same context with a channel for progress reports.
        pub fn with_progress(self, progress: mpsc::Sender<(ToolUseId, Value)>) {
            self.progress = Some(progress);
        }

        /// Returns the same context of a call that repeats an earlier one, if `is_repeated` is true.
        pub(crate) fn with_repeated(self, is_repeated: bool) { self.is_repeated = is_repeated }

        /// Returns the same context with a connection to an agent.
        pub(crate) fn with_agent(self, agent: ToolCallAgentLink) { self.agent = Some(Arc::new(agent)) }
    }

    /// Returns the clock of the call, which is stopped while a question waits. `None` outside an agent.
    pub(super) fn clock(&self) -> Option<&QuestionWaitClock> {
        self.agent.as_deref().map(ToolCallAgentLink::clock)
    }

    /// Returns the same context with the application's extensions.
    pub fn with_extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Returns the id of the tool use that this call answers.
    pub fn tool_use_id(&self) -> &ToolUseId {
        &self.tool_use_id
    }

    /// Returns the idempotency key of this call, for services that use such a key to detect repeated requests.
    ///
    /// Each tool call of an agent has a different key. If a turn continues after a restart and repeats a call, the
    /// repetition has the same key. See [`Replay::Keyed`](super::Replay::Keyed).
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Returns the epoch of the session that makes the call. The epoch of the conversation increases with each owner, in
    /// all processes.
    ///
    /// A process that was suspended during a call may continue the call after another process has taken the conversation
    /// over. To reject such a late call, a service remembers the greatest epoch that it has received for the
    /// conversation, and refuses requests with a lower one.
    ///
    /// Returns `None` outside a session, if the store has no leases, and before the conversation is stored for the first
    /// time.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Returns whether the call repeats one that was running when an earlier process ended. It has the
    /// [key](Self::idempotency_key) of the earlier call.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Waits until the call is cancelled, timed out or dropped. The call's own future is then dropped, so this method
    /// is meant for work that the call has started elsewhere.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// Returns the same context with a separate cancellation token. If the original context is cancelled, the returned
    /// context is cancelled too.
    pub(super) fn with_own_cancellation(&self) -> (Self, CancellationToken) {
        let own = self.cancellation.child_token();
        (self.clone().with_cancellation(own.clone()), own)
    }

    /// Returns a value that is notified at each progress report. A call inside another call shares the value, because
    /// its reports also show that the outer call makes progress.
    pub(super) fn watch_progress(&mut self) -> Arc<Notify> {
        Arc::clone(self.watched.get_or_insert_default())
    }

    /// Returns whether the call has been cancelled, timed out or dropped.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Reports progress, which the agent emits as an event. If a [channel](Self::with_progress) is set, the report goes
    /// to this channel instead. If the agent or the channel has no room for the report, this waits. Without an agent
    /// and without a channel, this does nothing.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while it is waiting, the progress is not reported.
    pub async fn progress(&self, data: Value) {
        if let Some(watched) = &self.watched {
            watched.notify_waiters();
        }
        if let Some(progress) = &self.progress {
            let _ = progress.send((self.tool_use_id.clone(), data)).await;
        } else if let Some(agent) = &self.agent {
            agent.progress(self.tool_use_id.clone(), data).await;
        }
    }

    /// Like [`progress`](Self::progress), but drops the report if there is no room for it.
    pub(crate) fn try_progress(&self, data: Value) {
        if let Some(watched) = &self.watched {
            watched.notify_waiters();
        }
        let id = self.tool_use_id.clone();
        if let Some(progress) = &self.progress {
            let _ = progress.try_send((id, data));
        } else if let Some(agent) = &self.agent {
            let _ = agent.reports.try_send(ToolToAgentMessage::Progress(id, data));
        }
    }

    /// Returns the connection of the call to its agent. `None` outside an agent.
    pub(crate) fn agent(&self) -> Option<&ToolCallAgentLink> {
        self.agent.as_deref()
    }

    /// Asks a person a question in the middle of the call, and waits for the answer.
    ///
    /// The agent pauses with the question as the reason of a [`PendingUse`](crate::run::PendingUse), in a format that the
    /// tool defines. [`resume`](crate::Agent::resume) answers it: [`Decision::Execute`](super::Decision::Execute) becomes
    /// `Accepted(None)`, [`ExecuteWith`](super::Decision::ExecuteWith) becomes `Accepted` with the value, and
    /// [`Reject`](super::Decision::Reject) becomes `Declined`. [`Provide`](super::Decision::Provide) ends the call: the
    /// given result is the result of the tool, and the call is dropped.
    ///
    /// While a question waits, neither the time limit of the call nor that of the turn passes. Several questions of a
    /// step can wait at the same time, up to 32. A question beyond this limit is declined, and so is a question with
    /// more than 64 levels of arrays and objects. Outside an agent, every question is declined.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let provider =
    /// #     ScriptedProvider::new([Step::tool_use("call-1", "book", serde_json::json!({})), Step::text("Done.")]);
    /// # let model = provider.model();
    /// use omni_agent::{Agent, Event, Update, tool::{Answer, Decision, ToolContext, tool_fn}};
    /// use serde_json::{Value, json};
    ///
    /// let book = tool_fn("book", "Books a seat.", |_: Value, context: ToolContext| async move {
    ///     match context.ask(json!({ "message": "Window or aisle?" })).await {
    ///         Answer::Accepted(Some(seat)) => Ok(format!("booked: {seat}")),
    ///         _ => Ok("nothing was booked".to_owned()),
    ///     }
    /// });
    /// let agent = Agent::builder().model(model).tool(book).start().await?;
    /// let mut updates = agent.subscribe().await?;
    /// agent.prompt("Book a seat.").await?;
    /// while let Some(update) = updates.next().await {
    ///     match update {
    ///         Update::Event(numbered) => match &*numbered.event {
    ///             Event::Status { pauses, .. } => {
    ///                 for pause in pauses {
    ///                     assert_eq!(pause.asked_by.as_ref().map(|id| id.as_str()), Some("call-1"));
    ///                     let answer = Decision::ExecuteWith(json!("window"));
    ///                     agent.resume(pause.tool_use.id.clone(), answer).await?;
    ///                 }
    ///             }
    ///             Event::ToolResult { result, .. } => {
    ///                 assert_eq!(result.text(), "booked: \"window\"");
    ///             }
    ///             Event::Turn { .. } => break,
    ///             _ => {}
    ///         },
    ///         // This reader was too slow. The questions that wait are in the snapshot.
    ///         Update::Resync(snapshot) => println!("{} questions wait", snapshot.pauses.len()),
    ///         Update::Closed(end) => return Err(end.reason.into()),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the question.
    pub async fn ask(&self, question: Value) -> Answer {
        match &self.agent {
            Some(agent) => agent.ask(question).await,
            None => Answer::Declined("no agent is available to ask".to_owned()),
        }
    }

    /// Returns the values that the application passed to the agent.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }
}

/// Values of the application's own types, one per type, shared by reference. Cheap to clone.
///
/// ```
/// use omni_agent::tool::Extensions;
///
/// struct Tenant(u32);
/// let extensions = Extensions::default().with(Tenant(7));
/// assert_eq!(extensions.get::<Tenant>().map(|tenant| tenant.0), Some(7));
/// ```
// A list is used because every agent has one and it contains few values. A map would need several times the memory.
#[derive(Clone, Default)]
pub struct Extensions(Option<Arc<[ExtensionEntry]>>);

type ExtensionEntry = (TypeId, Arc<dyn Any + Send + Sync>);

impl Extensions {
    /// Returns the same values with this value added. If there is already a value of the same type, it is replaced.
    pub fn with<T: Send + Sync + 'static>(self, value: T) -> Self {
        let id = TypeId::of::<T>();
        let others = self.entries().iter().filter(|(other, _)| *other != id).cloned();
        let value: Arc<dyn Any + Send + Sync> = Arc::new(value);
        Self(Some(others.chain([(id, value)]).collect()))
    }

    fn entries(&self) -> &[ExtensionEntry] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the value of this type, if there is one.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        let id = TypeId::of::<T>();
        let (_, value) = self.entries().iter().find(|(other, _)| *other == id)?;
        value.downcast_ref()
    }
}

crate::debug::impl_debug!(Extensions(self) { values: self.entries().len() });

/// The answer to a question of a running tool, which [`ToolContext::ask`](super::ToolContext::ask) returns.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// A person agreed. If the question asks for a value, this is the value.
    Accepted(Option<Value>),
    /// A person declined, or nobody can be asked. The text is the reason.
    Declined(String),
}

/// A message of a running tool to its agent.
#[derive(Debug)]
pub(crate) enum ToolToAgentMessage {
    Progress(ToolUseId, Value),
    Question {
        /// The index of the call.
        slot: usize,
        question: Value,
        /// The sender of the answer. It is closed when the tool no longer waits.
        answer: oneshot::Sender<Answer>,
    },
    /// The delegations of the agent have changed.
    Delegated,
}

/// The connection of a call to its agent.
#[derive(Debug)]
pub(crate) struct ToolCallAgentLink {
    /// The number of the agent's operation that runs the call.
    pub(crate) op: u64,
    /// The index of the call.
    pub(crate) slot: usize,
    reports: mpsc::Sender<ToolToAgentMessage>,
    clock: QuestionWaitClock,
    /// What calls share with the agent about sub-agents. Only the layer of agents knows its type.
    pub(crate) delegations: Arc<dyn Any + Send + Sync>,
    /// The number of sub-agents that the call has started.
    pub(crate) children: AtomicU32,
}

impl ToolCallAgentLink {
    pub(crate) fn new(
        (op, slot): (u64, usize),
        reports: mpsc::Sender<ToolToAgentMessage>,
        delegations: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let (clock, children) = (QuestionWaitClock::default(), AtomicU32::new(0));
        Self { op, slot, reports, clock, delegations, children }
    }

    /// Wakes the agent after a change of its delegations. If the channel is full, the agent is about to be woken anyway.
    pub(crate) fn notify(&self) {
        let _ = self.reports.try_send(ToolToAgentMessage::Delegated);
    }

    /// Stops the clock of the call until the guard is dropped.
    pub(crate) fn stop_clock(&self) -> QuestionWaitGuard<'_> {
        self.clock.stop()
    }

    fn clock(&self) -> &QuestionWaitClock {
        &self.clock
    }

    async fn progress(&self, id: ToolUseId, data: Value) {
        let _ = self.reports.send(ToolToAgentMessage::Progress(id, data)).await;
    }

    async fn ask(&self, question: Value) -> Answer {
        let ended = || Answer::Declined("the call has ended".to_owned());
        let _stopped = self.clock.stop();
        let (answer, answered) = oneshot::channel();
        let report = ToolToAgentMessage::Question { slot: self.slot, question, answer };
        if self.reports.send(report).await.is_err() {
            return ended();
        }
        answered.await.unwrap_or_else(|_| ended())
    }
}

/// Counts the time during which questions of a call wait, because this time does not count for the call's limit.
#[derive(Debug, Default)]
pub(crate) struct QuestionWaitClock(Mutex<QuestionWaitClockState>);

#[derive(Debug, Default)]
struct QuestionWaitClockState {
    open: usize,
    /// The time when the first of the open questions was asked.
    since: Option<Instant>,
    /// The total time for which the clock was stopped, in periods that have ended.
    stood: Duration,
    waker: Option<Waker>,
}

/// A guard that stops the clock until the guard is dropped.
pub(crate) struct QuestionWaitGuard<'a>(&'a QuestionWaitClock);

impl QuestionWaitClock {
    fn stop(&self) -> QuestionWaitGuard<'_> {
        let mut questions = lock(&self.0);
        questions.open += 1;
        questions.since.get_or_insert_with(Instant::now);
        QuestionWaitGuard(self)
    }

    /// Returns the time for which the clock was stopped. A period in which a question is still open is not included.
    pub(super) fn stood(&self) -> Duration {
        lock(&self.0).stood
    }

    /// Waits until no question is open, and returns the time for which the clock was stopped.
    pub(super) async fn runs(&self) -> Duration {
        poll_fn(|cx| {
            let mut questions = lock(&self.0);
            if questions.open == 0 {
                return Poll::Ready(questions.stood);
            }
            questions.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for QuestionWaitGuard<'_> {
    fn drop(&mut self) {
        let mut questions = lock(&self.0.0);
        questions.open -= 1;
        if questions.open == 0 {
            let stood = questions.since.take().map(|since| since.elapsed());
            questions.stood += stood.unwrap_or_default();
            let waker = questions.waker.take();
            drop(questions);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

use std::{
    collections::VecDeque,
    ops::Deref,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

#[cfg(doc)]
use super::RunRequest;
use super::{
    Accepted, Agent, Event, Failure, Follow, FollowFrom, FollowTarget, PendingUse, Response, ResumeDecisions,
    RunOutcome, RunProgress, Snapshot, ToolChange, request::FollowedRunInfo,
};
use crate::{
    budget::BudgetReport,
    message::{Content, History, Message, MessageId, ToolResult, ToolUse, ToolUseId, TurnId},
    provider::StopReason,
    run::{Decided, Error, ErrorKind},
    subscription::Update,
    tool::Decision,
};

/// The progress of a run that [`Running::next`] returns. It is an owned form of [`RunProgress`].
///
/// A program handles the steps that it needs. It may ignore all others: see [`Running::next`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunStep {
    /// The prompt is staged.
    Waiting,
    /// The run has begun this turn.
    Turn(TurnId),
    /// A user message was added: the prompt, the results of tools, a prompt that joined the turn, or a continuation.
    User(Arc<Message>),
    /// A request began.
    Request {
        /// The number of the request.
        step: u32,
        /// The id of the answer. `None` if the answer is a stored message without an id.
        answer: Option<MessageId>,
    },
    /// Text was added to the answer.
    Text {
        /// The index of the text block.
        index: usize,
        /// The added text.
        new: String,
    },
    /// Thinking was added to the answer.
    Thinking {
        /// The index of the thinking block.
        index: usize,
        /// The added text.
        new: String,
    },
    /// A block of the answer is complete, or an opaque item of the provider was added or changed.
    Block {
        /// The index of the block.
        index: usize,
        /// The block.
        content: Content,
    },
    /// The answer is complete.
    Answer(Arc<Message>),
    /// A decision about a tool use was made.
    Decided(Box<Decided>),
    /// A tool has started, with the input of this tool use. A decision may have replaced the input of the model.
    ToolStarted(ToolUse),
    /// A tool has reported progress.
    ToolProgress {
        /// The id of the tool use.
        id: ToolUseId,
        /// The progress.
        data: Value,
    },
    /// A tool has ended. Its result follows.
    ToolEnded {
        /// The id of the tool use.
        id: ToolUseId,
        /// Whether the tool returned an error.
        is_error: bool,
    },
    /// The result of a tool use is available.
    ToolResult(Box<ToolResult>),
    /// Everything since the last `Request` is void.
    Void {
        /// The failure after which the request is repeated. `None` if the request is not repeated, for example because a
        /// budget refuses it, or if the event was missed.
        failure: Option<Failure>,
        /// The full name of the backup model that repeats the request, if one does.
        model: Option<Arc<str>>,
    },
    /// 80 % of a limit of a budget are spent.
    Budget(Box<BudgetReport>),
    /// A compaction of the conversation has begun, has ended, or has failed.
    Compaction {
        /// The message of the compaction, when it has ended.
        message: Option<Arc<Message>>,
        /// The failure, if the compaction has failed.
        failure: Option<Failure>,
    },
    /// A tool use or a question waits for a decision.
    Pause(Pause),
    /// The tool use or the question with this id does not wait any more.
    PauseEnded(ToolUseId),
    /// The run has ended, with the response of its last turn. If the event with the response was missed, the response has
    /// only the last message. A run that fails or is cancelled ends with an error of [`Running::next`] instead.
    Ended(Arc<Response>),
}

/// An element of the stream of a followed run.
enum FollowedRunItem {
    Step(RunStep),
    /// Everything that waits for a decision.
    Pauses(Vec<Arc<PendingUse>>),
    End(Result<Arc<Response>, Error>),
}

/// The items that were not read yet.
struct UnreadFollowedRunItems {
    queue: VecDeque<FollowedRunItem>,
    /// The tool uses of the newest answer.
    uses: Vec<ToolUse>,
}

impl UnreadFollowedRunItems {
    /// Adds the owned form of the progress, unless the run has ended. `snapshot` is the snapshot that has shown the
    /// progress.
    fn add(&mut self, progress: RunProgress<'_>, turn: Option<TurnId>, snapshot: Option<&Snapshot>) {
        if self.has_ended() {
            return;
        }
        let step = match progress {
            RunProgress::Waiting => RunStep::Waiting,
            RunProgress::Turn(turn) => RunStep::Turn(turn),
            RunProgress::User(message) => RunStep::User(Arc::clone(message)),
            RunProgress::Request { step, answer } => {
                self.uses.clear();
                RunStep::Request { step, answer: answer.cloned() }
            }
            RunProgress::Answer(message) => RunStep::Answer(Arc::clone(message)),
            RunProgress::Void { failure, model } => {
                RunStep::Void { failure: failure.cloned(), model: model.cloned() }
            }
            RunProgress::Budget(report) => RunStep::Budget(Box::new(report.clone())),
            RunProgress::Compaction { message, failure } => {
                RunStep::Compaction { message: message.cloned(), failure: failure.cloned() }
            }
            RunProgress::Pauses(pauses) => {
                return self.queue.push_back(FollowedRunItem::Pauses(pauses.to_vec()));
            }
            RunProgress::Block { index, content, new, ended } => {
                let text = match content {
                    _ if new.is_empty() => None,
                    Content::Text(_) => Some(RunStep::Text { index, new: new.to_owned() }),
                    Content::Thinking(_) => Some(RunStep::Thinking { index, new: new.to_owned() }),
                    _ => None,
                };
                self.queue.extend(text.map(FollowedRunItem::Step));
                if !ended {
                    return;
                }
                if let Content::ToolUse(tool_use) = content {
                    self.uses.push(tool_use.clone());
                }
                RunStep::Block { index, content: content.clone() }
            }
            RunProgress::Tool { id, change } => match change {
                ToolChange::Decided(decided) => RunStep::Decided(Box::new(decided.clone())),
                ToolChange::Started { input } => RunStep::ToolStarted(self.started(id, input)),
                ToolChange::Progress(data) => RunStep::ToolProgress { id: id.clone(), data: data.clone() },
                ToolChange::Ended { is_error } => RunStep::ToolEnded { id: id.clone(), is_error },
                ToolChange::Result(result) => RunStep::ToolResult(Box::new(result.clone())),
            },
            RunProgress::Ended { outcome, response, message } => {
                let rebuilt = || Arc::new(rebuilt(outcome, message.cloned(), turn, snapshot));
                let response = response.cloned().unwrap_or_else(rebuilt);
                return self.end(result(outcome, response, message.is_some()));
            }
            RunProgress::Returned { outcome } => return self.end(Err(unused(outcome))),
        };
        self.queue.push_back(FollowedRunItem::Step(step));
    }

    /// Returns the tool use with the input with which it has started. `input` is `None` if it is that of the model.
    fn started(&self, id: &ToolUseId, input: Option<&Value>) -> ToolUse {
        let found = self.uses.iter().rfind(|own| own.id == *id).cloned();
        let mut tool_use = found.unwrap_or_else(|| ToolUse::new(id.clone(), "", Value::Null));
        if let Some(input) = input {
            tool_use.input = input.clone();
        }
        tool_use
    }

    /// Adds the end of the run, unless it has ended.
    fn end(&mut self, end: Result<Arc<Response>, Error>) {
        if !self.has_ended() {
            self.queue.push_back(FollowedRunItem::End(end));
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.queue.back(), Some(FollowedRunItem::End(_)))
    }
}

/// Returns the error for a prompt that was staged and returned unused.
fn unused(outcome: Option<&RunOutcome>) -> Error {
    let response = Arc::new(rebuilt(outcome, None, None, None));
    match outcome {
        Some(RunOutcome::Failed { failure }) => Error::failed(failure.clone(), response),
        Some(_) => Error::cancelled(response),
        None => Error::new(ErrorKind::NotStaged, "the prompt was withdrawn before it was used"),
    }
}

/// Returns the part of the last response that a snapshot shows.
pub(super) fn rebuilt(
    outcome: Option<&RunOutcome>,
    message: Option<Arc<Message>>,
    turn: Option<TurnId>,
    snapshot: Option<&Snapshot>,
) -> Response {
    let reason = match outcome {
        Some(RunOutcome::Stopped { stop_reason }) => stop_reason.clone(),
        Some(RunOutcome::Failed { .. }) => StopReason::Failed,
        Some(RunOutcome::Abandoned) => StopReason::Abandoned,
        Some(_) => StopReason::Cancelled,
        None => StopReason::Stop,
    };
    let (model, step, run) =
        snapshot.map_or(("", 0, 0), |agent| (&*agent.state.model, agent.step, agent.run));
    // The name that the service reports is not known, so it is the id: the full name without the provider.
    let id = model.split_once(':').map_or(model, |(_, id)| id);
    Response {
        messages: message.iter().cloned().collect(),
        message,
        turn,
        ..Response::empty(id, reason, step, run)
    }
}

/// Returns the result of a run as `ask` does. `is_kept` is whether the history contains a message of the run.
pub(super) fn result(
    outcome: Option<&RunOutcome>,
    response: Arc<Response>,
    is_kept: bool,
) -> Result<Arc<Response>, Error> {
    match outcome {
        Some(RunOutcome::Stopped { .. }) => Ok(response),
        Some(RunOutcome::Abandoned) | None if is_kept => Ok(response),
        Some(RunOutcome::Failed { failure }) => Err(Error::failed(failure.clone(), response)),
        Some(_) => Err(Error::cancelled(response)),
        None => Err(Error::new(ErrorKind::UnknownPrompt, "the outcome of the run is not known any more")),
    }
}

/// Returns the response as a value of a Rust type.
pub(super) fn value_of<T: DeserializeOwned>(response: Arc<Response>) -> Result<T, Error> {
    let value = match (&response.output, &response.output_error) {
        (Some(value), _) => T::deserialize(value).map_err(|error| error.to_string()),
        (None, Some(error)) => Err(error.clone()),
        // The event with the response was missed.
        (None, None) if response.stop_reason == StopReason::Stop => {
            serde_json::from_str(&response.text()).map_err(|error| error.to_string())
        }
        (None, None) => {
            Err(format!("the turn ended with {} before the model returned a value", response.stop_reason))
        }
    };
    value.map_err(|error| Error::output(&error, response))
}

/// The commands of an agent or a session that act on a followed run.
#[async_trait]
pub(crate) trait RunCommands: Send + Sync {
    async fn decide(&self, resume: ResumeDecisions) -> Result<(), Error>;

    /// Interrupts the run if this turn is in flight.
    async fn interrupt(&self, turn: TurnId) -> Result<bool, Error>;
}

#[async_trait]
impl RunCommands for Agent {
    async fn decide(&self, resume: ResumeDecisions) -> Result<(), Error> {
        Self::decide(self, resume).await
    }

    async fn interrupt(&self, turn: TurnId) -> Result<bool, Error> {
        self.interrupt_turn(turn).await
    }
}

/// The reason for the rejection of a pause that its reader has dropped.
const NOBODY: &str = "Nobody was available to decide.";

/// A tool use that waits for a decision, or a question of a running tool. It dereferences to the [`PendingUse`].
///
/// If the run was started with [`RunRequest::follow`], a pause that is dropped without a decision is rejected by the next
/// call of [`Running::next`], unless the prompt was known or joined a turn in flight. So a program that drops each step
/// never waits for a decision that cannot come. A program that keeps steps, for example in a list, keeps their pauses too.
/// [`leave`](Self::leave) leaves the decision to somebody else. It is also left if the [`Running`] is dropped, for example
/// at the end of the process. A reader of [`Agent::follow`] or [`Session::follow`](crate::Session::follow) never rejects.
///
/// Clones are the same pause. Each keeps the agent or the session alive.
#[derive(Clone)]
pub struct Pause(Arc<PauseHandleState>);

struct PauseHandleState {
    pending: Arc<PendingUse>,
    commands: Arc<dyn RunCommands>,
    is_settled: AtomicBool,
    /// Gets the pause if it is dropped without a decision. `None` if the reader does not decide.
    dropped: Option<UnboundedSender<Arc<PendingUse>>>,
}

impl Drop for PauseHandleState {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.as_ref().filter(|_| !self.is_settled.load(Ordering::Relaxed)) {
            // Without a reader, the pause is left.
            let _ = dropped.send(Arc::clone(&self.pending));
        }
    }
}

impl Pause {
    /// Runs the tool, or answers the question with yes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide`](Self::decide).
    ///
    /// # Cancel safety
    ///
    /// As for [`decide`](Self::decide).
    pub async fn approve(&self) -> Result<(), Error> {
        self.decide(Decision::Execute).await
    }

    /// Rejects the tool use or declines the question. The model reads the reason.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide`](Self::decide).
    ///
    /// # Cancel safety
    ///
    /// As for [`decide`](Self::decide).
    pub async fn reject(&self, reason: impl Into<String>) -> Result<(), Error> {
        self.decide(Decision::reject(reason)).await
    }

    /// Decides.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::resume`]: [`ErrorKind::StaleDecision`] or [`ErrorKind::NotPaused`] if somebody else has
    /// decided, or if the run has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may lose the decision. If the pause is dropped too and the decision has not arrived, it counts as
    /// dropped without a decision.
    pub async fn decide(&self, decision: Decision) -> Result<(), Error> {
        self.send(decision, None).await
    }

    /// Decides in the name of a person, as [`Agent::resume_as`] does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`decide`](Self::decide), and [`ErrorKind::InvalidDecision`] if the name is too long.
    ///
    /// # Cancel safety
    ///
    /// As for [`decide`](Self::decide).
    pub async fn decide_as(&self, decision: Decision, by: impl Into<Arc<str>>) -> Result<(), Error> {
        self.send(decision, Some(by.into())).await
    }

    async fn send(&self, decision: Decision, by: Option<Arc<str>>) -> Result<(), Error> {
        let decided = self.0.commands.decide(resume(&self.0.pending, decision, by)).await;
        if decided.as_ref().err().is_none_or(is_late) {
            self.leave();
        }
        decided
    }

    /// Leaves the decision to somebody else: another subscriber, a person who decides later about a stored turn, or the time
    /// limit of the pause.
    pub fn leave(&self) {
        self.0.is_settled.store(true, Ordering::Relaxed);
    }
}

impl Deref for Pause {
    type Target = PendingUse;

    fn deref(&self) -> &PendingUse {
        &self.0.pending
    }
}

impl PartialEq for Pause {
    fn eq(&self, other: &Self) -> bool {
        self.0.pending == other.0.pending
    }
}

crate::debug::impl_debug!(Pause(self) { pending: self.0.pending, .. });

fn resume(pending: &PendingUse, decision: Decision, by: Option<Arc<str>>) -> ResumeDecisions {
    ResumeDecisions { decisions: vec![(pending.tool_use.id.clone(), decision)], turn: Some(pending.turn), by }
}

/// Returns whether nothing waits for the decision any more.
fn is_late(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotPaused | ErrorKind::StaleDecision | ErrorKind::Ended)
}

/// One run that is followed, from the start of the prompt or of the turn to its end. Returned by [`RunRequest::follow`],
/// [`Agent::follow`] and [`Session::follow`](crate::Session::follow).
///
/// Dropping it does not end the run. It keeps its agent or session alive. A reader that is too slow gets the rest of the
/// run without a gap or a repetition.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::{serde_json::json, testing::{ScriptedProvider, Step}};
/// # let delete = Step::tool_use("call-1", "delete", json!({ "path": "notes.txt" }));
/// # let model = ScriptedProvider::new([delete, Step::text("It is deleted.")]).model();
/// use omni_agent::{Agent, Tool, agent::RunStep, tool};
///
/// let delete = tool!("delete", "Deletes a file.", async |path: String| Ok(format!("{path} is deleted.")));
/// let agent = Agent::builder().model(model).tool(delete.needs_approval()).start().await?;
/// let mut run = agent.run("Delete notes.txt.").follow().await?;
/// while let Some(step) = run.next().await? {
///     match step {
///         RunStep::Text { new, .. } => print!("{new}"),
///         RunStep::Pause(pause) if pause.tool_use.input["path"] == "notes.txt" => pause.approve().await?,
///         RunStep::ToolStarted(tool_use) => println!("[{} {}]", tool_use.name, tool_use.input),
///         RunStep::Ended(response) => assert_eq!(response.text(), "It is deleted."),
///         _ => {}
///     }
/// }
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a run is followed only while it is read"]
pub struct Running {
    items: Pin<Box<dyn Stream<Item = FollowedRunItem> + Send>>,
    commands: Arc<dyn RunCommands>,
    turn: Option<TurnId>,
    pauses: Vec<Arc<PendingUse>>,
    /// Changes of the pauses that were not returned yet.
    changes: VecDeque<RunStep>,
    /// Whether this reader decides about pauses.
    decides: bool,
    /// The pauses that were dropped without a decision. Not bounded, because there are no more than pauses of the run.
    dropped: (UnboundedSender<Arc<PendingUse>>, UnboundedReceiver<Arc<PendingUse>>),
    /// The dropped pause that is being rejected.
    rejected: Option<Arc<PendingUse>>,
    end: Option<Result<Arc<Response>, Error>>,
}

impl Running {
    /// Creates a reader of these updates. `first` is the first snapshot, which a new run does not need: its prompt is not in
    /// it, or was returned earlier. `name` is `agent` or `session`, for errors.
    pub(crate) fn new<S: Send + Sync + 'static, E: Send + Sync + 'static>(
        FollowedRunInfo { target, accepted, decides }: FollowedRunInfo,
        first: Option<Arc<S>>,
        updates: impl Stream<Item = Update<S, E>> + Send + Unpin + 'static,
        event_of: fn(&E) -> Option<&Event>,
        snapshot_of: fn(&S) -> (&History, &Snapshot),
        commands: Arc<dyn RunCommands>,
        name: &'static str,
    ) -> Self {
        let read = move |follow: &mut Follow, items: &mut UnreadFollowedRunItems, state: &S| {
            let ((history, agent), mut turn) = (snapshot_of(state), follow.turn());
            follow.snapshot(history, agent, &mut |progress| {
                if let RunProgress::Turn(new) = progress {
                    turn = Some(new);
                }
                items.add(progress, turn, Some(agent));
            });
        };
        let is_new = matches!(accepted, Some(Accepted::Started { .. } | Accepted::Staged { .. }));
        // The id of a turn shows that its run was started.
        let started = match &target {
            FollowTarget::Turn(turn) => Some(Accepted::Started { turn: *turn }),
            _ => accepted,
        };
        let mut follow = Follow::new(target, FollowFrom::Start);
        let mut items = UnreadFollowedRunItems { queue: VecDeque::new(), uses: Vec::new() };
        if let Some(started) = &started {
            follow.accepted(started);
        }
        if let Some(first) = first.filter(|_| !is_new) {
            read(&mut follow, &mut items, &first);
        }
        let items = stream::unfold(
            (updates, follow, items, false),
            move |(mut updates, mut follow, mut items, is_over)| async move {
                if is_over {
                    return None;
                }
                loop {
                    if let Some(item) = items.queue.pop_front() {
                        let is_over = matches!(item, FollowedRunItem::End(_));
                        return Some((item, (updates, follow, items, is_over)));
                    }
                    match updates.next().await {
                        Some(Update::Event(numbered)) => {
                            if let Some(event) = event_of(&numbered.event) {
                                follow.event(event, &mut |progress| items.add(progress, None, None));
                            }
                        }
                        Some(Update::Resync(state)) => read(&mut follow, &mut items, &state),
                        Some(Update::Closed(end)) => {
                            if let Some(state) = &end.snapshot {
                                read(&mut follow, &mut items, state);
                            }
                            items.end(Err(Error::ended(name, &end.reason)));
                        }
                        None => {
                            let text = format!("the {name} has ended");
                            items.end(Err(Error::new(ErrorKind::Ended, text)));
                        }
                    }
                }
            },
        );
        Self {
            items: Box::pin(items.fuse()),
            commands,
            turn: None,
            pauses: Vec::new(),
            changes: VecDeque::new(),
            decides,
            dropped: mpsc::unbounded_channel(),
            rejected: None,
            end: None,
        }
    }

    /// Returns the next progress of the run, or `None` after its end.
    ///
    /// A program may ignore every step: the tools run, a failure is an error of this method, the response is also
    /// returned by [`response`](Self::response), and a pause that is dropped without a decision is rejected, as
    /// [`Pause`] describes.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Cancelled`] or [`ErrorKind::Failed`] at the end of the run as [`ask`](Agent::ask) does. Returns
    /// the same errors if a staged prompt was not used, and [`ErrorKind::NotStaged`] if it was withdrawn. Returns
    /// [`ErrorKind::UnknownPrompt`] if the outcome is not known any more, and [`ErrorKind::Ended`] if the agent or the
    /// session has ended before the run. `None` follows these errors. Also returns the errors of [`Agent::resume`] if the
    /// rejection of a dropped pause fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no progress.
    pub async fn next(&mut self) -> Result<Option<RunStep>, Error> {
        loop {
            // The pause stays here until the decision is made, so that a dropped future does not lose it.
            if let Some(pending) = &self.rejected {
                let decided = self.commands.decide(resume(pending, Decision::reject(NOBODY), None)).await;
                self.rejected = None;
                decided.or_else(|error| if is_late(&error) { Ok(()) } else { Err(error) })?;
            }
            if let Some(change) = self.changes.pop_front() {
                return Ok(Some(change));
            }
            let item = tokio::select! {
                biased;
                dropped = self.dropped.1.recv() => {
                    self.rejected = dropped;
                    continue;
                }
                item = self.items.next() => item,
            };
            match item {
                Some(FollowedRunItem::Step(step)) => {
                    if let RunStep::Turn(turn) = step {
                        self.turn = Some(turn);
                    }
                    return Ok(Some(step));
                }
                Some(FollowedRunItem::Pauses(pauses)) => self.set_pauses(pauses),
                Some(FollowedRunItem::End(end)) => {
                    self.end = Some(end.clone());
                    return end.map(|response| Some(RunStep::Ended(response)));
                }
                None => return Ok(None),
            }
        }
    }

    fn set_pauses(&mut self, pauses: Vec<Arc<PendingUse>>) {
        let is_in =
            |list: &[Arc<PendingUse>], id: &ToolUseId| list.iter().any(|pause| pause.tool_use.id == *id);
        let ids = self.pauses.iter().map(|pause| &pause.tool_use.id);
        let ended = ids.filter(|id| !is_in(&pauses, id)).cloned().map(RunStep::PauseEnded);
        self.changes.extend(ended);
        for pending in pauses.iter().filter(|pause| !is_in(&self.pauses, &pause.tool_use.id)) {
            let shared = PauseHandleState {
                pending: Arc::clone(pending),
                commands: Arc::clone(&self.commands),
                is_settled: AtomicBool::new(false),
                dropped: self.decides.then(|| self.dropped.0.clone()),
            };
            self.changes.push_back(RunStep::Pause(Pause(Arc::new(shared))));
        }
        self.pauses = pauses;
    }

    /// Returns everything that waits for a decision, as far as [`next`](Self::next) has read.
    pub fn pauses(&self) -> &[Arc<PendingUse>] {
        &self.pauses
    }

    /// Reads the run to its end, and returns the response of its last turn. If the event with the response was missed,
    /// the response has only the last message.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the run. The progress that was read is lost.
    pub async fn response(&mut self) -> Result<Arc<Response>, Error> {
        while self.end.is_none() && self.next().await?.is_some() {}
        let lost = || Err(Error::new(ErrorKind::Ended, "the agent ended before the end of the run was read"));
        self.end.clone().unwrap_or_else(lost)
    }

    /// Reads the run to its end, and returns the response as a value of a Rust type. If the event with the response was
    /// missed, the value is read from the text of the last message.
    ///
    /// [`RunRequest::follow`] sends no schema of the type. To send it, pass
    /// [`Options::with_output`](crate::Options::with_output) to [`RunRequest::with_options`]. Otherwise, the model does
    /// not know the type, and the value is read from the text of its answer.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`next`](Self::next), and [`ErrorKind::Output`] if the response is not such a value.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the run. The progress that was read is lost.
    pub async fn value<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.response().await.and_then(value_of)
    }

    /// Ends the run like [`Agent::interrupt`] if the turn that [`next`](Self::next) has reported last is in flight.
    /// Otherwise, returns `false` and changes nothing, so that a late call never ends the run of somebody else.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent or the session has ended.
    pub async fn interrupt(&self) -> Result<bool, Error> {
        match self.turn {
            Some(turn) => self.commands.interrupt(turn).await,
            None => Ok(false),
        }
    }
}

crate::debug::impl_debug!(Running(self) { turn: self.turn, .. });

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::{StreamExt, stream};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Accepted, Agent, Event, Failure, Follow, FollowFrom, FollowTarget, PendingUse, Response, Resume,
    RunOutcome, RunProgress, Snapshot, ToolChange,
};
use crate::{
    budget::BudgetReport,
    message::{Content, History, Message, MessageId, ToolResult, ToolUseId, TurnId},
    provider::StopReason,
    run::{Decided, Error, ErrorKind},
    subscription::{EndReason, Update},
    tool::Decision,
};

/// The progress of a run that [`Running::next`] returns. It is an owned form of [`RunProgress`].
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
    /// A tool has started.
    ToolStarted {
        /// The id of the tool use.
        id: ToolUseId,
        /// The input, if it differs from the input that the model sent.
        input: Option<Value>,
    },
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
        /// The failure after which the request is repeated, if it is repeated and the failure is known.
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
    /// The list of tool uses and questions that wait for a decision has changed.
    Pauses(Vec<Arc<PendingUse>>),
    /// The run has ended.
    Ended {
        /// The outcome. `None` if the agent does not know the outcome any more.
        outcome: Option<RunOutcome>,
        /// The response of the last turn. If the event with the response was missed, it has only the last message.
        response: Arc<Response>,
        /// The last assistant message of the run that the history contains.
        message: Option<Arc<Message>>,
    },
    /// The prompt was staged, and the agent has returned it unused.
    Returned {
        /// The outcome of the run that did not use the prompt. `None` if the prompt was withdrawn, or if the outcome is not
        /// known any more.
        outcome: Option<RunOutcome>,
    },
    /// The agent or the session has ended before the run, for this reason.
    Closed(EndReason),
}

impl RunStep {
    /// Adds the owned form of the progress, unless the run has ended. `snapshot` is the snapshot that has shown the
    /// progress.
    fn add(
        steps: &mut VecDeque<Self>,
        progress: RunProgress<'_>,
        turn: Option<TurnId>,
        snapshot: Option<&Snapshot>,
    ) {
        if steps.back().is_some_and(Self::is_end) {
            return;
        }
        let step = match progress {
            RunProgress::Waiting => Self::Waiting,
            RunProgress::Turn(turn) => Self::Turn(turn),
            RunProgress::User(message) => Self::User(Arc::clone(message)),
            RunProgress::Request { step, answer } => Self::Request { step, answer: answer.cloned() },
            RunProgress::Answer(message) => Self::Answer(Arc::clone(message)),
            RunProgress::Void { failure, model } => {
                Self::Void { failure: failure.cloned(), model: model.cloned() }
            }
            RunProgress::Budget(report) => Self::Budget(Box::new(report.clone())),
            RunProgress::Compaction { message, failure } => {
                Self::Compaction { message: message.cloned(), failure: failure.cloned() }
            }
            RunProgress::Pauses(pauses) => Self::Pauses(pauses.to_vec()),
            RunProgress::Block { index, content, new, ended } => {
                match content {
                    Content::Text(_) if !new.is_empty() => {
                        steps.push_back(Self::Text { index, new: new.to_owned() });
                    }
                    Content::Thinking(_) if !new.is_empty() => {
                        steps.push_back(Self::Thinking { index, new: new.to_owned() });
                    }
                    _ => {}
                }
                if !ended {
                    return;
                }
                Self::Block { index, content: content.clone() }
            }
            RunProgress::Tool { id, change } => match change {
                ToolChange::Decided(decided) => Self::Decided(Box::new(decided.clone())),
                ToolChange::Started { input } => Self::ToolStarted { id: id.clone(), input: input.cloned() },
                ToolChange::Progress(data) => Self::ToolProgress { id: id.clone(), data: data.clone() },
                ToolChange::Ended { is_error } => Self::ToolEnded { id: id.clone(), is_error },
                ToolChange::Result(result) => Self::ToolResult(Box::new(result.clone())),
            },
            RunProgress::Ended { outcome, response, message } => {
                let (outcome, message) = (outcome.cloned(), message.cloned());
                let response = response
                    .cloned()
                    .unwrap_or_else(|| Arc::new(rebuilt(outcome.as_ref(), message.clone(), turn, snapshot)));
                Self::Ended { outcome, response, message }
            }
            RunProgress::Returned { outcome } => Self::Returned { outcome: outcome.cloned() },
        };
        steps.push_back(step);
    }

    /// Returns whether no further step follows.
    const fn is_end(&self) -> bool {
        matches!(self, Self::Ended { .. } | Self::Returned { .. } | Self::Closed(_))
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
    Response {
        messages: message.iter().cloned().collect(),
        message,
        turn,
        ..Response::empty(model, reason, step, run)
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
pub(crate) trait Commands: Send + Sync {
    async fn decide(&self, resume: Resume) -> Result<(), Error>;

    /// Interrupts the run if this turn is in flight.
    async fn interrupt(&self, turn: TurnId) -> Result<bool, Error>;
}

#[async_trait]
impl Commands for Agent {
    async fn decide(&self, resume: Resume) -> Result<(), Error> {
        Self::decide(self, resume).await
    }

    async fn interrupt(&self, turn: TurnId) -> Result<bool, Error> {
        self.interrupt_turn(turn).await
    }
}

/// One run that is followed, from the start of the prompt or of the turn to its end. Returned by
/// [`Agent::follow`] and [`Session::follow`](crate::Session::follow).
///
/// Dropping it does not end the run. It keeps its agent or session alive. A reader that is too slow gets the rest of the
/// run without a gap or a repetition.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::agent::{Agent, FollowTarget, RunStep};
/// use omni_agent::Prompt;
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut running = agent.follow(FollowTarget::Prompt("order-7".into())).await?;
/// agent.prompt(Prompt::new("Hi").with_id("order-7")).await?;
/// while let Some(step) = running.next().await {
///     if let RunStep::Text { new, .. } = step {
///         print!("{new}");
///     }
/// }
/// assert_eq!(running.response().await?.text(), "Hello!");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a run is followed only while it is read"]
pub struct Running {
    steps: Pin<Box<dyn Stream<Item = RunStep> + Send>>,
    commands: Box<dyn Commands>,
    /// `agent` or `session`, for errors.
    name: &'static str,
    turn: Option<TurnId>,
    end: Option<RunStep>,
}

impl Running {
    /// Creates a reader of these updates. `first` is the first snapshot.
    pub(crate) fn new<S: Send + Sync + 'static, E: Send + Sync + 'static>(
        (target, accepted): (FollowTarget, Option<Accepted>),
        first: Option<Arc<S>>,
        updates: impl Stream<Item = Update<S, E>> + Send + Unpin + 'static,
        event_of: fn(&E) -> Option<&Event>,
        snapshot_of: fn(&S) -> (&History, &Snapshot),
        commands: Box<dyn Commands>,
        name: &'static str,
    ) -> Self {
        let read = move |follow: &mut Follow, steps: &mut VecDeque<RunStep>, state: &S| {
            let ((history, agent), mut turn) = (snapshot_of(state), follow.turn());
            follow.snapshot(history, agent, &mut |progress| {
                if let RunProgress::Turn(new) = progress {
                    turn = Some(new);
                }
                RunStep::add(steps, progress, turn, Some(agent));
            });
        };
        // The id of a turn shows that its run was started.
        let started = match &target {
            FollowTarget::Turn(turn) => Some(Accepted::Started { turn: *turn }),
            _ => accepted,
        };
        let (mut follow, mut steps) = (Follow::new(target, FollowFrom::Start), VecDeque::new());
        if let Some(started) = &started {
            follow.accepted(started);
        }
        if let Some(first) = first {
            read(&mut follow, &mut steps, &first);
        }
        let steps = stream::unfold(
            (updates, follow, steps, false),
            move |(mut updates, mut follow, mut steps, is_over)| async move {
                if is_over {
                    return None;
                }
                loop {
                    if let Some(step) = steps.pop_front() {
                        let is_over = step.is_end();
                        return Some((step, (updates, follow, steps, is_over)));
                    }
                    match updates.next().await? {
                        Update::Event(numbered) => {
                            if let Some(event) = event_of(&numbered.event) {
                                follow.event(event, &mut |progress| {
                                    RunStep::add(&mut steps, progress, None, None);
                                });
                            }
                        }
                        Update::Resync(state) => read(&mut follow, &mut steps, &state),
                        Update::Closed(end) => {
                            if let Some(state) = &end.snapshot {
                                read(&mut follow, &mut steps, state);
                            }
                            if !steps.back().is_some_and(RunStep::is_end) {
                                steps.push_back(RunStep::Closed(end.reason));
                            }
                        }
                    }
                }
            },
        );
        Self { steps: Box::pin(steps.fuse()), commands, name, turn: None, end: None }
    }

    /// Returns the next progress of the run, or `None` after its end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no progress.
    pub async fn next(&mut self) -> Option<RunStep> {
        let step = self.steps.next().await?;
        match &step {
            RunStep::Turn(turn) => self.turn = Some(*turn),
            step if step.is_end() => self.end = Some(step.clone()),
            _ => {}
        }
        Some(step)
    }

    /// Reads the run to its end, and returns the response of its last turn. If the event with the response was missed,
    /// the response has only the last message.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Cancelled`] or [`ErrorKind::Failed`] as [`ask`](Agent::ask) does. Returns the same errors if
    /// a staged prompt was not used, and [`ErrorKind::NotStaged`] if it was withdrawn. Returns
    /// [`ErrorKind::UnknownPrompt`] if the outcome is not known any more, and [`ErrorKind::Ended`] if the agent or the
    /// session has ended before the run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the run. The progress that was read is lost.
    pub async fn response(&mut self) -> Result<Arc<Response>, Error> {
        while self.next().await.is_some() {}
        let unused = |outcome: &RunOutcome| Arc::new(rebuilt(Some(outcome), None, None, None));
        match &self.end {
            Some(RunStep::Ended { outcome, response, message }) => {
                result(outcome.as_ref(), Arc::clone(response), message.is_some())
            }
            Some(RunStep::Returned { outcome: Some(RunOutcome::Failed { failure }) }) => {
                let failed = RunOutcome::Failed { failure: failure.clone() };
                Err(Error::failed(failure.clone(), unused(&failed)))
            }
            Some(RunStep::Returned { outcome: Some(outcome) }) => Err(Error::cancelled(unused(outcome))),
            Some(RunStep::Returned { outcome: None }) => {
                Err(Error::new(ErrorKind::NotStaged, "the prompt was withdrawn before it was used"))
            }
            Some(RunStep::Closed(reason)) => Err(Error::ended(self.name, reason)),
            _ => Err(Error::new(ErrorKind::Ended, format!("the {} has ended", self.name))),
        }
    }

    /// Reads the run to its end, and returns the response as a value of a Rust type. If the event with the response was
    /// missed, the value is read from the text of the last message.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`response`](Self::response), and [`ErrorKind::Output`] if the response is not such a value.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not end the run. The progress that was read is lost.
    pub async fn value<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        self.response().await.and_then(value_of)
    }

    /// Decides about a tool use or a question of the followed turn.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Agent::resume`].
    pub async fn decide(&self, tool_use: impl Into<ToolUseId>, decision: Decision) -> Result<(), Error> {
        let decisions = vec![(tool_use.into(), decision)];
        self.commands.decide(Resume { decisions, turn: self.turn, by: None }).await
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

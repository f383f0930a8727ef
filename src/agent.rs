//! An agent: one conversation with a model, run by a tokio task.
//!
//! An agent owns a history, a model and a set of tools. A prompt starts a *run*: the agent sends requests to the model,
//! runs the tools that the model uses, and commits each complete turn to the history. An agent keeps its conversation
//! in memory. A [session](crate::session) adds an id, a store and a tree of branches.
//!
//! # Main types
//!
//! - [`AgentBuilder`] sets the model, the tools, the limits and the callbacks, and starts the agent.
//! - [`Agent`] is the handle, which is cheap to clone. The agent lives until its last handle is dropped or until the
//!   agent is [stopped](Agent::stop). A [`WeakAgent`] does not keep the agent alive.
//! - [`Prompt`] is a user message with settings for its run. [`Response`] is the result of a step, a turn or an
//!   [`ask`](Agent::ask).
//! - [`AgentCallbacks`] is the trait for the application's code. Its methods can change requests, decide about tool
//!   uses, continue a run and handle failures.
//! - [`Snapshot`] and [`Event`] report the state and its changes. [`Agent::subscribe`] returns a snapshot and the
//!   events that follow it. [`text_deltas`](Subscription::text_deltas) reduces the events to the text of the response.
//! - [`SubAgent`] makes an agent a tool of another one.
//! - [`Running`] follows one run to its end: its progress, its pauses and its response. [`Follow`] does the same for a
//!   reader that has a subscription.
//!
//! The agent accepts commands at all times: while the model streams, while tools run, and while a callback waits. An
//! operation that requires an idle agent, such as [`set_state`](Agent::set_state), fails with [`ErrorKind::Busy`]
//! during a run.
//!
//! # Example
//!
//! Start an agent, subscribe, send a prompt, and print the response while the model writes it:
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use omni_agent::agent::{Agent, Event, Status};
//! use omni_agent::subscription::Update;
//! use omni_agent::testing::{ScriptedProvider, Step};
//!
//! let provider = ScriptedProvider::new([Step::text("Hello!")]);
//! let agent = Agent::builder().model(provider.model()).start().await?;
//! let mut events = agent.subscribe().await?;
//! agent.prompt("Hi").await?;
//! while let Some(update) = events.next().await {
//!     match update {
//!         Update::Event(numbered) => match &*numbered.event {
//!             Event::TextDelta { delta, .. } => print!("{delta}"),
//!             Event::Turn { .. } => break,
//!             Event::Error { failure, .. } => return Err(failure.clone().into()),
//!             Event::Cancelled { .. } => return Err("the run was cancelled".into()),
//!             _ => {}
//!         },
//!         // This reader was too slow. The snapshot replaces the events that it missed.
//!         Update::Resync(snapshot) => {
//!             println!("{}", snapshot.messages().last().map_or(String::new(), |message| message.text()));
//!             if snapshot.status == Status::Idle {
//!                 break;
//!             }
//!         }
//!         Update::Closed(end) => return Err(end.reason.into()),
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Switching the model
//!
//! [`Config::set_model`] switches the model. To switch the model of an idle agent, call it in [`Agent::set_state`]. To
//! switch the model during a run, call it in a callback, through [`State::config_mut`]. To use another model for one
//! prompt only, call [`Prompt::with_model`].
//!
//! # Types that hold state
//!
//! | type | contents | purpose |
//! | --- | --- | --- |
//! | [`Config`] | model, system prompt, tools, options, limits | the settings in force, with the live model and tools |
//! | [`State`] | configuration, history, status, step, extensions | a callback's view; the callback may edit the configuration |
//! | [`StateEdit`] | configuration and history | the copy that `init` and [`Agent::set_state`] edit |
//! | [`StateView`] | configuration and history as data | sent in events and snapshots, serialisable |
//! | [`Snapshot`] | a `StateView` and everything in flight | the complete state at one event, for subscribers |
//! | [`StoredState`](crate::store::custom::StoredState) | model name, system prompt, options, limits, title | kept in a session's store |

mod admission;
mod backup;
mod builder;
mod callbacks;
mod command;
mod compaction;
mod core;
mod decision;
mod delegation;
mod durable;
mod event;
mod follow;
mod model_spec;
mod owner;
mod phase;
mod request;
mod running;
mod snapshot;
mod state;
mod sub_agent;
mod task;
#[cfg(all(test, feature = "test-util"))]
mod tests;
mod text;

use std::{
    any::Any,
    error::Error as StdError,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

#[cfg(test)]
pub(crate) use self::core::simulation::process;
pub(crate) use self::core::{ResumeDecisions, check_decisions};
pub(crate) use admission::{RequestConcurrencyLimiter, RequestPermit};
use async_trait::async_trait;
pub use backup::{BackupCause, BackupModel};
pub use builder::AgentBuilder;
pub use callbacks::{AgentCallbacks, ErrorDecision, ToolDecision, TurnDecision};
pub(crate) use command::AgentStopTurnPolicy;
use command::{AgentCommand, AgentReplyTx, StopAgentCommand};
pub(crate) use compaction::ResolvedCompactionPolicy;
pub use compaction::{Compact, CompactHow, CompactionPolicy};
pub(crate) use delegation::{
    NewSubAgent, ParentCall, RunningSubAgent, SubAgentSessionOpener, SubAgentTerminator,
};
pub use durable::{Durable, OnUncertain, RecordedStage, Recover, Recovery, RecoveryDecision, UncertainUse};
pub(crate) use durable::{
    LastStoredRecordNumber, MAX_LIVES, RECORD_DELAY, RecordToStore, TurnInFlight, UnreadableTurnReason,
};

pub use event::{Event, Status};
pub use follow::{Follow, FollowFrom, FollowTarget, RunProgress, ToolChange};
pub(crate) use owner::{AskResponseTx, FirstMessageOfRun, HistoryChangeRight, LatestEventAndStatus};
pub use request::RunRequest;
pub(crate) use request::{ExistingOrNewRun, RunStarter};
pub(crate) use running::RunCommands;
pub use running::{Pause, RunStep, Running};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
pub use snapshot::{Snapshot, ToolRun};
pub use state::{Config, State, StateEdit, StateView};
pub use sub_agent::SubAgent;
use task::AgentShared;
pub(crate) use task::OwningSession;
pub use text::TextDeltas;
use tokio::sync::mpsc;

use crate::{
    actor,
    message::{History, Message, ToolUseId, TurnId},
    run::{
        Accepted, Decided, Error, ErrorKind, Failure, KnownPrompt, Next, PendingUse, Prompt, PromptId,
        PromptState, Response, RunAt, RunEnd, RunOutcome, RunSpec, TurnRecord,
    },
    subscription::{End, EventId, Numbered, Subscription, SubscriptionSource, SubscriptionStart},
    telemetry::CallerSpan,
    tool::Decision,
};

/// A handle to an agent. It is cheap to clone.
///
/// When the last handle is dropped, the agent ends in the same way as with [`stop`](Agent::stop): a run in flight is
/// interrupted, and its completed steps are committed. There is one exception: if the agent of a session is paused and
/// its turn is stored, the turn stays in flight.
///
/// The agent accepts commands at all times: while a model streams, while tools run, and while a callback waits for
/// something that never happens. After the agent's end, its operations return [`ErrorKind::Ended`], except
/// [`stop`](Agent::stop) and [`stop_discarding`](Agent::stop_discarding), which return the result of the end.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello, Ada!")]);
/// # let model = provider.model();
/// use omni_agent::Agent;
///
/// let agent = Agent::builder().model(model).system("Be brief.").start().await?;
/// let response = agent.ask("Hi, my name is Ada.").await?;
/// assert_eq!(response.text(), "Hello, Ada!");
/// // The prompt and the response are part of the history now.
/// assert_eq!(agent.state().await?.history().len(), 2);
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// Dropping the future of an operation does not withdraw the operation. The agent may still perform the operation, but
/// the result is lost. Nothing else is lost.
#[derive(Clone)]
pub struct Agent {
    commands: mpsc::Sender<Box<AgentCommand>>,
    shared: Arc<AgentShared>,
}

/// A handle that does not keep the agent alive.
#[derive(Clone)]
pub struct WeakAgent {
    commands: mpsc::WeakSender<Box<AgentCommand>>,
    shared: Arc<AgentShared>,
}

/// An item of an agent's commit channel: an event or a record or both, and the configuration that was in force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct AgentCommitItem {
    /// The event. `None` if only a record is delivered.
    pub(crate) event: Option<Numbered<Event>>,
    /// The configuration that was in force, including changes by callbacks.
    pub(crate) config: Arc<Config>,
    /// If the event commits a turn, the span of the turn's run. Empty if telemetry is off.
    pub(crate) run: CallerSpan,
    /// For a message, the settings of the prompt that started the message's turn. `None` if this prompt has no
    /// settings.
    pub(crate) settings: Option<Arc<Prompt>>,
    /// The state of the turn in flight to store, after the input that has emitted the event.
    pub(crate) record: Option<Arc<RecordToStore>>,
}

/// A snapshot of an agent and the events that follow it.
pub type AgentSubscription = Subscription<Snapshot, Event>;

impl Agent {
    /// Returns a builder for an agent.
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Describes a run with this prompt. [`RunRequest::start`] starts it.
    pub fn run(&self, prompt: impl Into<Prompt>) -> RunRequest {
        RunRequest::new(self.clone(), RunSpec::new(RunAt::Head, prompt))
    }

    /// Sends a prompt.
    ///
    /// If the agent is idle, the prompt starts a run. If the agent is busy or paused, the prompt is staged: it starts
    /// the next turn when the current turn is complete. Several prompts can be staged. They are used in order, one for
    /// each turn. A prompt with [`Next::Step`] joins the turn in flight instead. If the run ends early, a
    /// [`Prompt`](Event::Prompt) event returns each staged prompt.
    ///
    /// If a prompt with the same id was accepted before, nothing happens, and [`Accepted::Known`] is returned. An agent
    /// knows the last 32 ids, and those of all prompts whose runs have not ended.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::EmptyPrompt`] or [`ErrorKind::InvalidPrompt`] if the prompt has no content or does not fit the
    ///   history.
    /// - [`ErrorKind::Busy`] if the prompt contains tool results while a run is active.
    /// - [`ErrorKind::InvalidSettings`] if a setting of the prompt is invalid.
    /// - [`ErrorKind::InvalidPrompt`] if the prompt's id is empty or too long, if the application's data in the prompt
    ///   exceeds a limit, or if the metadata of an attachment has more than 64 levels of arrays and objects.
    /// - [`ErrorKind::QueueFull`] if too many prompts are staged.
    /// - [`ErrorKind::NotAtStep`] if a prompt for the next step of the turn in flight has settings.
    /// - [`ErrorKind::StoreBehind`] or [`ErrorKind::Draining`] if the agent belongs to a session that accepts no prompts
    ///   now.
    /// - [`ErrorKind::Ended`] if the agent has ended.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, Error> {
        self.run(prompt).start().await
    }

    /// Sends a prompt, waits until its run ends, and returns the response. The response is that of the last turn, with
    /// the messages and the usage of all turns of the run.
    ///
    /// If the run is interrupted, the response so far is returned, provided that a turn was completed or a part of the
    /// turn in flight was kept.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`prompt`](Agent::prompt), except that [`ErrorKind::Busy`] is also returned whenever
    /// a run is active. Returns [`ErrorKind::KnownPrompt`] if the prompt's id is known.
    /// Returns [`ErrorKind::Cancelled`] or [`ErrorKind::Failed`] if the run is cancelled or fails. Both errors have a
    /// [`response`](Error::response): the work that a failed run has kept, or the messages that were discarded.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Arc<Response>, Error> {
        self.run(prompt).response().await
    }

    /// Sends a prompt and returns the response as a value of a Rust type. The schema of the type becomes the prompt's
    /// output schema.
    ///
    /// If a response does not match the schema, the agent requests it again, up to
    /// [`Options::output_retries`](crate::provider::Options::output_retries) times. A response that was cut off or
    /// refused is not requested again. A response that is requested again never becomes part of the history. The last
    /// response becomes part of the history even if it does not match the schema.
    ///
    /// A response that matches the schema but not the type is not requested again. This can happen if the type's
    /// `Deserialize` checks more than the schema does. The agent knows only the schema, because a stored run can
    /// continue in a process that does not know the type. Therefore express such checks in the schema where possible.
    /// [`Model::generate_as`](crate::provider::Model::generate_as) works without an agent, and also repeats the request
    /// if the response does not match the type.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ask`](Agent::ask). Returns [`ErrorKind::InvalidSettings`] if the type has no usable
    /// schema. Returns [`ErrorKind::Output`] if the response does not match the schema or the type.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, Error> {
        self.run(prompt).value().await
    }

    /// Compacts the conversation now, and returns the message of the compaction. The agent must be idle. A text requests a
    /// summary with this focus. An agent without a [policy](AgentBuilder::compaction) uses the default one.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let texts = ["One.", "Two.", "Three.", "The user counts."];
    /// # let model = ScriptedProvider::new(texts.map(Step::text)).model();
    /// use omni_agent::agent::{Agent, Compact};
    ///
    /// let agent = Agent::builder().model(model).start().await?;
    /// for number in ["1", "2", "3"] {
    ///     agent.ask(number).await?;
    /// }
    /// assert_eq!(agent.compact("the numbers").await?.text(), "The user counts.");
    /// agent.compact(Compact::undo()).await?;
    /// # Ok::<(), omni_agent::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A prompt that is sent meanwhile is staged. A cancel or an interrupt ends the compaction, which then changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`] if the agent is not idle, and [`ErrorKind::NotCompactable`] if a compaction would change
    /// nothing or is not possible. Returns [`ErrorKind::Failed`] if the request for the summary fails, and
    /// [`ErrorKind::Cancelled`] if it is cancelled. Returns [`ErrorKind::Ended`] if the agent has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the compaction.
    pub async fn compact(&self, compact: impl Into<Compact>) -> Result<Arc<Message>, Error> {
        let (compact, caller) = (compact.into(), CallerSpan::current());
        let response = self.call(|reply| AgentCommand::Compact(compact, caller, reply)).await??;
        response.messages.last().cloned().ok_or_else(|| Error::cancelled(response))
    }

    /// Withdraws a staged prompt, and returns it.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::NotStaged`] if no prompt with this id is staged, because it was used, withdrawn or never
    /// staged. Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn unstage(&self, id: impl Into<PromptId>) -> Result<Arc<Prompt>, Error> {
        let id = id.into();
        self.call(|reply| AgentCommand::Unstage(id, reply)).await?
    }

    /// Sends the decision about a tool use that waits for one. If several tool uses of a step wait, they can be decided
    /// in any order. The step's tools run after the last decision. A question of a running tool waits as a tool use
    /// with its own id, and the decision answers the question: see [`PendingUse::asked_by`].
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::NotPaused`] if the agent is not paused. Returns [`ErrorKind::StaleDecision`] if the tool
    /// use does not wait for a decision, for example because somebody else has decided. A decision never applies to a
    /// newer tool use than the one it was made for. Returns [`ErrorKind::InvalidDecision`] if the decision has more
    /// than 64 levels of arrays and objects. Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn resume(&self, tool_use: impl Into<ToolUseId>, decision: Decision) -> Result<(), Error> {
        self.decide(ResumeDecisions { decisions: vec![(tool_use.into(), decision)], turn: None, by: None })
            .await
    }

    /// Like [`resume`](Self::resume), and records the name of the person or system that decided. Subscribers see the
    /// name in [`Event::Decided`]. The application chooses the name. It may be the id of a user, for example, with at
    /// most 256 bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`resume`](Self::resume), and [`ErrorKind::InvalidDecision`].
    pub async fn resume_as(
        &self,
        tool_use: impl Into<ToolUseId>,
        decision: Decision,
        by: impl Into<Arc<str>>,
    ) -> Result<(), Error> {
        let decisions = vec![(tool_use.into(), decision)];
        self.decide(ResumeDecisions { decisions, turn: None, by: Some(by.into()) }).await
    }

    pub(crate) async fn decide(&self, resume: ResumeDecisions) -> Result<(), Error> {
        self.call(|reply| AgentCommand::Resume(resume, reply)).await?
    }

    /// Ends the run at once and discards the pending messages. The history is the same as before the turn. The
    /// [`Cancelled`](Event::Cancelled) event contains the discarded messages, and a [`Prompt`](Event::Prompt) event
    /// returns each staged prompt.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Idle`] if no run is active. There is one exception: if a `handle_event` is running between
    /// two runs, the call succeeds, drops the `handle_event` together with its event, and logs a warning. An event
    /// whose `handle_event` was not polled yet remains queued and is handled next. Returns [`ErrorKind::Ended`] if
    /// the agent has ended.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.call(|reply| AgentCommand::Cancel(None, reply)).await?
    }

    /// Cancels the run like [`cancel`](Self::cancel) if this turn is in flight. Otherwise, returns `false` and changes
    /// nothing.
    #[cfg(feature = "web")]
    pub(crate) async fn cancel_turn(&self, turn: TurnId) -> Result<bool, Error> {
        self.end_turn(|reply| AgentCommand::Cancel(Some(turn), reply)).await
    }

    async fn end_turn(
        &self,
        command: impl FnOnce(AgentReplyTx<Result<(), Error>>) -> AgentCommand,
    ) -> Result<bool, Error> {
        match self.call(command).await? {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Idle => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends the run at once and keeps as much of the run as possible.
    ///
    /// Completed steps and the text streamed so far are committed. A finished tool keeps its result. A tool use that a
    /// decision rejected or gave a result also keeps that result. All other complete tool uses get a result that
    /// reports the interruption. No callback runs, so [`handle_tool_result`](AgentCallbacks::handle_tool_result) does
    /// not process the results that it had not returned yet. Results that the service has just refused are kept in
    /// cleared form: see [`ErrorDecision::Stop`]. If nothing except the prompt can be kept, the interrupt acts as a
    /// [`cancel`](Agent::cancel).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`cancel`](Agent::cancel).
    pub async fn interrupt(&self) -> Result<(), Error> {
        self.call(|reply| AgentCommand::Interrupt(None, reply)).await?
    }

    /// Ends the run like [`interrupt`](Self::interrupt) if this turn is in flight. Otherwise, returns `false` and
    /// changes nothing, so that a late caller never ends the run of somebody else.
    pub(crate) async fn interrupt_turn(&self, turn: TurnId) -> Result<bool, Error> {
        self.end_turn(|reply| AgentCommand::Interrupt(Some(turn), reply)).await
    }

    /// Sends an application event to [`AgentCallbacks::handle_event`]. That callback is called with the event when no
    /// turn is active.
    ///
    /// The event remains queued until `handle_event` is polled with the event for the first time. Events that are still
    /// queued when the agent ends are dropped, and a warning in the log contains their number.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Backlog`] if the queue is full. Returns [`ErrorKind::Ended`] if the agent has
    /// ended.
    pub async fn notify<E: Any + Send>(&self, event: E) -> Result<(), Error> {
        let event: Box<dyn Any + Send> = Box::new(event);
        self.call(|reply| AgentCommand::Notify(event, reply)).await?
    }

    /// Changes the configuration or the history. `edit` changes a copy. If the edited copy is valid, all changes take
    /// effect together. The change emits a [`State`](Event::State) event. `edit` runs in the agent's task, so `edit`
    /// must be short.
    ///
    /// To switch the model between runs, call [`Config::set_model`] in `edit`. To use another model for one prompt, see
    /// [`Prompt::with_model`].
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`] if the agent is not idle. Returns [`ErrorKind::Callback`] or
    /// [`ErrorKind::UnknownModel`] if `edit` returned an error or panicked. Returns [`ErrorKind::Config`] if `edit`
    /// changes the history of a session's agent. Returns [`ErrorKind::InvalidSettings`] or [`ErrorKind::Config`] if the
    /// edited copy is invalid. Returns [`ErrorKind::Ended`] if the agent has ended.
    #[doc(alias = "switch model")]
    pub async fn set_state<F>(&self, edit: F) -> Result<(), Error>
    where
        F: FnOnce(&mut StateEdit) -> Result<(), Box<dyn StdError + Send + Sync>> + Send + 'static,
    {
        self.call(|reply| AgentCommand::SetState(Box::new(edit), reply)).await?
    }

    /// Returns the same state that callbacks see.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn state(&self) -> Result<State, Error> {
        self.call(AgentCommand::State).await
    }

    /// Returns the agent's status: idle, busy or paused.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn status(&self) -> Result<Status, Error> {
        self.call(AgentCommand::Status).await
    }

    /// Returns a snapshot of the complete current state.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended. [`Agent::end`] then contains its last snapshot.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        self.call(AgentCommand::Snapshot).await
    }

    /// Returns a snapshot and the events that follow it, without a gap and without an overlap. A subscription does not
    /// keep the agent alive.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn subscribe(&self) -> Result<AgentSubscription, Error> {
        self.subscribe_after(None).await
    }

    /// Follows a run, from its start to its end. If the target is not known yet, the reader waits for it.
    /// If an earlier prompt with the same id was returned, use [`RunRequest::follow`] instead, which starts the run first.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn follow(&self, target: FollowTarget) -> Result<Running, Error> {
        RunStarter::follow(self, ExistingOrNewRun::Existing(target)).await
    }

    /// Resumes a subscription after `last`, the last event that the subscriber saw. If the missed events are still
    /// buffered, they are replayed. If they are not, or if `last` belongs to another life of the agent, the
    /// first update is a resync.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent has ended.
    pub async fn resume_from(&self, last: EventId) -> Result<AgentSubscription, Error> {
        self.subscribe_after(Some(last)).await
    }

    async fn subscribe_after(&self, after: Option<EventId>) -> Result<AgentSubscription, Error> {
        let attachment = self.call(|reply| AgentCommand::Subscribe(after, reply)).await?;
        let source = Box::new(self.downgrade());
        Ok(match after {
            Some(seen) => Subscription::resumed(source, seen, attachment),
            None => Subscription::new(source, attachment),
        })
    }

    /// Waits until no run is active and nothing that could start a run is queued. [`Snapshot::last_run`] contains the
    /// outcome of the last run.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the agent ends before it is idle.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn wait_until_idle(&self) -> Result<(), Error> {
        self.call(AgentCommand::WaitIdle).await
    }

    /// Ends the agent.
    ///
    /// A run in flight is [interrupted](Agent::interrupt), so its completed steps are committed. Results that the
    /// service has just refused are kept in cleared form: see [`ErrorDecision::Stop`]. Then
    /// [`terminate`](AgentCallbacks::terminate) runs, and subscribers get the final snapshot. The agent waits for
    /// aborted tools, including those of earlier runs, because an aborted tool that does not await continues to run.
    /// The agent does not wait for work that a tool started elsewhere. Everything that is not finished by the deadline
    /// is cut off.
    ///
    /// Dropping the last handle ends the agent in the same way. If the agent has already ended, the result of that end
    /// is returned.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Deadline`] if something was cut off. The error lists the tools that are still running. The
    /// agent has ended nevertheless.
    pub async fn stop(&self, deadline: Duration) -> Result<(), Error> {
        self.end_within(deadline, AgentStopTurnPolicy::Keep).await
    }

    /// Ends the agent as [`stop`](Agent::stop) does, but [cancels](Agent::cancel) a run in flight. The history is then
    /// the same as before the turn. If several callers stop the agent, the first call decides whether the run is
    /// interrupted or cancelled.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`stop`](Agent::stop).
    pub async fn stop_discarding(&self, deadline: Duration) -> Result<(), Error> {
        self.end_within(deadline, AgentStopTurnPolicy::Discard).await
    }

    pub(crate) async fn end_within(
        &self,
        deadline: Duration,
        in_flight: AgentStopTurnPolicy,
    ) -> Result<(), Error> {
        let stop = |reply| AgentCommand::Stop(StopAgentCommand { deadline, in_flight, reply });
        match self.call(stop).await {
            Ok(stopped) => stopped,
            Err(_) => self.shared.cut_off.get().map_or(Ok(()), |error| Err(error.clone())),
        }
    }

    /// Waits for the agent's end, whatever its cause. This handle keeps the agent alive, but a [weak
    /// handle](WeakAgent::ended) does not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn ended(&self) -> End<Snapshot> {
        self.shared.termination.ended().await
    }

    /// Returns the reason for the agent's end and its last snapshot, or `None` if the agent has not ended.
    pub fn end(&self) -> Option<End<Snapshot>> {
        self.shared.termination.end().cloned()
    }

    /// Cancels the run without waiting. If the queue of commands is full, nothing happens.
    pub(super) fn cancel_now(&self) {
        let (reply, _) = tokio::sync::oneshot::channel();
        let _ = self.commands.try_send(Box::new(AgentCommand::Cancel(None, reply)));
    }

    /// Returns a handle that does not keep the agent alive.
    pub fn downgrade(&self) -> WeakAgent {
        WeakAgent { commands: self.commands.downgrade(), shared: Arc::clone(&self.shared) }
    }

    /// Sends a command and waits for its reply.
    async fn call<T>(&self, command: impl FnOnce(AgentReplyTx<T>) -> AgentCommand) -> Result<T, Error> {
        match actor::call(&self.commands, |reply| Box::new(command(reply))).await {
            Some(answer) => Ok(answer),
            None => Err(Error::ended("agent", &self.shared.termination.closed().await)),
        }
    }
}

#[async_trait]
impl RunStarter for Agent {
    async fn start(&self, spec: RunSpec) -> Result<Accepted, Error> {
        let (prompt, caller) = (at_head(spec)?, CallerSpan::current());
        self.call(|reply| AgentCommand::Prompt(prompt, caller, reply)).await?
    }

    async fn response(&self, spec: RunSpec) -> Result<Arc<Response>, Error> {
        let (prompt, caller) = (at_head(spec)?, CallerSpan::current());
        self.call(|reply| AgentCommand::Ask(prompt, caller, reply)).await?
    }

    async fn follow(&self, run: ExistingOrNewRun) -> Result<Running, Error> {
        let mut updates = self.subscribe().await?;
        let (run, is_known) = run.start(self).await?;
        if is_known {
            updates = self.subscribe().await?;
        }
        let (first, commands) = (updates.snapshot().cloned(), Arc::new(self.clone()));
        let of_snapshot: fn(&Snapshot) -> (&History, &Snapshot) = |agent| (&agent.state.history, agent);
        Ok(Running::new(run, first, updates, |event| Some(event), of_snapshot, commands, "agent"))
    }
}

/// Returns the prompt of a run that starts at the end of the history.
fn at_head(spec: RunSpec) -> Result<Prompt, Error> {
    if spec.at == RunAt::Head {
        return Ok(spec.prompt);
    }
    let text = "an agent without a session has no branches; start the run on a `Session`";
    Err(Error::new(ErrorKind::Unsupported, text).with_member("operation", "starting a run on a branch"))
}

impl WeakAgent {
    /// Returns a handle if the agent is alive and has started. Returns `None` during `init`.
    pub fn upgrade(&self) -> Option<Agent> {
        if !self.shared.started.load(Ordering::Acquire) {
            return None;
        }
        Some(Agent { commands: self.commands.upgrade()?, shared: Arc::clone(&self.shared) })
    }

    /// Waits for the agent's end, whatever its cause, without keeping the agent alive.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn ended(&self) -> End<Snapshot> {
        self.shared.termination.ended().await
    }

    /// Sends a command and waits for its reply. While the call waits, it does not hold a handle. If the agent has not
    /// started yet, the call sends nothing and waits for the agent's end.
    async fn call<T>(
        &self,
        command: impl FnOnce(AgentReplyTx<T>) -> AgentCommand,
    ) -> Result<T, End<Snapshot>> {
        let commands = self.upgrade().map(|agent| agent.commands);
        match actor::call_weakly(commands, &self.shared.termination, |reply| Box::new(command(reply))).await {
            Some(answer) => Ok(answer),
            None => Err(self.shared.termination.ended().await),
        }
    }
}

impl SubscriptionSource<Snapshot, Event> for WeakAgent {
    fn attach(
        &self,
        after: Option<EventId>,
    ) -> Pin<Box<dyn Future<Output = Result<SubscriptionStart<Snapshot, Event>, End<Snapshot>>> + Send>> {
        let weak = self.clone();
        Box::pin(async move { weak.call(|reply| AgentCommand::Subscribe(after, reply)).await })
    }
}

crate::debug::impl_debug!(Agent(self) { ended: self.shared.termination.end().is_some(), .. });

crate::debug::impl_debug!(WeakAgent { .. });

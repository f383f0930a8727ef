//! The agent: one conversation as an actor.
//!
//! [`Agent`] is a handle: cheap to clone, and the agent lives until the last one is dropped or somebody
//! [stops](Agent::stop) it. Its task owns the conversation, runs the turn loop, calls the application's
//! [`AgentCallbacks`] and answers every operation at all times.
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
//!             Event::Turn(_) => break,
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

mod admission;
mod builder;
mod callbacks;
mod command;
mod core;
mod error;
mod event;
mod model_spec;
mod owner;
mod phase;
mod response;
mod snapshot;
mod state;
mod task;

use std::{
    any::Any,
    error::Error,
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub use self::core::Accepted;
pub use admission::{Admission, Permit};
pub use builder::AgentBuilder;
pub use callbacks::{AgentCallbacks, AppEvent, ErrorDecision, ToolDecision, TurnDecision};
pub(crate) use command::InFlight;
use command::{Command, Reply, Stop};
pub use error::{AgentError, Failure, RunningTool};
pub use event::{Event, RunOutcome, Status, TurnOutcome};
pub(crate) use owner::{Asker, Opening};
pub use owner::{HistoryOwner, Moment};
pub use response::Response;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
pub use snapshot::{Pause, Snapshot};
pub use state::{Config, Prompt, SavedConfig, State, StateEdit, StateView};
use task::AgentShared;
pub(crate) use task::Hold;
use tokio::sync::mpsc;

use crate::{
    actor,
    message::ToolUseId,
    provider::OutputSchema,
    subscription::{Attachment, End, EventId, Numbered, Source, Subscription},
    tool::Decision,
};

/// A handle to an agent. Cheap to clone. When the last one is dropped, the agent ends as [`stop`](Agent::stop) ends it:
/// a run in flight is interrupted, and its completed steps are committed.
///
/// All operations are answered at all times: while a model streams, while tools run, and while a callback
/// awaits something that never comes. After the agent's end they return [`AgentError::Stopped`].
///
/// # Cancel safety
///
/// Dropping the future of an operation before it is done does not take the operation back: it may still be
/// performed, unseen. Nothing else is lost.
#[derive(Clone)]
pub struct Agent {
    commands: mpsc::Sender<Command>,
    shared: Arc<AgentShared>,
}

/// A handle that does not keep the agent alive.
#[derive(Clone)]
pub struct WeakAgent {
    commands: mpsc::WeakSender<Command>,
    shared: Arc<AgentShared>,
}

/// One item of an agent's commit channel: an event, and the configuration in force when it happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// The event.
    pub event: Numbered<Event>,
    /// The configuration, as callbacks may have changed it.
    pub config: Arc<Config>,
    /// With a message: the settings of the prompt that its turn belongs to, if that has any.
    pub(crate) settings: Option<Arc<Prompt>>,
}

/// A snapshot of an agent and the events that follow it.
pub type AgentSubscription = Subscription<Snapshot, Event>;

impl Agent {
    /// Begins to build an agent.
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Sends a prompt. If the agent is idle, it begins a run; while the agent is busy or paused, it is staged:
    /// it begins the next turn when the current one is complete. A newer staged prompt replaces the older,
    /// which is given back.
    ///
    /// # Errors
    ///
    /// An empty prompt, one that does not fit the history, tool results while the agent is busy, a limit of
    /// zero, an unusable output schema, or a stopped agent.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, AgentError> {
        let prompt = prompt.into();
        self.call(|reply| Command::Prompt(Box::new((prompt, reply)))).await?
    }

    /// Sends a prompt and awaits what comes of it: the last turn's response, with the messages and usage of
    /// all its turns. An interrupted run gives the response so far, if a turn is complete or anything of it is kept.
    ///
    /// # Errors
    ///
    /// As [`prompt`](Agent::prompt); [`AgentError::Busy`] while a run is on; [`AgentError::Cancelled`] and
    /// [`AgentError::Failed`] with what was discarded.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<Arc<Response>, AgentError> {
        let prompt = prompt.into();
        self.call(|reply| Command::Ask(Box::new((prompt, reply)))).await?
    }

    /// Asks for a value of a Rust type: sets its schema as the output schema, and parses the answer. An answer that
    /// does not fit the schema is asked for again, as often as
    /// [`Options::output_retries`](crate::provider::OptionFields::output_retries) says, unless it was cut or refused; the
    /// history never has it. One that fits the schema and not the type, by a check of the type's own `Deserialize`
    /// say, is not: a run can be taken up where nobody knows the type, and goes by the schema alone. Say in the
    /// schema what can be said there; a [model without an agent](crate::provider::Model::generate_as) asks again for
    /// the type too.
    ///
    /// # Errors
    ///
    /// As [`ask`](Agent::ask); [`AgentError::InvalidOutputSchema`] if the type has no usable schema, and
    /// [`AgentError::Output`] if the answer does not have the shape.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, AgentError> {
        let mut prompt = prompt.into();
        prompt.options.output = Some(OutputSchema::of::<T>());
        let response = self.ask(prompt).await?;
        match (&response.output, &response.output_error) {
            (Some(value), _) => T::deserialize(value)
                .map_err(|error| AgentError::Output(error.to_string(), Arc::clone(&response))),
            (None, Some(error)) => Err(AgentError::Output(error.clone(), Arc::clone(&response))),
            (None, None) => {
                let why = format!("the turn ended with {} before there was one", response.stop_reason);
                Err(AgentError::Output(why, response))
            }
        }
    }

    /// Decides on the tool use that a paused agent waits for.
    ///
    /// # Errors
    ///
    /// [`AgentError::NotPaused`], and [`AgentError::StaleResume`] if the agent waits for another tool use:
    /// a decision never applies to a newer call than the one it was made for.
    pub async fn resume(&self, tool_use: impl Into<ToolUseId>, decision: Decision) -> Result<(), AgentError> {
        let id = tool_use.into();
        self.call(|reply| Command::Resume(Box::new((id, decision, reply)))).await?
    }

    /// Ends the run at once and discards what is pending; the history stays as it was before the turn. The
    /// `cancelled` event carries what was discarded, and a staged prompt.
    ///
    /// # Errors
    ///
    /// [`AgentError::Idle`] if no run is active. The exception is a `handle_event` that runs between two runs: the
    /// cancel drops it with its event and logs a warning. An event whose `handle_event` was not polled yet stays
    /// queued and is handled next.
    pub async fn cancel(&self) -> Result<(), AgentError> {
        self.call(Command::Cancel).await?
    }

    /// Ends the run at once and keeps as much of it as possible. Completed steps and the text streamed so far are
    /// committed. A tool that has finished keeps its result, and so does a tool use that was rejected or got its
    /// result from a decision. All other complete tool uses are answered as interrupted. No callback runs, so
    /// [`handle_tool_result`](AgentCallbacks::handle_tool_result) does not see results that it had not returned yet.
    /// If there is nothing to keep but the prompt, this is a [`cancel`](Agent::cancel).
    ///
    /// # Errors
    ///
    /// As [`cancel`](Agent::cancel).
    pub async fn interrupt(&self) -> Result<(), AgentError> {
        self.call(Command::Interrupt).await?
    }

    /// Sends an event of the application's own to [`AgentCallbacks::handle_event`], where it arrives when no
    /// turn is active. The event stays queued until `handle_event` is polled with it. Events that are still queued
    /// when the agent ends are dropped, and a warning in the log has their number.
    ///
    /// # Errors
    ///
    /// [`AgentError::TooManyEvents`] if more wait than the agent keeps.
    pub async fn notify<E: Any + Send>(&self, event: E) -> Result<(), AgentError> {
        let event: AppEvent = Box::new(event);
        self.call(|reply| Command::Notify(Box::new((event, reply)))).await?
    }

    /// Changes the configuration or the history, as a whole or not at all: `edit` works on a copy, which
    /// takes effect if it is valid. Fires a `state` event. `edit` runs in the agent's task; keep it short.
    ///
    /// To switch the model between runs, call [`Config::set_model`] in `edit`. To use another model for one prompt, see
    /// [`Prompt::with_model`].
    ///
    /// # Errors
    ///
    /// [`AgentError::Busy`] unless the agent is idle; what makes the copy invalid; what `edit` returned;
    /// [`AgentError::HistoryOwned`] if it changes a history that has an [owner](HistoryOwner).
    #[doc(alias = "switch model")]
    pub async fn set_state<F>(&self, edit: F) -> Result<(), AgentError>
    where
        F: FnOnce(&mut StateEdit) -> Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    {
        self.call(|reply| Command::SetState(Box::new((Box::new(edit), reply)))).await?
    }

    /// The state as callbacks see it.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`].
    pub async fn state(&self) -> Result<State, AgentError> {
        Ok(*self.call(Command::State).await?)
    }

    /// What the agent is doing.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`].
    pub async fn status(&self) -> Result<Status, AgentError> {
        self.call(Command::Status).await
    }

    /// All there is to know at this moment.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`]; what was left is in [`Agent::end`].
    pub async fn snapshot(&self) -> Result<Snapshot, AgentError> {
        Ok(*self.call(Command::Snapshot).await?)
    }

    /// A snapshot and the events that follow it, with no gap and no overlap. Keeps nothing alive.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`].
    pub async fn subscribe(&self) -> Result<AgentSubscription, AgentError> {
        self.subscribe_after(None).await
    }

    /// Resumes a subscription after the last event that was seen. What was missed is replayed if it is still
    /// there; else, and for an event of another incarnation, the first update is a resync.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`].
    pub async fn resume_from(&self, last: EventId) -> Result<AgentSubscription, AgentError> {
        self.subscribe_after(Some(last)).await
    }

    async fn subscribe_after(&self, after: Option<EventId>) -> Result<AgentSubscription, AgentError> {
        let attachment = self.call(|reply| Command::Subscribe(Box::new((after, reply)))).await?;
        let source = Box::new(self.downgrade());
        Ok(match after {
            Some(seen) => Subscription::resumed(source, seen, attachment),
            None => Subscription::new(source, attachment),
        })
    }

    /// Waits until no run is active and nothing waits to begin one. How the last run ended is in [`Snapshot::last_run`].
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`] if the agent ends first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn wait_until_idle(&self) -> Result<(), AgentError> {
        self.call(Command::WaitIdle).await
    }

    /// Ends the agent. A run in flight is [interrupted](Agent::interrupt), so its completed steps are committed. Then
    /// [`terminate`](AgentCallbacks::terminate) runs, and subscribers get the final snapshot. The end waits for aborted
    /// tools, also those of earlier runs, since a tool that does not await runs on. It does not wait for work that a tool
    /// started elsewhere. Whatever is not done by the deadline is cut off. Dropping the last handle ends the agent in the
    /// same way. Stopping a stopped agent succeeds or fails as its end did.
    ///
    /// # Errors
    ///
    /// [`AgentError::Deadline`] if something was cut off, with the tools that still run; the agent has ended all the same.
    pub async fn stop(&self, deadline: Duration) -> Result<(), AgentError> {
        self.end_within(deadline, InFlight::Keep).await
    }

    /// Ends the agent as [`stop`](Agent::stop) does, but [cancels](Agent::cancel) a run in flight: the history stays as
    /// it was before the turn. If several callers stop the agent, the first one decides.
    ///
    /// # Errors
    ///
    /// As [`stop`](Agent::stop).
    pub async fn stop_discarding(&self, deadline: Duration) -> Result<(), AgentError> {
        self.end_within(deadline, InFlight::Discard).await
    }

    pub(crate) async fn end_within(&self, deadline: Duration, in_flight: InFlight) -> Result<(), AgentError> {
        let stop = |reply| Command::Stop(Box::new(Stop { deadline, in_flight, reply }));
        match self.call(stop).await {
            Ok(stopped) => stopped,
            Err(_) => self.shared.cut_off.get().map_or(Ok(()), |error| Err((**error).clone())),
        }
    }

    /// Waits for the agent's end, whatever causes it. This handle keeps the agent alive; a
    /// [weak one](WeakAgent::ended) does not.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn ended(&self) -> End<Snapshot> {
        self.shared.termination.ended().await
    }

    /// How the agent ended, with its last snapshot; `None` while it lives.
    pub fn end(&self) -> Option<End<Snapshot>> {
        self.shared.termination.end().cloned()
    }

    /// A handle that does not keep the agent alive.
    pub fn downgrade(&self) -> WeakAgent {
        WeakAgent { commands: self.commands.downgrade(), shared: Arc::clone(&self.shared) }
    }

    /// Sends a command and awaits its answer.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, AgentError> {
        match actor::call(&self.commands, command).await {
            Some(answer) => Ok(answer),
            None => Err(AgentError::Stopped(self.shared.termination.closed().await)),
        }
    }
}

impl WeakAgent {
    /// A handle, if the agent still lives and has begun to: there is none in `init`.
    pub fn upgrade(&self) -> Option<Agent> {
        if !self.shared.started.load(Ordering::Acquire) {
            return None;
        }
        Some(Agent { commands: self.commands.upgrade()?, shared: Arc::clone(&self.shared) })
    }

    /// Waits for the agent's end, whatever causes it, and keeps nothing alive.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn ended(&self) -> End<Snapshot> {
        self.shared.termination.ended().await
    }

    /// Sends a command and awaits its answer, without a handle meanwhile. An agent that has not begun is waited
    /// for in vain.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, End<Snapshot>> {
        let commands = self.upgrade().map(|agent| agent.commands);
        match actor::call_weakly(commands, &self.shared.termination, command).await {
            Some(answer) => Ok(answer),
            None => Err(self.shared.termination.ended().await),
        }
    }
}

impl Source<Snapshot, Event> for WeakAgent {
    fn attach(
        &self,
        after: Option<EventId>,
    ) -> Pin<Box<dyn Future<Output = Result<Attachment<Snapshot, Event>, End<Snapshot>>> + Send>> {
        let weak = self.clone();
        Box::pin(async move { weak.call(|reply| Command::Subscribe(Box::new((after, reply)))).await })
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("ended", &self.shared.termination.end().is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakAgent").finish_non_exhaustive()
    }
}

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    FollowTarget,
    running::{Running, value_of},
};
#[cfg(doc)]
use crate::run::{ErrorKind, Prompt};
use crate::{
    budget::Budget,
    message::{TurnId, id::NodeId},
    provider::{Model, Options, OutputSchema},
    run::{Accepted, Error, Next, PromptId, Response, RunAt, RunSpec},
    setters::setters,
};

/// A handle on which runs start: that of an agent or of a session.
#[async_trait]
pub(crate) trait RunStarter: Send + Sync {
    /// Starts the run, or stages its prompt.
    async fn start(&self, spec: RunSpec) -> Result<Accepted, Error>;

    /// Starts the run, and waits for its response.
    async fn response(&self, spec: RunSpec) -> Result<Arc<Response>, Error>;

    /// Follows a run. The target subscribes before it [starts](ExistingOrNewRun::start) a new run.
    async fn follow(&self, run: ExistingOrNewRun) -> Result<Running, Error>;
}

/// A run that is about to be followed.
pub(crate) enum ExistingOrNewRun {
    /// A run that others start, or have started.
    Existing(FollowTarget),
    /// A run that starts when its events are already subscribed to, so that the reader misses none of them.
    New(RunSpec),
}

/// A run whose events are read.
pub(crate) struct FollowedRunInfo {
    pub(super) target: FollowTarget,
    /// The answer to the prompt, if the run is new.
    pub(super) accepted: Option<Accepted>,
    /// Whether the reader decides about pauses.
    pub(super) decides: bool,
}

impl ExistingOrNewRun {
    /// Starts the run if it is new. Returns the run, and whether its events may have been emitted before, because the
    /// prompt was accepted earlier.
    pub(crate) async fn start(self, on: &dyn RunStarter) -> Result<(FollowedRunInfo, bool), Error> {
        let mut spec = match self {
            Self::Existing(target) => {
                return Ok((FollowedRunInfo { target, accepted: None, decides: false }, false));
            }
            Self::New(spec) => spec,
        };
        // Prompts of others can continue the run, so the prompt needs an id of its own. A new answer has none.
        if !matches!(spec.at, RunAt::Again(_)) {
            spec.prompt.id.get_or_insert_with(|| PromptId::new(TurnId::new(rand::random()).to_string()));
        }
        let (id, joins) = (spec.prompt.id.clone(), spec.prompt.next == Next::Step);
        let accepted = on.start(spec).await?;
        let decides = match accepted {
            Accepted::Started { .. } => true,
            Accepted::Staged { .. } => !joins,
            Accepted::Known { .. } => false,
        };
        let target = match (&accepted, id) {
            (Accepted::Staged { id, .. }, _) => FollowTarget::Prompt(id.clone()),
            (_, Some(id)) => FollowTarget::Prompt(id),
            (Accepted::Started { turn }, None) => FollowTarget::Turn(*turn),
            (Accepted::Known { .. }, None) => FollowTarget::InFlight,
        };
        let is_known = matches!(accepted, Accepted::Known { .. });
        Ok((FollowedRunInfo { target, accepted: Some(accepted), decides }, is_known))
    }
}

/// A run that is described and not yet started.
///
/// [`Agent::run`](super::Agent::run), [`Session::run`](crate::Session::run) and
/// [`Session::again`](crate::Session::again) return one. Settings of the prompt apply to this run only.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new(["Everest, K2.", "Fuji, Etna.", "Nile, Rhine."].map(Step::text));
/// # let model = provider.model();
/// use omni_agent::{Agent, Options, Session, store::MemoryStore};
///
/// let agent = Agent::builder().model(model);
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// session.run("Name two mountains.").with_max_steps(3).response().await?;
///
/// let question = session.tree().await?.roots().next().expect("the question").id();
/// let again = session.again(question).with_options(Options::default().with_temperature(0.9));
/// assert_eq!(again.response().await?.text(), "Fuji, Etna.");
/// let other = session.run("Name two rivers.").instead_of(question);
/// assert_eq!(other.response().await?.text(), "Nile, Rhine.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a run does nothing until it is started"]
pub struct RunRequest {
    spec: RunSpec,
    target: Box<dyn RunStarter>,
}

impl RunRequest {
    pub(crate) fn new(target: impl RunStarter + 'static, spec: RunSpec) -> Self {
        Self { spec, target: Box::new(target) }
    }

    setters! {
        /// Makes the prompt replace this user message, on a branch from the message's parent.
        ///
        /// The prompt's settings apply, and the settings of the replaced message do not.
        pub fn instead_of(self, user: NodeId) { self.spec.at = RunAt::Instead(user) }

        /// Makes the prompt follow the last message of a turn: an assistant message, or the results of tools if the
        /// turn ended with them. The prompt becomes a sibling of the messages that already follow. If `end` is `None`,
        /// the prompt becomes a root.
        ///
        /// If the message ends a turn that [left tool uses open](Response::open_tool_uses), the prompt supplies the
        /// results of these tool uses, as with [`prompt`](super::Agent::prompt).
        pub fn below(self, end: Option<NodeId>) { self.spec.at = RunAt::Below(end) }

        /// Sets the id of the prompt: see [`Prompt::with_id`].
        pub fn with_id(self, id: impl Into<PromptId>) { self.spec.prompt.id = Some(id.into()) }

        /// Sets the moment at which the prompt is used if a run is active.
        pub fn at(self, next: Next) { self.spec.prompt.next = next }

        /// Sets the model.
        pub fn with_model(self, model: Model) { self.spec.prompt.model = Some(model) }

        /// Sets the options, which override the agent's options.
        pub fn with_options(self, options: Options) { self.spec.prompt.options = options }

        /// Sets the maximum number of requests.
        pub fn with_max_steps(self, max_steps: u32) { self.spec.prompt.max_steps = Some(max_steps) }

        /// Sets the maximum duration of each turn.
        pub fn with_turn_timeout(self, limit: Duration) { self.spec.prompt.turn_timeout = Some(limit) }

        /// Sets the budget for the prompt and everything that its run causes.
        pub fn with_budget(self, budget: Budget) { self.spec.prompt.budget = Some(budget) }

        /// Sets the application's data: see [`Prompt::with_app_data`].
        pub fn with_app_data(self, data: impl Into<Arc<Value>>) {
            self.spec.prompt = self.spec.prompt.with_app_data(data);
        }
    }

    /// Starts the run, or stages the prompt if the run would start at the end of the path while another run is active.
    ///
    /// A run at another place starts only if the session is idle. If it is cancelled or fails before its first turn is
    /// complete, the tree is again as it was before the run. [`Snapshot::last_run`](super::Snapshot::last_run) shows how
    /// the run ended.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`prompt`](super::Agent::prompt), such as [`ErrorKind::StoreBehind`] if too many changes of
    /// a session are unsaved. At another place than the end of the path, also returns
    /// [`ErrorKind::Unsupported`] for an agent without a session, [`ErrorKind::Busy`], [`ErrorKind::KnownPrompt`],
    /// [`ErrorKind::UnknownNode`], [`ErrorKind::NotAPrompt`] if the message is not one that a user has sent,
    /// [`ErrorKind::NotAnAnswer`] or [`ErrorKind::OpenToolUses`] if nothing can follow the message, and
    /// [`ErrorKind::InvalidPrompt`] if a message gets another response and the request has an id or data.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn start(self) -> Result<Accepted, Error> {
        self.target.start(self.spec).await
    }

    /// Starts the run, or stages the prompt, and follows the run until the prompt has ended. If the prompt's id is known,
    /// follows the run of the earlier prompt. The prompt gets an id if it has none. If a message gets another answer,
    /// prompts that are staged meanwhile and continue the run are followed, too.
    ///
    /// The reader decides about pauses: see [`Pause`](super::Pause). If the prompt was accepted before, or joins the turn in
    /// flight with [`Next::Step`], it leaves the pauses to others, because somebody else has started the run. To leave the
    /// decisions to others, start the run and follow it with [`Agent::follow`](super::Agent::follow) or
    /// [`Session::follow`](crate::Session::follow).
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
    /// # let model = provider.model();
    /// use omni_agent::agent::{Agent, RunStep};
    ///
    /// let agent = Agent::builder().model(model).start().await?;
    /// let mut running = agent.run("Hi").follow().await?;
    /// while let Some(step) = running.next().await? {
    ///     match step {
    ///         RunStep::Text { new, .. } => print!("{new}"),
    ///         RunStep::Ended(response) => assert_eq!(response.text(), "Hello!"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), omni_agent::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`start`](Self::start).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the returned reader does not cancel the run.
    pub async fn follow(self) -> Result<Running, Error> {
        self.target.follow(ExistingOrNewRun::New(self.spec)).await
    }

    /// Starts the run, waits until it ends, and returns the response: see [`ask`](super::Agent::ask).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`start`](Self::start), and the run's errors as in [`ask`](super::Agent::ask).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn response(mut self) -> Result<Arc<Response>, Error> {
        self.spec.wait = true;
        self.target.response(self.spec).await
    }

    /// Starts the run, and returns the response as a value of a Rust type: see [`ask_as`](super::Agent::ask_as).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`response`](Self::response), and those of [`ask_as`](super::Agent::ask_as).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn value<T: DeserializeOwned + JsonSchema>(mut self) -> Result<T, Error> {
        self.spec.prompt.options.set_output(Some(OutputSchema::of::<T>()));
        self.response().await.and_then(value_of)
    }
}

crate::debug::impl_debug!(RunRequest(self) { spec: self.spec, .. });

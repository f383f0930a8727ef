use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_channel::mpsc::Sender;
use tokio::sync::mpsc;

use super::{
    Agent, AgentCallbacks, AgentCommitItem, BackupModel, CompactionPolicy, Config, Durable,
    HistoryChangeRight, LastStoredRecordNumber, RECORD_DELAY, RequestConcurrencyLimiter, RunEnd, State,
    StateEdit, Status, TurnInFlight, WeakAgent,
    delegation::ParentCall,
    model_spec::{ModelSpec, choose_model},
    state::{RareAgentSettings, check_budget, panicked, refused},
    task::{AgentRecordingState, AgentShared, AgentTask, FixedAgentSettings, OwningSession, SharedBudgets},
};
use crate::{
    budget::{Budget, SharedBudget},
    message::{History, Usage},
    panics::contained_async,
    provider::{Credentials, Options, Registry, RetryPolicy},
    run::{Error, Settings},
    setters::setters,
    store::StoredState,
    subscription::FeedLimits,
    tool::{Extensions, Tool, ToolLimits, ToolSet, ToolSetError},
};

/// The number of commands that an agent's channel can hold: one block of tokio's channel.
const COMMANDS: usize = 32;

/// Configures and starts an [`Agent`].
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let model = ScriptedProvider::new([Step::text("Bonjour !")]).model();
/// use std::time::Duration;
/// use omni_agent::{Agent, Options};
///
/// let agent = Agent::builder()
///     .model(model) // or a name, such as "anthropic:claude-sonnet-4-6"
///     .system("Translate to French.")
///     .options(Options::default().with_temperature(0.2))
///     .max_steps(10)
///     .turn_timeout(Duration::from_secs(120))
///     .start()
///     .await?;
/// assert_eq!(agent.ask("Hello!").await?.text(), "Bonjour !");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing before `start`"]
pub struct AgentBuilder {
    name: Option<Arc<str>>,
    model: Option<ModelSpec>,
    backups: Vec<BackupModel>,
    registry: Option<Registry>,
    settings: Settings,
    tools: Result<ToolSet, ToolSetError>,
    saved: Option<Box<StoredState>>,
    credentials: Vec<Credentials>,
    compaction: Option<CompactionPolicy>,
    extras: Option<Arc<RareAgentSettings>>,
    history: History,
    callbacks: Box<dyn AgentCallbacks>,
    extensions: Extensions,
    tool_limits: ToolLimits,
    retry: Option<RetryPolicy>,
    feed_limits: FeedLimits,
    terminate_timeout: Duration,
    max_staged: u16,
    commit: Option<Sender<AgentCommitItem>>,
    last_run: Option<RunEnd>,
    admission: Option<Arc<dyn RequestConcurrencyLimiter>>,
    hold: Option<Arc<dyn OwningSession>>,
    records: Durable,
    record_delay: Duration,
    in_flight: Option<TurnInFlight>,
}

impl Default for AgentBuilder {
    fn default() -> Self {
        Self {
            name: None,
            model: None,
            backups: Vec::new(),
            registry: None,
            settings: Settings::default(),
            tools: Ok(ToolSet::new()),
            saved: None,
            credentials: Vec::new(),
            compaction: None,
            extras: None,
            history: History::new(),
            callbacks: Box::new(()),
            extensions: Extensions::default(),
            tool_limits: ToolLimits::default(),
            retry: None,
            feed_limits: FeedLimits::default(),
            terminate_timeout: Duration::from_secs(5),
            max_staged: 8,
            commit: None,
            last_run: None,
            admission: None,
            hold: None,
            records: Durable::Turns,
            record_delay: RECORD_DELAY,
            in_flight: None,
        }
    }
}

impl AgentBuilder {
    setters! {
        /// Sets the model: a [`Model`](crate::provider::Model), or a name such as `anthropic:claude-sonnet-4-6`, as a
        /// `&str` or a `String`. Required.
        pub fn model(self, model: impl Into<ModelSpec>) { self.model = Some(model.into()) }

        /// Adds a model that repeats a step after a failure of the models before it: a
        /// [`Model`](crate::provider::Model), a name, or a [`BackupModel`] for certain [causes](super::BackupCause).
        ///
        /// Each repetition counts as a request of the prompt. The model stays in use until the end of the prompt's run,
        /// unless a callback sets another one. If no model is left for the failure,
        /// [`handle_error`](AgentCallbacks::handle_error) is called. While one is left, a delay of more than five seconds
        /// that the service requests is not waited for. After a failure of a provider that declares
        /// [`Replay::Never`](crate::tool::Replay::Never), no backup model is used. The list is not stored. At most 255
        /// models are used.
        ///
        /// ```
        /// # #[cfg(feature = "test-util")]
        /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        /// # use omni_agent::testing::{ScriptedProvider, Step};
        /// # use omni_agent::provider::{ProviderError, ProviderErrorKind};
        /// # let spent = ProviderError::new(ProviderErrorKind::Quota, "no credit is left");
        /// # let model = ScriptedProvider::new([Step::error(spent)]).model();
        /// # let other = ScriptedProvider::new([Step::text("Hello!")]).model();
        /// use omni_agent::agent::{Agent, BackupCause, BackupModel};
        ///
        /// let other = BackupModel::new(other).with_causes([BackupCause::Overload, BackupCause::Outage]);
        /// let agent = Agent::builder().model(model).backup_model(other).start().await?;
        /// assert_eq!(agent.ask("Hi").await?.text(), "Hello!");
        /// # Ok::<(), omni_agent::Error>(())
        /// # })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn backup_model(self, model: impl Into<BackupModel>) { self.backups.push(model.into()) }

        /// Sets the registry that resolves model names, here and in [`Config::set_model`]. The default is
        /// [`Registry::default`].
        pub fn registry(self, registry: Registry) { self.registry = Some(registry) }

        /// Sets the agent's name, which telemetry shows in the span of each run.
        pub fn name(self, name: impl Into<Arc<str>>) { self.name = Some(name.into()) }

        /// Sets the system prompt.
        pub fn system(self, system: impl Into<Arc<str>>) { self.settings.system = Some(system.into()) }

        /// Adds a tool. If it conflicts with another tool, [`start`](Self::start) returns the error.
        pub fn tool(self, tool: impl Tool) { self.tools = self.tools.and_then(|tools| tools.with(tool)) }

        /// Demands an approval for every use of the tool with this name, like [`Tool::needs_approval`]. The name may
        /// also be that of a tool that the service runs itself, if the service asks for decisions.
        ///
        /// The agent pauses with [`Event::Status`](super::Event::Status) and waits for [`Agent::resume`]. The callback
        /// [`handle_tool_use`](AgentCallbacks::handle_tool_use) is asked first. It can reject the use, provide a
        /// result, or approve the use with [`ToolDecision::Approve`](super::ToolDecision::Approve).
        pub fn needs_approval(self, tool: impl Into<String>) {
            RareAgentSettings::edit(&mut self.extras).approvals.insert(tool.into());
        }

        /// Sets the tools and replaces those added before.
        pub fn tools(self, tools: ToolSet) { self.tools = Ok(tools) }

        /// Sets the options of requests.
        ///
        /// When a stored session is opened, the given options replace all stored options. Options that set nothing
        /// except an API key and headers do not replace the stored options but are added to them. The API key and
        /// headers belong to the provider of the model that the agent starts with. To name their provider explicitly,
        /// use [`credentials`](Self::credentials).
        pub fn options(self, options: Options) { self.settings.options = options }
    }

    /// Sets an API key and headers for the requests to one provider. They replace a key and headers that were given
    /// earlier for the same provider, and they are never saved. No other provider gets them, even if another model is
    /// chosen later.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials.retain(|given| given.provider() != credentials.provider());
        self.credentials.push(credentials);
        self
    }

    setters! {
        /// Sets the maximum number of requests that one prompt may cause. The number includes continuations, retries by
        /// `handle_error`, repetitions with backup models, and responses that are requested again because they do not
        /// match the output schema. Attempts that the retry policy repeats before a response begins do not count.
        pub fn max_steps(self, max_steps: u32) { self.settings.max_steps = Some(max_steps) }

        /// Makes the agent compact long conversations. The setting is not stored. Without it, a request that is too long
        /// for the model fails.
        pub fn compaction(self, policy: CompactionPolicy) { self.compaction = Some(policy) }

        /// Sets the maximum duration of one turn. The time during which the agent is paused does not count.
        ///
        /// If a turn takes longer, it fails with [`Failure::TimeLimit`](super::Failure::TimeLimit). If
        /// [`handle_error`](AgentCallbacks::handle_error) then retries the step, the time starts again from zero.
        pub fn turn_timeout(self, limit: Duration) { self.settings.turn_timeout = Some(limit) }

        /// Sets the budget of each prompt and everything that its run causes.
        /// [`Prompt::with_budget`](crate::Prompt::with_budget) replaces it for one prompt.
        ///
        /// Before each request, the size of its prompt and an expected output are reserved. If this exceeds a limit,
        /// the request fails with [`Failure::Budget`](super::Failure::Budget) and is not sent. Requests are never
        /// exceeded, apart from attempts of the retry policy. Tokens and money can be exceeded by the difference
        /// between the real and the reserved use of the requests in flight. A limit in money needs a known price.
        pub fn budget(self, budget: Budget) { RareAgentSettings::edit(&mut self.extras).budget = Some(budget) }

        /// Adds a budget that other agents share. An agent can have several.
        pub fn shared_budget(self, budget: &SharedBudget) {
            let mut all = self.extensions.get::<SharedBudgets>().cloned().unwrap_or_default();
            all.0.push(budget.clone());
            self.extensions = self.extensions.with(all);
        }

        /// Sets the history that the agent starts with. [`History::check`] states which histories are valid.
        pub fn history(self, history: History) { self.history = history }
    }

    /// Returns the name of the model, if one is set.
    #[cfg(feature = "web")]
    pub(crate) fn model_name(&self) -> Option<String> {
        self.model.as_ref().map(ModelSpec::name)
    }

    /// Returns the history that was given to the builder.
    pub(crate) fn given_history(&self) -> &History {
        &self.history
    }

    setters! {
        /// Restores the configuration of a stored conversation.
        ///
        /// The saved model is used if its name can be resolved. Otherwise the model given to the builder is used
        /// instead, and its [`Model::fallback_for`](crate::provider::Model::fallback_for) returns the saved name. If
        /// the given model has the saved name, the given model is used without a lookup. The saved system prompt and
        /// each saved limit apply if the builder does not set them. [`options`](Self::options) states when the saved
        /// options apply. The order of the calls does not matter.
        pub(crate) fn restore(self, saved: StoredState) { self.saved = Some(Box::new(saved)) }

        /// Sets the application's callbacks.
        pub fn callbacks(self, callbacks: impl AgentCallbacks) { self.callbacks = Box::new(callbacks) }
    }

    /// Adds a value that callbacks and tools can look up by its type. The agent's own [`WeakAgent`] is always present.
    pub fn extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions = self.extensions.with(value);
        self
    }

    setters! {
        /// Sets the time limits of a tool call and the maximum size of its output.
        pub fn tool_limits(self, limits: ToolLimits) { self.tool_limits = limits }

        /// Sets when and how often failed requests are retried, for every model. If unset, the [model's
        /// policy](crate::provider::Model::with_retry_policy) applies.
        /// [`Options::max_retries`](crate::provider::Options::max_retries) takes precedence over the number of retries
        /// in the policy.
        pub fn retry_policy(self, policy: RetryPolicy) { self.retry = Some(policy) }

        /// Sets how many events are buffered for subscribers.
        pub fn feed_limits(self, limits: FeedLimits) { self.feed_limits = limits }

        /// Sets how long the agent waits for `terminate` and for aborted tools when it ends without a deadline, such as
        /// after its last handle was dropped. The default is five seconds.
        pub fn terminate_timeout(self, limit: Duration) { self.terminate_timeout = limit }

        /// Sets the number of prompts that may be staged at the same time. The default is 8. If the queue is full,
        /// [`prompt`](Agent::prompt) fails with [`ErrorKind::QueueFull`](crate::ErrorKind::QueueFull).
        pub fn max_staged(self, max_staged: u16) { self.max_staged = max_staged }
    }

    /// Sets the channel that receives every event and every record, in order. While the channel is full, the agent
    /// waits, but it still serves all operations. If the receiver is dropped, the agent ends at the next event, and its
    /// turn stays in flight.
    pub(crate) fn commit_channel(mut self, sender: Sender<AgentCommitItem>) -> Self {
        self.commit = Some(sender);
        self
    }

    setters! {
        /// Sets the object that decides when each request may be sent. Agents that share a limit share this object.
        pub(crate) fn admission(self, admission: Arc<dyn RequestConcurrencyLimiter>) { self.admission = Some(admission) }

        /// Sets the session that owns the agent. It decides about each prompt whether the agent may accept it.
        pub(crate) fn hold(self, hold: Arc<dyn OwningSession>) { self.hold = Some(hold) }

        /// Sets the end of the conversation's last run. An earlier agent of the conversation has performed this run.
        pub(crate) fn last_run(self, end: Option<RunEnd>) { self.last_run = end }

        /// Sets which states of the turn in flight the agent records for the owner of its history, who reports with
        /// [`HistoryChangeRight::written`] that a record is stored.
        pub(crate) fn records(self, level: Durable) { self.records = level }

        /// Sets the delay of records for which nothing waits.
        pub(crate) fn record_delay(self, delay: Duration) { self.record_delay = delay }

        /// Sets the turn in flight with which the agent starts. The agent is then busy, and waits for
        /// [`HistoryChangeRight::take_up`].
        pub(crate) fn in_flight(self, turn: TurnInFlight) { self.in_flight = Some(turn) }
    }

    /// Starts the agent on the current tokio runtime, after `init` has returned.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) or [`ErrorKind::UnknownModel`](crate::ErrorKind::UnknownModel)
    ///   if the model is missing, or if it or a backup model is unknown.
    /// - [`ErrorKind::Config`](crate::ErrorKind::Config) if tools conflict.
    /// - [`ErrorKind::InvalidSettings`](crate::ErrorKind::InvalidSettings) or
    ///   [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is invalid.
    /// - [`ErrorKind::InvalidBudget`](crate::ErrorKind::InvalidBudget) if a limit of a budget is invalid.
    /// - [`ErrorKind::Callback`](crate::ErrorKind::Callback) if `init` fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready starts nothing.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn start(self) -> Result<Agent, Error> {
        self.launch(false, None).await
    }

    /// Starts the agent and returns the owner of its history. At first, the history is the one given to the builder.
    /// Afterwards it changes only when the owner changes it or the agent commits a turn.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`start`](Self::start), and [`ErrorKind::Config`](crate::ErrorKind::Config) if `init`
    /// changes the history.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready starts nothing.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub(crate) async fn start_owned(self) -> Result<(Agent, HistoryChangeRight), Error> {
        let is_recorded = self.records > Durable::Turns || self.in_flight.is_some();
        let written = is_recorded.then(Arc::<LastStoredRecordNumber>::default);
        let agent = self.launch(true, written.clone()).await?;
        let owner = HistoryChangeRight::new(agent.downgrade(), written);
        Ok((agent, owner))
    }

    async fn launch(self, owned: bool, written: Option<Arc<LastStoredRecordNumber>>) -> Result<Agent, Error> {
        let saved = self.saved.map_or_else(StoredState::default, |saved| *saved);
        let registry = self.registry.as_ref();
        let model = choose_model(self.model, saved.model, registry)?;
        let backups = self.backups.into_iter().map(|backup| backup.resolve(registry, &model));
        let backups = backups.collect::<Result<_, _>>()?;
        let is_sub_agent = self.extensions.get::<Arc<ParentCall>>().is_some();
        let compactor = self.compaction.map(|policy| policy.resolved(registry, &model, !is_sub_agent));
        let compactor = compactor.transpose()?;
        let mut config = Config {
            model,
            settings: choose_settings(self.settings, saved.settings),
            tools: self.tools?,
            registry: self.registry,
            extras: self.extras,
        };
        config.set_backups(backups);
        config.set_compactor(compactor);
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let shared = Arc::new(AgentShared::default());
        let agent = Agent { commands, shared };
        let weak = agent.downgrade();
        let extensions = self.extensions.with(weak.clone());
        let shared_budgets = extensions.get::<SharedBudgets>().into_iter().flat_map(|all| &all.0);
        shared_budgets.map(|shared| Some(shared.budget())).try_for_each(check_budget)?;

        let given = self.history.clone();
        let mut draft = StateEdit { config, history: self.history };
        draft.check(&History::new())?;
        let mut callbacks = self.callbacks;
        init(&mut *callbacks, &mut draft, &extensions, &weak).await?;
        draft.check(&History::new())?;
        if owned {
            draft.keep_history(&given)?;
        }

        let setup = FixedAgentSettings {
            name: self.name,
            extensions,
            tool_limits: self.tool_limits,
            retry: self.retry,
            feed_limits: self.feed_limits,
            terminate_timeout: self.terminate_timeout,
            max_staged: self.max_staged,
            credentials: self.credentials,
            owned,
            admission: self.admission,
            hold: self.hold,
        };
        let (core, facts) = self.in_flight.map(|turn| turn.start(&draft.config)).unzip();
        let mut task =
            AgentTask::new(draft.history, draft.config, setup, weak, Arc::clone(&agent.shared), self.commit);
        if let Some(written) = written {
            task.keep_records(
                AgentRecordingState::new(self.records, self.record_delay, written, facts),
                core,
            );
        }
        task.set_last_run(self.last_run);
        agent.shared.started.store(true, Ordering::Release);
        tokio::spawn(Box::new(task).run(callbacks, receiver));
        Ok(agent)
    }
}

/// Returns the settings to start with: each given setting or, if it is not given, the saved one. If only an API key and
/// headers are given, they are added to the saved options, because they are never saved.
fn choose_settings(given: Settings, saved: Settings) -> Settings {
    let adds_secrets = given.options.has_secrets_alone();
    Settings {
        system: given.system.or(saved.system),
        options: if adds_secrets { saved.options.overlaid(&given.options) } else { given.options },
        max_steps: given.max_steps.or(saved.max_steps),
        turn_timeout: given.turn_timeout.or(saved.turn_timeout),
        omitted: saved.omitted,
    }
}

async fn init(
    callbacks: &mut dyn AgentCallbacks,
    draft: &mut StateEdit,
    extensions: &Extensions,
    weak: &WeakAgent,
) -> Result<(), Error> {
    let state = State {
        config: Arc::new(draft.config.clone()),
        history: draft.history.clone(),
        status: Status::Idle,
        step: 0,
        usage: Usage::default(),
        turn: None,
        extensions: extensions.clone(),
        agent: weak.clone(),
    };
    match contained_async(async { callbacks.init(draft, &state).await }).await {
        Ok(done) => done.map_err(refused),
        Err(message) => Err(panicked("init", &message)),
    }
}

crate::debug::impl_debug!(AgentBuilder(self) { model: self.model, tools: self.tools, .. });

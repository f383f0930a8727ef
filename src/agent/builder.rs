use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_sink::Sink;
use futures_util::SinkExt;
use tokio::sync::mpsc;

use super::{
    Admission, Agent, AgentCallbacks, AgentError, Config, Delivery, HistoryOwner, SavedConfig, State,
    StateEdit, Status, WeakAgent,
    model_spec::{ModelSpec, choose_model},
    task::{AgentShared, Hold, Outlet, Setup, Task},
};
use crate::{
    message::History,
    provider::{Credentials, Options, Registry, RetryPolicy},
    subscription::FeedLimits,
    tool::{Extensions, Tool, ToolLimits, ToolSet, ToolSetError, panic_message},
};

/// Commands that may wait in an agent's channel: one block of tokio's.
const COMMANDS: usize = 32;

/// Builds an [`Agent`].
#[must_use = "a builder does nothing before `start`"]
pub struct AgentBuilder {
    model: Option<ModelSpec>,
    registry: Option<Registry>,
    system: Option<Arc<str>>,
    tools: Result<ToolSet, ToolSetError>,
    options: Option<Options>,
    saved: Option<Box<SavedConfig>>,
    credentials: Vec<Credentials>,
    max_steps: Option<u32>,
    turn_timeout: Option<Duration>,
    history: History,
    callbacks: Box<dyn AgentCallbacks>,
    extensions: Extensions,
    tool_limits: ToolLimits,
    retry: Option<Box<RetryPolicy>>,
    feed_limits: FeedLimits,
    terminate_timeout: Duration,
    commit: Option<Outlet>,
    admission: Option<Arc<dyn Admission>>,
    hold: Option<Arc<dyn Hold>>,
}

impl Default for AgentBuilder {
    fn default() -> Self {
        Self {
            model: None,
            registry: None,
            system: None,
            tools: Ok(ToolSet::new()),
            options: None,
            saved: None,
            credentials: Vec::new(),
            max_steps: None,
            turn_timeout: None,
            history: History::new(),
            callbacks: Box::new(()),
            extensions: Extensions::default(),
            tool_limits: ToolLimits::default(),
            retry: None,
            feed_limits: FeedLimits::default(),
            terminate_timeout: Duration::from_secs(5),
            commit: None,
            admission: None,
            hold: None,
        }
    }
}

impl AgentBuilder {
    /// The model: a [`Model`](crate::provider::Model), or a name like `anthropic:claude-sonnet-4-6`. Required.
    pub fn model(mut self, model: impl Into<ModelSpec>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The registry that resolves names of models, here and in [`Config::set_model`]. [`Registry::default`] if unset.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// The system prompt.
    pub fn system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// Adds a tool. One that can't be with the others is reported by [`start`](Self::start).
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools = self.tools.and_then(|tools| tools.with(tool));
        self
    }

    /// The tools, in place of those added before.
    pub fn tools(mut self, tools: ToolSet) -> Self {
        self.tools = Ok(tools);
        self
    }

    /// How to answer. Options that set something replace those of a [restored](Self::restore) configuration as a whole. A
    /// key and headers do not count for that: they are added to whichever options apply, and belong to the provider of
    /// the model that the agent starts with. [`credentials`](Self::credentials) name their provider.
    pub fn options(mut self, options: Options) -> Self {
        self.options = Some(options);
        self
    }

    /// An API key and headers for the requests to one provider, in place of those given for that provider before. They
    /// are never saved, and no other provider gets them, whichever model is chosen later.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials.retain(|given| given.provider() != credentials.provider());
        self.credentials.push(credentials);
        self
    }

    /// The most requests that one prompt may cause, continuations, retries by `handle_error` and answers that are asked
    /// for again included.
    /// What a provider repeats unseen, before an answer began, is not counted.
    pub fn max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = Some(max_steps);
        self
    }

    /// The longest that one turn may take, not counting the time that it is paused. Then it ends as
    /// [`Failure::TimeLimit`](super::Failure::TimeLimit), unless
    /// [`handle_error`](AgentCallbacks::handle_error) has the step repeated, which gets as long again.
    pub fn turn_timeout(mut self, limit: Duration) -> Self {
        self.turn_timeout = Some(limit);
        self
    }

    /// A history to begin with; see [`History::check`] for what is accepted.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// The history that the builder was given.
    pub fn given_history(&self) -> &History {
        &self.history
    }

    /// Restores a configuration that was [saved](super::Config::saved) earlier. The saved model wins if its name can be
    /// resolved. If not, the model given to the builder is used in its place, and
    /// [`Model::fallback_for`](crate::provider::Model::fallback_for) names the saved one. A given model of the same name is used as it is. The system prompt, the options and
    /// the limits apply where the builder is given none, before or after.
    pub fn restore(mut self, saved: SavedConfig) -> Self {
        self.saved = Some(Box::new(saved));
        self
    }

    /// The application's callbacks.
    pub fn callbacks(mut self, callbacks: impl AgentCallbacks) -> Self {
        self.callbacks = Box::new(callbacks);
        self
    }

    /// Puts a value beside the conversation, where callbacks and tools find it by its type. The agent's own
    /// [`WeakAgent`] is there already.
    pub fn extension<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.extensions = self.extensions.with(value);
        self
    }

    /// What a tool call may take: time and output.
    pub fn tool_limits(mut self, limits: ToolLimits) -> Self {
        self.tool_limits = limits;
        self
    }

    /// Sets when and how often failed requests are retried, whichever model is in use. If unset, the
    /// [model's policy](crate::provider::Model::with_retry_policy) applies.
    /// [`Options::max_retries`](crate::provider::OptionFields::max_retries) takes precedence over the number in the policy.
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(Box::new(policy));
        self
    }

    /// What is kept for subscribers.
    pub fn feed_limits(mut self, limits: FeedLimits) -> Self {
        self.feed_limits = limits;
        self
    }

    /// The time limit of the end if no deadline is given, which is so when the last handle is dropped. Five seconds if
    /// unset. The end waits that long for `terminate` and for aborted tools.
    pub fn terminate_timeout(mut self, limit: Duration) -> Self {
        self.terminate_timeout = limit;
        self
    }

    /// A channel that gets every event, in order: a bounded one, such as that of `futures-channel`, or tokio's as a
    /// `PollSender`. The agent waits for its room, and answers all operations meanwhile. If the receiver is dropped, the
    /// agent goes on without it.
    pub fn commit_channel<S>(mut self, sink: S) -> Self
    where
        S: Sink<Delivery> + Send + 'static,
    {
        self.commit = Some(Box::pin(sink.sink_map_err(drop)));
        self
    }

    /// Decides when each request may be sent, where many agents share a limit.
    pub fn admission(mut self, admission: Arc<dyn Admission>) -> Self {
        self.admission = Some(admission);
        self
    }

    /// Sets what is asked before a prompt is taken.
    pub(crate) fn hold(mut self, hold: Arc<dyn Hold>) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Starts the agent on the current tokio runtime, after `init` has run.
    ///
    /// # Errors
    ///
    /// No model or an unknown one, tools that can't be together, an unusable output schema, an invalid history
    /// or limit, and what `init` returned.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start(self) -> Result<Agent, AgentError> {
        self.launch(false).await
    }

    /// Starts the agent with its history, which is the builder's to begin with, in the hands of the owner that
    /// comes with it: nobody else changes it but the agent itself, by committing turns.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and [`AgentError::HistoryOwned`] if `init` changes the history.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn start_owned(self) -> Result<(Agent, HistoryOwner), AgentError> {
        let agent = self.launch(true).await?;
        let owner = HistoryOwner::new(agent.downgrade());
        Ok((agent, owner))
    }

    async fn launch(self, owned: bool) -> Result<Agent, AgentError> {
        let saved = self.saved.map_or_else(SavedConfig::default, |saved| *saved);
        let config = Config {
            model: choose_model(self.model, saved.model, self.registry.as_ref())?,
            registry: self.registry,
            system: self.system.or(saved.system),
            tools: self.tools?,
            options: choose_options(self.options, saved.options),
            max_steps: self.max_steps.or(saved.max_steps),
            turn_timeout: self.turn_timeout.or(saved.turn_timeout),
        };
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let shared = Arc::new(AgentShared::default());
        let agent = Agent { commands, shared };
        let weak = agent.downgrade();
        let extensions = self.extensions.with(weak.clone());

        let given = self.history.clone();
        let mut draft = StateEdit { config, history: self.history };
        draft.check(&History::new())?;
        let mut callbacks = self.callbacks;
        init(&mut *callbacks, &mut draft, &extensions, &weak).await?;
        draft.check(&History::new())?;
        if owned {
            draft.keep_history(&given)?;
        }

        let setup = Setup {
            extensions,
            tool_limits: self.tool_limits,
            retry: self.retry,
            feed_limits: self.feed_limits,
            terminate_timeout: self.terminate_timeout,
            credentials: self.credentials.into(),
            owned,
            admission: self.admission,
            hold: self.hold,
        };
        let task =
            Task::new(draft.history, draft.config, setup, weak, Arc::clone(&agent.shared), self.commit);
        agent.shared.started.store(true, Ordering::Release);
        tokio::spawn(task.run(callbacks, receiver));
        Ok(agent)
    }
}

/// The options to start with. A key and headers do not decide which side wins, since they are never saved.
fn choose_options(given: Option<Options>, saved: Options) -> Options {
    match given {
        Some(given) if given.has_secrets_alone() => saved.overlaid(&given),
        Some(given) => given,
        None => saved,
    }
}

async fn init(
    callbacks: &mut dyn AgentCallbacks,
    draft: &mut StateEdit,
    extensions: &Extensions,
    weak: &WeakAgent,
) -> Result<(), AgentError> {
    use futures_util::FutureExt;

    let state = State {
        config: Arc::new(draft.config.clone()),
        history: draft.history.clone(),
        status: Status::Idle,
        step: 0,
        extensions: extensions.clone(),
        agent: weak.clone(),
    };
    let init = std::panic::AssertUnwindSafe(async { callbacks.init(draft, &state).await });
    match init.catch_unwind().await {
        Ok(done) => done.map_err(AgentError::refused),
        Err(panic) => Err(AgentError::Panicked("init", panic_message(panic))),
    }
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("model", &self.model)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

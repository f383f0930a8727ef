use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{AgentError, Status, WeakAgent, model_spec::ModelSpec};
use crate::{
    message::{Blocks, Content, History},
    provider::{Model, Options, Registry},
    tool::{Extensions, ToolDeclaration, ToolSet},
};

/// An agent's configuration. Cheap enough to copy: what is large in it is shared.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The model, with the provider that serves it.
    pub model: Model,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The tools on offer.
    pub tools: ToolSet,
    /// How to answer. A key and headers in it are for the provider of the model that is in force when they are set:
    /// after a change to another provider's model they are not sent, unless they are set anew.
    pub options: Options,
    /// The most requests that one prompt may cause, continuations and retries included. A change holds for the
    /// run in flight too, unless its prompt brought a limit of its own.
    pub max_steps: Option<u32>,
    /// The longest that one turn may take. A change holds from the next turn on, and for a step
    /// that is repeated after the limit.
    pub turn_timeout: Option<Duration>,
    /// The agent's, for names of models; the default one if unset.
    pub(crate) registry: Option<Registry>,
}

impl Config {
    /// Switches the model. Accepts a [`Model`], or a name such as `anthropic:claude-sonnet-4-6`. The agent's registry resolves the name.
    /// If the registry does not have the provider, the provider in use is taken if it has that name.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use omni_agent::agent::{Agent, AgentError};
    /// use omni_agent::testing::ScriptedProvider;
    ///
    /// let agent = Agent::builder().model(ScriptedProvider::new([]).model()).start().await?;
    /// agent.set_state(|draft| Ok(draft.config.set_model("test:other")?)).await?;
    /// assert_eq!(agent.state().await?.config().model.name(), "test:other");
    ///
    /// let unknown = agent.set_state(|draft| Ok(draft.config.set_model("nobody:other")?)).await;
    /// assert!(matches!(unknown, Err(AgentError::Model(_))));
    /// # Ok::<(), AgentError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AgentError::Model`] if the name can't be resolved; the model stays as it is. A closure of
    /// [`set_state`](super::Agent::set_state) and `init` may return the error with `?`, and the operation fails with it.
    #[doc(alias = "switch model")]
    pub fn set_model(&mut self, model: impl Into<ModelSpec>) -> Result<(), AgentError> {
        self.model = model.into().resolve(self.registry.as_ref(), &self.model)?;
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), AgentError> {
        check(self.max_steps, self.turn_timeout, &self.options)
    }

    /// The part of the configuration that can be saved, without keys and headers. [`AgentBuilder::restore`] takes it.
    ///
    /// [`AgentBuilder::restore`]: super::AgentBuilder::restore
    pub fn saved(&self) -> SavedConfig {
        SavedConfig {
            model: Some(self.model.saved_name().to_owned()),
            system: self.system.clone(),
            options: self.options.clone().without_secrets(),
            max_steps: self.max_steps,
            turn_timeout: self.turn_timeout,
        }
    }

    /// Whether the parts of both that can be saved are the same.
    pub(crate) fn saves_as(&self, other: &Self) -> bool {
        self.model.saved_name() == other.model.saved_name()
            && self.system == other.system
            && (self.max_steps, self.turn_timeout) == (other.max_steps, other.turn_timeout)
            && (self.options == other.options
                || self.options.clone().without_secrets() == other.options.clone().without_secrets())
    }

    pub(crate) fn view(&self, history: History) -> StateView {
        StateView {
            model: self.model.name().to_owned(),
            fallback_for: self.model.fallback_for().map(str::to_owned),
            system: self.system.clone(),
            tools: self.tools.declarations(),
            options: self.options.clone(),
            max_steps: self.max_steps,
            turn_timeout: self.turn_timeout,
            history,
        }
    }
}

/// The part of a [`Config`] that can be saved: all but the tools, the API key and the headers.
///
/// [`Config::saved`] makes it, and [`AgentBuilder::restore`](super::AgentBuilder::restore) takes it up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SavedConfig {
    /// The model's full name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Arc<str>>,
    /// How to answer.
    #[serde(skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The most requests that one prompt may cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The longest that one turn may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
}

impl SavedConfig {
    /// The same configuration with this model's full name.
    pub fn with_model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// The same configuration with this system prompt.
    pub fn with_system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// The same configuration with these options.
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }
}

fn check(
    max_steps: Option<u32>,
    turn_timeout: Option<Duration>,
    options: &Options,
) -> Result<(), AgentError> {
    if max_steps == Some(0) {
        return Err(AgentError::ZeroSteps);
    }
    if turn_timeout == Some(Duration::ZERO) {
        return Err(AgentError::ZeroTimeout);
    }
    match options.output.as_ref().and_then(|output| output.schema.error()) {
        Some(error) => Err(AgentError::InvalidOutputSchema(error.clone())),
        None => Ok(()),
    }
}

/// The state as callbacks see it: the configuration, which they may edit, and the rest, which they may read.
///
/// The edits apply when the callback returns, from the next request on, and fire no event; what is invalid
/// fails the run. A callback that is cancelled or panics changes nothing.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) config: Arc<Config>,
    pub(crate) history: History,
    pub(crate) status: Status,
    pub(crate) step: u32,
    pub(crate) extensions: Extensions,
    pub(crate) agent: WeakAgent,
}

impl State {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The configuration, to edit.
    pub fn config_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    /// The committed history.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What the agent is doing.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Requests made since the last prompt was taken.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// What the application put beside the conversation.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The agent itself, held weakly.
    pub fn agent(&self) -> &WeakAgent {
        &self.agent
    }
}

/// A copy of the configuration and the history, to edit in `init` and `set_state`. It is checked and takes
/// effect as a whole, or not at all.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StateEdit {
    /// The configuration.
    pub config: Config,
    /// The history; see [`History::check`] for what is accepted.
    pub history: History,
}

impl StateEdit {
    /// Refuses another history than `before`, which is for its owner to change.
    pub(crate) fn keep_history(&mut self, before: &History) -> Result<(), AgentError> {
        if !self.history.same(before) {
            if self.history != *before {
                return Err(AgentError::HistoryOwned);
            }
            // Equal, but perhaps of other messages than the owner's.
            self.history = before.clone();
        }
        Ok(())
    }

    pub(crate) fn check(&self, before: &History) -> Result<(), AgentError> {
        self.config.check()?;
        if !self.history.same(before) {
            self.history.check()?;
        }
        Ok(())
    }
}

/// The configuration and the history as data, for events, stores and the wire. Without keys and headers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StateView {
    /// The model's full name.
    pub model: String,
    /// The saved model's name, if it could not be resolved and `model` is used in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_for: Option<String>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Arc<str>>,
    /// The tools, as the model sees them.
    pub tools: Vec<ToolDeclaration>,
    /// How to answer.
    pub options: Options,
    /// The most requests that one prompt may cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The longest that one turn may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
    /// The committed history.
    pub history: History,
}

impl StateView {
    /// Approximate size in bytes. O(n).
    pub(crate) fn weight(&self) -> usize {
        self.system.as_ref().map_or(0, |system| system.len())
            + self.tools.iter().map(|tool| 64 + tool.name.len() + tool.description.len()).sum::<usize>()
            + self.history.iter().map(|message| message.weight()).sum::<usize>()
    }
}

/// A message to an agent, with settings for the run that it begins.
///
/// The settings take the place of the agent's, one by one, for this prompt only.
///
/// ```
/// use omni_agent::agent::Prompt;
/// use omni_agent::provider::Options;
///
/// let prompt = Prompt::new("Research this thoroughly.")
///     .with_max_steps(50)
///     .with_options(Options::default().with_temperature(0.2));
/// assert_eq!(prompt.max_steps, Some(50));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Prompt {
    /// The content of the message.
    pub content: Blocks,
    /// The model, in place of the agent's. If a callback sets the agent's model during the run, that one is used from the
    /// next request on. Never serialised.
    #[serde(skip)]
    pub model: Option<Model>,
    /// Laid over the agent's options. A key and headers in it are for the provider of the model in force when the prompt
    /// is taken up, and go to no other.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The limit of requests, in place of the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The time limit of each turn, in place of the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
}

impl Prompt {
    /// A prompt with the agent's own settings.
    pub fn new(content: impl Into<Blocks>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }

    /// The same prompt for this model.
    pub fn with_model(mut self, model: Model) -> Self {
        self.model = Some(model);
        self
    }

    /// The same prompt with these options laid over the agent's.
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The same prompt with its own limit of requests.
    pub fn with_max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = Some(max_steps);
        self
    }

    /// The same prompt with its own time limit for each of its turns.
    pub fn with_turn_timeout(mut self, limit: Duration) -> Self {
        self.turn_timeout = Some(limit);
        self
    }

    pub(crate) fn check(&self) -> Result<(), AgentError> {
        check(self.max_steps, self.turn_timeout, &self.options)
    }

    pub(crate) fn weight(&self) -> usize {
        self.content.0.iter().map(Content::weight).sum()
    }

    /// Whether the prompt has settings of its own.
    pub(crate) fn has_settings(&self) -> bool {
        self.model.is_some()
            || !self.options.is_empty()
            || self.max_steps.is_some()
            || self.turn_timeout.is_some()
    }

    /// The settings alone.
    pub(crate) fn without_content(self) -> Self {
        Self { content: Blocks::default(), ..self }
    }

    /// The settings alone, without a key and headers.
    pub(crate) fn settings(&self) -> Self {
        let options = self.options.clone().without_secrets();
        Self { options, ..self.clone().without_content() }
    }

    /// These settings, each replaced by that of `over` where it has one. The content is that of `over`.
    pub(crate) fn overlaid(&self, over: Self) -> Self {
        Self {
            content: over.content,
            model: over.model.or_else(|| self.model.clone()),
            options: self.options.overlaid(&over.options),
            max_steps: over.max_steps.or(self.max_steps),
            turn_timeout: over.turn_timeout.or(self.turn_timeout),
        }
    }
}

impl<T: Into<Blocks>> From<T> for Prompt {
    fn from(content: T) -> Self {
        Self::new(content)
    }
}

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{
    Next, Prompt, ResolvedCompactionPolicy, Status, WeakAgent, backup::ResolvedBackupModel,
    model_spec::ModelSpec,
};
use crate::{
    budget::Budget,
    json::is_shallow,
    message::{Content, History, TurnId, Usage},
    provider::{Fold, Model, Options, Registry, RegistryError},
    run::{Error, ErrorKind, MAX_ID, Settings},
    store::StoredState,
    tool::{Extensions, ToolDeclaration, ToolSet},
};

/// The configuration of an agent: its model, system prompt, tools, options and limits.
///
/// A copy is cheap, because the large parts are shared. To change the configuration, use
/// [`Agent::set_state`](super::Agent::set_state) between runs, or [`State::config_mut`] in a callback. The
/// [`agent`](super#types-that-hold-state) page compares the types that hold state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The model, with the provider that serves it. To switch the model by name, call [`set_model`](Self::set_model).
    pub model: Model,
    /// The system prompt, the options and the limits.
    pub settings: Settings,
    /// The tools that the model can use.
    pub tools: ToolSet,
    /// The registry that resolves names of models. The default registry is used if this is `None`.
    pub(crate) registry: Option<Registry>,
    /// The parts that few agents have.
    pub(crate) extras: Option<Arc<RareAgentSettings>>,
}

/// The parts of a configuration that few agents have.
#[derive(Clone, Debug, Default)]
pub(crate) struct RareAgentSettings {
    /// The names of the tools whose uses need an approval, in addition to the tools that declare it themselves.
    pub(crate) approvals: BTreeSet<String>,
    /// The budget of each prompt.
    pub(crate) budget: Option<Budget>,
    /// The backup models, in order. They are not stored.
    pub(crate) backups: Arc<[ResolvedBackupModel]>,
    /// How long conversations are compacted, if they are. Not stored.
    pub(crate) compaction: Option<Arc<ResolvedCompactionPolicy>>,
}

impl RareAgentSettings {
    /// Returns the parts to change them.
    pub(crate) fn edit(extras: &mut Option<Arc<Self>>) -> &mut Self {
        Arc::make_mut(extras.get_or_insert_default())
    }
}

impl Config {
    /// Switches the model. Accepts a [`Model`], or a name such as `anthropic:claude-sonnet-4-6`.
    ///
    /// The agent's registry resolves the name. If the registry does not contain the provider in the name, but the
    /// provider in use has this name, the provider in use serves the model.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use omni_agent::{Agent, ErrorKind};
    /// use omni_agent::testing::ScriptedProvider;
    ///
    /// let agent = Agent::builder().model(ScriptedProvider::new([]).model()).start().await?;
    /// agent.set_state(|draft| Ok(draft.config.set_model("test:other")?)).await?;
    /// assert_eq!(agent.state().await?.config().model.name(), "test:other");
    ///
    /// let unknown = agent.set_state(|draft| Ok(draft.config.set_model("nobody:other")?)).await;
    /// assert_eq!(unknown.unwrap_err().kind(), ErrorKind::UnknownModel);
    /// # Ok::<(), omni_agent::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::UnknownModel`] if the name cannot be resolved. The model then remains unchanged. A closure
    /// of [`set_state`](super::Agent::set_state) and `init` may return the error with `?`. The operation then fails
    /// with this error.
    #[doc(alias = "switch model")]
    pub fn set_model(&mut self, model: impl Into<ModelSpec>) -> Result<(), Error> {
        self.model = model.into().resolve(self.registry.as_ref(), &self.model)?;
        Ok(())
    }

    /// Demands an approval for every use of the tool with this name. The tool may also be one that the service runs
    /// itself, if the service asks for decisions.
    pub fn require_approval(&mut self, tool: impl Into<String>) {
        RareAgentSettings::edit(&mut self.extras).approvals.insert(tool.into());
    }

    /// Sets the budget of each prompt and everything that its run causes. A change by a callback also applies to the
    /// run in flight from the next request on, even if the run's prompt has a budget. A limit that is negative or not
    /// finite is [`ErrorKind::InvalidBudget`]. The budget is not stored.
    pub fn set_budget(&mut self, budget: Budget) {
        RareAgentSettings::edit(&mut self.extras).budget = Some(budget);
    }

    /// Returns the budget of each prompt, if one is set.
    pub fn budget(&self) -> Option<Budget> {
        self.extras.as_ref()?.budget
    }

    /// Sets the backup models.
    pub(crate) fn set_backups(&mut self, backups: Arc<[ResolvedBackupModel]>) {
        if !backups.is_empty() {
            RareAgentSettings::edit(&mut self.extras).backups = backups;
        }
    }

    /// Returns the backup models.
    pub(crate) fn backups(&self) -> &[ResolvedBackupModel] {
        self.extras.as_ref().map_or(&[], |extras| &extras.backups)
    }

    /// Sets how long conversations are compacted.
    pub(crate) fn set_compactor(&mut self, compactor: Option<ResolvedCompactionPolicy>) {
        if let Some(compactor) = compactor {
            RareAgentSettings::edit(&mut self.extras).compaction = Some(Arc::new(compactor));
        }
    }

    /// Returns how long conversations are compacted, if they are.
    pub(crate) fn compactor(&self) -> Option<&ResolvedCompactionPolicy> {
        self.extras.as_ref()?.compaction.as_deref()
    }

    /// Returns whether uses of the tool with this name need an approval, either because the tool declares it or because
    /// [`require_approval`](Self::require_approval) was called.
    pub fn requires_approval(&self, tool: &str) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.approvals.contains(tool))
            || self.tools.requires_approval(tool)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let Settings { options, max_steps, turn_timeout, .. } = &self.settings;
        check_budget(self.budget())?;
        check(*max_steps, *turn_timeout, options)
    }

    fn declarations(&self) -> Vec<ToolDeclaration> {
        let mut tools = self.tools.declarations();
        for tool in &mut tools {
            tool.requires_approval = self.requires_approval(&tool.name);
        }
        tools
    }

    pub(crate) fn view(&self, history: History) -> StateView {
        StateView {
            model: self.model.name().to_owned(),
            fallback_for: self.model.fallback_for().map(str::to_owned),
            settings: self.settings.clone(),
            tools: self.declarations(),
            history,
        }
    }
}

impl Config {
    /// Returns whether the stored state contains this configuration.
    pub(crate) fn is_stored_as(&self, state: &StoredState) -> bool {
        let options = self.settings.options.clone().without_secrets();
        state.model.as_deref() == Some(self.model.saved_name())
            && state.settings == Settings { options, ..self.settings.clone() }
    }
}

impl From<&Config> for StoredState {
    /// Returns the part of the configuration that is stored, without the API key and the headers.
    fn from(config: &Config) -> Self {
        let model = Some(config.model.saved_name().to_owned());
        Self { model, settings: config.settings.clone(), ..Self::default() }.without_secrets()
    }
}

pub(super) fn check(
    max_steps: Option<u32>,
    turn_timeout: Option<Duration>,
    options: &Options,
) -> Result<(), Error> {
    if max_steps == Some(0) {
        let text = "max_steps is 0, which allows no request; leave it unset for no limit";
        return Err(Error::new(ErrorKind::InvalidSettings, text));
    }
    if turn_timeout == Some(Duration::ZERO) {
        let text = "turn_timeout is zero, which allows no turn; leave it unset for no limit";
        return Err(Error::new(ErrorKind::InvalidSettings, text));
    }
    for (name, value) in [("temperature", options.temperature()), ("top_p", options.top_p())] {
        if let Some(value) = value.filter(|value| !value.is_finite()) {
            let text =
                format!("{name} is {value}, which JSON can't express; use a finite number or leave it unset");
            return Err(Error::new(ErrorKind::InvalidSettings, text));
        }
    }
    match options.output().and_then(|output| output.schema.error()) {
        Some(error) => {
            let text = format!("the output schema is invalid: {error}");
            Err(Error::new(ErrorKind::InvalidSettings, text).with_source(error.clone()))
        }
        None => Ok(()),
    }
}

pub(super) fn check_budget(budget: Option<Budget>) -> Result<(), Error> {
    let Some(usd) = budget.and_then(|budget| budget.invalid_usd()) else { return Ok(()) };
    let text = format!("the budget of {usd} US dollars is invalid; use zero or a positive, finite number");
    Err(Error::new(ErrorKind::InvalidBudget, text).with_member("usd", usd))
}

/// The greatest size of the application's data in a prompt, in bytes of its JSON form.
const MAX_APP_DATA: usize = 16_384;

impl Prompt {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(length) = self.id.as_ref().map(|id| id.as_str().len())
            && !(1..=MAX_ID).contains(&length)
        {
            let text = format!("the prompt's id has {length} bytes; use an id of 1 to {MAX_ID} bytes");
            let error = Error::new(ErrorKind::InvalidPrompt, text);
            return Err(error.with_member("length", length).with_member("limit", MAX_ID));
        }
        if !self.content.0.iter().all(Content::is_shallow) {
            return Err(too_deep("a block"));
        }
        if let Some(data) = self.app_data.as_deref() {
            check_app_data(data)?;
        }
        let options = [self.options.extra(), self.options.metadata(), self.options.backend()];
        if !options.into_iter().flatten().flat_map(serde_json::Map::values).all(is_shallow) {
            return Err(too_deep("an option"));
        }
        check_budget(self.budget)?;
        check(self.max_steps, self.turn_timeout, &self.options)
    }

    /// Checks the conditions for prompts that wait for a turn or a step.
    pub(crate) fn check_staged(&self) -> Result<(), Error> {
        if self.content.0.iter().any(|block| matches!(block, Content::ToolUse(_) | Content::ToolResult(_))) {
            let text =
                "a prompt with tool results cannot be staged; send it when the agent is idle, or use resume";
            return Err(Error::new(ErrorKind::Busy, text));
        }
        if self.next == Next::Step && self.has_settings() {
            let text = "a prompt for the next step cannot have a model, options or limits; send them with a prompt for \
                        the next turn";
            return Err(Error::new(ErrorKind::NotAtStep, text));
        }
        Ok(())
    }
}

/// Returns the error for this part of a prompt, which a store could not read back.
fn too_deep(part: &str) -> Error {
    let limit = Fold::MAX_DEPTH;
    let text = format!(
        "{part} in the prompt is nested too deeply; at most {limit} levels of arrays and objects are allowed"
    );
    Error::new(ErrorKind::InvalidPrompt, text).with_member("limit", limit)
}

fn check_app_data(data: &Value) -> Result<(), Error> {
    if !is_shallow(data) {
        return Err(too_deep("the application's data"));
    }
    let size = data.to_string().len();
    if size > MAX_APP_DATA {
        let text = format!(
            "the application's data in the prompt has {size} bytes as JSON, but at most {MAX_APP_DATA} are allowed; \
             store the data elsewhere and put a reference into the prompt"
        );
        let error = Error::new(ErrorKind::InvalidPrompt, text);
        return Err(error.with_member("size", size).with_member("limit", MAX_APP_DATA));
    }
    Ok(())
}

/// Converts the error that `init` or the closure of `set_state` returned. The error for an unresolved model name remains
/// as it is.
pub(super) fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    let error = match error.downcast::<RegistryError>() {
        Ok(error) => return (*error).into(),
        Err(error) => error,
    };
    match error.downcast_ref::<Error>() {
        Some(unknown) if unknown.kind() == ErrorKind::UnknownModel => unknown.clone(),
        _ => {
            let text = format!("init or the closure of set_state failed: {error}");
            Error::new(ErrorKind::Callback, text).caused_by(error.into())
        }
    }
}

pub(super) fn panicked(code: &str, message: &str) -> Error {
    Error::new(ErrorKind::Callback, format!("{code} panicked: {message}"))
}

/// The state that a callback sees. The callback may edit the configuration and read the rest.
///
/// Edits take effect when the callback returns, apply from the next request on, and emit no event. If the edited
/// configuration is invalid, the run fails. If the callback is cancelled or panics, its edits are discarded. The
/// [`agent`](super#types-that-hold-state) page compares the types that hold state.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) config: Arc<Config>,
    pub(crate) history: History,
    pub(crate) status: Status,
    pub(crate) step: u32,
    pub(crate) usage: Usage,
    pub(crate) turn: Option<TurnId>,
    pub(crate) extensions: Extensions,
    pub(crate) agent: WeakAgent,
}

impl State {
    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the configuration for editing. [`Config::set_model`] switches the model.
    pub fn config_mut(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    /// Returns the committed history.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns the status of the agent.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the number of requests made for the last prompt.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Returns the usage of the turn in flight so far, which includes the request that has just ended. Zero if no turn
    /// is in flight.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the id of the turn in flight. `None` if no turn is in flight.
    ///
    /// If a recorded turn continues after a restart, a callback may be called again. The id of the turn and the
    /// [step](Self::step) are then the same as before.
    pub fn turn(&self) -> Option<TurnId> {
        self.turn
    }

    /// Returns the values that the application added to the builder, and the [`WeakAgent`] that every agent adds.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns a weak handle to the agent.
    pub fn agent(&self) -> &WeakAgent {
        &self.agent
    }
}

/// The copy of the configuration and the history that `init` and `set_state` edit.
///
/// The edited copy is checked. Either all edits take effect or none. The [`agent`](super#types-that-hold-state) page
/// compares the types that hold state.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StateEdit {
    /// The configuration.
    pub config: Config,
    /// The history. [`History::check`] states which histories are valid.
    pub history: History,
}

impl StateEdit {
    /// Rejects a history that differs from `before`, because only the history's owner may change the history.
    pub(crate) fn keep_history(&mut self, before: &History) -> Result<(), Error> {
        if !self.history.same(before) {
            if self.history != *before {
                let text = "the history belongs to the agent's session; change it through the session";
                return Err(Error::new(ErrorKind::Config, text));
            }
            // The histories are equal, but their messages may be separate allocations. Keep the allocations of
            // `before`.
            self.history = before.clone();
        }
        Ok(())
    }

    pub(crate) fn check(&self, before: &History) -> Result<(), Error> {
        self.config.check()?;
        if !self.history.same(before) {
            self.history.check()?;
        }
        Ok(())
    }
}

/// The configuration and the committed history as data, for events, snapshots and stored or sent JSON.
///
/// The serialised form contains no API keys and headers. The [`agent`](super#types-that-hold-state) page compares the
/// types that hold state.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The configuration and the committed history of an agent. API keys and headers have no JSON form."
    )
)]
#[non_exhaustive]
pub struct StateView {
    /// The model's full name.
    pub model: String,
    /// The name of the saved model, if this name could not be resolved and `model` is used instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_for: Option<String>,
    /// The system prompt, the options and the limits.
    #[serde(flatten)]
    pub settings: Settings,
    /// The declarations of the tools, as the model sees them.
    pub tools: Vec<ToolDeclaration>,
    /// The committed history.
    pub history: History,
}

impl Serialize for StateView {
    /// Writes the options even if they are empty, unlike the form in which settings are stored.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Settings { system, options, max_steps, turn_timeout, omitted } = &self.settings;
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("model", &self.model)?;
        if let Some(name) = &self.fallback_for {
            members.serialize_entry("fallback_for", name)?;
        }
        if let Some(system) = system {
            members.serialize_entry("system", system)?;
        }
        members.serialize_entry("tools", &self.tools)?;
        members.serialize_entry("options", options)?;
        if let Some(limit) = max_steps {
            members.serialize_entry("max_steps", limit)?;
        }
        if let Some(limit) = turn_timeout {
            members.serialize_entry("turn_timeout", limit)?;
        }
        if !omitted.is_empty() {
            members.serialize_entry("omitted", omitted)?;
        }
        members.serialize_entry("history", &self.history)?;
        members.end()
    }
}

impl StateView {
    /// Returns the approximate size in bytes. O(n).
    pub(crate) fn weight(&self) -> usize {
        self.settings.system.as_ref().map_or(0, |system| system.len())
            + self.tools.iter().map(ToolDeclaration::weight).sum::<usize>()
            + self.history.iter().map(|message| message.weight()).sum::<usize>()
    }
}

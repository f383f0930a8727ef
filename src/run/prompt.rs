use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::RunOutcome;
use crate::{
    budget::Budget,
    message::{Blocks, Content, MessageId, TurnId, id::NodeId, text_id, value_weight},
    panics::contained,
    provider::{Model, Options},
    setters::setters,
    tool::{ToolDeclaration, ToolSet, declared_tool_with_schema},
};

text_id! {
    /// The id of a prompt, which the application chooses: 1 to 64 bytes, unique in the conversation.
    ///
    /// If an application sends a prompt again, because it does not know whether the first attempt arrived, it sends the
    /// same id. The agent then accepts the prompt at most once. The message of the prompt gets the same id.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1, "maxLength" = MAX_ID)))]
    PromptId
}

impl From<PromptId> for MessageId {
    fn from(id: PromptId) -> Self {
        Self::new(std::sync::Arc::<str>::from(id))
    }
}

/// The maximum length of a prompt's id, in bytes.
pub(crate) const MAX_ID: usize = 64;

/// The moment at which a staged prompt is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Next {
    /// The prompt starts the next turn, after the turn in flight.
    #[default]
    Turn,
    /// The prompt joins the turn in flight: the next request contains it, after the results of the tools that are
    /// running. If no further request follows in this turn, the prompt starts the next turn.
    Step,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The state of a prompt that the agent knows by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum PromptState {
    /// The prompt is staged.
    Staged,
    /// The prompt's run is active.
    InFlight {
        /// The turn that contains the prompt.
        #[serde(default)]
        turn: TurnId,
    },
    /// The prompt's run has ended, or its turn has ended and another prompt has started the next turn.
    Ended {
        /// The outcome.
        outcome: RunOutcome,
    },
    /// The prompt was staged, and was withdrawn or returned unused. A prompt with its id is accepted again.
    Returned,
}

/// The maximum number of prompts whose ids are remembered. If more prompts have not ended, all of these are remembered.
const MAX_KNOWN: usize = 32;

/// A prompt that the agent knows by its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct KnownPrompt {
    /// The id of the prompt.
    pub id: PromptId,
    /// The state of the prompt.
    pub state: PromptState,
    /// The last node of the history that belongs to the prompt's run, if the run has ended and has added nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
}

setters!(KnownPrompt: with_through(through: some NodeId));

impl KnownPrompt {
    /// Returns a known prompt.
    pub fn new(id: impl Into<PromptId>, state: PromptState) -> Self {
        Self { id: id.into(), state, through: None }
    }

    /// Stores the new state of a prompt in a list of prompts with the latest prompt at the end. If too many prompts are
    /// over, forgets the oldest other one that was returned, or else the oldest other one that has ended.
    pub(crate) fn enter(list: &mut Vec<Self>, id: &PromptId, state: PromptState) {
        if let Some(known) = list.iter_mut().find(|known| known.id == *id && !known.is_over()) {
            known.state = state;
        } else {
            list.retain(|known| known.id != *id);
            list.push(Self::new(id.clone(), state));
        }
        if list.iter().filter(|known| known.is_over()).count() > MAX_KNOWN {
            let others = || list.iter().enumerate().filter(|(_, known)| known.id != *id && known.is_over());
            let returned = others().find(|(_, known)| known.state == PromptState::Returned);
            let forgotten = returned.or_else(|| others().next()).map(|(index, _)| index);
            forgotten.map(|index| list.remove(index));
        }
    }

    /// Replaces the texts that may quote messages, because these messages are erased.
    pub(crate) fn erase_texts(&mut self) {
        if let PromptState::Ended { outcome } = &mut self.state {
            outcome.erase_texts();
        }
    }

    /// Returns whether the prompt has ended or was returned, so that a prompt with its id that has not ended is another
    /// one.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, PromptState::Ended { .. } | PromptState::Returned)
    }
}

/// A message to an agent, with settings for the run that it starts.
///
/// Each setting replaces the agent's setting for this prompt only. Everything that converts into [`Blocks`], such as a
/// string, also converts into a prompt.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let model = ScriptedProvider::new([Step::text("Done."), Step::text("You're welcome.")]).model();
/// use omni_agent::{Agent, Options, Prompt};
///
/// let agent = Agent::builder().model(model).max_steps(5).start().await?;
/// let prompt = Prompt::new("Research this thoroughly.")
///     .with_max_steps(50)
///     .with_options(Options::default().with_temperature(0.2));
/// assert_eq!(prompt.max_steps, Some(50));
/// agent.ask(prompt).await?;
///
/// // The next prompt has the agent's settings again.
/// agent.ask("Thank you!").await?;
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "A message to an agent, with settings for the run that it starts. Each setting replaces the agent's \
                       setting for this prompt only."
    )
)]
#[non_exhaustive]
pub struct Prompt {
    /// The id of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<PromptId>,
    /// The content of the message.
    pub content: Blocks,
    /// The moment at which the prompt is used if a run is active.
    #[serde(default, skip_serializing_if = "is_default")]
    pub next: Next,
    /// The model that is used instead of the agent's. If a callback sets the agent's model during the run, the newly
    /// set model is used from the next request on. The model is never serialised.
    #[serde(skip)]
    pub model: Option<Model>,
    /// The options that override the agent's options. If they contain an API key and headers, these belong to the
    /// provider of the model that is in force when the prompt starts its turn. No other provider gets the key and
    /// headers.
    #[serde(default, skip_serializing_if = "Options::is_empty")]
    #[cfg_attr(feature = "schema", schemars(description = "The options that override the agent's options."))]
    pub options: Options,
    /// The maximum number of requests, which replaces the agent's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The maximum duration of each turn, which replaces the agent's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
    /// The budget for the prompt and everything that its run causes, which replaces the agent's budget. If a callback
    /// sets the agent's budget during the run, the newly set budget applies from the next request on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Data of the application: at most 16,384 bytes of JSON, and at most 64 levels of arrays and objects. The message
    /// of the prompt is stored with the data. The data is never sent to a model service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_data: Option<Arc<Value>>,
    /// Whether the tools of the agent also run in a step that uses a tool without a handler, so that only the uses of
    /// such tools stay open. Otherwise, none of that step's tools runs, and all its uses stay open.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mixed_steps: bool,
    /// The tools that the client behind the prompt runs. They are offered in addition to the agent's tools, and only
    /// during the run of this prompt. They are serialised only with the record of their turn.
    #[serde(skip)]
    pub(crate) client_tools: ClientTools,
}

/// Tools that a client of the application runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTools(ToolSet);

impl ClientTools {
    /// Creates a list of these tools, which must have no handlers.
    #[cfg(feature = "web")]
    pub(crate) fn new(tools: ToolSet) -> Self {
        Self(tools)
    }

    /// Returns the tools of the agent with the client's tools at the end. A client's tool never replaces a tool of the
    /// agent.
    pub(crate) fn after(&self, own: &ToolSet) -> ToolSet {
        let all = || {
            let new = self.0.iter().filter(|tool| own.get(tool.name()).is_none()).cloned();
            own.clone().extended(new).ok()
        };
        // A tool of the agent may panic when its name is read.
        contained(all).ok().flatten().unwrap_or_else(|| own.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn weight(&self) -> usize {
        self.0.declarations().iter().map(ToolDeclaration::weight).sum()
    }
}

impl Serialize for ClientTools {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.declarations().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClientTools {
    /// Leaves out the declarations that are unusable in this version.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut tools = ToolSet::new();
        for declared in Vec::<Value>::deserialize(deserializer)? {
            if let Ok(ToolDeclaration { name, description, schema, .. }) = serde_json::from_value(declared) {
                // A tool that the set refuses is left out too.
                let _ = tools.insert(Arc::new(declared_tool_with_schema(&name, &description, schema)));
            }
        }
        Ok(Self(tools))
    }
}

impl PartialEq for ClientTools {
    /// Compares the declarations, because the tools have no handlers.
    fn eq(&self, other: &Self) -> bool {
        self.0.declarations() == other.0.declarations()
    }
}

impl Prompt {
    /// Creates a prompt with the agent's settings.
    pub fn new(content: impl Into<Blocks>) -> Self {
        Self { content: content.into(), ..Self::default() }
    }

    setters! {
        /// Returns the same prompt with this id. A prompt whose id is known is not accepted again.
        ///
        /// ```
        /// # #[cfg(feature = "test-util")]
        /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        /// # use omni_agent::testing::{ScriptedProvider, Step};
        /// # let model = ScriptedProvider::new([Step::text("Done.")]).model();
        /// use omni_agent::{Agent, Prompt, run::Accepted};
        ///
        /// let agent = Agent::builder().model(model).start().await?;
        /// let order = Prompt::new("Order two pizzas.").with_id("order-17");
        /// assert!(matches!(agent.prompt(order.clone()).await?, Accepted::Started { .. }));
        /// assert!(matches!(agent.prompt(order).await?, Accepted::Known { .. }));
        /// # Ok::<(), omni_agent::Error>(())
        /// # })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn with_id(self, id: impl Into<PromptId>) { self.id = Some(id.into()) }

        /// Returns the same prompt with the moment at which it is used if a run is active.
        pub fn at(self, next: Next) { self.next = next }

        /// Returns the same prompt with this model.
        pub fn with_model(self, model: Model) { self.model = Some(model) }

        /// Returns the same prompt with these options, which override the agent's options.
        pub fn with_options(self, options: Options) { self.options = options }

        /// Returns the same prompt with this maximum number of requests.
        pub fn with_max_steps(self, max_steps: u32) { self.max_steps = Some(max_steps) }

        /// Returns the same prompt with this maximum duration of each turn.
        pub fn with_turn_timeout(self, limit: Duration) { self.turn_timeout = Some(limit) }

        /// Returns the same prompt with this budget for the prompt and everything that its run causes.
        pub fn with_budget(self, budget: Budget) { self.budget = Some(budget) }

        /// Returns the same prompt, with which the tools of the agent also run in a step that uses a tool without a handler.
        pub fn with_mixed_steps(self) { self.mixed_steps = true }

        /// Returns the same prompt with this data of the application. `null` counts as no data.
        ///
        /// ```
        /// # #[cfg(feature = "test-util")]
        /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        /// # use omni_agent::testing::{ScriptedProvider, Step};
        /// # let model = ScriptedProvider::new([Step::text("Hello!")]).model();
        /// use omni_agent::{Agent, Prompt, serde_json::json};
        ///
        /// let agent = Agent::builder().model(model).start().await?;
        /// let response = agent.ask(Prompt::new("Hi!").with_app_data(json!({ "channel": "email" }))).await?;
        /// assert_eq!(response.messages[0].app_data.as_ref().unwrap()["channel"], "email");
        /// # Ok::<(), omni_agent::Error>(())
        /// # })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn with_app_data(self, data: impl Into<Arc<Value>>) {
            self.app_data = Some(data.into()).filter(|data| !data.is_null());
        }
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.content.0.iter().map(Content::weight).sum::<usize>()
            + self.app_data.as_deref().map_or(0, value_weight)
            + self.client_tools.weight()
    }

    /// Returns whether the prompt has any settings.
    pub(crate) fn has_settings(&self) -> bool {
        self.model.is_some()
            || !self.options.is_empty()
            || self.max_steps.is_some()
            || self.turn_timeout.is_some()
            || self.budget.is_some()
    }

    /// Returns the settings without the content.
    pub(crate) fn without_content(self) -> Self {
        Self { content: Blocks::default(), app_data: None, ..self }
    }

    /// Returns whether the prompt has a model, an API key, headers or tools of a client, which have no JSON form.
    pub(crate) fn has_unserialised_parts(&self) -> bool {
        self.model.is_some() || self.options.has_secrets() || !self.client_tools.is_empty()
    }

    /// Returns the same prompt without the parts that have no JSON form: the model, the API key, the headers and the
    /// tools of the client.
    pub(crate) fn as_serialised(self: &Arc<Self>) -> Arc<Self> {
        if !self.has_unserialised_parts() {
            return Arc::clone(self);
        }
        let options = self.options.clone().without_secrets();
        Arc::new(Self { model: None, options, client_tools: ClientTools::default(), ..Self::clone(self) })
    }

    /// Returns the settings without the content, the API key, the headers and the tools of the client.
    pub(crate) fn settings(&self) -> Self {
        let options = self.options.clone().without_secrets();
        Self { options, client_tools: ClientTools::default(), ..self.clone().without_content() }
    }

    /// Returns `over`, with each setting that `over` lacks taken from `self`.
    pub(crate) fn overlaid(&self, over: Self) -> Self {
        Self {
            id: over.id,
            next: over.next,
            content: over.content,
            app_data: over.app_data,
            model: over.model.or_else(|| self.model.clone()),
            options: self.options.overlaid(&over.options),
            max_steps: over.max_steps.or(self.max_steps),
            turn_timeout: over.turn_timeout.or(self.turn_timeout),
            budget: over.budget.or(self.budget),
            mixed_steps: over.mixed_steps || self.mixed_steps,
            client_tools: over.client_tools,
        }
    }
}

impl<T: Into<Blocks>> From<T> for Prompt {
    fn from(content: T) -> Self {
        Self::new(content)
    }
}

/// How an accepted prompt is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "accepted", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Accepted {
    /// The prompt started a run.
    Started {
        /// The first turn of the run.
        turn: TurnId,
    },
    /// The prompt is staged until the next turn, or the next step, begins.
    Staged {
        /// The id of the prompt, with which [`unstage`](crate::agent::Agent::unstage) returns it. If the prompt had no
        /// id, the agent has given it one.
        id: PromptId,
        /// The number of prompts that were staged before this prompt. A prompt for the next step can be used before
        /// them.
        ahead: usize,
    },
    /// A prompt with the same id was accepted before. Nothing was started, and the content of the new prompt was not
    /// read.
    Known {
        /// The state of the earlier prompt.
        state: PromptState,
    },
}

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use futures_core::Stream;
use futures_util::{TryStreamExt, stream};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{
    Catalogue, Completion, Delta, DeltaStream, Fold, ModelInfo, OutputRetryMessages, OutputSchema, Part,
    Provider, ProviderError, ProviderErrorKind, Request, RequestContext, RetryPolicy, catalogue::ModelTraits,
    read_output, registry::split, secret::KeySource,
};
use crate::message::{Content, Timestamp, Usage};

/// A model, together with the provider that serves it. Cheap to clone.
///
/// Get a model from a [`Registry`](super::Registry) by its name, or create one for a custom provider.
///
/// An agent's model can be replaced between runs. The facts about a model help to choose one:
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use std::sync::Arc;
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = Arc::new(ScriptedProvider::new([Step::text("Hello."), Step::text("A cat.")]).named("anthropic"));
/// use omni_agent::{agent::Agent, provider::Model};
///
/// let small = Model::new(provider.clone(), "claude-haiku-4-5");
/// let large = Model::new(provider, "claude-sonnet-4-6");
/// let agent = Agent::builder().model(small).start().await?;
/// agent.ask("Hello!").await?;
///
/// let facts = large.info().expect("the catalogue has this model");
/// assert!(facts.takes("image/png") && facts.context_window > Some(500_000));
/// agent.set_state(move |edit| Ok(edit.config.set_model(large)?)).await?;
/// let response = agent.ask("What animal says meow?").await?;
/// assert_eq!(response.text(), "A cat.");
/// assert_eq!(agent.state().await?.config().model.name(), "anthropic:claude-sonnet-4-6");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Model(Arc<ModelShared>);

struct ModelShared {
    name: String,
    id: Arc<str>,
    provider: Arc<dyn Provider>,
    /// The registry's catalogue. If it is not set, the built-in catalogue is used.
    catalogue: Option<Arc<Catalogue>>,
    /// The facts about the model, from the catalogue and from the rules for its id. They are looked up at the first
    /// use.
    facts: OnceLock<(Option<Arc<ModelInfo>>, &'static ModelTraits)>,
    /// The registry's key.
    key: Option<KeySource>,
    /// The saved name that could not be resolved, if this model is its fallback.
    fallback_for: Option<Box<str>>,
    retry: Option<Box<RetryPolicy>>,
}

impl Model {
    /// Creates the model `id` of `provider`.
    pub fn new(provider: Arc<dyn Provider>, id: impl Into<Arc<str>>) -> Self {
        Self::of_registry(provider, id.into(), None, None)
    }

    /// Creates a model with its registry's catalogue and key.
    pub(super) fn of_registry(
        provider: Arc<dyn Provider>,
        id: Arc<str>,
        catalogue: Option<Arc<Catalogue>>,
        key: Option<KeySource>,
    ) -> Self {
        let name = format!("{}:{id}", provider.name());
        let facts = OnceLock::new();
        Self(Arc::new(ModelShared {
            name,
            id,
            provider,
            catalogue,
            facts,
            key,
            fallback_for: None,
            retry: None,
        }))
    }

    /// Returns the model with this name (`provider:id`) if the name is that of a model of the same provider.
    pub(crate) fn of_same_provider(&self, name: &str) -> Option<Self> {
        let ModelShared { provider, catalogue, key, .. } = &*self.0;
        let (_, id) = split(name).filter(|(named, _)| *named == self.provider_name())?;
        Some(Self::of_registry(Arc::clone(provider), id.into(), catalogue.clone(), key.clone()))
    }

    /// Returns a copy of the model that uses another provider.
    #[cfg(feature = "test-util")]
    pub(crate) fn through(&self, provider: Arc<dyn Provider>) -> Self {
        let name = format!("{}:{}", provider.name(), self.0.id);
        Self(Arc::new(ModelShared { name, provider, ..self.0.copied() }))
    }

    /// Marks this model as the fallback for a saved name that could not be resolved.
    pub(crate) fn as_fallback_for(&self, saved: &str) -> Self {
        Self(Arc::new(ModelShared { fallback_for: Some(saved.into()), ..self.0.copied() }))
    }

    /// Returns the same model with these facts in place of the catalogue's facts.
    pub fn with_info(&self, info: impl Into<Arc<ModelInfo>>) -> Self {
        let facts = (Some(info.into()), ModelTraits::of(&self.0.id));
        Self(Arc::new(ModelShared { facts: OnceLock::from(facts), ..self.0.copied() }))
    }

    /// Returns this model with a retry policy, which applies to all its requests. In an agent, the
    /// [agent's policy](crate::agent::AgentBuilder::retry_policy) takes precedence. A model that is chosen later by its
    /// name has the default policy.
    pub fn with_retry_policy(&self, policy: RetryPolicy) -> Self {
        Self(Arc::new(ModelShared { retry: Some(Box::new(policy)), ..self.0.copied() }))
    }

    /// Returns the retry policy of this model; [`RetryPolicy::default`] unless set.
    pub fn retry_policy(&self) -> RetryPolicy {
        self.0.retry.as_deref().copied().unwrap_or_default()
    }

    /// Returns the full name, `provider:id`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the saved model's name if that name could not be resolved and this model is its fallback. A session
    /// keeps the saved name in its store until a model is chosen. Choosing the fallback itself counts as a choice too.
    pub fn fallback_for(&self) -> Option<&str> {
        self.0.fallback_for.as_deref()
    }

    /// Returns the name to save: the model's name, or the saved name for which this model is the fallback.
    pub(crate) fn saved_name(&self) -> &str {
        self.fallback_for().unwrap_or_else(|| self.name())
    }

    /// Returns the provider's name, which is the part before the id.
    pub(crate) fn provider_name(&self) -> &str {
        self.0.name.strip_suffix(&*self.0.id).and_then(|name| name.strip_suffix(':')).unwrap_or_default()
    }

    /// Returns the model's id at the service.
    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    /// Returns the provider that serves the model.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.0.provider
    }

    /// Returns the facts about the model: the facts set by [`with_info`](Self::with_info), or else the result of
    /// [`Catalogue::find`] for its id, in the registry's catalogue or the built-in one.
    pub fn info(&self) -> Option<&Arc<ModelInfo>> {
        self.facts().0.as_ref()
    }

    fn facts(&self) -> &(Option<Arc<ModelInfo>>, &'static ModelTraits) {
        self.0.facts.get_or_init(|| (self.find(&self.0.id), ModelTraits::of(&self.0.id)))
    }

    fn find(&self, id: &str) -> Option<Arc<ModelInfo>> {
        let catalogue = self.0.catalogue.as_ref().unwrap_or_else(|| Catalogue::built_in());
        catalogue.find(self.0.provider.name(), id)
    }

    /// Adds the facts about the model and the source of its key to `request`, which may be for another id of the same
    /// provider.
    pub(crate) fn complete(&self, request: &mut Request) {
        let same = Arc::ptr_eq(&request.model, &self.0.id) || request.model == self.0.id;
        if request.model_info.is_none() {
            request.model_info = if same { self.info().cloned() } else { self.find(&request.model) };
        }
        request.rule = same.then(|| (Arc::clone(&self.0.id), self.facts().1));
        request.key.clone_from(&self.0.key);
    }

    /// Streams the response to one request, with retries according to the model's [`RetryPolicy`]. Errors arrive as the
    /// stream's items. Dropping the stream ends the exchange.
    ///
    /// If the request's history does not pass [`History::check_sendable`](crate::message::History::check_sendable), the
    /// stream returns an [`ProviderErrorKind::InvalidRequest`], and nothing is sent. If the history has a compaction,
    /// [`History::sent`](crate::message::History::sent) is sent.
    pub fn stream(&self, request: Request) -> DeltaStream {
        if let Err(breach) = request.history.check_sendable() {
            let message = "the request's history is invalid; History::repair repairs it";
            let error = ProviderError::new(ProviderErrorKind::InvalidRequest, message).with_source(breach);
            return Box::pin(stream::iter([Err(error)]));
        }
        let mut request =
            Request { model: Arc::clone(&self.0.id), history: request.history.sent(), ..request };
        self.complete(&mut request);
        self.retry_policy().stream(Arc::clone(&self.0.provider), request, RequestContext::detached())
    }

    /// Streams the text of the response to one request, without thinking and other content. If the response is
    /// truncated, the last item of the stream is an error.
    pub fn stream_text(
        &self,
        request: Request,
    ) -> impl Stream<Item = Result<String, ProviderError>> + Send + Unpin + use<> {
        let answer = (self.stream(request), Fold::default());
        Box::pin(stream::try_unfold(answer, |(mut deltas, mut fold)| async move {
            while let Some(delta) = deltas.try_next().await? {
                let piece = match &delta {
                    Delta::Extend { index, part: Part::Text(text) } if !text.is_empty() => {
                        Some((*index, text.clone()))
                    }
                    _ => None,
                };
                fold.apply(delta)?;
                if let Some((index, text)) = piece
                    && matches!(fold.blocks()[index].content, Content::Text(_))
                {
                    return Ok(Some((text, (deltas, fold))));
                }
            }
            fold.finish(Timestamp::now())?;
            Ok(None)
        }))
    }

    /// Returns the complete response to one request.
    ///
    /// Tools in the request are declared to the model, and the response contains the model's tool uses, but no tool is
    /// run. To run tools until the model needs no more of them, start an agent and [`ask`](crate::agent::Agent::ask)
    /// it. An agent that is dropped after one response leaves nothing behind:
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use omni_agent::agent::Agent;
    /// use omni_agent::testing::{ScriptedProvider, Step};
    /// use omni_agent::tool::tool_fn;
    /// use serde_json::{Value, json};
    ///
    /// let model = ScriptedProvider::new([
    ///     Step::tool_use("call-1", "time", json!({})),
    ///     Step::text("It is noon."),
    /// ])
    /// .model();
    /// let time = tool_fn("time", "Returns the time.", |_: Value, _| async { Ok("12:00") });
    ///
    /// let agent = Agent::builder().model(model).tool(time).max_steps(5).start().await?;
    /// let response = agent.ask("What time is it?").await?;
    /// assert_eq!(response.text(), "It is noon.");
    /// # Ok::<(), omni_agent::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of the service, of the connection and of [`Model::stream`], and
    /// [`ProviderErrorKind::Truncated`] if the response was truncated.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the exchange.
    pub async fn generate(&self, request: Request) -> Result<Completion, ProviderError> {
        let mut stream = self.stream(request);
        let mut fold = Fold::default();
        while let Some(delta) = stream.try_next().await? {
            fold.apply(delta)?;
        }
        fold.finish(Timestamp::now())
    }

    /// Returns the response to one request as a value of a Rust type. The output schema is taken from the request, or
    /// from the type if the request has no output schema. The second value is the whole response. Its usage includes
    /// the usage of earlier responses that did not fit. A response that does not fit is requested again up to
    /// [`Options::output_retries`](super::Options::output_retries) times, unless it was truncated or refused.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use omni_agent::provider::Request;
    /// use omni_agent::testing::{ScriptedProvider, Step};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct City {
    ///     name: String,
    ///     people: u32,
    /// }
    ///
    /// let model = ScriptedProvider::new([
    ///     Step::text(r#"{"name": "Oslo", "people": "many"}"#),
    ///     Step::text(r#"{"name": "Oslo", "people": 709000}"#),
    /// ])
    /// .model();
    /// let (city, _) = model.generate_as::<City>(Request::prompt("The largest city of Norway?")).await?;
    /// assert_eq!((city.name.as_str(), city.people), ("Oslo", 709_000));
    /// # Ok::<(), omni_agent::provider::ProviderError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`generate`](Model::generate). Returns [`ProviderErrorKind::InvalidRequest`] if the output
    /// schema is unusable. Returns [`ProviderErrorKind::Output`] if the last response does not fit the schema; the
    /// response's text is the body of this error. Tools are not run, so a response that uses tools does not fit.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the exchange.
    pub async fn generate_as<T>(&self, mut request: Request) -> Result<(T, Completion), ProviderError>
    where
        T: DeserializeOwned + JsonSchema,
    {
        let output = request.options.output().cloned().unwrap_or_else(OutputSchema::of::<T>);
        if let Some(error) = output.schema.error() {
            let refused =
                ProviderError::new(ProviderErrorKind::InvalidRequest, "the output schema can't be used");
            return Err(refused.with_source(error.clone()));
        }
        request.options.set_output(Some(output.clone()));
        let history = request.history.clone();
        let mut corrections = OutputRetryMessages::default();
        let mut usage = Usage::default();
        loop {
            request.history = corrections.after(&history);
            let mut answer = self.generate(request.clone()).await?;
            usage += answer.usage;
            answer.usage = usage;
            let uses_tools = answer.message.tool_uses().next().is_some();
            let read = if uses_tools {
                Err("the answer uses tools, which an agent would run".to_owned())
            } else {
                read_output(&answer.message, &output, answer.output_enforced)
                    .and_then(|value| T::deserialize(value).map_err(|error| error.to_string()))
            };
            let problem = match read {
                Ok(value) => return Ok((value, answer)),
                Err(problem) => problem,
            };
            let limit = request.options.output_retries();
            if uses_tools || !corrections.allow_another(&answer.stop_reason, limit) {
                let message = format!("the answer ended with {}: {problem}", answer.stop_reason);
                return Err(
                    ProviderError::new(ProviderErrorKind::Output, message).with_body(&answer.message.text())
                );
            }
            corrections.add(answer.message, &problem, Timestamp::now());
        }
    }
}

impl ModelShared {
    fn copied(&self) -> Self {
        Self {
            name: self.name.clone(),
            id: Arc::clone(&self.id),
            provider: Arc::clone(&self.provider),
            catalogue: self.catalogue.clone(),
            facts: self.facts.clone(),
            key: self.key.clone(),
            fallback_for: self.fallback_for.clone(),
            retry: self.retry.clone(),
        }
    }
}

impl PartialEq for Model {
    /// Compares the name and the provider instance.
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name && Arc::ptr_eq(&self.0.provider, &other.0.provider)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.0.name).finish()
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

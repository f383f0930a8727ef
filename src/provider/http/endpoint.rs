//! What an endpoint is made of.

mod outgoing;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use reqwest::Url;
use serde_json::{Map, Value};

use super::{
    Auth, Limits, Timeouts,
    answer::Parts,
    exchange::{self, ErrorContext, Outgoing},
    key::Keys,
};
use crate::provider::{
    Delta, DeltaStream, ErrorKind, Provider, ProviderError, Request, RequestContext, Secret,
    dialect::{Dialect, Encoded},
    key::KeySource,
};

/// Changes a request's JSON body before it is sent.
type BodyHook = Arc<dyn Fn(&mut Map<String, Value>, &Request) -> Result<(), ProviderError> + Send + Sync>;
/// Says yes to the ids of some models.
type ModelFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// Changes the deltas that one event gave.
pub(super) type DeltaHook = Arc<dyn Fn(&mut Vec<Delta>) -> Result<(), ProviderError> + Send + Sync>;

/// A service that speaks a wire format over HTTP: where it is, how it takes its key, what is particular about
/// it. Cheap to make; all endpoints share their connections.
///
/// A mistake in the base URL or a header shows as an error of the first request.
///
/// ```
/// use std::sync::Arc;
/// use omni_agent::provider::{Registry, http::Endpoint};
///
/// let mut registry = Registry::default();
/// registry.register(Arc::new(
///     Endpoint::openai_compatible("local", "http://localhost:8080").with_key_variable("LOCAL_KEY"),
/// ));
/// assert_eq!(registry.model("local:any-model")?.id().as_ref(), "any-model");
/// # Ok::<(), omni_agent::provider::RegistryError>(())
/// ```
///
/// # Errors of a stream
///
/// A connection that breaks before any content is [`ErrorKind::Transport`]; one that breaks or ends after
/// that, without the format's terminal event, is [`ErrorKind::Truncated`], as is a body that ends in the
/// middle of an event. All of them can be retried.
///
/// Gemini and Chat Completions send usage after the finish reason, and some services never end the body. After a finish
/// reason, the answer ends when nothing more of it arrives for 5 seconds. Missing usage is then a warning, as after a
/// stream that was cut there.
///
/// A service may refuse a large request before it has read it, with status 413 for instance. Its status is returned if the
/// service keeps the connection open until the answer is read, as RFC 9112, section 9.6, describes. If the service
/// closes the connection at once, the error may be [`ErrorKind::Transport`] instead: the reset can reach the writer of the
/// request before the answer is read, and the HTTP library then drops the connection with the answer.
///
/// An empty prompt, or a history that begins with an assistant message, is [`ErrorKind::InvalidRequest`], and nothing is
/// sent.
#[derive(Clone)]
pub struct Endpoint {
    name: String,
    base_url: String,
    version: String,
    format: Format,
    /// What some models are spoken to in instead; the first that fits counts.
    others: Vec<(ModelFilter, Format)>,
    keys: Keys,
    /// What this user wants; the values are secret.
    headers: Vec<(String, Secret)>,
    /// What this user wants and anybody may see.
    plain: Vec<(&'static str, String)>,
    body_hooks: Vec<BodyHook>,
    delta_hooks: Vec<DeltaHook>,
    limits: Limits,
    timeouts: Timeouts,
}

/// A wire format, and how the service takes its key with it.
#[derive(Clone)]
struct Format {
    dialect: Arc<dyn Dialect>,
    auth: Auth,
}

impl Endpoint {
    /// A service that speaks `dialect` below `base_url`, under `/v1`. It takes a bearer token if there is
    /// one, and does without if there is none.
    pub fn custom(name: impl Into<String>, base_url: impl Into<String>, dialect: impl Dialect) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            version: "/v1".to_owned(),
            format: Format { dialect: Arc::new(dialect), auth: Auth::Bearer },
            others: Vec::new(),
            keys: Keys { optional: true, ..Keys::default() },
            headers: Vec::new(),
            plain: Vec::new(),
            body_hooks: Vec::new(),
            delta_hooks: Vec::new(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }

    /// The same endpoint under another name. The name is also what tells services apart: signatures and opaque items
    /// in a conversation go back to the endpoint of the name that they came from, and to no other.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same endpoint at another address.
    pub fn with_base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = base_url.into();
        self
    }

    /// Its address, as it was given.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The same endpoint with `version` between the base URL and the format's own path, instead of `/v1`. A
    /// base URL whose last segment is a version already keeps that.
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// The same endpoint, taking its key this way.
    pub fn with_auth(mut self, auth: Auth) -> Self {
        self.format.auth = auth;
        self
    }

    /// The same endpoint, which is spoken to in `dialect`, and takes its key by `auth`, for the models whose
    /// ids `models` says yes to. The first such format that fits a model counts; the others stay with the
    /// endpoint's own. All else is common to all: base URL, version, key, headers, hooks.
    pub fn with_format_for(
        mut self,
        models: impl Fn(&str) -> bool + Send + Sync + 'static,
        dialect: impl Dialect,
        auth: Auth,
    ) -> Self {
        self.others.push((Arc::new(models), Format { dialect: Arc::new(dialect), auth }));
        self
    }

    /// The same endpoint with a key.
    pub fn with_key(mut self, key: impl Into<Secret>) -> Self {
        self.keys.own = Some(KeySource::Value(key.into()));
        self
    }

    /// The same endpoint with a function that is asked for the key at each request. `None` sends on to the
    /// environment variable. It must not block.
    pub fn with_key_from(mut self, key: impl Fn() -> Option<Secret> + Send + Sync + 'static) -> Self {
        self.keys.own = Some(KeySource::function(key));
        self
    }

    /// The same endpoint with the environment variable that holds the key when nothing else gives one. From
    /// now on a key is demanded.
    pub fn with_key_variable(mut self, name: impl Into<String>) -> Self {
        self.keys.variable = Some(name.into());
        self.keys.optional = false;
        self
    }

    /// The same endpoint, which may be asked without a key.
    pub fn with_optional_key(mut self) -> Self {
        self.keys.optional = true;
        self
    }

    /// The same endpoint with one more header. Its value is never shown.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same endpoint with one more header, whose value is no secret: errors may quote the words in it.
    pub(super) fn with_plain_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.plain.push((name, value.into()));
        self
    }

    /// The same endpoint with one more hook on the JSON body, which runs after those before it and before
    /// [`Options::extra`](crate::provider::OptionFields::extra) is laid over it.
    pub fn with_body_hook(
        mut self,
        hook: impl Fn(&mut Map<String, Value>, &Request) -> Result<(), ProviderError> + Send + Sync + 'static,
    ) -> Self {
        self.body_hooks.push(Arc::new(hook));
        self
    }

    /// The same endpoint with one more hook on deltas. It gets what one event of the answer gave, and may
    /// change, add and remove.
    pub fn with_delta_hook(
        mut self,
        hook: impl Fn(&mut Vec<Delta>) -> Result<(), ProviderError> + Send + Sync + 'static,
    ) -> Self {
        self.delta_hooks.push(Arc::new(hook));
        self
    }

    /// The same endpoint with other limits.
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same endpoint with other timeouts.
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// The format of a request.
    fn format(&self, request: &Request) -> &Format {
        let fits = |(models, _): &&(ModelFilter, Format)| models(&request.model);
        self.others.iter().find(fits).map_or(&self.format, |(_, format)| format)
    }

    /// What would be sent for a request, but for headers and keys: for looking at. Nothing is sent.
    ///
    /// ```
    /// use omni_agent::provider::{Options, Request, http::Endpoint};
    ///
    /// let mut request = Request::prompt("Hi").with_options(Options::default().with_temperature(0.5));
    /// request.model = "llama-3.3-70b-versatile".into();
    /// let preview = Endpoint::groq().preview(&request)?;
    /// assert_eq!(preview.url, "https://api.groq.com/openai/v1/chat/completions");
    /// assert_eq!(preview.body["temperature"], 0.5);
    /// assert!(preview.warnings.is_empty());
    /// # Ok::<(), omni_agent::provider::ProviderError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// What [`stream`](Provider::stream) would fail with before anything is sent.
    pub fn preview(&self, request: &Request) -> Result<Preview, ProviderError> {
        let dialect = &*self.format(request).dialect;
        let url = self.url(dialect, request)?.into();
        let Encoded { body, warnings } = self.encode(dialect, request)?;
        Ok(Preview { url, body, warnings })
    }
}

/// What an endpoint makes of a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Preview {
    /// Where it goes.
    pub url: String,
    /// The JSON body.
    pub body: Map<String, Value>,
    /// What was asked for and can't be honoured, or only nearly, in words.
    pub warnings: Vec<String>,
}

#[async_trait]
impl Provider for Endpoint {
    fn name(&self) -> &str {
        &self.name
    }

    async fn stream(&self, request: Request, _context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let format = self.format(&request);
        let dialect = &*format.dialect;
        let url = self.url(dialect, &request)?;
        let (mut headers, mut secrets) = self.headers(format, &request)?;
        secrets.extend(outgoing::query_secrets(&url));
        let error_context = ErrorContext::new(secrets);
        let Encoded { body, warnings } =
            self.encode(dialect, &request).map_err(|error| error_context.error_context(error))?;
        outgoing::demand(&mut headers, dialect, &body)?;
        let body = serde_json::to_vec(&body).map_err(|error| {
            ProviderError::new(ErrorKind::InvalidRequest, "the request can't be written as JSON")
                .with_source(error)
        })?;
        tracing::debug!(provider = self.name, model = %request.model, bytes = body.len(), "request");
        let decoder = dialect.decoder(&request);
        let dialect = Arc::clone(&format.dialect);
        // A long history need not stay in memory twice while the model thinks.
        drop(request);
        let outgoing = Outgoing { url, headers, body: body.into(), timeouts: self.timeouts };
        let parts = Parts {
            dialect,
            decoder,
            hooks: self.delta_hooks.clone(),
            limits: self.limits,
            between_chunks: self.timeouts.between_chunks,
            warnings,
            error_context,
            service: self.name.clone(),
        };
        exchange::run(outgoing, parts).await
    }
}

impl fmt::Debug for Endpoint {
    /// Shows neither keys nor header values, nor a base URL that may hold some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Url::parse(&self.base_url).map(|url| url.origin().ascii_serialization());
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let others: Vec<&Format> = self.others.iter().map(|(_, format)| format).collect();
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("origin", &origin.as_deref().unwrap_or("invalid"))
            .field("version", &self.version)
            .field("format", &self.format)
            .field("others", &others)
            .field("keys", &self.keys)
            .field("headers", &headers)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Format")
            .field("dialect", &self.dialect.name())
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

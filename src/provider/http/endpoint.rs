//! Endpoints and their settings.

mod outgoing;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use reqwest::Url;
use serde_json::{Map, Value};

use super::{
    Auth, Limits, Timeouts,
    answer::ReaderParts,
    exchange::{self, ErrorContext, Outgoing},
    key::Keys,
};
use crate::provider::{
    Delta, DeltaStream, Provider, ProviderError, ProviderErrorKind, Request, RequestContext, Secret,
    dialect::{Dialect, Encoded},
    key::KeySource,
};
use crate::setters::setters;

/// A function that changes a request's JSON body before the body is sent.
type BodyHook = Arc<dyn Fn(&mut Map<String, Value>, &Request) -> Result<(), ProviderError> + Send + Sync>;
/// A function that selects models by their ids.
type ModelFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;
/// A function that changes the deltas of one event.
pub(super) type DeltaHook = Arc<dyn Fn(&mut Vec<Delta>) -> Result<(), ProviderError> + Send + Sync>;

/// A service at an address, with a wire format, authentication, and switches for its deviations from the wire format.
///
/// Endpoints are cheap to create, because all endpoints share their connections. If the base URL or a header is
/// invalid, the first request fails.
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
/// If a connection breaks before any content has arrived, the error is [`ProviderErrorKind::Transport`]. If it breaks
/// later, or if the body ends before the terminal event of the wire format, the error is
/// [`ProviderErrorKind::Truncated`]. A body that ends in the middle of an event also causes
/// [`ProviderErrorKind::Truncated`]. All of these errors are retryable.
///
/// Gemini and Chat Completions send usage after the finish reason, and some services never end the body. Therefore,
/// after a finish reason, the response ends when nothing more has arrived for 5 seconds. If the usage is missing then,
/// a warning reports it. The same warning appears if the stream was cut off after the finish reason.
///
/// A service may refuse a large request before it has read all of it, for instance with status 413. If the service
/// keeps the connection open until its response has been read, as RFC 9112, section 9.6, describes, the error contains
/// that status. If the service closes the connection at once, the error may be [`ProviderErrorKind::Transport`]
/// instead. The reason is that the writer of the request can see the reset before the response is read, and that the
/// HTTP library then drops the connection and the response.
///
/// An empty prompt is refused with [`ProviderErrorKind::InvalidRequest`], and nothing is sent. If the history begins
/// with an assistant message and the service wants a user message first, a short placeholder is sent before it.
#[derive(Clone)]
pub struct Endpoint {
    name: String,
    base_url: String,
    version: String,
    format: EndpointFormat,
    /// The wire formats for single models. The first one that matches is used.
    others: Vec<(ModelFilter, EndpointFormat)>,
    keys: Keys,
    /// The user's headers, whose values are secret.
    headers: Vec<(String, Secret)>,
    /// The headers whose values are not secret.
    plain: Vec<(&'static str, String)>,
    body_hooks: Vec<BodyHook>,
    delta_hooks: Vec<DeltaHook>,
    limits: Limits,
    timeouts: Timeouts,
}

/// A wire format, and the way in which the service receives its key with this format.
#[derive(Clone)]
struct EndpointFormat {
    dialect: Arc<dyn Dialect>,
    auth: Auth,
}

impl Endpoint {
    /// Creates an endpoint for a service with the wire format `dialect` at `base_url`. The paths of the wire format are
    /// appended to `/v1` below this URL. If there is a key, it is sent as a bearer token.
    pub fn custom(name: impl Into<String>, base_url: impl Into<String>, dialect: impl Dialect) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            version: "/v1".to_owned(),
            format: EndpointFormat { dialect: Arc::new(dialect), auth: Auth::Bearer },
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

    setters! {
        /// Returns the same endpoint with another name. The name also identifies the service: signatures and opaque
        /// items in a conversation are sent only to an endpoint with the same name as the endpoint that produced them.
        pub fn with_name(self, name: impl Into<String>) { self.name = name.into() }

        /// Returns the same endpoint at another address.
        pub fn with_base_url(self, base_url: impl Into<String>) { self.base_url = base_url.into() }
    }

    /// Returns the endpoint's address, as it was given.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    setters! {
        /// Returns the same endpoint with `version` between the base URL and the path of the wire format, instead of
        /// `/v1`. If the last segment of the base URL is already a version, this segment is used instead.
        pub fn with_version(self, version: impl Into<String>) { self.version = version.into() }

        /// Returns the same endpoint, but sending the key as `auth` specifies.
        pub fn with_auth(self, auth: Auth) { self.format.auth = auth }

        /// Returns the same endpoint, but using the wire format `dialect` and the authentication `auth` for the models
        /// that `models` selects by their ids. If several calls of this method select a model, the first call counts.
        /// Other models use the endpoint's own wire format. All models share the base URL, version, key, headers and
        /// hooks.
        pub fn with_dialect_for(
            self,
            models: impl Fn(&str) -> bool + Send + Sync + 'static,
            dialect: impl Dialect,
            auth: Auth,
        ) {
            self.others.push((Arc::new(models), EndpointFormat { dialect: Arc::new(dialect), auth }));
        }

        /// Returns the same endpoint with a key.
        pub fn with_key(self, key: impl Into<Secret>) { self.keys.own = Some(KeySource::Value(key.into())) }

        /// Returns the same endpoint with a function that provides the key. The function is called at each request, and
        /// must not block. If it returns `None`, the environment variable is used.
        pub fn with_key_from(self, key: impl Fn() -> Option<Secret> + Send + Sync + 'static) {
            self.keys.own = Some(KeySource::function(key));
        }
    }

    /// Returns the same endpoint with an environment variable for the key. The variable is read if no other source
    /// provides a key. This call also makes a key required.
    pub fn with_key_variable(mut self, name: impl Into<String>) -> Self {
        self.keys.variable = Some(name.into());
        self.keys.optional = false;
        self
    }

    setters! {
        /// Returns the same endpoint, but with an optional key: if no source provides a key, requests are sent without
        /// one.
        pub fn with_optional_key(self) { self.keys.optional = true }

        /// Returns the same endpoint with one more header, whose value is never shown.
        pub fn with_header(self, name: impl Into<String>, value: impl Into<Secret>) {
            self.headers.push((name.into(), value.into()));
        }

        /// Returns the same endpoint with one more header, whose value is not secret. Errors may quote words of this
        /// value.
        pub(super) fn with_plain_header(self, name: &'static str, value: impl Into<String>) {
            self.plain.push((name, value.into()));
        }

        /// Returns the same endpoint with one more hook for the JSON body. The hook runs after the earlier hooks, and
        /// before [`Options::extra`](crate::provider::Options::extra) is merged into the body.
        pub fn with_body_hook(
            self,
            hook: impl Fn(&mut Map<String, Value>, &Request) -> Result<(), ProviderError> + Send + Sync + 'static,
        ) {
            self.body_hooks.push(Arc::new(hook));
        }

        /// Returns the same endpoint with one more hook for deltas. The hook gets the deltas of one event of the
        /// response. It may change, add and remove deltas.
        pub fn with_delta_hook(
            self,
            hook: impl Fn(&mut Vec<Delta>) -> Result<(), ProviderError> + Send + Sync + 'static,
        ) {
            self.delta_hooks.push(Arc::new(hook));
        }

        /// Returns the same endpoint with these limits.
        pub fn with_limits(self, limits: Limits) { self.limits = limits }

        /// Returns the same endpoint with these timeouts.
        pub fn with_timeouts(self, timeouts: Timeouts) { self.timeouts = timeouts }
    }

    /// Returns the wire format for a request.
    fn format(&self, request: &Request) -> &EndpointFormat {
        let fits = |(models, _): &&(ModelFilter, EndpointFormat)| models(&request.model);
        self.others.iter().find(fits).map_or(&self.format, |(_, format)| format)
    }

    /// Returns the URL and the body that would be sent for a request. Nothing is sent.
    ///
    /// ```
    /// use omni_agent::provider::{Options, Request, http::Endpoint};
    ///
    /// let mut request = Request::prompt("Hi").with_options(Options::default().with_temperature(0.5));
    /// request.model = "llama-3.3-70b-versatile".into();
    /// let (url, encoded) = Endpoint::groq().preview(&request)?;
    /// assert_eq!(url, "https://api.groq.com/openai/v1/chat/completions");
    /// assert_eq!(encoded.body["temperature"], 0.5);
    /// assert!(encoded.warnings.is_empty());
    /// # Ok::<(), omni_agent::provider::ProviderError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the address is invalid or if the request can't be encoded. Keys and headers are not checked.
    pub fn preview(&self, request: &Request) -> Result<(String, Encoded), ProviderError> {
        let dialect = &*self.format(request).dialect;
        let url = self.url(dialect, request)?.into();
        Ok((url, self.encode(dialect, request)?))
    }
}

#[async_trait]
impl Provider for Endpoint {
    fn name(&self) -> &str {
        &self.name
    }

    fn secrets(&self, request: &Request) -> Vec<Secret> {
        let key = self.keys.find(&self.name, request).ok().flatten();
        let headers = self.headers.iter().map(|(_, value)| value.clone());
        let query = Url::parse(self.base_url.trim()).map(|url| outgoing::query_secrets(&url));
        let query = query.into_iter().flatten().map(|(value, _)| value);
        key.into_iter().chain(headers).chain(query).collect()
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let format = self.format(&request);
        let dialect = &*format.dialect;
        let url = self.url(dialect, &request)?;
        context.set_server(url.host_str().unwrap_or_default(), url.port_or_known_default());
        let (mut headers, mut secrets) = self.headers(format, &request)?;
        secrets.extend(outgoing::query_secrets(&url));
        let error_context = ErrorContext::new(secrets);
        let Encoded { body, warnings } =
            self.encode(dialect, &request).map_err(|error| error_context.error_context(error))?;
        outgoing::demand(&mut headers, dialect, &body)?;
        let body = serde_json::to_vec(&body).map_err(|error| {
            ProviderError::new(ProviderErrorKind::InvalidRequest, "the request can't be written as JSON")
                .with_source(error)
        })?;
        tracing::debug!(provider = self.name, model = %request.model, bytes = body.len(), "request");
        let decoder = dialect.decoder(&request);
        let dialect = Arc::clone(&format.dialect);
        // The history is dropped here, because a long history should not stay in memory twice while the model thinks.
        drop(request);
        let outgoing = Outgoing { url, headers, body: body.into(), timeouts: self.timeouts };
        let parts = ReaderParts {
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
    /// Shows neither keys nor header values. Of the base URL, it shows only the origin, because the rest may contain
    /// keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Url::parse(&self.base_url).map(|url| url.origin().ascii_serialization());
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let others: Vec<&EndpointFormat> = self.others.iter().map(|(_, format)| format).collect();
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

crate::debug::impl_debug!(EndpointFormat(self) { dialect: self.dialect.name(), auth: self.auth, .. });

//! Endpoints: their settings, and the parts of the requests that they send (address, headers, key, body).

use std::{env, fmt, sync::Arc};

use async_trait::async_trait;
use reqwest::{
    Url,
    header::{
        ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
        TRANSFER_ENCODING,
    },
};
use serde_json::{Map, Value, json};

use super::{
    Limits, Timeouts,
    answer::ReaderParts,
    exchange::{self, ExchangeErrorScrubber, OutgoingHttpRequest},
    origin,
};
use crate::{
    message::{Content, History, Role},
    provider::{
        Delta, DeltaStream, Provider, ProviderError, ProviderErrorKind, Request, RequestContext, Secret,
        SecretMatchMode,
        dialect::{Dialect, Encoded, Framing, is_unverified},
        secret::KeySource,
    },
    setters::setters,
};

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
/// # Private data of earlier answers
///
/// Signatures, encrypted reasoning and other data that only a service understands are sent back only to the endpoint of
/// the same [name](Self::with_name). If the service refuses them because it can't verify them, for example after a change
/// of the key, the region or the deployment, the request is sent once more without them, and a warning reports it.
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
    format: DialectWithAuth,
    /// The wire formats for single models. The first one that matches is used.
    others: Vec<(ModelFilter, DialectWithAuth)>,
    keys: EndpointKeySources,
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
struct DialectWithAuth {
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
            format: DialectWithAuth { dialect: Arc::new(dialect), auth: Auth::Bearer },
            others: Vec::new(),
            keys: EndpointKeySources { optional: true, ..EndpointKeySources::default() },
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
            self.others.push((Arc::new(models), DialectWithAuth { dialect: Arc::new(dialect), auth }));
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
    fn format(&self, request: &Request) -> &DialectWithAuth {
        let fits = |(models, _): &&(ModelFilter, DialectWithAuth)| models(&request.model);
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
        let query = Url::parse(self.base_url.trim()).map(|url| query_secrets(&url));
        let query = query.into_iter().flatten().map(|(value, _)| value);
        key.into_iter().chain(headers).chain(query).collect()
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let kept = request.clone();
        let spare = || origin::without_private_parts(&kept, self.format(&kept).dialect.name());
        match self.send(request, &context, None).await {
            Err(error) if is_unverified(&error) => {
                let Some(spare) = spare() else { return Err(error) };
                tracing::warn!(provider = self.name, %error, "the request is repeated without private data");
                let warning = format!(
                    "signatures and encrypted reasoning of earlier answers are left out: {} can't verify them; \
                     they may be those of another key, region or deployment",
                    self.name
                );
                self.send(spare, &context, Some(warning)).await
            }
            sent => sent,
        }
    }
}

impl Endpoint {
    /// Sends a request. `warning` is added to the warnings of its response.
    async fn send(
        &self,
        request: Request,
        context: &RequestContext,
        warning: Option<String>,
    ) -> Result<DeltaStream, ProviderError> {
        let format = self.format(&request);
        let dialect = &*format.dialect;
        let url = self.url(dialect, &request)?;
        context.set_server(url.host_str().unwrap_or_default(), url.port_or_known_default());
        let (mut headers, mut secrets) = self.headers(format, &request)?;
        secrets.extend(query_secrets(&url));
        let error_context = ExchangeErrorScrubber::new(secrets);
        let Encoded { body, mut warnings } =
            self.encode(dialect, &request).map_err(|error| error_context.error_context(error))?;
        warnings.extend(warning);
        demand(&mut headers, dialect, &body)?;
        let body = serde_json::to_vec(&body).map_err(|error| {
            ProviderError::new(ProviderErrorKind::InvalidRequest, "the request can't be written as JSON")
                .with_source(error)
        })?;
        tracing::debug!(provider = self.name, model = %request.model, bytes = body.len(), "request");
        let decoder = dialect.decoder(&request);
        let dialect = Arc::clone(&format.dialect);
        // The history is dropped here, because a long history should not stay in memory twice while the model thinks.
        drop(request);
        let outgoing = OutgoingHttpRequest { url, headers, body: body.into(), timeouts: self.timeouts };
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
        let others: Vec<&DialectWithAuth> = self.others.iter().map(|(_, format)| format).collect();
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

crate::debug::impl_debug!(DialectWithAuth(self) { dialect: self.dialect.name(), auth: self.auth, .. });

/// How a service receives its key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// The key is sent in the header `Authorization`, as a bearer token (RFC 6750, section 2.1).
    Bearer,
    /// The key is sent in a header with this name.
    Header(String),
    /// The service uses no key.
    None,
}

impl Auth {
    /// Returns the name of the header that carries the key.
    fn header(&self) -> Option<&str> {
        match self {
            Self::Bearer => Some("authorization"),
            Self::Header(name) => Some(name),
            Self::None => None,
        }
    }

    /// Returns the header's value.
    fn value(&self, key: &Secret) -> Secret {
        match self {
            Self::Bearer => Secret::new(format!("Bearer {}", key.reveal())),
            Self::Header(_) | Self::None => key.clone(),
        }
    }
}

/// The sources from which an endpoint gets its key if the request has none.
#[derive(Clone, Default)]
struct EndpointKeySources {
    own: Option<KeySource>,
    variable: Option<String>,
    /// Whether requests may be sent without a key.
    optional: bool,
}

impl EndpointKeySources {
    /// Returns the key for `request`. The first source is the request's own key, which may have been copied from the
    /// registry. The second source is the endpoint's key, and the third is the environment variable. Empty keys are
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Auth`] if the service named `provider` requires a key but no source has one.
    fn find(&self, provider: &str, request: &Request) -> Result<Option<Secret>, ProviderError> {
        let given = |key: &Secret| !key.reveal().is_empty();
        let environment = || self.variable.as_ref().and_then(|name| env::var(name).ok()).map(Secret::new);
        let key = request.options.api_key().cloned().filter(given);
        let key = key.or_else(|| self.own.as_ref()?.key()).or_else(|| environment().filter(given));
        if key.is_none() && !self.optional {
            return Err(ProviderError::new(ProviderErrorKind::Auth, self.missing(provider)));
        }
        Ok(key)
    }

    fn missing(&self, provider: &str) -> String {
        let variable = match &self.variable {
            Some(name) => format!(", or set the environment variable {name}"),
            None => String::new(),
        };
        format!("no API key for {provider:?}: set one in the request, the registry or the endpoint{variable}")
    }
}

crate::debug::impl_debug!(EndpointKeySources(self) { own: self.own, variable: self.variable, optional: self.optional });

impl Endpoint {
    /// Returns the address of a request.
    fn url(&self, dialect: &dyn Dialect, request: &Request) -> Result<Url, ProviderError> {
        let bad = |why: &str| {
            let message = format!("the base URL of {:?} {why}", self.name);
            ProviderError::new(ProviderErrorKind::InvalidRequest, message)
        };
        let base = Url::parse(self.base_url.trim()).map_err(|error| bad("is invalid").with_source(error))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(bad("must begin with http:// or https:// and name a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(bad("contains a user name or a password; send them in a header"));
        }
        let origin = base.origin().ascii_serialization();
        let root = base.path().trim_end_matches('/');
        let version = self.version.trim_matches('/');
        let slash = if version.is_empty() || ends_in_version(root, version) { "" } else { "/" };
        let version = if slash.is_empty() { "" } else { version };
        let path = dialect.path(request);
        let path = path.trim_start_matches('/');
        let mut url = Url::parse(&format!("{origin}{root}{slash}{version}/{path}"))
            .map_err(|error| bad("and the path don't form a valid address").with_source(error))?;
        if let Some(query) = base.query() {
            let query = match url.query() {
                Some(own) => format!("{query}&{own}"),
                None => query.to_owned(),
            };
            url.set_query(Some(&query));
        }
        Ok(url)
    }

    /// Returns the headers of a request, and the secret values among them. The headers that the request's body requires
    /// are not included.
    fn headers(
        &self,
        format: &DialectWithAuth,
        request: &Request,
    ) -> Result<(HeaderMap, Vec<(Secret, SecretMatchMode)>), ProviderError> {
        let mut headers = HeaderMap::new();
        let accept = match format.dialect.framing() {
            Framing::Sse => "text/event-stream, application/json",
            Framing::NdJson => "application/x-ndjson, application/json",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        // Without `accept-encoding`, the service would be allowed to use any compression (RFC 9110, section 12.5.3).
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.plain {
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit(name))?;
            headers.insert(header_name(name)?, value);
        }
        let mut secrets = Vec::new();
        let own = self.headers.iter().map(|(name, value)| (name, value));
        for (name, value) in own.chain(request.options.headers().into_iter().flatten()) {
            let name = header_name(name)?;
            secrets.push((value.clone(), extent(&name)));
            headers.insert(name.clone(), header_value(name.as_str(), value)?);
        }
        let Some(name) = format.auth.header() else {
            return Ok((headers, secrets));
        };
        let name = header_name(name)?;
        // If the user sets the authentication header explicitly, the key is not added.
        if headers.contains_key(&name) {
            return Ok((headers, secrets));
        }
        if let Some(key) = self.keys.find(&self.name, request)? {
            let value = header_value(name.as_str(), &format.auth.value(&key)).map_err(|_| {
                let message = format!(
                    "the API key for {:?} contains characters that are not allowed in a header, such as a line end",
                    self.name
                );
                ProviderError::new(ProviderErrorKind::Auth, message)
            })?;
            secrets.push((key, SecretMatchMode::Parts));
            headers.insert(name, value);
        }
        Ok((headers, secrets))
    }

    /// Returns the JSON body of a request, with warnings about options that the body can't express.
    fn encode(&self, dialect: &dyn Dialect, request: &Request) -> Result<Encoded, ProviderError> {
        check_conversation(&request.history)?;
        let request = &*origin::for_service(request, &self.name, dialect.name());
        let mut encoded = dialect.encode(request)?;
        for hook in &self.body_hooks {
            hook(&mut encoded.body, request)?;
        }
        if let Some(extra) = request.options.extra() {
            let Encoded { body, warnings } = &mut encoded;
            let name = &self.name;
            merge(body, extra, "", &mut |member: &str| {
                warnings.push(format!("`extra` replaces `{member}`: {name} gets only the value of `extra`"));
            });
        }
        Ok(encoded)
    }
}

/// Rejects an empty prompt, because the services' errors rarely name the reason.
fn check_conversation(history: &History) -> Result<(), ProviderError> {
    match history.last() {
        Some(last) if last.role == Role::User && last.content.iter().all(is_blank) => {
            let index = history.len() - 1;
            let message = format!("message {index}: the prompt is empty; give it text or an attachment");
            Err(ProviderError::new(ProviderErrorKind::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

fn is_blank(block: &Content) -> bool {
    matches!(block, Content::Text(text) if text.text.trim().is_empty())
}

/// The only header of a wire format whose value is a list. The user's items are joined with the items that the body
/// requires.
const LIST: &str = "anthropic-beta";

/// Adds the headers that the wire format requires for this body to the other headers of the request.
fn demand(
    headers: &mut HeaderMap,
    dialect: &dyn Dialect,
    body: &Map<String, Value>,
) -> Result<(), ProviderError> {
    for (name, value) in dialect.headers(body) {
        let key = header_name(name)?;
        let joined = match headers.get(&key) {
            None => HeaderValue::from_static(value),
            Some(own) if name == LIST && !lists(own, value) => {
                let joined = [own.as_bytes(), b",", value.as_bytes()].concat();
                let mut joined = HeaderValue::from_bytes(&joined).map_err(|_| unfit(name))?;
                joined.set_sensitive(own.is_sensitive());
                joined
            }
            Some(_) => continue,
        };
        headers.insert(key, joined);
    }
    Ok(())
}

/// Returns whether this comma-separated list contains this item.
fn lists(list: &HeaderValue, item: &str) -> bool {
    list.as_bytes().split(|byte| *byte == b',').any(|one| one.trim_ascii() == item.as_bytes())
}

/// Returns whether the last segment of `path` is `version`, or looks like a version.
fn ends_in_version(path: &str, version: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let looks = last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    looks || path.strip_suffix(version).is_some_and(|root| root.ends_with('/'))
}

/// Returns the header's name, if it is valid and may be set.
fn header_name(name: &str) -> Result<HeaderName, ProviderError> {
    let refused = |why| {
        let name: String = name.chars().take(64).collect();
        ProviderError::new(ProviderErrorKind::InvalidRequest, format!("header {name:?} {why}"))
    };
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("is not a valid header name"))?;
    if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
        return Err(refused("belongs to the framing of the request and can't be set"));
    }
    Ok(name)
}

fn header_value(name: &str, value: &Secret) -> Result<HeaderValue, ProviderError> {
    let mut header = HeaderValue::from_str(value.reveal()).map_err(|_| unfit(name))?;
    // A sensitive value is kept out of the debug output of the HTTP stack and out of header compression tables.
    header.set_sensitive(true);
    Ok(header)
}

/// Returns whether every part of a header's value is replaced in errors, or only the whole value. If parts of an
/// ordinary word or URL were replaced, harmless text would be replaced too.
fn extent(name: &HeaderName) -> SecretMatchMode {
    if names_credentials(name.as_str()) { SecretMatchMode::Parts } else { SecretMatchMode::Whole }
}

fn names_credentials(name: &str) -> bool {
    let words = ["auth", "key", "token", "secret", "cookie", "password", "credential", "signature"];
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

/// Returns the credentials in the query of a URL.
fn query_secrets(url: &Url) -> Vec<(Secret, SecretMatchMode)> {
    let credentials = url.query_pairs().filter(|(name, _)| names_credentials(name));
    credentials.map(|(_, value)| (Secret::new(&*value), SecretMatchMode::Parts)).collect()
}

/// Returns the error for a header with this name whose value can't be sent.
fn unfit(name: &str) -> ProviderError {
    let message =
        format!("the value of header {name:?} contains characters that are not allowed in a header");
    ProviderError::new(ProviderErrorKind::InvalidRequest, message)
}

/// Merges `over` into `body`: objects are merged, tools follow the tools of the body, and all other values are replaced.
/// `path` is the path of `body`. Calls `replaced` with the path of each member that had another value.
fn merge(
    body: &mut Map<String, Value>,
    over: &Map<String, Value>,
    path: &str,
    replaced: &mut dyn FnMut(&str),
) {
    for (key, value) in over {
        let place = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match (body.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(over)) => merge(inner, over, &place, replaced),
            (Some(Value::Array(tools)), Value::Array(more)) if place == "tools" => {
                append(tools, more, replaced);
            }
            (Some(old), value) if old == value => {}
            (Some(old), value) => {
                *old = value.clone();
                replaced(&place);
            }
            (None, value) => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Appends tools. A tool replaces the earlier tool of the same name, and a function inside a tool replaces the earlier
/// function of the same name, because services reject two tools with one name.
fn append(tools: &mut Vec<Value>, more: &[Value], replaced: &mut dyn FnMut(&str)) {
    for tool in more {
        for name in tool[FUNCTIONS].as_array().into_iter().flatten().filter_map(tool_name) {
            for own in tools.iter_mut().filter_map(|own| own.get_mut(FUNCTIONS)?.as_array_mut()) {
                let old = own.extract_if(.., |function| tool_name(function) == Some(name));
                old.for_each(|_| replaced(&format!("tools.{name}")));
            }
        }
        tools.retain(|own| *own != json!({FUNCTIONS: []}));
        let name = tool_name(tool);
        match tools.iter_mut().find(|own| name.is_some() && tool_name(own) == name) {
            Some(own) => {
                // Without this mark, the prompt would no longer be cached up to this tool. Anthropic rejects the mark for
                // a tool that is loaded later.
                let mark = own.get_mut("cache_control").map(Value::take);
                let mark = mark.filter(|_| tool["defer_loading"] != true);
                *own = tool.clone();
                if let (Some(mark), Value::Object(own)) = (mark, own) {
                    own.entry("cache_control").or_insert(mark);
                }
                replaced(&format!("tools.{}", name.unwrap_or_default()));
            }
            None => tools.push(tool.clone()),
        }
    }
}

/// The member with the functions of a tool in Gemini's format, which has one object for several functions.
const FUNCTIONS: &str = "functionDeclarations";

/// Returns the name of a tool in the formats that have one object per tool.
fn tool_name(tool: &Value) -> Option<&str> {
    tool.get("name").or_else(|| tool.get("function")?.get("name"))?.as_str()
}

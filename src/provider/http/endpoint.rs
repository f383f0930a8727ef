//! What an endpoint is made of, and the request it makes of it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use reqwest::{
    Url,
    header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING},
};
use serde_json::{Map, Value};

use super::{
    Auth, Limits, Timeouts,
    answer::Parts,
    exchange::{self, Dress, Outgoing},
    key::{Keys, Source},
};
use crate::provider::{
    Delta, DeltaStream, ErrorKind, Provider, ProviderError, Request, RequestContext, Secret,
    dialect::{AnthropicMessages, ChatCompletions, Dialect, Framing},
};

/// Changes a request's JSON body before it is sent.
type BodyHook = Arc<dyn Fn(&mut Map<String, Value>, &Request) -> Result<(), ProviderError> + Send + Sync>;
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
#[derive(Clone)]
pub struct Endpoint {
    name: String,
    base_url: String,
    version: String,
    dialect: Arc<dyn Dialect>,
    auth: Auth,
    keys: Keys,
    /// What the service demands of everyone.
    fixed: Vec<(&'static str, &'static str)>,
    /// What this user wants; the values are secret.
    headers: Vec<(String, Secret)>,
    body_hooks: Vec<BodyHook>,
    delta_hooks: Vec<DeltaHook>,
    limits: Limits,
    timeouts: Timeouts,
}

impl Endpoint {
    /// A service that speaks `dialect` below `base_url`, under `/v1`. It takes a bearer token if there is
    /// one, and does without if there is none.
    pub fn custom(name: impl Into<String>, base_url: impl Into<String>, dialect: impl Dialect) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            version: "/v1".to_owned(),
            dialect: Arc::new(dialect),
            auth: Auth::Bearer,
            keys: Keys { optional: true, ..Keys::default() },
            fixed: Vec::new(),
            headers: Vec::new(),
            body_hooks: Vec::new(),
            delta_hooks: Vec::new(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
        }
    }

    /// A service that speaks Chat Completions as OpenAI does, say a local model server.
    pub fn openai_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, ChatCompletions::default())
    }

    /// A service that speaks the Messages format as Anthropic does.
    pub fn anthropic_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self {
            auth: Auth::Header("x-api-key".to_owned()),
            // https://docs.anthropic.com/en/api/versioning
            fixed: vec![("anthropic-version", "2023-06-01")],
            ..Self::custom(name, base_url, AnthropicMessages)
        }
    }

    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        Self::anthropic_compatible("anthropic", "https://api.anthropic.com")
            .with_key_variable("ANTHROPIC_API_KEY")
    }

    /// OpenAI by its Chat Completions format, with the key from `OPENAI_API_KEY`.
    pub fn openai() -> Self {
        Self::custom("openai", "https://api.openai.com", ChatCompletions::openai())
            .with_key_variable("OPENAI_API_KEY")
    }

    /// All services that this crate knows.
    pub fn all() -> Vec<Self> {
        vec![
            Self::anthropic(),
            Self::openai(),
            Self::openai_responses(),
            Self::google(),
            Self::ollama(),
            Self::ollama_cloud(),
        ]
    }

    /// The same endpoint under another name.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same endpoint at another address.
    pub fn with_base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = base_url.into();
        self
    }

    /// The same endpoint with `version` between the base URL and the format's own path, instead of `/v1`. A
    /// base URL whose last segment is a version already keeps that.
    pub fn with_version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// The same endpoint, taking its key this way.
    pub fn with_auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// The same endpoint with a key.
    pub fn with_key(mut self, key: impl Into<Secret>) -> Self {
        self.keys.own = Some(Source::Value(key.into()));
        self
    }

    /// The same endpoint with a function that is asked for the key at each request. `None` sends on to the
    /// environment variable. It must not block.
    pub fn with_key_from(mut self, key: impl Fn() -> Option<Secret> + Send + Sync + 'static) -> Self {
        self.keys.own = Some(Source::Function(Arc::new(key)));
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

    /// The address of a request.
    fn url(&self, request: &Request) -> Result<Url, ProviderError> {
        let bad = |why: &str| {
            let message = format!("the base URL of {:?} {why}", self.name);
            ProviderError::new(ErrorKind::InvalidRequest, message)
        };
        let base = Url::parse(self.base_url.trim()).map_err(|error| bad("is none").with_source(error))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(bad("must begin with http:// or https:// and name a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(bad("holds a user name or a password; send them in a header"));
        }
        let origin = base.origin().ascii_serialization();
        let root = base.path().trim_end_matches('/');
        let version = self.version.trim_matches('/');
        let slash = if version.is_empty() || ends_in_version(root, version) { "" } else { "/" };
        let version = if slash.is_empty() { "" } else { version };
        let path = self.dialect.path(request);
        let path = path.trim_start_matches('/');
        let mut url = Url::parse(&format!("{origin}{root}{slash}{version}/{path}"))
            .map_err(|error| bad("gives no address together with the path").with_source(error))?;
        if let Some(query) = base.query() {
            let query = match url.query() {
                Some(own) => format!("{query}&{own}"),
                None => query.to_owned(),
            };
            url.set_query(Some(&query));
        }
        Ok(url)
    }

    /// The headers of a request, and the values in them that nobody may see.
    fn headers(&self, request: &Request) -> Result<(HeaderMap, Vec<Secret>), ProviderError> {
        let mut headers = HeaderMap::new();
        let accept = match self.dialect.framing() {
            Framing::Sse => "text/event-stream, application/json",
            Framing::NdJson => "application/x-ndjson, application/json",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.fixed {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let mut secrets = Vec::new();
        let own = self.headers.iter().map(|(name, value)| (name, value));
        for (name, value) in own.chain(request.options.headers.iter().flatten()) {
            let name = header_name(name)?;
            secrets.push(value.clone());
            headers.insert(name.clone(), header_value(name.as_str(), value)?);
        }
        let Some(name) = self.auth.header() else {
            return Ok((headers, secrets));
        };
        let name = header_name(name)?;
        // Somebody who sets the header itself knows why.
        if headers.contains_key(&name) {
            return Ok((headers, secrets));
        }
        if let Some(key) = self.keys.find(&self.name, request)? {
            let value = header_value(name.as_str(), &self.auth.value(&key)).map_err(|_| {
                let message = format!(
                    "the API key for {:?} holds characters that no header can carry, a line end perhaps",
                    self.name
                );
                ProviderError::new(ErrorKind::Auth, message)
            })?;
            secrets.push(key);
            headers.insert(name, value);
        }
        Ok((headers, secrets))
    }

    /// The JSON body of a request, and what it could not say.
    fn body(&self, request: &Request) -> Result<(Vec<u8>, Vec<String>), ProviderError> {
        let encoded = self.dialect.encode(request)?;
        let mut body = encoded.body;
        for hook in &self.body_hooks {
            hook(&mut body, request)?;
        }
        if let Some(extra) = &request.options.extra {
            merge(&mut body, extra);
        }
        let body = serde_json::to_vec(&body).map_err(|error| {
            ProviderError::new(ErrorKind::InvalidRequest, "the request can't be written as JSON")
                .with_source(error)
        })?;
        Ok((body, encoded.warnings))
    }
}

#[async_trait]
impl Provider for Endpoint {
    fn name(&self) -> &str {
        &self.name
    }

    async fn stream(&self, request: Request, _context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let url = self.url(&request)?;
        let (headers, secrets) = self.headers(&request)?;
        let dress = Dress { secrets, request_id: None };
        let (body, warnings) = self.body(&request).map_err(|error| dress.dress(error))?;
        tracing::debug!(provider = self.name, model = %request.model, bytes = body.len(), "request");
        // A long history need not stay in memory twice while the model thinks.
        drop(request);
        let outgoing = Outgoing { url, headers, body: body.into(), timeouts: self.timeouts };
        let parts = Parts {
            dialect: Arc::clone(&self.dialect),
            hooks: self.delta_hooks.clone(),
            limits: self.limits,
            between_chunks: self.timeouts.between_chunks,
            warnings,
            dress,
        };
        exchange::run(outgoing, parts).await
    }
}

impl fmt::Debug for Endpoint {
    /// Shows neither keys nor header values, nor a base URL that may hold some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = Url::parse(&self.base_url).map(|url| url.origin().ascii_serialization());
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("origin", &origin.as_deref().unwrap_or("invalid"))
            .field("version", &self.version)
            .field("dialect", &self.dialect.name())
            .field("auth", &self.auth)
            .field("keys", &self.keys)
            .field("headers", &headers)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// Whether the last segment of `path` is `version`, or looks like one.
fn ends_in_version(path: &str, version: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let looks = last.strip_prefix('v').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    looks || path.strip_suffix(version).is_some_and(|root| root.ends_with('/'))
}

/// A header's name, if it is one that may be set.
fn header_name(name: &str) -> Result<HeaderName, ProviderError> {
    let refused = |why| {
        let name: String = name.chars().take(64).collect();
        ProviderError::new(ErrorKind::InvalidRequest, format!("header {name:?} {why}"))
    };
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refused("is no header name"))?;
    if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
        return Err(refused("frames the request and can't be set"));
    }
    Ok(name)
}

fn header_value(name: &str, value: &Secret) -> Result<HeaderValue, ProviderError> {
    let mut header = HeaderValue::from_str(value.reveal()).map_err(|_| {
        let message = format!("the value of header {name:?} holds characters that no header can carry");
        ProviderError::new(ErrorKind::InvalidRequest, message)
    })?;
    // Keeps it out of the debug output of the HTTP stack and of header compression tables.
    header.set_sensitive(true);
    Ok(header)
}

/// Lays `over` over `body`: objects are merged, everything else is replaced.
fn merge(body: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (body.get_mut(key), value) {
            (Some(Value::Object(inner)), Value::Object(over)) => merge(inner, over),
            (_, value) => {
                body.insert(key.clone(), value.clone());
            }
        }
    }
}

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
    key::Keys,
    origin,
};
use crate::provider::{
    Delta, DeltaStream, ErrorKind, Provider, ProviderError, Request, RequestContext, Secret,
    dialect::{Dialect, Encoded, Framing},
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

    /// The address of a request.
    fn url(&self, dialect: &dyn Dialect, request: &Request) -> Result<Url, ProviderError> {
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
        let path = dialect.path(request);
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
    fn headers(&self, format: &Format, request: &Request) -> Result<(HeaderMap, Vec<Secret>), ProviderError> {
        let mut headers = HeaderMap::new();
        let accept = match format.dialect.framing() {
            Framing::Sse => "text/event-stream, application/json",
            Framing::NdJson => "application/x-ndjson, application/json",
        };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in format.dialect.headers() {
            headers.insert(header_name(name)?, HeaderValue::from_static(value));
        }
        for (name, value) in &self.plain {
            let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit(name))?;
            headers.insert(header_name(name)?, value);
        }
        let mut secrets = Vec::new();
        let own = self.headers.iter().map(|(name, value)| (name, value));
        for (name, value) in own.chain(request.options.headers.iter().flatten()) {
            let name = header_name(name)?;
            secrets.push(value.clone());
            headers.insert(name.clone(), header_value(name.as_str(), value)?);
        }
        let Some(name) = format.auth.header() else {
            return Ok((headers, secrets));
        };
        let name = header_name(name)?;
        // Somebody who sets the header itself knows why.
        if headers.contains_key(&name) {
            return Ok((headers, secrets));
        }
        if let Some(key) = self.keys.find(&self.name, request)? {
            let value = header_value(name.as_str(), &format.auth.value(&key)).map_err(|_| {
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

    /// The JSON body of a request, and what it could not say.
    fn encode(&self, dialect: &dyn Dialect, request: &Request) -> Result<Encoded, ProviderError> {
        let request = &*origin::for_service(request, &self.name, dialect.name());
        let mut encoded = dialect.encode(request)?;
        for hook in &self.body_hooks {
            hook(&mut encoded.body, request)?;
        }
        if let Some(extra) = &request.options.extra {
            merge(&mut encoded.body, extra);
        }
        Ok(encoded)
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
        let (headers, secrets) = self.headers(format, &request)?;
        let dress = Dress { secrets, request_id: None };
        let Encoded { body, warnings } =
            self.encode(dialect, &request).map_err(|error| dress.dress(error))?;
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
            dress,
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
    let mut header = HeaderValue::from_str(value.reveal()).map_err(|_| unfit(name))?;
    // Keeps it out of the debug output of the HTTP stack and of header compression tables.
    header.set_sensitive(true);
    Ok(header)
}

/// The error for a header with this name whose value can't be sent.
fn unfit(name: &str) -> ProviderError {
    let message = format!("the value of header {name:?} holds characters that no header can carry");
    ProviderError::new(ErrorKind::InvalidRequest, message)
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

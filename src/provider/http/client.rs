//! The HTTP clients, with their connection pools, that all endpoints of a runtime share.
//!
//! The task that drives a connection belongs to the runtime that opened the connection. If another runtime took the
//! connection from the pool, the connection would hang while the first runtime is not running, and break when that
//! runtime ends. Therefore, each runtime has its own clients.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use reqwest::{Client, StatusCode, Url, dns::Resolve, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring, version::TLS13};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::runtime;

use crate::{
    provider::{ProviderError, ProviderErrorKind, http::exchange},
    sync::lock,
};

/// The clients in use, with the most recently used client last. The list is short, because a process has one or two
/// kinds of connection and usually one runtime.
static CLIENTS: Mutex<Vec<(HttpClientCacheKey, Client)>> = Mutex::new(Vec::new());

/// The maximum number of clients that are kept. The limit is needed because nothing reports the end of a runtime, and
/// each test may have its own runtime. A client that is removed loses its idle connections. Responses in flight keep
/// working, because they hold the client.
const MAX_CLIENTS: usize = 32;

/// The maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;

/// The properties in which connections differ.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HttpClientCacheKey {
    runtime: runtime::Id,
    connect: Duration,
    /// Whether the service is on this machine. A connection to such a service never uses a proxy.
    local: bool,
    tls: bool,
    /// Whether redirects within the origin are followed.
    redirects: bool,
}

impl HttpClientCacheKey {
    fn of(url: &Url, connect: Duration) -> Self {
        let runtime = runtime::Handle::current().id();
        Self { runtime, connect, local: is_local(url), tls: url.scheme() == "https", redirects: false }
    }
}

/// Returns the client for requests to `url`. The client is created when it is first needed.
///
/// # Errors
///
/// Returns [`ProviderErrorKind::Transport`] if TLS can't be set up, for example because the system has no root
/// certificate.
pub(crate) fn client(url: &Url, connect: Duration) -> Result<Client, ProviderError> {
    cached(HttpClientCacheKey::of(url, connect))
}

/// Returns a client that follows redirects within the origin of `url` which keep the method and the body. All other
/// redirects are errors that name the target. Otherwise, it is like the one of [`client`].
///
/// # Errors
///
/// Fails like [`client`].
#[cfg(feature = "mcp")]
pub(crate) fn redirected_client(url: &Url, connect: Duration) -> Result<Client, ProviderError> {
    cached(HttpClientCacheKey { redirects: true, ..HttpClientCacheKey::of(url, connect) })
}

fn cached(kind: HttpClientCacheKey) -> Result<Client, ProviderError> {
    let mut clients = lock(&CLIENTS);
    let client = match clients.iter().position(|(other, _)| *other == kind) {
        Some(place) => clients.remove(place).1,
        None => build(kind, None)?,
    };
    if clients.len() == MAX_CLIENTS {
        clients.remove(0);
    }
    clients.push((kind, client.clone()));
    Ok(client)
}

/// Returns a new client for requests to `url`. Its connections are not shared, because it uses its own resolver of names.
///
/// # Errors
///
/// Fails like [`client`].
#[cfg(feature = "mcp-auth")]
pub(crate) fn resolving_client(
    url: &Url,
    connect: Duration,
    resolver: Arc<dyn Resolve>,
) -> Result<Client, ProviderError> {
    build(HttpClientCacheKey::of(url, connect), Some(resolver))
}

fn build(kind: HttpClientCacheKey, resolver: Option<Arc<dyn Resolve>>) -> Result<Client, ProviderError> {
    let tls = tls(kind).map_err(|error| {
        ProviderError::new(ProviderErrorKind::Transport, "TLS can't be set up")
            .with_retryable(false)
            .with_source(error)
    })?;
    let builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("omni-agent/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(kind.connect)
        // Redirects to other origins are not followed, because the key would be sent to the redirect's target.
        .redirect(if kind.redirects {
            redirect::Policy::custom(redirected)
        } else {
            redirect::Policy::none()
        })
        .referer(false);
    let builder = if kind.local { builder.no_proxy() } else { builder };
    let builder = match resolver {
        Some(resolver) => builder.dns_resolver(resolver),
        None => builder,
    };
    builder.build().map_err(|error| {
        exchange::with_cause(ProviderErrorKind::Transport, "the HTTP client can't be set up", error)
            .with_retryable(false)
    })
}

/// Follows a redirect if its target has the same origin and gets the same request.
fn redirected(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let keeps_request =
        matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
    let is_own = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    if keeps_request && is_own && attempt.previous().len() <= MAX_REDIRECTS {
        return attempt.follow();
    }
    let (target, status) = (attempt.url(), attempt.status().as_u16());
    let target = format!("{}{}", target.origin().ascii_serialization(), target.path());
    attempt.error(format!("the redirect {status} to {target} is not followed; use this URL if you trust it"))
}

/// Configures TLS with ring and the platform's certificates. The process-wide crypto provider is not changed, since the
/// application chooses it.
fn tls(kind: HttpClientCacheKey) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut config = if kind.tls {
        builder.with_safe_default_protocol_versions()?.with_platform_verifier()?.with_no_client_auth()
    } else {
        // This configuration is never used for a connection, but the client requires one. It has no root certificates,
        // because plain HTTP must also work on systems without certificates.
        let builder = builder.with_protocol_versions(&[&TLS13])?;
        builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn is_local(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.ends_with(".localhost") || host.starts_with("127."),
        None => false,
    }
}

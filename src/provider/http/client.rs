//! The HTTP clients that all endpoints share, with their connection pools.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Client, Url, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring, version::TLS13};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::provider::{ErrorKind, ProviderError};

/// One client for each kind of connection in use.
static CLIENTS: LazyLock<Mutex<BTreeMap<Kind, Client>>> = LazyLock::new(Mutex::default);

/// What connections differ in. A process has one or two kinds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    connect: Duration,
    /// To this machine: never by way of a proxy.
    local: bool,
    tls: bool,
}

/// The client for requests to `url`, made when it is first needed.
///
/// # Errors
///
/// [`ErrorKind::Transport`] if TLS can't be set up, say without any root certificate on the system.
pub(super) fn client(url: &Url, connect: Duration) -> Result<Client, ProviderError> {
    let kind = Kind { connect, local: is_local(url), tls: url.scheme() == "https" };
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(&kind) {
        return Ok(client.clone());
    }
    let client = build(kind)?;
    clients.insert(kind, client.clone());
    Ok(client)
}

fn build(kind: Kind) -> Result<Client, ProviderError> {
    let tls = tls(kind).map_err(|error| {
        let message = format!("TLS can't be set up: {error}");
        ProviderError::new(ErrorKind::Transport, message).with_retryable(false).with_source(error)
    })?;
    let builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("omni-agent/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(kind.connect)
        // A redirect would carry the key to wherever it points.
        .redirect(redirect::Policy::none())
        .referer(false);
    let builder = if kind.local { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| {
        let message = "the HTTP client can't be set up";
        ProviderError::new(ErrorKind::Transport, message).with_retryable(false).with_source(error)
    })
}

/// TLS with ring and the platform's certificates, without touching the process-wide crypto provider: that
/// is the application's to choose.
fn tls(kind: Kind) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut config = if kind.tls {
        builder.with_safe_default_protocol_versions()?.with_platform_verifier()?.with_no_client_auth()
    } else {
        // Never used, but the client wants one; and plain HTTP must work where there are no certificates.
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

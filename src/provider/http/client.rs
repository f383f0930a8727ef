//! The HTTP clients that all endpoints of a runtime share, with their connection pools.
//!
//! A connection is driven by a task of the runtime that opened it. Taken from the pool by another runtime, it would hang
//! while its own is not running, and break when its own ends: so each runtime has clients of its own.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Client, Url, redirect};
use rustls::{ClientConfig, RootCertStore, crypto::ring, version::TLS13};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::runtime;

use crate::provider::{ErrorKind, ProviderError, http::exchange};

/// The clients in use, the latest last. A process has one or two kinds of connection, and mostly one runtime.
static CLIENTS: Mutex<Vec<(Kind, Client)>> = Mutex::new(Vec::new());

/// Clients that are kept, at most. Nobody tells when a runtime ends, and each test may have one. A client that is dropped
/// here loses its idle connections; the answers in flight have it still.
const MAX_CLIENTS: usize = 32;

/// What connections differ in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    runtime: runtime::Id,
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
    let runtime = runtime::Handle::current().id();
    let kind = Kind { runtime, connect, local: is_local(url), tls: url.scheme() == "https" };
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let client = match clients.iter().position(|(other, _)| *other == kind) {
        Some(place) => clients.remove(place).1,
        None => build(kind)?,
    };
    if clients.len() == MAX_CLIENTS {
        clients.remove(0);
    }
    clients.push((kind, client.clone()));
    Ok(client)
}

fn build(kind: Kind) -> Result<Client, ProviderError> {
    let tls = tls(kind).map_err(|error| {
        ProviderError::new(ErrorKind::Transport, "TLS can't be set up")
            .with_retryable(false)
            .with_source(error)
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
        exchange::with_cause(ErrorKind::Transport, "the HTTP client can't be set up", error)
            .with_retryable(false)
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

//! A trusted proxy in front of several processes that share a store.
//!
//! The proxy sends a request to any process. If another process owns the conversation, the answer to the proxy names the
//! owner in a header, and the proxy repeats the request there. The answer to a repeated request never names an owner, so an
//! outdated owner cannot make a request go in circles.
//!
//! Clients never learn an address. A problem carries its error to [`ProxyRequestAttempt::finish`] as an extension of the response,
//! which is not sent, and only the answer to a request with the secret gets the header.

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue},
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq;

use super::{Problem, Web, WebBuilder, gate::WebRequest};
use crate::{
    manager::{Listed, Presence},
    provider::Secret,
    run::{Error, ErrorKind},
    store::{StoreError, Summary},
};

/// The header with the secret, which only the proxy sends.
const SECRET: HeaderName = HeaderName::from_static("x-omni-proxy");

/// The header of a request that the proxy repeats.
const REPLAYED: HeaderName = HeaderName::from_static("x-omni-replayed");

/// The header with the address of the owner.
const OWNER: HeaderName = HeaderName::from_static("x-omni-owner");

impl WebBuilder {
    /// Shows the owner's address to a proxy that sends this secret, so that the proxy can repeat a request at the process
    /// that has the conversation open. By default, and with an empty secret, no request comes from a proxy.
    ///
    /// | header | meaning |
    /// | --- | --- |
    /// | `x-omni-proxy` | The secret. The proxy sets this header on each request, in place of one from the client. The secret consists of visible ASCII characters, and must occur exactly once. |
    /// | `x-omni-owner` | In the answer to the proxy with the status 421: the address of the owner, as in [`Owner::at`](crate::store::Owner::at). It is absent if the owner has no address, or an address that a header cannot contain. The proxy removes this header, and sends requests only to addresses that it knows. |
    /// | `x-omni-replayed` | The proxy sets this header on a request that it repeats, and removes it from requests of clients. If the conversation is then open in yet another process, the answer is 503 `unreachable` with `retry-after`. |
    ///
    /// The guide on [web services](crate::guides::web_services#several-processes) has configurations for nginx, HAProxy and Envoy.
    pub fn proxy_secret(mut self, secret: impl Into<Secret>) -> Self {
        // Secrets are often read from files that end with a line break, which a header cannot contain.
        let secret = Secret::new(secret.into().reveal().trim());
        self.0.proxy_secret = Some(secret).filter(|secret| !secret.reveal().is_empty());
        self
    }
}

/// A request that comes from the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyRequestAttempt {
    /// The proxy can repeat the request at another process.
    First,
    /// The proxy has repeated the request already.
    Replayed,
}

/// The error of a response about a conversation that another process has open.
#[derive(Clone, Debug)]
pub(super) struct OpenElsewhere(pub(super) Error);

impl ProxyRequestAttempt {
    /// Returns `None` if the request does not come from the proxy. Removes the proxy's headers, so that the application's
    /// hooks cannot log the secret.
    pub(super) fn take(web: &Web, headers: &mut HeaderMap) -> Option<Self> {
        let secret = web.0.proxy_secret.as_ref()?.reveal().as_bytes();
        let mut values = headers.get_all(SECRET).iter();
        // With two values, one may come from a client, whose other headers then were not removed either.
        let is_proxy = match (values.next(), values.next()) {
            (Some(value), None) => value.as_bytes().ct_eq(secret).into(),
            _ => false,
        };
        headers.remove(SECRET);
        let is_replayed = headers.remove(REPLAYED).is_some();
        is_proxy.then_some(if is_replayed { Self::Replayed } else { Self::First })
    }

    /// Adds the owner's address to a response to the proxy, or replaces the response if the request was repeated already.
    pub(super) fn finish(request: Option<Self>, mut response: Response) -> Response {
        let elsewhere = response.extensions_mut().remove::<OpenElsewhere>();
        let (Some(request), Some(OpenElsewhere(error))) = (request, elsewhere) else { return response };
        match request {
            Self::First => {
                let address = error.owner().and_then(|owner| owner.address);
                let address = address.and_then(|address| HeaderValue::from_str(&address).ok());
                response.headers_mut().extend(address.map(|address| (OWNER, address)));
                response
            }
            Self::Replayed => {
                let problem = Problem::from(ErrorKind::Unreachable);
                let problem = match error.retry_after() {
                    Some(after) => problem.with_retry_after(after),
                    None => problem,
                };
                problem.into_response()
            }
        }
    }
}

impl WebRequest {
    /// Fails if another process has the route's conversation open, and the proxy can repeat the request there. For an
    /// operation that otherwise waits for the end of that process, or ignores what that process has not stored.
    pub(super) async fn check_owner(&self) -> Result<(), Problem> {
        let (manager, id) = (&self.web.0.manager, self.id()?);
        let is_first = self.parts.extensions.get() == Some(&ProxyRequestAttempt::First);
        if !is_first || manager.get(id).is_some() {
            return Ok(());
        }
        match manager.summary(id).await {
            Ok(Listed { presence: Presence::Elsewhere, summary: Summary { owner: Some(owner), .. } }) => {
                Err(StoreError::Owned { id: id.clone(), owner }.into())
            }
            // The operation itself reports an error of the store.
            _ => Ok(()),
        }
    }
}

//! Endpoints: services that are reached over HTTP.
//!
//! An [`Endpoint`] is a [`Provider`](super::Provider). It knows a service's address, how the service receives its key
//! ([`Auth`]), how long to wait for the service ([`Timeouts`]), and how much to read from the service ([`Limits`]). The
//! wire format, which is the JSON shapes and the stream framing, comes from the module [`custom`](super::custom).
//! Between the endpoint and the wire format, a framer splits the bytes of a response into events.
//!
//! There is a constructor for each service that this crate knows, such as [`Endpoint::anthropic`]. For other services
//! there are [`Endpoint::openai_compatible`], [`Endpoint::anthropic_compatible`] and [`Endpoint::custom`]. [`mapping`]
//! lists how each option is mapped for each service.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use omni_agent::provider::{
//!     Model, Request,
//!     http::{Endpoint, Timeouts},
//! };
//!
//! let mut timeouts = Timeouts::default();
//! timeouts.first_byte = Duration::from_mins(10);
//! let endpoint = Endpoint::openai_compatible("local", "http://localhost:8080").with_timeouts(timeouts);
//!
//! // Shows what would be sent, without sending it.
//! let mut request = Request::prompt("Hi");
//! request.model = "llama".into();
//! let (url, encoded) = endpoint.preview(&request)?;
//! assert_eq!(url, "http://localhost:8080/v1/chat/completions");
//! assert_eq!(encoded.body["model"], "llama");
//!
//! let model = Model::new(Arc::new(endpoint), "llama");
//! # let _ = model;
//! # Ok::<(), omni_agent::provider::ProviderError>(())
//! ```

#[expect(clippy::doc_markdown, reason = "warnings and errors are quoted as they come")]
#[doc = include_str!("../../docs/services.md")]
pub mod mapping {}

mod answer;
mod client;
mod endpoint;
mod exchange;
pub(crate) mod framing;
mod gzip;
mod origin;
mod services;

use std::time::Duration;

use crate::setters::setters;

#[cfg(feature = "mcp")]
pub(crate) use client::redirected_client;
#[cfg(feature = "mcp-auth")]
pub(crate) use client::resolving_client;
pub use endpoint::{Auth, Endpoint};
pub(crate) use framing::Framer;
pub use framing::Limits;
pub use services::{AlibabaRegion, OpenRouter, RoutingSort};

/// How long an endpoint waits for a service.
///
/// If a timeout expires, the request fails with an error of kind [`Timeout`](super::ProviderErrorKind::Timeout) that
/// names the timeout. The limit for a whole exchange is [`Options::timeout`](super::Options::timeout).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The timeout for a connection, including TLS.
    pub connect: Duration,
    /// The timeout from the start of the request until the head of the response.
    pub first_byte: Duration,
    /// The timeout between two pieces of the response. Time during which the caller does not read does not count.
    pub between_chunks: Duration,
}

setters! {
    Timeouts: with_connect(connect: Duration), with_first_byte(first_byte: Duration), with_between_chunks(between_chunks: Duration)
}

impl Default for Timeouts {
    /// Returns a timeout of 10 seconds for the connection. The other timeouts are 5 minutes, because models think
    /// before they answer.
    fn default() -> Self {
        let patient = Duration::from_mins(5);
        Self { connect: Duration::from_secs(10), first_byte: patient, between_chunks: patient }
    }
}

//! Endpoints: services that speak a wire format over HTTP.
//!
//! An [`Endpoint`] says where a service is, how it takes its key and what is particular about it; the
//! [`dialect`](super::dialect) says what goes over the wire. [`Framer`] is the part between the two that cuts
//! an answer's bytes into events.
//!
//! What each service makes of each option stands in [`mapping`].

#[expect(clippy::doc_markdown, reason = "warnings and errors are quoted as they come")]
#[doc = include_str!("../../docs/services.md")]
pub mod mapping {}

mod answer;
mod client;
mod endpoint;
mod exchange;
mod framing;
mod key;
mod meta;
mod origin;
mod services;

use std::time::Duration;

pub use endpoint::{Endpoint, Preview};
pub use framing::{Framer, Limits};
pub use key::Auth;
pub use services::{AlibabaRegion, OpenRouter, RoutingSort};

/// How long an endpoint waits for a service. Each is an error of kind
/// [`Timeout`](super::ErrorKind::Timeout) that names itself. The limit for a whole exchange is
/// [`Options::timeout`](super::OptionFields::timeout).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// From the beginning of the request until the head of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer. Time in which nobody asks for more does not count.
    pub between_chunks: Duration,
}

impl Default for Timeouts {
    /// 10 seconds to connect, 5 minutes for all else: models think before they speak.
    fn default() -> Self {
        let patient = Duration::from_mins(5);
        Self { connect: Duration::from_secs(10), first_byte: patient, between_chunks: patient }
    }
}

//! Providers: one streaming request to a model, whoever serves it.
//!
//! A [`Provider`] turns a [`Request`] into a stream of [`Delta`]s; a [`Fold`] turns deltas into a message.
//! [`Model`] names a model together with the provider that serves it. All of it works without an agent:
//! see [`Model::generate`], [`Model::generate_as`], [`Model::stream_text`] and [`Model::stream`].

pub mod backend;
mod catalogue;
mod context;
mod credentials;
mod delta;
pub mod dialect;
mod error;
mod fit;
mod fold;
#[cfg_attr(
    not(feature = "http"),
    allow(dead_code, reason = "only answers over HTTP have all kinds of halves to join")
)]
mod halves;
#[cfg(feature = "http")]
pub mod http;
mod key;
mod model;
mod options;
mod output;
mod registry;
mod request;
mod retry;
mod secret;

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
pub use catalogue::{Catalogue, CatalogueError, Modality, ModelInfo, Price, Rates};
pub(crate) use context::Questions;
pub use context::RequestContext;
pub use credentials::Credentials;
pub use delta::{BlockStart, Delta, MessageDelta, Part, StopReason};
pub use error::{ErrorKind, ProviderError};
pub use fold::{Completion, Fold, PartialBlock};
use futures_core::Stream;
pub use model::Model;
pub use options::{
    CacheHint, Effort, Options, OutputSchema, ThinkingMode, ToolChoice, UnsupportedAttachment,
};
pub(crate) use output::{Corrections, read as read_output};
pub use registry::{Registry, RegistryError};
pub use request::Request;
pub use retry::RetryPolicy;
pub use secret::Secret;
#[cfg(feature = "http")]
pub(crate) use secret::{Extent, Scrubber};

use crate::message::Message;

/// What a provider's request gives: normalised deltas in order, then the end, or an error and the end.
/// Dropping it ends the exchange with the service.
pub type DeltaStream = Pin<Box<dyn Stream<Item = Result<Delta, ProviderError>> + Send>>;

/// A model service. Dyn-safe; implement it for a service that no endpoint covers.
///
/// An implementation streams what the service sends and does not retry: [`RetryPolicy`] does that, for every
/// provider alike.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The name before the colon in `provider:model`.
    fn name(&self) -> &str;

    /// Makes the instance that one conversation uses, for a provider that keeps state for each. Called once,
    /// before the conversation's first request. `None`, the default, says that the provider has no such
    /// state and serves everyone itself.
    ///
    /// It is not repeated like a request, and a request's timeout does not bound it: an instance that takes a connection
    /// had better make it when it is first asked.
    ///
    /// # Errors
    ///
    /// The instance could not be made; the request that needed it fails with this.
    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(None)
    }

    /// Sends one request and streams the answer.
    ///
    /// The stream must carry a stop reason in its message data before it ends without an error; one that ends
    /// without is taken for truncated.
    ///
    /// # Errors
    ///
    /// The request could not be made, or the service refused it before the first delta.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the exchange.
    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError>;

    /// Tells an instance that [`open`](Provider::open) made that these messages are part of the conversation now: those of
    /// a turn, whole or interrupted. An answer that it never hears of here was discarded. Agents call it when a turn is
    /// committed, before the next request; who opens an instance without an agent, or wraps a provider, does too.
    fn committed(&self, messages: &[Arc<Message>]) {
        let _ = messages;
    }

    /// Ends an instance that [`open`](Provider::open) made. Called once, when its conversation ends or turns
    /// to another model.
    async fn close(&self) {}
}

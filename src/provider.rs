//! Requests to models: one interface for every model service.
//!
//! A [`Registry`] resolves a name such as `anthropic:claude-sonnet-4-6` to a [`Model`], which is a model id together
//! with the [`Provider`] that serves it. A [`Request`] holds the conversation, the tools and the [`Options`]. The
//! provider turns it into a stream of [`Delta`]s, and a [`Fold`] joins the deltas into a message. The [`RetryPolicy`]
//! decides when a failed request is repeated. The [`Catalogue`] knows the limits and prices of models.
//!
//! None of this needs an agent: see [`Model::generate`], [`Model::generate_as`], [`Model::stream_text`] and
//! [`Model::stream`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use omni_agent::provider::{Options, Registry, Request};
//!
//! let model = Registry::default().model("anthropic:claude-sonnet-4-6")?;
//! let request = Request::prompt("Name three mountains.").with_options(Options::default().with_max_tokens(100));
//! let response = model.generate(request).await?;
//! println!("{}", response.message.text());
//! # Ok(())
//! # }
//! ```

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

/// The stream of one response: normalised deltas in order, then the end, or an error and the end.
/// Dropping the stream ends the exchange with the service.
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
    /// If the instance could not be made. The request that needed it fails with this error.
    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(None)
    }

    /// Sends one request and streams the response.
    ///
    /// The stream must carry a stop reason in its message data before it ends without an error. A stream that ends
    /// without a stop reason counts as truncated.
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

//! Requests to models: one interface for every model service.
//!
//! A [`Registry`] resolves a name such as `anthropic:claude-sonnet-4-6` to a [`Model`], which is a model id together
//! with the [`Provider`] that serves it. A [`Request`] holds the conversation, the tools and the [`Options`]. The
//! provider turns the request into a stream of [`Delta`]s, and [`Model::generate`] joins the deltas into a message. The
//! [`RetryPolicy`] decides when a failed request is repeated. The [`Catalogue`] knows the limits and prices of models.
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

pub(crate) mod backend;
mod catalogue;
mod context;
pub mod custom;
mod delta;
pub(crate) mod dialect;
mod error;
mod fit;
#[cfg_attr(not(feature = "test-util"), allow(unreachable_pub, reason = "`testing::internals` has it"))]
pub(crate) mod fold;
#[cfg_attr(
    not(feature = "http"),
    allow(dead_code, reason = "only answers over HTTP have all kinds of halves to join")
)]
mod halves;
#[cfg(feature = "http")]
pub mod http;
mod model;
mod options;
mod output;
mod registry;
mod request;
mod retry;
mod secret;
mod trace;

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
#[cfg(feature = "acp")]
pub use backend::acp;
pub use backend::{BackendLimits, BackendProvider, LostSession};
pub use catalogue::{Catalogue, CatalogueError, Modality, ModelInfo, Price, Rates};
pub(crate) use context::{ProviderQuestionReceiver, RequestContext};
pub(crate) use delta::{BlockStart, Delta, MessageDelta, Part};
pub(crate) use dialect::room;
pub use error::{ProviderError, ProviderErrorKind};
pub(crate) use fold::Fold;
pub use fold::{Completion, PartialBlock};
use futures_core::Stream;
pub use model::Model;
pub use options::{
    CacheHint, Effort, Options, OutputSchema, ThinkingMode, ToolChoice, UnsupportedAttachment,
};
pub(crate) use output::{OutputRetryMessages, read as read_output};
pub use registry::{Registry, RegistryError};
pub use request::Request;
pub(crate) use request::estimated_tokens;
pub use retry::RetryPolicy;
pub use secret::{Credentials, Secret};
#[cfg(feature = "http")]
pub(crate) use secret::{Scrubber, SecretMatchMode};
pub(crate) use trace::{PROVIDER_PANICKED, error_type};

pub use crate::message::StopReason;
use crate::{message::Message, tool::Replay};

/// The stream of one response: normalised deltas in order. If the response fails, the last item is an error. Dropping
/// the stream ends the exchange with the service.
pub type DeltaStream = Pin<Box<dyn Stream<Item = Result<Delta, ProviderError>> + Send>>;

/// A model service. Dyn-safe; implement it for a service that no endpoint covers.
///
/// An implementation streams the service's response and does not retry. [`RetryPolicy`] retries for all providers.
///
/// A block of text starts with a [`Delta::Start`], is extended by pieces, and may end with a [`Delta::End`]. A tool use starts
/// with its id and name, and its input follows as pieces of JSON text ([`Part::Input`]). The guide on
/// [extending](crate::guides::extending#the-deltas-of-a-tool-use) has an example.
///
/// A provider that repeats the last message, called without an agent:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use std::sync::Arc;
///
/// use futures_util::stream;
/// use omni_agent::{
///     async_trait,
///     provider::{
///         DeltaStream, Model, Provider, ProviderError, Request, StopReason,
///         custom::{BlockStart, Delta, Part, RequestContext},
///     },
/// };
///
/// struct Echo;
///
/// #[async_trait]
/// impl Provider for Echo {
///     fn name(&self) -> &str {
///         "echo"
///     }
///
///     async fn stream(&self, request: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
///         let text = request.history.last().map(|message| message.text()).unwrap_or_default();
///         let deltas = [
///             Delta::Start { index: 0, block: BlockStart::Text },
///             Delta::Extend { index: 0, part: Part::Text(text) },
///             Delta::stop(StopReason::Stop),
///         ];
///         Ok(Box::pin(stream::iter(deltas.map(Ok))))
///     }
/// }
///
/// let model = Model::new(Arc::new(Echo), "any-id");
/// assert_eq!(model.name(), "echo:any-id");
/// let response = model.generate(Request::prompt("Hello!")).await?;
/// assert_eq!(response.message.text(), "Hello!");
/// # Ok::<(), ProviderError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// The name before the colon in `provider:model`.
    fn name(&self) -> &str;

    /// Creates the instance for one conversation, if the provider keeps state per conversation. An agent calls this
    /// before its first request to the provider, and again if it has used another provider since then. `None`, the
    /// default, means that the provider has no such state and serves all conversations itself.
    ///
    /// A failed call is not repeated, and the request's timeout does not apply to the call. An instance that needs a
    /// connection should therefore connect at its first request.
    ///
    /// # Errors
    ///
    /// Fails if the instance can't be created. The request that needed the instance then fails with this error.
    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(None)
    }

    /// Sends one request and streams the response.
    ///
    /// Before the stream ends without an error, it must emit a [`Delta::Message`] with a stop reason. A stream that
    /// ends without a stop reason counts as truncated.
    ///
    /// # Errors
    ///
    /// Fails if the request could not be made, or if the service refused it before the first delta.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future or the stream ends the exchange.
    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError>;

    /// Returns the secrets that the provider sends with this request in addition to the request's own key and headers,
    /// such as a key from the environment. Recordings for tests remove these values from their texts. The default is an
    /// empty list.
    fn secrets(&self, request: &Request) -> Vec<Secret> {
        let _ = request;
        Vec::new()
    }

    /// Returns whether a request may be sent again, if the process ended while the response was streamed. The default is
    /// [`Replay::Safe`], because a repeated request to a model costs money and has no other effect. A provider whose
    /// requests have effects returns [`Replay::Never`].
    fn replay(&self) -> Replay {
        Replay::Safe
    }

    /// Reports to an instance from [`open`](Provider::open) that these messages of a turn are now part of the
    /// conversation. The turn is complete, or was interrupted or has failed and keeps its work. A response of the instance that is never reported here was discarded. Agents call
    /// this when a turn is committed, before the next request. Code that opens an instance without an agent, or wraps a
    /// provider, must call it too.
    fn committed(&self, messages: &[Arc<Message>]) {
        let _ = messages;
    }

    /// Ends an instance from [`open`](Provider::open). Called once, when the agent ends or sends a request to another
    /// provider.
    async fn close(&self) {}
}

use std::{fmt, pin::Pin, sync::Arc};

use futures_core::Stream;
use futures_util::{TryStreamExt, stream};

use super::{
    Delta, DeltaStream, ErrorKind, Fold, Folded, Part, Provider, ProviderError, Request, RequestContext,
    RetryPolicy,
};
use crate::message::{Content, Timestamp};

/// A model, together with the provider that serves it. Cheap to clone.
///
/// Get one from a [`Registry`](super::Registry) by its name, or make one for a provider of your own.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    name: String,
    id: Arc<str>,
    provider: Arc<dyn Provider>,
}

/// A whole answer, outside an agent.
pub type Generated = Folded;

/// The text of an answer in pieces, then the end, or an error and the end. Dropping it ends the exchange with
/// the service.
pub type TextStream = Pin<Box<dyn Stream<Item = Result<String, ProviderError>> + Send>>;

impl Model {
    /// The model `id` as `provider` serves it.
    pub fn new(provider: Arc<dyn Provider>, id: impl Into<Arc<str>>) -> Self {
        let id = id.into();
        Self(Arc::new(Inner { name: format!("{}:{id}", provider.name()), id, provider }))
    }

    /// The full name, `provider:id`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The id at the service.
    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    /// Who serves it.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.0.provider
    }

    /// Streams the answer to one request, repeating it as [`RetryPolicy`] says. Errors arrive as the stream's
    /// items. Dropping the stream ends the exchange.
    ///
    /// A history that is not sendable is an [`ErrorKind::InvalidRequest`], and nothing is sent.
    pub fn stream(&self, request: Request) -> DeltaStream {
        if let Err(breach) = request.history.check_sendable() {
            let message = "the request's history breaks the history law; History::repair can mend it";
            let error = ProviderError::new(ErrorKind::InvalidRequest, message).with_source(breach);
            return Box::pin(stream::iter([Err(error)]));
        }
        let request = Request { model: Arc::clone(&self.0.id), ..request };
        RetryPolicy::default().stream(Arc::clone(&self.0.provider), request, RequestContext::detached())
    }

    /// Streams the text of the answer to one request, without thinking and all else. It ends without an
    /// error only if the answer did.
    pub fn stream_text(&self, request: Request) -> TextStream {
        let answer = (self.stream(request), Fold::default());
        Box::pin(stream::try_unfold(answer, |(mut deltas, mut fold)| async move {
            while let Some(delta) = deltas.try_next().await? {
                let piece = match &delta {
                    Delta::Extend { index, part: Part::Text(text) } if !text.is_empty() => {
                        Some((*index, text.clone()))
                    }
                    _ => None,
                };
                fold.apply(delta)?;
                if let Some((index, text)) = piece
                    && matches!(fold.blocks()[index].content, Content::Text(_))
                {
                    return Ok(Some((text, (deltas, fold))));
                }
            }
            fold.finish(Timestamp::now())?;
            Ok(None)
        }))
    }

    /// The whole answer to one request.
    ///
    /// # Errors
    ///
    /// Why there is no whole answer: what the service, the way to it or [`Model::stream`] refused, or
    /// [`ErrorKind::Truncated`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the exchange.
    pub async fn generate(&self, request: Request) -> Result<Generated, ProviderError> {
        let mut stream = self.stream(request);
        let mut fold = Fold::default();
        while let Some(delta) = stream.try_next().await? {
            fold.apply(delta)?;
        }
        fold.finish(Timestamp::now())
    }
}

impl PartialEq for Model {
    /// The same name at the same provider instance.
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name && Arc::ptr_eq(&self.0.provider, &other.0.provider)
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.0.name).finish()
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

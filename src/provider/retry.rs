use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, stream};
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Delta, DeltaStream, ErrorKind, Provider, ProviderError, Request, RequestContext};

/// When a failed request is repeated: only before it brought content, only if its error says that it can
/// help, with exponential backoff and jitter, or when the service said. The figures are those of the official
/// SDKs of Anthropic and OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// How often a request is repeated.
    pub max_retries: u32,
    /// The first wait; doubled each time, less up to a quarter of jitter.
    pub base_delay: Duration,
    /// The longest wait of our own choice.
    pub max_delay: Duration,
    /// The longest wait that a service may ask for; a longer one is reported instead of waited for.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(8),
            max_retry_after: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// How long to wait before retry number `retry` (from 0), or `None` if the error is final.
    pub fn delay(&self, retry: u32, error: &ProviderError) -> Option<Duration> {
        if !error.retryable || retry >= self.max_retries {
            return None;
        }
        match error.retry_after {
            Some(wait) if wait > self.max_retry_after => None,
            Some(wait) => Some(wait),
            None => {
                let backoff = self.base_delay.saturating_mul(1 << retry.min(16)).min(self.max_delay);
                Some(backoff.mul_f64(1.0 - rand::rng().random::<f64>() * 0.25))
            }
        }
    }

    /// Streams `provider`'s answer to `request` under this policy and the request's total timeout.
    ///
    /// Errors arrive as the stream's items.
    pub fn stream(
        self,
        provider: Arc<dyn Provider>,
        request: Request,
        context: RequestContext,
    ) -> DeltaStream {
        let timeout = request.options.timeout;
        let policy = Self { max_retries: request.options.max_retries.unwrap_or(self.max_retries), ..self };
        let answer = stream::once(policy.begin(provider, request, context)).try_flatten();
        match timeout {
            Some(timeout) => Box::pin(limited(Box::pin(answer), timeout)),
            None => Box::pin(answer),
        }
    }

    /// Repeats the request until content arrives or the error is final.
    async fn begin(
        self,
        provider: Arc<dyn Provider>,
        request: Request,
        context: RequestContext,
    ) -> Result<DeltaStream, ProviderError> {
        let mut retry = 0;
        loop {
            match first_content(&*provider, request.clone(), context.clone()).await {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    let Some(wait) = self.delay(retry, &error) else {
                        return Err(error);
                    };
                    retry += 1;
                    tracing::debug!(%error, ?wait, retry, "request failed before its first content; repeating it");
                    sleep(wait).await;
                }
            }
        }
    }
}

/// The answer once its first content has arrived, or its end.
async fn first_content(
    provider: &dyn Provider,
    request: Request,
    context: RequestContext,
) -> Result<DeltaStream, ProviderError> {
    let mut stream = provider.stream(request, context).await?;
    let mut head = Vec::new();
    let mut told_why = false;
    while let Some(delta) = stream.try_next().await? {
        let content = delta.is_content();
        told_why |= matches!(&delta, Delta::Message(data) if data.stop_reason.is_some());
        head.push(Ok(delta));
        if content {
            return Ok(Box::pin(stream::iter(head).chain(stream)));
        }
        if head.len() > 64 {
            return Ok(Box::pin(stream::iter(head).chain(stream)));
        }
    }
    if told_why {
        Ok(Box::pin(stream::iter(head)))
    } else {
        Err(ProviderError::new(ErrorKind::Truncated, "the stream ended before the answer began"))
    }
}

fn limited(
    inner: DeltaStream,
    timeout: Duration,
) -> impl futures_core::Stream<Item = Result<Delta, ProviderError>> {
    let deadline = Instant::now() + timeout;
    stream::unfold(Some(inner), move |inner| async move {
        let mut inner = inner?;
        tokio::select! {
            biased;
            item = inner.next() => item.map(|item| (item, Some(inner))),
            () = async { pin!(sleep_until(deadline)).await } => {
                let message = format!("no complete answer within {timeout:?}, the request's total timeout");
                Some((Err(ProviderError::new(ErrorKind::Timeout, message)), None))
            }
        }
    })
}

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
    vec,
};

use futures_core::Stream;
use futures_util::{TryStreamExt, stream};
use rand::RngExt;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tracing::{Instrument, Span};

use super::{
    CacheHint, Delta, DeltaStream, MessageDelta, ModelInfo, Provider, ProviderError, ProviderErrorKind,
    Request, RequestContext,
    fit::fit,
    trace::{StreamTrace, error_type},
};
use crate::{
    message::Usage,
    setters::setters,
    telemetry,
    time::{moment_after, scaled},
};

/// The rules for repeating a failed request. A request is repeated only if its error is retryable, and only if it has
/// neither returned content nor asked for a decision. The delay uses exponential backoff with jitter, or the time that
/// the service requests, with a random extension. The default figures are those of the official SDKs of Anthropic and
/// OpenAI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// The maximum number of repetitions of a request.
    pub max_retries: u32,
    /// The delay before the first repetition. The delay doubles with each further repetition. A random part of up to a
    /// quarter is subtracted from each delay.
    pub base_delay: Duration,
    /// The longest delay that the backoff can reach.
    pub max_delay: Duration,
    /// The longest delay that a service may request. If a service requests a longer delay, the request is not repeated,
    /// and its error is reported. A requested delay is extended by a random part of up to a fifth, and by at most ten
    /// seconds. The extension does not count for this limit.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(8),
            max_retry_after: Duration::from_mins(1),
        }
    }
}

/// The longest time by which a delay that a service requests is extended.
const LONGEST_SPREAD: Duration = Duration::from_secs(10);

setters!(RetryPolicy:
    with_max_retries(max_retries: u32),
    with_base_delay(base_delay: Duration),
    with_max_delay(max_delay: Duration),
    with_max_retry_after(max_retry_after: Duration),
);

/// Returns the delay that the service requests. A service that requests no delay, or names a time in the past, requests
/// nothing, because all retries would otherwise be sent at the same time.
fn requested(error: &ProviderError) -> Option<Duration> {
    error.retry_after.filter(|delay| !delay.is_zero())
}

impl RetryPolicy {
    /// Returns the delay before retry number `retry` (from 0), or `None` if the error is final.
    pub fn delay(&self, retry: u32, error: &ProviderError) -> Option<Duration> {
        if !error.retryable || retry >= self.max_retries {
            return None;
        }
        match requested(error) {
            Some(wait) if wait > self.max_retry_after => None,
            // Many agents may be rejected with the same delay. They must not repeat their requests at the same moment.
            Some(wait) => {
                Some(wait.saturating_add((wait / 5).min(LONGEST_SPREAD).mul_f64(rand::rng().random())))
            }
            None => {
                let backoff = self.base_delay.saturating_mul(1 << retry.min(16)).min(self.max_delay);
                Some(scaled(backoff, 1.0 - rand::rng().random::<f64>() * 0.25))
            }
        }
    }

    /// Streams `provider`'s response to `request` under this policy and the request's total timeout, which starts now.
    /// If a retry could not start within the timeout, the stream fails at once. The timeout does not count the time
    /// between the end of a retry's delay and the next poll of the stream, in which the caller may wait for a permit.
    ///
    /// The facts about the model ([`Request::model_info`]) are applied: a request that the model does not support is
    /// changed to fit, with a warning, or fails before it is sent. If the service does not report the cost, the cost is
    /// computed from the model's price and added to the usage.
    ///
    /// A [`Delta::Retry`] announces each repetition. Errors arrive as items of the stream. An error is the last item.
    pub fn stream(
        self,
        provider: Arc<dyn Provider>,
        mut request: Request,
        mut context: RequestContext,
    ) -> DeltaStream {
        let fitted = fit(&mut request);
        let mut trace = StreamTrace::begin(&*provider, &request, &mut context);
        let warnings = match fitted {
            Ok(warnings) => warnings,
            Err(error) => {
                let refused = [Err(error)];
                if let Some(trace) = &mut trace {
                    trace.observe(Some(&refused[0]));
                }
                return Box::pin(stream::iter(refused));
            }
        };
        let priced = request.model_info.clone().filter(|info| info.price.is_some());
        let priced = priced.map(|info| ResponsePricing { info, cache: request.options.cache() });
        let policy = Self { max_retries: request.options.max_retries().unwrap_or(self.max_retries), ..self };
        // A timeout that `Instant` cannot represent counts as no timeout.
        let limit = request.options.timeout().and_then(|timeout| {
            Some(RequestDeadline { timeout, deadline: Instant::now().checked_add(timeout)?, sleep: None })
        });
        let attempts = RequestAttempts { policy, provider, request, retries: 0 };
        Box::pin(RetryStream {
            state: RetriedRequestState::Beginning(attempts.begin(context.clone(), trace.as_deref())),
            attempts,
            trace,
            warnings,
            priced,
            limit,
            context,
        })
    }
}

/// The attempts at one request.
struct RequestAttempts {
    policy: RetryPolicy,
    provider: Arc<dyn Provider>,
    request: Request,
    /// The number of repetitions so far.
    retries: u32,
}

impl RequestAttempts {
    /// Starts an attempt: sends the request.
    fn begin(&self, context: RequestContext, trace: Option<&StreamTrace>) -> ResponseStartFuture {
        let (provider, request) = (Arc::clone(&self.provider), self.request.clone());
        let Some(trace) = trace else {
            return Box::pin(first_content(provider, request, context));
        };
        let (chat, number) = (trace.span().clone(), self.retries + 1);
        Box::pin(async move {
            let span = telemetry::attempt(&chat, number);
            match first_content(provider, request, context).instrument(span.clone()).await {
                Ok(mut begun) => {
                    begun.attempt = Some(Box::new(span));
                    Ok(begun)
                }
                Err(error) => {
                    attempt_failed(&span, &error);
                    Err(error)
                }
            }
        })
    }

    /// Counts a repetition, and returns the delay before it. Returns `None` if the error is final or if the repetition
    /// could not start before the deadline.
    fn repeat(&mut self, error: &ProviderError, deadline: Option<Instant>) -> Option<Duration> {
        let delay = self.policy.delay(self.retries, error)?;
        let fits = |delay: &Duration| {
            let until = Instant::now().checked_add(*delay);
            deadline.is_none_or(|deadline| until.is_some_and(|until| until < deadline))
        };
        // A requested delay that fits is not extended beyond the deadline.
        let delay = Some(delay).filter(fits).or(requested(error).filter(fits))?;
        self.retries += 1;
        let retry = self.retries;
        tracing::debug!(%error, ?delay, retry, "the request failed before its first content and is repeated");
        Some(delay)
    }
}

/// A response that has started: the deltas so far, and the rest of the stream.
struct StartedResponse {
    head: vec::IntoIter<Delta>,
    rest: DeltaStream,
    /// The attempt's span, if the request is traced.
    attempt: Option<Box<Span>>,
}

impl StartedResponse {
    fn new(head: Vec<Delta>, rest: DeltaStream) -> Self {
        Self { head: head.into_iter(), rest, attempt: None }
    }

    /// Polls the rest of the stream inside the attempt's span.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Delta, ProviderError>>> {
        let Some(attempt) = self.attempt.as_deref() else {
            return self.rest.as_mut().poll_next(cx);
        };
        let item = attempt.in_scope(|| self.rest.as_mut().poll_next(cx));
        if let Poll::Ready(Some(Err(error))) = &item {
            attempt_failed(attempt, error);
        }
        item
    }
}

impl Drop for StartedResponse {
    /// Drops the rest of the stream inside the attempt's span, because a backend then cancels its turn.
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.as_deref() {
            let rest = std::mem::replace(&mut self.rest, Box::pin(stream::empty()));
            attempt.in_scope(|| drop(rest));
        }
    }
}

/// The maximum number of message data deltas that are held back until content follows.
const MAX_HEAD: usize = 64;

/// Sends the request. Returns the response once its first content, its end or [`MAX_HEAD`] deltas have
/// arrived.
#[expect(clippy::manual_async_fn, reason = "an `async fn` would move the request once more")]
fn first_content(
    provider: Arc<dyn Provider>,
    mut request: Request,
    context: RequestContext,
) -> impl Future<Output = Result<StartedResponse, ProviderError>> + Send {
    async move {
        request.authorise();
        let mut rest = provider.stream(request, context).await?;
        let mut head = Vec::new();
        let mut has_stop_reason = false;
        while let Some(delta) = rest.try_next().await? {
            let begun = delta.is_content();
            has_stop_reason |= matches!(&delta, Delta::Message(data) if data.stop_reason.is_some());
            head.push(delta);
            if begun || head.len() == MAX_HEAD {
                return Ok(StartedResponse::new(head, rest));
            }
        }
        if has_stop_reason {
            Ok(StartedResponse::new(head, Box::pin(stream::empty())))
        } else {
            Err(ProviderError::new(ProviderErrorKind::Truncated, "the stream ended before the answer began"))
        }
    }
}

fn attempt_failed(attempt: &Span, error: &ProviderError) {
    let kind = error_type(error.kind);
    telemetry::attempt_failed(attempt, (&kind, &error.kind.to_string()), error.status, error.retry_after);
}

/// The stream of [`RetryPolicy::stream`].
struct RetryStream {
    state: RetriedRequestState,
    attempts: RequestAttempts,
    /// The request's trace, if telemetry is on.
    trace: Option<Box<StreamTrace>>,
    /// Warnings about parts of the request that its model does not support. They are reported when the response starts.
    warnings: Vec<String>,
    priced: Option<ResponsePricing>,
    limit: Option<RequestDeadline>,
    context: RequestContext,
}

/// The price of a response's tokens.
struct ResponsePricing {
    info: Arc<ModelInfo>,
    cache: Option<CacheHint>,
}

impl ResponsePricing {
    /// Adds the cost to the usage in `data`. Usage is reported as a total so far, and the last report counts. So the
    /// cost is computed for each report, and an aborted response has a cost too. A cost reported by the service takes
    /// precedence.
    fn price(&self, data: &mut MessageDelta) {
        if let (Some(usage), Some(price)) = (&mut data.usage, &self.info.price) {
            usage.cost = usage.cost.or_else(|| price.cost(usage, self.cache));
        }
    }
}

type ResponseStartFuture = Pin<Box<dyn Future<Output = Result<StartedResponse, ProviderError>> + Send>>;

enum RetriedRequestState {
    /// The delay before the next attempt.
    Waiting(Pin<Box<Sleep>>),
    Beginning(ResponseStartFuture),
    Streaming(StartedResponse),
    Over,
}

/// The request's total timeout.
struct RequestDeadline {
    timeout: Duration,
    deadline: Instant,
    /// The timer of the timeout. It is created at the first wait, because that wait happens inside a runtime.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl RetryStream {
    #[inline]
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Delta, ProviderError>>> {
        loop {
            match &mut self.state {
                RetriedRequestState::Waiting(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    // An agent polls only when it has a permit for the attempt. The time until then does not count.
                    if let Some(limit) = &mut self.limit {
                        let late = delay.deadline().elapsed();
                        limit.deadline = limit.deadline.checked_add(late).unwrap_or(limit.deadline);
                        limit.sleep = None;
                    }
                    let attempt = self.attempts.begin(self.context.clone(), self.trace.as_deref());
                    self.state = RetriedRequestState::Beginning(attempt);
                }
                RetriedRequestState::Beginning(beginning) => match ready!(beginning.as_mut().poll(cx)) {
                    Ok(begun) => {
                        self.state = RetriedRequestState::Streaming(begun);
                        if !self.warnings.is_empty() {
                            let warnings = std::mem::take(&mut self.warnings);
                            let data = MessageDelta { warnings, ..MessageDelta::default() };
                            return Poll::Ready(Some(Ok(Delta::Message(Box::new(data)))));
                        }
                    }
                    Err(error) if self.context.has_asked() => return Poll::Ready(Some(Err(error))),
                    Err(error) => {
                        let deadline = self.limit.as_ref().map(|limit| limit.deadline);
                        let Some(delay) = self.attempts.repeat(&error, deadline) else {
                            return Poll::Ready(Some(Err(error)));
                        };
                        self.state = RetriedRequestState::Waiting(Box::pin(sleep(delay)));
                        return Poll::Ready(Some(Ok(Delta::Retry { error: Box::new(error), delay })));
                    }
                },
                RetriedRequestState::Streaming(begun) => {
                    return match begun.head.next() {
                        Some(delta) => Poll::Ready(Some(Ok(delta))),
                        None => begun.poll_rest(cx),
                    };
                }
                RetriedRequestState::Over => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for RetryStream {
    type Item = Result<Delta, ProviderError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut item = match &this.trace {
            None => this.poll_answer(cx),
            Some(trace) => {
                let chat = trace.span().clone();
                let polled = catch_unwind(AssertUnwindSafe(|| chat.in_scope(|| this.poll_answer(cx))));
                polled.unwrap_or_else(|panic| {
                    this.trace.take().expect("the request is traced").panicked();
                    resume_unwind(panic)
                })
            }
        };
        if let Poll::Ready(Some(Ok(Delta::Message(data)))) = &mut item {
            data.usage = data.usage.map(Usage::with_finite_cost);
            if let Some(priced) = &this.priced {
                priced.price(data);
            }
            for warning in &data.warnings {
                tracing::warn!(model = %this.attempts.request.model, "{warning}");
            }
        }
        if let (Poll::Pending, Some(limit)) = (&item, &mut this.limit) {
            let sleep = limit.sleep.get_or_insert_with(|| Box::pin(sleep_until(limit.deadline)));
            while sleep.as_mut().poll(cx).is_ready() && this.context.is_asking() {
                // A person may take any time for the decision. After the decision, the timeout starts again from the
                // beginning.
                sleep.as_mut().reset(moment_after(limit.timeout));
            }
            if !sleep.is_elapsed() {
                return Poll::Pending;
            }
            let message =
                format!("no complete answer within {:?}, the request's total timeout", limit.timeout);
            item = Poll::Ready(Some(Err(ProviderError::new(ProviderErrorKind::Timeout, message))));
        }
        if matches!(item, Poll::Ready(None | Some(Err(_)))) {
            this.state = RetriedRequestState::Over;
        }
        if let (Some(trace), Poll::Ready(item)) = (&mut this.trace, &item) {
            trace.observe(item.as_ref());
            if !matches!(item, Some(Ok(_))) {
                this.trace = None;
            }
        }
        item
    }
}

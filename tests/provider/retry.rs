//! When a failed request is retried and when it is not. The clock is paused, so the tests can measure waiting times
//! without really waiting.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures_core::Stream;
use futures_util::{FutureExt, StreamExt, future::ready, stream};
use omni_agent::provider::{
    DeltaStream, Model, Options, Provider, ProviderError, ProviderErrorKind, Request, RetryPolicy,
    StopReason,
    custom::{BlockStart, Delta, MessageDelta, Part, RequestContext},
};
use proptest::prelude::*;
use tokio::time::Instant;

/// The outcome of one request.
enum Try {
    /// The request fails with this error.
    Refuse(ProviderError),
    /// The request is answered with these items.
    Answer(Vec<Result<Delta, ProviderError>>),
    /// The request is answered with these items, and then nothing more arrives.
    Stall(Vec<Result<Delta, ProviderError>>),
    /// The request is never answered.
    Hang,
}

struct Scripted {
    tries: Mutex<VecDeque<Try>>,
    asked: Mutex<Vec<Instant>>,
    /// Every open stream holds a clone of this pointer, so the number of clones shows how many streams are open.
    open: Arc<()>,
}

struct Open<S>(S, #[expect(dead_code, reason = "counted, not read")] Arc<()>);

impl<S: Stream + Unpin> Stream for Open<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl Scripted {
    fn new(tries: impl IntoIterator<Item = Try>) -> Arc<Self> {
        let tries = Mutex::new(tries.into_iter().collect());
        Arc::new(Self { tries, asked: Mutex::default(), open: Arc::default() })
    }

    /// Returns the time between consecutive requests.
    fn waits(&self) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap();
        asked.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn requests(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn open(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.asked.lock().unwrap().push(Instant::now());
        let next = self.tries.lock().unwrap().pop_front().expect("more requests than scripted");
        let open = Arc::clone(&self.open);
        match next {
            Try::Refuse(error) => Err(error),
            Try::Answer(items) => Ok(Box::pin(Open(stream::iter(items), open))),
            Try::Stall(items) => Ok(Box::pin(Open(stream::iter(items).chain(stream::pending()), open))),
            Try::Hang => std::future::pending().await,
        }
    }
}

fn start() -> Delta {
    Delta::Start { index: 0, block: BlockStart::Text }
}

fn text(text: &str) -> Delta {
    Delta::Extend { index: 0, part: Part::Text(text.to_owned()) }
}

fn stop() -> Delta {
    Delta::stop(StopReason::Stop)
}

fn model() -> Delta {
    Delta::Message(Box::new(MessageDelta::default().with_model("m")))
}

fn good() -> Try {
    Try::Answer(vec![Ok(model()), Ok(start()), Ok(text("hi")), Ok(stop())])
}

fn error(kind: ProviderErrorKind) -> ProviderError {
    ProviderError::new(kind, "scripted")
}

fn overloaded() -> Try {
    Try::Refuse(error(ProviderErrorKind::Overloaded))
}

fn limited(wait: Duration) -> ProviderError {
    error(ProviderErrorKind::RateLimit).with_retry_after(Some(wait))
}

fn stream_of(provider: &Arc<Scripted>, options: Options) -> DeltaStream {
    let request = Request::prompt("hello").with_options(options);
    let provider: Arc<dyn Provider> = Arc::<Scripted>::clone(provider);
    RetryPolicy::default().stream(provider, request, RequestContext::detached())
}

/// Returns the items of the answer, except the retry notices.
async fn run(provider: &Arc<Scripted>, options: Options) -> Vec<Result<Delta, ProviderError>> {
    let is_answer = |item: &Result<Delta, ProviderError>| ready(!matches!(item, Ok(Delta::Retry { .. })));
    stream_of(provider, options).filter(is_answer).collect().await
}

async fn run_plain(provider: &Arc<Scripted>) -> Vec<Result<Delta, ProviderError>> {
    run(provider, Options::default()).await
}

fn good_items() -> Vec<Result<Delta, ProviderError>> {
    vec![Ok(model()), Ok(start()), Ok(text("hi")), Ok(stop())]
}

#[tokio::test(start_paused = true)]
async fn answer_without_failure_passes_unchanged() {
    let provider = Scripted::new([good()]);
    assert_eq!(run_plain(&provider).await, good_items());
    assert_eq!(provider.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_with_growing_waits() {
    let provider = Scripted::new([overloaded(), overloaded(), good()]);
    assert_eq!(run_plain(&provider).await, good_items());
    let waits = provider.waits();
    // Allow one more millisecond, which is the resolution of timers.
    let within = |wait: Duration, most: u64| {
        (Duration::from_millis(most * 3 / 4)..=Duration::from_millis(most + 1)).contains(&wait)
    };
    assert!(within(waits[0], 500) && within(waits[1], 1000), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_beyond_the_limit_return_the_last_error() {
    let last = error(ProviderErrorKind::Service);
    let provider = Scripted::new([overloaded(), overloaded(), Try::Refuse(last.clone())]);
    assert_eq!(run_plain(&provider).await, [Err(last)]);
    assert_eq!(provider.requests(), 3);
}

/// Returns whether a wait is as long as the service requested, or longer by at most a fifth and at most ten seconds.
fn follows(waited: Duration, requested: Duration) -> bool {
    // Allow one more millisecond, which is the resolution of timers.
    let most = requested + (requested / 5).min(Duration::from_secs(10)) + Duration::from_millis(1);
    (requested..=most).contains(&waited)
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for_and_little_longer() {
    let waits = [Duration::from_millis(1234), Duration::from_mins(1)];
    let provider = Scripted::new([Try::Refuse(limited(waits[0])), Try::Refuse(limited(waits[1])), good()]);
    assert_eq!(run_plain(&provider).await, good_items());
    let waited = provider.waits();
    assert!(follows(waited[0], waits[0]) && follows(waited[1], waits[1]), "{waited:?}");
}

#[test]
fn retry_after_of_zero_uses_the_backoff() {
    let policy = RetryPolicy::default();
    for (retry, most) in [(0, policy.base_delay), (1, policy.base_delay * 2)] {
        let waited = policy.delay(retry, &limited(Duration::ZERO)).unwrap();
        assert!((most.mul_f64(0.74)..=most).contains(&waited), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_zero_beyond_the_timeout_is_not_repeated_at_once() {
    let provider = Scripted::new([Try::Refuse(limited(Duration::ZERO)), good()]);
    let options = Options::default().with_timeout(Duration::from_millis(100));
    let items: Vec<_> = stream_of(&provider, options).collect().await;
    assert!(matches!(&items[..], [Err(error)] if error.kind == ProviderErrorKind::RateLimit), "{items:?}");
}

#[test]
fn retry_after_of_many_agents_is_spread() {
    let policy = RetryPolicy::default().with_max_retry_after(Duration::MAX);
    for seconds in [1, 55, 3600] {
        let requested = Duration::from_secs(seconds);
        let waits: std::collections::BTreeSet<_> =
            (0..32).map(|_| policy.delay(0, &limited(requested)).unwrap()).collect();
        assert!(waits.iter().all(|wait| follows(*wait, requested)), "{waits:?}");
        assert!(waits.len() > 16, "{waits:?}");
    }
    // The limit applies to the wait that the service requested.
    let limit = RetryPolicy::default().max_retry_after;
    assert!((0..32).all(|_| RetryPolicy::default().delay(0, &limited(limit)).is_some()));
    assert!(policy.delay(0, &limited(Duration::MAX)).is_some());
}

#[tokio::test(start_paused = true)]
async fn retry_after_that_fits_the_timeout_is_waited_for() {
    for _ in 0..32 {
        let provider = Scripted::new([Try::Refuse(limited(Duration::from_secs(7))), good()]);
        let options = Options::default().with_timeout(Duration::from_millis(7_100));
        assert_eq!(run(&provider, options).await, good_items());
    }
}

#[tokio::test(start_paused = true)]
async fn retry_is_announced_before_the_wait() {
    let limited = limited(Duration::from_secs(7));
    let provider = Scripted::new([Try::Refuse(limited.clone()), good()]);
    let mut stream = stream_of(&provider, Options::default());
    let start = Instant::now();
    let Some(Ok(Delta::Retry { error, delay })) = stream.next().await else {
        panic!("the retry was not announced")
    };
    assert_eq!(*error, limited);
    assert!(follows(delay, Duration::from_secs(7)), "{delay:?}");
    assert_eq!((start.elapsed(), provider.requests()), (Duration::ZERO, 1));
    assert_eq!(stream.collect::<Vec<_>>().await, good_items());
}

#[tokio::test(start_paused = true)]
async fn retry_after_above_the_limit_is_reported_without_waiting() {
    let long = limited(Duration::from_secs(61));
    let provider = Scripted::new([Try::Refuse(long.clone())]);
    let start = Instant::now();
    assert_eq!(run_plain(&provider).await, [Err(long)]);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn final_failures_are_reported_immediately() {
    for error in [
        error(ProviderErrorKind::Auth),
        error(ProviderErrorKind::Quota),
        error(ProviderErrorKind::InvalidRequest),
        error(ProviderErrorKind::Decoding),
        error(ProviderErrorKind::Overloaded).with_retryable(false),
        limited(Duration::from_secs(1)).with_retryable(false),
    ] {
        let provider = Scripted::new([Try::Refuse(error.clone())]);
        let start = Instant::now();
        assert_eq!(run_plain(&provider).await, [Err(error)]);
        assert_eq!((provider.requests(), start.elapsed()), (1, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn max_retries_of_the_request_overrides_the_policy() {
    let provider = Scripted::new([overloaded()]);
    let options = Options::default().with_max_retries(0);
    assert_eq!(run(&provider, options).await, [Err(error(ProviderErrorKind::Overloaded))]);

    let provider = Scripted::new((0..4).map(|_| overloaded()).chain([good()]));
    let options = Options::default().with_max_retries(4);
    assert_eq!(run(&provider, options).await, good_items());
}

#[tokio::test(start_paused = true)]
async fn failure_after_content_is_not_retried() {
    let broken = error(ProviderErrorKind::Truncated);
    let provider = Scripted::new([Try::Answer(vec![Ok(start()), Err(broken.clone()), Ok(text("never"))])]);
    assert_eq!(run_plain(&provider).await, [Ok(start()), Err(broken)]);
    assert_eq!((provider.requests(), provider.open()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn failure_after_message_data_is_retried_and_the_data_dropped() {
    let provider =
        Scripted::new([Try::Answer(vec![Ok(model()), Err(error(ProviderErrorKind::Transport))]), good()]);
    assert_eq!(run_plain(&provider).await, good_items());
}

#[tokio::test(start_paused = true)]
async fn end_before_the_answer_began_is_retried_as_truncated() {
    let provider = Scripted::new([Try::Answer(vec![Ok(model())]), Try::Answer(vec![]), Try::Answer(vec![])]);
    let items = run_plain(&provider).await;
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].as_ref().unwrap_err().kind, ProviderErrorKind::Truncated);
    assert_eq!(provider.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn answer_with_only_a_stop_reason_is_an_answer() {
    let provider = Scripted::new([Try::Answer(vec![Ok(model()), Ok(stop())])]);
    assert_eq!(run_plain(&provider).await, [Ok(model()), Ok(stop())]);
}

#[tokio::test(start_paused = true)]
async fn endless_message_data_is_not_held_back_forever() {
    let provider = Scripted::new([Try::Stall((0..1000).map(|_| Ok(model())).collect())]);
    let mut stream = stream_of(&provider, Options::default());
    assert_eq!(stream.next().await, Some(Ok(model())));
}

#[tokio::test(start_paused = true)]
async fn total_timeout_ends_a_hanging_request() {
    let timeout = Duration::from_secs(7);
    for hanging in [Try::Hang, Try::Stall(vec![]), Try::Stall(vec![Ok(start())])] {
        let provider = Scripted::new([hanging]);
        let begin = Instant::now();
        let items = run(&provider, Options::default().with_timeout(timeout)).await;
        let error = items.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Timeout);
        assert!(error.message.contains("7s") && error.message.contains("total"), "{error}");
        assert_eq!((begin.elapsed(), provider.open()), (timeout, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn total_timeout_counts_from_the_first_request() {
    let retried = Try::Refuse(limited(Duration::from_secs(4)));
    let provider = Scripted::new([retried, Try::Hang]);
    let begin = Instant::now();
    let items = run(&provider, Options::default().with_timeout(Duration::from_secs(7))).await;
    assert_eq!(items[0].as_ref().unwrap_err().kind, ProviderErrorKind::Timeout);
    assert_eq!((provider.requests(), begin.elapsed().as_secs()), (2, 7));
}

#[tokio::test(start_paused = true)]
async fn retry_that_could_not_begin_before_the_timeout_is_not_waited_for() {
    let refused = limited(Duration::from_secs(7));
    let provider = Scripted::new([Try::Refuse(refused.clone())]);
    let begin = Instant::now();
    let items = run(&provider, Options::default().with_timeout(Duration::from_secs(7))).await;
    assert_eq!(items, [Err(refused)]);
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn total_timeout_beyond_the_clock_never_fires() {
    let provider = Scripted::new([overloaded(), good()]);
    assert_eq!(run(&provider, Options::default().with_timeout(Duration::MAX)).await, good_items());
}

#[tokio::test(start_paused = true)]
async fn stream_dropped_during_a_wait_sends_no_more_requests() {
    let provider = Scripted::new([overloaded()]);
    let mut stream = stream_of(&provider, Options::default());
    assert!(matches!(stream.next().await, Some(Ok(Delta::Retry { .. }))));
    assert!(stream.next().now_or_never().is_none());
    assert_eq!(provider.requests(), 1);
    drop(stream);
    tokio::time::advance(Duration::from_mins(1)).await;
    // A second request would panic, because no further outcome is scripted for it.
    assert_eq!((provider.requests(), Arc::strong_count(&provider)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn stream_dropped_ends_the_answer() {
    let provider = Scripted::new([Try::Stall(vec![Ok(start())])]);
    let mut stream = stream_of(&provider, Options::default());
    assert_eq!(stream.next().await, Some(Ok(start())));
    assert_eq!(provider.open(), 1);
    drop(stream);
    assert_eq!(provider.open(), 0);
}

#[tokio::test(start_paused = true)]
async fn model_with_a_retry_policy_retries_by_it() {
    let provider = Scripted::new([overloaded(), good()]);
    let model = Model::new(Arc::<Scripted>::clone(&provider), "m");
    assert_eq!(model.retry_policy(), RetryPolicy::default());
    let patient =
        RetryPolicy::default().with_base_delay(Duration::from_mins(1)).with_max_delay(Duration::MAX);
    assert_eq!(
        model.with_retry_policy(patient).generate(Request::prompt("hello")).await.unwrap().message.text(),
        "hi"
    );
    assert!(provider.waits()[0] >= Duration::from_secs(45));

    let provider = Scripted::new([overloaded()]);
    let never = RetryPolicy::default().with_max_retries(0);
    let model = Model::new(provider, "m").with_retry_policy(never);
    assert_eq!(
        model.generate(Request::prompt("hello")).await.unwrap_err().kind,
        ProviderErrorKind::Overloaded
    );
}

#[test]
fn stream_made_outside_a_runtime_works_inside_one() {
    let provider = Scripted::new([good()]);
    let stream = stream_of(&provider, Options::default().with_timeout(Duration::from_secs(1)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    assert_eq!(runtime.block_on(stream.collect::<Vec<_>>()), good_items());
}

proptest! {
    #[test]
    fn delay_is_within_its_bounds(retry in 0..40u32, max_retries in 0..40u32, base in 1..5_000u64, most in 1..20_000u64) {
        let policy = RetryPolicy::default()
            .with_max_retries(max_retries)
            .with_base_delay(Duration::from_millis(base))
            .with_max_delay(Duration::from_millis(most));
        match policy.delay(retry, &error(ProviderErrorKind::Service)) {
            None => prop_assert!(retry >= max_retries),
            Some(wait) => {
                prop_assert!(retry < max_retries);
                let full = Duration::from_millis(base.saturating_mul(1 << retry.min(20)).min(most));
                prop_assert!(wait <= full && wait >= full.mul_f64(0.749), "{wait:?} of {full:?}");
            }
        }
    }
}

#[test]
fn delay_has_jitter() {
    let delays: std::collections::BTreeSet<_> =
        (0..32).map(|_| RetryPolicy::default().delay(0, &error(ProviderErrorKind::Service))).collect();
    assert!(delays.len() > 16, "{delays:?}");
}

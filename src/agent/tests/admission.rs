//! Admission of requests: when the agent asks for a permit, how long it holds the permit, and how a waiting run leaves
//! the queue.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{
        Agent, AgentBuilder, ErrorDecision, Event, Failure, Prompt, RequestConcurrencyLimiter, RequestPermit,
        Status, ToolDecision,
    },
    message::ToolUse,
    provider::{ProviderError, ProviderErrorKind},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, tool_fn},
};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    hooks::{Hooks, Log, Watched, failed, in_time, reached, stopped},
    rig::{Flag, Spiteful, echoing},
    support::{name, scripted},
};

type Admitting = Pin<Box<dyn Future<Output = RequestPermit> + Send>>;

/// An admission with a limited number of permits, granted in the order of the requests.
struct Turnstile {
    places: Arc<Semaphore>,
    all: usize,
    asked: AtomicUsize,
    waiting: Arc<AtomicUsize>,
}

/// A request that waits for a permit. The counter of waiting requests is decremented when this value is dropped.
struct Waits(Arc<AtomicUsize>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Turnstile {
    fn new(places: usize) -> Arc<Self> {
        let places = (Arc::new(Semaphore::new(places)), places);
        Arc::new(Self {
            places: places.0,
            all: places.1,
            asked: AtomicUsize::new(0),
            waiting: Arc::default(),
        })
    }

    /// The number of times that a permit was requested.
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns the number of permits that are held, and the number of requests that wait for a permit.
    fn now(&self) -> (usize, usize) {
        (self.all - self.places.available_permits(), self.waiting.load(Ordering::SeqCst))
    }
}

impl RequestConcurrencyLimiter for Turnstile {
    fn admit(&self) -> Admitting {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let (places, waits) = (Arc::clone(&self.places), Waits(Arc::clone(&self.waiting)));
        Box::pin(async move {
            let permit = places.acquire_owned().await.unwrap();
            drop(waits);
            Box::new(permit) as RequestPermit
        })
    }
}

/// An admission that calls a closure.
struct Admit<F>(F);

impl<F> RequestConcurrencyLimiter for Admit<F>
where
    F: Fn() -> Admitting + Send + Sync + 'static,
{
    fn admit(&self) -> Admitting {
        (self.0)()
    }
}

async fn watched(builder: AgentBuilder, turnstile: &Arc<Turnstile>) -> Watched {
    Watched::start(builder.admission(Arc::clone(turnstile) as _)).await
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn refused() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))
}

/// Waits until nothing more can happen at the current (paused) time.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn request_ends_tools_retries_and_callbacks_run_without_a_permit() {
    let turnstile = Turnstile::new(1);
    let held = Log::<(&str, (usize, usize))>::default();
    let at = |place: &'static str| {
        let (log, gauge) = (held.clone(), Arc::clone(&turnstile));
        move || log.push((place, gauge.now()))
    };
    let at_tool = at("tool");
    let tool = tool_fn("look", "Looks.", move |input: Value, _| {
        at_tool();
        async move { Ok(input) }
    });
    let (_, builder) = scripted([
        Step::tool_use("t1", "look", json!({})),
        refused(),
        Step::text("One."),
        Step::text("Two."),
        Step::text("Three."),
    ]);
    let (mut retries, at_error) = (1, at("error"));
    let hooks = Hooks::new().continuing(["And?"]).on_error(move |_, _| {
        at_error();
        retries -= 1;
        assert_eq!(retries, 0);
        ErrorDecision::RetryAfter(seconds(5))
    });
    let mut agent = watched(builder.tool(tool).callbacks(hooks), &turnstile).await;
    assert_eq!((turnstile.asked(), turnstile.now()), (0, (0, 0)));
    agent.run("Go").await;
    assert_eq!(turnstile.asked(), 4, "each request asks for a permit");
    assert_eq!(held.all(), [("tool", (0, 0)), ("error", (0, 0))]);
    assert_eq!(turnstile.now(), (0, 0));
    agent.run("Again").await;
    assert_eq!((turnstile.asked(), turnstile.now()), (5, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_starts_its_turn_asks_before_its_request() {
    let turnstile = Turnstile::new(1);
    let gate = Gate::new();
    let (provider, builder) =
        scripted([Step::new().gate(&gate).then_text(["One."]).stop(), Step::text("Two.")]);
    let mut agent = watched(builder, &turnstile).await;
    agent.agent.prompt("First").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("Second").await.unwrap();
    // Another run asks for the permit before the run of the staged prompt does.
    let places = Arc::clone(&turnstile.places);
    let other = tokio::spawn(async move { places.acquire_owned().await.unwrap() });
    settle().await;
    gate.open();
    let other = other.await.unwrap();
    settle().await;
    assert_eq!((turnstile.asked(), turnstile.now(), provider.requests().len()), (2, (1, 1), 1));
    drop(other);
    agent.end().await;
    assert_eq!((turnstile.now(), provider.requests().len()), ((0, 0), 2));
}

/// Returns a run whose tool has finished, and the only permit, which the test holds. The run's next request waits for
/// this permit.
async fn waits_again_after_a_tool(
    builder: AgentBuilder,
    turnstile: &Arc<Turnstile>,
) -> (Watched, RequestPermit) {
    let gate = Gate::new();
    let passed = gate.clone();
    let tool = tool_fn("look", "Looks.", move |input: Value, _| {
        let gate = passed.clone();
        async move {
            gate.pass().await;
            Ok(input)
        }
    });
    let mut agent = watched(builder.tool(tool), turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    assert_eq!(turnstile.now(), (0, 0), "a run whose tools run holds no permit");
    let other = turnstile.places.clone().try_acquire_owned().unwrap();
    gate.open();
    agent.until("message(user)").await;
    settle().await;
    assert_eq!((turnstile.asked(), turnstile.now()), (2, (1, 1)));
    (agent, Box::new(other))
}

fn with_a_tool() -> (ScriptedProvider, AgentBuilder) {
    scripted([Step::tool_use("t1", "look", json!({})), Step::text("Done.")])
}

#[tokio::test(start_paused = true)]
async fn next_request_after_tools_without_a_free_permit_waits() {
    let turnstile = Turnstile::new(1);
    let (provider, builder) = with_a_tool();
    let (mut agent, other) = waits_again_after_a_tool(builder, &turnstile).await;
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Busy);
    assert_eq!(provider.requests().len(), 1);
    drop(other);
    agent.end().await;
    assert_eq!((turnstile.now(), provider.requests().len()), ((0, 0), 2));
}

#[tokio::test(start_paused = true)]
async fn cancel_while_waiting_again_discards_the_turn_and_leaves_the_queue() {
    let turnstile = Turnstile::new(1);
    let (_, builder) = with_a_tool();
    let (mut agent, _other) = waits_again_after_a_tool(builder, &turnstile).await;
    in_time(agent.agent.cancel()).await.unwrap();
    assert_eq!(agent.end().await.last().map(|event| name(event)).as_deref(), Some("cancelled"));
    assert_eq!(turnstile.now(), (1, 0));
    assert!(agent.agent.state().await.unwrap().history().is_empty());
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_waiting_again_keeps_the_steps_and_leaves_the_queue() {
    let turnstile = Turnstile::new(1);
    let (_, builder) = with_a_tool();
    let (mut agent, _other) = waits_again_after_a_tool(builder, &turnstile).await;
    in_time(agent.agent.interrupt()).await.unwrap();
    agent.end().await;
    assert_eq!(turnstile.now(), (1, 0));
    assert_eq!(agent.agent.state().await.unwrap().history().len(), 3, "prompt, answer and tool results");
}

#[tokio::test(start_paused = true)]
async fn stop_while_waiting_again_ends_at_once_and_leaves_the_queue() {
    let turnstile = Turnstile::new(1);
    let (_, builder) = with_a_tool();
    let (agent, _other) = waits_again_after_a_tool(builder, &turnstile).await;
    let begun = Instant::now();
    in_time(agent.agent.stop(seconds(5))).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(turnstile.now(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn time_limit_is_paused_while_the_run_waits_again() {
    let turnstile = Turnstile::new(1);
    let (_, builder) = scripted([
        Step::new().wait(seconds(4)).then_tool_use("t1", "look", json!({})).stop(),
        Step::new().then_text(["Half"]).hang(),
    ]);
    let builder = builder.turn_timeout(seconds(10));
    let (mut agent, other) = waits_again_after_a_tool(builder, &turnstile).await;
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Busy);
    drop(other);
    let admitted = Instant::now();
    let events = agent.end().await;
    assert_eq!(failed(&events).0, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(admitted.elapsed().as_secs(), 6);
}

/// Returns an agent whose first request was rejected. Its next attempt begins after 55 to 65 seconds.
async fn waits_for_an_attempt(builder: AgentBuilder, turnstile: &Arc<Turnstile>) -> Watched {
    let mut agent = watched(builder, turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("retry").await;
    settle().await;
    assert_eq!(turnstile.now(), (0, 0), "a permit is held during a delay");
    agent
}

fn limited() -> Step {
    let error = ProviderError::new(ProviderErrorKind::RateLimit, "slow down");
    Step::error(error.with_retry_after(Some(seconds(55))))
}

#[tokio::test(start_paused = true)]
async fn attempt_after_a_delay_asks_for_a_permit_again() {
    let turnstile = Turnstile::new(1);
    let gate = Gate::new();
    let (provider, builder) = scripted([limited(), Step::new().gate(&gate).then_text(["Done."]).stop()]);
    let options = crate::provider::Options::default().with_timeout(seconds(70));
    let builder = builder.options(options).turn_timeout(seconds(100));
    let mut agent = waits_for_an_attempt(builder, &turnstile).await;
    // Another run takes the permit. Neither the time limit of the request nor that of the turn runs meanwhile.
    let other = turnstile.places.clone().try_acquire_owned().unwrap();
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!((turnstile.asked(), turnstile.now(), provider.requests().len()), (2, (1, 1), 1));
    assert_eq!(agent.agent.status().await.unwrap(), Status::Busy);
    drop(other);
    reached(&gate).await;
    assert_eq!((turnstile.now(), provider.requests().len()), ((1, 0), 2));
    gate.open();
    assert_eq!(stopped(&agent.end().await).text(), "Done.");
    assert_eq!(turnstile.now(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn attempt_that_hangs_after_a_delay_ends_at_the_time_limits() {
    for request in [true, false] {
        let turnstile = Turnstile::new(1);
        let (_, builder) = scripted([limited(), Step::new().hang()]);
        let builder = if request {
            builder.options(crate::provider::Options::default().with_timeout(seconds(70)))
        } else {
            builder.turn_timeout(seconds(70))
        };
        let mut agent = waits_for_an_attempt(builder, &turnstile).await;
        let begun = Instant::now();
        agent.end().await;
        assert!((69..=71).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(turnstile.now(), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn attempt_that_waits_ended_early_leaves_the_queue() {
    for wait in [1, 100] {
        for interrupt in [false, true] {
            let turnstile = Turnstile::new(1);
            let (provider, builder) = scripted([limited(), Step::text("Never.")]);
            let mut agent = waits_for_an_attempt(builder, &turnstile).await;
            let other = turnstile.places.clone().try_acquire_owned().unwrap();
            tokio::time::sleep(seconds(wait)).await;
            assert_eq!(turnstile.now(), (1, usize::from(wait == 100)));
            let ended = if interrupt { agent.agent.interrupt().await } else { agent.agent.cancel().await };
            ended.unwrap();
            agent.end().await;
            drop(other);
            tokio::time::sleep(seconds(3600)).await;
            assert_eq!((turnstile.now(), provider.requests().len()), ((0, 0), 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn delay_that_handle_error_requests_holds_no_permit() {
    let turnstile = Turnstile::new(1);
    let (_, builder) = scripted([refused(), Step::text("Done.")]);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::RetryAfter(seconds(55)));
    waits_for_an_attempt(builder.callbacks(hooks), &turnstile).await.end().await;
    assert_eq!((turnstile.asked(), turnstile.now()), (2, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn waiting_run_is_busy_sends_nothing_and_answers_queries() {
    let turnstile = Turnstile::new(0);
    let (provider, builder) = scripted([Step::text("Hello!")]);
    let mut agent = watched(builder, &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(turnstile.now(), (0, 1));
    assert_eq!(agent.agent.status().await.unwrap(), Status::Busy);
    assert!(provider.requests().is_empty());
    let error = agent.agent.ask("Me").await.unwrap_err();
    assert_eq!((error.kind(), error.member("activity")), (ErrorKind::Busy, Some(&"busy".into())));
    turnstile.places.add_permits(1);
    agent.end().await;
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn waiting_runs_are_admitted_in_order() {
    let turnstile = Turnstile::new(1);
    let gates: Vec<Gate> = (0..4).map(|_| Gate::new()).collect();
    let mut agents = Vec::new();
    for gate in &gates {
        let (_, builder) = scripted([Step::new().gate(gate).then_text(["Done."]).stop()]);
        let agent = watched(builder, &turnstile).await;
        agent.agent.prompt("Go").await.unwrap();
        settle().await;
        agents.push(agent);
    }
    for (nth, gate) in gates.iter().enumerate() {
        reached(gate).await;
        assert_eq!(turnstile.now(), (1, 3 - nth));
        gate.open();
        agents[nth].end().await;
    }
}

/// Ends a waiting run with `end`. Checks that the run leaves the queue and sends no request.
async fn leaves_the_queue(end: impl AsyncFnOnce(Agent)) {
    let turnstile = Turnstile::new(0);
    let (provider, builder) = scripted([Step::text("Hello!")]);
    let agent = builder.admission(Arc::clone(&turnstile) as _).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    settle().await;
    assert_eq!(turnstile.now(), (0, 1));
    end(agent.clone()).await;
    settle().await;
    assert_eq!(turnstile.now(), (0, 0), "the run still waits");
    assert!(provider.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_run_ended_early_leaves_the_queue() {
    leaves_the_queue(async |agent| agent.cancel().await.unwrap()).await;
    leaves_the_queue(async |agent| agent.interrupt().await.unwrap()).await;
    leaves_the_queue(async |agent| agent.stop(seconds(1)).await.unwrap()).await;
    leaves_the_queue(async |agent| {
        agent.cancel().await.unwrap();
        // The next run waits too, and it can also be cancelled.
        agent.prompt("Again").await.unwrap();
        settle().await;
        agent.cancel().await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_run_last_handle_dropped_leaves_the_queue() {
    let turnstile = Turnstile::new(0);
    let (_, builder) = scripted([Step::text("Hello!")]);
    let agent = builder.admission(Arc::clone(&turnstile) as _).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    settle().await;
    drop(agent);
    settle().await;
    assert_eq!(turnstile.now(), (0, 0));
}

/// Ends a streaming run with `end`. Checks that its permit is returned.
async fn gives_back(step: Step, end: impl AsyncFnOnce(Agent)) {
    let turnstile = Turnstile::new(1);
    let (_, builder) = scripted([step]);
    let agent = builder.admission(Arc::clone(&turnstile) as _).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    settle().await;
    end(agent.clone()).await;
    settle().await;
    assert_eq!(turnstile.now(), (0, 0), "the permit was not returned");
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_in_any_way_returns_its_permit() {
    let half = || Step::new().then_text(["Half"]).hang();
    gives_back(half(), async |agent| agent.cancel().await.unwrap()).await;
    gives_back(half(), async |agent| agent.interrupt().await.unwrap()).await;
    gives_back(half(), async |agent| agent.stop(seconds(1)).await.unwrap()).await;
    gives_back(refused(), async |_| {}).await;
    gives_back(Step::new().then_text(["Half"]).panic("mid-stream"), async |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_returns_its_permit_before_an_event_is_handled() {
    // `handle_event` is not part of a run. If it starts a run, that run asks for a new permit.
    let turnstile = Turnstile::new(1);
    let (gate, gauge) = (Gate::new(), Arc::clone(&turnstile));
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["One."]).stop(), Step::text("Two.")]);
    let seen = Log::<(usize, usize)>::default();
    let log = seen.clone();
    let hooks = Hooks::new().on_event(move |_, _| {
        log.push(gauge.now());
        Some(Prompt::from("From an event"))
    });
    let mut agent = watched(builder.callbacks(hooks), &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.notify(7_u8).await.unwrap();
    gate.open();
    agent.until("turn(stop)").await;
    agent.end().await;
    assert_eq!(seen.all(), [(0, 0)]);
    assert_eq!((turnstile.asked(), turnstile.now()), (2, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn paused_run_returns_its_permit_and_asks_before_the_next_request() {
    let turnstile = Turnstile::new(1);
    let steps = [Step::tool_use("t1", "echo", json!({})), Step::text("Done.")];
    let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(Value::Null))]);
    let mut agent = watched(echoing(steps).callbacks(hooks), &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    settle().await;
    assert_eq!((turnstile.asked(), turnstile.now()), (1, (0, 0)));
    // During the pause, another run takes the permit.
    let other = turnstile.places.clone().acquire_owned().await.unwrap();
    agent.agent.resume("t1", Decision::Execute).await.unwrap();
    agent.until("message(user)").await;
    settle().await;
    assert_eq!((turnstile.asked(), turnstile.now()), (2, (1, 1)));
    drop(other);
    agent.end().await;
    assert_eq!(turnstile.now(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn paused_run_ended_early_holds_no_permit() {
    for interrupt in [false, true] {
        let turnstile = Turnstile::new(1);
        let steps = [Step::tool_use("t1", "echo", json!({})), Step::text("Again.")];
        let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(Value::Null))]);
        let mut agent = watched(echoing(steps).callbacks(hooks), &turnstile).await;
        agent.agent.prompt("Go").await.unwrap();
        agent.until("pause").await;
        if interrupt {
            agent.agent.interrupt().await.unwrap();
        } else {
            agent.agent.cancel().await.unwrap();
        }
        agent.end().await;
        assert_eq!((turnstile.asked(), turnstile.now()), (1, (0, 0)));
        agent.run("Again").await;
        assert_eq!((turnstile.asked(), turnstile.now()), (2, (0, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn question_in_mid_stream_pauses_returns_the_permit_and_the_stream_continues() {
    let turnstile = Turnstile::new(1);
    let question = ToolUse::new("q", "shell", json!({}));
    let step = Step::new().then_text(["Let me see."]).decide(question).stop();
    let (provider, builder) = scripted([step, Step::text("More.")]);
    let hooks = Hooks::new().deciding([("shell", ToolDecision::Pause(Value::Null))]).continuing(["And?"]);
    let mut agent = watched(builder.callbacks(hooks), &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    settle().await;
    assert_eq!(turnstile.now(), (0, 0));
    let other = turnstile.places.clone().acquire_owned().await.unwrap();
    agent.agent.resume("q", Decision::Execute).await.unwrap();
    // The open stream needs no permit, but the next request does.
    agent.until("turn(continue)").await;
    settle().await;
    assert_eq!((turnstile.asked(), turnstile.now(), provider.requests().len()), (2, (1, 1), 1));
    drop(other);
    agent.end().await;
    assert_eq!((turnstile.now(), provider.requests().len()), ((0, 0), 2));
}

#[tokio::test(start_paused = true)]
async fn time_limit_of_the_turn_is_paused_while_it_waits() {
    let turnstile = Turnstile::new(0);
    let (_, builder) = scripted([Step::new().then_text(["Half"]).hang()]);
    let mut agent = watched(builder.turn_timeout(seconds(10)), &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Busy);
    turnstile.places.add_permits(1);
    let admitted = Instant::now();
    let events = agent.end().await;
    assert_eq!(failed(&events).0, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(admitted.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn time_limit_of_the_turn_resumes_after_a_pause_and_a_wait() {
    let turnstile = Turnstile::new(1);
    let steps = [
        Step::new().wait(seconds(4)).then_tool_use("t1", "echo", json!({})).stop(),
        Step::new().then_text(["Half"]).hang(),
    ];
    let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(Value::Null))]);
    let mut agent = watched(echoing(steps).turn_timeout(seconds(10)).callbacks(hooks), &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    let other = turnstile.places.clone().acquire_owned().await.unwrap();
    tokio::time::sleep(seconds(100)).await;
    agent.agent.resume("t1", Decision::Execute).await.unwrap();
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(turnstile.now(), (1, 1));
    drop(other);
    let admitted = Instant::now();
    let events = agent.end().await;
    assert_eq!(failed(&events).0, Failure::TimeLimit { limit: seconds(10) });
    assert_eq!(admitted.elapsed().as_secs(), 6);
}

#[tokio::test(start_paused = true)]
async fn admission_panics_run_continues_without_a_permit() {
    let panics: [fn() -> Admitting; 2] =
        [|| panic!("when asked"), || Box::pin(async { panic!("while it waits") })];
    for admit in panics {
        let (_, builder) = scripted([Step::text("One."), Step::text("Two.")]);
        let agent = builder.admission(Arc::new(Admit(admit))).start().await.unwrap();
        assert_eq!(in_time(agent.ask("Go")).await.unwrap().text(), "One.");
        assert_eq!(in_time(agent.ask("Again")).await.unwrap().text(), "Two.");
    }
}

#[tokio::test(start_paused = true)]
async fn admission_panics_when_dropped_agent_survives() {
    // The first admission panics when its future is dropped, the second when its permit is dropped.
    let waits: [fn() -> Admitting; 2] = [
        || {
            let spite = Spiteful;
            Box::pin(async move {
                let _spite = spite;
                pending().await
            })
        },
        || Box::pin(async { Box::new(Spiteful) as RequestPermit }),
    ];
    for admit in waits {
        let provider = ScriptedProvider::from_fn(|_| Step::new().then_text(["Half"]).hang());
        let builder = Agent::builder().model(provider.model()).admission(Arc::new(Admit(admit)));
        let mut agent = Watched::start(builder).await;
        for _ in 0..2 {
            agent.agent.prompt("Go").await.unwrap();
            settle().await;
            agent.agent.cancel().await.unwrap();
            agent.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn permit_is_dropped_before_the_end_of_the_run_is_emitted() {
    // When a subscriber receives the event that ends the run, the permit must be free.
    let turnstile = Turnstile::new(1);
    let (_, builder) = scripted([Step::text("One.")]);
    let mut agent = watched(builder, &turnstile).await;
    agent.agent.prompt("Go").await.unwrap();
    loop {
        let event = agent.next().await;
        if name(&event) == "turn(stop)" {
            break;
        }
        assert!(!matches!(*event, Event::Error { .. }));
    }
    assert_eq!(turnstile.now(), (0, 0));
}

#[tokio::test]
async fn waiting_run_killed_with_its_runtime_leaves_the_queue() {
    let dropped = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = Arc::clone(&dropped);
    let killed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let asked = Arc::new(Gate::new());
            let gate = Arc::clone(&asked);
            let admit = Admit(move || {
                let (flag, gate) = (Flag(Arc::clone(&flag)), Arc::clone(&gate));
                Box::pin(async move {
                    let _flag = flag;
                    gate.pass().await;
                    Box::new(()) as RequestPermit
                }) as _
            });
            let (_, builder) = scripted([Step::text("One.")]);
            let agent = builder.admission(Arc::new(admit)).start().await.unwrap();
            agent.prompt("Go").await.unwrap();
            asked.reached().await;
            agent
        })
    });
    let agent = killed.join().unwrap();
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(agent.status().await.unwrap_err().kind(), ErrorKind::Ended);
}

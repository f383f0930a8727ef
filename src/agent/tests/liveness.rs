//! The agent's loop serves all work: no operation waits forever, and no task is starved.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{Agent, AgentCallbacks, Event, Prompt, Response, State, TurnDecision},
    provider::{
        BlockStart, Delta, DeltaStream, Model, Part, Provider, ProviderError, Request, RequestContext,
    },
    run::ErrorKind,
    subscription::Update,
    testing::Step,
};
use async_trait::async_trait;
use futures_channel::mpsc;
use futures_util::{future::join_all, stream};

use super::{
    rig::{answered, echoing},
    support::{run_events, scripted},
};

#[tokio::test(start_paused = true)]
async fn status_called_hundreds_of_times_at_once_all_answered() {
    let agent = echoing([]).start().await.unwrap();
    let answers = answered(join_all((0..500).map(|_| agent.status()))).await;
    assert!(answers.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn status_called_hundreds_of_times_without_room_all_answered() {
    let (sender, _receiver) = mpsc::channel(0);
    let agent = echoing([Step::text("Hello!")]).commit_channel(sender).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let answers = answered(join_all((0..500).map(|_| agent.status()))).await;
    assert!(answers.iter().all(Result::is_ok));
}

/// A provider that streams deltas without end. Each delta is ready immediately.
struct Endless;

#[async_trait]
impl Provider for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let start = stream::iter([Ok(Delta::Start { index: 0, block: BlockStart::Text })]);
        let more = stream::repeat_with(|| Ok(Delta::Extend { index: 0, part: Part::Text("x".into()) }));
        Ok(Box::pin(futures_util::StreamExt::chain(start, more)))
    }
}

#[tokio::test]
async fn cancel_of_an_always_ready_stream_succeeds() {
    let agent = Agent::builder().model(Model::new(Arc::new(Endless), "m")).start().await.unwrap();
    for _ in 0..3 {
        agent.prompt("Hi").await.unwrap();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        agent.cancel().await.unwrap();
    }
}

/// Callbacks that count the turns, and continue until 20,000 turns are counted.
struct Continuing(Arc<AtomicUsize>);

#[async_trait]
impl AgentCallbacks for Continuing {
    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        if self.0.fetch_add(1, Ordering::SeqCst) < 20_000 {
            TurnDecision::continue_with("more")
        } else {
            TurnDecision::Stop
        }
    }
}

/// A provider that answers immediately, with a short text.
struct Instant;

#[async_trait]
impl Provider for Instant {
    fn name(&self) -> &'static str {
        "instant"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let start = Delta::Start { index: 0, block: BlockStart::Text };
        let text = Delta::Extend { index: 0, part: Part::Text("x".into()) };
        let stop = Delta::stop(crate::provider::StopReason::Stop);
        Ok(Box::pin(stream::iter([Ok(start), Ok(text), Ok(stop)])))
    }
}

#[tokio::test]
async fn run_nothing_ever_waits_other_tasks_run_and_cancel_works() {
    let turns = Arc::new(AtomicUsize::new(0));
    let agent = Agent::builder()
        .model(Model::new(Arc::new(Instant), "m"))
        .callbacks(Continuing(Arc::clone(&turns)))
        .start()
        .await
        .unwrap();
    agent.prompt("Hi").await.unwrap();
    tokio::task::yield_now().await;
    agent.cancel().await.unwrap();
    let turns = turns.load(Ordering::SeqCst);
    assert!(turns < 1000, "the agent blocked the runtime for {turns} turns");
}

#[tokio::test]
async fn run_nothing_ever_waits_prompt_reader_sees_every_event() {
    let callbacks = Continuing(Arc::new(AtomicUsize::new(19_000)));
    let agent = Agent::builder()
        .model(Model::new(Arc::new(Instant), "m"))
        .callbacks(callbacks)
        .start()
        .await
        .unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let mut last = 0;
    loop {
        let Some(Update::Event(numbered)) = events.next().await else { panic!("an event was lost") };
        assert_eq!(numbered.id.number, last + 1);
        last = numbered.id.number;
        if super::support::ends_run(&numbered.event) {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stream_during_a_flood_of_status_queries_continues() {
    let step = Step::new().then_text((0..100).map(|_| "x")).wait(Duration::from_millis(5)).stop();
    let agent = scripted([step]).1.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let flood: Vec<_> = (0..50)
        .map(|_| {
            let agent = agent.clone();
            tokio::spawn(async move { while agent.status().await.is_ok() {} })
        })
        .collect();
    tokio::time::resume();
    agent.prompt("Hi").await.unwrap();
    let run = tokio::time::timeout(Duration::from_secs(20), run_events(&mut events)).await;
    assert!(matches!(&**run.unwrap().last().unwrap(), Event::Turn { .. }));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn turn_timeout_during_a_flood_of_status_queries_fires() {
    let agent =
        scripted([Step::new().hang()]).1.turn_timeout(Duration::from_millis(20)).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let flood: Vec<_> = (0..50)
        .map(|_| {
            let agent = agent.clone();
            tokio::spawn(async move { while agent.status().await.is_ok() {} })
        })
        .collect();
    tokio::time::resume();
    agent.prompt("Hi").await.unwrap();
    let run = tokio::time::timeout(Duration::from_secs(20), run_events(&mut events)).await;
    assert!(matches!(&**run.unwrap().last().unwrap(), Event::Error { .. }));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Callbacks that record the numbers that arrive as events.
struct Listener(Arc<Mutex<Vec<u32>>>);

#[async_trait]
impl AgentCallbacks for Listener {
    async fn handle_event(&mut self, event: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.0.lock().unwrap().push(*event.downcast().unwrap());
        None
    }
}

#[tokio::test(start_paused = true)]
async fn notify_after_a_cancel_before_handle_event_began_both_handled_in_order() {
    let heard = Arc::<Mutex<Vec<u32>>>::default();
    let agent = echoing([]).callbacks(Listener(Arc::clone(&heard))).start().await.unwrap();
    // Both commands are queued before the agent runs. The cancel is therefore processed before the callback begins.
    let (noted, cancelled) = tokio::join!(agent.notify(1_u32), agent.cancel());
    noted.unwrap();
    assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Idle);
    agent.notify(2_u32).await.unwrap();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(*heard.lock().unwrap(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn wait_until_idle_abandoned_often_agent_continues() {
    let gate = crate::testing::Gate::new();
    let agent = scripted([Step::new().gate(&gate).then_text(["Hi"]).stop()]).1.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    for _ in 0..1000 {
        let wait = tokio::time::timeout(Duration::from_millis(1), agent.wait_until_idle());
        assert!(wait.await.is_err());
    }
    let (waited, ()) = tokio::join!(agent.wait_until_idle(), async { gate.open() });
    waited.unwrap();
    run_events(&mut events).await;
}

//! How an agent ends: by `stop` or when its last handle is dropped, cleanly and within a deadline.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{Agent, AgentCallbacks, Event, State, StateEdit, Status, WeakAgent},
    provider::{DeltaStream, Model, Provider, ProviderError, Request, RequestContext},
    run::ErrorKind,
    subscription::EndReason,
    testing::{Gate, Step},
    tool::{ToolContext, tool_fn},
};
use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    predicament::no_timeout,
    rig::{At, Deed, Flag, Rogue, answered, closed, echoing, set_out},
    support::{returned, run_events, scripted},
};

/// Callbacks that record the calls of `terminate`. If there is a gate, `terminate` waits at the gate.
#[derive(Clone, Default)]
struct Terminating {
    calls: Arc<Mutex<Vec<(EndReason, Status, usize)>>>,
    gate: Option<Gate>,
}

impl Terminating {
    fn calls(&self) -> Vec<(EndReason, Status, usize)> {
        self.calls.lock().unwrap().clone()
    }
}

#[async_trait]
impl AgentCallbacks for Terminating {
    async fn terminate(&mut self, reason: &EndReason, state: &State) {
        self.calls.lock().unwrap().push((reason.clone(), state.status(), state.history().len()));
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_mid_turn_interrupted_and_terminated() {
    let provider = Rogue::new(&[Deed::Answer, Deed::Hang]);
    let terminating = Terminating::default();
    let builder = Agent::builder().model(provider.model()).callbacks(terminating.clone());
    let agent = builder.start().await.unwrap();
    agent.ask("One").await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Two").await.unwrap();
    provider.reached().await;
    agent.prompt("staged").await.unwrap();
    let clone = agent.clone();
    drop(agent);
    assert_eq!(clone.status().await.unwrap(), Status::Busy, "one handle keeps the agent alive");
    drop(clone);
    let run = run_events(&mut events).await;
    let Event::Turn { response, continues: false } = &**run.last().unwrap() else { panic!("{run:?}") };
    assert_eq!((response.messages[0].text().as_str(), response.text().as_str()), ("Two", "Half"));
    assert_eq!(returned(&run).len(), 1, "the staged prompt is carried back");
    let (reason, snapshot) = closed(&mut events).await;
    assert_eq!(reason, EndReason::HandlesDropped);
    assert_eq!(snapshot.unwrap().state.history.len(), 4);
    assert_eq!(terminating.calls(), [(EndReason::HandlesDropped, Status::Idle, 4)]);
    assert!(provider.was_dropped());
    assert_eq!(provider.closed(), 1, "the instance is closed with its agent");
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_terminate_hangs_is_ended_by_the_deadline() {
    let terminating = Terminating { gate: Some(Gate::new()), ..Terminating::default() };
    let limit = Duration::from_secs(3);
    let builder = echoing([]).callbacks(terminating.clone()).terminate_timeout(limit);
    let agent = builder.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let start = Instant::now();
    drop(agent);
    let end = tokio::time::timeout(Duration::from_mins(1), events.next()).await.unwrap();
    assert!(matches!(end, Some(crate::subscription::Update::Closed(_))));
    assert_eq!(terminating.calls().len(), 1);
    assert!(start.elapsed() >= limit);
}

#[tokio::test(start_paused = true)]
async fn stop_terminate_hangs_deadline_reported_and_provider_closed() {
    let provider = Rogue::new(&[]);
    let terminating = Terminating { gate: Some(Gate::new()), ..Terminating::default() };
    let builder = Agent::builder().model(provider.model()).callbacks(terminating.clone());
    let agent = builder.start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let limit = Duration::from_millis(300);
    let stopped = answered(agent.stop(limit)).await;
    let text = format!("the agent did not end within the deadline of {limit:?} and was cut off");
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Deadline, text));
    assert_eq!(provider.closed(), 1);
    assert_eq!(agent.end().unwrap().reason, EndReason::Stopped);
}

#[tokio::test(start_paused = true)]
async fn stop_zero_deadline_agent_still_ends() {
    let terminating = Terminating { gate: Some(Gate::new()), ..Terminating::default() };
    let agent = echoing([]).callbacks(terminating.clone()).start().await.unwrap();
    assert_eq!(answered(agent.stop(Duration::ZERO)).await.unwrap_err().kind(), ErrorKind::Deadline);
    assert_eq!(terminating.calls().len(), 1);

    // If the deadline is zero, work that needs no time is still done.
    let terminating = Terminating::default();
    let agent = echoing([]).callbacks(terminating.clone()).start().await.unwrap();
    answered(agent.stop(Duration::ZERO)).await.unwrap();
    assert_eq!(terminating.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stop_unlimited_waits_for_terminate() {
    let gate = Gate::new();
    let terminating = Terminating { gate: Some(gate.clone()), ..Terminating::default() };
    let agent = echoing([]).callbacks(terminating.clone()).start().await.unwrap();
    let stopping = tokio::spawn(async move { agent.stop(Duration::MAX).await });
    answered(gate.reached()).await;
    tokio::time::sleep(Duration::from_secs(100_000)).await;
    assert!(!stopping.is_finished());
    gate.open();
    answered(stopping).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn stop_twice_at_once_both_return_and_terminate_runs_once() {
    let gate = Gate::new();
    let terminating = Terminating { gate: Some(gate.clone()), ..Terminating::default() };
    let agent = echoing([]).callbacks(terminating.clone()).start().await.unwrap();
    let minute = Duration::from_mins(1);
    let (first, second, ()) = tokio::join!(agent.stop(minute), agent.stop(minute), async {
        gate.reached().await;
        gate.open();
    });
    first.unwrap();
    second.unwrap();
    assert_eq!(terminating.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stop_again_with_an_earlier_deadline_the_earlier_one_applies() {
    let terminating = Terminating { gate: Some(Gate::new()), ..Terminating::default() };
    let agent = echoing([]).callbacks(terminating).start().await.unwrap();
    let patient = tokio::spawn({
        let agent = agent.clone();
        async move { agent.stop(Duration::from_hours(1)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let start = Instant::now();
    let near = Duration::from_millis(100);
    assert_eq!(answered(agent.stop(near)).await.unwrap_err().kind(), ErrorKind::Deadline);
    assert_eq!(start.elapsed(), near);
    let patient = answered(patient).await.unwrap();
    let text = format!("the agent did not end within the deadline of {near:?} and was cut off");
    let error = patient.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Deadline, text));
}

#[tokio::test(start_paused = true)]
async fn operations_while_terminate_runs_return_stopped() {
    let gate = Gate::new();
    let terminating = Terminating { gate: Some(gate.clone()), ..Terminating::default() };
    let agent = echoing([]).callbacks(terminating).start().await.unwrap();
    let mut early = agent.subscribe().await.unwrap();
    let stopping = tokio::spawn({
        let agent = agent.clone();
        async move { agent.stop(Duration::from_hours(1)).await }
    });
    answered(gate.reached()).await;
    for _ in 0..100 {
        let error = answered(agent.status()).await.unwrap_err();
        assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    }
    let error = answered(agent.prompt("Hi")).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    let error = answered(agent.subscribe()).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    gate.open();
    answered(stopping).await.unwrap().unwrap();
    assert_eq!(closed(&mut early).await.0, EndReason::Stopped);
}

/// Callbacks that stop their own agent.
struct Quitting(At);

#[async_trait]
impl AgentCallbacks for Quitting {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        if self.0 == At::PrepareStep {
            stop(state.agent()).await;
        }
    }

    async fn handle_event(
        &mut self,
        _: Box<dyn std::any::Any + Send>,
        state: &mut State,
    ) -> Option<crate::agent::Prompt> {
        stop(state.agent()).await;
        None
    }
}

async fn stop(agent: &WeakAgent) {
    let agent = agent.upgrade().unwrap();
    let _ = agent.stop(Duration::from_secs(1)).await;
    unreachable!("the callback is dropped when its agent ends");
}

#[tokio::test(start_paused = true)]
async fn stop_from_a_callback_agent_ends() {
    for at in [At::PrepareStep, At::HandleEvent] {
        let agent = echoing([]).callbacks(Quitting(at)).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        set_out(&agent, at).await;
        assert_eq!(closed(&mut events).await.0, EndReason::Stopped, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stop_from_a_tool_agent_ends_and_tool_dropped() {
    let dropped = Arc::new(AtomicBool::new(false));
    let tool = {
        let dropped = Arc::clone(&dropped);
        tool_fn("quit", "Stops the agent.", move |_: Value, context: ToolContext| {
            let flag = Flag(Arc::clone(&dropped));
            async move {
                let _flag = flag;
                let agent = context.extensions().get::<WeakAgent>().unwrap().upgrade().unwrap();
                let _ = agent.stop(Duration::from_secs(1)).await;
                std::future::pending::<()>().await;
                Ok("")
            }
        })
    };
    let builder = scripted([Step::tool_use("t1", "quit", json!({}))]).1;
    let agent = builder.tool_limits(no_timeout()).tool(tool).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let run = run_events(&mut events).await;
    assert!(matches!(&**run.last().unwrap(), Event::Turn { .. }));
    assert_eq!(closed(&mut events).await.0, EndReason::Stopped);
    assert!(dropped.load(Ordering::SeqCst));
}

/// Callbacks that use their own agent: they record whether `init` and `terminate` find the agent, and which status
/// `prepare_step` gets from it.
#[derive(Clone, Default)]
struct Inward {
    init: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
    step: Arc<Mutex<Option<Status>>>,
}

#[async_trait]
impl AgentCallbacks for Inward {
    async fn init(
        &mut self,
        _: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.init.store(state.agent().upgrade().is_some(), Ordering::SeqCst);
        Ok(())
    }

    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        let agent = state.agent().upgrade().unwrap();
        *self.step.lock().unwrap() = Some(agent.status().await.unwrap());
    }

    async fn terminate(&mut self, _: &EndReason, state: &State) {
        self.terminate.store(state.agent().upgrade().is_some(), Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn weak_handle_upgrades_from_the_start_until_the_last_handle_is_dropped() {
    let inward = Inward::default();
    let agent = echoing([Step::text("Hello!")]).callbacks(inward.clone()).start().await.unwrap();
    assert!(!inward.init.load(Ordering::SeqCst), "the agent does not run yet in init");
    answered(agent.ask("Hi")).await.unwrap();
    assert_eq!(*inward.step.lock().unwrap(), Some(Status::Busy));
    let weak = agent.downgrade();
    let upgraded = weak.upgrade().unwrap();
    drop(agent);
    assert_eq!(upgraded.status().await.unwrap(), Status::Idle);
    let mut events = upgraded.subscribe().await.unwrap();
    drop(upgraded);
    assert!(weak.upgrade().is_none());
    closed(&mut events).await;
    assert!(!inward.terminate.load(Ordering::SeqCst));
}

/// A provider whose instance never finishes closing, or panics while closing.
struct Clinging(bool);

#[async_trait]
impl Provider for Clinging {
    fn name(&self) -> &'static str {
        "clinging"
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(Some(Arc::new(Self(self.0))))
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        let deltas = [
            crate::provider::Delta::Start { index: 0, block: crate::provider::BlockStart::Text },
            crate::provider::Delta::stop(crate::provider::StopReason::Stop),
        ];
        Ok(Box::pin(futures_util::stream::iter(deltas.map(Ok))))
    }

    async fn close(&self) {
        assert!(!self.0, "close broke");
        std::future::pending::<()>().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_provider_close_hangs_is_a_deadline_error_and_a_panic_is_not() {
    for breaks in [false, true] {
        let terminating = Terminating::default();
        let model = Model::new(Arc::new(Clinging(breaks)), "m");
        let agent = Agent::builder().model(model).callbacks(terminating.clone()).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.ask("Hi").await.unwrap();
        let stopped = answered(agent.stop(Duration::from_millis(200))).await;
        assert_eq!(
            matches!(&stopped, Err(error) if error.kind() == ErrorKind::Deadline),
            !breaks,
            "{stopped:?}"
        );
        assert_eq!(terminating.calls(), [(EndReason::Stopped, Status::Idle, 2)]);
        assert_eq!(closed(&mut events).await.0, EndReason::Stopped);
    }
}

#[tokio::test(start_paused = true)]
async fn set_state_another_model_instance_of_the_old_provider_closed() {
    let (old, new) = (Rogue::new(&[]), Rogue::new(&[]));
    let agent = Agent::builder().model(old.model()).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let model = new.model();
    agent
        .set_state(move |draft| {
            draft.config.model = model;
            Ok(())
        })
        .await
        .unwrap();
    agent.ask("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((old.closed(), new.closed()), (1, 0));
    assert_eq!((old.requests(), new.requests()), (1, 1));
    agent.stop(Duration::from_secs(1)).await.unwrap();
    assert_eq!((old.closed(), new.closed()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn wait_until_idle_returns_at_once_or_after_the_run() {
    let gate = Gate::new();
    let agent = scripted([Step::new().gate(&gate).then_text(["Hi"]).stop()]).1.start().await.unwrap();
    answered(agent.wait_until_idle()).await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let waiting = tokio::spawn({
        let agent = agent.clone();
        async move { agent.wait_until_idle().await }
    });
    answered(gate.reached()).await;
    assert!(!waiting.is_finished());
    gate.open();
    answered(waiting).await.unwrap().unwrap();
    assert_eq!(agent.status().await.unwrap(), Status::Idle);
}

#[tokio::test(start_paused = true)]
async fn ended_waits_for_the_end_and_returns_its_reason_and_snapshot() {
    let (_, builder) = scripted([Step::text("One")]);
    let agent = builder.start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let waiting = agent.clone();
    let ended = tokio::spawn(async move { waiting.ended().await });
    tokio::task::yield_now().await;
    assert!(!ended.is_finished());
    agent.stop(Duration::from_secs(1)).await.unwrap();
    let end = ended.await.unwrap();
    assert_eq!(end.reason, EndReason::Stopped);
    assert_eq!(end.snapshot.unwrap().state.history.len(), 2);
    assert_eq!(agent.ended().await.reason, EndReason::Stopped, "an agent that has ended is not waited for");
}

#[tokio::test(start_paused = true)]
async fn ended_of_a_weak_handle_does_not_keep_the_agent_alive() {
    let (_, builder) = scripted([]);
    let agent = builder.start().await.unwrap();
    let weak = agent.downgrade();
    let ended = tokio::spawn(async move { weak.ended().await });
    tokio::task::yield_now().await;
    assert!(!ended.is_finished());
    drop(agent);
    assert_eq!(ended.await.unwrap().reason, EndReason::HandlesDropped);
}

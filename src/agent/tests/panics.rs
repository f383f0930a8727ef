//! Panics in the application's code do not stop the agent.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{Agent, AgentCallbacks, ErrorDecision, Event, Failure, State, Status},
    provider::{DeltaStream, Model, Provider, ProviderError, ProviderErrorKind, Request, RequestContext},
    run::ErrorKind,
    subscription::EndReason,
    testing::{Gate, Step},
    tool::{Schema, Tool, ToolContext, ToolError, ToolOutput},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    rig::{Act, At, Deed, Misbehaving, Rogue, Spiteful, answered, closed, echo, echoing, set_out},
    support::{names, run_events, scripted},
};

/// Runs a prompt during which the callback `at` misbehaves as `act`, and checks the state afterwards.
async fn run_misbehaving(at: At, act: Act) {
    let callbacks = Misbehaving { at, act, gate: Gate::new(), done: false };
    let again = Step::text("Again.");
    let agent = echoing([Step::text("First."), at.step(), again]).callbacks(callbacks);
    // Run one prompt without a failure first. This is impossible if every run calls the callback `at`, which misbehaves
    // at its first call.
    let first = !matches!(at, At::PrepareStep | At::HandleTurn);
    let agent = agent.start().await.unwrap();
    if first {
        agent.ask("Before").await.unwrap();
    }
    let before = agent.state().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    set_out(&agent, at).await;

    let events = run_events(&mut events).await;
    let Event::Error { failure, .. } = &**events.last().unwrap() else { panic!("{at:?}: {events:?}") };
    let Failure::Callback { callback, message } = failure else { panic!("{at:?}: {failure:?}") };
    assert_eq!(callback, at.name());
    match act {
        Act::Panic => assert_eq!(message, "the callback broke"),
        _ => assert!(message.contains("max_steps"), "{message}"),
    }
    let after = answered(agent.state()).await.unwrap();
    assert!(after.history().same(before.history()), "{at:?}: the history is unchanged");
    assert_eq!(after.config().settings.system, None, "{at:?}: the edits of the callback are void");
    assert_eq!(after.status(), Status::Idle, "{at:?}");
    answered(agent.ask("Hello?")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn run_callback_panics_error_event_and_agent_survives() {
    for at in At::ALL {
        run_misbehaving(at, Act::Panic).await;
    }
}

#[tokio::test(start_paused = true)]
async fn run_callback_leaves_invalid_configuration_error_event_and_agent_survives() {
    for at in At::ALL {
        run_misbehaving(at, Act::Spoil).await;
    }
}

#[tokio::test(start_paused = true)]
async fn handle_event_panics_while_idle_only_an_error_event() {
    let callbacks = Misbehaving { at: At::HandleEvent, act: Act::Panic, gate: Gate::new(), done: false };
    let agent = echoing([]).callbacks(callbacks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.notify(()).await.unwrap();
    assert_eq!(names(&run_events(&mut events).await), ["error"]);
}

/// Callbacks that record the failures passed to `handle_error` and then stop the run.
struct Failures(Arc<Mutex<Vec<Failure>>>);

#[async_trait]
impl AgentCallbacks for Failures {
    async fn handle_error(&mut self, failure: &Failure, _: &mut State) -> ErrorDecision {
        self.0.lock().unwrap().push(failure.clone());
        ErrorDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn run_provider_fails_handle_error_called_and_agent_survives() {
    for (deed, words) in [
        (Deed::PanicInOpen, "open broke"),
        (Deed::PanicInStream, "stream broke"),
        (Deed::PanicInMidStream, "mid-stream broke"),
        (Deed::FailInOpen, ""),
    ] {
        let failures = Arc::<Mutex<Vec<_>>>::default();
        let provider = Rogue::new(&[deed]);
        let builder = Agent::builder().model(provider.model()).callbacks(Failures(Arc::clone(&failures)));
        let agent = builder.start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        let run = run_events(&mut events).await;
        let Event::Error { failure, response, .. } = &**run.last().unwrap() else { panic!("{run:?}") };
        match failure {
            Failure::ProviderPanicked { message } => assert_eq!(message, words),
            Failure::Provider { error } => {
                assert_eq!((deed, error.kind), (Deed::FailInOpen, ProviderErrorKind::Unsupported));
            }
            other => panic!("{deed:?}: {other:?}"),
        }
        let kept = if deed == Deed::PanicInMidStream { 2 } else { 0 };
        if kept > 0 {
            assert_eq!(response.message.as_ref().unwrap().text(), "Half", "the streamed text is kept");
            assert_eq!(response.usage.output, 3);
        }
        assert_eq!(*failures.lock().unwrap(), std::slice::from_ref(failure), "{deed:?}");
        assert_eq!(agent.state().await.unwrap().history().len(), kept, "{deed:?}");
        let answer = answered(agent.ask("Hello?")).await.unwrap();
        assert_eq!(answer.text(), "Half");
    }
}

/// A provider whose method `name` panics once, after the test has armed the provider.
#[derive(Default)]
struct Nameless(AtomicBool);

#[async_trait]
impl Provider for Nameless {
    fn name(&self) -> &str {
        assert!(!self.0.swap(false, Ordering::Relaxed), "the name broke");
        "nameless"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        Err(ProviderError::new(ProviderErrorKind::Auth, "nobody is here"))
    }
}

#[tokio::test(start_paused = true)]
async fn run_name_of_the_provider_panics_error_event_and_agent_survives() {
    let provider = Arc::new(Nameless::default());
    let model = Model::new(Arc::<Nameless>::clone(&provider), "model");
    let agent = Agent::builder().model(model).start().await.unwrap();
    provider.0.store(true, Ordering::Relaxed);
    let error = answered(agent.ask("Hi")).await.unwrap_err();
    let Some(Failure::ProviderPanicked { message }) = error.failure() else { panic!("{error:?}") };
    assert_eq!(message, "the name broke");
    let error = answered(agent.ask("Hi")).await.unwrap_err();
    assert!(error.provider_error().is_some(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn cancel_provider_panics_when_dropped_cancelled_and_agent_survives() {
    for deed in [Deed::PanicOnDrop, Deed::PanicOnDropOfOpen] {
        let provider = Rogue::new(&[deed]);
        let agent = Agent::builder().model(provider.model()).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        provider.reached().await;
        answered(agent.cancel()).await.unwrap();
        let run = run_events(&mut events).await;
        assert!(matches!(&**run.last().unwrap(), Event::Cancelled { .. }), "{deed:?}");
        answered(agent.ask("Hello?")).await.unwrap();
    }
}

/// A tool that panics in the method named `part` while the test has armed the tool. If `part` is `drop`, each call
/// drops a value whose drop panics.
struct Brittle {
    part: &'static str,
    armed: Arc<AtomicBool>,
    schema: Schema,
}

impl Brittle {
    fn touch(&self, part: &str) {
        assert!(!(self.part == part && self.armed.load(Ordering::SeqCst)), "{part} broke");
    }
}

#[async_trait]
impl Tool for Brittle {
    fn name(&self) -> &'static str {
        self.touch("name");
        "brittle"
    }

    fn description(&self) -> Cow<'_, str> {
        self.touch("description");
        "Breaks.".into()
    }

    fn schema(&self) -> &Schema {
        self.touch("schema");
        &self.schema
    }

    fn has_handler(&self) -> bool {
        self.touch("has_handler");
        true
    }

    async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        self.touch("call");
        let _spite = (self.part == "drop").then_some(Spiteful);
        Ok("whole".into())
    }
}

#[tokio::test(start_paused = true)]
async fn run_tool_panics_in_any_method_error_result_and_run_continues() {
    for part in ["name", "schema", "has_handler", "call", "drop"] {
        let armed = Arc::new(AtomicBool::new(false));
        let schema = Schema::new(json!({ "type": "object" })).unwrap();
        let brittle = Brittle { part, armed: Arc::clone(&armed), schema };
        let script = [
            Step::new()
                .then_tool_use("t1", "brittle", json!({}))
                .then_tool_use("t2", "echo", json!({}))
                .stop(),
            Step::text("Never mind."),
        ];
        let agent = scripted(script).1.tool(echo()).tool(brittle).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        armed.store(true, Ordering::SeqCst);
        agent.prompt("Hi").await.unwrap();
        let run = run_events(&mut events).await;
        assert!(matches!(&**run.last().unwrap(), Event::Turn { continues: false, .. }), "{part}: {run:?}");
        let results: Vec<_> = run
            .iter()
            .filter_map(|event| match &**event {
                Event::ToolResult { result, .. } => Some((result.tool_use_id.as_str(), result.is_error)),
                _ => None,
            })
            .collect();
        assert_eq!(results[0], ("t1", true), "{part}");
        if part != "name" {
            assert_eq!(results[1], ("t2", false), "{part}");
        }
        answered(agent.snapshot()).await.unwrap();
        armed.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn snapshot_tool_panics_when_described_answered() {
    for part in ["name", "description", "schema", "has_handler"] {
        let armed = Arc::new(AtomicBool::new(false));
        let schema = Schema::new(json!({ "type": "object" })).unwrap();
        let brittle = Brittle { part, armed: Arc::clone(&armed), schema };
        let agent = scripted([]).1.tool(echo()).tool(brittle).start().await.unwrap();
        armed.store(true, Ordering::SeqCst);
        let tools = answered(agent.snapshot()).await.unwrap().state.tools;
        assert_eq!(tools.len(), if part == "description" { 2 } else { 1 }, "{part}");
        answered(agent.stop(Duration::from_secs(1))).await.unwrap();
        armed.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn set_state_closure_panics_nothing_changes() {
    let agent = echoing([Step::text("Hello!")]).start().await.unwrap();
    let set = answered(agent.set_state(|draft| {
        draft.config.settings.system = Some("half".into());
        panic!("the closure broke")
    }))
    .await;
    let error = set.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Callback, "the closure of set_state panicked: the closure broke")
    );
    assert_eq!(answered(agent.state()).await.unwrap().config().settings.system, None);
    answered(agent.ask("Hi")).await.unwrap();
}

/// A tool whose drop panics.
struct SpitefulTool(Schema, Spiteful);

#[async_trait]
impl Tool for SpitefulTool {
    fn name(&self) -> &'static str {
        "spiteful"
    }

    fn description(&self) -> Cow<'_, str> {
        "".into()
    }

    fn schema(&self) -> &Schema {
        &self.0
    }

    async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok("".into())
    }
}

fn spiteful_tool() -> SpitefulTool {
    SpitefulTool(Schema::new(json!({ "type": "object" })).unwrap(), Spiteful)
}

/// Callbacks that add a tool whose drop panics to the configuration, then remove the tool, and then add such a tool to
/// each request.
struct Tooling {
    calls: usize,
}

#[async_trait]
impl AgentCallbacks for Tooling {
    async fn prepare_step(&mut self, request: &mut Request, state: &mut State) {
        self.calls += 1;
        match self.calls {
            1 => state.config_mut().tools.insert(Arc::new(spiteful_tool())).unwrap(),
            2 => assert!(state.config_mut().tools.remove("spiteful")),
            _ => request.tools.insert(Arc::new(spiteful_tool())).unwrap(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn values_of_the_application_panic_when_dropped_agent_survives() {
    let script = (0..4).map(|_| Step::text("Hello!"));
    let agent = echoing(script).callbacks(Tooling { calls: 0 }).start().await.unwrap();
    // The agent drops an event that no callback uses, the values that a refused `set_state` closure has captured, and a
    // tool that is added and removed.
    answered(agent.notify(Spiteful)).await.unwrap();
    answered(agent.wait_until_idle()).await.unwrap();
    for _ in 0..3 {
        answered(agent.ask("Hi")).await.unwrap();
    }
    let spite = Spiteful;
    let set = answered(agent.set_state(move |draft| {
        let _spite = &spite;
        draft.config.tools.insert(Arc::new(spiteful_tool()))?;
        draft.config.settings.max_steps = Some(0);
        Ok(())
    }))
    .await;
    assert!(matches!(set.unwrap_err().kind(), ErrorKind::Callback | ErrorKind::InvalidSettings));
    answered(agent.ask("Hi")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn set_state_refused_closure_panics_when_dropped_agent_survives() {
    let scene = super::predicament::Amid::Stream.agent().await;
    let spite = Spiteful;
    let set = answered(scene.agent.set_state(move |_| {
        let _spite = &spite;
        Ok(())
    }))
    .await;
    assert_eq!(set.unwrap_err().kind(), ErrorKind::Busy);
    answered(scene.agent.cancel()).await.unwrap();
    answered(scene.agent.ask("Hi")).await.unwrap();
}

/// A callback that hangs, and whose future panics when it is dropped.
struct Grudging(Gate);

#[async_trait]
impl AgentCallbacks for Grudging {
    async fn prepare_step(&mut self, request: &mut Request, _: &mut State) {
        if request.history.last().unwrap().text() == "Hi" {
            let _spite = Spiteful;
            self.0.pass().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_callback_panics_when_dropped_agent_survives() {
    let gate = Gate::new();
    let agent = echoing([Step::text("Hello!")]).callbacks(Grudging(gate.clone())).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    answered(agent.cancel()).await.unwrap();
    answered(agent.ask("Hello?")).await.unwrap();
}

/// Callbacks written without `async_trait`, which panic before they return a future.
struct Eager(Arc<AtomicUsize>);

impl AgentCallbacks for Eager {
    fn terminate<'a: 'c, 'b: 'c, 'd: 'c, 'c>(
        &'a mut self,
        _: &'b EndReason,
        _: &'d State,
    ) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'c>>
    where
        Self: 'c,
    {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("terminate broke at once")
    }
}

#[tokio::test(start_paused = true)]
async fn stop_terminate_panics_before_its_future_agent_ends_normally() {
    let calls = Arc::new(AtomicUsize::new(0));
    let agent = echoing([]).callbacks(Eager(Arc::clone(&calls))).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    answered(agent.stop(Duration::from_secs(1))).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(closed(&mut events).await.0, EndReason::Stopped);
}

/// Callbacks whose `init` panics.
struct Stillborn;

#[async_trait]
impl AgentCallbacks for Stillborn {
    async fn init(
        &mut self,
        _: &mut crate::agent::StateEdit,
        _: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        panic!("init broke")
    }
}

#[tokio::test(start_paused = true)]
async fn start_init_panics_error() {
    let started = echoing([]).callbacks(Stillborn).start().await;
    let error = started.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Callback, "init panicked: init broke")
    );
}

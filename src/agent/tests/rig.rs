//! Agents in a given phase: with a callback that never returns or panics, or with a provider that misbehaves.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{
        Agent, AgentBuilder, AgentCallbacks, AgentSubscription, ErrorDecision, Event, Failure, Prompt,
        Response, Snapshot, State, ToolDecision, TurnDecision,
    },
    message::{ToolResult, ToolUse, Usage},
    provider::{
        BlockStart, Delta, DeltaStream, MessageDelta, Model, Part, Provider, ProviderError,
        ProviderErrorKind, Request, RequestContext, StopReason,
    },
    subscription::{EndReason, Update},
    testing::{Gate, Step},
    tool::{Tool, tool_fn},
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::support::scripted;

/// The result of an operation, which must arrive within a second of paused time.
pub async fn answered<T>(operation: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(1), operation).await.expect("the operation was not answered")
}

/// Asserts that an operation does not finish within an hour of paused time.
pub async fn unanswered<T>(operation: impl Future<Output = T>) {
    let hour = Duration::from_hours(1);
    assert!(tokio::time::timeout(hour, operation).await.is_err(), "the operation should have waited");
}

/// A callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    PrepareStep,
    HandleToolUse,
    HandleToolResult,
    HandleTurn,
    HandleError,
    HandleEvent,
}

impl At {
    pub const ALL: [Self; 6] = [
        Self::PrepareStep,
        Self::HandleToolUse,
        Self::HandleToolResult,
        Self::HandleTurn,
        Self::HandleError,
        Self::HandleEvent,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::PrepareStep => "prepare_step",
            Self::HandleToolUse => "handle_tool_use",
            Self::HandleToolResult => "handle_tool_result",
            Self::HandleTurn => "handle_turn",
            Self::HandleError => "handle_error",
            Self::HandleEvent => "handle_event",
        }
    }

    /// Returns a step of the model that causes a call of this callback.
    pub fn step(self) -> Step {
        match self {
            Self::HandleToolUse | Self::HandleToolResult => {
                Step::new().usage(tokens(7)).then_tool_use("t1", "echo", json!({})).stop()
            }
            Self::HandleError => Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
            _ => Step::text("Hello!"),
        }
    }
}

/// How a callback misbehaves after it has edited the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Hang,
    Panic,
    /// Makes the configuration invalid.
    Spoil,
}

/// Callbacks, one of which misbehaves once.
pub struct Misbehaving {
    pub at: At,
    pub act: Act,
    pub gate: Gate,
    pub done: bool,
}

impl Misbehaving {
    async fn act(&mut self, at: At, state: &mut State) {
        if at != self.at || std::mem::replace(&mut self.done, true) {
            return;
        }
        state.config_mut().settings.system = Some("edited".into());
        match self.act {
            Act::Hang => self.gate.pass().await,
            Act::Panic => panic!("the callback broke"),
            Act::Spoil => state.config_mut().settings.max_steps = Some(0),
        }
    }
}

#[async_trait]
impl AgentCallbacks for Misbehaving {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        self.act(At::PrepareStep, state).await;
    }

    async fn handle_tool_use(&mut self, _: &ToolUse, state: &mut State) -> ToolDecision {
        self.act(At::HandleToolUse, state).await;
        ToolDecision::Execute
    }

    async fn handle_tool_result(&mut self, result: ToolResult, state: &mut State) -> ToolResult {
        self.act(At::HandleToolResult, state).await;
        result
    }

    async fn handle_turn(&mut self, _: &Response, state: &mut State) -> TurnDecision {
        self.act(At::HandleTurn, state).await;
        TurnDecision::Stop
    }

    async fn handle_error(&mut self, _: &Failure, state: &mut State) -> ErrorDecision {
        self.act(At::HandleError, state).await;
        ErrorDecision::Stop
    }

    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, state: &mut State) -> Option<Prompt> {
        self.act(At::HandleEvent, state).await;
        None
    }
}

/// An agent with an `echo` tool and a scripted model.
pub fn echoing(steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
    scripted(steps).1.tool(echo())
}

pub fn echo() -> impl Tool {
    tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) })
}

/// Returns an agent that is inside the callback `at`, which never returns. The subscription began before the run.
pub async fn stuck_in(at: At) -> (Agent, AgentSubscription) {
    let gate = Gate::new();
    let callbacks = Misbehaving { at, act: Act::Hang, gate: gate.clone(), done: false };
    let after = [Step::text("Again."), Step::text("And again.")];
    let agent = echoing([at.step()].into_iter().chain(after)).callbacks(callbacks).start().await.unwrap();
    let events = agent.subscribe().await.unwrap();
    set_out(&agent, at).await;
    answered(gate.reached()).await;
    (agent, events)
}

/// Starts the operation that causes a call of the callback `at`.
pub async fn set_out(agent: &Agent, at: At) {
    if at == At::HandleEvent {
        agent.notify("an event").await.unwrap();
    } else {
        agent.prompt("Hi").await.unwrap();
    }
}

pub fn tokens(output: u64) -> Usage {
    Usage::default().with_output(output)
}

/// A guard that sets a flag when it is dropped.
pub struct Flag(pub Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A value whose drop panics.
pub struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped");
    }
}

/// How a [`Rogue`] provider behaves on its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Answers with a text.
    Answer,
    /// Streams half of a text and hangs. Sets the flag when the stream is dropped.
    Hang,
    PanicInOpen,
    FailInOpen,
    HangInOpen,
    /// Hangs in `open`, and panics when the future of `open` is dropped.
    PanicOnDropOfOpen,
    PanicInStream,
    PanicInMidStream,
    /// Hangs in mid-stream, and panics when the stream is dropped.
    PanicOnDrop,
}

/// A provider with instances. It misbehaves as the test chooses.
#[derive(Clone)]
pub struct Rogue(Arc<Inner>);

struct Inner {
    deeds: Mutex<Vec<Deed>>,
    /// Whether the hanging request was dropped.
    dropped: Arc<AtomicBool>,
    reached: Gate,
    pub requests: AtomicUsize,
    closed: AtomicUsize,
}

impl Rogue {
    /// Returns a provider that performs one deed per request, and answers normally when no deed is left.
    pub fn new(deeds: &[Deed]) -> Self {
        Self(Arc::new(Inner {
            deeds: Mutex::new(deeds.iter().rev().copied().collect()),
            dropped: Arc::default(),
            reached: Gate::new(),
            requests: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
        }))
    }

    pub fn model(&self) -> Model {
        Model::new(Arc::new(self.clone()), "rogue")
    }

    /// Waits until a request or `open` hangs.
    pub async fn reached(&self) {
        answered(self.0.reached.reached()).await;
    }

    pub fn was_dropped(&self) -> bool {
        self.0.dropped.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.0.requests.load(Ordering::SeqCst)
    }

    /// The number of closed instances.
    pub fn closed(&self) -> usize {
        self.0.closed.load(Ordering::SeqCst)
    }

    fn peek(&self) -> Deed {
        self.0.deeds.lock().unwrap().last().copied().unwrap_or(Deed::Answer)
    }

    fn take(&self) -> Deed {
        self.0.deeds.lock().unwrap().pop().unwrap_or(Deed::Answer)
    }
}

#[async_trait]
impl Provider for Rogue {
    fn name(&self) -> &'static str {
        "rogue"
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        match self.peek() {
            Deed::PanicInOpen => {
                self.take();
                panic!("open broke");
            }
            Deed::FailInOpen => {
                self.take();
                return Err(ProviderError::new(ProviderErrorKind::Unsupported, "no instance today"));
            }
            Deed::HangInOpen => {
                self.take();
                let _flag = Flag(Arc::clone(&self.0.dropped));
                self.0.reached.pass().await;
            }
            Deed::PanicOnDropOfOpen => {
                self.take();
                let _spite = Spiteful;
                self.0.reached.pass().await;
            }
            _ => {}
        }
        Ok(Some(Arc::new(self.clone())))
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        let start = Ok(Delta::Start { index: 0, block: BlockStart::Text });
        let text = Ok(Delta::Extend { index: 0, part: Part::Text("Half".into()) });
        let usage = MessageDelta::default().with_usage(tokens(3));
        let head = stream::iter([start, text, Ok(Delta::Message(Box::new(usage)))]);
        let reached = self.0.reached.clone();
        Ok(match self.take() {
            Deed::Hang => {
                let flag = Flag(Arc::clone(&self.0.dropped));
                Box::pin(head.chain(stream::once(async move {
                    let _flag = flag;
                    reached.pass().await;
                    Ok(Delta::stop(StopReason::Stop))
                })))
            }
            Deed::PanicOnDrop => {
                let spite = Spiteful;
                Box::pin(head.chain(stream::once(async move {
                    let _spite = spite;
                    reached.pass().await;
                    Ok(Delta::stop(StopReason::Stop))
                })))
            }
            Deed::PanicInStream => panic!("stream broke"),
            Deed::PanicInMidStream => {
                Box::pin(head.chain(stream::once(async { panic!("mid-stream broke") })))
            }
            _ => Box::pin(head.chain(stream::iter([Ok(Delta::stop(StopReason::Stop))]))),
        })
    }

    async fn close(&self) {
        self.0.closed.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the reason and the snapshot with which the subscription closes. Updates before that are skipped.
pub async fn closed(events: &mut AgentSubscription) -> (EndReason, Option<Arc<Snapshot>>) {
    loop {
        match answered(events.next()).await {
            Some(Update::Closed(end)) => {
                assert!(answered(events.next()).await.is_none(), "nothing follows the closing update");
                return (end.reason, end.snapshot);
            }
            Some(_) => {}
            None => panic!("the stream ended without its reason"),
        }
    }
}

/// Returns the events that are ready, until no event arrives within a millisecond.
pub async fn ready_events(events: &mut AgentSubscription) -> Vec<Arc<Event>> {
    let mut ready = Vec::new();
    while let Ok(update) = tokio::time::timeout(Duration::from_millis(1), events.next()).await {
        match update {
            Some(Update::Event(numbered)) => ready.push(numbered.event),
            other => panic!("expected an event, got {other:?}"),
        }
    }
    ready
}

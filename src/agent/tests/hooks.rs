//! Callbacks built from closures, and an agent whose events are checked as they arrive.

use std::{
    error::Error,
    sync::{Arc, Mutex},
};

use crate::{
    agent::{
        Agent, AgentBuilder, AgentCallbacks, AgentSubscription, ErrorDecision, Event, Failure, Prompt,
        Response, Snapshot, State, StateEdit, Status, ToolDecision, TurnDecision,
    },
    message::{Message, ToolResult, ToolUse, Usage},
    provider::Request,
    testing::Gate,
    tool::{Tool, ToolContext, declared_tool, tool_fn},
};
use async_trait::async_trait;

use super::support::{apply, ends_run, name, names, next};

type InitHook = dyn FnMut(&mut StateEdit, &State) -> Result<(), Box<dyn Error + Send + Sync>> + Send;

type PrepareHook = dyn FnMut(&mut Request, &mut State) + Send;
type ToolUseHook = dyn FnMut(&ToolUse, &mut State) -> ToolDecision + Send;
type ToolResultHook = dyn FnMut(ToolResult, &mut State) -> ToolResult + Send;
type TurnHook = dyn FnMut(&Response, &mut State) -> TurnDecision + Send;
type ErrorHook = dyn FnMut(&Failure, &mut State) -> ErrorDecision + Send;
type EventHook = dyn FnMut(Box<dyn std::any::Any + Send>, &mut State) -> Option<Prompt> + Send;

/// Callbacks built from closures. A callback without a closure does what the trait's default does.
#[derive(Default)]
pub(crate) struct Hooks {
    init: Option<Box<InitHook>>,
    prepare: Option<Box<PrepareHook>>,
    tool_use: Option<Box<ToolUseHook>>,
    tool_result: Option<Box<ToolResultHook>>,
    turn: Option<Box<TurnHook>>,
    error: Option<Box<ErrorHook>>,
    event: Option<Box<EventHook>>,
}

macro_rules! hooks {
    ($($on:ident, $field:ident: ($($arg:ty),+) $(-> $out:ty)?;)+) => {
        impl Hooks {
            $(pub(crate) fn $on(mut self, hook: impl FnMut($($arg),+) $(-> $out)? + Send + 'static) -> Self {
                self.$field = Some(Box::new(hook));
                self
            })+
        }
    };
}

hooks! {
    on_init, init: (&mut StateEdit, &State) -> Result<(), Box<dyn Error + Send + Sync>>;
    on_prepare, prepare: (&mut Request, &mut State);
    on_tool_use, tool_use: (&ToolUse, &mut State) -> ToolDecision;
    on_tool_result, tool_result: (ToolResult, &mut State) -> ToolResult;
    on_turn, turn: (&Response, &mut State) -> TurnDecision;
    on_error, error: (&Failure, &mut State) -> ErrorDecision;
    on_event, event: (Box<dyn std::any::Any + Send>, &mut State) -> Option<Prompt>;
}

impl Hooks {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Makes `handle_turn` continue with these texts, one per turn, and then stop.
    pub(crate) fn continuing(self, texts: impl IntoIterator<Item = &'static str>) -> Self {
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.reverse();
        self.on_turn(move |_, _| texts.pop().map_or(TurnDecision::Stop, TurnDecision::continue_with))
    }

    /// Makes `handle_tool_use` return the decision for the tool's name. Tools that are not listed are executed.
    pub(crate) fn deciding(self, decisions: impl IntoIterator<Item = (&'static str, ToolDecision)>) -> Self {
        let decisions: Vec<_> = decisions.into_iter().collect();
        self.on_tool_use(move |tool_use, _| {
            let found = decisions.iter().find(|(name, _)| *name == tool_use.name);
            found.map_or(ToolDecision::Execute, |(_, decision)| decision.clone())
        })
    }
}

#[async_trait]
impl AgentCallbacks for Hooks {
    async fn init(
        &mut self,
        draft: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.init.as_mut().map_or(Ok(()), |hook| hook(draft, state))
    }

    async fn prepare_step(&mut self, request: &mut Request, state: &mut State) {
        if let Some(hook) = &mut self.prepare {
            hook(request, state);
        }
    }

    async fn handle_tool_use(&mut self, tool_use: &ToolUse, state: &mut State) -> ToolDecision {
        self.tool_use.as_mut().map_or(ToolDecision::Execute, |hook| hook(tool_use, state))
    }

    async fn handle_tool_result(&mut self, result: ToolResult, state: &mut State) -> ToolResult {
        match &mut self.tool_result {
            Some(hook) => hook(result, state),
            None => result,
        }
    }

    async fn handle_turn(&mut self, response: &Response, state: &mut State) -> TurnDecision {
        self.turn.as_mut().map_or(TurnDecision::Stop, |hook| hook(response, state))
    }

    async fn handle_error(&mut self, failure: &Failure, state: &mut State) -> ErrorDecision {
        self.error.as_mut().map_or(ErrorDecision::Stop, |hook| hook(failure, state))
    }

    async fn handle_event(
        &mut self,
        event: Box<dyn std::any::Any + Send>,
        state: &mut State,
    ) -> Option<Prompt> {
        self.event.as_mut().and_then(|hook| hook(event, state))
    }
}

/// A log that callbacks and tools write to and tests read.
#[derive(Clone, Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn push(&self, entry: impl Into<T>) {
        self.0.lock().unwrap().push(entry.into());
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

/// An agent and a view of the agent that is built only from its events. Checks that each event survives serialization,
/// and that each status event changes the status. When a run has ended, checks that the view equals the agent's
/// snapshot.
pub(crate) struct Watched {
    pub(crate) agent: Agent,
    events: AgentSubscription,
    pub(crate) view: Snapshot,
}

impl Watched {
    pub(crate) async fn start(builder: AgentBuilder) -> Self {
        Self::of(builder.start().await.unwrap()).await
    }

    pub(crate) async fn of(agent: Agent) -> Self {
        let events = agent.subscribe().await.unwrap();
        let view = Snapshot::clone(events.snapshot().unwrap());
        Self { agent, events, view }
    }

    pub(crate) async fn next(&mut self) -> Arc<Event> {
        let event = next(&mut self.events).await;
        // The model of a prompt is never serialised, so an event with such a prompt does not survive serialization
        // unchanged.
        if !matches!(&*event, Event::Prompt { prompt: Some(prompt), .. } if prompt.model.is_some()) {
            let json = serde_json::to_string(&*event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), *event, "{json}");
        }
        if let Event::Status { status, pauses } = &*event {
            let before = (self.view.status, &self.view.pauses);
            assert_ne!((*status, pauses), before, "a status event without a change");
        }
        if ends_run(&event) {
            assert_eq!(self.view.status, Status::Idle, "the idle status comes before the end of the run");
        }
        apply(&mut self.view, &event);
        event
    }

    /// Returns the events up to and including the first event with the name `last`. The name `pause(id)` stands for a
    /// status whose last pause has this id, and `pause` for any status with pauses.
    pub(crate) async fn until(&mut self, last: &str) -> Vec<Arc<Event>> {
        let mut seen = Vec::new();
        loop {
            let event = self.next().await;
            let pause = match &*event {
                Event::Status { pauses, .. } => {
                    pauses.last().map(|pause| format!("pause({})", pause.tool_use.id))
                }
                _ => None,
            };
            let name = pause.unwrap_or_else(|| name(&event));
            let done = name == last || name.split('(').next() == Some(last);
            assert!(done || !ends_run(&event), "the run ended before {last}: {:?}", names(&seen));
            seen.push(event);
            if done {
                return seen;
            }
        }
    }

    /// Returns the events up to and including the run's last event. Then checks that the view equals the agent's
    /// snapshot.
    pub(crate) async fn end(&mut self) -> Vec<Arc<Event>> {
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|event: &Arc<Event>| ends_run(event)) {
            seen.push(self.next().await);
        }
        self.check().await;
        seen
    }

    /// Sends a prompt to the idle agent and returns the events of its run.
    pub(crate) async fn run(&mut self, prompt: impl Into<Prompt>) -> Vec<Arc<Event>> {
        self.agent.prompt(prompt).await.unwrap();
        self.end().await
    }

    /// Checks that the view equals the agent's snapshot.
    pub(crate) async fn check(&self) {
        let truth = self.agent.snapshot().await.unwrap();
        truth.state.history.check().unwrap();
        let view = Snapshot::clone(&self.view);
        assert_eq!((view.status, view.step), (truth.status, truth.step));
        assert_eq!(view.state.history, truth.state.history);
        assert_eq!((view.pending, view.partial), (truth.pending, truth.partial));
        assert_eq!((view.pauses, view.staged), (truth.pauses, truth.staged));
        assert_eq!((view.prompts, view.last_run), (truth.prompts, truth.last_run));
        assert_eq!((view.answer, view.tools), (truth.answer, truth.tools));
    }

    /// The committed history in short form: texts, and the ids of tool uses and results.
    pub(crate) async fn history(&self) -> Vec<String> {
        self.agent.state().await.unwrap().history().iter().map(|message| brief(message)).collect()
    }
}

/// Awaits `future`. If this takes longer than an hour of paused time, the test fails.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(std::time::Duration::from_hours(1), future).await.expect("nothing came")
}

/// Waits until the gate is reached.
pub(crate) async fn reached(gate: &Gate) {
    in_time(gate.reached()).await;
}

/// A message in short form.
pub(crate) fn brief(message: &Message) -> String {
    let blocks = message.content.iter().map(|block| match block {
        crate::message::Content::Text(text) => text.text.clone(),
        crate::message::Content::ToolUse(tool_use) => format!("use {}", tool_use.id),
        crate::message::Content::ToolResult(result) => format!("result {}", result.tool_use_id),
        other => format!("{other:?}"),
    });
    format!("{}: {}", message.role, blocks.collect::<Vec<_>>().join(", "))
}

/// The messages of a request in short form.
pub(crate) fn sent(request: &Request) -> Vec<String> {
    request.history.iter().map(|message| brief(message)).collect()
}

/// The responses of the turns in these events.
pub(crate) fn turns(events: &[Arc<Event>]) -> Vec<Arc<Response>> {
    let turn = |event: &Arc<Event>| match &**event {
        Event::Turn { response, .. } => Some(Arc::clone(response)),
        _ => None,
    };
    events.iter().filter_map(turn).collect()
}

/// The response of the last turn. The last event must be `turn(stop)`.
pub(crate) fn stopped(events: &[Arc<Event>]) -> Arc<Response> {
    match events.last().map(|event| &**event) {
        Some(Event::Turn { response, continues: false, .. }) => Arc::clone(response),
        other => panic!("expected turn(stop), got {other:?}"),
    }
}

/// The failure of the run, and the discarded messages.
pub(crate) fn failed(events: &[Arc<Event>]) -> (Failure, Arc<Response>) {
    match events.last().map(|event| &**event) {
        Some(Event::Error { failure, response, .. }) => (failure.clone(), Arc::clone(response)),
        other => panic!("expected an error, got {other:?}"),
    }
}

/// The responses of the steps in these events.
pub(crate) fn steps(events: &[Arc<Event>]) -> Vec<Arc<Response>> {
    let step = |event: &Arc<Event>| match &**event {
        Event::Step(response) => Some(Arc::clone(response)),
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

/// The tool results in these events, each with the input with which the tool was run.
pub(crate) fn results(events: &[Arc<Event>]) -> Vec<(ToolResult, Option<serde_json::Value>)> {
    let result = |event: &Arc<Event>| match &**event {
        Event::ToolResult { result, input } => Some(((**result).clone(), input.clone())),
        _ => None,
    };
    events.iter().filter_map(result).collect()
}

/// A usage of `count` input tokens and `count` output tokens.
pub(crate) fn tokens(count: u64) -> Usage {
    Usage::default().with_input(count).with_output(count)
}

/// A tool that logs its calls as `name input` and answers `name done`.
pub(crate) fn noting(name: &'static str, log: &Log<String>) -> impl Tool + use<> {
    let log = log.clone();
    tool_fn(name, "Notes its call.", move |input: serde_json::Value, _: ToolContext| {
        let log = log.clone();
        async move {
            log.push(format!("{name} {input}"));
            Ok(format!("{name} done"))
        }
    })
}

/// A tool that is declared but has no handler.
pub(crate) fn declared(name: &str) -> impl Tool {
    declared_tool::<serde_json::Value>(name, "The application answers.")
}

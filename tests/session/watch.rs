//! Test helpers: sessions whose events are checked when they arrive, and callbacks that are built from closures.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder, AgentCallbacks, Event, State, Status, ToolDecision, TurnDecision},
    message::{Content, History, Message, ToolUse},
    run::{Prompt, Response},
    session::{Mode, Session, SessionBuilder, SessionEvent, SessionSnapshot, SessionSubscription},
    store::{MemoryStore, Store},
    subscription::{End, EndReason, Update},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, tool_fn},
};
use serde_json::Value;

/// Awaits `future`, and fails the test if that takes longer than an hour of paused time.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(1), future).await.expect("nothing came")
}

/// Returns the result of an operation that must finish immediately.
pub(crate) async fn answered<T>(operation: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_millis(10), operation).await.expect("the operation was not answered")
}

/// Waits until the gate is reached.
pub(crate) async fn reached(gate: &Gate) {
    in_time(gate.reached()).await;
}

/// Returns a session builder with a new store.
pub(crate) fn on(agent: AgentBuilder) -> SessionBuilder {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    Session::builder(store).agent(agent)
}

/// Returns an agent with a scripted model and an `echo` tool.
pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::new(steps).model()).tool(echo())
}

pub(crate) fn echo() -> impl Tool {
    tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) })
}

/// Returns an answer that waits at the gate after its first word, and then ends.
pub(crate) fn held(gate: &Gate) -> Step {
    Step::new().then_text(["Half"]).gate(gate).stop()
}

/// Returns the kind of an event in a short form.
pub(crate) fn word(event: &SessionEvent) -> String {
    match event {
        SessionEvent::Agent(event) => match &**event {
            Event::Status { status, .. } => format!("status({status:?})").to_lowercase(),
            Event::Turn { continues: false, .. } => "turn(stop)".into(),
            Event::Turn { .. } => "turn(continue)".into(),
            other => serde_json::to_value(other).unwrap()["type"].as_str().unwrap().to_owned(),
        },
        SessionEvent::Tree(_) => "tree".into(),
        SessionEvent::Title { .. } => "title".into(),
        SessionEvent::Store(_) => "store".into(),
        _ => "other".into(),
    }
}

/// Returns a message in a short form.
pub(crate) fn brief(message: &Message) -> String {
    let blocks = message.content.iter().map(|block| match block {
        Content::Text(text) => text.text.clone(),
        Content::ToolUse(tool_use) => format!("use {}", tool_use.id),
        Content::ToolResult(result) => format!("result {}", result.tool_use_id),
        other => format!("{other:?}"),
    });
    format!("{}: {}", message.role, blocks.collect::<Vec<_>>().join(", "))
}

pub(crate) fn briefs(history: &History) -> Vec<String> {
    history.iter().map(|message| brief(message)).collect()
}

/// A session, and a view of the session that is built only from its events.
pub(crate) struct Watched {
    pub(crate) session: Session,
    pub(crate) events: SessionSubscription,
    pub(crate) view: SessionSnapshot,
}

impl Watched {
    /// Returns a new session whose agent has a scripted model.
    pub(crate) async fn scripted(steps: impl IntoIterator<Item = Step>) -> Self {
        Self::start(on(scripted(steps))).await
    }

    pub(crate) async fn start(builder: SessionBuilder) -> Self {
        Self::of(&builder.create().await.unwrap()).await
    }

    pub(crate) async fn of(session: &Session) -> Self {
        let events = answered(session.subscribe(Mode::Observer)).await.unwrap();
        let view = events.snapshot().unwrap().as_ref().clone();
        Self { session: session.clone(), events, view }
    }

    /// Applies the next event to the view and returns the event. The event must have the next number, and serialization
    /// must preserve it.
    pub(crate) async fn next(&mut self) -> Arc<SessionEvent> {
        let update = in_time(self.events.next()).await;
        let Some(Update::Event(numbered)) = update else { panic!("expected an event, got {update:?}") };
        assert_eq!(numbered.id.number, self.view.last.number + 1);
        let json = serde_json::to_string(&*numbered.event).unwrap();
        let read: SessionEvent = serde_json::from_str(&json).unwrap();
        if matches!(numbered.event.agent(), Some(Event::Prompt { .. })) {
            // Compare the JSON, because the model and the secrets of a prompt are never serialised.
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        } else {
            assert_eq!(read, *numbered.event, "{json}");
        }
        self.view.apply(&numbered).unwrap();
        assert_eq!(numbered.id, self.view.last);
        numbered.event
    }

    /// Returns the names of the events up to and including the first event with this name. Store events are omitted,
    /// because they may arrive at any time.
    pub(crate) async fn until(&mut self, last: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|seen| seen != last) {
            let word = word(&*self.next().await);
            if word != "store" {
                seen.push(word);
            }
        }
        seen
    }

    /// Sends a prompt, and waits until its turn is in the tree.
    pub(crate) async fn ask(&mut self, prompt: &str) {
        in_time(self.session.ask(prompt)).await.unwrap();
        self.check().await;
    }

    /// Waits until the session is idle, and checks the view.
    pub(crate) async fn rest(&mut self) {
        in_time(self.session.wait_until_idle()).await.unwrap();
        self.check().await;
    }

    /// Checks that the view equals the session's snapshot, and that the tree's path equals the agent's history.
    pub(crate) async fn check(&mut self) {
        let truth = answered(self.session.snapshot()).await.unwrap();
        self.see(&truth).await;
    }

    pub(crate) async fn see(&mut self, truth: &SessionSnapshot) {
        while self.view.last.number < truth.last.number {
            self.next().await;
        }
        assert_eq!(*truth.tree.history(), truth.agent.state.history, "{}", truth.tree);
        truth.agent.state.history.check().unwrap();
        let view = self.view.clone();
        assert_eq!(view, *truth);
    }

    /// Waits for the end of the session and returns its reason. Checks that the view equals the last snapshot.
    pub(crate) async fn closed(&mut self) -> EndReason {
        loop {
            match in_time(self.events.next()).await {
                Some(Update::Event(numbered)) => self.view.apply(&numbered).unwrap(),
                Some(Update::Closed(End { reason, snapshot: Some(snapshot), .. })) => {
                    assert_eq!(self.view, *snapshot);
                    assert!(
                        in_time(self.events.next()).await.is_none(),
                        "nothing follows the closing update"
                    );
                    return reason;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the messages of the path in a short form.
    pub(crate) fn path(&self) -> Vec<String> {
        briefs(self.view.tree.history())
    }

    /// Returns the tree, drawn as text.
    pub(crate) fn drawn(&self) -> String {
        self.view.tree.to_string()
    }

    pub(crate) async fn status(&self) -> Status {
        answered(self.session.status()).await.unwrap()
    }
}

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type TurnHook = dyn FnMut(Response, State) -> Later<TurnDecision> + Send;
type ToolUseHook = dyn FnMut(ToolUse) -> ToolDecision + Send;
type EventHook = dyn FnMut(Box<dyn std::any::Any + Send>, State) -> Later<Option<Prompt>> + Send;
type EndHook = dyn FnMut(EndReason, State) -> Later<()> + Send;

/// Callbacks that are built from closures. If a callback has no closure, it does the same as the trait's default.
#[derive(Default)]
pub(crate) struct Hooks {
    turn: Option<Box<TurnHook>>,
    tool_use: Option<Box<ToolUseHook>>,
    event: Option<Box<EventHook>>,
    end: Option<Box<EndHook>>,
}

impl Hooks {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn on_turn<F: Future<Output = TurnDecision> + Send + 'static>(
        mut self,
        mut hook: impl FnMut(Response, State) -> F + Send + 'static,
    ) -> Self {
        self.turn = Some(Box::new(move |response, state| Box::pin(hook(response, state))));
        self
    }

    /// Continues the run with these texts, one after each turn, and then stops.
    pub(crate) fn continuing(self, texts: impl IntoIterator<Item = &'static str>) -> Self {
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.reverse();
        self.on_turn(move |_, _| {
            let next = texts.pop().map_or(TurnDecision::Stop, TurnDecision::continue_with);
            async move { next }
        })
    }

    pub(crate) fn on_tool_use(mut self, hook: impl FnMut(ToolUse) -> ToolDecision + Send + 'static) -> Self {
        self.tool_use = Some(Box::new(hook));
        self
    }

    pub(crate) fn on_event<F: Future<Output = Option<Prompt>> + Send + 'static>(
        mut self,
        mut hook: impl FnMut(Box<dyn std::any::Any + Send>, State) -> F + Send + 'static,
    ) -> Self {
        self.event = Some(Box::new(move |event, state| Box::pin(hook(event, state))));
        self
    }

    pub(crate) fn on_end<F: Future<Output = ()> + Send + 'static>(
        mut self,
        mut hook: impl FnMut(EndReason, State) -> F + Send + 'static,
    ) -> Self {
        self.end = Some(Box::new(move |reason, state| Box::pin(hook(reason, state))));
        self
    }
}

#[async_trait]
impl AgentCallbacks for Hooks {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        self.tool_use.as_mut().map_or(ToolDecision::Execute, |hook| hook(tool_use.clone()))
    }

    async fn handle_turn(&mut self, response: &Response, state: &mut State) -> TurnDecision {
        match &mut self.turn {
            Some(hook) => hook(response.clone(), state.clone()).await,
            None => TurnDecision::Stop,
        }
    }

    async fn handle_event(
        &mut self,
        event: Box<dyn std::any::Any + Send>,
        state: &mut State,
    ) -> Option<Prompt> {
        match &mut self.event {
            Some(hook) => hook(event, state.clone()).await,
            None => None,
        }
    }

    async fn terminate(&mut self, reason: &EndReason, state: &State) {
        if let Some(hook) = &mut self.end {
            hook(reason.clone(), state.clone()).await;
        }
    }
}

/// A log that callbacks write and tests read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn push(&self, entry: impl Into<String>) {
        self.0.lock().unwrap().push(entry.into());
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

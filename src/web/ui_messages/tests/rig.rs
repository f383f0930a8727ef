//! A session, and clients that follow it.

use std::{collections::BTreeMap, future::ready, iter, time::Duration};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    agent::{Agent, AgentBuilder, AgentCallbacks, ErrorDecision, Event, State, Status},
    run::{Failure, PromptState},
    session::{
        Mode, Session, SessionAnswer, SessionCommand, SessionEvent, SessionSnapshot, SessionSubscription,
    },
    store::MemoryStore,
    subscription::{Numbered, Update},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolContext, ToolSet, declared_tool, tool_fn},
    web::{
        Problem,
        front::files::ClientFileForm,
        ui_messages::{
            AiSdkFrame, AiSdkPostBody, AiSdkRunToStream, AiSdkStream, AiSdkTranslationSettings, AiSdkVersion,
            fold::AiSdkFrameFold, messages, read,
        },
    },
};

pub(super) const LEVELS: [AiSdkVersion; 2] = [AiSdkVersion::Six, AiSdkVersion::Seven];

pub(super) fn settings(level: AiSdkVersion) -> AiSdkTranslationSettings {
    let files = ClientFileForm { base: Some("/c/1/files".to_owned()), ..ClientFileForm::default() };
    AiSdkTranslationSettings { level, conversation: Some("/c/1".to_owned()), files, provider_items: true }
}

/// The tools of the tests: `clock` runs at once, `delete` needs an approval, and `locate` is run by the client.
pub(super) fn tools() -> ToolSet {
    let clock = tool_fn("clock", "Tells the time.", |input: Zone, context: ToolContext| async move {
        context.progress(json!({ "zone": input.zone })).await;
        Ok(json!({ "time": "12:00" }).to_string())
    });
    let delete = tool_fn("delete", "Deletes a file.", |input: Zone, _| async move {
        Ok(format!("deleted {}", input.zone))
    });
    let tools = ToolSet::new().with(clock).and_then(|tools| tools.with(delete.needs_approval()));
    tools.and_then(|tools| tools.with(declared_tool::<Zone>("locate", "Finds the user."))).unwrap()
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(super) struct Zone {
    zone: String,
}

pub(super) async fn session(steps: impl IntoIterator<Item = Step>) -> Session {
    session_of(ScriptedProvider::new(steps), |agent| agent).await
}

pub(super) async fn session_of(
    provider: ScriptedProvider,
    adapt: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> Session {
    let agent = adapt(Agent::builder().model(provider.model()).tools(tools()));
    Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap()
}

/// Callbacks that repeat each failed request after a second.
pub(super) struct Stubborn;

#[async_trait::async_trait]
impl AgentCallbacks for Stubborn {
    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::RetryAfter(Duration::from_secs(1))
    }
}

/// A response as a client sees it.
pub(super) struct Client {
    pub(super) stream: AiSdkStream,
    updates: SessionSubscription,
    session: Session,
    /// The state after the last update.
    view: SessionSnapshot,
    pub(super) frames: Vec<AiSdkFrame>,
}

impl Client {
    /// Subscribes, and then sends the command that `target` returns.
    pub(super) async fn start(
        session: &Session,
        level: AiSdkVersion,
        target: impl FnOnce(&SessionSnapshot) -> (AiSdkRunToStream, Option<SessionCommand>),
    ) -> Self {
        let updates = session.subscribe(Mode::Observer).await.unwrap();
        let view = SessionSnapshot::clone(updates.snapshot().unwrap());
        let (target, command) = target(&view);
        let mut stream = AiSdkStream::begin(settings(level), &view, target);
        if let Some(command) = command
            && let SessionAnswer::Accepted(accepted) = session.perform(command, None).await.unwrap()
        {
            stream.accepted(&accepted);
        }
        let frames = iter::from_fn(|| stream.next_frame()).collect();
        Self { stream, updates, session: session.clone(), view, frames }
    }

    /// Sends a request with this body, as the client of the AI SDK would. Returns its response, which the test reads.
    pub(super) async fn post(session: &Session, level: AiSdkVersion, body: Value) -> Result<Self, Problem> {
        let snapshot = session.snapshot().await.unwrap();
        let (command, target) = plan(&snapshot, body)?;
        Ok(Self::start(session, level, |_| (target, command)).await)
    }

    /// Reads one event. If the response ends at a pause, no event is read.
    pub(super) async fn step(&mut self) {
        self.step_with(Numbered::clone).await;
    }

    /// Reads the event that `change` returns for the next one.
    async fn step_with(&mut self, change: impl Fn(&Numbered<SessionEvent>) -> Numbered<SessionEvent>) {
        if self.stream.is_paused() {
            self.session.snapshot().await.unwrap();
        }
        let update = tokio::select! {
            biased;
            update = self.updates.next() => update,
            () = ready(()), if self.stream.is_paused() => None,
        };
        match update {
            Some(Update::Event(event)) => {
                self.view.apply(&event).unwrap();
                self.stream.event(&change(&event).event);
            }
            None if self.stream.is_paused() => self.stream.pause(),
            other => panic!("the session ended: {other:?}"),
        }
        self.frames.extend(iter::from_fn(|| self.stream.next_frame()));
    }

    /// Misses about `count` events, and reads a snapshot in their place. A session has no snapshot between the events
    /// that start or end a turn: from the status and the states of the prompts to the message or the nodes.
    pub(super) async fn miss(&mut self, count: usize) {
        let (mut missed, mut is_between) = (0, false);
        while missed < count || is_between {
            // The time passes only when nothing else happens.
            let next = timeout(Duration::from_secs(1), self.updates.next()).await;
            let Ok(Some(Update::Event(event))) = next else { break };
            self.view.apply(&event).unwrap();
            missed += 1;
            is_between = match event.event.agent() {
                Some(Event::Status { status, .. }) => *status != Status::Paused,
                Some(Event::Prompt { state, prompt, .. }) => match state {
                    PromptState::InFlight { .. } | PromptState::Ended { .. } => true,
                    state => *state == PromptState::Returned && prompt.is_some(),
                },
                Some(Event::Turn { .. } | Event::Cancelled { .. } | Event::Error { .. }) => true,
                _ => false,
            };
        }
        self.stream.snapshot(&self.view);
        self.frames.extend(iter::from_fn(|| self.stream.next_frame()));
    }

    /// Reads the event with this number, or misses as many events as `misses` states for this number.
    pub(super) async fn step_or_miss(&mut self, event: usize, misses: &BTreeMap<usize, usize>) {
        match misses.get(&event) {
            Some(count) => self.miss(*count).await,
            None => self.step().await,
        }
    }

    /// Reads the events that `change` returns until the response is complete.
    pub(super) async fn finish_with(
        &mut self,
        change: impl Fn(&Numbered<SessionEvent>) -> Numbered<SessionEvent>,
    ) {
        while !self.stream.is_ended() {
            self.step_with(&change).await;
        }
    }

    /// Reads events until the response is complete.
    pub(super) async fn finish(self) -> Vec<AiSdkFrame> {
        self.finish_missing(&BTreeMap::new()).await
    }

    /// Reads or misses events until the response is complete.
    pub(super) async fn finish_missing(mut self, misses: &BTreeMap<usize, usize>) -> Vec<AiSdkFrame> {
        let mut events = 0..;
        while !self.stream.is_ended() {
            self.step_or_miss(events.next().unwrap(), misses).await;
        }
        self.frames
    }

    /// Reads events until a frame of this type was sent.
    pub(super) async fn until(&mut self, kind: &str) {
        while !self.frames.iter().any(|frame| frame["type"] == kind) {
            self.step().await;
        }
    }
}

/// Returns the frames with which a response begins.
pub(super) fn begin(
    level: AiSdkVersion,
    snapshot: &SessionSnapshot,
    target: AiSdkRunToStream,
) -> Vec<AiSdkFrame> {
    let mut stream = AiSdkStream::begin(settings(level), snapshot, target);
    iter::from_fn(|| stream.next_frame()).collect()
}

pub(super) fn plan(
    snapshot: &SessionSnapshot,
    body: Value,
) -> Result<(Option<SessionCommand>, AiSdkRunToStream), Problem> {
    plan_all(snapshot, body).map(|(mut commands, target)| (commands.pop(), target))
}

/// Returns all commands of a request. A decision of an earlier message precedes the command of the newest message.
pub(super) fn plan_all(
    snapshot: &SessionSnapshot,
    body: Value,
) -> Result<(Vec<SessionCommand>, AiSdkRunToStream), Problem> {
    let post: AiSdkPostBody = serde_json::from_value(body).unwrap();
    read(&post, snapshot)
}

/// Returns the body of a request with a new message after the messages `before`.
pub(super) fn submit(before: &[Value], id: &str, text: &str) -> Value {
    let mut messages = before.to_vec();
    messages.push(user(id, text));
    json!({ "id": "1", "trigger": "submit-message", "messages": messages })
}

pub(super) fn user(id: &str, text: &str) -> Value {
    json!({ "id": id, "role": "user", "parts": [{ "type": "text", "text": text }] })
}

/// Sends a prompt, and returns the frames of its response.
pub(super) async fn ask(session: &Session, level: AiSdkVersion, id: &str) -> Vec<AiSdkFrame> {
    Client::post(session, level, submit(&[], id, "Hi")).await.unwrap().finish().await
}

/// Adds the content of the frames to the parts that a client has, and returns all its parts.
pub(super) fn fold_onto(parts: Vec<Value>, frames: &[AiSdkFrame]) -> Vec<Value> {
    let mut fold = AiSdkFrameFold { parts, ..AiSdkFrameFold::default() };
    for frame in frames {
        fold.add(frame);
    }
    fold.parts
}

pub(super) fn fold(frames: &[AiSdkFrame]) -> Vec<Value> {
    fold_onto(Vec::new(), frames)
}

/// Returns the parts without data parts, which lists do not contain.
pub(super) fn lasting(parts: Vec<Value>) -> Vec<Value> {
    parts.into_iter().filter(|part| !part["type"].as_str().unwrap().starts_with("data-")).collect()
}

async fn last_answer(session: &Session, level: AiSdkVersion) -> Value {
    let all = messages(&settings(level), &session.snapshot().await.unwrap(), true);
    all.into_iter().rfind(|message| message["role"] == "assistant").expect("an answer")
}

/// Returns the parts of the last answer in the list.
pub(super) async fn listed(session: &Session, level: AiSdkVersion) -> Vec<Value> {
    lasting(last_answer(session, level).await["parts"].as_array().unwrap().clone())
}

/// Returns the id of the last answer in the list, which has the turn of its first message.
pub(super) async fn listed_id(session: &Session) -> String {
    last_answer(session, AiSdkVersion::Seven).await["id"].as_str().unwrap().to_owned()
}

pub(super) fn types(frames: &[AiSdkFrame]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

pub(super) fn find<'a>(frames: &'a [AiSdkFrame], kind: &str) -> Option<&'a AiSdkFrame> {
    frames.iter().find(|frame| frame["type"] == kind)
}

pub(super) fn finish(frames: &[AiSdkFrame]) -> &AiSdkFrame {
    find(frames, "finish").expect("a finish frame")
}

/// Checks the rules that the frames of every response follow.
pub(super) fn check(level: AiSdkVersion, frames: &[AiSdkFrame]) {
    let types = types(frames);
    assert_eq!(types[0], "start", "{types:?}");
    let end = types.iter().position(|kind| matches!(*kind, "finish" | "error")).expect("a terminal frame");
    assert_eq!(end + 1, types.len(), "nothing follows the terminal frame: {types:?}");
    assert!(types[1..].iter().all(|kind| *kind != "start"), "{types:?}");
    if level == AiSdkVersion::Six {
        let of_seven = ["tool-approval-response", "custom", "steering-message", "reset-step"];
        assert!(types.iter().all(|kind| !of_seven.contains(kind)), "{types:?}");
        assert!(frames.iter().all(|frame| frame["finishReason"] != "interrupted"));
    }
    let mut open: Vec<&Value> = Vec::new();
    for frame in frames {
        match frame["type"].as_str().unwrap() {
            "text-start" | "reasoning-start" => {
                assert!(!open.contains(&&frame["id"]), "{frame}");
                open.push(&frame["id"]);
            }
            "text-delta" | "reasoning-delta" => assert!(open.contains(&&frame["id"]), "{frame}"),
            "text-end" | "reasoning-end" => {
                assert!(open.contains(&&frame["id"]), "{frame}");
                open.retain(|id| **id != frame["id"]);
            }
            "reset-step" => open.clear(),
            "finish-step" | "start-step" => assert!(open.is_empty(), "{types:?}"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let is_streaming = |part: &Value| part["state"] == "input-streaming";
    assert!(!fold(frames).iter().any(is_streaming), "{frames:?}");
}

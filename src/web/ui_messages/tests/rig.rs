//! A session, and clients that follow it through the translator.

use serde_json::{Value, json};

use crate::{
    agent::{Agent, AgentBuilder},
    session::{Mode, Session, SessionCommand, SessionEvent, SessionSnapshot, SessionSubscription},
    store::MemoryStore,
    subscription::{Numbered, Update},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolContext, ToolSet, declared_tool, tool_fn},
    web::{
        Problem,
        front::files::Files,
        ui_messages::{Follow, Frame, Level, Post, Settings, Translator, fold::Fold, messages, read},
    },
};

pub(super) const LEVELS: [Level; 2] = [Level::Six, Level::Seven];

pub(super) fn settings(level: Level) -> Settings {
    let files = Files { base: Some("/c/1/files".to_owned()), ..Files::default() };
    Settings { level, conversation: Some("/c/1".to_owned()), files, provider_items: true }
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

/// A response as a client sees it.
pub(super) struct Client {
    pub(super) translator: Translator,
    updates: SessionSubscription,
    session: Session,
    pub(super) frames: Vec<Frame>,
}

impl Client {
    /// Subscribes, and then sends the command that `follow` returns.
    pub(super) async fn start(
        session: &Session,
        level: Level,
        follow: impl FnOnce(&SessionSnapshot) -> (Follow, Option<SessionCommand>),
    ) -> Self {
        let updates = session.subscribe(Mode::Observer).await.unwrap();
        let snapshot = updates.snapshot().unwrap().clone();
        let (follow, command) = follow(&snapshot);
        let (translator, frames) = Translator::begin(settings(level), &snapshot, follow);
        if let Some(command) = command {
            session.perform(command, None).await.unwrap();
        }
        Self { translator, updates, session: session.clone(), frames }
    }

    /// Sends a request with this body, as the client of the AI SDK would. Returns its response, which the test reads.
    pub(super) async fn post(session: &Session, level: Level, body: Value) -> Result<Self, Problem> {
        let snapshot = session.snapshot().await.unwrap();
        let (command, follow) = plan(&snapshot, body)?;
        Ok(Self::start(session, level, |_| (follow, command)).await)
    }

    /// Translates one event. If the response ends at a pause, no event is read.
    pub(super) async fn step(&mut self) {
        self.step_with(Numbered::clone).await;
    }

    /// Translates the event that `change` returns for the next one.
    async fn step_with(&mut self, change: impl Fn(&Numbered<SessionEvent>) -> Numbered<SessionEvent>) {
        if self.translator.is_pausing() {
            let last = self.session.snapshot().await.unwrap().last;
            self.frames.extend(self.translator.pause_until(last));
            if self.translator.is_ended() {
                return;
            }
        }
        match self.updates.next().await {
            Some(Update::Event(event)) => self.frames.extend(self.translator.event(&change(&event))),
            other => panic!("the session ended: {other:?}"),
        }
    }

    /// Translates the events that `change` returns until the response is complete.
    pub(super) async fn finish_with(
        &mut self,
        change: impl Fn(&Numbered<SessionEvent>) -> Numbered<SessionEvent>,
    ) {
        while !self.translator.is_ended() {
            self.step_with(&change).await;
        }
    }

    /// Translates events until the response is complete.
    pub(super) async fn finish(mut self) -> Vec<Frame> {
        while !self.translator.is_ended() {
            self.step().await;
        }
        self.frames
    }

    /// Translates events until a frame of this type was sent.
    pub(super) async fn until(&mut self, kind: &str) {
        while !self.frames.iter().any(|frame| frame["type"] == kind) {
            self.step().await;
        }
    }
}

pub(super) fn plan(
    snapshot: &SessionSnapshot,
    body: Value,
) -> Result<(Option<SessionCommand>, Follow), Problem> {
    let post: Post = serde_json::from_value(body).unwrap();
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
pub(super) async fn ask(session: &Session, level: Level, id: &str) -> Vec<Frame> {
    Client::post(session, level, submit(&[], id, "Hi")).await.unwrap().finish().await
}

/// Adds the content of the frames to the parts that a client has, and returns all its parts.
pub(super) fn fold_onto(parts: Vec<Value>, frames: &[Frame]) -> Vec<Value> {
    let mut fold = Fold { parts, ..Fold::default() };
    for frame in frames {
        fold.add(frame);
    }
    fold.parts
}

pub(super) fn fold(frames: &[Frame]) -> Vec<Value> {
    fold_onto(Vec::new(), frames)
}

/// Returns the parts without data parts, which lists do not contain.
pub(super) fn lasting(parts: Vec<Value>) -> Vec<Value> {
    parts.into_iter().filter(|part| !part["type"].as_str().unwrap().starts_with("data-")).collect()
}

async fn last_answer(session: &Session, level: Level) -> Value {
    let all = messages(&settings(level), &session.snapshot().await.unwrap());
    all.into_iter().rfind(|message| message["role"] == "assistant").expect("an answer")
}

/// Returns the parts of the last answer in the list.
pub(super) async fn listed(session: &Session, level: Level) -> Vec<Value> {
    lasting(last_answer(session, level).await["parts"].as_array().unwrap().clone())
}

/// Returns the id of the last answer in the list, which has the turn of its first message.
pub(super) async fn listed_id(session: &Session) -> String {
    last_answer(session, Level::Seven).await["id"].as_str().unwrap().to_owned()
}

pub(super) fn types(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| frame["type"].as_str().unwrap()).collect()
}

pub(super) fn find<'a>(frames: &'a [Frame], kind: &str) -> Option<&'a Frame> {
    frames.iter().find(|frame| frame["type"] == kind)
}

pub(super) fn finish(frames: &[Frame]) -> &Frame {
    find(frames, "finish").expect("a finish frame")
}

/// Checks the rules that the frames of every response follow.
pub(super) fn check(level: Level, frames: &[Frame]) {
    let types = types(frames);
    assert_eq!(types[0], "start", "{types:?}");
    let end = types.iter().position(|kind| matches!(*kind, "finish" | "error")).expect("a terminal frame");
    assert_eq!(end + 1, types.len(), "nothing follows the terminal frame: {types:?}");
    assert!(types[1..].iter().all(|kind| *kind != "start"), "{types:?}");
    if level == Level::Six {
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

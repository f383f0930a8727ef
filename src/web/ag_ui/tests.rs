//! Tests of the streams with real sessions, read by a client that makes the same checks as the real clients.

mod answers;
mod client;
mod plans;
mod property;
mod sizes;
mod streams;

use std::{collections::HashSet, time::Duration};

use serde_json::{Value, json};

use super::{
    AgUiFrame, AgUiInput, AgUiRequestedRun, AgUiRunToStream, AgUiStream, AgUiVersion, messages::AgUiMessages,
    stream::omni,
};
use crate::{
    agent::{Agent, AgentBuilder},
    message::StopReason,
    session::{Mode, Session, SessionEvent, SessionSnapshot, SessionSubscription},
    store::MemoryStore,
    subscription::{Numbered, Update},
    testing::{ScriptedProvider, Step},
    tool::{ToolContext, tool_fn_with_schema},
    web::{
        front::{files::ClientFileForm, intent::RequestIntent},
        requests::prompt_of,
    },
};
use client::Client;

/// A session with a scripted provider, and a client that reads one version of the protocol.
struct Rig {
    session: Session,
    provider: ScriptedProvider,
    client: Client,
    runs: usize,
}

/// Returns the builder of an agent with the tools `add`, which runs at once, `ask`, which needs an approval, and
/// `show`, which the client runs.
fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    let any = || crate::tool::Schema::new(json!({ "type": "object" })).unwrap();
    let add = tool_fn_with_schema("add", "Adds.", any(), |input: Value, context: ToolContext| async move {
        context.progress(json!({ "half": true })).await;
        Ok(input.to_string())
    });
    let ask = tool_fn_with_schema("ask", "Asks.", any(), |input: Value, _: ToolContext| async move {
        Ok(format!("asked {input}"))
    });
    let fail = tool_fn_with_schema("fail", "Fails.", any(), |_: Value, _: ToolContext| async move {
        Err::<String, _>(crate::tool::ToolError::new("broken"))
    });
    let confirm =
        tool_fn_with_schema("confirm", "Asks.", any(), |_: Value, context: ToolContext| async move {
            let question = json!({ "message": "How many?", "schema": { "type": "object" } });
            Ok(format!("{:?}", context.ask(question).await))
        });
    let show = crate::tool::declared_tool_with_schema("show", "Shows.", any());
    Agent::builder()
        .model(provider.model())
        .tool(add)
        .tool(ask)
        .tool(fail)
        .tool(confirm)
        .tool(show)
        .needs_approval("ask")
}

impl Rig {
    async fn new(level: AgUiVersion, steps: impl IntoIterator<Item = Step>) -> Self {
        Self::with(level, steps, |agent| agent).await
    }

    async fn with(
        level: AgUiVersion,
        steps: impl IntoIterator<Item = Step>,
        set_up: impl FnOnce(AgentBuilder) -> AgentBuilder,
    ) -> Self {
        let provider = ScriptedProvider::new(steps);
        let agent = set_up(agent(&provider));
        let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
        Self { session, provider, client: Client::new(level), runs: 0 }
    }

    /// Returns the request that the client posts.
    #[expect(clippy::needless_pass_by_value, reason = "`json!` makes one")]
    fn request(&mut self, more: Value) -> AgUiInput {
        self.runs += 1;
        let mut request = json!({
            "threadId": "t",
            "runId": format!("r{}", self.runs),
            "messages": self.client.posted(),
            "tools": [],
            "context": [],
            "state": self.client.state,
            "forwardedProps": {},
        });
        if self.client.level == AgUiVersion::V1 {
            request["protocolVersion"] = "1.0".into();
        }
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        // A test names an interrupt by its tool use.
        for answer in request["resume"].as_array_mut().into_iter().flatten() {
            let start = format!("{}@", answer["interruptId"].as_str().unwrap());
            let is_it = |interrupt: &&Value| interrupt["id"].as_str().unwrap().starts_with(&start);
            if let Some(interrupt) = self.client.interrupts.iter().find(is_it) {
                answer["interruptId"] = interrupt["id"].clone();
            }
        }
        serde_json::from_value(request).unwrap()
    }

    /// Adds a message of the user and runs until the stream ends.
    async fn say(&mut self, text: &str) -> Vec<AgUiFrame> {
        let id = format!("user-{}", self.runs);
        self.client.messages.push(json!({ "id": id, "role": "user", "content": text }));
        self.run(json!({})).await
    }

    async fn resume(&mut self, answers: Value) -> Vec<AgUiFrame> {
        self.run(json!({ "resume": answers })).await
    }

    async fn run(&mut self, more: Value) -> Vec<AgUiFrame> {
        let mut posted = self.post(more).await;
        posted.finish(&mut self.client).await
    }

    /// Checks that the client has the state of the session, and exactly its messages, apart from the progress of tools.
    async fn check_messages(&self) {
        let view = self.session.snapshot().await.unwrap();
        check_messages(&self.client, &view);
    }

    /// Posts a request, as a route does.
    async fn post(&mut self, more: Value) -> Posted {
        let input = self.request(more);
        let updates = self.session.subscribe(Mode::Controller).await.unwrap();
        let view = updates.snapshot().unwrap();
        let run = run_of(&input);
        let start = match input.intent(view) {
            Err(refusal) => {
                return Posted {
                    updates,
                    stream: None,
                    frames: AgUiStream::refused(
                        &run,
                        refusal.code(),
                        &refusal.to_json()["detail"].to_string(),
                    ),
                };
            }
            Ok(RequestIntent::Join(staged)) => AgUiRunToStream::staged(staged),
            Ok(RequestIntent::Ended(_, outcome)) => AgUiRunToStream::Ended(outcome),
            Ok(RequestIntent::Perform(mut command)) => {
                if let Some(first) = input.decided_before(view).unwrap() {
                    self.session.perform(first, None).await.unwrap();
                }
                let prompt = prompt_of(&mut command).and_then(|prompt| prompt.id.clone());
                let answer = self.session.perform(*command, None).await.unwrap();
                let start = AgUiRunToStream::of(&answer, prompt, &view.agent);
                if input.stale_answers(view).is_empty() { start } else { start.behind() }
            }
        };
        let (stream, frames) = AgUiStream::begin(run, (**view).clone(), start);
        Posted { updates, stream: Some(stream), frames }
    }
}

/// Returns the messages of a list.
fn messages_of(view: &SessionSnapshot, level: AgUiVersion) -> Vec<Value> {
    let messages = AgUiMessages::of(view, None, level, &ClientFileForm::default());
    messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
}

fn check_messages(client: &Client, view: &SessionSnapshot) {
    assert_eq!(client.state["omni"], omni(view));
    let truth = messages_of(view, client.level);
    let has_reasoning = truth.iter().any(|message| message["role"] == "reasoning");
    // If a snapshot contains no reasoning, the client keeps its reasoning, even if the session has discarded that
    // reasoning.
    let is_kept = |message: &&Value| {
        message["activityType"] != "omni.progress" && (has_reasoning || message["role"] != "reasoning")
    };
    let shown = client.messages.iter().filter(is_kept).map(parsed);
    similar(&shown.collect::<Vec<_>>(), &truth.iter().map(parsed).collect::<Vec<_>>());
}

fn similar(shown: &[Value], truth: &[Value]) {
    assert_eq!(shown, truth, "{shown:#?}\n{truth:#?}");
}

/// Returns a message whose tool inputs are parsed, because their texts can differ in white space. Only lists of messages
/// have the errors of tools, so the error is removed.
fn parsed(message: &Value) -> Value {
    let mut message = message.clone();
    message.as_object_mut().unwrap().remove("error");
    for call in message.get_mut("toolCalls").and_then(Value::as_array_mut).into_iter().flatten() {
        let text = call["function"]["arguments"].as_str().unwrap();
        call["function"]["arguments"] = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    }
    message
}

fn run_of(input: &AgUiInput) -> AgUiRequestedRun {
    AgUiRequestedRun {
        thread: input.thread_id.clone(),
        id: input.run_id.clone(),
        level: input.level(),
        files: ClientFileForm::default(),
        known: input.known(),
        state: input.state(),
    }
}

/// A request whose stream is being read.
struct Posted {
    updates: SessionSubscription,
    stream: Option<AgUiStream>,
    frames: Vec<AgUiFrame>,
}

impl Posted {
    /// Reads until the stream ends, and gives each event to the client.
    async fn finish(&mut self, client: &mut Client) -> Vec<AgUiFrame> {
        while self.next().await {}
        let frames = std::mem::take(&mut self.frames);
        client.read(&frames);
        client.check_ended();
        frames
    }

    /// Reads the next update. Returns whether there was one.
    async fn next(&mut self) -> bool {
        self.next_with(Numbered::clone).await
    }

    /// Reads the next update, and translates the event that `change` returns for it.
    async fn next_with(
        &mut self,
        change: impl Fn(&Numbered<SessionEvent>) -> Numbered<SessionEvent>,
    ) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        if stream.is_ended() {
            return false;
        }
        let update =
            tokio::time::timeout(Duration::from_mins(1), self.updates.next()).await.unwrap().unwrap();
        let Update::Event(event) = update else { panic!("{update:?}") };
        self.frames.extend(stream.update(&Update::Event(change(&event))));
        true
    }

    /// Reads until the stream has sent an event of this type.
    async fn until(&mut self, kind: &str) {
        while !self.frames.iter().any(|frame| kind_of(frame) == kind) {
            assert!(self.next().await, "no {kind}");
        }
    }
}

fn kind_of(frame: &AgUiFrame) -> String {
    serde_json::to_value(frame).unwrap()["type"].as_str().unwrap().to_owned()
}

fn kinds(frames: &[AgUiFrame]) -> Vec<String> {
    frames.iter().map(kind_of).collect()
}

fn last(frames: &[AgUiFrame]) -> Value {
    serde_json::to_value(frames.last().unwrap()).unwrap()
}

#[tokio::test]
async fn joined_stream_states_the_decisions_about_tool_uses_and_the_unusual_end_of_the_answer() {
    let store = MemoryStore::new();
    for (reason, ended) in [(StopReason::Length, json!("length")), (StopReason::Stop, Value::Null)] {
        let view = crate::session::tests::decided::decided(&store, reason).await.snapshot().await.unwrap();
        let run = AgUiRequestedRun {
            thread: "t".into(),
            id: "r".into(),
            level: AgUiVersion::V1,
            state: serde_json::Map::new(),
            known: HashSet::new(),
            files: ClientFileForm::default(),
        };
        let (_, frames) = AgUiStream::begin(run, view, AgUiRunToStream::Join);
        let frames: Vec<_> = frames.iter().map(|frame| serde_json::to_value(frame).unwrap()).collect();
        let of = |kind: &str| frames.iter().find(|frame| frame["type"] == kind).unwrap();
        assert_eq!(of("STATE_SNAPSHOT")["snapshot"]["omni"]["ended"], ended);
        let messages = of("MESSAGES_SNAPSHOT")["messages"].as_array().unwrap();
        let result = |id: &str| messages.iter().find(|message| message["toolCallId"] == id).unwrap();
        let paid = result("p");
        assert_eq!(paid["content"], "paid {\"eur\":20}");
        let decision = &paid["metadata"]["decision"];
        assert_eq!((&decision["by"], &decision["input"]), (&json!("ann"), &json!({ "eur": 20 })));
        assert_eq!(result("r")["metadata"]["decision"]["kind"], "reject");
        assert_eq!(result("f")["metadata"].get("decision"), None);
    }
}

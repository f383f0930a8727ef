//! A strict server for all five formats. If a request breaks the documented rules of its format, the server rejects it
//! with the status and body of the real service.

pub(crate) mod chat;
pub(crate) mod gemini;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod ollama;
mod openai;
pub(crate) mod responses;
pub(crate) mod transport;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use memory::Memory;
use omni_agent::{message::Usage, provider::ToolChoice};
use serde::de::DeserializeOwned;
use serde_json::Value;
use transport::{HABITS, Habit};

use crate::{
    http::{self, Received, Reply, Server},
    script::{Answer, End, Fault, Step},
};

/// The result of checking a request. The error describes the broken rule.
pub(crate) type Read<T> = Result<T, String>;

/// A format as its service implements it.
pub(crate) trait Wire: Send + Sync {
    /// Reads a request, and checks it against the rules of the format. `memory` contains the earlier answers of the
    /// service.
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen>;

    /// Writes an answer as events of the format.
    fn render(&self, answer: &Answer, number: usize) -> Rendered;

    /// Returns the status and body of an error that is sent instead of an answer.
    fn fault(&self, fault: &Fault) -> (u16, Value);

    /// Returns the event for an error that occurs during an answer.
    fn failure(&self) -> Event;

    /// Returns the part of the usage that the format can report.
    fn reported_usage(&self, usage: Usage) -> Usage;

    /// Returns whether events are lines of JSON.
    fn lines(&self) -> bool {
        false
    }
}

/// An event in the form in which it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// The name of the event. It is empty if the format does not name its events.
    pub(crate) name: &'static str,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn unnamed(data: &Value) -> Self {
        Self { name: "", data: data.to_string() }
    }
}

/// An answer encoded in a format.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) events: Vec<Event>,
    /// The number of events at the end that only mark the answer as complete.
    pub(crate) terminal: usize,
    /// The parts of the answer that must be sent back with the conversation. They must be sent back in exactly this
    /// form.
    pub(crate) issued: Vec<Value>,
}

/// The content of a request, independent of the format.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) system: Option<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) choice: Option<ToolChoice>,
    pub(crate) schema: Option<Value>,
    pub(crate) stop: Vec<String>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) thinks: Option<bool>,
    pub(crate) cached: bool,
    pub(crate) metadata: Option<Value>,
    /// All texts and their roles, except the texts of tool results.
    pub(crate) said: Vec<(&'static str, String)>,
    /// The images, as base64 or URLs.
    pub(crate) images: Vec<String>,
    pub(crate) documents: Vec<String>,
    pub(crate) results: Vec<SeenResult>,
}

/// The result of a tool in a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeenResult {
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) failed: bool,
}

impl Seen {
    pub(crate) fn has_said(&self, who: &str, text: &str) -> bool {
        self.said.iter().any(|(role, said)| *role == who && said == text)
    }
}

/// A service of one format.
pub(crate) struct Service {
    http: Server,
    state: Arc<Mutex<State>>,
}

struct State {
    wire: &'static dyn Wire,
    script: VecDeque<Step>,
    /// How answers are sent. If this is `None`, the habit changes with each answer.
    habit: Option<Habit>,
    memory: Memory,
    seen: Vec<Seen>,
    refused: Vec<String>,
    answers: usize,
}

impl Service {
    pub(crate) async fn start(wire: &'static dyn Wire) -> Self {
        let state = Arc::new(Mutex::new(State {
            wire,
            script: VecDeque::new(),
            habit: None,
            memory: Memory::default(),
            seen: Vec::new(),
            refused: Vec::new(),
            answers: 0,
        }));
        let answering = Arc::clone(&state);
        let http = Server::answering(move |request| Some(answering.lock().unwrap().answer(request))).await;
        Self { http, state }
    }

    /// Adds a step to the script of the service.
    pub(crate) fn will(&self, step: impl Into<Step>) {
        self.state.lock().unwrap().script.push_back(step.into());
    }

    /// Makes the service send all later answers with this habit.
    pub(crate) fn use_habit(&self, habit: Habit) {
        self.state.lock().unwrap().habit = Some(habit);
    }

    /// Makes the service accept earlier answers whose thinking is replaced by a note.
    pub(crate) fn accept_notes(&self) {
        self.state.lock().unwrap().memory.is_cleared = true;
    }

    pub(crate) fn url(&self) -> String {
        self.http.url()
    }

    /// Returns all valid requests.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Returns the last valid request.
    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request was received")
    }

    /// Returns the rule that each rejected request broke.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.lock().unwrap().refused.clone()
    }

    /// Returns the body of the last request.
    pub(crate) fn body(&self) -> Value {
        self.http.received().pop().expect("a request was received").json()
    }

    /// Returns the bodies of all requests.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.http.received().iter().map(Received::json).collect()
    }

    /// Returns the text of all requests, with their addresses and headers.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.http.received().iter().map(|request| format!("{request:?}\n{}", request.json())).collect()
    }

    /// Waits until the server stalls within an answer that does not end.
    pub(crate) async fn falls_silent(&mut self) {
        self.http.wait_for(http::Event::Stalled).await;
    }

    /// Waits until the client has closed a connection.
    pub(crate) async fn is_left(&mut self) {
        self.http.wait_for(http::Event::Closed).await;
    }
}

impl State {
    fn answer(&mut self, request: &Received) -> Reply {
        let step = match self.wire.read(request, &self.memory) {
            Ok(seen) => {
                self.seen.push(seen);
                self.script.pop_front().unwrap_or(Step::Fault(Fault::Invalid("nothing is scripted".into())))
            }
            Err(why) => {
                self.refused.push(why.clone());
                Step::Fault(Fault::Invalid(why))
            }
        };
        match step {
            Step::Fault(fault) => {
                let (status, body) = self.wire.fault(&fault);
                let reply = Reply::new(status).header("content-type", "application/json");
                let reply = match fault {
                    Fault::RateLimit(seconds) => reply.header("retry-after", &seconds.to_string()),
                    _ => reply,
                };
                reply.piece(body.to_string())
            }
            Step::Answer(answer, end) => self.stream(&answer, end),
        }
    }

    fn stream(&mut self, answer: &Answer, end: End) -> Reply {
        self.answers += 1;
        let habit = self.habit.unwrap_or(HABITS[self.answers % HABITS.len()]);
        let Rendered { mut events, terminal, issued } = self.wire.render(answer, self.answers);
        let whole = matches!(end, End::Whole | End::Twice);
        self.memory.keep(issued, whole);
        let ends_at = events.len() - terminal;
        match end {
            End::Whole => {}
            End::Twice => events.extend(events.last().cloned()),
            End::Truncated | End::Silent => events.truncate(ends_at),
            End::Failed => {
                events.truncate(ends_at);
                events.push(self.wire.failure());
            }
        }
        let lines = self.wire.lines();
        let reply = if lines { Reply::ndjson() } else { Reply::sse() };
        let reply = reply.pieces(&habit.bytes(&events, lines), habit.chunk);
        if end == End::Silent { reply.stall() } else { reply }
    }
}

/// Parses a request body into the format's types. These types reject unknown members.
pub(crate) fn typed<T: DeserializeOwned>(value: &Value) -> Read<T> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

/// Returns an error unless the condition holds.
pub(crate) fn must(holds: bool, why: impl FnOnce() -> String) -> Read<()> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Returns whether the text is padded base64.
pub(crate) fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

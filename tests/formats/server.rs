//! A server that speaks all five formats, strictly: a request that breaks its format's documented rules is
//! refused with the status and the body that the service has for it.

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

/// What a request breaks, in words.
pub(crate) type Read<T> = Result<T, String>;

/// One format as its service speaks it.
pub(crate) trait Wire: Send + Sync {
    /// Reads a request by the format's rules; `memory` is what the service has said before.
    fn read(&self, request: &Received, memory: &Memory) -> Read<Seen>;

    /// An answer as the format's events.
    fn render(&self, answer: &Answer, number: usize) -> Rendered;

    /// An error in place of an answer: its status and body.
    fn fault(&self, fault: &Fault) -> (u16, Value);

    /// An error inside of an answer.
    fn failure(&self) -> Event;

    /// What of a usage the format can tell.
    fn tells(&self, usage: Usage) -> Usage;

    /// Whether events are lines of JSON.
    fn lines(&self) -> bool {
        false
    }
}

/// An event on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Empty where the format names none.
    pub(crate) name: &'static str,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn unnamed(data: &Value) -> Self {
        Self { name: "", data: data.to_string() }
    }
}

/// An answer in a format's terms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) events: Vec<Event>,
    /// How many of the last events only say that the answer is complete.
    pub(crate) terminal: usize,
    /// What must come back of it with the conversation, as it must come back.
    pub(crate) issued: Vec<Value>,
}

/// What a request says, in no format's words.
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
    /// All texts, those of tool results apart, with who said them.
    pub(crate) said: Vec<(&'static str, String)>,
    /// In base64, or an address.
    pub(crate) images: Vec<String>,
    pub(crate) documents: Vec<String>,
    pub(crate) results: Vec<SeenResult>,
}

/// A tool's result in a request.
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
    /// How answers travel; each the next way if there is none in particular.
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

    /// Adds to what the service will answer.
    pub(crate) fn will(&self, step: impl Into<Step>) {
        self.state.lock().unwrap().script.push_back(step.into());
    }

    /// Sends all answers this way from now on.
    pub(crate) fn use_habit(&self, habit: Habit) {
        self.state.lock().unwrap().habit = Some(habit);
    }

    pub(crate) fn url(&self) -> String {
        self.http.url()
    }

    /// Requests that obeyed the rules.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// The last of them.
    pub(crate) fn last(&self) -> Seen {
        self.seen().pop().expect("a request")
    }

    /// What other requests broke.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.lock().unwrap().refused.clone()
    }

    /// The body of the last request.
    pub(crate) fn body(&self) -> Value {
        self.http.received().pop().expect("a request").json()
    }

    /// Waits until the server has sent all that it will of an answer which has no end.
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

/// A request's body in a format's own types, which refuse what they do not know.
pub(crate) fn typed<T: DeserializeOwned>(value: &Value) -> Read<T> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

/// An error unless this holds.
pub(crate) fn must(holds: bool, why: impl FnOnce() -> String) -> Read<()> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Whether this is base64, padded.
pub(crate) fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    !text.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

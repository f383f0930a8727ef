//! Records of turns in flight, the effects and replies that wait for them, and the recovery of a recorded turn.

mod compactions;
mod counts;
mod gates;
mod golden;
mod recovery;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{rig::answered, support::scripted};
use crate::{
    agent::{
        Agent, AgentBuilder, AgentCallbacks, AgentCommitItem, Durable, Event, HistoryChangeRight,
        TurnInFlight, TurnRecord,
    },
    message::{History, Message},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Replay, Tool, ToolContext, tool_fn},
};

/// A store that receives the agent's deliveries. The next life starts with its history and its turn.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Contents>>);

#[derive(Clone, Default)]
struct Contents {
    history: Vec<Arc<Message>>,
    turn: Option<TurnRecord>,
    /// The number of records since the process began.
    records: usize,
    /// The events since the process began.
    events: Vec<Arc<Event>>,
}

impl Shelf {
    fn take(&self, delivery: &AgentCommitItem) {
        let mut contents = self.0.lock().unwrap();
        if let Some(event) = &delivery.event {
            if let Event::Turn { response, .. } = &*event.event {
                contents.history.extend(response.messages.iter().cloned());
                contents.turn = None;
            }
            contents.events.push(Arc::clone(&event.event));
        }
        if let Some(record) = &delivery.record {
            contents.records += 1;
            let json = record.turn.as_ref().map(|turn| serde_json::to_string(turn).unwrap());
            let turn = json.map(|json| serde_json::from_str::<TurnRecord>(&json).unwrap());
            contents.turn = match (contents.turn.take(), turn) {
                (Some(earlier), Some(turn)) => Some(earlier.then(turn)),
                (_, turn) => turn,
            };
        }
    }

    fn contents(&self) -> Contents {
        self.0.lock().unwrap().clone()
    }

    fn records(&self) -> usize {
        self.contents().records
    }

    fn history(&self) -> History {
        self.contents().history.into_iter().collect()
    }
}

/// One process with the conversation.
struct Life {
    agent: Agent,
    owner: Arc<HistoryChangeRight>,
    shelf: Shelf,
    /// Whether the store works. If not, records are neither kept nor reported.
    works: Arc<AtomicBool>,
}

impl Life {
    async fn begin(builder: AgentBuilder, level: Durable, shelf: &Shelf) -> Self {
        Self::begin_with(builder, level, shelf, |turn| turn).await
    }

    /// Starts an agent with the contents of the shelf, and continues its turn in flight.
    async fn begin_with(
        builder: AgentBuilder,
        level: Durable,
        shelf: &Shelf,
        adjust: impl FnOnce(TurnInFlight) -> TurnInFlight,
    ) -> Self {
        let shelf =
            Shelf(Arc::new(Mutex::new(Contents { records: 0, events: Vec::new(), ..shelf.contents() })));
        let (sender, mut receiver) = futures_channel::mpsc::channel(64);
        let history = shelf.history();
        let mut builder = builder.records(level).commit_channel(sender).history(history.clone());
        let turn = shelf.contents().turn;
        let is_in_flight = turn.is_some();
        if let Some(record) = turn {
            builder = builder.in_flight(adjust(TurnInFlight::read(record, &history, None).unwrap()));
        }
        let (agent, owner) = builder.start_owned().await.unwrap();
        let (owner, works) = (Arc::new(owner), Arc::new(AtomicBool::new(true)));
        let (own, store, is_up) = (Arc::clone(&owner), shelf.clone(), Arc::clone(&works));
        tokio::spawn(async move {
            while let Some(delivery) = receiver.next().await {
                if is_up.load(Ordering::SeqCst) {
                    store.take(&delivery);
                    if let Some(record) = &delivery.record {
                        own.written(record.number);
                    }
                }
            }
        });
        if is_in_flight {
            owner.take_up().await.unwrap();
        }
        Self { agent, owner, shelf, works }
    }

    /// Lets the store fail from now on.
    fn cut(&self) {
        self.works.store(false, Ordering::SeqCst);
    }

    /// Ends the process as a crash does: nothing else is written or reported.
    async fn kill(self) -> Shelf {
        self.cut();
        let _ = answered(self.agent.stop_discarding(std::time::Duration::ZERO)).await;
        self.shelf
    }

    /// Runs until the agent is idle.
    async fn idle(&self) {
        answered(self.agent.wait_until_idle()).await.unwrap();
        settle().await;
    }

    fn texts(&self) -> Vec<String> {
        let history = self.shelf.history();
        history.iter().map(|message| message.text()).collect()
    }
}

/// Lets all tasks run until they wait for something.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// The calls of a tool, with their keys and inputs. Each call waits at the gate.
#[derive(Clone)]
struct Calls {
    made: Arc<Mutex<Vec<(String, Value)>>>,
    gate: Gate,
}

impl Calls {
    fn new() -> Self {
        Self { made: Arc::default(), gate: Gate::new() }
    }

    fn open() -> Self {
        let calls = Self::new();
        (0..16).for_each(|_| calls.gate.open());
        calls
    }

    fn tool(&self, replay: Replay) -> impl Tool + use<> {
        let (made, gate) = (Arc::clone(&self.made), self.gate.clone());
        let tool = tool_fn("act", "Acts.", move |input: Value, context: ToolContext| {
            let (made, gate) = (Arc::clone(&made), gate.clone());
            async move {
                made.lock().unwrap().push((context.idempotency_key().to_owned(), input));
                gate.pass().await;
                Ok("done")
            }
        });
        tool.with_replay(replay)
    }

    fn made(&self) -> Vec<(String, Value)> {
        self.made.lock().unwrap().clone()
    }
}

/// A response that uses the tool.
fn act() -> Step {
    Step::tool_use("t1", "act", json!({ "n": 1 }))
}

fn acting(steps: impl IntoIterator<Item = Step>, tool: impl Tool) -> (ScriptedProvider, AgentBuilder) {
    let (provider, builder) = scripted(steps);
    (provider, builder.tool(tool))
}

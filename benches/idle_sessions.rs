//! What 100,000 idle sessions, each with its agent, take in memory, before and after a first turn.
//!
//! As for idle agents: model, system prompt and tools are shared, the figures are differences of resident memory, and
//! the messages of the first turn are measured apart. The store keeps nothing, so that it does not count.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{
    agent::Agent,
    message::Message,
    session::Session,
    store::{
        Commit, ConversationId, Page, StateChange, Store, StoreError, Stored, StoredState, Summary, Version,
        Write, WriteId,
    },
    tool::{ToolSet, tool_fn},
};
use serde_json::Value;
use support::{head, on_this_thread, resident, row, size};

/// A store that forgets.
struct Nowhere;

#[async_trait]
impl Store for Nowhere {
    async fn create(&self, _: &ConversationId, _: WriteId, _: &StoredState) -> Result<Version, StoreError> {
        Ok(Version::first())
    }

    async fn commit(&self, _: &ConversationId, write: &Write, _: &Commit) -> Result<Version, StoreError> {
        Ok(write.base.next())
    }

    async fn save_state(
        &self,
        _: &ConversationId,
        write: &Write,
        _: &StateChange,
    ) -> Result<Version, StoreError> {
        Ok(write.base.next())
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        Err(StoreError::NotFound { id: id.clone() })
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        Err(StoreError::NotFound { id: id.clone() })
    }

    async fn list(&self, _: Page) -> Result<Vec<Summary>, StoreError> {
        Ok(Vec::new())
    }

    async fn delete(&self, _: &ConversationId) -> Result<(), StoreError> {
        Ok(())
    }
}

fn main() {
    on_this_thread(measure());
}

async fn measure() {
    let count = size(100_000, 100);
    let model = support::brief();
    let system: Arc<str> = "You are of help.".into();
    let echo = tool_fn("echo", "Gives back its input.", |input: Value, _| async move { Ok(input) });
    let tools = ToolSet::new().with(echo).expect("the tool is sound");
    let store: Arc<dyn Store> = Arc::new(Nowhere);
    let start = async || {
        let agent = Agent::builder().model(model.clone()).system(Arc::clone(&system)).tools(tools.clone());
        let session = Session::builder(Arc::clone(&store)).agent(agent).create().await;
        session.expect("the session starts")
    };
    // The first of everything is made before it counts.
    let first = start().await;
    first.ask("Hi").await.expect("the model answers");

    // A copy of all messages to come, before the heap has holes that it could hide in.
    let mut copies: Vec<Arc<Message>> = Vec::with_capacity(2 * count);
    copies.resize(2 * count, Arc::new(Message::user("Hi")));
    let before = resident();
    for pair in copies.chunks_mut(2) {
        pair[0] = Arc::new(Message::user("Hi"));
        pair[1] = Arc::new(Message::assistant("Hello!"));
    }
    let messages = resident() - before;

    // Handles are an application's to keep; their room is there before.
    let mut sessions: Vec<Session> = Vec::with_capacity(count);
    sessions.resize(count, first.clone());
    let before = resident();
    for place in &mut sessions {
        *place = start().await;
    }
    let idle = resident() - before;
    for session in &sessions {
        session.prompt("Hi").await.expect("the session is idle");
        session.flush(std::time::Duration::from_mins(1)).await.expect("nothing is lost");
        session.wait_until_idle().await.expect("the session lives");
    }
    let after_turn = resident() - before;

    let each = |bytes: usize| bytes as f64 / count as f64;
    head(&format!("resident memory of {count} sessions, each"));
    row("idle, started", format!("{:.0} B", each(idle)), "≤ 5120 B");
    row("the two messages of a turn", format!("{:.0} B", each(messages)), "—");
    let own = each(after_turn.saturating_sub(messages));
    row("idle, after a first turn, its messages apart", format!("{own:.0} B"), "≤ 7168 B");
}

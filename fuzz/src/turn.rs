//! Records of turns in flight, as a newer version or another program may have stored them.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Recover, RecoveryDecision},
    message::Message,
    session::Session,
    store::{
        ConversationId, CopyOptions, Listing, MemoryStore, Store,
        custom::{Change, Commit, StoredState, Turns, Write},
        export_json,
    },
    testing::{ScriptedProvider, Step},
    tree::{Node, NodeId},
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(10);

/// Checks that a record of any content panics nowhere, and that the rest of its conversation stays usable. The text is
/// the record as JSON, in which the state of the agent may be a JSON value instead of a text.
///
/// # Panics
///
/// If a check fails.
pub fn turn(text: &[u8]) {
    let Ok(mut record) = serde_json::from_slice::<Value>(text) else { return };
    if let Some(core) = record.get_mut("core").filter(|core| !core.is_string()) {
        *core = core.to_string().into();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be started").block_on(async {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (resumed, discarded) = (left(&*store, &record).await, left(&*store, &record).await);
        reads(&*store, &resumed).await;
        resumes(&store, resumed).await;
        discards(&store, discarded).await;
    });
}

/// Stores a conversation with two messages and this turn in flight.
async fn left(store: &dyn Store, record: &Value) -> ConversationId {
    let id = ConversationId::generate();
    let created = store.write(&id, &Write::first(), &Change::create(StoredState::default())).await;
    let node = |number| NodeId::new(number).expect("nodes are counted from 1");
    let nodes = [
        Node::new(node(1), None, Message::user("Hello")),
        Node::new(node(2), Some(node(1)), Message::assistant("Hi")),
    ];
    let commit = json!({ "head": 2, "turn": { "record": record } });
    let commit: Commit = serde_json::from_value(commit).expect("a record of any content is read");
    let write = Write::on(created.expect("the id is free"));
    store.write(&id, &write, &Change::Commit(commit.with_nodes(nodes))).await.expect("there is no other writer");
    id
}

async fn reads(store: &dyn Store, id: &ConversationId) {
    assert_eq!(store.load(id).await.expect("the conversation can be read").nodes.len(), 2);
    for which in [Turns::All, Turns::Waiting, Turns::Left] {
        store.turns(which, &Listing::default()).await.expect("turns can be listed");
    }
    let text = export_json(store, id).await.expect("the conversation can be exported");
    let (to, options) = (MemoryStore::new(), CopyOptions::default().with_turns(true));
    options.import_json_with_settings(&to, &text, None).await.expect("the document can be imported");
}

fn agent() -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("Yes")).model())
}

async fn resumes(store: &Arc<dyn Store>, id: ConversationId) {
    match Session::builder(Arc::clone(store)).agent(agent()).open(id).await {
        Ok(session) => {
            match session.cancel().await {
                // The run may already have ended.
                Err(error) if error.kind() != ErrorKind::Idle => panic!("the session has ended: {error}"),
                _ => {}
            }
            session.stop(SOON).await.expect("the session saves everything");
        }
        Err(error) if matches!(error.kind(), ErrorKind::NewerTurn | ErrorKind::DamagedTurn) => {}
        Err(error) => panic!("the conversation can't be opened: {error}"),
    }
}

async fn discards(store: &Arc<dyn Store>, id: ConversationId) {
    let discard = Recover::default().with_decision(RecoveryDecision::Discard);
    let opened = Session::builder(Arc::clone(store)).agent(agent()).recover(discard).open(id).await;
    let session = opened.expect("the conversation opens without its turn");
    session.wait_until_idle().await.expect("the session has not ended");
    assert_eq!(session.ask("More?").await.expect("the agent answers").text(), "Yes");
    session.stop(SOON).await.expect("the session saves everything");
}

//! The life of a conversation: from its first prompt until its session is opened again and continues.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    agent::Agent,
    session::{Mode, SavedPart, Session, SessionEvent, StoreReport},
    store::{MemoryStore, Store},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
};

/// Returns the kind of an event in a short form.
pub(crate) fn word(event: &SessionEvent) -> String {
    match event {
        SessionEvent::Agent(event) => {
            serde_json::to_value(event).unwrap()["type"].as_str().unwrap().to_owned()
        }
        SessionEvent::Tree(_) => "tree".into(),
        SessionEvent::Title { .. } => "title".into(),
        SessionEvent::Store(StoreReport::Saved { what: SavedPart::Tree, .. }) => "store tree".into(),
        SessionEvent::Store(StoreReport::Saved { what: SavedPart::Record, .. }) => "store record".into(),
        SessionEvent::Store(StoreReport::Saved { .. }) => "store state".into(),
        SessionEvent::Store(StoreReport::Failed { .. }) => "store failed".into(),
        _ => "other".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn turn_committed_emits_turn_then_tree_then_store() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let provider = ScriptedProvider::new([Step::text("Hello!"), Step::text("Bye."), Step::text("Hi again")]);
    let agent = || Agent::builder().model(provider.model());
    let session = Session::builder(Arc::clone(&store)).agent(agent()).create().await.unwrap();
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    let mut view = events.snapshot().unwrap().as_ref().clone();
    session.prompt("Hi").await.unwrap();
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != "store tree") {
        let Some(Update::Event(event)) = events.next().await else { panic!() };
        words.push(word(&event.event));
        view.apply(&event).unwrap();
    }
    assert_eq!(
        words,
        [
            "status",
            "message",
            "step_start",
            "text_start",
            "text_delta",
            "text_end",
            "message",
            "step",
            "status",
            "turn",
            "tree",
            "store tree"
        ]
    );
    assert_eq!(session.snapshot().await.unwrap(), view);
    session.ask("Bye").await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!(tree.len(), 4);
    let id = session.id().clone();
    session.stop(Duration::from_secs(1)).await.unwrap();
    let stored = store.load(&id).await.unwrap();
    assert_eq!(stored.nodes.len(), 4);

    let again = Session::builder(Arc::clone(&store)).agent(agent()).open(id).await.unwrap();
    assert_eq!(again.tree().await.unwrap(), tree);
    let user = tree.roots().next().unwrap().id();
    again.again(user).start().await.unwrap();
    again.wait_until_idle().await.unwrap();
    let tree = again.tree().await.unwrap();
    assert_eq!(tree.len(), 5, "{tree}");
    assert_eq!(tree.history().len(), 2);
    assert_eq!(again.snapshot().await.unwrap().agent.state.history, *tree.history());
}

#[tokio::test(start_paused = true)]
async fn text_deltas_of_a_session_survive_a_resync() {
    let pieces = |range: std::ops::Range<u32>| range.map(|number| format!("{number} "));
    let gate = Gate::new();
    let step = Step::new().then_text(pieces(0..2)).gate(&gate).then_text(pieces(2..400)).stop();
    let provider = ScriptedProvider::new([step, Step::new().then_text(["Bye"]).hang()]);
    let agent = Agent::builder().model(provider.model());
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    session.prompt("Hi").await.unwrap();
    gate.reached().await;
    let mut events = session.subscribe(Mode::Controller).await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(deltas.next().await.unwrap().unwrap(), pieces(0..2).collect::<String>());
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(deltas.next().await.unwrap().unwrap(), pieces(2..400).collect::<String>());
    assert!(deltas.next().await.is_none());
    drop(deltas);

    session.prompt("Again").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(deltas.next().await.unwrap().unwrap(), "Bye");
    session.cancel().await.unwrap();
    assert_eq!(deltas.next().await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
}

//! Sessions that leave their turn in flight to the next owner.

use std::{sync::Arc, time::Duration};

use super::watch::{held, in_time, reached, scripted};
use crate::{
    agent::Durable,
    session::{Session, SessionBuilder},
    store::{MemoryStore, Store, StoredTurn},
    testing::{Gate, Step},
};

const SOON: Duration = Duration::from_secs(5);

fn on(store: &Arc<dyn Store>, level: Durable, steps: impl IntoIterator<Item = Step>) -> SessionBuilder {
    Session::builder(Arc::clone(store)).agent(scripted(steps)).durable(level)
}

/// Hands over a session whose model is answering. Returns the session and the stored turn.
async fn handed_over(store: &Arc<dyn Store>, level: Durable) -> (Session, Option<StoredTurn>) {
    let gate = Gate::new();
    let session = on(store, level, [held(&gate)]).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    reached(&gate).await;
    in_time(session.hand_over(Duration::from_millis(10), SOON)).await.unwrap();
    let turn = store.turn(session.id()).await.ok().flatten();
    (session, turn)
}

#[tokio::test(start_paused = true)]
async fn hand_over_in_the_middle_of_an_answer_leaves_the_turn() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (session, turn) = handed_over(&store, level).await;
        let record = turn.expect("the turn is left").record;
        assert_eq!((record.lives, record.orderly), (0, true), "{level:?}");

        let session = on(&store, level, [Step::text("A")]).open(session.id().clone()).await.unwrap();
        in_time(session.wait_until_idle()).await.unwrap();
        in_time(session.flush(SOON)).await.unwrap();
        assert_eq!(session.tree().await.unwrap().to_string(), "* 1 user: Q\n> 2 assistant: A");
        assert_eq!(store.turn(session.id()).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn hand_over_within_the_grace_finishes_the_run() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let step = Step::new().then_text(["A"]).wait(Duration::from_secs(1)).stop();
    let session = on(&store, Durable::InFlight, [step]).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    in_time(session.hand_over(Duration::from_secs(2), SOON)).await.unwrap();
    let stored = store.load(session.id()).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.turn), (2, None));
}

#[tokio::test(start_paused = true)]
async fn hand_over_of_an_unrecorded_turn_interrupts_it() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (session, turn) = handed_over(&store, Durable::Turns).await;
    assert_eq!(turn, None);
    assert!(session.end().is_some());
}

//! Clients that query a session without a pause do not prevent the session from working.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use omni_agent::session::{Session, SessionEvent, StoreReport};

use crate::support::{ScriptedStore, event, parrot, secs, watch};

/// The number of queries that may be answered while one turn runs and is saved. The session answers up to 32 commands
/// in a row, and one turn consists of a few dozen other inputs.
const ENOUGH: usize = 2_000;

/// The number of queries after which the clients give up, so that the test ends.
const TOO_MANY: usize = 100_000;

/// Prompts a session while `clients` tasks query it without a pause. Returns the number of queries that were answered
/// from the prompt until the turn was saved.
async fn answered_until_saved(clients: usize) -> usize {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let (answered, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut events = watch(&session).await;
    let asking: Vec<_> = (0..clients)
        .map(|client| {
            let (session, answered, done) = (session.clone(), Arc::clone(&answered), Arc::clone(&done));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) && answered.load(Ordering::Relaxed) < TOO_MANY {
                    match client % 3 {
                        0 => drop(session.tree().await.unwrap()),
                        1 => drop(session.flush(secs(0)).await),
                        _ => drop(session.title().await.unwrap()),
                    }
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let before = answered.load(Ordering::Relaxed);
    session.prompt("One").await.unwrap();
    while !matches!(&*event(&mut events).await, SessionEvent::Store(StoreReport::Saved { .. })) {}
    let after = answered.load(Ordering::Relaxed);
    done.store(true, Ordering::Relaxed);
    for client in asking {
        client.await.unwrap();
    }
    session.stop(secs(60)).await.unwrap();
    after - before
}

#[tokio::test(start_paused = true)]
async fn prompt_while_clients_query_without_pause_is_saved_soon() {
    for clients in [1, 8, 64, 1024] {
        let answered = answered_until_saved(clients).await;
        assert!(answered < ENOUGH, "{answered} questions of {clients} clients");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_while_clients_on_other_threads_query_is_saved_soon() {
    for clients in [8, 64, 1024] {
        let answered = answered_until_saved(clients).await;
        assert!(answered < ENOUGH, "{answered} questions of {clients} clients");
    }
}

//! The manager on current-thread and multi-thread runtimes, in real time. On a multi-thread runtime, the sessions and
//! their manager run in parallel.

use std::{future::Future, sync::Arc, time::Duration};

use omni_agent::{
    manager::{Manager, Shutdown},
    store::{MemoryStore, Store},
    testing::Step,
    tool::tool_fn,
};
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::support::{alone, create, id, parrot, scripted, secs};

/// The number of rounds of each race.
const ROUNDS: usize = 30;

/// Runs a test [`ROUNDS`] times on one thread, and [`ROUNDS`] times on several threads.
fn on_both_flavours<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.worker_threads(4).enable_all().build().unwrap();
        for _ in 0..ROUNDS {
            let done = runtime.block_on(async { tokio::time::timeout(Duration::from_mins(1), test()).await });
            done.expect("the test hangs");
        }
    }
}

async fn stored_title(store: &MemoryStore, name: &str) -> Option<String> {
    store.summary(&id(name)).await.unwrap().title
}

#[test]
fn close_right_after_a_turn_stores_its_title() {
    on_both_flavours(|| async {
        let store = MemoryStore::new();
        let manager = Manager::builder(Arc::new(store.clone())).build();
        let session = create(&manager, "talk", parrot()).await;
        session.ask("Where to?").await.unwrap();
        manager.close(session.id()).await.unwrap();
        assert_eq!(stored_title(&store, "talk").await.as_deref(), Some("Where to?"));
    });
}

#[test]
fn shutdown_right_after_turns_stores_their_titles() {
    on_both_flavours(|| async {
        let store = MemoryStore::new();
        let manager = Manager::builder(Arc::new(store.clone())).build();
        for name in ["a", "b", "c"] {
            create(&manager, name, parrot()).await.ask(name).await.unwrap();
        }
        manager.shutdown(Shutdown::within(secs(5)).with_grace(secs(5))).await.unwrap();
        for name in ["a", "b", "c"] {
            assert_eq!(stored_title(&store, name).await.as_deref(), Some(name));
        }
    });
}

#[test]
fn session_closed_for_room_right_after_its_turn_stores_its_title() {
    on_both_flavours(|| async {
        let store = MemoryStore::new();
        let manager = Manager::builder(Arc::new(store.clone())).max_open(1).build();
        let session = create(&manager, "talk", parrot()).await;
        session.ask("Where to?").await.unwrap();
        manager.create_with_id(&id("next"), alone(parrot())).await.unwrap();
        assert_eq!(stored_title(&store, "talk").await.as_deref(), Some("Where to?"));
    });
}

#[test]
fn many_open_and_leave_under_a_limit_all_are_served() {
    on_both_flavours(|| async {
        let manager = Manager::builder(Arc::new(MemoryStore::new())).max_open(6).build();
        let users = (0..40).map(|user| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let opened = manager.create_with_id(&id(&format!("s{user}")), parrot()).await.unwrap();
                assert!(manager.list_open().len() <= 6);
                opened.session.ask("Hi").await.unwrap();
            })
        });
        for user in users.collect::<Vec<_>>() {
            user.await.unwrap();
        }
        manager.shutdown(Shutdown::within(secs(5)).with_grace(secs(5))).await.unwrap();
    });
}

#[test]
fn tools_prompt_other_sessions_under_limits_of_one_all_runs_complete() {
    on_both_flavours(|| async {
        let manager = Manager::builder(Arc::new(MemoryStore::new())).max_turns(1).build();
        let users = (0..4).map(|user| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let inner = manager.clone();
                let tool = tool_fn("ask", "Asks another session.", move |_: Value, _| {
                    let inner = inner.clone();
                    async move {
                        let opened = inner.create(parrot()).await?;
                        Ok(opened.session.ask("Hi").await?.text())
                    }
                });
                let steps = [Step::tool_use("t1", "ask", json!({})), Step::text("Done.")];
                let session = create(&manager, &format!("s{user}"), scripted(steps).tool(tool)).await;
                assert_eq!(session.ask("Hi").await.unwrap().text(), "Done.");
            })
        });
        for user in users.collect::<Vec<_>>() {
            user.await.unwrap();
        }
    });
}

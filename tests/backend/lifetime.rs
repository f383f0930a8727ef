//! The session of a backend ends exactly once, together with its agent, however the agent ends.

use std::{sync::mpsc, thread, time::Duration};

use omni_agent::{agent::Agent, message::History};

use crate::scripted::{Act, ScriptedBackend, Step, Turn};

async fn prompted(backend: &ScriptedBackend) -> Agent {
    let agent = backend.agent().start().await.unwrap();
    agent.ask("Go").await.unwrap();
    agent
}

#[tokio::test(start_paused = true)]
async fn stop_terminates_before_it_returns() {
    let backend = ScriptedBackend::new([]);
    prompted(&backend).await.stop(Duration::from_secs(1)).await.unwrap();
    assert_eq!((backend.count("terminate s1"), backend.count("drop s1")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn stop_without_a_prompt_terminates_nothing() {
    let backend = ScriptedBackend::new([]);
    backend.agent().start().await.unwrap().stop(Duration::from_secs(1)).await.unwrap();
    assert_eq!(backend.log(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn agent_dropped_terminates_once() {
    let backend = ScriptedBackend::new([]);
    drop(prompted(&backend).await);
    backend.until("drop s1").await;
    assert_eq!(backend.count("terminate s1"), 1);
}

#[tokio::test(start_paused = true)]
async fn agent_dropped_during_a_turn_cancels_then_terminates() {
    let backend = ScriptedBackend::new([Turn::new().text("So").step(Step::Hang)]);
    let agent = backend.agent().start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    backend.until("prompt s1: Go").await;
    drop(agent);
    backend.until("drop s1").await;
    assert_eq!(backend.log()[2..], ["cancel s1", "terminate s1", "drop s1"]);
}

#[tokio::test(start_paused = true)]
async fn another_model_terminates_the_session_of_the_previous_one() {
    let (backend, other) = (ScriptedBackend::new([]), ScriptedBackend::new([]));
    let agent = prompted(&backend).await;
    let model = other.model();
    agent
        .set_state(move |draft| {
            draft.config.model = model;
            draft.history = History::new();
            Ok(())
        })
        .await
        .unwrap();
    agent.ask("On").await.unwrap();
    backend.until("drop s1").await;
    assert_eq!((backend.count("terminate s1"), other.count("start")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn terminate_that_hangs_or_panics_is_abandoned() {
    for act in [Act::Hang, Act::Panic] {
        let backend = ScriptedBackend::new([]).act("terminate", act);
        drop(prompted(&backend).await);
        backend.until("drop s1").await;
        assert_eq!(backend.count("terminate s1"), 1);
    }
}

/// Runs the work in a separate thread, so that the test fails instead of hanging.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, waiter) = mpsc::channel();
    let thread = thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    waiter.recv_timeout(Duration::from_mins(1)).expect("it did not end within a minute");
    thread.join().unwrap();
}

fn runtimes() -> [tokio::runtime::Runtime; 2] {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let many = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    [one, many]
}

#[test]
fn runtime_shutdown_terminates_the_session() {
    for runtime in runtimes() {
        let backend = ScriptedBackend::new([]);
        let served = backend.clone();
        in_time(move || {
            let agent = runtime.block_on(async { prompted(&served).await });
            drop(runtime);
            drop(agent);
        });
        assert_eq!((backend.count("terminate s1"), backend.count("drop s1")), (1, 1));
    }
}

#[test]
fn runtime_shutdown_during_a_turn_terminates_the_session() {
    for runtime in runtimes() {
        let backend = ScriptedBackend::new([Turn::new().text("So").step(Step::Hang)]);
        let served = backend.clone();
        in_time(move || {
            let agent = runtime.block_on(async {
                let agent = served.agent().start().await.unwrap();
                agent.prompt("Go").await.unwrap();
                served.until("prompt s1: Go").await;
                agent
            });
            drop(runtime);
            drop(agent);
        });
        assert_eq!(backend.count("terminate s1"), 1, "{:?}", backend.log());
    }
}

#[test]
fn runtime_shutdown_waits_for_all_slow_sessions_together() {
    for runtime in runtimes() {
        let acts = (0..50).map(|_| Act::Hang);
        let backend = acts.fold(ScriptedBackend::new([]), |backend, act| backend.act("terminate", act));
        let served = backend.clone();
        in_time(move || {
            let agents = runtime.block_on(async {
                let mut agents = Vec::new();
                for _ in 0..50 {
                    agents.push(prompted(&served).await);
                }
                agents
            });
            drop(runtime);
            drop(agents);
        });
    }
}

#[test]
fn turn_of_endless_empty_events_can_be_cancelled() {
    in_time(|| {
        let [runtime, _] = runtimes();
        runtime.block_on(async {
            let backend = ScriptedBackend::new([Turn::new().step(Step::Chatter)]);
            let agent = backend.agent().start().await.unwrap();
            agent.prompt("Go").await.unwrap();
            backend.until("prompt s1: Go").await;
            agent.cancel().await.unwrap();
            assert_eq!(agent.ask("On").await.unwrap().text(), "Go | On");
        });
    });
}

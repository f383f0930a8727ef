//! However a session ends, no process remains.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    agent::Agent,
    provider::{
        BackendLimits, BackendProvider, Model,
        custom::{Backend, BackendError, SessionOptions},
    },
};
use rustix::process::{Signal, kill_process};
use tokio::runtime;

use crate::support::{Place, asked, on, prompt, read, script, soon, until};

#[tokio::test]
async fn session_dropped_during_a_turn_leaves_no_process() {
    let place = Place::new();
    let session = soon(place.agent("").start(&SessionOptions::default())).await.unwrap();
    let mut stream = session.prompt(prompt("Go on for ever")).await.unwrap();
    soon(stream.next()).await.unwrap();
    drop(session);
    let ended = read(stream).await;
    assert!(matches!(ended.result, Err(BackendError::Ended(_))));
    place.is_left().await;
}

#[tokio::test]
async fn start_that_is_dropped_leaves_no_process() {
    let place = Place::new();
    let folder = place.path().to_owned();
    // The program and its child write nothing and never end.
    let backend = script("sleep 600 & echo $! >> pids; echo $$ >> pids; wait").with_folder(&folder);
    let options = SessionOptions::default();
    let mut start = backend.start(&options);
    tokio::select! {
        started = &mut start => panic!("the session started: {}", started.is_ok()),
        () = until("it runs", || place.pids().len() == 2) => {}
    }
    assert_eq!(place.running(), 2);
    drop(start);
    place.is_left().await;
}

#[test]
fn runtime_that_has_shut_down_leaves_no_process() {
    let place = Place::new();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (agent, session) = runtime.block_on(async {
        let agent = on(place.agent("")).start().await.unwrap();
        agent.ask("Hello").await.unwrap();
        agent.prompt("Go on for ever").await.unwrap();
        (agent, soon(place.agent("").start(&SessionOptions::default())).await.unwrap())
    });
    assert_eq!(place.running(), 2);
    drop(runtime);
    let after = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    after.block_on(place.is_left());
    // Terminating the session on another runtime succeeds.
    after.block_on(soon(session.terminate()));
    assert!(after.block_on(session.prompt(prompt("Hello"))).is_err());
    drop(agent);
}

#[tokio::test]
async fn task_that_panics_leaves_no_process() {
    let place = Place::new();
    let session = soon(place.agent("").start(&SessionOptions::default())).await.unwrap();
    let task = tokio::spawn(async move {
        asked(&*session, "Hello").await;
        panic!("this panic is part of the test");
    });
    assert!(task.await.unwrap_err().is_panic());
    place.is_left().await;
}

#[tokio::test]
async fn program_that_was_killed_ends_its_turn_with_an_error() {
    let place = Place::new();
    let session = soon(place.agent("").start(&SessionOptions::default())).await.unwrap();
    let mut stream = session.prompt(prompt("Go on for ever")).await.unwrap();
    soon(stream.next()).await.unwrap();
    kill_process(place.pids()[0], Signal::KILL).unwrap();
    let Err(error) = read(stream).await.result else { panic!("the turn succeeded") };
    assert!(matches!(&error, BackendError::Ended(why) if why.contains("signal: 9")), "{error}");
    let Err(refused) = soon(session.prompt(prompt("Hello"))).await else { panic!("the prompt was accepted") };
    assert_eq!(refused, error, "later prompts return the same error");
    assert!(soon(session.cancel()).await.is_err());
    session.terminate().await;
    assert_eq!(place.running(), 0);
}

#[tokio::test]
async fn program_that_was_killed_between_two_turns_is_restarted() {
    let place = Place::new();
    let agent = on(place.agent("loads")).start().await.unwrap();
    soon(agent.ask("The word is heron")).await.unwrap();
    kill_process(place.pids()[0], Signal::KILL).unwrap();
    place.is_left().await;
    assert_eq!(soon(agent.ask("Which word?")).await.unwrap().text(), "heron");
    assert_eq!(place.pids().len(), 2);
}

/// A script that starts a session. Its only requirement is a shell.
const HANDSHAKE: &str = r#"
id() { sed 's/.*"id":\([0-9]*\),.*/\1/'; }
answer() { read -r line; printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$(printf %s "$line" | id)" "$1"; }
answer '{"protocolVersion":1}'
answer '{"sessionId":"s"}'
"#;

#[tokio::test]
async fn program_that_ignores_termination_is_killed_with_its_children() {
    let place = Place::new();
    let stubborn = "trap '' TERM; sleep 600 & echo $! >> pids; echo $$ >> pids; while :; do sleep 600; done";
    let backend = script(&format!("{HANDSHAKE}{stubborn}")).with_folder(place.path());
    let backend = backend.with_stop_limit(Duration::from_millis(50));
    let session = soon(backend.start(&SessionOptions::default())).await.unwrap();
    until("it runs", || place.pids().len() == 2).await;
    soon(session.terminate()).await;
    place.is_left().await;
}

#[tokio::test]
async fn program_that_ends_leaves_no_child() {
    let place = Place::new();
    let leaving = "sleep 600 & echo $! >> pids; echo $$ >> pids; read -r line; exit 0";
    let backend = script(&format!("{HANDSHAKE}{leaving}")).with_folder(place.path());
    let session = soon(backend.start(&SessionOptions::default())).await.unwrap();
    let ended = asked(&*session, "Hello").await.result;
    assert!(matches!(&ended, Err(BackendError::Ended(why)) if why.contains("exit status: 0")), "{ended:?}");
    place.is_left().await;
}

/// Agents run their tools in separate process groups.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn program_that_was_killed_leaves_no_child_outside_its_group() {
    let tools =
        "echo $$ >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 600' & read -r line; exec sleep 600";
    for killed in [false, true] {
        let place = Place::new();
        let backend = script(&format!("{HANDSHAKE}{tools}")).with_folder(place.path());
        let session = soon(backend.start(&SessionOptions::default())).await.unwrap();
        until("it runs", || place.pids().len() == 2).await;
        if killed {
            kill_process(place.pids()[0], Signal::KILL).unwrap();
            asked_in_vain(&*session).await;
        } else {
            drop(session);
        }
        place.is_left().await;
    }
}

#[cfg(target_os = "linux")]
async fn asked_in_vain(session: &dyn omni_agent::provider::custom::BackendSession) {
    if let Ok(stream) = soon(session.prompt(prompt("Hello"))).await {
        read(stream).await.result.unwrap_err();
    }
}

#[tokio::test]
async fn agent_that_ignores_a_cancel_is_ended_within_the_limit() {
    let place = Place::new();
    let mut limits = BackendLimits::default();
    limits.cancel = Duration::from_millis(100);
    let provider = BackendProvider::new(place.agent("loads")).with_limits(limits);
    let agent = Agent::builder().model(Model::new(Arc::new(provider), "default")).start().await.unwrap();
    soon(agent.ask("The word is heron")).await.unwrap();
    agent.prompt("Ignore the cancel").await.unwrap();
    let said = || {
        std::fs::read_dir(place.path()).unwrap().any(|file| {
            std::fs::read_to_string(file.unwrap().path()).is_ok_and(|text| text.contains("Ignore"))
        })
    };
    until("the agent works on it", said).await;
    agent.cancel().await.unwrap();
    assert_eq!(soon(agent.ask("Which word?")).await.unwrap().text(), "heron");
    assert_eq!(place.pids().len(), 2, "in a second program");
    agent.stop(Duration::from_secs(10)).await.unwrap();
    place.is_left().await;
}

/// The environment variable that turns this test binary into an application. Its value is the folder in which the
/// application runs a program.
const APPLICATION: &str = "OMNI_ACP_APPLICATION";

#[tokio::test]
async fn application_works_until_it_is_killed() {
    let Some(folder) = std::env::var_os(APPLICATION) else { return };
    let busy = "sleep 600 & echo $! >> pids; echo $$ >> pids; trap '' TERM; while :; do sleep 600; done";
    let backend = script(&format!("{HANDSHAKE}{busy}")).with_folder(folder);
    let _session = backend.start(&SessionOptions::default()).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn application_that_is_killed_leaves_no_program() {
    let place = Place::new();
    let mut application = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "endings::application_works_until_it_is_killed", "--nocapture"])
        .env(APPLICATION, place.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("it runs", || place.pids().len() == 2).await;
    assert_eq!(place.running(), 2);
    application.kill().unwrap();
    application.wait().unwrap();
    place.is_left().await;
}

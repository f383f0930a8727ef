//! Sessions on the backend: stopping a session, reopening it, and running two at the same time.

use std::{sync::Arc, time::Duration};

use futures_util::future::join;
use omni_agent::{
    provider::{
        StopReason,
        custom::{Backend, BackendError, SessionId, SessionOptions},
    },
    session::Session,
    store::{ConversationId, MemoryStore, Store},
};

use crate::support::{LIMIT, Place, on, provider_error, soon};

fn id() -> ConversationId {
    ConversationId::new("talk").unwrap()
}

async fn created(store: &Arc<dyn Store>, place: &Place, like: &str) -> Session {
    Session::builder(Arc::clone(store)).agent(on(place.agent(like))).create_with_id(id()).await.unwrap()
}

async fn reopened(store: &Arc<dyn Store>, session: Session, place: &Place, like: &str) -> Session {
    session.stop(LIMIT).await.unwrap();
    assert_eq!(place.running(), 0, "a stopped session leaves no process");
    Session::builder(Arc::clone(store)).agent(on(place.agent(like))).open(id()).await.unwrap()
}

#[tokio::test]
async fn session_reopened_continues_without_sending_the_history_again() {
    for like in ["loads", "resumes"] {
        let (place, store) = (Place::new(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
        let session = created(&store, &place, like).await;
        soon(session.ask("The word is heron")).await.unwrap();
        let session = reopened(&store, session, &place, like).await;
        assert_eq!(soon(session.ask("Which word?")).await.unwrap().text(), "heron");
        assert_eq!(place.pids().len(), 2);
        session.stop(LIMIT).await.unwrap();
        assert_eq!(place.running(), 0);
    }
}

#[tokio::test]
async fn session_reopened_on_an_agent_that_cannot_load_fails_clearly() {
    let (place, store) = (Place::new(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let session = created(&store, &place, "").await;
    soon(session.ask("The word is heron")).await.unwrap();
    let session = reopened(&store, session, &place, "").await;
    let error = soon(session.ask("Which word?")).await.unwrap_err();
    let words = &provider_error(&error).message;
    assert!(words.contains("can neither resume nor load a session; start a new conversation"), "{words}");
    place.is_left().await;
}

#[tokio::test]
async fn session_reopened_on_an_agent_whose_resume_fails_is_loaded() {
    let (place, store) = (Place::new(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let like = "loads resumes forgets-to-resume";
    let session = created(&store, &place, like).await;
    soon(session.ask("The word is heron")).await.unwrap();
    let session = reopened(&store, session, &place, like).await;
    assert_eq!(soon(session.ask("Which word?")).await.unwrap().text(), "heron");
    session.stop(LIMIT).await.unwrap();
}

#[tokio::test]
async fn resume_of_an_unknown_session_is_an_unknown_session_error() {
    let (place, nobody) = (Place::new(), SessionId::new("nobody"));
    for like in ["loads", "resumes"] {
        let resumed = soon(place.agent(like).resume(&nobody, &SessionOptions::default())).await;
        assert!(matches!(resumed, Err(BackendError::UnknownSession { id, .. }) if id == nobody), "{like}");
    }
    place.is_left().await;
}

#[tokio::test]
async fn agent_whose_program_died_continues_with_a_new_program() {
    let place = Place::new();
    let agent = on(place.agent("loads")).start().await.unwrap();
    soon(agent.ask("The word is heron")).await.unwrap();
    let error = soon(agent.ask("Die")).await.unwrap_err();
    let words = &provider_error(&error).message;
    assert!(words.contains("exit status: 3") && words.contains("out of memory"), "{words}");
    assert_eq!(soon(agent.ask("Which word?")).await.unwrap().text(), "heron");
}

#[tokio::test]
async fn two_sessions_at_the_same_time_use_two_programs() {
    let place = Place::new();
    let (one, two) = join(on(place.agent("")).start(), on(place.agent("")).start()).await;
    let (one, two) = (one.unwrap(), two.unwrap());
    let (first, second) = join(one.ask("The word is heron"), two.ask("The word is stork")).await;
    first.unwrap();
    second.unwrap();
    let (first, second) = join(one.ask("Which word?"), two.ask("Which word?")).await;
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("heron".to_owned(), "stork".to_owned()));
    assert_eq!((place.pids().len(), place.running()), (2, 2));
    one.stop(LIMIT).await.unwrap();
    assert_eq!(place.running(), 1, "the other continues");
    assert_eq!(soon(two.ask("Run out")).await.unwrap().stop_reason, StopReason::Length);
    drop(two);
    place.is_left().await;
}

#[tokio::test]
async fn agent_cancelled_during_a_turn_continues_in_the_same_session() {
    let place = Place::new();
    let agent = on(place.agent("")).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Go on for ever").await.unwrap();
    loop {
        let Some(omni_agent::subscription::Update::Event(event)) = soon(events.next()).await else {
            panic!("the agent has ended")
        };
        if matches!(&*event.event, omni_agent::agent::Event::TextDelta { .. }) {
            break;
        }
    }
    agent.cancel().await.unwrap();
    assert_eq!(soon(agent.ask("Hello")).await.unwrap().text(), "You said: Hello");
    assert_eq!(place.pids().len(), 1);
    agent.stop(Duration::from_secs(10)).await.unwrap();
    assert_eq!(place.running(), 0);
}

//! `flush` returns when everything that existed at the time of the call is stored.

use std::time::Duration;

use omni_agent::{
    ErrorKind,
    session::Session,
    testing::{Gate, Step},
};
use tokio::time::Instant;

use crate::support::{
    Act, ScriptedStore, assert_agree, configure, created, held, node, parrot, scripted, secs,
};

#[tokio::test(start_paused = true)]
async fn flush_after_ask_covers_the_turn() {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    for turns in 1..=5 {
        session.ask("Hi").await.unwrap();
        session.flush(secs(1)).await.unwrap();
        assert_eq!(store.tree(session.id()).await.len(), turns * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn flush_covers_moves_titles_and_configuration() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("Hi").await.unwrap();
    session.navigate(None).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tree(session.id()).await.head(), None);
    session.set_title(Some("Talk")).await.unwrap();
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    session.flush(secs(1)).await.unwrap();
    let state = store.beneath().load(session.id()).await.unwrap().state;
    assert_eq!((state.title.as_deref(), state.settings.system.as_deref()), (Some("Talk"), Some("Be brief.")));
}

#[tokio::test(start_paused = true)]
async fn flush_deadline_passes_reports_the_unsaved_messages() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    store.otherwise(|| Act::Hang);
    session.ask("Two").await.unwrap();
    let start = Instant::now();
    let flushed = session.flush(secs(5)).await;
    let error = flushed.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Unsaved, "after 5s 2 messages are not in the store")
    );
    assert_eq!(start.elapsed(), secs(5));
    let text = session.flush(Duration::ZERO).await.unwrap_err().to_string();
    assert_eq!(text, "after 0ns 2 messages are not in the store");
    store.otherwise(|| Act::Work);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn flush_deadline_zero_on_saved_session_is_ok() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.flush(Duration::ZERO).await.unwrap();
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    session.flush(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flush_of_failing_store_names_the_failure() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.set_title(Some("Talk")).await.unwrap();
    let flushed = session.flush(secs(2)).await;
    let error = flushed.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&0.into())));
    assert!(error.to_string().contains("writing failed"), "{error}");
    store.otherwise(|| Act::Work);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn flush_repeats_a_waiting_write_at_once() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    for _ in 0..6 {
        store.arrival().await;
    }
    store.otherwise(|| Act::Work);
    // Without the flush, the next attempt would start only in almost half a minute.
    let start = Instant::now();
    session.flush(secs(1)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let before = store.tried().len();
    tokio::time::advance(secs(120)).await;
    session.tree().await.unwrap();
    assert_eq!(store.tried().len(), before);
}

#[tokio::test(start_paused = true)]
async fn flush_while_a_turn_streams_does_not_wait_for_it() {
    let gate = Gate::new();
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", scripted([Step::text("Yes."), held(&gate, "No.")])).await;
    session.ask("One").await.unwrap();
    session.prompt("Two").await.unwrap();
    gate.reached().await;
    session.flush(secs(1)).await.unwrap();
    assert_eq!(store.tree(session.id()).await.head(), Some(node(2)));
    gate.open();
    session.wait_until_idle().await.unwrap();
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn flush_does_not_wait_for_turns_committed_after_its_call() {
    let (first, second) = (Gate::new(), Gate::new());
    let store = ScriptedStore::new([Act::Wait(first.clone()), Act::Wait(second.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    first.reached().await;
    let waiting = session.clone();
    let flush = tokio::spawn(async move { waiting.flush(secs(60)).await });
    tokio::task::yield_now().await;
    session.tree().await.unwrap();
    session.ask("Two").await.unwrap();
    first.open();
    second.reached().await;
    flush.await.unwrap().unwrap();
    assert_eq!(store.tree(session.id()).await.len(), 2);
    second.open();
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn flush_dropped_while_waiting_has_no_effect() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    gate.reached().await;
    for _ in 0..10_000 {
        // The flush reaches its deadline and is dropped.
        assert!(session.flush(Duration::ZERO).await.is_err());
    }
    assert_eq!(store.tried().len(), 1);
    gate.open();
    assert_agree(&session, &store).await;
}

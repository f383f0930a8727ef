//! Stores with leases. In such a store, a conversation belongs to only one session at a time.
//!
//! These tests run in real time. A thread of the crate renews the leases, and Tokio's paused time does not affect this
//! thread.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use omni_agent::{
    Error, ErrorKind,
    session::{Session, StoreReport},
    store::{
        ConversationId, Owner, Store, StoreError,
        custom::{Change, Commit, Write},
    },
    subscription::{EndReason, Update},
    testing::{Gate, Step},
    tool::{ToolContext, tool_fn},
    tree::Tree,
};
use serde_json::{Value, json};
use tokio::runtime;

use crate::{
    leasing::{LeasingStore, Mood},
    support::{Act, ScriptedStore, held, id, node, parrot, report, scripted, secs, tree_in, watch},
};

fn ann() -> Owner {
    Owner::new("ann").at("host a")
}

fn ben() -> Owner {
    Owner::new("ben")
}

fn within<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    // Opening a session is a large future.
    let future = Box::pin(future);
    async move { tokio::time::timeout(secs(60), future).await.expect("nothing came") }
}

async fn created(store: &LeasingStore, name: &str, owner: Owner) -> Session {
    let builder = Session::builder(store.as_dyn()).agent(parrot()).owner(owner);
    within(builder.create_with_id(id(name))).await.unwrap()
}

async fn load(store: &LeasingStore, name: &str, owner: Owner) -> Result<Session, Error> {
    within(Session::builder(store.as_dyn()).agent(parrot()).owner(owner).open(id(name))).await
}

async fn saved(session: &Session, prompt: &str) {
    within(session.ask(prompt)).await.unwrap();
    within(session.flush(secs(30))).await.unwrap();
}

fn is_owned_by(outcome: Result<Session, Error>, owner: &Owner) -> bool {
    outcome.is_err_and(|error| error.owner().as_ref() == Some(owner))
}

/// Checks that the session has ended because another owner acquired the conversation, and that these nodes are unsaved.
/// Returns the session's last tree.
async fn assert_lost(session: &Session, unsaved: &[u64]) -> Tree {
    let end = within(session.ended()).await;
    assert_eq!(end.reason, EndReason::LostPlace);
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, unsaved.iter().map(|number| node(*number)).collect::<Vec<_>>());
    assert!(matches!(last.store, Some(StoreReport::Lost { .. })), "{:?}", last.store);
    last.tree.clone()
}

// ---- opening a conversation ----

#[tokio::test]
async fn open_while_open_elsewhere_names_the_owner() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    assert!(is_owned_by(load(&store, "talk", ben()).await, &ann()));
    saved(&first, "One").await;
    assert_eq!(store.owner(first.id()), Some(ann()));
}

#[tokio::test]
async fn open_without_an_owner_uses_a_distinct_owner() {
    let store = LeasingStore::new();
    let first =
        within(Session::builder(store.as_dyn()).agent(parrot()).create_with_id(id("talk"))).await.unwrap();
    let owner = store.owner(first.id()).unwrap();
    let second = within(Session::builder(store.as_dyn()).agent(parrot()).open(id("talk"))).await;
    assert!(is_owned_by(second, &owner));
}

#[tokio::test]
async fn open_after_stop_takes_over_immediately() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    saved(&first, "One").await;
    within(first.stop(secs(30))).await.unwrap();
    assert_eq!(store.owner(first.id()), None);
    let second = load(&store, "talk", ben()).await.unwrap();
    assert_eq!(second.tree().await.unwrap().len(), 2);
    assert_eq!(store.owner(second.id()), Some(ben()));
}

#[tokio::test]
async fn last_handle_dropped_lease_is_released() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    drop(first);
    within(store.released(&id("talk"))).await;
}

#[test]
fn runtime_dropped_with_an_open_session_lease_is_released() {
    let store = LeasingStore::new();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let session = runtime.block_on(created(&store, "talk", ann()));
    drop(runtime);
    let other = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(within(store.released(session.id())));
}

#[tokio::test]
async fn open_fails_lease_is_released() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    within(first.stop(secs(30))).await.unwrap();
    // The opening fails because neither the agent nor the stored conversation has a model.
    let agent = omni_agent::agent::Agent::builder();
    let failed = within(Session::builder(store.as_dyn()).agent(agent).owner(ann()).open(id("talk"))).await;
    assert!(failed.is_err());
    within(store.released(&id("talk"))).await;
}

#[tokio::test]
async fn open_dropped_before_the_store_answers_lease_is_released() {
    let store = LeasingStore::new();
    within(created(&store, "talk", Owner::new("ann")).await.stop(secs(9))).await.unwrap();
    store.ownership(Mood::Late);
    let loading = tokio::spawn({
        let store = store.clone();
        async move { load(&store, "talk", Owner::new("ann")).await.map(drop) }
    });
    within(store.owned(&id("talk"))).await;
    loading.abort();
    assert!(loading.await.unwrap_err().is_cancelled());
    store.ownership(Mood::Work);
    within(store.released(&id("talk"))).await;
}

#[tokio::test]
async fn open_missing_conversation_is_not_found() {
    let store = LeasingStore::new();
    let missing = load(&store, "talk", ann()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn store_fails_to_report_the_owner_conversation_is_not_opened() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    within(first.stop(secs(30))).await.unwrap();
    store.ownership(Mood::Fail);
    let failed = load(&store, "talk", ben()).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::StoreFailed);
    store.ownership(Mood::Work);
    load(&store, "talk", ben()).await.unwrap();
}

// ---- writing with an epoch ----

#[tokio::test]
async fn every_write_carries_the_epoch() {
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    saved(&first, "One").await;
    first.set_title(Some("Title")).await.unwrap();
    within(first.flush(secs(30))).await.unwrap();
    within(first.stop(secs(30))).await.unwrap();
    let second = load(&store, "talk", ben()).await.unwrap();
    saved(&second, "Two").await;
    assert_eq!(store.writes(), [Some(1), Some(1), Some(2)]);
}

#[tokio::test]
async fn created_with_its_first_save_is_owned_from_then_on() {
    let store = LeasingStore::new();
    let builder = Session::builder(store.as_dyn()).agent(parrot()).owner(ann());
    let session = within(builder.create()).await.unwrap();
    assert_eq!(store.owner(session.id()), None);
    saved(&session, "One").await;
    assert_eq!(store.owner(session.id()), Some(ann()));
    saved(&session, "Two").await;
    assert_eq!(store.writes(), [Some(1), Some(1)]);
}

#[tokio::test]
async fn store_without_owners_is_written_to_without_an_epoch() {
    let beneath = ScriptedStore::new([]);
    let builder = Session::builder(beneath.as_dyn()).agent(parrot()).owner(ann());
    let session = within(builder.create_with_id(id("talk"))).await.unwrap();
    saved(&session, "One").await;
    let other =
        within(Session::builder(beneath.as_dyn()).agent(parrot()).owner(ben()).open(id("talk"))).await;
    assert!(other.is_ok(), "only versions decide");
    let epochs = beneath.tried().into_iter().filter_map(|tried| match tried.what {
        (write, Change::Commit(_)) => Some(write.epoch),
        _ => None,
    });
    assert_eq!(epochs.collect::<Vec<_>>(), [None]);
}

// ---- keeping the lease ----

#[test]
fn runtime_blocked_leases_are_renewed() {
    let store = LeasingStore::new();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = created(&store, "talk", ann()).await;
        store.block_until_renewed(3);
        saved(&session, "One").await;
        assert_eq!(store.epoch(session.id()), 1);
    });
}

#[tokio::test]
async fn renewals_that_fail_hang_or_panic_are_tried_again() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    for mood in [Mood::Fail, Mood::Hang, Mood::Panic] {
        store.ownership(mood);
        within(store.tried(2)).await;
        store.ownership(Mood::Work);
        within(store.renewed(1)).await;
    }
    saved(&session, "One").await;
    assert_eq!(store.epoch(session.id()), 1);
}

/// Checks that every lease is renewed. After a lease has expired, the conversation has an owner again only if the lease
/// is renewed.
async fn all_are_renewed(store: &LeasingStore, sessions: &[Session]) {
    for session in sessions {
        store.run_out(session.id());
    }
    for session in sessions {
        within(store.owned(session.id())).await;
    }
}

#[tokio::test]
async fn many_conversations_are_all_renewed() {
    let store = LeasingStore::new();
    let mut sessions = Vec::new();
    for number in 0..20 {
        sessions.push(created(&store, &format!("talk{number}"), ann()).await);
    }
    all_are_renewed(&store, &sessions).await;
    drop(sessions.split_off(10));
    for number in 10..20 {
        within(store.released(&id(&format!("talk{number}")))).await;
    }
    all_are_renewed(&store, &sessions).await;
    for session in &sessions {
        saved(session, "One").await;
        assert_eq!(store.epoch(session.id()), 1);
    }
}

#[tokio::test]
async fn lease_expired_without_a_new_owner_session_continues() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    saved(&session, "One").await;
    store.run_out(session.id());
    within(store.renewed(1)).await;
    saved(&session, "Two").await;
    assert_eq!(store.writes(), [Some(1), Some(1)]);
    assert_eq!(store.owner(session.id()), Some(ann()));
}

#[tokio::test]
async fn lease_expired_before_a_write_the_write_succeeds_without_a_renewal() {
    let gate = Gate::new();
    let store = LeasingStore::new();
    let agent = scripted([held(&gate, "Yes")]);
    let builder = Session::builder(store.as_dyn()).agent(agent).owner(ann());
    let session = within(builder.create_with_id(id("talk"))).await.unwrap();
    session.prompt("One").await.unwrap();
    gate.reached().await;
    // All renewals fail, so the lease stays expired. But nobody else has acquired the conversation.
    store.ownership(Mood::Fail);
    // A renewal that had begun before is over by then.
    within(store.tried(2)).await;
    store.run_out(session.id());
    gate.open();
    within(session.wait_until_idle()).await.unwrap();
    within(session.flush(secs(30))).await.unwrap();
    assert_eq!((store.writes(), store.owner(session.id())), (vec![Some(1)], None));
    assert_eq!(tree_in(&store, session.id()).await.len(), 2);
}

#[tokio::test]
async fn epoch_rejected_by_the_store_session_is_lost() {
    let refused = Act::Refuse(StoreError::LeaseLost { id: id("talk") });
    let scripted_store = ScriptedStore::new([Act::Work, refused]);
    let store = LeasingStore::over(scripted_store.as_dyn());
    let session = created(&store, "talk", ann()).await;
    within(session.ask("One")).await.unwrap();
    assert_lost(&session, &[1, 2]).await;
}

/// Creates a conversation whose first acquisition waits at the gate, and saves a turn under a second acquisition.
async fn created_with_a_second_acquisition(store: &LeasingStore, gate: &Gate) -> Session {
    store.hold_acquisition(gate);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).owner(ann());
    let session = within(builder.create()).await.unwrap();
    within(session.ask("One")).await.unwrap();
    within(gate.reached()).await;
    // Halfway, the creation is repeated.
    within(session.flush(secs(2))).await.unwrap();
    assert_eq!(store.epoch(session.id()), 1);
    session
}

#[tokio::test]
async fn abandoned_acquisition_that_lands_after_the_next_one_session_continues_with_its_lease() {
    let (store, gate) = (LeasingStore::new(), Gate::new());
    let session = created_with_a_second_acquisition(&store, &gate).await;
    gate.open();
    within(store.acquired(session.id(), 2)).await;
    saved(&session, "Two").await;
    assert_eq!(store.writes(), [Some(1), Some(2)]);
    assert_eq!(store.owner(session.id()), Some(ann()));
    within(session.stop(secs(30))).await.unwrap();
    within(store.released(session.id())).await;
}

#[tokio::test]
async fn abandoned_acquisition_whose_reply_is_late_write_waits_for_the_lease() {
    let (store, gate) = (LeasingStore::new(), Gate::new());
    let session = created_with_a_second_acquisition(&store, &gate).await;
    store.ownership(Mood::Late);
    gate.open();
    within(store.acquired(session.id(), 2)).await;
    within(session.ask("Two")).await.unwrap();
    // With a short deadline, the flush would repeat the write after half of it.
    let mut flush = Box::pin(session.flush(secs(30)));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut flush).await.is_err());
    assert_eq!(store.writes(), [Some(1)]);
    store.ownership(Mood::Work);
    within(flush).await.unwrap();
    assert_eq!(store.writes(), [Some(1), Some(2)]);
}

#[tokio::test]
async fn abandoned_acquisition_that_lands_after_the_session_ended_is_released() {
    let (store, gate) = (LeasingStore::new(), Gate::new());
    let session = created_with_a_second_acquisition(&store, &gate).await;
    within(session.stop(secs(30))).await.unwrap();
    gate.open();
    within(store.acquired(session.id(), 2)).await;
    within(store.released(session.id())).await;
}

// ---- losing the lease ----

#[tokio::test]
async fn idle_session_conversation_taken_reports_the_loss_and_ends() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    saved(&session, "One").await;
    let mut events = watch(&session).await;
    store.take(session.id(), &ben());
    let StoreReport::Lost { error } = within(report(&mut events)).await else { panic!() };
    assert!(error.contains("ben"), "{error}");
    let Some(Update::Closed(end)) = within(events.next()).await else { panic!() };
    assert_eq!(end.reason, EndReason::LostPlace);
    assert_lost(&session, &[]).await;
    let error = session.prompt("Two").await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"lost_place".into())));
    assert_eq!(store.owner(session.id()), Some(ben()));
}

#[tokio::test]
async fn conversation_taken_before_a_turn_is_saved_turn_stays_readable_but_is_not_stored() {
    let gate = Gate::new();
    let store = LeasingStore::new();
    let first = created(&store, "talk", ann()).await;
    within(first.stop(secs(30))).await.unwrap();
    let agent = scripted([held(&gate, "Yes")]);
    let builder = Session::builder(store.as_dyn()).agent(agent).owner(ann());
    let session = within(builder.open(id("talk"))).await.unwrap();
    session.prompt("One").await.unwrap();
    gate.reached().await;
    // The renewal hangs, so the session does not notice yet that another owner has acquired the conversation.
    store.ownership(Mood::Hang);
    let theirs = store.take(session.id(), &ben());
    gate.open();
    let version = store.load(session.id()).await.unwrap().version;
    let written = store
        .write(session.id(), &Write::on(version).under(&theirs), &Change::Commit(Commit::new(None)))
        .await;
    store.ownership(Mood::Work);
    let tree = assert_lost(&session, &[1, 2]).await;
    assert_eq!(tree.node(node(2)).unwrap().message().text(), "Yes");
    let stored = store.load(session.id()).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len()), (written.unwrap(), 0));
    let stopped = within(session.stop(secs(30))).await;
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
}

#[tokio::test]
async fn conversation_taken_while_a_turn_streams_ends_the_session() {
    let gate = Gate::new();
    let store = LeasingStore::new();
    let agent = scripted([held(&gate, "Never")]);
    let builder = Session::builder(store.as_dyn()).agent(agent).owner(ann());
    let session = within(builder.create_with_id(id("talk"))).await.unwrap();
    session.prompt("One").await.unwrap();
    gate.reached().await;
    store.take(session.id(), &ben());
    let tree = assert_lost(&session, &[]).await;
    assert!(tree.is_empty());
}

#[tokio::test]
async fn conversation_taken_and_released_meanwhile_is_lost() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    saved(&session, "One").await;
    store.ownership(Mood::Fail);
    let theirs = store.take(session.id(), &ben());
    let version = store.load(session.id()).await.unwrap().version;
    store
        .write(session.id(), &Write::on(version).under(&theirs), &Change::Commit(Commit::new(None)))
        .await
        .unwrap();
    store.ownership(Mood::Work);
    store.run_out(session.id());
    assert_lost(&session, &[]).await;
    within(store.released(session.id())).await;
    assert_eq!(load(&store, "talk", ben()).await.unwrap().tree().await.unwrap().len(), 2);
}

#[tokio::test]
async fn conversation_deleted_elsewhere_is_lost() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    saved(&session, "One").await;
    store.delete(session.id(), None).await.unwrap();
    assert_lost(&session, &[]).await;
    assert!(store.summary(session.id()).await.is_err());
}

#[tokio::test]
async fn other_sessions_on_the_store_are_unaffected_by_a_loss() {
    let store = LeasingStore::new();
    let lost = created(&store, "lost", ann()).await;
    let kept = created(&store, "kept", ann()).await;
    store.take(lost.id(), &ben());
    assert_lost(&lost, &[]).await;
    within(store.renewed(2)).await;
    saved(&kept, "One").await;
    assert_eq!(store.writes(), [Some(1)]);
}

// ---- ending ----

#[tokio::test]
async fn stop_while_the_store_cannot_release_the_lease_keeps_its_deadline() {
    let store = LeasingStore::new();
    let session = created(&store, "talk", ann()).await;
    saved(&session, "One").await;
    store.ownership(Mood::Hang);
    within(session.stop(Duration::from_millis(50))).await.unwrap();
    assert_eq!(store.owner(session.id()), Some(ann()), "the lease stays until it expires");
}

#[tokio::test]
async fn stop_with_a_write_in_progress_releases_the_lease_after_it() {
    let gate = Gate::new();
    let scripted_store = ScriptedStore::new([Act::Work, Act::Wait(gate.clone())]);
    let store = LeasingStore::over(scripted_store.as_dyn());
    let session = created(&store, "talk", ann()).await;
    within(session.ask("One")).await.unwrap();
    gate.reached().await;
    let stop = tokio::spawn({
        let session = session.clone();
        async move { session.stop(secs(30)).await }
    });
    within(store.renewed(2)).await;
    assert_eq!(store.owner(session.id()), Some(ann()));
    gate.open();
    within(stop).await.unwrap().unwrap();
    assert_eq!(store.owner(session.id()), None);
    assert_eq!(tree_in(&store, session.id()).await.len(), 2);
}

#[tokio::test]
async fn lease_keeper_does_not_keep_a_dropped_store_alive() {
    let store = Arc::new(LeasingStore::new());
    let shared: Arc<dyn Store> = store.clone();
    let weak = Arc::downgrade(&store);
    drop(store);
    let builder = Session::builder(Arc::clone(&shared)).agent(parrot()).owner(ann());
    let session = within(builder.create_with_id(ConversationId::new("talk").unwrap())).await.unwrap();
    within(session.stop(secs(30))).await.unwrap();
    drop((session, shared));
    // The thread that renews the leases drops the store a moment later.
    within(async {
        while weak.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn tool_sees_the_epoch_of_its_session_which_increases_with_each_owner() {
    let store = LeasingStore::new();
    let epochs = Arc::new(Mutex::new(Vec::new()));
    let agent = || {
        let noted = Arc::clone(&epochs);
        let note = tool_fn("note", "Notes.", move |_: Value, context: ToolContext| {
            noted.lock().unwrap().push(context.epoch());
            async { Ok("noted") }
        });
        scripted([Step::tool_use("t", "note", json!({})), Step::text("Done")]).tool(note)
    };
    // Without an id, the conversation has no owner before its first turn is stored.
    let session = within(Session::builder(store.as_dyn()).agent(agent()).create()).await.unwrap();
    within(session.ask("Q")).await.unwrap();
    within(session.stop(secs(30))).await.unwrap();
    let of = session.id().clone();
    for _ in 0..2 {
        let session = within(Session::builder(store.as_dyn()).agent(agent()).open(of.clone())).await.unwrap();
        within(session.ask("Q")).await.unwrap();
        assert_eq!(epochs.lock().unwrap().last().copied().flatten(), Some(store.epoch(&of)));
        within(session.stop(secs(30))).await.unwrap();
    }
    let seen = std::mem::take(&mut *epochs.lock().unwrap());
    assert!(matches!(seen[..], [None, Some(first), Some(second)] if first < second), "{seen:?}");
    assert_eq!(ToolContext::detached("t").with_epoch(7).epoch(), Some(7));
}

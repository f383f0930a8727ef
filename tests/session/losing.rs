//! Two writers on the same conversation. The session that writes second loses the conversation, and nothing else is
//! affected.

use omni_agent::{
    ErrorKind,
    session::{Mode, Session, SessionEvent, StoreReport},
    store::{
        Listing, Store, StoreError,
        custom::{Change, StateChange, Stored, Write},
    },
    subscription::{EndReason, Update},
    testing::Gate,
};

use crate::support::{Act, ScriptedStore, created, held, id, node, parrot, report, scripted, secs, watch};

#[tokio::test(start_paused = true)]
async fn two_sessions_on_one_conversation_second_loses_it_first_is_unaffected() {
    let store = ScriptedStore::new([]);
    let first = created(&store, "talk", parrot()).await;
    first.ask("One").await.unwrap();
    first.flush(secs(1)).await.unwrap();
    let second = Session::builder(store.as_dyn()).agent(parrot()).open(id("talk")).await.unwrap();
    let mut events = watch(&second).await;

    first.ask("Two").await.unwrap();
    first.flush(secs(1)).await.unwrap();
    second.ask("Another two").await.unwrap();
    let StoreReport::Lost { error } = report(&mut events).await else { panic!() };
    assert!(error.contains("was changed by another writer"), "{error}");
    let Some(Update::Closed(end)) = events.next().await else { panic!() };
    assert_eq!(end.reason, EndReason::LostPlace);

    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, [node(3), node(4)]);
    assert_eq!(last.tree.node(node(3)).unwrap().message().text(), "Another two");
    assert_eq!(last.store, Some(StoreReport::Lost { error }));
    let error = second.prompt("Three").await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"lost_place".into())));
    let error = second.flush(secs(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"lost_place".into())));

    first.ask("Three").await.unwrap();
    first.flush(secs(1)).await.unwrap();
    assert_eq!(store.tree(first.id()).await, first.tree().await.unwrap());
    assert_eq!(first.tree().await.unwrap().len(), 6);
    assert_eq!(store.tried().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn stop_after_the_conversation_was_lost_reports_the_unsaved_messages() {
    let store = ScriptedStore::new([Act::Refuse(StoreError::LeaseLost { id: id("talk") })]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    assert_eq!(session.ended().await.reason, EndReason::LostPlace);
    let error = session.stop(secs(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(error.to_string().contains("no longer owned"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn conversation_lost_while_a_turn_streams_ends_with_the_committed_tree() {
    let (gate, write) = (Gate::new(), Gate::new());
    let store = ScriptedStore::new([Act::Wait(write.clone())]);
    let steps = [omni_agent::testing::Step::text("Yes."), held(&gate, "Never.")];
    let session = created(&store, "talk", scripted(steps)).await;
    session.ask("One").await.unwrap();
    session.again(node(1)).start().await.unwrap();
    gate.reached().await;
    // The following write is made as another process would make it.
    let beneath = store.beneath();
    let Stored { version, mut state, .. } = beneath.load(&id("talk")).await.unwrap();
    state.settings.system = Some("Be brief.".into());
    let change = StateChange::whole(state);
    let other = beneath.write(&id("talk"), &Write::on(version), &Change::State(change)).await.unwrap();
    write.open();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::LostPlace);
    let last = end.snapshot.unwrap();
    assert_eq!(last.tree.head(), Some(node(2)));
    assert_eq!(*last.tree.history(), last.agent.state.history);
    assert_eq!(last.unsaved, [node(1), node(2)]);
    assert_eq!(beneath.load(&id("talk")).await.unwrap().version, other);
    assert_eq!(store.tried().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn conversation_lost_wakes_all_waiting_operations() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    let flush = tokio::spawn({
        let session = session.clone();
        async move { session.flush(secs(60)).await }
    });
    gate.reached().await;
    store.delete(session.id(), None).await.unwrap();
    gate.open();
    let flushed = flush.await.unwrap();
    let error = flushed.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"lost_place".into())));
}

#[tokio::test(start_paused = true)]
async fn conversation_deleted_while_open_is_lost_and_not_created_again() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    store.delete(session.id(), None).await.unwrap();
    session.ask("Two").await.unwrap();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::LostPlace);
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, [node(3), node(4)]);
    assert_eq!(last.tree.len(), 4);
    assert!(store.list(&Listing::default()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn generated_id_taken_before_the_first_save_loses_the_conversation() {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let other =
        Session::builder(store.as_dyn()).agent(parrot()).create_with_id(session.id().clone()).await.unwrap();
    other.ask("Mine").await.unwrap();
    other.flush(secs(1)).await.unwrap();
    session.ask("One").await.unwrap();
    assert_eq!(session.ended().await.reason, EndReason::LostPlace);
    assert_eq!(store.tree(other.id()).await, other.tree().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn conflict_while_stopping_is_reported_by_stop() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.ask("One").await.unwrap();
    gate.reached().await;
    store.delete(session.id(), None).await.unwrap();
    let (stopped, ()) = tokio::join!(session.stop(secs(5)), async { gate.open() });
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(error.to_string().contains("no conversation"), "{error}");
    let mut lost = 0;
    loop {
        match events.next().await.unwrap() {
            Update::Event(event) => {
                lost += u32::from(matches!(&*event.event, SessionEvent::Store(StoreReport::Lost { .. })));
            }
            Update::Closed(end) => break assert_eq!(end.reason, EndReason::Stopped),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, 1);
}

#[tokio::test(start_paused = true)]
async fn prompt_after_the_end_with_much_unsaved_reports_the_end() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Hang);
    let agent = parrot();
    let session = Session::builder(store.as_dyn()).agent(agent).unsaved_limit(0).create().await.unwrap();
    session.ask("One").await.unwrap();
    session.tree().await.unwrap();
    assert_eq!(session.prompt("Two").await.unwrap_err().kind(), ErrorKind::StoreBehind);
    assert!(session.stop(secs(1)).await.is_err());
    let refused = session.prompt("Two").await;
    let error = refused.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
}

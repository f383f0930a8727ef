//! Saving takes place in parallel with the session's work. The store is slow, hangs, fails, panics or blocks.

use std::time::Duration;

use omni_agent::{
    Error, ErrorKind,
    run::Accepted,
    session::{SavedPart, Session, SessionEvent, StoreReport},
    store::Store,
    testing::Gate,
};
use tokio::time::Instant;

use crate::{
    basics::word,
    support::{
        Act, Lock, ScriptedStore, Tried, assert_agree, assert_answers, configure, created, event, node,
        numbered, parrot, report, secs, watch,
    },
};

#[tokio::test(start_paused = true)]
async fn store_hangs_session_answers_and_continues() {
    let store = ScriptedStore::new([Act::Hang]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let start = Instant::now();
    session.ask("One").await.unwrap();
    store.arrival().await;
    assert_answers(&session).await;
    session.ask("Two").await.unwrap();
    session.again(node(1)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(4)).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.run("Three").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert!(matches!(session.prompt("Four").await.unwrap(), Accepted::Started { .. }));
    session.wait_until_idle().await.unwrap();
    assert_answers(&session).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(snapshot.unsaved, (1..=9).map(node).collect::<Vec<_>>());
    assert_eq!(store.tried().len(), 1);
    // The hanging write is now abandoned and repeated.
    assert_agree(&session, &store).await;
    assert_eq!(store.words(), ["create", "create", "commit with state"]);
}

#[tokio::test(start_paused = true)]
async fn store_fails_twice_all_nodes_arrive_in_order_once() {
    let store = ScriptedStore::new([Act::Work, Act::Fail, Act::Fail]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let mut events = watch(&session).await;
    let start = Instant::now();
    session.ask("One").await.unwrap();
    for retry_in in [500, 1000] {
        let StoreReport::Failed { what, error, retry_in: reported, .. } = report(&mut events).await else {
            panic!()
        };
        assert_eq!((what, reported), (SavedPart::Tree, Duration::from_millis(retry_in)));
        assert!(error.contains("writing failed: "), "{error}");
    }
    let StoreReport::Saved { what: SavedPart::Tree, through, .. } = report(&mut events).await else {
        panic!()
    };
    assert_eq!(through, Some(node(2)));
    let tried = store.tried();
    let commits: Vec<_> = tried[1..].iter().map(|tried| (&tried.what, tried.at - start)).collect();
    let same = &tried[1].what;
    assert_eq!(
        commits,
        [(same, secs(0)), (same, Duration::from_millis(500)), (same, Duration::from_millis(1500))]
    );
    assert_eq!(tried[1].nodes(), [1, 2]);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn store_fails_newer_turns_follow_the_failed_write_unchanged() {
    let store = ScriptedStore::new([Act::Fail, Act::Fail, Act::Fail]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    store.arrival().await;
    // Each new commit triggers a new attempt immediately.
    session.ask("Two").await.unwrap();
    store.arrival().await;
    session.ask("Three").await.unwrap();
    store.arrival().await;
    session.flush(secs(60)).await.unwrap();
    let tried = store.tried();
    let nodes: Vec<_> = tried.iter().map(Tried::nodes).collect();
    assert_eq!(nodes, [vec![1, 2], vec![1, 2], vec![1, 2], vec![1, 2], vec![3, 4, 5, 6]]);
    assert!(tried[..4].iter().all(|tried| tried.what == store.tried()[0].what));
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn store_fails_for_long_delays_grow_to_half_a_minute() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Fail);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    for _ in 0..11 {
        store.arrival().await;
    }
    let times: Vec<_> = store.tried().iter().map(|tried| tried.at).collect();
    let waits: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000, 30000]);
    store.otherwise(|| Act::Work);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn acknowledgement_lost_write_repeated_with_its_id_changes_nothing() {
    let store = ScriptedStore::new([Act::LoseWord, Act::Work, Act::LoseWord, Act::Work, Act::LoseWord]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.ask("One").await.unwrap();
    session.flush(secs(60)).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.flush(secs(60)).await.unwrap();
    let tried = store.tried();
    assert_eq!(store.words(), ["create", "create", "commit", "commit", "title", "title"]);
    for pair in tried.chunks(2) {
        assert_eq!(pair[0].what, pair[1].what);
    }
    assert_ne!(tried[1].what.0.id, tried[2].what.0.id);
    session.ask("Two").await.unwrap();
    assert_agree(&session, &store).await;
    assert!(session.end().is_none());
}

#[tokio::test(start_paused = true)]
async fn write_takes_too_long_is_abandoned_and_repeated() {
    let store = ScriptedStore::new([Act::HangAfter, Act::Work, Act::Hang]);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).write_timeout(secs(7));
    let session = builder.create().await.unwrap();
    let mut events = watch(&session).await;
    let start = Instant::now();
    session.ask("One").await.unwrap();
    let StoreReport::Failed { error, .. } = report(&mut events).await else { panic!() };
    assert!(error.contains("7s"), "{error}");
    assert_eq!(start.elapsed(), secs(7));
    // The first attempt to create the conversation hung after it had reached the store. The repetition therefore
    // returns the result of the first attempt.
    let StoreReport::Failed { what: SavedPart::Tree, .. } = report(&mut events).await else { panic!() };
    assert_eq!(start.elapsed(), Duration::from_millis(14_500));
    let StoreReport::Saved { .. } = report(&mut events).await else { panic!() };
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn store_panics_write_counts_as_failed() {
    let store = ScriptedStore::new([Act::Panic, Act::Work, Act::Panic]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let mut events = watch(&session).await;
    session.ask("One").await.unwrap();
    for what in [SavedPart::State, SavedPart::Tree] {
        let StoreReport::Failed { what: reported, error, .. } = report(&mut events).await else { panic!() };
        assert_eq!(reported, what);
        assert!(error.contains("panicked"), "{error}");
    }
    assert_agree(&session, &store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_blocks_its_thread_session_answers() {
    let lock = Lock::default();
    let store = ScriptedStore::new([Act::Block(lock.clone())]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    store.arrival().await;
    session.ask("Two").await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 4);
    let flushed = session.flush(Duration::ZERO).await;
    let error = flushed.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&4.into())));
    lock.open();
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn store_slow_later_turns_are_written_together_and_reported_in_order() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = watch(&session).await;
    for prompt in ["One", "Two", "Three", "Four"] {
        session.ask(prompt).await.unwrap();
    }
    session.navigate(None).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    gate.open();
    session.flush(secs(1)).await.unwrap();
    session.ask("Five").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let nodes: Vec<_> = store.tried().iter().map(Tried::nodes).collect();
    assert_eq!(nodes, [vec![1, 2], vec![3, 4, 5, 6, 7, 8], vec![9, 10]]);
    assert_eq!(store.words(), ["commit", "commit with state", "commit"]);

    // Each report arrives after the trees that it covers, and the versions increase.
    let (mut grown, mut reports) = (0, Vec::new());
    while reports.len() < 3 {
        match &*event(&mut events).await {
            SessionEvent::Tree(changes) => {
                grown = changes.nodes.last().map_or(grown, |node| node.id().get());
            }
            SessionEvent::Store(StoreReport::Saved { through, version, what: SavedPart::Tree, .. }) => {
                let through = through.unwrap().get();
                assert!(through <= grown);
                reports.push((through, version.get()));
            }
            SessionEvent::Store(other) => panic!("{other:?}"),
            _ => {}
        }
    }
    let first = reports[0].1;
    assert_eq!(reports, [(2, first), (8, first + 1), (10, first + 2)]);
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn turn_saved_store_event_follows_its_tree() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = watch(&session).await;
    for prompt in ["One", "Two", "Three"] {
        session.ask(prompt).await.unwrap();
        session.flush(secs(1)).await.unwrap();
    }
    session.navigate(node(2)).await.unwrap();
    session.navigate(None).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != "store state") {
        let word = word(&*event(&mut events).await);
        if ["tree", "title", "store tree", "store state", "turn", "state"].contains(&&*word) {
            words.push(word);
        }
    }
    // The path already leads through node 2, so the navigation to node 2 emits nothing.
    let turn = ["turn", "tree", "store tree"];
    let rest = ["tree", "state", "store tree", "title", "store state"];
    assert_eq!(words, [&turn[..], &turn, &turn, &rest].concat());
}

#[tokio::test(start_paused = true)]
async fn too_much_unsaved_refuses_prompts_until_the_store_catches_up() {
    let store = ScriptedStore::new([]);
    store.otherwise(|| Act::Hang);
    let builder = Session::builder(store.as_dyn()).agent(parrot()).unsaved_limit(10_000);
    let session = builder.create().await.unwrap();
    session.ask("Small").await.unwrap();
    session.ask("x".repeat(3_000)).await.unwrap();
    // The agent reports the turn before the session has processed it. This query waits for the session.
    session.tree().await.unwrap();
    session.ask("y".repeat(3_000)).await.unwrap();
    session.tree().await.unwrap();

    let refused = |error: Error| {
        assert_eq!(
            (error.kind(), error.member("limit")),
            (ErrorKind::StoreBehind, Some(&10_000.into())),
            "{error:?}"
        );
    };
    refused(session.prompt("More").await.unwrap_err());
    refused(session.ask("More").await.unwrap_err());
    refused(session.again(node(1)).start().await.unwrap_err());
    refused(session.run("More").below(None).start().await.unwrap_err());
    // All other operations continue to work.
    assert_answers(&session).await;
    session.navigate(None).await.unwrap();
    session.navigate(node(1)).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    session.notify("an event").await.unwrap();
    let error = session.flush(secs(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&6.into())));

    store.otherwise(|| Act::Work);
    session.flush(secs(1)).await.unwrap();
    session.ask("More").await.unwrap();
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn too_much_unsaved_run_in_flight_may_continue() {
    let (held, gate) = (Gate::new(), Gate::new());
    let store = ScriptedStore::new([Act::Wait(gate.clone())]);
    let steps = [crate::support::held(&held, &"x".repeat(500)), omni_agent::testing::Step::text("Two")];
    let agent = crate::support::scripted(steps);
    let session = Session::builder(store.as_dyn()).agent(agent).unsaved_limit(0).create().await.unwrap();
    session.prompt("One").await.unwrap();
    held.reached().await;
    session.prompt("Staged").await.unwrap();
    held.open();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().len(), 4);
    assert_eq!(session.prompt("More").await.unwrap_err().kind(), ErrorKind::StoreBehind);
    gate.open();
    assert_agree(&session, &store).await;
}

#[tokio::test(start_paused = true)]
async fn first_save_fails_then_hangs_snapshot_and_events_agree() {
    let gate = Gate::new();
    let store = ScriptedStore::new([Act::Fail, Act::Work, Act::Wait(gate.clone())]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    let mut events = watch(&session).await;
    let mut view = events.snapshot().unwrap().as_ref().clone();
    session.ask("One").await.unwrap();
    gate.reached().await;
    let now = session.snapshot().await.unwrap();
    while view.last != now.last {
        view.apply(&numbered(&mut events).await).unwrap();
    }
    assert_eq!(view, now);
    gate.open();
    session.flush(secs(1)).await.unwrap();
    let now = session.snapshot().await.unwrap();
    while view.last != now.last {
        view.apply(&numbered(&mut events).await).unwrap();
    }
    assert_eq!(view, now);
    assert_eq!(view.store, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_to_save_nothing_is_written() {
    let store = ScriptedStore::new([]);
    let session = Session::builder(store.as_dyn()).agent(parrot()).create().await.unwrap();
    session.flush(secs(1)).await.unwrap();
    session.navigate(None).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    assert_eq!(store.words(), [""; 0]);
    assert!(store.summary(session.id()).await.is_err());
}

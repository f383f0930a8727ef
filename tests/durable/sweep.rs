//! Turns that nobody works on are opened again.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Recover, RecoveryDecision},
    manager::{ApprovalId, DecisionPlace, Manager, ManagerBuilder, ManagerEvent, OpenOptions, Sweep},
    message::Message,
    store::{Filter, Labels, MemoryStore, Owner, Page, Store, custom::TurnRecord},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::Decision,
    tree::NodeId,
};

use crate::stores::{id, leave, paused, stores, turn_id, waiting};

fn agent() -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::new([]).model())
}

/// Returns options that drop the turn, because the records of these tests contain no state of an agent.
fn options() -> OpenOptions {
    OpenOptions::new(agent()).recover(Recover::default().with_decision(RecoveryDecision::Discard))
}

/// Returns a record of a turn that waits for no decision, so the sweep opens its conversation.
fn running() -> TurnRecord {
    TurnRecord::new(1, turn_id(7), r#"{"phase":"preparing"}"#)
        .with_head(NodeId::new(2))
        .with_append(vec![Arc::new(Message::user("Go on."))])
}

fn builder(store: &Arc<dyn Store>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).sweep(Sweep::off())
}

fn open(manager: &Manager) -> Vec<String> {
    let mut open: Vec<_> = manager.list_open().into_iter().map(|open| open.id.to_string()).collect();
    open.sort();
    open
}

/// Waits for the next event that `wanted` accepts.
async fn event<T>(
    events: &mut omni_agent::subscription::Subscription<omni_agent::manager::ManagerSnapshot, ManagerEvent>,
    wanted: impl Fn(&ManagerEvent) -> Option<T>,
) -> T {
    loop {
        match events.next().await {
            Some(Update::Event(numbered)) => {
                if let Some(found) = wanted(&numbered.event) {
                    return found;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn opened(event: &ManagerEvent) -> Option<String> {
    match event {
        ManagerEvent::Opened { session } => Some(session.id.to_string()),
        _ => None,
    }
}

#[tokio::test]
async fn recover_opens_the_turns_that_nobody_works_on() {
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "a", "ann", running()).await;
        leave(&**store, "b", "ben", running()).await;
        leave(&**store, "c", "ann", running()).await;
        leave(&**store, "d", "ann", paused(vec![waiting("1")])).await;
        let not_here = |manager: ManagerBuilder| {
            manager.starter(|turn| (turn.labels.get("user") != Some("ben")).then(options)).build()
        };
        let manager = not_here(builder(store));
        let recovered = manager.recover().await.unwrap();
        assert!(recovered.failed.is_empty(), "{recovered:?}");
        let mut ids: Vec<_> = recovered.opened.iter().map(ToString::to_string).collect();
        ids.sort();
        assert_eq!(ids, ["a", "c"]);
        assert_eq!(open(&manager), ["a", "c"]);
        assert!(manager.recover().await.unwrap().opened.is_empty(), "they are open already");
        manager.shutdown(Duration::from_secs(10)).await.unwrap();
        assert_eq!(manager.recover().await.unwrap_err().kind(), ErrorKind::ShutDown);

        let filter = Filter::with(Labels::new([("user", "ben")]).unwrap());
        let of_ben =
            builder(store).sweep(Sweep::off().with_filter(filter)).starter(|_| Some(options())).build();
        assert_eq!(of_ben.recover().await.unwrap().opened, [id("b")]);
        of_ben.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test]
async fn recover_without_a_starter_is_an_error() {
    let manager = Manager::builder(MemoryStore::new()).build();
    let error = manager.recover().await.unwrap_err();
    assert!(error.to_string().starts_with("the manager cannot recover turns"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn sweep_begins_with_the_first_operation_and_repeats() {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", running()).await;
    let every = Duration::from_hours(1);
    let manager =
        Manager::builder(store.clone()).sweep(Sweep::every(every)).starter(|_| Some(options())).build();
    let mut events = manager.subscribe();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    assert_eq!(event(&mut events, opened).await, "a");
    leave(&store, "b", "ann", running()).await;
    let begun = tokio::time::Instant::now();
    event(&mut events, |event| opened(event).filter(|name| name == "b")).await;
    let quarter = every / 4;
    assert!((3 * quarter..=5 * quarter).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn sweep_ends_with_the_last_handle() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let starter = Arc::new(());
    let held = Arc::clone(&starter);
    let manager = Manager::builder(Arc::clone(&store)).starter(move |_| {
        let _ = &held;
        Some(options())
    });
    let manager = manager.build();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(Arc::strong_count(&starter) > 1);
    drop(manager);
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&starter), 1, "nothing holds the manager or its starter");
}

#[tokio::test(start_paused = true)]
async fn turn_that_cannot_be_opened_is_reported_and_stops_no_other() {
    let store = MemoryStore::new();
    for name in ["a", "b", "c"] {
        leave(&store, name, "ann", running()).await;
    }
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let begun = tokio::time::Instant::now();
    let manager = Manager::builder(store.clone()).sweep(Sweep::every(Duration::from_millis(100)));
    let manager = manager.starter(move |turn| match turn.id.as_str() {
        "a" => {
            seen.lock().unwrap().push(begun.elapsed().as_secs());
            let discard = Recover::default().with_decision(RecoveryDecision::Discard);
            Some(OpenOptions::new(Agent::builder().model("nobody:nothing")).recover(discard))
        }
        "b" => panic!("the starter fails"),
        _ => Some(options()),
    });
    let manager = manager.build();
    let mut events = manager.subscribe();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    let mut failed = Vec::new();
    let mut is_open = false;
    while failed.len() < 2 || !is_open {
        let (name, reason) = event(&mut events, |event| match event {
            ManagerEvent::NotRecovered { id, reason } => Some((id.to_string(), Some(reason.to_string()))),
            ManagerEvent::Opened { session } => Some((session.id.to_string(), None)),
            _ => None,
        })
        .await;
        match reason {
            Some(reason) => failed.push((name, reason)),
            None => is_open = name == "c",
        }
    }
    failed.sort();
    assert_eq!((failed[0].0.as_str(), failed[1].0.as_str()), ("a", "b"));
    assert!(failed[0].1.contains("nobody"), "{failed:?}");
    // The attempts become rarer: after 1, 2, 4, 8 and 16 seconds.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(*asked.lock().unwrap(), [0, 1, 3, 7, 15, 31]);
}

#[tokio::test(start_paused = true)]
async fn sweep_takes_only_the_places_that_nobody_needs() {
    let store = MemoryStore::new();
    let gate = Gate::new();
    for name in ["a", "b", "c"] {
        leave(&store, name, "ann", running()).await;
    }
    let manager =
        Manager::builder(store.clone()).sweep(Sweep::off()).max_open(3).starter(|_| Some(options()));
    let manager = manager.build();
    let busy = |name: &str| {
        let held = gate.clone();
        let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Half"]).gate(&held).stop());
        let (manager, name) = (manager.clone(), id(name));
        async move {
            let start = OpenOptions::new(Agent::builder().model(provider.model())).subscribe(None);
            let session = manager.create_with_id(&name, start).await.unwrap().session;
            session.prompt("Go").await.unwrap();
            session
        }
    };
    let mut sessions = vec![busy("x").await, busy("y").await];
    assert_eq!(manager.recover().await.unwrap().opened, [id("a")], "one place was free");
    // No place is free, and the recovered session is idle without a controller. It makes room for the next one.
    assert_eq!(manager.recover().await.unwrap().opened, [id("b")]);
    assert_eq!(open(&manager), ["b", "x", "y"]);
    manager.close(&id("b")).await.unwrap();
    sessions.push(busy("z").await);
    let recovering = manager.clone();
    let waits = tokio::spawn(async move { recovering.recover().await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!waits.is_finished(), "one conversation waits for a place");
    gate.open();
    assert_eq!(waits.await.unwrap().unwrap().opened.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn recover_with_turns_that_are_declined_or_fail_opens_one_in_the_only_place() {
    let store = MemoryStore::new();
    for number in 0..20 {
        leave(&store, &format!("foreign-{number:02}"), "ben", running()).await;
    }
    leave(&store, "bad", "ann", running()).await;
    leave(&store, "panics", "ann", running()).await;
    let expired = waiting("1").with_limit(Duration::ZERO);
    leave(&store, "waits", "ann", paused(vec![expired, waiting("2")])).await;
    leave(&store, "own", "ann", running()).await;
    let manager = Manager::builder(store).sweep(Sweep::off()).max_open(1).starter(|turn| {
        let bad = || OpenOptions::new(Agent::builder().model("nobody:nothing"));
        match turn.id.as_str() {
            "bad" => Some(bad()),
            "panics" => panic!("the starter fails"),
            _ => (turn.labels.get("user") == Some("ann")).then(options),
        }
    });
    let manager = manager.build();
    let recovered = manager.recover().await.unwrap();
    assert_eq!(recovered.opened, [id("own")], "{recovered:?}");
    let mut failed: Vec<_> = recovered.failed.iter().map(|(id, _)| id.to_string()).collect();
    failed.sort();
    assert_eq!(failed, ["bad", "panics"]);
}

#[tokio::test(start_paused = true)]
async fn last_decision_opens_the_conversation() {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1"), waiting("2")])).await;
    let manager = Manager::builder(store).sweep(Sweep::off()).starter(|turn| {
        assert_eq!(turn.labels.get("user"), Some("ann"));
        Some(options())
    });
    let manager = manager.build();
    let mut events = manager.subscribe();
    let approval = |tool_use: &str| ApprovalId::new(id("a"), turn_id(7), tool_use);
    manager.decide(&approval("1"), Decision::Execute, None).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(manager.list_open().is_empty(), "the turn waits for the other decision");
    let decided = manager.decide(&approval("2"), Decision::Execute, None).await;
    assert_eq!(decided.unwrap(), DecisionPlace::InStore);
    assert_eq!(event(&mut events, opened).await, "a");
}

#[tokio::test]
async fn recover_applies_time_limits_that_have_passed() {
    for place in stores().await {
        let store = &place.store;
        let expired = || waiting("1").with_limit(Duration::ZERO);
        leave(&**store, "a", "ann", paused(vec![expired(), waiting("2")])).await;
        leave(&**store, "b", "ann", paused(vec![expired()]).with_lives(0)).await;
        let manager = builder(store).starter(|_| Some(options())).build();
        assert_eq!(manager.recover().await.unwrap().opened, [id("b")], "the other one still waits");
        let open = manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
        let open: Vec<_> = open.iter().map(|open| open.id.to_string()).collect();
        assert_eq!(open, [ApprovalId::new(id("a"), turn_id(7), "2").to_string()]);
        assert!(manager.recover().await.unwrap().opened.is_empty());
        manager.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn default_sweep_runs_after_each_third_of_the_lease() {
    let place = crate::stores::sqlite_with_leases(Duration::from_millis(300)).await;
    let manager = Manager::builder(Arc::clone(&place.store)).starter(|_| Some(options())).build();
    let mut events = manager.subscribe();
    leave(&*place.store, "a", "ann", running()).await;
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    assert_eq!(event(&mut events, opened).await, "a");
    leave(&*place.store, "b", "ann", running()).await;
    let next = tokio::time::timeout(Duration::from_secs(5), event(&mut events, opened));
    assert_eq!(next.await.expect("the next sweep takes more than five seconds"), "b");
}

/// Each round ends the manager at another point of its sweep. `OMNI_ROUNDS` sets the number of rounds.
#[tokio::test]
async fn shutdown_at_any_point_of_a_sweep_leaves_no_lease() {
    let rounds = std::env::var("OMNI_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap());
    for place in stores().await {
        let store = &place.store;
        for round in 0..rounds {
            let name = format!("round-{round}");
            leave(&**store, &name, "ann", running()).await;
            let manager = Manager::builder(Arc::clone(store)).starter(|_| Some(options())).build();
            manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
            for _ in 0..round * 37 % 400 {
                tokio::task::yield_now().await;
            }
            manager.shutdown(Duration::from_secs(20)).await.unwrap();
            let lease = store.acquire(&id(&name), &Owner::new("another")).await.unwrap();
            // No later sweep opens this conversation.
            store.delete(&id(&name), Some(&lease)).await.unwrap();
        }
    }
}

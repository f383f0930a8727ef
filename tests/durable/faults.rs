//! Managers over a store that answers late, panics, or has recorded turns with a clock that was ahead.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, AgentCallbacks, Durable, Recover, RecoveryDecision, State, ToolDecision},
    manager::{ApprovalId, DecisionPlace, Manager, OpenOptions, Shutdown, Sweep},
    message::ToolUse,
    session::Session,
    store::{
        Filter, Listing, MemoryStore, Page, Store,
        custom::{StoredTurn, TurnRecord, Turns, Version},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    owned::HeldStore,
    stores::{id, leave, paused, turn_id, waiting},
};

fn agent() -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::new([]).model())
}

/// Returns options that drop the turn, because the records of these tests contain no state of an agent.
fn options() -> OpenOptions {
    OpenOptions::new(agent()).recover(Recover::default().with_decision(RecoveryDecision::Discard))
}

/// Returns a record of a turn that waits for no decision.
fn running() -> TurnRecord {
    TurnRecord::new(1, turn_id(7), r#"{"phase":"preparing"}"#).with_head(omni_agent::tree::NodeId::new(2))
}

async fn held(names: &[&str]) -> HeldStore {
    let store = MemoryStore::new();
    for name in names {
        leave(&store, name, "ann", running()).await;
    }
    HeldStore::new(store, Duration::ZERO)
}

fn wanted() -> ApprovalId {
    ApprovalId::new(id("a"), turn_id(7), "1")
}

/// Lets all other tasks run until they wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

// ---- turns that are handed over ----

/// Returns an agent whose model uses the tool `send` once, and a counter of the calls of this tool.
fn sender(approval: bool, replay: Replay) -> (impl Fn() -> AgentBuilder + Clone, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let agent = move || {
        let provider = ScriptedProvider::from_fn(|request| {
            let last = request.history.last();
            match last.and_then(|message| message.tool_results().next()) {
                Some(result) => Step::text(format!("It says: {}", result.text())),
                None => Step::tool_use("1", "send", json!({ "to": "ann" })),
            }
        });
        let sent = Arc::clone(&counter);
        let tool = tool_fn("send", "Sends.", move |_: Value, _: ToolContext| {
            let number = sent.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok::<_, omni_agent::ToolError>(format!("sent {number}")) }
        });
        let agent = Agent::builder().model(provider.model()).tool(tool.with_replay(replay));
        if approval { agent.needs_approval("send") } else { agent }
    };
    (agent, sent)
}

fn durable(agent: AgentBuilder) -> OpenOptions {
    OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
}

async fn stored(store: &HeldStore) -> StoredTurn {
    store.store.turn(&id("a")).await.unwrap().expect("a turn is in flight")
}

async fn last_text(session: &Session) -> String {
    session.wait_until_idle().await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

#[tokio::test(start_paused = true)]
async fn hand_over_before_tools_have_started_starts_none_and_the_next_owner_runs_them() {
    for approval in [true, false] {
        for (replay, grace) in [(Replay::Never, 0), (Replay::Keyed, 0), (Replay::Never, 1)] {
            let case = format!("approval: {approval}, {replay:?}, grace: {grace}");
            let (agent, sent) = sender(approval, replay);
            let answers = Gate::new();
            let store = HeldStore::new(MemoryStore::new(), Duration::ZERO);
            let store = Arc::new(HeldStore { answers: Some(answers.clone()), ..store });
            let first = Manager::builder(Arc::clone(&store)).build();
            let session = first.create_with_id(&id("a"), durable(agent())).await.unwrap().session;
            tokio::spawn(async move { session.prompt("Send it.").await });
            // Answer the records one by one, up to the one before the start of the tool.
            let mut deciding = None;
            loop {
                answers.reached().await;
                let record = stored(&store).await.record;
                if record.core.contains("\"executing\"") {
                    break;
                }
                answers.open();
                if let [waiting] = &record.waiting[..] {
                    let id = ApprovalId::new(id("a"), record.turn, waiting.tool_use.id.clone());
                    let (manager, by) = (first.clone(), Some("ann"));
                    deciding =
                        Some(tokio::spawn(async move { manager.decide(&id, Decision::Execute, by).await }));
                }
            }
            let leaving = first.clone();
            let limits = Shutdown::within(Duration::from_secs(10)).with_grace(Duration::from_secs(grace));
            let left = tokio::spawn(async move { leaving.hand_over(limits).await });
            sleep(Duration::from_secs(grace) + Duration::from_millis(1)).await;
            (0..10).for_each(|_| answers.open());
            left.await.unwrap().unwrap();
            if let Some(deciding) = deciding {
                assert_eq!(deciding.await.unwrap().unwrap(), DecisionPlace::InSession, "{case}");
            }
            assert_eq!(sent.load(Ordering::SeqCst), 0, "{case}: nothing has started");
            let turn = stored(&store).await;
            assert!(turn.record.orderly && turn.record.waiting.is_empty(), "{case}: {turn:?}");

            let second = Manager::builder(store.store.clone()).starter(move |_| Some(durable(agent())));
            let second = second.sweep(Sweep::off()).build();
            assert_eq!(second.recover().await.unwrap().opened, [id("a")], "{case}");
            assert_eq!(last_text(&second.get(&id("a")).unwrap()).await, "It says: sent 1", "{case}");
            assert_eq!(sent.load(Ordering::SeqCst), 1, "{case}");
        }
    }
}

// ---- clocks ----

#[tokio::test(start_paused = true)]
async fn recover_of_a_turn_recorded_while_the_clock_was_ahead_opens_it() {
    for lives in [0, 3] {
        let store = MemoryStore::new();
        leave(&store, "a", "ann", running().with_lives(lives)).await;
        let ahead = Duration::from_hours(1);
        let store = HeldStore { ahead, ..HeldStore::new(store, Duration::ZERO) };
        let manager = Manager::builder(store).sweep(Sweep::off()).starter(|_| Some(options())).build();
        assert_eq!(manager.recover().await.unwrap().opened, [id("a")], "lives: {lives}");
    }
}

#[test]
fn record_after_the_clock_was_set_back_has_the_time_of_the_clock() {
    let time = omni_agent::message::Timestamp;
    let ahead = StoredTurn::fold(None, running(), time(5000), Version::new(1));
    let later = StoredTurn::fold(Some(ahead), running(), time(1000), Version::new(2));
    assert_eq!((later.since, later.recorded), (time(5000), time(1000)));
}

/// Pauses each tool use for ten seconds.
struct Limited;

#[async_trait]
impl AgentCallbacks for Limited {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::pause_for("may I?", Duration::from_secs(10))
    }
}

#[tokio::test(start_paused = true)]
async fn time_limit_that_began_while_the_clock_was_ahead_lasts_no_longer_than_itself() {
    let (agent, _) = sender(false, Replay::Never);
    let limited = || durable(agent().callbacks(Limited));
    let store = MemoryStore::new();
    let first = Manager::builder(store.clone()).build();
    let session = first.create_with_id(&id("a"), limited()).await.unwrap().session;
    session.prompt("Send it.").await.unwrap();
    while store.turns(Turns::Waiting, &Listing::default()).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    drop(session);
    first.hand_over(Duration::from_secs(1)).await.unwrap();

    let ahead = Duration::from_hours(1);
    let store = HeldStore { ahead, ..HeldStore::new(store, Duration::ZERO) };
    let second = Manager::builder(store).build();
    let session = second.open(&id("a"), limited()).await.unwrap().session;
    let begun = Instant::now();
    session.wait_until_idle().await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(11), "{:?}", begun.elapsed());
}

// ---- panics and intervals ----

#[tokio::test(start_paused = true)]
async fn sweep_in_which_the_store_panics_is_followed_by_the_next_one() {
    let store = Arc::new(HeldStore { bad_list: Some(0), ..held(&["a"]).await });
    let builder = Manager::builder(Arc::clone(&store)).starter(|_| Some(options()));
    let manager = builder.sweep(Sweep::every(Duration::from_mins(1))).build();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    sleep(Duration::from_mins(5)).await;
    assert!(store.lists.load(Ordering::SeqCst) > 1, "the sweeps go on");
    assert!(manager.recover().await.unwrap().opened.is_empty(), "a sweep has opened the conversation");
}

#[tokio::test(start_paused = true)]
async fn sweep_without_an_interval_does_not_run_all_the_time() {
    let store = Arc::new(held(&[]).await);
    let builder = Manager::builder(Arc::clone(&store)).starter(|_| Some(options()));
    let manager = builder.sweep(Sweep::every(Duration::ZERO)).build();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    for _ in 0..100 {
        sleep(Duration::from_millis(1)).await;
    }
    let lists = store.lists.load(Ordering::SeqCst);
    assert!((2..=15).contains(&lists), "{lists} lists in 100 ms");
}

#[tokio::test(start_paused = true)]
async fn sweep_with_the_longest_interval_does_not_panic() {
    let mut settings = Manager::builder(held(&["a"]).await).starter(|_| Some(options()));
    settings = settings.sweep(Sweep::every(Duration::MAX)).decide_timeout(Duration::MAX);
    let manager = settings.recovery_timeout(Duration::MAX).close_timeout(Duration::MAX).build();
    let mut events = manager.subscribe();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    events.next().await.unwrap();
    let limits = Shutdown::within(Duration::MAX).with_grace(Duration::MAX);
    manager.shutdown(limits).await.unwrap();
}

// ---- limits of openings ----

#[tokio::test(start_paused = true)]
async fn recover_of_a_slow_conversation_is_not_bound_by_the_close_timeout() {
    let store = HeldStore { load: Duration::from_secs(30), ..held(&["a"]).await };
    let builder = Manager::builder(store).sweep(Sweep::off()).starter(|_| Some(options()));
    let recovered = builder.close_timeout(Duration::from_secs(1)).build().recover().await.unwrap();
    assert_eq!(recovered.opened, [id("a")], "{recovered:?}");
}

#[tokio::test(start_paused = true)]
async fn recover_of_a_conversation_slower_than_the_recovery_timeout_fails() {
    let store = HeldStore { load: Duration::from_secs(30), ..held(&["a"]).await };
    let builder = Manager::builder(store).sweep(Sweep::off()).starter(|_| Some(options()));
    let recovered = builder.recovery_timeout(Duration::from_secs(3)).build().recover().await.unwrap();
    let [(_, error)] = &recovered.failed[..] else { panic!("{recovered:?}") };
    assert!(error.to_string().contains("was aborted: the conversation was not opened within 3s"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Internal);
}

// ---- leases ----

#[tokio::test]
async fn shutdown_while_a_sweep_opens_a_conversation_leaves_no_lease() {
    let grants = Gate::new();
    let store = Arc::new(HeldStore { grants: Some(grants.clone()), ..held(&["a"]).await });
    let manager = Manager::builder(Arc::clone(&store)).starter(|_| Some(options())).build();
    manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    grants.reached().await;
    let ending = manager.clone();
    let ended = tokio::spawn(async move { ending.shutdown(Duration::from_mins(1)).await });
    settle().await;
    assert!(!ended.is_finished(), "the store has not answered yet");
    grants.open();
    ended.await.unwrap().unwrap();
    assert!(store.leases.lock().unwrap().is_empty());
}

/// Waits until no conversation has a lease.
async fn released(store: &HeldStore) {
    // The thread that releases leases does not follow Tokio's paused time.
    let begun = std::time::Instant::now();
    while !store.leases.lock().unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the lease stays");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn decision_given_up_while_the_conversation_is_acquired_leaves_no_lease() {
    let grants = Gate::new();
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1")])).await;
    let store = HeldStore { grants: Some(grants.clone()), ..HeldStore::new(store, Duration::ZERO) };
    let store = Arc::new(store);
    let manager = Manager::builder(Arc::clone(&store)).close_timeout(Duration::ZERO).build();
    let deciding = tokio::spawn(async move { manager.decide(&wanted(), Decision::Execute, None).await });
    grants.reached().await;
    deciding.abort();
    // After this time, the decision is given up.
    sleep(Duration::from_millis(1)).await;
    grants.open();
    released(&store).await;
}

#[tokio::test]
async fn expiry_given_up_while_the_conversation_is_acquired_leaves_no_lease() {
    let grants = Gate::new();
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1").with_limit(Duration::ZERO)])).await;
    let store = HeldStore { grants: Some(grants.clone()), ..HeldStore::new(store, Duration::ZERO) };
    let store = Arc::new(store);
    let builder = Manager::builder(Arc::clone(&store)).sweep(Sweep::off()).starter(|_| Some(options()));
    let limit = Duration::from_millis(1);
    let manager = builder.close_timeout(limit).recovery_timeout(limit).build();
    let recovered = manager.recover().await.unwrap();
    assert_eq!(recovered.failed.len(), 1, "{recovered:?}");
    grants.open();
    released(&store).await;
}

// ---- decisions while another process owns the conversation ----

async fn occupied(hold: Duration) -> HeldStore {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1")])).await;
    HeldStore { lease: Some(Duration::from_secs(30)), ..HeldStore::new(store, hold) }
}

#[tokio::test(start_paused = true)]
async fn decide_with_a_timeout_fails_with_the_time_that_the_lease_may_last() {
    let store = occupied(Duration::from_mins(5)).await;
    let manager = Manager::builder(store).decide_timeout(Duration::from_secs(2)).build();
    let begun = Instant::now();
    let error = manager.decide(&wanted(), Decision::Execute, None).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 2);
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::OpenElsewhere, Some(Duration::from_secs(28)))
    );
    assert!(error.to_string().ends_with("its lease expires, in at most 28s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn decide_that_waits_does_not_block_the_conversation() {
    let manager = Manager::builder(occupied(Duration::from_secs(20)).await).build();
    let deciding = manager.clone();
    let decided = tokio::spawn(async move { deciding.decide(&wanted(), Decision::Execute, None).await });
    sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    let opened = manager.open(&id("a"), options()).await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::OpenElsewhere);
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
    assert_eq!(decided.await.unwrap().unwrap(), DecisionPlace::InStore);
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_decision_that_waits() {
    let manager = Manager::builder(occupied(Duration::from_mins(5)).await).build();
    let deciding = manager.clone();
    let decided = tokio::spawn(async move { deciding.decide(&wanted(), Decision::Execute, None).await });
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    manager.shutdown(Duration::from_secs(10)).await.unwrap();
    let decided = decided.await.unwrap();
    assert_eq!(decided.unwrap_err().kind(), ErrorKind::OpenElsewhere);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

//! The limit of open sessions: which session is put to sleep, and which opening must wait.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    Error, ErrorKind,
    agent::AgentBuilder,
    manager::{Activity, Manager, OpenOptions, OpenedSession, Presence, Shutdown},
    run::Prompt,
    session::Mode,
    store::{Page, Store},
    subscription::EndReason,
    testing::{Gate, Step},
    tool::tool_fn,
};
use serde_json::{Value, json};

use crate::support::{
    Act, CommandedStore, Feed, activity, alone, create, held, id, in_time, open_ids, opening, parrot,
    scripted, secs, settle, waiting_ids,
};

/// Returns a manager that may have `places` sessions open, and its store, which contains these conversations.
async fn limited(places: usize, stored: &[&str]) -> (Manager, CommandedStore) {
    let store = CommandedStore::default();
    let before = store.manager().build();
    for name in stored {
        create(&before, name, parrot()).await;
    }
    in_time(before.shutdown(Shutdown::within(secs(1)).with_grace(secs(1)))).await.unwrap();
    (store.manager().idle_shutdown(None).max_open(places).build(), store)
}

#[tokio::test(start_paused = true)]
async fn limit_is_met_the_least_recently_used_idle_session_is_put_to_sleep() {
    let (manager, _) = limited(3, &["d"]).await;
    let a = create(&manager, "a", parrot()).await;
    let b = create(&manager, "b", parrot()).await;
    let c = create(&manager, "c", parrot()).await;
    a.ask("Hi").await.unwrap();
    settle().await;
    let mut feed = Feed::of(&manager);
    in_time(manager.open(&id("d"), alone(parrot()))).await.unwrap();
    assert_eq!(feed.news().await, ["d waits", "b closed", "d opened"]);
    assert_eq!(in_time(b.ended()).await.reason, EndReason::Idle);
    assert_eq!(open_ids(&manager), ["a", "c", "d"]);
    in_time(manager.open(&id("b"), alone(parrot()))).await.unwrap();
    assert_eq!(feed.news().await, ["b waits", "c closed", "b opened"]);
    assert!(c.end().is_some() && a.end().is_none());
}

#[tokio::test(start_paused = true)]
async fn session_opened_again_counts_as_recently_used() {
    // The session is opened again, either without a subscription or with a controller that is dropped.
    for subscribe in [None, Some(Mode::Controller)] {
        let (manager, _) = limited(2, &["c"]).await;
        create(&manager, "a", parrot()).await;
        create(&manager, "b", parrot()).await;
        drop(manager.open(&id("a"), OpenOptions::new(parrot()).subscribe(subscribe)).await.unwrap());
        settle().await;
        in_time(manager.open(&id("c"), alone(parrot()))).await.unwrap();
        assert_eq!(open_ids(&manager), ["a", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn one_opening_waits_and_loads_slowly_only_one_session_is_put_to_sleep() {
    let (manager, store) = limited(3, &["d", "e"]).await;
    for name in ["a", "b", "c"] {
        create(&manager, name, parrot()).await;
    }
    let gate = Gate::new();
    store.loads([Act::Wait(gate.clone())]);
    let d = opening(&manager, "d", alone(parrot()));
    in_time(gate.reached()).await;
    tokio::time::sleep(secs(60)).await;
    assert_eq!(open_ids(&manager), ["b", "c"]);
    // The opening of `d` already has the place of `a`, so activity in `b` does not put `b` to sleep.
    manager.get(&id("b")).unwrap().ask("Hi").await.unwrap();
    tokio::time::sleep(secs(60)).await;
    assert_eq!(open_ids(&manager), ["b", "c"]);
    assert_eq!(waiting_ids(&manager), ["d"]);
    gate.open();
    in_time(d).await.unwrap().unwrap();
    assert_eq!(open_ids(&manager), ["b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn several_openings_wait_as_many_sessions_are_put_to_sleep() {
    let (manager, _) = limited(3, &["d", "e"]).await;
    for name in ["a", "b", "c"] {
        create(&manager, name, parrot()).await;
    }
    let (d, e) = (opening(&manager, "d", alone(parrot())), opening(&manager, "e", alone(parrot())));
    in_time(d).await.unwrap().unwrap();
    in_time(e).await.unwrap().unwrap();
    assert_eq!(open_ids(&manager), ["c", "d", "e"]);
}

#[tokio::test(start_paused = true)]
async fn controlled_and_busy_sessions_stay_and_others_wait_in_order() {
    let (manager, _) = limited(2, &["c", "d", "e"]).await;
    let gate = Gate::new();
    let controlled = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let busy = create(&manager, "b", held(&gate)).await;
    busy.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let mut feed = Feed::of(&manager);
    let waiting: Vec<_> = ["d", "c", "e"].map(|name| opening(&manager, name, parrot())).into();
    tokio::time::sleep(secs(600)).await;
    assert_eq!(feed.news().await, ["d waits", "c waits", "e waits"]);
    assert_eq!(waiting_ids(&manager), ["d", "c", "e"]);
    assert_eq!(open_ids(&manager), ["a", "b"]);
    let listed = manager.list(Page::default()).await.unwrap();
    for entry in listed {
        let waits = entry.presence == Presence::Waiting;
        assert_eq!(waits, ["c", "d", "e"].contains(&entry.summary.id.as_ref()), "{entry:?}");
    }
    // The controller leaves.
    drop(controlled);
    settle().await;
    assert_eq!(feed.news().await, ["a closed", "d opened"]);
    // The run ends and is saved.
    gate.open();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(waiting_ids(&manager), ["e"]);
    assert_eq!(open_ids(&manager), ["d", "c"]);
    // One of the sessions is closed.
    manager.close(&id("d")).await.unwrap();
    settle().await;
    assert_eq!(open_ids(&manager), ["c", "e"]);
    for opened in waiting {
        assert!(in_time(opened).await.unwrap().unwrap().started);
    }
    feed.news().await;
}

#[tokio::test(start_paused = true)]
async fn session_with_unsaved_data_is_put_to_sleep_once_saved() {
    let (manager, store) = limited(1, &["b"]).await;
    let gate = Gate::new();
    let a = create(&manager, "a", parrot()).await;
    store.writes([Act::Wait(gate.clone())]);
    a.ask("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let b = opening(&manager, "b", alone(parrot()));
    tokio::time::sleep(secs(30)).await;
    assert_eq!((open_ids(&manager), waiting_ids(&manager)), (vec!["a".into()], vec!["b".into()]));
    gate.open();
    in_time(b).await.unwrap().unwrap();
    manager.close(&id("b")).await.unwrap();
    let a = manager.open(&id("a"), alone(parrot())).await.unwrap();
    assert_eq!(a.session.tree().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn caller_dropped_the_opening_is_given_up() {
    let (manager, _) = limited(1, &["b", "c"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let mut feed = Feed::of(&manager);
    let (b, c) = (opening(&manager, "b", parrot()), opening(&manager, "c", parrot()));
    settle().await;
    b.abort();
    settle().await;
    assert_eq!(feed.news().await, ["b waits", "c waits", "b given up"]);
    drop(a);
    in_time(c).await.unwrap().unwrap();
    assert_eq!(feed.news().await, ["a closed", "c opened"]);
}

#[tokio::test(start_paused = true)]
async fn second_caller_of_a_waiting_id_continues_the_opening() {
    let (manager, _) = limited(1, &["b"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let first = opening(&manager, "b", parrot());
    let second = opening(&manager, "b", parrot());
    settle().await;
    assert_eq!(waiting_ids(&manager), ["b"]);
    first.abort();
    settle().await;
    assert_eq!(waiting_ids(&manager), ["b"]);
    drop(a);
    assert!(in_time(second).await.unwrap().unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn opening_fails_its_place_is_released() {
    let (manager, store) = limited(1, &["b"]).await;
    for act in [Act::Fail, Act::Panic] {
        store.loads([act]);
        in_time(manager.open(&id("b"), parrot())).await.unwrap_err();
    }
    in_time(manager.open(&id("none"), parrot())).await.unwrap_err();
    in_time(manager.create_with_id(&id("b"), parrot())).await.unwrap_err();
    let no_model = omni_agent::agent::Agent::builder();
    in_time(manager.create(no_model)).await.unwrap_err();
    // If an opening had to wait and then fails, it also releases its place.
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let mut feed = Feed::of(&manager);
    store.loads([Act::Fail]);
    let b = opening(&manager, "b", parrot());
    settle().await;
    drop(a);
    in_time(b).await.unwrap().unwrap_err();
    assert_eq!(feed.news().await, ["b waits", "a closed", "b given up"]);
    in_time(manager.open(&id("b"), parrot())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn limit_of_one_serves_all_callers_in_turn() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let (manager, _) = limited(1, &names).await;
    let asked = names.map(|name| {
        let manager = manager.clone();
        tokio::spawn(async move {
            let opened = manager.open(&id(name), parrot()).await.unwrap();
            assert_eq!(manager.list_open().len(), 1);
            opened.session.ask("Hi").await.unwrap();
        })
    });
    for asked in asked {
        in_time(asked).await.unwrap();
    }
    in_time(manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1)))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn limit_is_at_least_one() {
    let (manager, _) = limited(0, &[]).await;
    in_time(manager.create(parrot())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn session_deleted_slowly_makes_room_immediately() {
    let (manager, store) = limited(1, &["b"]).await;
    let _a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    store.deletes([Act::Hang]);
    let deleting = manager.clone();
    let deleting = tokio::spawn(async move { deleting.delete(&id("a")).await });
    in_time(manager.open(&id("b"), parrot())).await.unwrap();
    deleting.abort();
}

// ---- runs ----

/// Builds a manager, and creates sessions with these names and tenants. Returns each session with the gate at which its
/// answers wait.
async fn running(
    builder: omni_agent::manager::ManagerBuilder,
    sessions: &[(&str, &str)],
) -> (Manager, Vec<(omni_agent::session::Session, Gate)>) {
    let manager = builder.build();
    let mut made = Vec::new();
    for (name, tenant) in sessions {
        let gate = Gate::new();
        let start = alone(held(&gate)).tenant(*tenant);
        let session = manager.create_with_id(&id(name), start).await.unwrap().session;
        made.push((session, gate));
    }
    (manager, made)
}

fn in_memory() -> omni_agent::manager::ManagerBuilder {
    use omni_agent::{manager::Titles, store::MemoryStore};
    Manager::builder(Arc::new(MemoryStore::new())).idle_shutdown(None).titles(Titles::Off)
}

fn activities<const N: usize>(manager: &Manager, names: [&str; N]) -> [Activity; N] {
    names.map(|name| activity(manager, name).unwrap())
}

#[tokio::test(start_paused = true)]
async fn runs_beyond_the_limit_are_queued_in_order() {
    use Activity::{Busy, Idle, Queued};
    let sessions = [("a", "t"), ("b", "t"), ("c", "t")];
    let (manager, made) = running(in_memory().max_turns(1), &sessions).await;
    let mut feed = Feed::of(&manager);
    // Prompt the sessions in a different order from the one in which they were opened.
    for nth in [1, 2, 0] {
        made[nth].0.prompt("Hi").await.unwrap();
        settle().await;
    }
    assert_eq!(activities(&manager, ["a", "b", "c"]), [Queued, Busy, Queued]);
    assert_eq!(feed.news().await, ["b busy", "c queued", "a queued"]);
    made[1].1.open();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b", "c"]), [Queued, Idle, Busy]);
    made[2].1.open();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b", "c"]), [Busy, Idle, Idle]);
    made[0].1.open();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b", "c"]), [Idle; 3]);
    let mut news = feed.news().await;
    news.sort_unstable();
    assert_eq!(news, ["a busy", "a idle", "b idle", "c busy", "c idle"]);
}

#[tokio::test(start_paused = true)]
async fn run_that_waits_for_retry_after_leaves_its_place_to_others() {
    use omni_agent::provider::{ProviderError, ProviderErrorKind};
    let manager = in_memory().max_turns(1).build();
    let error =
        ProviderError::new(ProviderErrorKind::RateLimit, "slow down").with_retry_after(Some(secs(55)));
    let limited = create(&manager, "a", scripted([Step::error(error), Step::text("Later.")])).await;
    let other = create(&manager, "b", parrot()).await;
    let begun = tokio::time::Instant::now();
    let waiting = tokio::spawn(async move { limited.ask("Hi").await.unwrap().text() });
    settle().await;
    assert_eq!(other.ask("Hi").await.unwrap().text(), "re: Hi");
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
    assert_eq!(waiting.await.unwrap(), "Later.");
}

#[tokio::test(start_paused = true)]
async fn queued_run_cancelled_or_closed_leaves_the_queue() {
    let sessions = [("a", "t"), ("b", "t"), ("c", "t"), ("d", "t")];
    let (manager, made) = running(in_memory().max_turns(1), &sessions).await;
    for (session, _) in &made {
        session.prompt("Hi").await.unwrap();
        settle().await;
    }
    made[1].0.cancel().await.unwrap();
    manager.close(&id("c")).await.unwrap();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b", "d"]), [Activity::Busy, Activity::Idle, Activity::Queued]);
    made[0].1.open();
    in_time(made[3].1.reached()).await;
    assert_eq!(activity(&manager, "d"), Some(Activity::Busy));
}

#[tokio::test(start_paused = true)]
async fn paused_run_does_not_count_and_waits_before_it_continues() {
    use async_trait::async_trait;
    use omni_agent::{
        agent::{AgentCallbacks, State, ToolDecision},
        message::ToolUse,
        tool::Decision,
    };
    struct Asks;
    #[async_trait]
    impl AgentCallbacks for Asks {
        async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
            ToolDecision::Pause(Value::Null)
        }
    }
    let (manager, made) = running(in_memory().max_turns(1), &[("b", "t")]).await;
    let steps = [Step::tool_use("t1", "echo", json!({})), Step::text("Done.")];
    let echo = tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) });
    let a = create(&manager, "a", scripted(steps).tool(echo).callbacks(Asks)).await;
    a.prompt(Prompt::from("Hi")).await.unwrap();
    settle().await;
    assert_eq!(activity(&manager, "a"), Some(Activity::Paused));
    made[0].0.prompt("Hi").await.unwrap();
    in_time(made[0].1.reached()).await;
    a.resume("t1", Decision::Execute).await.unwrap();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b"]), [Activity::Queued, Activity::Busy]);
    made[0].1.open();
    in_time(a.wait_until_idle()).await.unwrap();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b"]), [Activity::Idle; 2]);
}

/// Returns an agent whose tool opens another session with `start`, prompts that session, and returns that session's
/// answer.
fn asking(
    manager: &Manager,
    name: &'static str,
    start: impl Fn() -> OpenOptions + Send + Sync + 'static,
) -> AgentBuilder {
    let manager = manager.clone();
    let tool = tool_fn("ask", "Asks another session.", move |_: Value, _| {
        let (manager, start) = (manager.clone(), start());
        async move {
            let opened = manager.create_with_id(&id(name), start).await?;
            Ok(opened.session.ask("Hi").await?.text())
        }
    });
    scripted([Step::tool_use("t1", "ask", json!({})), Step::text("Done.")]).tool(tool)
}

#[tokio::test(start_paused = true)]
async fn tool_prompts_another_session_under_a_limit_of_one_both_runs_complete() {
    for builder in [in_memory().max_turns(1), in_memory().max_turns_per_tenant(1)] {
        let manager = builder.build();
        // The tool of the prompted session prompts a third session.
        let inner = manager.clone();
        let middle = move || alone(asking(&inner, "c", || alone(parrot()).tenant("t"))).tenant("t");
        let outer = alone(asking(&manager, "b", middle)).tenant("t");
        let a = manager.create_with_id(&id("a"), outer).await.unwrap().session;
        let mut feed = Feed::of(&manager);
        let response = in_time(a.ask("Hi")).await.unwrap();
        assert_eq!(response.text(), "Done.");
        let results = response.messages.iter().flat_map(|message| message.tool_results());
        assert_eq!(results.map(omni_agent::message::ToolResult::text).collect::<Vec<_>>(), ["Done."]);
        // A run does not hold a place while its tool runs, so no run was queued.
        settle().await;
        assert!(feed.news().await.iter().all(|news| !news.ends_with("queued")));
    }
}

#[tokio::test(start_paused = true)]
async fn tools_run_while_others_take_the_place_the_run_is_queued_again() {
    use Activity::{Busy, Idle, Queued};
    let (manager, made) = running(in_memory().max_turns(1), &[("b", "t")]).await;
    let gate = Gate::new();
    let passed = gate.clone();
    let tool = tool_fn("wait", "Waits.", move |input: Value, _| {
        let gate = passed.clone();
        async move {
            gate.pass().await;
            Ok(input)
        }
    });
    let steps = [Step::tool_use("t1", "wait", json!({})), Step::text("Done.")];
    let a = create(&manager, "a", scripted(steps).tool(tool)).await;
    a.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    assert_eq!(activities(&manager, ["a", "b"]), [Busy, Idle]);
    made[0].0.prompt("Hi").await.unwrap();
    in_time(made[0].1.reached()).await;
    gate.open();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b"]), [Queued, Busy]);
    made[0].1.open();
    in_time(a.wait_until_idle()).await.unwrap();
    settle().await;
    assert_eq!(activities(&manager, ["a", "b"]), [Idle; 2]);
}

#[tokio::test(start_paused = true)]
async fn one_tenant_does_not_starve_another() {
    use Activity::{Busy, Queued};
    let sessions = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")];
    let (manager, made) = running(in_memory().max_turns(2).max_turns_per_tenant(1), &sessions).await;
    for (session, _) in &made {
        session.prompt("Hi").await.unwrap();
        settle().await;
    }
    // The other runs of the first tenant started to wait earlier, but they do not occupy the second place of the common
    // limit.
    assert_eq!(activities(&manager, ["a1", "a2", "a3", "b1"]), [Busy, Queued, Queued, Busy]);
    made[0].1.open();
    settle().await;
    assert_eq!(activities(&manager, ["a2", "a3", "b1"]), [Busy, Queued, Busy]);
}

#[tokio::test(start_paused = true)]
async fn runs_without_a_tenant_share_only_the_common_limit() {
    let manager = in_memory().max_turns_per_tenant(1).build();
    let gate = Gate::new();
    for name in ["a", "b"] {
        create(&manager, name, held(&gate)).await.prompt("Hi").await.unwrap();
    }
    settle().await;
    assert_eq!(activities(&manager, ["a", "b"]), [Activity::Busy; 2]);
}

#[tokio::test(start_paused = true)]
async fn queued_session_is_not_put_to_sleep() {
    let (manager, made) = running(in_memory().max_turns(1).max_open(2), &[("a", "t"), ("b", "t")]).await;
    for (session, _) in &made {
        session.prompt("Hi").await.unwrap();
        settle().await;
    }
    let new = manager.clone();
    let waiting = tokio::spawn(async move { new.create(parrot()).await });
    tokio::time::sleep(secs(60)).await;
    assert_eq!(open_ids(&manager), ["a", "b"]);
    in_time(manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1)))).await.unwrap();
    assert_eq!(in_time(waiting).await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

// ---- several threads ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_threads_open_and_leave_the_limit_holds_and_no_caller_waits_for_ever() {
    let names: Vec<String> = (0..12).map(|nth| format!("s{nth}")).collect();
    let stored: Vec<&str> = names.iter().map(String::as_str).collect();
    let (manager, _) = limited(3, &stored).await;
    let users = (0..8_usize).map(|user| {
        let (manager, names) = (manager.clone(), names.clone());
        tokio::spawn(async move {
            for round in 0..30 {
                let name = id(&names[(user * 5 + round * 7) % names.len()]);
                let opening = manager.open(&name, parrot());
                let patience = if (user + round) % 5 == 0 { std::time::Duration::ZERO } else { secs(20) };
                let Ok(opened) = tokio::time::timeout(patience, opening).await else {
                    assert!(patience.is_zero(), "an opening waited for too long");
                    continue;
                };
                assert!(manager.list_open().len() <= 3);
                match opened.unwrap().session.ask("Hi").await {
                    Err(error) if error.kind() != ErrorKind::Busy => panic!("{error:?}"),
                    _ => {}
                }
            }
        })
    });
    let users: Vec<_> = users.collect();
    for user in users {
        tokio::time::timeout(secs(60), user).await.unwrap().unwrap();
    }
    // Abandoned openings leave the queue as soon as their tasks notice that the caller has gone.
    in_time(async {
        while !waiting_ids(&manager).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    manager.shutdown(Shutdown::within(secs(5)).with_grace(secs(5))).await.unwrap();
}

#[test]
fn runtime_dropped_its_places_are_free_again() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let manager = first.block_on(async {
        let (manager, _) = limited(1, &["b", "c"]).await;
        std::mem::forget(manager.create_with_id(&id("a"), parrot()).await.unwrap().subscription);
        drop(opening(&manager, "b", parrot()));
        settle().await;
        assert_eq!(waiting_ids(&manager), ["b"]);
        manager
    });
    drop(first);
    assert_eq!((open_ids(&manager), waiting_ids(&manager)), (vec![], vec![]));
    second.block_on(async {
        create(&manager, "x", parrot()).await;
        // The manager can still make room on the second runtime.
        in_time(manager.open(&id("c"), parrot())).await.unwrap();
        in_time(manager.shutdown(Shutdown::within(secs(1)).with_grace(secs(1)))).await.unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn close_of_a_conversation_waiting_for_room_returns_immediately() {
    let manager = omni_agent::manager::Manager::builder(Arc::new(omni_agent::store::MemoryStore::new()))
        .max_open(1)
        .build();
    let [first, second] = ["first", "second"].map(|id| omni_agent::store::ConversationId::new(id).unwrap());
    let held = manager.create_with_id(&first, crate::basics::agent()).await.unwrap();
    let (waiting, id) = (manager.clone(), second.clone());
    let opening = tokio::spawn(async move { waiting.create_with_id(&id, crate::basics::agent()).await });
    while manager.subscribe().snapshot().unwrap().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_secs(1), manager.close(&second)).await.unwrap().unwrap();
    drop(held);
    opening.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn close_of_a_conversation_that_loads_after_it_waited_for_room_ends_its_session() {
    let (manager, store) = limited(1, &["b"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    assert_eq!(waiting_ids(&manager), ["b"]);
    let gate = Gate::new();
    store.loads([Act::Wait(gate.clone())]);
    drop(a);
    gate.reached().await;
    let closing = tokio::spawn({
        let manager = manager.clone();
        async move { manager.close(&id("b")).await }
    });
    settle().await;
    assert!(!closing.is_finished(), "the session would open after the close");
    gate.open();
    in_time(closing).await.unwrap().unwrap();
    assert!(open_ids(&manager).is_empty());
    assert!(in_time(b).await.unwrap().unwrap().session.end().is_some());
}

#[tokio::test(start_paused = true)]
async fn shutdown_while_openings_wait_for_room_reports_that_they_are_given_up() {
    let (manager, _) = limited(1, &["b"]).await;
    let _a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    let mut watch = crate::rig::Watch::new(&manager);
    in_time(manager.shutdown(Shutdown::within(secs(1)))).await.unwrap();
    assert_eq!(in_time(b).await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    watch.catch_up();
    assert_eq!((waiting_ids(&manager), watch.view.waiting), (vec![], vec![]));
}

fn assert_not_found(opened: Result<OpenedSession, Error>) {
    let error = opened.expect_err("the conversation was deleted");
    assert_eq!((error.kind(), error.member("conversation")), (ErrorKind::NotFound, Some(&"b".into())));
}

#[tokio::test(start_paused = true)]
async fn delete_of_a_conversation_waiting_for_room_returns_immediately() {
    let (manager, store) = limited(1, &["b"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    assert_eq!(waiting_ids(&manager), ["b"]);
    in_time(manager.delete(&id("b"))).await.unwrap();
    assert!(store.beneath().summary(&id("b")).await.is_err());
    assert_eq!(waiting_ids(&manager), ["b"]);
    drop(a);
    assert_not_found(in_time(b).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn rename_of_a_conversation_waiting_for_room_applies_immediately() {
    let (manager, _) = limited(1, &["b"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    in_time(manager.rename(&id("b"), Some("Renamed"))).await.unwrap();
    drop(a);
    let opened = in_time(b).await.unwrap().unwrap();
    assert_eq!(opened.session.title().await.unwrap().as_deref(), Some("Renamed"));
}

#[tokio::test(start_paused = true)]
async fn opening_that_gets_room_during_a_rename_waits_for_it() {
    let (manager, store) = limited(1, &["b"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    let gate = Gate::new();
    store.writes([Act::Wait(gate.clone())]);
    let renaming = tokio::spawn({
        let manager = manager.clone();
        async move { manager.rename(&id("b"), Some("Renamed")).await }
    });
    gate.reached().await;
    let mut feed = Feed::of(&manager);
    drop(a);
    settle().await;
    assert_eq!(feed.news().await, ["a closed"]);
    gate.open();
    in_time(renaming).await.unwrap().unwrap();
    let opened = in_time(b).await.unwrap().unwrap();
    assert_eq!(opened.session.title().await.unwrap().as_deref(), Some("Renamed"));
}

#[tokio::test(start_paused = true)]
async fn opening_given_up_during_a_delete_the_next_opening_waits_for_the_delete() {
    let (manager, store) = limited(1, &["b", "c"]).await;
    let a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    let b = opening(&manager, "b", parrot());
    settle().await;
    let gate = Gate::new();
    store.deletes([Act::Wait(gate.clone())]);
    let deleting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.delete(&id("b")).await }
    });
    gate.reached().await;
    b.abort();
    settle().await;
    assert_eq!(waiting_ids(&manager), [""; 0]);
    drop(a);
    let again = opening(&manager, "b", parrot());
    // The abandoned opening has released its place.
    drop(in_time(manager.open(&id("c"), parrot())).await.unwrap());
    assert!(!again.is_finished());
    gate.open();
    in_time(deleting).await.unwrap().unwrap();
    assert_not_found(in_time(again).await.unwrap());
}

//! How the manager makes room. For each waiting opening, it closes one session, and it closes all these sessions at the
//! same time. As soon as a session may be closed, the waiting openings are woken.

use std::time::Duration;

use async_trait::async_trait;
use omni_agent::{
    Error, ErrorKind,
    agent::{AgentBuilder, AgentCallbacks, State},
    manager::{Manager, ManagerBuilder, OpenedSession, Shutdown, Titles},
    run::Prompt,
    session::Session,
    testing::{Gate, Step},
    tool::{ToolError, ToolLimits, tool_fn},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};

use crate::{
    rig::{self, Hooks},
    support::{
        Act, CommandedStore, Feed, alone, create, id, in_time, open_ids, opening, parrot, scripted, secs,
        settle, waiting_ids,
    },
};

/// Returns the builder of a manager that may have `places` sessions open, and its store, which contains these
/// conversations.
async fn limited(places: usize, stored: &[&str]) -> (ManagerBuilder, CommandedStore) {
    let store = CommandedStore::default();
    let before = store.manager().build();
    for name in stored {
        create(&before, name, parrot()).await;
    }
    in_time(before.shutdown(Shutdown::within(secs(1)).with_grace(secs(1)))).await.unwrap();
    (store.manager().idle_shutdown(None).titles(Titles::Off).max_open(places), store)
}

/// Returns an agent that takes this long to terminate.
fn slow_to_end(time: Duration) -> AgentBuilder {
    parrot().terminate_timeout(secs(60)).callbacks(Hooks::default().terminate(rig::Act::Slow(time)))
}

async fn elapsed_of(openings: Vec<JoinHandle<Result<OpenedSession, Error>>>) -> Duration {
    let begun = Instant::now();
    for opening in openings {
        in_time(opening).await.unwrap().unwrap();
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn several_openings_wait_slow_sessions_end_at_the_same_time() {
    let waiting = ["x", "y", "z"];
    let (builder, _) = limited(3, &waiting).await;
    let manager = builder.build();
    for name in ["a", "b", "c"] {
        create(&manager, name, slow_to_end(secs(20))).await;
    }
    let openings = waiting.map(|name| opening(&manager, name, alone(parrot())));
    assert_eq!(elapsed_of(openings.into()).await, secs(20));
    assert_eq!(open_ids(&manager), waiting);
}

#[tokio::test(start_paused = true)]
async fn second_opening_waits_during_a_slow_end_another_session_is_closed_for_it() {
    let (builder, _) = limited(3, &["x", "y"]).await;
    let manager = builder.build();
    for name in ["a", "b", "c"] {
        create(&manager, name, slow_to_end(secs(20))).await;
    }
    let first = opening(&manager, "x", alone(parrot()));
    tokio::time::sleep(secs(5)).await;
    let second = opening(&manager, "y", alone(parrot()));
    // While the two openings wait for the sessions that are ending, activity in the third session does not cause a
    // further session to be closed.
    tokio::time::sleep(secs(5)).await;
    manager.get(&id("c")).unwrap().ask("Hi").await.unwrap();
    assert_eq!(elapsed_of(vec![first, second]).await, secs(15));
    assert_eq!(open_ids(&manager), ["c", "x", "y"]);
}

#[tokio::test(start_paused = true)]
async fn opening_dropped_while_a_session_ends_the_next_gets_its_place() {
    let (builder, _) = limited(2, &["x", "y"]).await;
    let manager = builder.build();
    create(&manager, "a", slow_to_end(secs(20))).await;
    let _b = manager.create_with_id(&id("b"), parrot()).await.unwrap();
    let first = opening(&manager, "x", parrot());
    settle().await;
    let second = opening(&manager, "y", parrot());
    settle().await;
    assert_eq!(waiting_ids(&manager), ["x", "y"]);
    first.abort();
    in_time(second).await.unwrap().unwrap();
    assert_eq!(open_ids(&manager), ["b", "y"]);
}

/// Waits for an opening that must finish at the moment at which the gate opens.
async fn opens_with(gate: &Gate, opening: JoinHandle<Result<OpenedSession, Error>>) -> OpenedSession {
    tokio::time::sleep(Duration::from_millis(10_033)).await;
    assert!(!opening.is_finished());
    let begun = Instant::now();
    gate.open();
    let opened = in_time(opening).await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    opened
}

#[tokio::test(start_paused = true)]
async fn session_is_saved_late_the_opening_is_woken_immediately() {
    let (builder, store) = limited(1, &["x"]).await;
    let manager = builder.build();
    let gate = Gate::new();
    let session = create(&manager, "a", parrot()).await;
    store.writes([Act::Wait(gate.clone())]);
    session.ask("Hi").await.unwrap();
    let opening = opening(&manager, "x", alone(parrot()));
    opens_with(&gate, opening).await;
}

/// Callbacks whose `handle_event` waits at a gate.
struct HandlesSlowly(Gate);

#[async_trait]
impl AgentCallbacks for HandlesSlowly {
    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.0.pass().await;
        None
    }
}

#[tokio::test(start_paused = true)]
async fn session_handles_an_event_slowly_the_opening_is_woken_immediately() {
    let (builder, _) = limited(1, &["x"]).await;
    let manager = builder.build();
    let gate = Gate::new();
    let session = create(&manager, "a", parrot().callbacks(HandlesSlowly(gate.clone()))).await;
    session.notify("An event").await.unwrap();
    in_time(gate.reached()).await;
    let opening = opening(&manager, "x", alone(parrot()));
    opens_with(&gate, opening).await;
}

#[tokio::test(start_paused = true)]
async fn several_sessions_refuse_to_sleep_each_is_asked_again_after_a_change() {
    let (builder, store) = limited(2, &["x", "y"]).await;
    let manager = builder.build();
    let gates = [Gate::new(), Gate::new()];
    for (name, gate) in ["a", "b"].into_iter().zip(&gates) {
        let session = create(&manager, name, parrot()).await;
        store.writes([Act::Wait(gate.clone())]);
        session.ask("Hi").await.unwrap();
        in_time(gate.reached()).await;
    }
    let first = opening(&manager, "x", parrot());
    settle().await;
    let second = opening(&manager, "y", parrot());
    settle().await;
    let _first = opens_with(&gates[1], first).await;
    assert_eq!(open_ids(&manager), ["a", "x"]);
    let _second = opens_with(&gates[0], second).await;
    assert_eq!(open_ids(&manager), ["x", "y"]);
}

// ---- tools that open sessions ----

fn without_time_limit() -> ToolLimits {
    ToolLimits::default().with_timeout(Duration::MAX)
}

/// Returns an agent whose tool opens another session, and whose model receives the result of this tool.
fn opens_another(manager: &Manager) -> AgentBuilder {
    let manager = manager.clone();
    let tool = tool_fn("open", "Opens another session.", move |_: Value, _| {
        let manager = manager.clone();
        async move {
            let opened = manager.create_with_id(&id("child"), parrot()).await?;
            Ok(opened.session.ask("Hi").await?.text())
        }
    });
    scripted([Step::tool_use("t1", "open", json!({})), Step::text("Done.")])
        .tool(tool)
        .tool_limits(without_time_limit())
}

/// Returns the result of the tool call as the model receives it.
async fn result(session: &Session) -> String {
    let response = in_time(session.ask("Hi")).await.unwrap();
    let mut results = response.messages.iter().flat_map(|message| message.tool_results());
    results.next().unwrap().text()
}

#[tokio::test(start_paused = true)]
async fn tool_opens_a_session_without_room_opening_fails_and_names_the_parent() {
    let (builder, _) = limited(2, &[]).await;
    let manager = builder.room_timeout(Some(secs(10))).build();
    // A user's session holds the second of the two places.
    let _person = manager.create_with_id(&id("person"), parrot()).await.unwrap();
    let parent = create(&manager, "parent", opens_another(&manager)).await;
    let mut feed = Feed::of(&manager);
    let begun = Instant::now();
    let refusal = result(&parent).await;
    assert_eq!(begun.elapsed(), secs(10));
    assert!(refusal.contains("no room to open conversation child"), "{refusal}");
    assert!(refusal.contains("whose tools run: parent;"), "{refusal}");
    let news = feed.news().await;
    assert_eq!(news[..3], ["parent busy", "child waits", "child given up"]);
}

#[tokio::test(start_paused = true)]
async fn more_than_five_sessions_run_tools_the_error_names_five_and_counts_the_others() {
    let all = ["a", "b", "c", "d", "e", "f", "g"];
    let (builder, _) = limited(all.len(), &["x"]).await;
    let manager = builder.room_timeout(Some(secs(10))).build();
    for name in all {
        let tool =
            tool_fn("hang", "Hangs.", |_: Value, _| std::future::pending::<Result<Value, ToolError>>());
        let agent = scripted([Step::tool_use("t1", "hang", json!({}))]).tool(tool);
        create(&manager, name, agent.tool_limits(without_time_limit())).await.prompt("Hi").await.unwrap();
    }
    let error = in_time(manager.open(&id("x"), parrot())).await.unwrap_err();
    assert_eq!((error.kind(), error.member("running")), (ErrorKind::NoRoom, Some(&json!(all))));
    let text = error.to_string();
    assert!(text.contains("whose tools run: a, b, c, d, e and 2 more; raise"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn room_becomes_free_in_time_the_tool_gets_it() {
    let (builder, _) = limited(2, &[]).await;
    let manager = builder.build();
    let person = manager.create_with_id(&id("person"), parrot()).await.unwrap();
    let parent = create(&manager, "parent", opens_another(&manager)).await;
    tokio::spawn(async move {
        tokio::time::sleep(secs(50)).await;
        drop(person);
    });
    assert_eq!(result(&parent).await, "re: Hi");
}

#[tokio::test(start_paused = true)]
async fn no_tool_holds_a_place_openings_keep_waiting() {
    let (builder, _) = limited(1, &["x"]).await;
    let manager = builder.build();
    let person = manager.create_with_id(&id("person"), parrot()).await.unwrap();
    // No tool of this session runs while the opening waits, so the opening waits until the controller is dropped.
    person.session.ask("Hi").await.unwrap();
    let opening = opening(&manager, "x", parrot());
    tokio::time::sleep(secs(3000)).await;
    assert_eq!(waiting_ids(&manager), ["x"]);
    drop(person);
    in_time(opening).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn room_timeout_is_unset_openings_wait_behind_tools() {
    let (builder, _) = limited(1, &["x"]).await;
    let manager = builder.room_timeout(None).build();
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
    let session = create(&manager, "a", scripted(steps).tool(tool).tool_limits(without_time_limit())).await;
    session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let opening = opening(&manager, "x", alone(parrot()));
    tokio::time::sleep(secs(3000)).await;
    assert_eq!(waiting_ids(&manager), ["x"]);
    gate.open();
    in_time(opening).await.unwrap().unwrap();
}

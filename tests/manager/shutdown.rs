//! The clean end of all sessions within the deadline.

use std::{env, fs, sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentCallbacks, Event, State, ToolDecision},
    manager::{Manager, Shutdown, Titles},
    message::ToolUse,
    run::Prompt,
    session::{Mode, Session, SessionEvent},
    store::{ConversationId, FileSystemStore, Store, file_system::Durability},
    subscription::{EndReason, Update},
    testing::{Gate, ScriptedProvider, Step},
    tree::Tree,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    Act, CommandedStore, Feed, alone, create, held, id, in_time, opening, parrot, scripted, secs, settle,
};

async fn stored(store: &dyn Store, id: &ConversationId) -> Tree {
    let stored = store.load(id).await.unwrap();
    Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap()
}

/// Returns the sessions that a shutdown could not end completely.
fn incomplete(error: &Error) -> Vec<(ConversationId, Error)> {
    assert_eq!(error.kind(), ErrorKind::EndedIncomplete);
    error.sessions()
}

fn names(error: &Error) -> Vec<String> {
    let mut names: Vec<_> = incomplete(error).iter().map(|(id, _)| id.to_string()).collect();
    names.sort_unstable();
    names
}

/// Starts a shutdown in another task.
fn shutting(
    manager: &Manager,
    grace: Duration,
    deadline: Duration,
) -> tokio::task::JoinHandle<Result<(), Error>> {
    let manager = manager.clone();
    tokio::spawn(async move { manager.shutdown(Shutdown::within(deadline).with_grace(grace)).await })
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_sessions_returns_immediately() {
    let manager = CommandedStore::default().manager().build();
    let feed = Feed::of(&manager);
    let begun = Instant::now();
    manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(60))).await.unwrap();
    manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(60))).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(feed.closed().await, [""; 0]);
    // A subscriber that joins now still receives the end of the feed.
    let last = manager.subscribe().last_id();
    for mut late in [manager.subscribe(), manager.resume_from(last)] {
        loop {
            match in_time(late.next()).await {
                Some(Update::Resync(_)) => {}
                Some(Update::Closed(end)) => break assert_eq!(end.reason, EndReason::Stopped),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_new_work_and_waits_for_runs() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let gate = Gate::new();
    let idle = create(&manager, "idle", parrot()).await;
    let busy = create(&manager, "busy", held(&gate)).await;
    busy.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let mut feed = Feed::of(&manager);
    let down = shutting(&manager, secs(60), secs(60));
    tokio::time::sleep(secs(10)).await;
    assert_eq!(manager.create(parrot()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(manager.create_with_id(&id("new"), parrot()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(manager.open(&id("idle"), parrot()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(manager.open(&id("busy"), parrot()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(busy.prompt("More").await.unwrap_err().kind(), ErrorKind::Draining);
    let error = idle.prompt("More").await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    assert_eq!(feed.news().await, ["idle closed"]);
    gate.open();
    in_time(down).await.unwrap().unwrap();
    let tree = stored(store.beneath(), &id("busy")).await;
    assert_eq!(tree.history().iter().map(|said| said.text()).collect::<Vec<_>>(), ["Hi", "Half"]);
    // Operations that need only the store still work.
    manager.rename(&id("busy"), Some("Talk")).await.unwrap();
    manager.delete(&id("idle")).await.unwrap();
    manager.close(&id("idle")).await.unwrap();
    let news = feed.closed().await;
    assert_eq!(news.iter().filter(|news| *news == "busy closed").count(), 1, "{news:?}");
}

#[tokio::test(start_paused = true)]
async fn grace_is_over_runs_are_interrupted_and_kept_or_cancelled() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let half = create(&manager, "half", scripted([Step::new().then_text(["Half"]).hang()])).await;
    let nothing = create(&manager, "nothing", scripted([Step::new().hang()])).await;
    for session in [&half, &nothing] {
        session.prompt("Hi").await.unwrap();
    }
    settle().await;
    let begun = Instant::now();
    in_time(manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(20)))).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 20);
    let tree = stored(store.beneath(), &id("half")).await;
    assert_eq!(tree.history().iter().map(|said| said.text()).collect::<Vec<_>>(), ["Hi", "Half"]);
    assert!(stored(store.beneath(), &id("nothing")).await.is_empty());
}

struct Asks;

#[async_trait]
impl AgentCallbacks for Asks {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause(Value::Null)
    }
}

#[tokio::test(start_paused = true)]
async fn paused_and_queued_runs_do_not_outlast_the_grace() {
    let store = CommandedStore::default();
    let manager = store.manager().max_turns(1).build();
    let paused =
        create(&manager, "paused", scripted([Step::tool_use("t1", "x", json!({}))]).callbacks(Asks)).await;
    paused.prompt("Hi").await.unwrap();
    settle().await;
    for name in ["busy", "queued"] {
        let session = create(&manager, name, scripted([Step::new().then_text(["Half"]).hang()])).await;
        session.prompt("Hi").await.unwrap();
        settle().await;
    }
    let begun = Instant::now();
    in_time(manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(5)))).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 5);
    stored(store.beneath(), &id("paused")).await.history().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_and_loading_openings_are_refused() {
    let store = CommandedStore::default();
    let manager = store.manager().max_open(2).build();
    create(&manager, "stored", parrot()).await;
    manager.close(&id("stored")).await.unwrap();
    let _a = manager.create_with_id(&id("a"), parrot()).await.unwrap();
    store.loads([Act::Hang]);
    let loading = opening(&manager, "stored", parrot());
    settle().await;
    let waiting = opening(&manager, "b", parrot());
    let behind = opening(&manager, "stored", parrot());
    settle().await;
    let feed = Feed::of(&manager);
    let begun = Instant::now();
    in_time(manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(60)))).await.unwrap();
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
    for opened in [loading, waiting, behind] {
        assert_eq!(in_time(opened).await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    let mut news = feed.closed().await;
    news.sort_unstable();
    assert_eq!(news, ["a closed", "b given up"]);
}

#[tokio::test(start_paused = true)]
async fn deletion_hangs_shutdown_ends_by_its_deadline() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    create(&manager, "a", parrot()).await;
    store.deletes([Act::Hang]);
    let deleting = manager.clone();
    tokio::spawn(async move { deleting.delete(&id("a")).await });
    settle().await;
    let begun = Instant::now();
    in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(5)))).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 15);
}

struct Endless;

#[async_trait]
impl AgentCallbacks for Endless {
    async fn terminate(&mut self, _: &EndReason, _: &State) {
        std::future::pending::<()>().await;
    }
}

#[tokio::test(start_paused = true)]
async fn terminate_hangs_the_deadline_ends_it() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let session = create(&manager, "a", parrot().callbacks(Endless)).await;
    let other = create(&manager, "b", parrot()).await;
    session.ask("Hi").await.unwrap();
    let begun = Instant::now();
    let down = shutting(&manager, secs(5), secs(10));
    assert_eq!(in_time(other.ended()).await.reason, EndReason::Stopped);
    assert!(begun.elapsed() < secs(1), "the hanging session does not delay the other");
    in_time(down).await.unwrap().unwrap();
    assert!(begun.elapsed() <= secs(11), "{:?}", begun.elapsed());
    assert_eq!(stored(store.beneath(), &id("a")).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn store_is_down_the_error_names_the_unsaved_conversations() {
    let store = CommandedStore::default();
    let manager = store.manager().titles(Titles::Off).build();
    for name in ["a", "b", "c"] {
        create(&manager, name, parrot()).await.ask("Hi").await.unwrap();
    }
    tokio::time::sleep(secs(1)).await;
    store.writes_fail(true);
    for name in ["a", "c"] {
        manager.get(&id(name)).unwrap().ask("Again").await.unwrap();
    }
    let lost = manager.get(&id("a")).unwrap();
    let begun = Instant::now();
    let error = in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(5)))).await.unwrap_err();
    assert!(begun.elapsed() <= secs(16), "{:?}", begun.elapsed());
    assert_eq!(names(&error), ["a", "c"]);
    for (_, error) in incomplete(&error) {
        assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
        assert!(error.member("error").is_some(), "{error:?}");
    }
    // The unsaved turn can be read as long as a handle exists.
    assert_eq!(lost.end().unwrap().snapshot.unwrap().unsaved.len(), 2);
    assert!(manager.list_open().is_empty());
    in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(5)))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn more_than_three_sessions_unsaved_the_error_names_three_and_counts_the_others() {
    let store = CommandedStore::default();
    let manager = store.manager().titles(Titles::Off).build();
    let all = ["a", "b", "c", "d", "e"];
    for name in all {
        create(&manager, name, parrot()).await.flush(secs(1)).await.unwrap();
    }
    store.writes_fail(true);
    for name in all {
        manager.get(&id(name)).unwrap().ask("Hi").await.unwrap();
    }
    let error = in_time(manager.shutdown(secs(10))).await.unwrap_err();
    assert_eq!(names(&error), all);
    let text = error.to_string();
    assert!(text.starts_with("5 of the sessions could not be ended completely: "), "{text}");
    assert_eq!(text.matches("2 messages are not in the store").count(), 3, "{text}");
    assert!(text.ends_with("; and 2 more"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn two_shutdowns_at_once_return_the_same() {
    let store = CommandedStore::default();
    let manager = store.manager().titles(Titles::Off).build();
    let session = create(&manager, "a", parrot()).await;
    session.flush(secs(1)).await.unwrap();
    store.writes_fail(true);
    session.ask("Hi").await.unwrap();
    let one = shutting(&manager, secs(5), secs(10));
    let two = shutting(&manager, secs(5), secs(10));
    for down in [one, two] {
        assert_eq!(names(&in_time(down).await.unwrap().unwrap_err()), ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_dropped_and_repeated_finishes() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let gate = Gate::new();
    let session = create(&manager, "a", held(&gate)).await;
    session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let feed = Feed::of(&manager);
    let dropped =
        tokio::time::timeout(secs(5), manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(60))))
            .await;
    assert!(dropped.is_err());
    assert!(session.end().is_none());
    assert_eq!(session.prompt("More").await.unwrap_err().kind(), ErrorKind::Draining);
    assert_eq!(manager.create(parrot()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    gate.open();
    session.wait_until_idle().await.unwrap();
    in_time(manager.shutdown(Shutdown::within(secs(60)).with_grace(secs(60)))).await.unwrap();
    assert_eq!(feed.closed().await.last().unwrap(), "a closed");
    assert_eq!(stored(store.beneath(), &id("a")).await.len(), 2);
}

/// Callbacks with which the agent prompts itself endlessly.
struct Driven;

#[async_trait]
impl AgentCallbacks for Driven {
    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, state: &mut State) -> Option<Prompt> {
        let agent = state.agent().upgrade()?;
        tokio::spawn(async move { agent.notify(()).await });
        Some(Prompt::from("On and on"))
    }
}

#[tokio::test(start_paused = true)]
async fn agent_prompts_itself_for_ever_shutdown_ends_it() {
    let store = CommandedStore::default();
    let manager = store.manager().build();
    let provider =
        ScriptedProvider::from_fn(|_| Step::new().wait(Duration::from_millis(50)).then_text(["Yes."]).stop());
    let agent = Agent::builder().model(provider.model()).callbacks(Driven);
    let session = create(&manager, "a", agent).await;
    session.notify(()).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    let begun = Instant::now();
    in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(5)))).await.unwrap();
    assert!(begun.elapsed() <= secs(6), "{:?}", begun.elapsed());
    let left = session.end().unwrap().snapshot.unwrap();
    assert_eq!(stored(store.beneath(), &id("a")).await, left.tree);
    assert!(left.tree.len() > 10);
}

#[tokio::test(start_paused = true)]
async fn controllers_receive_the_end() {
    let manager = CommandedStore::default().manager().build();
    let mut opened = manager.create(parrot()).await.unwrap();
    let mut controller = opened.subscription.take().unwrap();
    assert_eq!(controller.mode(), Mode::Controller);
    in_time(manager.shutdown(Shutdown::within(secs(10)).with_grace(secs(5)))).await.unwrap();
    match in_time(controller.next()).await {
        Some(Update::Closed(end)) => assert_eq!(end.reason, EndReason::Stopped),
        other => panic!("{other:?}"),
    }
}

// ---- in mid-flight, on the file system ----

/// Counts the committed messages of this session until the session ends.
async fn committed(session: Session) -> (ConversationId, usize) {
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    let id = session.id().clone();
    drop(session);
    // The snapshot contains the messages committed so far.
    let mut messages = events.snapshot().unwrap().tree.len();
    loop {
        match events.next().await {
            Some(Update::Event(numbered)) => {
                if let SessionEvent::Agent(event) = &*numbered.event
                    && let Event::Turn { response, .. } = &**event
                {
                    messages += response.messages.len();
                }
            }
            Some(Update::Closed(_)) => return (id, messages),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_in_mid_flight_loses_no_committed_turn() {
    let folder = env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
    fs::create_dir(&folder).unwrap();
    let mut in_all = 0;
    for round in 0..50_u64 {
        let opened = FileSystemStore::builder(&folder).durability(Durability::Process).open().await;
        let store: Arc<dyn Store> = Arc::new(opened.unwrap());
        let manager = Manager::builder(Arc::clone(&store)).max_turns(6).build();
        let mut watched = Vec::new();
        for nth in 0..8 {
            let provider = ScriptedProvider::from_fn(move |_| {
                let pause = Duration::from_micros(200 + 150 * nth);
                Step::new()
                    .then_text(["So ", "much "])
                    .wait(pause)
                    .more(omni_agent::provider::custom::Part::Text("to say.".into()))
                    .stop()
            });
            let start = alone(Agent::builder().model(provider.model()));
            let session = manager.create(start).await.unwrap().session;
            watched.push(tokio::spawn(committed(session.clone())));
            // Prompts the session again and again without a pause, until the session refuses a prompt.
            tokio::spawn(async move { while session.ask("And then?").await.is_ok() {} });
        }
        tokio::time::sleep(Duration::from_millis(5 + round % 10 * 3)).await;
        let grace = Duration::from_millis(round % 3 * 2);
        manager.shutdown(Shutdown::within(secs(10)).with_grace(grace)).await.unwrap();
        for watched in watched {
            let (id, messages) = tokio::time::timeout(secs(10), watched).await.unwrap().unwrap();
            in_all += messages;
            match store.load(&id).await {
                Ok(stored) => assert_eq!(stored.nodes.len(), messages, "round {round}"),
                Err(_) => assert_eq!(messages, 0, "round {round}"),
            }
        }
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(in_all > 50 * 8, "too few messages for a useful test: {in_all}");
}

//! Creating and opening: each id is opened only once, no matter how many callers there are and what fails.

use futures_util::future::join_all;
use omni_agent::{
    Error, ErrorKind,
    agent::AgentBuilder,
    manager::{Manager, OpenOptions, OpenedSession},
    session::Mode,
    store::{ConversationId, MemoryStore},
    subscription::EndReason,
    testing::Gate,
};
use tokio::task::JoinHandle;

use crate::rig::{
    Act, Call, Hooks, Lives, MoodyStore, Watch, held, id, in_time, not_yet, parrot, poll_times, scripted,
    secs, settle, tasks,
};

type Opening = JoinHandle<Result<OpenedSession, Error>>;

fn opening(manager: &Manager, id: &ConversationId, agent: AgentBuilder) -> Opening {
    let (manager, id) = (manager.clone(), id.clone());
    tokio::spawn(async move { manager.open(&id, agent).await })
}

#[track_caller]
fn is_taken(outcome: Result<OpenedSession, Error>) {
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn open_by_many_callers_loads_once_and_gives_all_the_same_session() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let kept = store.put("kept").await;
    let gate = Gate::new();
    store.make(Call::Load, Act::Wait(gate.clone()));
    let manager = store.manager().build();
    let callers: Vec<_> =
        (0..50).map(|_| opening(&manager, &kept, parrot().callbacks(Hooks::of(&lives)))).collect();
    in_time(gate.reached()).await;
    gate.open();
    let opened: Vec<_> = join_all(callers).await.into_iter().map(|opened| opened.unwrap().unwrap()).collect();
    assert_eq!(opened.iter().filter(|opened| opened.started).count(), 1);
    assert_eq!(store.calls(Call::Load, &kept), 1);
    assert_eq!(lives.begun(&kept), 1);
    assert_eq!(opened[0].session.controllers(), 50);
}

#[tokio::test(start_paused = true)]
async fn open_of_an_open_conversation_uses_only_the_subscription_of_the_options() {
    let store = MoodyStore::new();
    let manager = store.manager().idle_shutdown(None).build();
    let name = id("one");
    let first = manager
        .create_with_id(&name, OpenOptions::new(parrot().system("first")).title("First"))
        .await
        .unwrap();
    assert!(first.started);
    let start = OpenOptions::new(parrot().system("second"))
        .title("Second")
        .idle_shutdown(Some(secs(0)))
        .subscribe(Some(Mode::Observer));
    let second = manager.open(&name, start).await.unwrap();
    assert!(!second.started);
    assert_eq!(second.subscription.as_ref().unwrap().mode(), Mode::Observer);
    assert_eq!(second.session.state().await.unwrap().config().settings.system.as_deref(), Some("first"));
    assert_eq!(second.session.title().await.unwrap().as_deref(), Some("First"));
    drop(first);
    tokio::time::sleep(secs(1000)).await;
    assert!(manager.get(&name).is_some(), "the idle shutdown of the second call must not apply");
}

#[tokio::test(start_paused = true)]
async fn open_of_a_stored_conversation_applies_the_options() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let start = OpenOptions::new(parrot().system("mine")).title("Not its own").idle_shutdown(Some(secs(7)));
    let opened = manager.open(&kept, start).await.unwrap();
    assert!(opened.started);
    assert_eq!(opened.session.state().await.unwrap().config().settings.system.as_deref(), Some("mine"));
    assert_eq!(
        opened.session.title().await.unwrap(),
        None,
        "a stored conversation keeps its title or has none"
    );
    let session = opened.session.clone();
    drop(opened);
    tokio::time::sleep(secs(6)).await;
    assert!(manager.get(&kept).is_some());
    tokio::time::sleep(secs(2)).await;
    assert!(manager.get(&kept).is_none());
    assert_eq!(session.ended().await.reason, EndReason::Idle);
}

#[tokio::test(start_paused = true)]
async fn open_of_a_missing_conversation_is_not_found_and_leaves_nothing() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    let outcome = manager.open(&id("missing"), parrot()).await;
    let not_found = |error: &Error| error.kind() == ErrorKind::NotFound;
    assert!(outcome.as_ref().is_err_and(not_found), "{outcome:?}");
    settle().await;
    watch.catch_up();
    assert!(watch.seen.is_empty());
    assert!(manager.list_open().is_empty());
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn open_with_a_failing_first_load_is_retried_by_the_others() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let kept = store.put("kept").await;
    let gate = Gate::new();
    let mut first = true;
    let wait = gate.clone();
    store.mood(move |call, _| match call {
        Call::Load if std::mem::take(&mut first) => Act::Wait(wait.clone()),
        _ => Act::Work,
    });
    let manager = store.manager().build();
    let failing = opening(&manager, &kept, parrot().callbacks(Hooks::of(&lives).init(Act::Fail)));
    in_time(gate.reached()).await;
    let others: Vec<_> =
        (0..5).map(|_| opening(&manager, &kept, parrot().callbacks(Hooks::of(&lives)))).collect();
    settle().await;
    gate.open();
    assert!(failing.await.unwrap().is_err());
    let opened: Vec<_> = join_all(others).await.into_iter().map(|opened| opened.unwrap().unwrap()).collect();
    assert_eq!(opened.iter().filter(|opened| opened.started).count(), 1);
    assert_eq!(store.calls(Call::Load, &kept), 2);
    lives.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn open_with_a_store_that_always_fails_is_an_error_for_all() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    store.make(Call::Load, Act::Fail);
    let manager = store.manager().build();
    let callers: Vec<_> = (0..5).map(|_| opening(&manager, &kept, parrot())).collect();
    for caller in callers {
        assert!(in_time(caller).await.unwrap().is_err());
    }
    store.mood(|_, _| Act::Work);
    assert!(manager.open(&kept, parrot()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn open_with_a_panic_in_load_or_init_is_an_error_and_the_next_open_works() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    store.script(Call::Load, [Act::Panic]);
    let outcome = manager.open(&kept, parrot()).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Internal);
    let outcome = manager.open(&kept, parrot().callbacks(Hooks::of(&lives).init(Act::Panic))).await;
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(manager.open(&kept, parrot()).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn open_with_a_slow_load_does_not_delay_other_ids() {
    let store = MoodyStore::new();
    let (slow, quick) = (store.put("slow").await, store.put("quick").await);
    let only = slow.clone();
    store.mood(
        move |call, id| if call == Call::Load && *id == only { Act::Slow(secs(20)) } else { Act::Work },
    );
    let manager = store.manager().build();
    let waiting = opening(&manager, &slow, parrot());
    settle().await;
    let begun = tokio::time::Instant::now();
    manager.open(&quick, parrot()).await.unwrap();
    manager.create(parrot()).await.unwrap();
    assert!(begun.elapsed() < secs(1));
    assert!(waiting.await.unwrap().unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn open_with_a_hanging_load_is_abandoned_some_time_after_its_caller() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    store.script(Call::Load, [Act::Hang]);
    let manager = store.manager().close_timeout(secs(30)).build();
    let caller = opening(&manager, &kept, parrot());
    settle().await;
    let mut other = opening(&manager, &kept, parrot());
    not_yet(&mut other).await;
    caller.abort();
    assert!(in_time(other).await.unwrap().unwrap().started);
    assert_eq!(store.calls(Call::Load, &kept), 2);
}

#[tokio::test(start_paused = true)]
async fn open_during_close_waits_and_loads_again() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let manager = store.manager().build();
    let name = id("one");
    let gate = Gate::new();
    let hooks = Hooks::of(&lives).terminate(Act::Wait(gate.clone()));
    let first = manager.create_with_id(&name, parrot().callbacks(hooks)).await.unwrap();
    first.session.ask("Hi").await.unwrap();
    let closing = tokio::spawn({
        let (manager, name) = (manager.clone(), name.clone());
        async move { manager.close(&name).await }
    });
    in_time(gate.reached()).await;
    let mut again = opening(&manager, &name, parrot().callbacks(Hooks::of(&lives)));
    assert!(poll_times(&mut again, 20).await.is_none());
    gate.open();
    closing.await.unwrap().unwrap();
    let again = again.await.unwrap().unwrap();
    assert!(again.started);
    assert_eq!(again.session.tree().await.unwrap().len(), 2);
    assert!(first.session.end().is_some());
    lives.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn open_while_a_session_ends_by_itself_waits_and_loads_again() {
    for mode in [Some(Mode::Controller), Some(Mode::Observer), None] {
        let (store, lives) = (MoodyStore::new(), Lives::default());
        let manager = store.manager().build();
        let name = id("one");
        let gate = Gate::new();
        let hooks = Hooks::of(&lives).terminate(Act::Wait(gate.clone()));
        let first = manager.create_with_id(&name, parrot().callbacks(hooks)).await.unwrap();
        first.session.ask("Hi").await.unwrap();
        let stopping = first.session.clone();
        let stopping = tokio::spawn(async move { stopping.stop(secs(100)).await });
        in_time(gate.reached()).await;
        let start = OpenOptions::new(parrot().callbacks(Hooks::of(&lives))).subscribe(mode);
        let mut again = Box::pin(manager.open(&name, start));
        assert!(poll_times(&mut again, 20).await.is_none(), "{mode:?}");
        gate.open();
        let again = in_time(again).await.unwrap();
        assert!(again.started, "{mode:?}");
        assert!(again.session.end().is_none());
        stopping.await.unwrap().unwrap();
        lives.assert_sound();
    }
}

#[tokio::test(start_paused = true)]
async fn create_with_id_taken_is_an_error() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let hooked = || parrot().callbacks(Hooks::of(&lives));
    is_taken(manager.create_with_id(&kept, hooked()).await);
    manager.open(&kept, hooked()).await.unwrap();
    is_taken(manager.create_with_id(&kept, hooked()).await);
    assert_eq!(lives.begun(&kept), 1, "a taken id is detected before `init`");
}

#[tokio::test(start_paused = true)]
async fn create_with_id_by_many_callers_succeeds_for_one() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let managers = [store.manager().build(), store.manager().build()];
    let name = id("new");
    store.make(Call::Create, Act::Slow(secs(1)));
    let creating = (0..20).map(|number| {
        let (manager, name) = (managers[number % 2].clone(), name.clone());
        async move { manager.create_with_id(&name, parrot()).await }
    });
    let (made, refused): (Vec<_>, Vec<_>) = join_all(creating).await.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1);
    refused.into_iter().for_each(is_taken);
    lives.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn create_with_id_during_an_unsuccessful_open_creates_it() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let name = id("new");
    let gate = Gate::new();
    store.make(Call::Load, Act::Wait(gate.clone()));
    let looking = opening(&manager, &name, parrot());
    in_time(gate.reached()).await;
    let mut creating = Box::pin(manager.create_with_id(&name, parrot()));
    assert!(poll_times(&mut creating, 20).await.is_none());
    gate.open();
    assert!(in_time(creating).await.unwrap().started);
    // The first call, `open`, either did not find the conversation or tried again. Its result may be an error or a
    // session.
    let _ = looking.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn create_with_id_during_delete_creates_it_afterwards() {
    let store = MoodyStore::new();
    let kept = store.put("kept").await;
    let manager = store.manager().build();
    let gate = Gate::new();
    store.make(Call::Delete, Act::Wait(gate.clone()));
    let deleting = tokio::spawn({
        let (manager, kept) = (manager.clone(), kept.clone());
        async move { manager.delete(&kept).await }
    });
    in_time(gate.reached()).await;
    let mut creating = Box::pin(manager.create_with_id(&kept, parrot()));
    assert!(poll_times(&mut creating, 20).await.is_none());
    gate.open();
    deleting.await.unwrap().unwrap();
    assert!(in_time(creating).await.unwrap().started);
}

#[tokio::test(start_paused = true)]
async fn create_generates_distinct_ids_that_are_stored_with_the_first_turn() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let (one, two) =
        (manager.create(parrot()).await.unwrap(), manager.create(OpenOptions::new(parrot())).await.unwrap());
    assert_ne!(one.session.id(), two.session.id());
    assert!(manager.list(omni_agent::store::Page::default()).await.unwrap().is_empty());
    one.session.ask("Hi").await.unwrap();
    one.session.flush(secs(1)).await.unwrap();
    let listed = manager.list(omni_agent::store::Page::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].summary.id, *one.session.id());
}

#[tokio::test(start_paused = true)]
async fn create_with_an_agent_that_cannot_start_is_an_error_and_leaves_nothing() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let manager = store.manager().build();
    let mut watch = Watch::new(&manager);
    for act in [Act::Fail, Act::Panic] {
        let hooks = Hooks::of(&lives).init(act);
        assert!(manager.create_with_id(&id("new"), parrot().callbacks(hooks)).await.is_err());
    }
    settle().await;
    watch.assert_agrees(&manager);
    assert!(watch.seen.is_empty());
    assert_eq!((tasks(), lives.living()), (0, 0));
    manager.create_with_id(&id("new"), parrot()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn create_with_id_store_fails_waits_for_the_end_of_its_agent() {
    for act in [Act::Fail, Act::Panic] {
        let (store, lives) = (MoodyStore::new(), Lives::default());
        let manager = store.manager().build();
        store.script(Call::Create, [act]);
        let hooks = Hooks::of(&lives).terminate(Act::Slow(secs(5)));
        assert!(manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.is_err());
        assert_eq!((lives.begun(&id("one")), lives.living()), (1, 0));
        manager.create_with_id(&id("one"), parrot()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn stop_with_zero_deadline_leaves_no_agent_for_the_next_session() {
    let (store, lives) = (MoodyStore::new(), Lives::default());
    let manager = store.manager().build();
    let hooks = Hooks::of(&lives).terminate(Act::Slow(secs(5)));
    let one = manager.create_with_id(&id("one"), parrot().callbacks(hooks)).await.unwrap();
    let _ = one.session.stop(secs(0)).await;
    assert_eq!(lives.living(), 0);
    manager.open(&id("one"), parrot().callbacks(Hooks::of(&lives))).await.unwrap();
    lives.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn open_of_a_busy_session_joins_it() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let gate = Gate::new();
    let first = manager.create(scripted([held(&gate, "Well")])).await.unwrap();
    first.session.prompt("Hi").await.unwrap();
    in_time(gate.reached()).await;
    let joined = manager.open(first.session.id(), parrot()).await.unwrap();
    assert!(!joined.started);
    assert_eq!(
        joined.subscription.unwrap().snapshot().unwrap().agent.status,
        omni_agent::agent::Status::Busy
    );
    gate.open();
    first.session.wait_until_idle().await.unwrap();
    assert_eq!(first.session.tree().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn open_or_create_creates_the_conversation_once_and_then_finds_it() {
    let manager = Manager::builder(std::sync::Arc::new(MemoryStore::new())).build();
    let id = ConversationId::new("either").unwrap();
    let agent = crate::basics::agent;
    let [first, second] =
        join_all([manager.open_or_create(&id, agent()), manager.open_or_create(&id, agent())])
            .await
            .try_into()
            .unwrap();
    assert_ne!(first.unwrap().started, second.unwrap().started);
    manager.get(&id).unwrap().ask("Hi").await.unwrap();
    manager.close(&id).await.unwrap();
    let again = manager.open_or_create(&id, agent()).await.unwrap();
    assert!(again.started);
    assert_eq!(again.session.tree().await.unwrap().len(), 2);
}

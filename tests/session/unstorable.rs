//! Writes that the store can never accept. The turns before such a write are stored. The session then ends, and its
//! other turns can still be read.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, Durable},
    message::Usage,
    run::RunOutcome,
    session::{Session, StoreReport},
    store::{
        ConversationId, Listing, MemoryStore, Store, StoreError,
        custom::{Change, Commit, StateChange, StoreTraits, StoredState, TurnChange, Version, Write},
    },
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
};

use crate::support::{
    Act, ScriptedStore, Tried, configure, created, id, node, parrot, report, secs, tree_in, watch,
};

/// A store that refuses messages, ends of runs and system prompts that contain a certain word, and commits that contain
/// too many nodes.
struct Picky {
    beneath: MemoryStore,
    most_nodes: usize,
}

fn picky(most_nodes: usize) -> Arc<dyn Store> {
    Arc::new(Picky { beneath: MemoryStore::new(), most_nodes })
}

fn refused(problem: &str) -> StoreError {
    StoreError::Unstorable { id: id("talk"), problem: problem.to_owned() }
}

fn check(state: Option<&StoredState>) -> Result<(), StoreError> {
    match state.and_then(|state| state.settings.system.as_deref()) {
        Some(system) if system.contains("poison") => Err(refused("poison in the state")),
        _ => Ok(()),
    }
}

fn check_commit(commit: &Commit, most_nodes: usize) -> Result<(), StoreError> {
    check(commit.state.as_deref())?;
    if commit.nodes.len() > most_nodes {
        return Err(refused("too much"));
    }
    if commit.nodes.iter().any(|node| node.message().text().contains("poison")) {
        return Err(refused("poison in a message"));
    }
    match commit.turn.as_deref() {
        Some(TurnChange::End(end)) if serde_json::to_string(end).unwrap().contains("poison") => {
            Err(refused("poison in the end of a run"))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Store for Picky {
    forward!(self.beneath: load, summary, list, delete);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_turns(true)
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        match change {
            Change::Create(state) | Change::State(StateChange::Whole(state)) => check(Some(state))?,
            Change::Commit(commit) => check_commit(commit, self.most_nodes)?,
            _ => {}
        }
        self.beneath.write(id, write, change).await
    }
}

/// Returns a session whose first write waits at a gate. Everything that follows this write is therefore saved together.
async fn held_up(most_nodes: usize) -> (Session, ScriptedStore, Gate) {
    let store = ScriptedStore::over(picky(most_nodes), []);
    let session = created(&store, "talk", parrot()).await;
    let gate = Gate::new();
    let acts = gate.clone();
    let mut first = true;
    store.otherwise(move || if std::mem::take(&mut first) { Act::Wait(acts.clone()) } else { Act::Work });
    session.ask("Zero").await.unwrap();
    gate.reached().await;
    (session, store, gate)
}

#[tokio::test(start_paused = true)]
async fn unstorable_turn_alone_ends_the_session_and_stays_readable() {
    let store = ScriptedStore::over(picky(100), []);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let mut events = watch(&session).await;
    session.ask("poison").await.unwrap();
    let StoreReport::Lost { error } = report(&mut events).await else { panic!() };
    assert!(error.contains("poison in a message"), "{error}");
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Unstorable);
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, [node(3), node(4)]);
    assert_eq!(last.tree.node(node(3)).unwrap().message().text(), "poison");
    assert_eq!(last.store, Some(StoreReport::Lost { error }));
    assert_eq!(store.tree(session.id()).await.len(), 2);
    // The store was asked only once to store the unstorable commit.
    assert_eq!(store.words(), ["commit", "commit"]);
    let stopped = session.stop(secs(1)).await;
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(error.to_string().contains("poison"), "{error}");
    let error = session.prompt("More").await.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"unstorable".into())));
}

#[tokio::test(start_paused = true)]
async fn unsupported_commit_ends_the_session_as_unstorable() {
    let store = ScriptedStore::over(picky(100), []);
    let session = created(&store, "talk", parrot()).await;
    store.otherwise(|| Act::Refuse(StoreError::unsupported("commits")));
    session.ask("One").await.unwrap();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Unstorable);
    let last = end.snapshot.unwrap();
    let Some(StoreReport::Lost { error }) = &last.store else { panic!("{:?}", last.store) };
    assert!(error.contains("commits"), "{error}");
    assert_eq!(last.unsaved, [node(1), node(2)]);
}

#[tokio::test(start_paused = true)]
async fn unstorable_turn_among_others_earlier_turns_are_written() {
    let (session, store, gate) = held_up(100).await;
    for said in ["One", "Two", "poison", "Three"] {
        session.ask(said).await.unwrap();
    }
    session.tree().await.unwrap();
    gate.open();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Unstorable);
    let last = end.snapshot.unwrap();
    assert_eq!(last.unsaved, [node(7), node(8), node(9), node(10)]);
    assert_eq!(last.tree.len(), 10);
    let kept = store.tree(session.id()).await;
    assert_eq!(kept.len(), 6);
    assert_eq!(kept.head(), Some(node(6)));
    let ids: Vec<_> = store.tried().iter().map(Tried::nodes).collect();
    // If a write is refused, it is divided in half until it contains only one turn.
    let halves = [vec![3, 4, 5, 6], vec![7, 8, 9, 10], vec![7, 8]];
    assert_eq!(ids[..2], [vec![1, 2], (3..=10).collect()]);
    assert_eq!(ids[2..], halves);
    store.assert_sound();
    // The conversation can be opened again, and it continues.
    let again = Session::builder(store.as_dyn()).agent(parrot()).open(id("talk")).await.unwrap();
    again.ask("Four").await.unwrap();
    again.flush(secs(1)).await.unwrap();
}

/// The store refuses the commit as a whole, but each turn in it is valid. Nothing is lost.
#[tokio::test(start_paused = true)]
async fn unstorable_together_all_turns_are_written_separately() {
    let (session, store, gate) = held_up(2).await;
    let mut events = watch(&session).await;
    session.ask("One").await.unwrap();
    session.again(node(3)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(2)).await.unwrap();
    session.run("Root").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(4)).await.unwrap();
    session.set_title(Some("Talk")).await.unwrap();
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    gate.open();
    session.flush(secs(10)).await.unwrap();
    let tree = session.tree().await.unwrap();
    assert_eq!(tree_in(&**store.beneath(), session.id()).await, tree);
    assert_eq!(tree.head(), Some(node(4)));
    let state = store.beneath().load(session.id()).await.unwrap().state;
    assert_eq!((state.title.as_deref(), state.settings.system.as_deref()), (Some("Talk"), Some("Be brief.")));
    while !matches!(
        report(&mut events).await,
        StoreReport::Saved { what: omni_agent::session::SavedPart::State, .. }
    ) {}
    assert!(session.end().is_none());
    assert_eq!(session.snapshot().await.unwrap().unsaved, []);
    // From here on, several turns are written together again.
    let tried = store.tried().len();
    session.ask("Two").await.unwrap();
    session.flush(secs(10)).await.unwrap();
    assert_eq!(store.tried().len(), tried + 1);
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn unstorable_state_with_a_turn_the_turn_is_written() {
    let (session, store, gate) = held_up(100).await;
    session.ask("One").await.unwrap();
    configure(&session, |config| config.settings.system = Some("poison".into())).await;
    session.tree().await.unwrap();
    gate.open();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Unstorable);
    assert_eq!(end.snapshot.unwrap().unsaved, []);
    assert_eq!(store.tree(session.id()).await.len(), 4);
    assert_eq!(store.beneath().load(session.id()).await.unwrap().state.settings.system, None);
    let stopped = session.stop(secs(1)).await;
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&0.into())));
    assert!(error.member("error").is_some(), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn unstorable_creation_ends_the_session() {
    let store = ScriptedStore::over(picky(100), []);
    let agent = parrot().system("poison");
    let session = Session::builder(store.as_dyn()).agent(agent).create().await.unwrap();
    session.ask("One").await.unwrap();
    let end = session.ended().await;
    assert_eq!(end.reason, EndReason::Unstorable);
    assert_eq!(end.snapshot.unwrap().unsaved, [node(1), node(2)]);
    assert!(store.list(&Listing::default()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unstorable_turn_while_stopping_is_reported_by_stop() {
    let (session, store, gate) = held_up(100).await;
    session.ask("One").await.unwrap();
    session.ask("poison").await.unwrap();
    session.tree().await.unwrap();
    let start = tokio::time::Instant::now();
    let (stopped, ()) = tokio::join!(session.stop(secs(20)), async { gate.open() });
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(error.to_string().contains("poison"), "{error}");
    assert!(start.elapsed() < secs(1));
    assert_eq!(store.tree(session.id()).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn unstorable_turn_before_the_store_fails_the_rest_is_written_when_it_works() {
    let (session, store, gate) = held_up(2).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    session.tree().await.unwrap();
    // The store refuses the commit of both turns. It then fails for a while.
    let mut writes = 0;
    store.otherwise(move || {
        writes += 1;
        if (2..5).contains(&writes) { Act::Fail } else { Act::Work }
    });
    gate.open();
    session.flush(secs(60)).await.unwrap();
    assert_eq!(store.tree(session.id()).await, session.tree().await.unwrap());
    let tried = store.tried();
    assert!(tried[2..6].iter().all(|attempt| attempt.what == tried[2].what), "{tried:?}");
}

/// The changes before the unstorable turn add a branch that is not on the path.
#[tokio::test(start_paused = true)]
async fn unstorable_turn_after_a_move_between_branches_keeps_the_chosen_branch() {
    let (session, store, gate) = held_up(100).await;
    session.again(node(1)).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(2)).await.unwrap();
    session.ask("poison").await.unwrap();
    gate.open();
    assert_eq!(session.ended().await.reason, EndReason::Unstorable);
    assert_eq!(store.tree(&id("talk")).await.head(), Some(node(2)));

    let load = || Session::builder(store.as_dyn()).agent(parrot()).open(id("talk"));
    let session = load().await.unwrap();
    session.navigate(None).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    let session = load().await.unwrap();
    session.navigate(node(1)).await.unwrap();
    assert_eq!(session.tree().await.unwrap().head(), Some(node(2)));
}

/// The rows of the usage ledger are written first, and then the state alone. The store refuses the state, which ends
/// the session. No write is repeated.
#[tokio::test(start_paused = true)]
async fn unstorable_state_with_rows_of_the_ledger_ends_the_session() {
    let store = ScriptedStore::over(picky(100), []);
    store.keep_usage();
    let usage = Usage::default().with_input(5);
    let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Hello"]).usage(usage).stop());
    let agent = Agent::builder().model(provider.model());
    let session = created(&store, "talk", agent).await;
    let gate = Gate::new();
    let acts = gate.clone();
    let mut first = true;
    store.otherwise(move || if std::mem::take(&mut first) { Act::Wait(acts.clone()) } else { Act::Work });
    session.ask("Zero").await.unwrap();
    gate.reached().await;
    session.ask("One").await.unwrap();
    configure(&session, |config| config.settings.system = Some("poison".into())).await;
    session.tree().await.unwrap();
    gate.open();
    let end = tokio::time::timeout(secs(60), session.ended()).await.expect("the writes repeat");
    assert_eq!(end.reason, EndReason::Unstorable);
    let stored = store.beneath().load(session.id()).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.used.requests), (4, 2));
    assert!(store.tried().len() < 10, "{} writes", store.tried().len());
}

#[tokio::test(start_paused = true)]
async fn unstorable_end_of_a_run_is_stored_without_its_prompts() {
    let store = picky(100);
    let provider = ScriptedProvider::new([Step::text("A").hang()]);
    let agent = Agent::builder().model(provider.model());
    let builder = Session::builder(Arc::clone(&store)).agent(agent).durable(Durable::InFlight);
    let session = builder.create_with_id(id("talk")).await.unwrap();
    session.prompt("poison").await.unwrap();
    session.prompt("staged").await.unwrap();
    assert!(store.load(&id("talk")).await.unwrap().turn.is_some());
    session.cancel().await.unwrap();
    let stored = store.load(&id("talk")).await.unwrap();
    assert_eq!(stored.turn, None, "the cancelled turn does not continue");
    let end = stored.last_run.unwrap();
    assert_eq!((end.outcome, end.unanswered, end.staged), (RunOutcome::Cancelled, vec![], vec![]));
}

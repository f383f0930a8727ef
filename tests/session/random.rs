//! Random concurrent operations on a session whose store is slow and sometimes fails. No matter when a subscriber
//! joins, the snapshot that it builds becomes equal to the session's snapshot. The path equals the agent's history, and
//! in the end the store contains everything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, TurnDecision},
    message::Role,
    provider::{ProviderError, ProviderErrorKind},
    run::Prompt,
    session::{Mode, Session, SessionSnapshot, SessionSubscription},
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, Version, Write},
    },
    subscription::{EventId, Update},
    testing::{ScriptedProvider, Step},
    tree::{Node, NodeId, Tree},
};
use proptest::{collection::vec, prelude::*};
use serde_json::json;
use tokio::time::sleep;

use crate::watch::{Hooks, echo, in_time};

#[derive(Clone, Debug)]
enum Op {
    Prompt,
    Ask,
    Regenerate(u64),
    Branch(Option<u64>),
    Navigate(Option<u64>),
    Title(u8),
    Configure(u8),
    Notify(bool),
    Cancel,
    Interrupt,
    Flush,
    Join,
    /// A subscriber joins that wants only this many messages.
    JoinTail(usize),
    /// A subscriber reads all updates that are ready.
    Read(usize),
    Rejoin(usize),
    /// All subscribers are compared with the session's snapshot.
    Check,
    Yield(usize),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let node = || 1..40_u64;
    prop_oneof![
        4 => Just(Op::Prompt),
        2 => Just(Op::Ask),
        4 => node().prop_map(Op::Regenerate),
        3 => proptest::option::of(node()).prop_map(Op::Branch),
        3 => proptest::option::weighted(0.8, node()).prop_map(Op::Navigate),
        1 => (0..3_u8).prop_map(Op::Title),
        1 => (0..3_u8).prop_map(Op::Configure),
        3 => any::<bool>().prop_map(Op::Notify),
        3 => Just(Op::Cancel),
        2 => Just(Op::Interrupt),
        1 => Just(Op::Flush),
        3 => Just(Op::Join),
        3 => (1..6_usize).prop_map(Op::JoinTail),
        2 => (0..8_usize).prop_map(Op::Read),
        1 => (0..8_usize).prop_map(Op::Rejoin),
        2 => Just(Op::Check),
        4 => (0..20_usize).prop_map(Op::Yield),
        6 => (1..40_u64).prop_map(Op::Wait),
    ]
}

/// A source of pseudo-random numbers with a seed.
#[derive(Clone, Debug)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    fn roll(&self, sides: u64) -> u64 {
        let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) % sides
    }
}

fn answer(dice: &Dice) -> Step {
    let pause = |step: Step| match dice.roll(3) {
        0 => step,
        _ => step.wait(Duration::from_millis(dice.roll(10))),
    };
    match dice.roll(10) {
        0 => pause(Step::new()).fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
        1 => pause(Step::new().then_text(["Half"])).panic("the provider broke"),
        2 | 3 => {
            let id = format!("t{}", dice.roll(1 << 40));
            pause(Step::new().then_text(["Let me see"])).then_tool_use(&id, "echo", json!({})).stop()
        }
        n => pause(pause(Step::new()).then_text([format!("Answer {n}")])).stop(),
    }
}

fn hooks(dice: &Dice) -> Hooks {
    let (of_turn, of_event) = (dice.clone(), dice.clone());
    Hooks::new()
        .on_turn(move |_, _| {
            let (wait, goes_on) = (of_turn.roll(5), of_turn.roll(4) == 0);
            async move {
                sleep(Duration::from_millis(wait)).await;
                if goes_on { TurnDecision::continue_with("Go on") } else { TurnDecision::Stop }
            }
        })
        .on_event(move |event, _| {
            let wait = of_event.roll(8);
            async move {
                if wait > 4 {
                    sleep(Duration::from_millis(wait)).await;
                }
                event.downcast_ref::<bool>().unwrap().then(|| Prompt::new("From an event"))
            }
        })
}

/// A store that is slow and that sometimes fails. It may fail before or after the write.
#[derive(Debug)]
struct Rough(MemoryStore, Dice);

#[derive(Debug, thiserror::Error)]
#[error("not now")]
struct NotNow;

#[async_trait]
impl Store for Rough {
    forward!(self.0: load, summary, list, delete);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        sleep(Duration::from_millis(self.1.roll(20))).await;
        let fate = self.1.roll(6);
        if fate == 0 {
            return Err(StoreError::failed("writing", NotNow));
        }
        let written = self.0.write(id, write, change).await?;
        let stored = self.0.load(id).await?;
        let head = stored.nodes.iter().find(|node| Some(node.id()) == stored.head);
        let bare = head.is_some_and(|head| {
            head.message().role == Role::User && head.message().tool_results().next().is_none()
        });
        assert!(!bare, "a stored head is an unanswered prompt");
        if fate == 1 { Err(StoreError::failed("hearing from the store", NotNow)) } else { Ok(written) }
    }
}

/// A subscriber that applies the updates that it receives to a snapshot.
struct Reader {
    events: SessionSubscription,
    view: SessionSnapshot,
    /// The limit of a reader of a tail.
    limit: Option<usize>,
}

impl Reader {
    async fn join(session: &Session) -> Self {
        let events = session.subscribe(Mode::Observer).await.unwrap();
        let view = events.snapshot().unwrap().as_ref().clone();
        Self { events, view, limit: None }
    }

    async fn join_tail(session: &Session, limit: usize) -> Self {
        let events = session.subscribe_tail(Mode::Observer, limit).await.unwrap();
        let view = events.snapshot().unwrap().as_ref().clone();
        Self { events, view, limit: Some(limit) }
    }

    fn take(&mut self, update: Update<SessionSnapshot, omni_agent::session::SessionEvent>) {
        match update {
            Update::Event(numbered) => {
                self.view.apply(&numbered).unwrap();
                assert_eq!(self.view.last, numbered.id);
            }
            Update::Resync(snapshot) => {
                if self.limit.is_none() {
                    check(&snapshot);
                }
                self.view = snapshot.as_ref().clone();
            }
            other => panic!("{other:?}"),
        }
    }

    async fn read_to(&mut self, last: EventId) {
        while self.view.last < last {
            let update = in_time(self.events.next()).await.unwrap();
            self.take(update);
        }
    }

    /// Reads all updates up to the session's snapshot, and compares the two snapshots. If the reader is already
    /// further, nothing is compared.
    async fn see(&mut self, truth: &SessionSnapshot) {
        self.read_to(truth.last).await;
        if self.view.last == truth.last {
            match self.limit {
                None => assert_eq!(self.view, *truth),
                Some(limit) => assert_is_tail(&self.view, truth, limit),
            }
        }
    }
}

/// Checks the conditions that every snapshot must meet.
fn check(snapshot: &SessionSnapshot) {
    assert_eq!(*snapshot.tree.history(), snapshot.agent.state.history, "{}", snapshot.tree);
    snapshot.agent.state.history.check().unwrap();
    let nodes: Vec<Node> = snapshot.tree.nodes().cloned().collect();
    let again = Tree::hydrate(nodes, snapshot.tree.head(), snapshot.tree.cursors()).unwrap();
    assert_eq!(again, snapshot.tree);
}

/// Asserts that `tail` is the whole snapshot, cut: at least `limit` messages of the path are present, if it has so many.
fn assert_is_tail(tail: &SessionSnapshot, whole: &SessionSnapshot, limit: usize) {
    let kept: Vec<&Node> = tail.tree.iter().collect();
    let path: Vec<&Node> = whole.tree.iter().collect();
    assert!(kept.len() >= limit.min(path.len()), "{} of {} messages", kept.len(), path.len());
    assert_eq!(kept, path[path.len() - kept.len()..]);
    let is_kept = |node: &Node| match node.parent() {
        Some(parent) => kept.iter().any(|kept| kept.id() == parent),
        None => tail.from.is_none(),
    };
    for (seen, node) in tail.tree.nodes().zip(whole.tree.nodes()) {
        let is_leaf = is_kept(node) && whole.tree.unanswered(node.parent()).any(|leaf| leaf == node);
        assert_eq!(seen.is_outline(), !kept.contains(&node) && !is_leaf, "{node:?}");
        let place = |node: &Node| (node.id(), node.parent(), node.message().role);
        assert_eq!(place(seen), place(node));
        assert!(!seen.is_outline() || seen.message().content.is_empty());
    }
    assert!(tail.tree.cursors().eq(whole.tree.cursors()));
    assert_eq!((tail.tree.len(), tail.tree.head()), (whole.tree.len(), whole.tree.head()));
    assert_eq!(tail.from, kept.first().filter(|first| first.parent().is_some()).map(|first| first.id()));
    assert!(kept.iter().map(|node| node.message()).eq(tail.agent.state.history.iter()));
    assert_eq!(*tail.tree.history(), tail.agent.state.history);
    let json = serde_json::to_string(tail).unwrap();
    let again: SessionSnapshot = serde_json::from_str(&json).unwrap();
    assert_eq!((&again, again.tree.history()), (tail, tail.tree.history()));
    let mut rest = tail.clone();
    (rest.tree, rest.from) = (whole.tree.clone(), None);
    rest.agent.state.history = whole.agent.state.history.clone();
    assert_eq!(rest, *whole);
}

/// Returns whether this error is allowed. Some errors are allowed because other tasks use the session at the same time.
fn is_fair(error: &omni_agent::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Busy
            | ErrorKind::UnknownNode
            | ErrorKind::NotAPrompt
            | ErrorKind::NotAnAnswer
            | ErrorKind::Unanswered
            | ErrorKind::OpenToolUses
            | ErrorKind::Unsaved
            | ErrorKind::Idle
            | ErrorKind::Cancelled
            | ErrorKind::Failed
    )
}

async fn perform(session: Session, op: Op) {
    let node = |number| NodeId::new(number).unwrap();
    let done = match op {
        Op::Prompt => session.prompt("A question").await.map(drop),
        Op::Ask => match session.ask("A question to be answered").await {
            Ok(response) => {
                let tree = session.tree().await.unwrap();
                let answer = response.message.as_ref().unwrap();
                assert!(tree.nodes().any(|node| node.message() == answer), "the answer is not in the tree");
                Ok(())
            }
            Err(error) => Err(error),
        },
        Op::Regenerate(number) => session.again(node(number)).start().await.map(drop),
        Op::Branch(number) => session.run("Another question").below(number.map(node)).start().await.map(drop),
        Op::Navigate(number) => session.navigate(number.map(node)).await,
        Op::Title(0) => session.set_title(None).await,
        Op::Title(n) => session.set_title(Some(&format!("Title {n}"))).await,
        Op::Configure(n) => {
            session
                .configure(move |config| {
                    config.settings.system = Some(format!("System {n}").into());
                    Ok(())
                })
                .await
        }
        Op::Notify(prompts) => session.notify(prompts).await,
        Op::Cancel => session.cancel().await,
        Op::Interrupt => session.interrupt().await,
        _ => session.flush(Duration::from_millis(50)).await,
    };
    if let Err(error) = done {
        assert!(is_fair(&error), "{error:?}");
    }
}

async fn run(ops: Vec<Op>, seed: u64) {
    let dice = Dice::new(seed);
    let provider = ScriptedProvider::from_fn({
        let dice = dice.clone();
        move |_| answer(&dice)
    });
    let store = Arc::new(Rough(MemoryStore::new(), dice.clone()));
    let agent = Agent::builder().model(provider.model()).tool(echo()).max_steps(6).callbacks(hooks(&dice));
    let session = Session::builder(Arc::clone(&store) as Arc<dyn Store>).agent(agent).create().await.unwrap();
    let mut readers = vec![Reader::join(&session).await];
    let mut others = tokio::task::JoinSet::new();
    for op in ops {
        match op {
            Op::Join => readers.push(Reader::join(&session).await),
            Op::JoinTail(limit) => readers.push(Reader::join_tail(&session, limit).await),
            Op::Read(index) => {
                let index = index % readers.len();
                let reader = &mut readers[index];
                while let Ok(update) = tokio::time::timeout(Duration::ZERO, reader.events.next()).await {
                    reader.take(update.unwrap());
                }
            }
            Op::Rejoin(index) => {
                let index = index % readers.len();
                let reader = &mut readers[index];
                let last = reader.events.last_id();
                let resumed = match reader.limit {
                    Some(limit) => session.resume_tail(last, Mode::Observer, limit).await,
                    None => session.resume_from(last, Mode::Observer).await,
                };
                reader.events = resumed.unwrap();
                assert!(reader.events.snapshot().is_none());
            }
            Op::Check => {
                let truth = session.snapshot().await.unwrap();
                check(&truth);
                for reader in &mut readers {
                    reader.see(&truth).await;
                }
            }
            Op::Yield(times) => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
            Op::Wait(millis) => sleep(Duration::from_millis(millis)).await,
            op => drop(others.spawn(perform(session.clone(), op))),
        }
    }
    while let Some(done) = in_time(others.join_next()).await {
        done.unwrap();
    }
    in_time(session.wait_until_idle()).await.unwrap();
    in_time(session.flush(Duration::from_mins(10))).await.unwrap();
    let truth = session.snapshot().await.unwrap();
    check(&truth);
    assert_eq!((truth.unsaved.len(), &truth.store), (0, &None));
    for reader in &mut readers {
        reader.see(&truth).await;
    }
    match store.load(session.id()).await {
        Ok(stored) => {
            assert_eq!(stored.state.title.as_deref(), truth.title.as_deref());
            assert_eq!(stored.state.settings.system.as_deref(), truth.agent.state.settings.system.as_deref());
            let tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap();
            assert_eq!(tree, truth.tree);
        }
        Err(StoreError::NotFound { .. }) => assert!(truth.tree.is_empty()),
        Err(error) => panic!("{error:?}"),
    }
    in_time(session.stop(Duration::from_secs(1))).await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn operations_at_random_all_subscribers_agree_with_the_session(ops in vec(op(), 1..80), seed: u64) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run(ops, seed));
    }
}

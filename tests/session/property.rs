//! Random operations on a conversation whose store behaves randomly. The path must equal the agent's history. The store
//! must contain everything that the session reports as saved, and nothing acknowledged may be lost.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, Status},
    message::{Content, Role},
    provider::{ProviderError, ProviderErrorKind},
    session::{Session, SessionEvent, SessionSnapshot, SessionSubscription, StoreReport},
    store::ConversationId,
    subscription::{Numbered, Update},
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
    tree::{Node, NodeId, Tree},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Act, ScriptedStore, configure, secs, watch};

/// The way in which a turn ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    Done,
    Tools,
    /// Cancelled after some text (`true`) or before any text (`false`).
    Cancelled(bool),
    Interrupted(bool),
    Failed(bool),
    /// The session is stopped during the turn, and the conversation is opened again.
    Stopped,
}

/// The behaviour of the store.
#[derive(Clone, Copy, Debug)]
enum Mood {
    Well,
    Slow,
    Flaky,
    Down,
    Stuck,
}

#[derive(Clone, Debug)]
enum Op {
    Prompt(Turn, Option<Turn>),
    Regenerate(u8, Turn, Option<Turn>),
    Branch(Option<u8>, Turn, Option<Turn>),
    Navigate(Option<u8>),
    Title(Option<u8>),
    System(Option<u8>),
    Mood(Mood),
    Wait(u16),
    Flush(u8),
    Stop(u8),
    Drop,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        6 => Just(Turn::Done),
        2 => Just(Turn::Tools),
        2 => any::<bool>().prop_map(Turn::Cancelled),
        2 => any::<bool>().prop_map(Turn::Interrupted),
        2 => any::<bool>().prop_map(Turn::Failed),
        1 => Just(Turn::Stopped),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let staged = || proptest::option::weighted(0.2, turn());
    let mood = prop_oneof![
        3 => Just(Mood::Well),
        2 => Just(Mood::Slow),
        3 => Just(Mood::Flaky),
        1 => Just(Mood::Down),
        1 => Just(Mood::Stuck),
    ];
    let often = || proptest::option::weighted(0.8, any::<u8>());
    prop_oneof![
        6 => (turn(), staged()).prop_map(|(turn, staged)| Op::Prompt(turn, staged)),
        5 => (any::<u8>(), turn(), staged()).prop_map(|(at, turn, staged)| Op::Regenerate(at, turn, staged)),
        4 => (often(), turn(), staged()).prop_map(|(at, turn, staged)| Op::Branch(at, turn, staged)),
        4 => often().prop_map(Op::Navigate),
        1 => proptest::option::of(0..3_u8).prop_map(Op::Title),
        1 => proptest::option::of(0..3_u8).prop_map(Op::System),
        3 => mood.prop_map(Op::Mood),
        2 => any::<u16>().prop_map(Op::Wait),
        2 => any::<u8>().prop_map(Op::Flush),
        1 => any::<u8>().prop_map(Op::Stop),
        1 => Just(Op::Drop),
    ]
}

type Plan = Arc<Mutex<VecDeque<Step>>>;

struct Life {
    store: ScriptedStore,
    plan: Plan,
    gate: Gate,
    id: ConversationId,
    session: Session,
    events: SessionSubscription,
    /// The snapshot of the session, built from the session's events.
    view: SessionSnapshot,
    /// Every tree that the session has reported.
    trees: Vec<Tree>,
    /// The number of the last node that was reported as saved.
    safe: u64,
    texts: u32,
}

fn agent(plan: &Plan) -> omni_agent::agent::AgentBuilder {
    let plan = Arc::clone(plan);
    let provider = ScriptedProvider::from_fn(move |_| plan.lock().unwrap().pop_front().expect("a step"));
    let look = tool_fn("look", "Looks.", |input: Value, _| async move { Ok(input) });
    Agent::builder().model(provider.model()).tool(look)
}

fn builder(store: &ScriptedStore, plan: &Plan) -> omni_agent::session::SessionBuilder {
    Session::builder(store.as_dyn()).agent(agent(plan)).write_timeout(secs(5)).unsaved_limit(12_000)
}

fn acts(mood: Mood) -> impl FnMut() -> Act + Send + 'static {
    let mut count = 0_usize;
    let few = Duration::from_millis(300);
    move || {
        count += 1;
        let cycle: &[Act] = match mood {
            Mood::Well => &[Act::Work],
            Mood::Slow => &[Act::Slow(few)],
            Mood::Flaky => &[Act::Fail, Act::Work, Act::LoseWord, Act::LoseWord, Act::Slow(few), Act::Panic],
            Mood::Down => &[Act::Fail],
            Mood::Stuck => &[Act::Hang, Act::HangAfter, Act::Hang],
        };
        cycle[count % cycle.len()].clone()
    }
}

impl Life {
    async fn begin() -> Self {
        let (store, plan) = (ScriptedStore::new([]), Plan::default());
        let session = builder(&store, &plan).create().await.unwrap();
        let events = watch(&session).await;
        let view = events.snapshot().unwrap().as_ref().clone();
        let trees = vec![Tree::new()];
        let (id, gate) = (session.id().clone(), Gate::new());
        Self { store, plan, gate, id, session, events, view, trees, safe: 0, texts: 0 }
    }

    fn text(&mut self) -> String {
        self.texts += 1;
        format!("text {}", self.texts)
    }

    /// Plans the steps of a turn. The last step waits at a gate if `held` is set, so that the test can stage a prompt.
    /// It also waits if the test itself ends the turn.
    fn plan(&mut self, turn: Turn, held: bool) {
        let mut steps = VecDeque::new();
        let begin = |part: bool, text: String| if part { Step::new().then_text([text]) } else { Step::new() };
        let text = self.text();
        match turn {
            Turn::Done | Turn::Tools => {
                if turn == Turn::Tools {
                    let call = format!("call-{}", self.texts);
                    steps.push_back(Step::tool_use(&call, "look", json!({})));
                }
                let step = Step::new();
                let step = if held { step.gate(&self.gate) } else { step };
                steps.push_back(step.then_text([text]).stop());
            }
            Turn::Cancelled(part) | Turn::Interrupted(part) => {
                steps.push_back(begin(part, text).gate(&self.gate).stop());
            }
            Turn::Stopped => steps.push_back(begin(true, text).gate(&self.gate).stop()),
            Turn::Failed(part) => {
                let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
                let step = begin(part, text);
                steps.push_back(if held { step.gate(&self.gate).fail(error) } else { step.fail(error) });
            }
        }
        self.plan.lock().unwrap().extend(steps);
    }

    /// Starts a run with `begin`, which ends as `turn` states. If `staged` is set, stages a prompt for a second turn.
    /// Checks the tree after the end of the run.
    async fn run(
        &mut self,
        turn: Turn,
        staged: Option<Turn>,
        begin: impl AsyncFnOnce(&Session, String) -> Result<(), Error>,
    ) {
        let before = self.session.tree().await.unwrap();
        self.plan(turn, staged.is_some());
        let text = self.text();
        match begin(&self.session, text).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StoreBehind => {
                self.plan.lock().unwrap().clear();
                assert_eq!(self.session.tree().await.unwrap(), before);
                return self.set_mood(Mood::Well);
            }
            Err(error) => panic!("{error:?}"),
        }
        let mut last = turn;
        let is_held = matches!(turn, Turn::Cancelled(_) | Turn::Interrupted(_) | Turn::Stopped);
        if is_held || staged.is_some() {
            self.gate.reached().await;
            self.check().await;
        }
        if let Some(next) = staged {
            let text = self.text();
            match self.session.prompt(text).await {
                Ok(_) if matches!(turn, Turn::Done | Turn::Tools) => {
                    self.plan(next, false);
                    last = next;
                }
                Err(error) if error.kind() != ErrorKind::StoreBehind => panic!("{error:?}"),
                _ => {}
            }
            if !is_held {
                self.gate.open();
            }
            if last != turn && matches!(last, Turn::Cancelled(_) | Turn::Interrupted(_) | Turn::Stopped) {
                self.gate.reached().await;
                self.check().await;
            }
        }
        match last {
            Turn::Cancelled(_) => self.session.cancel().await.unwrap(),
            Turn::Interrupted(_) => self.session.interrupt().await.unwrap(),
            Turn::Stopped => self.stop(secs(3)).await,
            Turn::Done | Turn::Tools | Turn::Failed(_) => {}
        }
        self.session.wait_until_idle().await.unwrap();
        let after = self.session.tree().await.unwrap();
        match (turn, last) {
            (Turn::Cancelled(_) | Turn::Interrupted(false), _) => assert_eq!(after, before),
            (Turn::Failed(false), _) => {
                // The prompt stays, unless it was in the tree already, or there are too many of them.
                assert_eq!((after.head(), after.history()), (before.head(), before.history()));
                let new: Vec<_> = after.nodes().skip(before.len()).collect();
                let is_leaf = |node: &&Node| after.unanswered(node.parent()).any(|leaf| leaf == *node);
                assert!(new.len() <= 1 && new.iter().all(is_leaf), "{after}");
            }
            (_, Turn::Stopped) => {}
            _ => assert!(after.len() > before.len()),
        }
        assert!(self.plan.lock().unwrap().is_empty());
    }

    fn set_mood(&self, mood: Mood) {
        self.store.otherwise(acts(mood));
    }

    fn take(&mut self, event: &Numbered<SessionEvent>) {
        self.view.apply(event).unwrap();
        match &*event.event {
            SessionEvent::Tree(_) => self.trees.push(self.view.tree.clone()),
            SessionEvent::Store(StoreReport::Saved { through: Some(node), .. }) => {
                assert!(node.get() > self.safe, "a save was reported twice or out of order");
                self.safe = node.get();
            }
            SessionEvent::Store(StoreReport::Lost { error }) => panic!("{error}"),
            _ => {}
        }
    }

    /// Checks that the session, its events and its agent agree with each other.
    async fn check(&mut self) {
        let snapshot = self.session.snapshot().await.unwrap();
        while self.view.last != snapshot.last {
            let event = crate::support::numbered(&mut self.events).await;
            self.take(&event);
        }
        assert_eq!(self.view, snapshot);
        assert_eq!(*snapshot.tree.history(), snapshot.agent.state.history);
        if snapshot.agent.status == Status::Idle {
            snapshot.agent.state.history.check().unwrap();
        }
        self.store.assert_sound();
    }

    async fn flush(&mut self, deadline: Duration) {
        if self.session.flush(deadline).await.is_ok() {
            let snapshot = self.session.snapshot().await.unwrap();
            assert_eq!(snapshot.unsaved, []);
            if !snapshot.tree.is_empty() {
                assert_eq!(self.store.tree(&self.id).await, snapshot.tree);
                let state = self.store.beneath().load(&self.id).await.unwrap().state;
                assert_eq!(state.title.as_deref(), snapshot.title.as_deref());
                assert_eq!(state.settings.system.as_deref(), snapshot.agent.state.settings.system.as_deref());
            }
        }
    }

    /// Stops the session and opens the stored conversation again.
    async fn stop(&mut self, deadline: Duration) {
        let stopped = self.session.stop(deadline).await;
        self.load_again(stopped.is_ok()).await;
    }

    async fn load_again(&mut self, is_safe: bool) {
        let end = loop {
            match self.events.next().await.unwrap() {
                Update::Event(event) => self.take(&event),
                Update::Closed(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        let last = end.snapshot.unwrap();
        assert_eq!(self.view.tree, last.tree);
        assert_eq!(*last.tree.history(), last.agent.state.history);
        // If a write was in progress when the session ended, it may still reach the store.
        tokio::time::sleep(secs(100)).await;
        if self.store.beneath().summary(&self.id).await.is_ok() {
            self.session = builder(&self.store, &self.plan).open(self.id.clone()).await.unwrap();
        } else {
            assert_eq!(self.safe, 0);
            assert!(!is_safe || last.tree.is_empty());
            self.session = builder(&self.store, &self.plan).create().await.unwrap();
            self.id = self.session.id().clone();
        }
        let tree = self.session.tree().await.unwrap();
        if is_safe {
            assert_eq!(tree, last.tree);
        } else {
            assert!(self.trees.contains(&tree), "the store has a tree that the session never had:\n{tree}");
        }
        assert!(tree.len() as u64 >= self.safe, "{} nodes of {} are left", tree.len(), self.safe);
        self.safe = tree.len() as u64;
        self.events = watch(&self.session).await;
        self.view = self.events.snapshot().unwrap().as_ref().clone();
        self.trees = vec![tree];
    }

    async fn pick(&self, at: u8, fits: impl Fn(&Node) -> bool) -> Option<NodeId> {
        let tree = self.session.tree().await.unwrap();
        let fitting: Vec<_> = tree.nodes().filter(|node| fits(node)).map(Node::id).collect();
        fitting.get(usize::from(at) % fitting.len().max(1)).copied()
    }

    async fn go(&mut self, op: Op) {
        match op {
            Op::Prompt(turn, staged) => {
                self.run(turn, staged, async |session, text| session.prompt(text).await.map(drop)).await;
            }
            Op::Regenerate(at, turn, staged) => {
                let is_result = |content: &Content| matches!(content, Content::ToolResult(_));
                let user = |node: &Node| {
                    let message = node.message();
                    message.role == Role::User && !message.content.iter().any(is_result)
                };
                if let Some(user) = self.pick(at, user).await {
                    self.run(turn, staged, async |session, _| session.again(user).start().await.map(drop))
                        .await;
                }
            }
            Op::Branch(at, turn, staged) => {
                let answer = |node: &Node| {
                    node.message().role == Role::Assistant && node.message().tool_uses().next().is_none()
                };
                let base = match at {
                    Some(at) => self.pick(at, answer).await,
                    None => None,
                };
                self.run(turn, staged, async |session, text| {
                    session.run(text).below(base).start().await.map(drop)
                })
                .await;
            }
            Op::Navigate(at) => {
                let node = match at {
                    Some(at) => {
                        let tree = self.session.tree().await.unwrap();
                        let is_leaf = |node: &Node| tree.unanswered(node.parent()).any(|leaf| leaf == node);
                        self.pick(at, |node| !is_leaf(node)).await
                    }
                    None => None,
                };
                self.session.navigate(node).await.unwrap();
                let tree = self.session.tree().await.unwrap();
                assert!(node.is_none_or(|node| tree.iter().any(|on| on.id() == node)));
            }
            Op::Title(title) => {
                self.session.set_title(title.map(|title| format!("Title {title}")).as_deref()).await.unwrap();
            }
            Op::System(system) => {
                let system = system.map(|system| format!("System {system}.").into());
                configure(&self.session, move |config| config.settings.system = system).await;
            }
            Op::Mood(mood) => self.set_mood(mood),
            Op::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis.into())).await,
            Op::Flush(seconds) => self.flush(secs(u64::from(seconds % 16))).await,
            Op::Stop(seconds) => self.stop(secs(u64::from(seconds % 16))).await,
            Op::Drop => {
                // Another session is stored in this field, so that the old session can be dropped while it runs.
                let other = builder(&self.store, &self.plan).create().await.unwrap();
                drop(std::mem::replace(&mut self.session, other));
                self.load_again(false).await;
            }
        }
        self.check().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_over_any_store_agree_and_lose_nothing(ops in prop::collection::vec(op(), 40..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let mut life = Life::begin().await;
            for op in ops {
                life.go(op).await;
            }
            life.set_mood(Mood::Well);
            life.flush(secs(60)).await;
            life.check().await;
            life.stop(secs(60)).await;
        });
    }
}

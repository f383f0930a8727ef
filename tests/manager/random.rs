//! Random operations on several conversations by many tasks. The store, the agents and the callers fail in every way.
//! At any moment, an id has at most one session. In the end, the manager, its feed, the store and the tasks must agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use omni_agent::{
    agent::{Agent, AgentBuilder},
    manager::{Manager, OpenOptions, OpenedSession},
    provider::{ProviderError, ProviderErrorKind},
    session::{Mode, Session},
    store::{Page, Store},
    testing::{ScriptedProvider, Step},
    tree::Tree,
};
use tokio::time::{Instant, sleep, timeout};

use crate::rig::{Act, Call, Do, Hooks, Lives, MoodyStore, Watch, id, poll_times, tasks};

/// The longest wait until all sessions that end have ended. It is longer than the time limit of each end.
const SETTLED_WITHIN: Duration = Duration::from_secs(40);

/// A source of random numbers. The same seed gives the same numbers. Clones share one source.
#[derive(Clone)]
struct Dice(Arc<AtomicU64>);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d))))
    }

    fn below(&self, limit: u64) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn one_in(&self, many: u64) -> bool {
        self.below(many) == 0
    }
}

#[derive(Clone)]
struct World {
    dice: Dice,
    store: MoodyStore,
    lives: Lives,
    manager: Manager,
    /// The unit of time. All other times are multiples of it.
    unit: Duration,
    /// Whether operations may hang. Set only in tests with paused time, in which waiting costs nothing.
    may_hang: bool,
}

impl World {
    fn new(seed: u64, unit: Duration, may_hang: bool) -> Self {
        let (dice, store) = (Dice::new(seed), MoodyStore::new());
        // If creating a conversation fails, the manager waits up to this limit for its agent to end. If operations
        // don't hang, the limit must be so long that even a busy machine does not reach it.
        let limit = if may_hang { unit * 15 } else { Duration::from_secs(20) };
        let mut builder = store.manager().close_timeout(limit);
        builder = builder.idle_shutdown((!dice.one_in(3)).then(|| {
            let units = u32::try_from(dice.below(4)).unwrap();
            unit * units
        }));
        if dice.one_in(2) {
            builder = builder.max_open(usize::try_from(1 + dice.below(4)).unwrap());
        }
        if dice.one_in(3) {
            builder = builder.max_turns(usize::try_from(1 + dice.below(2)).unwrap());
        }
        let world = Self { dice, store, lives: Lives::default(), manager: builder.build(), unit, may_hang };
        let moody = world.clone();
        world.store.mood(move |call, _| match (call, moody.act(12)) {
            // Two behaviours are replaced with an error. A list that panics would panic in the caller. If a creation
            // hangs, the agent gets only a limited time to end, and nothing waits for the agent afterwards.
            (Call::List, Act::Panic) | (Call::Create, Act::Hang) => Act::Fail,
            (_, act) => act,
        });
        world
    }

    fn time(&self) -> Duration {
        self.unit * u32::try_from(self.dice.below(4)).unwrap()
    }

    /// Returns the behaviour of an operation. The operation simply works, except in one of `many` cases.
    fn act(&self, many: u64) -> Act {
        if !self.dice.one_in(many) {
            return Act::Work;
        }
        match self.dice.below(8) {
            0..3 => Act::Slow(self.time()),
            3..5 => Act::Fail,
            5..7 => Act::Panic,
            _ if self.may_hang => Act::Hang,
            _ => Act::Slow(self.time()),
        }
    }

    fn agent(&self) -> AgentBuilder {
        let world = self.clone();
        let provider = ScriptedProvider::from_fn(move |_| match world.dice.below(10) {
            0 => Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
            1 => Step::new().then_text(["Half"]).panic("the provider broke"),
            2..5 => Step::new().wait(world.time()).then_text(["Slowly"]).stop(),
            _ => Step::text("Yes"),
        });
        let hooks = Hooks::of(&self.lives).init(self.act(8)).terminate(self.act(8));
        Agent::builder().model(provider.model()).callbacks(hooks)
    }

    fn start(&self) -> OpenOptions {
        let start = OpenOptions::new(self.agent()).subscribe(match self.dice.below(4) {
            0 => None,
            1 => Some(Mode::Observer),
            _ => Some(Mode::Controller),
        });
        if self.dice.one_in(4) { start.idle_shutdown(Some(self.time())) } else { start }
    }

    /// Runs an operation with a time limit, or drops it after a few polls.
    async fn call<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        if self.dice.one_in(4) {
            return poll_times(operation, usize::try_from(self.dice.below(12)).unwrap()).await;
        }
        timeout(self.unit * 8, operation).await.ok()
    }

    /// Performs the random operations of one caller.
    async fn live(self, steps: usize) {
        let (manager, dice) = (&self.manager, &self.dice);
        let mut held: Vec<OpenedSession> = Vec::new();
        let mut watching: Vec<Watch> = Vec::new();
        for _ in 0..steps {
            let name = id(&format!("c{}", dice.below(4)));
            match dice.below(20) {
                0..5 => held.extend(self.call(manager.open(&name, self.start())).await.and_then(Result::ok)),
                5..8 => {
                    held.extend(
                        self.call(manager.create_with_id(&name, self.start())).await.and_then(Result::ok),
                    );
                }
                8 => held.extend(self.call(manager.create(self.start())).await.and_then(Result::ok)),
                9 => drop(self.call(manager.close(&name)).await),
                10 => drop(self.call(manager.delete(&name)).await),
                11 => {
                    let title = dice.one_in(2).then_some("Title");
                    drop(self.call(manager.rename(&name, title)).await);
                }
                12 => watching.push(Watch::new(manager)),
                13 => drop(watching.pop()),
                14 | 15 if !held.is_empty() => {
                    let at = usize::try_from(dice.below(held.len() as u64)).unwrap();
                    drop(held.swap_remove(at));
                }
                16 => sleep(self.time()).await,
                17 => drop(self.call(manager.list(Page::default())).await),
                _ => {
                    if let Some(opened) = held.last() {
                        self.call(self.use_it(&opened.session)).await;
                    }
                }
            }
            watching.iter_mut().for_each(Watch::catch_up);
            self.lives.assert_sound();
            held.truncate(4);
        }
    }

    async fn use_it(&self, session: &Session) {
        // The session may have ended, or its reply may be an error. The only requirement is that it replies.
        match self.dice.below(8) {
            0 => drop(session.notify(Do::End).await),
            1 => drop(session.notify(Do::Panic).await),
            2 => drop(session.stop(self.time()).await),
            3 => drop(session.set_title(Some("Mine")).await),
            4 => drop(session.prompt("Hi").await),
            5 => drop(session.cancel().await),
            _ => drop(session.ask("Hi").await),
        }
    }

    /// Checks that the remaining sessions agree with the store and can be closed. Call this after all callers have
    /// ended.
    async fn assert_agrees(self, mut watch: Watch, before: usize) {
        self.store.mood(|_, _| Act::Work);
        let manager = &self.manager;
        // During this time, started operations end, and unused sessions are put to sleep. A session that ends waits for
        // its failed write to be repeated, up to its time limit.
        sleep(self.unit * 600).await;
        let limit = Instant::now() + SETTLED_WITHIN;
        while Instant::now() < limit && self.lives.living() != manager.list_open().len() {
            sleep(self.unit * 10).await;
        }
        watch.assert_agrees(manager);
        self.lives.assert_sound();
        assert_eq!(watch.view.waiting, []);
        let open = manager.list_open();
        assert_eq!(self.lives.living(), open.len());
        for open in &open {
            let session = manager.get(&open.id).expect("a listed session is open");
            assert!(session.end().is_none());
            session.wait_until_idle().await.unwrap();
            session.flush(self.unit * 600).await.unwrap();
            let tree = session.tree().await.unwrap();
            match self.store.beneath().load(&open.id).await {
                Ok(stored) => {
                    assert_eq!(Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap(), tree);
                    assert_eq!(stored.state.title.as_deref(), open.title.as_deref());
                }
                Err(_) => assert!(tree.is_empty(), "the conversation is missing in the store"),
            }
        }
        for listed in manager.list(Page::default()).await.unwrap() {
            let opened =
                timeout(self.unit * 600, manager.open(&listed.summary.id, crate::rig::parrot())).await;
            let opened = opened.expect("opening must not wait").unwrap();
            timeout(self.unit * 600, manager.close(opened.session.id())).await.expect("it closes").unwrap();
        }
        for open in open {
            timeout(self.unit * 600, manager.close(&open.id)).await.expect("it closes").unwrap();
        }
        watch.assert_agrees(manager);
        assert_eq!(watch.view.open, []);
        let lives = self.lives.clone();
        drop((watch, self));
        // Nothing reports the end of the last task, so the number of tasks is polled.
        for _ in 0..1000 {
            if tasks() == before {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(tasks(), before, "some tasks have not ended");
        assert_eq!(lives.living(), 0);
    }
}

/// Hides the intentional panics from the test's output.
fn hush() {
    static HUSHED: std::sync::Once = std::sync::Once::new();
    HUSHED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info
                .payload_as_str()
                .is_some_and(|words| words.starts_with("the ") && words.ends_with(" broke"))
            {
                usual(info);
            }
        }));
    });
}

async fn live_all(world: World, callers: usize, steps: usize, before: usize) {
    let watch = Watch::new(&world.manager);
    let callers: Vec<_> = (0..callers).map(|_| tokio::spawn(world.clone().live(steps))).collect();
    for caller in callers {
        caller.await.unwrap();
    }
    world.assert_agrees(watch, before).await;
}

#[test]
fn random_operations_end_in_a_consistent_state() {
    hush();
    for seed in 0..60 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                let world = World::new(seed, Duration::from_secs(1), true);
                let lived = live_all(world, 8, 40, 0);
                timeout(Duration::from_hours(2), lived).await.expect("the operations must end in time");
            });
        }));
        assert!(lived.is_ok(), "with seed {seed}");
    }
}

#[test]
fn random_operations_on_many_threads_end_in_a_consistent_state() {
    hush();
    for seed in 0..4 {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(async {
            let world = World::new(seed, Duration::from_millis(1), false);
            let lived = live_all(world, 16, 100, tasks());
            timeout(Duration::from_mins(2), lived).await.expect("the operations must end in time");
        });
    }
}

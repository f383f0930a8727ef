//! A store that makes callers wait: decisions about a conversation that another owner holds for a time, decisions before
//! a commit is answered, and sweeps whose list does not come. The tests of `faults` use it too.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, Durable},
    manager::{ApprovalId, DecisionPlace, Manager, OpenOptions, Sweep},
    message::{Timestamp, ToolResult},
    store::{
        ConversationId, Filter, Listing, MemoryStore, Owner, Page, Store, StoreError, TurnSummary,
        custom::{Change, Epoch, Lease, StoreTraits, Stored, StoredTurn, TurnChange, Turns, Version, Write},
    },
    subscription::EventId,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::stores::{id, leave, paused, turn_id, waiting};

/// A store that answers late.
pub(crate) struct HeldStore {
    pub(crate) store: MemoryStore,
    /// Until this time, the conversations belong to another owner.
    pub(crate) until: Instant,
    pub(crate) reads: AtomicUsize,
    /// Commits with a record of a turn are stored at once, but each is answered only when this gate opens.
    pub(crate) answers: Option<Gate>,
    /// Whether the next list of the turns that nobody works on never comes.
    pub(crate) is_stuck: AtomicBool,
    /// The number of lists of these turns so far.
    pub(crate) lists: AtomicUsize,
    /// The number of the list that panics.
    pub(crate) bad_list: Option<usize>,
    /// The time by which the clock was ahead when turns were recorded.
    pub(crate) ahead: Duration,
    /// The time that it takes to load a conversation.
    pub(crate) load: Duration,
    /// The duration of leases, if the store has them.
    pub(crate) lease: Option<Duration>,
    /// The conversations with leases.
    pub(crate) leases: Mutex<Vec<ConversationId>>,
    /// Leases are granted at once, but each is answered only when this gate opens.
    pub(crate) grants: Option<Gate>,
}

impl HeldStore {
    /// Returns a store whose conversations belong to another owner for this time.
    pub(crate) fn new(store: MemoryStore, hold: Duration) -> Self {
        Self {
            store,
            until: Instant::now() + hold,
            reads: AtomicUsize::new(0),
            answers: None,
            is_stuck: AtomicBool::new(false),
            lists: AtomicUsize::new(0),
            bad_list: None,
            ahead: Duration::ZERO,
            load: Duration::ZERO,
            lease: None,
            leases: Mutex::default(),
            grants: None,
        }
    }

    /// Returns the time at which a clock that was ahead has recorded something.
    fn ahead(&self, time: Timestamp) -> Timestamp {
        Timestamp(time.0 + u64::try_from(self.ahead.as_millis()).unwrap())
    }
}

#[async_trait]
impl Store for HeldStore {
    forward!(self.store: summary, list, delete);

    fn traits(&self) -> StoreTraits {
        let traits = StoreTraits::default().with_turns(true).with_labels(true);
        self.lease.map_or(traits, |lease| traits.with_lease(lease))
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let version = self.store.write(id, write, change).await;
        if let (Some(answers), Change::Commit(commit)) = (&self.answers, change)
            && let Some(TurnChange::Record(_)) = commit.turn.as_deref()
        {
            answers.pass().await;
        }
        version
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        sleep(self.load).await;
        let mut stored = self.store.load(id).await?;
        if let Some(turn) = &mut stored.turn {
            turn.waiting_since = turn.waiting_since.iter().map(|since| self.ahead(*since)).collect();
        }
        Ok(stored)
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.turn(id).await
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        if which == Turns::Left && self.is_stuck.swap(false, Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if which == Turns::Left {
            let list = self.lists.fetch_add(1, Ordering::SeqCst);
            assert_ne!(Some(list), self.bad_list, "the store broke");
        }
        let mut turns = self.store.turns(which, listing).await?;
        for turn in &mut turns {
            turn.recorded = self.ahead(turn.recorded);
        }
        Ok(turns)
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        if Instant::now() < self.until {
            return Err(StoreError::Owned { id: id.clone(), owner: Owner::new("another") });
        }
        let Some(grants) = &self.grants else { return self.store.acquire(id, owner).await };
        self.leases.lock().unwrap().push(id.clone());
        grants.pass().await;
        Ok(Lease::lasting(Epoch(1), Duration::from_hours(1)))
    }

    async fn release(&self, id: &ConversationId, _: &Lease, _: Option<EventId>) -> Result<(), StoreError> {
        self.leases.lock().unwrap().retain(|held| held != id);
        Ok(())
    }
}

/// Decides on a tool use of a conversation that another owner holds for this time. Returns the result, and the number
/// of times that the turn was read.
async fn decide_while_held(hold: Duration) -> (Result<DecisionPlace, Error>, usize) {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1")])).await;
    let place = Arc::new(HeldStore::new(store, hold));
    let manager = Manager::builder(Arc::clone(&place) as Arc<dyn Store>).build();
    let wanted = ApprovalId::new(id("a"), turn_id(7), "1");
    let decided = manager.decide(&wanted, Decision::Execute, None).await;
    (decided, place.reads.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn decide_waits_for_another_owner_that_releases_the_conversation() {
    for hold in [0, 5, 200, 900, 29_000, 34_000].map(Duration::from_millis) {
        let (decided, reads) = decide_while_held(hold).await;
        assert_eq!((decided.unwrap(), reads), (DecisionPlace::InStore, 1), "{hold:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn decide_on_a_conversation_that_stays_owned_is_open_elsewhere() {
    let begun = Instant::now();
    let (decided, reads) = decide_while_held(Duration::from_mins(1)).await;
    assert_eq!(begun.elapsed().as_secs(), 35, "the usual lease and five seconds");
    let error = decided.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OpenElsewhere);
    assert_eq!((&*error.owner().unwrap().name, reads), ("another", 1));
}

#[tokio::test(start_paused = true)]
async fn decide_after_the_record_and_before_its_answer_is_kept() {
    let answers = Gate::new();
    let place =
        HeldStore { answers: Some(answers.clone()), ..HeldStore::new(MemoryStore::new(), Duration::ZERO) };
    let manager = Manager::builder(place).build();
    let steps = [Step::tool_use("1", "send", json!({})), Step::text("Done.")];
    let tool =
        tool_fn("send", "Sends.", async |_: Value, _: ToolContext| Ok::<_, omni_agent::ToolError>("sent"));
    let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tool(tool.needs_approval());
    let options = OpenOptions::new(agent).durable(Durable::Approvals);
    let session = manager.create_with_id(&id("a"), options).await.unwrap().session;
    session.prompt("Send it.").await.unwrap();
    answers.reached().await;
    let listed = manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    let [approval] = &listed[..] else { panic!("{listed:?}") };
    assert!(session.snapshot().await.unwrap().agent.pauses.is_empty(), "the pause is not reported yet");

    let (deciding, wanted) = (manager.clone(), approval.id.clone());
    let decided = tokio::spawn(async move { deciding.decide(&wanted, Decision::Execute, Some("ann")).await });
    sleep(Duration::from_secs(1)).await;
    assert!(!decided.is_finished(), "the decision is not stored yet");
    let again = manager.decide(&approval.id, Decision::reject("No."), Some("ben")).await;
    let again = again.unwrap_err();
    assert_eq!((again.kind(), again.waiting()), (ErrorKind::StaleDecision, Vec::new()));

    // Five records are made at most: of the pause, the decision, the start of the tool, its result and the next request.
    for _ in 0..5 {
        answers.open();
    }
    assert_eq!(decided.await.unwrap().unwrap(), DecisionPlace::InSession);
    session.wait_until_idle().await.unwrap();
    let tree = session.tree().await.unwrap();
    let messages = tree.history();
    let texts = messages.iter().flat_map(|message| message.tool_results()).map(ToolResult::text);
    assert_eq!(texts.collect::<Vec<_>>(), ["sent"]);
    assert_eq!(messages.last().unwrap().text(), "Done.");
}

#[tokio::test(start_paused = true)]
async fn sweep_whose_list_never_comes_is_followed_by_the_next_one() {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1").with_limit(Duration::ZERO)])).await;
    let place = Arc::new(HeldStore::new(store, Duration::ZERO));
    place.is_stuck.store(true, Ordering::SeqCst);
    let builder = Manager::builder(Arc::clone(&place) as Arc<dyn Store>).starter(|_| None);
    let manager = builder.sweep(Sweep::every(Duration::from_mins(10))).build();
    let pending =
        async || manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap().len();
    assert_eq!(pending().await, 1);
    for _ in 0..60 {
        sleep(Duration::from_mins(1)).await;
    }
    assert!(!place.is_stuck.load(Ordering::SeqCst), "the first sweep has begun");
    assert_eq!(pending().await, 0, "a later sweep applies the time limit");
}

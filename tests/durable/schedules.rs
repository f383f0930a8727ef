//! Schedules: prompts that a manager sends at set times.

use std::{
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt as _;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentCallbacks, Durable, State, StateEdit},
    manager::{Manager, ManagerBuilder, ManagerEvent, OpenOptions, Sweep, WakeCause},
    message::{Message, Role, Timestamp},
    provider::Options,
    run::{Accepted, Missed, Prompt, Schedule},
    store::{
        ConversationId, FileSystemStore, Filter, Listing, MemoryStore, Page, Scheduled, Store, StoreError,
        TurnSummary,
        custom::{Change, ScheduleChange, ScheduleEntry, ScheduleList, Schedules, StoredState, Turns, Write},
    },
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::stores::id;

const HOUR: Duration = Duration::from_hours(1);

/// A store whose clock runs with the paused clock of tokio.
#[derive(Clone)]
struct ClockStore {
    store: MemoryStore,
    begun: Instant,
}

impl ClockStore {
    fn new() -> Self {
        Self { store: MemoryStore::new(), begun: Instant::now() }
    }

    fn now(&self) -> Timestamp {
        self.ahead(Timestamp::now())
    }

    fn ahead(&self, time: Timestamp) -> Timestamp {
        Timestamp(time.0 + u64::try_from(self.begun.elapsed().as_millis()).unwrap())
    }
}

#[async_trait]
impl Store for ClockStore {
    forward!(self.store: traits, write, load, summary, list, delete, turn, release);

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.store.turns(which, listing).await
    }

    async fn schedules(&self, which: &Schedules, listing: &Listing) -> Result<ScheduleList, StoreError> {
        let which = match which {
            Schedules::Within(time) => Schedules::Within(*time + self.begun.elapsed()),
            which => which.clone(),
        };
        let mut list = self.store.schedules(&which, listing).await?;
        list.now = self.ahead(list.now);
        Ok(list)
    }
}

/// A manager with one conversation, whose model answers when the gate lets it pass.
struct Rig {
    store: ClockStore,
    manager: Manager,
    /// The seconds at which the model was asked, since the start.
    asked: Arc<Mutex<Vec<u64>>>,
    gate: Gate,
}

fn options(asked: &Arc<Mutex<Vec<u64>>>, gate: &Gate, begun: Instant) -> OpenOptions {
    let (asked, gate) = (Arc::clone(asked), gate.clone());
    let provider = ScriptedProvider::from_fn(move |_| {
        asked.lock().unwrap().push((begun.elapsed() + Duration::from_millis(500)).as_secs());
        Step::new().gate(&gate).then_text(["Done."]).stop()
    });
    OpenOptions::new(Agent::builder().model(provider.model())).durable(Durable::InFlight).subscribe(None)
}

/// Opens the gate for all callers.
fn open(gate: &Gate) {
    (0..1000).for_each(|_| gate.open());
}

impl Rig {
    async fn new(interval: Duration) -> Self {
        let rig = Self::gated(interval).await;
        open(&rig.gate);
        rig
    }

    /// Returns a rig whose model does not answer before the gate is opened.
    async fn gated(interval: Duration) -> Self {
        Self::with(interval, |builder| builder).await
    }

    async fn with(interval: Duration, set: impl FnOnce(ManagerBuilder) -> ManagerBuilder) -> Self {
        let (store, gate, asked) = (ClockStore::new(), Gate::new(), Arc::<Mutex<Vec<u64>>>::default());
        let (log, passes, begun) = (Arc::clone(&asked), gate.clone(), store.begun);
        let builder = Manager::builder(store.clone()).sweep(Sweep::every(interval));
        let manager = set(builder.starter(move |_| Some(options(&log, &passes, begun)))).build();
        manager.create_with_id(&id("a"), options(&asked, &gate, begun)).await.unwrap();
        Self { store, manager, asked, gate }
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }

    /// Stores a schedule whose next time was this long ago.
    async fn overdue(&self, name: &str, ago: Duration, schedule: Schedule) -> Timestamp {
        let due = Timestamp(self.store.now().0 - u64::try_from(ago.as_millis()).unwrap());
        set(&self.store, &id("a"), name, due, schedule).await;
        due
    }

    async fn listed(&self) -> Vec<Scheduled> {
        self.manager.schedules(&Filter::default(), Page::default()).await.unwrap()
    }

    /// Returns the time until the next firing of the only schedule, in seconds.
    async fn next(&self) -> u64 {
        let [only] = &self.listed().await[..] else { panic!("one schedule") };
        (only.due.0 - self.store.now().0 + 500) / 1000
    }
}

async fn set(store: &dyn Store, id: &ConversationId, name: &str, due: Timestamp, schedule: Schedule) {
    let change = ScheduleChange::new(name, Some(ScheduleEntry::new(due, 7, schedule)));
    store.write(id, &Write::first(), &Change::schedule(change)).await.unwrap();
}

/// Returns the ids of the prompts of the conversation that a schedule has sent.
async fn sent(store: &dyn Store, id: &ConversationId) -> Vec<String> {
    let stored = store.load(id).await.unwrap();
    let messages = stored.nodes.iter().map(|node| Message::clone(node.message()));
    let prompts = messages.filter(|message| message.role == Role::User);
    prompts.filter_map(|message| message.id).map(|id| id.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn schedule_after_a_delay_fires_once_at_its_time() {
    let rig = Rig::new(HOUR).await;
    let due = rig.manager.schedule(&id("a"), "once", Schedule::after(Duration::from_secs(90), "Go")).await;
    let due = due.unwrap();
    assert_eq!(rig.listed().await[0].due, due);
    sleep(Duration::from_secs(89)).await;
    assert_eq!(rig.asked().len(), 0, "it is early");
    sleep(2 * HOUR).await;
    assert_eq!((rig.asked(), rig.listed().await), (vec![90], Vec::new()));
    let sent = sent(&rig.store, &id("a")).await;
    assert!(sent.len() == 1 && sent[0].starts_with("omni.once."), "{sent:?}");
    assert!(sent[0].ends_with(&format!("@{:x}", due.0)), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn schedule_at_a_past_time_fires_at_once() {
    let rig = Rig::new(HOUR).await;
    assert_eq!(
        rig.manager.schedule(&id("a"), "once", Schedule::at(Timestamp(5), "Go")).await.unwrap(),
        Timestamp(5)
    );
    sleep(Duration::from_secs(1)).await;
    assert_eq!((rig.asked().len(), rig.listed().await.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn schedule_of_an_interval_fires_at_each_time() {
    let rig = Rig::new(HOUR).await;
    rig.manager.schedule(&id("a"), "r", Schedule::every(Duration::from_secs(10), "Go")).await.unwrap();
    sleep(Duration::from_secs(45)).await;
    assert_eq!(rig.asked(), [10, 20, 30, 40]);
    assert_eq!(sent(&rig.store, &id("a")).await.len(), 4);
}

#[cfg(feature = "cron")]
#[tokio::test(start_paused = true)]
async fn schedule_of_a_pattern_fires_at_each_minute() {
    let rig = Rig::new(HOUR).await;
    let minutely = Schedule::cron("* * * * *", "Europe/Berlin", "Go").unwrap();
    let first = rig.manager.schedule(&id("a"), "r", minutely).await.unwrap();
    assert_eq!(first.0 % 60_000, 0);
    sleep(Duration::from_secs(150)).await;
    let times = rig.asked();
    assert!((2..=3).contains(&times.len()) && times[1] - times[0] == 60, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn missed_times_fire_once_or_are_skipped() {
    let minutes = |minutes: u64| Duration::from_mins(minutes);
    for (missed, fires) in [(Missed::Once, 1), (Missed::Skip(minutes(2)), 0), (Missed::Skip(minutes(6)), 1)] {
        let rig = Rig::new(Duration::from_secs(1)).await;
        let every = Schedule::every(minutes(10), "Go").missed(missed);
        let due = rig.overdue("r", minutes(55), every).await;
        sleep(Duration::from_secs(30)).await;
        assert_eq!(rig.asked().len(), fires, "{missed:?}");
        assert!(
            (269..=271).contains(&rig.next().await),
            "{missed:?}: the times stay multiples of the interval"
        );
        if let Missed::Skip(_) = missed
            && fires == 1
        {
            let last = format!("@{:x}", due.0 + 50 * 60_000);
            assert!(sent(&rig.store, &id("a")).await[0].ends_with(&last), "the last time counts");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missed_time_that_is_the_only_one_is_removed() {
    let rig = Rig::new(Duration::from_secs(1)).await;
    rig.overdue("r", HOUR, Schedule::at(Timestamp(1), "Go").missed(Missed::Skip(HOUR / 2))).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!((rig.asked().len(), rig.listed().await.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn schedule_of_a_busy_conversation_is_staged_and_never_overlaps() {
    let rig = Rig::gated(Duration::from_secs(1)).await;
    let session = rig.manager.get(&id("a")).unwrap();
    assert!(matches!(session.prompt("Hello").await.unwrap(), Accepted::Started { .. }));
    rig.manager.schedule(&id("a"), "r", Schedule::every(Duration::from_secs(10), "Go")).await.unwrap();
    sleep(Duration::from_secs(65)).await;
    assert_eq!(session.snapshot().await.unwrap().agent.staged.len(), 1, "the first time waits for its run");
    open(&rig.gate);
    sleep(Duration::from_secs(1)).await;
    // The times until then fire once more, and then each time does.
    assert_eq!(rig.asked(), [0, 65, 65]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.asked(), [0, 65, 65, 70]);
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_of_a_schedule_is_sent_again_after_a_cancel_and_not_after_a_withdrawal() {
    for is_withdrawn in [false, true] {
        let rig = Rig::gated(Duration::from_secs(1)).await;
        let session = rig.manager.get(&id("a")).unwrap();
        session.prompt("Hello").await.unwrap();
        rig.manager.schedule(&id("a"), "r", Schedule::after(Duration::from_secs(10), "Go")).await.unwrap();
        sleep(Duration::from_secs(12)).await;
        let staged = session.snapshot().await.unwrap().agent.staged;
        if is_withdrawn {
            session.unstage(staged[0].id.clone().unwrap()).await.unwrap();
        }
        session.cancel().await.unwrap();
        open(&rig.gate);
        sleep(Duration::from_mins(2)).await;
        assert_eq!(rig.listed().await, Vec::new());
        let times = usize::from(!is_withdrawn);
        assert_eq!((rig.asked().len(), sent(&rig.store, &id("a")).await.len()), (1 + times, times));
    }
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_of_a_schedule_that_is_withdrawn_after_an_earlier_return_is_not_sent() {
    let rig = Rig::gated(Duration::from_secs(1)).await;
    let session = rig.manager.get(&id("a")).unwrap();
    session.prompt("Hello").await.unwrap();
    rig.manager.schedule(&id("a"), "r", Schedule::after(Duration::from_secs(10), "Go")).await.unwrap();
    sleep(Duration::from_secs(12)).await;
    session.cancel().await.unwrap();
    session.prompt("Again").await.unwrap();
    sleep(Duration::from_mins(1)).await;
    let staged = session.snapshot().await.unwrap().agent.staged;
    session.unstage(staged[0].id.clone().unwrap()).await.unwrap();
    sleep(Duration::from_mins(2)).await;
    assert!(session.snapshot().await.unwrap().agent.staged.is_empty());
    assert_eq!(rig.listed().await, Vec::new());
}

#[tokio::test(start_paused = true)]
async fn prompt_that_is_refused_for_good_is_reported_and_the_schedule_moves_on() {
    let rig = Rig::new(Duration::from_secs(1)).await;
    let mut events = rig.manager.subscribe();
    rig.overdue("bad", HOUR, Schedule::at(Timestamp(1), Prompt::default())).await;
    rig.overdue("worse", HOUR, Schedule::every(2 * HOUR, Prompt::default())).await;
    let mut names = Vec::new();
    while names.len() < 2 {
        match events.next().await {
            Some(Update::Event(numbered)) => {
                if let ManagerEvent::NotFired { id: of, name, reason } = &*numbered.event {
                    assert_eq!(
                        (of, &**reason),
                        (&id("a"), "the prompt is empty; give it text or an attachment")
                    );
                    names.push(name.to_string());
                }
            }
            other => panic!("{other:?}"),
        }
    }
    names.sort();
    assert_eq!(names, ["bad", "worse"]);
    sleep(Duration::from_secs(5)).await;
    assert!((3590..3600).contains(&rig.next().await), "the other one has a next time");
    assert_eq!(rig.asked().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn unschedule_during_the_run_lets_the_run_continue() {
    let rig = Rig::gated(Duration::from_secs(1)).await;
    rig.manager.schedule(&id("a"), "r", Schedule::every(Duration::from_secs(10), "Go")).await.unwrap();
    sleep(Duration::from_secs(12)).await;
    assert!(rig.manager.unschedule(&id("a"), "r").await.unwrap());
    assert!(!rig.manager.unschedule(&id("a"), "r").await.unwrap());
    open(&rig.gate);
    sleep(HOUR).await;
    assert_eq!((rig.asked(), rig.listed().await.len()), (vec![10], 0));
    assert_eq!(sent(&rig.store, &id("a")).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn schedule_that_is_replaced_during_its_run_keeps_its_entry() {
    let rig = Rig::gated(Duration::from_secs(1)).await;
    rig.manager.schedule(&id("a"), "r", Schedule::every(Duration::from_secs(10), "Go")).await.unwrap();
    sleep(Duration::from_secs(12)).await;
    let due = rig.manager.schedule(&id("a"), "r", Schedule::every(HOUR, "Else")).await.unwrap();
    open(&rig.gate);
    sleep(Duration::from_mins(1)).await;
    let listed = rig.listed().await;
    assert_eq!((listed.len(), listed[0].due), (1, due));
    assert_eq!(rig.asked(), [10]);
    sleep(HOUR).await;
    assert!(matches!(rig.asked()[..], [10, 3611..=3613]), "{:?}", rig.asked());
}

#[tokio::test(start_paused = true)]
async fn schedule_whose_conversation_cannot_be_opened_is_tried_again() {
    let (attempts, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, causes) = (Arc::clone(&attempts), Arc::clone(&seen));
    let asked = Arc::<Mutex<Vec<u64>>>::default();
    let gate = Gate::new();
    open(&gate);
    let (log, passes, begun) = (Arc::clone(&asked), gate.clone(), Instant::now());
    let rig = Rig::with(Duration::from_millis(100), move |builder| {
        builder.starter(move |wake| {
            if let WakeCause::Schedule { name, .. } = &wake.cause {
                causes.lock().unwrap().push(name.clone());
            }
            match count.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("the starter fails"),
                1 => Some(OpenOptions::new(Agent::builder().model("nobody:nothing"))),
                2 => None,
                _ => Some(options(&log, &passes, begun)),
            }
        })
    })
    .await;
    rig.manager.close(&id("a")).await.unwrap();
    rig.overdue("r", HOUR, Schedule::at(Timestamp(1), "Go")).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!((attempts.load(Ordering::SeqCst), asked.lock().unwrap().len()), (4, 1));
    let causes = seen.lock().unwrap().clone();
    assert_eq!((causes, rig.listed().await.len()), (vec!["r".to_owned(); 4], 0));
}

#[tokio::test(start_paused = true)]
async fn schedules_that_no_store_or_conversation_can_keep_are_refused() {
    let rig = Rig::new(HOUR).await;
    let kind = async |name: &str, schedule: Schedule| {
        rig.manager.schedule(&id("a"), name, schedule).await.unwrap_err().kind()
    };
    let hourly = |prompt: Prompt| Schedule::every(HOUR, prompt);
    for name in ["", "a/b", "a b", "ä", "a@b", &"n".repeat(33)] {
        assert_eq!(kind(name, hourly("Go".into())).await, ErrorKind::InvalidSettings, "{name:?}");
    }
    let keyed = Prompt::new("Go").with_options(Options::default().with_api_key("secret"));
    assert_eq!(kind("r", hourly(keyed)).await, ErrorKind::InvalidPrompt);
    let model = Prompt::new("Go").with_model(ScriptedProvider::new([]).model());
    assert_eq!(kind("r", hourly(model)).await, ErrorKind::InvalidPrompt);
    assert_eq!(kind("r", hourly(Prompt::default())).await, ErrorKind::EmptyPrompt);
    assert_eq!(kind("r", hourly(Prompt::new("Go").with_max_steps(0))).await, ErrorKind::InvalidSettings);
    let missing = rig.manager.schedule(&id("b"), "r", hourly("Go".into())).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for number in 0..64 {
        let name = format!("a_B.{number:-<28}");
        rig.manager.schedule(&id("a"), &name, hourly("Go".into())).await.unwrap();
    }
    assert_eq!(kind("r", hourly("Go".into())).await, ErrorKind::InvalidSettings);
    rig.manager.schedule(&id("a"), &format!("a_B.{:-<28}", 7), hourly("Again".into())).await.unwrap();
    assert_eq!(rig.manager.schedules(&Filter::default(), Page::first(100)).await.unwrap().len(), 64);
    rig.manager.delete(&id("a")).await.unwrap();
    assert_eq!(rig.listed().await, []);
}

#[tokio::test]
async fn schedule_in_a_store_of_files_is_unsupported() {
    let folder = std::env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
    let store = FileSystemStore::open(&folder).await.unwrap();
    store.write(&id("a"), &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let manager = Manager::builder(store.clone()).build();
    let error = manager.schedule(&id("a"), "r", Schedule::every(HOUR, "Go")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let change = Change::schedule(ScheduleChange::new("r", None));
    let error = store.write(&id("a"), &Write::first(), &change).await.unwrap_err();
    assert_eq!(error.to_string(), "the store does not support schedules; use a store that does");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(start_paused = true)]
async fn task_that_fires_ends_with_the_last_handle() {
    let rig = Rig::gated(Duration::from_secs(1)).await;
    rig.overdue("r", HOUR, Schedule::at(Timestamp(1), "Go")).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.asked().len(), 1, "the run waits");
    let Rig { store, manager, asked, gate } = rig;
    drop(manager);
    sleep(Duration::from_secs(3)).await;
    open(&gate);
    sleep(HOUR).await;
    let list = store.schedules(&Schedules::All, &Listing::default()).await.unwrap();
    assert_eq!((list.schedules.len(), asked.lock().unwrap().len()), (1, 1), "nobody has moved the schedule");
}

#[tokio::test(start_paused = true)]
async fn schedule_whose_starter_has_invalid_settings_stays_until_they_are_valid() {
    let (attempts, asked, gate) = (AtomicUsize::new(0), Arc::<Mutex<Vec<u64>>>::default(), Gate::new());
    open(&gate);
    let (log, passes, begun) = (Arc::clone(&asked), gate.clone(), Instant::now());
    let rig = Rig::with(Duration::from_secs(1), move |builder| {
        builder.starter(move |_| match attempts.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let model = ScriptedProvider::new([]).model();
                Some(OpenOptions::new(Agent::builder().model(model).max_steps(0)))
            }
            _ => Some(options(&log, &passes, begun)),
        })
    })
    .await;
    rig.manager.close(&id("a")).await.unwrap();
    rig.overdue("r", HOUR, Schedule::at(Timestamp(1), "Go")).await;
    sleep(Duration::from_mins(1)).await;
    let listed = rig.listed().await.len();
    assert_eq!((asked.lock().unwrap().len(), listed), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn time_after_a_skipped_one_is_not_missed() {
    let rig = Rig::new(HOUR).await;
    let every = Schedule::every(Duration::from_mins(10), "Go").missed(Missed::Skip(Duration::from_mins(1)));
    rig.overdue("r", Duration::from_mins(55), every).await;
    // This wakes the sweep.
    let far = Timestamp(rig.store.now().0 + 10 * 3_600_000);
    rig.manager.schedule(&id("a"), "far", Schedule::at(far, "Go")).await.unwrap();
    sleep(Duration::from_mins(6)).await;
    assert_eq!(rig.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn schedule_that_waits_for_slow_openings_can_be_removed() {
    let rig = Rig::with(Duration::from_secs(1), |builder| {
        builder.recovery_timeout(Duration::from_mins(1)).starter(|_| {
            let model = ScriptedProvider::new([Step::text("Done.")]).model();
            Some(OpenOptions::new(Agent::builder().model(model).callbacks(NeverReady)))
        })
    })
    .await;
    for number in 0..16 {
        let slow = id(&format!("slow-{number}"));
        rig.store.write(&slow, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
        set(&rig.store, &slow, "r", Timestamp(1), Schedule::at(Timestamp(1), "Go")).await;
    }
    open(&rig.gate);
    set(&rig.store, &id("a"), "r", Timestamp(2), Schedule::at(Timestamp(2), "Go")).await;
    sleep(Duration::from_secs(5)).await;
    assert!(rig.manager.unschedule(&id("a"), "r").await.unwrap());
    sleep(Duration::from_mins(3)).await;
    assert_eq!(rig.asked().len(), 0);
}

/// Callbacks whose `init` never returns.
struct NeverReady;

#[async_trait]
impl AgentCallbacks for NeverReady {
    async fn init(&mut self, _: &mut StateEdit, _: &State) -> Result<(), Box<dyn Error + Send + Sync>> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn schedule_whose_times_cannot_be_computed_here_stays() {
    let rig = Rig::new(Duration::from_secs(1)).await;
    let mut events = rig.manager.subscribe();
    let cron = json!({ "cron": { "pattern": "0 9 * * *", "zone": "Mars/North" } });
    let prompt = serde_json::to_value(Prompt::new("Go")).unwrap();
    let schedule = serde_json::from_value(json!({ "timing": cron, "prompt": prompt })).unwrap();
    rig.overdue("r", HOUR, schedule).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!((rig.asked().len(), rig.listed().await.len()), (0, 1));
    let mut reasons = Vec::new();
    while let Some(Some(Update::Event(numbered))) = events.next().now_or_never() {
        if let ManagerEvent::NotFired { reason, .. } = &*numbered.event {
            reasons.push(reason.to_string());
        }
    }
    let expected = usize::from(cfg!(feature = "cron"));
    assert_eq!(reasons.len(), expected, "{reasons:?}");
    assert!(reasons.iter().all(|reason| reason.contains("Mars/North")), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn schedule_whose_run_is_ended_by_a_close_is_not_sent_again() {
    let (asked, gate, begun) = (Arc::<Mutex<Vec<u64>>>::default(), Gate::new(), Instant::now());
    let (log, passes) = (Arc::clone(&asked), gate.clone());
    let rig = Rig::with(Duration::from_secs(1), move |builder| {
        builder.starter(move |_| Some(options(&log, &passes, begun).durable(Durable::Turns)))
    })
    .await;
    rig.manager.close(&id("a")).await.unwrap();
    rig.overdue("r", HOUR, Schedule::at(Timestamp(1), "Go")).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(asked.lock().unwrap().len(), 1);
    rig.manager.close(&id("a")).await.unwrap();
    sleep(Duration::from_mins(1)).await;
    let listed = rig.listed().await.len();
    assert_eq!((asked.lock().unwrap().len(), listed), (1, 0));
}

/// Two managers that share a store with leases.
#[cfg(feature = "sqlite")]
mod shared {
    use omni_agent::store::{
        Owner,
        custom::{StoreTraits, Version},
    };

    use super::*;
    use crate::{lives::in_a_life, stores::sqlite_with_leases};

    fn manager(store: Arc<dyn Store>, owner: &str) -> Manager {
        let every = Sweep::every(Duration::from_millis(20));
        let builder = Manager::builder(store).owner(Owner::new(owner)).sweep(every);
        builder.starter(|_| Some(options(&Arc::default(), &open_gate(), Instant::now()))).build()
    }

    fn open_gate() -> Gate {
        let gate = Gate::new();
        open(&gate);
        gate
    }

    async fn create(store: &dyn Store, id: &ConversationId) {
        store.write(id, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    }

    async fn left(store: &dyn Store) -> usize {
        store.schedules(&Schedules::All, &Listing::default()).await.unwrap().schedules.len()
    }

    #[tokio::test]
    async fn each_schedule_fires_once_with_two_managers_on_one_store() {
        let place = sqlite_with_leases(Duration::from_secs(30)).await;
        let store = Arc::clone(&place.store);
        let ids: Vec<_> = (0..20).map(|number| id(&format!("c{number}"))).collect();
        for id in &ids {
            create(&*store, id).await;
            set(&*store, id, "one", Timestamp(1), Schedule::at(Timestamp(1), "Go")).await;
            set(&*store, id, "two", Timestamp(2), Schedule::at(Timestamp(2), "Go")).await;
        }
        let managers = ["ann", "ben"].map(|owner| manager(Arc::clone(&store), owner));
        for manager in &managers {
            manager.schedules(&Filter::default(), Page::default()).await.unwrap();
        }
        until!("all schedules are over", left(&*store).await == 0);
        for id in &ids {
            let mut sent = sent(&*store, id).await;
            sent.sort();
            assert_eq!(sent, ["omni.one.7@1", "omni.two.7@2"]);
        }
        for manager in managers {
            manager.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }

    /// The places at which a process dies.
    const STEPS: [&str; 8] =
        ["listed", "acquire", "record", "recorded", "commit", "committed", "move", "moved"];

    /// A store that never returns from one step.
    struct StepStore {
        store: Arc<dyn Store>,
        step: &'static str,
        reached: Gate,
    }

    impl StepStore {
        async fn stop(&self, step: &str) {
            if self.step == step {
                self.reached.open();
                std::future::pending::<()>().await;
            }
        }
    }

    #[async_trait]
    impl Store for StepStore {
        forward!(self.store: load, summary, list, delete, turn, release);

        fn traits(&self) -> StoreTraits {
            self.store.traits()
        }

        async fn write(
            &self,
            id: &ConversationId,
            write: &Write,
            change: &Change,
        ) -> Result<Version, StoreError> {
            let (before, after) = match change {
                Change::Schedule(_) => ("move", "moved"),
                Change::Commit(commit) if !commit.nodes.is_empty() => ("commit", "committed"),
                _ => ("record", "recorded"),
            };
            self.stop(before).await;
            let version = self.store.write(id, write, change).await;
            self.stop(after).await;
            version
        }

        async fn acquire(
            &self,
            id: &ConversationId,
            owner: &Owner,
        ) -> Result<omni_agent::store::custom::Lease, StoreError> {
            let lease = self.store.acquire(id, owner).await;
            self.stop("acquire").await;
            lease
        }

        async fn renew(
            &self,
            leases: &[(ConversationId, omni_agent::store::custom::Lease)],
        ) -> Result<Vec<ConversationId>, StoreError> {
            self.store.renew(leases).await
        }

        async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
            self.store.turns(which, listing).await
        }

        async fn schedules(&self, which: &Schedules, listing: &Listing) -> Result<ScheduleList, StoreError> {
            let list = self.store.schedules(which, listing).await;
            self.stop("listed").await;
            list
        }
    }

    #[test]
    fn schedule_whose_process_dies_between_any_two_steps_fires_once() {
        for step in STEPS {
            let place = in_a_life(async { sqlite_with_leases(Duration::from_millis(300)).await });
            let store = Arc::clone(&place.store);
            let first = Arc::clone(&store);
            in_a_life(async move {
                create(&*first, &id("a")).await;
                set(&*first, &id("a"), "r", Timestamp(1), Schedule::at(Timestamp(1), "Go")).await;
                let reached = Gate::new();
                let stops = StepStore { store: first, step, reached: reached.clone() };
                let manager = manager(Arc::new(stops), "ann");
                let schedules = manager.clone();
                // The call of the test itself may be the one that never returns.
                let begun = tokio::spawn(async move {
                    schedules.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
                });
                reached.pass().await;
                begun.abort();
                manager
            });
            let last = Arc::clone(&store);
            in_a_life(async move {
                let manager = manager(Arc::clone(&last), "ben");
                manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
                until!("the schedule is over", left(&*last).await == 0);
                manager.shutdown(Duration::from_secs(10)).await.unwrap();
                assert_eq!(sent(&*last, &id("a")).await, ["omni.r.7@1"], "{step}");
                let nodes = last.load(&id("a")).await.unwrap().nodes;
                assert_eq!(nodes.len(), 2, "{step}: the prompt has one answer");
            });
        }
    }
}

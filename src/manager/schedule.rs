//! Schedules: prompts that the manager sends at set times.
//!
//! A schedule is a row of the store: the time `due`, a random number `rev` of its version, and the [`Schedule`]. One task of
//! the manager lists what is due by the store's clock, oldest first, and sleeps until the next time that it knows. Each
//! firing is a task of three steps:
//!
//! 1. Accept: open the conversation, look for the prompt in the tree, and send it unless the tree has it. Its id is made
//!    of the name, `rev` and `due`, so one session accepts it once.
//! 2. Wait for the end of the prompt's run, and until the run is stored.
//! 3. Move: set the next time, or remove the row, if `due` and `rev` are still the ones that were read.
//!
//! Nothing is kept outside of the row and the conversation, so a process may die between any two steps. Another one reads
//! the same row, and its session knows the prompt: by the record of the turn, or by the tree. A run that was lost with its
//! process is started again. At an error, the row stays, and later sweeps try again.
//!
//! - Two processes try: one owns the conversation. The other one gets `OpenElsewhere`, and leaves the firing to it. One
//!   compare-and-set wins.
//! - The schedule is replaced or removed during a firing: `rev` differs, so the firing moves nothing.
//! - A time passes during a run: `due` has not moved, so a schedule never runs twice at a time. A time that was skipped
//!   meanwhile by another process has the same `rev`, for which this process already waits.
//! - The clock jumps: no time is early, because the store's clock decides about each list. A sleep that is too long ends
//!   with the interval of the sweep.
//! - A store or a conversation fails: each failure doubles the delay of the next attempt.
//! - The opening fails: the row stays. Only a refusal of the prompt itself moves it.
//! - The next time can't be computed, such as in an unknown time zone: the row stays. Only a pattern without a later time
//!   ends a schedule.
//! - The prompt is staged, and the run before it fails or is cancelled: the row stays. If somebody withdraws the prompt,
//!   the row moves.
//! - Many openings are slow: a sweep waits for none of them. It ends, and the next opening that is done begins another one,
//!   with a fresh list.
//! - Somebody closes the session during the run: the close stores what is kept, and the schedule moves.
//! - The manager is dropped: the firings that wait hold no manager, and end with the task. The manager is shut down: no
//!   firing moves its row any more, because the outcome may be that of the shutdown.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Manager, ManagerShared, Wake, WakeCause,
    conversation::OpenerFn,
    opening::aborted,
    recovery::{LONGEST_BETWEEN_FAILURES, MOST_FAILURES, MOST_PER_SWEEP, PAGE, PARALLEL, delay, with_jitter},
};
use crate::{
    error_chain,
    message::Timestamp,
    panics::contained_async,
    run::{Error, ErrorKind, Missed, Prompt, PromptId, RunEnd, Schedule},
    session::{Session, SessionSnapshot},
    store::{
        Change, ConversationId, Filter, Listing, MAX_SCHEDULES, Page, Position, ScheduleChange,
        ScheduleEntry, ScheduleList, Scheduled, Schedules, StoreError, Write,
    },
    subscription::EndReason,
    sync::lock,
    time::{SHORTEST_INTERVAL, moment_after},
};

/// The greatest length of a schedule's name, in bytes.
const MAX_NAME: usize = 32;
/// The time for which the end of a firing waits for its run to be stored.
const STORING: Duration = Duration::from_mins(1);

impl Manager {
    /// Stores a schedule, which sends its prompt to the conversation at set times. Returns the first time. A schedule of
    /// this name is replaced.
    ///
    /// Any manager with a [starter](super::ManagerBuilder::starter) that shares the store sends the prompt. Without a
    /// starter, or with a [sweep](super::Sweep) that is off, this manager only stores the schedule. The starter gets the
    /// cause [`WakeCause::Schedule`]. If the conversation is open in another process, only that process can send the
    /// prompt, so it needs a starter, too. If a run is active, the prompt is staged. It is sent again if that run fails or
    /// is cancelled. If the prompt is refused for good, the event [`NotFired`](super::ManagerEvent::NotFired) reports it,
    /// and the schedule continues with its next time.
    ///
    /// Times are those of the store's clock. No prompt is sent early. A manager sends the prompts of its own schedules
    /// about one second late at most. Other managers learn of a schedule with their next [sweep](super::Sweep).
    ///
    /// A schedule waits for the end of its run before its next time, so it never overlaps with itself. With
    /// [`Durable::InFlight`](crate::agent::Durable::InFlight), the prompt of each time is sent once. With the other
    /// levels, a prompt is sent again if its run is lost with its process.
    ///
    /// A conversation has at most 64 schedules. They are deleted with it. A fork, a copy and an export have none.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let model = ScriptedProvider::new([Step::text("All is well.")]).model();
    /// use std::time::Duration;
    /// use omni_agent::{
    ///     Agent,
    ///     manager::{Manager, OpenOptions},
    ///     run::Schedule,
    ///     store::{ConversationId, Filter, MemoryStore, Page},
    /// };
    ///
    /// let start = move || OpenOptions::new(Agent::builder().model(model.clone()));
    /// let opened = start.clone();
    /// let manager = Manager::builder(MemoryStore::new()).starter(move |_| Some(opened())).build();
    /// let id = ConversationId::new("watch")?;
    /// manager.create_with_id(&id, start()).await?;
    ///
    /// let hourly = Schedule::every(Duration::from_hours(1), "Is the service healthy?");
    /// let first = manager.schedule(&id, "health", hourly).await?;
    /// assert_eq!(manager.schedules(&Filter::default(), Page::default()).await?[0].due, first);
    /// assert!(manager.unschedule(&id, "health").await?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidSettings`] if the name does not have 1 to 32 ASCII letters, digits, `_`, `.` and `-`, if the
    ///   conversation has 64 other schedules, or if the time of the schedule can't be computed.
    /// - [`ErrorKind::InvalidPrompt`] if the prompt has a model, an API key or headers, which are not stored. Also the
    ///   other errors of a prompt that can never be sent, such as [`ErrorKind::EmptyPrompt`].
    /// - [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`] if the store keeps no schedules, or another error of the
    ///   store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may still be stored.
    pub async fn schedule(
        &self,
        id: &ConversationId,
        name: &str,
        schedule: Schedule,
    ) -> Result<Timestamp, Error> {
        self.0.begin_sweeping();
        check_name(name)?;
        check_prompt(&schedule.prompt)?;
        let ScheduleList { now, schedules } = self.0.schedules_of(id).await?;
        if schedules.iter().filter(|own| own.name != name).count() >= MAX_SCHEDULES {
            let text = format!(
                "conversation {id} has {MAX_SCHEDULES} schedules, which is the maximum; remove one of them"
            );
            return Err(Error::new(ErrorKind::InvalidSettings, text).with_member("limit", MAX_SCHEDULES));
        }
        let due = schedule.first(now)?;
        let entry = ScheduleEntry::new(due, rand::random(), schedule);
        self.0.change_schedule(id, ScheduleChange::new(name, Some(entry))).await?;
        self.0.recovery.scheduled.notify_one();
        Ok(due)
    }

    /// Removes a schedule, and returns whether the conversation had one of this name. A run that it has started
    /// continues.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSettings`] if the name is invalid, [`ErrorKind::NotFound`] if the conversation does not exist,
    /// or another error of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may still be removed.
    pub async fn unschedule(&self, id: &ConversationId, name: &str) -> Result<bool, Error> {
        check_name(name)?;
        let known = self.0.schedules_of(id).await?.schedules.iter().any(|own| own.name == name);
        // This also reports a conversation that does not exist.
        self.0.change_schedule(id, ScheduleChange::new(name, None)).await?;
        Ok(known)
    }

    /// Returns the schedules of the conversations that match the filter by their stored labels, by their next times. A
    /// page contains all schedules that a conversation has for one time, so it may be longer than its limit.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, such as [`ErrorKind::Unsupported`] if the store keeps no schedules, or if there is
    /// a filter and the store does not support labels.
    pub async fn schedules(&self, filter: &Filter, page: Page) -> Result<Vec<Scheduled>, Error> {
        self.0.begin_sweeping();
        let listing = self.0.checked((filter.clone(), page))?;
        Ok(self.0.store.schedules(&Schedules::All, &listing).await?.schedules)
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let text = format!(
        "{name:?} is not a valid name of a schedule: use 1 to {MAX_NAME} ASCII letters, digits, `_`, `.` and `-`"
    );
    Err(Error::new(ErrorKind::InvalidSettings, text))
}

fn check_prompt(prompt: &Prompt) -> Result<(), Error> {
    if prompt.has_unserialised_parts() {
        let text = "a schedule can't store the model, the API key or the headers of its prompt; set them where the \
                    conversation is opened";
        return Err(Error::new(ErrorKind::InvalidPrompt, text));
    }
    prompt.check()?;
    // While a run is active, the prompt is staged.
    prompt.check_staged().map_err(|error| Error::new(ErrorKind::InvalidPrompt, error.to_string()))?;
    if prompt.content.is_blank() { Err(Error::empty_prompt()) } else { Ok(()) }
}

/// A schedule in one version, whatever its next time is.
type FiringKey = (ConversationId, String, u32);

/// The end of a firing.
enum FiringEnd {
    /// The row has moved, or belongs to a newer schedule. Contains the time until the next firing, if there is one.
    Moved(Option<Duration>),
    /// Nothing was done, because no place is free, or because of a shutdown.
    Left,
    /// Nothing was done, because another process is responsible.
    Elsewhere,
}

/// What became of a schedule on the list.
enum Considered {
    /// It is fired, or needs nothing now.
    Done,
    /// Its next time is this far ahead.
    Later(Duration),
    /// Too many firings have prompts that are not accepted yet.
    Full,
}

/// The places for conversations that firings open.
#[derive(Default)]
struct OpeningCounts {
    /// The number of openings that have a place and have not returned.
    opening: usize,
    /// The number of openings that the current sweep has begun, without those of other processes.
    opened: usize,
    /// The number of requests that could start at the beginning of the sweep.
    room: usize,
}

/// The place of one firing, if it has opened the conversation.
struct OpeningPlace {
    counts: Arc<Mutex<OpeningCounts>>,
    is_taken: AtomicBool,
}

impl OpeningPlace {
    fn take(&self, inner: &ManagerShared) -> bool {
        let mut counts = lock(&self.counts);
        let has_room = counts.opened < counts.room
            && inner.registry().has_room_for_recovery(counts.opening, counts.opened);
        if has_room && !self.is_taken.swap(true, Ordering::Relaxed) {
            counts.opening += 1;
            counts.opened += 1;
        }
        has_room
    }

    /// Lets the sweep open another conversation, because another process has this one.
    fn give_back(&self) {
        if self.is_taken.load(Ordering::Relaxed) {
            let mut counts = lock(&self.counts);
            counts.opened = counts.opened.saturating_sub(1);
        }
    }
}

impl Drop for OpeningPlace {
    fn drop(&mut self) {
        if *self.is_taken.get_mut() {
            lock(&self.counts).opening -= 1;
        }
    }
}

/// The state of the task that fires schedules.
struct ScheduleSweeper {
    starter: Arc<OpenerFn>,
    /// The interval of the sweeps.
    every: Duration,
    /// The position after which the next sweep continues.
    after: Option<Position>,
    /// The firings that have begun.
    tasks: JoinSet<(FiringKey, Result<FiringEnd, Error>)>,
    running: HashSet<FiringKey>,
    /// The number of failures of schedules, and the moments of their next attempts.
    failures: HashMap<FiringKey, (u32, Instant)>,
    /// The schedules whose next times can't be computed, as an event has reported.
    reported: HashSet<FiringKey>,
    /// A permit for each prompt that has not been accepted yet.
    permits: Arc<Semaphore>,
    /// Whether a sweep has ended because no permit was free. The next free one begins another sweep.
    is_full: Arc<AtomicBool>,
    counts: Arc<Mutex<OpeningCounts>>,
}

impl ManagerShared {
    async fn schedules_of(&self, id: &ConversationId) -> Result<ScheduleList, StoreError> {
        let all = Listing::from(Page::first(usize::MAX >> 1));
        self.store.schedules(&Schedules::Of(id.clone()), &all).await
    }

    async fn change_schedule(&self, id: &ConversationId, change: ScheduleChange) -> Result<(), StoreError> {
        self.store.write(id, &Write::first(), &Change::schedule(change)).await.map(drop)
    }

    /// Starts the task that fires schedules.
    pub(super) fn begin_firing(self: &Arc<Self>, starter: &Arc<OpenerFn>, every: Duration) {
        let inner = Arc::downgrade(self);
        let (gone, scheduled) = (self.recovery.alive.token().clone(), Arc::clone(&self.recovery.scheduled));
        let mut sweeper = ScheduleSweeper {
            starter: Arc::clone(starter),
            every,
            after: None,
            tasks: JoinSet::new(),
            running: HashSet::new(),
            failures: HashMap::new(),
            reported: HashSet::new(),
            permits: Arc::new(Semaphore::new(PARALLEL)),
            is_full: Arc::default(),
            counts: Arc::default(),
        };
        // The task belongs to no caller, so it has no span of a caller.
        tokio::spawn(async move {
            loop {
                let Some(inner) = inner.upgrade().filter(|inner| !inner.registry().is_shut) else { return };
                let wait = sweeper.sweep_contained(&inner).await;
                drop(inner);
                let mut until = moment_after(wait);
                loop {
                    tokio::select! {
                        biased;
                        () = gone.cancelled() => return,
                        Some(ended) = sweeper.tasks.join_next() => {
                            let next = ended.ok().and_then(|(key, end)| sweeper.ended(key, end));
                            until = next.map_or(until, |next| until.min(moment_after(next)));
                        }
                        () = scheduled.notified() => break,
                        () = sleep_until(until) => break,
                    }
                }
            }
        });
    }

    /// Reports a schedule whose prompt was refused for good.
    fn report_not_fired(&self, due: &Scheduled, error: &Error) {
        let (id, name, reason) = (&due.id, &due.name, error_chain(error));
        tracing::warn!(%id, name, error = reason, "the prompt of a schedule was refused");
        self.registry().emit_not_fired(id, name, reason);
    }
}

impl ScheduleSweeper {
    /// Runs one sweep, and returns the time until the next one. A panic of the store ends only this sweep.
    async fn sweep_contained(&mut self, inner: &Arc<ManagerShared>) -> Duration {
        let every = self.every;
        let swept = async {
            tokio::select! {
                biased;
                swept = contained_async(self.sweep(inner)) => swept,
                () = inner.shutting.cancelled() => Ok(Ok(every)),
            }
        };
        match swept.await {
            Ok(Ok(wait)) => return wait.max(SHORTEST_INTERVAL),
            Ok(Err(error)) => tracing::warn!(%error, "the schedules that are due could not be listed"),
            Err(panic) => tracing::error!(panic, "a sweep for schedules panicked; the next one follows"),
        }
        with_jitter(every)
    }

    async fn sweep(&mut self, inner: &Arc<ManagerShared>) -> Result<Duration, StoreError> {
        {
            let mut counts = lock(&self.counts);
            (counts.opened, counts.room) = (0, inner.limits.room());
        }
        let horizon = Schedules::Within(self.every.saturating_mul(2));
        let (mut seen, mut wait) = (0, with_jitter(self.every));
        loop {
            let page = Page { after: self.after.take(), ..Page::first(PAGE) };
            let listing = inner.checked((inner.recovery.sweep.filter.clone(), page))?;
            let begun = Instant::now();
            let list = in_time(inner, inner.store.schedules(&horizon, &listing)).await?;
            let after = list.schedules.last().filter(|_| list.schedules.len() >= PAGE).map(Position::from);
            seen += list.schedules.len();
            for due in list.schedules {
                if due.due > list.now {
                    return Ok(wait.min(due.due.since(list.now)));
                }
                match self.consider(inner, due, list.now, begun).await {
                    Considered::Done => {}
                    Considered::Later(time) => wait = wait.min(time),
                    // The list would be old when a permit is free, so the next sweep reads it again.
                    Considered::Full => {
                        self.after = listing.page.after;
                        return Ok(wait);
                    }
                }
            }
            self.after = after;
            if self.after.is_none() || seen >= MOST_PER_SWEEP {
                return Ok(wait);
            }
        }
    }

    /// Begins to fire a schedule that is due, unless there is a reason not to.
    async fn consider(
        &mut self,
        inner: &Arc<ManagerShared>,
        mut due: Scheduled,
        now: Timestamp,
        begun: Instant,
    ) -> Considered {
        let key = (due.id.clone(), due.name.clone(), due.rev);
        let waits = self.failures.get(&key).is_some_and(|(_, next)| Instant::now() < *next);
        if waits || self.running.contains(&key) {
            return Considered::Done;
        }
        if let Some(problem) = &due.damage {
            tracing::warn!(id = %due.id, name = due.name, problem, "a schedule can't be read, so it is not fired");
            return Considered::Done;
        }
        let late = match due.schedule.missed {
            Missed::Skip(late) if now.since(due.due) > late => Some(late),
            _ => None,
        };
        let next = late.map_or(now, |late| now.before(late).before(Duration::from_millis(1)));
        let next = match due.schedule.next(due.due, next) {
            Ok(next) => {
                self.reported.remove(&key);
                next
            }
            // This process never sends it. Another one may.
            Err(error) if error.kind() == ErrorKind::Unsupported => return Considered::Done,
            // A later version of the program or of the machine's database of time zones may compute it.
            Err(error) => {
                if self.reported.len() < MOST_FAILURES && self.reported.insert(key.clone()) {
                    inner.registry().emit_not_fired(&due.id, &due.name, error_chain(&error));
                }
                self.ended(key, Err(error));
                return Considered::Done;
            }
        };
        if late.is_some() {
            let moved = in_time(inner, inner.change_schedule(&due.id, moved(&due, next))).await;
            match (moved, next) {
                (Ok(()), Some(next)) if next <= now => due.due = next,
                (Ok(()), Some(next)) => return Considered::Later(next.since(now)),
                (Ok(()) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }), _) => {
                    return Considered::Done;
                }
                (Err(error), _) => {
                    self.ended(key, Err(error.into()));
                    return Considered::Done;
                }
            }
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().or_else(|_| {
            // A permit that becomes free from here on begins a sweep. One may have become free before.
            self.is_full.store(true, Ordering::SeqCst);
            Arc::clone(&self.permits).try_acquire_owned()
        });
        let Ok(permit) = permit else { return Considered::Full };
        let place = OpeningPlace { counts: Arc::clone(&self.counts), is_taken: AtomicBool::new(false) };
        let is_full = Arc::clone(&self.is_full);
        let firing = Firing { inner: Arc::downgrade(inner), due, now, begun, is_full };
        let (manager, starter, id) = (Arc::clone(inner), Arc::clone(&self.starter), key.0.clone());
        self.running.insert(key.clone());
        let fired = async move {
            let end = contained_async(firing.fire(manager, starter, permit, place)).await;
            (key, end.unwrap_or_else(|panic| Err(aborted(&id, &panic))))
        };
        // A firing belongs to no caller, so it has no span of a caller.
        self.tasks.spawn(fired);
        Considered::Done
    }

    /// Notes the end of a firing, and returns the time until the next sweep that it needs.
    fn ended(&mut self, key: FiringKey, end: Result<FiringEnd, Error>) -> Option<Duration> {
        self.running.remove(&key);
        let before = self.failures.get(&key).map_or(0, |(count, _)| *count);
        let again = before.saturating_add(1);
        let (count, wait) = match end {
            Ok(FiringEnd::Moved(next)) => {
                self.failures.remove(&key);
                return next;
            }
            // The next sweep looks again.
            Ok(FiringEnd::Left) => (before, self.every / 2),
            // Schedules of other processes must not keep this one from its own.
            Ok(FiringEnd::Elsewhere) => (again, self.every.saturating_mul(1 << again.min(3)) / 2),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(id = %key.0, name = key.1, error, "a schedule could not be fired; it is tried again");
                (again, delay(again, LONGEST_BETWEEN_FAILURES))
            }
        };
        if self.failures.len() >= MOST_FAILURES && !self.failures.contains_key(&key) {
            let now = Instant::now();
            self.failures.retain(|_, (_, next)| *next > now);
        }
        if self.failures.len() < MOST_FAILURES || self.failures.contains_key(&key) {
            self.failures.insert(key, (count, moment_after(wait)));
        }
        None
    }
}

/// One time of a schedule.
struct Firing {
    inner: Weak<ManagerShared>,
    due: Scheduled,
    /// The time at which the firing has begun, by the store's clock. It stands for all times until then.
    now: Timestamp,
    /// The same time, by the clock of the process.
    begun: Instant,
    /// Whether a sweep waits for a permit.
    is_full: Arc<AtomicBool>,
}

impl Firing {
    async fn fire(
        self,
        inner: Arc<ManagerShared>,
        starter: Arc<OpenerFn>,
        permit: OwnedSemaphorePermit,
        place: OpeningPlace,
    ) -> Result<FiringEnd, Error> {
        let (store, shutting) = (Arc::clone(&inner.store), inner.shutting.clone());
        let prompt = PromptId::of_schedule(&self.due.name, self.due.rev, self.due.due);
        let (limit, place) = (inner.recovery.timeout, Arc::new(place));
        let accepted = timeout(limit, self.accept(&inner, starter, &place, &prompt)).await;
        drop(permit);
        if self.is_full.swap(false, Ordering::SeqCst) {
            inner.recovery.scheduled.notify_one();
        }
        let late = || aborted(&self.due.id, &format!("the prompt was not accepted within {limit:?}"));
        match accepted.unwrap_or_else(|_| Err(late())) {
            Ok((session, Ok(before))) => {
                // A run can take days. It keeps neither the manager nor the place of the opening.
                drop((inner, place));
                match session.outcome(prompt.clone()).await {
                    Err(error) if error.kind() != ErrorKind::UnknownPrompt => return Err(error),
                    // The run for whose end it waited has failed or was cancelled, so a later sweep sends it.
                    Err(error) if was_returned(&session, &prompt, before).await? => return Err(error),
                    // Otherwise, the prompt was in the tree, or was withdrawn.
                    _ => stored(&session).await?,
                }
            }
            Ok((_, Err(error))) => inner.report_not_fired(&self.due, &error),
            Err(error) => {
                return match error.kind() {
                    ErrorKind::OpenElsewhere | ErrorKind::NotFound => {
                        place.give_back();
                        Ok(FiringEnd::Elsewhere)
                    }
                    ErrorKind::NotOpened | ErrorKind::ShutDown => Ok(FiringEnd::Left),
                    _ => Err(error),
                };
            }
        }
        if shutting.is_cancelled() {
            return Ok(FiringEnd::Left);
        }
        let next = self.due.schedule.next(self.due.due, self.now)?;
        let change = Change::schedule(moved(&self.due, next));
        let written = timeout(limit, store.write(&self.due.id, &Write::first(), &change)).await;
        match written.unwrap_or_else(|_| Err(too_late(limit))) {
            Ok(_) => {
                let wait = |next: Timestamp| next.since(self.now).saturating_sub(self.begun.elapsed());
                Ok(FiringEnd::Moved(next.map(wait)))
            }
            Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => Ok(FiringEnd::Moved(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the prompt, unless the conversation has it. Returns the end of the run before, or the error if the prompt can
    /// never be accepted. An error of the opening says nothing about the prompt.
    async fn accept(
        &self,
        inner: &Arc<ManagerShared>,
        starter: Arc<OpenerFn>,
        place: &Arc<OpeningPlace>,
        id: &PromptId,
    ) -> Result<(Session, Result<Option<Arc<RunEnd>>, Error>), Error> {
        let (manager, place) = (Weak::clone(&self.inner), Arc::clone(place));
        let opener = move |wake: &Wake| {
            let options = starter(wake)?;
            manager.upgrade().is_some_and(|inner| place.take(&inner)).then(|| options.subscribe(None))
        };
        let conversation = Manager(Arc::clone(inner)).conversation(&self.due.id).open_with(opener);
        let prompt = Prompt { id: Some(id.clone()), ..self.due.schedule.prompt.clone() };
        let send = |session: Session| {
            let (prompt, message) = (prompt.clone(), id.clone().into());
            async move {
                let SessionSnapshot { tree, agent, .. } = session.snapshot().await?;
                if tree.find(&message).is_some() {
                    return Ok((session, Ok(agent.last_run)));
                }
                match session.prompt(prompt).await {
                    Ok(_) => Ok((session, Ok(agent.last_run))),
                    Err(error) if is_final(&error) => Ok((session, Err(error))),
                    Err(error) => Err(error),
                }
            }
        };
        let cause = WakeCause::Schedule { name: self.due.name.clone(), due: self.due.due };
        conversation.on_session(cause, send).await
    }
}

/// Returns the change that gives a schedule its next time, or removes it.
fn moved(due: &Scheduled, next: Option<Timestamp>) -> ScheduleChange {
    let entry = next.map(|next| ScheduleEntry::new(next, due.rev, due.schedule.clone()));
    ScheduleChange::new(&*due.name, entry).with_was(due.due, due.rev)
}

/// Awaits an answer of the store for a limited time. Otherwise a call that never returns would end all sweeps.
async fn in_time<T>(
    inner: &ManagerShared,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let limit = inner.recovery.timeout;
    timeout(limit, answer).await.unwrap_or_else(|_| Err(too_late(limit)))
}

fn too_late(limit: Duration) -> StoreError {
    let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    StoreError::failed("sweep the schedules", late)
}

/// Returns whether a run has ended without this prompt, which was staged. `before` is the end of the run before.
async fn was_returned(
    session: &Session,
    prompt: &PromptId,
    before: Option<Arc<RunEnd>>,
) -> Result<bool, Error> {
    let last = session.snapshot().await?.agent.last_run.filter(|last| Some(last) != before.as_ref());
    Ok(last.is_some_and(|end| end.staged.iter().any(|staged| staged.id.as_ref() == Some(prompt))))
}

/// Waits until the session has stored what it has. If somebody has closed it in the meantime, this is its last act.
async fn stored(session: &Session) -> Result<(), Error> {
    let Err(error) = session.flush(STORING).await else { return Ok(()) };
    if error.kind() != ErrorKind::Ended {
        return Err(error);
    }
    match timeout(STORING, session.ended()).await {
        Ok(end) if end.reason == EndReason::Stopped => session.stop(STORING).await,
        _ => Err(error),
    }
}

/// Returns whether the same prompt is never accepted. A model that is unknown may be known to the next version.
fn is_final(error: &Error) -> bool {
    matches!(error.status(), 400 | 403 | 422) && error.kind() != ErrorKind::UnknownModel
}

//! Continues recorded turns that nobody works on, such as those of a process that has crashed.

mod attempts;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use self::attempts::{FailedOpenings, UnownedTurnAction};
pub(super) use self::attempts::{LONGEST_BETWEEN_FAILURES, MOST_FAILURES, delay};
use super::{
    Manager, ManagerBuilder, ManagerShared, OpenOptions, Wake,
    conversation::OpenerFn,
    opening::{NewOrStoredConversation, OpenedBy, aborted, shut_down},
    sub_agent::is_of_call,
};
use crate::{
    error_chain,
    panics::contained_async,
    run::{Error, ErrorKind},
    store::{ConversationId, Filter, Labels, Page, Position, StoreError, TurnSummary, Turns},
    time::{SHORTEST_INTERVAL, scaled},
};

/// The number of turns that are read from the store at once.
pub(super) const PAGE: usize = 64;
/// The number of conversations that one sweep opens at the same time.
pub(super) const PARALLEL: usize = 16;
/// The number of turns that one sweep looks at. The next sweep continues after them.
pub(super) const MOST_PER_SWEEP: usize = 1024;
/// The time limit for opening one conversation, if the application sets no other limit.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The duration that is assumed for the leases of a store that names none.
pub(super) const USUAL_LEASE: Duration = Duration::from_secs(30);

/// When a manager looks for turns that nobody works on.
///
/// By default, a sweep runs after each third of the duration of the store's
/// [leases](crate::store::custom::StoreTraits::lease). In a store without leases, it runs every ten seconds. Each
/// interval is up to a quarter shorter or longer, so that several processes do not keep sweeping at the same moment.
///
/// ```
/// use std::time::Duration;
/// use omni_agent::manager::Sweep;
///
/// let sweep = Sweep::every(Duration::from_secs(30));
/// # let _ = sweep;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    interval: SweepInterval,
    pub(super) filter: Filter,
}

/// The interval between the sweeps of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SweepInterval {
    /// A third of the duration of the store's leases.
    #[default]
    ThirdOfLease,
    Every(Duration),
    /// The sweep does not run by itself.
    Off,
}

impl SweepInterval {
    /// Returns the interval for a store whose leases last this long.
    fn with_leases(self, lasts: Option<Duration>) -> Option<Duration> {
        match self {
            Self::ThirdOfLease => Some(lasts.unwrap_or(USUAL_LEASE) / 3),
            Self::Every(interval) => Some(interval),
            Self::Off => None,
        }
        .map(|interval| interval.max(SHORTEST_INTERVAL))
    }
}

impl Sweep {
    /// Returns a sweep that runs at this interval, which is at least ten milliseconds.
    pub fn every(interval: Duration) -> Self {
        Self { interval: SweepInterval::Every(interval), filter: Filter::default() }
    }

    /// Returns a sweep that does not run by itself. [`Manager::recover`] still runs it.
    pub fn off() -> Self {
        Self { interval: SweepInterval::Off, filter: Filter::default() }
    }

    /// Returns the same sweep for the conversations that match this filter.
    pub fn with_filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }
}

/// The result of [`Manager::recover`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Recovered {
    /// The conversations that were opened, so that their turns continue.
    pub opened: Vec<ConversationId>,
    /// The conversations that could not be opened.
    pub failed: Vec<(ConversationId, Error)>,
}

/// How a builder's manager recovers turns.
#[derive(Default)]
pub(super) struct RecoverySettings {
    starter: Option<Arc<OpenerFn>>,
    sweep: Sweep,
    timeout: Option<Duration>,
}

crate::debug::impl_debug!(RecoverySettings(self) { sweep: self.sweep, .. });

/// How a manager recovers turns, and the state of its sweeps.
pub(super) struct ManagerRecoveryState {
    starter: Option<Arc<OpenerFn>>,
    pub(super) sweep: Sweep,
    /// The time limit for opening one conversation, and for one part of the list of turns.
    pub(super) timeout: Duration,
    /// Whether the tasks of the sweep were started.
    is_sweeping: AtomicBool,
    /// The moment from which the times of attempts are counted.
    begun: Instant,
    /// Ends the tasks of the sweep when the manager is dropped.
    pub(super) alive: DropGuard,
    /// Notified when this manager has stored a schedule.
    pub(super) scheduled: Arc<Notify>,
}

impl ManagerRecoveryState {
    /// Returns the manager's starter.
    pub(super) fn starter(&self) -> Option<&OpenerFn> {
        self.starter.as_deref()
    }
}

impl RecoverySettings {
    pub(super) fn build(self) -> ManagerRecoveryState {
        let Self { starter, sweep, timeout } = self;
        ManagerRecoveryState {
            starter,
            sweep,
            timeout: timeout.unwrap_or(TIMEOUT),
            is_sweeping: AtomicBool::new(false),
            begun: Instant::now(),
            alive: CancellationToken::new().drop_guard(),
            scheduled: Arc::default(),
        }
    }
}

impl ManagerBuilder {
    crate::setters::setters! {
        /// Sets how conversations are opened without a caller that knows their options: for turns that continue after
        /// a crash or after a decision, for [schedules](Manager::schedule), and for the operations of a
        /// [`Conversation`](super::Conversation).
        ///
        /// The function gets the id and the labels of a conversation, and [why](super::WakeCause) it is opened. It
        /// returns the options. If it returns `None`, this manager does not open the conversation. With a starter, the
        /// manager [sweeps](Self::sweep) the store for recorded turns that nobody works on. It also opens a
        /// conversation when a [decision](Manager::decide) was made on each tool use of its turn. The session has no
        /// controller, so it ends after the turn like every idle session.
        ///
        /// ```
        /// # #[cfg(feature = "test-util")]
        /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        /// # use omni_agent::testing::ScriptedProvider;
        /// # let model = ScriptedProvider::new([]).model();
        /// use omni_agent::{Agent, manager::{Manager, OpenOptions}, store::MemoryStore};
        ///
        /// let manager = Manager::builder(MemoryStore::new())
        ///     .starter(move |wake| {
        ///         let tenant = wake.labels.get("tenant").unwrap_or("none");
        ///         Some(OpenOptions::new(Agent::builder().model(model.clone())).tenant(tenant))
        ///     })
        ///     .build();
        /// assert!(manager.recover().await?.opened.is_empty());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// # })?;
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub fn starter(self, starter: impl Fn(&Wake) -> Option<OpenOptions> + Send + Sync + 'static) {
            self.recovery.starter = Some(Arc::new(starter));
        }

        /// Sets when the manager looks for turns that nobody works on, and for [schedules](Manager::schedule) that are
        /// due, between the times that it knows. This needs a [`starter`](Self::starter).
        /// Defaults to [`Sweep::default`].
        ///
        /// The first sweep begins with the first operation of the manager. A sweep opens the oldest turns first. A turn
        /// for which the starter returns `None` takes no place. If no place for an [open session](Self::max_open) is
        /// free, a sweep opens one conversation, in the place of an idle session, and only if no caller waits for a
        /// place. If all [requests](Self::max_turns) are in use, it opens none. After each restart of a turn without
        /// progress, and after each failure, the sweeps wait longer before they open the conversation. A turn that needs
        /// nothing but decisions about tools of its [sub-agents](crate::agent::SubAgent) is left. A conversation
        /// that cannot be opened is reported as [`ManagerEvent::NotRecovered`](super::ManagerEvent::NotRecovered).
        pub fn sweep(self, sweep: Sweep) { self.recovery.sweep = sweep }

        /// Sets how long a [sweep](Self::sweep) and [`Manager::recover`] wait for the opening of one conversation, with
        /// the time for `init` and for a place. The limit also applies to each page of the list of turns. Defaults to
        /// one minute.
        ///
        /// If the time is over, the attempt counts as a failure.
        pub fn recovery_timeout(self, limit: Duration) { self.recovery.timeout = Some(limit) }
    }
}

impl Manager {
    /// Looks once for recorded turns that nobody works on, and opens their conversations as far as the limits of the
    /// manager allow. Earlier failures do not delay this, but a turn that has just been restarted without progress is
    /// skipped. Returns when the conversations are open. Their turns continue.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Config`] if the manager has no [starter](ManagerBuilder::starter).
    /// - [`ErrorKind::ShutDown`].
    /// - The error of the store, such as [`ErrorKind::Unsupported`] if the store does not keep turns, or
    ///   [`ErrorKind::StoreFailed`] if it does not list the turns within the
    ///   [recovery timeout](ManagerBuilder::recovery_timeout).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, conversations that are being opened are opened nevertheless.
    pub async fn recover(&self) -> Result<Recovered, Error> {
        if self.0.registry().is_shut {
            return Err(shut_down());
        }
        let starter = self.0.recovery.starter.clone().ok_or_else(|| {
            let text =
                "the manager cannot recover turns, because it has no starter; set `ManagerBuilder::starter`";
            Error::new(ErrorKind::Config, text)
        })?;
        let (mut recovered, mut attempts) = (Recovered::default(), FailedOpenings::default());
        self.0.look_through(&starter, &mut attempts, None, usize::MAX, &mut recovered).await?;
        match self.0.end_orphans(&mut attempts, None, usize::MAX).await {
            // The caller needs to know what was opened.
            Err(error) if recovered.opened.is_empty() && recovered.failed.is_empty() => Err(error),
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "turns that wait could not be listed");
                Ok(recovered)
            }
            Ok(_) => Ok(recovered),
        }
    }
}

/// The positions at which the next sweep continues, or `None` to begin again: among the turns that nobody works on, and
/// among those that wait for decisions.
#[derive(Default)]
struct RecoverySweepPositions {
    left: Option<Position>,
    waiting: Option<Position>,
}

/// The outcome of a sweep for one turn.
enum SweptTurnOutcome {
    Opened,
    /// Somebody else works on the turn, or it needs nothing but decisions.
    Skipped,
    Failed(Error),
}

impl ManagerShared {
    /// Starts the tasks of the sweep with the first operation of the manager, because a manager can be built outside of
    /// a runtime.
    pub(super) fn begin_sweeping(self: &Arc<Self>) {
        let ManagerRecoveryState { starter: Some(starter), sweep, is_sweeping, .. } = &self.recovery else {
            return;
        };
        let Some(every) = sweep.interval.with_leases(self.store.traits().lease) else { return };
        let traits = self.store.traits();
        if !traits.turns && !traits.schedules || is_sweeping.swap(true, Ordering::Relaxed) {
            return;
        }
        if traits.schedules {
            self.begin_firing(starter, every);
        }
        if traits.turns {
            let (inner, starter, every) = (Arc::downgrade(self), Arc::clone(starter), every);
            let gone = self.recovery.alive.token().clone();
            // The task belongs to no caller, so it has no span of a caller.
            tokio::spawn(async move {
                let (mut attempts, mut after) =
                    (FailedOpenings::default(), RecoverySweepPositions::default());
                loop {
                    let Some(inner) = inner.upgrade().filter(|inner| !inner.registry().is_shut) else {
                        return;
                    };
                    // A panic of the store ends this sweep, but not the sweeps that follow.
                    let from = std::mem::take(&mut after);
                    let swept = contained_async(inner.sweep(&starter, &mut attempts, from)).await;
                    after = swept.unwrap_or_else(|panic| {
                        tracing::error!(
                            panic,
                            "a sweep for turns that nobody works on panicked; the next one follows"
                        );
                        RecoverySweepPositions::default()
                    });
                    drop(inner);
                    tokio::select! {
                        biased;
                        () = gone.cancelled() => return,
                        () = sleep(with_jitter(every)) => {}
                    }
                }
            });
        }
    }

    /// Runs one sweep of the task. Returns the positions at which the next one continues.
    async fn sweep(
        self: &Arc<Self>,
        starter: &Arc<OpenerFn>,
        attempts: &mut FailedOpenings,
        after: RecoverySweepPositions,
    ) -> RecoverySweepPositions {
        let mut recovered = Recovered::default();
        let listed = |listed: Result<Option<Position>, Error>| {
            listed.unwrap_or_else(|error| {
                tracing::warn!(error = error_chain(&error), "turns that nobody works on could not be listed");
                None
            })
        };
        let swept = async {
            let left = self.look_through(starter, attempts, after.left, MOST_PER_SWEEP, &mut recovered).await;
            let waiting = self.end_orphans(attempts, after.waiting, MOST_PER_SWEEP).await;
            RecoverySweepPositions { left: listed(left), waiting: listed(waiting) }
        };
        tokio::select! {
            biased;
            swept = swept => swept,
            () = self.shutting.cancelled() => RecoverySweepPositions::default(),
        }
    }

    /// Goes through the turns that wait for decisions, and discards those of sub-agents whose calls are never repeated.
    /// The lists of turns that nobody works on do not contain them. Begins after the position `after`, and returns the
    /// position at which to continue, or `None` at the end of the list.
    async fn end_orphans(
        self: &Arc<Self>,
        attempts: &mut FailedOpenings,
        mut after: Option<Position>,
        most: usize,
    ) -> Result<Option<Position>, Error> {
        if !self.store.traits().labels {
            return Ok(None);
        }
        let mut seen = 0;
        loop {
            let page = Page { after: after.take(), ..Page::first(PAGE) };
            let listing = self.checked((self.recovery.sweep.filter.clone(), page))?;
            let turns = self.listed(self.store.turns(Turns::Waiting, &listing)).await?;
            seen += turns.len();
            after = turns.last().filter(|_| turns.len() >= PAGE).map(|turn| turn.position.clone());
            for turn in turns.iter().filter(|turn| turn.owner.is_none()) {
                self.sweep_sub_agent(turn, attempts).await;
            }
            if after.is_none() || seen >= most {
                return Ok(after);
            }
        }
    }

    /// Goes through the turns that nobody works on, beginning after the position `after`. Returns the position at which
    /// to continue, or `None` at the end of the list.
    async fn look_through(
        self: &Arc<Self>,
        starter: &Arc<OpenerFn>,
        attempts: &mut FailedOpenings,
        mut after: Option<Position>,
        most: usize,
        recovered: &mut Recovered,
    ) -> Result<Option<Position>, Error> {
        // The number is taken once, because the opened sessions take permits at different times.
        let room = self.limits.room();
        let (mut seen, mut tasks) = (0, JoinSet::new());
        let next = 'turns: loop {
            let page = Page { after: after.clone(), ..Page::first(PAGE) };
            let listing = self.checked((self.recovery.sweep.filter.clone(), page))?;
            let turns = self.store.turns(Turns::Left, &listing);
            let turns = match self.listed(turns).await {
                Ok(turns) => turns,
                Err(error) => break Err(error.into()),
            };
            let is_last = turns.len() < PAGE;
            seen += turns.len();
            for turn in turns {
                if self.sweep_sub_agent(&turn, attempts).await {
                    after = Some(turn.position);
                    continue;
                }
                let verdict = attempts.verdict(&turn, turn.now, self.recovery.begun.elapsed());
                if verdict == UnownedTurnAction::Wait || self.registry().look(&turn.id).is_some() {
                    after = Some(turn.position);
                    continue;
                }
                // A turn that another manager is responsible for needs no place. If time limits have passed, their
                // decisions are applied first, whether or not this manager opens the conversation.
                let mut options = None;
                if verdict == UnownedTurnAction::Open {
                    match Wake::from(&turn).ask(&**starter) {
                        Ok(asked) => options = asked,
                        Err(error) => self.failed(turn.clone(), error, attempts, recovered),
                    }
                    if options.is_none() || self.is_waiting_below(&turn.id).await {
                        after = Some(turn.position);
                        continue;
                    }
                }
                // An opening that has failed has no place any more.
                while !self.has_room(&tasks, recovered, room) {
                    if tasks.is_empty() {
                        break 'turns Ok(after);
                    }
                    self.settle(&mut tasks, attempts, recovered).await;
                }
                after = Some(turn.position.clone());
                let (inner, starter) = (Arc::clone(self), Arc::clone(starter));
                let one = async move {
                    let outcome = contained_async(inner.recover_one(&starter, &turn, verdict, options)).await;
                    let id = &turn.id;
                    let outcome =
                        outcome.unwrap_or_else(|reason| SweptTurnOutcome::Failed(aborted(id, &reason)));
                    (turn, outcome)
                };
                tasks.spawn(one.in_current_span());
            }
            if is_last {
                break Ok(None);
            }
            if seen >= most {
                break Ok(after);
            }
        };
        while !tasks.is_empty() {
            self.settle(&mut tasks, attempts, recovered).await;
        }
        next
    }

    /// Returns whether another conversation may be opened, while these tasks are running.
    fn has_room(
        &self,
        tasks: &JoinSet<(TurnSummary, SweptTurnOutcome)>,
        recovered: &Recovered,
        room: usize,
    ) -> bool {
        let (opening, opened) = (tasks.len(), recovered.opened.len());
        opening < PARALLEL
            && opened + opening < room
            && self.registry().has_room_for_recovery(opening, opened)
    }

    /// Waits for a part of the list of turns, for a limited time. Otherwise a call of the store that never returns would
    /// end all sweeps.
    async fn listed<T>(&self, part: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let limit = self.recovery.timeout;
        timeout(limit, part).await.unwrap_or_else(|_| {
            let late = io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
            Err(StoreError::failed("list the turns in flight", late))
        })
    }

    /// Waits until one of the tasks ends, and records the outcome for its turn.
    async fn settle(
        &self,
        tasks: &mut JoinSet<(TurnSummary, SweptTurnOutcome)>,
        attempts: &mut FailedOpenings,
        recovered: &mut Recovered,
    ) {
        match tasks.join_next().await {
            Some(Ok((turn, SweptTurnOutcome::Opened))) => {
                attempts.opened(&turn.id);
                recovered.opened.push(turn.id);
            }
            Some(Ok((turn, SweptTurnOutcome::Failed(error)))) => {
                self.failed(turn, error, attempts, recovered);
            }
            Some(Ok((_, SweptTurnOutcome::Skipped)) | Err(_)) | None => {}
        }
    }

    /// Records that a turn could not be opened.
    fn failed(
        &self,
        turn: TurnSummary,
        error: Error,
        attempts: &mut FailedOpenings,
        recovered: &mut Recovered,
    ) {
        attempts.failed(&turn, self.recovery.begun.elapsed());
        // Do not report a turn that a newer version of this crate has recorded: a process with that version continues
        // it.
        if error.kind() != ErrorKind::NewerTurn {
            self.report_failure(&turn.id, &error);
        }
        recovered.failed.push((turn.id, error));
    }

    fn report_failure(&self, id: &ConversationId, error: &Error) {
        let reason = error_chain(error);
        tracing::warn!(%id, error = reason, "the turn in flight of a conversation could not be continued");
        self.registry().emit_not_recovered(id, reason);
    }

    async fn recover_one(
        self: &Arc<Self>,
        starter: &Arc<OpenerFn>,
        turn: &TurnSummary,
        verdict: UnownedTurnAction,
        mut options: Option<OpenOptions>,
    ) -> SweptTurnOutcome {
        let recovered = async {
            if verdict == UnownedTurnAction::Expire {
                if !self.expire(&turn.id).await? {
                    return Ok(SweptTurnOutcome::Skipped);
                }
                options = Wake::from(turn).ask(&**starter)?;
            }
            self.open_for(&turn.id, options).await
        };
        let limit = self.recovery.timeout;
        timeout(limit, recovered).await.map_or_else(
            |_| {
                let reason = format!("the conversation was not opened within {limit:?}");
                SweptTurnOutcome::Failed(aborted(&turn.id, &reason))
            },
            |outcome| outcome.unwrap_or_else(SweptTurnOutcome::Failed),
        )
    }

    /// Returns whether the sweep is done with this turn, because it is that of the call of a sub-agent.
    async fn sweep_sub_agent(self: &Arc<Self>, turn: &TurnSummary, attempts: &mut FailedOpenings) -> bool {
        if turn.labels.get(Labels::PARENT).is_none() {
            return false;
        }
        if attempts.has_just_failed(turn, self.recovery.begun.elapsed()) {
            return true;
        }
        let swept = timeout(self.recovery.timeout, self.sweep_call(turn)).await;
        if let Ok(Ok(is_of_call)) = swept {
            return is_of_call;
        }
        attempts.failed(turn, self.recovery.begun.elapsed());
        if let Ok(Err(error)) = swept {
            self.report_failure(&turn.id, &error);
        }
        true
    }

    /// Decides about the turn of a sub-agent's call, which only the call of its parent continues. If no agent above it can
    /// repeat the call any more, discards the turn, or deletes the sub-agent if its root is gone. Otherwise, applies the
    /// decisions for time limits that have passed, and the sweep opens the root for the root's own turn. Returns `false`
    /// if the turn is that of a person, which continues like the turn of every other conversation.
    async fn sweep_call(self: &Arc<Self>, turn: &TurnSummary) -> Result<bool, Error> {
        let is_in_use = {
            let registry = self.registry();
            registry.look(&turn.id).is_some() || registry.calls.has(&turn.id)
        };
        if is_in_use {
            return Ok(true);
        }
        let Some(stored) = self.recorded(&turn.id).await?.filter(|stored| stored.record.turn == turn.turn)
        else {
            // It has ended since it was listed.
            return Ok(true);
        };
        if !is_of_call(&turn.id, &stored) {
            return Ok(false);
        }
        if !self.is_called(&turn.id, &turn.labels).await? {
            let parent = turn.labels.get(Labels::PARENT).unwrap_or_default();
            let is_left = match turn.labels.get(Labels::ROOT) {
                Some(root) => self.root_labels(root).await?.is_some(),
                None => true,
            };
            // Without its root, nobody can reach the conversation.
            let ended = if is_left {
                self.discard(&turn.id).await
            } else {
                self.delete_child(&turn.id, parent).await
            };
            return ended.map(|()| true);
        }
        if turn.approvals.iter().any(|approval| approval.survives && approval.has_expired(turn.now)) {
            self.expire(&turn.id).await?;
        }
        Ok(true)
    }

    /// Returns whether the sweep leaves a turn, because it needs nothing but decisions about tools of its sub-agents. If this
    /// is not known, the conversation is opened.
    async fn is_waiting_below(&self, id: &ConversationId) -> bool {
        let waits = self.listed(self.waits_below(id)).await;
        waits.unwrap_or_else(|error| {
            tracing::warn!(%id, %error, "the turns of sub-agents could not be read");
            false
        })
    }

    async fn open_for(
        self: &Arc<Self>,
        id: &ConversationId,
        options: Option<OpenOptions>,
    ) -> Result<SweptTurnOutcome, Error> {
        let Some(options) = options else { return Ok(SweptTurnOutcome::Skipped) };
        match self
            .open(id.clone(), options.subscribe(None), NewOrStoredConversation::Stored, OpenedBy::User)
            .await
        {
            Ok(_) => Ok(SweptTurnOutcome::Opened),
            // Another process was faster, the conversation was deleted, or a sub-agent waits for the turns above it.
            Err(error) => match error.kind() {
                ErrorKind::OpenElsewhere
                | ErrorKind::ShutDown
                | ErrorKind::NotFound
                | ErrorKind::SubAgent => Ok(SweptTurnOutcome::Skipped),
                _ => Err(error),
            },
        }
    }

    /// Opens a conversation whose turn was decided on in the store, if the manager has a starter and the turn needs
    /// more than decisions.
    pub(super) fn continue_decided(self: &Arc<Self>, id: &ConversationId) {
        let Some(starter) = self.recovery.starter.clone() else { return };
        let (inner, id) = (Arc::clone(self), id.clone());
        let opening = async move {
            let opened = async {
                // The turn of a sub-agent's call is continued by the turn of its root.
                let labels = inner.store.summary(&id).await?.labels;
                let root = labels.get(Labels::PARENT).and_then(|_| labels.get(Labels::ROOT));
                let root = root.and_then(|root| ConversationId::new(root).ok());
                let is_of_call = root.is_some() && inner.call_turn(&id).await?.is_some();
                let id = root.filter(|_| is_of_call).unwrap_or_else(|| id.clone());
                let Some(turn) = inner.store.turn(&id).await?.filter(|turn| !turn.record.only_waits()) else {
                    return Ok(SweptTurnOutcome::Skipped);
                };
                if inner.waits_below(&id).await? {
                    return Ok(SweptTurnOutcome::Skipped);
                }
                let labels = inner.store.summary(&id).await?.labels;
                let turn = TurnSummary { labels, ..TurnSummary::new(id.clone(), &turn) };
                inner.open_for(&id, Wake::from(&turn).ask(&*starter)?).await
            };
            let opened = contained_async(opened).await;
            if let Err(error) = opened.unwrap_or_else(|panic| Err(aborted(&id, &panic))) {
                inner.report_failure(&id, &error);
            }
        };
        tokio::spawn(opening.in_current_span());
    }

    /// Applies the decisions for the time limits of a stored turn that have passed. Returns whether the conversation
    /// should be opened: no other caller or process works on it, and the turn needs more than decisions.
    async fn expire(self: &Arc<Self>, id: &ConversationId) -> Result<bool, Error> {
        let (_claim, session) = self.claim(id).await;
        // A shutdown that began before this claim does not wait for it.
        if session.is_some() || self.registry().is_shut {
            return Ok(false);
        }
        let Some(turn) = self.store.turn(id).await? else { return Ok(false) };
        let expired = turn.expire(turn.now);
        let expired = expired.map_err(|problem| StoreError::damaged("the turn in flight", problem))?;
        let Some(record) = expired else { return Ok(!turn.record.only_waits()) };
        let waits = record.waiting.iter().any(|waiting| waiting.survives);
        match self.record(&turn, id, record).await {
            Ok(()) => Ok(!waits),
            // Somebody else has decided, or has opened the conversation.
            Err(StoreError::Conflict { .. } | StoreError::Owned { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) fn with_jitter(interval: Duration) -> Duration {
    scaled(interval, rand::random_range(0.75..=1.25))
}

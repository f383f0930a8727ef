//! The registry of the conversations that are open or are being opened, closed, renamed or deleted. A lock protects the
//! registry. The lock is held only for a few steps and never across an await, so a separate task would have no
//! advantage.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Activity, ManagerEvent, ManagerSnapshot, OpenSession, opening::OpenedBy, sub_agent::SubAgentCalls,
};
use crate::{
    agent::Status,
    session::Session,
    store::{ConversationId, Labels, Summary},
    subscription::{End, EndReason, EventId, Feed, FeedLimits, SubscriptionStart},
};

/// Identifies one life of a session. Sessions that are opened later with the same id have other keys.
pub(super) type SessionLifeKey = u64;

pub(super) struct SessionRegistry {
    slots: HashMap<ConversationId, ManagedSession>,
    /// The openings whose sessions are not open yet.
    openings: HashMap<ConversationId, UnfinishedSessionOpening>,
    /// The conversations that wait for room or have just got it, sorted by the numbers of their openings.
    waiting: BTreeMap<SessionOpeningNumber, ConversationId>,
    /// The openings that are waiting for a place.
    line: BTreeMap<SessionOpeningNumber, QueuedSessionOpening>,
    /// The number of unused places for open sessions. While it is above 0, the line is empty.
    free: usize,
    /// The number of sessions that were asked to sleep or are ending, so that openings in line get places.
    making_room: usize,
    /// The sessions that may be asked to sleep, sorted by the time of their last use. The map is maintained only while
    /// the line is not empty. Entries may be outdated.
    prospects: BTreeMap<u64, ConversationId>,
    last_key: SessionLifeKey,
    /// A counter of changes. It puts the changes in order.
    clock: u64,
    feed: Feed<ManagerEvent>,
    /// The calls whose sub-agents are sessions.
    pub(super) calls: SubAgentCalls,
    pub(super) is_shut: bool,
    /// How the manager ended, if it has.
    pub(super) end: Option<End<ManagerSnapshot>>,
}

/// The state of one id that is open or in use.
struct ManagedSession {
    key: SessionLifeKey,
    /// The session, while it is open.
    session: Option<Session>,
    /// A token that exists while the conversation is being opened, closed, renamed or deleted. Other callers wait until
    /// it is cancelled.
    claim: Option<CancellationToken>,
    title: Option<Arc<str>>,
    /// Whether the session has reported a title already.
    has_current_title: bool,
    labels: Labels,
    /// Whether the session has reported labels already.
    has_current_labels: bool,
    /// The reason why the session ended, if it ended before it was registered as open.
    ended: Option<EndReason>,
    status: Status,
    is_queued: bool,
    /// Present while a title is being generated. Cancelled when that title is set or given up.
    titling: Option<CancellationToken>,
    /// The number of titles that a model was asked for and did not give.
    failed_titles: u32,
    used: u64,
    /// When the conversation was opened, as a value of the registry's clock.
    since: u64,
    /// The state of the request to make room.
    rest: SessionSleepRequestState,
    /// The caller that has opened the session. The session of a call has no place.
    opened_by: OpenedBy,
}

impl ManagedSession {
    fn activity(&self) -> Activity {
        Activity::of(self.status, self.is_queued)
    }

    fn open_session(&self, id: &ConversationId) -> OpenSession {
        let (title, labels) = (self.title.clone(), self.labels.clone());
        OpenSession { id: id.clone(), title, labels, activity: self.activity() }
    }
}

impl SessionRegistry {
    /// Creates a registry with this number of places for open sessions, and for calls of sub-agents.
    pub(super) fn new(places: usize, max_sub_agents: usize) -> Self {
        Self {
            slots: HashMap::new(),
            openings: HashMap::new(),
            waiting: BTreeMap::new(),
            line: BTreeMap::new(),
            free: places,
            making_room: 0,
            prospects: BTreeMap::new(),
            last_key: 0,
            clock: 0,
            feed: Feed::new(rand::random()),
            calls: SubAgentCalls::new(max_sub_agents),
            is_shut: false,
            end: None,
        }
    }

    // ---- claims ----

    /// Returns the open session with this id. If the id is claimed or about to be opened, returns the token to wait for.
    pub(super) fn look(&self, id: &ConversationId) -> Option<Result<Session, CancellationToken>> {
        match self.slots.get(id) {
            Some(ManagedSession { claim: Some(claim), .. }) => Some(Err(claim.clone())),
            Some(ManagedSession { session: Some(session), .. }) => Some(Ok(session.clone())),
            _ => self.openings.get(id).map(|opening| Err(opening.ended.clone())),
        }
    }

    /// Claims an id, whether or not its session is open, and returns the session. Nobody else works on the id until the
    /// claim is released. If another caller holds the claim, returns the token that is cancelled when it is released.
    pub(super) fn claim(
        &mut self,
        id: &ConversationId,
    ) -> Result<(SessionLifeKey, Option<Session>), CancellationToken> {
        self.clock += 1;
        let slot = self.slots.entry(id.clone()).or_insert_with(|| {
            self.last_key += 1;
            ManagedSession {
                key: self.last_key,
                session: None,
                claim: None,
                title: None,
                has_current_title: false,
                labels: Labels::default(),
                has_current_labels: false,
                ended: None,
                status: Status::Idle,
                is_queued: false,
                titling: None,
                failed_titles: 0,
                used: self.clock,
                since: 0,
                rest: SessionSleepRequestState::default(),
                opened_by: OpenedBy::User,
            }
        });
        if let Some(claim) = &slot.claim {
            return Err(claim.clone());
        }
        slot.claim = Some(CancellationToken::new());
        Ok((slot.key, slot.session.clone()))
    }

    /// Releases a claim, and removes the slot if no session is open.
    pub(super) fn release(&mut self, id: &ConversationId, key: SessionLifeKey) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.key == key) else {
            return;
        };
        let claim = slot.claim.take();
        if slot.session.is_none() {
            self.slots.remove(id);
        }
        if let Some(claim) = claim {
            claim.cancel();
        }
        // The session could not be asked to sleep while its id was claimed. Now it may be possible.
        self.changed(id, key);
    }

    // ---- open sessions ----

    /// Registers the session of a claimed id as open.
    pub(super) fn opened(
        &mut self,
        key: SessionLifeKey,
        session: Session,
        title: Option<Arc<str>>,
        labels: Labels,
    ) {
        let id = session.id().clone();
        self.clock += 1;
        let clock = self.clock;
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.key == key) else {
            return;
        };
        if !slot.has_current_title {
            slot.title = title;
        }
        if !slot.has_current_labels {
            slot.labels = labels;
        }
        (slot.session, slot.used, slot.since) = (Some(session), clock, clock);
        let has_place = self.openings.get(&id).is_some_and(|opening| opening.has_place);
        slot.opened_by = if has_place { OpenedBy::User } else { OpenedBy::Call };
        let ended = slot.ended.take();
        let open = slot.open_session(&id);
        self.end_opening(&id);
        self.emit(ManagerEvent::Opened { session: open });
        if let Some(reason) = ended {
            self.ended(&id, key, &reason);
        }
    }

    // ---- notifications of sessions ----

    fn slot(&mut self, id: &ConversationId, key: SessionLifeKey) -> Option<&mut ManagedSession> {
        self.slots.get_mut(id).filter(|slot| slot.key == key)
    }

    /// Records that a session was used just now.
    pub(super) fn touch(&mut self, id: &ConversationId) {
        self.clock += 1;
        if let Some(slot) = self.slots.get_mut(id) {
            slot.used = self.clock;
        }
    }

    /// Updates the status of a session, and emits an event if its activity changes.
    pub(super) fn act(
        &mut self,
        id: &ConversationId,
        key: SessionLifeKey,
        status: Option<Status>,
        queued: Option<bool>,
    ) {
        self.clock += 1;
        let clock = self.clock;
        let Some(slot) = self.slot(id, key) else { return };
        let before = slot.activity();
        slot.status = status.unwrap_or(slot.status);
        slot.is_queued = queued.unwrap_or(slot.is_queued);
        slot.used = clock;
        let activity = slot.activity();
        if activity != before && slot.session.is_some() {
            self.emit(ManagerEvent::Status { id: id.clone(), activity });
        }
    }

    /// Records the new title that a session has reported.
    pub(super) fn titled(&mut self, id: &ConversationId, key: SessionLifeKey, title: Option<Arc<str>>) {
        let Some(slot) = self.slot(id, key) else { return };
        slot.title.clone_from(&title);
        slot.has_current_title = true;
        if slot.session.is_some() {
            self.emit(ManagerEvent::Title { id: id.clone(), title });
        }
    }

    /// Removes all earlier events from memory, because titles in them may quote erased messages.
    pub(super) fn forget(&mut self) {
        self.feed.forget();
    }

    /// Records a title that was set directly in the store.
    pub(super) fn set_stored_title(&mut self, id: &ConversationId, title: Option<Arc<str>>) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.title.clone_from(&title);
        }
        self.emit(ManagerEvent::Title { id: id.clone(), title });
    }

    /// Records the new labels that a session has reported.
    pub(super) fn labelled(&mut self, id: &ConversationId, key: SessionLifeKey, labels: Labels) {
        let Some(slot) = self.slot(id, key) else { return };
        slot.labels.clone_from(&labels);
        slot.has_current_labels = true;
        if slot.session.is_some() {
            self.emit(ManagerEvent::Labels { id: id.clone(), labels });
        }
    }

    /// Records labels that were set directly in the store.
    pub(super) fn set_stored_labels(&mut self, id: &ConversationId, labels: Labels) {
        if let Some(slot) = self.slots.get_mut(id) {
            slot.labels.clone_from(&labels);
        }
        self.emit(ManagerEvent::Labels { id: id.clone(), labels });
    }

    /// Reports a conversation that was stored without being open.
    pub(super) fn emit_created(&mut self, id: &ConversationId, title: Option<Arc<str>>, labels: Labels) {
        let session = OpenSession { id: id.clone(), title, labels, activity: Activity::Idle };
        self.emit(ManagerEvent::Opened { session });
        self.emit(ManagerEvent::Closed { id: id.clone(), reason: EndReason::Stopped });
    }

    pub(super) fn emit_deleted(&mut self, id: &ConversationId) {
        self.emit(ManagerEvent::Deleted { id: id.clone() });
    }

    pub(super) fn emit_not_recovered(&mut self, id: &ConversationId, reason: String) {
        self.emit(ManagerEvent::NotRecovered { id: id.clone(), reason: reason.into() });
    }

    pub(super) fn emit_not_fired(&mut self, id: &ConversationId, name: &str, reason: String) {
        self.emit(ManagerEvent::NotFired { id: id.clone(), name: name.into(), reason: reason.into() });
    }

    /// Records that a session has ended.
    pub(super) fn ended(&mut self, id: &ConversationId, key: SessionLifeKey, reason: &EndReason) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.key == key) else { return };
        let was_open = slot.session.take().is_some();
        let had_place = was_open && slot.opened_by == OpenedBy::User;
        if !was_open {
            slot.ended = Some(reason.clone());
        }
        // A title can't be set any more. The slot keeps the token for the end of the task that makes the title.
        if let Some(titling) = &slot.titling {
            titling.cancel();
        }
        let rest = std::mem::take(&mut slot.rest);
        if slot.claim.is_none() {
            self.slots.remove(id);
        }
        if was_open {
            self.emit(ManagerEvent::Closed { id: id.clone(), reason: reason.clone() });
        }
        self.end_rest(rest);
        if had_place {
            self.vacate();
        }
        self.make_room();
    }

    // ---- titles ----

    /// If an open session has no title and none is being generated yet, marks that a title is being generated, and
    /// returns the session.
    pub(super) fn begin_title(&mut self, id: &ConversationId, key: SessionLifeKey) -> Option<Session> {
        let slot = self.slot(id, key).filter(|slot| slot.title.is_none() && slot.titling.is_none())?;
        let session = slot.session.clone()?;
        slot.titling = Some(CancellationToken::new());
        Some(session)
    }

    /// Counts a title that a model was asked for and did not give. Returns how often this has happened since the session
    /// was opened.
    pub(super) fn title_failed(&mut self, id: &ConversationId, key: SessionLifeKey) -> u32 {
        let Some(slot) = self.slot(id, key) else { return 0 };
        slot.failed_titles += 1;
        slot.failed_titles
    }

    pub(super) fn end_title(&mut self, id: &ConversationId, key: SessionLifeKey) {
        if let Some(titling) = self.slot(id, key).and_then(|slot| slot.titling.take()) {
            titling.cancel();
        }
    }

    /// Returns whether an open session has a title.
    pub(super) fn is_titled(&self, id: &ConversationId) -> bool {
        self.slots.get(id).is_some_and(|slot| slot.title.is_some())
    }

    /// Returns the token that is cancelled when the title being generated is set or given up.
    pub(super) fn titling(&self, id: &ConversationId) -> Option<CancellationToken> {
        self.slots.get(id)?.titling.clone()
    }

    // ---- queries ----

    /// Returns the open session with this id, whether or not it is claimed.
    pub(super) fn get(&self, id: &ConversationId) -> Option<Session> {
        self.slots.get(id)?.session.clone()
    }

    pub(super) fn open_session(&self, id: &ConversationId) -> Option<OpenSession> {
        let slot = self.slots.get(id)?;
        slot.session.as_ref()?;
        Some(slot.open_session(id))
    }

    /// Gives a stored summary the title and the labels of the open session, and returns the activity of the session.
    pub(super) fn correct(&self, summary: &mut Summary) -> Option<Activity> {
        let open = self.open_session(&summary.id)?;
        summary.title = open.title.as_deref().map(str::to_owned);
        summary.labels = open.labels;
        Some(open.activity)
    }

    /// Returns the open conversations with their sessions, in the order in which they were opened. They are sorted here,
    /// because a sorted map would take memory for each idle session.
    fn open(&self) -> impl Iterator<Item = (&ConversationId, &ManagedSession, &Session)> {
        let open = self.slots.iter().filter_map(|(id, slot)| Some((id, slot, slot.session.as_ref()?)));
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(|(_, slot, _)| slot.since);
        open.into_iter()
    }

    /// Returns the open sessions, with or without those that their calls close.
    pub(super) fn sessions(&self, with_sub_agents: bool) -> Vec<Session> {
        let meant = self.open().filter(|(id, ..)| with_sub_agents || !self.calls.has(id));
        meant.map(|(_, _, session)| session.clone()).collect()
    }

    /// Returns the tokens of all claims and calls, which are cancelled when these end.
    pub(super) fn claims(&self) -> Vec<CancellationToken> {
        self.slots.values().filter_map(|slot| slot.claim.clone()).chain(self.calls.all()).collect()
    }

    /// Returns whether this life of a session is open.
    pub(super) fn is_open(&self, id: &ConversationId, key: SessionLifeKey) -> bool {
        self.slots.get(id).is_some_and(|slot| slot.key == key && slot.session.is_some())
    }

    pub(super) fn snapshot(&self) -> ManagerSnapshot {
        ManagerSnapshot {
            last: self.feed.last(),
            open: self.open().map(|(id, slot, _)| slot.open_session(id)).collect(),
            waiting: self.waiting.values().cloned().collect(),
        }
    }

    /// Returns the point in the stream of events at which a subscription begins: directly after `after` if all later
    /// events are still in memory, otherwise at the current event.
    pub(super) fn attach(
        &mut self,
        after: Option<EventId>,
        limits: FeedLimits,
    ) -> SubscriptionStart<ManagerSnapshot, ManagerEvent> {
        let replayed = after.and_then(|after| self.feed.replay(limits, after));
        let attachment = replayed.unwrap_or_else(|| {
            let snapshot = self.snapshot();
            self.feed.join(limits, snapshot)
        });
        if self.end.is_some() {
            // The manager has ended. Close the feed again, so that the new subscriber receives the end as its first
            // update.
            self.feed.close();
        }
        attachment
    }

    /// Closes the registry. No session is open at this point, and none will be opened.
    pub(super) fn finish(&mut self) {
        for (_, id) in std::mem::take(&mut self.waiting) {
            self.emit(ManagerEvent::GivenUp { id });
        }
        let snapshot = Some(Arc::new(self.snapshot()));
        self.end.get_or_insert(End { reason: EndReason::Stopped, snapshot });
        self.feed.close();
    }

    fn emit(&mut self, event: ManagerEvent) {
        if !self.feed.is_listened_to() {
            return self.feed.skip();
        }
        let weight = event.weight();
        self.feed.publish(Arc::new(event), weight);
    }
}

// Places for open sessions. Openings wait in line for a place, and idle sessions are asked to make room.
//
// Each opening in line causes at most one session to be asked to sleep or to end. Different openings do this at the
// same time. The lock is never held while a session replies: an opening in line receives an [`QueuedOpeningCommand`], performs it in
// its own task and reports the reply. Nothing is polled. A session that refuses is asked again only after it has
// reported a change.

/// An opening whose session is not open yet. Other openings of the id wait for its end.
struct UnfinishedSessionOpening {
    number: SessionOpeningNumber,
    /// Cancelled when the session is open, or the opening is given up.
    ended: CancellationToken,
    /// Whether the opening has a place. The place then passes to the open session, and becomes free when the session has
    /// ended or the opening is given up.
    has_place: bool,
}

/// An opening that waits for a place.
struct QueuedSessionOpening {
    errands: mpsc::UnboundedSender<QueuedOpeningCommand>,
    /// The session that this opening is asking to sleep, with its key.
    asking: Option<(ConversationId, SessionLifeKey)>,
}

/// Identifies an opening. An opening that began earlier has a smaller number.
pub(super) type SessionOpeningNumber = u64;

/// A message to an opening in line.
pub(super) enum QueuedOpeningCommand {
    /// Ask this session to sleep, and report the reply to [`SessionRegistry::answered`]. An opening performs at most one
    /// errand at a time.
    PutToSleep { key: SessionLifeKey, session: Session },
    /// The opening has a place and can continue. This is the last message.
    Enter,
}

/// The position in line that an opening holds: its number and the receiver of its errands.
pub(super) struct OpeningQueueTicket {
    pub(in crate::manager) number: SessionOpeningNumber,
    /// The channel is unbounded, but it never holds more than two messages: one errand and the place.
    pub(in crate::manager) errands: mpsc::UnboundedReceiver<QueuedOpeningCommand>,
}

/// Whether a session was asked to make room, and the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum SessionSleepRequestState {
    #[default]
    Unasked,
    /// An opening is asking the session to sleep.
    Asked {
        by: SessionOpeningNumber,
        /// Whether the session has reported a change since it was asked. If it has, its refusal may be outdated.
        has_changed: bool,
    },
    /// The session has refused, and has reported no change since then.
    Refused,
    /// The session is ending.
    Ending,
}

impl SessionSleepRequestState {
    /// Returns whether the session may soon make room, because it was asked to sleep or is ending.
    fn counts(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Ending)
    }
}

impl ManagedSession {
    /// Returns whether the session may be asked to sleep. A paused session agrees if its turn is recorded.
    fn may_sleep(&self) -> bool {
        self.rest == SessionSleepRequestState::Unasked
            && self.opened_by == OpenedBy::User
            && self.claim.is_none()
            && self.status != Status::Busy
            && self.session.as_ref().is_some_and(|session| session.controllers() == 0)
    }
}

impl SessionRegistry {
    /// Begins an opening of an id for which [`SessionRegistry::look`] returns nothing.
    pub(in crate::manager) fn begin_opening(&mut self, id: &ConversationId) -> SessionOpeningNumber {
        self.clock += 1;
        let opening = UnfinishedSessionOpening {
            number: self.clock,
            ended: CancellationToken::new(),
            has_place: false,
        };
        self.openings.insert(id.clone(), opening);
        self.clock
    }

    /// Takes a place for an opening. If no place is free, the opening joins the line.
    pub(in crate::manager) fn take_place(
        &mut self,
        id: &ConversationId,
        number: SessionOpeningNumber,
    ) -> Option<OpeningQueueTicket> {
        let opening = self.openings.get_mut(id)?;
        if self.free > 0 {
            opening.has_place = true;
            self.free -= 1;
            return None;
        }
        if self.line.is_empty() {
            self.find_prospects();
        }
        let (sender, errands) = mpsc::unbounded_channel();
        self.line.insert(number, QueuedSessionOpening { errands: sender, asking: None });
        self.waiting.insert(number, id.clone());
        self.emit(ManagerEvent::Waiting { id: id.clone() });
        self.make_room();
        Some(OpeningQueueTicket { number, errands })
    }

    /// Ends the opening whose session is open now. Its place belongs to the session.
    fn end_opening(&mut self, id: &ConversationId) {
        if let Some(opening) = self.openings.remove(id) {
            self.waiting.remove(&opening.number);
            opening.ended.cancel();
        }
    }

    /// Gives up an opening with its place, or with its position in line, unless its session is open.
    pub(in crate::manager) fn leave_line(&mut self, id: &ConversationId, number: SessionOpeningNumber) {
        if self.openings.get(id).is_none_or(|opening| opening.number != number) {
            return;
        }
        let opening = self.openings.remove(id);
        if let Some(opening) = self.line.remove(&number) {
            self.withdraw(opening);
        }
        if self.waiting.remove(&number).is_some() {
            self.emit(ManagerEvent::GivenUp { id: id.clone() });
        }
        if let Some(UnfinishedSessionOpening { ended, has_place, .. }) = opening {
            ended.cancel();
            if has_place {
                self.vacate();
            }
        }
        self.make_room();
    }

    /// Passes a place to the first opening in line, or counts it as free if the line is empty.
    fn vacate(&mut self) {
        while let Some((number, opening)) = self.line.pop_first() {
            let entering = self.waiting.get(&number).and_then(|id| self.openings.get_mut(id));
            let has_entered = entering.map(|entering| entering.has_place = true).is_some();
            // The send fails if the opening was given up. That opening passes its place on when it is dropped.
            let _ = opening.errands.send(QueuedOpeningCommand::Enter);
            self.withdraw(opening);
            if has_entered {
                return;
            }
        }
        self.free += 1;
    }

    /// Withdraws the request of an opening that has left the line. The opening no longer waits for the session that it
    /// asked.
    fn withdraw(&mut self, opening: QueuedSessionOpening) {
        let Some((id, key)) = opening.asking else { return };
        if let Some(slot) = self.slot(&id, key)
            && matches!(slot.rest, SessionSleepRequestState::Asked { .. })
        {
            slot.rest = SessionSleepRequestState::Unasked;
            self.making_room -= 1;
            self.consider(&id);
        }
    }

    /// Asks sessions to sleep until as many sessions are making room as openings are waiting. The least recently used
    /// session is asked first.
    fn make_room(&mut self) {
        if self.line.is_empty() {
            return self.prospects.clear();
        }
        while self.making_room < self.line.len() {
            let Some(id) = self.next_prospect() else { return };
            // The last opening in line is tried first, because it has just joined and usually asks no session yet. At
            // least one opening asks no session, because fewer sessions are making room than openings are waiting.
            let free = self.line.iter_mut().next_back().filter(|(_, opening)| opening.asking.is_none());
            let free = match free {
                Some((number, _)) => Some(*number),
                None => self.line.iter().find(|(_, opening)| opening.asking.is_none()).map(|(n, _)| *n),
            };
            let (Some(number), Some(slot)) = (free, self.slots.get_mut(&id)) else { return };
            let (Some(opening), Some(session)) = (self.line.get_mut(&number), slot.session.clone()) else {
                return;
            };
            slot.rest = SessionSleepRequestState::Asked { by: number, has_changed: false };
            opening.asking = Some((id, slot.key));
            // The send fails if the opening was given up. That opening leaves the line when it is dropped.
            let _ = opening.errands.send(QueuedOpeningCommand::PutToSleep { key: slot.key, session });
            self.making_room += 1;
        }
    }

    /// Processes a session's reply to the opening that asked the session to sleep.
    pub(in crate::manager) fn answered(
        &mut self,
        id: &ConversationId,
        key: SessionLifeKey,
        by: SessionOpeningNumber,
        ends: bool,
    ) {
        // Clear only a request to this session: it may have ended after it replied, and the opening may already be
        // asking another session.
        if let Some(opening) = self.line.get_mut(&by)
            && opening.asking.as_ref().is_some_and(|(asked, life)| asked == id && *life == key)
        {
            opening.asking = None;
        }
        if let Some(slot) = self.slot(id, key)
            && let SessionSleepRequestState::Asked { by: asked_by, has_changed } = slot.rest
            && asked_by == by
        {
            slot.rest = match (ends, has_changed) {
                (true, _) => SessionSleepRequestState::Ending,
                (false, true) => SessionSleepRequestState::Unasked,
                (false, false) => SessionSleepRequestState::Refused,
            };
            if !ends {
                self.making_room -= 1;
                self.consider(id);
            }
        }
        self.make_room();
    }

    /// Clears the request that asked a session to make room, because the session has ended. The caller passes the place
    /// on with [`vacate`](Self::vacate).
    fn end_rest(&mut self, rest: SessionSleepRequestState) {
        if rest.counts() {
            self.making_room -= 1;
        }
        if let SessionSleepRequestState::Asked { by, .. } = rest
            && let Some(opening) = self.line.get_mut(&by)
        {
            opening.asking = None;
        }
    }

    /// Processes a change of a session, after which the session may be ready to sleep.
    pub(in crate::manager) fn changed(&mut self, id: &ConversationId, key: SessionLifeKey) {
        if self.line.is_empty() {
            return;
        }
        let Some(slot) = self.slot(id, key) else { return };
        match &mut slot.rest {
            SessionSleepRequestState::Refused => slot.rest = SessionSleepRequestState::Unasked,
            SessionSleepRequestState::Asked { has_changed, .. } => *has_changed = true,
            SessionSleepRequestState::Unasked | SessionSleepRequestState::Ending => {}
        }
        self.consider(id);
        self.make_room();
    }

    /// Notes a session as a candidate for making room, if it may be asked to sleep and the line is not empty.
    fn consider(&mut self, id: &ConversationId) {
        if let Some(slot) = self.slots.get(id).filter(|slot| slot.may_sleep())
            && !self.line.is_empty()
        {
            self.prospects.insert(slot.used, id.clone());
        }
    }

    /// Notes all sessions that may be asked to sleep. Called when the first opening joins the line, because no sessions
    /// are noted while the line is empty.
    fn find_prospects(&mut self) {
        self.prospects.clear();
        for (id, slot) in &mut self.slots {
            if slot.rest == SessionSleepRequestState::Refused {
                slot.rest = SessionSleepRequestState::Unasked;
            }
            if slot.may_sleep() {
                self.prospects.insert(slot.used, id.clone());
            }
        }
    }

    /// Removes and returns the least recently used session that may be asked to sleep.
    fn next_prospect(&mut self) -> Option<ConversationId> {
        loop {
            let (used, id) = self.prospects.pop_first()?;
            let slot = self.slots.get(&id).filter(|slot| slot.may_sleep());
            match slot {
                Some(slot) if slot.used == used => return Some(id),
                // The session was used after it was noted, so it is noted again with the new time.
                Some(slot) => drop(self.prospects.insert(slot.used, id)),
                // The session may not sleep now. It is noted again when that changes.
                None => {}
            }
        }
    }

    /// Returns whether one more conversation may be opened for recovery, after this sweep has opened some and while it
    /// is opening others. If no place is free, one conversation of each sweep may take the place of an idle session,
    /// unless others wait for it.
    pub(in crate::manager) fn has_room_for_recovery(&self, opening: usize, opened: usize) -> bool {
        self.free > opening || self.free == 0 && self.line.is_empty() && opening + opened == 0
    }

    /// Returns whether an opening of the conversation waits for room, or has just got it.
    pub(in crate::manager) fn is_waiting(&self, id: &ConversationId) -> bool {
        self.openings.get(id).is_some_and(|opening| self.waiting.contains_key(&opening.number))
    }

    /// Returns the sessions with a place whose tools or callbacks are running. Their places cannot become free before
    /// these tools and callbacks are done.
    pub(in crate::manager) fn parents(&self) -> Vec<ConversationId> {
        let is_parent = |(id, slot, session): (&ConversationId, &ManagedSession, &Session)| {
            let has_place = slot.opened_by == OpenedBy::User;
            (has_place && slot.status != Status::Idle && session.is_between_requests()).then(|| id.clone())
        };
        self.open().filter_map(is_parent).collect()
    }
}

//! The registry of the conversations that are open or are being opened, closed, renamed or deleted. A lock protects the
//! registry. The lock is held only for a few steps and never across an await, so a separate task would have no
//! advantage.

mod places;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

pub(super) use places::{Errand, InLine, Number};
use places::{OpeningState, Rest, WaitingOpening};
use tokio_util::sync::CancellationToken;

use super::{Activity, ManagerEvent, ManagerSnapshot, OpenSession};
use crate::{
    agent::Status,
    session::Session,
    store::{ConversationId, Labels, Summary},
    subscription::{Attachment, End, EndReason, EventId, Feed, FeedLimits},
};

/// Identifies one life of a session. Sessions that are opened later with the same id have other keys.
pub(super) type Key = u64;

pub(super) struct Registry {
    slots: HashMap<ConversationId, Slot>,
    /// The openings whose sessions are not open yet.
    openings: HashMap<ConversationId, OpeningState>,
    /// The conversations that wait for room or have just got it, sorted by the numbers of their openings.
    waiting: BTreeMap<Number, ConversationId>,
    /// The openings that are waiting for a place.
    line: BTreeMap<Number, WaitingOpening>,
    /// The number of unused places for open sessions. While it is above 0, the line is empty.
    free: usize,
    /// The number of sessions that were asked to sleep or are ending, so that openings in line get places.
    making_room: usize,
    /// The sessions that may be asked to sleep, sorted by the time of their last use. The map is maintained only while
    /// the line is not empty. Entries may be outdated.
    prospects: BTreeMap<u64, ConversationId>,
    last_key: Key,
    /// A counter of changes. It puts the changes in order.
    clock: u64,
    feed: Feed<ManagerEvent>,
    pub(super) is_shut: bool,
    /// How the manager ended, if it has.
    pub(super) end: Option<End<ManagerSnapshot>>,
}

/// The state of one id that is open or in use.
struct Slot {
    key: Key,
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
    used: u64,
    /// When the conversation was opened, as a value of the registry's clock.
    since: u64,
    /// The state of the request to make room.
    rest: Rest,
}

impl Slot {
    fn activity(&self) -> Activity {
        Activity::of(self.status, self.is_queued)
    }

    fn open_session(&self, id: &ConversationId) -> OpenSession {
        let (title, labels) = (self.title.clone(), self.labels.clone());
        OpenSession { id: id.clone(), title, labels, activity: self.activity() }
    }
}

impl Registry {
    /// Creates a registry with this number of places for open sessions.
    pub(super) fn new(places: usize) -> Self {
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
            is_shut: false,
            end: None,
        }
    }

    // ---- claims ----

    /// Returns the open session with this id. If the id is claimed or about to be opened, returns the token to wait for.
    pub(super) fn look(&self, id: &ConversationId) -> Option<Result<Session, CancellationToken>> {
        match self.slots.get(id) {
            Some(Slot { claim: Some(claim), .. }) => Some(Err(claim.clone())),
            Some(Slot { session: Some(session), .. }) => Some(Ok(session.clone())),
            _ => self.openings.get(id).map(|opening| Err(opening.ended.clone())),
        }
    }

    /// Claims an id, whether or not its session is open, and returns the session. Nobody else works on the id until the
    /// claim is released. If another caller holds the claim, returns the token that is cancelled when it is released.
    pub(super) fn claim(&mut self, id: &ConversationId) -> Result<(Key, Option<Session>), CancellationToken> {
        self.clock += 1;
        let slot = self.slots.entry(id.clone()).or_insert_with(|| {
            self.last_key += 1;
            Slot {
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
                used: self.clock,
                since: 0,
                rest: Rest::default(),
            }
        });
        if let Some(claim) = &slot.claim {
            return Err(claim.clone());
        }
        slot.claim = Some(CancellationToken::new());
        Ok((slot.key, slot.session.clone()))
    }

    /// Releases a claim, and removes the slot if no session is open.
    pub(super) fn release(&mut self, id: &ConversationId, key: Key) {
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
    pub(super) fn opened(&mut self, key: Key, session: Session, title: Option<Arc<str>>, labels: Labels) {
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
        let ended = slot.ended.take();
        let open = slot.open_session(&id);
        self.end_opening(&id);
        self.emit(ManagerEvent::Opened { session: open });
        if let Some(reason) = ended {
            self.ended(&id, key, &reason);
        }
    }

    // ---- notifications of sessions ----

    fn slot(&mut self, id: &ConversationId, key: Key) -> Option<&mut Slot> {
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
        key: Key,
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
    pub(super) fn titled(&mut self, id: &ConversationId, key: Key, title: Option<Arc<str>>) {
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
    pub(super) fn labelled(&mut self, id: &ConversationId, key: Key, labels: Labels) {
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

    pub(super) fn emit_deleted(&mut self, id: &ConversationId) {
        self.emit(ManagerEvent::Deleted { id: id.clone() });
    }

    pub(super) fn emit_not_recovered(&mut self, id: &ConversationId, reason: String) {
        self.emit(ManagerEvent::NotRecovered { id: id.clone(), reason: reason.into() });
    }

    /// Records that a session has ended.
    pub(super) fn ended(&mut self, id: &ConversationId, key: Key, reason: &EndReason) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.key == key) else { return };
        let was_open = slot.session.take().is_some();
        if !was_open {
            slot.ended = Some(reason.clone());
        }
        let rest = std::mem::take(&mut slot.rest);
        if slot.claim.is_none() {
            self.slots.remove(id);
        }
        if was_open {
            self.emit(ManagerEvent::Closed { id: id.clone(), reason: reason.clone() });
        }
        self.end_rest(rest);
        if was_open {
            self.vacate();
        }
        self.make_room();
    }

    // ---- titles ----

    /// If an open session has no title and none is being generated yet, marks that a title is being generated, and
    /// returns the session.
    pub(super) fn begin_title(&mut self, id: &ConversationId, key: Key) -> Option<Session> {
        let slot = self.slot(id, key).filter(|slot| slot.title.is_none() && slot.titling.is_none())?;
        let session = slot.session.clone()?;
        slot.titling = Some(CancellationToken::new());
        Some(session)
    }

    pub(super) fn end_title(&mut self, id: &ConversationId, key: Key) {
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
    fn open(&self) -> impl Iterator<Item = (&ConversationId, &Slot, &Session)> {
        let open = self.slots.iter().filter_map(|(id, slot)| Some((id, slot, slot.session.as_ref()?)));
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(|(_, slot, _)| slot.since);
        open.into_iter()
    }

    pub(super) fn sessions(&self) -> Vec<Session> {
        self.open().map(|(_, _, session)| session.clone()).collect()
    }

    pub(super) fn claims(&self) -> Vec<CancellationToken> {
        self.slots.values().filter_map(|slot| slot.claim.clone()).collect()
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
    ) -> Attachment<ManagerSnapshot, ManagerEvent> {
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

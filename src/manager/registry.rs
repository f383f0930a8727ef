//! Who is open, and who is being worked on. Behind a lock that is held for a few steps at a time, and never across an
//! await; a task of its own would have nothing to wait for.

mod places;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

pub(super) use places::{Errand, InLine};
use places::{Number, Opening, Rest, RoomPermit};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Activity, ManagerEvent, ManagerSnapshot, OpenSession};
use crate::{
    agent::Status,
    session::Session,
    store::ConversationId,
    subscription::{Attachment, End, EndReason, EventId, Feed, FeedLimits},
};

/// Tells one life of a session from another with the same id.
pub(super) type Key = u64;

pub(super) struct Registry {
    slots: HashMap<ConversationId, Slot>,
    /// The open sessions and the waiting ones, in order, by [`Slot::since`].
    open: BTreeMap<u64, ConversationId>,
    waiting: BTreeMap<u64, ConversationId>,
    /// The waiting openings that have no place yet.
    line: BTreeMap<Number, Opening>,
    /// Unused places for open sessions. While there are some, the line is empty.
    free: usize,
    /// How many sessions are asked to sleep or are ending for the sake of the line.
    making_room: usize,
    /// Sessions that may be asked to sleep, by when they were last used. Kept up while the line is not empty. An entry may be
    /// out of date.
    prospects: BTreeMap<u64, ConversationId>,
    /// Tells that somebody has joined the line.
    pub(super) joined: Arc<Notify>,
    last_key: Key,
    /// Counts what sessions do, to tell what was first.
    clock: u64,
    feed: Feed<ManagerEvent>,
    pub(super) is_shut: bool,
    /// How the manager ended, when it has.
    pub(super) end: Option<End<ManagerSnapshot>>,
}

/// What is known of one id that is not merely stored.
struct Slot {
    key: Key,
    /// The session, while it is open.
    session: Option<Session>,
    /// Somebody opens, closes, renames or deletes it; who else wants to waits for this.
    claim: Option<CancellationToken>,
    /// Whoever has the claim stands in line, and somebody else renames or deletes the conversation meanwhile.
    loan: Option<Loan>,
    title: Option<Arc<str>>,
    /// Whether the session has told of a title already.
    has_told_title: bool,
    /// How the session ended, if it did before it was known to be open.
    ended: Option<EndReason>,
    status: Status,
    is_queued: bool,
    /// Cancelled when the title that is being made is set, or not to be had.
    titling: Option<CancellationToken>,
    used: u64,
    /// When it became open, or began to wait for it.
    since: u64,
    /// The place that it has among the open sessions, or on the way there.
    place: Option<RoomPermit>,
    /// What its session was asked to make room.
    rest: Rest,
}

/// What somebody has borrowed.
struct Loan {
    /// Tells when it is given back.
    over: CancellationToken,
    /// Whether the claim was let go of meanwhile.
    is_given_up: bool,
}

impl Slot {
    fn activity(&self) -> Activity {
        Activity::of(self.status, self.is_queued)
    }
}

/// What became of an attempt to claim an id.
pub(super) enum Claimed {
    /// It is claimed; nobody else works on it until it is let go of.
    Mine { key: Key, session: Option<Session> },
    /// Somebody else works on it; this tells when they are done.
    Wait(CancellationToken),
}

/// What became of an attempt to borrow a claimed id.
pub(super) enum Lent {
    /// It is borrowed; its claim is without effect until it is given back.
    Mine(Key),
    /// Somebody else has borrowed it; this tells when they are done.
    Wait(CancellationToken),
    /// Who has the claim does not stand in line.
    No,
}

impl Registry {
    /// With places for so many open sessions.
    pub(super) fn new(places: usize) -> Self {
        Self {
            slots: HashMap::new(),
            open: BTreeMap::new(),
            waiting: BTreeMap::new(),
            line: BTreeMap::new(),
            free: places,
            making_room: 0,
            prospects: BTreeMap::new(),
            joined: Arc::new(Notify::new()),
            last_key: 0,
            clock: 0,
            feed: Feed::new(rand::random()),
            is_shut: false,
            end: None,
        }
    }

    // ---- claims ----

    /// The open session with this id, or who is to be waited for.
    pub(super) fn look(&self, id: &ConversationId) -> Option<Result<Session, CancellationToken>> {
        let slot = self.slots.get(id)?;
        match (&slot.claim, &slot.session) {
            (Some(claim), _) => Some(Err(claim.clone())),
            (None, session) => session.clone().map(Ok),
        }
    }

    /// Claims an id, open or not.
    pub(super) fn claim(&mut self, id: &ConversationId) -> Claimed {
        self.clock += 1;
        let slot = self.slots.entry(id.clone()).or_insert_with(|| {
            self.last_key += 1;
            Slot {
                key: self.last_key,
                session: None,
                claim: None,
                loan: None,
                title: None,
                has_told_title: false,
                ended: None,
                status: Status::Idle,
                is_queued: false,
                titling: None,
                used: self.clock,
                since: 0,
                place: None,
                rest: Rest::default(),
            }
        });
        if let Some(claim) = &slot.claim {
            return Claimed::Wait(claim.clone());
        }
        slot.claim = Some(CancellationToken::new());
        Claimed::Mine { key: slot.key, session: slot.session.clone() }
    }

    /// Lets go of a claim, and of the slot, if nothing is open there.
    pub(super) fn release(&mut self, id: &ConversationId, key: Key) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.key == key) else {
            return;
        };
        if let Some(loan) = &mut slot.loan {
            // Whoever has borrowed it keeps the claim up.
            loan.is_given_up = true;
            self.leave_line(id, key);
            return;
        }
        let claim = slot.claim.take();
        if slot.session.is_none() {
            self.leave_line(id, key);
            self.slots.remove(id);
        }
        if let Some(claim) = claim {
            claim.cancel();
        }
        // A session that was worked on may be put to sleep now.
        self.changed(id, key);
    }

    /// Borrows an id from somebody who claims it and stands in line: that may take for ever, and nothing is open.
    pub(super) fn borrow(&mut self, id: &ConversationId) -> Lent {
        match self.slots.get_mut(id) {
            Some(Slot { loan: Some(loan), .. }) => Lent::Wait(loan.over.clone()),
            Some(slot) if self.line.contains_key(&slot.since) => {
                slot.loan = Some(Loan { over: CancellationToken::new(), is_given_up: false });
                Lent::Mine(slot.key)
            }
            _ => Lent::No,
        }
    }

    /// Gives back what was borrowed.
    pub(super) fn give_back(&mut self, id: &ConversationId, key: Key) {
        let Some(slot) = self.slot(id, key) else { return };
        if let Some(loan) = slot.loan.take() {
            loan.over.cancel();
            if loan.is_given_up {
                self.release(id, key);
            }
        }
    }

    /// Tells when what was borrowed is given back.
    pub(super) fn loan(&self, id: &ConversationId) -> Option<CancellationToken> {
        Some(self.slots.get(id)?.loan.as_ref()?.over.clone())
    }

    // ---- what is open ----

    /// A claimed id is open from now on.
    pub(super) fn opened(&mut self, key: Key, session: Session, title: Option<Arc<str>>) {
        let id = session.id().clone();
        self.clock += 1;
        let clock = self.clock;
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.key == key) else {
            return;
        };
        if !slot.has_told_title {
            slot.title = title;
        }
        (slot.session, slot.used) = (Some(session), clock);
        let waited_since = std::mem::replace(&mut slot.since, clock);
        let ended = slot.ended.take();
        let told = OpenSession { id: id.clone(), title: slot.title.clone(), activity: slot.activity() };
        self.waiting.remove(&waited_since);
        self.open.insert(clock, id.clone());
        self.tell(ManagerEvent::Opened { session: told });
        if let Some(reason) = ended {
            self.ended(&id, key, &reason);
        }
    }

    // ---- what sessions tell ----

    fn slot(&mut self, id: &ConversationId, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(id).filter(|slot| slot.key == key)
    }

    /// A session is used by somebody.
    pub(super) fn touch(&mut self, id: &ConversationId) {
        self.clock += 1;
        if let Some(slot) = self.slots.get_mut(id) {
            slot.used = self.clock;
        }
    }

    /// Changes what is known of a session, and tells if its activity is another then.
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
            self.tell(ManagerEvent::Status { id: id.clone(), activity });
        }
    }

    /// A session has another title.
    pub(super) fn titled(&mut self, id: &ConversationId, key: Key, title: Option<Arc<str>>) {
        let Some(slot) = self.slot(id, key) else { return };
        slot.title.clone_from(&title);
        slot.has_told_title = true;
        if slot.session.is_some() {
            self.tell(ManagerEvent::Title { id: id.clone(), title });
        }
    }

    /// A conversation has another title in the store.
    pub(super) fn tell_title(&mut self, id: &ConversationId, title: Option<Arc<str>>) {
        if let Some(slot) = self.slots.get_mut(id) {
            // It has ended, and that is not told yet.
            slot.title.clone_from(&title);
        }
        self.tell(ManagerEvent::Title { id: id.clone(), title });
    }

    pub(super) fn tell_deleted(&mut self, id: &ConversationId) {
        self.tell(ManagerEvent::Deleted { id: id.clone() });
    }

    /// A session has ended.
    pub(super) fn ended(&mut self, id: &ConversationId, key: Key, reason: &EndReason) {
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.key == key) else { return };
        let was_open = slot.session.take().is_some();
        if !was_open {
            slot.ended = Some(reason.clone());
        }
        let (since, rest) = (slot.since, std::mem::take(&mut slot.rest));
        let place = if was_open { slot.place.take() } else { None };
        if slot.claim.is_none() {
            self.slots.remove(id);
        }
        if was_open {
            self.open.remove(&since);
            self.tell(ManagerEvent::Closed { id: id.clone(), reason: reason.clone() });
        }
        self.end_rest(rest);
        if place.is_some() {
            self.vacate();
        }
        self.make_room();
    }

    // ---- titles ----

    /// Begins a title for an open session that has none, unless one is being made already.
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

    /// Returns the token that is cancelled when the title in the making is set or given up.
    pub(super) fn titling(&self, id: &ConversationId) -> Option<CancellationToken> {
        self.slots.get(id)?.titling.clone()
    }

    // ---- looking ----

    /// The open session with this id, whoever works on it.
    pub(super) fn get(&self, id: &ConversationId) -> Option<Session> {
        self.slots.get(id)?.session.clone()
    }

    pub(super) fn open_session(&self, id: &ConversationId) -> Option<OpenSession> {
        let slot = self.slots.get(id)?;
        slot.session.as_ref()?;
        Some(OpenSession { id: id.clone(), title: slot.title.clone(), activity: slot.activity() })
    }

    pub(super) fn sessions(&self) -> Vec<Session> {
        self.open.values().filter_map(|id| self.get(id)).collect()
    }

    pub(super) fn claims(&self) -> Vec<CancellationToken> {
        self.slots.values().filter_map(|slot| slot.claim.clone()).collect()
    }

    pub(super) fn snapshot(&self) -> ManagerSnapshot {
        ManagerSnapshot {
            last: self.feed.last(),
            open: self.open.values().filter_map(|id| self.open_session(id)).collect(),
            waiting: self.waiting.values().cloned().collect(),
        }
    }

    /// A place in the stream of events: after `after` if all that follows it is still there, else now.
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
            // The first update is the end.
            self.feed.close();
        }
        attachment
    }

    /// Nothing is open any more, and nothing will be.
    pub(super) fn finish(&mut self) {
        let snapshot = Some(Arc::new(self.snapshot()));
        self.end.get_or_insert(End { reason: EndReason::Stopped, snapshot });
        self.feed.close();
    }

    fn tell(&mut self, event: ManagerEvent) {
        if !self.feed.is_listened_to() {
            return self.feed.skip();
        }
        let weight = event.weight();
        self.feed.publish(Arc::new(event), weight);
    }
}

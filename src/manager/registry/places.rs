//! Places for open sessions: the line of openings that wait for a place, and the sessions that are asked to make room.
//!
//! For each opening in line, at most one session is asked to sleep or is ending. All of this happens at the same time.
//! The lock is never held while a session replies: an opening in line receives an [`Errand`], performs it in its own
//! task and reports the reply. Nothing is polled. A session that refuses is asked again after it reports a change.

use tokio::sync::mpsc;

use super::{Key, Registry, Slot};
use crate::{agent::Status, manager::ManagerEvent, session::Session, store::ConversationId};

/// A place for an open session. It belongs to a slot, which returns it when the slot is removed.
pub(super) struct RoomPermit;

/// An opening that waits for a place.
pub(super) struct Opening {
    errands: mpsc::UnboundedSender<Errand>,
    /// The session that the opening asks to sleep, with its key.
    asking: Option<(ConversationId, Key)>,
}

/// Identifies an opening in line. Smaller numbers came earlier.
pub(in crate::manager) type Number = u64;

/// A message to an opening in line.
pub(in crate::manager) enum Errand {
    /// Ask this session to sleep, and report the reply to [`Registry::answered`]. An opening performs at most one at a
    /// time.
    PutToSleep { key: Key, session: Session },
    /// Enter: the opening has a place. This is the last message.
    Enter,
}

/// The receiver of an opening in line.
pub(in crate::manager) struct InLine {
    pub(in crate::manager) number: Number,
    /// Unbounded, but it never holds more than two messages: one errand and the place.
    pub(in crate::manager) errands: mpsc::UnboundedReceiver<Errand>,
}

/// The state of a session's request to make room.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Rest {
    #[default]
    Unasked,
    /// An opening asks the session to sleep.
    Asked {
        by: Number,
        /// Whether the session has reported a change since it was asked, so that a refusal may be outdated.
        has_changed: bool,
    },
    /// The session has refused, and has reported no change since.
    Refused,
    /// The session is ending.
    Ending,
}

impl Rest {
    /// Returns whether the session is expected to make room.
    fn counts(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Ending)
    }
}

impl Slot {
    /// Returns whether the session may be asked to sleep.
    fn may_sleep(&self) -> bool {
        self.rest == Rest::Unasked
            && self.claim.is_none()
            && self.status == Status::Idle
            && self.session.as_ref().is_some_and(|session| session.controllers() == 0)
    }
}

impl Registry {
    /// Takes a place for a claimed id. If none is free, the opening joins the line.
    pub(in crate::manager) fn take_place(&mut self, id: &ConversationId, key: Key) -> Option<InLine> {
        self.clock += 1;
        let (number, is_free) = (self.clock, self.free > 0);
        let slot = self.slot(id, key)?;
        if is_free {
            slot.place = Some(RoomPermit);
            self.free -= 1;
            return None;
        }
        slot.since = number;
        if self.line.is_empty() {
            self.find_prospects();
        }
        let (sender, errands) = mpsc::unbounded_channel();
        self.line.insert(number, Opening { errands: sender, asking: None });
        self.waiting.insert(number, id.clone());
        self.emit(ManagerEvent::Waiting { id: id.clone() });
        self.joined.notify_waiters();
        self.make_room();
        Some(InLine { number, errands })
    }

    /// Gives up the place of a claimed id, or its number in line.
    pub(super) fn leave_line(&mut self, id: &ConversationId, key: Key) {
        let Some(slot) = self.slot(id, key) else { return };
        let (since, had_place) = (slot.since, slot.place.take().is_some());
        if let Some(opening) = self.line.remove(&since) {
            self.withdraw(opening);
        }
        if self.waiting.remove(&since).is_some() {
            self.emit(ManagerEvent::GivenUp { id: id.clone() });
        }
        if had_place {
            self.vacate();
        }
        self.make_room();
    }

    /// Passes a place on to the first opening in line.
    pub(super) fn vacate(&mut self) {
        while let Some((number, opening)) = self.line.pop_first() {
            let slot = self.waiting.get(&number).and_then(|id| self.slots.get_mut(id));
            let has_entered =
                slot.filter(|slot| slot.since == number).map(|slot| slot.place = Some(RoomPermit));
            // An opening that was given up passes the place on when it drops its claim.
            let _ = opening.errands.send(Errand::Enter);
            self.withdraw(opening);
            if has_entered.is_some() {
                return;
            }
        }
        self.free += 1;
    }

    /// Handles an opening that has left the line and no longer waits for the reply of the session that it has asked.
    fn withdraw(&mut self, opening: Opening) {
        let Some((id, key)) = opening.asking else { return };
        if let Some(slot) = self.slot(&id, key)
            && matches!(slot.rest, Rest::Asked { .. })
        {
            slot.rest = Rest::Unasked;
            self.making_room -= 1;
            self.consider(&id);
        }
    }

    /// Asks sessions to sleep, the least recently used first, until one is asked for each opening in line.
    pub(super) fn make_room(&mut self) {
        if self.line.is_empty() {
            return self.prospects.clear();
        }
        while self.making_room < self.line.len() {
            let Some(id) = self.next_prospect() else { return };
            // The last opening in line comes first, because it is the one that has just joined. At least one opening
            // asks no session, because fewer sessions are asked than openings wait.
            let free = self.line.iter_mut().next_back().filter(|(_, opening)| opening.asking.is_none());
            let free = match free {
                Some((number, _)) => Some(*number),
                None => self.line.iter().find(|(_, opening)| opening.asking.is_none()).map(|(n, _)| *n),
            };
            let (Some(number), Some(slot)) = (free, self.slots.get_mut(&id)) else { return };
            let (Some(opening), Some(session)) = (self.line.get_mut(&number), slot.session.clone()) else {
                return;
            };
            slot.rest = Rest::Asked { by: number, has_changed: false };
            opening.asking = Some((id, slot.key));
            // An opening that was given up leaves the line when it drops its claim.
            let _ = opening.errands.send(Errand::PutToSleep { key: slot.key, session });
            self.making_room += 1;
        }
    }

    /// Handles the reply of a session to the opening that asked it to sleep.
    pub(in crate::manager) fn answered(&mut self, id: &ConversationId, key: Key, by: Number, ends: bool) {
        // The session may have ended after its reply. The opening then already asks another session.
        if let Some(opening) = self.line.get_mut(&by)
            && opening.asking.as_ref().is_some_and(|(asked, life)| asked == id && *life == key)
        {
            opening.asking = None;
        }
        if let Some(slot) = self.slot(id, key)
            && let Rest::Asked { by: asked_by, has_changed } = slot.rest
            && asked_by == by
        {
            slot.rest = match (ends, has_changed) {
                (true, _) => Rest::Ending,
                (false, true) => Rest::Unasked,
                (false, false) => Rest::Refused,
            };
            if !ends {
                self.making_room -= 1;
                self.consider(id);
            }
        }
        self.make_room();
    }

    /// Handles the end of a session with its request to make room. [`vacate`](Self::vacate) passes the place on.
    pub(super) fn end_rest(&mut self, rest: Rest) {
        if rest.counts() {
            self.making_room -= 1;
        }
        if let Rest::Asked { by, .. } = rest
            && let Some(opening) = self.line.get_mut(&by)
        {
            opening.asking = None;
        }
    }

    /// Handles a change after which a session may be ready to sleep.
    pub(in crate::manager) fn changed(&mut self, id: &ConversationId, key: Key) {
        if self.line.is_empty() {
            return;
        }
        let Some(slot) = self.slot(id, key) else { return };
        match &mut slot.rest {
            Rest::Refused => slot.rest = Rest::Unasked,
            Rest::Asked { has_changed, .. } => *has_changed = true,
            Rest::Unasked | Rest::Ending => {}
        }
        self.consider(id);
        self.make_room();
    }

    /// Notes a session that may be asked to sleep when the next opening needs room.
    fn consider(&mut self, id: &ConversationId) {
        if let Some(slot) = self.slots.get(id).filter(|slot| slot.may_sleep())
            && !self.line.is_empty()
        {
            self.prospects.insert(slot.used, id.clone());
        }
    }

    /// Checks all sessions, because none were noted while the line was empty.
    fn find_prospects(&mut self) {
        self.prospects.clear();
        for (id, slot) in &mut self.slots {
            if slot.rest == Rest::Refused {
                slot.rest = Rest::Unasked;
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
                // It was used since.
                Some(slot) => drop(self.prospects.insert(slot.used, id)),
                // It is noted again when that changes.
                None => {}
            }
        }
    }

    pub(in crate::manager) fn is_waiting(&self, id: &ConversationId) -> bool {
        self.slots.get(id).is_some_and(|slot| self.waiting.contains_key(&slot.since))
    }

    /// Returns the sessions whose tools or callbacks run. Their places become free only after these are done.
    pub(in crate::manager) fn parents(&self) -> Vec<ConversationId> {
        let is_parent = |slot: &Slot| {
            slot.status == Status::Busy && slot.session.as_ref().is_some_and(Session::is_between_requests)
        };
        self.open.values().filter(|id| self.slots.get(*id).is_some_and(is_parent)).cloned().collect()
    }
}

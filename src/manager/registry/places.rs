//! Places for open sessions. Openings wait in line for a place, and idle sessions are asked to make room.
//!
//! Each opening in line causes at most one session to be asked to sleep or to end. Different openings do this at the
//! same time. The lock is never held while a session replies: an opening in line receives an [`Errand`], performs it in
//! its own task and reports the reply. Nothing is polled. A session that refuses is asked again only after it has
//! reported a change.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Key, Registry, Slot};
use crate::{agent::Status, manager::ManagerEvent, session::Session, store::ConversationId};

/// An opening whose session is not open yet. Other openings of the id wait for its end.
pub(super) struct OpeningState {
    number: Number,
    /// Cancelled when the session is open, or the opening is given up.
    pub(super) ended: CancellationToken,
    /// Whether the opening has a place. The place then passes to the open session, and becomes free when the session has
    /// ended or the opening is given up.
    has_place: bool,
}

/// An opening that waits for a place.
pub(super) struct WaitingOpening {
    errands: mpsc::UnboundedSender<Errand>,
    /// The session that this opening is asking to sleep, with its key.
    asking: Option<(ConversationId, Key)>,
}

/// Identifies an opening. An opening that began earlier has a smaller number.
pub(in crate::manager) type Number = u64;

/// A message to an opening in line.
pub(in crate::manager) enum Errand {
    /// Ask this session to sleep, and report the reply to [`Registry::answered`]. An opening performs at most one
    /// errand at a time.
    PutToSleep { key: Key, session: Session },
    /// The opening has a place and can continue. This is the last message.
    Enter,
}

/// The position in line that an opening holds: its number and the receiver of its errands.
pub(in crate::manager) struct InLine {
    pub(in crate::manager) number: Number,
    /// The channel is unbounded, but it never holds more than two messages: one errand and the place.
    pub(in crate::manager) errands: mpsc::UnboundedReceiver<Errand>,
}

/// Whether a session was asked to make room, and the result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Rest {
    #[default]
    Unasked,
    /// An opening is asking the session to sleep.
    Asked {
        by: Number,
        /// Whether the session has reported a change since it was asked. If it has, its refusal may be outdated.
        has_changed: bool,
    },
    /// The session has refused, and has reported no change since then.
    Refused,
    /// The session is ending.
    Ending,
}

impl Rest {
    /// Returns whether the session may soon make room, because it was asked to sleep or is ending.
    fn counts(self) -> bool {
        matches!(self, Self::Asked { .. } | Self::Ending)
    }
}

impl Slot {
    /// Returns whether the session may be asked to sleep. A paused session agrees if its turn is recorded.
    fn may_sleep(&self) -> bool {
        self.rest == Rest::Unasked
            && self.claim.is_none()
            && self.status != Status::Busy
            && self.session.as_ref().is_some_and(|session| session.controllers() == 0)
    }
}

impl Registry {
    /// Begins an opening of an id for which [`Registry::look`] returns nothing.
    pub(in crate::manager) fn begin_opening(&mut self, id: &ConversationId) -> Number {
        self.clock += 1;
        let opening = OpeningState { number: self.clock, ended: CancellationToken::new(), has_place: false };
        self.openings.insert(id.clone(), opening);
        self.clock
    }

    /// Takes a place for an opening. If no place is free, the opening joins the line.
    pub(in crate::manager) fn take_place(&mut self, id: &ConversationId, number: Number) -> Option<InLine> {
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
        self.line.insert(number, WaitingOpening { errands: sender, asking: None });
        self.waiting.insert(number, id.clone());
        self.emit(ManagerEvent::Waiting { id: id.clone() });
        self.make_room();
        Some(InLine { number, errands })
    }

    /// Ends the opening whose session is open now. Its place belongs to the session.
    pub(super) fn end_opening(&mut self, id: &ConversationId) {
        if let Some(opening) = self.openings.remove(id) {
            self.waiting.remove(&opening.number);
            opening.ended.cancel();
        }
    }

    /// Gives up an opening with its place, or with its position in line, unless its session is open.
    pub(in crate::manager) fn leave_line(&mut self, id: &ConversationId, number: Number) {
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
        if let Some(OpeningState { ended, has_place, .. }) = opening {
            ended.cancel();
            if has_place {
                self.vacate();
            }
        }
        self.make_room();
    }

    /// Passes a place to the first opening in line, or counts it as free if the line is empty.
    pub(super) fn vacate(&mut self) {
        while let Some((number, opening)) = self.line.pop_first() {
            let entering = self.waiting.get(&number).and_then(|id| self.openings.get_mut(id));
            let has_entered = entering.map(|entering| entering.has_place = true).is_some();
            // The send fails if the opening was given up. That opening passes its place on when it is dropped.
            let _ = opening.errands.send(Errand::Enter);
            self.withdraw(opening);
            if has_entered {
                return;
            }
        }
        self.free += 1;
    }

    /// Withdraws the request of an opening that has left the line. The opening no longer waits for the session that it
    /// asked.
    fn withdraw(&mut self, opening: WaitingOpening) {
        let Some((id, key)) = opening.asking else { return };
        if let Some(slot) = self.slot(&id, key)
            && matches!(slot.rest, Rest::Asked { .. })
        {
            slot.rest = Rest::Unasked;
            self.making_room -= 1;
            self.consider(&id);
        }
    }

    /// Asks sessions to sleep until as many sessions are making room as openings are waiting. The least recently used
    /// session is asked first.
    pub(super) fn make_room(&mut self) {
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
            slot.rest = Rest::Asked { by: number, has_changed: false };
            opening.asking = Some((id, slot.key));
            // The send fails if the opening was given up. That opening leaves the line when it is dropped.
            let _ = opening.errands.send(Errand::PutToSleep { key: slot.key, session });
            self.making_room += 1;
        }
    }

    /// Processes a session's reply to the opening that asked the session to sleep.
    pub(in crate::manager) fn answered(&mut self, id: &ConversationId, key: Key, by: Number, ends: bool) {
        // Clear only a request to this session: it may have ended after it replied, and the opening may already be
        // asking another session.
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

    /// Clears the request that asked a session to make room, because the session has ended. The caller passes the place
    /// on with [`vacate`](Self::vacate).
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

    /// Processes a change of a session, after which the session may be ready to sleep.
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

    /// Returns the sessions whose tools or callbacks are running. Their places cannot become free before these tools
    /// and callbacks are done.
    pub(in crate::manager) fn parents(&self) -> Vec<ConversationId> {
        let is_parent = |(id, slot, session): (&ConversationId, &Slot, &Session)| {
            (slot.status == Status::Busy && session.is_between_requests()).then(|| id.clone())
        };
        self.open().filter_map(is_parent).collect()
    }
}

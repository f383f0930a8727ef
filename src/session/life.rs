//! The lives of a session, and the events that readers continue from.
//!
//! A conversation is opened again and again, by different processes. Each time is a *life*, and the ids of its events
//! contain its number. Later lives have higher numbers, so that a reader can recognise the events of a former owner.
//!
//! A view ignores the events of lower lives. At an orderly end, the id of the last event is stored with the release of
//! the lease, so a reader that has seen this event continues in the next life without a snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use super::tenure::ConversationLease;
use crate::{message::Timestamp, subscription::EventId};

/// The last number that [`next`] has returned for a life without a lease. The next number is higher, so that two lives
/// that start in the same millisecond differ.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The life of a session whose conversation is not stored when it starts. All later lives are higher.
pub(super) const FIRST: u64 = 0;

/// Returns the number of a life that starts now. With a lease, this is the epoch, which the store increases with each
/// owner. In a store without owners, it is the time in milliseconds, or a later number if that is necessary to exceed
/// the life of the event `mark`, the time `updated` of the last write, and the last number of this process. The time of
/// the last write is not before the life that wrote it, even if that life was killed and the clock was set back since.
pub(super) fn next(tenure: Option<&ConversationLease>, mark: Option<EventId>, updated: Timestamp) -> u64 {
    if let Some(tenure) = tenure {
        return tenure.epoch().0;
    }
    let before = mark.map_or(0, |mark| mark.life).max(updated.0);
    let earliest = before.saturating_add(1).max(Timestamp::now().0);
    let next = |last: u64| earliest.max(last.saturating_add(1));
    let before = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    next(before.unwrap_or_else(|last| last))
}

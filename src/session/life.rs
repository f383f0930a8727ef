//! The lives of a session, and the events that readers continue from.
//!
//! A conversation is opened again and again, by different processes. Each time is a *life*, and the ids of its events
//! contain its number. Later lives have higher numbers, so that a reader can recognise the events of a former owner.
//!
//! A view ignores the events of lower lives. At an orderly end, the id of the last event is stored with the release of
//! the lease, so a reader that has seen this event continues in the next life without a snapshot.

use std::sync::atomic::{AtomicU64, Ordering};

use super::tenure::ConversationLease;
use crate::{message::Timestamp, store::Version, subscription::EventId};

/// The last number that [`next`] has returned for a life without a lease. The next number is higher, so that two lives
/// that start in the same millisecond differ.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The life of a session whose conversation is not stored when it starts. All later lives are higher.
pub(super) const FIRST: u64 = 0;

/// Returns the number of a life that starts now. With a lease, this is the epoch, which the store increases with each
/// owner. In a store without owners, it is the time in milliseconds, or a later number if that is necessary to exceed
/// the life of the event `mark`, the lives that wrote, and the last number of this process. `written` is the time of the
/// last write, and its version.
pub(super) fn next(
    tenure: Option<&ConversationLease>,
    mark: Option<EventId>,
    written: Option<(Timestamp, Version)>,
) -> u64 {
    if let Some(tenure) = tenure {
        return tenure.epoch().0;
    }
    let earliest = earliest(mark, written, Timestamp::now());
    let next = |last: u64| earliest.max(last.saturating_add(1));
    let before = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    next(before.unwrap_or_else(|last| last))
}

/// Returns the lowest number that a life may have which starts at the time `now`. The time of the last write is not before
/// the life that wrote it, even if that life was killed and the clock was set back since. While the clock is behind, the
/// time of the last write can stay the same. Its version grows, so the number grows with the version. Only the low bits are
/// used, because the first version of a conversation is random.
fn earliest(mark: Option<EventId>, written: Option<(Timestamp, Version)>, now: Timestamp) -> u64 {
    let last_write = written.map_or(0, |(time, version)| {
        let writes = if now < time { version.get() & 0xffff } else { 0 };
        time.0.saturating_add(writes)
    });
    let before = mark.map_or(0, |mark| mark.life).max(last_write);
    before.saturating_add(1).max(now.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_that_are_killed_while_the_clock_is_behind_have_rising_numbers() {
        let (ahead, now) = (Timestamp(5_000), Timestamp(1_000));
        let written = |time, version| Some((time, Version::new(version)));
        let first = earliest(None, written(ahead, 70_005), now);
        let second = earliest(None, written(ahead, 70_006), now);
        assert!(ahead.0 < first && first < second, "{first}, {second}");
        assert_eq!(earliest(None, written(now, 70_005), ahead), ahead.0);
        let mark = EventId { life: 9_000, number: 1 };
        assert_eq!(earliest(Some(mark), written(now, 70_005), ahead), 9_001);
    }
}

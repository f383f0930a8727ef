//! Deliberate faults. The simulator must detect each of them.

use super::World;
use crate::actor::simulation::Simulated;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// Effects do not wait for their records.
    GatesRemoved,
    /// A record stays although its turn has ended.
    RecordKept,
    /// A record's number of kept messages is ignored.
    KeepIgnored,
    /// A record does not replace the record of an earlier turn.
    OlderTurnKept,
    /// A repeated call has another idempotency key.
    KeyChanged,
    /// Replies do not wait for their records.
    RepliesEarly,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::GatesRemoved,
        Self::RecordKept,
        Self::KeepIgnored,
        Self::OlderTurnKept,
        Self::KeyChanged,
        Self::RepliesEarly,
    ];
}

#[test]
fn crashes_with_a_fault_are_noticed() {
    for fault in Fault::ALL {
        let is_noticed = (0..5_000).any(|seed| {
            let mut world = World::begin(seed, false);
            world.fault = Some(fault);
            let run = std::panic::AssertUnwindSafe(|| world.run());
            !matches!(std::panic::catch_unwind(run), Ok(Ok(())))
        });
        assert!(is_noticed, "{fault:?} is not noticed");
    }
}

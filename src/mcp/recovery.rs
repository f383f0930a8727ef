//! Decides when the client connects again to a lost server. The caller supplies the time.

use std::{collections::VecDeque, time::Duration};

/// The delay after the first failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_millis(500);

/// The longest delay.
const LONGEST: Duration = Duration::from_secs(30);

/// A program that ends this many times within [`WINDOW`] is not started again.
const EXITS: usize = 3;

const WINDOW: Duration = Duration::from_mins(1);

/// The lost connections of one server. All times are durations since the same moment.
#[derive(Debug, Default)]
pub(super) struct ReconnectPlan {
    failures: u32,
    not_before: Duration,
    exits: VecDeque<Duration>,
    down: bool,
}

impl ReconnectPlan {
    /// Records that a connection was lost or could not be made.
    pub(super) fn lost(&mut self, now: Duration, is_program: bool) {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures += 1;
        self.not_before = now + doubled.min(LONGEST);
        if is_program {
            self.exits.push_back(now);
            while self.exits.front().is_some_and(|first| now.saturating_sub(*first) > WINDOW) {
                self.exits.pop_front();
            }
            self.down |= self.exits.len() >= EXITS;
        }
    }

    /// Records that a call was answered, so the next loss starts with the shortest delay.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next attempt, which may be zero. Returns `None` if the program ended too often and
    /// stays down.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        (!self.down).then(|| self.not_before.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lost_delays_double_up_to_the_longest_and_start_again_after_success() {
        let mut plan = ReconnectPlan::default();
        assert_eq!(plan.next(at(0)), Some(Duration::ZERO));
        let mut delays = Vec::new();
        for _ in 0..8 {
            plan.lost(at(0), false);
            delays.push(plan.next(at(0)).unwrap().as_millis());
        }
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(plan.next(at(40)), Some(Duration::ZERO));
        plan.worked();
        plan.lost(at(50), false);
        assert_eq!(plan.next(at(50)), Some(FIRST));
    }

    #[test]
    fn lost_program_that_ends_three_times_in_a_minute_stays_down() {
        let mut plan = ReconnectPlan::default();
        for second in [0, 50, 100] {
            plan.lost(at(second), true);
        }
        assert_ne!(plan.next(at(200)), None);
        plan.lost(at(105), true);
        assert_eq!(plan.next(at(1000)), None);
    }
}

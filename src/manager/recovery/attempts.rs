//! The pure rules of recovery: which of the turns that nobody works on are continued, and when.

use std::{collections::HashMap, time::Duration};

use crate::{
    message::{Timestamp, TurnId},
    store::{ConversationId, TurnSummary},
};

/// The delay after the first attempt that failed, and after the first restart without progress. It doubles with each
/// further failure or restart.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay after restarts without progress.
const LONGEST_BETWEEN_LIVES: Duration = Duration::from_mins(1);
/// The longest delay after failed attempts.
pub(in crate::manager) const LONGEST_BETWEEN_FAILURES: Duration = Duration::from_mins(10);
/// The maximum number of failures that are remembered. If this number is exceeded, some failures are forgotten, and
/// their turns may be tried too early.
pub(in crate::manager) const MOST_FAILURES: usize = 4096;

/// What to do with a turn that nobody works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnownedTurnAction {
    /// Nothing now: the last failed attempt, or the last record before a restart without progress, is too recent.
    Wait,
    /// Apply the decisions for the time limits that have passed. Then open the conversation, if the turn needs more
    /// than decisions.
    Expire,
    /// Open the conversation.
    Open,
}

/// The turns that could not be opened.
#[derive(Debug, Default)]
pub(super) struct FailedOpenings {
    failures: HashMap<ConversationId, TurnOpeningFailures>,
}

#[derive(Debug)]
struct TurnOpeningFailures {
    turn: TurnId,
    count: u32,
    /// The time of the next attempt, on the clock of the process.
    next: Duration,
}

impl FailedOpenings {
    /// Returns what to do with a turn. `now` is the time by the store's clock, and `at` is the time by a clock that
    /// runs only while the process does.
    pub(super) fn verdict(&self, turn: &TurnSummary, now: Timestamp, at: Duration) -> UnownedTurnAction {
        if self.has_just_failed(turn, at) {
            return UnownedTurnAction::Wait;
        }
        let has_expired =
            turn.approvals.iter().any(|approval| approval.survives && approval.has_expired(now));
        if has_expired {
            return UnownedTurnAction::Expire;
        }
        // A turn that was handed over was not interrupted by a crash, so it continues without a delay. If the clock was
        // ahead when the turn was recorded, the delay can't be measured. The turn then continues at once, and its
        // restart is recorded with the right time.
        let delay = if turn.orderly { Duration::ZERO } else { delay(turn.lives, LONGEST_BETWEEN_LIVES) };
        let waits = turn.recorded <= now && turn.recorded.after(delay) > now;
        if waits { UnownedTurnAction::Wait } else { UnownedTurnAction::Open }
    }

    /// Returns whether the last failed attempt is too recent for another one.
    pub(super) fn has_just_failed(&self, turn: &TurnSummary, at: Duration) -> bool {
        let failures = self.failures.get(&turn.id).filter(|failures| failures.turn == turn.turn);
        failures.is_some_and(|failures| at < failures.next)
    }

    /// Records that a turn could not be opened.
    pub(super) fn failed(&mut self, turn: &TurnSummary, at: Duration) {
        if self.failures.len() >= MOST_FAILURES {
            self.failures.retain(|_, failures| at < failures.next);
        }
        if self.failures.len() >= MOST_FAILURES && !self.failures.contains_key(&turn.id) {
            return;
        }
        let failures = self.failures.entry(turn.id.clone());
        let failures = failures.or_insert(TurnOpeningFailures { turn: turn.turn, count: 0, next: at });
        if failures.turn != turn.turn {
            *failures = TurnOpeningFailures { turn: turn.turn, count: 0, next: at };
        }
        failures.count = failures.count.saturating_add(1);
        failures.next = at.saturating_add(delay(failures.count, LONGEST_BETWEEN_FAILURES));
    }

    /// Forgets the failures of a conversation that was opened.
    pub(super) fn opened(&mut self, id: &ConversationId) {
        self.failures.remove(id);
    }
}

/// Returns the delay after this many attempts.
pub(in crate::manager) fn delay(attempts: u32, longest: Duration) -> Duration {
    match attempts.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => {
            FIRST_DELAY.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(longest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::ToolUse,
        run::{PendingUse, TurnRecord},
        store::{StoredTurn, Version},
    };

    fn turn(record: TurnRecord, recorded: u64) -> TurnSummary {
        let turn = StoredTurn::fold(None, record, Timestamp(recorded), Version::new(1));
        TurnSummary::new(ConversationId::new("a").unwrap(), &turn)
    }

    fn record(number: u128) -> TurnRecord {
        TurnRecord::new(1, TurnId::new(number), "{}")
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn turn_with_many_lives_waits_longer() {
        let attempts = FailedOpenings::default();
        let waits = |lives: u32| {
            let turn = turn(record(1).with_lives(lives), 1_000_000);
            let is_open = |after: &u64| {
                attempts.verdict(&turn, Timestamp(1_000_000 + after), secs(0)) == UnownedTurnAction::Open
            };
            [0, 999, 1000, 1999, 2000, 15_999, 16_000, 59_999, 60_000]
                .iter()
                .find(|after| is_open(after))
                .copied()
        };
        assert_eq!([0, 1, 2, 5, 9, 40].map(waits), [0, 1000, 2000, 16_000, 60_000, 60_000].map(Some));
    }

    #[test]
    fn turn_that_was_handed_over_is_opened_at_once() {
        let turn = turn(record(1).with_lives(5).with_orderly(true), 5);
        assert_eq!(FailedOpenings::default().verdict(&turn, Timestamp(5), secs(0)), UnownedTurnAction::Open);
    }

    #[test]
    fn turn_that_failed_waits_twice_as_long_each_time() {
        let (mut attempts, one) = (FailedOpenings::default(), turn(record(1), 0));
        let mut at = secs(0);
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600] {
            attempts.failed(&one, at);
            let early = (at + secs(wait)).saturating_sub(Duration::from_nanos(1));
            assert_eq!(attempts.verdict(&one, Timestamp(0), early), UnownedTurnAction::Wait);
            at += secs(wait);
            assert_eq!(attempts.verdict(&one, Timestamp(0), at), UnownedTurnAction::Open);
        }
        attempts.failed(&one, at);
        let other = turn(record(2), 0);
        assert_eq!(attempts.verdict(&other, Timestamp(0), at), UnownedTurnAction::Open, "another turn");
        attempts.opened(&one.id);
        assert_eq!(attempts.verdict(&one, Timestamp(0), at), UnownedTurnAction::Open);
    }

    #[test]
    fn turn_past_a_time_limit_expires_first() {
        let waiting = PendingUse::new(TurnId::new(1), ToolUse::new("1", "send", serde_json::Value::Null));
        let limited = waiting.with_limit(secs(10));
        let verdict = |waiting: PendingUse, now: u64| {
            let turn = turn(record(1).with_lives(3).with_waiting(vec![waiting]), 0);
            FailedOpenings::default().verdict(&turn, Timestamp(now), secs(0))
        };
        assert_eq!(verdict(limited.clone(), 9_999), UnownedTurnAction::Open);
        assert_eq!(verdict(limited.clone(), 10_000), UnownedTurnAction::Expire);
        assert_eq!(verdict(limited.with_survives(false), 10_000), UnownedTurnAction::Open);
    }

    #[test]
    fn failures_of_many_conversations_are_bounded() {
        let mut attempts = FailedOpenings::default();
        for number in 0..2 * MOST_FAILURES {
            let mut turn = turn(record(1), 0);
            turn.id = ConversationId::new(number.to_string()).unwrap();
            attempts.failed(&turn, secs(0));
        }
        assert_eq!(attempts.failures.len(), MOST_FAILURES);
        attempts.failed(&turn(record(1), 0), secs(5));
        assert_eq!(attempts.failures.len(), 1, "the others may be tried again");
    }
}

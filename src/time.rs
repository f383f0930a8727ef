//! Arithmetic with durations that applications set. No duration is too long for it.

use std::time::Duration;

use tokio::time::Instant;

/// The minimum interval of work that repeats by itself. With a shorter one, the work would keep a thread busy.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// The time until a moment that never comes. It is added to the clock if the clock cannot represent a longer time.
pub(crate) const NEVER: Duration = Duration::from_hours(24 * 365 * 30);

/// Returns the moment after this time.
pub(crate) fn moment_after(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + NEVER)
}

/// Returns this multiple of a duration.
pub(crate) fn scaled(duration: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(duration.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn moment_and_multiple_of_the_longest_duration_do_not_overflow() {
        assert!(moment_after(Duration::MAX) > Instant::now() + NEVER / 2);
        assert_eq!(moment_after(Duration::from_secs(1)), Instant::now() + Duration::from_secs(1));
        assert_eq!(scaled(Duration::MAX, 1.25), Duration::MAX);
        assert_eq!(scaled(Duration::from_secs(4), 0.75), Duration::from_secs(3));
    }
}

//! The waits between the attempts at a write.

use std::{sync::Arc, time::Duration};

use super::WriteJob;
use crate::session::core::{Effects, SessionCore, SessionCoreEnv, SessionEffect};
use crate::store::Change;

/// The first and the longest wait before a failed write is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// While the session ends or a flush waits, the longest wait is the time left divided by this number.
const WAIT_SHARE: u32 = 8;
/// While the session ends or a flush waits, a write without a result is started again after the time left divided by
/// this number.
const SILENCE_SHARE: u32 = 4;
/// Like [`SILENCE_SHARE`], but for the write that creates the conversation. Two concurrent attempts that acquire the
/// conversation could end each other's lease. Therefore, the earlier attempt is aborted before the creation is started
/// again, and each attempt gets more time.
const SILENT_CREATION_SHARE: u32 = 2;
/// The minimum length of all waits that the shares above determine. Without a minimum, the waits would become shorter
/// and shorter as the deadline approaches, and the number of attempts would have no limit.
const SHORTEST: Duration = Duration::from_millis(50);

impl SessionCore {
    /// Saves all changes for an end or a flush that has just started. The waits between attempts become short again. If
    /// a write is in flight, it gets a share of the time left to return a result.
    pub(in crate::session) fn hurry(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        let is_lost = self.is_lost();
        if let Some(attempt) = self.saver.attempt.as_mut().filter(|_| !is_lost) {
            attempt.failures = 0;
            if attempt.under_way {
                effects.extend(silence(&attempt.job, env).map(SessionEffect::RetryIn));
            }
        }
        self.save(env, effects);
    }

    /// Continues when a requested wait is over. A failed write is repeated. A write without a result is started again
    /// if an end or a flush is still waiting for it.
    pub(in crate::session) fn retry(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        match &self.saver.attempt {
            Some(attempt) if attempt.under_way => {
                if env.left.is_some() && !self.is_lost() {
                    begin(&attempt.job, env, effects);
                }
            }
            _ => self.save(env, effects),
        }
    }
}

/// Starts an attempt at a write.
pub(super) fn begin(job: &Arc<WriteJob>, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
    effects.push(SessionEffect::Write(Arc::clone(job)));
    effects.extend(silence(job, env).map(SessionEffect::RetryIn));
}

/// Returns how long a write may take before it is started again, or `None` if no end or flush is in progress.
fn silence(job: &WriteJob, env: &SessionCoreEnv<'_>) -> Option<Duration> {
    let share = if matches!(job.1, Change::Create(_)) { SILENT_CREATION_SHARE } else { SILENCE_SHARE };
    env.left.map(|left| (left / share).max(SHORTEST))
}

/// Returns how long to wait before a failed write is repeated. The wait grows with the number of earlier failures.
pub(super) fn wait(failures: u32, left: Option<Duration>) -> Duration {
    let (first, longest) = RETRY;
    let wait = first.saturating_mul(1 << failures.min(16)).min(longest);
    left.map_or(wait, |left| wait.min((left / WAIT_SHARE).max(SHORTEST)))
}

//! The time between the attempts at a write.

use std::{sync::Arc, time::Duration};

use super::Job;
use crate::session::core::{Core, Effect, Effects, Env};

/// The first and the longest wait before a failed write is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// During an end or a flush, the longest wait as a share of the time left.
const WAIT_SHARE: u32 = 8;
/// During an end or a flush, the share of the time left after which a write without a result is started once more.
const SILENCE_SHARE: u32 = 4;
/// The same share for the creation of a conversation. Before a creation is started once more, its earlier attempt is
/// aborted, because two attempts that acquire the conversation at the same time could end each other's lease. So an
/// attempt gets more time.
const SILENT_CREATION_SHARE: u32 = 2;
/// The shortest of these waits. Without it, the shares of the time left would become shorter and shorter, and the waits
/// would never end.
const SHORTEST: Duration = Duration::from_millis(50);

impl Core {
    /// Saves all changes for an end or a flush that has just started. The waits between attempts start again. A write
    /// in flight gets a share of the time left for its result.
    pub(in crate::session) fn hurry(&mut self, env: &Env<'_>, effects: &mut Effects) {
        let is_lost = self.is_lost();
        if let Some(attempt) = self.saver.attempt.as_mut().filter(|_| !is_lost) {
            attempt.failures = 0;
            if attempt.under_way {
                effects.extend(silence(&attempt.job, env).map(Effect::RetryIn));
            }
        }
        self.save(env, effects);
    }

    /// Continues after a requested wait. A failed write is repeated. A write without a result is started once more if
    /// an end or a flush still waits for it.
    pub(in crate::session) fn retry(&mut self, env: &Env<'_>, effects: &mut Effects) {
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
pub(super) fn begin(job: &Arc<Job>, env: &Env<'_>, effects: &mut Effects) {
    effects.push(Effect::Write(Arc::clone(job)));
    effects.extend(silence(job, env).map(Effect::RetryIn));
}

/// Returns how long a write may take before it is started once more.
fn silence(job: &Job, env: &Env<'_>) -> Option<Duration> {
    let share = if matches!(job, Job::Create(..)) { SILENT_CREATION_SHARE } else { SILENCE_SHARE };
    env.left.map(|left| (left / share).max(SHORTEST))
}

/// Returns the wait before a failed write is repeated, after this number of earlier failures.
pub(super) fn wait(failures: u32, left: Option<Duration>) -> Duration {
    let (first, longest) = RETRY;
    let wait = first.saturating_mul(1 << failures.min(16)).min(longest);
    left.map_or(wait, |left| wait.min((left / WAIT_SHARE).max(SHORTEST)))
}

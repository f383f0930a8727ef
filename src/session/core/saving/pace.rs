//! The time between the attempts at a write.

use std::{sync::Arc, time::Duration};

use super::Job;
use crate::session::core::{Core, Effect, Effects, Env};

/// The wait before a failed write is repeated, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// The share of the time left that such a wait takes at most during an end or a flush.
const WAIT_SHARE: u32 = 8;
/// The share of the time left after which a write that does not answer is begun once more.
const SILENCE_SHARE: u32 = 4;
/// The same for a creation. It is abandoned by that, since two attempts that acquire the conversation side by side could
/// end each other's lease. So it gets more time.
const SILENT_CREATION_SHARE: u32 = 2;
/// The shortest of these waits. Shares of the time left never come to its end.
const SHORTEST: Duration = Duration::from_millis(50);

impl Core {
    /// Saves what is unsaved, for an end or a flush that has just begun. The waits between attempts start anew. A write under
    /// way has a share of the time left to answer.
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

    /// The wait that was asked for is over. A failed write is repeated. A write that has not answered is begun once more if
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

/// Begins an attempt at a write.
pub(super) fn begin(job: &Arc<Job>, env: &Env<'_>, effects: &mut Effects) {
    effects.push(Effect::Write(Arc::clone(job)));
    effects.extend(silence(job, env).map(Effect::RetryIn));
}

/// How long a write may be silent before it is begun once more.
fn silence(job: &Job, env: &Env<'_>) -> Option<Duration> {
    let share = if matches!(job, Job::Create(..)) { SILENT_CREATION_SHARE } else { SILENCE_SHARE };
    env.left.map(|left| (left / share).max(SHORTEST))
}

/// The wait before a failed write is repeated, after this number of earlier failures.
pub(super) fn wait(failures: u32, left: Option<Duration>) -> Duration {
    let (first, longest) = RETRY;
    let wait = first.saturating_mul(1 << failures.min(16)).min(longest);
    left.map_or(wait, |left| wait.min((left / WAIT_SHARE).max(SHORTEST)))
}

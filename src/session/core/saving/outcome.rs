//! The outcomes of writes.

use super::{Attempt, Job, pace::wait};
use crate::{
    error::error_chain,
    session::{
        SavedPart, SessionEvent, StoreReport,
        core::{Core, Effect, Effects, Env},
    },
    store::{StoreError, Version},
    subscription::EndReason,
    tree::Node,
};

impl Core {
    /// Takes the outcome of the write under way.
    pub(in crate::session) fn written(
        &mut self,
        outcome: Result<Version, StoreError>,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        let Some(mut attempt) = self.saver.attempt.take() else {
            debug_assert!(false, "a write came back that nobody waits for");
            return;
        };
        let (what, through) = match &*attempt.job {
            Job::Commit(_, commit) => (SavedPart::Tree, commit.nodes.last().map(Node::id)),
            Job::Create(..) | Job::State(..) => (SavedPart::State, None),
        };
        match outcome {
            Ok(version) => {
                let saver = &mut self.saver;
                let creates = saver.version.replace(version).is_none();
                if let Some((config, title)) = attempt.kept {
                    (saver.config, saver.title) = (Some(config), title);
                    saver.replaced = None;
                }
                let portions = saver.portions.drain(..attempt.portions);
                saver.unsaved -= portions.map(|portion| portion.bytes).sum::<usize>();
                saver.safe = saver.safe.max(attempt.wanted);
                if !creates {
                    saver.stored = Some(Box::new(attempt.tree));
                }
                // The first save is reported as a whole, when its last part is done. Until then a failure stays reported.
                if !(creates && self.saver.stored.is_some()) {
                    // It may have been done before another took the conversation over: that stays the last word.
                    if self.saver.loss.is_none() {
                        self.saver.report = None;
                    }
                    let report = StoreReport::Saved { what, version, through };
                    effects.push(Effect::Emit(SessionEvent::Store(report)));
                }
                // It may have changed while that write was under way, or before one that failed was repeated.
                let due = !self.saver.has(&self.config, self.title.as_ref());
                self.saver.state_is_due = due;
                self.save(env, effects);
            }
            Err(error) if is_final(&error, &attempt.job) => self.lost(&error, effects),
            // The loss is already reported; keep this write as unsaved.
            Err(_) if self.saver.loss.is_some() => {
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
            }
            Err(error @ StoreError::Unstorable { .. }) => match attempt.divided() {
                Some(at_most) => {
                    self.saver.at_most = at_most;
                    self.saver.state_is_due = !self.saver.has(&self.config, self.title.as_ref());
                    self.save(env, effects);
                }
                None => self.lost(&error, effects),
            },
            Err(error) => {
                let wait = wait(attempt.failures, env.left);
                attempt.failures += 1;
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
                let report = StoreReport::Failed { what, error: error_chain(&error), retry_in: wait };
                self.saver.report = Some(Box::new(report.clone()));
                effects.extend([Effect::Emit(SessionEvent::Store(report)), Effect::RetryIn(wait)]);
            }
        }
    }

    /// Nothing more is saved: the conversation in the store is another's from now on, or the store can't accept the rest.
    pub(in crate::session) fn lost(&mut self, error: &StoreError, effects: &mut Effects) {
        if self.saver.loss.is_some() {
            return;
        }
        let is_unstorable = matches!(error, StoreError::Unstorable { .. });
        self.saver.loss = Some(if is_unstorable { EndReason::Unstorable } else { EndReason::LostPlace });
        let report = StoreReport::Lost { error: error_chain(error) };
        self.saver.report = Some(Box::new(report.clone()));
        effects.push(Effect::Emit(SessionEvent::Store(report)));
    }
}

#[cfg(test)]
impl Core {
    /// Whether the write under way would be divided.
    pub(in crate::session::core) fn divides(&self) -> bool {
        self.saver.attempt.as_ref().and_then(|attempt| attempt.divided()).is_some()
    }
}

impl Attempt {
    /// The number of portions to write together after the store has refused these for good; `None` if this write can't be
    /// divided. Halved each time, so that finding the one at fault among many takes few writes.
    pub(super) fn divided(&self) -> Option<usize> {
        match &*self.job {
            Job::Commit(_, commit) if self.portions > 1 || commit.state.is_some() => {
                Some((self.portions / 2).max(1))
            }
            _ => None,
        }
    }
}

/// Whether a failed write means that the conversation in the store is another's, or was removed.
fn is_final(error: &StoreError, job: &Job) -> bool {
    match error {
        StoreError::Conflict { .. }
        | StoreError::LeaseLost { .. }
        | StoreError::Owned { .. }
        | StoreError::AlreadyExists { .. } => true,
        StoreError::NotFound { .. } => !matches!(job, Job::Create(..)),
        _ => false,
    }
}

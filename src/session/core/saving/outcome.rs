//! The outcomes of writes.

use std::collections::VecDeque;

use super::{PendingWrite, UnsavedRunRecords, WriteJob, pace::wait};
use crate::{
    error::error_chain,
    session::{
        SavedPart, SessionEvent, StoreReport,
        core::{Effects, SessionCore, SessionCoreEnv, SessionEffect},
    },
    store::{Change, StoreError, Version},
    subscription::EndReason,
    tree::Node,
};

impl SessionCore {
    /// Processes the outcome of the write in flight.
    pub(in crate::session) fn written(
        &mut self,
        outcome: Result<Version, StoreError>,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        let Some(mut attempt) = self.saver.attempt.take() else {
            debug_assert!(false, "the outcome of an unknown write arrived");
            return;
        };
        let (what, through) = match &*attempt.job {
            (_, Change::Commit(commit)) if commit.is_update(commit.head) => {
                (SavedPart::Tree, commit.nodes.last().map(Node::id))
            }
            (_, Change::Commit(_)) => (SavedPart::Record, None),
            (_, Change::Erase(_)) => (SavedPart::Tree, None),
            // A session changes no schedules.
            (_, Change::Create(_) | Change::State(_) | Change::Schedule(_)) => (SavedPart::State, None),
        };
        match outcome {
            Ok(version) => {
                let head = self.saver.stored.as_deref().unwrap_or(self.stable()).head();
                let saver = &mut self.saver;
                saver.flight_written(&attempt.job, head);
                let creates = saver.version.replace(version).is_none();
                if attempt.state.is_some() {
                    saver.state = attempt.state;
                }
                let portions = saver.portions.drain(..attempt.portions);
                saver.unsaved -= portions.map(|portion| portion.bytes).sum::<usize>();
                if saver.portions.is_empty() {
                    // An idle session needs no memory for unsaved changes.
                    saver.portions = VecDeque::new();
                }
                saver.safe = saver.safe.max(attempt.wanted);
                if !creates {
                    saver.stored = Some(Box::new(attempt.tree));
                }
                // If a first save needs several writes, it is reported as saved only once, after the last write. Until
                // then, the report of an earlier failure stays in place.
                if !(creates && (self.saver.stored.is_some() || !self.saver.record.is_empty())) {
                    // If the loss of the conversation is already reported, keep that report. The write may have
                    // succeeded before the other owner acquired the conversation.
                    if self.saver.loss.is_none() {
                        self.saver.report = None;
                    }
                    let report = StoreReport::Saved { what, version, through };
                    effects.push(SessionEffect::Emit(SessionEvent::Store(report)));
                }
                // The state may have changed during the write, or between a failed attempt and the attempt that
                // succeeded, so compare it with the stored state.
                self.saver.state_is_due = !self.has_state();
                self.save(env, effects);
            }
            Err(error) if is_final(&error, &attempt.job) => self.lost(&error, effects),
            // The loss is already reported; keep this write as unsaved.
            Err(_) if self.saver.loss.is_some() => {
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
            }
            Err(error @ (StoreError::Unstorable { .. } | StoreError::Unsupported { .. })) => {
                let record = match &*attempt.job {
                    (_, Change::Commit(commit)) => UnsavedRunRecords::of(commit),
                    _ => UnsavedRunRecords::default(),
                };
                let has_end = record.has_end();
                let at_most = attempt.divided();
                if at_most.is_none() && !has_end {
                    return self.lost(&error, effects);
                }
                // First repeat the write without the messages in the end of the run, because the store may have
                // rejected the write for them. The end itself remains, because it removes the turn in flight.
                self.saver.keep_record(if has_end { record.with_less_end() } else { record });
                if !has_end && let Some(at_most) = at_most {
                    self.saver.at_most = at_most;
                }
                self.saver.state_is_due = !self.has_state();
                self.save(env, effects);
            }
            Err(error) => {
                let wait = wait(attempt.failures, env.left);
                attempt.failures += 1;
                attempt.under_way = false;
                self.saver.attempt = Some(attempt);
                let report = StoreReport::Failed { what, error: error_chain(&error), retry_in: wait };
                self.saver.report = Some(Box::new(report.clone()));
                effects
                    .extend([SessionEffect::Emit(SessionEvent::Store(report)), SessionEffect::RetryIn(wait)]);
            }
        }
    }

    /// Stops saving, because another owner or writer has taken over, changed or deleted the conversation in the store,
    /// or because the store can't accept the remaining changes.
    pub(in crate::session) fn lost(&mut self, error: &StoreError, effects: &mut Effects) {
        if self.saver.loss.is_some() {
            return;
        }
        let is_unstorable = matches!(error, StoreError::Unstorable { .. } | StoreError::Unsupported { .. });
        self.saver.loss = Some(if is_unstorable { EndReason::Unstorable } else { EndReason::LostPlace });
        let report = StoreReport::Lost { error: error_chain(error) };
        self.saver.report = Some(Box::new(report.clone()));
        effects.push(SessionEffect::Emit(SessionEvent::Store(report)));
    }
}

#[cfg(test)]
impl SessionCore {
    /// Returns whether the write in flight would be divided if the store rejected it permanently.
    pub(in crate::session::core) fn divides(&self) -> bool {
        self.saver.attempt.as_ref().and_then(|attempt| attempt.divided()).is_some()
    }
}

impl PendingWrite {
    /// Called if the store has rejected this attempt's write permanently. Returns the number of portions of the next
    /// write, which is half as many, so that the rejected portion is found with few writes. Returns `None` if the
    /// rejected write can't be divided.
    pub(super) fn divided(&self) -> Option<usize> {
        match &*self.job {
            (_, Change::Commit(commit)) if self.portions > 1 || commit.state.is_some() => {
                Some((self.portions / 2).max(1))
            }
            _ => None,
        }
    }
}

/// Returns whether a failed write means that the conversation belongs to another owner, or that another writer has
/// changed or deleted it.
fn is_final(error: &StoreError, job: &WriteJob) -> bool {
    match error {
        StoreError::Conflict { .. }
        | StoreError::LeaseLost { .. }
        | StoreError::Owned { .. }
        | StoreError::AlreadyExists { .. } => true,
        StoreError::NotFound { .. } => !matches!(job.1, Change::Create(_)),
        _ => false,
    }
}

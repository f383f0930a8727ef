//! Writes that fail because another writer has changed the conversation.

use std::sync::Arc;

use super::{SaveTracker, StoredTurnFingerprint, UnsavedRunRecords};
use crate::{
    session::{
        SavedPart, SessionEvent, StoreReport,
        core::{Effects, SessionCore, SessionCoreEnv, SessionEffect},
    },
    store::{Change, Labels, StoreError, StoredState, Version},
    tree::Tree,
};

/// The maximum number of writes that other writers may make between two writes of a session. If the conversation was
/// deleted and created again with the same id, its version starts at a random number, so the two versions differ by
/// more than this number.
const WRITES_BETWEEN: u64 = 256;

/// The conversation in the store after another writer has changed it.
#[derive(Debug)]
pub(in crate::session) struct ConversationAfterConflict {
    pub(in crate::session) version: Version,
    pub(in crate::session) tree: Tree,
    pub(in crate::session) state: StoredState,
    /// The turn in flight.
    pub(in crate::session) flight: Option<StoredTurnFingerprint>,
}

impl SessionCore {
    /// Processes a write in flight that failed with `error` because another writer was first. `found` is the
    /// conversation as that writer left it. If only the title or the labels differ, the session adopts them and
    /// continues. Otherwise, the session saves nothing more, because the stored conversation is no longer its own.
    pub(in crate::session) fn conflicted(
        &mut self,
        error: &StoreError,
        found: ConversationAfterConflict,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        let attempt = self.saver.attempt.take();
        match attempt.as_ref().map(|attempt| &*attempt.job) {
            Some((_, Change::Commit(commit))) => self.saver.keep_record(UnsavedRunRecords::of(commit)),
            Some((_, Change::Erase(erased))) => self.saver.erased = Some(Box::new(erased.clone())),
            _ => {}
        }
        let ConversationAfterConflict { version, mut tree, state, flight } = found;
        // A late write of an earlier session of this conversation may already have erased some of the nodes that this
        // session wants to erase. Remove the others from the stored tree before the comparison. If they cannot be
        // removed, the trees differ anyway.
        let attempted = self.saver.erased.clone();
        let mut erased = attempted.clone();
        if let Some(erased) = &mut erased {
            erased.nodes.retain(|id| tree.node(*id).is_some());
            if !erased.nodes.is_empty() {
                let _ = tree.apply_erased(erased);
            }
        }
        let stored = self.saver.stored.as_deref().unwrap_or(self.stable());
        // Another session or a manager may have continued the turn in flight. In a store without leases, only its record
        // shows this.
        let is_retitled = self.saver.is_followed_by(version)
            && tree == *stored
            && self.saver.state.as_ref().is_some_and(|stored| stored.configures_as(&state))
            && flight.as_ref() == self.saver.flight.as_deref();
        if self.is_lost() || !is_retitled {
            return self.lost(error, effects);
        }
        self.saver.version = Some(version);
        self.saver.erased = erased.filter(|erased| !erased.nodes.is_empty());
        let mut before = self.saver.state.replace(Box::new(state.clone())).unwrap_or_default();
        let mut after = state;
        // The session has already removed a derived title. A later one of the other writer goes with the erasure.
        if let Some(attempted) = &attempted {
            before.erase(attempted);
        }
        if let Some(due) = &self.saver.erased {
            after.erase(due);
        }
        let labels = std::mem::take(&mut after.labels);
        self.take_title(&before, after, effects);
        self.take_labels(&before.labels, labels, effects);
        self.saver.state_is_due = !self.has_state();
        self.save(env, effects);
        if self.saver.attempt.is_none() {
            // Nothing is left to write. Either the rejected write contained only the title or the labels, and those of
            // the other writer stay in the store, or the rejected write erased nodes that another writer has already
            // erased.
            self.saver.report = None;
            let report = StoreReport::Saved { what: SavedPart::State, version, through: None };
            effects.push(SessionEffect::Emit(SessionEvent::Store(report)));
        }
    }

    /// Adopts the title that another writer has stored in place of `before`. If this session's title was set by hand and
    /// is not stored yet, the session keeps it. A derived title is replaced if the other writer has set a title.
    fn take_title(&mut self, before: &StoredState, after: StoredState, effects: &mut Effects) {
        let is_stored = (self.title.as_deref(), self.title_by) == (before.title.as_deref(), before.title_by);
        let is_derived = self.title.is_some() && self.title_by.is_derived();
        if is_stored || is_derived && after.title.is_some() {
            self.replace_title(after.title.map(Arc::from), after.title_by, effects);
        }
    }

    /// Adopts the labels that another writer has stored in place of `before`. Labels that this session has set and that
    /// are not stored yet are kept.
    fn take_labels(&mut self, before: &Labels, labels: Labels, effects: &mut Effects) {
        if self.labels == *before && self.labels != labels {
            self.labels.clone_from(&labels);
            effects.push(SessionEffect::Emit(SessionEvent::Labels { labels }));
        }
    }
}

impl SaveTracker {
    /// Returns whether this version is only a few writes later than the last version that the session knows.
    fn is_followed_by(&self, version: Version) -> bool {
        let writes = self.version.and_then(|known| version.get().checked_sub(known.get()));
        writes.is_some_and(|writes| (1..=WRITES_BETWEEN).contains(&writes))
    }
}

//! Writes that conflict with another writer's.

use std::sync::Arc;

use super::{Saver, persistable};
use crate::{
    session::{
        SavedPart, SessionEvent, StoreReport,
        core::{Core, Effect, Effects, Env},
    },
    store::{StoreError, StoredState, Version},
    tree::Tree,
};

/// The maximum number of writes that others may make between two writes of a session. A conversation that is created
/// later with the same id starts at a random version, so its distance is greater.
const WRITES_BETWEEN: u64 = 256;

/// The conversation in the store after another writer has changed it.
#[derive(Debug)]
pub(in crate::session) struct Found {
    pub(in crate::session) version: Version,
    pub(in crate::session) tree: Tree,
    pub(in crate::session) state: StoredState,
}

impl Core {
    /// Handles the `error` of the write in flight: another writer was first. `found` is the conversation as that writer
    /// left it. If only the title differs, the session adopts the title and continues. Otherwise the session has lost
    /// its place.
    pub(in crate::session) fn conflicted(
        &mut self,
        error: &StoreError,
        found: Found,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        self.saver.attempt = None;
        let Found { version, tree, mut state } = found;
        let title = state.title.take().map(Arc::from);
        let stored = self.saver.stored.as_deref().unwrap_or(self.stable());
        let is_retitled = self.saver.is_followed_by(version) && tree == *stored && self.saver.holds(&state);
        if self.is_lost() || !is_retitled {
            return self.lost(error, effects);
        }
        self.saver.version = Some(version);
        self.take_title(title, effects);
        self.saver.state_is_due = !self.saver.has(&self.config, self.title.as_ref());
        self.save(env, effects);
        if self.saver.attempt.is_none() {
            // The rejected write contained only the title. The store keeps the title of the other writer.
            self.saver.report = None;
            let report = StoreReport::Saved { what: SavedPart::State, version, through: None };
            effects.push(Effect::Emit(SessionEvent::Store(report)));
        }
    }

    /// Adopts the title that another writer has stored, unless a title was set by hand and is not stored yet. A
    /// generated title is always replaced.
    fn take_title(&mut self, title: Option<Arc<str>>, effects: &mut Effects) {
        let is_stored = self.title == self.saver.title;
        let gives_way = self.is_title_generated && title.is_some();
        self.saver.title.clone_from(&title);
        if (is_stored || gives_way) && self.title != title {
            self.is_title_generated = false;
            self.title.clone_from(&title);
            effects.push(Effect::Emit(SessionEvent::Title { title }));
        }
    }
}

impl Saver {
    /// Returns whether this version is only a few writes later than the version that the session knows.
    fn is_followed_by(&self, version: Version) -> bool {
        let writes = self.version.and_then(|known| version.get().checked_sub(known.get()));
        writes.is_some_and(|writes| (1..=WRITES_BETWEEN).contains(&writes))
    }

    /// Returns whether the session knows this state as the stored one. The title is ignored.
    fn holds(&self, state: &StoredState) -> bool {
        match (&self.config, &self.replaced) {
            (Some(config), _) => persistable(config, None) == *state,
            (None, Some(replaced)) => **replaced == *state,
            (None, None) => false,
        }
    }
}

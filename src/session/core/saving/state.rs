//! The part of a configuration that is saved.

use std::sync::Arc;

use crate::{
    agent::{Config, SavedConfig},
    store::{Labels, StoredState},
};

/// The parts of a session's state that are saved.
#[derive(Clone, Debug)]
pub(in crate::session::core) struct Kept {
    pub(super) config: Arc<Config>,
    pub(super) title: Option<Arc<str>>,
    pub(super) labels: Labels,
}

impl Kept {
    /// Returns the state as it is stored.
    pub(super) fn persistable(&self) -> StoredState {
        let mut state = persistable(&self.config);
        state.title = self.title.as_deref().map(str::to_owned);
        state.labels = self.labels.clone();
        state
    }
}

/// Returns the saved part of a configuration, without title and labels.
pub(super) fn persistable(config: &Config) -> StoredState {
    let SavedConfig { model, system, options, max_steps, turn_timeout, .. } = config.saved();
    let mut state = StoredState::default().with_options(options);
    state.model = model;
    state.system = system.as_deref().map(str::to_owned);
    (state.max_steps, state.turn_timeout) = (max_steps, turn_timeout);
    state
}

/// Returns the configuration with which a conversation was saved.
pub(in crate::session) fn saved(state: &StoredState) -> SavedConfig {
    SavedConfig {
        model: state.model.clone(),
        system: state.system.as_deref().map(Arc::from),
        options: state.options.clone(),
        max_steps: state.max_steps,
        turn_timeout: state.turn_timeout,
    }
}

/// Returns whether the saved parts of both configurations are equal.
pub(super) fn same(a: &Arc<Config>, b: &Arc<Config>) -> bool {
    Arc::ptr_eq(a, b) || a.saves_as(b)
}

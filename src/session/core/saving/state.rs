//! The part of a configuration that is saved.

use std::sync::Arc;

use crate::{
    agent::{Config, SavedConfig},
    store::StoredState,
};

/// Returns the saved part of a configuration, with a title.
pub(super) fn persistable(config: &Config, title: Option<&Arc<str>>) -> StoredState {
    let SavedConfig { model, system, options, max_steps, turn_timeout, .. } = config.saved();
    let mut state = StoredState::default().with_options(options);
    state.model = model;
    state.system = system.as_deref().map(str::to_owned);
    (state.max_steps, state.turn_timeout) = (max_steps, turn_timeout);
    state.title = title.map(|title| title.as_ref().to_owned());
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

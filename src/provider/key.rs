use std::{fmt, sync::Arc};

use super::Secret;

/// The source of a key that was given to a registry or to an endpoint: the key itself, or a function that returns it.
/// The key is never shown and never stored.
#[derive(Clone)]
pub(super) enum KeySource {
    Value(Secret),
    Function(Arc<dyn Fn() -> Option<Secret> + Send + Sync>),
}

impl KeySource {
    pub(super) fn function(key: impl Fn() -> Option<Secret> + Send + Sync + 'static) -> Self {
        Self::Function(Arc::new(key))
    }

    /// Returns the current key. An empty key counts as unset.
    pub(super) fn key(&self) -> Option<Secret> {
        let key = match self {
            Self::Value(key) => Some(key.clone()),
            Self::Function(function) => function(),
        };
        key.filter(|key| !key.reveal().is_empty())
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value(_) => "value",
            Self::Function(_) => "function",
        })
    }
}

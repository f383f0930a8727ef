use std::{fmt, sync::Arc};

use super::Secret;

/// Where a key comes from that somebody gave: never shown, never stored.
#[derive(Clone)]
pub(super) enum KeySource {
    Value(Secret),
    Function(Arc<dyn Fn() -> Option<Secret> + Send + Sync>),
}

impl KeySource {
    pub(super) fn function(key: impl Fn() -> Option<Secret> + Send + Sync + 'static) -> Self {
        Self::Function(Arc::new(key))
    }

    /// The key, as it is now. An empty one is none.
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

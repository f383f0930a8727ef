//! The source of a key, and how the key is sent to the service.

use std::env;

use crate::provider::{ProviderError, ProviderErrorKind, Request, Secret, key::KeySource};

/// How a service receives its key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// The key is sent in the header `Authorization`, as a bearer token (RFC 6750, section 2.1).
    Bearer,
    /// The key is sent in a header with this name.
    Header(String),
    /// The service uses no key.
    None,
}

impl Auth {
    /// Returns the name of the header that carries the key.
    pub(super) fn header(&self) -> Option<&str> {
        match self {
            Self::Bearer => Some("authorization"),
            Self::Header(name) => Some(name),
            Self::None => None,
        }
    }

    /// Returns the header's value.
    pub(super) fn value(&self, key: &Secret) -> Secret {
        match self {
            Self::Bearer => Secret::new(format!("Bearer {}", key.reveal())),
            Self::Header(_) | Self::None => key.clone(),
        }
    }
}

/// The sources from which an endpoint gets its key if the request has none.
#[derive(Clone, Default)]
pub(super) struct Keys {
    pub(super) own: Option<KeySource>,
    pub(super) variable: Option<String>,
    /// Whether requests may be sent without a key.
    pub(super) optional: bool,
}

impl Keys {
    /// Returns the key for `request`. The first source is the request's own key, which may have been copied from the
    /// registry. The second source is the endpoint's key, and the third is the environment variable. Empty keys are
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Auth`] if the service named `provider` requires a key but no source has one.
    pub(super) fn find(&self, provider: &str, request: &Request) -> Result<Option<Secret>, ProviderError> {
        let given = |key: &Secret| !key.reveal().is_empty();
        let environment = || self.variable.as_ref().and_then(|name| env::var(name).ok()).map(Secret::new);
        let key = request.options.api_key().cloned().filter(given);
        let key = key.or_else(|| self.own.as_ref()?.key()).or_else(|| environment().filter(given));
        if key.is_none() && !self.optional {
            return Err(ProviderError::new(ProviderErrorKind::Auth, self.missing(provider)));
        }
        Ok(key)
    }

    fn missing(&self, provider: &str) -> String {
        let variable = match &self.variable {
            Some(name) => format!(", or set the environment variable {name}"),
            None => String::new(),
        };
        format!("no API key for {provider:?}: set one in the request, the registry or the endpoint{variable}")
    }
}

crate::debug::impl_debug!(Keys(self) { own: self.own, variable: self.variable, optional: self.optional });

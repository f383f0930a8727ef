//! Where a key comes from and how it goes to the service.

use std::{env, fmt};

use crate::provider::{ErrorKind, ProviderError, Request, Secret, key::KeySource};

/// How a service takes its key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// In the header `Authorization`, as a bearer token (RFC 6750, section 2.1).
    Bearer,
    /// In a header of its own.
    Header(String),
    /// Not at all.
    None,
}

impl Auth {
    /// The header that carries the key.
    pub(super) fn header(&self) -> Option<&str> {
        match self {
            Self::Bearer => Some("authorization"),
            Self::Header(name) => Some(name),
            Self::None => None,
        }
    }

    /// The header's value.
    pub(super) fn value(&self, key: &Secret) -> Secret {
        match self {
            Self::Bearer => Secret::new(format!("Bearer {}", key.reveal())),
            Self::Header(_) | Self::None => key.clone(),
        }
    }
}

/// Where an endpoint finds its key, when the request brings none.
#[derive(Clone, Default)]
pub(super) struct Keys {
    pub(super) own: Option<KeySource>,
    pub(super) variable: Option<String>,
    /// The service may be asked without a key.
    pub(super) optional: bool,
}

impl Keys {
    /// The key for `request`: its own or that of its registry, which is in its place by now, then the
    /// endpoint's, then the environment's. An empty one is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Auth`] if there is none and the service named `provider` wants one.
    pub(super) fn find(&self, provider: &str, request: &Request) -> Result<Option<Secret>, ProviderError> {
        let given = |key: &Secret| !key.reveal().is_empty();
        let environment = || self.variable.as_ref().and_then(|name| env::var(name).ok()).map(Secret::new);
        let key = request.options.api_key.clone().filter(given);
        let key = key.or_else(|| self.own.as_ref()?.key()).or_else(|| environment().filter(given));
        if key.is_none() && !self.optional {
            return Err(ProviderError::new(ErrorKind::Auth, self.missing(provider)));
        }
        Ok(key)
    }

    fn missing(&self, provider: &str) -> String {
        let variable = match &self.variable {
            Some(name) => format!(", or set the environment variable {name}"),
            None => String::new(),
        };
        format!(
            "no API key for {provider:?}: give one to the request, the registry or the endpoint{variable}"
        )
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("own", &self.own)
            .field("variable", &self.variable)
            .field("optional", &self.optional)
            .finish()
    }
}

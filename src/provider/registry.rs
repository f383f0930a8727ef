use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Catalogue, Model, Provider, Secret, secret::KeySource};

/// Turns names like `anthropic:claude-sonnet-4-6` into models.
///
/// Any model id of a registered provider resolves, because new models appear weekly. The service decides whether it
/// knows the id.
///
/// ```
/// use omni_agent::provider::{Registry, RegistryError};
///
/// let registry = Registry::default();
/// assert!(matches!(registry.model("nobody:gpt"), Err(RegistryError::UnknownProvider { .. })));
/// assert!(matches!(registry.model("gpt"), Err(RegistryError::BadName { .. })));
/// ```
///
/// Cheap to clone: clones share their contents until one is changed.
#[derive(Clone)]
pub struct Registry(Arc<RegistryContents>);

#[derive(Clone)]
struct RegistryContents {
    providers: BTreeMap<String, Arc<dyn Provider>>,
    keys: BTreeMap<String, KeySource>,
    /// The catalogue. If it is not set, the built-in catalogue is used.
    catalogue: Option<Arc<Catalogue>>,
}

/// The error for a name that does not resolve to a model.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The name is not of the form `provider:model`.
    #[error("{name:?} is not a model name; write `provider:model` (registered providers: {})", list(.known))]
    BadName {
        /// The given name.
        name: String,
        /// The names of the registered providers, sorted.
        known: Vec<String>,
    },
    /// The provider is not registered.
    #[error("unknown provider {provider:?} (registered: {}); add others with Registry::register", list(.known))]
    UnknownProvider {
        /// The given provider name.
        provider: String,
        /// The names of the registered providers, sorted.
        known: Vec<String>,
    },
}

crate::error::debug_as_chain!(RegistryError);

fn list(known: &[String]) -> String {
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// Splits a model's name into the provider's name and the model's id. `None` if the name is malformed.
pub(super) fn split(name: &str) -> Option<(&str, &str)> {
    let well_formed = |part: &str| !part.is_empty() && part.trim() == part;
    name.split_once(':').filter(|(provider, id)| well_formed(provider) && well_formed(id))
}

impl Registry {
    fn contents(&mut self) -> &mut RegistryContents {
        Arc::make_mut(&mut self.0)
    }

    /// Creates a registry without providers.
    pub fn empty() -> Self {
        let contents =
            RegistryContents { providers: BTreeMap::new(), keys: BTreeMap::new(), catalogue: None };
        Self(Arc::new(contents))
    }

    /// Adds a provider under its name. It replaces a provider with the same name.
    pub fn with(mut self, provider: impl Provider) -> Self {
        self.register(Arc::new(provider));
        self
    }

    /// Adds a provider under its name. It replaces a provider with the same name. A name that contains a colon is never
    /// found.
    pub fn register(&mut self, provider: Arc<dyn Provider>) -> &mut Self {
        self.contents().providers.insert(provider.name().to_owned(), provider);
        self
    }

    /// Sets a key for the provider with this name, which need not be registered yet. If a request of a model that is
    /// created afterwards has no key, this key is sent as its [`Options::api_key`](super::Options::api_key). The
    /// registry's key takes precedence over the keys of the endpoint and the environment. An empty key counts as unset.
    pub fn with_key(mut self, provider: impl Into<String>, key: impl Into<Secret>) -> Self {
        self.contents().keys.insert(provider.into(), KeySource::Value(key.into()));
        self
    }

    /// Like [`Registry::with_key`], with a function that returns the key for each request. If it returns `None`, the
    /// key of the endpoint or the environment is used. The function must not block.
    pub fn with_key_from(
        mut self,
        provider: impl Into<String>,
        key: impl Fn() -> Option<Secret> + Send + Sync + 'static,
    ) -> Self {
        self.contents().keys.insert(provider.into(), KeySource::function(key));
        self
    }

    /// Sets the catalogue, instead of the built-in one.
    pub fn with_catalogue(mut self, catalogue: impl Into<Arc<Catalogue>>) -> Self {
        self.contents().catalogue = Some(catalogue.into());
        self
    }

    /// Returns the catalogue. Models that are not in the catalogue can be used too.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        self.0.catalogue.as_ref().unwrap_or_else(|| Catalogue::built_in())
    }

    /// Returns the models in the catalogue whose providers are registered, sorted by name.
    pub fn models(&self) -> impl Iterator<Item = Model> {
        self.0.providers.iter().flat_map(move |(name, provider)| {
            let known = self.catalogue().models_of(name);
            known.map(move |info| self.model_of(provider, &info.id))
        })
    }

    fn model_of(&self, provider: &Arc<dyn Provider>, id: &str) -> Model {
        let key = self.0.keys.get(provider.name()).cloned();
        Model::of_registry(Arc::clone(provider), id.into(), self.0.catalogue.clone(), key)
    }

    /// Returns the names of the providers, sorted.
    pub fn providers(&self) -> impl Iterator<Item = &str> {
        self.0.providers.keys().map(String::as_str)
    }

    /// Returns the provider with this name.
    pub fn provider(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.0.providers.get(name)
    }

    /// Returns the model with this name, `provider:id`. Everything after the first colon is the id.
    ///
    /// # Errors
    ///
    /// Fails if the name has no colon, an empty part or white space around a part, or if its provider is not
    /// registered.
    pub fn model(&self, name: &str) -> Result<Model, RegistryError> {
        let known = || self.providers().map(str::to_owned).collect();
        let Some((provider, id)) = split(name) else {
            return Err(RegistryError::BadName { name: name.to_owned(), known: known() });
        };
        match self.provider(provider) {
            Some(found) => Ok(self.model_of(found, id)),
            None => Err(RegistryError::UnknownProvider { provider: provider.to_owned(), known: known() }),
        }
    }
}

impl Default for Registry {
    /// Returns a registry with all services that this build supports.
    fn default() -> Self {
        #[cfg_attr(not(feature = "http"), expect(unused_mut, reason = "nothing to add without endpoints"))]
        let mut registry = Self::empty();
        #[cfg(feature = "http")]
        for endpoint in super::http::Endpoint::all() {
            registry.register(Arc::new(endpoint));
        }
        registry
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.providers.keys()).finish()
    }
}

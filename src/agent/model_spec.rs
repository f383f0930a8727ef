//! Models specified by name, for the builder and for [`Config::set_model`](super::Config::set_model).

use crate::{
    provider::{Model, Registry, RegistryError},
    run::{Error, ErrorKind},
};

/// A model or the name of a model.
#[derive(Clone, Debug)]
pub struct ModelSpec(ModelOrName);

#[derive(Clone, Debug)]
enum ModelOrName {
    Model(Model),
    Name(String),
}

impl From<Model> for ModelSpec {
    fn from(model: Model) -> Self {
        Self(ModelOrName::Model(model))
    }
}

impl From<&str> for ModelSpec {
    fn from(name: &str) -> Self {
        Self(ModelOrName::Name(name.to_owned()))
    }
}

impl From<String> for ModelSpec {
    fn from(name: String) -> Self {
        Self(ModelOrName::Name(name))
    }
}

impl ModelSpec {
    /// Returns the name of the model.
    #[cfg(feature = "web")]
    pub(super) fn name(&self) -> String {
        match &self.0 {
            ModelOrName::Model(model) => model.name().to_owned(),
            ModelOrName::Name(name) => name.clone(),
        }
    }

    /// Resolves the model with this registry, for an agent that currently uses the model `used`.
    ///
    /// # Errors
    ///
    /// Returns [`RegistryError`] if the name is malformed, or if its provider is neither in the registry nor in use.
    pub(super) fn resolve(self, registry: Option<&Registry>, used: &Model) -> Result<Model, RegistryError> {
        let name = match self.0 {
            ModelOrName::Model(model) => return Ok(model),
            ModelOrName::Name(name) => name,
        };
        match registry.map(|registry| registry.model(&name)) {
            Some(Err(error @ RegistryError::UnknownProvider { .. })) => {
                used.of_same_provider(&name).ok_or(error)
            }
            Some(found) => found,
            None => used.of_same_provider(&name).map_or_else(|| Registry::default().model(&name), Ok),
        }
    }
}

/// Returns the model to start with. This is the saved model if its name can be resolved, otherwise the model given to
/// the builder.
pub(super) fn choose_model(
    given: Option<ModelSpec>,
    saved: Option<String>,
    registry: Option<&Registry>,
) -> Result<Model, Error> {
    let look_up = |name: &str| match registry {
        Some(registry) => registry.model(name),
        // The default registry is created only for this lookup and then dropped, because an idle agent does not need
        // it.
        None => Registry::default().model(name),
    };
    let given = given.map(|named| named.0);
    let unknown = match (saved, &given) {
        (Some(saved), Some(ModelOrName::Model(model))) if model.name() == saved => None,
        (Some(saved), _) => match look_up(&saved) {
            Ok(model) => return Ok(model),
            Err(error) => Some((saved, error)),
        },
        (None, _) => None,
    };
    let model = match (given, &unknown) {
        (Some(ModelOrName::Model(model)), _) => model,
        (Some(ModelOrName::Name(name)), _) => look_up(&name)?,
        (None, Some((_, error))) => return Err(error.clone().into()),
        (None, None) => {
            let text = "no model is set; give the builder a Model or a `provider:model`";
            return Err(Error::new(ErrorKind::Config, text));
        }
    };
    let Some((saved, error)) = unknown else {
        return Ok(model);
    };
    let fallback = model.name();
    tracing::warn!(saved, fallback, %error, "the saved model is replaced because its name cannot be resolved");
    Ok(model.as_fallback_for(&saved))
}

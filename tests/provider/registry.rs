//! Names and the models behind them.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::provider::{
    DeltaStream, Model, Provider, ProviderError, Registry, RegistryError, Request, RequestContext,
};

struct Named(&'static str);

#[async_trait]
impl Provider for Named {
    fn name(&self) -> &str {
        self.0
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        Ok(Box::pin(futures_util::stream::empty()))
    }
}

fn registry() -> Registry {
    Registry::empty().with(Named("zeta")).with(Named("alpha"))
}

#[test]
fn model_of_a_known_provider_has_everything_after_the_first_colon() {
    let registry = registry();
    for id in ["m", "a:b", "vendor/model:free", "a:", "µ model"] {
        let name = format!("alpha:{id}");
        let model = registry.model(&name).unwrap();
        assert_eq!((model.name(), &**model.id(), model.provider().name()), (name.as_str(), id, "alpha"));
        assert_eq!(model.to_string(), name);
        assert_eq!(format!("{model:?}"), format!("Model({name:?})"));
    }
}

#[test]
fn model_of_an_unknown_provider_names_those_there_are() {
    let error = registry().model("beta:m").unwrap_err();
    let known = vec!["alpha".to_owned(), "zeta".to_owned()];
    assert_eq!(error, RegistryError::UnknownProvider { provider: "beta".into(), known });
    assert_eq!(
        error.to_string(),
        "unknown provider \"beta\" (registered: alpha, zeta); add others with Registry::register"
    );
    let error = Registry::empty().model("beta:m").unwrap_err().to_string();
    assert_eq!(error, "unknown provider \"beta\" (registered: none); add others with Registry::register");
}

#[test]
fn model_of_a_name_out_of_form_says_the_form() {
    let bad =
        ["", ":", "alpha", "alpha:", ":m", "alpha: ", "alpha: m", "alpha:m ", " alpha:m", "alpha :m", " :m"];
    for name in bad {
        let error = registry().model(name).unwrap_err();
        assert!(matches!(&error, RegistryError::BadName { name: given, .. } if given == name), "{name:?}");
        assert_eq!(
            error.to_string(),
            format!("{name:?} is no model name; write `provider:model` (registered providers: alpha, zeta)")
        );
    }
    let error = Registry::empty().model("m").unwrap_err().to_string();
    assert!(error.ends_with("(registered providers: none)"), "{error}");
}

#[test]
fn register_of_a_taken_name_replaces() {
    let mut registry = registry();
    let newer: Arc<dyn Provider> = Arc::new(Named("alpha"));
    registry.register(Arc::clone(&newer));
    assert_eq!(registry.providers().collect::<Vec<_>>(), ["alpha", "zeta"]);
    assert!(Arc::ptr_eq(registry.provider("alpha").unwrap(), &newer));
    assert!(Arc::ptr_eq(registry.model("alpha:m").unwrap().provider(), &newer));
    assert!(registry.provider("beta").is_none());
}

#[test]
fn clone_of_a_registry_goes_its_own_way() {
    let registry = registry();
    let more = registry.clone().with(Named("beta"));
    assert_eq!((registry.providers().count(), more.providers().count()), (2, 3));
    assert_eq!(format!("{registry:?}"), r#"{"alpha", "zeta"}"#);
}

#[test]
fn models_are_equal_by_name_and_provider_instance() {
    let provider: Arc<dyn Provider> = Arc::new(Named("alpha"));
    let model = Model::new(Arc::clone(&provider), "m");
    assert_eq!(model, Model::new(Arc::clone(&provider), "m"));
    assert_ne!(model, Model::new(provider, "n"));
    assert_ne!(model, Model::new(Arc::new(Named("alpha")), "m"));
}

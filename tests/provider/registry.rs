//! Names of models, and the models to which a registry resolves them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use omni_agent::{
    provider::{
        Catalogue, DeltaStream, Model, ModelInfo, Options, Provider, ProviderError, ProviderErrorKind,
        Registry, RegistryError, Request, Secret, custom::RequestContext,
    },
    testing::{ScriptedProvider, Step},
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
fn model_of_a_known_provider_has_the_id_after_the_first_colon() {
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
fn model_of_an_unknown_provider_is_an_error_that_lists_the_known_ones() {
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
fn model_with_an_invalid_name_is_an_error_that_shows_the_form() {
    let bad =
        ["", ":", "alpha", "alpha:", ":m", "alpha: ", "alpha: m", "alpha:m ", " alpha:m", "alpha :m", " :m"];
    for name in bad {
        let error = registry().model(name).unwrap_err();
        assert!(matches!(&error, RegistryError::BadName { name: given, .. } if given == name), "{name:?}");
        assert_eq!(
            error.to_string(),
            format!(
                "{name:?} is not a model name; write `provider:model` (registered providers: alpha, zeta)"
            )
        );
    }
    let error = Registry::empty().model("m").unwrap_err().to_string();
    assert!(error.ends_with("(registered providers: none)"), "{error}");
}

#[test]
fn register_of_an_existing_name_replaces_the_provider() {
    let mut registry = registry();
    let newer: Arc<dyn Provider> = Arc::new(Named("alpha"));
    registry.register(Arc::clone(&newer));
    assert_eq!(registry.providers().collect::<Vec<_>>(), ["alpha", "zeta"]);
    assert!(Arc::ptr_eq(registry.provider("alpha").unwrap(), &newer));
    assert!(Arc::ptr_eq(registry.model("alpha:m").unwrap().provider(), &newer));
    assert!(registry.provider("beta").is_none());
}

#[test]
fn clone_of_a_registry_is_independent() {
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

/// A provider from which a test can read the key of the last request.
struct Asked(ScriptedProvider);

impl Asked {
    fn registry(change: impl FnOnce(Registry) -> Registry) -> (Self, Model) {
        let provider = ScriptedProvider::from_fn(|_| Step::text("ok"));
        let model = change(Registry::empty().with(provider.clone())).model("test:m").unwrap();
        (Self(provider), model)
    }

    fn key(&self) -> Option<Secret> {
        self.0.last_request().unwrap().options.api_key().cloned()
    }
}

#[tokio::test]
async fn key_of_the_registry_is_used_for_requests_without_a_key() {
    let (asked, model) = Asked::registry(|registry| registry.with_key("test", "of-registry"));
    model.generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(asked.key(), Some("of-registry".into()));
    let own = Request::prompt("Hi").with_options(Options::default().with_api_key("of-call"));
    model.generate(own).await.unwrap();
    assert_eq!(asked.key(), Some("of-call".into()));
    let empty = Request::prompt("Hi").with_options(Options::default().with_api_key(""));
    model.generate(empty).await.unwrap();
    assert_eq!(asked.key(), Some("of-registry".into()));
}

#[tokio::test]
async fn key_of_another_provider_or_an_empty_key_is_not_used() {
    for (provider, key) in [("other", "k"), ("test", "")] {
        let (asked, model) = Asked::registry(|registry| registry.with_key(provider, key));
        model.generate(Request::prompt("Hi")).await.unwrap();
        assert_eq!(asked.key(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn key_function_is_called_at_each_attempt() {
    let count = AtomicUsize::new(0);
    let next = move || match count.fetch_add(1, Ordering::Relaxed) {
        2 => None,
        n => Some(format!("key-{n}").into()),
    };
    let (asked, model) = Asked::registry(|registry| registry.with_key_from("test", next));
    asked.0.push(Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "later")));
    model.generate(Request::prompt("Hi")).await.unwrap();
    let keys: Vec<_> = asked.0.requests().iter().map(|request| request.options.api_key().cloned()).collect();
    assert_eq!(keys, [Some("key-0".into()), Some("key-1".into())]);
    model.generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(asked.key(), None, "the function returned no key");
}

#[tokio::test]
async fn key_of_the_registry_is_never_shown() {
    let secret = "sk-very-secret-0123";
    let registry =
        Registry::empty().with_key("alpha", secret).with_key_from("zeta", move || Some(secret.into()));
    let registry = registry.with(Named("alpha")).with(Named("zeta"));
    let mut shown = vec![format!("{registry:?}")];
    for name in ["alpha:m", "zeta:m"] {
        let model = registry.model(name).unwrap();
        shown.push(format!("{model:?} {model} {:?}", model.generate(Request::prompt("Hi")).await));
    }
    let (asked, model) = Asked::registry(|registry| registry.with_key("test", secret));
    model.generate(Request::prompt("Hi")).await.unwrap();
    shown.push(format!("{:?}", asked.0.requests()));
    shown.push(serde_json::to_string(&asked.0.last_request().unwrap().options).unwrap());
    assert!(shown.iter().all(|text| !text.contains(secret)), "{shown:?}");
}

#[test]
fn models_are_those_in_the_catalogue_of_registered_providers() {
    let mut catalogue = Catalogue::empty();
    for (provider, id) in [("zeta", "b"), ("zeta", "a"), ("alpha", "x"), ("nobody", "n")] {
        catalogue.insert(provider, ModelInfo::new(id).with_output_limit(7));
    }
    let registry = registry().with_catalogue(catalogue);
    let names: Vec<String> = registry.models().map(|model| model.to_string()).collect();
    assert_eq!(names, ["alpha:x", "zeta:a", "zeta:b"]);
    assert!(registry.models().all(|model| model.info().unwrap().output_limit == Some(7)));
    assert_eq!(registry.catalogue().len(), 4);
    let unknown = registry.model("alpha:new").unwrap();
    assert!(unknown.info().is_none());
    let with_info_set = unknown.with_info(ModelInfo::new("new").with_tools(false));
    assert_eq!(with_info_set.info().unwrap().tools, Some(false));
    assert_eq!(with_info_set, unknown, "more information does not make it another model");
}

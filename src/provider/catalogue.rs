mod info;
mod models_dev;
mod names;
mod price;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
};

pub use info::{Modality, ModelInfo};
pub use models_dev::CatalogueError;
pub use price::{Price, Rates};

/// What is known of models: context window, limits, modalities, price.
///
/// The built-in one knows the main models of the services that this crate reaches, with figures of October 2026
/// from <https://models.dev>; where that told none for certain, it knows none. Prices change: extend it with a
/// current `api.json` from there, or with entries of your own. A model without an entry works all the same.
///
/// ```
/// use omni_agent::provider::{Catalogue, ModelInfo, Registry};
///
/// let mut catalogue = Catalogue::clone(Catalogue::built_in());
/// let json = r#"{"anthropic": {"models": {"claude-next": {"limit": {"context": 2000000}}}}}"#;
/// let (current, _skipped) = Catalogue::from_models_dev(json)?;
/// catalogue.merge(current);
/// catalogue.insert("house", ModelInfo::new("small").with_context_window(8_000));
///
/// let registry = Registry::default().with_catalogue(catalogue);
/// # #[cfg(feature = "http")] {
/// let info = registry.model("anthropic:claude-next")?.info().cloned();
/// assert_eq!(info.and_then(|info| info.context_window), Some(2_000_000));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Catalogue {
    providers: BTreeMap<String, BTreeMap<String, Arc<ModelInfo>>>,
}

/// In the shape of models.dev's `api.json`, from the files of <https://github.com/anomalyco/models.dev> as they
/// were in October 2026.
const BUILT_IN: &str = include_str!("catalogue/models.json");

impl Catalogue {
    /// A catalogue without any model.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The catalogue that comes with this crate. It is read when it is first asked for.
    pub fn built_in() -> &'static Arc<Self> {
        static CATALOGUE: LazyLock<Arc<Catalogue>> = LazyLock::new(|| {
            let (catalogue, _) = models_dev::read(BUILT_IN).expect("a test reads the built-in catalogue");
            Arc::new(catalogue)
        });
        &CATALOGUE
    }

    /// Reads the text of a file in the shape of <https://models.dev/api.json>. Providers that have another name
    /// there get the one they have here. What is missing is unknown, what is new is passed over, and an entry
    /// that can't be read is reported beside those that can.
    ///
    /// # Errors
    ///
    /// The text is no JSON, or JSON of another shape.
    pub fn from_models_dev(json: &str) -> Result<(Self, Vec<CatalogueError>), CatalogueError> {
        models_dev::read(json)
    }

    /// Adds a model of a provider, in place of one with its id, which is given back.
    pub fn insert(&mut self, provider: &str, info: ModelInfo) -> Option<Arc<ModelInfo>> {
        let models = self.providers.entry(names::listed_as(provider).to_owned()).or_default();
        models.insert(info.id.clone(), Arc::new(info))
    }

    /// Adds all models of `other`, in place of those that are here already.
    pub fn merge(&mut self, other: Self) {
        for (provider, models) in other.providers {
            self.providers.entry(provider).or_default().extend(models);
        }
    }

    /// The model with exactly this id.
    pub fn get(&self, provider: &str, id: &str) -> Option<&Arc<ModelInfo>> {
        self.providers.get(names::listed_as(provider))?.get(id)
    }

    /// What is known of a model by any id that a service takes for it.
    ///
    /// Where the id has no entry of its own: a dated build (`-2025-08-07`, `-20250929`, `-latest`) is what the
    /// model without the date is. A variant of a reseller's (`:free`, `:nitro`) is the model without, but for the
    /// price, which is nothing for `:free` and unknown for others. `vendor/model` is the vendor's model, at a
    /// price that is unknown.
    pub fn find(&self, provider: &str, id: &str) -> Option<Arc<ModelInfo>> {
        if let Some(info) = self.build(provider, id) {
            return Some(Arc::clone(info));
        }
        if let Some((model, variant)) = names::variant(provider, id) {
            let price = (variant == "free").then(|| Price::new(0.0, 0.0));
            return Some(Arc::new(ModelInfo { price, ..(*self.find(provider, model)?).clone() }));
        }
        let (vendor, model) = names::vendor(id)?;
        Some(Arc::new(ModelInfo { price: None, ..(**self.build(vendor, &model)?).clone() }))
    }

    /// The model with this id, or the one that it is a build of.
    fn build(&self, provider: &str, id: &str) -> Option<&Arc<ModelInfo>> {
        self.get(provider, id).or_else(|| self.get(provider, names::base(id)?))
    }

    /// All models with their providers' names, sorted by those and by id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<ModelInfo>)> {
        let models = self.providers.iter().map(|(provider, models)| (provider.as_str(), models.values()));
        models.flat_map(|(provider, models)| models.map(move |info| (provider, info)))
    }

    /// The models of one provider, sorted by id.
    pub fn models_of(&self, provider: &str) -> impl Iterator<Item = &Arc<ModelInfo>> {
        self.providers.get(names::listed_as(provider)).into_iter().flat_map(BTreeMap::values)
    }

    /// How many models there are.
    pub fn len(&self) -> usize {
        self.providers.values().map(BTreeMap::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.providers.iter().map(|(name, models)| (name, models.keys()))).finish()
    }
}

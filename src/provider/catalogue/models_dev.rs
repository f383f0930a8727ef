//! Reads files in the format of <https://models.dev/api.json>. The format is described in
//! <https://github.com/anomalyco/models.dev>, in its README and in `packages/core/src/schema.ts`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Catalogue, Modality, ModelInfo, ModelTraits, Price, Rates, from_models_dev};

type ModelsDevObject = Map<String, Value>;

/// The reason why a file can't be read as a catalogue.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// The file is not JSON. The message names the line and the column.
    #[error("the catalogue is not JSON: {0}")]
    Json(serde_json::Error),
    /// The JSON does not have the expected structure.
    #[error("{at}: expected {expected}; a catalogue has the shape of https://models.dev/api.json")]
    Shape {
        /// The position of the unexpected part in the file.
        at: String,
        /// The expected content.
        expected: &'static str,
    },
    /// One entry is invalid and was skipped.
    #[error("{provider}:{} is skipped: {reason}", .model.as_deref().unwrap_or("*"))]
    Entry {
        /// The provider's id in the file.
        provider: String,
        /// The model's id, or `None` if the provider as a whole is invalid.
        model: Option<String>,
        /// The reason why the entry is invalid. It names the member that caused the problem.
        reason: String,
    },
}

crate::error::debug_as_chain!(CatalogueError);

/// Reads the complete text of a file.
pub(super) fn read(json: &str) -> Result<(Catalogue, Vec<CatalogueError>), CatalogueError> {
    let file: Value = serde_json::from_str(json).map_err(CatalogueError::Json)?;
    let shape = |expected| CatalogueError::Shape { at: "at the top".to_owned(), expected };
    let providers = file.as_object().ok_or_else(|| shape("an object of providers"))?;
    let (mut catalogue, mut skipped) = (Catalogue::default(), Vec::new());
    // The built-in file also contains rules, which are read separately.
    for (listed, provider) in providers.iter().filter(|(name, _)| *name != "rules") {
        let skip = |model: Option<&str>, reason: String| CatalogueError::Entry {
            provider: listed.clone(),
            model: model.map(str::to_owned),
            reason,
        };
        let Some(models) = provider.get("models").and_then(Value::as_object) else {
            skipped.push(skip(None, "it has no object `models`".to_owned()));
            continue;
        };
        let name = from_models_dev(listed);
        for (id, entry) in models {
            match model(listed, id, entry) {
                Ok(info) => drop(catalogue.insert(name, info)),
                Err(reason) => skipped.push(skip(Some(id), reason)),
            }
        }
    }
    // If the JSON contains no models, it is another kind of file, such as a settings file.
    if catalogue.is_empty()
        && skipped.iter().all(|error| matches!(error, CatalogueError::Entry { model: None, .. }))
    {
        return Err(shape("providers with models"));
    }
    Ok((catalogue, skipped))
}

/// Reads one entry. If it is invalid, returns the reason.
fn model(provider: &str, id: &str, entry: &Value) -> Result<ModelInfo, String> {
    let entry = ModelsDevObjectReader { object: entry.as_object().ok_or("it is no object")?, path: "" };
    let (limits, modalities) = (entry.inner("limit")?, entry.inner("modalities")?);
    let modalities = |direction| modalities.map_or(Ok(None), |modalities| modalities.modalities(direction));
    let limit = |of| limits.map_or(Ok(None), |limits| limits.count(of));
    let mut info = ModelInfo {
        id: id.to_owned(),
        name: entry.get("name")?,
        context_window: limit("context")?,
        input_limit: limit("input")?,
        output_limit: limit("output")?,
        input: modalities("input")?,
        output: modalities("output")?,
        thinking: entry.get("reasoning")?,
        tools: entry.ability("tool_call")?,
        structured_output: entry.get("structured_output")?,
        price: entry.inner("cost")?.map_or(Ok(None), ModelsDevObjectReader::price)?,
        knowledge_cutoff: entry.get("knowledge")?,
        release_date: entry.get("release_date")?,
        traits: entry
            .inner("traits")?
            .map(|traits| ModelTraits::changed(id, traits.object))
            .transpose()
            .map(|traits| traits.map(Arc::new))
            .map_err(|error| entry.bad("traits", &error.to_string()))?,
    };
    // For Claude models, at Anthropic and at every reseller, writing to a cache that is kept for an hour costs twice
    // the input rate: https://platform.claude.com/docs/en/about-claude/pricing
    if (provider == "anthropic" || id.contains("claude"))
        && let Some(price) = &mut info.price
    {
        for rates in price.tiers.values_mut().chain([&mut price.rates]) {
            rates.cache_write_long = Some(rates.input * 2.0);
        }
    }
    // All models at OpenRouter accept PDFs, because OpenRouter converts PDFs for models that can't read them:
    // https://openrouter.ai/docs/features/multimodal/pdfs
    if provider == "openrouter" {
        info.input.iter_mut().for_each(|input| input.extend([Modality::Pdf]));
    }
    Ok(info)
}

/// Reads members of an object by name. If a member is missing or null, its value is unknown. If a member has another
/// type than expected, the error names the member.
#[derive(Clone, Copy)]
struct ModelsDevObjectReader<'a> {
    object: &'a ModelsDevObject,
    path: &'static str,
}

impl<'a> ModelsDevObjectReader<'a> {
    fn value(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn get<T: Deserialize<'a>>(self, key: &str) -> Result<Option<T>, String> {
        self.value(key).map(T::deserialize).transpose().map_err(|error| self.bad(key, &error.to_string()))
    }

    fn bad(self, key: &str, why: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("`{}{dot}{key}`: {why}", self.path)
    }

    fn inner(self, key: &'static str) -> Result<Option<Self>, String> {
        let inner = self.value(key).map(|value| value.as_object().ok_or("expected an object")).transpose();
        let object = inner.map_err(|why| self.bad(key, why))?;
        Ok(object.map(|object| Self { object, path: key }))
    }

    /// Reads a number of tokens. In the file, 0 means that the number is unknown.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    fn count(self, key: &str) -> Result<Option<u64>, String> {
        let count: Option<f64> = self.get(key)?;
        match count {
            Some(count) if count < 0.0 || count >= 2_f64.powi(53) => {
                Err(self.bad(key, "expected a number of tokens"))
            }
            count => Ok(count.map(|count| count as u64).filter(|count| *count > 0)),
        }
    }

    /// Reads a capability, which is true, false, or an object with details.
    fn ability(self, key: &'static str) -> Result<Option<bool>, String> {
        match self.value(key) {
            Some(Value::Object(object)) => Self { object, path: key }.get("supported"),
            _ => self.get(key),
        }
    }

    fn modalities(self, key: &str) -> Result<Option<BTreeSet<Modality>>, String> {
        let words: Option<Vec<String>> = self.get(key)?;
        Ok(words.map(|words| words.iter().filter_map(|word| Modality::from_word(word)).collect()))
    }

    fn rate(self, key: &str) -> Result<Option<f64>, String> {
        match self.get(key)? {
            Some(rate) if rate < 0.0 => Err(self.bad(key, "expected dollars, not less than none")),
            rate => Ok(rate),
        }
    }

    fn rates(self) -> Result<Option<Rates>, String> {
        let (Some(input), Some(output)) = (self.rate("input")?, self.rate("output")?) else {
            return Ok(None);
        };
        Ok(Some(Rates {
            cache_read: self.rate("cache_read")?,
            cache_write: self.rate("cache_write")?,
            reasoning: self.rate("reasoning")?,
            ..Rates::new(input, output)
        }))
    }

    /// Reads the rates and their tiers. Returns `None` if there is no price for input or for output.
    fn price(self) -> Result<Option<Price>, String> {
        let Some(rates) = self.rates()? else {
            return Ok(None);
        };
        let mut price = Price { rates, tiers: BTreeMap::new() };
        let tiers = self.value("tiers").map(|tiers| tiers.as_array().ok_or("expected an array")).transpose();
        for tier in tiers.map_err(|why| self.bad("tiers", why))?.into_iter().flatten() {
            let object = tier.as_object().ok_or_else(|| self.bad("tiers", "expected objects"))?;
            let tier = ModelsDevObjectReader { object, path: "cost.tiers" };
            let Some(bound) =
                tier.inner("tier")?.map(|bound| ModelsDevObjectReader { path: "cost.tiers.tier", ..bound })
            else {
                continue;
            };
            let kind: Option<String> = bound.get("type")?;
            // Tiers of other kinds are skipped, because `Usage` does not contain the values on which they depend.
            if kind.is_none_or(|kind| kind == "context")
                && let (Some(above), Some(rates)) = (bound.count("size")?, tier.rates()?)
            {
                price = price.with_tier(above, rates);
            }
        }
        // Files still contain the older form of a tier. It is used only if there are no tiers in the new form.
        if price.tiers.is_empty()
            && let Some(long) = self.inner("context_over_200k")?
            && let Some(rates) = (ModelsDevObjectReader { path: "cost.context_over_200k", ..long }).rates()?
        {
            price.tiers.insert(200_000, rates);
        }
        Ok(Some(price))
    }
}

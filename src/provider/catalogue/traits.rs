//! How the options of a request are encoded for a model, as far as this differs between models. The facts are data: the
//! `rules` in `models.json`, and the member `traits` of a catalogue entry. Sources:
//!
//! - Claude: <https://platform.claude.com/docs/en/build-with-claude/extended-thinking> and the pages `adaptive-thinking`,
//!   `effort`, `preserved-thinking` and `structured-outputs` next to it, and the migration guides under
//!   <https://platform.claude.com/docs/en/models>.
//! - Other models in the Messages API: <https://api-docs.deepseek.com/guides/thinking_mode> and
//!   <https://platform.xiaomimimo.com/docs/en-US/usage-guide/passing-back-reasoning_content>.
//! - OpenAI: <https://developers.openai.com/api/docs/guides/reasoning>,
//!   <https://developers.openai.com/api/docs/guides/latest-model> for the parameters of GPT-5 and later and for the
//!   place of instructions since GPT-6.2,
//!   <https://developers.openai.com/api/docs/guides/deployment-checklist> for tools in Chat Completions,
//!   <https://developers.openai.com/api/docs/guides/prompt-caching>, `reasoning.effort` in
//!   <https://platform.openai.com/docs/api-reference/responses/create>, and the pages about single models under
//!   <https://platform.openai.com/docs/models>. If these sources leave a question open, the service's error messages
//!   decide it.
//! - Gemini: <https://ai.google.dev/gemini-api/docs/thinking>,
//!   <https://ai.google.dev/gemini-api/docs/thought-signatures>,
//!   <https://ai.google.dev/gemini-api/docs/structured-output> and the pages about what is new in each model, such as
//!   <https://ai.google.dev/gemini-api/docs/whats-new-gemini-3.7>.
//! - Ollama: <https://docs.ollama.com/capabilities/thinking>.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::BUILT_IN;
use crate::provider::Effort;

/// The facts about a model, grouped by wire format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ModelTraits {
    /// The facts for Anthropic's Messages API.
    pub(in crate::provider) messages: AnthropicTraits,
    /// The facts for OpenAI's Chat Completions and Responses.
    pub(in crate::provider) openai: OpenAiTraits,
    /// The facts for Google's Gemini.
    pub(in crate::provider) gemini: GeminiTraits,
    /// The facts for Ollama's chat API.
    pub(in crate::provider) ollama: OllamaTraits,
}

/// The facts about a model for Anthropic's Messages API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(in crate::provider) struct AnthropicTraits {
    /// How thinking is requested.
    pub(in crate::provider) thinking: AnthropicThinking,
    /// How thinking is turned off.
    pub(in crate::provider) off: AnthropicThinkingOff,
    /// Which sampling parameters the model supports.
    pub(in crate::provider) sampling: AnthropicSampling,
    /// Whether a tool use can be forced.
    pub(in crate::provider) forced_tools: bool,
    /// Whether the model supports output schemas.
    pub(in crate::provider) structured_output: bool,
    /// Whether the model's thinking is valid only after the same system prompt, tools and messages as those for which
    /// it was produced.
    pub(in crate::provider) bound_thinking: bool,
    /// Whether the model rejects earlier answers without thinking while it thinks. It accepts a blank text as thinking.
    pub(in crate::provider) needs_thinking: bool,
}

/// How thinking is requested from a model in Anthropic's Messages API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum AnthropicThinking {
    /// The model cannot think.
    None,
    /// Thinking is requested by a token budget.
    Budget,
    /// Thinking is requested by a token budget or an effort.
    BudgetOrEffort,
    /// Thinking is requested by an effort. The model thinks adaptively.
    Adaptive,
}

/// How thinking is turned off in Anthropic's Messages API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum AnthropicThinkingOff {
    /// Thinking can be turned off.
    Disabled,
    /// Thinking at the start of the response can be turned off, but thinking between tool uses can't.
    BetweenTools,
    /// Thinking cannot be turned off.
    Never,
}

/// The sampling parameters (temperature and top-p) that a model supports in Anthropic's Messages API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum AnthropicSampling {
    /// The model supports both parameters, with any value. Used for models other than Claude.
    Any,
    /// The model supports both parameters in one request. The temperature must be from 0 to 1.
    Both,
    /// The model supports only one of the two parameters in a request.
    One,
    /// The model accepts only the default values.
    Fixed,
}

/// The facts about a model for OpenAI's wire formats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(in crate::provider) struct OpenAiTraits {
    /// The supported efforts, sorted. The list is empty for a model that cannot reason. Such a model rejects requests
    /// with reasoning options.
    pub(in crate::provider) efforts: Vec<Effort>,
    /// Whether reasoning can be turned off.
    pub(in crate::provider) off: bool,
    /// Whether the model supports the effort `max`, which is above `xhigh`. Only the Responses wire format has this
    /// effort.
    pub(in crate::provider) max_in_responses: bool,
    /// The condition under which the model supports temperature and top-p.
    pub(in crate::provider) sampling: OpenAiSampling,
    /// Whether the model supports stop sequences.
    pub(in crate::provider) stop: bool,
    /// The condition under which the model supports tools in Chat Completions.
    pub(in crate::provider) chat_tools: ChatToolSupport,
    /// Whether a prompt for the model can be kept in the cache for a day.
    pub(in crate::provider) long_cache: DayLongCacheModels,
    /// Whether the Responses wire format places `instructions` behind the input.
    pub(in crate::provider) late_instructions: bool,
}

impl OpenAiTraits {
    /// Returns whether the model can reason.
    pub(in crate::provider) fn reasons(&self) -> bool {
        !self.efforts.is_empty()
    }

    /// Returns whether temperature and top-p can be set together with this effort.
    pub(in crate::provider) fn takes_sampling(&self, effort: Option<&str>) -> bool {
        match self.sampling {
            OpenAiSampling::Always => true,
            OpenAiSampling::UnlessReasoning => effort.is_none_or(|effort| effort == "none"),
            OpenAiSampling::IfOff => effort == Some("none"),
            OpenAiSampling::Never => false,
        }
    }

    /// Returns whether the model with this id supports `prompt_cache_retention: "24h"`.
    pub(in crate::provider) fn keeps_long(&self, model: &str) -> bool {
        let id = model.rsplit('/').next().unwrap_or_default();
        let is_date = |rest: &str| {
            let digits = rest.strip_prefix('-').map(|date| date.split('-').map(str::len).collect::<Vec<_>>());
            digits.is_some_and(|parts| parts == [4, 2, 2])
                && !rest.contains(|c: char| c.is_ascii_alphabetic())
        };
        match &self.long_cache {
            DayLongCacheModels::Any(keeps) => *keeps,
            DayLongCacheModels::Models(names) => names.iter().any(|name| {
                id.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || is_date(rest))
            }),
        }
    }
}

/// The condition under which a model supports temperature and top-p in OpenAI's wire formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum OpenAiSampling {
    Always,
    /// The model supports both parameters unless an effort is set, because it reasons only if the request sets an
    /// effort.
    UnlessReasoning,
    /// The model supports both parameters only if reasoning is turned off explicitly, because it reasons by default.
    IfOff,
    Never,
}

/// The condition under which a model supports tools in Chat Completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum ChatToolSupport {
    Always,
    /// The model supports tools only if the request contains no effort. The model then does not reason.
    WithoutEffort,
    /// The model supports tools only if reasoning is turned off explicitly.
    IfOff,
    Never,
}

/// The models, among those that a rule matches, that can keep a prompt in the cache for a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(in crate::provider) enum DayLongCacheModels {
    /// All of these models (`true`), or none of them (`false`).
    Any(bool),
    /// Only the models with these names, and their dated builds.
    Models(Vec<String>),
}

/// The facts about a model for Google's Gemini.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct GeminiTraits {
    /// How thinking is requested.
    pub(in crate::provider) thinking: GeminiThinking,
    /// Whether the model rejects tool uses without a signature.
    pub(in crate::provider) signed_calls: bool,
    /// Whether the model supports an output schema together with tools.
    pub(in crate::provider) schema_beside_tools: bool,
    /// Whether temperature and top-p have an effect.
    pub(in crate::provider) sampling: bool,
}

/// How thinking is requested from a model in Google's Gemini.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::provider) enum GeminiThinking {
    /// The model has no setting for thinking.
    None,
    /// Thinking is requested by a token budget in this range.
    Budget {
        min: u32,
        max: u32,
        /// Whether thinking can be turned off.
        off: bool,
    },
    /// Thinking is requested by one of these levels, which are sorted.
    Levels(Vec<Effort>),
}

/// The facts about a model for Ollama's chat API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct OllamaTraits {
    /// Whether thinking has levels. If it has levels, it cannot be turned off.
    pub(in crate::provider) levels: bool,
}

impl ModelTraits {
    /// Returns the facts about the model with this id. They come from the rule that matches the id. If no rule matches,
    /// they are the facts about unknown models.
    pub(in crate::provider) fn of(id: &str) -> &'static Self {
        let name = id.rsplit('/').next().unwrap_or_default();
        let name = name.strip_prefix("ft:").unwrap_or(name);
        find(&RULES.families, name, &id.to_ascii_lowercase()).unwrap_or(&RULES.unknown)
    }

    /// Returns the facts about unknown models.
    pub(in crate::provider) fn unknown() -> &'static Self {
        &RULES.unknown
    }

    /// Returns the facts that the rules yield for the model `id`, changed by `traits`.
    pub(super) fn changed(id: &str, traits: &Map<String, Value>) -> Result<Self, serde_json::Error> {
        let mut all = serde_json::to_value(Self::of(id))?;
        change(&mut all, traits);
        Self::deserialize(all)
    }
}

/// Replaces members of the objects in `all` with the members of the objects in `changes` that have the same names.
fn change(all: &mut Value, changes: &Map<String, Value>) {
    for (format, changes) in changes {
        match (all.get_mut(format), changes) {
            (Some(Value::Object(facts)), Value::Object(changes)) => facts.extend(changes.clone()),
            _ => all[format] = changes.clone(),
        }
    }
}

static RULES: LazyLock<ModelTraitRules> =
    LazyLock::new(|| ModelTraitRules::read(BUILT_IN).expect("a test reads the built-in rules"));

/// The rules in the built-in file.
#[derive(Deserialize)]
struct ModelTraitRules {
    /// The facts about unknown models. Each rule contains only the facts that differ from these.
    unknown: ModelTraits,
    /// The families. `starts` of a family is compared with the model's name without the vendor (`openai/…`) and without
    /// the mark of a fine-tuned model (`ft:…`). `contains` of a family is searched for in the whole id in lower case.
    families: Vec<ModelFamilyRules<ModelTraits>>,
}

impl ModelTraitRules {
    fn read(json: &str) -> Result<Self, serde_json::Error> {
        let mut rules = serde_json::from_str::<Value>(json)?["rules"].take();
        let unknown = rules["unknown"].clone();
        for family in rules["families"].as_array_mut().into_iter().flatten() {
            for rule in family["rules"].as_array_mut().into_iter().flatten() {
                let changes = std::mem::replace(&mut rule["traits"], unknown.clone());
                change(&mut rule["traits"], changes.as_object().unwrap_or(&Map::new()));
            }
        }
        Self::deserialize(rules)
    }
}

/// The rules of one family of models, which have ids of the same form. They match ids by family, version and words, and
/// also ids of models that the catalogue does not list. A rule yields a value of type `T` for the models that it matches.
///
/// The first rule that matches counts, so a rule for a future generation is the first line of its family. A fact that
/// could not be verified is omitted, because a wrong limit does more harm than a missing one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::provider) struct ModelFamilyRules<T> {
    /// A text that the ids of the family contain.
    contains: Option<String>,
    /// The prefixes of the family's names. They are used if `contains` is not set.
    #[serde(default)]
    starts: Vec<String>,
    /// The place of the version in the part of the id after the family's name.
    #[serde(default)]
    version: ModelVersionPlace,
    /// The rules. The first rule that matches is used.
    rules: Vec<ModelFamilyRule<T>>,
}

/// The place of a model's version in the rest of its id, which is the part after the family's name.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModelVersionPlace {
    /// The version is the first part of the rest, such as `2.5`. Parts are separated by `-`.
    #[default]
    First,
    /// The version is in the same place as for `First`, but an id without a version, such as `gemini-flash-latest`,
    /// names the newest model.
    FirstOrNewest,
    /// The version consists of the digits and dots at the start of the rest: `4.5` in `4.5v`.
    Digits,
    /// The version is the first number in any part, together with the number directly after it: `opus-4-8`,
    /// `3-7-sonnet-20250219`. A date is not a version. Parts are separated by any punctuation.
    Anywhere,
}

/// A rule for the models of a family.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFamilyRule<T> {
    /// Words that must all occur in the part of the id after the family's name. `image|audio` matches either word. `#b`
    /// matches a word that begins with a digit and ends with `b`, such as `32b`. An empty word matches if the family's
    /// name is at the end of the id or directly before a `-`.
    #[serde(default)]
    words: Vec<String>,
    /// The lowest version that the rule matches. If this is not set, the rule also matches ids without a version.
    since: Option<(u8, u8)>,
    #[serde(rename = "traits", alias = "switches")]
    value: T,
}

/// Returns the value of the rule that matches a model. This is the first matching rule of the first family that has
/// one. `name` and `text` are two forms of the model's id: prefixes are compared with `name`, and texts are searched
/// for in `text`.
pub(in crate::provider) fn find<'a, T>(
    families: &'a [ModelFamilyRules<T>],
    name: &str,
    text: &str,
) -> Option<&'a T> {
    families.iter().find_map(|family| family.find(name, text))
}

impl<T> ModelFamilyRules<T> {
    fn find(&self, name: &str, text: &str) -> Option<&T> {
        let rest = match &self.contains {
            Some(contained) => text.split_once(contained.as_str())?.1,
            None => self.starts.iter().find_map(|start| name.strip_prefix(start.as_str()))?,
        };
        let any = self.version == ModelVersionPlace::Anywhere;
        let parts = || rest.split(move |c: char| if any { !c.is_ascii_alphanumeric() } else { c == '-' });
        let version = self.version.read(rest, parts());
        let is = |word: &str, part: &str| match word.strip_prefix('#') {
            Some(end) => part.ends_with(end) && part.starts_with(|first: char| first.is_ascii_digit()),
            None => word == part,
        };
        let has = |words: &String| parts().any(|part| words.split('|').any(|word| is(word, part)));
        let matches = |rule: &&ModelFamilyRule<T>| {
            rule.since.is_none_or(|since| version.is_some_and(|version| version >= since))
                && rule.words.iter().all(has)
        };
        self.rules.iter().find(matches).map(|rule| &rule.value)
    }
}

impl ModelVersionPlace {
    /// Reads the version from the rest of an id, which is also passed as separate parts.
    fn read<'a>(self, rest: &'a str, mut parts: impl Iterator<Item = &'a str>) -> Option<(u8, u8)> {
        if self == Self::Anywhere {
            let number = |part: &str| if part.len() <= 2 { part.parse().ok() } else { None };
            let major = parts.by_ref().find_map(number)?;
            return Some((major, parts.next().and_then(number).unwrap_or(0)));
        }
        let first = match self {
            Self::Digits => rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?,
            _ => parts.next()?,
        };
        let (major, minor) = first.split_once('.').unwrap_or((first, "0"));
        let version = major.parse().ok().zip(minor.parse().ok());
        if self == Self::FirstOrNewest { version.or(Some((u8::MAX, 0))) } else { version }
    }
}
#[cfg(test)]
mod tests;

//! What OpenAI's models take, by their ids. Sources: <https://platform.openai.com/docs/guides/reasoning>,
//! <https://platform.openai.com/docs/guides/latest-model> on the parameters of GPT-5 and later,
//! `reasoning.effort` in <https://platform.openai.com/docs/api-reference/responses/create>, and the pages of
//! single models under <https://platform.openai.com/docs/models>.

use crate::provider::dialect::EffortWords;

/// What is known of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::dialect) enum Family {
    /// It can't reason, and refuses a request that speaks of it.
    Plain,
    /// The o series: always reasons.
    O,
    /// GPT-5: its minor version and which of its models.
    Gpt5(u8, Variant),
    /// Nobody knows: it is asked for all that is wanted.
    Other,
}

/// Models of one version that differ in what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::dialect) enum Variant {
    /// The model itself, and its smaller ones.
    Base,
    Codex,
    CodexMax,
    Pro,
}

impl Family {
    /// Ids come with prefixes and suffixes: `openai/gpt-5.2`, `gpt-5-2025-08-07`, `ft:gpt-4o:acme::1`.
    pub(in crate::provider::dialect) fn of(model: &str) -> Self {
        let id = model.rsplit('/').next().unwrap_or_default();
        let id = id.strip_prefix("ft:").unwrap_or(id);
        if ["gpt-3", "gpt-4", "chatgpt-4", "gpt-5-chat"].iter().any(|start| id.starts_with(start)) {
            return Self::Plain;
        }
        if ["o1", "o3", "o4"].iter().any(|name| id.strip_prefix(name).is_some_and(ends_name)) {
            return Self::O;
        }
        let Some(rest) = id.strip_prefix("gpt-5") else {
            return Self::Other;
        };
        if ends_name(rest) {
            return Self::Gpt5(0, Variant::of(rest));
        }
        let digits = rest.strip_prefix('.').unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let (minor, rest) = digits.split_at(end);
        minor.parse().map_or(Self::Other, |minor| Self::Gpt5(minor, Variant::of(rest)))
    }

    /// Its words for levels of reasoning, where they are fewer than all.
    pub(in crate::provider::dialect) const fn narrow(self, words: EffortWords) -> EffortWords {
        let EffortWords { low, medium, high, .. } = words;
        match self {
            Self::O | Self::Gpt5(0 | 1, Variant::Codex) => {
                EffortWords { off: None, minimal: low, max: high, ..words }
            }
            Self::Gpt5(0, Variant::Base) => EffortWords { off: None, max: high, ..words },
            Self::Gpt5(0, Variant::Pro) => {
                EffortWords { off: None, minimal: high, low: high, medium: high, max: high, ..words }
            }
            Self::Gpt5(1, Variant::Base) => EffortWords { minimal: low, max: high, ..words },
            Self::Gpt5(_, Variant::Base) => EffortWords { minimal: low, ..words },
            Self::Gpt5(_, Variant::Codex | Variant::CodexMax) => {
                EffortWords { off: None, minimal: low, ..words }
            }
            Self::Gpt5(_, Variant::Pro) => EffortWords { off: None, minimal: medium, low: medium, ..words },
            Self::Plain | Self::Other => words,
        }
    }

    /// Whether temperature and top-p can be set beside this effort.
    pub(in crate::provider::dialect) fn takes_sampling(self, effort: Option<&str>) -> bool {
        match self {
            Self::O | Self::Gpt5(0, _) => false,
            // Without a word they do not reason.
            Self::Gpt5(_, Variant::Base) => effort.is_none_or(|effort| effort == "none"),
            Self::Gpt5(..) => false,
            Self::Plain | Self::Other => true,
        }
    }
}

impl Variant {
    /// By what follows the version in an id.
    fn of(rest: &str) -> Self {
        let has = |word: &str| rest.split('-').any(|part| part == word);
        match (has("codex"), has("max"), has("pro")) {
            (true, true, _) => Self::CodexMax,
            (true, false, _) => Self::Codex,
            (false, _, true) => Self::Pro,
            (false, _, false) => Self::Base,
        }
    }
}

/// Whether a model's name ends where `rest` begins.
fn ends_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('-')
}

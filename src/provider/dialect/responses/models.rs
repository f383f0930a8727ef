//! What OpenAI's models take, by their ids. Sources: <https://platform.openai.com/docs/guides/reasoning>,
//! <https://platform.openai.com/docs/guides/latest-model> on the parameters of GPT-5 and later, and
//! `reasoning.effort` in <https://platform.openai.com/docs/api-reference/responses/create>.

use crate::provider::dialect::EffortWords;

/// What is known of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// It can't reason, and refuses a request that speaks of it.
    Plain,
    /// The o series: always reasons.
    O,
    /// GPT-5 and its minor version.
    Gpt5(u8),
    /// Nobody knows: it is asked for all that is wanted.
    Other,
}

impl Family {
    /// Ids come with prefixes and suffixes: `openai/gpt-5.2`, `gpt-5-2025-08-07`, `ft:gpt-4o:acme::1`.
    pub(super) fn of(model: &str) -> Self {
        let id = model.rsplit('/').next().unwrap_or_default();
        let id = id.strip_prefix("ft:").unwrap_or(id);
        if ["gpt-3", "gpt-4", "chatgpt-4", "gpt-5-chat"].iter().any(|start| id.starts_with(start)) {
            return Self::Plain;
        }
        if ["o1", "o3", "o4"].iter().any(|name| id.strip_prefix(name).is_some_and(ends_name)) {
            return Self::O;
        }
        let minor = match id.strip_prefix("gpt-5") {
            Some(rest) if ends_name(rest) => Some(0),
            Some(rest) => {
                let digits = rest.strip_prefix('.').unwrap_or_default();
                let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
                digits[..end].parse().ok()
            }
            None => None,
        };
        minor.map_or(Self::Other, Self::Gpt5)
    }

    /// Its words for levels of reasoning, where they are fewer than all.
    pub(super) const fn narrow(self, words: EffortWords) -> EffortWords {
        match self {
            Self::O => EffortWords { off: None, minimal: words.low, max: words.high, ..words },
            Self::Gpt5(0) => EffortWords { off: None, max: words.high, ..words },
            Self::Gpt5(1) => EffortWords { minimal: words.low, max: words.high, ..words },
            Self::Gpt5(_) => EffortWords { minimal: words.low, ..words },
            Self::Plain | Self::Other => words,
        }
    }

    /// Whether temperature and top-p can be set beside this effort.
    pub(super) fn takes_sampling(self, effort: Option<&str>) -> bool {
        match self {
            Self::O | Self::Gpt5(0) => false,
            // Without a word they do not reason.
            Self::Gpt5(_) => effort.is_none_or(|effort| effort == "none"),
            Self::Plain | Self::Other => true,
        }
    }
}

/// Whether a model's name ends where `rest` begins.
fn ends_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('-')
}

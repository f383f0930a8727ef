//! The features of OpenAI's models, determined by their ids. Sources:
//! <https://developers.openai.com/api/docs/guides/reasoning>,
//! <https://developers.openai.com/api/docs/guides/latest-model> for the parameters of GPT-5 and later,
//! <https://developers.openai.com/api/docs/guides/deployment-checklist> for tools in Chat Completions,
//! <https://developers.openai.com/api/docs/guides/prompt-caching>, `reasoning.effort` in
//! <https://platform.openai.com/docs/api-reference/responses/create>, and the pages of single models under
//! <https://platform.openai.com/docs/models>. Where these leave a question open, the errors of the service decide.

use crate::provider::dialect::EffortWords;

/// The family of a model, which determines its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::dialect) enum Family {
    /// A model that cannot reason and rejects requests with reasoning options.
    Plain,
    /// The o series, which always reasons.
    O,
    /// GPT-5, with its minor version and variant.
    Gpt5(u8, Variant),
    /// GPT-6, and later models until more is known about them. `rests` indicates whether reasoning can be turned off.
    Later { rests: bool },
    /// An unknown model. All requested options are sent.
    Other,
}

/// The variants of a version, which differ in their features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::dialect) enum Variant {
    /// The main model and its smaller versions.
    Base,
    Codex,
    CodexMax,
    Pro,
}

/// How a model supports tools in Chat Completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider::dialect) enum ToolsInChat {
    /// Without restrictions.
    Freely,
    /// Only if no effort is sent. The model then does not reason.
    EffortUnsaid,
    /// Only if reasoning is turned off explicitly.
    AtRest,
    /// Not at all.
    Refused,
}

impl Family {
    /// Determines the family of a model. Ids have prefixes and suffixes: `openai/gpt-5.2`, `gpt-5-2025-08-07`,
    /// `ft:gpt-4o:acme::1`.
    pub(in crate::provider::dialect) fn of(model: &str) -> Self {
        let id = model.rsplit('/').next().unwrap_or_default();
        let id = id.strip_prefix("ft:").unwrap_or(id);
        if ["gpt-3", "gpt-4", "chatgpt-4", "gpt-5-chat"].iter().any(|start| id.starts_with(start)) {
            return Self::Plain;
        }
        if let Some((Some(_), rest)) = id.strip_prefix('o').map(number)
            && ends_name(rest)
        {
            return Self::O;
        }
        let Some((Some(major), rest)) = id.strip_prefix("gpt-").map(number) else {
            return Self::Other;
        };
        let (minor, rest) = match rest.strip_prefix('.').map(number) {
            Some((Some(minor), rest)) => (minor, rest),
            Some(_) => return Self::Other,
            None => (0, rest),
        };
        match major {
            _ if !ends_name(rest) => Self::Other,
            5 => Self::Gpt5(minor, Variant::of(rest)),
            6 => Self::Later {
                rests: has(rest, "luna") || has(rest, "terra") || (minor == 0 && has(rest, "sol")),
            },
            7.. => Self::Later { rests: false },
            _ => Self::Other,
        }
    }

    /// Limits the words for efforts to those that the family supports.
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
            Self::Gpt5(_, Variant::Base) | Self::Later { rests: true } => {
                EffortWords { minimal: low, ..words }
            }
            Self::Gpt5(_, Variant::Codex | Variant::CodexMax) | Self::Later { rests: false } => {
                EffortWords { off: None, minimal: low, ..words }
            }
            Self::Gpt5(_, Variant::Pro) => EffortWords { off: None, minimal: medium, low: medium, ..words },
            Self::Plain | Self::Other => words,
        }
    }

    /// Returns whether the family has the effort `max`, above `xhigh`. Only the Responses wire format supports it.
    pub(in crate::provider::dialect) const fn has_max(self) -> bool {
        matches!(self, Self::Gpt5(6.., _) | Self::Later { .. })
    }

    /// Returns whether temperature and top-p can be set together with this effort.
    pub(in crate::provider::dialect) fn takes_sampling(self, effort: Option<&str>) -> bool {
        match self {
            Self::O | Self::Gpt5(0, _) => false,
            // These models do not reason unless the request asks for it.
            Self::Gpt5(1..=4, Variant::Base) => effort.is_none_or(|effort| effort == "none"),
            // These models reason unless the request turns it off.
            Self::Gpt5(_, Variant::Base) | Self::Later { .. } => effort == Some("none"),
            Self::Gpt5(..) => false,
            Self::Plain | Self::Other => true,
        }
    }

    /// Returns whether the family supports stop sequences.
    pub(in crate::provider::dialect) const fn takes_stop(self) -> bool {
        matches!(self, Self::Plain | Self::Gpt5(5.., _) | Self::Other)
    }

    /// Returns how the family supports tools in Chat Completions.
    pub(in crate::provider::dialect) const fn tools_in_chat(self) -> ToolsInChat {
        match self {
            Self::Gpt5(4, _) => ToolsInChat::EffortUnsaid,
            Self::Gpt5(5.., Variant::Base) | Self::Later { rests: true } => ToolsInChat::AtRest,
            Self::Gpt5(5.., _) | Self::Later { rests: false } => ToolsInChat::Refused,
            Self::Plain | Self::O | Self::Gpt5(..) | Self::Other => ToolsInChat::Freely,
        }
    }
}

impl Variant {
    /// Determines the variant from the part of an id after the version.
    fn of(rest: &str) -> Self {
        match (has(rest, "codex"), has(rest, "max"), has(rest, "pro")) {
            (true, true, _) => Self::CodexMax,
            (true, false, _) => Self::Codex,
            (false, _, true) => Self::Pro,
            (false, _, false) => Self::Base,
        }
    }
}

/// OpenAI's models that can keep a prompt in the cache for a day.
const KEEP_LONG: [&str; 12] = [
    "gpt-4.1",
    "gpt-5",
    "gpt-5-codex",
    "gpt-5.1",
    "gpt-5.1-chat-latest",
    "gpt-5.1-codex",
    "gpt-5.1-codex-max",
    "gpt-5.1-codex-mini",
    "gpt-5.2",
    "gpt-5.4",
    "gpt-5.5",
    "gpt-5.5-pro",
];

/// Returns whether this model supports `prompt_cache_retention: "24h"`. Models later than those in the list keep each
/// prompt for half an hour, and support no other time.
pub(in crate::provider::dialect) fn keeps_long(model: &str) -> bool {
    if Family::of(model) == Family::Other {
        return true;
    }
    let id = model.rsplit('/').next().unwrap_or_default();
    let is_date = |rest: &str| {
        let digits = rest.strip_prefix('-').map(|date| date.split('-').map(str::len).collect::<Vec<_>>());
        digits.is_some_and(|parts| parts == [4, 2, 2]) && !rest.contains(|c: char| c.is_ascii_alphabetic())
    };
    KEEP_LONG.iter().any(|name| id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || is_date(rest)))
}

/// Returns the number at the start of a text, and the rest of the text.
fn number(text: &str) -> (Option<u8>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (digits.parse().ok(), rest)
}

/// Returns whether `word` is a part of an id after the version.
fn has(rest: &str, word: &str) -> bool {
    rest.split('-').any(|part| part == word)
}

/// Returns whether a model's name ends where `rest` begins.
fn ends_name(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('-')
}

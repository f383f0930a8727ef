//! The features of a model, determined by its id. Sources:
//! <https://platform.claude.com/docs/en/build-with-claude/extended-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/effort>,
//! <https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/structured-outputs> and the migration guides under
//! <https://platform.claude.com/docs/en/models>.

use super::schema;
use crate::provider::{Request, ThinkingMode, dialect::output_tool};

/// The features of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// How thinking is requested.
    pub(super) thinking: Thinking,
    /// How thinking is turned off.
    pub(super) off: Off,
    /// Which sampling parameters the model supports.
    pub(super) sampling: Sampling,
    /// Whether a tool use can be forced.
    pub(super) forced_tools: bool,
    /// Whether the model supports output schemas.
    pub(super) structured: bool,
    /// Whether the model's thinking is only valid where it was produced: after the same system prompt, tools and
    /// messages.
    pub(super) bound_thinking: bool,
}

/// How a request's output schema is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// The request has no output schema.
    None,
    /// As structured output.
    Native,
    /// As the schema of a tool.
    Tool {
        /// Whether the use of the tool can be forced.
        forced: bool,
    },
}

impl Output {
    pub(super) fn of(request: &Request) -> Self {
        let traits = Traits::of(&request.model);
        let off =
            matches!(request.options.thinking(), None | Some(ThinkingMode::Off | ThinkingMode::Budget(0)));
        let thinks = !off && traits.thinking != Thinking::Unsupported;
        match request.options.output() {
            None => Self::None,
            Some(output)
                if traits.structured
                    && !output_tool::is_needed(request)
                    && schema::output(output.schema.as_value()).is_some() =>
            {
                Self::Native
            }
            Some(_) => Self::Tool { forced: traits.forced_tools && !thinks },
        }
    }
}

/// How thinking is requested from a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// The model cannot think.
    Unsupported,
    /// By a token budget.
    Budget,
    /// By a token budget or an effort.
    Both,
    /// By an effort. The model thinks adaptively.
    Adaptive,
}

/// How thinking is turned off for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// Thinking can be turned off.
    Disabled,
    /// Only thinking at the start of the response can be turned off, not thinking between tool uses.
    BetweenTools,
    /// Thinking cannot be turned off.
    Never,
}

/// The sampling parameters that a model supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    /// Both parameters, in any range: models other than Claude.
    Any,
    /// Both parameters.
    Both,
    /// One of the two parameters at a time.
    One,
    /// Only the default values.
    Fixed,
}

impl Traits {
    /// Determines the features of a model. Ids have prefixes and suffixes of many kinds: `anthropic/claude-opus-4.6`,
    /// `us.anthropic.claude-sonnet-4-5-20250929-v1:0`, `claude-3-7-sonnet-latest`.
    pub(super) fn of(model: &str) -> Self {
        let other = Self {
            thinking: Thinking::Budget,
            off: Off::Disabled,
            sampling: Sampling::Any,
            forced_tools: true,
            structured: false,
            bound_thinking: false,
        };
        let model = model.to_ascii_lowercase();
        let Some((_, id)) = model.split_once("claude") else {
            return other;
        };
        let family = |name: &str| id.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == name);
        let version = version(id);
        let bound_thinking = version.is_some_and(|version| version >= (5, 1));
        if family("fable") || family("mythos") {
            return Self {
                thinking: Thinking::Adaptive,
                off: Off::Never,
                sampling: Sampling::Fixed,
                forced_tools: !bound_thinking,
                structured: true,
                bound_thinking,
            };
        }
        let Some(version) = version else {
            return other;
        };
        let (opus, sonnet) = (family("opus"), family("sonnet"));
        Self {
            thinking: match version {
                (..=2, _) | (3, ..=6) => Thinking::Unsupported,
                version if version < (4, 6) => Thinking::Budget,
                (4, 6) => Thinking::Both,
                _ => Thinking::Adaptive,
            },
            off: match version >= (5, 5) {
                true if opus => Off::Never,
                true if sonnet => Off::BetweenTools,
                _ => Off::Disabled,
            },
            sampling: match version {
                version if version < (4, 1) => Sampling::Both,
                version if version < (4, 7) => Sampling::One,
                _ => Sampling::Fixed,
            },
            forced_tools: version < (5, 5) || !(opus || sonnet),
            structured: version >= (4, 5) || (opus && version == (4, 1)),
            bound_thinking,
        }
    }
}

/// Returns the first number of an id and the number directly after it. A date is not a version.
fn version(id: &str) -> Option<(u8, u8)> {
    let number = |part: &str| if part.len() <= 2 { part.parse().ok() } else { None };
    let mut parts = id.split(|c: char| !c.is_ascii_alphanumeric());
    let major = parts.by_ref().find_map(number)?;
    let minor = parts.next().and_then(number).unwrap_or(0);
    Some((major, minor))
}

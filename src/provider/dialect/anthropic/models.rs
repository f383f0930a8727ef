//! What a model takes, by its id. Sources: <https://platform.claude.com/docs/en/build-with-claude/extended-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/effort>,
//! <https://platform.claude.com/docs/en/build-with-claude/preserved-thinking>,
//! <https://platform.claude.com/docs/en/build-with-claude/structured-outputs> and the migration guides under
//! <https://platform.claude.com/docs/en/models>.

use super::schema;
use crate::provider::{Request, ThinkingMode, dialect::output_tool};

/// What a model takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// How it is told to think.
    pub(super) thinking: Thinking,
    /// How it is told not to.
    pub(super) off: Off,
    /// Whether temperature and top-p can be set.
    pub(super) sampling: Sampling,
    /// Whether a tool use can be demanded.
    pub(super) forced_tools: bool,
    /// Whether it takes an output schema.
    pub(super) structured: bool,
    /// Whether its thinking holds only where it was thought: behind the same system prompt, tools and messages.
    pub(super) bound_thinking: bool,
}

/// How a request's output schema is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// There is none.
    None,
    /// In the service's own words.
    Native,
    /// As a tool's.
    Tool {
        /// Whether its use can be demanded.
        forced: bool,
    },
}

impl Output {
    pub(super) fn of(request: &Request) -> Self {
        let traits = Traits::of(&request.model);
        let off =
            matches!(request.options.thinking, None | Some(ThinkingMode::Off | ThinkingMode::Budget(0)));
        let thinks = !off && traits.thinking != Thinking::Unsupported;
        match &request.options.output {
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

/// How a model is told to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// It can't.
    Unsupported,
    /// Up to a number of tokens.
    Budget,
    /// Either way.
    Both,
    /// As it sees fit, at an effort.
    Adaptive,
}

/// How a model is told not to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Off {
    /// It can be.
    Disabled,
    /// All that it can do without is thinking up front.
    BetweenTools,
    /// It always thinks.
    Never,
}

/// Which sampling parameters a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sampling {
    /// Any, within any range: no Claude.
    Any,
    /// Both.
    Both,
    /// One of both.
    One,
    /// None but the default.
    Fixed,
}

impl Traits {
    /// Ids come with prefixes and suffixes of many kinds: `anthropic/claude-opus-4.6`,
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

/// The first number of an id, and the one right after it: a date is no version.
fn version(id: &str) -> Option<(u8, u8)> {
    let number = |part: &str| if part.len() <= 2 { part.parse().ok() } else { None };
    let mut parts = id.split(|c: char| !c.is_ascii_alphanumeric());
    let major = parts.by_ref().find_map(number)?;
    let minor = parts.next().and_then(number).unwrap_or(0);
    Some((major, minor))
}

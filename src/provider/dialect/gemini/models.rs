//! The features of a model, determined by its id. Sources: <https://ai.google.dev/gemini-api/docs/thinking>,
//! <https://ai.google.dev/gemini-api/docs/thought-signatures>,
//! <https://ai.google.dev/gemini-api/docs/structured-output> and the pages about what is new in each model, such as
//! <https://ai.google.dev/gemini-api/docs/whats-new-gemini-3.7>.

use crate::provider::{Effort, Request, dialect::output_tool};

/// The features of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// How thinking is requested.
    pub(super) thinking: Thinking,
    /// Whether the model rejects tool uses without a signature.
    pub(super) signed_calls: bool,
    /// Whether the model supports an output schema together with tools.
    pub(super) schema_beside_tools: bool,
    /// Whether temperature and top-p have an effect.
    pub(super) sampling: bool,
}

/// How thinking is requested from a model.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thinking {
    /// The model has no setting for thinking.
    Untold,
    /// By a token budget in this range.
    Budget {
        min: u32,
        max: u32,
        /// Whether thinking can be turned off.
        off: bool,
    },
    /// By one of these levels.
    Levels(&'static [Effort]),
}

const ALL: &[Effort] = &[Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];
/// The levels that all models of the third generation support, except for the first Pro. Also used for unknown models.
const COMMON: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];
const FIRST_PRO: &[Effort] = &[Effort::Low, Effort::High];

/// Returns whether the request's output schema, if there is one, can be sent as such.
pub(super) fn takes_output(request: &Request) -> bool {
    request.options.output().is_none()
        || !output_tool::is_needed(request)
            && (request.tools.is_empty() || Traits::of(&request.model).schema_beside_tools)
}

impl Traits {
    /// Determines the features of a model. An alias without a version, such as `gemini-flash-latest`, is treated as the
    /// newest model.
    pub(super) fn of(model: &str) -> Self {
        let model = model.to_ascii_lowercase();
        let Some((_, id)) = model.split_once("gemini-") else {
            return Self {
                thinking: Thinking::Untold,
                signed_calls: false,
                schema_beside_tools: true,
                sampling: true,
            };
        };
        let version = version(id).unwrap_or((u8::MAX, 0));
        let has = |word: &str| id.split('-').any(|part| part == word);
        let thinking = match version {
            _ if has("image") || has("tts") || has("audio") => Thinking::Untold,
            (..=1, _) | (2, ..=4) => Thinking::Untold,
            (2, _) if has("pro") => Thinking::Budget { min: 128, max: 32_768, off: false },
            (2, _) if has("lite") => Thinking::Budget { min: 512, max: 24_576, off: true },
            (2, _) => Thinking::Budget { min: 1, max: 24_576, off: true },
            (3, 0) if has("pro") => Thinking::Levels(FIRST_PRO),
            _ if has("lite") => Thinking::Levels(ALL),
            (3, ..=6) if !has("pro") => Thinking::Levels(ALL),
            _ => Thinking::Levels(COMMON),
        };
        let third = version >= (3, 0);
        let last_sampled = if has("lite") { (3, 4) } else { (3, 5) };
        Self { thinking, signed_calls: third, schema_beside_tools: third, sampling: version <= last_sampled }
    }
}

/// Returns the version at the start of an id, such as `3` or `2.5`.
fn version(id: &str) -> Option<(u8, u8)> {
    let number = id.split('-').next()?;
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

//! What a model takes, by its id. Sources: <https://ai.google.dev/gemini-api/docs/thinking>,
//! <https://ai.google.dev/gemini-api/docs/thought-signatures>,
//! <https://ai.google.dev/gemini-api/docs/structured-output> and the pages on what is new in each model, such as
//! <https://ai.google.dev/gemini-api/docs/whats-new-gemini-3.7>.

use crate::provider::{Effort, Request, dialect::output_tool};

/// What a model takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// How it is told to think.
    pub(super) thinking: Thinking,
    /// Whether it refuses tool uses without a signature.
    pub(super) signed_calls: bool,
    /// Whether it takes an output schema beside tools.
    pub(super) schema_beside_tools: bool,
    /// Whether temperature and top-p mean anything to it.
    pub(super) sampling: bool,
}

/// How a model is told to think.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thinking {
    /// It can't be told.
    Untold,
    /// Up to a number of tokens.
    Budget {
        min: u32,
        max: u32,
        /// Whether it can be told not to.
        off: bool,
    },
    /// At one of these levels.
    Levels(&'static [Effort]),
}

const ALL: &[Effort] = &[Effort::Minimal, Effort::Low, Effort::Medium, Effort::High];
/// What all of the third generation take, but for the first Pro, and so what an unknown one is told.
const COMMON: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];
const FIRST_PRO: &[Effort] = &[Effort::Low, Effort::High];

/// Whether the request's output schema, if it has one, can be said as such.
pub(super) fn takes_output(request: &Request) -> bool {
    request.options.output.is_none()
        || !output_tool::is_needed(request)
            && (request.tools.is_empty() || Traits::of(&request.model).schema_beside_tools)
}

impl Traits {
    /// An alias without a version, such as `gemini-flash-latest`, is taken for the newest.
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

/// The number that an id begins with, `3` or `2.5`.
fn version(id: &str) -> Option<(u8, u8)> {
    let number = id.split('-').next()?;
    let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

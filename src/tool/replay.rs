use serde::{Deserialize, Serialize};

/// Whether a tool call, or a request to a provider, may be repeated after a crash.
///
/// The declaration counts only if a process ends while the call runs and its turn continues later. The default of tools
/// is [`Never`](Self::Never).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Replay {
    /// Running twice has the same effect as running once. A tool that only reads is an example.
    Safe,
    /// The service recognises a repetition by the call's key:
    /// [`ToolContext::idempotency_key`](super::ToolContext::idempotency_key).
    Keyed,
    /// The call must not be repeated without a person's decision.
    #[default]
    Never,
}

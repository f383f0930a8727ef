//! The settings with which an agent compacts long conversations.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::model_spec::ModelSpec;
use crate::{
    provider::{Model, Registry},
    run::{Error, ErrorKind},
    setters::setters,
};

/// When and how an agent replaces old messages of a long conversation in its requests.
///
/// The agent compacts before a request if the size of the conversation has reached a share of the model's room, and
/// after the service has refused a request because it was too long. The room is the model's limit for its input or, if it
/// has none, its context window without the room for the answer. If the size of the context window is not known, only a
/// refusal triggers a compaction.
///
/// If notes in place of old tool results, files and thinking make enough room, they are used, and no request is needed.
/// Otherwise the model writes a summary. The compaction becomes a message of the history, and nothing is deleted: see
/// [`Compaction`](crate::message::Compaction).
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::{provider::ModelInfo, message::Usage, testing::{ScriptedProvider, Step}};
/// # let steps = [
/// #     Step::new().usage(Usage::default().with_input(950)).then_text(["Hi, Ada."]).stop(),
/// #     Step::text("The user is Ada."),
/// #     Step::text("Ada."),
/// # ];
/// # let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
/// # let model = ScriptedProvider::new(steps).model().with_info(info);
/// use omni_agent::agent::{Agent, CompactionPolicy};
///
/// let policy = CompactionPolicy::default().with_kept_turns(1);
/// let agent = Agent::builder().model(model).compaction(policy).start().await?;
/// agent.ask("I am Ada.").await?;
/// assert_eq!(agent.ask("Who am I?").await?.text(), "Ada.");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CompactionPolicy {
    pub(super) threshold: f64,
    pub(super) kept_turns: u32,
    pub(super) kept_prompts: bool,
    pub(super) clearing: bool,
    pub(super) model: Option<ModelSpec>,
    pub(super) instructions: Option<Arc<str>>,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            threshold: 0.85,
            kept_turns: 2,
            kept_prompts: false,
            clearing: true,
            model: None,
            instructions: None,
        }
    }
}

impl CompactionPolicy {
    setters! {
        /// Sets the share of the room at which the agent compacts, from 0.1 to 1. The default is 0.85.
        pub fn with_threshold(self, share: f64) { self.threshold = share }

        /// Sets the number of last turns that are sent unchanged, including the turn in flight. The default is 2. If they
        /// are larger than half of the tokens that the system prompt and the tools leave below the threshold, fewer
        /// messages are kept, but always the last answer.
        pub fn with_kept_turns(self, turns: u32) { self.kept_turns = turns }

        /// Adds the text of the replaced prompts to each summary, with the newest prompt first, up to a tenth of the room
        /// that the system prompt and the tools leave. The oldest prompt has room first. A prompt that does not fit is
        /// omitted.
        pub fn with_kept_prompts(self) { self.kept_prompts = true }

        /// Makes another model write the summaries.
        pub fn with_model(self, model: impl Into<ModelSpec>) { self.model = Some(model.into()) }

        /// Sets what else the model has to observe when it writes a summary.
        pub fn with_instructions(self, text: impl Into<Arc<str>>) { self.instructions = Some(text.into()) }

        /// Makes the agent write a summary even if notes in place of old content made enough room.
        pub fn without_clearing(self) { self.clearing = false }
    }

    /// Checks the settings, and looks up the model. `acts_at_end` is whether the agent compacts at the end of a run.
    pub(super) fn resolved(
        self,
        registry: Option<&Registry>,
        used: &Model,
        acts_at_end: bool,
    ) -> Result<ResolvedCompactionPolicy, Error> {
        if !(0.1..=1.0).contains(&self.threshold) {
            let text =
                format!("the threshold of the compaction is {}; use a share from 0.1 to 1", self.threshold);
            return Err(Error::new(ErrorKind::InvalidSettings, text));
        }
        let model = self.model.clone().map(|model| model.resolve(registry, used)).transpose()?;
        Ok(ResolvedCompactionPolicy { policy: self, model, acts_at_end })
    }
}

/// A compaction that the application or its user requests: [`Agent::compact`](super::Agent::compact).
///
/// A text converts into a summary with this focus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Compact {
    /// The kind of the compaction. Default: a summary.
    #[serde(default)]
    pub how: CompactHow,
    /// The subject that the summary must state in detail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub focus: Option<String>,
}

/// The kind of a requested [`Compact`]ion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CompactHow {
    /// The model writes a summary, which replaces the messages before the last turns.
    #[default]
    Summary,
    /// Notes replace old tool results, files and thinking. No request is needed.
    Clear,
    /// All messages are sent again.
    Undo,
}

impl Compact {
    /// Requests a summary of the messages before the last turns.
    pub const fn summary() -> Self {
        Self { how: CompactHow::Summary, focus: None }
    }

    /// Requests notes in place of old tool results, files and thinking.
    pub const fn clear() -> Self {
        Self { how: CompactHow::Clear, focus: None }
    }

    /// Requests that all messages are sent again. The automatic compaction then waits until the model's whole room is
    /// used.
    pub const fn undo() -> Self {
        Self { how: CompactHow::Undo, focus: None }
    }

    setters! {
        /// Sets the subject that the summary must state in detail.
        #[must_use]
        pub fn with_focus(self, focus: impl Into<String>) { self.focus = Some(focus.into()) }
    }
}

impl From<&str> for Compact {
    /// Requests a summary with this focus. A blank text means no focus.
    fn from(focus: &str) -> Self {
        if focus.trim().is_empty() { Self::summary() } else { Self::summary().with_focus(focus) }
    }
}

/// A policy whose model was looked up.
#[derive(Debug)]
pub(crate) struct ResolvedCompactionPolicy {
    pub(crate) policy: CompactionPolicy,
    /// The model that writes summaries, if it is not the model of the request.
    pub(crate) model: Option<Model>,
    /// Whether the agent compacts at the end of a run. A sub-agent ends with its run.
    pub(crate) acts_at_end: bool,
}

/// Returns a number times a factor.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "estimates and costs need no more precision, and a cast to a whole number saturates"
)]
pub(super) fn times(number: u64, factor: f64) -> u64 {
    (number as f64 * factor) as u64
}

use std::time::Duration;

use crate::{
    agent::Prompt,
    provider::{Model, Options},
    tree::NodeId,
};

/// The user message to answer again, with settings for the run.
///
/// Settings that are given here take the place of those that the message was sent with, one by one. The session knows
/// those of the prompts that it has taken itself, without their API keys and headers. They are not stored: after a
/// reload, the settings of the agent take their place.
///
/// ```
/// # use omni_agent::{provider::Model, tree::NodeId};
/// use omni_agent::{provider::Options, session::Regenerate};
///
/// # fn example(node: NodeId, other: Model) {
/// let again = Regenerate::new(node).with_model(other).with_options(Options::default().with_temperature(0.9));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Regenerate {
    pub(super) user: NodeId,
    /// A prompt without content.
    pub(super) settings: Prompt,
}

impl Regenerate {
    /// Answers this user message again.
    pub fn new(user: NodeId) -> Self {
        Self { user, settings: Prompt::default() }
    }

    /// The same with this model, for this run only.
    pub fn with_model(mut self, model: Model) -> Self {
        self.settings = self.settings.with_model(model);
        self
    }

    /// The same with these options, for this run only.
    pub fn with_options(mut self, options: Options) -> Self {
        self.settings = self.settings.with_options(options);
        self
    }

    /// The same with its own limit of requests.
    pub fn with_max_steps(mut self, max_steps: u32) -> Self {
        self.settings = self.settings.with_max_steps(max_steps);
        self
    }

    /// The same with its own time limit for each turn.
    pub fn with_turn_timeout(mut self, limit: Duration) -> Self {
        self.settings = self.settings.with_turn_timeout(limit);
        self
    }
}

impl From<NodeId> for Regenerate {
    fn from(user: NodeId) -> Self {
        Self::new(user)
    }
}

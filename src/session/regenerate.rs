use std::time::Duration;

use crate::{
    provider::{Model, Options},
    run::Prompt,
    tree::NodeId,
};

/// The user message that gets another response, and the settings for the run.
///
/// Each setting given here replaces the same setting of the original prompt. The session remembers the settings of the
/// prompts that it has accepted, except API keys and headers. The remembered settings are not stored. After the
/// conversation is opened again, the agent's settings apply instead.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Everest, K2."), Step::text("Fuji, Etna.")]);
/// # let model = provider.model();
/// use omni_agent::{agent::Agent, provider::Options, store::MemoryStore};
/// use omni_agent::session::{Regenerate, Session};
///
/// let agent = Agent::builder().model(model);
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// session.ask("Name two mountains.").await?;
///
/// let question = session.tree().await?.roots().next().expect("the question").id();
/// let again = Regenerate::new(question).with_options(Options::default().with_temperature(0.9));
/// assert_eq!(session.ask_regenerate(again).await?.text(), "Fuji, Etna.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Regenerate {
    pub(super) user: NodeId,
    /// The settings for the run, as a prompt without content.
    pub(super) settings: Prompt,
}

impl Regenerate {
    /// Selects the user message that gets another response.
    pub fn new(user: NodeId) -> Self {
        Self { user, settings: Prompt::default() }
    }

    crate::setters::setters! {
        /// Sets the model for this run only.
        pub fn with_model(self, model: Model) { self.settings = self.settings.with_model(model) }

        /// Sets the options for this run only.
        pub fn with_options(self, options: Options) { self.settings = self.settings.with_options(options) }

        /// Sets the maximum number of requests for this run only.
        pub fn with_max_steps(self, max_steps: u32) {
            self.settings = self.settings.with_max_steps(max_steps);
        }

        /// Sets the time limit of each turn for this run only.
        pub fn with_turn_timeout(self, limit: Duration) {
            self.settings = self.settings.with_turn_timeout(limit);
        }

        /// Sets the tools of the client for this run.
        #[cfg(feature = "web")]
        pub(crate) fn with_client_tools(self, tools: crate::run::ClientTools) {
            self.settings.client_tools = tools;
        }
    }
}

impl From<NodeId> for Regenerate {
    fn from(user: NodeId) -> Self {
        Self::new(user)
    }
}

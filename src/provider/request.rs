use std::sync::Arc;

use serde_json::Value;

use super::{ModelInfo, Options, key::KeySource};
use crate::{
    message::{Blocks, History, Message, Role},
    tool::ToolSet,
};

/// All that a model needs for one answer.
///
/// ```
/// use omni_agent::provider::{Options, Request};
///
/// let request = Request::prompt("Name three mountains.")
///     .with_system("Be brief.")
///     .with_options(Options::default().with_max_tokens(100));
/// assert_eq!(request.history.len(), 1);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Request {
    /// The model's id at the service, without the provider's name. Set by [`Model`](super::Model).
    pub model: Arc<str>,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The conversation; sendable, as [`History::check_sendable`] says.
    pub history: History,
    /// The tools on offer.
    pub tools: ToolSet,
    /// How to answer.
    pub options: Options,
    /// What is known of the model. Where nothing is given, [`Model`](super::Model) sets what its catalogue
    /// knows.
    pub model_info: Option<Arc<ModelInfo>>,
    /// The registry's key, for a request without one.
    pub(super) key: Option<KeySource>,
}

impl Request {
    /// A request with this conversation and all else empty.
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// A request with one user message.
    pub fn prompt(content: impl Into<Blocks>) -> Self {
        Self::new(History::from_iter([Message::user(content)]))
    }

    /// The same request with a system prompt.
    pub fn with_system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// The same request with tools.
    pub fn with_tools(mut self, tools: ToolSet) -> Self {
        self.tools = tools;
        self
    }

    /// The same request with options.
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The same request with what is known of its model, in place of what a catalogue knows.
    pub fn with_model_info(mut self, info: impl Into<Arc<ModelInfo>>) -> Self {
        self.model_info = Some(info.into());
        self
    }

    /// Puts the registry's key in the place of one that is missing.
    pub(super) fn authorise(&mut self) {
        let given = self.options.api_key().is_some_and(|key| !key.reveal().is_empty());
        if let Some(key) = self.key.as_ref().filter(|_| !given).and_then(KeySource::key) {
            self.options.set_api_key(Some(key));
        }
    }

    /// The private state that a provider left with the conversation, under the name it chose: what it last
    /// put into the [`provider_data`](super::MessageDelta::provider_data) of an answer that is part of this
    /// history. It follows the conversation through branches, stores and restarts. O(1) if the last answer
    /// has it, O(n) if none has.
    pub fn private_state(&self, name: &str) -> Option<&Value> {
        let mut answers = self.history.iter().rev().filter(|message| message.role == Role::Assistant);
        answers.find_map(|message| message.provider_data.get(name))
    }
}

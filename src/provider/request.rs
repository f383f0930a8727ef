use std::sync::Arc;

use serde_json::Value;

use super::Options;
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

    /// The private state that a provider left with the conversation, under the name it chose: what it last
    /// put into the [`provider_data`](super::MessageDelta::provider_data) of an answer that is part of this
    /// history. It follows the conversation through branches, stores and restarts. O(1) if the last answer
    /// has it, O(n) if none has.
    pub fn private_state(&self, name: &str) -> Option<&Value> {
        let mut answers = self.history.iter().rev().filter(|message| message.role == Role::Assistant);
        answers.find_map(|message| message.provider_data.get(name))
    }
}

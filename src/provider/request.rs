use std::sync::Arc;

use serde_json::Value;

use super::{ModelInfo, Options, catalogue::ModelTraits, secret::KeySource};
use crate::{
    message::{Blocks, History, Message, Role, text_tokens},
    panics::contained,
    tool::{Tool, ToolSet},
};

/// The input of a model for one response.
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
    /// The conversation. It must pass [`History::check_sendable`].
    pub history: History,
    /// The tools that the model may use.
    pub tools: ToolSet,
    /// The options for the response.
    pub options: Options,
    /// Facts about the model. If unset, [`Model`](super::Model) sets the facts of its catalogue.
    pub model_info: Option<Arc<ModelInfo>>,
    /// The registry's key, which is used if the options contain no key.
    pub(super) key: Option<KeySource>,
    /// The facts that the catalogue's rules yield for the model's id, together with that id.
    pub(super) rule: Option<(Arc<str>, &'static ModelTraits)>,
    /// The end of the part of `history` that the next requests contain too: a number of messages, and a number of
    /// blocks of the message after them. Only set if a callback changed the history of this request.
    pub(super) lasting: Option<(usize, usize)>,
}

/// The estimated tokens of a tool in addition to its JSON.
const PER_TOOL: u64 = 8;

/// Returns the estimated number of tokens of a request with this system prompt, these tools and this history.
pub(crate) fn estimated_tokens(system: Option<&str>, tools: &ToolSet, history: &History) -> u64 {
    let tool = |tool: &Arc<dyn Tool>| {
        let declared = contained(|| {
            let schema = text_tokens(&tool.schema().as_value().to_string());
            schema + text_tokens(tool.name()) + text_tokens(&tool.description())
        });
        PER_TOOL + declared.unwrap_or_default()
    };
    system.map_or(0, text_tokens)
        + tools.iter().map(tool).sum::<u64>()
        + history.iter().map(|message| message.estimated_tokens()).sum::<u64>()
}

impl Request {
    /// Creates a request with this conversation and nothing else.
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// Returns the estimated number of tokens of the system prompt, the tools and the history. Services count differently,
    /// and no tokenizer is used: see [`Message::estimated_tokens`]. O(bytes).
    pub fn estimated_tokens(&self) -> u64 {
        estimated_tokens(self.system.as_deref(), &self.tools, &self.history)
    }

    /// Creates a request with one user message.
    pub fn prompt(content: impl Into<Blocks>) -> Self {
        Self::new(History::from_iter([Message::user(content)]))
    }

    crate::setters::setters! {
        /// Sets the system prompt.
        pub fn with_system(self, system: impl Into<Arc<str>>) { self.system = Some(system.into()) }

        /// Sets the tools.
        pub fn with_tools(self, tools: ToolSet) { self.tools = tools }

        /// Sets the options.
        pub fn with_options(self, options: Options) { self.options = options }

        /// Sets the facts about the model, which replace the facts of the catalogue.
        pub fn with_model_info(self, info: impl Into<Arc<ModelInfo>>) { self.model_info = Some(info.into()) }
    }

    /// Records which part of the history stems from `conversation`, the messages that the next requests contain too. A
    /// callback may have added the rest for this request only.
    pub(crate) fn mark_lasting(&mut self, conversation: &History) {
        let changed = !self.history.same(conversation);
        self.lasting = if changed { lasting(conversation, &self.history) } else { None };
    }

    /// Returns how the model takes options: according to the facts about the model, or else according to the rules for
    /// its id.
    pub(super) fn traits(&self) -> &ModelTraits {
        if let Some(traits) = self.model_info.as_ref().and_then(|info| info.traits.as_deref()) {
            return traits;
        }
        match &self.rule {
            Some((id, traits)) if *id == self.model => traits,
            _ => ModelTraits::of(&self.model),
        }
    }

    /// Copies the registry's key to the options if they contain no key.
    pub(super) fn authorise(&mut self) {
        let given = self.options.api_key().is_some_and(|key| !key.reveal().is_empty());
        if let Some(key) = self.key.as_ref().filter(|_| !given).and_then(KeySource::key) {
            self.options.set_api_key(Some(key));
        }
    }

    /// Returns the private state that a provider has stored with the conversation under this name: the latest
    /// [`provider_data`](super::MessageDelta::provider_data) of a response in this history. The state follows the
    /// conversation through branches, stores and restarts. O(1) if the last response has it, O(n) if no response has
    /// it.
    pub fn private_state(&self, name: &str) -> Option<&Value> {
        let mut answers = self.history.iter().rev().filter(|message| message.role == Role::Assistant);
        answers.find_map(|message| message.provider_data.get(name))
    }
}

/// Returns the end of the part of `sent` that stems from `conversation`, or `None` if the end of `conversation` is not
/// in `sent`. Blocks that were appended to the last message don't stem from `conversation`.
fn lasting(conversation: &History, sent: &History) -> Option<(usize, usize)> {
    let end_of = |message: &Arc<Message>| {
        let found = sent.iter().rposition(|other| Arc::ptr_eq(other, message) || other == message);
        found.map(|index| index + 1)
    };
    let last = conversation.last()?;
    if let Some(end) = end_of(last) {
        return Some((end, 0));
    }
    let end = match conversation.iter().nth_back(1) {
        Some(before) => end_of(before)?,
        None => 0,
    };
    let changed = sent.get(end).filter(|changed| changed.role == last.role)?;
    let same = last.content.iter().zip(&changed.content).take_while(|(own, other)| own == other);
    Some((end, same.count()))
}

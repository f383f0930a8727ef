use std::{fmt, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::BackendError;

use crate::{message::Message, provider::Options};

/// Names a session at its backend.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// An id with exactly this text.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&SessionId> for SessionId {
    fn from(id: &SessionId) -> Self {
        id.clone()
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What a session is started, resumed or forked with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The model's id, without the provider's name.
    pub model: Arc<str>,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The conversation's own settings, from [`Options::backend`](crate::provider::OptionFields::backend). They are saved
    /// with the conversation, so a session that is resumed after a reload gets the same ones. A backend that does not
    /// know a setting reports it in [`TurnResult::warnings`](super::TurnResult::warnings).
    pub settings: Map<String, Value>,
}

impl SessionOptions {
    /// Options for this model, all else empty.
    pub fn new(model: impl Into<Arc<str>>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// The same options with a system prompt.
    pub fn with_system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// The same options with these settings.
    pub fn with_settings(
        mut self,
        settings: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>,
    ) -> Self {
        self.settings = settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// The folder to work in, if the settings have one: see [`Options::with_folder`].
    ///
    /// # Errors
    ///
    /// [`BackendError::Misconfigured`] if the setting `folder` is not a text.
    pub fn folder(&self) -> Result<Option<&Path>, BackendError> {
        match self.settings.get("folder") {
            None => Ok(None),
            Some(Value::String(folder)) => Ok(Some(Path::new(folder))),
            Some(other) => {
                let why = format!("the setting `folder` is {other}; give a path as text");
                Err(BackendError::Misconfigured(why))
            }
        }
    }
}

/// What a session is to answer.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TurnPrompt {
    /// What is new, in order: at least one message, and user messages alone, unless the backend takes
    /// [history](Capabilities::history).
    pub messages: Vec<Arc<Message>>,
    /// How to answer. What the backend can't honour it tells with [`TurnResult::warnings`](super::TurnResult::warnings).
    pub options: Options,
}

impl TurnPrompt {
    /// A prompt of these messages.
    pub fn new<M: Into<Arc<Message>>>(messages: impl IntoIterator<Item = M>) -> Self {
        Self { messages: messages.into_iter().map(Into::into).collect(), options: Options::default() }
    }

    /// All text of the messages, a blank line between two.
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.messages.iter().map(|message| message.text()).collect();
        texts.join("\n\n")
    }
}

/// What a backend can do beyond what every backend can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent capabilities")]
pub struct Capabilities {
    /// [`Backend::resume`](super::Backend::resume) works.
    pub resume: bool,
    /// [`Backend::fork`](super::Backend::fork) works.
    pub fork: bool,
    /// The first prompt of a session may bring a conversation that the backend had no part in, answers included.
    pub history: bool,
    /// A permission may be given for another input than was asked for.
    pub edits: bool,
}

impl Capabilities {
    /// The same, with [`resume`](Capabilities::resume).
    pub fn with_resume(self) -> Self {
        Self { resume: true, ..self }
    }

    /// The same, with [`fork`](Capabilities::fork).
    pub fn with_fork(self) -> Self {
        Self { fork: true, ..self }
    }

    /// The same, with [`history`](Capabilities::history).
    pub fn with_history(self) -> Self {
        Self { history: true, ..self }
    }

    /// The same, with [`edits`](Capabilities::edits).
    pub fn with_edits(self) -> Self {
        Self { edits: true, ..self }
    }
}

use std::{fmt, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::BackendError;

use crate::{message::Message, provider::Options};

/// The id of a session at its backend.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Creates an id with exactly this text.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// Returns the id's text.
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

/// The options with which a session is started, resumed or forked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The model's id, without the provider's name.
    pub model: Arc<str>,
    /// The system prompt.
    pub system: Option<Arc<str>>,
    /// The conversation's own settings, from [`Options::backend`](crate::provider::Options::backend). They are saved
    /// with the conversation. A session that is resumed after a reload therefore gets the same settings. A backend
    /// reports settings that it does not know in [`TurnResult::warnings`](super::TurnResult::warnings).
    pub settings: Map<String, Value>,
}

impl SessionOptions {
    /// Creates options for this model. All other options are empty.
    pub fn new(model: impl Into<Arc<str>>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// Returns the same options with a system prompt.
    pub fn with_system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// Returns the same options with these settings.
    pub fn with_settings(
        mut self,
        settings: impl IntoIterator<Item = (impl Into<String>, impl Into<Value>)>,
    ) -> Self {
        self.settings = settings.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        self
    }

    /// Returns the folder to work in, if the settings contain one; see [`Options::with_folder`].
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::Misconfigured`] if the setting `folder` is not a string.
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

/// The prompt of a turn.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TurnPrompt {
    /// The new messages, in order. There is at least one message. All of them are user messages, unless the backend
    /// accepts [history](Capabilities::history).
    pub messages: Vec<Arc<Message>>,
    /// The options for the response. The backend reports options that it can't honour in
    /// [`TurnResult::warnings`](super::TurnResult::warnings).
    pub options: Options,
}

impl TurnPrompt {
    /// Creates a prompt with these messages.
    pub fn new<M: Into<Arc<Message>>>(messages: impl IntoIterator<Item = M>) -> Self {
        Self { messages: messages.into_iter().map(Into::into).collect(), options: Options::default() }
    }

    /// Returns the text of all messages, separated by blank lines.
    pub fn text(&self) -> String {
        let texts: Vec<String> = self.messages.iter().map(|message| message.text()).collect();
        texts.join("\n\n")
    }
}

/// The optional capabilities of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "independent capabilities")]
pub struct Capabilities {
    /// Whether [`Backend::resume`](super::Backend::resume) works.
    pub resume: bool,
    /// Whether [`Backend::fork`](super::Backend::fork) works.
    pub fork: bool,
    /// Whether the first prompt of a session may include an earlier conversation with responses that are not from the
    /// backend.
    pub history: bool,
    /// Whether a tool may be allowed with another input than the requested one.
    pub edits: bool,
}

impl Capabilities {
    /// Returns the same capabilities, including [`resume`](Capabilities::resume).
    pub fn with_resume(self) -> Self {
        Self { resume: true, ..self }
    }

    /// Returns the same capabilities, including [`fork`](Capabilities::fork).
    pub fn with_fork(self) -> Self {
        Self { fork: true, ..self }
    }

    /// Returns the same capabilities, including [`history`](Capabilities::history).
    pub fn with_history(self) -> Self {
        Self { history: true, ..self }
    }

    /// Returns the same capabilities, including [`edits`](Capabilities::edits).
    pub fn with_edits(self) -> Self {
        Self { edits: true, ..self }
    }
}

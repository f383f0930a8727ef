use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

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
}

impl SessionOptions {
    /// Options for this model, all else empty.
    pub fn new(model: impl Into<Arc<str>>) -> Self {
        Self { model: model.into(), system: None }
    }

    /// The same options with a system prompt.
    pub fn with_system(mut self, system: impl Into<Arc<str>>) -> Self {
        self.system = Some(system.into());
        self
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

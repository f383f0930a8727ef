//! The position of a backend in a conversation, in the form that the conversation's responses store, and the way to
//! reach a position.
//!
//! Responses are the only place of this state, so a conversation that is loaded again needs nothing else. The position
//! is stored at the start of a response and again at its end, so that a response that is broken off has it too.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{BackendError, Capabilities, SessionId};
use crate::message::{History, Message, Role};

/// A position in a session's conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionPosition {
    /// The id of the session.
    pub session: SessionId,
    /// The number of prompts that the session had accepted at this position. If the session was forked from another
    /// session, the prompts before the fork count too.
    pub prompts: u64,
    /// The backend's own name for this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// The position of the backend, as stored in a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// A key that distinguishes sessions, including those without an id.
    pub(super) key: String,
    /// The session's id, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
    /// The number of prompts that the session had accepted, including the prompt of this response.
    pub(super) prompts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checkpoint: Option<String>,
    /// Whether the position was stored when the turn began. If so, `checkpoint` is the checkpoint after the previous
    /// turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unfinished: bool,
}

impl Position {
    /// Returns the position that a message stores for the backend with this name, if the message is a response of that
    /// backend.
    pub(super) fn stored_in(name: &str, message: &Message) -> Option<Result<Self, serde_json::Error>> {
        let stored = message.provider_data.get(name).filter(|_| message.role == Role::Assistant)?;
        Some(Self::deserialize(stored))
    }

    pub(super) fn place(&self) -> Option<SessionPosition> {
        let session = self.session.clone()?;
        Some(SessionPosition { session, prompts: self.prompts, checkpoint: self.checkpoint.clone() })
    }
}

/// A conversation as one backend sees it.
#[derive(Debug, PartialEq)]
pub(super) struct Conversation {
    /// The position at the backend's last response.
    pub(super) position: Option<Position>,
    /// The messages after the backend's last response.
    pub(super) new: Vec<Arc<Message>>,
}

impl Conversation {
    /// Reads the conversation for the backend with this name.
    pub(super) fn read(name: &str, history: &History) -> Result<Self, BackendError> {
        let mut new = Vec::new();
        let mut position = None;
        for message in history.iter().rev() {
            if let Some(stored) = Position::stored_in(name, message) {
                position = Some(stored.map_err(|error| {
                    BackendError::NotResumable(format!(
                        "the position of `{name}` in its last response can't be read ({error}); start a new conversation"
                    ))
                })?);
                break;
            }
            new.push(Arc::clone(message));
        }
        new.reverse();
        if new.last().is_none_or(|message| message.role == Role::Assistant) {
            return Err(BackendError::Invalid("there is no new message since its last response".to_owned()));
        }
        Ok(Self { position, new })
    }
}

/// The counts of the prompts that a session has received in a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PromptCounts {
    /// The number of prompts that the session has received.
    pub(super) given: u64,
    /// The number of the last prompt whose response, complete or broken off, became part of the conversation. Prompts
    /// after this one were discarded.
    pub(super) kept: u64,
}

impl PromptCounts {
    /// Creates the counts of a session that is at this position.
    pub(super) fn up_to(prompts: u64) -> Self {
        Self { given: prompts, kept: prompts }
    }

    pub(super) fn keep(&mut self, prompts: u64) {
        self.kept = self.kept.max(prompts);
        self.given = self.given.max(prompts);
    }
}

/// The state of the session that is stored in the conversation's last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownSession {
    /// The session is in use.
    Live(PromptCounts),
    /// The session was in use before the current session, and has not been terminated yet.
    Parked(PromptCounts),
    /// The session was terminated, or belongs to another process.
    Retired(PromptCounts),
}

/// How the conversation's position can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Continue with the session in use. The number counts the prompts that this session has received after the
    /// conversation's position. These prompts were discarded from the conversation.
    Stay(u64),
    /// Return to the previous session. The number counts the prompts that this session has received after the
    /// conversation's position. These prompts were discarded from the conversation.
    Return(u64),
    Start,
    /// Resume the session with this id at this position. The counts are those of the prompts that the session has
    /// received.
    Resume(Position, SessionId, PromptCounts),
    Fork(SessionPosition),
}

/// Returns the error for a backend that has continued past the conversation's position.
pub(super) fn elsewhere() -> BackendError {
    BackendError::Diverged(
        "it continues from an earlier position, and the backend can't fork its session; continue from its last response, \
         if there is one, or start a new conversation"
            .to_owned(),
    )
}

/// Returns how to reach the position of `conversation`. `known` is the state of the session that the conversation's
/// last response names. `live` counts the prompts that the session in use has received, even if the conversation's last
/// response is from another session.
pub(super) fn route(
    conversation: &Conversation,
    known: KnownSession,
    live: Option<PromptCounts>,
    can: Capabilities,
) -> Result<Route, BackendError> {
    let foreign = conversation.new.iter().filter(|message| message.role == Role::Assistant).count();
    if foreign > 0 && !(can.history && conversation.position.is_none()) {
        return Err(BackendError::Diverged(format!(
            "{foreign} of its responses are not from the backend, which can't be given them; start a new conversation"
        )));
    }
    let Some(position) = &conversation.position else {
        return Ok(match live {
            // Without a stored position, the session in use can continue only if none of its responses was kept. In
            // addition, it must not have received the responses of other models before, because they would be sent
            // again.
            Some(heard) if heard.kept == 0 && (foreign == 0 || heard.given == 0) => Route::Stay(heard.given),
            _ => Route::Start,
        });
    };
    let (KnownSession::Live(heard) | KnownSession::Parked(heard) | KnownSession::Retired(heard)) = known;
    if heard.kept > position.prompts {
        return match position.place() {
            Some(place) if can.fork => Ok(Route::Fork(place)),
            _ => Err(elsewhere()),
        };
    }
    let more = heard.given.saturating_sub(position.prompts);
    match (known, &position.session) {
        (KnownSession::Live(_), _) => Ok(Route::Stay(more)),
        (KnownSession::Parked(_), _) => Ok(Route::Return(more)),
        (KnownSession::Retired(mut heard), Some(id)) if can.resume => {
            heard.keep(position.prompts);
            Ok(Route::Resume(position.clone(), id.clone(), heard))
        }
        (KnownSession::Retired(_), Some(_)) => Err(BackendError::NotResumable(
            "the session is gone and the backend can't resume one; start a new conversation".to_owned(),
        )),
        (KnownSession::Retired(_), None) => Err(BackendError::NotResumable(
            "the session is gone and the backend gave it no id; start a new conversation".to_owned(),
        )),
    }
}

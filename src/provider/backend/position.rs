//! Where a backend is in a conversation, as the conversation's answers tell, and how to get there.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{BackendError, Capabilities, SessionId};
use crate::message::{History, Message, Role};

/// A place in a session's conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionPosition {
    /// The session.
    pub session: SessionId,
    /// How many prompts the session had taken there, those of the sessions that it was forked from included.
    pub prompts: u64,
    /// What the backend called the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

/// What an answer tells of its backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Tells sessions apart, also those whose backend gives them no id.
    pub(super) key: String,
    /// The session's id, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionId>,
    /// The prompts that the session had taken with this one.
    pub(super) prompts: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) checkpoint: Option<String>,
    /// Told when the turn began: the checkpoint is that of the turn before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unfinished: bool,
}

impl Position {
    /// What a message tells of the backend of this name, if it is an answer of its.
    pub(super) fn told(name: &str, message: &Message) -> Option<Result<Self, serde_json::Error>> {
        let told = message.provider_data.get(name).filter(|_| message.role == Role::Assistant)?;
        Some(Self::deserialize(told))
    }

    pub(super) fn place(&self) -> Option<SessionPosition> {
        let session = self.session.clone()?;
        Some(SessionPosition { session, prompts: self.prompts, checkpoint: self.checkpoint.clone() })
    }
}

/// A conversation as one backend sees it.
#[derive(Debug, PartialEq)]
pub(super) struct Conversation {
    /// Where the backend was with its last answer in it.
    pub(super) position: Option<Position>,
    /// What came after that.
    pub(super) new: Vec<Arc<Message>>,
}

impl Conversation {
    /// Reads the conversation for the backend of this name.
    pub(super) fn read(name: &str, history: &History) -> Result<Self, BackendError> {
        let mut new = Vec::new();
        let mut position = None;
        for message in history.iter().rev() {
            if let Some(told) = Position::told(name, message) {
                position = Some(told.map_err(|error| {
                    BackendError::NotResumable(format!(
                        "what its last answer says of `{name}` can't be read ({error}); start a new conversation"
                    ))
                })?);
                break;
            }
            new.push(Arc::clone(message));
        }
        new.reverse();
        if new.last().is_none_or(|message| message.role == Role::Assistant) {
            return Err(BackendError::Invalid("nothing is new since its last answer".to_owned()));
        }
        Ok(Self { position, new })
    }
}

/// What a session has heard of the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// The prompts that it was given.
    pub(super) given: u64,
    /// The last of them whose answer, whole or broken off, became part of the conversation. What it heard after that was
    /// discarded.
    pub(super) kept: u64,
}

impl Heard {
    /// A session that is at this place.
    pub(super) fn up_to(prompts: u64) -> Self {
        Self { given: prompts, kept: prompts }
    }

    pub(super) fn keep(&mut self, prompts: u64) {
        self.kept = self.kept.max(prompts);
        self.given = self.given.max(prompts);
    }
}

/// What is known of the session that the conversation's last answer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is in use.
    Live(Heard),
    /// It was in use before the one that is.
    Parked(Heard),
    /// It was let go of, or is another process's.
    Retired(Heard),
}

/// How to get to where the conversation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The session in use is there. It has heard so many prompts more, which were discarded.
    Stay(u64),
    /// The session of before is there.
    Return(u64),
    Start,
    /// With what it has heard.
    Resume(Position, SessionId, Heard),
    Fork(SessionPosition),
}

/// The backend has gone on from where the conversation is.
pub(super) fn elsewhere() -> BackendError {
    BackendError::Diverged(
        "it goes on from an earlier place than the backend is at, and the backend can't fork; go on from its last answer, \
         if there is one, or start a new conversation"
            .to_owned(),
    )
}

/// The way to where `conversation` is. `live` is what the session in use has heard, whichever the conversation names.
pub(super) fn route(
    conversation: &Conversation,
    known: Known,
    live: Option<Heard>,
    can: Capabilities,
) -> Result<Route, BackendError> {
    let foreign = conversation.new.iter().filter(|message| message.role == Role::Assistant).count();
    if foreign > 0 && !(can.history && conversation.position.is_none()) {
        return Err(BackendError::Diverged(format!(
            "{foreign} answers in it are not the backend's own, and it can't be told of them; start a new conversation"
        )));
    }
    let Some(position) = &conversation.position else {
        return Ok(match live {
            // A session that was told of others' answers once is not told again.
            Some(heard) if heard.kept == 0 && (foreign == 0 || heard.given == 0) => Route::Stay(heard.given),
            _ => Route::Start,
        });
    };
    let (Known::Live(heard) | Known::Parked(heard) | Known::Retired(heard)) = known;
    if heard.kept > position.prompts {
        return match position.place() {
            Some(place) if can.fork => Ok(Route::Fork(place)),
            _ => Err(elsewhere()),
        };
    }
    let more = heard.given.saturating_sub(position.prompts);
    match (known, &position.session) {
        (Known::Live(_), _) => Ok(Route::Stay(more)),
        (Known::Parked(_), _) => Ok(Route::Return(more)),
        (Known::Retired(mut heard), Some(id)) if can.resume => {
            heard.keep(position.prompts);
            Ok(Route::Resume(position.clone(), id.clone(), heard))
        }
        (Known::Retired(_), Some(_)) => Err(BackendError::NotResumable(
            "the session is gone and the backend can't resume one; start a new conversation".to_owned(),
        )),
        (Known::Retired(_), None) => Err(BackendError::NotResumable(
            "the session is gone and the backend gave it no id; start a new conversation".to_owned(),
        )),
    }
}

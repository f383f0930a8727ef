//! Where a backend is in a conversation, as the conversation's answers tell, and how to get there.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{BackendError, Capabilities, SessionId};
use crate::message::{History, Message, Role};

/// A place in a session's conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Place {
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
}

impl Position {
    pub(super) fn place(&self) -> Option<Place> {
        let session = self.session.clone()?;
        Some(Place { session, prompts: self.prompts, checkpoint: self.checkpoint.clone() })
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
            let told = message.provider_data.get(name).filter(|_| message.role == Role::Assistant);
            if let Some(told) = told {
                position = Some(Position::deserialize(told).map_err(|error| {
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

/// The session in use, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen<'a> {
    pub(super) key: &'a str,
    /// The prompt of the last turn that it finished.
    pub(super) finished: u64,
}

/// How to get to where the conversation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The session in use is there.
    Stay,
    Start,
    Resume(Position, SessionId),
    Fork(Place),
}

/// The backend has gone on from where the conversation is.
pub(super) fn elsewhere() -> BackendError {
    BackendError::Diverged(
        "it goes on from an earlier place, and the backend can't fork; go on from its last answer, or start a new \
         conversation"
            .to_owned(),
    )
}

/// The way to where `conversation` is. `finished` has what is known of sessions that were in use before, by their keys.
pub(super) fn route(
    conversation: &Conversation,
    live: Option<Seen<'_>>,
    finished: &HashMap<String, u64>,
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
            Some(live) if live.finished == 0 => Route::Stay,
            _ => Route::Start,
        });
    };
    let known = match live {
        Some(live) if live.key == position.key => Some(live.finished),
        _ => finished.get(&position.key).copied(),
    };
    if known.is_some_and(|finished| finished > position.prompts) {
        return match position.place() {
            Some(place) if can.fork => Ok(Route::Fork(place)),
            _ => Err(elsewhere()),
        };
    }
    if live.is_some_and(|live| live.key == position.key) {
        return Ok(Route::Stay);
    }
    match &position.session {
        Some(id) if can.resume => Ok(Route::Resume(position.clone(), id.clone())),
        Some(_) => Err(BackendError::NotResumable(
            "the session is gone and the backend can't resume one; start a new conversation".to_owned(),
        )),
        None => Err(BackendError::NotResumable(
            "the session is gone and the backend gave it no id; start a new conversation".to_owned(),
        )),
    }
}

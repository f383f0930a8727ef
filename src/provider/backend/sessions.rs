//! The current and earlier sessions of one conversation at a backend, the positions in them that the conversation's
//! responses store, and the way to reach a position. This module makes no calls to the backend.
//!
//! Responses are the only place of this state, so a conversation that is loaded again needs nothing else. The position
//! is stored at the start of a response and again at its end, so that a response that is broken off has it too.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};
use tokio::{runtime::Handle, sync::watch};

use super::{BackendError, BackendSession, Capabilities, SessionId, SessionOptions};
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
pub(super) struct BackendPosition {
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

impl BackendPosition {
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
pub(super) struct BackendConversationView {
    /// The position at the backend's last response.
    pub(super) position: Option<BackendPosition>,
    /// The messages after the backend's last response.
    pub(super) new: Vec<Arc<Message>>,
}

impl BackendConversationView {
    /// Reads the conversation for the backend with this name.
    pub(super) fn read(name: &str, history: &History) -> Result<Self, BackendError> {
        let mut new = Vec::new();
        let mut position = None;
        for message in history.iter().rev() {
            if let Some(stored) = BackendPosition::stored_in(name, message) {
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
pub(super) struct BackendPromptCounts {
    /// The number of prompts that the session has received.
    pub(super) given: u64,
    /// The number of the last prompt whose response, complete or broken off, became part of the conversation. Prompts
    /// after this one were discarded.
    pub(super) kept: u64,
}

impl BackendPromptCounts {
    /// Creates the counts of a session that is at this position.
    pub(super) fn up_to(prompts: u64) -> Self {
        Self { given: prompts, kept: prompts }
    }

    pub(super) fn keep(&mut self, prompts: u64) {
        self.kept = self.kept.max(prompts);
        self.given = self.given.max(prompts);
    }
}

/// How the conversation's position can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BackendPositionRoute {
    /// Continue with the session in use. The number counts the prompts that this session has received after the
    /// conversation's position. These prompts were discarded from the conversation.
    Stay(u64),
    /// Return to the previous session. The number counts the prompts that this session has received after the
    /// conversation's position. These prompts were discarded from the conversation.
    Return(u64),
    Start,
    /// Resume the session with this id at this position. The counts are those of the prompts that the session has
    /// received.
    Resume(BackendPosition, SessionId, BackendPromptCounts),
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

/// The sessions of a conversation.
#[derive(Default)]
pub(super) struct ConversationBackendSessions {
    /// The session in use.
    live: Option<LiveBackendSession>,
    /// The previous session. It is kept until the conversation has a response of the session in use. If the
    /// conversation leaves the branch of the session in use before that, the conversation returns to the previous
    /// session.
    parked: Option<LiveBackendSession>,
    /// The terminated sessions that have a response in the conversation, by key.
    retired: HashMap<String, TerminatedBackendSession>,
    closed: bool,
}

/// A session that is running.
pub(super) struct LiveBackendSession {
    pub(super) session: Arc<dyn BackendSession>,
    pub(super) key: String,
    pub(super) heard: BackendPromptCounts,
    /// Whether the conversation has no response of this session yet.
    pub(super) fresh: bool,
    pub(super) options: SessionOptions,
    /// The runtime on which the session was started and will be terminated.
    pub(super) runtime: Handle,
}

struct TerminatedBackendSession {
    heard: BackendPromptCounts,
    /// A channel that closes when the session has ended.
    ended: watch::Receiver<()>,
}

impl LiveBackendSession {
    fn is(&self, session: &Arc<dyn BackendSession>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

fn closed() -> BackendError {
    BackendError::Ended("the conversation was closed".to_owned())
}

impl ConversationBackendSessions {
    /// Returns how to reach the conversation's position.
    pub(super) fn route(
        &self,
        conversation: &BackendConversationView,
        can: Capabilities,
    ) -> Result<BackendPositionRoute, BackendError> {
        let foreign = conversation.new.iter().filter(|message| message.role == Role::Assistant).count();
        if foreign > 0 && !(can.history && conversation.position.is_none()) {
            return Err(BackendError::Diverged(format!(
                "{foreign} of its responses are not from the backend, which can't be given them; start a new conversation"
            )));
        }
        let Some(position) = &conversation.position else {
            return Ok(match self.live.as_ref().map(|live| live.heard) {
                // Without a stored position, the session in use can continue only if none of its responses was kept. In
                // addition, it must not have received the responses of other models before, because they would be sent
                // again.
                Some(heard) if heard.kept == 0 && (foreign == 0 || heard.given == 0) => {
                    BackendPositionRoute::Stay(heard.given)
                }
                _ => BackendPositionRoute::Start,
            });
        };
        let heard_by = |live: &Option<LiveBackendSession>| {
            live.as_ref().filter(|live| live.key == position.key).map(|live| live.heard)
        };
        let (live, parked) = (heard_by(&self.live), heard_by(&self.parked));
        let retired = || self.retired.get(&position.key).map(|retired| retired.heard);
        let mut heard = live.or(parked).or_else(retired).unwrap_or_default();
        if heard.kept > position.prompts {
            return match position.place() {
                Some(place) if can.fork => Ok(BackendPositionRoute::Fork(place)),
                _ => Err(elsewhere()),
            };
        }
        let more = heard.given.saturating_sub(position.prompts);
        match &position.session {
            _ if live.is_some() => Ok(BackendPositionRoute::Stay(more)),
            _ if parked.is_some() => Ok(BackendPositionRoute::Return(more)),
            Some(id) if can.resume => {
                heard.keep(position.prompts);
                Ok(BackendPositionRoute::Resume(position.clone(), id.clone(), heard))
            }
            Some(_) => Err(BackendError::NotResumable(
                "the session is gone and the backend can't resume one; start a new conversation".to_owned(),
            )),
            None => Err(BackendError::NotResumable(
                "the session is gone and the backend gave it no id; start a new conversation".to_owned(),
            )),
        }
    }

    /// Makes a session the one in use, unless the conversation is closed. Returns the session to terminate, which may
    /// be the new session itself.
    pub(super) fn activate(
        &mut self,
        live: LiveBackendSession,
    ) -> (Option<LiveBackendSession>, Result<(), BackendError>) {
        if self.closed {
            return (Some(live), Err(closed()));
        }
        let left = match self.live.replace(live) {
            Some(before) if !before.fresh => self.parked.replace(before),
            before => before,
        };
        (left, Ok(()))
    }

    /// Switches back to the previous session. Returns the session to terminate.
    pub(super) fn reactivate_parked(&mut self) -> Option<LiveBackendSession> {
        let parked = self.parked.take()?;
        self.live.replace(parked)
    }

    /// Counts a prompt. Returns the session that gets the prompt, with its options.
    pub(super) fn begin(&mut self) -> Result<(Arc<dyn BackendSession>, SessionOptions), BackendError> {
        let live = self.live.as_mut().ok_or_else(closed)?;
        live.heard.given = live.heard.given.saturating_add(1);
        Ok((Arc::clone(&live.session), live.options.clone()))
    }

    /// Undoes the count of a prompt that was not accepted.
    pub(super) fn uncount_prompt(&mut self, session: &Arc<dyn BackendSession>) {
        if let Some(live) = self.live.as_mut().filter(|live| live.is(session)) {
            live.heard.given = live.heard.given.saturating_sub(1);
        }
    }

    /// Returns the session's current position, which is stored in a response.
    pub(super) fn position(
        &self,
        of: &Arc<dyn BackendSession>,
        session: Option<SessionId>,
        checkpoint: Option<String>,
    ) -> Result<BackendPosition, BackendError> {
        let live = self.live.as_ref().filter(|live| live.is(of)).ok_or_else(closed)?;
        let (key, prompts) = (live.key.clone(), live.heard.given);
        Ok(BackendPosition { key, session, prompts, checkpoint, unfinished: false })
    }

    /// Records that the response with this position is now part of the conversation. If this makes the previous session
    /// unnecessary, returns that session.
    pub(super) fn keep(&mut self, position: &BackendPosition) -> Option<LiveBackendSession> {
        let its_own = |live: &&mut LiveBackendSession| live.key == position.key;
        if let Some(live) = self.live.as_mut().filter(its_own) {
            live.heard.keep(position.prompts);
            live.fresh = false;
            return self.parked.take();
        }
        if let Some(parked) = self.parked.as_mut().filter(its_own) {
            parked.heard.keep(position.prompts);
        } else if let Some(retired) = self.retired.get_mut(&position.key) {
            retired.heard.keep(position.prompts);
        }
        None
    }

    /// Removes and returns a session that has become unusable, if it is the session in use.
    pub(super) fn lose(&mut self, session: &Arc<dyn BackendSession>) -> Option<LiveBackendSession> {
        self.live.take_if(|live| live.is(session))
    }

    /// Records a session that has a response in the conversation and is being terminated.
    pub(super) fn retired(&mut self, key: String, heard: BackendPromptCounts, ended: watch::Receiver<()>) {
        self.retired.insert(key, TerminatedBackendSession { heard, ended });
    }

    /// Returns a channel that closes when the terminated session with this key has ended.
    pub(super) fn end_of(&self, key: &str) -> Option<watch::Receiver<()>> {
        self.retired.get(key).map(|retired| retired.ended.clone())
    }

    /// Refuses all further sessions.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Removes and returns all running sessions.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = LiveBackendSession> + use<> {
        self.live.take().into_iter().chain(self.parked.take())
    }
}

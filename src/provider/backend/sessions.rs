//! The current and earlier sessions of one conversation at a backend. This module makes no calls to the backend.

use std::{collections::HashMap, sync::Arc};

use tokio::{runtime::Handle, sync::watch};

use super::{
    BackendError, BackendSession, Capabilities, SessionId, SessionOptions,
    position::{Conversation, KnownSession, Position, PromptCounts, Route, route},
};

/// The sessions of a conversation.
#[derive(Default)]
pub(super) struct Sessions {
    /// The session in use.
    live: Option<Live>,
    /// The previous session. It is kept until the conversation has a response of the session in use. If the
    /// conversation leaves the branch of the session in use before that, the conversation returns to the previous
    /// session.
    parked: Option<Live>,
    /// The terminated sessions that have a response in the conversation, by key.
    retired: HashMap<String, Retired>,
    closed: bool,
}

/// A session that is running.
pub(super) struct Live {
    pub(super) session: Arc<dyn BackendSession>,
    pub(super) key: String,
    pub(super) heard: PromptCounts,
    /// Whether the conversation has no response of this session yet.
    pub(super) fresh: bool,
    pub(super) options: SessionOptions,
    /// The runtime on which the session was started and will be terminated.
    pub(super) runtime: Handle,
}

struct Retired {
    heard: PromptCounts,
    /// A channel that closes when the session has ended.
    ended: watch::Receiver<()>,
}

impl Live {
    fn is(&self, session: &Arc<dyn BackendSession>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

fn closed() -> BackendError {
    BackendError::Ended("the conversation was closed".to_owned())
}

impl Sessions {
    /// Returns how to reach the conversation's position.
    pub(super) fn route(
        &self,
        conversation: &Conversation,
        can: Capabilities,
    ) -> Result<Route, BackendError> {
        let position = conversation.position.as_ref();
        let is_its_own = |live: &&Live| position.is_some_and(|position| position.key == live.key);
        let known = if let Some(live) = self.live.as_ref().filter(is_its_own) {
            KnownSession::Live(live.heard)
        } else if let Some(parked) = self.parked.as_ref().filter(is_its_own) {
            KnownSession::Parked(parked.heard)
        } else {
            let retired = position.and_then(|position| self.retired.get(&position.key));
            KnownSession::Retired(retired.map_or_else(PromptCounts::default, |retired| retired.heard))
        };
        route(conversation, known, self.live.as_ref().map(|live| live.heard), can)
    }

    /// Makes a session the one in use, unless the conversation is closed. Returns the session to terminate, which may
    /// be the new session itself.
    pub(super) fn activate(&mut self, live: Live) -> (Option<Live>, Result<(), BackendError>) {
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
    pub(super) fn reactivate_parked(&mut self) -> Option<Live> {
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
    ) -> Result<Position, BackendError> {
        let live = self.live.as_ref().filter(|live| live.is(of)).ok_or_else(closed)?;
        let (key, prompts) = (live.key.clone(), live.heard.given);
        Ok(Position { key, session, prompts, checkpoint, unfinished: false })
    }

    /// Records that the response with this position is now part of the conversation. If this makes the previous session
    /// unnecessary, returns that session.
    pub(super) fn keep(&mut self, position: &Position) -> Option<Live> {
        let its_own = |live: &&mut Live| live.key == position.key;
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
    pub(super) fn lose(&mut self, session: &Arc<dyn BackendSession>) -> Option<Live> {
        self.live.take_if(|live| live.is(session))
    }

    /// Records a session that has a response in the conversation and is being terminated.
    pub(super) fn retired(&mut self, key: String, heard: PromptCounts, ended: watch::Receiver<()>) {
        self.retired.insert(key, Retired { heard, ended });
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
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Live> + use<> {
        self.live.take().into_iter().chain(self.parked.take())
    }
}

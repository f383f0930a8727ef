//! Remembers the latest runs, so that a repeated request does not start a second run.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Mutex,
};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::AgUiInput;
use crate::{store::ConversationId, sync::lock, web::front::stop::RunToStop};

/// The number of runs that are remembered.
const KEPT: usize = 1024;

/// The latest runs, in the order of their requests.
#[derive(Debug, Default)]
pub(in crate::web) struct AgUiRecentRuns(Mutex<VecDeque<AgUiRecentRun>>);

#[derive(Debug)]
struct AgUiRecentRun {
    request: AgUiRequestKey,
    /// A hash of the run's id.
    id: u64,
    /// The run that the request has started or joined.
    run: Option<RunToStop>,
    /// Cancelled when the request was performed or was dropped.
    performed: CancellationToken,
}

#[derive(Debug, PartialEq, Eq)]
struct AgUiRequestKey {
    conversation: ConversationId,
    /// A hash of the run's id, of the answers to interrupts, and of a newest message that is a user's or has no answers
    /// beside it.
    hash: u64,
}

impl AgUiRecentRuns {
    /// If the same request is remembered, returns the token that is cancelled when it was performed.
    pub(super) fn find(&self, conversation: &ConversationId, input: &AgUiInput) -> Option<CancellationToken> {
        let key = key(conversation, input);
        lock(&self.0).iter().find(|run| run.request == key).map(|run| run.performed.clone())
    }

    /// Remembers a request. The request is being performed until the returned guard is dropped. Returns `None` if it is
    /// remembered already.
    pub(super) fn insert(&self, conversation: &ConversationId, input: &AgUiInput) -> Option<DropGuard> {
        let request = key(conversation, input);
        let mut runs = lock(&self.0);
        if runs.iter().any(|run| run.request == request) {
            return None;
        }
        if runs.len() == KEPT {
            runs.pop_front();
        }
        let performed = CancellationToken::new();
        let id = hash(&input.run_id);
        runs.push_back(AgUiRecentRun { request, id, run: None, performed: performed.clone() });
        Some(performed.drop_guard())
    }

    /// Records the run that a request has started or joined.
    pub(super) fn started(&self, conversation: &ConversationId, input: &AgUiInput, started: RunToStop) {
        let key = key(conversation, input);
        if let Some(run) = lock(&self.0).iter_mut().find(|run| run.request == key) {
            run.run = Some(started);
        }
    }

    /// Returns the newest run with this id, if it is remembered.
    pub(super) fn named(&self, conversation: &ConversationId, id: &str) -> Option<RunToStop> {
        let (id, runs) = (hash(id), lock(&self.0));
        let mut runs =
            runs.iter().rev().filter(|run| run.id == id && run.request.conversation == *conversation);
        runs.find_map(|run| run.run.clone())
    }

    /// Forgets a request that was refused.
    pub(super) fn remove(&self, conversation: &ConversationId, input: &AgUiInput) {
        let refused = key(conversation, input);
        lock(&self.0).retain(|run| run.request != refused);
    }
}

fn hash(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn key(conversation: &ConversationId, input: &AgUiInput) -> AgUiRequestKey {
    // A client chooses the id of the run, which can be long.
    let mut hasher = DefaultHasher::new();
    input.run_id.hash(&mut hasher);
    input.resume.hash(&mut hasher);
    let newest = input.messages.last();
    newest.filter(|newest| input.resume.is_none() || newest.role == "user").hash(&mut hasher);
    AgUiRequestKey { conversation: conversation.clone(), hash: hasher.finish() }
}

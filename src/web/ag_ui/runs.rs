//! Remembers the latest runs, so that a repeated request does not start a second run.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Mutex,
};

use super::AgUiInput;
use crate::{store::ConversationId, sync::lock};

/// The number of runs that are remembered.
const KEPT: usize = 1024;

/// The latest runs, in the order of their requests.
#[derive(Debug, Default)]
pub(in crate::web) struct AgUiRuns(Mutex<VecDeque<AgUiRecentRun>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AgUiRecentRun {
    conversation: ConversationId,
    /// A hash of the run's id and of the answers to interrupts. If the request has no answers, of its newest message.
    request: u64,
}

impl AgUiRuns {
    /// Returns whether the same request is remembered.
    pub(super) fn contains(&self, conversation: &ConversationId, input: &AgUiInput) -> bool {
        lock(&self.0).contains(&known(conversation, input))
    }

    /// Remembers a request that is about to be performed. Returns `false` if it is remembered already.
    pub(super) fn insert(&self, conversation: &ConversationId, input: &AgUiInput) -> bool {
        let known = known(conversation, input);
        let mut runs = lock(&self.0);
        if runs.contains(&known) {
            return false;
        }
        if runs.len() == KEPT {
            runs.pop_front();
        }
        runs.push_back(known);
        true
    }

    /// Forgets a request that was refused.
    pub(super) fn remove(&self, conversation: &ConversationId, input: &AgUiInput) {
        let refused = known(conversation, input);
        lock(&self.0).retain(|known| *known != refused);
    }
}

fn known(conversation: &ConversationId, input: &AgUiInput) -> AgUiRecentRun {
    // A client chooses the id of the run, which can be long.
    let mut hasher = DefaultHasher::new();
    input.run_id.hash(&mut hasher);
    match &input.resume {
        Some(answers) => answers.hash(&mut hasher),
        None => input.messages.last().hash(&mut hasher),
    }
    AgUiRecentRun { conversation: conversation.clone(), request: hasher.finish() }
}

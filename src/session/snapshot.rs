use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{SessionEvent, StoreReport};
use crate::{
    agent::Snapshot,
    message::Message,
    store::ConversationId,
    subscription::{EventId, Numbered},
    tree::{NodeId, Tree, TreeError},
};

/// All there is to know of a session at one moment.
///
/// The path of the tree is the agent's committed history; what the turn in flight adds is in the agent's snapshot. A
/// snapshot and the events after it give the truth at any later moment: [`apply`](SessionSnapshot::apply) does it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// The last event that is part of it.
    pub last: EventId,
    /// The conversation.
    pub id: ConversationId,
    /// What people call it.
    pub title: Option<Arc<str>>,
    /// All messages, on all branches.
    pub tree: Tree,
    /// The agent. Its `last` names the agent's own events, which have numbers of their own.
    pub agent: Snapshot,
    /// The nodes that are not in the store yet.
    pub unsaved: Vec<NodeId>,
    /// What became of the last write, if it failed: saving fails since, or is over.
    pub store: Option<StoreReport>,
}

impl SessionSnapshot {
    /// All messages of the path and of the turn in flight, each once. The answer that is streaming in is in the
    /// agent's `partial`.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.tree.history().iter().chain(&self.agent.pending)
    }

    /// Takes the next event in, so that the snapshot is the truth after it. What fires no event in an
    /// [agent](Snapshot::apply) shows in the next snapshot here too.
    ///
    /// # Errors
    ///
    /// The event is not of this session, or not the next one.
    pub fn apply(&mut self, event: &Numbered<SessionEvent>) -> Result<(), TreeError> {
        self.take_in(&event.event)?;
        self.last = event.id;
        Ok(())
    }

    /// Takes an event in without its number.
    pub(super) fn take_in(&mut self, event: &SessionEvent) -> Result<(), TreeError> {
        match event {
            SessionEvent::Agent(event) => {
                self.agent.take_in(event);
                self.agent.last.number += 1;
            }
            SessionEvent::Tree(changes) => {
                self.tree.apply(changes)?;
                self.unsaved.extend(changes.nodes.iter().map(crate::tree::Node::id));
            }
            SessionEvent::Title { title } => self.title.clone_from(title),
            SessionEvent::Store(StoreReport::Saved { through, .. }) => {
                // What was under way at the loss may have been in time: the loss stays the last word.
                if !matches!(self.store, Some(StoreReport::Lost { .. })) {
                    self.store = None;
                }
                self.unsaved.retain(|node| through.is_none_or(|through| *node > through));
            }
            SessionEvent::Store(report) => self.store = Some(report.clone()),
            // The agent's state in the snapshot has it.
            SessionEvent::ModelFallback { .. } => {}
        }
        Ok(())
    }
}

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::{SessionEvent, StoreReport};
use crate::{
    agent::{Event, Snapshot, Status},
    message::{Message, Usage},
    run::{Failure, RunOutcome},
    store::{ConversationId, Labels},
    subscription::{EventId, Numbered, Update},
    tree::{Node, NodeId, Tree, TreeError},
};

/// The complete state of a session at one moment.
///
/// The path of the tree is the agent's committed history. The messages of the turn in flight are in the agent's
/// snapshot. To get the state at a later moment, [`apply`](SessionSnapshot::apply) the events that follow the snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The complete state of a session at one moment. The path of the tree is the agent's committed history. \
                       The messages of the turn in flight are in the agent's snapshot."
    )
)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// The id of the last event that the snapshot includes.
    pub last: EventId,
    /// The conversation's id.
    pub id: ConversationId,
    /// The conversation's title.
    pub title: Option<Arc<str>>,
    /// The conversation's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The usage of the whole conversation, including the turn in flight, discarded turns, erased messages and titles.
    #[serde(default)]
    pub used: Usage,
    /// The tree of the conversation, with all messages on all branches. In a [tail](super::Session::subscribe_tail), all
    /// nodes except the last ones of the path and the unanswered prompts below them are
    /// [outlines](crate::tree::Node::is_outline).
    pub tree: Tree,
    /// The first node of the path that is not an outline, if an outline is before it. The messages of the path before
    /// this node are not part of the snapshot. `None` if the whole path is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<NodeId>,
    /// The agent's snapshot. Its `last` is the id of an event of the agent. The agent's events and the session's events
    /// are numbered separately.
    pub agent: Snapshot,
    /// The ids of the nodes that are not in the store yet.
    pub unsaved: Vec<NodeId>,
    /// The report of the last write, if the write failed. The session either repeats the write until it succeeds, or
    /// has stopped saving.
    pub store: Option<StoreReport>,
}

impl SessionSnapshot {
    /// Returns all messages of the path and of the turn in flight, each message once. A response that is still
    /// streaming is not among them: see the agent's `partial`.
    pub fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.tree.history().iter().chain(&self.agent.pending)
    }

    /// Returns the newest unanswered prompt below the head, and why its run has failed if this was the last run. Returns
    /// `None` during a run, which may be about this prompt.
    ///
    /// If a run fails and keeps nothing, its prompt is in the tree, but not on the path. A run
    /// [`again`](super::Session::again) gives it an answer.
    pub fn unanswered(&self) -> Option<(&Node, Option<&Failure>)> {
        // A compaction that was made meanwhile has the same parent as the prompt.
        let compactions = self.tree.iter().rev().take_while(|node| node.message().compaction.is_some());
        let last = self.tree.last_message().map(Node::id);
        let mut places = compactions.map(|node| Some(node.id())).chain([last]);
        let node = places.find_map(|place| self.tree.unanswered(place).last())?;
        let last = self.agent.last_run.as_deref().filter(|end| end.unanswered.contains(node.message()));
        let failure = last.and_then(|end| match &end.outcome {
            RunOutcome::Failed { failure } => Some(failure),
            _ => None,
        });
        (self.agent.status == Status::Idle).then_some((node, failure))
    }

    /// Applies the next event, so that the snapshot shows the state after it.
    ///
    /// Some changes of an agent emit no event, as described for the [agent's snapshot](Snapshot::apply). Such changes
    /// appear only in the next snapshot.
    ///
    /// # Errors
    ///
    /// Fails if the event belongs to another session, or if it is not the next event.
    pub fn apply(&mut self, event: &Numbered<SessionEvent>) -> Result<(), TreeError> {
        self.take_in(&event.event)?;
        self.last = event.id;
        Ok(())
    }

    /// Applies the next item of a subscription: an event, or a snapshot that replaces this one.
    ///
    /// Items of an earlier life of the conversation are ignored, because they come from a former owner.
    ///
    /// # Errors
    ///
    /// As for [`apply`](Self::apply).
    pub fn take(&mut self, update: &Update<Self, SessionEvent>) -> Result<(), TreeError> {
        let snapshot = match update {
            Update::Event(event) if event.id.life < self.last.life => return Ok(()),
            Update::Event(event) => return self.apply(event),
            Update::Resync(snapshot) => Some(snapshot),
            Update::Closed(end) => end.snapshot.as_ref(),
        };
        if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.last.life >= self.last.life) {
            self.clone_from(snapshot);
        }
        Ok(())
    }

    /// Applies an event without changing the id of the last event.
    pub(super) fn take_in(&mut self, event: &SessionEvent) -> Result<(), TreeError> {
        match event {
            SessionEvent::Agent(event) => {
                match &**event {
                    Event::Step(response) => self.used += response.usage,
                    Event::Usage(row) if row.conversation.is_none() => self.used += row.usage,
                    _ => {}
                }
                self.agent.take_in(event);
                self.agent.last.number += 1;
            }
            SessionEvent::Tree(changes) => {
                self.tree.apply(changes)?;
                self.unsaved.extend(changes.nodes.iter().map(Node::id));
            }
            SessionEvent::Title { title } => self.title.clone_from(title),
            SessionEvent::Labels { labels } => self.labels.clone_from(labels),
            SessionEvent::Erased(erased) => {
                self.tree.apply_erased(erased)?;
                // The end of the last run may contain an erased message, so it is removed.
                self.agent.last_run = None;
                for known in &mut self.agent.prompts {
                    known.erase_texts();
                }
            }
            SessionEvent::Usage(row) => self.used += row.usage,
            SessionEvent::Store(StoreReport::Saved { through, .. }) => {
                // The session may have stopped saving while this write was in flight. The write succeeded nevertheless,
                // but the report that saving has stopped must remain.
                if !matches!(self.store, Some(StoreReport::Lost { .. })) {
                    self.store = None;
                }
                self.unsaved.retain(|node| through.is_none_or(|through| *node > through));
            }
            SessionEvent::Store(report) => self.store = Some(report.clone()),
            // The snapshot already contains the saved name, in the agent's state.
            SessionEvent::ModelFallback { .. } => {}
        }
        Ok(())
    }
}

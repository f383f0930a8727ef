//! The updates of a reader that wants only the last messages of the path.
//!
//! The reader's snapshot is the session's snapshot, cut: only the last messages of the path, up to the reader's limit,
//! and the unanswered prompts below them are present. All other nodes are outlines. The events that follow are the events
//! of the session, so the tail grows with each turn. The filter remembers the head and the length of the tail. If an event
//! does not extend the tail, the reader needs messages that it does not have, so it gets a new tail instead, as a
//! [`Resync`](Update::Resync).
//!
//! | what happens | what the reader gets |
//! | --- | --- |
//! | a turn is committed at the head, by a prompt or a continuation | the events |
//! | a turn is cancelled or fails, and nothing is kept | the events; with a branch, also a resync at its removal |
//! | another answer, an edit, a branch | a resync when the path moves to the base; a resync at the commit if the branch begins with a node that exists; otherwise the events |
//! | navigate | a resync, also if the path only becomes longer |
//! | erasure of any node | a resync. It contains no erased message |
//! | title, labels, settings, decisions, reports of the store | the events. The history of an agent's state is cut |
//! | the reader lags | a resync |
//! | the reader resumes after an event, in this life or in the next one | the missed events. The head is unknown, so the first event that changes the tree or the agent's state becomes a resync |
//! | the session ends | the last snapshot, cut |
//!
//! If the path is shorter than the limit, the tail is the whole path. The messages of a turn in flight are in the agent's
//! snapshot and do not count. Each reader has its own filter, so readers with different limits share the events. Apart
//! from a resync, the cost of an event depends on the tail, and not on the length of the path.

use std::sync::Arc;

use super::{SessionEvent, SessionSnapshot};
use crate::{
    agent::{Event, Snapshot, StateView},
    message::History,
    subscription::{End, Numbered, Update},
    tree::{Changes, Node, NodeId},
};

/// The filter of a reader.
pub(super) struct LastMessagesFilter {
    limit: usize,
    /// The place of the reader. `None` if it is unknown, because the reader has resumed after an event.
    place: Option<KnownPathEnd>,
}

/// The end of the path as the reader knows it.
struct KnownPathEnd {
    head: Option<NodeId>,
    len: usize,
}

type TailedSessionUpdate = Update<SessionSnapshot, SessionEvent>;

impl LastMessagesFilter {
    /// Returns a filter for tails of up to `limit` messages.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), place: None }
    }

    /// Returns the update for the reader, or `None` if the reader needs a new tail in place of it.
    pub(super) fn seen(&mut self, update: TailedSessionUpdate) -> Option<TailedSessionUpdate> {
        Some(match update {
            Update::Event(Numbered { id, event }) => Update::Event(Numbered::new(id, self.event(event)?)),
            Update::Resync(snapshot) => Update::Resync(self.snapshot(&snapshot)),
            Update::Closed(End { reason, snapshot }) => {
                Update::Closed(End { reason, snapshot: snapshot.map(|snapshot| self.snapshot(&snapshot)) })
            }
        })
    }

    fn event(&mut self, event: Arc<SessionEvent>) -> Option<Arc<SessionEvent>> {
        match &*event {
            SessionEvent::Erased(_) => None,
            SessionEvent::Tree(changes) => self.place.as_mut()?.extend(changes).then_some(event),
            SessionEvent::Agent(agent) => match &**agent {
                Event::State(state) => {
                    let state = Event::State(Arc::new(cut(state, self.place.as_ref()?.len)));
                    Some(Arc::new(SessionEvent::Agent(Arc::new(state))))
                }
                _ => Some(event),
            },
            _ => Some(event),
        }
    }

    fn snapshot(&mut self, snapshot: &SessionSnapshot) -> Arc<SessionSnapshot> {
        let tree = snapshot.tree.tail(self.limit);
        let len = tree.history().len();
        self.place = Some(KnownPathEnd { head: tree.head(), len });
        let from = tree.iter().next().filter(|first| first.parent().is_some()).map(Node::id);
        let agent = Snapshot { state: cut(&snapshot.agent.state, len), ..snapshot.agent.clone() };
        Arc::new(SessionSnapshot { tree, from, agent, ..snapshot.clone() })
    }
}

impl KnownPathEnd {
    /// Follows the changes, and returns whether they only add nodes below the head.
    fn extend(&mut self, changes: &Changes) -> bool {
        if changes.head == self.head {
            // The prompts of a run that has failed do not become part of the path.
            return changes.nodes.iter().all(|node| node.parent() == self.head);
        }
        for node in &changes.nodes {
            if node.parent() != self.head {
                return false;
            }
            self.head = Some(node.id());
            self.len += 1;
        }
        changes.head == self.head
    }
}

/// Returns the state with the last `len` messages of its history.
fn cut(state: &StateView, len: usize) -> StateView {
    let skipped = state.history.len().saturating_sub(len);
    let history: History = state.history.iter().skip(skipped).cloned().collect();
    StateView { history, ..state.clone() }
}

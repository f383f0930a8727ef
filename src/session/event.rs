use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    agent::Event,
    message::Role,
    provider::StopReason,
    store::Version,
    tree::{Changes, NodeId},
};

/// What happens in a session: all that happens in its agent, and what the session adds.
///
/// The order: when a turn is committed, the agent's `Turn`, then `Tree`; when a run that began a branch ends before
/// that, the agent's `Cancelled` or `Error`, then `Tree`, then the agent's `State`; when the path moves, `Tree`, then the
/// agent's `State`. A `Store` event follows what it tells of, and comes when the write is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionEvent {
    /// An event of the agent.
    Agent(Arc<Event>),
    /// The tree has grown, or the path has moved. [`Tree::apply`](crate::tree::Tree::apply) takes it in.
    Tree(Arc<Changes>),
    /// The title has changed.
    Title {
        /// To this.
        title: Option<Arc<str>>,
    },
    /// What became of a write to the store.
    Store(StoreReport),
    /// The saved model's name could not be resolved when the conversation was loaded, and the model given by the
    /// application is used in its place. The first subscriber gets this right after its snapshot; every snapshot has it in
    /// [`StateView::fallback_for`](crate::agent::StateView::fallback_for). The saved name stays in the store until another
    /// model is chosen.
    ModelFallback {
        /// The saved model's name.
        saved: Arc<str>,
        /// The name of the model in use.
        fallback: Arc<str>,
    },
}

/// What became of a write to the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreReport {
    /// It is there to stay. Turns and moves that came while the store was slow are written together, and told once.
    Saved {
        /// What was written.
        what: SavedPart,
        /// The version of the conversation with it.
        version: Version,
        /// The last of the nodes that were written, if any were: it and all before it are in the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<NodeId>,
    },
    /// It failed. It is kept, and repeated before anything newer is written.
    Failed {
        /// What was to be written.
        what: SavedPart,
        /// Why, with the causes.
        error: String,
        /// When it is repeated, unless something gives reason to do so before.
        retry_in: Duration,
    },
    /// Nothing more is written. Another writer has changed more than the title, or has removed the conversation; or the store
    /// can never accept the next write ([`StoreError::Unstorable`](crate::store::StoreError::Unstorable)). In the latter case
    /// all turns before that write are in the store; a change of settings or title that was to be written with them may not
    /// be. The session ends, and its last snapshot has the unsaved messages. A write
    /// that was under way may still be reported as saved.
    Lost {
        /// What the store said, with the causes.
        error: String,
    },
}

/// What a write was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SavedPart {
    /// Messages, or the path, and the state if it had changed.
    Tree,
    /// Model, system prompt, options, limits or title.
    State,
}

impl StoreReport {
    /// What went wrong, if something did.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Saved { .. } => None,
            Self::Failed { error, .. } | Self::Lost { error } => Some(error),
        }
    }
}

impl SessionEvent {
    /// The agent's event, if it is one.
    pub fn agent(&self) -> Option<&Event> {
        match self {
            Self::Agent(event) => Some(event),
            _ => None,
        }
    }

    /// Approximate size in bytes, for bounding what is buffered.
    pub(super) fn weight(&self) -> usize {
        32 + match self {
            Self::Agent(event) => event.weight(),
            Self::Tree(changes) => {
                changes.nodes.iter().map(|node| 64 + node.message().weight()).sum::<usize>()
                    + changes.cursors.len() * 16
            }
            Self::Title { title } => title.as_ref().map_or(0, |title| title.len()),
            Self::Store(report) => report.error().map_or(0, str::len),
            Self::ModelFallback { saved, fallback } => saved.len() + fallback.len(),
        }
    }
}

/// Returns whether tools or callbacks run on the model's last answer after this event; `None` if the event changes nothing
/// about it.
pub(super) fn is_between_requests(event: &Event) -> Option<bool> {
    match event {
        // A paused answer is sent back at once.
        Event::Step(response) => Some(response.stop_reason != StopReason::Pause),
        Event::Message { message, .. } if message.role == Role::User => Some(false),
        Event::Turn(_) | Event::Cancelled { .. } | Event::Error { .. } | Event::Retry { .. } => Some(false),
        _ => None,
    }
}

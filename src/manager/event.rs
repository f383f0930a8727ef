use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    agent::Status,
    store::{ConversationId, Summary},
    subscription::{EndReason, EventId, Numbered},
};

/// What a managed session is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activity {
    /// Nothing.
    #[default]
    Idle,
    /// A run is on, and waits for its turn: as many are at work as may be.
    Queued,
    /// A run is on.
    Busy,
    /// A tool use waits for a decision.
    Paused,
}

impl Activity {
    pub(super) fn of(status: Status, is_queued: bool) -> Self {
        match status {
            Status::Idle => Self::Idle,
            Status::Paused => Self::Paused,
            Status::Busy if is_queued => Self::Queued,
            Status::Busy => Self::Busy,
        }
    }
}

/// A session that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OpenSession {
    /// The conversation.
    pub id: ConversationId,
    /// Its title.
    pub title: Option<Arc<str>>,
    /// What it is doing.
    pub activity: Activity,
}

/// A conversation in the store, open or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Listed {
    /// What the store says. The title is that of the open session, if it is another by now.
    pub summary: Summary,
    /// Whether it is open.
    pub presence: Presence,
}

/// Whether a conversation is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Presence {
    /// It is in the store only.
    Stored,
    /// It waits to be opened: as many are open as may be.
    Waiting,
    /// Another process has it open, or another manager: the [summary](Summary::owner) says who.
    Elsewhere,
    /// It is open.
    Open(Activity),
}

/// What happens among the sessions of a manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ManagerEvent {
    /// A conversation is to be opened, and waits: as many are open as may be.
    Waiting {
        /// Which.
        id: ConversationId,
    },
    /// It no longer waits, and is not open: opening it failed, or was given up.
    GivenUp {
        /// Which.
        id: ConversationId,
    },
    /// A session is open. `Closed` follows, once.
    Opened {
        /// What there is to know of it.
        session: OpenSession,
    },
    /// A session does something else now.
    Status {
        /// Which.
        id: ConversationId,
        /// What.
        activity: Activity,
    },
    /// A conversation has another title, open or stored.
    Title {
        /// Which.
        id: ConversationId,
        /// The title now.
        title: Option<Arc<str>>,
    },
    /// A session is closed; the conversation stays in the store.
    Closed {
        /// Which.
        id: ConversationId,
        /// Why.
        reason: EndReason,
    },
    /// A conversation was removed from the store.
    Deleted {
        /// Which.
        id: ConversationId,
    },
}

impl ManagerEvent {
    /// Approximate size in bytes.
    pub(super) fn weight(&self) -> usize {
        64 + match self {
            Self::Opened { session: OpenSession { title, .. } } | Self::Title { title, .. } => {
                title.as_ref().map_or(0, |title| title.len())
            }
            _ => 0,
        }
    }
}

/// What is open at one moment. With the events after it, it is the truth at any later one:
/// [`apply`](ManagerSnapshot::apply) does it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ManagerSnapshot {
    /// The last event that is part of it.
    pub last: EventId,
    /// The open sessions, in the order in which they were opened.
    pub open: Vec<OpenSession>,
    /// The conversations that wait to be opened, in the order in which they will be.
    pub waiting: Vec<ConversationId>,
}

impl ManagerSnapshot {
    /// Takes the next event in.
    pub fn apply(&mut self, event: &Numbered<ManagerEvent>) {
        self.last = event.id;
        match &*event.event {
            ManagerEvent::Waiting { id } => self.waiting.push(id.clone()),
            ManagerEvent::GivenUp { id } => self.waiting.retain(|waiting| waiting != id),
            ManagerEvent::Opened { session } => {
                self.waiting.retain(|waiting| *waiting != session.id);
                self.open.push(session.clone());
            }
            ManagerEvent::Status { id, activity } => {
                if let Some(session) = self.session(id) {
                    session.activity = *activity;
                }
            }
            ManagerEvent::Title { id, title } => {
                if let Some(session) = self.session(id) {
                    session.title.clone_from(title);
                }
            }
            ManagerEvent::Closed { id, .. } => self.open.retain(|session| session.id != *id),
            ManagerEvent::Deleted { .. } => {}
        }
    }

    fn session(&mut self, id: &ConversationId) -> Option<&mut OpenSession> {
        self.open.iter_mut().find(|session| session.id == *id)
    }
}

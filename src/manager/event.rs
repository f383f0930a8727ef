use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tracing::Instrument;

use super::{
    ManagerShared,
    registry::SessionLifeKey,
    titles::{MAX_FAILURES, Titles, heuristic},
};
use crate::{
    agent::{Status, SubAgentSessionOpener},
    run::Error,
    session::{Session, SessionNotice, SessionWatcher},
    store::{ConversationId, Labels, Summary},
    subscription::{EndReason, EventId, Numbered},
    telemetry::{self, CallerSpan},
};

/// The activity of a managed session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activity {
    /// No run is active.
    #[default]
    Idle,
    /// A run is active, and it is waiting because the limit of requests in flight is reached.
    Queued,
    /// A run is active.
    Busy,
    /// A run is paused: a tool use waits for a decision, or a question of a running tool waits for an answer.
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

/// An open session in a [`ManagerSnapshot`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "An open session of a manager.")
)]
#[non_exhaustive]
pub struct OpenSession {
    /// The conversation's id.
    pub id: ConversationId,
    /// The session's title.
    pub title: Option<Arc<str>>,
    /// The session's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The session's activity.
    pub activity: Activity,
}

/// A conversation in the store, whether open or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Listed {
    /// The summary from the store. If the conversation is open, the title and the labels are those of the session.
    pub summary: Summary,
    /// Whether the conversation is open.
    pub presence: Presence,
}

/// Whether a conversation is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Presence {
    /// The conversation is stored and not open.
    Stored,
    /// The conversation is waiting to be opened, because the limit of open sessions is reached.
    Waiting,
    /// The conversation is open in another process or another manager. [`Summary::owner`] names that owner.
    Elsewhere,
    /// The conversation is open in this manager.
    Open(Activity),
}

/// A change to the sessions or the stored conversations of a manager.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::ScriptedProvider;
/// # let agent = omni_agent::agent::Agent::builder().model(ScriptedProvider::new([]).model());
/// use omni_agent::{manager::{Manager, ManagerEvent}, store::MemoryStore, subscription::Update};
///
/// let manager = Manager::builder(MemoryStore::new()).build();
/// let mut updates = manager.subscribe();
/// let opened = manager.create(agent).await?;
/// manager.close(opened.session.id()).await?;
/// while let Some(update) = updates.next().await {
///     match update {
///         Update::Event(numbered) => match &*numbered.event {
///             ManagerEvent::Opened { session } => println!("opened {}", session.id),
///             ManagerEvent::Closed { id, reason } => {
///                 println!("closed {id}: {reason}");
///                 break;
///             }
///             _ => {}
///         },
///         // This reader was too slow. The session may have been closed among the events that it missed.
///         Update::Resync(snapshot) if snapshot.open.is_empty() => break,
///         Update::Closed(end) => return Err(end.reason.into()),
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ManagerEvent {
    /// A conversation is waiting to be opened, because the limit of open sessions is reached.
    Waiting {
        /// The conversation's id.
        id: ConversationId,
    },
    /// A waiting conversation was not opened, because opening it failed or was given up.
    GivenUp {
        /// The conversation's id.
        id: ConversationId,
    },
    /// A session was opened. Exactly one `Closed` event for this session follows later.
    Opened {
        /// The session's state at the start.
        session: OpenSession,
    },
    /// The activity of a session changed.
    Status {
        /// The conversation's id.
        id: ConversationId,
        /// The new activity.
        activity: Activity,
    },
    /// The title of a conversation changed, whether the conversation is open or not.
    Title {
        /// The conversation's id.
        id: ConversationId,
        /// The new title.
        title: Option<Arc<str>>,
    },
    /// The labels of a conversation changed, whether the conversation is open or not.
    Labels {
        /// The conversation's id.
        id: ConversationId,
        /// The new labels.
        labels: Labels,
    },
    /// A session was closed. The conversation stays in the store.
    Closed {
        /// The conversation's id.
        id: ConversationId,
        /// The reason why the session ended.
        reason: EndReason,
    },
    /// A conversation was deleted from the store.
    Deleted {
        /// The conversation's id.
        id: ConversationId,
    },
    /// The recorded turn in flight of a conversation was not continued, because opening the conversation without a
    /// caller has failed. The manager tries again later.
    NotRecovered {
        /// The conversation's id.
        id: ConversationId,
        /// The reason, for a log.
        reason: Arc<str>,
    },
    /// The prompt of a schedule was refused for good. The schedule continues with its next time, if it has one. Also
    /// reported once if the times of the schedule can't be computed, for example because its time zone is unknown. Then
    /// the manager tries again later.
    NotFired {
        /// The conversation's id.
        id: ConversationId,
        /// The name of the schedule.
        name: Arc<str>,
        /// The reason, for a log.
        reason: Arc<str>,
    },
}

impl ManagerEvent {
    /// Returns the approximate size in bytes.
    pub(super) fn weight(&self) -> usize {
        64 + match self {
            Self::Opened { session: OpenSession { title, .. } } | Self::Title { title, .. } => {
                title.as_ref().map_or(0, |title| title.len())
            }
            Self::NotRecovered { reason, .. } => reason.len(),
            Self::NotFired { name, reason, .. } => name.len() + reason.len(),
            Self::Labels { labels, .. } => labels.iter().map(|(name, value)| name.len() + value.len()).sum(),
            _ => 0,
        }
    }
}

/// The open sessions and the waiting conversations at one moment. To get the state at a later moment,
/// [`apply`](ManagerSnapshot::apply) the events that follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "The open sessions and the waiting conversations at one moment.")
)]
#[non_exhaustive]
pub struct ManagerSnapshot {
    /// The id of the last event that the snapshot includes.
    pub last: EventId,
    /// The open sessions, in the order in which they were opened.
    pub open: Vec<OpenSession>,
    /// The conversations that are waiting to be opened, in the order in which they started to wait.
    pub waiting: Vec<ConversationId>,
}

impl ManagerSnapshot {
    /// Applies the next event, so that the snapshot shows the state after it.
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
            ManagerEvent::Labels { id, labels } => {
                if let Some(session) = self.session(id) {
                    session.labels.clone_from(labels);
                }
            }
            ManagerEvent::Closed { id, .. } => self.open.retain(|session| session.id != *id),
            // A reader who may no longer see a conversation hears that it is deleted, while it is open.
            ManagerEvent::Deleted { id } => {
                self.open.retain(|session| session.id != *id);
                self.waiting.retain(|waiting| waiting != id);
            }
            ManagerEvent::NotRecovered { .. } | ManagerEvent::NotFired { .. } => {}
        }
    }

    fn session(&mut self, id: &ConversationId) -> Option<&mut OpenSession> {
        self.open.iter_mut().find(|session| session.id == *id)
    }
}

// Processes the notifications that sessions send to their manager.

/// The watcher of one session.
pub(super) struct ManagerSessionWatcher {
    pub(super) inner: Weak<ManagerShared>,
    pub(super) id: ConversationId,
    pub(super) key: SessionLifeKey,
}

impl ManagerSessionWatcher {
    pub(super) fn new(inner: Weak<ManagerShared>, id: ConversationId, key: SessionLifeKey) -> Self {
        Self { inner, id, key }
    }
}

impl SessionWatcher for ManagerSessionWatcher {
    fn notice(&self, notice: SessionNotice<'_>) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        let (id, key) = (&self.id, self.key);
        match notice {
            SessionNotice::Status(status) => {
                let mut registry = inner.registry();
                registry.act(id, key, Some(status), None);
                if status != Status::Busy {
                    registry.changed(id, key);
                }
            }
            SessionNotice::Title(title) => inner.registry().titled(id, key, title.cloned()),
            SessionNotice::Erased => inner.registry().forget(),
            SessionNotice::Discarded(turn) => {
                let (id, mut session) = (id.clone(), inner.registry().get(id));
                let pruning = async move {
                    if session.is_none() {
                        inner.registered(&id).await;
                        session = inner.registry().get(&id);
                    }
                    if let Some(session) = session
                        && let Err(error) = inner.delete_children_of(turn, &session).await
                    {
                        tracing::warn!(%id, %error, "the sub-agents of a discarded turn remain");
                    }
                };
                tokio::spawn(pruning.in_current_span());
            }
            SessionNotice::Labels(labels) => {
                inner.registry().labelled(id, key, labels.clone());
                if labels.get(Labels::PARENT).is_none() && inner.store.traits().labels {
                    let root = id.clone();
                    let labelling = async move {
                        let labelled = tokio::select! {
                            biased;
                            labelled = inner.label_descendants(&root) => labelled,
                            () = inner.shutting.cancelled() => return,
                        };
                        if let Err(error) = labelled {
                            tracing::warn!(%root, %error, "sub-agents do not have the new labels of their root");
                        }
                    };
                    tokio::spawn(labelling.in_current_span());
                }
            }
            SessionNotice::Finished(_) => inner.make_title(id, key),
            SessionNotice::Left => {
                let mut registry = inner.registry();
                registry.touch(id);
                registry.changed(id, key);
            }
            SessionNotice::Settled => inner.registry().changed(id, key),
            SessionNotice::Ended(reason) => inner.registry().ended(id, key, reason),
        }
    }

    fn erased(self: Arc<Self>, session: Session) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            match self.inner.upgrade() {
                Some(inner) => inner.delete_erased(&session).await,
                None => Ok(()),
            }
        })
    }

    fn labels(self: Arc<Self>, own: Labels) -> BoxFuture<'static, Result<Labels, Error>> {
        Box::pin(async move {
            match self.inner.upgrade() {
                Some(inner) => inner.labels_at_creation(&self.id, own).await,
                None => Ok(own),
            }
        })
    }

    fn sub_agents(self: Arc<Self>) -> Option<Arc<dyn SubAgentSessionOpener>> {
        self.inner.upgrade().filter(|inner| inner.store.traits().labels)?;
        Some(self)
    }
}

impl ManagerShared {
    /// Starts to generate a title for an untitled conversation, in a separate task.
    fn make_title(self: &Arc<Self>, id: &ConversationId, key: SessionLifeKey) {
        if self.titles.is_off() {
            return;
        }
        let Some(session) = self.registry().begin_title(id, key) else {
            return;
        };
        let titling = TitleGenerationGuard { inner: Arc::clone(self), id: id.clone(), key };
        // A session that is ending accepts no title, so none is generated.
        let Ok(guard) = session.keep() else {
            return;
        };
        let span = telemetry::title(&CallerSpan::current(), id.as_str());
        let generating = async move {
            let titling = titling;
            titling.inner.title(&session, key).await;
            drop(titling);
            // From here on, the session may sleep or be ended by its idle shutdown.
            drop(guard);
        };
        tokio::spawn(generating.instrument(span));
    }

    async fn title(&self, session: &Session, key: SessionLifeKey) {
        let Ok(tree) = session.tree().await else {
            return;
        };
        let made = self.titles.make(tree.history()).await;
        for row in made.usage {
            // A session that has ended can no longer record the usage, so an error is ignored.
            let _ = session.spent(row).await;
        }
        let mut title = made.title;
        if let Err(error) = &title {
            tracing::warn!(id = %session.id(), %error, "no title was generated");
            let is_model = matches!(self.titles, Titles::Model(_));
            if is_model && self.registry().title_failed(session.id(), key) >= MAX_FAILURES {
                title = Ok(heuristic(tree.history()));
            }
        }
        if let Ok(Some(title)) = title {
            // A session that has ended needs no title, so an error is ignored.
            let _ = session.suggest_title(&title, tree.head()).await;
        }
    }

    /// If a title is being generated for a turn that has already finished, waits for this title.
    pub(super) async fn titled(&self, session: &Session) {
        if self.titles.is_off() || self.registry().is_titled(session.id()) {
            return;
        }
        // The session answers this call after it has processed all events of its agent. By then, the session has
        // reported all finished turns to this watcher.
        if session.tree().await.is_err() {
            return;
        }
        let titling = self.registry().titling(session.id());
        if let Some(titling) = titling {
            titling.cancelled().await;
        }
    }
}

/// A guard that marks a title as being generated until the guard is dropped.
struct TitleGenerationGuard {
    inner: Arc<ManagerShared>,
    id: ConversationId,
    key: SessionLifeKey,
}

impl Drop for TitleGenerationGuard {
    fn drop(&mut self) {
        self.inner.registry().end_title(&self.id, self.key);
    }
}

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    agent::Event,
    message::{Role, UsageRow},
    provider::StopReason,
    store::{Labels, Version},
    tree::{Changes, Erased, NodeId},
};

/// A change in a session: an event of its agent, or a change to the tree, the title or the stored conversation.
///
/// Events are emitted in a fixed order:
///
/// - When a turn is committed, the agent's `Turn` event is emitted first, and then `Tree`. If the run has failed, this
///   event is the agent's `Error` event.
/// - When a run that started a branch ends without a committed turn, the agent's `Cancelled` or `Error` event is emitted
///   first, then `Tree`, and then the agent's `State` event.
/// - When a run fails and keeps nothing, `Tree` with its unanswered prompts follows the agent's `Error` event. The head
///   stays.
/// - When the path moves, `Tree` is emitted first, and then the agent's `State` event.
/// - When changes are written to the store, a `Store` event follows the events of these changes.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Hello!")]);
/// # let agent = omni_agent::agent::Agent::builder().model(provider.model());
/// use omni_agent::session::{Mode, Session, SessionEvent, StoreReport};
/// use omni_agent::{store::MemoryStore, subscription::Update};
///
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// let mut updates = session.subscribe(Mode::Controller).await?;
/// session.prompt("Hi").await?;
/// while let Some(update) = updates.next().await {
///     match update {
///         Update::Event(numbered) => match &*numbered.event {
///             SessionEvent::Tree(changes) => println!("new messages: {}", changes.nodes.len()),
///             SessionEvent::Store(StoreReport::Saved { version, .. }) => {
///                 println!("saved as version {version}");
///                 break;
///             }
///             SessionEvent::Store(report) => println!("not saved: {:?}", report.error()),
///             _ => {}
///         },
///         // This reader was too slow. Everything may have been saved among the events that it missed.
///         Update::Resync(snapshot) if snapshot.unsaved.is_empty() => break,
///         Update::Closed(end) => return Err(end.reason.into()),
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// As JSON, an event is an object with a `type` and the event's fields next to it. An event of the agent is contained
/// as a whole in the field `event`: `{"type": "agent", "event": {"type": "text_delta", …}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionEvent {
    /// An event of the agent.
    Agent(
        #[serde(with = "as_field")]
        #[cfg_attr(feature = "schema", schemars(with = "AgentEventJson<Event>"))]
        Arc<Event>,
    ),
    /// Nodes were added to the tree, or the path moved. [`Tree::apply`](crate::tree::Tree::apply) applies the changes.
    #[cfg_attr(
        feature = "schema",
        schemars(description = "Nodes were added to the tree, or the path moved.")
    )]
    Tree(Arc<Changes>),
    /// The title has changed.
    Title {
        /// The new title.
        title: Option<Arc<str>>,
    },
    /// The labels have changed.
    Labels {
        /// The new labels.
        labels: Labels,
    },
    /// Nodes were removed from the tree. [`Tree::apply_erased`](crate::tree::Tree::apply_erased) applies the change.
    #[cfg_attr(feature = "schema", schemars(description = "Nodes were removed from the tree."))]
    Erased(Arc<Erased>),
    /// A request that belongs to no turn was made, for example for a title.
    Usage(Arc<UsageRow>),
    /// A write to the store succeeded or failed.
    Store(StoreReport),
    /// The fallback model is in use, because the saved model's name could not be resolved when the conversation was
    /// opened.
    ///
    /// The application gave the fallback model when it opened the conversation. The first subscriber gets this event
    /// right after its snapshot. Every snapshot contains the saved name in
    /// [`StateView::fallback_for`](crate::agent::StateView::fallback_for). The saved name stays in the store until
    /// another model is chosen.
    ModelFallback {
        /// The saved model's name.
        saved: Arc<str>,
        /// The name of the model in use.
        fallback: Arc<str>,
    },
}

/// The JSON form of [`SessionEvent::Agent`]. The event of the agent is a field, because it has a `type` as well.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
struct AgentEventJson<E> {
    /// The event of the agent.
    event: E,
}

/// Serialises the event of an agent as a field.
mod as_field {
    use super::{AgentEventJson, Arc, Event};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(event: &Arc<Event>, serializer: S) -> Result<S::Ok, S::Error> {
        AgentEventJson { event }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Event>, D::Error> {
        AgentEventJson::deserialize(deserializer).map(|agent| agent.event)
    }
}

/// The outcome of a write to the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum StoreReport {
    /// The write succeeded, and its data is stored durably. Turns and moves that were made while the store was slow are
    /// written together and reported once.
    Saved {
        /// The kind of data that was written.
        what: SavedPart,
        /// The version of the conversation after the write.
        version: Version,
        /// The last node that was written, if the write contained nodes. This node and all earlier nodes are in the
        /// store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<NodeId>,
    },
    /// The write failed. It will be repeated before newer changes are written.
    Failed {
        /// The kind of data in the failed write.
        what: SavedPart,
        /// The store's error, with its causes.
        error: String,
        /// The time until the write is repeated. If the session ends or is flushed, the write is repeated earlier.
        retry_in: Duration,
    },
    /// The session can no longer save anything, and ends. Its last snapshot contains the unsaved messages.
    ///
    /// There are three possible causes: another process has become the owner of the conversation, another writer has
    /// deleted it or changed more than its title and labels, or the store can never accept the next write
    /// ([`StoreError::Unstorable`](crate::store::StoreError::Unstorable) or
    /// [`StoreError::Unsupported`](crate::store::StoreError::Unsupported)). In the third case, all turns before that
    /// write are in the store. If the write also contained a change of settings or of the title, that change may be
    /// missing. A write that was already in flight may still be reported as saved.
    #[cfg_attr(
        feature = "schema",
        schemars(
            description = "The session can no longer save anything, and ends. Its last snapshot contains the unsaved \
                           messages. Either another writer has deleted or changed the conversation, or the store can \
                           never accept the next write. A write that was already in flight may still be reported as \
                           saved."
        )
    )]
    Lost {
        /// The store's error, with its causes.
        error: String,
    },
}

/// The kind of data in a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SavedPart {
    /// The messages or the path, and the state if it changed.
    Tree,
    /// The state: model, system prompt, options, limits, title or labels.
    State,
    /// Data in addition to the tree and the state: rows of the usage ledger, the end of a run, or the turn in flight.
    Record,
}

impl StoreReport {
    /// Returns the store's error, if saving failed.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Saved { .. } => None,
            Self::Failed { error, .. } | Self::Lost { error } => Some(error),
        }
    }
}

impl SessionEvent {
    /// Returns the agent's event, if this is an event of the agent.
    pub fn agent(&self) -> Option<&Event> {
        match self {
            Self::Agent(event) => Some(event),
            _ => None,
        }
    }

    /// Returns the approximate size in bytes. The event buffer is limited by the sizes of its events.
    pub(super) fn weight(&self) -> usize {
        32 + match self {
            Self::Agent(event) => event.weight(),
            Self::Tree(changes) => {
                changes.nodes.iter().map(|node| 64 + node.message().weight()).sum::<usize>()
                    + changes.cursors.len() * 16
            }
            Self::Title { title } => title.as_ref().map_or(0, |title| title.len()),
            Self::Labels { labels } => labels.iter().map(|(name, value)| name.len() + value.len()).sum(),
            Self::Erased(erased) => erased.nodes.len() * 8,
            Self::Usage(row) => 128 + row.model.as_ref().map_or(0, String::len),
            Self::Store(report) => report.error().map_or(0, str::len),
            Self::ModelFallback { saved, fallback } => saved.len() + fallback.len(),
        }
    }
}

/// Returns whether tools or callbacks are processing the model's last response after this event. Returns `None` if the
/// event does not change this.
pub(super) fn is_between_requests(event: &Event) -> Option<bool> {
    match event {
        // If the provider has paused the response, the response is sent back at once, and no tools run.
        Event::Step(response) => Some(response.stop_reason != StopReason::Pause),
        Event::ToolStart { .. } => Some(true),
        Event::Message { message, .. } if message.role == Role::User => Some(false),
        Event::Turn { .. } | Event::Cancelled { .. } | Event::Error { .. } | Event::Retry { .. } => {
            Some(false)
        }
        _ => None,
    }
}

use std::{
    any::{Any, TypeId},
    fmt,
    sync::Arc,
};

use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::message::ToolUseId;

/// What a tool call knows of its circumstances. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ToolContext {
    tool_use_id: ToolUseId,
    idempotency_key: Arc<str>,
    cancellation: CancellationToken,
    progress: Option<mpsc::Sender<Progress>>,
    extensions: Extensions,
}

/// How far a tool call has come, in the tool's own terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Which call.
    pub tool_use_id: ToolUseId,
    /// What the tool reports.
    pub data: Value,
}

impl ToolContext {
    /// A context for a call outside an agent: never cancelled, with the tool use's id as its key.
    pub fn detached(tool_use_id: impl Into<ToolUseId>) -> Self {
        let tool_use_id = tool_use_id.into();
        Self {
            idempotency_key: tool_use_id.as_str().into(),
            tool_use_id,
            cancellation: CancellationToken::new(),
            progress: None,
            extensions: Extensions::default(),
        }
    }

    /// The same context with another idempotency key.
    pub fn with_idempotency_key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.idempotency_key = key.into();
        self
    }

    /// The same context, cancelled with `token`.
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancellation = token;
        self
    }

    /// The same context with a place for progress reports.
    pub fn with_progress(mut self, progress: mpsc::Sender<Progress>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The same context with the application's extensions.
    pub fn with_extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// The tool use that this call answers.
    pub fn tool_use_id(&self) -> &ToolUseId {
        &self.tool_use_id
    }

    /// The key of this call. No other call of the agent has it, and a repetition of this call would have the same one.
    /// Pass it to services that detect repeated requests by a key. Today nothing repeats a call: a call in flight ends
    /// with its process, and a call of a later turn or step has a new key.
    pub fn idempotency_key(&self) -> &str {
        &self.idempotency_key
    }

    /// Completes when the call is cancelled, timed out or dropped. The call's own future is dropped then;
    /// this is for work that it started elsewhere.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    /// The same context with a cancellation of its own, which follows this one's.
    pub(super) fn with_own_cancellation(&self) -> (Self, CancellationToken) {
        let own = self.cancellation.child_token();
        (self.clone().with_cancellation(own.clone()), own)
    }

    /// Whether the call has been cancelled, timed out or dropped.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Reports progress, which the agent shows as an event. Waits while the agent has no room; does nothing
    /// outside an agent.
    ///
    /// # Cancel safety
    ///
    /// A report that was dropped while it waited is not made.
    pub async fn progress(&self, data: Value) {
        if let Some(progress) = &self.progress {
            let _ = progress.send(Progress { tool_use_id: self.tool_use_id.clone(), data }).await;
        }
    }

    /// What the application put beside the conversation.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }
}

/// Values of the application's own types, one a type, shared by reference. Cheap to clone.
///
/// ```
/// use omni_agent::tool::Extensions;
///
/// struct Tenant(u32);
/// let extensions = Extensions::default().with(Tenant(7));
/// assert_eq!(extensions.get::<Tenant>().map(|tenant| tenant.0), Some(7));
/// ```
// A list: there are few, and every agent has some. A map would take several times the room.
#[derive(Clone, Default)]
pub struct Extensions(Option<Arc<[Entry]>>);

type Entry = (TypeId, Arc<dyn Any + Send + Sync>);

impl Extensions {
    /// The same values and this one, in place of one of its type.
    pub fn with<T: Send + Sync + 'static>(self, value: T) -> Self {
        let id = TypeId::of::<T>();
        let others = self.entries().iter().filter(|(other, _)| *other != id).cloned();
        let value: Arc<dyn Any + Send + Sync> = Arc::new(value);
        Self(Some(others.chain([(id, value)]).collect()))
    }

    fn entries(&self) -> &[Entry] {
        self.0.as_deref().unwrap_or_default()
    }

    /// The value of this type, if there is one.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        let id = TypeId::of::<T>();
        let (_, value) = self.entries().iter().find(|(other, _)| *other == id)?;
        value.downcast_ref()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("values", &self.entries().len()).finish()
    }
}

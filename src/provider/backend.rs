//! Backends: services that own the conversation themselves. The page for their authors is [`Backend`].

#[cfg(feature = "acp")]
pub mod acp;
mod adapter;
#[cfg(feature = "test-util")]
pub mod conformance;
mod error;
mod event;
mod exchange;
mod options;
mod recorder;
mod sessions;

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_core::Stream;

pub use adapter::{BackendLimits, BackendProvider, LostSession};
pub use error::{BackendError, Breach};
pub use event::{
    BackendEvent, PermissionAnswer, PermissionKind, PermissionOption, PermissionRequest, TurnResult,
};
pub use options::{Capabilities, SessionId, SessionOptions, TurnPrompt};
pub use sessions::SessionPosition;

/// The events of a turn, in order. The stream ends with exactly one terminal event, [`BackendEvent::Result`] or
/// [`BackendEvent::Error`]. Nothing is read after the terminal event.
pub type EventStream = Pin<Box<dyn Stream<Item = BackendEvent> + Send>>;

/// A service that owns the conversation itself, such as a coding agent that runs as a program.
///
/// A model service gets the whole conversation with each request. A backend, in contrast, keeps the conversation itself
/// and runs its own tools. The caller starts a [`BackendSession`], gives it a [`TurnPrompt`], and reads
/// [`BackendEvent`]s until the turn ends. [`BackendProvider`] makes any backend a [`Provider`](super::Provider), so that
/// agents, sessions and managers can use the backend. A backend for programs that support the Agent Client Protocol is
/// in `provider::acp` (feature `acp`).
///
/// The trait is dyn-safe. To test an implementation, run the suite in `conformance` (feature `test-util`).
///
/// # Sessions
///
/// - A session at the backend is started with the conversation's first prompt. When the agent ends for any reason, the
///   session is terminated.
/// - Each prompt sends only the messages after the backend's last response. Each response stores the backend's position
///   in the conversation in its [`provider_data`](crate::message::Message::provider_data), under the backend's name. If
///   the conversation is loaded again, the backend's session is resumed at this position.
/// - The settings of one conversation, such as the folder in which the backend works, are in
///   [`Options::backend`](super::Options::backend). They are saved with the conversation, and passed to each session
///   that is started, resumed or forked for the conversation.
/// - If the session of a conversation is lost or can't be resumed, [`LostSession`] decides whether the prompt fails or
///   starts a new session.
///
/// # Turns
///
/// - The backend's tool uses, plans and statuses are emitted as soon as the backend reports them, and the response
///   keeps them as opaque items. The agent does not run the backend's tools.
/// - A use of a tool is an item with the members `type` (`"tool"`), `id`, `name`, `input` and `status`. If there is an
///   update, a result or a request for permission, the item also has the member `update`, `result` or `permission`. The
///   status is `asking`, `running`, `done` or `failed`. When the turn has ended, a tool without a result has the status
///   `rejected` if permission was refused, otherwise `ended`.
/// - A request for permission becomes a question to the agent. `handle_tool_use` answers the question, or pauses until
///   `resume` provides the answer.
/// - If a turn is cancelled, it is cancelled at the backend too. The backend still remembers the part of the turn that
///   it received, and continues from there. The backend also remembers a turn that it finished but that the agent
///   discarded, for example because a callback panicked. When the session continues with prompts that the conversation
///   does not contain, a warning is logged.
/// - A prompt that the backend may have accepted is never sent again automatically, since the backend might do the same
///   work twice.
/// - No call takes longer than [`BackendLimits`] allow. A panic, silence and every other breach of the contract is
///   contained, and becomes an error of kind [`ProviderErrorKind::Contract`](super::ProviderErrorKind::Contract).
///
/// # Branches
///
/// - If the conversation branches at an earlier position, the backend's session is forked at this position. If the
///   backend can't fork, the prompt fails before anything is sent.
/// - If the conversation branches at its beginning, a new session is started.
/// - The previous session keeps running until the new branch has a response. If the branch is abandoned before that,
///   the conversation returns to the previous session.
/// - After a conversation has been loaded again, a branch is detected only by the backend's
///   [checkpoint](BackendSession::checkpoint). The reason is that the messages of one branch don't show which messages
///   other branches sent. A backend without checkpoints continues with everything that its session has received.
///
/// # Example
///
/// This backend counts the prompts of each session, and can resume a session:
///
/// ```
/// use std::{
///     collections::HashMap,
///     sync::{
///         Arc, Mutex,
///         atomic::{AtomicUsize, Ordering},
///     },
/// };
///
/// use async_trait::async_trait;
/// use futures_util::stream;
/// use omni_agent::{
///     agent::Agent,
///     provider::{
///         BackendProvider, Model, StopReason,
///         custom::{
///             Backend, BackendError, BackendEvent, BackendSession, Capabilities, EventStream, SessionId,
///             SessionOptions, TurnPrompt, TurnResult,
///         },
///     },
/// };
///
/// #[derive(Default)]
/// struct Counter {
///     sessions: Mutex<HashMap<SessionId, Arc<CounterSession>>>,
/// }
///
/// #[async_trait]
/// impl Backend for Counter {
///     fn name(&self) -> &str {
///         "counter"
///     }
///
///     fn capabilities(&self) -> Capabilities {
///         Capabilities::default().with_resume()
///     }
///
///     async fn start(&self, _: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
///         let mut sessions = self.sessions.lock().unwrap();
///         let id = SessionId::new(sessions.len().to_string());
///         let session = Arc::new(CounterSession { id: id.clone(), prompts: AtomicUsize::new(0) });
///         sessions.insert(id, Arc::clone(&session));
///         Ok(session)
///     }
///
///     async fn resume(
///         &self,
///         id: &SessionId,
///         _: &SessionOptions,
///     ) -> Result<Arc<dyn BackendSession>, BackendError> {
///         match self.sessions.lock().unwrap().get(id) {
///             Some(session) => Ok(Arc::clone(session) as Arc<dyn BackendSession>),
///             None => Err(BackendError::unknown_session(id)),
///         }
///     }
/// }
///
/// struct CounterSession {
///     id: SessionId,
///     prompts: AtomicUsize,
/// }
///
/// #[async_trait]
/// impl BackendSession for CounterSession {
///     fn id(&self) -> Option<SessionId> {
///         Some(self.id.clone())
///     }
///
///     async fn prompt(&self, _: TurnPrompt) -> Result<EventStream, BackendError> {
///         let count = self.prompts.fetch_add(1, Ordering::Relaxed) + 1;
///         let result = TurnResult::new(StopReason::Stop);
///         let events = [BackendEvent::Text(format!("prompt {count}")), BackendEvent::Result(result)];
///         Ok(Box::pin(stream::iter(events)))
///     }
///
///     async fn cancel(&self) -> Result<(), BackendError> {
///         Ok(())
///     }
///
///     async fn terminate(&self) {}
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let model = Model::new(Arc::new(BackendProvider::new(Counter::default())), "default");
/// let agent = Agent::builder().model(model).start().await?;
/// assert_eq!(agent.ask("Hello").await?.text(), "prompt 1");
/// assert_eq!(agent.ask("Hello again").await?.text(), "prompt 2");
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns the backend's name. It is also the name of the backend's provider (the part before the colon in
    /// `provider:model`), and the key under which a response stores the backend's position. If the name changes, stored
    /// conversations can't be resumed.
    fn name(&self) -> &str;

    /// Returns the optional capabilities of this backend. By default, there are none.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Starts a new session with an empty conversation.
    ///
    /// # Errors
    ///
    /// Returns an error if the session could not be started. After an error, nothing of the session may remain.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing of the session may keep running.
    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError>;

    /// Resumes an earlier session, which may have been started by another process. This method is only called if the
    /// backend has [`Capabilities::resume`].
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::UnknownSession`] if no session has this id. The other errors are the same as for
    /// [`start`](Backend::start).
    ///
    /// # Cancel safety
    ///
    /// As for [`start`](Backend::start).
    async fn resume(
        &self,
        id: &SessionId,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        let _ = (id, options);
        Err(BackendError::Unsupported("this backend can't resume a session".to_owned()))
    }

    /// Starts a session that knows everything that another session knew at a position in its conversation. The other
    /// session does not change. This method is only called if the backend has [`Capabilities::fork`].
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::UnknownSession`] if the session does not exist, and [`BackendError::Unsupported`] if it
    /// can't be forked at this position. The other errors are the same as for [`start`](Backend::start).
    ///
    /// # Cancel safety
    ///
    /// As for [`start`](Backend::start).
    async fn fork(
        &self,
        place: &SessionPosition,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        let _ = (place, options);
        Err(BackendError::Unsupported("this backend can't fork a session".to_owned()))
    }
}

/// A conversation at a backend.
///
/// The trait is dyn-safe. At most one turn runs at a time. [`cancel`](BackendSession::cancel) and
/// [`terminate`](BackendSession::terminate) may be called at any time.
///
/// When a session is dropped, nothing of it may keep running, even if [`terminate`](BackendSession::terminate) has not
/// completed. A runtime that shuts down may have interrupted the call of `terminate`.
#[async_trait]
pub trait BackendSession: Send + Sync + 'static {
    /// Returns the id by which the session can be resumed, if the session already has an id. The id is read after the
    /// start and after each turn.
    fn id(&self) -> Option<SessionId>;

    /// Returns the checkpoint, which is the backend's own name for the position after the last turn that ended with a
    /// result. Returns `None` if the backend has no name for that position.
    ///
    /// The checkpoint is read together with the id, and after the session has been resumed. If the checkpoint of a
    /// resumed session differs from the checkpoint that the conversation stored, the session has continued elsewhere:
    /// on another branch or in another program. Without checkpoints, this is not detected. [`Backend::fork`] receives
    /// the checkpoint of the position at which to fork.
    fn checkpoint(&self) -> Option<String> {
        None
    }

    /// Sends a prompt to the session, and returns a stream of the turn's events. The stream is `'static`, so it must
    /// share ownership of the data that it uses with the session.
    ///
    /// If the stream is dropped before its terminal event, [`cancel`](BackendSession::cancel) is called.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt was not accepted. The session must then continue as if the prompt had not been
    /// sent. Later failures are reported as [`BackendEvent::Error`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, [`cancel`](BackendSession::cancel) is called.
    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError>;

    /// Informs the session of the result of a turn, which may contain data that the session needs, such as an id. This
    /// method is called once after each turn that ended with a result, before the next prompt.
    ///
    /// # Errors
    ///
    /// If this returns an error, the turn counts as failed. Unless the error is [`BackendError::Ended`], the session must
    /// still accept prompts.
    ///
    /// # Cancel safety
    ///
    /// If the method takes longer than [`BackendLimits::prompt`], its future is dropped and the session is terminated.
    async fn update(&self, result: &TurnResult) -> Result<(), BackendError> {
        let _ = result;
        Ok(())
    }

    /// Ends the turn in flight. Returns when the session can accept another prompt. If no turn is in flight, this
    /// method does nothing and succeeds.
    ///
    /// # Errors
    ///
    /// Returns an error if the turn could not be ended. The session is then terminated.
    async fn cancel(&self) -> Result<(), BackendError>;

    /// Ends the session and frees its resources. Afterwards, no process, connection or task of the session remains.
    /// This method is called once, possibly during a turn. The stream of that turn must then end. If the backend can
    /// resume sessions, the conversation itself is kept.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, dropping the session must complete the termination.
    async fn terminate(&self);
}

//! Backends: services that own the conversation themselves, such as coding agents that run as a program.
//!
//! A model service gets the whole conversation with each request. A [`Backend`] keeps the conversation itself and runs
//! its own tools. The caller starts a [`BackendSession`], gives it a [`TurnPrompt`], and reads [`BackendEvent`]s until
//! the turn ends. [`BackendProvider`] makes any backend a [`Provider`](super::Provider), so that agents, sessions and
//! managers can run on it. A backend for programs that use the Agent Client Protocol is in `acp` (feature `acp`);
//! `conformance` (feature `test-util`) tests an implementation.
//!
//! # Sessions
//!
//! - A session at the backend starts once, with the conversation's first prompt. It is terminated when the agent ends,
//!   for any reason.
//! - Each prompt sends only the messages after the backend's last response. Each response stores the backend's position
//!   in the conversation in its [`provider_data`](crate::message::Message::provider_data), under the backend's name. If
//!   the conversation is loaded again, its session is resumed at this position.
//! - Settings of one conversation, such as the folder in which the backend works, are in
//!   [`Options::backend`](super::Options::backend). They are saved with the conversation and passed to each
//!   session that is started, resumed or forked for it.
//! - If the session of a conversation is lost or can't be resumed, the prompt fails or starts a new session, depending
//!   on [`LostSession`].
//!
//! # Turns
//!
//! - The backend's tools, plans and statuses are emitted as they arrive, and are kept in the response as opaque items.
//!   The agent runs none of these tools.
//! - A tool is an item with the members `type` (`"tool"`), `id`, `name`, `input`, `status`, and `update`, `result` and
//!   `permission` where they exist. The status is `asking`, `running`, `done` or `failed`. When the turn has ended, a
//!   tool without a result is `rejected` if permission was refused, otherwise `ended`.
//! - A request for permission becomes a question to the agent. `handle_tool_use` answers it, or pauses until `resume`.
//! - If a turn is cancelled, it is cancelled at the backend too. The backend still remembers the part of the turn that
//!   it received, and continues from there. The same applies to a turn that the backend finished and the agent
//!   discarded, for example because a callback panicked. The log then has a warning.
//! - A prompt that the backend may have accepted is never sent again automatically, since the backend might do the same
//!   work twice.
//! - No call waits for longer than [`BackendLimits`] allow. A panic, silence and every other breach of the contract is
//!   contained, and becomes an error of kind [`ErrorKind::Contract`](super::ErrorKind::Contract).
//!
//! # Branches
//!
//! - If the conversation branches at an earlier position, the backend's session is forked there. If the backend can't
//!   fork, the prompt fails before anything is sent.
//! - If the conversation branches at its beginning, a new session is started.
//! - The previous session keeps running until the branch has a response. If the branch is abandoned before that,
//!   the conversation returns to that session.
//! - After a conversation was loaded again, a branch is detected only by the backend's
//!   [checkpoint](BackendSession::checkpoint), because the messages of one branch don't show which messages other
//!   branches sent. A backend without checkpoints continues with everything that its session has received.
//!
//! # Example
//!
//! A backend that repeats each prompt:
//!
//! ```
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use futures_util::stream;
//! use omni_agent::{
//!     agent::Agent,
//!     provider::{
//!         Model, StopReason,
//!         backend::{
//!             Backend, BackendError, BackendEvent, BackendProvider, BackendSession, EventStream, SessionId,
//!             SessionOptions, TurnPrompt, TurnResult,
//!         },
//!     },
//! };
//!
//! struct Echo;
//!
//! #[async_trait]
//! impl Backend for Echo {
//!     fn name(&self) -> &str {
//!         "echo"
//!     }
//!
//!     async fn start(&self, _: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
//!         Ok(Arc::new(EchoSession))
//!     }
//! }
//!
//! struct EchoSession;
//!
//! #[async_trait]
//! impl BackendSession for EchoSession {
//!     fn id(&self) -> Option<SessionId> {
//!         None
//!     }
//!
//!     async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError> {
//!         let result = TurnResult::new(StopReason::Stop);
//!         let events = [BackendEvent::Text(prompt.text()), BackendEvent::Result(result)];
//!         Ok(Box::pin(stream::iter(events)))
//!     }
//!
//!     async fn cancel(&self) -> Result<(), BackendError> {
//!         Ok(())
//!     }
//!
//!     async fn terminate(&self) {}
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let agent = Agent::builder().model(Model::new(Arc::new(BackendProvider::new(Echo)), "default")).start().await?;
//! assert_eq!(agent.ask("Hello").await?.text(), "Hello");
//! # Ok::<(), omni_agent::agent::AgentError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "acp")]
pub mod acp;
mod adapter;
#[cfg(feature = "test-util")]
pub mod conformance;
mod error;
mod event;
mod exchange;
mod lifetime;
mod options;
mod permission;
mod position;
mod recorder;
mod sessions;

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_core::Stream;

pub use adapter::{BackendLimits, BackendProvider, LostSession};
pub use error::{BackendError, Breach};
pub use event::{BackendEvent, TurnResult};
pub use options::{Capabilities, SessionId, SessionOptions, TurnPrompt};
pub use permission::{PermissionAnswer, PermissionKind, PermissionOption, PermissionRequest};
pub use position::SessionPosition;

/// The events of a turn, in order. The stream ends with exactly one terminal event, [`BackendEvent::Result`] or
/// [`BackendEvent::Error`]; nothing is read after it.
pub type EventStream = Pin<Box<dyn Stream<Item = BackendEvent> + Send>>;

/// A service that owns conversations.
///
/// The trait is dyn-safe. To test an implementation, run the suite in `conformance` (feature `test-util`) on it.
///
/// # Example
///
/// A backend that counts the prompts of each session, and can resume a session:
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
///         Model, StopReason,
///         backend::{
///             Backend, BackendError, BackendEvent, BackendProvider, BackendSession, Capabilities, EventStream,
///             SessionId, SessionOptions, TurnPrompt, TurnResult,
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
/// # Ok::<(), omni_agent::agent::AgentError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns the backend's name. It is the name of its provider, before the colon in `provider:model`, and the key
    /// under which a response stores the backend's position. If the name changes, stored conversations can't be
    /// resumed.
    fn name(&self) -> &str;

    /// Returns what the backend can do beyond the required methods of this trait. By default, nothing.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Starts a new session with an empty conversation.
    ///
    /// # Errors
    ///
    /// The session could not be started, and nothing of it remains.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing may keep running.
    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError>;

    /// Resumes an earlier session, which may have been started by another process. This is only called if the backend
    /// has [`Capabilities::resume`].
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::UnknownSession`] if no session has this id. Other errors are those of
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

    /// Starts a session that knows what another session knew at a position in its conversation. The other session does
    /// not change. This is only called if the backend has [`Capabilities::fork`].
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::UnknownSession`] if the session does not exist, and [`BackendError::Unsupported`] if it
    /// can't be forked at that position. Other errors are those of [`start`](Backend::start).
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
/// The trait is dyn-safe. At most one turn runs at a time; [`cancel`](BackendSession::cancel) and
/// [`terminate`](BackendSession::terminate) may be called at any time.
///
/// If a session is dropped, nothing of it may keep running either, because a runtime that shuts down may have
/// interrupted [`terminate`](BackendSession::terminate).
#[async_trait]
pub trait BackendSession: Send + Sync + 'static {
    /// Returns the id by which the session can be resumed, as soon as it has an id. It is read after the start and
    /// after each turn.
    fn id(&self) -> Option<SessionId>;

    /// Returns the backend's own name for the position at which its last turn ended in a result, if it has such a name.
    ///
    /// The checkpoint is read together with the id, and after a resume. If the checkpoint after a resume differs from
    /// the checkpoint that the conversation stored, the session has continued elsewhere: on another branch or in
    /// another program. Without checkpoints this is not detected. [`Backend::fork`] gets the checkpoint of the position
    /// to fork at.
    fn checkpoint(&self) -> Option<String> {
        None
    }

    /// Gives the session a prompt and returns a stream of the turn's events. The stream is `'static`, so it shares the
    /// data that it needs with the session.
    ///
    /// If the stream is dropped before its terminal event, [`cancel`](BackendSession::cancel) is called.
    ///
    /// # Errors
    ///
    /// The prompt was not accepted, and the session does not know it. Later failures are reported as
    /// [`BackendEvent::Error`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, [`cancel`](BackendSession::cancel) is called.
    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError>;

    /// Lets the session read the result of a turn, for example an id that only the result contains. This is called once
    /// after each turn that ended in a result, before the next prompt.
    ///
    /// # Errors
    ///
    /// On an error, the turn counts as failed.
    async fn update(&self, result: &TurnResult) -> Result<(), BackendError> {
        let _ = result;
        Ok(())
    }

    /// Ends the turn in flight. Returns when the session can accept another prompt. If no turn is in flight, this
    /// succeeds.
    ///
    /// # Errors
    ///
    /// The turn could not be ended. The session is then terminated.
    async fn cancel(&self) -> Result<(), BackendError>;

    /// Ends the session and frees its resources. Afterwards no process, connection or task of the session remains. This
    /// is called once, possibly during a turn, whose stream then ends. The conversation itself is kept, if the backend
    /// can resume it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, dropping the session must complete the termination.
    async fn terminate(&self);
}

//! Backends: services that own the conversation themselves, such as coding agents that run as a program.
//!
//! A model service is sent the whole conversation with each request. A [`Backend`] keeps it: one starts a session, gives
//! it a prompt, and reads what happens until the turn is over; the tools that it runs are its own.
//! [`BackendProvider`] makes any backend a [`Provider`](super::Provider), so that agents, sessions and managers run on it:
//!
//! - It starts on the conversation's first prompt, once, and terminates with the agent, however that ends.
//! - It sends what is new: the messages behind the last answer that the backend gave. Where the backend is in the
//!   conversation stands in each answer's [`provider_data`](crate::message::Message::provider_data), under the backend's name;
//!   a conversation that is loaded again is resumed by that, or says that it can't be.
//! - Settings of one conversation, such as the folder that the backend works in, are in
//!   [`Options::backend`](super::OptionFields::backend). They are saved with the conversation, and each session that is
//!   started, resumed or forked for it gets them.
//! - The backend's tools, plans and statuses are shown as they come, and kept in the answer as opaque items. The agent
//!   runs none of them.
//! - A tool is an item with the members `type` (`"tool"`), `id`, `name`, `input`, `status`, and `update`, `result` and `permission`
//!   where they exist. The status is `asking`, `running`, `done` or `failed`. When the turn has ended, a tool without a result is
//!   `rejected` if permission was refused, else `ended`.
//! - A conversation whose session is lost fails, or starts a new session, as [`LostSession`] says.
//! - A request for permission is a question to the agent: `handle_tool_use`, and on pause `resume`.
//! - A cancelled turn is cancelled at the backend too. What it had heard of it by then it knows, as every conversation
//!   with such a service goes on. The same goes for a turn that the backend finished and the agent discarded: a callback
//!   panicked, say. A warning in the log says so.
//! - A prompt that the backend may have taken is not sent again by itself: what it did it would do twice.
//! - A branch from an earlier place is followed by a fork, where the backend can do that; else it is an error before
//!   anything was sent. A branch from the very beginning is a new session. The session before runs on until the branch
//!   has an answer, so that one that comes to nothing can be gone back from.
//! - A branch of a conversation that was loaded again is noticed by the backend's
//!   [checkpoint](BackendSession::checkpoint) alone: what other branches were told, the messages of this one don't say. A
//!   backend without checkpoints goes on with all that its session has heard.
//! - No call waits for longer than [`BackendLimits`] allow. A panic, silence and whatever else breaks the contract is an error of
//!   its own kind, [`ErrorKind::Contract`](super::ErrorKind::Contract), and stays inside.
//!
//! # Example
//!
//! A backend that repeats what it is told:
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

/// What happens in a turn, in order. It ends in exactly one terminal event, [`BackendEvent::Result`] or
/// [`BackendEvent::Error`]; nothing is read after that.
pub type EventStream = Pin<Box<dyn Stream<Item = BackendEvent> + Send>>;

/// A service that owns conversations. Dyn-safe.
///
/// Run the suite in `conformance` (feature `test-util`) on an implementation.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The backend's name: that of its provider, before the colon in `provider:model`, and the key under which an answer
    /// says where the backend is. Change it and stored conversations can't be resumed.
    fn name(&self) -> &str;

    /// What the backend can do beyond the rest of this trait. Nothing, unless told.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Starts a session with nothing said in it yet.
    ///
    /// # Errors
    ///
    /// The session could not be started, and nothing of it is left behind.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future must leave nothing running.
    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError>;

    /// Goes on with a session of before, which may have been started by another process. Called only on a backend with
    /// [`Capabilities::resume`].
    ///
    /// # Errors
    ///
    /// [`BackendError::UnknownSession`] if there is none of this id; as [`start`](Backend::start) otherwise.
    ///
    /// # Cancel safety
    ///
    /// As [`start`](Backend::start).
    async fn resume(
        &self,
        id: &SessionId,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        let _ = (id, options);
        Err(BackendError::Unsupported("this backend can't resume a session".to_owned()))
    }

    /// Starts a session that knows what another knew at a place in its conversation, and leaves the other alone. Called
    /// only on a backend with [`Capabilities::fork`].
    ///
    /// # Errors
    ///
    /// [`BackendError::UnknownSession`] if there is no such session, [`BackendError::Unsupported`] if it can't be forked
    /// at that place; as [`start`](Backend::start) otherwise.
    ///
    /// # Cancel safety
    ///
    /// As [`start`](Backend::start).
    async fn fork(
        &self,
        place: &SessionPosition,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        let _ = (place, options);
        Err(BackendError::Unsupported("this backend can't fork a session".to_owned()))
    }
}

/// One conversation at a backend. Dyn-safe.
///
/// There is at most one turn at a time; [`cancel`](BackendSession::cancel) and [`terminate`](BackendSession::terminate) may
/// come at any time.
///
/// A session that is dropped must leave nothing running either: a runtime that shuts down may have cut
/// [`terminate`](BackendSession::terminate) off.
#[async_trait]
pub trait BackendSession: Send + Sync + 'static {
    /// The id by which the session can be resumed, as soon as it has one. Read after the start and after each turn.
    fn id(&self) -> Option<SessionId>;

    /// The backend's own name for where the conversation was when its last turn ended in a result, if it has one. Read with
    /// the id, and after a resume: another name than the conversation remembers says that the session has gone on
    /// elsewhere, on another branch or by another program, which without one nobody notices. [`Backend::fork`] gets it
    /// back.
    fn checkpoint(&self) -> Option<String> {
        None
    }

    /// Gives the session a prompt and streams what happens. The stream is `'static`: what it needs of the session it
    /// shares.
    ///
    /// A stream that is dropped before its terminal event is followed by [`cancel`](BackendSession::cancel).
    ///
    /// # Errors
    ///
    /// The prompt was not taken: the session knows nothing of it. What fails later is a [`BackendEvent::Error`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is followed by [`cancel`](BackendSession::cancel).
    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError>;

    /// Called once after each turn that ended in a result, before the next prompt, for what the session takes from it: an
    /// id that was told only now, say.
    ///
    /// # Errors
    ///
    /// The turn counts as failed.
    async fn update(&self, result: &TurnResult) -> Result<(), BackendError> {
        let _ = result;
        Ok(())
    }

    /// Ends the turn in flight. Done when the session can take another prompt. No error where there is no turn.
    ///
    /// # Errors
    ///
    /// The turn could not be ended; the session is terminated then.
    async fn cancel(&self) -> Result<(), BackendError>;

    /// Ends the session and frees what it holds: after this no process, connection or task of it is left. Called once, also
    /// in the middle of a turn, whose stream then ends. The conversation itself stays, where the backend can resume it.
    ///
    /// # Cancel safety
    ///
    /// What it has not got to when its future is dropped, the session's drop must do.
    async fn terminate(&self);
}

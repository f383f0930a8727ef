use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};
use serde_json::{Map, Value};

use super::{Failure, PromptState, Response};
use crate::{
    error::{debug_as_chain, error_chain, source_after},
    message::{HistoryError, ToolUseId},
    provider::{ProviderError, RegistryError},
    subscription::EndReason,
    tool::ToolSetError,
};

/// Declares the kinds. A line has the kind, its status, its code and its title.
macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident: $status:literal $code:literal $title:literal;)+) => {
        /// The kind of an [`Error`]: one meaning for programs. As JSON, it is the name in snake case.
        ///
        /// Each kind has a status and a code. Web clients get them with the title of the kind, as a `Problem`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])+ $kind,)+
        }

        impl ErrorKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            const fn row(self) -> (u16, &'static str, &'static str) {
                match self {
                    $(Self::$kind => ($status, $code, $title),)+
                }
            }
        }
    };
}

kinds! {
    /// The agent or the session has ended. The member `reason` has the [`EndReason`].
    Ended: 503 "shut-down" "The conversation was closed.";
    /// The manager is shut down or is being shut down.
    ShutDown: 503 "shut-down" "The server is shut down.";
    /// The operation requires an idle agent. The member `activity` has the agent's [`Status`](crate::agent::Status). It
    /// is absent if a prompt with tool results would have to be staged.
    Busy: 409 "busy" "A run is active.";
    /// No run is active, so there is nothing to cancel or interrupt.
    Idle: 409 "idle" "No run is active.";
    /// A decision was made, but no tool use waits for one. The member `activity` has the agent's status.
    NotPaused: 409 "not-paused" "No tool use waits for a decision.";
    /// The tool use does not wait for a decision: it was already decided, its time limit has passed, or its turn has
    /// ended. [`Error::waiting`] lists the tool uses that wait.
    StaleDecision: 409 "stale-decision" "No decision is needed for this tool use.";
    /// The decision is nested too deeply, or the name of its author is too long. The member `limit` has the limit.
    InvalidDecision: 400 "invalid-body" "The body cannot be read.";
    /// The prompt has no content.
    EmptyPrompt: 422 "empty-prompt" "The prompt is empty.";
    /// The prompt does not fit the history, or its id or its data is invalid. For lengths, the members `length` or
    /// `size`, and `limit`, have the numbers.
    InvalidPrompt: 422 "invalid-prompt" "The prompt is not acceptable.";
    /// A limit of requests or of time is zero, a number in the options is not finite, the output schema is invalid, or a
    /// schedule has an invalid name, pattern or time zone.
    InvalidSettings: 422 "invalid-prompt" "The prompt is not acceptable.";
    /// The limit of a budget in money is negative or not finite. The member `usd` has the limit, if JSON can represent
    /// it.
    InvalidBudget: 422 "invalid-prompt" "The prompt is not acceptable.";
    /// A prompt with this id was accepted before. Nothing was started. The member `state` has the [`PromptState`] of
    /// that prompt.
    KnownPrompt: 409 "known-prompt" "The prompt was accepted before.";
    /// The queue of staged prompts is full. The member `limit` has its length.
    QueueFull: 409 "queue-full" "Too many prompts are staged.";
    /// The prompt is meant for the next step of the turn in flight, but it has settings, which apply to whole turns.
    NotAtStep: 422 "not-at-step" "The prompt cannot join the turn in flight.";
    /// No prompt with this id is staged. Its turn may have started already.
    NotStaged: 409 "not-staged" "The prompt is not staged.";
    /// The message is not a user message that starts a turn, so no run can start with it. The member `node` has its node.
    NotAPrompt: 422 "not-a-prompt" "The message is not a prompt.";
    /// The path would end at a message that is not an answer. The member `node` has its node.
    NotAnAnswer: 422 "not-an-answer" "The message is not an answer.";
    /// The block is not an attachment, and not a tool result with one. The members `node` and `block` name it.
    NotAnAttachment: 422 "not-an-attachment" "The block is not a file.";
    /// The path would end at a prompt without an answer. The member `node` has its node. A run
    /// [`again`](crate::session::Session::again) requests an answer.
    Unanswered: 422 "unanswered" "The prompt has no answer.";
    /// The message has open tool uses that a prompt can't answer. The member `node` has its node.
    OpenToolUses: 422 "open-tool-uses" "The message has open tool uses.";
    /// The conversation cannot be compacted now: a compaction would change nothing, tool uses have no results, or the
    /// provider keeps the conversation itself.
    NotCompactable: 422 "not-compactable" "The conversation cannot be compacted.";
    /// The title is too long. The members `length` and `limit` have the numbers.
    InvalidTitle: 422 "invalid-title" "The title is too long.";
    /// The model's name could not be resolved.
    UnknownModel: 422 "unknown-model" "This model cannot be used.";
    /// Too many events wait for the application or for the session. The member `queued` has their number.
    Backlog: 503 "store-behind" "Too much is waiting to be processed.";
    /// The session is being shut down and accepts no new prompts.
    Draining: 503 "draining" "The server is about to stop.";
    /// Too many changes are unsaved, so no new prompt is accepted. The member `limit` has the limit in bytes.
    StoreBehind: 503 "store-behind" "Too much is not stored yet.";
    /// Not all changes of the session were in the store when the deadline passed. The members are `nodes`, the number of
    /// unsaved messages (0 if only the path or the state is unsaved), `waited`, and `error`, the store's last error.
    Unsaved: 503 "store-behind" "Too much is not stored yet.";
    /// The open session has the new title or labels, and stores them as soon as the store accepts them.
    ChangeUnsaved: 503 "store-behind" "The change is made, and is not stored yet.";
    /// The conversation does not exist, or no longer exists.
    NotFound: 404 "not-found" "There is no such conversation.";
    /// The tree has no node with the id in the member `node`.
    UnknownNode: 404 "not-found" "There is no such message.";
    /// No prompt with the id in the member `prompt` is known, so it has no outcome.
    UnknownPrompt: 404 "not-found" "There is no such prompt.";
    /// The client of a web layer or of a server may not perform this action.
    NotPermitted: 403 "forbidden" "This action is not allowed.";
    /// The id belongs to an existing conversation.
    AlreadyExists: 409 "already-exists" "The conversation already exists.";
    /// Another writer changed the conversation first.
    Conflict: 409 "conflict" "The conversation was changed at the same time.";
    /// The conversation is open in another process or another manager. Use it there, or wait until its lease expires.
    /// The error's `owner` names the owner. [`Manager::decide`](crate::manager::Manager::decide) sets
    /// [`Error::retry_after`] to the maximum time until the lease expires, unless its owner renews it.
    OpenElsewhere: 421 "open-elsewhere" "Another process has this conversation open.";
    /// The lease of the write was released, or it passed to another owner.
    LeaseLost: 421 "open-elsewhere" "Another process has this conversation open.";
    /// The process that has the conversation open does not answer. Try again when its lease ends. The member `owner` names
    /// the process. The member `retry_after` has the time until the lease ends, if it is known.
    Unreachable: 503 "unreachable" "The process that has this conversation open cannot be reached.";
    /// The application does not open the conversation in this process: the
    /// [opener](crate::manager::Conversation::open_with) or the [starter](crate::manager::ManagerBuilder::starter) has
    /// returned `None`. The member `conversation` has its id.
    NotOpened: 503 "not-opened" "This server does not open the conversation.";
    /// The store is busy, full or unreachable.
    StoreUnreachable: 503 "store-unreachable" "The conversations cannot be reached now.";
    /// The store would not be able to read this content back.
    Unstorable: 422 "unstorable" "The content cannot be stored.";
    /// The store, the agent or the server does not support the operation in the member `operation`.
    Unsupported: 422 "unsupported" "This operation is not supported.";
    /// The query of a search can't be understood.
    InvalidQuery: 422 "invalid-query" "The search cannot be understood.";
    /// No place for another open session became free within the [room timeout](crate::manager::ManagerBuilder::room_timeout),
    /// and some places are held by sessions whose tools or callbacks are running. The member `running` lists them.
    ///
    /// These tools may be waiting for the new session to open, because a session keeps its place while one of its tools
    /// opens another session.
    NoRoom: 503 "no-room" "Too many conversations are open.";
    /// The conversation is that of a sub-agent, or its id is reserved for one. Its labels are those of its root. While its
    /// parent is in the turn of the call, or an agent further above has a turn in flight, only the call opens it, and it is
    /// not deleted alone. Then the members `parent` and `root` have the conversations above it. The member `conversation`
    /// has its id.
    SubAgent: 409 "sub-agent" "The conversation belongs to another one.";
    /// A newer version of this crate has recorded the turn in flight. Other processes may be able to continue it. The
    /// member `format` has the format of the record.
    NewerTurn: 503 "newer-turn" "A newer version of the server has begun the answer in flight.";
    /// The recorded turn in flight can't be read. The rest of the conversation is not affected.
    DamagedTurn: 500 "damaged-turn" "The stored answer in flight is damaged.";
    /// The stored content can't be read, or was written by a later version of the crate.
    Damaged: 500 "internal" "The server failed.";
    /// The store lacks a permission, or failed for another reason.
    StoreFailed: 500 "internal" "The server failed.";
    /// A setting or value of the application is invalid or missing.
    Config: 500 "internal" "The server failed.";
    /// `init` or the closure of `set_state` returned an error or panicked. Or `access::Agents::start` panicked or, for a
    /// client over a pipe, returned an error.
    Callback: 500 "internal" "The server failed.";
    /// The run that this call started was cancelled. [`Error::response`] has the discarded messages.
    Cancelled: 500 "internal" "The server failed.";
    /// The run that this call started failed: see [`Error::failure`] and [`Error::response`].
    Failed: 500 "internal" "The server failed.";
    /// The response does not match the output schema or the requested type.
    Output: 500 "internal" "The server failed.";
    /// The `deadline` passed before the agent had finished ending. The agent has ended nevertheless. The member `tools`
    /// lists the aborted tools that are still running. If it is absent, `terminate`, the provider's `close` or the
    /// commit channel took too long.
    Deadline: 500 "internal" "The server failed.";
    /// A shutdown ended sessions that are not completely saved or whose aborted tools are still running. All sessions
    /// have ended nevertheless. The member `sessions` has an error for each id.
    EndedIncomplete: 500 "internal" "The server failed.";
    /// The connection to a client has failed.
    Connection: 500 "internal" "The server failed.";
    /// The operation was given up because it took too long, or its task was aborted or panicked in a store or a
    /// callback.
    Internal: 500 "internal" "The server failed.";
    /// A newer version of this crate has sent an error of a kind that this version does not know. [`Error::status`]
    /// states its status.
    Foreign: 500 "internal" "The server failed.";
}

impl ErrorKind {
    /// Returns the HTTP status.
    pub const fn status(self) -> u16 {
        self.row().0
    }

    /// Returns the code that web clients get. Several kinds may have the same code.
    pub const fn code(self) -> &'static str {
        self.row().1
    }

    /// Returns a sentence for people about this kind of error.
    pub const fn title(self) -> &'static str {
        self.row().2
    }
}

/// An operation on an agent, a session or a manager failed. Unless its kind states otherwise, nothing has changed.
///
/// The `Display` text is for people. `Debug` is the text of [`error_chain`], and `{:#?}` shows the kind and the members.
/// Programs use the [kind](Self::kind) and the [members](Self::member), which are the
/// facts of the failure as JSON. An error can be sent as JSON and read again:
///
/// ```
/// use omni_agent::{Error, ErrorKind};
///
/// let text = r#"{"kind":"busy","status":409,"message":"the session is Paused","activity":"paused"}"#;
/// let error: Error = serde_json::from_str(text)?;
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// assert_eq!(error.member("activity").unwrap(), "paused");
/// assert_eq!(serde_json::to_string(&error)?, text);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// The JSON contains the [failure](Self::failure) of a run, but no other cause, and not the
/// [response](Self::response). It is for your own services, because its text and members can name hosts and quote a store
/// or a model service. The routes of feature `web` send clients a `Problem`, which leaves these facts out.
#[derive(Clone)]
pub struct Error(Box<ErrorContents>);

#[derive(Clone)]
struct ErrorContents {
    kind: ErrorKind,
    /// The status of the kind, or the status that a newer version has sent.
    status: u16,
    message: Cow<'static, str>,
    members: Map<String, Value>,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    response: Option<Arc<Response>>,
}

impl Error {
    /// Creates an error. The text states what failed, the value that caused it, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(ErrorContents {
            kind,
            status: kind.status(),
            message: message.into(),
            members: Map::new(),
            cause: None,
            response: None,
        }))
    }

    /// Returns the same error with this member. `kind`, `status`, `message` and `failure` are not available as names.
    pub fn with_member(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.0.members.insert(name.into(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    /// Returns the same error with this cause. The text of the error should end with the text of the cause.
    pub fn with_source(self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.caused_by(Arc::new(cause))
    }

    pub(crate) fn caused_by(mut self, cause: Arc<dyn StdError + Send + Sync>) -> Self {
        self.0.cause = Some(cause);
        self
    }

    /// Returns the same error with another text.
    pub(crate) fn worded(mut self, text: String) -> Self {
        self.0.message = text.into();
        self
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the HTTP status: that of the kind, or for [`ErrorKind::Foreign`] the status that was sent.
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Returns the member with this name.
    pub fn member(&self, name: &str) -> Option<&Value> {
        self.0.members.get(name)
    }

    pub(crate) fn typed<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        self.member(name).and_then(|value| T::deserialize(value).ok())
    }

    /// Returns the cause, for a downcast to its type. The text of the cause is part of the `Display` output. Therefore,
    /// [`source`](StdError::source) returns the part of the chain below the cause.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// Returns whether the conversation, the message or the prompt does not exist, like HTTP's 404.
    pub fn is_not_found(&self) -> bool {
        self.status() == 404
    }

    /// Returns whether the operation conflicts with the activity or the state of the conversation, like HTTP's 409. For
    /// example, the conversation is busy, already exists or is open elsewhere.
    pub fn is_conflict(&self) -> bool {
        matches!(self.status(), 409 | 421) && self.kind() != ErrorKind::QueueFull
    }

    /// Returns whether the agent, the session, the manager or the store has ended, accepts nothing now or can't be used,
    /// like HTTP's 503. The operation can be repeated later.
    pub fn is_unavailable(&self) -> bool {
        self.status() == 503 || matches!(self.kind(), ErrorKind::QueueFull | ErrorKind::StoreFailed)
    }

    /// Returns the reason why the run failed, if this error is the end of a run.
    pub fn failure(&self) -> Option<&Failure> {
        self.cause()?.downcast_ref()
    }

    /// Returns the model service's error if it made the run fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self.failure()? {
            Failure::Provider { error } => Some(error),
            _ => None,
        }
    }

    /// Returns the response of the run, if this error is the end of a run or about its response.
    ///
    /// If the run failed, its work is kept: the response has the messages of all turns of the run, and the history
    /// contains them. So do not send the prompt again, but a prompt such as "Continue". In three cases, the last turn
    /// was discarded instead, and the response has the discarded messages: only the prompt could be kept, a callback
    /// failed, or `handle_error` returned [`ErrorDecision::Discard`](crate::agent::ErrorDecision::Discard). Then
    /// [`RunEnd::unanswered`](super::RunEnd::unanswered) in [`Snapshot::last_run`](crate::agent::Snapshot::last_run)
    /// lists the prompt. Otherwise this list is empty. If the run was cancelled, the messages were discarded.
    pub fn response(&self) -> Option<&Arc<Response>> {
        self.0.response.as_ref()
    }

    /// Returns the ids of the tool uses that wait for a decision, if the error is about a decision.
    pub fn waiting(&self) -> Vec<ToolUseId> {
        self.typed("waiting").unwrap_or_default()
    }

    /// Returns the time after which a new attempt makes sense, if it is known: the time that the model service
    /// requested, the time until a lease expires, or an estimate for a status of 503.
    pub fn retry_after(&self) -> Option<Duration> {
        let requested = || self.provider_error()?.retry_after;
        self.typed("retry_after").or_else(requested).or_else(|| {
            let seconds = match self.kind() {
                ErrorKind::Draining | ErrorKind::NoRoom => 5,
                ErrorKind::NewerTurn => 30,
                _ => 2,
            };
            (self.status() == 503).then_some(Duration::from_secs(seconds))
        })
    }

    // ---- errors that occur at several places ----

    pub(crate) fn ended(what: &str, reason: &EndReason) -> Self {
        Self::new(ErrorKind::Ended, format!("the {what} has ended: {reason}")).with_member("reason", reason)
    }

    /// `status` is a [`Status`](crate::agent::Status).
    pub(crate) fn busy(what: &str, status: impl fmt::Debug + Serialize) -> Self {
        let text = format!("the {what} is {status:?}; wait until it is idle, or cancel");
        Self::new(ErrorKind::Busy, text).with_member("activity", status)
    }

    pub(crate) fn idle() -> Self {
        Self::new(ErrorKind::Idle, "no run is active; there is nothing to cancel or interrupt")
    }

    pub(crate) fn empty_prompt() -> Self {
        Self::new(ErrorKind::EmptyPrompt, "the prompt is empty; give it text or an attachment")
    }

    pub(crate) fn unfit_prompt(error: HistoryError) -> Self {
        let text = format!("the prompt does not fit the history: {error}");
        Self::new(ErrorKind::InvalidPrompt, text).with_source(error)
    }

    pub(crate) fn known_prompt(state: &PromptState) -> Self {
        let text = "a prompt with this id was accepted before; use another id for a new prompt";
        Self::new(ErrorKind::KnownPrompt, text).with_member("state", state)
    }

    pub(crate) fn cancelled(response: Arc<Response>) -> Self {
        Self::new(ErrorKind::Cancelled, "the run was cancelled").about(response)
    }

    pub(crate) fn failed(failure: Failure, response: Arc<Response>) -> Self {
        let text = format!("the run failed: {failure}");
        Self::new(ErrorKind::Failed, text).with_source(failure).about(response)
    }

    pub(crate) fn output(problem: &str, response: Arc<Response>) -> Self {
        let text = format!("the response does not have the requested shape: {problem}");
        Self::new(ErrorKind::Output, text).about(response)
    }

    /// Writes the kind, the texts of the chain of causes, and the members.
    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Error");
        shown.field("kind", &self.0.kind).field("message", &error_chain(self));
        for (name, value) in &self.0.members {
            shown.field(name, &format_args!("{value}"));
        }
        shown.finish()
    }

    fn about(mut self, response: Arc<Response>) -> Self {
        self.0.response = Some(response);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

debug_as_chain!(Error, details);

impl StdError for Error {
    /// Returns the first error in the chain of causes whose text is not already part of the `Display` output.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        source_after(&self.0.message, self.0.cause.as_deref()?)
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", &self.kind())?;
        map.serialize_entry("status", &self.status())?;
        map.serialize_entry("message", &self.0.message)?;
        for (name, value) in &self.0.members {
            map.serialize_entry(name, value)?;
        }
        if let Some(failure) = self.failure() {
            map.serialize_entry("failure", failure)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut members = Map::deserialize(deserializer)?;
        let mut take = |name: &str| members.shift_remove(name).unwrap_or_default();
        let (kind, status) = (take("kind"), take("status"));
        let Value::String(message) = take("message") else {
            return Err(de::Error::missing_field("message"));
        };
        let failure = Failure::deserialize(take("failure")).ok();
        let mut error = Self::new(ErrorKind::deserialize(kind).unwrap_or(ErrorKind::Foreign), message);
        if let (ErrorKind::Foreign, Some(status @ 400..=599)) = (error.kind(), status.as_u64()) {
            error.0.status = u16::try_from(status).unwrap_or(error.0.status);
        }
        error.0.members = members;
        Ok(match failure {
            Some(failure) => error.with_source(failure),
            None => error,
        })
    }
}

impl From<RegistryError> for Error {
    fn from(error: RegistryError) -> Self {
        Self::new(ErrorKind::UnknownModel, format!("the model can't be resolved: {error}")).with_source(error)
    }
}

impl From<HistoryError> for Error {
    fn from(error: HistoryError) -> Self {
        Self::new(ErrorKind::Config, format!("the history is invalid: {error}")).with_source(error)
    }
}

impl From<ToolSetError> for Error {
    fn from(error: ToolSetError) -> Self {
        Self::new(ErrorKind::Config, format!("the tools are invalid: {error}")).with_source(error)
    }
}

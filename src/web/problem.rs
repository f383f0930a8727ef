//! Errors as `application/problem+json` (RFC 9457).

use std::{borrow::Cow, fmt, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use crate::{
    agent::AgentError,
    error::error_chain,
    manager::ManagerError,
    session::SessionError,
    store::{Owner, StoreError},
};

/// An error in the form in which clients receive it: `application/problem+json` (RFC 9457).
///
/// The body has the members `type` (`urn:omni-agent:CODE`), `title`, `status`, `detail`, and further members that a
/// program can use.
///
/// ```
/// use axum::http::StatusCode;
/// use omni_agent::web::Problem;
///
/// let problem = Problem::new(StatusCode::PAYMENT_REQUIRED, "quota", "The quota is used up.")
///     .with_detail("The quota of this month is used up; it is renewed on the first.")
///     .with_member("renewed", "2027-01-01");
/// assert_eq!(problem.status(), StatusCode::PAYMENT_REQUIRED);
/// assert_eq!(problem.to_json()["type"], "urn:omni-agent:quota");
/// ```
#[derive(Clone, Debug)]
pub struct Problem(Box<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    status: StatusCode,
    code: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: Option<String>,
    members: Map<String, Value>,
    retry_after: Option<Duration>,
    challenge: Option<HeaderValue>,
}

impl Problem {
    /// Returns a problem with this status, code and title. The code names the kind of problem for programs.
    pub fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Parts {
            status,
            code: code.into(),
            title: title.into(),
            detail: None,
            members: Map::new(),
            retry_after: None,
            challenge: None,
        }))
    }

    crate::setters::setters! {
        /// Returns the same problem with this explanation.
        pub fn with_detail(self, detail: impl Into<String>) { self.0.detail = Some(detail.into()) }

        /// Returns the same problem with a further member.
        pub fn with_member(self, name: impl Into<String>, value: impl Into<Value>) {
            self.0.members.insert(name.into(), value.into());
        }

        /// Returns the same problem with the header `retry-after`, in whole seconds.
        pub fn with_retry_after(self, after: Duration) { self.0.retry_after = Some(after) }

        pub(super) fn with_challenge(self, challenge: HeaderValue) { self.0.challenge = Some(challenge) }
    }

    /// Returns the status.
    pub const fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Returns the code.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// Returns the body.
    pub fn to_json(&self) -> Value {
        let Parts { status, code, title, detail, members, .. } = &*self.0;
        let mut body = Map::new();
        body.insert("type".into(), format!("urn:omni-agent:{code}").into());
        body.insert("title".into(), title.as_ref().into());
        body.insert("status".into(), status.as_u16().into());
        body.extend(detail.as_ref().map(|detail| ("detail".into(), detail.as_str().into())));
        body.extend(members.iter().map(|(name, value)| (name.clone(), value.clone())));
        body.into()
    }

    /// Returns the seconds after which a new attempt makes sense, at least one.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.0
            .retry_after
            .map(|after| after.as_secs() + u64::from(after.subsec_nanos() > 0 || after.is_zero()))
    }

    // ---- the problems of the routes ----

    fn of(status: StatusCode, code: &'static str, title: &'static str, error: &impl fmt::Display) -> Self {
        Self::new(status, code, title).with_detail(error.to_string())
    }

    /// Returns the problem for an unknown or forbidden conversation. It is the same in both cases, so that a client
    /// can't tell whether the conversation exists.
    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "There is no such conversation.")
    }

    pub(super) fn nothing_here(what: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", what)
    }

    pub(super) fn forbidden(detail: &'static str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "This action is not allowed.").with_detail(detail)
    }

    pub(crate) fn not_permitted() -> Self {
        Self::forbidden("The conversation may be read, but this action is not permitted.")
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large.")
            .with_member("limit", limit)
    }

    pub(super) fn invalid_body(error: &impl fmt::Display) -> Self {
        Self::of(StatusCode::BAD_REQUEST, "invalid-body", "The body cannot be read.", error)
    }

    pub(super) fn invalid_query(error: &impl fmt::Display) -> Self {
        Self::of(StatusCode::BAD_REQUEST, "invalid-query", "The query of the address cannot be read.", error)
    }

    pub(super) fn invalid_id(error: &impl fmt::Display) -> Self {
        Self::of(StatusCode::BAD_REQUEST, "invalid-id", "The id in the address is invalid.", error)
    }

    pub(super) fn invalid_position() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-position", "The position cannot be read.")
            .with_detail("Send the `id` of the last event unchanged as `last-event-id`, or omit the header.")
    }

    pub(super) fn invalid_prompt(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-prompt", "The prompt is not acceptable.")
            .with_detail(detail)
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-model", "This model cannot be chosen.")
            .with_member("model", model)
    }

    pub(super) fn draining() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "The server is about to stop.")
            .with_retry_after(Duration::from_secs(5))
    }

    pub(super) fn no_room() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no-room", "Too many conversations are open.")
            .with_retry_after(Duration::from_secs(5))
    }

    pub(super) fn stale_decision(waiting: Value) -> Self {
        Self::new(StatusCode::CONFLICT, "stale-decision", "No decision is needed for this tool use.")
            .with_member("waiting", waiting)
    }

    /// Returns the problem for an unexpected error. The error itself is only logged, together with the id of the
    /// incident that the client gets.
    pub(super) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        let log = "The log of the server contains the cause under the incident's id.";
        Self::incident("internal", "The server failed.", log, error)
    }

    fn incident(
        code: &'static str,
        title: &'static str,
        detail: &'static str,
        error: &(dyn std::error::Error + 'static),
    ) -> Self {
        let incident = format!("{:016x}", rand::random::<u64>());
        tracing::error!(incident, error = error_chain(error), "a request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, title)
            .with_detail(detail)
            .with_member("incident", incident)
    }

    fn newer_turn() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "newer-turn",
            "A newer version of the server has begun the answer in flight.",
        )
        .with_detail(
            "This server cannot continue the answer. Try again when the newer version is running here.",
        )
        .with_retry_after(Duration::from_secs(30))
    }

    fn damaged_turn(error: &SessionError) -> Self {
        let detail = "The operator can discard this answer, and open the rest of the conversation. The log of the \
                      server contains the cause under the incident's id.";
        Self::incident("damaged-turn", "The stored answer in flight is damaged.", detail, error)
    }

    fn elsewhere(owner: &Owner) -> Self {
        let problem = Self::new(
            StatusCode::MISDIRECTED_REQUEST,
            "open-elsewhere",
            "Another process has this conversation open.",
        );
        // `Web` removes the address unless the application reveals it.
        match &owner.address {
            Some(address) => problem.with_member("address", address.clone()),
            None => problem,
        }
    }

    pub(super) fn without_address(mut self) -> Self {
        if self.0.code == "open-elsewhere" {
            self.0.members.shift_remove("address");
        }
        self
    }

    fn unavailable(code: &'static str, title: &'static str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, title).with_retry_after(Duration::from_secs(2))
    }

    fn conflict(code: &'static str, title: &'static str, error: &impl fmt::Display) -> Self {
        Self::of(StatusCode::CONFLICT, code, title, error)
    }

    fn unfit(code: &'static str, title: &'static str, error: &impl fmt::Display) -> Self {
        Self::of(StatusCode::UNPROCESSABLE_ENTITY, code, title, error)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.0.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, after.into());
        }
        if let Some(challenge) = self.0.challenge {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl From<ManagerError> for Problem {
    fn from(error: ManagerError) -> Self {
        match error {
            ManagerError::ShutDown => Self::unavailable("shut-down", "The server is shut down."),
            ManagerError::AlreadyExists { .. } => {
                Self::conflict("already-exists", "The conversation already exists.", &error)
            }
            ManagerError::OpenElsewhere { owner, .. } => Self::elsewhere(&owner),
            ManagerError::StaleApproval { waiting, .. } => {
                Self::stale_decision(serde_json::to_value(waiting).unwrap_or_default())
            }
            ManagerError::NoRoom { .. } => Self::no_room(),
            ManagerError::Session(error) => error.into(),
            ManagerError::Store(error) => error.into(),
            ManagerError::ChangeUnsaved { .. } => {
                Self::unavailable("store-behind", "The change is made, and is not stored yet.")
            }
            ManagerError::NoStarter | ManagerError::CutOff { .. } | ManagerError::EndedIncomplete { .. } => {
                Self::internal(&error)
            }
        }
    }
}

impl From<SessionError> for Problem {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Ended(_) => Self::unavailable("shut-down", "The conversation was closed."),
            SessionError::Busy(status) => Self::conflict("busy", "A run is active.", &error)
                .with_member("activity", serde_json::to_value(status).unwrap_or_default()),
            SessionError::UnknownNode { .. } => Self::nothing_here("There is no such message."),
            SessionError::UnknownPrompt { .. } => Self::nothing_here("There is no such prompt."),
            SessionError::NotUser { .. } | SessionError::ToolResults { .. } => {
                Self::unfit("not-a-prompt", "The message is not a prompt.", &error)
            }
            SessionError::NotAssistant { .. } | SessionError::Unanswered { .. } => {
                Self::unfit("not-an-answer", "The message is not an answer.", &error)
            }
            SessionError::OpenToolUses { .. } => {
                Self::unfit("open-tool-uses", "The message has open tool uses.", &error)
            }
            SessionError::LongTitle { .. } => Self::unfit("invalid-title", "The title is too long.", &error),
            SessionError::StoreBehind { .. } | SessionError::Unsaved { .. } => {
                Self::unavailable("store-behind", "Too much is not stored yet.")
            }
            SessionError::Draining => Self::draining(),
            SessionError::Agent(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::NewerTurn { .. } => Self::newer_turn(),
            SessionError::DamagedTurn { .. } => Self::damaged_turn(&error),
            SessionError::InitialHistory | SessionError::Tree(_) | SessionError::NotDurable => {
                Self::internal(&error)
            }
        }
    }
}

impl From<AgentError> for Problem {
    fn from(error: AgentError) -> Self {
        match &error {
            AgentError::Stopped(_) => Self::unavailable("shut-down", "The conversation was closed."),
            AgentError::Busy(status) => Self::conflict("busy", "A run is active.", &error)
                .with_member("activity", serde_json::to_value(status).unwrap_or_default()),
            AgentError::ResultsWhileBusy => Self::conflict("busy", "A run is active.", &error),
            AgentError::Idle => Self::conflict("idle", "No run is active.", &error),
            AgentError::NotPaused(_) => {
                Self::conflict("not-paused", "No tool use waits for a decision.", &error)
            }
            AgentError::StaleResume { waiting, .. } => {
                Self::stale_decision(serde_json::to_value(waiting).unwrap_or_default())
            }
            AgentError::DeepDecision { .. } => Self::invalid_body(&error),
            AgentError::EmptyPrompt => Self::unfit("empty-prompt", "The prompt is empty.", &error),
            AgentError::InvalidPrompt(_)
            | AgentError::InvalidPromptId { .. }
            | AgentError::LargeAppData { .. }
            | AgentError::DeepAppData { .. }
            | AgentError::ZeroSteps
            | AgentError::ZeroTimeout
            | AgentError::InvalidOutputSchema(_) => Self::invalid_prompt(error.to_string()),
            AgentError::KnownPrompt(state) => {
                Self::conflict("known-prompt", "The prompt was accepted before.", &error)
                    .with_member("state", serde_json::to_value(state).unwrap_or_default())
            }
            AgentError::QueueFull(_) => Self::conflict("queue-full", "Too many prompts are staged.", &error),
            AgentError::NotAtStep => {
                Self::unfit("not-at-step", "The prompt cannot join the turn in flight.", &error)
            }
            AgentError::NotStaged(_) => Self::conflict("not-staged", "The prompt is not staged.", &error),
            AgentError::NotAPrompt => Self::unfit("not-a-prompt", "The message is not a prompt.", &error),
            AgentError::Model(_) => Self::unfit("unknown-model", "This model cannot be used.", &error),
            AgentError::CommitBehind(_) | AgentError::TooManyEvents(_) => {
                Self::unavailable("store-behind", "Too much is waiting to be processed.")
            }
            AgentError::OnHold(_) => Self::draining(),
            AgentError::Moved
            | AgentError::LongName { .. }
            | AgentError::NoModel
            | AgentError::InvalidHistory(_)
            | AgentError::HistoryOwned
            | AgentError::InvalidTools(_)
            | AgentError::Refused(_)
            | AgentError::Panicked(..)
            | AgentError::Cancelled(_)
            | AgentError::Failed(..)
            | AgentError::Output(..)
            | AgentError::Deadline { .. } => Self::internal(&error),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::AlreadyExists { .. } => {
                Self::conflict("already-exists", "The conversation already exists.", &error)
            }
            StoreError::NotFound { .. } => Self::not_found(),
            StoreError::Conflict { .. } => {
                Self::conflict("conflict", "The conversation was changed at the same time.", &error)
            }
            StoreError::Owned { owner, .. } => Self::elsewhere(owner),
            StoreError::LeaseLost { .. } => Self::new(
                StatusCode::MISDIRECTED_REQUEST,
                "open-elsewhere",
                "Another process has this conversation open.",
            ),
            StoreError::Busy { .. } | StoreError::Full { .. } | StoreError::Unreachable { .. } => {
                tracing::warn!(error = error_chain(&error), "the store cannot be used");
                Self::unavailable("store-unreachable", "The conversations cannot be reached now.")
            }
            StoreError::Unstorable { .. } => {
                Self::unfit("unstorable", "The content cannot be stored.", &error)
            }
            StoreError::Unsupported { operation } => {
                Self::unfit("unsupported", "The store does not support this operation.", &error)
                    .with_member("operation", *operation)
            }
            StoreError::InvalidQuery { .. } => {
                Self::unfit("invalid-query", "The search cannot be understood.", &error)
            }
            StoreError::Damaged { .. }
            | StoreError::UnknownFormat { .. }
            | StoreError::Denied { .. }
            | StoreError::Misconfigured { .. }
            | StoreError::Failed { .. } => Self::internal(&error),
        }
    }
}

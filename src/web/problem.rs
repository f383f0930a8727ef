//! Errors as `application/problem+json` (RFC 9457).

use std::{borrow::Cow, fmt, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use super::proxy::OpenElsewhere;
use crate::{
    error::error_chain,
    run::{Error, ErrorKind},
    store::StoreError,
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
pub struct Problem(Box<ProblemFacts>);

#[derive(Clone, Debug)]
struct ProblemFacts {
    status: StatusCode,
    code: Cow<'static, str>,
    title: Cow<'static, str>,
    detail: Option<String>,
    members: Map<String, Value>,
    retry_after: Option<Duration>,
    challenge: Option<HeaderValue>,
    elsewhere: Option<OpenElsewhere>,
}

impl Problem {
    /// Returns a problem with this status, code and title. The code names the kind of problem for programs.
    pub fn new(
        status: StatusCode,
        code: impl Into<Cow<'static, str>>,
        title: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(ProblemFacts {
            status,
            code: code.into(),
            title: title.into(),
            detail: None,
            members: Map::new(),
            retry_after: None,
            challenge: None,
            elsewhere: None,
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
        let ProblemFacts { status, code, title, detail, members, .. } = &*self.0;
        let mut body = Map::new();
        body.insert("type".into(), format!("urn:omni-agent:{code}").into());
        body.insert("title".into(), title.as_ref().into());
        body.insert("status".into(), status.as_u16().into());
        body.extend(detail.as_ref().map(|detail| ("detail".into(), detail.as_str().into())));
        body.extend(members.iter().map(|(name, value)| (name.clone(), value.clone())));
        body.into()
    }

    /// Returns the title and the detail.
    #[cfg(feature = "mcp-server")]
    pub(crate) fn words(&self) -> String {
        let texts = [Some(&*self.0.title), self.0.detail.as_deref()].into_iter().flatten();
        texts.collect::<Vec<_>>().join(" ")
    }

    /// Returns the seconds after which a new attempt makes sense, at least one.
    pub(super) fn retry_after(&self) -> Option<u64> {
        self.0.retry_after.map(|after| {
            after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0 || after.is_zero()))
        })
    }

    // ---- the problems of the routes ----

    fn of(status: StatusCode, code: &'static str, title: &'static str, error: &impl fmt::Display) -> Self {
        Self::new(status, code, title).with_detail(error.to_string())
    }

    /// Returns the problem for an unknown or forbidden conversation. It is the same in both cases, so that a client
    /// can't tell whether the conversation exists.
    pub(crate) fn not_found() -> Self {
        ErrorKind::NotFound.into()
    }

    pub(super) fn nothing_here(what: &'static str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", what)
    }

    pub(super) fn forbidden(detail: &'static str) -> Self {
        Error::new(ErrorKind::NotPermitted, detail).into()
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large.")
            .with_member("limit", limit)
    }

    pub(super) fn invalid_body(error: &impl fmt::Display) -> Self {
        Error::new(ErrorKind::InvalidDecision, error.to_string()).into()
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
        Error::new(ErrorKind::InvalidPrompt, detail.into()).into()
    }

    pub(super) fn unknown_model(model: &str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-model", "This model cannot be chosen.")
            .with_member("model", model)
    }

    pub(super) fn draining() -> Self {
        ErrorKind::Draining.into()
    }

    pub(super) fn stale_decision(waiting: Value) -> Self {
        Self::from(ErrorKind::StaleDecision).with_member("waiting", waiting)
    }

    /// Returns the problem for an error whose text clients must not see. The error itself is only logged, together with
    /// the id of the incident that the client gets.
    fn incident(error: &Error) -> Self {
        let (kind, incident) = (error.kind(), format!("{:016x}", rand::random::<u64>()));
        tracing::error!(incident, error = error_chain(error), "a request failed");
        let mut detail = "The log of the server contains the cause under the incident's id.".to_owned();
        if kind == ErrorKind::DamagedTurn {
            let advice = "The operator can discard this answer, and open the rest of the conversation. ";
            detail.insert_str(0, advice);
        }
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, kind.code(), kind.title())
            .with_detail(detail)
            .with_member("incident", incident)
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
        if let Some(elsewhere) = self.0.elsewhere {
            response.extensions_mut().insert(elsewhere);
        }
        response
    }
}

/// The members of an error that clients get.
const SHOWN: [&str; 4] = ["activity", "waiting", "state", "operation"];

impl From<Error> for Problem {
    /// A status below 500 shows the text of the error, unless the title says everything. Otherwise clients do not get
    /// the text.
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let detail = match kind {
            _ if status == StatusCode::INTERNAL_SERVER_ERROR => return Self::incident(&error),
            ErrorKind::StoreUnreachable => {
                tracing::warn!(error = error_chain(&error), "the store cannot be used");
                None
            }
            ErrorKind::NewerTurn => Some(
                "This server cannot continue the answer. Try again when the newer version is running here."
                    .to_owned(),
            ),
            ErrorKind::StaleDecision => None,
            ErrorKind::NotPermitted => Some(error.to_string()),
            _ => matches!(error.status(), 400 | 409 | 422).then(|| error.to_string()),
        };
        let mut problem = Self::new(status, kind.code(), kind.title());
        problem.0.detail = detail;
        problem.0.retry_after = error.retry_after().filter(|_| status == StatusCode::SERVICE_UNAVAILABLE);
        for name in SHOWN.into_iter().filter(|_| kind != ErrorKind::NotPaused) {
            let member = error.member(name).map(|value| (name.to_owned(), value.clone()));
            problem.0.members.extend(member);
        }
        if matches!(kind, ErrorKind::OpenElsewhere | ErrorKind::LeaseLost) {
            problem.0.elsewhere = Some(OpenElsewhere(error));
        }
        problem
    }
}

impl From<ErrorKind> for Problem {
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind, kind.title()).into()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

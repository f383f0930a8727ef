//! The HTTP transport.

use std::{
    borrow::Cow,
    collections::HashMap,
    error::Error,
    pin::pin,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use reqwest::{
    Client, RequestBuilder, Response, Url,
    header::{ACCEPT, HeaderName, HeaderValue},
};
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientRequest, DiscoverResult, ErrorCode, ErrorData, InitializeResult,
        JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport, Transport,
        common::client_side_sse::{BoxedSseResponse, ExponentialBackoff},
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    McpError,
    builder::{HttpTarget, McpSettings},
    connection::LONGEST_MESSAGE,
    incoming::{IncomingMcpMessage as _, readable},
};
use crate::{error_chain, provider::http::redirected_client, sync::lock};

#[cfg(feature = "mcp-auth")]
use super::auth::StoredTokenRenewal;

/// The shortest time between two requests for a stream of events. A server could otherwise end each stream at once and
/// make the client send requests without a pause.
const STREAM_INTERVAL: Duration = Duration::from_millis(250);

/// The longest delay before a stream of events is requested again after a failed request.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// How long a server may take to answer `server/discover`, if the client can begin with `initialize` instead. Until the
/// answer, rmcp sends nothing else, and after ten seconds, it no longer waits for the answer.
const DISCOVER_LIMIT: Duration = Duration::from_secs(9);

/// Returns the transport to a server, and the facts that its client records. When `over` is cancelled, all requests of
/// the client end, apart from a renewal of the tokens. Each new session within the connection adds to `changes`.
#[cfg_attr(not(feature = "mcp-auth"), expect(clippy::unused_async, reason = "reading the tokens takes time"))]
pub(super) async fn start(
    target: &HttpTarget,
    settings: &McpSettings,
    over: CancellationToken,
    changes: watch::Sender<u64>,
) -> Result<
    (Arc<McpHttpObservations>, McpQueueLimitedTransport<StreamableHttpClientTransport<McpHttpClient>>),
    McpError,
> {
    let wrong = |reason: String| settings.misconfigured(reason);
    let url = Url::parse(&target.url).map_err(|error| wrong(format!("the URL is invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("the URL must start with `http://` or `https://`".to_owned()));
    }
    let mut headers = Headers::new();
    for (name, value) in &target.headers {
        let parsed = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
        let Some((header, mut value)) = parsed else {
            return Err(wrong(format!("the header {name:?} has an invalid name or value")));
        };
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    let unreachable = |error: &(dyn Error + 'static)| settings.unreachable(error_chain(error));
    let limit = settings.connect_limit;
    let client = redirected_client(&url, limit).map_err(|error| unreachable(&error))?;
    #[cfg(feature = "mcp-auth")]
    let tokens = match &target.tokens {
        None => None,
        Some(store) => {
            let tokens = timeout(limit, StoredTokenRenewal::new(&target.url, store, &settings.secrets)).await;
            Some(tokens.map_err(|_| settings.timed_out(limit))?.map_err(|error| unreachable(&error))?)
        }
    };
    let mut config =
        StreamableHttpClientTransportConfig::with_uri(target.url.as_str()).custom_headers(headers);
    config.retry_config = Arc::new(backoff());
    let observed = Arc::<McpHttpObservations>::default();
    let client = McpHttpClient {
        client,
        observed: Arc::clone(&observed),
        over,
        changes,
        discover_limit: settings.version.is_none().then_some(DISCOVER_LIMIT),
        #[cfg(feature = "mcp-auth")]
        tokens,
    };
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let transport = McpQueueLimitedTransport::new(transport, Arc::clone(&observed.fault));
    Ok((observed, transport))
}

fn backoff() -> ExponentialBackoff {
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(LONGEST_DELAY);
    backoff
}

/// Returns the error for a request that the server refused with a status of HTTP. The connection remains usable. `None`
/// if the request failed for another reason.
pub(super) fn refusal(error: &DynamicTransportError, settings: &McpSettings) -> Option<McpError> {
    let (scope, challenge) = match error.error.downcast_ref::<McpHttpError>()? {
        McpHttpError::AuthRequired(error) => (None, Some(&*error.www_authenticate_header)),
        McpHttpError::InsufficientScope(error)
            if error.www_authenticate_header.contains("insufficient_scope") =>
        {
            (error.required_scope.as_deref(), Some(&*error.www_authenticate_header))
        }
        McpHttpError::InsufficientScope(_) => return Some(settings.refused("HTTP 403 Forbidden")),
        McpHttpError::HttpStatus(error) => return Some(settings.refused(&error.to_string())),
        failure if is_unauthorized(failure) => (None, None),
        McpHttpError::UnexpectedServerResponse(text)
            if text.starts_with("HTTP ") || text.starts_with(REDIRECTED) || is_unreadable(text) =>
        {
            return Some(settings.refused(text));
        }
        _ => return None,
    };
    Some(settings.unauthorized(scope, challenge))
}

type McpHttpError = StreamableHttpError<reqwest::Error>;

/// Returns whether the server refused a request with the status 401. If the response lacks a challenge, rmcp reports the
/// status only as text.
fn is_unauthorized(failure: &McpHttpError) -> bool {
    match failure {
        McpHttpError::AuthRequired(_) => true,
        McpHttpError::UnexpectedServerResponse(text) => text.starts_with("HTTP 401"),
        _ => false,
    }
}

/// Returns whether this answer to `server/discover` can be that of a server, or of a gateway in front of it, that knows
/// only `initialize`. A failure of the network and a required login are other failures.
fn refuses_discovery(failure: &McpHttpError) -> bool {
    match failure {
        McpHttpError::HttpStatus(_) | McpHttpError::UnexpectedContentType(_) => true,
        McpHttpError::InsufficientScope(error) => {
            !error.www_authenticate_header.contains("insufficient_scope")
        }
        McpHttpError::UnexpectedServerResponse(text) => {
            !is_unauthorized(failure) && (text.starts_with("HTTP ") || is_unreadable(text))
        }
        _ => false,
    }
}

/// Returns the error after which rmcp sends `initialize`, if the application did not choose a version without it.
fn unknown(reason: impl Into<Cow<'static, str>>) -> ErrorData {
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, reason, None)
}

/// Returns whether this is rmcp's text for a JSON body that it can't read.
fn is_unreadable(text: &str) -> bool {
    text.starts_with("could not parse JSON response")
}

/// Returns whether the reason of a refusal can be that the server no longer knows the session.
fn names_session(reason: &str) -> bool {
    let reason = reason.to_ascii_lowercase();
    // A server that makes a new transport for an old id says the second text.
    ["session", "not initialized"].iter().any(|text| reason.contains(text))
}

/// Returns the error with which the connection is lost, so that the next request opens another session.
fn refused_session(reason: &str) -> McpHttpError {
    McpHttpError::UnexpectedServerResponse(format!("the session was refused: {reason}").into())
}

/// Returns the body of a response, or `None` if it has more than `longest` bytes.
pub(super) async fn body(response: &mut Response, longest: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > longest {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}

/// Sends a request again whose answer as JSON rmcp could not read, for example because it is nested too deeply.
async fn readable_answer(request: RequestBuilder) -> Result<StreamableHttpPostResponse, McpHttpError> {
    let body = body(&mut request.send().await?.error_for_status()?, LONGEST_MESSAGE).await?;
    let body = body.ok_or(McpHttpError::ResponseBodyTooLarge { max_size: LONGEST_MESSAGE })?;
    let text = readable::<ServerJsonRpcMessage>(&body).unwrap_or(body);
    Ok(StreamableHttpPostResponse::Json(serde_json::from_slice(&text)?, None))
}

/// The beginning of the text about a redirect that is not followed.
const REDIRECTED: &str = "the redirect is not followed: ";

/// Removes the URL, whose query may contain secrets, because rmcp logs the error. The reason why a redirect is not
/// followed becomes part of the text, because rmcp's error does not name its cause.
fn without_url(failure: McpHttpError) -> McpHttpError {
    match failure {
        McpHttpError::Client(error) if error.is_redirect() => {
            let reason = error_chain(&error.without_url());
            McpHttpError::UnexpectedServerResponse(format!("{REDIRECTED}{reason}").into())
        }
        McpHttpError::Client(error) => McpHttpError::Client(error.without_url()),
        other => other,
    }
}

type Headers = HashMap<HeaderName, HeaderValue>;

/// Facts about a connection that rmcp does not expose: the last failure of its event streams, and its protocol session.
#[derive(Default)]
pub(super) struct McpHttpObservations {
    failure: Mutex<Option<String>>,
    /// The id of the protocol session, which servers of versions before 2026-07-28 choose.
    session: Mutex<Option<Arc<str>>>,
    /// The earliest time of the next request for a stream of events.
    next_stream: Mutex<Option<Instant>>,
    fault: McpServerFault,
}

impl McpHttpObservations {
    /// Returns the id of the protocol session, if there is one.
    pub(super) fn session(&self) -> Option<Arc<str>> {
        lock(&self.session).clone()
    }

    /// Returns a suffix for the text of an error: the fault for which the client ended the connection, or else the
    /// reason why a stream of events failed. Empty if neither happened.
    pub(super) fn ending(&self) -> String {
        if let Some(reason) = self.fault.get() {
            return format!(": {reason}");
        }
        lock(&self.failure).as_ref().map_or_else(String::new, |failure| format!(": {failure}"))
    }
}

/// A client that sends the stored tokens, if the settings have a store. It records why a stream of events fails, because
/// rmcp only logs the reason, and the id of the protocol session.
///
/// The client of rmcp renews the tokens for each request that was rejected, even if another request has renewed them in
/// the meantime. If the server ends the earlier tokens at each renewal, the first request would then fail. So this client
/// renews a token once.
///
/// Its requests and streams end when the connection is over, because rmcp's task waits for the answers of the handshake
/// even if nobody needs the connection. The request that ends the protocol session is the last one, so it has a time
/// limit instead, which rmcp sets.
#[derive(Clone)]
pub(super) struct McpHttpClient {
    client: Client,
    observed: Arc<McpHttpObservations>,
    over: CancellationToken,
    /// The number of changes of the tool list.
    changes: watch::Sender<u64>,
    /// `None` if the application chose the version of the protocol.
    discover_limit: Option<Duration>,
    #[cfg(feature = "mcp-auth")]
    tokens: Option<StoredTokenRenewal>,
}

impl McpHttpClient {
    /// Sends a request with the stored token. If the server rejects the token, sends the request once more with the
    /// renewed token.
    async fn send<T, F>(&self, call: impl Fn(Option<String>) -> F) -> Result<T, McpHttpError>
    where
        F: Future<Output = Result<T, McpHttpError>>,
    {
        let call = |token| call(token).map_err(without_url);
        #[cfg(feature = "mcp-auth")]
        if let Some(tokens) = &self.tokens {
            let sent = tokens.token(None).await?;
            let answer = call(sent.clone()).await;
            let (Some(sent), Err(failure)) = (sent, &answer) else { return answer };
            if !is_unauthorized(failure) {
                return answer;
            }
            return match tokens.token(Some(&sent)).await? {
                Some(token) if token != sent => call(Some(token)).await,
                _ => answer,
            };
        }
        call(None).await
    }

    async fn unless_over<T>(
        &self,
        request: impl Future<Output = Result<T, McpHttpError>>,
    ) -> Result<T, McpHttpError> {
        let answered = self.over.run_until_cancelled(request).await;
        answered.unwrap_or(Err(McpHttpError::TransportChannelClosed))
    }

    /// Waits until the next stream of events may be requested.
    async fn next_stream(&self) {
        let due = {
            let mut next = lock(&self.observed.next_stream);
            let now = Instant::now();
            let due = next.map_or(now, |next| next.max(now));
            *next = Some(due + STREAM_INTERVAL);
            due
        };
        sleep_until(due).await;
    }

    /// Returns the answer to `server/discover`. If there is none, as from some servers that know only `initialize`, returns
    /// the error for an unknown request. Events that are not answers are skipped.
    async fn discovered(
        &self,
        posted: impl Future<Output = Result<StreamableHttpPostResponse, McpHttpError>>,
        id: &RequestId,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        let unanswered = |session| {
            let error = JsonRpcMessage::error(unknown("there was no answer"), Some(id.clone()));
            StreamableHttpPostResponse::Json(error, session)
        };
        let answered = async {
            let (events, session) = match posted.await? {
                StreamableHttpPostResponse::Sse(events, session) => (self.observe(events), session),
                answer @ StreamableHttpPostResponse::Json(..) => return Ok(answer),
                _ => return Ok(unanswered(None)),
            };
            let mut answers = pin!(events.filter_map(async |event| {
                let answer: ServerJsonRpcMessage = serde_json::from_str(event.ok()?.data.as_deref()?).ok()?;
                matches!(answer, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)).then_some(answer)
            }));
            Ok(match answers.next().await {
                Some(answer) => StreamableHttpPostResponse::Json(answer, session),
                None => unanswered(session),
            })
        };
        match self.discover_limit {
            Some(limit) => timeout(limit, answered).await.unwrap_or_else(|_| Ok(unanswered(None))),
            None => answered.await,
        }
    }

    fn observe(&self, events: BoxedSseResponse) -> BoxedSseResponse {
        let observed = Arc::clone(&self.observed);
        let record = move |event: &Result<_, _>| {
            if let Err(error) = event {
                *lock(&observed.failure) = Some(error_chain(error));
            }
        };
        let events = events.inspect(record).map_ok(|mut event| {
            let text = event.data.as_deref().filter(|text| !text.trim().is_empty());
            let readable = text.and_then(|text| readable::<ServerJsonRpcMessage>(text.as_bytes()));
            event.data = readable.and_then(|text| String::from_utf8(text).ok()).or(event.data);
            // rmcp ignores events of other names, but some servers send errors in events named `error`.
            let name = event.event.as_deref().filter(|name| !matches!(*name, "" | "message"));
            let envelope = name.and(event.data.as_deref());
            let envelope = envelope.and_then(|text| serde_json::from_str::<Value>(text).ok());
            event.event =
                event.event.filter(|_| envelope.is_none_or(|envelope| envelope["jsonrpc"] != "2.0"));
            event
        });
        events.take_until(self.over.clone().cancelled_owned()).boxed()
    }
}

/// The transport passes no token, because its configuration has none. Its limits are replaced by [`LONGEST_MESSAGE`].
impl StreamableHttpClient for McpHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        let mut limits = StreamableHttpResponseLimits::default();
        (limits.max_sse_event_size, limits.max_json_response_size) = (LONGEST_MESSAGE, LONGEST_MESSAGE);
        // Only a request that changes nothing at the server may be sent again.
        let is_repeatable = matches!(&message, JsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::ListToolsRequest(_)));
        let discover = match &message {
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                Some(&request.id)
            }
            _ => None,
        };
        let (uri, message, session, headers) = (&uri, &message, &session, &headers);
        let posted = self.send(|token| async move {
            let (target, sent, id) = (Arc::clone(uri), message.clone(), session.clone());
            let posted = self.client.post_message_with_response_limits(
                target,
                sent,
                id,
                token.clone(),
                headers.clone(),
                limits,
            );
            let posted = Box::pin(async {
                match discover {
                    Some(id) => self.discovered(posted, id).await,
                    None => posted.await,
                }
            });
            match self.unless_over(posted).await {
                Err(McpHttpError::UnexpectedServerResponse(text))
                    if is_repeatable && is_unreadable(&text) =>
                {
                    let again = self.client.post(&**uri).json(message);
                    let again = again.header(ACCEPT, "application/json, text/event-stream");
                    let again = headers.iter().fold(again, |again, (name, value)| again.header(name, value));
                    let again = token.iter().fold(again, RequestBuilder::bearer_auth);
                    let again = session.iter().fold(again, |again, id| again.header("mcp-session-id", &**id));
                    self.unless_over(readable_answer(again)).await
                }
                posted => posted,
            }
        });
        let posted = posted.await;
        if let Err(McpHttpError::UnexpectedServerResponse(reason)) = &posted
            && session.is_some()
            && ["HTTP 400", "HTTP 409", "HTTP 410", "HTTP 422"]
                .iter()
                .any(|status| reason.starts_with(status))
            && names_session(reason)
        {
            return Err(refused_session(reason));
        }
        if let (Some(id), Err(failure)) = (discover, &posted)
            && refuses_discovery(failure)
        {
            let unknown = JsonRpcMessage::error(unknown(error_chain(failure)), Some(id.clone()));
            return Ok(StreamableHttpPostResponse::Json(unknown, None));
        }
        let mut posted = posted?;
        if let StreamableHttpPostResponse::Json(answer, _) = &mut posted
            && answer.is_doubtful()
            && let Some(text) = readable::<ServerJsonRpcMessage>(&serde_json::to_vec(answer)?)
        {
            *answer = serde_json::from_slice(&text)?;
        }
        if let (
            JsonRpcMessage::Request(request),
            StreamableHttpPostResponse::Json(JsonRpcMessage::Error(answer), _),
        ) = (message, &mut posted)
            && answer.id.as_ref().is_none_or(|id| id.to_string() != request.id.to_string())
        {
            let reason = &answer.error.message;
            if session.is_some() && names_session(reason) {
                return Err(refused_session(reason));
            }
            // A server that refuses a request before it reads the request does not know its id.
            answer.id = Some(request.id.clone());
        }
        if let StreamableHttpPostResponse::Sse(_, Some(id)) | StreamableHttpPostResponse::Json(_, Some(id)) =
            &posted
        {
            let earlier = lock(&self.observed.session).replace(id.as_str().into());
            let initializes = matches!(message, JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::InitializeRequest(_)));
            if initializes && earlier.is_some() {
                // rmcp has replaced a session that the server no longer knows. The server may offer other tools now.
                self.changes.send_modify(|count| *count += 1);
            }
        }
        if let StreamableHttpPostResponse::Sse(events, session) = posted {
            posted = StreamableHttpPostResponse::Sse(self.observe(events), session);
        }
        Ok(posted)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<(), McpHttpError> {
        self.send(|token| {
            self.client.delete_session(Arc::clone(&uri), Arc::clone(&session), token, headers.clone())
        })
        .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<BoxedSseResponse, McpHttpError> {
        let events = self.send(|token| {
            let (uri, session, last, headers) =
                (Arc::clone(&uri), session.clone(), last.clone(), headers.clone());
            self.unless_over(async move {
                self.next_stream().await;
                let limit = LONGEST_MESSAGE;
                self.client
                    .get_stream_with_max_sse_event_size(uri, session, last, token, headers, limit)
                    .await
            })
        });
        Ok(self.observe(events.await?))
    }
}

// The parts that all transports share: a limit for the messages that wait to be sent, and late answers of the handshake.

/// The maximum number of messages that wait because the server does not read them.
const MOST_WAITING: usize = 1000;

/// How long the end of a transport may take. A program is killed earlier, and a protocol session is deleted earlier.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The fault of the server for which the client ended the connection, if there is one.
pub(super) type McpServerFault = Arc<OnceLock<&'static str>>;

/// A transport that ends the connection if too many messages wait. Calls of tools do not count, because the application
/// decides how many calls run. All other messages do: they answer requests of the server, or cancel calls.
pub(super) struct McpQueueLimitedTransport<T> {
    /// `None` after the end.
    inner: Option<T>,
    /// Each message that waits to be sent holds a clone of this pointer, so the clones count these messages.
    waiting: Arc<()>,
    fault: McpServerFault,
    handshake: SentHandshakeRequests,
}

impl<T> McpQueueLimitedTransport<T> {
    pub(super) fn new(inner: T, fault: McpServerFault) -> Self {
        Self { inner: Some(inner), waiting: Arc::new(()), fault, handshake: SentHandshakeRequests::default() }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for McpQueueLimitedTransport<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.handshake.sent(&message);
        let is_request = matches!(message, JsonRpcMessage::Request(_));
        let waiting = (!is_request).then(|| Arc::clone(&self.waiting));
        let sent = self.inner.as_mut().map(|inner| inner.send(message));
        async move {
            let sent = match sent {
                Some(sent) => sent.await,
                None => Ok(()),
            };
            drop(waiting);
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if Arc::strong_count(&self.waiting) > MOST_WAITING {
                let _ =
                    self.fault.set("more than 1,000 messages wait, because the server does not read them");
                self.inner = None;
            }
            let message = self.inner.as_mut()?.receive().await?;
            if let Some(message) = self.handshake.received(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        let Some(mut inner) = self.inner.take() else { return Ok(()) };
        // rmcp's task for HTTP does not notice the end while it waits for a reader of its messages. It ends when the
        // transport is dropped.
        timeout(CLOSE_LIMIT, inner.close()).await.unwrap_or(Ok(()))
    }
}

/// The requests of the handshake that have no answer yet.
///
/// rmcp first sends `server/discover`. If no answer arrives within ten seconds, it sends `initialize`, and would then fail
/// because of the late answer to the first request.
#[derive(Default)]
struct SentHandshakeRequests {
    discover: Option<RequestId>,
    initialize: Option<RequestId>,
    /// The late answer to `server/discover`.
    discovered: Option<DiscoverResult>,
}

impl SentHandshakeRequests {
    fn sent(&mut self, message: &TxJsonRpcMessage<RoleClient>) {
        let JsonRpcMessage::Request(message) = message else { return };
        match &message.request {
            ClientRequest::DiscoverRequest(_) => self.discover = Some(message.id.clone()),
            ClientRequest::InitializeRequest(_) => self.initialize = Some(message.id.clone()),
            _ => {}
        }
    }

    /// Returns the message for rmcp, or `None` if the message is a late answer.
    fn received(&mut self, message: RxJsonRpcMessage<RoleClient>) -> Option<RxJsonRpcMessage<RoleClient>> {
        // Some servers return the number of a request as text.
        let id = match &message {
            JsonRpcMessage::Response(response) => Some(response.id.to_string()),
            JsonRpcMessage::Error(error) => error.id.as_ref().map(ToString::to_string),
            _ => return Some(message),
        };
        // An error without an id belongs to the earliest request.
        let is_answered = |own: &mut RequestId| id.as_ref().is_none_or(|id| *id == own.to_string());
        if let Some(id) = self.discover.take_if(is_answered) {
            let found = match &message {
                JsonRpcMessage::Response(response) => Some(&response.result),
                _ => None,
            };
            return match (self.initialize.is_some(), found) {
                (true, Some(ServerResult::DiscoverResult(found))) => {
                    self.discovered = Some(found.clone());
                    None
                }
                (true, _) => None,
                (false, _) => Some(match initialize_reason(&message) {
                    Some(reason) => JsonRpcMessage::error(unknown(reason), Some(id)),
                    None => message,
                }),
            };
        }
        let id = self.initialize.take_if(is_answered);
        match (&message, id, self.discovered.take()) {
            // A server that has only versions without `initialize` refuses this request. Its late answer then counts.
            (JsonRpcMessage::Error(_), Some(id), Some(found)) => {
                Some(initialized(id, &found).unwrap_or(message))
            }
            _ => Some(message),
        }
    }
}

/// Returns why an answer to `server/discover` is that of a server with which a connection begins with `initialize`. `None`
/// if rmcp must see the answer.
fn initialize_reason(answer: &RxJsonRpcMessage<RoleClient>) -> Option<String> {
    let supported = match answer {
        JsonRpcMessage::Response(response) => match &response.result {
            ServerResult::DiscoverResult(found) => found.supported_versions.clone(),
            // Some old servers answer a request that they do not know with an empty result.
            _ => return Some("unknown".to_owned()),
        },
        JsonRpcMessage::Error(error) if error.error.code == ErrorCode::UNSUPPORTED_PROTOCOL_VERSION => {
            let supported = error.error.data.as_ref().and_then(|data| data.get("supported"));
            supported.and_then(|supported| Vec::deserialize(supported).ok()).unwrap_or_default()
        }
        _ => return None,
    };
    let is_old = supported.iter().all(ProtocolVersion::has_initialize);
    let names = || supported.iter().map(ProtocolVersion::as_str).collect::<Vec<_>>().join(", ");
    is_old.then(|| format!("its protocol versions are older: {}", names()))
}

/// Returns an answer to `initialize` that contains an answer to `server/discover`.
fn initialized(id: RequestId, discovered: &DiscoverResult) -> Option<RxJsonRpcMessage<RoleClient>> {
    let version = ProtocolVersion::V_2026_07_28;
    let mut result = InitializeResult::new(discovered.capabilities.clone());
    result.server_info = discovered.server_info().unwrap_or(result.server_info);
    result.protocol_version = discovered.supported_versions.iter().find(|found| **found == version)?.clone();
    Some(JsonRpcMessage::response(ServerResult::InitializeResult(result), id))
}

#[cfg(test)]
mod tests {
    use rmcp::transport::common::client_side_sse::SseRetryPolicy as _;

    use super::*;

    #[test]
    fn backoff_after_many_failures_stays_at_the_longest_delay() {
        assert_eq!(backoff().retry(1), Some(Duration::from_secs(2)));
        assert_eq!(backoff().retry(40), Some(LONGEST_DELAY));
    }
}

#[cfg(test)]
mod bounded_tests {
    use rmcp::{
        service::{ClientLifecycleMode, ClientServiceExt as _},
        transport::async_rw::AsyncRwTransport,
    };
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, duplex, split};

    use super::*;

    async fn read(server: &mut BufReader<DuplexStream>, method: &str) -> Value {
        let mut line = String::new();
        server.read_line(&mut line).await.unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["method"], method);
        message["id"].clone()
    }

    /// Connects to a server that answers only when it has both requests. Returns the protocol version, or the error.
    async fn version(late: Value, initialized: Value) -> Result<String, String> {
        let (ours, theirs) = duplex(64 * 1024);
        let (input, output) = split(ours);
        let transport =
            McpQueueLimitedTransport::new(AsyncRwTransport::new(input, output), McpServerFault::default());
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let mut server = BufReader::new(theirs);
        let answers = async {
            read(&mut server, "server/discover").await;
            let id = read(&mut server, "initialize").await;
            for (mut answer, id) in [(late, json!(0)), (initialized, id)] {
                answer["jsonrpc"] = "2.0".into();
                if answer["id"].is_null() {
                    answer["id"] = id;
                }
                if answer["id"] == "none" {
                    answer.as_object_mut().unwrap().remove("id");
                }
                server.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            }
            server
        };
        let (connected, _open) = tokio::join!(().serve_with_lifecycle(transport, lifecycle), answers);
        let client = connected.map_err(|error| error.to_string())?;
        Ok(client.peer_info().unwrap().protocol_version.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn connect_late_answer_to_the_first_request_is_never_fatal() {
        let info = json!({ "name": "slow", "version": "1" });
        let discovered = json!({ "result": {
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0,
            "cacheScope": "private", "_meta": { "io.modelcontextprotocol/serverInfo": info },
        } });
        let initialized = json!({ "result": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info,
        } });
        let unknown = json!({ "error": { "code": -32601, "message": "unknown" } });
        let mut nameless = unknown.clone();
        nameless["id"] = "none".into();
        for late in [&discovered, &unknown, &nameless] {
            assert_eq!(version(late.clone(), initialized.clone()).await.unwrap(), "2025-11-25", "{late}");
        }
        assert_eq!(version(discovered, unknown.clone()).await.unwrap(), "2026-07-28");
        assert!(version(unknown.clone(), unknown).await.unwrap_err().contains("unknown"));
    }
}

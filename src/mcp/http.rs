//! The HTTP transport.

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use reqwest::{
    Client, RequestBuilder, Response, Url,
    header::{ACCEPT, HeaderName, HeaderValue},
};
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport,
        common::client_side_sse::{BoxedSseResponse, ExponentialBackoff},
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError,
            StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
#[cfg(feature = "mcp-auth")]
use tokio::time::timeout;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

#[cfg(feature = "mcp-auth")]
use super::auth::TokenSource;
use super::{
    McpError,
    bounded::{Bounded, Fault},
    incoming::readable,
    program::LONGEST_MESSAGE,
    settings::{HttpTarget, Settings},
};
use crate::{provider::http::shared_client, sync::lock};

/// The shortest time between two requests for a stream of events. A server could otherwise end each stream at once and
/// make the client send requests without a pause.
const STREAM_INTERVAL: Duration = Duration::from_millis(250);

/// The longest delay before a stream of events is requested again after a failed request.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Returns the transport to a server, and the facts that its client records. When `over` is cancelled, all requests of
/// the client end, apart from a renewal of the tokens.
#[cfg_attr(not(feature = "mcp-auth"), expect(clippy::unused_async, reason = "reading the tokens takes time"))]
pub(super) async fn start(
    target: &HttpTarget,
    settings: &Settings,
    over: CancellationToken,
) -> Result<(Arc<Observed>, Bounded<StreamableHttpClientTransport<HttpClient>>), McpError> {
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
    let unreachable = |error: &(dyn Error + 'static)| settings.unreachable(crate::error_chain(error));
    let limit = settings.connect_limit;
    let client = shared_client(&url, limit).map_err(|error| unreachable(&error))?;
    #[cfg(feature = "mcp-auth")]
    let tokens = match &target.tokens {
        None => None,
        Some(store) => {
            let tokens = timeout(limit, TokenSource::new(&target.url, store, &settings.secrets)).await;
            Some(tokens.map_err(|_| settings.timed_out(limit))?.map_err(|error| unreachable(&error))?)
        }
    };
    let mut config =
        StreamableHttpClientTransportConfig::with_uri(target.url.as_str()).custom_headers(headers);
    config.retry_config = Arc::new(backoff());
    let observed = Arc::<Observed>::default();
    let client = HttpClient {
        client,
        observed: Arc::clone(&observed),
        over,
        #[cfg(feature = "mcp-auth")]
        tokens,
    };
    let transport = StreamableHttpClientTransport::with_client(client, config);
    let transport = Bounded::new(transport, Arc::clone(&observed.fault));
    Ok((observed, transport))
}

fn backoff() -> ExponentialBackoff {
    let mut backoff = ExponentialBackoff::default();
    backoff.max_delay = Some(LONGEST_DELAY);
    backoff
}

/// Returns the error for a request that the server refused with a status of HTTP. The connection remains usable. `None`
/// if the request failed for another reason.
pub(super) fn refusal(error: &DynamicTransportError, settings: &Settings) -> Option<McpError> {
    let (scope, challenge) = match error.error.downcast_ref::<Failure>()? {
        Failure::AuthRequired(error) => (None, Some(&*error.www_authenticate_header)),
        Failure::InsufficientScope(error) if error.www_authenticate_header.contains("insufficient_scope") => {
            (error.required_scope.as_deref(), Some(&*error.www_authenticate_header))
        }
        Failure::InsufficientScope(_) => return Some(settings.refused("HTTP 403 Forbidden")),
        Failure::HttpStatus(error) => return Some(settings.refused(&error.to_string())),
        failure if is_unauthorized(failure) => (None, None),
        Failure::UnexpectedServerResponse(text) if text.starts_with("HTTP ") || is_unreadable(text) => {
            return Some(settings.refused(text));
        }
        _ => return None,
    };
    Some(settings.unauthorized(scope, challenge))
}

type Failure = StreamableHttpError<reqwest::Error>;

/// Returns whether the server refused a request with the status 401. If the response lacks a challenge, rmcp reports the
/// status only as text.
fn is_unauthorized(failure: &Failure) -> bool {
    match failure {
        Failure::AuthRequired(_) => true,
        Failure::UnexpectedServerResponse(text) => text.starts_with("HTTP 401"),
        _ => false,
    }
}

/// Returns whether this is rmcp's text for a JSON body that it can't read.
fn is_unreadable(text: &str) -> bool {
    text.starts_with("could not parse JSON response")
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
async fn readable_answer(request: RequestBuilder) -> Result<StreamableHttpPostResponse, Failure> {
    let body = body(&mut request.send().await?.error_for_status()?, LONGEST_MESSAGE).await?;
    let body = body.ok_or(Failure::ResponseBodyTooLarge { max_size: LONGEST_MESSAGE })?;
    let text = readable::<ServerJsonRpcMessage>(&body).unwrap_or(body);
    Ok(StreamableHttpPostResponse::Json(serde_json::from_slice(&text)?, None))
}

/// Removes the URL, whose query may contain secrets, because rmcp logs the error.
fn without_url(failure: Failure) -> Failure {
    match failure {
        Failure::Client(error) => Failure::Client(error.without_url()),
        other => other,
    }
}

type Headers = HashMap<HeaderName, HeaderValue>;

/// Facts about a connection that rmcp does not expose: the last failure of its event streams, and its protocol session.
#[derive(Default)]
pub(super) struct Observed {
    failure: Mutex<Option<String>>,
    /// The id of the protocol session, which servers of versions before 2026-07-28 choose.
    session: Mutex<Option<Arc<str>>>,
    /// The earliest time of the next request for a stream of events.
    next_stream: Mutex<Option<Instant>>,
    fault: Fault,
}

impl Observed {
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
pub(super) struct HttpClient {
    client: Client,
    observed: Arc<Observed>,
    over: CancellationToken,
    #[cfg(feature = "mcp-auth")]
    tokens: Option<TokenSource>,
}

impl HttpClient {
    /// Sends a request with the stored token. If the server rejects the token, sends the request once more with the
    /// renewed token.
    async fn send<T, F>(&self, call: impl Fn(Option<String>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
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

    async fn unless_over<T>(&self, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let answered = self.over.run_until_cancelled(request).await;
        answered.unwrap_or(Err(Failure::TransportChannelClosed))
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

    fn observe(&self, events: BoxedSseResponse) -> BoxedSseResponse {
        let observed = Arc::clone(&self.observed);
        let record = move |event: &Result<_, _>| {
            if let Err(error) = event {
                *lock(&observed.failure) = Some(crate::error_chain(error));
            }
        };
        let events = events.inspect(record).map_ok(|mut event| {
            let text = event.data.as_deref().filter(|text| !text.trim().is_empty());
            let readable = text.and_then(|text| readable::<ServerJsonRpcMessage>(text.as_bytes()));
            event.data = readable.and_then(|text| String::from_utf8(text).ok()).or(event.data);
            event
        });
        events.take_until(self.over.clone().cancelled_owned()).boxed()
    }
}

/// The transport passes no token, because its configuration has none. Its limits are replaced by [`LONGEST_MESSAGE`].
impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let mut limits = StreamableHttpResponseLimits::default();
        (limits.max_sse_event_size, limits.max_json_response_size) = (LONGEST_MESSAGE, LONGEST_MESSAGE);
        // Only a request that changes nothing at the server may be sent again.
        let is_repeatable = matches!(&message, JsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::ListToolsRequest(_)));
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
            match self.unless_over(posted).await {
                Err(Failure::UnexpectedServerResponse(text)) if is_repeatable && is_unreadable(&text) => {
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
        let mut posted = posted.await?;
        if let StreamableHttpPostResponse::Sse(_, Some(id)) | StreamableHttpPostResponse::Json(_, Some(id)) =
            &posted
        {
            *lock(&self.observed.session) = Some(id.as_str().into());
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
    ) -> Result<(), Failure> {
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
    ) -> Result<BoxedSseResponse, Failure> {
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

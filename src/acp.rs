//! The messages of the Agent Client Protocol: JSON-RPC, one message per line. Serves both sides: the agents that are
//! backends of this crate, and the editors to which this crate is an agent.
//!
//! The messages are parsed and written here, because the implementation of the protocol in the crate
//! `agent-client-protocol` would queue them without a limit.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use agent_client_protocol_schema::v1::{Error, ErrorCode};
use rand::RngExt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use crate::{json::halves, sync::lock};

/// The maximum length of a message in bytes.
pub(crate) const LONGEST: usize = 32 * 1024 * 1024;

/// The maximum number of consecutive lines that are not messages.
pub(crate) const MOST_NOISE: usize = 1000;

/// The maximum total size in bytes of the messages in transit.
const BUDGET: u32 = 8 * 1024 * 1024;

/// The part of the budget that a message takes at least if its sender waits for room. So at most 32 such messages wait
/// to be written.
const LEAST: usize = 256 * 1024;

/// A message of the other side.
#[derive(Debug, PartialEq)]
pub(crate) enum AcpMessage {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    Response {
        id: Value,
        answer: AcpRequestResult,
    },
    /// Not a message. The error describes why.
    Invalid {
        id: Value,
        error: Error,
    },
}

/// The result of a request, or the error with which it was refused.
pub(crate) type AcpRequestResult = Result<Value, Error>;

impl AcpMessage {
    /// Interprets a line strictly.
    pub(crate) fn parse(line: &[u8]) -> Self {
        match halves::parse(line) {
            Ok(Value::Object(object)) => Self::new(object),
            Ok(_) => {
                let why = "a message is one JSON object; batches are not supported";
                Self::Invalid { id: Value::Null, error: Error::invalid_request().data(why.to_owned()) }
            }
            Err(error) => {
                Self::Invalid { id: Value::Null, error: Error::parse_error().data(error.to_string()) }
            }
        }
    }

    /// Interprets the JSON object of a message.
    pub(crate) fn new(mut object: Map<String, Value>) -> Self {
        let invalid = |id: Option<Value>, why: &str| Self::Invalid {
            id: id.unwrap_or_default(),
            error: Error::invalid_request().data(why.to_owned()),
        };
        let id = object.remove("id");
        if id.as_ref().is_some_and(|id| !(id.is_string() || id.is_number() || id.is_null())) {
            return invalid(None, "an id is a text or a number");
        }
        let params = object.remove("params").unwrap_or_default();
        match (object.remove("method"), id) {
            (Some(Value::String(method)), Some(id)) => Self::Request { id, method, params },
            (Some(Value::String(method)), None) => Self::Notification { method, params },
            (Some(_), id) => invalid(id, "the method is not a text"),
            (None, Some(id)) if object.contains_key("result") || object.contains_key("error") => {
                let answer = match object.remove("error").filter(|error| !error.is_null()) {
                    Some(error) => Err(failure(error)),
                    None => Ok(object.remove("result").unwrap_or_default()),
                };
                Self::Response { id, answer }
            }
            (None, id) => invalid(id, "a message has a method, a result or an error"),
        }
    }
}

/// Reads the error of a response. An error in another form becomes an internal error with its text.
fn failure(error: Value) -> Error {
    let text = match error.get("message").unwrap_or(&error) {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    serde_json::from_value(error).unwrap_or_else(|_| Error::new(-32603, text))
}

/// Reads the parameters or the result of a request. `null` counts as an object without members.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> serde_json::Result<T> {
    serde_json::from_value(if value.is_null() { json!({}) } else { value })
}

/// The connection has ended.
#[derive(Debug)]
pub(crate) struct AcpClosed;

/// The share of the budget that a message uses until it is no longer held in memory.
pub(crate) type AcpBudgetPermit = Arc<OwnedSemaphorePermit>;

/// The lines to write, each with its room.
pub(crate) type AcpOutgoingLines = mpsc::UnboundedReceiver<(String, Option<AcpBudgetPermit>)>;

type AcpResponseCallback = Box<dyn FnOnce(AcpRequestResult) + Send>;

/// Sends messages to the other side. The messages in transit, in both directions, share a budget.
pub(crate) struct AcpPeer {
    lines: mpsc::UnboundedSender<(String, Option<AcpBudgetPermit>)>,
    budget: Arc<Semaphore>,
    /// The requests to the other side that wait for an answer, by their numbers, which are their ids.
    asked: Mutex<HashMap<u64, AcpResponseCallback>>,
    last: AtomicU64,
    /// The requests of the other side that wait for an answer, by id. Cancelling the token withdraws the request.
    waiting: Mutex<HashMap<String, CancellationToken>>,
}

/// A guard that removes a request from the requests that wait, no matter how the request ends.
struct AcpRequestGuard<'a>(&'a AcpPeer, u64);

impl Drop for AcpRequestGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.asked).remove(&self.1);
    }
}

impl AcpPeer {
    /// Returns a peer, and the receiver of the lines that it sends.
    pub(crate) fn new() -> (Arc<Self>, AcpOutgoingLines) {
        let (lines, receiver) = mpsc::unbounded_channel();
        let peer = Self {
            lines,
            budget: Arc::new(Semaphore::new(BUDGET as usize)),
            asked: Mutex::default(),
            // Programs count their own requests from 0 or 1, and their logs may quote our responses to these requests.
            // Our ids are large numbers, so that such a quote is not mistaken for a response to one of our requests.
            last: AtomicU64::new(rand::rng().random_range(1 << 20..1 << 30)),
            waiting: Mutex::default(),
        };
        (Arc::new(peer), receiver)
    }

    /// Waits until the budget has room for a message of this size.
    pub(crate) async fn room(&self, size: usize) -> Result<AcpBudgetPermit, AcpClosed> {
        let size = u32::try_from(size).unwrap_or(BUDGET).clamp(64, BUDGET);
        Arc::clone(&self.budget).acquire_many_owned(size).await.map(Arc::new).map_err(|_| AcpClosed)
    }

    /// Ends all waits for room.
    pub(crate) fn close(&self) {
        self.budget.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.budget.is_closed()
    }

    fn send(&self, message: &Value, room: Option<AcpBudgetPermit>) -> Result<(), AcpClosed> {
        self.lines.send((message.to_string(), room)).map_err(|_| AcpClosed)
    }

    async fn send_if_room(&self, message: &Value) -> Result<(), AcpClosed> {
        let line = message.to_string();
        let room = self.room(line.len().max(LEAST)).await?;
        self.lines.send((line, Some(room))).map_err(|_| AcpClosed)
    }

    /// Sends a notification. Waits until there is room for it.
    pub(crate) async fn notify(&self, method: &str, params: impl Serialize) -> Result<(), AcpClosed> {
        self.send_if_room(&message(None, method, params)).await
    }

    /// Sends a notification without waiting for room.
    pub(crate) fn notify_now(&self, method: &str, params: impl Serialize) -> Result<(), AcpClosed> {
        self.send(&message(None, method, params), None)
    }

    /// Adds a request of the other side. The token is cancelled when the other side withdraws the request.
    pub(crate) fn begin(&self, id: &Value) -> CancellationToken {
        let withdrawn = CancellationToken::new();
        lock(&self.waiting).insert(id.to_string(), withdrawn.clone());
        withdrawn
    }

    /// Withdraws a request of the other side, which has sent the notification `$/cancel_request` with these parameters.
    pub(crate) fn withdraw(&self, params: &Value) {
        let id = params.get("requestId").unwrap_or(&Value::Null).to_string();
        if let Some(withdrawn) = lock(&self.waiting).get(&id) {
            withdrawn.cancel();
        }
    }

    /// Answers a request of the other side. Waits until there is room for the answer.
    pub(crate) async fn answer(&self, id: &Value, answer: AcpRequestResult) -> Result<(), AcpClosed> {
        self.send_if_room(&self.response(id, answer)).await
    }

    /// Answers a request of the other side in the room of the request.
    pub(crate) fn answer_in(
        &self,
        room: AcpBudgetPermit,
        id: &Value,
        answer: AcpRequestResult,
    ) -> Result<(), AcpClosed> {
        self.send(&self.response(id, answer), Some(room))
    }

    fn response(&self, id: &Value, answer: AcpRequestResult) -> Value {
        lock(&self.waiting).remove(&id.to_string());
        match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        }
    }

    fn request(&self, method: &str, params: impl Serialize, answered: AcpResponseCallback) -> (u64, Value) {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.asked).insert(number, answered);
        (number, message(Some(number), method, params))
    }

    /// Sends a request without waiting for room. `answered` is called with the answer, before later messages are
    /// processed.
    pub(crate) fn call(
        &self,
        method: &str,
        params: impl Serialize,
        answered: impl FnOnce(AcpRequestResult) + Send + 'static,
    ) -> Result<(), AcpClosed> {
        self.send(&self.request(method, params, Box::new(answered)).1, None)
    }

    /// Sends a request and returns the answer. If `withdrawn` is cancelled first, the request is withdrawn, and the
    /// result is `None`.
    pub(crate) async fn ask(
        &self,
        method: &str,
        params: impl Serialize,
        withdrawn: &CancellationToken,
    ) -> Result<Option<AcpRequestResult>, AcpClosed> {
        let (sender, answer) = oneshot::channel();
        // Sending fails if the request was withdrawn meanwhile.
        let answered = Box::new(move |answer| drop(sender.send(answer)));
        let (number, request) = self.request(method, params, answered);
        let _asking = AcpRequestGuard(self, number);
        self.send_if_room(&request).await?;
        tokio::select! {
            biased;
            answer = answer => answer.map(Some).map_err(|_| AcpClosed),
            () = withdrawn.cancelled() => {
                self.notify("$/cancel_request", json!({ "requestId": number })).await?;
                Ok(None)
            }
        }
    }

    /// Returns the number of the request to which a response belongs. The id may be the number as a text. A response
    /// without an id belongs to the only request that waits, if the other side reports that it can't parse the request.
    pub(crate) fn asked(&self, id: &Value, answer: &AcpRequestResult) -> Option<u64> {
        let asked = lock(&self.asked);
        let number = match (id, answer) {
            (Value::Number(number), _) => number.as_u64(),
            (Value::String(number), _) => number.parse().ok(),
            (Value::Null, Err(Error { code: ErrorCode::ParseError | ErrorCode::InvalidRequest, .. }))
                if asked.len() == 1 =>
            {
                asked.keys().next().copied()
            }
            _ => None,
        };
        number.filter(|number| asked.contains_key(number))
    }

    /// Passes a response of the other side to its request. A response without a request is ignored.
    pub(crate) fn answered(&self, id: &Value, answer: AcpRequestResult) {
        let asked = self.asked(id, &answer).and_then(|number| lock(&self.asked).remove(&number));
        if let Some(answered) = asked {
            answered(answer);
        } else {
            tracing::debug!(%id, "a response belongs to no request that waits");
        }
    }
}

/// Returns a request or a notification.
fn message(id: Option<u64>, method: &str, params: impl Serialize) -> Value {
    match id {
        Some(id) => json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": json!(params) }),
        None => json!({ "jsonrpc": "2.0", "method": method, "params": json!(params) }),
    }
}

/// Writes lines until the peer is dropped.
pub(crate) async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut lines: AcpOutgoingLines,
) -> io::Result<()> {
    while let Some((mut line, _room)) = lines.recv().await {
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    output.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_requests_notifications_responses_or_errors() {
        let request = AcpMessage::parse(br#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#);
        let params = json!({ "x": 1 });
        assert_eq!(request, AcpMessage::Request { id: json!("a"), method: "m".into(), params });
        let notification = AcpMessage::parse(br#"{"method":"m"}"#);
        assert_eq!(notification, AcpMessage::Notification { method: "m".into(), params: Value::Null });
        let refused = AcpMessage::parse(br#"{"id":1,"result":null,"error":{"code":1,"message":"no"}}"#);
        assert_eq!(refused, AcpMessage::Response { id: json!(1), answer: Err(Error::new(1, "no")) });
        assert_eq!(
            AcpMessage::parse(br#"{"id":1,"result":7}"#),
            AcpMessage::Response { id: json!(1), answer: Ok(json!(7)) }
        );
        for (line, code) in [
            ("hello", -32700),
            ("{\"id\":", -32700),
            ("[]", -32600),
            ("7", -32600),
            ("{}", -32600),
            (r#"{"id":[],"method":"m"}"#, -32600),
            (r#"{"id":1,"method":7}"#, -32600),
        ] {
            let AcpMessage::Invalid { error, .. } = AcpMessage::parse(line.as_bytes()) else {
                panic!("{line}")
            };
            assert_eq!(i32::from(error.code), code, "{line}");
        }
    }

    fn called(peer: &AcpPeer, lines: &mut AcpOutgoingLines) -> u64 {
        peer.call("m", json!({}), |_| {}).unwrap();
        let line: Value = serde_json::from_str(&lines.try_recv().unwrap().0).unwrap();
        line["id"].as_u64().unwrap()
    }

    #[test]
    fn response_belongs_to_the_request_with_its_number() {
        let (peer, mut lines) = AcpPeer::new();
        let number = called(&peer, &mut lines);
        let (ok, unread) = (Ok(json!(7)), Err(Error::parse_error()));
        assert_eq!(peer.asked(&json!(number), &ok), Some(number));
        assert_eq!(peer.asked(&json!(number.to_string()), &ok), Some(number));
        assert_eq!(peer.asked(&json!(null), &ok), None);
        assert_eq!(peer.asked(&json!(null), &Err(Error::method_not_found())), None);
        assert_eq!(peer.asked(&json!(null), &unread), Some(number));
        let other = called(&peer, &mut lines);
        assert_eq!(peer.asked(&json!(null), &unread), None, "two requests wait");
        peer.answered(&json!(number), Ok(json!(7)));
        assert_eq!(peer.asked(&json!(number), &ok), None, "it has its answer");
        assert_eq!(peer.asked(&json!(null), &unread), Some(other));
        assert!((0..1000).all(|id| peer.asked(&json!(id), &ok).is_none()), "these are ids of other programs");
    }

    #[tokio::test]
    async fn messages_wait_for_room_until_others_are_written() {
        let (peer, mut lines) = AcpPeer::new();
        let mut sent = 0;
        let is_full = |peer: &AcpPeer| peer.budget.available_permits() < LEAST;
        while !is_full(&peer) {
            peer.notify("m", json!({})).await.unwrap();
            sent += 1;
        }
        assert_eq!(sent, 32);
        peer.notify_now("m", json!({})).unwrap();
        drop(lines.recv().await);
        assert!(!is_full(&peer));
        // The answer to a request keeps the room of the request.
        let room = peer.room(LEAST).await.unwrap();
        peer.answer_in(room, &json!(1), Ok(json!({}))).unwrap();
        assert!(is_full(&peer));
        drop(lines);
        assert!(peer.notify("m", json!({})).await.is_err());
    }
}

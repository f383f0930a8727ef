//! The messages from and to the client: JSON-RPC, one message per line. They are parsed and written here, because the
//! implementation of the protocol in `agent-client-protocol` would queue them without a limit. If the queue of outgoing
//! messages is full, the sender waits. The reader of the server sends too, for example errors for requests beyond their
//! limit, so the server stops reading from a client that does not read.

use std::{
    collections::HashMap,
    io,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use agent_client_protocol::v1::schema::Error;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use crate::sync::lock;

/// The maximum length of a message in bytes.
pub(super) const LONGEST: usize = 32 * 1024 * 1024;

/// The number of messages that wait to be written.
const QUEUE: usize = 32;

/// A line of the client.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
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
        result: Result<Value, String>,
    },
    /// The line is not a message. The error is sent back.
    Invalid {
        id: Value,
        error: Error,
    },
}

/// Interprets a line.
pub(super) fn parse(line: &[u8]) -> Incoming {
    let invalid = |id, error: Error, why: &str| Incoming::Invalid { id, error: error.data(why.to_owned()) };
    let mut object = match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => {
            let why = "a message is one JSON object; batches are not supported";
            return invalid(Value::Null, Error::invalid_request(), why);
        }
        Err(error) => return invalid(Value::Null, Error::parse_error(), &error.to_string()),
    };
    let id = object.remove("id");
    if id.as_ref().is_some_and(|id| !(id.is_string() || id.is_number() || id.is_null())) {
        return invalid(Value::Null, Error::invalid_request(), "an id is a text or a number");
    }
    let params = object.remove("params").unwrap_or(Value::Null);
    match (object.remove("method"), id) {
        (Some(Value::String(method)), Some(id)) => Incoming::Request { id, method, params },
        (Some(Value::String(method)), None) => Incoming::Notification { method, params },
        (Some(_), id) => {
            invalid(id.unwrap_or_default(), Error::invalid_request(), "the method is not a text")
        }
        (None, Some(id)) if object.contains_key("result") || object.contains_key("error") => {
            let result = match object.remove("error").filter(|error| !error.is_null()) {
                Some(error) => {
                    Err(error.get("message").and_then(Value::as_str).unwrap_or("an error").to_owned())
                }
                None => Ok(object.remove("result").unwrap_or_default()),
            };
            Incoming::Response { id, result }
        }
        (None, id) => {
            let why = "a message has a method, a result or an error";
            invalid(id.unwrap_or_default(), Error::invalid_request(), why)
        }
    }
}

/// The connection has ended.
#[derive(Debug)]
pub(super) struct Gone;

/// Sends messages to the client.
pub(super) struct Peer {
    lines: mpsc::Sender<String>,
    /// The requests to the client that wait for an answer, by id.
    asked: Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>,
    last: AtomicU64,
}

/// A guard that removes a request from the requests that wait, no matter how the request ends.
struct Asking<'a>(&'a Peer, u64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        lock(&self.0.asked).remove(&self.1);
    }
}

impl Peer {
    /// Returns a peer, and the receiver of the lines that it sends.
    pub(super) fn new() -> (Self, mpsc::Receiver<String>) {
        let (lines, receiver) = mpsc::channel(QUEUE);
        (Self { lines, asked: Mutex::default(), last: AtomicU64::new(0) }, receiver)
    }

    async fn send(&self, message: Value) -> Result<(), Gone> {
        self.lines.send(message.to_string()).await.map_err(|_| Gone)
    }

    /// Sends a notification. Waits while the queue is full.
    pub(super) async fn notify(&self, method: &str, params: impl Serialize) -> Result<(), Gone> {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": json!(params) })).await
    }

    /// Answers a request of the client.
    pub(super) async fn answer(&self, id: Value, result: Result<Value, Error>) -> Result<(), Gone> {
        let mut answer = Map::new();
        answer.insert("jsonrpc".to_owned(), json!("2.0"));
        answer.insert("id".to_owned(), id);
        let (name, value) = match result {
            Ok(result) => ("result", result),
            Err(error) => ("error", json!(error)),
        };
        answer.insert(name.to_owned(), value);
        self.send(answer.into()).await
    }

    /// Sends a request and returns the answer: the result, or the text of the client's error. If `withdrawn` is
    /// cancelled first, the request is withdrawn, and the result is `None`.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: impl Serialize,
        withdrawn: &CancellationToken,
    ) -> Result<Option<Result<Value, String>>, Gone> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        lock(&self.asked).insert(number, sender);
        let _asking = Asking(self, number);
        self.send(json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": json!(params) }))
            .await?;
        tokio::select! {
            biased;
            answer = answer => answer.map(Some).map_err(|_| Gone),
            () = withdrawn.cancelled() => {
                self.notify("$/cancel_request", json!({ "requestId": number })).await?;
                Ok(None)
            }
        }
    }

    /// Passes the answer of the client to the request. An answer without a matching request is ignored.
    pub(super) fn answered(&self, id: &Value, result: Result<Value, String>) {
        let sender = id.as_u64().and_then(|number| lock(&self.asked).remove(&number));
        // Sending fails if the request was withdrawn meanwhile.
        if sender.is_none_or(|sender| sender.send(result).is_err()) {
            tracing::debug!(%id, "the client answered a request that does not wait");
        }
    }
}

/// Writes lines until the peer is dropped.
pub(super) async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<String>,
) -> io::Result<()> {
    while let Some(mut line) = lines.recv().await {
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
        let request = parse(br#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}}"#);
        let params = json!({ "x": 1 });
        assert_eq!(request, Incoming::Request { id: json!("a"), method: "m".into(), params });
        let notification = parse(br#"{"method":"m"}"#);
        assert_eq!(notification, Incoming::Notification { method: "m".into(), params: Value::Null });
        let refused = parse(br#"{"id":1,"result":null,"error":{"code":1,"message":"no"}}"#);
        assert_eq!(refused, Incoming::Response { id: json!(1), result: Err("no".into()) });
        assert_eq!(
            parse(br#"{"id":1,"result":7}"#),
            Incoming::Response { id: json!(1), result: Ok(json!(7)) }
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
            let Incoming::Invalid { error, .. } = parse(line.as_bytes()) else { panic!("{line}") };
            assert_eq!(i32::from(error.code), code, "{line}");
        }
    }
}

//! The parts that all transports share: a limit for the messages that wait to be sent, and late answers of the handshake.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{
        ClientRequest, DiscoverResult, ErrorCode, ErrorData, InitializeResult, JsonRpcMessage,
        ProtocolVersion, RequestId, ServerResult,
    },
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::time::timeout;

/// The maximum number of messages that wait because the server does not read them.
const MOST_WAITING: usize = 1000;

/// How long the end of a transport may take. A program is killed earlier, and a protocol session is deleted earlier.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The fault of the server for which the client ended the connection, if there is one.
pub(super) type Fault = Arc<OnceLock<&'static str>>;

/// A transport that ends the connection if too many messages wait. Calls of tools do not count, because the application
/// decides how many calls run. All other messages do: they answer requests of the server, or cancel calls.
pub(super) struct Bounded<T> {
    /// `None` after the end.
    inner: Option<T>,
    /// Each message that waits to be sent holds a clone of this pointer, so the clones count these messages.
    waiting: Arc<()>,
    fault: Fault,
    handshake: Handshake,
}

impl<T> Bounded<T> {
    pub(super) fn new(inner: T, fault: Fault) -> Self {
        Self { inner: Some(inner), waiting: Arc::new(()), fault, handshake: Handshake::default() }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Bounded<T> {
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
struct Handshake {
    discover: Option<RequestId>,
    initialize: Option<RequestId>,
    /// The late answer to `server/discover`.
    discovered: Option<DiscoverResult>,
}

impl Handshake {
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
                (false, None | Some(ServerResult::DiscoverResult(_))) => Some(message),
                // Some old servers answer a request that they do not know with an empty result.
                (false, Some(_)) => {
                    let unknown = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "unknown", None);
                    Some(JsonRpcMessage::error(unknown, Some(id)))
                }
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
        let transport = Bounded::new(AsyncRwTransport::new(input, output), Fault::default());
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

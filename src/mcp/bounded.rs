//! A limit for the messages that wait to be sent, for all transports.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::JsonRpcMessage,
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
}

impl<T> Bounded<T> {
    pub(super) fn new(inner: T, fault: Fault) -> Self {
        Self { inner: Some(inner), waiting: Arc::new(()), fault }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Bounded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
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
        if Arc::strong_count(&self.waiting) > MOST_WAITING {
            let _ = self.fault.set("more than 1,000 messages wait, because the server does not read them");
            self.inner = None;
        }
        self.inner.as_mut()?.receive().await
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        let Some(mut inner) = self.inner.take() else { return Ok(()) };
        // rmcp's task for HTTP does not notice the end while it waits for a reader of its messages. It ends when the
        // transport is dropped.
        timeout(CLOSE_LIMIT, inner.close()).await.unwrap_or(Ok(()))
    }
}

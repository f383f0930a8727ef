//! A client over a pair of streams.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rmcp::{
    RoleServer,
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage, serve_server},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    McpServerError, ServerInfo,
    handler::{Handler, Hosts},
};
use crate::process::lines::BoundedLines;

/// The maximum length of a message, in bytes.
const LONGEST: usize = 16 * 1024 * 1024;

/// The maximum number of messages that wait because the client does not read.
const MOST_WAITING: usize = 1000;

/// The time limit for writing the last messages.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Serves a client until its input ends.
pub(super) async fn serve(
    info: Arc<ServerInfo>,
    hosts: Arc<Hosts>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), McpServerError> {
    let gone = CancellationToken::new();
    // If this future is dropped, the calls end, too.
    let _gone = gone.clone().drop_guard();
    let failure = Arc::<OnceLock<McpServerError>>::default();
    let failed = Arc::clone(&failure);
    let lines = BoundedLines::new(input, LONGEST, move |error| {
        let failure = match error.kind() {
            io::ErrorKind::InvalidData => McpServerError::LongMessage { limit: LONGEST },
            kind => McpServerError::Read(io::Error::new(kind, error.to_string())),
        };
        // Only the first error is kept, because later errors are its consequences.
        let _ = failed.set(failure);
    });
    let pipe = Pipe {
        inner: AsyncRwTransport::new(lines, output).with_max_line_length(usize::MAX),
        gone: gone.clone(),
        waiting: Arc::new(()),
        failure: Arc::clone(&failure),
    };
    let served = match serve_server(Handler::new(info, hosts, gone), pipe).await {
        // The connection will end with an error in `failure`, or because the input ends.
        Ok(running) => {
            let _ = running.waiting().await;
            Ok(())
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(McpServerError::Handshake { reason: error.to_string() }),
    };
    // The transport has been dropped, so this is the only reference to `failure`.
    Arc::into_inner(failure).and_then(OnceLock::into_inner).map_or(served, Err)
}

/// The transport. It reports the end of the input to the calls, which then end at once.
struct Pipe<R: AsyncRead + Unpin, W: AsyncWrite> {
    inner: AsyncRwTransport<RoleServer, BoundedLines<R>, W>,
    gone: CancellationToken,
    /// Counts the messages that wait to be written.
    waiting: Arc<()>,
    failure: Arc<OnceLock<McpServerError>>,
}

impl<R, W> Transport<RoleServer> for Pipe<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (sent, waiting) = (self.inner.send(message), Arc::clone(&self.waiting));
        async move {
            let sent = sent.await;
            drop(waiting);
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = if Arc::strong_count(&self.waiting) > MOST_WAITING {
            let _ = self.failure.set(McpServerError::NotReading { limit: MOST_WAITING });
            None
        } else {
            self.inner.receive().await
        };
        if message.is_none() {
            self.gone.cancel();
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        // The client may have stopped reading.
        timeout(LAST_WRITES, self.inner.close()).await.unwrap_or(Ok(()))
    }
}

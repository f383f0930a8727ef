//! A client over a pair of streams.
//!
//! The end of the input is reported to all calls, because rmcp would let them run for five more seconds.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::ClientJsonRpcMessage,
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage, serve_server},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex as AsyncMutex,
    time::timeout,
};
use tokio_util::{codec::AnyDelimiterCodecError, sync::CancellationToken};

use super::{
    ServerInfo,
    handler::{McpCallerLookup, McpServerHandler},
};
use crate::{
    mcp::incoming::messages,
    run::{Error, ErrorKind},
    serve::stdio,
    sync::lock,
};

/// The maximum length of a message, in bytes.
const LONGEST: usize = 16 * 1024 * 1024;

/// The maximum number of messages that wait because the client does not read.
const MOST_WAITING: usize = 1000;

/// The time limit for writing the last messages.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Serves a client until its input ends.
pub(super) async fn serve(
    info: Arc<ServerInfo>,
    callers: Arc<McpCallerLookup>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
) -> Result<(), Error> {
    let gone = CancellationToken::new();
    // If this future is dropped, the calls end, too.
    let _gone = gone.clone().drop_guard();
    let failure = Arc::<Mutex<Option<Error>>>::default();
    let failed = Arc::clone(&failure);
    let messages = messages::<ClientJsonRpcMessage>(input, LONGEST, move |error| {
        let failure = match error {
            AnyDelimiterCodecError::MaxChunkLengthExceeded => {
                let text = format!("the client sent a message of more than {LONGEST} bytes");
                Error::new(ErrorKind::Connection, text).with_member("limit", LONGEST)
            }
            AnyDelimiterCodecError::Io(error) => stdio::unreadable(error),
        };
        // Only the first error is kept, because later errors are its consequences.
        lock(&failed).get_or_insert(failure);
    });
    let pipe = McpPipeTransport {
        inner: AsyncRwTransport::new(messages, output).with_max_line_length(usize::MAX),
        output: Arc::default(),
        gone: gone.clone(),
        waiting: Arc::new(()),
        failure: Arc::clone(&failure),
    };
    let served = match serve_server(McpServerHandler::new(info, callers, gone), pipe).await {
        // The connection will end with an error in `failure`, or because the input ends.
        Ok(running) => {
            let _ = running.waiting().await;
            Ok(())
        }
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => {
            let text = format!("the client does not speak the Model Context Protocol: {error}");
            Err(Error::new(ErrorKind::Connection, text))
        }
    };
    lock(&failure).take().map_or(served, Err)
}

/// The transport. It reports the end of the input to the calls, which then end at once.
struct McpPipeTransport<R: AsyncRead + Unpin, W: AsyncWrite> {
    inner: AsyncRwTransport<RoleServer, R, W>,
    /// Locked while a message is written. Contains whether the output has failed.
    output: Arc<AsyncMutex<bool>>,
    gone: CancellationToken,
    /// Counts the messages that wait to be written.
    waiting: Arc<()>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl<R, W> Transport<RoleServer> for McpPipeTransport<R, W>
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
        let (output, failure) = (Arc::clone(&self.output), Arc::clone(&self.failure));
        let gone = self.gone.clone();
        async move {
            let mut has_failed = output.lock().await;
            // After an error, the output must not be used again. The connection ends instead.
            if *has_failed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let sent = sent.await;
            drop(waiting);
            sent.inspect_err(|error| {
                *has_failed = true;
                // A client that is gone does not read its last answers.
                if !gone.is_cancelled() {
                    let error = io::Error::new(error.kind(), error.to_string());
                    lock(&failure).get_or_insert(stdio::unwritable(error));
                    gone.cancel();
                }
            })
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let message = if Arc::strong_count(&self.waiting) > MOST_WAITING {
            lock(&self.failure).get_or_insert_with(|| {
                let text = format!(
                    "the client does not read: {MOST_WAITING} messages wait; read the output of the server"
                );
                Error::new(ErrorKind::Connection, text).with_member("limit", MOST_WAITING)
            });
            None
        } else {
            self.gone.run_until_cancelled(self.inner.receive()).await.flatten()
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

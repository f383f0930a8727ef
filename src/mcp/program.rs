//! Servers that are programs: their start, their pipes and their end.

use std::{io, process::Command, sync::Arc, time::Duration};

use rmcp::{
    RoleClient,
    model::ServerJsonRpcMessage,
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::{
    io::AsyncRead,
    process::{ChildStderr, ChildStdin, ChildStdout},
    time::timeout,
};
use tokio_util::codec::AnyDelimiterCodecError;

use super::{
    McpError,
    bounded::{Bounded, Fault},
    incoming::messages,
    settings::{ProgramStart, Settings},
};
use crate::process::{Process, lines::LastWords};

/// The maximum size of a message in bytes.
pub(super) const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// How long the program may take to end after its input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// How long writing the last messages may take.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// How long to wait for the end of a program whose connection has ended.
const SOON: Duration = Duration::from_secs(1);

/// The program of a connection.
pub(super) struct Program {
    process: Arc<Process>,
    words: Arc<LastWords>,
    settings: Arc<Settings>,
    fault: Fault,
}

/// Starts the program.
pub(super) fn start(
    start: &ProgramStart,
    settings: &Arc<Settings>,
) -> Result<(Program, Bounded<Pipe>), McpError> {
    let cannot = |error: io::Error| McpError::Unreachable {
        server: settings.name.clone(),
        reason: format!("`{}` did not start: {error}", start.program.to_string_lossy()),
    };
    let mut command = Command::new(&start.program);
    command.args(&start.arguments).envs(start.environment.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = &start.folder {
        command.current_dir(folder);
    }
    let (process, pipes) = Process::start(command).map_err(cannot)?;
    // From here on, an early return drops the process, which kills the program.
    let process = Arc::new(process);
    let stdin = ChildStdin::from_std(pipes.stdin).map_err(cannot)?;
    let stdout = ChildStdout::from_std(pipes.stdout).map_err(cannot)?;
    let stderr = ChildStderr::from_std(pipes.stderr).map_err(cannot)?;
    let words = Arc::new(LastWords::default());
    let (heard, owner) = (Arc::clone(&words), Arc::clone(settings));
    // The task ends when the program and its children have closed their standard error.
    tokio::spawn(async move {
        heard.follow_cleaned(stderr, &owner.name, |text| owner.secrets.removed(text)).await;
    });
    let fault = Fault::default();
    let is_long = Arc::clone(&fault);
    let messages = messages::<ServerJsonRpcMessage>(stdout, LONGEST_MESSAGE, move |error| {
        if matches!(error, AnyDelimiterCodecError::MaxChunkLengthExceeded) {
            let _ = is_long.set("a message of the server exceeded the maximum size of 16777216 bytes");
        }
    });
    let messages: BoxedReader = Box::new(messages);
    let pipe = Pipe {
        inner: AsyncRwTransport::new(messages, stdin).with_max_line_length(usize::MAX),
        process: Arc::clone(&process),
    };
    let pipe = Bounded::new(pipe, Arc::clone(&fault));
    Ok((Program { process, words, settings: Arc::clone(settings), fault }, pipe))
}

impl Program {
    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    pub(super) async fn ended(&self) {
        self.process.ended().await;
    }

    /// Returns a suffix for the text of an error: the fault for which the client ended the connection, or else the exit
    /// status of the program and the last lines of its standard error.
    pub(super) async fn words(&self) -> String {
        if let Some(reason) = self.fault.get() {
            return format!(": {reason}");
        }
        let how = timeout(SOON, self.process.ended()).await.ok();
        let how = how.map_or_else(String::new, |how| format!("; the program ended: {how}"));
        let text = format!("{how}{}", self.words.quoted());
        tracing::debug!(server = self.settings.name, "an MCP server's connection ended{text}");
        self.settings.secrets.removed(text)
    }
}

type BoxedReader = Box<dyn AsyncRead + Send + Unpin>;

/// The transport over the pipes of a program. When the task of the connection is dropped, for example because the runtime
/// shuts down, this kills the program.
pub(super) struct Pipe {
    inner: AsyncRwTransport<RoleClient, BoxedReader, ChildStdin>,
    process: Arc<Process>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl Transport<RoleClient> for Pipe {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.inner.receive().await
    }

    async fn close(&mut self) -> io::Result<()> {
        // Without this limit, a program that does not read its input would delay the end of the connection forever.
        let _ = timeout(LAST_WRITES, self.inner.close()).await;
        self.process.stop(GRACE).await;
        Ok(())
    }
}

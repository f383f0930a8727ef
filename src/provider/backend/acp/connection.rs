//! A program and the connection to it.

use std::{
    io,
    pin::pin,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol_schema::v1::Error;
use futures_util::{
    FutureExt, StreamExt,
    future::{Either, Fuse, FusedFuture, select},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::AsyncRead,
    process::{ChildStderr, ChildStdin, ChildStdout},
    task::JoinHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_util::{codec::AnyDelimiterCodecError, sync::CancellationToken};

use super::{
    message::{IncomingLine, classify},
    shared::ConnectionState,
};
use crate::{
    acp::{self, LONGEST, Lines, MOST_NOISE, Peer},
    process::{
        Process,
        lines::{LastWords, lines, shown},
    },
    provider::backend::BackendError,
    sync::lock,
};

/// The maximum time between the events that belong to the end of a program: its exit, the end of its output, and the
/// processing of its last messages. They can occur in any order.
const SOON: Duration = Duration::from_secs(1);

/// How long a program that wrote a line that is not a message may take to write the next message. Applies while a
/// session is being opened.
const NOISE_GRACE: Duration = Duration::from_secs(5);

/// A connection to a running program. Dropping this kills the program.
pub(super) struct Connection {
    pub(super) shared: Arc<ConnectionState>,
    pub(super) peer: Arc<Peer>,
    running: Running,
}

/// The program and the task that supervises it.
struct Running {
    process: Arc<Process>,
    shared: Arc<ConnectionState>,
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The reason why a request has no result.
pub(super) enum Unanswered {
    /// The agent refused the request.
    Refused(Error),
    /// The request got no response, for this reason.
    Over(BackendError),
}

impl Connection {
    /// Starts the program. `name` is the backend's name.
    pub(super) fn open(command: Command, name: &str) -> Result<Self, BackendError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let cannot = |error: io::Error| {
            let why = format!("`{program}`: {error}");
            if is_shortage(&error) {
                BackendError::Unavailable(why)
            } else {
                BackendError::Misconfigured(why)
            }
        };
        let (process, pipes) = Process::start(command).map_err(cannot)?;
        let process = Arc::new(process);
        let (peer, outgoing) = Peer::new();
        let shared = ConnectionState::new();
        let closing = CancellationToken::new();
        let supervisor = Supervisor {
            name: name.to_owned(),
            program: program.clone(),
            shared: Arc::clone(&shared),
            peer: Arc::clone(&peer),
            outgoing,
            process: Arc::clone(&process),
            closing: closing.clone(),
            stdin: ChildStdin::from_std(pipes.stdin).map_err(cannot)?,
            stdout: ChildStdout::from_std(pipes.stdout).map_err(cannot)?,
            stderr: ChildStderr::from_std(pipes.stderr).map_err(cannot)?,
        };
        let task = Mutex::new(Some(tokio::spawn(supervisor.run())));
        let running = Running { process, shared: Arc::clone(&shared), closing, task };
        Ok(Self { shared, peer, running })
    }

    /// Sends a request to the agent and waits for the response within a limit. Used before the first turn.
    pub(super) async fn ask<A: DeserializeOwned>(
        &self,
        call: &'static str,
        request: impl Serialize,
        limit: Duration,
    ) -> Result<A, Unanswered> {
        let over = |error| match error {
            // The session is still being opened, so either the program is not an agent, or its arguments or settings
            // are wrong.
            BackendError::Ended(why) => BackendError::Misconfigured(why),
            other => other,
        };
        let never = CancellationToken::new();
        tokio::select! {
            biased;
            answer = self.peer.ask(call, request, &never) => match answer {
                Ok(Some(Ok(answer))) => acp::read(answer)
                    .map_err(|error| Unanswered::Refused(Error::parse_error().data(error.to_string()))),
                Ok(Some(Err(error))) => Err(Unanswered::Refused(error)),
                Ok(None) | Err(_) => Err(Unanswered::Over(over(self.shared.ended().await))),
            },
            error = self.shared.ended() => Err(Unanswered::Over(over(error))),
            line = self.shared.lasting_noise(NOISE_GRACE) => {
                Err(Unanswered::Over(BackendError::Misconfigured(noise(&line))))
            }
            () = sleep(limit) => Err(Unanswered::Over(BackendError::Timeout { call, limit })),
        }
    }

    /// Returns the reason why the connection has ended, if it has.
    pub(super) async fn over(&self) -> Option<BackendError> {
        if self.running.process.has_ended() {
            // Wait for the supervisor, which is about to report why the connection ended.
            return Some(self.shared.ended().await);
        }
        self.shared.has_ended()
    }

    /// Closes the program's standard input and waits until the program ends. After `grace`, forces the program to end.
    pub(super) async fn close(&self, grace: Duration) {
        let running = &self.running;
        running.closing.cancel();
        running.shared.end(BackendError::Ended("it was terminated".to_owned()));
        running.process.stop(grace).await;
        let task = lock(&running.task).take();
        if let Some(task) = task {
            task.abort();
            // The task was aborted, so its result does not matter.
            let _ = task.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
        self.shared.end(BackendError::Ended("it was dropped".to_owned()));
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Supervises a program until it ends.
struct Supervisor {
    name: String,
    program: String,
    shared: Arc<ConnectionState>,
    peer: Arc<Peer>,
    outgoing: Lines,
    process: Arc<Process>,
    closing: CancellationToken,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// A guard of the supervisor. When the supervisor ends for any reason, dropping the guard kills the program and ends
/// the session.
struct Last(Arc<ConnectionState>, Arc<Process>);

impl Drop for Last {
    fn drop(&mut self) {
        self.1.kill();
        self.0.end(BackendError::Ended("its connection was cut off".to_owned()));
    }
}

impl Supervisor {
    async fn run(self) {
        let Self { name, program, shared, peer, outgoing, process, closing, stdin, stdout, stderr } = self;
        let _last = Last(Arc::clone(&shared), Arc::clone(&process));
        let words = LastWords::default();
        let mut stderr = pin!(words.follow(stderr, &name).fuse());
        let mut reader = pin!(read(stdout, &peer, &shared).fuse());
        // The reason why the connection ends, and whether the program violated the protocol.
        let why = {
            let mut writer = pin!(acp::write(stdin, outgoing).fuse());
            let mut exit = pin!(process.ended().fuse());
            // This timer is set when the program has ended or does not read its input. It limits the wait for the rest
            // of the output.
            let mut late = pin!(Fuse::<Sleep>::terminated());
            let mut over = "it closed its standard output".to_owned();
            loop {
                tokio::select! {
                    biased;
                    () = closing.cancelled() => break None,
                    read = &mut reader => break Some(read.map_or_else(|why| (why, true), |()| (over, false))),
                    () = &mut late => break Some((over, false)),
                    // Output that the program wrote before it ended may still be unread, so wait a little longer.
                    _ = &mut exit => late.set(sleep(SOON).fuse()),
                    Err(error) = &mut writer => {
                        over = format!("it stopped reading its input: {error}");
                        late.set(sleep(SOON).fuse());
                    }
                    () = &mut stderr => {}
                }
            }
        };
        let error = match why {
            None => BackendError::Ended("it was terminated".to_owned()),
            Some((why, is_violation)) => {
                if is_violation {
                    process.kill();
                }
                let exit = pin!(timeout(SOON, process.ended()));
                let how = match select(exit, &mut stderr).await {
                    Either::Left((how, _)) => how,
                    Either::Right(((), exit)) => exit.await,
                };
                if how.is_err() {
                    process.kill();
                }
                // The last lines of the standard error should have arrived by now, unless another process still holds
                // the pipe open.
                if !stderr.is_terminated() {
                    let _ = timeout(SOON, &mut stderr).await;
                }
                let why = match how {
                    Ok(how) if !is_violation => format!("`{program}` has ended: {how}"),
                    _ => format!("`{program}`: {why}"),
                };
                BackendError::Ended(format!("{why}{}", words.quoted()))
            }
        };
        shared.end(error);
        peer.close();
        // The program may continue to write until it ends. Continue to read its output, because a failed write could
        // disturb the program's shutdown.
        let mut exit = pin!(process.ended());
        loop {
            tokio::select! {
                _ = &mut exit => return,
                _ = &mut reader => {}
                () = &mut stderr => {}
            }
        }
    }
}

/// Reads and processes messages until the output ends. Fails if the output is not that of an agent.
async fn read(
    stdout: impl AsyncRead + Unpin,
    peer: &Arc<Peer>,
    shared: &ConnectionState,
) -> Result<(), String> {
    let mut lines = lines(stdout, LONGEST);
    let mut skipped = 0;
    loop {
        let line = match lines.next().await {
            Some(Ok(line)) => line,
            Some(Err(AnyDelimiterCodecError::MaxChunkLengthExceeded)) => {
                return Err(format!("it wrote a message that is longer than the limit of {LONGEST} bytes"));
            }
            Some(Err(error)) => return Err(format!("its output can't be read: {error}")),
            None => return Ok(()),
        };
        // If the connection has ended, the remaining output is still read, so that the program can finish writing.
        if peer.is_closed() || line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let messages = match classify(&line, peer) {
            IncomingLine::Messages(messages) => messages,
            IncomingLine::Damaged => {
                return Err(format!("it wrote a damaged message: {}", shown(&line, 200)));
            }
            // Some programs also write other text to their standard output, although the protocol forbids this. Skip
            // this text, up to a limit.
            IncomingLine::Noise => {
                skipped += 1;
                let first = shared.skip(&line);
                if skipped == MOST_NOISE {
                    return Err(noise(&first));
                }
                continue;
            }
        };
        skipped = 0;
        shared.heard();
        let size = line.len() / messages.len().max(1);
        drop(line);
        for message in messages {
            let Ok(room) = peer.room(size).await else { break };
            shared.take(message, peer, room);
        }
    }
}

fn noise(first: &str) -> String {
    format!("its output is not the Agent Client Protocol: {first}")
}

/// Returns whether the system lacked a resource that may be available again soon, such as memory or a file descriptor.
fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{ExecutableFileBusy, Interrupted, OutOfMemory, ResourceBusy, WouldBlock};
    #[cfg(unix)]
    if [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
    {
        return true;
    }
    matches!(error.kind(), ExecutableFileBusy | Interrupted | OutOfMemory | ResourceBusy | WouldBlock)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::provider::backend::BackendEvent;

    /// Returns the program's end of its output, and the state that the output changes.
    fn reading() -> (DuplexStream, Arc<ConnectionState>) {
        let (program, ours) = duplex(1024);
        let shared = ConnectionState::new();
        shared.is_session("s");
        let state = Arc::clone(&shared);
        tokio::spawn(async move { read(ours, &Peer::new().0, &state).await });
        (program, shared)
    }

    fn message(size: usize) -> String {
        let text = "x".repeat(size);
        let update = format!(
            r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}"#
        );
        let params = format!(r#"{{"sessionId":"s","update":{update}}}"#);
        format!("{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{params}}}\n")
    }

    #[tokio::test(start_paused = true)]
    async fn unread_events_make_the_program_wait() {
        let (mut program, shared) = reading();
        let mut events = shared.begin(Vec::new()).unwrap();
        let mut written = 0;
        let message = message(1_000_000);
        while timeout(Duration::from_mins(1), program.write_all(message.as_bytes())).await.is_ok() {
            written += 1;
            assert!(written < 20, "the program never had to wait");
        }
        assert!(written >= 7, "{written}");
        // When an event has been read, there is room for another message.
        let event = events.recv().await;
        assert!(matches!(event, Some((BackendEvent::Text(_), Some(_)))));
        drop(event);
        assert!(timeout(Duration::from_mins(1), program.write_all(b"\n")).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn noise_is_skipped_and_reported_until_a_message_follows() {
        let (mut program, shared) = reading();
        let mut events = shared.begin(Vec::new()).unwrap();
        let hour = Duration::from_hours(1);
        program.write_all(b"hello\nthere\n[1]\n\xff\n").await.unwrap();
        assert_eq!(shared.lasting_noise(hour).await, "hello");
        program.write_all(message(1).as_bytes()).await.unwrap();
        assert!(events.recv().await.is_some());
        assert!(timeout(hour * 9, shared.lasting_noise(hour)).await.is_err());
    }
}

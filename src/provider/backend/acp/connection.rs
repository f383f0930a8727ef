//! A program and the connection to it.

use std::{io, pin::pin, process::Command, sync::Arc, time::Duration};

use agent_client_protocol_schema::v1::{AuthMethod, Error, ErrorCode};
use futures_util::{
    FutureExt, StreamExt,
    future::{Either, Fuse, FusedFuture, select},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::AsyncRead,
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::Mutex,
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tokio_util::{codec::AnyDelimiterCodecError, sync::CancellationToken};

use super::{
    message::{ParsedAcpLine, classify},
    shared::AcpSessionShared,
};
use crate::{
    acp::{self, AcpOutgoingLines, AcpPeer, LONGEST, MOST_NOISE},
    process::{
        Process,
        lines::{StderrTail, lines, shown},
    },
    provider::backend::{BackendError, SessionId},
};

/// The maximum time between the events that belong to the end of a program: its exit, the end of its output, and the
/// processing of its last messages. They can occur in any order.
const SOON: Duration = Duration::from_secs(1);

/// How long a program that wrote a line that is not a message may take to write the next message. Applies while a
/// session is being opened.
const NOISE_GRACE: Duration = Duration::from_secs(5);

/// The maximum length of the agent's text that an error quotes.
const LONGEST_QUOTE: usize = 2000;

/// A connection to a running program. Dropping this kills the program.
pub(super) struct AcpConnection {
    pub(super) shared: Arc<AcpSessionShared>,
    pub(super) peer: Arc<AcpPeer>,
    program: AcpProgramGuard,
    closing: CancellationToken,
    /// The task that supervises the program.
    task: Mutex<JoinSet<()>>,
}

/// The program and its session. Dropping this kills the program, and ends the session for the given reason.
struct AcpProgramGuard {
    process: Arc<Process>,
    shared: Arc<AcpSessionShared>,
    reason: &'static str,
}

impl Drop for AcpProgramGuard {
    fn drop(&mut self) {
        self.process.kill();
        self.shared.end(BackendError::Ended(self.reason.to_owned()));
    }
}

/// The reason why a request has no result.
pub(super) enum AcpRequestFailure {
    /// The agent refused the request.
    Refused(Error),
    /// The request got no response, for this reason.
    Over(BackendError),
}

impl AcpConnection {
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
        let pipes = (
            ChildStdin::from_std(pipes.stdin).map_err(cannot)?,
            ChildStdout::from_std(pipes.stdout).map_err(cannot)?,
            ChildStderr::from_std(pipes.stderr).map_err(cannot)?,
        );
        let (process, shared, (peer, outgoing)) =
            (Arc::new(process), AcpSessionShared::new(), AcpPeer::new());
        let held =
            |reason| AcpProgramGuard { process: Arc::clone(&process), shared: Arc::clone(&shared), reason };
        let closing = CancellationToken::new();
        let mut task = JoinSet::new();
        let supervised = held("its connection was cut off");
        let name = name.to_owned();
        task.spawn(supervise(name, program, supervised, Arc::clone(&peer), outgoing, closing.clone(), pipes));
        let program = held("it was dropped");
        Ok(Self { shared, peer, program, closing, task: Mutex::new(task) })
    }

    /// Sends a request to the agent and waits for the response within a limit. Used before the first turn.
    pub(super) async fn ask<A: DeserializeOwned>(
        &self,
        call: &'static str,
        request: impl Serialize,
        limit: Duration,
    ) -> Result<A, AcpRequestFailure> {
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
                    .map_err(|error| AcpRequestFailure::Refused(Error::parse_error().data(error.to_string()))),
                Ok(Some(Err(error))) => Err(AcpRequestFailure::Refused(error)),
                Ok(None) | Err(_) => Err(AcpRequestFailure::Over(over(self.shared.ended().await))),
            },
            error = self.shared.ended() => Err(AcpRequestFailure::Over(over(error))),
            line = self.shared.lasting_noise(NOISE_GRACE) => {
                Err(AcpRequestFailure::Over(BackendError::Misconfigured(noise(&line))))
            }
            () = sleep(limit) => Err(AcpRequestFailure::Over(BackendError::Timeout { call, limit })),
        }
    }

    /// Returns the reason why the connection has ended, if it has.
    pub(super) async fn over(&self) -> Option<BackendError> {
        if self.program.process.has_ended() {
            // Wait for the supervisor, which is about to report why the connection ended.
            return Some(self.shared.ended().await);
        }
        self.shared.has_ended()
    }

    /// Closes the program's standard input and waits until the program ends. After `grace`, forces the program to end.
    pub(super) async fn close(&self, grace: Duration) {
        self.closing.cancel();
        self.shared.end(BackendError::Ended("it was terminated".to_owned()));
        self.program.process.stop(grace).await;
        self.task.lock().await.shutdown().await;
    }
}

/// Supervises a program until it ends. `name` is the backend's name.
async fn supervise(
    name: String,
    program: String,
    supervised: AcpProgramGuard,
    peer: Arc<AcpPeer>,
    outgoing: AcpOutgoingLines,
    closing: CancellationToken,
    (stdin, stdout, stderr): (ChildStdin, ChildStdout, ChildStderr),
) {
    let AcpProgramGuard { process, shared, .. } = &supervised;
    let words = StderrTail::default();
    let mut stderr = pin!(words.follow(stderr, &name).fuse());
    let mut reader = pin!(read(stdout, &peer, shared).fuse());
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

/// Reads and processes messages until the output ends. Fails if the output is not that of an agent.
async fn read(
    stdout: impl AsyncRead + Unpin,
    peer: &Arc<AcpPeer>,
    shared: &AcpSessionShared,
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
            ParsedAcpLine::Messages(messages) => messages,
            ParsedAcpLine::Damaged => {
                return Err(format!("it wrote a damaged message: {}", shown(&line, 200)));
            }
            // Some programs also write other text to their standard output, although the protocol forbids this. Skip
            // this text, up to a limit.
            ParsedAcpLine::Noise => {
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

/// Returns the error for a request that the agent refused.
pub(super) fn refused(method: &'static str, error: &Error, sign_in: &[AuthMethod]) -> BackendError {
    let words = format!("`{method}`: {}", words(error));
    match error.code {
        ErrorCode::AuthRequired => BackendError::Auth(auth(&words, sign_in)),
        ErrorCode::InvalidParams | ErrorCode::InvalidRequest => BackendError::Invalid(words),
        ErrorCode::MethodNotFound => BackendError::Unsupported(words),
        _ => BackendError::Failed(words),
    }
}

/// Returns the error for a session that the agent did not resume.
pub(super) fn not_resumed(
    method: &'static str,
    error: &Error,
    id: &SessionId,
    sign_in: &[AuthMethod],
) -> BackendError {
    // The protocol defines a code for a missing session, but many agents report a missing session with another code.
    // Therefore, the text of the error is searched for the usual descriptions.
    let text = words(error).to_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    let is_missing = has(&["not found", "no such", "unknown", "not exist", "no session", "invalid session"])
        || (has(&["no "]) && has(&[" found"]));
    // The text must also mention a session, because "not found" can refer to a key, a model or a settings file.
    let is_unknown = is_missing && has(&["session", "thread", "conversation", "rollout"]);
    let unknown = || BackendError::UnknownSession { id: id.clone(), message: words(error) };
    match error.code {
        ErrorCode::AuthRequired => refused(method, error, sign_in),
        ErrorCode::ResourceNotFound => unknown(),
        ErrorCode::MethodNotFound => BackendError::NotResumable(words(error)),
        _ if is_unknown => unknown(),
        _ => refused(method, error, sign_in),
    }
}

fn auth(words: &str, sign_in: &[AuthMethod]) -> String {
    if sign_in.is_empty() {
        return format!("{words}; it offers no method to sign in");
    }
    let ways: Vec<String> = sign_in
        .iter()
        .map(|method| {
            let about = method.description().map(|about| format!(": {about}")).unwrap_or_default();
            format!("{} (`{}`){about}", method.name(), method.id())
        })
        .collect();
    let ways = shown(ways.join("; ").as_bytes(), LONGEST_QUOTE);
    format!("{words}; sign in with the program itself, or set `with_sign_in` to one of: {ways}")
}

fn words(error: &Error) -> String {
    let mut words = error.message.clone();
    let detail = match &error.data {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Object(members)) => ["details", "message", "error", "reason"]
            .iter()
            .find_map(|name| members.get(*name)?.as_str().map(str::to_owned))
            .or_else(|| Some(Value::Object(members.clone()).to_string())),
        _ => None,
    };
    if let Some(detail) = detail.filter(|detail| !detail.is_empty() && *detail != words) {
        words.push_str(": ");
        words.push_str(&detail);
    }
    shown(words.as_bytes(), LONGEST_QUOTE)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::provider::backend::BackendEvent;

    /// Returns the program's end of its output, and the state that the output changes.
    fn reading() -> (DuplexStream, Arc<AcpSessionShared>) {
        let (program, ours) = duplex(1024);
        let shared = AcpSessionShared::new();
        shared.is_session("s");
        let state = Arc::clone(&shared);
        tokio::spawn(async move { read(ours, &AcpPeer::new().0, &state).await });
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

    #[test]
    fn missing_session_is_recognised_in_each_wording() {
        let id = SessionId::new("s");
        let failure = |code: i32, message: &str, detail: &str| {
            let error = Error::new(code, message).data(serde_json::json!({ "details": detail }));
            not_resumed("session/load", &error, &id, &[])
        };
        for detail in [
            "Session not found: s",
            "Invalid session identifier \"s\".",
            "no rollout found for thread id s",
            "No conversation found with session ID: s",
        ] {
            let message = format!("Internal error: {detail}");
            let unknown = BackendError::UnknownSession { id: id.clone(), message };
            assert_eq!(failure(-32603, "Internal error", detail), unknown);
        }
        let message = "Resource not found".to_owned();
        assert_eq!(
            failure(-32002, "Resource not found", ""),
            BackendError::UnknownSession { id: id.clone(), message }
        );
        for detail in
            ["the disk is full", "No API key found", "model not found: x", "no such file: settings.json"]
        {
            assert!(matches!(failure(-32603, "Internal error", detail), BackendError::Failed(_)), "{detail}");
        }
    }
}

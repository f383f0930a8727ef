//! A program and the connection to it.

use std::{
    io,
    pin::pin,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent_client_protocol::{
    Agent, Builder, Client, ConnectionTo, Error, JsonRpcRequest, is_connection_terminated,
    is_incoming_transport_closed, on_receive_dispatch,
};
use futures_util::{
    FutureExt,
    future::{Either, Fuse, FusedFuture, select},
};
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
    task::JoinHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    shared::ConnectionState,
    wire::{self, Broken, MessagesInFlight},
};
use crate::{
    process::{Process, lines::LastWords},
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
    pub(super) agent: ConnectionTo<Agent>,
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
    pub(super) async fn open(command: Command, name: &str) -> Result<Self, BackendError> {
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
        let traffic = MessagesInFlight::new();
        let shared = ConnectionState::new(Arc::clone(&traffic));
        let closing = CancellationToken::new();
        let (sender, receiver) = oneshot::channel();
        let supervisor = Supervisor {
            name: name.to_owned(),
            program: program.clone(),
            shared: Arc::clone(&shared),
            process: Arc::clone(&process),
            closing: closing.clone(),
            stdin: ChildStdin::from_std(pipes.stdin).map_err(cannot)?,
            stdout: ChildStdout::from_std(pipes.stdout).map_err(cannot)?,
            stderr: ChildStderr::from_std(pipes.stderr).map_err(cannot)?,
        };
        let task = Mutex::new(Some(tokio::spawn(supervisor.run(sender))));
        let running = Running { process, shared: Arc::clone(&shared), closing, task };
        match receiver.await {
            Ok(agent) => Ok(Self { shared, agent, running }),
            Err(_) => Err(BackendError::Unavailable(format!("there is no connection to `{program}`"))),
        }
    }

    /// Sends a request to the agent and waits for the response within a limit. Used before the first turn.
    pub(super) async fn ask<R: JsonRpcRequest>(
        &self,
        call: &'static str,
        request: R,
        limit: Duration,
    ) -> Result<R::Response, Unanswered> {
        let over = |error| match error {
            // The session is still being opened, so either the program is not an agent, or its arguments or settings
            // are wrong.
            BackendError::Ended(why) => BackendError::Misconfigured(why),
            other => other,
        };
        tokio::select! {
            biased;
            answer = self.agent.send_request(request).block_task() => match answer {
                Ok(answer) => Ok(answer),
                Err(error) if is_incoming_transport_closed(&error) || is_connection_terminated(&error) => {
                    Err(Unanswered::Over(over(self.shared.ended().await)))
                }
                Err(error) => Err(Unanswered::Refused(error)),
            },
            error = self.shared.ended() => Err(Unanswered::Over(over(error))),
            line = self.shared.traffic.lasting_noise(NOISE_GRACE) => {
                Err(Unanswered::Over(BackendError::Misconfigured(Broken::Noise(line).to_string())))
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
    async fn run(self, sender: oneshot::Sender<ConnectionTo<Agent>>) {
        let Self { name, program, shared, process, closing, stdin, stdout, stderr } = self;
        let _last = Last(Arc::clone(&shared), Arc::clone(&process));
        let traffic = Arc::clone(&shared.traffic);
        let (channel, outgoing, incoming) = wire::channel();
        let words = LastWords::default();
        let mut stderr = pin!(words.follow(stderr, &name).fuse());
        let mut reader = pin!(wire::read(stdout, incoming, &traffic).fuse());
        let why = {
            let taking = Arc::clone(&shared);
            // This code uses the raw builder, which does not check the protocol version in the agent's response. The
            // check follows in this crate.
            let driver = Builder::new(Client)
                .on_receive_dispatch(
                    async move |dispatch, agent: ConnectionTo<Agent>| taking.take(dispatch, &agent),
                    on_receive_dispatch!(),
                )
                .connect_with(channel, async move |agent| {
                    // The send fails if the caller that opens the connection has stopped waiting for it. Ignore this
                    // error.
                    let _ = sender.send(agent.clone());
                    agent.incoming_closed().await;
                    Ok(())
                });
            let mut driver = pin!(driver.fuse());
            let mut writer = pin!(wire::write(stdin, outgoing, &traffic).fuse());
            let mut exit = pin!(process.ended().fuse());
            // This timer is set when the program has ended or does not read its input. It limits the wait for the rest
            // of the output. If writing failed, `deaf` contains the reason.
            let mut late = pin!(Fuse::<Sleep>::terminated());
            let mut deaf = None;
            loop {
                tokio::select! {
                    biased;
                    () = closing.cancelled() => break None,
                    broken = &mut reader => {
                        // Wait for the driver, because messages that have been read must still be processed.
                        let _ = timeout(SOON, &mut driver).await;
                        break Some(broken);
                    }
                    () = &mut late => break Some(deaf.map_or(Broken::Closed, Broken::Deaf)),
                    ended = &mut driver => {
                        let why = ended.err().map_or_else(String::new, |error| error.to_string());
                        break Some(Broken::Failed(why));
                    }
                    // Output that the program wrote before it ended may still be unread, so wait a little longer.
                    _ = &mut exit => late.set(sleep(SOON).fuse()),
                    Err(error) = &mut writer => {
                        deaf = Some(error.to_string());
                        late.set(sleep(SOON).fuse());
                    }
                    () = &mut stderr => {}
                }
            }
        };
        let error = match why {
            None => BackendError::Ended("it was terminated".to_owned()),
            Some(broken) => {
                if !matches!(broken, Broken::Closed | Broken::Deaf(_)) {
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
                let why = match (how, &broken) {
                    (Ok(how), Broken::Closed | Broken::Deaf(_)) => format!("`{program}` has ended: {how}"),
                    _ => format!("`{program}`: {broken}"),
                };
                BackendError::Ended(format!("{why}{}", words.quoted()))
            }
        };
        shared.end(error);
        traffic.close();
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

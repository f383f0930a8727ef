//! A program and the connection to it, from its start to its end.

use std::{
    future::Future,
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
    future::{Fuse, FusedFuture},
};
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
    task::JoinHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    fault,
    lines::LastWords,
    process::Process,
    shared::Shared,
    wire::{self, Broken, Traffic},
};
use crate::provider::backend::BackendError;

/// How long what follows at once is waited for: a program's end after that of its output, and the other way round.
const SOON: Duration = Duration::from_secs(1);

/// How long a program that wrote what is no message has, at its start, to write one.
const NOISE_GRACE: Duration = Duration::from_secs(5);

/// A connection to a program that runs. Dropped, the program is killed.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) agent: ConnectionTo<Agent>,
    running: Running,
}

/// The program and the task that sees it through.
struct Running {
    process: Arc<Process>,
    shared: Arc<Shared>,
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A request was not answered with what it asked for.
pub(super) enum Unanswered {
    /// The agent refused it.
    Refused(Error),
    /// There is no answer.
    Over(BackendError),
}

impl Connection {
    /// Starts the program. `name` is the backend's.
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
        let traffic = Traffic::new();
        let shared = Shared::new(Arc::clone(&traffic));
        let closing = CancellationToken::new();
        let (tell, told) = oneshot::channel();
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
        let task = Mutex::new(Some(tokio::spawn(supervisor.run(tell))));
        let running = Running { process, shared: Arc::clone(&shared), closing, task };
        match told.await {
            Ok(agent) => Ok(Self { shared, agent, running }),
            Err(_) => Err(BackendError::Unavailable(format!("there is no connection to `{program}`"))),
        }
    }

    /// Asks the agent, within a limit. For the time before the first turn.
    pub(super) async fn ask<R: JsonRpcRequest>(
        &self,
        call: &'static str,
        request: R,
        limit: Duration,
    ) -> Result<R::Response, Unanswered> {
        let over = |error| match error {
            // There was no session yet: the program is not an agent, or its arguments or settings are wrong.
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
                let why = fault::broken(&Broken::Noise(line));
                Err(Unanswered::Over(BackendError::Misconfigured(why)))
            }
            () = sleep(limit) => Err(Unanswered::Over(fault::slow(call, limit))),
        }
    }

    /// Why nothing can be asked any more, if that is so.
    pub(super) async fn over(&self) -> Option<BackendError> {
        if self.running.process.has_ended() {
            // It is seen to, and soon told.
            return Some(self.shared.ended().await);
        }
        self.shared.has_ended()
    }

    /// Closes the program's standard input, and waits for its end, which is seen to when `grace` has passed.
    pub(super) async fn close(&self, grace: Duration) {
        let running = &self.running;
        running.closing.cancel();
        running.shared.end(BackendError::Ended("it was terminated".to_owned()));
        running.process.stop(grace).await;
        let task = running.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            // It was told to end, and has.
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

/// Sees a program through.
struct Supervisor {
    name: String,
    program: String,
    shared: Arc<Shared>,
    process: Arc<Process>,
    closing: CancellationToken,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
}

/// However the supervisor ends, so does all that waits for it.
struct Last(Arc<Shared>, Arc<Process>);

impl Drop for Last {
    fn drop(&mut self) {
        self.1.kill();
        self.0.end(BackendError::Ended("its connection was cut off".to_owned()));
    }
}

impl Supervisor {
    async fn run(self, tell: oneshot::Sender<ConnectionTo<Agent>>) {
        let Self { name, program, shared, process, closing, stdin, stdout, stderr } = self;
        let _last = Last(Arc::clone(&shared), Arc::clone(&process));
        let traffic = Arc::clone(&shared.traffic);
        let (channel, outgoing, incoming) = wire::channel();
        let words = LastWords::default();
        let mut stderr = pin!(words.follow(stderr, &name).fuse());
        let mut reader = pin!(wire::read(stdout, incoming, &traffic).fuse());
        let why = {
            let taking = Arc::clone(&shared);
            // The version is looked at where the answer is: so the raw builder, which does not.
            let driver = Builder::new(Client)
                .on_receive_dispatch(
                    async move |dispatch, agent: ConnectionTo<Agent>| taking.take(dispatch, &agent),
                    on_receive_dispatch!(),
                )
                .connect_with(channel, async move |agent| {
                    // Who opens it may have gone away.
                    let _ = tell.send(agent.clone());
                    agent.incoming_closed().await;
                    Ok(())
                });
            let mut driver = pin!(driver.fuse());
            let mut writer = pin!(wire::write(stdin, outgoing, &traffic).fuse());
            let mut exit = pin!(process.ended().fuse());
            // From when on what is left is to come soon, and why.
            let mut late = pin!(Fuse::<Sleep>::terminated());
            let mut deaf = None;
            loop {
                tokio::select! {
                    biased;
                    () = closing.cancelled() => break None,
                    broken = &mut reader => {
                        // What was read is still to be taken.
                        let _ = timeout(SOON, &mut driver).await;
                        break Some(broken);
                    }
                    () = &mut late => break Some(deaf.map_or(Broken::Closed, Broken::Deaf)),
                    ended = &mut driver => {
                        let why = ended.err().map_or_else(String::new, |error| error.to_string());
                        break Some(Broken::Failed(why));
                    }
                    // What it wrote before may still have to be read.
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
                let how = beside(&mut stderr, timeout(SOON, process.ended())).await;
                if how.is_err() {
                    process.kill();
                }
                // Its last words are there by now, unless somebody else holds the pipe.
                if !stderr.is_terminated() {
                    let _ = timeout(SOON, &mut stderr).await;
                }
                let why = match (how, &broken) {
                    (Ok(how), Broken::Closed | Broken::Deaf(_)) => format!("`{program}` has ended: {how}"),
                    _ => format!("`{program}`: {}", fault::broken(&broken)),
                };
                BackendError::Ended(format!("{why}{}", words.quoted()))
            }
        };
        shared.end(error);
        traffic.close();
        // Until its end it may write: a program that is to end in order is not to fail at that.
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

/// Returns whether the system lacked something that it may have again soon, such as memory or a file descriptor.
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

/// Does one thing while another goes on.
async fn beside<T>(other: &mut (impl FusedFuture<Output = ()> + Unpin), work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = other => {}
    }
    work.await
}

//! Starts programs, watches them, and ends each together with all processes that it started.

#[cfg(target_os = "linux")]
mod leftovers;
pub(crate) mod lines;
#[cfg(unix)]
mod watcher;

use std::{
    io,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::timeout};

use crate::sync::lock;

/// The time between two checks for the program's end, on systems that do not report the end.
#[cfg(any(not(unix), target_os = "openbsd"))]
const LOOK: Duration = Duration::from_millis(20);

/// The maximum time to wait until killed processes are gone. A process that still exists after this time has no parent
/// that reaps it, as in a container without an init process.
#[cfg(unix)]
const GOING: Duration = Duration::from_millis(200);

/// A program that is running or has ended. Dropping this kills the program.
///
/// A separate thread waits for the program's end. Then it kills the processes that the program left behind, even if the
/// runtime has already ended.
pub(crate) struct Process {
    held: Arc<Mutex<ChildProcessState>>,
    ended: watch::Receiver<Option<String>>,
}

/// The child process. After the process has been reaped, its id may be reused.
struct ChildProcessState {
    child: Child,
    ended: bool,
    /// Kills the program if the application is killed.
    #[cfg(unix)]
    watcher: Option<watcher::OrphanWatcher>,
}

/// The pipes to the program.
pub(crate) struct ChildProcessPipes {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, ChildProcessPipes)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The program gets its own process group. A Ctrl-C at the terminal then reaches only the application. When the
        // program ends, the processes that it started are ended with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        #[cfg(target_os = "linux")]
        let mark = leftovers::ProcessEnvironmentMark::set(&mut command);
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three were asked for");
        };
        #[cfg(unix)]
        let watcher = watcher::OrphanWatcher::start(rustix::process::Pid::from_child(&child))
            .inspect_err(
                |error| tracing::warn!(%error, "a program will survive if the application is killed"),
            )
            .ok();
        let held = Arc::new(Mutex::new(ChildProcessState {
            child,
            ended: false,
            #[cfg(unix)]
            watcher,
        }));
        let (sender, ended) = watch::channel(None);
        let process = Self { held: Arc::clone(&held), ended };
        thread::Builder::new().name("omni-process".to_owned()).stack_size(256 * 1024).spawn(move || {
            let status = reap(&held);
            // The process group of the program is killed by now. A program that exits successfully has already ended
            // its processes in other groups. After any other exit, kill those that remain.
            #[cfg(target_os = "linux")]
            if !status.as_ref().is_ok_and(ExitStatus::success) {
                mark.kill_all();
            }
            let how = status
                .map_or_else(|error| format!("its exit status is unknown: {error}"), |how| how.to_string());
            sender.send_replace(Some(how));
        })?;
        Ok((process, ChildProcessPipes { stdin, stdout, stderr }))
    }

    /// Kills the program and the processes that it started.
    pub(crate) fn kill(&self) {
        lock(&self.held).kill();
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.held).ended
    }

    /// Waits for the program's end, and returns its exit status as text.
    pub(crate) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| "its exit status is unknown".to_owned())
    }

    /// Waits until the program ends. After `grace`, forces it to end: on Unix first with the signal `TERM`, and after
    /// half of `grace` again by killing it.
    pub(crate) async fn stop(&self, grace: Duration) {
        if timeout(grace, self.ended()).await.is_ok() {
            return;
        }
        #[cfg(unix)]
        {
            lock(&self.held).signal(rustix::process::Signal::TERM);
            if timeout(grace / 2, self.ended()).await.is_ok() {
                return;
            }
        }
        self.kill();
        self.ended().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl ChildProcessState {
    fn kill(&mut self) {
        if self.ended {
            return;
        }
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
        #[cfg(not(unix))]
        if let Err(error) = self.child.kill() {
            tracing::debug!(%error, "a program was not killed");
        }
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        if self.ended {
            return;
        }
        let group = rustix::process::Pid::from_child(&self.child);
        if let Err(error) = rustix::process::kill_process_group(group, signal) {
            tracing::debug!(%error, "a program was not signalled");
        }
    }
}

/// Waits for the program's end, and kills the processes that it left behind.
fn reap(held: &Mutex<ChildProcessState>) -> io::Result<ExitStatus> {
    wait(held);
    let mut held = lock(held);
    // The process is not reaped yet, so its id can't belong to another process group.
    held.kill();
    held.ended = true;
    #[cfg(unix)]
    if let Some(watcher) = held.watcher.take() {
        watcher.stop();
    }
    let status = held.child.wait();
    #[cfg(unix)]
    {
        let group = rustix::process::Pid::from_child(&held.child);
        drop(held);
        let killed = Instant::now();
        while rustix::process::test_kill_process_group(group).is_ok() && killed.elapsed() < GOING {
            thread::sleep(Duration::from_millis(2));
        }
    }
    status
}

/// Waits for the program's end without reaping the process, so that other threads can still kill it.
#[cfg(all(unix, not(target_os = "openbsd")))]
fn wait(held: &Mutex<ChildProcessState>) {
    use rustix::{
        io::Errno,
        process::{Pid, WaitId, WaitIdOptions, waitid},
    };

    let id = Pid::from_child(&lock(held).child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(id), options), Err(Errno::INTR)) {}
}

#[cfg(any(not(unix), target_os = "openbsd"))]
fn wait(held: &Mutex<ChildProcessState>) {
    while matches!(lock(held).child.try_wait(), Ok(None)) {
        thread::sleep(LOOK);
    }
}

//! Finds the processes that a program started and moved to other process groups, as coding agents do with the processes
//! of their tools. A variable in their environment identifies these processes.

use std::{
    fs,
    path::Path,
    process::{self, Command},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, SystemTime},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const VARIABLE: &str = "OMNI_AGENT_PROGRAM";

/// The maximum number of searches. One search is not enough, because processes may start other processes during a
/// search.
const ROUNDS: usize = 20;

/// A mark in the environment of all processes that a program starts. No other process has this mark.
pub(crate) struct ProcessEnvironmentMark(String);

impl ProcessEnvironmentMark {
    /// Sets the mark in the environment of a program that has not been started yet.
    pub(crate) fn set(command: &mut Command) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let value = format!("{}-{}-{number}", process::id(), since.as_nanos());
        command.env(VARIABLE, &value);
        Self(format!("{VARIABLE}={value}"))
    }

    /// Kills all remaining processes that have the mark.
    pub(crate) fn kill_all(&self) {
        for _ in 0..ROUNDS {
            let Ok(processes) = fs::read_dir("/proc") else { return };
            let killed = processes.flatten().filter(|process| self.kill(&process.path())).count();
            if killed == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills a process if it has the mark. Returns whether the process was killed.
    fn kill(&self, process: &Path) -> bool {
        let id = process.file_name().and_then(|name| name.to_str()?.parse().ok());
        let Some(id) = id.and_then(Pid::from_raw) else { return false };
        // The process is opened before its environment is read, so that its id can't be reused for another process in
        // between.
        let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { return false };
        let Ok(environment) = fs::read(process.join("environ")) else { return false };
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == self.0.as_bytes());
        is_marked && pidfd_send_signal(held, Signal::KILL).is_ok()
    }
}

//! Ends a program when the application is killed.
//!
//! The program has its own process group. Therefore, neither a Ctrl-C at the terminal nor a kill of the application
//! reaches the program. A small shell watches the application: it reads from a pipe whose other end the application
//! holds. When the application ends for any reason, the system closes that end, and the shell kills the program's
//! process group.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use rustix::process::Pid;

/// The shell waits for a line. If the pipe ends without the line `end`, the application has ended.
const SCRIPT: &str = r#"trap '' HUP INT TERM; read -r line; [ "$line" = end ] || kill -s KILL -- "-$1""#;

/// A process that kills a process group as soon as the application ends.
pub(crate) struct OrphanWatcher(Child);

impl OrphanWatcher {
    /// Starts a watcher for a process group.
    pub(crate) fn start(group: Pid) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh", &group.as_raw_nonzero().to_string()])
            .current_dir("/")
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Stops watching. Call this while the group's id still belongs to the group, because a watcher that is not stopped
    /// kills the group with this id.
    pub(crate) fn stop(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // If the watcher was killed, its end of the pipe is closed, and the write fails. Then there is nothing to
            // stop.
            let _ = pipe.write_all(b"end\n");
        }
        if let Err(error) = self.0.wait() {
            tracing::debug!(%error, "the watcher of a program was not waited for");
        }
    }
}

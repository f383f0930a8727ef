//! Ends an agent's program when the application is killed.
//!
//! The program has its own process group, so neither a Ctrl-C at the terminal nor a kill of the application reaches it.
//! A small shell watches the application. It reads from a pipe whose other end the application holds, and the system
//! closes that end when the application ends for any reason.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use rustix::process::Pid;

/// Waits for a line. If the pipe ends without a line, the application has ended.
const SCRIPT: &str = r#"trap '' HUP INT TERM; read -r line; [ "$line" = end ] || kill -s KILL -- "-$1""#;

/// A process that kills a process group as soon as the application has ended.
pub(super) struct Watcher(Child);

impl Watcher {
    /// Starts to watch on behalf of a process group.
    pub(super) fn start(group: Pid) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh", &group.as_raw_nonzero().to_string()])
            .current_dir("/")
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Stops watching. Call this while the group's id still belongs to the group: a watcher that is not stopped kills
    /// the group.
    pub(super) fn stop(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // If the watcher was killed, its end of the pipe is closed.
            let _ = pipe.write_all(b"end\n");
        }
        if let Err(error) = self.0.wait() {
            tracing::debug!(%error, "the watcher of an agent's program was not waited for");
        }
    }
}

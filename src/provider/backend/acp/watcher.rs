//! The end of an agent's program when the application is killed.
//!
//! The program has a process group of its own, so neither a Ctrl-C at the terminal nor a kill of the application reaches
//! it. A small shell watches the application: it reads from a pipe whose other end the application holds, and the
//! system closes that end whatever happens to the application.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use rustix::process::Pid;

/// Waits for a line. The end of the pipe without one means that the application is gone.
const SCRIPT: &str = r#"trap '' HUP INT TERM; read -r line; [ "$line" = end ] || kill -s KILL -- "-$1""#;

/// A process that kills a process group as soon as this process has gone.
pub(super) struct Watcher(Child);

impl Watcher {
    /// Watches on behalf of a process group.
    pub(super) fn start(group: Pid) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command
            .args(["-c", SCRIPT, "sh", &group.as_raw_nonzero().to_string()])
            .current_dir("/")
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Ends the watch. The group's id must still belong to the group: a watcher that misses this call kills it.
    pub(super) fn stop(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // A watcher that somebody killed has closed the pipe.
            let _ = pipe.write_all(b"end\n");
        }
        if let Err(error) = self.0.wait() {
            tracing::debug!(%error, "the watcher of an agent's program was not waited for");
        }
    }
}
